// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * moe.c - see moe.h.
 *
 * The token-expert pairs of a batch are sorted by expert; the position of a pair
 * in that order is its slot.  An expert's row list and its rows of y are
 * consecutive slots, so y of all experts fits one buffer without gaps.
 *
 * Must never leave a command in flight behind: the buffers are used again.
 */
#include "moe.h"
#include "error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_DEPTH 64u
#define ALIGN 64

struct moe {
	struct ndp_device *dev;
	struct ndp_queue *queue;
	struct ndp_io *x;
	struct ndp_io *y;
	uint32_t hidden;
	uint32_t max_tokens;
	uint32_t max_k;
	size_t ldx; /* bytes */
	size_t ldy;
	uint8_t *upload; /* x rows, then row lists */
	uint32_t *slots; /* [token][k]: slot of the pair */
	uint32_t *starts; /* [expert + 1]: first slot */
	uint32_t nr_starts;
	uint32_t *masks; /* [expert]: DIMMs with partial results */
	float *sums; /* [slot][hidden] */
	struct moe_stats stats;
};

static size_t align_up(size_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

int moe_create(struct moe **out, struct ndp_device *dev, uint32_t hidden, uint32_t max_tokens,
	       uint32_t max_k, struct ndp_error *err)
{
	size_t pairs = (size_t)max_tokens * max_k;
	struct moe *m = calloc(1, sizeof(*m));
	size_t x_bytes;
	int r;

	if (!m)
		return fail(err, -ENOMEM, "out of memory");
	m->dev = dev;
	m->hidden = hidden;
	m->max_tokens = max_tokens;
	m->max_k = max_k;
	m->ldx = align_up(hidden * sizeof(ndp_bf16));
	m->ldy = align_up(hidden * sizeof(float));
	x_bytes = align_up(max_tokens * m->ldx + pairs * sizeof(uint32_t));
	m->upload = calloc(1, x_bytes);
	m->slots = calloc(pairs, sizeof(*m->slots));
	m->sums = calloc(pairs * hidden, sizeof(*m->sums));
	if (!m->upload || !m->slots || !m->sums) {
		r = fail(err, -ENOMEM, "out of memory for batches of %u tokens", max_tokens);
		goto error;
	}
	r = ndp_io_create(&m->x, dev, 0, x_bytes, err);
	if (r < 0)
		goto error;
	r = ndp_io_create(&m->y, dev, 0, pairs * m->ldy, err);
	if (r < 0)
		goto error;
	r = ndp_queue_create(&m->queue, dev, QUEUE_DEPTH, err);
	if (r < 0)
		goto error;
	*out = m;
	return 0;

error:
	moe_free(m);
	return r;
}

void moe_free(struct moe *m)
{
	if (!m)
		return;
	if (m->queue)
		ndp_queue_free(m->queue);
	if (m->y)
		ndp_io_free(m->y);
	if (m->x)
		ndp_io_free(m->x);
	free(m->masks);
	free(m->starts);
	free(m->sums);
	free(m->slots);
	free(m->upload);
	free(m);
}

const struct moe_stats *moe_stats(const struct moe *m)
{
	return &m->stats;
}

static int reserve_experts(struct moe *m, uint32_t nr_experts, struct ndp_error *err)
{
	uint32_t *starts;
	uint32_t *masks;

	if (nr_experts < m->nr_starts)
		return 0;
	starts = reallocarray(m->starts, (size_t)nr_experts + 1, sizeof(*starts));
	if (starts)
		m->starts = starts;
	masks = reallocarray(m->masks, nr_experts, sizeof(*masks));
	if (masks)
		m->masks = masks;
	if (!starts || !masks)
		return fail(err, -ENOMEM, "out of memory for %u experts", nr_experts);
	m->nr_starts = nr_experts + 1;
	return 0;
}

/* Counting sort of the pairs by expert; tokens stay in ascending order. */
static void sort_pairs(struct moe *m, uint32_t nr_experts, uint32_t tokens, uint32_t k,
		       const uint32_t *ids, uint32_t *rows)
{
	uint32_t pairs = tokens * k;

	memset(m->starts, 0, (nr_experts + 1) * sizeof(*m->starts));
	for (uint32_t p = 0; p < pairs; p++)
		m->starts[ids[p] + 1]++;
	for (uint32_t e = 0; e < nr_experts; e++)
		m->starts[e + 1] += m->starts[e];
	for (uint32_t p = 0; p < pairs; p++) {
		uint32_t slot = m->starts[ids[p]]++;

		m->slots[p] = slot;
		rows[slot] = p / k;
	}
	/* Each start has moved to its end, which is the next one's start. */
	for (uint32_t e = nr_experts; e > 0; e--)
		m->starts[e] = m->starts[e - 1];
	m->starts[0] = 0;
}

static uint32_t expert_tokens(const struct moe *m, uint32_t e)
{
	return m->starts[e + 1] - m->starts[e];
}

/* Writes x and the row lists to where the experts in use are thought to lie. */
static int upload(struct moe *m, const struct moe_expert *experts, uint32_t nr_experts,
		  const float *x, uint32_t tokens, uint32_t k, uint32_t *mask,
		  struct ndp_error *err)
{
	size_t bytes = tokens * m->ldx;
	int r;

	for (uint32_t t = 0; t < tokens; t++)
		ndp_bf16_from_f32_array((ndp_bf16 *)(m->upload + t * m->ldx),
					x + (size_t)t * m->hidden, m->hidden);
	if (tokens > 1)
		bytes += (size_t)tokens * k * sizeof(uint32_t);
	*mask = 0;
	for (uint32_t e = 0; e < nr_experts; e++)
		if (expert_tokens(m, e))
			*mask |= experts[e].mask;
	r = ndp_io_write(m->x, *mask, 0, m->upload, bytes);
	if (r < 0)
		return fail(err, r, "activations cannot be written to DIMMs 0x%x: %s", *mask,
			    strerror(-r));
	m->stats.x_bytes += bytes * __builtin_popcount(*mask);
	return 0;
}

static const char *what_to_do(int code)
{
	switch (code) {
	case -ENODEV:
		return "a DIMM that held a part of it is gone; start again with those that are "
		       "left";
	case -ETIMEDOUT:
	case -ECANCELED:
		return "the DIMM hung and was reset; start again, and see the kernel's log";
	case -EIO:
		return "the DIMM reported an error; see the kernel's log";
	default:
		return "see the kernel's log";
	}
}

/*
 * Takes at least @min results off the queue.  *failed keeps the first failure of
 * a command; what is returned is a failure of the queue, which cannot be waited
 * for any more.
 */
static int collect(struct moe *m, uint32_t layer, struct moe_expert *experts, unsigned int min,
		   int *failed, struct ndp_error *err)
{
	struct ndp_result results[QUEUE_DEPTH];
	int n;

	do {
		n = ndp_queue_wait(m->queue, results, QUEUE_DEPTH, min);
	} while (n == -EINTR);
	if (n < 0)
		return fail(err, n, "the queue of commands failed: %s", strerror(-n));
	for (int i = 0; i < n; i++) {
		const struct ndp_result *res = &results[i];
		uint32_t e = res->tag;

		m->stats.retries += res->retries;
		if (res->res < 0) {
			if (*failed == 0)
				*failed = fail(err, res->res, "layer %u expert %u: command failed: "
					       "%s (%s)", layer, e, strerror(-res->res),
					       what_to_do(res->res));
			continue;
		}
		m->stats.commands++;
		m->stats.expert_tokens += expert_tokens(m, e);
		m->stats.modelled_ns += res->modelled_ns;
		m->masks[e] = res->dimm_mask;
		experts[e].mask = res->dimm_mask;
	}
	return 0;
}

static int push_expert(struct moe *m, uint32_t e, const struct moe_expert *expert,
		       uint32_t tokens, uint32_t x_mask)
{
	const struct ndp_cmd cmd = {
		.op = NDP_OP_FFN_EXPERT,
		.weights = expert->weights,
		.x = m->x,
		.y = m->y,
		.x_mask = x_mask,
		.tokens = expert_tokens(m, e),
		.x_rows = tokens > 1 ? tokens : 0,
		.act = NDP_ACT_SILU_MUL,
		.y_off = m->starts[e] * m->ldy,
		.rows_off = tokens > 1 ? tokens * m->ldx + m->starts[e] * sizeof(uint32_t) : 0,
		.ldx = m->ldx,
		.ldy = m->ldy,
		.tag = e,
	};

	return ndp_queue_push(m->queue, &cmd);
}

/* Runs every expert that has tokens; nothing is in flight when it returns. */
static int run_experts(struct moe *m, uint32_t layer, struct moe_expert *experts,
		       uint32_t nr_experts, uint32_t tokens, uint32_t x_mask,
		       struct ndp_error *err)
{
	unsigned int inflight;
	int failed = 0;
	int r;

	for (uint32_t e = 0; e < nr_experts && failed == 0; e++) {
		if (!expert_tokens(m, e))
			continue;
		while ((r = push_expert(m, e, &experts[e], tokens, x_mask)) == -EAGAIN) {
			r = collect(m, layer, experts, 1, &failed, err);
			if (r < 0)
				return r;
		}
		if (r < 0 && failed == 0)
			failed = fail(err, r, "layer %u expert %u: command was refused: %s", layer,
				      e, strerror(-r));
	}
	while ((inflight = ndp_queue_inflight(m->queue)) > 0) {
		r = collect(m, layer, experts, inflight, &failed, err);
		if (r < 0)
			return r;
	}
	return failed;
}

/* Adds up what the DIMMs have of each slot. */
static int reduce(struct moe *m, uint32_t layer, uint32_t nr_experts, struct ndp_error *err)
{
	for (uint32_t e = 0; e < nr_experts; e++) {
		uint32_t n = expert_tokens(m, e);
		size_t slot = m->starts[e];
		int r;

		if (!n)
			continue;
		r = ndp_io_reduce(m->y, m->masks[e], slot * m->ldy, m->ldy,
				  m->sums + slot * m->hidden, m->hidden, n, m->hidden);
		if (r < 0)
			return fail(err, r, "layer %u expert %u: results cannot be read: %s", layer,
				    e, strerror(-r));
		m->stats.y_bytes += (uint64_t)n * m->hidden * sizeof(float) *
				    __builtin_popcount(m->masks[e]);
	}
	return 0;
}

int moe_forward(struct moe *m, uint32_t layer, struct moe_expert *experts, uint32_t nr_experts,
		const float *x, uint32_t tokens, uint32_t k, const uint32_t *ids,
		const float *weights, float *out, struct ndp_error *err)
{
	uint32_t x_mask;
	int r;

	if (tokens == 0)
		return 0;
	if (tokens > m->max_tokens || k > m->max_k)
		return fail(err, -EINVAL, "a batch of %u tokens with %u experts each is more than "
			    "%u with %u", tokens, k, m->max_tokens, m->max_k);
	r = reserve_experts(m, nr_experts, err);
	if (r < 0)
		return r;
	sort_pairs(m, nr_experts, tokens, k, ids, (uint32_t *)(m->upload + tokens * m->ldx));
	r = upload(m, experts, nr_experts, x, tokens, k, &x_mask, err);
	if (r < 0)
		return r;
	r = run_experts(m, layer, experts, nr_experts, tokens, x_mask, err);
	if (r < 0)
		return r;
	r = reduce(m, layer, nr_experts, err);
	if (r < 0)
		return r;

	memset(out, 0, (size_t)tokens * m->hidden * sizeof(*out));
	for (uint32_t p = 0; p < tokens * k; p++) {
		const float *y = m->sums + (size_t)m->slots[p] * m->hidden;
		float *o = out + (size_t)(p / k) * m->hidden;

		for (uint32_t i = 0; i < m->hidden; i++)
			o[i] += weights[p] * y[i];
	}
	return 0;
}
