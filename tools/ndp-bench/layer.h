/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * layer.h - what `ndp-bench layer` works with: a model, its experts packed once more
 * for whoever wants to run them alone, inputs whose routing is that of a recorded
 * trace, and an FP64 reference.
 */
#ifndef NDP_BENCH_LAYER_H
#define NDP_BENCH_LAYER_H

#include "bench.h"

#include <ndp/ndp.h>

/* One that is there, or (@path NULL) one made by ndp-mkmodel with @arguments and removed again. */
struct ndp_model *layer_model(const char *path, const char *const *arguments);

/* The experts of a model's first MoE layer in host memory of this file's own. */
struct layer_experts {
	struct ndp_model_info info;
	uint32_t layer;
	void **blocks;		/* [experts], then the shared one, if there is one */
	float *down_bias;	/* [experts][hidden]; NULL: none */
	float *router;		/* [experts][hidden] */
	float *router_bias;	/* NULL: none */
	float *selection;
	float *shared_gate;
};
void layer_experts_make(struct layer_experts *e, const struct ndp_model *m);
void layer_experts_free(struct layer_experts *e);
const struct ndp_expert_shape *layer_shape(const struct layer_experts *e, uint32_t expert);

/* Which experts recorded tokens went to. */
struct layer_trace {
	uint32_t layers, steps, experts, k;
	uint16_t *ids;		/* [layers][steps][k] */
};
/* A CSV step,layer,expert,count of one token a step, maybe gzip. */
void layer_trace_read(struct layer_trace *t, const char *path);
void layer_trace_free(struct layer_trace *t);

/* A batch whose tokens go where the trace's tokens of a layer went from step @first on. */
struct layer_input {
	uint32_t tokens, k;
	float *x;		/* [tokens][hidden] */
	uint32_t *ids;		/* [tokens][k], in no order */
};
void layer_input_make(struct layer_input *in, const struct layer_experts *e,
		      const struct layer_trace *t, uint32_t layer, uint32_t first,
		      uint32_t tokens, uint64_t seed);
/* The same from a seed, without a trace: x is noise, and the router decides. */
void layer_input_noise(struct layer_input *in, const struct layer_experts *e, uint32_t tokens,
		       uint64_t seed);
void layer_input_free(struct layer_input *in);

/*
 * The largest error of @out [tokens][hidden] in units of its bound, over @sample tokens
 * spread over the batch; ids are those that the pipeline chose.  Dies when these are not
 * the best by FP64.
 */
double layer_check(const struct layer_experts *e, const struct layer_input *in,
		   const uint32_t *ids, const float *out, uint32_t sample);

struct ndp_cpu *layer_cpu(uint32_t threads, bool deterministic);
struct ndp_moe *layer_load(const struct ndp_model *m, const struct ndp_moe_options *o);
struct ndp_moe_context *layer_context(struct ndp_moe *moe, uint32_t tokens);

/* layer_time.c: the pipeline against its FFNs (D.3). */
void layer_time(struct bench_report *rep, const struct ndp_model *m, const struct layer_trace *t,
		const uint32_t *batches, unsigned int nr_batches, const uint32_t *threads,
		unsigned int nr_threads, unsigned int rounds, bool bars);
/* layer_mix.c: every mix of domains, and the same bits (D.4). */
void layer_mix(struct bench_report *rep, const struct ndp_model *m, bool bars);

#endif
