// SPDX-License-Identifier: GPL-2.0-only
/*
 * domain.c - link domains, their DIMMs, and the lifetimes of device nodes.
 *
 * A domain is found by its UUID.  It exists while it has a DIMM or an open
 * file, so a DIMM that comes back joins the domain that its users still hold.
 * The structures live as long as anything refers to them; their device nodes
 * only as long as the thing itself is there.
 *
 * All mappings of a domain belong to one inode of a private file system, so
 * that they can be taken away together, whichever node they came through.
 */
#include <linux/idr.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>
#include <linux/uuid.h>

#include "ndp.h"

#define NDP_FS_MAGIC		0x4e445021

static DEFINE_MUTEX(ndp_domains_lock);
static LIST_HEAD(ndp_domains);
static DEFINE_IDA(ndp_domain_ids);
static dev_t ndp_devt;
static struct vfsmount *ndp_mnt;

struct class ndp_class = {
	.name = "ndp",
};

static int ndp_fs_init_context(struct fs_context *fc)
{
	return init_pseudo(fc, NDP_FS_MAGIC) ? 0 : -ENOMEM;
}

/* No owner: the module's own mount must not keep the module from unloading. */
static struct file_system_type ndp_fs_type = {
	.name = NDP_NAME,
	.init_fs_context = ndp_fs_init_context,
	.kill_sb = kill_anon_super,
};

int ndp_domains_init(void)
{
	int r;

	r = alloc_chrdev_region(&ndp_devt, 0,
				NDP_MAX_DOMAINS * NDP_MINORS_PER_DOMAIN,
				NDP_NAME);
	if (r < 0)
		return r;
	r = class_register(&ndp_class);
	if (r < 0)
		goto err_chrdev;
	ndp_mnt = kern_mount(&ndp_fs_type);
	if (IS_ERR(ndp_mnt)) {
		r = PTR_ERR(ndp_mnt);
		goto err_class;
	}
	return 0;

err_class:
	class_unregister(&ndp_class);
err_chrdev:
	unregister_chrdev_region(ndp_devt,
				 NDP_MAX_DOMAINS * NDP_MINORS_PER_DOMAIN);
	return r;
}

void ndp_domains_exit(void)
{
	kern_unmount(ndp_mnt);
	class_unregister(&ndp_class);
	unregister_chrdev_region(ndp_devt,
				 NDP_MAX_DOMAINS * NDP_MINORS_PER_DOMAIN);
	ida_destroy(&ndp_domain_ids);
}

/* ---- nodes --------------------------------------------------------------- */

static void ndp_domain_release(struct device *dev)
{
	struct ndp_domain *domain = container_of(dev, struct ndp_domain,
						 node.dev);

	if (domain->inode)
		iput(domain->inode);
	if (domain->id >= 0)
		ida_free(&ndp_domain_ids, domain->id);
	kfree(domain);
}

static void ndp_dimm_release(struct device *dev)
{
	struct ndp_dimm *dimm = container_of(dev, struct ndp_dimm, node.dev);

	if (dimm->node.domain)
		put_device(&dimm->node.domain->node.dev);
	pci_dev_put(dimm->pdev);
	kfree(dimm);
}

static const struct device_type ndp_domain_type = {
	.name = "ndp_domain",
	.groups = ndp_domain_groups,
	.release = ndp_domain_release,
};

static const struct device_type ndp_dimm_type = {
	.name = "ndp_dimm",
	.groups = ndp_dimm_groups,
	.release = ndp_dimm_release,
};

static void ndp_node_init(struct ndp_node *node, const struct device_type *type)
{
	device_initialize(&node->dev);
	node->dev.class = &ndp_class;
	node->dev.type = type;
	cdev_init(&node->cdev, &ndp_file_fops);
	node->cdev.owner = THIS_MODULE;
}

static dev_t ndp_node_devt(const struct ndp_domain *domain, u32 index)
{
	return MKDEV(MAJOR(ndp_devt), MINOR(ndp_devt) +
		     domain->id * NDP_MINORS_PER_DOMAIN + index);
}

struct ndp_dimm *ndp_dimm_alloc(struct pci_dev *pdev)
{
	struct ndp_dimm *dimm = kzalloc(sizeof(*dimm), GFP_KERNEL);
	unsigned int i;

	if (!dimm)
		return NULL;
	ndp_node_init(&dimm->node, &ndp_dimm_type);
	dimm->pdev = pci_dev_get(pdev);
	dimm->state = MOENDP_DIMM_ABSENT;
	mutex_init(&dimm->reset_lock);
	init_rwsem(&dimm->hw_sem);
	sema_init(&dimm->copies, NDP_MAX_COPIES);
	for (i = 0; i < NDP_QUEUES; i++) {
		ndp_queue_init(&dimm->queue[i], dimm, i);
		ndp_flow_init(&dimm->flow[i], NDP_KERNEL_INFLIGHT);
	}
	return dimm;
}

/* ---- domains ------------------------------------------------------------- */

static struct ndp_domain *ndp_domain_new(const u8 *uuid)
{
	struct ndp_domain *domain = kzalloc(sizeof(*domain), GFP_KERNEL);
	struct inode *inode;
	int r;

	if (!domain)
		return ERR_PTR(-ENOMEM);
	ndp_node_init(&domain->node, &ndp_domain_type);
	domain->node.domain = domain;
	domain->node.mask = U32_MAX;
	memcpy(domain->uuid, uuid, sizeof(domain->uuid));
	spin_lock_init(&domain->lock);
	mutex_init(&domain->bo_lock);
	INIT_LIST_HEAD(&domain->bos);
	spin_lock_init(&domain->user_lock);
	INIT_LIST_HEAD(&domain->users);
	/* Offset 0 is nobody's, so that a forgotten offset is an error. */
	domain->next_page = SZ_1M >> PAGE_SHIFT;
	domain->id = ida_alloc_max(&ndp_domain_ids, NDP_MAX_DOMAINS - 1,
				   GFP_KERNEL);
	if (domain->id < 0) {
		r = domain->id;
		goto err;
	}
	inode = alloc_anon_inode(ndp_mnt->mnt_sb);
	if (IS_ERR(inode)) {
		r = PTR_ERR(inode);
		goto err;
	}
	domain->inode = inode;
	r = dev_set_name(&domain->node.dev, "ndp%d", domain->id);
	if (r < 0)
		goto err;
	domain->node.dev.devt = ndp_node_devt(domain, 0);
	r = cdev_device_add(&domain->node.cdev, &domain->node.dev);
	if (r < 0)
		goto err;
	list_add_tail(&domain->link, &ndp_domains);
	return domain;
err:
	put_device(&domain->node.dev);
	return ERR_PTR(r);
}

static struct ndp_domain *ndp_domain_find(const u8 *uuid)
{
	struct ndp_domain *domain;

	list_for_each_entry(domain, &ndp_domains, link) {
		if (!memcmp(domain->uuid, uuid, sizeof(domain->uuid)))
			return domain;
	}
	return NULL;
}

/* ndp_domains_lock held; drops the list's reference when nobody is left. */
static void ndp_domain_check_unused(struct ndp_domain *domain)
{
	if (domain->nr_dimms || domain->nr_files)
		return;
	list_del(&domain->link);
	cdev_device_del(&domain->node.cdev, &domain->node.dev);
	put_device(&domain->node.dev);
}

/* Gives the DIMM its place.  It is used once its state says that it is ready. */
int ndp_domain_add_dimm(struct ndp_dimm *dimm)
{
	struct device *dev = &dimm->pdev->dev;
	struct ndp_domain *domain;
	int r = 0;

	mutex_lock(&ndp_domains_lock);
	domain = ndp_domain_find(dimm->caps.domain);
	if (!domain)
		domain = ndp_domain_new(dimm->caps.domain);
	if (IS_ERR(domain)) {
		r = PTR_ERR(domain);
		dev_err(dev, "cannot set up domain %pUb: %d\n",
			dimm->caps.domain, r);
		goto out;
	}
	if (domain->dimm[dimm->id]) {
		dev_err(dev, "domain %pUb has a DIMM with node id %u already (%s): give each its own\n",
			dimm->caps.domain, dimm->id,
			pci_name(domain->dimm[dimm->id]->pdev));
		r = -EEXIST;
		goto out;
	}
	get_device(&domain->node.dev);
	dimm->node.domain = domain;
	dimm->node.mask = BIT(dimm->id);
	domain->nr_dimms++;
	spin_lock(&domain->lock);
	domain->dimm[dimm->id] = dimm;
	spin_unlock(&domain->lock);
out:
	mutex_unlock(&ndp_domains_lock);
	return r;
}

void ndp_domain_del_dimm(struct ndp_dimm *dimm)
{
	struct ndp_domain *domain = dimm->node.domain;

	mutex_lock(&ndp_domains_lock);
	spin_lock(&domain->lock);
	domain->dimm[dimm->id] = NULL;
	spin_unlock(&domain->lock);
	domain->nr_dimms--;
	ndp_domain_check_unused(domain);
	mutex_unlock(&ndp_domains_lock);
}

int ndp_dimm_register(struct ndp_dimm *dimm)
{
	struct ndp_domain *domain = dimm->node.domain;
	struct device *dev = &dimm->node.dev;
	int r;

	dev->parent = &domain->node.dev;
	dev->devt = ndp_node_devt(domain, 1 + dimm->id);
	set_dev_node(dev, dev_to_node(&dimm->pdev->dev));
	r = dev_set_name(dev, "ndp%dd%u", domain->id, dimm->id);
	if (r < 0)
		return r;
	r = cdev_device_add(&dimm->node.cdev, dev);
	if (r < 0)
		return r;
	r = sysfs_create_link(&dev->kobj, &dimm->pdev->dev.kobj, "pci");
	if (r < 0) {
		cdev_device_del(&dimm->node.cdev, dev);
		return r;
	}
	dimm->registered = true;
	return 0;
}

void ndp_dimm_unregister(struct ndp_dimm *dimm)
{
	struct device *dev = &dimm->node.dev;

	dimm->registered = false;
	sysfs_remove_link(&dev->kobj, "pci");
	cdev_device_del(&dimm->node.cdev, dev);
}

/* Tells those who watch sysfs or uevents that the state changed. */
void ndp_domain_notify(struct ndp_dimm *dimm)
{
	sysfs_notify(&dimm->node.dev.kobj, NULL, "state");
	kobject_uevent(&dimm->node.dev.kobj, KOBJ_CHANGE);
}

/* A new open file: 0, or -ENODEV when what the node stands for has gone. */
int ndp_node_open(struct ndp_node *node)
{
	struct ndp_domain *domain = node->domain;
	int r = -ENODEV;

	mutex_lock(&ndp_domains_lock);
	if (ndp_domain_mask(domain) & node->mask) {
		get_device(&domain->node.dev);
		domain->nr_files++;
		r = 0;
	}
	mutex_unlock(&ndp_domains_lock);
	return r;
}

/* The reference itself is ndp_file_put()'s business. */
void ndp_domain_close(struct ndp_domain *domain)
{
	mutex_lock(&ndp_domains_lock);
	domain->nr_files--;
	ndp_domain_check_unused(domain);
	mutex_unlock(&ndp_domains_lock);
}

/* A reference to a DIMM that is there, in whatever state; or NULL. */
struct ndp_dimm *ndp_domain_dimm(struct ndp_domain *domain, u32 id)
{
	struct ndp_dimm *dimm;

	spin_lock(&domain->lock);
	dimm = domain->dimm[id];
	if (dimm && READ_ONCE(dimm->state) != MOENDP_DIMM_ABSENT)
		ndp_dimm_get(dimm);
	else
		dimm = NULL;
	spin_unlock(&domain->lock);
	return dimm;
}

/* The DIMMs that are there, in whatever state. */
u32 ndp_domain_mask(struct ndp_domain *domain)
{
	u32 i, mask = 0;

	spin_lock(&domain->lock);
	for (i = 0; i < NDP_MAX_NODES; i++) {
		struct ndp_dimm *dimm = domain->dimm[i];

		if (dimm && READ_ONCE(dimm->state) != MOENDP_DIMM_ABSENT)
			mask |= BIT(i);
	}
	spin_unlock(&domain->lock);
	return mask;
}

/*
 * Every object with a part on @dimm is lost.  The DIMM is not alive any more,
 * so no new map can come to lie there: whoever sets one checks that under the
 * same lock.
 */
void ndp_domain_lose(struct ndp_dimm *dimm)
{
	struct ndp_domain *domain = dimm->node.domain;
	struct ndp_bo *bo;
	u32 nr = 0;

	mutex_lock(&domain->bo_lock);
	list_for_each_entry(bo, &domain->bos, link) {
		bool lost = false;
		u32 i;

		down_write(&bo->map_rwsem);
		spin_lock(&bo->lock);
		for (i = 0; bo->map && !bo->lost && i < bo->map->nr; i++)
			lost = lost || bo->map->span[i].ext->dimm == dimm;
		if (lost)
			bo->lost = true;
		spin_unlock(&bo->lock);
		if (lost) {
			ndp_bo_unmap(bo);
			nr++;
			if (bo->file)
				ndp_file_event(bo->file);
		}
		up_write(&bo->map_rwsem);
	}
	mutex_unlock(&domain->bo_lock);
	if (nr)
		dev_warn(&dimm->pdev->dev, "%u objects are lost\n", nr);
}
