// SPDX-License-Identifier: GPL-2.0-only
/*
 * bo.c - objects: creating, finding, describing, sealing and destroying them.
 *
 * An object is visible by three keys in its file: handle, id (placement file
 * descriptors) and page offset (mmap).  It is published only after the caller
 * has its handle, and found by handle without locks.  Its map is set once at
 * creation and swapped by migrations, each time under map_rwsem and lock, and
 * only if all DIMMs of the map are alive: so a DIMM that goes finds every
 * object that lies on it (ndp_domain_lose()).
 */
#include <linux/overflow.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "ndp.h"

static atomic64_t ndp_last_id = ATOMIC64_INIT(0);

struct ndp_bo *ndp_bo_get(struct ndp_bo *bo)
{
	kref_get(&bo->ref);
	return bo;
}

/* Process context. */
static void ndp_bo_free(struct kref *ref)
{
	struct ndp_bo *bo = container_of(ref, struct ndp_bo, ref);
	struct ndp_domain *domain = bo->domain;

	mutex_lock(&domain->bo_lock);
	list_del(&bo->link);
	domain->nr_bos--;
	mutex_unlock(&domain->bo_lock);
	if (bo->map)
		ndp_map_put(bo->map);
	ndp_quota_uncharge(domain, bo->user, bo->total_bytes);
	put_device(&domain->node.dev);
	kfree_rcu(bo, rcu);
}

void ndp_bo_put(struct ndp_bo *bo)
{
	kref_put(&bo->ref, ndp_bo_free);
}

/* ---- finding ------------------------------------------------------------- */

/* A reference, or NULL. */
struct ndp_bo *ndp_bo_lookup(struct ndp_file *file, u32 handle)
{
	struct ndp_bo *bo;

	rcu_read_lock();
	bo = xa_load(&file->handles, handle);
	if (bo && !kref_get_unless_zero(&bo->ref))
		bo = NULL;
	rcu_read_unlock();
	return bo;
}

/* For placement file descriptors: only sealed weights exist. */
bool ndp_bo_is_listed(const struct ndp_bo *bo)
{
	return ndp_bo_is_weights(bo) && READ_ONCE(bo->sealed);
}

struct ndp_bo *ndp_bo_by_id(struct ndp_file *file, u64 id)
{
	struct ndp_bo *bo = NULL;

	mutex_lock(&file->lock);
	if (id <= ULONG_MAX)
		bo = xa_load(&file->ids, id);
	if (bo && ndp_bo_is_listed(bo))
		ndp_bo_get(bo);
	else
		bo = NULL;
	mutex_unlock(&file->lock);
	return bo;
}

struct ndp_bo *ndp_bo_by_page(struct ndp_file *file, u64 page)
{
	struct ndp_bo *found = NULL;
	struct rb_node *node;

	mutex_lock(&file->lock);
	node = file->offsets.rb_node;
	while (node) {
		struct ndp_bo *bo = rb_entry(node, struct ndp_bo, node);

		if (page < bo->map_page) {
			node = node->rb_left;
		} else if (page - bo->map_page >= ndp_bo_map_pages(bo)) {
			node = node->rb_right;
		} else {
			found = ndp_bo_get(bo);
			break;
		}
	}
	mutex_unlock(&file->lock);
	return found;
}

static void ndp_offsets_insert(struct ndp_file *file, struct ndp_bo *bo)
{
	struct rb_node **link = &file->offsets.rb_node, *parent = NULL;

	while (*link) {
		struct ndp_bo *other = rb_entry(*link, struct ndp_bo, node);

		parent = *link;
		if (bo->map_page < other->map_page)
			link = &(*link)->rb_left;
		else
			link = &(*link)->rb_right;
	}
	rb_link_node(&bo->node, parent, link);
	rb_insert_color(&bo->node, &file->offsets);
}

/* ---- state --------------------------------------------------------------- */

/* A reference to where the object lies; ENODEV when it is lost. */
int ndp_bo_map_get(struct ndp_bo *bo, struct ndp_map **map)
{
	int r = 0;

	spin_lock(&bo->lock);
	if (bo->lost)
		r = -ENODEV;
	else
		*map = ndp_map_get(bo->map);
	spin_unlock(&bo->lock);
	return r;
}

/* Takes the reference over.  The old map's is dropped. */
int ndp_bo_set_map(struct ndp_bo *bo, struct ndp_map *map)
{
	struct ndp_map *old;
	int r = 0;
	u32 i;

	down_write(&bo->map_rwsem);
	for (i = 0; i < map->nr; i++) {
		if (!ndp_dimm_alive(map->span[i].ext->dimm))
			r = -ENODEV;
	}
	if (bo->lost)
		r = -ENODEV;
	if (r < 0) {
		up_write(&bo->map_rwsem);
		return r;
	}
	spin_lock(&bo->lock);
	old = bo->map;
	bo->map = map;
	if (old)
		bo->moves++;
	spin_unlock(&bo->lock);
	if (old)
		ndp_bo_unmap(bo);
	up_write(&bo->map_rwsem);
	if (old)
		ndp_map_put(old);
	return 0;
}

u32 ndp_bo_state(struct ndp_bo *bo)
{
	u32 state = 0;

	spin_lock(&bo->lock);
	if (bo->sealed)
		state |= MOENDP_BO_STATE_SEALED;
	if (bo->lost)
		state |= MOENDP_BO_STATE_LOST;
	if (bo->moving)
		state |= MOENDP_BO_STATE_MOVING;
	spin_unlock(&bo->lock);
	return state;
}

static struct ndp_map *ndp_bo_peek_map(struct ndp_bo *bo)
{
	struct ndp_map *map;

	spin_lock(&bo->lock);
	map = ndp_map_get(bo->map);
	spin_unlock(&bo->lock);
	return map;
}

/* The placement of weights to user space: @nr is the room, then what there is. */
int ndp_bo_ranges(struct ndp_bo *bo, u64 uptr, u32 *nr)
{
	struct moendp_range __user *to = u64_to_user_ptr(uptr);
	struct ndp_map *map;
	u32 i, room = *nr;
	int r = 0;

	if (!ndp_bo_is_weights(bo)) {
		*nr = 0;
		return 0;
	}
	map = ndp_bo_peek_map(bo);
	*nr = map->nr;
	if (uptr && room < map->nr)
		r = -EMSGSIZE;
	for (i = 0; uptr && r == 0 && i < map->nr; i++) {
		struct moendp_range range = {
			.dimm = map->span[i].node,
			.nr_blocks = map->span[i].nr,
		};

		if (copy_to_user(&to[i], &range, sizeof(range)))
			r = -EFAULT;
	}
	ndp_map_put(map);
	return r;
}

/* Is this a placement of @nr_blocks, and may it be one? */
int ndp_ranges_check(struct ndp_file *file, const struct moendp_range *ranges,
		     u32 nr, u32 nr_blocks, u32 allowed_mask)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < nr; i++) {
		if (!ranges[i].nr_blocks)
			return -EINVAL;
		sum += ranges[i].nr_blocks;
	}
	if (sum != nr_blocks)
		return -EINVAL;
	for (i = 0; i < nr; i++) {
		if (ranges[i].dimm >= NDP_MAX_NODES ||
		    !(file->mask & BIT(ranges[i].dimm)))
			return -ENXIO;
	}
	for (i = 0; i < nr; i++) {
		if (!(allowed_mask & BIT(ranges[i].dimm)))
			return -EPERM;
	}
	return 0;
}

/* ---- creating ------------------------------------------------------------ */

static int ndp_bo_shape_weights(struct ndp_file *file, struct ndp_bo *bo,
				const struct moendp_bo_create *c)
{
	bool expert = c->type == MOENDP_BO_EXPERT;

	if (c->dimm_mask || c->bytes)
		return -EINVAL;
	if (!c->h_in || c->h_in > NDP_MAX_H || c->h_out > NDP_MAX_H ||
	    expert != !!c->h_out)
		return -EINVAL;
	if (!c->rows || c->rows > NDP_MAX_MATRIX_ROWS)
		return -EINVAL;
	if (c->allowed_mask & ~file->mask)
		return -ENXIO;
	bo->allowed_mask = c->allowed_mask ?: file->mask;
	bo->stride = (expert ? 128 : 64) * (u64)ALIGN(c->h_in, 64) +
		     64 * (u64)ALIGN(c->h_out, 64);
	bo->nr_blocks = DIV_ROUND_UP(c->rows, MOENDP_BLOCK_ROWS);
	bo->bytes = bo->stride * bo->nr_blocks;
	bo->total_bytes = bo->bytes;
	return 0;
}

static int ndp_bo_shape_io(struct ndp_file *file, struct ndp_bo *bo,
			   const struct moendp_bo_create *c)
{
	if (c->h_in || c->h_out || c->rows || c->allowed_mask || c->ranges ||
	    c->nr_ranges)
		return -EINVAL;
	if (!c->dimm_mask || !c->bytes)
		return -EINVAL;
	if (c->dimm_mask & ~file->mask)
		return -ENXIO;
	/* No DIMM is that large, and nothing below can overflow. */
	if (c->bytes > 1ULL << 50)
		return -ENOSPC;
	bo->allowed_mask = c->dimm_mask;
	bo->bytes = c->bytes;
	bo->stride = ALIGN(c->bytes, PAGE_SIZE);
	bo->nr_blocks = hweight32(c->dimm_mask);
	bo->total_bytes = bo->stride * bo->nr_blocks;
	return 0;
}

static int ndp_bo_shape(struct ndp_file *file, struct ndp_bo *bo,
			const struct moendp_bo_create *c)
{
	bo->type = c->type;
	bo->cookie = c->cookie;
	bo->h_in = c->h_in;
	bo->h_out = c->h_out;
	bo->rows = c->rows;
	switch (c->type) {
	case MOENDP_BO_EXPERT:
	case MOENDP_BO_MATRIX:
		return ndp_bo_shape_weights(file, bo, c);
	case MOENDP_BO_IO:
		return ndp_bo_shape_io(file, bo, c);
	default:
		return -EINVAL;
	}
}

/* Its name in the domain and its part of the page offsets. */
static int ndp_bo_enter_domain(struct ndp_bo *bo, struct ndp_file *file)
{
	struct ndp_domain *domain = file->domain;
	u64 pages = ndp_bo_map_pages(bo);
	u64 last = (u64)MAX_LFS_FILESIZE >> PAGE_SHIFT;
	int r = 0;

	mutex_lock(&domain->bo_lock);
	if (pages > last - domain->next_page) {
		r = -ENOSPC;
	} else {
		bo->map_page = domain->next_page;
		domain->next_page += pages;
		bo->id = atomic64_inc_return(&ndp_last_id);
		bo->file = file;
		list_add_tail(&bo->link, &domain->bos);
		domain->nr_bos++;
	}
	mutex_unlock(&domain->bo_lock);
	return r;
}

/* An object of the right shape, charged, without memory. */
static struct ndp_bo *ndp_bo_new(struct ndp_file *file,
				 const struct moendp_bo_create *c)
{
	struct ndp_bo *bo = kzalloc(sizeof(*bo), GFP_KERNEL_ACCOUNT);
	int r;

	if (!bo)
		return ERR_PTR(-ENOMEM);
	r = ndp_bo_shape(file, bo, c);
	if (r < 0)
		goto err;
	kref_init(&bo->ref);
	init_rwsem(&bo->map_rwsem);
	spin_lock_init(&bo->lock);
	bo->domain = file->domain;
	bo->user = file->user;
	r = ndp_quota_charge(bo->domain, bo->user, bo->total_bytes);
	if (r < 0)
		goto err;
	r = ndp_bo_enter_domain(bo, file);
	if (r < 0)
		goto err_uncharge;
	get_device(&bo->domain->node.dev);
	return bo;

err_uncharge:
	ndp_quota_uncharge(bo->domain, bo->user, bo->total_bytes);
err:
	kfree(bo);
	return ERR_PTR(r);
}

/* The placement that is asked for; the caller frees it. */
static int ndp_bo_placement(struct ndp_file *file, struct ndp_bo *bo,
			    const struct moendp_bo_create *c,
			    struct moendp_range **ranges, u32 *nr)
{
	u32 node;
	int r;

	if (ndp_bo_is_weights(bo)) {
		r = ndp_ranges_from_user(c->ranges, c->nr_ranges, ranges);
		if (r < 0)
			return r;
		*nr = c->nr_ranges;
		r = ndp_ranges_check(file, *ranges, *nr, bo->nr_blocks,
				     bo->allowed_mask);
		if (r < 0)
			kfree(*ranges);
		return r;
	}
	*ranges = kcalloc(bo->nr_blocks, sizeof(**ranges), GFP_KERNEL);
	if (!*ranges)
		return -ENOMEM;
	*nr = 0;
	for (node = 0; node < NDP_MAX_NODES; node++) {
		if (!(c->dimm_mask & BIT(node)))
			continue;
		(*ranges)[*nr].dimm = node;
		(*ranges)[*nr].nr_blocks = 1;
		++*nr;
	}
	return 0;
}

/* Memory for the object, zeroed. */
static int ndp_bo_populate(struct ndp_file *file, struct ndp_bo *bo,
			   const struct moendp_bo_create *c)
{
	struct moendp_range *ranges;
	struct ndp_map *map;
	u32 nr;
	int r;

	r = ndp_bo_placement(file, bo, c, &ranges, &nr);
	if (r < 0)
		return r;
	map = ndp_map_alloc(bo->domain, ranges, nr, bo->stride, NULL);
	kfree(ranges);
	if (IS_ERR(map))
		return PTR_ERR(map);
	r = ndp_map_zero(map);
	if (r == 0)
		r = ndp_bo_set_map(bo, map);
	if (r < 0)
		ndp_map_put(map);
	return r;
}

/* Room for the object under all its keys, so that publishing cannot fail. */
static int ndp_bo_reserve_keys(struct ndp_file *file, struct ndp_bo *bo)
{
	int r;

	mutex_lock(&file->lock);
	r = xa_alloc_cyclic(&file->handles, &bo->handle, NULL, xa_limit_32b,
			    &file->next_handle, GFP_KERNEL_ACCOUNT);
	if (r >= 0) {
		r = xa_reserve(&file->ids, bo->id, GFP_KERNEL_ACCOUNT);
		if (r < 0)
			xa_release(&file->handles, bo->handle);
	}
	mutex_unlock(&file->lock);
	return r < 0 ? r : 0;
}

static void ndp_bo_release_keys(struct ndp_file *file, struct ndp_bo *bo)
{
	mutex_lock(&file->lock);
	xa_release(&file->ids, bo->id);
	xa_release(&file->handles, bo->handle);
	mutex_unlock(&file->lock);
}

/* The keys take the reference over. */
static void ndp_bo_publish(struct ndp_file *file, struct ndp_bo *bo)
{
	mutex_lock(&file->lock);
	ndp_offsets_insert(file, bo);
	xa_store(&file->ids, bo->id, bo, GFP_KERNEL_ACCOUNT);
	file->nr_bos++;
	file->bytes += bo->total_bytes;
	xa_store(&file->handles, bo->handle, bo, GFP_KERNEL_ACCOUNT);
	mutex_unlock(&file->lock);
}

int ndp_ioctl_bo_create(void *priv, struct ndp_call *call)
{
	struct moendp_bo_create *c = &call->create;
	struct ndp_file *file = priv;
	struct ndp_bo *bo;
	int r;

	if (c->flags)
		return -EINVAL;
	if (ndp_file_gone(file))
		return -ENODEV;
	bo = ndp_bo_new(file, c);
	if (IS_ERR(bo))
		return PTR_ERR(bo);
	r = ndp_bo_populate(file, bo, c);
	if (r < 0)
		goto err_put;
	r = ndp_bo_reserve_keys(file, bo);
	if (r < 0)
		goto err_put;
	c->handle = bo->handle;
	c->bytes = bo->bytes;
	c->map_offset = bo->map_page << PAGE_SHIFT;
	c->stride = bo->stride;
	r = ndp_call_reply(call);
	if (r < 0)
		goto err_keys;
	ndp_bo_publish(file, bo);
	return 0;

err_keys:
	ndp_bo_release_keys(file, bo);
err_put:
	ndp_bo_put(bo);
	return r;
}

/* ---- destroying ---------------------------------------------------------- */

/* file.lock held. */
static void ndp_bo_unpublish(struct ndp_file *file, struct ndp_bo *bo)
{
	xa_erase(&file->handles, bo->handle);
	xa_erase(&file->ids, bo->id);
	rb_erase(&bo->node, &file->offsets);
	file->nr_bos--;
	file->bytes -= bo->total_bytes;
}

/* Drops the keys' reference. */
static void ndp_bo_leave_file(struct ndp_bo *bo)
{
	mutex_lock(&bo->domain->bo_lock);
	bo->file = NULL;
	mutex_unlock(&bo->domain->bo_lock);
	ndp_bo_put(bo);
}

int ndp_ioctl_bo_destroy(void *priv, struct ndp_call *call)
{
	struct moendp_bo_destroy *d = &call->destroy;
	struct ndp_file *file = priv;
	struct ndp_bo *bo;

	if (d->flags || d->rsvd)
		return -EINVAL;
	mutex_lock(&file->lock);
	bo = xa_load(&file->handles, d->handle);
	if (bo)
		ndp_bo_unpublish(file, bo);
	mutex_unlock(&file->lock);
	if (!bo)
		return -ENOENT;
	ndp_bo_leave_file(bo);
	ndp_file_event(file);
	return 0;
}

/* The file was closed: nobody else uses its keys. */
void ndp_file_release_bos(struct ndp_file *file)
{
	unsigned long handle;
	struct ndp_bo *bo;

	for (;;) {
		mutex_lock(&file->lock);
		handle = 0;
		bo = xa_find(&file->handles, &handle, ULONG_MAX, XA_PRESENT);
		if (bo)
			ndp_bo_unpublish(file, bo);
		mutex_unlock(&file->lock);
		if (!bo)
			return;
		ndp_bo_leave_file(bo);
		cond_resched();
	}
}

/* ---- the other calls ----------------------------------------------------- */

int ndp_ioctl_bo_info(void *priv, struct ndp_call *call)
{
	struct moendp_bo_info *info = &call->info;
	struct ndp_map *map;
	struct ndp_bo *bo;
	int r, reply;

	if (info->flags || info->rsvd)
		return -EINVAL;
	bo = ndp_bo_lookup(priv, info->handle);
	if (!bo)
		return -ENOENT;
	info->type = bo->type;
	info->cookie = bo->cookie;
	info->h_in = bo->h_in;
	info->h_out = bo->h_out;
	info->rows = bo->rows;
	info->state = ndp_bo_state(bo);
	info->bytes = bo->bytes;
	info->stride = bo->stride;
	info->map_offset = bo->map_page << PAGE_SHIFT;
	info->id = bo->id;
	info->moves = READ_ONCE(bo->moves);
	info->allowed_mask = ndp_bo_is_weights(bo) ? bo->allowed_mask : 0;
	map = ndp_bo_peek_map(bo);
	info->dimm_mask = map->dimm_mask;
	ndp_map_put(map);
	r = ndp_bo_ranges(bo, info->ranges, &info->nr_ranges);
	ndp_bo_put(bo);
	if (r < 0 && r != -EMSGSIZE)
		return r;
	reply = ndp_call_reply(call);
	return reply < 0 ? reply : r;
}

/* What was written through the mapping is in the DIMM when this returns. */
static int ndp_bo_seal(struct ndp_bo *bo)
{
	int r = 0;

	if (!ndp_bo_is_weights(bo))
		return -EBADF;
	if (down_write_killable(&bo->map_rwsem))
		return -EINTR;
	if (bo->lost) {
		r = -ENODEV;
	} else if (!bo->sealed) {
		if (bo->nr_vmas) {
			r = -EBUSY;
		} else {
			ndp_flush_map(bo->map);
			spin_lock(&bo->lock);
			bo->sealed = true;
			spin_unlock(&bo->lock);
		}
	}
	up_write(&bo->map_rwsem);
	return r;
}

int ndp_ioctl_bo_seal(void *priv, struct ndp_call *call)
{
	struct moendp_bo_seal *s = &call->seal;
	struct ndp_file *file = priv;
	struct ndp_bo *bo;
	int r;

	if (s->flags || s->rsvd)
		return -EINVAL;
	bo = ndp_bo_lookup(file, s->handle);
	if (!bo)
		return -ENOENT;
	r = ndp_bo_seal(bo);
	ndp_bo_put(bo);
	if (r == 0)
		ndp_file_event(file);
	return r;
}
