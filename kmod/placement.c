// SPDX-License-Identifier: GPL-2.0-only
/*
 * placement.c - placement file descriptors: the right to place, lent.
 *
 * Such a descriptor has its own operations: list an open file's sealed
 * weights, say where they lie, migrate them, wait for changes.  It can neither
 * map, read, write nor compute, and it keeps no object alive: when the owner's
 * file is closed, or revokes it, nothing is left but ENODEV and POLLHUP.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "ndp.h"

struct ndp_placement {
	struct ndp_file *file;
	int epoch;			/* of the file, when it was lent */
	atomic64_t seen;		/* file.events at the last full list */
};

static bool ndp_placement_dead(const struct ndp_placement *p)
{
	return READ_ONCE(p->file->closed) ||
	       atomic_read(&p->file->epoch) != p->epoch;
}

static __poll_t ndp_placement_poll(struct file *filp, poll_table *wait)
{
	struct ndp_placement *p = filp->private_data;

	poll_wait(filp, &p->file->placement_wq, wait);
	if (ndp_placement_dead(p))
		return EPOLLHUP;
	if (atomic64_read(&p->seen) != atomic64_read(&p->file->events))
		return EPOLLIN | EPOLLRDNORM;
	return 0;
}

/* The first listed object from @id on, with a reference; or NULL. */
static struct ndp_bo *ndp_placement_next(struct ndp_file *file,
					 unsigned long id)
{
	struct ndp_bo *bo;

	mutex_lock(&file->lock);
	xa_for_each_start(&file->ids, id, bo, id) {
		if (ndp_bo_is_listed(bo)) {
			ndp_bo_get(bo);
			break;
		}
	}
	mutex_unlock(&file->lock);
	return bo;
}

static u32 ndp_placement_total(struct ndp_file *file)
{
	unsigned long id;
	struct ndp_bo *bo;
	u32 total = 0;

	mutex_lock(&file->lock);
	xa_for_each(&file->ids, id, bo)
		total += ndp_bo_is_listed(bo);
	mutex_unlock(&file->lock);
	return total;
}

static void ndp_placement_entry(struct ndp_bo *bo,
				struct moendp_placement_entry *e)
{
	memset(e, 0, sizeof(*e));
	e->id = bo->id;
	e->cookie = bo->cookie;
	e->bytes = bo->bytes;
	e->block_bytes = bo->stride;
	e->nr_blocks = bo->nr_blocks;
	e->allowed_mask = bo->allowed_mask;
	e->state = ndp_bo_state(bo);
	e->type = bo->type;
	spin_lock(&bo->lock);
	e->nr_ranges = bo->map->nr;
	e->dimm_mask = bo->map->dimm_mask;
	spin_unlock(&bo->lock);
}

static int ndp_placement_list(void *priv, struct ndp_call *call)
{
	struct moendp_placement_list *l = &call->list;
	struct moendp_placement_entry __user *to = u64_to_user_ptr(l->entries);
	struct ndp_placement *p = priv;
	u32 room = l->nr_entries;
	struct ndp_bo *bo;

	if (l->flags)
		return -EINVAL;
	if (!l->start)
		atomic64_set(&p->seen, atomic64_read(&p->file->events));
	l->total = ndp_placement_total(p->file);
	l->nr_entries = 0;
	for (;;) {
		struct moendp_placement_entry e;

		bo = ndp_placement_next(p->file, l->start);
		if (!bo)
			break;
		if (l->nr_entries == room) {
			l->start = bo->id;
			ndp_bo_put(bo);
			return ndp_call_reply(call);
		}
		ndp_placement_entry(bo, &e);
		ndp_bo_put(bo);
		if (copy_to_user(&to[l->nr_entries], &e, sizeof(e)))
			return -EFAULT;
		l->nr_entries++;
		l->start = e.id + 1;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	l->start = 0;
	return ndp_call_reply(call);
}

static int ndp_placement_info(void *priv, struct ndp_call *call)
{
	struct moendp_placement_info *info = &call->pinfo;
	struct ndp_placement *p = priv;
	struct ndp_bo *bo;
	int r, reply;

	if (info->flags || info->rsvd)
		return -EINVAL;
	bo = ndp_bo_by_id(p->file, info->id);
	if (!bo)
		return -ENOENT;
	r = ndp_bo_ranges(bo, info->ranges, &info->nr_ranges);
	ndp_bo_put(bo);
	if (r < 0 && r != -EMSGSIZE)
		return r;
	reply = ndp_call_reply(call);
	return reply < 0 ? reply : r;
}

static int ndp_placement_migrate(void *priv, struct ndp_call *call)
{
	struct moendp_placement_migrate *m = &call->pmigrate;
	struct ndp_placement *p = priv;
	struct ndp_bo *bo;
	int r;

	if (m->flags || m->rsvd)
		return -EINVAL;
	bo = ndp_bo_by_id(p->file, m->id);
	if (!bo)
		return -ENOENT;
	r = ndp_move_run(p->file, bo, m->ranges, m->nr_ranges, &m->bytes,
			 &m->modelled_ns);
	ndp_bo_put(bo);
	return r < 0 ? r : ndp_call_reply(call);
}

#define NDP_PLACEMENT_NR(ioc)	(_IOC_NR(ioc) - \
				 _IOC_NR(MOENDP_IOC_PLACEMENT_LIST))

static const struct ndp_ioctl ndp_placement_ioctls[] = {
	[NDP_PLACEMENT_NR(MOENDP_IOC_PLACEMENT_LIST)] =
		NDP_IOCTL(struct moendp_placement_list, total,
			  ndp_placement_list),
	[NDP_PLACEMENT_NR(MOENDP_IOC_PLACEMENT_INFO)] =
		NDP_IOCTL(struct moendp_placement_info, rsvd,
			  ndp_placement_info),
	[NDP_PLACEMENT_NR(MOENDP_IOC_PLACEMENT_MIGRATE)] =
		NDP_IOCTL(struct moendp_placement_migrate, modelled_ns,
			  ndp_placement_migrate),
};

static long ndp_placement_ioctl(struct file *filp, unsigned int cmd,
				unsigned long arg)
{
	struct ndp_placement *p = filp->private_data;
	unsigned int nr = NDP_PLACEMENT_NR(cmd);

	if (cmd != _IO(MOENDP_IOC_TYPE, _IOC_NR(cmd)) ||
	    nr >= ARRAY_SIZE(ndp_placement_ioctls))
		return -ENOTTY;
	if (ndp_placement_dead(p))
		return -ENODEV;
	return ndp_call_run(&ndp_placement_ioctls[nr], p, (void __user *)arg);
}

static int ndp_placement_uring(struct io_uring_cmd *ucmd,
			       unsigned int issue_flags)
{
	struct ndp_placement *p = ucmd->file->private_data;

	return ndp_placement_uring_cmd(ucmd, issue_flags, p->file,
				       ndp_placement_dead(p));
}

static int ndp_placement_release(struct inode *inode, struct file *filp)
{
	struct ndp_placement *p = filp->private_data;

	ndp_file_put(p->file);
	kfree(p);
	return 0;
}

static const struct file_operations ndp_placement_fops = {
	.owner = THIS_MODULE,
	.release = ndp_placement_release,
	.unlocked_ioctl = ndp_placement_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = ndp_placement_poll,
	.uring_cmd = ndp_placement_uring,
	.llseek = noop_llseek,
};

/* ---- lending and taking back --------------------------------------------- */

static struct file *ndp_placement_open(struct ndp_file *file)
{
	struct ndp_placement *p = kzalloc(sizeof(*p), GFP_KERNEL_ACCOUNT);
	struct file *filp;

	if (!p)
		return ERR_PTR(-ENOMEM);
	p->file = ndp_file_get(file);
	p->epoch = atomic_read(&file->epoch);
	/* Never listed, so there is something to be seen. */
	atomic64_set(&p->seen, -1);
	filp = anon_inode_getfile("[moendp-placement]", &ndp_placement_fops, p,
				  O_RDWR);
	if (IS_ERR(filp)) {
		ndp_file_put(file);
		kfree(p);
	}
	return filp;
}

int ndp_ioctl_placement_fd(void *priv, struct ndp_call *call)
{
	struct moendp_placement_fd *pf = &call->placement_fd;
	struct file *filp;
	int fd, r;

	if (pf->flags || pf->rsvd)
		return -EINVAL;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	filp = ndp_placement_open(priv);
	if (IS_ERR(filp)) {
		r = PTR_ERR(filp);
		goto err_fd;
	}
	pf->fd = fd;
	r = ndp_call_reply(call);
	if (r < 0)
		goto err_file;
	fd_install(fd, filp);
	return 0;

err_file:
	fput(filp);
err_fd:
	put_unused_fd(fd);
	return r;
}

int ndp_ioctl_placement_revoke(void *priv, struct ndp_call *call)
{
	struct ndp_file *file = priv;

	if (call->revoke.flags)
		return -EINVAL;
	atomic_inc(&file->epoch);
	wake_up_all(&file->placement_wq);
	return 0;
}
