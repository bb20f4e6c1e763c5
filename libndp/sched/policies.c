// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * policies.c - from a policy's name to a plan.
 *
 * Every policy uses the same cost table; policies of whole experts differ only
 * in the domains they may use, the CPU they have, and whether they refine.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
	GPU = 1 << NDP_DOMAIN_GPU,
	CPU = 1 << NDP_DOMAIN_CPU,
	NDP = 1 << NDP_DOMAIN_NDP,
};

static const struct {
	const char *name;
	uint8_t domains;
	bool refine;
} policies[NDP_POLICIES] = {
	[NDP_POLICY_GPU]		= { "gpu",		GPU,			false },
	[NDP_POLICY_GPU_CPU]		= { "gpu-cpu",		GPU | CPU,		true },
	[NDP_POLICY_GPU_NDP]		= { "gpu-ndp",		GPU | NDP,		true },
	[NDP_POLICY_TRIMOE]		= { "trimoe",		GPU | CPU | NDP,	true },
	[NDP_POLICY_TRIMOE_NOREFINE]	= { "trimoe-norefine",	GPU | CPU | NDP,	false },
	[NDP_POLICY_TRIMOE_NOCPU_AMX]	= { "trimoe-nocpu-amx",	GPU | CPU | NDP,	true },
	[NDP_POLICY_SPLIT]		= { "split",		GPU | CPU | NDP,	true },
};

const char *ndp_policy_name(enum ndp_policy policy)
{
	return (unsigned)policy < NDP_POLICIES ? policies[policy].name : "?";
}

int ndp_policy_parse(const char *name)
{
	for (int p = 0; p < NDP_POLICIES; p++)
		if (!strcmp(policies[p].name, name))
			return p;
	return -EINVAL;
}

/* Where pieces end that much above the bound, whole experts are tried, too. */
static const float far_from_bound = 1.02f;

size_t ndp_schedule_bytes(uint32_t experts, uint32_t nr_dimms)
{
	return ndpi_table_bytes(experts, nr_dimms) + ndpi_split_bytes(experts) +
	       2 * (size_t)experts + experts * sizeof(struct ndpi_cut) + 128;
}

/* Everything in one domain; HUGE_VALF when it cannot be or takes @limit or more. */
static float whole_in(const struct ndpi_table *t, uint32_t domain, float limit)
{
	ndpi_wide load;

	memcpy(load, t->shared, t->width * sizeof(float));
	for (uint32_t i = 0; i < t->nr; i++) {
		if (!(t->can[i] & 1u << domain) || load[ROW_PCIE] >= limit ||
		    load[ROW_CPU] >= limit)
			return HUGE_VALF;
		ndpi_add(t, load, i, domain, 1);
	}
	return ndpi_largest(load, t->width);
}

/* @choice becomes one domain for all when that is shorter than @makespan; returns the shorter. */
static float one_domain(const struct ndpi_table *t, uint8_t *choice, float makespan)
{
	for (uint32_t domain = 0; domain < NDP_DOMAINS; domain++) {
		const float alone = whole_in(t, domain, makespan);

		if (alone < makespan) {
			makespan = alone;
			memset(choice, domain, t->nr);
		}
	}
	return makespan;
}

/*
 * Refinement is a local search, so that a domain alone can be better; then the
 * search starts again from there.
 */
static float whole_experts(const struct ndpi_table *t, uint8_t *choice, struct ndpi_arena arena)
{
	float makespan, alone;
	ndpi_wide sum;

	ndpi_greedy(t, choice);
	ndpi_drain(t, choice, arena);
	ndpi_refine(t, choice);
	makespan = ndpi_sum(t, choice, sum);
	alone = one_domain(t, choice, makespan);
	if (alone == makespan)
		return makespan;
	ndpi_refine(t, choice);
	return ndpi_sum(t, choice, sum);
}

/*
 * Experts in pieces; whole ones where rounding to blocks and commands leave the
 * pieces far from the bound.  Returns how many cuts there are.
 */
static uint32_t divided_experts(const struct ndpi_table *t, uint8_t *choice, uint8_t *other,
				struct ndpi_cut *cuts, struct ndpi_arena arena)
{
	float makespan, bound;
	const uint32_t nr = ndpi_split(t, choice, cuts, &makespan, &bound, arena);

	if (makespan > far_from_bound * bound) {
		if (whole_experts(t, other, arena) > makespan)
			return nr;
		memcpy(choice, other, t->nr);
		return 0;
	}
	return one_domain(t, choice, makespan) < makespan ? 0 : nr;
}

/* A cut whose blocks are all in one domain is a whole expert. */
static uint32_t only_domain(const struct ndpi_cut *cut, uint32_t nr_dimms)
{
	uint32_t only = NDP_DOMAIN_NONE;

	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		for (uint32_t d = 0; d < nr_dimms; d++) {
			if (!cut->blocks[o][d])
				continue;
			if (only != NDP_DOMAIN_NONE && only != o)
				return NDP_DOMAIN_SPLIT;
			only = o;
			break;
		}
	return only;
}

static void write_pieces(struct ndp_plan *plan, uint32_t e, const struct ndpi_cut *cut,
			 uint32_t nr_dimms)
{
	uint16_t first[NDP_MAX_DIMMS] = { 0 };

	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		for (uint32_t d = 0; d < nr_dimms; d++) {
			if (!cut->blocks[o][d])
				continue;
			plan->pieces[plan->nr_pieces++] = (struct ndp_piece) {
				.expert = e,
				.first = first[d],
				.nr_blocks = cut->blocks[o][d],
				.domain = o,
				.dimm = d,
			};
			first[d] += cut->blocks[o][d];
		}
}

/* @cuts in the order of their experts. */
static void write_plan(const struct ndpi_table *t, const uint8_t *choice,
		       const struct ndpi_cut *cuts, uint32_t nr_cuts, struct ndp_plan *plan)
{
	const struct ndp_layer *layer = t->rules.layer;
	const uint32_t dimms = layer->host->nr_dimms;

	plan->nr_pieces = 0;
	memset(plan->domain, NDP_DOMAIN_NONE, plan->experts);
	for (uint32_t i = 0; i < t->nr; i++)
		plan->domain[t->expert[i]] = choice[i];
	for (uint32_t k = 0; k < nr_cuts; k++) {
		const uint32_t e = t->expert[cuts[k].i];

		plan->domain[e] = only_domain(&cuts[k], dimms);
		if (plan->domain[e] == NDP_DOMAIN_SPLIT)
			write_pieces(plan, e, &cuts[k], dimms);
	}
	ndp_plan_loads(layer, plan, &plan->loads);
	plan->makespan_ns = ndp_loads_max(&plan->loads, layer->host);
}

int ndp_schedule(const struct ndp_layer *layer, enum ndp_policy policy, void *work,
		 struct ndp_plan *plan)
{
	const struct ndp_rate *cpu = policy == NDP_POLICY_TRIMOE_NOCPU_AMX ?
		&layer->host->cpu_plain : &layer->host->cpu;
	struct ndpi_arena arena = { work };
	struct ndpi_table table;
	uint8_t *choice, *other;
	struct ndpi_cut *cuts;
	uint32_t nr_cuts = 0;
	int r;

	if ((unsigned)policy >= NDP_POLICIES || plan->experts != layer->shape->experts)
		return -EINVAL;
	r = ndpi_table_build(&table, &arena, layer, cpu, policies[policy].domains,
			     policy == NDP_POLICY_SPLIT);
	if (r < 0)
		return r;
	choice = ndpi_take(&arena, table.experts);
	other = ndpi_take(&arena, table.experts);
	cuts = ndpi_take(&arena, table.experts * sizeof(*cuts));
	plan->policy = policy;
	if (policy == NDP_POLICY_SPLIT)
		nr_cuts = divided_experts(&table, choice, other, cuts, arena);
	else if (policies[policy].refine)
		whole_experts(&table, choice, arena);
	else
		ndpi_greedy(&table, choice);
	write_plan(&table, choice, cuts, nr_cuts, plan);
	return 0;
}
