/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndpd_run.h - an ndpd of a bench's own, in a folder of its own, and a model on an
 * in-process device for it to place.
 */
#ifndef NDP_BENCH_NDPD_RUN_H
#define NDP_BENCH_NDPD_RUN_H

#include <ndp/ndp.h>
#include <stdbool.h>
#include <sys/types.h>

struct ndpd_run {
	char dir[64];
	char socket[96];
	bool record;		/* into recording */
	char recording[96];
	char log[96];
	char program[4096];
	pid_t pid;
};

/* Ends the program on errors. */
void ndpd_prepare(struct ndpd_run *n, const char *config);
void ndpd_start(struct ndpd_run *n);
/* Waits for its end; returns the wait status. */
int ndpd_stop(struct ndpd_run *n, int signal);
void ndpd_clean(struct ndpd_run *n);
/* Nanoseconds of CPU time that it has used. */
uint64_t ndpd_cpu_ns(const struct ndpd_run *n);
/* Descriptors it has open, and pieces of shared memory it has mapped, when neither changes any more. */
void ndpd_holds(const struct ndpd_run *n, uint32_t *fds, uint32_t *maps);

/* Layers of equal experts on an in-process device; numbers are such that all sums are exact. */
struct bench_model {
	struct ndp_device *dev;
	struct ndp_expert_shape shape;
	uint32_t layers, experts, dimms;
	struct ndp_weights **weights;	/* [layers][experts] */
};

/* Each expert on one DIMM, in turn from @first on. */
void bench_model_load(struct bench_model *m, const char *device, uint32_t layers, uint32_t experts,
		      uint32_t hidden, uint32_t neurons, uint32_t first);
void bench_model_free(struct bench_model *m);
/* A hash of what every expert of @layer computes for one x; bit for bit the same wherever it lies. */
uint64_t bench_model_compute(const struct bench_model *m, uint32_t layer);
uint64_t bench_model_free_bytes(const struct bench_model *m);

#endif
