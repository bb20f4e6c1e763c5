/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_placement.c - placements hold every block exactly once, whatever the
 * numbers of blocks and DIMMs; what is wrong is said.
 */
#include "device_ref.h"

#include <errno.h>

static uint32_t blocks_on(const struct ndp_placement *p, uint32_t dimm)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->nr_ranges; i++)
		if (p->ranges[i].dimm == dimm)
			n += p->ranges[i].nr_blocks;
	return n;
}

static void spreading_is_even_and_complete(void **state)
{
	static const uint32_t masks[] = { 1, 0x80000000, 15, 0x55, 0xffffffff, 0x7f };
	struct ndp_placement p;

	UNUSED_STATE;
	for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++)
		for (uint32_t n = 1; n < 100; n++) {
			uint32_t dimms = (uint32_t)__builtin_popcount(masks[m]);

			assert_int_equal(ndp_placement_spread(&p, n, masks[m]), 0);
			assert_int_equal(ndp_placement_check(&p, n, masks[m], NULL), 0);
			assert_int_equal(p.nr_ranges, n < dimms ? n : dimms);
			for (uint32_t i = 0; i + 1 < p.nr_ranges; i++) {
				assert_true(p.ranges[i].dimm < p.ranges[i + 1].dimm);
				assert_true(p.ranges[i].nr_blocks >= p.ranges[i + 1].nr_blocks);
			}
			assert_true(p.ranges[0].nr_blocks - p.ranges[p.nr_ranges - 1].nr_blocks <=
				    1);
		}
	assert_int_equal(ndp_placement_spread(&p, 0, 1), -EINVAL);
	assert_int_equal(ndp_placement_spread(&p, 1, 0), -EINVAL);
}

/* Case C6: 60 experts on 7 DIMMs: 4 hold 9, 3 hold 8, every one exactly once. */
static void local_experts_go_round_the_dimms(void **state)
{
	uint32_t held[32] = { 0 }, nines = 0;
	struct ndp_placement p;

	UNUSED_STATE;
	for (uint32_t i = 0; i < 60; i++) {
		assert_int_equal(ndp_placement_policy(&p, "local", i, 3, 0x7f, NULL), 0);
		assert_int_equal(p.nr_ranges, 1);
		held[p.ranges[0].dimm]++;
	}
	for (uint32_t d = 0; d < 7; d++) {
		assert_in_range(held[d], 8, 9);
		nines += held[d] == 9;
	}
	assert_int_equal(nines, 4);
}

static void policies_are_what_their_names_say(void **state)
{
	struct ndp_placement p;

	UNUSED_STATE;
	assert_int_equal(ndp_placement_policy(&p, "striped", 5, 10, 0x2d, NULL), 0);
	assert_int_equal(ndp_placement_mask(&p), 0x2d);
	assert_int_equal(blocks_on(&p, 0), 3);
	assert_int_equal(blocks_on(&p, 5), 2);
	assert_int_equal(ndp_placement_policy(&p, "spread:2", 3, 10, 0x2d, NULL), 0);
	assert_int_equal(ndp_placement_mask(&p), 0x21); /* the 4th and, round the end, the 1st */
	assert_int_equal(ndp_placement_policy(&p, "spread:1", 4, 10, 0x2d, NULL), 0);
	assert_int_equal(ndp_placement_mask(&p), 1);
	assert_int_equal(ndp_placement_policy(&p, "dimm:3", 9, 10, 0x2d, NULL), 0);
	assert_int_equal(ndp_placement_mask(&p), 8);
	ndp_placement_local(&p, 7, 31);
	assert_int_equal(ndp_placement_mask(&p), 0x80000000);
	assert_int_equal(blocks_on(&p, 31), 7);
}

static void a_wrong_policy_is_explained(void **state)
{
	static const struct { const char *policy; int r; const char *says; } wrong[] = {
		{ "", -EINVAL, "local, striped, spread:K or dimm:D" },
		{ "strip", -EINVAL, "\"strip\"" },
		{ "striped ", -EINVAL, "not known" },
		{ "spread:", -EINVAL, "spread:K" },
		{ "spread:0", -EINVAL, "from 1 to the 4" },
		{ "spread:5", -EINVAL, "from 1 to the 4" },
		{ "spread:-1", -EINVAL, "spread:K" },
		{ "spread:2x", -EINVAL, "spread:K" },
		{ "spread:99999999999999999999", -EINVAL, "spread:K" },
		{ "dimm:x", -EINVAL, "dimm:D" },
		{ "dimm:4", -ENXIO, "no DIMM 4" },
		{ "dimm:32", -ENXIO, "no DIMM 32" },
	};
	struct ndp_placement p;
	struct ndp_error err;

	UNUSED_STATE;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(ndp_placement_policy(&p, wrong[i].policy, 0, 4, 15, &err),
				 wrong[i].r);
		assert_int_equal(err.code, wrong[i].r);
		if (!strstr(err.message, wrong[i].says))
			fail_msg("%s: %s", wrong[i].policy, err.message);
	}
	assert_int_equal(ndp_placement_policy(&p, "local", 0, 4, 0, &err), -EINVAL);
	assert_int_equal(ndp_placement_policy(&p, "local", 0, 0, 1, &err), -EINVAL);
}

static void a_wrong_placement_is_explained(void **state)
{
	static const struct { struct ndp_placement p; int r; const char *says; } wrong[] = {
		{ { 0, { { 0, 0 } } }, -EINVAL, "1 to 64 ranges, not 0" },
		{ { 65, { { 0, 0 } } }, -EINVAL, "not 65" },
		{ { 2, { { 0, 8 }, { 1, 0 } } }, -EINVAL, "range 1" },
		{ { 1, { { 32, 8 } } }, -ENXIO, "DIMM 32" },
		{ { 2, { { 0, 3 }, { 1, 4 } } }, -EINVAL, "7 blocks together, the object has 8" },
		{ { 2, { { 0, 0xffffffff }, { 1, 9 } } }, -EINVAL, "4294967304" },
		{ { 2, { { 0, 4 }, { 2, 4 } } }, -EPERM, "DIMM 2, allowed is the mask 0x3" },
	};
	struct ndp_error err;

	UNUSED_STATE;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(ndp_placement_check(&wrong[i].p, 8, 3, &err), wrong[i].r);
		if (!strstr(err.message, wrong[i].says))
			fail_msg("%zu: %s", i, err.message);
		assert_int_equal(ndp_placement_check(&wrong[i].p, 8, 3, NULL), wrong[i].r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spreading_is_even_and_complete),
		cmocka_unit_test(local_experts_go_round_the_dimms),
		cmocka_unit_test(policies_are_what_their_names_say),
		cmocka_unit_test(a_wrong_policy_is_explained),
		cmocka_unit_test(a_wrong_placement_is_explained),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
