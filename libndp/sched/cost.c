// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cost.c - the rules of <ndp/sched.h>: what a part of an expert occupies.
 *
 * The formulas for GPU, CPU and NDP are TriMoE's (arXiv 2603.01058); the shared
 * channels, the DIMMs' share in host reads, activations and staging are added,
 * each behind its switch.  Double precision, modelled nanoseconds.
 */
#include "impl.h"

#include <ndp/pack.h>
#include <errno.h>
#include <math.h>
#include <string.h>

enum {
	X_BYTES = 2,	/* BF16 in */
	Y_BYTES = 4,	/* FP32 out */
};

uint32_t ndp_shape_blocks(const struct ndp_shape *shape)
{
	return (shape->intermediate + NDP_BLOCK_ROWS - 1) / NDP_BLOCK_ROWS;
}

double ndp_shape_flops(const struct ndp_shape *shape)
{
	return 6.0 * shape->hidden * shape->intermediate;
}

static double max(double a, double b)
{
	return a > b ? a : b;
}

/* bytes / (GB/s) is nanoseconds; a rate of 0 has no limit. */
static double transfer_ns(double bytes, double gbps)
{
	return gbps > 0 ? bytes / gbps : 0;
}

double ndpi_compute_ns(const struct ndp_rate *rate, double flops, uint32_t tokens)
{
	const uint32_t *at = rate->tokens;
	const double *gflops = rate->point_gflops;
	uint32_t n = rate->nr_points, i = 0;
	double reached = rate->gflops;

	if (n) {
		while (i < n && at[i] < tokens)
			i++;
		if (i == 0)
			reached = gflops[0];
		else if (i == n)
			reached = gflops[n - 1];
		else
			reached = gflops[i - 1] + (gflops[i] - gflops[i - 1]) *
				  (tokens - at[i - 1]) / (at[i] - at[i - 1]);
	}
	return tokens * flops / reached;
}

double ndp_rate_ns(const struct ndp_rate *rate, const struct ndp_shape *shape, uint32_t tokens)
{
	if (!(rate->gflops > 0))
		return HUGE_VAL;
	return max(ndpi_compute_ns(rate, ndp_shape_flops(shape), tokens),
		   transfer_ns(shape->expert_bytes, rate->gbps));
}

/* A token of an expert by roofline; 0: a table says. */
static double per_token_ns(const struct ndp_rate *rate, double flops)
{
	return rate->nr_points || !(rate->gflops > 0) ? 0 : flops / rate->gflops;
}

double ndpi_gpu_ns(const struct ndpi_rules *r, uint32_t tokens)
{
	return r->gpu_token_ns > 0 ? tokens * r->gpu_token_ns :
		ndpi_compute_ns(&r->layer->host->gpu, r->flops, tokens);
}

double ndpi_cpu_ns(const struct ndpi_rules *r, uint32_t tokens)
{
	return r->cpu_token_ns > 0 ? tokens * r->cpu_token_ns :
		ndpi_compute_ns(r->cpu, r->flops, tokens);
}

double ndpi_dimm_ns(const struct ndpi_rules *r, uint32_t tokens)
{
	return r->dimm_token_ns > 0 ? tokens * r->dimm_token_ns :
		ndpi_compute_ns(&r->layer->host->dimm, r->flops, tokens);
}

void ndpi_rules_init(struct ndpi_rules *r, const struct ndp_layer *layer,
		     const struct ndp_rate *cpu)
{
	const struct ndp_host *host = layer->host;
	const struct ndp_shape *shape = layer->shape;
	const bool activations = layer->charges & NDP_CHARGE_ACTIVATIONS;
	double block_bytes, token_bytes;

	r->layer = layer;
	r->cpu = cpu;
	r->charges = layer->charges;
	r->nr_blocks = ndp_shape_blocks(shape);
	r->flops = ndp_shape_flops(shape);
	block_bytes = (double)shape->expert_bytes / r->nr_blocks;
	token_bytes = activations ? (double)shape->hidden * (X_BYTES + Y_BYTES) : 0;
	r->gpu_token_ns = per_token_ns(&host->gpu, r->flops);
	r->cpu_token_ns = per_token_ns(cpu, r->flops);
	r->dimm_token_ns = per_token_ns(&host->dimm, r->flops);
	r->block_read_ns = transfer_ns(block_bytes, host->channel_gbps);
	r->block_pcie_ns = transfer_ns(block_bytes, host->pcie_gbps);
	r->block_gpu_ns = transfer_ns(block_bytes, host->gpu.gbps);
	r->block_cpu_ns = transfer_ns(block_bytes, cpu->gbps);
	r->block_dimm_ns = transfer_ns(block_bytes, host->dimm.gbps);
	r->block_staging_ns = layer->charges & NDP_CHARGE_STAGING ?
		transfer_ns(block_bytes, host->staging_gbps) : 0;
	r->token_dimm_ns = transfer_ns(token_bytes, host->dimm.gbps);
	r->token_host_ns = transfer_ns(token_bytes, host->channel_gbps);
	r->can_hit = host->gpu.gflops > 0;
	r->can_miss = host->gpu.gflops > 0 && host->pcie_gbps > 0;
	r->can_cpu = cpu->gflops > 0;
	r->can_ndp = host->dimm.gflops > 0;
}

static bool resident(const struct ndpi_rules *r, uint32_t e)
{
	return r->layer->on_gpu && r->layer->on_gpu[e];
}

bool ndpi_has(const struct ndpi_rules *r, enum ndp_domain domain)
{
	switch (domain) {
	case NDP_DOMAIN_GPU:
		return r->can_hit;
	case NDP_DOMAIN_CPU:
		return r->can_cpu;
	case NDP_DOMAIN_NDP:
		return r->can_ndp;
	default:
		return false;
	}
}

bool ndpi_can(const struct ndpi_rules *r, uint32_t e, enum ndp_domain domain)
{
	return ndpi_has(r, domain) &&
	       (domain != NDP_DOMAIN_GPU || resident(r, e) || r->can_miss);
}

/* How some blocks of an expert lie. */
struct lie {
	uint32_t blocks;
	uint32_t first;		/* the first DIMM with any */
	bool local;		/* all are there */
	bool even;		/* on all DIMMs, and so on all channels, as many: */
	uint32_t dimms, channels;	/* to how many of them that is added */
};

typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));

/* Adds @ns to each of @n loads, @times times. */
static void add_to_all(double *load, uint32_t n, double ns, uint32_t times)
{
	uint32_t k = 0;

	for (; k + 2 <= n; k += 2) {
		pair sum = *(pair *)(load + k);

		for (uint32_t t = 0; t < times; t++)
			sum += ns;
		*(pair *)(load + k) = sum;
	}
	for (uint32_t t = 0; k < n && t < times; t++)
		load[k] += ns;
}

/* @blocks blocks of DIMM @d are read over its channel. */
static double add_local_read(const struct ndpi_rules *r, uint32_t d, uint32_t blocks,
			     struct ndp_loads *loads)
{
	const double ns = blocks * r->block_read_ns;

	if (r->charges & NDP_CHARGE_CHANNELS)
		loads->channel_ns[d % r->layer->host->nr_channels] += ns;
	if (r->charges & NDP_CHARGE_DIMM_READS)
		loads->dimm_ns[d] += ns;
	return ns;
}

/* @blocks blocks of every DIMM are read, each channel has as many DIMMs. */
static double add_even_read(const struct ndpi_rules *r, uint32_t blocks, const struct lie *lie,
			    struct ndp_loads *loads)
{
	const struct ndp_host *host = r->layer->host;
	const uint32_t on_channel = host->nr_dimms / host->nr_channels * blocks;

	if (r->charges & NDP_CHARGE_CHANNELS)
		add_to_all(loads->channel_ns, lie->channels, on_channel * r->block_read_ns, 1);
	if (r->charges & NDP_CHARGE_DIMM_READS)
		add_to_all(loads->dimm_ns, lie->dimms, blocks * r->block_read_ns, 1);
	return on_channel * r->block_read_ns;
}

/* The host reads @counts blocks of each DIMM; returns the slowest channel's time. */
static double add_read(const struct ndpi_rules *r, const uint16_t *counts,
		       struct ndp_loads *loads)
{
	const struct ndp_host *host = r->layer->host;
	const uint32_t dimms = host->nr_dimms, channels = host->nr_channels;
	uint32_t longest = 0;

	for (uint32_t c = 0; c < channels && c < dimms; c++) {
		uint32_t blocks = 0;

		for (uint32_t d = c; d < dimms; d += channels)
			blocks += counts[d];
		if (r->charges & NDP_CHARGE_CHANNELS)
			loads->channel_ns[c] += blocks * r->block_read_ns;
		if (blocks > longest)
			longest = blocks;
	}
	if (r->charges & NDP_CHARGE_DIMM_READS)
		for (uint32_t d = 0; d < dimms; d++)
			loads->dimm_ns[d] += counts[d] * r->block_read_ns;
	return longest * r->block_read_ns;
}

/* What a command takes of its DIMM: @block_ns is for computing one block. */
static double command_ns(const struct ndpi_rules *r, uint32_t tokens, double block_ns,
			 uint32_t blocks)
{
	return r->layer->host->dimm.overhead_ns +
		(r->charges & NDP_CHARGE_DIMM_READS ? tokens * r->token_host_ns : 0) +
		max(blocks * block_ns, blocks * r->block_dimm_ns + tokens * r->token_dimm_ns);
}

/* A command in each DIMM that holds some of @counts blocks. */
static void add_commands(const struct ndpi_rules *r, uint32_t tokens, const uint16_t *counts,
			 const struct lie *lie, struct ndp_loads *loads)
{
	const struct ndp_host *host = r->layer->host;
	const double block_ns = ndpi_dimm_ns(r, tokens) / r->nr_blocks;
	const double host_ns = tokens * r->token_host_ns;
	double ns = command_ns(r, tokens, block_ns, counts[lie->first]);
	uint32_t last = counts[lie->first], channel = 0;

	if (lie->local) {
		loads->dimm_ns[lie->first] += ns;
		loads->channel_ns[lie->first % host->nr_channels] += host_ns;
		return;
	}
	if (lie->even) {
		add_to_all(loads->dimm_ns, lie->dimms, ns, 1);
		add_to_all(loads->channel_ns, lie->channels, host_ns,
			   host->nr_dimms / host->nr_channels);
		return;
	}
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		if (counts[d]) {
			if (counts[d] != last)
				ns = command_ns(r, tokens, block_ns, counts[d]);
			last = counts[d];
			loads->dimm_ns[d] += ns;
			loads->channel_ns[channel] += host_ns;
		}
		if (++channel == host->nr_channels)
			channel = 0;
	}
}

static bool all_alike(const uint16_t *counts, uint32_t dimms)
{
	const uint64_t alike = counts[0] * 0x0001000100010001ull;
	uint32_t d = 0;

	for (; d + 4 <= dimms; d += 4)
		if (ndpi_four(counts + d) != alike)
			return false;
	for (; d < dimms; d++)
		if (counts[d] != counts[0])
			return false;
	return true;
}

static struct lie how_they_lie(const struct ndp_host *host, const uint16_t *counts)
{
	const uint32_t dimms = host->nr_dimms;
	uint32_t first = 0, sum;

	if (all_alike(counts, dimms) && dimms % host->nr_channels == 0)
		return (struct lie){
			.blocks = counts[0] * dimms, .local = dimms == 1, .even = true,
			.dimms = dimms, .channels = host->nr_channels,
		};
	/* Most other experts are in one DIMM: four at a time are none. */
	while (first + 4 <= dimms && !ndpi_four(counts + first))
		first += 4;
	while (first < dimms && !counts[first])
		first++;
	if (first == dimms)
		return (struct lie){ .blocks = 0 };
	sum = counts[first];
	for (uint32_t d = first + 1; d < dimms; d++) {
		sum += counts[d];
		while (!counts[d] && d + 5 <= dimms && !ndpi_four(counts + d + 1))
			d += 4;
	}
	return (struct lie){ .blocks = sum, .first = first, .local = counts[first] == sum };
}

/* Of a whole expert. */
static double part_of(const struct ndpi_rules *r, uint32_t blocks)
{
	return blocks == r->nr_blocks ? 1 : (double)blocks / r->nr_blocks;
}

static inline void add_lying(const struct ndpi_rules *r, uint32_t tokens, bool in_gpu,
			     enum ndp_domain domain, const uint16_t *counts,
			     const struct lie *lie, struct ndp_loads *loads)
{
	const struct ndp_host *host = r->layer->host;
	const uint32_t blocks = lie->blocks;
	double read_ns = 0;

	if (!blocks || !tokens)
		return;
	if (domain == NDP_DOMAIN_CPU || (domain == NDP_DOMAIN_GPU && !in_gpu))
		read_ns = lie->local ? add_local_read(r, lie->first, blocks, loads) :
			lie->even ? add_even_read(r, counts[0], lie, loads) :
			add_read(r, counts, loads);
	switch (domain) {
	case NDP_DOMAIN_GPU:
		loads->gpu_ns += host->gpu.overhead_ns +
			max(part_of(r, blocks) * ndpi_gpu_ns(r, tokens), blocks * r->block_gpu_ns);
		if (in_gpu)
			break;
		loads->pcie_ns += max(blocks * r->block_pcie_ns, read_ns);
		loads->cpu_ns += blocks * r->block_staging_ns;
		break;
	case NDP_DOMAIN_CPU:
		loads->cpu_ns += r->cpu->overhead_ns +
			max(max(part_of(r, blocks) * ndpi_cpu_ns(r, tokens),
				blocks * r->block_cpu_ns), read_ns);
		break;
	case NDP_DOMAIN_NDP:
		add_commands(r, tokens, counts, lie, loads);
		break;
	default:
		break;
	}
}

static void add_part(const struct ndpi_rules *r, uint32_t tokens, bool in_gpu,
		     enum ndp_domain domain, const uint16_t *counts, struct ndp_loads *loads)
{
	const struct lie lie = how_they_lie(r->layer->host, counts);

	add_lying(r, tokens, in_gpu, domain, counts, &lie, loads);
}

void ndpi_add_part(const struct ndpi_rules *r, uint32_t e, enum ndp_domain domain,
		   const uint16_t *counts, struct ndp_loads *loads)
{
	add_part(r, r->layer->tokens[e], resident(r, e), domain, counts, loads);
}

uint32_t ndpi_add_even(const struct ndpi_rules *r, const uint8_t *domain, uint32_t experts,
		       struct ndp_loads *loads)
{
	const struct ndp_host *host = r->layer->host;
	const uint32_t dimms = host->nr_dimms;
	struct lie lie = { .local = dimms == 1, .even = true, .dimms = 1, .channels = 1 };
	uint32_t e;

	if (dimms % host->nr_channels)
		return 0;
	for (e = 0; e < experts; e++) {
		const uint16_t *counts = r->layer->blocks + (size_t)e * dimms;

		if (domain[e] >= NDP_DOMAINS)
			continue;
		if (!all_alike(counts, dimms))
			break;
		lie.blocks = counts[0] * dimms;
		add_lying(r, r->layer->tokens[e], resident(r, e), domain[e], counts, &lie, loads);
	}
	for (uint32_t c = 1; c < host->nr_channels; c++)
		loads->channel_ns[c] = loads->channel_ns[0];
	for (uint32_t d = 1; d < dimms; d++)
		loads->dimm_ns[d] = loads->dimm_ns[0];
	return e;
}

void ndpi_add_shared(const struct ndpi_rules *r, struct ndp_loads *loads)
{
	const struct ndp_layer *layer = r->layer;

	if (layer->shared)
		add_part(r, layer->shared_tokens, true, layer->shared_domain, layer->shared,
			 loads);
}

double ndp_loads_max(const struct ndp_loads *loads, const struct ndp_host *host)
{
	double longest = max(max(loads->gpu_ns, loads->pcie_ns), loads->cpu_ns);

	for (uint32_t c = 0; c < host->nr_channels; c++)
		longest = max(longest, loads->channel_ns[c]);
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		longest = max(longest, loads->dimm_ns[d]);
	return longest;
}

double ndp_expert_cost(const struct ndp_layer *layer, uint32_t e, enum ndp_domain domain,
		       struct ndp_loads *loads)
{
	struct ndpi_rules rules;

	memset(loads, 0, sizeof(*loads));
	ndpi_rules_init(&rules, layer, &layer->host->cpu);
	if (!ndpi_can(&rules, e, domain))
		return HUGE_VAL;
	ndpi_add_part(&rules, e, domain, layer->blocks + (size_t)e * layer->host->nr_dimms, loads);
	return ndp_loads_max(loads, layer->host);
}
