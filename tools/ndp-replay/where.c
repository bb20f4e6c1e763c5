// SPDX-License-Identifier: GPL-2.0-or-later
/* where.c - see where.h. */
#include "where.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <ndp/predict.h>
#include <stdlib.h>
#include <string.h>

/* Spread as evenly as blocks go, what is left over beginning at @dimm; or all on @dimm. */
static void place(struct where *w, uint32_t layer, uint32_t expert, bool spread, uint32_t dimm)
{
	const uint32_t dimms = w->host->nr_dimms, blocks = ndp_shape_blocks(w->shape);
	uint16_t *row = w->blocks + ((size_t)layer * w->shape->experts + expert) * dimms;

	for (uint32_t k = 0; k < dimms; k++)
		row[(dimm + k) % dimms] = spread ? blocks / dimms + (k < blocks % dimms) :
					  k ? 0 : blocks;
}

static int check_room(const struct where *w, bool spread, struct ndp_error *err)
{
	const struct ndp_host *host = w->host;
	const uint64_t bytes = w->shape->expert_bytes;
	const uint64_t experts = (uint64_t)w->nr_layers * w->shape->experts;
	const uint32_t dimms = host->nr_dimms;
	const uint64_t on_one = (uint64_t)w->nr_layers * ((w->shape->experts + dimms - 1) / dimms);
	const uint64_t need = spread ? (experts * bytes + dimms - 1) / dimms : on_one * bytes;

	if (need <= host->dimm_bytes)
		return 0;
	return fail(err, -ENOSPC,
		    "%llu experts of %llu bytes need %llu bytes of a DIMM's %llu; the host's %u "
		    "DIMMs are too small for the model", (unsigned long long)experts,
		    (unsigned long long)bytes, (unsigned long long)need,
		    (unsigned long long)host->dimm_bytes, dimms);
}

int where_init(struct where *w, const struct options *o, const struct ndp_host *host,
	       const struct ndp_shape *shape, uint32_t nr_layers, struct ndp_error *err)
{
	const enum placement placement = o->placement;
	const size_t experts = (size_t)nr_layers * shape->experts;
	const bool spread = placement != PLACEMENT_LOCAL && placement != PLACEMENT_ORACLE_LOCAL &&
			    placement != PLACEMENT_ENGINE_LOCAL;
	uint64_t fit = host->gpu.gflops > 0 ? host->gpu_bytes / shape->expert_bytes / nr_layers : 0;
	int r;

	*w = (struct where){
		.placement = placement, .host = host, .shape = shape, .nr_layers = nr_layers,
	};
	r = check_room(w, spread, err);
	if (r < 0)
		return r;
	w->hot = ndp_class_hot(shape->experts);
	if (fit < w->hot)
		w->hot = fit;
	w->blocks = calloc(experts * host->nr_dimms, sizeof(*w->blocks));
	w->on_gpu = calloc(experts, sizeof(*w->on_gpu));
	w->order = calloc(shape->experts, sizeof(*w->order));
	if (!w->blocks || !w->on_gpu || !w->order)
		return fail(err, -ENOMEM, "out of memory");
	for (uint32_t l = 0; l < nr_layers; l++)
		for (uint32_t e = 0; e < shape->experts; e++)
			place(w, l, e, spread, e % host->nr_dimms);
	return 0;
}

void where_free(struct where *w)
{
	free(w->blocks);
	free(w->on_gpu);
	free(w->order);
}

const uint16_t *where_blocks(const struct where *w, uint32_t layer)
{
	return w->blocks + (size_t)layer * w->shape->experts * w->host->nr_dimms;
}

const uint8_t *where_on_gpu(const struct where *w, uint32_t layer)
{
	return w->on_gpu + (size_t)layer * w->shape->experts;
}

static int by_key(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Experts by falling load, the lower number first among equals. */
static void rank(struct where *w, const uint32_t *tokens)
{
	const uint32_t n = w->shape->experts;
	uint64_t key[n];

	for (uint32_t e = 0; e < n; e++)
		key[e] = (uint64_t)(UINT32_MAX - tokens[e]) << 32 | e;
	qsort(key, n, sizeof(key[0]), by_key);
	for (uint32_t k = 0; k < n; k++)
		w->order[k] = (uint32_t)key[k];
}

void where_prepare(struct where *w, uint32_t layer, const uint32_t *tokens)
{
	const uint32_t dimms = w->host->nr_dimms;
	uint8_t *on_gpu;

	if (w->placement != PLACEMENT_ORACLE_SPREAD && w->placement != PLACEMENT_ORACLE_LOCAL)
		return;
	rank(w, tokens);
	on_gpu = w->on_gpu + (size_t)layer * w->shape->experts;
	memset(on_gpu, 0, w->shape->experts);
	for (uint32_t k = 0; k < w->shape->experts; k++) {
		const uint32_t e = w->order[k];

		if (k < w->hot)
			on_gpu[e] = 1;
		if (w->placement == PLACEMENT_ORACLE_LOCAL)
			place(w, layer, e, false, (k < w->hot ? k : k - w->hot) % dimms);
	}
}
