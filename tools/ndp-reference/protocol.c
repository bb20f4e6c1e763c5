// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * protocol.c - asking ndp-reference: the asker's side.
 */
#include "protocol.h"

#include <errno.h>

static void write_rate(FILE *f, const char *name, const struct ndp_rate *rate)
{
	fprintf(f, "rate %s %.17g %.17g %.17g %u", name, rate->gflops, rate->gbps,
		rate->overhead_ns, rate->nr_points);
	for (uint32_t i = 0; i < rate->nr_points; i++)
		fprintf(f, " %u %.17g", rate->tokens[i], rate->point_gflops[i]);
	fputc('\n', f);
}

int reference_write(FILE *f, const struct ndp_layer *layer, double known_ns, int limit_ms)
{
	const struct ndp_host *host = layer->host;
	const struct ndp_shape *shape = layer->shape;

	write_rate(f, "gpu", &host->gpu);
	write_rate(f, "cpu", &host->cpu);
	write_rate(f, "dimm", &host->dimm);
	fprintf(f, "host %.17g %.17g %.17g %u %u\n", host->pcie_gbps, host->channel_gbps,
		host->staging_gbps, host->nr_channels, host->nr_dimms);
	fprintf(f, "shape %u %u %u %u %llu\n", shape->experts, shape->top_k, shape->hidden,
		shape->intermediate, (unsigned long long)shape->expert_bytes);
	fprintf(f, "charges %u\n", layer->charges);
	for (uint32_t e = 0; e < shape->experts; e++) {
		if (!layer->tokens[e])
			continue;
		fprintf(f, "expert %u %u %d", e, layer->tokens[e],
			layer->on_gpu && layer->on_gpu[e]);
		for (uint32_t d = 0; d < host->nr_dimms; d++)
			fprintf(f, " %u", layer->blocks[(size_t)e * host->nr_dimms + d]);
		fputc('\n', f);
	}
	fprintf(f, "solve %.17g %d\n", known_ns, limit_ms);
	return fflush(f) || ferror(f) ? -EIO : 0;
}

int reference_read(FILE *f, struct reference_answer *a)
{
	char line[256];
	int n;

	*a = (struct reference_answer) { 0 };
	if (!fgets(line, sizeof(line), f))
		return -EIO;
	n = sscanf(line, "fluid %lf whole %lf %lf %d", &a->fluid_ns, &a->whole_ns,
		   &a->whole_bound_ns, &a->proven);
	return n == 1 || n == 4 ? 0 : -EIO;
}
