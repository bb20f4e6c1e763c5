/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: what every command computes
 *
 * Expected values come from the definitions in ndp_regs.h and the packing in
 * docs/hardware.md, in double precision, not from the chip's code.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include <math.h>
#include "ndp-lib.h"

/* A float's upper half, to nearest, ties to even; no NaN here. */
static uint16_t bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static float bf16_value(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static float bf16_round(float f)
{
    return bf16_value(bf16(f));
}

/* Small integers, so that sums in FP32 are exact. */
static float small(unsigned seed, unsigned range)
{
    return (int)((seed * 2654435761u >> 16) % range) - (int)(range / 2);
}

static float weight(unsigned row, unsigned k)
{
    return small(row * 131 + k * 7 + 1, 5);
}

static float activation(unsigned row, unsigned k)
{
    return small(row * 37 + k * 11 + 2, 7);
}

/* Panels of 32 rows of [K/2][32][2], zero-padded. */
static void write_matrix(NdpTestDimm *d, unsigned rows, unsigned k_in)
{
    unsigned panels = QEMU_ALIGN_UP(rows, 32) / 32;
    unsigned kp = QEMU_ALIGN_UP(k_in, 64);
    g_autofree uint16_t *w = g_new0(uint16_t, panels * 32 * kp);
    unsigned r;
    unsigned k;

    for (r = 0; r < rows; r++) {
        for (k = 0; k < k_in; k++) {
            w[r / 32 * 32 * kp + ((k >> 1) * 32 + r % 32) * 2 + (k & 1)] =
                cpu_to_le16(bf16(weight(r, k)));
        }
    }
    ndp_dram_write(d, NDP_TEST_W, w, panels * 32 * kp * 2);
}

/* BF16 rows; what lies between them is NaN, which must not be read. */
static void write_x(NdpTestDimm *d, unsigned rows, unsigned k_in,
                    unsigned ldx64)
{
    g_autofree uint16_t *x = g_new(uint16_t, rows * ldx64 * 32);
    unsigned r;
    unsigned k;

    for (r = 0; r < rows; r++) {
        for (k = 0; k < ldx64 * 32; k++) {
            x[r * ldx64 * 32 + k] = cpu_to_le16(
                k < k_in ? bf16(activation(r, k)) : 0x7fc0);
        }
    }
    ndp_dram_write(d, NDP_TEST_X, x, rows * ldx64 * 64);
}

static float read_float(NdpTestDimm *d, uint64_t off)
{
    uint32_t bits;
    float f;

    ndp_dram_read(d, off, &bits, 4);
    bits = le32_to_cpu(bits);
    memcpy(&f, &bits, 4);
    return f;
}

static void write_float(NdpTestDimm *d, uint64_t off, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    bits = cpu_to_le32(bits);
    ndp_dram_write(d, off, &bits, 4);
}

static void expect_bytes(NdpTestDimm *d, uint64_t off, size_t bytes,
                         uint8_t val)
{
    g_autofree uint8_t *buf = g_malloc(bytes);
    size_t i;

    ndp_dram_read(d, off, buf, bytes);
    for (i = 0; i < bytes; i++) {
        g_assert_cmphex(buf[i], ==, val);
    }
}

static void test_fill(void)
{
    static const uint32_t sizes[] = { 8, 16, 64, 4104, 1u << 20, 8u << 20 };
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct ndp_hw_cmd cmd = {
            .opcode = NDP_OP_FILL,
            .y = cpu_to_le64(NDP_TEST_W),
            .x = cpu_to_le64(sizes[i]),
            .count = cpu_to_le32(0x12345600 + i),
        };
        uint32_t val;

        ndp_dram_set(d, NDP_TEST_W - 8, 0xaa, 8);
        ndp_dram_set(d, NDP_TEST_W + sizes[i], 0xaa, 8);
        g_assert_cmpuint(ndp_run(d, i % NDP_QUEUES, cmd), ==, NDP_ST_OK);
        ndp_dram_read(d, NDP_TEST_W, &val, 4);
        g_assert_cmphex(le32_to_cpu(val), ==, 0x12345600 + i);
        ndp_dram_read(d, NDP_TEST_W + sizes[i] - 4, &val, 4);
        g_assert_cmphex(le32_to_cpu(val), ==, 0x12345600 + i);
        expect_bytes(d, NDP_TEST_W - 8, 8, 0xaa);
        expect_bytes(d, NDP_TEST_W + sizes[i], 8, 0xaa);
    }
    ndp_test_stop(t);
}

static void test_copy(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    g_autofree uint8_t *src = g_malloc(0x10008);
    g_autofree uint8_t *dst = g_malloc(0x10008);
    struct ndp_hw_cmd cmd = {
        .opcode = NDP_OP_COPY,
        .w = cpu_to_le64(NDP_TEST_W + 8),
        .y = cpu_to_le64(NDP_TEST_Y),
        .x = cpu_to_le64(0x10008),
    };
    unsigned i;
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (i = 0; i < 0x10008; i++) {
            src[i] = i * 7 + q;
        }
        ndp_dram_write(d, NDP_TEST_W + 8, src, 0x10008);
        ndp_dram_set(d, NDP_TEST_Y + 0x10008, 0xaa, 8);
        g_assert_cmpuint(ndp_run(d, q, cmd), ==, NDP_ST_OK);
        ndp_dram_read(d, NDP_TEST_Y, dst, 0x10008);
        g_assert_cmpmem(dst, 0x10008, src, 0x10008);
        expect_bytes(d, NDP_TEST_Y + 0x10008, 8, 0xaa);
    }
    ndp_test_stop(t);
}

static float dot(unsigned row, unsigned x_row, unsigned k_in)
{
    float sum = 0;
    unsigned k;

    for (k = 0; k < k_in; k++) {
        sum += weight(row, k) * activation(x_row, k);
    }
    return sum;
}

static void test_gemv(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;
    unsigned j;

    write_matrix(d, 50, 100);
    write_x(d, 3, 100, 5);
    ndp_dram_set(d, NDP_TEST_Y, 0xaa, 3 * 256);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, ndp_test_gemv), ==, NDP_ST_OK);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 50; j++) {
            g_assert_cmpfloat(read_float(d, NDP_TEST_Y + i * 256 + j * 4), ==,
                              dot(j, i, 100));
        }
        expect_bytes(d, NDP_TEST_Y + i * 256 + 200, 56, 0xaa);
    }
    ndp_test_stop(t);
}

static void test_gemv_rows_accumulate(void)
{
    static const uint32_t rows[3] = { 6, 0, 6 };
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = ndp_test_gemv;
    uint32_t le[3];
    unsigned i;
    unsigned j;

    write_matrix(d, 50, 100);
    write_x(d, 7, 100, 5);
    for (i = 0; i < 3; i++) {
        le[i] = cpu_to_le32(rows[i]);
        for (j = 0; j < 50; j++) {
            write_float(d, NDP_TEST_Y + i * 256 + j * 4, 1000 * i + j);
        }
    }
    ndp_dram_write(d, NDP_TEST_ROWS + 4, le, sizeof(le));
    cmd.flags = NDP_F_ROWS | NDP_F_ACCUMULATE;
    cmd.rows = cpu_to_le64(NDP_TEST_ROWS + 4);
    cmd.x_rows = cpu_to_le16(7);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 50; j++) {
            g_assert_cmpfloat(read_float(d, NDP_TEST_Y + i * 256 + j * 4), ==,
                              1000 * i + j + dot(j, rows[i], 100));
        }
    }

    /* A row that is not there: nothing is written. */
    le[2] = cpu_to_le32(7);
    ndp_dram_write(d, NDP_TEST_ROWS + 4, le, sizeof(le));
    ndp_dram_set(d, NDP_TEST_Y, 0xaa, 3 * 256);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_ROW);
    le[2] = cpu_to_le32(UINT32_MAX);
    ndp_dram_write(d, NDP_TEST_ROWS + 4, le, sizeof(le));
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_ROW);
    expect_bytes(d, NDP_TEST_Y, 3 * 256, 0xaa);
    ndp_test_stop(t);
}

static double silu(double g)
{
    return g / (1 + exp(-g));
}

static double swiglu_clamp(double g, double u, double alpha, double limit)
{
    g = fmin(g, limit);
    u = fmax(fmin(u, limit), -limit);
    return g / (1 + exp(-alpha * g)) * (u + 1);
}

static void test_act(void)
{
    const unsigned columns = 45;
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = {
        .opcode = NDP_OP_ACT,
        .x = cpu_to_le64(NDP_TEST_X),
        .rows = cpu_to_le64(NDP_TEST_UP),
        .y = cpu_to_le64(NDP_TEST_Y),
        .tokens = cpu_to_le32(2),
        .h_out = cpu_to_le16(columns),
        .ldx64 = cpu_to_le16(3),
        .ldy64 = cpu_to_le16(2),
    };
    unsigned act;
    unsigned i;
    unsigned j;

    for (act = NDP_ACT_SILU; act <= NDP_ACT_SWIGLU_CLAMP; act++) {
        cmd.act = act;
        cmd.alpha = act ? ndp_float_bits(1.702f) : 0;
        cmd.limit = act ? ndp_float_bits(3.0f) : 0;
        for (i = 0; i < 2; i++) {
            for (j = 0; j < columns; j++) {
                write_float(d, NDP_TEST_X + i * 192 + j * 4, (j - 20.0) * 0.37);
                write_float(d, NDP_TEST_UP + i * 192 + j * 4,
                            (i * 11.0 - j * 0.5) * 0.4);
            }
        }
        ndp_dram_set(d, NDP_TEST_Y, 0xaa, 2 * 128);
        g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
        for (i = 0; i < 2; i++) {
            for (j = 0; j < columns; j++) {
                double g = (float)((j - 20.0) * 0.37);
                double u = (float)((i * 11.0 - j * 0.5) * 0.4);
                double want = act ? swiglu_clamp(g, u, 1.702f, 3)
                                  : silu(g) * u;
                uint16_t half;

                ndp_dram_read(d, NDP_TEST_Y + i * 128 + j * 2, &half, 2);
                /* One BF16 rounding is at most 2^-8 of the value. */
                g_assert_cmpfloat_with_epsilon(bf16_value(le16_to_cpu(half)),
                                               want,
                                               fabs(want) / 250 + 0.000001);
            }
            expect_bytes(d, NDP_TEST_Y + i * 128 + columns * 2,
                         128 - columns * 2, 0xaa);
        }
    }
    ndp_test_stop(t);
}

enum { GATE, UP, DOWN };

static float expert(unsigned which, unsigned neuron, unsigned k)
{
    return small(which * 7919 + neuron * 131 + k * 7 + 3, 5) / 16;
}

/* Neuron blocks as docs/hardware.md packs them. */
static void write_expert(NdpTestDimm *d, unsigned neurons, unsigned h_in,
                         unsigned h_out)
{
    unsigned hip = QEMU_ALIGN_UP(h_in, 64);
    unsigned hop = QEMU_ALIGN_UP(h_out, 64);
    unsigned block = 64 * hip + 32 * hop;
    unsigned blocks = QEMU_ALIGN_UP(neurons, 32) / 32;
    g_autofree uint16_t *w = g_new0(uint16_t, blocks * block);
    unsigned n;
    unsigned k;

    for (n = 0; n < neurons; n++) {
        uint16_t *b = w + n / 32 * block;
        unsigned m = n % 32;

        for (k = 0; k < h_in; k++) {
            unsigned at = ((k >> 1) * 32 + m) * 2 + (k & 1);

            b[at] = cpu_to_le16(bf16(expert(GATE, n, k)));
            b[32 * hip + at] = cpu_to_le16(bf16(expert(UP, n, k)));
        }
        for (k = 0; k < h_out; k++) {
            b[64 * hip + (k >> 5) * 1024 +
              ((m >> 1) * 32 + (k & 31)) * 2 + (m & 1)] =
                cpu_to_le16(bf16(expert(DOWN, n, k)));
        }
    }
    ndp_dram_write(d, NDP_TEST_W, w, blocks * block * 2);
}

static void ffn_reference(double *y, unsigned x_row, unsigned neurons,
                          unsigned h_in, unsigned h_out, unsigned act)
{
    unsigned n;
    unsigned k;

    for (n = 0; n < neurons; n++) {
        double g = 0;
        double u = 0;
        double h;

        for (k = 0; k < h_in; k++) {
            g += expert(GATE, n, k) * activation(x_row, k);
            u += expert(UP, n, k) * activation(x_row, k);
        }
        h = bf16_round(act ? swiglu_clamp(g, u, 1.702f, 7) : silu(g) * u);
        for (k = 0; k < h_out; k++) {
            y[k] += h * expert(DOWN, n, k);
        }
    }
}

static void run_ffn(NdpTestDimm *d, unsigned neurons, unsigned h_in,
                    unsigned h_out, unsigned tokens, unsigned act)
{
    struct ndp_hw_cmd cmd = ndp_test_ffn(neurons, h_in, h_out, tokens);
    g_autofree double *y = g_new(double, h_out);
    unsigned i;
    unsigned k;

    write_expert(d, neurons, h_in, h_out);
    write_x(d, tokens, h_in, 8);
    ndp_dram_set(d, NDP_TEST_Y, 0xaa, tokens * 1024);
    cmd.act = act;
    cmd.alpha = act ? ndp_float_bits(1.702f) : 0;
    cmd.limit = act ? ndp_float_bits(7.0f) : 0;
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < tokens; i++) {
        memset(y, 0, h_out * sizeof(*y));
        ffn_reference(y, i, neurons, h_in, h_out, act);
        for (k = 0; k < h_out; k++) {
            /* h may round the other way where it is on the edge. */
            g_assert_cmpfloat_with_epsilon(
                read_float(d, NDP_TEST_Y + i * 1024 + k * 4), y[k],
                fabs(y[k]) / 200 + 0.02);
        }
        expect_bytes(d, NDP_TEST_Y + i * 1024 + h_out * 4, 1024 - h_out * 4,
                     0xaa);
    }
}

static void test_ffn(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];

    run_ffn(d, 32, 64, 64, 1, NDP_ACT_SILU);
    run_ffn(d, 36, 100, 100, 3, NDP_ACT_SILU);
    run_ffn(d, 300, 100, 70, 17, NDP_ACT_SILU);
    run_ffn(d, 70, 33, 129, 5, NDP_ACT_SWIGLU_CLAMP);
    ndp_test_stop(t);
}

/* Every path of the chip that runs here, and the whole of the wiring. */
static void test_ffn_isa(void)
{
    static const char *const isa[] = { "isa=scalar", "isa=auto" };
    unsigned i;

    for (i = 0; i < ARRAY_SIZE(isa); i++) {
        NdpTest *t = ndp_test_start(NULL, isa[i]);

        run_ffn(&t->dimm[2], 96, 128, 128, 4, NDP_ACT_SILU);
        ndp_test_stop(t);
    }
}

/* Partial sums of block ranges add up to the whole. */
static void test_ffn_partial(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = ndp_test_ffn(96, 64, 64, 2);
    uint64_t block = 128 * 64 + 64 * 64;
    float whole[2][64];
    unsigned i;
    unsigned k;

    write_expert(d, 96, 64, 64);
    write_x(d, 2, 64, 8);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 64; k++) {
            whole[i][k] = read_float(d, NDP_TEST_Y + i * 1024 + k * 4);
        }
    }
    cmd.count = cpu_to_le32(1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    cmd.count = cpu_to_le32(2);
    cmd.w = cpu_to_le64(NDP_TEST_W + block);
    cmd.flags = NDP_F_ACCUMULATE;
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 64; k++) {
            g_assert_cmpfloat_with_epsilon(
                read_float(d, NDP_TEST_Y + i * 1024 + k * 4), whole[i][k],
                fabs(whole[i][k]) * 0.00001 + 0.0001);
        }
    }
    ndp_test_stop(t);
}

static void test_modelled_time(void)
{
    NdpTest *t = ndp_test_start(NULL, "internal-mbps=1000,gflops=1,"
                                "overhead-ns=123");
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = {
        .opcode = NDP_OP_FILL,
        .x = cpu_to_le64(1 << 20),
    };
    struct ndp_hw_cpl cpl;

    ndp_push(d, NDP_Q_COMPUTE, cmd);
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(le64_to_cpu(cpl.modelled_ns), ==, (1 << 20) + 123);

    /* Bound by arithmetic: 3 matrices, 2 operations an element, 1 GFLOPS. */
    write_expert(d, 32, 64, 64);
    write_x(d, 64, 64, 8);
    ndp_push(d, NDP_Q_COMPUTE, ndp_test_ffn(32, 64, 64, 64));
    ndp_ring(d, NDP_Q_COMPUTE);
    ndp_wait(d, NDP_Q_COMPUTE, &cpl);
    g_assert_cmpuint(le64_to_cpu(cpl.modelled_ns), >=,
                     3 * 2 * 32 * 64 * 64 + 123);
    g_assert_cmpuint(le64_to_cpu(cpl.modelled_ns), <,
                     3 * 2 * 32 * 64 * 64 * 11 / 10);
    ndp_test_stop(t);
}

/* With timing=on a command is not complete before its modelled time. */
static void test_timing(void)
{
    NdpTest *t = ndp_test_start(NULL, "timing=on,internal-mbps=1000,"
                                "overhead-ns=123");
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = {
        .opcode = NDP_OP_FILL,
        .x = cpu_to_le64(1 << 20),
    };
    struct ndp_hw_cpl cpl;
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        ndp_push(d, q, cmd);
        ndp_push(d, q, cmd);
        ndp_ring(d, q);
        ndp_expect_silence(d, q);
        qtest_clock_step(t->qts, (1 << 20) + 122);
        ndp_expect_silence(d, q);
        qtest_clock_step(t->qts, 1);
        ndp_wait(d, q, &cpl);
        /* An engine does one thing after the other. */
        ndp_wait_for(ndp_read(d, NDP_REG_Q(q, NDP_Q_SQ_HEAD)) == 2);
        ndp_expect_silence(d, q);
        qtest_clock_step(t->qts, (1 << 20) + 123);
        ndp_wait(d, q, &cpl);
    }
    ndp_test_stop(t);
}

void ndp_add_command_tests(void)
{
    qtest_add_func("ndp/command/fill", test_fill);
    qtest_add_func("ndp/command/copy", test_copy);
    qtest_add_func("ndp/command/gemv", test_gemv);
    qtest_add_func("ndp/command/gemv-rows-accumulate",
                   test_gemv_rows_accumulate);
    qtest_add_func("ndp/command/act", test_act);
    qtest_add_func("ndp/command/ffn", test_ffn);
    qtest_add_func("ndp/command/ffn-isa", test_ffn_isa);
    qtest_add_func("ndp/command/ffn-partial", test_ffn_partial);
    qtest_add_func("ndp/command/modelled-time", test_modelled_time);
    qtest_add_func("ndp/command/timing", test_timing);
}
