// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gpu_queue.c - calls: x to the GPU, experts over it, y back.
 *
 * Each queue has streams and memory of its own, so queues do not wait for each
 * other.  Without misses the caller's thread enqueues everything; with misses
 * the rest is the feeder's (gpu_feed.c), from the first of them on.
 *
 * Steady state allocates nothing: all memory only grows.
 */
#include "gpu.h"

#include <errno.h>
#include <math.h>
#include <ndp/device.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------- */

/* Nothing uses them at the moment. */
static int grow_dev(struct ndp_gpu *gpu, struct ndpi_gpu_mem **mem, size_t *have, size_t bytes)
{
	int r;

	if (*have >= bytes)
		return 0;
	gpu->ops->mem_free(gpu->dev, *mem);
	*mem = NULL;
	*have = 0;
	r = NDPI_GPU_DO(gpu, mem_alloc(gpu->dev, mem, bytes));
	if (!r)
		*have = bytes;
	return r;
}

static void pair_free(struct ndp_gpu *gpu, struct ndpi_gpu_pair *p)
{
	gpu->ops->mem_free(gpu->dev, p->host);
	gpu->ops->mem_free(gpu->dev, p->dev);
	memset(p, 0, sizeof(*p));
}

static int grow_pair(struct ndp_gpu *gpu, struct ndpi_gpu_pair *p, size_t bytes)
{
	int r;

	if (p->bytes >= bytes)
		return 0;
	pair_free(gpu, p);
	r = NDPI_GPU_DO(gpu, pinned_alloc(gpu->dev, &p->host, &p->ptr, bytes));
	if (!r)
		r = NDPI_GPU_DO(gpu, mem_alloc(gpu->dev, &p->dev, bytes));
	if (r)
		pair_free(gpu, p);
	else
		p->bytes = bytes;
	return r;
}

/* Tables: some more than needed now, since the next call may need some more. */
static int grow_table(struct ndp_gpu *gpu, struct ndpi_gpu_pair *p, const struct ndpi_gpu_array *a)
{
	size_t bytes = a->n * a->size;
	int r = p->bytes >= bytes ? 0 : grow_pair(gpu, p, bytes * 2 + 4096);

	if (!r)
		memcpy(p->ptr, a->data, bytes);
	return r;
}

/* ---- creation ------------------------------------------------------------------- */

int ndp_gpu_queue_create(struct ndp_gpu_queue **out, struct ndp_gpu *gpu, uint32_t max_rows,
			 uint32_t max_pairs, uint32_t max_h, struct ndp_error *err)
{
	struct ndp_gpu_queue *q;
	uint64_t x = (uint64_t)max_rows * ((max_h + 1) & ~1u) * sizeof(ndp_bf16);
	uint64_t y = (uint64_t)max_pairs * max_h * sizeof(float);
	int r;

	if (!max_rows || !max_pairs || !max_h || max_h > 65472)
		return ndpi_fail(err, -EINVAL,
				 "a GPU queue for %u rows, %u pairs and %u columns: none may be 0, "
				 "and columns at most 65472", max_rows, max_pairs, max_h);
	if (x > gpu->limits.largest_bytes || y > gpu->limits.largest_bytes)
		return ndpi_fail(err, -ENOSPC,
				 "a GPU queue for %u rows, %u pairs and %u columns needs %.1f MiB for "
				 "x and %.1f MiB for y, but %s gives at most %.1f MiB at once", max_rows,
				 max_pairs, max_h, x / 1048576.0, y / 1048576.0, gpu->limits.name,
				 gpu->limits.largest_bytes / 1048576.0);
	q = calloc(1, sizeof(*q));
	if (!q)
		return ndpi_fail(err, -ENOMEM, "no memory");
	q->gpu = gpu;
	q->max_rows = max_rows;
	q->max_pairs = max_pairs;
	q->max_h = max_h;
	ndpi_gpu_plan_init(&q->plan);
	r = NDPI_GPU_DO(gpu, stream_create(gpu->dev, &q->stream, true));
	if (!r)
		r = NDPI_GPU_DO(gpu, stream_create(gpu->dev, &q->copies, false));
	if (!r)
		r = grow_pair(gpu, &q->x, x);
	if (!r)
		r = grow_pair(gpu, &q->y, y);
	if (r) {
		ndp_gpu_queue_free(q);
		return ndpi_fail(err, r, "a queue on %s, %.1f MiB for x and %.1f MiB for y: %s",
				 gpu->limits.name, x / 1048576.0, y / 1048576.0,
				 r == -ENODEV ? "the GPU is lost" : "not enough memory");
	}
	*out = q;
	return 0;
}

/* Ends a call, whatever became of it; nothing of it runs any more. */
static void retire(struct ndp_gpu_queue *q)
{
	struct ndp_gpu *gpu = q->gpu;

	gpu->ops->event_free(q->begin);
	gpu->ops->event_free(q->end);
	q->begin = q->end = NULL;
	for (int i = 0; i < 2; i++) {
		gpu->ops->event_free(q->half_used[i]);
		q->half_used[i] = NULL;
	}
	pthread_mutex_lock(&gpu->lock);
	for (uint32_t i = 0; i < q->nr_held; i++)
		ndpi_gpu_weights_put(q->held[i]);
	pthread_mutex_unlock(&gpu->lock);
	q->nr_held = 0;
	q->busy = false;
}

static void abandon(struct ndp_gpu_queue *q)
{
	q->gpu->ops->stream_sync(q->copies);
	q->gpu->ops->stream_sync(q->stream);
	retire(q);
}

void ndp_gpu_queue_free(struct ndp_gpu_queue *q)
{
	struct ndp_gpu *gpu;

	if (!q)
		return;
	gpu = q->gpu;
	if (q->busy)
		ndp_gpu_wait(q, NULL);
	if (q->stream)
		gpu->ops->stream_free(q->stream);
	if (q->copies)
		gpu->ops->stream_free(q->copies);
	pair_free(gpu, &q->x);
	pair_free(gpu, &q->y);
	pair_free(gpu, &q->jobs);
	pair_free(gpu, &q->extents);
	pair_free(gpu, &q->rows);
	gpu->ops->mem_free(gpu->dev, q->h);
	gpu->ops->mem_free(gpu->dev, q->miss);
	ndpi_gpu_plan_free(&q->plan);
	free(q->held);
	free(q->outs);
	free(q);
}

/* ---- checks ----------------------------------------------------------------------- */

static int check_job(const struct ndp_gpu_queue *q, const struct ndp_gpu_job *job, uint32_t i,
		     uint32_t x_rows, size_t ldx, struct ndp_error *err)
{
	const struct ndp_expert_shape *s = &job->shape;
	uint64_t blocks = ndp_expert_blocks(s);

	if (!s->h_in || s->h_in > q->max_h || !s->h_out || s->h_out > q->max_h || !s->neurons)
		return ndpi_fail(err, -EINVAL,
				 "job %u: h_in %u, h_out %u, %u neurons: there must be some, and "
				 "the queue is for up to %u columns", i, s->h_in, s->h_out, s->neurons,
				 q->max_h);
	if ((job->first || job->nr_blocks) &&
	    (!job->nr_blocks || (uint64_t)job->first + job->nr_blocks > blocks))
		return ndpi_fail(err, -EINVAL, "job %u: blocks %u to %llu of an expert that has %llu",
				 i, job->first, (unsigned long long)job->first + job->nr_blocks,
				 (unsigned long long)blocks);
	if (job->act != NDP_ACT_SILU_MUL && job->act != NDP_ACT_CLAMPED_SWIGLU)
		return ndpi_fail(err, -EINVAL, "job %u: no activation has number %d", i, job->act);
	if (job->act == NDP_ACT_CLAMPED_SWIGLU &&
	    !(isfinite(job->alpha) && isfinite(job->limit) && job->alpha > 0 && job->limit > 0))
		return ndpi_fail(err, -EINVAL,
				 "job %u: alpha %g and limit %g of the clamped SwiGLU must be above 0",
				 i, (double)job->alpha, (double)job->limit);
	if (ldx < s->h_in || !job->y || job->ldy < s->h_out)
		return ndpi_fail(err, -EINVAL,
				 "job %u: rows of %zu elements of x and %zu of y for an expert of %u to %u",
				 i, ldx, job->y ? job->ldy : 0, s->h_in, s->h_out);
	if (job->weights ? job->weights->gpu != q->gpu : !job->blocks)
		return ndpi_fail(err, -EINVAL, "job %u: no weights, or another GPU's", i);
	if (job->weights && memcmp(&job->weights->shape, s, sizeof(*s)))
		return ndpi_fail(err, -EINVAL, "job %u: its shape is not that of its weights", i);
	for (uint32_t t = 0; t < job->tokens; t++)
		if ((job->rows ? job->rows[t] : t) >= x_rows)
			return ndpi_fail(err, -EINVAL, "job %u: token %u is row %u of %u rows of x", i,
					 t, job->rows ? job->rows[t] : t, x_rows);
	return 0;
}

/* How many pairs there are, or -errno. */
static int64_t check(const struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
		     const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err)
{
	uint64_t pairs = 0;

	for (uint32_t i = 0; i < n; i++) {
		int r = jobs[i].tokens ? check_job(q, &jobs[i], i, x_rows, ldx, err) : 0;

		if (r)
			return r;
		pairs += jobs[i].tokens;
	}
	if (pairs && (!x || x_rows > q->max_rows || pairs > q->max_pairs))
		return ndpi_fail(err, -EINVAL,
				 "%u rows of x and %llu of y, but the GPU queue is for up to %u and %u",
				 x ? x_rows : 0, (unsigned long long)pairs, q->max_rows,
				 q->max_pairs);
	return pairs;
}

/* Takes hold of all resident weights, or of none. */
static int hold(struct ndp_gpu_queue *q, const struct ndp_gpu_job *jobs, uint32_t n,
		struct ndp_error *err)
{
	struct ndp_gpu *gpu = q->gpu;
	int r = 0;

	pthread_mutex_lock(&gpu->lock);
	for (uint32_t i = 0; i < n && !r; i++) {
		struct ndp_gpu_weights *w = jobs[i].tokens ? jobs[i].weights : NULL;

		if (!w)
			continue;
		ndpi_gpu_weights_look(w);
		if (w->state == NDPI_GPU_FAILED)
			r = ndpi_fail(err, w->error, "job %u: its weights did not reach the GPU", i);
		else if (w->state != NDPI_GPU_READY)
			r = ndpi_fail(err, -EAGAIN,
				      "job %u: its weights are still on their way to the GPU", i);
		else
			q->held[q->nr_held++] = w;
		if (!r)
			w->refs++;
	}
	if (r) {
		while (q->nr_held)
			ndpi_gpu_weights_put(q->held[--q->nr_held]);
	}
	pthread_mutex_unlock(&gpu->lock);
	return r;
}

/* Room to remember @n jobs. */
static int remember(struct ndp_gpu_queue *q, uint32_t n)
{
	struct ndp_gpu_weights **held;
	struct ndp_gpu_job *outs;

	if (n <= q->room)
		return 0;
	held = realloc(q->held, 2 * (size_t)n * sizeof(*held));
	if (held)
		q->held = held;
	outs = realloc(q->outs, 2 * (size_t)n * sizeof(*outs));
	if (outs)
		q->outs = outs;
	if (!held || !outs)
		return -ENOMEM;
	q->room = 2 * n;
	return 0;
}

/* ---- a call ------------------------------------------------------------------------- */

int ndpi_gpu_queue_launch(struct ndp_gpu_queue *q, const struct ndpi_gpu_wave *wave,
			  struct ndpi_gpu_event **event)
{
	const struct ndpi_gpu_part *parts = q->plan.parts.data;
	struct ndp_gpu *gpu = q->gpu;
	struct ndpi_gpu_launch launch = {
		.jobs = q->jobs.dev, .extents = q->extents.dev, .rows = q->rows.dev,
		.x = q->x.dev, .h = q->h, .y = q->y.dev,
		.ldx = (q->plan.cols + 1) & ~1u,
	};
	int r = 0;

	for (uint32_t a = 0; a < gpu->nr_arenas; a++)
		launch.arenas[a] = gpu->arenas[a].mem;
	launch.arenas[NDPI_GPU_MISS] = q->miss;
	for (uint32_t i = 0; i < wave->nr_launches && !r; i++) {
		const struct ndpi_gpu_part *part = &parts[wave->launch + i];

		launch.first_job = part->first_job;
		launch.nr_jobs = part->nr_jobs;
		launch.variant = part->variant;
		launch.tiles_h = part->tiles_h;
		launch.tiles_y = part->tiles_y;
		r = NDPI_GPU_DO(gpu, launch(q->stream, &launch,
					    i + 1 == wave->nr_launches ? event : NULL));
	}
	return r;
}

int ndpi_gpu_queue_finish(struct ndp_gpu_queue *q)
{
	struct ndp_gpu *gpu = q->gpu;
	int r = NDPI_GPU_DO(gpu, read(q->stream, q->y.ptr, q->y.dev, 0,
				      q->plan.y_elements * sizeof(float), &q->end));

	return r ? r : NDPI_GPU_DO(gpu, flush(q->stream));
}

static int write_pair(struct ndp_gpu_queue *q, struct ndpi_gpu_pair *p, size_t bytes,
		      struct ndpi_gpu_event **event)
{
	return NDPI_GPU_DO(q->gpu, write(q->stream, p->dev, 0, p->ptr, bytes, event));
}

static int prepare(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows)
{
	struct ndp_gpu *gpu = q->gpu;
	struct ndpi_gpu_plan *plan = &q->plan;
	size_t stride = (plan->cols + 1) & ~1u;
	int r = grow_table(gpu, &q->jobs, &plan->jobs);

	if (!r)
		r = grow_table(gpu, &q->extents, &plan->extents);
	if (!r)
		r = grow_table(gpu, &q->rows, &plan->rows);
	if (!r)
		r = grow_dev(gpu, &q->h, &q->h_bytes, plan->h_elements * sizeof(ndp_bf16));
	if (!r)
		r = grow_dev(gpu, &q->miss, &q->miss_bytes, plan->half_bytes * 2);
	if (r)
		return r;
	for (uint32_t i = 0; i < x_rows; i++) {
		ndp_bf16 *to = (ndp_bf16 *)q->x.ptr + i * stride;

		memcpy(to, x + i * ldx, plan->cols * sizeof(*to));
		if (plan->cols & 1)
			to[plan->cols] = 0;
	}
	r = write_pair(q, &q->x, x_rows * stride * sizeof(ndp_bf16), &q->begin);
	if (!r)
		r = write_pair(q, &q->jobs, plan->jobs.n * plan->jobs.size, NULL);
	if (!r)
		r = write_pair(q, &q->extents, plan->extents.n * plan->extents.size, NULL);
	if (!r)
		r = write_pair(q, &q->rows, plan->rows.n * plan->rows.size, NULL);
	return r;
}

static int start(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows)
{
	struct ndp_gpu *gpu = q->gpu;
	int r = ndpi_gpu_plan_make(&q->plan, &gpu->limits, q->outs, q->nr_jobs);

	if (!r)
		r = prepare(q, x, ldx, x_rows);
	if (!r)
		r = ndpi_gpu_queue_launch(q, q->plan.waves.data, NULL);
	if (!r && q->plan.waves.n == 1) {
		q->fed = true;
		return ndpi_gpu_queue_finish(q);
	}
	if (!r)
		r = NDPI_GPU_DO(gpu, flush(q->stream));
	if (r)
		return r;
	q->fed = false;
	q->wave = 1;
	q->piece = 0;
	q->piece_done = 0;
	pthread_mutex_lock(&gpu->lock);
	*gpu->miss_last = q;
	gpu->miss_last = &q->next;
	pthread_cond_broadcast(&gpu->changed);
	pthread_mutex_unlock(&gpu->lock);
	return 0;
}

int ndp_gpu_submit(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
		   const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err)
{
	struct ndp_gpu *gpu = q->gpu;
	int64_t pairs;
	int r;

	if (q->busy)
		return ndpi_fail(err, -EBUSY, "the GPU queue's last call was not waited for");
	pairs = check(q, x, ldx, x_rows, jobs, n, err);
	if (pairs < 0)
		return pairs;
	if (atomic_load(&gpu->lost))
		return ndpi_fail(err, -ENODEV, "the GPU %s is lost", gpu->limits.name);
	q->nr_jobs = 0;
	q->error = 0;
	q->fed = true;
	if (!pairs) {
		q->busy = true;
		return 0;
	}
	r = remember(q, n);
	if (r)
		return ndpi_fail(err, r, "no memory");
	r = hold(q, jobs, n, err);
	if (r)
		return r;
	memcpy(q->outs, jobs, n * sizeof(*jobs));
	q->nr_jobs = n;
	q->busy = true;
	r = start(q, x, ldx, x_rows);
	if (r) {
		abandon(q);
		return ndpi_fail(err, r, "%u jobs on the GPU %s: %s", n, gpu->limits.name,
				 r == -ENODEV ? "it is lost" : "not enough memory");
	}
	return 0;
}

int ndp_gpu_poll(struct ndp_gpu_queue *q)
{
	struct ndp_gpu *gpu = q->gpu;
	bool fed;
	int error;

	if (!q->busy || !q->nr_jobs)
		return 1;
	pthread_mutex_lock(&gpu->lock);
	fed = q->fed;
	error = q->error;
	pthread_mutex_unlock(&gpu->lock);
	if (!fed || error)
		return fed ? error : 0;
	return NDPI_GPU_DO(gpu, event_done(q->end));
}

static void scatter(const struct ndp_gpu_queue *q)
{
	const float *y = q->y.ptr;

	for (uint32_t i = 0; i < q->nr_jobs; i++) {
		const struct ndp_gpu_job *job = &q->outs[i];
		uint32_t cols = job->shape.h_out;

		for (uint32_t t = 0; t < job->tokens; t++, y += cols)
			memcpy(job->y + t * job->ldy, y, cols * sizeof(*y));
	}
}

int ndp_gpu_wait(struct ndp_gpu_queue *q, uint64_t *wall_ns)
{
	struct ndp_gpu *gpu = q->gpu;
	uint64_t ns = 0;
	int r;

	if (wall_ns)
		*wall_ns = 0;
	if (!q->busy)
		return 0;
	if (!q->nr_jobs) {
		q->busy = false;
		return 0;
	}
	pthread_mutex_lock(&gpu->lock);
	while (!q->fed)
		pthread_cond_wait(&gpu->changed, &gpu->lock);
	r = q->error;
	pthread_mutex_unlock(&gpu->lock);
	if (!r)
		r = NDPI_GPU_DO(gpu, event_wait(q->end));
	if (!r && wall_ns)
		r = NDPI_GPU_DO(gpu, event_span(q->begin, q->end, &ns));
	if (r) {
		abandon(q);
		return r;
	}
	scatter(q);
	if (wall_ns)
		*wall_ns = ns;
	retire(q);
	return 0;
}
