// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-scalar.c - the kernels in plain C: for CPUs without AVX2, and what the other
 * paths can be read against.  Each multiply and each add is rounded on its own.
 */
#include "cpu-kernels.h"

#include <math.h>
#include <ndp/device.h>
#include <string.h>

static void pack(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *src, uint32_t n,
		 uint32_t padded)
{
	float *x = dst;

	for (uint32_t k = 0; k < padded; k++)
		x[(size_t)k * tokens + t] = k < n ? ndp_bf16_to_f32(src[k]) : 0;
}

/* 1 / (1 + exp(-z)), without an overflow on the way */
static float sigmoid(float z)
{
	float s = expf(-fabsf(z));

	return (z < 0 ? s : 1) / (1 + s);
}

static void act(void *dst, uint32_t tokens, uint32_t t, const float *g, const float *u, int kind,
		float alpha, float limit)
{
	float *h = dst;

	for (uint32_t m = 0; m < NDPI_ROWS; m++) {
		float gate = g[m], up = u[m], z = gate;

		/* Comparisons are written so that a NaN stays. */
		if (kind == NDP_ACT_CLAMPED_SWIGLU) {
			gate = gate > limit ? limit : gate;
			up = up > limit ? limit : up < -limit ? -limit : up;
			up += 1;
			z = alpha * gate;
		}
		h[(size_t)m * tokens + t] =
			ndp_bf16_to_f32(ndp_bf16_from_f32(gate * sigmoid(z) * up));
	}
}

/* sum[m] += w[k][m] * x[k] for 32 k, x advancing by @tokens */
static void piece(float sum[NDPI_ROWS], const uint8_t *w, const float *x, uint32_t tokens)
{
	const uint32_t *e = (const uint32_t *)w;

	for (uint32_t p = 0; p < NDPI_ROWS / 2; p++, e += NDPI_ROWS, x += 2 * (size_t)tokens) {
		for (uint32_t m = 0; m < NDPI_ROWS; m++)
			sum[m] += ndp_bf16_to_f32((ndp_bf16)e[m]) * x[0];
		for (uint32_t m = 0; m < NDPI_ROWS; m++)
			sum[m] += ndp_bf16_to_f32((ndp_bf16)(e[m] >> 16)) * x[tokens];
	}
}

static void multiply(const uint8_t *w, size_t stride, uint32_t pieces, const void *in,
		     uint32_t tokens, float *out, size_t ld, enum ndpi_store store,
		     const struct ndpi_ahead *ahead)
{
	(void)ahead; /* this path is not about speed */
	for (uint32_t t = 0; t < tokens; t++, out += ld) {
		float sum[NDPI_ROWS] = { 0 };

		if (store == NDPI_CONTINUE)
			memcpy(sum, out, sizeof(sum));
		for (uint32_t b = 0; b < pieces; b++)
			piece(sum, w + b * stride,
			      (const float *)in + (size_t)b * NDPI_ROWS * tokens + t, tokens);
		for (uint32_t m = 0; m < NDPI_ROWS; m++)
			out[m] = store == NDPI_ADD ? out[m] + sum[m] : sum[m];
	}
}

const struct ndpi_cpu_kernels ndpi_cpu_scalar = {
	.isa = NDP_ISA_SCALAR,
	.tile_tokens = 4,
	.elem_bytes = sizeof(float),
	.pack = pack,
	.act = act,
	.multiply = multiply,
};
