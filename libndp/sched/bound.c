// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * bound.c - a time that no plan can beat.
 *
 * Weighting the resources by prices that add up to 1, the makespan is at least
 * the weighted sum of the loads, and that at least the sum of what the cheapest
 * way costs for each part of each expert. True for any prices; those of the
 * fluid solution make it tight. A part is an expert's blocks on one DIMM, and
 * for what the CPU or PCIe reads of it the channels are taken to work at once as
 * well as they possibly could.
 */
#include "impl.h"

#include <math.h>

static double smaller(double a, double b)
{
	return a < b ? a : b;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* What is the same for all parts of an expert. */
struct whole {
	double cpu_ns;
	float gpu_cost;	/* of the GPU and of staging */
	bool misses;	/* PCIe brings it to the GPU */
};

static void whole_init(struct whole *w, const struct ndpi_table *t, const float *price, uint32_t i)
{
	const struct ndpi_rules *r = &t->rules;
	const uint32_t tokens = r->layer->tokens[t->expert[i]];

	w->cpu_ns = t->can[i] & 1u << NDP_DOMAIN_CPU ?
		larger(ndpi_cpu_ns(r, tokens), r->nr_blocks * r->block_cpu_ns) : 0;
	if (t->can[i] & 1u << NDP_DOMAIN_GPU) {
		const float *row = ndpi_values(t, i, NDP_DOMAIN_GPU);

		w->gpu_cost = price[ROW_GPU] * row[ROW_GPU] + price[ROW_CPU] * row[ROW_CPU];
		w->misses = row[ROW_PCIE] > 0;
	}
}

/* Weighted cost of the cheapest way for the blocks of expert @i on DIMM @d, channel @c. */
static double cheapest_part(const struct ndpi_table *t, const struct whole *w, const float *price,
			    uint32_t i, uint32_t d, uint32_t c, uint32_t blocks, double share,
			    double reading)
{
	const struct ndpi_rules *r = &t->rules;
	const struct ndp_host *host = r->layer->host;
	const uint32_t tokens = r->layer->tokens[t->expert[i]];
	const float *channel = price + FULL_CHANNELS + c;
	const float *dimm = price + FULL_CHANNELS + host->nr_channels + d;
	double cheapest = HUGE_VAL, read = 0;

	if (r->charges & NDP_CHARGE_CHANNELS)
		read += *channel * blocks * r->block_read_ns;
	if (r->charges & NDP_CHARGE_DIMM_READS)
		read += *dimm * blocks * r->block_read_ns;
	if (t->can[i] & 1u << NDP_DOMAIN_NDP)
		cheapest = *dimm * ndpi_entry(t, i, NDP_DOMAIN_NDP, t->row_of[dimm - price]) +
			   *channel * tokens * r->token_host_ns;
	if (t->can[i] & 1u << NDP_DOMAIN_CPU)
		cheapest = smaller(cheapest, read + price[ROW_CPU] *
				   (larger(w->cpu_ns * share, reading) +
				    r->cpu->overhead_ns * share));
	if (t->can[i] & 1u << NDP_DOMAIN_GPU) {
		double cost = share * w->gpu_cost;

		if (w->misses)
			cost += read + price[ROW_PCIE] *
				larger(blocks * r->block_pcie_ns, reading);
		cheapest = smaller(cheapest, cost);
	}
	return cheapest;
}

/* The weighted cost of the cheapest way for everything. */
static double cheapest(const struct ndpi_table *t, const float *price)
{
	const struct ndpi_rules *r = &t->rules;
	const struct ndp_layer *layer = r->layer;
	const struct ndp_host *host = layer->host;
	double sum = 0;

	for (uint32_t k = 0; k < t->full; k++)
		sum += price[k] * t->shared[t->row_of[k]];
	for (uint32_t i = 0; i < t->nr; i++) {
		const uint16_t *blocks = layer->blocks + (size_t)t->expert[i] * host->nr_dimms;
		double share = 0, reading = 0;
		uint32_t mask = 0, last = 0;
		struct whole whole = { 0 };

		for (uint32_t d = 0, c = 0; d < host->nr_dimms; d++) {
			if (blocks[d])
				mask |= 1u << c;
			if (++c == host->nr_channels)
				c = 0;
		}
		whole_init(&whole, t, price, i);
		for (uint32_t d = 0, c = 0; d < host->nr_dimms; d++) {
			if (blocks[d] && blocks[d] != last) {
				last = blocks[d];
				share = (double)last / r->nr_blocks;
				reading = last * r->block_read_ns / __builtin_popcount(mask);
			}
			if (blocks[d])
				sum += cheapest_part(t, &whole, price, i, d, c, last, share,
						     reading);
			if (++c == host->nr_channels)
				c = 0;
		}
	}
	return sum;
}

static void even_out(float *price, uint32_t n)
{
	float sum = 0;

	for (uint32_t k = 0; k < n; k++)
		sum += price[k];
	for (uint32_t k = 0; k < n; k++)
		price[k] = sum / n;
}

double ndp_fluid_bound(const struct ndp_layer *layer, void *work)
{
	const struct ndp_host *host = layer->host;
	struct ndpi_arena arena = { work };
	struct ndpi_table t;
	struct ndpi_fluid *f;
	uint8_t *choice;
	double bound;

	if (ndpi_table_build(&t, &arena, layer, &host->cpu, (1 << NDP_DOMAINS) - 1, true) <
	    0 || !t.nr)
		return 0;
	choice = ndpi_take(&arena, t.experts);
	f = ndpi_take(&arena, sizeof(*f));
	ndpi_even_start(&t, choice);
	ndpi_fluid_solve(&t, choice, 0, f, arena);
	bound = cheapest(&t, f->price);
	/*
	 * Where DIMMs hold nearly the same, the solution has many prices to choose from
	 * and may have put all on a few; even ones are then better.
	 */
	even_out(f->price + FULL_CHANNELS, host->nr_channels);
	even_out(f->price + FULL_CHANNELS + host->nr_channels, host->nr_dimms);
	bound = larger(bound, cheapest(&t, f->price));
	/* Prices and table are single precision. */
	return bound * (1 - 1e-5);
}
