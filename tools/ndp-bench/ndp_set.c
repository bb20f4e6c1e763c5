// SPDX-License-Identifier: GPL-2.0-or-later
/* ndp_set.c - see ndp_set.h. */
#include "ndp_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ndp_set_check(int r, const char *what)
{
	if (r < 0)
		bench_die("%s: %s", what, strerror(-r));
}

uint32_t ndp_set_dimm(uint32_t mask, unsigned int n)
{
	for (n %= (unsigned int)__builtin_popcount(mask); n; n--)
		mask &= mask - 1;
	return (uint32_t)__builtin_ctz(mask);
}

static void load_expert(struct ndp_set *s, unsigned int i, const void *blocks)
{
	const uint32_t n = ndp_expert_blocks(&s->shape);
	struct ndp_placement p;
	struct ndp_error err;

	ndp_placement_local(&p, n, s->dimms[i]);
	if (ndp_expert_create(&s->weights[i], s->dev, &s->shape, &p, 0, i, &err) < 0)
		bench_die("expert %u of %u: %s", i, s->n, err.message);
	ndp_set_check(ndp_weights_write(s->weights[i], 0, n, blocks), "weights");
	ndp_set_check(ndp_weights_seal(s->weights[i]), "weights");
}

void ndp_set_make(struct ndp_set *s, struct ndp_device *dev, uint32_t hidden, uint32_t neurons,
		  unsigned int n, uint32_t max_tokens, unsigned int batch)
{
	struct ndp_device_info info;
	struct bench_experts e;
	struct ndp_error err;
	ndp_bf16 *x;

	ndp_set_check(ndp_device_info(dev, &info), "the device");
	bench_experts_make(&e, hidden, neurons, 1, 7);
	*s = (struct ndp_set){
		.dev = dev, .n = n, .shape = e.shape, .ldx = (2 * hidden + 63) / 64 * 64,
		.ldy = (4 * hidden + 63) / 64 * 64, .max_tokens = max_tokens,
		.only = NDP_MAX_DIMMS,
	};
	s->weights = calloc(n, sizeof(struct ndp_weights *));
	s->dimms = calloc(n, sizeof(*s->dimms));
	x = calloc(max_tokens, s->ldx);
	if (!s->weights || !s->dimms || !x)
		bench_die("out of memory");
	for (unsigned int i = 0; i < n; i++) {
		s->dimms[i] = ndp_set_dimm(info.dimm_mask, i);
		load_expert(s, i, e.blocks[0]);
	}
	bench_experts_free(&e);
	bench_random_bf16(x, max_tokens * s->ldx / sizeof(*x), 1, 3);
	/* One y for each command in flight. */
	if (ndp_io_create(&s->x, dev, 0, max_tokens * s->ldx, &err) < 0 ||
	    ndp_io_create(&s->y, dev, 0, batch * max_tokens * s->ldy, &err) < 0 ||
	    ndp_queue_create(&s->queue, dev, NDP_SET_DEPTH, &err) < 0)
		bench_die("%s", err.message);
	ndp_set_check(ndp_io_write(s->x, info.dimm_mask, 0, x, max_tokens * s->ldx), "x");
	free(x);
}

void ndp_set_free(struct ndp_set *s)
{
	ndp_queue_free(s->queue);
	ndp_io_free(s->x);
	ndp_io_free(s->y);
	for (unsigned int i = 0; i < s->n; i++)
		ndp_weights_free(s->weights[i]);
	free(s->weights);
	free(s->dimms);
}

static unsigned int next_expert(struct ndp_set *s)
{
	unsigned int i;

	do {
		i = s->next++ % s->n;
	} while (s->only < NDP_MAX_DIMMS && s->dimms[i] != s->only);
	return i;
}

void ndp_set_run(void *arg)
{
	struct ndp_set *s = arg;
	struct ndp_result results[NDP_SET_DEPTH];
	unsigned int done = 0;

	for (unsigned int k = 0; k < s->commands; k++) {
		unsigned int i = next_expert(s);
		const struct ndp_cmd cmd = {
			.op = NDP_OP_FFN_EXPERT, .weights = s->weights[i], .x = s->x, .y = s->y,
			.x_mask = 1u << s->dimms[i], .tokens = s->tokens, .ldx = s->ldx,
			.ldy = s->ldy, .y_off = k * s->max_tokens * s->ldy, .tag = k,
		};

		ndp_set_check(ndp_queue_push(s->queue, &cmd), "a command");
	}
	while (done < s->commands) {
		int n = ndp_queue_wait(s->queue, results, NDP_SET_DEPTH, s->commands - done);

		if (n == -EINTR)
			continue;
		ndp_set_check(n, "waiting for commands");
		for (int i = 0; i < n; i++) {
			ndp_set_check(results[i].res, "a command");
			s->modelled_ns = results[i].modelled_ns;
		}
		done += (unsigned int)n;
	}
}
