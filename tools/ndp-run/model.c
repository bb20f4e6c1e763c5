// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * model.c - see model.h.
 *
 * Names of tensors: Hugging Face transformers, MixtralForCausalLM; all as Linear
 * layers keep them, [outputs][inputs].  A tensor that the configuration wants and the
 * files lack is refused by name, and so is one that the files have and nobody wants:
 * it would be left out of the result.  Those of a layer's experts are the library's,
 * which does the same.
 */
#include "model.h"
#include "error.h"

#include <ndp/tensors.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
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

static int find(struct loader *ld, const struct ndp_tensor **t, uint64_t rows, uint64_t cols,
		const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* A BF16 tensor [rows][cols], or [cols] when @rows is 0. */
static int find(struct loader *ld, const struct ndp_tensor **t, uint64_t rows, uint64_t cols,
		const char *fmt, ...)
{
	const uint64_t dims[2] = { rows ? rows : cols, cols };
	char name[160];
	va_list ap;
	int r;

	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	r = ndp_tensors_require(ld->tensors, name, rows ? 2 : 1, dims, t, ld->err);
	if (r < 0)
		return r;
	if ((*t)->dtype != NDP_DTYPE_BF16)
		return fail(ld->err, -EINVAL,
			    "%s: tensor '%s' has dtype %s, this program runs BF16", (*t)->file,
			    name, ndp_dtype_name((*t)->dtype));
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

	r = find(ld, &t, c->vocab, c->hidden, "model.embed_tokens.weight");
	if (r == 0)
		r = widen(ld, t, &m->embedding);
	if (r < 0)
		return r;
	r = find(ld, &t, 0, c->hidden, "model.norm.weight");
	if (r == 0)
		r = widen(ld, t, &m->final_norm);
	if (r < 0)
		return r;
	if (c->tied) {
		m->output = m->embedding;
		return 0;
	}
	r = find(ld, &t, c->vocab, c->hidden, "lm_head.weight");
	return r < 0 ? r : widen(ld, t, &m->output);
}

static int load_layer(struct loader *ld, uint32_t l)
{
	const struct model_config *c = &ld->m->config;
	struct model_layer *layer = &ld->m->layers[l];
	uint32_t q_rows = c->heads * c->head_dim;
	uint32_t kv_rows = c->kv_heads * c->head_dim;
	const struct {
		const char *name;
		uint32_t rows;
		uint32_t cols;
		float **dst;
	} tensors[] = {
		{ "input_layernorm", 0, c->hidden, &layer->input_norm },
		{ "self_attn.q_proj", q_rows, c->hidden, &layer->q },
		{ "self_attn.k_proj", kv_rows, c->hidden, &layer->k },
		{ "self_attn.v_proj", kv_rows, c->hidden, &layer->v },
		{ "self_attn.o_proj", c->hidden, q_rows, &layer->o },
		{ "post_attention_layernorm", 0, c->hidden, &layer->post_norm },
	};

	for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
		const struct ndp_tensor *t;
		int r;

		r = find(ld, &t, tensors[i].rows, tensors[i].cols, "model.layers.%u.%s.weight", l,
			 tensors[i].name);
		if (r == 0)
			r = widen(ld, t, tensors[i].dst);
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
				 "that config.json describes",
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
