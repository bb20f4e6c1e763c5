// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * predict.c - the expected load of every expert from averages of several rates,
 * combined by weights that are learned while running.
 *
 * Must stay below a microsecond for a layer of 256 experts, so it learns from at
 * most LEARN_EXPERTS of a layer in one step, others the next time.  No result may
 * depend on anything but the calls that were made.
 *
 * The averages are of an expert's share of the layer's selections, in units of
 * the mean share, less one.  The weights minimise the squared error of the next
 * share, divided by the long-run share (a count's variance grows as its mean),
 * by recursive least squares (Haykin, "Adaptive Filter Theory") in the form of
 * decaying normal equations, of a few steps of all layers and of many of this
 * one.  Rates, decays and the threshold were chosen on real and synthetic routing
 * traces; tests/bench/bench_predict.c measures what they are worth.
 */
#include <math.h>
#include <ndp/predict.h>
#include <stdbool.h>
#include <string.h>

enum {
	LANES = 8,
	LEARN_EXPERTS = 64,
	AVERAGES = 5,
	LAST = 0,	/* rate 1 */
	BUSY = 2,	/* the average that tells busy experts from the others */
	LONG = AVERAGES - 1,	/* the mean of all steps, or of the last LONG_STEPS */
	LONG_STEPS = 4096,
	PRODUCTS = AVERAGES * (AVERAGES + 1) / 2,	/* of averages with one another */
	TERMS = PRODUCTS + AVERAGES,	/* and with what came */
	QUIET = 0,	/* groups of experts */
	BUSIER,
	RISEN,		/* the last value is far above what noise makes of the average */
	FALLEN,		/* or below */
	GROUPS,
};

static const float rates[AVERAGES] = { 1.0f, 0.3f, 0.1f, 0.03f, 1.0f / LONG_STEPS };

static const double layer_decay = 0.998;	/* a step of what the layer itself learned */
static const double model_decay = 0.9;	/* a step of what all layers learned */
static const double model_weight = 10;
static const double ridge = 1e-4;	/* of the mean diagonal, towards equal weights */
static const float busy_share = 0.5f;	/* above the mean */
static const float least_share = 1.15f;	/* keeps the weight of a silent expert finite */
static const float far = 8;	/* square of how many standard deviations of a count are far */
static const double borrowed = 1e-3;	/* of what the others teach, to those that rose or fell */

typedef float vec __attribute__((vector_size(32), aligned(16), may_alias));
typedef int32_t mask __attribute__((vector_size(32), aligned(16), may_alias));

#define always_inline __attribute__((always_inline))

/* A number of each group. */
typedef double quad __attribute__((vector_size(32), aligned(16), may_alias));
typedef int64_t quad_mask __attribute__((vector_size(32), aligned(16), may_alias));

/* Sums of products: row by row the lower triangle, then those with what came. */
struct normal {
	quad term[TERMS];
};

struct layer {
	struct normal learned;
	float weight[GROUPS][AVERAGES];
	float noise;	/* variance of a share that is the mean, in the last step */
	uint32_t steps;
	uint32_t next;	/* the expert to learn from next */
};

struct ndp_predictor {
	uint32_t layers;
	uint32_t experts;
	uint32_t stride;	/* experts in whole vectors */
	float decay;		/* of @model from layer to layer */
	struct normal model;
	struct layer layer[];	/* followed by the averages and the shares of each layer */
};

static size_t header_bytes(uint32_t layers)
{
	size_t bytes = sizeof(struct ndp_predictor) + layers * sizeof(struct layer);

	return (bytes + 15) & ~(size_t)15;
}

static uint32_t stride_of(uint32_t experts)
{
	return (experts + LANES - 1) / LANES * LANES;
}

size_t ndp_predict_bytes(uint32_t layers, uint32_t experts)
{
	if (!layers || layers > NDP_PREDICT_MAX_LAYERS ||
	    !experts || experts > NDP_PREDICT_MAX_EXPERTS)
		return 0;
	return header_bytes(layers) +
	       (size_t)layers * stride_of(experts) * (AVERAGES + 1) * sizeof(float);
}

static float *averages(const struct ndp_predictor *p, uint32_t layer)
{
	char *base = (char *)(uintptr_t)p + header_bytes(p->layers);

	return (float *)base + (size_t)layer * p->stride * (AVERAGES + 1);
}

static float *shares(const struct ndp_predictor *p, uint32_t layer)
{
	return averages(p, layer) + (size_t)AVERAGES * p->stride;
}

const float *ndp_predict_shares(const struct ndp_predictor *p, uint32_t layer)
{
	return shares(p, layer);
}

struct ndp_predictor *ndp_predict_init(void *mem, uint32_t layers, uint32_t experts)
{
	struct ndp_predictor *p = mem;

	memset(mem, 0, ndp_predict_bytes(layers, experts));
	p->layers = layers;
	p->experts = experts;
	p->stride = stride_of(experts);
	p->decay = (float)pow(model_decay, 1.0 / layers);
	for (uint32_t l = 0; l < layers; l++) {
		float *share = shares(p, l);

		for (uint32_t e = 0; e < experts; e++)
			share[e] = 1.0f / (float)experts;
	}
	return p;
}

void ndp_predict_profile(struct ndp_predictor *p, uint32_t layer, const uint64_t *counts,
			 uint32_t steps)
{
	float *average = averages(p, layer), *share = shares(p, layer);
	double total = 0;

	for (uint32_t e = 0; e < p->experts; e++)
		total += (double)counts[e];
	if (total <= 0 || !steps)
		return;
	for (uint32_t e = 0; e < p->experts; e++) {
		share[e] = (float)((double)counts[e] / total);
		for (uint32_t a = 0; a < AVERAGES; a++)
			average[a * p->stride + e] = share[e] * (float)p->experts - 1;
	}
	p->layer[layer].steps = steps;
}

#define across(v) \
	((((v)[0] + (v)[4]) + ((v)[1] + (v)[5])) + (((v)[2] + (v)[6]) + ((v)[3] + (v)[7])))

/* Which group each of some experts is in; none: QUIET. */
struct groups {
	mask busier, risen, fallen;
};

static inline always_inline struct groups groups_of(vec last, vec average, float noise)
{
	const vec apart = last - average;
	/* A count's variance is its mean; of the two means, the middle. */
	const vec expected = ((last + average) * 0.5f + least_share) * noise;
	const mask changed = apart * apart > far * expected;

	return (struct groups){
		.busier = (average > busy_share) & ~changed,
		.risen = changed & (apart > 0),
		.fallen = changed & (apart <= 0),
	};
}

/* Some experts to learn from. */
struct lesson {
	uint32_t nr;		/* vectors */
	const float *x[AVERAGES + 1];	/* the last: what came */
	vec scaled[AVERAGES][LEARN_EXPERTS / LANES];
	struct groups groups[LEARN_EXPERTS / LANES];
};

/* Of which two a term is the sum of products: x scaled, and x. */
static const uint8_t factors[TERMS][2] = {
	{ 0, 0 },
	{ 1, 0 }, { 1, 1 },
	{ 2, 0 }, { 2, 1 }, { 2, 2 },
	{ 3, 0 }, { 3, 1 }, { 3, 2 }, { 3, 3 },
	{ 4, 0 }, { 4, 1 }, { 4, 2 }, { 4, 3 }, { 4, 4 },
	{ 0, 5 }, { 1, 5 }, { 2, 5 }, { 3, 5 }, { 4, 5 },
};

/* A term by groups; of an expert that is busier, risen or fallen in @all, too. */
struct parts {
	vec all, busy, risen, fallen;
};

static inline always_inline void add(struct parts *sum, vec product, const struct groups *groups)
{
	sum->all += product;
	sum->busy += (vec)((mask)product & groups->busier);
	sum->risen += (vec)((mask)product & groups->risen);
	sum->fallen += (vec)((mask)product & groups->fallen);
}

/* Neighbours of both: first those of the lower halves, @a's before @b's. */
static inline always_inline void add_pairs(vec a, vec b, vec *sum)
{
	*sum = __builtin_shuffle(a, b, (mask){ 0, 2, 8, 10, 4, 6, 12, 14 }) +
	       __builtin_shuffle(a, b, (mask){ 1, 3, 9, 11, 5, 7, 13, 15 });
}

static inline always_inline void add_halves(vec a, vec b, vec *sum)
{
	*sum = __builtin_shuffle(a, b, (mask){ 0, 1, 2, 3, 8, 9, 10, 11 }) +
	       __builtin_shuffle(a, b, (mask){ 4, 5, 6, 7, 12, 13, 14, 15 });
}

/* across() of eight vectors at a time: the groups of one term, then of another. */
static inline always_inline void across_both(const struct parts *a, const struct parts *b,
					     vec *sum)
{
	vec other, busy, risen, fallen;

	add_halves(a->all - a->busy - a->risen - a->fallen,
		   b->all - b->busy - b->risen - b->fallen, &other);
	add_halves(a->busy, b->busy, &busy);
	add_halves(a->risen, b->risen, &risen);
	add_halves(a->fallen, b->fallen, &fallen);
	add_pairs(other, busy, &other);
	add_pairs(risen, fallen, &risen);
	add_pairs(other, risen, sum);
}

/* Two terms at a time: their sums stay in registers. */
static inline always_inline void sum_up(const struct lesson *lesson, struct normal *sum)
{
	for (uint32_t t = 0; t < TERMS; t += 2) {
		const vec *scaled_a = lesson->scaled[factors[t][0]];
		const vec *scaled_b = lesson->scaled[factors[t + 1][0]];
		const float *x_a = lesson->x[factors[t][1]], *x_b = lesson->x[factors[t + 1][1]];
		struct parts a = { { 0 }, { 0 }, { 0 }, { 0 } }, b = a;
		vec eight;

		for (uint32_t v = 0; v < lesson->nr; v++) {
			const vec *at_a = (const vec *)(x_a + v * LANES);
			const vec *at_b = (const vec *)(x_b + v * LANES);

			add(&a, scaled_a[v] * *at_a, &lesson->groups[v]);
			add(&b, scaled_b[v] * *at_b, &lesson->groups[v]);
		}
		across_both(&a, &b, &eight);
		sum->term[t] = (quad){ (double)eight[0], (double)eight[1], (double)eight[2],
				       (double)eight[3] };
		sum->term[t + 1] = (quad){ (double)eight[4], (double)eight[5], (double)eight[6],
					   (double)eight[7] };
	}
}

/* Sums the products of @count experts (whole vectors). */
static inline always_inline void learn(struct normal *sum, const float *average, uint32_t stride,
				       const float *came, uint32_t count, float noise)
{
	struct lesson lesson;

	lesson.nr = count / LANES;
	for (uint32_t a = 0; a < AVERAGES; a++)
		lesson.x[a] = average + a * stride;
	lesson.x[AVERAGES] = came;
	for (uint32_t v = 0; v < lesson.nr; v++) {
		vec x[AVERAGES], weight;

		for (uint32_t a = 0; a < AVERAGES; a++)
			x[a] = *(const vec *)(lesson.x[a] + v * LANES);
		lesson.groups[v] = groups_of(x[LAST], x[BUSY], noise);
		weight = 1.0f / (x[LONG] + least_share);
		for (uint32_t a = 0; a < AVERAGES; a++)
			lesson.scaled[a][v] = x[a] * weight;
	}
	sum_up(&lesson, sum);
}

/* Few experts rise or fall, at first none: until they do, they are as the others. */
static inline always_inline void known(const quad *layer, const quad *model, quad *sum)
{
	double others;

	*sum = *layer + model_weight * *model;
	others = borrowed * ((*sum)[QUIET] + (*sum)[BUSIER]);
	*sum += (quad){ 0, 0, others, others };
}

/* Weights of all groups from what is known: ridge regressions, solved by L D L^T. */
static inline always_inline void solve(const quad sum[TERMS], float weight[GROUPS][AVERAGES])
{
	quad l[AVERAGES][AVERAGES], d[AVERAGES], y[AVERAGES], inverse[AVERAGES];
	quad trace = { 0 }, extra, least;
	uint32_t term = 0;

	for (uint32_t a = 0; a < AVERAGES; a++) {
		for (uint32_t b = 0; b <= a; b++, term++)
			l[a][b] = sum[term];
		y[a] = sum[PRODUCTS + a];
		trace += l[a][a];
	}
	extra = ridge / AVERAGES * trace + 1e-12;
	least = 1e-3 * extra;
	for (uint32_t a = 0; a < AVERAGES; a++) {
		y[a] += extra / AVERAGES;
		d[a] = l[a][a] + extra;
		for (uint32_t b = 0; b < a; b++) {
			quad scaled = l[a][b];

			for (uint32_t c = 0; c < b; c++)
				scaled -= l[a][c] * l[b][c] * d[c];
			l[a][b] = scaled * inverse[b];
			d[a] -= l[a][b] * scaled;
			y[a] -= l[a][b] * y[b];
		}
		d[a] = (quad)(((quad_mask)d[a] & (d[a] > least)) |
			      ((quad_mask)least & (d[a] <= least)));
		inverse[a] = 1 / d[a];
	}
	for (uint32_t a = AVERAGES; a-- > 0;) {
		y[a] *= inverse[a];
		for (uint32_t b = a + 1; b < AVERAGES; b++)
			y[a] -= l[b][a] * y[b];
		for (uint32_t g = 0; g < GROUPS; g++)
			weight[g][a] = (float)y[a][g];
	}
}

/*
 * Decays what was known, adds what is new, and finds the weights that follow.  The
 * caller's memory is written and not read again: it may be aligned for half a vector.
 */
static inline always_inline void relearn(struct ndp_predictor *p, struct layer *layer,
					 const struct normal *fresh)
{
	const double share = 1.0 / p->layers, decay = (double)p->decay;
	quad sum[TERMS];

	for (uint32_t t = 0; t < TERMS; t++) {
		const quad own = layer->learned.term[t] * layer_decay + fresh->term[t];
		const quad model = p->model.term[t] * decay + fresh->term[t] * share;

		layer->learned.term[t] = own;
		p->model.term[t] = model;
		known(&own, &model, &sum[t]);
	}
	solve(sum, layer->weight);
}

/* Weights of an average by group, ready to be taken apart. */
struct table {
	vec of_group;		/* in the order of the groups */
	vec all[GROUPS];
};

/* What each of some experts multiplies an average with; @permutes: one instruction finds it. */
static inline always_inline void weights_of(const struct table *t, const struct groups *groups,
					    bool permutes, vec *weight)
{
	if (permutes)
		*weight = __builtin_shuffle(t->of_group, (groups->busier & BUSIER) |
							 (groups->risen & RISEN) |
							 (groups->fallen & FALLEN));
	else
		*weight = (vec)(((mask)t->all[QUIET] &
				 ~(groups->busier | groups->risen | groups->fallen)) |
				((mask)t->all[BUSIER] & groups->busier) |
				((mask)t->all[RISEN] & groups->risen) |
				((mask)t->all[FALLEN] & groups->fallen));
}

/* The averages with what came, and the shares that follow from the weights; @came is lost. */
static inline always_inline void forecast(const struct ndp_predictor *p,
					  const struct layer *layer, float *average,
					  float *came, float *share, bool permutes)
{
	const uint32_t steps = layer->steps < LONG_STEPS ? layer->steps : LONG_STEPS;
	const float long_rate = 1.0f / (float)steps, noise = layer->noise;
	const uint32_t stride = p->stride;
	const vec zero = { 0 };
	struct table table[AVERAGES];
	vec rate[AVERAGES], sums = { 0 };
	float total;

	for (uint32_t a = 0; a < AVERAGES; a++) {
		rate[a] = zero + (rates[a] > long_rate ? rates[a] : long_rate);
		table[a].of_group = (vec){ layer->weight[QUIET][a], layer->weight[BUSIER][a],
					   layer->weight[RISEN][a], layer->weight[FALLEN][a] };
		for (uint32_t g = 0; g < GROUPS; g++)
			table[a].all[g] = zero + layer->weight[g][a];
	}
	for (uint32_t e = 0; e < stride; e += LANES) {
		const vec now = *(const vec *)(came + e);
		vec x[AVERAGES], weight, sum;
		struct groups groups;

		for (uint32_t a = 0; a < AVERAGES; a++) {
			vec *at = (vec *)(average + a * stride + e);

			x[a] = *at + rate[a] * (now - *at);
			*at = x[a];
		}
		groups = groups_of(x[LAST], x[BUSY], noise);
		weights_of(&table[0], &groups, permutes, &weight);
		sum = weight * x[0];
		for (uint32_t a = 1; a < AVERAGES; a++) {
			weights_of(&table[a], &groups, permutes, &weight);
			sum += weight * x[a];
		}
		sum += 1.0f;
		sum = (vec)((mask)sum & (sum > zero));
		*(vec *)(came + e) = sum;
		sums += sum;
	}
	/* Lanes beyond the last expert hold the mean, which is 1 here. */
	total = across(sums) - (float)(stride - p->experts);
	for (uint32_t e = 0; e < stride; e += LANES)
		*(vec *)(share + e) = *(const vec *)(came + e) * (1.0f / total);
}

/* @tokens as shares in units of the mean, less one; false: there are none. */
static inline always_inline bool shares_of(const uint32_t *tokens, uint32_t experts,
					   uint32_t stride, float *came, float *noise)
{
	vec sums = { 0 };
	float total, scale;
	uint32_t e;

	/* Fewer than 2^31 tokens fit in the signed type, which converts quickly. */
	for (e = 0; e + LANES <= experts; e += LANES) {
		mask counts;

		memcpy(&counts, tokens + e, sizeof(counts));
		*(vec *)(came + e) = __builtin_convertvector(counts, vec);
		sums += *(const vec *)(came + e);
	}
	total = across(sums);
	for (; e < experts; e++) {
		came[e] = (float)tokens[e];
		total += came[e];
	}
	for (; e < stride; e++)
		came[e] = 0;
	if (total <= 0)
		return false;
	scale = (float)experts / total;
	*noise = scale;
	for (e = 0; e < stride; e += LANES)
		*(vec *)(came + e) = *(const vec *)(came + e) * scale - 1.0f;
	for (e = experts; e < stride; e++)
		came[e] = 0;
	return true;
}

static inline always_inline void update(struct ndp_predictor *p, uint32_t layer,
					const uint32_t *tokens, bool permutes)
{
	struct layer *own = &p->layer[layer];
	float *average = averages(p, layer);
	float came[NDP_PREDICT_MAX_EXPERTS] __attribute__((aligned(32)));
	struct normal fresh;
	uint32_t count;
	float noise;

	if (!shares_of(tokens, p->experts, p->stride, came, &noise))
		return;

	/* The first step has nothing to be compared with. */
	if (own->steps) {
		count = p->stride - own->next;
		if (count > LEARN_EXPERTS)
			count = LEARN_EXPERTS;
		learn(&fresh, average + own->next, p->stride, came + own->next, count,
		      own->noise);
		own->next += count;
		if (own->next == p->stride)
			own->next = 0;
	} else {
		memset(&fresh, 0, sizeof(fresh));
	}
	if (own->steps < LONG_STEPS)
		own->steps++;
	own->noise = noise;
	relearn(p, own, &fresh);
	forecast(p, own, average, came, shares(p, layer), permutes);
}

/* Wider vectors of the same operations in the same order: the same bits. */
#ifdef __x86_64__
static void __attribute__((target("avx2"))) update_avx2(struct ndp_predictor *p, uint32_t layer,
							const uint32_t *tokens)
{
	update(p, layer, tokens, true);
}
#endif

void ndp_predict_update(struct ndp_predictor *p, uint32_t layer, const uint32_t *tokens)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		update_avx2(p, layer, tokens);
		return;
	}
#endif
	update(p, layer, tokens, false);
}

void ndp_ema_update(float *ema, uint32_t experts, float alpha, const uint32_t *tokens)
{
	for (uint32_t e = 0; e < experts; e++)
		ema[e] += alpha * ((float)tokens[e] - ema[e]);
}
