// SPDX-License-Identifier: GPL-2.0-only
/*
 * sysfs.c - attributes of domains (/sys/class/ndp/ndpN) and, as their
 * children, of DIMMs (ndpNdK, with a link "pci" to the function).
 *
 * Numbers are decimal, masks hexadecimal.  Only root changes anything: a
 * domain's quota_bytes, and a DIMM's reset.
 */
#include <linux/sysfs.h>

#include "ndp.h"

static struct ndp_domain *to_domain(struct device *dev)
{
	return container_of(dev, struct ndp_domain, node.dev);
}

static struct ndp_dimm *to_dimm(struct device *dev)
{
	return container_of(dev, struct ndp_dimm, node.dev);
}

/* ---- domain -------------------------------------------------------------- */

static ssize_t domain_show(struct device *dev, struct device_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%pUb\n", to_domain(dev)->uuid);
}
static DEVICE_ATTR_RO(domain);

static ssize_t dimms_show(struct device *dev, struct device_attribute *attr,
			  char *buf)
{
	return sysfs_emit(buf, "%#x\n", ndp_domain_mask(to_domain(dev)));
}
static DEVICE_ATTR_RO(dimms);

static ssize_t objects_show(struct device *dev, struct device_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(to_domain(dev)->nr_bos));
}
static DEVICE_ATTR_RO(objects);

static ssize_t quota_bytes_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n",
			  READ_ONCE(to_domain(dev)->quota_bytes));
}

static ssize_t quota_bytes_store(struct device *dev,
				 struct device_attribute *attr,
				 const char *buf, size_t len)
{
	struct ndp_domain *domain = to_domain(dev);
	u64 bytes;
	int r;

	r = kstrtou64(buf, 0, &bytes);
	if (r < 0)
		return r;
	spin_lock(&domain->user_lock);
	domain->quota_bytes = bytes;
	spin_unlock(&domain->user_lock);
	return len;
}
static DEVICE_ATTR_RW(quota_bytes);

static struct attribute *ndp_domain_attrs[] = {
	&dev_attr_domain.attr,
	&dev_attr_dimms.attr,
	&dev_attr_objects.attr,
	&dev_attr_quota_bytes.attr,
	NULL
};

static const struct attribute_group ndp_domain_group = {
	.attrs = ndp_domain_attrs,
};

const struct attribute_group *ndp_domain_groups[] = {
	&ndp_domain_group,
	NULL
};

/* ---- DIMM ---------------------------------------------------------------- */

static const char * const ndp_state_names[] = {
	[MOENDP_DIMM_ABSENT] = "absent",
	[MOENDP_DIMM_READY] = "ready",
	[MOENDP_DIMM_RESETTING] = "resetting",
	[MOENDP_DIMM_FAILED] = "failed",
};

static ssize_t state_show(struct device *dev, struct device_attribute *attr,
			  char *buf)
{
	u32 state = READ_ONCE(to_dimm(dev)->state);

	return sysfs_emit(buf, "%s\n", ndp_state_names[state]);
}
static DEVICE_ATTR_RO(state);

/* Memory is kept, commands under way end.  The write ends when the reset does. */
static ssize_t reset_store(struct device *dev, struct device_attribute *attr,
			   const char *buf, size_t len)
{
	bool yes;
	int r;

	r = kstrtobool(buf, &yes);
	if (r < 0)
		return r;
	if (!yes)
		return -EINVAL;
	r = ndp_dimm_reset(to_dimm(dev), NDP_NO_QUEUE);
	return r < 0 ? r : len;
}
static DEVICE_ATTR_WO(reset);

#define NDP_DIMM_ATTR(name, format, value)				\
static ssize_t name##_show(struct device *dev,				\
			   struct device_attribute *attr, char *buf)	\
{									\
	struct ndp_dimm *dimm = to_dimm(dev);				\
									\
	return sysfs_emit(buf, format "\n", value);			\
}									\
static DEVICE_ATTR_RO(name)

NDP_DIMM_ATTR(node, "%u", dimm->id);
NDP_DIMM_ATTR(generation, "%u", READ_ONCE(dimm->generation));
NDP_DIMM_ATTR(resets, "%u", READ_ONCE(dimm->resets));
NDP_DIMM_ATTR(coherent, "%u", dimm->coherent);
NDP_DIMM_ATTR(peers, "%#x", ndp_hw_peers(dimm));
NDP_DIMM_ATTR(cache_lines_flushed, "%llu",
	      (u64)atomic64_read(&dimm->lines_flushed));
NDP_DIMM_ATTR(inflight, "%u",
	      ndp_queue_inflight(&dimm->queue[NDP_Q_COMPUTE]) +
	      ndp_queue_inflight(&dimm->queue[NDP_Q_LINK]));

static struct ndp_mm_stats ndp_mm(struct ndp_dimm *dimm)
{
	struct ndp_mm_stats stats;

	ndp_mm_stats(dimm, &stats);
	return stats;
}

NDP_DIMM_ATTR(mem_bytes, "%llu", ndp_mm(dimm).mem_bytes);
NDP_DIMM_ATTR(free_bytes, "%llu", ndp_mm(dimm).free_bytes);
NDP_DIMM_ATTR(largest_free_bytes, "%llu", ndp_mm(dimm).largest_free_bytes);
NDP_DIMM_ATTR(allocated_bytes, "%llu", ndp_mm(dimm).allocated_bytes);
NDP_DIMM_ATTR(extents, "%u", ndp_mm(dimm).extents);

static struct attribute *ndp_dimm_attrs[] = {
	&dev_attr_state.attr,
	&dev_attr_reset.attr,
	&dev_attr_node.attr,
	&dev_attr_generation.attr,
	&dev_attr_resets.attr,
	&dev_attr_coherent.attr,
	&dev_attr_peers.attr,
	&dev_attr_cache_lines_flushed.attr,
	&dev_attr_inflight.attr,
	&dev_attr_mem_bytes.attr,
	&dev_attr_free_bytes.attr,
	&dev_attr_largest_free_bytes.attr,
	&dev_attr_allocated_bytes.attr,
	&dev_attr_extents.attr,
	NULL
};

static const struct attribute_group ndp_dimm_group = {
	.attrs = ndp_dimm_attrs,
};

/* Counters: one folder an engine. */
struct ndp_counter_attr {
	struct device_attribute attr;
	u8 queue;
	size_t offset;
};

static ssize_t ndp_counter_show(struct device *dev,
				struct device_attribute *attr, char *buf)
{
	struct ndp_counter_attr *ca = container_of(attr, struct ndp_counter_attr,
						   attr);
	struct moendp_counters counters;

	ndp_counters_read(to_dimm(dev), ca->queue, &counters);
	return sysfs_emit(buf, "%llu\n", *(u64 *)((void *)&counters +
						  ca->offset));
}

#define NDP_COUNTER(q, label, member)					\
	(&((struct ndp_counter_attr[]) {{				\
		.attr.attr.name = (label),				\
		.attr.attr.mode = 0444,					\
		.attr.show = ndp_counter_show,				\
		.queue = (q),						\
		.offset = offsetof(struct moendp_counters, member),	\
	}})[0].attr.attr)

static struct attribute *ndp_compute_attrs[] = {
	NDP_COUNTER(NDP_Q_COMPUTE, "commands", commands),
	NDP_COUNTER(NDP_Q_COMPUTE, "errors", errors),
	NDP_COUNTER(NDP_Q_COMPUTE, "tokens", tokens),
	NDP_COUNTER(NDP_Q_COMPUTE, "bytes", bytes),
	NDP_COUNTER(NDP_Q_COMPUTE, "busy_ns", busy_ns),
	NDP_COUNTER(NDP_Q_COMPUTE, "wall_ns", wall_ns),
	NULL
};

static const struct attribute_group ndp_compute_group = {
	.name = "compute",
	.attrs = ndp_compute_attrs,
};

static struct attribute *ndp_link_attrs[] = {
	NDP_COUNTER(NDP_Q_LINK, "commands", commands),
	NDP_COUNTER(NDP_Q_LINK, "errors", errors),
	NDP_COUNTER(NDP_Q_LINK, "tokens", tokens),
	NDP_COUNTER(NDP_Q_LINK, "bytes", bytes),
	NDP_COUNTER(NDP_Q_LINK, "busy_ns", busy_ns),
	NDP_COUNTER(NDP_Q_LINK, "wall_ns", wall_ns),
	NULL
};

static const struct attribute_group ndp_link_group = {
	.name = "link",
	.attrs = ndp_link_attrs,
};

const struct attribute_group *ndp_dimm_groups[] = {
	&ndp_dimm_group,
	&ndp_compute_group,
	&ndp_link_group,
	NULL
};
