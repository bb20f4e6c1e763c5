/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_scalar.c - the reference path: the formulas of the packing and of
 * the activation, in the plainest C.
 *
 * It runs on any CPU, and is what the other paths can be read against.  Each
 * multiply and each add is rounded on its own.
 */
#include <math.h>

#include "ndp_chip_impl.h"

static void pack(void *dst, unsigned tokens, unsigned t, const uint16_t *src,
                 unsigned n, unsigned padded)
{
    float *x = dst;

    for (unsigned k = 0; k < padded; k++) {
        x[k * tokens + t] = k < n ? ndp_chip_bf16_to_f32(src[k]) : 0.0f;
    }
}

/* sum[m] += w[k][m] * x[k] over @pairs pairs of k; x advances by @tokens. */
static void chain(float sum[NDP_PANEL], const uint8_t *w, unsigned pairs,
                  const float *x, unsigned tokens)
{
    const uint16_t *e = (const uint16_t *)w;

    for (unsigned k = 0; k < 2 * pairs; k++) {
        for (unsigned m = 0; m < NDP_PANEL; m++) {
            sum[m] += ndp_chip_bf16_to_f32(e[((k >> 1) * 32 + m) * 2 +
                                             (k & 1)]) * x[k * tokens];
        }
    }
}

static void store(float *out, const float *sum, enum ndp_chip_store how)
{
    for (unsigned m = 0; m < NDP_PANEL; m++) {
        out[m] = how == NDP_STORE_ADD ? out[m] + sum[m] : sum[m];
    }
}

static void panel(const uint8_t *w, size_t panel_bytes, unsigned panels,
                  unsigned pairs, const void *x, unsigned tokens, float *out,
                  enum ndp_chip_store how, struct ndp_chip_share share)
{
    (void)share; /* nothing is fetched ahead: this path is not about speed */
    for (unsigned i = 0; i < panels * tokens; i++) {
        unsigned t = i % tokens;
        float *o = out + i / tokens * NDP_ACC_FLOATS + t * NDP_PANEL;
        enum ndp_chip_store to = how;

        for (unsigned p = 0; p < pairs; p += NDP_CHUNK / 2) {
            unsigned n = pairs - p < NDP_CHUNK / 2 ? pairs - p : NDP_CHUNK / 2;
            float sum[NDP_PANEL] = { 0 };

            chain(sum, w + i / tokens * panel_bytes +
                  (size_t)p * NDP_PAIR_BYTES, n,
                  (const float *)x + (size_t)2 * p * tokens + t, tokens);
            store(o, sum, to);
            to = NDP_STORE_ADD;
        }
    }
}

static void down(const uint8_t *w, size_t block_bytes, unsigned blocks,
                 unsigned outs, const void *h, unsigned tokens, float *out,
                 size_t ld, enum ndp_chip_store how,
                 struct ndp_chip_share share)
{
    (void)share;
    for (unsigned j = 0; j < outs; j++) {
        for (unsigned t = 0; t < tokens; t++) {
            float *y = out + t * ld + j * NDP_PANEL;
            float sum[NDP_PANEL];

            for (unsigned m = 0; m < NDP_PANEL; m++) {
                sum[m] = how == NDP_STORE_CONTINUE ? y[m] : 0.0f;
            }
            for (unsigned b = 0; b < blocks; b++) {
                chain(sum, w + b * block_bytes + (size_t)j * NDP_TILE_BYTES,
                      NDP_PANEL / 2,
                      (const float *)h + b * NDP_PANEL * tokens + t, tokens);
            }
            store(y, sum, how);
        }
    }
}

/* 1 / (1 + exp(-z)), without an overflow on the way */
static float sigmoid(float z)
{
    float s = expf(-fabsf(z));

    return (z < 0 ? s : 1.0f) / (1.0f + s);
}

/* Comparisons are written so that a NaN stays. */
static float at_most(float v, float limit)
{
    return v > limit ? limit : v;
}

static float at_least(float v, float limit)
{
    return v < limit ? limit : v;
}

static void act(uint16_t *h, const float *g, const float *u, size_t n,
                enum ndp_chip_act act, float alpha, float limit)
{
    for (size_t i = 0; i < n; i++) {
        float gate = g[i], up = u[i], z = gate;

        if (act == NDP_CHIP_SWIGLU_CLAMP) {
            gate = at_most(gate, limit);
            up = at_least(at_most(up, limit), -limit) + 1.0f;
            z = alpha * gate;
        }
        h[i] = ndp_chip_bf16_rne(gate * sigmoid(z) * up);
    }
}

const struct ndp_chip_kernels ndp_chip_scalar = {
    .isa = NDP_CHIP_ISA_SCALAR,
    .tile_tokens = 1,
    .elem_bytes = sizeof(float),
    .pack = pack,
    .panel = panel,
    .down = down,
    .act = act,
};
