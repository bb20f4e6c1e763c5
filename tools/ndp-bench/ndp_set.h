/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndp_set.h - experts on NDP DIMMs and batches of FFN commands on them, for timing.
 * x lies in the DIMMs, y stays there.
 */
#ifndef NDP_BENCH_NDP_SET_H
#define NDP_BENCH_NDP_SET_H

#include "bench.h"

#include <ndp/ndp.h>

#define NDP_SET_DEPTH 64

/* Experts of one shape, dealt to the DIMMs in turn. */
struct ndp_set {
	struct ndp_device *dev;
	struct ndp_queue *queue;
	struct ndp_io *x, *y;
	struct ndp_weights **weights;
	uint32_t *dimms;
	unsigned int n;
	unsigned int next;
	struct ndp_expert_shape shape;
	size_t ldx, ldy;
	uint32_t max_tokens;
	/* of a run */
	uint32_t tokens;
	unsigned int commands;
	uint32_t only;		/* DIMM; NDP_MAX_DIMMS: all in turn */
	uint64_t modelled_ns;	/* of the last command */
};

/* Ends the program with a sentence when @r is an error. */
void ndp_set_check(int r, const char *what);
/* DIMM number @n, of those in @mask, in turn. */
uint32_t ndp_set_dimm(uint32_t mask, unsigned int n);

/* @n experts, commands of up to @max_tokens, up to @batch (at most NDP_SET_DEPTH) at a time. */
void ndp_set_make(struct ndp_set *s, struct ndp_device *dev, uint32_t hidden, uint32_t neurons,
		  unsigned int n, uint32_t max_tokens, unsigned int batch);
void ndp_set_free(struct ndp_set *s);
/* Pushes s->commands (at most @batch), waits for the last result.  @set: for contenders. */
void ndp_set_run(void *set);

#endif
