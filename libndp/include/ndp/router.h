/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * router.h - which experts a token goes to, and with which weights.
 *
 * One description covers the published rules: softmax over all experts, TopK
 * (Mixtral, Qwen, OLMoE, DeepSeek-V2), groups of experts chosen first
 * (DeepSeek-V2: by their best expert, DeepSeek-V3 and GLM-4.5: by their best
 * two), sigmoid scores with a bias that selects only (DeepSeek-V3, GLM-4.5),
 * weights that sum to one or not, a factor on top.
 *
 * Pure functions: no allocation, no I/O, no global state.
 */
#ifndef NDP_ROUTER_H
#define NDP_ROUTER_H

#include <ndp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ndp_scoring {
	NDP_SCORE_SOFTMAX,	/* of all logits */
	NDP_SCORE_SIGMOID,	/* of each logit */
};

enum ndp_group_score {
	NDP_GROUP_MAX,		/* the group's best expert */
	NDP_GROUP_TOP2_SUM,	/* its best two together */
};

struct ndp_router {
	uint32_t experts;	/* 1..65535 */
	uint32_t top_k;		/* 1..experts of the groups kept */
	enum ndp_scoring scoring;
	uint32_t groups;	/* divides experts; 1 (or 0): no groups */
	uint32_t keep_groups;	/* of them, 1..groups */
	enum ndp_group_score group_score;
	bool renormalize;	/* the k weights sum to one, before @scale */
	float scale;		/* of the weights; 1: as they are */
};

/* 0, or -EINVAL with a sentence that names the field. */
int ndp_router_check(const struct ndp_router *r, struct ndp_error *err);

/* Of the memory that ndp_route() works in, aligned for float. */
size_t ndp_route_bytes(const struct ndp_router *r);

/*
 * @logits [tokens][experts]; @bias [experts] is added to the scores for the
 * selection only, of groups as of experts (NULL: none).  Writes ids and weights
 * [tokens][top_k] by falling selection score; of equal ones the lower id comes
 * first.  A NaN is worse than every number.  Weights come from the scores without
 * bias, computed without cancellation: a sum of zero gives equal weights, never NaN.
 */
void ndp_route(const struct ndp_router *r, const float *logits, const float *bias,
	       uint32_t tokens, uint32_t *ids, float *weights, void *work);

#ifdef __cplusplus
}
#endif

#endif
