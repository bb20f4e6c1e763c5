/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: pulls over DIMM-Link
 *
 * With timing=on a pull lasts until the test steps the virtual clock, so that
 * "in the middle of a pull" is a place where a test can stay.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "ndp-lib.h"

#define SRC     0x100000u
#define DST     0x500000u
#define BYTES   0x40000u
#define LATENCY 1000u

/* One byte a nanosecond. */
#define SLOW_LINK "timing=on,link-mbps=1000,link-latency-ns=1000"

static struct ndp_hw_cmd pull(unsigned node, uint64_t src, uint64_t bytes)
{
    return (struct ndp_hw_cmd) {
        .opcode = NDP_OP_LINK_COPY,
        .w = cpu_to_le64(src),
        .y = cpu_to_le64(DST),
        .x = cpu_to_le64(bytes),
        .count = cpu_to_le32(node),
    };
}

static void write_pattern(NdpTestDimm *d, uint8_t seed)
{
    g_autofree uint8_t *buf = g_malloc(BYTES);
    size_t i;

    for (i = 0; i < BYTES; i++) {
        buf[i] = seed + i * 13 + (i >> 8);
    }
    ndp_dram_write(d, SRC, buf, BYTES);
}

static void expect_pattern(NdpTestDimm *d, uint8_t seed)
{
    g_autofree uint8_t *buf = g_malloc(BYTES);
    size_t i;

    ndp_dram_read(d, DST, buf, BYTES);
    for (i = 0; i < BYTES; i++) {
        if (buf[i] != (uint8_t)(seed + i * 13 + (i >> 8))) {
            g_test_message("byte %zu is 0x%x", i, buf[i]);
            g_assert_not_reached();
        }
    }
}

/* Starts a pull of BYTES that waits for the clock; its data is there. */
static void start_pull(NdpTestDimm *d, unsigned node)
{
    uint64_t last = d->dram.addr + DST + BYTES - 8;

    qtest_writeq(d->qts, last, 0x0123456789abcdefull);
    ndp_push(d, NDP_Q_LINK, pull(node, SRC, BYTES));
    ndp_ring(d, NDP_Q_LINK);
    ndp_wait_for(qtest_readq(d->qts, last) != 0x0123456789abcdefull);
}

static void expect_status(NdpTestDimm *d, uint32_t status)
{
    struct ndp_hw_cpl cpl;

    ndp_wait(d, NDP_Q_LINK, &cpl);
    g_assert_cmpuint(le32_to_cpu(cpl.status), ==, status);
}

static void test_pull(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    unsigned to;
    unsigned from;

    for (to = 0; to < NDP_TEST_DIMMS; to++) {
        write_pattern(&t->dimm[to], to);
    }
    for (to = 0; to < NDP_TEST_DIMMS; to++) {
        NdpTestDimm *d = &t->dimm[to];

        for (from = 0; from < NDP_TEST_DIMMS; from++) {
            if (from == to) {
                continue;
            }
            g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(from, SRC, BYTES)),
                             ==, NDP_ST_OK);
            expect_pattern(d, from);
        }
        g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(1, NDP_CTR_BYTES)),
                         ==, (NDP_TEST_DIMMS - 1) * BYTES);
    }
    ndp_test_stop(t);
}

static void test_bad_pull(void)
{
    static const uint32_t nodes[] = { 0, 3, 5, 31, 32, 33, 1u << 31,
                                      UINT32_MAX };
    /* Node 5 is there, in the domain of those that name none. */
    NdpTest *t = ndp_test_start("-object memory-backend-ram,id=other,size=32M "
                                "-device ndp-dimm,memdev=other,node=5", NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd;
    unsigned i;

    g_assert_cmphex(ndp_read(d, NDP_REG_PEERS), ==, 0x6);
    for (i = 0; i < ARRAY_SIZE(nodes); i++) {
        g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(nodes[i], SRC, 64)), ==,
                         NDP_ST_PEER);
    }
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(1, NDP_TEST_DRAM, 64)), ==,
                     NDP_ST_RANGE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK,
                             pull(1, NDP_TEST_DRAM - 56, 64)), ==,
                     NDP_ST_RANGE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(1, UINT64_MAX - 7, 64)), ==,
                     NDP_ST_RANGE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(1, SRC + 4, 64)), ==,
                     NDP_ST_ALIGN);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(1, SRC, 0)), ==,
                     NDP_ST_SHAPE);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK,
                             pull(1, SRC, NDP_MAX_COPY_BYTES + 8)), ==,
                     NDP_ST_SHAPE);
    cmd = pull(1, SRC, 64);
    cmd.y = cpu_to_le64(NDP_TEST_DRAM - 32);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, cmd), ==, NDP_ST_RANGE);
    cmd = pull(1, SRC, 64);
    cmd.rows = 1;
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, cmd), ==, NDP_ST_FIELD);
    g_assert_cmpuint(ndp_run(d, NDP_Q_LINK, pull(1, SRC, 64)), ==, NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_modelled_time(void)
{
    NdpTest *t = ndp_test_start(NULL, "link-mbps=1000,link-latency-ns=1000");
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cpl cpl;

    ndp_push(d, NDP_Q_LINK, pull(2, SRC, BYTES));
    ndp_ring(d, NDP_Q_LINK);
    ndp_wait(d, NDP_Q_LINK, &cpl);
    g_assert_cmpuint(le64_to_cpu(cpl.modelled_ns), ==, BYTES + LATENCY);
    ndp_test_stop(t);
}

/* Two pulls from one source share its transmit port. */
static void test_port_serial(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK);
    struct ndp_hw_cpl cpl;
    bool first;

    write_pattern(&t->dimm[2], 9);
    start_pull(&t->dimm[0], 2);
    start_pull(&t->dimm[1], 2);
    qtest_clock_step(t->qts, BYTES + LATENCY - 1);
    ndp_expect_silence(&t->dimm[0], NDP_Q_LINK);
    ndp_expect_silence(&t->dimm[1], NDP_Q_LINK);
    qtest_clock_step(t->qts, 1);
    ndp_wait_for((first = ndp_poll(&t->dimm[0], NDP_Q_LINK, &cpl)) ||
                 ndp_poll(&t->dimm[1], NDP_Q_LINK, &cpl));
    g_assert_true(first);
    ndp_expect_silence(&t->dimm[1], NDP_Q_LINK);
    qtest_clock_step(t->qts, BYTES - 1);
    ndp_expect_silence(&t->dimm[1], NDP_Q_LINK);
    qtest_clock_step(t->qts, 1);
    expect_status(&t->dimm[1], NDP_ST_OK);
    expect_pattern(&t->dimm[0], 9);
    expect_pattern(&t->dimm[1], 9);
    ndp_test_stop(t);
}

/* Transmit and receive are separate: two that swap do not wait. */
static void test_port_duplex(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK);

    write_pattern(&t->dimm[0], 1);
    write_pattern(&t->dimm[1], 2);
    start_pull(&t->dimm[0], 1);
    start_pull(&t->dimm[1], 0);
    qtest_clock_step(t->qts, BYTES + LATENCY);
    expect_status(&t->dimm[0], NDP_ST_OK);
    expect_status(&t->dimm[1], NDP_ST_OK);
    expect_pattern(&t->dimm[0], 2);
    expect_pattern(&t->dimm[1], 1);
    ndp_test_stop(t);
}

/* A pull does not hold up the compute queue. */
static void test_queues_apart(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK ",overhead-ns=0");
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd bad = { .opcode = 99 };

    start_pull(d, 1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, bad), ==, NDP_ST_OPCODE);
    g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(1, NDP_CTR_COMMANDS)), ==,
                     0);
    qtest_clock_step(t->qts, BYTES + LATENCY);
    expect_status(d, NDP_ST_OK);
    ndp_test_stop(t);
}

static void drain_events(NdpTest *t)
{
    unsigned i;

    g_usleep(20000);
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        ndp_write(&t->dimm[i], NDP_REG_EVENT, UINT32_MAX);
        ndp_irq_seen(&t->dimm[i], NDP_VEC_EVENT);
    }
}

static void expect_link_event(NdpTestDimm *d)
{
    ndp_irq_wait(d, NDP_VEC_EVENT);
    g_assert_cmphex(ndp_read(d, NDP_REG_EVENT), ==, NDP_EVENT_LINK);
    ndp_write(d, NDP_REG_EVENT, 0);
    g_assert_cmphex(ndp_read(d, NDP_REG_EVENT), ==, NDP_EVENT_LINK);
    ndp_write(d, NDP_REG_EVENT, NDP_EVENT_LINK);
    g_assert_cmphex(ndp_read(d, NDP_REG_EVENT), ==, 0);
}

static void test_link_down(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    unsigned i;

    drain_events(t);
    ndp_set_bool(&t->dimm[1], "x-inject-link-down", true);
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        expect_link_event(&t->dimm[i]);
    }
    g_assert_cmphex(ndp_read(&t->dimm[0], NDP_REG_PEERS), ==, 0x4);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_PEERS), ==, 0);
    g_assert_cmphex(ndp_read(&t->dimm[0], NDP_REG_STATUS), ==,
                    NDP_STATUS_READY | NDP_STATUS_LINK_UP);
    g_assert_cmphex(ndp_read(&t->dimm[1], NDP_REG_STATUS), ==,
                    NDP_STATUS_READY);
    g_assert_cmpuint(ndp_run(&t->dimm[0], NDP_Q_LINK, pull(1, SRC, 64)), ==,
                     NDP_ST_LINK_DOWN);
    g_assert_cmpuint(ndp_run(&t->dimm[1], NDP_Q_LINK, pull(2, SRC, 64)), ==,
                     NDP_ST_LINK_DOWN);
    g_assert_cmpuint(ndp_run(&t->dimm[0], NDP_Q_LINK, pull(2, SRC, 64)), ==,
                     NDP_ST_OK);

    /* It is the port that is down: a reset of the DIMM does not mend it. */
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmphex(ndp_read(&t->dimm[0], NDP_REG_PEERS), ==, 0x4);
    ndp_dimm_start(&t->dimm[1]);

    ndp_set_bool(&t->dimm[1], "x-inject-link-down", false);
    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        expect_link_event(&t->dimm[i]);
    }
    g_assert_cmpuint(ndp_run(&t->dimm[0], NDP_Q_LINK, pull(1, SRC, 64)), ==,
                     NDP_ST_OK);
    ndp_test_stop(t);
}

/* Either end's port going down ends a pull in its middle. */
static void test_link_down_in_pull(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK);
    unsigned end;

    write_pattern(&t->dimm[1], 3);
    for (end = 0; end < 2; end++) {
        start_pull(&t->dimm[0], 1);
        ndp_set_bool(&t->dimm[end], "x-inject-link-down", true);
        expect_status(&t->dimm[0], NDP_ST_LINK_DOWN);
        ndp_set_bool(&t->dimm[end], "x-inject-link-down", false);
    }
    /* What was cut short does not keep the ports busy. */
    start_pull(&t->dimm[0], 1);
    qtest_clock_step(t->qts, BYTES + LATENCY);
    expect_status(&t->dimm[0], NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_peer_reset_in_pull(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK);
    uint32_t generation = ndp_read(&t->dimm[1], NDP_REG_GENERATION);

    write_pattern(&t->dimm[1], 4);
    start_pull(&t->dimm[0], 1);
    start_pull(&t->dimm[2], 1);
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    g_assert_cmpuint(ndp_read(&t->dimm[1], NDP_REG_GENERATION), ==,
                     generation + 1);
    expect_status(&t->dimm[0], NDP_ST_PEER);
    expect_status(&t->dimm[2], NDP_ST_PEER);

    /* Its port is free again, and its DRAM kept. */
    qtest_clock_step(t->qts, 2 * BYTES + LATENCY);
    start_pull(&t->dimm[0], 1);
    qtest_clock_step(t->qts, BYTES + LATENCY);
    expect_status(&t->dimm[0], NDP_ST_OK);
    expect_pattern(&t->dimm[0], 4);
    ndp_test_stop(t);
}

static void test_own_reset_in_pull(void)
{
    NdpTest *t = ndp_test_start(NULL, SLOW_LINK);
    NdpTestDimm *d = &t->dimm[0];

    write_pattern(&t->dimm[1], 5);
    start_pull(d, 1);
    ndp_write(d, NDP_REG_CTRL, NDP_CTRL_RESET);
    qtest_clock_step(t->qts, 2 * BYTES);
    ndp_expect_silence(d, NDP_Q_LINK);
    /* The peer is not kept by a pull that is no more. */
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_dimm_start(d);
    start_pull(d, 1);
    qtest_clock_step(t->qts, BYTES + LATENCY);
    expect_status(d, NDP_ST_OK);
    expect_pattern(d, 5);
    ndp_test_stop(t);
}

static void test_peer_unplug_in_pull(void)
{
    NdpTest *t = ndp_test_start_behind_ports(SLOW_LINK);

    write_pattern(&t->dimm[1], 6);
    start_pull(&t->dimm[0], 1);
    drain_events(t);
    ndp_test_unplug(t, 1);
    expect_status(&t->dimm[0], NDP_ST_PEER);
    expect_link_event(&t->dimm[0]);
    expect_link_event(&t->dimm[2]);
    g_assert_cmphex(ndp_read(&t->dimm[0], NDP_REG_PEERS), ==, 0x4);
    g_assert_cmpuint(ndp_run(&t->dimm[0], NDP_Q_LINK, pull(1, SRC, 64)), ==,
                     NDP_ST_PEER);

    ndp_test_plug(t, 1);
    expect_link_event(&t->dimm[0]);
    g_assert_cmphex(ndp_read(&t->dimm[0], NDP_REG_PEERS), ==, 0x6);
    ndp_test_stop(t);
}

static void test_own_unplug_in_pull(void)
{
    NdpTest *t = ndp_test_start_behind_ports(SLOW_LINK);

    write_pattern(&t->dimm[1], 7);
    start_pull(&t->dimm[0], 1);
    ndp_test_unplug(t, 0);
    /* Neither does the other end wait for it. */
    ndp_write(&t->dimm[1], NDP_REG_CTRL, NDP_CTRL_RESET);
    ndp_test_unplug(t, 1);
    g_assert_cmphex(ndp_read(&t->dimm[2], NDP_REG_PEERS), ==, 0);
    ndp_test_stop(t);
}

#define STORM_ROUNDS 40
#define STORM_PULLS  4
#define STORM_BYTES  0x200000u

static unsigned storm_source(unsigned puller, unsigned round)
{
    return (puller + 1 + round % 2) % NDP_TEST_DIMMS;
}

/* All pull from all, really at the same time, while one is reset. */
static void test_reset_storm(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    unsigned good = 0;
    unsigned lost = 0;
    unsigned round;
    unsigned i;
    unsigned n;

    for (i = 0; i < NDP_TEST_DIMMS; i++) {
        write_pattern(&t->dimm[i], i);
    }
    for (round = 0; round < STORM_ROUNDS; round++) {
        NdpTestDimm *victim = &t->dimm[round % NDP_TEST_DIMMS];

        for (i = 0; i < NDP_TEST_DIMMS; i++) {
            for (n = 0; n < STORM_PULLS; n++) {
                ndp_push(&t->dimm[i], NDP_Q_LINK,
                         pull(storm_source(i, round), SRC, STORM_BYTES));
            }
        }
        for (i = 0; i < NDP_TEST_DIMMS; i++) {
            ndp_ring(&t->dimm[i], NDP_Q_LINK);
        }
        g_usleep(g_test_rand_int_range(0, 300));
        ndp_write(victim, NDP_REG_CTRL, NDP_CTRL_RESET);
        for (i = 0; i < NDP_TEST_DIMMS; i++) {
            uint32_t status = NDP_ST_INTERNAL;

            for (n = 0; n < STORM_PULLS && &t->dimm[i] != victim; n++) {
                struct ndp_hw_cpl cpl;

                ndp_wait(&t->dimm[i], NDP_Q_LINK, &cpl);
                status = le32_to_cpu(cpl.status);
                g_assert_true(status == NDP_ST_OK || status == NDP_ST_PEER);
                good += status == NDP_ST_OK;
                lost += status == NDP_ST_PEER;
            }
            if (status == NDP_ST_OK) {
                expect_pattern(&t->dimm[i], storm_source(i, round));
            }
        }
        ndp_dimm_start(victim);
    }
    g_test_message("%u pulls went well, %u lost their peer", good, lost);
    g_assert_cmpuint(good + lost, ==,
                     STORM_ROUNDS * STORM_PULLS * (NDP_TEST_DIMMS - 1));
    ndp_test_stop(t);
}

void ndp_add_link_tests(void)
{
    qtest_add_func("ndp/link/pull", test_pull);
    qtest_add_func("ndp/link/bad-pull", test_bad_pull);
    qtest_add_func("ndp/link/modelled-time", test_modelled_time);
    qtest_add_func("ndp/link/port-serial", test_port_serial);
    qtest_add_func("ndp/link/port-duplex", test_port_duplex);
    qtest_add_func("ndp/link/queues-apart", test_queues_apart);
    qtest_add_func("ndp/link/down", test_link_down);
    qtest_add_func("ndp/link/down-in-pull", test_link_down_in_pull);
    qtest_add_func("ndp/link/peer-reset-in-pull", test_peer_reset_in_pull);
    qtest_add_func("ndp/link/own-reset-in-pull", test_own_reset_in_pull);
    qtest_add_func("ndp/link/peer-unplug-in-pull", test_peer_unplug_in_pull);
    qtest_add_func("ndp/link/own-unplug-in-pull", test_own_unplug_in_pull);
    qtest_add_func("ndp/link/reset-storm", test_reset_storm);
}
