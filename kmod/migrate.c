// SPDX-License-Identifier: GPL-2.0-only
/*
 * migrate.c - moving sealed weights: copy, then swap the map.
 *
 * A migration is a work item of its own: it ends by itself, whether its caller
 * waits, was killed, or asked through io_uring.  Until the swap the old
 * placement is the object's; after a failure it still is.  New extents are
 * given back only when no DIMM can write to them any more, because the copy
 * returns only then.
 *
 * A DIMM receives NDP_MAX_COPIES migrations at a time, so that its reserve is
 * enough; DIMMs are waited for in ascending order.
 */
#include <linux/slab.h>

#include "ndp.h"
#include "trace.h"

static void ndp_move_free(struct ndp_move *move)
{
	ndp_bo_put(move->bo);
	ndp_file_put(move->file);
	kfree(move);
}

void ndp_move_put(struct ndp_move *move)
{
	if (refcount_dec_and_test(&move->ref))
		ndp_move_free(move);
}

/* The DIMMs on which it needs new memory. */
static u32 ndp_move_targets(const struct ndp_move *move,
			    const struct ndp_map *old)
{
	u32 i, block = 0, mask = 0;

	for (i = 0; i < move->nr; i++) {
		const struct ndp_span *was = ndp_map_find(old, block);

		if (was->node != move->ranges[i].dimm || was->first != block ||
		    was->nr != move->ranges[i].nr_blocks)
			mask |= BIT(move->ranges[i].dimm);
		block += move->ranges[i].nr_blocks;
	}
	return mask;
}

static void ndp_move_leave(struct ndp_dimm **dimms)
{
	u32 i;

	for (i = 0; i < NDP_MAX_NODES; i++) {
		if (!dimms[i])
			continue;
		up(&dimms[i]->copies);
		ndp_dimm_put(dimms[i]);
	}
}

static int ndp_move_enter(const struct ndp_move *move, u32 mask,
			  struct ndp_dimm **dimms)
{
	u32 i;

	for (i = 0; i < NDP_MAX_NODES; i++) {
		struct ndp_dimm *dimm;

		if (!(mask & BIT(i)))
			continue;
		dimm = ndp_domain_dimm(move->bo->domain, i);
		if (!dimm)
			return -ENODEV;
		down(&dimm->copies);
		dimms[i] = dimm;
	}
	return 0;
}

/* All that can fail; afterwards the object lies at its new place. */
static int ndp_move_copy(struct ndp_move *move, struct ndp_map *old)
{
	struct ndp_bo *bo = move->bo;
	struct ndp_map *map;
	int r;

	map = ndp_map_alloc(bo->domain, move->ranges, move->nr, bo->stride, old);
	if (IS_ERR(map))
		return PTR_ERR(map);
	r = ndp_map_copy(map, old, bo->stride, &move->bytes,
			 &move->modelled_ns);
	if (r == 0)
		r = ndp_bo_set_map(bo, map);
	if (r < 0)
		ndp_map_put(map);
	return r;
}

static int ndp_move_do(struct ndp_move *move)
{
	struct ndp_dimm *dimms[NDP_MAX_NODES] = {};
	struct ndp_map *old;
	u32 targets;
	int r;

	r = ndp_bo_map_get(move->bo, &old);
	if (r < 0)
		return r;
	targets = ndp_move_targets(move, old);
	if (targets || move->nr != old->nr) {
		r = ndp_move_enter(move, targets, dimms);
		if (r == 0)
			r = ndp_move_copy(move, old);
		ndp_move_leave(dimms);
	}
	ndp_map_put(old);
	return r;
}

static void ndp_move_work(struct work_struct *work)
{
	struct ndp_move *move = container_of(work, struct ndp_move, work);
	struct ndp_bo *bo = move->bo;
	u32 i;

	move->result = ndp_move_do(move);
	if (move->result < 0)
		move->bytes = 0;
	for (i = 0; i < move->nr; i++)
		move->dimm_mask |= BIT(move->ranges[i].dimm);
	trace_moendp_migrate(bo->domain->id, bo->id, move->dimm_mask,
			     move->bytes, move->modelled_ns, move->result);

	spin_lock(&bo->lock);
	bo->moving = false;
	spin_unlock(&bo->lock);
	ndp_file_event(move->file);
	if (move->ucmd) {
		ndp_uring_move_done(move);	/* with the reference */
		return;
	}
	complete(&move->completion);
	ndp_move_put(move);
}

/**
 * ndp_move_start() - begin a migration
 * @file: whose object it is
 * @bo: the object
 * @ranges: new placement
 * @nr: its length
 * @ucmd: io_uring command to complete; NULL: the caller waits
 *
 * Return: what to wait for, and to ndp_move_put(); or an error.
 */
struct ndp_move *ndp_move_start(struct ndp_file *file, struct ndp_bo *bo,
				const struct moendp_range *ranges, u32 nr,
				struct io_uring_cmd *ucmd)
{
	struct ndp_move *move;
	int r;

	if (!ndp_bo_is_listed(bo))
		return ERR_PTR(-EBADF);
	r = ndp_ranges_check(file, ranges, nr, bo->nr_blocks, bo->allowed_mask);
	if (r < 0)
		return ERR_PTR(r);
	move = kzalloc(struct_size(move, ranges, nr), GFP_KERNEL);
	if (!move)
		return ERR_PTR(-ENOMEM);
	spin_lock(&bo->lock);
	if (bo->lost)
		r = -ENODEV;
	else if (bo->moving)
		r = -EBUSY;
	else
		bo->moving = true;
	spin_unlock(&bo->lock);
	if (r < 0) {
		kfree(move);
		return ERR_PTR(r);
	}
	INIT_WORK(&move->work, ndp_move_work);
	init_completion(&move->completion);
	refcount_set(&move->ref, ucmd ? 1 : 2);
	move->file = ndp_file_get(file);
	move->bo = ndp_bo_get(bo);
	move->ucmd = ucmd;
	move->nr = nr;
	memcpy(move->ranges, ranges, nr * sizeof(*ranges));
	queue_work(ndp_wq, &move->work);
	return move;
}

/* Migrates and waits; a fatal signal ends only the waiting. */
int ndp_move_run(struct ndp_file *file, struct ndp_bo *bo, u64 uptr, u32 nr,
		 u64 *bytes, u64 *modelled_ns)
{
	struct moendp_range *ranges;
	struct ndp_move *move;
	int r;

	r = ndp_ranges_from_user(uptr, nr, &ranges);
	if (r < 0)
		return r;
	move = ndp_move_start(file, bo, ranges, nr, NULL);
	kfree(ranges);
	if (IS_ERR(move))
		return PTR_ERR(move);
	if (wait_for_completion_killable(&move->completion) < 0) {
		r = -EINTR;
	} else {
		r = move->result;
		*bytes = move->bytes;
		*modelled_ns = move->modelled_ns;
	}
	ndp_move_put(move);
	return r;
}

int ndp_ioctl_migrate(void *priv, struct ndp_call *call)
{
	struct moendp_migrate *m = &call->migrate;
	struct ndp_bo *bo;
	int r;

	if (m->flags)
		return -EINVAL;
	bo = ndp_bo_lookup(priv, m->handle);
	if (!bo)
		return -ENOENT;
	r = ndp_move_run(priv, bo, m->ranges, m->nr_ranges, &m->bytes,
			 &m->modelled_ns);
	ndp_bo_put(bo);
	return r < 0 ? r : ndp_call_reply(call);
}
