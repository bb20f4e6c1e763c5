/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kernel.c - the back end on moendp.ko: ioctls and mappings.
 *
 * kmod/uapi/moendp.h is the contract.  Handles stay in here.
 */
#include "kernel.h"

#include "discover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(struct ndp_range) == sizeof(struct moendp_range), "passed as is");
_Static_assert(NDP_MAX_RANGES == MOENDP_MAX_RANGES, "a placement fits");

static int call(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

/* ---- device ---------------------------------------------------------- */

static void kernel_close(struct ndp_device *dev)
{
	close(kernel_fd(dev));
	free(dev);
}

static int query(int fd, uint32_t dimm, struct moendp_query *q)
{
	memset(q, 0, sizeof(*q));
	q->size = sizeof(*q);
	q->dimm = dimm;
	return call(fd, MOENDP_IOC_QUERY, q);
}

static void uuid_text(char text[37], const uint8_t uuid[16])
{
	char *p = text;

	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static int kernel_info(struct ndp_device *dev, struct ndp_device_info *info)
{
	struct moendp_query q;
	int r = query(kernel_fd(dev), ((struct kernel_device *)dev)->a_dimm, &q);

	if (r < 0)
		return r;
	uuid_text(info->domain, q.domain);
	info->dimm_mask = q.dimm_mask;
	info->max_tokens = q.max_tokens;
	info->coherent = q.features & MOENDP_FEAT_COHERENT;
	info->link = q.features & MOENDP_FEAT_LINK;
	info->quota_bytes = q.quota_bytes;
	info->used_bytes = q.used_bytes;
	return 0;
}

static struct ndp_counters counters(const struct moendp_counters *c)
{
	return (struct ndp_counters){
		.commands = c->commands,
		.errors = c->errors,
		.tokens = c->tokens,
		.bytes = c->bytes,
		.busy_ns = c->busy_ns,
		.wall_ns = c->wall_ns,
	};
}

static int kernel_dimm_info(struct ndp_device *dev, uint32_t dimm, struct ndp_dimm_info *info)
{
	struct moendp_query q;
	int r = query(kernel_fd(dev), dimm, &q);

	if (r < 0)
		return r;
	info->state = (enum ndp_dimm_state)q.dimm_state;
	info->generation = q.generation;
	info->numa_node = q.numa_node;
	info->link_peers = q.link_peers;
	info->mem_bytes = q.mem_bytes;
	info->free_bytes = q.free_bytes;
	info->largest_free_bytes = q.largest_free_bytes;
	info->internal_mbps = q.internal_mbps;
	info->gflops = q.gflops;
	info->overhead_ns = q.overhead_ns;
	info->link_mbps = q.link_mbps;
	info->link_latency_ns = q.link_latency_ns;
	info->resets = q.resets;
	info->compute = counters(&q.compute);
	info->link = counters(&q.link);
	info->cache_lines_flushed = q.cache_lines_flushed;
	info->inflight = q.inflight;
	return 0;
}

/* ---- weights --------------------------------------------------------- */

static struct kernel_weights *kernel_weights(struct ndp_weights *w)
{
	return (struct kernel_weights *)w;
}

static struct ndp_weights *kernel_weights_alloc(void)
{
	struct kernel_weights *w = calloc(1, sizeof(*w));

	return w ? &w->base : NULL;
}

static size_t weights_bytes(const struct ndp_weights *w)
{
	return (size_t)w->nr_blocks * w->block_bytes;
}

static int kernel_weights_create(struct ndp_weights *w, const struct ndp_placement *p,
				 uint32_t allowed_mask, uint64_t cookie)
{
	struct moendp_bo_create c = {
		.size = sizeof(c),
		.type = w->matrix ? MOENDP_BO_MATRIX : MOENDP_BO_EXPERT,
		.cookie = cookie,
		.h_in = w->matrix ? w->mat.cols : w->expert.h_in,
		.h_out = w->matrix ? 0 : w->expert.h_out,
		.rows = w->matrix ? w->mat.rows : w->expert.neurons,
		.allowed_mask = allowed_mask,
		.ranges = (uintptr_t)p->ranges,
		.nr_ranges = p->nr_ranges,
	};
	int r = call(kernel_fd(w->dev), MOENDP_IOC_BO_CREATE, &c);

	if (r < 0)
		return r;
	kernel_weights(w)->handle = c.handle;
	kernel_weights(w)->map_offset = c.map_offset;
	return c.stride == w->block_bytes ? 0 : -EPROTO;
}

static void destroy_handle(struct ndp_device *dev, uint32_t handle)
{
	struct moendp_bo_destroy d = { .size = sizeof(d), .handle = handle };

	if (handle)
		call(kernel_fd(dev), MOENDP_IOC_BO_DESTROY, &d);
}

static void end_filling(struct kernel_weights *w)
{
	if (w->filling)
		munmap(w->filling, weights_bytes(&w->base));
	w->filling = NULL;
}

static void kernel_weights_destroy(struct ndp_weights *w)
{
	struct kernel_weights *k = kernel_weights(w);

	end_filling(k);
	if (w->map)
		munmap((void *)w->map, weights_bytes(w));
	destroy_handle(w->dev, k->handle);
	free(k);
}

static int map_weights(struct ndp_weights *w, int prot, void **p)
{
	void *m = mmap(NULL, weights_bytes(w), prot, MAP_SHARED, kernel_fd(w->dev),
		       (off_t)kernel_weights(w)->map_offset);

	if (m == MAP_FAILED)
		return -errno;
	*p = m;
	return 0;
}

static int kernel_weights_block(struct ndp_weights *w, uint32_t block, void **p)
{
	struct kernel_weights *k = kernel_weights(w);
	int r = k->filling ? 0 : map_weights(w, PROT_READ | PROT_WRITE, &k->filling);

	if (!r)
		*p = (char *)k->filling + block * w->block_bytes;
	return r;
}

static int kernel_weights_seal(struct ndp_weights *w)
{
	struct moendp_bo_seal s = { .size = sizeof(s), .handle = kernel_weights(w)->handle };

	end_filling(kernel_weights(w));
	return call(kernel_fd(w->dev), MOENDP_IOC_BO_SEAL, &s);
}

static int kernel_weights_map(struct ndp_weights *w, const void **p)
{
	void *m = NULL;
	int r = map_weights(w, PROT_READ, &m);

	*p = m;
	return r;
}

static int kernel_weights_info(struct ndp_weights *w, struct ndp_weights_info *info)
{
	struct moendp_bo_info i = {
		.size = sizeof(i),
		.handle = kernel_weights(w)->handle,
		.ranges = (uintptr_t)info->placement.ranges,
		.nr_ranges = NDP_MAX_RANGES,
	};
	int r = call(kernel_fd(w->dev), MOENDP_IOC_BO_INFO, &i);

	if (r < 0)
		return r;
	info->lost = i.state & MOENDP_BO_STATE_LOST;
	info->cookie = i.cookie;
	info->id = i.id;
	info->moves = i.moves;
	info->allowed_mask = i.allowed_mask;
	info->placement.nr_ranges = i.nr_ranges;
	return 0;
}

static int kernel_weights_migrate(struct ndp_weights *w, const struct ndp_placement *to,
				  struct ndp_move *move)
{
	struct moendp_migrate m = {
		.size = sizeof(m),
		.handle = kernel_weights(w)->handle,
		.ranges = (uintptr_t)to->ranges,
		.nr_ranges = to->nr_ranges,
	};
	int r = call(kernel_fd(w->dev), MOENDP_IOC_MIGRATE, &m);

	if (r < 0)
		return r;
	move->bytes = m.bytes;
	move->modelled_ns = m.modelled_ns;
	return 0;
}

/* ---- activations ----------------------------------------------------- */

static struct ndp_io *kernel_io_alloc(void)
{
	struct kernel_io *io = calloc(1, sizeof(*io));

	return io ? &io->base : NULL;
}

static int kernel_io_create(struct ndp_io *base, uint32_t mask, size_t bytes)
{
	struct moendp_bo_create c = {
		.size = sizeof(c),
		.type = MOENDP_BO_IO,
		.dimm_mask = mask,
		.bytes = bytes,
	};
	struct kernel_io *io = (struct kernel_io *)base;
	unsigned int n = 0;
	int r = call(kernel_fd(base->dev), MOENDP_IOC_BO_CREATE, &c);

	if (r < 0)
		return r;
	io->handle = c.handle;
	io->map_bytes = c.stride * (size_t)__builtin_popcount(mask);
	io->map = mmap(NULL, io->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		       kernel_fd(base->dev), (off_t)c.map_offset);
	if (io->map == MAP_FAILED) {
		io->map = NULL;
		return -errno;
	}
	for (uint32_t m = mask; m; m &= m - 1)
		base->replica[ndpi_lowest(m)] = (char *)io->map + n++ * c.stride;
	base->mask = mask;
	base->bytes = bytes;
	return 0;
}

static void kernel_io_destroy(struct ndp_io *base)
{
	struct kernel_io *io = (struct kernel_io *)base;

	if (io->map)
		munmap(io->map, io->map_bytes);
	destroy_handle(base->dev, io->handle);
	free(io);
}

/* ---- commands -------------------------------------------------------- */

static uint32_t float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

uint32_t ndpi_kernel_command(const struct ndpi_request *req, struct moendp_cmd *cmd)
{
	const struct ndp_cmd *c = &req->cmd;
	bool act = c->op != NDP_OP_ACT_MUL;

	*cmd = (struct moendp_cmd){
		.weights = act ? kernel_weights(c->weights)->handle : 0,
		.x_bo = ((struct kernel_io *)c->x)->handle,
		.y_bo = ((struct kernel_io *)c->y)->handle,
		.flags = (c->accumulate ? MOENDP_CMD_ACCUMULATE : 0) |
			 (c->x_rows ? MOENDP_CMD_ROWS : 0),
		.x_mask = req->x_mask,
		.first = c->first,
		.count = c->count,
		.tokens = c->tokens,
		.x_rows = c->x_rows,
		.act = (uint32_t)c->act,
		.x_off = c->x_off,
		.y_off = c->y_off,
		.rows_off = c->rows_off,
		.ldx = (uint32_t)c->ldx,
		.ldy = (uint32_t)c->ldy,
	};
	if (c->act == NDP_ACT_CLAMPED_SWIGLU) {
		cmd->alpha = float_bits(c->alpha);
		cmd->limit = float_bits(c->limit);
	}
	switch (c->op) {
	case NDP_OP_GEMV_MATRIX:
		return MOENDP_CMD_GEMV;
	case NDP_OP_ACT_MUL:
		return MOENDP_CMD_ACT;
	default:
		return MOENDP_CMD_FFN;
	}
}

static void kernel_run(struct ndp_device *dev, struct ndpi_request *req)
{
	struct moendp_submit s = { .size = sizeof(s) };

	s.op = ndpi_kernel_command(req, &s.cmd);
	req->res = call(kernel_fd(dev), MOENDP_IOC_SUBMIT, &s);
	req->dimm_mask = s.dimm_mask;
	req->modelled_ns = s.modelled_ns;
}

/* ---- placement for others -------------------------------------------- */

static int kernel_placement_fd(struct ndp_device *dev)
{
	struct moendp_placement_fd p = { .size = sizeof(p) };
	int r = call(kernel_fd(dev), MOENDP_IOC_PLACEMENT_FD, &p);

	return r < 0 ? r : p.fd;
}

static int kernel_placement_revoke(struct ndp_device *dev)
{
	struct moendp_placement_revoke p = { .size = sizeof(p) };

	return call(kernel_fd(dev), MOENDP_IOC_PLACEMENT_REVOKE, &p);
}

int ndpi_kernel_placement_list(int fd, uint64_t *start, struct ndp_placement_entry *entries,
			       size_t max)
{
	struct moendp_placement_entry room[32];
	struct moendp_placement_list l = {
		.size = sizeof(l),
		.start = *start,
		.entries = (uintptr_t)room,
		.nr_entries = max < 32 ? (uint32_t)max : 32,
	};
	int r = call(fd, MOENDP_IOC_PLACEMENT_LIST, &l);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < l.nr_entries; i++) {
		const struct moendp_placement_entry *e = &room[i];

		entries[i] = (struct ndp_placement_entry){
			.id = e->id,
			.cookie = e->cookie,
			.bytes = e->bytes,
			.block_bytes = e->block_bytes,
			.nr_blocks = e->nr_blocks,
			.allowed_mask = e->allowed_mask,
			.dimm_mask = e->dimm_mask,
			.matrix = e->type == MOENDP_BO_MATRIX,
			.lost = e->state & MOENDP_BO_STATE_LOST,
			.moving = e->state & MOENDP_BO_STATE_MOVING,
		};
	}
	*start = l.start;
	return (int)l.nr_entries;
}

int ndpi_kernel_placement_get(int fd, uint64_t id, struct ndp_placement *placement)
{
	struct moendp_placement_info i = {
		.size = sizeof(i),
		.id = id,
		.ranges = (uintptr_t)placement->ranges,
		.nr_ranges = NDP_MAX_RANGES,
	};
	int r = call(fd, MOENDP_IOC_PLACEMENT_INFO, &i);

	if (r < 0)
		return r;
	placement->nr_ranges = i.nr_ranges;
	return 0;
}

int ndpi_kernel_placement_migrate(int fd, uint64_t id, const struct ndp_placement *to,
				  struct ndp_move *move)
{
	struct moendp_placement_migrate m = {
		.size = sizeof(m),
		.id = id,
		.ranges = (uintptr_t)to->ranges,
		.nr_ranges = to->nr_ranges,
	};
	int r = call(fd, MOENDP_IOC_PLACEMENT_MIGRATE, &m);

	if (r < 0)
		return r;
	if (move)
		*move = (struct ndp_move){ .bytes = m.bytes, .modelled_ns = m.modelled_ns };
	return 0;
}

/* ---- opening --------------------------------------------------------- */

static const struct ndpi_backend_ops kernel_ops = {
	.request_bytes = sizeof(struct ndpi_request),
	.close = kernel_close,
	.info = kernel_info,
	.dimm_info = kernel_dimm_info,
	.weights_alloc = kernel_weights_alloc,
	.weights_create = kernel_weights_create,
	.weights_destroy = kernel_weights_destroy,
	.weights_block = kernel_weights_block,
	.weights_seal = kernel_weights_seal,
	.weights_map = kernel_weights_map,
	.weights_info = kernel_weights_info,
	.weights_migrate = kernel_weights_migrate,
	.io_alloc = kernel_io_alloc,
	.io_create = kernel_io_create,
	.io_destroy = kernel_io_destroy,
	.run = kernel_run,
	.queue_alloc = ndpi_kernel_queue_alloc,
	.queue_create = ndpi_kernel_queue_create,
	.queue_destroy = ndpi_kernel_queue_destroy,
	.queue_push = ndpi_kernel_queue_push,
	.queue_submit = ndpi_kernel_queue_submit,
	.queue_reap = ndpi_kernel_queue_reap,
	.placement_fd = kernel_placement_fd,
	.placement_revoke = kernel_placement_revoke,
};

_Static_assert(sizeof(struct ndpi_request) <= NDPI_REQUEST_MAX, "fits ndp_run()");

/* /dev/ndpNdK knows DIMM K only: find one that answers. */
static int first_query(int fd, struct moendp_query *q, uint32_t *dimm)
{
	int r = -ENXIO;

	for (*dimm = 0; *dimm < NDP_MAX_DIMMS && r == -ENXIO; ++*dimm)
		r = query(fd, *dimm, q);
	--*dimm;
	return r;
}

int ndpi_kernel_open(struct ndp_device **out, const char *path, struct ndp_error *err)
{
	struct kernel_device *dev;
	struct moendp_query q;
	uint32_t dimm;
	int fd, r;

	if (strlen(path) >= sizeof(dev->base.name))
		return ndpi_fail(err, -ENAMETOOLONG,
				 "cannot open %.300s: a device's path has at most %zu bytes", path,
				 sizeof(dev->base.name) - 1);
	do {
		fd = open(path, O_RDWR | O_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return ndpi_explain_open(&ndpi_system_roots, path, -errno, err);
	r = first_query(fd, &q, &dimm);
	if (r == -ENOTTY || r == -EINVAL)
		r = ndpi_fail(
			err, -ENOTTY,
			"%s is not a device of the moendp driver (is it a node like /dev/ndp0?)",
			path);
	else if (r < 0)
		ndpi_fail(err, r, "%s does not say what it is: %s", path, strerror(-r));
	else if (q.abi != MOENDP_ABI_VERSION)
		r = ndpi_fail(err, -EPROTO,
			      "%s speaks version %u of the interface, this library version %u: update the older of driver and library",
			      path, q.abi, MOENDP_ABI_VERSION);
	if (r < 0) {
		close(fd);
		return r;
	}
	dev = calloc(1, sizeof(*dev));
	if (!dev) {
		close(fd);
		return ndpi_fail(err, -ENOMEM, "no memory to open %s", path);
	}
	dev->fd = fd;
	dev->a_dimm = dimm;
	dev->base.ops = &kernel_ops;
	dev->base.refs = 1;
	dev->base.max_tokens = q.max_tokens;
	dev->base.coherent = q.features & MOENDP_FEAT_COHERENT;
	memcpy(dev->base.name, path, strlen(path) + 1);
	*out = &dev->base;
	return 0;
}
