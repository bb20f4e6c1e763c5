// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu.c - expert FFNs on the host's CPUs: opens them, and cuts jobs into tasks
 * (cpu-tasks.c).
 *
 * A job has three kinds of tasks, each kind waiting for the one before: pack a tile of
 * tokens; h of one neuron block for all tokens; y of some outputs for all tokens, over
 * all blocks.  Whatever a task writes is its own: no partial sums are added across
 * threads, so results do not depend on who did what.
 */
#include "../error.h"
#include "cpu-tasks.h"

#include <errno.h>
#include <ndp/device.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	MAX_H = 65472,
	MAX_BATCH = 256,	/* tokens that share one pass over the weights */
	SUMS_BYTES = 256 << 10,	/* of a single tile of tokens, in the second-level cache */
	MIN_OUTS = 8,
	LINE = 64,
};

/* Where a call's intermediate results are; kept for the next one. */
struct arena {
	struct arena *next;
	void *memory;
	size_t bytes;
};

struct ndp_cpu {
	const struct ndpi_cpu_kernels *kernels;
	struct ndpi_pool *pool;
	pthread_mutex_t lock;
	struct arena *arenas;	/* that no call uses */
};

/* ---- memory --------------------------------------------------------------- */

static struct arena *arena_get(struct ndp_cpu *cpu, size_t bytes)
{
	struct arena *a;

	pthread_mutex_lock(&cpu->lock);
	a = cpu->arenas;
	if (a)
		cpu->arenas = a->next;
	pthread_mutex_unlock(&cpu->lock);
	if (!a) {
		a = calloc(1, sizeof(*a));
		if (!a)
			return NULL;
	}
	if (a->bytes < bytes) {
		free(a->memory);
		a->bytes = 0;
		bytes = round_up(bytes, 2 << 20);
		if (posix_memalign(&a->memory, 2 << 20, bytes)) {
			free(a);
			return NULL;
		}
		madvise(a->memory, bytes, MADV_HUGEPAGE); /* as fast as it gets, or not */
		a->bytes = bytes;
	}
	return a;
}

static void arena_put(struct ndp_cpu *cpu, struct arena *a)
{
	pthread_mutex_lock(&cpu->lock);
	a->next = cpu->arenas;
	cpu->arenas = a;
	pthread_mutex_unlock(&cpu->lock);
}

/* ---- calls ---------------------------------------------------------------- */

static uint32_t blocks_of(const struct ndp_cpu_job *job)
{
	return job->first || job->nr_blocks ? job->nr_blocks : ndp_expert_blocks(&job->shape);
}

static bool possible(const struct ndp_cpu_job *job)
{
	const struct ndp_expert_shape *s = &job->shape;
	uint32_t blocks;

	if (!s->h_in || s->h_in > MAX_H || !s->h_out || s->h_out > MAX_H || !s->neurons ||
	    s->neurons > UINT32_MAX - NDPI_ROWS)
		return false;
	blocks = ndp_expert_blocks(s);
	if (job->first > blocks || job->nr_blocks > blocks - job->first ||
	    (job->first && !job->nr_blocks))
		return false;
	if (!job->blocks || (uintptr_t)job->blocks % LINE || !job->x || !job->y)
		return false;
	if (job->act != NDP_ACT_SILU_MUL && job->act != NDP_ACT_CLAMPED_SWIGLU)
		return false;
	return job->tokens == 1 || (job->ldy >= s->h_out && job->ldx >= s->h_in);
}

static void describe(const struct ndp_cpu *cpu, struct part *p, const struct ndp_cpu_job *job,
		     uint32_t first_token)
{
	uint32_t threads = ndpi_pool_threads(cpu->pool), outs;
	uint32_t tokens = min_u(job->tokens - first_token, MAX_BATCH);

	*p = (struct part){
		.job = job,
		.kernels = tokens < cpu->kernels->least_tokens ?
			cpu->kernels->few : cpu->kernels,
		.block_bytes = ndp_expert_block_bytes(&job->shape),
		.nr_blocks = blocks_of(job),
		.first_token = first_token,
		.tokens = tokens,
		.h_in = (uint32_t)round_up(job->shape.h_in, 64),
		.h_out = (uint32_t)round_up(job->shape.h_out, 64),
		.list = ndpi_pool_list(cpu->pool, job->node),
		.threads = threads / ndpi_pool_nodes(cpu->pool),
	};
	p->blocks = (const uint8_t *)job->blocks + job->first * p->block_bytes;
	p->tiles = (tokens + p->kernels->tile_tokens - 1) / p->kernels->tile_tokens;
	/*
	 * Few tokens: one task for each thread, since long stretches are read faster, and the sums
	 * of each fit the cache.  Many: several, so that none waits long in the end.
	 */
	outs = p->h_out / NDPI_ROWS;
	if (threads > 1)
		outs = (outs / (p->tiles > 1 ? 4 * threads : threads) + 1) / 2 * 2;
	p->outs = outs;
	outs = SUMS_BYTES / (p->tokens * NDPI_ROWS * sizeof(float)) / 2 * 2;
	p->outs = min_u(p->outs, outs > MIN_OUTS ? outs : MIN_OUTS);
	if (!p->outs)
		p->outs = 2;
}

static uint32_t tasks_of(const struct part *p, enum kind kind)
{
	uint32_t outs = p->h_out / NDPI_ROWS;

	return kind == PACK ? p->tiles : kind == PROJECT ? p->nr_blocks :
		(outs + p->outs - 1) / p->outs;
}

static size_t x_bytes(const struct part *p)
{
	return round_up((size_t)p->tokens * p->h_in * p->kernels->elem_bytes, LINE);
}

static size_t h_bytes(const struct part *p)
{
	return round_up((size_t)p->tokens * p->nr_blocks * NDPI_ROWS * p->kernels->elem_bytes, LINE);
}

/* g and u of a block, or y of a task, twice for a single tile of tokens. */
static size_t scratch_bytes(const struct part *p)
{
	uint32_t outs = p->tiles > 1 ? 2 : 2 * p->outs;

	return (size_t)p->tokens * NDPI_ROWS * outs * sizeof(float);
}

/* Puts all tasks into the lists of the nodes, kind after kind. */
static void deal(const struct ndp_cpu *cpu, struct call *c, struct part *parts, uint32_t n,
		 struct run *runs)
{
	uint32_t nodes = ndpi_pool_nodes(cpu->pool);

	for (uint32_t l = 0; l < nodes; l++) {
		uint32_t tasks = 0;

		c->list[l].runs = runs;
		for (enum kind kind = PACK; kind < KINDS; kind++) {
			for (uint32_t i = 0; i < n; i++) {
				if (parts[i].list != l)
					continue;
				*runs++ = (struct run){ &parts[i], kind, tasks };
				tasks += tasks_of(&parts[i], kind);
			}
		}
		c->list[l].n = (uint32_t)(runs - c->list[l].runs);
		c->work.list[l].tasks = tasks;
	}
}

int ndp_cpu_ffn(struct ndp_cpu *cpu, const struct ndp_cpu_job *jobs, uint32_t n,
		void (*poll)(void *arg), void *arg)
{
	struct call c = { .work.run = ndpi_cpu_run_task };
	size_t bytes, nr_parts = 0, packed = 0;
	struct part *parts, part;
	struct arena *arena;
	uint8_t *at;

	for (uint32_t i = 0; i < n; i++) {
		if (!jobs[i].tokens)
			continue;
		if (!possible(&jobs[i]))
			return -EINVAL;
		for (uint32_t t = 0; t < jobs[i].tokens; t += part.tokens, nr_parts++) {
			describe(cpu, &part, &jobs[i], t);
			packed += x_bytes(&part) + h_bytes(&part);
			if (c.scratch_bytes < scratch_bytes(&part))
				c.scratch_bytes = scratch_bytes(&part);
		}
	}
	if (!nr_parts)
		return 0;
	/* Threads do not share lines, nor two pages' worth of a cache's sets. */
	c.scratch_bytes = round_up(c.scratch_bytes, 4096) + 4 * LINE;
	bytes = round_up(nr_parts * sizeof(*parts), LINE) +
		round_up(nr_parts * KINDS * sizeof(struct run), LINE);
	arena = arena_get(cpu, bytes + packed + c.scratch_bytes * ndpi_pool_threads(cpu->pool));
	if (!arena)
		return -ENOMEM;
	parts = arena->memory;
	at = (uint8_t *)arena->memory + bytes;
	nr_parts = 0;
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t t = 0; t < jobs[i].tokens; t += parts[nr_parts++].tokens) {
			struct part *p = &parts[nr_parts];

			describe(cpu, p, &jobs[i], t);
			p->x = at;
			at += x_bytes(p);
			p->h = at;
			at += h_bytes(p);
		}
	}
	c.scratch = at;
	deal(cpu, &c, parts, (uint32_t)nr_parts,
	     (struct run *)((uint8_t *)arena->memory + round_up(nr_parts * sizeof(*parts), LINE)));
	ndpi_pool_run(cpu->pool, &c.work, poll, arg);
	arena_put(cpu, arena);
	return 0;
}

struct loop {
	struct ndpi_work work;
	void (*fn)(void *arg, uint32_t i);
	void *arg;
};

static void run_loop(struct ndpi_work *work, uint32_t list, uint32_t task,
		     struct ndpi_thread *thread)
{
	struct loop *l = (struct loop *)work;

	(void)list;
	(void)thread;
	l->fn(l->arg, task);
}

void ndp_cpu_for(struct ndp_cpu *cpu, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg)
{
	struct loop l = { .work.run = run_loop, .fn = fn, .arg = arg };

	l.work.list[0].tasks = n;
	ndpi_pool_run(cpu->pool, &l.work, NULL, NULL);
}

/* ---- opening -------------------------------------------------------------- */

static bool runs_here(enum ndp_isa isa)
{
	switch (isa) {
	case NDP_ISA_SCALAR:
		return true;
#ifdef __x86_64__
	case NDP_ISA_AVX2:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	case NDP_ISA_AVX512_BF16:
		return runs_here(NDP_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
			__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
			__builtin_cpu_supports("avx512bf16");
	case NDP_ISA_AMX_BF16:
		return runs_here(NDP_ISA_AVX512_BF16) && ndpi_cpu_amx_permitted();
#endif
	default:
		return false;
	}
}

static const struct ndpi_cpu_kernels *kernels_of(enum ndp_isa isa)
{
	switch (isa) {
#ifdef __x86_64__
	case NDP_ISA_AVX2:
		return &ndpi_cpu_avx2;
	case NDP_ISA_AVX512_BF16:
		return &ndpi_cpu_avx512;
	case NDP_ISA_AMX_BF16:
		return &ndpi_cpu_amx;
#endif
	default:
		return &ndpi_cpu_scalar;
	}
}

const char *ndp_isa_name(enum ndp_isa isa)
{
	switch (isa) {
	case NDP_ISA_BEST:
		return "best";
	case NDP_ISA_SCALAR:
		return "scalar";
	case NDP_ISA_AVX2:
		return "avx2";
	case NDP_ISA_AVX512_BF16:
		return "avx512-bf16";
	case NDP_ISA_AMX_BF16:
		return "amx-bf16";
	}
	return "unknown";
}

int ndpi_cpu_open_with(struct ndp_cpu **cpu, const struct ndp_cpu_options *options,
		       const struct ndpi_cpu_kernels *kernels, uint32_t nodes,
		       struct ndp_error *err)
{
	struct ndp_cpu *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return ndpi_fail(err, -ENOMEM, "out of memory for the CPU domain");
	r = ndpi_pool_open(&c->pool, options->threads, options->pin, nodes, err);
	if (r) {
		free(c);
		return r;
	}
	pthread_mutex_init(&c->lock, NULL);
	c->kernels = kernels;
	*cpu = c;
	return 0;
}

int ndp_cpu_open(struct ndp_cpu **cpu, const struct ndp_cpu_options *options,
		 struct ndp_error *err)
{
	static const struct ndp_cpu_options none;
	enum ndp_isa isa;

	*cpu = NULL;
	if (!options)
		options = &none;
	isa = options->isa;
	if (isa == NDP_ISA_BEST) {
		isa = options->deterministic ? NDP_ISA_AVX512_BF16 : NDP_ISA_AMX_BF16;
		while (!runs_here(isa))
			isa--;
	} else if (isa == NDP_ISA_AMX_BF16 && options->deterministic) {
		return ndpi_fail(err, -EINVAL, "a token's bits depend on its batch on the amx-bf16 "
				 "path; deterministic wants avx512-bf16 or NDP_ISA_BEST");
	} else if (!runs_here(isa)) {
		return ndpi_fail(err, -EOPNOTSUPP, "this CPU does not run the %s path; NDP_ISA_BEST "
				 "takes the best that it runs", ndp_isa_name(isa));
	}
	return ndpi_cpu_open_with(cpu, options, kernels_of(isa), 0, err);
}

void ndp_cpu_close(struct ndp_cpu *cpu)
{
	if (!cpu)
		return;
	ndpi_pool_close(cpu->pool);
	for (struct arena *a = cpu->arenas, *next; a; a = next) {
		next = a->next;
		free(a->memory);
		free(a);
	}
	pthread_mutex_destroy(&cpu->lock);
	free(cpu);
}

void ndp_cpu_info(const struct ndp_cpu *cpu, struct ndp_cpu_info *info)
{
	*info = (struct ndp_cpu_info){
		.isa = cpu->kernels->isa,
		.threads = ndpi_pool_threads(cpu->pool),
		.nodes = ndpi_pool_nodes(cpu->pool),
	};
}
