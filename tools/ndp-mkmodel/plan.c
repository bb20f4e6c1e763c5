// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * plan.c - the tensors that a model becomes, under the names of its format and spelling,
 * and their bytes.
 *
 * Names: Hugging Face transformers and llama.cpp's gguf-py, as libndp's
 * family_tensors.c reads them.  Attention is left out: this is for running experts.
 */
#include "mkmodel.h"

#include <errno.h>
#include <ndp/pack.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct builder {
	struct mk_plan *plan;
	const struct mk_model *m;
	struct ndp_error *err;
	uint32_t layer;
	int result;
};

/* A tensor with dims that follow from @t; the name is put after the layer's prefix. */
static void add(struct builder *b, struct mk_tensor t, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void add(struct builder *b, struct mk_tensor t, const char *fmt, ...)
{
	struct mk_plan *p = b->plan;
	va_list ap;

	if (p->n == p->max && !b->result) {
		size_t max = p->max ? 2 * p->max : 256;
		struct mk_tensor *more = reallocarray(p->tensors, max, sizeof(*more));

		if (!more) {
			b->result = mk_fail(b->err, -ENOMEM, "no memory for %zu tensors", max);
			return;
		}
		p->tensors = more;
		p->max = max;
	}
	if (b->result)
		return;
	va_start(ap, fmt);
	vsnprintf(t.name, sizeof(t.name), fmt, ap);
	va_end(ap);
	t.rows = 1;
	for (uint32_t i = 0; i + 1 < t.nr_dims; i++)
		t.rows *= t.dims[i];
	t.width = (uint32_t)t.dims[t.nr_dims - 1];
	t.bytes = t.rows * (t.width / mk_block(t.dtype)) * mk_block_bytes(t.dtype);
	if (t.width % mk_block(t.dtype))
		b->result = mk_fail(b->err, -EINVAL,
				    "tensor %s has rows of %u elements, %s has blocks "
				    "of %u: choose sizes that it divides",
				    t.name, t.width, mk_dtype_names[t.dtype], mk_block(t.dtype));
	p->tensors[p->n++] = t;
}

/* MXFP4 in safetensors: one matrix in two tensors of bytes. */
static void add_split(struct builder *b, struct mk_tensor t, const char *name)
{
	const uint64_t groups = t.inputs / 32, rows = t.dims[0] * t.dims[1];
	struct mk_plan *p = b->plan;

	if (t.inputs % 32) {
		b->result = mk_fail(b->err, -EINVAL,
				    "%s has rows of %u elements, mxfp4 has groups of "
				    "32: choose sizes that it divides",
				    name, t.inputs);
		return;
	}
	for (t.part = MK_CODES; t.part <= MK_EXPONENTS; t.part++) {
		t.dtype = MK_BF16;
		t.nr_dims = t.part == MK_CODES ? 4 : 3;
		t.dims[2] = groups;
		t.dims[3] = 16;
		add(b, t, "model.layers.%u.mlp.experts.%s%s", b->layer, name,
		    t.part == MK_CODES ? "_blocks" : "_scales");
		if (b->result)
			return;
		p->tensors[p->n - 1].rows = rows;
		p->tensors[p->n - 1].width = t.inputs;
		p->tensors[p->n - 1].bytes = rows * groups * (t.part == MK_CODES ? 16 : 1);
	}
}

static struct mk_tensor matrix(const struct builder *b, enum mk_kind kind, uint32_t expert,
			       uint32_t outputs, uint32_t inputs)
{
	return (struct mk_tensor){ .dims = { outputs, inputs }, .nr_dims = 2,
				   .dtype = b->m->dtype, .kind = kind, .layer = b->layer,
				   .expert = expert, .outputs = outputs, .inputs = inputs };
}

/* All experts', with @times as many outputs in one tensor. */
static struct mk_tensor stack(const struct builder *b, enum mk_kind kind, enum mk_layout layout,
			      uint32_t outputs, uint32_t inputs, uint32_t times)
{
	struct mk_tensor t = matrix(b, kind, 0, outputs, inputs);

	t.nr_dims = 3;
	t.dims[0] = b->m->experts;
	t.dims[1] = (uint64_t)outputs * times;
	t.dims[2] = inputs;
	if (layout == MK_TRANSPOSED || layout == MK_INTERLEAVED) {
		t.dims[1] = inputs;
		t.dims[2] = (uint64_t)outputs * times;
	}
	t.layout = layout;
	return t;
}

static struct mk_tensor vector(const struct builder *b, enum mk_kind kind, enum mk_dtype dtype,
			       uint32_t n)
{
	struct mk_tensor t = matrix(b, kind, 0, 1, n);

	t.nr_dims = 1;
	t.dims[0] = n;
	t.dtype = dtype;
	return t;
}

/* ---- safetensors -------------------------------------------------------- */

static const char *module(const struct mk_model *m)
{
	return m->family == MK_MIXTRAL ? "block_sparse_moe" : "mlp";
}

static void each_hf(struct builder *b)
{
	static const char *const names[2][3] = { { "w1", "w3", "w2" },
						 { "gate_proj", "up_proj", "down_proj" } };
	const struct mk_model *m = b->m;
	const char *const *name = names[m->spelling != MK_W123];

	for (uint32_t e = 0; e < m->experts; e++)
		for (int k = 0; k < 3; k++)
			add(b, k < 2 ? matrix(b, k ? MK_UP : MK_GATE, e, m->neurons, m->hidden) :
				       matrix(b, MK_DOWN, e, m->hidden, m->neurons),
			    "model.layers.%u.%s.experts.%u.%s.weight", b->layer, module(m), e,
			    name[k]);
}

static void gpt_oss_hf(struct builder *b)
{
	const struct mk_model *m = b->m;
	struct mk_tensor bias = { .dims = { m->experts, 2 * (uint64_t)m->neurons }, .nr_dims = 2,
				  .dtype = MK_BF16, .kind = MK_GATE_BIAS, .layout = MK_PAIRS,
				  .layer = b->layer, .outputs = m->neurons, .inputs = 1 };

	if (m->dtype == MK_MXFP4) {
		add_split(b, stack(b, MK_GATE, MK_INTERLEAVED_ROWS, m->neurons, m->hidden, 2),
			  "gate_up_proj");
		add_split(b, stack(b, MK_DOWN, MK_PLAIN, m->hidden, m->neurons, 1), "down_proj");
	} else {
		add(b, stack(b, MK_GATE, MK_INTERLEAVED, m->neurons, m->hidden, 2),
		    "model.layers.%u.mlp.experts.gate_up_proj", b->layer);
		add(b, stack(b, MK_DOWN, MK_TRANSPOSED, m->hidden, m->neurons, 1),
		    "model.layers.%u.mlp.experts.down_proj", b->layer);
	}
	add(b, bias, "model.layers.%u.mlp.experts.gate_up_proj_bias", b->layer);
	bias.kind = MK_DOWN_BIAS;
	bias.layout = MK_PLAIN;
	bias.outputs = 1;
	bias.inputs = m->hidden;
	bias.dims[1] = m->hidden;
	add(b, bias, "model.layers.%u.mlp.experts.down_proj_bias", b->layer);
}

static void experts_hf(struct builder *b)
{
	const struct mk_model *m = b->m;

	if (m->family == MK_GPT_OSS) {
		gpt_oss_hf(b);
	} else if (m->spelling == MK_FUSED) {
		add(b, stack(b, MK_GATE, MK_HALVES, m->neurons, m->hidden, 2),
		    "model.layers.%u.%s.experts.gate_up_proj", b->layer, module(m));
		add(b, stack(b, MK_DOWN, MK_PLAIN, m->hidden, m->neurons, 1),
		    "model.layers.%u.%s.experts.down_proj", b->layer, module(m));
	} else if (m->spelling == MK_STACKED) {
		add(b, stack(b, MK_GATE, MK_PLAIN, m->neurons, m->hidden, 1),
		    "model.layers.%u.%s.experts.gate_proj", b->layer, module(m));
		add(b, stack(b, MK_UP, MK_PLAIN, m->neurons, m->hidden, 1),
		    "model.layers.%u.%s.experts.up_proj", b->layer, module(m));
		add(b, stack(b, MK_DOWN, MK_PLAIN, m->hidden, m->neurons, 1),
		    "model.layers.%u.%s.experts.down_proj", b->layer, module(m));
	} else {
		each_hf(b);
	}
}

static struct mk_tensor with_dtype(struct mk_tensor t, enum mk_dtype dtype)
{
	t.dtype = dtype;
	return t;
}

static void layer_hf(struct builder *b, bool dense)
{
	const struct mk_model *m = b->m;
	const char *shared = m->family == MK_QWEN2 ? "mlp.shared_expert" : "mlp.shared_experts";
	const char *gate = m->family == MK_GPT_OSS ? "router" : "gate";
	const uint32_t l = b->layer, wide = m->shared * m->neurons;

	add(b, vector(b, MK_ONES, MK_BF16, m->hidden), "model.layers.%u.input_layernorm.weight", l);
	add(b, vector(b, MK_ONES, MK_BF16, m->hidden),
	    "model.layers.%u.post_attention_layernorm.weight", l);
	if (dense) {
		add(b, matrix(b, MK_GATE, MK_DENSE_MLP, m->neurons, m->hidden),
		    "model.layers.%u.mlp.gate_proj.weight", l);
		add(b, matrix(b, MK_UP, MK_DENSE_MLP, m->neurons, m->hidden),
		    "model.layers.%u.mlp.up_proj.weight", l);
		add(b, matrix(b, MK_DOWN, MK_DENSE_MLP, m->hidden, m->neurons),
		    "model.layers.%u.mlp.down_proj.weight", l);
		return;
	}
	add(b, with_dtype(matrix(b, MK_ROUTER, 0, m->experts, m->hidden), MK_BF16),
	    "model.layers.%u.%s.%s.weight", l, module(m), gate);
	if (m->family == MK_GPT_OSS)
		add(b, vector(b, MK_ROUTER_BIAS, MK_BF16, m->experts),
		    "model.layers.%u.mlp.router.bias", l);
	if (m->sigmoid)
		add(b, vector(b, MK_SELECTION, MK_F32, m->experts),
		    "model.layers.%u.mlp.gate.e_score_correction_bias", l);
	experts_hf(b);
	if (!wide)
		return;
	add(b, matrix(b, MK_GATE, MK_SHARED_EXPERT, wide, m->hidden),
	    "model.layers.%u.%s.gate_proj.weight", l, shared);
	add(b, matrix(b, MK_UP, MK_SHARED_EXPERT, wide, m->hidden),
	    "model.layers.%u.%s.up_proj.weight", l, shared);
	add(b, matrix(b, MK_DOWN, MK_SHARED_EXPERT, m->hidden, wide),
	    "model.layers.%u.%s.down_proj.weight", l, shared);
	if (m->family == MK_QWEN2)
		add(b, with_dtype(matrix(b, MK_SHARED_GATE, 0, 1, m->hidden), MK_BF16),
		    "model.layers.%u.mlp.shared_expert_gate.weight", l);
}

/* ---- GGUF ------------------------------------------------------------------ */

static void experts_gguf(struct builder *b)
{
	const struct mk_model *m = b->m;
	const uint32_t l = b->layer;

	if (m->spelling == MK_EACH) {
		for (uint32_t e = 0; e < m->experts; e++) {
			add(b, matrix(b, MK_GATE, e, m->neurons, m->hidden),
			    "blk.%u.ffn_gate.%u.weight", l, e);
			add(b, matrix(b, MK_UP, e, m->neurons, m->hidden),
			    "blk.%u.ffn_up.%u.weight", l, e);
			add(b, matrix(b, MK_DOWN, e, m->hidden, m->neurons),
			    "blk.%u.ffn_down.%u.weight", l, e);
		}
		return;
	}
	if (m->spelling == MK_FUSED) {
		add(b, stack(b, MK_GATE, MK_HALVES, m->neurons, m->hidden, 2),
		    "blk.%u.ffn_gate_up_exps.weight", l);
	} else {
		add(b, stack(b, MK_GATE, MK_PLAIN, m->neurons, m->hidden, 1),
		    "blk.%u.ffn_gate_exps.weight", l);
		add(b, stack(b, MK_UP, MK_PLAIN, m->neurons, m->hidden, 1),
		    "blk.%u.ffn_up_exps.weight", l);
	}
	add(b, stack(b, MK_DOWN, MK_PLAIN, m->hidden, m->neurons, 1), "blk.%u.ffn_down_exps.weight",
	    l);
}

static void biases_gguf(struct builder *b)
{
	const struct mk_model *m = b->m;
	struct mk_tensor bias = { .dims = { m->experts, m->neurons }, .nr_dims = 2,
				  .dtype = MK_F32, .layer = b->layer, .outputs = 1,
				  .inputs = m->neurons };

	bias.kind = MK_GATE_BIAS;
	add(b, bias, "blk.%u.ffn_gate_exps.bias", b->layer);
	bias.kind = MK_UP_BIAS;
	add(b, bias, "blk.%u.ffn_up_exps.bias", b->layer);
	bias.kind = MK_DOWN_BIAS;
	bias.inputs = m->hidden;
	bias.dims[1] = m->hidden;
	add(b, bias, "blk.%u.ffn_down_exps.bias", b->layer);
	add(b, vector(b, MK_ROUTER_BIAS, MK_F32, m->experts), "blk.%u.ffn_gate_inp.bias", b->layer);
}

static void layer_gguf(struct builder *b, bool dense)
{
	const struct mk_model *m = b->m;
	const uint32_t l = b->layer, wide = m->shared * m->neurons;

	add(b, vector(b, MK_ONES, MK_F32, m->hidden), "blk.%u.attn_norm.weight", l);
	add(b, vector(b, MK_ONES, MK_F32, m->hidden), "blk.%u.ffn_norm.weight", l);
	if (dense) {
		add(b, matrix(b, MK_GATE, MK_DENSE_MLP, m->neurons, m->hidden),
		    "blk.%u.ffn_gate.weight", l);
		add(b, matrix(b, MK_UP, MK_DENSE_MLP, m->neurons, m->hidden),
		    "blk.%u.ffn_up.weight", l);
		add(b, matrix(b, MK_DOWN, MK_DENSE_MLP, m->hidden, m->neurons),
		    "blk.%u.ffn_down.weight", l);
		return;
	}
	add(b, with_dtype(matrix(b, MK_ROUTER, 0, m->experts, m->hidden), MK_F32),
	    "blk.%u.ffn_gate_inp.weight", l);
	if (m->sigmoid)
		add(b, vector(b, MK_SELECTION, MK_F32, m->experts), "blk.%u.exp_probs_b.bias", l);
	experts_gguf(b);
	if (m->family == MK_GPT_OSS)
		biases_gguf(b);
	if (!wide)
		return;
	add(b, matrix(b, MK_GATE, MK_SHARED_EXPERT, wide, m->hidden),
	    "blk.%u.ffn_gate_shexp.weight", l);
	add(b, matrix(b, MK_UP, MK_SHARED_EXPERT, wide, m->hidden), "blk.%u.ffn_up_shexp.weight",
	    l);
	add(b, matrix(b, MK_DOWN, MK_SHARED_EXPERT, m->hidden, wide),
	    "blk.%u.ffn_down_shexp.weight", l);
	if (m->family == MK_QWEN2)
		add(b, vector(b, MK_SHARED_GATE, MK_F32, m->hidden),
		    "blk.%u.ffn_gate_inp_shexp.weight", l);
}

/* In the order of the list, about as many bytes in each, at least one tensor in each. */
static void assign_shards(struct mk_plan *plan, uint32_t shards)
{
	uint64_t total = 1, before = 0;
	uint32_t last = 0;

	for (size_t i = 0; i < plan->n; i++)
		total += plan->tensors[i].bytes;
	for (size_t i = 0; i < plan->n; i++) {
		uint32_t s = (uint32_t)((double)before / (double)total * shards);

		if (i && s > last + 1)
			s = last + 1;
		if (plan->n - i <= shards - 1 - last)
			s = last + (i > 0);
		if (s < last)
			s = last;
		plan->tensors[i].shard = last = s;
		before += plan->tensors[i].bytes;
	}
}

int mk_plan(struct mk_plan *plan, const struct mk_model *m, struct ndp_error *err)
{
	struct builder b = { .plan = plan, .m = m, .err = err };

	for (b.layer = 0; b.layer < m->layers && !b.result; b.layer++) {
		if (m->gguf)
			layer_gguf(&b, b.layer < m->dense);
		else
			layer_hf(&b, b.layer < m->dense);
	}
	b.layer = 0;
	add(&b, vector(&b, MK_ONES, m->gguf ? MK_F32 : MK_BF16, m->hidden), "%s",
	    m->gguf ? "output_norm.weight" : "model.norm.weight");
	if (b.result)
		return b.result;
	if (m->shards > plan->n)
		return mk_fail(err, -EINVAL, "%u shards for %zu tensors: wanted at most one each",
			       m->shards, plan->n);
	assign_shards(plan, m->shards);
	return 0;
}

/* ---- the bytes ------------------------------------------------------------------ */

/* Row @row of the tensor, in the file's order. */
static void fill_row(const struct mk_model *m, const struct mk_tensor *t, uint64_t row, float *dst)
{
	const uint32_t n = t->outputs, h = t->inputs;
	const uint64_t seed = m->seed;
	uint32_t e;

	switch (t->layout) {
	case MK_HALVES:
		e = t->expert + (uint32_t)(row / (2 * n));
		row %= 2 * (uint64_t)n;
		mk_row(seed, row < n ? MK_GATE : MK_UP, t->layer, e, (uint32_t)(row % n), 0, h, h,
		       dst, 1);
		break;
	case MK_INTERLEAVED_ROWS:
		e = t->expert + (uint32_t)(row / (2 * n));
		row %= 2 * (uint64_t)n;
		mk_row(seed, row % 2 ? MK_UP : MK_GATE, t->layer, e, (uint32_t)(row / 2), 0, h, h,
		       dst, 1);
		break;
	case MK_TRANSPOSED:
		e = t->expert + (uint32_t)(row / h);
		for (uint32_t j = 0; j < n; j++)
			mk_row(seed, t->kind, t->layer, e, j, (uint32_t)(row % h), 1, h, dst + j,
			       1);
		break;
	case MK_INTERLEAVED:
		e = t->expert + (uint32_t)(row / h);
		for (uint32_t j = 0; j < n; j++) {
			mk_row(seed, MK_GATE, t->layer, e, j, (uint32_t)(row % h), 1, h,
			       dst + 2 * j, 1);
			mk_row(seed, MK_UP, t->layer, e, j, (uint32_t)(row % h), 1, h,
			       dst + 2 * j + 1, 1);
		}
		break;
	case MK_PAIRS:
		mk_row(seed, MK_GATE_BIAS, t->layer, (uint32_t)row, 0, 0, n, n, dst, 2);
		mk_row(seed, MK_UP_BIAS, t->layer, (uint32_t)row, 0, 0, n, n, dst + 1, 2);
		break;
	default:
		e = t->expert + (uint32_t)(row / n);
		mk_row(seed, t->kind, t->layer, e, (uint32_t)(row % n), 0, h, h, dst, 1);
	}
	/* Formats keep these as BF16 or as FP32: the same numbers in both. */
	if (t->kind > MK_DOWN)
		for (uint32_t i = 0; i < t->width; i++)
			dst[i] = ndp_bf16_to_f32(ndp_bf16_from_f32(dst[i]));
}

int mk_write_tensor(FILE *f, const struct mk_model *m, const struct mk_tensor *t)
{
	float *row = malloc(t->width * sizeof(*row));
	uint8_t *bytes = malloc((size_t)t->width * 4 + 64);
	uint8_t *other = malloc(t->width + 64);
	int r = 0;

	if (!row || !bytes || !other)
		r = -ENOMEM;
	for (uint64_t i = 0; i < t->rows && r == 0; i++) {
		const uint8_t *src = bytes;
		size_t n = t->width / mk_block(t->dtype) * mk_block_bytes(t->dtype);

		fill_row(m, t, i, row);
		if (t->part == MK_WHOLE) {
			mk_encode(t->dtype, row, t->width, bytes);
		} else {
			mk_encode_mxfp4_split(row, t->width, bytes, other);
			n = t->part == MK_CODES ? t->width / 2 : t->width / 32;
			src = t->part == MK_CODES ? bytes : other;
		}
		if (fwrite(src, 1, n, f) != n)
			r = -errno;
	}
	free(row);
	free(bytes);
	free(other);
	return r;
}
