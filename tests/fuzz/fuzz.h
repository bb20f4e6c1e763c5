/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fuzz.h - what the fuzz targets share.  libFuzzer gives each input in an allocation of
 * its size, so AddressSanitizer sees every read beyond it.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

struct ndp_tensors;

/* libFuzzer's interface. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* Numbers out of one seed. */
static inline uint32_t fuzz_next(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* A value that readers get wrong, for a field of a file of @size bytes that has @old. */
uint64_t fuzz_value(uint32_t *state, uint64_t old, size_t size);

/* As LLVMFuzzerCustomMutator(), for a file of one format. */
size_t fuzz_mutate_gguf(uint8_t *data, size_t size, size_t max_size, uint32_t seed);
size_t fuzz_mutate_safetensors(uint8_t *data, size_t size, size_t max_size, uint32_t seed);
/*
 * Exchanges one number in @n bytes of text, whose buffer has @max and which is about
 * @size bytes of data; returns the new length.
 */
size_t fuzz_mutate_number(uint8_t *text, size_t n, size_t max, size_t size, uint32_t *state);

/* Reads @data as one file of a format and, when it is good, all that it holds. */
void fuzz_read(const uint8_t *data, size_t size);
/* Asks an open set for everything that callers can ask for; aborts on a wrong answer. */
void fuzz_walk(const struct ndp_tensors *ts);

#endif
