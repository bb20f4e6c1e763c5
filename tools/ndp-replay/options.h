/* SPDX-License-Identifier: GPL-2.0-or-later */
/* options.h - the command line of ndp-replay. */
#ifndef NDP_REPLAY_OPTIONS_H
#define NDP_REPLAY_OPTIONS_H

#include <ndp/place.h>
#include <ndp/sched.h>
#include <stdbool.h>

/* Where experts are; ndp-replay(1) says what each means. */
enum placement {
	PLACEMENT_ENGINE,	/* spread, then each policy's placement engine moves them */
	PLACEMENT_ENGINE_LOCAL,	/* the same from one DIMM each */
	PLACEMENT_SPREAD,
	PLACEMENT_LOCAL,
	PLACEMENT_ORACLE_SPREAD,
	PLACEMENT_ORACLE_LOCAL,
	PLACEMENTS,
};

const char *placement_name(enum placement p);

/* Of an enum ndp_place_kind. */
const char *move_name(unsigned int kind);

static inline bool placement_moves(enum placement p)
{
	return p == PLACEMENT_ENGINE || p == PLACEMENT_ENGINE_LOCAL;
}

enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_CSV };

struct options {
	const char *trace;
	const char *synthetic;
	const char *model;
	const char *host;
	const char *plot;
	uint32_t batch;		/* 0: as recorded */
	uint32_t steps;		/* 0: all */
	uint64_t seed;
	uint32_t policies;	/* bits 1 << enum ndp_policy */
	uint32_t charges;
	enum placement placement;
	uint32_t moves;		/* kinds of actions: bits 1 << enum ndp_place_kind */
	uint64_t gpu_slots;	/* experts that GPU memory may hold, of all layers */
	bool has_gpu_slots;	/* else what the host says */
	enum format format;
	uint32_t reference;	/* layers to solve by GLPK; 0: none */
	bool layers;
	bool help;
};

extern const char options_usage[];

/* -EINVAL and a sentence. */
int options_parse(struct options *o, int argc, char **argv, struct ndp_error *err);

#endif
