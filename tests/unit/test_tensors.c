// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_tensors.c - the reader of model files: what good files hold, and that
 * hostile ones are refused by file, tensor and field.  Cases of wrapping shapes
 * and truncated tables come from public reports on other readers.
 */
#include <ndp/tensors.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/test_tensors.XXXXXX";
static char path[128];

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	return 0;
}

static int teardown(void **state)
{
	char command[160];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

static void write_bytes(const char *file, const void *bytes, size_t n)
{
	FILE *f = fopen(file, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

/* A file with this length field, this header and @data_bytes of data 0, 1, 2, ... */
static void write_raw(const char *file, uint64_t length, const char *header, size_t data_bytes)
{
	size_t n = strlen(header);
	uint8_t *buf = malloc(8 + n + data_bytes);

	assert_non_null(buf);
	for (int i = 0; i < 8; i++)
		buf[i] = length >> 8 * i;
	memcpy(buf + 8, header, n);
	for (size_t i = 0; i < data_bytes; i++)
		buf[8 + n + i] = i;
	write_bytes(file, buf, 8 + n + data_bytes);
	free(buf);
}

static void write_file(const char *file, const char *header, size_t data_bytes)
{
	write_raw(file, strlen(header), header, data_bytes);
}

/* Opening @what fails with @code and says each of @words. */
static void assert_refused_at(const char *what, int code, const char *const *words)
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
	/* A caller that wants no sentence gets the same answer. */
	assert_int_equal(ndp_tensors_open(&ts, what, NULL), code);
}

#define assert_refused(code, ...)     \
	assert_refused_at(path, code, \
			  (const char *const[]){ "model.safetensors", __VA_ARGS__, NULL })

/* ---- good files -------------------------------------------------------- */

static void reads_tensors(void **state)
{
	struct ndp_tensors *ts;
	const struct ndp_tensor *t;
	float f[4];
	ndp_bf16 b[2];

	(void)state;
	/* Data in another order than the header; one scalar, one empty tensor. */
	write_file(path,
		   "{\"__metadata__\":{\"format\":\"pt\"},"
		   "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[8,12]},"
		   "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
		   "\"nothing\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[8,8]},"
		   "\"h\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[12,14]}}   ",
		   14);
	assert_int_equal(ndp_tensors_open(&ts, path, NULL), 0);
	assert_int_equal(ndp_tensors_count(ts), 4);
	assert_string_equal(ndp_tensors_get(ts, 0)->name, "a");
	assert_string_equal(ndp_tensors_get(ts, 3)->name, "nothing");
	assert_null(ndp_tensors_get(ts, 4));
	assert_null(ndp_tensors_find(ts, "c"));

	t = ndp_tensors_find(ts, "b");
	assert_non_null(t);
	assert_int_equal(t->dtype, NDP_DTYPE_BF16);
	assert_int_equal(t->nr_dims, 2);
	assert_int_equal(t->dims[0], 2);
	assert_int_equal(t->elements, 2);
	assert_int_equal(ndp_tensor_read_bf16(t, 0, 2, b), 0);
	assert_int_equal(b[0], 0x0908);
	assert_int_equal(b[1], 0x0b0a);
	assert_int_equal(ndp_tensor_read_f32(t, 1, 1, f), 0);
	assert_true(f[0] == ndp_bf16_to_f32(0x0b0a));
	assert_int_equal(ndp_tensor_read_f32(t, 1, 2, f), -ERANGE);
	assert_int_equal(ndp_tensor_read_f32(t, 3, 0, f), -ERANGE);
	assert_int_equal(ndp_tensor_read_f32(t, UINT64_MAX, 2, f), -ERANGE);

	t = ndp_tensors_find(ts, "a");
	assert_int_equal(ndp_tensor_read_f32(t, 0, 2, f), 0);
	assert_int_equal(ndp_tensor_read_bf16(t, 1, 1, b), 0);
	assert_int_equal(b[0], ndp_bf16_from_f32(f[1]));
	assert_int_equal(ndp_tensors_find(ts, "h")->nr_dims, 0);
	assert_int_equal(ndp_tensors_find(ts, "h")->elements, 1);
	assert_int_equal(ndp_tensors_find(ts, "nothing")->elements, 0);
	ndp_tensors_close(ts);
}

static void widens_f16(void **state)
{
	static const struct {
		uint16_t half;
		float value;
	} cases[] = {
		{ 0x0000, 0.0f }, { 0x3c00, 1.0f }, { 0xc000, -2.0f }, { 0x7bff, 65504.0f },
		{ 0x0400, 0x1p-14f }, { 0x0001, 0x1p-24f }, { 0x83ff, -1023 * 0x1p-24f },
		{ 0x7c00, __builtin_inff() }, { 0x3555, 0.333251953125f },
	};
	struct ndp_tensor t = { .dtype = NDP_DTYPE_F16, .elements = 1, .bytes = 2 };
	float f;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		t.data = &cases[i].half;
		assert_int_equal(ndp_tensor_read_f32(&t, 0, 1, &f), 0);
		assert_true(f == cases[i].value);
	}
	t.data = &(uint16_t){ 0x7e00 };
	assert_int_equal(ndp_tensor_read_f32(&t, 0, 1, &f), 0);
	assert_true(f != f);
}

static void requires_a_shape(void **state)
{
	const uint64_t right[] = { 2, 3 };
	const uint64_t wrong[] = { 3, 2 };
	struct ndp_error err = { 0 };
	const struct ndp_tensor *t;
	struct ndp_tensors *ts;

	(void)state;
	write_file(path, "{\"a.weight\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}",
		   6);
	assert_int_equal(ndp_tensors_open(&ts, path, NULL), 0);
	assert_int_equal(ndp_tensors_require(ts, "a.weight", 2, right, &t, &err), 0);
	assert_int_equal(t->elements, 6);
	assert_int_equal(ndp_tensors_require(ts, "a.weight", 2, wrong, &t, &err), -EINVAL);
	assert_non_null(strstr(err.message, "'a.weight' has shape [2, 3], wanted is [3, 2]"));
	assert_int_equal(ndp_tensors_require(ts, "a.weight", 1, right, &t, &err), -EINVAL);
	assert_int_equal(ndp_tensors_require(ts, "b.weight", 2, right, &t, &err), -ENOENT);
	assert_non_null(strstr(err.message, "'b.weight' is missing"));
	assert_non_null(strstr(err.message, path));
	ndp_tensors_close(ts);
}

/* ---- hostile files ----------------------------------------------------- */

static void refuses_bad_lengths(void **state)
{
	(void)state;
	write_bytes(path, "\0\0\0\0\0\0\0", 7);
	assert_refused(-EINVAL, "7 bytes");
	write_bytes(path, "", 0);
	assert_refused(-EINVAL, "0 bytes");
	write_raw(path, 3, "{}", 0);
	assert_refused(-EINVAL, "header of 3 bytes", "truncated");
	write_raw(path, UINT64_MAX, "{}", 0);
	assert_refused(-EINVAL, "header of 18446744073709551615 bytes");
	write_raw(path, UINT64_MAX - 7, "{}", 0);
	assert_refused(-EINVAL, "header of 18446744073709551608 bytes");
	write_raw(path, 0, "{}", 0);
	assert_refused(-EINVAL, "'{'");
	/* Within the file and above the format's limit: sparse, so it costs nothing. */
	write_raw(path, 100000001, "{", 0);
	assert_int_equal(truncate(path, 200000000), 0);
	assert_refused(-EINVAL, "limit of 100000000");
}

static void refuses_bad_headers(void **state)
{
	(void)state;
	write_file(path, "[]", 0);
	assert_refused(-EINVAL, "'{'");
	write_file(path, "{\"a\":", 0);
	assert_refused(-EINVAL, "header");
	write_file(path, "{\"a\":1}", 0);
	assert_refused(-EINVAL, "'a'", "no object");
	write_file(path, "{} x", 0);
	assert_refused(-EINVAL, "header");
	write_file(path, "{\"__metadata__\":{\"n\":1}}", 0);
	assert_refused(-EINVAL, "__metadata__", "'n'");
	write_file(path,
		   "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
		   "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2);
	assert_refused(-EINVAL, "duplicate");
	/* Escape sequences for a terminal do not come out of an error. */
	write_file(path, "{\"\\u001b[31m\":{}}", 0);
	assert_refused(-EINVAL, "'?[31m'");
}

static void refuses_deep_nesting(void **state)
{
	enum { DEPTH = 1000000 };
	char *header = malloc(DEPTH + 16);

	(void)state;
	assert_non_null(header);
	strcpy(header, "{\"a\":");
	memset(header + 5, '[', DEPTH);
	header[5 + DEPTH] = '\0';
	write_file(path, header, 0);
	free(header);
	assert_refused(-EINVAL, "header");
}

static void refuses_bad_fields(void **state)
{
	static const struct {
		const char *entry;
		const char *says;
	} cases[] = {
		{ "{\"shape\":[4],\"data_offsets\":[0,4]}", "'dtype'" },
		{ "{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,4]}", "'dtype'" },
		{ "{\"dtype\":\"Q4\",\"shape\":[4],\"data_offsets\":[0,4]}", "unknown dtype 'Q4'" },
		{ "{\"dtype\":\"U8\",\"data_offsets\":[0,4]}", "'shape'" },
		{ "{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}", "'shape'" },
		{ "{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}", "'shape'[0]" },
		{ "{\"dtype\":\"U8\",\"shape\":[2,2.0],\"data_offsets\":[0,4]}", "'shape'[1]" },
		{ "{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]}",
		  "9 dimensions" },
		/* 2^32 * 2^32 = 0 and 4 * 2^62 = 0 in 64 bits */
		{ "{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}",
		  "product of 'shape'" },
		{ "{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}",
		  "'shape' and 'dtype'" },
		{ "{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}",
		  "header" },
		{ "{\"dtype\":\"U8\",\"shape\":[4]}", "'data_offsets'" },
		{ "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]}", "'data_offsets'" },
		{ "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}", "'data_offsets'[0]" },
		{ "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}",
		  "end before they begin" },
		{ "{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}", "leave the file" },
		{ "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775803,"
		  "9223372036854775807]}",
		  "leave the file" },
		{ "{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,4]}", "span 4 bytes" },
		{ "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"stride\":[1]}",
		  "unknown field 'stride'" },
	};
	char header[256];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(header, sizeof(header), "{\"t\":%s}", cases[i].entry);
		write_file(path, header, 4);
		assert_refused(-EINVAL, cases[i].says);
	}
}

static void refuses_overlap_and_holes(void **state)
{
	(void)state;
	write_file(path,
		   "{\"first\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		   "\"second\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", 7);
	assert_refused(-EINVAL, "'second'", "overlap", "'first'");
	write_file(path,
		   "{\"first\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		   "\"second\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[5,7]}}", 7);
	assert_refused(-EINVAL, "'second'", "1 bytes before");
	write_file(path, "{\"first\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 7);
	assert_refused(-EINVAL, "last 3 bytes");
	write_file(path, "{}", 1);
	assert_refused(-EINVAL, "last 1 bytes");
	/* An empty tensor in the middle of another one. */
	write_file(path,
		   "{\"first\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		   "\"empty\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4);
	assert_refused(-EINVAL, "'empty'", "overlap");
}

/* Every shorter version of a good file is refused. */
static void refuses_every_truncation(void **state)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
	size_t whole = 8 + strlen(header) + 8;
	struct ndp_tensors *ts;

	(void)state;
	write_file(path, header, 8);
	assert_int_equal(ndp_tensors_open(&ts, path, NULL), 0);
	ndp_tensors_close(ts);
	for (size_t n = whole; n-- > 0;) {
		assert_int_equal(truncate(path, n), 0);
		assert_int_equal(ndp_tensors_open(&ts, path, NULL), -EINVAL);
	}
}

/* No byte of a good file can be changed to something that crashes the reader. */
static void survives_every_changed_byte(void **state)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
	static const uint8_t values[] = { 0, '0', '9', '"', '{', ']', ',', '-', 0x7f, 0xff };
	size_t n = 8 + strlen(header) + 8;
	uint8_t buf[256];
	struct ndp_tensors *ts;
	FILE *f;

	(void)state;
	write_file(path, header, 8);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_int_equal(fread(buf, 1, sizeof(buf), f), n);
	fclose(f);
	for (size_t i = 0; i < 8 + strlen(header); i++) {
		uint8_t old = buf[i];

		for (size_t v = 0; v < sizeof(values); v++) {
			buf[i] = values[v];
			write_bytes(path, buf, n);
			if (ndp_tensors_open(&ts, path, NULL) == 0)
				ndp_tensors_close(ts);
		}
		buf[i] = old;
	}
}

/* ---- directories ------------------------------------------------------- */

#define SHARD1 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}," \
	       "\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}"
#define SHARD2 "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void in_dir(char *to, size_t size, const char *name)
{
	snprintf(to, size, "%s/%s", dir, name);
}

static void write_index(const char *text)
{
	char index[160];

	in_dir(index, sizeof(index), "model.safetensors.index.json");
	write_bytes(index, text, strlen(text));
}

static void shards(void **state)
{
	char one[160];
	char two[160];
	struct ndp_tensors *ts;

	(void)state;
	unlink(path);
	in_dir(one, sizeof(one), "m-1.safetensors");
	in_dir(two, sizeof(two), "m-2.safetensors");
	assert_refused_at(dir, -ENOENT, (const char *const[]){ dir, "index.json", NULL });

	write_file(one, SHARD1, 2);
	write_file(two, SHARD2, 2);
	write_index("{\"metadata\":{\"total_size\":3},\"weight_map\":"
		    "{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
	assert_int_equal(ndp_tensors_open(&ts, dir, NULL), 0);
	assert_int_equal(ndp_tensors_count(ts), 2); /* what the index does not list is not there */
	assert_string_equal(ndp_tensors_find(ts, "b")->file, two);
	ndp_tensors_close(ts);

	write_index("{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\"}}");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "'b'", "m-1.safetensors", NULL });
	write_index("{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "'a'", "weight_map", NULL });
	write_index("{\"weight_map\":{\"a\":7}}");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "'a'", NULL });
	write_index("{\"weight_map\":{}}");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "empty", NULL });
	write_index("{\"weights\":{}}");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "'weight_map'", NULL });
	write_index("{\"weight_map\":");
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "index.json", NULL });

	write_index("{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
	assert_int_equal(truncate(two, 30), 0);
	assert_refused_at(dir, -EINVAL, (const char *const[]){ "m-2.safetensors", NULL });
	assert_int_equal(unlink(two), 0);
	assert_refused_at(dir, -ENOENT,
			  (const char *const[]){ "m-2.safetensors", "missing", NULL });
}

static void refuses_what_is_no_file(void **state)
{
	(void)state;
	unlink(path);
	assert_refused(-ENOENT, "No such file");
	assert_refused_at("/dev/null", -EINVAL, (const char *const[]){ "no regular file", NULL });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_tensors),
		cmocka_unit_test(widens_f16),
		cmocka_unit_test(requires_a_shape),
		cmocka_unit_test(refuses_bad_lengths),
		cmocka_unit_test(refuses_bad_headers),
		cmocka_unit_test(refuses_deep_nesting),
		cmocka_unit_test(refuses_bad_fields),
		cmocka_unit_test(refuses_overlap_and_holes),
		cmocka_unit_test(refuses_every_truncation),
		cmocka_unit_test(survives_every_changed_byte),
		cmocka_unit_test(shards),
		cmocka_unit_test(refuses_what_is_no_file),
	};

	return cmocka_run_group_tests_name("tensors", tests, setup, teardown);
}
