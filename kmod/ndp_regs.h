/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * ndp_regs.h - what an NDP DIMM looks like from the host: PCI identity,
 * registers, rings, commands and completions.
 *
 * The only file that the kernel module and the device model share.  It holds
 * constants and little-endian layouts, no code.  Everything in rings and in
 * registers is little-endian.
 *
 * Facts: docs/hardware.md says why each thing is here.
 */
#ifndef NDP_REGS_H
#define NDP_REGS_H

#ifdef __linux__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint16_t __le16;
typedef uint32_t __le32;
typedef uint64_t __le64;
typedef uint8_t __u8;
#endif

/*
 * PCI identity.  Neither number is allocated to this project: 0x1b36 is used
 * by QEMU's own devices, and the device id is one that QEMU does not use.  A
 * real product brings its own.
 */
#define NDP_PCI_VENDOR_ID	0x1b36
#define NDP_PCI_DEVICE_ID	0x4e44
#define NDP_PCI_CLASS		0x1200	/* processing accelerator */

#define NDP_BAR_REGS		0	/* registers, 4 KiB */
#define NDP_BAR_DRAM		2	/* the DIMM's DRAM, 64-bit prefetchable */
#define NDP_BAR_MSIX		4
#define NDP_REGS_BYTES		0x1000

/* MSI-X vectors. */
#define NDP_VEC_EVENT		0
#define NDP_VEC_COMPUTE		1
#define NDP_VEC_LINK		2
#define NDP_VECTORS		3

/* Identity and limits, read-only, 32 bits unless it says otherwise. */
#define NDP_REG_MAGIC		0x000
#define  NDP_MAGIC		0x3150444eU	/* "NDP1" */
#define NDP_REG_VERSION		0x004		/* major << 16 | minor */
#define  NDP_VERSION		0x00010000U
#define NDP_REG_CAP		0x008
#define  NDP_CAP_COHERENT	(1U << 0)	/* the device sees CPU caches */
#define  NDP_CAP_LINK		(1U << 1)	/* has a DIMM-Link port */
#define  NDP_CAP_TIMING		(1U << 2)	/* completes at the modelled time */
#define NDP_REG_NODE		0x00c		/* node id in its domain, 0..31 */
#define NDP_REG_MAX_TOKENS	0x010		/* most tokens in a command */
#define NDP_REG_MAX_COPY	0x014		/* most bytes in a FILL or a copy */
#define NDP_REG_MAX_QUEUE	0x018		/* log2 of the largest ring */
#define NDP_REG_DOMAIN_LO	0x020		/* 64 bits: UUID bytes 0..7 */
#define NDP_REG_DOMAIN_HI	0x028		/* 64 bits: UUID bytes 8..15 */
#define NDP_REG_MEM_SIZE	0x030		/* 64 bits: bytes of DRAM */
#define NDP_REG_RSVD_OFF	0x038		/* 64 bits: where rings may lie */
#define NDP_REG_RSVD_SIZE	0x040		/* 64 bits */
#define NDP_REG_INTERNAL_MBPS	0x048		/* modelled internal bandwidth */
#define NDP_REG_GFLOPS		0x04c		/* modelled BF16 GEMV rate */
#define NDP_REG_LINK_MBPS	0x050		/* modelled port rate, one way */
#define NDP_REG_OVERHEAD_NS	0x054		/* modelled cost of a command */
#define NDP_REG_LINK_LATENCY_NS	0x058		/* modelled latency of a pull */
#define NDP_REG_PEERS		0x060		/* nodes that a pull can reach now */

/* Control. */
#define NDP_REG_CTRL		0x080
#define  NDP_CTRL_ENABLE	(1U << 0)	/* engines take commands */
#define  NDP_CTRL_RESET		(1U << 1)	/* function reset, self-clearing */
#define NDP_REG_STATUS		0x084		/* read-only */
#define  NDP_STATUS_READY	(1U << 0)
#define  NDP_STATUS_RESETTING	(1U << 1)	/* RESET accepted, not yet done */
#define  NDP_STATUS_FAILED	(1U << 2)
#define  NDP_STATUS_LINK_UP	(1U << 3)
#define NDP_REG_GENERATION	0x088		/* read-only, +1 with each reset */
#define NDP_REG_EVENT		0x08c		/* write 1 to clear */
#define  NDP_EVENT_LINK		(1U << 0)	/* LINK_UP or PEERS changed */
#define  NDP_EVENT_FATAL	(1U << 1)	/* STATUS.FAILED was set */

/*
 * Queues: 0 compute, 1 link.  A ring of 64-byte commands and a ring of 32-byte
 * completions of the same number of entries, both inside the reserved area and
 * aligned to their entries.  BASE and SIZE are latched when ENABLE goes 0 -> 1; a
 * bad base or size leaves ENABLE at 0.  At most size - 1 commands may be
 * outstanding.
 */
#define NDP_QUEUES		2
#define NDP_Q_COMPUTE		0
#define NDP_Q_LINK		1
#define NDP_REG_Q(q, r)		(0x100 + (q) * 0x40 + (r))
#define NDP_Q_SQ_BASE		0x00		/* 64 bits: offset in DRAM */
#define NDP_Q_CQ_BASE		0x08		/* 64 bits: offset in DRAM */
#define NDP_Q_SIZE_LOG2		0x10		/* 1 .. MAX_QUEUE */
#define NDP_Q_ENABLE		0x14		/* 0 or 1 */
#define NDP_Q_DOORBELL		0x18		/* write: new tail, 0..size-1 */
#define NDP_Q_SQ_HEAD		0x1c		/* read-only: next to be fetched */
#define NDP_QUEUE_LOG2_MAX	10

/* Counters since power-on, 64 bits, read-only; COMPUTE, then LINK. */
#define NDP_REG_COUNTER(q, r)	(0x200 + (q) * 0x40 + (r))
#define NDP_CTR_COMMANDS	0x00		/* completed, any status */
#define NDP_CTR_ERRORS		0x08		/* of these, status not OK */
#define NDP_CTR_TOKENS		0x10
#define NDP_CTR_BYTES		0x18		/* moved, as the model counts them */
#define NDP_CTR_BUSY_NS		0x20		/* modelled */
#define NDP_CTR_WALL_NS		0x28		/* what the emulation took */

/*
 * Commands.  Addresses are byte offsets in this DIMM's DRAM (LINK_COPY's
 * source: in the peer's).  Fields that a command does not name must be zero.
 * The device copies the 64 bytes once and checks the copy.
 *
 * FILL       y = destination, x = bytes, count = 32-bit pattern.  8-byte aligned.
 * COPY       w = source, y = destination, x = bytes.  8-byte aligned, no overlap.
 * LINK_COPY  as COPY, count = peer's node id.  Link queue only.
 *            FILL and COPY go to either queue.
 * GEMV       w = first panel, count = panels of 32 output rows, h_in = K,
 *            h_out = output rows wanted (32 * (count - 1) < h_out <= 32 * count),
 *            x = BF16 [rows][ldx], y = FP32 [tokens][ldy].
 * ACT        x = gate FP32, rows = up FP32, both [tokens][ldx]; y = BF16
 *            [tokens][ldy]; h_out = columns; y = bf16(act(gate, up)).
 * FFN        w = first neuron block, count = blocks, h_in, h_out, x and y as in
 *            GEMV; a block is 128 * roundup(h_in, 64) + 64 * roundup(h_out, 64)
 *            bytes: gate, up, down.
 *
 * GEMV and FFN: with F_ROWS token i reads x row rows[i] (a list of 32-bit
 * indices, each < x_rows, copied before it is checked); without, rows and
 * x_rows are zero.  y is always dense.  F_ACCUMULATE adds to y instead of
 * overwriting it.  w is 64-byte aligned, x, y and the strides are multiples of
 * 64 bytes, rows of 4.  Only columns < h_in of x are read and only columns
 * < h_out of y are written.
 */
struct ndp_hw_cmd {
	__u8	opcode;
	__u8	flags;
	__le16	cid;		/* chosen by the driver, comes back */
	__u8	act;
	__u8	rsvd;
	__le16	x_rows;
	__le64	w;
	__le64	x;
	__le64	y;
	__le64	rows;
	__le32	count;
	__le32	tokens;
	__le16	h_in;
	__le16	h_out;
	__le16	ldx64;		/* strides in units of 64 bytes */
	__le16	ldy64;
	__le32	alpha;		/* FP32, act = 1 only */
	__le32	limit;
};

#define NDP_OP_FILL		1
#define NDP_OP_COPY		2
#define NDP_OP_LINK_COPY	3
#define NDP_OP_GEMV		4
#define NDP_OP_ACT		5
#define NDP_OP_FFN		6

#define NDP_F_ACCUMULATE	(1U << 0)
#define NDP_F_ROWS		(1U << 1)

#define NDP_ACT_SILU		0	/* silu(g) * u */
#define NDP_ACT_SWIGLU_CLAMP	1	/* gpt-oss: see docs/hardware.md */

/*
 * A completion.  The device writes it after the result, phase last; the host
 * reads phase first.  phase is 1 in the first round of the ring, 2 in the
 * second, 1 in the third, and so on (0 is never written, so a zeroed ring is
 * an empty one).
 */
struct ndp_hw_cpl {
	__le64	modelled_ns;	/* service time of the modelled hardware */
	__le32	generation;	/* when the command was fetched */
	__le16	cid;
	__le16	sq_head;	/* fetched up to here */
	__le32	status;
	__le32	rsvd[2];
	__le32	phase;
};

#define NDP_ST_OK		0
#define NDP_ST_OPCODE		1	/* unknown, or not for this queue */
#define NDP_ST_FIELD		2	/* a flag, code or field that must be zero */
#define NDP_ST_RANGE		3	/* outside of DRAM, or overlapping */
#define NDP_ST_ALIGN		4
#define NDP_ST_SHAPE		5	/* zero or too large a dimension */
#define NDP_ST_ROW		6	/* a token row >= x_rows */
#define NDP_ST_PEER		7	/* no such node, or it left */
#define NDP_ST_LINK_DOWN	8
#define NDP_ST_ABORTED		9	/* by a reset; seen in logs only */
#define NDP_ST_INTERNAL		10	/* the device is broken */

#define NDP_MAX_NODES		32
#define NDP_MAX_TOKENS		1024
#define NDP_MAX_COPY_BYTES	(16U << 20)
#define NDP_RSVD_BYTES		(1U << 20)	/* at the end of DRAM */

#endif /* NDP_REGS_H */
