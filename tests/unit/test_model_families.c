// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_model_families.c - every family in every format, spelling and dtype that ndp-mkmodel
 * writes: what libndp packs of it is what the model is, number by number.
 *
 * ndp-mkmodel's values are asked for one row at a time (mk_row()), so what is checked is the
 * whole way: names, order, transposing, quantising, dequantising, packing.
 */
#include "../../tools/ndp-mkmodel/mkmodel.h"

#include <ndp/model.h>

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char top[] = "/tmp/test_model_families.XXXXXX";
static char dir[100];
static unsigned int dirs;

const char *const mk_spelling_names[MK_SPELLINGS] = { "default", "w123", "proj", "fused",
						      "stacked", "each" };

static int setup(void **state)
{
	(void)state;
	return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", top);
	return system(command);
}

static void write_model(const struct mk_model *m)
{
	struct mk_plan plan = { 0 };
	struct ndp_error err;
	int r;

	snprintf(dir, sizeof(dir), "%s/%u", top, dirs++);
	assert_int_equal(mkdir(dir, 0700), 0);
	r = mk_plan(&plan, m, &err);
	if (r == 0)
		r = m->gguf ? mk_write_gguf(dir, m, &plan, &err) :
			      mk_write_safetensors(dir, m, &plan, &err);
	if (r < 0)
		fail_msg("%s", err.message);
	free(plan.tensors);
}

static struct mk_model model(enum mk_family family)
{
	const bool deepseek = family == MK_DEEPSEEK2 || family == MK_DEEPSEEK3 || family == MK_GLM4;

	return (struct mk_model){
		.family = family,
		.layers = 2,
		.dense = deepseek,
		.experts = 4,
		.top_k = 2,
		.hidden = 96,
		.neurons = 64,
		.shared = deepseek ? 2 : family == MK_QWEN2,
		.groups = deepseek ? 2 : 1,
		.keep_groups = 1,
		.renormalize = true,
		.scale = 1,
		.sigmoid = family == MK_DEEPSEEK3 || family == MK_GLM4,
		.shards = 1,
		.seed = 5,
		.spelling = family == MK_MIXTRAL   ? MK_W123
			    : family == MK_GPT_OSS ? MK_FUSED
						   : MK_PROJ,
	};
}

/*
 * How far a number may be from what it was before, as a part of the largest of its block:
 * half a step, or what is cut off.  Q8_0: 127 steps, of a scale in FP16.  Q4_0: on the side
 * away from the largest there are 7 of 8 steps.  MXFP4: numbers up to 8 become 6 at most.
 */
static double quantum(enum mk_dtype dtype)
{
	switch (dtype) {
	case MK_Q8_0:
		return 0.5 / 127 + 0x1p-10;
	case MK_Q4_0:
		return 1.0 / 8 + 0x1p-10;
	default:
		return 0.25;
	}
}

struct check {
	const struct mk_model *m;
	uint32_t layer;
	uint32_t expert;	/* as values.c numbers them */
	uint32_t hidden, neurons;
	double err;		/* sum of squared differences, and of squares */
	double sum;
};

/* One number as it was packed, of one as it was made in a block with @largest. */
static void compare(struct check *c, float made, ndp_bf16 packed, float largest)
{
	const enum mk_dtype dtype = c->m->dtype;
	const float got = ndp_bf16_to_f32(packed), off = fabsf(got - made);

	c->err += (double)off * off;
	c->sum += (double)made * made;
	if (dtype == MK_BF16 || dtype == MK_F32)
		assert_int_equal(packed, ndp_bf16_from_f32(made));
	else if (dtype == MK_F16)	/* rounded twice */
		assert_true(off <= fabsf(made) * 0x1.2p-8f + 0x1p-25f);
	else
		assert_true(off <= quantum(dtype) * largest + fabsf(got) * 0x1p-8);
}

static void check_row(struct check *c, enum mk_kind kind, uint32_t row, uint32_t n,
		      const ndp_bf16 *packed)
{
	float *made = malloc(n * sizeof(*made));

	mk_row(c->m->seed, kind, c->layer, c->expert, row, 0, n, n, made, 1);
	for (uint32_t i = 0; i < n; i += 32) {
		uint32_t end = n - i < 32 ? n : i + 32;
		float largest = 0;

		for (uint32_t k = i; k < end; k++)
			largest = fmaxf(largest, fabsf(made[k]));
		for (uint32_t k = i; k < end; k++)
			compare(c, made[k], packed[k], largest);
	}
	free(made);
}

static void check_matrices(struct check *c, const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld,
			   const ndp_bf16 *down)
{
	for (uint32_t n = 0; n < c->neurons; n++) {
		check_row(c, MK_GATE, n, c->hidden, gate + n * ld);
		check_row(c, MK_UP, n, c->hidden, up + n * ld);
	}
	for (uint32_t j = 0; j < c->hidden; j++)
		check_row(c, MK_DOWN, j, c->neurons, down + (size_t)j * c->neurons);
}

static void check_biases(const struct mk_model *m, uint32_t layer, uint32_t e,
			 const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld)
{
	float g[64], u[64];

	mk_row(m->seed, MK_GATE_BIAS, layer, e, 0, 0, m->neurons, m->neurons, g, 1);
	mk_row(m->seed, MK_UP_BIAS, layer, e, 0, 0, m->neurons, m->neurons, u, 1);
	for (uint32_t n = 0; n < m->neurons; n++) {
		assert_int_equal(gate[n * ld + m->hidden], ndp_bf16_from_f32(g[n]));
		assert_int_equal(up[n * ld + m->hidden], ndp_bf16_from_f32(u[n]));
	}
}

static void check_expert(const struct ndp_model *model, const struct mk_model *m,
			 const struct ndp_expert_shape *s, uint32_t layer, uint32_t expert,
			 struct check *c)
{
	uint32_t blocks = ndp_expert_blocks(s);
	size_t bytes = ndp_expert_block_bytes(s), ld = s->h_in;
	char *packed = malloc(blocks * bytes);
	void *work = malloc(ndp_model_pack_bytes(model) + 1);
	ndp_bf16 *gate = malloc(s->neurons * ld * 2), *up = malloc(s->neurons * ld * 2);
	ndp_bf16 *down = malloc((size_t)s->h_out * s->neurons * 2);
	struct ndp_error err;

	if (ndp_model_pack(model, layer, expert, 0, blocks, packed, work, &err) < 0)
		fail_msg("%s", err.message);
	for (uint32_t b = 0; b < blocks; b++)
		ndp_expert_unpack_block(packed + b * bytes, s, b, gate, up, ld, down, s->neurons);
	c->layer = layer;
	c->expert = expert == NDP_EXPERT_SHARED ? MK_SHARED_EXPERT : expert;
	c->neurons = s->neurons;
	check_matrices(c, gate, up, ld, down);
	if (m->family == MK_GPT_OSS)
		check_biases(m, layer, expert, gate, up, ld);
	free(packed);
	free(work);
	free(gate);
	free(up);
	free(down);
}

static void check_model(const struct mk_model *m)
{
	struct check c = { .m = m, .hidden = m->hidden };
	struct ndp_model_info info;
	struct ndp_model *model;
	struct ndp_error err;
	float got[4 * 96], want[96];	/* of the largest here */

	write_model(m);
	if (ndp_model_open(&model, dir, &err) < 0)
		fail_msg("%s", err.message);
	ndp_model_info(model, &info);
	assert_string_equal(info.family, mk_family_names[m->family]);
	assert_int_equal(info.moe_layers, m->layers - m->dense);
	assert_int_equal(info.shared.neurons, m->shared * m->neurons);
	assert_int_equal(info.selection_bias, m->sigmoid);
	for (uint32_t l = m->dense; l < m->layers; l++) {
		for (uint32_t e = 0; e < m->experts; e++)
			check_expert(model, m, &info.routed, l, e, &c);
		if (m->shared)
			check_expert(model, m, &info.shared, l, NDP_EXPERT_SHARED, &c);
		assert_int_equal(ndp_model_router(model, l, got, NULL, NULL, NULL, &err), 0);
		for (uint32_t e = 0; e < m->experts; e++) {
			mk_row(m->seed, MK_ROUTER, l, 0, e, 0, m->hidden, m->hidden, want, 1);
			for (uint32_t k = 0; k < m->hidden; k++)
				assert_true(got[e * m->hidden + k] ==
					    ndp_bf16_to_f32(ndp_bf16_from_f32(want[k])));
		}
	}
	/* On the whole: 4 bits are good for a tenth. */
	assert_true(sqrt(c.err / c.sum) < (m->dtype < MK_Q8_0 ? 0.003 : m->dtype == MK_Q8_0 ? 0.01 :
									       0.15));
	ndp_model_close(model);
}

static void safetensors_of_every_family(void **state)
{
	static const enum mk_spelling spellings[] = { MK_W123, MK_PROJ, MK_FUSED, MK_STACKED };

	(void)state;
	for (int f = 0; f < MK_FAMILIES; f++) {
		for (size_t i = 0; i < 4; i++) {
			struct mk_model m = model(f);

			if (f == MK_GPT_OSS && spellings[i] != MK_FUSED)
				continue;
			m.spelling = spellings[i];
			m.shards = 1 + i % 3;
			m.index = m.shards == 2;
			check_model(&m);
		}
	}
}

static void gguf_of_every_family(void **state)
{
	static const enum mk_spelling spellings[] = { MK_STACKED, MK_FUSED, MK_EACH };

	(void)state;
	for (int f = 0; f < MK_FAMILIES; f++) {
		for (size_t i = 0; i < 3; i++) {
			struct mk_model m = model(f);

			m.gguf = true;
			if (f == MK_QWEN2 || f == MK_QWEN3 || f == MK_OLMOE || f == MK_MIXTRAL)
				m.dense = 0;
			if (f == MK_GPT_OSS && spellings[i] != MK_STACKED)
				continue;
			m.spelling = spellings[i];
			m.shards = 1 + i;
			check_model(&m);
		}
	}
}

static void every_dtype(void **state)
{
	(void)state;
	for (int f = MK_QWEN2; f < MK_FAMILIES; f += MK_GPT_OSS - MK_QWEN2) {
		for (int d = 0; d < MK_DTYPES; d++) {
			struct mk_model m = model(f);

			m.dtype = d;
			m.gguf = true;
			m.spelling = MK_STACKED;
			check_model(&m);
			m.gguf = false;
			m.spelling = f == MK_GPT_OSS ? MK_FUSED : MK_PROJ;
			if (d < MK_Q8_0 || (d == MK_MXFP4 && f == MK_GPT_OSS))
				check_model(&m);
		}
	}
}

/* Several groups of blocks, and a rest that is no whole block. */
static void sizes_that_fit_nothing(void **state)
{
	(void)state;
	for (int d = 0; d < 3; d++) {
		struct mk_model m = model(d == 1 ? MK_GPT_OSS : MK_MIXTRAL);

		m.layers = 1;
		m.experts = 2;
		m.hidden = 37;
		m.neurons = d == 1 ? 61 : 555;
		m.dtype = d == 2 ? MK_F32 : MK_BF16;
		check_model(&m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(safetensors_of_every_family),
		cmocka_unit_test(gguf_of_every_family),
		cmocka_unit_test(every_dtype),
		cmocka_unit_test(sizes_that_fit_nothing),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
