// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_vec.c - norms, rotary positions, softmax and attention of ndp-run against
 * the formulas in double precision, written out a second time here.
 */
#include "../../tools/ndp-run/attention.h"
#include "../../tools/ndp-run/vec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Values between -2 and 2 that look random and are the same everywhere. */
static void fill(float *x, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		x[i] = (float)(seed >> 8) / (1 << 22) - 2.0f;
	}
}

static void dot_of_every_length(void **state)
{
	float a[67];
	float b[67];

	(void)state;
	fill(a, 67, 1);
	fill(b, 67, 2);
	for (size_t n = 0; n <= 67; n++) {
		double sum = 0;

		for (size_t i = 0; i < n; i++)
			sum += (double)a[i] * b[i];
		assert_float_equal(dot(a, b, n), (float)sum, 1e-4f);
	}
}

static void matmul_is_token_major(void **state)
{
	static const float w[2][3] = { { 1, 2, 3 }, { -1, 0, 1 } };
	static const float x[2][3] = { { 1, 1, 1 }, { 0, 1, 2 } };
	float y[2][2];

	(void)state;
	matmul(&y[0][0], &w[0][0], &x[0][0], 2, 2, 3);
	assert_true(y[0][0] == 6 && y[0][1] == 0 && y[1][0] == 8 && y[1][1] == 2);
}

static void rms_norm_in_place(void **state)
{
	float x[100];
	float w[100];
	float y[100];
	double sum = 0;

	(void)state;
	fill(x, 100, 3);
	fill(w, 100, 4);
	for (int i = 0; i < 100; i++)
		sum += (double)x[i] * x[i];
	memcpy(y, x, sizeof(y));
	rms_norm(y, y, w, 100, 1e-5f);
	for (int i = 0; i < 100; i++)
		assert_float_equal(y[i], (float)(x[i] / sqrt(sum / 100 + 1e-5) * w[i]), 1e-5f);
	/* eps keeps a zero vector from becoming NaN. */
	memset(x, 0, sizeof(x));
	rms_norm(y, x, w, 100, 1e-5f);
	for (int i = 0; i < 100; i++)
		assert_true(y[i] == 0);
}

/* Pairs are (i, i + half), not neighbours; angles fall with i. */
static void rope_rotates_halves(void **state)
{
	enum { DIM = 20, HALF = DIM / 2, POS = 300 };
	static float cosines[POS + 1][HALF];
	static float sines[POS + 1][HALF];
	float x[2][DIM];
	float y[2][DIM];

	(void)state;
	rope_table(&cosines[0][0], &sines[0][0], POS + 1, DIM, 10000);
	fill(&x[0][0], 2 * DIM, 5);
	memcpy(y, x, sizeof(y));
	rope_apply(&y[0][0], 2, DIM, cosines[0], sines[0]);
	assert_memory_equal(y, x, sizeof(y));
	rope_apply(&y[0][0], 2, DIM, cosines[POS], sines[POS]);
	for (int h = 0; h < 2; h++) {
		for (int i = 0; i < HALF; i++) {
			double angle = POS * pow(10000, -2.0 * i / DIM);
			double a = x[h][i];
			double b = x[h][i + HALF];

			/* FP32 angles up to 300 are known to 2^-16 or so. */
			assert_float_equal(y[h][i], (float)(a * cos(angle) - b * sin(angle)),
					   1e-4f);
			assert_float_equal(y[h][i + HALF],
					   (float)(b * cos(angle) + a * sin(angle)), 1e-4f);
		}
	}
}

/* What makes rotary positions useful: scores depend on the distance only. */
static void rope_scores_depend_on_distance(void **state)
{
	enum { DIM = 32, POS = 120 };
	static float cosines[POS][DIM / 2];
	static float sines[POS][DIM / 2];
	float q[DIM];
	float k[DIM];
	float scores[2];

	(void)state;
	rope_table(&cosines[0][0], &sines[0][0], POS, DIM, 10000);
	for (int i = 0; i < 2; i++) {
		fill(q, DIM, 6);
		fill(k, DIM, 7);
		rope_apply(q, 1, DIM, cosines[17 + 100 * i], sines[17 + 100 * i]);
		rope_apply(k, 1, DIM, cosines[5 + 100 * i], sines[5 + 100 * i]);
		scores[i] = dot(q, k, DIM);
	}
	assert_float_equal(scores[0], scores[1], 1e-3f);
}

static void softmax_is_shifted(void **state)
{
	float x[] = { 1000, 1000, 1000 + logf(2) };
	float one = -5;

	(void)state;
	softmax(x, 3);
	assert_float_equal(x[0], 0.25f, 1e-4f);
	assert_float_equal(x[2], 0.5f, 1e-4f);
	softmax(&one, 1);
	assert_true(one == 1);
}

static void attention_with_shared_keys(void **state)
{
	enum { HEADS = 4, KV = 2, DIM = 6, POS = 9 };
	const struct attention_shape shape = { HEADS, KV, DIM };
	float q[HEADS][DIM];
	float k[POS + 1][KV][DIM];
	float v[POS + 1][KV][DIM];
	float out[HEADS][DIM];
	float scores[POS + 1];
	const struct kv_cache kv = { &k[0][0][0], &v[0][0][0] };

	(void)state;
	fill(&q[0][0], HEADS * DIM, 8);
	fill(&k[0][0][0], (POS + 1) * KV * DIM, 9);
	fill(&v[0][0][0], (POS + 1) * KV * DIM, 10);
	for (size_t pos = 0; pos < POS; pos++) {
		/* What comes later must not be seen. */
		memset(k[pos + 1], 0xff, sizeof(k[0]));
		memset(v[pos + 1], 0xff, sizeof(v[0]));
		attend(&out[0][0], &q[0][0], &kv, pos, &shape, scores);
		for (int h = 0; h < HEADS; h++) {
			double p[POS];
			double sum = 0;

			for (size_t t = 0; t <= pos; t++) {
				double s = 0;

				for (int i = 0; i < DIM; i++)
					s += (double)q[h][i] * k[t][h / 2][i];
				p[t] = exp(s / sqrt(DIM));
				sum += p[t];
			}
			for (int i = 0; i < DIM; i++) {
				double o = 0;

				for (size_t t = 0; t <= pos; t++)
					o += p[t] / sum * v[t][h / 2][i];
				assert_float_equal(out[h][i], (float)o, 1e-5f);
			}
		}
		fill(&k[pos + 1][0][0], KV * DIM, 100 + pos);
		fill(&v[pos + 1][0][0], KV * DIM, 200 + pos);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dot_of_every_length),
		cmocka_unit_test(matmul_is_token_major),
		cmocka_unit_test(rms_norm_in_place),
		cmocka_unit_test(rope_rotates_halves),
		cmocka_unit_test(rope_scores_depend_on_distance),
		cmocka_unit_test(softmax_is_shifted),
		cmocka_unit_test(attention_with_shared_keys),
	};

	return cmocka_run_group_tests_name("vec", tests, NULL, NULL);
}
