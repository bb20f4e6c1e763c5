/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * model.h - the Mixture-of-Experts layers of a model file, whatever family it is
 * of, whatever its publisher called the tensors, and in whichever format.
 *
 * Families: Mixtral, DeepSeek-V2 and -V3, Qwen2-MoE, Qwen3-MoE, OLMoE, GLM-4.5,
 * gpt-oss.  Formats: safetensors with config.json, GGUF (ndp/tensors.h).
 * Spellings: w1/w3/w2, gate_proj/up_proj/down_proj, 3-D tensors of all experts
 * with gate and up fused or apart, GGUF stacked, fused and one by one.  Which half of a
 * fused tensor is gate is said by format and family, never guessed from its shape.
 *
 * What the configuration announces and the files lack, or the other way round, is
 * refused by name when the model is opened: not one byte of an expert is read before
 * everything is known to be there.
 *
 * Threads: an open model never changes and may be read by several threads.
 */
#ifndef NDP_MODEL_H
#define NDP_MODEL_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <ndp/router.h>
#include <ndp/tensors.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_model;

struct ndp_model_info {
	char family[32];	/* "mixtral", "deepseek_v2", ... as config.json's model_type */
	char format[16];	/* "safetensors", "gguf" */
	uint32_t layers;	/* with dense ones */
	uint32_t moe_layers;
	uint32_t hidden;
	struct ndp_router router;
	/*
	 * Shapes as they are packed: where gate and up have biases they are one more
	 * column of h_in, and x carries 1.0 there.
	 */
	struct ndp_expert_shape routed;
	struct ndp_expert_shape shared;	/* neurons 0: the family has no shared expert */
	bool shared_gate;	/* its output is scaled by sigmoid(gate . x) */
	bool expert_bias;	/* h_in = hidden + 1, and down has a bias */
	bool router_bias;	/* on the logits */
	bool selection_bias;	/* ndp_route()'s @bias */
	int act;		/* NDP_ACT_* (ndp/device.h) */
	float alpha;
	float limit;
};

/* As ndp_tensors_open(); -ENOTSUP: a family, dtype or feature that is not done, by name. */
int ndp_model_open(struct ndp_model **m, const char *path, struct ndp_error *err);
void ndp_model_close(struct ndp_model *m);

void ndp_model_info(const struct ndp_model *m, struct ndp_model_info *info);
bool ndp_model_is_moe(const struct ndp_model *m, uint32_t layer);
/* For what is not about experts. */
const struct ndp_tensors *ndp_model_tensors(const struct ndp_model *m);

/*
 * A layer's router as FP32: @weight [experts][hidden], @bias [experts] of the
 * logits, @selection [experts], @shared_gate [hidden].  Those that the model lacks
 * are left alone and may be NULL.
 */
int ndp_model_router(const struct ndp_model *m, uint32_t layer, float *weight, float *bias,
		     float *selection, float *shared_gate, struct ndp_error *err);

#define NDP_EXPERT_SHARED UINT32_MAX

/* Of the memory that ndp_model_pack() works in; 0 where the file's bytes are packed directly. */
size_t ndp_model_pack_bytes(const struct ndp_model *m);

/*
 * Packs neuron blocks [first, first + nr_blocks) of an expert (or
 * NDP_EXPERT_SHARED) into @dst, rounding to BF16 what is kept in less or in more;
 * biases are the last column of gate and up.  @work: ndp_model_pack_bytes(), each thread
 * its own, aligned for any type.  The files are mapped: whoever truncates one meanwhile
 * makes this end with SIGBUS.
 */
int ndp_model_pack(const struct ndp_model *m, uint32_t layer, uint32_t expert, uint32_t first,
		   uint32_t nr_blocks, void *dst, void *work, struct ndp_error *err);

/* The bias of down, FP32 [hidden]; zeros where the model has none. */
int ndp_model_down_bias(const struct ndp_model *m, uint32_t layer, uint32_t expert, float *bias,
			struct ndp_error *err);

#ifdef __cplusplus
}
#endif

#endif
