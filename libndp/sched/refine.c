// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * refine.c - whole experts: starts and TriMoE's bottleneck refinement.
 *
 * Refinement (the paper's second phase): take the most loaded resource and the
 * experts that load it most; move one to another domain, or, when no move helps,
 * move one and at the same time one of those that would then be in its way; do
 * what lowers the makespan most; end when nothing lowers it.
 *
 * Work is bounded: each step looks at a bounded number of movers, and the number
 * of steps is bounded too.
 */
#include "impl.h"

#include <math.h>
#include <string.h>

enum {
	MOVERS = 16,		/* of the bottleneck's experts, how many are tried */
	SWAPPERS = 3,		/* of those, how many in pairs */
	MOST_SWAPS = 12,
	RUN = 6,		/* sorted by inserting */
};

/* Steps that gain less are not worth their time. */
static const float least_gain = 1e-3f;

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

/*
 * What the rows that expert @i loads by @to would hold: the largest. Other rows
 * can only have become lighter.
 */
static float raised(const struct ndpi_table *t, const float *load, const float *from,
		    const float *to, uint32_t i)
{
	typedef int mask __attribute__((vector_size(16)));
	const ndpi_vec zero = { 0 };
	ndpi_vec m = zero;
	float most = 0;

	if (!t->sparse) {
		for (uint32_t k = 0; k < t->width; k += 4) {
			const ndpi_vec add = *(const ndpi_vec *)(to + k);
			const ndpi_vec v = *(const ndpi_vec *)(load + k) -
				*(const ndpi_vec *)(from + k) + add;

			m = ndpi_max(m, (ndpi_vec)((mask)v & (add > zero)));
		}
		return ndpi_largest_of(m);
	}
	for (uint32_t k = 0; k < SPARSE_DIMM + 1; k++) {
		const uint32_t row = k == SPARSE_DIMM ? t->dimm_row[i] :
			k == SPARSE_CHANNEL ? t->channel_row[i] : k;
		const float v = load[row] - from[k] + to[k];

		if (to[k] > 0 && v > most)
			most = v;
	}
	return most;
}

/* ---- sorting ----------------------------------------------------------------------- */

static void sort_run(uint64_t *keys, uint32_t n)
{
	for (uint32_t k = 1; k < n; k++) {
		const uint64_t key = keys[k];
		uint32_t at = k;

		for (; at > 0 && keys[at - 1] > key; at--)
			keys[at] = keys[at - 1];
		keys[at] = key;
	}
}

/* Rising; by merging, so that the time is much the same for all inputs. */
void ndpi_sort(uint64_t *keys, uint64_t *other, uint32_t n)
{
	uint64_t *from = keys, *to = other;

	for (uint32_t left = 0; left < n; left += RUN)
		sort_run(keys + left, left + RUN < n ? RUN : n - left);
	for (uint32_t run = RUN; run < n; run *= 2) {
		uint64_t *swap = from;

		for (uint32_t left = 0; left < n; left += 2 * run) {
			const uint32_t middle = left + run < n ? left + run : n;
			const uint32_t end = left + 2 * run < n ? left + 2 * run : n;
			uint32_t a = left, b = middle;

			for (uint32_t k = left; k < end; k++)
				to[k] = b >= end || (a < middle && from[a] <= from[b]) ?
					from[a++] : from[b++];
		}
		from = to;
		to = swap;
	}
	if (from != keys)
		memcpy(keys, from, n * sizeof(*keys));
}

/* ---- evenly -------------------------------------------------------------------------- */

/*
 * For each domain that expert @i may go to, the sum of the powers of the loads that it
 * would change, which are in units. It has left them.
 */
static inline ndpi_vec uneven(const struct ndpi_table *t, const float *load, uint32_t i, float unit,
			      int squarings)
{
	const float *v = ndpi_values(t, i, 0);
	const uint32_t stride = t->stride;
	ndpi_vec sum[NDP_DOMAINS] = { { 0 } };

	if (t->sparse) {
		const ndpi_vec l = { load[ROW_GPU], load[ROW_PCIE], load[ROW_CPU],
				     load[t->channel_row[i]] };
		ndpi_vec dimm = { v[SPARSE_DIMM], v[SPARSE_STRIDE + SPARSE_DIMM],
				  v[2 * SPARSE_STRIDE + SPARSE_DIMM] };

		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			sum[o] = (l + *(const ndpi_vec *)(v + o * SPARSE_STRIDE)) * unit;
		dimm = (dimm + load[t->dimm_row[i]]) * unit;
		for (int n = 0; n < squarings; n++) {
			for (uint32_t o = 0; o < NDP_DOMAINS; o++)
				sum[o] *= sum[o];
			dimm *= dimm;
		}
		return ndpi_sums(sum[0], sum[1], sum[2]) + dimm;
	}
	for (uint32_t k = 0; k < t->width; k += 4)
		for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
			ndpi_vec x = (*(const ndpi_vec *)(load + k) +
				      *(const ndpi_vec *)(v + o * stride + k)) * unit;

			for (int n = 0; n < squarings; n++)
				x *= x;
			sum[o] += x;
		}
	return ndpi_sums(sum[0], sum[1], sum[2]);
}

static inline void even_out(const struct ndpi_table *t, uint8_t *choice, float *load, float unit,
			    int squarings, bool again)
{
	for (uint32_t i = 0; i < t->nr; i++) {
		uint32_t to = NDP_DOMAINS;
		ndpi_vec sum;

		if (again)
			ndpi_add(t, load, i, choice[i], -1);
		sum = uneven(t, load, i, unit, squarings);
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			if (t->can[i] & 1u << o && (to == NDP_DOMAINS || sum[o] < sum[to]))
				to = o;
		choice[i] = to;
		ndpi_add(t, load, i, to, 1);
	}
}

/*
 * Twice through all experts, each to where the sum of the powers of the loads becomes
 * least. While the loads grow a low power, to which work counts as well; then a higher
 * one, nearer to the largest load, which is 64 units so that the powers of light loads
 * are not denormal.
 */
void ndpi_even_start(const struct ndpi_table *t, uint8_t *choice)
{
	float longest = 1;
	ndpi_wide load;

	for (uint32_t k = 0; k < t->nr * NDP_DOMAINS; k++)
		if (t->longest[k] < HUGE_VALF && t->longest[k] > longest)
			longest = t->longest[k];
	memcpy(load, t->shared, t->width * sizeof(float));
	even_out(t, choice, load, 1 / longest, 2, false);
	even_out(t, choice, load, 64 / ndpi_largest(load, t->width), 4, true);
}

/* ---- draining ---------------------------------------------------------------------------- */

/*
 * The greedy start often leaves one of the domains outside of DIMMs with many
 * times its share. While one of them is the bottleneck its experts move out, those
 * first that cost least elsewhere; what is left to do needs the search below.
 */
void ndpi_drain(const struct ndpi_table *t, uint8_t *choice, struct ndpi_arena arena)
{
	uint64_t *keys = ndpi_take(&arena, t->nr * sizeof(*keys));
	uint64_t *other = ndpi_take(&arena, t->nr * sizeof(*other));
	uint32_t at[NDP_DOMAINS] = { 0 };
	ndpi_wide load;
	float makespan = ndpi_sum(t, choice, load);

	for (uint32_t i = 0; i < t->nr; i++) {
		const float *cost = t->longest + (size_t)i * NDP_DOMAINS;
		float elsewhere = 0;
		uint32_t bits;

		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			if (o != choice[i] && cost[o] < HUGE_VALF)
				elsewhere += cost[o];
		memcpy(&bits, &elsewhere, sizeof(bits));
		keys[i] = (uint64_t)bits << 32 | i;
	}
	ndpi_sort(keys, other, t->nr);
	for (;;) {
		const uint32_t row = load[ROW_CPU] == makespan ? ROW_CPU : ROW_PCIE;
		const uint32_t from = row == ROW_CPU ? NDP_DOMAIN_CPU : NDP_DOMAIN_GPU;
		float least = makespan;
		uint32_t to = NDP_DOMAINS, i;

		if (load[row] != makespan)
			break;
		/* The next expert that loads the row. */
		do {
			if (at[from] == t->nr)
				return;
			i = (uint32_t)keys[at[from]++];
		} while (choice[i] != from || !(ndpi_values(t, i, from)[row] > 0));
		for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
			float after;

			if (o == from || !(t->can[i] & 1u << o))
				continue;
			after = raised(t, load, ndpi_values(t, i, from), ndpi_values(t, i, o), i);
			if (after < least) {
				least = after;
				to = o;
			}
		}
		if (to == NDP_DOMAINS)
			continue;
		ndpi_add(t, load, i, from, -1);
		ndpi_add(t, load, i, to, 1);
		choice[i] = to;
		makespan = ndpi_largest(load, t->width);
	}
}

/* ---- refinement ------------------------------------------------------------------------ */

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

/*
 * One or two experts and where they go. What counts is the bottleneck and the
 * rows that are raised: another row may be as full as the bottleneck was, and is
 * the bottleneck of the next step.
 */
struct step {
	float fullest;
	float cost;		/* of the new ways, to choose among equals */
	uint32_t expert[2];
	uint8_t to[2];
	uint32_t nr;
};

static uint32_t find(const float *load, float value)
{
	uint32_t r = 0;

	while (load[r] != value)
		r++;
	return r;
}

/* The experts that load the bottleneck most, by falling load. */
static void find_movers(struct search *s)
{
	const struct ndpi_table *t = s->t;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->nr; i++) {
		float w;
		uint32_t at;

		if (t->sparse && s->bottleneck > ROW_CPU && t->dimm_row[i] != s->bottleneck &&
		    t->channel_row[i] != s->bottleneck)
			continue;
		w = ndpi_entry(t, i, s->choice[i], s->bottleneck);
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

static void consider(struct step *best, float fullest, float cost, const uint32_t *expert,
		     const uint8_t *to, uint32_t nr)
{
	const float near = best->fullest * 1e-6f;

	if (fullest > best->fullest + near ||
	    (fullest > best->fullest - near && cost >= best->cost))
		return;
	best->fullest = fullest;
	best->cost = cost;
	best->nr = nr;
	for (uint32_t k = 0; k < nr; k++) {
		best->expert[k] = expert[k];
		best->to[k] = to[k];
	}
}

static bool may_go(const struct search *s, uint32_t i, uint32_t o, float limit)
{
	return o != s->choice[i] && s->t->longest[i * NDP_DOMAINS + o] < limit;
}

static float larger(float a, float b)
{
	return a > b ? a : b;
}

static void try_moves(const struct search *s, struct step *best)
{
	const struct ndpi_table *t = s->t;

	for (uint32_t m = 0; m < s->nr_movers; m++) {
		const uint32_t i = s->movers[m];
		const float *from = ndpi_values(t, i, s->choice[i]);

		for (uint8_t o = 0; o < NDP_DOMAINS; o++) {
			const float *to = ndpi_values(t, i, o);
			float fullest;

			if (!may_go(s, i, o, best->fullest))
				continue;
			fullest = larger(raised(t, s->load, from, to, i),
					 s->makespan - s->weight[m]);
			consider(best, fullest, t->longest[i * NDP_DOMAINS + o], &i, &o, 1);
		}
	}
}

/*
 * @i has gone to @o, which gave @after and raised row @r to @fullest: who there
 * can make room? Rows that @i raised less than that are not looked at again.
 */
static void try_partners(const struct search *s, struct step *best, uint32_t i, uint8_t o,
			 const float *after, uint32_t r, float fullest)
{
	const struct ndpi_table *t = s->t;
	const float cost = t->longest[i * NDP_DOMAINS + o];

	for (uint32_t j = 0; j < t->nr; j++) {
		const float *from = ndpi_values(t, j, s->choice[j]);
		float left;

		if (j == i)
			continue;
		if (t->sparse && r > ROW_CPU && t->dimm_row[j] != r && t->channel_row[j] != r)
			continue;
		left = fullest - ndpi_entry(t, j, s->choice[j], r);
		if (left >= best->fullest)
			continue;
		for (uint8_t q = 0; q < NDP_DOMAINS; q++) {
			const uint32_t pair[2] = { i, j };
			const uint8_t to[2] = { o, q };
			float value;

			if (!may_go(s, j, q, best->fullest))
				continue;
			value = larger(left, after[s->bottleneck] -
				       ndpi_entry(t, j, s->choice[j], s->bottleneck) +
				       ndpi_entry(t, j, q, s->bottleneck));
			if (value > best->fullest + best->fullest * 1e-6f)
				continue;
			value = larger(raised(t, after, from, ndpi_values(t, j, q), j), value);
			consider(best, value, cost + t->longest[j * NDP_DOMAINS + q], pair, to, 2);
		}
	}
}

/* The row that holds @value among those that @i loads by @o. */
static uint32_t raised_row(const struct ndpi_table *t, const float *after, uint32_t i, uint8_t o,
			   float value)
{
	uint32_t fullest = t->rows;

	for (uint32_t r = 0; r < t->rows; r++)
		if (after[r] >= value && ndpi_entry(t, i, o, r) > 0)
			fullest = r;
	return fullest;
}

static void try_swaps(const struct search *s, struct step *best)
{
	const struct ndpi_table *t = s->t;
	const uint32_t n = s->nr_movers < SWAPPERS ? s->nr_movers : SWAPPERS;
	ndpi_wide after, rest;

	for (uint32_t m = 0; m < n; m++) {
		const uint32_t i = s->movers[m];

		memcpy(rest, s->load, sizeof(rest));
		ndpi_add(t, rest, i, s->choice[i], -1);
		for (uint8_t o = 0; o < NDP_DOMAINS; o++) {
			static const float nothing[ROW_MAX] __attribute__((aligned(16)));
			float fullest;
			uint32_t r;

			if (!may_go(s, i, o, best->fullest))
				continue;
			memcpy(after, rest, sizeof(after));
			ndpi_add(t, after, i, o, 1);
			fullest = raised(t, rest, nothing, ndpi_values(t, i, o), i);
			r = raised_row(t, after, i, o, fullest);
			if (r < t->rows)
				try_partners(s, best, i, o, after, r, fullest);
		}
	}
}

void ndpi_refine(const struct ndpi_table *t, uint8_t *choice)
{
	struct search s = { .t = t, .choice = choice };
	uint32_t swaps = 0;

	if (!t->nr)
		return;
	ndpi_sum(t, choice, s.load);
	for (uint32_t steps = 0; steps < 2 * t->nr; steps++) {
		struct step best = { 0 };

		s.makespan = ndpi_largest(s.load, t->width);
		s.bottleneck = find(s.load, s.makespan);
		find_movers(&s);
		best.fullest = s.makespan * (1 - least_gain);
		best.cost = -1;
		try_moves(&s, &best);
		if (!best.nr && swaps++ < MOST_SWAPS)
			try_swaps(&s, &best);
		if (!best.nr)
			break;
		for (uint32_t k = 0; k < best.nr; k++) {
			ndpi_add(t, s.load, best.expert[k], choice[best.expert[k]], -1);
			ndpi_add(t, s.load, best.expert[k], best.to[k], 1);
			choice[best.expert[k]] = best.to[k];
		}
	}
}
