// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * files.c - config.json, safetensors and GGUF files of a synthetic model.
 *
 * Fields of config.json: transformers' configuration_<family>.py.  GGUF: docs/gguf.md of
 * ggml (header, key/value pairs, tensor infos, data aligned to 32), split.* keys as
 * llama.cpp's gguf-split writes them.
 */
#include "mkmodel.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const mk_family_names[MK_FAMILIES] = {
	"mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe",
	"gpt_oss",
};
const char *const mk_archs[MK_FAMILIES] = {
	"llama", "olmoe", "qwen2moe", "qwen3moe", "deepseek2", "deepseek2", "glm4moe", "gpt-oss",
};

int mk_fail(struct ndp_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	return code;
}

int mk_create(FILE **f, const char *dir, const char *name, struct ndp_error *err)
{
	char *path;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return mk_fail(err, -ENOMEM, "out of memory");
	*f = fopen(path, "wxe");
	free(path);
	if (!*f)
		return mk_fail(err, -errno, "%s/%s cannot be created: %s", dir, name,
			       strerror(errno));
	setvbuf(*f, NULL, _IOFBF, 1 << 20);
	return 0;
}

/* What was written is only known to be there once the file is closed. */
int mk_finish(FILE *f, const char *dir, const char *name, int r, struct ndp_error *err)
{
	if (r == 0 && ferror(f))
		r = -EIO;
	if (fclose(f) && r == 0)
		r = -errno;
	return r < 0 ? mk_fail(err, r, "%s/%s cannot be written: %s", dir, name, strerror(-r)) : 0;
}

/* ---- config.json ------------------------------------------------------------- */

static void set_u32(json_t *o, const char *key, uint32_t v)
{
	json_object_set_new(o, key, json_integer(v));
}

static void deepseek_config(json_t *o, const struct mk_model *m)
{
	set_u32(o, "n_routed_experts", m->experts);
	set_u32(o, "moe_intermediate_size", m->neurons);
	if (m->shared)
		set_u32(o, "n_shared_experts", m->shared);
	else if (m->family != MK_DEEPSEEK2)
		set_u32(o, "n_shared_experts", 0);
	set_u32(o, "n_group", m->groups);
	set_u32(o, "topk_group", m->keep_groups);
	set_u32(o, "first_k_dense_replace", m->dense);
	json_object_set_new(o, "norm_topk_prob", json_boolean(m->renormalize));
	json_object_set_new(o, "routed_scaling_factor", json_real(m->scale));
	if (m->family == MK_GLM4)
		return;
	set_u32(o, "moe_layer_freq", 1);
	json_object_set_new(o, "scoring_func", json_string(m->sigmoid ? "sigmoid" : "softmax"));
	json_object_set_new(o, "topk_method",
			    json_string(m->sigmoid ? "noaux_tc" :
					m->groups > 1 ? "group_limited_greedy" : "greedy"));
}

static void qwen_config(json_t *o, const struct mk_model *m)
{
	json_t *dense = json_array();

	set_u32(o, "num_experts", m->experts);
	set_u32(o, "moe_intermediate_size", m->neurons);
	set_u32(o, "decoder_sparse_step", 1);
	for (uint32_t l = 0; l < m->dense; l++)
		json_array_append_new(dense, json_integer(l));
	json_object_set_new(o, "mlp_only_layers", dense);
	json_object_set_new(o, "norm_topk_prob", json_boolean(m->renormalize));
	if (m->family == MK_QWEN2)
		set_u32(o, "shared_expert_intermediate_size", m->shared * m->neurons);
}

static void family_config(json_t *o, const struct mk_model *m)
{
	switch (m->family) {
	case MK_QWEN2:
	case MK_QWEN3:
		qwen_config(o, m);
		break;
	case MK_OLMOE:
		set_u32(o, "num_experts", m->experts);
		json_object_set_new(o, "norm_topk_prob", json_boolean(m->renormalize));
		break;
	case MK_GPT_OSS:
		set_u32(o, "num_local_experts", m->experts);
		set_u32(o, "experts_per_token", m->top_k);
		json_object_set_new(o, "swiglu_limit", json_real(7));
		if (m->dtype == MK_MXFP4)
			json_object_set_new(o, "quantization_config",
					    json_pack("{s:s}", "quant_method", "mxfp4"));
		break;
	case MK_MIXTRAL:
		set_u32(o, "num_local_experts", m->experts);
		break;
	default:
		deepseek_config(o, m);
	}
}

int mk_write_config(const char *dir, const struct mk_model *m, struct ndp_error *err)
{
	json_t *o = json_object();
	FILE *f;
	int r;

	json_object_set_new(o, "model_type", json_string(mk_family_names[m->family]));
	json_object_set_new(o, "hidden_act", json_string("silu"));
	set_u32(o, "hidden_size", m->hidden);
	set_u32(o, "intermediate_size", m->neurons);
	set_u32(o, "num_experts_per_tok", m->top_k);
	set_u32(o, "num_hidden_layers", m->layers);
	family_config(o, m);
	r = mk_create(&f, dir, "config.json", err);
	if (r == 0) {
		if (json_dumpf(o, f, JSON_INDENT(2)) < 0 || fputc('\n', f) == EOF)
			r = -EIO;
		r = mk_finish(f, dir, "config.json", r, err);
	}
	json_decref(o);
	return r;
}

/* ---- safetensors -------------------------------------------------------------- */

static const char *hf_dtype(const struct mk_tensor *t)
{
	static const char *const names[] = { [MK_BF16] = "BF16", [MK_F32] = "F32",
					     [MK_F16] = "F16" };

	return t->part == MK_WHOLE ? names[t->dtype] : "U8";
}

static void shard_name(char name[64], const struct mk_model *m, uint32_t shard)
{
	const char *ext = m->gguf ? "gguf" : "safetensors";

	if (m->shards == 1)
		snprintf(name, 64, "model.%s", ext);
	else
		snprintf(name, 64, "model-%05u-of-%05u.%s", shard + 1, m->shards, ext);
}

/* The header of one file; NULL: no memory. */
static char *hf_header(const struct mk_plan *plan, uint32_t shard)
{
	json_t *o = json_object();
	uint64_t at = 0;
	char *text;

	json_object_set_new(o, "__metadata__", json_pack("{s:s}", "format", "pt"));
	for (size_t i = 0; i < plan->n; i++) {
		const struct mk_tensor *t = &plan->tensors[i];
		json_t *shape = json_array();

		if (t->shard != shard) {
			json_decref(shape);
			continue;
		}
		for (uint32_t d = 0; d < t->nr_dims; d++)
			json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
		json_object_set_new(o, t->name,
				    json_pack("{s:s, s:o, s:[I, I]}", "dtype", hf_dtype(t), "shape",
					      shape, "data_offsets", (json_int_t)at,
					      (json_int_t)(at + t->bytes)));
		at += t->bytes;
	}
	text = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	return text;
}

static int put_header(FILE *f, const char *text)
{
	uint64_t n = strlen(text), padded = (n + 7) & ~(uint64_t)7;
	uint8_t length[8];

	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)(padded >> 8 * i);
	if (fwrite(length, 1, 8, f) != 8 || fwrite(text, 1, n, f) != n)
		return -EIO;
	for (; n < padded; n++)
		if (fputc(' ', f) == EOF)
			return -EIO;
	return 0;
}

static int write_shard(FILE *f, const struct mk_model *m, const struct mk_plan *plan,
		       uint32_t shard)
{
	char *text = hf_header(plan, shard);
	int r = text ? put_header(f, text) : -ENOMEM;

	free(text);
	for (size_t i = 0; i < plan->n && r == 0; i++)
		if (plan->tensors[i].shard == shard)
			r = mk_write_tensor(f, m, &plan->tensors[i]);
	return r;
}

static int write_index(const char *dir, const struct mk_model *m, const struct mk_plan *plan,
		       struct ndp_error *err)
{
	static const char file[] = "model.safetensors.index.json";
	json_t *map = json_object(), *o;
	json_int_t total = 0;
	FILE *f;
	int r;

	for (size_t i = 0; i < plan->n; i++) {
		char name[64];

		shard_name(name, m, plan->tensors[i].shard);
		json_object_set_new(map, plan->tensors[i].name, json_string(name));
		total += (json_int_t)plan->tensors[i].bytes;
	}
	o = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
	r = mk_create(&f, dir, file, err);
	if (r == 0) {
		if (json_dumpf(o, f, JSON_INDENT(2)) < 0)
			r = -EIO;
		r = mk_finish(f, dir, file, r, err);
	}
	json_decref(o);
	return r;
}

int mk_write_safetensors(const char *dir, const struct mk_model *m, const struct mk_plan *plan,
			 struct ndp_error *err)
{
	int r = mk_write_config(dir, m, err);

	for (uint32_t s = 0; s < m->shards && r == 0; s++) {
		char name[64];
		FILE *f;

		shard_name(name, m, s);
		r = mk_create(&f, dir, name, err);
		if (r == 0)
			r = mk_finish(f, dir, name, write_shard(f, m, plan, s), err);
	}
	return r == 0 && m->index ? write_index(dir, m, plan, err) : r;
}

/* ---- GGUF ----------------------------------------------------------------------- */

#define ALIGNMENT 32

enum { GGUF_U16 = 2, GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8 };

static void put(FILE *f, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		fputc((int)(v >> 8 * i & 0xff), f);
}

static void put_string(FILE *f, const char *s)
{
	put(f, strlen(s), 8);
	fputs(s, f);
}

/* Counts pairs when @f is NULL, so that the header can say how many there are. */
struct pairs {
	FILE *f;
	const char *arch;
	uint64_t n;
};

static bool put_key(struct pairs *p, const char *name, int type)
{
	char key[96];

	p->n++;
	if (!p->f)
		return false;
	if (strchr(name, '.'))
		snprintf(key, sizeof(key), "%s", name);
	else
		snprintf(key, sizeof(key), "%s.%s", p->arch, name);
	put_string(p->f, key);
	put(p->f, (uint64_t)type, 4);
	return true;
}

static void pair_u32(struct pairs *p, const char *name, uint32_t v)
{
	if (put_key(p, name, GGUF_U32))
		put(p->f, v, 4);
}

static void pair_string(struct pairs *p, const char *name, const char *v)
{
	if (put_key(p, name, GGUF_STRING))
		put_string(p->f, v);
}

static void pair_float(struct pairs *p, const char *name, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	if (put_key(p, name, GGUF_F32))
		put(p->f, bits, 4);
}

static void pair_bool(struct pairs *p, const char *name, bool v)
{
	if (put_key(p, name, GGUF_BOOL))
		put(p->f, v, 1);
}

static void pair_split(struct pairs *p, uint32_t shard, uint32_t shards, size_t tensors)
{
	if (put_key(p, "split.no", GGUF_U16))
		put(p->f, shard, 2);
	if (put_key(p, "split.count", GGUF_U16))
		put(p->f, shards, 2);
	if (put_key(p, "split.tensors.count", GGUF_I32))
		put(p->f, tensors, 4);
}

static void model_pairs(struct pairs *p, const struct mk_model *m)
{
	const bool deepseek = m->family == MK_DEEPSEEK2 || m->family == MK_DEEPSEEK3 ||
			      m->family == MK_GLM4;

	pair_string(p, "general.architecture", p->arch);
	pair_string(p, "general.name", "synthetic, by ndp-mkmodel");
	pair_u32(p, "block_count", m->layers);
	pair_u32(p, "embedding_length", m->hidden);
	pair_u32(p, "feed_forward_length", m->neurons);
	pair_u32(p, "expert_count", m->experts);
	pair_u32(p, "expert_used_count", m->top_k);
	if (m->family != MK_MIXTRAL && m->family != MK_OLMOE)
		pair_u32(p, "expert_feed_forward_length", m->neurons);
	if (m->family == MK_QWEN2)
		pair_u32(p, "expert_shared_feed_forward_length", m->shared * m->neurons);
	if (!deepseek)
		return;
	pair_u32(p, "leading_dense_block_count", m->dense);
	pair_u32(p, "expert_shared_count", m->shared);
	pair_float(p, "expert_weights_scale", m->scale);
	pair_bool(p, "expert_weights_norm", m->renormalize);
	pair_u32(p, "expert_gating_func", m->sigmoid ? 2 : 1);
	pair_u32(p, "expert_group_count", m->groups);
	pair_u32(p, "expert_group_used_count", m->keep_groups);
}

static void all_pairs(struct pairs *p, const struct mk_model *m, const struct mk_plan *plan,
		      uint32_t shard)
{
	if (shard == 0)
		model_pairs(p, m);
	if (m->shards > 1)
		pair_split(p, shard, m->shards, plan->n);
}

static uint32_t gguf_type(enum mk_dtype dtype)
{
	static const uint8_t types[MK_DTYPES] = { [MK_F32] = 0, [MK_F16] = 1, [MK_Q4_0] = 2,
						  [MK_Q8_0] = 8, [MK_BF16] = 30, [MK_MXFP4] = 39 };

	return types[dtype];
}

static uint64_t aligned(uint64_t n)
{
	return (n + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
}

static void put_infos(FILE *f, const struct mk_plan *plan, uint32_t shard)
{
	uint64_t at = 0;

	for (size_t i = 0; i < plan->n; i++) {
		const struct mk_tensor *t = &plan->tensors[i];

		if (t->shard != shard)
			continue;
		put_string(f, t->name);
		put(f, t->nr_dims, 4);
		for (uint32_t d = t->nr_dims; d > 0; d--)
			put(f, t->dims[d - 1], 8);
		put(f, gguf_type(t->dtype), 4);
		put(f, at, 8);
		at = aligned(at + t->bytes);
	}
}

static int write_gguf_shard(FILE *f, const struct mk_model *m, const struct mk_plan *plan,
			    uint32_t shard)
{
	struct pairs p = { .arch = mk_archs[m->family] };
	uint64_t n = 0;
	long at;
	int r = 0;

	for (size_t i = 0; i < plan->n; i++)
		n += plan->tensors[i].shard == shard;
	all_pairs(&p, m, plan, shard);
	fputs("GGUF", f);
	put(f, 3, 4);
	put(f, n, 8);
	put(f, p.n, 8);
	p.f = f;
	all_pairs(&p, m, plan, shard);
	put_infos(f, plan, shard);
	at = ftell(f);
	for (uint64_t pad = aligned((uint64_t)at) - (uint64_t)at; pad; pad--)
		fputc(0, f);
	for (size_t i = 0; i < plan->n && r == 0; i++) {
		const struct mk_tensor *t = &plan->tensors[i];

		if (t->shard != shard)
			continue;
		r = mk_write_tensor(f, m, t);
		for (uint64_t pad = aligned(t->bytes) - t->bytes; pad; pad--)
			fputc(0, f);
	}
	return r;
}

int mk_write_gguf(const char *dir, const struct mk_model *m, const struct mk_plan *plan,
		  struct ndp_error *err)
{
	int r = 0;

	for (uint32_t s = 0; s < m->shards && r == 0; s++) {
		char name[64];
		FILE *f;

		shard_name(name, m, s);
		r = mk_create(&f, dir, name, err);
		if (r == 0)
			r = mk_finish(f, dir, name, write_gguf_shard(f, m, plan, s), err);
	}
	return r;
}
