/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * weights.c - experts and matrices: created, filled, sealed, mapped, moved.
 *
 * Blocks are packed straight into the memory of the DIMM.  Once sealed they are
 * only ever read.
 */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static int check_dimension(struct ndp_error *err, const char *name, uint32_t n)
{
	if (n && n <= NDPI_MAX_H)
		return 0;
	return ndpi_fail(err, -EINVAL, "%s is %u: wanted 1 to %d", name, n, NDPI_MAX_H);
}

static int explain_absent(struct ndp_device *dev, const char *what, const struct ndp_placement *p,
			  int r, struct ndp_error *err)
{
	struct ndp_device_info info;
	uint32_t there = ndp_device_info(dev, &info) < 0 ? 0 : info.dimm_mask;

	return ndpi_fail(err, r,
			 "%s: wanted on the DIMMs of mask 0x%" PRIx32 ", %s has 0x%" PRIx32
			 ": a DIMM is gone, or was never there",
			 what, ndp_placement_mask(p), dev->name, there);
}

/* What to tell about a failed allocation: errno alone does not say how much. */
static int explain_create(struct ndp_weights *w, const struct ndp_placement *p,
			  uint32_t allowed_mask, int r, struct ndp_error *err)
{
	const char *what = w->matrix ? "matrix" : "expert";
	struct ndp_dimm_info info;

	switch (r) {
	case -ENOSPC:
		for (uint32_t i = 0; i < p->nr_ranges; i++) {
			uint64_t want = (uint64_t)p->ranges[i].nr_blocks * w->block_bytes;

			if (ndp_dimm_info(w->dev, p->ranges[i].dimm, &info) < 0 ||
			    info.largest_free_bytes > want)
				continue;
			return ndpi_fail(err, r,
					 "%s: %" PRIu64 " contiguous bytes wanted on DIMM %u, which has %" PRIu64
					 " free, the largest piece being %" PRIu64
					 ": use another placement or larger DIMMs",
					 what, want, p->ranges[i].dimm, info.free_bytes,
					 info.largest_free_bytes);
		}
		return ndpi_fail(err, r,
				 "%s: no contiguous room for %" PRIu64
				 " bytes in this placement (1/16 of each DIMM is kept for migrations)",
				 what, (uint64_t)w->nr_blocks * w->block_bytes);
	case -EDQUOT:
		return ndpi_fail(err, r,
				 "%s: %" PRIu64 " bytes are more than this user's quota leaves",
				 what, (uint64_t)w->nr_blocks * w->block_bytes);
	case -ENXIO:
	case -ENODEV:
		return explain_absent(w->dev, what, p, r, err);
	case -EPERM:
		return ndpi_fail(err, r,
				 "%s: the placement (mask 0x%" PRIx32 ") leaves the allowed mask 0x%" PRIx32,
				 what, ndp_placement_mask(p), allowed_mask);
	default:
		return ndpi_fail(err, r, "%s of %" PRIu64 " bytes on %s: %s", what,
				 (uint64_t)w->nr_blocks * w->block_bytes, w->dev->name,
				 ndpi_dimm_error(r));
	}
}

static int create(struct ndp_weights **out, struct ndp_device *dev, const struct ndp_weights *shape,
		  const struct ndp_placement *placement, uint32_t allowed_mask, uint64_t cookie,
		  struct ndp_error *err)
{
	struct ndp_weights *w;
	int r;

	r = ndp_placement_check(placement, shape->nr_blocks,
				allowed_mask ? allowed_mask : UINT32_MAX, err);
	if (r < 0)
		return r;
	w = dev->ops->weights_alloc();
	if (!w)
		return ndpi_fail(err, -ENOMEM, "no memory for a weight object");
	w->dev = dev;
	w->matrix = shape->matrix;
	w->expert = shape->expert;
	w->mat = shape->mat;
	w->nr_blocks = shape->nr_blocks;
	w->block_bytes = shape->block_bytes;
	pthread_mutex_init(&w->lock, NULL);
	r = dev->ops->weights_create(w, placement, allowed_mask, cookie);
	if (r < 0) {
		explain_create(w, placement, allowed_mask, r, err);
		pthread_mutex_destroy(&w->lock);
		dev->ops->weights_destroy(w);
		return r;
	}
	ndpi_device_get(dev);
	*out = w;
	return 0;
}

int ndp_expert_create(struct ndp_weights **w, struct ndp_device *dev,
		      const struct ndp_expert_shape *shape, const struct ndp_placement *placement,
		      uint32_t allowed_mask, uint64_t cookie, struct ndp_error *err)
{
	struct ndp_weights s = { .expert = *shape };
	int r;

	*w = NULL;
	ndpi_error_clear(err);
	r = check_dimension(err, "h_in", shape->h_in);
	if (!r)
		r = check_dimension(err, "h_out", shape->h_out);
	if (r < 0)
		return r;
	if (!shape->neurons)
		return ndpi_fail(err, -EINVAL, "an expert of 0 neurons: wanted 1 or more");
	s.nr_blocks = ndp_expert_blocks(shape);
	s.block_bytes = ndp_expert_block_bytes(shape);
	return create(w, dev, &s, placement, allowed_mask, cookie, err);
}

int ndp_matrix_create(struct ndp_weights **w, struct ndp_device *dev,
		      const struct ndp_matrix_shape *shape, const struct ndp_placement *placement,
		      uint32_t allowed_mask, uint64_t cookie, struct ndp_error *err)
{
	struct ndp_weights s = { .matrix = true, .mat = *shape };
	int r;

	*w = NULL;
	ndpi_error_clear(err);
	r = check_dimension(err, "cols", shape->cols);
	if (r < 0)
		return r;
	if (!shape->rows)
		return ndpi_fail(err, -EINVAL, "a matrix of 0 rows: wanted 1 or more");
	s.nr_blocks = ndp_matrix_panels(shape);
	s.block_bytes = ndp_matrix_panel_bytes(shape);
	return create(w, dev, &s, placement, allowed_mask, cookie, err);
}

static int writable_block(struct ndp_weights *w, uint32_t block, void **p)
{
	int r;

	pthread_mutex_lock(&w->lock);
	r = w->sealed ? -EBADF : w->dev->ops->weights_block(w, block, p);
	pthread_mutex_unlock(&w->lock);
	return r;
}

int ndp_weights_write(struct ndp_weights *w, uint32_t first_block, uint32_t nr_blocks,
		      const void *packed)
{
	const char *src = packed;
	void *p;

	if (first_block > w->nr_blocks || nr_blocks > w->nr_blocks - first_block)
		return -EINVAL;
	for (uint32_t b = first_block; b < first_block + nr_blocks; b++, src += w->block_bytes) {
		int r = writable_block(w, b, &p);

		if (r < 0)
			return r;
		memcpy(p, src, w->block_bytes);
	}
	return 0;
}

int ndp_expert_load(struct ndp_weights *w, const ndp_bf16 *gate, const ndp_bf16 *up, size_t ld_in,
		    const ndp_bf16 *down, size_t ld_down)
{
	void *p;

	if (w->matrix)
		return -EBADF;
	if (ld_in < w->expert.h_in || ld_down < w->expert.neurons)
		return -EINVAL;
	for (uint32_t b = 0; b < w->nr_blocks; b++) {
		int r = writable_block(w, b, &p);

		if (r < 0)
			return r;
		ndp_expert_pack_block(p, &w->expert, b, gate, up, ld_in, down, ld_down);
	}
	return 0;
}

int ndp_matrix_load(struct ndp_weights *w, const ndp_bf16 *m, size_t ld)
{
	void *p;

	if (!w->matrix)
		return -EBADF;
	if (ld < w->mat.cols)
		return -EINVAL;
	for (uint32_t b = 0; b < w->nr_blocks; b++) {
		int r = writable_block(w, b, &p);

		if (r < 0)
			return r;
		ndp_matrix_pack_panel(p, &w->mat, b, m, ld);
	}
	return 0;
}

int ndp_weights_seal(struct ndp_weights *w)
{
	int r = 0;

	pthread_mutex_lock(&w->lock);
	if (!w->sealed) {
		r = w->dev->ops->weights_seal(w);
		if (!r)
			__atomic_store_n(&w->sealed, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&w->lock);
	return r;
}

const void *ndp_weights_map(struct ndp_weights *w)
{
	const void *p = NULL;
	int r = 0;

	pthread_mutex_lock(&w->lock);
	if (!w->sealed)
		r = -EBADF;
	else if (!w->map)
		r = w->dev->ops->weights_map(w, &w->map);
	p = w->map;
	pthread_mutex_unlock(&w->lock);
	if (r < 0) {
		errno = -r;
		return NULL;
	}
	return p;
}

int ndp_weights_info(struct ndp_weights *w, struct ndp_weights_info *info)
{
	memset(info, 0, sizeof(*info));
	info->matrix = w->matrix;
	info->sealed = ndpi_is_sealed(w);
	info->expert = w->expert;
	info->mat = w->mat;
	info->nr_blocks = w->nr_blocks;
	info->block_bytes = w->block_bytes;
	return w->dev->ops->weights_info(w, info);
}

static int explain_migrate(const struct ndp_weights *w, const struct ndp_placement *to, int r,
			   struct ndp_error *err)
{
	uint32_t mask = ndp_placement_mask(to);

	switch (r) {
	case -EBUSY:
		return ndpi_fail(err, r, "the weights are being moved by someone else: try again");
	case -ENOSPC:
		return ndpi_fail(err, r,
				 "no contiguous room for the copies on the DIMMs of mask 0x%" PRIx32
				 "; the old placement remains", mask);
	case -EPERM:
		return ndpi_fail(
			err, r, "the placement (mask 0x%" PRIx32 ") leaves the allowed mask", mask);
	case -ENXIO:
	case -ENODEV:
		return explain_absent(w->dev, "moving weights", to, r, err);
	default:
		return ndpi_fail(err, r, "moving weights to the DIMMs of mask 0x%" PRIx32
				 ": %s; the old placement remains", mask, ndpi_dimm_error(r));
	}
}

int ndp_weights_migrate(struct ndp_weights *w, const struct ndp_placement *to,
			struct ndp_move *move, struct ndp_error *err)
{
	struct ndp_move m = { 0 };
	int r;

	r = ndp_placement_check(to, w->nr_blocks, UINT32_MAX, err);
	if (r < 0)
		return r;
	if (!ndpi_is_sealed(w))
		return ndpi_fail(err, -EBADF, "weights migrate only after ndp_weights_seal()");
	r = w->dev->ops->weights_migrate(w, to, &m);
	if (r < 0)
		return explain_migrate(w, to, r, err);
	if (move)
		*move = m;
	return 0;
}

void ndp_weights_free(struct ndp_weights *w)
{
	struct ndp_device *dev;

	if (!w)
		return;
	dev = w->dev;
	pthread_mutex_destroy(&w->lock);
	dev->ops->weights_destroy(w);
	ndpi_device_put(dev);
}
