/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * doctor.h - checks, each with a verdict, what was found, and what to do.
 */
#ifndef NDPCTL_DOCTOR_H
#define NDPCTL_DOCTOR_H

#include "ndpctl.h"

enum verdict { CHECK_OK, CHECK_NOTE, CHECK_PROBLEM, CHECK_VERDICTS };

struct doctor {
	json_t *checks;
	uint32_t count[CHECK_VERDICTS];
	bool numa_unknown;	/* of a DIMM */
};

/* @advice: what to do, "" where that is nothing or in the sentence already. */
void doctor_say(struct doctor *d, enum verdict v, const char *check, const char *advice,
		const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* PCI functions, driver, nodes, DIMMs. */
void doctor_devices(struct doctor *d);
/* The rest: kernel, io_uring, limits, NUMA, OpenCL, ndpd and its configuration. */
void doctor_system(struct doctor *d);

/* One of these, for tests: "6.1.0-18-amd64" */
void doctor_kernel(struct doctor *d, const char *release);

#endif
