/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * domain.h - what the layer pipeline (forward.c) knows of a domain that computes,
 * be it the GPU, the CPU or the NDP DIMMs; and the batch that they share.
 *
 * The pairs (token, expert) of a batch are sorted by expert; the place of a pair in
 * that order is its slot.  So the tokens of an expert are consecutive slots, and
 * @rows is one list of all experts' tokens.  A part is some neuron blocks of one
 * expert for its tokens.  Every domain gets all parts and
 * takes those that are its own.
 *
 * A domain belongs to one context and so to one thread.
 */
#ifndef NDPI_DOMAIN_H
#define NDPI_DOMAIN_H

#include "moe-internal.h"

struct ndpi_part {
	const struct ndpi_expert *expert;
	const struct ndp_expert_shape *shape;
	uint32_t id;		/* number of the expert, or NDP_EXPERT_SHARED */
	uint32_t first;		/* neuron blocks */
	uint32_t nr_blocks;
	uint32_t slot;		/* the first of @tokens slots */
	uint32_t tokens;
	enum ndp_domain domain;
	bool done;		/* computed: no domain is to take it any more */
	bool reduced;		/* added to the output already */
	uint32_t dimm_mask;	/* where the blocks are thought to be */
	float *y;		/* its first row in host memory; NULL: it needs none there */
};

struct ndpi_batch {
	const struct ndp_moe *moe;
	uint32_t layer;
	uint32_t tokens;
	uint32_t k;		/* experts of a token */
	bool shared;		/* and the shared one, whose slots follow all others */
	bool direct;		/* results of DIMMs may be added to @out in any order */
	uint32_t cut;		/* most tokens of a command in DIMMs */
	const ndp_bf16 *x;	/* [tokens][ldx], the 1.0 for biases included, padding zero */
	size_t ldx;		/* elements; rows are a multiple of 64 bytes */
	const uint32_t *rows;	/* [slot]: its token */
	const float *factors;	/* [slot]: of its y in the output */
	struct ndpi_part *parts;	/* by expert, the shared one last */
	uint32_t nr_parts;
	size_t ldy;		/* elements, of rows in host memory */
	float *out;
	size_t ld_out;
	struct ndp_moe_report *report;	/* never NULL */
	/* For the domain that computes in the caller's thread: looks after the others. */
	void (*poll)(void *arg);
	void *poll_arg;
};

struct ndpi_domain;

/* What a context needs at most; batches with more are cut before they get here. */
struct ndpi_limits {
	struct ndp_moe *moe;
	uint32_t tokens;
	uint32_t slots;		/* with the shared expert's */
	uint32_t y_rows;	/* in host memory */
	size_t ldx;		/* elements */
};

struct ndpi_domain_ops {
	int (*open)(struct ndpi_domain **d, const struct ndpi_limits *limits,
		    struct ndp_error *err);
	void (*close)(struct ndpi_domain *d);	/* nothing is in flight */

	/*
	 * What computing there costs, into the host that the scheduler is shown.
	 * @rates NULL: nobody has said, a rough guess will do.
	 */
	void (*cost)(const struct ndp_moe *moe, const struct ndp_host *rates,
		     struct ndp_host *host);

	/* Brings x and lists to where they are needed.  Nothing is in flight yet. */
	int (*prepare)(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err);
	/* Starts its parts.  The CPU returns when they are done, the others at once. */
	int (*submit)(struct ndpi_domain *d, struct ndpi_batch *b, struct ndp_error *err);
	/*
	 * Takes what has ended, adding it up where it may.  1: all done, 0: not yet
	 * (never when @wait).  On failure nothing is in flight; a part that failed is
	 * named in @err.
	 */
	int (*complete)(struct ndpi_domain *d, struct ndpi_batch *b, bool wait,
			struct ndp_error *err);
	/* Something else has failed: until nothing of this is in flight. */
	void (*abandon)(struct ndpi_domain *d);
};

extern const struct ndpi_domain_ops ndpi_domain_gpu;
extern const struct ndpi_domain_ops ndpi_domain_cpu;
extern const struct ndpi_domain_ops ndpi_domain_ndp;

/* "expert 5", "the shared expert" */
const char *ndpi_part_name(const struct ndpi_part *p, char buf[32]);

/* ---- reduce.c: loops over rows ------------------------------------------- */

enum { NDPI_MAX_TERMS = NDP_MAX_DIMMS };

/* out[i] += factor * (y[0][i] + ... + y[terms - 1][i]), terms added in that order. */
void ndpi_add_scaled(float *out, const float *const *y, uint32_t terms, float factor, uint32_t n);

/* x in BF16, 1.0 as one more column when @one, zero up to @ldx. */
void ndpi_bf16_row(ndp_bf16 *to, const float *x, uint32_t n, bool one, size_t ldx);

/*
 * y[t][e] = bias[e] + w[e] . x[t] for the @nr_w rows of @w, FP32.  Each sum is taken in
 * the same order whatever the numbers of tokens and rows are.
 */
void ndpi_dots(const float *w, uint32_t nr_w, const float *bias, const float *x, size_t ldx,
	       uint32_t tokens, uint32_t n, float *y, size_t ldy);

#endif
