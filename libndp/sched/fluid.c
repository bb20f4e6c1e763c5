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

static void find_prices(struct simplex *s)
{
	for (uint32_t r = 0; r < s->rows; r++)
		s->price[r] = -s->inverse[r][s->makespan_at];
}

/* Weighted by the prices, in units, every way to compute expert @i; impossible ones HUGE_VALF. */
static void price_expert(const struct simplex *s, uint32_t i, float cost[WAYS_MAX])
{
	const struct ndpi_table *t = s->t;
	const float *v = ndpi_values(t, i, 0);

	if (t->sparse && t->can[i] == (1 << NDP_DOMAINS) - 1) {
		const ndpi_vec four = { s->price[ROW_GPU], s->price[ROW_PCIE], s->price[ROW_CPU],
					s->price[t->channel_row[i]] };
		const float dimm = s->price[t->dimm_row[i]];

		for (uint32_t o = 0; o < NDP_DOMAINS; o++, v += SPARSE_STRIDE) {
			const ndpi_vec m = four * *(const ndpi_vec *)v;

			cost[o] = ((m[0] + m[1]) + (m[2] + m[3]) + dimm * v[SPARSE_DIMM]) *
				  s->per_unit;
		}
		return;
	}
	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		cost[o] = t->can[i] & 1u << o ? priced(s, i, o) : HUGE_VALF;
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

/*
 * Candidates from where the last search ended, until there are enough. When it
 * took all columns, they give a bound: *bound, else 0.
 */
static uint32_t price_some(struct simplex *s, struct candidate *list, float *bound)
{
	const uint32_t nr = s->t->nr;
	uint32_t n = 0, seen;
	float sum = ndpi_dot_shared(s->t, s->price) * s->per_unit;

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

/* step = inverse * entering */
static void find_step(struct simplex *s)
{
	memset(s->step, 0, s->width * sizeof(float));
	for (uint32_t r = 0; r < s->rows; r++) {
		if (s->entering[r] == 0)
			continue;
		for (uint32_t k = 0; k < s->width; k += 4)
			*(ndpi_vec *)(s->step + k) +=
				*(const ndpi_vec *)(s->inverse[r] + k) * s->entering[r];
	}
}

enum leaving {
	LEAVES_POSITION,	/* what is basic there */
	LEAVES_KEY,		/* the key of the expert that is basic there */
	LEAVES_OWN_KEY,		/* the entering expert's key: it moves whole */
};

/* How far the entering share can grow, and what then is used up. */
static enum leaving find_leaving(const struct simplex *s, uint32_t entering, float *length,
				 uint32_t *at)
{
	enum leaving leaving = LEAVES_OWN_KEY;
	ndpi_vec m = { 0 };
	float pivot = 0, least;

	/* A pivot that is rounding errors of the others would spoil the inverse. */
	for (uint32_t k = 0; k < s->width; k += 4) {
		const ndpi_vec v = *(const ndpi_vec *)(s->step + k);

		m = ndpi_max(m, ndpi_max(v, -v));
	}
	least = least_pivot * ndpi_largest_of(m);
	if (least < tiny)
		least = tiny;
	*length = entering == NOT_EXPERT ? HUGE_VALF : 1;
	*at = 0;
	if (entering != NOT_EXPERT && s->first[entering])
		*length = HUGE_VALF;
	for (uint32_t k = 0; k < s->rows; k++) {
		const struct basic b = s->basic[k];
		float left, rate, ratio;

		if (k == s->makespan_at)
			continue;
		rate = s->step[k];
		if (rate > least) {
			ratio = s->value[k] > 0 ? s->value[k] / rate : 0;
			if (ratio < *length || (ratio == *length && rate > pivot)) {
				*length = ratio;
				*at = k;
				pivot = rate;
				leaving = LEAVES_POSITION;
			}
		}
		if (b.i == NOT_EXPERT || b.other < k)
			continue;
		left = 1 - s->value[k];
		rate = -s->step[k];
		if (b.other != k) {
			left -= s->value[b.other];
			rate -= s->step[b.other];
		}
		if (b.i == entering)
			rate += 1;
		if (rate > least) {
			ratio = left > 0 ? left / rate : 0;
			if (ratio < *length || (ratio == *length && rate > pivot)) {
				*length = ratio;
				*at = k;
				pivot = rate;
				leaving = LEAVES_KEY;
			}
		}
	}
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
	if (b.other != k) {
		s->basic[b.other].other = b.other;
		s->first[b.i] = b.other + 1;
	}
}

static void enter(struct simplex *s, uint32_t k, uint32_t i, uint32_t o)
{
	s->basic[k] = (struct basic) { .i = i, .o = o, .other = k };
	if (i == NOT_EXPERT)
		return;
	if (s->first[i]) {
		s->basic[k].other = s->first[i] - 1;
		s->basic[s->first[i] - 1].other = k;
	}
	s->first[i] = k + 1;
}

/* The inverse after the entering column took position @k. */
static void pivot(struct simplex *s, uint32_t k)
{
	const float scale = 1 / s->step[k];

	s->step[k] = 0;
	for (uint32_t r = 0; r < s->rows; r++) {
		const float f = s->inverse[r][k] * scale;

		if (f == 0)
			continue;
		for (uint32_t j = 0; j < s->width; j += 4)
			*(ndpi_vec *)(s->inverse[r] + j) -= *(const ndpi_vec *)(s->step + j) * f;
		s->inverse[r][k] = f;
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
	for (uint32_t j = 0; j < s->width; j += 4)
		*(ndpi_vec *)(s->value + j) -= *(const ndpi_vec *)(s->step + j) * length;
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
	float lowest = -1e-5f;
	bool found = false;

	for (uint32_t r = 0; r < s->rows; r++)
		if (s->price[r] < lowest) {
			lowest = s->price[r];
			*row = r;
			found = true;
		}
	return found;
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
	find_prices(s);
	f->bound = 0;
	for (f->steps = 0; f->steps < most; f->steps++) {
		if (negative_price(s, &row)) {
			advance(s, NOT_EXPERT, row);
			find_prices(s);
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
		find_prices(s);
	}
	report(s, f);
}
