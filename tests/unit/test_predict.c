// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_predict.c - what comes is predicted from what came: after a shift in two steps, however long
 * the history; noise is averaged away; every prediction is a set of shares. Classes break ties at
 * random. How good predictions of real traces are is measured by tests/bench/bench_predict.c.
 */
#include <math.h>
#include <ndp/predict.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ndp_predictor *predictor(uint32_t layers, uint32_t experts)
{
	void *mem = malloc(ndp_predict_bytes(layers, experts));

	assert_non_null(mem);
	return ndp_predict_init(mem, layers, experts);
}

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static void shares_are_shares(const float *share, uint32_t experts)
{
	float sum = 0;

	for (uint32_t e = 0; e < experts; e++) {
		assert_true(share[e] >= 0);
		sum += share[e];
	}
	assert_true(fabsf(sum - 1) < 1e-4f);
}

static void limits_are_kept(void **state)
{
	(void)state;
	assert_int_equal(ndp_predict_bytes(0, 8), 0);
	assert_int_equal(ndp_predict_bytes(1, 0), 0);
	assert_int_equal(ndp_predict_bytes(NDP_PREDICT_MAX_LAYERS + 1, 8), 0);
	assert_int_equal(ndp_predict_bytes(1, NDP_PREDICT_MAX_EXPERTS + 1), 0);
	assert_true(ndp_predict_bytes(NDP_PREDICT_MAX_LAYERS, NDP_PREDICT_MAX_EXPERTS) > 0);
}

/* Any number of experts, any tokens, and nothing beyond the memory that was asked for. */
static void predictions_are_shares(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 7, 8, 9, 60, 64, 65, 160, 256, 896, 4096 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const uint32_t experts = sizes[i];
		struct ndp_predictor *p = predictor(3, experts);
		uint32_t *tokens = calloc(experts, sizeof(*tokens));
		uint64_t seed = experts;

		assert_non_null(tokens);
		for (uint32_t l = 0; l < 3; l++)
			for (uint32_t e = 0; e < experts; e++)
				assert_float_equal(ndp_predict_shares(p, l)[e], 1.0f / experts,
						   1e-9);
		for (uint32_t step = 0; step < 100; step++)
			for (uint32_t l = 0; l < 3; l++) {
				for (uint32_t e = 0; e < experts; e++)
					tokens[e] = next(&seed) % 7 == 0 ? next(&seed) % 100 : 0;
				tokens[next(&seed) % experts] += 1000;
				ndp_predict_update(p, l, tokens);
				shares_are_shares(ndp_predict_shares(p, l), experts);
			}
		free(tokens);
		free(p);
	}
}

static void equal_calls_give_equal_predictions(void **state)
{
	struct ndp_predictor *a = predictor(2, 40), *b = predictor(2, 40);
	uint32_t tokens[40];
	uint64_t seed = 3;

	(void)state;
	for (uint32_t step = 0; step < 200; step++) {
		for (uint32_t e = 0; e < 40; e++)
			tokens[e] = next(&seed) % (1 + e);
		ndp_predict_update(a, step % 2, tokens);
		ndp_predict_update(b, step % 2, tokens);
	}
	assert_memory_equal(a, b, ndp_predict_bytes(2, 40));
	free(a);
	free(b);
}

static void a_step_without_tokens_teaches_nothing(void **state)
{
	static const uint32_t some[5] = { 9, 1, 0, 4, 4 }, none[5];
	struct ndp_predictor *p = predictor(1, 5);
	const size_t bytes = ndp_predict_bytes(1, 5);
	void *before = malloc(bytes);

	(void)state;
	assert_non_null(before);
	for (int i = 0; i < 9; i++)
		ndp_predict_update(p, 0, some);
	memcpy(before, p, bytes);
	ndp_predict_update(p, 0, none);
	assert_memory_equal(before, p, bytes);
	free(before);
	free(p);
}

static void a_profile_is_predicted_until_tokens_come(void **state)
{
	static const uint64_t counts[4] = { 10, 0, 60, 30 }, none[4];
	struct ndp_predictor *p = predictor(2, 4);

	(void)state;
	ndp_predict_profile(p, 1, counts, 50);
	ndp_predict_profile(p, 1, none, 50);
	for (uint32_t e = 0; e < 4; e++)
		assert_float_equal(ndp_predict_shares(p, 1)[e], counts[e] / 100.0, 1e-6);
	assert_float_equal(ndp_predict_shares(p, 0)[1], 0.25, 1e-6);
	free(p);
}

/* Mean squared error of shares over the last @from..@to steps of a trace made by @law. */
struct errors {
	double ours, slow, fast;
};

static struct errors errors_of(void (*law)(uint32_t step, double *weights), uint32_t steps)
{
	enum { E = 64, DRAWS = 400 };
	struct ndp_predictor *p = predictor(1, E);
	float slow[E] = { 0 }, fast[E] = { 0 };
	struct errors sum = { 0, 0, 0 };
	double weights[E];
	uint64_t seed = 11;

	for (uint32_t step = 0; step < steps; step++) {
		uint32_t tokens[E] = { 0 };
		double total = 0;

		law(step, weights);
		for (int e = 0; e < E; e++)
			total += weights[e];
		for (int i = 0; i < DRAWS; i++) {
			double at = (double)next(&seed) / 2147483648.0 * total;
			int e = 0;

			while (e < E - 1 && (at -= weights[e]) > 0)
				e++;
			tokens[e]++;
		}
		for (int e = 0; e < E && step >= steps / 2; e++) {
			sum.ours += pow(ndp_predict_shares(p, 0)[e] * DRAWS - tokens[e], 2);
			sum.slow += pow(slow[e] - tokens[e], 2);
			sum.fast += pow(fast[e] - tokens[e], 2);
		}
		ndp_predict_update(p, 0, tokens);
		ndp_ema_update(slow, E, 1.0f / (float)(step + 1), tokens);
		ndp_ema_update(fast, E, 0.3f, tokens);
	}
	free(p);
	return sum;
}

static void still(uint32_t step, double *weights)
{
	(void)step;
	for (int e = 0; e < 64; e++)
		weights[e] = 1 + e % 9;
}

static void turning(uint32_t step, double *weights)
{
	for (int e = 0; e < 64; e++)
		weights[e] = 1 + 20 * (((e + step / 40) * 7 % 64) < 8);
}

static void moving(uint32_t step, double *weights)
{
	for (int e = 0; e < 64; e++)
		weights[e] = 1.01 + sin(e + step * 0.05);
}

static void noise_is_averaged_away(void **state)
{
	const struct errors e = errors_of(still, 400);

	(void)state;
	assert_true(e.ours < 0.9 * e.fast);
	assert_true(e.ours < 1.02 * e.slow);
}

static void a_change_is_followed(void **state)
{
	struct errors e = errors_of(turning, 400);

	(void)state;
	assert_true(e.ours < e.fast);
	assert_true(e.ours < 0.5 * e.slow);
	e = errors_of(moving, 400);
	assert_true(e.ours < e.fast);
	assert_true(e.ours < 0.5 * e.slow);
}

/* Case C8, first part: JustVugg/colibri#780, placement frozen after a long run. */
static void a_shift_is_followed_whatever_the_history(void **state)
{
	static const uint32_t before[2] = { 100, 0 }, after[2] = { 0, 100 };

	(void)state;
	for (uint32_t history = 50; history <= 50000; history *= 10) {
		struct ndp_predictor *p = predictor(1, 2);
		float ema[2] = { 0 };

		for (uint32_t i = 0; i < history; i++) {
			ndp_ema_update(ema, 2, 0.5f, before);
			ndp_predict_update(p, 0, before);
		}
		ndp_ema_update(ema, 2, 0.5f, after);
		ndp_predict_update(p, 0, after);
		assert_float_equal(ema[0], 50, 1e-3);
		assert_float_equal(ema[1], 50, 1e-3);
		ndp_ema_update(ema, 2, 0.5f, after);
		ndp_predict_update(p, 0, after);
		assert_float_equal(ema[0], 25, 1e-3);
		assert_float_equal(ema[1], 75, 1e-3);
		assert_true(ndp_predict_shares(p, 0)[1] > ndp_predict_shares(p, 0)[0]);
		free(p);
	}
}

static void classes_are_by_rank(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 8, 20, 32, 64, 160, 256, 4096 };
	static float loads[4096];
	static uint8_t classes[4096];
	static uint64_t work[4096];
	uint64_t seed = 1;

	(void)state;
	assert_int_equal(ndp_load_classes_bytes(4096), sizeof(work));
	assert_int_equal(ndp_class_hot(160), 8);
	assert_int_equal(ndp_class_warm(160), 40);
	assert_int_equal(ndp_class_hot(32), 2);
	assert_int_equal(ndp_class_warm(32), 8);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const uint32_t n = sizes[i], hot = ndp_class_hot(n), warm = ndp_class_warm(n);

		assert_true(hot >= 1 && hot + warm <= n);
		for (uint32_t e = 0; e < n; e++)
			loads[e] = (float)(e * 37 % n) - 3;
		if (n % 37 == 0)
			continue;
		ndp_load_classes(loads, n, &seed, work, classes);
		for (uint32_t e = 0; e < n; e++) {
			const uint32_t rank = n - 1 - e * 37 % n;

			assert_int_equal(classes[e], rank < hot ? NDP_CLASS_HOT :
					 rank < hot + warm ? NDP_CLASS_WARM : NDP_CLASS_COLD);
		}
	}
}

static void ties_are_broken_at_random(void **state)
{
	float loads[20] = { 0 };
	uint32_t hot[20] = { 0 };
	uint64_t seed = 5, work[20];
	uint8_t classes[20];

	(void)state;
	loads[3] = -0.0f;
	for (int i = 0; i < 20000; i++) {
		ndp_load_classes(loads, 20, &seed, work, classes);
		for (int e = 0; e < 20; e++)
			hot[e] += classes[e] == NDP_CLASS_HOT;
	}
	for (int e = 0; e < 20; e++)
		assert_in_range(hot[e], 850, 1150);
}

static void scores_are_what_they_say(void **state)
{
	/* Twenty experts: one hot, five warm. */
	uint8_t predicted[20] = { [0] = NDP_CLASS_HOT }, actual[20] = { [1] = NDP_CLASS_HOT };
	uint32_t tokens[20] = { 30, 50, 20 };
	struct ndp_score score = { 0 }, chance;

	(void)state;
	for (int e = 2; e < 7; e++)
		predicted[e] = actual[e] = NDP_CLASS_WARM;
	ndp_score_add(&score, predicted, actual, tokens, 20);
	assert_float_equal(score.accuracy, 18.0 / 20, 1e-12);
	assert_float_equal(score.hot_recall, 0, 1e-12);
	assert_float_equal(score.coverage, 0.3, 1e-12);
	ndp_score_add(&score, actual, actual, tokens, 20);
	assert_float_equal(score.accuracy, 18.0 / 20 + 1, 1e-12);
	assert_float_equal(score.hot_recall, 1, 1e-12);
	assert_float_equal(score.coverage, 0.8, 1e-12);
	memset(tokens, 0, sizeof(tokens));
	ndp_score_add(&score, actual, actual, tokens, 20);
	assert_int_equal(score.steps, 2);
	ndp_score_chance(&chance, 20);
	assert_float_equal(chance.accuracy, 0.05 * 0.05 + 0.25 * 0.25 + 0.7 * 0.7, 1e-12);
	assert_float_equal(chance.hot_recall, 0.05, 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(predictions_are_shares),
		cmocka_unit_test(equal_calls_give_equal_predictions),
		cmocka_unit_test(a_step_without_tokens_teaches_nothing),
		cmocka_unit_test(a_profile_is_predicted_until_tokens_come),
		cmocka_unit_test(noise_is_averaged_away),
		cmocka_unit_test(a_change_is_followed),
		cmocka_unit_test(a_shift_is_followed_whatever_the_history),
		cmocka_unit_test(classes_are_by_rank),
		cmocka_unit_test(ties_are_broken_at_random),
		cmocka_unit_test(scores_are_what_they_say),
	};

	return cmocka_run_group_tests_name("predict", tests, NULL, NULL);
}
