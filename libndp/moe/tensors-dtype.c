// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * tensors-dtype.c - what the types of elements are called and how large they are.
 *
 * safetensors' names: https://huggingface.co/docs/safetensors ("Format").  Blocks of
 * GGUF's types: the structs block_* of ggml (ggml/src/ggml-common.h, and
 * GGML_QUANT_SIZES in gguf-py/gguf/constants.py, which say the same); in the table
 * below a block's bytes are written as the sum of its members.
 */
#include "tensors-internal.h"

#include <string.h>

static const struct {
	const char *name;
	uint16_t block;		/* elements */
	uint16_t bytes;		/* of a block */
	bool readable;		/* dequant.c reads it */
} dtypes[] = {
	[NDP_DTYPE_BOOL] = { "BOOL", 1, 1, false },
	[NDP_DTYPE_U8] = { "U8", 1, 1, false },
	[NDP_DTYPE_I8] = { "I8", 1, 1, false },
	[NDP_DTYPE_F8_E5M2] = { "F8_E5M2", 1, 1, false },
	[NDP_DTYPE_F8_E4M3] = { "F8_E4M3", 1, 1, false },
	[NDP_DTYPE_I16] = { "I16", 1, 2, false },
	[NDP_DTYPE_U16] = { "U16", 1, 2, false },
	[NDP_DTYPE_F16] = { "F16", 1, 2, true },
	[NDP_DTYPE_BF16] = { "BF16", 1, 2, true },
	[NDP_DTYPE_I32] = { "I32", 1, 4, false },
	[NDP_DTYPE_U32] = { "U32", 1, 4, false },
	[NDP_DTYPE_F32] = { "F32", 1, 4, true },
	[NDP_DTYPE_I64] = { "I64", 1, 8, false },
	[NDP_DTYPE_U64] = { "U64", 1, 8, false },
	[NDP_DTYPE_F64] = { "F64", 1, 8, false },

	[NDP_DTYPE_Q4_0] = { "Q4_0", 32, 2 + 16, true },
	[NDP_DTYPE_Q4_1] = { "Q4_1", 32, 2 + 2 + 16, false },
	[NDP_DTYPE_Q5_0] = { "Q5_0", 32, 2 + 4 + 16, false },
	[NDP_DTYPE_Q5_1] = { "Q5_1", 32, 2 + 2 + 4 + 16, false },
	[NDP_DTYPE_Q8_0] = { "Q8_0", 32, 2 + 32, true },
	[NDP_DTYPE_Q8_1] = { "Q8_1", 32, 2 + 2 + 32, false },
	[NDP_DTYPE_Q2_K] = { "Q2_K", 256, 16 + 64 + 2 + 2, false },
	[NDP_DTYPE_Q3_K] = { "Q3_K", 256, 32 + 64 + 12 + 2, false },
	[NDP_DTYPE_Q4_K] = { "Q4_K", 256, 2 + 2 + 12 + 128, false },
	[NDP_DTYPE_Q5_K] = { "Q5_K", 256, 2 + 2 + 12 + 32 + 128, false },
	[NDP_DTYPE_Q6_K] = { "Q6_K", 256, 128 + 64 + 16 + 2, false },
	[NDP_DTYPE_Q8_K] = { "Q8_K", 256, 4 + 256 + 32, false },
	[NDP_DTYPE_IQ1_S] = { "IQ1_S", 256, 2 + 32 + 16, false },
	[NDP_DTYPE_IQ1_M] = { "IQ1_M", 256, 32 + 16 + 8, false },
	[NDP_DTYPE_IQ2_XXS] = { "IQ2_XXS", 256, 2 + 64, false },
	[NDP_DTYPE_IQ2_XS] = { "IQ2_XS", 256, 2 + 64 + 8, false },
	[NDP_DTYPE_IQ2_S] = { "IQ2_S", 256, 2 + 64 + 8 + 8, false },
	[NDP_DTYPE_IQ3_XXS] = { "IQ3_XXS", 256, 2 + 96, false },
	[NDP_DTYPE_IQ3_S] = { "IQ3_S", 256, 2 + 64 + 8 + 32 + 4, false },
	[NDP_DTYPE_IQ4_NL] = { "IQ4_NL", 32, 2 + 16, false },
	[NDP_DTYPE_IQ4_XS] = { "IQ4_XS", 256, 2 + 2 + 4 + 128, false },
	[NDP_DTYPE_TQ1_0] = { "TQ1_0", 256, 48 + 4 + 2, false },
	[NDP_DTYPE_TQ2_0] = { "TQ2_0", 256, 64 + 2, false },
	[NDP_DTYPE_MXFP4] = { "MXFP4", 32, 1 + 16, true },
	[NDP_DTYPE_NVFP4] = { "NVFP4", 64, 4 + 32, false },
};

#define NR_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

const char *ndp_dtype_name(enum ndp_dtype dtype)
{
	return (size_t)dtype < NR_DTYPES ? dtypes[dtype].name : "?";
}

uint32_t ndp_dtype_block(enum ndp_dtype dtype)
{
	return (size_t)dtype < NR_DTYPES ? dtypes[dtype].block : 0;
}

size_t ndp_dtype_bytes(enum ndp_dtype dtype)
{
	return (size_t)dtype < NR_DTYPES ? dtypes[dtype].bytes : 0;
}

bool ndp_dtype_readable(enum ndp_dtype dtype)
{
	return (size_t)dtype < NR_DTYPES && dtypes[dtype].readable;
}

int ndpi_dtype_find(const char *name, enum ndp_dtype limit)
{
	for (size_t i = 0; i < NR_DTYPES && i < (size_t)limit; i++)
		if (!strcmp(name, dtypes[i].name))
			return i;
	return -1;
}
