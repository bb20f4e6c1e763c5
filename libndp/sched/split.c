// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * split.c - from shares to blocks: the fluid solution made of whole neuron blocks.
 *
 * The fluid solution divides few experts. Each is rounded to blocks by itself,
 * up or down in all of its DIMMs, whichever suits the loads best; then, while the
 * plan is not close to the bound, single blocks or one block in each DIMM change
 * domain. What a further piece costs, its command and activations, is in the loads.
 *
 * What helps is judged by the sum of the 512th powers of the loads: near the
 * largest load, but it also rewards taking from one of several that are equal.
 */
#include "impl.h"

#include <math.h>
#include <string.h>

enum {
	POLISH_STEPS = 96,
};

static const float close_enough = 1.01f;

struct cutter {
	const struct ndpi_table *t;
	struct ndpi_cut *cuts;
	uint32_t nr;
	float bound;
	float unit;
	ndpi_wide load;
};

size_t ndpi_split_bytes(uint32_t experts)
{
	return ndpi_fluid_bytes(experts) + ndpi_list_greedy_bytes(experts) +
	       sizeof(struct ndpi_fluid) + 64;
}

static const uint16_t *held(const struct ndpi_table *t, uint32_t i)
{
	return t->rules.layer->blocks + (size_t)t->expert[i] * t->rules.layer->host->nr_dimms;
}

/*
 * Sum of (load / unit)^512, which 1.05 raises to 7e10; what is far above the unit
 * is judged by the largest load alone, so that nothing overflows.
 */
static float strain(const struct cutter *c, const float *load)
{
	const float largest = ndpi_largest(load, c->t->full_width) * c->unit;
	ndpi_vec sum = { 0 };

	if (largest > 1.05f)
		return 1e20f * largest;
	for (uint32_t k = 0; k < c->t->full_width; k += 4) {
		ndpi_vec v = *(const ndpi_vec *)(load + k) * c->unit;

		for (int n = 0; n < 9; n++)
			v *= v;
		sum += v;
	}
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void add_cut(const struct cutter *c, const struct ndpi_cut *cut, float sign, float *load)
{
	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		ndpi_add_part_row(c->t, cut->i, o, cut->blocks[o], sign, load);
}

/* Shares to blocks, rounded down or @up in every DIMM; domain @rest gets what the others leave. */
static void round_shares(const struct ndpi_table *t, struct ndpi_cut *cut, const float *share,
		       uint32_t rest, bool up)
{
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	const uint16_t *blocks = held(t, cut->i);

	memset(cut->blocks, 0, sizeof(cut->blocks));
	for (uint32_t d = 0; d < dimms; d++) {
		uint32_t left = blocks[d];

		for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
			float exact = share[o] * blocks[d];
			uint32_t n;

			if (o == rest || share[o] <= 0)
				continue;
			n = up ? ceilf(exact - 1e-4f) : floorf(exact + 1e-4f);
			if (n > left)
				n = left;
			cut->blocks[o][d] = n;
			left -= n;
		}
		cut->blocks[rest][d] = left;
	}
}

/* The rounding that suits the loads so far best. */
static void cut_expert(struct cutter *c, struct ndpi_cut *cut, const float *share)
{
	struct ndpi_cut candidate = { .i = cut->i };
	const uint32_t domains = (share[0] > 0) + (share[1] > 0) + (share[2] > 0);
	float best = HUGE_VALF;
	uint32_t seen = 0;
	ndpi_wide load;

	for (uint32_t rest = 0; rest < NDP_DOMAINS; rest++) {
		if (share[rest] <= 0)
			continue;
		/* Of two domains, one up is the other down. */
		if (seen++ && domains == 2)
			break;
		for (int up = 0; up < 2; up++) {
			float s;

			round_shares(c->t, &candidate, share, rest, up);
			memcpy(load, c->load, c->t->full_width * sizeof(float));
			add_cut(c, &candidate, 1, load);
			s = strain(c, load);
			if (s < best) {
				best = s;
				*cut = candidate;
			}
		}
	}
	add_cut(c, cut, 1, c->load);
}

/* ---- the finish ----------------------------------------------------------------- */

/* A block of each DIMM of [first, last) that has one in domain @o goes to @q. */
static bool shift(struct ndpi_cut *cut, uint32_t o, uint32_t q, uint32_t first, uint32_t last)
{
	bool any = false;

	for (uint32_t d = first; d < last; d++) {
		if (!cut->blocks[o][d])
			continue;
		cut->blocks[o][d]--;
		cut->blocks[q][d]++;
		any = true;
	}
	return any;
}

struct shift {
	float strain;
	uint32_t cut;
	uint8_t from, to;
	uint8_t first, last;	/* DIMMs */
};

static void try_shift(const struct cutter *c, uint32_t k, const float *without, uint32_t o,
		      uint32_t q, uint32_t first, uint32_t last, struct shift *best)
{
	struct ndpi_cut cut = c->cuts[k];
	ndpi_wide load;
	float s;

	if (!shift(&cut, o, q, first, last))
		return;
	memcpy(load, without, c->t->full_width * sizeof(float));
	add_cut(c, &cut, 1, load);
	s = strain(c, load);
	if (s < best->strain)
		*best = (struct shift) { s, k, o, q, first, last };
}

/* All shifts of one expert between any two domains: of a block at the fullest DIMM, of one each. */
static void try_cut(const struct cutter *c, uint32_t k, uint32_t fullest, struct shift *best)
{
	const struct ndpi_table *t = c->t;
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	const uint16_t *blocks = held(t, c->cuts[k].i);
	const bool everywhere = blocks[0] != t->rules.nr_blocks;
	ndpi_wide without;

	memcpy(without, c->load, t->full_width * sizeof(float));
	add_cut(c, &c->cuts[k], -1, without);
	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		for (uint32_t q = 0; q < NDP_DOMAINS; q++) {
			if (o == q || !(t->can[c->cuts[k].i] & 1u << q))
				continue;
			if (everywhere)
				try_shift(c, k, without, o, q, 0, dimms, best);
			if (fullest < dimms && blocks[fullest])
				try_shift(c, k, without, o, q, fullest, fullest + 1, best);
		}
}

static void polish(struct cutter *c)
{
	const struct ndpi_table *t = c->t;
	const uint32_t dimms_at = FULL_CHANNELS + t->rules.layer->host->nr_channels;

	for (uint32_t steps = 0; steps < POLISH_STEPS; steps++) {
		const float largest = ndpi_largest(c->load, t->full_width);
		struct shift best;
		uint32_t r = 0;
		bool found = false;

		if (largest <= c->bound * close_enough)
			return;
		c->unit = 1 / largest;
		best.strain = strain(c, c->load) * (1 - 1e-5f);
		while (c->load[r] != largest)
			r++;
		for (uint32_t k = 0; k < c->nr; k++) {
			const float before = best.strain;

			try_cut(c, k, r >= dimms_at ? r - dimms_at : NDP_MAX_DIMMS, &best);
			found = found || best.strain < before;
		}
		if (!found)
			return;
		add_cut(c, &c->cuts[best.cut], -1, c->load);
		shift(&c->cuts[best.cut], best.from, best.to, best.first, best.last);
		add_cut(c, &c->cuts[best.cut], 1, c->load);
	}
}

/* Rows to full order. */
static void spread(const struct ndpi_table *t, const float *rows, float *full)
{
	for (uint32_t k = 0; k < t->full; k++)
		full[k] = rows[t->row_of[k]];
	for (uint32_t k = t->full; k < t->full_width; k++)
		full[k] = 0;
}

static void add_shares(const struct ndpi_table *t, float *load, uint32_t i, const float *share,
		       float sign)
{
	ndpi_wide rows = { 0 }, full;

	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		if (share[o] > 0)
			ndpi_add(t, rows, i, o, sign * share[o]);
	spread(t, rows, full);
	for (uint32_t k = 0; k < t->full_width; k += 4)
		*(ndpi_vec *)(load + k) += *(const ndpi_vec *)(full + k);
}

uint32_t ndpi_split(const struct ndpi_table *t, uint8_t *choice, struct ndpi_cut *cuts,
		    float *makespan_ns, float *bound_ns, struct ndpi_arena arena)
{
	struct ndpi_fluid *f = ndpi_take(&arena, sizeof(*f));
	struct cutter c = { .t = t, .cuts = cuts };
	ndpi_wide sum;

	ndpi_list_greedy(t, choice, arena);
	ndpi_fluid_solve(t, choice, 6e-3f, f, arena);
	*bound_ns = f->bound;
	c.bound = f->bound;
	c.unit = 1 / f->makespan;
	ndpi_sum(t, choice, sum);
	for (uint32_t k = 0; k < f->nr_divided; k++) {
		const uint32_t i = f->divided[k].i;

		ndpi_add(t, sum, i, choice[i], -1);
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			if (f->divided[k].share[o] > 0)
				ndpi_add(t, sum, i, o, f->divided[k].share[o]);
	}
	spread(t, sum, c.load);
	for (uint32_t k = 0; k < f->nr_divided; k++) {
		cuts[c.nr].i = f->divided[k].i;
		add_shares(t, c.load, cuts[c.nr].i, f->divided[k].share, -1);
		cut_expert(&c, &cuts[c.nr++], f->divided[k].share);
	}
	polish(&c);
	*makespan_ns = ndpi_largest(c.load, t->full_width);
	return c.nr;
}
