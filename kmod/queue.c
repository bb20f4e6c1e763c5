// SPDX-License-Identifier: GPL-2.0-only
/*
 * queue.c - one engine's rings: commands in, completions out, who is next, and
 * the watchdog.
 *
 * A part is issued at once when its flow and the ring have room; otherwise it
 * waits in its flow, and flows that may issue are served round-robin.  Both
 * paths run from submission and from the interrupt handler, so they do nothing
 * but memory accesses and one doorbell write: no register is read here except
 * by the watchdog.
 *
 * What the DIMM writes is not trusted: a completion counts only if its command
 * id is outstanding and its generation is the current one.
 */
#include <linux/interrupt.h>
#include <linux/io.h>

#include "ndp.h"
#include "trace.h"

#define NDP_RING_MASK		(NDP_RING_SIZE - 1)

void ndp_flow_init(struct ndp_flow *flow, u32 limit)
{
	INIT_LIST_HEAD(&flow->waiting);
	INIT_LIST_HEAD(&flow->link);
	flow->inflight = 0;
	flow->limit = limit;
}

/* Where the rings lie: for each queue commands, then completions. */
void ndp_queue_layout(struct ndp_queue *q)
{
	size_t sq_bytes = NDP_RING_SIZE * sizeof(struct ndp_hw_cmd);
	size_t cq_bytes = NDP_RING_SIZE * sizeof(struct ndp_hw_cpl);
	void *base = q->dimm->dram + q->dimm->caps.rsvd_off +
		     q->id * (sq_bytes + cq_bytes);

	q->sq = base;
	q->cq = base + sq_bytes;
	q->doorbell = q->dimm->regs + NDP_REG_Q(q->id, NDP_Q_DOORBELL);
	memset(base, 0, sq_bytes + cq_bytes);
	ndp_flush_lines(q->dimm, base, sq_bytes + cq_bytes);
}

static void ndp_queue_issue(struct ndp_queue *q, struct ndp_part *part)
{
	u16 cid = q->free_cid[--q->nr_free];
	struct ndp_hw_cmd *entry = &q->sq[q->tail];

	part->cid = cid;
	part->cmd.cid = cpu_to_le16(cid);
	q->slot[cid] = part;
	*entry = part->cmd;
	if (!q->dimm->coherent)
		ndp_flush_lines(q->dimm, entry, sizeof(*entry));
	q->tail = (q->tail + 1) & NDP_RING_MASK;
	if (list_empty(&q->inflight))
		q->last_progress = jiffies;
	list_add_tail(&part->link, &q->inflight);
	part->flow->inflight++;
	q->issued++;
}

/* writel() orders the entries before the doorbell. */
static void ndp_queue_ring(struct ndp_queue *q)
{
	writel(q->tail, q->doorbell);
}

static void ndp_queue_watch(struct ndp_queue *q)
{
	unsigned long tick = msecs_to_jiffies(ndp_timeout_ms);

	if (q->watched)
		return;
	q->watched = true;
	queue_delayed_work(ndp_wq, &q->watchdog,
			   clamp_t(unsigned long, tick, 1, HZ));
}

static void ndp_flow_ready(struct ndp_queue *q, struct ndp_flow *flow)
{
	if (list_empty(&flow->link) && !list_empty(&flow->waiting) &&
	    flow->inflight < flow->limit)
		list_add_tail(&flow->link, &q->flows);
}

/* Issues what may be issued, one part of each flow in turn. */
static void ndp_queue_pump(struct ndp_queue *q)
{
	bool issued = false;

	if (!q->running)
		return;
	while (q->nr_free && !list_empty(&q->flows)) {
		struct ndp_flow *flow = list_first_entry(&q->flows,
							 struct ndp_flow, link);
		struct ndp_part *part = list_first_entry(&flow->waiting,
							 struct ndp_part, link);

		list_del_init(&flow->link);
		list_del(&part->link);
		q->nr_waiting--;
		ndp_queue_issue(q, part);
		ndp_flow_ready(q, flow);
		issued = true;
	}
	if (issued) {
		ndp_queue_ring(q);
		ndp_queue_watch(q);
	}
}

/* Takes the part over; its request may be done before this returns. */
void ndp_queue_add(struct ndp_part *part)
{
	struct ndp_queue *q = &part->dimm->queue[part->queue];
	struct ndp_flow *flow = part->flow;
	struct ndp_req *done = NULL;
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	if (unlikely(q->dead)) {
		ndp_part_done(part, -ENODEV, &done);
	} else if (likely(q->running && q->nr_free && list_empty(&q->flows) &&
			  list_empty(&flow->waiting) &&
			  flow->inflight < flow->limit)) {
		ndp_queue_issue(q, part);
		ndp_queue_ring(q);
		ndp_queue_watch(q);
	} else {
		list_add_tail(&part->link, &flow->waiting);
		q->nr_waiting++;
		ndp_flow_ready(q, flow);
		ndp_queue_pump(q);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	ndp_reqs_complete(done);
}

static int ndp_status_to_errno(u32 status)
{
	switch (status) {
	case NDP_ST_OK:
		return 0;
	case NDP_ST_PEER:
	case NDP_ST_LINK_DOWN:
		return -ENOLINK;
	case NDP_ST_ABORTED:
		return -ECANCELED;
	default:
		return -EIO;
	}
}

static void ndp_queue_retire(struct ndp_queue *q, struct ndp_part *part,
			     int status, struct ndp_req **done)
{
	q->slot[part->cid] = NULL;
	q->free_cid[q->nr_free++] = part->cid;
	part->flow->inflight--;
	list_del(&part->link);
	ndp_flow_ready(q, part->flow);
	ndp_part_done(part, status, done);
}

static void ndp_queue_complete(struct ndp_queue *q,
			       const struct ndp_hw_cpl *cpl,
			       struct ndp_req **done)
{
	u16 cid = le16_to_cpu(cpl->cid);
	u32 generation = le32_to_cpu(cpl->generation);
	u32 status = le32_to_cpu(cpl->status);
	struct ndp_part *part;

	part = cid < NDP_RING_SIZE ? q->slot[cid] : NULL;
	if (unlikely(!part || generation != q->generation)) {
		q->spurious++;
		dev_warn_ratelimited(&q->dimm->pdev->dev,
				     "queue %u: completion of command %u, generation %u, that is not outstanding\n",
				     q->id, cid, generation);
		return;
	}
	part->modelled_ns = le64_to_cpu(cpl->modelled_ns);
	trace_moendp_complete(q->dimm->node.domain->id, q->dimm->id, q->id, cid,
			      status, part->modelled_ns);
	if (unlikely(status != NDP_ST_OK))
		dev_dbg(&q->dimm->pdev->dev,
			"queue %u: opcode %u ended with status %u\n", q->id,
			part->cmd.opcode, status);
	q->completed++;
	ndp_queue_retire(q, part, ndp_status_to_errno(status), done);
}

/* Takes completions off the ring.  Memory accesses only. */
static bool ndp_queue_reap(struct ndp_queue *q, struct ndp_req **done)
{
	bool progress = false;

	for (;;) {
		struct ndp_hw_cpl *cpl = &q->cq[q->head];

		if (!q->dimm->coherent)
			ndp_flush_lines(q->dimm, cpl, sizeof(*cpl));
		if (le32_to_cpu(READ_ONCE(cpl->phase)) != q->phase)
			break;
		dma_rmb();	/* the phase was written last */
		ndp_queue_complete(q, cpl, done);
		q->head = (q->head + 1) & NDP_RING_MASK;
		if (!q->head)
			q->phase = 3 - q->phase;
		progress = true;
	}
	if (progress)
		q->last_progress = jiffies;
	return progress;
}

/* Looks for completions without waiting for an interrupt. */
static bool ndp_queue_poll(struct ndp_queue *q)
{
	struct ndp_req *done = NULL;
	bool progress = false;
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	if (q->running) {
		progress = ndp_queue_reap(q, &done);
		if (progress)
			ndp_queue_pump(q);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	ndp_reqs_complete(done);
	return progress;
}

/*
 * Handled even if there was nothing left to do: an interrupt often takes the
 * completions of the next one along.
 */
irqreturn_t ndp_queue_irq(int irq, void *data)
{
	ndp_queue_poll(data);
	return IRQ_HANDLED;
}

/*
 * An engine that has work and has completed nothing for ndp_timeout_ms is
 * given one look for an interrupt that was lost, then its DIMM is reset.
 */
static void ndp_queue_watchdog(struct work_struct *work)
{
	struct ndp_queue *q = container_of(to_delayed_work(work),
					   struct ndp_queue, watchdog);
	bool late = false;

	spin_lock_irq(&q->lock);
	q->watched = false;
	if (q->running && !list_empty(&q->inflight)) {
		late = time_after_eq(jiffies, q->last_progress +
				     msecs_to_jiffies(ndp_timeout_ms));
		if (!late)
			ndp_queue_watch(q);
	}
	spin_unlock_irq(&q->lock);
	if (!late)
		return;

	if (ndp_queue_poll(q)) {
		spin_lock_irq(&q->lock);
		q->lost_irqs++;
		if (!list_empty(&q->inflight))
			ndp_queue_watch(q);
		spin_unlock_irq(&q->lock);
		dev_warn(&q->dimm->pdev->dev,
			 "queue %u: completed without an interrupt\n", q->id);
		return;
	}
	dev_err(&q->dimm->pdev->dev,
		"queue %u: nothing completed for %u ms, resetting the DIMM\n",
		q->id, ndp_timeout_ms);
	ndp_dimm_reset(q->dimm, q->id);
}

void ndp_queue_init(struct ndp_queue *q, struct ndp_dimm *dimm, u8 id)
{
	spin_lock_init(&q->lock);
	q->dimm = dimm;
	q->id = id;
	INIT_LIST_HEAD(&q->inflight);
	INIT_LIST_HEAD(&q->flows);
	INIT_DELAYED_WORK(&q->watchdog, ndp_queue_watchdog);
}

/* The DIMM has empty rings and is enabled: go, with what waited meanwhile. */
void ndp_queue_start(struct ndp_queue *q)
{
	unsigned int i;

	spin_lock_irq(&q->lock);
	q->tail = 0;
	q->head = 0;
	q->phase = 1;
	q->generation = q->dimm->generation;
	/* One entry of a ring stays free, and so one command id. */
	q->nr_free = 0;
	for (i = NDP_RING_SIZE - 1; i > 0; i--)
		q->free_cid[q->nr_free++] = i;
	q->dead = false;
	q->running = true;
	ndp_queue_pump(q);
	spin_unlock_irq(&q->lock);
}

/*
 * Leaves the rings alone from now on.  What waits is moved to @waiting, for
 * ndp_queue_abort(); what comes later waits, or fails when @dead.
 */
void ndp_queue_stop(struct ndp_queue *q, bool dead, struct list_head *waiting)
{
	struct ndp_flow *flow, *next;

	spin_lock_irq(&q->lock);
	q->running = false;
	q->dead = dead;
	list_for_each_entry_safe(flow, next, &q->flows, link) {
		list_splice_tail_init(&flow->waiting, waiting);
		list_del_init(&flow->link);
	}
	/* Flows at their limit are not in the list: the commands lead there. */
	if (!list_empty(&q->inflight)) {
		struct ndp_part *part;

		list_for_each_entry(part, &q->inflight, link)
			list_splice_tail_init(&part->flow->waiting, waiting);
	}
	q->nr_waiting = 0;
	spin_unlock_irq(&q->lock);
}

/*
 * The DIMM has stopped for good or was reset: completes what it had finished,
 * then ends the rest, the oldest command with @head_status.
 */
void ndp_queue_abort(struct ndp_queue *q, int head_status, int status,
		     struct list_head *waiting)
{
	struct ndp_req *done = NULL;
	struct ndp_part *part, *next;

	spin_lock_irq(&q->lock);
	if (q->cq && status != -ENODEV)
		ndp_queue_reap(q, &done);
	list_for_each_entry_safe(part, next, &q->inflight, link) {
		ndp_queue_retire(q, part, head_status, &done);
		head_status = status;
	}
	list_for_each_entry_safe(part, next, waiting, link) {
		list_del(&part->link);
		ndp_part_done(part, status, &done);
	}
	spin_unlock_irq(&q->lock);
	ndp_reqs_complete(done);
}

/* Its file was closed: what still waits in @flow is given up. */
void ndp_queue_cancel(struct ndp_queue *q, struct ndp_flow *flow)
{
	struct ndp_req *done = NULL;
	struct ndp_part *part, *next;
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	list_del_init(&flow->link);
	list_for_each_entry_safe(part, next, &flow->waiting, link) {
		list_del(&part->link);
		q->nr_waiting--;
		ndp_part_done(part, -ECANCELED, &done);
	}
	spin_unlock_irqrestore(&q->lock, flags);
	ndp_reqs_complete(done);
}

/* Issued and waiting. */
u32 ndp_queue_inflight(struct ndp_queue *q)
{
	u32 n;

	spin_lock_irq(&q->lock);
	n = q->nr_waiting;
	if (q->running)
		n += NDP_RING_SIZE - 1 - q->nr_free;
	spin_unlock_irq(&q->lock);
	return n;
}
