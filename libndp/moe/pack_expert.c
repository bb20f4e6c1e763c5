// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * pack_expert.c - an expert's matrices, wherever and however a file has them, into
 * neuron blocks.
 *
 * BF16 rows are packed where they are mapped.  Everything else goes a few blocks at a time
 * through work memory of the caller's: dequantised, transposed, gate and up taken
 * apart, the biases appended as one more column.  Nothing is allocated here.
 *
 * MXFP4 in safetensors (openai/gpt-oss, convert_moe_packed_tensors() in transformers'
 * integrations/mxfp4.py): a byte holds two codes, the lower half first; codes are FP4
 * E2M1 (OCP Microscaling Formats 1.0, 5.3.3); a group of 32 is scaled by 2^(scale - 127).
 * Every such product is a BF16 number, but for those beyond its range.
 */
#include "model-internal.h"

#include <math.h>

/* Blocks that are read together: rows of down are then read 512 bytes at a time. */
#define GROUP_BLOCKS 8
/* What is transposed at a time. */
#define TILE_COLS 32
#define TILE_ROWS 256
#define TILE_BYTES (TILE_COLS * 2 * TILE_ROWS * sizeof(ndp_bf16))

bool ndpi_matrix_readable(const struct model_matrix *mat)
{
	if (mat->scales)
		return mat->t->dtype == NDP_DTYPE_U8 && mat->scales->dtype == NDP_DTYPE_U8;
	return ndp_dtype_readable(mat->t->dtype);
}

/* Its rows can be read as BF16 in place. */
static bool is_direct(const struct model_matrix *mat)
{
	return !mat->scales && mat->t->dtype == NDP_DTYPE_BF16 && mat->col == 1 &&
	       !((uintptr_t)mat->t->data % sizeof(ndp_bf16));
}

static bool all_direct(const struct model_expert *e)
{
	return is_direct(&e->gate) && is_direct(&e->up) && is_direct(&e->down) && !e->gate.bias;
}

static uint32_t group_neurons(const struct ndp_expert_shape *s)
{
	uint32_t blocks = ndp_expert_blocks(s);

	return (blocks < GROUP_BLOCKS ? blocks : GROUP_BLOCKS) * NDP_BLOCK_ROWS;
}

size_t ndpi_pack_bytes(const struct model_expert *e, const struct ndp_expert_shape *s)
{
	if (all_direct(e))
		return 0;
	return TILE_BYTES + group_neurons(s) * (2 * (size_t)s->h_in + s->h_out) * sizeof(ndp_bf16);
}

/* The 16 codes times 2^(scale - 127). */
static void scale_codes(ndp_bf16 scaled[16], uint8_t scale)
{
	/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 as BF16; the upper codes are the negative ones. */
	static const ndp_bf16 values[8] = { 0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080,
					    0x40c0 };

	for (int i = 0; i < 8; i++) {
		/* Adding to the exponent is exact while it stays one of a normal number. */
		if (scale > 2 && scale < 252)
			scaled[i] = i ? (ndp_bf16)(values[i] + (scale - 127) * 128) : 0;
		else
			scaled[i] = ndp_bf16_from_f32(ldexpf(ndp_bf16_to_f32(values[i]),
							     scale - 127));
		scaled[i + 8] = scaled[i] | 0x8000;
	}
	if (scale == 255)	/* E8M0's NaN */
		for (int i = 0; i < 16; i++)
			scaled[i] = 0x7fc0;
}

/* A range of elements; with scales it is whole groups. */
static int read_run(const struct model_matrix *mat, uint64_t first, uint64_t count, ndp_bf16 *dst)
{
	const uint8_t *codes, *scales;

	if (!mat->scales)
		return ndp_tensor_read_bf16(mat->t, first, count, dst);
	codes = (const uint8_t *)mat->t->data + first / 2;
	scales = (const uint8_t *)mat->scales->data + first / 32;
	for (; count; count -= 32, dst += 32, codes += 16) {
		ndp_bf16 scaled[16];

		scale_codes(scaled, *scales++);
		for (int i = 0; i < 16; i++) {
			dst[2 * i] = scaled[codes[i] & 15];
			dst[2 * i + 1] = scaled[codes[i] >> 4];
		}
	}
	return 0;
}

/* [rows][cols] from (r0, c0) on where outputs follow one another in the file. */
static int read_transposed(const struct model_matrix *mat, uint32_t r0, uint32_t rows, uint32_t c0,
			   uint32_t cols, ndp_bf16 *dst, size_t ld, ndp_bf16 *tile)
{
	for (uint32_t r = 0; r < rows; r += TILE_ROWS) {
		uint32_t nr = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
		uint64_t run = (nr - 1) * mat->row + 1;

		for (uint32_t c = 0; c < cols; c += TILE_COLS) {
			uint32_t nc = cols - c < TILE_COLS ? cols - c : TILE_COLS;

			for (uint32_t i = 0; i < nc; i++) {
				uint64_t at = mat->first + (r0 + r) * mat->row +
					      (uint64_t)(c0 + c + i) * mat->col;
				int err = read_run(mat, at, run, tile + i * 2 * TILE_ROWS);

				if (err < 0)
					return err;
			}
			for (uint32_t k = 0; k < nr; k++)
				for (uint32_t i = 0; i < nc; i++)
					dst[(r + k) * ld + c + i] =
						tile[i * 2 * TILE_ROWS + k * mat->row];
		}
	}
	return 0;
}

static int read_part(const struct model_matrix *mat, uint32_t r0, uint32_t rows, uint32_t c0,
		     uint32_t cols, ndp_bf16 *dst, size_t ld, ndp_bf16 *tile)
{
	if (mat->col != 1)
		return read_transposed(mat, r0, rows, c0, cols, dst, ld, tile);
	for (uint32_t r = 0; r < rows; r++) {
		uint64_t at = mat->first + (uint64_t)(r0 + r) * mat->row + c0;
		int err = read_run(mat, at, cols, dst + r * ld);

		if (err < 0)
			return err;
	}
	return 0;
}

/* Rows [r0, r0 + rows) of gate or up, with the bias as the last column where there is one. */
static int read_rows(const struct model_matrix *mat, uint32_t r0, uint32_t rows, uint32_t h_in,
		     ndp_bf16 *dst, ndp_bf16 *tile)
{
	uint32_t cols = h_in - (mat->bias != NULL);
	int err = read_part(mat, r0, rows, 0, cols, dst, h_in, tile);

	for (uint32_t r = 0; mat->bias && r < rows && !err; r++)
		err = ndp_tensor_read_bf16(mat->bias,
					   mat->bias_first + (r0 + r) * mat->bias_step, 1,
					   dst + (size_t)r * h_in + cols);
	return err;
}

static const ndp_bf16 *in_place(const struct model_matrix *mat)
{
	return (const ndp_bf16 *)mat->t->data + mat->first;
}

static int pack_through(const struct model_expert *e, const struct ndp_expert_shape *s,
			uint32_t first, uint32_t nr_blocks, char *dst, void *work,
			const struct ndp_tensor **bad)
{
	const size_t block_bytes = ndp_expert_block_bytes(s);
	const uint32_t most = group_neurons(s);
	ndp_bf16 *tile = work;
	ndp_bf16 *gate = tile + TILE_BYTES / sizeof(*tile);
	ndp_bf16 *up = gate + (size_t)most * s->h_in;
	ndp_bf16 *down = up + (size_t)most * s->h_in;
	uint32_t n0 = first * NDP_BLOCK_ROWS;
	const uint64_t wanted = (uint64_t)(first + nr_blocks) * NDP_BLOCK_ROWS;
	const uint32_t end = wanted < s->neurons ? (uint32_t)wanted : s->neurons;

	while (n0 < end) {
		struct ndp_expert_shape part = *s;
		int r;

		part.neurons = end - n0 < most ? end - n0 : most;
		*bad = e->gate.t;
		r = read_rows(&e->gate, n0, part.neurons, s->h_in, gate, tile);
		if (r < 0)
			return r;
		*bad = e->up.t;
		r = read_rows(&e->up, n0, part.neurons, s->h_in, up, tile);
		if (r < 0)
			return r;
		*bad = e->down.t;
		r = read_part(&e->down, 0, s->h_out, n0, part.neurons, down, part.neurons, tile);
		if (r < 0)
			return r;
		ndp_expert_pack_blocks(dst, &part, 0, ndp_expert_blocks(&part), gate, up, s->h_in,
				       down, part.neurons);
		dst += ndp_expert_blocks(&part) * block_bytes;
		n0 += part.neurons;
	}
	return 0;
}

int ndpi_pack(const struct model_expert *e, const struct ndp_expert_shape *s, uint32_t first,
	      uint32_t nr_blocks, void *dst, void *work, const struct ndp_tensor **bad)
{
	if (!all_direct(e))
		return pack_through(e, s, first, nr_blocks, dst, work, bad);
	/* Both are [neurons][h_in] or halves of one tensor: rows are equally far apart. */
	ndp_expert_pack_blocks(dst, s, first, nr_blocks, in_place(&e->gate), in_place(&e->up),
			       e->gate.row, in_place(&e->down), e->down.row);
	return 0;
}
