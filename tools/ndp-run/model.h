/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * model.h - a Mixtral in memory: attention, norms, embedding and output widened to
 * FP32 for the host; experts and routers are the library's (ndp/moe.h).
 */
#ifndef NDP_RUN_MODEL_H
#define NDP_RUN_MODEL_H

#include "config.h"

#include <ndp/moe.h>

struct model_layer {
	float *input_norm; /* [hidden] */
	float *q; /* [heads * head_dim][hidden] */
	float *k; /* [kv_heads * head_dim][hidden] */
	float *v;
	float *o; /* [hidden][heads * head_dim] */
	float *post_norm; /* [hidden] */
};

struct model {
	struct model_config config;
	struct ndp_model_info info;
	struct ndp_moe *moe; /* NULL until model_load_experts() */
	float *embedding; /* [vocab][hidden] */
	float *final_norm; /* [hidden] */
	float *output; /* [vocab][hidden], may be the embedding */
	struct model_layer *layers;
	struct ndp_model *files; /* open until the experts are loaded */
};

/*
 * Reads the folder @dir (@config was read from it) but for the experts, of which
 * it says what there is.
 */
int model_open(struct model **m, const struct model_config *config, const char *dir,
	       struct ndp_error *err);
int model_load_experts(struct model *m, const struct ndp_moe_options *options,
		       struct ndp_error *err);
void model_free(struct model *m);

#endif
