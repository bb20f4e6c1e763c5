/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * forward_context.c - a caller's buffers and queues for running layers.
 *
 * Everything that a call needs is allocated here, for the largest turn that there
 * can be; the few arrays whose size depends on what the scheduler decides may grow
 * later.
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>

enum {
	/* Larger batches run in turns of about this: experts get enough tokens either way. */
	MAX_TURN = 4096,
	MAX_TOKENS = 1 << 24,
};

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static size_t line(size_t elements, size_t element)
{
	const size_t in_line = 64 / element;

	return (elements + in_line - 1) / in_line * in_line;
}

static void *aligned(size_t bytes)
{
	void *p = NULL;

	if (posix_memalign(&p, 64, bytes ? bytes : 64))
		return NULL;
	return p;
}

static bool allocate(struct ndp_moe_context *ctx)
{
	const struct ndp_model_info *info = &ctx->moe->info;
	const uint32_t experts = info->router.experts;
	const size_t slots = (size_t)ctx->max_pairs + ctx->turn;
	const size_t tasks = (ctx->turn + NDPI_ROUTE_TOKENS - 1) / NDPI_ROUTE_TOKENS;

	ctx->max_parts = experts + 64;
	ctx->batch.parts = calloc(ctx->max_parts, sizeof(*ctx->batch.parts));
	ctx->x = aligned(ctx->turn * ctx->batch.ldx * sizeof(*ctx->x));
	ctx->logits = aligned((size_t)ctx->turn * experts * sizeof(*ctx->logits));
	ctx->route_bytes = line(ndp_route_bytes(&info->router), 1);
	ctx->route_work = aligned(tasks * ctx->route_bytes);
	ctx->weights = calloc((size_t)ctx->turn * info->router.top_k, sizeof(*ctx->weights));
	ctx->shared_factor = calloc(ctx->turn, sizeof(*ctx->shared_factor));
	ctx->slots = calloc(ctx->max_pairs, sizeof(*ctx->slots));
	ctx->starts = calloc(experts + 1ul, sizeof(*ctx->starts));
	ctx->rows = calloc(slots, sizeof(*ctx->rows));
	ctx->factors = calloc(slots, sizeof(*ctx->factors));
	ctx->first_part = calloc(experts + 1ul, sizeof(*ctx->first_part));
	ctx->y_bytes = ctx->y_rows * ctx->batch.ldy * sizeof(*ctx->y);
	ctx->y = ndp_host_alloc(ctx->y_bytes, -1);
	ctx->tokens = calloc(experts, sizeof(*ctx->tokens));
	ctx->on_gpu = calloc(experts, sizeof(*ctx->on_gpu));
	ctx->plan_mem = aligned(ndp_plan_bytes(experts, ctx->run->nr_dimms));
	ctx->plan_work = aligned(ndp_schedule_bytes(experts, ctx->run->nr_dimms));
	ctx->ids = calloc(ctx->max_ids, sizeof(*ctx->ids));
	ctx->step = calloc(experts, sizeof(*ctx->step));
	return ctx->batch.parts && ctx->x && ctx->logits && ctx->route_work && ctx->weights &&
	       ctx->shared_factor && ctx->slots && ctx->starts && ctx->rows && ctx->factors &&
	       ctx->first_part && ctx->y && ctx->tokens && ctx->on_gpu && ctx->plan_mem &&
	       ctx->plan_work && ctx->ids && ctx->step;
}

static int open_domains(struct ndp_moe_context *ctx, struct ndp_error *err)
{
	const uint32_t computing = ctx->run->domains | ctx->run->fallback;
	const struct ndpi_limits limits = {
		.moe = ctx->moe,
		.tokens = ctx->turn,
		.slots = ctx->max_pairs + ctx->turn,
		.y_rows = ctx->y_rows,
		.ldx = ctx->batch.ldx,
	};

	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		int r;

		if (!(computing & 1u << d))
			continue;
		r = ndpi_domains[d]->open(&ctx->domain[d], &limits, err);
		if (r == -ENODEV && d == NDP_DOMAIN_GPU) {
			/* Lost between loading and now; what else there is will do. */
			__atomic_store_n(&ctx->run->gpu_lost, true, __ATOMIC_RELEASE);
			if (ndpi_run_domains(ctx->run))
				continue;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

int ndp_moe_context_create(struct ndp_moe_context **out, struct ndp_moe *moe, uint32_t max_tokens,
			   struct ndp_error *err)
{
	const struct ndp_model_info *info = &moe->info;
	struct ndp_moe_context *ctx;
	int r;

	*out = NULL;
	if (max_tokens < 1 || max_tokens > MAX_TOKENS)
		return ndpi_fail(err, -EINVAL, "a context for %u tokens: wanted 1 to %d",
				 max_tokens, MAX_TOKENS);
	if ((uint64_t)max_tokens * info->router.top_k > UINT32_MAX)
		return ndpi_fail(err, -EINVAL, "a context for %u tokens with %u experts each: "
				 "wanted fewer than 2^32 in all", max_tokens, info->router.top_k);
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	ctx->moe = moe;
	ctx->run = ndpi_run_of(moe);
	ctx->owner = pthread_self();
	ctx->turn = max_tokens < MAX_TURN ? max_tokens : MAX_TURN;
	ctx->max_pairs = larger(ctx->turn * info->router.top_k, info->router.experts);
	ctx->max_ids = max_tokens * info->router.top_k;
	/* One for each pair, the shared expert's, and as many again for pieces of experts. */
	ctx->y_rows = ctx->turn + 2 * ctx->max_pairs;
	ctx->batch.moe = moe;
	ctx->batch.ldx = line(larger(larger(info->routed.h_in, info->shared.h_in), info->hidden),
			      sizeof(ndp_bf16));
	ctx->batch.ldy = line(info->hidden, sizeof(float));
	if (allocate(ctx)) {
		ndp_plan_init(&ctx->plan, ctx->plan_mem, info->router.experts, ctx->run->nr_dimms);
		r = open_domains(ctx, err);
	} else {
		r = ndpi_fail(err, -ENOMEM, "out of memory for batches of %u tokens", ctx->turn);
	}
	if (r < 0) {
		ndp_moe_context_free(ctx);
		return r;
	}
	*out = ctx;
	return 0;
}

void ndp_moe_context_free(struct ndp_moe_context *ctx)
{
	if (!ctx)
		return;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++)
		if (ctx->domain[d])
			ndpi_domains[d]->close(ctx->domain[d]);
	free(ctx->step);
	free(ctx->ids);
	free(ctx->plan_work);
	free(ctx->plan_mem);
	free(ctx->on_gpu);
	free(ctx->tokens);
	if (ctx->y)
		ndp_host_free(ctx->y, ctx->y_bytes);
	free(ctx->first_part);
	free(ctx->factors);
	free(ctx->rows);
	free(ctx->starts);
	free(ctx->slots);
	free(ctx->shared_factor);
	free(ctx->weights);
	free(ctx->route_work);
	free(ctx->logits);
	free(ctx->x);
	free(ctx->batch.parts);
	free(ctx);
}

const uint32_t *ndp_moe_last_ids(const struct ndp_moe_context *ctx, uint32_t *tokens)
{
	if (tokens)
		*tokens = ctx->last_tokens;
	return ctx->ids;
}
