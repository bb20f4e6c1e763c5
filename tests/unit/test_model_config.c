// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_model_config.c - what a model is, by config.json and by GGUF keys: the published
 * configurations of each family with their sizes made small, and everything that would
 * change a result and is not known, refused by name.
 *
 * Of refused configurations no tensors are needed: it is read first.
 */
#include "model_build.h"

#include <ndp/device.h>
#include <ndp/model.h>

#include <errno.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static char top[] = "/tmp/test_model_config.XXXXXX";
static char dir[64];
static unsigned int dirs;

static int setup(void **state)
{
	(void)state;
	return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", top);
	return system(command);
}

static const char *new_dir(void)
{
	snprintf(dir, sizeof(dir), "%s/%u", top, dirs++);
	return dir;
}

/* ---- accepted --------------------------------------------------------------------- */

struct expect {
	const char *config;
	const char *moe;	/* a letter a layer: m has experts, d is dense */
	uint32_t neurons, shared, experts, top_k, groups, keep;
	enum ndp_scoring scoring;
	enum ndp_group_score group_score;
	bool renormalize, selection, shared_gate;
	float scale;
};

/*
 * The fields that published config.json files have, sizes changed: Mixtral-8x7B, OLMoE-1B-7B,
 * Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V2-Lite, DeepSeek-V2, DeepSeek-V3, GLM-4.5-Air.
 */
static const struct expect families[] = {
	{ "{\"architectures\":[\"MixtralForCausalLM\"],\"attention_dropout\":0.0,\"hidden_act\":"
	  "\"silu\",\"hidden_size\":32,\"intermediate_size\":64,\"model_type\":\"mixtral\","
	  "\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":2,"
	  "\"num_local_experts\":4,\"output_router_logits\":false,\"router_aux_loss_coef\":0.02,"
	  "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}",
	  "mm", 64, 0, 4, 2, 1, 1, NDP_SCORE_SOFTMAX, 0, true, false, false, 1 },
	{ "{\"attention_bias\":false,\"clip_qkv\":null,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"intermediate_size\":64,\"model_type\":\"olmoe\",\"norm_topk_prob\":false,"
	  "\"num_experts\":4,\"num_experts_per_tok\":3,\"num_hidden_layers\":1,"
	  "\"output_router_logits\":false,\"router_aux_loss_coef\":0.01}",
	  "m", 64, 0, 4, 3, 1, 1, NDP_SCORE_SOFTMAX, 0, false, false, false, 1 },
	{ "{\"decoder_sparse_step\":1,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"intermediate_size\":5632,\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":64,"
	  "\"norm_topk_prob\":false,\"num_experts\":4,\"num_experts_per_tok\":4,"
	  "\"num_hidden_layers\":2,\"output_router_logits\":false,"
	  "\"shared_expert_intermediate_size\":96}",
	  "mm", 64, 96, 4, 4, 1, 1, NDP_SCORE_SOFTMAX, 0, false, false, true, 1 },
	{ "{\"decoder_sparse_step\":2,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"intermediate_size\":6144,\"mlp_only_layers\":[3],\"model_type\":\"qwen3_moe\","
	  "\"moe_intermediate_size\":64,\"norm_topk_prob\":true,\"num_experts\":4,"
	  "\"num_experts_per_tok\":2,\"num_hidden_layers\":6,\"output_router_logits\":false}",
	  "dmdddm", 64, 0, 4, 2, 1, 1, NDP_SCORE_SOFTMAX, 0, true, false, false, 1 },
	{ "{\"aux_loss_alpha\":0.001,\"ep_size\":1,\"first_k_dense_replace\":1,\"hidden_act\":"
	  "\"silu\",\"hidden_size\":32,\"intermediate_size\":10944,\"model_type\":\"deepseek_v2\","
	  "\"moe_intermediate_size\":64,\"moe_layer_freq\":1,\"n_group\":1,"
	  "\"n_routed_experts\":4,\"n_shared_experts\":2,\"norm_topk_prob\":false,"
	  "\"num_experts_per_tok\":3,\"num_hidden_layers\":3,\"pretraining_tp\":1,"
	  "\"q_lora_rank\":null,\"routed_scaling_factor\":1.0,\"scoring_func\":\"softmax\","
	  "\"seq_aux\":true,\"topk_group\":1,\"topk_method\":\"greedy\"}",
	  "dmm", 64, 128, 4, 3, 1, 1, NDP_SCORE_SOFTMAX, 0, false, false, false, 1 },
	{ "{\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":64,\"moe_layer_freq\":2,"
	  "\"n_group\":4,\"n_routed_experts\":8,\"n_shared_experts\":null,"
	  "\"norm_topk_prob\":false,\"num_experts_per_tok\":3,\"num_hidden_layers\":4,"
	  "\"routed_scaling_factor\":16.0,\"scoring_func\":\"softmax\",\"topk_group\":2,"
	  "\"topk_method\":\"group_limited_greedy\"}",
	  "ddmd", 64, 0, 8, 3, 4, 2, NDP_SCORE_SOFTMAX, NDP_GROUP_MAX, false, false, false, 16 },
	{ "{\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":64,\"moe_layer_freq\":1,"
	  "\"n_group\":4,\"n_routed_experts\":8,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
	  "\"num_experts_per_tok\":3,\"num_hidden_layers\":2,\"num_nextn_predict_layers\":1,"
	  "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"topk_group\":2,"
	  "\"topk_method\":\"noaux_tc\"}",
	  "dm", 64, 64, 8, 3, 4, 2, NDP_SCORE_SIGMOID, NDP_GROUP_TOP2_SUM, true, true, false,
	  2.5f },
	{ "{\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":32,"
	  "\"intermediate_size\":10944,\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":64,"
	  "\"n_group\":1,\"n_routed_experts\":4,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
	  "\"num_experts_per_tok\":2,\"num_hidden_layers\":2,\"num_nextn_predict_layers\":1,"
	  "\"routed_scaling_factor\":1.0,\"topk_group\":1,\"use_qk_norm\":false}",
	  "dm", 64, 64, 4, 2, 1, 1, NDP_SCORE_SIGMOID, NDP_GROUP_TOP2_SUM, true, true, false, 1 },
};

/* Zeros of the right shapes, under Hugging Face's names. */
static void add_layers(struct model_build *b, const struct expect *x)
{
	const uint32_t h = 32, n = x->neurons, wide = x->shared;
	const char *shared = x->shared_gate ? "shared_expert" : "shared_experts";

	for (uint32_t l = 0; l < strlen(x->moe); l++) {
		if (x->moe[l] == 'd')
			continue;
		mb_add(b, "BF16", 2, x->experts, h, 0, 0, NULL, "model.layers.%u.mlp.gate.weight",
		       l);
		mb_add(b, "BF16", 3, x->experts, 2 * n, h, 0, NULL,
		       "model.layers.%u.mlp.experts.gate_up_proj", l);
		mb_add(b, "BF16", 3, x->experts, h, n, 0, NULL,
		       "model.layers.%u.mlp.experts.down_proj", l);
		if (x->selection)
			mb_add(b, "F32", 1, x->experts, 0, 0, 0, NULL,
			       "model.layers.%u.mlp.gate.e_score_correction_bias", l);
		if (x->shared_gate)
			mb_add(b, "BF16", 2, 1, h, 0, 0, NULL,
			       "model.layers.%u.mlp.shared_expert_gate.weight", l);
		if (!wide)
			continue;
		mb_add(b, "BF16", 2, wide, h, 0, 0, NULL, "model.layers.%u.mlp.%s.gate_proj.weight",
		       l, shared);
		mb_add(b, "BF16", 2, wide, h, 0, 0, NULL, "model.layers.%u.mlp.%s.up_proj.weight",
		       l, shared);
		mb_add(b, "BF16", 2, h, wide, 0, 0, NULL, "model.layers.%u.mlp.%s.down_proj.weight",
		       l, shared);
	}
}

static void check_info(const struct ndp_model *m, const struct expect *x)
{
	struct ndp_model_info i;

	ndp_model_info(m, &i);
	assert_int_equal(i.layers, strlen(x->moe));
	for (uint32_t l = 0; l < i.layers; l++)
		assert_int_equal(ndp_model_is_moe(m, l), x->moe[l] == 'm');
	assert_int_equal(i.hidden, 32);
	assert_int_equal(i.routed.neurons, x->neurons);
	assert_int_equal(i.shared.neurons, x->shared);
	assert_int_equal(i.router.experts, x->experts);
	assert_int_equal(i.router.top_k, x->top_k);
	assert_int_equal(i.router.groups, x->groups);
	assert_int_equal(i.router.keep_groups, x->keep);
	assert_int_equal(i.router.scoring, x->scoring);
	if (x->groups > 1)
		assert_int_equal(i.router.group_score, x->group_score);
	assert_int_equal(i.router.renormalize, x->renormalize);
	assert_true(i.router.scale == x->scale);
	assert_int_equal(i.selection_bias, x->selection);
	assert_int_equal(i.shared_gate, x->shared_gate);
	assert_int_equal(i.act, NDP_ACT_SILU_MUL);
	assert_false(i.expert_bias || i.router_bias);
}

static void published_configurations(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		struct model_build b = { 0 };
		struct ndp_model *m;
		struct ndp_error err;

		add_layers(&b, &families[i]);
		mb_safetensors(&b, new_dir(), families[i].config, 1);
		if (ndp_model_open(&m, dir, &err) < 0)
			fail_msg("%s", err.message);
		check_info(m, &families[i]);
		ndp_model_close(m);
		mb_free(&b);
	}
}

/* ---- refused ------------------------------------------------------------------------ */

static void refused(int code, const char *text)
{
	struct ndp_model *m = NULL;
	struct ndp_error err = { 0 };
	int r = ndp_model_open(&m, dir, &err);

	assert_null(m);
	if (r != code || !strstr(err.message, text))
		fail_msg("%d instead of %d, wanted \"%s\": %s", r, code, text, err.message);
}

#define MIXTRAL "\"model_type\":\"mixtral\",\"hidden_size\":32,\"intermediate_size\":64," \
	"\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_local_experts\":4"
#define V2 "\"model_type\":\"deepseek_v2\",\"hidden_size\":32,\"moe_intermediate_size\":64," \
	"\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"n_routed_experts\":8"
#define DEEPSEEK "\"model_type\":\"deepseek_v3\",\"hidden_size\":32,\"moe_intermediate_size\":64," \
	"\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"n_routed_experts\":8"
/* What must be said besides. */
#define GROUPS ",\"n_group\":1,\"topk_group\":1"
#define SCALE ",\"routed_scaling_factor\":1"
#define DENSE ",\"first_k_dense_replace\":0"

static const struct {
	const char *config;	/* without braces */
	int code;
	const char *text;
} bad[] = {
	{"\"hidden_size\":32", -EINVAL, "'model_type' is missing"},
	{"\"model_type\":7", -EINVAL, "'model_type' is missing"},
	{"\"model_type\":\"llama\"", -ENOTSUP, "'llama'"},
	{"\"model_type\":\"mixtral\"", -EINVAL, "'num_hidden_layers' is missing"},
	{MIXTRAL ",\"hidden_size\":32", -EINVAL, "duplicate"},
	{MIXTRAL ",\"num_experts\":5", -EINVAL, "'num_experts' is 5 and 'num_local_experts' is 4"},
	{MIXTRAL ",\"norm_topk_prob\":false", -ENOTSUP, "'norm_topk_prob'"},
	{MIXTRAL ",\"n_shared_experts\":1", -ENOTSUP, "'n_shared_experts'"},
	{MIXTRAL ",\"routed_scaling_factor\":2", -ENOTSUP, "'routed_scaling_factor'"},
	{MIXTRAL ",\"expert_capacity\":2", -ENOTSUP, "'expert_capacity'"},
	{MIXTRAL ",\"swiglu_limit\":7", -ENOTSUP, "'swiglu_limit'"},
	{MIXTRAL ",\"hidden_act\":\"gelu\"", -ENOTSUP, "'gelu'"},
	{MIXTRAL ",\"hidden_act\":3", -EINVAL, "'hidden_act' is no string"},
	{MIXTRAL ",\"mlp_bias\":true", -ENOTSUP, "'mlp_bias'"},
	{MIXTRAL ",\"quantization_config\":{\"quant_method\":\"gptq\"}", -ENOTSUP, "'gptq'"},
	{MIXTRAL ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}", -ENOTSUP, "'mxfp4'"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"quantization_config\":{\"quant_method\":\"fp8\"}",
	 -ENOTSUP, "'fp8'"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"topk_method\":\"best\"", -ENOTSUP, "'best'"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"scoring_func\":\"tanh\"", -ENOTSUP, "'tanh'"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"norm_topk_prob\":1", -EINVAL,
	 "'norm_topk_prob' is neither"},
	{DEEPSEEK GROUPS DENSE ",\"routed_scaling_factor\":0", -EINVAL, "'routed_scaling_factor'"},
	{DEEPSEEK GROUPS DENSE ",\"routed_scaling_factor\":1e300", -EINVAL,
	 "'routed_scaling_factor'"},
	{DEEPSEEK GROUPS DENSE ",\"routed_scaling_factor\":\"2\"", -EINVAL,
	 "'routed_scaling_factor'"},
	{DEEPSEEK SCALE DENSE ",\"n_group\":3,\"topk_group\":1", -EINVAL, "config.json"},
	{DEEPSEEK SCALE DENSE ",\"n_group\":4,\"topk_group\":5", -EINVAL, "config.json"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"moe_layer_freq\":[1]", -EINVAL, "'moe_layer_freq'"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"n_shared_experts\":-1", -EINVAL,
	 "'n_shared_experts' is -1"},
	{DEEPSEEK GROUPS SCALE ",\"first_k_dense_replace\":1", -EINVAL, "no layer has experts"},
	{DEEPSEEK GROUPS SCALE DENSE ",\"shared_expert_intermediate_size\":64", -ENOTSUP,
	 "'shared_expert_intermediate_size'"},
	{DEEPSEEK SCALE DENSE, -EINVAL, "'n_group' is missing"},
	{DEEPSEEK GROUPS DENSE, -EINVAL, "'routed_scaling_factor' is missing"},
	{DEEPSEEK GROUPS SCALE, -EINVAL, "'first_k_dense_replace' is missing"},
	{V2 ",\"topk_method\":\"group_limited_greedy\"", -EINVAL, "'n_group' is missing"},
	{V2 ",\"n_group\":2", -EINVAL, "'topk_group' is missing"},
	{"\"model_type\":\"mixtral\",\"hidden_size\":65473,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_local_experts\":4",
	 -EINVAL, "'hidden_size' is 65473"},
	{"\"model_type\":\"mixtral\",\"hidden_size\":32.0,\"num_hidden_layers\":1", -EINVAL,
	 "'hidden_size' is 32.0"},
	{"\"model_type\":\"mixtral\",\"hidden_size\":32,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":5,\"num_local_experts\":4",
	 -EINVAL, "'num_experts_per_tok' is 5"},
	{"\"model_type\":\"mixtral\",\"hidden_size\":32,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":99999999,\"num_experts_per_tok\":5",
	 -EINVAL, "'num_hidden_layers' is 99999999"},
	{"\"model_type\":\"mixtral\",\"hidden_size\":32,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":5",
	 -EINVAL, "number of experts"},
	{"\"model_type\":\"gpt_oss\",\"hidden_size\":65472,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_local_experts\":4",
	 -ENOTSUP, "65473 inputs"},
	{"\"model_type\":\"gpt_oss\",\"hidden_size\":32,\"intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_local_experts\":4,"
	 "\"experts_per_token\":3",
	 -EINVAL, "'experts_per_token' is 3"},
	{"\"model_type\":\"qwen3_moe\",\"hidden_size\":32,\"moe_intermediate_size\":64,"
	 "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_experts\":4,"
	 "\"mlp_only_layers\":[-1]",
	 -EINVAL, "'mlp_only_layers'"},
};

static void what_cannot_be_is_refused_by_field(void **state)
{
	struct model_build b = { 0 };
	char path[100];

	(void)state;
	mb_add(&b, "BF16", 1, 1, 0, 0, 0, NULL, "model.norm.weight");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[1000];

		snprintf(text, sizeof(text), "{%s}", bad[i].config);
		mb_safetensors(&b, new_dir(), text, 1);
		refused(bad[i].code, bad[i].text);
	}
	mb_safetensors(&b, new_dir(), "[]", 1);
	refused(-EINVAL, "'model_type'");
	mb_safetensors(&b, new_dir(), "{", 1);
	refused(-EINVAL, "config.json");
	new_dir();
	mb_safetensors(&b, dir, "{}", 1);
	snprintf(path, sizeof(path), "%s/config.json", dir);
	assert_int_equal(unlink(path), 0);
	refused(-ENOENT, "config.json");
	assert_int_equal(mkfifo(path, 0600), 0);
	refused(-EINVAL, "config.json");
	mb_free(&b);
}

/* ---- GGUF ----------------------------------------------------------------------------- */

/* The pairs of the file under test, as text: "key=value", numbers, "true", a string. */
static const char *pairs[24];

static void put_pairs(struct gguf_build *g)
{
	for (size_t i = 0; pairs[i]; i++) {
		const char *eq = strchr(pairs[i], '=');
		char key[100];

		snprintf(key, sizeof(key), "%.*s", (int)(eq - pairs[i]), pairs[i]);
		if (!strcmp(eq, "=true") || !strcmp(eq, "=false")) {
			gb_key(g, key, BOOL);
			gb_u8(g, eq[1] == 't');
		} else if (strchr(eq, '.')) {
			float f = strtof(eq + 1, NULL);

			gb_key(g, key, F32);
			gb_bytes(g, &f, sizeof(f));
		} else if (eq[1] >= '0' && eq[1] <= '9') {
			gb_key_u32(g, key, strtoul(eq + 1, NULL, 10));
		} else {
			gb_key_string(g, key, eq + 1);
		}
	}
}

static void write_gguf(const struct model_build *b)
{
	size_t n = 0;

	while (pairs[n])
		n++;
	mb_gguf(b, new_dir(), n, put_pairs);
}

static void set_pairs(const char *const *from)
{
	size_t n = 0;

	memset(pairs, 0, sizeof(pairs));
	for (; from[n]; n++)
		pairs[n] = from[n];
}

#define PAIRS(...) set_pairs((const char *const[]){ __VA_ARGS__, NULL })
#define DEEPSEEK2 "general.architecture=deepseek2", "deepseek2.block_count=2", \
	"deepseek2.embedding_length=32", "deepseek2.expert_count=8", \
	"deepseek2.expert_used_count=3", "deepseek2.feed_forward_length=500", \
	"deepseek2.expert_feed_forward_length=64"
#define QWEN2 "general.architecture=qwen2moe", "qwen2moe.block_count=1", \
	"qwen2moe.embedding_length=32", "qwen2moe.expert_count=4", \
	"qwen2moe.expert_used_count=2", "qwen2moe.feed_forward_length=128"

static void gguf_layers(struct model_build *b, const struct expect *x)
{
	for (uint32_t l = 0; l < strlen(x->moe); l++) {
		if (x->moe[l] == 'd')
			continue;
		mb_add(b, "F32", 2, x->experts, 32, 0, 0, NULL, "blk.%u.ffn_gate_inp.weight", l);
		mb_add(b, "BF16", 3, x->experts, x->neurons, 32, 0, NULL,
		       "blk.%u.ffn_gate_exps.weight", l);
		mb_add(b, "BF16", 3, x->experts, x->neurons, 32, 0, NULL,
		       "blk.%u.ffn_up_exps.weight", l);
		mb_add(b, "BF16", 3, x->experts, 32, x->neurons, 0, NULL,
		       "blk.%u.ffn_down_exps.weight", l);
		if (x->selection)
			mb_add(b, "F32", 1, x->experts, 0, 0, 0, NULL, "blk.%u.exp_probs_b.bias",
			       l);
		if (x->shared_gate)
			mb_add(b, "F32", 1, 32, 0, 0, 0, NULL, "blk.%u.ffn_gate_inp_shexp.weight",
			       l);
		if (!x->shared)
			continue;
		mb_add(b, "BF16", 2, x->shared, 32, 0, 0, NULL, "blk.%u.ffn_gate_shexp.weight", l);
		mb_add(b, "BF16", 2, x->shared, 32, 0, 0, NULL, "blk.%u.ffn_up_shexp.weight", l);
		mb_add(b, "BF16", 2, 32, x->shared, 0, 0, NULL, "blk.%u.ffn_down_shexp.weight", l);
	}
}

static void check_gguf(const struct expect *x, const char *family)
{
	struct model_build b = { 0 };
	struct ndp_model_info info;
	struct ndp_model *m;
	struct ndp_error err;

	gguf_layers(&b, x);
	write_gguf(&b);
	if (ndp_model_open(&m, dir, &err) < 0)
		fail_msg("%s", err.message);
	check_info(m, x);
	ndp_model_info(m, &info);
	assert_string_equal(info.family, family);
	assert_string_equal(info.format, "gguf");
	ndp_model_close(m);
	mb_free(&b);
}

static void gguf_headers(void **state)
{
	struct expect x = {NULL, "dm",	64,    0,     8, 3, 1, 1, NDP_SCORE_SOFTMAX,
			   0,	 false, false, false, 1};

	(void)state;
	/* As files from before expert_gating_func are. */
	PAIRS(DEEPSEEK2, "deepseek2.leading_dense_block_count=1",
	      "deepseek2.expert_weights_scale=1.0");
	check_gguf(&x, "deepseek_v2");
	PAIRS(DEEPSEEK2, "deepseek2.leading_dense_block_count=1", "deepseek2.expert_shared_count=2",
	      "deepseek2.expert_weights_scale=16.0", "deepseek2.expert_group_count=4",
	      "deepseek2.expert_group_used_count=2", "deepseek2.expert_gating_func=1");
	x = (struct expect){NULL,	   "dm",  64,	 128,	8, 3, 4, 2, NDP_SCORE_SOFTMAX,
			    NDP_GROUP_MAX, false, false, false, 16};
	check_gguf(&x, "deepseek_v2");
	PAIRS(DEEPSEEK2, "deepseek2.leading_dense_block_count=1", "deepseek2.expert_shared_count=1",
	      "deepseek2.expert_weights_scale=2.5", "deepseek2.expert_weights_norm=true",
	      "deepseek2.expert_group_count=4", "deepseek2.expert_group_used_count=2",
	      "deepseek2.expert_gating_func=2");
	x = (struct expect){ NULL, "dm", 64, 64, 8, 3, 4, 2, NDP_SCORE_SIGMOID, NDP_GROUP_TOP2_SUM,
			     true, true, false, 2.5f };
	check_gguf(&x, "deepseek_v3");
	/* Two layers, of which the last predicts more tokens and is not run. */
	PAIRS("general.architecture=glm4moe", "glm4moe.block_count=2",
	      "glm4moe.embedding_length=32", "glm4moe.expert_count=4",
	      "glm4moe.expert_used_count=2", "glm4moe.expert_feed_forward_length=64",
	      "glm4moe.nextn_predict_layers=1", "glm4moe.leading_dense_block_count=0",
	      "glm4moe.expert_weights_scale=0.0");
	x = (struct expect){ NULL, "m", 64, 0, 4, 2, 1, 1, NDP_SCORE_SIGMOID, 0, true, true, false,
			     1 };
	check_gguf(&x, "glm4_moe");
	/* Widths that old files do not say. */
	PAIRS(QWEN2);
	x = (struct expect){NULL, "m",	 64,	128,  4, 2, 1, 1, NDP_SCORE_SOFTMAX,
			    0,	  false, false, true, 1};
	check_gguf(&x, "qwen2_moe");
	PAIRS(QWEN2, "qwen2moe.expert_feed_forward_length=96",
	      "qwen2moe.expert_shared_feed_forward_length=160");
	x.neurons = 96;
	x.shared = 160;
	check_gguf(&x, "qwen2_moe");
	PAIRS("general.architecture=qwen3moe", "qwen3moe.block_count=1",
	      "qwen3moe.embedding_length=32", "qwen3moe.expert_count=4",
	      "qwen3moe.expert_used_count=2", "qwen3moe.expert_feed_forward_length=64");
	x = (struct expect){ NULL, "m", 64, 0, 4, 2, 1, 1, NDP_SCORE_SOFTMAX, 0, true, false, false,
			     1 };
	check_gguf(&x, "qwen3_moe");
	PAIRS("general.architecture=olmoe", "olmoe.block_count=1", "olmoe.embedding_length=32",
	      "olmoe.expert_count=4", "olmoe.expert_used_count=2", "olmoe.feed_forward_length=64");
	x.renormalize = false;
	check_gguf(&x, "olmoe");
}

static void gguf_refused(int code, const char *text)
{
	struct model_build b = { 0 };

	mb_add(&b, "F32", 1, 1, 0, 0, 0, NULL, "output_norm.weight");
	write_gguf(&b);
	refused(code, text);
	mb_free(&b);
}

static void gguf_keys_that_cannot_be(void **state)
{
	(void)state;
	PAIRS("general.name=x");
	gguf_refused(-ENOENT, "general.architecture");
	PAIRS("general.architecture=mamba");
	gguf_refused(-ENOTSUP, "'mamba'");
	PAIRS("general.architecture=llama", "llama.block_count=1", "llama.embedding_length=32");
	gguf_refused(-EINVAL, "'llama.expert_count' is missing");
	PAIRS(DEEPSEEK2, "deepseek2.expert_gating_func=4");
	gguf_refused(-ENOTSUP, "deepseek2.expert_gating_func");
	PAIRS(DEEPSEEK2, "deepseek2.expert_weights_norm=3");
	gguf_refused(-EINVAL, "deepseek2.expert_weights_norm");
	PAIRS(DEEPSEEK2, "deepseek2.expert_weights_scale=-1.0");
	gguf_refused(-EINVAL, "deepseek2.expert_weights_scale");
	PAIRS(DEEPSEEK2, "deepseek2.expert_temperature=2.0");
	gguf_refused(-ENOTSUP, "'deepseek2.expert_temperature'");
	PAIRS(DEEPSEEK2, "deepseek2.expert_group_count=3", "deepseek2.expert_group_used_count=1");
	gguf_refused(-EINVAL, "model");
	PAIRS(DEEPSEEK2, "deepseek2.leading_dense_block_count=2");
	gguf_refused(-EINVAL, "no layer has experts");
	PAIRS(DEEPSEEK2, "deepseek2.nextn_predict_layers=2");
	gguf_refused(-EINVAL, "deepseek2.nextn_predict_layers");
	PAIRS("general.architecture=deepseek2", "deepseek2.block_count=70000");
	gguf_refused(-EINVAL, "deepseek2.block_count");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_configurations),
		cmocka_unit_test(what_cannot_be_is_refused_by_field),
		cmocka_unit_test(gguf_headers),
		cmocka_unit_test(gguf_keys_that_cannot_be),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
