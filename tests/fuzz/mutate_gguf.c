// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mutate_gguf.c - changes to a GGUF file.
 *
 * Every second one knows the format: it walks the table as far as that makes sense
 * and sets one field, a count, a length, a type, a dimension or an offset, to a
 * value that readers get wrong, or copies a field over another one.  The others are
 * libFuzzer's, which know nothing.
 */
#include "fuzz.h"

#include <string.h>

enum { MAX_FIELDS = 512 };

struct field {
	size_t at;
	size_t bytes;
};

struct walk {
	const uint8_t *data;
	size_t size;
	size_t at;
	struct field fields[MAX_FIELDS];
	size_t n;
};

/* The number at the place reached, noted as a field; beyond the end it is 0. */
static uint64_t number(struct walk *w, size_t bytes)
{
	uint64_t v = 0;

	if (w->size - w->at < bytes) {
		w->at = w->size;
		return 0;
	}
	memcpy(&v, w->data + w->at, bytes);
	if (w->n < MAX_FIELDS)
		w->fields[w->n++] = (struct field){ w->at, bytes };
	w->at += bytes;
	return v;
}

static void skip(struct walk *w, uint64_t bytes)
{
	w->at = bytes > w->size - w->at ? w->size : w->at + bytes;
}

static void value(struct walk *w, uint32_t type, int depth)
{
	static const uint8_t bytes[13] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
	uint64_t count;

	if (type < 13 && bytes[type]) {
		number(w, bytes[type]);
	} else if (type == 8) {
		skip(w, number(w, 8));
	} else if (type == 9 && depth < 6) {
		type = number(w, 4);
		count = number(w, 8);
		for (uint64_t i = 0; i < count && w->at < w->size; i++)
			value(w, type, depth + 1);
	} else {
		/* It takes up nothing, however often it is there. */
		w->at = w->size;
	}
}

static void find_fields(struct walk *w)
{
	uint64_t tensors, keys;

	number(w, 4);
	number(w, 4);
	tensors = number(w, 8);
	keys = number(w, 8);
	for (uint64_t i = 0; i < keys && w->at < w->size; i++) {
		skip(w, number(w, 8));
		value(w, number(w, 4), 0);
	}
	for (uint64_t i = 0; i < tensors && w->at < w->size; i++) {
		uint64_t dims;

		skip(w, number(w, 8));
		dims = number(w, 4);
		for (uint64_t d = 0; d < dims && w->at < w->size; d++)
			number(w, 8);
		number(w, 4);
		number(w, 8);
	}
}

size_t fuzz_mutate_gguf(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	struct walk w = { .data = data, .size = size };
	uint32_t state = seed;
	struct field *f;
	uint64_t v = 0;

	if (fuzz_next(&state) % 2)
		return LLVMFuzzerMutate(data, size, max_size);
	find_fields(&w);
	if (!w.n)
		return LLVMFuzzerMutate(data, size, max_size);
	f = &w.fields[fuzz_next(&state) % w.n];
	if (fuzz_next(&state) % 4) {
		memcpy(&v, data + f->at, f->bytes);
		v = fuzz_value(&state, v, size);
	} else {
		const struct field *other = &w.fields[fuzz_next(&state) % w.n];

		memcpy(&v, data + other->at, other->bytes);
	}
	memcpy(data + f->at, &v, f->bytes);
	return size;
}
