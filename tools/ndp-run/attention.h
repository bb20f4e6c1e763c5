/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * attention.h - causal attention with grouped key and value heads.
 */
#ifndef NDP_RUN_ATTENTION_H
#define NDP_RUN_ATTENTION_H

#include <stddef.h>

/* Keys and values of one layer, [positions][kv_heads][head_dim] each. */
struct kv_cache {
	float *k;
	float *v;
};

struct attention_shape {
	size_t heads;
	size_t kv_heads; /* divides heads */
	size_t head_dim;
};

/*
 * One token at position @pos, whose own key and value are in the cache already:
 * out [heads][head_dim] from q [heads][head_dim] over positions 0..pos.
 * @scores: room for pos + 1 floats.
 */
void attend(float *out, const float *q, const struct kv_cache *kv, size_t pos,
	    const struct attention_shape *s, float *scores);

#endif
