/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * chip_ref.h - what the chip's tests compare with: a packer written from the packing's formula,
 * and FFN and GEMV in FP64 with the error bound of qemu-device/chip/ndp_chip_impl.h.
 *
 * Shares nothing with the code under test but the meaning of BF16. Weights and inputs are held as
 * BF16 bit patterns, row-major and without padding.
 */
#ifndef CHIP_REF_H
#define CHIP_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ndp_chip.h"

struct ref_ffn {
	unsigned h_in, h_out, neurons;
	uint16_t *gate, *up;	/* [neurons][h_in] */
	uint16_t *down;		/* [h_out][neurons] */
};

static inline double ref_value(uint16_t bf16)
{
	uint32_t bits = (uint32_t)bf16 << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* To nearest even; finite values only. */
static inline uint16_t ref_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t ref_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 32;
}

/* A number of random sign and fraction with an exponent from low to high. */
static inline uint16_t ref_random_bf16(uint64_t *state, int low, int high)
{
	uint32_t r = ref_random(state);
	int exponent = low + (int)(r >> 16) % (high - low + 1) + 127;
	uint16_t sign_fraction = (r & 0x8000) | (r & 0x7f);

	return exponent < 1 ? sign_fraction : sign_fraction | exponent << 7;
}

static inline unsigned ref_round(unsigned n, unsigned to)
{
	return (n + to - 1) / to * to;
}

/* Blocks of the expert, as the packing's formula says, to out (ref_packed_bytes()). */
static inline size_t ref_packed_bytes(const struct ref_ffn *f)
{
	return (size_t)ref_round(f->neurons, 32) / 32 *
	       (128 * ref_round(f->h_in, 64) + 64 * ref_round(f->h_out, 64));
}

static inline void ref_pack(const struct ref_ffn *f, void *out)
{
	size_t hip = ref_round(f->h_in, 64), hop = ref_round(f->h_out, 64);

	memset(out, 0, ref_packed_bytes(f));
	for (unsigned n = 0; n < f->neurons; n++) {
		uint8_t *block = (uint8_t *)out + n / 32 * (128 * hip + 64 * hop);
		uint16_t *gate = (uint16_t *)block;
		uint16_t *up = (uint16_t *)(block + 64 * hip);
		uint16_t *down = (uint16_t *)(block + 128 * hip);
		size_t m = n % 32;

		for (size_t k = 0; k < f->h_in; k++) {
			gate[((k >> 1) * 32 + m) * 2 + (k & 1)] = f->gate[n * f->h_in + k];
			up[((k >> 1) * 32 + m) * 2 + (k & 1)] = f->up[n * f->h_in + k];
		}
		for (size_t j = 0; j < f->h_out; j++)
			down[(j >> 5) * 1024 + ((m >> 1) * 32 + (j & 31)) * 2 + (m & 1)] =
				f->down[j * f->neurons + n];
	}
}

/* A MATRIX [rows][k] in panels of 32 rows. */
static inline size_t ref_matrix_bytes(unsigned rows, unsigned k)
{
	return (size_t)ref_round(rows, 32) / 32 * 64 * ref_round(k, 64);
}

static inline void ref_pack_matrix(const uint16_t *a, unsigned rows, unsigned k, void *out)
{
	size_t panel_bytes = 64 * (size_t)ref_round(k, 64);

	memset(out, 0, ref_matrix_bytes(rows, k));
	for (size_t r = 0; r < rows; r++) {
		uint16_t *panel = (uint16_t *)((uint8_t *)out + r / 32 * panel_bytes);

		for (size_t i = 0; i < k; i++)
			panel[((i >> 1) * 32 + r % 32) * 2 + (i & 1)] = a[r * k + i];
	}
}

/* sum a[i] b[i], and an upper bound of what a path may miss it by. */
struct ref_sum {
	double value;
	double magnitude;	/* sum |a[i] b[i]| */
	double lost;		/* by numbers below the normal ones */
	unsigned n;
};

static inline void ref_add(struct ref_sum *s, double a, double b, int flushes)
{
	s->value += a * b;
	s->magnitude += fabs(a * b);
	s->lost += flushes ? ldexp(fabs(a) + fabs(b) + 2, -126) : ldexp(1, -148);
	s->n++;
}

static inline double ref_error(const struct ref_sum *s)
{
	return 1.01 * ldexp(256 + s->n / 256.0 + 4, -24) * s->magnitude + s->lost;
}

struct ref_act {
	enum ndp_chip_act act;
	float alpha, limit;
};

static inline double ref_gate(const struct ref_act *a, double g)
{
	return a->act == NDP_CHIP_SILU ? g : fmin(g, a->limit);
}

static inline double ref_up(const struct ref_act *a, double u)
{
	return a->act == NDP_CHIP_SILU ? u : fmax(fmin(u, a->limit), -(double)a->limit) + 1;
}

static inline double ref_h(const struct ref_act *a, double g, double u)
{
	double z = a->act == NDP_CHIP_SILU ? g : a->alpha * ref_gate(a, g);

	return ref_gate(a, g) / (1 + exp(-z)) * ref_up(a, u);
}

/* What h may miss by, g and u themselves missing by eg and eu. */
static inline double ref_h_error(const struct ref_act *a, double g, double eg, double u, double eu)
{
	double gate = fabs(ref_gate(a, g)), up = fabs(ref_up(a, u));

	return (1 + ldexp(1, -8)) * (1.1 * eg * (up + eu) + gate * eu + ldexp(8, -24) * gate * up) +
	       ldexp(fabs(ref_h(a, g, u)), -8) + ldexp(1, -120);
}

/* One token: y[h_out] and what a path may miss each by. */
static inline void ref_ffn(const struct ref_ffn *f, const struct ref_act *a, const uint16_t *x,
			   int flushes, double *y, double *error)
{
	double *h = malloc(f->neurons * sizeof(*h)), *eh = malloc(f->neurons * sizeof(*eh));

	for (size_t n = 0; n < f->neurons; n++) {
		struct ref_sum g = { 0 }, u = { 0 };

		for (size_t k = 0; k < f->h_in; k++) {
			ref_add(&g, ref_value(f->gate[n * f->h_in + k]), ref_value(x[k]), flushes);
			ref_add(&u, ref_value(f->up[n * f->h_in + k]), ref_value(x[k]), flushes);
		}
		h[n] = ref_h(a, g.value, u.value);
		eh[n] = ref_h_error(a, g.value, ref_error(&g), u.value, ref_error(&u));
	}
	for (size_t j = 0; j < f->h_out; j++) {
		struct ref_sum exact = { 0 }, worst = { 0 };
		double inherited = 0;

		for (size_t n = 0; n < f->neurons; n++) {
			double d = ref_value(f->down[j * f->neurons + n]);

			ref_add(&exact, d, h[n], flushes);
			ref_add(&worst, d, fabs(h[n]) + eh[n], flushes);
			inherited += fabs(d) * eh[n];
		}
		y[j] = exact.value;
		error[j] = inherited + ref_error(&worst);
	}
	free(h);
	free(eh);
}

#endif
