/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * engine.h - runs tokens through the model: attention and norms here, each layer's
 * experts by the library, on whatever domains compute.
 */
#ifndef NDP_RUN_ENGINE_H
#define NDP_RUN_ENGINE_H

#include "model.h"
#include "trace.h"

#include <ndp/attach.h>

/* What all calls of ndp_moe_forward() reported, added up. */
struct expert_stats {
	struct ndp_domain_report domain[NDP_DOMAINS];
	uint64_t passes;	/* of a layer */
	uint64_t wall_ns;
	uint64_t route_wall_ns;
	uint64_t schedule_wall_ns;
	uint64_t reduce_wall_ns;
	double modelled_ns;	/* makespans of the plans */
	uint64_t dimm_modelled_ns;
	uint64_t x_bytes;
	uint64_t y_bytes;
	uint64_t retries;
	bool gpu_lost;
};

struct engine;

/*
 * Room for @positions tokens, at most the model's max_positions.  @trace and @daemon may
 * be NULL; all must outlive the engine.
 */
int engine_create(struct engine **e, struct model *m, uint32_t positions, struct trace *trace,
		  struct ndp_attachment *daemon, struct ndp_error *err);
void engine_free(struct engine *e);

/* Forgets all tokens: the next one is at position 0. */
void engine_reset(struct engine *e);

/*
 * Appends @n tokens (1 or more), many at a time where there are many, and gives
 * the logits [vocab] after the last one; they stay until the next call.  Ends
 * with -EINTR between layers when a signal has arrived.
 */
int engine_feed(struct engine *e, const uint32_t *tokens, uint32_t n, const float **logits,
		struct ndp_error *err);

const struct expert_stats *engine_expert_stats(const struct engine *e);

#endif
