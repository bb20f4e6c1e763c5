/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: fault injection, by x-inject-* properties
 *
 * For the tests of drivers and libraries.  Every property can be set with
 * qom-set while the guest runs.  A fault that hits commands has a count
 * ("x-inject-drop": the next N) and a period ("x-inject-drop-every": each Nth);
 * whatever it leaves hanging, a reset ends.
 *
 * Guests can neither see nor set any of this.
 */
#include "qemu/osdep.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "qemu/bswap.h"
#include "trace.h"
#include "ndp_dimm.h"

/* Bits of x-inject-corrupt-fields. */
#define CORRUPT_CID         (1u << 0)
#define CORRUPT_GENERATION  (1u << 1)
#define CORRUPT_STATUS      (1u << 2)
#define CORRUPT_SQ_HEAD     (1u << 3)
#define CORRUPT_MODELLED_NS (1u << 4)

static const struct {
    const char *name;
    const char *what;
} ndp_fault[NDP_FAULTS] = {
    [NDP_FAULT_DROP] = { "drop", "is executed and never completes" },
    [NDP_FAULT_DELAY] = { "delay", "completes x-inject-delay-ns late" },
    [NDP_FAULT_DUPLICATE] = { "duplicate", "completes twice" },
    [NDP_FAULT_CORRUPT] = { "corrupt",
                            "completes with x-inject-corrupt-fields wrong" },
    [NDP_FAULT_ERROR] = { "error",
                          "is not executed: x-inject-error-status" },
    [NDP_FAULT_HANG] = { "hang", "blocks its engine until a reset" },
    [NDP_FAULT_LOST_IRQ] = { "lost-irq", "completes without an interrupt" },
};

void ndp_inject_init(NdpDimm *s)
{
    s->inject.queues = (1u << NDP_QUEUES) - 1;
    s->inject.error_status = NDP_ST_INTERNAL;
    s->inject.corrupt_fields = CORRUPT_CID;
    s->inject.delay_ns = 10 * SCALE_MS;
}

uint32_t ndp_inject_pick(NdpEngine *e)
{
    NdpInject *in = &e->dimm->inject;
    uint32_t faults = 0;
    unsigned i;

    if (!(in->queues & (1u << e->queue))) {
        return 0;
    }
    for (i = 0; i < NDP_FAULTS; i++) {
        if (in->count[i]) {
            in->count[i]--;
            faults |= 1u << i;
        }
        if (in->every[i] && ++in->seen[i] >= in->every[i]) {
            in->seen[i] = 0;
            faults |= 1u << i;
        }
    }
    return faults;
}

void ndp_inject_corrupt(NdpDimm *s, struct ndp_hw_cpl *cpl)
{
    uint32_t fields = s->inject.corrupt_fields;

    if (fields & CORRUPT_CID) {
        cpl->cid ^= cpu_to_le16(0xffff);
    }
    if (fields & CORRUPT_GENERATION) {
        cpl->generation ^= cpu_to_le32(0x80000000u);
    }
    if (fields & CORRUPT_STATUS) {
        cpl->status = cpu_to_le32(0xdeadbeefu);
    }
    if (fields & CORRUPT_SQ_HEAD) {
        cpl->sq_head ^= cpu_to_le16(0xffff);
    }
    if (fields & CORRUPT_MODELLED_NS) {
        cpl->modelled_ns = cpu_to_le64(UINT64_MAX);
    }
}

/* Numbers; @opaque is the field's offset in NdpDimm. */

static void ndp_inject_get_u32(Object *obj, Visitor *v, const char *name,
                               void *opaque, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);
    uint32_t val;

    WITH_QEMU_LOCK_GUARD(&s->lock) {
        val = *(uint32_t *)((char *)s + (uintptr_t)opaque);
    }
    visit_type_uint32(v, name, &val, errp);
}

static void ndp_inject_set_u32(Object *obj, Visitor *v, const char *name,
                               void *opaque, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);
    uint32_t val;

    if (!visit_type_uint32(v, name, &val, errp)) {
        return;
    }
    trace_ndp_inject(s->node, name, val);
    QEMU_LOCK_GUARD(&s->lock);
    *(uint32_t *)((char *)s + (uintptr_t)opaque) = val;
}

static void ndp_inject_get_u64(Object *obj, Visitor *v, const char *name,
                               void *opaque, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);
    uint64_t val;

    WITH_QEMU_LOCK_GUARD(&s->lock) {
        val = *(uint64_t *)((char *)s + (uintptr_t)opaque);
    }
    visit_type_uint64(v, name, &val, errp);
}

static void ndp_inject_set_u64(Object *obj, Visitor *v, const char *name,
                               void *opaque, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);
    uint64_t val;

    if (!visit_type_uint64(v, name, &val, errp)) {
        return;
    }
    trace_ndp_inject(s->node, name, val);
    QEMU_LOCK_GUARD(&s->lock);
    *(uint64_t *)((char *)s + (uintptr_t)opaque) = MIN(val, INT64_MAX / 4);
}

static void ndp_inject_add_u32(ObjectClass *klass, const char *name,
                               size_t offset, const char *description)
{
    object_class_property_add(klass, name, "uint32", ndp_inject_get_u32,
                              ndp_inject_set_u32, NULL, (void *)offset);
    object_class_property_set_description(klass, name, description);
}

/* Switches. */

static bool ndp_inject_get_link_down(Object *obj, Error **errp)
{
    return NDP_DIMM(obj)->link_down;
}

static void ndp_inject_set_link_down(Object *obj, bool on, Error **errp)
{
    ndp_link_set_down(NDP_DIMM(obj), on);
}

static bool ndp_inject_get_gone(Object *obj, Error **errp)
{
    return NDP_DIMM(obj)->gone;
}

static void ndp_inject_set_gone(Object *obj, bool on, Error **errp)
{
    ndp_dimm_set_gone(NDP_DIMM(obj), on);
}

static bool ndp_inject_get_fatal(Object *obj, Error **errp)
{
    return NDP_DIMM(obj)->failed;
}

static void ndp_inject_set_fatal(Object *obj, bool on, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);

    if (!on) {
        error_setg(errp, "only a reset ends a fatal error");
    } else if (!s->live) {
        error_setg(errp, "x-inject-fatal needs a device that is realized");
    } else {
        ndp_dimm_fail(s);
    }
}

static bool ndp_inject_get_reset_stuck(Object *obj, Error **errp)
{
    return NDP_DIMM(obj)->inject.reset_stuck;
}

static void ndp_inject_set_reset_stuck(Object *obj, bool on, Error **errp)
{
    NdpDimm *s = NDP_DIMM(obj);

    s->inject.reset_stuck = on;
    if (!on && s->resetting) {
        ndp_dimm_reset_finish(s);
    }
}

static void ndp_inject_add_bool(ObjectClass *klass, const char *name,
                                bool (*get)(Object *, Error **),
                                void (*set)(Object *, bool, Error **),
                                const char *description)
{
    object_class_property_add_bool(klass, name, get, set);
    object_class_property_set_description(klass, name, description);
}

void ndp_inject_add_properties(ObjectClass *klass)
{
    unsigned i;

    for (i = 0; i < NDP_FAULTS; i++) {
        g_autofree char *count = g_strdup_printf("x-inject-%s",
                                                 ndp_fault[i].name);
        g_autofree char *every = g_strdup_printf("x-inject-%s-every",
                                                 ndp_fault[i].name);
        g_autofree char *next = g_strdup_printf(
            "For so many commands: each %s", ndp_fault[i].what);
        g_autofree char *each = g_strdup_printf(
            "Each Nth command %s; 0: none", ndp_fault[i].what);

        ndp_inject_add_u32(klass, count,
                           offsetof(NdpDimm, inject.count) +
                           i * sizeof(uint32_t), next);
        ndp_inject_add_u32(klass, every,
                           offsetof(NdpDimm, inject.every) +
                           i * sizeof(uint32_t), each);
    }
    ndp_inject_add_u32(klass, "x-inject-queues",
                       offsetof(NdpDimm, inject.queues),
                       "Queues whose commands are hit: 1 compute, 2 link");
    ndp_inject_add_u32(klass, "x-inject-error-status",
                       offsetof(NdpDimm, inject.error_status),
                       "Status of commands that x-inject-error hits");
    ndp_inject_add_u32(klass, "x-inject-corrupt-fields",
                       offsetof(NdpDimm, inject.corrupt_fields),
                       "What x-inject-corrupt changes: 1 cid, 2 generation, "
                       "4 status, 8 sq_head, 16 modelled_ns");
    object_class_property_add(klass, "x-inject-delay-ns", "uint64",
                              ndp_inject_get_u64, ndp_inject_set_u64, NULL,
                              (void *)offsetof(NdpDimm, inject.delay_ns));
    object_class_property_set_description(klass, "x-inject-delay-ns",
                                          "How late, in virtual time");

    ndp_inject_add_bool(klass, "x-inject-link-down",
                        ndp_inject_get_link_down, ndp_inject_set_link_down,
                        "The DIMM's link port is down");
    ndp_inject_add_bool(klass, "x-inject-gone",
                        ndp_inject_get_gone, ndp_inject_set_gone,
                        "Answers all-ones everywhere, until a bus reset");
    ndp_inject_add_bool(klass, "x-inject-fatal",
                        ndp_inject_get_fatal, ndp_inject_set_fatal,
                        "Set: the device fails, until a reset");
    ndp_inject_add_bool(klass, "x-inject-reset-stuck",
                        ndp_inject_get_reset_stuck,
                        ndp_inject_set_reset_stuck,
                        "A reset does not end before this is cleared");
}
