/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft.h - the in-process back end: DIMMs made of a memory file, an allocator
 * and two engines on threads, each DIMM computing with the chip that the
 * emulated device uses.
 *
 *   soft.c          options, opening, counters
 *   soft_alloc.c    contiguous, zeroed, reference-counted extents of a DIMM
 *   soft_objects.c  weights with their extent map, replicated buffers
 *   soft_engine.c   threads, execution of commands, completion
 *   soft_move.c     migration by copies, then a swap of the extent map
 *   soft_lend.c     placement fds: others list and move weights
 *
 * Locks, from the outside in: soft_lender.lock, soft_weights.lock,
 * soft_device.move_lock; all others are leaves.
 */
#ifndef NDP_SOFT_H
#define NDP_SOFT_H

#include "internal.h"

#include <ndp_chip.h>

#define SOFT_PAGE 4096UL
#define SOFT_COPIES_A_DIMM 2
#define SOFT_RESERVE_PART 16 /* 1/16 of a DIMM is for migrations */

struct soft_request;
struct soft_segment;

/* ---- memory ---------------------------------------------------------- */

/* A piece of a DIMM, free or used, in the list of all its pieces. */
struct soft_extent {
	struct soft_dimm *dimm;
	struct soft_extent *prev, *next; /* by offset */
	struct soft_extent *prev_free, *next_free;
	uint64_t off;
	uint64_t bytes;
	bool is_free; /* under the memory's lock */
	int refs; /* atomic */
};

struct soft_memory {
	int fd;
	uint8_t *base;
	uint64_t bytes;
	pthread_mutex_t lock;
	struct soft_extent *free;
	uint64_t free_bytes;
	uint64_t reserve_bytes;
};

int soft_memory_init(struct soft_dimm *d, uint64_t bytes);
void soft_memory_fini(struct soft_dimm *d);
/* @bytes is rounded up to pages.  @for_move: may use the reserve. */
int soft_extent_new(struct soft_extent **e, struct soft_dimm *d, uint64_t bytes, bool for_move);
struct soft_extent *soft_extent_get(struct soft_extent *e);
void soft_extent_put(struct soft_extent *e);
void soft_memory_state(struct soft_dimm *d, uint64_t *free_bytes, uint64_t *largest);

/* ---- DIMMs ----------------------------------------------------------- */

struct soft_engine {
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool idle;
	bool stop;
	uint32_t inflight; /* atomic */
	struct soft_request *head, **tail; /* compute */
	struct soft_segment *copies, **copies_tail; /* link */
	struct ndp_chip_engine *chip;
	struct ndp_counters counters; /* written by the thread, read by anyone */
	uint64_t busy_until_ns; /* compute, timing=on */
};

struct soft_dimm {
	struct soft_device *dev;
	uint32_t node;
	struct soft_memory mem;
	struct soft_engine compute;
	struct soft_engine link;
	uint64_t tx_until_ns, rx_until_ns; /* timing=on; under port_lock */
	unsigned int copies; /* under move_lock */
};

#define SOFT_MAX_HOLDERS 16

struct soft_holder {
	int fd;
	bool told; /* that there is news, and has not listed since */
};

struct soft_lender {
	pthread_mutex_t lock;
	pthread_cond_t idle; /* no lent migration is under way */
	pthread_t thread;
	bool running;
	bool stop;
	int wake; /* eventfd */
	uint32_t moves;
	uint32_t nr_holders;
	struct soft_holder holders[SOFT_MAX_HOLDERS];
	struct soft_weights *objects, **tail; /* sealed */
};

struct soft_device {
	struct ndp_device base;
	struct ndp_chip_params params;
	enum ndp_chip_isa isa;
	bool timing;
	char domain[37];
	uint64_t used_bytes; /* atomic */
	uint64_t next_id; /* atomic */
	pthread_mutex_t port_lock;
	pthread_mutex_t move_lock;
	struct soft_move *waiting, **waiting_tail;
	struct soft_lender lender;
	uint32_t nr_dimms;
	struct soft_dimm dimms[NDP_MAX_DIMMS];
};

/* ---- objects --------------------------------------------------------- */

struct soft_piece {
	uint32_t first;
	uint32_t nr;
	struct soft_extent *extent;
};

/* Where weights lie; never changes, so whoever holds a reference may read. */
struct soft_map {
	int refs;
	uint32_t nr_pieces;
	struct soft_map *next_kept; /* see soft_move.c */
	struct soft_piece pieces[];
};

struct soft_weights {
	struct ndp_weights base;
	int refs; /* the caller's and a migration's */
	uint64_t id;
	uint64_t cookie;
	uint32_t allowed_mask;
	bool lent; /* in the lender's list, under its lock */
	struct soft_weights *lent_next, **lent_prev;
	pthread_mutex_t lock; /* of all below */
	struct soft_map *map;
	struct soft_map *kept;
	bool moving;
	uint64_t moves;
	void *view; /* contiguous mapping */
};

struct soft_io {
	struct ndp_io base;
	struct soft_extent *extent[NDP_MAX_DIMMS];
};

struct soft_map *soft_map_new(uint32_t nr_pieces);
struct soft_map *soft_map_get(struct soft_map *m);
void soft_map_put(struct soft_map *m);
void soft_weights_put(struct soft_weights *w);
/* Maps @piece into the contiguous view. */
int soft_view_piece(struct soft_weights *w, const struct soft_piece *piece);

struct ndp_weights *soft_weights_alloc(void);
int soft_weights_create(struct ndp_weights *w, const struct ndp_placement *p, uint32_t allowed_mask,
			uint64_t cookie);
void soft_weights_destroy(struct ndp_weights *w);
int soft_weights_block(struct ndp_weights *w, uint32_t block, void **p);
int soft_weights_seal(struct ndp_weights *w);
int soft_weights_map(struct ndp_weights *w, const void **p);
int soft_weights_info(struct ndp_weights *w, struct ndp_weights_info *info);
struct ndp_io *soft_io_alloc(void);
int soft_io_create(struct ndp_io *io, uint32_t mask, size_t bytes);
void soft_io_destroy(struct ndp_io *io);

/* ---- commands -------------------------------------------------------- */

struct soft_request {
	struct ndpi_request base;
	struct soft_queue *queue; /* NULL: ndp_run() */
	void *done; /* sem_t of ndp_run() */
	struct soft_map *map;
	uint32_t dimm_mask;
	int pending; /* DIMMs that still compute */
	int res;
	uint64_t modelled_ns;
	struct soft_request *next_on[NDP_MAX_DIMMS];
};

struct soft_queue {
	struct ndp_queue base;
	struct ndpi_list batch;
	pthread_mutex_t lock;
	pthread_cond_t enough;
	struct ndpi_list done;
	unsigned int nr_done;
	unsigned int want;
	unsigned int out; /* submitted and not done */
};

int soft_engines_start(struct soft_dimm *d);
void soft_engines_stop(struct soft_dimm *d);
void soft_run(struct ndp_device *dev, struct ndpi_request *req);
/* Fills in nothing: res, dimm_mask and modelled_ns of @req are set already. */
void soft_request_done(struct soft_request *req);

struct ndp_queue *soft_queue_alloc(void);
int soft_queue_create(struct ndp_queue *q, struct ndp_error *err);
void soft_queue_destroy(struct ndp_queue *q);
int soft_queue_push(struct ndp_queue *q, struct ndpi_request *req);
int soft_queue_submit(struct ndp_queue *q);
int soft_queue_reap(struct ndp_queue *q, unsigned int min, struct ndpi_list *done);

uint64_t soft_now_ns(void);
void soft_sleep_until_ns(uint64_t t);
void soft_count(struct ndp_counters *c, const struct ndp_chip_op *op, uint64_t modelled_ns,
		uint64_t wall_ns, bool error);
int soft_status_errno(enum ndp_chip_status status);

/* ---- migration ------------------------------------------------------- */

/* Bytes that go from one extent to another. */
struct soft_segment {
	struct soft_segment *next;
	struct soft_move *move;
	struct soft_dimm *from, *to;
	uint64_t from_off, to_off, bytes;
};

int soft_weights_migrate(struct ndp_weights *w, const struct ndp_placement *to,
			 struct ndp_move *move);
/* MIGRATE_WEIGHTS from a queue: ends in soft_request_done(), at once on error. */
void soft_migrate_async(struct soft_request *req);
/*
 * For the holder of a placement fd, with a reference to @w: ends in
 * soft_lend_moved(), unless it fails: then nothing has happened.
 */
int soft_migrate_lent(struct soft_weights *w, const struct ndp_placement *to, int reply_fd);
/* Executes one segment on the link engine of its destination. */
void soft_segment_execute(struct soft_segment *s);
void soft_link_append(struct soft_dimm *d, struct soft_segment *s);

/* ---- placement for others ---------------------------------------------- */

void soft_lend_init(struct soft_device *dev);
void soft_lend_end(struct soft_device *dev);
/* Weights can be listed and moved by others from here on, until here. */
void soft_lend_add(struct soft_weights *w);
void soft_lend_remove(struct soft_weights *w);
/* Something moved. */
void soft_lend_changed(struct soft_device *dev);
/* Takes over the reference to @w, and @reply_fd. */
void soft_lend_moved(struct soft_weights *w, int reply_fd, int r, const struct ndp_move *move);
int soft_placement_fd(struct ndp_device *dev);
int soft_placement_revoke(struct ndp_device *dev);
int soft_dimm_info(struct ndp_device *dev, uint32_t dimm, struct ndp_dimm_info *info);

#endif
