// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_sampler.c - the choice of tokens, and what of them may be shown.
 */
#include "../../tools/ndp-run/sampler.h"
#include "../../tools/ndp-run/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 5

static void count(struct sampler *s, const float *logits, uint32_t draws, uint32_t *counts)
{
	uint32_t order[VOCAB];
	float p[VOCAB];

	memset(counts, 0, VOCAB * sizeof(*counts));
	while (draws--)
		counts[sampler_pick(s, logits, VOCAB, order, p)]++;
}

static void greedy_takes_the_lowest_of_the_best(void **state)
{
	static const float logits[VOCAB] = { -1, 4, 3, 4, 0 };
	struct sampler s = { .top_p = 1 };
	uint32_t counts[VOCAB];
	uint32_t best;
	uint32_t second;

	(void)state;
	count(&s, logits, 10, counts);
	assert_int_equal(counts[1], 10);
	best_two(logits, VOCAB, &best, &second);
	assert_int_equal(best, 1);
	assert_int_equal(second, 3);
	best_two((const float[]){ 1, 1 }, 2, &best, &second);
	assert_int_equal(best, 0);
	assert_int_equal(second, 1);
	best_two((const float[]){ 3, 1, 2 }, 3, &best, &second);
	assert_int_equal(best, 0);
	assert_int_equal(second, 2);
}

/* Shares of 100,000 draws; one standard deviation is at most 0.16 %. */
static void sampling_follows_the_probabilities(void **state)
{
	const float logits[VOCAB] = { logf(1), logf(4), logf(2), logf(2), logf(1) };
	struct sampler s = { .temperature = 1, .top_p = 1, .state = 42 };
	uint32_t counts[VOCAB];

	(void)state;
	count(&s, logits, 100000, counts);
	assert_float_equal(counts[0] / 1e5f, 0.1f, 0.008f);
	assert_float_equal(counts[1] / 1e5f, 0.4f, 0.008f);
	assert_float_equal(counts[2] / 1e5f, 0.2f, 0.008f);
	assert_float_equal(counts[4] / 1e5f, 0.1f, 0.008f);

	/* Half the temperature squares the probabilities: 1, 16, 4, 4, 1 of 26. */
	s.temperature = 0.5f;
	count(&s, logits, 100000, counts);
	assert_float_equal(counts[1] / 1e5f, 16 / 26.0f, 0.008f);
	assert_float_equal(counts[0] / 1e5f, 1 / 26.0f, 0.008f);
}

static void top_k_and_top_p_cut(void **state)
{
	const float logits[VOCAB] = { logf(1), logf(4), logf(2), logf(2), logf(1) };
	struct sampler s = { .temperature = 1, .top_p = 1, .state = 42, .top_k = 2 };
	uint32_t counts[VOCAB];

	(void)state;
	count(&s, logits, 100000, counts); /* ids 1 and 2 of 4 + 2 */
	assert_int_equal(counts[1] + counts[2], 100000);
	assert_float_equal(counts[1] / 1e5f, 2 / 3.0f, 0.008f);
	s.top_k = 0;
	s.top_p = 0.5f; /* 0.4 is too little, 0.6 is enough */
	count(&s, logits, 100000, counts);
	assert_int_equal(counts[1] + counts[2], 100000);
	assert_float_equal(counts[1] / 1e5f, 2 / 3.0f, 0.008f);
	s.top_p = 0;
	count(&s, logits, 1000, counts);
	assert_int_equal(counts[1], 1000);
	s.top_k = 1;
	s.top_p = 1;
	count(&s, logits, 1000, counts);
	assert_int_equal(counts[1], 1000);
}

static void a_seed_repeats(void **state)
{
	const float logits[VOCAB] = { 0 };
	struct sampler a = { .temperature = 1, .top_p = 1, .state = 7 };
	struct sampler b = a;
	struct sampler c = { .temperature = 1, .top_p = 1, .state = 8 };
	uint32_t order[VOCAB];
	float p[VOCAB];
	int same = 0;

	(void)state;
	for (int i = 0; i < 100; i++) {
		uint32_t x = sampler_pick(&a, logits, VOCAB, order, p);

		assert_int_equal(x, sampler_pick(&b, logits, VOCAB, order, p));
		same += x == sampler_pick(&c, logits, VOCAB, order, p);
	}
	assert_in_range(same, 5, 40); /* 20 by chance */
}

/* The generator's published first numbers for seed 1234567. */
static void random_bits_are_splitmix64(void **state)
{
	uint64_t seed = 1234567;

	(void)state;
	assert_true(random_bits(&seed) == 6457827717110365317ULL);
	assert_true(random_bits(&seed) == 3203168211198807973ULL);
	for (int i = 0; i < 1000; i++)
		assert_in_range(random_below(&seed, 3), 0, 2);
	assert_int_equal(random_below(&seed, 1), 0);
}

static void assert_utf8(const char *bytes, size_t n, const char *wanted)
{
	uint32_t tokens[32] = { 0 };
	char *text;

	for (size_t i = 0; i < n; i++)
		tokens[i] = (unsigned char)bytes[i];
	text = text_utf8(tokens, n);
	assert_non_null(text);
	assert_string_equal(text, wanted);
	free(text);
}

#define R "\xef\xbf\xbd"

static void text_is_always_utf8(void **state)
{
	(void)state;
	assert_utf8("", 0, "");
	assert_utf8("a\n\0b", 4, "a\n" R "b");
	assert_utf8("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9,
		    "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
	assert_utf8("\xff\x80", 2, R R);
	assert_utf8("\xc0\xaf", 2, R R); /* overlong */
	assert_utf8("\xed\xa0\x80", 3, R R R); /* surrogate */
	assert_utf8("\xf4\x90\x80\x80", 4, R R R R); /* above U+10FFFF */
	assert_utf8("x\xe2\x82", 3, "x" R R); /* ends too early */
}

static void quoted_text_is_one_harmless_line(void **state)
{
	const uint32_t tokens[] = { 'a', '\n', '"', '\\', 0x1b, '[', 0xff, 0xc3, 0xa4, 0 };
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	(void)state;
	assert_non_null(f);
	text_print_quoted(f, tokens, 10);
	text_put(f, 0x1b, 1);
	text_put(f, '\n', 1);
	text_put(f, 0x1b, 0);
	fclose(f);
	assert_string_equal(text, "\"a\\n\\\"\\\\\\x1b[\\xff\xc3\xa4\\x00\"" R "\n\x1b");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greedy_takes_the_lowest_of_the_best),
		cmocka_unit_test(sampling_follows_the_probabilities),
		cmocka_unit_test(top_k_and_top_p_cut),
		cmocka_unit_test(a_seed_repeats),
		cmocka_unit_test(random_bits_are_splitmix64),
		cmocka_unit_test(text_is_always_utf8),
		cmocka_unit_test(quoted_text_is_one_harmless_line),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
