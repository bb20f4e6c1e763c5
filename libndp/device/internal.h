/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * internal.h - what the files of device/ share: the objects as the front end
 * sees them and the operations that a back end implements.
 *
 * The front end (device.c, weights.c, io.c, command.c, queue.c) checks
 * arguments, keeps x where it is needed and caches coherent; a back end
 * allocates, executes and moves.  Nothing here is exported.
 */
#ifndef NDP_INTERNAL_H
#define NDP_INTERNAL_H

#include "../error.h"

#include <ndp/device.h>
#include <pthread.h>

#define NDPI_ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define NDPI_MAX_H 65472

/* ---- errors (error.c) ------------------------------------------------ */

void ndpi_error_clear(struct ndp_error *err);
/* What -errno @r means when a DIMM was asked for something. */
const char *ndpi_dimm_error(int r);

/* ---- CPU caches (cache.c) -------------------------------------------- */

/* For DIMMs that do not see CPU caches: write lines back; discard clean lines. */
void ndpi_cache_write_back(const void *p, size_t bytes);
void ndpi_cache_invalidate(const void *p, size_t bytes);

/* ---- placements (placement.c) ----------------------------------------- */

/*
 * A migration from a queue carries at most 7 ranges (MOENDP_MAX_INLINE_RANGES),
 * or says that the placement is an even spread over a mask.
 */
#define NDPI_QUEUE_RANGES 7
bool ndpi_placement_fits_queue(const struct ndp_placement *p);

/* ---- objects --------------------------------------------------------- */

struct ndpi_request;

struct ndp_device {
	const struct ndpi_backend_ops *ops;
	char name[64];
	uint32_t max_tokens;
	bool coherent;
	int refs; /* the caller's and one for every object and queue */
};

struct ndp_weights {
	struct ndp_device *dev;
	bool matrix;
	struct ndp_expert_shape expert;
	struct ndp_matrix_shape mat;
	uint32_t nr_blocks;
	size_t block_bytes;
	bool sealed; /* atomic */
	pthread_mutex_t lock; /* sealing, first mapping */
	const void *map;
};

struct ndp_io {
	struct ndp_device *dev;
	uint32_t mask;
	size_t bytes;
	void *replica[NDP_MAX_DIMMS]; /* NULL where @mask has no bit */
};

struct ndpi_list {
	struct ndpi_request *head;
	struct ndpi_request **tail;
};

struct ndp_queue {
	struct ndp_device *dev;
	pthread_t owner;
	unsigned int depth;
	unsigned int inflight; /* pushed and not yet returned to the caller */
	unsigned int pending; /* of these with the back end */
	unsigned int batch; /* of these pushed and not yet submitted */
	struct ndpi_request *free;
	struct ndpi_list done;
	void *requests;
};

/* A command on its way; a back end's own part follows. */
struct ndpi_request {
	struct ndpi_request *next;
	struct ndp_cmd cmd; /* checked, count filled in */
	uint32_t x_mask; /* cmd.x_mask and what retries added */
	uint32_t retries;
	/* filled in by the back end */
	int res;
	uint32_t dimm_mask;
	uint64_t modelled_ns;
};

#define NDPI_REQUEST_MAX 640

/* ---- back ends ------------------------------------------------------- */

/*
 * All return 0 or -errno.  Arguments are checked by the front end as far as one
 * can without knowing which DIMMs there are.  A back end allocates its larger
 * structs itself: the front end's is their first member.
 */
struct ndpi_backend_ops {
	size_t request_bytes; /* including struct ndpi_request */

	void (*close)(struct ndp_device *dev);
	int (*info)(struct ndp_device *dev, struct ndp_device_info *info);
	int (*dimm_info)(struct ndp_device *dev, uint32_t dimm, struct ndp_dimm_info *info);

	struct ndp_weights *(*weights_alloc)(void);
	/* Reads the shape from @w. */
	int (*weights_create)(struct ndp_weights *w, const struct ndp_placement *p,
			      uint32_t allowed_mask, uint64_t cookie);
	/* Also undoes weights_alloc(). */
	void (*weights_destroy)(struct ndp_weights *w);
	/* Where to write block @block before sealing; w->lock is held. */
	int (*weights_block)(struct ndp_weights *w, uint32_t block, void **p);
	int (*weights_seal)(struct ndp_weights *w);
	int (*weights_map)(struct ndp_weights *w, const void **p);
	/* Fills in lost, cookie, id, moves, allowed_mask and placement. */
	int (*weights_info)(struct ndp_weights *w, struct ndp_weights_info *info);
	int (*weights_migrate)(struct ndp_weights *w, const struct ndp_placement *to,
			       struct ndp_move *move);

	struct ndp_io *(*io_alloc)(void);
	/* Fills in mask, bytes and replica[]. */
	int (*io_create)(struct ndp_io *io, uint32_t mask, size_t bytes);
	void (*io_destroy)(struct ndp_io *io);

	/* Executes @req and fills in its result; not for MIGRATE_WEIGHTS. */
	void (*run)(struct ndp_device *dev, struct ndpi_request *req);

	struct ndp_queue *(*queue_alloc)(void);
	int (*queue_create)(struct ndp_queue *q, struct ndp_error *err);
	void (*queue_destroy)(struct ndp_queue *q);
	/* Keeps @req for the next submission. */
	int (*queue_push)(struct ndp_queue *q, struct ndpi_request *req);
	/* Submits what was pushed and tells ndpi_queue_submitted(). */
	int (*queue_submit)(struct ndp_queue *q);
	/*
	 * Submits likewise, waits for @min completions (0: looks) and appends all
	 * there are to @done.  May return fewer, even none; -EINTR: a signal.
	 */
	int (*queue_reap)(struct ndp_queue *q, unsigned int min, struct ndpi_list *done);

	int (*placement_fd)(struct ndp_device *dev);
	int (*placement_revoke)(struct ndp_device *dev);
};

int ndpi_kernel_open(struct ndp_device **dev, const char *path, struct ndp_error *err);
int ndpi_soft_open(struct ndp_device **dev, const char *options, struct ndp_error *err);

/* ---- shared by the front end ----------------------------------------- */

void ndpi_device_get(struct ndp_device *dev);
void ndpi_device_put(struct ndp_device *dev);

/* command.c: one command's life. */
int ndpi_request_prepare(struct ndpi_request *req, struct ndp_device *dev,
			 const struct ndp_cmd *cmd);
/* true: the back end has to execute it (again). */
bool ndpi_request_needs_retry(struct ndpi_request *req);
void ndpi_request_result(const struct ndpi_request *req, struct ndp_result *result);

static inline void ndpi_list_init(struct ndpi_list *l)
{
	l->head = NULL;
	l->tail = &l->head;
}

static inline void ndpi_list_add(struct ndpi_list *l, struct ndpi_request *req)
{
	req->next = NULL;
	*l->tail = req;
	l->tail = &req->next;
}

static inline struct ndpi_request *ndpi_list_take(struct ndpi_list *l)
{
	struct ndpi_request *req = l->head;

	if (!req)
		return NULL;
	l->head = req->next;
	if (!l->head)
		l->tail = &l->head;
	return req;
}

static inline void ndpi_queue_submitted(struct ndp_queue *q, unsigned int n)
{
	q->batch -= n;
	q->pending += n;
}

static inline bool ndpi_is_sealed(const struct ndp_weights *w)
{
	return __atomic_load_n(&w->sealed, __ATOMIC_ACQUIRE);
}

static inline uint32_t ndpi_lowest(uint32_t mask)
{
	return (uint32_t)__builtin_ctz(mask);
}

#endif
