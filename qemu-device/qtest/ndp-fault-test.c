/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: each x-inject-* property does what it says, and a
 * reset ends what it leaves behind
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "standard-headers/linux/pci_regs.h"
#include "ndp-lib.h"

#define DST 0x100000u

static struct ndp_hw_cmd fill(uint32_t pattern)
{
    return (struct ndp_hw_cmd) {
        .opcode = NDP_OP_FILL,
        .y = cpu_to_le64(DST),
        .x = cpu_to_le64(64),
        .count = cpu_to_le32(pattern),
    };
}

static uint32_t filled(NdpTestDimm *d)
{
    return qtest_readl(d->qts, d->dram.addr + DST);
}

/* Rings, and waits until the engine has taken what was pushed. */
static void ring_and_take(NdpTestDimm *d, unsigned q)
{
    ndp_ring(d, q);
    ndp_wait_for(ndp_read(d, NDP_REG_Q(q, NDP_Q_SQ_HEAD)) == d->q[q].tail);
}

static void test_drop(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    ndp_set(d, "x-inject-drop", 1);
    ndp_push(d, NDP_Q_COMPUTE, fill(0x11));
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_COMPUTE));
    g_assert_cmphex(filled(d), ==, 0x11);
    g_assert_cmpuint(ndp_get(d, "x-inject-drop"), ==, 0);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x12)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_delay(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;
    uint16_t cid;

    ndp_set(d, "x-inject-delay-ns", 5000000);
    ndp_set(d, "x-inject-delay", 1);
    cid = ndp_push(d, NDP_Q_LINK, fill(0x21));
    ndp_ring(d, NDP_Q_LINK);
    ndp_expect_silence(d, NDP_Q_LINK);
    qtest_clock_step(t->qts, 4999999);
    ndp_expect_silence(d, NDP_Q_LINK);

    /* What the guest writes over the entry now comes too late. */
    ndp_dram_set(d, d->rsvd + NDP_TEST_SQ(NDP_Q_LINK), 0xff, 64);
    qtest_clock_step(t->qts, 1);
    ndp_wait(d, NDP_Q_LINK, &cpl);
    g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, cid);
    g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_OK);

    /* A delay ends with a reset. */
    ndp_set(d, "x-inject-delay", 1);
    ndp_push(d, NDP_Q_LINK, fill(0x22));
    ring_and_take(d, NDP_Q_LINK);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(0x23)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_duplicate(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;
    uint16_t cid;

    ndp_set(d, "x-inject-duplicate", 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x31)), ==, NDP_ST_OK);
    cid = d->q[NDP_Q_COMPUTE].cid;
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, cid);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x32)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_corrupt(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    uint32_t fields;

    for (fields = 1; fields < 32; fields++) {
        uint32_t generation = ndp_read(d, NDP_REG_GENERATION);
        struct ndp_hw_cpl cpl;
        uint16_t cid;

        ndp_set(d, "x-inject-corrupt-fields", fields);
        ndp_set(d, "x-inject-corrupt", 1);
        cid = ndp_push(d, NDP_Q_COMPUTE, fill(0x41));
        ndp_ring(d, NDP_Q_COMPUTE);
        ndp_wait(d, NDP_Q_COMPUTE, &cpl);
        g_assert_cmpint(le16_to_cpu(cpl.cid) != cid, ==, !!(fields & 1));
        g_assert_cmpint(le32_to_cpu(cpl.generation) != generation, ==,
                        !!(fields & 2));
        g_assert_cmpint(le32_to_cpu(cpl.status) > NDP_ST_INTERNAL, ==,
                        !!(fields & 4));
        g_assert_cmpint(le16_to_cpu(cpl.sq_head) != d->q[0].tail, ==,
                        !!(fields & 8));
        g_assert_cmpint(le64_to_cpu(cpl.modelled_ns) == UINT64_MAX, ==,
                        !!(fields & 16));
    }
    ndp_test_stop(t);
}

static void test_error(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x51)), ==, NDP_ST_OK);
    ndp_set(d, "x-inject-error", 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x52)), ==,
                     NDP_ST_INTERNAL);
    ndp_set(d, "x-inject-error-status", NDP_ST_RANGE);
    ndp_set(d, "x-inject-error", 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x53)), ==, NDP_ST_RANGE);
    g_assert_cmphex(filled(d), ==, 0x51);
    g_assert_cmpuint(ndp_get(d, "compute-errors"), ==, 2);
    ndp_test_stop(t);
}

static void test_hang(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    ndp_set(d, "x-inject-hang", 1);
    ndp_push(d, NDP_Q_COMPUTE, fill(0x61));
    ndp_push(d, NDP_Q_COMPUTE, fill(0x62));
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    qtest_clock_step(t->qts, 1000000000000ll);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    g_assert_cmpuint(ndp_read(d, NDP_REG_Q(0, NDP_Q_SQ_HEAD)), ==, 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(0x63)), ==, NDP_ST_OK);

    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x64)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_lost_irq(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    ndp_set(d, "x-inject-lost-irq", 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x71)), ==, NDP_ST_OK);
    g_usleep(50000);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_COMPUTE));
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x72)), ==, NDP_ST_OK);
    ndp_irq_wait(d, NDP_VEC_COMPUTE);
    ndp_test_stop(t);
}

static void test_every(void)
{
    NdpTest *t = ndp_test_start(NULL, "x-inject-error-every=3");
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;

    for (i = 1; i <= 9; i++) {
        g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(i)), ==,
                         i % 3 ? NDP_ST_OK : NDP_ST_INTERNAL);
    }
    ndp_set(d, "x-inject-error-every", 0);
    for (i = 1; i <= 9; i++) {
        g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(i)), ==, NDP_ST_OK);
    }
    ndp_test_stop(t);
}

static void test_queues(void)
{
    NdpTest *t = ndp_test_start(NULL, "x-inject-error-every=1");
    NdpTestDimm *d = &t->dimm[0];

    ndp_set(d, "x-inject-queues", 1 << NDP_Q_LINK);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(1)), ==, NDP_ST_OK);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(2)), ==, NDP_ST_INTERNAL);
    ndp_set(d, "x-inject-queues", 1 << NDP_Q_COMPUTE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(3)), ==, NDP_ST_INTERNAL);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(4)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void expect_gone(NdpTest *t, NdpTestDimm *d)
{
    g_assert_cmphex(ndp_read(d, NDP_REG_MAGIC), ==, UINT32_MAX);
    g_assert_cmphex(ndp_read64(d, NDP_REG_STATUS - 4), ==, UINT64_MAX);
    g_assert_cmphex(filled(d), ==, UINT32_MAX);
    g_assert_cmphex(qpci_config_readl(d->pci, 0), ==, UINT32_MAX);
    g_assert_cmphex(qpci_config_readb(d->pci, 0), ==, UINT8_MAX);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_dram_set(d, DST, 0, 64);
    qpci_config_writew(d->pci, PCI_COMMAND, 0);
    g_assert_cmphex(ndp_read(d, NDP_REG_MAGIC), ==, UINT32_MAX);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0x4);
}

static void test_gone(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    uint32_t generation = ndp_read(d, NDP_REG_GENERATION);

    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x81)), ==, NDP_ST_OK);
    ndp_irq_seen(d, NDP_VEC_COMPUTE);
    ndp_irq_seen(&t->dimm[1], NDP_VEC_EVENT);
    ndp_set(d, "x-inject-delay", 1);
    ndp_push(d, NDP_Q_COMPUTE, fill(0x82));
    ring_and_take(d, NDP_Q_COMPUTE);
    ndp_set_bool(d, "x-inject-gone", true);
    expect_gone(t, d);
    ndp_irq_wait(&t->dimm[1], NDP_VEC_EVENT);
    qtest_clock_step(t->qts, 1000000000);
    g_usleep(20000);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_COMPUTE));

    ndp_set_bool(d, "x-inject-gone", false);
    g_assert_cmphex(ndp_read(d, NDP_REG_MAGIC), ==, NDP_MAGIC);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    g_assert_cmpuint(ndp_read(d, NDP_REG_GENERATION), >, generation);
    g_assert_cmphex(filled(d), !=, UINT32_MAX);
    ndp_irq_wait(&t->dimm[1], NDP_VEC_EVENT);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0x5);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x83)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

/* A reset of the bus reaches what answers nothing. */
static void test_gone_bus_reset(void)
{
    NdpTest *t = ndp_test_start_behind_ports(NULL);
    g_autofree QPCIDevice *port = ndp_test_port(t, 0);
    NdpTestDimm *d = &t->dimm[0];
    uint16_t ctrl = qpci_config_readw(port, PCI_BRIDGE_CONTROL);

    ndp_set_bool(d, "x-inject-gone", true);
    expect_gone(t, d);
    qpci_config_writew(port, PCI_BRIDGE_CONTROL,
                       ctrl | PCI_BRIDGE_CTL_BUS_RESET);
    qpci_config_writew(port, PCI_BRIDGE_CONTROL, ctrl);
    g_assert_cmphex(qpci_config_readw(d->pci, PCI_DEVICE_ID), ==,
                    NDP_PCI_DEVICE_ID);
    g_free(d->pci);
    ndp_test_map(t, 0);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0x91)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_fatal(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    ndp_irq_seen(d, NDP_VEC_EVENT);
    ndp_write(d, NDP_REG_EVENT, UINT32_MAX);
    ndp_set_bool(d, "x-inject-fatal", true);
    ndp_irq_wait(d, NDP_VEC_EVENT);
    g_assert_cmphex(ndp_read(d, NDP_REG_EVENT), ==, NDP_EVENT_FATAL);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==, NDP_STATUS_FAILED);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0x4);
    ndp_queue_start(d, NDP_Q_COMPUTE, NDP_TEST_LOG2);
    ndp_push(d, NDP_Q_COMPUTE, fill(0xa1));
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_expect_silence(d, NDP_Q_COMPUTE);

    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0x5);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0xa2)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_reset_stuck(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    uint32_t generation = ndp_read(d, NDP_REG_GENERATION);

    ndp_set_bool(d, "x-inject-reset-stuck", true);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0xb1)), ==, NDP_ST_OK);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==, NDP_STATUS_RESETTING);
    g_assert_cmpuint(ndp_read(d, NDP_REG_GENERATION), ==, generation);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0x4);

    /* It takes nothing, not even another reset. */
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_ENABLE);
    ndp_write(d, NDP_REG_Q(0, NDP_Q_SIZE_LOG2), 5);
    ndp_write(d, NDP_REG_Q(0, NDP_Q_ENABLE), 1);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmphex(ndp_read(d, NDP_REG_CTRL), ==, 0);
    g_assert_cmphex(ndp_read(d, NDP_REG_Q(0, NDP_Q_ENABLE)), ==, 0);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==, NDP_STATUS_RESETTING);

    ndp_set_bool(d, "x-inject-reset-stuck", false);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    g_assert_cmpuint(ndp_read(d, NDP_REG_GENERATION), ==, generation + 1);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0xb2)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

void ndp_add_fault_tests(void)
{
    qtest_add_func("ndp/inject/drop", test_drop);
    qtest_add_func("ndp/inject/delay", test_delay);
    qtest_add_func("ndp/inject/duplicate", test_duplicate);
    qtest_add_func("ndp/inject/corrupt", test_corrupt);
    qtest_add_func("ndp/inject/error", test_error);
    qtest_add_func("ndp/inject/hang", test_hang);
    qtest_add_func("ndp/inject/lost-irq", test_lost_irq);
    qtest_add_func("ndp/inject/every", test_every);
    qtest_add_func("ndp/inject/queues", test_queues);
    qtest_add_func("ndp/inject/gone", test_gone);
    qtest_add_func("ndp/inject/gone-bus-reset", test_gone_bus_reset);
    qtest_add_func("ndp/inject/fatal", test_fatal);
    qtest_add_func("ndp/inject/reset-stuck", test_reset_stuck);
}
