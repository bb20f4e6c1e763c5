// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gpu_feed.c - the thread that brings weights to the GPU: from ordinary memory
 * (which may be a DIMM's) through a bounded pool of pinned slots.
 *
 * There are two kinds of work: misses, which a call waits for, and uploads of
 * experts that are to stay.  Misses come first.  The thread never waits for one call's
 * kernels while there is something else to copy.
 */
#include "gpu.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * Copies @bytes, at most a slot's, to @mem.  Waits for the slot.
 */
static int feed_slot(struct ndp_gpu *gpu, struct ndpi_gpu_stream *stream, struct ndpi_gpu_mem *mem,
		     uint64_t offset, const void *src, size_t bytes)
{
	struct ndpi_gpu_slot *slot = &gpu->slots[gpu->next_slot];
	int r;

	if (slot->event) {
		r = NDPI_GPU_DO(gpu, event_wait(slot->event));
		if (r)
			return r;
		gpu->ops->event_free(slot->event);
		slot->event = NULL;
	}
	memcpy(slot->ptr, src, bytes);
	r = NDPI_GPU_DO(gpu, write(stream, mem, offset, slot->ptr, bytes, &slot->event));
	if (!r)
		r = NDPI_GPU_DO(gpu, flush(stream));
	gpu->next_slot = (gpu->next_slot + 1) % NDPI_GPU_SLOTS;
	return r;
}

/* ---- uploads ----------------------------------------------------------------- */

/* A slot's worth of the first upload; called and left with the lock held. */
static void feed_upload(struct ndp_gpu *gpu)
{
	struct ndp_gpu_weights *w = gpu->upload_first;
	uint64_t block = ndp_expert_block_bytes(&w->shape);
	const struct ndpi_gpu_extent *e = w->extents;
	uint64_t at, bytes;
	struct ndpi_gpu_event *event = NULL;
	int r;

	while (w->fed >= e->end * block)
		e++;
	at = w->fed - e->first * block;
	bytes = min64(e->end * block - w->fed, NDPI_GPU_SLOT_BYTES);
	w->busy = true;
	pthread_mutex_unlock(&gpu->lock);
	r = feed_slot(gpu, gpu->copies, gpu->arenas[e->arena].mem, e->offset * 4 + at,
		      w->blocks + w->fed, bytes);
	if (!r && w->fed + bytes == w->bytes) {
		/* The slot's event stays with the slot. */
		r = NDPI_GPU_DO(gpu, mark(gpu->copies, &event));
		if (!r)
			r = NDPI_GPU_DO(gpu, flush(gpu->copies));
	}
	pthread_mutex_lock(&gpu->lock);
	w->busy = false;
	w->fed += bytes;
	if (!r) {
		gpu->uploads += w->fed == w->bytes;
		gpu->upload_bytes += bytes;
	}
	if (r || w->fed == w->bytes) {
		w->event = event;
		w->state = r ? NDPI_GPU_FAILED : NDPI_GPU_COPYING;
		w->error = r;
		gpu->upload_first = w->next;
		if (!gpu->upload_first)
			gpu->upload_last = &gpu->upload_first;
		w->next = NULL;
	}
	pthread_cond_broadcast(&gpu->changed);
}

/* ---- misses -------------------------------------------------------------------- */

static const struct ndpi_gpu_wave *wave_of(const struct ndp_gpu_queue *q)
{
	return (const struct ndpi_gpu_wave *)q->plan.waves.data + q->wave;
}

/* 1: the half of the queue's memory that it needs next can be written; 0, -errno. */
static int half_free(struct ndp_gpu_queue *q)
{
	struct ndpi_gpu_event **used = &q->half_used[q->wave & 1];
	struct ndp_gpu *gpu = q->gpu;
	int r;

	if (!*used)
		return 1;
	r = NDPI_GPU_DO(gpu, event_done(*used));
	if (r > 0) {
		gpu->ops->event_free(*used);
		*used = NULL;
	}
	return r;
}

/* All weights of a wave are on their way: compute when they are there. */
static int start_wave(struct ndp_gpu_queue *q)
{
	struct ndp_gpu *gpu = q->gpu;
	struct ndpi_gpu_event *copied = NULL;
	int r = NDPI_GPU_DO(gpu, mark(q->copies, &copied));

	if (!r)
		r = NDPI_GPU_DO(gpu, flush(q->copies));
	if (!r)
		r = NDPI_GPU_DO(gpu, after(q->stream, copied));
	gpu->ops->event_free(copied);
	if (!r)
		r = ndpi_gpu_queue_launch(q, wave_of(q), &q->half_used[q->wave & 1]);
	if (!r)
		r = NDPI_GPU_DO(gpu, flush(q->stream));
	return r;
}

/* A slot's worth of a call; without the lock. 1: all is enqueued, 0: not yet. */
static int feed_miss(struct ndp_gpu_queue *q)
{
	const struct ndpi_gpu_wave *wave = wave_of(q);
	const struct ndpi_gpu_piece *piece = (struct ndpi_gpu_piece *)q->plan.pieces.data +
					     wave->piece + q->piece;
	const struct ndp_gpu_job *job = &q->outs[piece->job];
	uint64_t block = ndp_expert_block_bytes(&job->shape);
	uint64_t bytes = min64(piece->blocks * block - q->piece_done, NDPI_GPU_SLOT_BYTES);
	int r = feed_slot(q->gpu, q->copies, q->miss, piece->offset + q->piece_done,
			  (const uint8_t *)job->blocks + piece->first * block + q->piece_done,
			  bytes);

	if (r)
		return r;
	q->piece_done += bytes;
	if (q->piece_done < piece->blocks * block)
		return 0;
	q->piece_done = 0;
	if (++q->piece < wave->nr_pieces)
		return 0;
	q->piece = 0;
	r = start_wave(q);
	if (r)
		return r;
	if (++q->wave < q->plan.waves.n)
		return 0;
	r = ndpi_gpu_queue_finish(q);
	return r ? r : 1;
}

/* Called and left with the lock held. False: there is nothing that can go on. */
static bool feed_misses(struct ndp_gpu *gpu)
{
	struct ndp_gpu_queue *q, **at;
	int r = 0;

	for (at = &gpu->miss_first; (q = *at); at = &q->next) {
		r = half_free(q);
		if (r)
			break;
	}
	if (!q)
		return false;
	pthread_mutex_unlock(&gpu->lock);
	if (r > 0)
		r = feed_miss(q);
	pthread_mutex_lock(&gpu->lock);
	if (!r)
		return true;
	/* Others may have come, but only this thread removes. */
	for (at = &gpu->miss_first; *at != q; at = &(*at)->next)
		;
	*at = q->next;
	if (!*at)
		gpu->miss_last = at;
	q->next = NULL;
	q->error = r < 0 ? r : 0;
	q->fed = true;
	pthread_cond_broadcast(&gpu->changed);
	return true;
}

/* ---- the thread --------------------------------------------------------------- */

static void *feeder(void *arg)
{
	struct ndp_gpu *gpu = arg;

	pthread_mutex_lock(&gpu->lock);
	while (!gpu->stop) {
		struct ndp_gpu_queue *q;

		if (feed_misses(gpu))
			continue;
		q = gpu->miss_first;
		if (gpu->upload_first) {
			feed_upload(gpu);
		} else if (q) {
			/* It stays: only this thread takes it from the list. */
			pthread_mutex_unlock(&gpu->lock);
			NDPI_GPU_DO(gpu, event_wait(q->half_used[q->wave & 1]));
			pthread_mutex_lock(&gpu->lock);
		} else {
			pthread_cond_wait(&gpu->changed, &gpu->lock);
		}
	}
	pthread_mutex_unlock(&gpu->lock);
	return NULL;
}

int ndpi_gpu_feed_start(struct ndp_gpu *gpu)
{
	sigset_t all, old;
	int r = NDPI_GPU_DO(gpu, stream_create(gpu->dev, &gpu->copies, false));

	for (uint32_t i = 0; !r && i < NDPI_GPU_SLOTS; i++)
		r = NDPI_GPU_DO(gpu, pinned_alloc(gpu->dev, &gpu->slots[i].mem, &gpu->slots[i].ptr,
						  NDPI_GPU_SLOT_BYTES));
	if (r)
		return r;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&gpu->feeder, NULL, feeder, gpu);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	gpu->feeding = !r;
	return -r;
}

void ndpi_gpu_feed_stop(struct ndp_gpu *gpu)
{
	if (gpu->feeding) {
		pthread_mutex_lock(&gpu->lock);
		gpu->stop = true;
		pthread_cond_broadcast(&gpu->changed);
		pthread_mutex_unlock(&gpu->lock);
		pthread_join(gpu->feeder, NULL);
	}
	if (gpu->copies)
		gpu->ops->stream_sync(gpu->copies);
	for (uint32_t i = 0; i < NDPI_GPU_SLOTS; i++) {
		gpu->ops->event_free(gpu->slots[i].event);
		gpu->ops->mem_free(gpu->dev, gpu->slots[i].mem);
	}
	if (gpu->copies)
		gpu->ops->stream_free(gpu->copies);
}
