/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * profile.h - machines and models as JSON files (share/hosts, share/models).
 *
 * Every number in them is an object {"value", "source", "kind"} with an optional
 * "formula" and "note"; "source" names entries of the file's "sources".  The
 * reader is strict: a field that is missing, unknown, there twice, of the wrong
 * type or out of range is an error that names file and field.  A domain computes
 * at peak x efficiency, or by an optional "table" of [tokens, GFLOP/s] pairs.
 */
#ifndef NDP_REPLAY_PROFILE_H
#define NDP_REPLAY_PROFILE_H

#include <ndp/sched.h>

enum { PROFILE_NAME = 64 };

struct host_profile {
	char name[PROFILE_NAME];
	struct ndp_host host;
};

struct model_profile {
	char name[PROFILE_NAME];
	struct ndp_shape shape;
	uint32_t layers;	/* with dense ones */
	uint32_t dense_layers;
};

/*
 * The file that @name means: itself when it has a '/' or ends in ".json", else
 * NAME.json in @kind ("hosts" or "models") under $NDP_SHARE, or ../share or
 * ../share/moendp from the program.  The caller frees *path.  -ENOENT: none of these is there.
 */
int profile_find(const char *kind, const char *name, char **path, struct ndp_error *err);

int host_profile_load(struct host_profile *p, const char *path, struct ndp_error *err);
int model_profile_load(struct model_profile *p, const char *path, struct ndp_error *err);

#endif
