/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_time.c - what an operation moves, computes and takes on the
 * modelled hardware.
 *
 * Pure functions of the operation and the parameters; never a clock.  All
 * arithmetic saturates at UINT64_MAX, so that an operation that no check has
 * seen gives a huge time and not a small one.
 *
 * The default parameters are those of docs/hardware.md: four ranks of 38.4 GB/s
 * behind the buffer chip, a 256 GFLOPS BF16 unit, a 25 GB/s port.  The two
 * fixed costs are assumptions: the seed documents give none.
 */
#include "ndp_chip_impl.h"

static uint64_t sat_mul(uint64_t a, uint64_t b)
{
    uint64_t r;

    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t sat_add(uint64_t a, uint64_t b)
{
    uint64_t r;

    return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* ceil(amount / rate); a rate of zero is one without a limit. */
static uint64_t div_up(uint64_t amount, uint64_t rate)
{
    return rate ? amount / rate + (amount % rate != 0) : 0;
}

/* ceil(1000 * amount / rate) without an overflow in between. */
static uint64_t div_up_1000(uint64_t amount, uint64_t rate)
{
    if (!rate) {
        return 0;
    }
    return sat_add(sat_mul(amount / rate, 1000),
                   div_up(amount % rate * 1000, rate));
}

void ndp_chip_params_default(struct ndp_chip_params *p)
{
    *p = (struct ndp_chip_params) {
        .internal_mbps = 153600,
        .gflops = 256,
        .overhead_ns = 500,
        .link_mbps = 25000,
        .link_latency_ns = 500,
    };
}

static uint64_t weight_bytes(const struct ndp_chip_op *op)
{
    uint64_t one = op->opcode == NDP_CHIP_FFN ?
        ndp_chip_block_bytes(op->h_in, op->h_out) :
        ndp_chip_panel_bytes(op->h_in);

    return sat_mul(op->count, one);
}

uint64_t ndp_chip_op_bytes(const struct ndp_chip_op *op)
{
    uint64_t x, y;

    switch (op->opcode) {
    case NDP_CHIP_FILL:
    case NDP_CHIP_LINK_COPY: /* what is read is read in the peer */
        return op->len;
    case NDP_CHIP_COPY:
        return sat_mul(op->len, 2);
    case NDP_CHIP_ACT: /* two FP32 in, a BF16 out */
        return sat_mul((uint64_t)op->tokens * op->h_out, 4 + 4 + 2);
    case NDP_CHIP_GEMV:
    case NDP_CHIP_FFN:
        x = sat_mul((uint64_t)op->tokens * op->h_in, 2);
        y = sat_mul((uint64_t)op->tokens * op->h_out,
                    op->flags & NDP_CHIP_ACCUMULATE ? 8 : 4);
        return sat_add(weight_bytes(op), sat_add(x, y));
    default:
        return 0;
    }
}

/*
 * Blocks and panels are worked on whole, 32 neurons or rows each; of h_in and
 * h_out the padding is not counted.  The activation unit keeps up with DRAM.
 */
uint64_t ndp_chip_op_flops(const struct ndp_chip_op *op)
{
    uint64_t rows = (uint64_t)op->count * NDP_CHIP_BLOCK_NEURONS;
    uint64_t per_row;

    switch (op->opcode) {
    case NDP_CHIP_GEMV:
        per_row = 2 * (uint64_t)op->h_in;
        break;
    case NDP_CHIP_FFN:
        per_row = 4 * (uint64_t)op->h_in + 2 * (uint64_t)op->h_out;
        break;
    default:
        return 0;
    }
    return sat_mul(sat_mul(rows, per_row), op->tokens);
}

uint64_t ndp_chip_op_ns(const struct ndp_chip_op *op,
                        const struct ndp_chip_params *p)
{
    uint64_t memory_ns, compute_ns;

    if (op->opcode == NDP_CHIP_LINK_COPY) {
        return sat_add(div_up_1000(op->len, p->link_mbps), p->link_latency_ns);
    }
    memory_ns = div_up_1000(ndp_chip_op_bytes(op), p->internal_mbps);
    compute_ns = div_up(ndp_chip_op_flops(op), p->gflops);
    return sat_add(memory_ns > compute_ns ? memory_ns : compute_ns,
                   p->overhead_ns);
}
