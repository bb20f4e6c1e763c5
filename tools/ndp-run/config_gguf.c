// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * config_gguf.c - the shape of a model from the header of a GGUF file; see config.h.
 *
 * Keys and what they hold: gguf-py/gguf/constants.py of llama.cpp.  A Mixtral is a
 * "llama" with experts there.  What the library reads of experts it checks itself.
 */
#include "config.h"
#include "error.h"

#include <ndp/tensors.h>

#include <errno.h>
#include <string.h>

#define MAX_SIZE (1u << 24)

struct reader {
	const char *path;
	const struct ndp_tensors *ts;
	struct ndp_error *err;
};

/* Under "llama.": what is read here or by the library, and what changes nothing. */
static const char *const known[] = {
	"context_length", "embedding_length", "block_count", "feed_forward_length",
	"expert_feed_forward_length", "expert_count", "expert_used_count",
	"attention.head_count", "attention.head_count_kv", "attention.key_length",
	"attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
	"rope.freq_base", "vocab_size",
};

static int refuse_unknown(const struct reader *rd)
{
	for (size_t i = 0; i < ndp_tensors_meta_count(rd->ts); i++) {
		const char *key = ndp_tensors_meta_get(rd->ts, i)->key;
		size_t k = 0;

		if (strncmp(key, "llama.", 6))
			continue;
		while (k < sizeof(known) / sizeof(known[0]) && strcmp(key + 6, known[k]))
			k++;
		if (k == sizeof(known) / sizeof(known[0]))
			return fail(rd->err, -EINVAL, "%s: key '%.80s' is unknown to this program "
				    "and might change what the model computes", rd->path, key);
	}
	return 0;
}

static int read_u32(const struct reader *rd, const char *key, uint32_t min, uint32_t max,
		    uint32_t *value)
{
	uint64_t v;
	int r = ndp_tensors_meta_u64(rd->ts, key, 0, &v, rd->err);

	if (r < 0)
		return r;
	if (v < min || v > max)
		return fail(rd->err, -EINVAL, "%s: key '%s' is %llu, wanted %u to %u", rd->path,
			    key, (unsigned long long)v, min, max);
	*value = (uint32_t)v;
	return 0;
}

static int read_positive(const struct reader *rd, const char *key, float *value)
{
	double v;
	int r = ndp_tensors_meta_f64(rd->ts, key, 0, &v, rd->err);

	if (r < 0)
		return r;
	if (!(v > 0) || !(v < 1e30))
		return fail(rd->err, -EINVAL, "%s: key '%s' is no positive number", rd->path, key);
	*value = (float)v;
	return 0;
}

static int read_numbers(const struct reader *rd, struct model_config *c)
{
	const struct {
		const char *key;
		uint32_t max;
		uint32_t *value;
	} numbers[] = {
		{ "llama.embedding_length", 65472, &c->hidden },
		{ "llama.block_count", 4096, &c->layers },
		{ "llama.attention.head_count", 65472, &c->heads },
		{ "llama.attention.head_count_kv", 65472, &c->kv_heads },
		{ "llama.expert_count", 65536, &c->experts },
		{ "llama.expert_used_count", 65536, &c->experts_per_token },
		{ "llama.context_length", MAX_SIZE, &c->max_positions },
	};
	int r;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		r = read_u32(rd, numbers[i].key, 1, numbers[i].max, numbers[i].value);
		if (r < 0)
			return r;
	}
	r = read_u32(rd, ndp_tensors_meta_find(rd->ts, "llama.expert_feed_forward_length") ?
		     "llama.expert_feed_forward_length" : "llama.feed_forward_length", 1, MAX_SIZE,
		     &c->neurons);
	if (r == 0)
		r = read_positive(rd, "llama.attention.layer_norm_rms_epsilon", &c->rms_eps);
	if (r == 0 && !ndp_tensors_meta_find(rd->ts, "llama.rope.freq_base"))
		c->rope_theta = 10000; /* what llama.cpp takes then */
	else if (r == 0)
		r = read_positive(rd, "llama.rope.freq_base", &c->rope_theta);
	return r;
}

/* The width of heads is told three times over, or not at all. */
static int read_head_dim(const struct reader *rd, struct model_config *c)
{
	static const char *const keys[] = {
		"llama.attention.key_length", "llama.attention.value_length",
		"llama.rope.dimension_count",
	};
	bool told = false;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint32_t n;
		int r;

		if (!ndp_tensors_meta_find(rd->ts, keys[i]))
			continue;
		r = read_u32(rd, keys[i], 2, 65472, &n);
		if (r < 0)
			return r;
		if (told && n != c->head_dim)
			return fail(rd->err, -EINVAL, "%s: key '%s' is %u, another one %u: heads "
				    "of one width, rotated as a whole, are what this program does",
				    rd->path, keys[i], n, c->head_dim);
		c->head_dim = n;
		told = true;
	}
	if (!told && c->hidden % c->heads)
		return fail(rd->err, -EINVAL, "%s: %u columns are no multiple of %u heads",
			    rd->path, c->hidden, c->heads);
	if (!told)
		c->head_dim = c->hidden / c->heads;
	return 0;
}

static int read_vocabulary(const struct reader *rd, struct model_config *c)
{
	static const char eos[] = "tokenizer.ggml.eos_token_id";
	const struct ndp_tensor *t = ndp_tensors_find(rd->ts, "token_embd.weight");

	if (!t || t->nr_dims != 2 || !t->dims[0] || t->dims[0] > MAX_SIZE)
		return fail(rd->err, -EINVAL, "%s: tensor 'token_embd.weight' is missing, or is no "
			    "matrix of 1 to %u rows", rd->path, MAX_SIZE);
	c->vocab = (uint32_t)t->dims[0];
	c->tied = !ndp_tensors_find(rd->ts, "output.weight");
	if (!ndp_tensors_meta_find(rd->ts, eos))
		return 0;
	c->nr_eos = 1;
	return read_u32(rd, eos, 0, c->vocab - 1, &c->eos[0]);
}

static int read_header(const struct reader *rd, struct model_config *c)
{
	const char *name;
	size_t n;
	int r = ndp_tensors_meta_string(rd->ts, "general.architecture", 0, &name, &n, rd->err);

	if (r < 0)
		return r;
	if (n != 5 || memcmp(name, "llama", 5))
		return fail(rd->err, -EINVAL, "%s: key 'general.architecture' is '%.*s', this "
			    "program runs 'llama' with experts (Mixtral)", rd->path,
			    (int)(n < 60 ? n : 60), name);
	r = read_numbers(rd, c);
	if (r == 0)
		r = read_head_dim(rd, c);
	if (r == 0)
		r = read_vocabulary(rd, c);
	return r < 0 ? r : refuse_unknown(rd);
}

int config_load_gguf(struct model_config *c, const char *path, struct ndp_error *err)
{
	struct reader rd = { .path = path, .err = err };
	struct ndp_tensors *ts;
	int r = ndp_tensors_open(&ts, path, err);

	if (r < 0)
		return r;
	memset(c, 0, sizeof(*c));
	c->gguf = true;
	rd.ts = ts;
	if (strcmp(ndp_tensors_format(ts), "gguf"))
		r = fail(err, -EINVAL, "%s: is no GGUF file; --model wants the folder that has it "
			 "and config.json", path);
	else
		r = read_header(&rd, c);
	ndp_tensors_close(ts);
	return r < 0 ? r : config_check_shape(c, path, err);
}
