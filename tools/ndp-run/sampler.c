// SPDX-License-Identifier: GPL-2.0-or-later
/* sampler.c - see sampler.h. */
#include "sampler.h"
#include "vec.h"

#include <stdlib.h>

uint64_t random_bits(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint32_t random_below(uint64_t *state, uint32_t n)
{
	return (random_bits(state) >> 32) * n >> 32;
}

void best_two(const float *logits, uint32_t vocab, uint32_t *best, uint32_t *second)
{
	uint32_t a = logits[1] > logits[0];
	uint32_t b = !a;

	for (uint32_t i = 2; i < vocab; i++) {
		if (logits[i] > logits[a]) {
			b = a;
			a = i;
		} else if (logits[i] > logits[b]) {
			b = i;
		}
	}
	*best = a;
	*second = b;
}

static int by_logit(const void *x, const void *y, void *logits)
{
	uint32_t a = *(const uint32_t *)x;
	uint32_t b = *(const uint32_t *)y;
	const float *l = logits;

	if (l[a] != l[b])
		return l[a] > l[b] ? -1 : 1;
	return a < b ? -1 : 1;
}

uint32_t sampler_pick(struct sampler *s, const float *logits, uint32_t vocab, uint32_t *order,
		      float *p)
{
	uint32_t n = s->top_k && s->top_k < vocab ? s->top_k : vocab;
	uint32_t second;
	float draw;
	float sum = 0;

	if (vocab == 1)
		return 0;
	if (s->temperature == 0) {
		best_two(logits, vocab, &order[0], &second);
		return order[0];
	}
	for (uint32_t i = 0; i < vocab; i++)
		order[i] = i;
	qsort_r(order, vocab, sizeof(*order), by_logit, (void *)logits);
	for (uint32_t i = 0; i < n; i++)
		p[i] = (logits[order[i]] - logits[order[0]]) / s->temperature;
	softmax(p, n);

	for (uint32_t i = 0; i < n; i++) {
		sum += p[i];
		if (sum >= s->top_p) {
			n = i + 1;
			break;
		}
	}
	/* 24 bits: every value is exact and below 1. */
	draw = (float)(random_bits(&s->state) >> 40) * 0x1p-24f * sum;
	for (uint32_t i = 0; i + 1 < n; i++) {
		if (draw < p[i])
			return order[i];
		draw -= p[i];
	}
	return order[n - 1];
}
