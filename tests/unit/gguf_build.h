/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * gguf_build.h - writes GGUF files field by field, right ones and wrong ones, for tests
 * of the reader.  Offsets, counts and padding are the caller's, who may want them wrong.
 */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gguf_metadata_value_type */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
/* ggml_type */
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q8_0 = 8, GGML_Q6_K = 14,
       GGML_I8 = 24, GGML_F64 = 28, GGML_BF16 = 30, GGML_MXFP4 = 39 };

struct gguf_build {
	uint8_t *bytes;
	size_t n, max;
};

static inline void gb_bytes(struct gguf_build *b, const void *p, size_t n)
{
	if (b->n + n > b->max) {
		b->max = 2 * (b->n + n);
		b->bytes = realloc(b->bytes, b->max);
		assert(b->bytes);
	}
	if (n)
		memcpy(b->bytes + b->n, p, n);
	b->n += n;
}

static inline void gb_u8(struct gguf_build *b, uint8_t v)
{
	gb_bytes(b, &v, sizeof(v));
}

static inline void gb_u16(struct gguf_build *b, uint16_t v)
{
	gb_bytes(b, &v, sizeof(v));
}

static inline void gb_u32(struct gguf_build *b, uint32_t v)
{
	gb_bytes(b, &v, sizeof(v));
}

static inline void gb_u64(struct gguf_build *b, uint64_t v)
{
	gb_bytes(b, &v, sizeof(v));
}

static inline void gb_string(struct gguf_build *b, const char *s)
{
	gb_u64(b, strlen(s));
	gb_bytes(b, s, strlen(s));
}

static inline void gb_header(struct gguf_build *b, uint32_t version, uint64_t tensors,
			     uint64_t keys)
{
	gb_bytes(b, "GGUF", 4);
	gb_u32(b, version);
	gb_u64(b, tensors);
	gb_u64(b, keys);
}

static inline void gb_key(struct gguf_build *b, const char *key, uint32_t type)
{
	gb_string(b, key);
	gb_u32(b, type);
}

static inline void gb_key_u32(struct gguf_build *b, const char *key, uint32_t v)
{
	gb_key(b, key, U32);
	gb_u32(b, v);
}

static inline void gb_key_string(struct gguf_build *b, const char *key, const char *v)
{
	gb_key(b, key, STRING);
	gb_string(b, v);
}

static inline void gb_key_array(struct gguf_build *b, const char *key, uint32_t type, uint64_t n)
{
	gb_key(b, key, ARRAY);
	gb_u32(b, type);
	gb_u64(b, n);
}

/* @dims innermost first, as in the file. */
static inline void gb_tensor(struct gguf_build *b, const char *name, uint32_t n_dims,
			     const uint64_t *dims, uint32_t type, uint64_t offset)
{
	gb_string(b, name);
	gb_u32(b, n_dims);
	for (uint32_t i = 0; i < n_dims; i++)
		gb_u64(b, dims[i]);
	gb_u32(b, type);
	gb_u64(b, offset);
}

static inline void gb_tensor1(struct gguf_build *b, const char *name, uint64_t dim, uint32_t type,
			      uint64_t offset)
{
	gb_tensor(b, name, 1, &dim, type, offset);
}

static inline void gb_pad(struct gguf_build *b, size_t alignment)
{
	while (b->n % alignment)
		gb_u8(b, 0);
}

/* @n bytes @first, @first + 1, ... */
static inline void gb_count(struct gguf_build *b, size_t n, uint8_t first)
{
	for (size_t i = 0; i < n; i++)
		gb_u8(b, first + i);
}

static inline void gb_write(const struct gguf_build *b, const char *path)
{
	FILE *f = fopen(path, "w");
	size_t n;
	int r;

	assert(f);
	n = fwrite(b->bytes, 1, b->n, f);
	r = fclose(f);
	assert(n == b->n && r == 0);
	(void)n;
	(void)r;
}

static inline void gb_free(struct gguf_build *b)
{
	free(b->bytes);
	*b = (struct gguf_build){ 0 };
}

#endif
