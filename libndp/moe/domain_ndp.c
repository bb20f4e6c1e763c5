/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * domain_ndp.c - experts computed in NDP DIMMs.
 *
 * All commands of a batch go to the device in one system call.  A row of x is
 * written once to each DIMM that needs it, and to no other.  Results stay in the
 * DIMMs until they are added up from there: into the output as they arrive, where
 * any order will do, else into host memory.
 *
 * The room for results in the DIMMs is bounded; a batch that needs more runs in
 * waves.  Commands must never outlive a call: the buffers are used again.
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64u
#define QUEUE_DEPTH 1024u
#define RESULTS 64u
/* Of each DIMM's memory, for results, at most. */
#define Y_BYTES (64u << 20)
/* x rows that a list may name (struct ndp_cmd). */
#define MAX_ROWS 65535u

struct command {
	struct ndpi_part *part;
	uint32_t from;		/* first of @tokens of the part's slots */
	uint32_t tokens;
	size_t y_off;
	uint32_t expected;	/* DIMMs */
};

struct ndpi_domain {
	struct ndp_moe *moe;
	struct ndp_queue *queue;
	struct ndp_io *x;
	struct ndp_io *y;
	size_t lists;		/* where row lists begin in @x */
	size_t ldy;		/* bytes */
	uint32_t y_rows;
	uint32_t max_tokens;	/* in a command */
	uint32_t dimm_mask;
	uint32_t words;		/* of a DIMM in @need */
	uint64_t *need;		/* [DIMM][token]: one bit, the DIMM needs this row of x */
	struct command *commands;
	uint32_t max_commands;
	uint32_t nr_commands;
	uint32_t pushed;
	uint32_t y_used;	/* rows */
	uint64_t dimm_ns[NDP_MAX_DIMMS];	/* modelled, by what the device says */
	int failed;
	bool broken;		/* the queue itself failed */
};

static size_t align_up(size_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* The least free memory of a DIMM. */
static uint64_t least_free(struct ndp_device *dev, uint32_t mask)
{
	uint64_t least = UINT64_MAX;

	for (; mask; mask &= mask - 1) {
		struct ndp_dimm_info info;

		if (ndp_dimm_info(dev, (uint32_t)__builtin_ctz(mask), &info) == 0 &&
		    info.largest_free_bytes < least)
			least = info.largest_free_bytes;
	}
	return least;
}

/* As many rows of results as are reasonable: others want memory there, too.  At least one. */
static int create_y(struct ndpi_domain *d, const struct ndpi_limits *limits, struct ndp_error *err)
{
	uint64_t room = least_free(d->moe->options.device, d->dimm_mask) / 4;
	uint32_t rows = limits->slots;
	int r;

	if (room > Y_BYTES)
		room = Y_BYTES;
	if (rows > room / d->ldy)
		rows = (uint32_t)(room / d->ldy);
	if (!rows)
		rows = 1;
	/* Others may have been faster. */
	while ((r = ndp_io_create(&d->y, d->moe->options.device, d->dimm_mask, rows * d->ldy,
				  err)) == -ENOSPC && rows > 1)
		rows = (rows + 1) / 2;
	d->y_rows = rows;
	return r;
}

static void ndp_domain_close(struct ndpi_domain *d)
{
	if (!d)
		return;
	if (d->queue)
		ndp_queue_free(d->queue);
	ndp_io_free(d->y);
	ndp_io_free(d->x);
	free(d->commands);
	free(d->need);
	free(d);
}

static int ndp_domain_open(struct ndpi_domain **out, const struct ndpi_limits *limits,
			   struct ndp_error *err)
{
	struct ndp_device *dev = limits->moe->options.device;
	struct ndpi_domain *d = calloc(1, sizeof(*d));
	struct ndp_device_info info;
	size_t x_bytes;
	int r;

	if (!d)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	*out = d;
	d->moe = limits->moe;
	r = ndp_device_info(dev, &info);
	if (r < 0) {
		r = ndpi_fail(err, r, "the NDP device does not answer: %s", strerror(-r));
		goto error;
	}
	if (limits->tokens > MAX_ROWS) {
		r = ndpi_fail(err, -EINVAL, "batches of %u tokens wanted, DIMMs take at most %u",
			      limits->tokens, MAX_ROWS);
		goto error;
	}
	d->max_tokens = info.max_tokens;
	d->dimm_mask = info.dimm_mask;
	d->ldy = align_up(limits->moe->info.hidden * sizeof(float));
	d->lists = limits->tokens * limits->ldx * sizeof(ndp_bf16);
	x_bytes = align_up(d->lists + (size_t)limits->slots * sizeof(uint32_t));
	d->words = (limits->tokens + 63) / 64;
	d->need = calloc((size_t)d->words * NDP_MAX_DIMMS, sizeof(*d->need));
	d->max_commands = limits->moe->info.router.experts + 64;
	d->commands = calloc(d->max_commands, sizeof(*d->commands));
	if (!d->need || !d->commands) {
		r = ndpi_fail(err, -ENOMEM, "out of memory for batches of %u tokens",
			      limits->tokens);
		goto error;
	}
	r = ndp_io_create(&d->x, dev, d->dimm_mask, x_bytes, err);
	if (r == 0)
		r = create_y(d, limits, err);
	if (r == 0)
		r = ndp_queue_create(&d->queue, dev, QUEUE_DEPTH, err);
	if (r == 0)
		return 0;
error:
	ndp_domain_close(d);
	*out = NULL;
	return r;
}

/* What the device says of its DIMMs: the machine that they model. */
static void guess_dimm(struct ndp_device *dev, struct ndp_host *host)
{
	struct ndp_device_info info;
	struct ndp_dimm_info dimm;

	if (ndp_device_info(dev, &info) < 0 || !info.dimm_mask ||
	    ndp_dimm_info(dev, (uint32_t)__builtin_ctz(info.dimm_mask), &dimm) < 0)
		return;
	host->dimm.gflops = dimm.gflops;
	host->dimm.gbps = dimm.internal_mbps / 1e3;
	host->dimm.overhead_ns = dimm.overhead_ns;
	host->link_gbps = dimm.link_mbps / 1e3;
	host->link_latency_ns = dimm.link_latency_ns;
	host->dimm_bytes = dimm.mem_bytes;
}

static void ndp_domain_cost(const struct ndp_moe *moe, const struct ndp_host *rates,
			    struct ndp_host *host)
{
	if (!rates) {
		guess_dimm(moe->options.device, host);
		return;
	}
	host->dimm = rates->dimm;
	host->link_gbps = rates->link_gbps;
	host->link_latency_ns = rates->link_latency_ns;
}

/* ---- x ------------------------------------------------------------------------- */

/* The shared expert's tokens are all of them in order: a list would say nothing. */
static bool needs_list(const struct ndpi_batch *b, const struct ndpi_part *p)
{
	return p->id != NDP_EXPERT_SHARED && (b->tokens > 1 || p->tokens > 1);
}

static int write_rows(struct ndpi_domain *d, struct ndpi_batch *b, uint32_t dimm)
{
	const uint64_t *need = d->need + (size_t)dimm * d->words;
	const size_t row_bytes = b->ldx * sizeof(ndp_bf16);

	for (uint32_t t = 0; t < b->tokens;) {
		const uint32_t from = t;
		int r;

		while (t < b->tokens && need[t / 64] >> t % 64 & 1)
			t++;
		if (t == from) {
			t++;
			continue;
		}
		r = ndp_io_write(d->x, 1u << dimm, from * row_bytes, b->x + from * b->ldx,
				 (t - from) * row_bytes);
		if (r < 0)
			return r;
		b->report->x_bytes += (t - from) * row_bytes;
	}
	return 0;
}

static int write_x(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	uint32_t used = 0;

	for (uint32_t i = 0; i < d->nr_commands; i++)
		used |= d->commands[i].expected;
	for (uint32_t m = used; m; m &= m - 1)
		memset(d->need + (size_t)__builtin_ctz(m) * d->words, 0,
		       d->words * sizeof(*d->need));
	for (uint32_t i = 0; i < d->nr_commands; i++) {
		const struct command *c = &d->commands[i];
		const uint32_t *rows = b->rows + c->part->slot + c->from;
		int r;

		for (uint32_t m = c->expected; m; m &= m - 1) {
			uint64_t *need = d->need + (size_t)__builtin_ctz(m) * d->words;

			for (uint32_t t = 0; t < c->tokens; t++)
				need[rows[t] / 64] |= 1ULL << rows[t] % 64;
		}
		if (!needs_list(b, c->part))
			continue;
		r = ndp_io_write(d->x, c->expected, d->lists + (c->part->slot + c->from) *
				 sizeof(*rows), rows, c->tokens * sizeof(*rows));
		if (r < 0)
			return ndpi_fail(err, r, "layer %u: row lists cannot be written to DIMMs "
					 "0x%x: %s", b->layer, c->expected, strerror(-r));
		b->report->x_bytes += c->tokens * sizeof(*rows) *
				      (uint32_t)__builtin_popcount(c->expected);
	}
	for (uint32_t m = used; m; m &= m - 1) {
		const uint32_t dimm = (uint32_t)__builtin_ctz(m);
		int r = write_rows(d, b, dimm);

		if (r < 0)
			return ndpi_fail(err, r, "layer %u: activations cannot be written to DIMM "
					 "%u: %s", b->layer, dimm, strerror(-r));
	}
	return 0;
}

/* ---- commands ------------------------------------------------------------------- */

static int add_command(struct ndpi_domain *d, const struct command *c)
{
	if (d->nr_commands == d->max_commands) {
		struct command *more = reallocarray(d->commands, d->max_commands * 2ul,
						    sizeof(*more));

		if (!more)
			return -ENOMEM;
		d->commands = more;
		d->max_commands *= 2;
	}
	d->commands[d->nr_commands++] = *c;
	return 0;
}

static int ndp_domain_prepare(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	uint32_t cut = b->cut && b->cut < d->max_tokens ? b->cut : d->max_tokens;

	if (cut > d->y_rows)
		cut = d->y_rows;
	d->nr_commands = d->pushed = d->y_used = 0;
	d->failed = 0;
	memset(d->dimm_ns, 0, sizeof(d->dimm_ns));
	if (d->broken)
		return ndpi_fail(err, -EIO, "layer %u: the queue of commands has failed before: "
				 "create another context", b->layer);
	for (uint32_t i = 0; i < b->nr_parts; i++) {
		struct ndpi_part *p = &b->parts[i];
		/* Wherever that was; the library puts x where it is now. */
		const uint32_t expected = p->dimm_mask & d->dimm_mask;

		if (p->domain != NDP_DOMAIN_NDP || p->done)
			continue;
		for (uint32_t from = 0; from < p->tokens; from += cut) {
			const struct command c = {
				.part = p,
				.from = from,
				.tokens = p->tokens - from < cut ? p->tokens - from : cut,
				.expected = expected ? expected : d->dimm_mask & -d->dimm_mask,
			};

			if (add_command(d, &c) < 0)
				return ndpi_fail(err, -ENOMEM, "out of memory for %u commands",
						 d->nr_commands);
		}
	}
	return write_x(d, b, err);
}

static const char *what_to_do(int code)
{
	switch (code) {
	case -ENODEV:
	case -ENXIO:
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

static int explain(const struct ndpi_batch *b, const struct ndpi_part *p, const char *what,
		   int code, struct ndp_error *err)
{
	char name[32];

	return ndpi_fail(err, code, "layer %u %s: %s: %s (%s)", b->layer, ndpi_part_name(p, name),
			 what, strerror(-code), what_to_do(code));
}

static int push_one(struct ndpi_domain *d, struct ndpi_batch *b, uint32_t i)
{
	struct command *c = &d->commands[i];
	const struct ndpi_part *p = c->part;
	const size_t ldx = b->ldx * sizeof(ndp_bf16);
	const bool list = needs_list(b, p);
	struct ndp_cmd cmd = {
		.op = NDP_OP_FFN_EXPERT,
		.weights = p->expert->weights,
		.x = d->x,
		.y = d->y,
		.x_mask = c->expected,
		.first = p->first,
		.count = p->nr_blocks,
		.tokens = c->tokens,
		.x_rows = list ? b->tokens : 0,
		.act = b->moe->info.act,
		.alpha = b->moe->info.alpha,
		.limit = b->moe->info.limit,
		.x_off = list ? 0 : c->from * ldx,
		.rows_off = list ? d->lists + (p->slot + c->from) * sizeof(uint32_t) : 0,
		.y_off = d->y_used * d->ldy,
		.ldx = ldx,
		.ldy = d->ldy,
		.tag = i,
	};
	int r = ndp_queue_push(d->queue, &cmd);

	if (r == 0) {
		c->y_off = cmd.y_off;
		d->y_used += c->tokens;
	}
	return r;
}

/* As many commands as there is room for. */
static int push(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	int r = 0;

	while (d->pushed < d->nr_commands &&
	       d->y_used + d->commands[d->pushed].tokens <= d->y_rows) {
		r = push_one(d, b, d->pushed);
		if (r < 0)
			break;
		d->pushed++;
	}
	if (r < 0 && r != -EAGAIN)
		return explain(b, d->commands[d->pushed].part, "command was refused", r, err);
	r = ndp_queue_submit(d->queue);
	if (r < 0 && r != -EAGAIN && r != -EBUSY)
		return ndpi_fail(err, r, "layer %u: commands cannot be submitted: %s", b->layer,
				 strerror(-r));
	return 0;
}

static int ndp_domain_submit(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err)
{
	int r = push(d, b, err);

	if (r < 0)
		d->failed = r;
	return r;
}

/* ---- results -------------------------------------------------------------------- */

/* From the replicas into the output. */
static int add_to_output(struct ndpi_domain *d, struct ndpi_batch *b, const struct command *c,
			 uint32_t mask)
{
	const uint32_t n = b->moe->info.hidden, slot = c->part->slot + c->from;
	const char *base[NDP_MAX_DIMMS];
	uint32_t terms = 0;
	int r = ndp_io_invalidate(d->y, mask, c->y_off, c->tokens * d->ldy);

	if (r < 0)
		return r;
	for (uint32_t m = mask; m; m &= m - 1)
		base[terms++] = (const char *)ndp_io_ptr(d->y, (uint32_t)__builtin_ctz(m)) +
				c->y_off;
	for (uint32_t t = 0; t < c->tokens; t++) {
		const float *y[NDP_MAX_DIMMS];

		for (uint32_t i = 0; i < terms; i++)
			y[i] = (const float *)(base[i] + t * d->ldy);
		ndpi_add_scaled(b->out + b->rows[slot + t] * b->ld_out, y, terms,
				b->factors[slot + t], n);
	}
	return 0;
}

static int take(struct ndpi_domain *d, struct ndpi_batch *b, const struct ndp_result *res,
		struct ndp_error *err)
{
	const struct command *c = &d->commands[res->tag];
	const uint32_t n = b->moe->info.hidden;
	int r;

	if (res->retries || res->dimm_mask != c->expected || res->res < 0)
		ndpi_run_refresh(d->moe, b->layer, c->part->id);
	if (res->res < 0)
		return explain(b, c->part, "command failed", res->res, err);
	b->report->retries += res->retries;
	b->report->domain[NDP_DOMAIN_NDP].commands++;
	b->report->domain[NDP_DOMAIN_NDP].bytes += c->part->nr_blocks *
						   ndp_expert_block_bytes(c->part->shape);
	b->report->y_bytes += (uint64_t)c->tokens * n * sizeof(float) *
			      (uint32_t)__builtin_popcount(res->dimm_mask);
	for (uint32_t m = res->dimm_mask; m; m &= m - 1)
		d->dimm_ns[__builtin_ctz(m)] += res->modelled_ns;
	if (b->direct)
		r = add_to_output(d, b, c, res->dimm_mask);
	else
		r = ndp_io_reduce(d->y, res->dimm_mask, c->y_off, d->ldy,
				  c->part->y + c->from * b->ldy, b->ldy, c->tokens, n);
	if (r < 0)
		return explain(b, c->part, "results cannot be read", r, err);
	c->part->reduced = b->direct;
	return 0;
}

/* Takes at least @min results off the queue; a failure of the queue is for good. */
static int collect(struct ndpi_domain *d, struct ndpi_batch *b, unsigned int min,
		   struct ndp_error *err)
{
	struct ndp_result results[RESULTS];
	int n;

	do {
		n = ndp_queue_wait(d->queue, results, RESULTS, min);
	} while (n == -EINTR || (n == -EAGAIN && min));
	if (n == -EAGAIN)
		return 0;
	if (n < 0) {
		d->broken = true;
		d->failed = n;
		return ndpi_fail(err, n, "layer %u: the queue of commands failed: %s", b->layer,
				 strerror(-n));
	}
	for (int i = 0; i < n; i++) {
		int r = take(d, b, &results[i], d->failed ? NULL : err);

		if (r < 0 && !d->failed)
			d->failed = r;
	}
	return 0;
}

static int ndp_domain_complete(struct ndpi_domain *d, struct ndpi_batch *b, bool wait,
			       struct ndp_error *err)
{
	uint64_t longest = 0;

	for (;;) {
		if (ndp_queue_inflight(d->queue) && collect(d, b, wait, err) < 0)
			return d->failed;
		if (ndp_queue_inflight(d->queue)) {
			if (wait)
				continue;
			return 0;
		}
		if (d->failed)
			return d->failed;
		if (d->pushed == d->nr_commands)
			break;
		d->y_used = 0;
		d->failed = push(d, b, err);
	}
	for (uint32_t i = 0; i < NDP_MAX_DIMMS; i++)
		longest = d->dimm_ns[i] > longest ? d->dimm_ns[i] : longest;
	b->report->dimm_modelled_ns += longest;
	return 1;
}

static void ndp_domain_abandon(struct ndpi_domain *d)
{
	struct ndp_result results[RESULTS];

	while (!d->broken && ndp_queue_inflight(d->queue)) {
		int n = ndp_queue_wait(d->queue, results, RESULTS, 1);

		if (n < 0 && n != -EINTR && n != -EAGAIN)
			d->broken = true;
	}
}

const struct ndpi_domain_ops ndpi_domain_ndp = {
	.open = ndp_domain_open,
	.close = ndp_domain_close,
	.cost = ndp_domain_cost,
	.prepare = ndp_domain_prepare,
	.submit = ndp_domain_submit,
	.complete = ndp_domain_complete,
	.abandon = ndp_domain_abandon,
};
