// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * engine.c - the state of the placement engine: what is where, what is on its
 * way, and the limits that no action may exceed.
 *
 * Memory and ports are charged when an action starts, and memory is given back
 * when it ends: a migration keeps the old blocks until the new ones have arrived,
 * so both count. Ports of DIMM-Link, and PCIe, serve one copy after another; one
 * that is used for t from some time on is free again after t / share, which keeps
 * it to its share of any span of time that begins with a copy.
 */
#include "engine.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DOUBLINGS = 8 };	/* of the time that an expert rests after a move */

static int refuse(struct ndp_error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int refuse(struct ndp_error *err, int code, const char *format, ...)
{
	va_list args;

	if (!err)
		return code;
	err->code = code;
	va_start(args, format);
	vsnprintf(err->message, sizeof(err->message), format, args);
	va_end(args);
	return code;
}

/* ---- before anything is loaded ---------------------------------------------- */

/* Bytes as people write them; exact when they are whole MiB. */
static const char *mib(char text[32], uint64_t bytes)
{
	if (bytes % (1 << 20))
		snprintf(text, 32, "%.1f MiB", (double)bytes / (1 << 20));
	else
		snprintf(text, 32, "%llu MiB", (unsigned long long)bytes >> 20);
	return text;
}

int ndp_place_budget(uint64_t slots, uint64_t expert_bytes, uint64_t free_bytes,
		     struct ndp_error *err)
{
	char need[32], one[32], have[32];
	uint64_t total;

	if (!expert_bytes)
		return refuse(err, -EINVAL, "an expert of 0 bytes cannot be placed");
	if (slots <= free_bytes / expert_bytes)
		return 0;
	if (__builtin_mul_overflow(slots, expert_bytes, &total))
		total = UINT64_MAX;
	return refuse(err, -ENOSPC,
		      "%llu experts of %s need %s, there are %s free: at most %llu fit",
		      (unsigned long long)slots, mib(one, expert_bytes), mib(need, total),
		      mib(have, free_bytes), (unsigned long long)(free_bytes / expert_bytes));
}

void ndp_place_deal(uint16_t *blocks, const struct ndp_shape *shape, uint32_t nr_dimms,
		    const uint32_t *order, uint32_t first)
{
	memset(blocks, 0, (size_t)shape->experts * nr_dimms * sizeof(*blocks));
	for (uint32_t i = 0; i < shape->experts; i++) {
		const uint32_t expert = order ? order[i] : i;
		const uint32_t dimm = (uint32_t)(((uint64_t)first + i) % nr_dimms);

		blocks[(size_t)expert * nr_dimms + dimm] = (uint16_t)ndp_shape_blocks(shape);
	}
}

/* ---- beginning ------------------------------------------------------------------ */

void ndp_place_defaults(struct ndp_place_options *options, const struct ndp_host *host)
{
	*options = (struct ndp_place_options){
		.gpu_bytes = host->gpu_bytes,
		.dimm_bytes = host->dimm_bytes,
		.allowed_mask = (uint32_t)((1ull << host->nr_dimms) - 1),
		.charges = NDP_CHARGES_ALL,
		.kinds = (1u << NDP_PLACE_KINDS) - 1,
		.policy = NDP_POLICY_TRIMOE,
		.link_share = 0.5,
		.pcie_share = 0.5,
		.horizon_steps = 128,
		.hysteresis = 0.5,
		.stay_ns = 2e9,
		.queue_ns = 1e8,
		.least_cost = 0.125,
	};
}

static size_t aligned(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

size_t ndp_place_bytes(uint32_t layers, uint32_t experts, uint32_t nr_dimms)
{
	const size_t cells = (size_t)layers * experts;

	if (!layers || layers > NDP_PLACE_MAX_LAYERS || !experts || experts > NDP_MAX_EXPERTS ||
	    !nr_dimms || nr_dimms > NDP_MAX_DIMMS)
		return 0;
	return 64 + aligned(sizeof(struct ndp_placer)) +
	       2 * aligned(cells * nr_dimms * sizeof(uint16_t)) + 4 * aligned(cells) +
	       2 * aligned(cells * sizeof(double)) + 2 * aligned(cells * sizeof(float)) +
	       aligned(layers * sizeof(struct place_pause)) + aligned(layers * sizeof(float)) +
	       (2 + PLACE_STEPS) * aligned(experts * sizeof(uint32_t)) +
	       aligned((size_t)experts * nr_dimms * sizeof(uint16_t)) +
	       aligned(experts * sizeof(float)) + aligned(experts) +
	       aligned(experts * sizeof(float[PLACE_GROUPS][4])) +
	       aligned(ndp_schedule_bytes(experts, nr_dimms)) +
	       aligned(ndp_plan_bytes(experts, nr_dimms));
}

static void *take(char **at, size_t bytes)
{
	char *here = *at;

	*at += aligned(bytes);
	return here;
}

static int check_options(const struct ndp_place_options *o, const struct ndp_host *host,
			 struct ndp_error *err)
{
	if (!(o->link_share >= 0 && o->link_share <= 1) ||
	    !(o->pcie_share >= 0 && o->pcie_share <= 1))
		return refuse(err, -EINVAL, "link_share %g and pcie_share %g must be 0 to 1",
			      o->link_share, o->pcie_share);
	if (!(o->horizon_steps >= 0 && isfinite(o->horizon_steps)) ||
	    !(o->hysteresis >= 0 && isfinite(o->hysteresis)) ||
	    !(o->stay_ns >= 0 && isfinite(o->stay_ns)) ||
	    !(o->queue_ns >= 0 && isfinite(o->queue_ns)))
		return refuse(err, -EINVAL,
			      "horizon_steps %g, hysteresis %g, stay_ns %g and queue_ns %g must be "
			      "finite and not negative",
			      o->horizon_steps, o->hysteresis, o->stay_ns, o->queue_ns);
	if (!(o->least_cost >= 0 && o->least_cost <= 1))
		return refuse(err, -EINVAL, "least_cost %g must be 0 to 1", o->least_cost);
	if ((unsigned)o->policy >= NDP_POLICIES)
		return refuse(err, -EINVAL, "policy %u: there are %u", o->policy, NDP_POLICIES);
	if (o->kinds >> NDP_PLACE_KINDS)
		return refuse(err, -EINVAL, "kinds %#x: there are %u", o->kinds, NDP_PLACE_KINDS);
	if (o->allowed_mask & ~(UINT32_MAX >> (32 - host->nr_dimms)))
		return refuse(err, -EINVAL, "allowed_mask %#x names DIMMs beyond the host's %u",
			      o->allowed_mask, host->nr_dimms);
	return 0;
}

/* Charges what is there already. */
static int count_memory(struct ndp_placer *p, struct ndp_error *err)
{
	const uint32_t dimms = p->host.nr_dimms;
	uint64_t slots = 0, free = p->options.gpu_bytes;
	char need[32], have[32];
	int r;

	if (p->host.gpu_bytes < free)
		return refuse(err, -EINVAL, "gpu_bytes: %s asked, the host's GPU has %s",
			      mib(need, free), mib(have, p->host.gpu_bytes));
	if (p->host.dimm_bytes < p->options.dimm_bytes)
		return refuse(err, -EINVAL, "dimm_bytes: %s asked, a DIMM has %s",
			      mib(need, p->options.dimm_bytes), mib(have, p->host.dimm_bytes));
	for (size_t cell = 0; cell < (size_t)p->layers * p->shape.experts; cell++) {
		slots += p->on_gpu[cell];
		for (uint32_t d = 0; d < dimms; d++)
			p->dimm_bytes[d] += p->blocks[cell * dimms + d] * p->block_bytes;
	}
	r = ndp_place_budget(slots, p->shape.expert_bytes, free, err);
	if (r < 0)
		return r;
	p->gpu_bytes = slots * p->shape.expert_bytes;
	for (uint32_t d = 0; d < dimms; d++)
		if (p->dimm_bytes[d] > p->options.dimm_bytes)
			return refuse(err, -ENOSPC, "DIMM %u: its experts need %s, it has %s", d,
				      mib(need, p->dimm_bytes[d]),
				      mib(have, p->options.dimm_bytes));
	return 0;
}

/* What a relayout over all allowed DIMMs leads to. */
static void spread_evenly(struct ndp_placer *p)
{
	struct ndp_placement even;

	if (ndp_placement_spread(&even, p->nr_blocks, p->options.allowed_mask) < 0)
		return;
	p->can_spread = even.nr_ranges > 1;
	for (uint32_t i = 0; i < even.nr_ranges; i++)
		p->even[even.ranges[i].dimm] = (uint16_t)even.ranges[i].nr_blocks;
}

int ndp_place_init(void *mem, const struct ndp_host *host, const struct ndp_shape *shape,
		   uint32_t layers, const struct ndp_place_options *options, const uint16_t *blocks,
		   const uint8_t *on_gpu, struct ndp_placer **placer, struct ndp_error *err)
{
	const size_t bytes = ndp_place_bytes(layers, shape->experts, host->nr_dimms);
	const size_t cells = (size_t)layers * shape->experts;
	char *at = (char *)aligned((uintptr_t)mem);
	struct ndp_placer *p;
	int r;

	if (!bytes)
		return refuse(err, -EINVAL,
			      "%u layers of %u experts on %u DIMMs: must be 1 to %u, %u, %u",
			      layers, shape->experts, host->nr_dimms, NDP_PLACE_MAX_LAYERS,
			      NDP_MAX_EXPERTS, NDP_MAX_DIMMS);
	r = check_options(options, host, err);
	if (r < 0)
		return r;
	memset(mem, 0, bytes);
	p = take(&at, sizeof(*p));
	p->blocks = take(&at, cells * host->nr_dimms * sizeof(uint16_t));
	p->target = take(&at, cells * host->nr_dimms * sizeof(uint16_t));
	p->on_gpu = take(&at, cells);
	p->gpu_target = take(&at, cells);
	p->busy = take(&at, cells);
	p->moved = take(&at, cells);
	p->free_ns = take(&at, cells * sizeof(double));
	p->move_free_ns = take(&at, cells * sizeof(double));
	p->seen = take(&at, cells * sizeof(float));
	p->worth = take(&at, cells * sizeof(float));
	p->pause = take(&at, layers * sizeof(*p->pause));
	p->tokens = take(&at, shape->experts * sizeof(uint32_t));
	p->saved = take(&at, (size_t)shape->experts * host->nr_dimms * sizeof(uint16_t));
	p->other = take(&at, shape->experts * sizeof(uint32_t));
	p->expected_ns = take(&at, layers * sizeof(float));
	p->step = take(&at, PLACE_STEPS * shape->experts * sizeof(uint32_t));
	p->ways = take(&at, shape->experts * sizeof(*p->ways));
	p->nr_ways = take(&at, shape->experts);
	p->value = take(&at, shape->experts * sizeof(float));
	p->work = take(&at, ndp_schedule_bytes(shape->experts, host->nr_dimms));
	ndp_plan_init(&p->plan, take(&at, ndp_plan_bytes(shape->experts, host->nr_dimms)),
		      shape->experts, host->nr_dimms);
	p->host = *host;
	p->shape = *shape;
	p->options = *options;
	p->layers = layers;
	memcpy(p->blocks, blocks, cells * host->nr_dimms * sizeof(uint16_t));
	if (on_gpu)
		memcpy(p->on_gpu, on_gpu, cells);
	for (uint32_t l = 0; l < layers; l++) {
		const struct ndp_layer layer = {
			.host = &p->host, .shape = &p->shape, .charges = options->charges,
			.tokens = p->tokens, .blocks = ndp_place_blocks(p, l),
			.on_gpu = ndp_place_on_gpu(p, l),
		};

		r = ndp_layer_check(&layer, err);
		if (r < 0)
			return r;
	}
	p->nr_blocks = ndp_shape_blocks(shape);
	p->block_bytes = (shape->expert_bytes + p->nr_blocks - 1) / p->nr_blocks;
	r = count_memory(p, err);
	if (r < 0)
		return r;
	memcpy(p->target, p->blocks, cells * host->nr_dimms * sizeof(uint16_t));
	memcpy(p->gpu_target, p->on_gpu, cells);
	/* Until its layer is looked at nobody knows what the GPU's copy of an expert is worth. */
	for (size_t k = 0; k < cells; k++)
		p->worth[k] = HUGE_VALF;
	spread_evenly(p);
	*placer = p;
	return 0;
}

/* ---- actions -------------------------------------------------------------------- */

/* Blocks that a move takes from @d, or (negative) brings to it. */
static int32_t leaving(const struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		       uint32_t d)
{
	return (int32_t)place_row(p, p->target, layer, proposal->expert)[d] - proposal->row[d];
}

static double link_ns(const struct ndp_placer *p, uint32_t blocks)
{
	return p->host.link_latency_ns + (double)(blocks * p->block_bytes) / p->host.link_gbps;
}

/* PCIe delivers no faster than the slowest channel that an expert comes from. */
static double prefetch_ns(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	const uint16_t *row = place_row(p, p->blocks, layer, expert);
	uint32_t on_channel[NDP_MAX_CHANNELS] = { 0 }, most = 0;

	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		uint32_t *blocks = &on_channel[d % p->host.nr_channels];

		*blocks += row[d];
		most = *blocks > most ? *blocks : most;
	}
	return fmax((double)p->shape.expert_bytes / p->host.pcie_gbps,
		    (double)(most * p->block_bytes) / p->host.channel_gbps);
}

/* When the ports that a proposal needs are free. */
static double start_ns(const struct ndp_placer *p, uint32_t layer, const struct proposal *proposal)
{
	double start = p->now_ns;

	if (proposal->kind == NDP_PLACE_PREFETCH)
		return fmax(start, p->pcie_ns);
	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		const int32_t blocks = leaving(p, layer, proposal, d);

		if (blocks > 0 && p->link_out_ns[d] > start)
			start = p->link_out_ns[d];
		if (blocks < 0 && p->link_in_ns[d] > start)
			start = p->link_in_ns[d];
	}
	return start;
}

/* A move between DIMMs. */
static double move_ns(const struct ndp_placer *p, uint32_t layer, const struct proposal *proposal)
{
	uint32_t most = 0;

	if (p->options.link_share <= 0 || p->host.link_gbps <= 0)
		return HUGE_VAL;
	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		const int32_t blocks = leaving(p, layer, proposal, d);

		if (proposal->row[d] && p->dimm_bytes[d] + proposal->row[d] * p->block_bytes >
					p->options.dimm_bytes)
			return HUGE_VAL;
		if (blocks < 0 && !(p->options.allowed_mask >> d & 1))
			return HUGE_VAL;
		most = (uint32_t)abs(blocks) > most ? (uint32_t)abs(blocks) : most;
	}
	return most ? link_ns(p, most) : 0;
}

double ndpi_place_copy_ns(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal)
{
	double copy_ns;

	if (!(p->options.kinds >> proposal->kind & 1))
		return HUGE_VAL;
	if (proposal->kind == NDP_PLACE_PREFETCH) {
		const uint64_t freed = proposal->has_victim ? p->shape.expert_bytes : 0;

		if (!place_rested(p, layer, proposal->expert) ||
		    p->options.pcie_share <= 0 || p->host.pcie_gbps <= 0 ||
		    p->gpu_bytes - freed + p->shape.expert_bytes > p->options.gpu_bytes)
			return HUGE_VAL;
		copy_ns = prefetch_ns(p, layer, proposal->expert);
	} else {
		if (!place_may_move(p, layer, proposal->expert))
			return HUGE_VAL;
		copy_ns = move_ns(p, layer, proposal);
	}
	if (isfinite(copy_ns) &&
	    start_ns(p, layer, proposal) > p->now_ns + p->options.queue_ns) {
		p->must_wait = true;
		return HUGE_VAL;
	}
	return copy_ns;
}

void ndpi_place_try(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		    struct proposal *undo)
{
	uint16_t *row = place_row(p, p->target, layer, proposal->expert);
	uint8_t *gpu = p->gpu_target + place_cell(p, layer, 0);

	*undo = *proposal;
	if (proposal->kind == NDP_PLACE_PREFETCH) {
		gpu[proposal->expert] ^= 1;
		if (proposal->has_victim)
			p->gpu_target[place_cell(p, proposal->victim_layer, proposal->victim)] ^= 1;
		return;
	}
	memcpy(undo->row, row, p->host.nr_dimms * sizeof(*row));
	memcpy(row, proposal->row, p->host.nr_dimms * sizeof(*row));
}

/* A step's part of the mean. */
static void add_loads(struct ndp_loads *sum, const struct ndp_loads *step)
{
	sum->gpu_ns += step->gpu_ns / PLACE_STEPS;
	sum->pcie_ns += step->pcie_ns / PLACE_STEPS;
	sum->cpu_ns += step->cpu_ns / PLACE_STEPS;
	for (uint32_t c = 0; c < NDP_MAX_CHANNELS; c++)
		sum->channel_ns[c] += step->channel_ns[c] / PLACE_STEPS;
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
		sum->dimm_ns[d] += step->dimm_ns[d] / PLACE_STEPS;
}

bool ndpi_place_schedule(struct ndp_placer *p, uint32_t layer, double most_ns,
			 double makespan_ns[PLACE_STEPS])
{
	struct ndp_layer now = place_layer(p, layer);

	p->runs++;
	memset(&p->loads, 0, sizeof(p->loads));
	for (uint32_t k = 0; k < PLACE_STEPS; k++) {
		now.tokens = p->step + (size_t)k * p->shape.experts;
		if (ndp_schedule(&now, p->options.policy, p->work, &p->plan) < 0)
			return false;
		makespan_ns[k] = p->plan.makespan_ns;
		if (makespan_ns[0] > most_ns)
			return false;
		add_loads(&p->loads, &p->plan.loads);
	}
	return true;
}

double ndpi_place_expected(struct ndp_placer *p, uint32_t layer)
{
	const float *seen = p->seen + place_cell(p, layer, 0);
	struct ndp_layer now = place_layer(p, layer);

	for (uint32_t e = 0; e < p->shape.experts; e++)
		p->other[e] = place_whole(seen[e]);
	now.tokens = p->other;
	return ndp_schedule(&now, p->options.policy, p->work, &p->plan) < 0 ? HUGE_VAL :
	       p->plan.makespan_ns;
}

static void start_prefetch(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
			   const struct ndp_place_action *action)
{
	const size_t cell = place_cell(p, layer, proposal->expert);

	if (proposal->has_victim) {
		const size_t victim = place_cell(p, proposal->victim_layer, proposal->victim);

		p->on_gpu[victim] = p->gpu_target[victim] = 0;
		p->free_ns[victim] = p->now_ns + p->options.stay_ns;
		p->worth[victim] = HUGE_VALF;
	} else {
		p->gpu_bytes += p->shape.expert_bytes;
	}
	p->gpu_target[cell] = 1;
	p->worth[cell] = (float)proposal->gain_ns;
	p->pcie_ns = action->start_ns + (action->end_ns - action->start_ns) /
					p->options.pcie_share;
}

static void start_move(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		       struct flight *flight)
{
	uint16_t *row = place_row(p, p->target, layer, proposal->expert);

	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		const int32_t blocks = leaving(p, layer, proposal, d);
		const double until_ns = flight->action.start_ns +
					link_ns(p, (uint32_t)abs(blocks)) / p->options.link_share;

		if (blocks > 0)
			p->link_out_ns[d] = until_ns;
		if (blocks < 0) {
			p->link_in_ns[d] = until_ns;
			flight->action.nr_blocks += (uint32_t)-blocks;
		}
		flight->dimm_bytes[d] = proposal->row[d] * p->block_bytes;
		p->dimm_bytes[d] += flight->dimm_bytes[d];
	}
	memcpy(row, proposal->row, p->host.nr_dimms * sizeof(*row));
	p->nr_moves++;
}

void ndpi_place_start(struct ndp_placer *p, uint32_t layer, const struct proposal *proposal,
		      double gain_ns, double cost_ns, struct ndp_place_action *action)
{
	const double copy_ns = ndpi_place_copy_ns(p, layer, proposal);
	const double begin_ns = start_ns(p, layer, proposal);
	struct flight *flight = p->flight;

	while (flight->used)
		flight++;
	*flight = (struct flight){
		.used = true,
		.action = {
			.id = (uint32_t)(flight - p->flight),
			.kind = proposal->kind,
			.layer = layer,
			.expert = proposal->expert,
			.victim = proposal->has_victim ? (int32_t)proposal->victim : -1,
			.victim_layer = proposal->has_victim ? proposal->victim_layer : layer,
			.gain_ns = gain_ns,
			.cost_ns = cost_ns,
			.start_ns = begin_ns,
			.end_ns = begin_ns + copy_ns,
		},
	};
	if (proposal->kind == NDP_PLACE_PREFETCH) {
		flight->action.nr_blocks = p->nr_blocks;
		start_prefetch(p, layer, proposal, &flight->action);
	} else {
		start_move(p, layer, proposal, flight);
	}
	flight->action.bytes = flight->action.nr_blocks == p->nr_blocks ? p->shape.expert_bytes :
			       flight->action.nr_blocks * p->block_bytes;
	p->busy[place_cell(p, layer, proposal->expert)] = 1;
	p->nr_flights++;
	p->started[proposal->kind]++;
	p->bytes[proposal->kind] += flight->action.bytes;
	*action = flight->action;
}

/* The blocks that stay valid take the other ones' place; the other ones' memory is free. */
static void end_move(struct ndp_placer *p, const struct flight *flight, bool arrived)
{
	uint16_t *blocks = place_row(p, p->blocks, flight->action.layer, flight->action.expert);
	uint16_t *target = place_row(p, p->target, flight->action.layer, flight->action.expert);

	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		p->dimm_bytes[d] -= arrived ? blocks[d] * p->block_bytes : flight->dimm_bytes[d];
		if (arrived)
			blocks[d] = target[d];
		else
			target[d] = blocks[d];
	}
}

int ndp_place_done(struct ndp_placer *p, uint32_t id, double now_ns, int result)
{
	struct flight *flight;
	size_t cell;

	if (id >= NDP_PLACE_MAX_ACTIONS || !p->flight[id].used)
		return -ENOENT;
	flight = &p->flight[id];
	cell = place_cell(p, flight->action.layer, flight->action.expert);
	p->now_ns = fmax(p->now_ns, now_ns);
	if (flight->action.kind != NDP_PLACE_PREFETCH) {
		end_move(p, flight, result >= 0);
		p->nr_moves--;
	} else if (result >= 0) {
		p->on_gpu[cell] = 1;
	} else {
		p->gpu_target[cell] = 0;
		p->worth[cell] = HUGE_VALF;
		p->gpu_bytes -= p->shape.expert_bytes;
	}
	p->failed += result < 0;
	p->busy[cell] = 0;
	p->free_ns[cell] = p->now_ns + p->options.stay_ns;
	/* Who goes back and forth between DIMMs stays longer each time, but may get hot. */
	if (flight->action.kind != NDP_PLACE_PREFETCH && result >= 0) {
		p->move_free_ns[cell] = p->now_ns + p->options.stay_ns * (1u << p->moved[cell]);
		p->moved[cell] += p->moved[cell] < MOST_DOUBLINGS;
	}
	flight->used = false;
	p->nr_flights--;
	return 0;
}

/* ---- looking ---------------------------------------------------------------------- */

const uint16_t *ndp_place_blocks(const struct ndp_placer *p, uint32_t layer)
{
	return place_row(p, p->blocks, layer, 0);
}

const uint8_t *ndp_place_on_gpu(const struct ndp_placer *p, uint32_t layer)
{
	return p->on_gpu + place_cell(p, layer, 0);
}

const uint16_t *ndp_place_target(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	return place_row(p, p->target, layer, expert);
}

uint32_t ndp_place_copies(const struct ndp_placer *p, uint32_t id, struct ndp_copy *copies)
{
	const uint32_t dimms = p->host.nr_dimms;
	const struct ndp_place_action *a;
	const uint16_t *from, *to;
	uint32_t count = 0, source = 0, taken = 0;

	if (id >= NDP_PLACE_MAX_ACTIONS || !p->flight[id].used)
		return 0;
	a = &p->flight[id].action;
	from = place_row(p, p->blocks, a->layer, a->expert);
	to = place_row(p, p->target, a->layer, a->expert);
	if (a->kind == NDP_PLACE_PREFETCH) {
		uint32_t only = NDP_MAX_DIMMS;

		for (uint32_t d = 0; d < dimms; d++)
			if (from[d] == p->nr_blocks)
				only = d;
		copies[0] = (struct ndp_copy){ .bytes = a->bytes, .expert = a->expert, .to_gpu = 1,
					       .from = (uint8_t)only };
		return 1;
	}
	/* Surplus blocks fill what is missing, both in the order of the DIMMs. */
	for (uint32_t d = 0; d < dimms; d++) {
		uint32_t missing = to[d] > from[d] ? (uint32_t)(to[d] - from[d]) : 0;

		while (missing) {
			const uint32_t surplus = from[source] > to[source] ?
						 (uint32_t)(from[source] - to[source]) - taken : 0;
			const uint32_t blocks = surplus < missing ? surplus : missing;

			if (blocks)
				copies[count++] = (struct ndp_copy){
					.bytes = blocks * p->block_bytes, .expert = a->expert,
					.from = (uint8_t)source, .to = (uint8_t)d,
				};
			missing -= blocks;
			taken += blocks;
			if (missing) {
				source++;
				taken = 0;
			}
		}
	}
	return count;
}

void ndp_place_usage(const struct ndp_placer *p, struct ndp_place_usage *usage)
{
	memset(usage, 0, sizeof(*usage));
	usage->gpu_bytes = p->gpu_bytes;
	memcpy(usage->dimm_bytes, p->dimm_bytes, sizeof(p->dimm_bytes));
	usage->nr_actions = p->nr_flights;
	memcpy(usage->started, p->started, sizeof(p->started));
	memcpy(usage->bytes, p->bytes, sizeof(p->bytes));
	usage->failed = p->failed;
}

/* Is it one of some that are on one DIMM, or of those that are on several? */
static bool is_local(const uint16_t *row, uint32_t nr_dimms)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < nr_dimms; d++)
		n += row[d] != 0;
	return n == 1;
}

/* What a proposal that was not chosen here must be checked for. */
static int check_order(const struct ndp_placer *p, uint32_t layer, uint32_t expert,
		       const uint16_t *row)
{
	const uint16_t *old;
	uint32_t blocks = 0;

	if (layer >= p->layers || expert >= p->shape.experts)
		return -EINVAL;
	if (p->busy[place_cell(p, layer, expert)])
		return -EBUSY;
	if (p->nr_flights == NDP_PLACE_MAX_ACTIONS)
		return -EAGAIN;
	old = ndp_place_target(p, layer, expert);
	if (!memcmp(old, row, p->host.nr_dimms * sizeof(*row)))
		return -EALREADY;
	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		blocks += row[d];
		if (row[d] > old[d] && !(p->options.allowed_mask >> d & 1))
			return -EPERM;
		if (row[d] && p->dimm_bytes[d] + row[d] * p->block_bytes > p->options.dimm_bytes)
			return -ENOSPC;
	}
	if (blocks != p->nr_blocks)
		return -EINVAL;
	return p->options.link_share > 0 && p->host.link_gbps > 0 ? 0 : -EOPNOTSUPP;
}

int ndp_place_order(struct ndp_placer *p, uint32_t layer, uint32_t expert, const uint16_t *row,
		    double now_ns, struct ndp_place_action *action)
{
	const double queue_ns = p->options.queue_ns;
	const uint32_t kinds = p->options.kinds;
	struct proposal proposal = { .expert = expert };
	const int r = check_order(p, layer, expert, row);

	if (r < 0)
		return r;
	p->now_ns = fmax(p->now_ns, now_ns);
	memcpy(proposal.row, row, p->host.nr_dimms * sizeof(*row));
	proposal.kind = is_local(row, p->host.nr_dimms) ==
			is_local(ndp_place_target(p, layer, expert), p->host.nr_dimms) ?
			NDP_PLACE_REBALANCE : NDP_PLACE_RELAYOUT;
	/* Who orders it does not ask whether it is time. */
	p->free_ns[place_cell(p, layer, expert)] = p->now_ns;
	p->move_free_ns[place_cell(p, layer, expert)] = p->now_ns;
	p->options.queue_ns = HUGE_VAL;
	p->options.kinds = UINT32_MAX;
	ndpi_place_start(p, layer, &proposal, 0, ndpi_place_copy_ns(p, layer, &proposal), action);
	p->options.queue_ns = queue_ns;
	p->options.kinds = kinds;
	return 0;
}

void ndp_place_share(struct ndp_placer *p, double link_share, double pcie_share,
		     uint64_t dimm_bytes)
{
	p->options.link_share = fmin(fmax(link_share, 0), 1);
	p->options.pcie_share = fmin(fmax(pcie_share, 0), 1);
	if (dimm_bytes)
		p->options.dimm_bytes = dimm_bytes;
}
