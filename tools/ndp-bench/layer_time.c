// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer_time.c - a whole layer on the CPU against its expert FFNs alone: what routing,
 * scheduling, sorting and adding up cost (bar D.3).
 *
 * Both do the same work in the same rounds: ndp_moe_forward() for a batch, and
 * ndp_cpu_ffn() for one expert after the other with the tokens that go there, the
 * shared one included.  Each has its own copy of the weights, and batches change from
 * round to round, so no cache holds anybody's.
 */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SETS = 8, SAMPLE = 8, MAX_RUNS = 20000 };

/* CPU time of each run, in the order of rounds. */
struct runs {
	double ns[MAX_RUNS];
	unsigned int n;
};

static double cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void note_run(struct runs *r, double begin)
{
	if (r->n < MAX_RUNS)
		r->ns[r->n++] = cpu_ns() - begin;
}

/* The pipeline. */
struct pipeline {
	struct ndp_moe_context *ctx;
	const struct layer_experts *e;
	const struct layer_input *sets;
	float *out;
	unsigned int next;
	uint64_t route_ns, schedule_ns, reduce_ns, calls;
	struct runs *runs;
};

static void pipeline_run(void *arg)
{
	struct pipeline *p = arg;
	const struct layer_input *in = &p->sets[p->next++ % SETS];
	const double begin = cpu_ns();
	struct ndp_moe_report r;
	struct ndp_error err;

	if (ndp_moe_forward(p->ctx, p->e->layer, NDP_REGIME_AUTO, in->x, p->e->info.hidden,
			    in->tokens, p->out, p->e->info.hidden, &r, &err) < 0)
		bench_die("%s", err.message);
	p->route_ns += r.route_wall_ns;
	p->schedule_ns += r.schedule_wall_ns;
	p->reduce_ns += r.reduce_wall_ns;
	p->calls++;
	note_run(p->runs, begin);
}

/* Its FFNs. */
struct ffn_set {
	struct ndp_cpu_job *jobs;
	uint32_t *rows;
	unsigned int n;
};

struct ffns {
	struct ndp_cpu *cpu;
	struct ffn_set sets[SETS];
	ndp_bf16 *x;
	float *y;
	unsigned int next;
	struct runs *runs;
};

static void ffns_run(void *arg)
{
	struct ffns *f = arg;
	const struct ffn_set *s = &f->sets[f->next++ % SETS];
	const double begin = cpu_ns();

	for (unsigned int i = 0; i < s->n; i++)
		if (ndp_cpu_ffn(f->cpu, &s->jobs[i], 1, NULL, NULL) < 0)
			bench_die("an FFN failed");
	note_run(f->runs, begin);
}

static void *must(void *p)
{
	if (!p)
		bench_die("out of memory");
	return p;
}

static void add_job(struct ffn_set *s, const struct layer_experts *e, uint32_t expert,
		    const uint32_t *rows, uint32_t tokens, struct ffns *f, const ndp_bf16 *x)
{
	s->jobs[s->n++] = (struct ndp_cpu_job){
		.blocks = e->blocks[expert],
		.shape = *layer_shape(e, expert),
		.act = e->info.act,
		.alpha = e->info.alpha,
		.limit = e->info.limit,
		.x = x,
		.ldx = e->info.hidden,
		.rows = rows,
		.tokens = tokens,
		.y = f->y,
		.ldy = e->info.hidden,
		.node = -1,
	};
}

static void ffn_set_make(struct ffns *f, unsigned int i, const struct layer_experts *e,
			 const struct layer_input *in)
{
	struct ffn_set *s = &f->sets[i];
	ndp_bf16 *x = f->x + (size_t)i * in->tokens * e->info.hidden;
	uint32_t *rows = must(malloc((size_t)in->tokens * (in->k + 1) * sizeof(*rows)));

	s->n = 0;
	s->rows = rows;
	s->jobs = must(calloc(e->info.router.experts + 1, sizeof(*s->jobs)));
	ndp_bf16_from_f32_array(x, in->x, (size_t)in->tokens * e->info.hidden);
	for (uint32_t id = 0; id < e->info.router.experts; id++) {
		uint32_t n = 0;

		for (uint32_t p = 0; p < in->tokens * in->k; p++)
			if (in->ids[p] == id)
				rows[n++] = p / in->k;
		if (n)
			add_job(s, e, id, rows, n, f, x);
		rows += n;
	}
	if (e->info.shared.neurons)
		add_job(s, e, e->info.router.experts, NULL, in->tokens, f, x);
}

static void ffns_make(struct ffns *f, struct ndp_cpu *cpu, const struct layer_experts *e,
		      const struct layer_input *sets)
{
	const size_t batch = (size_t)sets[0].tokens * e->info.hidden;

	memset(f, 0, sizeof(*f));
	f->cpu = cpu;
	f->x = must(aligned_alloc(64, (SETS * batch * sizeof(*f->x) + 63) / 64 * 64));
	f->y = must(aligned_alloc(64, (batch * sizeof(*f->y) + 63) / 64 * 64));
	for (unsigned int i = 0; i < SETS; i++)
		ffn_set_make(f, i, e, &sets[i]);
}

static void ffns_free(struct ffns *f)
{
	for (unsigned int i = 0; i < SETS; i++) {
		free(f->sets[i].jobs);
		free(f->sets[i].rows);
	}
	free(f->x);
	free(f->y);
}

/* The router did what the trace's tokens did, or the two would not do the same work. */
static void check_routing(const struct layer_input *in, const uint32_t *ids)
{
	for (uint32_t t = 0; t < in->tokens; t++)
		for (uint32_t j = 0; j < in->k; j++) {
			bool found = false;

			for (uint32_t i = 0; i < in->k; i++)
				found |= in->ids[t * in->k + i] == ids[t * in->k + j];
			if (!found)
				bench_die("token %u went to expert %u, which is none of those of "
					  "the trace", t, ids[t * in->k + j]);
		}
}

static double check(struct pipeline *p)
{
	const struct layer_input *in = &p->sets[p->next % SETS];
	const uint32_t *ids;

	pipeline_run(p);
	ids = ndp_moe_last_ids(p->ctx, NULL);
	check_routing(in, ids);
	return layer_check(p->e, in, ids, p->out, SAMPLE);
}

/* The least time that the machine's read bandwidth and multipliers allow. */
static double limit_us(const struct ffn_set *s, double gbps, double gflops)
{
	double us = 0;

	for (unsigned int i = 0; i < s->n; i++) {
		const struct ndp_expert_shape *shape = &s->jobs[i].shape;
		const double bytes = (double)ndp_expert_blocks(shape) *
				     (double)ndp_expert_block_bytes(shape);
		const double flops = 6.0 * shape->h_in * shape->neurons * s->jobs[i].tokens;

		us += (bytes / gbps > flops / gflops ? bytes / gbps : flops / gflops) / 1e3;
	}
	return us;
}

struct measuring {
	struct bench_report *rep;
	const struct layer_experts *e;
	const struct layer_trace *trace;
	struct ndp_moe *moe;
	struct ndp_cpu *cpu;
	uint32_t threads;
	unsigned int rounds;
	bool bars;
	double gbps, gflops;
};

static void bars(struct measuring *m, uint32_t batch, double error, double ratio,
		 const char *by)
{
	const char *plural = m->threads > 1 ? "s" : "";
	char name[96];

	if (!m->bars)
		return;
	snprintf(name, sizeof(name), "error-in-bounds-batch-%u-%u-thread%s", batch, m->threads,
		 plural);
	bench_bar(m->rep, "D.3", name, error, BENCH_AT_MOST, 1);
	snprintf(name, sizeof(name), "layer-to-its-ffns-batch-%u-%u-thread%s%s", batch, m->threads,
		 plural, by);
	bench_bar(m->rep, "D.3", name, ratio, BENCH_AT_MOST, 1.10);
}

/* Short ones more often: a median of few is a matter of luck on a busy machine. */
static unsigned int rounds(const struct measuring *m, uint32_t batch)
{
	return m->rounds * (batch < 4 ? 8 : batch < 32 ? 3 : 1);
}

static void measure(struct measuring *m, uint32_t batch)
{
	struct bench_sampling s = { .want = rounds(m, batch), .warmup = 2,
				    .seconds = 4 + 0.04 * batch };
	struct layer_input sets[SETS];
	struct pipeline p = { .e = m->e, .sets = sets };
	struct bench_ratio ratio, cpu;
	struct runs *runs = must(calloc(2, sizeof(*runs)));
	struct ffns f;
	double error;
	bool busy;

	for (uint32_t i = 0; i < SETS; i++)
		layer_input_make(&sets[i], m->e, m->trace, i * m->trace->layers / SETS, i * 31,
				 batch, i + 1);
	p.ctx = layer_context(m->moe, batch);
	p.out = must(aligned_alloc(64, (size_t)batch * m->e->info.hidden * sizeof(*p.out) + 64 -
				   (size_t)batch * m->e->info.hidden * sizeof(*p.out) % 64));
	ffns_make(&f, m->cpu, m->e, sets);
	p.runs = &runs[0];
	f.runs = &runs[1];
	error = check(&p);
	p.next = runs[0].n = 0;
	p.route_ns = p.schedule_ns = p.reduce_ns = p.calls = 0;
	struct bench_contender c[] = {
		{ .name = "layer", .run = pipeline_run, .arg = &p },
		{ .name = "its FFNs", .run = ffns_run, .arg = &f },
	};

	bench_sample(&s, c, 2);
	ratio = bench_ratio(c[0].ns, c[1].ns, s.rounds);
	/* Without the rounds before, in which memory is touched for the first time. */
	cpu = bench_ratio(runs[0].ns + s.warmup, runs[1].ns + s.warmup, runs[0].n - s.warmup);
	busy = m->threads == 1 && s.dirty == s.rounds;
	bench_row(m->rep, (struct bench_cell[]){
		BENCH_NUM(batch), BENCH_NUM(m->threads), BENCH_NUM(f.sets[0].n),
		BENCH_NUM(bench_median(c[0].ns, s.rounds) / 1e3),
		BENCH_NUM(bench_median(c[1].ns, s.rounds) / 1e3),
		BENCH_NUM(limit_us(&f.sets[0], m->gbps, m->gflops)), BENCH_NUM(ratio.median),
		BENCH_NUM(cpu.median), BENCH_NUM((double)p.route_ns / (double)p.calls / 1e3),
		BENCH_NUM((double)p.schedule_ns / (double)p.calls / 1e3),
		BENCH_NUM((double)p.reduce_ns / (double)p.calls / 1e3), BENCH_NUM(error),
		BENCH_NUM(s.rounds), BENCH_NUM(s.dirty),
	});
	bars(m, batch, error, busy ? cpu.median : ratio.median, busy ? "-by-cpu-time" : "");
	free(runs);
	bench_samples_free(c, 2);
	ffns_free(&f);
	free(p.out);
	ndp_moe_context_free(p.ctx);
	for (uint32_t i = 0; i < SETS; i++)
		layer_input_free(&sets[i]);
}

void layer_time(struct bench_report *rep, const struct ndp_model *model,
		const struct layer_trace *trace, const uint32_t *batches, unsigned int nr_batches,
		const uint32_t *threads, unsigned int nr_threads, unsigned int rounds, bool bars)
{
	static const struct bench_column columns[] = {
		{ "batch", "batch", 5, 0 },
		{ "threads", "threads", 7, 0 },
		{ "experts", "experts\nused", 7, 0 },
		{ "layer_wall_us", "layer\nus wall", 11, 1 },
		{ "ffns_wall_us", "its FFNs\nus wall", 11, 1 },
		{ "limit_us", "limit\nus", 11, 1 },
		{ "ratio", "layer /\nits FFNs", 8, 3 },
		{ "cpu_ratio", "the same\nCPU time", 8, 3 },
		{ "route_wall_us", "routing\nus wall", 8, 1 },
		{ "schedule_wall_us", "plan\nus wall", 7, 1 },
		{ "reduce_wall_us", "adding up\nus wall", 9, 1 },
		{ "error_in_bounds", "error in\nbounds", 8, 3 },
		{ "rounds", "rounds", 6, 0 },
		{ "disturbed_rounds", "of these\ndisturbed", 9, 0 },
	};
	struct layer_experts e;

	layer_experts_make(&e, model);
	if (e.info.expert_bias)
		bench_die("FFNs alone of models whose experts have biases are not measured");
	bench_note(rep, "%s: %u experts of %u x %u, top-%u, shared: %u neurons; routing of "
		   "recorded "
		   "tokens; the CPU only", e.info.family, e.info.router.experts, e.info.hidden,
		   e.info.routed.neurons, e.info.router.top_k, e.info.shared.neurons);
	bench_table(rep, "layer", "A layer against its expert FFNs one by one, medians of "
		    "interleaved "
		    "rounds; the limit: weights read once and multiplied at the machine's best",
		    columns, sizeof(columns) / sizeof(columns[0]));
	for (unsigned int t = 0; t < nr_threads; t++) {
		struct measuring m = {
			.rep = rep, .e = &e, .trace = trace, .threads = threads[t],
			.rounds = rounds, .bars = bars, .cpu = layer_cpu(threads[t], false),
			.gbps = bench_read_gbps(threads[t]),
			.gflops = bench_peak_fp32_gflops(threads[t]),
		};
		const double bf16 = bench_peak_bf16_gflops(threads[t]);

		m.gflops = bf16 > m.gflops ? bf16 : m.gflops;
		m.moe = layer_load(model, &(struct ndp_moe_options){ .cpu = m.cpu });
		for (unsigned int b = 0; b < nr_batches; b++)
			measure(&m, batches[b]);
		ndp_moe_free(m.moe);
		ndp_cpu_close(m.cpu);
	}
	layer_experts_free(&e);
}
