// SPDX-License-Identifier: GPL-2.0-or-later
/* trace.c - see trace.h. */
#include "trace.h"
#include "error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace {
	FILE *file;
	char *path;
	uint64_t step;
	uint32_t nr_experts;
	uint32_t *counts; /* zero between calls */
};

int trace_open(struct trace **out, const char *path, uint32_t nr_experts, struct ndp_error *err)
{
	struct trace *t = calloc(1, sizeof(*t));

	if (t) {
		t->nr_experts = nr_experts;
		t->path = strdup(path);
		t->counts = calloc(nr_experts, sizeof(*t->counts));
	}
	if (!t || !t->path || !t->counts) {
		trace_close(t, err);
		return fail(err, -ENOMEM, "out of memory");
	}
	t->file = fopen(path, "we");
	if (!t->file) {
		int r = fail(err, -errno, "%s: cannot be written: %s", path, strerror(errno));
		struct ndp_error ignored;

		trace_close(t, &ignored);
		return r;
	}
	fputs("step,layer,expert,count\n", t->file);
	*out = t;
	return 0;
}

void trace_layer(struct trace *t, uint32_t layer, const uint32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		t->counts[ids[i]]++;
	for (uint32_t e = 0; e < t->nr_experts; e++) {
		if (t->counts[e])
			fprintf(t->file, "%llu,%u,%u,%u\n", (unsigned long long)t->step, layer, e,
				t->counts[e]);
		t->counts[e] = 0;
	}
}

void trace_next_step(struct trace *t)
{
	t->step++;
}

int trace_close(struct trace *t, struct ndp_error *err)
{
	int r = 0;

	if (!t)
		return 0;
	if (t->file) {
		int bad = ferror(t->file);

		errno = 0;
		if (fclose(t->file) != 0 || bad)
			r = fail(err, errno ? -errno : -EIO, "%s: cannot be written: %s", t->path,
				 errno ? strerror(errno) : "an earlier write failed");
	}
	free(t->counts);
	free(t->path);
	free(t);
	return r;
}
