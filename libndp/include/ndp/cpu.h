/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cpu.h - expert FFNs on the host's CPUs, on the neuron blocks that NDP DIMMs
 * compute on (ndp/pack.h), in place.
 *
 * y[t] = down . bf16(act(gate . x[r(t)], up . x[r(t)])), products of BF16, sums in
 * FP32, over the neurons of a range of blocks.  The result depends neither on the
 * number of threads nor on what else is in the same call; it may differ in the
 * last bits between instruction sets and, unless @deterministic, between batches of
 * less than 16 tokens and others (AMX, and libraries if there were any: this version has
 * its own kernels only).
 *
 * Threads: a struct ndp_cpu may be used by several threads at once; their calls
 * share its workers.
 */
#ifndef NDP_CPU_H
#define NDP_CPU_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_cpu;

enum ndp_isa {
	NDP_ISA_BEST,		/* that this CPU runs */
	NDP_ISA_SCALAR,
	NDP_ISA_AVX2,		/* AVX2, FMA */
	NDP_ISA_AVX512_BF16,
	NDP_ISA_AMX_BF16,	/* from 16 tokens on, AVX512-BF16 below */
};

struct ndp_cpu_options {
	uint32_t threads;	/* with the caller's; 0: one for each CPU the process may use */
	bool pin;		/* workers stay on CPUs of their NUMA node */
	enum ndp_isa isa;
	bool deterministic;	/* same bits for a token whatever its batch; slower for many */
};

/*
 * @options NULL: all zero.  -EOPNOTSUPP: this CPU lacks the instruction set, or the kernel
 * does not permit it.  Where there is AMX, NDP_ISA_BEST without @deterministic asks the
 * kernel for the process's permission to use it, which makes signal frames 8 KiB larger.
 */
int ndp_cpu_open(struct ndp_cpu **cpu, const struct ndp_cpu_options *options,
		 struct ndp_error *err);
void ndp_cpu_close(struct ndp_cpu *cpu);

struct ndp_cpu_info {
	enum ndp_isa isa;
	uint32_t threads;
	uint32_t nodes;		/* NUMA nodes that they are on */
};
void ndp_cpu_info(const struct ndp_cpu *cpu, struct ndp_cpu_info *info);
/* "scalar", "avx2", "avx512-bf16", "amx-bf16" */
const char *ndp_isa_name(enum ndp_isa isa);

/* The neuron blocks [first, first + nr_blocks) of one expert for some tokens. */
struct ndp_cpu_job {
	const void *blocks;	/* block 0 of the expert, packed, 64-byte aligned */
	struct ndp_expert_shape shape;
	uint32_t first;
	uint32_t nr_blocks;	/* 0 with first 0: all */
	int act;		/* NDP_ACT_* (ndp/device.h) */
	float alpha;		/* of the clamped SwiGLU */
	float limit;
	const ndp_bf16 *x;	/* rows of h_in */
	size_t ldx;		/* elements between rows */
	const uint32_t *rows;	/* [tokens] rows of x, NULL: 0, 1, 2... */
	uint32_t tokens;	/* 0: nothing is read or written */
	float *y;		/* [tokens][ldy], columns below h_out are written, not added to */
	size_t ldy;		/* elements between rows */
	int node;		/* NUMA node of the blocks, -1: unknown */
};

/*
 * Runs @n jobs and returns when all are done; the caller's thread works, too.
 * @poll (may be NULL) is called by the caller's thread between pieces of work,
 * every few hundred microseconds at most, for what else is to be looked after.
 * Memory for intermediate results is kept in @cpu and only grows.  -ENOMEM;
 * -EINVAL: a shape, alignment or range that cannot be, before anything is written.
 */
int ndp_cpu_ffn(struct ndp_cpu *cpu, const struct ndp_cpu_job *jobs, uint32_t n,
		void (*poll)(void *arg), void *arg);

/* @fn(arg, i) for all i < n, on all threads, in no order. */
void ndp_cpu_for(struct ndp_cpu *cpu, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);

#ifdef __cplusplus
}
#endif

#endif
