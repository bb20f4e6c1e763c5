/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cpu-kernels.h - what an instruction set brings to the CPU domain.
 *
 * The order of every sum is decided here, once, for all of them, and is that of
 * docs/hardware.md: a dot product is cut into chunks of NDPI_CHUNK inputs, a chunk is
 * one chain of multiply-adds from zero, ascending, and chunks are added in
 * ascending order.  y is such a dot product over the neurons of a job's blocks.
 * Neither the number of tokens nor that of threads enters, so a token's result has the
 * same bits whatever its batch.
 *
 * AMX has an order of its own within a chunk (cpu-amx.c), and is for many tokens only: a
 * token has some bits in small batches and others in large ones, unless the domain is opened
 * as deterministic.
 *
 * These are not the chip's kernels (qemu-device/chip): those work block after block
 * for one engine, because an NDP DIMM does; here all threads work on one expert, on
 * disjoint h first and on disjoint y then, and gate and up pass together.  The chip must
 * not change its bits, these may as hardware does.
 */
#ifndef NDP_CPU_KERNELS_H
#define NDP_CPU_KERNELS_H

#include <ndp/cpu.h>

enum {
	NDPI_ROWS = NDP_BLOCK_ROWS,	/* of a panel, outputs of a tile of down */
	NDPI_PAIR_BYTES = 4 * NDPI_ROWS,	/* two inputs of 32 rows */
	NDPI_CHUNK = 256,		/* inputs */
	NDPI_GROUP = NDPI_CHUNK / NDPI_ROWS,	/* blocks of a chunk of neurons */
	NDPI_TILE_BYTES = NDPI_ROWS / 2 * NDPI_PAIR_BYTES,	/* 32 rows of 32 inputs */
};

/*
 * Weights that will be wanted soon, fetched while those at hand are worked on: at pair p of
 * piece b the line at @first + b * @stride + p * @step, from piece @split on at
 * @second + (b - @split) * @stride + p * @step; with a @step of more than a line the next
 * line, too.
 */
struct ndpi_ahead {
	const uint8_t *first, *second;
	uint32_t split;
	size_t stride, step;
};

/* What becomes of a chain of multiply-adds. */
enum ndpi_store {
	NDPI_SET,	/* out = the chain from zero */
	NDPI_ADD,	/* out += the chain from zero */
	NDPI_CONTINUE,	/* out = the chain from out */
};

/*
 * Inputs (x and h) are packed for the kernels: [chunk][tile of tokens][k][token of the tile],
 * elements of @elem_bytes for each k (pack() may order 32 k and their tokens otherwise).
 */
struct ndpi_cpu_kernels {
	enum ndp_isa isa;
	uint32_t tile_tokens;	/* most of a tile */
	uint32_t both_tokens;	/* most for both(); 0: there is none */
	uint32_t elem_bytes;
	uint32_t least_tokens;	/* of a batch and a tile; less is for @few */
	const struct ndpi_cpu_kernels *few;

	/* Before and after any number of multiply() in a thread; NULL: nothing is to be done. */
	void (*begin)(void);
	void (*end)(void);
	/* Column @t of a packed tile of @tokens: @n elements of @src, then zeroes up to @padded. */
	void (*pack)(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *src, uint32_t n,
		     uint32_t padded);
	/*
	 * The same for columns @t to @t + 7, without padding: @n is a multiple of 16.  Faster than
	 * one after the other; may be NULL.
	 */
	void (*pack8)(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *const *src,
		      uint32_t n);
	/* h = bf16(act(g, u)) of a token's 32 neurons, packed as pack() would. */
	void (*act)(void *dst, uint32_t tokens, uint32_t t, const float *g, const float *u,
		    int act, float alpha, float limit);
	/*
	 * A chain over @pieces pieces of 32 inputs, @stride apart, of 32 rows: a chunk of a panel,
	 * or the tiles of down of some blocks for 32 outputs.  out[t * ld + m].
	 */
	void (*multiply)(const uint8_t *w, size_t stride, uint32_t pieces, const void *in,
			 uint32_t tokens, float *out, size_t ld, enum ndpi_store store,
			 const struct ndpi_ahead *ahead);
	/*
	 * Two times multiply(), side by side: a chunk of gate and of up, or tiles of down for
	 * two times 32 outputs.  Few tokens wait for memory, which two streams keep busier than
	 * one.  ld is 32; what is fetched for the first is fetched for the second, too, as far
	 * away as this is; @ahead's step is that of pair rows.
	 */
	void (*both)(const uint8_t *gate, const uint8_t *up, size_t stride, uint32_t pieces,
		     const void *in, uint32_t tokens, float *g, float *u, enum ndpi_store store,
		     const struct ndpi_ahead *ahead);
};

extern const struct ndpi_cpu_kernels ndpi_cpu_scalar;
#ifdef __x86_64__
extern const struct ndpi_cpu_kernels ndpi_cpu_avx2;
extern const struct ndpi_cpu_kernels ndpi_cpu_avx512;
extern const struct ndpi_cpu_kernels ndpi_cpu_amx;

/* The CPU has AMX-BF16 and the kernel lets this process use it, from now on. */
bool ndpi_cpu_amx_permitted(void);

/* h of @n (multiple of 16) neurons as BF16. */
void ndpi_cpu_avx2_act(ndp_bf16 *h, const float *g, const float *u, uint32_t n, int act,
		       float alpha, float limit);
/* pack8() of pairs. */
void ndpi_cpu_avx2_pack8(void *dst, uint32_t tokens, uint32_t t, const ndp_bf16 *const *src,
			 uint32_t n);
#endif

/* cpu.c, for tests: kernels that dispatch would not choose, nodes that are not there. */
int ndpi_cpu_open_with(struct ndp_cpu **cpu, const struct ndp_cpu_options *options,
		       const struct ndpi_cpu_kernels *kernels, uint32_t nodes,
		       struct ndp_error *err);

#endif
