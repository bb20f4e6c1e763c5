// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gpu.c - a GPU, its budget, and the experts that are resident there.
 *
 * Everything here is the same for every back end (gpu.h).  Copies are made by
 * gpu_feed.c, calls by gpu_queue.c.  A GPU that is lost stays lost: from then on
 * only memory is given back.
 */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct ndpi_gpu_ops *const backends[] = { &ndpi_gpu_opencl };

#define MIB(bytes) ((double)(bytes) / (1 << 20))

/* ---- loss -------------------------------------------------------------- */

bool ndpi_gpu_alive(struct ndp_gpu *gpu)
{
	if (atomic_load(&gpu->lost))
		return false;
	if (atomic_load(&gpu->fuse) >= 0 && atomic_fetch_sub(&gpu->fuse, 1) == 0)
		atomic_store(&gpu->lost, true);
	return !atomic_load(&gpu->lost);
}

int ndpi_gpu_note(struct ndp_gpu *gpu, int r)
{
	if (r == -ENODEV)
		atomic_store(&gpu->lost, true);
	return r;
}

void ndpi_gpu_fail_after(struct ndp_gpu *gpu, long calls)
{
	atomic_store(&gpu->fuse, calls);
}

static int lost(struct ndp_gpu *gpu, struct ndp_error *err)
{
	return ndpi_fail(err, -ENODEV, "the GPU %s is lost: use another domain, or open it again",
			 gpu->limits.name);
}

/* ---- opening -------------------------------------------------------------- */

static int make_arenas(struct ndp_gpu *gpu, struct ndp_error *err)
{
	uint64_t largest = gpu->limits.largest_bytes / NDPI_GPU_PAGE * NDPI_GPU_PAGE;
	uint64_t left = gpu->budget / NDPI_GPU_PAGE * NDPI_GPU_PAGE;
	int r;

	if (gpu->budget > gpu->limits.memory_bytes)
		return ndpi_fail(err, -ENOSPC,
				 "a budget of %.1f MiB for experts on the GPU, but %s has %.1f MiB of "
				 "memory: ask for less", MIB(gpu->budget), gpu->limits.name,
				 MIB(gpu->limits.memory_bytes));
	if (left / NDPI_GPU_MISS > largest)
		return ndpi_fail(err, -ENOSPC,
				 "a budget of %.1f MiB for experts on the GPU, but %s gives at most "
				 "%u times %.1f MiB: ask for less", MIB(gpu->budget),
				 gpu->limits.name, NDPI_GPU_MISS, MIB(largest));
	while (left) {
		struct ndpi_gpu_arena *arena = &gpu->arenas[gpu->nr_arenas];
		uint64_t bytes = left < largest ? left : largest;

		if (gpu->nr_arenas == NDPI_GPU_MISS)
			break; /* a rest of less than a page for each arena */
		r = ndpi_gpu_arena_init(arena, bytes);
		if (!r) {
			gpu->nr_arenas++;
			r = NDPI_GPU_DO(gpu, mem_alloc(gpu->dev, &arena->mem, bytes));
		}
		if (r)
			return ndpi_fail(err, r == -ENOMEM ? -ENOSPC : r,
					 "%s has %.1f MiB of memory, but did not give %.1f MiB of a "
					 "budget of %.1f MiB: something else uses it, ask for less",
					 gpu->limits.name, MIB(gpu->limits.memory_bytes), MIB(bytes),
					 MIB(gpu->budget));
		left -= bytes;
	}
	return 0;
}

int ndp_gpu_open(struct ndp_gpu **out, const char *spec, uint64_t budget, struct ndp_error *err)
{
	return ndpi_gpu_open(out, spec, budget, UINT64_MAX, false, err);
}

int ndpi_gpu_open(struct ndp_gpu **out, const char *spec, uint64_t budget, uint64_t largest,
		  bool lanes, struct ndp_error *err)
{
	const struct ndpi_gpu_ops *ops = NULL;
	struct ndp_gpu *gpu;
	int r;

	for (size_t i = 0; spec && i < sizeof(backends) / sizeof(*backends); i++) {
		size_t n = strlen(backends[i]->name);

		if (!strncmp(spec, backends[i]->name, n) && (!spec[n] || spec[n] == ':'))
			ops = backends[i];
	}
	if (!ops)
		return ndpi_fail(err, -EINVAL, "GPU \"%s\": not a known kind; write \"opencl\", "
				 "\"opencl:NAME\" or \"opencl:PLATFORM.DEVICE\"", spec ? spec : "");
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return ndpi_fail(err, -ENOMEM, "no memory");
	gpu->ops = ops;
	gpu->budget = budget;
	gpu->limits.lanes = lanes;
	gpu->upload_last = &gpu->upload_first;
	gpu->miss_last = &gpu->miss_first;
	atomic_init(&gpu->fuse, -1);
	atomic_init(&gpu->lost, false);
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_cond_init(&gpu->changed, NULL);
	spec += strlen(ops->name);
	r = ops->open(&gpu->dev, *spec ? spec + 1 : NULL, &gpu->limits, err);
	if (gpu->limits.largest_bytes > largest)
		gpu->limits.largest_bytes = largest;
	if (!r)
		r = make_arenas(gpu, err);
	if (!r) {
		r = ndpi_gpu_feed_start(gpu);
		if (r)
			ndpi_fail(err, r, "GPU %s: no memory, stream or thread for copying: %s",
				  gpu->limits.name, strerror(-r));
	}
	if (r) {
		ndp_gpu_close(gpu);
		return r;
	}
	*out = gpu;
	return 0;
}

void ndp_gpu_close(struct ndp_gpu *gpu)
{
	if (!gpu)
		return;
	if (gpu->dev) {
		ndpi_gpu_feed_stop(gpu);
		for (uint32_t a = 0; a < gpu->nr_arenas; a++) {
			gpu->ops->mem_free(gpu->dev, gpu->arenas[a].mem);
			free(gpu->arenas[a].holes);
		}
		gpu->ops->close(gpu->dev);
	}
	pthread_cond_destroy(&gpu->changed);
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

void ndp_gpu_info(struct ndp_gpu *gpu, struct ndp_gpu_info *info)
{
	*info = (struct ndp_gpu_info){
		.memory_bytes = gpu->limits.memory_bytes,
		.budget_bytes = gpu->budget,
		.is_cpu = gpu->limits.is_cpu,
		.lost = atomic_load(&gpu->lost),
	};
	memcpy(info->name, gpu->limits.name, sizeof(info->name));
	pthread_mutex_lock(&gpu->lock);
	info->used_bytes = gpu->used;
	info->uploads = gpu->uploads;
	info->upload_bytes = gpu->upload_bytes;
	pthread_mutex_unlock(&gpu->lock);
}

/* ---- room ------------------------------------------------------------------ */

static int check_shape(const struct ndp_expert_shape *s, struct ndp_error *err)
{
	if (!s->h_in || s->h_in > 65472)
		return ndpi_fail(err, -EINVAL, "an expert with h_in %u: it must be 1 to 65472",
				 s->h_in);
	if (!s->h_out || s->h_out > 65472)
		return ndpi_fail(err, -EINVAL, "an expert with h_out %u: it must be 1 to 65472",
				 s->h_out);
	if (!s->neurons || s->neurons > 1u << 24)
		return ndpi_fail(err, -EINVAL,
				 "an expert with %u neurons: there must be 1 to 16777216", s->neurons);
	return 0;
}

/* Under the lock. */
static int check_room(struct ndp_gpu *gpu, const struct ndp_expert_shape *shape, uint32_t experts,
		      struct ndp_error *err)
{
	uint64_t block = ndp_expert_block_bytes(shape), blocks = ndp_expert_blocks(shape);
	uint64_t fit = ndpi_gpu_arenas_room(gpu, block) / blocks;

	if (experts <= fit)
		return 0;
	return ndpi_fail(err, -ENOSPC,
			 "%u experts of %.1f MiB on the GPU: needs %.1f MiB, has %.1f MiB (a budget of "
			 "%.1f MiB less %.1f MiB in use), at most %llu fit", experts,
			 MIB(block * blocks), MIB(block * blocks) * experts,
			 MIB(gpu->budget - gpu->used), MIB(gpu->budget), MIB(gpu->used),
			 (unsigned long long)fit);
}

int ndp_gpu_check_room(struct ndp_gpu *gpu, const struct ndp_expert_shape *shape, uint32_t experts,
		       struct ndp_error *err)
{
	int r = check_shape(shape, err);

	if (r)
		return r;
	if (atomic_load(&gpu->lost))
		return lost(gpu, err);
	pthread_mutex_lock(&gpu->lock);
	r = check_room(gpu, shape, experts, err);
	pthread_mutex_unlock(&gpu->lock);
	return r;
}

/* ---- weights ----------------------------------------------------------------- */

int ndp_gpu_upload(struct ndp_gpu_weights **out, struct ndp_gpu *gpu,
		   const struct ndp_expert_shape *shape, const void *blocks, struct ndp_error *err)
{
	struct ndp_gpu_weights *w;
	int r = check_shape(shape, err);

	if (r)
		return r;
	if (!blocks)
		return ndpi_fail(err, -EINVAL, "an upload to the GPU without blocks");
	if (atomic_load(&gpu->lost))
		return lost(gpu, err);
	w = calloc(1, sizeof(*w));
	if (!w)
		return ndpi_fail(err, -ENOMEM, "no memory");
	w->gpu = gpu;
	w->shape = *shape;
	w->blocks = blocks;
	w->bytes = ndp_expert_block_bytes(shape) * (uint64_t)ndp_expert_blocks(shape);
	w->refs = 1;
	pthread_mutex_lock(&gpu->lock);
	r = check_room(gpu, shape, 1, err);
	if (!r) {
		r = ndpi_gpu_arenas_take(gpu, ndp_expert_block_bytes(shape),
					 ndp_expert_blocks(shape), &w->extents, &w->nr_extents);
		if (r)
			ndpi_fail(err, r, "no memory");
	}
	if (!r) {
		gpu->used += w->bytes;
		*gpu->upload_last = w;
		gpu->upload_last = &w->next;
		pthread_cond_broadcast(&gpu->changed);
	}
	pthread_mutex_unlock(&gpu->lock);
	if (r)
		free(w);
	else
		*out = w;
	return r;
}

void ndpi_gpu_weights_look(struct ndp_gpu_weights *w)
{
	struct ndp_gpu *gpu = w->gpu;
	int r;

	if (w->state != NDPI_GPU_COPYING || w->waiters)
		return;
	r = NDPI_GPU_DO(gpu, event_done(w->event));
	if (!r)
		return;
	gpu->ops->event_free(w->event);
	w->event = NULL;
	w->state = r > 0 ? NDPI_GPU_READY : NDPI_GPU_FAILED;
	w->error = r > 0 ? 0 : r;
}

/* Under the lock. */
static int uploaded(struct ndp_gpu_weights *w)
{
	ndpi_gpu_weights_look(w);
	if (atomic_load(&w->gpu->lost))
		return -ENODEV;
	if (w->state == NDPI_GPU_FAILED)
		return w->error;
	return w->state == NDPI_GPU_READY;
}

int ndp_gpu_uploaded(const struct ndp_gpu_weights *weights)
{
	struct ndp_gpu_weights *w = (struct ndp_gpu_weights *)weights;
	int r;

	pthread_mutex_lock(&w->gpu->lock);
	r = uploaded(w);
	pthread_mutex_unlock(&w->gpu->lock);
	return r;
}

int ndp_gpu_upload_wait(struct ndp_gpu_weights *w)
{
	struct ndp_gpu *gpu = w->gpu;
	int r;

	pthread_mutex_lock(&gpu->lock);
	for (;;) {
		r = uploaded(w);
		if (r)
			break;
		if (w->state == NDPI_GPU_WAITING || w->waiters) {
			pthread_cond_wait(&gpu->changed, &gpu->lock);
			continue;
		}
		w->waiters++;
		pthread_mutex_unlock(&gpu->lock);
		NDPI_GPU_DO(gpu, event_wait(w->event));
		pthread_mutex_lock(&gpu->lock);
		w->waiters--;
		pthread_cond_broadcast(&gpu->changed);
	}
	pthread_mutex_unlock(&gpu->lock);
	return r < 0 ? r : 0;
}

void ndpi_gpu_weights_put(struct ndp_gpu_weights *w)
{
	struct ndp_gpu *gpu = w->gpu;

	if (--w->refs)
		return;
	/*
	 * A copy may still be on its way there.  Whoever gets this memory next writes
	 * to it over the same stream, so later.
	 */
	gpu->ops->event_free(w->event);
	ndpi_gpu_arenas_give(gpu, ndp_expert_block_bytes(&w->shape), w->extents, w->nr_extents);
	gpu->used -= w->bytes;
	free(w);
}

void ndp_gpu_weights_free(struct ndp_gpu_weights *w)
{
	struct ndp_gpu *gpu;

	if (!w)
		return;
	gpu = w->gpu;
	pthread_mutex_lock(&gpu->lock);
	while (w->busy)
		pthread_cond_wait(&gpu->changed, &gpu->lock);
	for (struct ndp_gpu_weights **at = &gpu->upload_first; *at; at = &(*at)->next)
		if (*at == w) {
			*at = w->next;
			if (!*at)
				gpu->upload_last = at;
			break;
		}
	ndpi_gpu_weights_put(w);
	pthread_mutex_unlock(&gpu->lock);
}
