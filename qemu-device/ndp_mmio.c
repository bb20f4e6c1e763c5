/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: the registers in BAR 0
 *
 * Runs under the BQL.  A guest may write anything here: a value is checked
 * when it is used, and one that is wrong is ignored and logged.  Registers
 * are 32 bits wide or pairs of that; accesses of 4 and 8 bytes are taken.
 *
 * Facts: ndp_regs.h.
 */
#include "qemu/osdep.h"
#include "qemu/bitops.h"
#include "qemu/bswap.h"
#include "qemu/log.h"
#include "trace.h"
#include "ndp_dimm.h"

#define PAIR(lo, hi) ((uint32_t)(lo) | (uint64_t)(uint32_t)(hi) << 32)

static uint32_t ndp_cap(NdpDimm *s)
{
    return (s->coherent ? NDP_CAP_COHERENT : 0) | NDP_CAP_LINK |
           (s->timing ? NDP_CAP_TIMING : 0);
}

static uint32_t ndp_status(NdpDimm *s)
{
    uint32_t status = 0;

    if (s->resetting) {
        status |= NDP_STATUS_RESETTING;
    } else if (s->failed) {
        status |= NDP_STATUS_FAILED;
    } else {
        status |= NDP_STATUS_READY;
    }
    if (ndp_link_is_up(s)) {
        status |= NDP_STATUS_LINK_UP;
    }
    return status;
}

static uint64_t ndp_queue_read(NdpEngine *e, unsigned reg)
{
    uint32_t head;
    uint32_t tail;

    switch (reg) {
    case NDP_Q_SQ_BASE:
        return e->reg_sq_base;
    case NDP_Q_CQ_BASE:
        return e->reg_cq_base;
    case NDP_Q_SIZE_LOG2: /* and ENABLE */
        return PAIR(e->reg_size_log2, e->enabled);
    case NDP_Q_DOORBELL: /* and SQ_HEAD */
        WITH_QEMU_LOCK_GUARD(&e->dimm->lock) {
            head = e->head;
            tail = e->tail;
        }
        return PAIR(tail, head);
    default:
        return 0;
    }
}

static uint64_t ndp_counter_read(NdpEngine *e, unsigned reg)
{
    QEMU_LOCK_GUARD(&e->dimm->lock);

    switch (reg) {
    case NDP_CTR_COMMANDS:
        return e->counters.commands;
    case NDP_CTR_ERRORS:
        return e->counters.errors;
    case NDP_CTR_TOKENS:
        return e->counters.tokens;
    case NDP_CTR_BYTES:
        return e->counters.bytes;
    case NDP_CTR_BUSY_NS:
        return e->counters.busy_ns;
    case NDP_CTR_WALL_NS:
        return e->counters.wall_ns;
    default:
        return 0;
    }
}

/* The pair of registers at @addr, a multiple of 8. */
static uint64_t ndp_read_pair(NdpDimm *s, hwaddr addr)
{
    switch (addr) {
    case NDP_REG_MAGIC:
        return PAIR(NDP_MAGIC, NDP_VERSION);
    case NDP_REG_CAP:
        return PAIR(ndp_cap(s), s->node);
    case NDP_REG_MAX_TOKENS:
        return PAIR(NDP_MAX_TOKENS, NDP_MAX_COPY_BYTES);
    case NDP_REG_MAX_QUEUE:
        return NDP_QUEUE_LOG2_MAX;
    case NDP_REG_DOMAIN_LO:
        return ldq_le_p(s->uuid.data);
    case NDP_REG_DOMAIN_HI:
        return ldq_le_p(s->uuid.data + 8);
    case NDP_REG_MEM_SIZE:
        return s->mem.bytes;
    case NDP_REG_RSVD_OFF:
        return s->rsvd_off;
    case NDP_REG_RSVD_SIZE:
        return s->mem.bytes - s->rsvd_off;
    case NDP_REG_INTERNAL_MBPS:
        return PAIR(s->params.internal_mbps, s->params.gflops);
    case NDP_REG_LINK_MBPS:
        return PAIR(s->params.link_mbps, s->params.overhead_ns);
    case NDP_REG_LINK_LATENCY_NS:
        return s->params.link_latency_ns;
    case NDP_REG_PEERS:
        return ndp_link_peers(s);
    case NDP_REG_CTRL:
        return PAIR(s->ctrl_enable ? NDP_CTRL_ENABLE : 0, ndp_status(s));
    case NDP_REG_GENERATION:
        return PAIR(s->generation, qatomic_read(&s->event));
    case NDP_REG_Q(0, 0) ... NDP_REG_Q(NDP_QUEUES, 0) - 1:
        addr -= NDP_REG_Q(0, 0);
        return ndp_queue_read(&s->engine[addr / 0x40], addr % 0x40);
    case NDP_REG_COUNTER(0, 0) ... NDP_REG_COUNTER(NDP_QUEUES, 0) - 1:
        addr -= NDP_REG_COUNTER(0, 0);
        return ndp_counter_read(&s->engine[addr / 0x40], addr % 0x40);
    default:
        return 0;
    }
}

static uint64_t ndp_mmio_read(void *opaque, hwaddr addr, unsigned size)
{
    NdpDimm *s = opaque;
    uint64_t val;

    if (s->gone) {
        return UINT64_MAX;
    }
    val = ndp_read_pair(s, addr & ~7ull);
    if (size == 4) {
        val = extract64(val, addr & 4 ? 32 : 0, 32);
    }
    trace_ndp_mmio_read(s->node, addr, size, val);
    return val;
}

static void ndp_ctrl_write(NdpDimm *s, uint32_t val)
{
    unsigned q;

    if (val & NDP_CTRL_RESET) {
        ndp_dimm_reset(s);
        return;
    }
    if (s->resetting) {
        return;
    }
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->ctrl_enable = val & NDP_CTRL_ENABLE;
    }
    for (q = 0; q < NDP_QUEUES; q++) {
        ndp_engine_kick(&s->engine[q]);
    }
}

static void ndp_queue_write(NdpEngine *e, unsigned reg, uint32_t val)
{
    switch (reg) {
    case NDP_Q_SQ_BASE:
        e->reg_sq_base = deposit64(e->reg_sq_base, 0, 32, val);
        break;
    case NDP_Q_SQ_BASE + 4:
        e->reg_sq_base = deposit64(e->reg_sq_base, 32, 32, val);
        break;
    case NDP_Q_CQ_BASE:
        e->reg_cq_base = deposit64(e->reg_cq_base, 0, 32, val);
        break;
    case NDP_Q_CQ_BASE + 4:
        e->reg_cq_base = deposit64(e->reg_cq_base, 32, 32, val);
        break;
    case NDP_Q_SIZE_LOG2:
        e->reg_size_log2 = val;
        break;
    case NDP_Q_ENABLE:
        ndp_engine_enable(e, val & 1);
        break;
    case NDP_Q_DOORBELL:
        ndp_engine_doorbell(e, val);
        break;
    default:
        break;
    }
}

static void ndp_write32(NdpDimm *s, hwaddr addr, uint32_t val)
{
    if (addr == NDP_REG_CTRL) {
        ndp_ctrl_write(s, val);
        return;
    }
    if (s->resetting) {
        return;
    }
    switch (addr) {
    case NDP_REG_EVENT:
        qatomic_and(&s->event, ~val);
        break;
    case NDP_REG_Q(0, 0) ... NDP_REG_Q(NDP_QUEUES, 0) - 1:
        addr -= NDP_REG_Q(0, 0);
        ndp_queue_write(&s->engine[addr / 0x40], addr % 0x40, val);
        break;
    default:
        qemu_log_mask(LOG_GUEST_ERROR,
                      "ndp-dimm: write to register 0x%" HWADDR_PRIx
                      ", which is read-only\n", addr);
        break;
    }
}

static void ndp_mmio_write(void *opaque, hwaddr addr, uint64_t val,
                           unsigned size)
{
    NdpDimm *s = opaque;

    if (s->gone) {
        return;
    }
    trace_ndp_mmio_write(s->node, addr, size, val);
    ndp_write32(s, addr, val);
    if (size == 8) {
        ndp_write32(s, addr + 4, val >> 32);
    }
}

const MemoryRegionOps ndp_mmio_ops = {
    .read = ndp_mmio_read,
    .write = ndp_mmio_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid.min_access_size = 4,
    .valid.max_access_size = 8,
    .impl.min_access_size = 4,
    .impl.max_access_size = 8,
};

/* What a DIMM that is gone answers in place of its DRAM. */
static uint64_t ndp_ones_read(void *opaque, hwaddr addr, unsigned size)
{
    return UINT64_MAX;
}

static void ndp_ones_write(void *opaque, hwaddr addr, uint64_t val,
                           unsigned size)
{
}

const MemoryRegionOps ndp_ones_ops = {
    .read = ndp_ones_read,
    .write = ndp_ones_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid.min_access_size = 1,
    .valid.max_access_size = 8,
    .impl.min_access_size = 1,
    .impl.max_access_size = 8,
};
