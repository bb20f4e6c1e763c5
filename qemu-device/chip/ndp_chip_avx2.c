/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_avx2.c - the path for CPUs with AVX2 and FMA.
 *
 * A pair row holds, for 32 neurons, the BF16 weights of k and k + 1.  Eight
 * neurons are one load; a shift gives their weights of k as FP32, a mask those
 * of k + 1, both exact.  Inputs are FP32, [k][token], and broadcast from
 * memory.  A tile of up to six tokens and 16 neurons keeps its sums in twelve
 * registers: enough chains to hide the latency of FMA.
 */
#ifdef __x86_64__
#include <immintrin.h>

#include "ndp_chip_impl.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

enum { LANES = 8 };

#define INLINE inline __attribute__((always_inline))

static void pack(void *dst, unsigned tokens, unsigned t, const uint16_t *src,
                 unsigned n, unsigned padded)
{
    float *x = dst;
    unsigned k = 0;

    if (tokens == 1) {
        for (; k + LANES <= n; k += LANES) {
            __m128i half = _mm_loadu_si128((const __m128i *)&src[k]);
            __m256i v = _mm256_cvtepu16_epi32(half);

            _mm256_storeu_si256((__m256i *)(x + k), _mm256_slli_epi32(v, 16));
        }
    }
    for (; k < n; k++) {
        x[k * tokens + t] = ndp_chip_bf16_to_f32(src[k]);
    }
    for (; k < padded; k++) {
        x[k * tokens + t] = 0.0f;
    }
}

/*
 * The three steps of the inner loop, each told which register it writes.  Left
 * to its own choice GCC 12 is one register short with twelve sums; sums then go
 * through memory, at half the speed.
 */
static INLINE __m256 multiply_add(__m256 sum, __m256 a, __m256 b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x" (sum) : "x" (a), "x" (b));
    return sum;
}

static INLINE __m256 even_weights(const __m256i *w)
{
    __m256 r;

    __asm__("vmovdqa %1, %0\n\tvpslld $16, %0, %0" : "=x" (r) : "m" (*w));
    return r;
}

static INLINE __m256 odd_weights(const __m256i *w)
{
    static const uint32_t mask[LANES] __attribute__((aligned(32))) = {
        0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
        0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
    };
    __m256 r;

    __asm__("vmovdqa %1, %0\n\tvpand %2, %0, %0"
            : "=x" (r) : "m" (*w), "m" (*(const __m256i *)mask));
    return r;
}

/* sum[t][v] += w[v] * x[t]: twelve sums, two weights, an input at most */
static INLINE void multiply(__m256 sum[6][4], const __m256i *w, const float *x,
                            bool odd, const unsigned tokens,
                            const unsigned vecs)
{
#pragma GCC unroll 2
    for (unsigned v = 0; v < vecs; v += 2) {
        __m256 w0 = odd ? odd_weights(w + v) : even_weights(w + v);
        __m256 w1 = odd ? odd_weights(w + v + 1) : even_weights(w + v + 1);

#pragma GCC unroll 6
        for (unsigned t = 0; t < tokens; t++) {
            __m256 input = _mm256_broadcast_ss(x + t);

            sum[t][v] = multiply_add(sum[t][v], w0, input);
            sum[t][v + 1] = multiply_add(sum[t][v + 1], w1, input);
        }
    }
}

/* Weights that are wanted soon: @next, and how far it advances a pair row. */
struct ahead {
    const uint8_t *next;
    unsigned step;
};

/*
 * A tile passes over @bytes of weights at @w, in passes of @vecs vectors.  Its
 * share of as many bytes that follow is fetched meanwhile, so that computing
 * and reading DRAM overlap (8 tokens: 70 instead of 43 GFLOP/s on Zen 3).
 * Where tiles are many, a line is named several times, which costs next to
 * nothing.
 */
static INLINE struct ahead ahead_of(const uint8_t *w, size_t bytes,
                                    unsigned pass, struct ndp_chip_share share,
                                    const unsigned vecs)
{
    unsigned part = share.index * (4 / vecs) + pass;
    unsigned parts = share.of * (4 / vecs);

    return (struct ahead) {
        w + bytes + bytes / parts * part, NDP_PAIR_BYTES / parts,
    };
}

/*
 * sum[t][v] += weights of @v's eight neurons times x[k][t], over @pairs pairs.
 * @tokens and @vecs are constants where this is used, so that sum stays in
 * registers.
 */
static INLINE void chain(__m256 sum[6][4], const uint8_t *w, unsigned pairs,
                         const float *x, struct ahead *ahead,
                         const unsigned tokens, const unsigned vecs)
{
    for (unsigned p = 0; p < pairs; p++) {
        _mm_prefetch((const char *)ahead->next, _MM_HINT_T1);
        if (vecs == 4) {
            _mm_prefetch((const char *)ahead->next + 64, _MM_HINT_T1);
        }
        ahead->next += ahead->step;
        multiply(sum, (const __m256i *)w, x, false, tokens, vecs);
        multiply(sum, (const __m256i *)w, x + tokens, true, tokens, vecs);
        w += NDP_PAIR_BYTES;
        x += 2 * tokens;
    }
}

static INLINE void begin(__m256 sum[6][4], const float *out, size_t ld,
                         enum ndp_chip_store how, const unsigned tokens,
                         const unsigned vecs)
{
#pragma GCC unroll 6
    for (unsigned t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (unsigned v = 0; v < vecs; v++) {
            sum[t][v] = how == NDP_STORE_CONTINUE ?
                _mm256_loadu_ps(out + t * ld + v * LANES) : _mm256_setzero_ps();
        }
    }
}

static INLINE void end(__m256 sum[6][4], float *out, size_t ld,
                       enum ndp_chip_store how, const unsigned tokens,
                       const unsigned vecs)
{
#pragma GCC unroll 6
    for (unsigned t = 0; t < tokens; t++) {
#pragma GCC unroll 4
        for (unsigned v = 0; v < vecs; v++) {
            float *o = out + t * ld + v * LANES;

            _mm256_storeu_ps(o, how == NDP_STORE_ADD ?
                             _mm256_add_ps(_mm256_loadu_ps(o), sum[t][v]) :
                             sum[t][v]);
        }
    }
}

static INLINE void panel_tile(const uint8_t *w, unsigned pairs, const float *x,
                              float *out, enum ndp_chip_store how,
                              struct ndp_chip_share share,
                              const unsigned tokens, const unsigned vecs)
{
    for (unsigned p = 0; p < pairs; p += NDP_CHUNK / 2) {
        unsigned n = pairs - p < NDP_CHUNK / 2 ? pairs - p : NDP_CHUNK / 2;
        size_t bytes = (size_t)n * NDP_PAIR_BYTES;

        for (unsigned v = 0; v < 4; v += vecs) {
            struct ahead ahead = ahead_of(w, bytes, v / vecs, share, vecs);
            __m256 sum[6][4];

            begin(sum, NULL, 0, NDP_STORE_SET, tokens, vecs);
            chain(sum, w + v * 32, n, x, &ahead, tokens, vecs);
            end(sum, out + v * LANES, NDP_PANEL, how, tokens, vecs);
        }
        w += bytes;
        x += 2 * n * tokens;
        how = NDP_STORE_ADD;
    }
}

static INLINE void down_tile(const uint8_t *w, size_t block_bytes,
                             unsigned blocks, const float *h, float *out,
                             size_t ld, enum ndp_chip_store how,
                             struct ndp_chip_share share, const unsigned tokens,
                             const unsigned vecs)
{
    for (unsigned v = 0; v < 4; v += vecs) {
        __m256 sum[6][4];

        begin(sum, out + v * LANES, ld, how, tokens, vecs);
        for (unsigned b = 0; b < blocks; b++) {
            const uint8_t *tile = w + b * block_bytes;
            struct ahead ahead = ahead_of(tile, NDP_TILE_BYTES, v / vecs,
                                          share, vecs);

            chain(sum, tile + v * 32, NDP_PANEL / 2,
                  h + b * NDP_PANEL * tokens, &ahead, tokens, vecs);
        }
        end(sum, out + v * LANES, ld, how, tokens, vecs);
    }
}

/*
 * One token: what counts is bandwidth, and how far ahead the CPU can see.  Two
 * streams of weights are read faster than one and give the eight sums that hide
 * the latency of FMA; each weight is loaded once, since the load queue fills
 * first; and lines are named three iterations ahead only: further ahead they
 * overtake the CPU's own prefetcher and occupy the few slots for misses that
 * go all the way to DRAM.  All of it measured, on Zen 3.
 */
enum { STREAM_AHEAD_BYTES = 384 };

static INLINE void chain_two_streams(__m256 a[6][4], __m256 b[6][4],
                                     const uint8_t *wa, const uint8_t *wb,
                                     unsigned pairs, const float *x)
{
    const __m256i odd_mask = _mm256_set1_epi32(0xffff0000);

    for (unsigned p = 0; p < pairs; p++) {
        __m256 x0 = _mm256_broadcast_ss(x), x1 = _mm256_broadcast_ss(x + 1);

#pragma GCC unroll 2
        for (unsigned line = 0; line < NDP_PAIR_BYTES; line += 64) {
            _mm_prefetch((const char *)wa + line + STREAM_AHEAD_BYTES,
                         _MM_HINT_T0);
            _mm_prefetch((const char *)wb + line + STREAM_AHEAD_BYTES,
                         _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (unsigned v = 0; v < 4; v++) {
            __m256i va = _mm256_load_si256((const __m256i *)wa + v);
            __m256i vb = _mm256_load_si256((const __m256i *)wb + v);
            __m256i a0 = _mm256_slli_epi32(va, 16);
            __m256i b0 = _mm256_slli_epi32(vb, 16);
            __m256i a1 = _mm256_and_si256(va, odd_mask);
            __m256i b1 = _mm256_and_si256(vb, odd_mask);

            a[0][v] = multiply_add(a[0][v], _mm256_castsi256_ps(a0), x0);
            b[0][v] = multiply_add(b[0][v], _mm256_castsi256_ps(b0), x0);
            a[0][v] = multiply_add(a[0][v], _mm256_castsi256_ps(a1), x1);
            b[0][v] = multiply_add(b[0][v], _mm256_castsi256_ps(b1), x1);
        }
        wa += NDP_PAIR_BYTES;
        wb += NDP_PAIR_BYTES;
        x += 2;
    }
}

/* Two panels side by side. */
static void panel_stream(const uint8_t *w, size_t panel_bytes, unsigned pairs,
                         const float *x, float *out, enum ndp_chip_store how)
{
    for (unsigned p = 0; p < pairs; p += NDP_CHUNK / 2) {
        unsigned n = pairs - p < NDP_CHUNK / 2 ? pairs - p : NDP_CHUNK / 2;
        __m256 a[6][4], b[6][4];

        begin(a, NULL, 0, NDP_STORE_SET, 1, 4);
        begin(b, NULL, 0, NDP_STORE_SET, 1, 4);
        chain_two_streams(a, b, w, w + panel_bytes, n, x);
        end(a, out, 0, how, 1, 4);
        end(b, out + NDP_ACC_FLOATS, 0, how, 1, 4);
        w += (size_t)n * NDP_PAIR_BYTES;
        x += 2 * n;
        how = NDP_STORE_ADD;
    }
}

/* The first and the second half of the outputs side by side. */
static void down_stream(const uint8_t *w, unsigned outs, const float *h,
                        float *out, enum ndp_chip_store how)
{
    unsigned half = outs / 2;

    for (unsigned j = 0; j < half; j++) {
        const uint8_t *wa = w + (size_t)j * NDP_TILE_BYTES;
        float *o = out + j * NDP_PANEL;
        __m256 a[6][4], b[6][4];

        begin(a, o, 0, how, 1, 4);
        begin(b, o + half * NDP_PANEL, 0, how, 1, 4);
        chain_two_streams(a, b, wa, wa + (size_t)half * NDP_TILE_BYTES,
                          NDP_PANEL / 2, h);
        end(a, o, 0, how, 1, 4);
        end(b, o + half * NDP_PANEL, 0, how, 1, 4);
    }
}

/* Inputs at @x are to be loaded anew: no register is left to keep them in. */
static INLINE const float *load_again(const float *x)
{
    __asm__("" : "+r" (x));
    return x;
}

/*
 * Two or three tokens: two streams as well, 16 rows of each at a time, and a
 * line of what follows each for every pair row.
 */
static INLINE void pair_stream(const uint8_t *wa, const uint8_t *wb,
                               unsigned pairs, const float *x, float *oa,
                               float *ob, size_t ld, enum ndp_chip_store how,
                               const unsigned tokens)
{
    size_t bytes = (size_t)pairs * NDP_PAIR_BYTES;

    for (unsigned v = 0; v < 4; v += 2) {
        const uint8_t *ra = wa + v * 32, *rb = wb + v * 32;
        const uint8_t *next_a = wa + bytes + v / 2 * (bytes / 2);
        const uint8_t *next_b = wb + bytes + v / 2 * (bytes / 2);
        const float *xp = x;
        __m256 a[6][4], b[6][4];

        begin(a, oa + v * LANES, ld, how, tokens, 2);
        begin(b, ob + v * LANES, ld, how, tokens, 2);
        for (unsigned p = 0; p < pairs; p++) {
            _mm_prefetch((const char *)next_a, _MM_HINT_T1);
            _mm_prefetch((const char *)next_b, _MM_HINT_T1);
            multiply(a, (const __m256i *)ra, xp, false, tokens, 2);
            xp = load_again(xp);
            multiply(b, (const __m256i *)rb, xp, false, tokens, 2);
            multiply(a, (const __m256i *)ra, xp + tokens, true, tokens, 2);
            xp = load_again(xp);
            multiply(b, (const __m256i *)rb, xp + tokens, true, tokens, 2);
            ra += NDP_PAIR_BYTES;
            rb += NDP_PAIR_BYTES;
            next_a += 64;
            next_b += 64;
            xp += 2 * tokens;
        }
        end(a, oa + v * LANES, ld, how, tokens, 2);
        end(b, ob + v * LANES, ld, how, tokens, 2);
    }
}

static INLINE void panel_pair_stream(const uint8_t *w, size_t panel_bytes,
                                     unsigned pairs, const float *x, float *out,
                                     enum ndp_chip_store how,
                                     const unsigned tokens)
{
    for (unsigned p = 0; p < pairs; p += NDP_CHUNK / 2) {
        unsigned n = pairs - p < NDP_CHUNK / 2 ? pairs - p : NDP_CHUNK / 2;

        pair_stream(w, w + panel_bytes, n, x, out, out + NDP_ACC_FLOATS,
                    NDP_PANEL, how, tokens);
        w += (size_t)n * NDP_PAIR_BYTES;
        x += 2 * n * tokens;
        how = NDP_STORE_ADD;
    }
}

static INLINE void down_pair_stream(const uint8_t *w, unsigned outs,
                                    const float *h, float *out, size_t ld,
                                    enum ndp_chip_store how,
                                    const unsigned tokens)
{
    unsigned half = outs / 2;

    for (unsigned j = 0; j < half; j++) {
        const uint8_t *wa = w + (size_t)j * NDP_TILE_BYTES;
        float *o = out + j * NDP_PANEL;

        pair_stream(wa, wa + (size_t)half * NDP_TILE_BYTES, NDP_PANEL / 2, h,
                    o, o + half * NDP_PANEL, ld, how, tokens);
    }
}

/* One instance for each size of a tile; vecs such that the sums fit. */
#define DEFINE_TILE(tokens, vecs)                                           \
static void panel_##tokens(const uint8_t *w, unsigned pairs,                \
                           const float *x, float *out,                      \
                           enum ndp_chip_store how,                         \
                           struct ndp_chip_share share)                     \
{                                                                           \
    panel_tile(w, pairs, x, out, how, share, tokens, vecs);                 \
}                                                                           \
static void down_##tokens(const uint8_t *w, size_t block_bytes,             \
                          unsigned blocks, const float *h, float *out,      \
                          size_t ld, enum ndp_chip_store how,               \
                          struct ndp_chip_share share)                      \
{                                                                           \
    down_tile(w, block_bytes, blocks, h, out, ld, how, share, tokens, vecs); \
}

DEFINE_TILE(1, 4)
DEFINE_TILE(2, 4)
DEFINE_TILE(3, 2)
DEFINE_TILE(4, 2)
DEFINE_TILE(5, 2)
DEFINE_TILE(6, 2)

static typeof(panel_1) *const panel_of[] = {
    NULL, panel_1, panel_2, panel_3, panel_4, panel_5, panel_6,
};

static typeof(down_1) *const down_of[] = {
    NULL, down_1, down_2, down_3, down_4, down_5, down_6,
};

static void panel(const uint8_t *w, size_t panel_bytes, unsigned panels,
                  unsigned pairs, const void *x, unsigned tokens, float *out,
                  enum ndp_chip_store how, struct ndp_chip_share share)
{
    if (tokens <= 3 && panels == 2 && share.of == 1) {
        switch (tokens) {
        case 1:
            panel_stream(w, panel_bytes, pairs, x, out, how);
            break;
        case 2:
            panel_pair_stream(w, panel_bytes, pairs, x, out, how, 2);
            break;
        case 3:
            panel_pair_stream(w, panel_bytes, pairs, x, out, how, 3);
            break;
        }
        return;
    }
    for (; panels; panels--, w += panel_bytes, out += NDP_ACC_FLOATS) {
        panel_of[tokens](w, pairs, x, out, how, share);
    }
}

static void down(const uint8_t *w, size_t block_bytes, unsigned blocks,
                 unsigned outs, const void *h, unsigned tokens, float *out,
                 size_t ld, enum ndp_chip_store how,
                 struct ndp_chip_share share)
{
    if (tokens <= 3 && blocks == 1 && outs > 1) {
        switch (tokens) {
        case 1:
            down_stream(w, outs, h, out, how);
            break;
        case 2:
            down_pair_stream(w, outs, h, out, ld, how, 2);
            break;
        case 3:
            down_pair_stream(w, outs, h, out, ld, how, 3);
            break;
        }
        return;
    }
    for (; outs; outs--, w += NDP_TILE_BYTES, out += NDP_PANEL) {
        down_of[tokens](w, block_bytes, blocks, h, out, ld, how, share);
    }
}

/*
 * exp(x) for x <= 0, NaN for NaN: x = n ln 2 + r with ln 2 in two parts (Cody
 * and Waite), the first short enough for n times it to be exact, then Taylor's
 * polynomial of degree 7 on |r| <= 0.35, which it misses by less than 8e-9.
 * Within 2 ulp where the result is normal.  2^n is applied in two steps, so
 * that denormal results come out.
 */
static INLINE __m256 exp_nonpositive(__m256 x)
{
    static const float inverse_factorial[] = {
        1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f,
    };
    const __m256 ln2_high = _mm256_set1_ps(355.0f / 512);
    const __m256 ln2_low = _mm256_set1_ps(0.69314718055994531 - 355.0 / 512);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 n, r, p;
    __m256i i, half;

    x = _mm256_max_ps(_mm256_set1_ps(-110.0f), x); /* keeps a NaN in x */
    n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, ln2_high, x);
    r = _mm256_fnmadd_ps(n, ln2_low, r);
    p = _mm256_set1_ps(1.0f / 5040);
#pragma GCC unroll 7
    for (unsigned k = 0; k < 7; k++) {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(inverse_factorial[k]));
    }
    i = _mm256_cvtps_epi32(n);
    half = _mm256_srai_epi32(i, 1);
    i = _mm256_sub_epi32(i, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    i = _mm256_slli_epi32(_mm256_add_epi32(i, bias), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(half));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(i));
}

/* 1 / (1 + exp(-z)) */
static INLINE __m256 sigmoid(__m256 z)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 s = exp_nonpositive(_mm256_or_ps(z, sign));

    return _mm256_div_ps(_mm256_blendv_ps(one, s, z), _mm256_add_ps(one, s));
}

/* FP32 to BF16, to nearest even, in the low halves; a NaN becomes quiet */
static INLINE __m256i bf16_rne(__m256 f)
{
    __m256i u = _mm256_castps_si256(f);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16),
                                   _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff))),
        16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16),
                                    _mm256_set1_epi32(0x40));

    return _mm256_blendv_epi8(rounded, quiet,
                              _mm256_castps_si256(
                                  _mm256_cmp_ps(f, f, _CMP_UNORD_Q)));
}

static INLINE __m256i act8(const float *g, const float *u,
                           enum ndp_chip_act act, __m256 alpha, __m256 limit)
{
    __m256 gate = _mm256_loadu_ps(g), up = _mm256_loadu_ps(u), z = gate;

    if (act == NDP_CHIP_SWIGLU_CLAMP) {
        /* min and max give their second operand when one is a NaN */
        gate = _mm256_min_ps(limit, gate);
        up = _mm256_min_ps(limit, up);
        up = _mm256_max_ps(_mm256_xor_ps(limit, _mm256_set1_ps(-0.0f)), up);
        up = _mm256_add_ps(up, _mm256_set1_ps(1.0f));
        z = _mm256_mul_ps(alpha, gate);
    }
    return bf16_rne(_mm256_mul_ps(_mm256_mul_ps(gate, sigmoid(z)), up));
}

void ndp_chip_avx2_act(uint16_t *h, const float *g, const float *u, size_t n,
                       enum ndp_chip_act act, float alpha, float limit)
{
    __m256 a = _mm256_set1_ps(alpha), l = _mm256_set1_ps(limit);

    for (size_t i = 0; i < n; i += 2 * LANES) {
        __m256i low = act8(g + i, u + i, act, a, l);
        __m256i high = act8(g + i + LANES, u + i + LANES, act, a, l);
        __m256i both = _mm256_packus_epi32(low, high);

        _mm256_storeu_si256((__m256i *)(h + i),
                            _mm256_permute4x64_epi64(both, 0xd8));
    }
}

const struct ndp_chip_kernels ndp_chip_avx2 = {
    .isa = NDP_CHIP_ISA_AVX2,
    .tile_tokens = 6,
    .elem_bytes = sizeof(float),
    .pack = pack,
    .panel = panel,
    .down = down,
    .act = ndp_chip_avx2_act,
};

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif /* __x86_64__ */
