/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * internal.h - an attachment, as the application's threads (attach.c) and the
 * thread that keeps the connection (connect.c) share it.
 */
#ifndef NDP_ATTACH_INTERNAL_H
#define NDP_ATTACH_INTERNAL_H

#include "../error.h"

#include <ndp/attach.h>
#include <ndp/daemon.h>
#include <pthread.h>
#include <sys/un.h>

struct ndp_attachment {
	struct sockaddr_un address;
	struct ndp_msg_hello hello;
	bool later;

	struct ndp_ring *ring;
	uint32_t slots, slot_bytes;	/* of it: what is in shared memory may change */
	size_t ring_bytes;
	int ring_fd;
	int placement_fd;	/* -1: none */

	/*
	 * The page; zeroes until ndpd has sent one.  It is replaced in place, while
	 * @epoch is odd.
	 */
	const struct ndp_page *page;
	size_t page_bytes;
	int page_fd;		/* -1: none yet */
	uint64_t epoch;
	uint64_t *followed;	/* [layers]: generation that was followed last, plus 1 */

	/* Of the thread. */
	pthread_t thread;
	int wake;		/* eventfd: the end */
	int socket;		/* -1: not attached */
	pthread_mutex_t lock;
	struct ndp_attach_state state;	/* under @lock; posts and dropped apart */
};

static inline struct ndp_ring_slot *ndpi_ring_slot(const struct ndp_attachment *a, uint64_t at)
{
	return (struct ndp_ring_slot *)((char *)(a->ring + 1) +
					(size_t)(at & (a->slots - 1)) * a->slot_bytes);
}

/* Connects, introduces the application, takes the page.  Waits a few seconds at most. */
int ndpi_attach_connect(struct ndp_attachment *a, struct ndp_error *err);
/* The thread: attaches again whenever the connection is lost. */
void *ndpi_attach_keep(void *attachment);

#endif
