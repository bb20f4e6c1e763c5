/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mover.h - the placement engine of one policy in a replay, and its copies on
 * their way.
 *
 * Copies run behind the layers that follow, in the order in which they were
 * decided: at each layer they get what it leaves of the DIMMs, the channels, PCIe
 * and the CPU, and a little more where it leaves nothing, so that they end some
 * time.  By that little the layer ends later.  No port and no PCIe serves copies
 * for more than its share of the time.  Modelled time, by the same rules as the
 * plans; every so often a layer is played by the timeline to compare.
 */
#ifndef NDP_REPLAY_MOVER_H
#define NDP_REPLAY_MOVER_H

#include "where.h"

#include <ndp/place.h>

/* What the engine did. */
struct moves {
	uint64_t decisions;
	uint64_t started[NDP_PLACE_KINDS];	/* by enum ndp_place_kind */
	uint64_t bytes[NDP_PLACE_KINDS];
	uint64_t ended;
	uint64_t layers;	/* that ran beside copies */
	double copy_ns;		/* what the copies take at full speed, one after the other */
	double port_ns;		/* of each layer the busiest port's: all ports side by side */
	double delay_ns;	/* by which layers ended later */
	uint64_t played;	/* of those layers, by the timeline */
	double played_ns;	/* by which they ended later by the rules */
	double timeline_ns;	/* and by the timeline, */
	double timeline_left_ns;	/* where copies that only get what is left end after them */
};

/* An action on its way: what all of it takes of everything. */
struct carried {
	struct ndp_place_action action;
	double left;	/* of it: 1 to 0 */
	double part;	/* of it, in the layer that is running */
	double copy_ns;	/* the longest of its ports */
	double out_ns[NDP_MAX_DIMMS], in_ns[NDP_MAX_DIMMS];	/* ports of DIMM-Link */
	struct ndp_loads loads;
};

struct mover {
	const struct ndp_host *host;
	const struct ndp_shape *shape;
	struct ndp_place_options options;
	void *memory;
	struct ndp_placer *placer;
	float *loads;	/* [experts] */
	double now_ns;
	uint32_t nr;
	struct carried carried[NDP_PLACE_MAX_ACTIONS];	/* the oldest first */
	struct moves moves;
};

/* Copies that can be on their way at a time. */
enum { MOVER_MAX_COPIES = NDP_PLACE_MAX_ACTIONS * 2 * NDP_MAX_DIMMS };

/*
 * For @policy, from where @where has everything; @kinds: bits 1 << enum
 * ndp_place_kind.  NULL and an error when that does not fit.
 */
struct mover *mover_new(const struct where *where, enum ndp_policy policy, uint32_t charges,
			uint32_t kinds, struct ndp_error *err);
void mover_free(struct mover *m);

/*
 * A layer that takes @plan runs; copies get their parts beside it, those that are
 * whole then arrive.  Returns by how much the layer ends later.
 */
double mover_pass(struct mover *m, const struct ndp_plan *plan);

/* The parts of copies that mover_pass() ran beside the last layer; their number. */
uint32_t mover_copies(const struct mover *m, struct ndp_copy *copies);

/* Copies that are whole arrive. */
void mover_arrive(struct mover *m);

/* Lets the engine decide for @layer, of whose next @selections @shares [experts] are expected. */
void mover_decide(struct mover *m, uint32_t layer, const float *shares, double selections);

/* The share of the copies' time that nobody waited for. */
double mover_hidden(const struct moves *m);

#endif
