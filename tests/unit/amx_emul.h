/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * amx_emul.h - plain C models of the intrinsics that libndp/moe/cpu-amx.c uses, so that its index
 * arithmetic, its order of sums and its use of the configuration are tested without AMX.
 *
 * After Intel's SDM (volume 1, chapter 18; volume 2): LDTILECFG takes palette 1 with rows of up to
 * 64 bytes and up to 16 of them, and reserved bytes that are zero; tiles are a thread's, and any
 * use of one that is not configured is an invalid opcode. TDPBF16PS sums the even inputs and the
 * odd ones by fused multiply-adds from zero, adds both sums, and the result to the tile; it
 * rounds to nearest even, and denormals are zero, coming and going.
 */
#ifndef AMX_EMUL_H
#define AMX_EMUL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { EMUL_TILES = 8 };

static _Thread_local struct {
	int configured;
	uint32_t rows[EMUL_TILES], row_bytes[EMUL_TILES];
	uint8_t tile[EMUL_TILES][16][64];
} emul_amx;

static inline void emul_must(int condition)
{
	if (!condition)
		__builtin_trap();
}

static inline void _tile_loadconfig(const void *config)
{
	const uint8_t *c = config;

	emul_must(c[0] == 1 && c[1] == 0);
	for (int i = 2; i < 16; i++)
		emul_must(!c[i]);
	for (int i = 0; i < 16; i++) {
		uint32_t bytes = c[16 + 2 * i] | (uint32_t)c[17 + 2 * i] << 8, rows = c[48 + i];

		emul_must(bytes <= 64 && rows <= 16 && !bytes == !rows);
		emul_must(i < EMUL_TILES || !rows);
		if (i < EMUL_TILES) {
			emul_amx.rows[i] = rows;
			emul_amx.row_bytes[i] = bytes;
		}
	}
	memset(emul_amx.tile, 0, sizeof(emul_amx.tile));
	emul_amx.configured = 1;
}

static inline void _tile_release(void)
{
	memset(&emul_amx, 0, sizeof(emul_amx));
}

static inline void emul_tile(int t)
{
	emul_must(emul_amx.configured && t >= 0 && t < EMUL_TILES && emul_amx.rows[t]);
}

static inline void _tile_zero(int t)
{
	emul_tile(t);
	memset(emul_amx.tile[t], 0, sizeof(emul_amx.tile[t]));
}

static inline void _tile_loadd(int t, const void *base, size_t stride)
{
	_tile_zero(t);
	for (uint32_t r = 0; r < emul_amx.rows[t]; r++)
		memcpy(emul_amx.tile[t][r], (const uint8_t *)base + r * stride,
		       emul_amx.row_bytes[t]);
}

static inline void _tile_stored(int t, void *base, size_t stride)
{
	emul_tile(t);
	for (uint32_t r = 0; r < emul_amx.rows[t]; r++)
		memcpy((uint8_t *)base + r * stride, emul_amx.tile[t][r], emul_amx.row_bytes[t]);
}

static inline float emul_amx_flush(float f)
{
	return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

/* Element @i, a BF16, of a row. */
static inline float emul_amx_bf16(const uint8_t *row, uint32_t i)
{
	uint32_t bits = (uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return emul_amx_flush(f);
}

static inline float emul_amx_fma(float a, float b, float c)
{
	return emul_amx_flush(fmaf(a, b, c));
}

/* Not inlined: the kernels name it many times. */
__attribute__((noinline)) static void _tile_dpbf16ps(int c, int a, int b)
{
	const uint32_t pairs = emul_amx.row_bytes[a] / 4;

	emul_tile(a);
	emul_tile(b);
	emul_tile(c);
	emul_must(c != a && c != b && a != b && emul_amx.rows[b] == pairs &&
		  emul_amx.rows[c] == emul_amx.rows[a] &&
		  emul_amx.row_bytes[c] == emul_amx.row_bytes[b]);
	for (uint32_t m = 0; m < emul_amx.rows[c]; m++) {
		for (uint32_t n = 0; n < emul_amx.row_bytes[c] / 4; n++) {
			const uint8_t *x = emul_amx.tile[a][m];
			float even = 0, odd = 0, sum;

			for (uint32_t k = 0; k < pairs; k++) {
				const uint8_t *w = emul_amx.tile[b][k];

				even = emul_amx_fma(emul_amx_bf16(x, 2 * k),
						    emul_amx_bf16(w, 2 * n), even);
				odd = emul_amx_fma(emul_amx_bf16(x, 2 * k + 1),
						   emul_amx_bf16(w, 2 * n + 1), odd);
			}
			memcpy(&sum, &emul_amx.tile[c][m][4 * n], sizeof(sum));
			sum = emul_amx_flush(emul_amx_flush(sum) + emul_amx_flush(even + odd));
			memcpy(&emul_amx.tile[c][m][4 * n], &sum, sizeof(sum));
		}
	}
}

#endif
