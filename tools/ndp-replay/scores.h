/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * scores.h - how well the next step's loads are predicted: our predictor beside
 * simple ones and beside chance.
 */
#ifndef NDP_REPLAY_SCORES_H
#define NDP_REPLAY_SCORES_H

#include <ndp/predict.h>
#include <ndp/error.h>
#include <stdbool.h>

enum rival {
	RIVAL_OURS,
	RIVAL_EMA,		/* alpha 0.3, as TriMoE */
	RIVAL_LAST,
	RIVAL_MEAN,		/* of all steps so far */
	RIVALS,
};

const char *rival_name(enum rival rival);

struct scores {
	uint32_t layers, experts;
	void *memory;
	struct ndp_predictor *predictor;
	float *loads[RIVALS];	/* [layers][experts]; not of RIVAL_OURS */
	uint32_t *seen;		/* [layers]: steps */
	void *work;
	uint8_t *actual, *predicted;	/* [experts] */
	float *now;		/* [experts] */
	uint64_t seed;
	struct ndp_score score[RIVALS];
};

int scores_init(struct scores *s, uint32_t layers, uint32_t experts, uint64_t seed,
		struct ndp_error *err);
void scores_free(struct scores *s);

/* @layer has run: with @score scores what was predicted for it, then learns. */
void scores_step(struct scores *s, uint32_t layer, const uint32_t *tokens, bool score);

/* [experts] what the predictor expects of the layer's next selections. */
static inline const float *scores_shares(const struct scores *s, uint32_t layer)
{
	return ndp_predict_shares(s->predictor, layer);
}

#endif
