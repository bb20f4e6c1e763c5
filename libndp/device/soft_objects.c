/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft_objects.c - weights with their extent map, and replicated buffers.
 */
#include "soft.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static struct soft_device *soft_device(struct ndp_device *dev)
{
	return (struct soft_device *)dev;
}

static struct soft_weights *soft_weights(struct ndp_weights *w)
{
	return (struct soft_weights *)w;
}

static void account(struct ndp_device *dev, uint64_t bytes, int sign)
{
	uint64_t *used = &soft_device(dev)->used_bytes;

	__atomic_add_fetch(used, sign > 0 ? bytes : -bytes, __ATOMIC_RELAXED);
}

static uint32_t all_dimms(const struct soft_device *dev)
{
	return UINT32_MAX >> (NDP_MAX_DIMMS - dev->nr_dimms);
}

/* ---- extent maps ----------------------------------------------------- */

struct soft_map *soft_map_new(uint32_t nr_pieces)
{
	struct soft_map *m = calloc(1, sizeof(*m) + nr_pieces * sizeof(m->pieces[0]));

	if (m) {
		m->refs = 1;
		m->nr_pieces = nr_pieces;
	}
	return m;
}

struct soft_map *soft_map_get(struct soft_map *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
	return m;
}

void soft_map_put(struct soft_map *m)
{
	if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (uint32_t i = 0; i < m->nr_pieces; i++)
		soft_extent_put(m->pieces[i].extent);
	free(m);
}

/* ---- weights --------------------------------------------------------- */

struct ndp_weights *soft_weights_alloc(void)
{
	struct soft_weights *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->refs = 1;
	pthread_mutex_init(&w->lock, NULL);
	return &w->base;
}

int soft_weights_create(struct ndp_weights *base, const struct ndp_placement *p,
			uint32_t allowed_mask, uint64_t cookie)
{
	struct soft_device *dev = soft_device(base->dev);
	struct soft_weights *w = soft_weights(base);
	struct soft_map *map;
	uint32_t first = 0;
	int r = 0;

	w->allowed_mask = allowed_mask ? allowed_mask : all_dimms(dev);
	if ((ndp_placement_mask(p) | w->allowed_mask) & ~all_dimms(dev))
		return -ENODEV;
	map = soft_map_new(p->nr_ranges);
	if (!map)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->nr_ranges && !r; i++) {
		struct soft_piece *piece = &map->pieces[i];

		piece->first = first;
		piece->nr = p->ranges[i].nr_blocks;
		first += piece->nr;
		r = soft_extent_new(&piece->extent, &dev->dimms[p->ranges[i].dimm],
				    (uint64_t)piece->nr * base->block_bytes, false);
	}
	if (r < 0) {
		soft_map_put(map);
		return r;
	}
	w->map = map;
	w->cookie = cookie;
	w->id = __atomic_add_fetch(&dev->next_id, 1, __ATOMIC_RELAXED);
	account(base->dev, (uint64_t)base->nr_blocks * base->block_bytes, 1);
	return 0;
}

/* The last user: no command, no migration, no caller. */
void soft_weights_put(struct soft_weights *w)
{
	uint64_t bytes = (uint64_t)w->base.nr_blocks * w->base.block_bytes;

	if (__atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL))
		return;
	if (w->map)
		account(w->base.dev, bytes, -1);
	if (w->view)
		munmap(w->view, bytes);
	soft_map_put(w->map);
	for (struct soft_map *kept = w->kept, *next; kept; kept = next) {
		next = kept->next_kept;
		soft_map_put(kept);
	}
	pthread_mutex_destroy(&w->lock);
	free(w);
}

void soft_weights_destroy(struct ndp_weights *w)
{
	struct soft_weights *weights = soft_weights(w);
	bool has_map;

	/* A holder of a placement fd may be moving it. */
	pthread_mutex_lock(&weights->lock);
	has_map = weights->map;
	pthread_mutex_unlock(&weights->lock);
	if (has_map)
		soft_lend_remove(weights);
	soft_weights_put(weights);
}

/* Before sealing nothing moves, so the map needs no reference. */
int soft_weights_block(struct ndp_weights *base, uint32_t block, void **p)
{
	const struct soft_map *m = soft_weights(base)->map;
	uint32_t i = 0;

	while (block - m->pieces[i].first >= m->pieces[i].nr)
		i++;
	*p = m->pieces[i].extent->dimm->mem.base + m->pieces[i].extent->off +
	     (size_t)(block - m->pieces[i].first) * base->block_bytes;
	return 0;
}

int soft_weights_seal(struct ndp_weights *w)
{
	soft_lend_add(soft_weights(w)); /* the front end keeps the state */
	return 0;
}

int soft_view_piece(struct soft_weights *w, const struct soft_piece *piece)
{
	const struct soft_extent *e = piece->extent;
	char *at = (char *)w->view + (size_t)piece->first * w->base.block_bytes;
	void *p = mmap(at, (size_t)piece->nr * w->base.block_bytes, PROT_READ,
		       MAP_SHARED | MAP_FIXED, e->dimm->mem.fd, (off_t)e->off);

	return p == MAP_FAILED ? -errno : 0;
}

int soft_weights_map(struct ndp_weights *base, const void **p)
{
	struct soft_weights *w = soft_weights(base);
	size_t bytes = (size_t)base->nr_blocks * base->block_bytes;
	int r = 0;

	pthread_mutex_lock(&w->lock);
	w->view = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->view == MAP_FAILED) {
		w->view = NULL;
		r = -errno;
	}
	for (uint32_t i = 0; i < w->map->nr_pieces && !r; i++)
		r = soft_view_piece(w, &w->map->pieces[i]);
	if (r < 0 && w->view) {
		munmap(w->view, bytes);
		w->view = NULL;
	}
	*p = w->view;
	pthread_mutex_unlock(&w->lock);
	return r;
}

int soft_weights_info(struct ndp_weights *base, struct ndp_weights_info *info)
{
	struct soft_weights *w = soft_weights(base);

	info->cookie = w->cookie;
	info->id = w->id;
	info->allowed_mask = w->allowed_mask;
	pthread_mutex_lock(&w->lock);
	info->moves = w->moves;
	info->placement.nr_ranges = w->map->nr_pieces;
	for (uint32_t i = 0; i < w->map->nr_pieces; i++)
		info->placement.ranges[i] = (struct ndp_range){
			.dimm = w->map->pieces[i].extent->dimm->node,
			.nr_blocks = w->map->pieces[i].nr,
		};
	pthread_mutex_unlock(&w->lock);
	return 0;
}

/* ---- activations ----------------------------------------------------- */

struct ndp_io *soft_io_alloc(void)
{
	struct soft_io *io = calloc(1, sizeof(*io));

	return io ? &io->base : NULL;
}

int soft_io_create(struct ndp_io *base, uint32_t mask, size_t bytes)
{
	struct soft_device *dev = soft_device(base->dev);
	struct soft_io *io = (struct soft_io *)base;

	if (mask & ~all_dimms(dev))
		return -ENODEV;
	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t d = ndpi_lowest(m);
		int r = soft_extent_new(&io->extent[d], &dev->dimms[d], bytes, false);

		if (r < 0)
			return r;
		base->replica[d] = dev->dimms[d].mem.base + io->extent[d]->off;
	}
	base->mask = mask;
	base->bytes = bytes;
	account(base->dev, bytes * (uint64_t)__builtin_popcount(mask), 1);
	return 0;
}

void soft_io_destroy(struct ndp_io *base)
{
	struct soft_io *io = (struct soft_io *)base;

	account(base->dev, base->bytes * (uint64_t)__builtin_popcount(base->mask), -1);
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
		soft_extent_put(io->extent[d]);
	free(io);
}
