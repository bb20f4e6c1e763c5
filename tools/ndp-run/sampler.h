/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sampler.h - the next token out of the logits.
 */
#ifndef NDP_RUN_SAMPLER_H
#define NDP_RUN_SAMPLER_H

#include <stdint.h>

struct sampler {
	float temperature; /* 0: the best token, always */
	uint32_t top_k; /* only that many best ones, 0: all */
	float top_p; /* only the fewest best ones that have this probability together, 0..1 */
	uint64_t state; /* of the generator of random numbers: its seed at first */
};

/*
 * A token for @logits [vocab]; the lower id first among equals.  @order: room
 * for @vocab ids, @p: for @vocab floats.
 */
uint32_t sampler_pick(struct sampler *s, const float *logits, uint32_t vocab, uint32_t *order,
		      float *p);

/* The best and the second best id; @vocab is at least 2. */
void best_two(const float *logits, uint32_t vocab, uint32_t *best, uint32_t *second);

/* The next of 64 random bits: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
uint64_t random_bits(uint64_t *state);
/* 0 .. n - 1; n at least 1. */
uint32_t random_below(uint64_t *state, uint32_t n);

#endif
