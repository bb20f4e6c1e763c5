// SPDX-License-Identifier: GPL-2.0-or-later
/* kt_ref.c - packing and the FP64 reference; see kt_ref.h. */
#include "kt_ref.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned int round_up(unsigned int n, unsigned int to)
{
	return (n + to - 1) / to * to;
}

uint16_t kt_bf16(double v)
{
	float f = (float)v;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	if (isnan(f))
		return 0x7fc0;
	/* Round to nearest, ties to even; test values are far from infinity. */
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

double kt_from_bf16(uint16_t b)
{
	uint32_t bits = (uint32_t)b << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* A BF16 number in (-scale, scale), many of them distinct. */
static uint16_t random_bf16(uint64_t *state, double scale)
{
	return kt_bf16(((double)(kt_random(state) >> 40) / (1 << 23) - 1.0) * scale);
}

static uint16_t *random_matrix(size_t n, double scale, uint64_t *state)
{
	uint16_t *m = malloc(n * sizeof(*m));

	for (size_t i = 0; m && i < n; i++)
		m[i] = random_bf16(state, scale);
	return m;
}

int kt_ffn_random(struct kt_ffn *e, unsigned int h_in, unsigned int h_out, unsigned int rows,
		  uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
	double in = 2.0 / sqrt(h_in);

	memset(e, 0, sizeof(*e));
	e->h_in = h_in;
	e->h_out = h_out;
	e->rows = rows;
	e->gate = random_matrix((size_t)rows * h_in, in, &state);
	e->up = random_matrix((size_t)rows * h_in, in, &state);
	e->down = random_matrix((size_t)rows * h_out, 1.0, &state);
	if (e->gate && e->up && e->down)
		return 0;
	kt_ffn_free(e);
	return -ENOMEM;
}

void kt_ffn_free(struct kt_ffn *e)
{
	free(e->gate);
	free(e->up);
	free(e->down);
	memset(e, 0, sizeof(*e));
}

int kt_gemv_random(struct kt_gemv *m, unsigned int h_in, unsigned int rows, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 2;

	m->h_in = h_in;
	m->rows = rows;
	m->w = random_matrix((size_t)rows * h_in, 2.0 / sqrt(h_in), &state);
	return m->w ? 0 : -ENOMEM;
}

void kt_gemv_free(struct kt_gemv *m)
{
	free(m->w);
	memset(m, 0, sizeof(*m));
}

void kt_x_random(uint16_t *x, unsigned int n, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 3;

	while (n--)
		*x++ = random_bf16(&state, 1.0);
}

uint64_t kt_panel_bytes(unsigned int h_in)
{
	return 64ULL * round_up(h_in, 64);
}

uint64_t kt_block_bytes(unsigned int h_in, unsigned int h_out)
{
	return 2 * kt_panel_bytes(h_in) + 64ULL * round_up(h_out, 64);
}

/* Rows 32 b .. 32 b + 31 of a matrix as a VNNI panel; what lies beyond the matrix is zero. */
static void pack_panel(const uint16_t *w, unsigned int h_in, unsigned int rows, unsigned int b,
		       uint8_t *dst)
{
	uint16_t *panel = (uint16_t *)dst;

	memset(dst, 0, kt_panel_bytes(h_in));
	for (unsigned int m = 0; m < 32 && 32 * b + m < rows; m++)
		for (unsigned int k = 0; k < h_in; k++)
			panel[((k >> 1) * 32 + m) * 2 + (k & 1)] = w[(32 * b + m) * h_in + k];
}

void kt_gemv_pack(const struct kt_gemv *m, uint8_t *dst)
{
	for (unsigned int b = 0; b < kt_blocks(m->rows); b++)
		pack_panel(m->w, m->h_in, m->rows, b, dst + b * kt_panel_bytes(m->h_in));
}

void kt_ffn_pack(const struct kt_ffn *e, uint8_t *dst)
{
	uint64_t panel = kt_panel_bytes(e->h_in);

	for (unsigned int b = 0; b < kt_blocks(e->rows); b++) {
		uint8_t *block = dst + b * kt_block_bytes(e->h_in, e->h_out);
		uint16_t *down = (uint16_t *)(block + 2 * panel);

		pack_panel(e->gate, e->h_in, e->rows, b, block);
		pack_panel(e->up, e->h_in, e->rows, b, block + panel);
		memset(down, 0, 64ULL * round_up(e->h_out, 64));
		for (unsigned int m = 0; m < 32 && 32 * b + m < e->rows; m++)
			for (unsigned int j = 0; j < e->h_out; j++)
				down[(j >> 5) * 1024 + ((m >> 1) * 32 + (j & 31)) * 2 + (m & 1)] =
					e->down[j * e->rows + 32 * b + m];
	}
}

static double dot(const uint16_t *w, const uint16_t *x, unsigned int n, double *magnitude)
{
	double sum = 0, abs_sum = 0;

	for (unsigned int k = 0; k < n; k++) {
		double p = kt_from_bf16(w[k]) * kt_from_bf16(x[k]);

		sum += p;
		abs_sum += fabs(p);
	}
	*magnitude = abs_sum;
	return sum;
}

double kt_act(unsigned int act, double alpha, double limit, double gate, double up)
{
	if (act == MOENDP_ACT_SILU)
		return gate / (1 + exp(-gate)) * up;
	gate = fmin(gate, limit);
	up = fmax(fmin(up, limit), -limit);
	return gate / (1 + exp(-alpha * gate)) * (up + 1);
}

void kt_ffn_ref(const struct kt_ffn *e, unsigned int first, unsigned int count,
		const uint16_t *x, double *y, double *bound)
{
	unsigned int end = (first + count) * 32 < e->rows ? (first + count) * 32 : e->rows;

	memset(y, 0, e->h_out * sizeof(*y));
	memset(bound, 0, e->h_out * sizeof(*bound));
	for (unsigned int n = first * 32; n < end; n++) {
		double mag, gate = dot(e->gate + n * e->h_in, x, e->h_in, &mag);
		double up = dot(e->up + n * e->h_in, x, e->h_in, &mag);
		double h = kt_from_bf16(kt_bf16(kt_act(e->act, e->alpha, e->limit, gate, up)));

		for (unsigned int j = 0; j < e->h_out; j++) {
			double p = h * kt_from_bf16(e->down[j * e->rows + n]);

			y[j] += p;
			/* One unit in the last place of BF16, 2^-8 at worst. */
			bound[j] += fabs(p) / 256 + 1e-6;
		}
	}
}

void kt_gemv_ref(const struct kt_gemv *m, unsigned int first, unsigned int count,
		 const uint16_t *x, double *y, double *bound)
{
	unsigned int end = (first + count) * 32 < m->rows ? (first + count) * 32 : m->rows;

	for (unsigned int r = first * 32; r < end; r++) {
		double mag;

		*y++ = dot(m->w + r * m->h_in, x, m->h_in, &mag);
		/* FP32 sums in any order: n * 2^-24 of the sum of magnitudes. */
		*bound++ = mag * m->h_in / (1 << 24) + 1e-6;
	}
}

int kt_differs(const double *y, const double *ref, const double *bound, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		if (!(fabs(y[i] - ref[i]) <= bound[i]))
			return i;
	return -1;
}

static int fill_and_seal(struct kt_bo *bo)
{
	int r = kt_unmap(bo);

	if (!r)
		r = kt_seal(bo);
	if (r)
		kt_destroy(bo);
	return r;
}

int kt_sealed_ffn(int fd, const struct kt_ffn *e, const struct kt_place *p, struct kt_bo *bo)
{
	int r = kt_expert(fd, e->h_in, e->h_out, e->rows, p, bo);

	if (r)
		return r;
	r = kt_map(bo, PROT_READ | PROT_WRITE);
	if (r) {
		kt_destroy(bo);
		return r;
	}
	kt_ffn_pack(e, bo->map);
	return fill_and_seal(bo);
}

int kt_sealed_gemv(int fd, const struct kt_gemv *m, const struct kt_place *p, struct kt_bo *bo)
{
	int r = kt_matrix(fd, m->h_in, m->rows, p, bo);

	if (r)
		return r;
	r = kt_map(bo, PROT_READ | PROT_WRITE);
	if (r) {
		kt_destroy(bo);
		return r;
	}
	kt_gemv_pack(m, bo->map);
	return fill_and_seal(bo);
}
