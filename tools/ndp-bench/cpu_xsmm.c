// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu_xsmm.c - the FFN by libxsmm's BF16 kernels, compiled at run time for the shapes.
 *
 * Weights in its VNNI order, in panels of 64 rows, [rows / 64][k / 2][64][2], which was
 * the fastest of 16, 32, 64 and 128.  One kernel call runs over a chunk of k for up to
 * 32 tokens; blocks of tokens pass over a chunk while it is in the cache.
 *
 * libxsmm 1.17 has no kernels for AMX: its newest target is "cpx", AVX512-BF16.
 */
#include "cpu.h"

#include <libxsmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PANEL = 64, CHUNK = 512, TOKENS = 32 };

struct xsmm {
	struct cpu_setup s;
	uint32_t panel;		/* rows */
	uint32_t chunk, block;	/* k, tokens */
	ndp_bf16 **gate, **up, **down;
	ndp_bf16 *h;		/* [tokens][neurons] */
	float *g;		/* of each thread: [2][tokens][panel] */
	uint32_t tokens;
	/* [k: hidden, its rest, neurons, its rest][tokens: whole block or rest][add] */
	libxsmm_bsmmfunction in[2][2][2], out[2][2][2];
	/* arguments of a run */
	unsigned int expert;
	const ndp_bf16 *x;
	float *y;
};

static const char *describe(void *r)
{
	static char text[80];

	(void)r;
	snprintf(text, sizeof(text), "libxsmm %s, %s", LIBXSMM_VERSION,
		 libxsmm_get_target_arch());
	return text;
}

static void *open_xsmm(const struct cpu_setup *s, const char **why)
{
	struct xsmm *x = calloc(1, sizeof(*x));
	size_t weights = (size_t)s->hidden * s->neurons * sizeof(ndp_bf16);

	if (!x)
		bench_die("out of memory");
	libxsmm_init();
	if (s->isa)
		libxsmm_set_target_arch(!strcmp(s->isa, "avx2") ? "hsw" :
					!strcmp(s->isa, "scalar") ? "snb" : "cpx");
	x->s = *s;
	x->panel = PANEL;
	x->chunk = CHUNK;
	x->block = TOKENS;
	if (s->hidden % x->panel || s->neurons % x->panel) {
		*why = "the shape is not in whole panels";
		free(x);
		return NULL;
	}
	if (!libxsmm_bsmmdispatch(PANEL, 1, CHUNK, NULL, NULL, NULL, NULL, NULL,
				  &(int){ LIBXSMM_GEMM_FLAG_VNNI_A }, NULL)) {
		*why = "libxsmm makes no BF16 kernels on this CPU";
		free(x);
		return NULL;
	}
	x->gate = calloc(3 * s->experts, sizeof(*x->gate));
	if (!x->gate)
		bench_die("out of memory");
	x->up = x->gate + s->experts;
	x->down = x->up + s->experts;
	for (unsigned int e = 0; e < 3 * s->experts; e++)
		x->gate[e] = cpu_alloc(weights);
	x->h = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*x->h));
	x->g = cpu_alloc((size_t)s->threads * 2 * s->max_tokens * x->panel * sizeof(*x->g));
	return x;
}

static void pack(ndp_bf16 *dst, const ndp_bf16 *src, uint32_t rows, uint32_t k, uint32_t panel)
{
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t i = 0; i < k; i++)
			dst[((size_t)(r / panel) * (k / 2) + i / 2) * 2 * panel +
			    r % panel * 2 + i % 2] = src[(size_t)r * k + i];
}

static void load(void *r, unsigned int e, const ndp_bf16 *gate, const ndp_bf16 *up,
		 const ndp_bf16 *down)
{
	struct xsmm *x = r;

	pack(x->gate[e], gate, x->s.neurons, x->s.hidden, x->panel);
	pack(x->up[e], up, x->s.neurons, x->s.hidden, x->panel);
	pack(x->down[e], down, x->s.hidden, x->s.neurons, x->panel);
}

static libxsmm_bsmmfunction kernel(uint32_t m, uint32_t n, uint32_t k, uint32_t ldb, uint32_t ldc,
				   bool add)
{
	const libxsmm_blasint lda = (libxsmm_blasint)m, b = (libxsmm_blasint)ldb,
		c = (libxsmm_blasint)ldc;
	const int flags = LIBXSMM_GEMM_FLAG_VNNI_A;
	const float alpha = 1, beta = add;
	libxsmm_bsmmfunction f;

	if (!n || !k)
		return NULL;
	f = libxsmm_bsmmdispatch((libxsmm_blasint)m, (libxsmm_blasint)n, (libxsmm_blasint)k,
				 &lda, &b, &c, &alpha, &beta, &flags, NULL);
	if (!f)
		bench_die("libxsmm makes no BF16 kernel of %u x %u x %u here", m, n, k);
	return f;
}

static void prepare(void *r, uint32_t tokens)
{
	struct xsmm *x = r;
	uint32_t block = tokens < x->block ? tokens : x->block;

	x->tokens = tokens;
	for (int tail = 0; tail < 2; tail++) {
		uint32_t n = tail ? tokens % block : block;

		for (int add = 0; add < 2; add++) {
			for (int rest = 0; rest < 2; rest++) {
				uint32_t ki = rest ? x->s.hidden % x->chunk : x->chunk;
				uint32_t ko = rest ? x->s.neurons % x->chunk : x->chunk;

				if (!rest && x->s.hidden < x->chunk)
					ki = 0;
				if (!rest && x->s.neurons < x->chunk)
					ko = 0;
				x->in[rest][tail][add] = kernel(x->panel, n, ki, x->s.hidden,
								x->panel, add);
				x->out[rest][tail][add] = kernel(x->panel, n, ko, x->s.neurons,
								 x->s.hidden, add);
			}
		}
	}
}

/* out[t * ldc] = panel times all tokens */
static void multiply(const struct xsmm *x, libxsmm_bsmmfunction f[2][2][2], const ndp_bf16 *panel,
		     uint32_t k, const ndp_bf16 *b, uint32_t ldb, float *out, uint32_t ldc)
{
	uint32_t block = x->tokens < x->block ? x->tokens : x->block;

	for (uint32_t at = 0; at < k; at += x->chunk) {
		int rest = at + x->chunk > k;

		for (uint32_t t = 0; t < x->tokens; t += block)
			f[rest][t + block > x->tokens][at > 0](panel + (size_t)at * x->panel,
							       b + (size_t)t * ldb + at,
							       out + (size_t)t * ldc);
	}
}

static void hidden_part(void *arg, unsigned int i)
{
	struct xsmm *x = arg;
	uint32_t begin, end, p = x->panel;
	float *g = x->g + (size_t)i * 2 * x->s.max_tokens * p;
	float *u = g + (size_t)x->s.max_tokens * p;

	cpu_share(x->s.neurons / p, i, x->s.threads, &begin, &end);
	for (uint32_t j = begin; j < end; j++) {
		size_t at = (size_t)j * p * x->s.hidden;

		multiply(x, x->in, x->gate[x->expert] + at, x->s.hidden, x->x, x->s.hidden, g, p);
		multiply(x, x->in, x->up[x->expert] + at, x->s.hidden, x->x, x->s.hidden, u, p);
		for (uint32_t t = 0; t < x->tokens; t++)
			cpu_silu_mul(x->h + (size_t)t * x->s.neurons + j * p, g + t * p, u + t * p,
				     p);
	}
}

static void output_part(void *arg, unsigned int i)
{
	struct xsmm *x = arg;
	uint32_t begin, end;

	cpu_share(x->s.hidden / x->panel, i, x->s.threads, &begin, &end);
	for (uint32_t j = begin; j < end; j++)
		multiply(x, x->out, x->down[x->expert] + (size_t)j * x->panel * x->s.neurons,
			 x->s.neurons, x->h, x->s.neurons, x->y + j * x->panel, x->s.hidden);
}

static void run(void *r, unsigned int expert, const ndp_bf16 *in, uint32_t tokens, float *y)
{
	struct xsmm *x = r;

	(void)tokens;
	x->expert = expert;
	x->x = in;
	x->y = y;
	bench_team_run(x->s.team, hidden_part, x);
	bench_team_run(x->s.team, output_part, x);
}

static void close_xsmm(void *r)
{
	struct xsmm *x = r;
	size_t weights = (size_t)x->s.hidden * x->s.neurons * sizeof(ndp_bf16);

	for (unsigned int e = 0; e < 3 * x->s.experts; e++)
		cpu_free(x->gate[e], weights);
	cpu_free(x->h, (size_t)x->s.max_tokens * x->s.neurons * sizeof(*x->h));
	cpu_free(x->g, (size_t)x->s.threads * 2 * x->s.max_tokens * x->panel * sizeof(*x->g));
	free(x->gate);
	free(x);
}

const struct cpu_runner cpu_xsmm = {
	.name = "libxsmm",
	.describe = describe,
	.open = open_xsmm,
	.load = load,
	.prepare = prepare,
	.run = run,
	.close = close_xsmm,
};
