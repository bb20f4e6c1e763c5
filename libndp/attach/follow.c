// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * follow.c - a dispatcher's model that ndpd places: its loads are posted after every
 * layer, and its GPU memory follows what ndpd publishes.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

/* @experts of a bit set, in ascending order. */
static uint32_t list_hot(const uint64_t *hot, uint32_t experts, uint32_t *wanted)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < experts; e++)
		if (hot[e / 64] >> e % 64 & 1)
			wanted[n++] = e;
	return n;
}

static int follow(struct ndp_attachment *a, struct ndp_moe *moe, uint32_t layer,
		  struct ndp_error *err)
{
	const uint64_t now = ndp_placement_generation(a) + 1; /* 0 is: never looked */
	uint64_t hot[(NDP_MAX_EXPERTS + 63) / 64];
	uint32_t wanted[NDP_MAX_EXPERTS];
	int r;

	if (__atomic_exchange_n(&a->followed[layer], now, __ATOMIC_RELAXED) == now)
		return 0;
	r = ndp_placement_read(a, layer, hot, NULL);
	if (r < 0)
		return r == -ENODATA ? 0 : r;
	r = ndp_moe_set_hot(moe, layer, wanted, list_hot(hot, a->hello.experts, wanted), err);
	return r < 0 ? r : 0;
}

int ndp_placement_follow(struct ndp_attachment *a, struct ndp_moe *moe,
			 const struct ndp_moe_context *ctx, uint32_t layer, struct ndp_error *err)
{
	struct ndp_model_info info;
	uint32_t counts[NDP_MAX_EXPERTS];
	uint32_t tokens;
	const uint32_t *ids = ndp_moe_last_ids(ctx, &tokens);

	ndp_moe_model_info(moe, &info);
	if (info.router.experts != a->hello.experts || info.layers != a->hello.layers)
		return ndpi_fail(err, -EINVAL, "the model has %u layers of %u experts, it was "
				 "attached as one of %u of %u", info.layers, info.router.experts,
				 a->hello.layers, a->hello.experts);
	if (layer >= a->hello.layers)
		return ndpi_fail(err, -EINVAL, "layer %u of %u", layer, a->hello.layers);
	memset(counts, 0, a->hello.experts * sizeof(*counts));
	for (size_t i = 0; i < (size_t)tokens * info.router.top_k; i++)
		counts[ids[i]]++;
	ndp_placement_post(a, layer, counts); /* a full ring is counted there */
	return a->hello.gpu_bytes ? follow(a, moe, layer, err) : 0;
}
