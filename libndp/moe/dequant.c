// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * dequant.c - elements of a tensor as FP32 or BF16.
 *
 * What blocks of 32 elements mean: ggml's structs and its dequantize_row_* (block_q8_0,
 * block_q4_0, block_mxfp4 in ggml/src/ggml-common.h and ggml-quants.c); E2M1 and E8M0 of
 * MXFP4: OCP Microscaling Formats (MX) Specification v1.0, 5.3.3 and 5.4.1.
 *
 *   Q8_0   d (F16), 32 signed bytes q                                d * q
 *   Q4_0   d (F16), 16 bytes; byte j holds elements j (its low half) and j + 16
 *                                                                    d * (q - 8)
 *   MXFP4  e (E8M0), 16 bytes in the same order                      2^(e - 127) * E2M1
 *
 * Every product has at most 19 significant bits, so FP32 holds it exactly; BF16 is that
 * rounded once, to nearest even.  The E8M0 value 255 is NaN, as OCP has it.
 *
 * Plain loops that compilers turn into vectors, once for the baseline and once for
 * AVX2.  Must never touch a byte outside of the blocks that it is asked for.
 */
#include <ndp/tensors.h>

#include <errno.h>
#include <string.h>

enum { BLOCK = 32 };

#define inlined static inline __attribute__((always_inline))

/* Data of a file is at any alignment. */
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));

inlined float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* As ndp_bf16_from_f32(), where it can become part of a loop. */
inlined ndp_bf16 round_bits(uint32_t u)
{
	uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
	uint32_t nan = u >> 16 | 0x40;

	return (ndp_bf16)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

inlined ndp_bf16 round_f32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return round_bits(u);
}

/* All ones or zero: choosing by masks, as compilers leave branches in where they see ?:. */
inlined uint32_t mask(int yes)
{
	return -(uint32_t)yes;
}

/* IEEE 754 binary16 to binary32, exact; a NaN keeps its payload. */
inlined uint32_t widen_f16(uint32_t h)
{
	uint32_t magnitude = h & 0x7fff;
	float small = (float)(int32_t)magnitude * 0x1p-24f;	/* below the normal ones */
	uint32_t is_small = mask(magnitude < 0x0400);
	uint32_t is_large = mask(magnitude >= 0x7c00);		/* infinity, NaN */
	uint32_t bits = (magnitude << 13) + (112u << 23) + (is_large & 112u << 23);
	uint32_t small_bits;

	memcpy(&small_bits, &small, sizeof(small_bits));
	return (bits & ~is_small) | (small_bits & is_small) | (h & 0x8000) << 16;
}

/* 2^(e - 128): half of the scale, for E2M1 in units of a half. */
inlined float half_scale(uint32_t e)
{
	if (e == 255)
		return __builtin_nanf("");
	return from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* E2M1 times two: 0 1 2 3 4 6 8 12, and the same with a sign. */
inlined float e2m1_halves(uint32_t code)
{
	int32_t m = code & 7;
	float f = (float)(m + (m >= 5) + (m >= 6) + 3 * (m >= 7));
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return from_bits(bits | (code & 8) << 28);
}

inlined void decode_q8_0(const uint8_t *block, float *dst)
{
	float d = from_bits(widen_f16(*(const any_u16 *)block));
	const int8_t *q = (const int8_t *)block + 2;

	for (int i = 0; i < BLOCK; i++)
		dst[i] = d * (float)q[i];
}

inlined void decode_q4_0(const uint8_t *block, float *dst)
{
	float d = from_bits(widen_f16(*(const any_u16 *)block));
	const uint8_t *q = block + 2;

	for (int i = 0; i < BLOCK / 2; i++) {
		dst[i] = d * (float)((q[i] & 15) - 8);
		dst[i + BLOCK / 2] = d * (float)((q[i] >> 4) - 8);
	}
}

inlined void decode_mxfp4(const uint8_t *block, float *dst)
{
	float d = half_scale(block[0]);
	const uint8_t *q = block + 1;

	for (int i = 0; i < BLOCK / 2; i++) {
		dst[i] = d * e2m1_halves(q[i] & 15);
		dst[i + BLOCK / 2] = d * e2m1_halves(q[i] >> 4);
	}
}

inlined void decode(enum ndp_dtype dtype, const uint8_t *block, float *dst)
{
	if (dtype == NDP_DTYPE_Q8_0)
		decode_q8_0(block, dst);
	else if (dtype == NDP_DTYPE_Q4_0)
		decode_q4_0(block, dst);
	else
		decode_mxfp4(block, dst);
}

/* Elements go to @f32 or else to @bf16. */
inlined void store(const float *src, size_t n, float *f32, ndp_bf16 *bf16)
{
	if (f32)
		memcpy(f32, src, n * sizeof(*f32));
	else
		for (size_t i = 0; i < n; i++)
			bf16[i] = round_f32(src[i]);
}

inlined void read_blocks(enum ndp_dtype dtype, const uint8_t *src, uint64_t first,
			 uint64_t count, float *f32, ndp_bf16 *bf16)
{
	size_t bytes = ndp_dtype_bytes(dtype);
	float block[BLOCK];

	src += first / BLOCK * bytes;
	first %= BLOCK;
	while (count) {
		size_t n = BLOCK - first < count ? BLOCK - first : count;

		if (n == BLOCK && f32) {
			decode(dtype, src, f32);
		} else if (n == BLOCK) {
			decode(dtype, src, block);
			store(block, BLOCK, NULL, bf16);
		} else {
			decode(dtype, src, block);
			store(block + first, n, f32, bf16);
		}
		if (f32)
			f32 += n;
		else
			bf16 += n;
		src += bytes;
		count -= n;
		first = 0;
	}
}

inlined void read_any(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *f32,
		      ndp_bf16 *bf16)
{
	const uint8_t *data = t->data;

	switch (t->dtype) {
	case NDP_DTYPE_Q8_0:
		read_blocks(NDP_DTYPE_Q8_0, data, first, count, f32, bf16);
		break;
	case NDP_DTYPE_Q4_0:
		read_blocks(NDP_DTYPE_Q4_0, data, first, count, f32, bf16);
		break;
	case NDP_DTYPE_MXFP4:
		read_blocks(NDP_DTYPE_MXFP4, data, first, count, f32, bf16);
		break;
	case NDP_DTYPE_F16: {
		const any_u16 *src = (const any_u16 *)data + first;

		if (f32)
			for (uint64_t i = 0; i < count; i++)
				f32[i] = from_bits(widen_f16(src[i]));
		else
			for (uint64_t i = 0; i < count; i++)
				bf16[i] = round_bits(widen_f16(src[i]));
		break;
	}
	case NDP_DTYPE_BF16: {
		const any_u16 *src = (const any_u16 *)data + first;

		if (f32)
			for (uint64_t i = 0; i < count; i++)
				f32[i] = from_bits((uint32_t)src[i] << 16);
		else
			memcpy(bf16, src, count * sizeof(*bf16));
		break;
	}
	default: {
		const any_u32 *src = (const any_u32 *)data + first;

		if (f32)
			memcpy(f32, src, count * sizeof(*f32));
		else
			for (uint64_t i = 0; i < count; i++)
				bf16[i] = round_bits(src[i]);
	}
	}
}

static void read_baseline(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *f32,
			  ndp_bf16 *bf16)
{
	read_any(t, first, count, f32, bf16);
}

#ifdef __x86_64__
__attribute__((target("avx2")))
static void read_avx2(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *f32,
		      ndp_bf16 *bf16)
{
	read_any(t, first, count, f32, bf16);
}
#endif

static int read_elements(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *f32,
			 ndp_bf16 *bf16)
{
	if (first > t->elements || count > t->elements - first)
		return -ERANGE;
	if (!ndp_dtype_readable(t->dtype))
		return -ENOTSUP;
	if (!count)
		return 0;
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		read_avx2(t, first, count, f32, bf16);
		return 0;
	}
#endif
	read_baseline(t, first, count, f32, bf16);
	return 0;
}

int ndp_tensor_read_f32(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *dst)
{
	return read_elements(t, first, count, dst, NULL);
}

int ndp_tensor_read_bf16(const struct ndp_tensor *t, uint64_t first, uint64_t count,
			 ndp_bf16 *dst)
{
	return read_elements(t, first, count, NULL, dst);
}
