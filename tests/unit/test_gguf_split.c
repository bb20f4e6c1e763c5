// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_gguf_split.c - which files make up a model: split GGUF from any of its shards,
 * safetensors shards without an index, directories.  A set that is not whole is refused
 * by the name of what is missing.  From public reports on other tools: a wrong or an
 * incomplete set of shards was opened without a word, or with a misleading one.
 */
#include "gguf_build.h"

#include <ndp/tensors.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static char path[192];

static int setup(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/test_split.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[160];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

static const char *in_dir(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void refused(const char *what, int code, const char *const *words)
{
	struct ndp_tensors *untouched = (void *)1;
	struct ndp_tensors *ts = untouched;
	struct ndp_error err = { 0 };

	assert_int_equal(ndp_tensors_open(&ts, what, &err), code);
	assert_ptr_equal(ts, untouched);
	assert_int_equal(err.code, code);
	for (; *words; words++)
		if (!strstr(err.message, *words))
			fail_msg("\"%s\" does not say \"%s\"", err.message, *words);
}

#define assert_refused(what, code, ...) \
	refused(what, code, (const char *const[]){ __VA_ARGS__, NULL })

static struct ndp_tensors *opened(const char *what)
{
	struct ndp_tensors *ts = NULL;
	struct ndp_error err = { 0 };

	if (ndp_tensors_open(&ts, what, &err) < 0)
		fail_msg("%s", err.message);
	return ts;
}

/* ---- split GGUF -------------------------------------------------------- */

struct shard {
	uint16_t no, count;
	int32_t tensors;
	const char *tensor;	/* a NULL: no tensors */
};

static void write_shard(const char *name, const struct shard *s)
{
	struct gguf_build b = { 0 };

	gb_header(&b, 3, s->tensor ? 1 : 0, s->no == 0 ? 5 : 3);
	if (s->no == 0) {
		gb_key_string(&b, "general.architecture", "qwen3moe");
		gb_key_u32(&b, "qwen3moe.expert_count", 8);
	}
	/* The types that gguf-split writes. */
	gb_key(&b, "split.no", U16);
	gb_u16(&b, s->no);
	gb_key(&b, "split.count", U16);
	gb_u16(&b, s->count);
	gb_key(&b, "split.tensors.count", I32);
	gb_u32(&b, s->tensors);
	if (s->tensor) {
		gb_tensor1(&b, s->tensor, 4, GGML_I8, 0);
		gb_pad(&b, 32);
		gb_count(&b, 4, 10 * s->no);
	}
	gb_write(&b, in_dir(name));
	gb_free(&b);
}

static void write_three(void)
{
	write_shard("m-00001-of-00003.gguf", &(struct shard){ 0, 3, 3, "a" });
	write_shard("m-00002-of-00003.gguf", &(struct shard){ 1, 3, 3, "b" });
	write_shard("m-00003-of-00003.gguf", &(struct shard){ 2, 3, 3, "c" });
}

static void assert_three(const char *what)
{
	struct ndp_tensors *ts = opened(what);
	struct ndp_error err;
	uint64_t experts, no;

	assert_string_equal(ndp_tensors_format(ts), "gguf");
	assert_int_equal(ndp_tensors_count(ts), 3);
	for (int i = 0; i < 3; i++) {
		const struct ndp_tensor *t = ndp_tensors_get(ts, i);

		assert_int_equal(t->name[0], 'a' + i);
		assert_int_equal(*(const uint8_t *)t->data, 10 * i);
	}
	assert_non_null(strstr(ndp_tensors_get(ts, 2)->file, "m-00003-of-00003.gguf"));
	/* The metadata is the first shard's, whichever was named. */
	assert_int_equal(ndp_tensors_meta_count(ts), 5);
	assert_int_equal(ndp_tensors_meta_u64(ts, "qwen3moe.expert_count", 0, &experts, &err), 0);
	assert_int_equal(experts, 8);
	assert_int_equal(ndp_tensors_meta_u64(ts, "split.no", 0, &no, &err), 0);
	assert_int_equal(no, 0);
	ndp_tensors_close(ts);
}

static void opens_from_any_shard(void **state)
{
	(void)state;
	write_three();
	assert_three(in_dir("m-00001-of-00003.gguf"));
	assert_three(in_dir("m-00002-of-00003.gguf"));
	assert_three(in_dir("m-00003-of-00003.gguf"));
	assert_three(dir);
}

static void opens_from_its_own_folder(void **state)
{
	char *back;

	(void)state;
	write_three();
	back = getcwd(NULL, 0);
	assert_non_null(back);
	assert_int_equal(chdir(dir), 0);
	assert_three("m-00002-of-00003.gguf");
	assert_int_equal(chdir(back), 0);
	free(back);
}

static void names_the_missing_shard(void **state)
{
	(void)state;
	write_three();
	unlink(in_dir("m-00003-of-00003.gguf"));
	assert_refused(in_dir("m-00001-of-00003.gguf"), -ENOENT,
		       "m-00003-of-00003.gguf: this shard is missing", "there are 3");
	assert_refused(in_dir("m-00002-of-00003.gguf"), -ENOENT, "m-00003-of-00003.gguf",
		       "missing");
	assert_refused(dir, -ENOENT, "m-00003-of-00003.gguf", "missing");
	unlink(in_dir("m-00001-of-00003.gguf"));
	assert_refused(dir, -ENOENT, "m-00001-of-00003.gguf", "missing");
}

static void refuses_shards_that_disagree(void **state)
{
	(void)state;
	write_three();
	/* On the number of shards. */
	write_shard("m-00003-of-00003.gguf", &(struct shard){ 2, 4, 3, "c" });
	assert_refused(in_dir("m-00001-of-00003.gguf"), -EINVAL, "m-00003-of-00003.gguf",
		       "'split.count' is 4, but 3 in", "m-00001-of-00003.gguf", "disagree");
	assert_refused(in_dir("m-00003-of-00003.gguf"), -EINVAL, "m-00003-of-00003.gguf",
		       "'split.count' is 4, but the file's name says 3");
	/* On its own place. */
	write_shard("m-00003-of-00003.gguf", &(struct shard){ 1, 3, 3, "c" });
	assert_refused(in_dir("m-00001-of-00003.gguf"), -EINVAL, "m-00003-of-00003.gguf",
		       "'split.no' is 1, wanted is 2");
	assert_refused(in_dir("m-00003-of-00003.gguf"), -EINVAL, "'split.no' is 1", "shard 3");
	/* On the number of tensors. */
	write_shard("m-00003-of-00003.gguf", &(struct shard){ 2, 3, 9, "c" });
	assert_refused(in_dir("m-00001-of-00003.gguf"), -EINVAL, "m-00003-of-00003.gguf",
		       "'split.tensors.count' is 9, but 3 in");
	/* A whole model in the place of a shard. */
	write_shard("m-00003-of-00003.gguf", &(struct shard){ 0, 1, 1, "c" });
	assert_refused(in_dir("m-00001-of-00003.gguf"), -EINVAL, "'split.count' is 1, but 3");
}

static void refuses_wrong_numbers_of_tensors(void **state)
{
	(void)state;
	write_shard("m-00001-of-00002.gguf", &(struct shard){ 0, 2, 3, "a" });
	write_shard("m-00002-of-00002.gguf", &(struct shard){ 1, 2, 3, "b" });
	assert_refused(in_dir("m-00001-of-00002.gguf"), -EINVAL,
		       "'split.tensors.count' is 3, but the shards have 2");
	write_shard("m-00001-of-00002.gguf", &(struct shard){ 0, 2, 2, "b" });
	write_shard("m-00002-of-00002.gguf", &(struct shard){ 1, 2, 2, "b" });
	assert_refused(in_dir("m-00001-of-00002.gguf"), -EINVAL, "tensor 'b' is there twice",
		       "m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
	/* A first shard with nothing but metadata, as gguf-split --no-tensor-first-split makes. */
	write_shard("m-00001-of-00002.gguf", &(struct shard){ 0, 2, 1, NULL });
	write_shard("m-00002-of-00002.gguf", &(struct shard){ 1, 2, 1, "b" });
	ndp_tensors_close(opened(in_dir("m-00001-of-00002.gguf")));
}

static void refuses_split_keys_that_make_no_sense(void **state)
{
	struct gguf_build b = { 0 };

	(void)state;
	write_shard("renamed.gguf", &(struct shard){ 1, 3, 3, "b" });
	assert_refused(in_dir("renamed.gguf"), -EINVAL, "renamed.gguf: is shard 2 of a model of 3",
		       "-00002-of-00003.gguf");
	write_shard("m-00004-of-00003.gguf", &(struct shard){ 3, 3, 3, "b" });
	assert_refused(in_dir("m-00004-of-00003.gguf"), -EINVAL, "'split.no'", "is 3",
		       "'split.count' is 3");
	gb_header(&b, 3, 0, 1);
	gb_key_u32(&b, "split.count", 2);
	gb_write(&b, in_dir("x.gguf"));
	gb_free(&b);
	assert_refused(in_dir("x.gguf"), -EINVAL, "'split.no': is missing");
	gb_header(&b, 3, 0, 2);
	gb_key_u32(&b, "split.count", 2);
	gb_key_u32(&b, "split.no", 0);
	gb_write(&b, in_dir("x.gguf"));
	gb_free(&b);
	assert_refused(in_dir("x.gguf"), -EINVAL, "'split.tensors.count': is missing");
	gb_header(&b, 3, 0, 1);
	gb_key_string(&b, "split.count", "two");
	gb_write(&b, in_dir("x.gguf"));
	gb_free(&b);
	assert_refused(in_dir("x.gguf"), -EINVAL, "'split.count': is no integer");
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "split.count", I32);
	gb_u32(&b, (uint32_t)-1);
	gb_write(&b, in_dir("x.gguf"));
	gb_free(&b);
	assert_refused(in_dir("x.gguf"), -EINVAL, "'split.count': is no integer from 0 on");
	/* A model of one shard is a model, whatever its file is called. */
	write_shard("x.gguf", &(struct shard){ 0, 1, 1, "b" });
	ndp_tensors_close(opened(in_dir("x.gguf")));
}

/* ---- safetensors without an index -------------------------------------- */

static void write_safetensors(const char *name, const char *tensor, uint8_t value)
{
	struct gguf_build b = { 0 };
	char header[128];

	snprintf(header, sizeof(header),
		 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", tensor);
	gb_string(&b, header);
	gb_u8(&b, value);
	gb_write(&b, in_dir(name));
	gb_free(&b);
}

static void opens_shards_without_an_index(void **state)
{
	struct ndp_tensors *ts;

	(void)state;
	write_safetensors("model-00001-of-00003.safetensors", "a", 1);
	write_safetensors("model-00002-of-00003.safetensors", "b", 2);
	assert_refused(dir, -ENOENT, "model-00003-of-00003.safetensors: this shard is missing",
		       "2 of 3");
	write_safetensors("model-00003-of-00003.safetensors", "c", 3);
	write_safetensors("tokenizer.safetensors", "other", 0);
	write_safetensors("model-1-of-3.safetensors", "other", 0);
	ts = opened(dir);
	assert_string_equal(ndp_tensors_format(ts), "safetensors");
	assert_int_equal(ndp_tensors_count(ts), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(*(const uint8_t *)ndp_tensors_get(ts, i)->data, i + 1);
	ndp_tensors_close(ts);

	write_safetensors("model-00002-of-00003.safetensors", "a", 2);
	assert_refused(dir, -EINVAL, "tensor 'a' is there twice",
		       "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors");
	write_safetensors("model-00002-of-00003.safetensors", "b", 2);
	unlink(in_dir("model-00001-of-00003.safetensors"));
	assert_refused(dir, -ENOENT, "model-00001-of-00003.safetensors", "missing");
}

static void refuses_shards_of_two_models(void **state)
{
	(void)state;
	write_safetensors("model-00001-of-00001.safetensors", "a", 1);
	ndp_tensors_close(opened(dir));
	write_safetensors("model-00001-of-00002.safetensors", "a", 1);
	assert_refused(dir, -EINVAL, "more than one model", "model-00001-of-00001.safetensors",
		       "model-00001-of-00002.safetensors");
	unlink(in_dir("model-00001-of-00002.safetensors"));
	write_safetensors("other-00001-of-00001.safetensors", "a", 1);
	assert_refused(dir, -EINVAL, "more than one model");
	unlink(in_dir("other-00001-of-00001.safetensors"));
	write_safetensors("model-00002-of-00001.safetensors", "b", 1);
	assert_refused(dir, -EINVAL, "model-00002-of-00001.safetensors is no shard of 1");
	unlink(in_dir("model-00002-of-00001.safetensors"));
	write_safetensors("model-00000-of-00001.safetensors", "b", 1);
	assert_refused(dir, -EINVAL, "model-00000-of-00001.safetensors is no shard of 1");
	unlink(in_dir("model-00001-of-00001.safetensors"));
	unlink(in_dir("model-00000-of-00001.safetensors"));
	write_safetensors("model-00000-of-00000.safetensors", "b", 1);
	assert_refused(dir, -EINVAL, "is no shard of 0");
}

/* ---- directories ------------------------------------------------------- */

static void chooses_between_no_two_models(void **state)
{
	(void)state;
	assert_refused(dir, -ENOENT, dir, "holds no model", "model.safetensors");
	write_shard("one.gguf", &(struct shard){ 0, 1, 1, "a" });
	ndp_tensors_close(opened(dir));
	write_shard("two.gguf", &(struct shard){ 0, 1, 1, "a" });
	assert_refused(dir, -EINVAL, "more than one model", "one.gguf", "two.gguf");
	unlink(in_dir("two.gguf"));
	write_safetensors("model.safetensors", "a", 1);
	assert_refused(dir, -EINVAL, "more than one model", "one.gguf", "model.safetensors");
	unlink(in_dir("one.gguf"));
	ndp_tensors_close(opened(dir));
	write_three();
	unlink(in_dir("model.safetensors"));
	write_shard("n-00001-of-00003.gguf", &(struct shard){ 0, 3, 3, "a" });
	assert_refused(dir, -EINVAL, "more than one model");
}

/* A name promises nothing: in a directory the content has to be what the name says. */
static void takes_no_file_for_another_format(void **state)
{
	(void)state;
	write_shard("model.safetensors", &(struct shard){ 0, 1, 1, "a" });
	assert_refused(dir, -EINVAL, "model.safetensors", "header");
	unlink(in_dir("model.safetensors"));
	write_safetensors("m.gguf", "a", 1);
	assert_refused(dir, -EINVAL, "m.gguf", "\"GGUF\"");
	unlink(in_dir("m.gguf"));
	assert_int_equal(mkfifo(in_dir("m.gguf"), 0600), 0);
	assert_refused(dir, -EINVAL, "m.gguf: is no regular file");
}

int main(void)
{
#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		test(opens_from_any_shard),
		test(opens_from_its_own_folder),
		test(names_the_missing_shard),
		test(refuses_shards_that_disagree),
		test(refuses_wrong_numbers_of_tensors),
		test(refuses_split_keys_that_make_no_sense),
		test(opens_shards_without_an_index),
		test(refuses_shards_of_two_models),
		test(chooses_between_no_two_models),
		test(takes_no_file_for_another_format),
	};

	return cmocka_run_group_tests_name("gguf_split", tests, NULL, NULL);
}
