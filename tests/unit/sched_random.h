/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * sched_random.h - random machines and layers for the scheduler's tests, from
 * one DIMM to 32, with and without GPU, CPU and NDP, experts in one DIMM, over
 * all, or anyhow; the same for a seed on every run.
 */
#ifndef NDP_TEST_SCHED_RANDOM_H
#define NDP_TEST_SCHED_RANDOM_H

#include <ndp/sched.h>
#include <stdlib.h>
#include <string.h>

struct random_layer {
	uint64_t state;
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_layer layer;
	uint32_t tokens[NDP_MAX_EXPERTS];
	uint8_t on_gpu[NDP_MAX_EXPERTS];
	uint16_t blocks[NDP_MAX_EXPERTS * NDP_MAX_DIMMS];
	uint16_t shared[NDP_MAX_DIMMS];
};

static inline uint32_t random_upto(struct random_layer *r, uint32_t most)
{
	r->state = r->state * 6364136223846793005u + 1442695040888963407u;
	return (r->state >> 33) % (most + 1);
}

/* The machine of the paper. */
static inline void paper_host(struct ndp_host *h)
{
	*h = (struct ndp_host) {
		.gpu = { .gflops = 605200, .gbps = 1600, .overhead_ns = 3000 },
		.cpu = { .gflops = 90100 },
		.cpu_plain = { .gflops = 11264 },
		.dimm = { .gflops = 256, .gbps = 153.6, .overhead_ns = 500 },
		.pcie_gbps = 64,
		.channel_gbps = 38.4,
		.staging_gbps = 153.6,
		.link_gbps = 25,
		.link_latency_ns = 1000,
		.nr_channels = 8,
		.nr_dimms = 16,
	};
}

static inline void random_host(struct random_layer *r)
{
	struct ndp_host *h = &r->host;

	paper_host(h);
	h->nr_dimms = 1 + random_upto(r, random_upto(r, 3) ? 7 : NDP_MAX_DIMMS - 1);
	h->nr_channels = 1 + random_upto(r, h->nr_dimms);
	h->cpu.gflops = 1000 * (1 + random_upto(r, 90));
	h->cpu.overhead_ns = 100 * random_upto(r, 20);
	h->gpu.gflops = 1000 * (1 + random_upto(r, 600));
	h->dimm.gflops = 64 << random_upto(r, 4);
	h->dimm.overhead_ns = 100 * random_upto(r, 20);
	h->pcie_gbps = random_upto(r, 4) ? 8 + random_upto(r, 120) : 0;
	h->staging_gbps = random_upto(r, 1) * 153.6;
	if (!random_upto(r, 3)) {
		h->dimm.nr_points = 3;
		for (uint32_t k = 0; k < 3; k++) {
			h->dimm.tokens[k] = 1 + 10 * k;
			h->dimm.point_gflops[k] = 50 + random_upto(r, 400);
		}
	}
	/* At least one domain can compute everything. */
	switch (random_upto(r, 7)) {
	case 0:
		h->gpu.gflops = 0;
		break;
	case 1:
		h->cpu.gflops = 0;
		break;
	case 2:
		h->dimm.gflops = 0;
		break;
	case 3:
		h->gpu.gflops = h->cpu.gflops = 0;
		break;
	case 4:
		h->cpu.gflops = h->dimm.gflops = 0;
		h->pcie_gbps = 64;
		break;
	default:
		break;
	}
}

static inline void random_row(struct random_layer *r, uint16_t *row, uint32_t kind)
{
	const uint32_t dimms = r->host.nr_dimms, blocks = ndp_shape_blocks(&r->shape);
	uint32_t left = blocks;

	memset(row, 0, dimms * sizeof(*row));
	if (kind == 0) {
		row[random_upto(r, dimms - 1)] = blocks;
		return;
	}
	if (kind == 1) {
		for (uint32_t d = 0; d < dimms; d++)
			row[d] = blocks / dimms + (d < blocks % dimms);
		return;
	}
	while (left) {
		const uint32_t n = 1 + random_upto(r, left - 1);

		row[random_upto(r, dimms - 1)] += n;
		left -= n;
	}
}

/* @experts: 0 for a random number of them. */
static inline void random_layer(struct random_layer *r, uint64_t seed, uint32_t experts)
{
	uint32_t placement;

	r->state = seed * 0x9e3779b97f4a7c15u + 1;
	random_host(r);
	r->shape = (struct ndp_shape) {
		.experts = experts ? experts : 1 + random_upto(r, random_upto(r, 1) ? 7 : 63),
		.top_k = 2,
		.hidden = 64 * (1 + random_upto(r, 40)),
		.intermediate = 1 + random_upto(r, 2000),
	};
	r->shape.expert_bytes = (uint64_t)r->shape.hidden * r->shape.intermediate * 6;
	placement = random_upto(r, 3);
	for (uint32_t e = 0; e < r->shape.experts; e++) {
		r->tokens[e] = random_upto(r, 3) ? random_upto(r, 8) : random_upto(r, 300);
		r->on_gpu[e] = !random_upto(r, 9);
		random_row(r, r->blocks + (size_t)e * r->host.nr_dimms,
			   placement < 3 ? placement : random_upto(r, 2));
	}
	r->layer = (struct ndp_layer) {
		.host = &r->host,
		.shape = &r->shape,
		.charges = random_upto(r, 2) ? random_upto(r, NDP_CHARGES_ALL) : NDP_CHARGES_ALL,
		.tokens = r->tokens,
		.blocks = r->blocks,
		.on_gpu = r->on_gpu,
	};
}

/* A shared expert of one to four times the size, in a domain that the machine has. */
static inline void random_shared(struct random_layer *r)
{
	const struct ndp_rate *rate[NDP_DOMAINS] = { &r->host.gpu, &r->host.cpu, &r->host.dimm };
	const uint32_t times = 1 + random_upto(r, 3), kind = random_upto(r, 2);
	uint32_t domain = random_upto(r, NDP_DOMAINS - 1);

	while (!(rate[domain]->gflops > 0))
		domain = (domain + 1) % NDP_DOMAINS;
	random_row(r, r->shared, kind);
	for (uint32_t d = 0; d < r->host.nr_dimms; d++)
		r->shared[d] *= times;
	r->layer.shared = r->shared;
	r->layer.shared_tokens = random_upto(r, 100);
	r->layer.shared_domain = domain;
}

/* A plan and the memory to make it in. */
struct planner {
	struct ndp_plan plan;
	void *memory, *work;
};

static inline void planner_init(struct planner *p, const struct random_layer *r)
{
	const uint32_t experts = r->shape.experts, dimms = r->host.nr_dimms;

	p->memory = malloc(ndp_plan_bytes(experts, dimms));
	p->work = malloc(ndp_schedule_bytes(experts, dimms));
	ndp_plan_init(&p->plan, p->memory, experts, dimms);
}

static inline void planner_free(struct planner *p)
{
	free(p->memory);
	free(p->work);
}

#endif
