// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * engine.c - see engine.h.
 *
 * The order of a layer, as in Mixtral: x += o(attention(norm(x))), then
 * x += experts(norm(x)).
 */
#include "engine.h"
#include "attention.h"
#include "error.h"
#include "interrupt.h"
#include "vec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More tokens in a pass do not make it faster: weights are re-used by then. */
#define MAX_BATCH 256

struct engine {
	struct model *m;
	struct ndp_attachment *daemon; /* NULL: none */
	struct trace *trace;
	struct ndp_moe_context *moe;
	struct expert_stats stats;
	uint32_t positions; /* most tokens altogether */
	uint32_t batch; /* most tokens in a pass */
	uint32_t pos; /* of the next token */
	struct kv_cache *kv; /* [layers] */
	float *cosines; /* [positions][head_dim / 2] */
	float *sines;
	/* one pass, [batch][...] */
	float *x; /* hidden */
	float *normed; /* hidden */
	float *q; /* heads * head_dim */
	float *attended; /* heads * head_dim */
	float *delta; /* hidden */
	/* one token */
	float *scores; /* positions */
	float *logits; /* vocab */
};

static int alloc_floats(float **p, size_t a, size_t b, struct ndp_error *err)
{
	size_t n;

	if (__builtin_mul_overflow(a, b, &n) || !(*p = calloc(n, sizeof(**p))))
		return fail(err, -ENOMEM, "out of memory: %zu x %zu floats are needed", a, b);
	return 0;
}

static int alloc_buffers(struct engine *e, struct ndp_error *err)
{
	const struct model_config *c = &e->m->config;
	size_t q_cols = (size_t)c->heads * c->head_dim;
	size_t half = c->head_dim / 2;
	const struct {
		float **p;
		size_t rows;
		size_t cols;
	} buffers[] = {
		{ &e->cosines, e->positions, half },
		{ &e->sines, e->positions, half },
		{ &e->x, e->batch, c->hidden },
		{ &e->normed, e->batch, c->hidden },
		{ &e->q, e->batch, q_cols },
		{ &e->attended, e->batch, q_cols },
		{ &e->delta, e->batch, c->hidden },
		{ &e->scores, 1, e->positions },
		{ &e->logits, 1, c->vocab },
	};
	int r = 0;

	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]) && r == 0; i++)
		r = alloc_floats(buffers[i].p, buffers[i].rows, buffers[i].cols, err);
	if (r < 0)
		return r;
	e->kv = calloc(c->layers, sizeof(*e->kv));
	if (!e->kv)
		return fail(err, -ENOMEM, "out of memory");
	for (uint32_t l = 0; l < c->layers && r == 0; l++) {
		size_t kv_cols = (size_t)c->kv_heads * c->head_dim;

		r = alloc_floats(&e->kv[l].k, e->positions, kv_cols, err);
		if (r == 0)
			r = alloc_floats(&e->kv[l].v, e->positions, kv_cols, err);
	}
	return r;
}

static uint32_t smallest(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

int engine_create(struct engine **out, struct model *m, uint32_t positions, struct trace *trace,
		  struct ndp_attachment *daemon, struct ndp_error *err)
{
	const struct model_config *c = &m->config;
	struct engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return fail(err, -ENOMEM, "out of memory");
	e->m = m;
	e->trace = trace;
	e->daemon = daemon;
	e->positions = smallest(positions, c->max_positions);
	e->batch = smallest(MAX_BATCH, e->positions);
	r = alloc_buffers(e, err);
	if (r < 0)
		goto error;
	rope_table(e->cosines, e->sines, e->positions, c->head_dim, c->rope_theta);
	r = ndp_moe_context_create(&e->moe, m->moe, e->batch, err);
	if (r < 0)
		goto error;
	*out = e;
	return 0;

error:
	engine_free(e);
	return r;
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	if (e->moe)
		ndp_moe_context_free(e->moe);
	for (uint32_t l = 0; e->kv && l < e->m->config.layers; l++) {
		free(e->kv[l].k);
		free(e->kv[l].v);
	}
	free(e->kv);
	free(e->logits);
	free(e->scores);
	free(e->delta);
	free(e->attended);
	free(e->q);
	free(e->normed);
	free(e->x);
	free(e->sines);
	free(e->cosines);
	free(e);
}

void engine_reset(struct engine *e)
{
	e->pos = 0;
}

const struct expert_stats *engine_expert_stats(const struct engine *e)
{
	return &e->stats;
}

static void add_report(struct expert_stats *s, const struct ndp_moe_report *r)
{
	for (int d = 0; d < NDP_DOMAINS; d++) {
		struct ndp_domain_report *to = &s->domain[d];
		const struct ndp_domain_report *from = &r->domain[d];

		to->experts += from->experts;
		to->commands += from->commands;
		to->tokens += from->tokens;
		to->bytes += from->bytes;
		to->wall_ns += from->wall_ns;
		to->modelled_ns += from->modelled_ns;
	}
	s->passes++;
	s->wall_ns += r->wall_ns;
	s->route_wall_ns += r->route_wall_ns;
	s->schedule_wall_ns += r->schedule_wall_ns;
	s->reduce_wall_ns += r->reduce_wall_ns;
	s->modelled_ns += r->modelled_ns;
	s->dimm_modelled_ns += r->dimm_modelled_ns;
	s->x_bytes += r->x_bytes;
	s->y_bytes += r->y_bytes;
	s->retries += r->retries;
	s->gpu_lost |= r->gpu_lost;
}

static void norm_rows(struct engine *e, const float *w, uint32_t n)
{
	uint32_t hidden = e->m->config.hidden;

	for (uint32_t t = 0; t < n; t++)
		rms_norm(e->normed + (size_t)t * hidden, e->x + (size_t)t * hidden, w, hidden,
			 e->m->config.rms_eps);
}

/* x += o(attention(norm(x))) for the @n tokens from e->pos on. */
static void attention_block(struct engine *e, uint32_t l, uint32_t n)
{
	const struct model_config *c = &e->m->config;
	const struct model_layer *layer = &e->m->layers[l];
	const struct attention_shape shape = { c->heads, c->kv_heads, c->head_dim };
	size_t q_cols = (size_t)c->heads * c->head_dim;
	size_t kv_cols = (size_t)c->kv_heads * c->head_dim;
	float *k = e->kv[l].k + e->pos * kv_cols;
	float *v = e->kv[l].v + e->pos * kv_cols;

	norm_rows(e, layer->input_norm, n);
	matmul(e->q, layer->q, e->normed, n, q_cols, c->hidden);
	matmul(k, layer->k, e->normed, n, kv_cols, c->hidden);
	matmul(v, layer->v, e->normed, n, kv_cols, c->hidden);
	for (uint32_t t = 0; t < n; t++) {
		size_t angles = (size_t)(e->pos + t) * (c->head_dim / 2);

		rope_apply(e->q + t * q_cols, c->heads, c->head_dim, e->cosines + angles,
			   e->sines + angles);
		rope_apply(k + t * kv_cols, c->kv_heads, c->head_dim, e->cosines + angles,
			   e->sines + angles);
	}
	for (uint32_t t = 0; t < n; t++)
		attend(e->attended + t * q_cols, e->q + t * q_cols, &e->kv[l], e->pos + t, &shape,
		       e->scores);
	matmul(e->delta, layer->o, e->attended, n, c->hidden, q_cols);
	add(e->x, e->delta, (size_t)n * c->hidden);
}

/* x += experts(norm(x)) */
static int expert_block(struct engine *e, uint32_t l, uint32_t n, struct ndp_error *err)
{
	const struct model_config *c = &e->m->config;
	struct ndp_moe_report report;
	int r;

	norm_rows(e, e->m->layers[l].post_norm, n);
	r = ndp_moe_forward(e->moe, l, NDP_REGIME_AUTO, e->normed, c->hidden, n, e->delta,
			    c->hidden, &report, err);
	if (r < 0)
		return r;
	add_report(&e->stats, &report);
	if (e->trace) {
		uint32_t tokens;
		const uint32_t *ids = ndp_moe_last_ids(e->moe, &tokens);

		trace_layer(e->trace, l, ids, tokens * e->m->info.router.top_k);
	}
	add(e->x, e->delta, (size_t)n * c->hidden);
	return e->daemon ? ndp_placement_follow(e->daemon, e->m->moe, e->moe, l, err) : 0;
}

/* The @n tokens, at most a batch, through all layers. */
static int pass(struct engine *e, const uint32_t *tokens, uint32_t n, struct ndp_error *err)
{
	const struct model_config *c = &e->m->config;
	int r;

	for (uint32_t t = 0; t < n; t++)
		memcpy(e->x + (size_t)t * c->hidden,
		       e->m->embedding + (size_t)tokens[t] * c->hidden, c->hidden * sizeof(*e->x));
	for (uint32_t l = 0; l < c->layers; l++) {
		r = interrupt_check(err);
		if (r < 0)
			return r;
		attention_block(e, l, n);
		r = expert_block(e, l, n, err);
		if (r < 0)
			return r;
	}
	if (e->trace)
		trace_next_step(e->trace);
	e->pos += n;
	return 0;
}

static int last_logits(struct engine *e, uint32_t row, struct ndp_error *err)
{
	const struct model_config *c = &e->m->config;

	rms_norm(e->normed, e->x + (size_t)row * c->hidden, e->m->final_norm, c->hidden,
		 c->rms_eps);
	matmul(e->logits, e->m->output, e->normed, 1, c->vocab, c->hidden);
	for (uint32_t i = 0; i < c->vocab; i++)
		if (!isfinite(e->logits[i]))
			return fail(err, -EIO,
				    "the logit of token %u at position %u is not finite: "
				    "the weights or a DIMM's results are broken",
				    i, e->pos - 1);
	return 0;
}

int engine_feed(struct engine *e, const uint32_t *tokens, uint32_t n, const float **logits,
		struct ndp_error *err)
{
	const struct model_config *c = &e->m->config;
	uint32_t count = 0;
	int r;

	if (n == 0 || n > e->positions - e->pos)
		return fail(err, -EINVAL, "%u tokens after %u are not 1 to %u in all", n, e->pos,
			    e->positions);
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] >= c->vocab)
			return fail(err, -EINVAL, "token %u is outside of the vocabulary of %u",
				    tokens[i], c->vocab);
	for (uint32_t i = 0; i < n; i += count) {
		count = smallest(n - i, e->batch);
		r = pass(e, tokens + i, count, err);
		if (r < 0)
			return r;
	}
	r = last_logits(e, count - 1, err);
	if (r < 0)
		return r;
	*logits = e->logits;
	return 0;
}
