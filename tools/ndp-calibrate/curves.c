// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * curves.c - see calibrate.h: FFNs by tokens on CPU threads and on DIMMs.
 *
 * Where a profile is to describe both at work they are measured at work: the CPU
 * computes in this thread and the DIMMs in another one's queue, for the same length
 * of time, experts of the same shape and tokens.  What they take from one another
 * (memory bandwidth; in an emulation, cores) is then in the curves.
 */
#include "calibrate.h"
#include "../ndp-bench/ndp_set.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_SAMPLES 4096
/* Runs shorter than this are repeated within a sample. */
#define SAMPLE_NS 1000000

/*
 * What one domain does again and again, and how long each run took.  A run in which a
 * thread of this process was preempted says something about other programs.
 */
struct worker {
	void (*run)(void *arg);
	void *arg;
	_Atomic unsigned int n;	/* another thread looks at it */
	unsigned int clean;	/* of them, not preempted: ns[0] to ns[clean - 1] */
	double ns[MAX_SAMPLES];
};

static long preemptions(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_nivcsw;
}

/* Until *@go is not 1 any more, or (@go NULL) for @seconds and a few runs at least. */
static void work(struct worker *w, _Atomic int *go, double seconds)
{
	const uint64_t start = bench_now_ns();
	uint64_t now = start;

	w->n = w->clean = 0;
	while (w->n < MAX_SAMPLES && (go ? atomic_load(go) == 1 :
				      w->n < 5 || (double)(now - start) < seconds * 1e9)) {
		uint64_t then = bench_now_ns();
		long before = preemptions();
		bool clean;

		w->run(w->arg);
		clean = preemptions() == before;
		now = bench_now_ns();
		w->ns[w->n++] = (double)(now - then);
		if (clean) {
			double swap = w->ns[w->clean];

			w->ns[w->clean++] = w->ns[w->n - 1];
			w->ns[w->n - 1] = swap;
		}
	}
}

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of undisturbed runs; where there are few of them, the lower quartile of all. */
static double typical_ns(struct worker *w)
{
	if (w->clean >= 5)
		return bench_median(w->ns, w->clean);
	qsort(w->ns, w->n, sizeof(w->ns[0]), ascending);
	return w->ns[w->n / 4];
}

/* ---- the CPU ------------------------------------------------------------------ */

struct cpu_set_of_jobs {
	struct ndp_cpu *cpu;
	struct bench_experts experts;
	bool in_dimms;		/* they are the DIMMs', and read there in place */
	ndp_bf16 *x;
	float *y;
	float *out;
	uint32_t tokens;
	unsigned int jobs;	/* in a run */
	unsigned int next;
	unsigned int sums;	/* how often results are added up; see below */
};

/*
 * In a layer results are added to the output, weighted: the CPU's own ones, and where
 * there are DIMMs theirs as well, about as many.
 */
static void add_up(struct cpu_set_of_jobs *s)
{
	const size_t n = (size_t)s->tokens * s->experts.shape.h_in;

	for (unsigned int k = 0; k < s->sums; k++)
		for (unsigned int i = 0; i < s->jobs; i++)
			for (size_t j = 0; j < n; j++)
				s->out[j] += 0.125f * s->y[i * n + j];
}

static void cpu_run(void *arg)
{
	struct cpu_set_of_jobs *s = arg;
	const uint32_t h = s->experts.shape.h_in;
	struct ndp_cpu_job job[16];
	int r;

	for (unsigned int i = 0; i < s->jobs; i++)
		job[i] = (struct ndp_cpu_job){
			.blocks = s->experts.blocks[s->next++ % s->experts.n],
			.shape = s->experts.shape, .act = NDP_ACT_SILU_MUL, .x = s->x, .ldx = h,
			.tokens = s->tokens, .y = s->y + (size_t)i * s->tokens * h, .ldy = h,
			.node = -1,
		};
	r = ndp_cpu_ffn(s->cpu, job, s->jobs, NULL, NULL);
	if (r < 0)
		bench_die("the CPU cannot compute: %s", strerror(-r));
	if (s->sums)
		add_up(s);
}

/* Where there are DIMMs the CPU finds experts there, and not in memory of another kind. */
static void borrow_experts(struct cpu_set_of_jobs *s, struct ndp_set *set)
{
	struct bench_experts *e = &s->experts;

	e->shape = set->shape;
	e->n = set->n;
	e->blocks = calloc(e->n, sizeof(*e->blocks));
	if (!e->blocks)
		bench_die("out of memory");
	for (unsigned int i = 0; i < e->n; i++) {
		e->blocks[i] = (void *)ndp_weights_map(set->weights[i]);
		if (!e->blocks[i])
			bench_die("experts in DIMMs cannot be mapped: %s", strerror(errno));
	}
	/* Not those that the DIMMs read at the moment. */
	s->next = e->n / 2;
	s->in_dimms = true;
}

/* @set: of DIMMs, or NULL. */
static void cpu_make(struct cpu_set_of_jobs *s, struct ndp_cpu *cpu, uint32_t hidden,
		     uint32_t neurons, uint32_t most, struct ndp_set *set)
{
	const struct ndp_expert_shape shape = { hidden, hidden, neurons };
	size_t bytes = (size_t)ndp_expert_blocks(&shape) * ndp_expert_block_bytes(&shape);

	memset(s, 0, sizeof(*s));
	s->cpu = cpu;
	/* More than any cache holds. */
	if (set)
		borrow_experts(s, set);
	else
		bench_experts_make(&s->experts, hidden, neurons,
				   (unsigned int)(4 * bench_cache_bytes() / bytes + 1), 11);
	s->x = aligned_alloc(64, (size_t)most * hidden * sizeof(*s->x) / 64 * 64 + 64);
	s->y = aligned_alloc(64, (size_t)most * hidden * sizeof(*s->y) * 4 / 64 * 64 + 64);
	s->out = aligned_alloc(64, (size_t)most * hidden * sizeof(*s->out) / 64 * 64 + 64);
	if (!s->x || !s->y || !s->out)
		bench_die("out of memory");
	memset(s->out, 0, (size_t)most * hidden * sizeof(*s->out));
	bench_random_bf16(s->x, (size_t)most * hidden, 1, 5);
}

static void cpu_free(struct cpu_set_of_jobs *s)
{
	if (s->in_dimms)
		free(s->experts.blocks);
	else
		bench_experts_free(&s->experts);
	free(s->x);
	free(s->y);
	free(s->out);
}

/* ---- DIMMs, in the background ------------------------------------------------------ */

/* A thread with a queue of its own, which computes as long as it is told to. */
struct background {
	struct ndp_device *dev;
	struct ndp_set set;
	struct worker w;
	uint32_t hidden, neurons, most;
	unsigned int dimms, n;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic int go;		/* 0: wait, 1: compute, -1: end */
	bool idle;		/* under the lock */
	uint32_t tokens;
};

static void *compute_on_dimms(void *arg)
{
	struct background *b = arg;

	/* A queue belongs to the thread that made it, so the set is made here. */
	ndp_set_make(&b->set, b->dev, b->hidden, b->neurons, b->n, b->most, 2 * b->dimms);
	/* Two for each DIMM: one computes, one waits. */
	b->set.commands = 2 * b->dimms;
	b->w.run = ndp_set_run;
	b->w.arg = &b->set;
	pthread_mutex_lock(&b->lock);
	for (;;) {
		b->idle = true;
		pthread_cond_broadcast(&b->changed);
		while (atomic_load(&b->go) == 0)
			pthread_cond_wait(&b->changed, &b->lock);
		if (atomic_load(&b->go) < 0)
			break;
		b->idle = false;
		b->set.tokens = b->tokens;
		pthread_mutex_unlock(&b->lock);
		ndp_set_run(&b->set);
		work(&b->w, &b->go, 0);
		pthread_mutex_lock(&b->lock);
		while (atomic_load(&b->go) == 1) /* as many samples as there is room for */
			pthread_cond_wait(&b->changed, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	ndp_set_free(&b->set);
	return NULL;
}

/* Says so, and waits until it is idle unless it is to compute. */
static void background_tell(struct background *b, int go)
{
	pthread_mutex_lock(&b->lock);
	if (go == 1)
		b->idle = false;
	atomic_store(&b->go, go);
	pthread_cond_broadcast(&b->changed);
	while (go == 0 && !b->idle)
		pthread_cond_wait(&b->changed, &b->lock);
	pthread_mutex_unlock(&b->lock);
}

static struct background *background_start(struct ndp_device *dev, unsigned int dimms,
					   const struct options *o, unsigned int shape)
{
	const struct ndp_expert_shape e = { o->hidden[shape], o->hidden[shape], o->neurons[shape] };
	size_t bytes = (size_t)ndp_expert_blocks(&e) * ndp_expert_block_bytes(&e);
	struct background *b = calloc(1, sizeof(*b));

	if (!b)
		bench_die("out of memory");
	b->dev = dev;
	b->dimms = dimms;
	b->hidden = e.h_in;
	b->neurons = e.neurons;
	b->most = o->tokens[o->nr_tokens - 1];
	/* More than any cache holds. */
	b->n = (unsigned int)(4 * bench_cache_bytes() / bytes / dimms + 1) * dimms;
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->changed, NULL);
	if (pthread_create(&b->thread, NULL, compute_on_dimms, b))
		bench_die("a thread could not be started");
	background_tell(b, 0);
	return b;
}

static void background_end(struct background *b)
{
	background_tell(b, -1);
	pthread_join(b->thread, NULL);
	pthread_cond_destroy(&b->changed);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* ---- points ---------------------------------------------------------------------- */

static void pause_for(double seconds)
{
	const struct timespec t = {
		.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9),
	};

	nanosleep(&t, NULL);
}

/* One try of a point; NaN for what is not measured. */
struct point {
	double cpu_ns, ndp_ns;	/* of an expert; in DIMMs of one on each */
	double share;		/* of the CPU time that threads which never wait would get */
};

static double process_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct point try_point(const struct options *o, unsigned int i, double estimate,
			      struct cpu_set_of_jobs *cpu, struct background *b, uint32_t busy)
{
	struct point p = { NAN, NAN, 1 };
	double cpu_time, wall;

	if (b) {
		b->tokens = o->tokens[i];
		b->w.n = 0; /* not those of the point before */
		background_tell(b, 1);
	}
	cpu_time = process_ns();
	wall = (double)bench_now_ns();
	if (cpu) {
		struct worker *w = calloc(1, sizeof(*w));

		if (!w)
			bench_die("out of memory");
		cpu->tokens = o->tokens[i];
		cpu->jobs = estimate < SAMPLE_NS ? 4 : 1;
		w->run = cpu_run;
		w->arg = cpu;
		cpu_run(cpu);
		work(w, NULL, o->seconds);
		p.cpu_ns = typical_ns(w) / cpu->jobs;
		free(w);
	} else {
		pause_for(o->seconds);
	}
	/* In DIMMs it may take longer than on the CPU, much longer when others are in the way. */
	while (b && b->w.n < 5 && (double)bench_now_ns() - wall < 30e9)
		pause_for(o->seconds / 10);
	p.share = (process_ns() - cpu_time) / ((double)bench_now_ns() - wall) / busy;
	if (!b)
		return p;
	background_tell(b, 0);
	if (b->w.n == 0)
		bench_die("%s: not one command of %u tokens has ended: give --seconds more",
			  o->device, o->tokens[i]);
	/* A run was two commands on each DIMM, one after the other. */
	p.ndp_ns = typical_ns(&b->w) / 2;
	return p;
}

/*
 * A point of one shape on the CPU (@cpu not NULL) and the DIMMs (@b not NULL).  When
 * threads that should compute at the same time share a core, or give theirs to other
 * programs, each seems faster than it is beside the other: then it is tried again, and
 * the try with the most CPU time counts.
 */
static void measure_point(struct measured *m, const struct options *o, unsigned int shape,
			  unsigned int i, struct cpu_set_of_jobs *cpu, struct background *b,
			  double *on_cpu, double *on_ndp)
{
	const struct ndp_expert_shape e = { o->hidden[shape], o->hidden[shape], o->neurons[shape] };
	const double bytes = (double)ndp_expert_blocks(&e) * (double)ndp_expert_block_bytes(&e);
	const double flops = 6.0 * e.h_in * e.neurons * o->tokens[i];
	const double estimate = bytes / 20 > flops / 200 ? bytes / 20 : flops / 200;
	/* DIMMs in this process are a thread each. */
	uint32_t busy = (cpu ? m->threads : 0) + (b && m->device[0] != '/' ? m->nr_dimms : 0);
	struct point best = { .share = -1 };

	busy = busy < bench_cpus() ? busy : bench_cpus();
	for (int tries = 0; tries < 4 && best.share < 0.95; tries++) {
		struct point p = try_point(o, i, estimate, cpu, b, busy ? busy : 1);

		if (p.share > best.share || !busy)
			best = p;
		if (!busy)
			break;
	}
	m->points++;
	m->disturbed += busy && best.share < 0.9;
	*on_cpu = flops / best.cpu_ns;
	*on_ndp = flops / best.ndp_ns;
	if (cpu)
		m->cpu.gbps = fmax(m->cpu.gbps, bytes / best.cpu_ns);
	if (b)
		m->ndp.gbps = fmax(m->ndp.gbps, bytes / best.ndp_ns);
	say(o, "%ux%u, %u tokens, wall:%s%.0f%s%s%.0f%s, %.0f %% of the CPU time", e.h_in,
	    e.neurons, o->tokens[i], cpu ? " CPU " : "", cpu ? *on_cpu : 0, cpu ? " GFLOP/s" : "",
	    b ? " a DIMM " : "", b ? *on_ndp : 0, b ? " GFLOP/s" : "", 100 * best.share);
}

static void add_point(struct curve *c, const double *gflops, unsigned int n, uint32_t tokens)
{
	double low = gflops[0], high = gflops[0];

	for (unsigned int i = 1; i < n; i++) {
		low = gflops[i] < low ? gflops[i] : low;
		high = gflops[i] > high ? gflops[i] : high;
	}
	c->tokens[c->n] = tokens;
	c->gflops[c->n] = bench_geomean(gflops, n);
	c->spread[c->n++] = high / low;
}

static void points(struct measured *m, const struct options *o, struct ndp_cpu *cpu,
		   struct ndp_device *dev)
{
	double on_cpu[NDP_MAX_RATE_POINTS][MAX_SHAPES], on_ndp[NDP_MAX_RATE_POINTS][MAX_SHAPES];
	uint32_t most = o->tokens[o->nr_tokens - 1];

	for (unsigned int s = 0; s < o->nr_shapes; s++) {
		struct background *b = dev ? background_start(dev, m->nr_dimms, o, s) : NULL;
		struct cpu_set_of_jobs jobs;

		if (cpu) {
			cpu_make(&jobs, cpu, o->hidden[s], o->neurons[s], most,
				 b ? &b->set : NULL);
			jobs.sums = dev ? 2 : 1;
		}
		for (unsigned int i = 0; i < o->nr_tokens; i++)
			measure_point(m, o, s, i, cpu ? &jobs : NULL, b, &on_cpu[i][s],
				      &on_ndp[i][s]);
		if (cpu)
			cpu_free(&jobs);
		if (b)
			background_end(b);
	}
	for (unsigned int i = 0; i < o->nr_tokens; i++) {
		if (cpu)
			add_point(&m->cpu, on_cpu[i], o->nr_shapes, o->tokens[i]);
		if (dev)
			add_point(&m->ndp, on_ndp[i], o->nr_shapes, o->tokens[i]);
	}
}

/* ---- overheads, links ---------------------------------------------------------------- */

#define TINY_JOBS 16

static double cpu_overhead(struct ndp_cpu *cpu)
{
	struct cpu_set_of_jobs s;
	struct bench_sampling sampling = { .want = 200, .warmup = 20, .seconds = 1 };
	struct bench_contender c = { .name = "job", .run = cpu_run, .arg = &s };
	double ns;

	memset(&s, 0, sizeof(s));
	s.cpu = cpu;
	s.tokens = 1;
	s.jobs = TINY_JOBS;
	bench_experts_make(&s.experts, 64, 32, 1, 3);
	s.x = aligned_alloc(64, 64 * sizeof(*s.x));
	s.y = aligned_alloc(64, TINY_JOBS * 64 * sizeof(*s.y));
	if (!s.x || !s.y)
		bench_die("out of memory");
	bench_random_bf16(s.x, 64, 1, 5);
	bench_sample(&sampling, &c, 1);
	ns = bench_median(c.ns, sampling.rounds) / TINY_JOBS;
	bench_samples_free(&c, 1);
	cpu_free(&s);
	return ns;
}

static double ndp_overhead(struct ndp_device *dev)
{
	struct bench_sampling sampling = { .want = 100, .warmup = 10, .seconds = 1 };
	struct ndp_set s;
	struct bench_contender c = { .name = "commands", .run = ndp_set_run, .arg = &s };
	double ns;

	ndp_set_make(&s, dev, 64, 32, NDP_SET_DEPTH, 1, NDP_SET_DEPTH);
	s.tokens = 1;
	s.commands = NDP_SET_DEPTH;
	bench_sample(&sampling, &c, 1);
	ns = bench_median(c.ns, sampling.rounds) / NDP_SET_DEPTH;
	bench_samples_free(&c, 1);
	ndp_set_free(&s);
	return ns;
}

struct mover {
	struct ndp_weights *w;
	uint32_t blocks;
	uint32_t mask;
	unsigned int turn;
};

static void move(void *arg)
{
	struct mover *v = arg;
	struct ndp_placement p;
	struct ndp_error err;

	ndp_placement_local(&p, v->blocks, ndp_set_dimm(v->mask, ++v->turn));
	if (ndp_weights_migrate(v->w, &p, NULL, &err) < 0)
		bench_die("an expert cannot be moved: %s", err.message);
}

static double move_ns(struct ndp_device *dev, uint32_t mask, uint32_t hidden, uint32_t neurons,
		      double *bytes)
{
	struct bench_sampling sampling = { .want = 15, .warmup = 2, .seconds = 2 };
	struct mover v = { .mask = mask & -mask };
	struct bench_contender c = { .name = "move", .run = move, .arg = &v };
	struct ndp_set s;
	double ns;

	v.mask |= (mask & (mask - 1)) & -(mask & (mask - 1)); /* two DIMMs */
	ndp_set_make(&s, dev, hidden, neurons, 1, 1, 1);
	v.w = s.weights[0];
	v.blocks = ndp_expert_blocks(&s.shape);
	*bytes = (double)v.blocks * (double)ndp_expert_block_bytes(&s.shape);
	bench_sample(&sampling, &c, 1);
	ns = bench_median(c.ns, sampling.rounds);
	bench_samples_free(&c, 1);
	ndp_set_free(&s);
	return ns;
}

static void links(struct measured *m, const struct options *o, struct ndp_device *dev,
		  uint32_t mask)
{
	double small, large, bytes;

	if (!(mask & (mask - 1)))
		return;
	small = move_ns(dev, mask, 64, 32, &bytes);
	large = move_ns(dev, mask, o->hidden[0], o->neurons[0], &bytes);
	m->link_latency_ns = small;
	m->link_gbps = bytes / fmax(large - small, 1);
	say(o, "moving experts from DIMM to DIMM: %.2f GB/s, %.0f us at least (wall)", m->link_gbps,
	    small / 1e3);
}

static void open_dimms(struct measured *m, const struct options *o, struct ndp_device **dev,
		       uint32_t *mask)
{
	struct ndp_device_info info;
	struct ndp_dimm_info dimm;
	struct ndp_error err;

	if (ndp_open(dev, o->device, &err) < 0)
		bench_die("%s", err.message);
	ndp_set_check(ndp_device_info(*dev, &info), "the device");
	ndp_set_check(ndp_dimm_info(*dev, ndp_set_dimm(info.dimm_mask, 0), &dimm), "a DIMM");
	if (o->tokens[o->nr_tokens - 1] > info.max_tokens)
		bench_usage("--tokens: %s takes at most %u tokens in a command", info.name,
			    info.max_tokens);
	*mask = info.dimm_mask;
	m->nr_dimms = (uint32_t)__builtin_popcount(info.dimm_mask);
	if (2 * m->nr_dimms > NDP_SET_DEPTH)
		bench_die("%s: at most %d DIMMs can be measured", info.name, NDP_SET_DEPTH / 2);
	m->dimm_bytes = dimm.mem_bytes;
	m->has_ndp = true;
	memcpy(m->device, info.name, sizeof(m->device));
}

void measure_curves(struct measured *m, const struct options *o)
{
	struct ndp_cpu *cpu = NULL;
	struct ndp_device *dev = NULL;
	struct ndp_error err;
	uint32_t mask = 0;

	if (o->cpu) {
		const struct ndp_cpu_options options = { .threads = o->threads };
		struct ndp_cpu_info info;

		if (ndp_cpu_open(&cpu, &options, &err) < 0)
			bench_die("%s", err.message);
		ndp_cpu_info(cpu, &info);
		m->has_cpu = true;
		m->isa = ndp_isa_name(info.isa);
		m->threads = info.threads;
		m->cpu.overhead_ns = cpu_overhead(cpu);
		say(o, "a job on the CPU, %u threads, %s: %.0f ns (wall)", info.threads, m->isa,
		    m->cpu.overhead_ns);
	}
	if (o->ndp) {
		open_dimms(m, o, &dev, &mask);
		m->ndp.overhead_ns = ndp_overhead(dev);
		say(o, "a command on %u DIMMs of %s: %.0f ns of many (wall)", m->nr_dimms,
		    m->device, m->ndp.overhead_ns);
		links(m, o, dev, mask);
	}
	if (cpu && dev && o->alone) {
		points(m, o, cpu, NULL);
		points(m, o, NULL, dev);
	} else {
		points(m, o, cpu, dev);
	}
	if (dev)
		ndp_close(dev);
	if (cpu)
		ndp_cpu_close(cpu);
}
