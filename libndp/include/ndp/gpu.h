/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * gpu.h - expert FFNs on a GPU: a few experts resident in its memory, others
 * brought there when they are needed.
 *
 * The GPU reads the neuron blocks of ndp/pack.h as they are: nothing is packed
 * again.  BF16 in, FP32 sums, h rounded to BF16 as on the other domains.  One back
 * end so far, OpenCL, on any device that offers it (also CPUs, through PoCL);
 * another one is one file that fills the table of struct ndpi_gpu_ops
 * (libndp/moe/gpu.h).
 *
 * Threads: a GPU and its weights may be used by several threads at once; a queue
 * by one thread at a time.
 *
 * A device that is lost: every call ends with -ENODEV, and what was being computed
 * there is undefined.  The caller computes it elsewhere.
 */
#ifndef NDP_GPU_H
#define NDP_GPU_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_gpu;
struct ndp_gpu_weights;
struct ndp_gpu_queue;

/*
 * @spec: "opencl" for the first GPU, or else the first device; "opencl:NAME" for the first
 * whose platform or device name contains NAME (any case); "opencl:P.D" by number.
 * @budget: the most bytes of its memory that resident experts may take.  -EINVAL: no
 * such kind; -ENODEV: no such device, with what there is; -ENOSPC: more than it has,
 * with the arithmetic.
 */
int ndp_gpu_open(struct ndp_gpu **gpu, const char *spec, uint64_t budget, struct ndp_error *err);
/* All weights and queues must be gone. */
void ndp_gpu_close(struct ndp_gpu *gpu);

struct ndp_gpu_info {
	char name[128];		/* platform and device */
	uint64_t memory_bytes;
	uint64_t budget_bytes;
	uint64_t used_bytes;	/* resident, or on the way there */
	bool is_cpu;		/* no GPU: OpenCL on the host's own cores */
	bool lost;
	uint64_t uploads;	/* of experts, handed to the device; without misses */
	uint64_t upload_bytes;
};
void ndp_gpu_info(struct ndp_gpu *gpu, struct ndp_gpu_info *info);

/* ---- resident experts ------------------------------------------------ */

/*
 * 0: so many experts of this shape fit into what is left of the budget; -ENOSPC:
 * the arithmetic, and how many do.
 */
int ndp_gpu_check_room(struct ndp_gpu *gpu, const struct ndp_expert_shape *shape,
		       uint32_t experts, struct ndp_error *err);

/*
 * Starts to copy all of an expert's @blocks to the GPU, through a bounded pool of
 * staging memory, over a queue of its own: computing goes on.  @blocks must stay
 * until the copy has ended.  -ENOSPC: not within the budget, with the arithmetic.
 */
int ndp_gpu_upload(struct ndp_gpu_weights **w, struct ndp_gpu *gpu,
		   const struct ndp_expert_shape *shape, const void *blocks,
		   struct ndp_error *err);
/* 1: there; 0: on the way; -errno: it failed. */
int ndp_gpu_uploaded(const struct ndp_gpu_weights *w);
/* As above, when the copy has ended. */
int ndp_gpu_upload_wait(struct ndp_gpu_weights *w);
/*
 * Also while commands use it: its memory is free again when all these were waited
 * for.  Also while it is on its way: @blocks is not read any more afterwards.
 */
void ndp_gpu_weights_free(struct ndp_gpu_weights *w);

/* ---- computing ------------------------------------------------------- */

/* As struct ndp_cpu_job, but that the weights may be there already. */
struct ndp_gpu_job {
	struct ndp_gpu_weights *weights;	/* resident; or NULL: */
	const void *blocks;	/* block 0 of the expert in host memory, copied for this call (a miss) */
	struct ndp_expert_shape shape;
	uint32_t first;
	uint32_t nr_blocks;	/* 0 with first 0: all */
	int act;		/* NDP_ACT_* (ndp/device.h) */
	float alpha;
	float limit;
	const uint32_t *rows;	/* [tokens] rows of x, NULL: 0, 1, 2... */
	uint32_t tokens;
	float *y;		/* [tokens][ldy], written */
	size_t ldy;		/* elements */
};

/* For calls of up to @max_rows rows of x and @max_pairs rows of y in all jobs. */
int ndp_gpu_queue_create(struct ndp_gpu_queue **q, struct ndp_gpu *gpu, uint32_t max_rows,
			 uint32_t max_pairs, uint32_t max_h, struct ndp_error *err);
void ndp_gpu_queue_free(struct ndp_gpu_queue *q);

/*
 * Copies x [x_rows][ldx elements] over, runs all jobs, many in one launch, and brings y
 * back; returns at once.  y and the blocks of misses must stay until ndp_gpu_wait(); x,
 * jobs and rows may go.  Jobs without tokens are skipped; when all are, nothing is sent.
 * -EBUSY: the last call was not waited for; -EAGAIN: weights are still on their way;
 * -EINVAL: what cannot be, or more than @q is for.
 */
int ndp_gpu_submit(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
		   const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err);
/* 1: the results are there, ndp_gpu_wait() will not block; 0: not yet; -errno. */
int ndp_gpu_poll(struct ndp_gpu_queue *q);
/* @wall_ns (may be NULL): from the first command's start to the last one's end, by
 * the device's clock. */
int ndp_gpu_wait(struct ndp_gpu_queue *q, uint64_t *wall_ns);

#ifdef __cplusplus
}
#endif

#endif
