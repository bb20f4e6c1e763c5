// SPDX-License-Identifier: GPL-2.0-or-later
/* replay.c - see replay.h. */
#include "replay.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * The bound, the scores of predictors and ranks cost more than a schedule.  They
 * are looked at for all of the first layers, then for every 31st, which with
 * common numbers of layers gets to all of them.
 */
enum { SAMPLE_ALL = 2048, SAMPLE_EVERY = 31 };

static bool sampled(uint64_t run)
{
	return run < SAMPLE_ALL || run % SAMPLE_EVERY == 0;
}

/*
 * Decisions of the placement engine and timelines cost many times a schedule: a
 * layer is decided on often at first, then seldom; of the layers that run beside
 * copies the first few are played, then every 512th.
 */
enum {
	DECIDE_FIRST_STEPS = 64, DECIDE_FIRST = 4, DECIDE_EVERY = 16,
	PLAY_FIRST = 8, PLAY_EVERY = 512,
};

static bool decides(const struct replay *r, uint32_t layer)
{
	const uint32_t every = r->steps < DECIDE_FIRST_STEPS ? DECIDE_FIRST : DECIDE_EVERY;

	return (r->steps + layer) % every == 0;
}

/* Memory that scheduling works in. */
struct bench {
	void *work, *plan_memory;
	struct ndp_plan plan;
	uint32_t *counts;	/* [layers][experts] of the step */
	uint32_t *sorted;
	void *events;		/* for timelines; NULL without engines */
	struct ndp_copy *copies;
};

static int load_profiles(struct replay *r, const struct options *o, struct ndp_error *err)
{
	char *path;
	int ret = ndp_profile_find("hosts", o->host, &path, err);

	if (ret == 0)
		ret = ndp_host_profile_load(&r->host, path, err);
	free(path);
	if (ret < 0)
		return ret;
	ret = ndp_profile_find("models", o->model, &path, err);
	if (ret == 0)
		ret = ndp_model_profile_load(&r->model, path, err);
	free(path);
	return ret;
}

/* trimoe, else the first that is wanted and no ablation. */
static enum ndp_policy lead_policy(uint32_t policies)
{
	static const uint8_t order[] = {
		NDP_POLICY_TRIMOE, NDP_POLICY_SPLIT, NDP_POLICY_GPU_NDP, NDP_POLICY_GPU_CPU,
		NDP_POLICY_GPU, NDP_POLICY_TRIMOE_NOCPU_AMX, NDP_POLICY_TRIMOE_NOREFINE,
	};
	size_t i = 0;

	while (!(policies & 1u << order[i]))
		i++;
	return order[i];
}

/*
 * GPU memory for experts as it was asked for, or as the host has it.  Without any
 * there is nowhere to put even an expert that is missing: the GPU is left alone.
 */
static int find_slots(struct replay *r, const struct options *o, struct ndp_error *err)
{
	const uint64_t bytes = r->model.shape.expert_bytes;
	struct ndp_host *host = &r->host.host;
	int ret;

	if (o->has_gpu_slots) {
		ret = ndp_place_budget(o->gpu_slots, bytes, host->gpu_bytes, err);
		if (ret < 0)
			return ret;
		host->gpu_bytes = o->gpu_slots * bytes;
	}
	r->gpu_slots = host->gpu.gflops > 0 ? host->gpu_bytes / bytes : 0;
	if (!r->gpu_slots)
		memset(&host->gpu, 0, sizeof(host->gpu));
	return 0;
}

static int start_engines(struct replay *r, const struct options *o, struct ndp_error *err)
{
	if (!placement_moves(o->placement))
		return 0;
	for (int k = 0; k < NDP_POLICIES; k++) {
		if (!(o->policies & 1u << k))
			continue;
		r->mover[k] = mover_new(&r->where, k, o->charges, o->moves, err);
		if (!r->mover[k])
			return err->code;
	}
	return 0;
}

static int open_source(struct replay *r, const struct options *o, struct ndp_error *err)
{
	const struct source_limits limits = {
		.experts = r->model.shape.experts,
		.layers = r->model.layers,
		.top_k = r->model.shape.top_k,
		.batch = o->batch,
		.steps = o->steps,
	};

	if (o->synthetic)
		return source_open_synthetic(&r->source, o->synthetic, &limits,
					     r->model.layers - r->model.dense_layers, err);
	return source_open_file(&r->source, o->trace, &limits, o->seed, err);
}

int replay_open(struct replay *r, const struct options *o, struct ndp_error *err)
{
	size_t n;
	int ret;

	memset(r, 0, sizeof(*r));
	r->options = *o;
	r->best_baseline = -1;
	r->lead = lead_policy(o->policies);
	ret = load_profiles(r, o, err);
	if (ret == 0)
		ret = find_slots(r, o, err);
	if (ret == 0)
		ret = open_source(r, o, err);
	if (ret == 0)
		ret = where_init(&r->where, o, &r->host.host, &r->model.shape,
				 r->source->nr_layers, err);
	if (ret == 0)
		ret = start_engines(r, o, err);
	if (ret == 0)
		ret = scores_init(&r->scores, r->source->nr_layers, r->model.shape.experts,
				  o->seed, err);
	if (ret == 0)
		ret = reference_init(&r->reference, o->reference, o->seed, err);
	if (ret < 0)
		return ret;
	n = r->model.shape.experts;
	r->layer_run = calloc(r->source->nr_layers, sizeof(*r->layer_run));
	r->rank_share = calloc(n, sizeof(*r->rank_share));
	r->shown_tokens = calloc(n, sizeof(*r->shown_tokens));
	r->shown_blocks = calloc(n * r->host.host.nr_dimms, sizeof(*r->shown_blocks));
	r->shown_on_gpu = calloc(n, 1);
	if (!r->layer_run || !r->rank_share || !r->shown_tokens || !r->shown_blocks ||
	    !r->shown_on_gpu)
		return fail(err, -ENOMEM, "out of memory");
	for (int k = 0; k < NDP_POLICIES; k++) {
		struct policy_result *p = &r->policy[k];

		p->wanted = o->policies & 1u << k;
		p->layer_ns = calloc(r->source->nr_layers, sizeof(*p->layer_ns));
		if (!p->layer_ns)
			return fail(err, -ENOMEM, "out of memory");
	}
	return 0;
}

void replay_close(struct replay *r)
{
	for (int k = 0; k < NDP_POLICIES; k++) {
		free(r->policy[k].makespan_ns);
		free(r->policy[k].layer_ns);
		mover_free(r->mover[k]);
	}
	free(r->layer_run);
	free(r->rank_share);
	free(r->shown_tokens);
	free(r->shown_blocks);
	free(r->shown_on_gpu);
	reference_free(&r->reference);
	scores_free(&r->scores);
	where_free(&r->where);
	source_close(r->source);
}

static void bench_free(struct bench *b)
{
	free(b->work);
	free(b->plan_memory);
	free(b->counts);
	free(b->sorted);
	free(b->events);
	free(b->copies);
}

static int bench_init(struct bench *b, const struct replay *r, struct ndp_error *err)
{
	const uint32_t experts = r->model.shape.experts, dimms = r->host.host.nr_dimms;

	*b = (struct bench){
		.work = malloc(ndp_schedule_bytes(experts, dimms)),
		.plan_memory = malloc(ndp_plan_bytes(experts, dimms)),
		.counts = calloc((size_t)r->source->nr_layers * experts, sizeof(uint32_t)),
		.sorted = calloc(experts, sizeof(uint32_t)),
	};
	if (!b->work || !b->plan_memory || !b->counts || !b->sorted)
		return fail(err, -ENOMEM, "out of memory");
	ndp_plan_init(&b->plan, b->plan_memory, experts, dimms);
	if (!placement_moves(r->options.placement))
		return 0;
	b->events = malloc(ndp_timeline_bytes(experts, dimms, MOVER_MAX_COPIES));
	b->copies = calloc(MOVER_MAX_COPIES, sizeof(*b->copies));
	if (!b->events || !b->copies)
		return fail(err, -ENOMEM, "out of memory");
	return 0;
}

/* Room for one more makespan of every policy. */
static int grow(struct replay *r, struct ndp_error *err)
{
	if (r->nr_run < r->max_run)
		return 0;
	r->max_run = r->max_run ? 2 * r->max_run : 4096;
	for (int k = 0; k < NDP_POLICIES; k++) {
		double *more = r->policy[k].wanted ?
			realloc(r->policy[k].makespan_ns, r->max_run * sizeof(*more)) : NULL;

		if (r->policy[k].wanted && !more)
			return fail(err, -ENOMEM, "out of memory");
		r->policy[k].makespan_ns = more;
	}
	return 0;
}

static void add_busy(struct busy *busy, const struct ndp_loads *loads, const struct ndp_host *host)
{
	busy->gpu_ns += loads->gpu_ns;
	busy->pcie_ns += loads->pcie_ns;
	busy->cpu_ns += loads->cpu_ns;
	for (uint32_t c = 0; c < host->nr_channels; c++)
		busy->channels_ns += loads->channel_ns[c] / host->nr_channels;
	for (uint32_t d = 0; d < host->nr_dimms; d++)
		busy->dimms_ns += loads->dimm_ns[d] / host->nr_dimms;
}

/* The layer that just ran beside copies, event by event, to compare. */
static int play(struct bench *b, const struct ndp_layer *layer, struct mover *m, double delay_ns,
		struct ndp_error *err)
{
	const uint32_t n = mover_copies(m, b->copies);
	struct ndp_timeline t;
	int ret;

	if (!n)
		return 0;
	ret = ndp_timeline(layer, &b->plan, b->copies, n, b->events, NULL, 0, &t);
	if (ret < 0)
		return fail(err, ret, "the timeline failed (%s)", strerror(-ret));
	m->moves.played++;
	m->moves.played_ns += delay_ns;
	m->moves.timeline_ns += t.delay_ns;
	m->moves.timeline_left_ns += t.end_ns - t.makespan_ns;
	return 0;
}

static int pass_time(struct bench *b, const struct ndp_layer *layer, struct mover *m,
		     struct ndp_error *err)
{
	const uint64_t layers = m->moves.layers;
	const double delay_ns = mover_pass(m, &b->plan);

	if (m->moves.layers > layers && (layers < PLAY_FIRST || layers % PLAY_EVERY == 0))
		return play(b, layer, m, delay_ns, err);
	return 0;
}

/* Where a policy finds the experts. */
static void find_experts(const struct replay *r, enum ndp_policy policy, uint32_t at,
			 struct ndp_layer *layer)
{
	const struct mover *m = r->mover[policy];

	layer->blocks = m ? ndp_place_blocks(m->placer, at) : where_blocks(&r->where, at);
	layer->on_gpu = m ? ndp_place_on_gpu(m->placer, at) : where_on_gpu(&r->where, at);
}

/* One policy on one layer; @makespan_ns is 0 when it is impossible. */
static int run_policy(struct replay *r, struct bench *b, struct ndp_layer *layer,
		      enum ndp_policy policy, uint32_t at, double *makespan_ns,
		      struct ndp_error *err)
{
	struct policy_result *p = &r->policy[policy];
	uint32_t commands[NDP_DOMAINS];

	*makespan_ns = 0;
	if (!p->wanted || p->impossible)
		return 0;
	find_experts(r, policy, at, layer);
	if (ndp_schedule(layer, policy, b->work, &b->plan) < 0) {
		p->impossible = true;
		return 0;
	}
	*makespan_ns = b->plan.makespan_ns;
	p->makespan_ns[r->nr_run] = b->plan.makespan_ns;
	p->sum_ns += b->plan.makespan_ns;
	p->layer_ns[at] += b->plan.makespan_ns;
	add_busy(&p->busy, &b->plan.loads, layer->host);
	ndp_plan_commands(layer, &b->plan, commands);
	for (int d = 0; d < NDP_DOMAINS; d++)
		p->commands[d] += commands[d];
	return r->mover[policy] ? pass_time(b, layer, r->mover[policy], err) : 0;
}

static int falling(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x > y ? -1 : x < y;
}

static void count_ranks(struct replay *r, struct bench *b, const uint32_t *tokens)
{
	const uint32_t experts = r->model.shape.experts;

	memcpy(b->sorted, tokens, experts * sizeof(*tokens));
	qsort(b->sorted, experts, sizeof(*b->sorted), falling);
	for (uint32_t k = 0; k < experts && b->sorted[k]; k++)
		r->rank_share[k] += b->sorted[k];
}

static void sample(struct replay *r, struct bench *b, struct ndp_layer *layer, uint32_t at,
		   const double makespan_ns[NDP_POLICIES], uint64_t selections)
{
	double fluid_ns = -1;

	r->nr_sampled++;
	r->sampled_selections += selections;
	for (int k = 0; k < NDP_POLICIES; k++) {
		struct policy_result *p = &r->policy[k];

		if (!p->wanted || p->impossible)
			continue;
		find_experts(r, k, at, layer);
		/* Without engines all find them in the same places. */
		if (r->mover[k] || fluid_ns < 0)
			fluid_ns = ndp_fluid_bound(layer, b->work);
		p->fluid_ns += fluid_ns;
		p->sampled_ns += makespan_ns[k];
	}
	count_ranks(r, b, layer->tokens);
}

/* A layer has run: learn from it, and let the engines decide. */
static void learn(struct replay *r, const uint32_t *tokens, uint32_t layer)
{
	uint64_t selections = 0;

	scores_step(&r->scores, layer, tokens, sampled(r->nr_run - 1));
	if (!decides(r, layer))
		return;
	for (uint32_t e = 0; e < r->model.shape.experts; e++)
		selections += tokens[e];
	for (int k = 0; selections && k < NDP_POLICIES; k++)
		if (r->mover[k] && !r->policy[k].impossible)
			mover_decide(r->mover[k], layer, scores_shares(&r->scores, layer),
				     selections);
}

static int run_layer(struct replay *r, struct bench *b, uint32_t at, struct ndp_error *err)
{
	struct ndp_layer layer = {
		.host = &r->host.host,
		.shape = &r->model.shape,
		.charges = r->options.charges,
		.tokens = b->counts + (size_t)at * r->model.shape.experts,
	};
	double makespan_ns[NDP_POLICIES];
	uint64_t selections = 0;
	int ret;

	for (uint32_t e = 0; e < r->model.shape.experts; e++)
		selections += layer.tokens[e];
	if (!selections)
		return 0;
	r->selections += selections;
	where_prepare(&r->where, at, layer.tokens);
	find_experts(r, r->lead, at, &layer);
	ret = r->nr_run ? 0 : ndp_layer_check(&layer, err);
	if (ret == 0)
		ret = grow(r, err);
	for (int k = 0; k < NDP_POLICIES && ret == 0; k++)
		ret = run_policy(r, b, &layer, k, at, &makespan_ns[k], err);
	if (ret < 0)
		return ret;
	if (sampled(r->nr_run))
		sample(r, b, &layer, at, makespan_ns, selections);
	r->nr_run++;
	r->layer_run[at]++;
	r->shown_layer = at;
	find_experts(r, r->lead, at, &layer);
	ret = reference_offer(&r->reference, &layer, makespan_ns, err);
	for (int k = 0; k < NDP_POLICIES; k++)
		if (r->mover[k])
			mover_arrive(r->mover[k]);
	return ret;
}

/* Remembers the layer that ran last. */
static void keep_shown(struct replay *r, const struct bench *b)
{
	const size_t experts = r->model.shape.experts;
	struct ndp_layer layer;

	memcpy(r->shown_tokens, b->counts + r->shown_layer * experts,
	       experts * sizeof(*r->shown_tokens));
	find_experts(r, r->lead, r->shown_layer, &layer);
	memcpy(r->shown_blocks, layer.blocks,
	       experts * r->host.host.nr_dimms * sizeof(*r->shown_blocks));
	memcpy(r->shown_on_gpu, layer.on_gpu, experts);
}

struct ndp_layer replay_shown(const struct replay *r)
{
	return (struct ndp_layer){
		.host = &r->host.host,
		.shape = &r->model.shape,
		.charges = r->options.charges,
		.tokens = r->shown_tokens,
		.blocks = r->shown_blocks,
		.on_gpu = r->shown_on_gpu,
	};
}

static int rising(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The value that @percent of the (sorted) ones are not above. */
static double percentile(const double *sorted, uint64_t n, unsigned int percent)
{
	return sorted[(n * percent + 99) / 100 - 1];
}

static void sum_up(struct replay *r)
{
	for (int k = 0; k < NDP_POLICIES; k++) {
		struct policy_result *p = &r->policy[k];

		if (!p->wanted || p->impossible)
			continue;
		for (uint64_t i = r->nr_run / 2; i < r->nr_run; i++)
			p->late_ns += p->makespan_ns[i] / (r->nr_run - r->nr_run / 2);
		qsort(p->makespan_ns, r->nr_run, sizeof(*p->makespan_ns), rising);
		p->p50_ns = percentile(p->makespan_ns, r->nr_run, 50);
		p->p99_ns = percentile(p->makespan_ns, r->nr_run, 99);
		if (k <= NDP_POLICY_GPU_NDP && (r->best_baseline < 0 ||
						p->sum_ns < r->policy[r->best_baseline].sum_ns))
			r->best_baseline = k;
	}
	for (uint32_t k = 0; k < r->model.shape.experts; k++)
		r->rank_share[k] /= r->sampled_selections;
}

int replay_run(struct replay *r, struct ndp_error *err)
{
	struct bench b;
	int ret = bench_init(&b, r, err);

	while (ret == 0 && (ret = source_next(r->source, b.counts, err)) > 0) {
		ret = 0;
		for (uint32_t l = 0; l < r->source->nr_layers && ret == 0; l++) {
			ret = run_layer(r, &b, l, err);
			if (ret == 0 && r->nr_run)
				learn(r, b.counts + (size_t)l * r->model.shape.experts, l);
		}
		r->steps++;
		if (r->nr_run)
			keep_shown(r, &b);
	}
	bench_free(&b);
	if (ret < 0)
		return ret;
	if (!r->nr_run)
		return fail(err, -EINVAL, "no step has any token; nothing to replay");
	sum_up(r);
	return reference_solve(&r->reference, err);
}
