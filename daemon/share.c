// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * share.c - what clients on one device share is divided by their weights: the time of
 * DIMM-Links that migrations may take, and memory.  Who does not move anything (yet)
 * takes nothing from anybody.
 *
 * A device is its node; an in-process device is nobody else's.
 */
#include "ndpd.h"

#include <string.h>

static bool moves(const struct client *c)
{
	return c->state == CLIENT_RUNNING && c->hands;
}

static bool together(const struct client *a, const struct client *b)
{
	return a->node[0] && !strcmp(a->node, b->node);
}

double share_of(const struct ndpd *d, const struct client *c)
{
	double all = c->weight; /* also when it does not run yet */

	for (const struct client *o = d->clients; o; o = o->next)
		if (o != c && moves(o) && together(c, o))
			all += o->weight;
	return c->weight / all;
}

void shares_update(struct ndpd *d)
{
	for (struct client *c = d->clients; c; c = c->next)
		c->weight = config_weight(&d->config, c->name);
	for (struct client *c = d->clients; c; c = c->next)
		if (c->state == CLIENT_RUNNING)
			brain_share(c, share_of(d, c));
}
