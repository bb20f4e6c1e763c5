/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * stat.h - counters of all DIMMs of some devices, before and after.
 */
#ifndef NDPCTL_STAT_H
#define NDPCTL_STAT_H

#include "ndpctl.h"

struct stat_dimm {
	char device[64];
	uint32_t dimm;
	uint32_t generation, resets;
	struct ndp_counters compute, link;
};

struct stat_shot {
	uint64_t at_ns;
	uint32_t nr_dimms;
	struct stat_dimm *dimms;
};

int stat_take(struct stat_shot *s, struct ndp_device *const *devices, uint32_t nr_devices,
	      struct ndp_error *err);
/*
 * @after becomes what happened since @before: a DIMM that was not there before, or whose
 * counters went back (it was plugged anew), counts from zero; one that is gone is left out.
 */
void stat_subtract(struct stat_shot *after, const struct stat_shot *before);
json_t *stat_json(const struct stat_shot *difference, double wall_s, int status);
void stat_print(FILE *f, const struct stat_shot *difference, double wall_s);

#endif
