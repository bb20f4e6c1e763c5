/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sched_layers.h - the layers that the scheduler's benches are about: loads of a
 * source, the most loaded experts in GPU memory, the others placed by a rule.
 */
#ifndef NDP_BENCH_SCHED_LAYERS_H
#define NDP_BENCH_SCHED_LAYERS_H

#include <ndp/sched.h>

enum placement {
	SPREAD,		/* (i): every expert over all DIMMs */
	LOCALIZED,	/* (ii): each in one DIMM, round-robin by falling load */
	BY_CLASS,	/* the next 25 % spread, the others localized */
};

struct layers {
	struct ndp_host host;
	struct ndp_shape shape;
	uint32_t nr;
	uint32_t *tokens;	/* [nr][experts] */
	/* Of the layer that layers_get() was last asked for. */
	uint16_t *blocks;
	uint8_t *on_gpu;
};

/* From share/hosts and share/models. @loads: "top5=..." or a trace. Ends the program on errors. */
void layers_load(struct layers *l, const char *host, const char *model, const char *loads,
		 uint32_t batch, uint32_t nr);
void layers_free(struct layers *l);
/* Only the machine and the experts are other ones: @experts with the same skew, on @dimms DIMMs. */
void layers_draw(struct layers *l, uint32_t experts, uint32_t dimms, uint32_t batch, uint32_t nr);

/* Layer @k, placed; valid until the next call. */
struct ndp_layer layers_get(struct layers *l, uint32_t k, enum placement placement,
			    uint32_t charges);

#endif
