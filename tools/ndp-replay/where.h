/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * where.h - where the experts of each layer are while a replay runs, unless a
 * placement engine moves them (mover.h).
 */
#ifndef NDP_REPLAY_WHERE_H
#define NDP_REPLAY_WHERE_H

#include "options.h"


struct where {
	enum placement placement;
	const struct ndp_host *host;
	const struct ndp_shape *shape;
	uint32_t nr_layers;
	uint32_t hot;		/* experts of a layer that an oracle puts on the GPU */
	uint16_t *blocks;	/* [layers][experts][dimms] */
	uint8_t *on_gpu;	/* [layers][experts] */
	uint32_t *order;	/* [experts] */
};

/* -ENOSPC: the experts do not fit, with the arithmetic. */
int where_init(struct where *w, const struct options *o, const struct ndp_host *host,
	       const struct ndp_shape *shape, uint32_t nr_layers, struct ndp_error *err);
void where_free(struct where *w);

/* Before @layer runs with these @tokens: what an oracle would have put where. */
void where_prepare(struct where *w, uint32_t layer, const uint32_t *tokens);

/* [experts][dimms], [experts]; with an engine what it begins with */
const uint16_t *where_blocks(const struct where *w, uint32_t layer);
const uint8_t *where_on_gpu(const struct where *w, uint32_t layer);

#endif
