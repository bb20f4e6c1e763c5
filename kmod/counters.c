// SPDX-License-Identifier: GPL-2.0-only
/*
 * counters.c - what the engines did since the driver was bound, and QUERY.
 *
 * The DIMM counts since it was powered on; what it had counted when the driver
 * came is subtracted.  A reset does not touch these counters.
 */
#include "ndp.h"

static void ndp_counters_raw(struct ndp_dimm *dimm, u8 queue,
			     struct moendp_counters *c)
{
	c->commands = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue,
							  NDP_CTR_COMMANDS));
	c->errors = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue,
							NDP_CTR_ERRORS));
	c->tokens = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue,
							NDP_CTR_TOKENS));
	c->bytes = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue, NDP_CTR_BYTES));
	c->busy_ns = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue,
							 NDP_CTR_BUSY_NS));
	c->wall_ns = ndp_hw_read64(dimm, NDP_REG_COUNTER(queue,
							 NDP_CTR_WALL_NS));
}

/* At probe. */
void ndp_counters_base(struct ndp_dimm *dimm)
{
	u8 i;

	for (i = 0; i < NDP_QUEUES; i++)
		ndp_counters_raw(dimm, i, &dimm->base[i]);
}

/* Zero when the DIMM does not answer. */
void ndp_counters_read(struct ndp_dimm *dimm, u8 queue,
		       struct moendp_counters *c)
{
	const struct moendp_counters *base = &dimm->base[queue];
	bool there = false;

	if (ndp_hw_enter(dimm)) {
		ndp_counters_raw(dimm, queue, c);
		there = ndp_hw_responds(dimm);
		ndp_hw_exit(dimm);
	}
	if (!there) {
		memset(c, 0, sizeof(*c));
		return;
	}
	c->commands -= base->commands;
	c->errors -= base->errors;
	c->tokens -= base->tokens;
	c->bytes -= base->bytes;
	c->busy_ns -= base->busy_ns;
	c->wall_ns -= base->wall_ns;
}

static void ndp_query_dimm(struct ndp_dimm *dimm, struct moendp_query *q)
{
	const struct ndp_caps *caps = &dimm->caps;
	struct ndp_mm_stats mm;

	q->dimm_state = READ_ONCE(dimm->state);
	q->generation = READ_ONCE(dimm->generation);
	q->numa_node = dev_to_node(&dimm->pdev->dev);
	q->link_peers = ndp_hw_peers(dimm);
	ndp_mm_stats(dimm, &mm);
	q->mem_bytes = mm.mem_bytes;
	q->free_bytes = mm.free_bytes;
	q->largest_free_bytes = mm.largest_free_bytes;
	q->internal_mbps = caps->internal_mbps;
	q->gflops = caps->gflops;
	q->overhead_ns = caps->overhead_ns;
	q->link_mbps = caps->link_mbps;
	q->link_latency_ns = caps->link_latency_ns;
	q->resets = READ_ONCE(dimm->resets);
	ndp_counters_read(dimm, NDP_Q_COMPUTE, &q->compute);
	ndp_counters_read(dimm, NDP_Q_LINK, &q->link);
	q->cache_lines_flushed = atomic64_read(&dimm->lines_flushed);
	q->inflight = ndp_queue_inflight(&dimm->queue[NDP_Q_COMPUTE]) +
		      ndp_queue_inflight(&dimm->queue[NDP_Q_LINK]);
}

/* What holds for all DIMMs that the file knows. */
static void ndp_query_file(struct ndp_file *file, struct moendp_query *q)
{
	u64 features = MOENDP_FEAT_COHERENT | MOENDP_FEAT_LINK;
	u32 i, max_tokens = NDP_MAX_TOKENS;

	for (i = 0; i < NDP_MAX_NODES; i++) {
		struct ndp_dimm *dimm;

		if (!(file->mask & BIT(i)))
			continue;
		dimm = ndp_domain_dimm(file->domain, i);
		if (!dimm)
			continue;
		q->dimm_mask |= BIT(i);
		max_tokens = min(max_tokens, dimm->caps.max_tokens);
		if (!dimm->coherent)
			features &= ~MOENDP_FEAT_COHERENT;
		if (!(dimm->caps.caps & NDP_CAP_LINK))
			features &= ~MOENDP_FEAT_LINK;
		ndp_dimm_put(dimm);
	}
	q->max_tokens = max_tokens;
	q->features = features;
}

int ndp_ioctl_query(void *priv, struct ndp_call *call)
{
	struct moendp_query *q = &call->query;
	struct ndp_file *file = priv;
	struct ndp_dimm *dimm;
	u32 id = q->dimm;

	if (q->flags)
		return -EINVAL;
	if (id >= NDP_MAX_NODES || !(file->mask & BIT(id)))
		return -ENXIO;
	if (ndp_file_gone(file))
		return -ENODEV;
	memset(q, 0, sizeof(*q));
	q->dimm = id;
	q->abi = MOENDP_ABI_VERSION;
	memcpy(q->domain, file->domain->uuid, sizeof(q->domain));
	ndp_query_file(file, q);
	ndp_quota_query(file->domain, file->user, &q->quota_bytes,
			&q->used_bytes);
	dimm = ndp_domain_dimm(file->domain, id);
	if (dimm) {
		ndp_query_dimm(dimm, q);
		ndp_dimm_put(dimm);
	}
	return ndp_call_reply(call);
}
