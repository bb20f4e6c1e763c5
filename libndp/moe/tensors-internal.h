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

struct ndp_tensors {
	struct tensor_file **files;
	size_t nr_files;
	struct ndp_tensor *tensors;	/* own their names */
	size_t nr_tensors;
	size_t max_tensors;
};

/* Appends a copy of @t, with a copy of its name. */
int tensors_add(struct ndp_tensors *ts, const struct ndp_tensor *t, struct ndp_error *err);

/* Longest name of a tensor, in bytes. */
#define TENSORS_MAX_NAME 1024

/* Reads the header of @f, checks all of it and appends its tensors to @ts. */
int safetensors_read(struct ndp_tensors *ts, const struct tensor_file *f,
		     struct ndp_error *err);

#endif
