// SPDX-License-Identifier: GPL-2.0-or-later
/* generate.c - see generate.h. */
#include "generate.h"
#include "error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t wall_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

int generate(struct generation *g, struct engine *e, const struct model_config *c,
	     struct sampler *s, const uint32_t *prompt, uint32_t nr_prompt, uint32_t max,
	     generate_observer observe, void *arg, struct ndp_error *err)
{
	uint32_t *order = calloc(c->vocab, sizeof(*order));
	float *p = calloc(c->vocab, sizeof(*p));
	const float *logits;
	uint64_t start;
	int r;

	memset(g, 0, sizeof(*g));
	g->tokens = calloc(max, sizeof(*g->tokens));
	if (!g->tokens || !order || !p) {
		r = fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	engine_reset(e);
	start = wall_ns();
	r = engine_feed(e, prompt, nr_prompt, &logits, err);
	g->prompt_wall_ns = wall_ns() - start;
	while (r == 0) {
		uint32_t step = g->nr_tokens;
		uint32_t token = sampler_pick(s, logits, c->vocab, order, p);

		g->tokens[g->nr_tokens++] = token;
		r = observe(arg, step, logits, token, err);
		if (r == GENERATE_END_BEFORE)
			g->nr_tokens--;
		if (r != GENERATE_ON || g->nr_tokens == max)
			break;
		start = wall_ns();
		r = engine_feed(e, &token, 1, &logits, err);
		g->decode_wall_ns += wall_ns() - start;
		g->decode_steps++;
	}
out:
	free(p);
	free(order);
	return r < 0 ? r : 0;
}
