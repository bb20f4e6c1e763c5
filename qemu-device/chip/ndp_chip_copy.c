/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_copy.c - FILL and copies, in slices that end soon after an abort.
 *
 * The caller has checked the operation; nothing here reads memory to decide
 * anything.
 */
#include <string.h>

#include "ndp_chip_impl.h"

/* 64 KiB at the 1 GB/s of a machine in trouble is 66 microseconds. */
enum { SLICE_BYTES = 64 << 10 };

static uint64_t slice(uint64_t left)
{
    return left < SLICE_BYTES ? left : SLICE_BYTES;
}

enum ndp_chip_status ndp_chip_fill(const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *mem,
                                   const int *abort)
{
    uint64_t word = (uint64_t)op->pattern << 32 | op->pattern;
    uint8_t *dst = mem->base + op->y;
    uint64_t n;

    for (uint64_t done = 0; done < op->len; done += n) {
        if (ndp_chip_aborted(abort)) {
            return NDP_CHIP_ERR_ABORTED;
        }
        n = slice(op->len - done);
        for (uint64_t i = 0; i < n; i += sizeof(word)) {
            memcpy(dst + done + i, &word, sizeof(word));
        }
    }
    return NDP_CHIP_OK;
}

enum ndp_chip_status ndp_chip_copy(const struct ndp_chip_op *op,
                                   const struct ndp_chip_mem *dst,
                                   const struct ndp_chip_mem *src,
                                   const int *abort)
{
    uint64_t n;

    for (uint64_t done = 0; done < op->len; done += n) {
        if (ndp_chip_aborted(abort)) {
            return NDP_CHIP_ERR_ABORTED;
        }
        n = slice(op->len - done);
        memcpy(dst->base + op->y + done, src->base + op->w + done, n);
    }
    return NDP_CHIP_OK;
}
