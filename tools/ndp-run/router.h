/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * router.h - which experts a token goes to.
 */
#ifndef NDP_RUN_ROUTER_H
#define NDP_RUN_ROUTER_H

#include <stdint.h>

/*
 * Mixtral's rule: softmax over all @experts logits, the @k largest in descending
 * order (the lower id first among equals), their weights scaled to sum 1.
 * @logits is used up.  @k is at most @experts.
 */
void route(float *logits, uint32_t experts, uint32_t k, uint32_t *ids, float *weights);

#endif
