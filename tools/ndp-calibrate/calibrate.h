/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * calibrate.h - what ndp-calibrate measures of a host, and how it is written down.
 *
 * All is wall time of this machine.  For DIMMs that are emulated that is the time of
 * the emulation, not the modelled time of the hardware; the profile says so.
 */
#ifndef NDP_CALIBRATE_H
#define NDP_CALIBRATE_H

#include "../ndp-bench/bench.h"

#include <ndp/ndp.h>
#include <ndp/cpu.h>
#include <ndp/gpu.h>
#include <stdio.h>

enum { MAX_SHAPES = 4 };

struct options {
	bool cpu, ndp, gpu;
	bool alone;		/* each domain by itself, not while the other computes */
	const char *device;
	const char *gpu_spec;
	uint32_t threads;	/* of the CPU domain; 0: all CPUs */
	uint32_t hidden[MAX_SHAPES], neurons[MAX_SHAPES];
	unsigned int nr_shapes;
	uint32_t tokens[NDP_MAX_RATE_POINTS];
	unsigned int nr_tokens;
	double seconds;		/* for a point */
	const char *name;
	const char *output;	/* NULL: standard output */
	bool quiet;
};

/* FFNs by tokens of an expert. */
struct curve {
	unsigned int n;
	uint32_t tokens[NDP_MAX_RATE_POINTS];
	double gflops[NDP_MAX_RATE_POINTS];	/* geometric mean over shapes */
	double spread[NDP_MAX_RATE_POINTS];	/* fastest over slowest shape */
	double gbps;		/* weights read, at most over all points */
	double overhead_ns;	/* of a command, many at once */
};

struct measured {
	double read_gbps, copy_gbps;	/* by the CPU domain's threads */
	double peak_gflops;		/* of these threads, in registers */
	uint32_t threads;
	uint64_t memory_bytes;
	unsigned int points;
	unsigned int disturbed;		/* of them: threads got less CPU time than they wanted */

	bool has_cpu;
	struct curve cpu;
	const char *isa;

	bool has_ndp;
	struct curve ndp;		/* of one DIMM */
	uint32_t nr_dimms;
	uint64_t dimm_bytes;
	double dimm_peak_gflops;	/* of one thread; 0: not known */
	double link_gbps;
	double link_latency_ns;
	char device[64];

	bool has_gpu;
	struct curve gpu_curve;
	double upload_gbps;
	uint64_t gpu_bytes;
	bool gpu_is_cpu;
	char gpu_name[128];
};

/* Progress for people, on stderr. */
void say(const struct options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The curves of CPU and DIMMs: while both compute, unless one is missing or o->alone. */
void measure_curves(struct measured *m, const struct options *o);
void measure_gpu(struct measured *m, const struct options *o);

/* The profile as JSON, format moendp-host-1. */
void write_profile(FILE *f, const struct measured *m, const struct options *o, int argc,
		   char **argv);

#endif
