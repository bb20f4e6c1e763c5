/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: every way to get a command wrong
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "ndp-lib.h"

static void expect(NdpTestDimm *d, unsigned q, struct ndp_hw_cmd cmd,
                   uint32_t status)
{
    uint64_t errors = ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_ERRORS));

    g_assert_cmpuint(ndp_run(d, q, cmd), ==, status);
    g_assert_cmpuint(ndp_read64(d, NDP_REG_COUNTER(q, NDP_CTR_ERRORS)), ==,
                     errors + (status != NDP_ST_OK));
}

/* A copy of the command @base, with one thing changed. */
#define BAD(q, base, field, val, status) do { \
    struct ndp_hw_cmd bad_ = (base); \
    bad_.field = (val); \
    expect(d, q, bad_, status); \
} while (0)

static void test_bad_opcode(void)
{
    static const uint8_t compute_only[] = { NDP_OP_GEMV, NDP_OP_ACT,
                                            NDP_OP_FFN };
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = { };
    unsigned opcode;
    unsigned q;
    unsigned i;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (opcode = 0; opcode <= UINT8_MAX; opcode++) {
            if (opcode < NDP_OP_FILL || opcode > NDP_OP_FFN) {
                cmd.opcode = opcode;
                expect(d, q, cmd, NDP_ST_OPCODE);
            }
        }
    }
    for (i = 0; i < ARRAY_SIZE(compute_only); i++) {
        cmd.opcode = compute_only[i];
        expect(d, NDP_Q_LINK, cmd, NDP_ST_OPCODE);
    }
    cmd.opcode = NDP_OP_LINK_COPY;
    expect(d, NDP_Q_COMPUTE, cmd, NDP_ST_OPCODE);
    ndp_test_stop(t);
}

static void test_bad_transfer(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd fill = {
        .opcode = NDP_OP_FILL,
        .y = cpu_to_le64(NDP_TEST_Y),
        .x = cpu_to_le64(64),
    };
    struct ndp_hw_cmd copy = {
        .opcode = NDP_OP_COPY,
        .w = cpu_to_le64(NDP_TEST_W),
        .y = cpu_to_le64(NDP_TEST_Y),
        .x = cpu_to_le64(64),
    };
    const uint64_t end = cpu_to_le64(NDP_TEST_DRAM);
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        expect(d, q, fill, NDP_ST_OK);
        BAD(q, fill, x, 0, NDP_ST_SHAPE);
        BAD(q, fill, x, cpu_to_le64(NDP_MAX_COPY_BYTES + 8), NDP_ST_SHAPE);
        BAD(q, fill, x, UINT64_MAX, NDP_ST_SHAPE);
        BAD(q, fill, x, cpu_to_le64(12), NDP_ST_ALIGN);
        BAD(q, fill, y, cpu_to_le64(NDP_TEST_Y + 4), NDP_ST_ALIGN);
        BAD(q, fill, y, end, NDP_ST_RANGE);
        BAD(q, fill, y, cpu_to_le64(NDP_TEST_DRAM - 56), NDP_ST_RANGE);
        BAD(q, fill, y, cpu_to_le64(UINT64_MAX - 7), NDP_ST_RANGE);
        BAD(q, fill, w, 1, NDP_ST_FIELD);
        BAD(q, fill, rows, 1, NDP_ST_FIELD);
        BAD(q, fill, flags, 1, NDP_ST_FIELD);
        BAD(q, fill, act, 1, NDP_ST_FIELD);
        BAD(q, fill, rsvd, 1, NDP_ST_FIELD);
        BAD(q, fill, x_rows, 1, NDP_ST_FIELD);
        BAD(q, fill, tokens, 1, NDP_ST_FIELD);
        BAD(q, fill, h_in, 1, NDP_ST_FIELD);
        BAD(q, fill, h_out, 1, NDP_ST_FIELD);
        BAD(q, fill, ldx64, 1, NDP_ST_FIELD);
        BAD(q, fill, ldy64, 1, NDP_ST_FIELD);
        BAD(q, fill, alpha, 1, NDP_ST_FIELD);
        BAD(q, fill, limit, cpu_to_le32(0x80000000u), NDP_ST_FIELD);

        expect(d, q, copy, NDP_ST_OK);
        BAD(q, copy, count, 1, NDP_ST_FIELD);
        BAD(q, copy, rows, 1, NDP_ST_FIELD);
        BAD(q, copy, rsvd, 1, NDP_ST_FIELD);
        BAD(q, copy, w, cpu_to_le64(NDP_TEST_W + 2), NDP_ST_ALIGN);
        BAD(q, copy, w, end, NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(UINT64_MAX - 7), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(NDP_TEST_Y), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(NDP_TEST_Y - 56), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(NDP_TEST_Y + 56), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(NDP_TEST_Y - 64), NDP_ST_OK);
    }
    ndp_test_stop(t);
}

static void bad_multiply(NdpTestDimm *d, struct ndp_hw_cmd good)
{
    const unsigned q = NDP_Q_COMPUTE;
    struct ndp_hw_cmd listed = good;

    expect(d, q, good, NDP_ST_OK);
    BAD(q, good, flags, 4, NDP_ST_FIELD);
    BAD(q, good, flags, 0x80, NDP_ST_FIELD);
    BAD(q, good, rsvd, 1, NDP_ST_FIELD);
    BAD(q, good, rows, cpu_to_le64(NDP_TEST_ROWS), NDP_ST_FIELD);
    BAD(q, good, x_rows, 1, NDP_ST_FIELD);
    BAD(q, good, act, 2, NDP_ST_FIELD);
    BAD(q, good, alpha, 1, NDP_ST_FIELD);
    BAD(q, good, limit, ndp_float_bits(-0.0f), NDP_ST_FIELD);
    BAD(q, good, tokens, 0, NDP_ST_SHAPE);
    BAD(q, good, tokens, cpu_to_le32(NDP_MAX_TOKENS + 1), NDP_ST_SHAPE);
    BAD(q, good, tokens, UINT32_MAX, NDP_ST_SHAPE);
    BAD(q, good, count, 0, NDP_ST_SHAPE);
    BAD(q, good, h_in, 0, NDP_ST_SHAPE);
    BAD(q, good, h_in, UINT16_MAX, NDP_ST_SHAPE);
    BAD(q, good, h_out, 0, NDP_ST_SHAPE);
    BAD(q, good, h_out, UINT16_MAX, NDP_ST_SHAPE);
    BAD(q, good, ldx64, 0, NDP_ST_SHAPE);
    BAD(q, good, ldx64, cpu_to_le16(1), NDP_ST_SHAPE);
    BAD(q, good, ldy64, 0, NDP_ST_SHAPE);
    BAD(q, good, w, cpu_to_le64(NDP_TEST_W + 32), NDP_ST_ALIGN);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_X + 2), NDP_ST_ALIGN);
    BAD(q, good, y, cpu_to_le64(NDP_TEST_Y + 4), NDP_ST_ALIGN);
    BAD(q, good, w, cpu_to_le64(NDP_TEST_DRAM - 64), NDP_ST_RANGE);
    BAD(q, good, w, cpu_to_le64(UINT64_MAX - 63), NDP_ST_RANGE);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_DRAM), NDP_ST_RANGE);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_DRAM - 128), NDP_ST_RANGE);
    BAD(q, good, y, cpu_to_le64(UINT64_MAX - 63), NDP_ST_RANGE);
    BAD(q, good, y, cpu_to_le64(NDP_TEST_DRAM - 64), NDP_ST_RANGE);

    listed.flags = NDP_F_ROWS;
    listed.rows = cpu_to_le64(NDP_TEST_ROWS);
    listed.x_rows = cpu_to_le16(1);
    ndp_dram_set(d, NDP_TEST_ROWS, 0, 4 * le32_to_cpu(good.tokens));
    expect(d, q, listed, NDP_ST_OK);
    BAD(q, listed, x_rows, 0, NDP_ST_SHAPE);
    BAD(q, listed, rows, cpu_to_le64(NDP_TEST_ROWS + 2), NDP_ST_ALIGN);
    BAD(q, listed, rows, cpu_to_le64(NDP_TEST_DRAM - 4), NDP_ST_RANGE);
    BAD(q, listed, rows, cpu_to_le64(UINT64_MAX - 3), NDP_ST_RANGE);
    listed.x = cpu_to_le64(NDP_TEST_DRAM - 0x100000);
    expect(d, q, listed, NDP_ST_OK);
    BAD(q, listed, x_rows, UINT16_MAX, NDP_ST_RANGE);
}

static void test_bad_gemv(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    bad_multiply(d, ndp_test_gemv);
    BAD(NDP_Q_COMPUTE, ndp_test_gemv, act, 1, NDP_ST_FIELD);
    BAD(NDP_Q_COMPUTE, ndp_test_gemv, count, UINT32_MAX, NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, ndp_test_gemv, h_out, cpu_to_le16(32), NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, ndp_test_gemv, h_out, cpu_to_le16(65), NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, ndp_test_gemv, h_out, cpu_to_le16(33), NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_bad_ffn(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd good = ndp_test_ffn(64, 100, 100, 3);

    bad_multiply(d, good);
    BAD(NDP_Q_COMPUTE, good, count, UINT32_MAX, NDP_ST_RANGE);
    BAD(NDP_Q_COMPUTE, good, count, cpu_to_le32(1 << 20), NDP_ST_RANGE);
    ndp_test_stop(t);
}

static void test_bad_act(void)
{
    const unsigned q = NDP_Q_COMPUTE;
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd good = {
        .opcode = NDP_OP_ACT,
        .x = cpu_to_le64(NDP_TEST_X),
        .rows = cpu_to_le64(NDP_TEST_UP),
        .y = cpu_to_le64(NDP_TEST_Y),
        .tokens = cpu_to_le32(2),
        .h_out = cpu_to_le16(45),
        .ldx64 = cpu_to_le16(3),
        .ldy64 = cpu_to_le16(2),
    };

    expect(d, q, good, NDP_ST_OK);
    BAD(q, good, act, 2, NDP_ST_FIELD);
    BAD(q, good, flags, 1, NDP_ST_FIELD);
    BAD(q, good, w, 64, NDP_ST_FIELD);
    BAD(q, good, count, 1, NDP_ST_FIELD);
    BAD(q, good, h_in, 1, NDP_ST_FIELD);
    BAD(q, good, x_rows, 1, NDP_ST_FIELD);
    BAD(q, good, alpha, 1, NDP_ST_FIELD);
    BAD(q, good, tokens, 0, NDP_ST_SHAPE);
    BAD(q, good, tokens, UINT32_MAX, NDP_ST_SHAPE);
    BAD(q, good, h_out, 0, NDP_ST_SHAPE);
    BAD(q, good, ldx64, cpu_to_le16(2), NDP_ST_SHAPE);
    BAD(q, good, ldy64, cpu_to_le16(1), NDP_ST_SHAPE);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_X + 4), NDP_ST_ALIGN);
    BAD(q, good, rows, cpu_to_le64(NDP_TEST_UP + 4), NDP_ST_ALIGN);
    BAD(q, good, y, cpu_to_le64(NDP_TEST_Y + 2), NDP_ST_ALIGN);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_DRAM - 192), NDP_ST_RANGE);
    BAD(q, good, rows, cpu_to_le64(UINT64_MAX - 63), NDP_ST_RANGE);
    BAD(q, good, y, cpu_to_le64(NDP_TEST_DRAM - 128), NDP_ST_RANGE);
    ndp_test_stop(t);
}

/* Random commands: an answer to each, and the device lives. */
static void test_random_commands(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;
    unsigned j;

    for (i = 0; i < 2000; i++) {
        struct ndp_hw_cmd cmd;

        for (j = 0; j < sizeof(cmd); j++) {
            /* Mostly zero bytes get further than noise does. */
            ((uint8_t *)&cmd)[j] = g_test_rand_int_range(0, 4) ? 0 :
                                   g_test_rand_int_range(0, 256);
        }
        cmd.opcode %= NDP_OP_FFN + 2;
        /* Keep its results out of the rings, which is not the point here. */
        cmd.y = cpu_to_le64(le64_to_cpu(cmd.y) | NDP_TEST_DRAM);
        g_assert_cmpuint(ndp_run(d, i % NDP_QUEUES, cmd), !=, NDP_ST_OK);
    }
    ndp_test_stop(t);
}

void ndp_add_bad_command_tests(void)
{
    qtest_add_func("ndp/command/bad-opcode", test_bad_opcode);
    qtest_add_func("ndp/command/bad-transfer", test_bad_transfer);
    qtest_add_func("ndp/command/bad-gemv", test_bad_gemv);
    qtest_add_func("ndp/command/bad-act", test_bad_act);
    qtest_add_func("ndp/command/bad-ffn", test_bad_ffn);
    qtest_add_func("ndp/command/random", test_random_commands);
}
