/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM under -icount, where it has no worker threads
 *
 * The vCPU runs a firmware of three instructions that halts it, so that
 * virtual time passes as fast as real time and nobody else touches PCI.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include <glib/gstdio.h>
#include "ndp-lib.h"

#define SRC   0x100000u
#define DST   0x500000u

/* A pull takes far longer than a test. */
#define SLOW "timing=on,link-mbps=1,internal-mbps=1000"

static const struct ndp_hw_cmd fill = {
    .opcode = NDP_OP_FILL,
    .y = const_le64(DST),
    .x = const_le64(1 << 20),
    .count = const_le32(0x5a5a5a5a),
};

static const struct ndp_hw_cmd pull1 = {
    .opcode = NDP_OP_LINK_COPY,
    .w = const_le64(SRC),
    .y = const_le64(DST),
    .x = const_le64(8u << 20),
    .count = const_le32(1),
};

static NdpTest *start(const char *options)
{
    static const uint8_t halt[] = { 0xfa, 0xf4, 0xeb, 0xfd };
    g_autofree uint8_t *rom = g_malloc0(0x10000);
    g_autofree char *path = NULL;
    g_autofree char *machine = NULL;
    NdpTest *t;
    int fd = g_file_open_tmp("ndp-rom-XXXXXX", &path, NULL);

    g_assert_cmpint(fd, >=, 0);
    memcpy(rom + 0xfff0, halt, sizeof(halt));
    g_assert_cmpint(write(fd, rom, 0x10000), ==, 0x10000);
    close(fd);
    machine = g_strdup_printf("-accel tcg -icount shift=0,sleep=on -bios %s",
                              path);
    t = ndp_test_start(machine, options);
    g_unlink(path);
    return t;
}

/* A command is complete when the doorbell's write returns. */
static void test_inline(void)
{
    NdpTest *t = start(NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;
    unsigned q;
    int i;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (i = 0; i < 7; i++) {
            ndp_push(d, q, fill);
        }
        ndp_ring(d, q);
        for (i = 0; i < 7; i++) {
            g_assert_true(ndp_poll(d, q, &cpl));
            g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_OK);
        }
        g_assert_true(ndp_irq_seen(d, NDP_VEC_COMPUTE + q));
    }
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull1), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_hang(void)
{
    NdpTest *t = start(NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;

    ndp_set(d, "x-inject-hang", 1);
    ndp_push(d, NDP_Q_COMPUTE, fill);
    ndp_push(d, NDP_Q_COMPUTE, fill);
    ndp_ring(d, NDP_Q_COMPUTE);
    g_assert_false(ndp_poll(d, NDP_Q_COMPUTE, &cpl));
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, fill), ==, NDP_ST_OK);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_dimm_start(d);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, fill), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

/* Commands that take modelled time are completed by a timer, in order. */
static void test_timing(void)
{
    NdpTest *t = start(SLOW);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;
    uint16_t first;

    first = ndp_push(d, NDP_Q_COMPUTE, fill);
    ndp_push(d, NDP_Q_COMPUTE, fill);
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, first);
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(le16_to_cpu(cpl.cid), ==, first + 1);
    ndp_irq_wait(d, NDP_VEC_COMPUTE);
    ndp_test_stop(t);
}

static void start_pull(NdpTestDimm *d)
{
    struct ndp_hw_cpl cpl;

    ndp_push(d, NDP_Q_LINK, pull1);
    ndp_ring(d, NDP_Q_LINK);
    g_assert_false(ndp_poll(d, NDP_Q_LINK, &cpl));
}

static void test_pull_ends(void)
{
    NdpTest *t = start(SLOW);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;

    start_pull(d);
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_wait(d, NDP_Q_LINK, &cpl);
    g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_PEER);

    start_pull(d);
    ndp_set_bool(d, "x-inject-link-down", true);
    ndp_wait(d, NDP_Q_LINK, &cpl);
    g_assert_cmpuint(le32_to_cpu(cpl.status), ==, NDP_ST_LINK_DOWN);
    ndp_set_bool(d, "x-inject-link-down", false);

    start_pull(d);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_dimm_start(d);
    start_pull(d);
    ndp_test_stop(t);
}

void ndp_add_icount_tests(void)
{
    qtest_add_func("ndp/icount/inline", test_inline);
    qtest_add_func("ndp/icount/hang", test_hang);
    qtest_add_func("ndp/icount/timing", test_timing);
    qtest_add_func("ndp/icount/pull-ends", test_pull_ends);
}
