/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: reset and unplug, in the middle of long commands
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "qemu/cutils.h"
#include "qobject/qdict.h"
#include "standard-headers/linux/pci_regs.h"
#include "ndp-lib.h"

#define DST 0x1c00000u

static struct ndp_hw_cmd fill(uint32_t pattern)
{
    return (struct ndp_hw_cmd) {
        .opcode = NDP_OP_FILL,
        .y = cpu_to_le64(DST),
        .x = cpu_to_le64(64),
        .count = cpu_to_le32(pattern),
    };
}

/* Ten seconds of work for the scalar path; the operands are what DRAM holds. */
static const struct ndp_hw_cmd long_ffn = {
    .opcode = NDP_OP_FFN,
    .w = const_le64(0),
    .x = const_le64(0x1700000),
    .y = const_le64(0x1a00000),
    .count = const_le32(160),
    .tokens = const_le32(NDP_MAX_TOKENS),
    .h_in = const_le16(1024),
    .h_out = const_le16(256),
    .ldx64 = const_le16(32),
    .ldy64 = const_le16(16),
};

#define SCALAR "isa=scalar"

static void start_long(NdpTestDimm *d)
{
    ndp_push(d, NDP_Q_COMPUTE, long_ffn);
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_wait_for(ndp_read(d, NDP_REG_Q(0, NDP_Q_SQ_HEAD)) == 1);
    g_usleep(20000);
}

/* The command is cut short, so what cuts it must not take its time. */
static void expect_quick(int64_t start_us)
{
    g_assert_cmpint(g_get_monotonic_time() - start_us, <,
                    5 * G_TIME_SPAN_SECOND);
}

/* All as after power-on, but DRAM and counters. */
static void expect_reset(NdpTestDimm *d, uint32_t generation)
{
    unsigned q;

    g_assert_cmpuint(ndp_read(d, NDP_REG_GENERATION), ==, generation);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    g_assert_cmphex(ndp_read(d, NDP_REG_CTRL), ==, 0);
    g_assert_cmphex(ndp_read(d, NDP_REG_EVENT), ==, 0);
    for (q = 0; q < NDP_QUEUES; q++) {
        g_assert_cmphex(ndp_read64(d, NDP_REG_Q(q, NDP_Q_SQ_BASE)), ==, 0);
        g_assert_cmphex(ndp_read64(d, NDP_REG_Q(q, NDP_Q_CQ_BASE)), ==, 0);
        g_assert_cmphex(ndp_read(d, NDP_REG_Q(q, NDP_Q_SIZE_LOG2)), ==, 0);
        g_assert_cmphex(ndp_read(d, NDP_REG_Q(q, NDP_Q_ENABLE)), ==, 0);
        g_assert_cmphex(ndp_read(d, NDP_REG_Q(q, NDP_Q_SQ_HEAD)), ==, 0);
    }
    g_assert_cmphex(qtest_readl(d->qts, d->dram.addr + DST), ==, 0xc0ffee);
}

static void test_ctrl_reset(void)
{
    NdpTest *t = ndp_test_start(NULL, SCALAR);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;

    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(0xc0ffee)), ==, NDP_ST_OK);
    for (i = 0; i < 5; i++) {
        uint32_t generation = ndp_read(d, NDP_REG_GENERATION);
        uint64_t commands = ndp_get(d, "compute-commands");
        int64_t start_us;

        start_long(d);
        start_us = g_get_monotonic_time();
        ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
        expect_reset(d, generation + 1);
        expect_quick(start_us);
        ndp_expect_silence(d, NDP_Q_COMPUTE);
        g_assert_cmpuint(ndp_get(d, "compute-commands"), ==, commands);
        ndp_dimm_start(d);
        g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(0xc0ffee)), ==,
                         NDP_ST_OK);
        ndp_queue_start(d, NDP_Q_COMPUTE, NDP_TEST_LOG2);
    }
    ndp_test_stop(t);
}

static void test_flr(void)
{
    NdpTest *t = ndp_test_start(NULL, SCALAR);
    NdpTestDimm *d = &t->dimm[0];
    uint32_t generation = ndp_read(d, NDP_REG_GENERATION);
    uint8_t cap = qpci_find_capability(d->pci, PCI_CAP_ID_EXP, 0);
    uint32_t bar0 = qpci_config_readl(d->pci, PCI_BASE_ADDRESS_0);
    uint32_t bar2 = qpci_config_readl(d->pci, PCI_BASE_ADDRESS_2);
    uint32_t bar4 = qpci_config_readl(d->pci, PCI_BASE_ADDRESS_4);
    int64_t start_us;

    g_assert_true(qpci_config_readl(d->pci, cap + PCI_EXP_DEVCAP) &
                  PCI_EXP_DEVCAP_FLR);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(0xc0ffee)), ==, NDP_ST_OK);
    start_long(d);
    start_us = g_get_monotonic_time();
    qpci_config_writew(d->pci, cap + PCI_EXP_DEVCTL,
                       PCI_EXP_DEVCTL_BCR_FLR);
    expect_quick(start_us);

    /* PCI's own part of the reset: all that a driver has to restore. */
    g_assert_cmphex(qpci_config_readw(d->pci, PCI_COMMAND) &
                    (PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER), ==, 0);
    qpci_config_writel(d->pci, PCI_BASE_ADDRESS_0, bar0);
    qpci_config_writel(d->pci, PCI_BASE_ADDRESS_2, bar2);
    qpci_config_writel(d->pci, PCI_BASE_ADDRESS_4, bar4);
    qpci_device_enable(d->pci);
    g_assert_true(qpci_msix_masked(d->pci, NDP_VEC_COMPUTE));
    expect_reset(d, generation + 1);

    g_free(d->pci);
    ndp_test_map(t, 0);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(1)), ==, NDP_ST_OK);
    ndp_irq_wait(d, NDP_VEC_COMPUTE);
    ndp_test_stop(t);
}

static void test_system_reset(void)
{
    NdpTest *t = ndp_test_start(NULL, SCALAR);
    unsigned i;

    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        start_long(&t->dimm[i]);
    }
    qtest_system_reset(t->qts);
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        g_free(t->dimm[i].pci);
        ndp_test_map(t, i);
        g_assert_cmpuint(ndp_run(&t->dimm[i], NDP_Q_COMPUTE, fill(i)), ==,
                         NDP_ST_OK);
    }
    ndp_test_stop(t);
}

static void test_queue_disable(void)
{
    NdpTest *t = ndp_test_start(NULL, SCALAR);
    NdpTestDimm *d = &t->dimm[0];
    int64_t start_us;

    start_long(d);
    start_us = g_get_monotonic_time();
    ndp_write(d, NDP_REG_Q(0, NDP_Q_ENABLE), 0);
    expect_quick(start_us);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    ndp_queue_start(d, NDP_Q_COMPUTE, NDP_TEST_LOG2);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(1)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

/* Unplugged in mid-command, and empty when it comes back. */
static void test_unplug(void)
{
    NdpTest *t = ndp_test_start_behind_ports(SCALAR);
    NdpTestDimm *d = &t->dimm[1];
    g_autofree uint8_t *buf = g_malloc(NDP_TEST_DRAM - NDP_RSVD_BYTES);
    int64_t start_us;

    ndp_dram_set(d, 0, 0x3c, 0x100000);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill(0xc0ffee)), ==, NDP_ST_OK);
    start_long(d);
    start_us = g_get_monotonic_time();
    ndp_test_unplug(t, 1);
    expect_quick(start_us);
    g_assert_cmpuint(ndp_run(&t->dimm[0], NDP_Q_COMPUTE, fill(1)), ==,
                     NDP_ST_OK);

    ndp_test_plug(t, 1);
    ndp_dram_read(d, 0, buf, NDP_TEST_DRAM - NDP_RSVD_BYTES);
    g_assert_true(buffer_is_zero(buf, NDP_TEST_DRAM - NDP_RSVD_BYTES));
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill(2)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

/* QEMU quits while all engines work. */
static void test_quit(void)
{
    NdpTest *t = ndp_test_start(NULL, SCALAR);
    int64_t start_us;
    unsigned i;

    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        start_long(&t->dimm[i]);
    }
    start_us = g_get_monotonic_time();
    ndp_test_stop(t);
    expect_quick(start_us);
}

static void test_unmigratable(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    QDict *error = qtest_qmp_assert_failure_ref(
        t->qts, "{ 'execute': 'migrate', 'arguments': "
        "{ 'uri': 'exec:cat > /dev/null' } }");

    g_assert_nonnull(strstr(qdict_get_str(error, "desc"), "ndp-dimm"));
    qobject_unref(error);
    ndp_test_stop(t);
}

void ndp_add_reset_tests(void)
{
    qtest_add_func("ndp/reset/ctrl", test_ctrl_reset);
    qtest_add_func("ndp/reset/flr", test_flr);
    qtest_add_func("ndp/reset/system", test_system_reset);
    qtest_add_func("ndp/reset/queue-disable", test_queue_disable);
    qtest_add_func("ndp/reset/unplug", test_unplug);
    qtest_add_func("ndp/reset/quit", test_quit);
    qtest_add_func("ndp/reset/unmigratable", test_unmigratable);
}
