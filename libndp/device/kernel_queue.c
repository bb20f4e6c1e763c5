/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kernel_queue.c - commands through io_uring.
 *
 * One io_uring_enter() submits a batch and waits.  The ring is set up for a
 * single thread that runs its completions itself when it waits; kernels that
 * know less are asked for less.  A ring that cannot be had is an error with its
 * cause: commands are never executed another way behind the caller's back.
 */
#include "kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_FLAGS (IORING_SETUP_SQE128 | IORING_SETUP_CQE32 | IORING_SETUP_SUBMIT_ALL)
#define COOPERATIVE (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#define DEFERRED									\
	(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG)

_Static_assert(sizeof(struct moendp_cmd) == 80, "fits an SQE");
_Static_assert(sizeof(struct moendp_cmd_migrate) == 80, "fits an SQE");
_Static_assert(NDPI_QUEUE_RANGES == MOENDP_MAX_INLINE_RANGES, "fits an SQE");

static int explain_no_ring(int r, struct ndp_error *err)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int disabled = 0;

	if (f) {
		if (fscanf(f, "%d", &disabled) != 1)
			disabled = 0;
		fclose(f);
	}
	switch (r) {
	case -EPERM:
		if (disabled)
			return ndpi_fail(err, r,
					 "io_uring is switched off by sysctl kernel.io_uring_disabled=%d: queues need it (set it to 0, or with 1 join the group of kernel.io_uring_group); ndp_run() works without",
					 disabled);
		return ndpi_fail(err, r,
				 "io_uring_setup() is not permitted here, most likely by a seccomp filter (containers often have one): allow the io_uring_* system calls; ndp_run() works without");
	case -ENOSYS:
		return ndpi_fail(err, r,
				 "this kernel has no io_uring, or a seccomp filter hides it: queues need it; ndp_run() works without");
	case -EINVAL:
		return ndpi_fail(err, r,
				 "io_uring of this kernel has no SQE128 and CQE32 rings (Linux 5.19 or later is wanted); ndp_run() works without");
	case -ENOMEM:
		return ndpi_fail(
			err, r,
			"no memory for an io_uring ring (ulimit -l may be too low); ndp_run() works without");
	default:
		return ndpi_fail(err, r, "io_uring_setup(): %s; queues need io_uring",
				 strerror(-r));
	}
}

int ndpi_kernel_ring(struct io_uring *ring, unsigned int depth, struct ndp_error *err)
{
	static const unsigned int wishes[] = { DEFERRED, COOPERATIVE, 0 };
	int r = -EINVAL;

	for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]) && r == -EINVAL; i++)
		r = io_uring_queue_init(depth, ring, RING_FLAGS | wishes[i]);
	return r < 0 ? explain_no_ring(r, err) : 0;
}

struct ndp_queue *ndpi_kernel_queue_alloc(void)
{
	struct kernel_queue *q = calloc(1, sizeof(*q));

	return q ? &q->base : NULL;
}

int ndpi_kernel_queue_create(struct ndp_queue *base, struct ndp_error *err)
{
	return ndpi_kernel_ring(&((struct kernel_queue *)base)->ring, base->depth, err);
}

void ndpi_kernel_queue_destroy(struct ndp_queue *base)
{
	io_uring_queue_exit(&((struct kernel_queue *)base)->ring);
}

/* The front end has seen to it that @p fits. */
static struct moendp_cmd_migrate migrate_command(const struct ndpi_request *req)
{
	const struct ndp_placement *p = req->cmd.to;
	struct moendp_cmd_migrate m = {
		.handle = ((struct kernel_weights *)req->cmd.weights)->handle,
	};

	if (p->nr_ranges > NDPI_QUEUE_RANGES) {
		m.dimm_mask = ndp_placement_mask(p);
		return m;
	}
	m.nr_ranges = p->nr_ranges;
	memcpy(m.ranges, p->ranges, p->nr_ranges * sizeof(m.ranges[0]));
	return m;
}

int ndpi_kernel_queue_push(struct ndp_queue *base, struct ndpi_request *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&((struct kernel_queue *)base)->ring);

	if (!sqe)
		return -EAGAIN;
	memset(sqe, 0, 2 * sizeof(*sqe)); /* SQE128 */
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = kernel_fd(base->dev);
	sqe->user_data = (uintptr_t)req;
	if (req->cmd.op == NDP_OP_MIGRATE_WEIGHTS) {
		struct moendp_cmd_migrate move = migrate_command(req);

		sqe->cmd_op = MOENDP_CMD_MIGRATE;
		memcpy(sqe->cmd, &move, sizeof(move));
	} else {
		struct moendp_cmd cmd;

		sqe->cmd_op = ndpi_kernel_command(req, &cmd);
		memcpy(sqe->cmd, &cmd, sizeof(cmd));
	}
	return 0;
}

/*
 * Submits everything; waits for @min completions in the same system call.  When
 * a signal ends the wait, io_uring_enter() says how many it submitted if it
 * submitted any; what tells is that completions are missing.
 */
static int submit(struct kernel_queue *q, unsigned int min)
{
	do {
		int r = io_uring_submit_and_wait(&q->ring, min);

		if (r < 0)
			return r;
		if (!r && q->base.batch)
			return -EAGAIN;
		ndpi_queue_submitted(&q->base, (unsigned int)r);
	} while (q->base.batch);
	return io_uring_cq_ready(&q->ring) < min ? -EINTR : 0;
}

int ndpi_kernel_queue_submit(struct ndp_queue *base)
{
	int r;

	do {
		r = submit((struct kernel_queue *)base, 0);
	} while (r == -EINTR);
	return r;
}

int ndpi_kernel_queue_reap(struct ndp_queue *base, unsigned int min, struct ndpi_list *done)
{
	struct kernel_queue *q = (struct kernel_queue *)base;
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;
	int r = 0;

	if (base->batch || min > io_uring_cq_ready(&q->ring))
		r = submit(q, min);
	else if (!io_uring_cq_ready(&q->ring))
		io_uring_peek_cqe(&q->ring, &cqe); /* runs what waits for this thread */
	io_uring_for_each_cqe(&q->ring, head, cqe) {
		struct ndpi_request *req = (struct ndpi_request *)(uintptr_t)cqe->user_data;

		req->res = cqe->res;
		req->dimm_mask = (uint32_t)(cqe->big_cqe[0] >> 32);
		req->modelled_ns = (uint32_t)cqe->big_cqe[0];
		ndpi_list_add(done, req);
		n++;
	}
	io_uring_cq_advance(&q->ring, n);
	return r;
}
