// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_sched.c - what the policies reach, in modelled time (bars S.1, S.2, S.3).
 *
 * The paper's machine and skew (top 5 % of the experts 40 % of the tokens, next
 * 25 % 50 %), DeepSeek-V2, batch 512, 200 layers, the top 5 % in GPU memory, the
 * others (i) spread over all DIMMs or (ii) each in one, round-robin by falling
 * load; charges A (the paper's physics) and B (all). Every policy on the same
 * placement, every baseline refined the same way. Bounds and optima by GLPK, in
 * ndp-reference. Lines that begin with # have no goal.
 *
 *   bench_sched [LAYERS [LIMIT_MS]]      run from the top of the tree
 */
#include "../../tools/ndp-reference/protocol.h"
#include "bench.h"
#include "sched_layers.h"

#include <math.h>
#include <stdbool.h>
#include <unistd.h>

static const char skew[] = "top5=0.40,next25=0.50,seed=1,steps=1000";
static bool failed;

static const struct config {
	const char *name;
	enum placement placement;
	uint32_t charges;
} configs[] = {
	{ "A(i)", SPREAD, NDP_CHARGES_PAPER },
	{ "A(ii)", LOCALIZED, NDP_CHARGES_PAPER },
	{ "B(i)", SPREAD, NDP_CHARGES_ALL },
	{ "B(ii)", LOCALIZED, NDP_CHARGES_ALL },
};

enum {
	CONFIGS = sizeof(configs) / sizeof(configs[0]),
};

/* Makespans of some layers by policy. */
struct run {
	uint32_t nr;
	double *ns;		/* [nr][NDP_POLICIES] */
	double mean_ns[NDP_POLICIES];
	double commands[NDP_POLICIES];
};

static void run_policies(struct run *run, struct layers *l, const struct config *c)
{
	const uint32_t experts = l->shape.experts, dimms = l->host.nr_dimms;
	void *memory = malloc(ndp_plan_bytes(experts, dimms));
	void *work = malloc(ndp_schedule_bytes(experts, dimms));
	struct ndp_error err;
	struct ndp_plan plan;

	memset(run, 0, sizeof(*run));
	run->nr = l->nr;
	run->ns = calloc(run->nr * NDP_POLICIES, sizeof(*run->ns));
	if (!memory || !work || !run->ns)
		die("out of memory");
	ndp_plan_init(&plan, memory, experts, dimms);
	for (uint32_t k = 0; k < run->nr; k++) {
		const struct ndp_layer layer = layers_get(l, k, c->placement, c->charges);

		if (ndp_layer_check(&layer, &err) < 0)
			die("layer %u: %s", k, err.message);
		for (int p = 0; p < NDP_POLICIES; p++) {
			uint32_t commands[NDP_DOMAINS];

			if (ndp_schedule(&layer, p, work, &plan) < 0 ||
			    ndp_plan_check(&layer, &plan, &err) < 0)
				die("layer %u, %s: %s", k, ndp_policy_name(p), err.message);
			ndp_plan_commands(&layer, &plan, commands);
			run->ns[k * NDP_POLICIES + p] = plan.makespan_ns;
			run->mean_ns[p] += plan.makespan_ns / run->nr;
			run->commands[p] += (double)(commands[0] + commands[1] + commands[2]) / run->nr;
		}
	}
	free(memory);
	free(work);
}

/* Over the layers, the mean of the best baseline's time over the policy's. */
static double speedup(const struct run *run, enum ndp_policy policy)
{
	double sum = 0;

	for (uint32_t k = 0; k < run->nr; k++) {
		const double *ns = run->ns + k * NDP_POLICIES;

		sum += fmin(ns[NDP_POLICY_GPU], fmin(ns[NDP_POLICY_GPU_CPU],
						     ns[NDP_POLICY_GPU_NDP])) / ns[policy];
	}
	return sum / run->nr;
}

static void bar(const char *name, const char *what, double value, const char *goal, bool pass)
{
	printf("bar %s %s value=%.4g goal=%s %s\n", name, what, value, goal, pass ? "pass" : "fail");
	fflush(stdout);
	failed = failed || !pass;
}

static void print_run(const char *what, const struct run *run)
{
	printf("# %s, modelled ms of a layer:", what);
	for (int p = 0; p < NDP_POLICIES; p++)
		printf(" %s %.3f", ndp_policy_name(p), run->mean_ns[p] / 1e6);
	printf("; trimoe %.2fx, split %.2fx over the best baseline\n",
	       speedup(run, NDP_POLICY_TRIMOE), speedup(run, NDP_POLICY_SPLIT));
}

/* ---- the references ---------------------------------------------------------------- */

static FILE *ask(struct layers *l, const struct config *c, const struct run *run, int limit_ms,
		 char *path)
{
	char command[200];
	FILE *f;
	int fd;

	strcpy(path, "/tmp/bench_sched.XXXXXX");
	fd = mkstemp(path);
	f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f)
		die("%s: %s", path, strerror(errno));
	for (uint32_t k = 0; k < l->nr; k++) {
		const struct ndp_layer layer = layers_get(l, k, c->placement, c->charges);

		if (reference_write(f, &layer, run->ns[k * NDP_POLICIES + NDP_POLICY_TRIMOE],
				    limit_ms) < 0)
			die("%s: %s", path, strerror(errno));
	}
	fclose(f);
	snprintf(command, sizeof(command), "build/ndp-reference <%s", path);
	f = popen(command, "r");
	if (!f)
		die("build/ndp-reference: %s", strerror(errno));
	return f;
}

/* Bars S.2 and S.3 of one configuration. */
static void compare(struct layers *l, const struct config *c, const struct run *run, int limit_ms)
{
	const double overheads_ns = 20 * l->host.dimm.overhead_ns;
	double to_found = 0, to_bound = 0, to_fluid = 0, worst = 0, fluid = 0, over_trimoe = 0;
	uint32_t proven = 0, judged = 0;
	char path[64], what[64];
	FILE *f = ask(l, c, run, limit_ms, path);

	for (uint32_t k = 0; k < run->nr; k++) {
		const double *ns = run->ns + k * NDP_POLICIES;
		struct reference_answer a;
		double gap;

		if (reference_read(f, &a) < 0)
			die("build/ndp-reference has no answer for layer %u of %s", k, c->name);
		to_found += (ns[NDP_POLICY_TRIMOE] / a.whole_ns - 1) / run->nr;
		to_bound += (ns[NDP_POLICY_TRIMOE] / (a.proven ? a.whole_ns : a.whole_bound_ns) - 1) /
			    run->nr;
		proven += a.proven;
		fluid += a.fluid_ns / run->nr;
		over_trimoe += ns[NDP_POLICY_TRIMOE] / ns[NDP_POLICY_SPLIT] / run->nr;
		if (a.fluid_ns <= overheads_ns)
			continue;
		gap = ns[NDP_POLICY_SPLIT] / a.fluid_ns - 1;
		to_fluid += gap;
		worst = fmax(worst, gap);
		judged++;
	}
	pclose(f);
	unlink(path);
	printf("# %s: fluid bound %.3f ms modelled; trimoe above the best whole-expert plan found: "
	       "%.2f %%; proven for %u of %u layers; commands trimoe %.0f, split %.0f\n", c->name,
	       fluid / 1e6, to_found * 100, proven, run->nr, run->commands[NDP_POLICY_TRIMOE],
	       run->commands[NDP_POLICY_SPLIT]);
	snprintf(what, sizeof(what), "trimoe-over-ilp-%%-%s-modelled", c->name);
	bar("S.2", what, to_bound * 100, "<=5", to_bound <= 0.05);
	if (judged) {
		snprintf(what, sizeof(what), "split-over-fluid-%%-worst-layer-%s-modelled", c->name);
		bar("S.3", what, worst * 100, "<=2", worst <= 0.02);
		printf("# %s: split above the fluid bound on the mean: %.2f %%\n", c->name,
		       to_fluid / judged * 100);
	}
	if (c->placement == LOCALIZED && c->charges == NDP_CHARGES_PAPER)
		bar("S.3", "trimoe-over-split-A(ii)-modelled", over_trimoe, ">=1.10",
		    over_trimoe >= 1.10);
	else
		printf("# %s: trimoe / split %.2f\n", c->name, over_trimoe);
}

/* ---- what has no goal -------------------------------------------------------------------- */

static void other_runs(uint32_t nr)
{
	static const struct {
		const char *host, *model, *loads, *text;
		uint32_t batch;
	} others[] = {
		{ "trimoe-paper", "deepseek-v2", skew, "DeepSeek-V2, batch 256", 256 },
		{ "trimoe-paper", "deepseek-v2", skew, "DeepSeek-V2, batch 768", 768 },
		{ "trimoe-paper", "qwen3-235b-a22b", skew, "Qwen3-235B, batch 512", 512 },
		{ "trimoe-paper", "glm-4.5-air", skew, "GLM-4.5-Air, batch 512", 512 },
		{ "trimoe-sustained", "deepseek-v2", skew, "DeepSeek-V2, sustained AMX", 512 },
		{ "trimoe-paper", "gpt-oss-20b", "tests/traces/trace_gptoss20b_mixed_b256.csv.gz",
		  "gpt-oss-20b, real trace, mixed, batch 256", 0 },
		{ "trimoe-paper", "gpt-oss-20b", "tests/traces/trace_gptoss20b_topical_b256.csv.gz",
		  "gpt-oss-20b, real trace, topical, batch 256", 0 },
		{ "trimoe-paper", "gpt-oss-20b",
		  "tests/traces/trace_gptoss20b_mixed_b64_first300.csv.gz",
		  "gpt-oss-20b, real trace, mixed, batch 64", 0 },
	};

	for (size_t n = 0; n < sizeof(others) / sizeof(others[0]); n++)
		for (size_t c = 0; c < CONFIGS; c++) {
			struct layers l;
			struct run run;
			char what[100];

			layers_load(&l, others[n].host, others[n].model, others[n].loads,
				    others[n].batch, nr);
			run_policies(&run, &l, &configs[c]);
			snprintf(what, sizeof(what), "%s, %s", others[n].text, configs[c].name);
			print_run(what, &run);
			free(run.ns);
			layers_free(&l);
		}
}

static double mean(const struct run *run, enum ndp_policy policy)
{
	return run->mean_ns[policy];
}

static void ablations(struct layers *l, const struct run *spread, const struct run *localized)
{
	static const struct config by_class = { "A(by class)", BY_CLASS, NDP_CHARGES_PAPER };
	struct run run;

	run_policies(&run, l, &by_class);
	print_run("warm experts spread, the others localized, A", &run);
	printf("# ablation, A(i), modelled: AMX %.2fx against a CPU of vector units, %.2fx against "
	       "no CPU (paper: 1.75x)\n",
	       mean(spread, NDP_POLICY_TRIMOE_NOCPU_AMX) / mean(spread, NDP_POLICY_TRIMOE),
	       mean(spread, NDP_POLICY_GPU_NDP) / mean(spread, NDP_POLICY_TRIMOE));
	printf("# ablation, modelled: refinement %.2fx in A(i), %.2fx in A(ii) (paper: 1.28x)\n",
	       mean(spread, NDP_POLICY_TRIMOE_NOREFINE) / mean(spread, NDP_POLICY_TRIMOE),
	       mean(localized, NDP_POLICY_TRIMOE_NOREFINE) / mean(localized, NDP_POLICY_TRIMOE));
	printf("# ablation, A, modelled: relayout to warm spread and cold localized %.2fx against all "
	       "spread, %.2fx against all localized (paper: 1.16x)\n",
	       mean(spread, NDP_POLICY_TRIMOE) / mean(&run, NDP_POLICY_TRIMOE),
	       mean(localized, NDP_POLICY_TRIMOE) / mean(&run, NDP_POLICY_TRIMOE));
	free(run.ns);
}

int main(int argc, char **argv)
{
	const uint32_t nr = argc > 1 ? parse_number("LAYERS", argv[1], 1, 1000) : 200;
	const int limit_ms = argc > 2 ? parse_number("LIMIT_MS", argv[2], 1, 60000) : 200;
	struct run runs[CONFIGS];
	struct layers l;

	layers_load(&l, "trimoe-paper", "deepseek-v2", skew, 512, nr);
	for (size_t c = 0; c < CONFIGS; c++) {
		char what[100];

		run_policies(&runs[c], &l, &configs[c]);
		snprintf(what, sizeof(what), "DeepSeek-V2, batch 512, %s", configs[c].name);
		print_run(what, &runs[c]);
	}
	bar("S.1", "trimoe-over-best-baseline-A(i)-modelled", speedup(&runs[0], NDP_POLICY_TRIMOE),
	    ">=2.1", speedup(&runs[0], NDP_POLICY_TRIMOE) >= 2.1);
	ablations(&l, &runs[0], &runs[1]);
	other_runs(nr);
	for (size_t c = 0; c < CONFIGS; c++) {
		compare(&l, &configs[c], &runs[c], limit_ms);
		free(runs[c].ns);
	}
	layers_free(&l);
	return failed;
}
