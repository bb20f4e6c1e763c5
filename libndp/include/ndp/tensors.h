/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tensors.h - the named tensors of a model file or of a set of such files.
 *
 * Formats: safetensors, as one file, as a directory with model.safetensors, or
 * as a directory with model.safetensors.index.json and the shards it names.
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
};

/* As files spell it ("BF16"), and the bytes of an element. */
const char *ndp_dtype_name(enum ndp_dtype dtype);
size_t ndp_dtype_bytes(enum ndp_dtype dtype);

#define NDP_TENSOR_MAX_DIMS 8

struct ndp_tensor {
	const char *name;
	const char *file;	/* path of the file that holds it */
	enum ndp_dtype dtype;
	uint32_t nr_dims;	/* 0: a scalar */
	uint64_t dims[NDP_TENSOR_MAX_DIMS];	/* outermost first */
	uint64_t elements;	/* product of @dims */
	uint64_t bytes;
	const void *data;	/* little-endian, row-major, at any alignment */
};

struct ndp_tensors;

/*
 * Opens the file or directory @path.  On failure *ts is not touched and @err
 * names the file, the tensor and the field: -ENOENT (no such file, or a shard
 * that the index names is missing), -EINVAL (malformed), -ENOMEM, or what the
 * system said.
 */
int ndp_tensors_open(struct ndp_tensors **ts, const char *path, struct ndp_error *err);
/* Every tensor of the set becomes invalid. */
void ndp_tensors_close(struct ndp_tensors *ts);

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
 * Copies elements [first, first + count) out.  ndp_tensor_read_f32() widens BF16
 * and F16 exactly and copies F32; ndp_tensor_read_bf16() copies BF16.  -ENOTSUP:
 * another dtype; -ERANGE: not all of these elements exist.
 */
int ndp_tensor_read_f32(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *dst);
int ndp_tensor_read_bf16(const struct ndp_tensor *t, uint64_t first, uint64_t count,
			 ndp_bf16 *dst);

#ifdef __cplusplus
}
#endif

#endif
