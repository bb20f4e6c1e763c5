/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * run.c - what running the layers of a model needs to know and is the same for all
 * contexts: the domains that compute, what they cost, and where experts lie.
 *
 * Where an expert lies is asked when the model is loaded, again when a command
 * found it elsewhere, and of one expert of a layer each time that the layer runs.
 * Nothing here may be needed for a correct result: a wrong belief costs time.
 */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct ndpi_domain_ops *const ndpi_domains[NDP_DOMAINS] = {
	[NDP_DOMAIN_GPU] = &ndpi_domain_gpu,
	[NDP_DOMAIN_CPU] = &ndpi_domain_cpu,
	[NDP_DOMAIN_NDP] = &ndpi_domain_ndp,
};

uint32_t ndpi_run_domains(const struct ndpi_run *run)
{
	uint32_t domains = run->domains;

	if (__atomic_load_n(&run->gpu_lost, __ATOMIC_ACQUIRE))
		domains &= ~(uint32_t)NDPI_GPU;
	return domains ? domains : run->fallback;
}

/* ---- placements ---------------------------------------------------------------- */

static const struct ndpi_expert *expert_at(const struct ndp_moe *moe, uint32_t layer, uint32_t e)
{
	const struct ndpi_moe_layer *l = &moe->layers[layer];

	return e == moe->info.router.experts ? l->shared : &l->experts[e];
}

/* @e: the number of experts means the shared one. */
static void ask(struct ndp_moe *moe, uint32_t layer, uint32_t e)
{
	const struct ndpi_run *run = ndpi_run_of(moe);
	const struct ndpi_expert *expert = expert_at(moe, layer, e);
	struct ndpi_run_layer *l = &run->layers[layer];
	struct ndp_weights_info info;

	if (!expert || !expert->weights || ndp_weights_info(expert->weights, &info) < 0)
		return;
	pthread_rwlock_wrlock(&l->lock);
	l->lost[e] = info.lost;
	if (info.placement.nr_ranges) {
		l->places[e] = info.placement;
		ndp_layer_place(l->blocks + (size_t)e * run->nr_dimms, run->nr_dimms,
				&info.placement);
	}
	pthread_rwlock_unlock(&l->lock);
}

void ndpi_run_refresh(struct ndp_moe *moe, uint32_t layer, uint32_t expert)
{
	ask(moe, layer, expert == NDP_EXPERT_SHARED ? moe->info.router.experts : expert);
}

void ndpi_run_sweep(struct ndp_moe *moe, uint32_t layer)
{
	struct ndpi_run_layer *l = &ndpi_run_of(moe)->layers[layer];

	if (moe->options.device)
		ask(moe, layer, __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED) %
		    (moe->info.router.experts + 1));
}

static int place_layer(struct ndp_moe *moe, uint32_t layer)
{
	const uint32_t experts = moe->info.router.experts;
	const struct ndpi_run *run = ndpi_run_of(moe);
	struct ndpi_run_layer *l = &run->layers[layer];
	const uint32_t all = (uint32_t)((1ULL << run->nr_dimms) - 1);

	l->places = calloc(experts + 1, sizeof(*l->places));
	l->blocks = calloc(((size_t)experts + 1) * run->nr_dimms, sizeof(*l->blocks));
	l->lost = calloc(experts + 1, sizeof(*l->lost));
	if (!l->places || !l->blocks || !l->lost)
		return -ENOMEM;
	for (uint32_t e = 0; e <= experts; e++) {
		const struct ndp_expert_shape *shape = e < experts ? &moe->info.routed :
								     &moe->info.shared;

		if (!expert_at(moe, layer, e))
			continue;
		/* Host memory is interleaved over all channels. */
		ndp_placement_spread(&l->places[e], ndp_expert_blocks(shape), all);
		ndp_layer_place(l->blocks + (size_t)e * run->nr_dimms, run->nr_dimms,
				&l->places[e]);
		ask(moe, layer, e);
	}
	return 0;
}

/* ---- domains and what they cost --------------------------------------------------- */

static uint32_t domains_there(const struct ndp_moe *moe)
{
	return (moe->options.gpu ? NDPI_GPU : 0) | (moe->options.cpu ? NDPI_CPU : 0) |
	       (moe->options.device ? NDPI_NDP : 0);
}

static uint32_t policy_domains(enum ndp_policy policy)
{
	switch (policy) {
	case NDP_POLICY_GPU:
		return NDPI_GPU;
	case NDP_POLICY_GPU_CPU:
		return NDPI_GPU | NDPI_CPU;
	case NDP_POLICY_GPU_NDP:
		return NDPI_GPU | NDPI_NDP;
	default:
		return NDPI_GPU | NDPI_CPU | NDPI_NDP;
	}
}

/* "GPU, CPU" */
static const char *names(uint32_t domains, char buf[32])
{
	static const char *const name[NDP_DOMAINS] = { "GPU", "CPU", "NDP" };

	buf[0] = 0;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		if (!(domains & 1u << d))
			continue;
		if (buf[0])
			strcat(buf, ", ");
		strcat(buf, name[d]);
	}
	return buf[0] ? buf : "nothing";
}

static bool single(uint32_t bits)
{
	return !(bits & (bits - 1));
}

static int choose_domains(const struct ndp_moe *moe, struct ndpi_run *run, struct ndp_error *err)
{
	const struct ndp_moe_options *o = &moe->options;
	const uint32_t there = domains_there(moe);
	char a[32], b[32];

	if (o->domains & ~(uint32_t)(NDPI_GPU | NDPI_CPU | NDPI_NDP))
		return ndpi_fail(err, -EINVAL, "options.domains: unknown bits 0x%x", o->domains &
				 ~(uint32_t)(NDPI_GPU | NDPI_CPU | NDPI_NDP));
	if ((unsigned int)o->policy >= NDP_POLICIES)
		return ndpi_fail(err, -EINVAL, "options.policy: %d is none", (int)o->policy);
	if (o->charges & ~(uint32_t)NDP_CHARGES_ALL)
		return ndpi_fail(err, -EINVAL, "options.charges: unknown bits 0x%x", o->charges &
				 ~(uint32_t)NDP_CHARGES_ALL);
	run->domains = o->domains ? o->domains & there : there;
	if (!run->domains)
		return ndpi_fail(err, -EINVAL, "nothing is left to compute on: wanted %s, given "
				 "were %s: open one of those that are wanted", names(o->domains, a),
				 names(there, b));
	run->policy_domains = policy_domains(o->policy);
	if (!single(run->domains) && !o->deterministic && !(run->domains & run->policy_domains))
		return ndpi_fail(err, -EINVAL, "policy %s uses %s only, but what computes is %s: "
				 "choose another policy", ndp_policy_name(o->policy),
				 names(run->policy_domains, a), names(run->domains, b));
	if (run->domains == NDPI_GPU)
		run->fallback = there & NDPI_CPU ? NDPI_CPU : there & NDPI_NDP;
	return 0;
}

/* Memory of a desktop machine, if nobody says more. */
static void guess_memory(struct ndp_host *host)
{
	host->nr_channels = 2;
	host->channel_gbps = 15;
}

static int describe_host(const struct ndp_moe *moe, struct ndpi_run *run, struct ndp_error *err)
{
	const struct ndp_host *rates = moe->options.host;
	struct ndp_host *host = &run->host;
	struct ndp_device_info dev;
	int r;

	if (rates) {
		host->nr_channels = rates->nr_channels;
		host->channel_gbps = rates->channel_gbps;
		host->nr_dimms = rates->nr_dimms;
		host->dimm_bytes = rates->dimm_bytes;
	} else {
		guess_memory(host);
		host->nr_dimms = host->nr_channels;
	}
	if (moe->options.device) {
		r = ndp_device_info(moe->options.device, &dev);
		if (r < 0)
			return ndpi_fail(err, r, "the NDP device does not answer: %s",
					 strerror(-r));
		host->nr_dimms = dev.dimm_mask ? 32 - (uint32_t)__builtin_clz(dev.dimm_mask) : 1;
	}
	if (host->nr_dimms < 1 || host->nr_dimms > NDP_MAX_DIMMS)
		return ndpi_fail(err, -EINVAL, "options.host.nr_dimms is %u: wanted 1 to %d",
				 host->nr_dimms, NDP_MAX_DIMMS);
	run->nr_dimms = host->nr_dimms;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++)
		if (run->domains & 1u << d)
			ndpi_domains[d]->cost(moe, rates, host);
	return 0;
}

static uint32_t first_moe_layer(const struct ndp_moe *moe)
{
	uint32_t l = 0;

	while (l < moe->info.layers && !moe->layers[l].experts)
		l++;
	return l;
}

/* Who computes expert @e when nothing but its number may decide: in turn, by speed. */
static int fix_domains(const struct ndp_moe *moe, struct ndpi_run *run)
{
	const uint32_t experts = moe->info.router.experts, first = first_moe_layer(moe);
	double speed[NDP_DOMAINS] = { 0 }, owed[NDP_DOMAINS] = { 0 }, all = 0;
	uint32_t *one = malloc(experts * sizeof(*one));
	const struct ndp_layer layer = {
		.host = &run->host,
		.shape = &run->shape,
		.tokens = one,
		.blocks = run->layers[first].blocks,
	};
	struct ndp_loads loads;

	run->fixed = malloc(experts);
	if (!one || !run->fixed) {
		free(one);
		return -ENOMEM;
	}
	for (uint32_t e = 0; e < experts; e++)
		one[e] = 1;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		if (run->domains & 1u << d) {
			const double ns = ndp_expert_cost(&layer, 0, d, &loads);

			speed[d] = single(run->domains) ? 1 : isfinite(ns) && ns > 0 ? 1 / ns : 0;
			if (d == NDP_DOMAIN_NDP)
				speed[d] *= run->nr_dimms;
		}
		all += speed[d];
	}
	for (uint32_t e = 0; e < experts; e++) {
		uint32_t most = 0;

		for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
			owed[d] += all > 0 ? speed[d] / all : !!(run->domains & 1u << d);
			if (owed[d] > owed[most])
				most = d;
		}
		owed[most] -= 1;
		run->fixed[e] = (uint8_t)most;
	}
	free(one);
	return 0;
}

static int check_rates(const struct ndp_moe *moe, struct ndpi_run *run, struct ndp_error *err)
{
	const uint32_t experts = moe->info.router.experts;
	const struct ndp_rate *rate[NDP_DOMAINS] = { &run->host.gpu, &run->host.cpu,
						     &run->host.dimm };
	struct ndp_layer layer = {
		.host = &run->host,
		.shape = &run->shape,
		.charges = moe->options.charges,
		.blocks = run->layers[first_moe_layer(moe)].blocks,
	};
	uint32_t able = 0;
	uint32_t *none;
	char buf[32];
	int r;

	if (single(run->domains))
		return 0;
	none = calloc(experts, sizeof(*none));
	if (!none)
		return ndpi_fail(err, -ENOMEM, "out of memory for %u experts", experts);
	layer.tokens = none;
	r = ndp_layer_check(&layer, err);
	free(none);
	if (r < 0)
		return r;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++)
		if (run->domains & 1u << d && rate[d]->gflops > 0)
			able |= 1u << d;
	if (!(able & run->policy_domains) && !moe->options.deterministic)
		return ndpi_fail(err, -EINVAL, "options.host gives no rate to any of %s that "
				 "policy "
				 "%s uses: it describes another machine", names(run->domains, buf),
				 ndp_policy_name(moe->options.policy));
	return 0;
}

/* ---- the whole of it ---------------------------------------------------------------- */

static int init(struct ndp_moe *moe, struct ndpi_run *run, struct ndp_error *err)
{
	const struct ndp_model_info *info = &moe->info;
	int r;

	r = ndp_router_check(&info->router, err);
	if (r < 0)
		return r;
	r = choose_domains(moe, run, err);
	if (r < 0)
		return r;
	run->shape = (struct ndp_shape){
		.experts = info->router.experts,
		.top_k = info->router.top_k,
		.hidden = info->hidden,
		.intermediate = info->routed.neurons,
		.expert_bytes = (uint64_t)ndp_expert_blocks(&info->routed) *
				ndp_expert_block_bytes(&info->routed),
	};
	r = describe_host(moe, run, err);
	if (r < 0)
		return r;
	for (uint32_t l = 0; l < info->layers; l++)
		if (moe->layers[l].experts && place_layer(moe, l) < 0)
			return ndpi_fail(err, -ENOMEM, "out of memory for where the experts of "
					 "layer %u are", l);
	if (first_moe_layer(moe) == info->layers)
		return 0;
	r = check_rates(moe, run, err);
	if (r < 0)
		return r;
	if (moe->options.deterministic && fix_domains(moe, run) < 0)
		return ndpi_fail(err, -ENOMEM, "out of memory for %u experts",
				 info->router.experts);
	return ndpi_hot_init(moe, err);
}

int ndpi_moe_run_init(struct ndp_moe *moe, struct ndp_error *err)
{
	struct ndpi_run *run = calloc(1, sizeof(*run));
	int r;

	if (!run)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	moe->run = run;
	run->layers = calloc(moe->info.layers ? moe->info.layers : 1, sizeof(*run->layers));
	if (!run->layers) {
		r = ndpi_fail(err, -ENOMEM, "out of memory for %u layers", moe->info.layers);
		goto error;
	}
	for (uint32_t l = 0; l < moe->info.layers; l++)
		pthread_rwlock_init(&run->layers[l].lock, NULL);
	r = init(moe, run, err);
	if (r == 0)
		return 0;
error:
	ndpi_moe_run_free(moe);
	return r;
}

void ndpi_moe_run_free(struct ndp_moe *moe)
{
	struct ndpi_run *run = ndpi_run_of(moe);

	if (!run)
		return;
	ndpi_hot_free(moe);
	for (uint32_t l = 0; run->layers && l < moe->info.layers; l++) {
		pthread_rwlock_destroy(&run->layers[l].lock);
		free(run->layers[l].places);
		free(run->layers[l].blocks);
		free(run->layers[l].lost);
	}
	free(run->layers);
	free(run->fixed);
	free(run);
	moe->run = NULL;
}
