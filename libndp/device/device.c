/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * device.c - opening a link domain, and what it is.
 *
 * The back end is chosen by the specification alone: "soft:" asks for the
 * in-process one, everything else is a node.  There is no fall-back from one to
 * the other.
 */
#include "internal.h"

#include "discover.h"

#include <errno.h>
#include <string.h>

int ndp_open(struct ndp_device **dev, const char *spec, struct ndp_error *err)
{
	struct ndp_node node;
	int r;

	*dev = NULL;
	ndpi_error_clear(err);
	if (spec && !strncmp(spec, "soft:", 5))
		return ndpi_soft_open(dev, spec + 5, err);
	if (spec && !strcmp(spec, "soft"))
		return ndpi_soft_open(dev, "", err);
	if (!spec || !*spec) {
		r = ndp_discover(&node, 1, err);
		if (r < 0)
			return r;
		if (!r) {
			if (err)
				err->code = -ENODEV;
			return -ENODEV;
		}
		spec = node.path;
	}
	return ndpi_kernel_open(dev, spec, err);
}

void ndpi_device_get(struct ndp_device *dev)
{
	__atomic_add_fetch(&dev->refs, 1, __ATOMIC_RELAXED);
}

void ndpi_device_put(struct ndp_device *dev)
{
	if (!__atomic_sub_fetch(&dev->refs, 1, __ATOMIC_ACQ_REL))
		dev->ops->close(dev);
}

void ndp_close(struct ndp_device *dev)
{
	if (dev)
		ndpi_device_put(dev);
}

int ndp_device_info(struct ndp_device *dev, struct ndp_device_info *info)
{
	memset(info, 0, sizeof(*info));
	memcpy(info->name, dev->name, sizeof(info->name));
	return dev->ops->info(dev, info);
}

int ndp_dimm_info(struct ndp_device *dev, uint32_t dimm, struct ndp_dimm_info *info)
{
	memset(info, 0, sizeof(*info));
	if (dimm >= NDP_MAX_DIMMS)
		return -ENXIO;
	return dev->ops->dimm_info(dev, dimm, info);
}

int ndp_placement_fd(struct ndp_device *dev)
{
	return dev->ops->placement_fd(dev);
}

int ndp_placement_revoke(struct ndp_device *dev)
{
	return dev->ops->placement_revoke(dev);
}
