// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-avx512.c - the kernels for CPUs with AVX512-BF16.
 *
 * A pair row is two registers, and VDPBF16PS multiplies it with a broadcast pair
 * (x[k], x[k + 1]) as it lies in memory: no conversion anywhere.  A tile of up to
 * twelve tokens keeps its sums in 24 registers; so do gate and up of up to six.
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

/* Models of instructions need no speed, and take long to compile without loops. */
#ifdef NDPI_CPU_AVX512_EMULATION
#define UNROLL(n)
#else
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif

enum { LANES = 16, MAX_TILE = 12, MAX_BOTH = 6, PAIRS_AHEAD = 32 };

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

/* sum[2 * t + v] += a pair row times token t's pair */
INLINE void pair_row(__m512 *sum, const uint8_t *w, const uint32_t *x, const uint32_t tokens)
{
	__m512i first = _mm512_load_si512(w), second = _mm512_load_si512(w + 64);

UNROLL(12)
	for (uint32_t t = 0; t < tokens; t++) {
		__m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[t]);

		sum[2 * t] = _mm512_dpbf16_ps(sum[2 * t], (__m512bh)first, pair);
		sum[2 * t + 1] = _mm512_dpbf16_ps(sum[2 * t + 1], (__m512bh)second, pair);
	}
}

/* Into the first-level cache: into the second one only is up to a tenth slower (Zen 5). */
INLINE void fetch(const uint8_t *next, const uint32_t lines)
{
	__builtin_prefetch(next, 0, 3);
	if (lines == 2)
		__builtin_prefetch(next + 64, 0, 3);
}

INLINE void begin(__m512 *sum, const float *out, size_t ld, enum ndpi_store store,
		  const uint32_t tokens)
{
UNROLL(24)
	for (uint32_t i = 0; i < 2 * tokens; i++)
		sum[i] = store != NDPI_CONTINUE ? _mm512_setzero_ps() :
			_mm512_loadu_ps(out + i / 2 * ld + i % 2 * LANES);
}

INLINE void end(const __m512 *sum, float *out, size_t ld, enum ndpi_store store,
		const uint32_t tokens)
{
UNROLL(24)
	for (uint32_t i = 0; i < 2 * tokens; i++) {
		float *o = out + i / 2 * ld + i % 2 * LANES;

		_mm512_storeu_ps(o, store == NDPI_ADD ?
				 _mm512_add_ps(_mm512_loadu_ps(o), sum[i]) : sum[i]);
	}
}

/*
 * @lines of 64 bytes are fetched for each pair row.  Where tiles of tokens share the fetching,
 * each is new to the first-level cache; the next one lies behind it.
 */
INLINE void chain(__m512 *sum, const uint8_t *w, size_t stride, uint32_t pieces, const uint32_t *x,
		  const struct ndpi_ahead *ahead, const uint32_t tokens, const uint32_t lines)
{
	const uint8_t *next = ahead->first;

	for (uint32_t b = 0; b < pieces; b++) {
		if (b == ahead->split)
			next = ahead->second;
		/* Not all 16: that runs slower, and one at a time as well (Zen 5). */
UNROLL(4)
		for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
			fetch(next + p * ahead->step, lines);
			if (lines == 1)
				__builtin_prefetch(x + PAIRS_AHEAD * tokens, 0, 3);
			pair_row(sum, w + p * NDPI_PAIR_BYTES, x, tokens);
			x += tokens;
		}
		next += ahead->stride;
		w += stride;
	}
}

INLINE void multiply_n(const uint8_t *w, size_t stride, uint32_t pieces, const uint32_t *x,
		       float *out, size_t ld, enum ndpi_store store,
		       const struct ndpi_ahead *ahead, const uint32_t tokens)
{
	__m512 sum[2 * MAX_TILE];

	begin(sum, out, ld, store, tokens);
	if (ahead->step > 64)
		chain(sum, w, stride, pieces, x, ahead, tokens, 2);
	else /* tiles of tokens share the fetching */
		chain(sum, w, stride, pieces, x, ahead, tokens, 1);
	end(sum, out, ld, store, tokens);
}

/* Up to three tokens leave fetching ahead to the CPU, which does it better. */
INLINE void both_n(const uint8_t *gate, const uint8_t *up, size_t stride, uint32_t pieces,
		   const uint32_t *x, float *g, float *u, enum ndpi_store store,
		   const struct ndpi_ahead *ahead, const uint32_t tokens)
{
	const uint8_t *next = ahead->first;
	__m512 sg[2 * MAX_BOTH], su[2 * MAX_BOTH];
	ptrdiff_t apart = up - gate;

	begin(sg, g, NDPI_ROWS, store, tokens);
	begin(su, u, NDPI_ROWS, store, tokens);
	for (uint32_t b = 0; b < pieces; b++) {
		if (b == ahead->split)
			next = ahead->second;
UNROLL(4)
		for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
			if (tokens > 3) {
				fetch(next + p * NDPI_PAIR_BYTES, 2);
				fetch(next + p * NDPI_PAIR_BYTES + apart, 2);
			}
			pair_row(sg, gate + p * NDPI_PAIR_BYTES, x, tokens);
			pair_row(su, gate + p * NDPI_PAIR_BYTES + apart, x, tokens);
			x += tokens;
		}
		next += ahead->stride;
		gate += stride;
	}
	end(sg, g, NDPI_ROWS, store, tokens);
	end(su, u, NDPI_ROWS, store, tokens);
}

/* One instance for each size of a tile. */
#define DEFINE_TILE(tokens)								\
static void multiply_##tokens(const uint8_t *w, size_t stride, uint32_t pieces,		\
			      const uint32_t *x, float *out, size_t ld,			\
			      enum ndpi_store store, const struct ndpi_ahead *ahead)	\
{											\
	multiply_n(w, stride, pieces, x, out, ld, store, ahead, tokens);		\
}
#define DEFINE_BOTH(tokens)								\
static void both_##tokens(const uint8_t *gate, const uint8_t *up, size_t stride,	\
			  uint32_t pieces, const uint32_t *x, float *g, float *u,	\
			  enum ndpi_store store, const struct ndpi_ahead *ahead)	\
{											\
	both_n(gate, up, stride, pieces, x, g, u, store, ahead, tokens);		\
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
DEFINE_BOTH(1)
DEFINE_BOTH(2)
DEFINE_BOTH(3)
DEFINE_BOTH(4)
DEFINE_BOTH(5)
DEFINE_BOTH(6)

static void multiply(const uint8_t *w, size_t stride, uint32_t pieces, const void *in,
		     uint32_t tokens, float *out, size_t ld, enum ndpi_store store,
		     const struct ndpi_ahead *ahead)
{
	static typeof(multiply_1) *const of[] = {
		NULL, multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
		multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12,
	};

	of[tokens](w, stride, pieces, in, out, ld, store, ahead);
}

static void both(const uint8_t *gate, const uint8_t *up, size_t stride, uint32_t pieces,
		 const void *in, uint32_t tokens, float *g, float *u, enum ndpi_store store,
		 const struct ndpi_ahead *ahead)
{
	static typeof(both_1) *const of[] = {
		NULL, both_1, both_2, both_3, both_4, both_5, both_6,
	};

	of[tokens](gate, up, stride, pieces, in, g, u, store, ahead);
}

const struct ndpi_cpu_kernels ndpi_cpu_avx512 = {
	.isa = NDP_ISA_AVX512_BF16,
	.tile_tokens = MAX_TILE,
	.both_tokens = MAX_BOTH,
	.elem_bytes = sizeof(ndp_bf16),
	.pack = pack,
	.pack8 = ndpi_cpu_avx2_pack8,
	.act = act,
	.multiply = multiply,
	.both = both,
};

#ifndef NDPI_CPU_AVX512_EMULATION
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#endif /* __x86_64__ */
