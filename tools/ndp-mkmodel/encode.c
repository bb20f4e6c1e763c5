// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * encode.c - numbers as files have them.
 *
 * Q8_0, Q4_0, MXFP4: ggml's block formats (ggml-common.h, ggml-quants.c: the reference
 * quantisers).  Blocks of 32.  Q8_0: FP16 scale, 32 signed bytes.  Q4_0: FP16 scale, 16
 * bytes, element j in the lower half of byte j, j + 16 in its upper.  MXFP4: exponent, 16
 * bytes in the same order; in gpt-oss's safetensors elements 2j and 2j + 1 share byte j.
 */
#include "mkmodel.h"

#include <math.h>
#include <ndp/pack.h>
#include <string.h>

const char *const mk_dtype_names[MK_DTYPES] = { "bf16", "f32", "f16", "q8_0", "q4_0", "mxfp4" };

#define BLOCK 32

uint32_t mk_block(enum mk_dtype dtype)
{
	return dtype == MK_Q8_0 || dtype == MK_Q4_0 || dtype == MK_MXFP4 ? BLOCK : 1;
}

size_t mk_block_bytes(enum mk_dtype dtype)
{
	static const uint8_t bytes[MK_DTYPES] = { 2, 4, 2, 34, 18, 17 };

	return bytes[dtype];
}

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

/* To nearest, ties to even; too large becomes infinite. */
static uint16_t f16_bits(float f)
{
	uint32_t u, sign, magnitude;
	float scaled;

	memcpy(&u, &f, sizeof(u));
	sign = u >> 16 & 0x8000;
	magnitude = u & 0x7fffffff;
	if (magnitude >= 0x7f800000)
		return (uint16_t)(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
	if (magnitude >= 0x477ff000)
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) {	/* below 2^-14: multiples of 2^-24 */
		scaled = fabsf(f) * 0x1p24f;
		return (uint16_t)(sign | (uint32_t)rintf(scaled));
	}
	magnitude += 0xfff + (magnitude >> 13 & 1);
	return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

static float f16_value(uint16_t h)
{
	uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
	float f = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) :
			     ldexpf((float)fraction, -24);

	return h & 0x8000 ? -f : f;
}

static float largest(const float *x)
{
	float most = 0;

	for (int i = 0; i < BLOCK; i++)
		if (fabsf(x[i]) > fabsf(most))
			most = x[i];
	return most;
}

static void q8_0(const float *x, uint8_t *dst)
{
	uint16_t scale = f16_bits(fabsf(largest(x)) / 127);
	float d = f16_value(scale);

	put16(dst, scale);
	for (int i = 0; i < BLOCK; i++) {
		float q = d > 0 ? rintf(x[i] / d) : 0;

		dst[2 + i] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, q));
	}
}

static void q4_0(const float *x, uint8_t *dst)
{
	uint16_t scale = f16_bits(largest(x) / -8);
	float d = f16_value(scale);
	uint8_t q[BLOCK];

	put16(dst, scale);
	for (int i = 0; i < BLOCK; i++)
		q[i] = d != 0 ? (uint8_t)fmaxf(0, fminf(15, rintf(x[i] / d) + 8)) : 8;
	for (int i = 0; i < 16; i++)
		dst[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

/* The code of the FP4 E2M1 number that is nearest. */
static uint8_t fp4(float x)
{
	static const float values[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	uint8_t best = 0;

	for (uint8_t i = 1; i < 8; i++)
		if (fabsf(fabsf(x) - values[i]) < fabsf(fabsf(x) - values[best]))
			best = i;
	return x < 0 ? best | 8 : best;
}

/* Codes one by one; returns the exponent, biased by 127. */
static uint8_t mxfp4(const float *x, uint8_t codes[BLOCK])
{
	float most = fabsf(largest(x));
	int e = most > 0 ? ilogbf(most) - 2 : 0;

	if (e < -127)
		e = -127;
	for (int i = 0; i < BLOCK; i++)
		codes[i] = fp4(ldexpf(x[i], -e));
	return (uint8_t)(e + 127);
}

static void mxfp4_block(const float *x, uint8_t *dst)
{
	uint8_t codes[BLOCK];

	dst[0] = mxfp4(x, codes);
	for (int i = 0; i < 16; i++)
		dst[1 + i] = (uint8_t)(codes[i] | codes[i + 16] << 4);
}

void mk_encode_mxfp4_split(const float *src, size_t n, uint8_t *codes, uint8_t *exponents)
{
	for (; n; n -= BLOCK, src += BLOCK, codes += 16) {
		uint8_t c[BLOCK];

		*exponents++ = mxfp4(src, c);
		for (int i = 0; i < 16; i++)
			codes[i] = (uint8_t)(c[2 * i] | c[2 * i + 1] << 4);
	}
}

void mk_encode(enum mk_dtype dtype, const float *src, size_t n, uint8_t *dst)
{
	const uint32_t block = mk_block(dtype);

	for (size_t i = 0; i < n; i += block, dst += mk_block_bytes(dtype)) {
		switch (dtype) {
		case MK_BF16:
			put16(dst, ndp_bf16_from_f32(src[i]));
			break;
		case MK_F32:
			memcpy(dst, &src[i], 4);
			break;
		case MK_F16:
			put16(dst, f16_bits(src[i]));
			break;
		case MK_Q8_0:
			q8_0(src + i, dst);
			break;
		case MK_Q4_0:
			q4_0(src + i, dst);
			break;
		default:
			mxfp4_block(src + i, dst);
		}
	}
}
