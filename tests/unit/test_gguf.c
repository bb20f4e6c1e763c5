// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_gguf.c - the reader of GGUF: what good files hold, and that hostile ones are
 * refused by file, tensor or key, and field.  Every file is read twice, from a mapping and
 * from memory that ends where the file ends.
 */
#include "gguf_build.h"
#include "tensors_memory.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/test_gguf.XXXXXX";
static char path[64];

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	/* Not by its name is a file known for what it is. */
	snprintf(path, sizeof(path), "%s/model.bin", dir);
	return 0;
}

static int teardown(void **state)
{
	char command[160];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

static struct ndp_tensors *open_good(struct gguf_build *b)
{
	struct ndp_error err = { 0 };
	struct ndp_tensors *ts = NULL;

	gb_write(b, path);
	gb_free(b);
	if (ndp_tensors_open(&ts, path, &err) < 0)
		fail_msg("%s", err.message);
	return ts;
}

static int open_exactly(const void *bytes, size_t n, struct ndp_error *err)
{
	struct ndp_tensors *ts = NULL;
	struct tensor_file file;
	void *copy = malloc(n ? n : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, bytes, n);
	r = tensors_open_memory(&ts, copy, n, path, &file, err);
	if (r == 0)
		ndp_tensors_close(ts);
	free(copy);
	return r;
}

static void says(const struct ndp_error *err, int code, const char *const *words)
{
	assert_int_equal(err->code, code);
	assert_non_null(strstr(err->message, path));
	for (; *words; words++)
		if (!strstr(err->message, *words))
			fail_msg("\"%s\" does not say \"%s\"", err->message, *words);
}

/* Reading @b fails with @code and says each of @words; frees @b. */
static void refused(struct gguf_build *b, int code, const char *const *words)
{
	struct ndp_tensors *untouched = (void *)1;
	struct ndp_tensors *ts = untouched;
	struct ndp_error err = { 0 };

	gb_write(b, path);
	assert_int_equal(ndp_tensors_open(&ts, path, &err), code);
	assert_ptr_equal(ts, untouched);
	says(&err, code, words);
	err = (struct ndp_error){ 0 };
	assert_int_equal(open_exactly(b->bytes, b->n, &err), code);
	says(&err, code, words);
	/* A caller that wants no sentence gets the same answer. */
	assert_int_equal(open_exactly(b->bytes, b->n, NULL), code);
	gb_free(b);
}

#define assert_refused(b, code, ...) refused(b, code, (const char *const[]){ __VA_ARGS__, NULL })

/* ---- good files -------------------------------------------------------- */

/* One key, two tensors; the first one at offset 0. */
static void build_small(struct gguf_build *b)
{
	const uint64_t dims[] = { 3, 2 };

	gb_header(b, 3, 2, 1);
	gb_key_string(b, "general.architecture", "llama");
	gb_tensor(b, "first", 2, dims, GGML_F32, 0);
	gb_tensor1(b, "second", 4, GGML_BF16, 32);
	gb_pad(b, 32);
	gb_count(b, 24, 0);
	gb_pad(b, 32);
	gb_count(b, 8, 100);
}

static void reads_tensors(void **state)
{
	struct gguf_build b = { 0 };
	const struct ndp_tensor *t;
	struct ndp_tensors *ts;
	float f[6];
	float expected;

	(void)state;
	build_small(&b);
	ts = open_good(&b);
	assert_string_equal(ndp_tensors_format(ts), "gguf");
	assert_int_equal(ndp_tensors_count(ts), 2);
	t = ndp_tensors_get(ts, 0);
	assert_string_equal(t->name, "first");
	assert_string_equal(t->file, path);
	assert_int_equal(t->dtype, NDP_DTYPE_F32);
	assert_int_equal(t->nr_dims, 2);
	assert_int_equal(t->dims[0], 2); /* outermost first */
	assert_int_equal(t->dims[1], 3);
	assert_int_equal(t->elements, 6);
	assert_int_equal(t->bytes, 24);
	assert_int_equal(ndp_tensor_read_f32(t, 0, 6, f), 0);
	memcpy(&expected, (const uint8_t[]){ 4, 5, 6, 7 }, 4);
	assert_memory_equal(&f[1], &expected, 4);
	t = ndp_tensors_find(ts, "second");
	assert_int_equal(t->dtype, NDP_DTYPE_BF16);
	assert_memory_equal(t->data, ((const uint8_t[]){ 100, 101, 102, 103 }), 4);
	ndp_tensors_close(ts);
}

static void reads_version_2_holes_and_alignment(void **state)
{
	struct gguf_build b = { 0 };
	struct ndp_tensors *ts;

	(void)state;
	/* The later tensor comes first in the table; 512 bytes belong to none; a tail follows. */
	gb_header(&b, 2, 2, 1);
	gb_key_u32(&b, "general.alignment", 256);
	gb_tensor1(&b, "late", 8, GGML_I8, 768);
	gb_tensor1(&b, "early", 8, GGML_I8, 0);
	gb_pad(&b, 256);
	gb_count(&b, 768, 0);
	gb_count(&b, 8, 50);
	gb_count(&b, 99, 0);
	ts = open_good(&b);
	assert_int_equal(*(const uint8_t *)ndp_tensors_find(ts, "early")->data, 0);
	assert_int_equal(*(const uint8_t *)ndp_tensors_find(ts, "late")->data, 50);
	ndp_tensors_close(ts);
}

static void reads_a_file_without_tensors(void **state)
{
	struct gguf_build b = { 0 };
	struct ndp_tensors *ts;

	(void)state;
	gb_header(&b, 3, 0, 0);
	ts = open_good(&b);
	assert_int_equal(ndp_tensors_count(ts), 0);
	assert_int_equal(ndp_tensors_meta_count(ts), 0);
	assert_null(ndp_tensors_meta_get(ts, 0));
	assert_null(ndp_tensors_find(ts, ""));
	ndp_tensors_close(ts);
}

/* Types that are not read are known by name and size, and hinder nobody. */
static void knows_types_that_it_does_not_read(void **state)
{
	static const struct {
		uint32_t type;
		const char *name;
		uint64_t dim, bytes;
	} types[] = {
		{ 3, "Q4_1", 32, 20 },	  { 6, "Q5_0", 32, 22 },    { 7, "Q5_1", 32, 24 },
		{ 9, "Q8_1", 32, 36 },	  { 10, "Q2_K", 256, 84 },  { 11, "Q3_K", 256, 110 },
		{ 12, "Q4_K", 256, 144 }, { 13, "Q5_K", 256, 176 }, { 14, "Q6_K", 256, 210 },
		{ 15, "Q8_K", 256, 292 }, { 16, "IQ2_XXS", 256, 66 }, { 17, "IQ2_XS", 256, 74 },
		{ 18, "IQ3_XXS", 256, 98 }, { 19, "IQ1_S", 256, 50 }, { 20, "IQ4_NL", 32, 18 },
		{ 21, "IQ3_S", 256, 110 }, { 22, "IQ2_S", 256, 82 }, { 23, "IQ4_XS", 256, 136 },
		{ 24, "I8", 1, 1 },	  { 25, "I16", 1, 2 },	    { 26, "I32", 1, 4 },
		{ 27, "I64", 1, 8 },	  { 28, "F64", 1, 8 },	    { 29, "IQ1_M", 256, 56 },
		{ 34, "TQ1_0", 256, 54 }, { 35, "TQ2_0", 256, 66 }, { 40, "NVFP4", 64, 36 },
	};
	uint8_t guard[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		struct gguf_build b = { 0 };
		const struct ndp_tensor *t;
		struct ndp_tensors *ts;

		gb_header(&b, 3, 2, 0);
		gb_tensor1(&b, "other", types[i].dim, types[i].type, 0);
		gb_tensor1(&b, "b", 1, GGML_F32, 512);
		gb_pad(&b, 32);
		gb_count(&b, 516, 0);
		ts = open_good(&b);
		t = ndp_tensors_find(ts, "other");
		assert_string_equal(ndp_dtype_name(t->dtype), types[i].name);
		assert_int_equal(t->elements, types[i].dim);
		assert_int_equal(t->bytes, types[i].bytes);
		assert_false(ndp_dtype_readable(t->dtype));
		assert_int_equal(ndp_tensor_read_f32(t, 0, 1, (float *)guard), -ENOTSUP);
		assert_int_equal(ndp_tensor_read_bf16(t, 0, 1, (ndp_bf16 *)guard), -ENOTSUP);
		assert_int_equal(ndp_tensor_read_f32(ndp_tensors_find(ts, "b"), 0, 1,
						     (float *)guard), 0);
		ndp_tensors_close(ts);
	}
}

static void takes_no_name_for_a_format(void **state)
{
	static const char header[] = "{}";
	struct gguf_build b = { 0 };
	struct ndp_tensors *ts;
	char name[80];

	(void)state;
	snprintf(name, sizeof(name), "%s/model.gguf", dir);
	gb_u64(&b, 2);
	gb_bytes(&b, header, 2);
	gb_write(&b, name);
	gb_free(&b);
	assert_int_equal(ndp_tensors_open(&ts, name, NULL), 0);
	assert_string_equal(ndp_tensors_format(ts), "safetensors");
	assert_int_equal(ndp_tensors_meta_count(ts), 0);
	ndp_tensors_close(ts);
	unlink(name);
}

/* ---- metadata ---------------------------------------------------------- */

enum { MANY = 300 };

static void build_meta(struct gguf_build *b)
{
	char text[16];

	gb_header(b, 3, 0, 16);
	gb_key(b, "u8", U8);
	gb_u8(b, 200);
	gb_key(b, "i8", I8);
	gb_u8(b, (uint8_t)-3);
	gb_key(b, "u16", U16);
	gb_u16(b, 60000);
	gb_key(b, "i16", I16);
	gb_u16(b, (uint16_t)-300);
	gb_key_u32(b, "u32", 4000000000u);
	gb_key(b, "i32", I32);
	gb_u32(b, 7);
	gb_key(b, "u64", U64);
	gb_u64(b, UINT64_MAX);
	gb_key(b, "i64", I64);
	gb_u64(b, (uint64_t)INT64_MIN);
	gb_key(b, "f32", F32);
	gb_bytes(b, &(float){ 2.5f }, 4);
	gb_key(b, "f64", F64);
	gb_bytes(b, &(double){ 0.1 }, 8);
	gb_key(b, "bool", BOOL);
	gb_u8(b, 1);
	gb_key_string(b, "string", "deepseek2");
	gb_key_array(b, "numbers", I32, 3);
	gb_u32(b, 1);
	gb_u32(b, (uint32_t)-2);
	gb_u32(b, 3);
	gb_key_array(b, "strings", STRING, MANY);
	for (int i = 0; i < MANY; i++) {
		snprintf(text, sizeof(text), i % 7 ? "token %d" : "", i);
		gb_string(b, text);
	}
	gb_key_array(b, "none", U64, 0);
	gb_key_array(b, "nested", ARRAY, 2);
	gb_u32(b, U8);
	gb_u64(b, 3);
	gb_count(b, 3, 0);
	gb_u32(b, STRING);
	gb_u64(b, 1);
	gb_string(b, "x");
}

static void reads_metadata(void **state)
{
	struct gguf_build b = { 0 };
	struct ndp_error err = { 0 };
	const struct ndp_meta *m;
	struct ndp_tensors *ts;
	const char *text;
	size_t length;
	uint64_t u = 0;
	int64_t i = 0;
	double d = 0;
	bool yes = false;

	(void)state;
	build_meta(&b);
	ts = open_good(&b);
	assert_int_equal(ndp_tensors_meta_count(ts), 16);
	assert_string_equal(ndp_tensors_meta_get(ts, 0)->key, "bool");
	assert_string_equal(ndp_tensors_meta_get(ts, 15)->key, "u8");
	assert_null(ndp_tensors_meta_get(ts, 16));
	assert_null(ndp_tensors_meta_find(ts, "u"));

#define u64(key, value)                                                        \
	do {                                                                   \
		assert_int_equal(ndp_tensors_meta_u64(ts, key, 0, &u, &err), 0); \
		assert_true(u == (value));                                     \
	} while (0)
#define i64(key, value)                                                        \
	do {                                                                   \
		assert_int_equal(ndp_tensors_meta_i64(ts, key, 0, &i, &err), 0); \
		assert_true(i == (value));                                     \
	} while (0)
#define f64(key, value)                                                        \
	do {                                                                   \
		assert_int_equal(ndp_tensors_meta_f64(ts, key, 0, &d, &err), 0); \
		assert_true(d == (value));                                     \
	} while (0)
	u64("u8", 200);
	u64("u16", 60000);
	u64("u32", 4000000000u);
	u64("i32", 7);
	u64("u64", UINT64_MAX);
	i64("u8", 200);
	i64("i8", -3);
	i64("i16", -300);
	i64("i64", INT64_MIN);
	f64("f32", 2.5);
	f64("f64", 0.1);
	f64("i16", -300.0);
	f64("u64", 0x1p64);

	assert_int_equal(ndp_tensors_meta_bool(ts, "bool", 0, &yes, &err), 0);
	assert_true(yes);
	assert_int_equal(ndp_tensors_meta_string(ts, "string", 0, &text, &length, &err), 0);
	assert_int_equal(length, 9);
	assert_memory_equal(text, "deepseek2", 9);

	m = ndp_tensors_meta_find(ts, "numbers");
	assert_true(m->array);
	assert_int_equal(m->count, 3);
	assert_int_equal(m->type, NDP_META_INT);
	assert_int_equal(ndp_tensors_meta_i64(ts, "numbers", 1, &i, &err), 0);
	assert_int_equal(i, -2);
	m = ndp_tensors_meta_find(ts, "nested");
	assert_true(m->array && m->type == NDP_META_ARRAY);
	assert_int_equal(ndp_tensors_meta_find(ts, "none")->count, 0);
	assert_int_equal(ndp_tensors_meta_find(ts, "u8")->count, 1);
	assert_false(ndp_tensors_meta_find(ts, "u8")->array);
	for (int k = 0; k < MANY; k++) {
		char expected[16];

		snprintf(expected, sizeof(expected), k % 7 ? "token %d" : "", k);
		assert_int_equal(ndp_tensors_meta_string(ts, "strings", k, &text, &length, &err),
				 0);
		assert_int_equal(length, strlen(expected));
		assert_memory_equal(text, expected, length);
	}
	ndp_tensors_close(ts);
}

static void refuses_metadata_of_another_kind(void **state)
{
	struct gguf_build b = { 0 };
	struct ndp_error err = { 0 };
	struct ndp_tensors *ts;
	const char *text;
	size_t length;
	uint64_t u = 42;
	int64_t i = 42;
	double d = 42;
	bool yes;

	(void)state;
	build_meta(&b);
	ts = open_good(&b);
	assert_int_equal(ndp_tensors_meta_u64(ts, "expert_count", 0, &u, &err), -ENOENT);
	says(&err, -ENOENT, (const char *const[]){ "'expert_count' is missing", NULL });
	assert_int_equal(ndp_tensors_meta_u64(ts, "string", 0, &u, &err), -EINVAL);
	says(&err, -EINVAL, (const char *const[]){ "'string' is of type string", "integer", NULL });
	assert_int_equal(ndp_tensors_meta_u64(ts, "f32", 0, &u, &err), -EINVAL);
	assert_int_equal(ndp_tensors_meta_u64(ts, "i8", 0, &u, &err), -ERANGE);
	says(&err, -ERANGE, (const char *const[]){ "'i8'", "does not fit", NULL });
	assert_int_equal(ndp_tensors_meta_i64(ts, "u64", 0, &i, &err), -ERANGE);
	assert_int_equal(ndp_tensors_meta_u64(ts, "numbers", 3, &u, &err), -ERANGE);
	says(&err, -ERANGE, (const char *const[]){ "'numbers' has 3 elements", "number 3", NULL });
	assert_int_equal(ndp_tensors_meta_u64(ts, "u8", 1, &u, &err), -ERANGE);
	assert_int_equal(ndp_tensors_meta_f64(ts, "f32", 1, &d, &err), -ERANGE);
	assert_int_equal(ndp_tensors_meta_f64(ts, "string", 0, &d, &err), -EINVAL);
	assert_int_equal(ndp_tensors_meta_bool(ts, "u8", 0, &yes, &err), -EINVAL);
	assert_int_equal(ndp_tensors_meta_bool(ts, "bool", 1, &yes, &err), -ERANGE);
	assert_int_equal(ndp_tensors_meta_string(ts, "u8", 0, &text, &length, &err), -EINVAL);
	assert_int_equal(ndp_tensors_meta_string(ts, "strings", MANY, &text, &length, &err),
			 -ERANGE);
	assert_int_equal(ndp_tensors_meta_u64(ts, "nested", 0, &u, &err), -EINVAL);
	assert_int_equal(ndp_tensors_meta_u64(ts, "none", 0, &u, NULL), -ERANGE);
	assert_int_equal(u, 42);
	assert_int_equal(i, 42);
	assert_true(d == 42);
	ndp_tensors_close(ts);
}

/* ---- hostile files: the header ----------------------------------------- */

static void refuses_bad_headers(void **state)
{
	static const struct {
		uint32_t version;
		uint64_t tensors, keys;
		int code;
		const char *says;
	} cases[] = {
		{ 1, 0, 0, -ENOTSUP, "'version' is 1, wanted is 2 or 3" },
		{ 4, 0, 0, -ENOTSUP, "'version' is 4" },
		{ 0, 0, 0, -ENOTSUP, "'version' is 0" },
		{ 0x03000000, 0, 0, -ENOTSUP, "big-endian" },
		/* Counts that would want more memory than the file has bytes. */
		{ 3, 1, 0, -EINVAL, "'tensor_count' is 1, this file has room for 0" },
		{ 3, UINT64_MAX, 0, -EINVAL, "'tensor_count' is 18446744073709551615" },
		{ 3, 0, 1, -EINVAL, "'metadata_kv_count' is 1, this file has room for 0" },
		{ 3, 0, UINT64_MAX / 2 + 1, -EINVAL, "'metadata_kv_count'" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf_build b = { 0 };

		gb_header(&b, cases[i].version, cases[i].tensors, cases[i].keys);
		assert_refused(&b, cases[i].code, "header", cases[i].says);
	}
}

static void refuses_every_truncation(void **state)
{
	struct gguf_build b = { 0 };
	struct ndp_error err;

	(void)state;
	build_small(&b);
	assert_int_equal(open_exactly(b.bytes, b.n, NULL), 0);
	for (size_t n = 4; n < b.n; n++) {
		assert_int_equal(open_exactly(b.bytes, n, &err), -EINVAL);
		assert_non_null(strstr(err.message, path));
	}
	gb_free(&b);
	build_meta(&b);
	for (size_t n = 4; n < b.n; n++)
		assert_int_equal(open_exactly(b.bytes, n, NULL), -EINVAL);
	gb_free(&b);
	/* A cut in the table, by its name. */
	build_small(&b);
	b.n = 24 + 8 + 20 + 4 + 8 + 5 + 8 + 5 + 4 + 8 + 8 + 2;
	assert_refused(&b, -EINVAL, "'first'", "'type' of 4 bytes leaves the file, which has 2");
}

/* No byte of a good file can be changed to something that harms the reader. */
static void survives_every_changed_byte(void **state)
{
	static const uint8_t values[] = { 0, 1, 2, 8, 9, 13, 0x20, 0x7f, 0x80, 0xfe, 0xff };
	struct gguf_build b = { 0 };

	(void)state;
	for (int which = 0; which < 2; which++) {
		if (which)
			build_meta(&b);
		else
			build_small(&b);
		for (size_t i = 0; i < b.n; i++) {
			uint8_t old = b.bytes[i];

			for (size_t v = 0; v < sizeof(values); v++) {
				b.bytes[i] = values[v];
				open_exactly(b.bytes, b.n, NULL);
			}
			b.bytes[i] = old;
		}
		gb_free(&b);
	}
}

/* ---- hostile files: metadata ------------------------------------------- */

static void refuses_bad_keys(void **state)
{
	struct gguf_build b = { 0 };

	(void)state;
	gb_header(&b, 3, 0, 1);
	gb_u64(&b, UINT64_MAX - 3);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "key 1 of 1", "'key' has 18446744073709551612 bytes");
	gb_header(&b, 3, 0, 1);
	gb_u64(&b, 60000);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "key 1 of 1", "'key' of 60000 bytes leaves the file");
	gb_header(&b, 3, 0, 1);
	gb_key_u32(&b, "", 1);
	gb_u32(&b, 0);
	assert_refused(&b, -EINVAL, "'key' has 0 bytes");
	gb_header(&b, 3, 0, 1);
	gb_u64(&b, 3);
	gb_bytes(&b, "a\0b", 3);
	gb_u32(&b, U32);
	gb_u32(&b, 0);
	assert_refused(&b, -EINVAL, "'key' has a NUL byte");
	gb_header(&b, 3, 0, 2);
	gb_key_u32(&b, "n", 1);
	gb_key_u32(&b, "n", 1);
	assert_refused(&b, -EINVAL, "key 'n': is there twice");
	/* Escape sequences for a terminal do not come out of an error. */
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "\033[31m", 99);
	gb_u64(&b, 0);
	assert_refused(&b, -EINVAL, "'?[31m'", "'type' is 99");
}

static void refuses_bad_values(void **state)
{
	struct gguf_build b = { 0 };

	(void)state;
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "k", 13);
	gb_u64(&b, 0);
	assert_refused(&b, -EINVAL, "key 'k'", "'type' is 13");
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "k", BOOL);
	gb_u8(&b, 2);
	assert_refused(&b, -EINVAL, "key 'k'", "bool");
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "k", BOOL, 3);
	gb_count(&b, 3, 0);
	assert_refused(&b, -EINVAL, "key 'k'", "has the byte 2");
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "k", STRING);
	gb_u64(&b, UINT64_MAX);
	assert_refused(&b, -EINVAL, "key 'k'", "'value' of 18446744073709551615 bytes");
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "k", 13, 0);
	assert_refused(&b, -EINVAL, "key 'k'", "'array type' is 13");
	/* 2^61 elements of 8 bytes wrap to none. */
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "k", U64, 1ULL << 61);
	assert_refused(&b, -EINVAL, "key 'k'", "2305843009213693952 elements of 8 bytes");
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "k", STRING, UINT64_MAX);
	gb_string(&b, "one");
	assert_refused(&b, -EINVAL, "key 'k'", "'value' of 8 bytes leaves the file");
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "k", STRING, 1);
	gb_u64(&b, 1ULL << 63);
	assert_refused(&b, -EINVAL, "key 'k'", "9223372036854775808");
}

static void refuses_deep_nesting(void **state)
{
	struct gguf_build b = { 0 };

	(void)state;
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "k", ARRAY);
	for (int i = 0; i < 1000000; i++) {
		gb_u32(&b, ARRAY);
		gb_u64(&b, 1);
	}
	assert_refused(&b, -EINVAL, "key 'k'", "arrays in arrays");
	/* What is less deep is passed over. */
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "k", ARRAY);
	for (int i = 0; i < 3; i++) {
		gb_u32(&b, ARRAY);
		gb_u64(&b, 1);
	}
	gb_u32(&b, U8);
	gb_u64(&b, 0);
	assert_int_equal(open_exactly(b.bytes, b.n, NULL), 0);
	gb_free(&b);
}

static void refuses_bad_alignments(void **state)
{
	static const uint32_t wrong[] = { 0, 1, 4, 12, 33, 48, 0x80000001, UINT32_MAX };
	struct gguf_build b = { 0 };
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		gb_header(&b, 3, 1, 1);
		gb_key_u32(&b, "general.alignment", wrong[i]);
		gb_tensor1(&b, "t", 1, GGML_F32, 0);
		gb_count(&b, 200, 0);
		snprintf(text, sizeof(text), "is %u,", wrong[i]);
		assert_refused(&b, -EINVAL, "'general.alignment'", text, "power of two");
	}
	gb_header(&b, 3, 0, 1);
	gb_key(&b, "general.alignment", U64);
	gb_u64(&b, 32);
	assert_refused(&b, -EINVAL, "'general.alignment'", "32-bit");
	gb_header(&b, 3, 0, 1);
	gb_key_array(&b, "general.alignment", U32, 0);
	assert_refused(&b, -EINVAL, "'general.alignment'", "32-bit");
	/* Larger than the file: no data begins in it. */
	gb_header(&b, 3, 1, 1);
	gb_key_u32(&b, "general.alignment", 0x80000000);
	gb_tensor1(&b, "t", 1, GGML_F32, 0);
	gb_count(&b, 200, 0);
	assert_refused(&b, -EINVAL, "'t'", "'offset' 0", "0 bytes of data");
}

/* ---- hostile files: tensors -------------------------------------------- */

static void refuses_bad_tensors(void **state)
{
	static const struct {
		uint32_t n_dims;
		uint64_t dims[5];
		uint32_t type;
		uint64_t offset;
		int code;
		const char *says;
	} cases[] = {
		{ 5, { 1, 1, 1, 1, 1 }, GGML_F32, 0, -EINVAL, "'n_dims' is 5, at most 4" },
		{ 1, { 0 }, GGML_F32, 0, -EINVAL, "'dims[0]' is zero" },
		{ 3, { 2, 0, 2 }, GGML_F32, 0, -EINVAL, "'dims[1]' is zero" },
		/* 2^32 * 2^32 = 0, 4 * 2^62 = 0 and 34 * 2^59 is little in 64 bits */
		{ 2, { 1ULL << 32, 1ULL << 32 }, GGML_I8, 0, -EINVAL, "product of 'dims'" },
		{ 4, { 1ULL << 16, 1ULL << 16, 1ULL << 16, 1ULL << 16 }, GGML_F32, 0, -EINVAL,
		  "product of 'dims'" },
		{ 1, { 1ULL << 62 }, GGML_F32, 0, -EINVAL, "'dims' and 'type'" },
		{ 1, { UINT64_MAX - 31 }, GGML_Q8_0, 0, -EINVAL, "'dims' and 'type'" },
		{ 1, { 1ULL << 63 }, GGML_Q8_0, 0, -EINVAL, "leave the file" },
		{ 1, { 33 }, GGML_Q8_0, 0, -EINVAL,
		  "'dims[0]' is 33, Q8_0 wants a multiple of 32" },
		{ 2, { 16, 2 }, GGML_MXFP4, 0, -EINVAL, "MXFP4 wants a multiple of 32" },
		{ 0, { 0 }, GGML_Q4_0, 0, -EINVAL, "Q4_0 wants a multiple of 32" },
		{ 1, { 4 }, 4, 0, -ENOTSUP, "'type' is 4, which the format has dropped" },
		{ 1, { 4 }, 36, 0, -ENOTSUP, "'type' is 36" },
		{ 1, { 4 }, 41, 0, -ENOTSUP, "'type' is 41, which is not known here" },
		{ 1, { 4 }, UINT32_MAX, 0, -ENOTSUP, "'type' is 4294967295" },
		{ 1, { 4 }, GGML_F32, 8, -EINVAL, "'offset' is 8, wanted is a multiple" },
		{ 1, { 4 }, GGML_F32, 1ULL << 40, -EINVAL, "leave the file" },
		{ 1, { 4 }, GGML_F32, UINT64_MAX - 31, -EINVAL, "leave the file" },
		{ 1, { 17 }, GGML_F32, 0, -EINVAL, "68 bytes leave the file, which has 64 bytes" },
		{ 1, { 9 }, GGML_F32, 32, -EINVAL, "leave the file" },
		{ 1, { 1 }, GGML_F32, 64, -EINVAL, "leave the file" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf_build b = { 0 };

		gb_header(&b, 3, 1, 0);
		gb_tensor(&b, "the.tensor", cases[i].n_dims, cases[i].dims, cases[i].type,
			  cases[i].offset);
		gb_pad(&b, 32);
		gb_count(&b, 64, 0);
		assert_refused(&b, cases[i].code, "tensor 'the.tensor'", cases[i].says);
	}
}

static void refuses_bad_names(void **state)
{
	char longer[1026];
	struct gguf_build b = { 0 };

	(void)state;
	gb_header(&b, 3, 1, 0);
	gb_tensor1(&b, "", 1, GGML_F32, 0);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "tensor 1 of 1", "'name' has 0 bytes");
	memset(longer, 'n', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	gb_header(&b, 3, 1, 0);
	gb_tensor1(&b, longer, 1, GGML_F32, 0);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "tensor 1 of 1", "'name' has 1025 bytes");
	gb_header(&b, 3, 1, 0);
	gb_u64(&b, UINT64_MAX);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "tensor 1 of 1", "'name' has 18446744073709551615 bytes");
	gb_header(&b, 3, 2, 0);
	gb_tensor1(&b, "twin", 1, GGML_F32, 0);
	gb_tensor1(&b, "twin", 1, GGML_F32, 32);
	gb_pad(&b, 32);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "tensor 'twin'", "twice");
}

static void refuses_overlap(void **state)
{
	struct gguf_build b = { 0 };

	(void)state;
	gb_header(&b, 3, 2, 0);
	gb_tensor1(&b, "low", 16, GGML_F32, 0);
	gb_tensor1(&b, "high", 8, GGML_F32, 32);
	gb_pad(&b, 32);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "tensor 'high'", "'offset' lies in the data of 'low'");
	gb_header(&b, 3, 2, 0);
	gb_tensor1(&b, "one", 8, GGML_F32, 0);
	gb_tensor1(&b, "two", 8, GGML_F32, 0);
	gb_pad(&b, 32);
	gb_count(&b, 64, 0);
	assert_refused(&b, -EINVAL, "lies in the data of");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_tensors),
		cmocka_unit_test(reads_version_2_holes_and_alignment),
		cmocka_unit_test(reads_a_file_without_tensors),
		cmocka_unit_test(knows_types_that_it_does_not_read),
		cmocka_unit_test(takes_no_name_for_a_format),
		cmocka_unit_test(reads_metadata),
		cmocka_unit_test(refuses_metadata_of_another_kind),
		cmocka_unit_test(refuses_bad_headers),
		cmocka_unit_test(refuses_every_truncation),
		cmocka_unit_test(survives_every_changed_byte),
		cmocka_unit_test(refuses_bad_keys),
		cmocka_unit_test(refuses_bad_values),
		cmocka_unit_test(refuses_deep_nesting),
		cmocka_unit_test(refuses_bad_alignments),
		cmocka_unit_test(refuses_bad_tensors),
		cmocka_unit_test(refuses_bad_names),
		cmocka_unit_test(refuses_overlap),
	};

	return cmocka_run_group_tests_name("gguf", tests, setup, teardown);
}
