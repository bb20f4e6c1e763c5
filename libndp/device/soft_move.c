/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft_move.c - migration: copy the extents that change, swap the map.
 *
 * The old map stays valid until the new one is complete, and its extents until
 * the last command that uses them is done; at any failure it simply remains.
 * Each DIMM takes at most two migrations' copies at a time; the others wait
 * their turn in the order in which they came.
 *
 * The contiguous view is re-pointed piece by piece under the weights' lock.
 * Old and new bytes are equal, and MAP_FIXED replaces a mapping in one step, so
 * a thread that reads meanwhile sees the same weights all the time.
 */
#include "soft.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>

struct soft_move {
	struct soft_device *dev;
	struct soft_weights *w;
	struct soft_map *old, *map;
	struct ndp_placement to;
	uint32_t into; /* DIMMs that receive copies */
	struct soft_move *next;
	struct soft_segment *segments;
	uint32_t nr_segments;
	int pending;
	int status; /* first error of a segment */
	uint64_t bytes; /* atomic */
	uint64_t modelled_ns; /* atomic */
	struct soft_request *req; /* from a queue */
	bool lent; /* by the holder of a placement fd, who waits at reply_fd */
	int reply_fd;
	sem_t done; /* or else */
};

/* ---- planning -------------------------------------------------------- */

/* The extent of a range that stays where it is, or NULL. */
static struct soft_extent *stays(const struct soft_map *old, const struct soft_piece *p,
				 uint32_t dimm)
{
	for (uint32_t i = 0; i < old->nr_pieces; i++) {
		const struct soft_piece *o = &old->pieces[i];

		if (o->first == p->first && o->nr == p->nr && o->extent->dimm->node == dimm)
			return o->extent;
	}
	return NULL;
}

/* Pieces of the new map; extents only where a range stays. */
static int plan(struct soft_move *m)
{
	uint32_t first = 0;

	m->map = soft_map_new(m->to.nr_ranges);
	if (!m->map)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->to.nr_ranges; i++) {
		struct soft_piece *p = &m->map->pieces[i];
		struct soft_extent *e;

		p->first = first;
		p->nr = m->to.ranges[i].nr_blocks;
		first += p->nr;
		e = stays(m->old, p, m->to.ranges[i].dimm);
		if (e)
			p->extent = soft_extent_get(e);
		else
			m->into |= 1U << m->to.ranges[i].dimm;
	}
	return 0;
}

static uint32_t overlap(const struct soft_piece *a, const struct soft_piece *b, uint32_t *first)
{
	uint32_t end = a->first + a->nr < b->first + b->nr ? a->first + a->nr : b->first + b->nr;

	*first = a->first > b->first ? a->first : b->first;
	return end > *first ? end - *first : 0;
}

static void add_segments(struct soft_move *m, const struct soft_piece *p)
{
	size_t block = m->w->base.block_bytes;
	uint32_t first, nr;

	for (uint32_t i = 0; i < m->old->nr_pieces; i++) {
		const struct soft_piece *o = &m->old->pieces[i];

		nr = overlap(o, p, &first);
		if (!nr)
			continue;
		m->segments[m->nr_segments++] = (struct soft_segment){
			.move = m,
			.from = o->extent->dimm,
			.to = p->extent->dimm,
			.from_off = o->extent->off + (uint64_t)(first - o->first) * block,
			.to_off = p->extent->off + (uint64_t)(first - p->first) * block,
			.bytes = (uint64_t)nr * block,
		};
	}
}

/* Allocates what moves, and lists the copies. */
static int allocate(struct soft_move *m)
{
	m->segments = calloc(m->map->nr_pieces + m->old->nr_pieces, sizeof(*m->segments));
	if (!m->segments)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->map->nr_pieces; i++) {
		struct soft_piece *p = &m->map->pieces[i];
		int r;

		if (p->extent)
			continue;
		r = soft_extent_new(&p->extent, &m->dev->dimms[m->to.ranges[i].dimm],
				    (uint64_t)p->nr * m->w->base.block_bytes, true);
		if (r < 0)
			return r;
		add_segments(m, p);
	}
	return 0;
}

/* ---- the end --------------------------------------------------------- */

static int view_pieces(struct soft_weights *w, const struct soft_map *map)
{
	int r = 0;

	for (uint32_t i = 0; i < map->nr_pieces && !r; i++)
		r = soft_view_piece(w, &map->pieces[i]);
	return r;
}

/*
 * Points the view at @m->map.  Should the kernel have no room for one more
 * mapping, it is pointed back; should even that fail, the new extents are kept
 * as long as the weights, for parts of the view are on them.
 */
static int repoint_view(struct soft_move *m)
{
	struct soft_weights *w = m->w;
	int r = view_pieces(w, m->map);

	if (r < 0 && view_pieces(w, m->old) < 0) {
		m->map->next_kept = w->kept;
		w->kept = soft_map_get(m->map);
	}
	return r;
}

static int swap_map(struct soft_move *m)
{
	struct soft_weights *w = m->w;
	int r = 0;

	if (m->status < 0)
		return m->status;
	pthread_mutex_lock(&w->lock);
	if (w->view)
		r = repoint_view(m);
	if (!r) {
		struct soft_map *old = w->map;

		w->map = m->map;
		m->map = old; /* dropped by the caller */
		w->moves++;
	}
	pthread_mutex_unlock(&w->lock);
	return r;
}

static void move_start_admitted(struct soft_move *m);

static bool admit(struct soft_move *m)
{
	for (uint32_t d = m->into; d; d &= d - 1)
		if (m->dev->dimms[ndpi_lowest(d)].copies >= SOFT_COPIES_A_DIMM)
			return false;
	for (uint32_t d = m->into; d; d &= d - 1)
		m->dev->dimms[ndpi_lowest(d)].copies++;
	return true;
}

/* Gives the places of @m to those who wait. */
static void release(struct soft_move *m)
{
	struct soft_device *dev = m->dev;
	struct soft_move *started = NULL, **tail = &started;

	pthread_mutex_lock(&dev->move_lock);
	for (uint32_t d = m->into; d; d &= d - 1)
		dev->dimms[ndpi_lowest(d)].copies--;
	while (dev->waiting && admit(dev->waiting)) {
		*tail = dev->waiting;
		tail = &dev->waiting->next;
		dev->waiting = dev->waiting->next;
	}
	if (!dev->waiting)
		dev->waiting_tail = &dev->waiting;
	pthread_mutex_unlock(&dev->move_lock);
	*tail = NULL;
	while (started) {
		struct soft_move *next = started->next;

		move_start_admitted(started);
		started = next;
	}
}

/* After this the move may be gone. */
static void end(struct soft_move *m, int r)
{
	struct soft_request *req = m->req;

	soft_map_put(m->map);
	soft_map_put(m->old);
	pthread_mutex_lock(&m->w->lock);
	m->w->moving = false;
	pthread_mutex_unlock(&m->w->lock);
	m->status = r;
	if (m->lent) {
		const struct ndp_move move = { m->bytes, m->modelled_ns };

		soft_lend_moved(m->w, m->reply_fd, r, &move);
		free(m);
		return;
	}
	soft_lend_changed(m->dev);
	if (!req) {
		sem_post(&m->done);
		return;
	}
	req->base.res = r;
	req->base.dimm_mask = ndp_placement_mask(&m->to);
	req->base.modelled_ns = m->modelled_ns;
	soft_weights_put(m->w);
	free(m);
	soft_request_done(req);
}

static void finish(struct soft_move *m, int r)
{
	free(m->segments);
	m->segments = NULL;
	release(m);
	end(m, r);
}

/* ---- copying --------------------------------------------------------- */

/* When a pull that starts now ends; both ports are busy until then. */
static uint64_t occupy_ports(struct soft_segment *s, uint64_t now, uint64_t ns)
{
	struct soft_device *dev = s->to->dev;
	uint64_t at = now;

	pthread_mutex_lock(&dev->port_lock);
	if (s->from != s->to) {
		if (s->from->tx_until_ns > at)
			at = s->from->tx_until_ns;
		if (s->to->rx_until_ns > at)
			at = s->to->rx_until_ns;
		s->from->tx_until_ns = at + ns;
		s->to->rx_until_ns = at + ns;
	}
	pthread_mutex_unlock(&dev->port_lock);
	return at + ns;
}

static enum ndp_chip_status copy_chunk(struct soft_segment *s, uint64_t done, uint64_t bytes)
{
	struct soft_device *dev = s->to->dev;
	struct ndp_chip_mem to = { .base = s->to->mem.base, .bytes = s->to->mem.bytes };
	struct ndp_chip_mem from = { .base = s->from->mem.base, .bytes = s->from->mem.bytes };
	struct ndp_chip_op op = {
		.opcode = s->from == s->to ? NDP_CHIP_COPY : NDP_CHIP_LINK_COPY,
		.node = s->from == s->to ? 0 : s->from->node,
		.w = s->from_off + done,
		.y = s->to_off + done,
		.len = bytes,
	};
	uint64_t begin = soft_now_ns(), ns = ndp_chip_op_ns(&op, &dev->params);
	enum ndp_chip_status status;

	if (s->from == s->to)
		status = ndp_chip_exec(s->to->link.chip, &op, &to, NULL);
	else
		status = ndp_chip_link_copy(&op, &to, &from, NULL);
	if (dev->timing)
		soft_sleep_until_ns(occupy_ports(s, begin, ns));
	soft_count(&s->to->link.counters, &op, ns, soft_now_ns() - begin, status != NDP_CHIP_OK);
	if (status == NDP_CHIP_OK) {
		__atomic_add_fetch(&s->move->bytes, bytes, __ATOMIC_RELAXED);
		__atomic_add_fetch(&s->move->modelled_ns, ns, __ATOMIC_RELAXED);
	}
	return status;
}

void soft_segment_execute(struct soft_segment *s)
{
	struct soft_move *m = s->move;
	enum ndp_chip_status status = NDP_CHIP_OK;
	int ok = 0;

	for (uint64_t done = 0, n; done < s->bytes && status == NDP_CHIP_OK; done += n) {
		n = s->bytes - done < NDP_CHIP_MAX_COPY ? s->bytes - done : NDP_CHIP_MAX_COPY;
		status = copy_chunk(s, done, n);
	}
	if (status != NDP_CHIP_OK)
		__atomic_compare_exchange_n(&m->status, &ok, soft_status_errno(status), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	if (!__atomic_sub_fetch(&m->pending, 1, __ATOMIC_ACQ_REL))
		finish(m, swap_map(m));
}

/* ---- the beginning --------------------------------------------------- */

static void move_start_admitted(struct soft_move *m)
{
	uint32_t n;
	int r = allocate(m);

	if (r < 0) {
		finish(m, r);
		return;
	}
	n = m->nr_segments;
	m->pending = (int)n;
	for (uint32_t i = 0; i < n; i++)
		soft_link_append(m->segments[i].to, &m->segments[i]);
}

/* Ends in end(), unless it fails: then nothing has happened. */
static int move_start(struct soft_move *m, struct soft_weights *w, const struct ndp_placement *to)
{
	struct soft_device *dev = (struct soft_device *)w->base.dev;
	bool admitted;
	int r;

	if (ndp_placement_mask(to) & ~(UINT32_MAX >> (NDP_MAX_DIMMS - dev->nr_dimms)))
		return -ENODEV;
	if (ndp_placement_mask(to) & ~w->allowed_mask)
		return -EPERM;
	m->dev = dev;
	m->w = w;
	m->to = *to;
	pthread_mutex_lock(&w->lock);
	r = w->moving ? -EBUSY : 0;
	if (!r) {
		w->moving = true;
		m->old = soft_map_get(w->map);
	}
	pthread_mutex_unlock(&w->lock);
	if (r < 0)
		return r;
	r = plan(m);
	if (r < 0 || !m->into) {
		end(m, r);
		return 0;
	}
	pthread_mutex_lock(&dev->move_lock);
	admitted = !dev->waiting && admit(m);
	if (!admitted) {
		m->next = NULL;
		*dev->waiting_tail = m;
		dev->waiting_tail = &m->next;
	}
	pthread_mutex_unlock(&dev->move_lock);
	if (admitted)
		move_start_admitted(m);
	return 0;
}

int soft_weights_migrate(struct ndp_weights *base, const struct ndp_placement *to,
			 struct ndp_move *move)
{
	struct soft_move m = { 0 };
	int r;

	sem_init(&m.done, 0, 0);
	r = move_start(&m, (struct soft_weights *)base, to);
	if (!r) {
		while (sem_wait(&m.done) < 0)
			;
		r = m.status;
		move->bytes = m.bytes;
		move->modelled_ns = m.modelled_ns;
	}
	sem_destroy(&m.done);
	return r;
}

void soft_migrate_async(struct soft_request *req)
{
	struct soft_weights *w = (struct soft_weights *)req->base.cmd.weights;
	struct soft_move *m = calloc(1, sizeof(*m));
	int r = -ENOMEM;

	if (m) {
		m->req = req;
		__atomic_add_fetch(&w->refs, 1, __ATOMIC_RELAXED);
		r = move_start(m, w, req->base.cmd.to);
		if (!r)
			return;
		soft_weights_put(w);
		free(m);
	}
	req->base.res = r;
	req->base.dimm_mask = 0;
	req->base.modelled_ns = 0;
	soft_request_done(req);
}

int soft_migrate_lent(struct soft_weights *w, const struct ndp_placement *to, int reply_fd)
{
	struct soft_move *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	m->lent = true;
	m->reply_fd = reply_fd;
	r = move_start(m, w, to);
	if (r < 0)
		free(m);
	return r;
}
