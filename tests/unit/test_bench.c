// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_bench.c - what ndp-bench and ndp-calibrate measure with: medians and bounds that
 * can be computed by hand, rounds that are thrown away, threads that all work, numbers
 * that repeat.
 */
#include "../../tools/ndp-bench/bench.h"

#include <math.h>
#include <ndp/device.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

/* The tools give up in main.c. */
void bench_die(const char *format, ...)
{
	(void)format;
	abort();
}

void bench_usage(const char *format, ...)
{
	(void)format;
	abort();
}

/* ---- statistics ------------------------------------------------------------ */

static void medians(void **state)
{
	static const double odd[] = { 5, 1, 3 }, even[] = { 4, 1, 2, 100 };

	(void)state;
	assert_float_equal(bench_median(odd, 3), 3, 0);
	assert_float_equal(bench_median(even, 4), 3, 0);
	assert_float_equal(odd[0], 5, 0); /* left as it was */
	assert_true(isnan(bench_median(odd, 0)));
	assert_float_equal(bench_geomean((double[]){ 1, 4 }, 2), 2, 1e-12);
}

/* A constant is its own bound; otherwise it lies below the median and in the data. */
static void lower_bounds(void **state)
{
	double same[20], x[101];
	double bound;

	(void)state;
	for (int i = 0; i < 20; i++)
		same[i] = 1.25;
	assert_float_equal(bench_lower95(same, 20), 1.25, 0);
	for (int i = 0; i < 101; i++)
		x[i] = i;
	bound = bench_lower95(x, 101);
	assert_float_equal(bench_lower95(x, 101), bound, 0);
	/*
	 * The median of n uniform numbers on 0..100 has a standard deviation of
	 * 100 / (2 sqrt(n + 2)) = 4.93; 1.64 of these below 50 are 41.9.
	 */
	assert_float_equal(bound, 41.9, 2);
	assert_true(isnan(bench_lower95(x, 0)));
}

static void ratios_are_within_rounds(void **state)
{
	/* Both are slow in the same rounds: the ratio is 2 throughout. */
	static const double a[] = { 2, 20, 6, 2 }, b[] = { 1, 10, 3, 1 };
	struct bench_ratio r = bench_ratio(a, b, 4);

	(void)state;
	assert_float_equal(r.median, 2, 0);
	assert_float_equal(r.lower95, 2, 0);
	assert_float_equal(bench_ratio(a, NULL, 4).median, 4, 0);
}

/* ---- rounds ------------------------------------------------------------------ */

/* What getrusage() says here (linked with --wrap). */
static long preempted;

int __real_getrusage(int who, struct rusage *u);
int __wrap_getrusage(int who, struct rusage *u);
int __wrap_getrusage(int who, struct rusage *u)
{
	int r = __real_getrusage(who, u);

	u->ru_nivcsw = preempted;
	return r;
}

struct script {
	unsigned int runs;
	unsigned int bad_until;	/* runs before this one are preempted */
	unsigned int every;	/* and every such one after */
	unsigned int order[256];
};

static struct script script;

static void scripted(void *arg)
{
	unsigned int me = (unsigned int)(uintptr_t)arg;
	const struct timespec bit = { .tv_nsec = 200000 };

	if (script.runs < 256)
		script.order[script.runs] = me;
	if (script.runs < script.bad_until || (script.every && script.runs % script.every == 0)) {
		preempted++;
		nanosleep(&bit, NULL);
	}
	script.runs++;
}

static struct bench_sampling sample(unsigned int want, double seconds, struct bench_contender *c,
				    unsigned int n)
{
	struct bench_sampling s = { .want = want, .seconds = seconds };

	for (unsigned int i = 0; i < n; i++)
		c[i] = (struct bench_contender){ .name = "x", .run = scripted,
						 .arg = (void *)(uintptr_t)i };
	bench_sample(&s, c, n);
	return s;
}

static void disturbed_rounds_are_thrown_away(void **state)
{
	struct bench_contender c[2];
	struct bench_sampling s;

	(void)state;
	script = (struct script){ .bad_until = 7 }; /* 3 rounds and a half of two runs */
	s = sample(5, 10, c, 2);
	assert_int_equal(s.rounds, 5);
	assert_int_equal(s.disturbed, 4);
	assert_int_equal(s.dirty, 0);
	assert_int_equal(script.runs, 18);
	for (unsigned int r = 0; r < s.rounds; r++)
		for (int i = 0; i < 2; i++)
			assert_true(c[i].ns[r] > 0);
	bench_samples_free(c, 2);
	/* Each begins in turn. */
	assert_int_equal(script.order[0], 0);
	assert_int_equal(script.order[2], 1);
	assert_int_equal(script.order[4], 0);
}

/* Nothing but disturbance: it ends, and says so. */
static void a_busy_machine_ends_too(void **state)
{
	struct bench_contender c[1];
	struct bench_sampling s;

	(void)state;
	script = (struct script){ .bad_until = UINT32_MAX };
	s = sample(6, 0.01, c, 1);
	assert_int_equal(s.rounds, 6);
	assert_int_equal(s.dirty, 6);
	assert_true(s.disturbed >= 6);
	bench_samples_free(c, 1);
}

/* ---- threads and data ----------------------------------------------------------- */

static void mark(void *arg, unsigned int i)
{
	((unsigned int *)arg)[i]++;
}

static void every_thread_works(void **state)
{
	struct bench_team *t = bench_team_start(4);
	unsigned int seen[4] = { 0 };

	(void)state;
	for (int k = 0; k < 200; k++)
		bench_team_run(t, mark, seen);
	bench_team_stop(t);
	for (int i = 0; i < 4; i++)
		assert_int_equal(seen[i], 200);
}

static void experts_repeat_and_are_finite(void **state)
{
	struct bench_experts a, b, c;
	const ndp_bf16 *w;

	(void)state;
	bench_experts_make(&a, 100, 36, 2, 5);
	bench_experts_make(&b, 100, 36, 2, 5);
	bench_experts_make(&c, 100, 36, 1, 6);
	assert_int_equal(a.bytes, 2 * 192 * 128);
	assert_memory_equal(a.blocks[0], b.blocks[0], a.bytes);
	assert_memory_not_equal(a.blocks[0], a.blocks[1], a.bytes);
	assert_memory_equal(a.blocks[1], c.blocks[0], a.bytes);
	w = a.blocks[0];
	for (size_t i = 0; i < a.bytes / sizeof(*w); i++)
		assert_true(fabsf(ndp_bf16_to_f32(w[i])) <= 1);
	bench_experts_free(&a);
	bench_experts_free(&b);
	bench_experts_free(&c);
}

/* Read and copied at some rate that a machine can have. */
static void limits_are_plausible(void **state)
{
	(void)state;
	assert_true(bench_cpus() >= 1);
	assert_true(bench_cache_bytes() >= 1 << 17);
	preempted = 0;
	assert_in_range((unsigned long)(1000 * bench_read_gbps(1)), 10, 10000000);
	assert_in_range((unsigned long)(1000 * bench_copy_gbps(1)), 10, 10000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(medians),
		cmocka_unit_test(lower_bounds),
		cmocka_unit_test(ratios_are_within_rounds),
		cmocka_unit_test(disturbed_rounds_are_thrown_away),
		cmocka_unit_test(a_busy_machine_ends_too),
		cmocka_unit_test(every_thread_works),
		cmocka_unit_test(experts_repeat_and_are_finite),
		cmocka_unit_test(limits_are_plausible),
	};

	return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
