// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * load.c - every expert of a model packed where it is to lie, and the loaded model's end.
 *
 * Threads take one expert after the other: into host memory an expert is packed where it
 * stays; into DIMMs a few blocks at a time through ordinary memory, as mappings of DIMMs
 * are for loads and stores of the CPU only.  The first failure, or the caller's wish,
 * stops all of them, and then everything is taken down again: there is no half
 * loaded model.
 *
 * The model's files are mapped.  When someone truncates one meanwhile the process gets
 * SIGBUS, as with any mapped file; a program that must survive that handles the signal.
 */
#include "load-internal.h"

#include <errno.h>
#include <numa.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_THREADS 1024
/* Blocks that are packed before they are copied into DIMMs. */
#define STAGED_BLOCKS 8

struct loader {
	struct ndp_moe *moe;
	const struct ndp_model *model;
	const struct load_item *items;
	uint32_t nr_items;
	uint32_t dimm_mask;
	int nodes[64];		/* NUMA nodes that this process may use */
	uint32_t nr_nodes;
	uint32_t next;		/* atomic: item to be taken */
	pthread_mutex_t lock;
	uint32_t done;
	int result;		/* atomic: of the first that failed */
	struct ndp_error why;
};

/* The first failure counts; under the lock. */
static void fail_locked(struct loader *ld, int r, const struct ndp_error *why)
{
	if (ld->result)
		return;
	ld->why = *why;
	__atomic_store_n(&ld->result, r, __ATOMIC_RELAXED);
}

static void fail_all(struct loader *ld, int r, const struct ndp_error *why)
{
	pthread_mutex_lock(&ld->lock);
	fail_locked(ld, r, why);
	pthread_mutex_unlock(&ld->lock);
}

/* ---- one expert ------------------------------------------------------------ */

static struct ndpi_expert *slot(const struct ndp_moe *moe, uint32_t layer, uint32_t expert)
{
	struct ndpi_moe_layer *l = &moe->layers[layer];

	return expert == NDP_EXPERT_SHARED ? l->shared : &l->experts[expert];
}

static int load_bias(struct loader *ld, const struct load_item *item, struct ndp_error *err)
{
	const struct ndp_model_info *info = &ld->moe->info;
	struct ndpi_expert *x = slot(ld->moe, item->layer, item->expert);

	if (!info->expert_bias || item->expert == NDP_EXPERT_SHARED)
		return 0;
	x->down_bias = malloc(info->hidden * sizeof(*x->down_bias));
	if (!x->down_bias)
		return ndpi_fail(err, -ENOMEM, "no memory for the bias of layer %u expert %u",
				 item->layer, item->expert);
	return ndp_model_down_bias(ld->model, item->layer, item->expert, x->down_bias, err);
}

static int to_host(struct loader *ld, uint32_t i, void *work, struct ndp_error *err)
{
	const struct load_item *item = &ld->items[i];
	struct ndpi_expert *x = slot(ld->moe, item->layer, item->expert);
	int node = ld->nr_nodes > 1 ? ld->nodes[i % ld->nr_nodes] : -1;
	void *p = ndp_host_alloc(x->bytes, node);

	if (!p)
		return ndpi_fail(err, -errno,
				 "%zu bytes of host memory for layer %u expert %d on node "
				 "%d: %s",
				 x->bytes, item->layer, (int)item->expert, node, strerror(errno));
	/* Fewer faults now, fewer misses of the TLB later; only a wish. */
	madvise(p, x->bytes, MADV_HUGEPAGE);
	x->blocks = p;
	x->node = node < 0 && ld->nr_nodes == 1 ? ld->nodes[0] : node;
	return ndp_model_pack(ld->model, item->layer, item->expert, 0,
			      ndp_expert_blocks(load_shape(&ld->moe->info, item->expert)), p, work,
			      err);
}

static int to_dimms(struct loader *ld, uint32_t i, void *work, void *staging,
		    struct ndp_error *err)
{
	const struct load_item *item = &ld->items[i];
	const struct ndp_expert_shape *s = load_shape(&ld->moe->info, item->expert);
	struct ndpi_expert *x = slot(ld->moe, item->layer, item->expert);
	uint32_t blocks = ndp_expert_blocks(s);
	struct ndp_placement p;
	int r;

	r = ndp_placement_policy(&p, ld->moe->options.placement, i, blocks, ld->dimm_mask, err);
	if (r == 0)
		r = ndp_expert_create(&x->weights, ld->moe->options.device, s, &p, 0,
				      (uint64_t)item->layer << 32 | item->expert, err);
	for (uint32_t b = 0; b < blocks && r == 0; b += STAGED_BLOCKS) {
		uint32_t n = blocks - b < STAGED_BLOCKS ? blocks - b : STAGED_BLOCKS;

		r = ndp_model_pack(ld->model, item->layer, item->expert, b, n, staging, work, err);
		if (r == 0) {
			r = ndp_weights_write(x->weights, b, n, staging);
			if (r < 0)
				ndpi_fail(err, r, "layer %u expert %d cannot be written to its "
					  "DIMMs: %s", item->layer, (int)item->expert,
					  strerror(-r));
		}
	}
	if (r < 0)
		return r;
	r = ndp_weights_seal(x->weights);
	if (r < 0)
		return ndpi_fail(err, r, "layer %u expert %d cannot be sealed: %s", item->layer,
				 (int)item->expert, strerror(-r));
	x->blocks = ndp_weights_map(x->weights);
	if (!x->blocks)
		return ndpi_fail(err, -errno, "layer %u expert %d cannot be mapped: %s",
				 item->layer, (int)item->expert, strerror(errno));
	return 0;
}

/* Counts it and asks whether to go on; by one thread at a time, and never again after a no. */
static int report(struct loader *ld, struct ndp_error *err)
{
	const struct ndp_moe_options *o = &ld->moe->options;
	int r = 0;

	pthread_mutex_lock(&ld->lock);
	ld->done++;
	if (o->progress && !ld->result)
		r = o->progress(o->progress_arg, ld->done, ld->nr_items);
	if (r < 0) {
		ndpi_fail(err, r, "loading was cancelled after %u of %u experts", ld->done,
			  ld->nr_items);
		fail_locked(ld, r, err);
	}
	pthread_mutex_unlock(&ld->lock);
	return r < 0 ? r : 0;
}

/* ---- all of them ------------------------------------------------------------ */

static void *load_thread(void *arg)
{
	struct loader *ld = arg;
	const struct ndp_model_info *info = &ld->moe->info;
	size_t staged = STAGED_BLOCKS * ndp_expert_block_bytes(&info->routed);
	size_t staged_shared = STAGED_BLOCKS * ndp_expert_block_bytes(&info->shared);
	size_t work_bytes = ndp_model_pack_bytes(ld->model);
	struct ndp_error err = { 0 };
	void *work = NULL, *staging = NULL;
	int r = 0;

	if (staged < staged_shared)
		staged = staged_shared;
	if ((work_bytes && posix_memalign(&work, 64, work_bytes)) ||
	    (ld->moe->options.device && posix_memalign(&staging, 64, staged)))
		r = ndpi_fail(&err, -ENOMEM,
			      "no memory to pack experts in: %zu + %zu bytes for each "
			      "thread",
			      work_bytes, staged);
	while (r == 0 && !__atomic_load_n(&ld->result, __ATOMIC_RELAXED)) {
		uint32_t i = __atomic_fetch_add(&ld->next, 1, __ATOMIC_RELAXED);

		if (i >= ld->nr_items)
			break;
		r = load_bias(ld, &ld->items[i], &err);
		if (r == 0)
			r = ld->moe->options.device ? to_dimms(ld, i, work, staging, &err) :
						      to_host(ld, i, work, &err);
		if (r == 0)
			r = report(ld, &err);
	}
	if (r < 0)
		fail_all(ld, r, &err);
	free(work);
	free(staging);
	return NULL;
}

static uint32_t count_threads(const struct loader *ld)
{
	uint32_t n = ld->moe->options.load_threads;
	cpu_set_t cpus;

	if (!n)
		n = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	if (n > MAX_THREADS)
		n = MAX_THREADS;
	return n < ld->nr_items ? n : ld->nr_items;
}

/* This thread works, too; of those that cannot be started it does the work. */
static int load_items(struct loader *ld, struct ndp_error *err)
{
	uint32_t n = count_threads(ld), started = 0;
	pthread_t *threads = calloc(n, sizeof(*threads));

	if (!threads)
		return ndpi_fail(err, -ENOMEM, "no memory for %u threads", n);
	while (started + 1 < n && !pthread_create(&threads[started], NULL, load_thread, ld))
		started++;
	load_thread(ld);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	if (ld->result < 0 && err)
		*err = ld->why;
	return ld->result;
}

/* The nodes whose memory this process may use. */
static void find_nodes(struct loader *ld)
{
	struct bitmask *mems;

	if (numa_available() < 0)
		return;
	mems = numa_get_mems_allowed();
	for (unsigned int i = 0; mems && i < mems->size && ld->nr_nodes < 64; i++)
		if (numa_bitmask_isbitset(mems, i))
			ld->nodes[ld->nr_nodes++] = (int)i;
	if (mems)
		numa_bitmask_free(mems);
}

static float *new_floats(size_t n, bool wanted, bool *failed)
{
	float *p = wanted ? malloc(n * sizeof(*p)) : NULL;

	*failed |= wanted && !p;
	return p;
}

/* Everything of a layer but its experts' weights. */
static int load_layer(struct ndp_moe *moe, const struct ndp_model *model, uint32_t l,
		      struct ndp_error *err)
{
	const struct ndp_model_info *info = &moe->info;
	struct ndpi_moe_layer *layer = &moe->layers[l];
	const size_t experts = info->router.experts;
	bool failed = false;

	layer->experts = calloc(experts, sizeof(*layer->experts));
	if (info->shared.neurons)
		layer->shared = calloc(1, sizeof(*layer->shared));
	layer->router = new_floats(experts * info->hidden, true, &failed);
	layer->router_bias = new_floats(experts, info->router_bias, &failed);
	layer->selection = new_floats(experts, info->selection_bias, &failed);
	layer->shared_gate = new_floats(info->hidden, info->shared_gate, &failed);
	if (failed || !layer->experts || (info->shared.neurons && !layer->shared))
		return ndpi_fail(err, -ENOMEM, "no memory for the router of layer %u (%zu bytes)",
				 l, experts * info->hidden * sizeof(float));
	for (uint32_t e = 0; e < experts; e++)
		layer->experts[e] = (struct ndpi_expert){ .bytes = load_bytes(info, e),
							  .node = -1 };
	if (layer->shared)
		*layer->shared = (struct ndpi_expert){
			.bytes = load_bytes(info, NDP_EXPERT_SHARED), .node = -1,
		};
	return ndp_model_router(model, l, layer->router, layer->router_bias, layer->selection,
				layer->shared_gate, err);
}

static struct load_item *list_items(const struct ndp_model *model,
				    const struct ndp_model_info *info, uint32_t *n)
{
	uint32_t each = info->router.experts + (info->shared.neurons > 0);
	struct load_item *items = calloc((size_t)info->moe_layers * each, sizeof(*items));

	*n = 0;
	for (uint32_t l = 0; items && l < info->layers; l++) {
		if (!ndp_model_is_moe(model, l))
			continue;
		for (uint32_t e = 0; e < each; e++)
			items[(*n)++] = (struct load_item){
				l, e < info->router.experts ? e : NDP_EXPERT_SHARED
			};
	}
	return items;
}

static int copy_options(struct ndp_moe *moe, const struct ndp_moe_options *options,
			struct ndp_error *err)
{
	const char *placement = options->placement ? options->placement : "local";

	moe->options = *options;
	if (strlen(placement) >= sizeof(moe->placement))
		return ndpi_fail(err, -EINVAL, "placement \"%.60s...\" is not known: wanted local, "
				 "striped, spread:K or dimm:D", placement);
	strcpy(moe->placement, placement);
	moe->options.placement = moe->placement;
	if (options->host) {
		moe->host = *options->host;
		moe->options.host = &moe->host;
	}
	return 0;
}

static int load_all(struct ndp_moe *moe, const struct ndp_model *model, struct ndp_error *err)
{
	struct loader ld = { .moe = moe, .model = model };
	struct ndp_device_info device = { 0 };
	struct load_item *items = list_items(model, &moe->info, &ld.nr_items);
	int r = 0;

	if (!items)
		return ndpi_fail(err, -ENOMEM, "no memory for the list of %u layers' experts",
				 moe->info.moe_layers);
	ld.items = items;
	r = ndpi_load_room(moe, items, ld.nr_items, err);
	for (uint32_t l = 0; l < moe->info.layers && r == 0; l++)
		if (ndp_model_is_moe(model, l))
			r = load_layer(moe, model, l, err);
	if (r == 0 && moe->options.device)
		r = ndp_device_info(moe->options.device, &device);
	if (r == 0) {
		ld.dimm_mask = device.dimm_mask;
		find_nodes(&ld);
		pthread_mutex_init(&ld.lock, NULL);
		r = load_items(&ld, err);
		pthread_mutex_destroy(&ld.lock);
	}
	free(items);
	return r;
}

static void free_expert(struct ndpi_expert *x)
{
	if (x->weights)
		ndp_weights_free(x->weights);
	else
		ndp_host_free((void *)x->blocks, x->bytes);
	free(x->down_bias);
}

static void free_weights(struct ndp_moe *moe)
{
	for (uint32_t l = 0; moe->layers && l < moe->info.layers; l++) {
		struct ndpi_moe_layer *layer = &moe->layers[l];

		for (uint32_t e = 0; layer->experts && e < moe->info.router.experts; e++)
			free_expert(&layer->experts[e]);
		if (layer->shared)
			free_expert(layer->shared);
		free(layer->experts);
		free(layer->shared);
		free(layer->router);
		free(layer->router_bias);
		free(layer->selection);
		free(layer->shared_gate);
		pthread_mutex_destroy(&layer->gpu_lock);
	}
	free(moe->layers);
	free(moe);
}

int ndp_moe_load(struct ndp_moe **out, const struct ndp_model *model,
		 const struct ndp_moe_options *options, struct ndp_error *err)
{
	struct ndp_moe *moe = calloc(1, sizeof(*moe));
	int r;

	if (!moe)
		return ndpi_fail(err, -ENOMEM, "no memory for a model");
	ndp_model_info(model, &moe->info);
	moe->layers = calloc(moe->info.layers, sizeof(*moe->layers));
	if (!moe->layers) {
		r = ndpi_fail(err, -ENOMEM, "no memory for a model of %u layers",
			      moe->info.layers);
		free(moe);
		return r;
	}
	for (uint32_t l = 0; l < moe->info.layers; l++)
		pthread_mutex_init(&moe->layers[l].gpu_lock, NULL);
	r = copy_options(moe, options, err);
	if (r == 0)
		r = load_all(moe, model, err);
	if (r == 0)
		r = ndpi_moe_run_init(moe, err);
	if (r < 0) {
		free_weights(moe);
		return r;
	}
	*out = moe;
	return 0;
}

void ndp_moe_free(struct ndp_moe *moe)
{
	if (!moe)
		return;
	ndpi_moe_run_free(moe);
	free_weights(moe);
}

/* ---- what can be asked of it ------------------------------------------------- */

void ndp_moe_model_info(const struct ndp_moe *moe, struct ndp_model_info *info)
{
	*info = moe->info;
}

bool ndp_moe_is_moe(const struct ndp_moe *moe, uint32_t layer)
{
	return layer < moe->info.layers && moe->layers[layer].experts;
}

static void count(struct ndp_moe_memory *memory, const struct ndpi_expert *x)
{
	if (x->weights)
		memory->dimm_bytes += x->bytes;
	else
		memory->host_bytes += x->bytes;
	if (x->gpu) {
		memory->gpu_bytes += x->bytes;
		memory->gpu_experts++;
	}
}

void ndp_moe_memory(const struct ndp_moe *moe, struct ndp_moe_memory *memory)
{
	memset(memory, 0, sizeof(*memory));
	for (uint32_t l = 0; l < moe->info.layers; l++) {
		struct ndpi_moe_layer *layer = &moe->layers[l];

		if (!layer->experts)
			continue;
		pthread_mutex_lock(&layer->gpu_lock);
		for (uint32_t e = 0; e < moe->info.router.experts; e++)
			count(memory, &layer->experts[e]);
		if (layer->shared)
			count(memory, layer->shared);
		pthread_mutex_unlock(&layer->gpu_lock);
	}
}

struct ndp_weights *ndp_moe_weights(const struct ndp_moe *moe, uint32_t layer, uint32_t expert)
{
	if (!ndp_moe_is_moe(moe, layer))
		return NULL;
	if (expert == NDP_EXPERT_SHARED)
		return moe->layers[layer].shared ? moe->layers[layer].shared->weights : NULL;
	return expert < moe->info.router.experts ? moe->layers[layer].experts[expert].weights :
						   NULL;
}
