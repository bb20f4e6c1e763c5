/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * profile.h - machines and models as JSON files (share/hosts, share/models), for
 * the scheduler.
 *
 * Every number in them is an object {"value", "source", "kind"} with an optional
 * "formula" and "note"; "source" names entries of the file's "sources", "kind" is
 * stated, derived, assumed or measured.  The
 * reader is strict: a field that is missing, unknown, there twice, of the wrong
 * type or out of range is an error that names file and field.  A domain computes
 * at peak x efficiency, or by an optional "table" of [tokens, GFLOP/s] pairs.
 */
#ifndef NDP_PROFILE_H
#define NDP_PROFILE_H

#include <ndp/sched.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NDP_PROFILE_NAME = 64 };

struct ndp_host_profile {
	char name[NDP_PROFILE_NAME];
	struct ndp_host host;
};

struct ndp_model_profile {
	char name[NDP_PROFILE_NAME];
	struct ndp_shape shape;
	uint32_t layers;	/* with dense ones */
	uint32_t dense_layers;
};

/*
 * The file that @name means: itself when it has a '/' or ends in ".json", else
 * NAME.json in @kind ("hosts" or "models") under $NDP_SHARE, or ../share or
 * ../share/moendp from the program.  The caller frees *path.  -ENOENT: none of
 * these is there.
 */
int ndp_profile_find(const char *kind, const char *name, char **path, struct ndp_error *err);

int ndp_host_profile_load(struct ndp_host_profile *p, const char *path, struct ndp_error *err);
int ndp_model_profile_load(struct ndp_model_profile *p, const char *path, struct ndp_error *err);

#ifdef __cplusplus
}
#endif

#endif
