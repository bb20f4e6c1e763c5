// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_config.c - models that ndp-run would get wrong are refused by the name of
 * the field, and references that would compare nothing.
 */
#include "../../tools/ndp-run/check.h"
#include "../../tools/ndp-run/config.h"
#include "../../tools/ndp-run/reference.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/test_config.XXXXXX";
static char config_path[64];
static char reference_path[64];

static const char good[] =
	"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\","
	"\"hidden_act\":\"silu\",\"hidden_size\":128,\"intermediate_size\":96,"
	"\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
	"\"num_local_experts\":8,\"num_experts_per_tok\":2,\"vocab_size\":256,"
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":1e6,"
	"\"sliding_window\":null,\"tie_word_embeddings\":false,\"eos_token_id\":[0,7]}";

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(config_path, sizeof(config_path), "%s/config.json", dir);
	snprintf(reference_path, sizeof(reference_path), "%s/reference.json", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(config_path);
	unlink(reference_path);
	return rmdir(dir);
}

static void write_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void reads_a_config(void **state)
{
	struct model_config c;
	struct ndp_error err;

	(void)state;
	write_text(config_path, good);
	assert_int_equal(config_load(&c, dir, &err), 0);
	assert_int_equal(c.hidden, 128);
	assert_int_equal(c.head_dim, 32);
	assert_int_equal(c.neurons, 96);
	assert_int_equal(c.kv_heads, 2);
	assert_float_equal(c.rope_theta, 1e6f, 0);
	assert_false(c.tied);
	assert_true(config_is_eos(&c, 0) && config_is_eos(&c, 7) && !config_is_eos(&c, 1));
}

/* The good one with @field set to @value (JSON text), or without it. */
static int load_with(const char *field, const char *value, struct ndp_error *err)
{
	json_t *root = json_loads(good, 0, NULL);
	struct model_config c;
	char *text;
	int r;

	assert_non_null(root);
	if (value)
		json_object_set_new(root, field, json_loads(value, JSON_DECODE_ANY, NULL));
	else
		json_object_del(root, field);
	text = json_dumps(root, 0);
	write_text(config_path, text);
	free(text);
	json_decref(root);
	r = config_load(&c, dir, err);
	return r;
}

static void refuses_by_name(void **state)
{
	static const struct {
		const char *field;
		const char *value;
	} cases[] = {
		{ "model_type", "\"qwen3_moe\"" }, { "model_type", NULL },
		{ "hidden_act", "\"gelu\"" },	   { "hidden_act", "3" },
		{ "hidden_size", NULL },	   { "hidden_size", "0" },
		{ "hidden_size", "-1" },	   { "hidden_size", "65473" },
		{ "hidden_size", "128.0" },	   { "num_hidden_layers", "\"4\"" },
		{ "num_key_value_heads", "3" },	   { "num_attention_heads", "3" },
		{ "num_experts_per_tok", "9" },	   { "vocab_size", "99999999999999999" },
		{ "rms_norm_eps", "0" },	   { "rms_norm_eps", "\"1e-5\"" },
		{ "rope_theta", NULL },		   { "rope_scaling", "{\"type\":\"linear\"}" },
		{ "sliding_window", "256" },	   { "sliding_window", "true" },
		{ "tie_word_embeddings", "1" },	   { "eos_token_id", "256" },
		{ "eos_token_id", "[1,\"x\"]" },   { "quantization_config", "{\"bits\":4}" },
		{ "attention_bias", "true" },	   { "num_shared_experts", "1" },
		{ "head_dim", "0" },
	};
	struct ndp_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char quoted[64];

		snprintf(quoted, sizeof(quoted), "'%s'", cases[i].field);
		memset(&err, 0, sizeof(err));
		if (load_with(cases[i].field, cases[i].value, &err) != -EINVAL)
			fail_msg("%s = %s was not refused", quoted, cases[i].value);
		if (!strstr(err.message, quoted) || !strstr(err.message, config_path))
			fail_msg("\"%s\" does not name %s", err.message, quoted);
	}
}

static void accepts_what_changes_nothing(void **state)
{
	static const char *const cases[][2] = {
		{ "sliding_window", "4096" },	  { "attention_bias", "false" },
		{ "transformers_version", "\"4\"" }, { "head_dim", "16" },
		{ "eos_token_id", "null" },	  { "rope_scaling", "null" },
		{ "anything_new", "null" },
	};
	struct ndp_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (load_with(cases[i][0], cases[i][1], &err) != 0)
			fail_msg("%s", err.message);
}

static void odd_heads_are_refused(void **state)
{
	struct ndp_error err;

	(void)state;
	assert_int_equal(load_with("head_dim", "15", &err), -EINVAL);
	assert_non_null(strstr(err.message, "pairs"));
}

static void missing_or_broken_files(void **state)
{
	struct model_config c;
	struct ndp_error err;

	(void)state;
	unlink(config_path);
	assert_int_equal(config_load(&c, dir, &err), -ENOENT);
	assert_non_null(strstr(err.message, config_path));
	write_text(config_path, "{\"a\":1,\"a\":2}");
	assert_int_equal(config_load(&c, dir, &err), -EINVAL);
	write_text(config_path, "[]");
	assert_int_equal(config_load(&c, dir, &err), -EINVAL);
}

/* ---- references and verdicts ------------------------------------------- */

static void references_that_compare_nothing_are_refused(void **state)
{
	static const char *const cases[][2] = {
		{ "{}", "'prompts'" },
		{ "{\"prompts\":[]}", "'prompts'" },
		{ "{\"prompts\":[{\"prompt_bytes\":[1]}]}", "'name'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[]}]}", "'prompt_bytes'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1,4]}]}", "'prompt_bytes'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1]}]}", "'tokens'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1],\"tokens\":[2]}]}",
		  "'top5'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1],\"tokens\":[2],"
		  "\"top5\":[[]]}]}",
		  "'top5'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1],\"tokens\":[2],"
		  "\"top5\":[[{\"id\":1}]]}]}",
		  "'logit'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1],\"tokens\":[2],"
		  "\"top5\":[[{\"id\":4,\"logit\":0}]]}]}",
		  "'top5'" },
		{ "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1],\"tokens\":[2],"
		  "\"top5\":[[{\"id\":3,\"logit\":0}],[]]}]}",
		  "'top5'" },
		{ "{\"prompts\":", "line" },
	};
	struct ndp_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct reference *ref = NULL;

		write_text(reference_path, cases[i][0]);
		assert_int_equal(reference_load(&ref, reference_path, 4, &err), -EINVAL);
		assert_null(ref);
		if (!strstr(err.message, cases[i][1]))
			fail_msg("\"%s\" does not name %s", err.message, cases[i][1]);
	}
}

static struct reference *load_small(void)
{
	struct reference *ref;
	struct ndp_error err;

	write_text(reference_path,
		   "{\"prompts\":[{\"name\":\"a\",\"prompt_bytes\":[1,2],\"tokens\":[2,0,1],"
		   "\"top5\":[[{\"id\":2,\"logit\":3},{\"id\":0,\"logit\":1}],"
		   "[{\"id\":0,\"logit\":2}]]}]}");
	assert_int_equal(reference_load(&ref, reference_path, 3, &err), 0);
	return ref;
}

static void verdicts(void **state)
{
	static const float exact[3][3] = { { 1, 0, 3 }, { 2, 1.5f, 0 }, { 0, 1, 0.75f } };
	struct reference *ref = load_small();
	struct verdict v;
	float near[3] = { 1.029f, 0, 3 };
	float off[3] = { 1.031f, 0, 3 };
	float nan[3] = { __builtin_nanf(""), 0, 3 };

	(void)state;
	verdict_init(&v, ref->prompts, 3);
	assert_true(verdict_step(&v, 0, near, 2));
	assert_false(verdict_passed(&v)); /* not all tokens yet */
	assert_true(verdict_step(&v, 1, exact[1], 0));
	assert_true(verdict_step(&v, 2, exact[2], 1));
	assert_true(verdict_passed(&v));
	assert_int_equal(v.compared_logits, 3);
	assert_float_equal(v.worst_deviation, 0.029f, 1e-4f);
	assert_int_equal(v.worst_id, 0);
	assert_float_equal(v.smallest_margin, 0.25f, 1e-6f);
	assert_int_equal(v.smallest_margin_step, 2);

	for (int i = 0; i < 2; i++) {
		verdict_init(&v, ref->prompts, 3);
		assert_true(verdict_step(&v, 0, i ? nan : off, 2));
		assert_true(verdict_step(&v, 1, exact[1], 0));
		assert_true(verdict_step(&v, 2, exact[2], 1));
		assert_false(verdict_passed(&v));
		assert_int_equal(v.wrong_logits, 1);
	}

	verdict_init(&v, ref->prompts, 3);
	assert_true(verdict_step(&v, 0, exact[0], 2));
	assert_false(verdict_step(&v, 1, exact[1], 1));
	assert_false(verdict_passed(&v));
	assert_true(v.diverged);
	assert_int_equal(v.equal_tokens, 1);
	assert_int_equal(v.got, 1);
	reference_free(ref);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_a_config),
		cmocka_unit_test(refuses_by_name),
		cmocka_unit_test(accepts_what_changes_nothing),
		cmocka_unit_test(odd_heads_are_refused),
		cmocka_unit_test(missing_or_broken_files),
		cmocka_unit_test(references_that_compare_nothing_are_refused),
		cmocka_unit_test(verdicts),
	};

	return cmocka_run_group_tests_name("config", tests, setup, teardown);
}
