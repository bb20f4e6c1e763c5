// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * router.c - see router.h.  The rule is that of Mixtral (arXiv 2401.04088,
 * section 2.1): TopK of the logits and a softmax over what remains; softmax over
 * all, then TopK, then scaling to sum 1 gives the same weights.
 */
#include "router.h"
#include "vec.h"

void route(float *logits, uint32_t experts, uint32_t k, uint32_t *ids, float *weights)
{
	float sum = 0;

	softmax(logits, experts);
	for (uint32_t j = 0; j < k; j++) {
		uint32_t best = 0;

		for (uint32_t e = 1; e < experts; e++)
			if (logits[e] > logits[best])
				best = e;
		ids[j] = best;
		weights[j] = logits[best];
		sum += logits[best];
		logits[best] = -1.0f; /* below every probability */
	}
	for (uint32_t j = 0; j < k; j++)
		weights[j] /= sum;
}
