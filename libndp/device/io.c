/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * io.c - activations and results: one replica on each DIMM of a set, all of
 * them in the caller's address space.
 *
 * Every function that copies also keeps caches coherent where the DIMMs do not.
 */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static int explain_create(const struct ndp_device *dev, uint32_t mask, size_t bytes,
			  uint32_t there, int r, struct ndp_error *err)
{
	switch (r) {
	case -ENXIO:
	case -ENODEV:
		return ndpi_fail(err, r,
				 "replicas wanted on the DIMMs of mask 0x%" PRIx32 ", %s has 0x%" PRIx32
				 ": a DIMM is gone, or was never there",
				 mask, dev->name, there);
	case -ENOSPC:
		return ndpi_fail(err, r,
				 "no contiguous room for %zu bytes on each DIMM of mask 0x%" PRIx32
				 " of %s: free something or use larger DIMMs",
				 bytes, mask, dev->name);
	case -EDQUOT:
		return ndpi_fail(err, r,
				 "%zu bytes on each DIMM of mask 0x%" PRIx32
				 " are more than this user's quota leaves",
				 bytes, mask);
	default:
		return ndpi_fail(err, r,
				 "a buffer of %zu bytes on each DIMM of mask 0x%" PRIx32
				 " of %s: %s",
				 bytes, mask, dev->name, ndpi_dimm_error(r));
	}
}

int ndp_io_create(struct ndp_io **out, struct ndp_device *dev, uint32_t mask, size_t bytes,
		  struct ndp_error *err)
{
	struct ndp_device_info info;
	struct ndp_io *io;
	int r;

	*out = NULL;
	ndpi_error_clear(err);
	if (!bytes)
		return ndpi_fail(err, -EINVAL, "a buffer of 0 bytes: wanted 1 or more");
	r = ndp_device_info(dev, &info);
	if (r < 0)
		return ndpi_fail(err, r, "asking %s for its DIMMs: %s", dev->name, strerror(-r));
	if (!mask)
		mask = info.dimm_mask;
	io = dev->ops->io_alloc();
	if (!io)
		return ndpi_fail(err, -ENOMEM, "no memory for a buffer object");
	io->dev = dev;
	r = dev->ops->io_create(io, mask, bytes);
	if (r < 0) {
		dev->ops->io_destroy(io);
		return explain_create(dev, mask, bytes, info.dimm_mask, r, err);
	}
	ndpi_device_get(dev);
	*out = io;
	return 0;
}

void ndp_io_free(struct ndp_io *io)
{
	struct ndp_device *dev;

	if (!io)
		return;
	dev = io->dev;
	dev->ops->io_destroy(io);
	ndpi_device_put(dev);
}

static int check_part(const struct ndp_io *io, uint32_t mask, size_t off, size_t bytes)
{
	if (mask & ~io->mask)
		return -ENXIO;
	return off <= io->bytes && bytes <= io->bytes - off ? 0 : -EINVAL;
}

static void *replica_at(const struct ndp_io *io, uint32_t dimm, size_t off)
{
	return (char *)io->replica[dimm] + off;
}

int ndp_io_write(struct ndp_io *io, uint32_t mask, size_t off, const void *src, size_t bytes)
{
	int r = check_part(io, mask, off, bytes);

	if (r < 0)
		return r;
	for (; mask; mask &= mask - 1) {
		void *p = replica_at(io, ndpi_lowest(mask), off);

		memcpy(p, src, bytes);
		if (!io->dev->coherent)
			ndpi_cache_write_back(p, bytes);
	}
	return 0;
}

int ndp_io_read(struct ndp_io *io, uint32_t dimm, size_t off, void *dst, size_t bytes)
{
	void *p;
	int r;

	if (dimm >= NDP_MAX_DIMMS)
		return -ENXIO;
	r = check_part(io, 1U << dimm, off, bytes);
	if (r < 0)
		return r;
	p = replica_at(io, dimm, off);
	if (!io->dev->coherent)
		ndpi_cache_invalidate(p, bytes);
	memcpy(dst, p, bytes);
	return 0;
}

void *ndp_io_ptr(struct ndp_io *io, uint32_t dimm)
{
	return dimm < NDP_MAX_DIMMS ? io->replica[dimm] : NULL;
}

int ndp_io_flush(struct ndp_io *io, uint32_t mask, size_t off, size_t bytes)
{
	int r = check_part(io, mask, off, bytes);

	if (r < 0 || io->dev->coherent)
		return r;
	for (; mask; mask &= mask - 1)
		ndpi_cache_write_back(replica_at(io, ndpi_lowest(mask), off), bytes);
	return 0;
}

int ndp_io_invalidate(struct ndp_io *io, uint32_t mask, size_t off, size_t bytes)
{
	int r = check_part(io, mask, off, bytes);

	if (r < 0 || io->dev->coherent)
		return r;
	for (; mask; mask &= mask - 1)
		ndpi_cache_invalidate(replica_at(io, ndpi_lowest(mask), off), bytes);
	return 0;
}

int ndp_io_reduce(struct ndp_io *io, uint32_t mask, size_t off, size_t ldy, float *dst,
		  size_t ld_dst, uint32_t tokens, uint32_t cols)
{
	size_t row_bytes = (size_t)cols * sizeof(float);
	size_t span;
	int r;

	if (!tokens || !cols)
		return check_part(io, mask, off, 0);
	if (off % sizeof(float) || ldy % sizeof(float) || (tokens > 1 && ldy < row_bytes))
		return -EINVAL;
	if (__builtin_mul_overflow(ldy, (size_t)tokens - 1, &span) ||
	    __builtin_add_overflow(span, row_bytes, &span))
		return -EINVAL;
	r = check_part(io, mask, off, span);
	if (r < 0)
		return r;
	r = ndp_io_invalidate(io, mask, off, span);
	if (r < 0)
		return r;
	for (uint32_t t = 0; t < tokens; t++) {
		float *to = dst + t * ld_dst;

		memset(to, 0, row_bytes);
		for (uint32_t m = mask; m; m &= m - 1) {
			const float *from = replica_at(io, ndpi_lowest(m), off + t * ldy);

			for (uint32_t j = 0; j < cols; j++)
				to[j] += from[j];
		}
	}
	return 0;
}
