/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * load-internal.h - what loading (load.c) asks before it begins (load_room.c).
 */
#ifndef NDP_LOAD_INTERNAL_H
#define NDP_LOAD_INTERNAL_H

#include "moe-internal.h"

/* An expert to be loaded: its place in the order of layers, shared ones last in theirs. */
struct load_item {
	uint32_t layer;
	uint32_t expert;	/* NDP_EXPERT_SHARED */
};

static inline const struct ndp_expert_shape *load_shape(const struct ndp_model_info *info,
							uint32_t expert)
{
	return expert == NDP_EXPERT_SHARED ? &info->shared : &info->routed;
}

static inline size_t load_bytes(const struct ndp_model_info *info, uint32_t expert)
{
	const struct ndp_expert_shape *s = load_shape(info, expert);

	return ndp_expert_blocks(s) * ndp_expert_block_bytes(s);
}

/* 0, or -ENOSPC, -EDQUOT, -ENOMEM with what is wanted and what is there. */
int ndpi_load_room(const struct ndp_moe *moe, const struct load_item *items, uint32_t n,
		   struct ndp_error *err);

/* What /proc says a program can get without swapping; UINT64_MAX: it does not say. */
uint64_t ndpi_host_available(void);

#endif
