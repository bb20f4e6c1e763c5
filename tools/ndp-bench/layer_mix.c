// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer_mix.c - the same layer over every mix of GPU, CPU and in-process DIMMs and by
 * every policy, against FP64; and the deterministic mode's bits on any number of threads
 * (bar D.4).
 */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	TOKENS = 24,
	GPU = 1 << NDP_DOMAIN_GPU,
	CPU = 1 << NDP_DOMAIN_CPU,
	NDP = 1 << NDP_DOMAIN_NDP,
};

/* By this nobody is so fast that others get nothing. */
static const struct ndp_host even = {
	.gpu = { .gflops = 40, .gbps = 40, .overhead_ns = 100 },
	.cpu = { .gflops = 40, .overhead_ns = 100 },
	.cpu_plain = { .gflops = 40, .overhead_ns = 100 },
	.dimm = { .gflops = 15, .gbps = 15, .overhead_ns = 100 },
	.pcie_gbps = 40, .channel_gbps = 20, .nr_channels = 2, .nr_dimms = 4,
};

struct mixing {
	struct bench_report *rep;
	const struct ndp_model *model;
	const struct layer_experts *e;
	struct ndp_device *dev;
	struct ndp_cpu *cpu;
	struct ndp_gpu *gpu;
	double worst;		/* of all mixes, in bounds */
	uint64_t pairs[NDP_DOMAINS];	/* computed where all three compute */
};

static const char *domain_names(uint32_t domains, char buf[16])
{
	snprintf(buf, 16, "%s%s%s", domains & GPU ? "gpu " : "", domains & CPU ? "cpu " : "",
		 domains & NDP ? "ndp " : "");
	buf[strlen(buf) - 1] = 0;
	for (char *c = buf; *c; c++)
		*c = *c == ' ' ? '+' : *c;
	return buf;
}

static float *output(const struct layer_experts *e)
{
	const size_t n = (size_t)TOKENS * e->info.hidden;
	float *out = malloc(n * sizeof(*out));

	if (!out)
		bench_die("out of memory");
	memset(out, 0xff, n * sizeof(*out));
	return out;
}

static void forward(struct ndp_moe_context *ctx, const struct layer_experts *e,
		    const struct layer_input *in, float *out, struct ndp_moe_report *r)
{
	struct ndp_error err;

	if (ndp_moe_forward(ctx, e->layer, NDP_REGIME_AUTO, in->x, e->info.hidden, in->tokens, out,
			    e->info.hidden, r, &err) < 0)
		bench_die("%s", err.message);
}

static void mix(struct mixing *m, uint32_t domains, enum ndp_policy policy)
{
	const struct ndp_moe_options o = {
		.device = m->dev, .cpu = m->cpu, .gpu = m->gpu, .domains = domains,
		.policy = policy, .host = &even, .placement = "spread:2",
	};
	struct ndp_moe *moe = layer_load(m->model, &o);
	struct ndp_moe_context *ctx = layer_context(moe, TOKENS);
	uint64_t pairs[NDP_DOMAINS] = { 0 };
	float *out = output(m->e);
	double worst = 0;
	char names[16];

	/* Once with nothing in GPU memory, once with some. */
	for (uint64_t seed = 1; seed <= 2; seed++) {
		static const uint32_t hot[] = { 0, 1, 2 };
		struct ndp_moe_report r;
		struct layer_input in;
		double error;

		layer_input_noise(&in, m->e, TOKENS, seed);
		forward(ctx, m->e, &in, out, &r);
		error = layer_check(m->e, &in, ndp_moe_last_ids(ctx, NULL), out, TOKENS);
		worst = error > worst ? error : worst;
		for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
			pairs[d] += r.domain[d].tokens;
			m->pairs[d] += domains == (GPU | CPU | NDP) ? r.domain[d].tokens : 0;
		}
		layer_input_free(&in);
		if (domains & GPU)
			ndp_moe_set_hot(moe, m->e->layer, hot, 3, NULL);
	}
	m->worst = worst > m->worst ? worst : m->worst;
	bench_row(m->rep, (struct bench_cell[]){
		BENCH_TEXT(domain_names(domains, names)), BENCH_TEXT(ndp_policy_name(policy)),
		BENCH_NUM((double)pairs[NDP_DOMAIN_GPU]), BENCH_NUM((double)pairs[NDP_DOMAIN_CPU]),
		BENCH_NUM((double)pairs[NDP_DOMAIN_NDP]), BENCH_NUM(worst),
	});
	free(out);
	ndp_moe_context_free(ctx);
	ndp_moe_free(moe);
}

static bool possible(const struct mixing *m, uint32_t domains, enum ndp_policy policy)
{
	const uint32_t knows = policy == NDP_POLICY_GPU ? GPU :
			       policy == NDP_POLICY_GPU_CPU ? GPU | CPU :
			       policy == NDP_POLICY_GPU_NDP ? GPU | NDP : GPU | CPU | NDP;

	if (domains & GPU && !m->gpu)
		return false;
	return !(domains & (domains - 1)) ? policy == NDP_POLICY_TRIMOE : (domains & knows) != 0;
}

/* Values that are not the same bits as the first run's. */
static double different_bits(const struct ndp_model *model, const struct layer_experts *e)
{
	static const uint32_t threads[] = { 1, 1, 2, 4 };
	const size_t n = (size_t)TOKENS * e->info.hidden;
	float *first = output(e), *out = output(e);
	double different = 0;
	struct layer_input in;

	layer_input_noise(&in, e, TOKENS, 3);
	for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
		struct ndp_cpu *cpu = layer_cpu(threads[i], true);
		struct ndp_moe *moe = layer_load(model, &(struct ndp_moe_options){
							 .cpu = cpu, .deterministic = true });
		struct ndp_moe_context *ctx = layer_context(moe, TOKENS);

		for (int again = 0; again < 2; again++) {
			forward(ctx, e, &in, i || again ? out : first, NULL);
			for (size_t j = 0; j < n && (i || again); j++)
				different += memcmp(&first[j], &out[j], sizeof(*out)) != 0;
		}
		ndp_moe_context_free(ctx);
		ndp_moe_free(moe);
		ndp_cpu_close(cpu);
	}
	layer_input_free(&in);
	free(out);
	free(first);
	return different;
}

static void judge(struct mixing *m, const char *no_gpu)
{
	const double different = different_bits(m->model, m->e);

	bench_note(m->rep, "deterministic, CPU only, twice on 1, 1, 2 and 4 threads: %.0f values "
		   "differ",
		   different);
	bench_bar(m->rep, "D.4", "different-bits-deterministic", different, BENCH_AT_MOST, 0);
	bench_bar(m->rep, "D.4", "error-in-bounds-every-mix", m->worst, BENCH_AT_MOST, 1);
	if (!m->gpu) {
		bench_bar_skip(m->rep, "D.4", "all-three-compute", "%s", no_gpu);
		return;
	}
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		static const char *const names[] = { "gpu", "cpu", "ndp" };
		char name[64];

		snprintf(name, sizeof(name), "pairs-on-%s-of-all-three", names[d]);
		bench_bar(m->rep, "D.4", name, (double)m->pairs[d], BENCH_AT_LEAST, 1);
	}
}

void layer_mix(struct bench_report *rep, const struct ndp_model *model, bool bars)
{
	static const struct bench_column columns[] = {
		{ "domains", "domains", 12, -1 },
		{ "policy", "policy", 16, -1 },
		{ "gpu_pairs", "pairs on\nGPU", 8, 0 },
		{ "cpu_pairs", "CPU", 8, 0 },
		{ "ndp_pairs", "DIMMs", 8, 0 },
		{ "error_in_bounds", "error in\nbounds", 8, 3 },
	};
	struct mixing m = { .rep = rep, .model = model, .cpu = layer_cpu(2, false) };
	struct ndp_gpu_info gpu;
	struct layer_experts e;
	struct ndp_error err;

	layer_experts_make(&e, model);
	m.e = &e;
	if (ndp_open(&m.dev, "soft:dimms=4,size=256M", &err) < 0)
		bench_die("%s", err.message);
	if (ndp_gpu_open(&m.gpu, "opencl", 64 << 20, &err) < 0) {
		m.gpu = NULL;
		bench_note(rep, "no GPU: %s", err.message);
	} else {
		ndp_gpu_info(m.gpu, &gpu);
		bench_note(rep, "GPU: %s%s", gpu.name, gpu.is_cpu ? ", which is this host's CPU" :
			   "");
	}
	bench_table(rep, "mixes", "Mixes of domains, results against FP64: the largest error in "
		    "units of what FP32 sums and BF16 rounding allow; a pair is one token in one "
		    "expert, or in a piece of it", columns,
		    sizeof(columns) / sizeof(columns[0]));
	for (uint32_t domains = 1; domains < 8; domains++)
		for (int policy = 0; policy < NDP_POLICIES; policy++)
			if (possible(&m, domains, policy))
				mix(&m, domains, policy);
	if (bars)
		judge(&m, err.message);
	layer_experts_free(&e);
	if (m.gpu)
		ndp_gpu_close(m.gpu);
	ndp_close(m.dev);
	ndp_cpu_close(m.cpu);
}
