// SPDX-License-Identifier: GPL-2.0-only
/*
 * cmd.c - GEMV, ACT and FFN: from what the caller asks for to hardware commands.
 *
 * The one validator, for SUBMIT and for io_uring.  It works on a private copy.
 * What the DIMMs need is computed from the object's map, of which the request
 * takes a reference under the object's lock: a migration that comes later does
 * not change what this command does, and one that came earlier is noticed,
 * because the caller then has written x to the wrong DIMMs (ESTALE).
 */
#include <linux/bitops.h>
#include <linux/sched/signal.h>

#include "ndp.h"
#include "trace.h"

/* Panels in one GEMV: h_out has 16 bits. */
#define NDP_MAX_PANELS		(U16_MAX / MOENDP_BLOCK_ROWS)

/* A command whose objects were found. */
struct ndp_work {
	struct ndp_file *file;
	u32 op;
	const struct moendp_cmd *cmd;
	struct ndp_bo *weights;		/* NULL: ACT */
	struct ndp_bo *x;
	struct ndp_bo *y;
	struct ndp_map *map;		/* of the weights */
	u32 need;			/* DIMMs that compute */
	u32 nr_parts;
};

/* Everything that can be told without looking at objects. */
static int ndp_cmd_check(struct ndp_file *file, u32 op,
			 const struct moendp_cmd *c)
{
	bool act = op == MOENDP_CMD_ACT;

	if (c->flags & ~(act ? 0 : MOENDP_CMD_ACCUMULATE | MOENDP_CMD_ROWS))
		return -EINVAL;
	if ((c->x_off | c->y_off | c->ldx | c->ldy) & 63 ||
	    c->ldx >> 6 > U16_MAX || c->ldy >> 6 > U16_MAX)
		return -EINVAL;
	if (c->flags & MOENDP_CMD_ROWS) {
		if (!c->x_rows || c->x_rows > U16_MAX || c->rows_off & 3)
			return -EINVAL;
	} else if (c->x_rows || (act ? c->rows_off & 63 : c->rows_off)) {
		return -EINVAL;
	}
	if (c->act > (op == MOENDP_CMD_GEMV ? 0 : MOENDP_ACT_SWIGLU_CLAMP))
		return -EINVAL;
	if (c->act != MOENDP_ACT_SWIGLU_CLAMP && (c->alpha || c->limit))
		return -EINVAL;
	if (!c->count || c->tokens > NDP_MAX_TOKENS)
		return -EINVAL;
	if (act && (c->weights || c->first || c->count > NDP_MAX_H ||
		    !c->x_mask))
		return -EINVAL;
	if (c->x_mask & ~file->mask)
		return -ENXIO;
	return 0;
}

/* Does a matrix of @rows rows lie inside a replica? */
static bool ndp_cmd_inside(const struct ndp_bo *bo, u64 off, u32 rows, u32 ld,
			   u64 row_bytes)
{
	u64 bytes = rows ? (u64)(rows - 1) * ld + row_bytes : 0;

	return row_bytes <= ld && bytes <= bo->bytes && off <= bo->bytes - bytes;
}

static int ndp_cmd_shape_act(const struct ndp_work *w)
{
	const struct moendp_cmd *c = w->cmd;

	if (!ndp_cmd_inside(w->x, c->x_off, c->tokens, c->ldx, c->count * 4) ||
	    !ndp_cmd_inside(w->x, c->rows_off, c->tokens, c->ldx,
			    c->count * 4) ||
	    !ndp_cmd_inside(w->y, c->y_off, c->tokens, c->ldy, c->count * 2))
		return -EINVAL;
	return 0;
}

/* Output rows that panels @first.. have. */
static u32 ndp_cmd_panel_rows(const struct ndp_bo *matrix, u32 first, u32 count)
{
	return min(matrix->rows - first * MOENDP_BLOCK_ROWS,
		   count * MOENDP_BLOCK_ROWS);
}

static int ndp_cmd_shape_weights(const struct ndp_work *w)
{
	const struct moendp_cmd *c = w->cmd;
	const struct ndp_bo *bo = w->weights;
	u32 x_rows = c->flags & MOENDP_CMD_ROWS ? c->x_rows : c->tokens;
	u32 h_out;

	if (c->first >= bo->nr_blocks || c->count > bo->nr_blocks - c->first)
		return -EINVAL;
	h_out = w->op == MOENDP_CMD_FFN ?
		bo->h_out : ndp_cmd_panel_rows(bo, c->first, c->count);
	if (!ndp_cmd_inside(w->x, c->x_off, x_rows, c->ldx, bo->h_in * 2) ||
	    !ndp_cmd_inside(w->y, c->y_off, c->tokens, c->ldy, h_out * 4ULL))
		return -EINVAL;
	if (c->flags & MOENDP_CMD_ROWS &&
	    !ndp_cmd_inside(w->x, c->rows_off, 1, U32_MAX, c->tokens * 4))
		return -EINVAL;
	return 0;
}

static void ndp_work_put(struct ndp_work *w)
{
	if (w->map)
		ndp_map_put(w->map);
	if (w->y)
		ndp_bo_put(w->y);
	if (w->x)
		ndp_bo_put(w->x);
	if (w->weights)
		ndp_bo_put(w->weights);
}

static int ndp_work_find(struct ndp_work *w)
{
	const struct moendp_cmd *c = w->cmd;

	if (w->op != MOENDP_CMD_ACT) {
		w->weights = ndp_bo_lookup(w->file, c->weights);
		if (!w->weights)
			return -ENOENT;
	}
	w->x = ndp_bo_lookup(w->file, c->x_bo);
	if (!w->x)
		return -ENOENT;
	w->y = ndp_bo_lookup(w->file, c->y_bo);
	if (!w->y)
		return -ENOENT;
	if (w->weights &&
	    (w->weights->type != (w->op == MOENDP_CMD_FFN ?
				  MOENDP_BO_EXPERT : MOENDP_BO_MATRIX) ||
	     !READ_ONCE(w->weights->sealed)))
		return -EBADF;
	if (w->x->type != MOENDP_BO_IO || w->y->type != MOENDP_BO_IO)
		return -EBADF;
	return w->weights ? ndp_cmd_shape_weights(w) : ndp_cmd_shape_act(w);
}

/* Blocks of @span that the command asks for. */
static u32 ndp_span_part(const struct ndp_span *span, const struct moendp_cmd *c,
			 u32 *first)
{
	u32 end = min(span->first + span->nr, c->first + c->count);

	*first = max(span->first, c->first);
	return end > *first ? end - *first : 0;
}

/* Which DIMMs compute, and with how many commands. */
static int ndp_work_plan(struct ndp_work *w)
{
	const struct moendp_cmd *c = w->cmd;
	u32 i, first, nr;
	int r;

	if (!w->weights) {
		w->need = c->x_mask;
		w->nr_parts = hweight32(w->need);
		return 0;
	}
	r = ndp_bo_map_get(w->weights, &w->map);
	if (r < 0)
		return r;
	for (i = 0; i < w->map->nr; i++) {
		nr = ndp_span_part(&w->map->span[i], c, &first);
		if (!nr)
			continue;
		w->need |= BIT(w->map->span[i].node);
		w->nr_parts += w->op == MOENDP_CMD_FFN ?
			       1 : DIV_ROUND_UP(nr, NDP_MAX_PANELS);
	}
	return 0;
}

/* The replica of an IO object on a DIMM that has one. */
static struct ndp_extent *ndp_replica(const struct ndp_bo *bo, u32 node)
{
	u32 below = bo->map->dimm_mask & (BIT(node) - 1);

	return bo->map->span[below ? hweight32(below) : 0].ext;
}

/*
 * Are weights, x and y in the same DIMM?  Not if one was replaced by another of
 * the same node id while they were looked up: offsets mean nothing there.
 */
static bool ndp_work_same_dimm(const struct ndp_work *w, u32 node,
			       const struct ndp_dimm *dimm)
{
	u32 i;

	if (ndp_replica(w->x, node)->dimm != dimm)
		return false;
	for (i = 0; w->map && i < w->map->nr; i++) {
		const struct ndp_span *span = &w->map->span[i];

		if (span->node == node && span->ext->dimm != dimm)
			return false;
	}
	return true;
}

/* Can all DIMMs that are needed do it, and does each have its x? */
static int ndp_work_ready(const struct ndp_work *w)
{
	u32 left, node;

	if (READ_ONCE(w->x->lost) || READ_ONCE(w->y->lost))
		return -ENODEV;
	if (w->need & ~(w->x->map->dimm_mask & w->y->map->dimm_mask))
		return -EXDEV;
	for (left = w->need; left; left &= left - 1) {
		struct ndp_dimm *dimm;

		node = __ffs(left);
		dimm = ndp_replica(w->y, node)->dimm;
		if (!ndp_work_same_dimm(w, node, dimm) ||
		    READ_ONCE(dimm->queue[NDP_Q_COMPUTE].dead))
			return -ENODEV;
		if (w->cmd->tokens > dimm->caps.max_tokens)
			return -EINVAL;
	}
	return w->need & ~w->cmd->x_mask ? -ESTALE : 0;
}

static struct ndp_part *ndp_work_add(const struct ndp_work *w,
				     struct ndp_req *req, u32 node, u8 opcode)
{
	const struct moendp_cmd *c = w->cmd;
	struct ndp_extent *x = ndp_replica(w->x, node);
	struct ndp_extent *y = ndp_replica(w->y, node);
	struct ndp_part *part;

	part = ndp_req_add(req, y->dimm, NDP_Q_COMPUTE, &w->file->flow[node]);
	part->cmd = (struct ndp_hw_cmd){
		.opcode = opcode,
		.x = cpu_to_le64(x->off + c->x_off),
		.y = cpu_to_le64(y->off + c->y_off),
		.tokens = cpu_to_le32(c->tokens),
		.ldx64 = cpu_to_le16(c->ldx >> 6),
		.ldy64 = cpu_to_le16(c->ldy >> 6),
	};
	if (c->flags & MOENDP_CMD_ACCUMULATE)
		part->cmd.flags = NDP_F_ACCUMULATE;
	if (c->flags & MOENDP_CMD_ROWS) {
		part->cmd.flags |= NDP_F_ROWS;
		part->cmd.x_rows = cpu_to_le16(c->x_rows);
		part->cmd.rows = cpu_to_le64(x->off + c->rows_off);
	}
	return part;
}

static void ndp_work_set_act(const struct ndp_work *w, struct ndp_part *part)
{
	part->cmd.act = w->cmd->act;
	part->cmd.alpha = cpu_to_le32(w->cmd->alpha);
	part->cmd.limit = cpu_to_le32(w->cmd->limit);
}

static void ndp_work_fill_act(const struct ndp_work *w, struct ndp_req *req)
{
	const struct moendp_cmd *c = w->cmd;
	u32 left, node;

	for (left = w->need; left; left &= left - 1) {
		struct ndp_part *part;

		node = __ffs(left);
		part = ndp_work_add(w, req, node, NDP_OP_ACT);
		part->cmd.rows = cpu_to_le64(ndp_replica(w->x, node)->off +
					     c->rows_off);
		part->cmd.h_out = cpu_to_le16(c->count);
		ndp_work_set_act(w, part);
	}
}

/* Ranges on one DIMM run one after the other, each adding to the ones before. */
static void ndp_work_fill_ffn(const struct ndp_work *w, struct ndp_req *req,
			      const struct ndp_span *span, u32 first, u32 nr)
{
	const struct ndp_bo *bo = w->weights;
	bool again = req->dimm_mask & BIT(span->node);
	struct ndp_part *part = ndp_work_add(w, req, span->node, NDP_OP_FFN);

	part->cmd.w = cpu_to_le64(span->ext->off +
				  (first - span->first) * bo->stride);
	part->cmd.count = cpu_to_le32(nr);
	part->cmd.h_in = cpu_to_le16(bo->h_in);
	part->cmd.h_out = cpu_to_le16(bo->h_out);
	if (again)
		part->cmd.flags |= NDP_F_ACCUMULATE;
	ndp_work_set_act(w, part);
}

static void ndp_work_fill_gemv(const struct ndp_work *w, struct ndp_req *req,
			       const struct ndp_span *span, u32 first, u32 nr)
{
	const struct ndp_bo *bo = w->weights;

	while (nr) {
		u32 count = min_t(u32, nr, NDP_MAX_PANELS);
		struct ndp_part *part = ndp_work_add(w, req, span->node,
						     NDP_OP_GEMV);
		u64 column = (first - w->cmd->first) * MOENDP_BLOCK_ROWS;

		part->cmd.w = cpu_to_le64(span->ext->off +
					  (first - span->first) * bo->stride);
		part->cmd.y = cpu_to_le64(le64_to_cpu(part->cmd.y) +
					  column * 4);
		part->cmd.count = cpu_to_le32(count);
		part->cmd.h_in = cpu_to_le16(bo->h_in);
		part->cmd.h_out = cpu_to_le16(ndp_cmd_panel_rows(bo, first,
								 count));
		first += count;
		nr -= count;
	}
}

static void ndp_work_fill(const struct ndp_work *w, struct ndp_req *req)
{
	u32 i, first, nr;

	if (!w->weights) {
		ndp_work_fill_act(w, req);
		return;
	}
	for (i = 0; i < w->map->nr; i++) {
		const struct ndp_span *span = &w->map->span[i];

		nr = ndp_span_part(span, w->cmd, &first);
		if (!nr)
			continue;
		if (w->op == MOENDP_CMD_FFN)
			ndp_work_fill_ffn(w, req, span, first, nr);
		else
			ndp_work_fill_gemv(w, req, span, first, nr);
	}
}

/* One more request of this file, if need be after waiting for another's end. */
static int ndp_work_admit(struct ndp_file *file, bool nonblock)
{
	if (likely(atomic_add_unless(&file->nr_reqs, 1, NDP_MAX_REQUESTS)))
		return 0;
	if (nonblock)
		return -EAGAIN;
	return wait_event_interruptible(file->room,
					atomic_add_unless(&file->nr_reqs, 1,
							  NDP_MAX_REQUESTS));
}

/* Turns @w, whose references it takes over, into a request. */
static int ndp_work_request(struct ndp_work *w, bool nonblock,
			    struct ndp_req **out)
{
	struct ndp_req *req;
	int r;

	r = ndp_work_admit(w->file, nonblock);
	if (r < 0)
		return r;
	req = ndp_req_alloc(w->nr_parts, nonblock ?
			    GFP_NOWAIT | __GFP_NOWARN : GFP_KERNEL);
	if (!req) {
		ndp_file_req_done(w->file);
		return nonblock ? -EAGAIN : -ENOMEM;
	}
	req->file = ndp_file_get(w->file);
	req->bo[0] = w->weights;
	req->bo[1] = w->x;
	req->bo[2] = w->y;
	req->map[0] = w->map;
	ndp_work_fill(w, req);
	*out = req;
	return 0;
}

/**
 * ndp_cmd_prepare() - check a command and make a request of it
 * @file: whose objects it names
 * @op: MOENDP_CMD_GEMV, MOENDP_CMD_ACT or MOENDP_CMD_FFN
 * @cmd: the caller's private copy
 * @nonblock: do not wait for memory or for other requests
 * @req: out: to be submitted; NULL when there is nothing to compute
 * @dimm_mask: out: the DIMMs that compute; with ESTALE: that would
 *
 * Return: 0 or a negative errno, EAGAIN only if @nonblock.
 */
int ndp_cmd_prepare(struct ndp_file *file, u32 op, const struct moendp_cmd *cmd,
		    bool nonblock, struct ndp_req **req, u32 *dimm_mask)
{
	struct ndp_work w = { .file = file, .op = op, .cmd = cmd };
	int r;

	*req = NULL;
	*dimm_mask = 0;
	r = ndp_cmd_check(file, op, cmd);
	if (r < 0)
		return r;
	r = ndp_work_find(&w);
	if (r < 0 || !cmd->tokens)
		goto put;
	r = ndp_work_plan(&w);
	if (r < 0)
		goto put;
	r = ndp_work_ready(&w);
	if (r == -ESTALE)
		*dimm_mask = w.need;
	if (r < 0)
		goto put;
	r = ndp_work_request(&w, nonblock, req);
	if (r < 0)
		goto put;
	*dimm_mask = w.need;
	trace_moendp_submit(file->domain->id, op, w.need, w.nr_parts,
			    cmd->tokens);
	return 0;
put:
	ndp_work_put(&w);
	return r;
}

int ndp_ioctl_submit(void *priv, struct ndp_call *call)
{
	struct moendp_submit *s = &call->submit;
	struct ndp_req *req;
	int r, reply;

	if (s->flags)
		return -EINVAL;
	if (s->op != MOENDP_CMD_GEMV && s->op != MOENDP_CMD_ACT &&
	    s->op != MOENDP_CMD_FFN)
		return -EINVAL;
	s->modelled_ns = 0;
	r = ndp_cmd_prepare(priv, s->op, &s->cmd, false, &req, &s->dimm_mask);
	if (r < 0 && r != -ESTALE)
		return r;
	if (req) {
		r = ndp_req_run(req, true);
		if (r == 0)
			s->modelled_ns = ndp_req_modelled_ns(req);
		ndp_req_put(req);
		if (r < 0)
			return r;
	}
	reply = ndp_call_reply(call);
	return reply < 0 ? reply : r;
}
