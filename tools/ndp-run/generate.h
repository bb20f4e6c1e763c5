/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * generate.h - one prompt: fed, continued, timed.
 */
#ifndef NDP_RUN_GENERATE_H
#define NDP_RUN_GENERATE_H

#include "engine.h"
#include "sampler.h"

struct generation {
	uint32_t *tokens;
	uint32_t nr_tokens;
	uint64_t prompt_wall_ns; /* for the whole prompt */
	uint64_t decode_wall_ns; /* for all of decode_steps */
	uint32_t decode_steps; /* tokens that were fed one by one */
};

enum generate_next {
	GENERATE_ON,
	GENERATE_END, /* with this token */
	GENERATE_END_BEFORE, /* this token is none of the text */
};

/*
 * Sees each token as it is chosen, with the logits it was chosen from.  Returns
 * an enum generate_next or -errno.
 */
typedef int (*generate_observer)(void *arg, uint32_t step, const float *logits, uint32_t token,
				 struct ndp_error *err);

/*
 * Feeds @prompt to an engine that is reset first and generates @max tokens, or
 * fewer when the observer ends it.  g->tokens is to be freed, whatever is
 * returned.
 */
int generate(struct generation *g, struct engine *e, const struct model_config *c,
	     struct sampler *s, const uint32_t *prompt, uint32_t nr_prompt, uint32_t max,
	     generate_observer observe, void *arg, struct ndp_error *err);

/* Wall clock, for differences. */
uint64_t wall_ns(void);

#endif
