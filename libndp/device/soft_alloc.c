/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft_alloc.c - the memory of an in-process DIMM: a memory file, cut into
 * contiguous extents.
 *
 * Free memory is always zero: whatever is given back is punched out of the file,
 * so an allocation needs no clearing and idle memory costs nothing.  Best fit,
 * the lowest offset among equals.  Giving back never allocates, so it cannot
 * fail.
 */
#include "soft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void free_list_add(struct soft_memory *m, struct soft_extent *e)
{
	e->prev_free = NULL;
	e->next_free = m->free;
	if (m->free)
		m->free->prev_free = e;
	m->free = e;
}

static void free_list_remove(struct soft_memory *m, struct soft_extent *e)
{
	if (e->prev_free)
		e->prev_free->next_free = e->next_free;
	else
		m->free = e->next_free;
	if (e->next_free)
		e->next_free->prev_free = e->prev_free;
}

int soft_memory_init(struct soft_dimm *d, uint64_t bytes)
{
	struct soft_memory *m = &d->mem;
	struct soft_extent *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	m->fd = memfd_create("ndp-dimm", MFD_CLOEXEC);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) < 0)
		goto fail;
	m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->base == MAP_FAILED)
		goto fail;
	*all = (struct soft_extent){ .dimm = d, .bytes = bytes, .is_free = true };
	pthread_mutex_init(&m->lock, NULL);
	m->bytes = m->free_bytes = bytes;
	m->reserve_bytes = bytes / SOFT_RESERVE_PART / SOFT_PAGE * SOFT_PAGE;
	free_list_add(m, all);
	return 0;
fail:
	free(all);
	if (m->fd >= 0)
		close(m->fd);
	m->base = NULL;
	return -errno;
}

/* With every extent given back there is one left: the whole. */
void soft_memory_fini(struct soft_dimm *d)
{
	struct soft_memory *m = &d->mem;

	if (!m->base)
		return;
	munmap(m->base, m->bytes);
	close(m->fd);
	pthread_mutex_destroy(&m->lock);
	free(m->free);
}

static struct soft_extent *best_fit(struct soft_memory *m, uint64_t bytes)
{
	struct soft_extent *best = NULL;

	for (struct soft_extent *e = m->free; e; e = e->next_free) {
		if (e->bytes < bytes)
			continue;
		if (!best || e->bytes < best->bytes ||
		    (e->bytes == best->bytes && e->off < best->off))
			best = e;
	}
	return best;
}

/* *@spare becomes the remainder of a larger piece, and NULL then. */
static int take(struct soft_memory *m, uint64_t bytes, bool for_move, struct soft_extent **spare,
		struct soft_extent **taken)
{
	struct soft_extent *e;

	if (!for_move && m->free_bytes < bytes + m->reserve_bytes)
		return -ENOSPC;
	e = best_fit(m, bytes);
	if (!e)
		return -ENOSPC;
	free_list_remove(m, e);
	if (e->bytes > bytes) {
		struct soft_extent *rest = *spare;

		*spare = NULL;
		*rest = *e;
		rest->off += bytes;
		rest->bytes -= bytes;
		rest->prev = e;
		if (rest->next)
			rest->next->prev = rest;
		e->next = rest;
		e->bytes = bytes;
		free_list_add(m, rest);
	}
	e->is_free = false;
	e->refs = 1;
	m->free_bytes -= bytes;
	*taken = e;
	return 0;
}

int soft_extent_new(struct soft_extent **e, struct soft_dimm *d, uint64_t bytes, bool for_move)
{
	struct soft_extent *spare = calloc(1, sizeof(*spare));
	struct soft_memory *m = &d->mem;
	int r = -ENOSPC;

	if (!spare)
		return -ENOMEM;
	if (bytes <= m->bytes) {
		pthread_mutex_lock(&m->lock);
		r = take(m, NDPI_ROUND_UP(bytes, SOFT_PAGE), for_move, &spare, e);
		pthread_mutex_unlock(&m->lock);
	}
	free(spare);
	return r;
}

struct soft_extent *soft_extent_get(struct soft_extent *e)
{
	__atomic_add_fetch(&e->refs, 1, __ATOMIC_RELAXED);
	return e;
}

/* @e and its successor become @e. */
static struct soft_extent *merge(struct soft_memory *m, struct soft_extent *e)
{
	struct soft_extent *next = e->next;

	free_list_remove(m, next);
	e->bytes += next->bytes;
	e->next = next->next;
	if (e->next)
		e->next->prev = e;
	return next;
}

static void clear(struct soft_memory *m, uint64_t off, uint64_t bytes)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	if (fallocate(m->fd, punch, (off_t)off, (off_t)bytes) < 0)
		memset(m->base + off, 0, bytes);
}

void soft_extent_put(struct soft_extent *e)
{
	struct soft_extent *gone[2] = { NULL, NULL };
	struct soft_memory *m;

	if (!e)
		return;
	m = &e->dimm->mem;
	if (__atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL))
		return;
	clear(m, e->off, e->bytes);
	pthread_mutex_lock(&m->lock);
	m->free_bytes += e->bytes;
	e->is_free = true;
	free_list_add(m, e);
	if (e->next && e->next->is_free)
		gone[0] = merge(m, e);
	if (e->prev && e->prev->is_free)
		gone[1] = merge(m, e->prev);
	pthread_mutex_unlock(&m->lock);
	free(gone[0]);
	free(gone[1]);
}

/* What objects can use: the reserve does not count. */
void soft_memory_state(struct soft_dimm *d, uint64_t *free_bytes, uint64_t *largest)
{
	struct soft_memory *m = &d->mem;

	*largest = 0;
	pthread_mutex_lock(&m->lock);
	*free_bytes = m->free_bytes > m->reserve_bytes ? m->free_bytes - m->reserve_bytes : 0;
	for (struct soft_extent *e = m->free; e; e = e->next_free)
		if (e->bytes > *largest)
			*largest = e->bytes;
	pthread_mutex_unlock(&m->lock);
	if (*largest > *free_bytes)
		*largest = *free_bytes;
}
