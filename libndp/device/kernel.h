/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kernel.h - the kernel back end's own parts: kernel.c (files, objects, SUBMIT)
 * and kernel_queue.c (io_uring).
 */
#ifndef NDP_KERNEL_H
#define NDP_KERNEL_H

#include "internal.h"

#include <liburing.h>
#include <moendp.h>

struct kernel_device {
	struct ndp_device base;
	int fd;
	uint32_t a_dimm; /* one that this file knows */
};

struct kernel_weights {
	struct ndp_weights base;
	uint32_t handle;
	uint64_t map_offset;
	void *filling; /* writable mapping until sealed */
};

struct kernel_io {
	struct ndp_io base;
	uint32_t handle;
	void *map;
	size_t map_bytes;
};

struct kernel_queue {
	struct ndp_queue base;
	struct io_uring ring;
};

static inline int kernel_fd(const struct ndp_device *dev)
{
	return ((const struct kernel_device *)dev)->fd;
}

/* @req in the form of the uapi; the number of the operation. */
uint32_t ndpi_kernel_command(const struct ndpi_request *req, struct moendp_cmd *cmd);

/* A ring fit for 80-byte commands; says why there is none. */
int ndpi_kernel_ring(struct io_uring *ring, unsigned int depth, struct ndp_error *err);

struct ndp_queue *ndpi_kernel_queue_alloc(void);
int ndpi_kernel_queue_create(struct ndp_queue *q, struct ndp_error *err);
void ndpi_kernel_queue_destroy(struct ndp_queue *q);
int ndpi_kernel_queue_push(struct ndp_queue *q, struct ndpi_request *req);
int ndpi_kernel_queue_submit(struct ndp_queue *q);
int ndpi_kernel_queue_reap(struct ndp_queue *q, unsigned int min, struct ndpi_list *done);

/* The holder's side of placement fds. */
int ndpi_kernel_placement_list(int fd, uint64_t *start, struct ndp_placement_entry *entries,
			       size_t max);
int ndpi_kernel_placement_get(int fd, uint64_t id, struct ndp_placement *placement);
int ndpi_kernel_placement_migrate(int fd, uint64_t id, const struct ndp_placement *to,
				  struct ndp_move *move);

#endif
