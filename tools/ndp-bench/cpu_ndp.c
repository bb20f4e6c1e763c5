// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu_ndp.c - the FFN by libndp, on neuron blocks; and what the others share:
 * memory and an activation.
 */
#include "cpu.h"

#include <math.h>
#include <ndp/cpu.h>
#include <ndp/device.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((size_t)2 << 20)

void *cpu_alloc(size_t bytes)
{
	void *p;

	bytes = (bytes + HUGE - 1) / HUGE * HUGE;
	if (posix_memalign(&p, HUGE, bytes))
		bench_die("no memory for %zu MiB of weights", bytes >> 20);
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 0, bytes);
	return p;
}

void cpu_free(void *p, size_t bytes)
{
	(void)bytes;
	free(p);
}

/* exp(-v) by 2^n and a polynomial, so that compilers make vectors of it. */
static inline float exp_minus(float v)
{
	float x = fminf(fmaxf(-v, -87), 87) * 1.44269504f, n = rintf(x), r = x - n, p;
	int32_t bits;

	p = 1.5403530e-4f;
	p = p * r + 1.3333558e-3f;
	p = p * r + 9.6181291e-3f;
	p = p * r + 5.5504109e-2f;
	p = p * r + 2.4022651e-1f;
	p = p * r + 6.9314718e-1f;
	p = p * r + 1;
	bits = ((int32_t)n + 127) << 23;
	memcpy(&x, &bits, sizeof(x));
	return p * x;
}

__attribute__((target_clones("arch=icelake-server", "arch=haswell", "default"), optimize("O3",
	"no-math-errno", "no-trapping-math")))
void cpu_silu_mul(ndp_bf16 *h, const float *g, const float *u, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float f = g[i] / (1 + exp_minus(g[i])) * u[i];
		uint32_t bits;

		memcpy(&bits, &f, sizeof(bits));
		h[i] = (ndp_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
}

struct ndp {
	struct cpu_setup s;
	struct ndp_expert_shape shape;
	struct ndp_cpu *cpu;
	size_t bytes;
	void **blocks;
};

static const char *describe(void *r)
{
	struct ndp_cpu_info info;

	ndp_cpu_info(((struct ndp *)r)->cpu, &info);
	return ndp_isa_name(info.isa);
}

static void *open_ndp(const struct cpu_setup *s, const char **why)
{
	struct ndp_cpu_options o = { .threads = s->threads };
	struct ndp *n = calloc(1, sizeof(*n));
	static struct ndp_error err;

	if (!n || !(n->blocks = calloc(s->experts, sizeof(*n->blocks))))
		bench_die("out of memory");
	for (enum ndp_isa isa = NDP_ISA_SCALAR; s->isa && isa <= NDP_ISA_AMX_BF16; isa++)
		if (!strcmp(s->isa, ndp_isa_name(isa)))
			o.isa = isa;
	n->s = *s;
	n->shape = (struct ndp_expert_shape){ s->hidden, s->hidden, s->neurons };
	n->bytes = ndp_expert_blocks(&n->shape) * ndp_expert_block_bytes(&n->shape);
	if (ndp_cpu_open(&n->cpu, &o, &err)) {
		*why = err.message;
		return NULL;
	}
	for (unsigned int e = 0; e < s->experts; e++)
		n->blocks[e] = cpu_alloc(n->bytes);
	return n;
}

static void load(void *r, unsigned int e, const ndp_bf16 *gate, const ndp_bf16 *up,
		 const ndp_bf16 *down)
{
	struct ndp *n = r;
	size_t block = ndp_expert_block_bytes(&n->shape);

	for (uint32_t b = 0; b < ndp_expert_blocks(&n->shape); b++)
		ndp_expert_pack_block((char *)n->blocks[e] + b * block, &n->shape, b, gate, up,
				      n->s.hidden, down, n->s.neurons);
}

static void run(void *r, unsigned int e, const ndp_bf16 *x, uint32_t tokens, float *y)
{
	struct ndp *n = r;
	struct ndp_cpu_job job = {
		.blocks = n->blocks[e],
		.shape = n->shape,
		.act = NDP_ACT_SILU_MUL,
		.x = x, .ldx = n->s.hidden, .tokens = tokens,
		.y = y, .ldy = n->s.hidden,
		.node = -1,
	};
	int err = ndp_cpu_ffn(n->cpu, &job, 1, NULL, NULL);

	if (err)
		bench_die("ndp_cpu_ffn: %s", strerror(-err));
}

static void close_ndp(void *r)
{
	struct ndp *n = r;

	for (unsigned int e = 0; e < n->s.experts; e++)
		cpu_free(n->blocks[e], n->bytes);
	ndp_cpu_close(n->cpu);
	free(n->blocks);
	free(n);
}

const struct cpu_runner cpu_ndp = {
	.name = "libndp",
	.describe = describe,
	.open = open_ndp,
	.load = load,
	.run = run,
	.close = close_ndp,
};
