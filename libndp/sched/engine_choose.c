// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * engine_choose.c - which background actions are worth doing for a layer.
 *
 * Candidates come from the plan that the scheduler makes of the expected loads;
 * each is then tried on the target placement and scheduled again, so that a gain
 * is what the very scheduler that will run makes of it. A decision takes at most
 * ten runs of the scheduler, whatever the number of experts, and none for a layer
 * that is paused: nothing was worth doing there, and its loads are as they were.
 */
#include "engine.h"

#include <math.h>

enum {
	MAX_MOVES = 8,	/* of one rebalancing */
	LONGEST_PAUSE = 32,
};

static const float news = 0.1f;	/* of a layer's tokens at other experts than last seen: a change */

/* Whether one DIMM holds all of a row; which one. */
static bool localized(const struct ndp_placer *p, const uint16_t *row, uint32_t *dimm)
{
	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		if (row[d] && row[d] < p->nr_blocks)
			return false;
		if (row[d])
			*dimm = d;
	}
	return true;
}

/* DIMMs compute it, or a part of it. */
static bool in_dimms(const struct ndp_placer *p, uint32_t expert)
{
	return p->plan.domain[expert] == NDP_DOMAIN_NDP ||
	       p->plan.domain[expert] == NDP_DOMAIN_SPLIT;
}

/*
 * Tries some proposals of one kind together and starts them if what they gain in
 * the horizon is worth the longest of their copies.  Returns how many.
 */
static uint32_t attempt(struct ndp_placer *p, uint32_t layer, const struct proposal *proposals,
			uint32_t count, double *makespan_ns, struct ndp_place_action *actions)
{
	struct proposal undo[MAX_MOVES], ignored;
	double cost_ns = 0, gain_ns, after_ns;

	for (uint32_t i = 0; i < count; i++)
		cost_ns = fmax(cost_ns, ndpi_place_copy_ns(p, layer, &proposals[i]));
	if (!count || p->nr_flights + count > NDP_PLACE_MAX_ACTIONS)
		return 0;
	/* Would it be worth it if the layer then took no time at all? */
	if (*makespan_ns * p->options.horizon_steps <= (1 + p->options.hysteresis) * cost_ns)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		ndpi_place_try(p, layer, &proposals[i], &undo[i]);
	after_ns = ndpi_place_makespan(p, layer);
	for (uint32_t i = count; i-- > 0;)
		ndpi_place_try(p, layer, &undo[i], &ignored);
	gain_ns = *makespan_ns - after_ns;
	p->plan_is_old = !(gain_ns * p->options.horizon_steps >
			   (1 + p->options.hysteresis) * cost_ns);
	if (p->plan_is_old) {
		/* Others get their turn. A prefetch is asked again: its expert is the busiest. */
		if (count == 1 && proposals->kind != NDP_PLACE_PREFETCH)
			p->free_ns[place_cell(p, layer, proposals->expert)] =
				p->now_ns + p->options.stay_ns;
		return 0;
	}
	for (uint32_t i = 0; i < count; i++)
		ndpi_place_start(p, layer, &proposals[i], gain_ns, cost_ns, &actions[i]);
	*makespan_ns = after_ns;
	return count;
}

/* The busiest expert that GPU memory does not hold, for the idlest one that it does. */
static uint32_t prefetch(struct ndp_placer *p, uint32_t layer, double *makespan_ns,
			 struct ndp_place_action *actions)
{
	const uint8_t *gpu = p->gpu_target + place_cell(p, layer, 0);
	const bool room = p->gpu_bytes + p->shape.expert_bytes <= p->options.gpu_bytes;
	struct proposal proposal = { .kind = NDP_PLACE_PREFETCH, .victim = -1 };
	uint32_t most = 0;

	if (p->host.gpu.gflops <= 0 && !p->host.gpu.nr_points)
		return 0;
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		if (!place_rested(p, layer, e))
			continue;
		if (!gpu[e] && p->tokens[e] > most) {
			most = p->tokens[e];
			proposal.expert = e;
		}
		if (!room && gpu[e] && (proposal.victim < 0 ||
					p->tokens[e] < p->tokens[proposal.victim]))
			proposal.victim = (int32_t)e;
	}
	if (!most || (!room && (proposal.victim < 0 || p->tokens[proposal.victim] >= most)) ||
	    isinf(ndpi_place_copy_ns(p, layer, &proposal)))
		return 0;
	return attempt(p, layer, &proposal, 1, makespan_ns, actions);
}

/* The host reads it, or would have to if it were to compute it. */
static bool read_by_host(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	return p->plan.domain[expert] == NDP_DOMAIN_CPU ||
	       p->plan.domain[expert] == NDP_DOMAIN_SPLIT ||
	       (p->plan.domain[expert] == NDP_DOMAIN_GPU &&
		!p->gpu_target[place_cell(p, layer, expert)]);
}

/*
 * An expert that the host reads from one DIMM is read faster from all that are
 * allowed: the one with the fewest tokens, because the more of its time is
 * reading. Failing that, the busiest that a DIMM computes: then the CPU can.
 */
static uint32_t spread(struct ndp_placer *p, uint32_t layer, double *makespan_ns,
		       struct ndp_place_action *actions)
{
	struct proposal read = { .kind = NDP_PLACE_RELAYOUT, .victim = -1 }, proposal = read;
	struct proposal computed = read;
	uint32_t fewest = UINT32_MAX, most = 0, dimm;
	struct ndp_placement even;

	if (ndp_placement_spread(&even, p->nr_blocks, p->options.allowed_mask) < 0 ||
	    even.nr_ranges < 2)
		return 0;
	for (uint32_t i = 0; i < even.nr_ranges; i++)
		proposal.row[even.ranges[i].dimm] = (uint16_t)even.ranges[i].nr_blocks;
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		const uint32_t tokens = p->tokens[e];
		const bool host = tokens < fewest && read_by_host(p, layer, e);

		proposal.expert = e;
		if ((!host && (tokens <= most || p->plan.domain[e] != NDP_DOMAIN_NDP)) ||
		    !localized(p, place_row(p, p->target, layer, e), &dimm) ||
		    isinf(ndpi_place_copy_ns(p, layer, &proposal)))
			continue;
		if (host) {
			fewest = tokens;
			read = proposal;
		} else {
			most = tokens;
			computed = proposal;
		}
	}
	if (fewest < UINT32_MAX && attempt(p, layer, &read, 1, makespan_ns, actions))
		return 1;
	return most ? attempt(p, layer, &computed, 1, makespan_ns, actions) : 0;
}

/* An expert that DIMMs compute in many pieces pays for each; gather it where least is done. */
static uint32_t gather(struct ndp_placer *p, uint32_t layer, double *makespan_ns,
		       struct ndp_place_action *actions)
{
	struct proposal best = { .kind = NDP_PLACE_RELAYOUT, .victim = -1 }, proposal;
	uint32_t least = UINT32_MAX, dimm, idlest = NDP_MAX_DIMMS;

	for (uint32_t d = 0; d < p->host.nr_dimms; d++)
		if (p->options.allowed_mask >> d & 1 &&
		    (idlest == NDP_MAX_DIMMS ||
		     p->plan.loads.dimm_ns[d] < p->plan.loads.dimm_ns[idlest]))
			idlest = d;
	if (idlest == NDP_MAX_DIMMS)
		return 0;
	proposal = best;
	proposal.row[idlest] = (uint16_t)p->nr_blocks;
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		proposal.expert = e;
		if (!in_dimms(p, e) || p->tokens[e] >= least ||
		    localized(p, place_row(p, p->target, layer, e), &dimm) ||
		    isinf(ndpi_place_copy_ns(p, layer, &proposal)))
			continue;
		least = p->tokens[e];
		best = proposal;
	}
	return least == UINT32_MAX ? 0 : attempt(p, layer, &best, 1, makespan_ns, actions);
}

/* What the plan makes the DIMM that holds an expert spend on it: computing, or being read. */
static double cost_in_dimm(const struct ndp_placer *p, uint32_t layer, uint32_t expert,
			   uint32_t dimm)
{
	const struct ndp_layer now = {
		.host = &p->host, .shape = &p->shape, .charges = p->options.charges,
		.tokens = p->tokens, .blocks = place_row(p, p->target, layer, 0),
		.on_gpu = p->gpu_target + place_cell(p, layer, 0),
	};
	const uint8_t domain = p->plan.domain[expert];
	struct ndp_loads loads;

	return isinf(ndp_expert_cost(&now, expert, domain < NDP_DOMAINS ? domain : NDP_DOMAIN_NDP,
				     &loads)) ? 0 : loads.dimm_ns[dimm];
}

/* The expert of @from whose leaving for @to levels the two best, as a proposal. */
static bool level(struct ndp_placer *p, uint32_t layer, const double *dimm_ns, uint32_t from,
		  uint32_t to, struct proposal *best)
{
	const double apart = dimm_ns[from] - dimm_ns[to];
	double least = apart;
	bool found = false;

	for (uint32_t e = 0; e < p->shape.experts; e++) {
		struct proposal proposal = { .kind = NDP_PLACE_REBALANCE, .expert = e,
					     .victim = -1 };
		uint32_t dimm = 0;
		double cost, rest;

		if (!p->tokens[e] ||
		    !localized(p, place_row(p, p->target, layer, e), &dimm) || dimm != from)
			continue;
		proposal.row[to] = (uint16_t)p->nr_blocks;
		cost = cost_in_dimm(p, layer, e, from);
		rest = fabs(apart - 2 * cost);
		if (cost <= 0 || rest >= least || isinf(ndpi_place_copy_ns(p, layer, &proposal)))
			continue;
		least = rest;
		*best = proposal;
		found = true;
	}
	return found;
}

/* The busiest DIMM gives to the idlest, the second busiest to the second idlest, and so on. */
static uint32_t rebalance(struct ndp_placer *p, uint32_t layer, double *makespan_ns,
			  struct ndp_place_action *actions, uint32_t max)
{
	const double *dimm_ns = p->plan.loads.dimm_ns;
	struct proposal proposals[MAX_MOVES] = { { 0 } };
	uint32_t order[NDP_MAX_DIMMS], dimms = 0, count = 0, started;

	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		uint32_t at = dimms++;

		for (; at && dimm_ns[order[at - 1]] < dimm_ns[d]; at--)
			order[at] = order[at - 1];
		order[at] = d;
	}
	for (uint32_t i = 0; i < dimms / 2 && count < MAX_MOVES && count < max; i++)
		count += level(p, layer, dimm_ns, order[i], order[dimms - 1 - i],
			       &proposals[count]);
	started = attempt(p, layer, proposals, count, makespan_ns, actions);
	if (!started && count > 1)
		started = attempt(p, layer, proposals, 1, makespan_ns, actions);
	return started;
}

/* Whether the expected loads are others than when the layer was last looked at. */
static bool changed(const struct ndp_placer *p, uint32_t layer, const float *tokens)
{
	const float *seen = p->seen + place_cell(p, layer, 0);
	float sum = 0, moved = 0;

	for (uint32_t e = 0; e < p->shape.experts; e++) {
		sum += tokens[e] + seen[e];
		moved += fabsf(tokens[e] - seen[e]);
	}
	return moved > news * sum;
}

static void see(struct ndp_placer *p, uint32_t layer, const float *tokens)
{
	float *seen = p->seen + place_cell(p, layer, 0);

	for (uint32_t e = 0; e < p->shape.experts; e++) {
		seen[e] = tokens[e];
		p->tokens[e] = tokens[e] > 0 ? (uint32_t)fmin(tokens[e] + 0.5, 1e9) : 0;
	}
}

/* Candidates go by the plan, which those that were left have overwritten. */
static void replan(struct ndp_placer *p, uint32_t layer)
{
	if (p->plan_is_old)
		ndpi_place_makespan(p, layer);
	p->plan_is_old = false;
}

uint32_t ndp_place_decide(struct ndp_placer *p, uint32_t layer, const float *tokens, double now_ns,
			  struct ndp_place_action *actions, uint32_t max)
{
	struct place_pause *pause = &p->pause[layer];
	uint32_t count = 0;
	double makespan_ns;

	p->now_ns = fmax(p->now_ns, now_ns);
	if (!max || (!changed(p, layer, tokens) && pause->left && pause->left--))
		return 0;
	see(p, layer, tokens);
	p->must_wait = false;
	p->plan_is_old = false;
	makespan_ns = ndpi_place_makespan(p, layer);
	if (isinf(makespan_ns))
		return 0;
	count = prefetch(p, layer, &makespan_ns, actions);
	replan(p, layer);
	if (count < max)
		count += spread(p, layer, &makespan_ns, actions + count);
	replan(p, layer);
	if (count < max)
		count += gather(p, layer, &makespan_ns, actions + count);
	replan(p, layer);
	if (count < max)
		count += rebalance(p, layer, &makespan_ns, actions + count, max - count);
	if (count || p->must_wait)
		pause->length = 0;
	else if (pause->length < LONGEST_PAUSE)
		pause->length = pause->length ? 2 * pause->length : 1;
	pause->left = pause->length;
	return count;
}
