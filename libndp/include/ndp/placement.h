/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * placement.h - which DIMM holds which blocks of a weight object.
 *
 * Pure functions on plain structs.
 */
#ifndef NDP_PLACEMENT_H
#define NDP_PLACEMENT_H

#include <ndp/error.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NDP_MAX_DIMMS 32
#define NDP_MAX_RANGES 64

/* Consecutive blocks on one DIMM. */
struct ndp_range {
	uint32_t dimm;
	uint32_t nr_blocks;
};

/* Ranges in the order of their blocks; together they hold every block. */
struct ndp_placement {
	uint32_t nr_ranges;
	struct ndp_range ranges[NDP_MAX_RANGES];
};

/* All @nr_blocks on @dimm ("localized"). */
void ndp_placement_local(struct ndp_placement *p, uint32_t nr_blocks, uint32_t dimm);

/*
 * One range on each DIMM of @mask in ascending order, sizes as even as can be,
 * larger ones first; DIMMs that would hold none are left out ("striped" when
 * @mask is the whole domain).  -EINVAL: @mask or @nr_blocks is zero.
 */
int ndp_placement_spread(struct ndp_placement *p, uint32_t nr_blocks, uint32_t mask);

/*
 * The placement that a policy gives to the object number @index of many:
 * "local" (on DIMM index mod count), "striped", "spread:K" (K DIMMs, starting
 * at index mod count), "dimm:D".  @mask is the DIMMs there are.
 */
int ndp_placement_policy(struct ndp_placement *p, const char *policy, uint32_t index,
			 uint32_t nr_blocks, uint32_t mask, struct ndp_error *err);

uint32_t ndp_placement_mask(const struct ndp_placement *p);

/* 0 when @p holds exactly @nr_blocks, all on DIMMs of @allowed. */
int ndp_placement_check(const struct ndp_placement *p, uint32_t nr_blocks, uint32_t allowed,
			struct ndp_error *err);

#ifdef __cplusplus
}
#endif

#endif
