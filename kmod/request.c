// SPDX-License-Identifier: GPL-2.0-only
/*
 * request.c - requests: one call's hardware commands, and all they keep alive.
 *
 * A request is freed by whoever learns of its end in process context: the
 * waiter, or io_uring's task work.  If the waiter was killed, a work item does
 * it once the hardware is done; until then nothing that the DIMM may write to
 * is reused.
 */
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "ndp.h"

static struct kmem_cache *ndp_req_cache;

int ndp_req_cache_init(void)
{
	ndp_req_cache = KMEM_CACHE(ndp_req, SLAB_HWCACHE_ALIGN);
	return ndp_req_cache ? 0 : -ENOMEM;
}

void ndp_req_cache_exit(void)
{
	kmem_cache_destroy(ndp_req_cache);
}

/* With room for @max_parts.  Only what every user needs is initialized. */
struct ndp_req *ndp_req_alloc(u32 max_parts, gfp_t gfp)
{
	struct ndp_req *req = kmem_cache_alloc(ndp_req_cache, gfp);

	if (!req)
		return NULL;
	req->parts = &req->first;
	if (max_parts > 1) {
		req->parts = kvmalloc_array(max_parts, sizeof(*req->parts),
					    gfp);
		if (!req->parts) {
			kmem_cache_free(ndp_req_cache, req);
			return NULL;
		}
	}
	req->status = 0;
	req->dimm_mask = 0;
	req->nr_parts = 0;
	req->max_parts = max_parts;
	req->file = NULL;
	req->bo[0] = NULL;
	req->bo[1] = NULL;
	req->bo[2] = NULL;
	req->map[0] = NULL;
	req->map[1] = NULL;
	req->done = NULL;
	return req;
}

/* Process context; may free what it kept alive. */
void ndp_req_free(struct ndp_req *req)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(req->map); i++) {
		if (req->map[i])
			ndp_map_put(req->map[i]);
	}
	for (i = 0; i < ARRAY_SIZE(req->bo); i++) {
		if (req->bo[i])
			ndp_bo_put(req->bo[i]);
	}
	if (req->file) {
		ndp_file_req_done(req->file);
		ndp_file_put(req->file);
	}
	if (req->parts != &req->first)
		kvfree(req->parts);
	kmem_cache_free(ndp_req_cache, req);
}

/* The next command of @req; the caller fills in all of its fields. */
struct ndp_part *ndp_req_add(struct ndp_req *req, struct ndp_dimm *dimm,
			     u8 queue, struct ndp_flow *flow)
{
	struct ndp_part *part = &req->parts[req->nr_parts];

	if (WARN_ON_ONCE(req->nr_parts == req->max_parts))
		return NULL;
	req->nr_parts++;
	req->dimm_mask |= BIT(dimm->id);
	part->req = req;
	part->dimm = dimm;
	part->flow = flow;
	part->queue = queue;
	part->modelled_ns = 0;
	return part;
}

/* @req belongs to the hardware now; after its last part is added it may end. */
void ndp_req_submit(struct ndp_req *req)
{
	u32 i, nr = req->nr_parts;
	struct ndp_part *parts = req->parts;

	atomic_set(&req->left, nr);
	for (i = 0; i < nr; i++)
		ndp_queue_add(&parts[i]);
}

/* queue.lock held; chains the request to @done when this was its last part. */
void ndp_part_done(struct ndp_part *part, int status, struct ndp_req **done)
{
	struct ndp_req *req = part->req;

	if (unlikely(status))
		cmpxchg(&req->status, 0, status);
	if (req->nr_parts > 1 && !atomic_dec_and_test(&req->left))
		return;
	req->next_done = *done;
	*done = req;
}

/* No locks held; any context. */
void ndp_reqs_complete(struct ndp_req *done)
{
	while (done) {
		struct ndp_req *req = done;

		done = req->next_done;
		req->done(req);
	}
}

/* The longest of the DIMMs' sums of service times. */
u64 ndp_req_modelled_ns(const struct ndp_req *req)
{
	u64 sum[NDP_MAX_NODES] = {};
	u64 longest = 0;
	u32 i;

	if (req->nr_parts == 1)
		return req->parts[0].modelled_ns;
	for (i = 0; i < req->nr_parts; i++) {
		const struct ndp_part *part = &req->parts[i];

		sum[part->dimm->id] += part->modelled_ns;
		longest = max(longest, sum[part->dimm->id]);
	}
	return longest;
}

static void ndp_req_free_work(struct work_struct *work)
{
	ndp_req_free(container_of(work, struct ndp_req, free_work));
}

static void ndp_req_wake(struct ndp_req *req)
{
	complete(&req->completion);
	if (refcount_dec_and_test(&req->ref)) {
		INIT_WORK(&req->free_work, ndp_req_free_work);
		queue_work(ndp_wq, &req->free_work);
	}
}

/*
 * Submits and waits.  The result is the request's, or -EINTR when a fatal
 * signal came first: then only ndp_req_put() may be called.
 */
int ndp_req_run(struct ndp_req *req, bool killable)
{
	refcount_set(&req->ref, 2);
	init_completion(&req->completion);
	req->done = ndp_req_wake;
	ndp_req_submit(req);
	if (!killable)
		wait_for_completion(&req->completion);
	else if (wait_for_completion_killable(&req->completion) < 0)
		return -EINTR;
	return req->status;
}

/* The end of what ndp_req_run() began. */
void ndp_req_put(struct ndp_req *req)
{
	if (refcount_dec_and_test(&req->ref))
		ndp_req_free(req);
}
