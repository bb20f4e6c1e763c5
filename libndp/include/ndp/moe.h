/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * moe.h - the dispatcher: runs the Mixture-of-Experts layers of a model across
 * GPU, CPU and NDP DIMMs.
 *
 *   ndp_model_open()          what the files hold              (ndp/model.h)
 *   ndp_moe_load()            every expert packed, once, where it is to lie
 *   ndp_moe_context_create()  one caller's buffers and queues
 *   ndp_moe_forward()         x -> the layer's output: route, schedule, submit to
 *                             all domains, overlap, reduce
 *
 * Weights lie in DIMMs when there is a device (the CPU then reads them there, in
 * place, by ndp_weights_map()), else in host memory bound to a NUMA node; GPU
 * memory holds copies of hot experts.
 *
 * Threads: a loaded model may be used by several threads at once, each with a
 * context of its own; several models may share devices, CPU workers and GPU.
 * Weights may migrate at any time.  ndp_moe_forward() allocates nothing once it
 * has run at a context's largest batch.
 */
#ifndef NDP_MOE_H
#define NDP_MOE_H

#include <ndp/cpu.h>
#include <ndp/device.h>
#include <ndp/gpu.h>
#include <ndp/model.h>
#include <ndp/router.h>
#include <ndp/sched.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_moe;
struct ndp_moe_context;

/* Bits of struct ndp_moe_options.domains: 1 << NDP_DOMAIN_*. */

/* @done of @total experts are in place; a negative value cancels with that code. */
typedef int (*ndp_moe_progress)(void *arg, uint32_t done, uint32_t total);

struct ndp_moe_options {
	struct ndp_device *device;	/* NULL: no DIMMs, weights in host memory */
	struct ndp_cpu *cpu;
	struct ndp_gpu *gpu;
	uint32_t domains;	/* that compute, of those that are there; 0: all of these */
	const struct ndp_host *host;	/* what they cost, copied; NULL: a rough guess */
	enum ndp_policy policy;	/* where one domain computes there is no choice, and no matter */
	uint32_t charges;	/* enum ndp_charge; 0: all */
	const char *placement;	/* ndp_placement_policy(); NULL: "local" */
	/*
	 * The same bits for the same batch on any number of threads: experts are
	 * whole and dealt to the domains by number, not by the policy, and results are
	 * added up in a fixed order.  With DIMMs as long as nothing migrates.  For the
	 * same bits of a token in any batch @cpu must be deterministic, too.
	 */
	bool deterministic;
	bool adapt;		/* keep hot experts in GPU memory by the library's own prediction */
	uint32_t load_threads;	/* 0: one for each CPU */
	ndp_moe_progress progress;	/* called by one thread at a time; may be NULL */
	void *progress_arg;
};

/*
 * Loads all experts of all MoE layers of @model, which may be closed afterwards.
 * Peak memory beyond the weights: less than two experts for each thread.
 * -ENOSPC, -EDQUOT: it does not fit, with the arithmetic, before anything is
 * loaded; on any failure nothing is left behind.
 */
int ndp_moe_load(struct ndp_moe **moe, const struct ndp_model *model,
		 const struct ndp_moe_options *options, struct ndp_error *err);
/* All contexts must be gone. */
void ndp_moe_free(struct ndp_moe *moe);

void ndp_moe_model_info(const struct ndp_moe *moe, struct ndp_model_info *info);
bool ndp_moe_is_moe(const struct ndp_moe *moe, uint32_t layer);

struct ndp_moe_memory {
	uint64_t dimm_bytes;	/* weights in DIMMs */
	uint64_t host_bytes;	/* weights in host memory */
	uint64_t gpu_bytes;	/* copies in GPU memory */
	uint32_t gpu_experts;
};
void ndp_moe_memory(const struct ndp_moe *moe, struct ndp_moe_memory *memory);

/* NULL: the expert is in host memory.  For migrating it; NDP_EXPERT_SHARED too. */
struct ndp_weights *ndp_moe_weights(const struct ndp_moe *moe, uint32_t layer, uint32_t expert);

/*
 * The experts of @layer that GPU memory is to hold, most wanted first: others of
 * this layer are dropped, missing ones uploaded in the background, as far as the budget
 * goes.  Returns how many of them are there or on their way.  For whoever decides
 * placement (ndpd); not together with @adapt.
 */
int ndp_moe_set_hot(struct ndp_moe *moe, uint32_t layer, const uint32_t *experts, uint32_t n,
		    struct ndp_error *err);

/* ---- running a layer -------------------------------------------------- */

/*
 * Decode: few tokens, least latency.  Prefill and midfill: many, sorted by expert
 * into dense batches, large ones in turn (midfill: a batch that mixes both).
 */
enum ndp_regime {
	NDP_REGIME_AUTO,	/* from the number of tokens */
	NDP_REGIME_DECODE,
	NDP_REGIME_MIDFILL,
	NDP_REGIME_PREFILL,
};

struct ndp_domain_report {
	uint32_t experts;	/* that it computed, whole or in part */
	uint32_t commands;
	uint64_t tokens;	/* token-expert pairs, in each command */
	uint64_t bytes;		/* of weights */
	uint64_t wall_ns;	/* from submitting until the last result was taken */
	double modelled_ns;	/* its most loaded resource, by the plan */
};

struct ndp_moe_report {
	struct ndp_domain_report domain[NDP_DOMAINS];
	enum ndp_regime regime;
	uint64_t wall_ns;	/* of the whole call */
	uint64_t route_wall_ns;
	uint64_t schedule_wall_ns;
	uint64_t reduce_wall_ns;	/* what was left of it after the last domain ended */
	double modelled_ns;	/* makespan of the plan */
	/*
	 * Busiest DIMM, as the device says; a command that several DIMMs share counts
	 * on each with the time of the slowest.
	 */
	uint64_t dimm_modelled_ns;
	uint64_t x_bytes;	/* written to DIMMs */
	uint64_t y_bytes;	/* read from DIMMs */
	uint32_t retries;	/* commands, because weights had moved */
	bool gpu_lost;		/* the GPU went away, now or before; others compute its share */
};

/* For batches of up to @max_tokens; larger ones are computed in turns. */
int ndp_moe_context_create(struct ndp_moe_context **ctx, struct ndp_moe *moe, uint32_t max_tokens,
			   struct ndp_error *err);
void ndp_moe_context_free(struct ndp_moe_context *ctx);

/*
 * out[t] = sum over the token's experts of weight . expert(x[t]), and the shared
 * expert.  @x [tokens][ldx] and @out [tokens][ld_out] are FP32, strides in
 * elements; they may be the same.  @tokens 0 succeeds and touches nothing.
 * @report may be NULL.  From the thread that created @ctx.  On failure @out is
 * undefined, nothing is in flight, and @ctx can be used again.
 */
int ndp_moe_forward(struct ndp_moe_context *ctx, uint32_t layer, enum ndp_regime regime,
		    const float *x, size_t ldx, uint32_t tokens, float *out, size_t ld_out,
		    struct ndp_moe_report *report, struct ndp_error *err);

/*
 * The same with a routing that is known: @ids and @weights [tokens][k], ids below
 * the number of experts.  Without the shared expert.
 */
int ndp_moe_forward_routed(struct ndp_moe_context *ctx, uint32_t layer, enum ndp_regime regime,
			   const float *x, size_t ldx, uint32_t tokens, uint32_t k,
			   const uint32_t *ids, const float *weights, float *out, size_t ld_out,
			   struct ndp_moe_report *report, struct ndp_error *err);

/* Where the last call's tokens went: ids [tokens][top_k], valid until the next one. */
const uint32_t *ndp_moe_last_ids(const struct ndp_moe_context *ctx, uint32_t *tokens);

#ifdef __cplusplus
}
#endif

#endif
