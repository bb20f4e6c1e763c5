// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * vec.c - see vec.h.  The formulas are those of Mixtral as published by its
 * authors (arXiv 2401.04088) on top of Llama: RMSNorm (arXiv 1910.07467),
 * rotary positions (arXiv 2104.09864) in the pairing of Hugging Face's weights.
 */
#include "vec.h"

#include <math.h>

#define LANES 8

float dot(const float *a, const float *b, size_t n)
{
	float lane[LANES] = { 0 };
	float rest = 0;
	size_t i;

	for (i = 0; i + LANES <= n; i += LANES)
		for (size_t l = 0; l < LANES; l++)
			lane[l] += a[i + l] * b[i + l];
	for (; i < n; i++)
		rest += a[i] * b[i];
	return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
	       ((lane[2] + lane[6]) + (lane[3] + lane[7])) + rest;
}

void matmul(float *dst, const float *w, const float *x, size_t tokens, size_t rows, size_t cols)
{
	for (size_t r = 0; r < rows; r++)
		for (size_t t = 0; t < tokens; t++)
			dst[t * rows + r] = dot(w + r * cols, x + t * cols, cols);
}

void add(float *dst, const float *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] += src[i];
}

void rms_norm(float *dst, const float *x, const float *w, size_t n, float eps)
{
	float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);

	for (size_t i = 0; i < n; i++)
		dst[i] = x[i] * scale * w[i];
}

void softmax(float *x, size_t n)
{
	float largest = x[0];
	float sum = 0;

	for (size_t i = 1; i < n; i++)
		largest = fmaxf(largest, x[i]);
	for (size_t i = 0; i < n; i++) {
		x[i] = expf(x[i] - largest);
		sum += x[i];
	}
	for (size_t i = 0; i < n; i++)
		x[i] /= sum;
}

void rope_table(float *cosines, float *sines, size_t positions, size_t head_dim, float theta)
{
	size_t half = head_dim / 2;

	for (size_t p = 0; p < positions; p++) {
		for (size_t i = 0; i < half; i++) {
			float frequency = 1.0f / powf(theta, (float)(2 * i) / (float)head_dim);
			float angle = (float)p * frequency;

			cosines[p * half + i] = cosf(angle);
			sines[p * half + i] = sinf(angle);
		}
	}
}

void rope_apply(float *x, size_t heads, size_t head_dim, const float *cosines, const float *sines)
{
	size_t half = head_dim / 2;

	for (size_t h = 0; h < heads; h++, x += head_dim) {
		for (size_t i = 0; i < half; i++) {
			float a = x[i];
			float b = x[i + half];

			x[i] = a * cosines[i] - b * sines[i];
			x[i + half] = b * cosines[i] + a * sines[i];
		}
	}
}
