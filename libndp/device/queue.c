/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * queue.c - many commands in flight.
 *
 * A queue holds its requests for good; a command takes one from push until its
 * result is handed out, so no call on the way allocates.  Commands that need no
 * device (no tokens) are finished at once and come out like the others.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_DEPTH 4096

static struct ndpi_request *request_at(const struct ndp_queue *q, unsigned int i)
{
	return (struct ndpi_request *)((char *)q->requests + i * q->dev->ops->request_bytes);
}

int ndp_queue_create(struct ndp_queue **out, struct ndp_device *dev, unsigned int depth,
		     struct ndp_error *err)
{
	struct ndp_queue *q;
	int r;

	*out = NULL;
	ndpi_error_clear(err);
	if (!depth || depth > MAX_DEPTH)
		return ndpi_fail(err, -EINVAL, "a queue of depth %u: wanted 1 to %d", depth,
				 MAX_DEPTH);
	q = dev->ops->queue_alloc();
	if (!q)
		return ndpi_fail(err, -ENOMEM, "no memory for a queue of depth %u", depth);
	q->dev = dev;
	q->owner = pthread_self();
	q->depth = depth;
	ndpi_list_init(&q->done);
	q->requests = calloc(depth, dev->ops->request_bytes);
	r = q->requests ? dev->ops->queue_create(q, err) :
			  ndpi_fail(err, -ENOMEM, "no memory for a queue of depth %u", depth);
	if (r < 0) {
		free(q->requests);
		free(q);
		return r;
	}
	for (unsigned int i = depth; i--;) {
		request_at(q, i)->next = q->free;
		q->free = request_at(q, i);
	}
	ndpi_device_get(dev);
	*out = q;
	return 0;
}

static bool is_owner(const struct ndp_queue *q)
{
	return pthread_equal(q->owner, pthread_self());
}

int ndp_queue_push(struct ndp_queue *q, const struct ndp_cmd *cmd)
{
	struct ndpi_request *req = q->free;
	int r;

	if (!is_owner(q))
		return -EPERM;
	if (!req)
		return -EAGAIN;
	r = ndpi_request_prepare(req, q->dev, cmd);
	if (r < 0)
		return r;
	if (cmd->op == NDP_OP_MIGRATE_WEIGHTS && !ndpi_placement_fits_queue(cmd->to))
		return -E2BIG;
	q->free = req->next;
	if (cmd->op != NDP_OP_MIGRATE_WEIGHTS && !cmd->tokens) {
		ndpi_list_add(&q->done, req);
	} else {
		r = q->dev->ops->queue_push(q, req);
		if (r < 0) {
			req->next = q->free;
			q->free = req;
			return r;
		}
		q->batch++;
	}
	q->inflight++;
	return 0;
}

int ndp_queue_submit(struct ndp_queue *q)
{
	unsigned int batch = q->batch;
	int r;

	if (!is_owner(q))
		return -EPERM;
	if (!batch)
		return 0;
	r = q->dev->ops->queue_submit(q);
	return r < 0 ? r : (int)(batch - q->batch);
}

/* Submits, then takes what is finished; commands whose weights moved go back. */
static int reap(struct ndp_queue *q, unsigned int min)
{
	struct ndpi_request *req;
	struct ndpi_list list;
	int r;

	ndpi_list_init(&list);
	r = q->dev->ops->queue_reap(q, min, &list);
	while ((req = ndpi_list_take(&list))) {
		q->pending--;
		if (ndpi_request_needs_retry(req)) {
			req->res = q->dev->ops->queue_push(q, req);
			if (!req->res) {
				q->batch++;
				continue;
			}
		}
		ndpi_list_add(&q->done, req);
	}
	return r;
}

static unsigned int take_results(struct ndp_queue *q, struct ndp_result *results, unsigned int max)
{
	struct ndpi_request *req;
	unsigned int n;

	for (n = 0; n < max && (req = ndpi_list_take(&q->done)); n++) {
		ndpi_request_result(req, &results[n]);
		req->next = q->free;
		q->free = req;
		q->inflight--;
	}
	return n;
}

int ndp_queue_wait(struct ndp_queue *q, struct ndp_result *results, unsigned int max,
		   unsigned int min)
{
	unsigned int n;
	int r;

	if (!is_owner(q))
		return -EPERM;
	if (min > max)
		min = max;
	n = take_results(q, results, max);
	do {
		unsigned int want = n < min ? min - n : 0;
		unsigned int coming = q->pending + q->batch;

		r = reap(q, want < coming ? want : coming);
		n += take_results(q, results + n, max - n);
	} while (r >= 0 && n < min && (q->pending || q->batch));
	if (q->batch && (r >= 0 || r == -EINTR)) {
		int submitted = ndp_queue_submit(q);

		r = submitted < 0 ? submitted : r;
	}
	return n || r >= 0 ? (int)n : r;
}

unsigned int ndp_queue_inflight(const struct ndp_queue *q)
{
	return q->inflight;
}

void ndp_queue_free(struct ndp_queue *q)
{
	struct ndp_device *dev;

	if (!q)
		return;
	dev = q->dev;
	while (is_owner(q) && (q->pending || q->batch)) {
		int r = reap(q, 1);

		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
			break;
	}
	dev->ops->queue_destroy(q);
	free(q->requests);
	free(q);
	ndpi_device_put(dev);
}
