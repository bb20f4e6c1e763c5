/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: a memory module whose buffer chip computes on what it holds
 *
 * One PCI function a DIMM: BAR 0 registers, BAR 2 the DRAM (a memory
 * backend), BAR 4 MSI-X.  The device never masters the bus: rings, operands
 * and results lie in its own DRAM, and only interrupts leave it.
 *
 * This file is the device as QEMU sees it: object, properties, BARs,
 * interrupts, reset, plug and unplug.
 *
 * Facts: docs/hardware.md and ndp_regs.h.
 */
#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "qemu/module.h"
#include "qemu/units.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "exec/cpu-common.h"
#include "hw/pci/msix.h"
#include "hw/pci/pcie.h"
#include "hw/qdev-properties.h"
#include "hw/qdev-properties-system.h"
#include "migration/blocker.h"
#include "migration/vmstate.h"
#include "system/cpu-timers.h"
#include "trace.h"
#include "ndp_dimm.h"

#define NDP_PCIE_CAP 0x80

/* Interrupts. */

/* BQL held, dimm->lock not: a message may land in our own registers. */
void ndp_irq_deliver(void *opaque)
{
    NdpDimm *s = opaque;
    uint32_t pending = qatomic_xchg(&s->irq_pending, 0);
    unsigned vector;

    for (vector = 0; vector < NDP_VECTORS; vector++) {
        if (pending & (1u << vector) && !s->gone) {
            trace_ndp_irq(s->node, vector);
            msix_notify(PCI_DEVICE(s), vector);
        }
    }
}

/* Without workers the doorbell's handler delivers what its commands raised. */
void ndp_irq_raise(NdpDimm *s, unsigned vector)
{
    qatomic_or(&s->irq_pending, 1u << vector);
    if (vector == NDP_VEC_EVENT || !s->run_inline) {
        qemu_bh_schedule(s->irq_bh);
    }
}

void ndp_event_raise(NdpDimm *s, uint32_t bits)
{
    qatomic_or(&s->event, bits);
    ndp_irq_raise(s, NDP_VEC_EVENT);
}

/* Reset and failures; all under the BQL. */

static void ndp_dimm_quiesce(NdpDimm *s)
{
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        ndp_engine_quiesce(&s->engine[q]);
    }
}

/* The second half of a reset: the device is as after power-on, but its DRAM. */
void ndp_dimm_reset_finish(NdpDimm *s)
{
    unsigned q;

    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->ctrl_enable = false;
        s->failed = false;
        s->resetting = false;
        s->generation++;
    }
    for (q = 0; q < NDP_QUEUES; q++) {
        NdpEngine *e = &s->engine[q];

        e->reg_sq_base = 0;
        e->reg_cq_base = 0;
        e->reg_size_log2 = 0;
    }
    qatomic_set(&s->irq_pending, 0);
    qatomic_set(&s->event, 0);
    for (q = 0; q < NDP_VECTORS; q++) {
        msix_clr_pending(PCI_DEVICE(s), q);
    }
    trace_ndp_reset(s->node, s->generation);
    ndp_link_back(s);
}

void ndp_dimm_reset(NdpDimm *s)
{
    bool stuck = s->inject.reset_stuck;

    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->resetting = true;
        s->ctrl_enable = false;
    }
    ndp_link_away(s, stuck);
    ndp_dimm_quiesce(s);
    if (!stuck) {
        ndp_dimm_reset_finish(s);
    }
}

void ndp_dimm_fail(NdpDimm *s)
{
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->failed = true;
    }
    ndp_link_away(s, true);
    ndp_dimm_quiesce(s);
    ndp_event_raise(s, NDP_EVENT_FATAL);
}

void ndp_dimm_set_gone(NdpDimm *s, bool gone)
{
    if (s->gone == gone) {
        return;
    }
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->gone = gone;
    }
    if (!s->live) {
        return;
    }
    if (gone) {
        ndp_link_away(s, true);
        ndp_dimm_quiesce(s);
    } else {
        ndp_dimm_reset(s);
    }
    memory_region_set_enabled(s->dram, !gone);
}

static void ndp_dimm_reset_hold(Object *obj, ResetType type)
{
    NdpDimm *s = NDP_DIMM(obj);

    if (s->gone) {
        ndp_dimm_set_gone(s, false);
    } else {
        ndp_dimm_reset(s);
    }
}

/* Configuration space. */

static uint32_t ndp_dimm_config_read(PCIDevice *dev, uint32_t addr, int len)
{
    if (NDP_DIMM(dev)->gone) {
        return UINT32_MAX >> (32 - 8 * len);
    }
    return pci_default_read_config(dev, addr, len);
}

static void ndp_dimm_config_write(PCIDevice *dev, uint32_t addr, uint32_t val,
                                  int len)
{
    if (NDP_DIMM(dev)->gone) {
        return;
    }
    pci_default_write_config(dev, addr, val, len);
    pcie_cap_flr_write_config(dev, addr, val, len);
}

/* Realize and exit. */

static bool ndp_dimm_check_memdev(NdpDimm *s, Error **errp)
{
    MemoryRegion *mr;
    uint64_t bytes;

    if (!s->hostmem) {
        error_setg(errp, "'memdev' is missing: name the memory backend that "
                   "is the DIMM's DRAM");
        return false;
    }
    if (host_memory_backend_is_mapped(s->hostmem)) {
        error_setg(errp, "memory backend '%s' is in use already",
                   object_get_canonical_path_component(OBJECT(s->hostmem)));
        return false;
    }
    mr = host_memory_backend_get_memory(s->hostmem);
    bytes = memory_region_size(mr);
    if (!is_power_of_2(bytes) || bytes < 2 * NDP_RSVD_BYTES) {
        error_setg(errp, "memory backend '%s' has %" PRIu64 " bytes; a DIMM's "
                   "must be a power of two of at least %u",
                   object_get_canonical_path_component(OBJECT(s->hostmem)),
                   bytes, 2 * NDP_RSVD_BYTES);
        return false;
    }
    return true;
}

static bool ndp_dimm_check_params(NdpDimm *s, Error **errp)
{
    if (s->node >= NDP_MAX_NODES) {
        error_setg(errp, "node %u: must be 0 to %u", s->node,
                   NDP_MAX_NODES - 1);
        return false;
    }
    if (!s->params.internal_mbps || !s->params.gflops ||
        !s->params.link_mbps) {
        error_setg(errp,
                   "internal-mbps, gflops and link-mbps must not be 0");
        return false;
    }
    return true;
}

static bool ndp_dimm_parse_isa(NdpDimm *s, enum ndp_chip_isa *isa,
                               Error **errp)
{
    g_autoptr(GString) usable = g_string_new("auto");
    int i;

    if (!s->isa || !strcmp(s->isa, "auto")) {
        *isa = ndp_chip_isa_best();
        return true;
    }
    for (i = NDP_CHIP_ISA_SCALAR; i <= NDP_CHIP_ISA_AVX512_BF16; i++) {
        if (!ndp_chip_isa_usable(i)) {
            continue;
        }
        if (!strcmp(s->isa, ndp_chip_isa_name(i))) {
            *isa = i;
            return true;
        }
        g_string_append_printf(usable, ", %s", ndp_chip_isa_name(i));
    }
    error_setg(errp, "isa '%s' is unknown or cannot run here; use one of: %s",
               s->isa, usable->str);
    return false;
}

static void ndp_dimm_map_dram(NdpDimm *s)
{
    s->dram = host_memory_backend_get_memory(s->hostmem);
    host_memory_backend_set_mapped(s->hostmem, true);
    vmstate_register_ram(s->dram, DEVICE(s));
    s->mem.base = memory_region_get_ram_ptr(s->dram);
    s->mem.bytes = memory_region_size(s->dram);
    s->rsvd_off = s->mem.bytes - NDP_RSVD_BYTES;

    memory_region_init(&s->dram_bar, OBJECT(s), "ndp-dram", s->mem.bytes);
    memory_region_init_io(&s->ones, OBJECT(s), &ndp_ones_ops, s, "ndp-ones",
                          s->mem.bytes);
    memory_region_add_subregion(&s->dram_bar, 0, s->dram);
    memory_region_add_subregion_overlap(&s->dram_bar, 0, &s->ones, -1);
    memory_region_set_enabled(s->dram, !s->gone);
}

/* A DIMM without power forgets, whatever becomes of its backend. */
static void ndp_dimm_unmap_dram(NdpDimm *s)
{
    if (!s->dram) {
        return;
    }
    if (ram_block_discard_range(s->dram->ram_block, 0, s->mem.bytes) < 0) {
        memset(s->mem.base, 0, s->mem.bytes);
    }
    memory_region_del_subregion(&s->dram_bar, s->dram);
    memory_region_del_subregion(&s->dram_bar, &s->ones);
    vmstate_unregister_ram(s->dram, DEVICE(s));
    host_memory_backend_set_mapped(s->hostmem, false);
    s->dram = NULL;
}

/* Undoes as much of realize as was done. */
static void ndp_dimm_exit(PCIDevice *dev)
{
    NdpDimm *s = NDP_DIMM(dev);
    unsigned q;

    trace_ndp_exit(s->node);
    s->live = false;
    ndp_link_leave(s);
    for (q = 0; q < NDP_QUEUES; q++) {
        ndp_engine_destroy(&s->engine[q]);
    }
    if (s->irq_bh) {
        qemu_bh_delete(s->irq_bh);
        s->irq_bh = NULL;
    }
    if (msix_present(dev)) {
        for (q = 0; q < NDP_VECTORS; q++) {
            msix_vector_unuse(dev, q);
        }
        msix_uninit_exclusive_bar(dev);
    }
    if (dev->exp.exp_cap) {
        pcie_cap_exit(dev);
    }
    ndp_dimm_unmap_dram(s);
    migrate_del_blocker(&s->migration_blocker);
}

static bool ndp_dimm_init_pci(NdpDimm *s, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(s);
    unsigned i;

    if (pcie_endpoint_cap_init(dev, NDP_PCIE_CAP) < 0) {
        error_setg(errp, "no PCI Express capability");
        return false;
    }
    pcie_cap_flr_init(dev);
    if (msix_init_exclusive_bar(dev, NDP_VECTORS, NDP_BAR_MSIX, errp) < 0) {
        return false;
    }
    for (i = 0; i < NDP_VECTORS; i++) {
        msix_vector_use(dev, i);
    }
    memory_region_init_io(&s->regs, OBJECT(s), &ndp_mmio_ops, s, "ndp-regs",
                          NDP_REGS_BYTES);
    pci_register_bar(dev, NDP_BAR_REGS, PCI_BASE_ADDRESS_SPACE_MEMORY,
                     &s->regs);
    pci_register_bar(dev, NDP_BAR_DRAM, PCI_BASE_ADDRESS_SPACE_MEMORY |
                     PCI_BASE_ADDRESS_MEM_TYPE_64 |
                     PCI_BASE_ADDRESS_MEM_PREFETCH, &s->dram_bar);
    return true;
}

static bool ndp_dimm_start(NdpDimm *s, enum ndp_chip_isa isa, Error **errp)
{
    unsigned q;

    s->run_inline = icount_enabled();
    s->irq_bh = qemu_bh_new_guarded(ndp_irq_deliver, s,
                                    &DEVICE(s)->mem_reentrancy_guard);
    for (q = 0; q < NDP_QUEUES; q++) {
        if (!ndp_engine_init(s, q, isa, errp)) {
            return false;
        }
    }
    return ndp_link_join(s, errp);
}

static void ndp_dimm_realize(PCIDevice *dev, Error **errp)
{
    NdpDimm *s = NDP_DIMM(dev);
    enum ndp_chip_isa isa;

    if (!ndp_dimm_check_memdev(s, errp) || !ndp_dimm_check_params(s, errp) ||
        !ndp_dimm_parse_isa(s, &isa, errp)) {
        return;
    }
    error_setg(&s->migration_blocker, "ndp-dimm does not support migration: "
               "commands in flight and links between DIMMs cannot be moved");
    if (migrate_add_blocker(&s->migration_blocker, errp) < 0) {
        return;
    }
    ndp_dimm_map_dram(s);
    if (!ndp_dimm_init_pci(s, errp) || !ndp_dimm_start(s, isa, errp)) {
        ndp_dimm_exit(dev);
        return;
    }
    s->live = true;
    trace_ndp_realize(s->node, s->mem.bytes, ndp_chip_isa_name(isa));
}

/* Object. */

typedef struct NdpCounterProperty {
    const char *name;
    size_t offset; /* in NdpCounters */
    const char *description;
} NdpCounterProperty;

static const NdpCounterProperty ndp_counter_properties[] = {
    { "commands", offsetof(NdpCounters, commands), "commands completed" },
    { "errors", offsetof(NdpCounters, errors), "of these, with an error" },
    { "tokens", offsetof(NdpCounters, tokens), "tokens computed" },
    { "bytes", offsetof(NdpCounters, bytes), "bytes moved, as modelled" },
    { "busy-ns", offsetof(NdpCounters, busy_ns), "busy time, as modelled" },
    { "wall-ns", offsetof(NdpCounters, wall_ns), "time the emulation took" },
};

static void ndp_dimm_get_counter(Object *obj, Visitor *v, const char *name,
                                 void *opaque, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);
    uint64_t val;

    WITH_QEMU_LOCK_GUARD(&s->lock) {
        val = *(uint64_t *)((char *)s + (uintptr_t)opaque);
    }
    visit_type_uint64(v, name, &val, errp);
}

static void ndp_dimm_get_generation(Object *obj, Visitor *v, const char *name,
                                    void *opaque, Error **errp)
{
    uint32_t val = NDP_DIMM(obj)->generation;

    visit_type_uint32(v, name, &val, errp);
}

static void ndp_dimm_add_counters(ObjectClass *klass)
{
    static const char *const queue[NDP_QUEUES] = { "compute", "link" };
    unsigned i;
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (i = 0; i < ARRAY_SIZE(ndp_counter_properties); i++) {
            const NdpCounterProperty *p = &ndp_counter_properties[i];
            g_autofree char *name = g_strdup_printf("%s-%s", queue[q],
                                                    p->name);
            size_t offset = offsetof(NdpDimm, engine) +
                            q * sizeof(NdpEngine) +
                            offsetof(NdpEngine, counters) + p->offset;

            object_class_property_add(klass, name, "uint64",
                                      ndp_dimm_get_counter, NULL, NULL,
                                      (void *)offset);
            object_class_property_set_description(klass, name,
                                                  p->description);
        }
    }
    object_class_property_add(klass, "generation", "uint32",
                              ndp_dimm_get_generation, NULL, NULL, NULL);
    object_class_property_set_description(klass, "generation",
                                          "resets since power-on");
}

/* Parameters of the modelled hardware; the chip knows their defaults. */
#define NDP_PROP_PARAM(name, field) \
    DEFINE_PROP_UNSIGNED_NODEFAULT(name, NdpDimm, params.field, \
                                   qdev_prop_uint32, uint32_t)

static const Property ndp_dimm_properties[] = {
    DEFINE_PROP_LINK("memdev", NdpDimm, hostmem, TYPE_MEMORY_BACKEND,
                     HostMemoryBackend *),
    DEFINE_PROP_UUID_NODEFAULT("domain", NdpDimm, uuid),
    DEFINE_PROP_UINT8("node", NdpDimm, node, 0),
    DEFINE_PROP_BOOL("coherent", NdpDimm, coherent, true),
    DEFINE_PROP_BOOL("timing", NdpDimm, timing, false),
    DEFINE_PROP_STRING("isa", NdpDimm, isa),
    NDP_PROP_PARAM("internal-mbps", internal_mbps),
    NDP_PROP_PARAM("gflops", gflops),
    NDP_PROP_PARAM("overhead-ns", overhead_ns),
    NDP_PROP_PARAM("link-mbps", link_mbps),
    NDP_PROP_PARAM("link-latency-ns", link_latency_ns),
};

static const struct {
    const char *name;
    const char *description;
} ndp_dimm_descriptions[] = {
    { "memdev", "Memory backend that is the DIMM's DRAM; a power of two" },
    { "domain", "DIMMs of the same domain are linked (default: all zeros)" },
    { "node", "Number in the domain, 0 to 31, each once" },
    { "coherent", "Whether CAP.COHERENT is set: the DIMM sees CPU caches" },
    { "timing", "Complete at the modelled time, if that is later" },
    { "isa", "Path of the chip: auto, scalar, avx2 or avx512-bf16" },
    { "internal-mbps", "Modelled bandwidth in the DIMM, 10^6 bytes/s" },
    { "gflops", "Modelled rate of BF16 arithmetic" },
    { "overhead-ns", "Modelled fixed cost of a command" },
    { "link-mbps", "Modelled rate of the link port, 10^6 bytes/s one way" },
    { "link-latency-ns", "Modelled latency of a pull" },
};

static void ndp_dimm_describe(ObjectClass *klass)
{
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(ndp_dimm_descriptions); i++) {
        object_class_property_set_description(
            klass, ndp_dimm_descriptions[i].name,
            ndp_dimm_descriptions[i].description);
    }
}

static void ndp_dimm_instance_init(Object *obj)
{
    NdpDimm *s = NDP_DIMM(obj);

    qemu_mutex_init(&s->lock);
    ndp_chip_params_default(&s->params);
    ndp_inject_init(s);
}

static void ndp_dimm_instance_finalize(Object *obj)
{
    qemu_mutex_destroy(&NDP_DIMM(obj)->lock);
}

static void ndp_dimm_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    PCIDeviceClass *k = PCI_DEVICE_CLASS(klass);
    ResettableClass *rc = RESETTABLE_CLASS(klass);

    k->realize = ndp_dimm_realize;
    k->exit = ndp_dimm_exit;
    k->config_read = ndp_dimm_config_read;
    k->config_write = ndp_dimm_config_write;
    k->vendor_id = NDP_PCI_VENDOR_ID;
    k->device_id = NDP_PCI_DEVICE_ID;
    k->class_id = NDP_PCI_CLASS;
    k->revision = NDP_VERSION >> 16;
    rc->phases.hold = ndp_dimm_reset_hold;
    dc->desc = "Near-data-processing DIMM";
    set_bit(DEVICE_CATEGORY_MISC, dc->categories);
    device_class_set_props(dc, ndp_dimm_properties);
    ndp_dimm_describe(klass);
    ndp_dimm_add_counters(klass);
    ndp_inject_add_properties(klass);
}

static const TypeInfo ndp_dimm_info = {
    .name = TYPE_NDP_DIMM,
    .parent = TYPE_PCI_DEVICE,
    .instance_size = sizeof(NdpDimm),
    .instance_init = ndp_dimm_instance_init,
    .instance_finalize = ndp_dimm_instance_finalize,
    .class_init = ndp_dimm_class_init,
    .interfaces = (InterfaceInfo[]) {
        { INTERFACE_PCIE_DEVICE },
        { }
    },
};

static void ndp_dimm_register_types(void)
{
    type_register_static(&ndp_dimm_info);
}

type_init(ndp_dimm_register_types)
