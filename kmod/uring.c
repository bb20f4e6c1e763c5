// SPDX-License-Identifier: GPL-2.0-only
/*
 * uring.c - the same commands through io_uring.
 *
 * The 80 bytes are copied once, before anything is looked at: the submission
 * queue is memory that the application may change at any time.  Nothing of
 * `current` is used, it may be a kernel thread.  Completion always goes through
 * task work, where what the request kept alive is dropped.
 */
#include <linux/slab.h>

#include "compat.h"
#include "ndp.h"

static_assert(sizeof(struct moendp_cmd) % sizeof(u64) == 0);

/* In io_uring_cmd.pdu while the command is under way. */
struct ndp_uring_pdu {
	union {
		struct ndp_req *req;
		struct ndp_move *move;
	};
};

static struct ndp_uring_pdu *ndp_uring_pdu(struct io_uring_cmd *ucmd)
{
	BUILD_BUG_ON(sizeof(struct ndp_uring_pdu) > sizeof(ucmd->pdu));
	return (struct ndp_uring_pdu *)ucmd->pdu;
}

static u64 ndp_uring_extra(u32 dimm_mask, u64 modelled_ns)
{
	return (u64)dimm_mask << 32 | min_t(u64, modelled_ns, U32_MAX);
}

static void ndp_uring_copy(void *to, const struct io_uring_cmd *ucmd)
{
	const u64 *from = ndp_uring_payload(ucmd);
	u64 *words = to;
	unsigned int i;

	for (i = 0; i < sizeof(struct moendp_cmd) / sizeof(u64); i++)
		words[i] = READ_ONCE(from[i]);
}

static NDP_URING_TASK_FN(ndp_uring_req_task)
{
	struct io_uring_cmd *cmd = NDP_URING_TASK_CMD;
	struct ndp_req *req = ndp_uring_pdu(cmd)->req;
	int status = req->status;
	u64 extra = 0;

	if (!status)
		extra = ndp_uring_extra(req->dimm_mask,
					ndp_req_modelled_ns(req));
	ndp_req_free(req);
	ndp_uring_cmd_done(cmd, status, extra, NDP_URING_TASK_FLAGS);
}

static void ndp_uring_req_done(struct ndp_req *req)
{
	io_uring_cmd_complete_in_task(req->ucmd, ndp_uring_req_task);
}

static int ndp_uring_submit(struct ndp_file *file, struct io_uring_cmd *ucmd,
			    bool nonblock, u64 *extra)
{
	struct moendp_cmd cmd;
	struct ndp_req *req;
	u32 dimm_mask;
	int r;

	ndp_uring_copy(&cmd, ucmd);
	r = ndp_cmd_prepare(file, ucmd->cmd_op, &cmd, nonblock, &req,
			    &dimm_mask);
	*extra = ndp_uring_extra(dimm_mask, 0);
	if (!req)
		return r;
	req->ucmd = ucmd;
	req->done = ndp_uring_req_done;
	ndp_uring_pdu(ucmd)->req = req;
	ndp_req_submit(req);
	return -EIOCBQUEUED;
}

/* ---- migrations ---------------------------------------------------------- */

static NDP_URING_TASK_FN(ndp_uring_move_task)
{
	struct io_uring_cmd *cmd = NDP_URING_TASK_CMD;
	struct ndp_move *move = ndp_uring_pdu(cmd)->move;
	int result = move->result;
	u64 extra = 0;

	if (!result)
		extra = ndp_uring_extra(move->dimm_mask, move->modelled_ns);
	ndp_move_put(move);
	ndp_uring_cmd_done(cmd, result, extra, NDP_URING_TASK_FLAGS);
}

void ndp_uring_move_done(struct ndp_move *move)
{
	ndp_uring_pdu(move->ucmd)->move = move;
	io_uring_cmd_complete_in_task(move->ucmd, ndp_uring_move_task);
}

/* Evenly over the DIMMs of a mask, larger parts first. */
static int ndp_ranges_spread(u32 mask, u32 nr_blocks,
			     struct moendp_range *ranges, u32 *nr)
{
	u32 left, parts = min_t(u32, hweight32(mask), nr_blocks);

	if (!parts)
		return -EINVAL;
	*nr = 0;
	for (left = mask; *nr < parts; left &= left - 1) {
		ranges[*nr].dimm = __ffs(left);
		ranges[*nr].nr_blocks = nr_blocks / parts +
					(*nr < nr_blocks % parts);
		++*nr;
	}
	return 0;
}

static int ndp_uring_ranges(const struct moendp_cmd_migrate *c, u32 nr_blocks,
			    struct moendp_range *ranges, u32 *nr)
{
	u32 i;

	if (c->rsvd || c->nr_ranges > MOENDP_MAX_INLINE_RANGES)
		return -EINVAL;
	for (i = c->nr_ranges; i < MOENDP_MAX_INLINE_RANGES; i++) {
		if (c->ranges[i].dimm || c->ranges[i].nr_blocks)
			return -EINVAL;
	}
	if (!c->nr_ranges)
		return ndp_ranges_spread(c->dimm_mask, nr_blocks, ranges, nr);
	if (c->dimm_mask)
		return -EINVAL;
	memcpy(ranges, c->ranges, c->nr_ranges * sizeof(*ranges));
	*nr = c->nr_ranges;
	return 0;
}

static int ndp_uring_migrate(struct ndp_file *file, struct io_uring_cmd *ucmd,
			     bool by_id)
{
	struct moendp_range ranges[NDP_MAX_NODES];
	struct moendp_cmd_migrate c;
	struct ndp_move *move;
	struct ndp_bo *bo;
	u32 nr;
	int r;

	ndp_uring_copy(&c, ucmd);
	if (by_id ? c.handle : c.id)
		return -EINVAL;
	bo = by_id ? ndp_bo_by_id(file, c.id) : ndp_bo_lookup(file, c.handle);
	if (!bo)
		return -ENOENT;
	r = ndp_uring_ranges(&c, bo->nr_blocks, ranges, &nr);
	if (r == 0) {
		move = ndp_move_start(file, bo, ranges, nr, ucmd);
		r = IS_ERR(move) ? PTR_ERR(move) : -EIOCBQUEUED;
	}
	ndp_bo_put(bo);
	return r;
}

/* ---- entry --------------------------------------------------------------- */

static bool ndp_uring_ring_fits(unsigned int issue_flags)
{
	unsigned int want = IO_URING_F_SQE128 | IO_URING_F_CQE32;

	return (issue_flags & want) == want &&
	       !(issue_flags & IO_URING_F_IOPOLL);
}

/* Results go through here, so that extra1 and extra2 are always defined. */
static int ndp_uring_end(struct io_uring_cmd *ucmd, int r, u64 extra,
			 unsigned int issue_flags)
{
	if (r == -EIOCBQUEUED)
		return r;
	if (r == -EAGAIN && issue_flags & IO_URING_F_NONBLOCK)
		return r;
	if (r == -ERESTARTSYS)
		r = -ECANCELED;
	ndp_uring_cmd_done(ucmd, r, extra, issue_flags);
	return -EIOCBQUEUED;
}

int ndp_file_uring_cmd(struct io_uring_cmd *ucmd, unsigned int issue_flags)
{
	struct ndp_file *file = ucmd->file->private_data;
	bool nonblock = issue_flags & IO_URING_F_NONBLOCK;
	u64 extra = 0;
	int r;

	if (!ndp_uring_ring_fits(issue_flags))
		return -EOPNOTSUPP;
	if (ucmd->flags & IORING_URING_CMD_FIXED)
		return ndp_uring_end(ucmd, -EINVAL, 0, issue_flags);
	switch (ucmd->cmd_op) {
	case MOENDP_CMD_GEMV:
	case MOENDP_CMD_ACT:
	case MOENDP_CMD_FFN:
		r = ndp_uring_submit(file, ucmd, nonblock, &extra);
		break;
	case MOENDP_CMD_MIGRATE:
		r = nonblock ? -EAGAIN : ndp_uring_migrate(file, ucmd, false);
		break;
	default:
		r = -ENOTTY;
		break;
	}
	return ndp_uring_end(ucmd, r, extra, issue_flags);
}

/* On a placement file descriptor of @file, dead or not; it does only this. */
int ndp_placement_uring_cmd(struct io_uring_cmd *ucmd, unsigned int issue_flags,
			    struct ndp_file *file, bool dead)
{
	int r;

	if (!ndp_uring_ring_fits(issue_flags))
		return -EOPNOTSUPP;
	if (dead)
		r = -ENODEV;
	else if (ucmd->cmd_op != MOENDP_CMD_MIGRATE)
		r = -ENOTTY;
	else if (ucmd->flags & IORING_URING_CMD_FIXED)
		r = -EINVAL;
	else if (issue_flags & IO_URING_F_NONBLOCK)
		r = -EAGAIN;
	else
		r = ndp_uring_migrate(file, ucmd, true);
	return ndp_uring_end(ucmd, r, 0, issue_flags);
}
