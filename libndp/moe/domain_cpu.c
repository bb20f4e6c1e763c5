/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * domain_cpu.c - experts computed by the host's CPUs, where their blocks lie: in
 * DIMMs (by their mapping) or in host memory.
 *
 * Submitting computes; the caller's thread takes part and looks after the other
 * domains in between.
 */
#include "domain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ndpi_domain {
	struct ndp_cpu *cpu;
	struct ndp_cpu_job *jobs;
	uint32_t max_jobs;
	uint32_t nr_jobs;
};

static void cpu_close(struct ndpi_domain *d)
{
	if (!d)
		return;
	free(d->jobs);
	free(d);
}

static int cpu_open(struct ndpi_domain **out, const struct ndpi_limits *limits,
		    struct ndp_error *err)
{
	struct ndpi_domain *d = calloc(1, sizeof(*d));

	*out = d;
	if (!d)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	d->cpu = limits->moe->options.cpu;
	d->max_jobs = limits->moe->info.router.experts + 64;
	d->jobs = calloc(d->max_jobs, sizeof(*d->jobs));
	if (d->jobs)
		return 0;
	cpu_close(d);
	*out = NULL;
	return ndpi_fail(err, -ENOMEM, "out of memory for %u experts",
			 limits->moe->info.router.experts);
}

/* Of one thread, GFLOP/s: what a core of the last ten years about reaches. */
static double guess_gflops(enum ndp_isa isa)
{
	switch (isa) {
	case NDP_ISA_AMX_BF16: /* 21 TFLOPS sustained of 40 cores: trimoe-sustained.json */
		return 500;
	case NDP_ISA_AVX512_BF16:
		return 150;
	case NDP_ISA_AVX2:
		return 60;
	default:
		return 2;
	}
}

static void cpu_cost(const struct ndp_moe *moe, const struct ndp_host *rates,
		     struct ndp_host *host)
{
	struct ndp_cpu_info info;

	if (rates) {
		host->cpu = rates->cpu;
		host->cpu_plain = rates->cpu_plain;
		return;
	}
	ndp_cpu_info(moe->options.cpu, &info);
	host->cpu = (struct ndp_rate){
		.gflops = info.threads * guess_gflops(info.isa),
		.overhead_ns = 5000,
	};
	host->cpu_plain = host->cpu;
}

static int reserve(struct ndpi_domain *d, uint32_t n)
{
	struct ndp_cpu_job *jobs;
	uint32_t max = d->max_jobs;

	if (n <= max)
		return 0;
	while (max < n)
		max *= 2;
	jobs = reallocarray(d->jobs, max, sizeof(*jobs));
	if (!jobs)
		return -ENOMEM;
	d->jobs = jobs;
	d->max_jobs = max;
	return 0;
}

static int cpu_prepare(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	const struct ndp_model_info *info = &b->moe->info;

	d->nr_jobs = 0;
	if (reserve(d, b->nr_parts) < 0)
		return ndpi_fail(err, -ENOMEM, "out of memory for %u commands", b->nr_parts);
	for (uint32_t i = 0; i < b->nr_parts; i++) {
		const struct ndpi_part *p = &b->parts[i];

		if (p->domain != NDP_DOMAIN_CPU || p->done)
			continue;
		d->jobs[d->nr_jobs++] = (struct ndp_cpu_job){
			.blocks = p->expert->blocks,
			.shape = *p->shape,
			.first = p->first,
			.nr_blocks = p->nr_blocks,
			.act = info->act,
			.alpha = info->alpha,
			.limit = info->limit,
			.x = b->x,
			.ldx = b->ldx,
			.rows = b->rows + p->slot,
			.tokens = p->tokens,
			.y = p->y,
			.ldy = b->ldy,
			.node = p->expert->node,
		};
	}
	return 0;
}

static int cpu_submit(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	int r;

	if (!d->nr_jobs)
		return 0;
	r = ndp_cpu_ffn(d->cpu, d->jobs, d->nr_jobs, b->poll, b->poll_arg);
	if (r < 0)
		return ndpi_fail(err, r, "layer %u: %u experts on the CPU: %s", b->layer,
				 d->nr_jobs, strerror(-r));
	return 0;
}

static int cpu_complete(struct ndpi_domain *d, struct ndpi_batch *b, bool wait,
			struct ndp_error *err)
{
	(void)d;
	(void)b;
	(void)wait;
	(void)err;
	return 1;
}

static void cpu_abandon(struct ndpi_domain *d)
{
	(void)d;
}

const struct ndpi_domain_ops ndpi_domain_cpu = {
	.open = cpu_open,
	.close = cpu_close,
	.cost = cpu_cost,
	.prepare = cpu_prepare,
	.submit = cpu_submit,
	.complete = cpu_complete,
	.abandon = cpu_abandon,
};
