/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * forward.c - one MoE layer for a batch of tokens, on all domains at once.
 *
 * In turns of as many tokens as the context is for: route, sort pairs by expert,
 * schedule, submit to the DIMMs and the GPU, compute on the CPU while they work
 * (adding up what DIMMs have finished in between), wait, add up the rest.
 *
 * Whatever fails, nothing is in flight when a call returns: the buffers are used
 * again.  A GPU that is lost is no failure as long as something else can compute its
 * part.
 */
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	/* What counts as few tokens, and as some, when nobody says. */
	DECODE_TOKENS = 32,
	MIDFILL_TOKENS = 512,
	/*
	 * Commands of prefill batches in DIMMs: results come in while others are
	 * computed, and reading the weights once more costs little next to computing
	 * with them.
	 */
	PREFILL_CUT = 256,
	REDUCE_TOKENS = 8,	/* of a task */
};

uint64_t ndpi_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

const char *ndpi_part_name(const struct ndpi_part *p, char buf[32])
{
	if (p->id == NDP_EXPERT_SHARED)
		return "shared expert";
	snprintf(buf, 32, "expert %u", p->id);
	return buf;
}

/* ---- adding up ------------------------------------------------------------------- */

static void zero_rows(void *arg, uint32_t i)
{
	struct ndp_moe_context *ctx = arg;
	struct ndpi_batch *b = &ctx->batch;

	for (uint32_t t = i * REDUCE_TOKENS; t < (i + 1) * REDUCE_TOKENS && t < b->tokens; t++)
		memset(b->out + t * b->ld_out, 0, ctx->moe->info.hidden * sizeof(float));
}

static uint32_t reduce_tasks(const struct ndp_moe_context *ctx)
{
	return (ctx->batch.tokens + REDUCE_TOKENS - 1) / REDUCE_TOKENS;
}

static void zero_output(struct ndp_moe_context *ctx)
{
	if (!ctx->out_zeroed)
		ndpi_for(ctx, reduce_tasks(ctx),
			 (uint64_t)ctx->batch.tokens * ctx->moe->info.hidden * sizeof(float),
			 zero_rows);
	ctx->out_zeroed = true;
}

/* What parts [from, to) have for @slot, to one row of the output. */
static void add_slot(const struct ndp_moe_context *ctx, uint32_t slot, uint32_t from, uint32_t to,
		     float *out)
{
	const struct ndpi_batch *b = &ctx->batch;
	const float *y[NDPI_MAX_TERMS];
	uint32_t terms = 0;

	for (uint32_t i = from; i < to; i++) {
		const struct ndpi_part *p = &b->parts[i];

		if (p->reduced)
			continue;
		if (terms == NDPI_MAX_TERMS) {
			ndpi_add_scaled(out, y, terms, ctx->factors[slot], ctx->moe->info.hidden);
			terms = 0;
		}
		y[terms++] = p->y + (slot - p->slot) * b->ldy;
	}
	ndpi_add_scaled(out, y, terms, ctx->factors[slot], ctx->moe->info.hidden);
}

/* In the order of the token's experts, then the shared one: the same on any number of threads. */
static void reduce_token(const struct ndp_moe_context *ctx, uint32_t t)
{
	const struct ndpi_batch *b = &ctx->batch;
	const uint32_t hidden = ctx->moe->info.hidden, experts = ctx->moe->info.router.experts;
	const struct ndpi_expert *all = ctx->moe->layers[b->layer].experts;
	float *out = b->out + t * b->ld_out;

	for (uint32_t j = 0; j < b->k; j++) {
		const uint32_t slot = ctx->slots[t * b->k + j], e = ctx->chosen[t * b->k + j];
		const float *bias = all[e].down_bias;

		add_slot(ctx, slot, ctx->first_part[e], ctx->first_part[e + 1], out);
		if (bias)
			ndpi_add_scaled(out, &bias, 1, ctx->factors[slot], hidden);
	}
	if (b->shared)
		add_slot(ctx, b->tokens * b->k + t, ctx->first_part[experts], b->nr_parts, out);
}

static void reduce_rows(void *arg, uint32_t i)
{
	struct ndp_moe_context *ctx = arg;
	const uint32_t end = (i + 1) * REDUCE_TOKENS;

	if (!ctx->out_zeroed)
		zero_rows(ctx, i);
	for (uint32_t t = i * REDUCE_TOKENS; t < end && t < ctx->batch.tokens; t++)
		reduce_token(ctx, t);
}

static void reduce(struct ndp_moe_context *ctx)
{
	const struct ndpi_batch *b = &ctx->batch;
	uint64_t begin = ndpi_now_ns();

	ndpi_for(ctx, reduce_tasks(ctx), (uint64_t)b->tokens * (b->k + b->shared) * b->ldy *
		 sizeof(float), reduce_rows);
	b->report->reduce_wall_ns += ndpi_now_ns() - begin;
}

/* ---- domains ----------------------------------------------------------------------- */

static void ended(struct ndp_moe_context *ctx, enum ndp_domain d)
{
	ctx->running &= ~(1u << d);
	ctx->batch.report->domain[d].wall_ns += ndpi_now_ns() - ctx->submitted_ns[d];
}

/* The GPU's own end is not the end of the layer; the first other failure is kept. */
static void failed(struct ndp_moe_context *ctx, enum ndp_domain d, int r,
		   const struct ndp_error *err)
{
	ctx->running &= ~(1u << d);
	if (d == NDP_DOMAIN_GPU && r == -ENODEV) {
		__atomic_store_n(&ctx->run->gpu_lost, true, __ATOMIC_RELEASE);
		ctx->gpu_failed = true;
	} else if (!ctx->failed) {
		ctx->failed = r;
		ctx->failure = *err;
	}
}

static void look_after(struct ndp_moe_context *ctx, bool wait)
{
	static const enum ndp_domain order[] = { NDP_DOMAIN_NDP, NDP_DOMAIN_GPU };

	for (uint32_t i = 0; i < 2; i++) {
		const enum ndp_domain d = order[i];
		struct ndp_error err;
		int r;

		if (!(ctx->running & 1u << d))
			continue;
		r = ndpi_domains[d]->complete(ctx->domain[d], &ctx->batch, wait, &err);
		if (r < 0)
			failed(ctx, d, r, &err);
		else if (r)
			ended(ctx, d);
	}
}

static void poll(void *arg)
{
	look_after(arg, false);
}

static void submit(struct ndp_moe_context *ctx, enum ndp_domain d)
{
	struct ndp_error err;
	int r;

	ctx->submitted_ns[d] = ndpi_now_ns();
	ctx->running |= 1u << d;
	r = ndpi_domains[d]->submit(ctx->domain[d], &ctx->batch, &err);
	if (r < 0)
		failed(ctx, d, r, &err);
	else if (d == NDP_DOMAIN_CPU)
		ended(ctx, d);
}

/* Runs all parts that are not done, and waits for them.  A lost GPU is no error here. */
static int run_parts(struct ndp_moe_context *ctx, struct ndp_error *err)
{
	struct ndpi_batch *b = &ctx->batch;
	uint32_t used = 0;

	ctx->running = 0;
	ctx->failed = 0;
	ctx->gpu_failed = false;
	for (uint32_t i = 0; i < b->nr_parts; i++)
		if (!b->parts[i].done)
			used |= 1u << b->parts[i].domain;
	if (used & NDPI_NDP && b->direct)
		zero_output(ctx);
	/* DIMMs first, for the GPU's x is no business of theirs. */
	for (int d = NDP_DOMAINS - 1; d >= 0; d--) {
		int r;

		if (!(used & 1u << d))
			continue;
		r = ndpi_domains[d]->prepare(ctx->domain[d], b, err);
		if (r < 0)
			return r;
	}
	if (used & NDPI_NDP)
		submit(ctx, NDP_DOMAIN_NDP);
	if (used & NDPI_GPU && !ctx->failed)
		submit(ctx, NDP_DOMAIN_GPU);
	if (used & NDPI_CPU && !ctx->failed)
		submit(ctx, NDP_DOMAIN_CPU);
	while (ctx->running && !ctx->failed)
		look_after(ctx, true);
	for (uint32_t d = 0; d < NDP_DOMAINS; d++)
		if (used & 1u << d && ctx->failed)
			ndpi_domains[d]->abandon(ctx->domain[d]);
	if (ctx->failed && err)
		*err = ctx->failure;
	return ctx->failed;
}

static int run_all(struct ndp_moe_context *ctx, struct ndp_error *err)
{
	int r = run_parts(ctx, err);
	uint32_t left;

	if (r < 0 || !ctx->gpu_failed)
		return r;
	left = ndpi_run_domains(ctx->run);
	if (!left)
		return ndpi_fail(err, -ENODEV, "layer %u: the GPU is lost, and nothing else "
				 "computes here: load the model with CPU workers or a device, too",
				 ctx->batch.layer);
	ndpi_reassign_parts(ctx, NDP_DOMAIN_GPU, ndpi_preferred_domain(left));
	return run_parts(ctx, err);
}

/* ---- a turn ------------------------------------------------------------------------- */

static void account(struct ndp_moe_context *ctx)
{
	const struct ndpi_batch *b = &ctx->batch;
	uint32_t last[NDP_DOMAINS] = { UINT32_MAX - 1, UINT32_MAX - 1, UINT32_MAX - 1 };

	for (uint32_t i = 0; i < b->nr_parts; i++) {
		const struct ndpi_part *p = &b->parts[i];
		struct ndp_domain_report *r = &b->report->domain[p->domain];

		r->experts += last[p->domain] != p->id;
		last[p->domain] = p->id;
		r->tokens += p->tokens;
		if (p->domain == NDP_DOMAIN_NDP)
			continue; /* it knows how many commands these are */
		r->commands++;
		r->bytes += p->nr_blocks * ndp_expert_block_bytes(p->shape);
	}
}

static int run_turn(struct ndp_moe_context *ctx, uint32_t *ids, const float *weights, bool known,
		    struct ndp_error *err)
{
	struct ndpi_batch *b = &ctx->batch;
	uint64_t begin = ndpi_now_ns();
	int r;

	ctx->out_zeroed = false;
	ndpi_route_turn(ctx, known, ids);
	r = ndpi_sort_pairs(ctx, ids, known ? weights : ctx->weights, err);
	b->report->route_wall_ns += ndpi_now_ns() - begin;
	if (r == 0)
		r = ndpi_make_parts(ctx, err);
	if (r == 0)
		r = run_all(ctx, err);
	if (r < 0)
		return r;
	reduce(ctx);
	account(ctx);
	for (uint32_t e = 0; e < ctx->moe->info.router.experts; e++)
		ctx->step[e] += ctx->tokens[e];
	return 0;
}

static enum ndp_regime regime_of(enum ndp_regime wanted, uint32_t tokens)
{
	if (wanted != NDP_REGIME_AUTO)
		return wanted;
	if (tokens <= DECODE_TOKENS)
		return NDP_REGIME_DECODE;
	return tokens <= MIDFILL_TOKENS ? NDP_REGIME_MIDFILL : NDP_REGIME_PREFILL;
}

struct call {
	uint32_t layer;
	enum ndp_regime regime;
	const float *x;
	size_t ldx;
	uint32_t tokens;
	uint32_t k;
	const uint32_t *ids;	/* NULL: to be found */
	const float *weights;
	float *out;
	size_t ld_out;
};

static int check(const struct ndp_moe_context *ctx, const struct call *c, struct ndp_error *err)
{
	const struct ndp_moe *moe = ctx->moe;
	const uint32_t hidden = moe->info.hidden;

	if (!pthread_equal(ctx->owner, pthread_self()))
		return ndpi_fail(err, -EPERM, "a context is for the thread that created it: create "
				 "one for each thread");
	if (c->layer >= moe->info.layers || !moe->layers[c->layer].experts)
		return ndpi_fail(err, -EINVAL, "layer %u has no experts: the model has %u layers, "
				 "%u of them with experts", c->layer, moe->info.layers,
				 moe->info.moe_layers);
	if ((unsigned int)c->regime > NDP_REGIME_PREFILL)
		return ndpi_fail(err, -EINVAL, "regime %d is none", (int)c->regime);
	if (c->k < 1 || c->k > moe->info.router.experts)
		return ndpi_fail(err, -EINVAL, "%u experts for each token wanted, the model has %u",
				 c->k, moe->info.router.experts);
	if (c->tokens > 1 && (c->ldx < hidden || c->ld_out < hidden))
		return ndpi_fail(err, -EINVAL, "rows of x are %zu elements apart, of out %zu: a "
				 "row has %u", c->ldx, c->ld_out, hidden);
	if (c->tokens > 1 && c->x == c->out && c->ldx != c->ld_out)
		return ndpi_fail(err, -EINVAL, "x and out are the same, but their rows are %zu and "
				 "%zu elements apart", c->ldx, c->ld_out);
	return 0;
}

static int reserve_ids(struct ndp_moe_context *ctx, const struct call *c, struct ndp_error *err)
{
	uint64_t n = (uint64_t)c->tokens * c->k;
	uint32_t *ids;

	if (n <= ctx->max_ids)
		return 0;
	ids = n > UINT32_MAX ? NULL : reallocarray(ctx->ids, n, sizeof(*ids));
	if (!ids)
		return ndpi_fail(err, -ENOMEM, "out of memory for a batch of %u tokens", c->tokens);
	ctx->ids = ids;
	ctx->max_ids = (uint32_t)n;
	return 0;
}

static int run_turns(struct ndp_moe_context *ctx, const struct call *c, struct ndp_error *err)
{
	const uint32_t fit = ctx->max_pairs / c->k;
	const uint32_t most = fit < ctx->turn ? fit : ctx->turn;
	const uint32_t turns = (c->tokens - 1) / most + 1;
	const uint32_t step = (c->tokens - 1) / turns + 1; /* none is much smaller than others */
	struct ndpi_batch *b = &ctx->batch;
	int r = 0;

	for (uint32_t t = 0; t < c->tokens && r == 0; t += step) {
		uint32_t *ids = ctx->ids + (size_t)t * c->k;

		b->tokens = c->tokens - t < step ? c->tokens - t : step;
		b->out = c->out + t * c->ld_out;
		ctx->in = c->x + t * c->ldx;
		if (c->ids)
			memcpy(ids, c->ids + (size_t)t * c->k,
			       (size_t)b->tokens * c->k * sizeof(*ids));
		r = run_turn(ctx, ids, c->ids ? c->weights + (size_t)t * c->k : NULL, c->ids, err);
	}
	return r;
}

static int forward(struct ndp_moe_context *ctx, const struct call *c,
		   struct ndp_moe_report *report, struct ndp_error *err)
{
	struct ndpi_batch *b = &ctx->batch;
	struct ndp_moe_report unused;
	uint64_t begin = ndpi_now_ns();
	int r;

	if (!report)
		report = &unused;
	memset(report, 0, sizeof(*report));
	r = check(ctx, c, err);
	if (r < 0)
		return r;
	ctx->last_tokens = 0;
	report->regime = regime_of(c->regime, c->tokens);
	if (!c->tokens)
		return 0;
	r = reserve_ids(ctx, c, err);
	if (r < 0)
		return r;
	b->layer = c->layer;
	b->k = c->k;
	b->shared = !c->ids && ctx->moe->layers[c->layer].shared;
	b->direct = !ctx->moe->options.deterministic;
	b->cut = report->regime == NDP_REGIME_PREFILL ? PREFILL_CUT : 0;
	b->x = ctx->x;
	b->rows = ctx->rows;
	b->factors = ctx->factors;
	b->ld_out = c->ld_out;
	b->report = report;
	b->poll = poll;
	b->poll_arg = ctx;
	ctx->ld_in = c->ldx;
	memset(ctx->step, 0, ctx->moe->info.router.experts * sizeof(*ctx->step));
	r = run_turns(ctx, c, err);
	if (r == 0) {
		ctx->last_tokens = c->tokens;
		ndpi_run_sweep(ctx->moe, c->layer);
		ndpi_hot_step(ctx->moe, c->layer, ctx->step);
	}
	report->gpu_lost = __atomic_load_n(&ctx->run->gpu_lost, __ATOMIC_ACQUIRE);
	report->wall_ns = ndpi_now_ns() - begin;
	return r;
}

int ndp_moe_forward(struct ndp_moe_context *ctx, uint32_t layer, enum ndp_regime regime,
		    const float *x, size_t ldx, uint32_t tokens, float *out, size_t ld_out,
		    struct ndp_moe_report *report, struct ndp_error *err)
{
	const struct call c = {
		.layer = layer,
		.regime = regime,
		.x = x,
		.ldx = ldx,
		.tokens = tokens,
		.k = ctx->moe->info.router.top_k,
		.out = out,
		.ld_out = ld_out,
	};

	return forward(ctx, &c, report, err);
}

int ndp_moe_forward_routed(struct ndp_moe_context *ctx, uint32_t layer, enum ndp_regime regime,
			   const float *x, size_t ldx, uint32_t tokens, uint32_t k,
			   const uint32_t *ids, const float *weights, float *out, size_t ld_out,
			   struct ndp_moe_report *report, struct ndp_error *err)
{
	const struct call c = {
		.layer = layer,
		.regime = regime,
		.x = x,
		.ldx = ldx,
		.tokens = tokens,
		.k = k,
		.ids = ids,
		.weights = weights,
		.out = out,
		.ld_out = ld_out,
	};

	if (tokens && (!ids || !weights))
		return ndpi_fail(err, -EINVAL, "a known routing needs ids and weights");
	return forward(ctx, &c, report, err);
}
