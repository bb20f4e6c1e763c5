// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-avx2.c - the kernels for CPUs with AVX2 and FMA, and the activation of every
 * vector path.
 *
 * A pair row holds, for 32 neurons, the BF16 weights of k and k + 1.  Eight neurons
 * are one load; a shift gives their weights of k as FP32, a mask those of k + 1, both
 * exact.  Inputs are FP32, [k][token], and broadcast from memory.  A tile of up to six
 * tokens and 16 neurons keeps its sums in twelve registers: enough chains to hide
 * the latency of FMA.
 */
#ifdef __x86_64__
#include "cpu-kernels.h"

#include <immintrin.h>
#include <ndp/device.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

enum {
	LANES = 8,
	MAX_TILE = 6,
	MAX_BOTH = 2,
	NEAR_BYTES = 1024,	/* that two streams are fetched ahead: the CPU does the rest (Zen 3) */
};

#define INLINE static inline __attribute__((always_inline))

INLINE float widen(ndp_bf16 b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	__builtin_memcpy(&f, &u, sizeof(f));
	return f;
}

static void pack(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *src, uint32_t n,
		 uint32_t padded)
{
	float *x = (float *)dst + t;

	for (uint32_t k = 0; k < n; k++, x += tokens)
		*x = widen(src[k]);
	for (uint32_t k = n; k < padded; k++, x += tokens)
		*x = 0;
}

/*
 * exp(x) for x <= 0, NaN for NaN: x = n ln 2 + r with ln 2 in two parts (Cody and
 * Waite), the first short enough for n times it to be exact, then Taylor's
 * polynomial of degree 7 on |r| <= 0.35, which it misses by less than 8e-9.  2^n is
 * applied in two steps, so that denormal results come out.
 */
INLINE __m256 exp_nonpositive(__m256 x)
{
	static const float term[] = { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1 };
	const __m256 ln2_high = _mm256_set1_ps(355.0f / 512);
	const __m256 ln2_low = _mm256_set1_ps((float)(0.69314718055994531 - 355.0 / 512));
	const __m256i bias = _mm256_set1_epi32(127);
	__m256 n, r, p;
	__m256i i, half;

	x = _mm256_max_ps(_mm256_set1_ps(-110), x); /* keeps a NaN in x */
	n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
			    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	r = _mm256_fnmadd_ps(n, ln2_high, x);
	r = _mm256_fnmadd_ps(n, ln2_low, r);
	p = _mm256_set1_ps(1.0f / 5040);
#pragma GCC unroll 7
	for (int k = 0; k < 7; k++)
		p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(term[k]));
	i = _mm256_cvtps_epi32(n);
	half = _mm256_srai_epi32(i, 1);
	i = _mm256_sub_epi32(i, half);
	half = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
	i = _mm256_slli_epi32(_mm256_add_epi32(i, bias), 23);
	return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(i));
}

/* 1 / (1 + exp(-z)) */
INLINE __m256 sigmoid(__m256 z)
{
	const __m256 one = _mm256_set1_ps(1);
	__m256 s = exp_nonpositive(_mm256_or_ps(z, _mm256_set1_ps(-0.0f)));

	return _mm256_div_ps(_mm256_blendv_ps(one, s, z), _mm256_add_ps(one, s));
}

/* FP32 to BF16, to nearest even, in the low halves; a NaN becomes quiet. */
INLINE __m256i bf16_rne(__m256 f)
{
	__m256i u = _mm256_castps_si256(f), high = _mm256_srli_epi32(u, 16);
	__m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
	__m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
	__m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
	__m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
	__m256 nan = _mm256_cmp_ps(f, f, _CMP_UNORD_Q);

	return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}

INLINE __m256i act8(const float *g, const float *u, int act, __m256 alpha, __m256 limit)
{
	__m256 gate = _mm256_loadu_ps(g), up = _mm256_loadu_ps(u), z = gate;

	if (act == NDP_ACT_CLAMPED_SWIGLU) {
		/* min and max give their second operand when one is a NaN */
		gate = _mm256_min_ps(limit, gate);
		up = _mm256_min_ps(limit, up);
		up = _mm256_max_ps(_mm256_xor_ps(limit, _mm256_set1_ps(-0.0f)), up);
		up = _mm256_add_ps(up, _mm256_set1_ps(1));
		z = _mm256_mul_ps(alpha, gate);
	}
	return bf16_rne(_mm256_mul_ps(_mm256_mul_ps(gate, sigmoid(z)), up));
}

void ndpi_cpu_avx2_act(ndp_bf16 *h, const float *g, const float *u, uint32_t n, int act,
		       float alpha, float limit)
{
	__m256 a = _mm256_set1_ps(alpha), l = _mm256_set1_ps(limit);

	for (uint32_t i = 0; i < n; i += 2 * LANES) {
		__m256i low = act8(g + i, u + i, act, a, l);
		__m256i high = act8(g + i + LANES, u + i + LANES, act, a, l);
		__m256i both = _mm256_packus_epi32(low, high);

		_mm256_storeu_si256((__m256i *)(h + i), _mm256_permute4x64_epi64(both, 0xd8));
	}
}

/* Eight pairs of eight tokens at a time are a matrix of 32-bit elements, to be transposed. */
void ndpi_cpu_avx2_pack8(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *const *src,
			 uint32_t n)
{
	uint32_t *x = (uint32_t *)dst + t;

	for (uint32_t k = 0; k < n; k += 2 * LANES) {
		__m256i row[8], two[8], four;

#pragma GCC unroll 8
		for (int i = 0; i < 8; i++)
			row[i] = _mm256_loadu_si256((const __m256i *)(src[i] + k));
#pragma GCC unroll 4
		for (int i = 0; i < 8; i += 2) {
			two[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
			two[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
		}
		/* row[4 * h + j]: pair j and pair 4 + j of tokens 4 * h to 4 * h + 3 */
#pragma GCC unroll 2
		for (int h = 0; h < 8; h += 4) {
			row[h] = _mm256_unpacklo_epi64(two[h], two[h + 2]);
			row[h + 1] = _mm256_unpackhi_epi64(two[h], two[h + 2]);
			row[h + 2] = _mm256_unpacklo_epi64(two[h + 1], two[h + 3]);
			row[h + 3] = _mm256_unpackhi_epi64(two[h + 1], two[h + 3]);
		}
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++, x += tokens) {
			four = j < 4 ? _mm256_permute2x128_si256(row[j], row[j + 4], 0x20) :
				_mm256_permute2x128_si256(row[j - 4], row[j], 0x31);
			_mm256_storeu_si256((__m256i *)x, four);
		}
	}
}

static void act(void *dst, uint32_t tokens, uint32_t t, const float *g, const float *u, int kind,
		float alpha, float limit)
{
	ndp_bf16 h[NDPI_ROWS];

	ndpi_cpu_avx2_act(h, g, u, NDPI_ROWS, kind, alpha, limit);
	pack(dst, tokens, t, h, NDPI_ROWS, NDPI_ROWS);
}

/*
 * The steps of the inner loop, each told which register it writes.  Left to its own
 * choice GCC 12 is one register short with twelve sums; sums then go through
 * memory, at half the speed.
 */
INLINE __m256 multiply_add(__m256 sum, __m256 a, __m256 b)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
	return sum;
}

INLINE __m256 even_weights(const __m256i *w)
{
	__m256 r;

	__asm__("vmovdqa %1, %0\n\tvpslld $16, %0, %0" : "=x"(r) : "m"(*w));
	return r;
}

INLINE __m256 odd_weights(const __m256i *w)
{
	static const uint32_t mask[LANES] __attribute__((aligned(32))) = {
		0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
		0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
	};
	__m256 r;

	__asm__("vmovdqa %1, %0\n\tvpand %2, %0, %0"
		: "=x"(r) : "m"(*w), "m"(*(const __m256i *)mask));
	return r;
}

/* sum[t * vecs + v] += w[v] * x[t]: twelve sums, two weights, an input at most */
INLINE void multiply_rows(__m256 *sum, const uint8_t *rows, const float *x, bool odd,
		     const uint32_t tokens, const uint32_t vecs)
{
	const __m256i *w = (const __m256i *)rows;

#pragma GCC unroll 2
	for (uint32_t v = 0; v < vecs; v += 2) {
		__m256 w0 = odd ? odd_weights(w + v) : even_weights(w + v);
		__m256 w1 = odd ? odd_weights(w + v + 1) : even_weights(w + v + 1);

#pragma GCC unroll 6
		for (uint32_t t = 0; t < tokens; t++) {
			__m256 in = _mm256_broadcast_ss(x + t);
			__m256 *s = sum + t * vecs + v;

			s[0] = multiply_add(s[0], w0, in);
			s[1] = multiply_add(s[1], w1, in);
		}
	}
}

/* 32 inputs' rows of @vecs * 8 neurons; a line is fetched for each pair, or two. */
INLINE void piece(__m256 *sum, const uint8_t *w, const float *x, const uint8_t *next, size_t step,
		  const uint32_t tokens, const uint32_t vecs)
{
	for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
		_mm_prefetch((const char *)next, _MM_HINT_T0);
		if (vecs == 4)
			_mm_prefetch((const char *)next + 64, _MM_HINT_T0);
		next += step;
		multiply_rows(sum, w, x, false, tokens, vecs);
		multiply_rows(sum, w, x + tokens, true, tokens, vecs);
		w += NDPI_PAIR_BYTES;
		x += 2 * tokens;
	}
}

/* Of @vecs * 8 neurons, of each token. */
INLINE void begin(__m256 *sum, const float *out, size_t ld, enum ndpi_store store,
		  const uint32_t tokens, const uint32_t vecs)
{
#pragma GCC unroll 12
	for (uint32_t i = 0; i < tokens * vecs; i++)
		sum[i] = store != NDPI_CONTINUE ? _mm256_setzero_ps() :
			_mm256_loadu_ps(out + i / vecs * ld + i % vecs * LANES);
}

INLINE void end(const __m256 *sum, float *out, size_t ld, enum ndpi_store store,
		const uint32_t tokens, const uint32_t vecs)
{
#pragma GCC unroll 12
	for (uint32_t i = 0; i < tokens * vecs; i++) {
		float *to = out + i / vecs * ld + i % vecs * LANES;

		_mm256_storeu_ps(to, store == NDPI_ADD ?
				 _mm256_add_ps(_mm256_loadu_ps(to), sum[i]) : sum[i]);
	}
}

INLINE void multiply_n(const uint8_t *w, size_t stride, uint32_t pieces, const float *x,
		       float *out, size_t ld, enum ndpi_store store,
		       const struct ndpi_ahead *ahead, const uint32_t tokens, const uint32_t vecs)
{
	for (uint32_t v = 0; v < 4; v += vecs) {
		const uint8_t *next = ahead->first + v * 32;
		float *o = out + v * LANES;
		__m256 sum[12];

		begin(sum, o, ld, store, tokens, vecs);
		for (uint32_t b = 0; b < pieces; b++) {
			if (b == ahead->split)
				next = ahead->second + v * 32;
			piece(sum, w + b * stride + v * 32, x + (size_t)b * NDPI_ROWS * tokens,
			      next, ahead->step, tokens, vecs);
			next += ahead->stride;
		}
		end(sum, o, ld, store, tokens, vecs);
	}
}

/* 32 inputs' rows of @vecs * 8 neurons of both. */
INLINE void both_pieces(__m256 *sg, __m256 *su, const uint8_t *gate, const uint8_t *up,
			const float *x, const uint32_t tokens, const uint32_t vecs)
{
	for (uint32_t p = 0; p < NDPI_ROWS / 2; p++) {
		_mm_prefetch((const char *)gate + NEAR_BYTES, _MM_HINT_T0);
		_mm_prefetch((const char *)up + NEAR_BYTES, _MM_HINT_T0);
		if (vecs == 4) {
			_mm_prefetch((const char *)gate + NEAR_BYTES + 64, _MM_HINT_T0);
			_mm_prefetch((const char *)up + NEAR_BYTES + 64, _MM_HINT_T0);
		}
		multiply_rows(sg, gate, x, false, tokens, vecs);
		multiply_rows(su, up, x, false, tokens, vecs);
		multiply_rows(sg, gate, x + tokens, true, tokens, vecs);
		multiply_rows(su, up, x + tokens, true, tokens, vecs);
		gate += NDPI_PAIR_BYTES;
		up += NDPI_PAIR_BYTES;
		x += 2 * tokens;
	}
}

/*
 * One token: eight sums.  Two tokens: as many for each half of the neurons, which wait in
 * memory while a piece of the other half passes.
 */
INLINE void both_n(const uint8_t *gate, const uint8_t *up, size_t stride, uint32_t pieces,
		   const float *x, float *g, float *u, enum ndpi_store store,
		   const uint32_t tokens, const uint32_t vecs)
{
	const uint32_t parts = 4 / vecs;
	__m256 sg[2][4], su[2][4];

#pragma GCC unroll 2
	for (uint32_t i = 0; i < parts; i++) {
		begin(sg[i], g + i * vecs * LANES, NDPI_ROWS, store, tokens, vecs);
		begin(su[i], u + i * vecs * LANES, NDPI_ROWS, store, tokens, vecs);
	}
	for (uint32_t b = 0; b < pieces; b++) {
#pragma GCC unroll 2
		for (uint32_t i = 0; i < parts; i++)
			both_pieces(sg[i], su[i], gate + b * stride + i * vecs * 32,
				    up + b * stride + i * vecs * 32,
				    x + (size_t)b * NDPI_ROWS * tokens, tokens, vecs);
	}
#pragma GCC unroll 2
	for (uint32_t i = 0; i < parts; i++) {
		end(sg[i], g + i * vecs * LANES, NDPI_ROWS, store, tokens, vecs);
		end(su[i], u + i * vecs * LANES, NDPI_ROWS, store, tokens, vecs);
	}
}

static void both(const uint8_t *gate, const uint8_t *up, size_t stride, uint32_t pieces,
		 const void *in, uint32_t tokens, float *g, float *u, enum ndpi_store store,
		 const struct ndpi_ahead *ahead)
{
	(void)ahead;
	if (tokens == 1)
		both_n(gate, up, stride, pieces, in, g, u, store, 1, 4);
	else
		both_n(gate, up, stride, pieces, in, g, u, store, 2, 2);
}

/* One instance for each size of a tile; vecs such that the sums fit. */
#define DEFINE_TILE(tokens, vecs)							\
static void multiply_##tokens(const uint8_t *w, size_t stride, uint32_t pieces,		\
			      const float *x, float *out, size_t ld,			\
			      enum ndpi_store store, const struct ndpi_ahead *ahead)	\
{											\
	multiply_n(w, stride, pieces, x, out, ld, store, ahead, tokens, vecs);		\
}

DEFINE_TILE(1, 4)
DEFINE_TILE(2, 4)
DEFINE_TILE(3, 4)
DEFINE_TILE(4, 2)
DEFINE_TILE(5, 2)
DEFINE_TILE(6, 2)

static void multiply(const uint8_t *w, size_t stride, uint32_t pieces, const void *in,
		     uint32_t tokens, float *out, size_t ld, enum ndpi_store store,
		     const struct ndpi_ahead *ahead)
{
	static typeof(multiply_1) *const of[] = {
		NULL, multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
	};

	of[tokens](w, stride, pieces, in, out, ld, store, ahead);
}

const struct ndpi_cpu_kernels ndpi_cpu_avx2 = {
	.isa = NDP_ISA_AVX2,
	.tile_tokens = MAX_TILE,
	.both_tokens = MAX_BOTH,
	.elem_bytes = sizeof(float),
	.pack = pack,
	.act = act,
	.multiply = multiply,
	.both = both,
};

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif /* __x86_64__ */
