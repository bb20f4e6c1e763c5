/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * device_ref.h - for the tests of libndp's devices: random experts and
 * matrices, what they compute in FP64, and how far a DIMM may be off.
 *
 * The reference knows the row-major weights only, never the packed ones, so it
 * catches a packing that is consistent with itself and wrong.
 */
#ifndef DEVICE_REF_H
#define DEVICE_REF_H

#include <dirent.h>
#include <math.h>
#include <ndp/ndp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define UNUSED_STATE (void)state

struct ref_expert {
	struct ndp_expert_shape shape;
	size_t ld_in, ld_down; /* wider than needed: what lies between is NaN */
	ndp_bf16 *gate, *up, *down;
};

struct ref_matrix {
	struct ndp_matrix_shape shape;
	size_t ld;
	ndp_bf16 *m;
};

static inline uint64_t ref_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* -1 .. 1 */
static inline float ref_uniform(uint64_t *seed)
{
	return (float)((double)(ref_next(seed) >> 11) / (double)(1ULL << 52) - 1.0);
}

static inline void *ref_nan_bf16(size_t n)
{
	ndp_bf16 *p = malloc(n * sizeof(*p));

	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = 0x7fc0;
	return p;
}

static inline ndp_bf16 *ref_random_rows(uint32_t rows, uint32_t cols, size_t ld, float scale,
					uint64_t *seed)
{
	ndp_bf16 *p = ref_nan_bf16(rows * ld);

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < cols; c++)
			p[r * ld + c] = ndp_bf16_from_f32(scale * ref_uniform(seed));
	return p;
}

static inline struct ref_expert ref_expert_new(uint32_t h_in, uint32_t h_out, uint32_t neurons,
					       uint64_t seed)
{
	struct ref_expert e = {
		.shape = { .h_in = h_in, .h_out = h_out, .neurons = neurons },
		.ld_in = h_in + 3,
		.ld_down = neurons + 5,
	};
	float scale = 2 / sqrtf((float)h_in);

	seed = seed * 2654435761u + 12345;
	e.gate = ref_random_rows(neurons, h_in, e.ld_in, scale, &seed);
	e.up = ref_random_rows(neurons, h_in, e.ld_in, scale, &seed);
	e.down = ref_random_rows(h_out, neurons, e.ld_down, 1, &seed);
	return e;
}

static inline void ref_expert_free(struct ref_expert *e)
{
	free(e->gate);
	free(e->up);
	free(e->down);
}

static inline struct ref_matrix ref_matrix_new(uint32_t rows, uint32_t cols, uint64_t seed)
{
	struct ref_matrix m = { .shape = { .cols = cols, .rows = rows }, .ld = cols + 7 };

	seed = seed * 2654435761u + 999;
	m.m = ref_random_rows(rows, cols, m.ld, 1, &seed);
	return m;
}

static inline double ref_dot(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n)
{
	double s = 0;

	for (uint32_t i = 0; i < n; i++)
		s += (double)ndp_bf16_to_f32(a[i]) * ndp_bf16_to_f32(b[i]);
	return s;
}

static inline double ref_silu(double g)
{
	return g / (1 + exp(-g));
}

static inline double ref_act(int act, float alpha, float limit, double g, double u)
{
	if (act == NDP_ACT_SILU_MUL)
		return ref_silu(g) * u;
	g = fmin(g, limit);
	u = fmax(fmin(u, limit), -limit);
	return g / (1 + exp(-alpha * g)) * (u + 1);
}

/*
 * y[j] and how far one may be off: FP32 sums, and here and there an h that is
 * rounded to BF16 the other way, which is 2^-8 of its term.  A block left out is
 * off by far more.
 */
static inline void ref_ffn(const struct ref_expert *e, const struct ndp_cmd *c, const ndp_bf16 *x,
			   uint32_t first_block, uint32_t nr_blocks, double *y, double *tolerance)
{
	uint32_t begin = first_block * 32, end = begin + nr_blocks * 32;
	uint32_t n = end < e->shape.neurons ? end : e->shape.neurons;
	double *h = calloc(e->shape.neurons, sizeof(*h));

	assert_non_null(h);
	for (uint32_t i = begin; i < n; i++)
		h[i] = ndp_bf16_to_f32(ndp_bf16_from_f32(
			(float)ref_act(c->act, c->alpha, c->limit,
				       ref_dot(&e->gate[i * e->ld_in], x, e->shape.h_in),
				       ref_dot(&e->up[i * e->ld_in], x, e->shape.h_in))));
	for (uint32_t j = 0; j < e->shape.h_out; j++) {
		double sum = 0, all = 0, largest = 0;

		for (uint32_t i = begin; i < n; i++) {
			double t = h[i] * ndp_bf16_to_f32(e->down[j * e->ld_down + i]);

			sum += t;
			all += fabs(t);
			largest = fmax(largest, fabs(t));
		}
		y[j] = sum;
		tolerance[j] = all * 1e-5 + largest * 4 / 256 + 1e-30;
	}
	free(h);
}

static inline void ref_assert_near(const float *got, const double *want, const double *tolerance,
				   uint32_t n)
{
	for (uint32_t j = 0; j < n; j++) {
		if (fabs(got[j] - want[j]) <= tolerance[j]) /* false for NaN */
			continue;
		print_error("column %u: got %.9g, wanted %.9g +- %.3g\n", j, got[j], want[j],
			    tolerance[j]);
		fail();
	}
}

/* ---- devices --------------------------------------------------------- */

static inline struct ndp_device *ref_open(const char *spec)
{
	struct ndp_device *dev;
	struct ndp_error err;
	int r = ndp_open(&dev, spec, &err);

	if (r < 0)
		print_error("%s: %s\n", spec, err.message);
	assert_int_equal(r, 0);
	return dev;
}

/*
 * The device under test has four DIMMs: the one that NDP_TEST_DEVICE names
 * (guest_device.c sets it in a guest), or one in the process.
 */
static inline int ref_setup(void **state)
{
	const char *spec = getenv("NDP_TEST_DEVICE");

	*state = ref_open(spec ? spec : "soft:dimms=4,size=64M");
	return 0;
}

/* How often to do something that an emulated machine does slowly. */
static inline unsigned int ref_scaled(unsigned int times)
{
	return getenv("NDP_TEST_DEVICE") ? times / 20 : times;
}

static inline int ref_teardown(void **state)
{
	ndp_close(*state);
	return 0;
}

#define REF_TEST(test) cmocka_unit_test_setup_teardown(test, ref_setup, ref_teardown)

static inline struct ndp_weights *ref_place_expert(struct ndp_device *dev,
						   const struct ref_expert *e,
						   const struct ndp_placement *p)
{
	struct ndp_weights *w;
	struct ndp_error err;
	int r = ndp_expert_create(&w, dev, &e->shape, p, 0, 7, &err);

	if (r < 0)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	assert_int_equal(ndp_expert_load(w, e->gate, e->up, e->ld_in, e->down, e->ld_down), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	return w;
}

static inline struct ndp_io *ref_io(struct ndp_device *dev, uint32_t mask, size_t bytes)
{
	struct ndp_io *io;

	assert_int_equal(ndp_io_create(&io, dev, mask, bytes, NULL), 0);
	return io;
}

static inline uint32_t ref_mask(struct ndp_device *dev)
{
	struct ndp_device_info info;

	assert_int_equal(ndp_device_info(dev, &info), 0);
	return info.dimm_mask;
}

/* Every byte of every replica of @mask becomes 0xff: NaN in BF16 and in FP32. */
static inline void ref_poison(struct ndp_io *io, uint32_t mask, size_t bytes)
{
	void *ff = malloc(bytes);

	assert_non_null(ff);
	memset(ff, 0xff, bytes);
	assert_int_equal(ndp_io_write(io, mask, 0, ff, bytes), 0);
	free(ff);
}

static inline uint64_t ref_free_bytes(struct ndp_device *dev)
{
	struct ndp_dimm_info info;
	uint64_t sum = 0;

	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
		if (!ndp_dimm_info(dev, d, &info))
			sum += info.free_bytes;
	return sum;
}

/* Open files ("/proc/self/fd") or threads ("/proc/self/task") of this process. */
static inline size_t ref_entries(const char *folder)
{
	DIR *d = opendir(folder);
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A thread that was joined can be seen for a moment longer. */
static inline void ref_assert_entries(const char *folder, size_t want)
{
	for (int ms = 0; ms < 5000 && ref_entries(folder) != want; ms++)
		usleep(1000);
	assert_int_equal(ref_entries(folder), want);
}

static inline size_t ref_stride(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

#endif
