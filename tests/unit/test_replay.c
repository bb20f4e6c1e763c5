// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_replay.c - parts of ndp-replay: drawing by weight, made-up loads, merging
 * recorded steps, host and model files. What the program says about bad input is
 * tests/run/replay.sh.
 */
#include "../../tools/ndp-replay/source.h"

#include <errno.h>
#include <math.h>
#include <ndp/profile.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Every count within five standard deviations of what its weight says. */
static void drawn_counts_follow_weights(void **state)
{
	static const double weights[] = { 0, 1, 2, 0.001, 100, 7 };
	const uint64_t draws = 1000000;
	uint32_t counts[6] = { 0 };
	uint64_t random = random_state(3), total = 0;
	struct draw d;

	(void)state;
	assert_int_equal(draw_init(&d, 6), 0);
	draw_set(&d, weights);
	draw_many(&d, &random, draws, counts);
	for (int i = 0; i < 6; i++) {
		const double p = weights[i] / 110.001;

		total += counts[i];
		assert_true(fabs(counts[i] - p * draws) <= 5 * sqrt(p * (1 - p) * draws) + 1e-9);
	}
	assert_int_equal(total, draws);
	draw_free(&d);
}

static void neighbouring_seeds_differ(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 1000; seed++) {
		assert_int_not_equal(random_state(seed), 0);
		assert_int_not_equal(random_state(seed), random_state(seed + 1));
	}
}

static const struct source_limits deepseek = {
	.experts = 160, .layers = 60, .top_k = 6, .batch = 512,
};

static struct source *made_up(const char *spec)
{
	struct ndp_error err;
	struct source *s;

	assert_int_equal(source_open_synthetic(&s, spec, &deepseek, 59, &err), 0);
	return s;
}

static void every_made_up_step_has_all_selections(void **state)
{
	struct source *s = made_up("steps=5,layers=3,drift=0.3");
	uint32_t counts[3 * 160], steps = 0;
	struct ndp_error err;

	(void)state;
	while (source_next(s, counts, &err) > 0) {
		steps++;
		for (int l = 0; l < 3; l++) {
			uint32_t sum = 0;

			for (int e = 0; e < 160; e++)
				sum += counts[l * 160 + e];
			assert_int_equal(sum, 512 * 6);
		}
	}
	assert_int_equal(steps, 5);
	source_close(s);
}

/* How many of the 8 most loaded experts of the first step are so in the last. */
static uint32_t still_hot(const char *spec)
{
	struct source *s = made_up(spec);
	uint32_t first[160], now[160], kept = 0, steps = 0;
	struct ndp_error err;

	while (source_next(s, now, &err) > 0)
		if (!steps++)
			memcpy(first, now, sizeof(first));
	/* Hot ones have some 154 selections, the others at most about 60. */
	for (int e = 0; e < 160; e++)
		kept += first[e] > 100 && now[e] > 100;
	source_close(s);
	return kept;
}

static void drift_changes_what_is_hot(void **state)
{
	(void)state;
	assert_int_equal(still_hot("steps=50,layers=1"), 8);
	assert_true(still_hot("steps=50,layers=1,drift=0.5") < 4);
}

static void equal_seeds_give_equal_loads(void **state)
{
	struct source *a = made_up("seed=7,steps=3,layers=2,drift=0.1");
	struct source *b = made_up("seed=7,steps=3,layers=2,drift=0.1");
	uint32_t x[2 * 160], y[2 * 160];
	struct ndp_error err;

	(void)state;
	while (source_next(a, x, &err) > 0) {
		assert_int_equal(source_next(b, y, &err), 1);
		assert_memory_equal(x, y, sizeof(x));
	}
	source_close(a);
	source_close(b);
}

/* Layers 3 and 9 only; steps of 1, 2 and 1 tokens; two tokens wanted. */
static void steps_are_merged_until_they_have_the_batch(void **state)
{
	static const char text[] = "step,layer,expert,count\n0,3,1,2\n0,9,0,2\n5,3,1,4\n6,9,2,2\n";
	struct source_limits limits = { .experts = 4, .layers = 10, .top_k = 2, .batch = 2 };
	char path[] = "/tmp/ndp-trace-XXXXXX";
	const int fd = mkstemp(path);
	uint32_t counts[2 * 4];
	struct ndp_error err;
	struct source *s;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	assert_int_equal(source_open_file(&s, path, &limits, 1, &err), 0);
	assert_int_equal(s->nr_layers, 2);
	assert_int_equal(s->layer_numbers[0], 3);
	assert_int_equal(s->layer_numbers[1], 9);
	assert_int_equal(source_next(s, counts, &err), 1);
	assert_int_equal(counts[1], 6);
	assert_int_equal(counts[4], 2);
	assert_int_equal(source_next(s, counts, &err), 0);
	assert_int_equal(s->left_over, 1);
	source_close(s);

	limits.batch = 0;
	assert_int_equal(source_open_file(&s, path, &limits, 1, &err), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(source_next(s, counts, &err), 1);
	assert_int_equal(source_next(s, counts, &err), 0);
	source_close(s);
	unlink(path);
}

/* The figures that the reproduction rests on. */
static void the_papers_host_is_what_it_says(void **state)
{
	struct ndp_host_profile p;
	struct ndp_model_profile m;
	struct ndp_error err;

	(void)state;
	assert_int_equal(ndp_host_profile_load(&p, "share/hosts/trimoe-paper.json", &err), 0);
	assert_string_equal(p.name, "trimoe-paper");
	assert_int_equal(p.host.nr_dimms, 16);
	assert_int_equal(p.host.nr_channels, 8);
	assert_true(p.host.nr_channels * p.host.channel_gbps == 307.2);
	assert_true(p.host.cpu.gflops == 90100);
	assert_true(p.host.dimm.gflops == 256 && p.host.dimm.gbps == 153.6);
	assert_true(p.host.pcie_gbps == 64);
	assert_int_equal(ndp_model_profile_load(&m, "share/models/deepseek-v2.json", &err), 0);
	assert_int_equal(m.shape.expert_bytes, 3 * 5120 * 1536 * 2);
	assert_int_equal(m.layers - m.dense_layers, 59);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drawn_counts_follow_weights),
		cmocka_unit_test(neighbouring_seeds_differ),
		cmocka_unit_test(every_made_up_step_has_all_selections),
		cmocka_unit_test(drift_changes_what_is_hot),
		cmocka_unit_test(equal_seeds_give_equal_loads),
		cmocka_unit_test(steps_are_merged_until_they_have_the_batch),
		cmocka_unit_test(the_papers_host_is_what_it_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
