// SPDX-License-Identifier: GPL-2.0-only
/*
 * transfer.c - the driver's own commands: zeroing what was allocated, copying
 * what migrates.
 *
 * Both run on link queues, so that they never block a computation.  Where the
 * DIMM does not see CPU caches, lines of the destination are thrown out before
 * (nothing old may be written back over the new content) and after (nothing
 * old may be read).
 */
#include "ndp.h"

/* Of a FILL that a reset cut short. */
#define NDP_ZERO_TRIES		4

static u32 ndp_chunks(const struct ndp_extent *ext, u64 bytes)
{
	return DIV_ROUND_UP_ULL(bytes, ext->dimm->caps.max_copy);
}

static struct ndp_part *ndp_link_part(struct ndp_req *req,
				      struct ndp_dimm *dimm, u8 opcode)
{
	struct ndp_part *part = ndp_req_add(req, dimm, NDP_Q_LINK,
					    &dimm->flow[NDP_Q_LINK]);

	part->cmd = (struct ndp_hw_cmd){ .opcode = opcode };
	return part;
}

static int ndp_map_zero_once(struct ndp_map *map)
{
	struct ndp_req *req;
	u32 i, nr = 0;
	int r;

	for (i = 0; i < map->nr; i++)
		nr += ndp_chunks(map->span[i].ext, map->span[i].ext->bytes);
	req = ndp_req_alloc(nr, GFP_KERNEL);
	if (!req)
		return -ENOMEM;
	req->map[0] = ndp_map_get(map);
	for (i = 0; i < map->nr; i++) {
		struct ndp_extent *ext = map->span[i].ext;
		u64 off, bytes;

		for (off = 0; off < ext->bytes; off += bytes) {
			struct ndp_part *part = ndp_link_part(req, ext->dimm,
							      NDP_OP_FILL);

			bytes = min_t(u64, ext->bytes - off,
				      ext->dimm->caps.max_copy);
			part->cmd.y = cpu_to_le64(ext->off + off);
			part->cmd.x = cpu_to_le64(bytes);
		}
	}
	r = ndp_req_run(req, true);
	ndp_req_put(req);
	return r;
}

/* All of a new map.  A killed caller's commands go on by themselves. */
int ndp_map_zero(struct ndp_map *map)
{
	int tries = NDP_ZERO_TRIES;
	int r;

	ndp_flush_map(map);
	do {
		r = ndp_map_zero_once(map);
	} while (r == -ECANCELED && --tries);
	if (r == 0)
		ndp_flush_map(map);
	return r;
}

/* One run of blocks that is contiguous on both sides. */
struct ndp_run {
	const struct ndp_span *from;
	u64 from_off;
	u64 to_off;
	u64 bytes;
};

/* What the blocks of @to from @block on have in common with a span of @from. */
static u32 ndp_run_find(const struct ndp_span *to, struct ndp_map *from,
			u32 block, u64 block_bytes, struct ndp_run *run)
{
	u32 nr;

	run->from = ndp_map_find(from, block);
	nr = min(to->first + to->nr, run->from->first + run->from->nr) - block;
	run->from_off = run->from->ext->off +
			(block - run->from->first) * block_bytes;
	run->to_off = to->ext->off + (block - to->first) * block_bytes;
	run->bytes = nr * block_bytes;
	return nr;
}

static void ndp_run_add(struct ndp_req *req, struct ndp_dimm *dimm,
			const struct ndp_run *run)
{
	bool local = run->from->ext->dimm == dimm;
	u64 off, bytes;

	for (off = 0; off < run->bytes; off += bytes) {
		struct ndp_part *part;

		part = ndp_link_part(req, dimm,
				     local ? NDP_OP_COPY : NDP_OP_LINK_COPY);
		bytes = min_t(u64, run->bytes - off, dimm->caps.max_copy);
		part->cmd.w = cpu_to_le64(run->from_off + off);
		part->cmd.y = cpu_to_le64(run->to_off + off);
		part->cmd.x = cpu_to_le64(bytes);
		if (!local)
			part->cmd.count = cpu_to_le32(run->from->node);
	}
}

/**
 * ndp_map_copy() - copy an object to its new place
 * @to: new map; spans that share their extent with @from have all they need
 * @from: old map
 * @block_bytes: of the object
 * @bytes: out: copied
 * @modelled_ns: out: of all copies, one after another
 *
 * Returns when nothing is under way any more, whatever happened.
 */
int ndp_map_copy(struct ndp_map *to, struct ndp_map *from, u64 block_bytes,
		 u64 *bytes, u64 *modelled_ns)
{
	struct ndp_req *req = NULL;
	struct ndp_run run;
	u32 i, block, nr = 0;
	int r;

	*bytes = 0;
	*modelled_ns = 0;
	/* First time round they are counted, the second time added. */
again:
	for (i = 0; i < to->nr; i++) {
		const struct ndp_span *span = &to->span[i];
		u32 end = span->first + span->nr;

		if (ndp_map_find(from, span->first)->ext == span->ext)
			continue;
		for (block = span->first; block < end;) {
			block += ndp_run_find(span, from, block, block_bytes,
					      &run);
			if (req)
				ndp_run_add(req, span->ext->dimm, &run);
			else
				nr += ndp_chunks(span->ext, run.bytes);
			if (req)
				*bytes += run.bytes;
		}
	}
	if (!nr)
		return 0;
	if (!req) {
		req = ndp_req_alloc(nr, GFP_KERNEL);
		if (!req)
			return -ENOMEM;
		goto again;
	}
	req->map[0] = ndp_map_get(to);
	req->map[1] = ndp_map_get(from);
	ndp_flush_map(to);
	r = ndp_req_run(req, false);
	if (r == 0)
		ndp_flush_map(to);
	for (i = 0; i < req->nr_parts; i++)
		*modelled_ns += req->parts[i].modelled_ns;
	ndp_req_put(req);
	return r;
}
