// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_model.c - model files of all spellings: the same weights give the same packed
 * bytes (reported where they did not: FlashML-org/FreeToken#263, ikawrakow/ik_llama.cpp#1408
 * and others), what is missing or not understood is refused by name
 * (open-lm-engine/lm-engine#108: a shared expert that was left out).
 *
 * Weights are arranged here by hand, from plain [outputs][inputs] matrices, and what is
 * packed is compared with those.
 */
#include "model_build.h"

#include <ndp/device.h>
#include <ndp/model.h>

#include <errno.h>
#include <setjmp.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#define H 96
#define N 64
#define E 2
#define BLOCKS (N / 32)

static char top[] = "/tmp/test_model.XXXXXX";
static char dir[64];
static unsigned int dirs;

/* Gate, up, down of each expert, the shared one last; router. */
static ndp_bf16 gate[E + 1][N][H], up[E + 1][N][H], down[E + 1][H][N];
static ndp_bf16 router[E][H], shared_gate[H];
static ndp_bf16 gate_bias[E][N], up_bias[E][N], down_bias[E][H], router_bias[E];
static float selection[E];

static uint32_t seed = 7;

static float number(void)
{
	seed = seed * 1664525 + 1013904223;
	return (float)(seed >> 8) / (1 << 23) - 1;
}

static void fill(void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((ndp_bf16 *)p)[i] = ndp_bf16_from_f32(number());
}

#define FILL(a) fill(a, sizeof(a) / 2)

static int setup(void **state)
{
	(void)state;
	FILL(gate);
	FILL(up);
	FILL(down);
	FILL(router);
	FILL(shared_gate);
	FILL(gate_bias);
	FILL(up_bias);
	FILL(down_bias);
	FILL(router_bias);
	for (int e = 0; e < E; e++)
		selection[e] = number();
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

/* ---- configurations --------------------------------------------------------- */

#define SIZES "\"num_hidden_layers\":1,\"hidden_size\":96,\"num_experts_per_tok\":2,"
#define MIXTRAL "{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":64," \
	"\"num_local_experts\":2}"
#define QWEN3 "{\"model_type\":\"qwen3_moe\"," SIZES "\"intermediate_size\":999," \
	"\"moe_intermediate_size\":64,\"num_experts\":2,\"norm_topk_prob\":true}"
#define QWEN2 "{\"model_type\":\"qwen2_moe\"," SIZES "\"moe_intermediate_size\":64," \
	"\"shared_expert_intermediate_size\":64,\"num_experts\":2}"
/* The published fields, without and with the quantisation. */
#define GPT_OSS_FIELDS "{\"model_type\":\"gpt_oss\"," SIZES "\"intermediate_size\":64," \
	"\"num_local_experts\":2,\"experts_per_token\":2,\"swiglu_limit\":7.0," \
	"\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true," \
	"\"hidden_act\":\"silu\",\"initial_context_length\":4096,\"layer_types\":" \
	"[\"sliding_attention\"],\"output_router_logits\":false,\"router_aux_loss_coef\":0.9," \
	"\"sliding_window\":128"
#define GPT_OSS GPT_OSS_FIELDS "}"
#define GPT_OSS_MXFP4 GPT_OSS_FIELDS ",\"quantization_config\":{\"modules_to_not_convert\":" \
	"[\"model.layers.*.mlp.router\"],\"quant_method\":\"mxfp4\"}}"
#define DEEPSEEK "{\"model_type\":\"deepseek_v3\"," SIZES "\"moe_intermediate_size\":64," \
	"\"n_routed_experts\":2,\"n_shared_experts\":1,\"routed_scaling_factor\":2.5," \
	"\"n_group\":1,\"topk_group\":1,\"first_k_dense_replace\":0}"

/* ---- spellings ---------------------------------------------------------------- */

static void each(struct model_build *b, const char *module, const char *g, const char *u,
		 const char *d)
{
	for (int e = 0; e < E; e++) {
		mb_add(b, "BF16", 2, N, H, 0, 0, gate[e], "model.layers.0.%s.experts.%d.%s.weight",
		       module, e, g);
		mb_add(b, "BF16", 2, N, H, 0, 0, up[e], "model.layers.0.%s.experts.%d.%s.weight",
		       module, e, u);
		mb_add(b, "BF16", 2, H, N, 0, 0, down[e], "model.layers.0.%s.experts.%d.%s.weight",
		       module, e, d);
	}
}

static void add_router(struct model_build *b, const char *name)
{
	mb_add(b, "BF16", 2, E, H, 0, 0, router, "model.layers.0.%s", name);
}

static void w123(struct model_build *b)
{
	add_router(b, "block_sparse_moe.gate.weight");
	each(b, "block_sparse_moe", "w1", "w3", "w2");
}

static void proj(struct model_build *b)
{
	add_router(b, "mlp.gate.weight");
	each(b, "mlp", "gate_proj", "up_proj", "down_proj");
}

static void proj_in_block_sparse_moe(struct model_build *b)
{
	add_router(b, "block_sparse_moe.gate.weight");
	each(b, "block_sparse_moe", "gate_proj", "up_proj", "down_proj");
}

/* [experts][gate, then up][hidden] */
static void add_halves(struct model_build *b, const char *name)
{
	static ndp_bf16 both[E][2 * N][H];

	for (int e = 0; e < E; e++) {
		memcpy(both[e], gate[e], sizeof(gate[e]));
		memcpy(both[e] + N, up[e], sizeof(up[e]));
	}
	mb_add(b, "BF16", 3, E, 2 * N, H, 0, both, "%s", name);
}

static void fused(struct model_build *b)
{
	add_router(b, "mlp.gate.weight");
	add_halves(b, "model.layers.0.mlp.experts.gate_up_proj");
	mb_add(b, "BF16", 3, E, H, N, 0, down, "model.layers.0.mlp.experts.down_proj");
}

static void fused_with_suffix(struct model_build *b)
{
	add_router(b, "block_sparse_moe.gate.weight");
	add_halves(b, "model.layers.0.block_sparse_moe.experts.gate_up_proj.weight");
	mb_add(b, "BF16", 3, E, H, N, 0, down,
	       "model.layers.0.block_sparse_moe.experts.down_proj.weight");
}

static void stacked(struct model_build *b)
{
	add_router(b, "mlp.gate.weight");
	mb_add(b, "BF16", 3, E, N, H, 0, gate, "model.layers.0.mlp.experts.gate_proj");
	mb_add(b, "BF16", 3, E, N, H, 0, up, "model.layers.0.mlp.experts.up_proj");
	mb_add(b, "BF16", 3, E, H, N, 0, down, "model.layers.0.mlp.experts.down_proj");
}

static void gguf_common(struct model_build *b)
{
	float wide[E][H];

	ndp_bf16_to_f32_array(wide[0], router[0], E * H);
	mb_add(b, "F32", 2, E, H, 0, 0, wide, "blk.0.ffn_gate_inp.weight");
	mb_add(b, "F32", 1, H, 0, 0, 0, NULL, "blk.0.ffn_norm.weight");
	mb_add(b, "F32", 1, H, 0, 0, 0, NULL, "blk.0.attn_norm.weight");
}

static void gguf_stacked(struct model_build *b)
{
	gguf_common(b);
	mb_add(b, "BF16", 3, E, N, H, 0, gate, "blk.0.ffn_gate_exps.weight");
	mb_add(b, "BF16", 3, E, N, H, 0, up, "blk.0.ffn_up_exps.weight");
	mb_add(b, "BF16", 3, E, H, N, 0, down, "blk.0.ffn_down_exps.weight");
}

static void gguf_fused(struct model_build *b)
{
	gguf_common(b);
	add_halves(b, "blk.0.ffn_gate_up_exps.weight");
	mb_add(b, "BF16", 3, E, H, N, 0, down, "blk.0.ffn_down_exps.weight");
}

static void gguf_each(struct model_build *b)
{
	gguf_common(b);
	for (int e = 0; e < E; e++) {
		mb_add(b, "BF16", 2, N, H, 0, 0, gate[e], "blk.0.ffn_gate.%d.weight", e);
		mb_add(b, "BF16", 2, N, H, 0, 0, up[e], "blk.0.ffn_up.%d.weight", e);
		mb_add(b, "BF16", 2, H, N, 0, 0, down[e], "blk.0.ffn_down.%d.weight", e);
	}
}

static void llama_keys(struct gguf_build *g)
{
	gb_key_string(g, "general.architecture", "llama");
	gb_key_u32(g, "llama.block_count", 1);
	gb_key_u32(g, "llama.embedding_length", H);
	gb_key_u32(g, "llama.feed_forward_length", N);
	gb_key_u32(g, "llama.expert_count", E);
	gb_key_u32(g, "llama.expert_used_count", 2);
}

/* ---- checking -------------------------------------------------------------------- */

static struct ndp_model *open_model(const char *path)
{
	struct ndp_model *m;
	struct ndp_error err;

	if (ndp_model_open(&m, path, &err) < 0)
		fail_msg("%s", err.message);
	return m;
}

/* Opens and expects @code and a sentence with all of @texts (NULL at the end). */
static void refused(const char *path, int code, const char *const *texts)
{
	struct ndp_model *m = NULL;
	struct ndp_error err = { 0 };
	int r = ndp_model_open(&m, path, &err);

	if (r != code)
		fail_msg("%d instead of %d: %s", r, code, err.message);
	assert_null(m);
	assert_int_equal(err.code, code);
	for (; *texts; texts++)
		if (!strstr(err.message, *texts))
			fail_msg("no \"%s\" in: %s", *texts, err.message);
}

#define REFUSED(path, code, ...) refused(path, code, (const char *const[]){ __VA_ARGS__, NULL })

/* What expert @e (E: the shared one) is, packed from the matrices above. */
static void expected(int e, void *packed)
{
	const struct ndp_expert_shape s = { H, H, N };

	for (uint32_t b = 0; b < BLOCKS; b++)
		ndp_expert_pack_block((char *)packed + b * ndp_expert_block_bytes(&s), &s, b,
				      gate[e][0], up[e][0], H, down[e][0], N);
}

static void check_packed(const struct ndp_model *m, uint32_t layer, uint32_t expert, int e)
{
	const struct ndp_expert_shape s = { H, H, N };
	size_t block = ndp_expert_block_bytes(&s), bytes = BLOCKS * block;
	char *want = malloc(bytes), *got = malloc(bytes + 1);
	void *work = malloc(ndp_model_pack_bytes(m) + 1);
	struct ndp_error err;

	expected(e, want);
	memset(got, 0xee, bytes + 1);
	assert_int_equal(ndp_model_pack(m, layer, expert, 0, BLOCKS, got, work, &err), 0);
	assert_memory_equal(got, want, bytes);
	assert_int_equal((unsigned char)got[bytes], 0xee);
	/* One block by itself. */
	assert_int_equal(ndp_model_pack(m, layer, expert, BLOCKS - 1, 1, got, work, &err), 0);
	assert_memory_equal(got, want + (BLOCKS - 1) * block, block);
	assert_int_equal(ndp_model_pack(m, layer, expert, BLOCKS, 0, got, work, &err), 0);
	assert_int_equal(ndp_model_pack(m, layer, expert, BLOCKS, 1, got, work, &err), -EINVAL);
	assert_int_equal(ndp_model_pack(m, layer, expert, 1, UINT32_MAX, got, work, &err), -EINVAL);
	free(want);
	free(got);
	free(work);
}

static void check_model(const char *path)
{
	struct ndp_model *m = open_model(path);
	struct ndp_model_info info;
	float weight[E][H], want[E][H];
	struct ndp_error err;

	ndp_model_info(m, &info);
	assert_int_equal(info.layers, 1);
	assert_int_equal(info.moe_layers, 1);
	assert_true(ndp_model_is_moe(m, 0));
	assert_false(ndp_model_is_moe(m, 1));
	assert_int_equal(info.routed.h_in, H);
	assert_int_equal(info.routed.h_out, H);
	assert_int_equal(info.routed.neurons, N);
	assert_int_equal(info.router.experts, E);
	for (int e = 0; e < E; e++)
		check_packed(m, 0, e, e);
	assert_int_equal(ndp_model_router(m, 0, weight[0], NULL, NULL, NULL, &err), 0);
	ndp_bf16_to_f32_array(want[0], router[0], E * H);
	assert_memory_equal(weight, want, sizeof(weight));
	assert_int_equal(ndp_model_pack(m, 0, E, 0, 1, weight, NULL, &err), -EINVAL);
	assert_int_equal(ndp_model_pack(m, 1, 0, 0, 1, weight, NULL, &err), -EINVAL);
	ndp_model_close(m);
}

static const struct {
	const char *name;
	void (*spell)(struct model_build *b);
	const char *config;	/* NULL: GGUF */
	uint32_t shards;
} spellings[] = {
	{ "w1, w3, w2", w123, MIXTRAL, 1 },
	{ "gate_proj...", proj, QWEN3, 1 },
	{ "gate_proj... of a mixtral", proj, MIXTRAL, 1 },
	{ "gate_proj... in block_sparse_moe", proj_in_block_sparse_moe, MIXTRAL, 1 },
	{ "gate_up_proj", fused, QWEN3, 1 },
	{ "gate_up_proj.weight", fused_with_suffix, MIXTRAL, 1 },
	{ "stacked", stacked, QWEN3, 1 },
	{ "no index", proj, QWEN3, 3 },
	{ "GGUF stacked", gguf_stacked, NULL, 1 },
	{ "GGUF fused", gguf_fused, NULL, 1 },
	{ "GGUF one by one", gguf_each, NULL, 1 },
};

static void write_spelling(size_t i, const struct model_build *b)
{
	new_dir();
	if (spellings[i].config)
		mb_safetensors(b, dir, spellings[i].config, spellings[i].shards);
	else
		mb_gguf(b, dir, 6, llama_keys);
}

/* Case C11. */
static void every_spelling_packs_to_the_same_bytes(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		struct model_build b = { 0 };

		spellings[i].spell(&b);
		write_spelling(i, &b);
		check_model(dir);
		mb_free(&b);
	}
}

/* Tensors at an odd address, and as FP32 and FP16. */
static void other_dtypes_and_addresses_do_not_matter(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	w123(&b);
	new_dir();
	mb_safetensors(&b, dir, MIXTRAL, 1);
	mb_shard(&b, dir, "model.safetensors", 0, 1, 1);
	check_model(dir);
	for (size_t i = 0; i < b.n; i++) {
		struct build_tensor *t = &b.t[i];
		float *wide = malloc(2 * t->bytes);

		ndp_bf16_to_f32_array(wide, t->data, t->bytes / 2);
		free(t->data);
		t->data = wide;
		t->bytes *= 2;
		strcpy(t->dtype, "F32");
	}
	mb_shard(&b, dir, "model.safetensors", 0, 1, 0);
	check_model(dir);
	mb_free(&b);
}

/* ---- what is missing, what is too much --------------------------------------------- */

static void a_missing_matrix_is_listed(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	proj(&b);
	mb_drop(&b, "model.layers.0.mlp.experts.1.down_proj.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.experts.1.down_proj.weight'", "layer 0");
	mb_drop(&b, "model.layers.0.mlp.experts.0.gate_proj.weight");
	mb_safetensors(&b, dir, QWEN3, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.experts.1.down_proj.weight'",
		"'model.layers.0.mlp.experts.0.gate_proj.weight'");
	mb_free(&b);

	gguf_stacked(&b);
	mb_drop(&b, "blk.0.ffn_down_exps.weight");
	mb_gguf(&b, new_dir(), 6, llama_keys);
	REFUSED(dir, -ENOENT, "'blk.0.ffn_down_exps.weight'");
	mb_free(&b);

	add_router(&b, "mlp.gate.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -ENOENT, "layer 0", "no tensors of experts", "experts.0.gate_proj.weight");
	mb_free(&b);

	proj(&b);
	mb_drop(&b, "model.layers.0.mlp.gate.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.gate.weight'");
	mb_free(&b);
}

static void another_shape_is_refused(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	/* [experts][hidden][2 neurons] is gpt_oss's, and no one else's. */
	add_router(&b, "mlp.gate.weight");
	mb_add(&b, "BF16", 3, E, H, 2 * N, 0, NULL, "model.layers.0.mlp.experts.gate_up_proj");
	mb_add(&b, "BF16", 3, E, N, H, 0, NULL, "model.layers.0.mlp.experts.down_proj");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -EINVAL, "mlp.experts.gate_up_proj", "[2, 96, 128]", "[2, 128, 96]");
	mb_free(&b);
	/* One expert too few. */
	add_router(&b, "mlp.gate.weight");
	mb_add(&b, "BF16", 3, 1, N, H, 0, NULL, "model.layers.0.mlp.experts.gate_proj");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -EINVAL, "mlp.experts.gate_proj", "[1, 64, 96]");
	mb_free(&b);
}

static const char *const leftovers[] = {
	"model.layers.0.mlp.experts.2.gate_proj.weight",
	"model.layers.0.mlp.experts.0.gate_proj.bias",
	"model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv",
	"model.layers.0.mlp.gate.bias",
	"model.layers.0.mlp.gate.e_score_correction_bias",
	"model.layers.0.mlp.something",
	"model.layers.0.block_sparse_moe.experts.0.w1.weight",
	"model.layers.1.mlp.experts.0.gate_proj.weight",
	"model.layers.1.self_attn.q_proj.weight",
	"experts.bias",
};

/* Cases C3 and C11: nothing is left out in silence, one dimension or three. */
static void what_has_no_place_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
		struct model_build b = { 0 };

		proj(&b);
		mb_add(&b, "BF16", 1 + i % 3, 1, 2, 2, 0, NULL, "%s", leftovers[i]);
		mb_safetensors(&b, new_dir(), QWEN3, 1);
		refused(dir, strstr(leftovers[i], "layers.1") ? -EINVAL : -ENOTSUP,
			(const char *const[]){ leftovers[i], NULL });
		mb_free(&b);
	}
}

static void a_shared_expert_that_was_not_announced_is_refused(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	proj(&b);
	mb_add(&b, "BF16", 2, N, H, 0, 0, gate[E],
	       "model.layers.0.mlp.shared_expert.gate_proj.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -ENOTSUP, "model.layers.0.mlp.shared_expert.gate_proj.weight", "qwen3_moe");
	mb_free(&b);
	gguf_stacked(&b);
	mb_add(&b, "BF16", 2, N, H, 0, 0, gate[E], "blk.0.ffn_gate_shexp.weight");
	mb_gguf(&b, new_dir(), 6, llama_keys);
	REFUSED(dir, -ENOTSUP, "blk.0.ffn_gate_shexp.weight");
	mb_free(&b);
}

static void what_is_not_about_experts_is_left_alone(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	proj(&b);
	mb_add(&b, "I64", 1, 0, 0, 0, 0, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq");
	mb_add(&b, "BF16", 2, 3, 5, 0, 0, NULL, "model.embed_tokens.weight");
	mb_add(&b, "BF16", 3, 3, 5, 2, 0, NULL, "model.layers.0.self_attn.odd");
	mb_add(&b, "BF16", 1, H, 0, 0, 0, NULL, "model.layers.0.input_layernorm.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	check_model(dir);
	mb_free(&b);
}

/* Without "model.": saved without a head. */
static void the_prefix_may_be_missing(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	proj(&b);
	for (size_t i = 0; i < b.n; i++)
		memmove(b.t[i].name, b.t[i].name + 6, strlen(b.t[i].name + 6) + 1);
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	check_model(dir);
	mb_free(&b);
}

static void dtypes_that_are_not_read_are_named(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	proj(&b);
	mb_drop(&b, "model.layers.0.mlp.experts.1.up_proj.weight");
	mb_add(&b, "F8_E4M3", 2, N, H, 0, 0, NULL, "model.layers.0.mlp.experts.1.up_proj.weight");
	mb_safetensors(&b, new_dir(), QWEN3, 1);
	REFUSED(dir, -ENOTSUP, "F8_E4M3", "model.layers.0.mlp.experts.1.up_proj.weight");
	mb_free(&b);
}

/* ---- shared experts, biases ------------------------------------------------------------ */

static void add_shared(struct model_build *b, const char *module)
{
	mb_add(b, "BF16", 2, N, H, 0, 0, gate[E], "model.layers.0.mlp.%s.gate_proj.weight", module);
	mb_add(b, "BF16", 2, N, H, 0, 0, up[E], "model.layers.0.mlp.%s.up_proj.weight", module);
	mb_add(b, "BF16", 2, H, N, 0, 0, down[E], "model.layers.0.mlp.%s.down_proj.weight", module);
}

static void a_shared_expert_with_a_gate(void **state)
{
	struct model_build b = { 0 };
	struct ndp_model_info info;
	float got[H], want[H], untouched[E] = { 5, 5 };
	struct ndp_model *m;
	struct ndp_error err;

	(void)state;
	proj(&b);
	add_shared(&b, "shared_expert");
	mb_safetensors(&b, new_dir(), QWEN2, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.shared_expert_gate.weight'");
	mb_add(&b, "BF16", 2, 1, H, 0, 0, shared_gate,
	       "model.layers.0.mlp.shared_expert_gate.weight");
	mb_safetensors(&b, dir, QWEN2, 1);
	m = open_model(dir);
	ndp_model_info(m, &info);
	assert_string_equal(info.family, "qwen2_moe");
	assert_true(info.shared_gate);
	assert_int_equal(info.shared.neurons, N);
	assert_int_equal(info.shared.h_in, H);
	assert_false(info.router.renormalize);
	check_packed(m, 0, 0, 0);
	check_packed(m, 0, NDP_EXPERT_SHARED, E);
	assert_int_equal(ndp_model_router(m, 0, NULL, untouched, untouched, got, &err), 0);
	ndp_bf16_to_f32_array(want, shared_gate, H);
	assert_memory_equal(got, want, sizeof(got));
	assert_true(untouched[0] == 5 && untouched[1] == 5);
	ndp_model_close(m);
	mb_free(&b);
}

static void a_shared_expert_and_a_selection_bias(void **state)
{
	struct model_build b = { 0 };
	struct ndp_model_info info;
	struct ndp_model *m;
	struct ndp_error err;
	float got[E];

	(void)state;
	proj(&b);
	add_shared(&b, "shared_experts");
	mb_safetensors(&b, new_dir(), DEEPSEEK, 1);
	REFUSED(dir, -ENOENT, "e_score_correction_bias");
	mb_add(&b, "F32", 1, E, 0, 0, 0, selection,
	       "model.layers.0.mlp.gate.e_score_correction_bias");
	mb_safetensors(&b, dir, DEEPSEEK, 1);
	m = open_model(dir);
	ndp_model_info(m, &info);
	assert_true(info.selection_bias && !info.router_bias && !info.shared_gate);
	check_packed(m, 0, NDP_EXPERT_SHARED, E);
	assert_int_equal(ndp_model_router(m, 0, NULL, NULL, got, NULL, &err), 0);
	assert_memory_equal(got, selection, sizeof(got));
	ndp_model_close(m);
	mb_drop(&b, "model.layers.0.mlp.shared_experts.up_proj.weight");
	mb_safetensors(&b, dir, DEEPSEEK, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.shared_experts.up_proj.weight'");
	mb_free(&b);
}

/* gpt-oss packed by hand: the biases are column H. */
static void check_gpt_oss(const char *path, ndp_bf16 (*g)[N][H], ndp_bf16 (*u)[N][H],
			  ndp_bf16 (*d)[H][N])
{
	static ndp_bf16 wide_gate[N][H + 1], wide_up[N][H + 1];
	const struct ndp_expert_shape s = { H + 1, H, N };
	size_t bytes = BLOCKS * ndp_expert_block_bytes(&s);
	struct ndp_model *m = open_model(path);
	void *work = malloc(ndp_model_pack_bytes(m));
	char *want = malloc(bytes), *got = malloc(bytes);
	struct ndp_model_info info;
	struct ndp_error err;
	float bias[H], wide[H];

	ndp_model_info(m, &info);
	assert_int_equal(info.routed.h_in, H + 1);
	assert_true(info.expert_bias && info.router_bias && info.router.renormalize);
	assert_int_equal(info.act, NDP_ACT_CLAMPED_SWIGLU);
	assert_true(info.alpha == 1.702f && info.limit == 7);
	for (int e = 0; e < E; e++) {
		for (int n = 0; n < N; n++) {
			memcpy(wide_gate[n], g[e][n], 2 * H);
			memcpy(wide_up[n], u[e][n], 2 * H);
			wide_gate[n][H] = gate_bias[e][n];
			wide_up[n][H] = up_bias[e][n];
		}
		ndp_expert_pack_blocks(want, &s, 0, BLOCKS, wide_gate[0], wide_up[0], H + 1,
				       d[e][0], N);
		assert_int_equal(ndp_model_pack(m, 0, e, 0, BLOCKS, got, work, &err), 0);
		assert_memory_equal(got, want, bytes);
		assert_int_equal(ndp_model_pack(m, 0, e, 1, 1, got, work, &err), 0);
		assert_memory_equal(got, want + bytes / 2, bytes / 2);
		assert_int_equal(ndp_model_down_bias(m, 0, e, bias, &err), 0);
		ndp_bf16_to_f32_array(wide, down_bias[e], H);
		assert_memory_equal(bias, wide, sizeof(bias));
	}
	assert_int_equal(ndp_model_router(m, 0, NULL, bias, NULL, NULL, &err), 0);
	ndp_bf16_to_f32_array(wide, router_bias, E);
	assert_memory_equal(bias, wide, E * sizeof(float));
	free(work);
	free(want);
	free(got);
	ndp_model_close(m);
}

static void add_gpt_oss_rest(struct model_build *b)
{
	ndp_bf16 both[E][2 * N];

	for (int e = 0; e < E; e++)
		for (int n = 0; n < N; n++) {
			both[e][2 * n] = gate_bias[e][n];
			both[e][2 * n + 1] = up_bias[e][n];
		}
	mb_add(b, "BF16", 2, E, H, 0, 0, router, "model.layers.0.mlp.router.weight");
	mb_add(b, "BF16", 1, E, 0, 0, 0, router_bias, "model.layers.0.mlp.router.bias");
	mb_add(b, "BF16", 2, E, 2 * N, 0, 0, both, "model.layers.0.mlp.experts.gate_up_proj_bias");
	mb_add(b, "BF16", 2, E, H, 0, 0, down_bias, "model.layers.0.mlp.experts.down_proj_bias");
}

static void gpt_oss_interleaves_and_transposes(void **state)
{
	static ndp_bf16 both[E][H][2 * N], turned[E][N][H];
	struct model_build b = { 0 };

	(void)state;
	for (int e = 0; e < E; e++)
		for (int k = 0; k < H; k++)
			for (int n = 0; n < N; n++) {
				both[e][k][2 * n] = gate[e][n][k];
				both[e][k][2 * n + 1] = up[e][n][k];
				turned[e][n][k] = down[e][k][n];
			}
	add_gpt_oss_rest(&b);
	mb_add(&b, "BF16", 3, E, H, 2 * N, 0, both, "model.layers.0.mlp.experts.gate_up_proj");
	mb_add(&b, "BF16", 3, E, N, H, 0, turned, "model.layers.0.mlp.experts.down_proj");
	mb_safetensors(&b, new_dir(), GPT_OSS, 1);
	check_gpt_oss(dir, gate, up, down);
	mb_drop(&b, "model.layers.0.mlp.experts.down_proj_bias");
	mb_safetensors(&b, dir, GPT_OSS, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.experts.down_proj_bias'");
	mb_free(&b);
}

static void gpt_oss_keys(struct gguf_build *g)
{
	gb_key_string(g, "general.architecture", "gpt-oss");
	gb_key_u32(g, "gpt-oss.block_count", 1);
	gb_key_u32(g, "gpt-oss.embedding_length", H);
	gb_key_u32(g, "gpt-oss.expert_feed_forward_length", N);
	gb_key_u32(g, "gpt-oss.expert_count", E);
	gb_key_u32(g, "gpt-oss.expert_used_count", 2);
}

static void add_wide(struct model_build *b, const ndp_bf16 *src, uint32_t n, uint32_t d0,
		     uint32_t d1, const char *name)
{
	float *wide = malloc(n * sizeof(*wide));

	ndp_bf16_to_f32_array(wide, src, n);
	mb_add(b, "F32", d1 ? 2 : 1, d0, d1, 0, 0, wide, "%s", name);
	free(wide);
}

static void gpt_oss_in_gguf(void **state)
{
	struct model_build b = { 0 };

	(void)state;
	gguf_stacked(&b);
	add_wide(&b, gate_bias[0], E * N, E, N, "blk.0.ffn_gate_exps.bias");
	add_wide(&b, up_bias[0], E * N, E, N, "blk.0.ffn_up_exps.bias");
	add_wide(&b, down_bias[0], E * H, E, H, "blk.0.ffn_down_exps.bias");
	add_wide(&b, router_bias, E, E, 0, "blk.0.ffn_gate_inp.bias");
	mb_gguf(&b, new_dir(), 6, gpt_oss_keys);
	check_gpt_oss(dir, gate, up, down);
	mb_free(&b);
}

/* Codes and scales by rule, and what they mean by the table of OCP MX, 5.3.3. */
static ndp_bf16 mxfp4_value(uint8_t code, uint8_t scale)
{
	static const float values[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6,
					  -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6 };
	float power = 1;

	if (scale == 255)
		return 0x7fc0;
	for (int i = 127; i < scale; i++)
		power *= 2;
	for (int i = 127; i > scale; i--)
		power /= 2;
	return ndp_bf16_from_f32(values[code] * power);
}

static void gpt_oss_as_published(void **state)
{
	static uint8_t codes[E][2 * N][H / 32][16], scales[E][2 * N][H / 32];
	static uint8_t down_codes[E][H][N / 32][16], down_scales[E][H][N / 32];
	static ndp_bf16 g[E][N][H], u[E][N][H], d[E][H][N];
	struct model_build b = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(codes); i++)
		(&codes[0][0][0][0])[i] = i * 89 + i / 256;
	for (size_t i = 0; i < sizeof(scales); i++)
		(&scales[0][0][0])[i] = i;	/* all 256 of them, NaN too */
	for (size_t i = 0; i < sizeof(down_codes); i++)
		(&down_codes[0][0][0][0])[i] = i * 37 + 11;
	for (size_t i = 0; i < sizeof(down_scales); i++)
		(&down_scales[0][0][0])[i] = 120 + i % 11;
	for (int e = 0; e < E; e++) {
		for (int n = 0; n < N; n++)
			for (int k = 0; k < H; k++) {
				int shift = k % 2 * 4, at = k % 32 / 2, gr = k / 32;

				g[e][n][k] = mxfp4_value(codes[e][2 * n][gr][at] >> shift & 15,
							 scales[e][2 * n][gr]);
				u[e][n][k] = mxfp4_value(codes[e][2 * n + 1][gr][at] >> shift & 15,
							 scales[e][2 * n + 1][gr]);
			}
		for (int j = 0; j < H; j++)
			for (int n = 0; n < N; n++)
				d[e][j][n] = mxfp4_value(down_codes[e][j][n / 32][n % 32 / 2] >>
							 n % 2 * 4 & 15,
							 down_scales[e][j][n / 32]);
	}
	add_gpt_oss_rest(&b);
	mb_add(&b, "U8", 4, E, 2 * N, H / 32, 16, codes,
	       "model.layers.0.mlp.experts.gate_up_proj_blocks");
	mb_add(&b, "U8", 3, E, 2 * N, H / 32, 0, scales,
	       "model.layers.0.mlp.experts.gate_up_proj_scales");
	mb_add(&b, "U8", 4, E, H, N / 32, 16, down_codes,
	       "model.layers.0.mlp.experts.down_proj_blocks");
	mb_add(&b, "U8", 3, E, H, N / 32, 0, down_scales,
	       "model.layers.0.mlp.experts.down_proj_scales");
	mb_safetensors(&b, new_dir(), GPT_OSS_MXFP4, 1);
	check_gpt_oss(dir, g, u, d);
	mb_drop(&b, "model.layers.0.mlp.experts.down_proj_scales");
	mb_safetensors(&b, dir, GPT_OSS_MXFP4, 1);
	REFUSED(dir, -ENOENT, "'model.layers.0.mlp.experts.down_proj_scales'");
	mb_free(&b);
}

/* ---- layers without experts, layers that are not run ------------------------------------- */

#define TWO_LAYERS "{\"model_type\":\"deepseek_v2\",\"num_hidden_layers\":2,\"hidden_size\":96," \
	"\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,\"n_routed_experts\":2," \
	"\"first_k_dense_replace\":%s%s}"

static const char *two_layers(const char *dense, const char *more)
{
	static char text[400];

	snprintf(text, sizeof(text), TWO_LAYERS, dense, more);
	return text;
}

static void dense_and_extra_layers(void **state)
{
	struct model_build b = { 0 };
	struct ndp_model *m;

	(void)state;
	proj(&b);
	for (size_t i = 0; i < b.n; i++)
		b.t[i].name[strlen("model.layers.")] = '1';
	mb_add(&b, "BF16", 2, 7, H, 0, 0, NULL, "model.layers.0.mlp.gate_proj.weight");
	mb_safetensors(&b, new_dir(), two_layers("1", ""), 1);
	m = open_model(dir);
	assert_false(ndp_model_is_moe(m, 0));
	assert_true(ndp_model_is_moe(m, 1));
	check_packed(m, 1, 1, 1);
	ndp_model_close(m);
	mb_safetensors(&b, dir, two_layers("0", ""), 1);
	REFUSED(dir, -ENOENT, "layer 0");
	mb_safetensors(&b, dir, two_layers("2", ""), 1);
	REFUSED(dir, -EINVAL, "no layer has experts");
	/* A layer for predicting more than one token is there and not run. */
	mb_add(&b, "BF16", 2, N, H, 0, 0, NULL, "model.layers.2.mlp.experts.0.gate_proj.weight");
	mb_safetensors(&b, dir, two_layers("1", ""), 1);
	REFUSED(dir, -EINVAL, "model.layers.2.mlp.experts.0.gate_proj.weight", "layer 2");
	mb_safetensors(&b, dir, two_layers("1", ",\"num_nextn_predict_layers\":1"), 1);
	ndp_model_close(open_model(dir));
	/* An expert where there is none. */
	mb_add(&b, "BF16", 2, N, H, 0, 0, NULL, "model.layers.0.mlp.experts.0.gate_proj.weight");
	mb_safetensors(&b, dir, two_layers("1", ",\"num_nextn_predict_layers\":1"), 1);
	REFUSED(dir, -EINVAL, "model.layers.0.mlp.experts.0.gate_proj.weight", "layer 0 has none");
	mb_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_spelling_packs_to_the_same_bytes),
		cmocka_unit_test(other_dtypes_and_addresses_do_not_matter),
		cmocka_unit_test(a_missing_matrix_is_listed),
		cmocka_unit_test(another_shape_is_refused),
		cmocka_unit_test(what_has_no_place_is_refused),
		cmocka_unit_test(a_shared_expert_that_was_not_announced_is_refused),
		cmocka_unit_test(what_is_not_about_experts_is_left_alone),
		cmocka_unit_test(the_prefix_may_be_missing),
		cmocka_unit_test(dtypes_that_are_not_read_are_named),
		cmocka_unit_test(a_shared_expert_with_a_gate),
		cmocka_unit_test(a_shared_expert_and_a_selection_bias),
		cmocka_unit_test(gpt_oss_interleaves_and_transposes),
		cmocka_unit_test(gpt_oss_in_gguf),
		cmocka_unit_test(gpt_oss_as_published),
		cmocka_unit_test(dense_and_extra_layers),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
