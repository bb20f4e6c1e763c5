// SPDX-License-Identifier: GPL-2.0-or-later
/* scores.c - see scores.h. */
#include "scores.h"
#include "source.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <stdlib.h>

const char *rival_name(enum rival rival)
{
	static const char *const names[] = {
		[RIVAL_OURS] = "ours",
		[RIVAL_EMA] = "ema-0.3",
		[RIVAL_LAST] = "last-value",
		[RIVAL_MEAN] = "mean-so-far",
	};

	return names[rival];
}

int scores_init(struct scores *s, uint32_t layers, uint32_t experts, uint64_t seed,
		struct ndp_error *err)
{
	const size_t bytes = ndp_predict_bytes(layers, experts);
	bool whole = true;

	*s = (struct scores){ .layers = layers, .experts = experts, .seed = random_state(seed) };
	if (!bytes)
		return fail(err, -EINVAL, "%u layers of %u experts are more than the predictor's "
			    "%d and %d", layers, experts, NDP_PREDICT_MAX_LAYERS,
			    NDP_PREDICT_MAX_EXPERTS);
	s->memory = malloc(bytes);
	s->seen = calloc(layers, sizeof(*s->seen));
	s->work = malloc(ndp_load_classes_bytes(experts));
	s->actual = calloc(experts, 1);
	s->predicted = calloc(experts, 1);
	s->now = calloc(experts, sizeof(*s->now));
	for (int k = RIVAL_OURS + 1; k < RIVALS; k++) {
		s->loads[k] = calloc((size_t)layers * experts, sizeof(float));
		whole &= s->loads[k] != NULL;
	}
	if (!s->memory || !s->seen || !s->work || !s->actual || !s->predicted || !s->now || !whole)
		return fail(err, -ENOMEM, "out of memory");
	s->predictor = ndp_predict_init(s->memory, layers, experts);
	return 0;
}

void scores_free(struct scores *s)
{
	free(s->memory);
	free(s->seen);
	free(s->work);
	free(s->actual);
	free(s->predicted);
	free(s->now);
	for (int k = 0; k < RIVALS; k++)
		free(s->loads[k]);
}

static const float *prediction(const struct scores *s, enum rival rival, uint32_t layer)
{
	return rival == RIVAL_OURS ? ndp_predict_shares(s->predictor, layer) :
	       s->loads[rival] + (size_t)layer * s->experts;
}

void scores_step(struct scores *s, uint32_t layer, const uint32_t *tokens, bool score)
{
	const size_t at = (size_t)layer * s->experts;
	float alpha[RIVALS] = { [RIVAL_EMA] = 0.3f, [RIVAL_LAST] = 1 };

	/* Nothing has been predicted before the first step. */
	if (s->seen[layer] && score) {
		for (uint32_t e = 0; e < s->experts; e++)
			s->now[e] = tokens[e];
		ndp_load_classes(s->now, s->experts, &s->seed, s->work, s->actual);
		for (int k = 0; k < RIVALS; k++) {
			ndp_load_classes(prediction(s, k, layer), s->experts, &s->seed, s->work,
					 s->predicted);
			ndp_score_add(&s->score[k], s->predicted, s->actual, tokens, s->experts);
		}
	}
	s->seen[layer]++;
	alpha[RIVAL_MEAN] = 1.0f / s->seen[layer];
	for (int k = RIVAL_EMA; k < RIVALS; k++)
		ndp_ema_update(s->loads[k] + at, s->experts, alpha[k], tokens);
	ndp_predict_update(s->predictor, layer, tokens);
}
