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
	FEW_EXPERTS = 256,	/* of more, one is a small part of a layer */
};

static const float close_enough = 1.01f;
/* Above the bound: then experts that are whole may give blocks away, too. */
static const float far = 1.015f;

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
	return ndpi_fluid_bytes(experts) + 2 * (size_t)experts * sizeof(uint64_t) + 32 +
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

/* How many blocks each domain takes from each DIMM, before rounding. */
struct exact {
	bool takes[NDP_DOMAINS];
	float blocks[NDP_DOMAINS][NDP_MAX_DIMMS];
};

static void to_exact(const struct ndpi_table *t, uint32_t i, const float *share, struct exact *x)
{
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	const uint16_t *blocks = held(t, i);

	for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
		x->takes[o] = share[o] > 0;
		for (uint32_t d = 0; d < dimms; d++)
			x->blocks[o][d] = share[o] * blocks[d];
	}
	for (uint32_t w = NDP_DOMAINS; w < t->ways; w++) {
		const struct ndpi_cut *made = &t->made[i * MADE_WAYS + w - NDP_DOMAINS];

		if (share[w] <= 0)
			continue;
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			for (uint32_t d = 0; d < dimms; d++) {
				x->blocks[o][d] += share[w] * made->blocks[o][d];
				x->takes[o] = x->takes[o] || made->blocks[o][d];
			}
	}
}

/* To blocks, rounded down or @up in every DIMM; domain @rest gets what the others leave. */
static void round_shares(const struct ndpi_table *t, struct ndpi_cut *cut, const struct exact *x,
			 uint32_t rest, bool up)
{
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	const uint16_t *blocks = held(t, cut->i);

	memset(cut->blocks, 0, sizeof(cut->blocks));
	for (uint32_t d = 0; d < dimms; d++) {
		uint32_t left = blocks[d];

		for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
			const float exact = x->blocks[o][d];
			uint32_t n;

			if (o == rest || !x->takes[o])
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

/*
 * DIMMs that a row stands for got the same load on the mean; here the one that has
 * most to do gets least. @load is without the expert.
 */
static void settle(const struct cutter *c, struct ndpi_cut *cut, const float *load)
{
	const struct ndp_host *host = c->t->rules.layer->host;
	const uint8_t *row = c->t->row_of + FULL_CHANNELS + host->nr_channels;
	const float *dimm = load + FULL_CHANNELS + host->nr_channels;
	const uint16_t *ndp = cut->blocks[NDP_DOMAIN_NDP];

	for (uint32_t a = 0; a < host->nr_dimms; a++)
		for (uint32_t b = a + host->nr_channels; b < host->nr_dimms;
		     b += host->nr_channels) {
			if (row[a] != row[b] || ndp[a] == ndp[b] ||
			    (ndp[a] < ndp[b]) == (dimm[a] > dimm[b]))
				continue;
			for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
				const uint16_t swap = cut->blocks[o][a];

				cut->blocks[o][a] = cut->blocks[o][b];
				cut->blocks[o][b] = swap;
			}
		}
}

/* The rounding that suits the loads so far best. */
static void cut_expert(struct cutter *c, struct ndpi_cut *cut, const float *share)
{
	struct ndpi_cut candidate = { .i = cut->i };
	uint32_t domains;
	struct exact x;
	float best = HUGE_VALF;
	uint32_t seen = 0;
	ndpi_wide load;

	to_exact(c->t, cut->i, share, &x);
	domains = x.takes[0] + x.takes[1] + x.takes[2];
	for (uint32_t rest = 0; rest < NDP_DOMAINS; rest++) {
		if (!x.takes[rest])
			continue;
		/* Of two domains, one up is the other down. */
		if (seen++ && domains == 2)
			break;
		for (int up = 0; up < 2; up++) {
			float s;

			round_shares(c->t, &candidate, &x, rest, up);
			if (c->t->made)
				settle(c, &candidate, c->load);
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

/* An expert in one DIMM: to the nearest blocks, which are small parts of it. */
static void cut_local(struct cutter *c, struct ndpi_cut *cut, const float *share)
{
	const struct ndpi_table *t = c->t;
	const uint32_t d = t->dimm_row[cut->i] - FULL_CHANNELS - t->rules.layer->host->nr_channels;
	uint32_t left = t->rules.nr_blocks;
	float owed = 0;

	memset(cut->blocks, 0, sizeof(cut->blocks));
	for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
		uint32_t n;

		if (share[o] <= 0)
			continue;
		/* What is rounded away from one is owed to the next, so that the sum is right. */
		owed += share[o] * t->rules.nr_blocks;
		n = owed + 0.5f;
		if (n > left)
			n = left;
		cut->blocks[o][d] = n;
		owed -= n;
		left -= n;
	}
	for (uint32_t o = 0; left; o++)
		if (share[o] > 0) {
			cut->blocks[o][d] += left;
			left = 0;
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

/* May it help resource @r that blocks leave domain @o? */
static bool relieves(uint32_t o, uint32_t r)
{
	if (r == ROW_CPU)
		return o != NDP_DOMAIN_NDP;
	return r > ROW_CPU || o == NDP_DOMAIN_GPU;
}

/*
 * All shifts of one expert that may help resource @r: of a block of every DIMM, of one
 * DIMM a channel, and of one DIMM, which is @r or, when that is none, the fullest and the
 * emptiest.
 */
static void try_cut(const struct cutter *c, uint32_t k, uint32_t r, const uint32_t single[2],
		    struct shift *best)
{
	const struct ndpi_table *t = c->t;
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	const uint32_t channels = t->rules.layer->host->nr_channels;
	const uint16_t *blocks = held(t, c->cuts[k].i);
	ndpi_wide without;
	uint32_t home = 0;

	while (!blocks[home])
		home++;
	if (blocks[home] < t->rules.nr_blocks)
		home = dimms;
	else if (r > ROW_CPU && r != FULL_CHANNELS + home % channels &&
		 r != FULL_CHANNELS + channels + home)
		return;
	memcpy(without, c->load, t->full_width * sizeof(float));
	add_cut(c, &c->cuts[k], -1, without);
	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		for (uint32_t q = 0; q < NDP_DOMAINS; q++) {
			if (o == q || !relieves(o, r) || !(t->can[c->cuts[k].i] & 1u << q))
				continue;
			if (home < dimms) {
				try_shift(c, k, without, o, q, home, home + 1, best);
				continue;
			}
			try_shift(c, k, without, o, q, 0, dimms, best);
			for (uint32_t d = 0; channels < dimms && d < dimms; d += channels)
				try_shift(c, k, without, o, q, d,
					  d + channels < dimms ? d + channels : dimms, best);
			for (uint32_t n = 0; n < 1 + (single[0] != single[1]); n++)
				try_shift(c, k, without, o, q, single[n], single[n] + 1, best);
		}
}

static void find_singles(const struct cutter *c, uint32_t r, uint32_t single[2])
{
	const struct ndp_host *host = c->t->rules.layer->host;
	const uint32_t dimms_at = FULL_CHANNELS + host->nr_channels;
	const float *dimm = c->load + dimms_at;

	single[0] = single[1] = r < dimms_at ? 0 : r - dimms_at;
	for (uint32_t d = 1; r < dimms_at && d < host->nr_dimms; d++) {
		if (dimm[d] > dimm[single[0]])
			single[0] = d;
		if (dimm[d] < dimm[single[1]])
			single[1] = d;
	}
}

static void polish(struct cutter *c)
{
	const struct ndpi_table *t = c->t;

	for (uint32_t steps = 0; steps < POLISH_STEPS; steps++) {
		const float largest = ndpi_largest(c->load, t->full_width);
		struct shift best;
		uint32_t r = 0, single[2];
		bool found = false;

		if (largest <= c->bound * close_enough)
			return;
		c->unit = 1 / largest;
		best.strain = strain(c, c->load) * (1 - 1e-5f);
		while (c->load[r] != largest)
			r++;
		find_singles(c, r, single);
		for (uint32_t k = 0; k < c->nr; k++) {
			const float before = best.strain;

			try_cut(c, k, r, single, &best);
			found = found || best.strain < before;
		}
		if (!found)
			return;
		add_cut(c, &c->cuts[best.cut], -1, c->load);
		shift(&c->cuts[best.cut], best.from, best.to, best.first, best.last);
		add_cut(c, &c->cuts[best.cut], 1, c->load);
	}
}

/* Experts that are whole become cuts of one domain; @cuts then has all, in their order. */
static void cut_whole_ones(struct cutter *c, const uint8_t *choice)
{
	const struct ndpi_table *t = c->t;
	const uint32_t dimms = t->rules.layer->host->nr_dimms;
	uint32_t k = c->nr;

	for (uint32_t i = t->nr; i-- > 0;) {
		if (k && c->cuts[k - 1].i == i) {
			c->cuts[i] = c->cuts[--k];
			continue;
		}
		memset(&c->cuts[i], 0, sizeof(c->cuts[i]));
		c->cuts[i].i = i;
		memcpy(c->cuts[i].blocks[choice[i]], held(t, i), dimms * sizeof(uint16_t));
	}
	c->nr = t->nr;
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
	ndpi_wide rows, full;

	if (t->sparse) {
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			if (share[o] > 0)
				ndpi_add(t, load, i, o, sign * share[o]);
		return;
	}
	memset(rows, 0, t->width * sizeof(float));
	for (uint32_t o = 0; o < t->ways; o++)
		if (share[o] > 0)
			ndpi_add(t, rows, i, o, sign * share[o]);
	spread(t, rows, full);
	for (uint32_t k = 0; k < t->full_width; k += 4)
		*(ndpi_vec *)(load + k) += *(const ndpi_vec *)(full + k);
}

/*
 * The experts that the solution divides and those whose whole way was made; those with most
 * tokens first, so that the others can even out what they leave.
 */
static void cut_all(struct cutter *c, const uint8_t *choice, const struct ndpi_fluid *f,
		    struct ndpi_arena arena)
{
	const struct ndpi_table *t = c->t;
	uint64_t *keys = ndpi_take(&arena, t->nr * sizeof(*keys));
	uint64_t *other = ndpi_take(&arena, t->nr * sizeof(*other));
	uint32_t k = 0;

	for (uint32_t i = 0; i < t->nr; i++) {
		const bool divided = k < f->nr_divided && f->divided[k].i == i;
		const uint32_t tokens = t->rules.layer->tokens[t->expert[i]];

		if (!divided && choice[i] < NDP_DOMAINS)
			continue;
		/* Until it is its turn, @blocks[0][0] says which divided one it is. */
		c->cuts[c->nr].i = i;
		c->cuts[c->nr].blocks[0][0] = divided ? k++ : UINT16_MAX;
		keys[c->nr] = (uint64_t)(UINT32_MAX - tokens) << 32 | c->nr;
		c->nr++;
	}
	ndpi_sort(keys, other, c->nr);
	for (uint32_t n = 0; n < c->nr; n++) {
		struct ndpi_cut *cut = &c->cuts[(uint32_t)keys[n]];
		const uint32_t i = cut->i;

		if (cut->blocks[0][0] != UINT16_MAX) {
			const float *share = f->divided[cut->blocks[0][0]].share;

			add_shares(t, c->load, i, share, -1);
			cut_expert(c, cut, share);
		} else {
			float share[WAYS_MAX] = { 0 };

			share[choice[i]] = 1;
			add_shares(t, c->load, i, share, -1);
			*cut = t->made[i * MADE_WAYS + choice[i] - NDP_DOMAINS];
			settle(c, cut, c->load);
			add_cut(c, cut, 1, c->load);
		}
	}
}

uint32_t ndpi_split(const struct ndpi_table *t, uint8_t *choice, struct ndpi_cut *cuts,
		    float *makespan_ns, float *bound_ns, struct ndpi_arena arena)
{
	struct ndpi_fluid *f = ndpi_take(&arena, sizeof(*f));
	struct cutter c = { .t = t, .cuts = cuts };
	ndpi_wide sum;

	ndpi_even_start(t, choice);
	ndpi_fluid_solve(t, choice, 2e-3f, f, arena);
	*bound_ns = f->bound;
	c.bound = f->bound;
	c.unit = 1 / f->makespan;
	ndpi_sum(t, choice, sum);
	for (uint32_t k = 0; k < f->nr_divided; k++) {
		const uint32_t i = f->divided[k].i;

		ndpi_add(t, sum, i, choice[i], -1);
		for (uint32_t o = 0; o < t->ways; o++)
			if (f->divided[k].share[o] > 0)
				ndpi_add(t, sum, i, o, f->divided[k].share[o]);
	}
	spread(t, sum, c.load);
	if (t->made) {
		cut_all(&c, choice, f, arena);
	} else {
		for (uint32_t k = 0; k < f->nr_divided; k++) {
			cuts[c.nr].i = f->divided[k].i;
			add_shares(t, c.load, cuts[c.nr].i, f->divided[k].share, -1);
			if (t->sparse)
				cut_local(&c, &cuts[c.nr++], f->divided[k].share);
			else
				cut_expert(&c, &cuts[c.nr++], f->divided[k].share);
		}
	}
	polish(&c);
	if (ndpi_largest(c.load, t->full_width) > c.bound * far && t->nr <= FEW_EXPERTS) {
		cut_whole_ones(&c, choice);
		polish(&c);
	}
	*makespan_ns = ndpi_largest(c.load, t->full_width);
	return c.nr;
}
