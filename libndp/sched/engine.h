/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * engine.h - what the files of the placement engine share: its state.
 *
 * engine.c keeps the state and its limits, engine_value.c says what a place is
 * worth, engine_choose.c finds what is worth doing. Two placements are kept: the
 * valid one and the target, which differ only for actions on their way; choosing
 * looks at the target alone.
 */
#ifndef NDP_SCHED_ENGINE_H
#define NDP_SCHED_ENGINE_H

#include "impl.h"

#include <ndp/place.h>
#include <stdbool.h>

enum {
	PLACE_STEPS = 5,	/* that a placement is judged by; odd */
	PLACE_GROUPS = 5,	/* of resources: GPU, PCIe, CPU, channels, DIMMs */
};

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
	bool has_victim;
	uint32_t victim_layer, victim;
	uint16_t row[NDP_MAX_DIMMS];	/* of a move: the new blocks */
	double gain_ns;		/* at the prices; less what a victim of another layer loses */
	double cost_ns;
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
	uint16_t even[NDP_MAX_DIMMS];	/* blocks of an expert that is spread */
	bool can_spread;		/* over more than one DIMM */
	double now_ns;
	double link_out_ns[NDP_MAX_DIMMS];	/* from when on a port may be used again */
	double link_in_ns[NDP_MAX_DIMMS];
	double pcie_ns;
	uint64_t gpu_bytes;	/* taken or promised */
	uint64_t dimm_bytes[NDP_MAX_DIMMS];
	uint64_t started[NDP_PLACE_KINDS], bytes[NDP_PLACE_KINDS], failed;
	uint32_t nr_flights;
	uint32_t nr_moves;	/* of those, between DIMMs */
	struct flight flight[NDP_PLACE_MAX_ACTIONS];

	uint16_t *blocks, *target;	/* [layers][experts][nr_dimms] */
	uint8_t *on_gpu, *gpu_target;	/* [layers][experts] */
	uint8_t *busy;	/* [layers][experts]: part of an action on its way */
	uint8_t *moved;	/* [layers][experts]: times between DIMMs */
	float *seen;	/* [layers][experts]: tokens when the layer was last looked at */
	float *worth;	/* [layers][experts]: what a step gains by those in GPU memory */
	float *expected_ns;	/* [layers]: makespan with what was last expected; 0: not known */
	struct place_pause *pause;	/* [layers] */
	double *free_ns;	/* [layers][experts]: from when on it may be moved again */
	double *move_free_ns;	/* and from DIMM to DIMM */
	uint32_t *tokens;	/* [experts]: the expected ones, rounded */
	uint32_t *step;	/* [PLACE_STEPS][experts]: those, and steps that vary around them */
	uint16_t *saved;	/* [experts][nr_dimms] */
	uint32_t *other;	/* [experts]: of another layer */
	float *value;	/* [experts]: what each costs at the prices, not in GPU memory */
	void *work;	/* of the scheduler */
	struct ndp_plan plan;
	struct ndp_loads loads;	/* of the target, expected */
	struct ndp_loads price;	/* of a nanosecond of each resource; they sum to 1 */
	float (*ways)[PLACE_GROUPS][4];	/* [experts]: what each way takes of each, at most 4 */
	uint8_t *nr_ways;	/* [experts] */
	float group[PLACE_GROUPS];	/* their prices */
	uint64_t random;
	uint32_t runs;	/* placements scheduled in this decision */
	bool must_wait;	/* a link or PCIe was too busy for something */
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

/* The target of a layer with the expected tokens. */
static inline struct ndp_layer place_layer(const struct ndp_placer *p, uint32_t layer)
{
	return (struct ndp_layer){
		.host = &p->host, .shape = &p->shape, .charges = p->options.charges,
		.tokens = p->tokens, .blocks = place_row(p, p->target, layer, 0),
		.on_gpu = p->gpu_target + place_cell(p, layer, 0),
	};
}

static inline uint32_t place_whole(double tokens)
{
	return tokens > 0 ? (uint32_t)(tokens < 1e9 ? tokens + 0.5 : 1e9) : 0;
}

/* Neither on its way nor just moved. */
static inline bool place_rested(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	const size_t cell = place_cell(p, layer, expert);

	return !p->busy[cell] && p->free_ns[cell] <= p->now_ns;
}

static inline bool place_may_move(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	return place_rested(p, layer, expert) &&
	       p->move_free_ns[place_cell(p, layer, expert)] <= p->now_ns;
}

/* How long the copies of a proposal take; HUGE_VAL: something forbids it now. */
double ndpi_place_copy_ns(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal);

/* Applies a proposal to the target, or takes it back with what it returned in @undo. */
void ndpi_place_try(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		    struct proposal *undo);

/*
 * Makespans of the target in p->step, and p->loads.  False: it cannot be computed, or
 * the first (with what is expected) is above @most_ns.
 */
bool ndpi_place_schedule(struct ndp_placer *p, uint32_t layer, double most_ns,
			 double makespan_ns[PLACE_STEPS]);

/* The makespan of any layer's target with what was last expected of it. */
double ndpi_place_expected(struct ndp_placer *p, uint32_t layer);

/* Starts a proposal that ndpi_place_copy_ns() allowed. */
void ndpi_place_start(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		      double gain_ns, double cost_ns, struct ndp_place_action *action);

/* ---- engine_value.c --------------------------------------------------------- */

/* p->price for the layer's target, by p->loads. */
void ndpi_place_prices(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules);

/* An expert is about to take @to instead of @from. */
void ndpi_place_shift(struct ndp_placer *p, const struct ndp_loads *from,
		      const struct ndp_loads *to);

/* The rules of a layer none of whose experts are in GPU memory; @layer stays in use. */
void ndpi_place_rules(const struct ndp_placer *p, struct ndp_layer *layer,
		      struct ndpi_rules *rules);

/*
 * What an expert costs whose blocks lie as in @row and that is not in GPU memory, in
 * the domain where it costs least, and what it takes there (@loads may be NULL).
 */
double ndpi_place_value(const struct ndp_placer *p, const struct ndpi_rules *rules, uint32_t expert,
			const uint16_t *row, struct ndp_loads *loads);
/* The same in GPU memory. */
double ndpi_place_gpu_value(const struct ndp_placer *p, uint32_t expert, struct ndp_loads *loads);

/* What each domain that can compute an expert in one DIMM takes: here of DIMM 0. */
struct place_ways {
	uint32_t nr;
	struct ndp_loads loads[NDP_DOMAINS];
};

void ndpi_place_ways(const struct ndp_placer *p, const struct ndpi_rules *rules, uint32_t expert,
		     const uint16_t *row, struct place_ways *ways);
/* What it costs in each DIMM. */
void ndpi_place_local_values(const struct ndp_placer *p, const struct place_ways *ways,
			     double cost[NDP_MAX_DIMMS]);

/* What the copies of a proposal take from the layers they run beside, at the prices. */
double ndpi_place_price_of_copy(const struct ndp_placer *p, uint32_t layer,
				const struct proposal *proposal);

#endif
