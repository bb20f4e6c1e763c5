/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * bf16.c - the upper half of an IEEE 754 single, rounded to nearest even.
 */
#include <ndp/pack.h>
#include <string.h>

ndp_bf16 ndp_bf16_from_f32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	if ((u & 0x7fffffff) > 0x7f800000) /* NaN: keep the sign, make it quiet */
		return (ndp_bf16)(u >> 16 | 0x40);
	return (ndp_bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float ndp_bf16_to_f32(ndp_bf16 b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

void ndp_bf16_from_f32_array(ndp_bf16 *dst, const float *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = ndp_bf16_from_f32(src[i]);
}

void ndp_bf16_to_f32_array(float *dst, const ndp_bf16 *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = ndp_bf16_to_f32(src[i]);
}
