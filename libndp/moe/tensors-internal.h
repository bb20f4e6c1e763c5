/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tensors-internal.h - what the readers of single formats share with the set
 * of tensors that they fill.
 */
#ifndef NDP_TENSORS_INTERNAL_H
#define NDP_TENSORS_INTERNAL_H

#include "../error.h"

#include <ndp/tensors.h>

/* A file mapped read-only. */
struct tensor_file {
	char *path;
	const uint8_t *base;
	size_t bytes;
};

/* A value of GGUF's metadata, checked and left where it is in the file. */
struct tensor_meta {
	struct ndp_meta pub;	/* owns its key */
	uint32_t raw;		/* enum gguf_type of the value or of an array's elements */
	const uint8_t *data;	/* the first element */
	const uint8_t *end;	/* of the value */
	uint64_t *marks;	/* where strings 64, 128, ... of an array begin, from @data */
	size_t nr_marks;
};

struct ndp_tensors {
	const char *format;
	struct tensor_file **files;
	size_t nr_files;
	struct ndp_tensor *tensors;	/* own their names */
	size_t nr_tensors;
	size_t max_tensors;
	struct tensor_meta *meta;
	size_t nr_meta;
	size_t max_meta;
};

/* Longest name of a tensor, in bytes. */
#define TENSORS_MAX_NAME 1024

/* ---- tensors.c: the set ------------------------------------------------- */

/* Maps the regular file @path, which must not be empty, into the set. */
int ndpi_tensors_add_file(struct ndp_tensors *ts, const char *path, struct tensor_file **f,
			  struct ndp_error *err);
/* Appends a copy of @t, with a copy of its name. */
int ndpi_tensors_add(struct ndp_tensors *ts, const struct ndp_tensor *t, struct ndp_error *err);
/* The tensors from @first on in the order of their data; for free(). */
int ndpi_tensors_by_position(const struct ndp_tensors *ts, size_t first,
			     const struct ndp_tensor ***sorted, struct ndp_error *err);
/* After the last file: look-ups work from here on, and every name is there once. */
int ndpi_tensors_finish(struct ndp_tensors *ts, struct ndp_error *err);
/* Drops what was read so far. */
void ndpi_tensors_clear(struct ndp_tensors *ts);

/* The dtype of this name with a number below @limit, or -1. */
int ndpi_dtype_find(const char *name, enum ndp_dtype limit);

/* ---- tensors-dir.c: which files of a directory make a model ------------- */

int ndpi_tensors_open_directory(struct ndp_tensors *ts, const char *dir, struct ndp_error *err);

/*
 * Takes "PREFIX-00002-of-00005EXT" apart: *@prefix is the length of PREFIX.  False
 * when @name is no such name.
 */
bool ndpi_shard_name(const char *name, const char *ext, size_t *prefix, uint32_t *no,
		     uint32_t *count);

/* ---- safetensors.c ------------------------------------------------------ */

/* Reads the header of @f, checks all of it and appends its tensors to @ts. */
int ndpi_safetensors_read(struct ndp_tensors *ts, const struct tensor_file *f,
			  struct ndp_error *err);

/* ---- gguf.c, gguf-meta.c, gguf-split.c ---------------------------------- */

/* What a file says about the split model of which it is a shard. */
struct gguf_split {
	uint64_t count;		/* 0: of none */
	uint64_t no;		/* from 0 */
	uint64_t tensors;	/* in all shards */
};

bool ndpi_gguf_is(const struct tensor_file *f);
/* Reads the table of @f, checks all of it and appends its tensors and metadata to @ts. */
int ndpi_gguf_read(struct ndp_tensors *ts, const struct tensor_file *f,
		   struct gguf_split *split, struct ndp_error *err);
/* Opens the GGUF file @path, with the other shards of its model. */
int ndpi_gguf_open(struct ndp_tensors *ts, const char *path, struct ndp_error *err);

#endif
