// SPDX-License-Identifier: GPL-2.0-or-later
/* check.c - see check.h. */
#include "check.h"
#include "sampler.h"

#include <math.h>
#include <string.h>

void verdict_init(struct verdict *v, const struct reference_prompt *ref, uint32_t vocab)
{
	memset(v, 0, sizeof(*v));
	v->ref = ref;
	v->vocab = vocab;
	v->smallest_margin = INFINITY;
}

static void compare_logits(struct verdict *v, uint32_t step, const float *logits)
{
	const struct reference_prompt *ref = v->ref;

	for (; v->next_logit < ref->nr_logits; v->next_logit++) {
		const struct reference_logit *l = &ref->logits[v->next_logit];
		float deviation;

		if (l->step != step)
			return;
		deviation = fabsf(logits[l->id] - l->logit);
		v->compared_logits++;
		if (!(deviation <= CHECK_TOLERANCE))
			v->wrong_logits++;
		if (!(deviation <= v->worst_deviation)) {
			v->worst_deviation = deviation;
			v->worst_step = step;
			v->worst_id = l->id;
		}
	}
}

bool verdict_step(struct verdict *v, uint32_t step, const float *logits, uint32_t token)
{
	uint32_t best;
	uint32_t second;

	if (v->vocab > 1) {
		float margin;

		best_two(logits, v->vocab, &best, &second);
		margin = logits[best] - logits[second];
		if (margin < v->smallest_margin) {
			v->smallest_margin = margin;
			v->smallest_margin_step = step;
		}
	}
	compare_logits(v, step, logits);
	if (token != v->ref->tokens[step]) {
		v->diverged = true;
		v->got = token;
		return false;
	}
	v->equal_tokens++;
	return true;
}

bool verdict_passed(const struct verdict *v)
{
	return !v->diverged && v->equal_tokens == v->ref->nr_tokens && v->wrong_logits == 0 &&
	       v->compared_logits == v->ref->nr_logits;
}
