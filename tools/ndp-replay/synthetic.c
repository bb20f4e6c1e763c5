// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * synthetic.c - made-up popularity of experts; see source.h.
 *
 * Each layer gives ranks to its experts at random.  The first 5 % share top5 of
 * the selections evenly, the next 25 % share next25, the others the rest; every
 * selection is drawn independently, so an expert with an even share of p gets
 * tokens x top_k x p on the mean.  (A router never picks an expert twice for one
 * token; that is left out, so that the shares are exactly those asked for.)
 */
#include "source.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_STEPS = 200, DEFAULT_BATCH = 512, MAX_STEPS = 1000000 };

struct synthetic {
	struct source source;
	double drift;
	double owed;		/* trades of popularity not yet made */
	uint64_t selections;	/* in a layer and step */
	uint32_t steps_left;
	uint64_t state;
	double *weight;		/* [layers][experts] */
	struct draw *draw;	/* [layers] */
};

struct spec {
	double top5, next25, drift, seed, steps, layers;
};

static int read_spec(const char *text, struct spec *spec, struct ndp_error *err)
{
	const struct {
		const char *name;
		double *value;
		double max;
		bool integer;
	} fields[] = {
		{ "top5", &spec->top5, 1, false }, { "next25", &spec->next25, 1, false },
		{ "drift", &spec->drift, 1, false }, { "seed", &spec->seed, 1e15, true },
		{ "steps", &spec->steps, MAX_STEPS, true }, { "layers", &spec->layers, 4096, true },
	};
	const size_t nr_fields = sizeof(fields) / sizeof(fields[0]);
	uint32_t seen = 0;

	while (*text) {
		const size_t n = strcspn(text, "=,");
		size_t i = 0;
		char *end;

		while (i < nr_fields &&
		       (strlen(fields[i].name) != n || strncmp(text, fields[i].name, n)))
			i++;
		if (i == nr_fields || text[n] != '=')
			return fail(err, -EINVAL,
				    "--synthetic knows top5=, next25=, drift=, seed=, steps= and "
				    "layers=, not '%.60s'", text);
		if (seen & 1u << i)
			return fail(err, -EINVAL, "--synthetic has %s= twice", fields[i].name);
		seen |= 1u << i;
		text += n + 1;
		*fields[i].value = strtod(text, &end);
		if (end == text || (*end && *end != ',') || !(*fields[i].value >= 0) ||
		    *fields[i].value > fields[i].max ||
		    (fields[i].integer && *fields[i].value != floor(*fields[i].value)))
			return fail(err, -EINVAL, "--synthetic %s= wants %s from 0 to %g, not '%.60s'",
				    fields[i].name, fields[i].integer ? "an integer" : "a number",
				    fields[i].max, text);
		text = *end ? end + 1 : end;
	}
	return 0;
}

static void trade(struct synthetic *y, uint32_t layer)
{
	const uint32_t experts = y->source.experts;
	double *weight = y->weight + (size_t)layer * experts;
	const uint32_t a = random_below(&y->state, experts), b = random_below(&y->state, experts);
	const double w = weight[a];

	weight[a] = weight[b];
	weight[b] = w;
}

static int synthetic_next(struct source *s, uint32_t *counts, struct ndp_error *err)
{
	struct synthetic *y = (struct synthetic *)s;
	const uint32_t trades = y->owed;

	(void)err;
	if (!y->steps_left)
		return 0;
	y->steps_left--;
	memset(counts, 0, sizeof(*counts) * s->nr_layers * s->experts);
	for (uint32_t l = 0; l < s->nr_layers; l++) {
		for (uint32_t k = 0; k < trades; k++)
			trade(y, l);
		if (trades)
			draw_set(&y->draw[l], y->weight + (size_t)l * s->experts);
		draw_many(&y->draw[l], &y->state, y->selections,
			  counts + (size_t)l * s->experts);
	}
	/* A trade changes two. */
	y->owed += y->drift * s->experts / 2 - trades;
	return 1;
}

static void synthetic_close(struct source *s)
{
	struct synthetic *y = (struct synthetic *)s;

	for (uint32_t l = 0; y->draw && l < s->nr_layers; l++)
		draw_free(&y->draw[l]);
	free(y->draw);
	free(y->weight);
	free(s->layer_numbers);
	free(y);
}

/* 5 % and 25 % of the experts, at least one each; what is left gets the rest. */
static int set_weights(double *weight, uint32_t experts, const struct spec *spec,
		       uint32_t top_k, struct ndp_error *err)
{
	uint32_t top = experts * 0.05 + 0.5, next = experts * 0.25 + 0.5, rest;

	top = top ? top : 1;
	next = next ? next : 1;
	rest = experts > top + next ? experts - top - next : 0;
	if (!rest)
		return fail(err, -EINVAL, "--synthetic wants at least 3 experts, the model has %u",
			    experts);
	for (uint32_t e = 0; e < experts; e++) {
		weight[e] = e < top ? spec->top5 / top : e < top + next ? spec->next25 / next :
			    (1 - spec->top5 - spec->next25) / rest;
		if (weight[e] * top_k > 1.0001)
			return fail(err, -EINVAL,
				    "--synthetic: a share of %g for one of %u experts would mean "
				    "%g selections of it a token, at most one is possible",
				    weight[e], experts, weight[e] * top_k);
	}
	return 0;
}

static int fill(struct synthetic *y, const struct spec *spec, uint32_t top_k,
		struct ndp_error *err)
{
	const uint32_t layers = spec->layers, experts = y->source.experts;
	int r;

	y->source.nr_layers = layers;
	y->source.layer_numbers = calloc(layers, sizeof(uint32_t));
	y->weight = calloc((size_t)layers * experts, sizeof(double));
	y->draw = calloc(layers, sizeof(*y->draw));
	if (!y->source.layer_numbers || !y->weight || !y->draw)
		return fail(err, -ENOMEM, "out of memory");
	for (uint32_t l = 0; l < layers; l++) {
		double *weight = y->weight + (size_t)l * experts;

		y->source.layer_numbers[l] = l;
		r = set_weights(weight, experts, spec, top_k, err);
		if (r < 0)
			return r;
		for (uint32_t e = experts - 1; e > 0; e--) {
			const uint32_t other = random_below(&y->state, e + 1);
			const double w = weight[e];

			weight[e] = weight[other];
			weight[other] = w;
		}
		if (draw_init(&y->draw[l], experts) < 0)
			return fail(err, -ENOMEM, "out of memory");
		draw_set(&y->draw[l], weight);
	}
	return 0;
}

int source_open_synthetic(struct source **s, const char *text, const struct source_limits *limits,
			  uint32_t default_layers, struct ndp_error *err)
{
	struct spec spec = {
		.top5 = 0.40, .next25 = 0.50, .seed = 1, .steps = DEFAULT_STEPS,
		.layers = default_layers,
	};
	const uint32_t batch = limits->batch ? limits->batch : DEFAULT_BATCH;
	struct synthetic *y;
	int r = read_spec(text, &spec, err);

	*s = NULL;
	if (r < 0)
		return r;
	if (spec.top5 + spec.next25 > 1)
		return fail(err, -EINVAL, "--synthetic: top5 and next25 are %g together, at most 1",
			    spec.top5 + spec.next25);
	if (spec.layers < 1 || spec.layers > limits->layers)
		return fail(err, -EINVAL, "--synthetic layers=%g: the model has 1 to %u",
			    spec.layers, limits->layers);
	y = calloc(1, sizeof(*y));
	if (!y)
		return fail(err, -ENOMEM, "out of memory");
	y->source.experts = limits->experts;
	y->source.next = synthetic_next;
	y->source.close = synthetic_close;
	y->drift = spec.drift;
	y->selections = (uint64_t)batch * limits->top_k;
	y->steps_left = limits->steps && limits->steps < spec.steps ? limits->steps : spec.steps;
	y->state = random_state(spec.seed);
	snprintf(y->source.text, sizeof(y->source.text),
		 "synthetic, top 5 %% of the experts %g of the selections, next 25 %% %g, drift "
		 "%g, seed %g, %u tokens a step", spec.top5, spec.next25, spec.drift, spec.seed,
		 batch);
	r = fill(y, &spec, limits->top_k, err);
	if (r < 0) {
		synthetic_close(&y->source);
		return r;
	}
	*s = &y->source;
	return 0;
}
