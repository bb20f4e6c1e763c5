// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * data.c - see bench.h: random numbers and experts that repeat from run to run.
 */
#include "bench.h"

#include <math.h>
#include <ndp/device.h>
#include <stdlib.h>

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators". */
uint64_t bench_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* Neighbouring seeds give unrelated streams (the finalizer of splitmix64, Steele et al.). */
static uint64_t start(uint64_t seed)
{
	seed += 0x9e3779b97f4a7c15ull;
	seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9ull;
	seed = (seed ^ seed >> 27) * 0x94d049bb133111ebull;
	return (seed ^ seed >> 31) | 1;
}

/* Uniform in [-1, 1). */
static float uniform(uint64_t *state)
{
	return (float)(int32_t)(bench_random(state) >> 32) * 0x1p-31f;
}

void bench_random_f32(float *dst, size_t n, float scale, uint64_t seed)
{
	uint64_t state = start(seed);

	for (size_t i = 0; i < n; i++)
		dst[i] = scale * uniform(&state);
}

void bench_random_bf16(ndp_bf16 *dst, size_t n, float scale, uint64_t seed)
{
	uint64_t state = start(seed);

	for (size_t i = 0; i < n; i++)
		dst[i] = ndp_bf16_from_f32(scale * uniform(&state));
}

/*
 * Sums of H or I products with inputs of the order of one stay there when weights are
 * of the order of sqrt(3 / H) (the variance of a uniform number is a third).
 */
static void make_expert(void *blocks, const struct ndp_expert_shape *s, uint64_t seed)
{
	const size_t in = (size_t)NDP_BLOCK_ROWS * s->h_in, block = ndp_expert_block_bytes(s);
	ndp_bf16 *gate = malloc(in * sizeof(*gate)), *up = malloc(in * sizeof(*up));
	ndp_bf16 *down = malloc((size_t)s->h_out * NDP_BLOCK_ROWS * sizeof(*down));
	uint32_t n = ndp_expert_blocks(s);

	if (!gate || !up || !down)
		bench_die("out of memory");
	for (uint32_t b = 0; b < n; b++) {
		uint32_t left = s->neurons - b * NDP_BLOCK_ROWS;
		struct ndp_expert_shape one = *s;

		/* Block 0 of an expert that has no more than this block's neurons. */
		one.neurons = left < NDP_BLOCK_ROWS ? left : NDP_BLOCK_ROWS;
		bench_random_bf16(gate, in, sqrtf(3.f / s->h_in), seed * 1000003 + 3 * b);
		bench_random_bf16(up, in, sqrtf(3.f / s->h_in), seed * 1000003 + 3 * b + 1);
		bench_random_bf16(down, (size_t)s->h_out * NDP_BLOCK_ROWS,
				  sqrtf(3.f / s->neurons), seed * 1000003 + 3 * b + 2);
		ndp_expert_pack_block((char *)blocks + b * block, &one, 0, gate, up, s->h_in,
				      down, NDP_BLOCK_ROWS);
	}
	free(gate);
	free(up);
	free(down);
}

void bench_experts_make(struct bench_experts *e, uint32_t hidden, uint32_t neurons,
			unsigned int n, uint64_t seed)
{
	e->shape = (struct ndp_expert_shape){ hidden, hidden, neurons };
	e->n = n;
	e->bytes = (size_t)ndp_expert_blocks(&e->shape) * ndp_expert_block_bytes(&e->shape);
	e->blocks = calloc(n, sizeof(*e->blocks));
	if (!e->blocks)
		bench_die("out of memory");
	for (unsigned int i = 0; i < n; i++) {
		e->blocks[i] = ndp_host_alloc(e->bytes, -1);
		if (!e->blocks[i])
			bench_die("no memory for %u experts of %zu MiB", n, e->bytes >> 20);
		make_expert(e->blocks[i], &e->shape, seed + i);
	}
}

void bench_experts_free(struct bench_experts *e)
{
	for (unsigned int i = 0; i < e->n; i++)
		ndp_host_free(e->blocks[i], e->bytes);
	free(e->blocks);
}
