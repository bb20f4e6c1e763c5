/* SPDX-License-Identifier: GPL-2.0-or-later */
/* options.h - the command line of ndp-replay. */
#ifndef NDP_REPLAY_OPTIONS_H
#define NDP_REPLAY_OPTIONS_H

#include <ndp/sched.h>
#include <stdbool.h>

/* Where experts are; ndp-replay(1) says what each means. */
enum placement {
	PLACEMENT_ENGINE,	/* the placement engine moves them */
	PLACEMENT_SPREAD,
	PLACEMENT_LOCAL,
	PLACEMENT_ORACLE_SPREAD,
	PLACEMENT_ORACLE_LOCAL,
	PLACEMENTS,
};

const char *placement_name(enum placement p);

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
	enum format format;
	uint32_t reference;	/* layers to solve by GLPK; 0: none */
	bool layers;
	bool help;
};

extern const char options_usage[];

/* -EINVAL and a sentence. */
int options_parse(struct options *o, int argc, char **argv, struct ndp_error *err);

#endif
