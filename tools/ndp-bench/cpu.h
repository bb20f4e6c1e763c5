/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * cpu.h - who computes the same expert FFN, each with weights in its own best format:
 * libndp, libxsmm, oneDNN, ggml, and a plain dot product.
 *
 *   y = down . bf16(silu(gate . x) * (up . x)), x [tokens][hidden] in BF16, y in FP32
 */
#ifndef NDP_BENCH_CPU_H
#define NDP_BENCH_CPU_H

#include "bench.h"

struct cpu_setup {
	uint32_t hidden, neurons;
	unsigned int experts;	/* more than caches hold, all of them together */
	uint32_t max_tokens;
	unsigned int threads;
	struct bench_team *team;	/* of that many */
	const char *isa;	/* for those who can choose; NULL: the best */
};

struct cpu_runner {
	const char *name;
	/* Version and instruction set of what open() made, for the report; may be NULL. */
	const char *(*describe)(void *r);
	/* NULL: cannot run here; *@why says what is missing. */
	void *(*open)(const struct cpu_setup *setup, const char **why);
	/* Row-major: gate, up [neurons][hidden], down [hidden][neurons]. */
	void (*load)(void *r, unsigned int expert, const ndp_bf16 *gate, const ndp_bf16 *up,
		     const ndp_bf16 *down);
	/* Whatever can be done once for a number of tokens; may be NULL. */
	void (*prepare)(void *r, uint32_t tokens);
	void (*run)(void *r, unsigned int expert, const ndp_bf16 *x, uint32_t tokens, float *y);
	void (*close)(void *r);
};

extern const struct cpu_runner cpu_ndp;
extern const struct cpu_runner cpu_xsmm;
extern const struct cpu_runner cpu_dnnl;
extern const struct cpu_runner cpu_ggml;
extern const struct cpu_runner cpu_dot;

/* The program that ggml runs in; NULL: none. */
extern const char *cpu_ggml_path;

/* Huge pages where there are any: the same for everybody. */
void *cpu_alloc(size_t bytes);
void cpu_free(void *p, size_t bytes);

/* Of @n things thread @i of @threads does [*begin, *end). */
static inline void cpu_share(uint32_t n, unsigned int i, unsigned int threads, uint32_t *begin,
			     uint32_t *end)
{
	*begin = (uint32_t)((uint64_t)n * i / threads);
	*end = (uint32_t)((uint64_t)n * (i + 1) / threads);
}

/* h = bf16(silu(g) * u) */
void cpu_silu_mul(ndp_bf16 *h, const float *g, const float *u, size_t n);

#endif
