// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * layer.c - is a layer one that the scheduler can work on?
 *
 * Everything that could make a later function divide by zero, overflow or
 * leave its arrays is refused here, with a sentence that names the field.
 */
#include "impl.h"
#include "refuse.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

int ndpi_refuse(struct ndp_error *err, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return -EINVAL;
	err->code = -EINVAL;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* Finite and not negative: what a rate, a size or a time may be. */
static bool sane(double v)
{
	return isfinite(v) && v >= 0;
}

static int check_rate(const struct ndp_rate *rate, const char *name, struct ndp_error *err)
{
	if (!sane(rate->gflops) || !sane(rate->gbps) || !sane(rate->overhead_ns))
		return ndpi_refuse(err, "host.%s: gflops %g, gbps %g and overhead_ns %g must be "
				   "finite and not negative", name, rate->gflops, rate->gbps,
			      rate->overhead_ns);
	if (rate->nr_points > NDP_MAX_RATE_POINTS)
		return ndpi_refuse(err, "host.%s.nr_points: %u, at most %u", name, rate->nr_points,
			      NDP_MAX_RATE_POINTS);
	for (uint32_t i = 0; i < rate->nr_points; i++) {
		if (i && rate->tokens[i] <= rate->tokens[i - 1])
			return ndpi_refuse(err, "host.%s.tokens[%u]: %u does not follow %u, they "
					   "must rise", name, i, rate->tokens[i],
					   rate->tokens[i - 1]);
		if (!sane(rate->point_gflops[i]) || rate->point_gflops[i] == 0)
			return ndpi_refuse(err, "host.%s.point_gflops[%u]: %g, must be above 0",
					   name, i,
				      rate->point_gflops[i]);
	}
	return 0;
}

static int check_host(const struct ndp_host *host, struct ndp_error *err)
{
	int r;

	if (host->nr_dimms < 1 || host->nr_dimms > NDP_MAX_DIMMS)
		return ndpi_refuse(err, "host.nr_dimms: %u, must be 1 to %d", host->nr_dimms,
			      NDP_MAX_DIMMS);
	if (host->nr_channels < 1 || host->nr_channels > NDP_MAX_CHANNELS)
		return ndpi_refuse(err, "host.nr_channels: %u, must be 1 to %d", host->nr_channels,
			      NDP_MAX_CHANNELS);
	if (!sane(host->channel_gbps) || host->channel_gbps == 0)
		return ndpi_refuse(err, "host.channel_gbps: %g, must be above 0",
				   host->channel_gbps);
	if (!sane(host->pcie_gbps))
		return ndpi_refuse(err, "host.pcie_gbps: %g, must be finite and not negative",
			      host->pcie_gbps);
	if (!sane(host->staging_gbps))
		return ndpi_refuse(err, "host.staging_gbps: %g, must be finite and not negative",
			      host->staging_gbps);
	if (!sane(host->link_gbps) || !sane(host->link_latency_ns))
		return ndpi_refuse(err, "host.link_gbps: %g and link_latency_ns: %g must be "
				   "finite and not negative", host->link_gbps,
				   host->link_latency_ns);
	r = check_rate(&host->gpu, "gpu", err);
	if (r == 0)
		r = check_rate(&host->cpu, "cpu", err);
	if (r == 0)
		r = check_rate(&host->cpu_plain, "cpu_plain", err);
	if (r == 0)
		r = check_rate(&host->dimm, "dimm", err);
	return r;
}

static int check_shape(const struct ndp_shape *shape, struct ndp_error *err)
{
	if (shape->experts < 1 || shape->experts > NDP_MAX_EXPERTS)
		return ndpi_refuse(err, "shape.experts: %u, must be 1 to %d", shape->experts,
			      NDP_MAX_EXPERTS);
	if (shape->hidden < 1)
		return ndpi_refuse(err, "shape.hidden: 0, must be above 0");
	if (shape->intermediate < 1 || shape->intermediate > UINT16_MAX * 32u)
		return ndpi_refuse(err, "shape.intermediate: %u, must be 1 to %u (65535 blocks of "
				   "32)",
			      shape->intermediate, UINT16_MAX * 32u);
	if (shape->expert_bytes < 1)
		return ndpi_refuse(err, "shape.expert_bytes: 0, must be above 0");
	return 0;
}

static int check_shared(const struct ndp_layer *layer, struct ndp_error *err)
{
	const struct ndp_host *host = layer->host;
	const struct ndp_rate *rate[NDP_DOMAINS] = { &host->gpu, &host->cpu, &host->dimm };
	uint32_t sum = 0;

	if (layer->shared_domain >= NDP_DOMAINS || !(rate[layer->shared_domain]->gflops > 0))
		return ndpi_refuse(err, "layer.shared_domain: %u, which the host lacks",
				   layer->shared_domain);
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		sum += layer->shared[d];
	if (!sum)
		return ndpi_refuse(err, "layer.shared: no blocks, an expert has some");
	return 0;
}

int ndp_layer_check(const struct ndp_layer *layer, struct ndp_error *err)
{
	uint32_t blocks, dimms;
	int r;

	if (!layer->host || !layer->shape || !layer->tokens || !layer->blocks)
		return ndpi_refuse(err, "layer: host, shape, tokens and blocks must be given");
	if (layer->charges & ~(uint32_t)NDP_CHARGES_ALL)
		return ndpi_refuse(err, "layer.charges: unknown bits %#x",
			      layer->charges & ~(uint32_t)NDP_CHARGES_ALL);
	r = check_host(layer->host, err);
	if (r < 0)
		return r;
	r = check_shape(layer->shape, err);
	if (r < 0)
		return r;
	blocks = ndp_shape_blocks(layer->shape);
	dimms = layer->host->nr_dimms;
	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		uint32_t sum = 0;

		for (uint32_t d = 0; d < dimms; d++)
			sum += layer->blocks[(size_t)e * dimms + d];
		if (sum != blocks)
			return ndpi_refuse(err, "layer.blocks: the row of expert %u sums to %u, an "
				      "expert has %u blocks", e, sum, blocks);
	}
	return layer->shared ? check_shared(layer, err) : 0;
}

int ndp_layer_place(uint16_t *row, uint32_t nr_dimms, const struct ndp_placement *p)
{
	uint32_t sum[NDP_MAX_DIMMS] = {0};

	if (nr_dimms > NDP_MAX_DIMMS || p->nr_ranges > NDP_MAX_RANGES)
		return -EINVAL;
	for (uint32_t i = 0; i < p->nr_ranges; i++) {
		const struct ndp_range *range = &p->ranges[i];

		if (range->dimm >= nr_dimms)
			return -EINVAL;
		sum[range->dimm] += range->nr_blocks;
		if (sum[range->dimm] > UINT16_MAX)
			return -EINVAL;
	}
	for (uint32_t d = 0; d < nr_dimms; d++)
		row[d] = sum[d];
	return 0;
}
