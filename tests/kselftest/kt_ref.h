/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kt_ref.h - weights for tests, packed as docs/hardware.md says, and what a DIMM must compute
 * from them, in double precision.
 *
 * Written from the description of the packing and of the commands in kmod/ndp_regs.h and
 * docs/hardware.md, and from nothing of the device model's code: it is the second opinion.
 * Matrices are held row by row in BF16, as a model file has them.
 */
#ifndef KT_REF_H
#define KT_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "kt.h"

#define KT_NAN_BYTE	0xff	/* four of them are a NaN in FP32, two in BF16 */

uint16_t kt_bf16(double v);
double kt_from_bf16(uint16_t b);

/* Weights of an expert; kt_weights_free() gives them back. */
struct kt_ffn {
	unsigned int h_in;
	unsigned int h_out;
	unsigned int rows;	/* neurons */
	unsigned int act;
	double alpha;
	double limit;
	uint16_t *gate;		/* [rows][h_in] */
	uint16_t *up;		/* [rows][h_in] */
	uint16_t *down;		/* [h_out][rows] */
};

struct kt_gemv {
	unsigned int h_in;
	unsigned int rows;
	uint16_t *w;		/* [rows][h_in] */
};

int kt_ffn_random(struct kt_ffn *e, unsigned int h_in, unsigned int h_out, unsigned int rows,
		  uint64_t seed);
void kt_ffn_free(struct kt_ffn *e);
int kt_gemv_random(struct kt_gemv *m, unsigned int h_in, unsigned int rows, uint64_t seed);
void kt_gemv_free(struct kt_gemv *m);
void kt_x_random(uint16_t *x, unsigned int n, uint64_t seed);

/* Bytes of a neuron block and of a panel. */
uint64_t kt_block_bytes(unsigned int h_in, unsigned int h_out);
uint64_t kt_panel_bytes(unsigned int h_in);
/* Every byte of all blocks; with a poison, padding is NaN where the device must not read it. */
void kt_ffn_pack(const struct kt_ffn *e, uint8_t *dst);
void kt_gemv_pack(const struct kt_gemv *m, uint8_t *dst);

/*
 * y of one token over the neurons of some blocks. @bound receives what each element may be off
 * by: the intermediate h is rounded to BF16, which may go either way when the device's FP32 sum
 * lies beside a tie, and sums in FP32 have their own small error.
 */
void kt_ffn_ref(const struct kt_ffn *e, unsigned int first, unsigned int count,
		const uint16_t *x, double *y, double *bound);
void kt_gemv_ref(const struct kt_gemv *m, unsigned int first, unsigned int count,
		 const uint16_t *x, double *y, double *bound);
double kt_act(unsigned int act, double alpha, double limit, double gate, double up);
/* Index of the first element that is out of its bound or not finite, or -1. */
int kt_differs(const double *y, const double *ref, const double *bound, unsigned int n);

/* An expert on DIMMs, sealed, with its reference. */
int kt_sealed_ffn(int fd, const struct kt_ffn *e, const struct kt_place *p, struct kt_bo *bo);
int kt_sealed_gemv(int fd, const struct kt_gemv *m, const struct kt_place *p, struct kt_bo *bo);

#endif /* KT_REF_H */
