/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mkmodel.h - what the files of ndp-mkmodel share: the model that is wanted, the list
 * of tensors that it becomes in a spelling, and the writers.
 *
 * A weight is a function of the seed and of where it is in the model (layer, expert,
 * matrix, output, input), not of how a file spells it: every spelling of a model holds the
 * same numbers.
 */
#ifndef NDP_MKMODEL_H
#define NDP_MKMODEL_H

#include <ndp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum mk_family {
	MK_MIXTRAL, MK_OLMOE, MK_QWEN2, MK_QWEN3, MK_DEEPSEEK2, MK_DEEPSEEK3, MK_GLM4, MK_GPT_OSS,
	MK_FAMILIES,
};

enum mk_dtype { MK_BF16, MK_F32, MK_F16, MK_Q8_0, MK_Q4_0, MK_MXFP4, MK_DTYPES };

enum mk_spelling {
	MK_DEFAULT,	/* the family's own, stacked in GGUF */
	MK_W123,	/* experts.E.w1, .w3, .w2 */
	MK_PROJ,	/* experts.E.gate_proj, .up_proj, .down_proj */
	MK_FUSED,	/* gate and up of all experts in one tensor */
	MK_STACKED,	/* gate, up, down of all experts */
	MK_EACH,	/* GGUF: ffn_gate.E, ffn_up.E, ffn_down.E */
	MK_SPELLINGS,
};

struct mk_model {
	enum mk_family family;
	uint32_t layers;
	uint32_t dense;		/* of them, the first ones */
	uint32_t experts;
	uint32_t top_k;
	uint32_t hidden;
	uint32_t neurons;	/* of an expert */
	uint32_t shared;	/* shared experts, each as wide as a routed one */
	uint32_t groups;
	uint32_t keep_groups;
	bool renormalize;
	float scale;
	bool sigmoid;		/* router; with a selection bias */
	bool gguf;
	uint32_t shards;
	bool index;
	enum mk_dtype dtype;	/* of the experts */
	enum mk_spelling spelling;
	uint64_t seed;
};

extern const char *const mk_family_names[MK_FAMILIES];
extern const char *const mk_archs[MK_FAMILIES];	/* GGUF's general.architecture */
extern const char *const mk_dtype_names[MK_DTYPES];
extern const char *const mk_spelling_names[MK_SPELLINGS];

/* ---- values (values.c) ------------------------------------------------------ */

/* What a tensor's rows are made of. */
enum mk_kind {
	MK_GATE,
	MK_UP,
	MK_DOWN, /* as matrices: normal numbers, scaled to keep outputs near 1 */
	MK_ROUTER,
	MK_SELECTION,
	MK_ROUTER_BIAS,
	MK_GATE_BIAS,
	MK_UP_BIAS,
	MK_DOWN_BIAS, /* small */
	MK_SHARED_GATE,
	MK_ONES, /* norms */
};

#define MK_SHARED_EXPERT 0xffffu
#define MK_DENSE_MLP 0xfffeu

/* Inputs [first, first + n) of output @row, with @fan_in of them in all; @step elements apart. */
void mk_row(uint64_t seed, enum mk_kind kind, uint32_t layer, uint32_t expert, uint32_t row,
	    uint32_t first, uint32_t n, uint32_t fan_in, float *dst, size_t step);

/* ---- encoding (encode.c) ------------------------------------------------------ */

/* Elements of a block and its bytes. */
uint32_t mk_block(enum mk_dtype dtype);
size_t mk_block_bytes(enum mk_dtype dtype);
/* Encodes @n elements, whole blocks, as a file of the format has them. */
void mk_encode(enum mk_dtype dtype, const float *src, size_t n, uint8_t *dst);
/* gpt-oss's MXFP4: 16 bytes of codes, and an exponent, for each 32 elements. */
void mk_encode_mxfp4_split(const float *src, size_t n, uint8_t *codes, uint8_t *exponents);

/* ---- the tensors (plan.c) ------------------------------------------------------- */

/* How a row of the file comes from rows of the model. */
enum mk_layout {
	MK_PLAIN,	/* one kind, [experts][outputs][inputs] or less */
	MK_HALVES,	/* [experts][gate outputs, up outputs][inputs] */
	MK_TRANSPOSED,	/* [experts][inputs][outputs] */
	MK_INTERLEAVED,	/* [experts][inputs][gate, up, gate, up...] */
	MK_INTERLEAVED_ROWS,	/* [experts][gate, up, gate, up... outputs][inputs] */
	MK_PAIRS,	/* [experts][gate bias, up bias, ...] */
};
enum mk_part { MK_WHOLE, MK_CODES, MK_EXPONENTS };	/* the last two: MXFP4 in safetensors */

struct mk_tensor {
	char name[96];
	uint64_t dims[4];	/* outermost first, as the file says */
	uint32_t nr_dims;
	enum mk_dtype dtype;
	enum mk_part part;
	enum mk_kind kind;	/* MK_GATE for gate and up together */
	enum mk_layout layout;
	uint32_t layer;
	uint32_t expert;	/* of the first; consecutive ones where it is stacked */
	uint32_t outputs;	/* of one expert's matrix */
	uint32_t inputs;
	uint64_t rows;		/* to be written one after the other */
	uint32_t width;		/* elements of each */
	uint64_t bytes;
	uint32_t shard;		/* of the file that it goes to */
};

struct mk_plan {
	struct mk_tensor *tensors;
	size_t n;
	size_t max;
};

int mk_plan(struct mk_plan *plan, const struct mk_model *m, struct ndp_error *err);
/* Writes a tensor's bytes. */
int mk_write_tensor(FILE *f, const struct mk_model *m, const struct mk_tensor *t);

/* ---- files ------------------------------------------------------------------------- */

/* 0 or -errno with a sentence; all files go into @dir, which is there. */
int mk_write_config(const char *dir, const struct mk_model *m, struct ndp_error *err);
int mk_write_safetensors(const char *dir, const struct mk_model *m, const struct mk_plan *plan,
			 struct ndp_error *err);
int mk_write_gguf(const char *dir, const struct mk_model *m, const struct mk_plan *plan,
		  struct ndp_error *err);

int mk_fail(struct ndp_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* @dir/@name for writing; -errno in the sentence. */
int mk_create(FILE **f, const char *dir, const char *name, struct ndp_error *err);
int mk_finish(FILE *f, const char *dir, const char *name, int r, struct ndp_error *err);

#endif
