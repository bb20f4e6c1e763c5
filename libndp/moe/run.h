/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * run.h - what running layers keeps: of a loaded model (struct ndpi_run, shared by
 * all contexts) and of a context.
 */
#ifndef NDPI_RUN_H
#define NDPI_RUN_H

#include "domain.h"

enum {
	NDPI_GPU = 1 << NDP_DOMAIN_GPU,
	NDPI_CPU = 1 << NDP_DOMAIN_CPU,
	NDPI_NDP = 1 << NDP_DOMAIN_NDP,
};

/*
 * Where the experts of a layer are thought to lie.  Weights may move at any time, so
 * this is advice: a command finds its blocks wherever they are.
 */
struct ndpi_run_layer {
	pthread_rwlock_t lock;
	struct ndp_placement *places;	/* [experts], then the shared one */
	uint16_t *blocks;	/* as @places, [nr_dimms] each, for the scheduler */
	bool *lost;			/* [experts], then the shared one: a DIMM of it is gone */
	uint32_t next;			/* expert to ask after next (atomic) */
};

struct ndpi_hot;

struct ndpi_run {
	struct ndp_host host;		/* with the rates of the domains that compute only */
	struct ndp_shape shape;
	uint32_t nr_dimms;
	uint32_t domains;		/* that compute */
	uint32_t fallback;		/* those that do when all of these are lost */
	uint32_t policy_domains;	/* those that the policy knows */
	bool gpu_lost;			/* atomic; never false again */
	uint8_t *fixed;			/* [experts]: domain of each; deterministic mode only */
	struct ndpi_run_layer *layers;	/* [info.layers] */
	struct ndpi_hot *hot;		/* options.adapt */
};

static inline struct ndpi_run *ndpi_run_of(const struct ndp_moe *moe)
{
	return moe->run;
}

/* Bits of the domains that compute now. */
uint32_t ndpi_run_domains(const struct ndpi_run *run);

/* Asks where one more expert of @layer is, so that all are asked after in turn. */
void ndpi_run_sweep(struct ndp_moe *moe, uint32_t layer);
/* Asks where one (or NDP_EXPERT_SHARED) is. */
void ndpi_run_refresh(struct ndp_moe *moe, uint32_t layer, uint32_t expert);

/* run_hot.c */
int ndpi_hot_init(struct ndp_moe *moe, struct ndp_error *err);
void ndpi_hot_free(struct ndp_moe *moe);
/* A step of @layer is over: @tokens [experts] went to each expert. */
void ndpi_hot_step(struct ndp_moe *moe, uint32_t layer, const uint32_t *tokens);
/* 1 for each expert whose copy in GPU memory is complete. */
void ndpi_hot_resident(struct ndp_moe *moe, uint32_t layer, uint8_t *on_gpu);

/* ---- a context ------------------------------------------------------------- */

struct ndp_moe_context {
	struct ndp_moe *moe;
	struct ndpi_run *run;
	pthread_t owner;
	uint32_t turn;		/* most tokens at a time */
	uint32_t max_pairs;	/* most pairs at a time, without the shared expert's */
	uint32_t y_rows;	/* of @y */
	size_t y_bytes;
	struct ndpi_domain *domain[NDP_DOMAINS];

	/* The turn: some tokens of the call. */
	struct ndpi_batch batch;
	uint32_t max_parts;
	const float *in;	/* [tokens][ld_in] */
	size_t ld_in;
	const uint32_t *chosen;	/* [tokens][k]: expert of each pair */
	bool out_zeroed;
	ndp_bf16 *x;		/* [turn][ldx] */
	float *logits;		/* [turn][experts] */
	char *route_work;	/* [task][route_bytes] */
	size_t route_bytes;
	float *weights;		/* [turn][top_k] */
	float *shared_factor;	/* [turn] */
	uint32_t *slots;	/* [tokens][k] */
	uint32_t *starts;	/* [experts + 1]: first slot */
	uint32_t *rows;		/* [slot] */
	float *factors;		/* [slot] */
	uint32_t *first_part;	/* [experts + 1] */
	float *y;		/* [y_rows][ldy] */
	uint32_t *tokens;	/* [experts] */
	uint8_t *on_gpu;	/* [experts] */
	struct ndp_plan plan;
	void *plan_mem;
	void *plan_work;

	/* The call. */
	uint32_t *ids;		/* [max_ids] */
	uint32_t max_ids;
	uint32_t last_tokens;
	uint32_t *step;		/* [experts]: tokens in all turns */

	/* While domains compute. */
	uint32_t running;	/* bits */
	bool gpu_failed;	/* its parts are to be computed elsewhere */
	int failed;
	struct ndp_error failure;
	uint64_t submitted_ns[NDP_DOMAINS];
};

enum {
	NDPI_ROUTE_TOKENS = 16,	/* of a task that routes */
};

/* forward_route.c: x to BF16; and, unless the experts are @known, who gets what. */
void ndpi_route_turn(struct ndp_moe_context *ctx, bool known, uint32_t *ids);

/* @fn(ctx, i) for all i < n, by the CPU's workers where that is worth it. */
void ndpi_for(struct ndp_moe_context *ctx, uint32_t n, uint64_t bytes,
	      void (*fn)(void *ctx, uint32_t i));

extern const struct ndpi_domain_ops *const ndpi_domains[NDP_DOMAINS];

/*
 * run_plan.c: slots, starts, rows and factors of a turn whose tokens go to @ids with
 * @weights.  -EINVAL: an id is none.
 */
int ndpi_sort_pairs(struct ndp_moe_context *ctx, const uint32_t *ids, const float *weights,
		    struct ndp_error *err);
/* Who computes what: the batch's parts, by the policy. */
int ndpi_make_parts(struct ndp_moe_context *ctx, struct ndp_error *err);
/* The domain for what is not scheduled. */
enum ndp_domain ndpi_preferred_domain(uint32_t domains);
/* All parts of @from go to @to; all others are done. */
void ndpi_reassign_parts(struct ndp_moe_context *ctx, enum ndp_domain from, enum ndp_domain to);

uint64_t ndpi_now_ns(void);

#endif
