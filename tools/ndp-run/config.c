// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * config.c - see config.h.  Field names and meanings: Hugging Face transformers,
 * MixtralConfig.
 */
#include "config.h"
#include "error.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What the command's 16-bit width of x and y leaves. */
#define MAX_HIDDEN 65472
#define MAX_LAYERS 4096
#define MAX_EXPERTS 65536
#define MAX_VOCAB (1 << 24)
#define MAX_POSITIONS (1 << 24)

struct reader {
	const char *path;
	json_t *root;
	struct ndp_error *err;
};

/* Fields that change nothing in what this program computes. */
static const char *const ignored[] = {
	"_name_or_path", "architectures", "attention_dropout", "bos_token_id", "dtype",
	"initializer_range", "output_router_logits", "pad_token_id", "router_aux_loss_coef",
	"router_jitter_noise", "torch_dtype", "transformers_version", "use_cache",
};

/* Fields that config_load() reads. */
static const char *const known[] = {
	"eos_token_id", "head_dim", "hidden_act", "hidden_size", "intermediate_size",
	"max_position_embeddings", "model_type", "num_attention_heads", "num_experts_per_tok",
	"num_hidden_layers", "num_key_value_heads", "num_local_experts", "rms_norm_eps",
	"rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "vocab_size",
};

static bool listed(const char *name, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(name, list[i]))
			return true;
	return false;
}

#define LISTED(name, list) listed(name, list, sizeof(list) / sizeof(list[0]))

static int refuse_unknown(const struct reader *rd)
{
	const char *name;
	json_t *v;

	json_object_foreach(rd->root, name, v) {
		if (LISTED(name, known) || LISTED(name, ignored) || json_is_null(v) ||
		    json_is_false(v))
			continue;
		return fail(rd->err, -EINVAL,
			    "%s: field '%.60s' is unknown to this program and might change what "
			    "the model computes; remove it if it does not", rd->path, name);
	}
	return 0;
}

static int read_u32(const struct reader *rd, const char *name, uint32_t max, uint32_t *value)
{
	const json_t *v = json_object_get(rd->root, name);
	json_int_t n = json_integer_value(v);

	if (!v)
		return fail(rd->err, -EINVAL, "%s: field '%s' is missing", rd->path, name);
	if (!json_is_integer(v) || n < 1 || n > (json_int_t)max)
		return fail(rd->err, -EINVAL, "%s: field '%s' is no integer from 1 to %u",
			    rd->path, name, max);
	*value = n;
	return 0;
}

static int read_positive(const struct reader *rd, const char *name, float *value)
{
	const json_t *v = json_object_get(rd->root, name);

	if (!v)
		return fail(rd->err, -EINVAL, "%s: field '%s' is missing", rd->path, name);
	*value = json_number_value(v);
	if (!json_is_number(v) || !(*value > 0) || !(*value < 1e30f))
		return fail(rd->err, -EINVAL, "%s: field '%s' is no positive number", rd->path,
			    name);
	return 0;
}

static int want_string(const struct reader *rd, const char *name, const char *wanted)
{
	const char *s = json_string_value(json_object_get(rd->root, name));

	if (!s || strcmp(s, wanted))
		return fail(rd->err, -EINVAL, "%s: field '%s' is '%.60s', this program runs '%s'",
			    rd->path, name, s ? s : "(no string)", wanted);
	return 0;
}

static int read_eos(const struct reader *rd, struct model_config *c)
{
	json_t *v = json_object_get(rd->root, "eos_token_id");
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!v || json_is_null(v))
		return 0;
	if (n > CONFIG_MAX_EOS)
		return fail(rd->err, -EINVAL, "%s: field 'eos_token_id' has %zu entries, at most "
			    "%d are supported", rd->path, n, CONFIG_MAX_EOS);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= (json_int_t)c->vocab)
			return fail(rd->err, -EINVAL,
				    "%s: field 'eos_token_id' is no token of a vocabulary of %u",
				    rd->path, c->vocab);
		c->eos[c->nr_eos++] = json_integer_value(id);
	}
	return 0;
}

static int read_numbers(const struct reader *rd, struct model_config *c)
{
	const struct {
		const char *name;
		uint32_t max;
		uint32_t *value;
	} fields[] = {
		{ "hidden_size", MAX_HIDDEN, &c->hidden },
		{ "num_hidden_layers", MAX_LAYERS, &c->layers },
		{ "num_attention_heads", MAX_HIDDEN, &c->heads },
		{ "num_key_value_heads", MAX_HIDDEN, &c->kv_heads },
		{ "num_local_experts", MAX_EXPERTS, &c->experts },
		{ "num_experts_per_tok", MAX_EXPERTS, &c->experts_per_token },
		{ "intermediate_size", 1 << 24, &c->neurons },
		{ "vocab_size", MAX_VOCAB, &c->vocab },
		{ "max_position_embeddings", MAX_POSITIONS, &c->max_positions },
	};
	int r;

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		r = read_u32(rd, fields[i].name, fields[i].max, fields[i].value);
		if (r < 0)
			return r;
	}
	r = read_positive(rd, "rms_norm_eps", &c->rms_eps);
	if (r < 0)
		return r;
	return read_positive(rd, "rope_theta", &c->rope_theta);
}

int config_check_shape(const struct model_config *c, const char *path, struct ndp_error *err)
{
	if (c->head_dim % 2)
		return fail(err, -EINVAL,
			    "%s: heads of %u elements cannot be rotated in pairs", path,
			    c->head_dim);
	if ((uint64_t)c->heads * c->head_dim > 1 << 20)
		return fail(err, -EINVAL, "%s: %u heads of %u elements are too many", path,
			    c->heads, c->head_dim);
	if (c->heads % c->kv_heads)
		return fail(err, -EINVAL,
			    "%s: 'num_attention_heads' (head_count) %u is no multiple of "
			    "'num_key_value_heads' (head_count_kv) %u", path, c->heads,
			    c->kv_heads);
	if (c->experts_per_token > c->experts)
		return fail(err, -EINVAL,
			    "%s: 'num_experts_per_tok' (expert_used_count) %u is more than "
			    "'num_local_experts' (expert_count) %u", path, c->experts_per_token,
			    c->experts);
	return 0;
}

static int check_shape(const struct reader *rd, struct model_config *c)
{
	const json_t *head_dim = json_object_get(rd->root, "head_dim");
	int r;

	if (head_dim && !json_is_null(head_dim)) {
		r = read_u32(rd, "head_dim", MAX_HIDDEN, &c->head_dim);
		if (r < 0)
			return r;
	} else if (c->hidden % c->heads) {
		return fail(rd->err, -EINVAL,
			    "%s: 'hidden_size' %u is no multiple of 'num_attention_heads' %u",
			    rd->path, c->hidden, c->heads);
	} else {
		c->head_dim = c->hidden / c->heads;
	}
	return config_check_shape(c, rd->path, rd->err);
}

static int check_features(const struct reader *rd, struct model_config *c)
{
	const json_t *window = json_object_get(rd->root, "sliding_window");
	const json_t *scaling = json_object_get(rd->root, "rope_scaling");
	const json_t *tied = json_object_get(rd->root, "tie_word_embeddings");

	if (window && !json_is_null(window) &&
	    (!json_is_integer(window) || json_integer_value(window) < (json_int_t)c->max_positions))
		return fail(rd->err, -EINVAL,
			    "%s: field 'sliding_window' limits attention below "
			    "'max_position_embeddings' %u, which this program does not do",
			    rd->path, c->max_positions);
	if (scaling && !json_is_null(scaling))
		return fail(rd->err, -EINVAL,
			    "%s: field 'rope_scaling' is set, which this program does not do",
			    rd->path);
	if (tied && !json_is_boolean(tied))
		return fail(rd->err, -EINVAL, "%s: field 'tie_word_embeddings' is neither true "
			    "nor false", rd->path);
	c->tied = json_is_true(tied);
	return 0;
}

static int read_config(const struct reader *rd, struct model_config *c)
{
	int r;

	if (!json_is_object(rd->root))
		return fail(rd->err, -EINVAL, "%s: is no JSON object", rd->path);
	r = want_string(rd, "model_type", "mixtral");
	if (r < 0)
		return r;
	r = want_string(rd, "hidden_act", "silu");
	if (r < 0)
		return r;
	r = read_numbers(rd, c);
	if (r < 0)
		return r;
	r = check_shape(rd, c);
	if (r < 0)
		return r;
	r = check_features(rd, c);
	if (r < 0)
		return r;
	r = read_eos(rd, c);
	if (r < 0)
		return r;
	return refuse_unknown(rd);
}

int config_load(struct model_config *c, const char *dir, struct ndp_error *err)
{
	struct stat st;
	struct reader rd = { .err = err };
	json_error_t jerr;
	char *path;
	int r;

	if (stat(dir, &st) == 0 && S_ISREG(st.st_mode))
		return config_load_gguf(c, dir, err);
	if (asprintf(&path, "%s/config.json", dir) < 0)
		return fail(err, -ENOMEM, "%s: out of memory", dir);
	memset(c, 0, sizeof(*c));
	rd.path = path;
	errno = 0;
	rd.root = json_load_file(path, JSON_REJECT_DUPLICATES, &jerr);
	if (!rd.root && json_error_code(&jerr) == json_error_cannot_open_file)
		r = fail(err, errno ? -errno : -ENOENT,
			 "%s: cannot be opened (%s); --model wants a folder in the layout of "
			 "Hugging Face, or a GGUF file", path, strerror(errno ? errno : ENOENT));
	else if (!rd.root)
		r = fail(err, -EINVAL, "%s: %.200s (line %d)", path, jerr.text, jerr.line);
	else
		r = read_config(&rd, c);
	json_decref(rd.root);
	free(path);
	return r;
}

bool config_is_eos(const struct model_config *c, uint32_t token)
{
	for (uint32_t i = 0; i < c->nr_eos; i++)
		if (c->eos[i] == token)
			return true;
	return false;
}
