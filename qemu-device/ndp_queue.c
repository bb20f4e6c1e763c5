/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: rings, and the two engines that work on them
 *
 * An engine takes one command at a time: it copies the 64 bytes out of the
 * ring, runs the copy, and writes a completion, phase word last.  It has a
 * worker thread, which never takes the BQL.  With -icount there is no worker:
 * commands run in the doorbell's handler, so that a run repeats exactly.
 *
 * The rings lie in memory that the guest can change at any time.  Nothing is
 * read from them twice, and no index is kept there.
 *
 * Facts: ndp_regs.h.
 */
#include "qemu/osdep.h"
#include "qapi/error.h"
#include "qemu/atomic.h"
#include "qemu/bswap.h"
#include "qemu/log.h"
#include "qemu/rcu.h"
#include "trace.h"
#include "ndp_dimm.h"

static const char *const queue_name[NDP_QUEUES] = { "compute", "link" };

static int64_t ndp_now(void)
{
    return qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL);
}

/* Called with dimm->lock held. */
static bool ndp_engine_runnable(NdpEngine *e)
{
    NdpDimm *s = e->dimm;

    return e->enabled && s->ctrl_enable && !s->failed && !s->gone &&
           !e->busy && qatomic_read(&e->abort) == NDP_ABORT_NONE &&
           e->head != e->tail;
}

/* Called with dimm->lock held, on a runnable engine. */
static void ndp_engine_fetch(NdpEngine *e)
{
    NdpDimm *s = e->dimm;
    NdpJob *job = &e->job;
    uint64_t entry = e->sq_base + (uint64_t)e->head * sizeof(job->cmd);

    e->busy = true;
    memset(job, 0, sizeof(*job));
    memcpy(&job->cmd, s->mem.base + entry, sizeof(job->cmd));
    job->generation = s->generation;
    job->wall_start_ns = get_clock();
    job->faults = ndp_inject_pick(e);
    if (ndp_job_hit(job, NDP_FAULT_ERROR)) {
        job->status = s->inject.error_status;
    }
    if (ndp_job_hit(job, NDP_FAULT_DELAY)) {
        job->deadline_ns = ndp_now() + s->inject.delay_ns;
    }
    if (ndp_job_hit(job, NDP_FAULT_HANG)) {
        job->deadline_ns = INT64_MAX;
    }
    e->head = (e->head + 1) & e->mask;
    trace_ndp_fetch(s->node, e->queue, le16_to_cpu(job->cmd.cid),
                    job->cmd.opcode, job->faults);
}

static uint32_t ndp_job_pull(NdpEngine *e)
{
    NdpDimm *s = e->dimm;
    NdpJob *job = &e->job;
    struct ndp_chip_mem src;
    int64_t deadline_ns;
    uint32_t status;

    status = ndp_chip_check(&job->op, s->mem.bytes);
    if (status != NDP_ST_OK) {
        return status;
    }
    status = ndp_link_begin(e, &job->op, &src, &deadline_ns);
    if (status != NDP_ST_OK) {
        return status;
    }
    status = ndp_chip_link_copy(&job->op, &s->mem, &src, &e->abort);
    if (status == NDP_ST_OK && s->timing) {
        job->deadline_ns = MAX(job->deadline_ns, deadline_ns);
    }
    return status;
}

/* Runs the engine's command; no lock is held. */
static void ndp_job_run(NdpEngine *e)
{
    NdpDimm *s = e->dimm;
    NdpJob *job = &e->job;
    int64_t start_ns = ndp_now();
    uint64_t out;
    uint64_t out_bytes;

    if (ndp_job_hit(job, NDP_FAULT_ERROR) ||
        ndp_job_hit(job, NDP_FAULT_HANG)) {
        return;
    }
    job->status = ndp_cmd_decode(&job->cmd, e->queue, &job->op);
    if (job->status != NDP_ST_OK) {
        return;
    }
    if (job->op.opcode == NDP_OP_LINK_COPY) {
        job->status = ndp_job_pull(e);
    } else {
        job->status = ndp_chip_exec(e->chip, &job->op, &s->mem, &e->abort);
    }
    if (job->status != NDP_ST_OK) {
        return;
    }

    ndp_cmd_output(&job->op, &out, &out_bytes);
    memory_region_set_dirty(s->dram, out, out_bytes);
    job->modelled_ns = ndp_chip_op_ns(&job->op, &s->params);
    if (s->timing && job->op.opcode != NDP_OP_LINK_COPY) {
        job->deadline_ns = MAX(job->deadline_ns,
                               start_ns + (int64_t)job->modelled_ns);
    }
}

static void ndp_engine_write_cpl(NdpEngine *e, const struct ndp_hw_cpl *cpl)
{
    NdpDimm *s = e->dimm;
    uint64_t entry = e->cq_base + (uint64_t)e->cq_tail * sizeof(*cpl);
    struct ndp_hw_cpl *slot = (struct ndp_hw_cpl *)(s->mem.base + entry);

    memcpy(slot, cpl, offsetof(struct ndp_hw_cpl, phase));
    qatomic_store_release(&slot->phase, cpu_to_le32(e->phase));
    memory_region_set_dirty(s->dram, entry, sizeof(*cpl));

    e->cq_tail = (e->cq_tail + 1) & e->mask;
    if (e->cq_tail == 0) {
        e->phase ^= 3;
    }
}

static void ndp_engine_count(NdpEngine *e)
{
    NdpJob *job = &e->job;
    NdpCounters *c = &e->counters;

    c->commands++;
    c->wall_ns += job->wall_ns;
    if (job->status != NDP_ST_OK) {
        c->errors++;
        return;
    }
    c->tokens += job->op.tokens;
    c->bytes += ndp_chip_op_bytes(&job->op);
    c->busy_ns += job->modelled_ns;
}

/* Called with dimm->lock held: completes the command, or forgets it. */
static void ndp_engine_finish(NdpEngine *e)
{
    NdpDimm *s = e->dimm;
    NdpJob *job = &e->job;
    struct ndp_hw_cpl cpl = {
        .modelled_ns = cpu_to_le64(job->modelled_ns),
        .generation = cpu_to_le32(job->generation),
        .cid = job->cmd.cid,
        .sq_head = cpu_to_le16(e->head),
        .status = cpu_to_le32(job->status),
    };

    e->busy = false;
    if (qatomic_read(&e->abort) != NDP_ABORT_NONE) {
        trace_ndp_abort(s->node, e->queue, le16_to_cpu(job->cmd.cid));
        qemu_cond_broadcast(&e->idle);
        return;
    }

    ndp_engine_count(e);
    trace_ndp_complete(s->node, e->queue, le16_to_cpu(job->cmd.cid),
                       job->status, job->modelled_ns, job->wall_ns);
    if (ndp_job_hit(job, NDP_FAULT_DROP)) {
        return;
    }
    if (ndp_job_hit(job, NDP_FAULT_CORRUPT)) {
        ndp_inject_corrupt(s, &cpl);
    }
    ndp_engine_write_cpl(e, &cpl);
    if (ndp_job_hit(job, NDP_FAULT_DUPLICATE)) {
        ndp_engine_write_cpl(e, &cpl);
    }
    if (!ndp_job_hit(job, NDP_FAULT_LOST_IRQ)) {
        ndp_irq_raise(s, NDP_VEC_COMPUTE + e->queue);
    }
}

/* The command has run; no lock is held.  Ends its pull, if it has one. */
static void ndp_engine_settle(NdpEngine *e)
{
    uint32_t status = ndp_link_end(e);

    if (status != NDP_ST_OK) {
        e->job.status = status;
        e->job.modelled_ns = 0;
    }
    e->job.wall_ns = get_clock() - e->job.wall_start_ns;
}

/* Called with dimm->lock held: sleeps until the command may complete. */
static void ndp_engine_wait_deadline(NdpEngine *e)
{
    NdpJob *job = &e->job;

    while (qatomic_read(&e->abort) == NDP_ABORT_NONE &&
           ndp_now() < job->deadline_ns) {
        if (job->deadline_ns != INT64_MAX) {
            timer_mod_ns(&e->timer, job->deadline_ns);
        }
        qemu_cond_wait(&e->wake, &e->dimm->lock);
    }
}

static void *ndp_engine_thread(void *opaque)
{
    NdpEngine *e = opaque;
    NdpDimm *s = e->dimm;

    rcu_register_thread();
    qemu_mutex_lock(&s->lock);
    while (!e->stop) {
        if (!ndp_engine_runnable(e)) {
            qemu_cond_wait(&e->wake, &s->lock);
            continue;
        }
        ndp_engine_fetch(e);
        qemu_mutex_unlock(&s->lock);
        ndp_job_run(e);
        qemu_mutex_lock(&s->lock);
        if (e->job.deadline_ns) {
            ndp_engine_wait_deadline(e);
        }
        qemu_mutex_unlock(&s->lock);
        ndp_engine_settle(e);
        qemu_mutex_lock(&s->lock);
        ndp_engine_finish(e);
    }
    qemu_mutex_unlock(&s->lock);
    rcu_unregister_thread();
    return NULL;
}

/* The same without a worker; the BQL is held, the DIMM's lock is not. */
static void ndp_engine_run_inline(NdpEngine *e)
{
    NdpDimm *s = e->dimm;

    qemu_mutex_lock(&s->lock);
    while (ndp_engine_runnable(e)) {
        ndp_engine_fetch(e);
        qemu_mutex_unlock(&s->lock);
        ndp_job_run(e);
        if (e->job.deadline_ns > ndp_now()) {
            if (e->job.deadline_ns != INT64_MAX) {
                timer_mod_ns(&e->timer, e->job.deadline_ns);
            }
            qemu_mutex_lock(&s->lock);
            break;
        }
        ndp_engine_settle(e);
        qemu_mutex_lock(&s->lock);
        ndp_engine_finish(e);
    }
    qemu_mutex_unlock(&s->lock);
    ndp_irq_deliver(s);
}

/* Main loop, BQL held. */
static void ndp_engine_timer(void *opaque)
{
    NdpEngine *e = opaque;
    NdpDimm *s = e->dimm;

    if (!s->run_inline) {
        WITH_QEMU_LOCK_GUARD(&s->lock) {
            qemu_cond_signal(&e->wake);
        }
        return;
    }
    if (e->busy) {
        ndp_engine_settle(e);
        WITH_QEMU_LOCK_GUARD(&s->lock) {
            ndp_engine_finish(e);
        }
    }
    ndp_engine_run_inline(e);
}

void ndp_engine_kick(NdpEngine *e)
{
    if (e->dimm->run_inline) {
        ndp_engine_run_inline(e);
    } else {
        qemu_cond_signal(&e->wake);
    }
}

void ndp_engine_doorbell(NdpEngine *e, uint32_t tail)
{
    NdpDimm *s = e->dimm;
    bool ok;
    bool asleep;

    trace_ndp_doorbell(s->node, e->queue, tail);
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        ok = e->enabled && tail <= e->mask;
        asleep = !e->busy;
        if (ok) {
            e->tail = tail;
        }
    }
    if (!ok) {
        qemu_log_mask(LOG_GUEST_ERROR,
                      "ndp-dimm: node %u: doorbell %" PRIu32 " on the %s "
                      "queue, which %s\n", s->node, tail,
                      queue_name[e->queue],
                      e->enabled ? "is smaller" : "is not enabled");
    } else if (s->run_inline) {
        ndp_engine_run_inline(e);
    } else if (asleep) {
        qemu_cond_signal(&e->wake);
    }
}

static bool ndp_ring_ok(NdpDimm *s, uint64_t base, uint64_t bytes,
                        unsigned align)
{
    return base % align == 0 && base >= s->rsvd_off &&
           base <= s->mem.bytes && bytes <= s->mem.bytes - base;
}

static bool ndp_rings_ok(NdpEngine *e)
{
    NdpDimm *s = e->dimm;
    uint32_t log2 = e->reg_size_log2;

    return log2 >= 1 && log2 <= NDP_QUEUE_LOG2_MAX &&
           ndp_ring_ok(s, e->reg_sq_base,
                       sizeof(struct ndp_hw_cmd) << log2,
                       sizeof(struct ndp_hw_cmd)) &&
           ndp_ring_ok(s, e->reg_cq_base,
                       sizeof(struct ndp_hw_cpl) << log2,
                       sizeof(struct ndp_hw_cpl));
}

void ndp_engine_enable(NdpEngine *e, bool enable)
{
    NdpDimm *s = e->dimm;
    bool ok;

    if (enable == e->enabled) {
        return;
    }
    if (!enable) {
        ndp_engine_quiesce(e);
        return;
    }
    ok = ndp_rings_ok(e);
    trace_ndp_queue_enable(s->node, e->queue, e->reg_sq_base, e->reg_cq_base,
                           e->reg_size_log2, ok);
    if (!ok) {
        qemu_log_mask(LOG_GUEST_ERROR,
                      "ndp-dimm: node %u: %s queue not enabled: rings 0x%"
                      PRIx64 " and 0x%" PRIx64 " of 2^%" PRIu32 " entries do "
                      "not fit the reserved area at 0x%" PRIx64 "\n",
                      s->node, queue_name[e->queue], e->reg_sq_base,
                      e->reg_cq_base, e->reg_size_log2, s->rsvd_off);
        return;
    }
    QEMU_LOCK_GUARD(&s->lock);
    e->sq_base = e->reg_sq_base;
    e->cq_base = e->reg_cq_base;
    e->mask = (1u << e->reg_size_log2) - 1;
    e->head = 0;
    e->tail = 0;
    e->cq_tail = 0;
    e->phase = 1;
    e->enabled = true;
}

void ndp_engine_quiesce(NdpEngine *e)
{
    NdpDimm *s = e->dimm;

    qemu_mutex_lock(&s->lock);
    qatomic_set(&e->abort, NDP_ABORT_RESET);
    if (s->run_inline) {
        timer_del(&e->timer);
        if (e->busy) {
            qemu_mutex_unlock(&s->lock);
            ndp_engine_settle(e);
            qemu_mutex_lock(&s->lock);
            ndp_engine_finish(e);
        }
    } else {
        qemu_cond_broadcast(&e->wake);
        while (e->busy) {
            qemu_cond_wait(&e->idle, &s->lock);
        }
        timer_del(&e->timer);
    }
    qatomic_set(&e->abort, NDP_ABORT_NONE);
    e->enabled = false;
    e->head = 0;
    e->tail = 0;
    e->mask = 0;
    qemu_mutex_unlock(&s->lock);
}

bool ndp_engine_init(NdpDimm *s, unsigned queue, enum ndp_chip_isa isa,
                     Error **errp)
{
    NdpEngine *e = &s->engine[queue];
    g_autofree char *name = NULL;

    e->chip = ndp_chip_engine_new(isa);
    if (!e->chip) {
        error_setg(errp, "no %s engine for node %u: memory is short, or this "
                   "CPU cannot run %s", queue_name[queue], s->node,
                   ndp_chip_isa_name(isa));
        return false;
    }
    e->dimm = s;
    e->queue = queue;
    e->stop = false;
    qemu_cond_init(&e->wake);
    qemu_cond_init(&e->idle);
    timer_init_ns(&e->timer, QEMU_CLOCK_VIRTUAL, ndp_engine_timer, e);
    if (!s->run_inline) {
        name = g_strdup_printf("ndp%u-%s", s->node, queue_name[queue]);
        qemu_thread_create(&e->thread, name, ndp_engine_thread, e,
                           QEMU_THREAD_JOINABLE);
    }
    return true;
}

void ndp_engine_destroy(NdpEngine *e)
{
    if (!e->chip) {
        return;
    }
    ndp_engine_quiesce(e);
    if (!e->dimm->run_inline) {
        WITH_QEMU_LOCK_GUARD(&e->dimm->lock) {
            e->stop = true;
            qemu_cond_broadcast(&e->wake);
        }
        qemu_thread_join(&e->thread);
    }
    timer_deinit(&e->timer);
    qemu_cond_destroy(&e->wake);
    qemu_cond_destroy(&e->idle);
    ndp_chip_engine_free(e->chip);
    e->chip = NULL;
}
