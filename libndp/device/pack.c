/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * pack.c - from row-major weights to neuron blocks and panels, and back.
 *
 * Everything is made of one tile: 32 rows by 32 columns of BF16, 2 KiB, in
 * which the 32-bit word 32 * (c / 2) + r holds columns c and c + 1 of row r.
 * Gate and up of a block are a row of such tiles (rows are neurons, columns
 * inputs), down is a column of them (rows are outputs, columns neurons), a
 * panel is like gate.  docs/hardware.md has the same as a formula.
 *
 * A tile is a transposed matrix of 32-bit words, so memory is what limits packing, if
 * its 32 rows are asked for in time: hardware follows fewer streams than that.  Whole tiles
 * are transposed in registers, 16 rows at a time so that whole cache lines are written,
 * by AVX-512 or AVX2 where the CPU has it, while the rows of a later tile are on their
 * way.  Large packs are written past the caches, which would first read what is going to
 * be overwritten.
 */
#include "pack-internal.h"

#include <ndp/pack.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <stdbool.h>
#include <string.h>

#define TILE 32
#define TILE_ELEMENTS (TILE * TILE)
/* Blocks whose part of a row of down is read in one go, at most: 1 KiB. */
#define GROUP_BLOCKS 16
/* From here on it does not pay to keep what is written in the caches. */
#define STREAM_BYTES (1u << 20)

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

static enum ndpi_pack_isa limit = NDPI_PACK_AVX512;

void ndpi_pack_limit(enum ndpi_pack_isa isa)
{
	limit = isa;
}

/* How tiles get to their place. */
enum tile_path {
	TILE_PLAIN,
	TILE_AVX2,
	TILE_AVX2_STREAM,	/* past the caches: 64-byte alignment, a fence at the end */
	TILE_AVX512,
	TILE_AVX512_STREAM,
};

#ifdef __x86_64__
#define AVX2_INLINE __attribute__((target("avx2"), always_inline)) static inline
#define AVX512_INLINE __attribute__((target("avx512f"), always_inline)) static inline

/* Past the end of a matrix this is no access, and nobody minds. */
static inline __attribute__((always_inline)) void fetch_rows(const ndp_bf16 *src, size_t ld,
							     size_t ahead)
{
	for (int i = 0; i < TILE / 2; i++)
		_mm_prefetch((const char *)((uintptr_t)src + (i * ld + ahead) * sizeof(*src)),
			     _MM_HINT_T0);
}

/* 8 rows of 8 words from @src on, transposed. */
AVX2_INLINE void transpose8(__m256 out[8], const ndp_bf16 *src, size_t ld)
{
	__m256 a[8], b[8];

	for (int i = 0; i < 8; i++)
		a[i] = _mm256_loadu_ps((const float *)(src + i * ld));
	for (int i = 0; i < 8; i += 2) {
		b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
		b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
	}
	for (int i = 0; i < 8; i += 4) {
		a[i] = (__m256)_mm256_unpacklo_pd((__m256d)b[i], (__m256d)b[i + 2]);
		a[i + 1] = (__m256)_mm256_unpackhi_pd((__m256d)b[i], (__m256d)b[i + 2]);
		a[i + 2] = (__m256)_mm256_unpacklo_pd((__m256d)b[i + 1], (__m256d)b[i + 3]);
		a[i + 3] = (__m256)_mm256_unpackhi_pd((__m256d)b[i + 1], (__m256d)b[i + 3]);
	}
	for (int i = 0; i < 4; i++) {
		out[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
		out[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
	}
}

AVX2_INLINE void store8(float *dst, __m256 v, bool stream)
{
	if (stream)
		_mm256_stream_ps(dst, v);
	else
		_mm256_storeu_ps(dst, v);
}

/* A whole tile; the one at @src + @ahead elements is fetched. */
AVX2_INLINE void tile_avx2(ndp_bf16 *tile, const ndp_bf16 *src, size_t ld, size_t ahead,
			   bool stream)
{
	for (int r = 0; r < TILE; r += 16) {
		for (int w = 0; w < TILE / 2; w += 8) {
			float *dst = (float *)tile + w * TILE + r;
			__m256 upper[8], lower[8];

			transpose8(upper, src + r * ld + 2 * w, ld);
			transpose8(lower, src + (r + 8) * ld + 2 * w, ld);
			for (int i = 0; i < 8; i++) {
				store8(dst + i * TILE, upper[i], stream);
				store8(dst + i * TILE + 8, lower[i], stream);
			}
		}
		fetch_rows(src + r * ld, ld, ahead);
	}
}

__attribute__((target("avx2"))) static void tile_avx2_plain(ndp_bf16 *tile, const ndp_bf16 *src,
							    size_t ld, size_t ahead)
{
	tile_avx2(tile, src, ld, ahead, false);
}

__attribute__((target("avx2"))) static void tile_avx2_stream(ndp_bf16 *tile, const ndp_bf16 *src,
							     size_t ld, size_t ahead)
{
	tile_avx2(tile, src, ld, ahead, true);
}

AVX512_INLINE void store16(float *dst, __m512i v, bool stream)
{
	if (stream)
		_mm512_stream_si512((__m512i *)dst, v);
	else
		_mm512_storeu_si512(dst, v);
}

/* Of 16 rows of 16 words: pairs, fours, eights, then all 16 of a column together. */
AVX512_INLINE void tile_avx512(ndp_bf16 *tile, const ndp_bf16 *src, size_t ld, size_t ahead,
			       bool stream)
{
	for (int h = 0; h < TILE; h += 16) {
		float *dst = (float *)tile + h;
		__m512i a[16], b[16];

		for (int i = 0; i < 16; i++)
			a[i] = _mm512_loadu_si512(src + (h + i) * ld);
		fetch_rows(src + h * ld, ld, ahead);
		for (int i = 0; i < 16; i += 2) {
			b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
			b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
		}
		for (int i = 0; i < 16; i += 4) {
			a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
			a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
			a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
			a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
		}
		for (int i = 0; i < 4; i++) {
			b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
			b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
			b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
			b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
		}
		for (int i = 0; i < 8; i++) {
			store16(dst + i * TILE, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88), stream);
			store16(dst + (i + 8) * TILE, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd),
				stream);
		}
	}
}

__attribute__((target("avx512f"))) static void
tile_avx512_plain(ndp_bf16 *tile, const ndp_bf16 *src, size_t ld, size_t ahead)
{
	tile_avx512(tile, src, ld, ahead, false);
}

__attribute__((target("avx512f"))) static void tile_avx512_stream(ndp_bf16 *tile,
								  const ndp_bf16 *src, size_t ld,
								  size_t ahead)
{
	tile_avx512(tile, src, ld, ahead, true);
}

static enum tile_path choose_path(const void *dst, size_t bytes)
{
	bool stream = bytes >= STREAM_BYTES && (uintptr_t)dst % 64 == 0;

	if (limit >= NDPI_PACK_AVX512 && __builtin_cpu_supports("avx512f"))
		return stream ? TILE_AVX512_STREAM : TILE_AVX512;
	if (limit >= NDPI_PACK_AVX2 && __builtin_cpu_supports("avx2"))
		return stream ? TILE_AVX2_STREAM : TILE_AVX2;
	return TILE_PLAIN;
}

static void end_path(enum tile_path path)
{
	if (path == TILE_AVX2_STREAM || path == TILE_AVX512_STREAM)
		_mm_sfence();
}

static void vector_tile(enum tile_path path, ndp_bf16 *tile, const ndp_bf16 *src, size_t ld,
			size_t ahead)
{
	switch (path) {
	case TILE_AVX2:
		tile_avx2_plain(tile, src, ld, ahead);
		break;
	case TILE_AVX2_STREAM:
		tile_avx2_stream(tile, src, ld, ahead);
		break;
	case TILE_AVX512:
		tile_avx512_plain(tile, src, ld, ahead);
		break;
	default:
		tile_avx512_stream(tile, src, ld, ahead);
	}
}
#else
static void vector_tile(enum tile_path path, ndp_bf16 *tile, const ndp_bf16 *src, size_t ld,
			size_t ahead)
{
	(void)path;
	(void)ahead;
	pack_tile(tile, src, ld, TILE, TILE);
}

static enum tile_path choose_path(const void *dst, size_t bytes)
{
	(void)dst;
	(void)bytes;
	return TILE_PLAIN;
}

static void end_path(enum tile_path path)
{
	(void)path;
}
#endif

/* As pack_tile(), with whatever is fastest. */
static void put_tile(enum tile_path path, ndp_bf16 *tile, const ndp_bf16 *src, size_t ld,
		     uint32_t rows, uint32_t cols, size_t ahead)
{
	if (path == TILE_PLAIN || rows < TILE || cols < TILE)
		pack_tile(tile, src, ld, rows, cols);
	else
		vector_tile(path, tile, src, ld, ahead);
}

/* 32 rows from row @first on of a row-major [@have][@cols]. */
static void pack_rows(enum tile_path path, ndp_bf16 *dst, const ndp_bf16 *src, size_t ld,
		      uint32_t first, uint32_t have, uint32_t cols)
{
	uint32_t rows = at_most_tile(have, first);
	size_t padded = round64(cols);

	for (uint32_t c = 0; c < padded; c += TILE, dst += TILE_ELEMENTS)
		put_tile(path, dst, src + (size_t)first * ld + c, ld, rows, at_most_tile(cols, c),
			 2 * TILE);
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

/* Blocks that are together in @dst: gate and up of each, then down of all. */
static void pack_group(enum tile_path path, char *dst, const struct ndp_expert_shape *s,
		       uint32_t first, uint32_t nr_blocks, const ndp_bf16 *gate,
		       const ndp_bf16 *up, size_t ld_in, const ndp_bf16 *down, size_t ld_down)
{
	size_t bytes = ndp_expert_block_bytes(s);
	size_t part = TILE * round64(s->h_in);

	for (uint32_t b = 0; b < nr_blocks; b++) {
		ndp_bf16 *p = (ndp_bf16 *)(dst + b * bytes);
		uint32_t row = (first + b) * NDP_BLOCK_ROWS;

		pack_rows(path, p, gate, ld_in, row, s->neurons, s->h_in);
		pack_rows(path, p + part, up, ld_in, row, s->neurons, s->h_in);
	}
	for (uint32_t j = 0; j < round64(s->h_out); j += TILE) {
		for (uint32_t b = 0; b < nr_blocks; b++) {
			ndp_bf16 *p = (ndp_bf16 *)(dst + b * bytes) + 2 * part + j * TILE;
			uint32_t col = (first + b) * NDP_BLOCK_ROWS;

			put_tile(path, p, down + (size_t)j * ld_down + col, ld_down,
				 at_most_tile(s->h_out, j), at_most_tile(s->neurons, col),
				 TILE * ld_down);
		}
	}
}

void ndp_expert_pack_blocks(void *dst, const struct ndp_expert_shape *s, uint32_t first,
			    uint32_t nr_blocks, const ndp_bf16 *gate, const ndp_bf16 *up,
			    size_t ld_in, const ndp_bf16 *down, size_t ld_down)
{
	size_t bytes = ndp_expert_block_bytes(s);
	enum tile_path path = choose_path(dst, nr_blocks * bytes);
	uint32_t groups = (nr_blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;

	for (uint32_t g = 0, b = 0, n; g < groups; g++, b += n) {
		n = (nr_blocks - b) / (groups - g);
		pack_group(path, (char *)dst + b * bytes, s, first + b, n, gate, up, ld_in, down,
			   ld_down);
	}
	end_path(path);
}

void ndp_expert_pack_block(void *dst, const struct ndp_expert_shape *s, uint32_t block,
			   const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld_in,
			   const ndp_bf16 *down, size_t ld_down)
{
	pack_group(choose_path(dst, 0), dst, s, block, 1, gate, up, ld_in, down, ld_down);
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

void ndp_matrix_pack_panel(void *dst, const struct ndp_matrix_shape *s, uint32_t panel,
			   const ndp_bf16 *m, size_t ld)
{
	pack_rows(choose_path(dst, 0), dst, m, ld, panel * NDP_BLOCK_ROWS, s->rows, s->cols);
}
