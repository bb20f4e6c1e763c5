/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * router.c - see ndp/router.h.
 *
 * The rules are the published ones: softmax over all experts, then TopK (Mixtral,
 * arXiv 2401.04088; Qwen, OLMoE arXiv 2409.02060), groups by their best expert
 * (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), sigmoid scores with a bias that
 * selects only and groups by their best two (DeepSeek-V3, arXiv 2412.19437, section
 * 2.1.2).  Experts outside of the groups kept are masked with minus infinity, so
 * a negative biased score of a kept one still wins.
 *
 * Selection works on integer keys that order as (score, lower id first); a NaN has
 * the lowest key.  A renormalised softmax is computed from the selected logits
 * alone, so it cannot underflow to a sum of zero.
 */
#include "../error.h"

#include <errno.h>
#include <math.h>
#include <ndp/router.h>
#include <string.h>

#define MAX_EXPERTS 65535u
#define HOT static inline __attribute__((always_inline))
/* Beyond this a sorted list of the best so far is slower than a heap. */
#define MAX_SORTED 48u

int ndp_router_check(const struct ndp_router *r, struct ndp_error *err)
{
	const uint32_t groups = r->groups ? r->groups : 1;
	const uint32_t keep = r->groups ? r->keep_groups : 1;

	if (r->experts < 1 || r->experts > MAX_EXPERTS)
		return ndpi_fail(err, -EINVAL, "router.experts is %u: wanted 1 to %u", r->experts,
				 MAX_EXPERTS);
	if (r->scoring != NDP_SCORE_SOFTMAX && r->scoring != NDP_SCORE_SIGMOID)
		return ndpi_fail(err, -EINVAL, "router.scoring is %d: wanted softmax or sigmoid",
				 (int)r->scoring);
	if (r->experts % groups)
		return ndpi_fail(err, -EINVAL, "router.groups is %u, which does not divide %u "
				 "experts", groups, r->experts);
	if (keep < 1 || keep > groups)
		return ndpi_fail(err, -EINVAL, "router.keep_groups is %u: wanted 1 to %u", keep,
				 groups);
	if (groups > 1 && r->group_score != NDP_GROUP_MAX && r->group_score != NDP_GROUP_TOP2_SUM)
		return ndpi_fail(err, -EINVAL, "router.group_score is %d: wanted max or the sum of "
				 "the best two", (int)r->group_score);
	if (r->top_k < 1 || r->top_k > r->experts / groups * keep)
		return ndpi_fail(err, -EINVAL, "router.top_k is %u: wanted 1 to %u, the experts of "
				 "the groups kept", r->top_k, r->experts / groups * keep);
	if (!isfinite(r->scale))
		return ndpi_fail(err, -EINVAL, "router.scale is not a number");
	return 0;
}

/* scores, then what the selection goes by, then keys (or a heap of them) and groups */
struct work {
	float *score;
	float *choice;
	uint64_t *keys;
	float *groups;
	uint64_t *group_keys;
};

static size_t padded(size_t n)
{
	return (n + 15) / 16 * 16;
}

size_t ndp_route_bytes(const struct ndp_router *r)
{
	const size_t e = padded(r->experts), g = padded(r->groups ? r->groups : 1);

	return e * 2 * sizeof(float) + e * sizeof(uint64_t) + g * sizeof(float) +
	       g * sizeof(uint64_t) + 64;
}

static struct work carve(const struct ndp_router *r, void *mem)
{
	const size_t e = padded(r->experts), g = padded(r->groups ? r->groups : 1);
	char *p = (char *)(((uintptr_t)mem + 63) & ~(uintptr_t)63);
	struct work w;

	w.keys = (uint64_t *)p;
	w.group_keys = w.keys + e;
	w.score = (float *)(w.group_keys + g);
	w.choice = w.score + e;
	w.groups = w.choice + e;
	return w;
}

/* ---- scores ------------------------------------------------------------ */

/*
 * e^x for x <= 0 or so, without a branch, so that loops over it are vectorised:
 * 2^n e^r with |r| <= ln 2 / 2, e^r by its Taylor series up to r^7 (what is left
 * out is below 2^-26).  Off by at most 2 units in the last place; 0 below -103,
 * where subnormals end.
 */
HOT float exp_of(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
	float at = x > -104.0f ? x : -104.0f; /* also when it is no number */
	float n, r, p, half, rest;
	int32_t bits, e, h;

	at = at < 88.0f ? at : 88.0f;
	n = at * 1.44269504f + magic;
	memcpy(&bits, &n, sizeof(bits));
	e = bits - 0x4b400000;
	n -= magic;
	r = at - n * 0.693359375f;
	r += n * 2.12194440e-4f;
	p = 1.0f / 5040;
	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r * r + r + 1.0f;
	/* In two steps, for 2^e may be subnormal. */
	h = e >> 1;
	bits = (h + 127) << 23;
	memcpy(&half, &bits, sizeof(half));
	bits = (e - h + 127) << 23;
	memcpy(&rest, &bits, sizeof(rest));
	p = p * half * rest;
	return x != x ? x : p;
}

/* The largest; of nothing but NaN minus infinity. */
HOT float largest(const float *v, uint32_t n)
{
	float most = -INFINITY;

	for (uint32_t i = 0; i < n; i++)
		most = v[i] > most ? v[i] : most;
	return most;
}

/* Where a logit is infinite the differences are not numbers: it has all, or shares it. */
static void infinite_softmax(const float *logits, uint32_t n, float most, float *score)
{
	uint32_t equal = 0;

	for (uint32_t i = 0; i < n; i++)
		equal += logits[i] == most;
	for (uint32_t i = 0; i < n; i++)
		score[i] = logits[i] != logits[i] ? logits[i] :
			   logits[i] == most ? 1.0f / (float)equal : 0;
}

HOT void softmax(const float *logits, uint32_t n, float *score)
{
	const float most = largest(logits, n);
	float sum = 0;

	if (isinf(most)) {
		infinite_softmax(logits, n, most, score);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		score[i] = exp_of(logits[i] - most);
	for (uint32_t i = 0; i < n; i++)
		sum += score[i] == score[i] ? score[i] : 0;
	for (uint32_t i = 0; i < n; i++)
		score[i] /= sum;
}

/* By e^-|x|, which never overflows; small scores keep their digits. */
HOT void sigmoid(const float *logits, uint32_t n, float *score)
{
	for (uint32_t i = 0; i < n; i++) {
		const float e = exp_of(-fabsf(logits[i]));

		score[i] = (logits[i] >= 0 ? 1.0f : e) / (1.0f + e);
	}
}

/* ---- selection ----------------------------------------------------------- */

/* Orders as floats do, -0 as 0, NaN below everything. */
HOT uint32_t ordered(float f)
{
	uint32_t u;

	f += 0.0f;
	memcpy(&u, &f, sizeof(u));
	u ^= (uint32_t)((int32_t)u >> 31) | 0x80000000u;
	return f == f ? u : 0;
}

HOT void make_keys(const float *v, uint32_t n, uint64_t *keys)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = (uint64_t)ordered(v[i]) << 32 | (uint32_t)~i;
}

static void sift_down(uint64_t *heap, uint32_t n, uint32_t at)
{
	const uint64_t key = heap[at];

	for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
		if (child + 1 < n && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= key)
			break;
		heap[at] = heap[child];
	}
	heap[at] = key;
}

/* The @k largest of @keys into its first places, falling. */
static void best_by_heap(uint64_t *keys, uint32_t n, uint32_t k)
{
	for (uint32_t i = k / 2; i--;)
		sift_down(keys, k, i);
	for (uint32_t i = k; i < n; i++) {
		if (keys[i] <= keys[0])
			continue;
		keys[0] = keys[i];
		sift_down(keys, k, 0);
	}
	for (uint32_t left = k; left > 1;) {
		const uint64_t least = keys[0];

		keys[0] = keys[--left];
		keys[left] = least;
		sift_down(keys, left, 0);
	}
}

/* As above, for few: most keys are compared with the worst of them and left alone. */
static void best_by_list(uint64_t *keys, uint32_t n, uint32_t k)
{
	for (uint32_t i = 1; i < n; i++) {
		const uint64_t key = keys[i];
		uint32_t at = i < k ? i : k;

		if (at == k) {
			if (key <= keys[k - 1])
				continue;
			at = k - 1;
		}
		for (; at && keys[at - 1] < key; at--)
			keys[at] = keys[at - 1];
		keys[at] = key;
	}
}

static void best(uint64_t *keys, uint32_t n, uint32_t k)
{
	if (k <= MAX_SORTED)
		best_by_list(keys, n, k);
	else
		best_by_heap(keys, n, k);
}

static float group_score(const float *choice, uint32_t n, enum ndp_group_score how)
{
	float first = -INFINITY, second = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		const float v = choice[i];

		if (v > first) {
			second = first;
			first = v;
		} else if (v > second) {
			second = v;
		}
	}
	return how == NDP_GROUP_MAX || n < 2 ? first : first + second;
}

/* Experts of groups that are not kept get a choice of minus infinity, and are not candidates. */
static uint32_t keep_groups(const struct ndp_router *r, struct work *w)
{
	const uint32_t size = r->experts / r->groups;
	uint32_t n = 0;

	for (uint32_t g = 0; g < r->groups; g++)
		w->groups[g] = group_score(w->choice + g * size, size, r->group_score);
	make_keys(w->groups, r->groups, w->group_keys);
	best(w->group_keys, r->groups, r->keep_groups);
	for (uint32_t i = 0; i < r->keep_groups; i++) {
		const uint32_t first = (uint32_t)~w->group_keys[i] * size;

		for (uint32_t e = first; e < first + size; e++)
			w->keys[n++] = (uint64_t)ordered(w->choice[e]) << 32 | (uint32_t)~e;
	}
	return n;
}

/* ---- weights ------------------------------------------------------------- */

static void equal_weights(uint32_t k, float scale, float *weights)
{
	for (uint32_t j = 0; j < k; j++)
		weights[j] = scale / (float)k;
}

/* Of the selected logits alone: the same quotients, and the largest is 1 before the sum. */
static void renormalized_softmax(const float *logits, const uint32_t *ids, uint32_t k, float scale,
				 float *weights)
{
	float most = -INFINITY, sum = 0;

	for (uint32_t j = 0; j < k; j++)
		most = logits[ids[j]] > most ? logits[ids[j]] : most;
	for (uint32_t j = 0; j < k; j++) {
		const float l = logits[ids[j]];

		weights[j] = l != l ? 0 : isinf(most) ? l == most : exp_of(l - most);
		sum += weights[j];
	}
	if (!(sum > 0)) {
		equal_weights(k, scale, weights);
		return;
	}
	for (uint32_t j = 0; j < k; j++)
		weights[j] = weights[j] / sum * scale;
}

static void weigh(const struct ndp_router *r, const float *logits, const float *score,
		  const uint32_t *ids, float *weights)
{
	float sum = 0;

	if (r->renormalize && r->scoring == NDP_SCORE_SOFTMAX) {
		renormalized_softmax(logits, ids, r->top_k, r->scale, weights);
		return;
	}
	for (uint32_t j = 0; j < r->top_k; j++) {
		const float s = score[ids[j]];

		weights[j] = s == s ? s : 0;
		sum += weights[j];
	}
	if (r->renormalize && !(sum > 0)) {
		equal_weights(r->top_k, r->scale, weights);
		return;
	}
	for (uint32_t j = 0; j < r->top_k; j++)
		weights[j] = (r->renormalize ? weights[j] / sum : weights[j]) * r->scale;
}

HOT void route(const struct ndp_router *r, const float *logits, const float *bias, uint32_t tokens,
	       uint32_t *ids, float *weights, void *mem)
{
	struct work w = carve(r, mem);
	const uint32_t n = r->experts;

	for (uint32_t t = 0; t < tokens; t++, logits += n, ids += r->top_k, weights += r->top_k) {
		const float *choice = w.score;
		uint32_t candidates = n;

		if (r->scoring == NDP_SCORE_SOFTMAX)
			softmax(logits, n, w.score);
		else
			sigmoid(logits, n, w.score);
		if (bias) {
			for (uint32_t e = 0; e < n; e++)
				w.choice[e] = w.score[e] + bias[e];
			choice = w.choice;
		} else if (r->scoring == NDP_SCORE_SOFTMAX) {
			/* The same order, and none that underflow made equal. */
			choice = logits;
		}
		if (r->groups > 1) {
			if (choice != w.choice)
				memcpy(w.choice, bias ? choice : w.score, n * sizeof(*choice));
			candidates = keep_groups(r, &w);
		} else {
			make_keys(choice, n, w.keys);
		}
		best(w.keys, candidates, r->top_k);
		for (uint32_t j = 0; j < r->top_k; j++)
			ids[j] = (uint32_t)~w.keys[j];
		weigh(r, logits, w.score, ids, weights);
	}
}

__attribute__((target("avx2,fma")))
static void route_avx2(const struct ndp_router *r, const float *logits, const float *bias,
		       uint32_t tokens, uint32_t *ids, float *weights, void *mem)
{
	route(r, logits, bias, tokens, ids, weights, mem);
}

static void route_plain(const struct ndp_router *r, const float *logits, const float *bias,
			uint32_t tokens, uint32_t *ids, float *weights, void *mem)
{
	route(r, logits, bias, tokens, ids, weights, mem);
}

void ndp_route(const struct ndp_router *r, const float *logits, const float *bias,
	       uint32_t tokens, uint32_t *ids, float *weights, void *work)
{
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		route_avx2(r, logits, bias, tokens, ids, weights, work);
	else
		route_plain(r, logits, bias, tokens, ids, weights, work);
}
