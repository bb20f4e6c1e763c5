/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * device.h - link domains of NDP DIMMs: finding and opening them, weights and
 * activations on them, commands, migration, counters.
 *
 * Two back ends with one behaviour: the kernel's (/dev/ndpN, /dev/ndpNdK) and
 * an in-process one ("soft:...") that runs the emulated chip on threads of the
 * caller's process.  The second is used only when it is asked for by name.
 *
 * Threads: a device, its weights and its IO objects may be used by several
 * threads at once.  A queue belongs to the thread that created it.  An object
 * must not be freed while a command of the caller's that names it is in flight.
 */
#ifndef NDP_DEVICE_H
#define NDP_DEVICE_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <ndp/placement.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_device;
struct ndp_weights;
struct ndp_io;
struct ndp_queue;

/* ---- finding -------------------------------------------------------- */

/* One node below /dev. */
struct ndp_node {
	char path[64];		/* /dev/ndp0, /dev/ndp0d1 */
	char domain[37];	/* UUID as text */
	int dimm;		/* node id, -1: the whole domain */
	uint32_t dimm_mask;
};

/*
 * Fills @nodes with at most @max entries and returns how many there are.  When
 * there are none @err says why: no PCI function of an NDP DIMM, functions that
 * no driver is bound to, the module is not loaded.  Being there does not mean
 * that the caller may open it.
 */
int ndp_discover(struct ndp_node *nodes, size_t max, struct ndp_error *err);

/* ---- opening -------------------------------------------------------- */

/*
 * @spec: a path; NULL or "": the first domain found; or "soft:" followed by
 * options separated by commas: dimms=N (1..32, default 4), size=BYTES of a DIMM
 * (K, M, G; default 256M), timing=on|off, isa=scalar|avx2|avx512,
 * internal-mbps=, gflops=, overhead-ns=, link-mbps=, link-latency-ns=.
 */
int ndp_open(struct ndp_device **dev, const char *spec, struct ndp_error *err);
/* Its objects and queues stay usable; with the last of them the device ends. */
void ndp_close(struct ndp_device *dev);

struct ndp_device_info {
	char name[64];		/* the path, or "soft" */
	char domain[37];
	uint32_t dimm_mask;	/* DIMMs there are */
	uint32_t max_tokens;	/* most tokens in a command */
	bool coherent;
	bool link;
	uint64_t quota_bytes;	/* 0: none */
	uint64_t used_bytes;
};
int ndp_device_info(struct ndp_device *dev, struct ndp_device_info *info);

enum ndp_dimm_state {
	NDP_DIMM_ABSENT,
	NDP_DIMM_READY,
	NDP_DIMM_RESETTING,
	NDP_DIMM_FAILED,
};

struct ndp_counters {
	uint64_t commands;
	uint64_t errors;
	uint64_t tokens;
	uint64_t bytes;		/* moved, as the hardware model counts them */
	uint64_t busy_ns;	/* modelled */
	uint64_t wall_ns;	/* what the emulation really took */
};

struct ndp_dimm_info {
	enum ndp_dimm_state state;
	uint32_t generation;
	int numa_node;
	uint32_t link_peers;
	uint64_t mem_bytes;
	uint64_t free_bytes;
	uint64_t largest_free_bytes;
	uint32_t internal_mbps;
	uint32_t gflops;
	uint32_t overhead_ns;
	uint32_t link_mbps;
	uint32_t link_latency_ns;
	uint32_t resets;
	struct ndp_counters compute;
	struct ndp_counters link;
	uint64_t cache_lines_flushed;
	uint32_t inflight;	/* commands that are not complete */
};
int ndp_dimm_info(struct ndp_device *dev, uint32_t dimm, struct ndp_dimm_info *info);

/* ---- weights -------------------------------------------------------- */

/*
 * Allocates an expert (FFN) or a matrix (GEMV) at @placement, zeroed and open
 * for writing.  @allowed_mask: DIMMs that no migration may leave, 0: all.
 * @cookie is what the holder of a placement fd sees of it.
 */
int ndp_expert_create(struct ndp_weights **w, struct ndp_device *dev,
		      const struct ndp_expert_shape *shape,
		      const struct ndp_placement *placement, uint32_t allowed_mask,
		      uint64_t cookie, struct ndp_error *err);
int ndp_matrix_create(struct ndp_weights **w, struct ndp_device *dev,
		      const struct ndp_matrix_shape *shape,
		      const struct ndp_placement *placement, uint32_t allowed_mask,
		      uint64_t cookie, struct ndp_error *err);

/* Copies packed blocks (or panels) in; only before ndp_weights_seal(). */
int ndp_weights_write(struct ndp_weights *w, uint32_t first_block, uint32_t nr_blocks,
		      const void *packed);

/* Packs and writes a whole expert or matrix; layouts as in pack.h. */
int ndp_expert_load(struct ndp_weights *w, const ndp_bf16 *gate, const ndp_bf16 *up,
		    size_t ld_in, const ndp_bf16 *down, size_t ld_down);
int ndp_matrix_load(struct ndp_weights *w, const ndp_bf16 *m, size_t ld);

/* From here on the weights never change, compute and migrate. */
int ndp_weights_seal(struct ndp_weights *w);

/*
 * The packed blocks as one contiguous read-only range, whatever the placement;
 * valid until ndp_weights_free().  For CPU loads only (no O_DIRECT, no
 * registration with io_uring or a GPU).  NULL with errno before sealing.
 */
const void *ndp_weights_map(struct ndp_weights *w);

struct ndp_weights_info {
	bool matrix;
	bool sealed;
	bool lost;		/* a DIMM that held a part is gone */
	struct ndp_expert_shape expert;
	struct ndp_matrix_shape mat;
	uint32_t nr_blocks;
	size_t block_bytes;
	uint64_t cookie;
	uint64_t id;		/* on placement fds */
	uint64_t moves;
	uint32_t allowed_mask;
	struct ndp_placement placement;
};
int ndp_weights_info(struct ndp_weights *w, struct ndp_weights_info *info);

/* Blocks until moved.  Commands in flight are not disturbed. */
struct ndp_move {
	uint64_t bytes;
	uint64_t modelled_ns;
};
int ndp_weights_migrate(struct ndp_weights *w, const struct ndp_placement *to,
			struct ndp_move *move, struct ndp_error *err);

void ndp_weights_free(struct ndp_weights *w);

/* ---- activations and results ---------------------------------------- */

/* A buffer with one replica on each DIMM of @mask (0: all), zeroed. */
int ndp_io_create(struct ndp_io **io, struct ndp_device *dev, uint32_t mask, size_t bytes,
		  struct ndp_error *err);
void ndp_io_free(struct ndp_io *io);

/* Copies @src into the replica of every DIMM of @mask (and writes it back). */
int ndp_io_write(struct ndp_io *io, uint32_t mask, size_t off, const void *src, size_t bytes);
/* Copies out of the replica of @dimm (invalidating first). */
int ndp_io_read(struct ndp_io *io, uint32_t dimm, size_t off, void *dst, size_t bytes);

/* A replica in memory; with ndp_io_flush() and ndp_io_invalidate() around its
 * use where the device is not coherent.  NULL: no replica there. */
void *ndp_io_ptr(struct ndp_io *io, uint32_t dimm);
int ndp_io_flush(struct ndp_io *io, uint32_t mask, size_t off, size_t bytes);
int ndp_io_invalidate(struct ndp_io *io, uint32_t mask, size_t off, size_t bytes);

/*
 * dst[t][j] = sum over the DIMMs of @mask, in ascending order, of the FP32 y at
 * @off with rows @ldy bytes apart, for t < tokens, j < cols; rows of @dst are
 * @ld_dst elements apart.
 */
int ndp_io_reduce(struct ndp_io *io, uint32_t mask, size_t off, size_t ldy, float *dst,
		  size_t ld_dst, uint32_t tokens, uint32_t cols);

/* ---- commands ------------------------------------------------------- */

enum ndp_op {
	NDP_OP_FFN_EXPERT,
	NDP_OP_GEMV_MATRIX,
	NDP_OP_ACT_MUL,
	NDP_OP_MIGRATE_WEIGHTS,
};

enum {
	NDP_ACT_SILU_MUL = 0,	/* silu(g) * u */
	NDP_ACT_CLAMPED_SWIGLU = 1,
};

/*
 * A command.  Offsets and strides are bytes, multiples of 64 (@rows_off: of 4).
 *
 * FFN_EXPERT: y[t] = down . act(gate . x[r(t)], up . x[r(t)]) over the neuron
 * blocks [first, first + count); count 0 with first 0 means all.  r(t) = t, or
 * entry t of the list of 32-bit row numbers at @rows_off in @x when @x_rows (rows
 * of x) is not zero.  x is BF16, y FP32.
 * GEMV_MATRIX: y[t] = M . x[r(t)] over panels.  y is zeroed first by the
 * library, so that the sum over replicas is the result.
 * ACT_MUL: y = bf16(act(gate at x_off, up at rows_off)), both FP32
 * [tokens][ldx], @count columns, on every DIMM of @x_mask.
 * MIGRATE_WEIGHTS: moves @weights to @to; nothing else is looked at.  From a
 * queue @to has at most 7 ranges or is an even spread (-E2BIG otherwise).
 *
 * @accumulate adds to what y holds in the replica of each DIMM that computes (a
 * GEMV then does not zero y).  Where weights may move between two such commands,
 * zero y everywhere first and add up the replicas of both masks.
 *
 * With no tokens a command is checked, succeeds, and touches nothing.
 *
 * @x_mask says into which replicas this x was written.  When the weights have
 * moved elsewhere meanwhile the library copies x (and the row list) from one of
 * these replicas to the missing ones and submits again; so x must stay
 * unchanged until completion.
 */
struct ndp_cmd {
	enum ndp_op op;
	struct ndp_weights *weights;
	struct ndp_io *x;
	struct ndp_io *y;
	uint32_t x_mask;
	uint32_t first;
	uint32_t count;
	uint32_t tokens;
	uint32_t x_rows;
	bool accumulate;
	int act;
	float alpha;
	float limit;
	size_t x_off;
	size_t y_off;
	size_t rows_off;
	size_t ldx;
	size_t ldy;
	const struct ndp_placement *to;	/* valid until completion */
	uint64_t tag;			/* comes back */
};

struct ndp_result {
	uint64_t tag;
	int res;		/* 0 or -errno */
	uint32_t dimm_mask;	/* replicas of y that hold partial results */
	uint64_t modelled_ns;	/* saturates at 2^32 - 1 on the kernel back end */
	uint32_t retries;	/* because the weights had moved */
};

/* One command, synchronously. */
int ndp_run(struct ndp_device *dev, const struct ndp_cmd *cmd, struct ndp_result *result);

/*
 * At most @depth commands in flight, 1..4096, in no particular order.  Calls
 * from another thread than this one end with -EPERM.
 */
int ndp_queue_create(struct ndp_queue **q, struct ndp_device *dev, unsigned int depth,
		     struct ndp_error *err);
/* Waits for what is in flight; from the thread that created it. */
void ndp_queue_free(struct ndp_queue *q);

/* Puts a command into the batch; -EAGAIN: the queue is full, wait first. */
int ndp_queue_push(struct ndp_queue *q, const struct ndp_cmd *cmd);
/* Submits the batch; returns how many commands that were. */
int ndp_queue_submit(struct ndp_queue *q);
/*
 * Submits, waits until at least @min results are there (or nothing is in
 * flight), returns up to @max of them.  -EINTR: a signal handler ran while
 * nothing was there; what is in flight stays so.
 */
int ndp_queue_wait(struct ndp_queue *q, struct ndp_result *results, unsigned int max,
		   unsigned int min);
unsigned int ndp_queue_inflight(const struct ndp_queue *q);

/* ---- placement for others ------------------------------------------- */

/*
 * A file descriptor that lets its holder, in this process or another one, list and
 * migrate this device's sealed weights, and nothing else.
 */
int ndp_placement_fd(struct ndp_device *dev);
int ndp_placement_revoke(struct ndp_device *dev);

struct ndp_placement_entry {
	uint64_t id;
	uint64_t cookie;
	uint64_t bytes;
	uint64_t block_bytes;
	uint32_t nr_blocks;
	uint32_t allowed_mask;
	uint32_t dimm_mask;
	bool matrix;
	bool lost;
	bool moving;
};
/* Objects with ids >= *start; *start is moved on, 0 at the end. */
int ndp_placement_list(int fd, uint64_t *start, struct ndp_placement_entry *entries,
		       size_t max);
int ndp_placement_get(int fd, uint64_t id, struct ndp_placement *placement);
int ndp_placement_migrate(int fd, uint64_t id, const struct ndp_placement *to,
			  struct ndp_move *move);
/*
 * DIMM @dimm of an in-process device, which has no node to ask: memory and counters.
 * -EOPNOTSUPP: the kernel's; open its node for that.
 */
int ndp_placement_dimm_info(int fd, uint32_t dimm, struct ndp_dimm_info *info);

/* ---- host memory ---------------------------------------------------- */

/* Zeroed, 64-byte aligned memory on NUMA node @node (-1: anywhere). */
void *ndp_host_alloc(size_t bytes, int node);
void ndp_host_free(void *p, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
