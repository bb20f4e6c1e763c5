// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-avx512.c - the kernels for CPUs with AVX512-BF16.
 *
 * A pair row is two registers, and VDPBF16PS multiplies it with a broadcast pair
 * (x[k], x[k + 1]) as it lies in memory: no conversion anywhere.  A tile of up to
 * twelve tokens keeps its sums in 24 registers; up to six tokens take gate and up
 * together, which halves the loads of x and gives the memory two streams.
 *
 * VDPBF16PS rounds to nearest even after each product is added, the odd element's
 * first, takes denormal inputs for zero and gives zero for a denormal result,
 * whatever MXCSR says (Intel SDM, volume 2, VDPBF16PS).
 *
 * Unit tests compile this file over plain C models of its intrinsics, so that it is
 * tested on every machine.
 */
#ifdef __x86_64__
#ifdef NDPI_CPU_AVX512_EMULATION
#include NDPI_CPU_AVX512_EMULATION
#else
#include <immintrin.h>
#endif

#include "cpu-kernels.h"

#ifndef NDPI_CPU_AVX512_EMULATION
#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
	"avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16")
#endif
#endif

enum { LANES = 16, MAX_TILE = 12, MAX_BOTH = 6 };

#define INLINE static inline __attribute__((always_inline))

/* Element k of token t is half k & 1 of pair [k / 2][t]. */
static void pack(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *src, uint32_t n,
		 uint32_t padded)
{
	uint32_t *x = (uint32_t *)dst + t, pair;
	uint32_t k = 0;

	for (; k + 2 <= n; k += 2, x += tokens) {
		__builtin_memcpy(&pair, src + k, sizeof(pair));
		*x = pair;
	}
	for (; k < padded; k += 2, x += tokens)
		*x = k < n ? src[k] : 0;
}

static void act(void *dst, uint32_t tokens, uint32_t t, const float *g, const float *u, int kind,
		float alpha, float limit)
{
	ndp_bf16 h[NDPI_ROWS];

	ndpi_cpu_avx2_act(h, g, u, NDPI_ROWS, kind, alpha, limit);
	pack(dst, tokens, t, h, NDPI_ROWS, NDPI_ROWS);
}

/* sum[2 * t + v] += the rows at @w times pair t of x */
INLINE void multiply(__m512 *sum, const uint8_t *w, const uint32_t *x, const uint32_t tokens)
{
	__m512i first = _mm512_load_si512(w), second = _mm512_load_si512(w + 64);

#pragma GCC unroll 12
	for (uint32_t t = 0; t < tokens; t++) {
		__m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[t]);

		sum[2 * t] = _mm512_dpbf16_ps(sum[2 * t], (__m512bh)first, pair);
		sum[2 * t + 1] = _mm512_dpbf16_ps(sum[2 * t + 1], (__m512bh)second, pair);
	}
}

INLINE void zero(__m512 *sum, const uint32_t n)
{
#pragma GCC unroll 24
	for (uint32_t i = 0; i < n; i++)
		sum[i] = _mm512_setzero_ps();
}

INLINE void put(float *out, const __m512 *sum, size_t ld, bool add, const uint32_t tokens)
{
#pragma GCC unroll 12
	for (uint32_t t = 0; t < tokens; t++) {
#pragma GCC unroll 2
		for (uint32_t v = 0; v < 2; v++) {
			float *o = out + t * ld + v * LANES;

			_mm512_storeu_ps(o, add ? _mm512_add_ps(_mm512_loadu_ps(o), sum[2 * t + v]) :
					 sum[2 * t + v]);
		}
	}
}

INLINE void fetch(const uint8_t *next)
{
	__builtin_prefetch(next, 0, 2);
	__builtin_prefetch(next + 64, 0, 2);
}

INLINE void panel_n(const uint8_t *w, uint32_t pairs, const uint32_t *x, float *out, bool add,
		    struct ndpi_ahead ahead, const uint32_t tokens)
{
	__m512 sum[2 * MAX_TILE];

	zero(sum, 2 * tokens);
	for (uint32_t p = 0; p < pairs; p++) {
		fetch(ahead.next);
		ahead.next += ahead.step;
		multiply(sum, w, x, tokens);
		w += NDPI_PAIR_BYTES;
		x += tokens;
	}
	put(out, sum, NDPI_ROWS, add, tokens);
}

/* How far ahead of the two streams lines are fetched. */
enum { BOTH_AHEAD = 4096 };

INLINE void both_n(const uint8_t *wg, const uint8_t *wu, uint32_t pairs, const uint32_t *x,
		   float *g, float *u, const uint32_t tokens)
{
	for (uint32_t k = 0; k < pairs; k += NDPI_CHUNK / 2) {
		uint32_t n = pairs - k < NDPI_CHUNK / 2 ? pairs - k : NDPI_CHUNK / 2;
		__m512 sg[2 * MAX_BOTH], su[2 * MAX_BOTH];

		zero(sg, 2 * tokens);
		zero(su, 2 * tokens);
		for (uint32_t p = 0; p < n; p++) {
			fetch(wg + BOTH_AHEAD);
			fetch(wu + BOTH_AHEAD);
			multiply(sg, wg, x, tokens);
			multiply(su, wu, x, tokens);
			wg += NDPI_PAIR_BYTES;
			wu += NDPI_PAIR_BYTES;
			x += tokens;
		}
		put(g, sg, NDPI_ROWS, k, tokens);
		put(u, su, NDPI_ROWS, k, tokens);
	}
}

INLINE void down_n(const uint8_t *w, size_t stride, uint32_t blocks, const uint32_t *h,
		   float *out, size_t ld, bool add, struct ndpi_ahead ahead, const uint32_t tokens)
{
	__m512 sum[2 * MAX_TILE];

	zero(sum, 2 * tokens);
	for (uint32_t b = 0; b < blocks; b++) {
		const uint8_t *tile = w + b * stride, *next = ahead.next + b * stride;

		for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
			fetch(next);
			next += ahead.step;
			multiply(sum, tile, h, tokens);
			tile += NDPI_PAIR_BYTES;
			h += tokens;
		}
	}
	put(out, sum, ld, add, tokens);
}

/* Two tiles of down side by side. */
INLINE void down2_n(const uint8_t *w, size_t stride, uint32_t blocks, const uint32_t *h,
		    float *out, size_t ld, bool add, struct ndpi_ahead ahead,
		    const uint32_t tokens)
{
	__m512 a[2 * MAX_BOTH], b[2 * MAX_BOTH];

	zero(a, 2 * tokens);
	zero(b, 2 * tokens);
	for (uint32_t i = 0; i < blocks; i++) {
		const uint8_t *tile = w + i * stride, *next = ahead.next + i * stride;

		for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
			fetch(next);
			fetch(next + NDPI_TILE_BYTES);
			next += ahead.step;
			multiply(a, tile, h, tokens);
			multiply(b, tile + NDPI_TILE_BYTES, h, tokens);
			tile += NDPI_PAIR_BYTES;
			h += tokens;
		}
	}
	put(out, a, ld, add, tokens);
	put(out + NDPI_ROWS, b, ld, add, tokens);
}

/* One instance for each size of a tile. */
#define DEFINE_TILE(tokens)								\
static void panel_##tokens(const uint8_t *w, uint32_t pairs, const uint32_t *x,		\
			   float *out, bool add, struct ndpi_ahead ahead)		\
{											\
	panel_n(w, pairs, x, out, add, ahead, tokens);					\
}											\
static void down_##tokens(const uint8_t *w, size_t stride, uint32_t blocks,		\
			  const uint32_t *h, float *out, size_t ld, bool add,		\
			  struct ndpi_ahead ahead)					\
{											\
	down_n(w, stride, blocks, h, out, ld, add, ahead, tokens);			\
}

#define DEFINE_BOTH(tokens)								\
static void both_##tokens(const uint8_t *wg, const uint8_t *wu, uint32_t pairs,		\
			  const uint32_t *x, float *g, float *u)			\
{											\
	both_n(wg, wu, pairs, x, g, u, tokens);						\
}											\
static void down2_##tokens(const uint8_t *w, size_t stride, uint32_t blocks,		\
			   const uint32_t *h, float *out, size_t ld, bool add,		\
			   struct ndpi_ahead ahead)					\
{											\
	down2_n(w, stride, blocks, h, out, ld, add, ahead, tokens);			\
}

#define FOR_ALL(macro) macro(1) macro(2) macro(3) macro(4) macro(5) macro(6)
FOR_ALL(DEFINE_BOTH)
FOR_ALL(DEFINE_TILE)
DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)

static typeof(panel_1) *const panel_of[] = {
	NULL, panel_1, panel_2, panel_3, panel_4, panel_5, panel_6, panel_7, panel_8, panel_9,
	panel_10, panel_11, panel_12,
};

static typeof(down_1) *const down_of[] = {
	NULL, down_1, down_2, down_3, down_4, down_5, down_6, down_7, down_8, down_9, down_10,
	down_11, down_12,
};

static typeof(both_1) *const both_of[] = {
	NULL, both_1, both_2, both_3, both_4, both_5, both_6,
};

static typeof(down2_1) *const down2_of[] = {
	NULL, down2_1, down2_2, down2_3, down2_4, down2_5, down2_6,
};

static void panel(const uint8_t *w, uint32_t pairs, const void *x, uint32_t tokens, float *out,
		  bool add, struct ndpi_ahead ahead)
{
	panel_of[tokens](w, pairs, x, out, add, ahead);
}

static void both(const uint8_t *gate, const uint8_t *up, uint32_t pairs, const void *x,
		 uint32_t tokens, float *g, float *u)
{
	both_of[tokens](gate, up, pairs, x, g, u);
}

static void down(const uint8_t *w, size_t stride, uint32_t blocks, uint32_t outs, const void *h,
		 uint32_t tokens, float *out, size_t ld, bool add, struct ndpi_ahead ahead)
{
	if (outs == 2 && tokens <= MAX_BOTH) {
		down2_of[tokens](w, stride, blocks, h, out, ld, add, ahead);
		return;
	}
	for (; outs; outs--) {
		down_of[tokens](w, stride, blocks, h, out, ld, add, ahead);
		w += NDPI_TILE_BYTES;
		out += NDPI_ROWS;
		ahead.next += NDPI_TILE_BYTES;
	}
}

const struct ndpi_cpu_kernels ndpi_cpu_avx512 = {
	.isa = NDP_ISA_AVX512_BF16,
	.tile_tokens = MAX_TILE,
	.pair_tokens = MAX_BOTH,
	.elem_bytes = sizeof(ndp_bf16),
	.pack = pack,
	.act = act,
	.panel = panel,
	.both = both,
	.down = down,
};

#ifndef NDPI_CPU_AVX512_EMULATION
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#endif /* __x86_64__ */
