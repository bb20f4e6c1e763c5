/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * domains.h - what computes the experts: the DIMMs, CPU threads and GPU that the
 * command line names, and what the scheduler is told of them.
 */
#ifndef NDP_RUN_DOMAINS_H
#define NDP_RUN_DOMAINS_H

#include "options.h"

#include <ndp/ndp.h>
#include <ndp/moe.h>

struct domains {
	uint32_t mask;		/* that compute: bits of enum ndp_domain */
	struct ndp_device *dev;	/* NULL: weights in host memory */
	struct ndp_device_info device;
	struct ndp_cpu *cpu;	/* always: routing and attention's neighbours use it */
	struct ndp_cpu_info cpu_info;
	struct ndp_gpu *gpu;	/* NULL: none, or unused */
	bool gpu_unused;	/* asked for, with a budget of 0 */
	struct ndp_host_profile host;
	bool has_host;		/* else the library guesses */
};

/* Opens DIMMs and CPU; reads the host profile. */
int domains_open(struct domains *d, const struct options *o, struct ndp_error *err);

/*
 * Opens the GPU for the experts of @info.  A budget that the GPU's memory or not one
 * expert fits in is refused, with the arithmetic, before anything is loaded.
 */
int domains_open_gpu(struct domains *d, const struct options *o,
		     const struct ndp_model_info *info, struct ndp_error *err);

void domains_close(struct domains *d);

/* "gpu", "cpu", "ndp" */
extern const char *const domain_names[NDP_DOMAINS];

#endif
