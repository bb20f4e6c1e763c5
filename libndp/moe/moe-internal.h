/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * moe-internal.h - a loaded model as loading (load.c) leaves it and running
 * (forward.c and what it uses) finds it.  Nothing here is exported.
 */
#ifndef NDP_MOE_INTERNAL_H
#define NDP_MOE_INTERNAL_H

#include "../error.h"

#include <ndp/moe.h>
#include <pthread.h>

struct ndpi_expert {
	struct ndp_weights *weights;	/* in DIMMs, sealed; NULL: in host memory */
	const void *blocks;	/* packed, contiguous: host memory, or weights' mapping */
	size_t bytes;
	int node;		/* NUMA node of host memory, -1: unknown */
	float *down_bias;	/* [hidden], NULL: none */
	/*
	 * Copy in GPU memory; under the layer's gpu_lock.  Loading leaves it NULL.
	 */
	struct ndp_gpu_weights *gpu;
};

/* One MoE layer; for a dense one everything is NULL. */
struct ndpi_moe_layer {
	struct ndpi_expert *experts;	/* [experts] */
	struct ndpi_expert *shared;	/* NULL: none */
	float *router;		/* [experts][hidden] */
	float *router_bias;	/* [experts] or NULL */
	float *selection;	/* [experts] or NULL */
	float *shared_gate;	/* [hidden] or NULL */
	pthread_mutex_t gpu_lock;
};

struct ndp_moe {
	struct ndp_model_info info;
	struct ndp_moe_options options;	/* host and placement point to copies below, or are NULL */
	struct ndp_host host;
	char placement[64];
	struct ndpi_moe_layer *layers;	/* [info.layers] */
	void *run;		/* forward.c's, made by ndpi_moe_run_init() at the end of loading */
};

/* forward.c: called by ndp_moe_load() when all is in place, and by ndp_moe_free() first. */
int ndpi_moe_run_init(struct ndp_moe *moe, struct ndp_error *err);
void ndpi_moe_run_free(struct ndp_moe *moe);

#endif
