/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qtest of the NDP DIMM: every command, and every way to get one wrong
 *
 * Expected values come from the definitions in ndp_regs.h and the packing in
 * docs/hardware.md, in double precision, not from the chip's code.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include <math.h>
#include "ndp-lib.h"

#define W_OFF    0x100000u
#define X_OFF    0x800000u
#define UP_OFF   0x900000u
#define ROWS_OFF 0x9f0000u
#define Y_OFF    0xa00000u

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

static unsigned round_up(unsigned n, unsigned to)
{
    return (n + to - 1) / to * to;
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
    unsigned panels = round_up(rows, 32) / 32;
    unsigned kp = round_up(k_in, 64);
    g_autofree uint16_t *w = g_new0(uint16_t, panels * 32 * kp);
    unsigned r;
    unsigned k;

    for (r = 0; r < rows; r++) {
        for (k = 0; k < k_in; k++) {
            w[r / 32 * 32 * kp + ((k >> 1) * 32 + r % 32) * 2 + (k & 1)] =
                cpu_to_le16(bf16(weight(r, k)));
        }
    }
    ndp_dram_write(d, W_OFF, w, panels * 32 * kp * 2);
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
    ndp_dram_write(d, X_OFF, x, rows * ldx64 * 64);
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

static uint32_t float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return cpu_to_le32(bits);
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
            .y = cpu_to_le64(W_OFF),
            .x = cpu_to_le64(sizes[i]),
            .count = cpu_to_le32(0x12345600 + i),
        };
        uint32_t val;

        ndp_dram_set(d, W_OFF - 8, 0xaa, 8);
        ndp_dram_set(d, W_OFF + sizes[i], 0xaa, 8);
        g_assert_cmpuint(ndp_run(d, i % NDP_QUEUES, cmd), ==, NDP_ST_OK);
        ndp_dram_read(d, W_OFF, &val, 4);
        g_assert_cmphex(le32_to_cpu(val), ==, 0x12345600 + i);
        ndp_dram_read(d, W_OFF + sizes[i] - 4, &val, 4);
        g_assert_cmphex(le32_to_cpu(val), ==, 0x12345600 + i);
        expect_bytes(d, W_OFF - 8, 8, 0xaa);
        expect_bytes(d, W_OFF + sizes[i], 8, 0xaa);
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
        .w = cpu_to_le64(W_OFF + 8),
        .y = cpu_to_le64(Y_OFF),
        .x = cpu_to_le64(0x10008),
    };
    unsigned i;
    unsigned q;

    for (q = 0; q < NDP_QUEUES; q++) {
        for (i = 0; i < 0x10008; i++) {
            src[i] = i * 7 + q;
        }
        ndp_dram_write(d, W_OFF + 8, src, 0x10008);
        ndp_dram_set(d, Y_OFF + 0x10008, 0xaa, 8);
        g_assert_cmpuint(ndp_run(d, q, cmd), ==, NDP_ST_OK);
        ndp_dram_read(d, Y_OFF, dst, 0x10008);
        g_assert_cmpmem(dst, 0x10008, src, 0x10008);
        expect_bytes(d, Y_OFF + 0x10008, 8, 0xaa);
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

/* K, rows and strides that fit nothing evenly. */
static struct ndp_hw_cmd gemv_50x100 = {
    .opcode = NDP_OP_GEMV,
    .w = const_le64(W_OFF),
    .x = const_le64(X_OFF),
    .y = const_le64(Y_OFF),
    .count = const_le32(2),
    .tokens = const_le32(3),
    .h_in = const_le16(100),
    .h_out = const_le16(50),
    .ldx64 = const_le16(5),
    .ldy64 = const_le16(4),
};

static void test_gemv(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    unsigned i;
    unsigned j;

    write_matrix(d, 50, 100);
    write_x(d, 3, 100, 5);
    ndp_dram_set(d, Y_OFF, 0xaa, 3 * 256);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, gemv_50x100), ==, NDP_ST_OK);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 50; j++) {
            g_assert_cmpfloat(read_float(d, Y_OFF + i * 256 + j * 4), ==,
                              dot(j, i, 100));
        }
        expect_bytes(d, Y_OFF + i * 256 + 200, 56, 0xaa);
    }
    ndp_test_stop(t);
}

static void test_gemv_rows_accumulate(void)
{
    static const uint32_t rows[3] = { 6, 0, 6 };
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd cmd = gemv_50x100;
    uint32_t le[3];
    unsigned i;
    unsigned j;

    write_matrix(d, 50, 100);
    write_x(d, 7, 100, 5);
    for (i = 0; i < 3; i++) {
        le[i] = cpu_to_le32(rows[i]);
        for (j = 0; j < 50; j++) {
            write_float(d, Y_OFF + i * 256 + j * 4, 1000 * i + j);
        }
    }
    ndp_dram_write(d, ROWS_OFF + 4, le, sizeof(le));
    cmd.flags = NDP_F_ROWS | NDP_F_ACCUMULATE;
    cmd.rows = cpu_to_le64(ROWS_OFF + 4);
    cmd.x_rows = cpu_to_le16(7);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 50; j++) {
            g_assert_cmpfloat(read_float(d, Y_OFF + i * 256 + j * 4), ==,
                              1000 * i + j + dot(j, rows[i], 100));
        }
    }

    /* A row that is not there: nothing is written. */
    le[2] = cpu_to_le32(7);
    ndp_dram_write(d, ROWS_OFF + 4, le, sizeof(le));
    ndp_dram_set(d, Y_OFF, 0xaa, 3 * 256);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_ROW);
    le[2] = cpu_to_le32(UINT32_MAX);
    ndp_dram_write(d, ROWS_OFF + 4, le, sizeof(le));
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_ROW);
    expect_bytes(d, Y_OFF, 3 * 256, 0xaa);
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
        .x = cpu_to_le64(X_OFF),
        .rows = cpu_to_le64(UP_OFF),
        .y = cpu_to_le64(Y_OFF),
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
        cmd.alpha = act ? float_bits(1.702f) : 0;
        cmd.limit = act ? float_bits(3.0f) : 0;
        for (i = 0; i < 2; i++) {
            for (j = 0; j < columns; j++) {
                write_float(d, X_OFF + i * 192 + j * 4, (j - 20.0) * 0.37);
                write_float(d, UP_OFF + i * 192 + j * 4,
                            (i * 11.0 - j * 0.5) * 0.4);
            }
        }
        ndp_dram_set(d, Y_OFF, 0xaa, 2 * 128);
        g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
        for (i = 0; i < 2; i++) {
            for (j = 0; j < columns; j++) {
                double g = (float)((j - 20.0) * 0.37);
                double u = (float)((i * 11.0 - j * 0.5) * 0.4);
                double want = act ? swiglu_clamp(g, u, 1.702f, 3)
                                  : silu(g) * u;
                uint16_t half;

                ndp_dram_read(d, Y_OFF + i * 128 + j * 2, &half, 2);
                /* One BF16 rounding is at most 2^-8 of the value. */
                g_assert_cmpfloat_with_epsilon(bf16_value(le16_to_cpu(half)),
                                               want,
                                               fabs(want) / 250 + 0.000001);
            }
            expect_bytes(d, Y_OFF + i * 128 + columns * 2,
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
    unsigned hip = round_up(h_in, 64);
    unsigned hop = round_up(h_out, 64);
    unsigned block = 64 * hip + 32 * hop;
    unsigned blocks = round_up(neurons, 32) / 32;
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
    ndp_dram_write(d, W_OFF, w, blocks * block * 2);
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

static struct ndp_hw_cmd ffn_cmd(unsigned neurons, unsigned h_in,
                                 unsigned h_out, unsigned tokens)
{
    return (struct ndp_hw_cmd) {
        .opcode = NDP_OP_FFN,
        .w = cpu_to_le64(W_OFF),
        .x = cpu_to_le64(X_OFF),
        .y = cpu_to_le64(Y_OFF),
        .count = cpu_to_le32(round_up(neurons, 32) / 32),
        .tokens = cpu_to_le32(tokens),
        .h_in = cpu_to_le16(h_in),
        .h_out = cpu_to_le16(h_out),
        .ldx64 = cpu_to_le16(8),
        .ldy64 = cpu_to_le16(16),
    };
}

static void run_ffn(NdpTestDimm *d, unsigned neurons, unsigned h_in,
                    unsigned h_out, unsigned tokens, unsigned act)
{
    struct ndp_hw_cmd cmd = ffn_cmd(neurons, h_in, h_out, tokens);
    g_autofree double *y = g_new(double, h_out);
    unsigned i;
    unsigned k;

    write_expert(d, neurons, h_in, h_out);
    write_x(d, tokens, h_in, 8);
    ndp_dram_set(d, Y_OFF, 0xaa, tokens * 1024);
    cmd.act = act;
    cmd.alpha = act ? float_bits(1.702f) : 0;
    cmd.limit = act ? float_bits(7.0f) : 0;
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < tokens; i++) {
        memset(y, 0, h_out * sizeof(*y));
        ffn_reference(y, i, neurons, h_in, h_out, act);
        for (k = 0; k < h_out; k++) {
            /* h may round the other way where it is on the edge. */
            g_assert_cmpfloat_with_epsilon(
                read_float(d, Y_OFF + i * 1024 + k * 4), y[k],
                fabs(y[k]) / 200 + 0.02);
        }
        expect_bytes(d, Y_OFF + i * 1024 + h_out * 4, 1024 - h_out * 4, 0xaa);
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
    struct ndp_hw_cmd cmd = ffn_cmd(96, 64, 64, 2);
    uint64_t block = 128 * 64 + 64 * 64;
    float whole[2][64];
    unsigned i;
    unsigned k;

    write_expert(d, 96, 64, 64);
    write_x(d, 2, 64, 8);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 64; k++) {
            whole[i][k] = read_float(d, Y_OFF + i * 1024 + k * 4);
        }
    }
    cmd.count = cpu_to_le32(1);
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    cmd.count = cpu_to_le32(2);
    cmd.w = cpu_to_le64(W_OFF + block);
    cmd.flags = NDP_F_ACCUMULATE;
    g_assert_cmpuint(ndp_run(d, NDP_Q_COMPUTE, cmd), ==, NDP_ST_OK);
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 64; k++) {
            g_assert_cmpfloat_with_epsilon(
                read_float(d, Y_OFF + i * 1024 + k * 4), whole[i][k],
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
    ndp_push(d, NDP_Q_COMPUTE, ffn_cmd(32, 64, 64, 64));
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
        .y = cpu_to_le64(Y_OFF),
        .x = cpu_to_le64(64),
    };
    struct ndp_hw_cmd copy = {
        .opcode = NDP_OP_COPY,
        .w = cpu_to_le64(W_OFF),
        .y = cpu_to_le64(Y_OFF),
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
        BAD(q, fill, y, cpu_to_le64(Y_OFF + 4), NDP_ST_ALIGN);
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
        BAD(q, copy, w, cpu_to_le64(W_OFF + 2), NDP_ST_ALIGN);
        BAD(q, copy, w, end, NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(UINT64_MAX - 7), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(Y_OFF), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(Y_OFF - 56), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(Y_OFF + 56), NDP_ST_RANGE);
        BAD(q, copy, w, cpu_to_le64(Y_OFF - 64), NDP_ST_OK);
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
    BAD(q, good, rows, cpu_to_le64(ROWS_OFF), NDP_ST_FIELD);
    BAD(q, good, x_rows, 1, NDP_ST_FIELD);
    BAD(q, good, act, 2, NDP_ST_FIELD);
    BAD(q, good, alpha, 1, NDP_ST_FIELD);
    BAD(q, good, limit, float_bits(-0.0f), NDP_ST_FIELD);
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
    BAD(q, good, w, cpu_to_le64(W_OFF + 32), NDP_ST_ALIGN);
    BAD(q, good, x, cpu_to_le64(X_OFF + 2), NDP_ST_ALIGN);
    BAD(q, good, y, cpu_to_le64(Y_OFF + 4), NDP_ST_ALIGN);
    BAD(q, good, w, cpu_to_le64(NDP_TEST_DRAM - 64), NDP_ST_RANGE);
    BAD(q, good, w, cpu_to_le64(UINT64_MAX - 63), NDP_ST_RANGE);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_DRAM), NDP_ST_RANGE);
    BAD(q, good, x, cpu_to_le64(NDP_TEST_DRAM - 128), NDP_ST_RANGE);
    BAD(q, good, y, cpu_to_le64(UINT64_MAX - 63), NDP_ST_RANGE);
    BAD(q, good, y, cpu_to_le64(NDP_TEST_DRAM - 64), NDP_ST_RANGE);

    listed.flags = NDP_F_ROWS;
    listed.rows = cpu_to_le64(ROWS_OFF);
    listed.x_rows = cpu_to_le16(1);
    ndp_dram_set(d, ROWS_OFF, 0, 4 * le32_to_cpu(good.tokens));
    expect(d, q, listed, NDP_ST_OK);
    BAD(q, listed, x_rows, 0, NDP_ST_SHAPE);
    BAD(q, listed, rows, cpu_to_le64(ROWS_OFF + 2), NDP_ST_ALIGN);
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

    bad_multiply(d, gemv_50x100);
    BAD(NDP_Q_COMPUTE, gemv_50x100, act, 1, NDP_ST_FIELD);
    BAD(NDP_Q_COMPUTE, gemv_50x100, count, UINT32_MAX, NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, gemv_50x100, h_out, cpu_to_le16(32), NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, gemv_50x100, h_out, cpu_to_le16(65), NDP_ST_SHAPE);
    BAD(NDP_Q_COMPUTE, gemv_50x100, h_out, cpu_to_le16(33), NDP_ST_OK);
    ndp_test_stop(t);
}

static void test_bad_ffn(void)
{
    NdpTest *t = ndp_test_start(NULL, NULL);
    NdpTestDimm *d = &t->dimm[0];
    struct ndp_hw_cmd good = ffn_cmd(64, 100, 100, 3);

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
        .x = cpu_to_le64(X_OFF),
        .rows = cpu_to_le64(UP_OFF),
        .y = cpu_to_le64(Y_OFF),
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
    BAD(q, good, x, cpu_to_le64(X_OFF + 4), NDP_ST_ALIGN);
    BAD(q, good, rows, cpu_to_le64(UP_OFF + 4), NDP_ST_ALIGN);
    BAD(q, good, y, cpu_to_le64(Y_OFF + 2), NDP_ST_ALIGN);
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
    qtest_add_func("ndp/command/bad-opcode", test_bad_opcode);
    qtest_add_func("ndp/command/bad-transfer", test_bad_transfer);
    qtest_add_func("ndp/command/bad-gemv", test_bad_gemv);
    qtest_add_func("ndp/command/bad-act", test_bad_act);
    qtest_add_func("ndp/command/bad-ffn", test_bad_ffn);
    qtest_add_func("ndp/command/random", test_random_commands);
}
