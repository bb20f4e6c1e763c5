/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * QEMU model of a near-data-processing DIMM: internal interfaces
 *
 * Locks, outermost first:
 *
 *   BQL        registers, properties, realize, exit, reset, interrupts
 *   link lock  who is linked to whom, pulls in progress, port times (one for
 *              all domains, private to ndp_link.c)
 *   dimm->lock rings and engine states of one DIMM; never two DIMMs' at once
 *
 * Worker threads take the link lock and their own DIMM's lock and never the
 * BQL, so whoever holds the BQL may wait for them.
 *
 * Facts: docs/hardware.md and ndp_regs.h.
 */
#ifndef HW_NDP_DIMM_H
#define HW_NDP_DIMM_H

#include "hw/pci/pci_device.h"
#include "qemu/main-loop.h"
#include "qemu/thread.h"
#include "qemu/timer.h"
#include "qemu/uuid.h"
#include "system/hostmem.h"
#include "chip/ndp_chip.h"
#include "ndp_regs.h"

#define TYPE_NDP_DIMM "ndp-dimm"
OBJECT_DECLARE_SIMPLE_TYPE(NdpDimm, NDP_DIMM)

typedef struct NdpDomain NdpDomain;
typedef struct NdpEngine NdpEngine;

/* Why a running command must end; the chip polls it as its abort flag. */
typedef enum NdpAbort {
    NDP_ABORT_NONE,
    NDP_ABORT_RESET,
    NDP_ABORT_PEER,
    NDP_ABORT_LINK_DOWN,
} NdpAbort;

/* Faults that a command can be hit by; see ndp_inject.c. */
typedef enum NdpFault {
    NDP_FAULT_DROP,
    NDP_FAULT_DELAY,
    NDP_FAULT_DUPLICATE,
    NDP_FAULT_CORRUPT,
    NDP_FAULT_ERROR,
    NDP_FAULT_HANG,
    NDP_FAULT_LOST_IRQ,
    NDP_FAULTS,
} NdpFault;

typedef struct NdpInject {
    uint32_t count[NDP_FAULTS]; /* so many commands are still to be hit */
    uint32_t every[NDP_FAULTS]; /* every Nth command is hit; 0: none */
    uint32_t seen[NDP_FAULTS];  /* since the last one */
    uint32_t queues;
    uint32_t error_status;
    uint32_t corrupt_fields;
    uint64_t delay_ns;
    bool reset_stuck;
} NdpInject;

/* A command between its fetch and its completion. */
typedef struct NdpJob {
    struct ndp_hw_cmd cmd;
    struct ndp_chip_op op;
    uint32_t generation;
    uint32_t status;
    uint32_t faults; /* bits of NdpFault */
    uint64_t modelled_ns;
    int64_t wall_start_ns;
    int64_t wall_ns;
    int64_t deadline_ns; /* virtual clock; not completed before */
} NdpJob;

typedef struct NdpCounters {
    uint64_t commands;
    uint64_t errors;
    uint64_t tokens;
    uint64_t bytes;
    uint64_t busy_ns;
    uint64_t wall_ns;
} NdpCounters;

struct NdpEngine {
    NdpDimm *dimm;
    unsigned queue;
    struct ndp_chip_engine *chip;
    QemuThread thread;
    QEMUTimer timer; /* end of a modelled or injected delay */

    /* Registers as the driver wrote them; BQL. */
    uint64_t reg_sq_base;
    uint64_t reg_cq_base;
    uint32_t reg_size_log2;

    /* The rest is under dimm->lock unless it says otherwise. */
    QemuCond wake; /* the worker: work, abort, stop, time is up */
    QemuCond idle; /* others: the command ended */
    bool enabled;
    bool busy;
    bool stop;
    int abort; /* NdpAbort, atomic: polled by the chip */
    uint64_t sq_base;
    uint64_t cq_base;
    uint32_t mask;
    uint32_t head;
    uint32_t tail;
    uint32_t cq_tail;
    uint32_t phase;
    NdpJob job; /* the worker's own while busy */
    NdpCounters counters;

    /* Link lock: the pull in progress. */
    NdpDimm *pull_src;
    int64_t pull_end_ns; /* of its use of the ports */
};

struct NdpDimm {
    PCIDevice parent_obj;

    /* Properties. */
    HostMemoryBackend *hostmem;
    QemuUUID uuid;
    uint8_t node;
    bool coherent;
    bool timing;
    char *isa;
    struct ndp_chip_params params;

    MemoryRegion regs;
    MemoryRegion dram_bar; /* the DRAM, and all-ones behind it */
    MemoryRegion ones;
    MemoryRegion *dram;
    struct ndp_chip_mem mem;
    uint64_t rsvd_off;
    Error *migration_blocker;

    bool live;       /* realized: BQL */
    bool run_inline; /* icount: no workers, commands run in the doorbell */
    bool gone;       /* BQL and lock to write, either to read; so are these */
    bool resetting;
    bool failed;
    bool ctrl_enable;
    uint32_t generation;
    uint32_t event; /* atomic */

    QEMUBH *irq_bh;
    uint32_t irq_pending; /* atomic, one bit a vector */

    QemuMutex lock;
    NdpEngine engine[NDP_QUEUES];
    NdpInject inject;

    /* Link lock. */
    NdpDomain *domain;
    bool link_down;
    bool link_away; /* resetting, failed or gone */
    bool link_told; /* and the peers were told so */
    unsigned pulls; /* peers reading this DRAM now */
    int64_t tx_busy_ns;
    int64_t rx_busy_ns;
};

/* ndp_dimm.c */
void ndp_dimm_reset(NdpDimm *s);
void ndp_dimm_reset_finish(NdpDimm *s);
void ndp_dimm_set_gone(NdpDimm *s, bool gone);
void ndp_dimm_fail(NdpDimm *s);
void ndp_irq_raise(NdpDimm *s, unsigned vector);
void ndp_irq_deliver(void *opaque);
/* Sets bits of NDP_REG_EVENT and raises its vector; any thread. */
void ndp_event_raise(NdpDimm *s, uint32_t bits);

/* ndp_mmio.c */
extern const MemoryRegionOps ndp_mmio_ops;
extern const MemoryRegionOps ndp_ones_ops;

/* ndp_cmd.c */
/*
 * Translates a private copy of a command for the chip.  Not NDP_ST_OK when it
 * does not belong on @queue, or when the chip could not see what is wrong.
 */
uint32_t ndp_cmd_decode(const struct ndp_hw_cmd *cmd, unsigned queue,
                        struct ndp_chip_op *op);
/* The bytes of DRAM from first to last that @op, if it is valid, writes. */
void ndp_cmd_output(const struct ndp_chip_op *op, uint64_t *start,
                    uint64_t *bytes);

/* ndp_queue.c */
bool ndp_engine_init(NdpDimm *s, unsigned queue, enum ndp_chip_isa isa,
                     Error **errp);
void ndp_engine_destroy(NdpEngine *e);
/* Ends what runs without completing it and forgets the rings. */
void ndp_engine_quiesce(NdpEngine *e);
void ndp_engine_enable(NdpEngine *e, bool enable);
void ndp_engine_doorbell(NdpEngine *e, uint32_t tail);
/* Something that keeps the engine from running may have changed. */
void ndp_engine_kick(NdpEngine *e);

/* ndp_link.c */
bool ndp_link_join(NdpDimm *s, Error **errp);
void ndp_link_leave(NdpDimm *s);
/*
 * Going away fails and waits for the pulls from @s.  With @tell the peers get
 * an event now and when it is back; a reset is over before they could look.
 */
void ndp_link_away(NdpDimm *s, bool tell);
void ndp_link_back(NdpDimm *s);
void ndp_link_set_down(NdpDimm *s, bool down);
bool ndp_link_is_up(NdpDimm *s);
uint32_t ndp_link_peers(NdpDimm *s);
/*
 * Starts a pull: on NDP_ST_OK @src is the peer's DRAM, which stays until
 * ndp_link_end(), and @deadline_ns is when the modelled ports are done.  @op
 * has passed ndp_chip_check().
 */
uint32_t ndp_link_begin(NdpEngine *e, const struct ndp_chip_op *op,
                        struct ndp_chip_mem *src, int64_t *deadline_ns);
/* Ends a pull if there is one; what became of it, NDP_ST_OK if all is well. */
uint32_t ndp_link_end(NdpEngine *e);

/* ndp_inject.c */
void ndp_inject_init(NdpDimm *s);
void ndp_inject_add_properties(ObjectClass *klass);
/* Which faults hit the command that @e fetches; dimm->lock is held. */
uint32_t ndp_inject_pick(NdpEngine *e);
void ndp_inject_corrupt(NdpDimm *s, struct ndp_hw_cpl *cpl);

static inline bool ndp_job_hit(const NdpJob *job, NdpFault fault)
{
    return job->faults & (1u << fault);
}

#endif
