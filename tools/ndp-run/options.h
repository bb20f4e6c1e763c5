/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * options.h - the command line of ndp-run.
 */
#ifndef NDP_RUN_OPTIONS_H
#define NDP_RUN_OPTIONS_H

#include <ndp/error.h>
#include <stdbool.h>
#include <stdint.h>

#define OPTIONS_GPU_ALL UINT64_MAX

struct options {
	const char *model;
	const char *device; /* NULL: the first domain found */
	const char *placement;
	uint32_t domains; /* bits of enum ndp_domain */
	int policy; /* enum ndp_policy */
	uint64_t gpu_experts; /* bytes of GPU memory; OPTIONS_GPU_ALL: what it has room for */
	const char *gpu;
	uint32_t threads; /* 0: one for each CPU */
	const char *host; /* profile; NULL: a guess */
	bool deterministic;
	bool daemon;
	const char *daemon_socket; /* NULL: the usual one */
	uint32_t migrate_ms; /* 0: no migration */
	const char *check;
	const char *prompt;
	const char *prompt_file;
	const char *trace;
	uint32_t tokens;
	float temperature;
	uint32_t top_k;
	float top_p;
	uint64_t seed;
	bool json;
	bool quiet;
	bool list;
	bool help;
	bool lock;
	const char *lock_file; /* NULL: the device's node */
};

/* -EINVAL with a sentence for the user. */
int options_parse(struct options *o, int argc, char **argv, struct ndp_error *err);

extern const char options_usage[];

#endif
