/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * engine.h - what the files of the placement engine share: its state.
 *
 * engine.c keeps the state and its limits, engine_choose.c finds what is worth
 * doing. Two placements are kept: the valid one and the target, which differ only
 * for actions on their way; choosing looks at the target alone.
 */
#ifndef NDP_SCHED_ENGINE_H
#define NDP_SCHED_ENGINE_H

#include <ndp/place.h>
#include <stdbool.h>

/* One action on its way. */
struct flight {
	bool used;
	struct ndp_place_action action;
	uint64_t dimm_bytes[NDP_MAX_DIMMS];	/* promised until it ends */
};

/* A change that may become an action. */
struct proposal {
	uint32_t kind;
	uint32_t expert;
	int32_t victim;
	uint16_t row[NDP_MAX_DIMMS];	/* of a move: the new blocks */
};

/* A layer for which nothing was worth doing is left alone for a while. */
struct place_pause {
	uint8_t length;	/* decisions; doubles each time */
	uint8_t left;
};

struct ndp_placer {
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_place_options options;
	uint32_t layers;
	uint32_t nr_blocks;	/* of an expert */
	uint64_t block_bytes;
	double now_ns;
	double link_out_ns[NDP_MAX_DIMMS];	/* from when on a port may be used again */
	double link_in_ns[NDP_MAX_DIMMS];
	double pcie_ns;
	uint64_t gpu_bytes;	/* taken or promised */
	uint64_t dimm_bytes[NDP_MAX_DIMMS];
	uint64_t started[3], bytes[3], failed;
	uint32_t nr_flights;
	struct flight flight[NDP_PLACE_MAX_ACTIONS];

	uint16_t *blocks, *target;	/* [layers][experts][nr_dimms] */
	uint8_t *on_gpu, *gpu_target;	/* [layers][experts] */
	uint8_t *busy;	/* [layers][experts]: part of an action on its way */
	float *seen;	/* [layers][experts]: tokens when the layer was last looked at */
	struct place_pause *pause;	/* [layers] */
	double *free_ns;	/* [layers][experts]: from when on it may be moved again */
	uint32_t *tokens;	/* [experts]: the expected ones, rounded */
	void *work;	/* of the scheduler */
	struct ndp_plan plan;
	bool must_wait;	/* a link or PCIe was not free for something */
	bool plan_is_old;	/* of a target that was tried and left */
};

static inline size_t place_cell(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	return (size_t)layer * p->shape.experts + expert;
}

static inline uint16_t *place_row(const struct ndp_placer *p, uint16_t *blocks, uint32_t layer,
				 uint32_t expert)
{
	return blocks + place_cell(p, layer, expert) * p->host.nr_dimms;
}

/* Neither on its way nor just moved. */
static inline bool place_rested(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	const size_t cell = place_cell(p, layer, expert);

	return !p->busy[cell] && p->free_ns[cell] <= p->now_ns;
}

/* How long the copies of a proposal take; HUGE_VAL: something forbids it now. */
double ndpi_place_copy_ns(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal);

/* Applies a proposal to the target, or takes it back with what it returned in @undo. */
void ndpi_place_try(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
	      struct proposal *undo);

/* The makespan of the target with p->tokens; fills p->plan. HUGE_VAL: cannot be computed. */
double ndpi_place_makespan(struct ndp_placer *p, uint32_t layer);

/* Starts a proposal that ndpi_place_copy_ns() allowed. */
void ndpi_place_start(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		double gain_ns, double cost_ns, struct ndp_place_action *action);

#endif
