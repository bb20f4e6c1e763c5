// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_router.c - which experts a token goes to, and with which weights: the cases C1
 * (sgl-project/sglang#35160, databricks/megablocks#87) and C2 (vllm-project/vllm#13474)
 * of public reports, every rule against a slow FP64 router on random input, and what
 * numbers that are none do.
 */
#include "../../libndp/moe/domain.h"
#include "device_ref.h"

#include <errno.h>
#include <float.h>

static void *work_for(const struct ndp_router *r)
{
	/* No more than is asked for, and not aligned to more than a float, for AddressSanitizer. */
	char *p = malloc(ndp_route_bytes(r) + 4);

	assert_non_null(p);
	return p + 4;
}

static void route(const struct ndp_router *r, const float *logits, const float *bias,
		  uint32_t tokens, uint32_t *ids, float *weights)
{
	void *work = work_for(r);
	struct ndp_error err;

	if (ndp_router_check(r, &err))
		fail_msg("%s", err.message);
	memset(work, 0xff, ndp_route_bytes(r));
	ndp_route(r, logits, bias, tokens, ids, weights, work);
	free((char *)work - 4);
}

/* ---- C1 ------------------------------------------------------------------------------- */

static void renormalization_and_scale(void **state)
{
	static const float logits[] = { 2, 1, 0, -1 };
	static const struct { bool renormalize; float scale, want[2]; } cases[] = {
		{ false, 1, { 0.643914f, 0.236883f } },
		{ true, 1, { 0.731059f, 0.268941f } },
		{ false, 2.5f, { 1.609786f, 0.592207f } },
		{ true, 2.5f, { 1.827646f, 0.672354f } },
	};

	UNUSED_STATE;
	for (int i = 0; i < 4; i++) {
		const struct ndp_router r = { .experts = 4, .top_k = 2, .scale = cases[i].scale,
					      .renormalize = cases[i].renormalize };
		uint32_t ids[2];
		float w[2];

		route(&r, logits, NULL, 1, ids, w);
		assert_int_equal(ids[0], 0);
		assert_int_equal(ids[1], 1);
		assert_float_equal(w[0], cases[i].want[0], 1e-6f);
		assert_float_equal(w[1], cases[i].want[1], 1e-6f);
	}
}

/* Each token's own weight becomes 1, whatever the others have. */
static void one_expert_has_weight_one(void **state)
{
	static const float logits[] = { 5, 1, 0, 0, 0, 0, 0.1f, 0, -9, -9, -9, -8 };
	static const uint32_t want[] = { 0, 2, 3 };

	UNUSED_STATE;
	for (int scoring = 0; scoring < 2; scoring++) {
		const struct ndp_router r = { .experts = 4, .top_k = 1, .scale = 1,
					      .scoring = scoring, .renormalize = true };
		uint32_t ids[3];
		float w[3];

		route(&r, logits, NULL, 3, ids, w);
		for (int t = 0; t < 3; t++) {
			assert_int_equal(ids[t], want[t]);
			assert_true(w[t] == 1.0f);
		}
	}
}

/* ---- C2 ------------------------------------------------------------------------------- */

/* Kept groups win although their biased scores are negative: masking with 0 would pick 0 and 1. */
static void groups_with_negative_scores(void **state)
{
	static const double score[] = { .9, .1, .8, .7, .2, .3, .6, .5 };
	static const float bias[] = { -2, -2, -1, -1, -3, -3, -1.2f, -1.2f };
	const struct ndp_router r = {
		.experts = 8, .top_k = 2, .scoring = NDP_SCORE_SIGMOID, .groups = 4,
		.keep_groups = 2, .group_score = NDP_GROUP_TOP2_SUM, .renormalize = true,
		.scale = 1,
	};
	float logits[8], w[2];
	uint32_t ids[2];

	UNUSED_STATE;
	for (int e = 0; e < 8; e++)
		logits[e] = (float)log(score[e] / (1 - score[e]));
	route(&r, logits, bias, 1, ids, w);
	assert_int_equal(ids[0], 2);
	assert_int_equal(ids[1], 3);
	assert_float_equal(w[0], 0.533333f, 1e-6f);
	assert_float_equal(w[1], 0.466667f, 1e-6f);
}

/* ---- against FP64 ------------------------------------------------------------------------ */

static double wanted_score(const struct ndp_router *r, const float *logits, uint32_t e)
{
	double sum = 0;

	if (r->scoring == NDP_SCORE_SIGMOID)
		return 1 / (1 + exp(-(double)logits[e]));
	for (uint32_t i = 0; i < r->experts; i++)
		sum += exp((double)logits[i] - logits[e]);
	return 1 / sum;
}

/* Straight from the definitions: sort groups, mask, sort experts. */
static void slow_route(const struct ndp_router *r, const float *logits, const float *bias,
		       uint32_t *ids, double *w)
{
	const uint32_t n = r->experts, groups = r->groups ? r->groups : 1, size = n / groups;
	double *score = calloc(n, sizeof(*score)), *choice = calloc(n, sizeof(*choice)), sum = 0;
	bool *kept = calloc(groups, sizeof(*kept));

	assert_true(score && choice && kept);
	for (uint32_t e = 0; e < n; e++) {
		score[e] = wanted_score(r, logits, e);
		choice[e] = score[e] + (bias ? bias[e] : 0);
	}
	for (uint32_t i = 0; groups > 1 && i < r->keep_groups; i++) {
		double most = -INFINITY;
		uint32_t at = 0;

		for (uint32_t g = 0; g < groups; g++) {
			double a = -INFINITY, b = -INFINITY, s;

			for (uint32_t e = g * size; e < (g + 1) * size; e++) {
				b = fmax(b, fmin(a, choice[e]));
				a = fmax(a, choice[e]);
			}
			s = r->group_score == NDP_GROUP_MAX || size == 1 ? a : a + b;
			if (!kept[g] && s > most) {
				most = s;
				at = g;
			}
		}
		kept[at] = true;
	}
	for (uint32_t e = 0; groups > 1 && e < n; e++)
		if (!kept[e / size])
			choice[e] = -INFINITY;
	for (uint32_t j = 0; j < r->top_k; j++) {
		uint32_t at = 0;

		for (uint32_t e = 0; e < n; e++)
			if (choice[e] > choice[at])
				at = e;
		ids[j] = at;
		choice[at] = -INFINITY;
		w[j] = score[at];
		sum += w[j];
	}
	for (uint32_t j = 0; j < r->top_k; j++)
		w[j] = (r->renormalize ? w[j] / sum : w[j]) * r->scale;
	free(kept);
	free(choice);
	free(score);
}

/* Logits are multiples of 1/16, each once, so that FP32 and FP64 order them alike. */
static void distinct_logits(float *logits, uint32_t n, uint64_t *seed)
{
	for (uint32_t e = 0; e < n; e++)
		logits[e] = ((float)e - (float)n / 2) / (n > 256 ? 256 : 16);
	for (uint32_t e = n; e > 1; e--) {
		const uint32_t o = ref_next(seed) % e;
		const float v = logits[e - 1];

		logits[e - 1] = logits[o];
		logits[o] = v;
	}
}

static void every_rule(void **state)
{
	static const uint32_t sizes[][3] = {
		{ 1, 1, 1 }, { 8, 2, 1 }, { 64, 6, 1 }, { 60, 4, 1 }, { 128, 8, 8 }, { 160, 6, 8 },
		{ 256, 8, 8 }, { 33, 33, 1 }, { 96, 49, 3 }, { 512, 300, 4 }, { 7, 3, 7 },
	};
	uint64_t seed = 7;

	UNUSED_STATE;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
		for (int v = 0; v < 32; v++) {
			const uint32_t n = sizes[s][0], k = sizes[s][1], groups = sizes[s][2];
			const struct ndp_router r = {
				.experts = n, .top_k = k, .scoring = v & 1, .groups = groups,
				.keep_groups = groups > 1 && k <= n / groups * (groups / 2) ?
					groups / 2 : groups,
				.group_score = v >> 1 & 1, .renormalize = v >> 2 & 1,
				.scale = v & 8 ? 2.5f : 1,
			};
			float *logits = calloc(3 * n, sizeof(*logits)), *bias = calloc(n, 4);
			float *w = calloc(3 * k, sizeof(*w));
			uint32_t *ids = calloc(3 * k, sizeof(*ids));
			uint32_t *want = calloc(k, sizeof(*want));
			double *want_w = calloc(k, sizeof(*want_w));

			/* A bias for groups' sums that no rounding can turn into equals. */
			for (uint32_t e = 0; e < n; e++)
				bias[e] = (float)(ref_next(&seed) % 4096) / 1024 - 3;
			for (int t = 0; t < 3; t++)
				distinct_logits(logits + t * n, n, &seed);
			route(&r, logits, v & 16 ? bias : NULL, 3, ids, w);
			for (int t = 0; t < 3; t++) {
				slow_route(&r, logits + t * n, v & 16 ? bias : NULL, want, want_w);
				for (uint32_t j = 0; j < k; j++) {
					assert_int_equal(ids[t * k + j], want[j]);
					assert_true(fabs(w[t * k + j] - want_w[j]) <=
						    want_w[j] * 2e-6 + 1e-38);
				}
			}
			free(logits), free(bias), free(w), free(ids), free(want), free(want_w);
		}
}

/* ---- odd numbers --------------------------------------------------------------------------- */

static void lower_ids_come_first_among_equals(void **state)
{
	static const float logits[] = { 1, 3, 3, 1, 3, 1, -0.0f, 0 };
	static const uint32_t want[] = { 1, 2, 4, 0, 3, 5, 6, 7 };
	const struct ndp_router r = { .experts = 8, .top_k = 8, .scale = 1 };
	uint32_t ids[8];
	float w[8];

	UNUSED_STATE;
	route(&r, logits, NULL, 1, ids, w);
	assert_memory_equal(ids, want, sizeof(want));
	assert_true(w[0] == w[2] && w[3] == w[5]);
}

/* Far apart or far down: no overflow, nothing lost of what was selected. */
static void large_logits(void **state)
{
	static const float logits[] = { 1000, 1001, -1000, 999, -3e38f, 3e38f };
	static const float bias[] = { 1, 2, 5, 0, 0, -9 };
	struct ndp_router r = { .experts = 4, .top_k = 3, .renormalize = true, .scale = 1 };
	uint32_t ids[3];
	float w[3];

	UNUSED_STATE;
	route(&r, logits, NULL, 1, ids, w);
	assert_int_equal(ids[0], 1);
	assert_int_equal(ids[1], 0);
	assert_int_equal(ids[2], 3);
	assert_float_equal(w[0] + w[1] + w[2], 1.0f, 1e-6f);
	assert_float_equal(w[1] / w[0], expf(-1), 1e-6f);

	/* The bias selects two whose softmax is 0 in FP32: their quotient is still right. */
	r.top_k = 2;
	route(&r, (const float[]){ -500, -501, 0, 0 }, (const float[]){ 9, 8, 0, 0 }, 1, ids, w);
	assert_int_equal(ids[0], 0);
	assert_int_equal(ids[1], 1);
	assert_float_equal(w[0], 0.731059f, 1e-6f);

	/* Sigmoids that are 0: equal weights, not 0 / 0. */
	r.scoring = NDP_SCORE_SIGMOID;
	r.scale = 3;
	route(&r, (const float[]){ -3e38f, -3e38f, -3e38f, -3e38f }, bias, 1, ids, w);
	assert_int_equal(ids[0], 2);
	assert_true(w[0] == 1.5f && w[1] == 1.5f);

	/* Scores near 1 keep what distinguishes them from bias that dwarfs them. */
	r.scale = 1;
	route(&r, (const float[]){ 0, 0, -20, -21 }, (const float[]){ 0, 0, 1e6f, 1e6f }, 1, ids,
	      w);
	assert_int_equal(ids[0], 2);
	assert_float_equal(w[0], 0.731059f, 1e-5f);
	r.experts = 6;
	r.scoring = NDP_SCORE_SOFTMAX;
	route(&r, logits, NULL, 1, ids, w);
	assert_int_equal(ids[0], 5);
	assert_true(w[0] == 1 && w[1] == 0);
}

/* NaN is worse than every number; weights are numbers whatever comes. */
static void no_numbers(void **state)
{
	const float inf = INFINITY;
	const float logits[][4] = {
		{ NAN, 1, -inf, 0 }, { NAN, NAN, NAN, -5 }, { NAN, NAN, NAN, NAN },
		{ inf, 1, inf, 0 }, { -inf, -inf, -inf, -inf }, { -inf, 2, NAN, inf },
	};
	static const uint32_t want[][4] = {
		{ 1, 3, 2, 0 }, { 3, 0, 1, 2 }, { 0, 1, 2, 3 },
		{ 0, 2, 1, 3 }, { 0, 1, 2, 3 }, { 3, 1, 0, 2 },
	};

	UNUSED_STATE;
	for (int v = 0; v < 8; v++)
		for (int i = 0; i < 6; i++)
			for (uint32_t k = 1; k <= 4; k++) {
				const struct ndp_router r = { .experts = 4, .top_k = k, .scale = 1,
							      .scoring = v & 1,
							      .renormalize = v >> 1 & 1 };
				static const float zero[4];
				float w[4], sum = 0;
				uint32_t ids[4];

				route(&r, logits[i], v & 4 ? zero : NULL, 1, ids, w);
				/* Finite logits beside an infinite one have a softmax of 0. */
				if (r.scoring == NDP_SCORE_SIGMOID || !(v & 4))
					assert_memory_equal(ids, want[i], k * sizeof(*ids));
				for (uint32_t j = 0; j < k; j++) {
					assert_true(w[j] >= 0 && w[j] <= 1.000001f);
					sum += w[j];
				}
				if (r.renormalize)
					assert_float_equal(sum, 1, 1e-6f);
			}
}

static void refuse(struct ndp_router r, const char *field)
{
	struct ndp_error err;

	assert_int_equal(ndp_router_check(&r, &err), -EINVAL);
	if (!strstr(err.message, field))
		fail_msg("\"%s\" does not name %s", err.message, field);
	assert_int_equal(ndp_router_check(&r, NULL), -EINVAL);
}

static void what_cannot_be(void **state)
{
	const struct ndp_router ok = { .experts = 8, .top_k = 2, .groups = 4, .keep_groups = 2,
				       .scale = 1 };
	struct ndp_router r;

	UNUSED_STATE;
	assert_int_equal(ndp_router_check(&ok, NULL), 0);
	r = ok, r.experts = 0, refuse(r, "experts");
	r = ok, r.experts = 65536, refuse(r, "experts");
	r = ok, r.top_k = 0, refuse(r, "top_k");
	r = ok, r.top_k = 5, refuse(r, "top_k");
	r = ok, r.groups = 3, refuse(r, "groups");
	r = ok, r.keep_groups = 0, refuse(r, "keep_groups");
	r = ok, r.keep_groups = 5, refuse(r, "keep_groups");
	r = ok, r.scoring = 7, refuse(r, "scoring");
	r = ok, r.group_score = 7, refuse(r, "group_score");
	r = ok, r.scale = NAN, refuse(r, "scale");
}

/* ---- products ------------------------------------------------------------------------------- */

/*
 * The router's products, against FP64; the same bits whatever the numbers of rows and
 * tokens are.  n eps |w|.|x| bounds any order of FP32 sums.
 */
static void products(void **state)
{
	static const uint32_t columns[] = { 1, 7, 8, 9, 64, 100, 2048 };
	enum { ROWS = 21, TOKENS = 7 };
	uint64_t seed = 3;

	UNUSED_STATE;
	for (size_t c = 0; c < sizeof(columns) / sizeof(*columns); c++) {
		const uint32_t n = columns[c];
		float *w = malloc(ROWS * n * 4), *x = malloc(TOKENS * (n + 1) * 4), bias[ROWS];
		float y[TOKENS][ROWS], z;

		for (uint32_t i = 0; i < ROWS * n; i++)
			w[i] = ref_uniform(&seed);
		for (uint32_t i = 0; i < TOKENS * (n + 1); i++)
			x[i] = ref_uniform(&seed);
		for (uint32_t i = 0; i < ROWS; i++)
			bias[i] = ref_uniform(&seed);
		ndpi_dots(w, ROWS, bias, x, n + 1, TOKENS, n, y[0], ROWS);
		for (uint32_t t = 0; t < TOKENS; t++)
			for (uint32_t r = 0; r < ROWS; r++) {
				double want = bias[r], all = fabs(bias[r]);

				for (uint32_t i = 0; i < n; i++) {
					const double p = (double)w[r * n + i] * x[t * (n + 1) + i];

					want += p;
					all += fabs(p);
				}
				assert_true(fabs(y[t][r] - want) <= all * (n + 1) * FLT_EPSILON);
				ndpi_dots(w + r * n, 1, bias + r, x + t * (n + 1), 0, 1, n, &z, 0);
				assert_memory_equal(&z, &y[t][r], sizeof(z));
			}
		for (uint32_t rows = 1; rows < ROWS; rows++) {
			float one[ROWS];

			ndpi_dots(w, rows, bias, x, 0, 1, n, one, 0);
			assert_memory_equal(one, y[0], rows * sizeof(*one));
		}
		free(x);
		free(w);
	}
}

/* The same bits as one by one, whatever the bits are; the 1.0 for biases, zeros behind. */
static void rows_of_bf16(void **state)
{
	uint64_t seed = 5;

	UNUSED_STATE;
	for (uint32_t n = 1; n < 70; n++)
		for (int one = 0; one < 2; one++) {
			ndp_bf16 got[96];
			float x[70];

			for (uint32_t i = 0; i < n; i++) {
				uint32_t u = (uint32_t)ref_next(&seed);

				/* Ties, infinities, NaN and all else. */
				if (i % 3 == 0)
					u = (u & 0xffff0000) | 0x8000;
				if (i % 5 == 0)
					u |= 0x7f800000;
				memcpy(&x[i], &u, sizeof(u));
			}
			memset(got, 0xff, sizeof(got));
			ndpi_bf16_row(got, x, n, one, 96);
			for (uint32_t i = 0; i < n; i++)
				assert_int_equal(got[i], ndp_bf16_from_f32(x[i]));
			for (uint32_t i = n; i < 96; i++)
				assert_int_equal(got[i], one && i == n ? 0x3f80 : 0);
		}
}

/* Any number of terms; exact, as all are small integers. */
static void scaled_sums(void **state)
{
	UNUSED_STATE;
	for (uint32_t terms = 0; terms <= NDPI_MAX_TERMS; terms++)
		for (uint32_t n = 1; n < 80; n += 13) {
			float y[NDPI_MAX_TERMS][80], out[81];
			const float *p[NDPI_MAX_TERMS];

			for (uint32_t t = 0; t < terms; t++) {
				p[t] = y[t];
				for (uint32_t i = 0; i < 80; i++)
					y[t][i] = (float)(t * 100 + i);
			}
			for (uint32_t i = 0; i <= n; i++)
				out[i] = 7;
			ndpi_add_scaled(out, p, terms, 0.5f, n);
			for (uint32_t i = 0; i < n; i++) {
				float want = 0;

				for (uint32_t t = 0; t < terms; t++)
					want += (float)(t * 100 + i);
				assert_true(out[i] == 7 + want / 2);
			}
			assert_true(out[n] == 7);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(renormalization_and_scale),
		cmocka_unit_test(one_expert_has_weight_one),
		cmocka_unit_test(groups_with_negative_scores),
		cmocka_unit_test(every_rule),
		cmocka_unit_test(lower_ids_come_first_among_equals),
		cmocka_unit_test(large_logits),
		cmocka_unit_test(no_numbers),
		cmocka_unit_test(what_cannot_be),
		cmocka_unit_test(products),
		cmocka_unit_test(rows_of_bf16),
		cmocka_unit_test(scaled_sums),
	};

	return cmocka_run_group_tests_name("router", tests, NULL, NULL);
}
