// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mutate_safetensors.c - changes to a safetensors file.
 *
 * Most of them keep the length in front of the header right, so that the header is what
 * is tried; of these every second one exchanges a number in it.
 */
#include "fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t header_bytes(const uint8_t *data, size_t size)
{
	uint64_t n = 0;

	if (size < 8)
		return 0;
	memcpy(&n, data, 8);
	return n < size - 8 ? n : size - 8;
}

static int is_digit(uint8_t c)
{
	return c >= '0' && c <= '9';
}

size_t fuzz_mutate_number(uint8_t *text, size_t n, size_t max, size_t size, uint32_t *state)
{
	size_t begin = n ? fuzz_next(state) % n : 0;
	size_t end, len;
	char digits[24];

	while (begin < n && !is_digit(text[begin]))
		begin++;
	while (begin > 0 && begin < n && is_digit(text[begin - 1]))
		begin--;
	end = begin;
	while (end < n && is_digit(text[end]))
		end++;
	if (begin == end)
		return n;
	len = end - begin < sizeof(digits) - 1 ? end - begin : sizeof(digits) - 1;
	memcpy(digits, text + begin, len);
	digits[len] = '\0';
	len = snprintf(digits, sizeof(digits), "%" PRIu64,
		       fuzz_value(state, strtoull(digits, NULL, 10), size));
	if (n - (end - begin) + len > max)
		return n;
	memmove(text + begin + len, text + end, n - end);
	memcpy(text + begin, digits, len);
	return n - (end - begin) + len;
}

size_t fuzz_mutate_safetensors(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	uint64_t n = header_bytes(data, size);
	size_t rest = size - 8 - n;
	uint32_t state = seed;
	uint8_t *tail;
	size_t max;

	if (size < 9 || n == 0 || fuzz_next(&state) % 8 == 0)
		return LLVMFuzzerMutate(data, size, max_size);
	if (fuzz_next(&state) % 16 == 0)
		return 8 + n + LLVMFuzzerMutate(data + 8 + n, rest, max_size - 8 - n);
	/* The header alone, then the data again behind it. */
	tail = malloc(rest ? rest : 1);
	if (!tail)
		abort();
	memcpy(tail, data + 8 + n, rest);
	max = max_size - 8 - rest;
	if (fuzz_next(&state) % 2)
		n = fuzz_mutate_number(data + 8, n, max, rest, &state);
	else
		n = LLVMFuzzerMutate(data + 8, n, max);
	memcpy(data, &n, 8);
	memcpy(data + 8 + n, tail, rest);
	free(tail);
	return 8 + n + rest;
}
