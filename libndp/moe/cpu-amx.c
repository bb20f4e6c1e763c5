// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-amx.c - the kernels for many tokens on CPUs with AMX-BF16 (Sapphire Rapids and later).
 *
 * A piece of weights, 16 pairs of inputs of 32 rows, is two tiles of AMX as it lies in
 * memory: 16 rows of 64 bytes, 128 apart.  Tokens are the rows of the other operand, 32
 * inputs of up to 16 tokens, and two of these share the weights' tiles:
 *
 *	C[token][row] += A[token][pair] . B[pair][row]
 *
 * All tiles are full ones.  Of 17 to 31 tokens the second tile is the last 16 tokens:
 * those in both get the same bits twice, and one configuration serves all.  Fewer than 16
 * tokens are the AVX-512 kernels', which need no more than their share of registers then.
 *
 * TDPBF16PS sums the even inputs of a piece and the odd ones from zero, adds both sums, and
 * the result to C; it rounds to nearest even, takes denormal inputs for zero and gives
 * zero for denormal results, whatever MXCSR says (Intel SDM, volume 2, TDPBF16PS).  So a
 * chunk of up to 8 pieces is rounded 25 times at most on the way, not 256 times, and
 * the error bound of the other paths holds.
 *
 * The tiles of a thread are configured from begin() to end(), and must not stay so: with
 * tiles in use 8 KiB more are saved at each context switch.
 *
 * Unit tests compile this file over plain C models of its intrinsics: there are few
 * machines with AMX.
 */
#ifdef __x86_64__
#ifdef NDPI_CPU_AMX_EMULATION
#include NDPI_CPU_AMX_EMULATION
#else
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu-kernels.h"

#include <string.h>

#ifndef NDPI_CPU_AMX_EMULATION
#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
	"avx2,fma,avx512f,avx512bw,avx512vl,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")
#endif
#endif

enum {
	TILE_ROWS = 16,
	TILE_ROW_BYTES = 64,
	MAX_TILE = 2 * TILE_ROWS,	/* tokens */
};

/* Names of tile registers; intrinsics take literal numbers only.  C_token_row. */
#define C_0_0 0
#define C_0_1 1
#define C_1_0 2
#define C_1_1 3
#define A_0 4
#define A_1 5
#define B_0 6
#define B_1 7

/* What LDTILECFG reads: palette 1, all eight tiles at their full size. */
static const struct {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
} config __attribute__((aligned(64))) = {
	.palette = 1,
	.row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
	.rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

static void begin(void)
{
	_tile_loadconfig(&config);
}

static void end(void)
{
	_tile_release();
}

/* [piece][token][32 inputs] */
static void pack(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *src, uint32_t n,
		 uint32_t padded)
{
	ndp_bf16 *x = (ndp_bf16 *)dst + (size_t)t * NDPI_ROWS;

	for (uint32_t k = 0; k < padded; k += NDPI_ROWS, x += (size_t)tokens * NDPI_ROWS) {
		if (k + NDPI_ROWS <= n) {
			memcpy(x, src + k, NDPI_ROWS * sizeof(*x));
			continue;
		}
		memset(x, 0, NDPI_ROWS * sizeof(*x));
		if (k < n)
			memcpy(x, src + k, (n - k) * sizeof(*x));
	}
}

static void act(void *dst, uint32_t tokens, uint32_t t, const float *g, const float *u, int kind,
		float alpha, float limit)
{
	(void)tokens;
	ndpi_cpu_avx2_act((ndp_bf16 *)dst + (size_t)t * NDPI_ROWS, g, u, NDPI_ROWS, kind, alpha,
			  limit);
}

static void fetch(const uint8_t *next, size_t step)
{
	for (uint32_t p = 0; p < NDPI_ROWS / 2; p++, next += step) {
		__builtin_prefetch(next, 0, 3);
		if (step > 64)
			__builtin_prefetch(next + 64, 0, 3);
	}
}

/* 16 tokens, which are all. */
static void chain_one(const uint8_t *w, size_t stride, uint32_t pieces, const uint8_t *x,
		      const struct ndpi_ahead *ahead)
{
	const uint8_t *next = ahead->first;

	for (uint32_t b = 0; b < pieces; b++, w += stride, next += ahead->stride) {
		if (b == ahead->split)
			next = ahead->second;
		_tile_loadd(A_0, x, TILE_ROW_BYTES);
		_tile_loadd(B_0, w, NDPI_PAIR_BYTES);
		_tile_dpbf16ps(C_0_0, A_0, B_0);
		_tile_loadd(B_1, w + 64, NDPI_PAIR_BYTES);
		_tile_dpbf16ps(C_0_1, A_0, B_1);
		fetch(next, ahead->step);
		x += TILE_ROWS * TILE_ROW_BYTES;
	}
}

/* The first 16 tokens and the last 16. */
static void chain_two(const uint8_t *w, size_t stride, uint32_t pieces, const uint8_t *x,
		      uint32_t tokens, const struct ndpi_ahead *ahead)
{
	const size_t last = (tokens - TILE_ROWS) * TILE_ROW_BYTES;
	const uint8_t *next = ahead->first;

	for (uint32_t b = 0; b < pieces; b++, w += stride, next += ahead->stride) {
		if (b == ahead->split)
			next = ahead->second;
		_tile_loadd(A_0, x, TILE_ROW_BYTES);
		_tile_loadd(B_0, w, NDPI_PAIR_BYTES);
		_tile_dpbf16ps(C_0_0, A_0, B_0);
		_tile_loadd(B_1, w + 64, NDPI_PAIR_BYTES);
		_tile_dpbf16ps(C_0_1, A_0, B_1);
		_tile_loadd(A_1, x + last, TILE_ROW_BYTES);
		_tile_dpbf16ps(C_1_0, A_1, B_0);
		_tile_dpbf16ps(C_1_1, A_1, B_1);
		fetch(next, ahead->step);
		x += (size_t)tokens * TILE_ROW_BYTES;
	}
}

/* @tokens: TILE_ROWS to MAX_TILE. */
static void multiply(const uint8_t *w, size_t stride, uint32_t pieces, const void *in,
		     uint32_t tokens, float *out, size_t ld, enum ndpi_store store,
		     const struct ndpi_ahead *ahead)
{
	float sum[MAX_TILE][NDPI_ROWS] __attribute__((aligned(64)));
	float *to = store == NDPI_ADD ? sum[0] : out;
	size_t row = (store == NDPI_ADD ? NDPI_ROWS : ld) * sizeof(float);
	float *last = to + (tokens - TILE_ROWS) * (row / sizeof(float));

	/* Intrinsics do not say that they read memory, which has to be written by now. */
	__asm__ volatile("" : : : "memory");
	if (store == NDPI_CONTINUE) {
		_tile_loadd(C_0_0, to, row);
		_tile_loadd(C_0_1, to + TILE_ROWS, row);
		_tile_loadd(C_1_0, last, row);
		_tile_loadd(C_1_1, last + TILE_ROWS, row);
	} else {
		_tile_zero(C_0_0);
		_tile_zero(C_0_1);
		_tile_zero(C_1_0);
		_tile_zero(C_1_1);
	}
	if (tokens > TILE_ROWS)
		chain_two(w, stride, pieces, in, tokens, ahead);
	else
		chain_one(w, stride, pieces, in, ahead);
	_tile_stored(C_0_0, to, row);
	_tile_stored(C_0_1, to + TILE_ROWS, row);
	if (tokens > TILE_ROWS) {
		_tile_stored(C_1_0, last, row);
		_tile_stored(C_1_1, last + TILE_ROWS, row);
	}
	if (store != NDPI_ADD)
		return;
	for (uint32_t t = 0; t < tokens; t++)
		for (uint32_t m = 0; m < NDPI_ROWS; m++)
			out[t * ld + m] += sum[t][m];
}

/*
 * Tiles have at least half of their most tokens, since sizes differ by one at most; with
 * TILE_ROWS or more in all that is what multiply() wants.
 */
const struct ndpi_cpu_kernels ndpi_cpu_amx = {
	.isa = NDP_ISA_AMX_BF16,
	.tile_tokens = MAX_TILE,
	.elem_bytes = sizeof(ndp_bf16),
	.least_tokens = TILE_ROWS,
	.few = &ndpi_cpu_avx512,
	.begin = begin,
	.end = end,
	.pack = pack,
	.act = act,
	.multiply = multiply,
};

#ifndef NDPI_CPU_AMX_EMULATION
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/*
 * CPUID says what the CPU has; the kernel (from 5.16 on) whether it looks after it, and gives
 * tiles to processes that ask (Linux, Documentation/arch/x86/xstate.rst).  It refuses where
 * a thread's alternate signal stack is too small for them.
 */
bool ndpi_cpu_amx_permitted(void)
{
	enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
	unsigned int a, b, c, d;

	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (AMX_BF16 | AMX_TILE)) !=
	    (AMX_BF16 | AMX_TILE))
		return false;
	return !syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA);
}
#endif
#endif /* __x86_64__ */
