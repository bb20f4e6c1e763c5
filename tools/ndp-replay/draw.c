// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * draw.c - random experts by weight; see source.h.
 *
 * Walker, "An efficient method for generating discrete random variables", 1977,
 * with tables built as Vose does, 1991.
 */
#include "source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_state(uint64_t seed)
{
	uint64_t z = seed + 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	z ^= z >> 31;
	return z ? z : 1;
}

int draw_init(struct draw *d, uint32_t n)
{
	d->n = n;
	d->alias = calloc(n, sizeof(*d->alias));
	d->cut = calloc(n, sizeof(*d->cut));
	return d->alias && d->cut ? 0 : -ENOMEM;
}

void draw_free(struct draw *d)
{
	free(d->alias);
	free(d->cut);
}

void draw_set(struct draw *d, const double *weights)
{
	uint32_t small[d->n], large[d->n], nr_small = 0, nr_large = 0;
	double part[d->n], sum = 0;

	for (uint32_t i = 0; i < d->n; i++)
		sum += weights[i];
	for (uint32_t i = 0; i < d->n; i++) {
		part[i] = weights[i] / sum * d->n;
		if (part[i] < 1)
			small[nr_small++] = i;
		else
			large[nr_large++] = i;
	}
	while (nr_small && nr_large) {
		const uint32_t s = small[--nr_small], l = large[nr_large - 1];

		d->cut[s] = part[s] * 4294967295.0;
		d->alias[s] = l;
		part[l] -= 1 - part[s];
		if (part[l] < 1) {
			nr_large--;
			small[nr_small++] = l;
		}
	}
	while (nr_large || nr_small) {
		const uint32_t i = nr_large ? large[--nr_large] : small[--nr_small];

		d->cut[i] = UINT32_MAX;
		d->alias[i] = i;
	}
}

/*
 * Without branches, which could not be predicted; two draws in a row often get the same
 * expert, so they count apart.
 */
void draw_many(const struct draw *d, uint64_t *state, uint64_t draws, uint32_t *counts)
{
	const uint32_t n = d->n, *cut = d->cut, *alias = d->alias;
	uint32_t even[n];
	uint64_t s = *state;

	memset(even, 0, sizeof(even));
	for (uint64_t k = 0; k < draws; k++) {
		const uint64_t r = random_u64(&s);
		const uint32_t i = ((r >> 32) * n) >> 32;
		const uint32_t other = -(uint32_t)((uint32_t)r >= cut[i]);

		(k & 1 ? counts : even)[i ^ ((i ^ alias[i]) & other)]++;
	}
	for (uint32_t i = 0; i < n; i++)
		counts[i] += even[i];
	*state = s;
}
