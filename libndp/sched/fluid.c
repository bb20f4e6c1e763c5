// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * fluid.c - the fluid relaxation of a layer: experts divided at will.
 *
 *   minimize T  so that  sum of a[i][o][r] x[i][o] + b[r] + s[r] = T  for each resource r
 *                        sum of x[i][o] over o = 1                    for each expert i
 *
 * where b is what the shared expert occupies, by the primal simplex method with generalized upper bounds (Dantzig and Van
 * Slyke, 1967): one domain of each expert is its *key*, whose share is what the
 * others leave, so that the basis is as large as there are resources, not
 * experts. Most steps merely move a whole expert ("flip"). A basic solution
 * divides at most as many experts as there are resources. The prices of the
 * resources bound every other solution from below (Lagrange), which says when to
 * stop. Every iterate is a solution, so the work may be cut off at any step.
 *
 * Columns are of the cost table: an expert's part on the CPU or over PCIe is read
 * evenly from the DIMMs that hold it. Where that wastes something the table has
 * room for ways to divide an expert unevenly, which are made at the prices of the
 * solution so far (column generation: Gilmore and Gomory, 1961).
 */
#include "impl.h"

#include <math.h>
#include <string.h>

static const float tiny = 1e-6f;
static const float smoothing = 0.7f;	/* of prices between rounds of making ways */
static const float least_pivot = 3e-5f;	/* of a step's largest entry */

enum {
	ENOUGH = 4,		/* candidates that a search collects for the steps after it */
	MOST_ROUNDS = 24,	/* of making ways */
	NOT_EXPERT = UINT16_MAX,
};

struct candidate {
	float profit;
	uint16_t i;
	uint8_t o;
};

typedef int32_t mask __attribute__((vector_size(16), may_alias));

/* What is basic at a position: a share of an expert, a slack, or the makespan. */
struct basic {
	uint16_t i;		/* NOT_EXPERT: a slack or the makespan */
	uint8_t o;
	uint8_t other;		/* position of the expert's other basic share, or its own */
};

struct simplex {
	const struct ndpi_table *t;
	uint8_t *key;			/* [nr] */
	uint8_t *first;			/* [nr]: position of a basic share + 1, 0: none */
	uint32_t rows, width;
	uint32_t makespan_at;		/* position of the makespan */
	uint32_t pairs;			/* experts with two basic shares */
	uint32_t next;			/* expert that the next search begins with */
	uint32_t rounds;		/* of making ways */
	float smooth;
	ndpi_wide best_price;
	float unit_ns;			/* makespan of the start; the program is in this unit */
	float per_unit;
	struct basic basic[ROW_MAX];
	/* By position; of the inverse, by row and then position. */
	float value[ROW_MAX] __attribute__((aligned(16)));
	float step[ROW_MAX] __attribute__((aligned(16)));
	float price[ROW_MAX] __attribute__((aligned(16)));
	float entering[ROW_MAX] __attribute__((aligned(16)));
	mask alone[ROW_MAX / 4];	/* where a share is basic whose expert has no other one */
	float inverse[ROW_MAX][ROW_MAX] __attribute__((aligned(16)));
};

size_t ndpi_fluid_bytes(uint32_t experts)
{
	return experts + sizeof(struct simplex) + 64;
}

/* Weighted by the prices, in units. */
static float priced(const struct simplex *s, uint32_t i, uint32_t o)
{
	return ndpi_dot(s->t, s->price, i, o) * s->per_unit;
}

/* ---- setting up -------------------------------------------------------------- */

/* All experts whole at their keys: the makespan is basic in the fullest row, slacks elsewhere. */
static void start(struct simplex *s)
{
	uint32_t fullest = 0;
	ndpi_wide load;

	s->unit_ns = ndpi_sum(s->t, s->key, load);
	s->per_unit = 1 / s->unit_ns;
	for (uint32_t r = 0; r < s->width; r++)
		load[r] *= s->per_unit;
	for (uint32_t r = 1; r < s->rows; r++)
		if (load[r] > load[fullest])
			fullest = r;
	memset(s->first, 0, s->t->nr);
	memset(s->value, 0, sizeof(s->value));
	memset(s->step, 0, sizeof(s->step));
	memset(s->price, 0, sizeof(s->price));
	memset(s->alone, 0, sizeof(s->alone));
	s->pairs = 0;
	s->makespan_at = fullest;
	for (uint32_t r = 0; r < s->rows; r++) {
		s->basic[r] = (struct basic) { .i = NOT_EXPERT, .other = r };
		s->value[r] = load[fullest] - load[r];
		memset(s->inverse[r], 0, s->width * sizeof(float));
		s->inverse[r][r] = 1;
	}
	for (uint32_t k = 0; k < s->rows; k++)
		s->inverse[fullest][k] = -1;
	s->value[fullest] = load[fullest];
}

/* ---- pricing ------------------------------------------------------------------ */

/* The price of row @r is in the inverse. */
static void find_price(struct simplex *s, uint32_t r)
{
	s->price[r] = -s->inverse[r][s->makespan_at];
}

/*
 * Weighted by the prices, in ns, every way to compute an expert of a sparse table that all
 * domains can compute. What is never there is left out: what the CPU and NDP have of the GPU
 * and PCIe, and NDP of the CPU.
 */
static inline void price_local(const struct ndpi_table *t, const float *price, uint32_t i,
			       float cost[NDP_DOMAINS])
{
	const float *v = t->values + (size_t)i * NDP_DOMAINS * SPARSE_STRIDE;
	const float channel = price[t->channel_row[i]], dimm = price[t->dimm_row[i]];

	cost[NDP_DOMAIN_GPU] = (price[ROW_GPU] * v[ROW_GPU] + price[ROW_PCIE] * v[ROW_PCIE]) +
			       (price[ROW_CPU] * v[ROW_CPU] + channel * v[SPARSE_CHANNEL]) +
			       dimm * v[SPARSE_DIMM];
	v += SPARSE_STRIDE;
	cost[NDP_DOMAIN_CPU] = (price[ROW_CPU] * v[ROW_CPU] + channel * v[SPARSE_CHANNEL]) +
			       dimm * v[SPARSE_DIMM];
	v += SPARSE_STRIDE;
	cost[NDP_DOMAIN_NDP] = channel * v[SPARSE_CHANNEL] + dimm * v[SPARSE_DIMM];
}

/* The same of any expert, in units; impossible ways HUGE_VALF. */
static void price_expert(const struct simplex *s, uint32_t i, float cost[WAYS_MAX])
{
	const struct ndpi_table *t = s->t;
	const float *v = ndpi_values(t, i, 0);
	ndpi_vec sum[NDP_DOMAINS] = { { 0 } };

	if (t->sparse) {
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			cost[o] = t->can[i] & 1u << o ? priced(s, i, o) : HUGE_VALF;
		return;
	}
	for (uint32_t k = 0; k < t->width; k += 4)
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			sum[o] += *(const ndpi_vec *)(s->price + k) *
				  *(const ndpi_vec *)(v + o * t->stride + k);
	sum[0] = ndpi_sums(sum[0], sum[1], sum[2]) * s->per_unit;
	memcpy(cost, &sum[0], NDP_DOMAINS * sizeof(*cost));
	if ((t->can[i] & ((1 << NDP_DOMAINS) - 1)) != (1 << NDP_DOMAINS) - 1)
		for (uint32_t o = 0; o < NDP_DOMAINS; o++)
			if (!(t->can[i] & 1u << o))
				cost[o] = HUGE_VALF;
	for (uint32_t o = NDP_DOMAINS; o < t->ways; o++)
		cost[o] = t->can[i] & 1u << o ? priced(s, i, o) : HUGE_VALF;
}

/* Is share @o of expert @i basic, or its key? */
static bool in_use(const struct simplex *s, uint32_t i, uint32_t o)
{
	const struct basic *b = s->first[i] ? &s->basic[s->first[i] - 1] : NULL;

	return s->key[i] == o || (b && (b->o == o || s->basic[b->other].o == o));
}

/* An expert has at most two basic shares besides its key: that is enough to divide it by. */
static bool is_full(const struct simplex *s, uint32_t i)
{
	return s->first[i] && s->basic[s->first[i] - 1].other != s->first[i] - 1u;
}

static float smaller(float a, float b)
{
	return a < b ? a : b;
}

/* price_some() for a sparse table. */
static uint32_t price_some_local(struct simplex *s, struct candidate *list, float *bound)
{
	const struct ndpi_table *t = s->t;
	const uint32_t nr = t->nr;
	const float least_profit = tiny * s->unit_ns;
	uint32_t n = 0, seen, i = s->next;
	float sum = ndpi_dot_shared(t, s->price);

	for (seen = 0; seen < nr && n < ENOUGH; seen++, i++) {
		float cost[WAYS_MAX], least, profit;

		if (i == nr)
			i = 0;
		if (t->can[i] == (1 << NDP_DOMAINS) - 1) {
			price_local(t, s->price, i, cost);
		} else {
			price_expert(s, i, cost);
			for (uint32_t o = 0; o < NDP_DOMAINS; o++)
				cost[o] *= s->unit_ns;
		}
		least = smaller(smaller(cost[0], cost[1]), cost[2]);
		profit = cost[s->key[i]] - least;
		sum += least;
		if (profit > least_profit)
			list[n++] = (struct candidate) {
				.profit = profit * s->per_unit,
				.i = i,
				.o = cost[0] == least ? 0 : cost[1] == least ? 1 : 2,
			};
	}
	s->next = i;
	*bound = seen == nr ? sum * s->per_unit : 0;
	return n;
}

/*
 * Candidates from where the last search ended, until there are enough. When it
 * took all columns, they give a bound: *bound, else 0.
 */
static uint32_t price_some(struct simplex *s, struct candidate *list, float *bound)
{
	const uint32_t nr = s->t->nr;
	uint32_t n = 0, seen;
	float sum;

	if (s->t->sparse)
		return price_some_local(s, list, bound);
	sum = ndpi_dot_shared(s->t, s->price) * s->per_unit;
	for (seen = 0; seen < nr && n < ENOUGH; seen++) {
		float cost[WAYS_MAX], least, profit;
		uint32_t i, o;

		if (s->next == nr)
			s->next = 0;
		i = s->next++;
		price_expert(s, i, cost);
		o = cost[1] < cost[0];
		o = cost[2] < cost[o] ? 2 : o;
		for (uint32_t w = NDP_DOMAINS; w < s->t->ways; w++)
			o = cost[w] < cost[o] ? w : o;
		least = cost[o];
		profit = cost[s->key[i]] - least;
		sum += least;
		if (profit > tiny && !(s->t->made && is_full(s, i)))
			list[n++] = (struct candidate) { profit, i, o };
	}
	*bound = seen == nr ? sum : 0;
	return n;
}

/* The best of a list at the present prices; profits are brought up to date. */
static bool price_list(const struct simplex *s, struct candidate *list, uint32_t *n,
		       struct candidate *best)
{
	uint32_t kept = 0;

	best->profit = tiny;
	for (uint32_t k = 0; k < *n; k++) {
		struct candidate c = list[k];

		if (s->t->made ? in_use(s, c.i, c.o) || is_full(s, c.i) : c.o == s->key[c.i])
			continue;
		c.profit = priced(s, c.i, s->key[c.i]) - priced(s, c.i, c.o);
		if (c.profit <= tiny)
			continue;
		if (c.profit > best->profit)
			*best = c;
		list[kept++] = c;
	}
	*n = kept;
	return best->profit > tiny;
}

/* ---- a step --------------------------------------------------------------------- */

/* to += from * factor */
static inline void add_scaled(float *to, const float *from, float factor, size_t width)
{
	const ndpi_vec f = { factor, factor, factor, factor };
	size_t k = 0;

	for (; k + 12 <= width; k += 12) {
		const ndpi_vec a = *(const ndpi_vec *)(to + k) + *(const ndpi_vec *)(from + k) * f;
		const ndpi_vec b = *(const ndpi_vec *)(to + k + 4) +
				   *(const ndpi_vec *)(from + k + 4) * f;
		const ndpi_vec c = *(const ndpi_vec *)(to + k + 8) +
				   *(const ndpi_vec *)(from + k + 8) * f;

		*(ndpi_vec *)(to + k) = a;
		*(ndpi_vec *)(to + k + 4) = b;
		*(ndpi_vec *)(to + k + 8) = c;
	}
	for (; k < width; k += 4)
		*(ndpi_vec *)(to + k) += *(const ndpi_vec *)(from + k) * f;
}

/* step = inverse * entering */
static void find_step(struct simplex *s)
{
	const uint32_t rows = s->rows, width = s->width;

	memset(s->step, 0, width * sizeof(float));
	for (uint32_t r = 0; r < rows; r++)
		if (s->entering[r] != 0)
			add_scaled(s->step, s->inverse[r], s->entering[r], width);
}

enum leaving {
	LEAVES_POSITION,	/* what is basic there */
	LEAVES_KEY,		/* the key of the expert that is basic there */
	LEAVES_OWN_KEY,		/* the entering expert's key: it moves whole */
};

static void set_alone(struct simplex *s, uint32_t k, bool alone)
{
	((int32_t *)s->alone)[k] = -alone;
}

/* A pivot must be larger: rounding errors of the others would spoil the inverse. */
static float smallest_pivot(const struct simplex *s)
{
	const uint32_t width = s->width;
	ndpi_vec m = { 0 };
	float least;

	for (uint32_t k = 0; k < width; k += 4) {
		const ndpi_vec v = *(const ndpi_vec *)(s->step + k);

		m = ndpi_max(m, ndpi_max(v, -v));
	}
	least = least_pivot * ndpi_largest_of(m);
	return least < tiny ? tiny : least;
}

/*
 * How far the entering share can grow until the one at each position is used up or, if it is
 * alone, has all that its key had. Infinity where neither happens; returns the least.
 */
static float find_ratios(const struct simplex *s, float least, float *ratio)
{
	const uint32_t width = s->width;
	const ndpi_vec zero = { 0 }, floor = zero + least;
	ndpi_vec most = zero - HUGE_VALF;

	for (uint32_t k = 0; k < width; k += 4) {
		const ndpi_vec step = *(const ndpi_vec *)(s->step + k);
		const ndpi_vec value = *(const ndpi_vec *)(s->value + k);
		const mask falls = step > floor;
		const mask rises = (-step > floor) & s->alone[k / 4];
		const ndpi_vec left = ndpi_max(zero, (ndpi_vec)((falls & (mask)value) |
							      (~falls & (mask)(1 - value))));
		const ndpi_vec r = left / ndpi_max(step, -step);
		const mask limits = falls | rises;
		const ndpi_vec v = (ndpi_vec)((limits & (mask)r) |
					      (~limits & (mask)(zero + HUGE_VALF)));

		*(ndpi_vec *)(ratio + k) = v;
		most = ndpi_max(most, -v);
	}
	return -ndpi_largest_of(most);
}

/* How far the share of the key of the expert at @k lets the entering share grow. */
static float key_ratio(const struct simplex *s, uint32_t k, uint32_t entering, float least,
		       float *rate)
{
	const struct basic b = s->basic[k];
	float left = 1 - s->value[k];

	*rate = -s->step[k];
	if (b.other != k) {
		left -= s->value[b.other];
		*rate -= s->step[b.other];
	}
	if (b.i == entering)
		*rate += 1;
	if (!(*rate > least))
		return HUGE_VALF;
	return left > 0 ? left / *rate : 0;
}

/* How far the entering share can grow, and what then is used up. */
static enum leaving find_leaving(struct simplex *s, uint32_t entering, float *length,
				 uint32_t *at)
{
	const float least = smallest_pivot(s), makespan_step = s->step[s->makespan_at];
	const uint32_t own = entering != NOT_EXPERT && s->first[entering] ?
		s->first[entering] - 1u : ROW_MAX;
	enum leaving leaving = LEAVES_OWN_KEY;
	float pivot = 0, shortest, rate;
	ndpi_wide ratio;

	/* The makespan stays; the key of the entering share's expert also pays for that one. */
	s->step[s->makespan_at] = 0;
	if (own < ROW_MAX && s->basic[own].other == own)
		set_alone(s, own, false);
	shortest = find_ratios(s, least, ratio);
	*length = entering == NOT_EXPERT || own < ROW_MAX ? HUGE_VALF : 1;
	*at = 0;
	if (shortest <= *length && shortest < HUGE_VALF) {
		*length = shortest;
		for (uint32_t k = 0; k < s->rows; k++) {
			if (ratio[k] != shortest || !(fabsf(s->step[k]) > pivot))
				continue;
			pivot = fabsf(s->step[k]);
			*at = k;
			leaving = s->step[k] > 0 ? LEAVES_POSITION : LEAVES_KEY;
		}
	}
	for (uint32_t k = 0; (s->pairs || own < ROW_MAX) && k < s->rows; k++) {
		const struct basic b = s->basic[k];
		float r;

		if (b.i == NOT_EXPERT || b.other < k || (b.other == k && k != own))
			continue;
		r = key_ratio(s, k, entering, least, &rate);
		if (r < *length || (r == *length && r < HUGE_VALF && rate > pivot)) {
			*length = r;
			*at = k;
			pivot = rate;
			leaving = LEAVES_KEY;
		}
	}
	if (own < ROW_MAX && s->basic[own].other == own)
		set_alone(s, own, true);
	s->step[s->makespan_at] = makespan_step;
	return leaving;
}

/* The share at position @k becomes the key, the old key basic in its stead. */
static void exchange_key(struct simplex *s, uint32_t k, uint32_t entering)
{
	struct basic *b = &s->basic[k];
	const uint32_t l = b->other;
	const uint8_t old = s->key[b->i];

	if (b->i == entering)
		s->step[k] -= 1;
	s->value[k] = 1 - s->value[k] - (l != k ? s->value[l] : 0);
	s->step[k] = -s->step[k] - (l != k ? s->step[l] : 0);
	for (uint32_t r = 0; r < s->rows; r++)
		s->inverse[r][k] = -s->inverse[r][k] - (l != k ? s->inverse[r][l] : 0);
	s->key[b->i] = b->o;
	b->o = old;
}

static void forget(struct simplex *s, uint32_t k)
{
	const struct basic b = s->basic[k];

	if (b.i == NOT_EXPERT)
		return;
	s->first[b.i] = 0;
	set_alone(s, k, false);
	if (b.other != k) {
		s->basic[b.other].other = b.other;
		s->first[b.i] = b.other + 1;
		set_alone(s, b.other, true);
		s->pairs--;
	}
}

static void enter(struct simplex *s, uint32_t k, uint32_t i, uint32_t o)
{
	s->basic[k] = (struct basic) { .i = i, .o = o, .other = k };
	if (i == NOT_EXPERT)
		return;
	set_alone(s, k, !s->first[i]);
	if (s->first[i]) {
		s->basic[k].other = s->first[i] - 1;
		s->basic[s->first[i] - 1].other = k;
		set_alone(s, s->first[i] - 1, false);
		s->pairs++;
	}
	s->first[i] = k + 1;
}

/* The inverse after the entering column took position @k. */
static void pivot(struct simplex *s, uint32_t k)
{
	const float scale = 1 / s->step[k];
	const uint32_t rows = s->rows, width = s->width;

	s->step[k] = 0;
	for (uint32_t r = 0; r < rows; r++) {
		const float f = s->inverse[r][k] * scale;

		if (f == 0)
			continue;
		add_scaled(s->inverse[r], s->step, -f, width);
		s->inverse[r][k] = f;
		find_price(s, r);
	}
}

/* Brings in share @o of expert @i, or (NOT_EXPERT) the slack of row @o. */
static void advance(struct simplex *s, uint32_t i, uint32_t o)
{
	enum leaving leaving;
	float length;
	uint32_t k;

	memset(s->entering, 0, s->width * sizeof(float));
	if (i == NOT_EXPERT) {
		s->entering[o] = 1;
	} else {
		ndpi_add(s->t, s->entering, i, o, s->per_unit);
		ndpi_add(s->t, s->entering, i, s->key[i], -s->per_unit);
	}
	find_step(s);
	leaving = find_leaving(s, i, &length, &k);
	if (length == HUGE_VALF)
		return;
	add_scaled(s->value, s->step, -length, s->width);
	if (leaving == LEAVES_OWN_KEY) {
		s->key[i] = o;
		return;
	}
	if (leaving == LEAVES_KEY)
		exchange_key(s, k, i);
	forget(s, k);
	pivot(s, k);
	s->value[k] = length;
	enter(s, k, i, o);
}

static bool negative_price(const struct simplex *s, uint32_t *row)
{
	const uint32_t width = s->width;
	ndpi_vec m = { 0 };
	float highest;

	for (uint32_t r = 0; r < width; r += 4)
		m = ndpi_max(m, -*(const ndpi_vec *)(s->price + r));
	highest = ndpi_largest_of(m);
	if (highest <= 1e-5f)
		return false;
	*row = 0;
	while (-s->price[*row] != highest)
		++*row;
	return true;
}

/* ---- all of it ------------------------------------------------------------------ */

/*
 * New ways at @price, for every expert that gains by one.  Returns the bound that
 * these prices give when experts may be divided in every way that can be made.
 */
static float make_at(struct simplex *s, const float *price, uint32_t *made)
{
	const struct ndpi_table *t = s->t;
	ndpi_wide full;
	float sum = ndpi_dot_shared(t, price);

	*made = 0;
	ndpi_price_to_full(t, price, full);
	for (uint32_t i = 0; i < t->nr; i++) {
		uint32_t o = NDP_DOMAINS + s->rounds % MADE_WAYS;
		float least = HUGE_VALF;

		for (uint32_t w = 0; w < t->ways; w++)
			if (t->can[i] & 1u << w)
				least = fminf(least, ndpi_dot(t, price, i, w));
		for (uint32_t n = 1; n < MADE_WAYS && in_use(s, i, o); n++)
			o = o + 1 < WAYS_MAX ? o + 1 : NDP_DOMAINS;
		if (!in_use(s, i, o) &&
		    ndpi_make_way(t, i, full, least - 1e-5f * s->unit_ns,
				  &t->made[i * MADE_WAYS + o - NDP_DOMAINS],
				  ndpi_values(t, i, o))) {
			t->can[i] |= 1u << o;
			least = fminf(least, ndpi_dot(t, price, i, o));
			++*made;
		}
		sum += least;
	}
	return sum;
}

/* The best prices, the same for resources from @first in full order. */
static void even_out(struct simplex *s, uint32_t first, uint32_t nr)
{
	const struct ndpi_table *t = s->t;
	float sum = 0;

	for (uint32_t r = t->row_of[first]; r <= t->row_of[first + nr - 1]; r++)
		sum += s->best_price[r];
	for (uint32_t r = t->row_of[first]; r <= t->row_of[first + nr - 1]; r++)
		s->best_price[r] = sum * t->members[r] / nr;
}

/*
 * The prices of a solution leap from round to round; half way to the best ones so far
 * is better (Wentges, 1997). At first those are even ones.  False: no more ways.
 */
static bool make_ways(struct simplex *s, struct ndpi_fluid *f, float gap)
{
	const struct ndpi_table *t = s->t;
	const struct ndp_host *host = t->rules.layer->host;
	const float makespan = s->value[s->makespan_at] * s->unit_ns;
	uint32_t made = 0;
	ndpi_wide price;
	float bound;

	if (!t->made)
		return false;
	while (!made && s->rounds < MOST_ROUNDS && makespan > f->bound * s->unit_ns * (1 + gap)) {
		float sum = 0;

		memset(price, 0, sizeof(price));
		for (uint32_t r = 0; r < s->rows; r++)
			price[r] = s->price[r] > 0 ? s->price[r] : 0;
		if (!s->rounds) {
			memcpy(s->best_price, price, sizeof(price));
			even_out(s, FULL_CHANNELS, host->nr_channels);
			even_out(s, FULL_CHANNELS + host->nr_channels, host->nr_dimms);
		}
		for (uint32_t r = 0; r < s->rows; r++) {
			price[r] = s->smooth * s->best_price[r] + (1 - s->smooth) * price[r];
			sum += price[r];
		}
		for (uint32_t r = 0; r < s->rows; r++)
			price[r] /= sum;
		bound = make_at(s, price, &made);
		s->rounds++;
		if (bound > f->bound * s->unit_ns) {
			f->bound = bound / s->unit_ns;
			memcpy(s->best_price, price, sizeof(price));
		}
		/* None: the prices of the solution itself decide. */
		if (!made && !s->smooth)
			return false;
		s->smooth = made ? smoothing : 0;
	}
	return made;
}

static void sort_divided(struct ndpi_fluid *f)
{
	for (uint32_t n = 1; n < f->nr_divided; n++)
		for (uint32_t k = n; k > 0 && f->divided[k - 1].i > f->divided[k].i; k--) {
			const typeof(f->divided[0]) swap = f->divided[k];

			f->divided[k] = f->divided[k - 1];
			f->divided[k - 1] = swap;
		}
}

static void report(const struct simplex *s, struct ndpi_fluid *f)
{
	float sum = 0;

	f->nr_divided = 0;
	f->makespan = s->value[s->makespan_at] * s->unit_ns;
	f->bound *= s->unit_ns;
	for (uint32_t k = 0; k < s->rows; k++) {
		const struct basic b = s->basic[k];
		float *share, left;

		if (b.i == NOT_EXPERT || b.other < k)
			continue;
		f->divided[f->nr_divided].i = b.i;
		share = f->divided[f->nr_divided++].share;
		memset(share, 0, WAYS_MAX * sizeof(float));
		share[b.o] = s->value[k];
		if (b.other != k)
			share[s->basic[b.other].o] = s->value[b.other];
		left = 1;
		for (uint32_t o = 0; o < WAYS_MAX; o++) {
			share[o] = share[o] < 0 ? 0 : share[o] > 1 ? 1 : share[o];
			left -= share[o];
		}
		share[s->key[b.i]] = left > 0 ? left : 0;
	}
	sort_divided(f);
	memset(f->price, 0, sizeof(f->price));
	for (uint32_t r = 0; r < s->rows; r++)
		sum += s->price[r] > 0 ? s->price[r] : 0;
	for (uint32_t k = 0; k < s->t->full; k++) {
		const uint32_t r = s->t->row_of[k];

		if (s->price[r] > 0)
			f->price[k] = s->price[r] / sum / s->t->members[r];
	}
}

void ndpi_fluid_solve(const struct ndpi_table *t, uint8_t *choice, float gap,
		      struct ndpi_fluid *f, struct ndpi_arena arena)
{
	struct simplex *s = ndpi_take(&arena, sizeof(*s));
	struct candidate list[ENOUGH], best;
	const uint32_t most = 4 * t->nr + 4 * ROW_MAX;
	uint32_t n = 0, row;
	float bound = 0;

	s->t = t;
	s->key = choice;
	s->next = 0;
	s->rounds = 0;
	s->smooth = smoothing;
	s->first = ndpi_take(&arena, t->nr);
	s->rows = t->rows;
	s->width = t->width;
	start(s);
	for (uint32_t r = 0; r < s->rows; r++)
		find_price(s, r);
	f->bound = 0;
	for (f->steps = 0; f->steps < most; f->steps++) {
		if (negative_price(s, &row)) {
			advance(s, NOT_EXPERT, row);
			continue;
		}
		if (!price_list(s, list, &n, &best)) {
			n = price_some(s, list, &bound);
			if (!t->made && bound > f->bound)
				f->bound = bound;
			if (s->value[s->makespan_at] <= f->bound * (1 + gap) ||
			    !price_list(s, list, &n, &best)) {
				if (!make_ways(s, f, gap))
					break;
				n = 0;
				continue;
			}
		}
		advance(s, best.i, best.o);
	}
	report(s, f);
}
