/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: DIMM-Link, the wires between the DIMMs of a domain
 *
 * A pull reads the peer's DRAM in place, on the puller's worker, with the
 * peer's count of pulls raised.  A peer that resets, fails or leaves first
 * makes the pulls from it fail and waits for the count to be zero, so a pull
 * never outlives the memory it reads.
 *
 * A port is serial each way: a transfer occupies the source's transmit and the
 * destination's receive side.  The times live here, under the one link lock.
 *
 * Facts: docs/hardware.md.
 */
#include "qemu/osdep.h"
#include "qapi/error.h"
#include "qemu/atomic.h"
#include "qemu/queue.h"
#include "trace.h"
#include "ndp_dimm.h"

struct NdpDomain {
    QemuUUID uuid;
    NdpDimm *node[NDP_MAX_NODES];
    unsigned members;
    QLIST_ENTRY(NdpDomain) next;
};

static QLIST_HEAD(, NdpDomain) ndp_domains =
    QLIST_HEAD_INITIALIZER(ndp_domains);
static QemuMutex ndp_link_lock;
static QemuCond ndp_link_idle;

static void __attribute__((constructor)) ndp_link_init(void)
{
    qemu_mutex_init(&ndp_link_lock);
    qemu_cond_init(&ndp_link_idle);
}

/* From here to the public functions: called with the link lock held. */

static bool ndp_link_usable(NdpDimm *s)
{
    return s->domain && !s->link_down && !s->link_away;
}

static uint32_t ndp_link_reach(NdpDimm *s)
{
    uint32_t mask = 0;
    unsigned i;

    if (!ndp_link_usable(s)) {
        return 0;
    }
    for (i = 0; i < NDP_MAX_NODES; i++) {
        NdpDimm *peer = s->domain->node[i];

        if (peer && peer != s && ndp_link_usable(peer)) {
            mask |= 1u << i;
        }
    }
    return mask;
}

static void ndp_link_notify(NdpDomain *domain, NdpDimm *except)
{
    unsigned i;

    for (i = 0; i < NDP_MAX_NODES; i++) {
        if (domain->node[i] && domain->node[i] != except) {
            ndp_event_raise(domain->node[i], NDP_EVENT_LINK);
        }
    }
}

/* A pull that was cut short leaves its ports to others, if none queued up. */
static void ndp_link_free_ports(NdpEngine *e)
{
    int64_t now_ns = qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL);

    if (e->pull_src->tx_busy_ns == e->pull_end_ns) {
        e->pull_src->tx_busy_ns = now_ns;
    }
    if (e->dimm->rx_busy_ns == e->pull_end_ns) {
        e->dimm->rx_busy_ns = now_ns;
    }
}

static uint32_t ndp_link_drop_pull(NdpEngine *e)
{
    NdpAbort reason = qatomic_read(&e->abort);

    if (reason != NDP_ABORT_NONE) {
        ndp_link_free_ports(e);
    }
    e->pull_src->pulls--;
    e->pull_src = NULL;
    qemu_cond_broadcast(&ndp_link_idle);
    switch (reason) {
    case NDP_ABORT_PEER:
        qatomic_cmpxchg(&e->abort, reason, NDP_ABORT_NONE);
        return NDP_ST_PEER;
    case NDP_ABORT_LINK_DOWN:
        qatomic_cmpxchg(&e->abort, reason, NDP_ABORT_NONE);
        return NDP_ST_LINK_DOWN;
    default:
        return NDP_ST_OK;
    }
}

/* Makes @e's pull fail.  A reset that is under way already goes first. */
static void ndp_link_abort_pull(NdpEngine *e, NdpAbort reason)
{
    NdpDimm *puller = e->dimm;

    if (qatomic_cmpxchg(&e->abort, NDP_ABORT_NONE, reason)
        != NDP_ABORT_NONE) {
        return;
    }
    if (puller->run_inline) {
        e->job.status = ndp_link_drop_pull(e);
        e->job.modelled_ns = 0;
        timer_mod_ns(&e->timer, 0);
    } else {
        QEMU_LOCK_GUARD(&puller->lock);
        qemu_cond_signal(&e->wake);
    }
}

/* Fails the pulls from @s and waits until the last has let go of its DRAM. */
static void ndp_link_evict(NdpDimm *s, NdpAbort reason)
{
    unsigned i;

    for (i = 0; i < NDP_MAX_NODES; i++) {
        NdpDimm *peer = s->domain->node[i];

        if (peer && peer->engine[NDP_Q_LINK].pull_src == s) {
            ndp_link_abort_pull(&peer->engine[NDP_Q_LINK], reason);
        }
    }
    while (s->pulls) {
        qemu_cond_wait(&ndp_link_idle, &ndp_link_lock);
    }
}

static NdpDomain *ndp_domain_get(const QemuUUID *uuid)
{
    NdpDomain *domain;

    QLIST_FOREACH(domain, &ndp_domains, next) {
        if (qemu_uuid_is_equal(&domain->uuid, uuid)) {
            return domain;
        }
    }
    domain = g_new0(NdpDomain, 1);
    domain->uuid = *uuid;
    QLIST_INSERT_HEAD(&ndp_domains, domain, next);
    return domain;
}

static void ndp_domain_put(NdpDomain *domain)
{
    if (!domain->members) {
        QLIST_REMOVE(domain, next);
        g_free(domain);
    }
}

/* Public functions. */

bool ndp_link_join(NdpDimm *s, Error **errp)
{
    NdpDomain *domain;

    QEMU_LOCK_GUARD(&ndp_link_lock);
    domain = ndp_domain_get(&s->uuid);
    if (domain->node[s->node]) {
        error_setg(errp, "node %u of this domain is there already; give each "
                   "DIMM a node of its own", s->node);
        ndp_domain_put(domain);
        return false;
    }
    domain->node[s->node] = s;
    domain->members++;
    s->domain = domain;
    ndp_link_notify(domain, s);
    return true;
}

void ndp_link_leave(NdpDimm *s)
{
    NdpDomain *domain;

    QEMU_LOCK_GUARD(&ndp_link_lock);
    domain = s->domain;
    if (!domain) {
        return;
    }
    s->link_away = true;
    ndp_link_evict(s, NDP_ABORT_PEER);
    domain->node[s->node] = NULL;
    domain->members--;
    s->domain = NULL;
    ndp_link_notify(domain, NULL);
    ndp_domain_put(domain);
}

void ndp_link_away(NdpDimm *s, bool tell)
{
    QEMU_LOCK_GUARD(&ndp_link_lock);
    if (!s->domain || s->link_away) {
        return;
    }
    s->link_away = true;
    s->link_told = tell;
    ndp_link_evict(s, NDP_ABORT_PEER);
    if (tell) {
        ndp_link_notify(s->domain, s);
    }
}

void ndp_link_back(NdpDimm *s)
{
    QEMU_LOCK_GUARD(&ndp_link_lock);
    if (!s->domain || !s->link_away) {
        return;
    }
    s->link_away = false;
    if (s->link_told) {
        ndp_link_notify(s->domain, s);
    }
}

void ndp_link_set_down(NdpDimm *s, bool down)
{
    NdpEngine *e = &s->engine[NDP_Q_LINK];

    QEMU_LOCK_GUARD(&ndp_link_lock);
    if (s->link_down == down) {
        return;
    }
    s->link_down = down;
    if (!s->domain) {
        return;
    }
    trace_ndp_link_change(s->node, !down);
    if (down) {
        if (e->pull_src) {
            ndp_link_abort_pull(e, NDP_ABORT_LINK_DOWN);
        }
        ndp_link_evict(s, NDP_ABORT_LINK_DOWN);
    }
    ndp_link_notify(s->domain, NULL);
}

bool ndp_link_is_up(NdpDimm *s)
{
    QEMU_LOCK_GUARD(&ndp_link_lock);
    return ndp_link_usable(s);
}

uint32_t ndp_link_peers(NdpDimm *s)
{
    QEMU_LOCK_GUARD(&ndp_link_lock);
    return ndp_link_reach(s);
}

uint32_t ndp_link_begin(NdpEngine *e, const struct ndp_chip_op *op,
                        struct ndp_chip_mem *src, int64_t *deadline_ns)
{
    NdpDimm *s = e->dimm;
    NdpDimm *peer;
    uint64_t busy_ns;
    int64_t start_ns;

    QEMU_LOCK_GUARD(&ndp_link_lock);
    if (!s->domain || s->link_down) {
        return NDP_ST_LINK_DOWN;
    }
    peer = op->node < NDP_MAX_NODES ? s->domain->node[op->node] : NULL;
    if (!peer || peer == s || peer->link_away) {
        return NDP_ST_PEER;
    }
    if (peer->link_down) {
        return NDP_ST_LINK_DOWN;
    }
    peer->pulls++;
    e->pull_src = peer;
    *src = peer->mem;

    busy_ns = ndp_chip_op_ns(op, &s->params) - s->params.link_latency_ns;
    start_ns = MAX(qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL),
                   MAX(peer->tx_busy_ns, s->rx_busy_ns));
    e->pull_end_ns = start_ns + busy_ns;
    peer->tx_busy_ns = e->pull_end_ns;
    s->rx_busy_ns = e->pull_end_ns;
    *deadline_ns = e->pull_end_ns + s->params.link_latency_ns;
    trace_ndp_link_pull(s->node, op->node, op->len, *deadline_ns);
    return NDP_ST_OK;
}

uint32_t ndp_link_end(NdpEngine *e)
{
    if (e->queue != NDP_Q_LINK) {
        return NDP_ST_OK;
    }
    QEMU_LOCK_GUARD(&ndp_link_lock);
    return e->pull_src ? ndp_link_drop_pull(e) : NDP_ST_OK;
}
