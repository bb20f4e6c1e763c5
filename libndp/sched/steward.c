// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * steward.c - see ndp/steward.h: what the loads of a step teach, and when it is a
 * layer's turn to be decided on.
 *
 * Turns go by steps, not by time, so that the same loads in the same order meet
 * the same decisions however fast they come.
 */
#include <ndp/steward.h>

#include "refuse.h"

#include <stdbool.h>
#include <string.h>

enum { ALIGN = 64, FIRST = 64, FIRST_EVERY = 4, EVERY = 64, MAX_EVERY = 1 << 20, SCORE_EVERY = 8 };

struct steward_layer {
	uint32_t steps;
	float covered;
	float best;
	float predicted;	/* of the hot class */
	float hottest;
};

struct ndp_steward {
	struct ndp_steward_options options;
	struct ndp_placer *placer;
	struct ndp_predictor *predictor;
	uint32_t nr_layers;
	uint32_t experts;
	struct steward_layer *layers;
	float *expected;	/* [experts] */
	uint32_t *sorted;	/* [experts] */
};

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void ndp_steward_defaults(struct ndp_steward_options *options, const struct ndp_host *host)
{
	ndp_place_defaults(&options->place, host);
	options->first = FIRST;
	options->first_every = FIRST_EVERY;
	options->every = EVERY;
}

size_t ndp_steward_bytes(uint32_t layers, uint32_t experts, uint32_t nr_dimms)
{
	const size_t place = ndp_place_bytes(layers, experts, nr_dimms);
	const size_t predict = ndp_predict_bytes(layers, experts);

	if (!place || !predict)
		return 0;
	return aligned(sizeof(struct ndp_steward)) + aligned(place) + aligned(predict) +
	       aligned(layers * sizeof(struct steward_layer)) + 2 * aligned(experts * 4);
}

static int check(const struct ndp_steward_options *o, struct ndp_error *err)
{
	if (o->every < 1 || o->every > MAX_EVERY)
		return ndpi_refuse(err, "every is %u; 1 to %u is wanted", o->every, MAX_EVERY);
	if (o->first_every < 1 || o->first_every > MAX_EVERY)
		return ndpi_refuse(err, "first_every is %u; 1 to %u is wanted", o->first_every,
				   MAX_EVERY);
	return 0;
}

/* The next @bytes of the memory at *at. */
static void *take(char **at, size_t bytes)
{
	void *p = *at;

	*at += aligned(bytes);
	return p;
}

int ndp_steward_init(void *mem, const struct ndp_host *host, const struct ndp_shape *shape,
		     uint32_t layers, const struct ndp_steward_options *options,
		     const uint16_t *blocks, const uint8_t *on_gpu, struct ndp_steward **steward,
		     struct ndp_error *err)
{
	char *at = mem;
	struct ndp_steward *s = take(&at, sizeof(*s));
	void *place_mem, *predict_mem;
	int r = check(options, err);

	if (r < 0)
		return r;
	place_mem = take(&at, ndp_place_bytes(layers, shape->experts, host->nr_dimms));
	predict_mem = take(&at, ndp_predict_bytes(layers, shape->experts));
	*s = (struct ndp_steward){
		.options = *options,
		.nr_layers = layers,
		.experts = shape->experts,
		.layers = take(&at, layers * sizeof(*s->layers)),
	};
	s->expected = take(&at, s->experts * sizeof(*s->expected));
	s->sorted = take(&at, s->experts * sizeof(*s->sorted));
	memset(s->layers, 0, layers * sizeof(*s->layers));
	r = ndp_place_init(place_mem, host, shape, layers, &options->place, blocks, on_gpu,
			   &s->placer, err);
	if (r < 0)
		return r;
	s->predictor = ndp_predict_init(predict_mem, layers, s->experts);
	*steward = s;
	return 0;
}

/* Brings the @n largest of @v [of] to its front. */
static void largest_first(uint32_t *v, uint32_t of, uint32_t n)
{
	uint32_t from = 0, to = of;

	while (to - from > 1) {
		/* Never the last one: both parts are then smaller than the whole. */
		const uint32_t pivot = v[from + (to - from - 1) / 2];
		uint32_t i = from, j = to - 1;

		for (;;) {
			while (v[i] > pivot)
				i++;
			while (v[j] < pivot)
				j--;
			if (i >= j)
				break;
			const uint32_t other = v[i];

			v[i++] = v[j];
			v[j--] = other;
		}
		/* Everything before j + 1 is at least what follows. */
		if (n <= j + 1)
			to = j + 1;
		else
			from = j + 1;
	}
}

/* The tokens of the @n experts that got most. */
static uint64_t most(struct ndp_steward *s, const uint32_t *tokens, uint32_t n)
{
	uint64_t sum = 0;

	memcpy(s->sorted, tokens, s->experts * sizeof(*tokens));
	if (n && n < s->experts)
		largest_first(s->sorted, s->experts, n);
	for (uint32_t i = 0; i < n; i++)
		sum += s->sorted[i];
	return sum;
}

/* The value that the @n largest of @v [of] are not below; rearranges @v. */
static uint32_t least_of_largest(uint32_t *v, uint32_t of, uint32_t n)
{
	uint32_t least = UINT32_MAX;

	if (n < of)
		largest_first(v, of, n);
	for (uint32_t i = 0; i < n; i++)
		least = v[i] < least ? v[i] : least;
	return least;
}

/* How many of the tokens the experts got that were predicted to be the hot class. */
static void score_prediction(struct ndp_steward *s, uint32_t layer, const uint32_t *tokens,
			     uint64_t total)
{
	const float *shares = ndp_predict_shares(s->predictor, layer);
	const uint32_t n = ndp_class_hot(s->experts);
	uint64_t predicted = 0;
	uint32_t least, taken = 0;

	/* Shares are at most 1: as integers they are ordered alike. */
	for (uint32_t e = 0; e < s->experts; e++)
		s->sorted[e] = (uint32_t)(shares[e] * 4e9f);
	least = least_of_largest(s->sorted, s->experts, n);
	for (uint32_t e = 0; e < s->experts && taken < n; e++) {
		if ((uint32_t)(shares[e] * 4e9f) < least)
			continue;
		predicted += tokens[e];
		taken++;
	}
	s->layers[layer].predicted = (float)((double)predicted / (double)total);
	s->layers[layer].hottest = (float)((double)most(s, tokens, n) / (double)total);
}

/* What could have been is looked at in a part of the steps: it costs more than learning. */
static void score(struct ndp_steward *s, uint32_t layer, const uint32_t *tokens, uint64_t total)
{
	const uint8_t *on_gpu = ndp_place_on_gpu(s->placer, layer);
	struct steward_layer *l = &s->layers[layer];
	uint64_t covered = 0;
	uint32_t n = 0;

	for (uint32_t e = 0; e < s->experts; e++) {
		covered += on_gpu[e] ? tokens[e] : 0;
		n += on_gpu[e];
	}
	l->covered = (float)((double)covered / (double)total);
	if (l->steps % SCORE_EVERY)
		return;
	l->best = (float)((double)most(s, tokens, n) / (double)total);
	score_prediction(s, layer, tokens, total);
}

static bool is_turn(const struct ndp_steward *s, uint32_t layer)
{
	const struct ndp_steward_options *o = &s->options;
	const uint32_t steps = s->layers[layer].steps;

	return (steps + layer) % (steps < o->first ? o->first_every : o->every) == 0;
}

uint32_t ndp_steward_step(struct ndp_steward *s, uint32_t layer, const uint32_t *tokens,
			  double now_ns, struct ndp_place_action *actions, uint32_t max)
{
	const float *shares;
	uint64_t total = 0;

	if (layer >= s->nr_layers)
		return 0;
	for (uint32_t e = 0; e < s->experts; e++)
		total += tokens[e];
	if (!total)
		return 0;
	score(s, layer, tokens, total);
	ndp_predict_update(s->predictor, layer, tokens);
	s->layers[layer].steps++;
	if (!is_turn(s, layer))
		return 0;
	shares = ndp_predict_shares(s->predictor, layer);
	for (uint32_t e = 0; e < s->experts; e++)
		s->expected[e] = shares[e] * (float)total;
	return ndp_place_decide(s->placer, layer, s->expected, now_ns, actions, max);
}

struct ndp_placer *ndp_steward_placer(struct ndp_steward *s)
{
	return s->placer;
}

const struct ndp_predictor *ndp_steward_predictor(const struct ndp_steward *s)
{
	return s->predictor;
}

void ndp_steward_coverage(const struct ndp_steward *s, uint32_t layer, double *covered,
			  double *best)
{
	*covered = s->layers[layer].covered;
	*best = s->layers[layer].best;
}

void ndp_steward_prediction(const struct ndp_steward *s, uint32_t layer, double *predicted,
			    double *hottest)
{
	*predicted = s->layers[layer].predicted;
	*hottest = s->layers[layer].hottest;
}
