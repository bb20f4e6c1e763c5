/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * model.h - a Mixtral in memory: the host's weights widened to FP32, every expert
 * packed on the DIMMs.
 */
#ifndef NDP_RUN_MODEL_H
#define NDP_RUN_MODEL_H

#include "config.h"
#include "moe.h"

struct model_layer {
	float *input_norm; /* [hidden] */
	float *q; /* [heads * head_dim][hidden] */
	float *k; /* [kv_heads * head_dim][hidden] */
	float *v;
	float *o; /* [hidden][heads * head_dim] */
	float *post_norm; /* [hidden] */
	float *router; /* [experts][hidden] */
	struct moe_expert *experts;
};

struct model {
	struct model_config config;
	struct ndp_device *dev;
	float *embedding; /* [vocab][hidden] */
	float *final_norm; /* [hidden] */
	float *output; /* [vocab][hidden], may be the embedding */
	struct model_layer *layers;
	uint64_t expert_bytes; /* packed, all experts together */
};

/* Called as experts arrive on the DIMMs; a return below zero ends the loading. */
typedef int (*model_progress)(uint32_t done, uint32_t total, struct ndp_error *err);

/*
 * Loads the folder @dir onto @dev, experts placed by @policy (see
 * ndp_placement_policy(); expert e of layer l is number l * experts + e).  Room
 * on every DIMM is checked before anything is loaded.
 */
int model_load(struct model **m, struct ndp_device *dev, const char *dir, const char *policy,
	       model_progress progress, struct ndp_error *err);
void model_free(struct model *m);

#endif
