/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_avx512.c - the path for CPUs with AVX512-BF16.
 *
 * A pair row is two registers, and VDPBF16PS multiplies it with a broadcast
 * pair (x[k], x[k + 1]) as it lies in memory: no conversion anywhere.  Inputs
 * are packed as [k / 2][token] of such pairs.  A tile of up to twelve tokens
 * keeps its sums in 24 registers.
 *
 * VDPBF16PS rounds to nearest even after each product is added, the odd
 * element's first, takes denormal inputs for zero and gives zero for a denormal
 * result, whatever MXCSR says (Intel SDM, volume 2, VDPBF16PS).
 *
 * Unit tests compile this file over plain C models of its intrinsics, so that
 * it is tested on every machine.
 */
#ifdef __x86_64__
#ifdef NDP_CHIP_AVX512_EMULATION
#include NDP_CHIP_AVX512_EMULATION
#else
#include <immintrin.h>
#endif

#include "ndp_chip_impl.h"

#ifndef NDP_CHIP_AVX512_EMULATION
#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
    "avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16")
#endif
#endif

enum { LANES = 16, MAX_TILE = 12 };

#define INLINE inline __attribute__((always_inline))

/* Element k of token t is half k & 1 of pair [k / 2][t]. */
static void pack(void *dst, unsigned tokens, unsigned t, const uint16_t *src,
                 unsigned n, unsigned padded)
{
    uint32_t *x = dst;

    for (unsigned k = 0; k < padded; k += 2) {
        uint32_t low = k < n ? src[k] : 0, high = k + 1 < n ? src[k + 1] : 0;

        x[k / 2 * tokens + t] = high << 16 | low;
    }
}

/* Weights that are wanted soon: @next, and how far it advances a pair row. */
struct ahead {
    const uint8_t *next;
    unsigned step;
};

/*
 * While a tile passes over @bytes of weights at @w, its share of as many bytes
 * that follow is fetched.
 */
static INLINE struct ahead ahead_of(const uint8_t *w, size_t bytes,
                                    struct ndp_chip_share share)
{
    return (struct ahead) {
        w + bytes + bytes / share.of * share.index, NDP_PAIR_BYTES / share.of,
    };
}

/*
 * sum[t][v] += pair rows times pairs of x; @tokens is a constant in use.  Small
 * tiles leave fetching ahead to the CPU, which is waiting for DRAM anyway.
 */
static INLINE void chain(__m512 sum[MAX_TILE][2], const uint8_t *w,
                         unsigned pairs, const uint32_t *x, struct ahead ahead,
                         const unsigned tokens)
{
    for (unsigned p = 0; p < pairs; p++) {
        __m512i first = _mm512_load_si512(w);
        __m512i second = _mm512_load_si512(w + 64);

        if (tokens >= 5) {
            __builtin_prefetch(ahead.next, 0, 2);
            __builtin_prefetch(ahead.next + 64, 0, 2);
            ahead.next += ahead.step;
        }
#pragma GCC unroll 12
        for (unsigned t = 0; t < tokens; t++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(x[t]);

            sum[t][0] = _mm512_dpbf16_ps(sum[t][0], (__m512bh)first, pair);
            sum[t][1] = _mm512_dpbf16_ps(sum[t][1], (__m512bh)second, pair);
        }
        w += NDP_PAIR_BYTES;
        x += tokens;
    }
}

static INLINE void begin(__m512 sum[MAX_TILE][2], const float *out, size_t ld,
                         enum ndp_chip_store how, const unsigned tokens)
{
#pragma GCC unroll 12
    for (unsigned t = 0; t < tokens; t++) {
        if (how == NDP_STORE_CONTINUE) {
            sum[t][0] = _mm512_loadu_ps(out + t * ld);
            sum[t][1] = _mm512_loadu_ps(out + t * ld + LANES);
        } else {
            sum[t][0] = sum[t][1] = _mm512_setzero_ps();
        }
    }
}

static INLINE void end(__m512 sum[MAX_TILE][2], float *out, size_t ld,
                       enum ndp_chip_store how, const unsigned tokens)
{
#pragma GCC unroll 12
    for (unsigned t = 0; t < tokens; t++) {
#pragma GCC unroll 2
        for (unsigned v = 0; v < 2; v++) {
            float *o = out + t * ld + v * LANES;

            _mm512_storeu_ps(o, how == NDP_STORE_ADD ?
                             _mm512_add_ps(_mm512_loadu_ps(o), sum[t][v]) :
                             sum[t][v]);
        }
    }
}

static INLINE void panel_tile(const uint8_t *w, unsigned pairs,
                              const uint32_t *x, float *out,
                              enum ndp_chip_store how,
                              struct ndp_chip_share share,
                              const unsigned tokens)
{
    for (unsigned p = 0; p < pairs; p += NDP_CHUNK / 2) {
        unsigned n = pairs - p < NDP_CHUNK / 2 ? pairs - p : NDP_CHUNK / 2;
        const uint8_t *rows = w + (size_t)p * NDP_PAIR_BYTES;
        __m512 sum[MAX_TILE][2];

        begin(sum, NULL, 0, NDP_STORE_SET, tokens);
        chain(sum, rows, n, x + (size_t)p * tokens,
              ahead_of(rows, (size_t)n * NDP_PAIR_BYTES, share), tokens);
        end(sum, out, NDP_PANEL, how, tokens);
        how = NDP_STORE_ADD;
    }
}

static INLINE void down_tile(const uint8_t *w, size_t block_bytes,
                             unsigned blocks, const uint32_t *h, float *out,
                             size_t ld, enum ndp_chip_store how,
                             struct ndp_chip_share share, const unsigned tokens)
{
    __m512 sum[MAX_TILE][2];

    begin(sum, out, ld, how, tokens);
    for (unsigned b = 0; b < blocks; b++) {
        const uint8_t *tile = w + b * block_bytes;

        chain(sum, tile, NDP_PANEL / 2, h + b * (NDP_PANEL / 2) * tokens,
              ahead_of(tile, NDP_TILE_BYTES, share), tokens);
    }
    end(sum, out, ld, how, tokens);
}

/* One instance for each size of a tile. */
#define DEFINE_TILE(tokens)                                                 \
static void panel_##tokens(const uint8_t *w, unsigned pairs,                \
                           const uint32_t *x, float *out,                   \
                           enum ndp_chip_store how,                         \
                           struct ndp_chip_share share)                     \
{                                                                           \
    panel_tile(w, pairs, x, out, how, share, tokens);                       \
}                                                                           \
static void down_##tokens(const uint8_t *w, size_t block_bytes,             \
                          unsigned blocks, const uint32_t *h, float *out,   \
                          size_t ld, enum ndp_chip_store how,               \
                          struct ndp_chip_share share)                      \
{                                                                           \
    down_tile(w, block_bytes, blocks, h, out, ld, how, share, tokens);      \
}

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)

static typeof(panel_1) *const panel_of[] = {
    NULL, panel_1, panel_2, panel_3, panel_4, panel_5, panel_6, panel_7,
    panel_8, panel_9, panel_10, panel_11, panel_12,
};

static typeof(down_1) *const down_of[] = {
    NULL, down_1, down_2, down_3, down_4, down_5, down_6, down_7, down_8,
    down_9, down_10, down_11, down_12,
};

static void panel(const uint8_t *w, size_t panel_bytes, unsigned panels,
                  unsigned pairs, const void *x, unsigned tokens, float *out,
                  enum ndp_chip_store how, struct ndp_chip_share share)
{
    for (; panels; panels--, w += panel_bytes, out += NDP_ACC_FLOATS) {
        panel_of[tokens](w, pairs, x, out, how, share);
    }
}

static void down(const uint8_t *w, size_t block_bytes, unsigned blocks,
                 unsigned outs, const void *h, unsigned tokens, float *out,
                 size_t ld, enum ndp_chip_store how,
                 struct ndp_chip_share share)
{
    for (; outs; outs--, w += NDP_TILE_BYTES, out += NDP_PANEL) {
        down_of[tokens](w, block_bytes, blocks, h, out, ld, how, share);
    }
}

const struct ndp_chip_kernels ndp_chip_avx512 = {
    .isa = NDP_CHIP_ISA_AVX512_BF16,
    .tile_tokens = MAX_TILE,
    .elem_bytes = sizeof(uint16_t),
    .pack = pack,
    .panel = panel,
    .down = down,
    .act = ndp_chip_avx2_act,
};

#ifndef NDP_CHIP_AVX512_EMULATION
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#endif /* __x86_64__ */
