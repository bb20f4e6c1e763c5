/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kt_ring.h - commands through io_uring, with liburing, as an application would send them.
 */
#ifndef KT_RING_H
#define KT_RING_H

#include <liburing.h>

#include "kt.h"

struct kt_ring {
	struct io_uring ring;
	struct io_uring_sqe *last;	/* the entry that was queued last */
};

struct kt_cqe {
	uint64_t user_data;
	int res;
	uint32_t dimm_mask;
	uint32_t modelled_ns;
	uint64_t extra2;
};

#define KT_RING_FLAGS	(IORING_SETUP_SQE128 | IORING_SETUP_CQE32)

/* -errno of io_uring_setup(); the flags are used as they are. */
int kt_ring_init(struct kt_ring *r, unsigned int entries, unsigned int flags);
void kt_ring_exit(struct kt_ring *r);
/* Queues, does not submit; -EBUSY when the ring is full. */
int kt_ring_cmd(struct kt_ring *r, int fd, uint32_t op, const struct moendp_cmd *cmd,
		uint64_t user_data);
int kt_ring_migrate(struct kt_ring *r, int fd, const struct moendp_cmd_migrate *cmd,
		    uint64_t user_data);
int kt_ring_submit(struct kt_ring *r);
/* One completion; -ETIME when none comes in that time. */
int kt_ring_wait(struct kt_ring *r, struct kt_cqe *cqe, unsigned int timeout_ms);
/* Queue one, submit, wait for it: its res, or a negative errno of the ring. */
int kt_ring_one(struct kt_ring *r, int fd, uint32_t op, const struct moendp_cmd *cmd,
		struct kt_cqe *cqe);

#endif /* KT_RING_H */
