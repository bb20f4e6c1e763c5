/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cpu-pool.h - threads that share pieces of work, by NUMA node.
 *
 * A piece of work is a list of tasks for each node, taken in ascending order by whoever
 * is free: threads of the node first, then those that have nothing left on theirs.  The
 * thread that brings the work takes part, and several may bring some at once.
 */
#ifndef NDP_CPU_POOL_H
#define NDP_CPU_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ndp_error;

enum { NDPI_MAX_NODES = 16 };

struct ndpi_pool;

/* What a thread brings to a task. */
struct ndpi_thread {
	uint32_t index;		/* 0: whoever brought the work */
	uint32_t node;
	void (*poll)(void *arg);	/* NULL: nobody wants to be called */
	void *poll_arg;
};

struct ndpi_work {
	void (*run)(struct ndpi_work *work, uint32_t node, uint32_t task,
		    struct ndpi_thread *thread);
	struct {
		uint32_t tasks;
		_Alignas(64) atomic_uint next;
	} list[NDPI_MAX_NODES];
	/* the pool's */
	struct ndpi_work *later;
	_Alignas(64) atomic_uint left;
	uint32_t users;
};

/*
 * @threads with the caller's; 0: one for each CPU that the process may use.  @nodes 0:
 * as the machine has; else as many are made up (tests).
 */
int ndpi_pool_open(struct ndpi_pool **pool, uint32_t threads, bool pin, uint32_t nodes,
		   struct ndp_error *err);
void ndpi_pool_close(struct ndpi_pool *pool);
uint32_t ndpi_pool_threads(const struct ndpi_pool *pool);
uint32_t ndpi_pool_nodes(const struct ndpi_pool *pool);
/* The list for work on the memory of a NUMA node; -1: unknown. */
uint32_t ndpi_pool_list(const struct ndpi_pool *pool, int node);

/* Does all of @work; its lists are filled in, the rest is set here. */
void ndpi_pool_run(struct ndpi_pool *pool, struct ndpi_work *work, void (*poll)(void *arg),
		   void *poll_arg);
/* Waits for @done to reach @want, which running tasks make it do. */
void ndpi_pool_wait(const atomic_uint *done, uint32_t want, struct ndpi_thread *thread);

#endif
