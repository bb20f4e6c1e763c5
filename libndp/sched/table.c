// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * table.c - the cost table of a layer: every way to compute every expert.
 *
 * The same rules as cost.c in single precision, and fast: what a placement means
 * for host reads is worked out once for experts that are placed alike, and an
 * expert in one DIMM needs no vectors at all.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* What some blocks of an expert mean for host reads and commands. */
struct home {
	const uint16_t *blocks;
	uint32_t total;		/* blocks */
	float slowest;		/* blocks on the busiest channel */
	ndpi_wide reads;	/* blocks, as charged */
	ndpi_wide commands;	/* one in each DIMM; on a channel those it carries x and y for */
	ndpi_wide counts;	/* blocks, of DIMMs only */
};

size_t ndpi_table_bytes(uint32_t experts, uint32_t nr_dimms)
{
	const size_t width = ndpi_pad4(FULL_CHANNELS + NDP_MAX_CHANNELS + nr_dimms);

	return experts * (sizeof(uint32_t) + 3 +
			  (NDP_DOMAINS + WAYS_MAX * width) * sizeof(float) +
			  MADE_WAYS * sizeof(struct ndpi_cut)) + 128;
}

static float larger(float a, float b)
{
	return a > b ? a : b;
}

/* In full order. */
static void home_init(struct home *h, const struct ndpi_table *t, const uint16_t *blocks)
{
	const struct ndp_host *host = t->rules.layer->host;
	const uint32_t channels = host->nr_channels, dimms_at = FULL_CHANNELS + channels;
	float *by_channel = h->reads + FULL_CHANNELS;
	uint32_t channel = 0;

	h->blocks = blocks;
	h->total = 0;
	h->slowest = 0;
	memset(h->reads, 0, t->full_width * sizeof(float));
	memset(h->commands, 0, t->full_width * sizeof(float));
	memset(h->counts, 0, t->full_width * sizeof(float));
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		if (blocks[d]) {
			h->total += blocks[d];
			by_channel[channel] += blocks[d];
			h->commands[FULL_CHANNELS + channel]++;
			h->commands[dimms_at + d] = 1;
			h->counts[dimms_at + d] = blocks[d];
			if (t->rules.charges & NDP_CHARGE_DIMM_READS)
				h->reads[dimms_at + d] = blocks[d];
		}
		if (++channel == channels)
			channel = 0;
	}
	for (uint32_t c = 0; c < channels; c++)
		h->slowest = larger(h->slowest, by_channel[c]);
	if (!(t->rules.charges & NDP_CHARGE_CHANNELS))
		memset(by_channel, 0, channels * sizeof(float));
}

/* As many blocks on every DIMM, and on every channel; and so the shared expert's load. */
static bool lies_evenly(const struct home *h, const struct ndpi_table *t, const float *shared)
{
	const struct ndp_host *host = t->rules.layer->host;
	const float *dimm = shared + FULL_CHANNELS + host->nr_channels;

	for (uint32_t d = 1; d < host->nr_dimms; d++)
		if (h->blocks[d] != h->blocks[0] || dimm[d] != dimm[0])
			return false;
	return host->nr_dimms % host->nr_channels == 0;
}

/* From full order to rows. */
static void home_to_rows(struct home *h, const struct ndpi_table *t)
{
	uint32_t row = 0;

	for (uint32_t k = 0; k < t->full; k++) {
		if (t->row_of[k] < row)
			continue;
		h->reads[row] = h->reads[k];
		h->commands[row] = h->commands[k];
		h->counts[row++] = h->counts[k];
	}
	for (; row < t->width; row++)
		h->reads[row] = h->commands[row] = h->counts[row] = 0;
}

/* ---- what a home's blocks occupy -------------------------------------------------- */

static void scale(float *to, const float *from, float factor, uint32_t width)
{
	for (uint32_t k = 0; k < width; k += 4)
		*(ndpi_vec *)(to + k) = *(const ndpi_vec *)(from + k) * factor;
}

static bool resident(const struct ndpi_rules *r, uint32_t e)
{
	return r->layer->on_gpu && r->layer->on_gpu[e];
}

/* Of the GPU, PCIe and CPU; a busiest channel that delivers @slowest of @blocks. */
static float gpu_time(const struct ndpi_rules *r, uint32_t tokens, float blocks)
{
	return (float)r->layer->host->gpu.overhead_ns +
	       larger((float)ndpi_gpu_ns(r, tokens) * blocks / r->nr_blocks,
		      blocks * (float)r->block_gpu_ns);
}

static float pcie_time(const struct ndpi_rules *r, float blocks, float slowest)
{
	return larger(blocks * (float)r->block_pcie_ns, slowest * (float)r->block_read_ns);
}

static float cpu_time(const struct ndpi_rules *r, uint32_t tokens, float blocks, float slowest)
{
	const float own = larger((float)ndpi_cpu_ns(r, tokens) * blocks / r->nr_blocks,
				 blocks * (float)r->block_cpu_ns);

	return (float)r->cpu->overhead_ns + larger(own, slowest * (float)r->block_read_ns);
}

static void gpu_row(const struct ndpi_rules *r, uint32_t e, const struct home *h, float *row,
		    uint32_t width)
{
	ndpi_vec first = { 0 };

	if (resident(r, e)) {
		memset(row + 4, 0, (width - 4) * sizeof(float));
	} else {
		scale(row + 4, h->reads + 4, r->block_read_ns, width - 4);
		first = *(const ndpi_vec *)h->reads * (float)r->block_read_ns;
		first[ROW_PCIE] = pcie_time(r, h->total, h->slowest);
		first[ROW_CPU] = h->total * r->block_staging_ns;
	}
	first[ROW_GPU] = gpu_time(r, r->layer->tokens[e], h->total);
	*(ndpi_vec *)row = first;
}

static void cpu_row(const struct ndpi_rules *r, uint32_t e, const struct home *h, float *row,
		    uint32_t width)
{
	ndpi_vec first = *(const ndpi_vec *)h->reads * (float)r->block_read_ns;

	first[ROW_CPU] = cpu_time(r, r->layer->tokens[e], h->total, h->slowest);
	*(ndpi_vec *)row = first;
	scale(row + 4, h->reads + 4, r->block_read_ns, width - 4);
}

static void ndp_row(const struct ndpi_rules *r, uint32_t e, const struct home *h, float *row,
		    uint32_t width)
{
	const uint32_t tokens = r->layer->tokens[e];
	const float compute = ndpi_dimm_ns(r, tokens) / r->nr_blocks;
	const float memory = r->block_dimm_ns;
	const float inside = tokens * r->token_dimm_ns, host = tokens * r->token_host_ns;
	const float fixed = (float)r->layer->host->dimm.overhead_ns +
			    (r->charges & NDP_CHARGE_DIMM_READS ? host : 0);

	for (uint32_t k = 0; k < width; k++) {
		const float n = h->counts[k], commands = h->commands[k];

		row[k] = n > 0 ? fixed + larger(n * compute, n * memory + inside) : commands * host;
	}
}

static void fill_row(const struct ndpi_rules *r, uint32_t e, enum ndp_domain domain,
		     const struct home *h, float *row, uint32_t width)
{
	if (domain == NDP_DOMAIN_GPU)
		gpu_row(r, e, h, row, width);
	else if (domain == NDP_DOMAIN_CPU)
		cpu_row(r, e, h, row, width);
	else
		ndp_row(r, e, h, row, width);
}

/* The five floats of @blocks blocks that are in one DIMM. */
static void fill_sparse(const struct ndpi_rules *r, uint32_t e, enum ndp_domain domain,
			float blocks, float *v)
{
	const uint32_t tokens = r->layer->tokens[e];
	const float read = blocks * (float)r->block_read_ns;
	float channel = r->charges & NDP_CHARGE_CHANNELS ? read : 0;
	float dimm = r->charges & NDP_CHARGE_DIMM_READS ? read : 0;
	float gpu = 0, pcie = 0, cpu = 0;

	if (domain == NDP_DOMAIN_CPU) {
		cpu = cpu_time(r, tokens, blocks, blocks);
	} else if (domain == NDP_DOMAIN_NDP) {
		const float host = tokens * (float)r->token_host_ns;

		channel = host;
		dimm = (float)r->layer->host->dimm.overhead_ns +
		       (r->charges & NDP_CHARGE_DIMM_READS ? host : 0) +
		       larger((float)ndpi_dimm_ns(r, tokens) * blocks / r->nr_blocks,
			      blocks * (float)r->block_dimm_ns + tokens * (float)r->token_dimm_ns);
	} else {
		gpu = gpu_time(r, tokens, blocks);
		if (resident(r, e)) {
			channel = dimm = 0;
		} else {
			pcie = pcie_time(r, blocks, blocks);
			cpu = blocks * (float)r->block_staging_ns;
		}
	}
	v[ROW_GPU] = gpu;
	v[ROW_PCIE] = pcie;
	v[ROW_CPU] = cpu;
	v[SPARSE_CHANNEL] = channel;
	v[SPARSE_DIMM] = dimm;
	v[5] = v[6] = v[7] = 0;
}

void ndpi_add_part_row(const struct ndpi_table *t, uint32_t i, enum ndp_domain domain,
		       const uint16_t *counts, float sign, float *load)
{
	struct home home;
	ndpi_wide row;

	if (t->sparse) {
		const uint32_t d = t->dimm_row[i];
		const uint16_t n = counts[d - FULL_CHANNELS - t->rules.layer->host->nr_channels];
		float v[SPARSE_STRIDE];

		if (!n)
			return;
		fill_sparse(&t->rules, t->expert[i], domain, n, v);
		for (uint32_t k = 0; k <= ROW_CPU; k++)
			load[k] += sign * v[k];
		load[t->channel_row[i]] += sign * v[SPARSE_CHANNEL];
		load[d] += sign * v[SPARSE_DIMM];
		return;
	}
	home_init(&home, t, counts);
	if (!home.total)
		return;
	fill_row(&t->rules, t->expert[i], domain, &home, row, t->full_width);
	for (uint32_t k = 0; k < t->full_width; k += 4)
		*(ndpi_vec *)(load + k) += *(const ndpi_vec *)(row + k) * sign;
}

/* ---- the table ---------------------------------------------------------------------- */

/* Experts with tokens, and how they lie. */
static void list_experts(struct ndpi_table *t, bool *alike)
{
	const struct ndp_layer *layer = t->rules.layer;
	const uint32_t dimms = layer->host->nr_dimms, channels = layer->host->nr_channels;
	const uint16_t *first = NULL;

	t->sparse = true;
	*alike = true;
	for (uint32_t e = 0; e < t->experts; e++) {
		const uint16_t *blocks = layer->blocks + (size_t)e * dimms;
		uint32_t d = 0;

		if (!layer->tokens[e])
			continue;
		t->expert[t->nr] = e;
		if (!first)
			first = blocks;
		else if (*alike && memcmp(first, blocks, dimms * sizeof(*blocks)))
			*alike = false;
		if (t->sparse) {
			while (d + 4 <= dimms && !ndpi_four(blocks + d))
				d += 4;
			while (!blocks[d])
				d++;
			t->sparse = blocks[d] == t->rules.nr_blocks;
			t->dimm_row[t->nr] = FULL_CHANNELS + channels + d;
			t->channel_row[t->nr] = FULL_CHANNELS + d % channels;
		}
		t->nr++;
	}
	*alike = *alike && !t->sparse;
}

/* Blocks on the channel that resource @k, a channel or a DIMM, is or sits in. */
static uint32_t on_channel(const struct ndpi_table *t, const struct home *home, uint32_t k)
{
	const struct ndp_host *host = t->rules.layer->host;
	const uint32_t dimms_at = FULL_CHANNELS + host->nr_channels;
	uint32_t sum = 0;

	for (uint32_t d = (k < dimms_at ? k - FULL_CHANNELS : k - dimms_at) % host->nr_channels;
	     d < host->nr_dimms; d += host->nr_channels)
		sum += home->blocks[d];
	return sum;
}

/* What the shared expert occupies, in full order. */
static void load_shared(const struct ndpi_table *t, float *full)
{
	const struct ndp_host *host = t->rules.layer->host;
	struct ndp_loads loads = { 0 };

	memset(full, 0, sizeof(ndpi_wide));
	if (!t->rules.layer->shared)
		return;
	ndpi_add_shared(&t->rules, &loads);
	full[ROW_GPU] = loads.gpu_ns;
	full[ROW_PCIE] = loads.pcie_ns;
	full[ROW_CPU] = loads.cpu_ns;
	for (uint32_t c = 0; c < host->nr_channels; c++)
		full[FULL_CHANNELS + c] = loads.channel_ns[c];
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		full[FULL_CHANNELS + host->nr_channels + d] = loads.dimm_ns[d];
}

/*
 * Rows: one for each resource, or for all that the only home of a layer, and the shared
 * expert, load alike.
 */
static void choose_rows(struct ndpi_table *t, const struct home *home, const float *shared)
{
	const uint32_t dimms_at = FULL_CHANNELS + t->rules.layer->host->nr_channels;
	uint8_t from[ROW_MAX];

	t->rows = 0;
	for (uint32_t k = 0; k < t->full; k++) {
		uint32_t r = t->rows;

		for (uint32_t q = k < dimms_at ? ROW_CPU + 1 : t->row_of[dimms_at - 1] + 1;
		     home && k > ROW_CPU && q < t->rows; q++)
			if ((k < dimms_at) == (from[q] < dimms_at) &&
			    home->reads[from[q]] == home->reads[k] &&
			    home->commands[from[q]] == home->commands[k] &&
			    home->counts[from[q]] == home->counts[k] &&
			    shared[from[q]] == shared[k] &&
			    (t->ways == NDP_DOMAINS || on_channel(t, home, from[q]) ==
						       on_channel(t, home, k)))
				r = q;
		t->row_of[k] = r;
		if (r < t->rows) {
			t->members[r]++;
			continue;
		}
		from[r] = k;
		t->members[r] = 1;
		t->rows++;
	}
	t->width = ndpi_pad4(t->rows);
}

/* What does not depend on the expert, of whole ones in one DIMM. */
struct local {
	bool gpu, miss, cpu, ndp;
	float gpu_memory, pcie, staging, cpu_memory, channel, dimm, ndp_memory, ndp_fixed;
	float token_host, token_dimm_host, token_dimm;
};

static void local_init(struct local *l, const struct ndpi_rules *r, uint32_t domains)
{
	const float read = (float)r->block_read_ns * r->nr_blocks;

	l->gpu = domains & 1u << NDP_DOMAIN_GPU && r->can_hit;
	l->miss = domains & 1u << NDP_DOMAIN_GPU && r->can_miss;
	l->cpu = domains & 1u << NDP_DOMAIN_CPU && r->can_cpu;
	l->ndp = domains & 1u << NDP_DOMAIN_NDP && r->can_ndp;
	l->gpu_memory = r->nr_blocks * (float)r->block_gpu_ns;
	l->pcie = pcie_time(r, r->nr_blocks, r->nr_blocks);
	l->staging = r->nr_blocks * (float)r->block_staging_ns;
	l->cpu_memory = larger(r->nr_blocks * (float)r->block_cpu_ns, read);
	l->channel = r->charges & NDP_CHARGE_CHANNELS ? read : 0;
	l->dimm = r->charges & NDP_CHARGE_DIMM_READS ? read : 0;
	l->ndp_memory = r->nr_blocks * (float)r->block_dimm_ns;
	l->ndp_fixed = r->layer->host->dimm.overhead_ns;
	l->token_host = r->token_host_ns;
	l->token_dimm_host = r->charges & NDP_CHARGE_DIMM_READS ? l->token_host : 0;
	l->token_dimm = r->token_dimm_ns;
}

static void way(struct ndpi_table *t, uint32_t i, uint32_t domain, ndpi_vec four, float dimm)
{
	float *v = ndpi_values(t, i, domain);
	const float most = ndpi_largest_of(four);

	*(ndpi_vec *)v = four;
	*(ndpi_vec *)(v + SPARSE_DIMM) = (ndpi_vec) { dimm };
	t->longest[i * NDP_DOMAINS + domain] = most > dimm ? most : dimm;
	t->can[i] |= 1u << domain;
}

static void fill_local(struct ndpi_table *t, uint32_t i, const struct local *l)
{
	const struct ndpi_rules *r = &t->rules;
	const uint32_t e = t->expert[i], tokens = r->layer->tokens[e];
	float *longest = t->longest + i * NDP_DOMAINS;

	longest[0] = longest[1] = longest[2] = HUGE_VALF;
	t->can[i] = 0;
	if (!(l->gpu && l->miss && l->cpu && l->ndp))
		memset(ndpi_values(t, i, 0), 0, NDP_DOMAINS * SPARSE_STRIDE * sizeof(float));
	if (resident(r, e) ? l->gpu : l->miss) {
		const float gpu = (float)r->layer->host->gpu.overhead_ns +
				  larger(ndpi_gpu_ns(r, tokens), l->gpu_memory);

		if (resident(r, e))
			way(t, i, NDP_DOMAIN_GPU, (ndpi_vec) { gpu }, 0);
		else
			way(t, i, NDP_DOMAIN_GPU,
			    (ndpi_vec) { gpu, l->pcie, l->staging, l->channel }, l->dimm);
	}
	if (l->cpu)
		way(t, i, NDP_DOMAIN_CPU,
		    (ndpi_vec) { 0, 0, (float)r->cpu->overhead_ns +
				 larger(ndpi_cpu_ns(r, tokens), l->cpu_memory), l->channel },
		    l->dimm);
	if (l->ndp)
		way(t, i, NDP_DOMAIN_NDP, (ndpi_vec) { 0, 0, 0, tokens * l->token_host },
		    l->ndp_fixed + tokens * l->token_dimm_host +
		    larger(ndpi_dimm_ns(r, tokens), l->ndp_memory + tokens * l->token_dimm));
}

static void fill_expert(struct ndpi_table *t, uint32_t i, uint32_t domains, const struct home *home)
{
	const uint32_t e = t->expert[i];

	t->can[i] = 0;
	for (uint32_t domain = 0; domain < NDP_DOMAINS; domain++) {
		float *v = ndpi_values(t, i, domain);

		t->longest[i * NDP_DOMAINS + domain] = HUGE_VALF;
		if (!(domains & 1u << domain) || !ndpi_can(&t->rules, e, domain)) {
			memset(v, 0, t->stride * sizeof(float));
			continue;
		}
		t->can[i] |= 1u << domain;
		fill_row(&t->rules, e, domain, home, v, t->width);
		t->longest[i * NDP_DOMAINS + domain] = ndpi_largest(v, t->stride);
	}
}

int ndpi_table_build(struct ndpi_table *t, struct ndpi_arena *arena, const struct ndp_layer *layer,
		     const struct ndp_rate *cpu, uint32_t domains, bool divide)
{
	const struct ndp_host *host = layer->host;
	struct home home = { .blocks = NULL };
	struct local local;
	ndpi_wide shared;
	bool alike;
	int r = 0;

	ndpi_rules_init(&t->rules, layer, cpu);
	if (layer->shared && !ndpi_has(&t->rules, layer->shared_domain))
		return -ENODEV;

	t->experts = layer->shape->experts;
	t->nr = 0;
	t->full = FULL_CHANNELS + host->nr_channels + host->nr_dimms;
	t->full_width = ndpi_pad4(t->full);
	t->expert = ndpi_take(arena, t->experts * sizeof(*t->expert));
	t->can = ndpi_take(arena, t->experts);
	t->channel_row = ndpi_take(arena, t->experts);
	t->dimm_row = ndpi_take(arena, t->experts);
	t->longest = ndpi_take(arena, (size_t)t->experts * NDP_DOMAINS * sizeof(float));
	list_experts(t, &alike);
	if (t->nr && !t->sparse)
		home_init(&home, t, layer->blocks + (size_t)t->expert[0] * host->nr_dimms);
	load_shared(t, shared);
	t->ways = divide && !t->sparse && !(alike && lies_evenly(&home, t, shared)) ?
		WAYS_MAX : NDP_DOMAINS;
	choose_rows(t, alike && t->nr ? &home : NULL, shared);
	ndpi_to_rows(t, shared, t->shared);
	if (alike && t->nr)
		home_to_rows(&home, t);
	t->stride = t->sparse ? SPARSE_STRIDE : t->width;
	t->values = ndpi_take(arena, (size_t)t->experts * t->ways * t->stride * sizeof(float));
	t->made = t->ways == NDP_DOMAINS ? NULL :
		ndpi_take(arena, (size_t)t->experts * MADE_WAYS * sizeof(*t->made));
	local_init(&local, &t->rules, domains);
	for (uint32_t i = 0; i < t->nr; i++) {
		const uint16_t *blocks = layer->blocks + (size_t)t->expert[i] * host->nr_dimms;

		if (!t->sparse && !alike &&
		    memcmp(home.blocks, blocks, host->nr_dimms * sizeof(*blocks)))
			home_init(&home, t, blocks);
		if (t->sparse)
			fill_local(t, i, &local);
		else
			fill_expert(t, i, domains, &home);
		if (!t->can[i])
			r = -ENODEV;
	}
	return r;
}

float ndpi_sum(const struct ndpi_table *t, const uint8_t *choice, float *load)
{
	memcpy(load, t->shared, t->width * sizeof(float));
	for (uint32_t i = 0; i < t->nr; i++)
		ndpi_add(t, load, i, choice[i], 1);
	return ndpi_largest(load, t->width);
}

void ndpi_to_rows(const struct ndpi_table *t, const float *full, float *row)
{
	memset(row, 0, t->width * sizeof(float));
	for (uint32_t k = 0; k < t->full; k++)
		row[t->row_of[k]] += full[k] / t->members[t->row_of[k]];
}

void ndpi_price_to_full(const struct ndpi_table *t, const float *row, float *full)
{
	memset(full, 0, t->full_width * sizeof(float));
	for (uint32_t k = 0; k < t->full; k++)
		full[k] = row[t->row_of[k]] / t->members[t->row_of[k]];
}
