// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * engine_value.c - what a place is worth to an expert.
 *
 * The makespan is that of the fullest resource, so moving one expert often changes
 * nothing that a scheduler can show, though twenty such moves do. Therefore every
 * resource has a price for a nanosecond of its time. What the GPU, PCIe, the CPU,
 * the channels and the DIMMs are worth to one another is found by linear
 * programming, as if channels and DIMMs were filled evenly: the prices at which
 * the work as it lies costs most though each expert is computed where it costs
 * least. Which channels and which DIMMs these prices are for is said by the
 * scheduler's plans: the fullest, far above all others.
 *
 * At these prices an expert has a cost wherever it might be, and so has a copy.
 * They are a guide: whoever acts on them lets the scheduler confirm it.
 */
#include "engine.h"

#include <math.h>
#include <string.h>

enum { ITERATIONS = 40 };

static uint32_t domains(enum ndp_policy policy)
{
	switch (policy) {
	case NDP_POLICY_GPU:
		return 1 << NDP_DOMAIN_GPU;
	case NDP_POLICY_GPU_CPU:
		return 1 << NDP_DOMAIN_GPU | 1 << NDP_DOMAIN_CPU;
	case NDP_POLICY_GPU_NDP:
		return 1 << NDP_DOMAIN_GPU | 1 << NDP_DOMAIN_NDP;
	default:
		return (1 << NDP_DOMAINS) - 1;
	}
}

static const struct ndp_rate *cpu(const struct ndp_placer *p)
{
	return p->options.policy == NDP_POLICY_TRIMOE_NOCPU_AMX ? &p->host.cpu_plain :
	       &p->host.cpu;
}

static void group(const struct ndp_placer *p, const struct ndp_loads *loads,
		  float sum[PLACE_GROUPS])
{
	sum[0] = (float)loads->gpu_ns;
	sum[1] = (float)loads->pcie_ns;
	sum[2] = (float)loads->cpu_ns;
	sum[3] = sum[4] = 0;
	for (uint32_t c = 0; c < p->host.nr_channels; c++)
		sum[3] += (float)loads->channel_ns[c];
	for (uint32_t d = 0; d < p->host.nr_dimms; d++)
		sum[4] += (float)loads->dimm_ns[d];
	sum[3] /= (float)p->host.nr_channels;
	sum[4] /= (float)p->host.nr_dimms;
}

/* All that the host has of each. */
static void clear(const struct ndp_placer *p, struct ndp_loads *loads)
{
	loads->gpu_ns = loads->pcie_ns = loads->cpu_ns = 0;
	memset(loads->channel_ns, 0, p->host.nr_channels * sizeof(*loads->channel_ns));
	memset(loads->dimm_ns, 0, p->host.nr_dimms * sizeof(*loads->dimm_ns));
}

/* All ways to compute the experts of a layer where they are; their number by expert. */
static void find_all_ways(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules)
{
	struct place_ways ways;

	for (uint32_t e = 0; e < p->shape.experts; e++) {
		ways.nr = 0;
		if (p->tokens[e] && p->gpu_target[place_cell(p, layer, e)])
			ndpi_place_gpu_value(p, e, &ways.loads[ways.nr++]);
		else if (p->tokens[e])
			ndpi_place_ways(p, rules, e, place_row(p, p->target, layer, e), &ways);
		p->nr_ways[e] = (uint8_t)ways.nr;
		for (uint32_t k = 0; k < ways.nr; k++) {
			float sum[PLACE_GROUPS];

			group(p, &ways.loads[k], sum);
			for (uint32_t g = 0; g < PLACE_GROUPS; g++)
				p->ways[e][g][k] = sum[g];
		}
	}
}

/* What everything takes when each expert is computed where it costs least. */
static void cheapest_of_all(const struct ndp_placer *p, const float price[PLACE_GROUPS],
			    float load[PLACE_GROUPS])
{
	memset(load, 0, PLACE_GROUPS * sizeof(*load));
	for (uint32_t e = 0; e < p->shape.experts; e++) {
		const float (*way)[4] = p->ways[e];
		float least = HUGE_VALF;
		ndpi_vec cost = { 0 };
		uint32_t best = 0;

		if (!p->nr_ways[e])
			continue;
		/* All ways at a time. */
		for (uint32_t g = 0; g < PLACE_GROUPS; g++)
			cost += *(const ndpi_vec *)way[g] * price[g];
		for (uint32_t k = 0; k < p->nr_ways[e]; k++) {
			best = cost[k] < least ? k : best;
			least = cost[k] < least ? cost[k] : least;
		}
		for (uint32_t g = 0; g < PLACE_GROUPS; g++)
			load[g] += way[g][best];
	}
}

/*
 * By multiplicative weights (Arora, Hazan, Kale, "The multiplicative weights update
 * method"): what is full becomes dearer, until nothing is fuller than anything else
 * that has a price. The mean of the last prices is taken.
 */
static void group_prices(struct ndp_placer *p)
{
	float price[PLACE_GROUPS], load[PLACE_GROUPS], mean[PLACE_GROUPS] = { 0 };

	for (uint32_t g = 0; g < PLACE_GROUPS; g++)
		price[g] = 1.0f / PLACE_GROUPS;
	for (int t = 0; t < ITERATIONS; t++) {
		float most = 0, sum = 0;

		cheapest_of_all(p, price, load);
		for (uint32_t g = 0; g < PLACE_GROUPS; g++)
			most = fmaxf(most, load[g]);
		for (uint32_t g = 0; g < PLACE_GROUPS && most > 0; g++)
			price[g] *= expf((load[g] / most - 1) * 2 / sqrtf((float)t + 1));
		for (uint32_t g = 0; g < PLACE_GROUPS; g++)
			sum += price[g];
		for (uint32_t g = 0; g < PLACE_GROUPS; g++) {
			price[g] /= sum;
			if (t >= ITERATIONS / 2)
				mean[g] += price[g] / (ITERATIONS - ITERATIONS / 2);
		}
	}
	memcpy(p->group, mean, sizeof(mean));
}

/* A sixteenth power: 0.9 of the fullest load costs a fifth, 0.75 a hundredth. */
static double steep(double x)
{
	x = x > 0 ? x * x : 0;
	x *= x;
	x *= x;
	return x * x;
}

/* The part of a group's price that goes to the fullest; the rest to all alike. */
static const double fullest_part = 0.5;

static void divide(double *price, const double *load, uint32_t n, double whole)
{
	double most = 0, sum = 0;

	for (uint32_t k = 0; k < n; k++)
		most = fmax(most, load[k]);
	for (uint32_t k = 0; k < n; k++)
		sum += price[k] = most > 0 ? steep(load[k] / most) : 1;
	for (uint32_t k = 0; k < n; k++)
		price[k] = whole * (fullest_part * price[k] / sum + (1 - fullest_part) / n);
}

static void divide_prices(struct ndp_placer *p)
{
	divide(p->price.channel_ns, p->loads.channel_ns, p->host.nr_channels, p->group[3]);
	divide(p->price.dimm_ns, p->loads.dimm_ns, p->host.nr_dimms, p->group[4]);
}

void ndpi_place_prices(struct ndp_placer *p, uint32_t layer, const struct ndpi_rules *rules)
{
	find_all_ways(p, layer, rules);
	group_prices(p);
	memset(&p->price, 0, sizeof(p->price));
	p->price.gpu_ns = p->group[0];
	p->price.pcie_ns = p->group[1];
	p->price.cpu_ns = p->group[2];
	divide_prices(p);
}

void ndpi_place_shift(struct ndp_placer *p, const struct ndp_loads *from,
		      const struct ndp_loads *to)
{
	struct ndp_loads *load = &p->loads;

	load->gpu_ns += to->gpu_ns - from->gpu_ns;
	load->pcie_ns += to->pcie_ns - from->pcie_ns;
	load->cpu_ns += to->cpu_ns - from->cpu_ns;
	for (uint32_t c = 0; c < p->host.nr_channels; c++)
		load->channel_ns[c] += to->channel_ns[c] - from->channel_ns[c];
	for (uint32_t d = 0; d < p->host.nr_dimms; d++)
		load->dimm_ns[d] += to->dimm_ns[d] - from->dimm_ns[d];
	divide_prices(p);
}

static double price_of(const struct ndp_placer *p, const struct ndp_loads *l)
{
	const struct ndp_loads *price = &p->price;
	double sum = price->gpu_ns * l->gpu_ns + price->pcie_ns * l->pcie_ns +
		     price->cpu_ns * l->cpu_ns;

	for (uint32_t c = 0; c < p->host.nr_channels; c++)
		sum += price->channel_ns[c] * l->channel_ns[c];
	for (uint32_t d = 0; d < p->host.nr_dimms; d++)
		sum += price->dimm_ns[d] * l->dimm_ns[d];
	return sum;
}

void ndpi_place_rules(const struct ndp_placer *p, struct ndp_layer *layer,
		      struct ndpi_rules *rules)
{
	layer->on_gpu = NULL;
	ndpi_rules_init(rules, layer, cpu(p));
}

void ndpi_place_ways(const struct ndp_placer *p, const struct ndpi_rules *rules, uint32_t expert,
		     const uint16_t *row, struct place_ways *ways)
{
	const uint32_t allowed = domains(p->options.policy);

	ways->nr = 0;
	for (uint32_t o = 0; o < NDP_DOMAINS; o++) {
		if (!(allowed & 1u << o) || !ndpi_can(rules, expert, o))
			continue;
		clear(p, &ways->loads[ways->nr]);
		ndpi_add_part(rules, expert, o, row, &ways->loads[ways->nr++]);
	}
}

double ndpi_place_value(const struct ndp_placer *p, const struct ndpi_rules *rules, uint32_t expert,
			const uint16_t *row, struct ndp_loads *loads)
{
	double cheapest = HUGE_VAL;
	struct place_ways ways;

	ndpi_place_ways(p, rules, expert, row, &ways);
	for (uint32_t k = 0; k < ways.nr; k++) {
		const double cost = price_of(p, &ways.loads[k]);

		if (!(cost < cheapest))
			continue;
		cheapest = cost;
		if (loads)
			*loads = ways.loads[k];
	}
	if (!ways.nr && loads)
		clear(p, loads);
	return cheapest;
}

double ndpi_place_gpu_value(const struct ndp_placer *p, uint32_t expert, struct ndp_loads *loads)
{
	const double memory = p->host.gpu.gbps > 0 ? p->shape.expert_bytes / p->host.gpu.gbps : 0;
	double gpu_ns = 0;

	if (p->tokens[expert])
		gpu_ns = p->host.gpu.overhead_ns +
			 fmax(memory, ndp_rate_ns(&p->host.gpu, &p->shape, p->tokens[expert]));
	if (loads) {
		clear(p, loads);
		loads->gpu_ns = gpu_ns;
	}
	return p->price.gpu_ns * gpu_ns;
}

void ndpi_place_local_values(const struct ndp_placer *p, const struct place_ways *ways,
			     double cost[NDP_MAX_DIMMS])
{
	const struct ndp_loads *price = &p->price;
	const uint32_t dimms = p->host.nr_dimms;
	double channel[NDP_MAX_DIMMS];

	for (uint32_t d = 0; d < dimms; d++) {
		channel[d] = d < p->host.nr_channels ? price->channel_ns[d] :
			     channel[d - p->host.nr_channels];
		cost[d] = HUGE_VAL;
	}
	for (uint32_t k = 0; k < ways->nr; k++) {
		const struct ndp_loads *l = &ways->loads[k];
		const double anywhere = price->gpu_ns * l->gpu_ns + price->pcie_ns * l->pcie_ns +
					price->cpu_ns * l->cpu_ns;
		const double channel_ns = l->channel_ns[0], dimm_ns = l->dimm_ns[0];

		for (uint32_t d = 0; d < dimms; d++) {
			const double here = anywhere + channel[d] * channel_ns +
					    price->dimm_ns[d] * dimm_ns;

			cost[d] = here < cost[d] ? here : cost[d];
		}
	}
}

double ndpi_place_price_of_copy(const struct ndp_placer *p, uint32_t layer,
				const struct proposal *proposal)
{
	const uint16_t *row = place_row(p, p->target, layer, proposal->expert);
	const struct ndp_loads *price = &p->price;
	const uint32_t charges = p->options.charges;
	double sum = 0;

	for (uint32_t d = 0; d < p->host.nr_dimms; d++) {
		if (proposal->kind != NDP_PLACE_PREFETCH) {
			const uint32_t moved = row[d] > proposal->row[d] ?
					       row[d] - proposal->row[d] : proposal->row[d] - row[d];

			if (p->host.dimm.gbps > 0)
				sum += price->dimm_ns[d] * moved * p->block_bytes /
				       p->host.dimm.gbps;
			continue;
		}
		sum += row[d] * p->block_bytes / p->host.channel_gbps *
		       ((charges & NDP_CHARGE_CHANNELS ?
			 price->channel_ns[d % p->host.nr_channels] : 0) +
			(charges & NDP_CHARGE_DIMM_READS ? price->dimm_ns[d] : 0));
	}
	if (proposal->kind != NDP_PLACE_PREFETCH)
		return sum;
	if (charges & NDP_CHARGE_STAGING && p->host.staging_gbps > 0)
		sum += price->cpu_ns * p->shape.expert_bytes / p->host.staging_gbps;
	return sum + price->pcie_ns * p->shape.expert_bytes / p->host.pcie_gbps;
}
