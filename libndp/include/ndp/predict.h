/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * predict.h - how many tokens each expert of a layer will get in the next step.
 *
 * Pure functions: no I/O, no clock, no allocation, no global state; equal input
 * gives equal predictions on every run.  The caller gives the memory, sized by
 * ndp_predict_bytes() and aligned for any type; different threads use different
 * memory.
 *
 * The method.  Of every expert's share of its layer's selections five averages
 * are kept: the last value, exponential ones with rates 0.3, 0.1 and 0.03, and
 * the long-run mean (the profile).  Their best combination, by weighted least
 * squares on what really came, is learned while running: for each layer, and
 * apart for the experts above and below one and a half times the mean load,
 * whose noise differs, and for those whose last value is further above or below
 * their recent mean than the noise of counting explains: where loads do shift,
 * these learn to follow the last value at once.  What all layers of a model
 * learned in the last few steps counts as well, so that a drift of the traffic is
 * noticed in one or two steps.
 */
#ifndef NDP_PREDICT_H
#define NDP_PREDICT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	NDP_PREDICT_MAX_LAYERS = 1024,
	NDP_PREDICT_MAX_EXPERTS = 4096,
};

struct ndp_predictor;

/* Of all layers together; 0: no layers or experts, or more than the limits. */
size_t ndp_predict_bytes(uint32_t layers, uint32_t experts);

/* Knows nothing yet: predicts equal shares.  @mem: ndp_predict_bytes() of it. */
struct ndp_predictor *ndp_predict_init(void *mem, uint32_t layers, uint32_t experts);

/*
 * What is known of @layer from @steps earlier steps: selections in all of them
 * by expert.  Call it before the layer's first update.  Nothing happens if all
 * are zero.
 */
void ndp_predict_profile(struct ndp_predictor *p, uint32_t layer, const uint64_t *counts,
			 uint32_t steps);

/*
 * A step of @layer is over: @tokens [experts] were selected.  Layers come in the
 * order in which a step runs them, or not at all.  A layer without any tokens
 * teaches nothing and changes nothing.
 */
void ndp_predict_update(struct ndp_predictor *p, uint32_t layer, const uint32_t *tokens);

/*
 * [experts] each one's expected share of the layer's next selections, not
 * negative; they sum to 1.  Valid until the layer's next update.
 */
const float *ndp_predict_shares(const struct ndp_predictor *p, uint32_t layer);

/*
 * The baseline (TriMoE, arXiv 2603.01058, with alpha 0.3; four bytes an expert):
 * ema += alpha (tokens - ema).  An alpha of 1 gives the last value.
 */
void ndp_ema_update(float *ema, uint32_t experts, float alpha, const uint32_t *tokens);

/* ---- classes and scores ------------------------------------------------ */

/* The most loaded 5 % of the experts are hot, the next 25 % warm, the others cold. */
enum ndp_class {
	NDP_CLASS_COLD,
	NDP_CLASS_WARM,
	NDP_CLASS_HOT,
	NDP_CLASSES,
};

/* Rounded to the nearest, at least one. */
uint32_t ndp_class_hot(uint32_t experts);
/* Rounded to the nearest. */
uint32_t ndp_class_warm(uint32_t experts);

/* Memory that ndp_load_classes() works in, as large as this. */
size_t ndp_load_classes_bytes(uint32_t experts);

/*
 * Classes by rank of @loads.  Equal loads are ranked at random: @seed (not 0) is
 * the state of the random numbers and moves on.
 */
void ndp_load_classes(const float *loads, uint32_t experts, uint64_t *seed, void *work,
		      uint8_t *classes);

/* How good predicted classes were; each is a fraction, summed over @steps. */
struct ndp_score {
	double accuracy;	/* experts whose class was right */
	double hot_recall;	/* hot experts that were predicted to be hot */
	double coverage;	/* selections that went to experts predicted to be hot */
	uint64_t steps;
};

/* Adds one layer of one step.  Without tokens there is nothing to score. */
void ndp_score_add(struct ndp_score *score, const uint8_t *predicted, const uint8_t *actual,
		   const uint32_t *tokens, uint32_t experts);

/* What predicting at random scores on average. */
void ndp_score_chance(struct ndp_score *score, uint32_t experts);

#ifdef __cplusplus
}
#endif

#endif
