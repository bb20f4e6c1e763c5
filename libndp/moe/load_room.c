// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * load_room.c - whether a model fits, before a byte of it is loaded.
 *
 * Of DIMMs each is asked, as the placement fills them; of host memory the kernel.  What
 * cannot be known here (others allocate meanwhile, memory is fragmented) is an ordinary
 * failure later.
 */
#include "load-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static int dimm_room(const struct ndp_moe *moe, const struct load_item *items, uint32_t n,
		     struct ndp_error *err)
{
	const struct ndp_moe_options *o = &moe->options;
	uint64_t wanted[NDP_MAX_DIMMS] = { 0 };
	struct ndp_device_info info;
	uint64_t total = 0, left;
	int r;

	r = ndp_device_info(o->device, &info);
	if (r < 0)
		return ndpi_fail(err, r, "the device cannot be asked for its DIMMs: %s",
				 strerror(-r));
	for (uint32_t i = 0; i < n; i++) {
		const struct ndp_expert_shape *s = load_shape(&moe->info, items[i].expert);
		struct ndp_placement p;

		r = ndp_placement_policy(&p, o->placement, i, ndp_expert_blocks(s), info.dimm_mask,
					 err);
		if (r < 0)
			return r;
		for (uint32_t k = 0; k < p.nr_ranges; k++)
			wanted[p.ranges[k].dimm] += p.ranges[k].nr_blocks *
						    (uint64_t)ndp_expert_block_bytes(s);
	}
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_dimm_info dimm;

		if (!wanted[d])
			continue;
		total += wanted[d];
		r = ndp_dimm_info(o->device, d, &dimm);
		if (r < 0)
			return ndpi_fail(err, r, "DIMM %u cannot be asked for its memory: %s", d,
					 strerror(-r));
		if (wanted[d] > dimm.free_bytes)
			return ndpi_fail(err, -ENOSPC,
					 "DIMM %u would have to hold %" PRIu64 " bytes of "
					 "experts (placement %s) and has %" PRIu64 " free, %" PRIu64
					 " too few: use another placement, or more or larger "
					 "DIMMs",
					 d, wanted[d], o->placement, dimm.free_bytes,
					 wanted[d] - dimm.free_bytes);
	}
	left = !info.quota_bytes ? UINT64_MAX :
	       info.quota_bytes > info.used_bytes ? info.quota_bytes - info.used_bytes : 0;
	if (total > left)
		return ndpi_fail(err, -EDQUOT,
				 "the experts need %" PRIu64 " bytes and %" PRIu64 " are "
				 "left of this user's quota of %" PRIu64 ": raise it or end other "
				 "programs",
				 total, left, info.quota_bytes);
	return 0;
}

static int host_room(const struct ndp_moe *moe, const struct load_item *items, uint32_t n,
		     struct ndp_error *err)
{
	uint64_t available = ndpi_host_available();
	uint64_t total = 0;

	for (uint32_t i = 0; i < n; i++)
		total += load_bytes(&moe->info, items[i].expert);
	if (total <= available)
		return 0;
	return ndpi_fail(err, -ENOSPC,
			 "%u experts of %zu bytes each need %" PRIu64 " bytes of host "
			 "memory with the shared ones, %" PRIu64 " are available: %" PRIu64
			 " too few",
			 n, load_bytes(&moe->info, 0), total, available, total - available);
}

int ndpi_load_room(const struct ndp_moe *moe, const struct load_item *items, uint32_t n,
		   struct ndp_error *err)
{
	return moe->options.device ? dimm_room(moe, items, n, err) :
				     host_room(moe, items, n, err);
}
