/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * reduce.c - the loops of the layer pipeline that touch every column: x to BF16,
 * the router's products, and adding results up.
 *
 * What they may not do is to let the order of a sum depend on how many rows or
 * tokens are at hand: results would then differ with the number of threads.
 */
#include "domain.h"

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define HOT static inline __attribute__((always_inline))

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* ---- results --------------------------------------------------------------- */

HOT void add_scaled(float *restrict out, const float *const *y, uint32_t terms, float factor,
		    uint32_t n)
{
	const float *a, *b, *c, *d;

	switch (terms) {
	case 0:
		return;
	case 1:
		a = y[0];
		for (uint32_t i = 0; i < n; i++)
			out[i] += factor * a[i];
		return;
	case 2:
		a = y[0], b = y[1];
		for (uint32_t i = 0; i < n; i++)
			out[i] += factor * (a[i] + b[i]);
		return;
	case 4:
		a = y[0], b = y[1], c = y[2], d = y[3];
		for (uint32_t i = 0; i < n; i++)
			out[i] += factor * (((a[i] + b[i]) + c[i]) + d[i]);
		return;
	}
	/* A tile of sums stays in registers while the terms pass by. */
	for (uint32_t i = 0; i < n; i += 32) {
		const uint32_t m = n - i < 32 ? n - i : 32;
		float sum[32] = { 0 };

		for (uint32_t t = 0; t < terms; t++)
			for (uint32_t j = 0; j < m; j++)
				sum[j] += y[t][i + j];
		for (uint32_t j = 0; j < m; j++)
			out[i + j] += factor * sum[j];
	}
}

AVX2 static void add_scaled_avx2(float *out, const float *const *y, uint32_t terms, float factor,
				 uint32_t n)
{
	add_scaled(out, y, terms, factor, n);
}

static void add_scaled_plain(float *out, const float *const *y, uint32_t terms, float factor,
			     uint32_t n)
{
	add_scaled(out, y, terms, factor, n);
}

void ndpi_add_scaled(float *out, const float *const *y, uint32_t terms, float factor, uint32_t n)
{
	if (has_avx2())
		add_scaled_avx2(out, y, terms, factor, n);
	else
		add_scaled_plain(out, y, terms, factor, n);
}

/* ---- x --------------------------------------------------------------------- */

/* As ndp_bf16_from_f32(): to the nearest, ties to even, NaN stays NaN. */
HOT void to_bf16(ndp_bf16 *restrict to, const float *restrict x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t u;

		memcpy(&u, &x[i], sizeof(u));
		to[i] = (ndp_bf16)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 :
				   (u + 0x7fff + (u >> 16 & 1)) >> 16);
	}
}

AVX2 static void to_bf16_avx2(ndp_bf16 *to, const float *x, uint32_t n)
{
	to_bf16(to, x, n);
}

void ndpi_bf16_row(ndp_bf16 *to, const float *x, uint32_t n, bool one, size_t ldx)
{
	if (has_avx2())
		to_bf16_avx2(to, x, n);
	else
		ndp_bf16_from_f32_array(to, x, n);
	if (one)
		to[n++] = 0x3f80;
	memset(to + n, 0, (ldx - n) * sizeof(*to));
}

/* ---- the router's products --------------------------------------------------- */

/*
 * Eight sums side by side, column i to the sum i mod 8, then these in a tree, then
 * the last columns one by one.
 */
AVX2 static inline float across(__m256 v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	s = _mm_add_ss(s, _mm_movehdup_ps(s));
	return _mm_cvtss_f32(s);
}

AVX2 static inline float tail(float sum, const float *w, const float *x, uint32_t from, uint32_t n)
{
	for (uint32_t i = from; i < n; i++)
		sum = __builtin_fmaf(w[i], x[i], sum);
	return sum;
}

/* @R rows of w with @T tokens; both constants, so that all of it is in registers. */
#define TILE(R, T)									\
AVX2 static void tile_##R##_##T(const float *w, const float *bias, const float *x, size_t ldx,	\
				uint32_t n, float *y, size_t ldy)			\
{											\
	const uint32_t whole = n & ~7u;							\
	__m256 sum[R][T];								\
											\
	for (int r = 0; r < R; r++)							\
		for (int t = 0; t < T; t++)						\
			sum[r][t] = _mm256_setzero_ps();				\
	for (uint32_t i = 0; i < whole; i += 8) {					\
		__m256 v[T];								\
											\
		for (int t = 0; t < T; t++)						\
			v[t] = _mm256_loadu_ps(x + t * ldx + i);			\
		for (int r = 0; r < R; r++) {						\
			const __m256 a = _mm256_loadu_ps(w + (size_t)r * n + i);	\
											\
			for (int t = 0; t < T; t++)					\
				sum[r][t] = _mm256_fmadd_ps(a, v[t], sum[r][t]);	\
		}									\
	}										\
	for (int r = 0; r < R; r++)							\
		for (int t = 0; t < T; t++)						\
			y[t * ldy + r] = (bias ? bias[r] : 0) +				\
				tail(across(sum[r][t]), w + (size_t)r * n, x + t * ldx,	\
				     whole, n);						\
}
TILE(8, 1)
TILE(4, 2)
TILE(1, 1)

AVX2 static void dots_avx2(const float *w, uint32_t nr_w, const float *bias, const float *x,
			   size_t ldx, uint32_t tokens, uint32_t n, float *y, size_t ldy)
{
	const uint32_t step = tokens > 1 ? 4 : 8;
	uint32_t r = 0;

	/* Rows outside: a few of them stay in the first cache while all tokens pass. */
	for (; nr_w - r >= step; r += step) {
		const float *rows = w + (size_t)r * n, *b = bias ? bias + r : NULL;
		uint32_t t = 0;

		for (; step == 4 && tokens - t >= 2; t += 2)
			tile_4_2(rows, b, x + t * ldx, ldx, n, y + t * ldy + r, ldy);
		for (; t < tokens; t++) {
			if (step == 8) {
				tile_8_1(rows, b, x + t * ldx, ldx, n, y + t * ldy + r, ldy);
				continue;
			}
			for (uint32_t i = 0; i < 4; i++)
				tile_1_1(rows + (size_t)i * n, b ? b + i : NULL, x + t * ldx, ldx,
					 n, y + t * ldy + r + i, ldy);
		}
	}
	for (; r < nr_w; r++)
		for (uint32_t t = 0; t < tokens; t++)
			tile_1_1(w + (size_t)r * n, bias ? bias + r : NULL, x + t * ldx, ldx, n,
				 y + t * ldy + r, ldy);
}

static float dot_plain(const float *w, const float *x, uint32_t n)
{
	const uint32_t whole = n & ~7u;
	float sum[8] = { 0 }, all;

	for (uint32_t i = 0; i < whole; i += 8)
		for (uint32_t j = 0; j < 8; j++)
			sum[j] += w[i + j] * x[i + j];
	all = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
	for (uint32_t i = whole; i < n; i++)
		all += w[i] * x[i];
	return all;
}

void ndpi_dots(const float *w, uint32_t nr_w, const float *bias, const float *x, size_t ldx,
	       uint32_t tokens, uint32_t n, float *y, size_t ldy)
{
	if (has_avx2()) {
		dots_avx2(w, nr_w, bias, x, ldx, tokens, n, y, ldy);
		return;
	}
	for (uint32_t r = 0; r < nr_w; r++)
		for (uint32_t t = 0; t < tokens; t++)
			y[t * ldy + r] = (bias ? bias[r] : 0) +
				dot_plain(w + (size_t)r * n, x + t * ldx, n);
}
