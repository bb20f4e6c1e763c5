/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * gpu_ref.h - for the tests of the GPU domain: packed experts, what they compute in
 * FP64, and how far the kernels of libndp/moe/opencl.cl may be off.
 */
#ifndef GPU_REF_H
#define GPU_REF_H

#include "../../libndp/moe/gpu.h"
#include "device_ref.h"

#include <errno.h>

/* The packed expert; its memory ends where the expert does, for AddressSanitizer. */
static inline void *gpu_ref_pack(const struct ref_expert *e)
{
	size_t block = ndp_expert_block_bytes(&e->shape);
	uint32_t n = ndp_expert_blocks(&e->shape);
	char *p = malloc(block * n);

	assert_non_null(p);
	for (uint32_t b = 0; b < n; b++)
		ndp_expert_pack_block(p + b * block, &e->shape, b, e->gate, e->up, e->ld_in,
				      e->down, e->ld_down);
	return p;
}

static inline double gpu_ref_abs_dot(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n)
{
	double s = 0;

	for (uint32_t i = 0; i < n; i++)
		s += fabs((double)ndp_bf16_to_f32(a[i]) * ndp_bf16_to_f32(b[i]));
	return s;
}

/*
 * c(n) of the comment in opencl.cl: the largest of the variants, plus one rounding for each
 * part of a job whose blocks came in parts (at most 16 here).
 */
static inline double gpu_ref_c(uint32_t n)
{
	return 1.01 * ldexp(1, -24) * (64 + n / 128.0 + 8 + 2 + 16);
}

/*
 * y and the bound.  With g and v the exact products, u = 2^-24 and f = 2^-126 (|a| + |b|
 * + 2n) for devices that take what is below 2^-126 for zero:
 *
 *   |g' - g| <= eg = c(K) |gate|.|x| + f, ev likewise
 *   |h' - h| <= eh = (1 + 2^-8) (1.1 eg (|v| + ev) + |g| ev + 16u |g| |v|) + 2^-8 |h| + 2^-120
 *   |y' - y| <= |down|.eh + c(I) |down|.(|h| + eh) + f
 *
 * 1.1 bounds the slope of silu; 16u is what OpenCL allows for exp (3 ulp), the division
 * (2.5 ulp), one sum and two products.  For the clamped one v + 1 stands for v.
 */
static inline void gpu_ref_ffn(const struct ref_expert *e, const struct ndp_gpu_job *job,
			       const ndp_bf16 *x, double *y, double *tolerance)
{
	uint32_t nr = job->nr_blocks ? job->nr_blocks : ndp_expert_blocks(&e->shape);
	uint32_t begin = job->first * 32, end = begin + nr * 32;
	uint32_t n = end < e->shape.neurons ? end : e->shape.neurons;
	double *h = calloc(2 * (size_t)e->shape.neurons, sizeof(*h)), *eh = h + e->shape.neurons;
	double u = ldexp(1, -24), f = ldexp(1, -126) * 4 * (e->shape.h_in + e->shape.neurons);
	double ck = gpu_ref_c(e->shape.h_in), ci = gpu_ref_c(n - begin);

	assert_non_null(h);
	for (uint32_t i = begin; i < n; i++) {
		const ndp_bf16 *gate = &e->gate[i * e->ld_in], *up = &e->up[i * e->ld_in];
		double g = ref_dot(gate, x, e->shape.h_in), v = ref_dot(up, x, e->shape.h_in);
		double eg = ck * gpu_ref_abs_dot(gate, x, e->shape.h_in) + f;
		double ev = ck * gpu_ref_abs_dot(up, x, e->shape.h_in) + f;

		h[i] = ref_act(job->act, job->alpha, job->limit, g, v);
		if (job->act == NDP_ACT_CLAMPED_SWIGLU)
			v = fabs(v) + 1;
		eh[i] = (1 + 1 / 256.0) * (1.1 * eg * (fabs(v) + ev) + fabs(g) * ev +
					   16 * u * fabs(g) * fabs(v)) +
			fabs(h[i]) / 256 + ldexp(1, -120);
	}
	for (uint32_t j = 0; j < e->shape.h_out; j++) {
		y[j] = 0;
		tolerance[j] = f;
		for (uint32_t i = begin; i < n; i++) {
			double d = ndp_bf16_to_f32(e->down[j * e->ld_down + i]);

			y[j] += d * h[i];
			tolerance[j] += fabs(d) * (eh[i] + ci * (fabs(h[i]) + eh[i]));
		}
	}
	free(h);
}

/*
 * Holds a job's results to that bound, and to the narrower one of device_ref.h (h rounded
 * once, and rarely to the other side).  Columns of y behind the last one must still be NaN.
 */
static inline void gpu_ref_check(const struct ref_expert *e, const struct ndp_gpu_job *job,
				 const ndp_bf16 *x, size_t ldx)
{
	uint32_t n = e->shape.h_out;
	uint32_t blocks = job->nr_blocks ? job->nr_blocks : ndp_expert_blocks(&e->shape);
	double *y = malloc(2 * n * sizeof(*y));
	struct ndp_cmd cmd = { .act = job->act, .alpha = job->alpha, .limit = job->limit };

	assert_non_null(y);
	for (uint32_t t = 0; t < job->tokens; t++) {
		const ndp_bf16 *row = x + (job->rows ? job->rows[t] : t) * ldx;
		const float *got = job->y + t * job->ldy;

		gpu_ref_ffn(e, job, row, y, y + n);
		ref_assert_near(got, y, y + n, n);
		ref_ffn(e, &cmd, row, job->first, blocks, y, y + n);
		ref_assert_near(got, y, y + n, n);
		for (size_t j = n; j < job->ldy; j++)
			assert_true(isnan(got[j]));
	}
	free(y);
}

/* @rows of @cols random columns, NaN behind them. */
static inline ndp_bf16 *gpu_ref_x(uint32_t rows, uint32_t cols, size_t ldx, uint64_t seed)
{
	seed = seed * 2654435761u + 77;
	return ref_random_rows(rows, cols, ldx, 1, &seed);
}

static inline float *gpu_ref_y(size_t n)
{
	float *y = malloc(n * sizeof(*y));

	assert_non_null(y);
	memset(y, 0xff, n * sizeof(*y));
	return y;
}

/*
 * The first GPU, or the device that NDP_TEST_GPU names.  NULL: this system has no OpenCL
 * device, the caller skips its test.  A device that cannot be used is a failure.
 */
static inline struct ndp_gpu *gpu_ref_open(uint64_t budget, uint64_t largest, bool lanes)
{
	const char *spec = getenv("NDP_TEST_GPU");
	struct ndp_gpu *gpu = NULL;
	struct ndp_error err = { 0 };
	int r = ndpi_gpu_open(&gpu, spec ? spec : "opencl", budget, largest, lanes,
			      &err);

	if (r == -ENODEV && strstr(err.message, "has no OpenCL device")) {
		print_message("# %s\n", err.message);
		return NULL;
	}
	if (r)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	return gpu;
}

static inline struct ndp_gpu_weights *gpu_ref_upload(struct ndp_gpu *gpu,
						     const struct ndp_expert_shape *shape,
						     const void *blocks)
{
	struct ndp_gpu_weights *w;
	struct ndp_error err;
	int r = ndp_gpu_upload(&w, gpu, shape, blocks, &err);

	if (r)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	return w;
}

static inline struct ndp_gpu_queue *gpu_ref_queue(struct ndp_gpu *gpu, uint32_t rows,
						  uint32_t pairs, uint32_t h)
{
	struct ndp_gpu_queue *q;
	struct ndp_error err;
	int r = ndp_gpu_queue_create(&q, gpu, rows, pairs, h, &err);

	if (r)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	return q;
}

static inline void gpu_ref_run(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx,
			       uint32_t x_rows, const struct ndp_gpu_job *jobs, uint32_t n)
{
	struct ndp_error err;
	int r = ndp_gpu_submit(q, x, ldx, x_rows, jobs, n, &err);

	if (r)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	assert_int_equal(ndp_gpu_wait(q, NULL), 0);
}

#endif
