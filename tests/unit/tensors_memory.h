/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * tensors_memory.h - runs the readers of model files on bytes in memory, which end where
 * the file ends: a read beyond it is then one that AddressSanitizer sees, which it is not
 * in a mapping, whose last page goes on.
 */
#ifndef TENSORS_MEMORY_H
#define TENSORS_MEMORY_H

#include "../../libndp/moe/tensors-internal.h"

#include <stdlib.h>
#include <string.h>

/* As ndp_tensors_open() of a file with these bytes.  @name and @bytes must outlive the set. */
static inline int tensors_open_memory(struct ndp_tensors **out, const void *bytes, size_t n,
				      char *name, struct tensor_file *file, struct ndp_error *err)
{
	struct ndp_tensors *ts = calloc(1, sizeof(*ts));
	struct gguf_split split;
	int r;

	*file = (struct tensor_file){ .path = name, .base = bytes, .bytes = n };
	if (!ts)
		abort();
	if (ndpi_gguf_is(file)) {
		ts->format = "gguf";
		r = ndpi_gguf_read(ts, file, &split, err);
	} else {
		ts->format = "safetensors";
		r = ndpi_safetensors_read(ts, file, err);
	}
	if (r == 0)
		r = ndpi_tensors_finish(ts, err);
	if (r < 0)
		ndp_tensors_close(ts);
	else
		*out = ts;
	return r;
}

#endif
