// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gguf.c - the table of one GGUF file.
 *
 * The format: docs/gguf.md of ggml (https://github.com/ggml-org/ggml), version 3, and 2,
 * which differs in nothing but that it knows no big-endian files.  "GGUF", version, the
 * number of tensors, the number of key/value pairs, these pairs (gguf-meta.c), then for
 * each tensor name, dimensions (innermost first), type and offset; then, from the next
 * multiple of general.alignment on, the data, from whose begin offsets count.  Stricter
 * than the text where ggml itself is: no dimension of zero, an alignment that is a power
 * of two, rows of whole blocks.  Holes between tensors are allowed, overlaps are not.
 *
 * Must never trust a number of the file before it is compared with the file's
 * size, nor hand out a tensor of a file that has an error anywhere.
 */
#include "gguf-internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_DIMS = 4,
	MAX_KEYS = 1 << 16,
	MAX_TENSORS = 1 << 20,
	DEFAULT_ALIGNMENT = 32,
	MIN_ALIGNMENT = 8,
	/* The least that a pair and a tensor take up: names of one byte, no dimensions. */
	MIN_PAIR_BYTES = 8 + 1 + 4 + 1,
	MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8,
};

/* Of the table, whatever the file's size: what has to be read before anything is known. */
#define MAX_TABLE_BYTES (1ULL << 30)

#define REMOVED (-1)

/* By number: ggml_type of the specification; NVFP4: enum ggml_type of ggml/include/ggml.h. */
static const int16_t ggml_types[] = {
	NDP_DTYPE_F32, NDP_DTYPE_F16, NDP_DTYPE_Q4_0, NDP_DTYPE_Q4_1, REMOVED, REMOVED,
	NDP_DTYPE_Q5_0, NDP_DTYPE_Q5_1, NDP_DTYPE_Q8_0, NDP_DTYPE_Q8_1, NDP_DTYPE_Q2_K,
	NDP_DTYPE_Q3_K, NDP_DTYPE_Q4_K, NDP_DTYPE_Q5_K, NDP_DTYPE_Q6_K, NDP_DTYPE_Q8_K,
	NDP_DTYPE_IQ2_XXS, NDP_DTYPE_IQ2_XS, NDP_DTYPE_IQ3_XXS, NDP_DTYPE_IQ1_S,
	NDP_DTYPE_IQ4_NL, NDP_DTYPE_IQ3_S, NDP_DTYPE_IQ2_S, NDP_DTYPE_IQ4_XS, NDP_DTYPE_I8,
	NDP_DTYPE_I16, NDP_DTYPE_I32, NDP_DTYPE_I64, NDP_DTYPE_F64, NDP_DTYPE_IQ1_M,
	NDP_DTYPE_BF16, REMOVED, REMOVED, REMOVED, NDP_DTYPE_TQ1_0, NDP_DTYPE_TQ2_0,
	REMOVED, REMOVED, REMOVED, NDP_DTYPE_MXFP4, NDP_DTYPE_NVFP4,
};

#define NR_GGML_TYPES (sizeof(ggml_types) / sizeof(ggml_types[0]))

/* ---- the cursor --------------------------------------------------------- */

const uint8_t *ndpi_gguf_take(struct gguf_cursor *c, uint64_t bytes, const char *field)
{
	const uint8_t *at = c->at;
	size_t left = c->end - at;

	if (bytes > left) {
		if (c->file->bytes > MAX_TABLE_BYTES)
			gguf_bad(c, -EINVAL, "'%s' of %llu bytes ends beyond the file or the "
				 "limit of %llu bytes for the table", field,
				 (unsigned long long)bytes, MAX_TABLE_BYTES);
		else
			gguf_bad(c, -EINVAL, "'%s' of %llu bytes leaves the file, which has %zu "
				 "more: it is truncated or damaged", field,
				 (unsigned long long)bytes, left);
		return NULL;
	}
	c->at += bytes;
	return at;
}

int ndpi_gguf_u32(struct gguf_cursor *c, const char *field, uint32_t *v)
{
	const uint8_t *p = ndpi_gguf_take(c, sizeof(*v), field);

	if (!p)
		return -EINVAL;
	memcpy(v, p, sizeof(*v));
	return 0;
}

int ndpi_gguf_u64(struct gguf_cursor *c, const char *field, uint64_t *v)
{
	const uint8_t *p = ndpi_gguf_take(c, sizeof(*v), field);

	if (!p)
		return -EINVAL;
	memcpy(v, p, sizeof(*v));
	return 0;
}

int ndpi_gguf_name(struct gguf_cursor *c, const char *field, size_t max, char **name)
{
	const uint8_t *p;
	uint64_t n;
	int r;

	r = ndpi_gguf_u64(c, field, &n);
	if (r < 0)
		return r;
	if (n == 0 || n > max)
		return gguf_bad(c, -EINVAL, "'%s' has %llu bytes, wanted are 1 to %zu", field,
				(unsigned long long)n, max);
	p = ndpi_gguf_take(c, n, field);
	if (!p)
		return -EINVAL;
	*name = malloc(n + 1);
	if (!*name)
		return gguf_bad(c, -ENOMEM, "out of memory");
	memcpy(*name, p, n);
	(*name)[n] = '\0';
	if (strlen(*name) == n)
		return 0;
	free(*name);
	return gguf_bad(c, -EINVAL, "'%s' has a NUL byte in it", field);
}

/* ---- tensors ------------------------------------------------------------ */

static int read_dims(struct gguf_cursor *c, struct ndp_tensor *t)
{
	uint64_t dim;
	int r;

	r = ndpi_gguf_u32(c, "n_dims", &t->nr_dims);
	if (r < 0)
		return r;
	if (t->nr_dims > MAX_DIMS)
		return gguf_bad(c, -EINVAL, "'n_dims' is %u, at most %d are allowed", t->nr_dims,
				MAX_DIMS);
	t->elements = 1;
	for (uint32_t i = 0; i < t->nr_dims; i++) {
		char field[24];

		snprintf(field, sizeof(field), "dims[%u]", i);
		r = ndpi_gguf_u64(c, field, &dim);
		if (r < 0)
			return r;
		if (dim == 0)
			return gguf_bad(c, -EINVAL, "'%s' is zero", field);
		if (__builtin_mul_overflow(t->elements, dim, &t->elements))
			return gguf_bad(c, -EINVAL,
					"the product of 'dims' does not fit into 64 bits");
		t->dims[t->nr_dims - 1 - i] = dim;
	}
	return 0;
}

static int read_type(struct gguf_cursor *c, struct ndp_tensor *t)
{
	uint64_t row = t->nr_dims ? t->dims[t->nr_dims - 1] : 1;
	uint32_t type, block;
	int r;

	r = ndpi_gguf_u32(c, "type", &type);
	if (r < 0)
		return r;
	if (type >= NR_GGML_TYPES)
		return gguf_bad(c, -ENOTSUP, "'type' is %u, which is not known here", type);
	if (ggml_types[type] == REMOVED)
		return gguf_bad(c, -ENOTSUP, "'type' is %u, which the format has dropped", type);
	t->dtype = (enum ndp_dtype)ggml_types[type];
	block = ndp_dtype_block(t->dtype);
	if (row % block)
		return gguf_bad(c, -EINVAL, "'dims[0]' is %llu, %s wants a multiple of %u",
				(unsigned long long)row, ndp_dtype_name(t->dtype), block);
	if (__builtin_mul_overflow(t->elements / block, ndp_dtype_bytes(t->dtype), &t->bytes))
		return gguf_bad(c, -EINVAL,
				"its size by 'dims' and 'type' does not fit into 64 bits");
	return 0;
}

/* Appends the tensor at @c, with its offset in the place of its data. */
static int read_tensor(struct ndp_tensors *ts, struct gguf_cursor *c, uint64_t i, uint64_t n,
		       uint64_t alignment)
{
	struct ndp_tensor t = { .file = c->file->path };
	uint64_t offset;
	char *name;
	int r;

	snprintf(c->item, sizeof(c->item), "tensor %llu of %llu", (unsigned long long)i + 1,
		 (unsigned long long)n);
	r = ndpi_gguf_name(c, "name", TENSORS_MAX_NAME, &name);
	if (r < 0)
		return r;
	snprintf(c->item, sizeof(c->item), "tensor '%.100s'", name);
	t.name = name;
	r = read_dims(c, &t);
	if (r == 0)
		r = read_type(c, &t);
	if (r == 0)
		r = ndpi_gguf_u64(c, "offset", &offset);
	if (r == 0 && offset % alignment)
		r = gguf_bad(c, -EINVAL, "'offset' is %llu, wanted is a multiple of the "
			     "alignment %llu", (unsigned long long)offset,
			     (unsigned long long)alignment);
	if (r == 0 && (offset > c->file->bytes || t.bytes > c->file->bytes - offset))
		r = gguf_bad(c, -EINVAL, "'offset' %llu and %llu bytes of data leave the file, "
			     "which has %zu bytes: is it truncated?",
			     (unsigned long long)offset, (unsigned long long)t.bytes,
			     c->file->bytes);
	if (r == 0) {
		t.data = c->file->base + offset;
		r = ndpi_tensors_add(ts, &t, c->err);
	}
	free(name);
	return r;
}

/* The data of the tensors from @first on begins at @start; they must not overlap. */
static int place_tensors(struct ndp_tensors *ts, size_t first, struct gguf_cursor *c,
			 uint64_t start)
{
	const struct tensor_file *f = c->file;
	uint64_t data_bytes = f->bytes > start ? f->bytes - start : 0;
	const struct ndp_tensor **sorted;
	int r;

	for (size_t i = first; i < ts->nr_tensors; i++) {
		struct ndp_tensor *t = &ts->tensors[i];
		uint64_t offset = (const uint8_t *)t->data - f->base;

		snprintf(c->item, sizeof(c->item), "tensor '%.100s'", t->name);
		if (offset > data_bytes || t->bytes > data_bytes - offset)
			return gguf_bad(c, -EINVAL, "'offset' %llu and %llu bytes leave the "
					"file, which has %llu bytes of data: is it truncated?",
					(unsigned long long)offset,
					(unsigned long long)t->bytes,
					(unsigned long long)data_bytes);
		t->data = f->base + start + offset;
	}
	r = ndpi_tensors_by_position(ts, first, &sorted, c->err);
	if (r < 0)
		return r;
	for (size_t i = 1; i < ts->nr_tensors - first && r == 0; i++) {
		const struct ndp_tensor *a = sorted[i - 1];

		snprintf(c->item, sizeof(c->item), "tensor '%.100s'", sorted[i]->name);
		if ((const uint8_t *)sorted[i]->data < (const uint8_t *)a->data + a->bytes)
			r = gguf_bad(c, -EINVAL, "its 'offset' lies in the data of '%.100s'",
				     a->name);
	}
	free(sorted);
	return r;
}

/* ---- the file ----------------------------------------------------------- */

bool ndpi_gguf_is(const struct tensor_file *f)
{
	return f->bytes >= 4 && !memcmp(f->base, "GGUF", 4);
}

static int read_header(struct gguf_cursor *c, uint64_t *nr_tensors, uint64_t *nr_keys)
{
	uint32_t version;
	int r;

	c->at += 4;
	r = ndpi_gguf_u32(c, "version", &version);
	if (r < 0)
		return r;
	if (version == 2U << 24 || version == 3U << 24)
		return gguf_bad(c, -ENOTSUP, "'version' has its bytes swapped: big-endian files "
				"are not read");
	if (version != 2 && version != 3)
		return gguf_bad(c, -ENOTSUP, "'version' is %u, wanted is 2 or 3", version);
	r = ndpi_gguf_u64(c, "tensor_count", nr_tensors);
	if (r == 0)
		r = ndpi_gguf_u64(c, "metadata_kv_count", nr_keys);
	if (r < 0)
		return r;
	if (*nr_keys > MAX_KEYS || *nr_keys > (size_t)(c->end - c->at) / MIN_PAIR_BYTES)
		return gguf_bad(c, -EINVAL, "'metadata_kv_count' is %llu, this file has room for "
				"%zu and the limit is %d", (unsigned long long)*nr_keys,
				(size_t)(c->end - c->at) / MIN_PAIR_BYTES, MAX_KEYS);
	if (*nr_tensors > MAX_TENSORS ||
	    *nr_tensors > (size_t)(c->end - c->at) / MIN_TENSOR_BYTES)
		return gguf_bad(c, -EINVAL, "'tensor_count' is %llu, this file has room for %zu "
				"and the limit is %d", (unsigned long long)*nr_tensors,
				(size_t)(c->end - c->at) / MIN_TENSOR_BYTES, MAX_TENSORS);
	return 0;
}

static int read_alignment(struct ndp_tensors *ts, size_t first_meta, struct gguf_cursor *c,
			  uint64_t *alignment)
{
	const struct tensor_meta *m = ndpi_gguf_meta(ts, first_meta, "general.alignment");
	uint32_t v;

	if (!m)
		return 0;
	strcpy(c->item, "key 'general.alignment'");
	if (m->pub.array || m->raw != GGUF_UINT32)
		return gguf_bad(c, -EINVAL, "is no 32-bit unsigned integer");
	memcpy(&v, m->data, sizeof(v));
	if (v < MIN_ALIGNMENT || v & (v - 1))
		return gguf_bad(c, -EINVAL, "is %u, wanted is a power of two from %d on", v,
				MIN_ALIGNMENT);
	*alignment = v;
	return 0;
}

int ndpi_gguf_read(struct ndp_tensors *ts, const struct tensor_file *f,
		   struct gguf_split *split, struct ndp_error *err)
{
	struct gguf_cursor c = {
		.file = f,
		.at = f->base,
		.end = f->base + (f->bytes < MAX_TABLE_BYTES ? f->bytes : MAX_TABLE_BYTES),
		.item = "header",
		.err = err,
	};
	size_t first_tensor = ts->nr_tensors;
	size_t first_meta = ts->nr_meta;
	uint64_t nr_tensors, nr_keys, table;
	uint64_t alignment = DEFAULT_ALIGNMENT;
	int r;

	if (!ndpi_gguf_is(f))
		return gguf_bad(&c, -EINVAL, "does not begin with \"GGUF\": this is no GGUF file");
	r = read_header(&c, &nr_tensors, &nr_keys);
	if (r == 0)
		r = ndpi_gguf_read_meta(ts, &c, nr_keys);
	if (r == 0)
		r = ndpi_gguf_split_meta(ts, first_meta, &c, split);
	if (r == 0)
		r = read_alignment(ts, first_meta, &c, &alignment);
	for (uint64_t i = 0; i < nr_tensors && r == 0; i++)
		r = read_tensor(ts, &c, i, nr_tensors, alignment);
	if (r < 0)
		return r;
	table = c.at - f->base;
	return place_tensors(ts, first_tensor, &c, (table + alignment - 1) & ~(alignment - 1));
}
