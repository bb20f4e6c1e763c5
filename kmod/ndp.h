/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ndp.h - the driver's own structures and what its files offer each other.
 *
 * Who owns what, by reference counts:
 *
 *	open file -> objects -> extent map -> extents -> DIMM -> domain
 *	request   -> file, objects, extent map
 *	mapping   -> object
 *
 * Locking order (a lock may be taken while holding those to its left):
 *
 *	reset_lock, mmap_lock -> domain.bo_lock -> bo.map_rwsem -> dimm.hw_sem,
 *	file.lock, mm.lock
 *
 * and, innermost and never together: queue.lock (also taken by interrupt
 * handlers), bo.lock, domain.lock, domain.user_lock.  ndp_domains_lock is
 * taken before all of these except reset_lock and mmap_lock, with which it is
 * never combined.  No user memory is touched under map_rwsem.
 */
#ifndef NDP_H
#define NDP_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/irqreturn.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/semaphore.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "ndp_regs.h"
#include "uapi/moendp.h"

#define NDP_NAME		"moendp"

/* Entries of a ring, log2: 255 commands outstanding. */
#define NDP_RING_LOG2		8
#define NDP_RING_SIZE		BIT(NDP_RING_LOG2)
/* Of the driver itself, in a queue. */
#define NDP_KERNEL_INFLIGHT	128
/* Requests of one open file that are not yet done; more have to wait. */
#define NDP_MAX_REQUESTS	4096
/* Of the migrations that a DIMM receives at a time. */
#define NDP_MAX_COPIES		2
/* The part of a DIMM that is kept for migrations. */
#define NDP_RESERVE_SHIFT	4
/* Most rows of a MATRIX; bounds the hardware commands of a GEMV. */
#define NDP_MAX_MATRIX_ROWS	0x1000000U
/* Largest h_in and h_out: multiples of 64 that fit in 16 bits. */
#define NDP_MAX_H		65472U
#define NDP_MAX_DOMAINS		64
#define NDP_MINORS_PER_DOMAIN	(1 + NDP_MAX_NODES)

struct ndp_bo;
struct ndp_dimm;
struct ndp_domain;
struct ndp_file;
struct ndp_part;
struct ndp_req;

/* ---- memory of a DIMM (extent.c) --------------------------------------- */

/* A contiguous piece of a DIMM.  Also the list of holes, in address order. */
struct ndp_extent {
	struct kref ref;
	struct ndp_dimm *dimm;
	u64 off;
	u64 bytes;
	u64 hole_bytes;			/* free bytes behind it */
	struct list_head link;		/* mm.extents, by address */
	struct list_head hole;		/* mm.holes, when hole_bytes > 0 */
};

struct ndp_mm {
	struct mutex lock;		/* all that follows */
	struct list_head extents;
	struct list_head holes;
	struct ndp_extent origin;	/* empty, at offset 0 */
	u64 size;
	u64 free;
	u64 reserve;			/* only migrations go below */
	u32 nr_extents;
};

struct ndp_mm_stats {
	u64 mem_bytes;			/* that objects can use */
	u64 free_bytes;
	u64 largest_free_bytes;
	u64 allocated_bytes;
	u32 extents;
};

/* Consecutive blocks in an extent; replicas of an IO object are blocks, too. */
struct ndp_span {
	u32 node;
	u32 first;
	u32 nr;
	struct ndp_extent *ext;
};

/* Where an object lies.  Never changes; a migration makes a new one. */
struct ndp_map {
	struct kref ref;
	u32 dimm_mask;
	u32 nr;
	struct ndp_span span[];
};

void ndp_mm_init(struct ndp_dimm *dimm, u64 bytes);
void ndp_mm_stats(struct ndp_dimm *dimm, struct ndp_mm_stats *stats);

struct ndp_map *ndp_map_alloc(struct ndp_domain *domain,
			      const struct moendp_range *ranges, u32 nr,
			      u64 block_bytes, struct ndp_map *old);
struct ndp_map *ndp_map_get(struct ndp_map *map);
void ndp_map_put(struct ndp_map *map);
const struct ndp_span *ndp_map_find(const struct ndp_map *map, u32 block);

/* ---- requests (request.c) ----------------------------------------------- */

/* Commands of one file (or of the driver) on their way into one queue. */
struct ndp_flow {
	struct list_head waiting;	/* parts; queue.lock */
	struct list_head link;		/* queue.flows, when there is a next */
	u32 inflight;
	u32 limit;
};

/* One hardware command. */
struct ndp_part {
	struct list_head link;		/* flow.waiting, queue.inflight */
	struct ndp_req *req;
	struct ndp_dimm *dimm;
	struct ndp_flow *flow;
	u64 modelled_ns;
	u8 queue;
	u16 cid;
	struct ndp_hw_cmd cmd;
};

/*
 * What one call asks for: some hardware commands, done when all are.  It keeps
 * everything alive that the DIMMs may still read or write.
 */
struct ndp_req {
	atomic_t left;			/* parts not yet done */
	int status;			/* 0 or the first error */
	u32 dimm_mask;
	u32 nr_parts;			/* in use */
	u32 max_parts;
	struct ndp_part *parts;
	struct ndp_file *file;
	struct ndp_bo *bo[3];
	struct ndp_map *map[2];
	struct ndp_req *next_done;	/* while they are completed */
	void (*done)(struct ndp_req *req);	/* any context, no locks */
	refcount_t ref;			/* waiter and hardware */
	union {
		struct completion completion;
		struct io_uring_cmd *ucmd;
		struct work_struct free_work;
	};
	struct ndp_part first;
};

int ndp_req_cache_init(void);
void ndp_req_cache_exit(void);
struct ndp_req *ndp_req_alloc(u32 max_parts, gfp_t gfp);
void ndp_req_free(struct ndp_req *req);
struct ndp_part *ndp_req_add(struct ndp_req *req, struct ndp_dimm *dimm,
			     u8 queue, struct ndp_flow *flow);
void ndp_req_submit(struct ndp_req *req);
int ndp_req_run(struct ndp_req *req, bool killable);
void ndp_req_put(struct ndp_req *req);
u64 ndp_req_modelled_ns(const struct ndp_req *req);
void ndp_part_done(struct ndp_part *part, int status, struct ndp_req **done);
void ndp_reqs_complete(struct ndp_req *done);

/* ---- queues (queue.c) --------------------------------------------------- */

struct ndp_queue {
	spinlock_t lock;		/* all that follows, and its flows */
	struct ndp_dimm *dimm;
	u8 id;
	bool running;			/* the rings may be used */
	bool dead;			/* nothing will ever run again */
	bool watched;			/* watchdog is pending */
	u32 tail;			/* next entry of sq */
	u32 head;			/* next entry of cq */
	u32 phase;
	u32 generation;
	u32 nr_free;
	u32 nr_waiting;
	struct ndp_hw_cmd *sq;
	struct ndp_hw_cpl *cq;
	u32 __iomem *doorbell;
	struct list_head inflight;	/* parts, oldest first */
	struct list_head flows;		/* round-robin */
	struct ndp_part *slot[NDP_RING_SIZE];
	u16 free_cid[NDP_RING_SIZE];
	unsigned long last_progress;	/* jiffies */
	u64 issued;
	u64 completed;
	u64 spurious;
	u64 lost_irqs;
	struct delayed_work watchdog;
};

void ndp_queue_init(struct ndp_queue *q, struct ndp_dimm *dimm, u8 id);
void ndp_flow_init(struct ndp_flow *flow, u32 limit);
void ndp_queue_layout(struct ndp_queue *q);
void ndp_queue_start(struct ndp_queue *q);
void ndp_queue_stop(struct ndp_queue *q, bool dead, struct list_head *waiting);
void ndp_queue_abort(struct ndp_queue *q, int head_status, int status,
		     struct list_head *waiting);
void ndp_queue_add(struct ndp_part *part);
void ndp_queue_cancel(struct ndp_queue *q, struct ndp_flow *flow);
u32 ndp_queue_inflight(struct ndp_queue *q);
irqreturn_t ndp_queue_irq(int irq, void *data);

/* ---- DIMMs and domains (domain.c, hw.c, reset.c, main.c) ---------------- */

/* A device node: of a domain or of one of its DIMMs. */
struct ndp_node {
	struct device dev;
	struct cdev cdev;
	struct ndp_domain *domain;
	u32 mask;			/* DIMMs that its files know */
};

struct ndp_caps {
	u32 caps;
	u32 max_tokens;
	u32 max_copy;
	u32 internal_mbps;
	u32 gflops;
	u32 link_mbps;
	u32 overhead_ns;
	u32 link_latency_ns;
	u64 mem_size;
	u64 rsvd_off;
	u64 rsvd_size;
	u8 domain[16];
};

struct ndp_dimm {
	struct ndp_node node;
	struct pci_dev *pdev;
	u32 id;				/* node id in the domain */
	u32 state;			/* MOENDP_DIMM_*; reset_lock */
	bool alive;			/* reset_lock */
	u32 generation;			/* reset_lock */
	u32 resets;			/* reset_lock */
	bool coherent;
	bool registered;		/* its node exists */
	struct mutex reset_lock;
	struct rw_semaphore hw_sem;	/* regs and dram work while held */
	bool hw_gone;			/* hw_sem */
	void __iomem *regs;
	void *dram;
	resource_size_t dram_phys;
	struct ndp_caps caps;
	struct ndp_queue queue[NDP_QUEUES];
	struct ndp_flow flow[NDP_QUEUES];	/* of the driver itself */
	struct ndp_mm mm;
	struct semaphore copies;
	struct moendp_counters base[NDP_QUEUES];
	atomic64_t lines_flushed;
	struct work_struct event_work;
	struct dentry *debugfs;
};

struct ndp_domain {
	struct ndp_node node;
	struct list_head link;		/* ndp_domains_lock */
	int id;
	u32 nr_dimms;			/* ndp_domains_lock */
	u32 nr_files;			/* ndp_domains_lock */
	u8 uuid[16];
	struct inode *inode;		/* of all mappings */
	spinlock_t lock;		/* dimm[] */
	struct ndp_dimm *dimm[NDP_MAX_NODES];
	struct mutex bo_lock;		/* bos, next_page */
	struct list_head bos;
	u32 nr_bos;
	u64 next_page;
	spinlock_t user_lock;		/* users and their numbers */
	struct list_head users;
	u64 quota_bytes;
};

extern struct class ndp_class;
extern struct workqueue_struct *ndp_wq;
extern unsigned int ndp_timeout_ms;
extern const struct file_operations ndp_file_fops;
extern const struct attribute_group *ndp_domain_groups[];
extern const struct attribute_group *ndp_dimm_groups[];

int ndp_domains_init(void);
void ndp_domains_exit(void);
int ndp_domain_add_dimm(struct ndp_dimm *dimm);
void ndp_domain_del_dimm(struct ndp_dimm *dimm);
int ndp_dimm_register(struct ndp_dimm *dimm);
void ndp_dimm_unregister(struct ndp_dimm *dimm);
int ndp_node_open(struct ndp_node *node);
void ndp_domain_close(struct ndp_domain *domain);
struct ndp_dimm *ndp_domain_dimm(struct ndp_domain *domain, u32 id);
u32 ndp_domain_mask(struct ndp_domain *domain);
void ndp_domain_notify(struct ndp_dimm *dimm);
struct ndp_dimm *ndp_dimm_alloc(struct pci_dev *pdev);
void ndp_domain_lose(struct ndp_dimm *dimm);

static inline struct ndp_dimm *ndp_dimm_get(struct ndp_dimm *dimm)
{
	get_device(&dimm->node.dev);
	return dimm;
}

static inline void ndp_dimm_put(struct ndp_dimm *dimm)
{
	put_device(&dimm->node.dev);
}

/*
 * Can it be used, now or after a reset that is going on?  Not any more from the
 * moment that its objects are to be lost; the state says so when they are.
 */
static inline bool ndp_dimm_alive(const struct ndp_dimm *dimm)
{
	return READ_ONCE(dimm->alive);
}

/* Between these the registers and the memory window exist. */
bool ndp_hw_enter(struct ndp_dimm *dimm);
void ndp_hw_exit(struct ndp_dimm *dimm);
u32 ndp_hw_read32(const struct ndp_dimm *dimm, u32 reg);
u64 ndp_hw_read64(const struct ndp_dimm *dimm, u32 reg);
int ndp_hw_map(struct ndp_dimm *dimm);
void ndp_hw_unmap(struct ndp_dimm *dimm);
int ndp_hw_irq_init(struct ndp_dimm *dimm);
void ndp_hw_irq_exit(struct ndp_dimm *dimm);
int ndp_hw_reset(struct ndp_dimm *dimm);
int ndp_hw_wait_ready(struct ndp_dimm *dimm);
int ndp_hw_enable(struct ndp_dimm *dimm);
bool ndp_hw_responds(struct ndp_dimm *dimm);
u32 ndp_hw_peers(struct ndp_dimm *dimm);

#define NDP_NO_QUEUE		(-1)

int ndp_dimm_start(struct ndp_dimm *dimm);
void ndp_dimm_stop(struct ndp_dimm *dimm);
int ndp_dimm_reset(struct ndp_dimm *dimm, int timed_out_queue);
void ndp_dimm_reset_prepare(struct ndp_dimm *dimm);
void ndp_dimm_reset_done(struct ndp_dimm *dimm);
void ndp_dimm_failed(struct ndp_dimm *dimm);
void ndp_dimm_suspend(struct ndp_dimm *dimm);

/* ---- open files (file.c) ------------------------------------------------ */

struct ndp_user {
	struct list_head link;
	kuid_t uid;
	u32 users;
	u64 used_bytes;
};

struct ndp_file {
	struct kref ref;
	struct ndp_domain *domain;
	u32 mask;			/* DIMMs that it knows */
	struct ndp_user *user;
	struct xarray handles;		/* objects by handle */
	struct mutex lock;		/* all objects, below */
	struct xarray ids;		/* objects by id */
	struct rb_root offsets;		/* objects by map_page */
	u32 next_handle;
	u32 nr_bos;
	u64 bytes;
	atomic_t nr_reqs;
	wait_queue_head_t room;		/* nr_reqs fell below its limit */
	bool closed;
	atomic64_t events;		/* placement_list is out of date */
	atomic_t epoch;			/* counts revocations */
	wait_queue_head_t placement_wq;
	struct ndp_flow flow[NDP_MAX_NODES];
};

struct ndp_file *ndp_file_get(struct ndp_file *file);
void ndp_file_put(struct ndp_file *file);
void ndp_file_event(struct ndp_file *file);
bool ndp_file_gone(struct ndp_file *file);
void ndp_file_req_done(struct ndp_file *file);

/* A call in progress: its structure, copied in. */
struct ndp_call {
	void __user *uarg;
	u32 user_size;
	u32 size;
	union {
		u32 size_member;
		struct moendp_query query;
		struct moendp_bo_create create;
		struct moendp_bo_destroy destroy;
		struct moendp_bo_info info;
		struct moendp_bo_seal seal;
		struct moendp_migrate migrate;
		struct moendp_submit submit;
		struct moendp_placement_fd placement_fd;
		struct moendp_placement_revoke revoke;
		struct moendp_placement_list list;
		struct moendp_placement_info pinfo;
		struct moendp_placement_migrate pmigrate;
	};
};

struct ndp_ioctl {
	u32 size;
	u32 min_size;
	int (*fn)(void *priv, struct ndp_call *call);
};

#define NDP_IOCTL(type, last, func) {					\
	.size = sizeof(type),						\
	.min_size = offsetofend(type, last),				\
	.fn = func,							\
}

int ndp_call_run(const struct ndp_ioctl *ioctl, void *priv, void __user *uarg);
int ndp_call_reply(struct ndp_call *call);
int ndp_ranges_from_user(u64 uptr, u32 nr, struct moendp_range **ranges);

/* ---- objects (bo.c, mmap.c, quota.c) ------------------------------------ */

struct ndp_bo {
	struct kref ref;
	struct rcu_head rcu;
	struct ndp_domain *domain;
	struct ndp_file *file;		/* no reference; NULL once it closed */
	struct ndp_user *user;
	struct list_head link;		/* domain.bos */
	struct rb_node node;		/* file.offsets */
	u64 id;
	u32 handle;
	u32 type;
	u64 cookie;
	u32 h_in;
	u32 h_out;
	u32 rows;
	u32 nr_blocks;			/* IO: replicas */
	u32 allowed_mask;
	u64 bytes;			/* IO: of a replica */
	u64 stride;			/* block, panel or replica in the map */
	u64 total_bytes;		/* charged */
	u64 map_page;			/* first page of its mapping */
	struct rw_semaphore map_rwsem;	/* map against faults; sealed, nr_vmas */
	u32 nr_vmas;
	spinlock_t lock;		/* map, sealed, lost, moving, moves */
	struct ndp_map *map;
	bool sealed;
	bool lost;
	bool moving;
	u64 moves;
};

static inline bool ndp_bo_is_weights(const struct ndp_bo *bo)
{
	return bo->type != MOENDP_BO_IO;
}

/* Pages of the mapping. */
static inline u64 ndp_bo_map_pages(const struct ndp_bo *bo)
{
	return bo->total_bytes >> PAGE_SHIFT;
}

struct ndp_bo *ndp_bo_lookup(struct ndp_file *file, u32 handle);
bool ndp_bo_is_listed(const struct ndp_bo *bo);
struct ndp_bo *ndp_bo_by_id(struct ndp_file *file, u64 id);
struct ndp_bo *ndp_bo_by_page(struct ndp_file *file, u64 page);
void ndp_bo_put(struct ndp_bo *bo);
struct ndp_bo *ndp_bo_get(struct ndp_bo *bo);
int ndp_bo_map_get(struct ndp_bo *bo, struct ndp_map **map);
int ndp_bo_set_map(struct ndp_bo *bo, struct ndp_map *map);
u32 ndp_bo_state(struct ndp_bo *bo);
int ndp_bo_ranges(struct ndp_bo *bo, u64 uptr, u32 *nr);
int ndp_ranges_check(struct ndp_file *file, const struct moendp_range *ranges,
		     u32 nr, u32 nr_blocks, u32 allowed_mask);
int ndp_ioctl_bo_create(void *priv, struct ndp_call *call);
int ndp_ioctl_bo_destroy(void *priv, struct ndp_call *call);
int ndp_ioctl_bo_info(void *priv, struct ndp_call *call);
int ndp_ioctl_bo_seal(void *priv, struct ndp_call *call);
void ndp_file_release_bos(struct ndp_file *file);

int ndp_file_mmap(struct file *filp, struct vm_area_struct *vma);
void ndp_bo_unmap(struct ndp_bo *bo);

struct ndp_user *ndp_user_get(struct ndp_domain *domain, kuid_t uid);
void ndp_user_put(struct ndp_domain *domain, struct ndp_user *user);
int ndp_quota_charge(struct ndp_domain *domain, struct ndp_user *user,
		     u64 bytes);
void ndp_quota_uncharge(struct ndp_domain *domain, struct ndp_user *user,
			u64 bytes);
void ndp_quota_query(struct ndp_domain *domain, struct ndp_user *user,
		     u64 *quota_bytes, u64 *used_bytes);

/* ---- data in motion (transfer.c, migrate.c, placement.c, coherence.c) --- */

int ndp_map_zero(struct ndp_map *map);
int ndp_map_copy(struct ndp_map *to, struct ndp_map *from, u64 block_bytes,
		 u64 *bytes, u64 *modelled_ns);

/* A migration on its way. */
struct ndp_move {
	struct work_struct work;
	refcount_t ref;
	struct ndp_file *file;
	struct ndp_bo *bo;
	struct io_uring_cmd *ucmd;
	struct completion completion;
	int result;
	u32 dimm_mask;
	u64 bytes;
	u64 modelled_ns;
	u32 nr;
	struct moendp_range ranges[];
};

struct ndp_move *ndp_move_start(struct ndp_file *file, struct ndp_bo *bo,
				const struct moendp_range *ranges, u32 nr,
				struct io_uring_cmd *ucmd);
void ndp_move_put(struct ndp_move *move);
int ndp_move_run(struct ndp_file *file, struct ndp_bo *bo, u64 ranges, u32 nr,
		 u64 *bytes, u64 *modelled_ns);
int ndp_ioctl_migrate(void *priv, struct ndp_call *call);
void ndp_uring_move_done(struct ndp_move *move);

int ndp_ioctl_placement_fd(void *priv, struct ndp_call *call);
int ndp_ioctl_placement_revoke(void *priv, struct ndp_call *call);

int ndp_coherence_check(struct ndp_dimm *dimm);
void ndp_flush_lines(struct ndp_dimm *dimm, void *addr, size_t bytes);
void ndp_flush_map(struct ndp_map *map);

/* ---- commands (cmd.c, uring.c) ------------------------------------------ */

int ndp_cmd_prepare(struct ndp_file *file, u32 op, const struct moendp_cmd *cmd,
		    bool nonblock, struct ndp_req **req, u32 *dimm_mask);
int ndp_ioctl_submit(void *priv, struct ndp_call *call);
int ndp_file_uring_cmd(struct io_uring_cmd *ucmd, unsigned int issue_flags);
int ndp_placement_uring_cmd(struct io_uring_cmd *ucmd, unsigned int issue_flags,
			    struct ndp_file *file, bool dead);

/* ---- looking in (counters.c, debugfs.c) --------------------------------- */

void ndp_counters_base(struct ndp_dimm *dimm);
void ndp_counters_read(struct ndp_dimm *dimm, u8 queue,
		       struct moendp_counters *counters);
int ndp_ioctl_query(void *priv, struct ndp_call *call);

void ndp_debugfs_init(void);
void ndp_debugfs_exit(void);
void ndp_debugfs_add(struct ndp_dimm *dimm);
void ndp_debugfs_del(struct ndp_dimm *dimm);

#endif /* NDP_H */
