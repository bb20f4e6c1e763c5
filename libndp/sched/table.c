// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * table.c - the cost table of a layer: every way to compute every expert.
 *
 * The same rules as cost.c in single precision, and fast: what a placement's
 * row of blocks means is worked out once for experts that are placed alike.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* What one row of blocks means for host reads, in units of one block's read. */
struct home {
	const uint16_t *blocks;
	float slowest;		/* blocks on the busiest channel */
	uint32_t total;		/* blocks */
	/* Table rows. */
	ndpi_wide reads;	/* blocks by channel and DIMM, as charged */
	ndpi_wide commands;	/* commands by channel and DIMM */
	ndpi_wide counts;	/* blocks by DIMM */
};

size_t ndpi_table_bytes(uint32_t experts, uint32_t nr_dimms)
{
	const size_t width = ROW_CHANNELS + NDP_MAX_CHANNELS + ndpi_pad4(nr_dimms);

	return experts * (sizeof(uint32_t) + 1 + NDP_DOMAINS * (1 + width) * sizeof(float)) + 64;
}

static void home_init(struct home *h, const struct ndpi_table *t, const uint16_t *blocks)
{
	const struct ndp_host *host = t->rules.layer->host;
	uint32_t channel = 0;
	float *by_channel = h->reads + ROW_CHANNELS;

	h->blocks = blocks;
	h->total = 0;
	memset(h->reads, 0, t->width * sizeof(float));
	memset(h->commands, 0, t->width * sizeof(float));
	memset(h->counts, 0, t->width * sizeof(float));
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		if (blocks[d]) {
			h->total += blocks[d];
			by_channel[channel] += blocks[d];
			h->commands[ROW_CHANNELS + channel]++;
			h->commands[t->dimms_at + d] = 1;
			h->counts[t->dimms_at + d] = blocks[d];
			if (t->rules.charges & NDP_CHARGE_DIMM_READS)
				h->reads[t->dimms_at + d] = blocks[d];
		}
		if (++channel == host->nr_channels)
			channel = 0;
	}
	h->slowest = ndpi_largest(by_channel, ndpi_pad4(host->nr_channels));
	if (!(t->rules.charges & NDP_CHARGE_CHANNELS))
		memset(by_channel, 0, host->nr_channels * sizeof(float));
}

/* to = from * factor */
static void scale(float *to, const float *from, float factor, uint32_t width)
{
	for (uint32_t k = 0; k < width; k += 4)
		*(ndpi_vec *)(to + k) = *(const ndpi_vec *)(from + k) * factor;
}

static void gpu_row(const struct ndpi_table *t, uint32_t e, const struct home *h, float *row)
{
	const struct ndpi_rules *r = &t->rules;
	const struct ndp_rate *gpu = &r->layer->host->gpu;
	const float compute = ndpi_compute_ns(gpu, r->flops, r->layer->tokens[e]) *
			      h->total / r->nr_blocks;
	const float read = h->total * r->block_gpu_ns;
	const float pcie = h->total * r->block_pcie_ns, channel = h->slowest * r->block_read_ns;

	if (r->layer->on_gpu && r->layer->on_gpu[e]) {
		memset(row, 0, t->width * sizeof(float));
	} else {
		scale(row, h->reads, r->block_read_ns, t->width);
		row[ROW_PCIE] = pcie > channel ? pcie : channel;
		row[ROW_CPU] = h->total * r->block_staging_ns;
	}
	row[ROW_GPU] = (float)gpu->overhead_ns + (compute > read ? compute : read);
}

static void cpu_row(const struct ndpi_table *t, uint32_t e, const struct home *h, float *row)
{
	const struct ndpi_rules *r = &t->rules;
	float longest = ndpi_compute_ns(r->cpu, r->flops, r->layer->tokens[e]) *
			h->total / r->nr_blocks;
	const float own = h->total * r->block_cpu_ns, channel = h->slowest * r->block_read_ns;

	longest = longest > own ? longest : own;
	longest = longest > channel ? longest : channel;
	scale(row, h->reads, r->block_read_ns, t->width);
	row[ROW_CPU] = (float)r->cpu->overhead_ns + longest;
}

static void ndp_row(const struct ndpi_table *t, uint32_t e, const struct home *h, float *row)
{
	const struct ndpi_rules *r = &t->rules;
	const struct ndp_rate *dimm = &r->layer->host->dimm;
	const uint32_t tokens = r->layer->tokens[e];
	const float compute = ndpi_compute_ns(dimm, r->flops, tokens) / r->nr_blocks;
	const float memory = r->block_dimm_ns;
	const float inside = tokens * r->token_dimm_ns, host = tokens * r->token_host_ns;
	const float fixed = (float)dimm->overhead_ns +
			    (r->charges & NDP_CHARGE_DIMM_READS ? host : 0);

	scale(row, h->commands, host, t->dimms_at);
	for (uint32_t k = t->dimms_at; k < t->width; k += 4) {
		const ndpi_vec n = *(const ndpi_vec *)(h->counts + k);
		const ndpi_vec commands = *(const ndpi_vec *)(h->commands + k);
		const ndpi_vec a = n * compute, b = n * memory + commands * inside;

		*(ndpi_vec *)(row + k) = commands * fixed + ndpi_max(a, b);
	}
}

static void (*const fill[NDP_DOMAINS])(const struct ndpi_table *, uint32_t, const struct home *,
				       float *) = {
	[NDP_DOMAIN_GPU] = gpu_row,
	[NDP_DOMAIN_CPU] = cpu_row,
	[NDP_DOMAIN_NDP] = ndp_row,
};

void ndpi_part_row(const struct ndpi_table *t, uint32_t i, enum ndp_domain domain,
		   const uint16_t *counts, float *row)
{
	struct home home;

	home_init(&home, t, counts);
	if (home.total)
		fill[domain](t, t->expert[i], &home, row);
	else
		memset(row, 0, t->width * sizeof(float));
}

int ndpi_table_build(struct ndpi_table *t, struct ndpi_arena *arena, const struct ndp_layer *layer,
		     const struct ndp_rate *cpu, uint32_t domains)
{
	const uint32_t dimms = layer->host->nr_dimms;
	struct home home = { .blocks = NULL };
	int r = 0;

	t->experts = layer->shape->experts;
	t->nr = 0;
	t->alike = NULL;
	t->dimms_at = ROW_CHANNELS + ndpi_pad4(layer->host->nr_channels);
	t->width = t->dimms_at + ndpi_pad4(dimms);
	t->expert = ndpi_take(arena, t->experts * sizeof(*t->expert));
	t->can = ndpi_take(arena, t->experts);
	t->longest = ndpi_take(arena, (size_t)t->experts * NDP_DOMAINS * sizeof(float));
	t->rows = ndpi_take(arena, (size_t)t->experts * NDP_DOMAINS * t->width * sizeof(float));
	ndpi_rules_init(&t->rules, layer, cpu);
	for (uint32_t e = 0; e < t->experts; e++) {
		const uint16_t *blocks = layer->blocks + (size_t)e * dimms;
		const uint32_t i = t->nr;

		if (!layer->tokens[e])
			continue;
		t->expert[i] = e;
		t->can[i] = 0;
		t->nr++;
		if (!home.blocks || memcmp(home.blocks, blocks, dimms * sizeof(*blocks))) {
			t->alike = home.blocks ? NULL : blocks;
			home_init(&home, t, blocks);
		}
		for (uint32_t domain = 0; domain < NDP_DOMAINS; domain++) {
			float *row = ndpi_row(t, i, domain);

			t->longest[i * NDP_DOMAINS + domain] = HUGE_VALF;
			if (!(domains & 1u << domain) || !ndpi_can(&t->rules, e, domain))
				continue;
			t->can[i] |= 1u << domain;
			fill[domain](t, e, &home, row);
			t->longest[i * NDP_DOMAINS + domain] = ndpi_largest(row, t->width);
		}
		if (!t->can[i])
			r = -ENODEV;
	}
	return r;
}

float ndpi_sum_rows(const struct ndpi_table *t, const uint8_t *choice, float *sum)
{
	memset(sum, 0, t->width * sizeof(float));
	for (uint32_t i = 0; i < t->nr; i++) {
		const float *row = ndpi_row(t, i, choice[i]);

		for (uint32_t k = 0; k < t->width; k += 4)
			*(ndpi_vec *)(sum + k) += *(const ndpi_vec *)(row + k);
	}
	return ndpi_largest(sum, t->width);
}
