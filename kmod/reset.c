// SPDX-License-Identifier: GPL-2.0-only
/*
 * reset.c - starting, resetting, losing and stopping a DIMM.
 *
 * The order is always the same: no new commands to the rings; the DIMM stops;
 * only then do commands end and what they held may be reused.  A DIMM that
 * does not come back has failed: its objects are lost, as if it were gone.
 */
#include <linux/mm.h>

#include "ndp.h"
#include "trace.h"

static void ndp_dimm_set_state(struct ndp_dimm *dimm, u32 state)
{
	WRITE_ONCE(dimm->state, state);
	if (dimm->registered)
		ndp_domain_notify(dimm);
}

static void ndp_dimm_quiesce(struct ndp_dimm *dimm, bool dead,
			     struct list_head *waiting)
{
	unsigned int i;

	for (i = 0; i < NDP_QUEUES; i++)
		ndp_queue_stop(&dimm->queue[i], dead, &waiting[i]);
}

/* Everything that was underway ends: it can no longer touch memory. */
static void ndp_dimm_abort(struct ndp_dimm *dimm, int timed_out_queue,
			   int status, struct list_head *waiting)
{
	unsigned int i;

	for (i = 0; i < NDP_QUEUES; i++)
		ndp_queue_abort(&dimm->queue[i], i == timed_out_queue ?
				-ETIMEDOUT : status, status, &waiting[i]);
}

static void ndp_lists_init(struct list_head *lists)
{
	unsigned int i;

	for (i = 0; i < NDP_QUEUES; i++)
		INIT_LIST_HEAD(&lists[i]);
}

static int ndp_dimm_enable(struct ndp_dimm *dimm)
{
	unsigned int i;
	int r;

	for (i = 0; i < NDP_QUEUES; i++)
		ndp_queue_layout(&dimm->queue[i]);
	r = ndp_hw_enable(dimm);
	if (r < 0)
		return r;
	WRITE_ONCE(dimm->alive, true);
	ndp_dimm_set_state(dimm, MOENDP_DIMM_READY);
	for (i = 0; i < NDP_QUEUES; i++)
		ndp_queue_start(&dimm->queue[i]);
	return 0;
}

/* reset_lock held.  @waiting: what was taken from the queues before. */
static void ndp_dimm_fail(struct ndp_dimm *dimm, int timed_out_queue,
			  struct list_head *waiting)
{
	dev_err(&dimm->pdev->dev,
		"ndp%ud%u has failed, what it held is lost: replace it, or try to reset it\n",
		dimm->node.domain->id, dimm->id);
	WRITE_ONCE(dimm->alive, false);
	ndp_dimm_quiesce(dimm, true, waiting);
	ndp_domain_lose(dimm);
	ndp_dimm_abort(dimm, timed_out_queue, -ENODEV, waiting);
	ndp_dimm_set_state(dimm, MOENDP_DIMM_FAILED);
}

/* reset_lock held.  Second half of a reset; @r: how the hardware's part went */
static int ndp_dimm_reset_finish(struct ndp_dimm *dimm, int r,
				 int timed_out_queue, struct list_head *waiting)
{
	dimm->resets++;
	trace_moendp_reset(dimm->node.domain->id, dimm->id, dimm->generation,
			   r);
	if (r == 0) {
		ndp_dimm_abort(dimm, timed_out_queue, -ECANCELED, waiting);
		r = ndp_dimm_enable(dimm);
	}
	if (r < 0) {
		dev_err(&dimm->pdev->dev, "reset failed: %d\n", r);
		ndp_dimm_fail(dimm, timed_out_queue, waiting);
		return r;
	}
	dev_info(&dimm->pdev->dev, "reset, generation %u\n", dimm->generation);
	return 0;
}

/**
 * ndp_dimm_reset() - reset a DIMM
 * @dimm: the DIMM
 * @timed_out_queue: whose oldest command ran out of time, or NDP_NO_QUEUE
 *
 * Memory is kept.  That oldest command ends with ETIMEDOUT, all others that
 * were queued with ECANCELED.
 *
 * Return: 0, or why the DIMM has failed.
 */
int ndp_dimm_reset(struct ndp_dimm *dimm, int timed_out_queue)
{
	struct list_head waiting[NDP_QUEUES];
	int r;

	ndp_lists_init(waiting);
	mutex_lock(&dimm->reset_lock);
	if (dimm->state == MOENDP_DIMM_ABSENT) {
		r = -ENODEV;
		goto out;
	}
	ndp_dimm_set_state(dimm, MOENDP_DIMM_RESETTING);
	ndp_dimm_quiesce(dimm, false, waiting);
	r = ndp_hw_responds(dimm) ? ndp_hw_reset(dimm) : -ENODEV;
	r = ndp_dimm_reset_finish(dimm, r, timed_out_queue, waiting);
out:
	mutex_unlock(&dimm->reset_lock);
	return r;
}

/* Commands end and stay out until the next reset.  reset_lock held. */
static void ndp_dimm_halt(struct ndp_dimm *dimm)
{
	struct list_head waiting[NDP_QUEUES];

	ndp_lists_init(waiting);
	ndp_dimm_set_state(dimm, MOENDP_DIMM_RESETTING);
	ndp_dimm_quiesce(dimm, false, waiting);
	/* Stops the engines, so that the commands may end here already. */
	if (ndp_hw_responds(dimm) && ndp_hw_reset(dimm) == 0)
		ndp_dimm_abort(dimm, NDP_NO_QUEUE, -ECANCELED, waiting);
	else
		ndp_dimm_fail(dimm, NDP_NO_QUEUE, waiting);
}

/*
 * The two halves of a reset by the PCI core; both locks are held in between.
 * It switches the memory window off for a while: what the CPU then writes is
 * lost and what it reads is wrong.  So nobody may touch the window, and
 * mappings are taken away; faults wait for hw_sem.
 */
void ndp_dimm_reset_prepare(struct ndp_dimm *dimm)
{
	mutex_lock(&dimm->reset_lock);
	ndp_dimm_halt(dimm);
	down_write(&dimm->hw_sem);
	unmap_mapping_range(dimm->node.domain->inode->i_mapping, 0, 0, 1);
}

void ndp_dimm_reset_done(struct ndp_dimm *dimm)
{
	struct list_head waiting[NDP_QUEUES];
	int r;

	up_write(&dimm->hw_sem);
	ndp_lists_init(waiting);
	r = ndp_hw_responds(dimm) ? ndp_hw_wait_ready(dimm) : -ENODEV;
	ndp_dimm_reset_finish(dimm, r, NDP_NO_QUEUE, waiting);
	mutex_unlock(&dimm->reset_lock);
}

/* Until ndp_dimm_reset() what is submitted waits. */
void ndp_dimm_suspend(struct ndp_dimm *dimm)
{
	mutex_lock(&dimm->reset_lock);
	ndp_dimm_halt(dimm);
	mutex_unlock(&dimm->reset_lock);
}

/* Called when a DIMM was found not to answer any more. */
void ndp_dimm_failed(struct ndp_dimm *dimm)
{
	struct list_head waiting[NDP_QUEUES];

	ndp_lists_init(waiting);
	mutex_lock(&dimm->reset_lock);
	if (ndp_dimm_alive(dimm))
		ndp_dimm_fail(dimm, NDP_NO_QUEUE, waiting);
	mutex_unlock(&dimm->reset_lock);
}

/* At probe: nothing of what a former owner left may go on. */
int ndp_dimm_start(struct ndp_dimm *dimm)
{
	int r;

	mutex_lock(&dimm->reset_lock);
	r = ndp_hw_reset(dimm);
	if (r == 0)
		r = ndp_dimm_enable(dimm);
	if (r < 0)
		dev_err(&dimm->pdev->dev, "does not become ready: %d\n", r);
	mutex_unlock(&dimm->reset_lock);
	return r;
}

/*
 * At removal, by unplugging or by unbinding: nothing new from here on, the
 * engines stop if there still are any, everyone who waits learns of it.
 */
void ndp_dimm_stop(struct ndp_dimm *dimm)
{
	struct list_head waiting[NDP_QUEUES];
	unsigned int i;

	ndp_lists_init(waiting);
	mutex_lock(&dimm->reset_lock);
	WRITE_ONCE(dimm->alive, false);
	ndp_dimm_quiesce(dimm, true, waiting);
	if (ndp_hw_responds(dimm))
		ndp_hw_reset(dimm);
	ndp_domain_lose(dimm);
	ndp_dimm_abort(dimm, NDP_NO_QUEUE, -ENODEV, waiting);
	ndp_dimm_set_state(dimm, MOENDP_DIMM_ABSENT);
	mutex_unlock(&dimm->reset_lock);

	for (i = 0; i < NDP_QUEUES; i++)
		cancel_delayed_work_sync(&dimm->queue[i].watchdog);
}
