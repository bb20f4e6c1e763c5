/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vec.h - the arithmetic that the host does itself, in FP32.
 *
 * Pure functions on plain arrays.  Matrices are row-major [rows][cols], batches
 * of vectors [tokens][cols].
 */
#ifndef NDP_RUN_VEC_H
#define NDP_RUN_VEC_H

#include <stddef.h>
#include <stdint.h>

float dot(const float *a, const float *b, size_t n);

/* dst[t][r] = sum over c of w[r][c] * x[t][c] */
void matmul(float *dst, const float *w, const float *x, size_t tokens, size_t rows, size_t cols);

void add(float *dst, const float *src, size_t n);

/* dst = x / sqrt(mean(x^2) + eps) * w; dst may be x. */
void rms_norm(float *dst, const float *x, const float *w, size_t n, float eps);

/* In place, shifted by the largest value; n at least 1. */
void softmax(float *x, size_t n);

/*
 * cos and sin of @positions rows of head_dim / 2 angles: position / theta^(2i /
 * head_dim).
 */
void rope_table(float *cosines, float *sines, size_t positions, size_t head_dim, float theta);

/*
 * Rotates each head of @x [heads][head_dim] in place by one row of that table,
 * element i with element i + head_dim / 2 ("rotate_half").
 */
void rope_apply(float *x, size_t heads, size_t head_dim, const float *cosines,
		const float *sines);

#endif
