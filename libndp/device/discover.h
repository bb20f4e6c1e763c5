/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * discover.h - ndp_discover() with the directories it looks into as arguments,
 * so that tests can build a machine of their own.
 */
#ifndef NDP_DISCOVER_H
#define NDP_DISCOVER_H

#include <ndp/device.h>

struct ndpi_roots {
	const char *sys; /* "/sys" */
	const char *dev; /* "/dev" */
};

extern const struct ndpi_roots ndpi_system_roots;

int ndpi_discover(const struct ndpi_roots *roots, struct ndp_node *nodes, size_t max,
		  struct ndp_error *err);

/* Explains why open() of @path failed with @code, a negative errno; returns it. */
int ndpi_explain_open(const struct ndpi_roots *roots, const char *path, int code,
		      struct ndp_error *err);

#endif
