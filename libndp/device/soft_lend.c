/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft_lend.c - lending the right to place the weights of an in-process device: a
 * thread that answers what is asked on placement fds (lend.h).
 *
 * A holder can list sealed weights and move them, and nothing else.  Migrations run
 * on the DIMMs' link engines and answer when they end, so one does not keep the
 * others waiting.  Before the device ends the thread has ended and no lent migration
 * is under way.
 */
#include "lend.h"
#include "soft.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- what there is to list ------------------------------------------- */

void soft_lend_init(struct soft_device *dev)
{
	struct soft_lender *l = &dev->lender;

	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->idle, NULL);
	l->tail = &l->objects;
}

/* Tells holders that have listed everything that there is news; under the lock. */
static void tell(struct soft_lender *l)
{
	for (uint32_t i = 0; i < l->nr_holders; i++) {
		struct soft_holder *h = &l->holders[i];

		if (!h->told && send(h->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
			h->told = true;
	}
}

void soft_lend_changed(struct soft_device *dev)
{
	pthread_mutex_lock(&dev->lender.lock);
	tell(&dev->lender);
	pthread_mutex_unlock(&dev->lender.lock);
}

void soft_lend_add(struct soft_weights *w)
{
	struct soft_lender *l = &((struct soft_device *)w->base.dev)->lender;

	pthread_mutex_lock(&l->lock);
	w->lent = true;
	w->lent_next = NULL;
	w->lent_prev = l->tail;
	*l->tail = w;
	l->tail = &w->lent_next;
	tell(l);
	pthread_mutex_unlock(&l->lock);
}

void soft_lend_remove(struct soft_weights *w)
{
	struct soft_lender *l = &((struct soft_device *)w->base.dev)->lender;

	pthread_mutex_lock(&l->lock);
	if (w->lent) {
		*w->lent_prev = w->lent_next;
		if (w->lent_next)
			w->lent_next->lent_prev = w->lent_prev;
		else
			l->tail = w->lent_prev;
		w->lent = false;
		tell(l);
	}
	pthread_mutex_unlock(&l->lock);
}

/* ---- answering --------------------------------------------------------- */

static void answer(int fd, const struct lend_reply *reply)
{
	/* Who does not wait for the answer does not want it. */
	(void)!send(fd, reply, sizeof(*reply), MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

static struct ndp_placement_entry describe(struct soft_weights *w)
{
	struct ndp_placement_entry e = {
		.id = w->id,
		.cookie = w->cookie,
		.bytes = (uint64_t)w->base.nr_blocks * w->base.block_bytes,
		.block_bytes = w->base.block_bytes,
		.nr_blocks = w->base.nr_blocks,
		.allowed_mask = w->allowed_mask,
		.matrix = w->base.matrix,
	};

	pthread_mutex_lock(&w->lock);
	for (uint32_t i = 0; i < w->map->nr_pieces; i++)
		e.dimm_mask |= 1U << w->map->pieces[i].extent->dimm->node;
	e.moving = w->moving;
	pthread_mutex_unlock(&w->lock);
	return e;
}

/* Weights are in the list in the order in which they were sealed, not that of ids. */
static struct soft_weights *next_lent(const struct soft_lender *l, uint64_t id)
{
	struct soft_weights *best = NULL;

	for (struct soft_weights *w = l->objects; w; w = w->lent_next)
		if (w->id >= id && (!best || w->id < best->id))
			best = w;
	return best;
}

static void list(struct soft_lender *l, struct soft_holder *h, const struct lend_request *req,
		 struct lend_reply *reply)
{
	const uint32_t max = req->nr_ranges < LEND_ENTRIES ? req->nr_ranges : LEND_ENTRIES;
	struct soft_weights *w = next_lent(l, req->id);

	if (req->id == 0)
		h->told = false;
	for (; w && reply->nr < max; w = next_lent(l, w->id + 1))
		reply->entries[reply->nr++] = describe(w);
	reply->next = w ? w->id : 0;
}

static struct soft_weights *find_lent(const struct soft_lender *l, uint64_t id)
{
	struct soft_weights *w = next_lent(l, id);

	return w && w->id == id ? w : NULL;
}

static int get(struct soft_lender *l, const struct lend_request *req, struct lend_reply *reply)
{
	struct soft_weights *w = find_lent(l, req->id);

	if (!w)
		return -ENOENT;
	pthread_mutex_lock(&w->lock);
	reply->nr = w->map->nr_pieces;
	for (uint32_t i = 0; i < reply->nr; i++)
		reply->ranges[i] = (struct ndp_range){
			.dimm = w->map->pieces[i].extent->dimm->node,
			.nr_blocks = w->map->pieces[i].nr,
		};
	pthread_mutex_unlock(&w->lock);
	return 0;
}

/* 0: the answer comes when the weights have moved. */
static int migrate(struct soft_device *dev, const struct lend_request *req, int reply_fd)
{
	struct soft_lender *l = &dev->lender;
	struct ndp_placement to = { .nr_ranges = req->nr_ranges };
	struct soft_weights *w = find_lent(l, req->id);
	int r;

	if (!w)
		return -ENOENT;
	if (req->nr_ranges == 0 || req->nr_ranges > NDP_MAX_RANGES)
		return -EINVAL;
	memcpy(to.ranges, req->ranges, sizeof(to.ranges));
	r = ndp_placement_check(&to, w->base.nr_blocks, UINT32_MAX, NULL);
	if (r < 0)
		return r;
	l->moves++;
	__atomic_add_fetch(&w->refs, 1, __ATOMIC_RELAXED);
	/* A migration without copies ends at once, and that wants the lock. */
	pthread_mutex_unlock(&l->lock);
	r = soft_migrate_lent(w, &to, reply_fd);
	pthread_mutex_lock(&l->lock);
	if (r < 0) {
		pthread_mutex_unlock(&l->lock);
		soft_weights_put(w);
		pthread_mutex_lock(&l->lock);
		if (--l->moves == 0)
			pthread_cond_broadcast(&l->idle);
	}
	return r;
}

void soft_lend_moved(struct soft_weights *w, int reply_fd, int r, const struct ndp_move *move)
{
	struct soft_device *dev = (struct soft_device *)w->base.dev;
	const struct lend_reply reply = { .res = r, .move = *move };

	soft_lend_changed(dev); /* before the answer: who has it finds the news there */
	soft_weights_put(w);
	answer(reply_fd, &reply);
	pthread_mutex_lock(&dev->lender.lock);
	if (--dev->lender.moves == 0)
		pthread_cond_broadcast(&dev->lender.idle);
	pthread_mutex_unlock(&dev->lender.lock);
}

/* Answers @req on @reply_fd, now or later; under the lock. */
static void serve(struct soft_device *dev, struct soft_holder *h, const struct lend_request *req,
		  int reply_fd)
{
	struct lend_reply reply = { 0 };

	switch (req->op) {
	case LEND_LIST:
		list(&dev->lender, h, req, &reply);
		break;
	case LEND_GET:
		reply.res = get(&dev->lender, req, &reply);
		break;
	case LEND_MIGRATE:
		reply.res = migrate(dev, req, reply_fd);
		if (reply.res == 0)
			return;
		break;
	case LEND_DIMM:
		reply.res = req->id < NDP_MAX_DIMMS ?
			soft_dimm_info(&dev->base, (uint32_t)req->id, &reply.dimm) : -ENXIO;
		break;
	default:
		reply.res = -EINVAL;
	}
	answer(reply_fd, &reply);
}

/* Takes one request off @fd.  1, 0: there is none, or -errno: this holder is gone. */
static int receive(int fd, struct lend_request *req, int *reply_fd)
{
	struct iovec iov = { req, sizeof(*req) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int nr_fds = 0;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < fds; i++) {
			int got;

			memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(got));
			if (nr_fds++ == 0)
				*reply_fd = got;
			else
				close(got);
		}
	}
	if (n == sizeof(*req) && nr_fds == 1)
		return 1;
	if (nr_fds)
		close(*reply_fd);
	return n == 0 ? -EPIPE : -EPROTO;
}

static void drop_holder(struct soft_lender *l, uint32_t i)
{
	close(l->holders[i].fd);
	l->holders[i] = l->holders[--l->nr_holders];
}

static void *lend(void *arg)
{
	struct soft_device *dev = arg;
	struct soft_lender *l = &dev->lender;
	struct pollfd polled[SOFT_MAX_HOLDERS + 1];

	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		uint32_t n = l->nr_holders;
		uint64_t woken;

		for (uint32_t i = 0; i < n; i++)
			polled[i] = (struct pollfd){ .fd = l->holders[i].fd, .events = POLLIN };
		polled[n] = (struct pollfd){ .fd = l->wake, .events = POLLIN };
		pthread_mutex_unlock(&l->lock);
		poll(polled, n + 1, -1);
		(void)!read(l->wake, &woken, sizeof(woken));
		pthread_mutex_lock(&l->lock);
		/* From the end: dropping one puts the last one in its place. */
		for (uint32_t i = l->nr_holders; i-- > 0 && !l->stop;) {
			struct lend_request req;
			int reply_fd = -1;
			int r;

			if (i >= l->nr_holders)
				continue; /* the right was revoked meanwhile */
			r = receive(l->holders[i].fd, &req, &reply_fd);
			if (r < 0)
				drop_holder(l, i);
			else if (r > 0)
				serve(dev, &l->holders[i], &req, reply_fd);
		}
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* ---- beginning and end ---------------------------------------------------- */

static int start(struct soft_device *dev)
{
	struct soft_lender *l = &dev->lender;
	int r;

	if (l->running)
		return 0;
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake < 0)
		return -errno;
	r = pthread_create(&l->thread, NULL, lend, dev);
	if (r) {
		close(l->wake);
		return -r;
	}
	l->running = true;
	return 0;
}

static void wake(const struct soft_lender *l)
{
	const uint64_t one = 1;

	(void)!write(l->wake, &one, sizeof(one));
}

int soft_placement_fd(struct ndp_device *base)
{
	struct soft_device *dev = (struct soft_device *)base;
	struct soft_lender *l = &dev->lender;
	int pair[2];
	int r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	pthread_mutex_lock(&l->lock);
	r = l->nr_holders == SOFT_MAX_HOLDERS ? -EMFILE : start(dev);
	if (r == 0) {
		l->holders[l->nr_holders++] = (struct soft_holder){ .fd = pair[0] };
		tell(l);
		wake(l);
	}
	pthread_mutex_unlock(&l->lock);
	if (r < 0) {
		close(pair[0]);
		close(pair[1]);
		return r;
	}
	return pair[1];
}

int soft_placement_revoke(struct ndp_device *base)
{
	struct soft_lender *l = &((struct soft_device *)base)->lender;

	pthread_mutex_lock(&l->lock);
	while (l->nr_holders)
		drop_holder(l, 0);
	if (l->running)
		wake(l);
	pthread_mutex_unlock(&l->lock);
	return 0;
}

void soft_lend_end(struct soft_device *dev)
{
	struct soft_lender *l = &dev->lender;

	pthread_mutex_lock(&l->lock);
	l->stop = true;
	if (l->running)
		wake(l);
	pthread_mutex_unlock(&l->lock);
	if (l->running) {
		pthread_join(l->thread, NULL);
		close(l->wake);
	}
	pthread_mutex_lock(&l->lock);
	while (l->nr_holders)
		drop_holder(l, 0);
	while (l->moves)
		pthread_cond_wait(&l->idle, &l->lock);
	pthread_mutex_unlock(&l->lock);
	pthread_cond_destroy(&l->idle);
	pthread_mutex_destroy(&l->lock);
}
