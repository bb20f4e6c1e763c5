/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NDP DIMM: from a command on the wire to an operation of the chip
 *
 * Works on a private copy of the 64 bytes.  It knows the layout and which
 * queue takes what (ndp_regs.h); fields that must be zero, shapes, alignment
 * and ranges are the chip's to check.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "ndp_dimm.h"

QEMU_BUILD_BUG_ON(sizeof(struct ndp_hw_cmd) != 64);
QEMU_BUILD_BUG_ON(sizeof(struct ndp_hw_cpl) != 32);
QEMU_BUILD_BUG_ON((int)NDP_OP_FFN != (int)NDP_CHIP_FFN);
QEMU_BUILD_BUG_ON((int)NDP_F_ROWS != (int)NDP_CHIP_ROWS);
QEMU_BUILD_BUG_ON((int)NDP_ST_INTERNAL != (int)NDP_CHIP_ERR_INTERNAL);
QEMU_BUILD_BUG_ON((int)NDP_MAX_TOKENS != (int)NDP_CHIP_MAX_TOKENS);
QEMU_BUILD_BUG_ON((int)NDP_MAX_COPY_BYTES != (int)NDP_CHIP_MAX_COPY);

static float float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static bool belongs_on(uint8_t opcode, unsigned queue)
{
    switch (opcode) {
    case NDP_OP_FILL:
    case NDP_OP_COPY:
        return true;
    case NDP_OP_LINK_COPY:
        return queue == NDP_Q_LINK;
    case NDP_OP_GEMV:
    case NDP_OP_ACT:
    case NDP_OP_FFN:
        return queue == NDP_Q_COMPUTE;
    default:
        return false;
    }
}

uint32_t ndp_cmd_decode(const struct ndp_hw_cmd *cmd, unsigned queue,
                        struct ndp_chip_op *op)
{
    uint32_t count = le32_to_cpu(cmd->count);
    uint64_t x = le64_to_cpu(cmd->x);

    *op = (struct ndp_chip_op) {
        .opcode = cmd->opcode,
        .flags = cmd->flags,
        .act = cmd->act,
        .w = le64_to_cpu(cmd->w),
        .y = le64_to_cpu(cmd->y),
        .rows = le64_to_cpu(cmd->rows),
        .x_rows = le16_to_cpu(cmd->x_rows),
        .tokens = le32_to_cpu(cmd->tokens),
        .h_in = le16_to_cpu(cmd->h_in),
        .h_out = le16_to_cpu(cmd->h_out),
        .ldx_bytes = le16_to_cpu(cmd->ldx64) * 64u,
        .ldy_bytes = le16_to_cpu(cmd->ldy64) * 64u,
        .alpha = float_of_bits(le32_to_cpu(cmd->alpha)),
        .limit = float_of_bits(le32_to_cpu(cmd->limit)),
    };
    if (!belongs_on(cmd->opcode, queue)) {
        return NDP_ST_OPCODE;
    }
    /* The chip cannot see the first, nor tell -0.0 from 0 in the others. */
    if (cmd->rsvd || (cmd->act != NDP_ACT_SWIGLU_CLAMP &&
                      (cmd->alpha || cmd->limit))) {
        return NDP_ST_FIELD;
    }

    switch (cmd->opcode) {
    case NDP_OP_FILL:
        op->len = x;
        op->pattern = count;
        break;
    case NDP_OP_LINK_COPY:
        op->len = x;
        op->node = count;
        break;
    case NDP_OP_COPY:
        op->len = x;
        op->count = count;
        break;
    default:
        op->x = x;
        op->count = count;
        break;
    }
    return NDP_ST_OK;
}

void ndp_cmd_output(const struct ndp_chip_op *op, uint64_t *start,
                    uint64_t *bytes)
{
    unsigned element = op->opcode == NDP_OP_ACT ? 2 : 4;

    *start = op->y;
    switch (op->opcode) {
    case NDP_OP_FILL:
    case NDP_OP_COPY:
    case NDP_OP_LINK_COPY:
        *bytes = op->len;
        break;
    default:
        *bytes = (uint64_t)(op->tokens - 1) * op->ldy_bytes +
                 op->h_out * element;
        break;
    }
}
