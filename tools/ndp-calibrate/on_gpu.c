// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * on_gpu.c - see calibrate.h: FFNs by tokens on a GPU, of experts that are resident there,
 * and how fast experts get there.
 */
#include "calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GPU_EXPERTS 8

struct gpu_set {
	struct ndp_gpu *gpu;
	struct ndp_gpu_queue *queue;
	struct bench_experts experts;
	struct ndp_gpu_weights *weights[GPU_EXPERTS];
	ndp_bf16 *x;
	float *y;
	uint32_t tokens;
	unsigned int jobs;
	unsigned int next;
};

static void gpu_run(void *arg)
{
	struct gpu_set *s = arg;
	const uint32_t h = s->experts.shape.h_in;
	struct ndp_gpu_job jobs[GPU_EXPERTS];
	struct ndp_error err;
	int r;

	memset(jobs, 0, sizeof(jobs));
	for (unsigned int i = 0; i < s->jobs; i++) {
		unsigned int e = s->next++ % s->experts.n;

		jobs[i] = (struct ndp_gpu_job){
			.weights = s->weights[e], .blocks = s->experts.blocks[e],
			.shape = s->experts.shape, .act = NDP_ACT_SILU_MUL, .tokens = s->tokens,
			.y = s->y + (size_t)i * s->tokens * h, .ldy = h,
		};
	}
	if (ndp_gpu_submit(s->queue, s->x, h, s->tokens, jobs, s->jobs, &err) < 0)
		bench_die("%s", err.message);
	r = ndp_gpu_wait(s->queue, NULL);
	if (r < 0)
		bench_die("the GPU cannot compute: %s", strerror(-r));
}

/* Uploads all experts; returns the time that took. */
static double gpu_make(struct gpu_set *s, struct ndp_gpu *gpu, uint32_t hidden, uint32_t neurons,
		       unsigned int n, uint32_t most)
{
	struct ndp_error err;
	uint64_t start;

	memset(s, 0, sizeof(*s));
	s->gpu = gpu;
	bench_experts_make(&s->experts, hidden, neurons, n, 21);
	s->x = aligned_alloc(64, ((size_t)most * hidden * sizeof(*s->x) + 63) / 64 * 64);
	s->y = aligned_alloc(64, ((size_t)most * hidden * sizeof(*s->y) * n + 63) / 64 * 64);
	if (!s->x || !s->y)
		bench_die("out of memory");
	bench_random_bf16(s->x, (size_t)most * hidden, 1, 5);
	start = bench_now_ns();
	for (unsigned int i = 0; i < n; i++)
		if (ndp_gpu_upload(&s->weights[i], gpu, &s->experts.shape, s->experts.blocks[i],
				   &err) < 0)
			bench_die("%s", err.message);
	for (unsigned int i = 0; i < n; i++) {
		int r = ndp_gpu_upload_wait(s->weights[i]);

		if (r < 0)
			bench_die("an upload to the GPU failed: %s", strerror(-r));
	}
	start = bench_now_ns() - start;
	if (ndp_gpu_queue_create(&s->queue, gpu, most, most * n, hidden, &err) < 0)
		bench_die("%s", err.message);
	return (double)start;
}

static void gpu_free(struct gpu_set *s)
{
	ndp_gpu_queue_free(s->queue);
	for (unsigned int i = 0; i < s->experts.n; i++)
		ndp_gpu_weights_free(s->weights[i]);
	bench_experts_free(&s->experts);
	free(s->x);
	free(s->y);
}

static double run_ns(struct gpu_set *s, double seconds)
{
	struct bench_sampling sampling = { .want = 7, .warmup = 1, .seconds = seconds };
	struct bench_contender c = { .name = "jobs", .run = gpu_run, .arg = s };
	double ns;

	bench_sample(&sampling, &c, 1);
	ns = bench_median(c.ns, sampling.rounds);
	bench_samples_free(&c, 1);
	return ns;
}

static double overhead(struct ndp_gpu *gpu)
{
	struct gpu_set s;
	double one, all;

	gpu_make(&s, gpu, 64, 32, GPU_EXPERTS, 1);
	s.tokens = 1;
	s.jobs = 1;
	one = run_ns(&s, 1);
	s.jobs = GPU_EXPERTS;
	all = run_ns(&s, 1);
	gpu_free(&s);
	/* What another expert costs in a launch that is there anyway, or a share of the launch. */
	return fmax((all - one) / (GPU_EXPERTS - 1), all / GPU_EXPERTS / 2);
}

static uint64_t needed(const struct options *o)
{
	uint64_t most = 0;

	for (unsigned int s = 0; s < o->nr_shapes; s++) {
		const struct ndp_expert_shape e = { o->hidden[s], o->hidden[s], o->neurons[s] };
		uint64_t bytes = (uint64_t)ndp_expert_blocks(&e) * ndp_expert_block_bytes(&e);

		most = bytes > most ? bytes : most;
	}
	/* Memory is given in pieces. */
	return (GPU_EXPERTS + 1) * most + (64u << 20);
}

void measure_gpu(struct measured *m, const struct options *o)
{
	double gflops[NDP_MAX_RATE_POINTS][MAX_SHAPES];
	struct ndp_gpu_info info;
	struct ndp_gpu *gpu;
	struct ndp_error err;

	if (!o->gpu)
		return;
	if (ndp_gpu_open(&gpu, o->gpu_spec, needed(o), &err) < 0)
		bench_die("%s", err.message);
	ndp_gpu_info(gpu, &info);
	m->has_gpu = true;
	m->gpu_bytes = info.memory_bytes / 4 * 3;
	m->gpu_is_cpu = info.is_cpu;
	memcpy(m->gpu_name, info.name, sizeof(m->gpu_name));
	m->gpu_curve.overhead_ns = overhead(gpu);
	say(o, "a job on %s: %.1f us of many (wall)", info.name, m->gpu_curve.overhead_ns / 1e3);
	for (unsigned int s = 0; s < o->nr_shapes; s++) {
		struct gpu_set set;
		double ns = gpu_make(&set, gpu, o->hidden[s], o->neurons[s], GPU_EXPERTS,
				     o->tokens[o->nr_tokens - 1]);
		double bytes = (double)set.experts.bytes;

		m->upload_gbps = fmax(m->upload_gbps, bytes * GPU_EXPERTS / ns);
		for (unsigned int i = 0; i < o->nr_tokens; i++) {
			set.tokens = o->tokens[i];
			set.jobs = GPU_EXPERTS;
			ns = run_ns(&set, o->seconds) / GPU_EXPERTS;
			gflops[i][s] = 6.0 * o->hidden[s] * o->neurons[s] * set.tokens / ns;
			m->gpu_curve.gbps = fmax(m->gpu_curve.gbps, bytes / ns);
		}
		gpu_free(&set);
	}
	for (unsigned int i = 0; i < o->nr_tokens; i++) {
		m->gpu_curve.tokens[i] = o->tokens[i];
		m->gpu_curve.gflops[i] = bench_geomean(gflops[i], o->nr_shapes);
		m->gpu_curve.n++;
		say(o, "%u tokens: GPU %.1f GFLOP/s (wall)", o->tokens[i], m->gpu_curve.gflops[i]);
	}
	say(o, "uploads: %.2f GB/s (wall)", m->upload_gbps);
	ndp_gpu_close(gpu);
}
