/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * pack.h - the layout of weights on NDP DIMMs, and BF16.
 *
 * An expert is a list of neuron blocks, each holding gate, up and down of 32
 * neurons in the order in which AVX-512, AMX and libxsmm read BF16 operands; a
 * matrix is a list of panels of 32 rows.  docs/hardware.md has the formula.
 * Pure functions: no allocation, no I/O.
 */
#ifndef NDP_PACK_H
#define NDP_PACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NDP_BLOCK_ROWS 32

typedef uint16_t ndp_bf16;

/* Nearest, ties to even; NaN stays NaN. */
ndp_bf16 ndp_bf16_from_f32(float f);
float ndp_bf16_to_f32(ndp_bf16 b);
void ndp_bf16_from_f32_array(ndp_bf16 *dst, const float *src, size_t n);
void ndp_bf16_to_f32_array(float *dst, const ndp_bf16 *src, size_t n);

struct ndp_expert_shape {
	uint32_t h_in;		/* columns of x, 1..65472 */
	uint32_t h_out;		/* columns of y, 1..65472 */
	uint32_t neurons;	/* rows of gate and up */
};

struct ndp_matrix_shape {
	uint32_t cols;		/* of x, 1..65472 */
	uint32_t rows;		/* of the matrix: columns of y */
};

/* 128 * roundup(h_in, 64) + 64 * roundup(h_out, 64). */
size_t ndp_expert_block_bytes(const struct ndp_expert_shape *s);
uint32_t ndp_expert_blocks(const struct ndp_expert_shape *s);
/* 64 * roundup(cols, 64). */
size_t ndp_matrix_panel_bytes(const struct ndp_matrix_shape *s);
uint32_t ndp_matrix_panels(const struct ndp_matrix_shape *s);

/*
 * Packs block @block into @dst (ndp_expert_block_bytes()).  @gate and @up are
 * row-major [neurons][h_in] with rows @ld_in elements apart, @down row-major
 * [h_out][neurons] with rows @ld_down elements apart: the orientation of a
 * Linear layer's weight in Hugging Face files.  Padding is zero.
 */
void ndp_expert_pack_block(void *dst, const struct ndp_expert_shape *s, uint32_t block,
			   const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld_in,
			   const ndp_bf16 *down, size_t ld_down);
/*
 * Packs blocks [first, first + nr_blocks) one after the other, @down of several at a
 * time: the same bytes as one call for each, faster.  Where @dst is aligned to 64 bytes
 * large packs go past the caches; another thread sees them after any release.
 */
void ndp_expert_pack_blocks(void *dst, const struct ndp_expert_shape *s, uint32_t first,
			    uint32_t nr_blocks, const ndp_bf16 *gate, const ndp_bf16 *up,
			    size_t ld_in, const ndp_bf16 *down, size_t ld_down);
void ndp_expert_unpack_block(const void *src, const struct ndp_expert_shape *s, uint32_t block,
			     ndp_bf16 *gate, ndp_bf16 *up, size_t ld_in,
			     ndp_bf16 *down, size_t ld_down);

/* As above for a panel of a matrix [rows][cols]. */
void ndp_matrix_pack_panel(void *dst, const struct ndp_matrix_shape *s, uint32_t panel,
			   const ndp_bf16 *m, size_t ld);

#ifdef __cplusplus
}
#endif

#endif
