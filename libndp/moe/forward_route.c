/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * forward_route.c - the first steps of a layer: x to BF16, the router's products in
 * FP32 (of x as it came), the choice of experts, the shared expert's gate.
 *
 * Tokens are independent of one another, so the results do not depend on how they
 * are dealt to threads.
 */
#include "run.h"

#include <math.h>

/* Below this waking other threads takes longer than doing it alone. */
#define WORTH_BYTES (512u << 10)
#define ROWS 16u

void ndpi_for(struct ndp_moe_context *ctx, uint32_t n, uint64_t bytes,
	      void (*fn)(void *ctx, uint32_t i))
{
	if (n > 1 && bytes >= WORTH_BYTES && ctx->moe->options.cpu) {
		ndp_cpu_for(ctx->moe->options.cpu, n, fn, ctx);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		fn(ctx, i);
}

static const struct ndpi_moe_layer *layer_of(const struct ndp_moe_context *ctx)
{
	return &ctx->moe->layers[ctx->batch.layer];
}

static const float *row(const struct ndp_moe_context *ctx, uint32_t t)
{
	return ctx->in + t * ctx->ld_in;
}

/* Token chunks. */
static uint32_t chunk(const struct ndp_moe_context *ctx, uint32_t i, uint32_t *first)
{
	const uint32_t left = ctx->batch.tokens - i * NDPI_ROUTE_TOKENS;

	*first = i * NDPI_ROUTE_TOKENS;
	return left < NDPI_ROUTE_TOKENS ? left : NDPI_ROUTE_TOKENS;
}

static void convert(void *arg, uint32_t i)
{
	struct ndp_moe_context *ctx = arg;
	const struct ndp_model_info *info = &ctx->moe->info;
	uint32_t first, n = chunk(ctx, i, &first);

	for (uint32_t t = first; t < first + n; t++)
		ndpi_bf16_row(ctx->x + t * ctx->batch.ldx, row(ctx, t), info->hidden,
			      info->expert_bias, ctx->batch.ldx);
}

static void products(struct ndp_moe_context *ctx, uint32_t from, uint32_t nr, uint32_t first,
		     uint32_t tokens)
{
	const struct ndpi_moe_layer *l = layer_of(ctx);
	const uint32_t hidden = ctx->moe->info.hidden, experts = ctx->moe->info.router.experts;

	ndpi_dots(l->router + (size_t)from * hidden, nr,
		  l->router_bias ? l->router_bias + from : NULL, row(ctx, first), ctx->ld_in,
		  tokens, hidden, ctx->logits + (size_t)first * experts + from, experts);
}

/* A few rows of the router for all tokens. */
static void few_rows(void *arg, uint32_t i)
{
	struct ndp_moe_context *ctx = arg;
	const uint32_t left = ctx->moe->info.router.experts - i * ROWS;

	products(ctx, i * ROWS, left < ROWS ? left : ROWS, 0, ctx->batch.tokens);
}

static void shared_factors(struct ndp_moe_context *ctx, uint32_t first, uint32_t n)
{
	const struct ndpi_moe_layer *l = layer_of(ctx);

	for (uint32_t t = first; t < first + n; t++) {
		float z;

		ctx->shared_factor[t] = 1;
		if (!l->shared_gate)
			continue;
		ndpi_dots(l->shared_gate, 1, NULL, row(ctx, t), 0, 1, ctx->moe->info.hidden, &z, 0);
		ctx->shared_factor[t] = 1 / (1 + expf(-z));
	}
}

static void choose(struct ndp_moe_context *ctx, uint32_t task, uint32_t first, uint32_t n)
{
	const struct ndp_router *r = &ctx->moe->info.router;

	ndp_route(r, ctx->logits + (size_t)first * r->experts, layer_of(ctx)->selection, n,
		  (uint32_t *)ctx->chosen + (size_t)first * r->top_k,
		  ctx->weights + (size_t)first * r->top_k, ctx->route_work + task *
		  ctx->route_bytes);
	shared_factors(ctx, first, n);
}

static void some_tokens(void *arg, uint32_t i)
{
	struct ndp_moe_context *ctx = arg;
	uint32_t first, n = chunk(ctx, i, &first);

	convert(ctx, i);
	products(ctx, 0, ctx->moe->info.router.experts, first, n);
	choose(ctx, i, first, n);
}

void ndpi_route_turn(struct ndp_moe_context *ctx, bool known, uint32_t *ids)
{
	const uint32_t hidden = ctx->moe->info.hidden, experts = ctx->moe->info.router.experts;
	const uint32_t tokens = ctx->batch.tokens;
	const uint32_t chunks = (tokens + NDPI_ROUTE_TOKENS - 1) / NDPI_ROUTE_TOKENS;
	const uint64_t bytes = (uint64_t)hidden * sizeof(float);

	ctx->chosen = ids;
	if (known) {
		ndpi_for(ctx, chunks, tokens * bytes, convert);
		return;
	}
	if (chunks > 1) {
		ndpi_for(ctx, chunks, chunks * experts * bytes, some_tokens);
		return;
	}
	convert(ctx, 0);
	ndpi_for(ctx, (experts + ROWS - 1) / ROWS, experts * bytes, few_rows);
	choose(ctx, 0, 0, tokens);
}
