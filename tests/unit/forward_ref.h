/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * forward_ref.h - for the tests of the layer pipeline: a small model made up in memory
 * (as loading leaves it), and what its layers compute in FP64.
 *
 * How far the pipeline may be off: for each expert what device_ref.h allows, times
 * its weight; for the weights 2^-18 of them (sums of `hidden` products in FP32 and an
 * exponential); for the sum over experts and pieces 2^-20 of its terms.
 */
#ifndef FORWARD_REF_H
#define FORWARD_REF_H

#include "../../libndp/moe/run.h"
#include "device_ref.h"

#include <errno.h>

struct fm_spec {
	uint32_t hidden, neurons, experts, top_k;
	uint32_t shared_neurons;
	uint32_t layers;	/* 0: 1; if more the first is a dense one */
	bool shared_gate, bias, router_bias, selection;
	struct ndp_router router;	/* experts, top_k and a scale of 0 are filled in */
	int act;
};

struct fm {
	struct ndp_moe moe;
	struct fm_spec spec;
	struct ref_expert *experts;	/* [layers][experts] */
	struct ref_expert *shared;	/* [layers] */
};

static inline float *fm_floats(size_t n, float scale, uint64_t *seed)
{
	float *p = malloc(n * sizeof(*p));

	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = scale * ref_uniform(seed);
	return p;
}

static inline void fm_place(struct fm *m, struct ndpi_expert *x, const struct ref_expert *e,
			    uint32_t index)
{
	const uint32_t blocks = ndp_expert_blocks(&e->shape);
	const size_t block = ndp_expert_block_bytes(&e->shape);

	x->bytes = blocks * block;
	x->node = -1;
	if (m->moe.options.device) {
		struct ndp_placement p;
		struct ndp_error err;

		if (ndp_placement_policy(&p, m->moe.placement[0] ? m->moe.placement : "local",
					 index, blocks, ref_mask(m->moe.options.device), &err))
			fail_msg("%s", err.message);
		x->weights = ref_place_expert(m->moe.options.device, e, &p);
		x->blocks = ndp_weights_map(x->weights);
	} else {
		char *p = ndp_host_alloc(x->bytes, -1);

		assert_non_null(p);
		for (uint32_t b = 0; b < blocks; b++)
			ndp_expert_pack_block(p + b * block, &e->shape, b, e->gate, e->up, e->ld_in,
					      e->down, e->ld_down);
		x->blocks = p;
	}
	assert_non_null(x->blocks);
}

static inline void fm_make_layer(struct fm *m, uint32_t l, uint64_t *seed)
{
	const struct fm_spec *s = &m->spec;
	struct ndpi_moe_layer *layer = &m->moe.layers[l];
	const uint32_t h_in = s->hidden + s->bias;

	layer->experts = calloc(s->experts, sizeof(*layer->experts));
	assert_non_null(layer->experts);
	for (uint32_t e = 0; e < s->experts; e++) {
		struct ref_expert *r = &m->experts[l * s->experts + e];

		*r = ref_expert_new(h_in, s->hidden, s->neurons, ref_next(seed));
		fm_place(m, &layer->experts[e], r, e);
		if (s->bias)
			layer->experts[e].down_bias = fm_floats(s->hidden, 1, seed);
	}
	if (s->shared_neurons) {
		layer->shared = calloc(1, sizeof(*layer->shared));
		m->shared[l] = ref_expert_new(s->hidden, s->hidden, s->shared_neurons,
					      ref_next(seed));
		fm_place(m, layer->shared, &m->shared[l], s->experts);
	}
	layer->router = fm_floats((size_t)s->experts * s->hidden, 3 / sqrtf((float)s->hidden),
				  seed);
	if (s->router_bias)
		layer->router_bias = fm_floats(s->experts, 0.5f, seed);
	if (s->selection)
		layer->selection = fm_floats(s->experts, 0.2f, seed);
	if (s->shared_gate)
		layer->shared_gate = fm_floats(s->hidden, 1 / sqrtf((float)s->hidden), seed);
	pthread_mutex_init(&layer->gpu_lock, NULL);
}

static inline struct fm *fm_make(const struct fm_spec *spec, const struct ndp_moe_options *o)
{
	struct fm *m = calloc(1, sizeof(*m));
	const uint32_t layers = spec->layers ? spec->layers : 1;
	uint64_t seed = 0x9e3779b97f4a7c15;
	struct ndp_moe *moe;

	assert_non_null(m);
	m->spec = *spec;
	moe = &m->moe;
	moe->options = *o;
	if (o->host) {
		moe->host = *o->host;
		moe->options.host = &moe->host;
	}
	snprintf(moe->placement, sizeof(moe->placement), "%s", o->placement ? o->placement : "");
	moe->options.placement = moe->placement;
	moe->info = (struct ndp_model_info){
		.family = "made up", .format = "memory",
		.layers = layers, .moe_layers = layers > 1 ? layers - 1 : 1,
		.hidden = spec->hidden, .router = spec->router,
		.routed = { spec->hidden + spec->bias, spec->hidden, spec->neurons },
		.shared_gate = spec->shared_gate, .expert_bias = spec->bias,
		.router_bias = spec->router_bias, .selection_bias = spec->selection,
		.act = spec->act, .alpha = 1.702f, .limit = 0.75f,
	};
	moe->info.router.experts = spec->experts;
	moe->info.router.top_k = spec->top_k;
	if (moe->info.router.scale == 0)
		moe->info.router.scale = 1;
	if (spec->shared_neurons)
		moe->info.shared = (struct ndp_expert_shape){ spec->hidden, spec->hidden,
							      spec->shared_neurons };
	moe->layers = calloc(layers, sizeof(*moe->layers));
	m->experts = calloc((size_t)layers * spec->experts, sizeof(*m->experts));
	m->shared = calloc(layers, sizeof(*m->shared));
	assert_true(moe->layers && m->experts && m->shared);
	for (uint32_t l = layers > 1; l < layers; l++)
		fm_make_layer(m, l, &seed);
	return m;
}

static inline void fm_free_expert(struct ndpi_expert *x)
{
	if (x->weights)
		ndp_weights_free(x->weights);
	else
		ndp_host_free((void *)x->blocks, x->bytes);
	free(x->down_bias);
}

static inline void fm_free(struct fm *m)
{
	ndpi_moe_run_free(&m->moe);
	for (uint32_t l = 0; l < m->moe.info.layers; l++) {
		struct ndpi_moe_layer *layer = &m->moe.layers[l];

		if (!layer->experts)
			continue;
		for (uint32_t e = 0; e < m->spec.experts; e++) {
			fm_free_expert(&layer->experts[e]);
			ref_expert_free(&m->experts[l * m->spec.experts + e]);
		}
		if (layer->shared) {
			fm_free_expert(layer->shared);
			ref_expert_free(&m->shared[l]);
		}
		free(layer->shared);
		free(layer->experts);
		free(layer->router);
		free(layer->router_bias);
		free(layer->selection);
		free(layer->shared_gate);
		pthread_mutex_destroy(&layer->gpu_lock);
	}
	free(m->shared);
	free(m->experts);
	free(m->moe.layers);
	free(m);
}

static inline struct fm *fm_new(const struct fm_spec *spec, const struct ndp_moe_options *o)
{
	struct fm *m = fm_make(spec, o);
	struct ndp_error err;

	if (ndpi_moe_run_init(&m->moe, &err))
		fail_msg("%s", err.message);
	return m;
}

static inline struct ndp_moe_context *fm_context(struct fm *m, uint32_t max_tokens)
{
	struct ndp_moe_context *ctx;
	struct ndp_error err;

	if (ndp_moe_context_create(&ctx, &m->moe, max_tokens, &err))
		fail_msg("%s", err.message);
	return ctx;
}

static inline struct ndp_cpu *fm_cpu(uint32_t threads)
{
	struct ndp_cpu *cpu;
	struct ndp_error err;

	if (ndp_cpu_open(&cpu, &(struct ndp_cpu_options){ .threads = threads }, &err))
		fail_msg("%s", err.message);
	return cpu;
}

/* [tokens][ld], NaN behind the columns. */
static inline float *fm_x(const struct fm *m, uint32_t tokens, size_t ld, uint64_t seed)
{
	float *x = malloc((tokens ? tokens : 1) * ld * sizeof(*x));

	assert_non_null(x);
	seed = seed * 2654435761u + 5;
	for (uint32_t t = 0; t < tokens; t++)
		for (size_t i = 0; i < ld; i++)
			x[t * ld + i] = i < m->spec.hidden ? ref_uniform(&seed) : NAN;
	return x;
}

/* ---- the reference ----------------------------------------------------------------- */

static inline double fm_dot(const float *a, const float *b, uint32_t n)
{
	double s = 0;

	for (uint32_t i = 0; i < n; i++)
		s += (double)a[i] * b[i];
	return s;
}

/*
 * The weights of the experts @ids of one token.  Where experts are not in groups, it is
 * also seen to it that these are the best.
 */
static inline void fm_weights(const struct fm *m, uint32_t layer, const float *x,
			      const uint32_t *ids, double *weights)
{
	const struct ndp_router *r = &m->moe.info.router;
	const struct ndpi_moe_layer *l = &m->moe.layers[layer];
	double score[r->experts], choice[r->experts], sum = 0, least = INFINITY;
	bool chosen[r->experts];

	for (uint32_t e = 0; e < r->experts; e++) {
		const double z = fm_dot(l->router + (size_t)e * m->spec.hidden, x, m->spec.hidden) +
				 (l->router_bias ? l->router_bias[e] : 0);

		score[e] = r->scoring == NDP_SCORE_SOFTMAX ? exp(z) : 1 / (1 + exp(-z));
		sum += score[e];
		chosen[e] = false;
	}
	for (uint32_t e = 0; e < r->experts; e++) {
		if (r->scoring == NDP_SCORE_SOFTMAX)
			score[e] /= sum;
		choice[e] = score[e] + (l->selection ? l->selection[e] : 0);
	}
	sum = 0;
	for (uint32_t j = 0; j < r->top_k; j++) {
		assert_in_range(ids[j], 0, r->experts - 1);
		assert_false(chosen[ids[j]]);
		chosen[ids[j]] = true;
		weights[j] = score[ids[j]];
		sum += weights[j];
		least = fmin(least, choice[ids[j]]);
	}
	for (uint32_t e = 0; e < r->experts && r->groups < 2; e++)
		assert_true(chosen[e] || choice[e] <= least + 1e-5);
	for (uint32_t j = 0; j < r->top_k; j++)
		weights[j] = (r->renormalize ? weights[j] / sum : weights[j]) * r->scale;
}

static inline void fm_add(const struct fm *m, const struct ref_expert *e, const float *bias,
			  const float *x, double weight, double *out, double *tolerance)
{
	const uint32_t h = m->spec.hidden;
	const struct ndp_cmd c = { .act = m->moe.info.act, .alpha = m->moe.info.alpha,
				   .limit = m->moe.info.limit };
	ndp_bf16 row[e->shape.h_in];
	double y[h], tol[h];

	ndp_bf16_from_f32_array(row, x, h);
	if (e->shape.h_in > h)
		row[h] = 0x3f80;
	ref_ffn(e, &c, row, 0, ndp_expert_blocks(&e->shape), y, tol);
	for (uint32_t i = 0; i < h; i++) {
		y[i] += bias ? bias[i] : 0;
		out[i] += weight * y[i];
		tolerance[i] += fabs(weight) * (tol[i] + (fabs(y[i]) + tol[i]) * 0x1p-18 * 1.25);
	}
}

static inline void fm_reference(const struct fm *m, uint32_t layer, const float *x, uint32_t k,
				const uint32_t *ids, const double *weights, bool shared,
				double *out, double *tolerance)
{
	const struct ndpi_moe_layer *l = &m->moe.layers[layer];

	for (uint32_t i = 0; i < m->spec.hidden; i++) {
		out[i] = 0;
		tolerance[i] = 1e-30;
	}
	for (uint32_t j = 0; j < k; j++)
		fm_add(m, &m->experts[layer * m->spec.experts + ids[j]],
		       l->experts[ids[j]].down_bias, x, weights[j], out, tolerance);
	if (shared && l->shared)
		fm_add(m, &m->shared[layer], NULL, x, l->shared_gate ?
		       1 / (1 + exp(-fm_dot(l->shared_gate, x, m->spec.hidden))) : 1, out,
		       tolerance);
}

/* What the last call of @ctx gave for @x; columns behind the last must still be NaN. */
static inline void fm_check(const struct fm *m, const struct ndp_moe_context *ctx, uint32_t layer,
			    const float *x, size_t ldx, uint32_t tokens, const float *got,
			    size_t ld)
{
	const uint32_t k = m->spec.top_k, h = m->spec.hidden;
	double want[h], tolerance[h], weights[k];
	uint32_t n;
	const uint32_t *ids = ndp_moe_last_ids(ctx, &n);

	assert_int_equal(n, tokens);
	for (uint32_t t = 0; t < tokens; t++) {
		fm_weights(m, layer, x + t * ldx, ids + t * k, weights);
		fm_reference(m, layer, x + t * ldx, k, ids + t * k, weights, true, want, tolerance);
		ref_assert_near(got + t * ld, want, tolerance, h);
		for (size_t i = h; i < ld; i++)
			assert_true(isnan(got[t * ld + i]));
	}
}

/* One call, checked. */
static inline void fm_run(const struct fm *m, struct ndp_moe_context *ctx, uint32_t layer,
			  uint32_t tokens, uint64_t seed, struct ndp_moe_report *report)
{
	const size_t ldx = m->spec.hidden + 3, ld = m->spec.hidden + 5;
	float *x = fm_x(m, tokens, ldx, seed), *out = malloc((tokens + 1) * ld * sizeof(*out));
	struct ndp_error err;

	assert_non_null(out);
	memset(out, 0xff, (tokens + 1) * ld * sizeof(*out));
	if (ndp_moe_forward(ctx, layer, NDP_REGIME_AUTO, x, ldx, tokens, out, ld, report, &err))
		fail_msg("%s", err.message);
	fm_check(m, ctx, layer, x, ldx, tokens, out, ld);
	free(out);
	free(x);
}

#endif
