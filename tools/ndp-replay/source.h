/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * source.h - where the loads of experts come from: a recorded trace, a histogram
 * that tokens are drawn from, or made-up popularity.
 *
 * Steps come one after the other; equal input and seed give equal steps.
 */
#ifndef NDP_REPLAY_SOURCE_H
#define NDP_REPLAY_SOURCE_H

#include <ndp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the model allows, and what the user wants. */
struct source_limits {
	uint32_t experts;
	uint32_t layers;	/* layer numbers are below */
	uint32_t top_k;
	uint32_t batch;		/* tokens of a step; 0: as recorded */
	uint32_t steps;		/* at most; 0: as many as there are, or 200 drawn ones */
};

struct source {
	uint32_t nr_layers;
	uint32_t *layer_numbers;	/* [nr_layers], ascending */
	uint32_t experts;
	uint64_t recorded_steps;	/* in the file */
	uint64_t merged;		/* recorded steps that make one, on the mean times 1000 */
	uint64_t left_over;		/* recorded steps at the end, too few for a whole one */
	char text[200];			/* says what it is */
	int (*next)(struct source *s, uint32_t *counts, struct ndp_error *err);
	void (*close)(struct source *s);
};

/*
 * Fills @counts [nr_layers][experts] and returns 1; 0: no step is left; or an error.
 */
static inline int source_next(struct source *s, uint32_t *counts, struct ndp_error *err)
{
	return s->next(s, counts, err);
}

static inline void source_close(struct source *s)
{
	if (s)
		s->close(s);
}

/*
 * "step,layer,expert,count" or, for a histogram, "layer,expert,count", plain or
 * gzip.  Errors name file and line.  A histogram's steps are drawn with @seed.
 */
int source_open_file(struct source **s, const char *path, const struct source_limits *limits,
		     uint64_t seed, struct ndp_error *err);

/*
 * "top5=0.40,next25=0.50,drift=0,seed=1,steps=200,layers=N": shares of the most
 * popular 5 % and the next 25 % of the experts; drift is the share of the experts
 * that trade their popularity with another in each step.
 */
int source_open_synthetic(struct source **s, const char *spec, const struct source_limits *limits,
			  uint32_t default_layers, struct ndp_error *err);

/* Draws of experts by weight, in constant time each (Walker's alias method, Vose's tables). */
struct draw {
	uint32_t n;
	uint32_t *alias;	/* [n] */
	uint32_t *cut;		/* [n]: below it the index itself, else its alias */
};

int draw_init(struct draw *d, uint32_t n);
void draw_set(struct draw *d, const double *weights);
void draw_many(const struct draw *d, uint64_t *state, uint64_t draws, uint32_t *counts);
void draw_free(struct draw *d);

/* xorshift64*; @state is not 0. */
static inline uint64_t random_u64(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* A state that is not 0, unlike for seeds that are neighbours (splitmix64). */
uint64_t random_state(uint64_t seed);

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
	return ((random_u64(state) >> 32) * n) >> 32;
}

#endif
