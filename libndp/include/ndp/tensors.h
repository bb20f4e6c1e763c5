/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tensors.h - the named tensors of a model file or of a set of such files.
 *
 * Formats:
 *   safetensors: one file; a directory with model.safetensors, or with
 *     model.safetensors.index.json and the shards it names, or with nothing but the
 *     shards (NAME-00001-of-00003.safetensors, ...), all of them;
 *   GGUF version 2 and 3, little-endian: one file; any shard of a split model, whose
 *     others lie beside it; a directory with one such model.
 * What a file is, is decided by how it begins, not by its name.
 *
 * Files are taken for hostile: every field is checked before anything is handed
 * out, and a set is either open as a whole or not at all.  The files are mapped
 * read-only; whoever truncates one while it is open makes reads of it end with
 * SIGBUS, as with any mapped file.
 *
 * Threads: an open set never changes and may be read by several threads.
 */
#ifndef NDP_TENSORS_H
#define NDP_TENSORS_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ndp_dtype {
	NDP_DTYPE_BOOL,
	NDP_DTYPE_U8,
	NDP_DTYPE_I8,
	NDP_DTYPE_F8_E5M2,
	NDP_DTYPE_F8_E4M3,
	NDP_DTYPE_I16,
	NDP_DTYPE_U16,
	NDP_DTYPE_F16,
	NDP_DTYPE_BF16,
	NDP_DTYPE_I32,
	NDP_DTYPE_U32,
	NDP_DTYPE_F32,
	NDP_DTYPE_I64,
	NDP_DTYPE_U64,
	NDP_DTYPE_F64,
	/* GGUF's, in blocks of elements. */
	NDP_DTYPE_Q4_0,
	NDP_DTYPE_Q4_1,
	NDP_DTYPE_Q5_0,
	NDP_DTYPE_Q5_1,
	NDP_DTYPE_Q8_0,
	NDP_DTYPE_Q8_1,
	NDP_DTYPE_Q2_K,
	NDP_DTYPE_Q3_K,
	NDP_DTYPE_Q4_K,
	NDP_DTYPE_Q5_K,
	NDP_DTYPE_Q6_K,
	NDP_DTYPE_Q8_K,
	NDP_DTYPE_IQ1_S,
	NDP_DTYPE_IQ1_M,
	NDP_DTYPE_IQ2_XXS,
	NDP_DTYPE_IQ2_XS,
	NDP_DTYPE_IQ2_S,
	NDP_DTYPE_IQ3_XXS,
	NDP_DTYPE_IQ3_S,
	NDP_DTYPE_IQ4_NL,
	NDP_DTYPE_IQ4_XS,
	NDP_DTYPE_TQ1_0,
	NDP_DTYPE_TQ2_0,
	NDP_DTYPE_MXFP4,
	NDP_DTYPE_NVFP4,
};

/* As the formats spell it ("BF16", "Q8_0"). */
const char *ndp_dtype_name(enum ndp_dtype dtype);
/* Elements of a block, 1 where there are no blocks; 0: no dtype. */
uint32_t ndp_dtype_block(enum ndp_dtype dtype);
/* Bytes of a block, so of an element where there are no blocks; 0: no dtype. */
size_t ndp_dtype_bytes(enum ndp_dtype dtype);
/* Whether ndp_tensor_read_f32() and ndp_tensor_read_bf16() read it. */
bool ndp_dtype_readable(enum ndp_dtype dtype);

#define NDP_TENSOR_MAX_DIMS 8

struct ndp_tensor {
	const char *name;
	const char *file;	/* path of the file that holds it */
	enum ndp_dtype dtype;
	uint32_t nr_dims;	/* 0: a scalar */
	uint64_t dims[NDP_TENSOR_MAX_DIMS];	/* outermost first, in GGUF as well */
	uint64_t elements;	/* product of @dims */
	uint64_t bytes;
	/* Little-endian, row-major, at any alignment; rows are whole blocks. */
	const void *data;
};

struct ndp_tensors;

/*
 * Opens the file or directory @path.  On failure *ts is not touched and @err
 * names the file, the tensor or key, and the field: -ENOENT (no such file, or a
 * shard is missing), -EINVAL (malformed, or shards that disagree), -ENOTSUP (a
 * version or type of a later format), -ENOMEM, or what the system said.
 */
int ndp_tensors_open(struct ndp_tensors **ts, const char *path, struct ndp_error *err);
/* Every tensor of the set becomes invalid. */
void ndp_tensors_close(struct ndp_tensors *ts);

/* "safetensors" or "gguf". */
const char *ndp_tensors_format(const struct ndp_tensors *ts);

size_t ndp_tensors_count(const struct ndp_tensors *ts);
/* Tensor @index in the order of names (bytes compared), NULL past the end. */
const struct ndp_tensor *ndp_tensors_get(const struct ndp_tensors *ts, size_t index);
/* NULL when there is none of this name. */
const struct ndp_tensor *ndp_tensors_find(const struct ndp_tensors *ts, const char *name);

/*
 * The tensor @name, which must have the @nr_dims dimensions @dims: -ENOENT when
 * it is missing, -EINVAL when its shape is another one.
 */
int ndp_tensors_require(const struct ndp_tensors *ts, const char *name, uint32_t nr_dims,
			const uint64_t *dims, const struct ndp_tensor **t,
			struct ndp_error *err);

/*
 * Copies elements [first, first + count) out, wherever blocks begin.  Reads F32,
 * F16, BF16, Q8_0, Q4_0 and MXFP4: widened exactly to FP32; to BF16 rounded to
 * nearest even.  -ENOTSUP: another dtype; -ERANGE: not all of these elements exist.
 */
int ndp_tensor_read_f32(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *dst);
int ndp_tensor_read_bf16(const struct ndp_tensor *t, uint64_t first, uint64_t count,
			 ndp_bf16 *dst);

/* ---- metadata: the key/value pairs of GGUF; safetensors has none ------- */

enum ndp_meta_type {
	NDP_META_UINT,
	NDP_META_INT,
	NDP_META_FLOAT,
	NDP_META_BOOL,
	NDP_META_STRING,
	NDP_META_ARRAY,		/* an array in an array: no function reads it */
};

struct ndp_meta {
	const char *key;
	const char *file;
	enum ndp_meta_type type;	/* of the value, or of an array's elements */
	bool array;
	uint64_t count;		/* elements of the array, else 1 */
};

size_t ndp_tensors_meta_count(const struct ndp_tensors *ts);
/* Number @index in the order of keys (bytes compared), NULL past the end. */
const struct ndp_meta *ndp_tensors_meta_get(const struct ndp_tensors *ts, size_t index);
/* NULL when there is none of this key.  Of a split model the first shard's count. */
const struct ndp_meta *ndp_tensors_meta_find(const struct ndp_tensors *ts, const char *key);

/*
 * Element @index of the value of @key; 0 for what is no array.  u64 takes integers
 * from 0 on, i64 all that fit, f64 any number.  -ENOENT: no such key; -EINVAL: of
 * another type; -ERANGE: no such element, or its value does not fit.
 */
int ndp_tensors_meta_u64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 uint64_t *value, struct ndp_error *err);
int ndp_tensors_meta_i64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 int64_t *value, struct ndp_error *err);
int ndp_tensors_meta_f64(const struct ndp_tensors *ts, const char *key, uint64_t index,
			 double *value, struct ndp_error *err);
int ndp_tensors_meta_bool(const struct ndp_tensors *ts, const char *key, uint64_t index,
			  bool *value, struct ndp_error *err);
/*
 * The bytes of a string, in the file: @length of them, no NUL after them.  Valid
 * until the set is closed.
 */
int ndp_tensors_meta_string(const struct ndp_tensors *ts, const char *key, uint64_t index,
			    const char **value, size_t *length, struct ndp_error *err);

#ifdef __cplusplus
}
#endif

#endif
