/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * moe.h - the experts of a layer, computed by NDP DIMMs.
 *
 * A batch of tokens is uploaded once, in BF16, with one list of rows for each
 * expert; each expert that has tokens is one command; the partial results of the
 * DIMMs are added and weighted in FP32.  All through one queue, so one thread.
 */
#ifndef NDP_RUN_MOE_H
#define NDP_RUN_MOE_H

#include <ndp/ndp.h>

/*
 * An expert on the DIMMs.  @mask: where it lay when last heard of, which says
 * where to put x; when that is out of date the library repairs it, and the
 * command counts as retried.
 */
struct moe_expert {
	struct ndp_weights *weights;
	uint32_t mask;
};

struct moe_stats {
	uint64_t commands;
	uint64_t expert_tokens; /* token-expert pairs computed */
	uint64_t retries; /* commands executed again: the weights had moved */
	uint64_t modelled_ns; /* sum over commands, as if none overlapped */
	uint64_t x_bytes; /* written to DIMMs: x and row lists, each replica */
	uint64_t y_bytes; /* read from DIMMs: partial results */
};

struct moe;

/*
 * Room for batches of up to @max_tokens tokens (no more than the device takes in
 * a command) of @hidden columns, each with up to @max_k experts.
 */
int moe_create(struct moe **m, struct ndp_device *dev, uint32_t hidden, uint32_t max_tokens,
	       uint32_t max_k, struct ndp_error *err);
void moe_free(struct moe *m);

/*
 * out[t] = sum over j < k of weights[t][j] * expert ids[t][j] (x[t]), in the
 * order of j.  @x and @out are [tokens][hidden].  With 0 tokens nothing is
 * written and nothing submitted.  Returns after the last command has completed,
 * whether or not one failed; @layer is for the message.
 */
int moe_forward(struct moe *m, uint32_t layer, struct moe_expert *experts, uint32_t nr_experts,
		const float *x, uint32_t tokens, uint32_t k, const uint32_t *ids,
		const float *weights, float *out, struct ndp_error *err);

const struct moe_stats *moe_stats(const struct moe *m);

#endif
