/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * chip_ops.h - one valid operation of each kind, for tests to change.
 */
#ifndef CHIP_OPS_H
#define CHIP_OPS_H

#include "ndp_chip.h"

static inline struct ndp_chip_op ffn(void)
{
	return (struct ndp_chip_op) { /* 2 blocks of 24 KiB */
		.opcode = NDP_CHIP_FFN, .w = 4096, .x = 65536, .y = 131072, .count = 2,
		.tokens = 3, .h_in = 100, .h_out = 100, .ldx_bytes = 256, .ldy_bytes = 448,
	};
}

static inline struct ndp_chip_op gemv(void)
{
	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_GEMV, .w = 4096, .x = 65536, .y = 131072, .count = 2,
		.tokens = 3, .h_in = 100, .h_out = 50, .ldx_bytes = 256, .ldy_bytes = 256,
	};
}

static inline struct ndp_chip_op act(void)
{
	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_ACT, .x = 65536, .rows = 131072, .y = 262144, .tokens = 3,
		.h_out = 50, .ldx_bytes = 256, .ldy_bytes = 128,
	};
}

static inline struct ndp_chip_op fill(void)
{
	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_FILL, .y = 4096, .len = 4096, .pattern = 0x12345678,
	};
}

static inline struct ndp_chip_op copy(void)
{
	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_COPY, .w = 4096, .y = 8192, .len = 4096,
	};
}

static inline struct ndp_chip_op link_copy(void)
{
	return (struct ndp_chip_op) {
		.opcode = NDP_CHIP_LINK_COPY, .w = 4096, .y = 8192, .len = 4096, .node = 3,
	};
}

#endif
