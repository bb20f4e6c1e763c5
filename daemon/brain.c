// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * brain.c - from loads to moves: what a client posts goes to libndp's steward, what
 * the steward decides goes to the client's hands (migrations between DIMMs) and into
 * its page (the hot set, which the application follows).
 *
 * Decisions depend on the loads, their order and the times they were read at, and on
 * nothing else: ndpd --record keeps these, and ndp-replay decides the same from them.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define COVERAGE_RATE 0.02

enum { PLAY_FIRST = 16, PLAY_EVERY = 16 };

static const char *const kind_name[] = {
	[NDP_PLACE_PREFETCH] = "prefetch",
	[NDP_PLACE_RELAYOUT] = "relayout",
	[NDP_PLACE_REBALANCE] = "rebalance",
};

/* ---- beginning ------------------------------------------------------------------ */

static void describe(struct brain *b, const struct config *config, const struct ndp_msg_hello *h)
{
	b->host = config->host.host;
	b->shape = (struct ndp_shape){
		.experts = h->experts,
		.top_k = h->top_k,
		.hidden = h->hidden,
		.intermediate = h->intermediate,
		.expert_bytes = h->expert_bytes,
	};
	b->layers = h->layers;
	b->dimm_mask = h->dimm_mask;
	for (uint32_t mask = h->dimm_mask, n = 0; mask; mask &= mask - 1)
		b->dimm_of[n++] = (uint8_t)__builtin_ctz(mask);
	if (h->dimm_mask)
		b->host.nr_dimms = (uint32_t)__builtin_popcount(h->dimm_mask);
	if (b->host.nr_channels > b->host.nr_dimms)
		b->host.nr_channels = b->host.nr_dimms;
	b->host.gpu_bytes = h->gpu_bytes;
}

static struct ndp_steward_options options(const struct brain *b, const struct config *config,
					  double share, uint64_t dimm_bytes)
{
	struct ndp_steward_options o;

	ndp_steward_defaults(&o, &b->host);
	o.first = config->first;
	o.first_every = config->first_every;
	o.every = config->every;
	o.place.policy = config->policy;
	o.place.horizon_steps = config->horizon_steps;
	o.place.hysteresis = config->hysteresis;
	o.place.stay_ns = config->stay_ms * 1e6;
	o.place.gpu_bytes = b->host.gpu_bytes;
	o.place.pcie_share = b->host.gpu_bytes ? config->pcie_share : 0;
	o.place.link_share = b->ids ? config->link_share * share : 0;
	if (dimm_bytes)
		o.place.dimm_bytes = dimm_bytes;
	return o;
}

/*
 * How much of each DIMM the client may fill: its share, but what it has already is
 * its own, and there is room to move in.
 */
static uint64_t fair_bytes(const struct brain *b, const uint16_t *blocks, double share)
{
	const uint64_t block_bytes = b->shape.expert_bytes / ndp_shape_blocks(&b->shape);
	uint64_t most = 0, mine = (uint64_t)(share * (double)b->dimm_bytes);

	for (uint32_t d = 0; d < b->host.nr_dimms; d++) {
		uint64_t held = 0;

		for (size_t i = 0; i < (size_t)b->layers * b->shape.experts; i++)
			held += blocks[i * b->host.nr_dimms + d];
		held *= block_bytes;
		if (held > most)
			most = held;
	}
	most += 2 * b->shape.expert_bytes;
	return mine > most ? mine : most;
}

/* All of ndpd's memory that a model of so many experts takes, in passing too. */
static int check_cost(const struct config *config, uint32_t layers, uint32_t experts,
		      uint32_t nr_dimms, struct ndp_error *err)
{
	const size_t n = (size_t)layers * experts;
	const size_t placing = ndp_steward_bytes(layers, experts, nr_dimms);
	const struct brain *b = NULL;
	size_t all;

	if (!placing)
		return fail(err, -EINVAL, "%u layers of %u experts on %u DIMMs are beyond what "
			    "can be placed", layers, experts, nr_dimms);
	all = placing + n * (2 * sizeof(*b->hot) + sizeof(*b->last) + sizeof(*b->ids) +
			     nr_dimms * sizeof(uint16_t)) +
	      experts * (sizeof(*b->masks) + sizeof(*b->tokens)) + sizeof(struct ndp_page) +
	      (size_t)layers * ndp_page_layer_bytes(experts);
	if (all > config->client_bytes)
		return fail(err, -ENOSPC, "placing this model takes %zu bytes of ndpd's memory, a "
			    "client may take %llu (client_memory)", all,
			    (unsigned long long)config->client_bytes);
	return 0;
}

int brain_check_cost(const struct config *config, const struct ndp_msg_hello *h,
		     struct ndp_error *err)
{
	const uint32_t dimms = h->dimm_mask ? (uint32_t)__builtin_popcount(h->dimm_mask) :
					      config->host.host.nr_dimms;

	return check_cost(config, h->layers, h->experts, dimms, err);
}

static int allocate(struct brain *b, struct ndp_error *err)
{
	const size_t n = (size_t)b->layers * b->shape.experts;
	const size_t placing = ndp_steward_bytes(b->layers, b->shape.experts, b->host.nr_dimms);

	b->memory = placing ? malloc(placing) : NULL;
	b->hot = calloc(n, 1);
	b->masks = calloc(b->shape.experts, sizeof(*b->masks));
	b->tokens = calloc(b->shape.experts, sizeof(*b->tokens));
	b->last = calloc(n, sizeof(*b->last));
	if (!b->memory || !b->hot || !b->masks || !b->tokens || !b->last)
		return fail(err, -ENOMEM, "out of memory");
	return 0;
}

/* Where experts are said to be that cannot be moved: dealt out in turn. */
static uint16_t *deal(const struct brain *b)
{
	const size_t layer = (size_t)b->shape.experts * b->host.nr_dimms;
	uint16_t *blocks = calloc(b->layers * layer, sizeof(*blocks));

	for (uint32_t l = 0; blocks && l < b->layers; l++)
		ndp_place_deal(blocks + l * layer, &b->shape, b->host.nr_dimms, NULL, 0);
	return blocks;
}

/* What an earlier daemon had put on the GPU, as far as the budget goes. */
static void keep_hot(struct brain *b, const uint8_t *on_gpu)
{
	uint64_t left = b->host.gpu_bytes;

	for (size_t i = 0; on_gpu && i < (size_t)b->layers * b->shape.experts; i++) {
		if (!on_gpu[i] || left < b->shape.expert_bytes)
			continue;
		b->hot[i] = 1;
		left -= b->shape.expert_bytes;
	}
}

int brain_start(struct brain *b, const struct config *config, const struct ndp_msg_hello *hello,
		struct survey *survey, const uint8_t *on_gpu, double share, uint64_t dimm_bytes,
		struct ndp_error *err)
{
	uint16_t *blocks = NULL;
	int r;

	*b = (struct brain){ .tokens_left = 1 };
	describe(b, config, hello);
	r = allocate(b, err);
	if (r == 0 && !survey) {
		blocks = deal(b);
		if (!blocks)
			r = fail(err, -ENOMEM, "out of memory");
	}
	if (r == 0 && survey) {
		b->ids = survey->ids;
		survey->ids = NULL;
	}
	if (r == 0) {
		keep_hot(b, on_gpu);
		b->dimm_bytes = dimm_bytes;
		b->share = share;
		b->options = options(b, config, share, survey && dimm_bytes ?
				     fair_bytes(b, survey->blocks, share) : 0);
		r = ndp_steward_init(b->memory, &b->host, &b->shape, b->layers, &b->options,
				     survey ? survey->blocks : blocks, b->hot, &b->steward, err);
	}
	free(blocks);
	if (r < 0)
		brain_end(b);
	return r;
}

void brain_end(struct brain *b)
{
	free(b->memory);
	free(b->ids);
	free(b->hot);
	free(b->masks);
	free(b->tokens);
	free(b->last);
	*b = (struct brain){ 0 };
}

void brain_share(struct client *c, double share)
{
	struct brain *b = &c->brain;
	struct ndp_placer *placer = ndp_steward_placer(b->steward);
	const double link_share = b->ids ? c->d->config.link_share * share : 0;
	const double pcie_share = b->host.gpu_bytes ? c->d->config.pcie_share : 0;
	const uint64_t dimm_bytes = b->ids && b->dimm_bytes ?
		fair_bytes(b, ndp_place_blocks(placer, 0), share) : 0;

	b->share = share;
	record_share(c->d, c, link_share, pcie_share, dimm_bytes);
	ndp_place_share(placer, link_share, pcie_share, dimm_bytes);
}

/* ---- publishing -------------------------------------------------------------------- */

void brain_publish(struct client *c, uint32_t layer)
{
	struct brain *b = &c->brain;
	const uint16_t *row = ndp_place_blocks(ndp_steward_placer(b->steward), layer);

	for (uint32_t e = 0; e < b->shape.experts; e++, row += b->host.nr_dimms) {
		b->masks[e] = 0;
		for (uint32_t d = 0; d < b->host.nr_dimms; d++)
			if (row[d] && b->dimm_mask)
				b->masks[e] |= 1u << b->dimm_of[d];
	}
	page_publish(&c->page, layer, b->hot + (size_t)layer * b->shape.experts, b->masks);
}

/* ---- moving ------------------------------------------------------------------------- */

static uint32_t nr_moving(const struct brain *b)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->nr_pending; i++)
		n += b->pending[i].moving;
	return n;
}

static struct pending *find(struct brain *b, uint32_t action)
{
	for (uint32_t i = 0; i < b->nr_pending; i++)
		if (b->pending[i].action.id == action)
			return &b->pending[i];
	return NULL;
}

static void forget(struct brain *b, struct pending *p)
{
	*p = b->pending[--b->nr_pending];
}

static uint8_t *hot_at(struct brain *b, uint32_t layer, uint32_t expert)
{
	return &b->hot[(size_t)layer * b->shape.experts + expert];
}

/*
 * What a migration did to the layer as it last ran, by the model: its makespan with
 * the placement before, and how much of the copies was behind it, event by event.
 */
static double play(struct brain *b, const struct ndp_place_action *a, bool with_copies,
		   struct order *order)
{
	const uint32_t experts = b->shape.experts, dimms = b->host.nr_dimms;
	struct ndp_placer *placer = ndp_steward_placer(b->steward);
	struct ndp_copy copies[2 * NDP_MAX_DIMMS];
	const uint32_t n = with_copies ? ndp_place_copies(placer, a->id, copies) : 0;
	const struct ndp_layer layer = {
		.host = &b->host,
		.shape = &b->shape,
		.charges = NDP_CHARGES_ALL,
		.tokens = b->last + (size_t)a->layer * experts,
		.blocks = ndp_place_blocks(placer, a->layer),
		.on_gpu = ndp_place_on_gpu(placer, a->layer),
	};
	const size_t work = ndp_schedule_bytes(experts, dimms);
	const size_t events = ndp_timeline_bytes(experts, dimms, n);
	void *memory = malloc(work > events ? work : events);
	void *plan_memory = malloc(ndp_plan_bytes(experts, dimms));
	double makespan_ns = 0;
	struct ndp_timeline t;
	struct ndp_plan plan;

	if (memory && plan_memory) {
		ndp_plan_init(&plan, plan_memory, experts, dimms);
		if (ndp_schedule(&layer, NDP_POLICY_TRIMOE, memory, &plan) == 0)
			makespan_ns = plan.makespan_ns;
		if (n && makespan_ns > 0 &&
		    ndp_timeline(&layer, &plan, copies, n, memory, NULL, 0, &t) == 0) {
			b->count.copy_modelled_ns += t.copy_ns;
			b->count.hidden_modelled_ns += t.hidden_ns;
			if (order) {
				order->copy_ns += t.copy_ns;
				order->hidden_ns += t.hidden_ns;
			}
		}
	}
	free(memory);
	free(plan_memory);
	return makespan_ns;
}

/* The engine is told the end of an action, and who reads the page. */
static void end(struct client *c, struct pending *p, double now_ns, int res)
{
	struct brain *b = &c->brain;
	const struct ndp_place_action a = p->action;
	struct order *order = p->order;
	/* Playing a layer costs many times its schedule: a few at first, then some. */
	const bool played = order || b->count.ended < PLAY_FIRST ||
			    b->count.ended % PLAY_EVERY == 0;
	const double before_ns = res < 0 ? 0 : play(b, &a, played, order);

	if (order)
		order_account(b, p, res);
	b->count.ended++;
	forget(b, p);
	record_done(c->d, c, a.id, now_ns, res);
	ndp_place_done(ndp_steward_placer(b->steward), a.id, now_ns, res);
	if (a.kind == NDP_PLACE_PREFETCH)
		*hot_at(b, a.layer, a.expert) = res >= 0;
	if (res < 0) {
		b->count.rollbacks += res != -EAGAIN; /* which is the rate limit */
	} else {
		b->count.moves[a.kind]++;
		b->count.move_bytes[a.kind] += a.bytes;
		b->count.realised_modelled_ns += before_ns - play(b, &a, false, NULL);
	}
	if (!c->d->config.dry_run)
		brain_publish(c, a.layer);
	if (order)
		order_put(c->d, order, now_ns);
}

/* What the engine wants, in the kernel's terms. */
static void make_placement(const struct brain *b, const struct ndp_place_action *a,
			   struct ndp_placement *to)
{
	const uint16_t *row = ndp_place_target(ndp_steward_placer(b->steward), a->layer,
					       a->expert);

	to->nr_ranges = 0;
	for (uint32_t d = 0; d < b->host.nr_dimms; d++)
		if (row[d])
			to->ranges[to->nr_ranges++] = (struct ndp_range){ b->dimm_of[d], row[d] };
}

void brain_move(struct client *c, double now_ns)
{
	struct brain *b = &c->brain;

	for (uint32_t i = 0; i < b->nr_pending && nr_moving(b) < c->d->config.moves_at_once; i++) {
		struct pending *p = &b->pending[i];
		const struct ndp_place_action *a = &p->action;
		struct ndp_placement to;
		int r;

		if (!p->queued || (!p->order && now_ns < a->start_ns))
			continue;
		p->queued = false;
		make_placement(b, a, &to);
		r = hands_move(c->hands, a->id,
			       b->ids[(size_t)a->layer * b->shape.experts + a->expert], &to);
		if (r < 0) {
			end(c, p, now_ns, r);
			i--; /* another one has taken its place */
			continue;
		}
		p->moving = true;
	}
}

static bool within_rate(struct client *c, double now_ns)
{
	struct brain *b = &c->brain;
	const double rate = c->d->config.moves_per_second;

	b->tokens_left += (now_ns - b->limited_at_ns) * 1e-9 * rate;
	b->limited_at_ns = now_ns;
	/* At most what a second brings, and never less than one. */
	if (b->tokens_left > fmax(rate, 1))
		b->tokens_left = fmax(rate, 1);
	if (b->tokens_left < 1)
		return false;
	b->tokens_left--;
	return true;
}

/* The application is to bring an expert to the GPU, when PCIe is free for it. */
static void announce(struct client *c, const struct pending *p, double now_ns)
{
	uint8_t *hot = hot_at(&c->brain, p->action.layer, p->action.expert);

	if (*hot || now_ns < p->action.start_ns)
		return;
	*hot = 1;
	if (!c->d->config.dry_run)
		brain_publish(c, p->action.layer);
}

static void start(struct client *c, const struct ndp_place_action *a, double now_ns)
{
	struct brain *b = &c->brain;
	struct pending *p = &b->pending[b->nr_pending];
	const bool dry = c->d->config.dry_run;

	record_action(c->d, c, a);
	*p = (struct pending){ .action = *a, .started_ns = now_ns };
	b->nr_pending++;
	b->count.decisions++;
	b->count.cost_modelled_ns += a->cost_ns;
	b->count.gain_modelled_ns += a->gain_ns;
	client_log(c, dry ? LOG_INFO : LOG_DEBUG,
		   "%s%s of layer %u expert %u, %llu bytes: modelled gain %.0f ns a step, "
		   "cost %.0f ns", dry ? "would start " : "", kind_name[a->kind], a->layer,
		   a->expert, (unsigned long long)a->bytes, a->gain_ns, a->cost_ns);
	if (a->victim >= 0) {
		*hot_at(b, a->victim_layer, (uint32_t)a->victim) = 0;
		if (!dry)
			brain_publish(c, a->victim_layer);
	}
	if (!within_rate(c, now_ns)) {
		b->count.limited++;
		end(c, p, now_ns, -EAGAIN);
		return;
	}
	if (a->kind == NDP_PLACE_PREFETCH)
		announce(c, p, now_ns);
	else
		p->queued = !dry;
}

/* ---- events ------------------------------------------------------------------------------ */

void brain_post(struct client *c, uint32_t layer, double now_ns)
{
	struct brain *b = &c->brain;
	struct ndp_place_action actions[16];
	const uint32_t room = NDPD_MAX_PENDING - b->nr_pending;
	double covered, best;
	uint32_t n;

	record_post(c->d, c, layer, now_ns);
	b->count.posts++;
	memcpy(b->last + (size_t)layer * b->shape.experts, b->tokens,
	       b->shape.experts * sizeof(*b->tokens));
	n = ndp_steward_step(b->steward, layer, b->tokens, now_ns, actions, room < 16 ? room : 16);
	ndp_steward_coverage(b->steward, layer, &covered, &best);
	b->count.covered += COVERAGE_RATE * (covered - b->count.covered);
	b->count.best += COVERAGE_RATE * (best - b->count.best);
	ndp_steward_prediction(b->steward, layer, &covered, &best);
	b->count.predicted += COVERAGE_RATE * (covered - b->count.predicted);
	b->count.hottest += COVERAGE_RATE * (best - b->count.hottest);
	for (uint32_t i = 0; i < n; i++)
		start(c, &actions[i], now_ns);
	if (n)
		brain_move(c, now_ns);
}

void brain_tick(struct client *c, double now_ns)
{
	struct brain *b = &c->brain;

	for (uint32_t i = b->nr_pending; i-- > 0;) {
		struct pending *p = &b->pending[i];
		const bool waits = p->moving || p->queued;

		if (p->action.kind == NDP_PLACE_PREFETCH)
			announce(c, p, now_ns);
		if (!waits && now_ns >= p->action.end_ns)
			end(c, p, now_ns, 0);
	}
	brain_move(c, now_ns);
}

void brain_outcome(struct client *c, const struct outcome *out, double now_ns)
{
	struct brain *b = &c->brain;
	struct pending *p = find(b, out->action);

	if (!p)
		return;
	if (out->res < 0) {
		client_log(c, LOG_WARNING, "%s of layer %u expert %u failed: %s; it stays where "
			   "it was", kind_name[p->action.kind], p->action.layer, p->action.expert,
			   strerror(-out->res));
	} else {
		p->modelled_ns = (double)out->move.modelled_ns;
		b->count.link_modelled_ns += p->modelled_ns;
		b->count.link_wall_ns += (double)out->wall_ns;
	}
	end(c, p, now_ns, out->res);
	brain_move(c, now_ns);
}
