/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * run_plan.c - from the experts that tokens chose to commands: pairs sorted by
 * expert, the scheduler asked, its pieces turned into ranges of neuron blocks.
 *
 * The scheduler numbers an expert's blocks DIMM by DIMM; here they get their numbers
 * by where the expert is thought to lie.  Whatever that belief is, every block is in
 * exactly one part, so a wrong one costs time and nothing else.
 */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A piece on a DIMM where the expert has several ranges becomes several. */
#define MAX_SPANS (NDP_MAX_RANGES + NDP_MAX_DIMMS)

struct span {
	uint32_t first;
	uint32_t nr_blocks;
};

/* ---- sorting ----------------------------------------------------------------- */

/* Counting sort by expert; tokens stay in ascending order. */
int ndpi_sort_pairs(struct ndp_moe_context *ctx, const uint32_t *ids, const float *weights,
		    struct ndp_error *err)
{
	const struct ndpi_batch *b = &ctx->batch;
	const uint32_t experts = ctx->moe->info.router.experts;
	const uint32_t pairs = b->tokens * b->k;
	uint32_t *starts = ctx->starts;

	memset(starts, 0, (experts + 1) * sizeof(*starts));
	for (uint32_t p = 0; p < pairs; p++) {
		if (ids[p] >= experts)
			return ndpi_fail(err, -EINVAL, "token %u: expert %u wanted, the model has "
					 "%u", p / b->k, ids[p], experts);
		starts[ids[p] + 1]++;
	}
	for (uint32_t e = 0; e < experts; e++) {
		ctx->tokens[e] = starts[e + 1];
		starts[e + 1] += starts[e];
	}
	for (uint32_t t = 0, p = 0; t < b->tokens; t++) {
		for (uint32_t j = 0; j < b->k; j++, p++) {
			const uint32_t slot = starts[ids[p]]++;

			ctx->slots[p] = slot;
			ctx->rows[slot] = t;
			ctx->factors[slot] = weights[p];
		}
	}
	/* Each start has moved to its end, which is the next one's start. */
	memmove(starts + 1, starts, experts * sizeof(*starts));
	starts[0] = 0;
	for (uint32_t t = 0; b->shared && t < b->tokens; t++) {
		ctx->rows[pairs + t] = t;
		ctx->factors[pairs + t] = ctx->shared_factor[t];
	}
	return 0;
}

/* ---- parts ------------------------------------------------------------------- */

static struct ndpi_part *new_part(struct ndp_moe_context *ctx)
{
	struct ndpi_batch *b = &ctx->batch;

	if (b->nr_parts == ctx->max_parts) {
		const uint32_t more = ctx->max_parts * 2;
		struct ndpi_part *parts = reallocarray(b->parts, more, sizeof(*parts));

		if (!parts)
			return NULL;
		b->parts = parts;
		ctx->max_parts = more;
	}
	return &b->parts[b->nr_parts++];
}

static uint32_t holders(const struct ndp_placement *p, uint32_t first, uint32_t nr_blocks)
{
	uint32_t mask = 0, at = 0;

	for (uint32_t i = 0; i < p->nr_ranges; at += p->ranges[i++].nr_blocks)
		if (at < first + nr_blocks && at + p->ranges[i].nr_blocks > first)
			mask |= 1u << p->ranges[i].dimm;
	return mask;
}

struct work {
	struct ndp_moe_context *ctx;
	const struct ndpi_run_layer *l;
	uint32_t y_used;	/* rows of ctx->y */
	uint32_t y_spare;	/* rows that split experts may take beyond one for each slot */
};

/* Blocks of @s of an expert, for all of its tokens. */
static int add_part(struct work *w, uint32_t e, enum ndp_domain domain, struct span s,
		    uint32_t slot, uint32_t tokens)
{
	struct ndp_moe_context *ctx = w->ctx;
	const struct ndp_moe *moe = ctx->moe;
	const struct ndpi_moe_layer *layer = &moe->layers[ctx->batch.layer];
	const bool shared = e == moe->info.router.experts;
	struct ndpi_part *p = new_part(ctx);

	if (!p)
		return -ENOMEM;
	*p = (struct ndpi_part){
		.expert = shared ? layer->shared : &layer->experts[e],
		.shape = shared ? &moe->info.shared : &moe->info.routed,
		.id = shared ? NDP_EXPERT_SHARED : e,
		.first = s.first,
		.nr_blocks = s.nr_blocks,
		.slot = slot,
		.tokens = tokens,
		.domain = domain,
		.dimm_mask = holders(&w->l->places[e], s.first, s.nr_blocks),
	};
	if (domain != NDP_DOMAIN_NDP || !ctx->batch.direct) {
		p->y = ctx->y + (size_t)w->y_used * ctx->batch.ldy;
		w->y_used += tokens;
	}
	return 0;
}

/* What a piece is in blocks of the expert; returns the number of spans. */
static uint32_t spans_of(const struct ndp_placement *place, const struct ndp_piece *piece,
			 struct span *spans)
{
	const uint32_t end = piece->first + piece->nr_blocks;
	uint32_t block = 0, there = 0, n = 0;

	for (uint32_t i = 0; i < place->nr_ranges; i++) {
		const struct ndp_range *r = &place->ranges[i];

		if (r->dimm == piece->dimm) {
			const uint32_t a = piece->first > there ? piece->first : there;
			const uint32_t z = end < there + r->nr_blocks ? end : there + r->nr_blocks;

			if (a < z)
				spans[n++] = (struct span){ block + a - there, z - a };
			there += r->nr_blocks;
		}
		block += r->nr_blocks;
	}
	return n;
}

/* Sorts spans and joins those that touch. */
static uint32_t join(struct span *s, uint32_t n)
{
	uint32_t out = 0;

	for (uint32_t i = 1; i < n; i++) {
		const struct span v = s[i];
		uint32_t at = i;

		for (; at && s[at - 1].first > v.first; at--)
			s[at] = s[at - 1];
		s[at] = v;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (out && s[out - 1].first + s[out - 1].nr_blocks == s[i].first)
			s[out - 1].nr_blocks += s[i].nr_blocks;
		else
			s[out++] = s[i];
	}
	return out;
}

/* The pieces of expert @e, which begin at @p; returns where the next one's begin, or NULL. */
static const struct ndp_piece *split_expert(struct work *w, uint32_t e, const struct ndp_piece *p,
					    const struct ndp_piece *end, int *r)
{
	struct ndp_moe_context *ctx = w->ctx;
	const uint32_t tokens = ctx->tokens[e], slot = ctx->starts[e];
	struct span spans[NDP_DOMAINS][MAX_SPANS];
	uint32_t n[NDP_DOMAINS] = { 0 }, blocks[NDP_DOMAINS] = { 0 };
	uint32_t in_host, most = 0;

	for (; p < end && p->expert == e; p++) {
		n[p->domain] += spans_of(&w->l->places[e], p, spans[p->domain] + n[p->domain]);
		blocks[p->domain] += p->nr_blocks;
	}
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		n[d] = join(spans[d], n[d]);
		if (blocks[d] > blocks[most])
			most = d;
	}
	in_host = n[NDP_DOMAIN_GPU] + n[NDP_DOMAIN_CPU];
	if (in_host > 1 && (in_host - 1) * (uint64_t)tokens > w->y_spare) {
		/* No room for so many partial results: whoever has most does all. */
		const struct span all = { 0, ndp_shape_blocks(&ctx->run->shape) };

		*r = add_part(w, e, most, all, slot, tokens);
		return p;
	}
	if (in_host > 1)
		w->y_spare -= (in_host - 1) * tokens;
	for (int d = NDP_DOMAINS - 1; d >= 0; d--)
		for (uint32_t i = 0; i < n[d] && *r == 0; i++)
			*r = add_part(w, e, d, spans[d][i], slot, tokens);
	return p;
}

/* ---- who computes what ---------------------------------------------------------- */

static void add_loads(struct ndp_moe_report *report, const struct ndp_plan *plan)
{
	const struct ndp_loads *l = &plan->loads;
	double dimm = 0;

	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
		dimm = fmax(dimm, l->dimm_ns[d]);
	report->modelled_ns += plan->makespan_ns;
	report->domain[NDP_DOMAIN_GPU].modelled_ns += fmax(l->gpu_ns, l->pcie_ns);
	report->domain[NDP_DOMAIN_CPU].modelled_ns += l->cpu_ns;
	report->domain[NDP_DOMAIN_NDP].modelled_ns += dimm;
}

/* Without a choice to make: the domain of @fixed, or @only. */
static void dictate(struct ndp_moe_context *ctx, const struct ndp_layer *layer,
		    const uint8_t *fixed, uint32_t domains, enum ndp_domain only)
{
	const struct ndp_rate *rate[NDP_DOMAINS] = { &layer->host->gpu, &layer->host->cpu,
						     &layer->host->dimm };
	struct ndp_plan *plan = &ctx->plan;
	bool known = !layer->shared || rate[layer->shared_domain]->gflops > 0;

	plan->policy = ctx->moe->options.policy;
	plan->nr_pieces = 0;
	for (uint32_t e = 0; e < plan->experts; e++) {
		enum ndp_domain d = only;

		if (fixed && domains & 1u << fixed[e])
			d = fixed[e];
		known = known && rate[d]->gflops > 0;
		plan->domain[e] = ctx->tokens[e] ? d : NDP_DOMAIN_NONE;
	}
	memset(&plan->loads, 0, sizeof(plan->loads));
	if (known)
		ndp_plan_loads(layer, plan, &plan->loads);
	plan->makespan_ns = ndp_loads_max(&plan->loads, layer->host);
}

static int schedule(struct ndp_moe_context *ctx, const struct ndpi_run_layer *l, uint32_t domains,
		    struct ndp_error *err)
{
	const struct ndp_moe_options *o = &ctx->moe->options;
	const struct ndpi_run *run = ctx->run;
	struct ndp_host without_gpu;
	struct ndp_layer layer = {
		.host = &run->host,
		.shape = &run->shape,
		.charges = o->charges ? o->charges : NDP_CHARGES_ALL,
		.tokens = ctx->tokens,
		.blocks = l->blocks,
	};
	const uint32_t able = domains & run->policy_domains;
	int r;

	if (ctx->batch.shared) {
		layer.shared = l->blocks + (size_t)run->shape.experts * run->nr_dimms;
		layer.shared_tokens = ctx->batch.tokens;
		layer.shared_domain = ndpi_preferred_domain(domains);
	}
	if (domains & NDPI_GPU) {
		ndpi_hot_resident(ctx->moe, ctx->batch.layer, ctx->on_gpu);
		layer.on_gpu = ctx->on_gpu;
	} else if (run->domains & NDPI_GPU) {
		without_gpu = run->host;
		memset(&without_gpu.gpu, 0, sizeof(without_gpu.gpu));
		layer.host = &without_gpu;
	}
	if (o->deterministic || !(domains & (domains - 1)) || !able) {
		dictate(ctx, &layer, run->fixed, domains, ndpi_preferred_domain(domains));
	} else {
		r = ndp_schedule(&layer, o->policy, ctx->plan_work, &ctx->plan);
		if (r < 0)
			return ndpi_fail(err, r, "layer %u: policy %s finds no domain that can "
					 "compute all experts: %s", ctx->batch.layer,
					 ndp_policy_name(o->policy), strerror(-r));
	}
	add_loads(ctx->batch.report, &ctx->plan);
	return 0;
}

static int refuse_lost(const struct ndp_moe_context *ctx, uint32_t id, struct ndp_error *err)
{
	const struct ndpi_part p = { .id = id };
	char name[32];

	return ndpi_fail(err, -ENODEV, "layer %u %s: a DIMM that held a part of it is gone; "
			 "start again with those that are left", ctx->batch.layer,
			 ndpi_part_name(&p, name));
}

static int make_parts(struct ndp_moe_context *ctx, const struct ndpi_run_layer *l,
		      uint32_t domains, struct ndp_error *err)
{
	struct ndpi_batch *b = &ctx->batch;
	const struct ndp_plan *plan = &ctx->plan;
	const struct ndp_piece *piece = plan->pieces, *end = piece + plan->nr_pieces;
	const uint32_t experts = plan->experts, pairs = b->tokens * b->k;
	const uint32_t slots = pairs + (b->shared ? b->tokens : 0);
	struct work w = { .ctx = ctx, .l = l, .y_spare = ctx->y_rows - slots };
	int r = 0;

	b->nr_parts = 0;
	for (uint32_t e = 0; e < experts && r == 0; e++) {
		const struct span all = { 0, ndp_shape_blocks(&ctx->run->shape) };

		ctx->first_part[e] = b->nr_parts;
		if (!ctx->tokens[e])
			continue;
		if (l->lost[e])
			return refuse_lost(ctx, e, err);
		if (plan->domain[e] == NDP_DOMAIN_SPLIT)
			piece = split_expert(&w, e, piece, end, &r);
		else
			r = add_part(&w, e, plan->domain[e], all, ctx->starts[e], ctx->tokens[e]);
	}
	ctx->first_part[experts] = b->nr_parts;
	if (r == 0 && b->shared && l->lost[experts])
		return refuse_lost(ctx, NDP_EXPERT_SHARED, err);
	if (r == 0 && b->shared)
		r = add_part(&w, experts, ndpi_preferred_domain(domains),
			     (struct span){ 0, ndp_expert_blocks(&ctx->moe->info.shared) }, pairs,
			     b->tokens);
	return r < 0 ? ndpi_fail(err, r, "out of memory for %u commands", ctx->max_parts) : 0;
}

int ndpi_make_parts(struct ndp_moe_context *ctx, struct ndp_error *err)
{
	struct ndpi_run_layer *l = &ctx->run->layers[ctx->batch.layer];
	const uint32_t domains = ndpi_run_domains(ctx->run);
	uint64_t begin = ndpi_now_ns();
	int r;

	if (!domains)
		return ndpi_fail(err, -ENODEV, "the GPU is lost, and nothing else computes here: "
				 "load the model with CPU workers or a device, too");
	pthread_rwlock_rdlock(&l->lock);
	r = schedule(ctx, l, domains, err);
	if (r == 0)
		r = make_parts(ctx, l, domains, err);
	pthread_rwlock_unlock(&l->lock);
	ctx->batch.report->schedule_wall_ns += ndpi_now_ns() - begin;
	return r;
}

void ndpi_reassign_parts(struct ndp_moe_context *ctx, enum ndp_domain from, enum ndp_domain to)
{
	for (uint32_t i = 0; i < ctx->batch.nr_parts; i++) {
		struct ndpi_part *p = &ctx->batch.parts[i];

		p->done = p->domain != from;
		if (!p->done)
			p->domain = to;
	}
}

enum ndp_domain ndpi_preferred_domain(uint32_t domains)
{
	if (domains & NDPI_CPU)
		return NDP_DOMAIN_CPU;
	return domains & NDPI_GPU ? NDP_DOMAIN_GPU : NDP_DOMAIN_NDP;
}
