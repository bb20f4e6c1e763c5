// SPDX-License-Identifier: GPL-2.0-only
/*
 * file.c - open files of /dev/ndpN and /dev/ndpNdK, and how ioctls are called.
 *
 * One open file is one context: its handles, its objects, the DIMMs it knows.
 * The structure outlives the file while requests and placement file
 * descriptors refer to it; the objects do not.
 *
 * A call's structure begins with its size.  It is copied in once; what is
 * copied out is as long as what the caller gave.
 */
#include <linux/cred.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "ndp.h"

struct ndp_file *ndp_file_get(struct ndp_file *file)
{
	kref_get(&file->ref);
	return file;
}

static void ndp_file_free(struct kref *ref)
{
	struct ndp_file *file = container_of(ref, struct ndp_file, ref);

	if (file->user)
		ndp_user_put(file->domain, file->user);
	xa_destroy(&file->handles);
	xa_destroy(&file->ids);
	put_device(&file->domain->node.dev);
	kfree(file);
}

void ndp_file_put(struct ndp_file *file)
{
	kref_put(&file->ref, ndp_file_free);
}

/* A request has ended; the first that makes room wakes those who wait for it. */
void ndp_file_req_done(struct ndp_file *file)
{
	if (atomic_dec_return(&file->nr_reqs) == NDP_MAX_REQUESTS - 1)
		wake_up(&file->room);
}

/* Objects came, went, moved or were lost: placement holders want to know. */
void ndp_file_event(struct ndp_file *file)
{
	atomic64_inc(&file->events);
	wake_up_interruptible_poll(&file->placement_wq, EPOLLIN | EPOLLRDNORM);
}

/* No DIMM that this file knows is there any more. */
bool ndp_file_gone(struct ndp_file *file)
{
	return !(ndp_domain_mask(file->domain) & file->mask);
}

static int ndp_open(struct inode *inode, struct file *filp)
{
	struct ndp_node *node = container_of(inode->i_cdev, struct ndp_node,
					     cdev);
	struct ndp_file *file;
	unsigned int i;
	int r;

	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	r = ndp_node_open(node);
	if (r < 0) {
		kfree(file);
		return r;
	}
	kref_init(&file->ref);
	file->domain = node->domain;
	file->mask = node->mask;
	xa_init_flags(&file->handles, XA_FLAGS_ALLOC1);
	xa_init(&file->ids);
	file->offsets = RB_ROOT;
	mutex_init(&file->lock);
	init_waitqueue_head(&file->room);
	init_waitqueue_head(&file->placement_wq);
	for (i = 0; i < NDP_MAX_NODES; i++)
		ndp_flow_init(&file->flow[i], MOENDP_MAX_INFLIGHT);
	file->user = ndp_user_get(file->domain, current_euid());
	if (!file->user) {
		ndp_domain_close(file->domain);
		ndp_file_put(file);
		return -ENOMEM;
	}
	/* All mappings of the domain belong to one inode. */
	filp->f_mapping = file->domain->inode->i_mapping;
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

/* What waits is given up; what a DIMM has begun keeps what it needs. */
static int ndp_release(struct inode *inode, struct file *filp)
{
	struct ndp_file *file = filp->private_data;
	unsigned int i;

	mutex_lock(&file->lock);
	file->closed = true;
	mutex_unlock(&file->lock);
	wake_up_all(&file->placement_wq);
	for (i = 0; i < NDP_MAX_NODES; i++) {
		struct ndp_dimm *dimm;

		if (!(file->mask & BIT(i)))
			continue;
		dimm = ndp_domain_dimm(file->domain, i);
		if (!dimm)
			continue;
		ndp_queue_cancel(&dimm->queue[NDP_Q_COMPUTE], &file->flow[i]);
		ndp_dimm_put(dimm);
	}
	ndp_file_release_bos(file);
	ndp_domain_close(file->domain);
	ndp_file_put(file);
	return 0;
}

/* ---- ioctls -------------------------------------------------------------- */

static int ndp_call_copy_in(struct ndp_call *call, const struct ndp_ioctl *ioctl,
			    void __user *uarg)
{
	u32 user_size;

	if (get_user(user_size, (u32 __user *)uarg))
		return -EFAULT;
	if (user_size < ioctl->min_size)
		return -EINVAL;
	if (user_size > PAGE_SIZE)
		return -E2BIG;
	call->uarg = uarg;
	call->user_size = user_size;
	call->size = ioctl->size;
	/* Not the address of a member: its size would be taken for the room. */
	return copy_struct_from_user((void *)call +
				     offsetof(struct ndp_call, size_member),
				     ioctl->size, uarg, user_size);
}

int ndp_call_reply(struct ndp_call *call)
{
	/* Whatever came in by another thread's doing, this is what counts. */
	call->size_member = call->user_size;
	if (copy_to_user(call->uarg, &call->size_member,
			 min(call->user_size, call->size)))
		return -EFAULT;
	return 0;
}

int ndp_call_run(const struct ndp_ioctl *ioctl, void *priv, void __user *uarg)
{
	struct ndp_call call;
	int r;

	r = ndp_call_copy_in(&call, ioctl, uarg);
	if (r < 0)
		return r;
	return ioctl->fn(priv, &call);
}

/* The caller frees the array. */
int ndp_ranges_from_user(u64 uptr, u32 nr, struct moendp_range **ranges)
{
	void *copy;

	if (!nr || nr > MOENDP_MAX_RANGES)
		return -EINVAL;
	copy = memdup_user(u64_to_user_ptr(uptr),
			   array_size(nr, sizeof(**ranges)));
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	*ranges = copy;
	return 0;
}

static const struct ndp_ioctl ndp_ioctls[] = {
	[_IOC_NR(MOENDP_IOC_QUERY)] =
		NDP_IOCTL(struct moendp_query, reserved,
			  ndp_ioctl_query),
	[_IOC_NR(MOENDP_IOC_BO_CREATE)] =
		NDP_IOCTL(struct moendp_bo_create, stride, ndp_ioctl_bo_create),
	[_IOC_NR(MOENDP_IOC_BO_DESTROY)] =
		NDP_IOCTL(struct moendp_bo_destroy, rsvd,
			  ndp_ioctl_bo_destroy),
	[_IOC_NR(MOENDP_IOC_BO_INFO)] =
		NDP_IOCTL(struct moendp_bo_info, rsvd, ndp_ioctl_bo_info),
	[_IOC_NR(MOENDP_IOC_BO_SEAL)] =
		NDP_IOCTL(struct moendp_bo_seal, rsvd, ndp_ioctl_bo_seal),
	[_IOC_NR(MOENDP_IOC_MIGRATE)] =
		NDP_IOCTL(struct moendp_migrate, modelled_ns,
			  ndp_ioctl_migrate),
	[_IOC_NR(MOENDP_IOC_SUBMIT)] =
		NDP_IOCTL(struct moendp_submit, cmd, ndp_ioctl_submit),
	[_IOC_NR(MOENDP_IOC_PLACEMENT_FD)] =
		NDP_IOCTL(struct moendp_placement_fd, rsvd,
			  ndp_ioctl_placement_fd),
	[_IOC_NR(MOENDP_IOC_PLACEMENT_REVOKE)] =
		NDP_IOCTL(struct moendp_placement_revoke, flags,
			  ndp_ioctl_placement_revoke),
};

static long ndp_unlocked_ioctl(struct file *filp, unsigned int cmd,
			       unsigned long arg)
{
	unsigned int nr = _IOC_NR(cmd);

	if (cmd != _IO(MOENDP_IOC_TYPE, nr) || nr >= ARRAY_SIZE(ndp_ioctls))
		return -ENOTTY;
	return ndp_call_run(&ndp_ioctls[nr], filp->private_data,
			    (void __user *)arg);
}

static void ndp_show_fdinfo(struct seq_file *m, struct file *filp)
{
	struct ndp_file *file = filp->private_data;
	u32 nr_bos;
	u64 bytes;

	mutex_lock(&file->lock);
	nr_bos = file->nr_bos;
	bytes = file->bytes;
	mutex_unlock(&file->lock);
	seq_printf(m, "ndp-domain:\tndp%d\n", file->domain->id);
	seq_printf(m, "ndp-dimms:\t%#x\n",
		   ndp_domain_mask(file->domain) & file->mask);
	seq_printf(m, "ndp-objects:\t%u\n", nr_bos);
	seq_printf(m, "ndp-bytes:\t%llu\n", bytes);
	seq_printf(m, "ndp-requests:\t%d\n", atomic_read(&file->nr_reqs));
}

const struct file_operations ndp_file_fops = {
	.owner = THIS_MODULE,
	.open = ndp_open,
	.release = ndp_release,
	.unlocked_ioctl = ndp_unlocked_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = ndp_file_mmap,
	.uring_cmd = ndp_file_uring_cmd,
	.show_fdinfo = ndp_show_fdinfo,
	.llseek = noop_llseek,
};
