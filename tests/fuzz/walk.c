// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * walk.c - goes through an open set of tensors as callers do, and aborts where an answer
 * contradicts another one.
 *
 * With FUZZ_PLANT in the environment it makes the mistake that the targets are there to
 * find, a read beyond the last tensor: that shows that they would find it.
 */
#include "../unit/tensors_memory.h"
#include "fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define must(condition)                                                              \
	do {                                                                         \
		if (!(condition)) {                                                  \
			fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, \
				#condition);                                         \
			abort();                                                     \
		}                                                                    \
	} while (0)

enum { SPAN = 100 };

/* What was read goes here, so that reading is not left out. */
static volatile uint32_t sink;

static void touch(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint32_t sum = 0;

	/* The ends of what is large. */
	for (size_t i = 0; i < n; i += i == 4095 && n > 8192 ? n - 8192 : 1)
		sum += b[i];
	sink += sum;
}

static void read_span(const struct ndp_tensor *t, uint64_t first, uint64_t count)
{
	ndp_bf16 b[SPAN];
	float f[SPAN];
	int r;

	r = ndp_tensor_read_f32(t, first, count, f);
	must(r == (ndp_dtype_readable(t->dtype) ? 0 : -ENOTSUP));
	must(ndp_tensor_read_bf16(t, first, count, b) == r);
	if (r == 0) {
		touch(f, count * sizeof(*f));
		touch(b, count * sizeof(*b));
	}
}

static void walk_tensor(const struct ndp_tensors *ts, const struct ndp_tensor *t)
{
	uint64_t n = t->elements < SPAN ? t->elements : SPAN;
	const struct ndp_tensor *again = NULL;
	uint64_t product = 1;
	float f;

	must(t->nr_dims <= NDP_TENSOR_MAX_DIMS);
	for (uint32_t i = 0; i < t->nr_dims; i++)
		product *= t->dims[i];
	must(product == t->elements);
	must(t->bytes == t->elements / ndp_dtype_block(t->dtype) * ndp_dtype_bytes(t->dtype));
	must(ndp_tensors_require(ts, t->name, t->nr_dims, t->dims, &again, NULL) == 0);
	must(again == t);
	touch(t->data, t->bytes);
	read_span(t, 0, n);
	read_span(t, t->elements - n, n);
	read_span(t, t->elements / 2, n / 2);
	must(ndp_tensor_read_f32(t, t->elements, 1, &f) == -ERANGE);
}

static void walk_value(const struct ndp_tensors *ts, const struct ndp_meta *m, uint64_t index)
{
	struct ndp_error err;
	const char *text;
	size_t length;
	uint64_t u;
	int64_t i;
	double d;
	bool yes;
	int r[5];

	r[0] = ndp_tensors_meta_u64(ts, m->key, index, &u, &err);
	r[1] = ndp_tensors_meta_i64(ts, m->key, index, &i, &err);
	r[2] = ndp_tensors_meta_f64(ts, m->key, index, &d, &err);
	r[3] = ndp_tensors_meta_bool(ts, m->key, index, &yes, &err);
	r[4] = ndp_tensors_meta_string(ts, m->key, index, &text, &length, &err);
	if (r[4] == 0)
		touch(text, length);
	for (int k = 0; k < 5; k++)
		must(index < m->count ? r[k] != -ENOENT : r[k] != 0);
	must(index >= m->count || m->type == NDP_META_ARRAY || !r[0] || !r[1] || !r[2] || !r[3] ||
	     !r[4]);
}

void fuzz_walk(const struct ndp_tensors *ts)
{
	size_t n = ndp_tensors_count(ts);

	for (size_t i = 0; i < n; i++) {
		const struct ndp_tensor *t = ndp_tensors_get(ts, i);

		must(ndp_tensors_find(ts, t->name) == t);
		must(i == 0 || strcmp(ndp_tensors_get(ts, i - 1)->name, t->name) < 0);
		walk_tensor(ts, t);
		if (i == n - 1 && getenv("FUZZ_PLANT"))
			touch(t->data, t->bytes + 64);
	}
	must(!ndp_tensors_get(ts, n));
	n = ndp_tensors_meta_count(ts);
	for (size_t i = 0; i < n; i++) {
		const struct ndp_meta *m = ndp_tensors_meta_get(ts, i);

		must(ndp_tensors_meta_find(ts, m->key) == m);
		walk_value(ts, m, 0);
		walk_value(ts, m, m->count / 2);
		walk_value(ts, m, m->count - 1);
		walk_value(ts, m, m->count);
		walk_value(ts, m, UINT64_MAX);
	}
}

void fuzz_read(const uint8_t *data, size_t size)
{
	static char name[] = "input";
	struct ndp_tensors *ts = NULL;
	struct ndp_error err = { 0 };
	struct tensor_file file;
	int r = tensors_open_memory(&ts, data, size, name, &file, &err);

	if (r == 0) {
		fuzz_walk(ts);
		ndp_tensors_close(ts);
		return;
	}
	must(r == -EINVAL || r == -ENOTSUP);
	must(err.code == r && strstr(err.message, name));
}

uint64_t fuzz_value(uint32_t *state, uint64_t old, size_t size)
{
	static const uint64_t values[] = {
		0, 1, 2, 3, 4, 5, 8, 9, 13, 31, 32, 33, 39, 64, 255, 256, 65535, 65536,
		INT32_MAX, UINT32_MAX, 1ULL << 32, 1ULL << 59, 1ULL << 61, INT64_MAX,
		1ULL << 63, UINT64_MAX - 31, UINT64_MAX - 7, UINT64_MAX,
	};
	uint32_t pick = fuzz_next(state) % 8;

	switch (pick) {
	case 0:
		return old + 1;
	case 1:
		return old - 1;
	case 2:
		return size - fuzz_next(state) % 64;
	case 3:
		return old ^ 1ULL << fuzz_next(state) % 64;
	case 4:
		return (old & ~31ULL) + 32 * (fuzz_next(state) % 5) - 64;
	default:
		return values[fuzz_next(state) % (sizeof(values) / sizeof(values[0]))];
	}
}
