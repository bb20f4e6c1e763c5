// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * plan.c - plans: their memory, what they occupy by the rules, and whether they
 * are plans at all.
 */
#include "impl.h"
#include "refuse.h"

#include <math.h>
#include <string.h>

/* Where experts lie unevenly all of them may be divided. */
static uint32_t most_pieces(uint32_t experts, uint32_t nr_dimms)
{
	return experts * NDP_DOMAINS * nr_dimms;
}

size_t ndp_plan_bytes(uint32_t experts, uint32_t nr_dimms)
{
	return most_pieces(experts, nr_dimms) * sizeof(struct ndp_piece) + experts;
}

void ndp_plan_init(struct ndp_plan *plan, void *mem, uint32_t experts, uint32_t nr_dimms)
{
	memset(plan, 0, sizeof(*plan));
	plan->experts = experts;
	plan->max_pieces = most_pieces(experts, nr_dimms);
	plan->pieces = mem;
	plan->domain = (uint8_t *)(plan->pieces + plan->max_pieces);
	memset(plan->domain, NDP_DOMAIN_NONE, experts);
}

void ndpi_plan_rules(struct ndpi_rules *rules, const struct ndp_layer *layer,
		     const struct ndp_plan *plan)
{
	ndpi_rules_init(rules, layer, plan->policy == NDP_POLICY_TRIMOE_NOCPU_AMX ?
			&layer->host->cpu_plain : &layer->host->cpu);
}

/*
 * The pieces of one expert in one domain, beginning at *at, as counts by DIMM.
 * Returns false when no piece is left.
 */
static bool next_part(const struct ndp_plan *plan, uint32_t nr_dimms, uint32_t *at,
		      const struct ndp_piece **first, uint16_t *counts)
{
	const struct ndp_piece *p = plan->pieces + *at, *end = plan->pieces + plan->nr_pieces;

	if (p == end)
		return false;
	*first = p;
	memset(counts, 0, nr_dimms * sizeof(*counts));
	for (; p < end && p->expert == (*first)->expert && p->domain == (*first)->domain; p++)
		counts[p->dimm] += p->nr_blocks;
	*at = p - plan->pieces;
	return true;
}

void ndp_plan_loads(const struct ndp_layer *layer, const struct ndp_plan *plan,
		    struct ndp_loads *loads)
{
	const uint32_t dimms = layer->host->nr_dimms;
	const struct ndp_piece *piece;
	uint16_t counts[NDP_MAX_DIMMS];
	struct ndpi_rules rules;
	uint32_t at = 0, even = 0;

	memset(loads, 0, sizeof(*loads));
	ndpi_plan_rules(&rules, layer, plan);
	ndpi_add_shared(&rules, loads);
	if (!layer->shared)
		even = ndpi_add_even(&rules, plan->domain, plan->experts, loads);
	for (uint32_t e = even; e < plan->experts; e++)
		if (plan->domain[e] < NDP_DOMAINS)
			ndpi_add_part(&rules, e, plan->domain[e],
				      layer->blocks + (size_t)e * dimms, loads);
	while (next_part(plan, dimms, &at, &piece, counts))
		ndpi_add_part(&rules, piece->expert, piece->domain, counts, loads);
}

static uint32_t holders(const uint16_t *counts, uint32_t nr_dimms)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < nr_dimms; d++)
		n += counts[d] > 0;
	return n;
}

void ndp_plan_commands(const struct ndp_layer *layer, const struct ndp_plan *plan,
		       uint32_t commands[NDP_DOMAINS])
{
	const uint32_t dimms = layer->host->nr_dimms;
	const struct ndp_piece *piece;
	uint16_t counts[NDP_MAX_DIMMS];
	uint32_t at = 0;

	memset(commands, 0, NDP_DOMAINS * sizeof(*commands));
	for (uint32_t e = 0; e < plan->experts; e++)
		if (plan->domain[e] < NDP_DOMAINS)
			commands[plan->domain[e]] += plan->domain[e] != NDP_DOMAIN_NDP ? 1 :
				holders(layer->blocks + (size_t)e * dimms, dimms);
	while (next_part(plan, dimms, &at, &piece, counts))
		commands[piece->domain] += piece->domain != NDP_DOMAIN_NDP ? 1 :
			holders(counts, dimms);
}

/* ---- checking ------------------------------------------------------------ */

/* @p comes right after @before, which may be NULL. */
static int check_piece(const struct ndp_layer *layer, const struct ndp_plan *plan,
		       const struct ndpi_rules *rules, const struct ndp_piece *p,
		       const struct ndp_piece *before, struct ndp_error *err)
{
	const uint32_t dimms = layer->host->nr_dimms;

	if (p->expert >= plan->experts || plan->domain[p->expert] != NDP_DOMAIN_SPLIT)
		return ndpi_refuse(err, "a piece names expert %u, which is not split", p->expert);
	if (p->dimm >= dimms || p->domain >= NDP_DOMAINS || !p->nr_blocks)
		return ndpi_refuse(err, "expert %u: a piece of %u blocks for domain %u on DIMM %u",
				   p->expert, p->nr_blocks, p->domain, p->dimm);
	if (!ndpi_can(rules, p->expert, p->domain))
		return ndpi_refuse(err, "expert %u: a piece for a domain that cannot compute it",
				   p->expert);
	if (p->first + p->nr_blocks > layer->blocks[(size_t)p->expert * dimms + p->dimm])
		return ndpi_refuse(err, "expert %u: blocks %u to %u of DIMM %u, which has %u",
				   p->expert, p->first, p->first + p->nr_blocks - 1, p->dimm,
				   layer->blocks[(size_t)p->expert * dimms + p->dimm]);
	if (!before || before->expert < p->expert)
		return 0;
	if (before->expert > p->expert || before->domain > p->domain ||
	    (before->domain == p->domain && before->dimm >= p->dimm))
		return ndpi_refuse(err, "expert %u: pieces out of order", p->expert);
	return 0;
}

/* Each block of the split expert that begins at @p is in exactly one piece. */
static int check_cover(const struct ndp_layer *layer, const struct ndp_piece *p,
		       const struct ndp_piece *end, struct ndp_error *err)
{
	const uint32_t dimms = layer->host->nr_dimms, e = p->expert;

	for (uint32_t d = 0; d < dimms; d++) {
		const uint32_t held = layer->blocks[(size_t)e * dimms + d];
		uint32_t sum = 0;

		for (const struct ndp_piece *a = p; a < end; a++) {
			if (a->dimm != d)
				continue;
			sum += a->nr_blocks;
			for (const struct ndp_piece *b = p; b < a; b++)
				if (b->dimm == d && a->first < b->first + b->nr_blocks &&
				    b->first < a->first + a->nr_blocks)
					return ndpi_refuse(err, "expert %u: two pieces share "
							   "blocks on DIMM %u", e, d);
		}
		if (sum != held)
			return ndpi_refuse(err, "expert %u: pieces have %u of the %u blocks on "
					   "DIMM %u", e, sum, held, d);
	}
	return 0;
}

static int check_pieces(const struct ndp_layer *layer, const struct ndp_plan *plan,
			const struct ndpi_rules *rules, struct ndp_error *err)
{
	const struct ndp_piece *p = plan->pieces, *end = p + plan->nr_pieces;
	uint32_t experts = 0, split = 0;
	int r;

	for (uint32_t k = 0; k < plan->nr_pieces; k++) {
		r = check_piece(layer, plan, rules, p + k, k ? p + k - 1 : NULL, err);
		if (r < 0)
			return r;
	}
	while (p < end) {
		const struct ndp_piece *next = p;

		while (next < end && next->expert == p->expert)
			next++;
		r = check_cover(layer, p, next, err);
		if (r < 0)
			return r;
		split++;
		p = next;
	}
	for (uint32_t e = 0; e < plan->experts; e++)
		experts += plan->domain[e] == NDP_DOMAIN_SPLIT;
	if (experts != split)
		return ndpi_refuse(err, "%u experts are split, %u have pieces", experts, split);
	return 0;
}

static bool near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

int ndp_plan_check(const struct ndp_layer *layer, const struct ndp_plan *plan,
		   struct ndp_error *err)
{
	const struct ndp_host *host = layer->host;
	struct ndpi_rules rules;
	struct ndp_loads loads;
	int r;

	if (plan->experts != layer->shape->experts)
		return ndpi_refuse(err, "the plan has %u experts, the layer %u", plan->experts,
				   layer->shape->experts);
	ndpi_plan_rules(&rules, layer, plan);
	for (uint32_t e = 0; e < plan->experts; e++) {
		const uint8_t domain = plan->domain[e];

		if (domain > NDP_DOMAIN_SPLIT)
			return ndpi_refuse(err, "expert %u: domain %u is none", e, domain);
		if ((domain == NDP_DOMAIN_NONE) != (layer->tokens[e] == 0))
			return ndpi_refuse(err, "expert %u has %u tokens and %s", e,
					   layer->tokens[e], domain == NDP_DOMAIN_NONE ?
					   "is computed nowhere" : "is computed");
		if (domain < NDP_DOMAINS && !ndpi_can(&rules, e, domain))
			return ndpi_refuse(err, "expert %u: domain %u cannot compute it", e,
					   domain);
	}
	r = check_pieces(layer, plan, &rules, err);
	if (r < 0)
		return r;
	ndp_plan_loads(layer, plan, &loads);
	r = near(loads.gpu_ns, plan->loads.gpu_ns) && near(loads.pcie_ns, plan->loads.pcie_ns) &&
	    near(loads.cpu_ns, plan->loads.cpu_ns);
	for (uint32_t c = 0; c < host->nr_channels; c++)
		r = r && near(loads.channel_ns[c], plan->loads.channel_ns[c]);
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		r = r && near(loads.dimm_ns[d], plan->loads.dimm_ns[d]);
	if (!r || !near(ndp_loads_max(&loads, host), plan->makespan_ns))
		return ndpi_refuse(err, "the plan says %.0f ns modelled, its parts take %.0f ns",
				   plan->makespan_ns, ndp_loads_max(&loads, host));
	return 0;
}
