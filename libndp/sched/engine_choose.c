// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * engine_choose.c - which background actions are worth doing for a layer.
 *
 * Candidates are ranked by what they gain at the prices of engine_value.c less
 * what they cost. The best are tried on the target placement together and
 * scheduled again, so that what decides is what the very scheduler that will run
 * makes of them; when it makes too little, fewer of them are tried. A decision
 * tries at most eight placements, whatever the number of experts, and none for a
 * layer that is paused: nothing was worth doing there, and its loads are as they
 * were.
 */
#include "engine.h"

#include <math.h>
#include <string.h>

enum {
	BATCH = 16,	/* tried together */
	LIST = 48,	/* candidates kept of a layer */
	ROUNDS = 3,
	FEWER = 3,	/* when a batch is not worth it, the best third of it is tried */
	MOST_RUNS = 8,
	LONGEST_PAUSE = 8,
	/* On their way: slow ones of one kind may not keep the others from starting. */
	MOST_PREFETCHES = NDP_PLACE_MAX_ACTIONS / 4,
	MOST_MOVES = NDP_PLACE_MAX_ACTIONS - MOST_PREFETCHES,
};

static const float news = 0.1f;	/* of a layer's tokens at other experts than last seen: a change */

struct candidate {
	double benefit_ns;	/* over the horizon */
	struct proposal proposal;
};

struct candidates {
	uint32_t nr;
	struct candidate *list[LIST];	/* falling */
	struct candidate memory[LIST];
};

/* Experts in GPU memory, of any layer, that need it least. */
struct victims {
	uint32_t nr, next;
	float worth[BATCH];	/* rising */
	size_t cell[BATCH];
};

static double benefit_ns(const struct ndp_placer *p, const struct proposal *proposal)
{
	return proposal->gain_ns * p->options.horizon_steps -
	       (1 + p->options.hysteresis) * proposal->cost_ns;
}

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

/* ---- candidates ------------------------------------------------------------------- */

static void keep(struct candidates *all, const struct proposal *proposal, double benefit)
{
	struct candidate *c;
	uint32_t at;

	if (!(benefit > 0) ||
	    (all->nr == LIST && benefit <= all->list[LIST - 1]->benefit_ns))
		return;
	if (all->nr < LIST) {
		c = &all->memory[all->nr];
		at = all->nr++;
	} else {
		c = all->list[LIST - 1];
		at = LIST - 1;
	}
	for (; at && all->list[at - 1]->benefit_ns < benefit; at--)
		all->list[at] = all->list[at - 1];
	all->list[at] = c;
	*c = (struct candidate){ .benefit_ns = benefit, .proposal = *proposal };
}

/* Completes a proposal with its cost; HUGE_VAL: it is forbidden now. */
static void find_cost(struct ndp_placer *p, uint32_t layer, struct proposal *proposal)
{
	const double copy_ns = ndpi_place_copy_ns(p, layer, proposal);

	proposal->cost_ns = isinf(copy_ns) ? HUGE_VAL :
			    fmax(p->options.least_cost * copy_ns,
				 ndpi_place_price_of_copy(p, layer, proposal));
}

/* The DIMM in which an expert costs least, the emptier one of equals. */
static uint32_t best_dimm(const struct ndp_placer *p, const struct place_ways *ways, double *value)
{
	double cost[NDP_MAX_DIMMS];
	uint32_t best = NDP_MAX_DIMMS;

	ndpi_place_local_values(p, ways, cost);
	*value = HUGE_VAL;
	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		if (!(p->options.allowed_mask >> d & 1) ||
		    p->link_in_ns[d] > p->now_ns + p->options.queue_ns ||
		    p->dimm_bytes[d] + p->nr_blocks * p->block_bytes > p->options.dimm_bytes)
			continue;
		if (best == NDP_MAX_DIMMS || cost[d] < *value * (1 - 1e-9) ||
		    (cost[d] <= *value * (1 + 1e-9) && p->dimm_bytes[d] < p->dimm_bytes[best])) {
			*value = cost[d];
			best = d;
		}
	}
	return best;
}

/* A move to the best DIMM; false: there is none. */
static bool to_one_dimm(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules,
			uint32_t expert, double here_value, struct proposal *proposal)
{
	const uint16_t all[NDP_MAX_DIMMS] = { (uint16_t)p->nr_blocks };
	uint32_t dimm, here = NDP_MAX_DIMMS;
	struct place_ways ways;
	double value;
	bool is_local;

	is_local = localized(p, place_row(p, p->target, layer, expert), &here);
	ndpi_place_ways(p, rules, expert, all, &ways);
	dimm = best_dimm(p, &ways, &value);
	if (dimm == NDP_MAX_DIMMS || (is_local && dimm == here))
		return false;
	*proposal = (struct proposal){
		.kind = is_local ? NDP_PLACE_REBALANCE : NDP_PLACE_RELAYOUT,
		.expert = expert, .gain_ns = here_value - value,
	};
	proposal->row[dimm] = (uint16_t)p->nr_blocks;
	find_cost(p, layer, proposal);
	return true;
}

/* A move to all DIMMs; false: it lies like that. */
static bool to_all_dimms(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules,
			 uint32_t expert, double here_value, struct proposal *proposal)
{
	const uint16_t *row = place_row(p, p->target, layer, expert);

	if (!p->can_spread || !memcmp(row, p->even, p->host.nr_dimms * sizeof(*row)))
		return false;
	*proposal = (struct proposal){
		.kind = NDP_PLACE_RELAYOUT, .expert = expert,
		.gain_ns = here_value - ndpi_place_value(p, rules, expert, p->even, NULL),
	};
	memcpy(proposal->row, p->even, sizeof(proposal->row));
	find_cost(p, layer, proposal);
	return true;
}

static bool can_move(const struct ndp_placer *p)
{
	return p->options.link_share > 0 && p->host.link_gbps > 0;
}

/* The better one of both. */
static bool propose_move(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules,
			 uint32_t expert, double here_value, struct proposal *best)
{
	struct proposal even;
	bool found;

	if (!can_move(p))
		return false;
	found = to_one_dimm(p, layer, rules, expert, here_value, best);
	if (to_all_dimms(p, layer, rules, expert, here_value, &even) &&
	    (!found || benefit_ns(p, &even) > benefit_ns(p, best))) {
		*best = even;
		found = true;
	}
	return found;
}

/* @saved: by GPU memory. Whose memory it is, is found when the candidate is taken. */
static void propose_prefetch(struct ndp_placer *p, uint32_t layer, uint32_t expert, double saved,
			     const struct victims *victims, struct candidates *all)
{
	const bool room = p->gpu_bytes + p->shape.expert_bytes <= p->options.gpu_bytes;
	struct proposal proposal = {
		.kind = NDP_PLACE_PREFETCH, .expert = expert, .has_victim = !room,
		.gain_ns = saved,
	};

	if (!room && !victims->nr)
		return;
	if (!room)
		proposal.gain_ns -= victims->worth[0];
	find_cost(p, layer, &proposal);
	keep(all, &proposal, benefit_ns(p, &proposal));
}

static void find_victims(const struct ndp_placer *p, struct victims *v)
{
	const size_t cells = (size_t)p->layers * p->shape.experts;

	v->nr = v->next = 0;
	for (size_t k = 0; k < cells; k++) {
		uint64_t eight;
		uint32_t at;

		/* Few are in GPU memory. */
		while (k + sizeof(eight) < cells) {
			memcpy(&eight, p->gpu_target + k, sizeof(eight));
			if (eight)
				break;
			k += sizeof(eight);
		}
		if (!p->gpu_target[k] || p->busy[k] || p->free_ns[k] > p->now_ns ||
		    isinf(p->worth[k]) || !(p->expected_ns[k / p->shape.experts] > 0) ||
		    (v->nr == BATCH && p->worth[k] >= v->worth[BATCH - 1]))
			continue;
		at = v->nr < BATCH ? v->nr++ : BATCH - 1;
		for (; at && v->worth[at - 1] > p->worth[k]; at--) {
			v->worth[at] = v->worth[at - 1];
			v->cell[at] = v->cell[at - 1];
		}
		v->worth[at] = p->worth[k];
		v->cell[at] = k;
	}
}

/* What every expert costs at the prices, and what GPU memory is worth to those in it. */
static void find_values(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules)
{
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		const size_t cell = place_cell(p, layer, e);
		double saved = 0;

		p->value[e] = 0;
		if (p->tokens[e]) {
			p->value[e] = (float)ndpi_place_value(p, rules, e,
							      place_row(p, p->target, layer, e),
							      NULL);
			saved = p->value[e] - ndpi_place_gpu_value(p, e, NULL);
		}
		if (p->gpu_target[cell])
			p->worth[cell] = (float)fmax(saved, 0);
	}
}

/* Everything that is worth something at the prices. */
static void propose(struct ndp_placer *p, uint32_t layer, const struct victims *victims,
		    const struct ndpi_rules *rules, struct candidates *all)
{
	const bool has_gpu = p->host.gpu.gflops > 0 || p->host.gpu.nr_points;
	struct proposal move;

	all->nr = 0;
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		if (!p->tokens[e] || p->gpu_target[place_cell(p, layer, e)] ||
		    !place_rested(p, layer, e))
			continue;
		if (has_gpu)
			propose_prefetch(p, layer, e,
					 p->value[e] - ndpi_place_gpu_value(p, e, NULL), victims,
					 all);
		if (place_may_move(p, layer, e) &&
		    propose_move(p, layer, rules, e, p->value[e], &move))
			keep(all, &move, benefit_ns(p, &move));
	}
}

/* ---- trying ------------------------------------------------------------------------- */

/* What is being picked. */
struct picking {
	struct ndp_placer *p;
	uint32_t layer;
	const struct ndpi_rules *rules;
	struct candidates *all;
	struct victims *victims;
	struct proposal *batch;
	uint32_t count;
	uint32_t in_memory;	/* prefetches of the batch that take free GPU memory */
	uint32_t prefetches, moves;	/* on their way with those of the batch */
};

/* Gives a prefetch GPU memory: what is free, or a victim's. */
static bool find_room(const struct picking *k, struct proposal *proposal)
{
	const struct ndp_placer *p = k->p;
	const struct victims *v = k->victims;

	proposal->has_victim = false;
	if (p->gpu_bytes + (k->in_memory + 1) * p->shape.expert_bytes <= p->options.gpu_bytes)
		return true;
	if (v->next == v->nr)
		return false;
	proposal->has_victim = true;
	proposal->victim_layer = (uint32_t)(v->cell[v->next] / p->shape.experts);
	proposal->victim = (uint32_t)(v->cell[v->next] % p->shape.experts);
	proposal->gain_ns -= v->worth[v->next];
	return true;
}

/* What a candidate is worth after what was picked before it; false: nothing more. */
static bool look_again(const struct picking *k, const struct proposal *old, struct proposal *now,
		       struct ndp_loads *from, struct ndp_loads *to)
{
	struct ndp_placer *p = k->p;
	const uint32_t e = old->expert;
	const double here = ndpi_place_value(p, k->rules, e,
					     place_row(p, p->target, k->layer, e), from);

	for (uint32_t i = 0; i < k->count; i++)
		if (k->batch[i].expert == e)
			return false;
	if (old->kind == NDP_PLACE_PREFETCH) {
		if (k->prefetches == MOST_PREFETCHES)
			return false;
		*now = (struct proposal){
			.kind = NDP_PLACE_PREFETCH, .expert = e,
			.gain_ns = here - ndpi_place_gpu_value(p, e, to),
		};
		if (!find_room(k, now))
			return false;
		find_cost(p, k->layer, now);
	} else {
		if (k->moves == MOST_MOVES || !propose_move(p, k->layer, k->rules, e, here, now))
			return false;
		ndpi_place_value(p, k->rules, e, now->row, to);
	}
	return benefit_ns(p, now) > 0;
}

static void take(struct picking *k, const struct proposal *proposal)
{
	k->batch[k->count++] = *proposal;
	if (proposal->kind != NDP_PLACE_PREFETCH) {
		k->moves++;
		return;
	}
	k->prefetches++;
	k->in_memory += !proposal->has_victim;
	k->victims->next += proposal->has_victim;
}

/*
 * The best candidates, one after the other, each with the prices that those before it
 * lead to.  Who has lost by that goes back in the list, to where it belongs now.
 */
static uint32_t pick(struct picking *k, uint32_t max)
{
	struct candidates *all = k->all;
	uint32_t looks = 4 * LIST;

	for (uint32_t at = 0; at < all->nr && k->count < max && looks; looks--) {
		struct candidate *c = all->list[at];
		struct ndp_loads from, to;
		struct proposal now;
		double benefit;
		uint32_t place = at;

		if (!look_again(k, &c->proposal, &now, &from, &to)) {
			at++;
			continue;
		}
		benefit = benefit_ns(k->p, &now);
		for (; place + 1 < all->nr && all->list[place + 1]->benefit_ns > benefit; place++)
			all->list[place] = all->list[place + 1];
		if (place > at) {
			*c = (struct candidate){ .benefit_ns = benefit, .proposal = now };
			all->list[place] = c;
			continue;
		}
		take(k, &now);
		ndpi_place_shift(k->p, &from, &to);
		at++;
	}
	return k->count;
}

/* Tries @count proposals together: what the layer then takes in each step.  False: too long. */
static bool try_all(struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
		    uint32_t count, double most_ns, double makespan_ns[PLACE_STEPS])
{
	struct proposal undo[BATCH], ignored;
	bool possible;

	for (uint32_t i = 0; i < count; i++)
		ndpi_place_try(p, layer, &batch[i], &undo[i]);
	possible = ndpi_place_schedule(p, layer, most_ns, makespan_ns);
	for (uint32_t i = count; i-- > 0;)
		ndpi_place_try(p, layer, &undo[i], &ignored);
	return possible;
}

/*
 * What the steps gain on the mean, less some standard errors: plans of whole experts are
 * a little luckier with one placement than with another, which is no reason to move.
 * Steps that vary in opposite ways count as one.
 */
static double sure_gain(const double before[PLACE_STEPS], const double after[PLACE_STEPS],
			double errors)
{
	const double n = 1 + (PLACE_STEPS - 1) / 2;
	double sum = before[0] - after[0], squares = sum * sum;

	for (uint32_t k = 1; k < PLACE_STEPS; k += 2) {
		const double gain = (before[k] - after[k] + before[k + 1] - after[k + 1]) / 2;

		sum += gain;
		squares += gain * gain;
	}
	sum /= n;
	return sum - errors * sqrt(fmax(squares / n - sum * sum, 0) / (n - 1));
}

/*
 * Whether spread experts are to lie in one DIMM each. That is what even_out() takes back,
 * on other steps; so it takes more to start.
 */
static bool gathers(const struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
		    uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (batch[i].kind == NDP_PLACE_RELAYOUT &&
		    !memcmp(place_row(p, p->target, layer, batch[i].expert), p->even,
			    p->host.nr_dimms * sizeof(*p->target)))
			return true;
	return false;
}

/* What another layer loses with its victims in the batch; @without_ns: it then takes. */
static double loss_of(struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
		      uint32_t count, double *without_ns)
{
	const float before_ns = p->expected_ns[layer];
	uint32_t victims = 0;
	double loss_ns;

	for (uint32_t i = 0; i < count; i++)
		if (batch[i].has_victim && batch[i].victim_layer == layer) {
			p->gpu_target[place_cell(p, layer, batch[i].victim)] = 0;
			victims++;
		}
	*without_ns = ndpi_place_expected(p, layer);
	loss_ns = fmax(*without_ns - (double)before_ns, 0);
	for (uint32_t i = 0; i < count; i++)
		if (batch[i].has_victim && batch[i].victim_layer == layer) {
			const size_t cell = place_cell(p, layer, batch[i].victim);

			p->gpu_target[cell] = 1;
			/* The prices have promised less. */
			p->worth[cell] = fmaxf(p->worth[cell], (float)(loss_ns / victims));
		}
	return loss_ns;
}

/* Is it the first of a batch that takes GPU memory from its victim's layer, another one? */
static bool first_victim(uint32_t layer, const struct proposal *batch, uint32_t i)
{
	if (!batch[i].has_victim || batch[i].victim_layer == layer)
		return false;
	for (uint32_t k = 0; k < i; k++)
		if (batch[k].has_victim && batch[k].victim_layer == batch[i].victim_layer)
			return false;
	return true;
}

/* Of all other layers; @without_ns: what they take, by their first victim in the batch. */
static double losses(struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
		     uint32_t count, double without_ns[BATCH])
{
	double sum = 0;

	for (uint32_t i = 0; i < count; i++)
		if (first_victim(layer, batch, i))
			sum += loss_of(p, batch[i].victim_layer, batch, count, &without_ns[i]);
	return sum;
}

/*
 * Starts those of a batch for which there still is room, and time at the ports.
 * @without_ns: as losses() has found it.
 */
static uint32_t start(struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
		      uint32_t count, double gain_ns, double cost_ns,
		      const double without_ns[BATCH], struct ndp_place_action *actions)
{
	uint32_t started = 0, late = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (isinf(ndpi_place_copy_ns(p, layer, &batch[i])))
			late |= 1u << i;
		else
			ndpi_place_start(p, layer, &batch[i], gain_ns, cost_ns,
					 &actions[started++]);
	}
	for (uint32_t i = 0; i < count; i++) {
		if (!batch[i].has_victim || batch[i].victim_layer == layer || late & 1u << i)
			continue;
		if (late)
			p->expected_ns[batch[i].victim_layer] =
				(float)ndpi_place_expected(p, batch[i].victim_layer);
		else if (first_victim(layer, batch, i))
			p->expected_ns[batch[i].victim_layer] = (float)without_ns[i];
	}
	return started;
}

/* What must be gained in a step for a cost to be worth it. */
static double least_gain(const struct ndp_placer *p, double cost_ns)
{
	return p->options.horizon_steps > 0 ?
	       (1 + p->options.hysteresis) * cost_ns / p->options.horizon_steps : HUGE_VAL;
}

/* Starts a batch, or as much of its beginning as is worth its cost.  Returns how many. */
static uint32_t attempt(struct ndp_placer *p, uint32_t layer, const struct proposal *batch,
			uint32_t count, double before_ns[PLACE_STEPS],
			struct ndp_place_action *actions)
{
	for (; count && p->runs < MOST_RUNS; count /= FEWER) {
		double after_ns[PLACE_STEPS], without_ns[BATCH], cost_ns = 0, gain_ns, least_ns;

		for (uint32_t i = 0; i < count; i++)
			cost_ns += batch[i].cost_ns;
		least_ns = least_gain(p, cost_ns);
		if (!try_all(p, layer, batch, count, before_ns[0] - least_ns, after_ns))
			continue;
		gain_ns = sure_gain(before_ns, after_ns, gathers(p, layer, batch, count) ? 3 : 1);
		if (gain_ns > least_ns)
			gain_ns -= losses(p, layer, batch, count, without_ns);
		if (gain_ns <= least_ns)
			continue;
		memcpy(before_ns, after_ns, sizeof(after_ns));
		return start(p, layer, batch, count, gain_ns, cost_ns, without_ns, actions);
	}
	/* Others get their turn. A prefetch is asked again: its expert is the busiest. */
	if (!count && batch->kind != NDP_PLACE_PREFETCH)
		p->move_free_ns[place_cell(p, layer, batch->expert)] =
			p->now_ns + p->options.stay_ns;
	return 0;
}

/* One that does not lie evenly on the DIMMs, but might. */
static bool uneven(const struct ndp_placer *p, uint32_t layer, uint32_t expert)
{
	return p->tokens[expert] && !p->gpu_target[place_cell(p, layer, expert)] &&
	       memcmp(place_row(p, p->target, layer, expert), p->even,
		      p->host.nr_dimms * sizeof(*p->target));
}

/*
 * All of the layer's experts that do not lie evenly, as relayouts that spread them: the
 * busiest first, at most @max of them in @batch, those left out that may not move now.
 * Their number; @cost_ns: of all, those too.
 */
static uint32_t list_uneven(struct ndp_placer *p, uint32_t layer, struct proposal *batch,
			    uint32_t max, double *cost_ns)
{
	uint32_t count = 0, all = 0, able = 0;
	double sum = 0;

	for (uint32_t e = 0; e < p->shape.experts; e++) {
		struct proposal proposal = { .kind = NDP_PLACE_RELAYOUT, .expert = e };
		uint32_t at;

		if (!uneven(p, layer, e))
			continue;
		all++;
		memcpy(proposal.row, p->even, sizeof(proposal.row));
		find_cost(p, layer, &proposal);
		if (isinf(proposal.cost_ns))
			continue;
		able++;
		sum += proposal.cost_ns;
		if (count == max && p->tokens[batch[max - 1].expert] >= p->tokens[e])
			continue;
		at = count < max ? count++ : max - 1;
		for (; at && p->tokens[batch[at - 1].expert] < p->tokens[e]; at--)
			batch[at] = batch[at - 1];
		batch[at] = proposal;
	}
	*cost_ns = able ? sum * all / able : HUGE_VAL;
	return count;
}

/* What the layer takes in each step if all those were spread. */
static bool try_even(struct ndp_placer *p, uint32_t layer, double makespan_ns[PLACE_STEPS])
{
	const size_t bytes = (size_t)p->shape.experts * p->host.nr_dimms * sizeof(*p->target);
	uint16_t *target = place_row(p, p->target, layer, 0);
	bool possible;

	memcpy(p->saved, target, bytes);
	for (uint32_t e = 0; e < p->shape.experts; e++)
		if (uneven(p, layer, e))
			memcpy(place_row(p, p->target, layer, e), p->even,
			       p->host.nr_dimms * sizeof(*target));
	possible = ndpi_place_schedule(p, layer, HUGE_VAL, makespan_ns);
	memcpy(target, p->saved, bytes);
	return possible;
}

/*
 * Experts that each lie in one DIMM make the DIMMs uneven in every step, in another way
 * each time. That shows only when many of them are spread: if it is worth it for all, a
 * part of them starts, and the others in the decisions that follow.
 */
static uint32_t even_out(struct ndp_placer *p, uint32_t layer, double before_ns[PLACE_STEPS],
			 struct ndp_place_action *actions, uint32_t max)
{
	const uint32_t room = p->nr_moves < MOST_MOVES ? MOST_MOVES - p->nr_moves : 0;
	double after_ns[PLACE_STEPS], cost_ns, gain_ns = 0;
	struct proposal batch[BATCH];
	uint32_t count;

	if (!can_move(p) || !p->can_spread || p->runs >= MOST_RUNS)
		return 0;
	max = max < BATCH ? max : BATCH;
	max = max < room ? max : room;
	count = max ? list_uneven(p, layer, batch, max, &cost_ns) : 0;
	if (!count || !try_even(p, layer, after_ns))
		return 0;
	/* The price of all of them is margin enough against luck. */
	for (uint32_t k = 0; k < PLACE_STEPS; k++)
		gain_ns += (before_ns[k] - after_ns[k]) / PLACE_STEPS;
	if (gain_ns <= least_gain(p, cost_ns))
		return 0;
	count = start(p, layer, batch, count, gain_ns, cost_ns, NULL, actions);
	ndpi_place_schedule(p, layer, HUGE_VAL, before_ns);
	return count;
}

/* ---- deciding ------------------------------------------------------------------------ */

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

/*
 * Remembers what is expected, and draws steps to judge placements by: no step is as
 * expected, and experts in one DIMM each feel that where spread ones do not. Tokens
 * vary as independent selections do; of two steps one has the more where the other
 * has the less, so that chance favours nobody.
 */
static void see(struct ndp_placer *p, uint32_t layer, const float *tokens)
{
	const uint32_t experts = p->shape.experts;
	float *seen = p->seen + place_cell(p, layer, 0);

	for (uint32_t e = 0; e < experts; e++) {
		seen[e] = tokens[e];
		p->tokens[e] = p->step[e] = place_whole((double)tokens[e]);
		for (uint32_t k = 1; k < PLACE_STEPS; k += 2) {
			double swing;

			/* Variance 1: uniform within the square root of 3. */
			p->random = p->random * 6364136223846793005ull + 1442695040888963407ull;
			swing = ((double)(p->random >> 40) / (1 << 23) - 1) * 1.7320508 *
				sqrt(fmax((double)tokens[e], 0));
			p->step[k * experts + e] = place_whole((double)tokens[e] + swing);
			p->step[(k + 1) * experts + e] = place_whole((double)tokens[e] - swing);
		}
	}
}

uint32_t ndp_place_decide(struct ndp_placer *p, uint32_t layer, const float *tokens, double now_ns,
			  struct ndp_place_action *actions, uint32_t max)
{
	struct place_pause *pause = &p->pause[layer];
	struct proposal batch[BATCH];
	struct picking picking;
	struct victims victims;
	struct candidates all;
	struct ndpi_rules rules;
	struct ndp_layer now;
	uint32_t count = 0;
	double makespan_ns[PLACE_STEPS];

	p->now_ns = fmax(p->now_ns, now_ns);
	if (!max || (!changed(p, layer, tokens) && pause->left && pause->left--))
		return 0;
	see(p, layer, tokens);
	p->must_wait = false;
	p->runs = 0;
	if (!ndpi_place_schedule(p, layer, HUGE_VAL, makespan_ns))
		return 0;
	count = even_out(p, layer, makespan_ns, actions, max);
	now = place_layer(p, layer);
	ndpi_place_rules(p, &now, &rules);
	for (int round = 0; round < ROUNDS && count < max; round++) {
		const uint32_t free = NDP_PLACE_MAX_ACTIONS - p->nr_flights;
		const uint32_t left = max - count < free ? max - count : free;
		uint32_t n;

		picking = (struct picking){
			.p = p, .layer = layer, .rules = &rules, .all = &all,
			.victims = &victims, .batch = batch, .moves = p->nr_moves,
			.prefetches = p->nr_flights - p->nr_moves,
		};
		ndpi_place_prices(p, layer, &rules);
		find_values(p, layer, &rules);
		find_victims(p, &victims);
		propose(p, layer, &victims, &rules, &all);
		n = pick(&picking, left < BATCH ? left : BATCH);
		if (n)
			n = attempt(p, layer, batch, n, makespan_ns, actions + count);
		if (!n)
			break;
		count += n;
	}
	/* The first step is the expected one. */
	p->expected_ns[layer] = (float)makespan_ns[0];
	if (p->nr_flights - p->nr_moves == MOST_PREFETCHES || p->nr_moves == MOST_MOVES)
		p->must_wait = true;
	if (count || p->must_wait)
		pause->length = 0;
	else if (pause->length < LONGEST_PAUSE)
		pause->length = pause->length ? 2 * pause->length : 1;
	pause->left = pause->length;
	return count;
}
