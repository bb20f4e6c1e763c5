// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_chip.c - how close the in-process chip comes to what this machine can do.
 *
 * Bar F.2: FFN of one token in DeepSeek-V2's shape streams distinct experts at 80 % or more of the
 * read bandwidth. Both are measured in turns over the same buffers, by the same threads, in the
 * same pages; a pair of turns gives a ratio, and the median of the ratios counts. Reading is a loop
 * of AVX2 loads over one, two or four parts of an expert side by side; the fastest counts.
 * Time is the threads' CPU time: wall time without what other programs took of the processor.
 *
 * Then a table of GFLOP/s over the number of tokens, beside its limit: the smaller of
 * bandwidth times intensity and the peak of a loop of nothing but multiply-adds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ndp_chip.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
	H = 5120,
	INTERMEDIATE = 1536,
	BLOCKS = INTERMEDIATE / NDP_CHIP_BLOCK_NEURONS,
	EXPERTS = 12,		/* 566 MB */
	MAX_THREADS = 2,
	PAIRS = 21,
	MAX_TOKENS = 256,
	HUGE_PAGE = 2 << 20,
};

static const double goal = 0.80;

/* CPU time of the calling thread. */
static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* All experts, then x and y of each thread. */
static struct ndp_chip_mem mem;
static uint64_t expert_bytes, io_offset;

static const uint64_t x_bytes = MAX_TOKENS * H * 2, y_bytes = MAX_TOKENS * H * 4;

static int make_memory(void)
{
	uint64_t state = 1;

	expert_bytes = BLOCKS * ndp_chip_block_bytes(H, H);
	io_offset = EXPERTS * expert_bytes;
	mem.bytes = io_offset + MAX_THREADS * (x_bytes + y_bytes);
	mem.bytes = (mem.bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	mem.base = mmap(NULL, mem.bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem.base == MAP_FAILED)
		return -errno;
	mem.base = (uint8_t *)(((uintptr_t)mem.base + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (madvise(mem.base, mem.bytes, MADV_HUGEPAGE))
		printf("# no transparent huge pages: %s\n", strerror(errno));
	if (madvise(mem.base, mem.bytes, MADV_POPULATE_WRITE))
		printf("# cannot populate ahead: %s\n", strerror(errno));
	for (uint64_t i = 0; i < mem.bytes / 8; i++) {
		/* BF16 of both signs between 2^-7 and 2^-6 */
		state = state * 6364136223846793005u + 1442695040888963407u;
		((uint64_t *)mem.base)[i] = (state & 0x807f807f807f807f) | 0x3c003c003c003c00;
	}
	return 0;
}

/* ---- what a turn does ---------------------------------------------------------------------- */

#ifdef __x86_64__
/* @streams equal parts of p side by side, the way that many prefetchers like best. */
__attribute__((target("avx2"))) static uint64_t read_all(const uint8_t *p, uint64_t bytes,
							  unsigned streams)
{
	const uint64_t part = bytes / streams;
	__m256i sum[8];
	uint64_t out[4];

	for (int i = 0; i < 8; i++)
		sum[i] = _mm256_setzero_si256();
	for (uint64_t at = 0; at < part; at += 256) {
		for (unsigned s = 0; s < streams; s++) {
			const __m256i *v = (const __m256i *)(p + s * part + at);

#pragma GCC unroll 8
			for (int i = 0; i < 8; i++)
				sum[i] = _mm256_or_si256(sum[i], _mm256_load_si256(v + i));
		}
	}
	for (int i = 1; i < 8; i++)
		sum[0] = _mm256_or_si256(sum[0], sum[i]);
	_mm256_storeu_si256((__m256i *)out, sum[0]);
	return out[0] | out[1] | out[2] | out[3];
}

/* Multiply-adds in registers: the peak of this core, counted as the kernels are. */
__attribute__((target("avx2,fma"))) static double peak_gflops(void)
{
	double best = 0;

	for (int round = 0; round < 5; round++) {
		__m256 a = _mm256_set1_ps(0.5f), s[10];
		const long n = 4000000;
		double start;

		for (int i = 0; i < 10; i++)
			s[i] = _mm256_set1_ps(i);
		start = now_s();
		for (long k = 0; k < n; k++) {
#pragma GCC unroll 10
			for (int i = 0; i < 10; i++) {
				s[i] = _mm256_fmadd_ps(s[i], a, a);
				__asm__ volatile("" : "+x"(s[i])); /* keep each */
			}
		}
		start = n * 10 * 16 * 1e-9 / (now_s() - start);
		best = start > best ? start : best;
	}
	return best;
}
#else
static uint64_t read_all(const uint8_t *p, uint64_t bytes, unsigned streams)
{
	const uint64_t part = bytes / 8 / streams;
	uint64_t sum[8] = { 0 };

	for (uint64_t i = 0; i < part; i += 8)
		for (unsigned s = 0; s < streams; s++)
			for (int k = 0; k < 8; k++)
				sum[k] |= ((const uint64_t *)p)[s * part + i + k];
	return sum[0] | sum[1] | sum[2] | sum[3] | sum[4] | sum[5] | sum[6] | sum[7];
}

static double peak_gflops(void)
{
	return 0;
}
#endif

struct worker {
	pthread_t thread;
	pthread_barrier_t *barrier;
	struct ndp_chip_engine *engine;
	unsigned index, threads;
	double took_s;		/* the last turn */
	int error;
};

enum turn { TURN_FFN, TURN_READ, TURN_READ_TWO, TURN_READ_FOUR, TURNS, TURN_STOP };

static enum turn turn;
static volatile uint64_t sink;

static struct ndp_chip_op ffn_op(unsigned thread, unsigned expert, unsigned tokens)
{
	uint64_t io = io_offset + thread * (x_bytes + y_bytes);

	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_FFN, .w = expert * expert_bytes, .x = io, .y = io + x_bytes,
		.count = BLOCKS, .tokens = tokens, .h_in = H, .h_out = H, .ldx_bytes = 2 * H,
		.ldy_bytes = 4 * H,
	};
}

static void take_turn(struct worker *w)
{
	double start = now_s();
	static const unsigned streams[TURNS] = {
		[TURN_READ] = 1, [TURN_READ_TWO] = 2, [TURN_READ_FOUR] = 4,
	};

	for (unsigned i = w->index; i < EXPERTS; i += w->threads) {
		struct ndp_chip_op op = ffn_op(w->index, i, 1);

		if (turn != TURN_FFN)
			sink = read_all(mem.base + op.w, expert_bytes, streams[turn]);
		else if (ndp_chip_exec(w->engine, &op, &mem, NULL) != NDP_CHIP_OK)
			w->error = -EIO;
	}
	w->took_s = now_s() - start;
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (;;) {
		pthread_barrier_wait(w->barrier);
		if (turn == TURN_STOP)
			return NULL;
		take_turn(w);
		pthread_barrier_wait(w->barrier);
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/*
 * Streams with @threads threads; returns the median ratio to the best way to read, or -errno.
 * @read_gbps and @ffn_gbps: medians.
 */
static double stream(unsigned threads, double *read_gbps, double *ffn_gbps)
{
	static double gbps[TURNS][PAIRS], ratio[PAIRS];
	struct worker workers[MAX_THREADS];
	pthread_barrier_t barrier;
	enum turn best = TURN_READ;
	double bytes = (double)EXPERTS * expert_bytes, best_gbps = 0;

	pthread_barrier_init(&barrier, NULL, threads + 1);
	for (unsigned i = 0; i < threads; i++) {
		workers[i] = (struct worker) {
			.barrier = &barrier, .index = i, .threads = threads,
			.engine = ndp_chip_engine_new(ndp_chip_isa_best()),
		};
		if (!workers[i].engine ||
		    pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			return -ENOMEM;
	}
	for (int i = -1; i < PAIRS; i++) { /* one round to warm up */
		for (unsigned k = 0; k < TURNS; k++) {
			double slowest_s = 0;

			turn = (k + i + 1) % TURNS; /* each follows each */
			pthread_barrier_wait(&barrier);
			pthread_barrier_wait(&barrier);
			for (unsigned t = 0; t < threads; t++)
				if (workers[t].took_s > slowest_s)
					slowest_s = workers[t].took_s;
			if (i >= 0)
				gbps[turn][i] = bytes * 1e-9 / slowest_s;
		}
	}
	turn = TURN_STOP;
	pthread_barrier_wait(&barrier);
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		ndp_chip_engine_free(workers[i].engine);
		if (workers[i].error)
			return workers[i].error;
	}
	pthread_barrier_destroy(&barrier);
	for (enum turn t = TURN_READ; t < TURNS; t++) {
		double copy[PAIRS], m;

		memcpy(copy, gbps[t], sizeof(copy));
		m = median(copy, PAIRS);
		if (m > best_gbps) {
			best_gbps = m;
			best = t;
		}
	}
	for (int i = 0; i < PAIRS; i++)
		ratio[i] = gbps[TURN_FFN][i] / gbps[best][i];
	*read_gbps = best_gbps;
	*ffn_gbps = median(gbps[TURN_FFN], PAIRS);
	return median(ratio, PAIRS);
}

static int table(double read_gbps)
{
	static const unsigned tokens[] = {
		1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
	};
	struct ndp_chip_engine *e = ndp_chip_engine_new(ndp_chip_isa_best());
	double peak = peak_gflops();

	if (!e)
		return -ENOMEM;
	printf("# one thread, CPU time; limit = min(tokens * %.1f GB/s, FMA peak %.0f GFLOP/s)\n",
	       read_gbps, peak);
	printf("# tokens  GFLOP/s    limit  share\n");
	for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++) {
		struct ndp_chip_op op = ffn_op(0, 0, tokens[i]);
		double best = 0, limit = read_gbps * tokens[i];
		unsigned rounds = tokens[i] < 16 ? EXPERTS : tokens[i] < 64 ? 4 : 2;

		if (limit > peak && ndp_chip_isa_best() == NDP_CHIP_ISA_AVX2)
			limit = peak;
		for (unsigned k = 0; k < rounds; k++) {
			double start = now_s(), gflops;

			op.w = k % EXPERTS * expert_bytes;
			if (ndp_chip_exec(e, &op, &mem, NULL) != NDP_CHIP_OK)
				return -EIO;
			gflops = ndp_chip_op_flops(&op) * 1e-9 / (now_s() - start);
			best = gflops > best ? gflops : best;
		}
		printf("# %6u  %7.1f  %7.1f  %5.2f\n", tokens[i], best, limit, best / limit);
	}
	ndp_chip_engine_free(e);
	return 0;
}

int main(void)
{
	double worst = 1e9, read_gbps[MAX_THREADS], ffn_gbps[MAX_THREADS];
	int r = make_memory();

	if (r < 0) {
		fprintf(stderr, "bench_chip: cannot have %llu bytes of memory: %s\n",
			(unsigned long long)mem.bytes, strerror(-r));
		return 1;
	}
	printf("# FFN of one token, h=%d, intermediate=%d, %d experts of %.2f MB, path %s, CPU time\n",
	       H, INTERMEDIATE, EXPERTS, expert_bytes * 1e-6, ndp_chip_isa_name(ndp_chip_isa_best()));
	for (unsigned threads = 1; threads <= MAX_THREADS; threads++) {
		unsigned i = threads - 1;
		double ratio = stream(threads, &read_gbps[i], &ffn_gbps[i]);

		if (ratio < 0) {
			fprintf(stderr, "bench_chip: %u threads: %s\n", threads,
				strerror((int)-ratio));
			return 1;
		}
		printf("# %u thread%s: reads %.2f GB/s, FFN streams %.2f GB/s, median of %d ratios %.3f\n",
		       threads, threads == 1 ? "" : "s", read_gbps[i], ffn_gbps[i], PAIRS, ratio);
		worst = ratio < worst ? ratio : worst;
	}
	r = table(read_gbps[0]);
	if (r < 0) {
		fprintf(stderr, "bench_chip: FFN failed: %s\n", strerror(-r));
		return 1;
	}
	printf("bar F.2 chip-stream value=%.2f goal=>=%.2f %s\n", worst, goal,
	       worst >= goal ? "pass" : "fail");
	return 0;
}
