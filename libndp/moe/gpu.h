/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * gpu.h - what a GPU back end does, and what the files of the front share.
 *
 * The front (gpu*.c) has everything that is the same on every GPU: checks, the
 * budget, who uses which memory, cutting a call into launches, staging, loss.  A
 * back end is one file with a struct ndpi_gpu_ops: memory, in-order streams, events,
 * and the two kernels of opencl.cl.  Its functions may be called by several threads
 * at once, those on one stream by one at a time.  They return 0 or
 *
 *   -ENOMEM  no memory (host or device); everything else still works
 *   -ENODEV  anything else: the device cannot be relied on any more
 *
 * and never wait unless their comment says so.  The front calls those that can
 * fail through NDPI_GPU_DO(), which makes -ENODEV the state of the whole GPU.
 */
#ifndef NDPI_GPU_H
#define NDPI_GPU_H

#include "../error.h"

#include <ndp/gpu.h>
#include <pthread.h>
#include <stdatomic.h>

/* Arenas of resident weights, and the last one: a queue's weights of this call. */
#define NDPI_GPU_ARENAS 8
#define NDPI_GPU_MISS (NDPI_GPU_ARENAS - 1)
/* Kernels for few and for many tokens. */
#define NDPI_GPU_VARIANTS 3
/* Blocks are multiples of this. */
#define NDPI_GPU_PAGE 4096

/* ---- in device memory: as in opencl.cl -------------------------------- */

struct ndpi_gpu_job {
	uint64_t h_off;
	uint64_t y_off;
	uint64_t block_words;
	uint32_t rows_off;
	uint32_t tokens;
	uint32_t h_in;
	uint32_t h_out;
	uint32_t blocks;
	uint32_t extent;
	uint32_t tiles_h_end;
	uint32_t tiles_y_end;
	uint32_t act;
	uint32_t accumulate;
	float alpha;
	float limit;
};
_Static_assert(sizeof(struct ndpi_gpu_job) == 72, "as in opencl.cl");

struct ndpi_gpu_extent {
	uint64_t offset;
	uint32_t arena;
	uint32_t first;
	uint32_t end;
	uint32_t unused;
};
_Static_assert(sizeof(struct ndpi_gpu_extent) == 24, "as in opencl.cl");

/* ---- a back end -------------------------------------------------------- */

struct ndpi_gpu_limits {
	char name[128];
	uint64_t memory_bytes;
	uint64_t largest_bytes;	/* of one allocation */
	bool is_cpu;		/* computes on the host's own cores */
	bool lanes;		/* set by tests: use a GPU's kernels whatever it is */
	/* Variant v is for jobs of up to up_to[v] tokens and works on tile[v] at a time. */
	uint32_t up_to[NDPI_GPU_VARIANTS];
	uint32_t tile[NDPI_GPU_VARIANTS];
};

/* Memory of the device, or pinned memory of the host with @ptr. */
struct ndpi_gpu_mem;
struct ndpi_gpu_stream;
struct ndpi_gpu_event;

struct ndpi_gpu_launch {
	struct ndpi_gpu_mem *arenas[NDPI_GPU_ARENAS];	/* NULL: not used */
	struct ndpi_gpu_mem *jobs, *extents, *rows, *x, *h, *y;
	uint32_t first_job;
	uint32_t nr_jobs;
	uint32_t ldx;		/* elements */
	uint32_t variant;
	uint32_t tiles_h;	/* work-groups */
	uint32_t tiles_y;
};

struct ndpi_gpu_ops {
	const char *name;

	/* @which: what stands behind "name:", or NULL.  May wait. */
	int (*open)(void **dev, const char *which, struct ndpi_gpu_limits *limits,
		    struct ndp_error *err);
	void (*close)(void *dev);

	int (*mem_alloc)(void *dev, struct ndpi_gpu_mem **mem, size_t bytes);
	int (*pinned_alloc)(void *dev, struct ndpi_gpu_mem **mem, void **ptr, size_t bytes);
	void (*mem_free)(void *dev, struct ndpi_gpu_mem *mem);	/* NULL: nothing */

	/* @compute: one that launches; otherwise for copies only. */
	int (*stream_create)(void *dev, struct ndpi_gpu_stream **stream, bool compute);
	/* Waits until nothing runs there any more, also on a device that is lost. */
	void (*stream_sync)(struct ndpi_gpu_stream *stream);
	void (*stream_free)(struct ndpi_gpu_stream *stream);

	/* @host: in pinned memory.  @event (may be NULL): the end of this command. */
	int (*write)(struct ndpi_gpu_stream *stream, struct ndpi_gpu_mem *mem, size_t offset,
		     const void *host, size_t bytes, struct ndpi_gpu_event **event);
	int (*read)(struct ndpi_gpu_stream *stream, void *host, struct ndpi_gpu_mem *mem,
		    size_t offset, size_t bytes, struct ndpi_gpu_event **event);
	int (*launch)(struct ndpi_gpu_stream *stream, const struct ndpi_gpu_launch *launch,
		      struct ndpi_gpu_event **event);
	/* @event: all that was enqueued before. */
	int (*mark)(struct ndpi_gpu_stream *stream, struct ndpi_gpu_event **event);
	/* What comes later on @stream starts after @event. */
	int (*after)(struct ndpi_gpu_stream *stream, struct ndpi_gpu_event *event);
	int (*flush)(struct ndpi_gpu_stream *stream);

	int (*event_done)(struct ndpi_gpu_event *event);	/* 1, 0, -errno */
	int (*event_wait)(struct ndpi_gpu_event *event);	/* waits */
	/* Device time from the start of @first's command to the end of @last's. */
	int (*event_span)(struct ndpi_gpu_event *first, struct ndpi_gpu_event *last, uint64_t *ns);
	void (*event_free)(struct ndpi_gpu_event *event);	/* NULL: nothing */
};

extern const struct ndpi_gpu_ops ndpi_gpu_opencl;

/* ---- the front ---------------------------------------------------------- */

struct ndpi_gpu_hole {
	uint64_t begin, end;
};

/* Weights' memory: @holes are what is free, ascending, never adjacent. */
struct ndpi_gpu_arena {
	struct ndpi_gpu_mem *mem;
	uint64_t bytes;
	struct ndpi_gpu_hole *holes;
	uint32_t nr_holes;
	uint32_t room;		/* for so many: more than there are extents */
	uint32_t nr_extents;	/* in use */
};

enum ndpi_gpu_upload {
	NDPI_GPU_WAITING,	/* for the feeder, or being fed */
	NDPI_GPU_COPYING,	/* all enqueued, @event is the last */
	NDPI_GPU_READY,
	NDPI_GPU_FAILED,
};

/* All under the GPU's lock but @blocks and what the feeder has while @busy. */
struct ndp_gpu_weights {
	struct ndp_gpu *gpu;
	struct ndp_expert_shape shape;
	const uint8_t *blocks;
	uint64_t bytes;
	uint64_t fed;		/* bytes handed to the device */
	uint32_t refs;		/* the owner's and one for each job in flight */
	bool busy;		/* the feeder reads @blocks */
	int error;
	enum ndpi_gpu_upload state;
	struct ndpi_gpu_event *event;
	uint32_t waiters;	/* on @event, which must stay */
	struct ndpi_gpu_extent *extents;	/* of all blocks */
	uint32_t nr_extents;
	struct ndp_gpu_weights *next;	/* in the feeder's list */
};

#define NDPI_GPU_SLOTS 8
#define NDPI_GPU_SLOT_BYTES (4u << 20)

struct ndpi_gpu_slot {
	struct ndpi_gpu_mem *mem;
	void *ptr;
	struct ndpi_gpu_event *event;	/* of its last copy; NULL: free */
};

struct ndp_gpu {
	const struct ndpi_gpu_ops *ops;
	void *dev;
	struct ndpi_gpu_limits limits;
	uint64_t budget;
	atomic_bool lost;
	atomic_long fuse;	/* calls of the back end until it is lost; negative: none */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t used;
	uint64_t uploads;
	uint64_t upload_bytes;
	struct ndpi_gpu_arena arenas[NDPI_GPU_ARENAS];
	uint32_t nr_arenas;

	/* gpu_feed.c */
	bool feeding;		/* the thread is there */
	bool stop;
	pthread_t feeder;
	struct ndpi_gpu_stream *copies;
	struct ndpi_gpu_slot slots[NDPI_GPU_SLOTS];
	uint32_t next_slot;
	struct ndp_gpu_weights *upload_first, **upload_last;
	struct ndp_gpu_queue *miss_first, **miss_last;
};

/* False, and lost, when the fuse of ndpi_gpu_fail_after() burns through. */
bool ndpi_gpu_alive(struct ndp_gpu *gpu);
/* Takes note of -ENODEV. */
int ndpi_gpu_note(struct ndp_gpu *gpu, int r);
#define NDPI_GPU_DO(gpu, call) \
	(ndpi_gpu_alive(gpu) ? ndpi_gpu_note(gpu, (gpu)->ops->call) : -ENODEV)

/* For tests: the device is lost at the @calls-th call of the back end from now (0: the next). */
void ndpi_gpu_fail_after(struct ndp_gpu *gpu, long calls);

/*
 * gpu.c: ndp_gpu_open() for tests: on a device that allocates no more than @largest bytes at
 * once; @lanes: with a GPU's kernels also on a CPU.
 */
int ndpi_gpu_open(struct ndp_gpu **gpu, const char *spec, uint64_t budget, uint64_t largest,
		  bool lanes, struct ndp_error *err);

/* gpu_arena.c: under the lock. */
int ndpi_gpu_arena_init(struct ndpi_gpu_arena *arena, uint64_t bytes);
/* How many blocks of @bytes fit into what is free. */
uint64_t ndpi_gpu_arenas_room(const struct ndp_gpu *gpu, uint64_t bytes);
/* Memory for @blocks blocks of @bytes, in as few pieces as it takes. -ENOSPC, -ENOMEM. */
int ndpi_gpu_arenas_take(struct ndp_gpu *gpu, uint64_t bytes, uint32_t blocks,
			 struct ndpi_gpu_extent **extents, uint32_t *nr);
/* Never fails: frees @extents, too. */
void ndpi_gpu_arenas_give(struct ndp_gpu *gpu, uint64_t bytes, struct ndpi_gpu_extent *extents,
			  uint32_t nr);

/* gpu.c: under the lock; one user less. */
void ndpi_gpu_weights_put(struct ndp_gpu_weights *w);
/* gpu.c: under the lock: NDPI_GPU_COPYING becomes NDPI_GPU_READY when it is. */
void ndpi_gpu_weights_look(struct ndp_gpu_weights *w);

/* gpu_feed.c */
int ndpi_gpu_feed_start(struct ndp_gpu *gpu);
void ndpi_gpu_feed_stop(struct ndp_gpu *gpu);

/* ---- a queue: gpu_queue.c, cut into launches by gpu_plan.c ------------------ */

/* Some blocks of one job, in one launch. */
struct ndpi_gpu_piece {
	uint32_t job;		/* the caller's */
	uint32_t first;		/* block of the expert */
	uint32_t blocks;
	uint64_t offset;	/* of a miss: where in the queue's memory for them */
};

/*
 * What runs together: wave 0 on resident weights, each other one on a half of the
 * queue's memory for misses, filled while the wave before computes.
 */
struct ndpi_gpu_wave {
	uint32_t piece, nr_pieces;
	uint32_t launch, nr_launches;
};

struct ndpi_gpu_part {	/* a launch of a wave */
	uint32_t first_job, nr_jobs, variant, tiles_h, tiles_y;
};

struct ndpi_gpu_array {
	void *data;
	size_t n, room, size;	/* elements, bytes of one */
};

struct ndpi_gpu_plan {
	struct ndpi_gpu_array pieces, waves, parts;
	struct ndpi_gpu_array jobs, extents, rows;	/* for the device */
	struct ndpi_gpu_array starts, row_starts;	/* by job: of y, of rows */
	uint64_t h_elements, y_elements;
	uint64_t half_bytes;	/* of the memory for misses; 0: none missing */
	uint32_t cols;		/* of x */
};

void ndpi_gpu_plan_init(struct ndpi_gpu_plan *plan);
void ndpi_gpu_plan_free(struct ndpi_gpu_plan *plan);
/* Jobs were checked and all resident weights are there. -ENOMEM. */
int ndpi_gpu_plan_make(struct ndpi_gpu_plan *plan, const struct ndpi_gpu_limits *limits,
		       const struct ndp_gpu_job *jobs, uint32_t n);
/* Blocks of a job: all if it says so. */
uint32_t ndpi_gpu_job_blocks(const struct ndp_gpu_job *job);

/* What is on the host, what on the device; both only grow. */
struct ndpi_gpu_pair {
	struct ndpi_gpu_mem *host, *dev;
	void *ptr;
	size_t bytes;
};

struct ndp_gpu_queue {
	struct ndp_gpu *gpu;
	uint32_t max_rows, max_pairs, max_h;
	struct ndpi_gpu_stream *stream;	/* computing */
	struct ndpi_gpu_stream *copies;	/* of misses */
	struct ndpi_gpu_pair x, y, jobs, extents, rows;
	struct ndpi_gpu_mem *h, *miss;
	size_t h_bytes, miss_bytes;
	struct ndpi_gpu_plan plan;

	bool busy;		/* between submit and wait */
	struct ndp_gpu_job *outs;	/* the caller's, copied */
	struct ndp_gpu_weights **held;
	uint32_t nr_jobs, nr_held, room;
	struct ndpi_gpu_event *begin, *end;

	/* Misses: the feeder's until @fed, then under the lock. */
	bool fed;
	int error;
	uint32_t wave, piece;
	uint64_t piece_done;	/* bytes */
	struct ndpi_gpu_event *half_used[2];	/* the last wave that computes on it */
	struct ndp_gpu_queue *next;
};

/* gpu_queue.c: enqueues the launches of a wave; @event as in ops. */
int ndpi_gpu_queue_launch(struct ndp_gpu_queue *q, const struct ndpi_gpu_wave *wave,
			  struct ndpi_gpu_event **event);
/* gpu_queue.c: enqueues what brings y back. */
int ndpi_gpu_queue_finish(struct ndp_gpu_queue *q);

#endif
