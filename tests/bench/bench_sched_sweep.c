// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_sched_sweep.c - how far `split` ends above the fluid bound, everywhere (bar
 * S.3): all hosts and models of share/, batches, charges A and B, experts (i) spread
 * or (ii) localized, and the real traces. Modelled time.
 *
 * Layers whose bound is at most 20 command overheads, of the domain where a command
 * costs most, do not count: there one too many is much. Where even whole neuron blocks
 * cannot come within 2 % of a bound that takes blocks apart (count.c proves it), the layer
 * is judged by what blocks allow, and said so. The library's own bound is never above
 * GLPK's; GLPK is asked where the library's leaves a doubt. Placement by class has no goal.
 *
 *   bench_sched_sweep [LAYERS]      of each configuration; run from the top of the tree
 */
#include "../../tools/ndp-reference/solve.h"
#include "bench.h"
#include "sched_layers.h"

#include <glpk.h>
#include <math.h>
#include <stdbool.h>

static const double goal = 0.02;
static const double same = 0.001;	/* blocks allow no better */
static bool failed;

/* Over the layers of some configurations. */
struct worst {
	uint32_t configurations, layers, judged, blocks;
	double sum;
	double most;		/* above the fluid bound, where blocks allow the goal */
	double most_blocks;	/* above it where they do not */
	double over_blocks;	/* and there above what they allow */
	char where[120], where_blocks[120];
};

static void judge(struct worst *w, const struct ndp_layer *layer, double split_ns, void *work,
		  const char *where)
{
	const struct ndp_host *host = layer->host;
	double fluid_ns = ndp_fluid_bound(layer, work), gap, blocks_ns;

	w->layers++;
	if (split_ns > fluid_ns * (1 + goal) && reference_lp(layer, &fluid_ns) < 0)
		die("%s: GLPK found no fluid bound", where);
	if (fluid_ns <= 20 * fmax(host->gpu.overhead_ns, fmax(host->cpu.overhead_ns,
							      host->dimm.overhead_ns)))
		return;
	w->judged++;
	gap = split_ns / fluid_ns - 1;
	w->sum += gap;
	blocks_ns = gap > goal ? reference_count_blocks(layer, split_ns) : 0;
	if (blocks_ns > fluid_ns * (1 + goal) && split_ns <= blocks_ns * (1 + same)) {
		w->blocks++;
		w->over_blocks = fmax(w->over_blocks, split_ns / blocks_ns - 1);
		if (gap > w->most_blocks) {
			w->most_blocks = gap;
			snprintf(w->where_blocks, sizeof(w->where_blocks), "%s", where);
		}
	} else if (gap > w->most) {
		w->most = gap;
		snprintf(w->where, sizeof(w->where), "%s", where);
	}
}

static void run(struct worst *w, struct layers *l, enum placement placement, uint32_t charges,
		const char *where)
{
	const uint32_t experts = l->shape.experts, dimms = l->host.nr_dimms;
	void *memory = malloc(ndp_plan_bytes(experts, dimms));
	void *work = malloc(ndp_schedule_bytes(experts, dimms));
	struct ndp_error err;
	struct ndp_plan plan;

	if (!memory || !work)
		die("out of memory");
	ndp_plan_init(&plan, memory, experts, dimms);
	w->configurations++;
	for (uint32_t k = 0; k < l->nr; k++) {
		const struct ndp_layer layer = layers_get(l, k, placement, charges);

		if (ndp_schedule(&layer, NDP_POLICY_SPLIT, work, &plan) < 0)
			die("%s: layer %u has no plan", where, k);
		if (ndp_plan_check(&layer, &plan, &err) < 0)
			die("%s: layer %u: %s", where, k, err.message);
		judge(w, &layer, plan.makespan_ns, work, where);
	}
	free(memory);
	free(work);
}

/* @judged: (i) and (ii). @by_class: the third placement, for information. */
static void all_placements(struct worst *judged, struct worst *by_class, struct layers *l,
			   const char *what)
{
	static const char *const names[] = { "(i)", "(ii)", "(by class)" };

	for (int b = 0; b < 2; b++)
		for (int p = SPREAD; p <= BY_CLASS; p++) {
			char where[120];

			snprintf(where, sizeof(where), "%s, %c%s", what, b ? 'B' : 'A', names[p]);
			run(p == BY_CLASS ? by_class : judged, l, p,
			    b ? NDP_CHARGES_ALL : NDP_CHARGES_PAPER, where);
		}
}

static void say(const char *what, const struct worst *w)
{
	printf("# %s: %u layers of %u configurations, %u count; split above the fluid bound: mean "
	       "%.2f %%, worst %.2f %% (%s)\n", what, w->layers, w->configurations, w->judged,
	       w->judged ? w->sum / w->judged * 100 : 0, w->most * 100,
	       w->judged ? w->where : "none counts");
	if (w->blocks)
		printf("# %s: in %u of them no plan of whole blocks is within 2 %%: worst %.2f %% "
		       "(%s), at most %.3f %% above what blocks allow\n", what, w->blocks,
		       w->most_blocks * 100, w->where_blocks, w->over_blocks * 100);
	fflush(stdout);
}

static void add(struct worst *to, const struct worst *w)
{
	to->configurations += w->configurations;
	to->layers += w->layers;
	to->judged += w->judged;
	to->blocks += w->blocks;
	to->sum += w->sum;
	to->over_blocks = fmax(to->over_blocks, w->over_blocks);
	if (w->most > to->most) {
		to->most = w->most;
		memcpy(to->where, w->where, sizeof(to->where));
	}
	if (w->most_blocks > to->most_blocks) {
		to->most_blocks = w->most_blocks;
		memcpy(to->where_blocks, w->where_blocks, sizeof(to->where_blocks));
	}
}

static void made_up(struct worst *judged, struct worst *by_class, uint32_t nr)
{
	static const char *const hosts[] = { "trimoe-paper", "trimoe-sustained", "epyc-9755" };
	static const char *const models[] = {
		"deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "glm-4.5-air", "gpt-oss-120b",
		"gpt-oss-20b", "kimi-k3", "mixtral-8x7b", "olmoe-1b-7b", "qwen3-235b-a22b",
		"qwen3-30b-a3b",
	};
	static const uint32_t batches[] = { 64, 256, 512, 768 };

	for (size_t h = 0; h < sizeof(hosts) / sizeof(hosts[0]); h++)
		for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
			/* 5 % of 64 experts cannot have 40 % of the selections at 8 a token. */
			const char *skew = !strcmp(models[m], "olmoe-1b-7b") ?
				"top5=0.30,next25=0.50,seed=1,steps=1000" :
				"top5=0.40,next25=0.50,seed=1,steps=1000";
			struct worst w = { 0 };
			char what[120];

			for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
				struct layers l;

				layers_load(&l, hosts[h], models[m], skew, batches[b], nr);
				snprintf(what, sizeof(what), "%s, %s, batch %u", hosts[h],
					 models[m], batches[b]);
				all_placements(&w, by_class, &l, what);
				layers_free(&l);
			}
			snprintf(what, sizeof(what), "%s, %s", hosts[h], models[m]);
			say(what, &w);
			add(judged, &w);
		}
}

static void traces(struct worst *judged, struct worst *by_class, uint32_t nr)
{
	static const struct {
		const char *model, *file;
	} all[] = {
		{ "gpt-oss-20b", "trace_gptoss20b_mixed_b16_first600" },
		{ "gpt-oss-20b", "trace_gptoss20b_mixed_b64_first300" },
		{ "gpt-oss-20b", "trace_gptoss20b_mixed_b256" },
		{ "gpt-oss-20b", "trace_gptoss20b_topical_b256" },
		{ "olmoe-1b-7b", "trace_olmoe_1b7b_b1" },
	};

	for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
		struct worst w = { 0 };
		struct layers l;
		char path[120];

		snprintf(path, sizeof(path), "tests/traces/%s.csv.gz", all[n].file);
		layers_load(&l, "trimoe-paper", all[n].model, path, 0, nr);
		all_placements(&w, by_class, &l, all[n].file);
		layers_free(&l);
		say(all[n].file, &w);
		add(judged, &w);
	}
}

int main(int argc, char **argv)
{
	const uint32_t nr = argc > 1 ? parse_number("LAYERS", argv[1], 1, 1000) : 6;
	struct worst judged = { 0 }, by_class = { 0 };

	/* GLPK would talk among the results. */
	glp_term_out(GLP_OFF);
	made_up(&judged, &by_class, nr);
	traces(&judged, &by_class, 8 * nr);
	say("placement by class", &by_class);
	say("everything", &judged);
	failed = judged.most > goal;
	printf("bar S.3 split-over-fluid-%%-worst-of-%u-configurations-modelled value=%.3g goal=<=2 "
	       "%s\n", judged.configurations, judged.most * 100, failed ? "fail" : "pass");
	return failed;
}
