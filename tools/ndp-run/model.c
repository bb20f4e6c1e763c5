// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * model.c - see model.h.
 *
 * Names of tensors: Hugging Face transformers, MixtralForCausalLM; w1 is gate, w3
 * is up, w2 is down, all as Linear layers keep them, [outputs][inputs].  A tensor
 * that the configuration wants and the files lack is refused by name, and so is
 * one that the files have and nobody wants: it would be left out of the result.
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

struct loader {
	struct model *m;
	const struct ndp_tensors *tensors;
	const char *policy;
	model_progress progress;
	struct ndp_error *err;
	const struct ndp_tensor **used; /* NULL: not recorded any more */
	size_t nr_used;
	uint32_t experts_done;
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
	if (ld->used)
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
		{ "block_sparse_moe.gate", c->experts, c->hidden, &layer->router },
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

static int find_matrix(struct loader *ld, const struct ndp_tensor **t, uint32_t l, uint32_t e,
		       const char *which)
{
	const struct model_config *c = &ld->m->config;
	bool down = !strcmp(which, "w2");

	return find(ld, t, down ? c->hidden : c->neurons, down ? c->neurons : c->hidden,
		    "model.layers.%u.block_sparse_moe.experts.%u.%s.weight", l, e, which);
}

/* Every expert is complete: seen before the first one is loaded. */
static int find_experts(struct loader *ld)
{
	static const char *const names[] = { "w1", "w3", "w2" };
	const struct model_config *c = &ld->m->config;

	for (uint32_t l = 0; l < c->layers; l++) {
		for (uint32_t e = 0; e < c->experts; e++) {
			for (int i = 0; i < 3; i++) {
				const struct ndp_tensor *t;
				int r = find_matrix(ld, &t, l, e, names[i]);

				if (r < 0)
					return r;
			}
		}
	}
	return 0;
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*(const struct ndp_tensor *const *)a;
	uintptr_t y = (uintptr_t)*(const struct ndp_tensor *const *)b;

	return (x > y) - (x < y);
}

/* Tensors that may be left out: they follow from the configuration or from others. */
static bool redundant(const struct model_config *c, const char *name)
{
	const char *dot = strrchr(name, '.');

	return (dot && !strcmp(dot, ".inv_freq")) || (c->tied && !strcmp(name, "lm_head.weight"));
}

/* Ends the record of what was used. */
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
	free(used);
	ld->used = NULL;
	return r;
}

/* An expert's three matrices, in ordinary memory: mapped files may not be packed from. */
struct matrices {
	ndp_bf16 *gate;
	ndp_bf16 *up;
	ndp_bf16 *down;
};

static int read_matrix(struct loader *ld, ndp_bf16 *dst, uint32_t l, uint32_t e,
		       const char *which)
{
	const struct ndp_tensor *t;
	int r;

	r = find_matrix(ld, &t, l, e, which);
	if (r < 0)
		return r;
	r = ndp_tensor_read_bf16(t, 0, t->elements, dst);
	if (r < 0)
		return fail(ld->err, r, "%s: tensor '%s' cannot be read: %s", t->file, t->name,
			    strerror(-r));
	return 0;
}

static int read_expert(struct loader *ld, const struct matrices *mat, uint32_t l, uint32_t e)
{
	int r;

	r = read_matrix(ld, mat->gate, l, e, "w1");
	if (r < 0)
		return r;
	r = read_matrix(ld, mat->up, l, e, "w3");
	if (r < 0)
		return r;
	return read_matrix(ld, mat->down, l, e, "w2");
}

static struct ndp_expert_shape expert_shape(const struct model_config *c)
{
	return (struct ndp_expert_shape){ c->hidden, c->hidden, c->neurons };
}

static int place(struct loader *ld, uint32_t l, uint32_t e, uint32_t dimm_mask,
		 struct ndp_placement *p)
{
	const struct model_config *c = &ld->m->config;
	const struct ndp_expert_shape shape = expert_shape(c);

	return ndp_placement_policy(p, ld->policy, l * c->experts + e, ndp_expert_blocks(&shape),
				    dimm_mask, ld->err);
}

static int load_expert(struct loader *ld, const struct matrices *mat, uint32_t l, uint32_t e,
		       uint32_t dimm_mask)
{
	const struct model_config *c = &ld->m->config;
	struct moe_expert *expert = &ld->m->layers[l].experts[e];
	const struct ndp_expert_shape shape = expert_shape(c);
	struct ndp_placement p;
	int r;

	r = read_expert(ld, mat, l, e);
	if (r < 0)
		return r;
	r = place(ld, l, e, dimm_mask, &p);
	if (r < 0)
		return r;
	r = ndp_expert_create(&expert->weights, ld->m->dev, &shape, &p, 0,
			      (uint64_t)l << 32 | e, ld->err);
	if (r < 0)
		return r;
	r = ndp_expert_load(expert->weights, mat->gate, mat->up, c->hidden, mat->down, c->neurons);
	if (r == 0)
		r = ndp_weights_seal(expert->weights);
	if (r < 0)
		return fail(ld->err, r, "layer %u expert %u cannot be written to the DIMMs: %s", l,
			    e, strerror(-r));
	expert->mask = ndp_placement_mask(&p);
	return ld->progress ? ld->progress(++ld->experts_done, c->layers * c->experts, ld->err) : 0;
}

/* Says what does not fit, with its arithmetic, before anything is loaded. */
static int check_room(struct loader *ld, uint32_t dimm_mask, uint64_t quota_left)
{
	const struct model_config *c = &ld->m->config;
	const struct ndp_expert_shape shape = expert_shape(c);
	uint64_t block_bytes = ndp_expert_block_bytes(&shape);
	uint64_t wanted[NDP_MAX_DIMMS] = { 0 };
	uint64_t total = 0;
	struct ndp_placement p;
	int r;

	for (uint32_t n = 0; n < c->layers * c->experts; n++) {
		r = place(ld, n / c->experts, n % c->experts, dimm_mask, &p);
		if (r < 0)
			return r;
		for (uint32_t i = 0; i < p.nr_ranges; i++)
			wanted[p.ranges[i].dimm] += p.ranges[i].nr_blocks * block_bytes;
	}
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_dimm_info info;

		if (!wanted[d])
			continue;
		r = ndp_dimm_info(ld->m->dev, d, &info);
		if (r < 0)
			return fail(ld->err, r, "DIMM %u cannot be asked for its memory: %s", d,
				    strerror(-r));
		if (wanted[d] > info.free_bytes)
			return fail(ld->err, -ENOSPC, "DIMM %u would have to hold %" PRIu64
				    " bytes of experts (--placement %s) and has %" PRIu64
				    " free: use another placement, or more or larger DIMMs", d,
				    wanted[d], ld->policy, info.free_bytes);
		total += wanted[d];
	}
	if (total > quota_left)
		return fail(ld->err, -EDQUOT, "the experts need %" PRIu64 " bytes and %" PRIu64
			    " are left of this user's quota: raise it or end other programs", total,
			    quota_left);
	ld->m->expert_bytes = total;
	return 0;
}

static int load_experts(struct loader *ld)
{
	const struct model_config *c = &ld->m->config;
	size_t elements = (size_t)c->neurons * c->hidden;
	struct ndp_device_info info;
	struct matrices mat = { 0 };
	int r;

	r = ndp_device_info(ld->m->dev, &info);
	if (r < 0)
		return fail(ld->err, r, "the device cannot be asked: %s", strerror(-r));
	r = check_room(ld, info.dimm_mask, info.quota_bytes ?
		       info.quota_bytes - info.used_bytes : UINT64_MAX);
	if (r < 0)
		return r;
	mat.gate = calloc(elements, sizeof(*mat.gate));
	mat.up = calloc(elements, sizeof(*mat.up));
	mat.down = calloc(elements, sizeof(*mat.down));
	if (!mat.gate || !mat.up || !mat.down)
		r = fail(ld->err, -ENOMEM, "out of memory for an expert of 3 x %zu weights",
			 elements);
	for (uint32_t l = 0; l < c->layers && r == 0; l++)
		for (uint32_t e = 0; e < c->experts && r == 0; e++)
			r = load_expert(ld, &mat, l, e, info.dimm_mask);
	free(mat.down);
	free(mat.up);
	free(mat.gate);
	return r;
}

static int load(struct loader *ld)
{
	const struct model_config *c = &ld->m->config;
	int r;

	ld->m->layers = calloc(c->layers, sizeof(*ld->m->layers));
	if (!ld->m->layers)
		return fail(ld->err, -ENOMEM, "out of memory for %u layers", c->layers);
	for (uint32_t l = 0; l < c->layers; l++) {
		ld->m->layers[l].experts = calloc(c->experts, sizeof(struct moe_expert));
		if (!ld->m->layers[l].experts)
			return fail(ld->err, -ENOMEM, "out of memory for %u experts", c->experts);
	}
	ld->used = calloc(ndp_tensors_count(ld->tensors) + 1, sizeof(*ld->used));
	if (!ld->used)
		return fail(ld->err, -ENOMEM, "out of memory");
	r = load_shared(ld);
	for (uint32_t l = 0; l < c->layers && r == 0; l++)
		r = load_layer(ld, l);
	if (r == 0)
		r = find_experts(ld);
	if (r == 0)
		r = refuse_unused(ld);
	return r < 0 ? r : load_experts(ld);
}

int model_load(struct model **out, struct ndp_device *dev, const char *dir, const char *policy,
	       model_progress progress, struct ndp_error *err)
{
	struct loader ld = { .policy = policy, .progress = progress, .err = err };
	struct ndp_tensors *tensors;
	struct model *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return fail(err, -ENOMEM, "out of memory");
	m->dev = dev;
	r = config_load(&m->config, dir, err);
	if (r < 0)
		goto error;
	r = ndp_tensors_open(&tensors, dir, err);
	if (r < 0)
		goto error;
	ld.m = m;
	ld.tensors = tensors;
	r = load(&ld);
	free(ld.used);
	ndp_tensors_close(tensors);
	if (r < 0)
		goto error;
	*out = m;
	return 0;

error:
	model_free(m);
	return r;
}

static void layer_free(struct model_layer *layer, uint32_t nr_experts)
{
	for (uint32_t e = 0; layer->experts && e < nr_experts; e++)
		if (layer->experts[e].weights)
			ndp_weights_free(layer->experts[e].weights);
	free(layer->experts);
	free(layer->router);
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
	for (uint32_t l = 0; m->layers && l < m->config.layers; l++)
		layer_free(&m->layers[l], m->config.experts);
	free(m->layers);
	if (m->output != m->embedding)
		free(m->output);
	free(m->final_norm);
	free(m->embedding);
	free(m);
}
