// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_router.c - which experts a token goes to, and with which weights.
 * Flags of other families aside, the numbers of the first test are those of a
 * public report about renormalisation (sgl-project/sglang#35160).
 */
#include "../../tools/ndp-run/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void weights_of_the_best_sum_to_one(void **state)
{
	float logits[] = { 2, 1, 0, -1 };
	uint32_t ids[2];
	float w[2];

	(void)state;
	route(logits, 4, 2, ids, w);
	assert_int_equal(ids[0], 0);
	assert_int_equal(ids[1], 1);
	assert_float_equal(w[0], 0.731059f, 1e-6f);
	assert_float_equal(w[1], 0.268941f, 1e-6f);
}

/* Each token's own weight becomes 1, whatever the others have. */
static void one_expert_has_weight_one(void **state)
{
	static const float tokens[3][4] = { { 5, 1, 0, 0 }, { 0, 0, 0.1f, 0 }, { -9, -9, -9, -8 } };
	static const uint32_t best[3] = { 0, 2, 3 };

	(void)state;
	for (int t = 0; t < 3; t++) {
		float logits[4];
		uint32_t id;
		float w;

		memcpy(logits, tokens[t], sizeof(logits));
		route(logits, 4, 1, &id, &w);
		assert_int_equal(id, best[t]);
		assert_true(w == 1.0f);
	}
}

static void lower_ids_come_first_among_equals(void **state)
{
	float logits[] = { 1, 3, 3, 1, 3, 1 };
	uint32_t ids[6];
	float w[6];
	static const uint32_t order[] = { 1, 2, 4, 0, 3, 5 };

	(void)state;
	route(logits, 6, 6, ids, w);
	assert_memory_equal(ids, order, sizeof(order));
	assert_true(w[0] == w[2] && w[3] == w[5]);
}

/* exp(1000) is infinite: logits are shifted first. */
static void large_logits_do_not_overflow(void **state)
{
	float logits[] = { 1000, 1001, -1000, 999 };
	uint32_t ids[3];
	float w[3];

	(void)state;
	route(logits, 4, 3, ids, w);
	assert_int_equal(ids[0], 1);
	assert_int_equal(ids[1], 0);
	assert_int_equal(ids[2], 3);
	assert_float_equal(w[0] + w[1] + w[2], 1.0f, 1e-6f);
	assert_float_equal(w[1] / w[0], expf(-1), 1e-6f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_of_the_best_sum_to_one),
		cmocka_unit_test(one_expert_has_weight_one),
		cmocka_unit_test(lower_ids_come_first_among_equals),
		cmocka_unit_test(large_logits_do_not_overflow),
	};

	return cmocka_run_group_tests_name("router", tests, NULL, NULL);
}
