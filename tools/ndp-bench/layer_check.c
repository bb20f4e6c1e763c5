// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer_check.c - a layer in FP64, and how far the pipeline may be off.
 *
 * With h an expert's hidden values, rounded to BF16, an output is a sum of terms
 * down[i] h[i].  FP32 sums differ from FP64 ones by up to 1e-5 of the terms' sizes, and
 * where such a difference moves a hidden value over the middle of two BF16 values it is
 * rounded the other way, which is 2^-8 of its term: the bound allows for four of the
 * largest term's size.  Weights may be off by 2^-18, sums over experts by 2^-20 of
 * their terms.  (The bound is that of the library's unit tests.)  A neuron block that is
 * left out, or counted twice, is off by far more.
 */
#include "layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct work {
	ndp_bf16 *gate, *up, *down;	/* of a block */
	double *sum, *all, *largest;	/* [hidden] */
	double *want, *bound;
	ndp_bf16 *x;
};

static void *must(size_t bytes)
{
	void *p = malloc(bytes);

	if (!p)
		bench_die("out of memory");
	return p;
}

static void work_make(struct work *w, const struct layer_experts *e)
{
	const size_t h = e->info.hidden, in = e->info.routed.h_in;

	w->gate = must(NDP_BLOCK_ROWS * in * 2);
	w->up = must(NDP_BLOCK_ROWS * in * 2);
	w->down = must(NDP_BLOCK_ROWS * h * 2);
	w->sum = must(5 * h * sizeof(double));
	w->all = w->sum + h;
	w->largest = w->all + h;
	w->want = w->largest + h;
	w->bound = w->want + h;
	w->x = must(in * 2);
}

static void work_free(struct work *w)
{
	free(w->gate);
	free(w->up);
	free(w->down);
	free(w->sum);
	free(w->x);
}

static double dot_bf16(const ndp_bf16 *a, const ndp_bf16 *b, uint32_t n)
{
	double s = 0;

	for (uint32_t i = 0; i < n; i++)
		s += (double)ndp_bf16_to_f32(a[i]) * ndp_bf16_to_f32(b[i]);
	return s;
}

static double dot(const float *a, const float *b, uint32_t n)
{
	double s = 0;

	for (uint32_t i = 0; i < n; i++)
		s += (double)a[i] * b[i];
	return s;
}

static double activate(const struct ndp_model_info *m, double g, double u)
{
	if (m->act == NDP_ACT_SILU_MUL)
		return g / (1 + exp(-g)) * u;
	g = fmin(g, m->limit);
	u = fmax(fmin(u, m->limit), -m->limit);
	return g / (1 + exp(-m->alpha * g)) * (u + 1);
}

static void add_block(struct work *w, const struct layer_experts *e, uint32_t expert, uint32_t b)
{
	const struct ndp_expert_shape *s = layer_shape(e, expert);
	const uint32_t left = s->neurons - b * NDP_BLOCK_ROWS;
	const uint32_t n = left < NDP_BLOCK_ROWS ? left : NDP_BLOCK_ROWS;
	const char *blocks = e->blocks[expert];
	struct ndp_expert_shape one = *s;
	double h[NDP_BLOCK_ROWS];

	one.neurons = n; /* so that down is [h_out][n] */
	ndp_expert_unpack_block(blocks + b * ndp_expert_block_bytes(s), &one, 0, w->gate, w->up,
				s->h_in, w->down, n);
	for (uint32_t i = 0; i < n; i++)
		h[i] = ndp_bf16_to_f32(ndp_bf16_from_f32((float)activate(&e->info,
			dot_bf16(w->gate + i * s->h_in, w->x, s->h_in),
			dot_bf16(w->up + i * s->h_in, w->x, s->h_in))));
	for (uint32_t j = 0; j < s->h_out; j++)
		for (uint32_t i = 0; i < n; i++) {
			const double t = h[i] * ndp_bf16_to_f32(w->down[j * n + i]);

			w->sum[j] += t;
			w->all[j] += fabs(t);
			w->largest[j] = fmax(w->largest[j], fabs(t));
		}
}

static void add_expert(struct work *w, const struct layer_experts *e, uint32_t expert,
		       double weight)
{
	const uint32_t h = e->info.hidden;

	memset(w->sum, 0, 3 * h * sizeof(double));
	for (uint32_t b = 0; b < ndp_expert_blocks(layer_shape(e, expert)); b++)
		add_block(w, e, expert, b);
	for (uint32_t j = 0; e->down_bias && expert < e->info.router.experts && j < h; j++)
		w->sum[j] += e->down_bias[(size_t)expert * h + j];
	for (uint32_t j = 0; j < h; j++) {
		const double tolerance = w->all[j] * 1e-5 + w->largest[j] * 4 / 256;

		w->want[j] += weight * w->sum[j];
		w->bound[j] += fabs(weight) * (tolerance + (fabs(w->sum[j]) + tolerance) *
					       (0x1p-18 + 0x1p-20));
	}
}

/* By the router's rule; of models whose experts are in groups the choice is not checked. */
static void weigh(const struct layer_experts *e, const float *x, const uint32_t *ids,
		  double *weights)
{
	const struct ndp_router *r = &e->info.router;
	double score[r->experts], choice[r->experts], sum = 0, most = -INFINITY, least = INFINITY;

	for (uint32_t i = 0; i < r->experts; i++) {
		score[i] = dot(e->router + (size_t)i * e->info.hidden, x, e->info.hidden) +
			   (e->router_bias ? e->router_bias[i] : 0);
		most = fmax(most, score[i]);
	}
	for (uint32_t i = 0; i < r->experts; i++) {
		score[i] = r->scoring == NDP_SCORE_SOFTMAX ? exp(score[i] - most) :
							     1 / (1 + exp(-score[i]));
		sum += score[i];
	}
	for (uint32_t i = 0; i < r->experts; i++) {
		if (r->scoring == NDP_SCORE_SOFTMAX)
			score[i] /= sum;
		choice[i] = score[i] + (e->selection ? e->selection[i] : 0);
	}
	sum = 0;
	for (uint32_t j = 0; j < r->top_k; j++) {
		weights[j] = score[ids[j]];
		sum += weights[j];
		least = fmin(least, choice[ids[j]]);
		choice[ids[j]] = -INFINITY;
	}
	for (uint32_t i = 0; i < r->experts && r->groups < 2; i++)
		if (choice[i] > least + 1e-5)
			bench_die("the router left out expert %u, which is better than those it "
				  "chose",
				  i);
	for (uint32_t j = 0; j < r->top_k; j++)
		weights[j] = (r->renormalize ? weights[j] / sum : weights[j]) * r->scale;
}

static double check_token(struct work *w, const struct layer_experts *e, const float *x,
			  const uint32_t *ids, const float *out)
{
	const uint32_t h = e->info.hidden, k = e->info.router.top_k;
	double weights[k], worst = 0;

	for (uint32_t j = 0; j < h; j++) {
		w->want[j] = 0;
		w->bound[j] = 1e-30;
	}
	ndp_bf16_from_f32_array(w->x, x, h);
	if (e->info.expert_bias)
		w->x[h] = 0x3f80; /* one: the biases of gate and up are a column */
	weigh(e, x, ids, weights);
	for (uint32_t j = 0; j < k; j++)
		add_expert(w, e, ids[j], weights[j]);
	if (e->info.shared.neurons)
		add_expert(w, e, e->info.router.experts, !e->shared_gate ? 1 :
			   1 / (1 + exp(-dot(e->shared_gate, x, h))));
	for (uint32_t j = 0; j < h; j++) {
		const double error = fabs(out[j] - w->want[j]) / w->bound[j];

		worst = error <= worst ? worst : error; /* NaN stays */
		if (isnan(error))
			return INFINITY;
	}
	return worst;
}

double layer_check(const struct layer_experts *e, const struct layer_input *in,
		   const uint32_t *ids, const float *out, uint32_t sample)
{
	const uint32_t n = in->tokens < sample ? in->tokens : sample;
	double worst = 0;
	struct work w;

	work_make(&w, e);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t t = (uint32_t)((uint64_t)i * in->tokens / n);

		worst = fmax(worst, check_token(&w, e, in->x + (size_t)t * e->info.hidden,
						ids + (size_t)t * in->k,
						out + (size_t)t * e->info.hidden));
	}
	work_free(&w);
	return worst;
}
