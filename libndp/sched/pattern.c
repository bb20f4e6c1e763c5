// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * pattern.c - new columns for the fluid program: one expert, divided DIMM by DIMM.
 *
 * Where an expert lies unevenly, taking all of its blocks or the same share of every
 * DIMM's wastes something: a CPU that reads six blocks over one channel and five over
 * another waits for the first, and DIMMs with more blocks compute longer.  At given
 * prices of the resources the cheapest division is found directly: what is not read
 * by the CPU is computed where it lies or goes to the GPU, whichever is cheaper for
 * that DIMM; the CPU takes, for some *level*, at most so many blocks of each channel,
 * those that are dearest elsewhere.  Its time depends on the level, so that only
 * levels at which some DIMM runs out of blocks are worth a look.
 *
 * Whole blocks and whole commands: a way that is made is a plan, not a relaxation.
 */
#include "impl.h"

#include <math.h>
#include <string.h>

enum {
	MOST_LEVELS = 12,
};

/* What the blocks on one DIMM cost. */
struct site {
	uint16_t blocks;
	uint8_t dimm;
	uint8_t elsewhere;	/* domain that computes what the CPU leaves */
	float all;		/* cost of all blocks there */
	float saving;		/* by a block less */
	float bonus;		/* besides, when none is left */
};

struct sites {
	uint32_t nr;
	struct site site[NDP_MAX_DIMMS];	/* by channel, then by falling saving */
	uint32_t first[NDP_MAX_CHANNELS + 1];	/* site of each channel */
	float base;		/* cost of everything, the CPU taking nothing */
	float own;		/* CPU time of a block at this price, beside reading */
};

struct prices {
	const struct ndpi_rules *rules;
	const float *price;	/* full order */
	uint32_t channels;
	uint32_t tokens;
	bool cpu, gpu, ndp;
	float gpu_block, ndp_fixed, ndp_block, ndp_memory, ndp_inside, host;
	float read, own;
};

static float larger(float a, float b)
{
	return a > b ? a : b;
}

static void prices_init(struct prices *p, const struct ndpi_table *t, uint32_t i,
			const float *price)
{
	const struct ndpi_rules *r = &t->rules;
	const struct ndp_host *host = r->layer->host;
	const uint32_t e = t->expert[i], tokens = r->layer->tokens[e];
	const float per_block = 1.0f / r->nr_blocks;

	p->rules = r;
	p->price = price;
	p->channels = host->nr_channels;
	p->tokens = tokens;
	p->cpu = t->can[i] & 1u << NDP_DOMAIN_CPU;
	p->gpu = t->can[i] & 1u << NDP_DOMAIN_GPU && !(r->layer->on_gpu && r->layer->on_gpu[e]);
	p->ndp = t->can[i] & 1u << NDP_DOMAIN_NDP;
	p->read = r->block_read_ns;
	p->own = larger(ndpi_cpu_ns(r, tokens) * per_block, r->block_cpu_ns);
	p->gpu_block = price[ROW_PCIE] * (float)r->block_pcie_ns +
		       price[ROW_CPU] * (float)r->block_staging_ns +
		       price[ROW_GPU] * larger(ndpi_gpu_ns(r, tokens) * per_block,
					       r->block_gpu_ns);
	p->host = tokens * (float)r->token_host_ns;
	p->ndp_fixed = (float)host->dimm.overhead_ns +
		       (r->charges & NDP_CHARGE_DIMM_READS ? p->host : 0);
	p->ndp_block = ndpi_dimm_ns(r, tokens) * per_block;
	p->ndp_memory = r->block_dimm_ns;
	p->ndp_inside = tokens * (float)r->token_dimm_ns;
}

/* What a block that the host reads from there costs besides. */
static float carrying(const struct prices *p, uint32_t d)
{
	const float *channel = p->price + FULL_CHANNELS + d % p->channels;
	const float *dimm = p->price + FULL_CHANNELS + p->channels + d;
	float cost = 0;

	if (p->rules->charges & NDP_CHARGE_CHANNELS)
		cost += *channel;
	if (p->rules->charges & NDP_CHARGE_DIMM_READS)
		cost += *dimm;
	return cost * p->read;
}

/* Without the CPU; false: it cannot be done. */
static bool price_site(const struct prices *p, uint32_t d, bool gpu, struct site *s)
{
	const float dimm = p->price[FULL_CHANNELS + p->channels + d];
	const float channel = p->price[FULL_CHANNELS + d % p->channels];
	const float n = s->blocks;

	s->dimm = d;
	s->all = HUGE_VALF;
	s->bonus = 0;
	if (p->ndp) {
		s->elsewhere = NDP_DOMAIN_NDP;
		s->saving = dimm * larger(p->ndp_block, p->ndp_memory);
		s->all = dimm * (p->ndp_fixed + larger(n * p->ndp_block,
						       n * p->ndp_memory + p->ndp_inside)) +
			 channel * p->host;
		s->bonus = s->all - n * s->saving;
	}
	if (gpu) {
		const float block = p->gpu_block + carrying(p, d);

		if (n * block < s->all) {
			s->elsewhere = NDP_DOMAIN_GPU;
			s->saving = block;
			s->all = n * block;
			s->bonus = 0;
		}
	}
	return s->all < HUGE_VALF;
}

static bool find_sites(const struct prices *p, const uint16_t *blocks, uint32_t dimms, bool gpu,
		       struct sites *s)
{
	const float price = p->price[ROW_CPU];

	s->nr = 0;
	s->base = gpu ? p->price[ROW_GPU] * (float)p->rules->layer->host->gpu.overhead_ns : 0;
	/* A CPU that computes longer than it reads pays by the block. */
	s->own = p->own * p->channels > p->read ? price * p->own : 0;
	for (uint32_t c = 0; c < p->channels; c++) {
		s->first[c] = s->nr;
		for (uint32_t d = c; d < dimms; d += p->channels) {
			struct site site = { .blocks = blocks[d] };
			uint32_t at;

			if (!blocks[d])
				continue;
			if (!price_site(p, d, gpu, &site))
				return false;
			s->base += site.all;
			site.saving -= carrying(p, d) + s->own;
			for (at = s->nr; at > s->first[c] &&
			     s->site[at - 1].saving < site.saving; at--)
				s->site[at] = s->site[at - 1];
			s->site[at] = site;
			s->nr++;
		}
	}
	s->first[p->channels] = s->nr;
	return true;
}

/* How many blocks of a site the CPU takes when it may take @most. */
static uint32_t taken(const struct site *s, uint32_t most)
{
	if (most >= s->blocks)
		return s->blocks * s->saving + s->bonus > 0 ? s->blocks : 0;
	return s->saving > 0 ? most : 0;
}

static float cost_at(const struct prices *p, const struct sites *s, uint32_t level)
{
	float cost = s->base;
	uint32_t longest = 0;

	for (uint32_t c = 0; c < p->channels; c++) {
		uint32_t left = level;

		for (uint32_t k = s->first[c]; k < s->first[c + 1] && left; k++) {
			const uint32_t n = taken(&s->site[k], left);

			cost -= n * s->site[k].saving;
			if (n == s->site[k].blocks)
				cost -= s->site[k].bonus;
			left -= n;
		}
		if (level - left > longest)
			longest = level - left;
	}
	if (!longest)
		return cost;
	cost += p->price[ROW_CPU] * (float)p->rules->cpu->overhead_ns;
	return s->own > 0 ? cost : cost + p->price[ROW_CPU] * longest * p->read;
}

static uint32_t find_levels(const struct prices *p, const struct sites *s, uint32_t *level)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < p->channels; c++) {
		uint32_t sum = 0;

		for (uint32_t k = s->first[c]; k < s->first[c + 1]; k++) {
			uint32_t n = 0;

			sum += s->site[k].blocks;
			while (n < nr && level[n] != sum)
				n++;
			if (n == nr && nr < MOST_LEVELS)
				level[nr++] = sum;
		}
	}
	return nr;
}

static void write_cut(const struct prices *p, const struct sites *s, uint32_t level,
		      struct ndpi_cut *cut)
{
	memset(cut->blocks, 0, sizeof(cut->blocks));
	for (uint32_t c = 0; c < p->channels; c++) {
		uint32_t left = level;

		for (uint32_t k = s->first[c]; k < s->first[c + 1]; k++) {
			const struct site *site = &s->site[k];
			const uint32_t n = left ? taken(site, left) : 0;

			cut->blocks[NDP_DOMAIN_CPU][site->dimm] = n;
			cut->blocks[site->elsewhere][site->dimm] += site->blocks - n;
			left -= n;
		}
	}
}

bool ndpi_make_way(const struct ndpi_table *t, uint32_t i, const float *price, float least,
		   struct ndpi_cut *cut, float *values)
{
	const struct ndp_layer *layer = t->rules.layer;
	const uint32_t dimms = layer->host->nr_dimms;
	const uint16_t *blocks = layer->blocks + (size_t)t->expert[i] * dimms;
	struct sites sites[2], *best = NULL;
	uint32_t best_level = 0, first = 0;
	struct prices p;
	float best_cost = least;
	ndpi_wide load;

	while (!blocks[first])
		first++;
	/* Shares of a domain are all there is to divide it by. */
	if (blocks[first] == t->rules.nr_blocks)
		return false;
	prices_init(&p, t, i, price);
	for (int gpu = 0; gpu < 1 + p.gpu; gpu++) {
		struct sites *s = &sites[gpu];
		uint32_t level[MOST_LEVELS], nr;

		if (!find_sites(&p, blocks, dimms, gpu, s))
			continue;
		if (s->base < best_cost) {
			best_cost = s->base;
			best_level = 0;
			best = s;
		}
		nr = p.cpu ? find_levels(&p, s, level) : 0;
		for (uint32_t k = 0; k < nr; k++) {
			const float cost = cost_at(&p, s, level[k]);

			if (cost < best_cost) {
				best_cost = cost;
				best_level = level[k];
				best = s;
			}
		}
	}
	if (!best)
		return false;
	cut->i = i;
	write_cut(&p, best, best_level, cut);
	memset(load, 0, t->full_width * sizeof(float));
	for (uint32_t o = 0; o < NDP_DOMAINS; o++)
		ndpi_add_part_row(t, i, o, cut->blocks[o], 1, load);
	ndpi_to_rows(t, load, values);
	return true;
}
