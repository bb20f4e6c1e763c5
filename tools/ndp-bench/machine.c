// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * machine.c - see bench.h: threads that work together, and how fast this machine
 * reads, copies and multiplies.
 *
 * These are the limits that measurements are printed beside; each is measured by the
 * plainest loop that reaches it, not taken from a data sheet.
 */
#include "bench.h"

#include <cpuid.h>
#include <immintrin.h>
#include <ndp/device.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

unsigned int bench_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return CPU_COUNT(&set);
}

/*
 * From sysfs; glibc's sysconf() asks the CPU, which in a virtual machine may tell of
 * caches that the machine does not have.
 */
size_t bench_cache_bytes(void)
{
	size_t most = 0;

	for (int i = 0; i < 8; i++) {
		char path[80], unit = 0;
		unsigned long n = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
		f = fopen(path, "re");
		if (!f)
			break;
		if (fscanf(f, "%lu%c", &n, &unit) >= 1) {
			n <<= unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
			most = n > most ? n : most;
		}
		fclose(f);
	}
	return most ? most : 32u << 20;
}

/* ---- threads that work together -------------------------------------------------- */

/* Before a thread sleeps it looks this often: waking one takes longer than short jobs. */
#define SPINS 20000

struct bench_team {
	unsigned int threads;
	pthread_t *ids;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic unsigned int job;	/* counts up; 0: none yet */
	_Atomic unsigned int working;
	bool stop;
	void (*fn)(void *arg, unsigned int i);
	void *arg;
};

struct member {
	struct bench_team *team;
	unsigned int i;
};

static void wait_for_job(struct bench_team *t, unsigned int seen)
{
	for (unsigned int k = 0; k < SPINS; k++) {
		if (atomic_load_explicit(&t->job, memory_order_acquire) != seen)
			return;
		_mm_pause();
	}
	pthread_mutex_lock(&t->lock);
	while (atomic_load_explicit(&t->job, memory_order_acquire) == seen)
		pthread_cond_wait(&t->wake, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

static void *work(void *arg)
{
	struct member m = *(struct member *)arg;
	unsigned int seen = 0;

	free(arg);
	for (;;) {
		wait_for_job(m.team, seen);
		seen++;
		if (m.team->stop)
			return NULL;
		m.team->fn(m.team->arg, m.i);
		atomic_fetch_sub_explicit(&m.team->working, 1, memory_order_release);
	}
}

static void next_job(struct bench_team *t)
{
	pthread_mutex_lock(&t->lock);
	atomic_fetch_add_explicit(&t->job, 1, memory_order_release);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

struct bench_team *bench_team_start(unsigned int threads)
{
	struct bench_team *t = calloc(1, sizeof(*t));

	if (!t || !(t->ids = calloc(threads, sizeof(*t->ids))))
		bench_die("out of memory");
	t->threads = threads;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->wake, NULL);
	for (unsigned int i = 1; i < threads; i++) {
		struct member *m = malloc(sizeof(*m));

		if (!m)
			bench_die("out of memory");
		*m = (struct member){ t, i };
		if (pthread_create(&t->ids[i], NULL, work, m))
			bench_die("thread %u of %u could not be started", i, threads);
	}
	return t;
}

void bench_team_stop(struct bench_team *t)
{
	t->stop = true;
	next_job(t);
	for (unsigned int i = 1; i < t->threads; i++)
		pthread_join(t->ids[i], NULL);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->wake);
	free(t->ids);
	free(t);
}

void bench_team_run(struct bench_team *t, void (*fn)(void *arg, unsigned int i), void *arg)
{
	if (t->threads > 1) {
		t->fn = fn;
		t->arg = arg;
		atomic_store_explicit(&t->working, t->threads - 1, memory_order_relaxed);
		next_job(t);
	}
	fn(arg, 0);
	while (t->threads > 1 && atomic_load_explicit(&t->working, memory_order_acquire))
		_mm_pause();
}

/* ---- reading and copying ------------------------------------------------------------ */

static void *map_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		bench_die("no memory for a buffer of %zu MiB", bytes >> 20);
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes); /* not the zero page */
	return p;
}

/* A buffer that is run through from its beginning to its end, part by part. */
struct ring {
	char *p;
	size_t bytes;		/* of all, a multiple of @step */
	size_t step;		/* of a run */
	size_t at;
};

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* What a run of @step bytes leaves in caches is overwritten before it comes up again. */
static void ring_make(struct ring *r, size_t step)
{
	r->step = round_up(step, 4096);
	r->bytes = round_up(4 * bench_cache_bytes() + r->step, r->step);
	r->p = map_memory(r->bytes);
	r->at = 0;
}

static char *ring_next(struct ring *r)
{
	char *p = r->p + r->at;

	r->at = (r->at + r->step) % r->bytes;
	return p;
}

/* Part @i of @n of @bytes, in whole pairs of cache lines. */
static size_t part(size_t bytes, unsigned int i, unsigned int n, size_t *length)
{
	size_t pairs = bytes / 128, begin = pairs * i / n, end = pairs * (i + 1) / n;

	*length = (end - begin) * 128;
	return begin * 128;
}

struct bench_reader {
	struct bench_team *team;
	unsigned int threads;
	struct ring ring;
	const char *now;
	_Atomic uint64_t sum;	/* so that no compiler drops the loop */
};

/* Inlined twice, for processors with and without registers of 32 bytes. */
static inline __attribute__((always_inline)) uint64_t xor_lines(const char *p, size_t bytes)
{
	typedef uint64_t v4 __attribute__((vector_size(32)));
	const v4 *v = (const v4 *)p;
	v4 a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	for (size_t k = 0; k < bytes / sizeof(v4); k += 4) {
		a ^= v[k];
		b ^= v[k + 1];
		c ^= v[k + 2];
		d ^= v[k + 3];
	}
	a ^= b ^ c ^ d;
	return a[0] ^ a[1] ^ a[2] ^ a[3];
}

__attribute__((target("avx2"))) static uint64_t xor_avx2(const char *p, size_t bytes)
{
	return xor_lines(p, bytes);
}

static uint64_t xor_plain(const char *p, size_t bytes)
{
	return xor_lines(p, bytes);
}

/* Plain loads: that prefetching by hand makes it no faster was tried. */
static void read_part(void *arg, unsigned int i)
{
	struct bench_reader *r = arg;
	size_t length, begin = part(r->ring.step, i, r->threads, &length);
	const char *p = r->now + begin;

	atomic_fetch_add_explicit(&r->sum, __builtin_cpu_supports("avx2") ? xor_avx2(p, length) :
				  xor_plain(p, length), memory_order_relaxed);
}

struct bench_reader *bench_reader_start(unsigned int threads, size_t bytes)
{
	struct bench_reader *r = calloc(1, sizeof(*r));

	if (!r)
		bench_die("out of memory");
	r->team = bench_team_start(threads);
	r->threads = threads;
	ring_make(&r->ring, round_up(bytes, 128 * threads));
	return r;
}

void bench_reader_stop(struct bench_reader *r)
{
	bench_team_stop(r->team);
	munmap(r->ring.p, r->ring.bytes);
	free(r);
}

void bench_reader_run(void *reader)
{
	struct bench_reader *r = reader;

	r->now = ring_next(&r->ring);
	bench_team_run(r->team, read_part, r);
}

struct bench_copier {
	struct bench_team *team;
	unsigned int threads;
	struct ring from, to;
	const char *src;
	char *dst;
};

static void copy_part(void *arg, unsigned int i)
{
	struct bench_copier *c = arg;
	size_t length, begin = part(c->from.step, i, c->threads, &length);

	memcpy(c->dst + begin, c->src + begin, length);
}

struct bench_copier *bench_copier_start(unsigned int threads, size_t bytes)
{
	struct bench_copier *c = calloc(1, sizeof(*c));

	if (!c)
		bench_die("out of memory");
	c->team = bench_team_start(threads);
	c->threads = threads;
	ring_make(&c->from, bytes);
	ring_make(&c->to, bytes);
	return c;
}

void bench_copier_stop(struct bench_copier *c)
{
	bench_team_stop(c->team);
	munmap(c->from.p, c->from.bytes);
	munmap(c->to.p, c->to.bytes);
	free(c);
}

void bench_copier_run(void *copier)
{
	struct bench_copier *c = copier;

	c->src = ring_next(&c->from);
	c->dst = ring_next(&c->to);
	bench_team_run(c->team, copy_part, c);
}

#define LIMIT_BYTES (32u << 20)

/* The shortest of several runs: what others do to this machine is no limit of it. */
static double shortest_ns(void (*run)(void *arg), void *arg)
{
	struct bench_sampling s = { .want = 15, .warmup = 1, .seconds = 1 };
	struct bench_contender c = { .name = "limit", .run = run, .arg = arg };
	double ns;

	bench_sample(&s, &c, 1);
	ns = c.ns[0];
	for (unsigned int i = 1; i < s.rounds; i++)
		ns = c.ns[i] < ns ? c.ns[i] : ns;
	bench_samples_free(&c, 1);
	return ns;
}

double bench_read_gbps(unsigned int threads)
{
	struct bench_reader *r = bench_reader_start(threads, LIMIT_BYTES);
	double gbps = (double)r->ring.step / shortest_ns(bench_reader_run, r);

	bench_reader_stop(r);
	return gbps;
}

double bench_copy_gbps(unsigned int threads)
{
	struct bench_copier *c = bench_copier_start(threads, LIMIT_BYTES);
	double gbps = (double)c->from.step / shortest_ns(bench_copier_run, c);

	bench_copier_stop(c);
	return gbps;
}

/* ---- multiply-adds in registers ------------------------------------------------------- */

#define FMA_ROUNDS 100000
#define FMA_CHAINS 16	/* independent: more than latency times issue width */
#define AVX2_CHAINS 12	/* of 16 registers, with room for what is multiplied */
#define AMX_ROUNDS 10000
#define AMX_CHAINS 6

static _Atomic int sink;

__attribute__((target("avx2,fma")))
static void fma_avx2(void *arg, unsigned int i)
{
	__m256 acc[AVX2_CHAINS], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps((float)i);
	int any = 0;

	(void)arg;
	for (int k = 0; k < AVX2_CHAINS; k++)
		acc[k] = _mm256_set1_ps((float)k);
	for (int r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
		for (int k = 0; k < AVX2_CHAINS; k++)
			acc[k] = _mm256_fmadd_ps(acc[k], a, b);
	}
	for (int k = 0; k < AVX2_CHAINS; k++)
		any += (int)acc[k][0];
	atomic_fetch_add(&sink, any);
}

__attribute__((target("avx512f")))
static void fma_avx512(void *arg, unsigned int i)
{
	__m512 acc[FMA_CHAINS], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps((float)i);
	int any = 0;

	(void)arg;
	for (int k = 0; k < FMA_CHAINS; k++)
		acc[k] = _mm512_set1_ps((float)k);
	for (int r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 16
		for (int k = 0; k < FMA_CHAINS; k++)
			acc[k] = _mm512_fmadd_ps(acc[k], a, b);
	}
	for (int k = 0; k < FMA_CHAINS; k++)
		any += (int)acc[k][0];
	atomic_fetch_add(&sink, any);
}

__attribute__((target("avx512f,avx512bf16")))
static void dot_bf16(void *arg, unsigned int i)
{
	__m512 acc[FMA_CHAINS];
	__m512bh a = (__m512bh)_mm512_set1_epi32(0x3f003f00), b = a; /* 0.5 */
	int any = 0;

	(void)arg;
	for (int k = 0; k < FMA_CHAINS; k++)
		acc[k] = _mm512_set1_ps((float)(k + i));
	for (int r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 16
		for (int k = 0; k < FMA_CHAINS; k++)
			acc[k] = _mm512_dpbf16_ps(acc[k], a, b);
	}
	for (int k = 0; k < FMA_CHAINS; k++)
		any += (int)acc[k][0];
	atomic_fetch_add(&sink, any);
}

/* Products of whole tiles of zeroes, in as many chains as there are tiles for sums. */
__attribute__((target("amx-tile,amx-bf16")))
static void dot_amx(void *arg, unsigned int i)
{
	static const struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = {
		.palette = 1,
		.row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
		.rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
	};

	(void)arg;
	(void)i;
	_tile_loadconfig(&config); /* and all tiles are zero */
	for (int r = 0; r < AMX_ROUNDS; r++) {
		_tile_dpbf16ps(0, 6, 7);
		_tile_dpbf16ps(1, 6, 7);
		_tile_dpbf16ps(2, 6, 7);
		_tile_dpbf16ps(3, 6, 7);
		_tile_dpbf16ps(4, 6, 7);
		_tile_dpbf16ps(5, 6, 7);
	}
	_tile_release();
}

/* The CPU has it and the kernel gives it (Linux, Documentation/arch/x86/xstate.rst). */
static bool may_use_amx(void)
{
	enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
	unsigned int a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 && d & AMX_TILE &&
		!syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA);
}

struct multiplier {
	struct bench_team *team;
	void (*fn)(void *arg, unsigned int i);
};

static void multiply(void *arg)
{
	struct multiplier *m = arg;

	bench_team_run(m->team, m->fn, m);
}

/* @flops: of all that @fn does. */
static double peak(unsigned int threads, void (*fn)(void *arg, unsigned int i), double flops)
{
	struct multiplier m = { bench_team_start(threads), fn };
	double ns = shortest_ns(multiply, &m);

	bench_team_stop(m.team);
	return flops * threads / ns;
}

double bench_peak_fp32_gflops(unsigned int threads)
{
	if (__builtin_cpu_supports("avx512f"))
		return peak(threads, fma_avx512, 32.0 * FMA_ROUNDS * FMA_CHAINS);
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return peak(threads, fma_avx2, 16.0 * FMA_ROUNDS * AVX2_CHAINS);
	return 0;
}

double bench_peak_bf16_gflops(unsigned int threads)
{
	if (may_use_amx())
		return peak(threads, dot_amx, 2.0 * 16 * 16 * 32 * AMX_CHAINS * AMX_ROUNDS);
	if (__builtin_cpu_supports("avx512bf16"))
		return peak(threads, dot_bf16, 64.0 * FMA_ROUNDS * FMA_CHAINS);
	return 0;
}
