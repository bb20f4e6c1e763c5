/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trace.h - a record of the routing: CSV "step,layer,expert,count", counts of
 * zero left out.  A step is one pass through the layers: all tokens of a prompt
 * (or of a piece of it), or one generated token.  Policies of placement are
 * developed on such files.
 */
#ifndef NDP_RUN_TRACE_H
#define NDP_RUN_TRACE_H

#include <ndp/error.h>
#include <stdint.h>

struct trace;

int trace_open(struct trace **t, const char *path, uint32_t nr_experts, struct ndp_error *err);
/* @ids: the experts of all tokens of this step, @n of them. */
void trace_layer(struct trace *t, uint32_t layer, const uint32_t *ids, uint32_t n);
void trace_next_step(struct trace *t);
/* Also frees @t (may be NULL); -errno when something could not be written. */
int trace_close(struct trace *t, struct ndp_error *err);

#endif
