// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * count.c - bounds by counting: for whole experts, and for whole neuron blocks.
 *
 * Experts that are whole in one DIMM are computed there or read by the host, one by
 * one.  Within a makespan T a DIMM can keep only so many: how many must leave at
 * least follows from its smallest costs.  And the host can read only so many: each
 * costs the CPU or PCIe at least what the cheapest one does.  Where more must leave
 * than can be read, no plan of whole experts takes T or less.  Experts in several
 * DIMMs or in GPU memory are left out, which only lowers the bound.
 *
 * Where every expert is in one DIMM this is much above the linear program, whose
 * experts may be read in part, and GLPK needs very long to find out.
 *
 * Blocks in the same way: within T a DIMM can compute only so many of its blocks, a
 * channel can read only a whole number of blocks, and what one cannot the other must.
 */
#include "solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double precision = 1e-5;

/* Experts of the DIMMs, one DIMM after the other. */
struct count {
	uint32_t nr_dimms;
	uint32_t *first;	/* [nr_dimms + 1] */
	double *ndp_ns;		/* each DIMM's rising */
	double *read_ns;	/* [nr_dimms]: of DIMM time that a leaving expert costs at least */
	double cpu_ns;		/* of the CPU for one that it computes, at least */
	double pcie_ns;		/* of PCIe for one that the GPU computes, at least */
	double staging_ns;	/* and of the CPU */
};

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void add_expert(struct count *c, const struct ndp_layer *layer, uint32_t e, uint32_t d)
{
	struct ndp_loads loads;
	double ndp_ns = HUGE_VAL;

	if (!isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_NDP, &loads)))
		ndp_ns = loads.dimm_ns[d];
	c->ndp_ns[c->first[d + 1]++] = ndp_ns;
	if (!isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_CPU, &loads))) {
		c->cpu_ns = fmin(c->cpu_ns, loads.cpu_ns);
		c->read_ns[d] = fmin(c->read_ns[d], loads.dimm_ns[d]);
	}
	if (!isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_GPU, &loads))) {
		c->pcie_ns = fmin(c->pcie_ns, loads.pcie_ns);
		c->staging_ns = fmin(c->staging_ns, loads.cpu_ns);
		c->read_ns[d] = fmin(c->read_ns[d], loads.dimm_ns[d]);
	}
}

static void fill(struct count *c, const struct ndp_layer *layer)
{
	const uint32_t dimms = layer->host->nr_dimms;

	c->nr_dimms = dimms;
	c->cpu_ns = c->pcie_ns = c->staging_ns = HUGE_VAL;
	for (uint32_t d = 0; d < dimms; d++) {
		c->read_ns[d] = HUGE_VAL;
		c->first[d + 1] = c->first[d];
		for (uint32_t e = 0; e < layer->shape->experts; e++)
			if (layer->tokens[e] && !(layer->on_gpu && layer->on_gpu[e]) &&
			    layer->blocks[(size_t)e * dimms + d] == ndp_shape_blocks(layer->shape))
				add_expert(c, layer, e, d);
		qsort(c->ndp_ns + c->first[d], c->first[d + 1] - c->first[d], sizeof(*c->ndp_ns),
		      by_size);
	}
}

/* How many experts must leave DIMM @d; more than it has: it cannot be done. */
static uint32_t must_leave(const struct count *c, uint32_t d, double limit_ns)
{
	const double *ndp_ns = c->ndp_ns + c->first[d];
	const uint32_t nr = c->first[d + 1] - c->first[d];

	for (uint32_t leaving = 0; leaving <= nr; leaving++) {
		/* None can leave where nobody can read: 0 times infinity is no number. */
		double busy_ns = leaving ? leaving * c->read_ns[d] : 0;

		for (uint32_t i = 0; i < nr - leaving; i++)
			busy_ns += ndp_ns[i];
		if (busy_ns <= limit_ns)
			return leaving;
	}
	return nr + 1;
}

static uint32_t can_be_read(const struct count *c, double limit_ns)
{
	const uint32_t experts = c->first[c->nr_dimms];
	uint32_t most = 0;

	for (uint32_t pcie = 0; pcie <= experts; pcie++) {
		const double cpu_left_ns = limit_ns - (pcie ? pcie * c->staging_ns : 0);

		if (cpu_left_ns < 0 || (pcie && pcie * c->pcie_ns > limit_ns))
			break;
		most = fmax(most, pcie + fmin(experts, floor(cpu_left_ns / c->cpu_ns)));
	}
	return most;
}

static bool is_too_short(const struct count *c, double limit_ns)
{
	uint32_t leaving = 0;

	for (uint32_t d = 0; d < c->nr_dimms; d++) {
		const uint32_t n = must_leave(c, d, limit_ns);

		if (n > c->first[d + 1] - c->first[d])
			return true;
		leaving += n;
	}
	return leaving > can_be_read(c, limit_ns);
}

double reference_count(const struct ndp_layer *layer, double known_ns)
{
	double below_ns = 0, above_ns = known_ns;
	struct count c = {
		.first = calloc(layer->host->nr_dimms + 1, sizeof(*c.first)),
		.ndp_ns = calloc(layer->shape->experts, sizeof(*c.ndp_ns)),
		.read_ns = calloc(layer->host->nr_dimms, sizeof(*c.read_ns)),
	};

	if (c.first && c.ndp_ns && c.read_ns) {
		fill(&c, layer);
		while (above_ns - below_ns > precision * above_ns) {
			const double middle_ns = (below_ns + above_ns) / 2;

			if (is_too_short(&c, middle_ns))
				below_ns = middle_ns;
			else
				above_ns = middle_ns;
		}
	}
	free(c.first);
	free(c.ndp_ns);
	free(c.read_ns);
	return below_ns;
}

/* ---- blocks ------------------------------------------------------------------------- */

/* The blocks of one DIMM, by rising cost of computing one there. */
struct site {
	uint32_t nr;
	double *sum_ns;		/* [nr + 1]: of the cheapest so many */
};

/*
 * A command for n of an expert's N blocks on a DIMM costs at least n / N of the one for
 * all of them: the overhead and the activations are the same, the rest is not less.
 */
static bool fill_site(struct site *s, const struct ndp_layer *layer, uint32_t d)
{
	const uint32_t dimms = layer->host->nr_dimms;
	double *ns;

	s->nr = 0;
	for (uint32_t e = 0; e < layer->shape->experts; e++)
		s->nr += layer->blocks[(size_t)e * dimms + d];
	ns = s->sum_ns = calloc(s->nr + 1, sizeof(*s->sum_ns));
	if (!ns)
		return false;
	s->nr = 0;
	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		const uint32_t blocks = layer->blocks[(size_t)e * dimms + d];
		struct ndp_loads loads;
		double block_ns = HUGE_VAL;

		if (!layer->tokens[e] || (layer->on_gpu && layer->on_gpu[e]))
			continue;
		if (!isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_NDP, &loads)))
			block_ns = loads.dimm_ns[d] / blocks;
		for (uint32_t k = 0; k < blocks; k++)
			ns[++s->nr] = block_ns;
	}
	qsort(ns + 1, s->nr, sizeof(*ns), by_size);
	for (uint32_t k = 1; k <= s->nr; k++)
		ns[k] += ns[k - 1];
	return true;
}

/* How many blocks must be read from the DIMM; more than it has: it cannot be done. */
static uint32_t must_be_read(const struct site *s, double read_ns, double limit_ns)
{
	for (uint32_t n = 0; n <= s->nr; n++)
		if (s->sum_ns[s->nr - n] + n * read_ns <= limit_ns)
			return n;
	return s->nr + 1;
}

/* The most channels that an expert lies on: so many at once give it to the host. */
static uint32_t widest(const struct ndp_layer *layer)
{
	const struct ndp_host *host = layer->host;
	uint32_t most = 1;

	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		const uint16_t *blocks = layer->blocks + (size_t)e * host->nr_dimms;
		uint32_t mask = 0;

		for (uint32_t d = 0; d < host->nr_dimms; d++)
			if (layer->tokens[e] && blocks[d])
				mask |= 1u << d % host->nr_channels;
		most = fmax(most, __builtin_popcount(mask));
	}
	return most;
}

/* How many blocks CPU and PCIe take within @limit_ns, each at least @read_ns apart. */
static double most_read(const struct ndp_layer *layer, double read_ns, double limit_ns)
{
	const struct ndp_host *host = layer->host;
	const double block_bytes = (double)layer->shape->expert_bytes /
				   ndp_shape_blocks(layer->shape);
	/* Rounding errors must not take a block away. */
	const double ns = limit_ns * (1 + 1e-9);
	double blocks = 0;

	if (host->cpu.gflops > 0)
		blocks += floor(ns / read_ns);
	if (host->gpu.gflops > 0 && host->pcie_gbps > 0)
		blocks += floor(ns / fmax(read_ns, block_bytes / host->pcie_gbps));
	return blocks;
}

static bool no_blocks_fit(const struct ndp_layer *layer, const struct site *site, uint32_t width,
			  double limit_ns)
{
	const struct ndp_host *host = layer->host;
	const double read_ns = (double)layer->shape->expert_bytes /
			       ndp_shape_blocks(layer->shape) / host->channel_gbps;
	const double dimm_ns = layer->charges & NDP_CHARGE_DIMM_READS ? read_ns : 0;
	uint32_t all = 0;

	for (uint32_t c = 0; c < host->nr_channels; c++) {
		uint32_t sum = 0;

		for (uint32_t d = c; d < host->nr_dimms; d += host->nr_channels) {
			const uint32_t n = must_be_read(&site[d], dimm_ns, limit_ns);

			if (n > site[d].nr)
				return true;
			sum += n;
		}
		if (layer->charges & NDP_CHARGE_CHANNELS && sum * read_ns > limit_ns)
			return true;
		all += sum;
	}
	return all > most_read(layer, read_ns / width, limit_ns);
}

double reference_count_blocks(const struct ndp_layer *layer, double known_ns)
{
	const uint32_t dimms = layer->host->nr_dimms;
	struct site *site = calloc(dimms, sizeof(*site));
	const uint32_t width = widest(layer);
	double below_ns = 0, above_ns = known_ns;
	bool filled = site;

	for (uint32_t d = 0; filled && d < dimms; d++)
		filled = fill_site(&site[d], layer, d);
	while (filled && above_ns - below_ns > precision * above_ns) {
		const double middle_ns = (below_ns + above_ns) / 2;

		if (no_blocks_fit(layer, site, width, middle_ns))
			below_ns = middle_ns;
		else
			above_ns = middle_ns;
	}
	for (uint32_t d = 0; site && d < dimms; d++)
		free(site[d].sum_ns);
	free(site);
	return below_ns;
}
