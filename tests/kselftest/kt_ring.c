// SPDX-License-Identifier: GPL-2.0-or-later
/* kt_ring.c - io_uring commands; see kt_ring.h. */
#include "kt_ring.h"

#include <errno.h>
#include <string.h>

#define ONE_TIMEOUT_MS	20000

_Static_assert(sizeof(struct moendp_cmd) == 80, "payload of an SQE128");
_Static_assert(sizeof(struct moendp_cmd_migrate) == 80, "payload of an SQE128");

int kt_ring_init(struct kt_ring *r, unsigned int entries, unsigned int flags)
{
	memset(r, 0, sizeof(*r));
	return io_uring_queue_init(entries, &r->ring, flags);
}

void kt_ring_exit(struct kt_ring *r)
{
	io_uring_queue_exit(&r->ring);
}

static int queue(struct kt_ring *r, int fd, uint32_t op, const void *payload, uint64_t user_data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);

	if (!sqe)
		return -EBUSY;
	r->last = sqe;
	/* A ring of 64-byte entries has no room for the payload: send what fits. */
	memset(sqe, 0, r->ring.flags & IORING_SETUP_SQE128 ? 128 : 64);
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = fd;
	sqe->cmd_op = op;
	sqe->user_data = user_data;
	memcpy(sqe->cmd, payload, r->ring.flags & IORING_SETUP_SQE128 ? 80 : 16);
	return 0;
}

int kt_ring_cmd(struct kt_ring *r, int fd, uint32_t op, const struct moendp_cmd *cmd,
		uint64_t user_data)
{
	return queue(r, fd, op, cmd, user_data);
}

int kt_ring_migrate(struct kt_ring *r, int fd, const struct moendp_cmd_migrate *cmd,
		    uint64_t user_data)
{
	return queue(r, fd, MOENDP_CMD_MIGRATE, cmd, user_data);
}

int kt_ring_submit(struct kt_ring *r)
{
	return io_uring_submit(&r->ring);
}

int kt_ring_wait(struct kt_ring *r, struct kt_cqe *out, unsigned int timeout_ms)
{
	struct __kernel_timespec ts = { timeout_ms / 1000, timeout_ms % 1000 * 1000000LL };
	struct io_uring_cqe *cqe;
	int ret;

	do {
		ret = io_uring_wait_cqe_timeout(&r->ring, &cqe, &ts);
	} while (ret == -EINTR);
	if (ret < 0)
		return ret;
	memset(out, 0, sizeof(*out));
	out->user_data = cqe->user_data;
	out->res = cqe->res;
	if (r->ring.flags & IORING_SETUP_CQE32) {
		out->dimm_mask = cqe->big_cqe[0] >> 32;
		out->modelled_ns = cqe->big_cqe[0];
		out->extra2 = cqe->big_cqe[1];
	}
	io_uring_cqe_seen(&r->ring, cqe);
	return 0;
}

int kt_ring_one(struct kt_ring *r, int fd, uint32_t op, const struct moendp_cmd *cmd,
		struct kt_cqe *cqe)
{
	int ret = queue(r, fd, op, cmd, 1);

	if (!ret)
		ret = kt_ring_submit(r);
	if (ret < 0)
		return ret;
	ret = kt_ring_wait(r, cqe, ONE_TIMEOUT_MS * kt_slow());
	return ret < 0 ? ret : cqe->res;
}
