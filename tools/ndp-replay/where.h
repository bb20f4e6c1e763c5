/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * where.h - where the experts of each layer are while a replay runs.
 */
#ifndef NDP_REPLAY_WHERE_H
#define NDP_REPLAY_WHERE_H

#include "options.h"

#include <ndp/place.h>

/* What the engine did. */
struct moves {
	uint64_t decisions;
	uint64_t started[3];	/* by enum ndp_place_kind */
	uint64_t bytes[3];
	uint64_t layers;	/* that ran beside copies */
	uint64_t played;	/* of those, by a timeline */
	double copy_ns;		/* time that copies took in those played */
	double hidden_ns;	/* of it, behind layers */
	double played_delay_ns;	/* that layers waited for copies in those played */
	double delay_ns;	/* in all, at the mean of those played so far */
};

struct where {
	enum placement placement;
	const struct ndp_host *host;
	const struct ndp_shape *shape;
	uint32_t nr_layers;
	uint32_t hot;		/* experts of a layer that an oracle puts on the GPU */
	uint16_t *blocks;	/* [layers][experts][dimms] */
	uint8_t *on_gpu;	/* [layers][experts] */
	uint32_t *order;	/* [experts] */

	/* The engine's. */
	enum ndp_policy lead;	/* whose time passes, and whose makespan is to fall */
	void *memory;
	float *loads;		/* [experts] */
	struct ndp_placer *placer;
	double now_ns;
	uint32_t nr_pending;
	uint32_t pending[NDP_PLACE_MAX_ACTIONS];	/* actions whose copies run beside the
							   next layer */
	struct moves moves;
};

/* Copies that can be on their way at a time. */
enum { WHERE_MAX_COPIES = NDP_PLACE_MAX_ACTIONS * 2 * NDP_MAX_DIMMS };

/* -ENOSPC: the experts do not fit, with the arithmetic. */
int where_init(struct where *w, const struct options *o, const struct ndp_host *host,
	       const struct ndp_shape *shape, uint32_t nr_layers, struct ndp_error *err);
void where_free(struct where *w);

/* Before @layer runs with these @tokens: what an oracle would have put where. */
void where_prepare(struct where *w, uint32_t layer, const uint32_t *tokens);

/* [experts][dimms], [experts] */
const uint16_t *where_blocks(const struct where *w, uint32_t layer);
const uint8_t *where_on_gpu(const struct where *w, uint32_t layer);

/* The engine's copies that run beside the next layer; at most WHERE_MAX_COPIES. */
uint32_t where_copies(struct where *w, struct ndp_copy *copies);

/*
 * A layer of @makespan_ns has run, beside the copies that where_copies() named;
 * @timeline: of both, or NULL: not played.  The first with copies is played.
 */
void where_advance(struct where *w, double makespan_ns, const struct ndp_timeline *timeline);

/* Lets the engine decide for @layer, of whose next @selections @shares [experts] are expected. */
void where_decide(struct where *w, uint32_t layer, const float *shares, double selections);

#endif
