// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Placement fds: the right to place, lent to others. On the in-process device, and in the
 * guest on the kernel's; what follows ON_SOFT is about the former only.
 */
#include "device_ref.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { H = 64, LDX = 128, LDY = 256 };

static void a_placement_fd_lists_and_moves_until_it_is_revoked(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 128, 1);
	struct ndp_placement_entry entries[40];
	struct ndp_weights *w[35], *open;
	struct ndp_placement p, got;
	struct ndp_move move;
	uint64_t start = 0, seen = 0;
	int fd = ndp_placement_fd(dev), n;
	struct pollfd poller = { .fd = fd, .events = POLLIN };

	assert_true(fd >= 0);
	for (uint32_t i = 0; i < 35; i++) {
		ndp_placement_local(&p, 4, i % 4);
		assert_int_equal(
			ndp_expert_create(&w[i], dev, &e.shape, &p, 7 | 1U << i % 4, i, NULL), 0);
		assert_int_equal(ndp_weights_seal(w[i]), 0);
	}
	assert_int_equal(ndp_expert_create(&open, dev, &e.shape, &p, 0, 99, NULL), 0);
	assert_int_equal(poll(&poller, 1, 0), 1);
	do {
		n = ndp_placement_list(fd, &start, entries, 40);
		assert_in_range(n, 0, 40);
		for (int i = 0; i < n; i++) {
			struct ndp_weights_info info;

			assert_true(entries[i].cookie < 35); /* not the one that is not sealed */
			assert_false(seen & 1ULL << entries[i].cookie);
			seen |= 1ULL << entries[i].cookie;
			assert_int_equal(ndp_weights_info(w[entries[i].cookie], &info), 0);
			assert_int_equal(entries[i].id, info.id);
			assert_int_equal(entries[i].nr_blocks, 4);
			assert_int_equal(entries[i].block_bytes, info.block_bytes);
			assert_int_equal(entries[i].bytes, 4 * info.block_bytes);
			assert_int_equal(entries[i].dimm_mask, 1U << entries[i].cookie % 4);
			assert_int_equal(entries[i].allowed_mask, info.allowed_mask);
			assert_false(entries[i].matrix || entries[i].lost || entries[i].moving);
		}
	} while (start);
	assert_int_equal(seen, (1ULL << 35) - 1);
	assert_int_equal(poll(&poller, 1, 0), 0);

	start = 0;
	n = ndp_placement_list(fd, &start, entries, 1);
	assert_int_equal(n, 1);
	assert_true(start);
	ndp_placement_spread(&p, 4, 7);
	assert_int_equal(ndp_placement_migrate(fd, entries[0].id, &p, &move), 0);
	assert_true(move.bytes > 0);
	assert_true(move.modelled_ns > 0);
	assert_int_equal(ndp_placement_get(fd, entries[0].id, &got), 0);
	assert_int_equal(got.nr_ranges, 3);
	assert_memory_equal(got.ranges, p.ranges, 3 * sizeof(p.ranges[0]));
	assert_int_equal(poll(&poller, 1, 0), 1);
	if (entries[0].cookie % 4 != 3) {
		ndp_placement_local(&p, 4, 3);
		assert_int_equal(ndp_placement_migrate(fd, entries[0].id, &p, NULL), -EPERM);
	}
	assert_int_equal(ndp_placement_get(fd, 1ULL << 60, &got), -ENOENT);
	assert_int_equal(ndp_placement_get(0, entries[0].id, &got), -ENOTTY);

	assert_int_equal(ndp_placement_revoke(dev), 0);
	start = 0;
	assert_int_equal(ndp_placement_list(fd, &start, entries, 1), -ENODEV);
	assert_int_equal(ndp_placement_migrate(fd, entries[0].id, &p, NULL), -ENODEV);
	assert_int_equal(poll(&poller, 1, 0), 1);
	assert_true(poller.revents & POLLHUP);
	close(fd);
	for (uint32_t i = 0; i < 35; i++)
		ndp_weights_free(w[i]);
	ndp_weights_free(open);
	ref_expert_free(&e);
}

static void it_holds_nothing_alive(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 128, 1);
	struct ndp_placement_entry entry;
	struct ndp_placement p;
	struct ndp_weights *w;
	uint64_t start = 0;
	int fd = ndp_placement_fd(dev);

	assert_true(fd >= 0);
	ndp_placement_local(&p, 4, 0);
	w = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_placement_list(fd, &start, &entry, 1), 1);
	ndp_weights_free(w);
	assert_int_equal(ndp_placement_get(fd, entry.id, &p), -ENOENT);
	ndp_close(dev);
	*state = NULL;
	assert_int_equal(ndp_placement_get(fd, entry.id, &p), -ENODEV);
	close(fd);
	ref_expert_free(&e);
}

struct holder {
	int fd;
	uint32_t seed;
	uint32_t moved;
	pthread_t thread;
};

enum { HOLDERS = 4, WEIGHTS = 8, MOVES = 60 };

static void *hold(void *arg)
{
	struct holder *h = arg;

	for (uint32_t i = 0; i < MOVES; i++) {
		struct ndp_placement_entry entries[WEIGHTS];
		struct ndp_placement to;
		uint64_t start = 0;
		int n = ndp_placement_list(h->fd, &start, entries, WEIGHTS);
		int r;

		if (n != WEIGHTS)
			return "a list is not complete";
		h->seed = h->seed * 1103515245 + 12345;
		ndp_placement_local(&to, 4, h->seed >> 20 & 3);
		r = ndp_placement_migrate(h->fd, entries[h->seed >> 16 & 7].id, &to, NULL);
		if (r < 0 && r != -EBUSY)
			return "a move failed";
		h->moved += r == 0;
	}
	return NULL;
}

/* Several processes' worth of holders, and a command that must not notice. */
static void holders_move_at_once_and_commands_do_not_notice(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 128, 1);
	struct holder h[HOLDERS];
	struct ndp_weights *w[WEIGHTS];
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, LDY);
	float first[H], again[H];
	uint16_t ones[H];
	uint32_t moved = 0;

	for (int i = 0; i < H; i++)
		ones[i] = ndp_bf16_from_f32(0.25f * (float)(i % 7 - 3));
	assert_int_equal(ndp_io_write(x, 15, 0, ones, sizeof(ones)), 0);
	for (uint32_t i = 0; i < WEIGHTS; i++) {
		struct ndp_placement p;

		ndp_placement_local(&p, 4, i % 4);
		w[i] = ref_place_expert(dev, &e, &p);
	}
	for (uint32_t i = 0; i < HOLDERS; i++) {
		h[i] = (struct holder){ .fd = i % 2 ? dup(h[i - 1].fd) : ndp_placement_fd(dev),
					.seed = i + 1 };
		assert_true(h[i].fd >= 0);
		assert_int_equal(pthread_create(&h[i].thread, NULL, hold, &h[i]), 0);
	}
	for (int i = 0; i < 200; i++) {
		const struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .weights = w[i % WEIGHTS],
					   .x = x, .y = y, .x_mask = 15, .tokens = 1,
					   .ldx = LDX, .ldy = LDY };
		struct ndp_result res;

		assert_int_equal(ndp_run(dev, &c, &res), 0);
		assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, LDY, i ? again : first, H, 1,
					       H), 0);
		if (i)
			assert_memory_equal(first, again, sizeof(first));
	}
	for (uint32_t i = 0; i < HOLDERS; i++) {
		void *wrong;

		pthread_join(h[i].thread, &wrong);
		if (wrong)
			fail_msg("%s", (const char *)wrong);
		moved += h[i].moved;
		close(h[i].fd);
	}
	assert_true(moved > 0);
	for (uint32_t i = 0; i < WEIGHTS; i++)
		ndp_weights_free(w[i]);
	ndp_io_free(x);
	ndp_io_free(y);
	ref_expert_free(&e);
}

/* ---- the in-process device's socket --------------------------------------- */

static bool is_soft(void)
{
	const char *spec = getenv("NDP_TEST_DEVICE");

	return !spec || !strncmp(spec, "soft", 4);
}

static void garbage_on_the_socket_harms_nobody_else(void **state)
{
	struct ndp_device *dev = *state;
	static char garbage[100000];
	int good, bad;
	uint64_t start = 0;

	if (!is_soft())
		skip();
	for (size_t bytes = 0; bytes < sizeof(garbage); bytes = bytes * 3 + 1) {
		struct pollfd poller;

		good = ndp_placement_fd(dev);
		bad = ndp_placement_fd(dev);
		assert_true(good >= 0 && bad >= 0);
		assert_int_equal(send(bad, garbage, bytes, MSG_NOSIGNAL), bytes);
		poller = (struct pollfd){ .fd = bad };
		assert_int_equal(poll(&poller, 1, 10000), 1); /* it is thrown out */
		start = 0;
		assert_int_equal(ndp_placement_list(good, &start, NULL, 0), 0);
		close(good);
		close(bad);
	}
}

/* Whoever lends may be hostile, too. */
static void a_lender_that_lies_is_noticed(void **state)
{
	struct ndp_placement_entry entry;
	uint64_t start = 0;
	int pair[2];

	(void)state;
	if (!is_soft())
		skip();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	close(pair[1]);
	assert_int_equal(ndp_placement_list(pair[0], &start, &entry, 1), -ENODEV);
	close(pair[0]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	close(pair[1]);
	assert_true(ndp_placement_list(pair[0], &start, &entry, 1) < 0);
	close(pair[0]);
}

static void the_memory_and_counters_of_its_dimms_can_be_asked(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_dimm_info mine, theirs;
	int fd = ndp_placement_fd(dev);

	if (!is_soft()) {
		assert_int_equal(ndp_placement_dimm_info(fd, 0, &theirs), -EOPNOTSUPP);
		close(fd);
		return;
	}
	memset(&theirs, 0, sizeof(theirs));
	assert_int_equal(ndp_dimm_info(dev, 1, &mine), 0);
	assert_int_equal(ndp_placement_dimm_info(fd, 1, &theirs), 0);
	assert_memory_equal(&mine, &theirs, sizeof(mine));
	assert_int_equal(ndp_placement_dimm_info(fd, 77, &theirs), -ENXIO);
	close(fd);
}

static void sixteen_holders_are_enough(void **state)
{
	struct ndp_device *dev = *state;
	int fd[17];

	if (!is_soft())
		skip();
	for (int i = 0; i < 16; i++) {
		fd[i] = ndp_placement_fd(dev);
		assert_true(fd[i] >= 0);
	}
	assert_int_equal(ndp_placement_fd(dev), -EMFILE);
	assert_int_equal(ndp_placement_revoke(dev), 0);
	fd[16] = ndp_placement_fd(dev);
	assert_true(fd[16] >= 0);
	for (int i = 0; i < 17; i++)
		close(fd[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REF_TEST(a_placement_fd_lists_and_moves_until_it_is_revoked),
		REF_TEST(it_holds_nothing_alive),
		REF_TEST(holders_move_at_once_and_commands_do_not_notice),
		REF_TEST(garbage_on_the_socket_harms_nobody_else),
		cmocka_unit_test(a_lender_that_lies_is_noticed),
		REF_TEST(the_memory_and_counters_of_its_dimms_can_be_asked),
		REF_TEST(sixteen_holders_are_enough),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
