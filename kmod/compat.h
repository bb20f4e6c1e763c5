/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * compat.h - the same calls on every kernel that the driver builds for.
 *
 * The only file that knows of differences between kernels, and by testing for
 * features, never for versions.  Facts: include/linux of 6.1 and 6.12.
 */
#ifndef NDP_COMPAT_H
#define NDP_COMPAT_H

#include <linux/mm.h>

#ifdef NDP_HAVE_IO_URING_CMD_H
#include <linux/io_uring/cmd.h>
static inline const void *ndp_uring_payload(const struct io_uring_cmd *ucmd)
{
	return io_uring_sqe_cmd(ucmd->sqe);
}
#else
#include <linux/io_uring.h>
static inline const void *ndp_uring_payload(const struct io_uring_cmd *ucmd)
{
	return ucmd->cmd;
}
#endif

/* Ends a command of a ring with 32-byte completions. */
static inline void ndp_uring_cmd_done(struct io_uring_cmd *ucmd, int res,
				      u64 extra, unsigned int issue_flags)
{
#ifdef IORING_SETUP_CQE_MIXED
	io_uring_cmd_done32(ucmd, res, extra, issue_flags);
#else
	io_uring_cmd_done(ucmd, res, extra, issue_flags);
#endif
}

/*
 * The head of a function that io_uring_cmd_complete_in_task() takes, and what
 * it learns from its arguments.
 */
#ifdef IO_URING_CMD_TASK_WORK_ISSUE_FLAGS
#define NDP_URING_TASK_FN(fn)	void fn(struct io_tw_req tw_req, io_tw_token_t tw)
#define NDP_URING_TASK_CMD	io_uring_cmd_from_tw(tw_req)
#define NDP_URING_TASK_FLAGS	IO_URING_CMD_TASK_WORK_ISSUE_FLAGS
#else
#define NDP_URING_TASK_FN(fn)	void fn(struct io_uring_cmd *ucmd, \
					unsigned int issue_flags)
#define NDP_URING_TASK_CMD	ucmd
#define NDP_URING_TASK_FLAGS	issue_flags
#endif

static inline void ndp_vm_flags_mod(struct vm_area_struct *vma,
				    unsigned long set, unsigned long clear)
{
#ifdef NDP_HAVE_VM_FLAGS_SET
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

#endif /* NDP_COMPAT_H */
