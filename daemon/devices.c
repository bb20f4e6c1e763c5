// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * devices.c - the NDP devices of this machine, opened for what they say of
 * themselves: memory, counters, resets.  Nothing is ever allocated on them here.
 */
#include "ndpd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 64 };

static struct node *find(struct ndpd *d, const char *path)
{
	for (struct node *n = d->nodes; n; n = n->next)
		if (!strcmp(n->path, path))
			return n;
	return NULL;
}

static void add(struct ndpd *d, const struct ndp_node *found)
{
	struct ndp_device *dev;
	struct node *n;

	if (ndp_open(&dev, found->path, NULL) < 0)
		return;
	n = calloc(1, sizeof(*n));
	if (!n) {
		ndp_close(dev);
		return;
	}
	memcpy(n->path, found->path, sizeof(n->path));
	n->dev = dev;
	n->dimm_mask = found->dimm_mask;
	n->next = d->nodes;
	d->nodes = n;
}

static bool is_gone(const struct node *n)
{
	struct ndp_device_info info;

	return ndp_device_info(n->dev, &info) < 0;
}

void devices_refresh(struct ndpd *d)
{
	struct ndp_node found[MAX_NODES];
	int n = ndp_discover(found, MAX_NODES, NULL);

	for (struct node **at = &d->nodes; *at;) {
		struct node *old = *at;

		if (!is_gone(old)) {
			at = &old->next;
			continue;
		}
		*at = old->next;
		ndp_close(old->dev);
		free(old);
	}
	for (int i = 0; i < n; i++)
		if (found[i].dimm < 0 && !find(d, found[i].path))
			add(d, &found[i]);
}

void devices_end(struct ndpd *d)
{
	while (d->nodes) {
		struct node *n = d->nodes;

		d->nodes = n->next;
		ndp_close(n->dev);
		free(n);
	}
}

int ndpd_dimm(struct ndpd *d, const struct client *c, uint32_t dimm, struct ndp_dimm_info *info)
{
	struct node *n;

	if (!c->node[0])
		return c->hands && hands_dimm(c->hands, dimm, info) ? 0 : -ENODEV;
	n = find(d, c->node);
	return n ? ndp_dimm_info(n->dev, dimm, info) : -ENODEV;
}
