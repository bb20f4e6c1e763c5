// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * model.c - see model.h.
 *
 * Names of tensors: Hugging Face transformers, MixtralForCausalLM, or GGUF's
 * (gguf-py/gguf/constants.py of llama.cpp); all as Linear layers keep them,
 * [outputs][inputs].  A tensor that the configuration wants and the
 * files lack is refused by name, and so is one that the files have and nobody wants:
 * it would be left out of the result.  Those of a layer's experts are the library's,
 * which does the same.
 */
#include "model.h"
#include "error.h"

#include <ndp/tensors.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* At most so many tensors are used. */
#define LAYER_TENSORS 6
#define SHARED_TENSORS 3

struct loader {
	struct model *m;
	const struct ndp_tensors *tensors;
	struct ndp_error *err;
	const struct ndp_tensor **used;
	size_t nr_used;
};

/* What a tensor is called, in safetensors and in GGUF; layers' without what precedes them. */
struct spelling {
	const char *hf;
	const char *gguf;
};

/*
 * A tensor [rows][cols], or [cols] when @rows is 0; @layer below zero: of no layer.
 * Safetensors are BF16; GGUF files have many dtypes, and norms in FP32.
 */
static int find(struct loader *ld, const struct ndp_tensor **t, uint64_t rows, uint64_t cols,
		int layer, const struct spelling *s)
{
	const bool gguf = ld->m->config.gguf;
	const uint64_t dims[2] = { rows ? rows : cols, cols };
	char name[160];
	int r;

	if (layer < 0)
		snprintf(name, sizeof(name), "%s.weight", gguf ? s->gguf : s->hf);
	else
		snprintf(name, sizeof(name),
			 gguf ? "blk.%d.%s.weight" : "model.layers.%d.%s.weight", layer,
			 gguf ? s->gguf : s->hf);
	r = ndp_tensors_require(ld->tensors, name, rows ? 2 : 1, dims, t, ld->err);
	if (r < 0)
		return r;
	if (gguf ? !ndp_dtype_readable((*t)->dtype) : (*t)->dtype != NDP_DTYPE_BF16)
		return fail(ld->err, -EINVAL, "%s: tensor '%s' has dtype %s, this program runs %s",
			    (*t)->file, name, ndp_dtype_name((*t)->dtype),
			    gguf ? "F32, F16, BF16, Q8_0, Q4_0 and MXFP4" : "BF16");
	ld->used[ld->nr_used++] = *t;
	return 0;
}

static int widen(struct loader *ld, const struct ndp_tensor *t, float **dst)
{
	int r;

	*dst = calloc(t->elements, sizeof(**dst));
	if (!*dst)
		return fail(ld->err, -ENOMEM, "out of memory for tensor '%s' (%" PRIu64
			    " bytes in FP32)", t->name, 4 * t->elements);
	r = ndp_tensor_read_f32(t, 0, t->elements, *dst);
	if (r < 0)
		return fail(ld->err, r, "%s: tensor '%s' cannot be read: %s", t->file, t->name,
			    strerror(-r));
	return 0;
}

static int load_shared(struct loader *ld)
{
	struct model *m = ld->m;
	const struct model_config *c = &m->config;
	const struct ndp_tensor *t;
	int r;

	r = find(ld, &t, c->vocab, c->hidden, -1,
		 &(struct spelling){ "model.embed_tokens", "token_embd" });
	if (r == 0)
		r = widen(ld, t, &m->embedding);
	if (r < 0)
		return r;
	r = find(ld, &t, 0, c->hidden, -1, &(struct spelling){ "model.norm", "output_norm" });
	if (r == 0)
		r = widen(ld, t, &m->final_norm);
	if (r < 0)
		return r;
	if (c->tied) {
		m->output = m->embedding;
		return 0;
	}
	r = find(ld, &t, c->vocab, c->hidden, -1, &(struct spelling){ "lm_head", "output" });
	return r < 0 ? r : widen(ld, t, &m->output);
}

/*
 * llama.cpp rotates neighbours, Hugging Face's weights are for halves of a head: the
 * rows of q and k lie in a GGUF file as one of each half in turn.
 */
static int unfold_heads(struct loader *ld, float *w, uint32_t heads)
{
	const struct model_config *c = &ld->m->config;
	const size_t row = c->hidden, half = c->head_dim / 2, head = 2 * half * row;
	float *old = malloc(head * sizeof(*old));

	if (!old)
		return fail(ld->err, -ENOMEM, "out of memory for a head");
	for (uint32_t h = 0; h < heads; h++, w += head) {
		memcpy(old, w, head * sizeof(*old));
		for (size_t i = 0; i < 2 * half; i++)
			memcpy(w + (i % 2 * half + i / 2) * row, old + i * row, row * sizeof(*w));
	}
	free(old);
	return 0;
}

static int load_layer(struct loader *ld, uint32_t l)
{
	const struct model_config *c = &ld->m->config;
	struct model_layer *layer = &ld->m->layers[l];
	uint32_t q_rows = c->heads * c->head_dim;
	uint32_t kv_rows = c->kv_heads * c->head_dim;
	const struct {
		struct spelling name;
		uint32_t rows;
		uint32_t cols;
		uint32_t heads;	/* that are folded */
		float **dst;
	} tensors[] = {
		{ { "input_layernorm", "attn_norm" }, 0, c->hidden, 0, &layer->input_norm },
		{ { "self_attn.q_proj", "attn_q" }, q_rows, c->hidden, c->heads, &layer->q },
		{ { "self_attn.k_proj", "attn_k" }, kv_rows, c->hidden, c->kv_heads, &layer->k },
		{ { "self_attn.v_proj", "attn_v" }, kv_rows, c->hidden, 0, &layer->v },
		{ { "self_attn.o_proj", "attn_output" }, c->hidden, q_rows, 0, &layer->o },
		{ { "post_attention_layernorm", "ffn_norm" }, 0, c->hidden, 0, &layer->post_norm },
	};

	for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
		const struct ndp_tensor *t;
		int r;

		r = find(ld, &t, tensors[i].rows, tensors[i].cols, (int)l, &tensors[i].name);
		if (r == 0)
			r = widen(ld, t, tensors[i].dst);
		if (r == 0 && c->gguf && tensors[i].heads)
			r = unfold_heads(ld, *tensors[i].dst, tensors[i].heads);
		if (r < 0)
			return r;
	}
	return 0;
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*(const struct ndp_tensor *const *)a;
	uintptr_t y = (uintptr_t)*(const struct ndp_tensor *const *)b;

	return (x > y) - (x < y);
}

/*
 * Tensors that may be left out: they follow from the configuration or from others, or
 * are for the library to find or to refuse.
 */
static bool redundant(const struct model_config *c, const char *name)
{
	const char *dot = strrchr(name, '.');
	unsigned int layer;
	int end = 0;

	/* The library knows which of a layer's ffn_ tensors there are: experts, router. */
	if (c->gguf)
		return sscanf(name, "blk.%5u.ffn_%n", &layer, &end) == 1 && end > 0 &&
		       layer < c->layers && strcmp(name + end, "norm.weight");
	if (sscanf(name, "model.layers.%5u.block_sparse_moe.%n", &layer, &end) == 1 && end > 0)
		return layer < c->layers;
	return (dot && !strcmp(dot, ".inv_freq")) || (c->tied && !strcmp(name, "lm_head.weight"));
}

static int refuse_unused(struct loader *ld)
{
	const struct ndp_tensor **used = ld->used;
	int r = 0;

	qsort(used, ld->nr_used, sizeof(*used), by_address);
	for (size_t i = 0; i < ndp_tensors_count(ld->tensors) && r == 0; i++) {
		const struct ndp_tensor *t = ndp_tensors_get(ld->tensors, i);

		if (!bsearch(&t, used, ld->nr_used, sizeof(*used), by_address) &&
		    !redundant(&ld->m->config, t->name))
			r = fail(ld->err, -EINVAL,
				 "%s: tensor '%.100s' has no place in the Mixtral "
				 "that its configuration describes",
				 t->file, t->name);
	}
	return r;
}

static int read_tensors(struct loader *ld)
{
	const struct model_config *c = &ld->m->config;
	int r;

	ld->m->layers = calloc(c->layers, sizeof(*ld->m->layers));
	ld->used = calloc((size_t)c->layers * LAYER_TENSORS + SHARED_TENSORS, sizeof(*ld->used));
	if (!ld->m->layers || !ld->used)
		return fail(ld->err, -ENOMEM, "out of memory for %u layers", c->layers);
	r = load_shared(ld);
	for (uint32_t l = 0; l < c->layers && r == 0; l++)
		r = load_layer(ld, l);
	return r < 0 ? r : refuse_unused(ld);
}

int model_open(struct model **out, const struct model_config *config, const char *dir,
	       struct ndp_error *err)
{
	struct model *m = calloc(1, sizeof(*m));
	struct loader ld = { .m = m, .err = err };
	int r;

	if (!m)
		return fail(err, -ENOMEM, "out of memory");
	m->config = *config;
	r = ndp_model_open(&m->files, dir, err);
	if (r == 0) {
		ndp_model_info(m->files, &m->info);
		ld.tensors = ndp_model_tensors(m->files);
		r = read_tensors(&ld);
		free(ld.used);
	}
	if (r < 0) {
		model_free(m);
		return r;
	}
	*out = m;
	return 0;
}

int model_load_experts(struct model *m, const struct ndp_moe_options *options,
		       struct ndp_error *err)
{
	int r = ndp_moe_load(&m->moe, m->files, options, err);

	if (r < 0)
		return r;
	ndp_model_close(m->files);
	m->files = NULL;
	return 0;
}

static void layer_free(struct model_layer *layer)
{
	free(layer->post_norm);
	free(layer->o);
	free(layer->v);
	free(layer->k);
	free(layer->q);
	free(layer->input_norm);
}

void model_free(struct model *m)
{
	if (!m)
		return;
	if (m->moe)
		ndp_moe_free(m->moe);
	if (m->files)
		ndp_model_close(m->files);
	for (uint32_t l = 0; m->layers && l < m->config.layers; l++)
		layer_free(&m->layers[l]);
	free(m->layers);
	if (m->output != m->embedding)
		free(m->output);
	free(m->final_norm);
	free(m->embedding);
	free(m);
}
