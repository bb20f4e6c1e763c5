/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * model-internal.h - what the files that make up model.h share: the configuration
 * (family_config.c, family_gguf.c), where in the tensors each matrix is
 * (family_tensors.c), and how it gets from there into neuron blocks (pack_expert.c).
 */
#ifndef NDP_MODEL_INTERNAL_H
#define NDP_MODEL_INTERNAL_H

#include "../error.h"

#include <ndp/model.h>

#define MODEL_MAX_LAYERS 4096
#define MODEL_MAX_EXPERTS 4096	/* as the scheduler: NDP_MAX_EXPERTS */
#define MODEL_MAX_WIDTH 65472	/* as the devices: ndp/pack.h */
#define MODEL_MAX_NEURONS (65535 * NDP_BLOCK_ROWS)

/* How gate and up share a tensor where they do.  Said by the format or the family. */
enum model_fused {
	MODEL_FUSED_HALVES,	/* [experts][2 neurons][hidden]: all of gate, then all of up */
	MODEL_FUSED_INTERLEAVED,	/* gate, up, gate, up...; see model_config.transposed */
};

/* What the configuration says: model_info's fields, and these. */
struct model_config {
	struct ndp_model_info info;
	bool *moe;		/* [info.layers] */
	uint32_t extra_layers;	/* further ones for predicting several tokens, not run */
	bool gguf;
	enum model_fused fused;
	/* gpt-oss keeps 3-D tensors as [experts][inputs][outputs]. */
	bool transposed;
	/* Whether there is a selection bias is said by the tensors only (GGUF). */
	bool selection_by_tensor;
	const char *source;	/* "config.json" or "the GGUF header", for messages */
};

/*
 * A matrix [outputs][inputs] in a tensor, element (r, c) at first + r * row + c * col.
 * With @scales (MXFP4 of safetensors) the tensor is 4-bit codes, see pack_expert.c, and
 * elements are counted as if it were not.
 */
struct model_matrix {
	const struct ndp_tensor *t;
	const struct ndp_tensor *scales;
	uint64_t first;
	uint64_t row;
	uint64_t col;
	const struct ndp_tensor *bias;	/* NULL: none; of output r at bias_first + r * bias_step */
	uint64_t bias_first;
	uint64_t bias_step;
};

struct model_expert {
	struct model_matrix gate;
	struct model_matrix up;
	struct model_matrix down;
};

struct model_layer {
	struct model_expert *experts;	/* NULL: a dense layer */
	struct model_expert shared;	/* gate.t NULL: none */
	const struct ndp_tensor *router;
	const struct ndp_tensor *router_bias;
	const struct ndp_tensor *selection;
	const struct ndp_tensor *shared_gate;
};

struct ndp_model {
	struct model_config config;
	struct ndp_tensors *tensors;
	struct model_layer *layers;	/* [config.info.layers] */
	size_t pack_bytes;
};

/* Reads the config.json beside safetensors, or a GGUF header. */
int ndpi_config_json(struct model_config *c, const char *path, struct ndp_error *err);
int ndpi_config_gguf(struct model_config *c, const struct ndp_tensors *ts, const char *path,
		     struct ndp_error *err);
/* What both of them check at the end: sizes against limits. */
int ndpi_config_check(struct model_config *c, const char *path, struct ndp_error *err);

/* Finds every tensor that m->config announces, and refuses those that it does not. */
int ndpi_map_tensors(struct ndp_model *m, struct ndp_error *err);

/* Whether pack_expert.c can read this tensor. */
bool ndpi_matrix_readable(const struct model_matrix *mat);
/* Of the memory for packing this expert: 0 when its bytes are packed where they are. */
size_t ndpi_pack_bytes(const struct model_expert *e, const struct ndp_expert_shape *s);
int ndpi_pack(const struct model_expert *e, const struct ndp_expert_shape *s, uint32_t first,
	      uint32_t nr_blocks, void *dst, void *work, const struct ndp_tensor **bad);

#endif
