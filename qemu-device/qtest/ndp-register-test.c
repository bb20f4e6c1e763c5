/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: identity, registers, rings, interrupts
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "qobject/qdict.h"
#include "standard-headers/linux/pci_regs.h"
#include "ndp-lib.h"

static const struct ndp_hw_cmd fill8 = {
    .opcode = NDP_OP_FILL,
    .x = const_le64(8),
    .count = const_le32(0x5a5a5a5a),
};

static void test_identity(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[1];

    g_assert_cmphex(qpci_config_readw(d->pci, PCI_VENDOR_ID), ==,
                    NDP_PCI_VENDOR_ID);
    g_assert_cmphex(qpci_config_readw(d->pci, PCI_DEVICE_ID), ==,
                    NDP_PCI_DEVICE_ID);
    g_assert_cmphex(qpci_config_readw(d->pci, PCI_CLASS_DEVICE), ==,
                    NDP_PCI_CLASS);
    g_assert_cmphex(qpci_config_readl(d->pci, PCI_BASE_ADDRESS_2) & 0xf, ==,
                    PCI_BASE_ADDRESS_MEM_TYPE_64 |
                    PCI_BASE_ADDRESS_MEM_PREFETCH);
    g_assert_cmpuint(qpci_msix_table_size(d->pci), ==, NDP_VECTORS);

    g_assert_cmphex(ndp_read(d, NDP_REG_MAGIC), ==, NDP_MAGIC);
    g_assert_cmphex(ndp_read(d, NDP_REG_VERSION), ==, NDP_VERSION);
    g_assert_cmphex(ndp_read(d, NDP_REG_CAP), ==,
                    NDP_CAP_COHERENT | NDP_CAP_LINK);
    g_assert_cmpuint(ndp_read(d, NDP_REG_NODE), ==, 1);
    g_assert_cmpuint(ndp_read(d, NDP_REG_MAX_TOKENS), ==, NDP_MAX_TOKENS);
    g_assert_cmpuint(ndp_read(d, NDP_REG_MAX_COPY), ==, NDP_MAX_COPY_BYTES);
    g_assert_cmpuint(ndp_read(d, NDP_REG_MAX_QUEUE), ==, NDP_QUEUE_LOG2_MAX);
    g_assert_cmphex(ndp_read64(d, NDP_REG_DOMAIN_LO), ==,
                    0x004000006470646eull);
    g_assert_cmphex(ndp_read64(d, NDP_REG_DOMAIN_HI), ==,
                    0x0100000000000080ull);
    g_assert_cmpuint(ndp_read64(d, NDP_REG_MEM_SIZE), ==, NDP_TEST_DRAM);
    g_assert_cmpuint(ndp_read64(d, NDP_REG_RSVD_OFF), ==,
                     NDP_TEST_DRAM - NDP_RSVD_BYTES);
    g_assert_cmpuint(ndp_read64(d, NDP_REG_RSVD_SIZE), ==, NDP_RSVD_BYTES);
    g_assert_cmphex(ndp_read(d, NDP_REG_PEERS), ==, 0x5);
    g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    ndp_test_stop(t);
}

static void test_properties(void)
{
    NdpTest *t = ndp_test_start(NULL, "coherent=off,timing=on,gflops=3,"
                                "internal-mbps=4,link-mbps=5,overhead-ns=6,"
                                "link-latency-ns=7");
    NdpTestDimm *d = &t->dimm[0];

    g_assert_cmphex(ndp_read(d, NDP_REG_CAP), ==,
                    NDP_CAP_LINK | NDP_CAP_TIMING);
    g_assert_cmpuint(ndp_read(d, NDP_REG_GFLOPS), ==, 3);
    g_assert_cmpuint(ndp_read(d, NDP_REG_INTERNAL_MBPS), ==, 4);
    g_assert_cmpuint(ndp_read(d, NDP_REG_LINK_MBPS), ==, 5);
    g_assert_cmpuint(ndp_read(d, NDP_REG_OVERHEAD_NS), ==, 6);
    g_assert_cmpuint(ndp_read(d, NDP_REG_LINK_LATENCY_NS), ==, 7);
    ndp_test_stop(t);
}

static void expect_refusal(NdpTest *t, const char *options, const char *why)
{
    g_autofree char *command = g_strdup_printf(
        "{ 'execute': 'device_add', 'arguments': { 'driver': 'ndp-dimm', "
        "'id': 'bad', 'bus': 'spare'%s } }", options);
    QDict *error = qtest_qmp_assert_failure_ref(t->qts, command, NULL);
    const char *desc = qdict_get_str(error, "desc");

    if (!strstr(desc, why)) {
        g_test_message("'%s' does not say '%s'", desc, why);
        g_test_fail();
    }
    qobject_unref(error);
}

static void test_bad_properties(void)
{
    NdpTest *t = ndp_test_start(
        "-device pcie-root-port,id=spare,chassis=9,addr=9.0 "
        "-object memory-backend-ram,id=big,size=4M "
        "-object memory-backend-ram,id=odd,size=3M "
        "-object memory-backend-ram,id=tiny,size=1M", NULL);
    const char *domain = "'domain': '" NDP_TEST_DOMAIN "'";
    g_autofree char *taken = g_strdup_printf(
        ", 'memdev': 'big', 'node': 2, %s", domain);

    expect_refusal(t, "", "'memdev' is missing");
    expect_refusal(t, ", 'memdev': 'm0'", "in use");
    expect_refusal(t, ", 'memdev': 'odd'", "power of two");
    expect_refusal(t, ", 'memdev': 'tiny'", "power of two");
    expect_refusal(t, ", 'memdev': 'big', 'node': 32", "must be 0 to 31");
    expect_refusal(t, ", 'memdev': 'big', 'gflops': 0", "must not be 0");
    expect_refusal(t, ", 'memdev': 'big', 'isa': 'neon'", "one of: auto");
    expect_refusal(t, taken, "node 2 of this domain");

    /* Each refusal undid what it had done: now it can be plugged. */
    qtest_qmp_assert_success(t->qts, "{ 'execute': 'device_add', 'arguments':"
                             " { 'driver': 'ndp-dimm', 'id': 'good', 'bus': "
                             "'spare', 'memdev': 'big', 'node': 2 } }");
    ndp_test_stop(t);
}

static void test_read_only(void)
{
    static const unsigned regs[] = {
        NDP_REG_MAGIC, NDP_REG_VERSION, NDP_REG_CAP, NDP_REG_NODE,
        NDP_REG_MAX_COPY, NDP_REG_DOMAIN_LO, NDP_REG_MEM_SIZE,
        NDP_REG_RSVD_OFF, NDP_REG_GFLOPS, NDP_REG_PEERS, NDP_REG_STATUS,
        NDP_REG_GENERATION, NDP_REG_Q(0, NDP_Q_SQ_HEAD),
        NDP_REG_COUNTER(1, NDP_CTR_BYTES), 0x400, 0xffc,
    };
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(regs); i++) {
        uint32_t before = ndp_read(d, regs[i]);

        ndp_write(d, regs[i], ~before);
        g_assert_cmphex(ndp_read(d, regs[i]), ==, before);
    }
    /* 1 and 2 bytes are no access at all. */
    qtest_writeb(t->qts, d->regs.addr + NDP_REG_CTRL, NDP_CTRL_RESET);
    qtest_writew(t->qts, d->regs.addr + NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmphex(ndp_read(d, NDP_REG_CTRL), ==, NDP_CTRL_ENABLE);
    /* 8 bytes are the pair. */
    g_assert_cmphex(ndp_read64(d, NDP_REG_MAGIC), ==,
                    NDP_MAGIC | (uint64_t)NDP_VERSION << 32);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill8), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void try_rings(NdpTestDimm *d, uint64_t sq, uint64_t cq, uint32_t log2,
                      uint32_t expected)
{
    const unsigned q = NDP_Q_LINK;

    ndp_write(d, NDP_REG_Q(q, NDP_Q_ENABLE), 0);
    ndp_write64(d, NDP_REG_Q(q, NDP_Q_SQ_BASE), sq);
    ndp_write64(d, NDP_REG_Q(q, NDP_Q_CQ_BASE), cq);
    ndp_write(d, NDP_REG_Q(q, NDP_Q_SIZE_LOG2), log2);
    g_assert_cmphex(ndp_read64(d, NDP_REG_Q(q, NDP_Q_SQ_BASE)), ==, sq);
    g_assert_cmphex(ndp_read64(d, NDP_REG_Q(q, NDP_Q_CQ_BASE)), ==, cq);
    ndp_write(d, NDP_REG_Q(q, NDP_Q_ENABLE), 1);
    g_assert_cmpuint(ndp_read(d, NDP_REG_Q(q, NDP_Q_ENABLE)), ==, expected);
}

static void test_ring_bounds(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    uint64_t lo = d->rsvd;
    uint64_t hi = NDP_TEST_DRAM;

    try_rings(d, lo, lo + 0x10000, 10, 1);
    try_rings(d, hi - 0x10000, hi - 0x8000, 10, 1);
    try_rings(d, lo, lo + 0x10000, 0, 0);
    try_rings(d, lo, lo + 0x10000, 11, 0);
    try_rings(d, lo, lo + 0x10000, UINT32_MAX, 0);
    try_rings(d, lo + 32, lo + 0x10000, 3, 0);
    try_rings(d, lo, lo + 0x10010, 3, 0);
    try_rings(d, lo - 64, lo + 0x10000, 3, 0);
    try_rings(d, lo, lo - 32, 3, 0);
    try_rings(d, 0, 0x10000, 3, 0);
    try_rings(d, hi - 0x10000 + 64, lo, 10, 0);
    try_rings(d, lo, hi - 0x8000 + 32, 10, 0);
    try_rings(d, hi, lo, 3, 0);
    try_rings(d, UINT64_MAX - 63, lo, 3, 0);
    try_rings(d, lo, UINT64_MAX - 31, 3, 0);
    try_rings(d, lo, lo + 0x10000, 1, 1);
    ndp_test_stop(t);
}

/* Bases written while the queue is enabled count from the next enable on. */
static void test_ring_latched(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    ndp_write64(d, NDP_REG_Q(0, NDP_Q_SQ_BASE), 0);
    ndp_write64(d, NDP_REG_Q(0, NDP_Q_CQ_BASE), UINT64_MAX);
    ndp_write(d, NDP_REG_Q(0, NDP_Q_SIZE_LOG2), 31);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill8), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_ring_wrap(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned log2;
    unsigned q;
    int i;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (log2 = 1; log2 <= 3; log2++) {
            ndp_queue_start(d, q, log2);
            for (i = 0; i < 5 << log2; i++) {
                g_assert_cmpuint(ndp_run(d, q, fill8), ==, NDP_ST_OK);
            }
        }
    }
    ndp_test_stop(t);
}

static void test_ring_full(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = fill8;
    struct ndp_hw_cpl cpl;
    uint16_t first = 0;
    unsigned round;
    int i;

    ndp_queue_start(d, NDP_Q_COMPUTE, NDP_QUEUE_LOG2_MAX);
    for (round = 0; round < 2; round++) {
        int entries = (1 << NDP_QUEUE_LOG2_MAX) - 1;

        for (i = 0; i < entries; i++) {
            uint16_t cid;

            cmd.y = cpu_to_le64(i * 8);
            cmd.count = cpu_to_le32(round * 10000 + i);
            cid = ndp_push(d, NDP_Q_COMPUTE, cmd);
            first = i ? first : cid;
        }
        ndp_ring(d, NDP_Q_COMPUTE);
        for (i = 0; i < entries; i++) {
            uint32_t val;

            ndp_wait(d, NDP_Q_COMPUTE, &cpl);
            g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, (uint16_t)(first + i));
            g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_OK);
            ndp_dram_read(d, i * 8, &val, 4);
            g_assert_cmpuint(le32_to_cpu(val), ==, round * 10000 + i);
        }
        g_assert_false(ndp_poll(d, NDP_Q_COMPUTE, &cpl));
    }
    ndp_test_stop(t);
}

static void test_doorbell_hostile(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;
    uint32_t tail;

    for (tail = 1u << NDP_TEST_LOG2; tail; tail <<= 1) {
        ndp_write(d, NDP_REG_Q(0, NDP_Q_DOORBELL), tail);
    }
    ndp_write(d, NDP_REG_Q(0, NDP_Q_DOORBELL), UINT32_MAX);
    ndp_expect_silence(d, NDP_Q_COMPUTE);

    /* No such queue, and one that is not enabled. */
    ndp_write(d, NDP_REG_Q(2, NDP_Q_DOORBELL), 1);
    ndp_write(d, NDP_REG_Q(1, NDP_Q_ENABLE), 0);
    ndp_write(d, NDP_REG_Q(1, NDP_Q_DOORBELL), 1);
    ndp_expect_silence(d, NDP_Q_LINK);

    /* Garbage in the ring: an error each, and the device goes on. */
    ndp_dram_set(d, d->rsvd + NDP_TEST_SQ(0), 0xff, 64 << NDP_TEST_LOG2);
    ndp_write(d, NDP_REG_Q(0, NDP_Q_DOORBELL), 7);
    for (tail = 0; tail < 7; tail++) {
        ndp_wait(d, NDP_Q_COMPUTE, &cpl);
        g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_OPCODE);
        g_assert_cmphex(cpl.cid, ==, 0xffff);
    }
    d->q[0].tail = 7;
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill8), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_enable_bits(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;

    /* CTRL.ENABLE holds commands back, and lets them go. */
    ndp_write(d, NDP_REG_CTRL, 0);
    ndp_push(d, NDP_Q_COMPUTE, fill8);
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    g_assert_cmpuint(ndp_read(d, NDP_REG_Q(0, NDP_Q_SQ_HEAD)), ==, 0);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_ENABLE);
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(ndp_read(d, NDP_REG_Q(0, NDP_Q_SQ_HEAD)), ==, 1);

    /* Disabling a queue forgets what is in its ring. */
    ndp_write(d, NDP_REG_CTRL, 0);
    ndp_push(d, NDP_Q_COMPUTE, fill8);
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_write(d, NDP_REG_Q(0, NDP_Q_ENABLE), 0);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_ENABLE);
    ndp_queue_start(d, NDP_Q_COMPUTE, NDP_TEST_LOG2);
    ndp_expect_silence(d, NDP_Q_COMPUTE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill8), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_counters(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = fill8;
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        cmd.opcode = NDP_OP_FILL;
        g_assert_cmpuint(ndp_run(d, q, cmd), ==, NDP_ST_OK);
        g_assert_cmpuint(ndp_run(d, q, cmd), ==, NDP_ST_OK);
        cmd.opcode = 99;
        g_assert_cmpuint(ndp_run(d, q, cmd), ==, NDP_ST_OPCODE);
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_COMMANDS)),
                         ==, 3);
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_ERRORS)),
                         ==, 1);
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_BYTES)),
                         ==, 16);
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_BUSY_NS)),
                         >=, 2 * ndp_read(d, NDP_REG_OVERHEAD_NS));
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_WALL_NS)),
                         >, 0);
    }
    g_assert_cmpuint(ndp_get(d, "compute-commands"), ==, 3);
    g_assert_cmpuint(ndp_get(d, "link-errors"), ==, 1);
    g_assert_cmpuint(ndp_get(d, "link-busy-ns"), ==,
                     ndp_read64(d, NDP_REG_COUNTER(1, NDP_CTR_BUSY_NS)));
    /* A reset does not touch them. */
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmpuint(ndp_get(d, "compute-commands"), ==, 3);
    ndp_test_stop(t);
}

static void test_msix(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned v;

    for (v = 0; v < NDP_VECTORS; v++) {
        ndp_irq_seen(d, v);
    }
    ndp_run(d, NDP_Q_COMPUTE, fill8);
    ndp_irq_wait(d, NDP_VEC_COMPUTE);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_LINK));
    ndp_run(d, NDP_Q_LINK, fill8);
    ndp_irq_wait(d, NDP_VEC_LINK);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_COMPUTE));
    g_assert_false(ndp_irq_seen(d, NDP_VEC_EVENT));

    /* Masked: pending, nothing sent, nothing lost. */
    ndp_irq_mask(d, NDP_VEC_COMPUTE, true);
    ndp_run(d, NDP_Q_COMPUTE, fill8);
    ndp_wait_for(qpci_msix_pending(d->pci, NDP_VEC_COMPUTE));
    g_assert_false(ndp_irq_seen(d, NDP_VEC_COMPUTE));
    ndp_irq_mask(d, NDP_VEC_COMPUTE, false);
    ndp_irq_wait(d, NDP_VEC_COMPUTE);
    g_assert_false(qpci_msix_pending(d->pci, NDP_VEC_COMPUTE));

    /* A reset takes back what was pending. */
    ndp_irq_mask(d, NDP_VEC_LINK, true);
    ndp_run(d, NDP_Q_LINK, fill8);
    ndp_wait_for(qpci_msix_pending(d->pci, NDP_VEC_LINK));
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_irq_mask(d, NDP_VEC_LINK, false);
    g_assert_false(ndp_irq_seen(d, NDP_VEC_LINK));
    ndp_test_stop(t);
}

/* A message that hits the device's own doorbell must not hang it. */
static void test_msix_self(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    uint64_t entry = d->pci->msix_table_off +
                     NDP_VEC_COMPUTE * PCI_MSIX_ENTRY_SIZE;

    qpci_io_writel(d->pci, d->pci->msix_table_bar,
                   entry + PCI_MSIX_ENTRY_LOWER_ADDR,
                   d->regs.addr + NDP_REG_CTRL);
    qpci_io_writel(d->pci, d->pci->msix_table_bar,
                   entry + PCI_MSIX_ENTRY_DATA, NDP_CTRL_RESET);
    ndp_run(d, NDP_Q_COMPUTE, fill8);
    g_usleep(50000);
    g_assert_cmphex(ndp_read(d, NDP_REG_MAGIC), ==, NDP_MAGIC);
    ndp_test_stop(t);
}

/* Random accesses to registers and rings; then a reset makes it well. */
static void test_random_accesses(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned round;
    unsigned i;

    for (round = 0; round < 8; round++) {
        for (i = 0; i < 300; i++) {
            unsigned reg = g_test_rand_int_range(0, 0x240 / 4) * 4;
            uint32_t val = g_test_rand_int();

            switch (g_test_rand_int_range(0, 5)) {
            case 0:
                ndp_read64(d, reg & ~7u);
                break;
            case 1:
                ndp_write(d, reg, val);
                break;
            case 2: /* the queues, with values that may be right */
                reg = NDP_REG_Q(val % NDP_QUEUES, reg % 0x20);
                ndp_write(d, reg, val >> 28);
                break;
            case 3:
                ndp_write64(d, NDP_REG_Q(val % NDP_QUEUES,
                                         val & 2 ? NDP_Q_SQ_BASE
                                                 : NDP_Q_CQ_BASE),
                            d->rsvd + (val & 0x1fffc0));
                break;
            default:
                ndp_dram_write(d, d->rsvd + (val & 0xffff8), &val, 4);
                break;
            }
        }
        ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
        g_assert_cmphex(ndp_read(d, NDP_REG_STATUS), ==,
                        NDP_STATUS_READY | NDP_STATUS_LINK_UP);
        ndp_dimm_start(d);
        for (i = 0; i < NDP_QUEUES; i++) {
            g_assert_cmpuint(ndp_run(d, i, fill8), ==, NDP_ST_OK);
        }
    }
    ndp_test_stop(t);
}

void ndp_add_register_tests(void)
{
    qtest_add_func("ndp/register/identity", test_identity);
    qtest_add_func("ndp/register/properties", test_properties);
    qtest_add_func("ndp/register/bad-properties", test_bad_properties);
    qtest_add_func("ndp/register/read-only", test_read_only);
    qtest_add_func("ndp/register/counters", test_counters);
    qtest_add_func("ndp/register/random", test_random_accesses);
    qtest_add_func("ndp/ring/bounds", test_ring_bounds);
    qtest_add_func("ndp/ring/latched", test_ring_latched);
    qtest_add_func("ndp/ring/wrap", test_ring_wrap);
    qtest_add_func("ndp/ring/full", test_ring_full);
    qtest_add_func("ndp/ring/doorbell-hostile", test_doorbell_hostile);
    qtest_add_func("ndp/ring/enable-bits", test_enable_bits);
    qtest_add_func("ndp/irq/msix", test_msix);
    qtest_add_func("ndp/irq/msix-self", test_msix_self);
}
