// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu_dot.c - the FFN as one dot product for each row and token, over row-major BF16
 * weights as they are in model files: what engines without packed weights do.
 *
 * This is a rival of our own, not ggml: it stands in where the distribution's libggml
 * cannot run.  Like ggml's BF16 dot product it uses VDPBF16PS where there is one, else
 * widens to FP32; rows are dealt to threads, and each row meets all tokens while it is
 * in the cache.
 */
#include "cpu.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

typedef float (*dot_product)(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n);

struct dot {
	struct cpu_setup s;
	dot_product dot;
	const char *how;
	ndp_bf16 **m[3];	/* gate, up, down: [experts] */
	ndp_bf16 *h;
	float *g, *u;		/* [tokens][neurons] */
	unsigned int expert;
	uint32_t tokens;
	const ndp_bf16 *x;
	float *y;
};

__attribute__((target("avx512f,avx512bf16,avx512bw,avx512vl")))
static float dot_avx512(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n)
{
	__m512 s[4] = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
			_mm512_setzero_ps() };
	uint32_t i = 0;

	for (; i + 128 <= n; i += 128) {
#pragma GCC unroll 4
		for (int k = 0; k < 4; k++)
			s[k] = _mm512_dpbf16_ps(s[k],
						(__m512bh)_mm512_loadu_si512(a + i + 32 * k),
						(__m512bh)_mm512_loadu_si512(b + i + 32 * k));
	}
	for (; i < n; i += 32) /* n is a multiple of 32 */
		s[0] = _mm512_dpbf16_ps(s[0], (__m512bh)_mm512_loadu_si512(a + i),
					(__m512bh)_mm512_loadu_si512(b + i));
	return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]),
						  _mm512_add_ps(s[2], s[3])));
}

__attribute__((target("avx2,fma")))
static float dot_avx2(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n)
{
	__m256 s[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
			_mm256_setzero_ps() };
	float f[8], sum = 0;

	for (uint32_t i = 0; i < n; i += 32) {
#pragma GCC unroll 4
		for (int k = 0; k < 4; k++) {
			__m128i p = _mm_loadu_si128((const __m128i *)(a + i + 8 * k));
			__m128i q = _mm_loadu_si128((const __m128i *)(b + i + 8 * k));
			__m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(p), 16);
			__m256i w = _mm256_slli_epi32(_mm256_cvtepu16_epi32(q), 16);

			s[k] = _mm256_fmadd_ps(_mm256_castsi256_ps(v), _mm256_castsi256_ps(w), s[k]);
		}
	}
	_mm256_storeu_ps(f, _mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
	for (int k = 0; k < 8; k++)
		sum += f[k];
	return sum;
}

static const char *describe(void *r)
{
	return ((struct dot *)r)->how;
}

static void *open_dot(const struct cpu_setup *s, const char **why)
{
	size_t weights = (size_t)s->hidden * s->neurons * sizeof(ndp_bf16);
	struct dot *d = calloc(1, sizeof(*d));
	bool wide = !s->isa || strstr(s->isa, "bf16");

	if (!d)
		bench_die("out of memory");
	d->s = *s;
	if (wide && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl")) {
		d->dot = dot_avx512;
		d->how = "dot products of our own, avx512-bf16";
	} else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
		d->dot = dot_avx2;
		d->how = "dot products of our own, avx2";
	} else {
		*why = "there is no AVX2";
		free(d);
		return NULL;
	}
	for (int i = 0; i < 3; i++) {
		d->m[i] = calloc(s->experts, sizeof(*d->m[i]));
		if (!d->m[i])
			bench_die("out of memory");
		for (unsigned int e = 0; e < s->experts; e++)
			d->m[i][e] = cpu_alloc(weights);
	}
	d->h = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*d->h));
	d->g = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*d->g));
	d->u = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*d->u));
	return d;
}

static void load(void *r, unsigned int e, const ndp_bf16 *gate, const ndp_bf16 *up,
		 const ndp_bf16 *down)
{
	struct dot *d = r;
	const ndp_bf16 *const from[3] = { gate, up, down };

	for (int i = 0; i < 3; i++)
		memcpy(d->m[i][e], from[i],
		       (size_t)d->s.hidden * d->s.neurons * sizeof(ndp_bf16));
}

static void hidden_part(void *arg, unsigned int i)
{
	struct dot *d = arg;
	uint32_t begin, end, k = d->s.hidden, neurons = d->s.neurons;

	cpu_share(neurons, i, d->s.threads, &begin, &end);
	for (uint32_t n = begin; n < end; n++) {
		for (uint32_t t = 0; t < d->tokens; t++) {
			d->g[(size_t)t * neurons + n] = d->dot(
				d->m[0][d->expert] + (size_t)n * k, d->x + (size_t)t * k, k);
			d->u[(size_t)t * neurons + n] = d->dot(
				d->m[1][d->expert] + (size_t)n * k, d->x + (size_t)t * k, k);
		}
	}
	for (uint32_t t = 0; t < d->tokens; t++) {
		size_t at = (size_t)t * neurons + begin;

		cpu_silu_mul(d->h + at, d->g + at, d->u + at, end - begin);
	}
}

static void output_part(void *arg, unsigned int i)
{
	struct dot *d = arg;
	uint32_t begin, end, k = d->s.neurons;

	cpu_share(d->s.hidden, i, d->s.threads, &begin, &end);
	for (uint32_t j = begin; j < end; j++)
		for (uint32_t t = 0; t < d->tokens; t++)
			d->y[(size_t)t * d->s.hidden + j] = d->dot(
				d->m[2][d->expert] + (size_t)j * k, d->h + (size_t)t * k, k);
}

static void run(void *r, unsigned int expert, const ndp_bf16 *x, uint32_t tokens, float *y)
{
	struct dot *d = r;

	d->expert = expert;
	d->tokens = tokens;
	d->x = x;
	d->y = y;
	bench_team_run(d->s.team, hidden_part, d);
	bench_team_run(d->s.team, output_part, d);
}

static void close_dot(void *r)
{
	struct dot *d = r;
	size_t weights = (size_t)d->s.hidden * d->s.neurons * sizeof(ndp_bf16);

	for (int i = 0; i < 3; i++) {
		for (unsigned int e = 0; e < d->s.experts; e++)
			cpu_free(d->m[i][e], weights);
		free(d->m[i]);
	}
	cpu_free(d->h, (size_t)d->s.max_tokens * d->s.neurons * sizeof(*d->h));
	cpu_free(d->g, (size_t)d->s.max_tokens * d->s.neurons * sizeof(*d->g));
	cpu_free(d->u, (size_t)d->s.max_tokens * d->s.neurons * sizeof(*d->u));
	free(d);
}

const struct cpu_runner cpu_dot = {
	.name = "dot",
	.describe = describe,
	.open = open_dot,
	.load = load,
	.run = run,
	.close = close_dot,
};
