/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip.c - the chip's front: engines, the check of an operation, and who
 * executes it.
 *
 * ndp_chip_check() is the only place that decides whether an operation may run;
 * it must never read memory.  Its tests come in this order, and the first that
 * fails gives the status: opcode, fields that must be zero, shape, alignment,
 * ranges.
 */
#include <stdlib.h>
#include <string.h>

#include "ndp_chip_impl.h"

bool ndp_chip_isa_usable(enum ndp_chip_isa isa)
{
    switch (isa) {
    case NDP_CHIP_ISA_SCALAR:
        return true;
#ifdef __x86_64__
    /* The builtin also asks the OS (XCR0) whether it saves the registers. */
    case NDP_CHIP_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case NDP_CHIP_ISA_AVX512_BF16:
        return ndp_chip_isa_usable(NDP_CHIP_ISA_AVX2) &&
               __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bf16");
#endif
    default:
        return false;
    }
}

enum ndp_chip_isa ndp_chip_isa_best(void)
{
    enum ndp_chip_isa isa = NDP_CHIP_ISA_AVX512_BF16;

    while (!ndp_chip_isa_usable(isa)) {
        isa--;
    }
    return isa;
}

const char *ndp_chip_isa_name(enum ndp_chip_isa isa)
{
    switch (isa) {
    case NDP_CHIP_ISA_SCALAR:
        return "scalar";
    case NDP_CHIP_ISA_AVX2:
        return "avx2";
    case NDP_CHIP_ISA_AVX512_BF16:
        return "avx512-bf16";
    default:
        return "unknown";
    }
}

struct ndp_chip_engine *
ndp_chip_engine_new_with(const struct ndp_chip_kernels *k)
{
    struct ndp_chip_engine *e;

    if (posix_memalign((void **)&e, 64, sizeof(*e))) {
        return NULL;
    }
    memset(e, 0, sizeof(*e));
    e->k = k;
    return e;
}

struct ndp_chip_engine *ndp_chip_engine_new(enum ndp_chip_isa isa)
{
    if (!ndp_chip_isa_usable(isa)) {
        return NULL;
    }
    switch (isa) {
#ifdef __x86_64__
    case NDP_CHIP_ISA_AVX2:
        return ndp_chip_engine_new_with(&ndp_chip_avx2);
    case NDP_CHIP_ISA_AVX512_BF16:
        return ndp_chip_engine_new_with(&ndp_chip_avx512);
#endif
    default:
        return ndp_chip_engine_new_with(&ndp_chip_scalar);
    }
}

void ndp_chip_engine_free(struct ndp_chip_engine *e)
{
    if (!e) {
        return;
    }
    free(e->x.p);
    free(e->y.p);
    free(e->group.p);
    free(e->h.p);
    free(e);
}

uint64_t ndp_chip_block_bytes(uint32_t h_in, uint32_t h_out)
{
    return 128 * (uint64_t)ndp_chip_round64(h_in) +
           64 * (uint64_t)ndp_chip_round64(h_out);
}

uint64_t ndp_chip_panel_bytes(uint32_t k)
{
    return 64 * (uint64_t)ndp_chip_round64(k);
}

/* The check's steps. */

/* Sets to zero the fields that the opcode names; the others must be zero. */
static bool unnamed_fields_are_zero(const struct ndp_chip_op *op)
{
    struct ndp_chip_op o = *op;

    switch (op->opcode) {
    case NDP_CHIP_FILL:
        o.y = o.len = o.pattern = 0;
        break;
    case NDP_CHIP_COPY:
        o.w = o.y = o.len = 0;
        break;
    case NDP_CHIP_LINK_COPY:
        o.w = o.y = o.len = o.node = 0;
        break;
    case NDP_CHIP_ACT:
        o.x = o.rows = o.y = 0;
        o.tokens = o.h_out = o.ldx_bytes = o.ldy_bytes = 0;
        break;
    case NDP_CHIP_GEMV:
    case NDP_CHIP_FFN:
        o.flags &= ~(NDP_CHIP_ACCUMULATE | NDP_CHIP_ROWS);
        o.w = o.x = o.y = 0;
        o.count = o.tokens = o.h_in = o.h_out = o.ldx_bytes = o.ldy_bytes = 0;
        if (op->flags & NDP_CHIP_ROWS) {
            o.rows = o.x_rows = 0;
        }
        break;
    }
    if (op->opcode == NDP_CHIP_ACT || op->opcode == NDP_CHIP_FFN) {
        if (op->act > NDP_CHIP_SWIGLU_CLAMP) {
            return false;
        }
        if (op->act == NDP_CHIP_SWIGLU_CLAMP) {
            o.alpha = o.limit = 0;
        }
        o.act = 0;
    }
    return !o.flags && !o.act && !o.node && !o.pattern && !o.len && !o.w &&
           !o.x && !o.y && !o.rows && !o.count && !o.tokens && !o.x_rows &&
           !o.h_in && !o.h_out && !o.ldx_bytes && !o.ldy_bytes &&
           o.alpha == 0 && o.limit == 0;
}

static bool dim_ok(uint64_t n, uint64_t max)
{
    return n >= 1 && n <= max;
}

static bool aligned(uint64_t offsets, unsigned to)
{
    return !(offsets & (to - 1));
}

/* Bytes from the start of the first of @rows rows to the end of the last. */
static uint64_t span(uint64_t rows, uint64_t ld_bytes, uint64_t row_bytes)
{
    return (rows - 1) * ld_bytes + row_bytes;
}

static bool overlaps(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a < b ? b - a < bytes : a - b < bytes;
}

static enum ndp_chip_status check_transfer(const struct ndp_chip_op *op,
                                           uint64_t mem_bytes)
{
    if (!dim_ok(op->len, NDP_CHIP_MAX_COPY)) {
        return NDP_CHIP_ERR_SHAPE;
    }
    if (!aligned(op->len | op->w | op->y, 8)) {
        return NDP_CHIP_ERR_ALIGN;
    }
    if (!ndp_chip_in_range(op->y, op->len, mem_bytes)) {
        return NDP_CHIP_ERR_RANGE;
    }
    if (op->opcode == NDP_CHIP_COPY &&
        (!ndp_chip_in_range(op->w, op->len, mem_bytes) ||
         overlaps(op->w, op->y, op->len))) {
        return NDP_CHIP_ERR_RANGE;
    }
    return NDP_CHIP_OK;
}

static enum ndp_chip_status check_act(const struct ndp_chip_op *op,
                                      uint64_t mem_bytes)
{
    uint64_t in = 4 * (uint64_t)op->h_out, out = 2 * (uint64_t)op->h_out;

    if (!dim_ok(op->tokens, NDP_CHIP_MAX_TOKENS) ||
        !dim_ok(op->h_out, NDP_CHIP_MAX_H) ||
        op->ldx_bytes < in || op->ldy_bytes < out) {
        return NDP_CHIP_ERR_SHAPE;
    }
    if (!aligned(op->x | op->rows | op->y | op->ldx_bytes | op->ldy_bytes,
                 64)) {
        return NDP_CHIP_ERR_ALIGN;
    }
    in = span(op->tokens, op->ldx_bytes, in);
    out = span(op->tokens, op->ldy_bytes, out);
    if (!ndp_chip_in_range(op->x, in, mem_bytes) ||
        !ndp_chip_in_range(op->rows, in, mem_bytes) ||
        !ndp_chip_in_range(op->y, out, mem_bytes)) {
        return NDP_CHIP_ERR_RANGE;
    }
    return NDP_CHIP_OK;
}

static enum ndp_chip_status check_multiply(const struct ndp_chip_op *op,
                                           uint64_t mem_bytes)
{
    bool ffn = op->opcode == NDP_CHIP_FFN, listed = op->flags & NDP_CHIP_ROWS;
    uint64_t in = 2 * (uint64_t)op->h_in, out = 4 * (uint64_t)op->h_out;
    uint64_t panel_rows = (uint64_t)op->count * NDP_PANEL;
    uint64_t weights;

    if (!dim_ok(op->tokens, NDP_CHIP_MAX_TOKENS) || !op->count ||
        !dim_ok(op->h_in, NDP_CHIP_MAX_H) ||
        !dim_ok(op->h_out, NDP_CHIP_MAX_H) ||
        op->ldx_bytes < in || op->ldy_bytes < out || (listed && !op->x_rows) ||
        (!ffn && (op->h_out > panel_rows ||
                  op->h_out <= panel_rows - NDP_PANEL))) {
        return NDP_CHIP_ERR_SHAPE;
    }
    if (!aligned(op->w | op->x | op->y | op->ldx_bytes | op->ldy_bytes, 64) ||
        !aligned(op->rows, 4)) {
        return NDP_CHIP_ERR_ALIGN;
    }
    weights = op->count * (ffn ? ndp_chip_block_bytes(op->h_in, op->h_out)
                               : ndp_chip_panel_bytes(op->h_in));
    in = span(listed ? op->x_rows : op->tokens, op->ldx_bytes, in);
    out = span(op->tokens, op->ldy_bytes, out);
    if (!ndp_chip_in_range(op->w, weights, mem_bytes) ||
        !ndp_chip_in_range(op->x, in, mem_bytes) ||
        !ndp_chip_in_range(op->y, out, mem_bytes) ||
        (listed && !ndp_chip_in_range(op->rows, 4 * (uint64_t)op->tokens,
                                      mem_bytes))) {
        return NDP_CHIP_ERR_RANGE;
    }
    return NDP_CHIP_OK;
}

enum ndp_chip_status ndp_chip_check(const struct ndp_chip_op *op,
                                    uint64_t mem_bytes)
{
    if (op->opcode < NDP_CHIP_FILL || op->opcode > NDP_CHIP_FFN) {
        return NDP_CHIP_ERR_OPCODE;
    }
    if (!unnamed_fields_are_zero(op)) {
        return NDP_CHIP_ERR_FIELD;
    }
    switch (op->opcode) {
    case NDP_CHIP_FILL:
    case NDP_CHIP_COPY:
    case NDP_CHIP_LINK_COPY:
        return check_transfer(op, mem_bytes);
    case NDP_CHIP_ACT:
        return check_act(op, mem_bytes);
    default:
        return check_multiply(op, mem_bytes);
    }
}

enum ndp_chip_status ndp_chip_exec(struct ndp_chip_engine *e,
                                   const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *mem,
                                   const int *abort)
{
    enum ndp_chip_status status = ndp_chip_check(op, mem->bytes);

    if (status != NDP_CHIP_OK) {
        return status;
    }
    switch (op->opcode) {
    case NDP_CHIP_FILL:
        return ndp_chip_fill(op, mem, abort);
    case NDP_CHIP_COPY:
        return ndp_chip_copy(op, mem, mem, abort);
    case NDP_CHIP_ACT:
        return ndp_chip_act(e, op, mem, abort);
    case NDP_CHIP_GEMV:
    case NDP_CHIP_FFN:
        return ndp_chip_multiply(e, op, mem, abort);
    default: /* LINK_COPY needs a peer: ndp_chip_link_copy() */
        return NDP_CHIP_ERR_OPCODE;
    }
}

enum ndp_chip_status ndp_chip_link_copy(const struct ndp_chip_op *op,
                                        const struct ndp_chip_mem *dst,
                                        const struct ndp_chip_mem *src,
                                        const int *abort)
{
    enum ndp_chip_status status = ndp_chip_check(op, dst->bytes);

    if (status != NDP_CHIP_OK) {
        return status;
    }
    if (op->opcode != NDP_CHIP_LINK_COPY) {
        return NDP_CHIP_ERR_OPCODE;
    }
    if (!ndp_chip_in_range(op->w, op->len, src->bytes) ||
        (src->base == dst->base && overlaps(op->w, op->y, op->len))) {
        return NDP_CHIP_ERR_RANGE;
    }
    return ndp_chip_copy(op, dst, src, abort);
}
