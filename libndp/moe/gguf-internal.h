/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * gguf-internal.h - a place in a GGUF file's table, and its values.
 */
#ifndef NDP_GGUF_INTERNAL_H
#define NDP_GGUF_INTERNAL_H

#include "tensors-internal.h"

/* gguf_metadata_value_type of the format's specification. */
enum gguf_type {
	GGUF_UINT8,
	GGUF_INT8,
	GGUF_UINT16,
	GGUF_INT16,
	GGUF_UINT32,
	GGUF_INT32,
	GGUF_FLOAT32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_UINT64,
	GGUF_INT64,
	GGUF_FLOAT64,
	GGUF_TYPES,
};

/* Reading goes on at @at and not beyond @end; what is read there is called @item. */
struct gguf_cursor {
	const struct tensor_file *file;
	const uint8_t *at;
	const uint8_t *end;
	char item[128];
	struct ndp_error *err;
};

#define gguf_bad(c, code, fmt, ...) \
	ndpi_fail((c)->err, code, "%s: %s: " fmt, (c)->file->path, (c)->item, ##__VA_ARGS__)

/* The next @bytes bytes, which are @field's, or NULL with the error said. */
const uint8_t *ndpi_gguf_take(struct gguf_cursor *c, uint64_t bytes, const char *field);
int ndpi_gguf_u32(struct gguf_cursor *c, const char *field, uint32_t *v);
int ndpi_gguf_u64(struct gguf_cursor *c, const char *field, uint64_t *v);
/* A copy with a NUL, from 1 to @max bytes, none of them NUL; for free(). */
int ndpi_gguf_name(struct gguf_cursor *c, const char *field, size_t max, char **name);

/* Reads the key/value pairs, @n of them, and leaves those of this file sorted by key. */
int ndpi_gguf_read_meta(struct ndp_tensors *ts, struct gguf_cursor *c, uint64_t n);

/* What the keys split.* of this file say, whose pairs begin at @first. */
int ndpi_gguf_split_meta(const struct ndp_tensors *ts, size_t first, struct gguf_cursor *c,
			 struct gguf_split *split);

/* The pair @key of those from @first on, or NULL. */
const struct tensor_meta *ndpi_gguf_meta(const struct ndp_tensors *ts, size_t first,
					 const char *key);
/* Element @index as an integer from 0 on: 0, -EINVAL (no integer) or -ERANGE. */
int ndpi_gguf_integer(const struct tensor_meta *m, uint64_t index, uint64_t *v);

#endif
