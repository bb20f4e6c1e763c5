// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * refine.c - whole experts: TriMoE's greedy start and bottleneck refinement.
 *
 * Greedy: every expert goes where it costs least by itself.  Refinement (the
 * paper's second phase): take the most loaded resource and the experts that load
 * it most; move one to another domain, or, when no move helps, move one and at
 * the same time one of those that would then be in its way; do what lowers the
 * makespan most; end when nothing lowers it.
 *
 * Work is bounded: each step looks at a bounded number of experts, and there
 * are at most a few steps an expert.
 */
#include "impl.h"

#include <math.h>
#include <string.h>

enum {
	MOVERS = 24,		/* of the bottleneck's experts, how many are tried */
	SWAPPERS = 8,		/* of those, how many in pairs */
	STEPS_PER_EXPERT = 4,
};

void ndpi_greedy(const struct ndpi_table *t, uint8_t *choice)
{
	for (uint32_t i = 0; i < t->nr; i++) {
		const float *cost = t->longest + (size_t)i * NDP_DOMAINS;

		choice[i] = NDP_DOMAIN_GPU;
		for (uint32_t o = 1; o < NDP_DOMAINS; o++)
			if (cost[o] < cost[choice[i]])
				choice[i] = o;
	}
}

struct search {
	const struct ndpi_table *t;
	uint8_t *choice;
	ndpi_wide load;
	float makespan;
	uint32_t bottleneck;
	uint32_t nr_movers;
	uint32_t movers[MOVERS];
	float weight[MOVERS];
};

/* One or two experts and where they go. */
struct step {
	float makespan;
	float total;		/* of all resources, to choose among equals */
	uint32_t expert[2];
	uint8_t to[2];
	uint32_t nr;
};

static float total_of(const float *row, uint32_t width)
{
	ndpi_vec s = *(const ndpi_vec *)row;

	for (uint32_t k = 4; k < width; k += 4)
		s += *(const ndpi_vec *)(row + k);
	return s[0] + s[1] + s[2] + s[3];
}

static void find_bottleneck(struct search *s)
{
	s->makespan = ndpi_largest(s->load, s->t->width);
	for (s->bottleneck = 0; s->load[s->bottleneck] != s->makespan; s->bottleneck++)
		;
}

/* The experts that load resource @r most, by falling load. */
static void find_movers(struct search *s, uint32_t r)
{
	const struct ndpi_table *t = s->t;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->nr; i++) {
		const float w = ndpi_row(t, i, s->choice[i])[r];
		uint32_t at;

		if (!(w > 0) || (n == MOVERS && w <= s->weight[n - 1]))
			continue;
		if (n < MOVERS)
			n++;
		for (at = n - 1; at > 0 && s->weight[at - 1] < w; at--) {
			s->weight[at] = s->weight[at - 1];
			s->movers[at] = s->movers[at - 1];
		}
		s->weight[at] = w;
		s->movers[at] = i;
	}
	s->nr_movers = n;
}

/* to = base - the row of @i where it is + its row in @o; returns the largest. */
static float moved(const struct search *s, const float *base, uint32_t i, uint32_t o, float *to)
{
	const struct ndpi_table *t = s->t;
	const float *from_row = ndpi_row(t, i, s->choice[i]), *to_row = ndpi_row(t, i, o);
	ndpi_vec m = { 0 };

	for (uint32_t k = 0; k < t->width; k += 4) {
		const ndpi_vec v = *(const ndpi_vec *)(base + k) -
			*(const ndpi_vec *)(from_row + k) + *(const ndpi_vec *)(to_row + k);

		*(ndpi_vec *)(to + k) = v;
		m = ndpi_max(m, v);
	}
	return ndpi_largest_of(m);
}

static void consider(struct step *best, float makespan, float total, const uint32_t *expert,
		     const uint8_t *to, uint32_t nr)
{
	const float near = best->makespan * 1e-6f;

	if (makespan > best->makespan + near ||
	    (makespan > best->makespan - near && total >= best->total))
		return;
	best->makespan = makespan;
	best->total = total;
	best->nr = nr;
	for (uint32_t k = 0; k < nr; k++) {
		best->expert[k] = expert[k];
		best->to[k] = to[k];
	}
}

static void try_moves(const struct search *s, struct step *best)
{
	const struct ndpi_table *t = s->t;
	ndpi_wide after;

	for (uint32_t m = 0; m < s->nr_movers; m++) {
		const uint32_t i = s->movers[m];

		for (uint8_t o = 0; o < NDP_DOMAINS; o++) {
			float makespan;

			if (o == s->choice[i] || !(t->can[i] & 1u << o) ||
			    t->longest[i * NDP_DOMAINS + o] >= best->makespan)
				continue;
			makespan = moved(s, s->load, i, o, after);
			if (makespan <= best->makespan)
				consider(best, makespan, total_of(after, t->width), &i, &o, 1);
		}
	}
}

/* @i has gone to @o, which gave @after: who on its fullest resource can make room? */
static void try_partners(const struct search *s, struct step *best, uint32_t i, uint8_t o,
			 const float *after, float fullest)
{
	const struct ndpi_table *t = s->t;
	ndpi_wide last;
	uint32_t r = 0;
	float excess;

	while (after[r] != fullest)
		r++;
	for (uint32_t j = 0; j < t->nr; j++) {
		const float *row = ndpi_row(t, j, s->choice[j]);

		excess = fullest - best->makespan;
		if (j == i || row[r] <= excess)
			continue;
		for (uint8_t q = 0; q < NDP_DOMAINS; q++) {
			const uint32_t pair[2] = { i, j };
			const uint8_t to[2] = { o, q };
			float makespan;

			if (q == s->choice[j] || !(t->can[j] & 1u << q) ||
			    t->longest[j * NDP_DOMAINS + q] >= best->makespan ||
			    ndpi_row(t, j, q)[s->bottleneck] >= best->makespan - after[s->bottleneck])
				continue;
			makespan = moved(s, after, j, q, last);
			if (makespan <= best->makespan)
				consider(best, makespan, total_of(last, t->width), pair, to, 2);
		}
	}
}

static void try_swaps(const struct search *s, struct step *best)
{
	const struct ndpi_table *t = s->t;
	ndpi_wide after;
	const uint32_t n = s->nr_movers < SWAPPERS ? s->nr_movers : SWAPPERS;

	for (uint32_t m = 0; m < n; m++) {
		const uint32_t i = s->movers[m];

		for (uint8_t o = 0; o < NDP_DOMAINS; o++) {
			float fullest;

			if (o == s->choice[i] || !(t->can[i] & 1u << o) ||
			    t->longest[i * NDP_DOMAINS + o] >= best->makespan)
				continue;
			fullest = moved(s, s->load, i, o, after);
			try_partners(s, best, i, o, after, fullest);
		}
	}
}

static void apply(struct search *s, const struct step *step)
{
	for (uint32_t k = 0; k < step->nr; k++) {
		moved(s, s->load, step->expert[k], step->to[k], s->load);
		s->choice[step->expert[k]] = step->to[k];
	}
}

void ndpi_refine(const struct ndpi_table *t, uint8_t *choice)
{
	struct search s = { .t = t, .choice = choice };

	if (!t->nr)
		return;
	ndpi_sum_rows(t, choice, s.load);
	for (uint32_t steps = 0; steps < STEPS_PER_EXPERT * t->nr; steps++) {
		struct step best = { 0 };

		find_bottleneck(&s);
		find_movers(&s, s.bottleneck);
		best.makespan = s.makespan * (1 - 1e-6f);
		best.total = -1;
		try_moves(&s, &best);
		if (!best.nr)
			try_swaps(&s, &best);
		if (!best.nr)
			break;
		apply(&s, &best);
	}
}
