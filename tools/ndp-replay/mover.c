// SPDX-License-Identifier: GPL-2.0-or-later
/* mover.c - see mover.h. */
#include "mover.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The part of a layer's time that copies may take of what it uses itself. */
static const double least_part = 0.01;

/* Less than this of an action is rounding. */
static const double nothing = 1e-9;

enum { MOST_ACTIONS = 48 };	/* of a decision */

struct mover *mover_new(const struct where *where, enum ndp_policy policy, uint32_t charges,
			uint32_t kinds, struct ndp_error *err)
{
	const uint32_t experts = where->shape->experts, dimms = where->host->nr_dimms;
	struct mover *m = calloc(1, sizeof(*m));

	if (!m)
		goto no_memory;
	m->host = where->host;
	m->shape = where->shape;
	m->memory = malloc(ndp_place_bytes(where->nr_layers, experts, dimms));
	m->loads = calloc(experts, sizeof(*m->loads));
	if (!m->memory || !m->loads)
		goto no_memory;
	ndp_place_defaults(&m->options, where->host);
	m->options.charges = charges;
	m->options.policy = policy;
	m->options.kinds = kinds;
	if (ndp_place_init(m->memory, where->host, where->shape, where->nr_layers, &m->options,
			   where->blocks, where->on_gpu, &m->placer, err) == 0)
		return m;
	mover_free(m);
	return NULL;
no_memory:
	fail(err, -ENOMEM, "out of memory");
	mover_free(m);
	return NULL;
}

void mover_free(struct mover *m)
{
	if (!m)
		return;
	free(m->memory);
	free(m->loads);
	free(m);
}

/* ---- what copies take ---------------------------------------------------------- */

/* A prefetch reads all DIMMs that hold the expert, as a GPU miss would. */
static void add_prefetch(const struct mover *m, const struct ndp_place_action *a,
			 struct carried *c)
{
	const struct ndp_host *host = m->host;
	const uint32_t dimms = host->nr_dimms, charges = m->options.charges;
	const uint16_t *row = ndp_place_blocks(m->placer, a->layer) + (size_t)a->expert * dimms;
	const double block_bytes = (double)m->shape->expert_bytes / ndp_shape_blocks(m->shape);
	double slowest = 0, channel_ns[NDP_MAX_CHANNELS] = { 0 };

	for (uint32_t d = 0; d < dimms; d++) {
		const double read_ns = row[d] * block_bytes / host->channel_gbps;

		channel_ns[d % host->nr_channels] += read_ns;
		slowest = fmax(slowest, channel_ns[d % host->nr_channels]);
		if (charges & NDP_CHARGE_DIMM_READS)
			c->loads.dimm_ns[d] = read_ns;
	}
	if (charges & NDP_CHARGE_CHANNELS)
		memcpy(c->loads.channel_ns, channel_ns, sizeof(channel_ns));
	if (charges & NDP_CHARGE_STAGING && host->staging_gbps > 0)
		c->loads.cpu_ns = m->shape->expert_bytes / host->staging_gbps;
	c->loads.pcie_ns = fmax(m->shape->expert_bytes / host->pcie_gbps, slowest);
	c->copy_ns = c->loads.pcie_ns;
}

/* A move takes ports, and of the DIMMs' own bandwidth what they send and receive. */
static void add_move(const struct mover *m, const struct ndp_copy *copies, uint32_t n,
		     struct carried *c)
{
	const struct ndp_host *host = m->host;

	for (uint32_t k = 0; k < n; k++) {
		const double port_ns = host->link_latency_ns + copies[k].bytes / host->link_gbps;
		const double inside_ns = host->dimm.gbps > 0 ? copies[k].bytes / host->dimm.gbps : 0;

		c->out_ns[copies[k].from] += port_ns;
		c->in_ns[copies[k].to] += port_ns;
		c->loads.dimm_ns[copies[k].from] += inside_ns;
		c->loads.dimm_ns[copies[k].to] += inside_ns;
	}
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		c->copy_ns = fmax(c->copy_ns, fmax(c->out_ns[d], c->in_ns[d]));
}

static void carry(struct mover *m, const struct ndp_place_action *a)
{
	struct ndp_copy copies[2 * NDP_MAX_DIMMS];
	struct carried *c = &m->carried[m->nr++];

	*c = (struct carried){ .action = *a, .left = 1 };
	if (a->kind == NDP_PLACE_PREFETCH)
		add_prefetch(m, a, c);
	else
		add_move(m, copies, ndp_place_copies(m->placer, a->id, copies), c);
}

/* ---- what they get ------------------------------------------------------------------ */

/* Time that is left for copies. */
struct budget {
	double out_ns[NDP_MAX_DIMMS], in_ns[NDP_MAX_DIMMS], pcie_ns;
	struct ndp_loads idle;
};

static double idle(double makespan_ns, double load_ns)
{
	return fmax(makespan_ns - load_ns, least_part * makespan_ns);
}

static void find_budget(const struct mover *m, const struct ndp_plan *plan, struct budget *b)
{
	const double time = plan->makespan_ns;
	const struct ndp_loads *load = &plan->loads;

	for (uint32_t d = 0; d < m->host->nr_dimms; d++) {
		b->out_ns[d] = b->in_ns[d] = m->options.link_share * time;
		b->idle.dimm_ns[d] = idle(time, load->dimm_ns[d]);
	}
	for (uint32_t c = 0; c < m->host->nr_channels; c++)
		b->idle.channel_ns[c] = idle(time, load->channel_ns[c]);
	b->pcie_ns = m->options.pcie_share * time;
	b->idle.pcie_ns = idle(time, load->pcie_ns);
	b->idle.cpu_ns = idle(time, load->cpu_ns);
}

/* The largest part of an action that @left allows. */
static double limit(double part, double left, double whole)
{
	return part * whole > left ? left / whole : part;
}

static double part_of(const struct mover *m, const struct carried *c, const struct budget *b)
{
	double part = c->left;

	if (c->action.kind == NDP_PLACE_PREFETCH) {
		part = limit(part, fmin(b->pcie_ns, b->idle.pcie_ns), c->loads.pcie_ns);
		part = limit(part, b->idle.cpu_ns, c->loads.cpu_ns);
		for (uint32_t k = 0; k < m->host->nr_channels; k++)
			part = limit(part, b->idle.channel_ns[k], c->loads.channel_ns[k]);
	}
	for (uint32_t d = 0; d < m->host->nr_dimms; d++) {
		part = limit(part, b->idle.dimm_ns[d], c->loads.dimm_ns[d]);
		part = limit(part, b->out_ns[d], c->out_ns[d]);
		part = limit(part, b->in_ns[d], c->in_ns[d]);
	}
	return part > nothing ? part : 0;
}

/* Takes a part of an action out of the budget and adds it to what the layer takes. */
static void spend(const struct mover *m, const struct carried *c, struct budget *b,
		  struct ndp_loads *all)
{
	b->pcie_ns -= c->part * c->loads.pcie_ns;
	b->idle.pcie_ns -= c->part * c->loads.pcie_ns;
	b->idle.cpu_ns -= c->part * c->loads.cpu_ns;
	all->pcie_ns += c->part * c->loads.pcie_ns;
	all->cpu_ns += c->part * c->loads.cpu_ns;
	for (uint32_t k = 0; k < m->host->nr_channels; k++) {
		b->idle.channel_ns[k] -= c->part * c->loads.channel_ns[k];
		all->channel_ns[k] += c->part * c->loads.channel_ns[k];
	}
	for (uint32_t d = 0; d < m->host->nr_dimms; d++) {
		b->idle.dimm_ns[d] -= c->part * c->loads.dimm_ns[d];
		b->out_ns[d] -= c->part * c->out_ns[d];
		b->in_ns[d] -= c->part * c->in_ns[d];
		all->dimm_ns[d] += c->part * c->loads.dimm_ns[d];
	}
}

/* The time that the busiest port, or PCIe, spent of its share. */
static double busiest_port(const struct mover *m, const struct budget *b, double makespan_ns)
{
	double least = m->options.link_share * makespan_ns;

	for (uint32_t d = 0; d < m->host->nr_dimms; d++)
		least = fmin(least, fmin(b->out_ns[d], b->in_ns[d]));
	return fmax(m->options.link_share * makespan_ns - least,
		    m->options.pcie_share * makespan_ns - b->pcie_ns);
}

double mover_pass(struct mover *m, const struct ndp_plan *plan)
{
	const double end_ns = m->now_ns + plan->makespan_ns;
	struct ndp_loads all = plan->loads;
	double delay_ns = 0, copied_ns = 0;
	struct budget b;

	if (m->nr) {
		find_budget(m, plan, &b);
		for (uint32_t k = 0; k < m->nr; k++) {
			struct carried *c = &m->carried[k];

			c->part = c->action.start_ns < end_ns ? part_of(m, c, &b) : 0;
			if (c->part <= 0)
				continue;
			spend(m, c, &b, &all);
			c->left -= c->part;
			copied_ns += c->part * c->copy_ns;
		}
		delay_ns = fmax(0, ndp_loads_max(&all, m->host) - plan->makespan_ns);
		m->moves.port_ns += busiest_port(m, &b, plan->makespan_ns);
		m->moves.layers += copied_ns > 0;
		m->moves.copy_ns += copied_ns;
		m->moves.delay_ns += delay_ns;
	}
	m->now_ns = end_ns + delay_ns;
	return delay_ns;
}

uint32_t mover_copies(const struct mover *m, struct ndp_copy *copies)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < m->nr; k++) {
		const struct carried *c = &m->carried[k];
		uint32_t count;

		if (c->part <= 0)
			continue;
		count = ndp_place_copies(m->placer, c->action.id, copies + n);
		for (uint32_t i = n; i < n + count; i++)
			copies[i].bytes = (uint64_t)ceil(copies[i].bytes * c->part);
		n += count;
	}
	return n;
}

void mover_arrive(struct mover *m)
{
	uint32_t kept = 0;

	for (uint32_t k = 0; k < m->nr; k++) {
		if (m->carried[k].left <= nothing) {
			ndp_place_done(m->placer, m->carried[k].action.id, m->now_ns, 0);
			m->moves.ended++;
		} else {
			if (kept < k)
				m->carried[kept] = m->carried[k];
			kept++;
		}
	}
	m->nr = kept;
}

void mover_decide(struct mover *m, uint32_t layer, const float *shares, double selections)
{
	struct ndp_place_action actions[MOST_ACTIONS];
	uint32_t n;

	for (uint32_t e = 0; e < m->shape->experts; e++)
		m->loads[e] = shares[e] * selections;
	n = ndp_place_decide(m->placer, layer, m->loads, m->now_ns, actions, MOST_ACTIONS);
	m->moves.decisions++;
	for (uint32_t i = 0; i < n; i++) {
		m->moves.started[actions[i].kind]++;
		m->moves.bytes[actions[i].kind] += actions[i].bytes;
		carry(m, &actions[i]);
	}
}

double mover_hidden(const struct moves *m)
{
	return m->copy_ns > 0 ? fmax(0, 1 - m->delay_ns / m->copy_ns) : NAN;
}
