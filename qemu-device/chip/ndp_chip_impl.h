/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_impl.h - what the files of the chip share, and nobody else sees.
 *
 * The order of every floating point sum is decided here, once, so that a result
 * depends on nothing but the operation and the ISA path:
 *
 * - A dot product over k is cut into chunks of NDP_CHUNK elements, counted from
 *   k = 0.  A chunk is one chain of multiply-adds from zero, k ascending;
 *   chunks are added in ascending order.
 * - y adds groups of NDP_GROUP blocks, counted from the first block of the
 *   range, in ascending order.  A group is one chain from zero over its
 *   neurons, ascending.
 *
 * Neither the number of tokens, nor how they are cut into tiles, nor where the
 * blocks lie in an extent enters.
 *
 * Error bound.  Let u = 2^-24, g and v the exact gate and up products, K =
 * h_in, I = the neurons of the range, and |a|.|b| = sum |a_k b_k|.  Then with
 * c(n) = 1.01 u (256 + n / 256 + 4) for a sum over n terms
 *
 *   |g' - g| <= eg = c(K) |gate|.|x| + f,  |v' - v| <= ev = c(K) |up|.|x| + f
 *   |h' - h| <= eh = (1 + 2^-8) (1.1 eg (|v| + ev) + |g| ev + 8u |g| |v|)
 *                    + 2^-8 |h| + 2^-120           (act 0; act 1 with v + 1)
 *   |y' - y| <= |down|.eh + c(I) |down|.(|h| + eh) + f
 *
 * where 1.1 bounds the slope of silu.  f is what numbers below 2^-126 lose:
 * 2^-148 n for the scalar and AVX2 paths, which compute with them; VDPBF16PS
 * takes them for zero, so there f = 2^-126 (sum |a_k| + sum |b_k| + 2 n).  With
 * F_ACCUMULATE the sum with what was there is rounded once more.
 */
#ifndef NDP_CHIP_IMPL_H
#define NDP_CHIP_IMPL_H

#include "ndp_chip.h"

enum {
    NDP_PANEL = NDP_CHIP_BLOCK_NEURONS, /* rows of a panel, outputs of a tile */
    NDP_PAIR_BYTES = 128,   /* 32 rows of two BF16: one step of k by two */
    NDP_TILE_BYTES = 2048,  /* a tile of down: 32 neurons by 32 outputs */
    NDP_CHUNK = 256,
    NDP_GROUP = 8,
    NDP_BATCH = 96,         /* tokens that share one pass over the weights */
    NDP_ACC_FLOATS = NDP_BATCH * NDP_PANEL,
};

/* What a kernel does with its result. */
enum ndp_chip_store {
    NDP_STORE_SET,      /* out = sum, the chain starts from zero */
    NDP_STORE_ADD,      /* out = out + sum, the chain starts from zero */
    NDP_STORE_CONTINUE, /* out = sum, the chain starts from out */
};

/*
 * Tiles of tokens pass one after the other over the same weights, and meanwhile
 * fetch the next ones: tile @index of @of its share of them.
 */
struct ndp_chip_share {
    unsigned index;
    unsigned of;
};

/*
 * What an ISA path consists of.  Inputs (x and h) are packed for it as
 * [k][tokens of the tile], elements of @elem_bytes for each k.
 */
struct ndp_chip_kernels {
    enum ndp_chip_isa isa;
    unsigned tile_tokens; /* most tokens of a tile */
    unsigned elem_bytes;  /* 4: FP32; 2: BF16, two successive k together */

    /*
     * Writes token @t's column of a packed tile of @tokens: @n elements of
     * @src, then zeroes up to @padded, which is even.
     */
    void (*pack)(void *dst, unsigned tokens, unsigned t, const uint16_t *src,
                 unsigned n, unsigned padded);

    /*
     * One or two panels, @panel_bytes apart, times a tile of tokens: @pairs
     * pair rows at @w, cut into chunks.  out[t * 32 + m], SET or ADD; the
     * second panel's results lie NDP_ACC_FLOATS after the first's.
     */
    void (*panel)(const uint8_t *w, size_t panel_bytes, unsigned panels,
                  unsigned pairs, const void *x, unsigned tokens, float *out,
                  enum ndp_chip_store store, struct ndp_chip_share share);

    /*
     * A chain over @blocks tiles of down, @block_bytes apart, for each of
     * @outs successive tiles of 32 outputs: out[t * ld + 32 * tile + j].  @outs
     * is 1 or even.  @h has 32 * @blocks elements a token.
     */
    void (*down)(const uint8_t *w, size_t block_bytes, unsigned blocks,
                 unsigned outs, const void *h, unsigned tokens, float *out,
                 size_t ld, enum ndp_chip_store store,
                 struct ndp_chip_share share);

    /* h[i] = bf16(act(g[i], u[i])), @n a multiple of 16 */
    void (*act)(uint16_t *h, const float *g, const float *u, size_t n,
                enum ndp_chip_act act, float alpha, float limit);
};

extern const struct ndp_chip_kernels ndp_chip_scalar;
#ifdef __x86_64__
extern const struct ndp_chip_kernels ndp_chip_avx2;
extern const struct ndp_chip_kernels ndp_chip_avx512;

void ndp_chip_avx2_act(uint16_t *h, const float *g, const float *u, size_t n,
                       enum ndp_chip_act act, float alpha, float limit);
#endif

struct ndp_chip_buf {
    void *p;
    size_t bytes;
};

struct ndp_chip_engine {
    const struct ndp_chip_kernels *k;
    struct ndp_chip_buf x;     /* packed inputs of a batch */
    struct ndp_chip_buf y;     /* FP32 [batch][Hop] */
    struct ndp_chip_buf group; /* FP32 [tile][Hop]: sum of a group so far */
    struct ndp_chip_buf h;     /* packed, NDP_CHUNK a token */
    float acc[2][NDP_ACC_FLOATS] __attribute__((aligned(64)));
    uint16_t act[NDP_ACC_FLOATS] __attribute__((aligned(64)));
    uint32_t rows[NDP_CHIP_MAX_TOKENS];
};

/* For tests: an engine over kernels that dispatch would not choose. */
struct ndp_chip_engine *
ndp_chip_engine_new_with(const struct ndp_chip_kernels *k);

/* The operations; their op was checked. */
enum ndp_chip_status ndp_chip_fill(const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *mem,
                                   const int *abort);
enum ndp_chip_status ndp_chip_copy(const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *dst,
                                   const struct ndp_chip_mem *src,
                                   const int *abort);
enum ndp_chip_status ndp_chip_act(struct ndp_chip_engine *e,
                                  const struct ndp_chip_op *op,
                                  const struct ndp_chip_mem *mem,
                                  const int *abort);
/* GEMV and FFN */
enum ndp_chip_status ndp_chip_multiply(struct ndp_chip_engine *e,
                                       const struct ndp_chip_op *op,
                                       const struct ndp_chip_mem *mem,
                                       const int *abort);

static inline bool ndp_chip_aborted(const int *abort)
{
    return abort && __atomic_load_n(abort, __ATOMIC_RELAXED);
}

static inline bool ndp_chip_in_range(uint64_t offset, uint64_t bytes,
                                     uint64_t mem_bytes)
{
    return offset <= mem_bytes && bytes <= mem_bytes - offset;
}

static inline uint32_t ndp_chip_round64(uint32_t n)
{
    return (n + 63) & ~63u;
}

static inline uint16_t ndp_chip_bf16_rne(float f)
{
    union { float f; uint32_t u; } v = { .f = f };

    if ((v.u & 0x7fffffff) > 0x7f800000) {
        return v.u >> 16 | 0x40; /* a NaN stays one, and becomes quiet */
    }
    return (v.u + 0x7fff + (v.u >> 16 & 1)) >> 16;
}

static inline float ndp_chip_bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = { .u = (uint32_t)h << 16 };

    return v.f;
}

#endif /* NDP_CHIP_IMPL_H */
