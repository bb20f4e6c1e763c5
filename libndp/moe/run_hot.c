/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * run_hot.c - which experts GPU memory holds copies of: as the caller says
 * (ndp_moe_set_hot()), or by the library's own prediction (options.adapt).
 *
 * The library's own way: every layer gets an equal part of the budget and keeps the
 * experts that ndp/predict.h expects to be busiest.  It looks at a layer again every
 * few steps; an expert is replaced only by one that is expected to be clearly
 * busier, for an upload costs what many misses of the old one do.
 *
 * Copies of experts are under their layer's gpu_lock.  Uploads run in the background;
 * until one is complete the expert counts as missing.
 */
#include "run.h"

#include <errno.h>
#include <ndp/predict.h>
#include <stdlib.h>
#include <string.h>

enum {
	STEPS = 8,	/* of a layer between two looks at it */
};

/* A resident expert counts that much more than it is expected to be used. */
static const float stay = 1.25f;

struct rank {
	float share;
	uint32_t expert;
};

struct ndpi_hot {
	pthread_mutex_t lock;
	void *mem;
	struct ndp_predictor *predictor;
	uint32_t *slots;	/* [layers]: experts that GPU memory may hold of each */
	uint32_t *steps;	/* [layers] */
	struct rank *ranks;	/* [experts] */
	uint32_t *wanted;	/* [experts] */
};

static uint32_t experts_of(const struct ndp_moe *moe)
{
	return moe->info.router.experts;
}

/* ---- copies ------------------------------------------------------------------- */

void ndpi_hot_resident(struct ndp_moe *moe, uint32_t layer, uint8_t *on_gpu)
{
	struct ndpi_moe_layer *l = &moe->layers[layer];

	pthread_mutex_lock(&l->gpu_lock);
	for (uint32_t e = 0; e < experts_of(moe); e++)
		on_gpu[e] = l->experts[e].gpu && ndp_gpu_uploaded(l->experts[e].gpu) == 1;
	pthread_mutex_unlock(&l->gpu_lock);
}

static void drop(struct ndpi_expert *e)
{
	if (e->gpu)
		ndp_gpu_weights_free(e->gpu);
	e->gpu = NULL;
}

static int upload(struct ndp_moe *moe, struct ndpi_expert *e, const struct ndp_expert_shape *shape,
		  struct ndp_error *err)
{
	if (e->gpu && ndp_gpu_uploaded(e->gpu) < 0)
		drop(e);
	return e->gpu ? 0 : ndp_gpu_upload(&e->gpu, moe->options.gpu, shape, e->blocks, err);
}

static bool listed(uint32_t e, const uint32_t *experts, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (experts[i] == e)
			return true;
	return false;
}

/* How many of @experts are there or on their way.  A full GPU ends the list, and is no error. */
static int set_hot(struct ndp_moe *moe, uint32_t layer, const uint32_t *experts, uint32_t n,
		   struct ndp_error *err)
{
	struct ndpi_moe_layer *l = &moe->layers[layer];
	int there = 0, r = 0;

	pthread_mutex_lock(&l->gpu_lock);
	for (uint32_t e = 0; e < experts_of(moe); e++)
		if (l->experts[e].gpu && !listed(e, experts, n))
			drop(&l->experts[e]);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		r = upload(moe, &l->experts[experts[i]], &moe->info.routed, err);
		there += r == 0;
	}
	pthread_mutex_unlock(&l->gpu_lock);
	if (r == -ENODEV)
		__atomic_store_n(&ndpi_run_of(moe)->gpu_lost, true, __ATOMIC_RELEASE);
	return r < 0 && r != -ENOSPC ? r : there;
}

int ndp_moe_set_hot(struct ndp_moe *moe, uint32_t layer, const uint32_t *experts, uint32_t n,
		    struct ndp_error *err)
{
	if (layer >= moe->info.layers || !moe->layers[layer].experts)
		return ndpi_fail(err, -EINVAL, "layer %u has no experts", layer);
	if (!moe->options.gpu)
		return ndpi_fail(err, -ENODEV, "the model was loaded without a GPU");
	if (ndpi_run_of(moe)->hot)
		return ndpi_fail(err, -EBUSY, "the library chooses hot experts itself: load the "
				 "model without adapt to choose them");
	if (__atomic_load_n(&ndpi_run_of(moe)->gpu_lost, __ATOMIC_ACQUIRE))
		return ndpi_fail(err, -ENODEV, "the GPU is lost");
	for (uint32_t i = 0; i < n; i++)
		if (experts[i] >= experts_of(moe))
			return ndpi_fail(err, -EINVAL, "expert %u wanted, the model has %u",
					 experts[i], experts_of(moe));
	return set_hot(moe, layer, experts, n, err);
}

/* ---- the library's own choice ----------------------------------------------------- */

static bool before(const struct rank *a, const struct rank *b)
{
	return a->share != b->share ? a->share > b->share : a->expert < b->expert;
}

/* Shell's sort, gaps by Ciura: qsort() may allocate. */
static void sort(struct rank *r, uint32_t n)
{
	static const uint32_t gaps[] = { 1750, 701, 301, 132, 57, 23, 10, 4, 1 };

	for (uint32_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
		for (uint32_t i = gaps[g]; i < n; i++) {
			const struct rank v = r[i];
			uint32_t at = i;

			for (; at >= gaps[g] && before(&v, &r[at - gaps[g]]); at -= gaps[g])
				r[at] = r[at - gaps[g]];
			r[at] = v;
		}
	}
}

static void choose(struct ndp_moe *moe, struct ndpi_hot *hot, uint32_t layer)
{
	const struct ndpi_moe_layer *l = &moe->layers[layer];
	const float *share = ndp_predict_shares(hot->predictor, layer);
	const uint32_t experts = experts_of(moe);
	const uint32_t n = hot->slots[layer] < experts ? hot->slots[layer] : experts;
	const float even = 1.0f / (float)experts;
	uint32_t wanted = 0;

	for (uint32_t e = 0; e < experts; e++) {
		const bool there = l->experts[e].gpu; /* only this thread changes it */

		hot->ranks[e] = (struct rank){ share[e] * (there ? stay : 1), e };
	}
	sort(hot->ranks, experts);
	for (uint32_t i = 0; i < n; i++)
		/* Rarely used ones are worth no upload, as long as there is room. */
		if (hot->ranks[i].share > even / 4)
			hot->wanted[wanted++] = hot->ranks[i].expert;
	set_hot(moe, layer, hot->wanted, wanted, NULL);
}

void ndpi_hot_step(struct ndp_moe *moe, uint32_t layer, const uint32_t *tokens)
{
	struct ndpi_run *run = ndpi_run_of(moe);
	struct ndpi_hot *hot = run->hot;

	if (!hot || __atomic_load_n(&run->gpu_lost, __ATOMIC_ACQUIRE))
		return;
	/* Another thread's step teaches nearly the same. */
	if (pthread_mutex_trylock(&hot->lock))
		return;
	ndp_predict_update(hot->predictor, layer, tokens);
	if (++hot->steps[layer] % STEPS == 0)
		choose(moe, hot, layer);
	pthread_mutex_unlock(&hot->lock);
}

static int allocate(struct ndp_moe *moe, struct ndpi_hot *hot, struct ndp_error *err)
{
	const uint32_t layers = moe->info.layers, experts = experts_of(moe);
	const size_t bytes = ndp_predict_bytes(layers, experts);

	if (!bytes)
		return ndpi_fail(err, -ENOTSUP, "prediction for %u layers of %u experts is more "
				 "than is done: load the model without adapt", layers, experts);
	hot->mem = malloc(bytes);
	hot->slots = calloc(layers, sizeof(*hot->slots));
	hot->steps = calloc(layers, sizeof(*hot->steps));
	hot->ranks = calloc(experts, sizeof(*hot->ranks));
	hot->wanted = calloc(experts, sizeof(*hot->wanted));
	if (!hot->mem || !hot->slots || !hot->steps || !hot->ranks || !hot->wanted)
		return ndpi_fail(err, -ENOMEM, "out of memory for predicting %u layers", layers);
	hot->predictor = ndp_predict_init(hot->mem, layers, experts);
	return 0;
}

/* The budget in experts, as even as can be. */
static void deal_budget(struct ndp_moe *moe, struct ndpi_hot *hot)
{
	const uint32_t moe_layers = moe->info.moe_layers ? moe->info.moe_layers : 1;
	struct ndp_gpu_info gpu;
	uint64_t all, left;

	ndp_gpu_info(moe->options.gpu, &gpu);
	all = (gpu.budget_bytes - (gpu.used_bytes < gpu.budget_bytes ? gpu.used_bytes :
				   gpu.budget_bytes)) / ndpi_run_of(moe)->shape.expert_bytes;
	left = all % moe_layers;
	all /= moe_layers;
	for (uint32_t l = 0; l < moe->info.layers; l++) {
		if (!moe->layers[l].experts)
			continue;
		hot->slots[l] = (uint32_t)(all > UINT32_MAX / 2 ? UINT32_MAX / 2 : all);
		if (left) {
			hot->slots[l]++;
			left--;
		}
	}
}

/*
 * Where the GPU has to compute shared experts (the CPU would be given them first)
 * they come with every token: nothing is hotter.
 */
static int upload_shared(struct ndp_moe *moe, struct ndp_error *err)
{
	for (uint32_t l = 0; l < moe->info.layers; l++) {
		struct ndpi_moe_layer *layer = &moe->layers[l];
		int r = 0;

		if (!layer->shared)
			continue;
		pthread_mutex_lock(&layer->gpu_lock);
		r = upload(moe, layer->shared, &moe->info.shared, err);
		pthread_mutex_unlock(&layer->gpu_lock);
		if (r < 0)
			return r == -ENOSPC ? 0 : r;
	}
	return 0;
}

int ndpi_hot_init(struct ndp_moe *moe, struct ndp_error *err)
{
	struct ndpi_run *run = ndpi_run_of(moe);
	struct ndpi_hot *hot;
	int r;

	if (!(run->domains & NDPI_GPU))
		return 0;
	if (!(run->domains & NDPI_CPU)) {
		r = upload_shared(moe, err);
		if (r < 0)
			return r;
	}
	if (!moe->options.adapt)
		return 0;
	hot = calloc(1, sizeof(*hot));
	if (!hot)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	run->hot = hot;
	pthread_mutex_init(&hot->lock, NULL);
	r = allocate(moe, hot, err);
	if (r == 0)
		deal_budget(moe, hot);
	return r; /* ndpi_hot_free() has the rest */
}

void ndpi_hot_free(struct ndp_moe *moe)
{
	struct ndpi_hot *hot = ndpi_run_of(moe)->hot;

	for (uint32_t l = 0; l < moe->info.layers; l++) {
		struct ndpi_moe_layer *layer = &moe->layers[l];

		for (uint32_t e = 0; layer->experts && e < experts_of(moe); e++)
			drop(&layer->experts[e]);
		if (layer->shared)
			drop(layer->shared);
	}
	if (!hot)
		return;
	pthread_mutex_destroy(&hot->lock);
	free(hot->wanted);
	free(hot->ranks);
	free(hot->steps);
	free(hot->slots);
	free(hot->mem);
	free(hot);
	ndpi_run_of(moe)->hot = NULL;
}
