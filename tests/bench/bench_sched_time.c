// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_sched_time.c - how long deciding takes on one core of this machine (bar
 * S.4): wall time, unlike everything else about the scheduler.
 *
 * CPU time of the deciding thread. Other programs on the machine slow a decision
 * down, for seconds at a time, so that all layers are decided in turn, many times
 * over, and the fastest decision of each counts; p50 and p99 are over 200 layers. The
 * same layers as bench_sched's, in all four configurations; the slowest one is judged.
 * Then a sweep: time over experts, with the DIMMs of the largest case, against n log n.
 */
#include "bench.h"
#include "sched_layers.h"

#include <math.h>
#include <stdbool.h>

enum {
	LAYERS = 200,
	FEWER_LAYERS = 40,	/* of the large cases */
	TIMES = 15,
	CONFIGS = 4,
};

static const char *const names[CONFIGS] = { "A(i)", "A(ii)", "B(i)", "B(ii)" };
static bool failed;

static double thread_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

struct times {
	double p50_us, p99_us;
};

static struct times decide(struct layers *l, enum ndp_policy policy, int config)
{
	const uint32_t experts = l->shape.experts, dimms = l->host.nr_dimms;
	const uint32_t charges = config < 2 ? NDP_CHARGES_PAPER : NDP_CHARGES_ALL;
	void *memory = malloc(ndp_plan_bytes(experts, dimms));
	void *work = malloc(ndp_schedule_bytes(experts, dimms));
	double *us = malloc(l->nr * sizeof(*us));
	struct ndp_plan plan;
	struct times times;

	if (!memory || !work || !us)
		die("out of memory");
	ndp_plan_init(&plan, memory, experts, dimms);
	for (uint32_t k = 0; k < l->nr; k++)
		us[k] = HUGE_VAL;
	for (int n = 0; n < TIMES; n++)
		for (uint32_t k = 0; k < l->nr; k++) {
			const struct ndp_layer layer = layers_get(l, k, config % 2 ? LOCALIZED :
								  SPREAD, charges);
			double start;

			/* Not the first look at the layer: a caller has just filled it in. */
			ndp_fluid_bound(&layer, work);
			start = thread_us();
			if (ndp_schedule(&layer, policy, work, &plan) < 0)
				die("layer %u has no plan", k);
			us[k] = fmin(us[k], thread_us() - start);
		}
	qsort(us, l->nr, sizeof(*us), by_size);
	times = (struct times) { us[l->nr / 2], us[(l->nr * 99 - 1) / 100] };
	free(memory);
	free(work);
	free(us);
	return times;
}

/* The slowest configuration; all are printed. */
static struct times slowest(struct layers *l, enum ndp_policy policy)
{
	struct times worst = { 0 };

	printf("# %u experts, %u DIMMs, %s, wall us of one decision p50 / p99:", l->shape.experts,
	       l->host.nr_dimms, ndp_policy_name(policy));
	for (int c = 0; c < CONFIGS; c++) {
		const struct times t = decide(l, policy, c);

		printf(" %s %.0f / %.0f", names[c], t.p50_us, t.p99_us);
		worst.p50_us = fmax(worst.p50_us, t.p50_us);
		worst.p99_us = fmax(worst.p99_us, t.p99_us);
	}
	printf("\n");
	return worst;
}

static void bar(const char *what, double value, double goal)
{
	const bool pass = value < goal;

	printf("bar S.4 %s value=%.3g goal=<%g %s\n", what, value, goal, pass ? "pass" : "fail");
	fflush(stdout);
	failed = failed || !pass;
}

/* How much more the time grows than n log n from 224 to 1792 experts. */
static double growth(struct layers *l, enum ndp_policy policy, int config)
{
	static const uint32_t experts[] = { 224, 448, 896, 1792 };
	double us[4];

	printf("# %s, %s, 32 DIMMs, wall us p50 over experts:", ndp_policy_name(policy),
	       names[config]);
	for (int n = 0; n < 4; n++) {
		/* As many tokens an expert everywhere: the problem grows, not its parts. */
		layers_draw(l, experts[n], 32, experts[n], FEWER_LAYERS);
		us[n] = decide(l, policy, config).p50_us;
		printf(" %u: %.0f", experts[n], us[n]);
	}
	printf("\n");
	return us[3] / us[0] / (1792 * log(1792) / (224 * log(224)));
}

int main(void)
{
	struct layers l;
	struct times t;

	layers_load(&l, "trimoe-paper", "deepseek-v2", "top5=0.40,next25=0.50,seed=1,steps=200", 512,
		    LAYERS);
	t = slowest(&l, NDP_POLICY_TRIMOE);
	bar("trimoe-160-p50-us-wall", t.p50_us, 50);
	bar("trimoe-160-p99-us-wall", t.p99_us, 150);
	t = slowest(&l, NDP_POLICY_SPLIT);
	bar("split-160-p50-us-wall", t.p50_us, 60);
	layers_free(&l);

	layers_load(&l, "trimoe-paper", "kimi-k3", "top5=0.40,next25=0.50,seed=1,steps=200", 512,
		    FEWER_LAYERS);
	layers_draw(&l, 896, 32, 512, FEWER_LAYERS);
	t = slowest(&l, NDP_POLICY_TRIMOE);
	bar("trimoe-896-p50-us-wall", t.p50_us, 500);
	t = slowest(&l, NDP_POLICY_SPLIT);
	bar("split-896-p50-us-wall", t.p50_us, 500);
	for (int config = 0; config < 2; config++) {
		char what[64];

		snprintf(what, sizeof(what), "trimoe-growth-over-nlogn-%s", names[config]);
		bar(what, growth(&l, NDP_POLICY_TRIMOE, config), 1.25);
		snprintf(what, sizeof(what), "split-growth-over-nlogn-%s", names[config]);
		bar(what, growth(&l, NDP_POLICY_SPLIT, config), 1.25);
	}
	layers_free(&l);
	return failed;
}
