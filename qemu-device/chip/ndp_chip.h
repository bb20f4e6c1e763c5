/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip.h - the buffer chip of an NDP DIMM: numerics and modelled time.
 *
 * Plain C, no QEMU, no kernel, no threads, no clock, no global state: an
 * operation is checked, executed on a piece of memory, and timed by a pure
 * function.  The QEMU device and libndp's in-process device are both built on
 * exactly this code.
 *
 * Memory may be changed by others while an operation runs (a guest owns it):
 * nothing read from it is used as an index or a length, but for the list of
 * token rows, which is copied and then checked.
 */
#ifndef NDP_CHIP_H
#define NDP_CHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers equal NDP_OP_*, NDP_F_*, NDP_ACT_* and NDP_ST_* on the wire. */
enum ndp_chip_opcode {
    NDP_CHIP_FILL = 1,
    NDP_CHIP_COPY = 2,
    NDP_CHIP_LINK_COPY = 3,
    NDP_CHIP_GEMV = 4,
    NDP_CHIP_ACT = 5,
    NDP_CHIP_FFN = 6,
};

enum {
    NDP_CHIP_ACCUMULATE = 1 << 0,
    NDP_CHIP_ROWS = 1 << 1,
};

enum ndp_chip_act {
    NDP_CHIP_SILU = 0, /* silu(g) * u */
    /*
     * g' = min(g, limit), u' = clamp(u, -limit, limit),
     * g' * sigmoid(alpha * g') * (u' + 1)
     */
    NDP_CHIP_SWIGLU_CLAMP = 1,
};

enum ndp_chip_status {
    NDP_CHIP_OK = 0,
    NDP_CHIP_ERR_OPCODE = 1,
    NDP_CHIP_ERR_FIELD = 2,
    NDP_CHIP_ERR_RANGE = 3,
    NDP_CHIP_ERR_ALIGN = 4,
    NDP_CHIP_ERR_SHAPE = 5,
    NDP_CHIP_ERR_ROW = 6,
    NDP_CHIP_ERR_PEER = 7,
    NDP_CHIP_ERR_LINK_DOWN = 8,
    NDP_CHIP_ERR_ABORTED = 9,
    NDP_CHIP_ERR_INTERNAL = 10,
};

enum {
    NDP_CHIP_BLOCK_NEURONS = 32, /* neurons of a block, rows of a panel */
    NDP_CHIP_MAX_TOKENS = 1024,
    NDP_CHIP_MAX_H = 65472, /* largest multiple of 64 below 2^16 */
    NDP_CHIP_MAX_COPY = 16 << 20,
};

/* One operation, fields as described with struct ndp_hw_cmd in ndp_regs.h. */
struct ndp_chip_op {
    uint8_t opcode;
    uint8_t flags;
    uint8_t act;
    uint32_t node;    /* LINK_COPY: the peer */
    uint32_t pattern; /* FILL */
    uint64_t len;     /* FILL, COPY, LINK_COPY: bytes */
    uint64_t w;       /* offsets in DRAM, bytes */
    uint64_t x;
    uint64_t y;
    uint64_t rows;
    uint32_t count; /* blocks or panels */
    uint32_t tokens;
    uint32_t x_rows;
    uint32_t h_in;
    uint32_t h_out;
    uint32_t ldx_bytes;
    uint32_t ldy_bytes;
    float alpha;
    float limit;
};

struct ndp_chip_mem {
    uint8_t *base; /* 64-byte aligned */
    uint64_t bytes;
};

/* Modelled hardware; ndp_chip_params_default() fills in docs/hardware.md's. */
struct ndp_chip_params {
    uint32_t internal_mbps; /* 10^6 bytes a second */
    uint32_t gflops;
    uint32_t overhead_ns;
    uint32_t link_mbps;
    uint32_t link_latency_ns;
};

enum ndp_chip_isa {
    NDP_CHIP_ISA_SCALAR = 0,
    NDP_CHIP_ISA_AVX2 = 1,        /* AVX2 + FMA */
    NDP_CHIP_ISA_AVX512_BF16 = 2, /* AVX-512 F, BW, VL, BF16 */
};

/* An engine: one ISA path and its private buffers.  One thread at a time. */
struct ndp_chip_engine;

/* Best path that this CPU runs. */
enum ndp_chip_isa ndp_chip_isa_best(void);
bool ndp_chip_isa_usable(enum ndp_chip_isa isa);
const char *ndp_chip_isa_name(enum ndp_chip_isa isa);

/* NULL when memory is short or @isa cannot run here. */
struct ndp_chip_engine *ndp_chip_engine_new(enum ndp_chip_isa isa);
void ndp_chip_engine_free(struct ndp_chip_engine *e);

void ndp_chip_params_default(struct ndp_chip_params *p);

/*
 * Bytes of a neuron block: 128 * Hip + 64 * Hop, where Hip and Hop are h_in and
 * h_out rounded up to 64.  gate at 0, up at 64 * Hip, down at 128 * Hip.
 */
uint64_t ndp_chip_block_bytes(uint32_t h_in, uint32_t h_out);
/* Bytes of a panel of a MATRIX: 64 * roundup(k, 64). */
uint64_t ndp_chip_panel_bytes(uint32_t k);

/*
 * Everything that can be known without reading memory: opcode, flags, shape,
 * alignment, ranges against @mem_bytes (LINK_COPY: the destination; the peer's
 * side is checked by ndp_chip_link_copy()).
 */
enum ndp_chip_status ndp_chip_check(const struct ndp_chip_op *op,
                                    uint64_t mem_bytes);

/*
 * Checks and executes FILL, COPY, GEMV, ACT or FFN.  @abort (may be NULL) is
 * polled, with relaxed order, at least every few hundred microseconds; when it
 * is not zero the operation ends with NDP_CHIP_ERR_ABORTED and its output is
 * undefined.  A buffer that cannot be had gives NDP_CHIP_ERR_INTERNAL.
 */
enum ndp_chip_status ndp_chip_exec(struct ndp_chip_engine *e,
                                   const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *mem,
                                   const int *abort);

/* A pull from @src, a peer's memory, into @dst.  Checks both sides. */
enum ndp_chip_status ndp_chip_link_copy(const struct ndp_chip_op *op,
                                        const struct ndp_chip_mem *dst,
                                        const struct ndp_chip_mem *src,
                                        const int *abort);

/*
 * Bytes that the operation moves in the DIMM (weights, x, y; y twice when it
 * accumulates; a copy's bytes once for reading, once for writing) and floating
 * point operations, a multiply-add being two; pure.
 */
uint64_t ndp_chip_op_bytes(const struct ndp_chip_op *op);
uint64_t ndp_chip_op_flops(const struct ndp_chip_op *op);

/*
 * Modelled service time, pure: max(bytes / internal bandwidth, flops / rate) +
 * overhead; LINK_COPY: bytes / port rate + latency.
 */
uint64_t ndp_chip_op_ns(const struct ndp_chip_op *op,
                        const struct ndp_chip_params *p);

#endif /* NDP_CHIP_H */
