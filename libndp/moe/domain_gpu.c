/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * domain_gpu.c - experts computed by a GPU: those that its memory holds copies of,
 * and others that are brought there for the occasion.
 *
 * A copy may be dropped by another thread at any time, so which ones there are is
 * looked up under the layer's lock, and they are handed to the GPU under the same
 * lock: from then on the GPU keeps them as long as it needs them.
 *
 * A lost GPU is for the pipeline to deal with: submit or complete end with -ENODEV.
 */
#include "domain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ndpi_domain {
	struct ndp_gpu_queue *queue;
	struct ndp_gpu_job *jobs;
	struct ndpi_part **parts;	/* of each job */
	uint32_t max_jobs;
	uint32_t nr_jobs;
	bool busy;
};

static void gpu_close(struct ndpi_domain *d)
{
	if (!d)
		return;
	if (d->queue)
		ndp_gpu_queue_free(d->queue);
	free(d->parts);
	free(d->jobs);
	free(d);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static int gpu_open(struct ndpi_domain **out, const struct ndpi_limits *limits,
		    struct ndp_error *err)
{
	const struct ndp_model_info *info = &limits->moe->info;
	const uint32_t max_h = larger((uint32_t)limits->ldx, larger(info->routed.h_out,
								    info->hidden));
	struct ndpi_domain *d = calloc(1, sizeof(*d));
	int r;

	*out = d;
	if (!d)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	d->max_jobs = info->router.experts + 64;
	d->jobs = calloc(d->max_jobs, sizeof(*d->jobs));
	d->parts = calloc(d->max_jobs, sizeof(*d->parts));
	if (!d->jobs || !d->parts)
		r = ndpi_fail(err, -ENOMEM, "out of memory for %u experts", info->router.experts);
	else
		r = ndp_gpu_queue_create(&d->queue, limits->moe->options.gpu, limits->tokens,
					 limits->y_rows, max_h, err);
	if (r == 0)
		return 0;
	gpu_close(d);
	*out = NULL;
	return r;
}

static void gpu_cost(const struct ndp_moe *moe, const struct ndp_host *rates,
		     struct ndp_host *host)
{
	struct ndp_gpu_info info;

	if (rates) {
		host->gpu = rates->gpu;
		host->pcie_gbps = rates->pcie_gbps;
		host->staging_gbps = rates->staging_gbps;
		host->gpu_bytes = rates->gpu_bytes;
		return;
	}
	/* A GPU of the middle class on PCIe 4.0 x16. */
	ndp_gpu_info(moe->options.gpu, &info);
	host->gpu = (struct ndp_rate){ .gflops = 20000, .gbps = 400, .overhead_ns = 20000 };
	host->pcie_gbps = 20;
	host->gpu_bytes = info.budget_bytes;
}

static int reserve(struct ndpi_domain *d, uint32_t n)
{
	struct ndp_gpu_job *jobs;
	struct ndpi_part **parts;
	uint32_t max = d->max_jobs;

	if (n <= max)
		return 0;
	while (max < n)
		max *= 2;
	jobs = reallocarray(d->jobs, max, sizeof(*jobs));
	if (jobs)
		d->jobs = jobs;
	parts = reallocarray(d->parts, max, sizeof(*parts));
	if (parts)
		d->parts = parts;
	if (!jobs || !parts)
		return -ENOMEM;
	d->max_jobs = max;
	return 0;
}

static int gpu_prepare(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	const struct ndp_model_info *info = &b->moe->info;

	d->nr_jobs = 0;
	if (reserve(d, b->nr_parts) < 0)
		return ndpi_fail(err, -ENOMEM, "out of memory for %u commands", b->nr_parts);
	for (uint32_t i = 0; i < b->nr_parts; i++) {
		struct ndpi_part *p = &b->parts[i];

		if (p->domain != NDP_DOMAIN_GPU || p->done)
			continue;
		d->parts[d->nr_jobs] = p;
		d->jobs[d->nr_jobs++] = (struct ndp_gpu_job){
			.blocks = p->expert->blocks,
			.shape = *p->shape,
			.first = p->first,
			.nr_blocks = p->nr_blocks,
			.act = info->act,
			.alpha = info->alpha,
			.limit = info->limit,
			.rows = b->rows + p->slot,
			.tokens = p->tokens,
			.y = p->y,
			.ldy = b->ldy,
		};
	}
	return 0;
}

static int gpu_submit(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	struct ndpi_moe_layer *layer = &b->moe->layers[b->layer];
	int r;

	if (!d->nr_jobs)
		return 0;
	pthread_mutex_lock(&layer->gpu_lock);
	for (uint32_t i = 0; i < d->nr_jobs; i++) {
		struct ndp_gpu_weights *w = d->parts[i]->expert->gpu;

		d->jobs[i].weights = w && ndp_gpu_uploaded(w) == 1 ? w : NULL;
	}
	r = ndp_gpu_submit(d->queue, b->x, b->ldx, b->tokens, d->jobs, d->nr_jobs, err);
	pthread_mutex_unlock(&layer->gpu_lock);
	d->busy = r == 0;
	return r;
}

static int gpu_complete(struct ndpi_domain *d, struct ndpi_batch *b, bool wait,
			struct ndp_error *err)
{
	int r;

	if (!d->nr_jobs || !d->busy)
		return 1;
	r = wait ? 1 : ndp_gpu_poll(d->queue);
	if (r == 0)
		return 0;
	r = ndp_gpu_wait(d->queue, NULL);
	d->busy = false;
	if (r < 0)
		return ndpi_fail(err, r, "layer %u: %u experts on the GPU: %s", b->layer,
				 d->nr_jobs, strerror(-r));
	return 1;
}

static void gpu_abandon(struct ndpi_domain *d)
{
	if (d->busy)
		ndp_gpu_wait(d->queue, NULL);
	d->busy = false;
}

const struct ndpi_domain_ops ndpi_domain_gpu = {
	.open = gpu_open,
	.close = gpu_close,
	.cost = gpu_cost,
	.prepare = gpu_prepare,
	.submit = gpu_submit,
	.complete = gpu_complete,
	.abandon = gpu_abandon,
};
