// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_chip_time.c - bytes, operations and modelled times of the chip, worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chip_ops.h"
#include "ndp_chip.h"

static const struct ndp_chip_params simple = {
	.internal_mbps = 1000, .gflops = 2, .overhead_ns = 100, .link_mbps = 500,
	.link_latency_ns = 30,
};

static void bytes_and_flops_by_hand(void **state)
{
	struct ndp_chip_op op;

	(void)state;
	op = fill();
	assert_int_equal(ndp_chip_op_bytes(&op), 4096);
	assert_int_equal(ndp_chip_op_flops(&op), 0);
	op = copy();
	assert_int_equal(ndp_chip_op_bytes(&op), 8192);
	op = link_copy();
	assert_int_equal(ndp_chip_op_bytes(&op), 4096);
	op = act(); /* 3 x 50 of 4 + 4 + 2 bytes */
	assert_int_equal(ndp_chip_op_bytes(&op), 1500);
	assert_int_equal(ndp_chip_op_flops(&op), 0);
	op = gemv(); /* two panels of 64 * 128; x 3 * 100 * 2; y 3 * 50 * 4 */
	assert_int_equal(ndp_chip_op_bytes(&op), 16384 + 600 + 600);
	assert_int_equal(ndp_chip_op_flops(&op), 2 * 64 * 100 * 3);
	op.flags = NDP_CHIP_ACCUMULATE;
	assert_int_equal(ndp_chip_op_bytes(&op), 16384 + 600 + 1200);
	op = ffn(); /* two blocks of 192 * 128; x 3 * 100 * 2; y 3 * 100 * 4 */
	assert_int_equal(ndp_chip_op_bytes(&op), 49152 + 600 + 1200);
	assert_int_equal(ndp_chip_op_flops(&op), 3 * 2 * 64 * 100 * 3);
	op.flags = NDP_CHIP_ACCUMULATE;
	assert_int_equal(ndp_chip_op_bytes(&op), 49152 + 600 + 2400);
	op.h_in = 64;
	op.h_out = 200; /* block: 128 * 64 + 64 * 256 */
	op.flags = 0;
	assert_int_equal(ndp_chip_op_bytes(&op), 2 * (8192 + 16384) + 3 * 64 * 2 + 3 * 200 * 4);
	assert_int_equal(ndp_chip_op_flops(&op), 3 * 64 * (4 * 64 + 2 * 200));
	op.opcode = 0;
	assert_int_equal(ndp_chip_op_bytes(&op), 0);
	assert_int_equal(ndp_chip_op_flops(&op), 0);
}

static void times_by_hand(void **state)
{
	struct ndp_chip_params p = simple;
	struct ndp_chip_op op = ffn();

	(void)state;
	/* 50,952 bytes at 1 GB/s: 50,952 ns; 115,200 flops at 2 GFLOPS: 57,600 ns */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 57600 + 100);
	p.gflops = 3; /* 38,400 ns: memory decides */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 50952 + 100);
	p.internal_mbps = 999; /* 51,003.003 ns, rounded up */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 51004 + 100);
	op = link_copy(); /* 4096 bytes at 0.5 GB/s */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 8192 + 30);
	op = fill();
	p = simple;
	assert_int_equal(ndp_chip_op_ns(&op, &p), 4096 + 100);
	op = copy();
	assert_int_equal(ndp_chip_op_ns(&op, &p), 8192 + 100);
	p.internal_mbps = p.gflops = p.link_mbps = 0; /* no limit */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 100);
	op = link_copy();
	assert_int_equal(ndp_chip_op_ns(&op, &p), 30);
}

/* DeepSeek-V2's expert: 47.19 MB at 153.6 GB/s; from two tokens on, 256 GFLOPS decide. */
static void the_default_dimm_by_hand(void **state)
{
	struct ndp_chip_params p;
	struct ndp_chip_op op = {
		.opcode = NDP_CHIP_FFN, .count = 48, .tokens = 1, .h_in = 5120, .h_out = 5120,
		.ldx_bytes = 10240, .ldy_bytes = 20480,
	};

	(void)state;
	ndp_chip_params_default(&p);
	assert_int_equal(p.internal_mbps, 153600);
	assert_int_equal(p.gflops, 256);
	assert_int_equal(p.link_mbps, 25000);
	assert_int_equal(ndp_chip_op_bytes(&op), 47185920 + 10240 + 20480);
	assert_int_equal(ndp_chip_op_ns(&op, &p), 307400 + p.overhead_ns);
	op.tokens = 16; /* 16 * 47,185,920 flops at 256 GFLOPS */
	assert_int_equal(ndp_chip_op_ns(&op, &p), 2949120 + p.overhead_ns);
	op = (struct ndp_chip_op) { .opcode = NDP_CHIP_LINK_COPY, .len = 16 << 20 };
	assert_int_equal(ndp_chip_op_ns(&op, &p), 671089 + p.link_latency_ns);
}

static void times_saturate(void **state)
{
	struct ndp_chip_params p = simple;
	struct ndp_chip_op op = {
		.opcode = NDP_CHIP_FFN, .count = UINT32_MAX, .tokens = UINT32_MAX,
		.h_in = UINT32_MAX, .h_out = UINT32_MAX,
	};

	(void)state;
	assert_true(ndp_chip_op_flops(&op) == UINT64_MAX);
	assert_true(ndp_chip_op_ns(&op, &p) >= UINT64_MAX / 2);
	op = (struct ndp_chip_op) { .opcode = NDP_CHIP_COPY, .len = UINT64_MAX };
	assert_true(ndp_chip_op_bytes(&op) == UINT64_MAX);
	assert_true(ndp_chip_op_ns(&op, &p) == UINT64_MAX);
	op.opcode = NDP_CHIP_LINK_COPY;
	p.link_mbps = 1;
	assert_true(ndp_chip_op_ns(&op, &p) == UINT64_MAX);
}

static void sizes_by_hand(void **state)
{
	(void)state;
	assert_int_equal(ndp_chip_block_bytes(5120, 5120), 192 * 5120);
	assert_int_equal(ndp_chip_block_bytes(100, 100), 192 * 128);
	assert_int_equal(ndp_chip_block_bytes(101, 100), 192 * 128);
	assert_int_equal(ndp_chip_block_bytes(65, 64), 128 * 128 + 64 * 64);
	assert_int_equal(ndp_chip_block_bytes(65472, 65472), 192 * 65472);
	assert_int_equal(ndp_chip_panel_bytes(1), 4096);
	assert_int_equal(ndp_chip_panel_bytes(65), 8192);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_and_flops_by_hand),
		cmocka_unit_test(times_by_hand),
		cmocka_unit_test(the_default_dimm_by_hand),
		cmocka_unit_test(times_saturate),
		cmocka_unit_test(sizes_by_hand),
	};

	return cmocka_run_group_tests_name("chip_time", tests, NULL, NULL);
}
