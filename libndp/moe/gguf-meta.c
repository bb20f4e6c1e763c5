// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gguf-meta.c - the key/value pairs of GGUF (gguf_metadata_kv_t of docs/gguf.md).
 *
 * Reading a table checks every value to its last element and remembers where it is;
 * what a caller asks for is then taken from the file.  Of an array of strings every
 * 64th place is kept, so that an element costs a bounded walk.
 *
 * Must never recurse deeper than MAX_NESTING, nor allocate by a count of the file
 * that was not compared with the bytes that follow it.
 */
#include "gguf-internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_KEY = 65535,	/* the specification's */
	MAX_NESTING = 4,
	MARK_EVERY = 64,
};

/* 0: strings and arrays */
static const uint8_t type_bytes[GGUF_TYPES] = {
	[GGUF_UINT8] = 1,  [GGUF_INT8] = 1,  [GGUF_UINT16] = 2,	 [GGUF_INT16] = 2,
	[GGUF_UINT32] = 4, [GGUF_INT32] = 4, [GGUF_FLOAT32] = 4, [GGUF_BOOL] = 1,
	[GGUF_UINT64] = 8, [GGUF_INT64] = 8, [GGUF_FLOAT64] = 8,
};

static enum ndp_meta_type public_type(uint32_t raw)
{
	switch (raw) {
	case GGUF_INT8:
	case GGUF_INT16:
	case GGUF_INT32:
	case GGUF_INT64:
		return NDP_META_INT;
	case GGUF_FLOAT32:
	case GGUF_FLOAT64:
		return NDP_META_FLOAT;
	case GGUF_BOOL:
		return NDP_META_BOOL;
	case GGUF_STRING:
		return NDP_META_STRING;
	case GGUF_ARRAY:
		return NDP_META_ARRAY;
	default:
		return NDP_META_UINT;
	}
}

/* ---- reading the table -------------------------------------------------- */

static int skip_scalars(struct gguf_cursor *c, uint32_t type, uint64_t count)
{
	size_t left = c->end - c->at;
	const uint8_t *p;

	if (count > left / type_bytes[type])
		return gguf_bad(c, -EINVAL, "'value' has %llu elements of %u bytes, %zu bytes are "
				"left: the file is truncated or damaged",
				(unsigned long long)count, type_bytes[type], left);
	p = ndpi_gguf_take(c, count * type_bytes[type], "value");
	for (uint64_t i = 0; type == GGUF_BOOL && i < count; i++)
		if (p[i] > 1)
			return gguf_bad(c, -EINVAL, "'value' is a bool and has the byte %u", p[i]);
	return 0;
}

static int skip_string(struct gguf_cursor *c)
{
	uint64_t n;
	int r;

	r = ndpi_gguf_u64(c, "value", &n);
	if (r == 0 && !ndpi_gguf_take(c, n, "value"))
		r = -EINVAL;
	return r;
}

static int read_array_header(struct gguf_cursor *c, uint32_t *type, uint64_t *count)
{
	int r;

	r = ndpi_gguf_u32(c, "array type", type);
	if (r == 0 && *type >= GGUF_TYPES)
		r = gguf_bad(c, -EINVAL, "'array type' is %u, which the format does not know",
			     *type);
	return r < 0 ? r : ndpi_gguf_u64(c, "array length", count);
}

/* Remembers that the next string of @m's array begins at @c. */
static int mark(struct gguf_cursor *c, struct tensor_meta *m)
{
	/* There is room for the next power of two. */
	if (!(m->nr_marks & (m->nr_marks - 1))) {
		size_t max = m->nr_marks ? 2 * m->nr_marks : 1;
		uint64_t *p = reallocarray(m->marks, max, sizeof(*p));

		if (!p)
			return gguf_bad(c, -ENOMEM, "out of memory");
		m->marks = p;
	}
	m->marks[m->nr_marks++] = c->at - m->data;
	return 0;
}

/* @m: whose array they are, NULL when they are deeper in it. */
static int skip_strings(struct gguf_cursor *c, uint64_t count, struct tensor_meta *m)
{
	int r = 0;

	for (uint64_t i = 0; i < count && r == 0; i++) {
		if (m && i && i % MARK_EVERY == 0)
			r = mark(c, m);
		if (r == 0)
			r = skip_string(c);
	}
	return r;
}

static int skip_elements(struct gguf_cursor *c, uint32_t type, uint64_t count, int nesting,
			 struct tensor_meta *m)
{
	uint64_t inner;
	uint32_t t;
	int r = 0;

	if (type_bytes[type])
		return skip_scalars(c, type, count);
	if (type == GGUF_STRING)
		return skip_strings(c, count, m);
	if (nesting == MAX_NESTING)
		return gguf_bad(c, -EINVAL, "'value' has arrays in arrays, more than %d deep",
				MAX_NESTING);
	for (uint64_t i = 0; i < count && r == 0; i++) {
		r = read_array_header(c, &t, &inner);
		if (r == 0)
			r = skip_elements(c, t, inner, nesting + 1, NULL);
	}
	return r;
}

static int read_value(struct gguf_cursor *c, struct tensor_meta *m)
{
	int r;

	r = ndpi_gguf_u32(c, "type", &m->raw);
	if (r < 0)
		return r;
	if (m->raw >= GGUF_TYPES)
		return gguf_bad(c, -EINVAL, "'type' is %u, which the format does not know",
				m->raw);
	m->pub.array = m->raw == GGUF_ARRAY;
	m->pub.count = 1;
	if (m->pub.array) {
		r = read_array_header(c, &m->raw, &m->pub.count);
		if (r < 0)
			return r;
	}
	m->pub.type = public_type(m->raw);
	m->data = c->at;
	r = skip_elements(c, m->raw, m->pub.count, m->pub.array, m);
	m->end = c->at;
	return r;
}

static struct tensor_meta *append(struct ndp_tensors *ts)
{
	if (ts->nr_meta == ts->max_meta) {
		size_t max = ts->max_meta ? 2 * ts->max_meta : 64;
		struct tensor_meta *p = reallocarray(ts->meta, max, sizeof(*p));

		if (!p)
			return NULL;
		ts->meta = p;
		ts->max_meta = max;
	}
	ts->meta[ts->nr_meta] = (struct tensor_meta){ 0 };
	return &ts->meta[ts->nr_meta++];
}

static int by_key(const void *a, const void *b)
{
	const struct tensor_meta *x = a;
	const struct tensor_meta *y = b;

	return strcmp(x->pub.key, y->pub.key);
}

int ndpi_gguf_read_meta(struct ndp_tensors *ts, struct gguf_cursor *c, uint64_t n)
{
	size_t first = ts->nr_meta;
	int r;

	for (uint64_t i = 0; i < n; i++) {
		struct tensor_meta *m = append(ts);
		char *key = NULL;

		snprintf(c->item, sizeof(c->item), "key %llu of %llu", (unsigned long long)i + 1,
			 (unsigned long long)n);
		if (!m)
			return gguf_bad(c, -ENOMEM, "out of memory");
		r = ndpi_gguf_name(c, "key", MAX_KEY, &key);
		if (r < 0) {
			ts->nr_meta--;
			return r;
		}
		m->pub.key = key;
		m->pub.file = c->file->path;
		snprintf(c->item, sizeof(c->item), "key '%.100s'", key);
		r = read_value(c, m);
		if (r < 0)
			return r;
	}
	if (n)
		qsort(ts->meta + first, n, sizeof(*ts->meta), by_key);
	for (size_t i = first + 1; i < ts->nr_meta; i++) {
		if (strcmp(ts->meta[i - 1].pub.key, ts->meta[i].pub.key) != 0)
			continue;
		snprintf(c->item, sizeof(c->item), "key '%.100s'", ts->meta[i].pub.key);
		return gguf_bad(c, -EINVAL, "is there twice");
	}
	return 0;
}

const struct tensor_meta *ndpi_gguf_meta(const struct ndp_tensors *ts, size_t first,
					 const char *key)
{
	const struct tensor_meta wanted = { .pub.key = key };

	if (ts->nr_meta == first)
		return NULL;
	return bsearch(&wanted, ts->meta + first, ts->nr_meta - first, sizeof(*ts->meta), by_key);
}

/* ---- values ------------------------------------------------------------- */

#define element(m, index, type)                                                   \
	({                                                                        \
		type v_;                                                          \
		memcpy(&v_, (m)->data + (index) * sizeof(v_), sizeof(v_));        \
		v_;                                                               \
	})

/* An integer as its 64 bits; *@negative: they are a negative int64_t's. */
static int integer(const struct tensor_meta *m, uint64_t index, uint64_t *bits, bool *negative)
{
	int64_t v;

	if (index >= m->pub.count)
		return -ERANGE;
	*negative = false;
	switch (m->raw) {
	case GGUF_UINT8:
		*bits = element(m, index, uint8_t);
		return 0;
	case GGUF_UINT16:
		*bits = element(m, index, uint16_t);
		return 0;
	case GGUF_UINT32:
		*bits = element(m, index, uint32_t);
		return 0;
	case GGUF_UINT64:
		*bits = element(m, index, uint64_t);
		return 0;
	case GGUF_INT8:
		v = element(m, index, int8_t);
		break;
	case GGUF_INT16:
		v = element(m, index, int16_t);
		break;
	case GGUF_INT32:
		v = element(m, index, int32_t);
		break;
	case GGUF_INT64:
		v = element(m, index, int64_t);
		break;
	default:
		return -EINVAL;
	}
	*negative = v < 0;
	*bits = v;
	return 0;
}

int ndpi_gguf_integer(const struct tensor_meta *m, uint64_t index, uint64_t *v)
{
	uint64_t bits;
	bool negative;
	int r;

	r = integer(m, index, &bits, &negative);
	if (r == 0 && negative)
		r = -ERANGE;
	if (r == 0)
		*v = bits;
	return r;
}

static const char *type_name(const struct ndp_meta *m)
{
	static const char *const names[] = {
		[NDP_META_UINT] = "unsigned integer", [NDP_META_INT] = "integer",
		[NDP_META_FLOAT] = "number",	      [NDP_META_BOOL] = "bool",
		[NDP_META_STRING] = "string",	      [NDP_META_ARRAY] = "array",
	};

	return names[m->type];
}

/* The sentence for @r, which reading element @index of @m as @wanted gave. */
static int meta_error(const struct tensor_meta *m, uint64_t index, int r, const char *wanted,
		      struct ndp_error *err)
{
	if (r == -EINVAL)
		return ndpi_fail(err, r, "%s: key '%.100s' is %s %s, wanted is %s", m->pub.file,
				 m->pub.key, m->pub.array ? "an array of type" : "of type",
				 type_name(&m->pub), wanted);
	if (index >= m->pub.count)
		return ndpi_fail(err, r, "%s: key '%.100s' has %llu elements, wanted is number "
				 "%llu (from 0 on)", m->pub.file, m->pub.key,
				 (unsigned long long)m->pub.count, (unsigned long long)index);
	return ndpi_fail(err, r, "%s: key '%.100s' has a value that does not fit, wanted is %s",
			 m->pub.file, m->pub.key, wanted);
}

static int find(const struct ndp_tensors *ts, const char *key, const struct tensor_meta **m,
		struct ndp_error *err)
{
	*m = ndpi_gguf_meta(ts, 0, key);
	if (*m)
		return 0;
	return ndpi_fail(err, -ENOENT, "%s: key '%.100s' is missing",
			 ts->nr_files ? ts->files[0]->path : "", key);
}

size_t ndp_tensors_meta_count(const struct ndp_tensors *ts)
{
	return ts->nr_meta;
}

const struct ndp_meta *ndp_tensors_meta_get(const struct ndp_tensors *ts, size_t index)
{
	return index < ts->nr_meta ? &ts->meta[index].pub : NULL;
}

const struct ndp_meta *ndp_tensors_meta_find(const struct ndp_tensors *ts, const char *key)
{
	const struct tensor_meta *m = ndpi_gguf_meta(ts, 0, key);

	return m ? &m->pub : NULL;
}

int ndp_tensors_meta_u64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 uint64_t *value, struct ndp_error *err)
{
	const struct tensor_meta *m;
	int r;

	r = find(ts, key, &m, err);
	if (r < 0)
		return r;
	r = ndpi_gguf_integer(m, index, value);
	return r < 0 ? meta_error(m, index, r, "an integer from 0 on", err) : 0;
}

int ndp_tensors_meta_i64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 int64_t *value, struct ndp_error *err)
{
	const struct tensor_meta *m;
	uint64_t bits;
	bool negative;
	int r;

	r = find(ts, key, &m, err);
	if (r < 0)
		return r;
	r = integer(m, index, &bits, &negative);
	if (r == 0 && !negative && bits > INT64_MAX)
		r = -ERANGE;
	if (r < 0)
		return meta_error(m, index, r, "an integer of 64 bits", err);
	*value = (int64_t)bits;
	return 0;
}

int ndp_tensors_meta_f64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 double *value, struct ndp_error *err)
{
	const struct tensor_meta *m;
	uint64_t bits;
	bool negative;
	int r;

	r = find(ts, key, &m, err);
	if (r < 0)
		return r;
	if (m->pub.type == NDP_META_FLOAT && index < m->pub.count) {
		*value = m->raw == GGUF_FLOAT32 ? (double)element(m, index, float) :
						  element(m, index, double);
		return 0;
	}
	r = integer(m, index, &bits, &negative);
	if (r < 0)
		return meta_error(m, index, r, "a number", err);
	*value = negative ? (double)(int64_t)bits : (double)bits;
	return 0;
}

int ndp_tensors_meta_bool(const struct ndp_tensors *ts, const char *key, uint64_t index,
			  bool *value, struct ndp_error *err)
{
	const struct tensor_meta *m;
	int r;

	r = find(ts, key, &m, err);
	if (r < 0)
		return r;
	if (m->pub.type != NDP_META_BOOL || index >= m->pub.count)
		return meta_error(m, index, m->pub.type != NDP_META_BOOL ? -EINVAL : -ERANGE,
				  "a bool", err);
	*value = m->data[index] != 0;
	return 0;
}

int ndp_tensors_meta_string(const struct ndp_tensors *ts, const char *key, uint64_t index,
			    const char **value, size_t *length, struct ndp_error *err)
{
	const struct tensor_meta *m;
	const uint8_t *p;
	uint64_t n, i = 0;
	int r;

	r = find(ts, key, &m, err);
	if (r < 0)
		return r;
	if (m->pub.type != NDP_META_STRING || index >= m->pub.count)
		return meta_error(m, index, m->pub.type != NDP_META_STRING ? -EINVAL : -ERANGE,
				  "a string", err);
	p = m->data;
	if (index >= MARK_EVERY) {
		p += m->marks[index / MARK_EVERY - 1];
		i = index / MARK_EVERY * MARK_EVERY;
	}
	/* Checked once more: the file may have changed since. */
	for (;; i++) {
		if ((size_t)(m->end - p) < sizeof(n))
			break;
		memcpy(&n, p, sizeof(n));
		p += sizeof(n);
		if (n > (size_t)(m->end - p))
			break;
		if (i == index) {
			*value = (const char *)p;
			*length = n;
			return 0;
		}
		p += n;
	}
	return ndpi_fail(err, -EINVAL, "%s: key '%.100s': the file was changed while it is open",
			 m->pub.file, key);
}
