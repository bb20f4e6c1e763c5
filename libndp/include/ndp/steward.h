/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * steward.h - a predictor and a placement engine working together: loads of layers
 * go in, actions come out.  What ndpd runs, and what ndp-replay runs on recorded loads,
 * so that both decide alike.
 *
 * As ndp/predict.h and ndp/place.h: pure, driven by the time that the caller gives,
 * in memory that the caller gives; equal calls give equal actions.
 */
#ifndef NDP_STEWARD_H
#define NDP_STEWARD_H

#include <ndp/place.h>
#include <ndp/predict.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_steward;

struct ndp_steward_options {
	struct ndp_place_options place;
	/*
	 * A layer is decided on at every @first_every-th of its first @first steps, at
	 * every @every-th later on.
	 */
	uint32_t first;		/* 64 */
	uint32_t first_every;	/* 4 */
	uint32_t every;		/* 64 */
};

void ndp_steward_defaults(struct ndp_steward_options *options, const struct ndp_host *host);

size_t ndp_steward_bytes(uint32_t layers, uint32_t experts, uint32_t nr_dimms);
/* As ndp_place_init(). */
int ndp_steward_init(void *mem, const struct ndp_host *host, const struct ndp_shape *shape,
		     uint32_t layers, const struct ndp_steward_options *options,
		     const uint16_t *blocks, const uint8_t *on_gpu, struct ndp_steward **steward,
		     struct ndp_error *err);

/*
 * A step of @layer is over, with @tokens [experts].  Learns, and when the layer's turn
 * has come decides: writes up to @max actions, which count as started, and returns
 * their number.
 */
uint32_t ndp_steward_step(struct ndp_steward *s, uint32_t layer, const uint32_t *tokens,
			  double now_ns, struct ndp_place_action *actions, uint32_t max);

/* For ndp_place_done(), ndp_place_blocks(), ndp_place_copies(), ... */
struct ndp_placer *ndp_steward_placer(struct ndp_steward *s);
const struct ndp_predictor *ndp_steward_predictor(const struct ndp_steward *s);

/*
 * Of the last step's tokens of @layer, the share that experts in GPU memory got, and,
 * of the first of every eight steps, the share that the same number of the step's
 * busiest experts got: how good the hot set was, and how good it could have been.
 */
void ndp_steward_coverage(const struct ndp_steward *s, uint32_t layer, double *covered,
			  double *best);

/*
 * Of a layer's tokens in the first of every eight steps, the share that the experts got
 * that had been predicted to be hot (the most loaded 5 %), and the share that the hottest really got.
 */
void ndp_steward_prediction(const struct ndp_steward *s, uint32_t layer, double *predicted,
			    double *hottest);

#ifdef __cplusplus
}
#endif

#endif
