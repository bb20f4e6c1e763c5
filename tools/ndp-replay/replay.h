/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * replay.h - runs every wanted policy over every layer of every step and sums up
 * what the plans take: all on the same placement, or each on what its own
 * placement engine makes of it.
 *
 * Modelled time throughout: no clock is read.
 */
#ifndef NDP_REPLAY_REPLAY_H
#define NDP_REPLAY_REPLAY_H

#include "mover.h"
#include "options.h"
#include "reference.h"
#include "scores.h"
#include "source.h"
#include "where.h"

#include <ndp/profile.h>

/* Time for which resources are busy; DIMMs and channels on the mean. */
struct busy {
	double gpu_ns, pcie_ns, cpu_ns, channels_ns, dimms_ns;
};

struct policy_result {
	bool wanted;
	bool impossible;	/* the machine lacks what it needs */
	double *makespan_ns;	/* [nr_layers_run] of each layer of each step */
	double *layer_ns;	/* [nr_layers]: sums over the steps */
	double sum_ns;
	double late_ns;		/* mean of the second half of the layers */
	double sampled_ns;	/* of the layers in nr_sampled */
	double fluid_ns;	/* of those, sum of ndp_fluid_bound() */
	double p50_ns, p99_ns;
	struct busy busy;
	uint64_t commands[NDP_DOMAINS];
};

struct replay {
	struct options options;
	struct ndp_host_profile host;
	struct ndp_model_profile model;
	struct source *source;
	uint64_t gpu_slots;	/* experts that GPU memory holds; 0: the GPU is unused */
	struct where where;
	struct mover *mover[NDP_POLICIES];	/* NULL without an engine */
	struct scores scores;

	uint64_t steps;
	uint64_t nr_run;	/* layers of steps that had tokens */
	uint64_t max_run;
	uint64_t selections;
	uint64_t nr_sampled;	/* layers whose bound and ranks were looked at */
	uint64_t sampled_selections;
	uint64_t *layer_run;	/* [nr_layers]: steps in which it had tokens */
	double *rank_share;	/* [experts]: selections by rank in the layer, falling; sums to 1 */
	struct policy_result policy[NDP_POLICIES];
	enum ndp_policy lead;	/* whose placement is looked at when there are several */
	int best_baseline;	/* of gpu, gpu-cpu, gpu-ndp: enum ndp_policy; -1: none was run */
	struct reference reference;

	/* The layer that the Gantt chart shows: the last that ran. */
	uint32_t shown_layer;
	uint32_t *shown_tokens;
	uint16_t *shown_blocks;
	uint8_t *shown_on_gpu;
};

/* Loads profiles and opens the source. */
int replay_open(struct replay *r, const struct options *o, struct ndp_error *err);
int replay_run(struct replay *r, struct ndp_error *err);
void replay_close(struct replay *r);

/* Time that layers of a policy waited for copies, as a share of all; 0 without an engine. */
static inline double replay_waited(const struct replay *r, enum ndp_policy policy)
{
	const struct mover *m = r->mover[policy];

	return m && m->now_ns > 0 ? m->moves.delay_ns / m->now_ns : 0;
}

/* The layer that is shown, ready for ndp_schedule(). */
struct ndp_layer replay_shown(const struct replay *r);

static inline double replay_mean_ns(const struct replay *r, const struct policy_result *p)
{
	return r->nr_run ? p->sum_ns / r->nr_run : 0;
}

#endif
