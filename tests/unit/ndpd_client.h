/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndpd_client.h - a client of ndpd by hand, which can say what the library never would, and
 * an honest application beside it that must be served all the time.
 */
#ifndef NDPD_CLIENT_H
#define NDPD_CLIENT_H

#include "ndpd_world.h"

#include <fcntl.h>

enum { RING_SLOTS = 16, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

struct hello {
	struct ndp_msg_hello m;
	size_t bytes;
	int fds[250];	/* the first is ours to close, unless it is somebody's */
	uint32_t nr_fds;
	int ring;
};

size_t ring_bytes(void);

int make_ring(size_t bytes, int seals);

struct hello honest(const struct world *w);

/* Says it, and closes the ring's descriptor. */
int say_hello(const struct world *w, const struct hello *h);

struct ndp_ring *map_ring(const struct hello *h);

/* As ndp_placement_post(), of a layer that there may not be: most tokens go to four experts. */
void post_raw(struct ndp_ring *r, uint32_t layer, uint32_t hot);

/* Of the client that was attached by attach(): the model's name says which. */
double posts_read(const struct world *w);

int32_t code_of(int connection);

double seconds(void);

/* Posts of the attached, honest client are read; within @s seconds. */
void expect_service(struct world *w, double s);

int connection_to(const struct world *w);

#endif
