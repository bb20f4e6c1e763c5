// SPDX-License-Identifier: GPL-2.0-only
/*
 * extent.c - the memory of a DIMM, and maps that say where an object lies.
 *
 * Best fit over a list of holes; nothing has to be allocated to give memory
 * back.  One sixteenth of a DIMM is only for the copies of migrations, which
 * may use all of it, so that even DIMMs that are full can exchange objects.
 * Extents and maps are shared by reference counts and never change: a map that
 * a migration replaces lives until the last command that uses it ends.
 */
#include <linux/slab.h>

#include "ndp.h"

void ndp_mm_init(struct ndp_dimm *dimm, u64 bytes)
{
	struct ndp_mm *mm = &dimm->mm;

	mutex_init(&mm->lock);
	INIT_LIST_HEAD(&mm->extents);
	INIT_LIST_HEAD(&mm->holes);
	mm->size = bytes;
	mm->free = bytes;
	mm->reserve = ALIGN_DOWN(bytes >> NDP_RESERVE_SHIFT, PAGE_SIZE);
	mm->origin.hole_bytes = bytes;
	list_add(&mm->origin.link, &mm->extents);
	list_add(&mm->origin.hole, &mm->holes);
}

static u64 ndp_mm_available(const struct ndp_mm *mm, bool for_copy)
{
	u64 keep = for_copy ? 0 : mm->reserve;

	return mm->free > keep ? mm->free - keep : 0;
}

void ndp_mm_stats(struct ndp_dimm *dimm, struct ndp_mm_stats *stats)
{
	struct ndp_mm *mm = &dimm->mm;
	struct ndp_extent *before;
	u64 largest = 0;

	mutex_lock(&mm->lock);
	list_for_each_entry(before, &mm->holes, hole)
		largest = max(largest, before->hole_bytes);
	stats->mem_bytes = mm->size - mm->reserve;
	stats->free_bytes = ndp_mm_available(mm, false);
	stats->largest_free_bytes = min(largest, stats->free_bytes);
	stats->allocated_bytes = mm->size - mm->free;
	stats->extents = mm->nr_extents;
	mutex_unlock(&mm->lock);
}

static void ndp_hole_set(struct ndp_mm *mm, struct ndp_extent *before,
			 u64 bytes)
{
	if (before->hole_bytes && !bytes)
		list_del(&before->hole);
	else if (!before->hole_bytes && bytes)
		list_add(&before->hole, &mm->holes);
	before->hole_bytes = bytes;
}

static struct ndp_extent *ndp_mm_best_fit(struct ndp_mm *mm, u64 bytes)
{
	struct ndp_extent *before, *best = NULL;

	list_for_each_entry(before, &mm->holes, hole) {
		if (before->hole_bytes < bytes)
			continue;
		if (!best || before->hole_bytes < best->hole_bytes)
			best = before;
		if (best->hole_bytes == bytes)
			break;
	}
	return best;
}

/* @bytes: whole pages.  The content is whatever was there before. */
static struct ndp_extent *ndp_extent_alloc(struct ndp_dimm *dimm, u64 bytes,
					   bool for_copy)
{
	struct ndp_mm *mm = &dimm->mm;
	struct ndp_extent *ext, *before;
	int r = -ENOSPC;

	ext = kzalloc(sizeof(*ext), GFP_KERNEL);
	if (!ext)
		return ERR_PTR(-ENOMEM);
	kref_init(&ext->ref);
	ext->bytes = bytes;

	mutex_lock(&mm->lock);
	if (!ndp_dimm_alive(dimm)) {
		r = -ENODEV;
		goto err;
	}
	if (ndp_mm_available(mm, for_copy) < bytes)
		goto err;
	before = ndp_mm_best_fit(mm, bytes);
	if (!before)
		goto err;
	ext->off = before->off + before->bytes;
	list_add(&ext->link, &before->link);
	ndp_hole_set(mm, ext, before->hole_bytes - bytes);
	ndp_hole_set(mm, before, 0);
	mm->free -= bytes;
	mm->nr_extents++;
	mutex_unlock(&mm->lock);

	ext->dimm = ndp_dimm_get(dimm);
	return ext;
err:
	mutex_unlock(&mm->lock);
	kfree(ext);
	return ERR_PTR(r);
}

static struct ndp_extent *ndp_extent_get(struct ndp_extent *ext)
{
	kref_get(&ext->ref);
	return ext;
}

static void ndp_extent_release(struct kref *ref)
{
	struct ndp_extent *ext = container_of(ref, struct ndp_extent, ref);
	struct ndp_dimm *dimm = ext->dimm;
	struct ndp_mm *mm = &dimm->mm;
	struct ndp_extent *before;

	mutex_lock(&mm->lock);
	before = list_prev_entry(ext, link);
	ndp_hole_set(mm, before,
		     before->hole_bytes + ext->bytes + ext->hole_bytes);
	ndp_hole_set(mm, ext, 0);
	list_del(&ext->link);
	mm->free += ext->bytes;
	mm->nr_extents--;
	mutex_unlock(&mm->lock);
	kfree(ext);
	ndp_dimm_put(dimm);
}

static void ndp_extent_put(struct ndp_extent *ext)
{
	kref_put(&ext->ref, ndp_extent_release);
}

struct ndp_map *ndp_map_get(struct ndp_map *map)
{
	kref_get(&map->ref);
	return map;
}

static void ndp_map_release(struct kref *ref)
{
	struct ndp_map *map = container_of(ref, struct ndp_map, ref);
	u32 i;

	for (i = 0; i < map->nr; i++)
		ndp_extent_put(map->span[i].ext);
	kfree(map);
}

void ndp_map_put(struct ndp_map *map)
{
	kref_put(&map->ref, ndp_map_release);
}

/* The span that holds @block, which exists. */
const struct ndp_span *ndp_map_find(const struct ndp_map *map, u32 block)
{
	u32 low = 0, high = map->nr - 1;

	while (low < high) {
		u32 mid = (low + high + 1) / 2;

		if (map->span[mid].first <= block)
			low = mid;
		else
			high = mid - 1;
	}
	return &map->span[low];
}

/* An extent of @old that holds exactly these blocks on this DIMM. */
static struct ndp_extent *ndp_map_same(const struct ndp_map *old,
				       const struct ndp_span *span)
{
	const struct ndp_span *was = ndp_map_find(old, span->first);

	if (was->node != span->node || was->first != span->first ||
	    was->nr != span->nr)
		return NULL;
	return was->ext;
}

/*
 * Memory for a placement that was checked.  With @old it is a migration's:
 * ranges that stay as they are keep their extents, the others may use the
 * reserve.
 */
struct ndp_map *ndp_map_alloc(struct ndp_domain *domain,
			      const struct moendp_range *ranges, u32 nr,
			      u64 block_bytes, struct ndp_map *old)
{
	struct ndp_map *map;
	u32 i, block = 0;

	map = kzalloc(struct_size(map, span, nr), GFP_KERNEL);
	if (!map)
		return ERR_PTR(-ENOMEM);
	kref_init(&map->ref);
	for (i = 0; i < nr; i++) {
		struct ndp_span *span = &map->span[i];
		struct ndp_extent *ext;
		struct ndp_dimm *dimm;

		span->node = ranges[i].dimm;
		span->first = block;
		span->nr = ranges[i].nr_blocks;
		block += span->nr;
		map->dimm_mask |= BIT(span->node);
		ext = old ? ndp_map_same(old, span) : NULL;
		if (ext) {
			span->ext = ndp_extent_get(ext);
		} else {
			dimm = ndp_domain_dimm(domain, span->node);
			if (!dimm) {
				ext = ERR_PTR(-ENODEV);
			} else {
				ext = ndp_extent_alloc(dimm, span->nr *
						       block_bytes, !!old);
				ndp_dimm_put(dimm);
			}
			if (IS_ERR(ext)) {
				ndp_map_put(map);
				return ERR_CAST(ext);
			}
			span->ext = ext;
		}
		map->nr++;
	}
	return map;
}
