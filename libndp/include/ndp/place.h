/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * place.h - where the experts of a model should be: which of them GPU memory
 * holds copies of, and which DIMMs hold their blocks.
 *
 * A state machine driven by the time that the caller gives it: no I/O, no clock,
 * no allocation, no global state; equal calls give equal actions.  All times are
 * *modelled time* of the described machine.  One thread at a time.
 *
 * Three kinds of actions run in the background (TriMoE, arXiv 2603.01058):
 * prefetching a hot expert into GPU memory, relayout of an expert between one
 * DIMM and all of them, and rebalancing experts between DIMMs.  What moves are
 * worth is estimated at prices of the machine's resources; some are then tried
 * together, and started only when
 *
 *   their gain is worth their cost: the makespan that the scheduler reaches with
 *   the expected loads, and with steps that vary around them, falls by so much
 *   that, over the horizon, it exceeds their costs by a margin.  A copy costs the
 *   time that it takes from the layers it runs beside, at those prices, and never
 *   less than a part of its own time;
 *   they are not undoing what has just been done (stay_ns);
 *   their turn at the ports of DIMM-Link and at PCIe, which are given to one copy
 *   after another and for a share of the time only, comes soon (queue_ns);
 *   the memory they go to has room for them beside all that is on its way.
 *
 * Until ndp_place_done() says that the bytes have arrived the old placement is
 * the valid one.
 */
#ifndef NDP_PLACE_H
#define NDP_PLACE_H

#include <ndp/sched.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	NDP_PLACE_MAX_LAYERS = 1024,
	NDP_PLACE_MAX_ACTIONS = 128,	/* on their way at a time */
};

enum ndp_place_kind {
	NDP_PLACE_PREFETCH,
	NDP_PLACE_RELAYOUT,
	NDP_PLACE_REBALANCE,
	NDP_PLACE_KINDS,
};

struct ndp_place_options {
	uint64_t gpu_bytes;	/* GPU memory for experts of all layers; 0: the GPU gets none */
	uint64_t dimm_bytes;	/* of each DIMM, for experts and what is on its way there */
	uint32_t allowed_mask;	/* DIMMs that experts may be moved to */
	uint32_t charges;	/* of the layers that are scheduled: enum ndp_charge */
	uint32_t kinds;		/* of actions: bits 1 << enum ndp_place_kind */
	enum ndp_policy policy;	/* the scheduler whose makespan is to fall */
	double link_share;	/* 0..1: of each DIMM-Link port's time; 0: no moves between DIMMs */
	double pcie_share;	/* 0..1: of PCIe's time; 0: no prefetches */
	double horizon_steps;	/* for how many steps a gain counts */
	double hysteresis;	/* 0.5: a gain must exceed the cost by half */
	double stay_ns;		/* an expert is not moved again before; between DIMMs it stays
				   twice as long after each move, up to 256 times */
	double queue_ns;	/* how long an action may have to wait for its ports */
	double least_cost;	/* 0..1: of its copies' time, what an action costs at least */
};

/*
 * What the host has, all DIMMs, all charges, all kinds, trimoe; half of the links' time and
 * of PCIe's; 128 steps, 0.5, 2 s, 0.1 s, an eighth.
 */
void ndp_place_defaults(struct ndp_place_options *options, const struct ndp_host *host);

struct ndp_place_action {
	uint32_t id;		/* for ndp_place_done() */
	uint32_t kind;		/* enum ndp_place_kind */
	uint32_t layer;
	uint32_t expert;
	int32_t victim;		/* prefetch: the expert whose GPU memory is taken first; -1: none */
	uint32_t victim_layer;	/* of the victim, which may be another */
	uint32_t nr_blocks;	/* that are copied */
	uint64_t bytes;		/* of those */
	double gain_ns;		/* expected, each step; of all that were tried with it */
	double cost_ns;		/* of all that were tried with it */
	double start_ns;	/* when its ports are free for it: not to be started before */
	double end_ns;		/* when the copy would be there, undisturbed */
};

struct ndp_placer;

/* 0: no layers, experts or DIMMs, or more than the limits. */
size_t ndp_place_bytes(uint32_t layers, uint32_t experts, uint32_t nr_dimms);

/*
 * @mem: ndp_place_bytes() of it, aligned for any type.  @host and @shape are
 * copied.  @blocks [layers][experts][nr_dimms] and @on_gpu [layers][experts] (or
 * NULL: none) say where everything is now.  -EINVAL: an option or a number is out
 * of range; -ENOSPC: this does not fit in memory, with the arithmetic.
 */
int ndp_place_init(void *mem, const struct ndp_host *host, const struct ndp_shape *shape,
		   uint32_t layers, const struct ndp_place_options *options, const uint16_t *blocks,
		   const uint8_t *on_gpu, struct ndp_placer **placer, struct ndp_error *err);

/*
 * Decides for @layer at @now_ns, expecting @tokens [experts] in its next steps;
 * to be called at most once a step.  Writes up to @max actions (48 are enough),
 * which count as started, and returns their number.  Runs the scheduler up to
 * fifty times, so it is not for the path of a token; a layer for which nothing
 * was worth doing is left alone for up to 8 decisions, or until a tenth of its
 * tokens is expected elsewhere.  GPU memory is taken from whichever expert of any
 * layer needs it least.  Time never runs backwards.
 */
uint32_t ndp_place_decide(struct ndp_placer *p, uint32_t layer, const float *tokens, double now_ns,
			  struct ndp_place_action *actions, uint32_t max);

/*
 * An action has ended: its bytes are there, or (@result < 0) it failed and all
 * is as before, except that a victim is gone.  -ENOENT: no such action.
 */
int ndp_place_done(struct ndp_placer *p, uint32_t id, double now_ns, int result);

/* [experts][nr_dimms], [experts]: what is valid now, in the form that struct ndp_layer wants. */
const uint16_t *ndp_place_blocks(const struct ndp_placer *p, uint32_t layer);
const uint8_t *ndp_place_on_gpu(const struct ndp_placer *p, uint32_t layer);

/* [nr_dimms]: the expert's blocks when what is on its way has arrived. */
const uint16_t *ndp_place_target(const struct ndp_placer *p, uint32_t layer, uint32_t expert);

/*
 * The copies that an action on its way consists of, at most 2 x nr_dimms, for the
 * timeline.  Returns their number.
 */
uint32_t ndp_place_copies(const struct ndp_placer *p, uint32_t id, struct ndp_copy *copies);

/*
 * Starts a move between DIMMs that somebody else has decided, as if it had been decided
 * here: @row [nr_dimms] is where the expert's blocks are to be.  0 with an @action;
 * -EINVAL: no such expert, or not all of its blocks; -EBUSY: it is on its way;
 * -EALREADY: it is there; -EAGAIN: too much is under way; -ENOSPC, -EPERM: a DIMM is full
 * or not allowed; -EOPNOTSUPP: there is no link.
 */
int ndp_place_order(struct ndp_placer *p, uint32_t layer, uint32_t expert, const uint16_t *row,
		    double now_ns, struct ndp_place_action *action);

/*
 * Other shares from here on, of links and PCIe (0..1), and another limit for each DIMM
 * (0: as it is): others came or went.  What is beyond a limit already stays.
 */
void ndp_place_share(struct ndp_placer *p, double link_share, double pcie_share,
		     uint64_t dimm_bytes);

struct ndp_place_usage {
	uint64_t gpu_bytes;	/* taken or promised */
	uint64_t dimm_bytes[NDP_MAX_DIMMS];
	uint32_t nr_actions;	/* on their way */
	uint64_t started[NDP_PLACE_KINDS];	/* since the beginning */
	uint64_t bytes[NDP_PLACE_KINDS];
	uint64_t failed;
};

void ndp_place_usage(const struct ndp_placer *p, struct ndp_place_usage *usage);

/* ---- before anything is loaded --------------------------------------------- */

/*
 * Whether @slots experts of @expert_bytes fit in @free_bytes.  0, also for no
 * slots; -ENOSPC with the arithmetic and how many fit.
 */
int ndp_place_budget(uint64_t slots, uint64_t expert_bytes, uint64_t free_bytes,
		     struct ndp_error *err);

/*
 * Deals whole experts to DIMMs in turn: @order[i], or i when it is NULL, goes to
 * DIMM (@first + i) % nr_dimms.  So DIMMs hold equal numbers, or one more.
 */
void ndp_place_deal(uint16_t *blocks, const struct ndp_shape *shape, uint32_t nr_dimms,
		    const uint32_t *order, uint32_t first);

#ifdef __cplusplus
}
#endif

#endif
