/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * placement.c - building and checking placements.
 *
 * Pure: no device is asked.  DIMMs are named by node id, sets of them by mask.
 */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void ndp_placement_local(struct ndp_placement *p, uint32_t nr_blocks, uint32_t dimm)
{
	p->nr_ranges = 1;
	p->ranges[0] = (struct ndp_range){ .dimm = dimm, .nr_blocks = nr_blocks };
}

int ndp_placement_spread(struct ndp_placement *p, uint32_t nr_blocks, uint32_t mask)
{
	uint32_t dimms = (uint32_t)__builtin_popcount(mask);
	uint32_t n = 0;

	if (!mask || !nr_blocks)
		return -EINVAL;
	for (; mask; mask &= mask - 1, n++) {
		uint32_t share = nr_blocks / dimms + (n < nr_blocks % dimms);

		if (!share)
			break;
		p->ranges[n] = (struct ndp_range){ .dimm = ndpi_lowest(mask), .nr_blocks = share };
	}
	p->nr_ranges = n;
	return 0;
}

/* Bit number @n of @mask, counted from its lowest. */
static uint32_t nth_dimm(uint32_t mask, uint32_t n)
{
	while (n--)
		mask &= mask - 1;
	return ndpi_lowest(mask);
}

/* A decimal number and nothing else. */
static bool parse_number(const char *s, uint32_t *n)
{
	char *end;
	unsigned long v;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	v = strtoul(s, &end, 10);
	if (*end || errno || v > UINT32_MAX)
		return false;
	*n = (uint32_t)v;
	return true;
}

int ndp_placement_policy(struct ndp_placement *p, const char *policy, uint32_t index,
			 uint32_t nr_blocks, uint32_t mask, struct ndp_error *err)
{
	uint32_t count = (uint32_t)__builtin_popcount(mask);
	uint32_t chosen = 0, n;

	ndpi_error_clear(err);
	if (!mask)
		return ndpi_fail(err, -EINVAL, "placement %s: there are no DIMMs", policy);
	if (!nr_blocks)
		return ndpi_fail(err, -EINVAL, "placement %s: the object has no blocks", policy);
	if (!strcmp(policy, "local")) {
		ndp_placement_local(p, nr_blocks, nth_dimm(mask, index % count));
		return 0;
	}
	if (!strcmp(policy, "striped"))
		return ndp_placement_spread(p, nr_blocks, mask);
	if (!strncmp(policy, "spread:", 7)) {
		if (!parse_number(policy + 7, &n) || !n || n > count)
			return ndpi_fail(err, -EINVAL,
					 "placement %s: wanted spread:K with K from 1 to the %u DIMMs there are",
					 policy, count);
		for (uint32_t i = 0; i < n; i++)
			chosen |= 1U << nth_dimm(mask, (index % count + i) % count);
		return ndp_placement_spread(p, nr_blocks, chosen);
	}
	if (!strncmp(policy, "dimm:", 5)) {
		if (!parse_number(policy + 5, &n))
			return ndpi_fail(err, -EINVAL,
					 "placement %s: wanted dimm:D with a node id D", policy);
		if (n >= NDP_MAX_DIMMS || !(mask & 1U << n))
			return ndpi_fail(err, -ENXIO,
					 "placement %s: there is no DIMM %u; the mask of those there are is 0x%" PRIx32,
					 policy, n, mask);
		ndp_placement_local(p, nr_blocks, n);
		return 0;
	}
	return ndpi_fail(err, -EINVAL,
			 "placement \"%s\" is not known: wanted local, striped, spread:K or dimm:D", policy);
}

uint32_t ndp_placement_mask(const struct ndp_placement *p)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < p->nr_ranges && i < NDP_MAX_RANGES; i++)
		if (p->ranges[i].dimm < NDP_MAX_DIMMS)
			mask |= 1U << p->ranges[i].dimm;
	return mask;
}

bool ndpi_placement_fits_queue(const struct ndp_placement *p)
{
	struct ndp_placement even;
	uint32_t blocks = 0;

	if (p->nr_ranges <= NDPI_QUEUE_RANGES)
		return true;
	for (uint32_t i = 0; i < p->nr_ranges; i++)
		blocks += p->ranges[i].nr_blocks;
	return !ndp_placement_spread(&even, blocks, ndp_placement_mask(p)) &&
	       even.nr_ranges == p->nr_ranges &&
	       !memcmp(even.ranges, p->ranges, p->nr_ranges * sizeof(p->ranges[0]));
}

int ndp_placement_check(const struct ndp_placement *p, uint32_t nr_blocks, uint32_t allowed,
			struct ndp_error *err)
{
	uint64_t sum = 0;

	ndpi_error_clear(err);
	if (!p->nr_ranges || p->nr_ranges > NDP_MAX_RANGES)
		return ndpi_fail(err, -EINVAL, "a placement has 1 to %d ranges, not %u",
				 NDP_MAX_RANGES, p->nr_ranges);
	for (uint32_t i = 0; i < p->nr_ranges; i++) {
		const struct ndp_range *r = &p->ranges[i];

		if (!r->nr_blocks)
			return ndpi_fail(err, -EINVAL, "range %u of the placement holds no blocks",
					 i);
		if (r->dimm >= NDP_MAX_DIMMS)
			return ndpi_fail(err, -ENXIO,
					 "range %u of the placement is on DIMM %u; node ids end at %d",
					 i, r->dimm, NDP_MAX_DIMMS - 1);
		sum += r->nr_blocks;
	}
	if (sum != nr_blocks)
		return ndpi_fail(err, -EINVAL,
				 "the placement's ranges hold %" PRIu64 " blocks together, the object has %u",
				 sum, nr_blocks);
	for (uint32_t i = 0; i < p->nr_ranges; i++)
		if (!(allowed & 1U << p->ranges[i].dimm))
			return ndpi_fail(err, -EPERM,
					 "range %u of the placement is on DIMM %u, allowed is the mask 0x%" PRIx32,
					 i, p->ranges[i].dimm, allowed);
	return 0;
}
