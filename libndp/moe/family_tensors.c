// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * family_tensors.c - where each matrix of each expert is.
 *
 * Names and shapes: Hugging Face transformers (modeling_<family>.py; the fused 3-D
 * tensors are what its version 5 has in memory and what is saved with
 * save_original_format=False) and gguf-py of llama.cpp (constants.py, tensor_mapping.py;
 * before stacked tensors there was one for each expert).  Weights are [outputs][inputs]
 * but for gpt-oss, whose BF16 tensors are [experts][inputs][outputs].
 *
 * Any family may come in any spelling.  What is announced and missing is refused, with
 * the names of all that is missing; what is there and was not announced, too: an expert,
 * a bias or a scale left out would give plausible nonsense.
 */
#include "model-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 200
#define MISSING_SHOWN 4

enum spelling_kind {
	EACH,		/* a tensor for each matrix of each expert */
	STACKED,	/* gate, up and down of all experts */
	FUSED,		/* gate and up of all experts in one */
	FUSED_MXFP4,	/* gpt-oss: 4-bit blocks and their scales */
};

/* Names within a layer; a %u is the expert's number. */
struct spelling {
	enum spelling_kind kind;
	const char *gate;	/* or gate and up */
	const char *up;
	const char *down;
	const char *suffix;	/* of all of them */
};

/* Two names for the module, in files of two formats. */
static const struct spelling spellings[] = {
	{ EACH, "block_sparse_moe.experts.%u.w1", "block_sparse_moe.experts.%u.w3",
	  "block_sparse_moe.experts.%u.w2", ".weight" },
	{ EACH, "mlp.experts.%u.gate_proj", "mlp.experts.%u.up_proj", "mlp.experts.%u.down_proj",
	  ".weight" },
	{ FUSED, "mlp.experts.gate_up_proj", NULL, "mlp.experts.down_proj", "" },
	{ FUSED_MXFP4, "mlp.experts.gate_up_proj", NULL, "mlp.experts.down_proj", "_blocks" },
	{ STACKED, "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj", "" },
	{ FUSED, "mlp.experts.gate_up_proj", NULL, "mlp.experts.down_proj", ".weight" },
	{ STACKED, "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj",
	  ".weight" },
	{ EACH, "mlp.experts.%u.w1", "mlp.experts.%u.w3", "mlp.experts.%u.w2", ".weight" },
	{ EACH, "block_sparse_moe.experts.%u.gate_proj", "block_sparse_moe.experts.%u.up_proj",
	  "block_sparse_moe.experts.%u.down_proj", ".weight" },
	{ FUSED, "block_sparse_moe.experts.gate_up_proj", NULL,
	  "block_sparse_moe.experts.down_proj", "" },
	{ FUSED, "block_sparse_moe.experts.gate_up_proj", NULL,
	  "block_sparse_moe.experts.down_proj", ".weight" },
	{ STACKED, "block_sparse_moe.experts.gate_proj", "block_sparse_moe.experts.up_proj",
	  "block_sparse_moe.experts.down_proj", "" },
	{ STACKED, "block_sparse_moe.experts.gate_proj", "block_sparse_moe.experts.up_proj",
	  "block_sparse_moe.experts.down_proj", ".weight" },
};
static const struct spelling gguf_spellings[] = {
	{ STACKED, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", ".weight" },
	{ FUSED, "ffn_gate_up_exps", NULL, "ffn_down_exps", ".weight" },
	{ EACH, "ffn_gate.%u", "ffn_up.%u", "ffn_down.%u", ".weight" },
};

/* A router's weight, the bias of its logits, the bias of the selection. */
struct router_names {
	const char *weight;
	const char *bias;
	const char *selection;
};

static const struct router_names routers[] = {
	{ "mlp.gate.weight", "mlp.gate.bias", "mlp.gate.e_score_correction_bias" },
	{ "block_sparse_moe.gate.weight", "block_sparse_moe.gate.bias",
	  "block_sparse_moe.gate.e_score_correction_bias" },
	{ "mlp.router.weight", "mlp.router.bias", "mlp.router.e_score_correction_bias" },
};
static const struct router_names gguf_routers[] = {
	{ "ffn_gate_inp.weight", "ffn_gate_inp.bias", "exp_probs_b.bias" },
};

struct shared_names {
	const char *gate;
	const char *up;
	const char *down;
	const char *scale;	/* [1][hidden]: the gate of the whole */
};

static const struct shared_names shareds[] = {
	{ "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
	  "mlp.shared_experts.down_proj.weight", "mlp.shared_expert_gate.weight" },
	{ "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight",
	  "mlp.shared_expert.down_proj.weight", "mlp.shared_expert_gate.weight" },
};
static const struct shared_names gguf_shareds[] = {
	{ "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight",
	  "ffn_gate_inp_shexp.weight" },
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct mapper {
	struct ndp_model *m;
	const struct ndp_tensors *ts;
	struct ndp_error *err;
	const char *prefix;	/* of layers: "model.layers.", "layers.", "blk." */
	uint32_t layer;
	const struct ndp_tensor **used;
	size_t nr_used;
	size_t max_used;
	char missing[300];	/* names, and how many there are */
	uint32_t nr_missing;
};

static void full_name(const struct mapper *mp, char *name, const char *fmt, uint32_t expert,
		      const char *suffix)
{
	int n = snprintf(name, NAME_BYTES, "%s%u.", mp->prefix, mp->layer);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	/* All formats are of the tables above. */
	n += snprintf(name + n, NAME_BYTES - n, fmt, expert);
#pragma GCC diagnostic pop
	snprintf(name + n, NAME_BYTES - n, "%s", suffix);
}

static const struct ndp_tensor *look(const struct mapper *mp, const char *fmt, uint32_t expert,
				     const char *suffix)
{
	char name[NAME_BYTES];

	full_name(mp, name, fmt, expert, suffix);
	return ndp_tensors_find(mp->ts, name);
}

static int note_used(struct mapper *mp, const struct ndp_tensor *t)
{
	if (mp->nr_used && mp->used[mp->nr_used - 1] == t)
		return 0;
	if (mp->nr_used == mp->max_used) {
		size_t max = mp->max_used ? 2 * mp->max_used : 256;
		const struct ndp_tensor **p = reallocarray(mp->used, max, sizeof(*p));

		if (!p)
			return ndpi_fail(mp->err, -ENOMEM, "%s: out of memory", t->file);
		mp->used = p;
		mp->max_used = max;
	}
	mp->used[mp->nr_used++] = t;
	return 0;
}

/*
 * A tensor that must be there.  One that is missing is only written down (*t NULL, 0
 * returned), so that all of a layer can be listed.
 */
static int want(struct mapper *mp, const struct ndp_tensor **t, uint32_t nr_dims,
		const uint64_t *dims, const char *fmt, uint32_t expert, const char *suffix)
{
	char name[NAME_BYTES];
	int r;

	full_name(mp, name, fmt, expert, suffix);
	*t = ndp_tensors_find(mp->ts, name);
	if (!*t) {
		size_t n = strlen(mp->missing);

		if (mp->nr_missing++ < MISSING_SHOWN)
			snprintf(mp->missing + n, sizeof(mp->missing) - n, "%s'%s'", n ? ", " : "",
				 name);
		return 0;
	}
	r = ndp_tensors_require(mp->ts, name, nr_dims, dims, t, mp->err);
	return r < 0 ? r : note_used(mp, *t);
}

static int refuse_missing(const struct mapper *mp)
{
	const struct ndp_tensor *any = ndp_tensors_get(mp->ts, 0);
	char more[40] = "";

	if (!mp->nr_missing)
		return 0;
	if (mp->nr_missing > MISSING_SHOWN)
		snprintf(more, sizeof(more), " and %u more", mp->nr_missing - MISSING_SHOWN);
	return ndpi_fail(mp->err, -ENOENT, "%s: layer %u of this %s lacks %s%s", any->file,
			 mp->layer, mp->m->config.info.family, mp->missing, more);
}

static int check_dtype(const struct mapper *mp, const struct model_matrix *mat)
{
	if (!mat->t || ndpi_matrix_readable(mat))
		return 0;
	return ndpi_fail(mp->err, -ENOTSUP,
			 "%s: tensor '%.100s' has dtype %s: experts are read from "
			 "BF16, F16, F32, Q8_0, Q4_0 and MXFP4",
			 mat->t->file, mat->t->name, ndp_dtype_name(mat->t->dtype));
}

static int check_float(const struct mapper *mp, const struct ndp_tensor *t)
{
	if (!t || ndp_dtype_readable(t->dtype))
		return 0;
	return ndpi_fail(mp->err, -ENOTSUP, "%s: tensor '%.100s' has dtype %s, which is not read "
			 "here: wanted F32, BF16 or F16", t->file, t->name,
			 ndp_dtype_name(t->dtype));
}

/* ---- one layer's experts ------------------------------------------------- */

/* Whether @s is what the file has: any tensor of it, of any expert. */
static bool present(const struct mapper *mp, const struct spelling *s)
{
	uint32_t experts = s->kind == EACH ? mp->m->config.info.router.experts : 1;

	for (uint32_t e = 0; e < experts; e++)
		if (look(mp, s->gate, e, s->suffix) || look(mp, s->down, e, s->suffix) ||
		    (s->up && look(mp, s->up, e, s->suffix)))
			return true;
	return false;
}

/*
 * The spelling whose gate is there; only where there is none at all (the spellings share
 * names of other matrices) the first of which anything is there.
 */
static int choose_spelling(const struct mapper *mp, const struct spelling **out)
{
	const bool gguf = mp->m->config.gguf;
	const struct spelling *all = gguf ? gguf_spellings : spellings;
	size_t n = gguf ? COUNT(gguf_spellings) : COUNT(spellings);
	const struct ndp_tensor *found = NULL;

	*out = NULL;
	for (size_t i = 0; i < n; i++) {
		const struct ndp_tensor *t = look(mp, all[i].gate, 0, all[i].suffix);

		if (!t)
			continue;
		if (found)
			return ndpi_fail(mp->err, -ENOTSUP,
					 "%s: layer %u has experts in two spellings, "
					 "with '%.100s' and with '%.100s'",
					 t->file, mp->layer, found->name, t->name);
		found = t;
		*out = &all[i];
	}
	for (size_t i = 0; i < n && !*out; i++)
		if (present(mp, &all[i]))
			*out = &all[i];
	if (*out)
		return 0;
	return ndpi_fail(mp->err, -ENOENT,
			 "%s: layer %u of this %s has no tensors of experts (looked "
			 "for %s%u.%s and the other spellings)",
			 ndp_tensors_get(mp->ts, 0)->file, mp->layer, mp->m->config.info.family,
			 mp->prefix, mp->layer,
			 gguf ? "ffn_gate_exps.weight" : "mlp.experts.0.gate_proj.weight");
}

static void set_plain(struct model_matrix *mat, const struct ndp_tensor *t, uint32_t e,
		      uint64_t rows, uint64_t cols)
{
	*mat = (struct model_matrix){ .t = t, .first = e * rows * cols, .row = cols, .col = 1 };
}

static int map_each(struct mapper *mp, struct model_layer *layer, const struct spelling *s)
{
	const struct ndp_model_info *info = &mp->m->config.info;
	const uint64_t in[2] = { info->routed.neurons, info->hidden };
	const uint64_t out[2] = { info->hidden, info->routed.neurons };

	for (uint32_t e = 0; e < info->router.experts; e++) {
		const struct ndp_tensor *gate, *up, *down;
		int r;

		r = want(mp, &gate, 2, in, s->gate, e, s->suffix);
		if (r == 0)
			r = want(mp, &up, 2, in, s->up, e, s->suffix);
		if (r == 0)
			r = want(mp, &down, 2, out, s->down, e, s->suffix);
		if (r < 0)
			return r;
		set_plain(&layer->experts[e].gate, gate, 0, in[0], in[1]);
		set_plain(&layer->experts[e].up, up, 0, in[0], in[1]);
		set_plain(&layer->experts[e].down, down, 0, out[0], out[1]);
	}
	return 0;
}

static int map_stacked(struct mapper *mp, struct model_layer *layer, const struct spelling *s)
{
	const struct ndp_model_info *info = &mp->m->config.info;
	const uint64_t in[3] = { info->router.experts, info->routed.neurons, info->hidden };
	const uint64_t out[3] = { info->router.experts, info->hidden, info->routed.neurons };
	const struct ndp_tensor *gate, *up, *down;
	int r;

	if (mp->m->config.transposed)
		return ndpi_fail(mp->err, -ENOTSUP, "layer %u: the orientation of %s%s in a %s is "
				 "not defined: wanted the fused tensor", mp->layer, s->gate,
				 s->suffix, info->family);
	r = want(mp, &gate, 3, in, s->gate, 0, s->suffix);
	if (r == 0)
		r = want(mp, &up, 3, in, s->up, 0, s->suffix);
	if (r == 0)
		r = want(mp, &down, 3, out, s->down, 0, s->suffix);
	if (r < 0)
		return r;
	for (uint32_t e = 0; e < info->router.experts; e++) {
		set_plain(&layer->experts[e].gate, gate, e, in[1], in[2]);
		set_plain(&layer->experts[e].up, up, e, in[1], in[2]);
		set_plain(&layer->experts[e].down, down, e, out[1], out[2]);
	}
	return 0;
}

/* Row @i of gate (@which 0) and up (1) among the 2 I rows or columns they share. */
static uint64_t fused_at(const struct model_config *c, uint64_t which)
{
	return c->fused == MODEL_FUSED_INTERLEAVED ? which : which * c->info.routed.neurons;
}

static int map_fused(struct mapper *mp, struct model_layer *layer, const struct spelling *s)
{
	const struct model_config *c = &mp->m->config;
	const uint64_t n = c->info.routed.neurons, h = c->info.hidden;
	const uint64_t experts = c->info.router.experts;
	const uint64_t step = c->fused == MODEL_FUSED_INTERLEAVED ? 2 : 1;
	const uint64_t in[3] = { experts, c->transposed ? h : 2 * n, c->transposed ? 2 * n : h };
	const uint64_t out[3] = { experts, c->transposed ? n : h, c->transposed ? h : n };
	const struct ndp_tensor *both, *down;
	int r;

	r = want(mp, &both, 3, in, s->gate, 0, s->suffix);
	if (r == 0)
		r = want(mp, &down, 3, out, s->down, 0, s->suffix);
	if (r < 0)
		return r;
	for (uint32_t e = 0; e < experts; e++) {
		const uint64_t row = c->transposed ? 1 : h, col = c->transposed ? 2 * n : 1;
		struct model_matrix gate = { .t = both, .row = step * row, .col = col };
		struct model_matrix up = gate;

		gate.first = e * 2 * n * h + fused_at(c, 0) * row;
		up.first = e * 2 * n * h + fused_at(c, 1) * row;
		layer->experts[e].gate = gate;
		layer->experts[e].up = up;
		layer->experts[e].down = (struct model_matrix){
			.t = down, .first = e * n * h, .row = c->transposed ? 1 : n,
			.col = c->transposed ? h : 1,
		};
	}
	return 0;
}

/*
 * gpt-oss as it is published: rows are outputs here, each in groups of 32 inputs: 16
 * bytes of codes in ..._blocks, one exponent in ..._scales.  gate and up alternate.
 */
static int map_mxfp4(struct mapper *mp, struct model_layer *layer, const struct spelling *s)
{
	const struct model_config *c = &mp->m->config;
	const uint64_t n = c->info.routed.neurons, h = c->info.hidden;
	const uint64_t experts = c->info.router.experts;
	const uint64_t in[4] = { experts, 2 * n, h / 32, 16 };
	const uint64_t out[4] = { experts, h, n / 32, 16 };
	const struct ndp_tensor *both, *both_scales, *down, *down_scales;
	int r;

	if (!c->transposed)
		return ndpi_fail(mp->err, -ENOTSUP, "layer %u: %s%s is known in gpt_oss only",
				 mp->layer, s->gate, s->suffix);
	if (h % 32 || n % 32)
		return ndpi_fail(mp->err, -EINVAL,
				 "%s: hidden size %" PRIu64 " and neurons %" PRIu64
				 ": MXFP4 has groups of 32",
				 c->source, h, n);
	r = want(mp, &both, 4, in, s->gate, 0, "_blocks");
	if (r == 0)
		r = want(mp, &both_scales, 3, in, s->gate, 0, "_scales");
	if (r == 0)
		r = want(mp, &down, 4, out, s->down, 0, "_blocks");
	if (r == 0)
		r = want(mp, &down_scales, 3, out, s->down, 0, "_scales");
	if (r < 0)
		return r;
	for (uint32_t e = 0; e < experts; e++) {
		struct model_matrix gate = { .t = both, .scales = both_scales, .row = 2 * h,
					     .col = 1, .first = e * 2 * n * h };
		struct model_matrix up = gate;

		up.first += h;
		layer->experts[e].gate = gate;
		layer->experts[e].up = up;
		layer->experts[e].down = (struct model_matrix){
			.t = down, .scales = down_scales, .first = e * n * h, .row = n, .col = 1,
		};
	}
	return 0;
}

static void set_bias(struct model_matrix *mat, const struct ndp_tensor *t, uint64_t first,
		     uint64_t step)
{
	mat->bias = t;
	mat->bias_first = first;
	mat->bias_step = step;
}

/* [experts][outputs], fused where the weights are. */
static int map_biases(struct mapper *mp, struct model_layer *layer, const struct spelling *s)
{
	const struct model_config *c = &mp->m->config;
	const uint64_t n = c->info.routed.neurons, h = c->info.hidden;
	const bool fused = s->kind == FUSED || s->kind == FUSED_MXFP4;
	const uint64_t in[2] = { c->info.router.experts, fused ? 2 * n : n };
	const uint64_t out[2] = { c->info.router.experts, h };
	const char *suffix = c->gguf ? ".bias" : "_bias";
	const struct ndp_tensor *gate, *up, *down;
	const uint64_t step = fused && c->fused == MODEL_FUSED_INTERLEAVED ? 2 : 1;
	int r;

	if (s->kind == EACH)
		return ndpi_fail(mp->err, -ENOTSUP,
				 "layer %u: experts with biases that are a tensor "
				 "each are not known: wanted those of all experts in one",
				 mp->layer);
	r = want(mp, &gate, 2, in, s->gate, 0, suffix);
	up = gate;
	if (r == 0 && !fused)
		r = want(mp, &up, 2, in, s->up, 0, suffix);
	if (r == 0)
		r = want(mp, &down, 2, out, s->down, 0, suffix);
	if (r == 0)
		r = check_float(mp, gate);
	if (r == 0)
		r = check_float(mp, up);
	if (r == 0)
		r = check_float(mp, down);
	if (r < 0)
		return r;
	for (uint64_t e = 0; e < in[0]; e++) {
		struct model_expert *x = &layer->experts[e];

		set_bias(&x->gate, gate, e * in[1], step);
		set_bias(&x->up, up, e * in[1] + (fused ? fused_at(c, 1) : 0), step);
		set_bias(&x->down, down, e * h, 1);
	}
	return 0;
}

static int map_experts(struct mapper *mp, struct model_layer *layer)
{
	const struct ndp_model_info *info = &mp->m->config.info;
	const struct spelling *s;
	int r = choose_spelling(mp, &s);

	if (r < 0)
		return r;
	layer->experts = calloc(info->router.experts, sizeof(*layer->experts));
	if (!layer->experts)
		return ndpi_fail(mp->err, -ENOMEM, "layer %u: out of memory", mp->layer);
	switch (s->kind) {
	case EACH:
		r = map_each(mp, layer, s);
		break;
	case STACKED:
		r = map_stacked(mp, layer, s);
		break;
	case FUSED:
		r = map_fused(mp, layer, s);
		break;
	default:
		r = map_mxfp4(mp, layer, s);
	}
	if (r == 0 && info->expert_bias)
		r = map_biases(mp, layer, s);
	for (uint32_t e = 0; e < info->router.experts && r == 0 && !mp->nr_missing; e++) {
		r = check_dtype(mp, &layer->experts[e].gate);
		if (r == 0)
			r = check_dtype(mp, &layer->experts[e].up);
		if (r == 0)
			r = check_dtype(mp, &layer->experts[e].down);
	}
	return r;
}

/* ---- the rest of a layer -------------------------------------------------- */

static int map_router(struct mapper *mp, struct model_layer *layer)
{
	struct model_config *c = &mp->m->config;
	const struct router_names *names = c->gguf ? gguf_routers : routers;
	size_t n = c->gguf ? COUNT(gguf_routers) : COUNT(routers);
	const uint64_t dims[2] = { c->info.router.experts, c->info.hidden };
	int r;

	for (size_t i = 0; i < n; i++)
		if (look(mp, names[i].weight, 0, "")) {
			names = &names[i];
			break;
		}
	if (c->selection_by_tensor) {
		c->selection_by_tensor = false;
		c->info.selection_bias = look(mp, names->selection, 0, "") != NULL;
	}
	r = want(mp, &layer->router, 2, dims, names->weight, 0, "");
	if (r == 0 && c->info.router_bias)
		r = want(mp, &layer->router_bias, 1, dims, names->bias, 0, "");
	if (r == 0 && c->info.selection_bias)
		r = want(mp, &layer->selection, 1, dims, names->selection, 0, "");
	if (r == 0)
		r = check_float(mp, layer->router);
	if (r == 0)
		r = check_float(mp, layer->router_bias);
	return r < 0 ? r : check_float(mp, layer->selection);
}

static int map_shared(struct mapper *mp, struct model_layer *layer)
{
	const struct model_config *c = &mp->m->config;
	const struct shared_names *names = c->gguf ? gguf_shareds : shareds;
	size_t n = c->gguf ? COUNT(gguf_shareds) : COUNT(shareds);
	const uint64_t in[2] = { c->info.shared.neurons, c->info.hidden };
	const uint64_t out[2] = { c->info.hidden, c->info.shared.neurons };
	const uint64_t scale[2] = { 1, c->info.hidden };
	const struct ndp_tensor *gate, *up, *down;
	int r;

	if (!c->info.shared.neurons)
		return 0;
	for (size_t i = 0; i < n; i++)
		if (look(mp, names[i].gate, 0, "")) {
			names = &names[i];
			break;
		}
	r = want(mp, &gate, 2, in, names->gate, 0, "");
	if (r == 0)
		r = want(mp, &up, 2, in, names->up, 0, "");
	if (r == 0)
		r = want(mp, &down, 2, out, names->down, 0, "");
	if (r == 0 && c->info.shared_gate)
		r = c->gguf ? want(mp, &layer->shared_gate, 1, scale + 1, names->scale, 0, "") :
			      want(mp, &layer->shared_gate, 2, scale, names->scale, 0, "");
	if (r < 0)
		return r;
	set_plain(&layer->shared.gate, gate, 0, in[0], in[1]);
	set_plain(&layer->shared.up, up, 0, in[0], in[1]);
	set_plain(&layer->shared.down, down, 0, out[0], out[1]);
	r = check_dtype(mp, &layer->shared.gate);
	if (r == 0)
		r = check_dtype(mp, &layer->shared.up);
	if (r == 0)
		r = check_dtype(mp, &layer->shared.down);
	return r < 0 ? r : check_float(mp, layer->shared_gate);
}

static int map_layer(struct mapper *mp)
{
	struct model_layer *layer = &mp->m->layers[mp->layer];
	int r;

	r = map_router(mp, layer);
	if (r == 0)
		r = map_experts(mp, layer);
	if (r == 0)
		r = map_shared(mp, layer);
	return r < 0 ? r : refuse_missing(mp);
}

/* ---- what nobody asked for ------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*(const struct ndp_tensor *const *)a;
	uintptr_t y = (uintptr_t)*(const struct ndp_tensor *const *)b;

	return (x > y) - (x < y);
}

static bool begins(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* "model.layers.12.mlp.gate.weight": 12 and "mlp.gate.weight". */
static bool split_name(const struct mapper *mp, const char *name, uint64_t *layer,
		       const char **rest)
{
	char *end;

	if (!begins(name, mp->prefix))
		return false;
	name += strlen(mp->prefix);
	if (*name < '0' || *name > '9')
		return false;
	*layer = strtoul(name, &end, 10);
	*rest = end + 1;
	return *end == '.';
}

/* Part of what is computed between the two norms of a layer. */
static bool in_mlp(const struct mapper *mp, const char *rest)
{
	if (mp->m->config.gguf)
		return (begins(rest, "ffn_") && !begins(rest, "ffn_norm.")) ||
		       begins(rest, "exp_probs");
	return begins(rest, "mlp.") || begins(rest, "block_sparse_moe.") ||
	       begins(rest, "feed_forward.");
}

/* What a dense layer cannot have. */
static bool of_experts(const char *name)
{
	return strstr(name, "expert") || strstr(name, "_exps") || strstr(name, "_shexp") ||
	       strstr(name, "block_sparse_moe") || strstr(name, "ffn_gate_inp") ||
	       strstr(name, "exp_probs") || strstr(name, "e_score_correction_bias");
}

static int judge_unused(const struct mapper *mp, const struct ndp_tensor *t)
{
	const struct model_config *c = &mp->m->config;
	const char *rest = NULL;
	uint64_t l;

	if (!split_name(mp, t->name, &l, &rest)) {
		if (!of_experts(t->name))
			return 0;
		return ndpi_fail(mp->err, -ENOTSUP,
				 "%s: tensor '%.100s' is about experts and has no "
				 "place in the %s that %s describes",
				 t->file, t->name, c->info.family, c->source);
	}
	if (l >= (uint64_t)c->info.layers + c->extra_layers)
		return ndpi_fail(mp->err, -EINVAL,
				 "%s: tensor '%.100s' is of layer %" PRIu64 ", %s "
				 "says that there are %u",
				 t->file, t->name, l, c->source, c->info.layers);
	if (l >= c->info.layers)
		return 0;
	if (c->moe[l] && (in_mlp(mp, rest) || of_experts(rest)))
		return ndpi_fail(mp->err, -ENOTSUP,
				 "%s: tensor '%.100s' (%u dimensions) has no place "
				 "in the MoE layers of the %s that %s describes: leaving it out "
				 "would change the result",
				 t->file, t->name, t->nr_dims, c->info.family, c->source);
	if (!c->moe[l] && of_experts(rest))
		return ndpi_fail(mp->err, -EINVAL,
				 "%s: tensor '%.100s' is of an expert, by %s layer "
				 "%" PRIu64 " has none",
				 t->file, t->name, c->source, l);
	return 0;
}

static int refuse_unused(struct mapper *mp)
{
	int r = 0;

	qsort(mp->used, mp->nr_used, sizeof(*mp->used), by_address);
	for (size_t i = 0; i < ndp_tensors_count(mp->ts) && r == 0; i++) {
		const struct ndp_tensor *t = ndp_tensors_get(mp->ts, i);

		if (!bsearch(&t, mp->used, mp->nr_used, sizeof(*mp->used), by_address))
			r = judge_unused(mp, t);
	}
	return r;
}

/* A model without its head is saved without "model.". */
static const char *find_prefix(const struct mapper *mp)
{
	if (mp->m->config.gguf)
		return "blk.";
	for (size_t i = 0; i < ndp_tensors_count(mp->ts); i++) {
		const char *name = ndp_tensors_get(mp->ts, i)->name;

		if (begins(name, "layers."))
			return "layers.";
		if (begins(name, "model.layers."))
			break;
	}
	return "model.layers.";
}

int ndpi_map_tensors(struct ndp_model *m, struct ndp_error *err)
{
	struct mapper mp = { .m = m, .ts = m->tensors, .err = err };
	int r = 0;

	if (!ndp_tensors_count(m->tensors))
		return ndpi_fail(err, -ENOENT, "the %s model has no tensors",
				 m->config.info.family);
	m->layers = calloc(m->config.info.layers, sizeof(*m->layers));
	if (!m->layers)
		return ndpi_fail(err, -ENOMEM, "out of memory for %u layers",
				 m->config.info.layers);
	mp.prefix = find_prefix(&mp);
	for (mp.layer = 0; mp.layer < m->config.info.layers && r == 0; mp.layer++)
		if (m->config.moe[mp.layer])
			r = map_layer(&mp);
	if (r == 0)
		r = refuse_unused(&mp);
	free(mp.used);
	return r;
}
