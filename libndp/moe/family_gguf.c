// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * family_gguf.c - what a model is, out of a GGUF header.
 *
 * Keys: gguf-py/gguf/constants.py of llama.cpp, and its convert_hf_to_gguf.py for what
 * they hold.  What a header does not say is what llama.cpp does with the architecture
 * (src/llama-model.cpp, load_hparams() and the graph): whether weights are
 * renormalised in llama, qwen2moe, qwen3moe, olmoe and gpt-oss; gate before up in
 * ffn_gate_up_exps.  Groups are scored as the model's authors do, see group_score below.
 *
 * As in family_config.c, a key that sounds like experts and is not known is refused.
 */
#include "model-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <ndp/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gating {	/* of <arch>.expert_gating_func */
	GATING_NONE,
	GATING_SOFTMAX,
	GATING_SIGMOID,
	GATING_SOFTMAX_WEIGHT,	/* of the chosen ones only */
};

struct arch {
	const char *name;
	const char *family;	/* as config.json's model_type */
	enum gating gating;	/* where the header does not say */
	bool renormalize;
	bool own_width;		/* experts may be as wide as feed_forward_length says */
	bool shared_gate;	/* a shared expert that has a width of its own, and a gate */
	bool dense_first;	/* leading_dense_block_count */
	bool shared_count;	/* expert_shared_count of them, each as wide as a routed one */
};

static const struct arch archs[] = {
	{ .name = "llama", .family = "mixtral", .gating = GATING_SOFTMAX, .renormalize = true,
	  .own_width = true },
	{ .name = "olmoe", .family = "olmoe", .gating = GATING_SOFTMAX, .own_width = true },
	{ .name = "qwen2moe", .family = "qwen2_moe", .gating = GATING_SOFTMAX,
	  .shared_gate = true },
	{ .name = "qwen3moe", .family = "qwen3_moe", .gating = GATING_SOFTMAX,
	  .renormalize = true },
	{ .name = "deepseek2", .family = "deepseek_v2", .gating = GATING_SOFTMAX,
	  .dense_first = true, .shared_count = true },
	{ .name = "glm4moe", .family = "glm4_moe", .gating = GATING_SIGMOID, .renormalize = true,
	  .dense_first = true, .shared_count = true },
	{ .name = "gpt-oss", .family = "gpt_oss", .gating = GATING_SOFTMAX_WEIGHT },
};

struct reader {
	const char *path;
	const struct ndp_tensors *ts;
	const struct arch *arch;
	struct model_config *c;
	struct ndp_error *err;
};

static const char *full_key(const struct reader *rd, char key[80], const char *name)
{
	snprintf(key, 80, "%s.%s", rd->arch->name, name);
	return key;
}

static bool has(const struct reader *rd, const char *name)
{
	char key[80];

	return ndp_tensors_meta_find(rd->ts, full_key(rd, key, name)) != NULL;
}

/* An array, one value a layer, must say the same everywhere. */
static int get_u32(const struct reader *rd, const char *name, uint32_t min, uint32_t max,
		   uint32_t *value)
{
	char key[80];
	const struct ndp_meta *meta = ndp_tensors_meta_find(rd->ts, full_key(rd, key, name));
	uint64_t v = 0;

	if (!meta)
		return ndpi_fail(rd->err, -EINVAL,
				 "%s: key '%s' is missing: wanted an integer from "
				 "%u to %u",
				 rd->path, key, min, max);
	for (uint64_t i = 0; i < meta->count; i++) {
		uint64_t this;
		int r = ndp_tensors_meta_u64(rd->ts, key, i, &this, rd->err);

		if (r < 0)
			return r;
		if (i && this != v)
			return ndpi_fail(rd->err, -ENOTSUP,
					 "%s: key '%s' is %" PRIu64 " for the first "
					 "layer and %" PRIu64 " for layer %" PRIu64 ": layers of "
					 "different shapes are not done",
					 meta->file, key, v, this, i);
		v = this;
	}
	if (!meta->count || v < min || v > max)
		return ndpi_fail(rd->err, -EINVAL,
				 "%s: key '%s' is %" PRIu64 ": wanted an integer from "
				 "%u to %u",
				 meta->file, key, v, min, max);
	*value = (uint32_t)v;
	return 0;
}

static int get_u32_or(const struct reader *rd, const char *name, uint32_t min, uint32_t max,
		      uint32_t otherwise, uint32_t *value)
{
	*value = otherwise;
	return has(rd, name) ? get_u32(rd, name, min, max, value) : 0;
}

/* ---- the parts ------------------------------------------------------------ */

static int read_sizes(struct reader *rd)
{
	struct ndp_model_info *info = &rd->c->info;
	uint32_t blocks, extra;
	int r;

	r = get_u32(rd, "block_count", 1, MODEL_MAX_LAYERS, &blocks);
	if (r == 0)
		r = get_u32_or(rd, "nextn_predict_layers", 0, blocks - 1, 0, &extra);
	if (r == 0)
		r = get_u32(rd, "embedding_length", 1, MODEL_MAX_WIDTH, &info->hidden);
	if (r == 0)
		r = get_u32(rd, "expert_count", 1, MODEL_MAX_EXPERTS, &info->router.experts);
	if (r == 0)
		r = get_u32(rd, "expert_used_count", 1, info->router.experts,
			    &info->router.top_k);
	if (r < 0)
		return r;
	/* Unlike num_hidden_layers, block_count counts those for several tokens. */
	info->layers = blocks - extra;
	rd->c->extra_layers = extra;
	rd->c->moe = calloc(info->layers, sizeof(*rd->c->moe));
	return rd->c->moe ? 0 : ndpi_fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
}

/* qwen2moe files from before its two keys: llama.cpp divides the width of a dense layer. */
static int read_widths(struct reader *rd)
{
	struct ndp_model_info *info = &rd->c->info;
	const struct arch *a = rd->arch;
	uint32_t dense = 0;
	int r = 0;

	if (has(rd, "expert_feed_forward_length"))
		r = get_u32(rd, "expert_feed_forward_length", 1, MODEL_MAX_NEURONS,
			    &info->routed.neurons);
	else if (a->own_width)
		r = get_u32(rd, "feed_forward_length", 1, MODEL_MAX_NEURONS,
			    &info->routed.neurons);
	else if (a->shared_gate)
		r = get_u32(rd, "feed_forward_length", info->router.top_k, MODEL_MAX_NEURONS,
			    &dense);
	else
		r = get_u32(rd, "expert_feed_forward_length", 1, MODEL_MAX_NEURONS,
			    &info->routed.neurons);
	if (r == 0 && dense)
		info->routed.neurons = dense / info->router.top_k;
	if (r < 0 || !a->shared_gate)
		return r;
	info->shared_gate = true;
	return get_u32(rd, has(rd, "expert_shared_feed_forward_length") ?
		       "expert_shared_feed_forward_length" : "feed_forward_length",
		       1, MODEL_MAX_NEURONS, &info->shared.neurons);
}

static int read_layers(struct reader *rd)
{
	struct model_config *c = rd->c;
	uint32_t dense = 0, shared = 0;
	int r = 0;

	if (rd->arch->dense_first)
		r = get_u32_or(rd, "leading_dense_block_count", 0, MODEL_MAX_LAYERS, 0, &dense);
	if (r == 0 && rd->arch->shared_count)
		r = get_u32_or(rd, "expert_shared_count", 0, MODEL_MAX_EXPERTS, 0, &shared);
	if (r < 0)
		return r;
	for (uint32_t l = 0; l < c->info.layers; l++)
		c->moe[l] = l >= dense;
	if (rd->arch->shared_count &&
	    __builtin_mul_overflow(shared, c->info.routed.neurons, &c->info.shared.neurons))
		return ndpi_fail(rd->err, -EINVAL,
				 "%s: key '%s.expert_shared_count' is %u: together "
				 "they have too many neurons",
				 rd->path, rd->arch->name, shared);
	return 0;
}

static int read_scale(struct reader *rd)
{
	char key[80];
	double scale;
	int r;

	if (!has(rd, "expert_weights_scale"))
		return 0;
	r = ndp_tensors_meta_f64(rd->ts, full_key(rd, key, "expert_weights_scale"), 0, &scale,
				 rd->err);
	if (r < 0)
		return r;
	if (!(scale >= 0) || !isfinite((float)scale))
		return ndpi_fail(rd->err, -EINVAL, "%s: key '%s' is %g: wanted a number above 0",
				 rd->path, key, scale);
	/* Converters write 0 where a model has none. */
	if (scale > 0)
		rd->c->info.router.scale = (float)scale;
	return 0;
}

static int read_gating(struct reader *rd)
{
	struct ndp_router *router = &rd->c->info.router;
	uint32_t gating;
	char key[80];
	int r;

	r = get_u32_or(rd, "expert_gating_func", GATING_NONE, 255, rd->arch->gating, &gating);
	if (r < 0)
		return r;
	if (gating == GATING_NONE)
		gating = rd->arch->gating;
	if (gating > GATING_SOFTMAX_WEIGHT)
		return ndpi_fail(rd->err, -ENOTSUP, "%s: key '%s' is %u: wanted 1 (softmax), 2 "
				 "(sigmoid) or 3 (softmax of the chosen)", rd->path,
				 full_key(rd, key, "expert_gating_func"), gating);
	router->scoring = gating == GATING_SIGMOID ? NDP_SCORE_SIGMOID : NDP_SCORE_SOFTMAX;
	router->renormalize = rd->arch->renormalize;
	if (has(rd, "expert_weights_norm")) {
		r = ndp_tensors_meta_bool(rd->ts, full_key(rd, key, "expert_weights_norm"), 0,
					  &router->renormalize, rd->err);
		if (r < 0)
			return r;
	}
	/* The same as a softmax of all, renormalised. */
	if (gating == GATING_SOFTMAX_WEIGHT)
		router->renormalize = true;
	return read_scale(rd);
}

static int read_groups(struct reader *rd)
{
	struct ndp_router *router = &rd->c->info.router;
	int r;

	r = get_u32_or(rd, "expert_group_count", 0, MODEL_MAX_EXPERTS, 1, &router->groups);
	if (router->groups == 0)
		router->groups = 1;
	if (r == 0)
		r = get_u32_or(rd, "expert_group_used_count", 0, MODEL_MAX_EXPERTS, router->groups,
			       &router->keep_groups);
	if (router->keep_groups == 0)
		router->keep_groups = router->groups;
	/* DeepSeek-V2 takes a group's best, V3 and GLM-4.5 the sum of its best two. */
	router->group_score = router->scoring == NDP_SCORE_SIGMOID ? NDP_GROUP_TOP2_SUM :
								     NDP_GROUP_MAX;
	return r;
}

static bool about_experts(const char *key)
{
	return strstr(key, "expert") || strstr(key, "moe_") || strstr(key, "_moe") ||
	       strstr(key, "swiglu") || strstr(key, "router");
}

static int refuse_unknown(const struct reader *rd)
{
	static const char *const known[] = {
		"expert_count", "expert_used_count", "expert_feed_forward_length",
		"expert_shared_feed_forward_length", "expert_shared_count", "expert_weights_scale",
		"expert_weights_norm", "expert_gating_func", "expert_group_count",
		"expert_group_used_count",
	};
	size_t prefix = strlen(rd->arch->name) + 1;

	for (size_t i = 0; i < ndp_tensors_meta_count(rd->ts); i++) {
		const struct ndp_meta *meta = ndp_tensors_meta_get(rd->ts, i);
		bool found = false;
		const char *name = meta->key + prefix;

		if (strncmp(meta->key, rd->arch->name, prefix - 1) ||
		    meta->key[prefix - 1] != '.' || !about_experts(name))
			continue;
		for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
			found |= !strcmp(name, known[k]);
		if (!found)
			return ndpi_fail(rd->err, -ENOTSUP, "%s: key '%.100s' is not known and may "
					 "change what experts compute", meta->file, meta->key);
	}
	return 0;
}

/* ---- all together ----------------------------------------------------------- */

static void gpt_oss(struct model_config *c)
{
	c->info.act = NDP_ACT_CLAMPED_SWIGLU;
	c->info.alpha = 1.702f;
	c->info.limit = 7;
	c->info.expert_bias = true;
	c->info.router_bias = true;
}

static int read_all(struct reader *rd)
{
	struct ndp_model_info *info = &rd->c->info;
	int r;

	strcpy(info->format, "gguf");
	info->router = (struct ndp_router){ .groups = 1, .keep_groups = 1, .scale = 1 };
	rd->c->gguf = true;
	rd->c->selection_by_tensor = true;
	rd->c->source = "the GGUF header";
	r = read_sizes(rd);
	if (r == 0)
		r = read_widths(rd);
	if (r == 0)
		r = read_layers(rd);
	if (r == 0)
		r = read_gating(rd);
	if (r == 0)
		r = read_groups(rd);
	if (r == 0)
		r = refuse_unknown(rd);
	if (r < 0)
		return r;
	strcpy(info->family, rd->arch->family);
	if (!strcmp(rd->arch->name, "deepseek2") && info->router.scoring == NDP_SCORE_SIGMOID)
		strcpy(info->family, "deepseek_v3");
	if (!strcmp(rd->arch->name, "gpt-oss"))
		gpt_oss(rd->c);
	return ndpi_config_check(rd->c, rd->path, rd->err);
}

int ndpi_config_gguf(struct model_config *c, const struct ndp_tensors *ts, const char *path,
		     struct ndp_error *err)
{
	struct reader rd = { .path = path, .ts = ts, .c = c, .err = err };
	const char *name;
	size_t length;
	int r;

	r = ndp_tensors_meta_string(ts, "general.architecture", 0, &name, &length, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
		if (strlen(archs[i].name) == length && !memcmp(name, archs[i].name, length))
			rd.arch = &archs[i];
	if (!rd.arch)
		return ndpi_fail(err, -ENOTSUP,
				 "%s: 'general.architecture' is '%.*s': wanted llama, "
				 "olmoe, qwen2moe, qwen3moe, deepseek2, glm4moe or gpt-oss, with "
				 "experts",
				 path, length < 60 ? (int)length : 60, name);
	return read_all(&rd);
}
