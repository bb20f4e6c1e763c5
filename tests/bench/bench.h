/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * bench.h - the few things that the benches share: giving up with a sentence, a
 * clock, and random BF16 numbers that repeat from run to run.
 *
 * Nothing in here measures or judges.
 */
#ifndef NDP_BENCH_H
#define NDP_BENCH_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators". */
static inline uint64_t random64(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* Four BF16 numbers in [2^e, 2^(e+1)), with random signs, at a time. @count: multiple of 4. */
static inline void random_bf16(uint16_t *dst, size_t count, int exponent, uint64_t seed)
{
	const uint64_t field = 0x0001000100010001ull * ((uint64_t)(127 + exponent) << 7);
	uint64_t state = seed * 2 + 1, four;
	size_t i;

	for (i = 0; i < count; i += 4) {
		four = (random64(&state) & 0x807f807f807f807full) | field;
		memcpy(dst + i, &four, sizeof(four));
	}
}

static inline unsigned long parse_number(const char *what, const char *text, unsigned long min,
					 unsigned long max)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 0);
	if (errno || end == text || *end || value < min || value > max)
		die("%s is a number from %lu to %lu, not \"%s\"", what, min, max, text);
	return value;
}

#endif
