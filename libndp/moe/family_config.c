// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * family_config.c - what a model is, out of its config.json.
 *
 * Fields and defaults: Hugging Face transformers, configuration_<family>.py and the
 * routers of modeling_<family>.py (mixtral, qwen2_moe, qwen3_moe, olmoe, glm4_moe,
 * gpt_oss, deepseek_v2, deepseek_v3); for DeepSeek also the modeling_deepseek.py that
 * is published with the weights.
 *
 * Sizes must be said; flags take the default of the family's class.  A field that
 * sounds like it changes how experts are computed and that this file does not know is
 * refused by name: guessing would give plausible nonsense.  All others are no concern of
 * the experts.
 */
#include "model-internal.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <ndp/device.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_CONFIG_BYTES 10000000

struct reader {
	const char *path;
	json_t *root;
	struct model_config *c;
	struct ndp_error *err;
};

/* A family, by model_type.  What differs only in names and defaults is in this table. */
struct family {
	const char *name;
	const char *width;	/* field with the neurons of an expert */
	bool renormalize;	/* what it does when norm_topk_prob cannot be set */
	bool norm_default;	/* norm_topk_prob when it is not there */
	const char *fields;	/* fields about experts that it may have, between spaces */
	int (*read)(struct reader *rd);
};

/* Absent and null are the same: transformers writes null for None. */
static json_t *get(const struct reader *rd, const char *key)
{
	json_t *v = json_object_get(rd->root, key);

	return json_is_null(v) ? NULL : v;
}

#define bad(rd, fmt, ...) \
	ndpi_fail((rd)->err, -EINVAL, "%s: " fmt, (rd)->path, ##__VA_ARGS__)
#define not_done(rd, fmt, ...) \
	ndpi_fail((rd)->err, -ENOTSUP, "%s: " fmt, (rd)->path, ##__VA_ARGS__)

static int get_u32(const struct reader *rd, const char *key, uint32_t min, uint32_t max,
		   uint32_t *value)
{
	const json_t *v = get(rd, key);

	if (!v)
		return bad(rd, "'%s' is missing: wanted an integer from %u to %u", key, min, max);
	if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)min ||
	    json_integer_value(v) > (json_int_t)max) {
		char *text = json_dumps(v, JSON_ENCODE_ANY);

		bad(rd, "'%s' is %.60s: wanted an integer from %u to %u", key, text ? text : "?",
		    min, max);
		free(text);
		return -EINVAL;
	}
	*value = json_integer_value(v);
	return 0;
}

static int get_u32_or(const struct reader *rd, const char *key, uint32_t min, uint32_t max,
		      uint32_t otherwise, uint32_t *value)
{
	*value = otherwise;
	return get(rd, key) ? get_u32(rd, key, min, max, value) : 0;
}

static int get_bool_or(const struct reader *rd, const char *key, bool otherwise, bool *value)
{
	const json_t *v = get(rd, key);

	*value = otherwise;
	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return bad(rd, "'%s' is neither true nor false", key);
	*value = json_is_true(v);
	return 0;
}

static int get_float_or(const struct reader *rd, const char *key, float otherwise, float *value)
{
	const json_t *v = get(rd, key);
	double d;

	*value = otherwise;
	if (!v)
		return 0;
	d = json_number_value(v);
	if (!json_is_number(v) || !(d > 0) || !isfinite((float)d))
		return bad(rd, "'%s' is no number above 0 of single precision", key);
	*value = (float)d;
	return 0;
}

static int get_string_or(const struct reader *rd, const char *key, const char *otherwise,
			 const char **value)
{
	const json_t *v = get(rd, key);

	*value = otherwise;
	if (!v)
		return 0;
	if (!json_is_string(v))
		return bad(rd, "'%s' is no string", key);
	*value = json_string_value(v);
	return 0;
}

/* ---- which layers have experts ------------------------------------------ */

/* DeepSeek, GLM: dense ones first; then those whose number @freq divides. */
static int layers_after_dense(struct reader *rd, uint32_t dense_default)
{
	struct model_config *c = rd->c;
	uint32_t dense, freq;
	int r;

	r = get_u32_or(rd, "first_k_dense_replace", 0, MODEL_MAX_LAYERS, dense_default, &dense);
	if (r == 0)
		r = get_u32_or(rd, "moe_layer_freq", 1, MODEL_MAX_LAYERS, 1, &freq);
	if (r < 0)
		return r;
	for (uint32_t l = 0; l < c->info.layers; l++)
		c->moe[l] = l >= dense && l % freq == 0;
	return 0;
}

/* Qwen: every @decoder_sparse_step-th, but those of @mlp_only_layers. */
static int layers_by_step(struct reader *rd)
{
	struct model_config *c = rd->c;
	const json_t *dense = get(rd, "mlp_only_layers");
	uint32_t step;
	int r;

	r = get_u32_or(rd, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1, &step);
	if (r < 0)
		return r;
	for (uint32_t l = 0; l < c->info.layers; l++)
		c->moe[l] = (l + 1) % step == 0;
	if (dense && !json_is_array(dense))
		return bad(rd, "'mlp_only_layers' is no array");
	for (size_t i = 0; i < json_array_size(dense); i++) {
		const json_t *v = json_array_get(dense, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return bad(rd, "'mlp_only_layers'[%zu] is no layer number", i);
		if (json_integer_value(v) < c->info.layers)
			c->moe[json_integer_value(v)] = false;
	}
	return 0;
}

/* ---- families ------------------------------------------------------------- */

static int read_plain(struct reader *rd)
{
	for (uint32_t l = 0; l < rd->c->info.layers; l++)
		rd->c->moe[l] = true;
	return 0;
}

static int read_qwen2(struct reader *rd)
{
	struct ndp_model_info *info = &rd->c->info;
	int r = get_u32(rd, "shared_expert_intermediate_size", 1, MODEL_MAX_NEURONS,
			&info->shared.neurons);

	info->shared_gate = true;
	return r < 0 ? r : layers_by_step(rd);
}

/*
 * gpt_oss: the softmax is over the chosen logits, which is what a softmax over all of
 * them and then the chosen ones renormalised gives.  swiglu_limit is in config.json;
 * 1.702 is in the code of every implementation and in no file.
 */
static int read_gpt_oss(struct reader *rd)
{
	struct ndp_model_info *info = &rd->c->info;
	uint32_t same;
	int r;

	info->act = NDP_ACT_CLAMPED_SWIGLU;
	info->alpha = 1.702f;
	info->expert_bias = true;
	info->router_bias = true;
	rd->c->fused = MODEL_FUSED_INTERLEAVED;
	rd->c->transposed = true;
	r = get_float_or(rd, "swiglu_limit", 7, &info->limit);
	if (r == 0)
		r = get_u32_or(rd, "experts_per_token", 1, MODEL_MAX_EXPERTS, info->router.top_k,
			       &same);
	if (r < 0)
		return r;
	if (same != info->router.top_k)
		return bad(rd, "'experts_per_token' is %u and 'num_experts_per_tok' is %u", same,
			   info->router.top_k);
	return read_plain(rd);
}

/* Groups that are chosen first, by the method's own name. */
static int read_groups(struct reader *rd, const char *method)
{
	struct ndp_router *router = &rd->c->info.router;
	int r;

	if (!strcmp(method, "group_limited_greedy") && !get(rd, "n_group"))
		return bad(rd, "'topk_method' is group_limited_greedy and 'n_group' is missing");
	r = get_u32_or(rd, "n_group", 1, MODEL_MAX_EXPERTS, 1, &router->groups);
	if (r == 0 && router->groups > 1 && !get(rd, "topk_group"))
		return bad(rd, "'n_group' is %u and 'topk_group' is missing", router->groups);
	if (r == 0)
		r = get_u32_or(rd, "topk_group", 1, MODEL_MAX_EXPERTS, 1, &router->keep_groups);
	if (r < 0)
		return r;
	if (!strcmp(method, "greedy")) {
		router->groups = 1;
		router->keep_groups = 1;
	}
	router->group_score = strcmp(method, "noaux_tc") ? NDP_GROUP_MAX : NDP_GROUP_TOP2_SUM;
	rd->c->info.selection_bias = !strcmp(method, "noaux_tc");
	return 0;
}

/* What DeepSeek-V2, -V3 and GLM-4.5 have in common. */
static int read_deepseek_like(struct reader *rd, const char *scoring, const char *method,
			      uint32_t shared_default)
{
	struct ndp_model_info *info = &rd->c->info;
	uint32_t shared;
	int r;

	if (!strcmp(scoring, "sigmoid"))
		info->router.scoring = NDP_SCORE_SIGMOID;
	else if (strcmp(scoring, "softmax"))
		return not_done(rd, "'scoring_func' is '%.40s': wanted softmax or sigmoid",
				scoring);
	if (strcmp(method, "greedy") && strcmp(method, "group_limited_greedy") &&
	    strcmp(method, "noaux_tc"))
		return not_done(rd, "'topk_method' is '%.40s': wanted greedy, "
				"group_limited_greedy or noaux_tc", method);
	r = read_groups(rd, method);
	if (r == 0)
		r = get_float_or(rd, "routed_scaling_factor", 1, &info->router.scale);
	if (r == 0)
		r = get_u32_or(rd, "n_shared_experts", 0, MODEL_MAX_EXPERTS, shared_default,
			       &shared);
	if (r == 0)
		r = get_u32_or(rd, "num_nextn_predict_layers", 0, MODEL_MAX_LAYERS, 0,
			       &rd->c->extra_layers);
	if (r < 0)
		return r;
	if (__builtin_mul_overflow(shared, info->routed.neurons, &info->shared.neurons))
		return bad(rd, "'n_shared_experts' is %u: together they have too many neurons",
			   shared);
	return 0;
}

/*
 * deepseek_v2.  Where norm_topk_prob is true the weights are normalised, then scaled: so
 * do the code published later (with DeepSeek-VL2, -V3) and the inference engines; the
 * first one left the factor out then, and no model that it came with has both.
 */
static int read_deepseek_v2(struct reader *rd)
{
	const char *scoring, *method;
	int r;

	r = get_string_or(rd, "scoring_func", "softmax", &scoring);
	if (r == 0)
		r = get_string_or(rd, "topk_method", "greedy", &method);
	if (r == 0)
		r = read_deepseek_like(rd, scoring, method, 0);
	return r < 0 ? r : layers_after_dense(rd, 0);
}

/*
 * deepseek_v3.  The defaults of its class are those of one model of 256 experts; another
 * model that leaves them out is more likely an oversight than that, so they must be said.
 */
static int read_deepseek_v3(struct reader *rd)
{
	static const char *const needed[] = { "n_group", "topk_group", "routed_scaling_factor",
					      "first_k_dense_replace" };
	const char *scoring, *method;
	int r;

	r = get_string_or(rd, "scoring_func", "sigmoid", &scoring);
	if (r == 0)
		r = get_string_or(rd, "topk_method", "noaux_tc", &method);
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) && r == 0; i++)
		if (!get(rd, needed[i]))
			r = bad(rd, "'%s' is missing", needed[i]);
	if (r == 0)
		r = read_deepseek_like(rd, scoring, method, 1);
	return r < 0 ? r : layers_after_dense(rd, 0);
}

static int read_glm4(struct reader *rd)
{
	int r = read_deepseek_like(rd, "sigmoid", "noaux_tc", 1);

	return r < 0 ? r : layers_after_dense(rd, 1);
}

#define DEEPSEEK_FIELDS " n_routed_experts moe_intermediate_size n_shared_experts n_group " \
	"topk_group topk_method scoring_func norm_topk_prob routed_scaling_factor " \
	"first_k_dense_replace moe_layer_freq num_nextn_predict_layers "

static const struct family families[] = {
	{ "mixtral", "intermediate_size", true, true, " ", read_plain },
	{ "olmoe", "intermediate_size", false, false, " norm_topk_prob ", read_plain },
	{ "qwen2_moe", "moe_intermediate_size", false, false, " moe_intermediate_size "
	  "norm_topk_prob shared_expert_intermediate_size decoder_sparse_step mlp_only_layers ",
	  read_qwen2 },
	{ "qwen3_moe", "moe_intermediate_size", false, false, " moe_intermediate_size "
	  "norm_topk_prob decoder_sparse_step mlp_only_layers ", layers_by_step },
	{ "deepseek_v2", "moe_intermediate_size", false, false, DEEPSEEK_FIELDS,
	  read_deepseek_v2 },
	{ "deepseek_v3", "moe_intermediate_size", false, true, DEEPSEEK_FIELDS,
	  read_deepseek_v3 },
	{ "glm4_moe", "moe_intermediate_size", false, true, " n_routed_experts "
	  "moe_intermediate_size n_shared_experts n_group topk_group norm_topk_prob "
	  "routed_scaling_factor first_k_dense_replace num_nextn_predict_layers ", read_glm4 },
	{ "gpt_oss", "intermediate_size", true, true, " experts_per_token swiglu_limit ",
	  read_gpt_oss },
};

/* ---- fields that nobody asked for ----------------------------------------- */

/* Of every family; and those that matter to training, or to how others run a model. */
static const char common_fields[] =
	" num_experts num_local_experts num_experts_per_tok intermediate_size hidden_act mlp_bias "
	"output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef "
	"aux_loss_alpha seq_aux ep_size _experts_implementation experts_implementation ";

static bool listed(const char *list, const char *key)
{
	size_t n = strlen(key);

	for (const char *p = list; (p = strstr(p, key)) != NULL; p++)
		if (p[-1] == ' ' && p[n] == ' ')
			return true;
	return false;
}

static bool about_experts(const char *key)
{
	static const char *const words[] = {
		"expert", "moe", "rout", "topk", "swiglu", "scoring", "mlp", "ffn", "n_group",
		"hidden_act", "activation", "sparse_step", "dense", "latent", "nextn",
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(key, words[i]))
			return true;
	return false;
}

static int refuse_unknown(const struct reader *rd, const struct family *f)
{
	const char *key;
	json_t *v;

	json_object_foreach(rd->root, key, v) {
		if (json_is_null(v) || !about_experts(key) || listed(f->fields, key) ||
		    listed(common_fields, key))
			continue;
		return not_done(rd, "'%.100s' is no known field of %s and may change what its "
				"experts compute", key, f->name);
	}
	return 0;
}

/* ---- all together ----------------------------------------------------------- */

static int check_activation(const struct reader *rd)
{
	const char *act;
	bool bias;
	int r;

	r = get_string_or(rd, "hidden_act", "silu", &act);
	if (r == 0)
		r = get_bool_or(rd, "mlp_bias", false, &bias);
	if (r < 0)
		return r;
	if (strcmp(act, "silu") && strcmp(act, "swish"))
		return not_done(rd, "'hidden_act' is '%.40s': wanted silu", act);
	if (bias)
		return not_done(rd, "'mlp_bias' is true: %s with biases of its experts is not done",
				rd->c->info.family);
	return 0;
}

/* Weights that are not what their dtype says they are. */
static int check_quantization(const struct reader *rd)
{
	const json_t *q = get(rd, "quantization_config");
	const char *method = json_string_value(json_object_get(q, "quant_method"));

	if (!q || (rd->c->transposed && method && !strcmp(method, "mxfp4")))
		return 0;
	return not_done(rd, "'quantization_config' says '%.40s': this quantisation is not done; "
			"wanted BF16, F16 or F32 weights, MXFP4 of gpt_oss, or a GGUF file",
			method ? method : "?");
}

/* Three names are about; where several are there they must agree. */
static int read_count(struct reader *rd)
{
	static const char *const names[] = { "num_local_experts", "num_experts",
					     "n_routed_experts" };
	uint32_t *experts = &rd->c->info.router.experts;
	const char *found = NULL;
	uint32_t n;
	int r;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!get(rd, names[i]))
			continue;
		r = get_u32(rd, names[i], 1, MODEL_MAX_EXPERTS, &n);
		if (r < 0)
			return r;
		if (found && n != *experts)
			return bad(rd, "'%s' is %u and '%s' is %u", names[i], n, found, *experts);
		found = names[i];
		*experts = n;
	}
	if (!found)
		return bad(rd, "the number of experts is missing: wanted 'num_local_experts', "
			   "'num_experts' or 'n_routed_experts'");
	return 0;
}

static int read_sizes(struct reader *rd, const struct family *f)
{
	struct ndp_model_info *info = &rd->c->info;
	int r;

	r = get_u32(rd, "num_hidden_layers", 1, MODEL_MAX_LAYERS, &info->layers);
	if (r == 0)
		r = get_u32(rd, "hidden_size", 1, MODEL_MAX_WIDTH, &info->hidden);
	if (r == 0)
		r = get_u32(rd, f->width, 1, MODEL_MAX_NEURONS, &info->routed.neurons);
	if (r == 0)
		r = read_count(rd);
	if (r == 0)
		r = get_u32(rd, "num_experts_per_tok", 1, info->router.experts,
			    &info->router.top_k);
	if (r < 0)
		return r;
	rd->c->moe = calloc(info->layers, sizeof(*rd->c->moe));
	return rd->c->moe ? 0 : ndpi_fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
}

static int read_family(struct reader *rd, const struct family *f)
{
	struct ndp_model_info *info = &rd->c->info;
	int r;

	strcpy(info->family, f->name);
	strcpy(info->format, "safetensors");
	info->router = (struct ndp_router){ .groups = 1, .keep_groups = 1, .scale = 1,
					    .renormalize = f->renormalize };
	rd->c->source = "config.json";
	r = read_sizes(rd, f);
	if (r == 0 && !f->renormalize)
		r = get_bool_or(rd, "norm_topk_prob", f->norm_default, &info->router.renormalize);
	if (r == 0)
		r = f->read(rd);
	if (r == 0)
		r = refuse_unknown(rd, f);
	if (r == 0)
		r = check_activation(rd);
	if (r == 0)
		r = check_quantization(rd);
	return r < 0 ? r : ndpi_config_check(rd->c, rd->path, rd->err);
}

int ndpi_config_check(struct model_config *c, const char *path, struct ndp_error *err)
{
	struct ndp_model_info *info = &c->info;
	uint32_t width = info->hidden + info->expert_bias;
	int r;

	if (width > MODEL_MAX_WIDTH)
		return ndpi_fail(err, -ENOTSUP, "%s: experts of %u inputs (one for the biases): at "
				 "most %u are possible", path, width, MODEL_MAX_WIDTH);
	if (info->shared.neurons > MODEL_MAX_NEURONS)
		return ndpi_fail(err, -ENOTSUP, "%s: a shared expert of %u neurons: at most %u are "
				 "possible", path, info->shared.neurons, MODEL_MAX_NEURONS);
	info->routed.h_in = width;
	info->routed.h_out = info->hidden;
	if (info->shared.neurons) {
		info->shared.h_in = info->hidden;
		info->shared.h_out = info->hidden;
	}
	for (uint32_t l = 0; l < info->layers; l++)
		info->moe_layers += c->moe[l];
	if (!info->moe_layers)
		return ndpi_fail(err, -EINVAL, "%s: by it no layer has experts", path);
	r = ndp_router_check(&info->router, err);
	if (r < 0 && err) {
		const struct ndp_error why = *err;

		ndpi_fail(err, r, "%s: %s", path, why.message);
	}
	return r;
}

int ndpi_config_json(struct model_config *c, const char *path, struct ndp_error *err)
{
	struct reader rd = { .path = path, .c = c, .err = err };
	const struct family *family = NULL;
	const char *type;
	json_error_t jerr;
	struct stat st;
	int r;

	if (stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_size > MAX_CONFIG_BYTES))
		return bad(&rd, "wanted a file of at most %d bytes", MAX_CONFIG_BYTES);
	rd.root = json_load_file(path, JSON_REJECT_DUPLICATES, &jerr);
	if (!rd.root)
		return ndpi_fail(err, json_error_code(&jerr) == json_error_cannot_open_file ?
				 -ENOENT : -EINVAL, "%s: %.200s (line %d); a safetensors model "
				 "needs it to say what the model is", path, jerr.text, jerr.line);
	type = json_string_value(get(&rd, "model_type"));
	for (size_t i = 0; type && i < sizeof(families) / sizeof(families[0]); i++)
		if (!strcmp(type, families[i].name))
			family = &families[i];
	if (!json_is_object(rd.root) || !type)
		r = bad(&rd, "'model_type' is missing or is no string");
	else if (!family)
		r = not_done(&rd, "'model_type' is '%.60s': wanted mixtral, olmoe, qwen2_moe, "
			     "qwen3_moe, deepseek_v2, deepseek_v3, glm4_moe or gpt_oss", type);
	else
		r = read_family(&rd, family);
	json_decref(rd.root);
	return r;
}
