/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * check.h - is what was generated what the reference says?
 */
#ifndef NDP_RUN_CHECK_H
#define NDP_RUN_CHECK_H

#include "reference.h"

#include <stdbool.h>

/*
 * Rounding x and h to BF16, which NDP DIMMs do and the reference does not, moves
 * the test model's best logits by up to 0.012.
 */
#define CHECK_TOLERANCE 0.03f

/* State of a comparison and its outcome. */
struct verdict {
	const struct reference_prompt *ref;
	uint32_t vocab;
	uint32_t next_logit;
	uint32_t equal_tokens;
	uint32_t compared_logits;
	uint32_t wrong_logits; /* beyond the tolerance */
	bool diverged; /* at step equal_tokens */
	uint32_t got; /* that step's token */
	float worst_deviation;
	uint32_t worst_step;
	uint32_t worst_id;
	float smallest_margin; /* best minus second logit, ours */
	uint32_t smallest_margin_step;
};

void verdict_init(struct verdict *v, const struct reference_prompt *ref, uint32_t vocab);

/*
 * Compares one step.  false: the tokens differ, all that follows would, too, and
 * says nothing.
 */
bool verdict_step(struct verdict *v, uint32_t step, const float *logits, uint32_t token);

/* All tokens are there and equal, all logits compared and within the tolerance. */
bool verdict_passed(const struct verdict *v);

#endif
