/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * command.c - the life of one command: checked, submitted, submitted again
 * when the weights have moved, finished.
 *
 * The retry lives here and nowhere else.  A back end that finds a DIMM missing
 * from x_mask executes nothing and answers ESTALE with the mask it needs.  The
 * missing replicas of x (and of the row list) are then filled from one that the
 * caller wrote, and the command goes out again with the union of both masks.  A
 * mask of 32 bits can only grow 32 times, so this ends.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

/* A rectangle in a replica. */
struct area {
	size_t off;
	size_t ld;
	size_t row_bytes;
	uint64_t rows;
};

static bool area_fits(const struct area *a, const struct ndp_io *io)
{
	size_t span;

	return !__builtin_mul_overflow(a->ld, a->rows - 1, &span) &&
	       !__builtin_add_overflow(span, a->row_bytes, &span) &&
	       !__builtin_add_overflow(span, a->off, &span) && span <= io->bytes;
}

/* Strides go over the wire as 16 bits in units of 64 bytes. */
static bool stride_ok(size_t ld, size_t row_bytes)
{
	return ld >= row_bytes && ld / 64 <= UINT16_MAX && !(ld % 64);
}

static uint32_t inputs(const struct ndp_cmd *c)
{
	return c->weights->matrix ? c->weights->mat.cols : c->weights->expert.h_in;
}

/* Columns of y. */
static uint64_t outputs(const struct ndp_cmd *c)
{
	uint64_t first = (uint64_t)c->first * NDP_BLOCK_ROWS;
	uint64_t rows = (uint64_t)c->count * NDP_BLOCK_ROWS;

	if (!c->weights->matrix)
		return c->weights->expert.h_out;
	return rows < c->weights->mat.rows - first ? rows : c->weights->mat.rows - first;
}

static struct area x_area(const struct ndp_cmd *c)
{
	return (struct area){ .off = c->x_off, .ld = c->ldx, .row_bytes = (size_t)inputs(c) * 2,
			      .rows = c->x_rows ? c->x_rows : c->tokens };
}

static struct area y_area(const struct ndp_cmd *c)
{
	return (struct area){ .off = c->y_off, .ld = c->ldy, .row_bytes = outputs(c) * 4,
			      .rows = c->tokens };
}

static struct area rows_area(const struct ndp_cmd *c)
{
	return (struct area){ .off = c->rows_off, .ld = 0, .row_bytes = (size_t)c->tokens * 4,
			      .rows = 1 };
}

static bool offsets_aligned(const struct ndp_cmd *c)
{
	size_t rows_to = c->op != NDP_OP_ACT_MUL ? 4 : 64;

	return !((c->x_off | c->y_off) % 64) && !(c->rows_off % rows_to);
}

static int check_act(const struct ndp_cmd *c)
{
	if (c->act == NDP_ACT_SILU_MUL)
		return 0;
	if (c->act != NDP_ACT_CLAMPED_SWIGLU || c->alpha != c->alpha || !(c->limit > 0))
		return -EINVAL;
	return 0;
}

/* What holds for FFN and GEMV; fills in count. */
static int check_multiply(struct ndp_cmd *c)
{
	struct area x, y, rows;

	if (!c->weights)
		return -EINVAL;
	if (c->weights->matrix != (c->op == NDP_OP_GEMV_MATRIX) || !ndpi_is_sealed(c->weights))
		return -EBADF;
	if (!c->count && !c->first)
		c->count = c->weights->nr_blocks;
	if (!c->count || c->first >= c->weights->nr_blocks ||
	    c->count > c->weights->nr_blocks - c->first)
		return -EINVAL;
	if (c->op == NDP_OP_FFN_EXPERT ? check_act(c) < 0 : c->act != 0)
		return -EINVAL;
	if (c->x_rows > UINT16_MAX || (!c->x_rows && c->rows_off))
		return -EINVAL;
	if (!c->tokens)
		return 0;
	x = x_area(c);
	y = y_area(c);
	rows = rows_area(c);
	if (!stride_ok(c->ldx, x.row_bytes) || !stride_ok(c->ldy, y.row_bytes) ||
	    !area_fits(&x, c->x) || !area_fits(&y, c->y) ||
	    (c->x_rows && !area_fits(&rows, c->x)))
		return -EINVAL;
	return 0;
}

static int check_act_mul(const struct ndp_cmd *c)
{
	size_t in = (size_t)c->count * 4, out = (size_t)c->count * 2;
	struct area gate = { .off = c->x_off, .ld = c->ldx, .row_bytes = in, .rows = c->tokens };
	struct area up = { .off = c->rows_off, .ld = c->ldx, .row_bytes = in, .rows = c->tokens };
	struct area y = { .off = c->y_off, .ld = c->ldy, .row_bytes = out, .rows = c->tokens };

	if (c->weights || c->first || c->x_rows || c->accumulate || check_act(c) < 0 || !c->count ||
	    c->count > NDPI_MAX_H)
		return -EINVAL;
	if (!c->tokens)
		return 0;
	if (!stride_ok(c->ldx, in) || !stride_ok(c->ldy, out) || !area_fits(&gate, c->x) ||
	    !area_fits(&up, c->x) || !area_fits(&y, c->y))
		return -EINVAL;
	return c->x_mask & ~c->y->mask ? -EXDEV : 0;
}

static int check_compute(struct ndp_device *dev, struct ndp_cmd *c)
{
	if (!c->x || !c->y || c->x->dev != dev || c->y->dev != dev ||
	    (c->weights && c->weights->dev != dev))
		return -EINVAL;
	if (!c->x_mask || c->x_mask & ~c->x->mask)
		return -EINVAL;
	if (c->tokens > dev->max_tokens || !offsets_aligned(c))
		return -EINVAL;
	return c->op == NDP_OP_ACT_MUL ? check_act_mul(c) : check_multiply(c);
}

static int check_migrate(struct ndp_device *dev, const struct ndp_cmd *c)
{
	if (!c->weights || c->weights->dev != dev || !c->to)
		return -EINVAL;
	if (!ndpi_is_sealed(c->weights))
		return -EBADF;
	return ndp_placement_check(c->to, c->weights->nr_blocks, UINT32_MAX, NULL);
}

static int check(struct ndp_device *dev, struct ndp_cmd *c)
{
	switch (c->op) {
	case NDP_OP_FFN_EXPERT:
	case NDP_OP_GEMV_MATRIX:
	case NDP_OP_ACT_MUL:
		return check_compute(dev, c);
	case NDP_OP_MIGRATE_WEIGHTS:
		return check_migrate(dev, c);
	}
	return -EINVAL;
}

static void write_back(const struct ndp_device *dev, const void *p, size_t bytes)
{
	if (!dev->coherent)
		ndpi_cache_write_back(p, bytes);
}

/* A GEMV writes only the rows that a DIMM holds; the others must add nothing. */
static void zero_y(const struct ndp_cmd *c, uint32_t mask)
{
	struct area y = y_area(c);

	for (mask &= c->y->mask; mask; mask &= mask - 1) {
		char *p = (char *)c->y->replica[ndpi_lowest(mask)] + y.off;

		for (uint64_t t = 0; t < y.rows; t++, p += y.ld) {
			memset(p, 0, y.row_bytes);
			write_back(c->y->dev, p, y.row_bytes);
		}
	}
}

/*
 * What is there already is not written again: another command may be reading it,
 * and two threads may not touch the same bytes when one of them writes.
 */
static void copy_part(const struct ndp_io *io, uint32_t from, uint32_t to, size_t off, size_t bytes)
{
	const char *src = (const char *)io->replica[from] + off;
	char *dst = (char *)io->replica[to] + off;

	if (!io->dev->coherent) {
		ndpi_cache_invalidate(src, bytes);
		ndpi_cache_invalidate(dst, bytes);
	}
	if (!memcmp(dst, src, bytes))
		return;
	memcpy(dst, src, bytes);
	write_back(io->dev, dst, bytes);
}

/* Only what the command reads: what lies between belongs to others. */
static void copy_x(const struct ndp_cmd *c, uint32_t from, uint32_t to)
{
	struct area x = x_area(c), rows = rows_area(c);
	const uint32_t *list;

	if (!c->x_rows) {
		for (uint64_t t = 0; t < x.rows; t++)
			copy_part(c->x, from, to, x.off + t * x.ld, x.row_bytes);
		return;
	}
	copy_part(c->x, from, to, rows.off, rows.row_bytes);
	list = (const void *)((const char *)c->x->replica[from] + rows.off);
	for (uint32_t t = 0; t < c->tokens; t++) {
		uint32_t row = __atomic_load_n(&list[t], __ATOMIC_RELAXED);

		if (row < c->x_rows) /* else the DIMM refuses the command */
			copy_part(c->x, from, to, x.off + row * x.ld, x.row_bytes);
	}
}

int ndpi_request_prepare(struct ndpi_request *req, struct ndp_device *dev,
			 const struct ndp_cmd *cmd)
{
	int r;

	req->cmd = *cmd;
	r = check(dev, &req->cmd);
	if (r < 0)
		return r;
	req->x_mask = cmd->x_mask;
	req->retries = 0;
	req->res = 0;
	req->dimm_mask = 0;
	req->modelled_ns = 0;
	if (cmd->op == NDP_OP_GEMV_MATRIX && !cmd->accumulate && cmd->tokens)
		zero_y(&req->cmd, req->x_mask);
	return 0;
}

bool ndpi_request_needs_retry(struct ndpi_request *req)
{
	const struct ndp_cmd *c = &req->cmd;
	uint32_t missing = req->dimm_mask & ~req->x_mask;

	if (req->res != -ESTALE)
		return false;
	if (!missing) {
		req->res = -EIO; /* asks for what it has: no progress to expect */
		req->dimm_mask = 0;
		return false;
	}
	if (missing & ~(c->x->mask & c->y->mask)) {
		req->res = -EXDEV;
		req->dimm_mask = 0;
		return false;
	}
	for (uint32_t m = missing; m; m &= m - 1)
		copy_x(c, ndpi_lowest(c->x_mask), ndpi_lowest(m));
	if (c->op == NDP_OP_GEMV_MATRIX && !c->accumulate)
		zero_y(c, missing);
	req->x_mask |= missing;
	req->retries++;
	return true;
}

void ndpi_request_result(const struct ndpi_request *req, struct ndp_result *result)
{
	*result = (struct ndp_result){
		.tag = req->cmd.tag,
		.res = req->res,
		.dimm_mask = req->res ? 0 : req->dimm_mask,
		.modelled_ns = req->modelled_ns,
		.retries = req->retries,
	};
}

static void run_migrate(struct ndpi_request *req)
{
	struct ndp_move move = { 0 };

	req->res = req->cmd.weights->dev->ops->weights_migrate(req->cmd.weights, req->cmd.to,
							       &move);
	req->modelled_ns = move.modelled_ns;
	req->dimm_mask = ndp_placement_mask(req->cmd.to);
}

int ndp_run(struct ndp_device *dev, const struct ndp_cmd *cmd, struct ndp_result *result)
{
	_Alignas(64) char space[NDPI_REQUEST_MAX];
	struct ndpi_request *req = (struct ndpi_request *)space;
	int r;

	memset(space, 0, dev->ops->request_bytes);
	r = ndpi_request_prepare(req, dev, cmd);
	if (r < 0) {
		req->cmd.tag = cmd->tag;
		req->res = r;
	} else if (cmd->op == NDP_OP_MIGRATE_WEIGHTS) {
		run_migrate(req);
	} else if (cmd->tokens) {
		do {
			dev->ops->run(dev, req);
		} while (ndpi_request_needs_retry(req));
	}
	if (result)
		ndpi_request_result(req, result);
	return req->res;
}
