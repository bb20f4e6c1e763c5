/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * protocol.h - what ndp-reference reads and answers.
 *
 * Text, so that it can be kept and read. A question is
 *
 *   rate NAME GFLOPS GBPS OVERHEAD_NS POINTS [TOKENS GFLOPS]...   NAME: gpu, cpu, dimm
 *   host PCIE_GBPS CHANNEL_GBPS STAGING_GBPS CHANNELS DIMMS
 *   shape EXPERTS TOP_K HIDDEN INTERMEDIATE EXPERT_BYTES
 *   charges BITS
 *   expert NUMBER TOKENS ON_GPU BLOCKS...                         blocks on each DIMM
 *   solve KNOWN_NS LIMIT_MS                                       LIMIT_MS 0: only the fluid bound
 *
 * with the rates, host, shape and charges where they change, and the experts
 * that have tokens. The answer is one line:
 *
 *   fluid NS [whole BEST_NS BOUND_NS PROVEN]
 *
 * All times are modelled.
 */
#ifndef REFERENCE_PROTOCOL_H
#define REFERENCE_PROTOCOL_H

#include <ndp/sched.h>
#include <stdio.h>

/* Everything of a question. -EIO: it could not be written. */
int reference_write(FILE *f, const struct ndp_layer *layer, double known_ns, int limit_ms);

struct reference_answer {
	double fluid_ns;
	double whole_ns;		/* 0: not asked for */
	double whole_bound_ns;
	int proven;
};

/* -EIO: the program ended or said something else. */
int reference_read(FILE *f, struct reference_answer *a);

#endif
