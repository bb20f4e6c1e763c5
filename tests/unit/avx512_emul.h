/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * avx512_emul.h - plain C models of the intrinsics that ndp_chip_avx512.c uses, so that its index
 * arithmetic and its rounding run, and are tested, on machines without AVX512-BF16.
 *
 * VDPBF16PS after Intel's SDM: for each 32-bit lane the odd elements' product is added first, then
 * the even ones'; each addition is fused with its multiplication and rounded to nearest even;
 * denormal inputs count as zero and a denormal result becomes zero.
 */
#ifndef AVX512_EMUL_H
#define AVX512_EMUL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
	float f[16];
} __m512;

typedef struct {
	uint32_t u[16];
} __m512i;

typedef __m512i __m512bh;

static inline __m512i _mm512_load_si512(const void *p)
{
	__m512i r;

	if ((uintptr_t)p % 64)
		__builtin_trap();
	memcpy(&r, p, sizeof(r));
	return r;
}

static inline __m512i _mm512_set1_epi32(int v)
{
	__m512i r;

	for (int i = 0; i < 16; i++)
		r.u[i] = v;
	return r;
}

static inline __m512 _mm512_setzero_ps(void)
{
	return (__m512) { { 0 } };
}

static inline __m512 _mm512_loadu_ps(const float *p)
{
	__m512 r;

	memcpy(&r, p, sizeof(r));
	return r;
}

static inline void _mm512_storeu_ps(float *p, __m512 v)
{
	memcpy(p, &v, sizeof(v));
}

static inline __m512 _mm512_add_ps(__m512 a, __m512 b)
{
	for (int i = 0; i < 16; i++)
		a.f[i] += b.f[i];
	return a;
}

static inline float emul_flush(float f)
{
	return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

static inline float emul_bf16(uint16_t bits)
{
	uint32_t u = (uint32_t)bits << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return emul_flush(f);
}

/* Not inlined: the kernels unroll it hundreds of times. */
__attribute__((noinline)) static __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
	for (int i = 0; i < 16; i++) {
		float s = emul_flush(sum.f[i]);

		s = emul_flush(fmaf(emul_bf16(a.u[i] >> 16), emul_bf16(b.u[i] >> 16), s));
		s = emul_flush(fmaf(emul_bf16(a.u[i]), emul_bf16(b.u[i]), s));
		sum.f[i] = s;
	}
	return sum;
}

#endif
