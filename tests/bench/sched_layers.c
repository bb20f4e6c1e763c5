// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * sched_layers.c - see sched_layers.h.
 */
#include "sched_layers.h"

#include "../../tools/ndp-replay/source.h"
#include "bench.h"

#include <ndp/profile.h>

static void allocate(struct layers *l)
{
	l->tokens = calloc((size_t)l->nr * l->shape.experts, sizeof(*l->tokens));
	l->blocks = calloc((size_t)l->shape.experts * l->host.nr_dimms, sizeof(*l->blocks));
	l->on_gpu = calloc(l->shape.experts, 1);
	if (!l->tokens || !l->blocks || !l->on_gpu)
		die("out of memory");
}

void layers_free(struct layers *l)
{
	free(l->tokens);
	free(l->blocks);
	free(l->on_gpu);
}

/* The first @nr layers of the source, step by step. */
static void read_loads(struct layers *l, struct source *s)
{
	uint32_t *counts = calloc((size_t)s->nr_layers * s->experts, sizeof(*counts));
	struct ndp_error err;
	uint32_t have = 0;

	while (counts && have < l->nr && source_next(s, counts, &err) > 0)
		for (uint32_t k = 0; k < s->nr_layers && have < l->nr; k++)
			memcpy(l->tokens + (size_t)have++ * l->shape.experts,
			       counts + (size_t)k * s->experts,
			       l->shape.experts * sizeof(*counts));
	if (have < l->nr)
		die("the loads have %u layers, %u are wanted", have, l->nr);
	free(counts);
}

void layers_load(struct layers *l, const char *host, const char *model, const char *loads,
		 uint32_t batch, uint32_t nr)
{
	struct ndp_model_profile m;
	struct ndp_host_profile h;
	struct ndp_error err;
	struct source *s;
	char path[200];
	int r;

	memset(l, 0, sizeof(*l));
	snprintf(path, sizeof(path), "share/hosts/%s.json", host);
	if (ndp_host_profile_load(&h, path, &err) < 0)
		die("%s", err.message);
	snprintf(path, sizeof(path), "share/models/%s.json", model);
	if (ndp_model_profile_load(&m, path, &err) < 0)
		die("%s", err.message);
	l->host = h.host;
	l->shape = m.shape;
	l->nr = nr;
	allocate(l);
	const struct source_limits limits = {
		.experts = m.shape.experts,
		.layers = m.layers,
		.top_k = m.shape.top_k,
		.batch = batch,
	};

	r = strchr(loads, '=') ? source_open_synthetic(&s, loads, &limits, 1, &err) :
		source_open_file(&s, loads, &limits, 1, &err);
	if (r < 0)
		die("%s", err.message);
	read_loads(l, s);
	source_close(s);
}

void layers_draw(struct layers *l, uint32_t experts, uint32_t dimms, uint32_t batch, uint32_t nr)
{
	const struct source_limits limits = {
		.experts = experts,
		.layers = 1,
		.top_k = l->shape.top_k,
		.batch = batch,
	};
	struct ndp_error err;
	struct source *s;
	char text[80];

	layers_free(l);
	l->shape.experts = experts;
	l->host.nr_dimms = dimms;
	l->nr = nr;
	allocate(l);
	snprintf(text, sizeof(text), "top5=0.40,next25=0.50,seed=1,steps=%u", nr);
	if (source_open_synthetic(&s, text, &limits, 1, &err) < 0)
		die("%s", err.message);
	read_loads(l, s);
	source_close(s);
}

/* ---- placing --------------------------------------------------------------------- */

static void spread(const struct layers *l, uint16_t *row)
{
	const uint32_t blocks = ndp_shape_blocks(&l->shape), dimms = l->host.nr_dimms;

	for (uint32_t d = 0; d < dimms; d++)
		row[d] = blocks / dimms + (d < blocks % dimms);
}

struct ranked {
	uint32_t tokens, expert;
};

static int by_falling_load(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->tokens != y->tokens ? (x->tokens < y->tokens ? 1 : -1) :
		(x->expert > y->expert) - (x->expert < y->expert);
}

struct ndp_layer layers_get(struct layers *l, uint32_t k, enum placement placement,
			    uint32_t charges)
{
	const uint32_t experts = l->shape.experts, dimms = l->host.nr_dimms;
	const uint32_t hot = experts * 0.05 + 0.5, warm = hot + (uint32_t)(experts * 0.25 + 0.5);
	const uint32_t *tokens = l->tokens + (size_t)k * experts;
	struct ranked rank[NDP_MAX_EXPERTS];

	for (uint32_t e = 0; e < experts; e++)
		rank[e] = (struct ranked) { tokens[e], e };
	qsort(rank, experts, sizeof(rank[0]), by_falling_load);
	memset(l->blocks, 0, (size_t)experts * dimms * sizeof(*l->blocks));
	for (uint32_t r = 0; r < experts; r++) {
		uint16_t *row = l->blocks + (size_t)rank[r].expert * dimms;

		l->on_gpu[rank[r].expert] = r < hot;
		if (placement == SPREAD || (placement == BY_CLASS && r >= hot && r < warm))
			spread(l, row);
		else
			row[(r < hot ? r : r - hot) % dimms] = ndp_shape_blocks(&l->shape);
	}
	return (struct ndp_layer) {
		.host = &l->host,
		.shape = &l->shape,
		.charges = charges,
		.tokens = tokens,
		.blocks = l->blocks,
		.on_gpu = l->on_gpu,
	};
}
