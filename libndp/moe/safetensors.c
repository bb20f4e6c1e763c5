// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * safetensors.c - the header of one safetensors file.
 *
 * The format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes with
 * the length N of the header, little-endian; N bytes of JSON, an object that
 * begins with '{' and may be padded with spaces; then the data.  The object has
 * for each tensor its dtype, its shape and data_offsets [begin, end) counted
 * from the begin of the data, and may have "__metadata__", strings only.  Names
 * are unique, tensors cover the data without overlap or hole, and N is at most
 * 100 MB: the limit of the format's own implementation, kept here.
 *
 * Must never trust a number of the file before it is compared with the file's
 * size, nor hand out a tensor of a file that has an error anywhere.
 */
#include "tensors-internal.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER_BYTES 100000000ULL

/* What the tensor under examination is called in messages. */
struct where {
	const struct tensor_file *file;
	const char *name;
	struct ndp_error *err;
};

#define bad_tensor(w, fmt, ...)                                                        \
	ndpi_fail((w)->err, -EINVAL, "%s: tensor '%.100s': " fmt, (w)->file->path, \
		      (w)->name, ##__VA_ARGS__)

static int read_dtype(const struct where *w, const json_t *v, struct ndp_tensor *t)
{
	const char *name = json_string_value(v);
	int dtype;

	if (!name)
		return bad_tensor(w, "'dtype' is missing or is no string");
	/* GGUF's types, in blocks, are none of this format. */
	dtype = ndpi_dtype_find(name, NDP_DTYPE_F64 + 1);
	if (dtype < 0)
		return bad_tensor(w, "unknown dtype '%.40s'", name);
	t->dtype = (enum ndp_dtype)dtype;
	return 0;
}

static int read_shape(const struct where *w, const json_t *v, struct ndp_tensor *t)
{
	size_t n;

	if (!json_is_array(v))
		return bad_tensor(w, "'shape' is missing or is no array");
	n = json_array_size(v);
	if (n > NDP_TENSOR_MAX_DIMS)
		return bad_tensor(w, "'shape' has %zu dimensions, at most %d are supported", n,
				  NDP_TENSOR_MAX_DIMS);
	t->nr_dims = n;
	t->elements = 1;
	for (size_t i = 0; i < n; i++) {
		const json_t *d = json_array_get(v, i);

		if (!json_is_integer(d) || json_integer_value(d) < 0)
			return bad_tensor(w, "'shape'[%zu] is no integer from 0 on", i);
		t->dims[i] = json_integer_value(d);
	}
	/* A dimension of zero makes the product zero however large the others are. */
	for (size_t i = 0; i < n; i++)
		if (t->dims[i] == 0)
			t->elements = 0;
	for (size_t i = 0; i < n && t->elements; i++)
		if (__builtin_mul_overflow(t->elements, t->dims[i], &t->elements))
			return bad_tensor(w, "the product of 'shape' does not fit into 64 bits");
	if (__builtin_mul_overflow(t->elements, ndp_dtype_bytes(t->dtype), &t->bytes))
		return bad_tensor(w, "its size by 'shape' and 'dtype' does not fit into 64 bits");
	return 0;
}

static int read_offsets(const struct where *w, const json_t *v, uint64_t data_bytes,
			struct ndp_tensor *t, uint64_t *begin)
{
	uint64_t off[2];

	if (!json_is_array(v) || json_array_size(v) != 2)
		return bad_tensor(w, "'data_offsets' is missing or is no array of two");
	for (size_t i = 0; i < 2; i++) {
		const json_t *o = json_array_get(v, i);

		if (!json_is_integer(o) || json_integer_value(o) < 0)
			return bad_tensor(w, "'data_offsets'[%zu] is no integer from 0 on", i);
		off[i] = json_integer_value(o);
	}
	if (off[0] > off[1])
		return bad_tensor(w, "'data_offsets' [%llu, %llu] end before they begin",
				  (unsigned long long)off[0], (unsigned long long)off[1]);
	if (off[1] > data_bytes)
		return bad_tensor(w, "'data_offsets' [%llu, %llu] leave the file, which has %llu "
				  "bytes of data: is it truncated?",
				  (unsigned long long)off[0], (unsigned long long)off[1],
				  (unsigned long long)data_bytes);
	if (off[1] - off[0] != t->bytes)
		return bad_tensor(w, "'data_offsets' span %llu bytes, its shape and dtype %s "
				  "want %llu",
				  (unsigned long long)(off[1] - off[0]), ndp_dtype_name(t->dtype),
				  (unsigned long long)t->bytes);
	*begin = off[0];
	return 0;
}

static int read_tensor(const struct where *w, json_t *v, const uint8_t *data,
		       uint64_t data_bytes, struct ndp_tensor *t)
{
	const char *key;
	json_t *field;
	uint64_t begin = 0;
	int r;

	if (!json_is_object(v))
		return bad_tensor(w, "its entry in the header is no object");
	if (strlen(w->name) > TENSORS_MAX_NAME)
		return bad_tensor(w, "its name has %zu bytes, at most %d are supported",
				  strlen(w->name), TENSORS_MAX_NAME);
	json_object_foreach(v, key, field) {
		if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
			return bad_tensor(w, "unknown field '%.40s'", key);
	}

	*t = (struct ndp_tensor){ .name = w->name, .file = w->file->path };
	r = read_dtype(w, json_object_get(v, "dtype"), t);
	if (r < 0)
		return r;
	r = read_shape(w, json_object_get(v, "shape"), t);
	if (r < 0)
		return r;
	r = read_offsets(w, json_object_get(v, "data_offsets"), data_bytes, t, &begin);
	if (r < 0)
		return r;
	t->data = data + begin;
	return 0;
}

static int check_metadata(const struct tensor_file *f, json_t *v, struct ndp_error *err)
{
	const char *key;
	json_t *s;

	if (!json_is_object(v))
		return ndpi_fail(err, -EINVAL, "%s: '__metadata__' is no object", f->path);
	json_object_foreach(v, key, s) {
		if (!json_is_string(s))
			return ndpi_fail(err, -EINVAL,
					     "%s: '__metadata__': '%.100s' is no string", f->path,
					     key);
	}
	return 0;
}

/* The tensors from @first on must cover the data: no overlap, no hole, no rest. */
static int check_cover(const struct ndp_tensors *ts, size_t first, const struct tensor_file *f,
		       const uint8_t *data, uint64_t data_bytes, struct ndp_error *err)
{
	size_t n = ts->nr_tensors - first;
	const struct ndp_tensor **sorted;
	const uint8_t *end = data;
	int r = ndpi_tensors_by_position(ts, first, &sorted, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n && r == 0; i++) {
		const struct where w = { f, sorted[i]->name, err };
		const uint8_t *begin = sorted[i]->data;

		if (begin < end)
			r = bad_tensor(&w, "'data_offsets' overlap those of '%.100s'",
				       sorted[i - 1]->name);
		else if (begin > end)
			r = bad_tensor(&w, "%llu bytes before its data belong to no tensor",
				       (unsigned long long)(begin - end));
		end = begin + sorted[i]->bytes;
	}
	if (r == 0 && end != data + data_bytes)
		r = ndpi_fail(err, -EINVAL, "%s: the last %llu bytes belong to no tensor",
				  f->path, (unsigned long long)(data + data_bytes - end));
	free(sorted);
	return r;
}

static int read_entries(struct ndp_tensors *ts, const struct tensor_file *f, json_t *header,
			const uint8_t *data, uint64_t data_bytes, struct ndp_error *err)
{
	size_t first = ts->nr_tensors;
	const char *name;
	json_t *v;
	int r;

	json_object_foreach(header, name, v) {
		const struct where w = { f, name, err };
		struct ndp_tensor t;

		if (!strcmp(name, "__metadata__")) {
			r = check_metadata(f, v, err);
		} else {
			r = read_tensor(&w, v, data, data_bytes, &t);
			if (r == 0)
				r = ndpi_tensors_add(ts, &t, err);
		}
		if (r < 0)
			return r;
	}
	return check_cover(ts, first, f, data, data_bytes, err);
}

int ndpi_safetensors_read(struct ndp_tensors *ts, const struct tensor_file *f,
			  struct ndp_error *err)
{
	const char *text = (const char *)f->base + 8;
	uint64_t header_bytes = 0;
	json_error_t jerr;
	json_t *header;
	int r;

	if (f->bytes < 8)
		return ndpi_fail(err, -EINVAL,
				     "%s: %zu bytes are too few for a safetensors file", f->path,
				     f->bytes);
	for (int i = 7; i >= 0; i--)
		header_bytes = header_bytes << 8 | f->base[i];
	if (header_bytes > f->bytes - 8)
		return ndpi_fail(err, -EINVAL,
				     "%s: a header of %llu bytes is announced, the file has %zu "
				     "after that: it is truncated or no safetensors file",
				     f->path, (unsigned long long)header_bytes, f->bytes - 8);
	if (header_bytes > MAX_HEADER_BYTES)
		return ndpi_fail(err, -EINVAL,
				     "%s: a header of %llu bytes is more than the format's limit "
				     "of %llu",
				     f->path, (unsigned long long)header_bytes, MAX_HEADER_BYTES);
	if (header_bytes < 2 || text[0] != '{')
		return ndpi_fail(err, -EINVAL,
				     "%s: the header does not begin with '{': this is no "
				     "safetensors file", f->path);

	header = json_loadb(text, header_bytes, JSON_REJECT_DUPLICATES, &jerr);
	if (!header)
		return ndpi_fail(err, -EINVAL, "%s: header: %.200s (byte %d)", f->path,
				     jerr.text, jerr.position);
	r = read_entries(ts, f, header, f->base + 8 + header_bytes, f->bytes - 8 - header_bytes,
			 err);
	json_decref(header);
	return r;
}
