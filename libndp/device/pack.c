/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * pack.c - from row-major weights to neuron blocks and panels, and back.
 *
 * Everything is made of one tile: 32 rows by 32 columns of BF16, 2 KiB, in
 * which the 32-bit word 32 * (c / 2) + r holds columns c and c + 1 of row r.
 * Gate and up of a block are a row of such tiles (rows are neurons, columns
 * inputs), down is a column of them (rows are outputs, columns neurons), a
 * panel is like gate.  docs/hardware.md has the same as a formula.
 */
#include <ndp/pack.h>
#include <stdbool.h>
#include <string.h>

#define TILE 32
#define TILE_ELEMENTS (TILE * TILE)

static uint32_t at_most_tile(uint32_t have, uint32_t begin)
{
	uint32_t left = have > begin ? have - begin : 0;

	return left < TILE ? left : TILE;
}

static size_t round64(uint32_t n)
{
	return ((size_t)n + 63) & ~(size_t)63;
}

/* @rows and @cols: how much of the tile there is; the rest becomes zero. */
static void pack_tile(ndp_bf16 *tile, const ndp_bf16 *src, size_t ld, uint32_t rows, uint32_t cols)
{
	if (rows < TILE || cols < TILE)
		memset(tile, 0, TILE_ELEMENTS * sizeof(*tile));
	for (uint32_t r = 0; r < rows; r++) {
		const ndp_bf16 *row = src + r * ld;
		uint32_t c;

		for (c = 0; c + 1 < cols; c += 2)
			memcpy(&tile[c * TILE + 2 * r], &row[c], 2 * sizeof(*row));
		if (c < cols)
			tile[c * TILE + 2 * r] = row[c];
	}
}

static void unpack_tile(const ndp_bf16 *tile, ndp_bf16 *dst, size_t ld, uint32_t rows,
			uint32_t cols)
{
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < cols; c++)
			dst[r * ld + c] = tile[(c / 2 * TILE + r) * 2 + (c & 1)];
}

/* 32 rows from row @first on of a row-major [@have][@cols]. */
static void pack_rows(ndp_bf16 *dst, const ndp_bf16 *src, size_t ld, uint32_t first, uint32_t have,
		      uint32_t cols)
{
	uint32_t rows = at_most_tile(have, first);
	size_t padded = round64(cols);

	for (uint32_t c = 0; c < padded; c += TILE, dst += TILE_ELEMENTS)
		pack_tile(dst, src + (size_t)first * ld + c, ld, rows, at_most_tile(cols, c));
}

static void unpack_rows(const ndp_bf16 *src, ndp_bf16 *dst, size_t ld, uint32_t first,
			uint32_t have, uint32_t cols)
{
	uint32_t rows = at_most_tile(have, first);

	for (uint32_t c = 0; c < cols; c += TILE, src += TILE_ELEMENTS)
		unpack_tile(src, dst + (size_t)first * ld + c, ld, rows, at_most_tile(cols, c));
}

size_t ndp_expert_block_bytes(const struct ndp_expert_shape *s)
{
	return 128 * round64(s->h_in) + 64 * round64(s->h_out);
}

uint32_t ndp_expert_blocks(const struct ndp_expert_shape *s)
{
	return s->neurons / NDP_BLOCK_ROWS + (s->neurons % NDP_BLOCK_ROWS != 0);
}

size_t ndp_matrix_panel_bytes(const struct ndp_matrix_shape *s)
{
	return 64 * round64(s->cols);
}

uint32_t ndp_matrix_panels(const struct ndp_matrix_shape *s)
{
	return s->rows / NDP_BLOCK_ROWS + (s->rows % NDP_BLOCK_ROWS != 0);
}

void ndp_expert_pack_block(void *dst, const struct ndp_expert_shape *s, uint32_t block,
			   const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld_in,
			   const ndp_bf16 *down, size_t ld_down)
{
	uint32_t first = block * NDP_BLOCK_ROWS;
	uint32_t neurons = at_most_tile(s->neurons, first);
	size_t part = TILE * round64(s->h_in);
	ndp_bf16 *p = dst;

	pack_rows(p, gate, ld_in, first, s->neurons, s->h_in);
	pack_rows(p + part, up, ld_in, first, s->neurons, s->h_in);
	p += 2 * part;
	for (uint32_t j = 0; j < round64(s->h_out); j += TILE, p += TILE_ELEMENTS)
		pack_tile(p, down + (size_t)j * ld_down + first, ld_down,
			  at_most_tile(s->h_out, j), neurons);
}

void ndp_expert_unpack_block(const void *src, const struct ndp_expert_shape *s, uint32_t block,
			     ndp_bf16 *gate, ndp_bf16 *up, size_t ld_in,
			     ndp_bf16 *down, size_t ld_down)
{
	uint32_t first = block * NDP_BLOCK_ROWS;
	uint32_t neurons = at_most_tile(s->neurons, first);
	size_t part = TILE * round64(s->h_in);
	const ndp_bf16 *p = src;

	unpack_rows(p, gate, ld_in, first, s->neurons, s->h_in);
	unpack_rows(p + part, up, ld_in, first, s->neurons, s->h_in);
	p += 2 * part;
	for (uint32_t j = 0; j < s->h_out; j += TILE, p += TILE_ELEMENTS)
		unpack_tile(p, down + (size_t)j * ld_down + first, ld_down,
			    at_most_tile(s->h_out, j), neurons);
}

void ndp_expert_pack_blocks(void *dst, const struct ndp_expert_shape *s, uint32_t first,
			    uint32_t nr_blocks, const ndp_bf16 *gate, const ndp_bf16 *up,
			    size_t ld_in, const ndp_bf16 *down, size_t ld_down)
{
	size_t bytes = ndp_expert_block_bytes(s);

	for (uint32_t b = 0; b < nr_blocks; b++)
		ndp_expert_pack_block((char *)dst + b * bytes, s, first + b, gate, up, ld_in, down,
				      ld_down);
}

void ndp_matrix_pack_panel(void *dst, const struct ndp_matrix_shape *s, uint32_t panel,
			   const ndp_bf16 *m, size_t ld)
{
	pack_rows(dst, m, ld, panel * NDP_BLOCK_ROWS, s->rows, s->cols);
}
