// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * model.c - the MoE layers of a model file: opening, and what can be asked of them.
 *
 * The work is elsewhere: tensors.c opens the files, family_config.c and family_gguf.c
 * read what the model is, family_tensors.c finds its tensors, pack_expert.c packs.
 * Must never hand out a model of which a tensor is missing or was not understood.
 */
#include "model-internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* config.json is beside the files: in the directory @path, or in that of the file @path. */
static int config_path(char **out, const char *path, struct ndp_error *err)
{
	struct stat st;
	const char *slash = strrchr(path, '/');
	int r;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		r = asprintf(out, "%s/config.json", path);
	else if (slash)
		r = asprintf(out, "%.*s/config.json", (int)(slash - path), path);
	else
		r = asprintf(out, "config.json");
	if (r < 0) {
		*out = NULL;
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
	}
	return 0;
}

static int read_config(struct ndp_model *m, const char *path, struct ndp_error *err)
{
	char *config;
	int r;

	if (!strcmp(ndp_tensors_format(m->tensors), "gguf"))
		return ndpi_config_gguf(&m->config, m->tensors, path, err);
	r = config_path(&config, path, err);
	if (r < 0)
		return r;
	r = ndpi_config_json(&m->config, config, err);
	free(config);
	return r;
}

static size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* The most that any expert needs. */
static size_t pack_bytes(const struct ndp_model *m)
{
	const struct ndp_model_info *info = &m->config.info;
	size_t bytes = 0;

	for (uint32_t l = 0; l < info->layers; l++) {
		const struct model_layer *layer = &m->layers[l];

		if (!layer->experts)
			continue;
		for (uint32_t e = 0; e < info->router.experts; e++)
			bytes = max_size(bytes, ndpi_pack_bytes(&layer->experts[e], &info->routed));
		if (layer->shared.gate.t)
			bytes = max_size(bytes, ndpi_pack_bytes(&layer->shared, &info->shared));
	}
	return bytes;
}

int ndp_model_open(struct ndp_model **out, const char *path, struct ndp_error *err)
{
	struct ndp_model *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
	r = ndp_tensors_open(&m->tensors, path, err);
	if (r == 0)
		r = read_config(m, path, err);
	if (r == 0)
		r = ndpi_map_tensors(m, err);
	if (r < 0) {
		ndp_model_close(m);
		return r;
	}
	m->pack_bytes = pack_bytes(m);
	*out = m;
	return 0;
}

void ndp_model_close(struct ndp_model *m)
{
	if (!m)
		return;
	for (uint32_t l = 0; m->layers && l < m->config.info.layers; l++)
		free(m->layers[l].experts);
	free(m->layers);
	free(m->config.moe);
	ndp_tensors_close(m->tensors);
	free(m);
}

void ndp_model_info(const struct ndp_model *m, struct ndp_model_info *info)
{
	*info = m->config.info;
}

static const struct model_layer *moe_layer(const struct ndp_model *m, uint32_t layer)
{
	return layer < m->config.info.layers && m->layers[layer].experts ? &m->layers[layer] : NULL;
}

bool ndp_model_is_moe(const struct ndp_model *m, uint32_t layer)
{
	return moe_layer(m, layer) != NULL;
}

const struct ndp_tensors *ndp_model_tensors(const struct ndp_model *m)
{
	return m->tensors;
}

static int no_layer(const struct ndp_model *m, uint32_t layer, struct ndp_error *err)
{
	return ndpi_fail(err, -EINVAL, "layer %u is no MoE layer of this %s of %u layers", layer,
			 m->config.info.family, m->config.info.layers);
}

/* A whole tensor, where the model has it and the caller wants it. */
static int read_whole(const struct ndp_tensor *t, float *dst, struct ndp_error *err)
{
	int r;

	if (!t || !dst)
		return 0;
	r = ndp_tensor_read_f32(t, 0, t->elements, dst);
	if (r < 0)
		return ndpi_fail(err, r, "%s: tensor '%.100s' of dtype %s cannot be read: %s",
				 t->file, t->name, ndp_dtype_name(t->dtype), strerror(-r));
	return 0;
}

int ndp_model_router(const struct ndp_model *m, uint32_t layer, float *weight, float *bias,
		     float *selection, float *shared_gate, struct ndp_error *err)
{
	const struct model_layer *l = moe_layer(m, layer);
	int r;

	if (!l)
		return no_layer(m, layer, err);
	r = read_whole(l->router, weight, err);
	if (r == 0)
		r = read_whole(l->router_bias, bias, err);
	if (r == 0)
		r = read_whole(l->selection, selection, err);
	return r < 0 ? r : read_whole(l->shared_gate, shared_gate, err);
}

/* NULL, with the sentence, when there is none. */
static const struct model_expert *find_expert(const struct ndp_model *m, uint32_t layer,
					      uint32_t expert, struct ndp_error *err)
{
	const struct model_layer *l = moe_layer(m, layer);
	const struct ndp_model_info *info = &m->config.info;

	if (!l) {
		no_layer(m, layer, err);
		return NULL;
	}
	if (expert == NDP_EXPERT_SHARED) {
		if (!l->shared.gate.t)
			ndpi_fail(err, -EINVAL, "this %s has no shared expert", info->family);
		return l->shared.gate.t ? &l->shared : NULL;
	}
	if (expert >= info->router.experts) {
		ndpi_fail(err, -EINVAL, "there is no expert %u: a layer of this %s has %u", expert,
			  info->family, info->router.experts);
		return NULL;
	}
	return &l->experts[expert];
}

size_t ndp_model_pack_bytes(const struct ndp_model *m)
{
	return m->pack_bytes;
}

int ndp_model_pack(const struct ndp_model *m, uint32_t layer, uint32_t expert, uint32_t first,
		   uint32_t nr_blocks, void *dst, void *work, struct ndp_error *err)
{
	const struct model_expert *e = find_expert(m, layer, expert, err);
	const struct ndp_expert_shape *s = expert == NDP_EXPERT_SHARED ? &m->config.info.shared :
									 &m->config.info.routed;
	const struct ndp_tensor *bad = NULL;
	uint32_t blocks = ndp_expert_blocks(s);
	int r;

	if (!e)
		return -EINVAL;
	if (first > blocks || nr_blocks > blocks - first)
		return ndpi_fail(err, -EINVAL,
				 "blocks %u to %llu of layer %u: an expert of %u neurons has %u",
				 first, (unsigned long long)first + nr_blocks, layer, s->neurons,
				 blocks);
	r = ndpi_pack(e, s, first, nr_blocks, dst, work, &bad);
	if (r < 0)
		return ndpi_fail(err, r, "%s: tensor '%.100s' of dtype %s cannot be read: %s",
				 bad->file, bad->name, ndp_dtype_name(bad->dtype), strerror(-r));
	return 0;
}

int ndp_model_down_bias(const struct ndp_model *m, uint32_t layer, uint32_t expert, float *bias,
			struct ndp_error *err)
{
	const struct model_expert *e = find_expert(m, layer, expert, err);
	const struct ndp_tensor *t;
	int r;

	if (!e)
		return -EINVAL;
	t = e->down.bias;
	if (!t) {
		memset(bias, 0, m->config.info.hidden * sizeof(*bias));
		return 0;
	}
	r = ndp_tensor_read_f32(t, e->down.bias_first, m->config.info.hidden, bias);
	if (r < 0)
		return ndpi_fail(err, r, "%s: tensor '%.100s' of dtype %s cannot be read: %s",
				 t->file, t->name, ndp_dtype_name(t->dtype), strerror(-r));
	return 0;
}
