/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cpu-tasks.h - what cpu.c cuts jobs into and cpu-tasks.c does.
 */
#ifndef NDP_MOE_CPU_TASKS_H
#define NDP_MOE_CPU_TASKS_H

#include "cpu-kernels.h"
#include "cpu-pool.h"

#include <stddef.h>
#include <stdint.h>

/* A job, or as many of its tokens as make a batch. */
struct part {
	const struct ndp_cpu_job *job;
	const struct ndpi_cpu_kernels *kernels;	/* for as many tokens */
	const uint8_t *blocks;	/* the range's first */
	size_t block_bytes;
	uint32_t nr_blocks;
	uint32_t first_token;
	uint32_t tokens;
	uint32_t tiles;		/* of tokens */
	uint32_t h_in, h_out;	/* padded */
	uint32_t outs;		/* tiles of outputs of a task */
	uint32_t threads;	/* that take tasks of its list */
	uint32_t list;
	uint8_t *x, *h;		/* packed */
	atomic_uint packed;	/* tasks that are done */
	atomic_uint projected;
};

enum kind { PACK, PROJECT, DOWN, KINDS };

/* Successive tasks of a list. */
struct run {
	struct part *part;
	enum kind kind;
	uint32_t first;
};

struct call {
	struct ndpi_work work;
	struct {
		struct run *runs;
		uint32_t n;
	} list[NDPI_MAX_NODES];
	uint8_t *scratch;	/* of thread 0 */
	size_t scratch_bytes;	/* of each thread */
};

static inline size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static inline uint32_t min_u(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* One task of a struct call; struct ndpi_work's run. */
void ndpi_cpu_run_task(struct ndpi_work *work, uint32_t list, uint32_t task,
		       struct ndpi_thread *thread);

#endif
