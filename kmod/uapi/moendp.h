/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moendp.h - the interface of moendp.ko: ioctls and io_uring commands on
 * /dev/ndpN (a link domain of NDP DIMMs), /dev/ndpNdK (its DIMM K alone) and on
 * placement file descriptors.
 *
 * Rules that hold for every call:
 *
 * - The first member of each structure is its size.  A shorter structure is
 *   taken as zero-extended (down to the size of version 1), a longer one is
 *   accepted when its tail is zero.
 * - Reserved members, flags that are not defined and members that a call does
 *   not use must be zero.
 * - A DIMM is named by its node id in the domain, 0..31; a set of DIMMs is a
 *   mask of such bits.  /dev/ndpNdK knows DIMM K only.
 *
 * Errors, with the same meaning everywhere (docs/abi.md lists them by call):
 *
 * - EINVAL: a member has a value that is never right.
 * - E2BIG: the structure is longer than known, and its tail is not zero.
 * - EFAULT: a pointer does not point to accessible memory.
 * - ENOTTY: no such call here.
 * - ENOENT: the handle or id names no object of this file.
 * - EBADF: the object is of the wrong type or in the wrong state for the call.
 * - ENXIO: a DIMM that this file does not know.
 * - ENODEV: the DIMM, or every DIMM, is gone; the object is lost.
 * - EXDEV: an IO object has no replica on a DIMM where the weights lie.
 * - EPERM: a placement outside of the object's allowed mask.
 * - EBUSY: an object that is mapped is to be sealed.
 * - EDQUOT: the user's quota of DIMM memory is used up.
 * - ENOSPC: the DIMM has no contiguous room of that size.
 * - ESTALE: a command's x is missing on a DIMM that computes; see
 *   &struct moendp_cmd.
 * - EAGAIN: a non-blocking submission would have to wait.
 * - EIO: the DIMM refused or failed a command.
 * - ENOLINK: the DIMM-Link between two DIMMs is down.
 * - ETIMEDOUT: the DIMM did not complete the command in time and was reset.
 * - ECANCELED: the command was queued on a DIMM that was reset, or its file was
 *   closed.
 * - EINTR: a fatal signal ended the wait; the work itself goes on.
 */
#ifndef _UAPI_MOENDP_H
#define _UAPI_MOENDP_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define MOENDP_ABI_VERSION	1
#define MOENDP_MAX_DIMMS	32
/* Most ranges of a placement. */
#define MOENDP_MAX_RANGES	64
/* Most ranges that an io_uring MIGRATE carries. */
#define MOENDP_MAX_INLINE_RANGES	7
/* Neurons in a block of an expert, rows in a panel of a matrix. */
#define MOENDP_BLOCK_ROWS	32
/* Commands in flight for one open file and DIMM; more wait in the file. */
#define MOENDP_MAX_INFLIGHT	32

#define MOENDP_IOC_TYPE		0xB8

/**
 * struct moendp_range - consecutive blocks on one DIMM
 * @dimm: where they lie
 * @nr_blocks: how many; not zero
 *
 * A placement is a list of ranges: the first begins with block 0, each
 * following one where its predecessor ends, and together they hold every block.
 */
struct moendp_range {
	__u32 dimm;
	__u32 nr_blocks;
};

/* moendp_query.features */
#define MOENDP_FEAT_COHERENT	(1ULL << 0)	/* every DIMM sees CPU caches */
#define MOENDP_FEAT_LINK	(1ULL << 1)	/* migration is possible */

/* moendp_query.dimm_state */
#define MOENDP_DIMM_ABSENT	0
#define MOENDP_DIMM_READY	1
#define MOENDP_DIMM_RESETTING	2
#define MOENDP_DIMM_FAILED	3

/**
 * struct moendp_counters - what an engine did since its driver was bound
 * @commands: completed, with any status
 * @errors: of these, not with success
 * @tokens: tokens computed
 * @bytes: bytes moved, as the hardware model counts them
 * @busy_ns: modelled busy time
 * @wall_ns: the time that the emulation really took
 */
struct moendp_counters {
	__u64 commands;
	__u64 errors;
	__u64 tokens;
	__u64 bytes;
	__u64 busy_ns;
	__u64 wall_ns;
};

/**
 * struct moendp_query - MOENDP_IOC_QUERY, what the file and one DIMM are
 * @size: sizeof(struct moendp_query)
 * @flags: must be zero
 * @dimm: in: the DIMM that the members from @dimm_state on describe
 * @abi: out: MOENDP_ABI_VERSION
 * @dimm_mask: out: the DIMMs that this file knows and that are present
 * @max_tokens: out: most tokens in a command
 * @features: out: MOENDP_FEAT_*
 * @domain: out: UUID of the link domain
 * @quota_bytes: out: what this user may allocate in the domain, 0: no limit
 * @used_bytes: out: what this user has allocated in the domain
 * @dimm_state: out: MOENDP_DIMM_*; when absent, all that follows is zero
 * @generation: out: counts the resets of the DIMM
 * @numa_node: out: of the DIMM's PCI function, or -1
 * @link_peers: out: DIMMs that can be reached over DIMM-Link
 * @mem_bytes: out: memory that objects can use
 * @free_bytes: out: of these free
 * @largest_free_bytes: out: largest contiguous free piece
 * @internal_mbps: out: modelled internal bandwidth, 10^6 bytes a second
 * @gflops: out: modelled rate
 * @overhead_ns: out: modelled cost of a command
 * @link_mbps: out: modelled rate of the DIMM-Link port, one way
 * @link_latency_ns: out: modelled latency of a transfer
 * @resets: out: resets since the driver was bound
 * @compute: out: counters of the compute engine
 * @link: out: counters of the link engine
 * @cache_lines_flushed: out: lines that the driver wrote back or invalidated
 *	because the DIMM is not coherent
 * @inflight: out: commands of both engines that are not complete
 * @reserved: out: zero
 *
 * Errors: ENXIO when @dimm is not known to this file (an absent DIMM of the
 * domain is known to /dev/ndpN: @dimm_state says so).
 */
struct moendp_query {
	__u32 size;
	__u32 flags;
	__u32 dimm;
	__u32 abi;
	__u32 dimm_mask;
	__u32 max_tokens;
	__u64 features;
	__u8  domain[16];
	__u64 quota_bytes;
	__u64 used_bytes;
	__u32 dimm_state;
	__u32 generation;
	__s32 numa_node;
	__u32 link_peers;
	__u64 mem_bytes;
	__u64 free_bytes;
	__u64 largest_free_bytes;
	__u32 internal_mbps;
	__u32 gflops;
	__u32 overhead_ns;
	__u32 link_mbps;
	__u32 link_latency_ns;
	__u32 resets;
	struct moendp_counters compute;
	struct moendp_counters link;
	__u64 cache_lines_flushed;
	__u32 inflight;
	__u32 reserved;
};

/* moendp_bo_create.type */
#define MOENDP_BO_EXPERT	1	/* neuron blocks, for FFN */
#define MOENDP_BO_MATRIX	2	/* panels of 32 rows, for GEMV */
#define MOENDP_BO_IO		3	/* activations and results */

/**
 * struct moendp_bo_create - MOENDP_IOC_BO_CREATE, allocate an object
 * @size: sizeof(struct moendp_bo_create)
 * @flags: must be zero
 * @type: MOENDP_BO_*
 * @handle: out: names the object in this file; never zero
 * @cookie: for the holder of a placement file descriptor; any value
 * @h_in: weights: inputs (columns of x)
 * @h_out: EXPERT: outputs (columns of y); MATRIX: zero
 * @rows: EXPERT: neurons; MATRIX: outputs
 * @allowed_mask: weights: DIMMs that no migration may leave; zero: all that
 *	this file knows
 * @ranges: weights: pointer to an array of &struct moendp_range
 * @nr_ranges: weights: its length, 1..MOENDP_MAX_RANGES
 * @dimm_mask: IO: DIMMs that get a replica
 * @bytes: IO: size of a replica; weights: zero in, out: size of the object
 * @map_offset: out: where mmap() finds the object
 * @stride: out: IO: distance between replicas in the mapping, which holds them
 *	in the order of their DIMMs; weights: size of a block or panel
 *
 * The memory is zeroed.  Blocks of an EXPERT are 128 * roundup(h_in, 64) + 64 *
 * roundup(h_out, 64) bytes, panels of a MATRIX 64 * roundup(h_in, 64): whole
 * 4 KiB pages.  In the mapping, block or panel b begins at b * @stride.
 *
 * Each range is contiguous in its DIMM.  The size of a weight object and of
 * all replicas of an IO object counts against the user's quota.
 *
 * Errors: EINVAL, EFAULT, ENXIO, ENODEV, EPERM (a range outside of
 * @allowed_mask), EDQUOT, ENOSPC, ENOMEM.
 */
struct moendp_bo_create {
	__u32 size;
	__u32 flags;
	__u32 type;
	__u32 handle;
	__u64 cookie;
	__u32 h_in;
	__u32 h_out;
	__u32 rows;
	__u32 allowed_mask;
	__u64 ranges;
	__u32 nr_ranges;
	__u32 dimm_mask;
	__u64 bytes;
	__u64 map_offset;
	__u64 stride;
};

/**
 * struct moendp_bo_destroy - MOENDP_IOC_BO_DESTROY, give an object back
 * @size: sizeof(struct moendp_bo_destroy)
 * @flags: must be zero
 * @handle: the object
 * @rsvd: must be zero
 *
 * The handle is free at once; the memory when the last command and the last
 * mapping that use it are gone.
 *
 * Errors: ENOENT.
 */
struct moendp_bo_destroy {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 rsvd;
};

/* moendp_bo_info.state */
#define MOENDP_BO_STATE_SEALED	(1U << 0)
#define MOENDP_BO_STATE_LOST	(1U << 1)	/* a DIMM that held a part is gone */
#define MOENDP_BO_STATE_MOVING	(1U << 2)	/* a migration is under way */

/**
 * struct moendp_bo_info - MOENDP_IOC_BO_INFO, what an object is
 * @size: sizeof(struct moendp_bo_info)
 * @flags: must be zero
 * @handle: the object
 * @type: out: MOENDP_BO_*
 * @cookie: out: as created
 * @h_in: out: as created
 * @h_out: out: as created
 * @rows: out: as created
 * @state: out: MOENDP_BO_STATE_*
 * @bytes: out: size (of a replica)
 * @stride: out: as created
 * @map_offset: out: as created
 * @id: out: what placement file descriptors call it
 * @moves: out: migrations that the object has seen
 * @allowed_mask: out: weights: as created
 * @dimm_mask: out: where the object lies now
 * @ranges: pointer to an array that receives the placement, or zero
 * @nr_ranges: in: length of that array; out: ranges of the placement
 * @rsvd: must be zero
 *
 * Errors: ENOENT, EFAULT, EMSGSIZE (the array is too short; @nr_ranges says
 * what is needed).
 */
struct moendp_bo_info {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 type;
	__u64 cookie;
	__u32 h_in;
	__u32 h_out;
	__u32 rows;
	__u32 state;
	__u64 bytes;
	__u64 stride;
	__u64 map_offset;
	__u64 id;
	__u64 moves;
	__u32 allowed_mask;
	__u32 dimm_mask;
	__u64 ranges;
	__u32 nr_ranges;
	__u32 rsvd;
};

/**
 * struct moendp_bo_seal - MOENDP_IOC_BO_SEAL, end the filling of weights
 * @size: sizeof(struct moendp_bo_seal)
 * @flags: must be zero
 * @handle: the weights
 * @rsvd: must be zero
 *
 * From then on the object can be mapped for reading only, computes and
 * migrates.  Sealing twice is allowed.
 *
 * Errors: ENOENT, EBADF (not weights), EBUSY (mapped), ENODEV.
 */
struct moendp_bo_seal {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 rsvd;
};

/**
 * struct moendp_migrate - MOENDP_IOC_MIGRATE, move sealed weights
 * @size: sizeof(struct moendp_migrate)
 * @flags: must be zero
 * @handle: the weights
 * @nr_ranges: length of @ranges, 1..MOENDP_MAX_RANGES
 * @ranges: pointer to an array of &struct moendp_range, the new placement
 * @bytes: out: copied over DIMM-Link or within a DIMM
 * @modelled_ns: out: modelled time of the copies, one after another
 *
 * Returns when the object lies at its new place.  Commands that were submitted
 * before finish on the old one.  Pieces that stay on their DIMM are not moved
 * when the whole range stays.  At any failure the old placement remains valid.
 *
 * Errors: ENOENT, EBADF (not sealed weights), EINVAL, EFAULT, ENXIO, EPERM,
 * ENODEV, ENOSPC, EBUSY (the object is being moved), ENOLINK, EIO, ETIMEDOUT,
 * ECANCELED, EINTR.
 */
struct moendp_migrate {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 nr_ranges;
	__u64 ranges;
	__u64 bytes;
	__u64 modelled_ns;
};

/* Commands: moendp_submit.op, and cmd_op of an io_uring command. */
#define MOENDP_CMD_GEMV		1
#define MOENDP_CMD_ACT		2
#define MOENDP_CMD_FFN		3
#define MOENDP_CMD_MIGRATE	4	/* payload: struct moendp_cmd_migrate */

/* moendp_cmd.flags */
#define MOENDP_CMD_ACCUMULATE	(1U << 0)	/* add to y */
#define MOENDP_CMD_ROWS		(1U << 1)	/* token i reads x row list[i] */

/* moendp_cmd.act */
#define MOENDP_ACT_SILU		0	/* silu(g) * u */
#define MOENDP_ACT_SWIGLU_CLAMP	1	/* clamped SwiGLU with alpha and limit */

/**
 * struct moendp_cmd - GEMV, ACT and FFN, 80 bytes
 * @weights: EXPERT (FFN) or MATRIX (GEMV), sealed; ACT: zero
 * @x_bo: IO object that holds x and, with CMD_ROWS, the list
 * @y_bo: IO object that receives y; may be @x_bo
 * @flags: MOENDP_CMD_*
 * @x_mask: DIMMs into whose replica this x was written
 * @first: FFN, GEMV: first block or panel
 * @count: FFN, GEMV: how many; ACT: columns
 * @tokens: how many; 0 computes nothing and succeeds
 * @x_rows: CMD_ROWS: rows of x, 1..65535; otherwise zero
 * @act: FFN, ACT: MOENDP_ACT_*; GEMV: zero
 * @x_off: offset of x in a replica: BF16 [tokens or x_rows][ldx]; ACT: of the
 *	gates, FP32
 * @y_off: offset of y in a replica: FP32 [tokens][ldy]; ACT: BF16
 * @rows_off: CMD_ROWS: offset of the list, 32 bits an entry; ACT: offset of the
 *	ups, FP32
 * @ldx: bytes from one row of x to the next
 * @ldy: bytes from one row of y to the next
 * @alpha: ACT_SWIGLU_CLAMP: FP32 bits; otherwise zero
 * @limit: ACT_SWIGLU_CLAMP: FP32 bits; otherwise zero
 *
 * Offsets and strides are multiples of 64, @rows_off with CMD_ROWS of 4.
 *
 * FFN: each DIMM that holds some of the blocks writes its partial sum to y in
 * its own replica; the sum over the replicas of the mask that comes back is the
 * result.  GEMV: each DIMM writes the rows that it holds (row r of the matrix is
 * column r - 32 * @first of y) and leaves the others alone: zero y in every
 * replica first, then the sum over the mask is the result.  ACT runs on every
 * DIMM of @x_mask.
 *
 * When a DIMM that is needed is not in @x_mask nothing is executed: the command
 * ends with ESTALE and the mask of all DIMMs that are needed now.  Write x there
 * and submit again.
 *
 * Completion by io_uring: res is 0 or a negative errno, extra1 is
 * (dimm_mask << 32) | min(modelled_ns, 2^32 - 1), extra2 is 0.  modelled_ns is
 * the longest of the DIMMs' sums of service times.
 *
 * Errors: EINVAL, ENOENT, EBADF, EXDEV, ENXIO, ESTALE, ENODEV, EIO, ETIMEDOUT,
 * ECANCELED; ioctl: EFAULT, EINTR; io_uring: EAGAIN is never seen by callers,
 * EOPNOTSUPP (the ring lacks SQE128 or CQE32, or polls).
 */
struct moendp_cmd {
	__u32 weights;
	__u32 x_bo;
	__u32 y_bo;
	__u32 flags;
	__u32 x_mask;
	__u32 first;
	__u32 count;
	__u32 tokens;
	__u32 x_rows;
	__u32 act;
	__u64 x_off;
	__u64 y_off;
	__u64 rows_off;
	__u32 ldx;
	__u32 ldy;
	__u32 alpha;
	__u32 limit;
};

/**
 * struct moendp_cmd_migrate - MIGRATE through io_uring, 80 bytes
 * @handle: the weights; on a placement file descriptor: zero
 * @nr_ranges: length of @ranges in use, 1..MOENDP_MAX_INLINE_RANGES; or zero:
 *	spread evenly over @dimm_mask, in ascending order, larger parts first
 * @dimm_mask: see @nr_ranges; otherwise zero
 * @rsvd: must be zero
 * @id: on a placement file descriptor: the object; otherwise zero
 * @ranges: the new placement; unused entries are zero
 *
 * Completion as with &struct moendp_cmd, dimm_mask saying where the object lies.
 * Errors as with &struct moendp_migrate.
 */
struct moendp_cmd_migrate {
	__u32 handle;
	__u32 nr_ranges;
	__u32 dimm_mask;
	__u32 rsvd;
	__u64 id;
	struct moendp_range ranges[MOENDP_MAX_INLINE_RANGES];
};

/**
 * struct moendp_submit - MOENDP_IOC_SUBMIT, execute a command and wait
 * @size: sizeof(struct moendp_submit)
 * @flags: must be zero
 * @op: MOENDP_CMD_GEMV, MOENDP_CMD_ACT or MOENDP_CMD_FFN
 * @dimm_mask: out: where it was executed; with ESTALE: where x is needed
 * @modelled_ns: out: see &struct moendp_cmd
 * @cmd: the command
 *
 * The structure is written back with ESTALE, too.
 */
struct moendp_submit {
	__u32 size;
	__u32 flags;
	__u32 op;
	__u32 dimm_mask;
	__u64 modelled_ns;
	struct moendp_cmd cmd;
};

/**
 * struct moendp_placement_fd - MOENDP_IOC_PLACEMENT_FD, lend the right to place
 * @size: sizeof(struct moendp_placement_fd)
 * @flags: must be zero
 * @fd: out: a new close-on-exec file descriptor
 * @rsvd: must be zero
 *
 * Its holder can list this file's sealed weights and migrate them, and nothing
 * else.  It holds no object alive.  When this file is closed for the last time,
 * or after MOENDP_IOC_PLACEMENT_REVOKE, every call on it fails with ENODEV and
 * poll() says POLLHUP.  poll() says POLLIN when objects were added, removed,
 * moved or lost since its last MOENDP_IOC_PLACEMENT_LIST that began at id 0.
 */
struct moendp_placement_fd {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 rsvd;
};

/**
 * struct moendp_placement_revoke - MOENDP_IOC_PLACEMENT_REVOKE, take it back
 * @size: sizeof(struct moendp_placement_revoke)
 * @flags: must be zero
 *
 * Ends every placement file descriptor of this file.
 */
struct moendp_placement_revoke {
	__u32 size;
	__u32 flags;
};

/**
 * struct moendp_placement_entry - one object in a list
 * @id: names it on placement file descriptors; never used again
 * @cookie: as created
 * @bytes: size
 * @block_bytes: size of a block or panel
 * @nr_blocks: blocks or panels
 * @nr_ranges: of its placement
 * @allowed_mask: DIMMs that it may lie on
 * @dimm_mask: DIMMs that it lies on
 * @state: MOENDP_BO_STATE_*
 * @type: MOENDP_BO_*
 */
struct moendp_placement_entry {
	__u64 id;
	__u64 cookie;
	__u64 bytes;
	__u64 block_bytes;
	__u32 nr_blocks;
	__u32 nr_ranges;
	__u32 allowed_mask;
	__u32 dimm_mask;
	__u32 state;
	__u32 type;
};

/**
 * struct moendp_placement_list - MOENDP_IOC_PLACEMENT_LIST, list the objects
 * @size: sizeof(struct moendp_placement_list)
 * @flags: must be zero
 * @start: in: ids from here on; out: where to go on, 0 at the end
 * @entries: pointer to an array of &struct moendp_placement_entry
 * @nr_entries: in: its length; out: entries filled in
 * @total: out: sealed weights of the file
 *
 * Errors: EFAULT, ENODEV.
 */
struct moendp_placement_list {
	__u32 size;
	__u32 flags;
	__u64 start;
	__u64 entries;
	__u32 nr_entries;
	__u32 total;
};

/**
 * struct moendp_placement_info - MOENDP_IOC_PLACEMENT_INFO, where an object lies
 * @size: sizeof(struct moendp_placement_info)
 * @flags: must be zero
 * @id: the object
 * @ranges: pointer to an array of &struct moendp_range
 * @nr_ranges: in: its length; out: ranges of the placement
 * @rsvd: must be zero
 *
 * Errors: ENOENT, EFAULT, EMSGSIZE, ENODEV.
 */
struct moendp_placement_info {
	__u32 size;
	__u32 flags;
	__u64 id;
	__u64 ranges;
	__u32 nr_ranges;
	__u32 rsvd;
};

/**
 * struct moendp_placement_migrate - MOENDP_IOC_PLACEMENT_MIGRATE, move an object
 * @size: sizeof(struct moendp_placement_migrate)
 * @flags: must be zero
 * @id: the object
 * @ranges: pointer to an array of &struct moendp_range, the new placement
 * @nr_ranges: its length
 * @rsvd: must be zero
 * @bytes: out: copied
 * @modelled_ns: out: modelled time of the copies, one after another
 *
 * Errors as with &struct moendp_migrate.
 */
struct moendp_placement_migrate {
	__u32 size;
	__u32 flags;
	__u64 id;
	__u64 ranges;
	__u32 nr_ranges;
	__u32 rsvd;
	__u64 bytes;
	__u64 modelled_ns;
};

#define MOENDP_IOC_QUERY		_IO(MOENDP_IOC_TYPE, 0x00)
#define MOENDP_IOC_BO_CREATE		_IO(MOENDP_IOC_TYPE, 0x01)
#define MOENDP_IOC_BO_DESTROY		_IO(MOENDP_IOC_TYPE, 0x02)
#define MOENDP_IOC_BO_INFO		_IO(MOENDP_IOC_TYPE, 0x03)
#define MOENDP_IOC_BO_SEAL		_IO(MOENDP_IOC_TYPE, 0x04)
#define MOENDP_IOC_MIGRATE		_IO(MOENDP_IOC_TYPE, 0x05)
#define MOENDP_IOC_SUBMIT		_IO(MOENDP_IOC_TYPE, 0x06)
#define MOENDP_IOC_PLACEMENT_FD		_IO(MOENDP_IOC_TYPE, 0x07)
#define MOENDP_IOC_PLACEMENT_REVOKE	_IO(MOENDP_IOC_TYPE, 0x08)
/* On placement file descriptors only. */
#define MOENDP_IOC_PLACEMENT_LIST	_IO(MOENDP_IOC_TYPE, 0x40)
#define MOENDP_IOC_PLACEMENT_INFO	_IO(MOENDP_IOC_TYPE, 0x41)
#define MOENDP_IOC_PLACEMENT_MIGRATE	_IO(MOENDP_IOC_TYPE, 0x42)

#endif /* _UAPI_MOENDP_H */
