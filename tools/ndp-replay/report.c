// SPDX-License-Identifier: GPL-2.0-or-later
/* report.c - text and CSV; see report.h. */
#include "report.h"

#include <math.h>

struct figures report_figures(const struct replay *r, enum ndp_policy policy)
{
	const struct policy_result *p = &r->policy[policy];
	const struct reference *ref = &r->reference;
	struct figures f = {
		.mean_ns = replay_mean_ns(r, p),
		.speed_up = NAN,
		.gpu = p->busy.gpu_ns / p->sum_ns,
		.pcie = p->busy.pcie_ns / p->sum_ns,
		.cpu = p->busy.cpu_ns / p->sum_ns,
		.channels = p->busy.channels_ns / p->sum_ns,
		.dimms = p->busy.dimms_ns / p->sum_ns,
		.over_fluid = p->sampled_ns / p->fluid_ns - 1,
		.waited = replay_waited(r, policy),
		.over_lp = NAN,
		.over_whole = NAN,
		.over_whole_bound = NAN,
	};

	if (r->best_baseline >= 0)
		f.speed_up = r->policy[r->best_baseline].sum_ns / p->sum_ns;
	/* Engines make each policy a problem of its own; the lead's is looked at. */
	if (ref->nr && (policy == r->lead || !r->mover[policy])) {
		f.over_lp = ref->policy_ns[policy] / ref->fluid_ns - 1;
		f.over_whole = ref->policy_ns[policy] / ref->whole_ns - 1;
		f.over_whole_bound = ref->policy_ns[policy] / ref->whole_bound_ns - 1;
	}
	return f;
}

static bool shown(const struct replay *r, int policy)
{
	return r->policy[policy].wanted && !r->policy[policy].impossible;
}

static void print_head(const struct replay *r, FILE *f)
{
	const struct ndp_host *host = &r->host.host;
	const struct ndp_shape *shape = &r->model.shape;

	fprintf(f, "host       %s: %s, %s, %u DIMMs on %u channels, %s\n", r->host.name,
		host->gpu.gflops > 0 ? "GPU" : "no GPU", host->cpu.gflops > 0 ? "CPU" : "no CPU",
		host->nr_dimms, host->nr_channels, host->dimm.gflops > 0 ? "NDP" : "no NDP");
	fprintf(f, "model      %s: %u experts of %.2f MB, top %u\n", r->model.name, shape->experts,
		shape->expert_bytes / 1e6, shape->top_k);
	fprintf(f, "loads      %s\n", r->source->text);
	fprintf(f, "           %llu steps of %u layers: %llu layers run, %.1f tokens each\n",
		(unsigned long long)r->steps, r->source->nr_layers, (unsigned long long)r->nr_run,
		r->selections / (double)shape->top_k / r->nr_run);
	fprintf(f, "charges    %s\n", r->options.charges == NDP_CHARGES_ALL ?
		"all: channels, DIMM reads, activations, staging" :
		"paper: channels");
	if (r->gpu_slots)
		fprintf(f, "GPU memory %llu experts of all layers together\n",
			(unsigned long long)r->gpu_slots);
	else
		fprintf(f, "GPU unused: no memory for experts\n");
	fprintf(f, "placement  %s", placement_name(r->options.placement));
	if (r->options.placement >= PLACEMENT_ORACLE_SPREAD)
		fprintf(f, ": the %u most loaded experts of each layer are in GPU memory",
			r->where.hot);
	fputc('\n', f);
}

static void print_policies(const struct replay *r, FILE *f)
{
	fprintf(f, "\nModelled time of one layer, and how busy resources are (DIMMs and channels "
		"on the mean):\n\n");
	fprintf(f, "%-16s %9s %9s %9s %8s %8s  %5s %5s %5s %5s %5s\n", "policy", "mean us", "p50 us",
		"p99 us", "speed-up", "bound +%", "GPU%", "PCIe%", "CPU%", "chan%", "DIMM%");
	for (int k = 0; k < NDP_POLICIES; k++) {
		const struct policy_result *p = &r->policy[k];
		const struct figures g = report_figures(r, k);

		if (!p->wanted)
			continue;
		if (p->impossible) {
			fprintf(f, "%-16s impossible on this host\n", ndp_policy_name(k));
			continue;
		}
		fprintf(f, "%-16s %9.1f %9.1f %9.1f ", ndp_policy_name(k), g.mean_ns / 1e3,
			p->p50_ns / 1e3, p->p99_ns / 1e3);
		if (isnan(g.speed_up))
			fprintf(f, "%8s ", "-");
		else
			fprintf(f, "%7.3fx ", g.speed_up);
		fprintf(f, "%8.2f  %5.1f %5.1f %5.1f %5.1f %5.1f\n", 100 * g.over_fluid, 100 * g.gpu,
			100 * g.pcie, 100 * g.cpu, 100 * g.channels, 100 * g.dimms);
	}
	fprintf(f, "\nspeed-up: over %s, the best of gpu, gpu-cpu and gpu-ndp\n",
		r->best_baseline < 0 ? "none, as none was run" : ndp_policy_name(r->best_baseline));
	fprintf(f, "bound: no plan, whole or split, is shorter; %.1f us on the mean",
		r->policy[r->lead].fluid_ns / r->nr_sampled / 1e3);
	if (r->nr_sampled < r->nr_run)
		fprintf(f, " of %llu layers looked at", (unsigned long long)r->nr_sampled);
	if (r->mover[r->lead])
		fprintf(f, ", where %s's experts are", ndp_policy_name(r->lead));
	fputc('\n', f);
}

static void print_reference(const struct replay *r, FILE *f)
{
	const struct reference *ref = &r->reference;

	if (!ref->nr)
		return;
	fprintf(f, "\nAgainst GLPK, on %u layers chosen at random (means; %u ms for each optimum, "
		"%u proven)%s%s%s:\n\n", ref->nr, ref->limit_ms, ref->proven,
		r->mover[r->lead] ? ", with experts where " : "",
		r->mover[r->lead] ? ndp_policy_name(r->lead) : "",
		r->mover[r->lead] ? " has them" : "");
	fprintf(f, "fluid bound                  %9.1f us\n", ref->fluid_ns / ref->nr / 1e3);
	fprintf(f, "whole experts, best found    %9.1f us\n", ref->whole_ns / ref->nr / 1e3);
	fprintf(f, "whole experts, proven bound  %9.1f us\n\n", ref->whole_bound_ns / ref->nr / 1e3);
	fprintf(f, "%-16s %9s %14s %14s %14s\n", "policy", "mean us", "over fluid %",
		"over best %", "over bound %");
	for (int k = 0; k < NDP_POLICIES; k++) {
		const struct figures g = report_figures(r, k);

		if (shown(r, k) && !isnan(g.over_lp))
			fprintf(f, "%-16s %9.1f %14.2f %14.2f %14.2f\n", ndp_policy_name(k),
				ref->policy_ns[k] / ref->nr / 1e3, 100 * g.over_lp,
				100 * g.over_whole, 100 * g.over_whole_bound);
	}
}

static void print_moves(const struct replay *r, FILE *f)
{
	if (!placement_moves(r->options.placement))
		return;
	fprintf(f, "\nPlacement engine, one for each policy (modelled; hidden: of the copies' time at "
		"full speed,\nwhat no layer waited for; waited: by which layers ended later, of all "
		"time):\n\n%-16s %8s %8s %9s %10s %8s %8s %12s\n", "policy", "prefetch", "relayout",
		"rebalance", "MB copied", "hidden %", "waited %", "late mean us");
	for (int k = 0; k < NDP_POLICIES; k++) {
		const struct moves *m;

		if (!shown(r, k))
			continue;
		m = &r->mover[k]->moves;
		fprintf(f, "%-16s %8llu %8llu %9llu %10.1f ", ndp_policy_name(k),
			(unsigned long long)m->started[NDP_PLACE_PREFETCH],
			(unsigned long long)m->started[NDP_PLACE_RELAYOUT],
			(unsigned long long)m->started[NDP_PLACE_REBALANCE],
			(m->bytes[0] + m->bytes[1] + m->bytes[2]) / 1e6);
		if (m->copy_ns > 0)
			fprintf(f, "%8.1f", 100 * mover_hidden(m));
		else
			fprintf(f, "%8s", "-");
		fprintf(f, " %8.4f %12.1f\n", 100 * replay_waited(r, k),
			r->policy[k].late_ns / 1e3);
	}
	fprintf(f, "\nlate mean: of the second half of the layers, when most has been moved\n");
	for (int k = 0; k < NDP_POLICIES; k++)
		if (shown(r, k) && r->mover[k]->moves.played)
			fprintf(f, "%s: %llu layers beside copies; of %llu played event by event the "
				"mean ends %.1f us later (by the rules %.1f), copies %.1f us after it\n",
				ndp_policy_name(k), (unsigned long long)r->mover[k]->moves.layers,
				(unsigned long long)r->mover[k]->moves.played,
				r->mover[k]->moves.timeline_ns / r->mover[k]->moves.played / 1e3,
				r->mover[k]->moves.played_ns / r->mover[k]->moves.played / 1e3,
				r->mover[k]->moves.timeline_left_ns / r->mover[k]->moves.played /
				1e3);
}

static void print_score(FILE *f, const char *name, const struct ndp_score *s)
{
	fprintf(f, "%-16s %9.2f %11.2f %10.2f\n", name, 100 * s->accuracy / s->steps,
		100 * s->hot_recall / s->steps, 100 * s->coverage / s->steps);
}

static void print_scores(const struct replay *r, FILE *f)
{
	const struct scores *s = &r->scores;
	struct ndp_score chance;

	if (!s->score[RIVAL_OURS].steps)
		return;
	ndp_score_chance(&chance, s->experts);
	fprintf(f, "\nPrediction of the next step (hot 5 %%, warm 25 %%, cold 70 %% by rank, ties at "
		"random), per cent, on %llu layers:\n\n",
		(unsigned long long)s->score[RIVAL_OURS].steps);
	fprintf(f, "%-16s %9s %11s %10s\n", "predictor", "accuracy", "hot recall", "coverage");
	for (int k = 0; k < RIVALS; k++)
		print_score(f, rival_name(k), &s->score[k]);
	print_score(f, "chance", &chance);
}

static void print_layers(const struct replay *r, FILE *f)
{
	fprintf(f, "\nMean of each layer, modelled us:\n\n%5s", "layer");
	for (int k = 0; k < NDP_POLICIES; k++)
		if (shown(r, k))
			fprintf(f, " %15s", ndp_policy_name(k));
	fputc('\n', f);
	for (uint32_t l = 0; l < r->source->nr_layers; l++) {
		if (!r->layer_run[l])
			continue;
		fprintf(f, "%5u", r->source->layer_numbers[l]);
		for (int k = 0; k < NDP_POLICIES; k++)
			if (shown(r, k))
				fprintf(f, " %15.1f",
					r->policy[k].layer_ns[l] / r->layer_run[l] / 1e3);
		fputc('\n', f);
	}
}

static void print_skew(const struct replay *r, FILE *f)
{
	const uint32_t experts = r->model.shape.experts, hot = ndp_class_hot(experts);
	const uint32_t warm = hot + ndp_class_warm(experts);
	double share[3] = { 0 };

	for (uint32_t k = 0; k < experts; k++)
		share[k < hot ? 0 : k < warm ? 1 : 2] += r->rank_share[k];
	fprintf(f, "skew       of a layer's selections the top 5 %% of its experts in the step get "
		"%.1f %%, the next 25 %% %.1f %%, the others %.1f %%\n",
		100 * share[0], 100 * share[1], 100 * share[2]);
}

void report_text(const struct replay *r, FILE *f)
{
	print_head(r, f);
	print_skew(r, f);
	print_policies(r, f);
	print_reference(r, f);
	print_moves(r, f);
	print_scores(r, f);
	if (r->options.layers)
		print_layers(r, f);
	fprintf(f, "\nEvery time here is modelled: computed for the host described, not measured.\n");
}

/* An empty field where a figure is not known. */
static void csv_number(FILE *f, double v)
{
	if (isfinite(v))
		fprintf(f, ",%.9g", v);
	else
		fputc(',', f);
}

void report_csv(const struct replay *r, FILE *f)
{
	fprintf(f, "policy,layer,modelled_mean_ns,modelled_p50_ns,modelled_p99_ns,speed_up,"
		"over_bound,gpu_busy,pcie_busy,cpu_busy,channels_busy,dimms_busy,over_fluid_lp,"
		"over_whole_best,over_whole_bound\n");
	for (int k = 0; k < NDP_POLICIES; k++) {
		const struct policy_result *p = &r->policy[k];
		const struct figures g = report_figures(r, k);
		const double row[] = {
			g.mean_ns, p->p50_ns, p->p99_ns, g.speed_up, g.over_fluid, g.gpu, g.pcie,
			g.cpu, g.channels, g.dimms, g.over_lp, g.over_whole, g.over_whole_bound,
		};

		if (!shown(r, k))
			continue;
		fprintf(f, "%s,all", ndp_policy_name(k));
		for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
			csv_number(f, row[i]);
		fputc('\n', f);
		for (uint32_t l = 0; r->options.layers && l < r->source->nr_layers; l++)
			if (r->layer_run[l])
				fprintf(f, "%s,%u,%.9g,,,,,,,,,,,,\n", ndp_policy_name(k),
					r->source->layer_numbers[l],
					p->layer_ns[l] / r->layer_run[l]);
	}
}
