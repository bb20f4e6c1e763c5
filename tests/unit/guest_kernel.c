/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * guest_kernel.c - what only the kernel's device has: nodes, DIMMs alone,
 * placement file descriptors, waits that signals end. Runs in a guest with a
 * domain of four DIMMs.
 */
#include "device_ref.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

enum { H = 64, LDX = 128, LDY = 256 };

static void nodes_are_found_and_the_first_is_the_default(void **state)
{
	struct ndp_device_info info;
	struct ndp_node n[64];
	struct ndp_device *dev;
	int found = ndp_discover(n, 64, NULL);

	UNUSED_STATE;
	assert_int_equal(found, 5);
	assert_string_equal(n[0].path, "/dev/ndp0");
	assert_int_equal(n[0].dimm, -1);
	assert_int_equal(n[0].dimm_mask, 15);
	assert_string_equal(n[4].path, "/dev/ndp0d3");
	assert_int_equal(n[4].dimm, 3);
	dev = ref_open("");
	assert_int_equal(ndp_device_info(dev, &info), 0);
	assert_string_equal(info.name, "/dev/ndp0");
	assert_string_equal(info.domain, n[0].domain);
	assert_int_equal(info.dimm_mask, 15);
	assert_true(info.link);
	ndp_close(dev);
}

static void a_dimm_alone_computes_and_keeps_what_it_has(void **state)
{
	struct ndp_device *dev = ref_open("/dev/ndp0d2");
	struct ref_expert e = ref_expert_new(H, H, 64, 1);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, LDY), *none;
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 4, .tokens = 1,
			     .ldx = LDX, .ldy = LDY };
	struct ndp_dimm_info dimm;
	struct ndp_placement p;
	struct ndp_result res;
	struct ndp_error err;
	uint64_t seed = 4;
	ndp_bf16 *row = ref_random_rows(1, H, H, 1, &seed);
	double want[H], tolerance[H];
	float got[H];

	UNUSED_STATE;
	assert_int_equal(ref_mask(dev), 4);
	assert_int_equal(ndp_dimm_info(dev, 2, &dimm), 0);
	assert_int_equal(dimm.state, NDP_DIMM_READY);
	assert_int_equal(ndp_dimm_info(dev, 1, &dimm), -ENXIO);
	assert_int_equal(ndp_io_create(&none, dev, 2, 64, &err), -ENXIO);
	ndp_placement_local(&p, 2, 2);
	c.weights = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_io_write(x, 4, 0, row, 2 * H), 0);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.dimm_mask, 4);
	assert_int_equal(ndp_io_reduce(y, 4, 0, LDY, got, H, 1, H), 0);
	ref_ffn(&e, &c, row, 0, 2, want, tolerance);
	ref_assert_near(got, want, tolerance, H);
	ndp_placement_local(&p, 2, 1);
	assert_int_equal(ndp_weights_migrate(c.weights, &p, NULL, &err), -ENXIO);
	assert_non_null(strstr(err.message, "/dev/ndp0d2"));
	ndp_weights_free(c.weights);
	ndp_io_free(x);
	ndp_io_free(y);
	free(row);
	ref_expert_free(&e);
	ndp_close(dev);
}

static void sixty_four_ranges_are_a_placement(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 64 * 32, 1);
	struct ndp_placement p = { .nr_ranges = 64 };
	size_t block = ndp_expert_block_bytes(&e.shape);
	struct ndp_weights_info info;
	struct ndp_weights *w;
	const char *view;
	char *packed = malloc(block);

	for (uint32_t i = 0; i < 64; i++)
		p.ranges[i] = (struct ndp_range){ .dimm = i * 7 % 4, .nr_blocks = 1 };
	w = ref_place_expert(dev, &e, &p);
	for (int moved = 0; moved < 2; moved++) {
		assert_int_equal(ndp_weights_info(w, &info), 0);
		assert_int_equal(info.moves, moved);
		assert_int_equal(info.placement.nr_ranges, 64);
		assert_memory_equal(info.placement.ranges, p.ranges, sizeof(p.ranges));
		view = ndp_weights_map(w);
		for (uint32_t b = 0; b < 64; b++) {
			ndp_expert_pack_block(packed, &e.shape, b, e.gate, e.up, e.ld_in, e.down,
					      e.ld_down);
			assert_memory_equal(view + b * block, packed, block);
		}
		if (moved)
			break;
		for (uint32_t i = 0; i < 64; i++)
			p.ranges[i].dimm = i * 5 / 2 % 4;
		assert_int_equal(ndp_weights_migrate(w, &p, NULL, NULL), 0);
	}
	ndp_weights_free(w);
	free(packed);
	ref_expert_free(&e);
}

static void on_alarm(int signal)
{
	(void)signal;
}

enum { WIDE = 1024, TOKENS = 512, SLOW_COMMANDS = 4 };

/* Waits for slow commands until a signal comes, then for the rest. */
static void wait_until_the_signal(struct ndp_queue *q, const struct ndp_cmd *c, bool submit_first)
{
	struct itimerval soon = { .it_value.tv_usec = 20000 };
	struct ndp_result res[SLOW_COMMANDS];
	int n;

	for (int i = 0; i < SLOW_COMMANDS; i++)
		assert_int_equal(ndp_queue_push(q, c), 0);
	if (submit_first)
		assert_int_equal(ndp_queue_submit(q), SLOW_COMMANDS);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	n = ndp_queue_wait(q, res, SLOW_COMMANDS, SLOW_COMMANDS);
	if (n == -EINTR)
		n = 0;
	else /* some were there already, and were handed out with the signal */
		assert_in_range(n, 1, SLOW_COMMANDS - 1);
	assert_int_equal(ndp_queue_inflight(q), SLOW_COMMANDS - n);
	while (ndp_queue_inflight(q)) {
		int more = ndp_queue_wait(q, res, SLOW_COMMANDS, 1);

		assert_in_range(more, 1, SLOW_COMMANDS);
		for (int i = 0; i < more; i++)
			assert_int_equal(res[i].res, 0);
	}
}

static void a_signal_ends_a_wait_and_the_commands_go_on(void **state)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct ndp_device *dev = *state;
	struct ndp_expert_shape s = { WIDE, WIDE, 2048 };
	struct ndp_io *x = ref_io(dev, 1, TOKENS * WIDE * 2), *y = ref_io(dev, 1, TOKENS * WIDE * 4);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
			     .x = x,
			     .y = y,
			     .x_mask = 1,
			     .tokens = TOKENS,
			     .ldx = WIDE * 2,
			     .ldy = WIDE * 4 };
	struct ndp_placement p;
	struct ndp_queue *q;

	ndp_placement_local(&p, ndp_expert_blocks(&s), 0);
	assert_int_equal(ndp_expert_create(&c.weights, dev, &s, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_seal(c.weights), 0);
	assert_int_equal(ndp_queue_create(&q, dev, SLOW_COMMANDS, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	wait_until_the_signal(q, &c, true);
	wait_until_the_signal(q, &c, false);
	ndp_queue_free(q);
	ndp_weights_free(c.weights);
	ndp_io_free(x);
	ndp_io_free(y);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_are_found_and_the_first_is_the_default),
		cmocka_unit_test(a_dimm_alone_computes_and_keeps_what_it_has),
		REF_TEST(sixty_four_ranges_are_a_placement),
		REF_TEST(a_signal_ends_a_wait_and_the_commands_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
