// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_moe.c - the experts of a layer on DIMMs (in-process back end) against
 * recorded layer vectors and against FP64; layers where experts get no token
 * (reported as tgale96/grouped_gemm#36, sgl-project/sglang#38773) and shapes that
 * are no multiple of a tile (tenstorrent/tt-metal#18195); experts that have moved.
 *
 * Run from the top of the tree: it reads tests/models/tiny-moe.
 */
#include "../../tools/ndp-run/model.h"
#include "../../tools/ndp-run/moe.h"
#include "../../tools/ndp-run/router.h"
#include "../../tools/ndp-run/vec.h"

#include <ndp/tensors.h>

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "tests/models/tiny-moe"
#define VECTORS MODEL "/layer_vectors.safetensors"

static struct ndp_device *open_soft(const char *spec)
{
	struct ndp_device *dev;
	struct ndp_error err;

	if (ndp_open(&dev, spec, &err) < 0)
		fail_msg("%s", err.message);
	return dev;
}

static uint64_t commands_of(struct ndp_device *dev, uint32_t dimms)
{
	uint64_t n = 0;

	for (uint32_t d = 0; d < dimms; d++) {
		struct ndp_dimm_info info;

		assert_int_equal(ndp_dimm_info(dev, d, &info), 0);
		n += info.compute.commands;
	}
	return n;
}

/* ---- an expert of the test's own --------------------------------------- */

struct own {
	uint32_t hidden;
	uint32_t neurons;
	ndp_bf16 *gate;
	ndp_bf16 *up;
	ndp_bf16 *down;
};

static ndp_bf16 random_bf16(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return ndp_bf16_from_f32((float)(*seed >> 8) / (1 << 23) - 1.0f);
}

static struct own own_new(uint32_t hidden, uint32_t neurons, uint32_t seed)
{
	size_t n = (size_t)hidden * neurons;
	struct own o = { hidden, neurons, calloc(n, 2), calloc(n, 2), calloc(n, 2) };

	assert_true(o.gate && o.up && o.down);
	for (size_t i = 0; i < n; i++) {
		o.gate[i] = random_bf16(&seed);
		o.up[i] = random_bf16(&seed);
		o.down[i] = random_bf16(&seed);
	}
	return o;
}

static void own_free(struct own *o)
{
	free(o->gate);
	free(o->up);
	free(o->down);
}

static struct moe_expert own_load(const struct own *o, struct ndp_device *dev, const char *policy,
				  uint32_t index, uint32_t mask)
{
	const struct ndp_expert_shape shape = { o->hidden, o->hidden, o->neurons };
	struct moe_expert e;
	struct ndp_placement p;
	struct ndp_error err;

	assert_int_equal(ndp_placement_policy(&p, policy, index, ndp_expert_blocks(&shape), mask,
					      &err), 0);
	assert_int_equal(ndp_expert_create(&e.weights, dev, &shape, &p, 0, index, &err), 0);
	assert_int_equal(ndp_expert_load(e.weights, o->gate, o->up, o->hidden, o->down, o->neurons),
			 0);
	assert_int_equal(ndp_weights_seal(e.weights), 0);
	e.mask = ndp_placement_mask(&p);
	return e;
}

/*
 * y in FP64 out of x rounded to BF16, h rounded to BF16; *slack gets what one unit
 * in the last place of every h, and FP32 sums, could change.
 */
static void own_compute(const struct own *o, const float *x, double *y, double *slack)
{
	double *h = calloc(o->neurons, sizeof(*h));

	assert_non_null(h);
	for (uint32_t n = 0; n < o->neurons; n++) {
		double g = 0;
		double u = 0;

		for (uint32_t k = 0; k < o->hidden; k++) {
			double v = ndp_bf16_to_f32(ndp_bf16_from_f32(x[k]));

			g += ndp_bf16_to_f32(o->gate[(size_t)n * o->hidden + k]) * v;
			u += ndp_bf16_to_f32(o->up[(size_t)n * o->hidden + k]) * v;
		}
		h[n] = ndp_bf16_to_f32(ndp_bf16_from_f32((float)(g / (1 + exp(-g)) * u)));
	}
	for (uint32_t j = 0; j < o->hidden; j++) {
		y[j] = 0;
		slack[j] = 1e-5;
		for (uint32_t n = 0; n < o->neurons; n++) {
			double d = ndp_bf16_to_f32(o->down[(size_t)j * o->neurons + n]) * h[n];

			y[j] += d;
			slack[j] += fabs(d) * 0x1p-8;
		}
	}
	free(h);
}

static void fill_x(float *x, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		x[i] = ndp_bf16_to_f32(random_bf16(&seed));
}

/* ---- batches ----------------------------------------------------------- */

/* More experts than the queue is deep, odd shapes, every placement, one and many tokens. */
static void batches_equal_fp64(void **state)
{
	enum { EXPERTS = 80, H = 100, I = 36, TOKENS = 48, K = 2 };
	static const char *const policies[] = { "local", "striped", "spread:2", "dimm:1" };
	struct ndp_device *dev = open_soft("soft:dimms=3,size=16M");
	struct own own[EXPERTS];
	struct moe_expert experts[EXPERTS];
	uint32_t ids[TOKENS * K];
	float weights[TOKENS * K];
	static float x[TOKENS * H];
	static float out[TOKENS * H];
	struct ndp_error err;
	struct moe *m;

	(void)state;
	assert_int_equal(moe_create(&m, dev, H, TOKENS, K, &err), 0);
	fill_x(x, TOKENS * H, 3);
	for (uint32_t p = 0; p < TOKENS * K; p++) {
		ids[p] = p % K ? (p * 7) % (EXPERTS - 1) : EXPERTS - 1; /* one gets every token */
		weights[p] = 0.25f + (float)(p % 3);
	}
	for (uint32_t e = 0; e < EXPERTS; e++) {
		own[e] = own_new(H, I, e + 1);
		experts[e] = own_load(&own[e], dev, policies[e % 4], e, 7);
	}
	for (uint32_t tokens = 1; tokens <= TOKENS; tokens += TOKENS - 1) {
		memset(out, 0xff, sizeof(out));
		assert_int_equal(
			moe_forward(m, 0, experts, EXPERTS, x, tokens, K, ids, weights, out, &err),
			0);
		for (uint32_t t = 0; t < tokens; t++) {
			double y[K][H];
			double slack[K][H];

			for (uint32_t j = 0; j < K; j++)
				own_compute(&own[ids[t * K + j]], x + t * H, y[j], slack[j]);
			for (uint32_t i = 0; i < H; i++) {
				double want = 0;
				double bound = 0;

				for (uint32_t j = 0; j < K; j++) {
					want += weights[t * K + j] * y[j][i];
					bound += weights[t * K + j] * slack[j][i];
				}
				if (!(fabs(out[t * H + i] - want) <= bound))
					fail_msg("token %u column %u: %g, wanted %g within %g", t,
						 i, (double)out[t * H + i], want, bound);
			}
		}
		for (size_t i = (size_t)tokens * H; i < TOKENS * H; i++)
			assert_true(isnan(out[i])); /* nothing behind the batch is written */
	}
	assert_int_equal(moe_stats(m)->retries, 0);
	moe_free(m);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		ndp_weights_free(experts[e].weights);
		own_free(&own[e]);
	}
	ndp_close(dev);
}

/* Three of four experts get nothing: equal to a layer of one expert, bit for bit. */
static void experts_without_tokens(void **state)
{
	enum { EXPERTS = 4, H = 128, I = 64, TOKENS = 3 };
	struct ndp_device *dev = open_soft("soft:dimms=2,size=16M");
	const uint32_t ids[TOKENS] = { 0 };
	const float weights[TOKENS] = { 1, 1, 1 };
	struct moe_expert experts[EXPERTS];
	struct own own[EXPERTS];
	float x[TOKENS * H];
	float four[TOKENS * H];
	float one[TOKENS * H];
	struct ndp_error err;
	uint64_t before;
	struct moe *m;

	(void)state;
	fill_x(x, TOKENS * H, 9);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		own[e] = own_new(H, I, 20 + e);
		experts[e] = own_load(&own[e], dev, "striped", e, 3);
	}
	assert_int_equal(moe_create(&m, dev, H, 8, 1, &err), 0);
	memset(four, 0xff, sizeof(four));
	memset(one, 0xff, sizeof(one));
	before = commands_of(dev, 2);
	assert_int_equal(
		moe_forward(m, 0, experts, EXPERTS, x, TOKENS, 1, ids, weights, four, &err), 0);
	assert_int_equal(commands_of(dev, 2) - before, 2); /* one command, on two DIMMs */
	assert_int_equal(moe_forward(m, 0, experts, 1, x, TOKENS, 1, ids, weights, one, &err), 0);
	assert_memory_equal(four, one, sizeof(one));
	for (uint32_t i = 0; i < TOKENS * H; i++)
		assert_true(isfinite(four[i]));
	moe_free(m);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		ndp_weights_free(experts[e].weights);
		own_free(&own[e]);
	}
	ndp_close(dev);
}

/* A batch of no tokens succeeds, writes nothing, submits nothing. */
static void no_tokens_at_all(void **state)
{
	enum { H = 64, I = 32 };
	struct ndp_device *dev = open_soft("soft:dimms=1,size=16M");
	struct own own = own_new(H, I, 1);
	struct moe_expert expert = own_load(&own, dev, "local", 0, 1);
	struct ndp_error err;
	uint64_t before;
	struct moe *m;
	float out[H];

	(void)state;
	memset(out, 0xff, sizeof(out));
	assert_int_equal(moe_create(&m, dev, H, 4, 1, &err), 0);
	before = commands_of(dev, 1);
	assert_int_equal(moe_forward(m, 0, &expert, 1, NULL, 0, 1, NULL, NULL, out, &err), 0);
	assert_int_equal(commands_of(dev, 1), before);
	assert_int_equal(moe_stats(m)->commands, 0);
	for (int i = 0; i < H; i++)
		assert_true(isnan(out[i]));
	moe_free(m);
	ndp_weights_free(expert.weights);
	own_free(&own);
	ndp_close(dev);
}

static void too_much_is_refused(void **state)
{
	struct ndp_device *dev = open_soft("soft:dimms=1,size=16M");
	uint32_t ids[6] = { 0 };
	float f[6 * 64] = { 0 };
	struct ndp_error err;
	struct moe *m;

	(void)state;
	assert_int_equal(moe_create(&m, dev, 64, 2, 1, &err), 0);
	assert_int_equal(moe_forward(m, 0, NULL, 1, f, 3, 1, ids, f, f, &err), -EINVAL);
	assert_int_equal(moe_forward(m, 0, NULL, 1, f, 2, 2, ids, f, f, &err), -EINVAL);
	moe_free(m);
	ndp_close(dev);
}

/* ---- H = 100, I = 36 ---------------------------------------------------- */

/*
 * x = 1, gate = up = 1/128, down = 1: every output is 36 silu(0.78125) 0.78125 =
 * 15.07213 before h is rounded.  h = 0.41867 lies in [0.25, 0.5), where BF16 steps
 * are 2^-9, so rounding moves the sum by at most 36 * 2^-10 = 0.0352.  NaN in the
 * padding of x and all over y must not come out.
 */
static void padding_does_not_leak(void **state)
{
	enum { H = 100, I = 36, LDX = 256, LDY = 512, TOKENS = 2 };
	static const char *const policies[] = { "local", "striped" };
	struct ndp_device *dev = open_soft("soft:dimms=2,size=16M");
	size_t n = (size_t)H * I;
	struct own own = { H, I, calloc(n, 2), calloc(n, 2), calloc(n, 2) };
	uint8_t poison[TOKENS * LDY];
	struct ndp_result res;
	struct ndp_error err;
	struct ndp_io *x;
	struct ndp_io *y;

	(void)state;
	for (size_t i = 0; i < n; i++) {
		own.gate[i] = own.up[i] = ndp_bf16_from_f32(1 / 128.0f);
		own.down[i] = ndp_bf16_from_f32(1);
	}
	memset(poison, 0xff, sizeof(poison));
	for (int p = 0; p < 2; p++) {
		struct moe_expert e = own_load(&own, dev, policies[p], 0, 3);
		const struct ndp_cmd cmd = {
			.op = NDP_OP_FFN_EXPERT, .weights = e.weights, .x_mask = 3,
			.tokens = TOKENS, .ldx = LDX, .ldy = LDY,
		};
		struct ndp_cmd c = cmd;
		float sum[TOKENS][H];
		float raw[TOKENS * LDY / sizeof(float)];

		assert_int_equal(ndp_io_create(&x, dev, 0, TOKENS * LDX, &err), 0);
		assert_int_equal(ndp_io_create(&y, dev, 0, TOKENS * LDY, &err), 0);
		assert_int_equal(ndp_io_write(x, 3, 0, poison, TOKENS * LDX), 0);
		assert_int_equal(ndp_io_write(y, 3, 0, poison, TOKENS * LDY), 0);
		for (int t = 0; t < TOKENS; t++) {
			ndp_bf16 row[H];

			for (int k = 0; k < H; k++)
				row[k] = ndp_bf16_from_f32(1);
			assert_int_equal(ndp_io_write(x, 3, t * LDX, row, sizeof(row)), 0);
		}
		c.x = x;
		c.y = y;
		assert_int_equal(ndp_run(dev, &c, &res), 0);
		assert_int_equal(res.res, 0);
		assert_int_equal(res.dimm_mask, e.mask);
		assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, LDY, &sum[0][0], H, TOKENS, H),
				 0);
		for (int t = 0; t < TOKENS; t++)
			for (int j = 0; j < H; j++)
				assert_float_equal(sum[t][j], 15.07213f, 0.0353f);
		for (uint32_t d = 0; d < 2; d++) {
			if (!(res.dimm_mask >> d & 1))
				continue;
			assert_int_equal(ndp_io_read(y, d, 0, raw, sizeof(raw)), 0);
			for (size_t i = 0; i < sizeof(raw) / sizeof(raw[0]); i++)
				if (i % (LDY / sizeof(float)) >= H)
					assert_true(isnan(raw[i]));
		}
		ndp_io_free(y);
		ndp_io_free(x);
		ndp_weights_free(e.weights);
	}
	own_free(&own);
	ndp_close(dev);
}

/* ---- recorded activations ---------------------------------------------- */

struct recorded {
	struct ndp_tensors *ts;
	struct ndp_device *dev;
	struct model *m;
};

static const struct ndp_tensor *vector(const struct recorded *r, int layer, const char *name)
{
	const struct ndp_tensor *t;
	char full[64];

	snprintf(full, sizeof(full), "layer%d.%s", layer, name);
	t = ndp_tensors_find(r->ts, full);
	assert_non_null(t);
	return t;
}

static int32_t id_at(const struct ndp_tensor *t, size_t i)
{
	int32_t v;

	assert_int_equal(t->dtype, NDP_DTYPE_I32);
	memcpy(&v, (const uint8_t *)t->data + 4 * i, 4);
	return v;
}

static int load_recorded(void **state)
{
	struct recorded *r = calloc(1, sizeof(*r));
	struct ndp_error err;

	if (!r || ndp_tensors_open(&r->ts, VECTORS, &err) < 0 ||
	    ndp_open(&r->dev, "soft:dimms=4,size=16M", &err) < 0 ||
	    model_load(&r->m, r->dev, MODEL, "spread:2", NULL, &err) < 0) {
		print_error("%s\n", err.message);
		return -1;
	}
	*state = r;
	return 0;
}

static int free_recorded(void **state)
{
	struct recorded *r = *state;

	model_free(r->m);
	ndp_close(r->dev);
	ndp_tensors_close(r->ts);
	free(r);
	return 0;
}

enum { ROWS = 16, HIDDEN = 128, TOP = 4, NR_EXPERTS = 32 };

/* The router sees x in FP32, so ids and weights are those of the reference. */
static void recorded_routing(void **state)
{
	const struct recorded *r = *state;

	for (int layer = 0; layer <= 2; layer += 2) {
		const struct ndp_tensor *ids = vector(r, layer, "topk_ids");
		float x[ROWS * HIDDEN];
		float want_logits[ROWS * NR_EXPERTS];
		float want_weights[ROWS * TOP];
		float logits[ROWS * NR_EXPERTS];

		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "x"), 0, ROWS * HIDDEN, x),
				 0);
		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "router_logits"), 0,
						     ROWS * NR_EXPERTS, want_logits), 0);
		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "topk_weights"), 0,
						     ROWS * TOP, want_weights),
				 0);
		matmul(logits, r->m->layers[layer].router, x, ROWS, NR_EXPERTS, HIDDEN);
		for (int t = 0; t < ROWS; t++) {
			uint32_t got[TOP];
			float weights[TOP];

			for (int e = 0; e < NR_EXPERTS; e++)
				assert_float_equal(logits[t * NR_EXPERTS + e],
						   want_logits[t * NR_EXPERTS + e], 1e-4f);
			route(logits + t * NR_EXPERTS, NR_EXPERTS, TOP, got, weights);
			for (int j = 0; j < TOP; j++) {
				assert_int_equal(got[j], id_at(ids, t * TOP + j));
				assert_float_equal(weights[j], want_weights[t * TOP + j], 1e-5f);
			}
		}
	}
}

/*
 * One expert alone: weight 1.  The record rounds h to BF16, not x; rounding x
 * changes gate and up by up to 2^-9 of the sum of their terms' sizes.  What was
 * measured is at most 0.030 for one expert, 0.013 for a layer; outputs reach 12.9.
 */
static void recorded_experts(void **state)
{
	const struct recorded *r = *state;
	struct ndp_error err;
	struct moe *m;

	assert_int_equal(moe_create(&m, r->dev, HIDDEN, 1, 1, &err), 0);
	for (int layer = 0; layer <= 2; layer += 2) {
		const struct ndp_tensor *ids = vector(r, layer, "topk_ids");
		const struct ndp_tensor *outs = vector(r, layer, "expert_out_h_bf16");

		for (int p = 0; p < ROWS * TOP; p++) {
			const uint32_t id = id_at(ids, p);
			const float one = 1;
			float x[HIDDEN];
			float want[HIDDEN];
			float out[HIDDEN];

			assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "x"),
							     p / TOP * HIDDEN, HIDDEN, x), 0);
			assert_int_equal(ndp_tensor_read_f32(outs, p * HIDDEN, HIDDEN, want), 0);
			assert_int_equal(moe_forward(m, layer, r->m->layers[layer].experts,
						     NR_EXPERTS, x, 1, 1, &id, &one, out, &err), 0);
			for (int i = 0; i < HIDDEN; i++)
				assert_float_equal(out[i], want[i], 0.05f);
		}
	}
	moe_free(m);
}

/* The layer as a batch of 16 tokens, then again while every expert has moved. */
static void recorded_layers(void **state)
{
	const struct recorded *r = *state;
	struct ndp_error err;
	struct moe *m;

	assert_int_equal(moe_create(&m, r->dev, HIDDEN, ROWS, TOP, &err), 0);
	for (int layer = 0; layer <= 2; layer += 2) {
		struct moe_expert *experts = r->m->layers[layer].experts;
		const struct ndp_tensor *ids_tensor = vector(r, layer, "topk_ids");
		uint32_t ids[ROWS * TOP];
		float x[ROWS * HIDDEN];
		float weights[ROWS * TOP];
		float want[ROWS * HIDDEN];
		float out[ROWS * HIDDEN];
		float moved[ROWS * HIDDEN];
		uint64_t retries = moe_stats(m)->retries;

		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "x"), 0, ROWS * HIDDEN, x),
				 0);
		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "topk_weights"), 0,
						     ROWS * TOP, weights),
				 0);
		assert_int_equal(ndp_tensor_read_f32(vector(r, layer, "moe_out_h_bf16"), 0,
						     ROWS * HIDDEN, want), 0);
		for (int p = 0; p < ROWS * TOP; p++)
			ids[p] = id_at(ids_tensor, p);
		assert_int_equal(moe_forward(m, layer, experts, NR_EXPERTS, x, ROWS, TOP, ids,
					     weights, out, &err), 0);
		for (int i = 0; i < ROWS * HIDDEN; i++)
			assert_float_equal(out[i], want[i], 0.03f);
		assert_int_equal(moe_stats(m)->retries, retries);

		/*
		 * All experts go from pairs of DIMMs to DIMM 3, as whole objects.  Nobody
		 * tells, and all believe in DIMM 0, so x reaches no DIMM that is needed.
		 */
		for (uint32_t e = 0; e < NR_EXPERTS; e++) {
			struct ndp_placement to;

			ndp_placement_local(&to, 4, 3);
			assert_int_equal(ndp_weights_migrate(experts[e].weights, &to, NULL, &err),
					 0);
			experts[e].mask = 1;
		}
		assert_int_equal(moe_forward(m, layer, experts, NR_EXPERTS, x, ROWS, TOP, ids,
					     weights, moved, &err), 0);
		assert_true(moe_stats(m)->retries > retries);
		for (int i = 0; i < ROWS * HIDDEN; i++)
			assert_float_equal(moved[i], want[i], 0.03f);
		for (int p = 0; p < ROWS * TOP; p++)
			assert_int_equal(experts[ids[p]].mask, 8);
	}
	moe_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batches_equal_fp64),
		cmocka_unit_test(experts_without_tokens),
		cmocka_unit_test(no_tokens_at_all),
		cmocka_unit_test(too_much_is_refused),
		cmocka_unit_test(padding_does_not_leak),
		cmocka_unit_test(recorded_routing),
		cmocka_unit_test(recorded_experts),
		cmocka_unit_test(recorded_layers),
	};

	return cmocka_run_group_tests_name("moe", tests, load_recorded, free_recorded);
}
