// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * count.c - a bound for whole experts by counting.
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
