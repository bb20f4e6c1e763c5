// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Expert FFNs on the CPU (ndp/cpu.h): every instruction set's path against FP64, within the bound
 * that is derived in qemu-device/chip/ndp_chip_impl.h, whose order of sums libndp/moe/cpu-kernels.h
 * shares (AMX rounds less often). AVX-512 and AMX run as models of their instructions
 * (avx512_emul.h, amx_emul.h) everywhere, and really where there is such a CPU.
 */
#include "../../libndp/moe/cpu-kernels.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "chip_ref.h"
#include <ndp/ndp.h>

extern const struct ndpi_cpu_kernels ndpi_cpu_avx512_emulated;
extern const struct ndpi_cpu_kernels ndpi_cpu_amx_emulated;
/* cpu_amx_emulated.c */
extern int cpu_amx_configured(void);

struct path {
	const char *name;
	const struct ndpi_cpu_kernels *kernels;
	int flushes;	/* numbers below the normal ones */
};

static struct path paths[7];
static unsigned int nr_paths;
static enum ndp_isa best = NDP_ISA_SCALAR;	/* that this CPU really runs */

static void find_paths(void)
{
	struct ndp_cpu *cpu;
	struct ndp_cpu_options o = { .threads = 1 };

	paths[nr_paths++] = (struct path){ "scalar", &ndpi_cpu_scalar, 0 };
#ifdef __x86_64__
	o.isa = NDP_ISA_AVX2;
	if (!ndp_cpu_open(&cpu, &o, NULL)) {
		paths[nr_paths++] = (struct path){ "avx2", &ndpi_cpu_avx2, 0 };
		best = o.isa;
		ndp_cpu_close(cpu);
		/* its activation is AVX2's */
		paths[nr_paths++] = (struct path){ "avx512 emulated", &ndpi_cpu_avx512_emulated, 1 };
		paths[nr_paths++] = (struct path){ "amx emulated", &ndpi_cpu_amx_emulated, 1 };
	}
	o.isa = NDP_ISA_AVX512_BF16;
	if (!ndp_cpu_open(&cpu, &o, NULL)) {
		paths[nr_paths++] = (struct path){ "avx512", &ndpi_cpu_avx512, 1 };
		best = o.isa;
		ndp_cpu_close(cpu);
	}
	o.isa = NDP_ISA_AMX_BF16;
	if (!ndp_cpu_open(&cpu, &o, NULL)) {
		paths[nr_paths++] = (struct path){ "amx", &ndpi_cpu_amx, 1 };
		best = o.isa;
		ndp_cpu_close(cpu);
	}
#else
	(void)cpu;
	(void)o;
#endif
}

/* An expert, x for some tokens, and what must come out. */
struct problem {
	struct ref_ffn ffn;
	struct ref_act act;
	void *blocks;
	uint32_t rows_of_x, tokens;
	size_t ldx, ldy;
	uint16_t *x;
	float *y;
	struct ndp_cpu_job job;
};

static uint16_t *random_matrix(size_t n, uint64_t *seed)
{
	uint16_t *m = malloc(n * sizeof(*m));

	assert_non_null(m);
	for (size_t i = 0; i < n; i++)
		m[i] = ref_random_bf16(seed, -6, 0);
	return m;
}

/* Everything that is not to be read is a NaN, and so is y. */
static void make(struct problem *p, unsigned int h_in, unsigned int h_out, unsigned int neurons,
		 uint32_t tokens, uint64_t seed)
{
	struct ref_ffn *f = &p->ffn;

	memset(p, 0, sizeof(*p));
	*f = (struct ref_ffn){ .h_in = h_in, .h_out = h_out, .neurons = neurons };
	f->gate = random_matrix((size_t)neurons * h_in, &seed);
	f->up = random_matrix((size_t)neurons * h_in, &seed);
	f->down = random_matrix((size_t)neurons * h_out, &seed);
	p->blocks = aligned_alloc(64, ref_packed_bytes(f));
	assert_non_null(p->blocks);
	ref_pack(f, p->blocks);
	p->tokens = p->rows_of_x = tokens;
	p->ldx = h_in + 5;
	p->ldy = h_out + 3;
	p->x = malloc(tokens * p->ldx * sizeof(*p->x) + 1);
	p->y = malloc(tokens * p->ldy * sizeof(*p->y) + 1);
	memset(p->x, 0xff, tokens * p->ldx * sizeof(*p->x));
	for (uint32_t t = 0; t < tokens; t++)
		for (unsigned int k = 0; k < h_in; k++)
			p->x[t * p->ldx + k] = ref_random_bf16(&seed, -4, 1);
	p->act = (struct ref_act){ .act = NDP_CHIP_SILU };
	p->job = (struct ndp_cpu_job){
		.blocks = p->blocks,
		.shape = { .h_in = h_in, .h_out = h_out, .neurons = neurons },
		.act = NDP_ACT_SILU_MUL,
		.x = p->x, .ldx = p->ldx, .tokens = tokens, .y = p->y, .ldy = p->ldy,
		.node = -1,
	};
}

static void clear(struct problem *p)
{
	memset(p->y, 0xff, p->tokens * p->ldy * sizeof(*p->y));
}

static void drop(struct problem *p)
{
	free(p->ffn.gate);
	free(p->ffn.up);
	free(p->ffn.down);
	free(p->blocks);
	free(p->x);
	free(p->y);
}

static void run(const struct path *path, struct problem *p, uint32_t threads, uint32_t nodes)
{
	struct ndp_cpu_options o = { .threads = threads };
	struct ndp_cpu *cpu;

	assert_int_equal(ndpi_cpu_open_with(&cpu, &o, path->kernels, nodes, NULL), 0);
	clear(p);
	assert_int_equal(ndp_cpu_ffn(cpu, &p->job, 1, NULL, NULL), 0);
	ndp_cpu_close(cpu);
}

/* Tokens [first, first + n) against FP64; nothing beside y was written. */
static void check(const struct path *path, const struct problem *p, uint32_t first, uint32_t n)
{
	unsigned int h_out = p->ffn.h_out;
	double *want = malloc(h_out * sizeof(*want)), *error = malloc(h_out * sizeof(*error));

	for (uint32_t t = first; t < first + n; t++) {
		size_t row = p->job.rows ? p->job.rows[t] : t;
		const float *y = p->y + t * p->ldy;

		ref_ffn(&p->ffn, &p->act, p->x + row * p->ldx, path->flushes, want, error);
		for (unsigned int j = 0; j < h_out; j++) {
			if (fabs(y[j] - want[j]) <= error[j]) /* false for NaN */
				continue;
			print_error("%s, %u tokens: token %u column %u: got %.9g, wanted %.9g +- "
				    "%.3g\n", path->name, p->tokens, t, j, y[j], want[j], error[j]);
			fail();
		}
		for (size_t j = h_out; j < p->ldy; j++)
			assert_true(isnan(y[j]));
	}
	free(want);
	free(error);
}

/* ---- tests ------------------------------------------------------------ */

static void test_shapes(void **state)
{
	static const unsigned int shapes[][3] = {
		{ 100, 100, 36 }, { 1, 1, 1 }, { 64, 64, 32 }, { 65, 31, 33 }, { 300, 520, 300 },
		{ 768, 100, 290 }, { 257, 1100, 40 },
	};
	static const uint32_t tokens[] = { 1, 2, 5, 7, 13, 16, 17, 33 };

	(void)state;
	for (unsigned int s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		for (unsigned int n = 0; n < sizeof(tokens) / sizeof(tokens[0]); n++) {
			struct problem p;

			make(&p, shapes[s][0], shapes[s][1], shapes[s][2], tokens[n], s * 7 + n + 1);
			for (unsigned int i = 0; i < nr_paths; i++) {
				run(&paths[i], &p, 1 + n % 3, 0);
				check(&paths[i], &p, 0, tokens[n]);
			}
			drop(&p);
		}
	}
}

/* A token's result has the same bits in any batch, or in any that the same kernels do. */
static void test_token_counts(void **state)
{
	struct problem p;
	float *all;

	(void)state;
	make(&p, 100, 100, 36, 70, 3);
	all = malloc(70 * p.ldy * sizeof(*all));
	for (unsigned int i = 0; i < nr_paths; i++) {
		run(&paths[i], &p, 1, 0);
		check(&paths[i], &p, 0, 70);
		memcpy(all, p.y, 70 * p.ldy * sizeof(*all));
		for (uint32_t tokens = 1; tokens < 70; tokens++) {
			p.job.tokens = tokens;
			run(&paths[i], &p, 1, 0);
			if (tokens < paths[i].kernels->least_tokens)
				check(&paths[i], &p, 0, tokens);
			for (uint32_t t = 0; t < tokens; t++)
				assert_true(tokens < paths[i].kernels->least_tokens ||
					    !memcmp(p.y + t * p.ldy, all + t * p.ldy,
						    100 * sizeof(float)));
			for (size_t j = tokens * p.ldy; j < 70 * p.ldy; j++)
				assert_true(isnan(p.y[j]));
		}
		p.job.tokens = 70;
	}
	free(all);
	drop(&p);
}

static void test_many_tokens(void **state)
{
	struct problem p;

	(void)state;
	make(&p, 70, 40, 33, 1500, 5);
	for (unsigned int i = 0; i < nr_paths; i++) {
		run(&paths[i], &p, 2, 0);
		check(&paths[i], &p, 0, 1500);
	}
	drop(&p);
}

static void test_rows(void **state)
{
	uint32_t rows[25] = { 3, 3, 0, 8, 7, 1, 2, 8, 5, 24, 9, 9, 0, 4, 6, 11, 23, 22, 21, 1, 0 };
	struct problem p;

	(void)state;
	make(&p, 100, 64, 36, 25, 9);
	p.job.rows = rows;
	for (unsigned int i = 0; i < nr_paths; i++) {
		for (p.job.tokens = 9; p.job.tokens <= 25; p.job.tokens += 16) {
			run(&paths[i], &p, 2, 0);
			check(&paths[i], &p, 0, p.job.tokens);
		}
	}
	drop(&p);
}

static void test_clamped(void **state)
{
	struct problem p;

	(void)state;
	make(&p, 200, 100, 70, 27, 11);
	p.act = (struct ref_act){ NDP_CHIP_SWIGLU_CLAMP, 1.702f, 0.75f };
	p.job.act = NDP_ACT_CLAMPED_SWIGLU;
	p.job.alpha = 1.702f;
	p.job.limit = 0.75f;
	for (unsigned int i = 0; i < nr_paths; i++) {
		for (p.job.tokens = 8; p.job.tokens <= 27; p.job.tokens += 19) {
			run(&paths[i], &p, 2, 0);
			check(&paths[i], &p, 0, p.job.tokens);
		}
	}
	drop(&p);
}

/* Blocks [first, first + n) are the expert that has only their neurons. */
static void test_ranges(void **state)
{
	static const uint32_t ranges[][2] = { { 0, 1 }, { 1, 2 }, { 9, 1 }, { 3, 7 }, { 0, 10 } };
	struct problem p;
	struct ref_ffn all;

	(void)state;
	make(&p, 100, 90, 310, 20, 13);
	all = p.ffn;
	for (unsigned int r = 0; r < 5; r++) {
		unsigned int begin = ranges[r][0] * 32, end = begin + ranges[r][1] * 32;

		end = end < all.neurons ? end : all.neurons;
		p.job.first = ranges[r][0];
		p.job.nr_blocks = ranges[r][1];
		p.ffn.neurons = end - begin;
		p.ffn.gate = all.gate + begin * all.h_in;
		p.ffn.up = all.up + begin * all.h_in;
		p.ffn.down = malloc((size_t)p.ffn.neurons * all.h_out * sizeof(uint16_t));
		for (unsigned int j = 0; j < all.h_out; j++)
			memcpy(p.ffn.down + j * p.ffn.neurons, all.down + j * all.neurons + begin,
			       p.ffn.neurons * sizeof(uint16_t));
		for (unsigned int i = 0; i < nr_paths; i++) {
			for (p.job.tokens = 7; p.job.tokens <= 20; p.job.tokens += 13) {
				run(&paths[i], &p, 2, 0);
				check(&paths[i], &p, 0, p.job.tokens);
			}
		}
		free(p.ffn.down);
	}
	p.ffn = all;
	drop(&p);
}

/* The public report C5. */
static void test_case_c5(void **state)
{
	struct problem p;

	(void)state;
	make(&p, 100, 100, 36, 1, 1);
	for (unsigned int i = 0; i < 36 * 100; i++) {
		p.ffn.gate[i] = p.ffn.up[i] = 0x3c00; /* 1 / 128 */
		p.ffn.down[i] = 0x3f80;
	}
	for (unsigned int k = 0; k < 100; k++)
		p.x[k] = 0x3f80;
	ref_pack(&p.ffn, p.blocks);
	for (unsigned int i = 0; i < nr_paths; i++) {
		run(&paths[i], &p, 1, 0);
		for (unsigned int j = 0; j < 100; j++) /* h is rounded to BF16: 2^-9 of it */
			assert_true(fabs(p.y[j] - 15.07213) <= 15.07213 * ldexp(1, -9));
	}
	drop(&p);
}

/* Of every path's kernel: a chain that goes on is one chain, and one that is added is two. */
static void test_chains(void **state)
{
	enum { PIECES = 5, FIRST = 2, MAX = 32 };
	static uint16_t w[PIECES * NDPI_TILE_BYTES / 2] __attribute__((aligned(64)));
	static float x[PIECES * NDPI_ROWS * MAX] __attribute__((aligned(64)));
	static float one[MAX][40], two[MAX][40], part[MAX][40];
	const struct ndpi_ahead ahead = { (uint8_t *)w, (uint8_t *)w, 0, 0, 64 };
	uint16_t row[PIECES * NDPI_ROWS];
	uint64_t seed = 5;

	(void)state;
	for (unsigned int k = 0; k < sizeof(w) / sizeof(*w); k++)
		w[k] = ref_random_bf16(&seed, -6, 0);
	for (unsigned int k = 0; k < PIECES * NDPI_ROWS; k++)
		row[k] = ref_random_bf16(&seed, -6, 0);
	for (unsigned int i = 0; i < nr_paths; i++) {
		const struct ndpi_cpu_kernels *k = paths[i].kernels;
		uint32_t n = k->least_tokens ? k->least_tokens : 1;
		const uint8_t *rest = (uint8_t *)w + FIRST * NDPI_TILE_BYTES;

		for (; n <= k->tile_tokens; n++) {
			const uint8_t *second = (uint8_t *)x +
				(size_t)FIRST * NDPI_ROWS * n * k->elem_bytes;

			memset(one, 0xff, sizeof(one));
			memset(two, 0xff, sizeof(two));
			memset(x, 0xff, sizeof(x)); /* NaNs, which padding has to replace */
			for (uint32_t t = 0; t < n; t++)
				k->pack(x, n, t, row, PIECES * NDPI_ROWS - t, PIECES * NDPI_ROWS);
			if (k->begin)
				k->begin();
			k->multiply((uint8_t *)w, NDPI_TILE_BYTES, PIECES, x, n, one[0], 40,
				    NDPI_SET, &ahead);
			k->multiply((uint8_t *)w, NDPI_TILE_BYTES, FIRST, x, n, two[0], 40,
				    NDPI_SET, &ahead);
			memcpy(part, two, sizeof(two));
			k->multiply(rest, NDPI_TILE_BYTES, PIECES - FIRST, second, n, two[0], 40,
				    NDPI_CONTINUE, &ahead);
			assert_memory_equal(one, two, sizeof(one));
			for (uint32_t t = 0; t < n; t++)
				for (uint32_t m = 0; m < NDPI_ROWS; m++)
					assert_false(isnan(one[t][m]));
			k->multiply(rest, NDPI_TILE_BYTES, PIECES - FIRST, second, n, two[0], 40,
				    NDPI_SET, &ahead);
			for (uint32_t t = 0; t < n; t++)
				for (uint32_t m = 0; m < NDPI_ROWS; m++)
					two[t][m] += part[t][m];
			k->multiply(rest, NDPI_TILE_BYTES, PIECES - FIRST, second, n, part[0], 40,
				    NDPI_ADD, &ahead);
			assert_memory_equal(part, two, sizeof(part));
			if (k->end)
				k->end();
		}
	}
}

static void test_threads(void **state)
{
	struct problem p;
	float *one;

	(void)state;
	make(&p, 300, 500, 600, 30, 17);
	one = malloc(30 * p.ldy * sizeof(*one));
	for (unsigned int i = 0; i < nr_paths; i++) {
		run(&paths[i], &p, 1, 0);
		memcpy(one, p.y, 30 * p.ldy * sizeof(*one));
		for (uint32_t threads = 2; threads < 8; threads++) {
			run(&paths[i], &p, threads, threads % 4);
			assert_memory_equal(p.y, one, 30 * p.ldy * sizeof(*one));
		}
	}
	free(one);
	drop(&p);
}

static void test_no_tokens(void **state)
{
	struct ndp_cpu_job job = { .tokens = 0 };
	struct ndp_cpu *cpu;

	(void)state;
	assert_int_equal(ndp_cpu_open(&cpu, NULL, NULL), 0);
	assert_int_equal(ndp_cpu_ffn(cpu, NULL, 0, NULL, NULL), 0);
	assert_int_equal(ndp_cpu_ffn(cpu, &job, 1, NULL, NULL), 0);
	ndp_cpu_close(cpu);
}

static void refused(struct ndp_cpu *cpu, const struct problem *p, struct ndp_cpu_job job)
{
	/* nothing is written, not even by jobs before that are right */
	struct ndp_cpu_job jobs[2] = { p->job, job };

	assert_int_equal(ndp_cpu_ffn(cpu, jobs, 2, NULL, NULL), -EINVAL);
	for (size_t i = 0; i < p->tokens * p->ldy; i++)
		assert_true(isnan(p->y[i]));
}

static void test_refusals(void **state)
{
	struct ndp_cpu *cpu;
	struct problem p;

	(void)state;
	make(&p, 100, 100, 70, 2, 1);
	clear(&p);
	assert_int_equal(ndp_cpu_open(&cpu, NULL, NULL), 0);
#define REFUSED(field, value) do { \
	struct ndp_cpu_job job = p.job; \
	job.field = value; \
	refused(cpu, &p, job); \
} while (0)
	REFUSED(shape.h_in, 0);
	REFUSED(shape.h_in, 65473);
	REFUSED(shape.h_out, 0);
	REFUSED(shape.h_out, 65473);
	REFUSED(shape.neurons, 0);
	REFUSED(first, 1);
	REFUSED(nr_blocks, 4);
	REFUSED(act, 2);
	REFUSED(blocks, (const uint8_t *)p.blocks + 32);
	REFUSED(blocks, NULL);
	REFUSED(x, NULL);
	REFUSED(y, NULL);
	REFUSED(ldx, 99);
	REFUSED(ldy, 99);
	ndp_cpu_close(cpu);
	drop(&p);
}

/* ---- several callers, jobs and nodes -------------------------------------- */

struct caller {
	struct ndp_cpu *cpu;
	struct problem p[3];
	float *want[3];
	unsigned int polls;
	bool same;
};

/* Whoever is polled may use tiles, so nobody else does meanwhile. */
static void count_poll(void *arg)
{
	assert_false(cpu_amx_configured());
	(*(unsigned int *)arg)++;
}

static void *call_often(void *arg)
{
	struct caller *c = arg;
	struct ndp_cpu_job jobs[3];

	for (int i = 0; i < 3; i++)
		jobs[i] = c->p[i].job;
	c->same = true;
	for (int n = 0; n < 20; n++) {
		for (int i = 0; i < 3; i++)
			clear(&c->p[i]);
		if (ndp_cpu_ffn(c->cpu, jobs, 3, count_poll, &c->polls))
			c->same = false;
		for (int i = 0; i < 3; i++)
			if (memcmp(c->p[i].y, c->want[i],
				   c->p[i].tokens * c->p[i].ldy * sizeof(float)))
				c->same = false;
	}
	return NULL;
}

static void test_callers(void **state)
{
	enum { CALLERS = 3 };
	struct caller c[CALLERS];
	pthread_t thread[CALLERS];
	struct ndp_cpu *cpu;
	struct ndp_cpu_options o = { .threads = 3 };
	const struct path *best = &paths[nr_paths - 1];

	(void)state;
	assert_int_equal(ndpi_cpu_open_with(&cpu, &o, best->kernels, 2, NULL), 0);
	for (int i = 0; i < CALLERS; i++) {
		c[i] = (struct caller){ .cpu = cpu };
		for (int j = 0; j < 3; j++) {
			size_t bytes;

			make(&c[i].p[j], 100 + 60 * j, 64, 100, 1 + 9 * j + i, i * 3 + j + 1);
			c[i].p[j].job.node = j - 1;
			run(best, &c[i].p[j], 1, 0);
			check(best, &c[i].p[j], 0, c[i].p[j].tokens);
			bytes = c[i].p[j].tokens * c[i].p[j].ldy * sizeof(float);
			c[i].want[j] = malloc(bytes);
			memcpy(c[i].want[j], c[i].p[j].y, bytes);
		}
		assert_int_equal(pthread_create(&thread[i], NULL, call_often, &c[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(thread[i], NULL);
		assert_true(c[i].same);
		for (int j = 0; j < 3; j++) {
			free(c[i].want[j]);
			drop(&c[i].p[j]);
		}
	}
	ndp_cpu_close(cpu);
}

/* The caller's thread looks around between tasks, and within long ones. */
static void test_poll(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < nr_paths; i++) {
		struct ndp_cpu_options o = { .threads = 1 };
		unsigned int few = 0, many = 0, tile = paths[i].kernels->tile_tokens, tasks;
		struct ndp_cpu *cpu;
		struct problem p;

		make(&p, 300, 64, 70, 500, 1);
		assert_int_equal(ndpi_cpu_open_with(&cpu, &o, paths[i].kernels, 0, NULL), 0);
		p.job.tokens = 1; /* 1 to pack, 3 blocks, 1 of outputs at least */
		assert_int_equal(ndp_cpu_ffn(cpu, &p.job, 1, count_poll, &few), 0);
		assert_true(few >= 5);
		/* twice: tiles of tokens to pack, 3 blocks, 1 of outputs, and a look within */
		p.job.tokens = 500;
		tasks = (256 + tile - 1) / tile + (244 + tile - 1) / tile + 2 * (3 + 1);
		assert_int_equal(ndp_cpu_ffn(cpu, &p.job, 1, count_poll, &many), 0);
		assert_true(many >= tasks + 2);
		assert_false(cpu_amx_configured());
		ndp_cpu_close(cpu);
		drop(&p);
	}
}

static void mark(void *arg, uint32_t i)
{
	__atomic_fetch_add(&((uint32_t *)arg)[i], 1, __ATOMIC_RELAXED);
}

static void test_for(void **state)
{
	uint32_t seen[1000] = { 0 };
	struct ndp_cpu_options o = { .threads = 4 };
	struct ndp_cpu *cpu;

	(void)state;
	assert_int_equal(ndp_cpu_open(&cpu, &o, NULL), 0);
	ndp_cpu_for(cpu, 0, mark, seen);
	assert_int_equal(seen[0], 0);
	for (int i = 0; i < 50; i++)
		ndp_cpu_for(cpu, 1000, mark, seen);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(seen[i], 50);
	ndp_cpu_close(cpu);
}

static void test_opening(void **state)
{
	struct ndp_cpu_info info;
	struct ndp_error err;
	struct ndp_cpu *cpu;

	(void)state;
	for (int i = 0; i < 20; i++) {
		struct ndp_cpu_options o = { .threads = i, .pin = i % 2 };

		assert_int_equal(ndp_cpu_open(&cpu, &o, NULL), 0);
		ndp_cpu_info(cpu, &info);
		assert_true(i ? info.threads == (uint32_t)i : info.threads > 0);
		assert_true(info.nodes > 0);
		assert_int_equal(info.isa, best);
		ndp_cpu_close(cpu);
	}
	ndp_cpu_close(NULL);
	for (enum ndp_isa isa = NDP_ISA_SCALAR; isa <= NDP_ISA_AMX_BF16; isa++) {
		struct ndp_cpu_options o = { .isa = isa, .threads = 1 };
		int r = ndp_cpu_open(&cpu, &o, &err);

		if (r) {
			assert_int_equal(r, -EOPNOTSUPP);
			assert_null(cpu);
			assert_non_null(strstr(err.message, ndp_isa_name(isa)));
			continue;
		}
		ndp_cpu_info(cpu, &info);
		assert_int_equal(info.isa, isa);
		ndp_cpu_close(cpu);
	}
}

/* AMX is not for those who want the same bits in any batch. */
static void test_deterministic(void **state)
{
	struct ndp_cpu_options o = { .threads = 1, .deterministic = true };
	struct ndp_cpu_info info;
	struct ndp_error err;
	struct ndp_cpu *cpu;

	(void)state;
	assert_int_equal(ndp_cpu_open(&cpu, &o, NULL), 0);
	ndp_cpu_info(cpu, &info);
	assert_int_not_equal(info.isa, NDP_ISA_AMX_BF16);
	ndp_cpu_close(cpu);
	o.isa = NDP_ISA_AMX_BF16;
	assert_int_equal(ndp_cpu_open(&cpu, &o, &err), -EINVAL);
	assert_null(cpu);
	assert_non_null(strstr(err.message, "deterministic"));
}

/*
 * Which kernels do what: AMX's from 16 tokens on, the others' below and what is left of a
 * job that is cut into batches of 256.
 */
static void test_amx_and_few(void **state)
{
#ifdef __x86_64__
	const struct path amx = { "amx emulated", &ndpi_cpu_amx_emulated, 1 };
	const struct path few = { "avx512 emulated", &ndpi_cpu_avx512_emulated, 1 };
	static const uint32_t tokens[] = { 15, 16, 256 + 15, 256 + 16 };
	struct problem p;
	float *y;

	if (!__builtin_cpu_supports("avx2"))
		skip();
	make(&p, 700, 70, 300, 256 + 16, 3);
	y = malloc(p.tokens * p.ldy * sizeof(*y));
	for (unsigned int n = 0; n < 4; n++) {
		p.job.tokens = tokens[n];
		run(&few, &p, 1, 0);
		memcpy(y, p.y, p.tokens * p.ldy * sizeof(*y));
		run(&amx, &p, 2, 0);
		for (uint32_t t = 0; t < tokens[n]; t++) {
			uint32_t batch = t < 256 ? tokens[n] : tokens[n] - 256;

			/* 70 outputs of 300 neurons each: some differ in the last bit */
			assert_int_equal(!memcmp(p.y + t * p.ldy, y + t * p.ldy,
						 70 * sizeof(float)), batch < 16);
		}
	}
	free(y);
	drop(&p);
#endif
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),
		cmocka_unit_test(test_token_counts),
		cmocka_unit_test(test_many_tokens),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_clamped),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_case_c5),
		cmocka_unit_test(test_chains),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_no_tokens),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_callers),
		cmocka_unit_test(test_poll),
		cmocka_unit_test(test_for),
		cmocka_unit_test(test_opening),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_amx_and_few),
	};

	find_paths();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
