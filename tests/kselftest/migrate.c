// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * migrate.c - moving sealed weights: what is copied, what is refused, and that a migration that
 * fails leaves the object where it was.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_host.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H	64
#define ROWS	256
#define BLOCKS	8
#define Y_OFF	KT_PAGE
#define RW	(PROT_READ | PROT_WRITE)

FIXTURE(migrate) {
	int fd;
	uint32_t mask;
	unsigned int nr;
	unsigned int a;
	unsigned int b;		/* another, when there are two */
	struct kt_ffn e;
	struct kt_bo w;
	struct kt_bo io;
	uint16_t x[H];
	struct kt_free before;
};

FIXTURE_SETUP(migrate)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	ASSERT_OK(kt_free_read(self->fd, &self->before));
	self->mask = kt_dimm_mask(self->fd);
	self->nr = kt_count(self->mask);
	self->a = kt_nth_dimm(self->mask, 0);
	self->b = kt_nth_dimm(self->mask, self->nr > 1);
	p = kt_local(self->a, BLOCKS);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 41));
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->w));
	ASSERT_OK(kt_io(self->fd, self->mask, 2 * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, RW));
	kt_x_random(self->x, H, 42);
	kt_io_write(&self->io, self->mask, 0, self->x, sizeof(self->x));
}

FIXTURE_TEARDOWN(migrate)
{
	kt_destroy(&self->io);
	kt_destroy(&self->w);
	EXPECT_OK(kt_free_wait(self->fd, &self->before, 10000 * kt_slow()));
	kt_ffn_free(&self->e);
	close(self->fd);
}

typedef FIXTURE_DATA(migrate) migrate_t;

#define NEED_DIMMS(n) do { \
	if (self->nr < (n)) \
		SKIP(return, "needs %d DIMMs", n); \
} while (0)

#define NEED_HOST() do { \
	if (!kt_host_there()) \
		SKIP(return, "needs the host (/bin/host) to inject a fault"); \
} while (0)

/* The object lies there, all of it, and computes what it should. */
static void expect_at(struct __test_metadata *_metadata, migrate_t *self,
		      const struct kt_place *p)
{
	struct moendp_cmd c = {
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = self->mask, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF, .ldx = 2 * H,
		.ldy = 4 * H,
	};
	double y[H], ref[H], bound[H];
	struct kt_place where;
	uint8_t *packed;
	uint32_t mask;

	ASSERT_OK(kt_where(&self->w, &where));
	EXPECT_EQ(kt_place_mask(p), kt_place_mask(&where));
	for (unsigned int i = 0, at = 0; i < where.nr; i++)
		EXPECT_GE(BLOCKS, at += where.r[i].nr_blocks);
	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 4 * H);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(kt_place_mask(p), mask);
	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, ref, bound);
	kt_io_sum(&self->io, mask, Y_OFF, H, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, H));
	packed = malloc(self->w.bytes);
	ASSERT_NE(NULL, packed);
	kt_ffn_pack(&self->e, packed);
	ASSERT_OK(kt_map(&self->w, PROT_READ));
	EXPECT_EQ(0, memcmp(packed, self->w.map, self->w.bytes));
	ASSERT_OK(kt_unmap(&self->w));
	free(packed);
}

/* ---- where to ------------------------------------------------------------------------------- */

TEST_F(migrate, from_everywhere_to_everywhere)
{
	struct kt_place places[6];
	unsigned int nr = 0;
	struct moendp_bo_info info;
	uint64_t moves = 0;

	places[nr++] = kt_local(self->a, BLOCKS);
	places[nr++] = kt_local(self->b, BLOCKS);
	places[nr++] = kt_spread(self->mask, BLOCKS);
	places[nr++] = kt_spread(1U << self->a | 1U << self->b, BLOCKS);
	/* Uneven, in descending order of DIMMs, two ranges on one. */
	places[nr++] = (struct kt_place){
		.nr = 3, .r = { { self->b, 1 }, { self->a, 5 }, { self->b, 2 } } };
	places[nr++] = (struct kt_place){
		.nr = BLOCKS,
		.r = { { self->a, 1 }, { self->b, 1 }, { self->a, 1 }, { self->b, 1 },
		       { self->a, 1 }, { self->b, 1 }, { self->a, 1 }, { self->b, 1 } } };
	for (unsigned int from = 0; from < nr; from++) {
		for (unsigned int to = 0; to < nr; to++) {
			ASSERT_OK(kt_migrate(&self->w, &places[from]));
			ASSERT_OK(kt_migrate(&self->w, &places[to]));
			expect_at(_metadata, self, &places[to]);
		}
	}
	ASSERT_OK(kt_info(&self->w, &info));
	moves = info.moves;
	EXPECT_LT(nr * nr, moves);
}

TEST_F(migrate, what_stays_is_not_copied)
{
	struct kt_place p = kt_local(self->a, BLOCKS);
	uint64_t bytes = 1, ns = 1;

	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &ns));
	EXPECT_EQ(0, bytes);
	EXPECT_EQ(0, ns);
	expect_at(_metadata, self, &p);
	NEED_DIMMS(2);
	/* Half goes, half stays: a range that is cut is another range. Then only one half moves. */
	p = kt_spread(1U << self->a | 1U << self->b, BLOCKS);
	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &ns));
	EXPECT_LE(self->w.bytes / 2, bytes);
	p = (struct kt_place){ .nr = 2, .r = { { self->a, 4 }, { self->a, 4 } } };
	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &ns));
	EXPECT_EQ(self->w.bytes / 2, bytes);
	expect_at(_metadata, self, &p);
}

TEST_F(migrate, tells_bytes_and_modelled_time)
{
	struct kt_place p = kt_local(self->b, BLOCKS);
	struct moendp_query before, after;
	uint64_t bytes, ns, again;

	NEED_DIMMS(2);
	ASSERT_OK(kt_query(self->fd, self->b, &before));
	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &ns));
	ASSERT_OK(kt_query(self->fd, self->b, &after));
	EXPECT_EQ(self->w.bytes, bytes);
	/* One pull: bytes over the port, and its latency. */
	EXPECT_LE(bytes * 1000 / before.link_mbps, ns);
	EXPECT_GE(bytes * 1000 / before.link_mbps + 8 * before.link_latency_ns + 1000, ns);
	EXPECT_LE(1, after.link.commands - before.link.commands);
	EXPECT_LE(bytes, after.link.bytes - before.link.bytes);
	p = kt_local(self->a, BLOCKS);
	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &again));
	EXPECT_EQ(ns, again);
}

TEST_F(migrate, within_one_dimm)
{
	struct kt_place p = { .nr = 3, .r = { { self->a, 1 }, { self->a, 4 }, { self->a, 3 } } };
	uint64_t bytes, ns;

	ASSERT_OK(kt_migrate_info(&self->w, &p, &bytes, &ns));
	EXPECT_EQ(self->w.bytes, bytes);
	expect_at(_metadata, self, &p);
}

TEST_F(migrate, large_objects_go_in_several_copies)
{
	const unsigned int blocks = (20U << 20) / (192 * 512);
	struct kt_place p = kt_local(self->a, blocks);
	struct moendp_query q;
	uint64_t bytes, ns;
	uint64_t *map;
	struct kt_bo big;

	NEED_DIMMS(2);
	ASSERT_OK(kt_query(self->fd, self->b, &q));
	/* More than one LINK_COPY may carry. */
	if ((uint64_t)blocks * 192 * 512 > q.largest_free_bytes)
		SKIP(return, "needs DIMMs with 20 MiB free");
	ASSERT_OK(kt_expert(self->fd, 512, 512, blocks * 32, &p, &big));
	ASSERT_OK(kt_map(&big, RW));
	for (uint64_t at = 0; at < big.bytes; at += KT_PAGE)
		*(uint64_t *)(big.map + at) = at * 0x9e3779b97f4a7c15ULL;
	ASSERT_OK(kt_unmap(&big));
	ASSERT_OK(kt_seal(&big));
	p = kt_local(self->b, blocks);
	ASSERT_OK(kt_migrate_info(&big, &p, &bytes, &ns));
	EXPECT_EQ(big.bytes, bytes);
	ASSERT_OK(kt_map(&big, PROT_READ));
	for (uint64_t at = 0; at < big.bytes; at += KT_PAGE) {
		map = (uint64_t *)(big.map + at);
		ASSERT_EQ(at * 0x9e3779b97f4a7c15ULL, *map);
	}
	ASSERT_OK(kt_destroy(&big));
}

/* ---- refused -------------------------------------------------------------------------------- */

TEST_F(migrate, outside_of_the_allowed_mask_is_EPERM)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = H, .h_out = H, .rows = ROWS,
		.allowed_mask = 1U << self->a | 1U << self->b,
	};
	struct kt_place p = kt_local(self->a, BLOCKS);
	struct moendp_cmd_migrate m = { .dimm_mask = self->mask };
	struct kt_ring ring;
	struct kt_cqe cqe;
	struct kt_bo bo;

	NEED_DIMMS(3);
	ASSERT_OK(kt_weights(self->fd, &shape, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	p = kt_local(kt_nth_dimm(self->mask, 2), BLOCKS);
	EXPECT_EQ(-EPERM, kt_migrate(&bo, &p));
	p = kt_spread(self->mask, BLOCKS);
	EXPECT_EQ(-EPERM, kt_migrate(&bo, &p));
	m.handle = bo.handle;
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 0));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
	EXPECT_EQ(-EPERM, cqe.res);
	kt_ring_exit(&ring);
	p = kt_local(self->b, BLOCKS);
	EXPECT_EQ(0, kt_migrate(&bo, &p));
	ASSERT_OK(kt_destroy(&bo));
}

struct racer {
	migrate_t *self;
	atomic_bool *stop;
	int wrong;
	unsigned int moves;
	unsigned int busy;
};

static void *race_to_move(void *arg)
{
	struct racer *r = arg;

	for (unsigned int i = 0; !*r->stop && !r->wrong; i++) {
		struct kt_place p = kt_local(i & 1 ? r->self->a : r->self->b, BLOCKS);
		int result = kt_migrate(&r->self->w, &p);

		if (!result)
			r->moves++;
		else if (result == -EBUSY)
			r->busy++;
		else
			r->wrong = result;
	}
	return NULL;
}

/* One at a time: who comes second is told EBUSY, and the object survives. */
TEST_F(migrate, two_at_once)
{
	struct racer r[3];
	atomic_bool stop = false;
	pthread_t threads[3];
	struct kt_place p;

	NEED_DIMMS(2);
	for (int i = 0; i < 3; i++) {
		r[i] = (struct racer){ .self = self, .stop = &stop };
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, race_to_move, &r[i]));
	}
	kt_sleep_ms(2000);
	stop = true;
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		EXPECT_EQ(0, r[i].wrong);
	}
	EXPECT_LT(10 / kt_slow(), r[0].moves + r[1].moves + r[2].moves);
	ASSERT_OK(kt_where(&self->w, &p));
	expect_at(_metadata, self, &p);
}

TEST_F(migrate, while_moving_is_EBUSY_and_says_so)
{
	struct moendp_cmd_migrate m = { .handle = self->w.handle };
	struct kt_place p = kt_local(self->b, BLOCKS), home = kt_local(self->a, BLOCKS);
	struct moendp_bo_info info;
	struct kt_ring ring;
	struct kt_cqe cqe;

	NEED_DIMMS(2);
	NEED_HOST();
	ASSERT_OK(kt_set(self->b, "x-inject-queues", "2"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay-ns", "1500000000"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay", "1"));
	m.nr_ranges = 1;
	m.ranges[0] = p.r[0];
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 3));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	for (int i = 0; i < 100; i++) {
		ASSERT_OK(kt_info(&self->w, &info));
		if (info.state & MOENDP_BO_STATE_MOVING)
			break;
		kt_sleep_ms(5);
	}
	EXPECT_EQ(MOENDP_BO_STATE_SEALED | MOENDP_BO_STATE_MOVING, info.state);
	EXPECT_EQ(-EBUSY, kt_migrate(&self->w, &home));
	/* Commands do not wait for it: they use the old place. */
	expect_at(_metadata, self, &home);
	ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
	EXPECT_EQ(0, cqe.res);
	expect_at(_metadata, self, &p);
	kt_ring_exit(&ring);
	ASSERT_OK(kt_set(self->b, "x-inject-queues", "3"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay-ns", "10000000"));
}

TEST_F(migrate, over_a_link_that_is_down_is_ENOLINK)
{
	struct kt_place home = kt_local(self->a, BLOCKS), there = kt_local(self->b, BLOCKS);
	struct moendp_query q;

	NEED_DIMMS(2);
	NEED_HOST();
	/* The destination's port, then the source's. */
	for (int side = 0; side < 2; side++) {
		unsigned int broken = side ? self->a : self->b;

		ASSERT_OK(kt_set(broken, "x-inject-link-down", "on"));
		EXPECT_EQ(-ENOLINK, kt_migrate(&self->w, &there));
		expect_at(_metadata, self, &home);
		ASSERT_OK(kt_query(self->fd, broken, &q));
		EXPECT_EQ(0, q.link_peers);
		ASSERT_OK(kt_set(broken, "x-inject-link-down", "off"));
		EXPECT_EQ(0, kt_migrate(&self->w, &there));
		expect_at(_metadata, self, &there);
		ASSERT_OK(kt_migrate(&self->w, &home));
	}
	ASSERT_OK(kt_query(self->fd, self->a, &q));
	EXPECT_EQ(self->mask & ~(1U << self->a), q.link_peers);
}

TEST_F(migrate, copy_that_fails_is_EIO)
{
	struct kt_place home = kt_local(self->a, BLOCKS), all = kt_spread(self->mask, BLOCKS);
	unsigned int last = kt_nth_dimm(self->mask, self->nr - 1);

	NEED_DIMMS(2);
	NEED_HOST();
	/* The last of several copies fails: what was copied before must go again. */
	ASSERT_OK(kt_set(last, "x-inject-queues", "2"));
	ASSERT_OK(kt_set(last, "x-inject-error", "1"));
	EXPECT_EQ(-EIO, kt_migrate(&self->w, &all));
	expect_at(_metadata, self, &home);
	EXPECT_EQ(0, kt_migrate(&self->w, &all));
	expect_at(_metadata, self, &all);
	ASSERT_OK(kt_set(last, "x-inject-queues", "3"));
}

/* ---- who asked is gone ---------------------------------------------------------------------- */

/* Killed in the middle: the call ends at once, the object is whole at one place or the other. */
TEST_F(migrate, caller_killed)
{
	struct kt_place home = kt_local(self->a, BLOCKS), there = kt_local(self->b, BLOCKS), now;
	struct moendp_bo_info info;
	uint64_t start;
	int status;
	pid_t pid;

	NEED_DIMMS(2);
	NEED_HOST();
	ASSERT_OK(kt_set(self->b, "x-inject-queues", "2"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay-ns", "3000000000"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay", "1"));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(kt_migrate(&self->w, &there) ? 1 : 0);
	for (int i = 0; i < 200; i++) {
		ASSERT_OK(kt_info(&self->w, &info));
		if (info.state & MOENDP_BO_STATE_MOVING)
			break;
		kt_sleep_ms(5);
	}
	ASSERT_EQ(MOENDP_BO_STATE_MOVING, info.state & MOENDP_BO_STATE_MOVING);
	start = kt_now_ms();
	kill(pid, SIGKILL);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_GT(1500, kt_now_ms() - start);
	expect_at(_metadata, self, &home);
	/* The work itself goes on to its end. */
	for (int i = 0; i < 200 && info.state & MOENDP_BO_STATE_MOVING; i++) {
		kt_sleep_ms(50);
		ASSERT_OK(kt_info(&self->w, &info));
	}
	EXPECT_EQ(0, info.state & MOENDP_BO_STATE_MOVING);
	ASSERT_OK(kt_where(&self->w, &now));
	expect_at(_metadata, self, &now);
	ASSERT_OK(kt_migrate(&self->w, &home));
	ASSERT_OK(kt_set(self->b, "x-inject-queues", "3"));
	ASSERT_OK(kt_set(self->b, "x-inject-delay-ns", "10000000"));
}

/* The file goes, by exit or by close, with migrations under way: memory comes back. */
TEST_F(migrate, file_closed_while_moving)
{
	struct kt_place p = kt_local(self->a, 64);
	struct kt_free before;

	NEED_DIMMS(2);
	ASSERT_OK(kt_free_read(self->fd, &before));
	for (int round = 0; round < 6; round++) {
		struct moendp_cmd_migrate m = { .dimm_mask = 1U << self->b };
		struct kt_ring ring;
		struct kt_bo bo[8];
		int other = kt_open();

		ASSERT_LE(0, other);
		ASSERT_OK(kt_ring_init(&ring, 32, KT_RING_FLAGS));
		for (int i = 0; i < 8; i++) {
			ASSERT_OK(kt_expert(other, H, H, 64 * 32, &p, &bo[i]));
			ASSERT_OK(kt_seal(&bo[i]));
			m.handle = bo[i].handle;
			ASSERT_OK(kt_ring_migrate(&ring, other, &m, i));
		}
		ASSERT_EQ(8, kt_ring_submit(&ring));
		if (round & 1)
			for (int i = 0; i < 8; i++)
				ASSERT_OK(kt_destroy(&bo[i]));
		if (round & 2) {
			close(other);
			kt_ring_exit(&ring);
		} else {
			kt_ring_exit(&ring);
			close(other);
		}
		EXPECT_OK(kt_free_wait(self->fd, &before, 10000 * kt_slow()));
	}
}

/* ---- memory --------------------------------------------------------------------------------- */

/*
 * A DIMM that users have filled still takes what migrates, from the part that is kept for that,
 * until this is used up, too: then ENOSPC, and the object stays where it was.
 */
TEST_F(migrate, into_a_full_dimm_until_the_reserve_is_used_up)
{
	struct kt_place home, there;
	struct moendp_query q;
	struct kt_bo filler, moved[20];
	unsigned int nr = 0, blocks;
	int r = 0;

	NEED_DIMMS(2);
	ASSERT_OK(kt_query(self->fd, self->b, &q));
	ASSERT_OK(kt_io(self->fd, 1U << self->b, q.largest_free_bytes, &filler));
	ASSERT_OK(kt_query(self->fd, self->b, &q));
	EXPECT_EQ(0, q.free_bytes);
	/* 1/16 is kept, of which mem_bytes is the other 15: five objects fit. */
	blocks = q.mem_bytes / 15 / 5 / 12288;
	home = kt_local(self->a, blocks);
	there = kt_local(self->b, blocks);
	for (nr = 0; nr < 20; nr++) {
		ASSERT_OK(kt_expert(self->fd, H, H, blocks * 32, &home, &moved[nr]));
		ASSERT_OK(kt_seal(&moved[nr]));
		r = kt_migrate(&moved[nr], &there);
		if (r) {
			nr++;
			break;
		}
	}
	EXPECT_EQ(-ENOSPC, r);
	EXPECT_LE(5, nr - 1);
	EXPECT_GE(6, nr - 1);
	/* The one that did not fit is at home, sealed and usable; so is ours. */
	ASSERT_OK(kt_where(&moved[nr - 1], &there));
	EXPECT_EQ(self->a, there.r[0].dimm);
	there = kt_local(self->a, BLOCKS);
	expect_at(_metadata, self, &there);
	/* Back home goes always. */
	for (unsigned int i = 0; i < nr; i++)
		EXPECT_OK(kt_migrate(&moved[i], &home));
	for (unsigned int i = 0; i < nr; i++)
		ASSERT_OK(kt_destroy(&moved[i]));
	ASSERT_OK(kt_destroy(&filler));
}

/* Two DIMMs that are both full exchange objects: that is what the reserve is for. */
TEST_F(migrate, full_dimms_exchange_objects)
{
	struct kt_place at_a = kt_local(self->a, 64), at_b = kt_local(self->b, 64);
	struct kt_bo fill_a, fill_b, one, two;
	struct moendp_query q;

	NEED_DIMMS(2);
	ASSERT_OK(kt_expert(self->fd, H, H, 64 * 32, &at_a, &one));
	ASSERT_OK(kt_seal(&one));
	ASSERT_OK(kt_expert(self->fd, H, H, 64 * 32, &at_b, &two));
	ASSERT_OK(kt_seal(&two));
	ASSERT_OK(kt_query(self->fd, self->a, &q));
	ASSERT_OK(kt_io(self->fd, 1U << self->a, q.largest_free_bytes, &fill_a));
	ASSERT_OK(kt_query(self->fd, self->b, &q));
	ASSERT_OK(kt_io(self->fd, 1U << self->b, q.largest_free_bytes, &fill_b));
	for (int i = 0; i < 20; i++) {
		EXPECT_OK(kt_migrate(&one, i & 1 ? &at_a : &at_b));
		EXPECT_OK(kt_migrate(&two, i & 1 ? &at_b : &at_a));
	}
	ASSERT_OK(kt_destroy(&one));
	ASSERT_OK(kt_destroy(&two));
	ASSERT_OK(kt_destroy(&fill_a));
	ASSERT_OK(kt_destroy(&fill_b));
}

/* Commands in flight finish on the old place, which is freed after them. */
TEST_F(migrate, under_commands_in_flight)
{
	struct kt_place there = kt_local(self->b, 32), home = kt_local(self->a, 32);
	struct kt_free before;
	struct kt_load load;
	struct kt_ring ring;
	struct kt_cqe cqe;

	NEED_DIMMS(2);
	ASSERT_OK(kt_free_read(self->fd, &before));
	ASSERT_OK(kt_load(self->fd, self->a, 16, &load));
	ASSERT_OK(kt_ring_init(&ring, 64, KT_RING_FLAGS));
	for (int i = 0; i < 64; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &load.cmd, i));
	ASSERT_EQ(64, kt_ring_submit(&ring));
	ASSERT_OK(kt_migrate(&load.weights, &there));
	for (int i = 0; i < 64; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000 * kt_slow()));
		EXPECT_EQ(0, cqe.res);
		EXPECT_EQ(1U << self->a, cqe.dimm_mask);
	}
	/* x is not there. */
	EXPECT_EQ(-EXDEV, kt_submit(self->fd, MOENDP_CMD_FFN, &load.cmd, NULL, NULL));
	ASSERT_OK(kt_migrate(&load.weights, &home));
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &load.cmd, NULL, NULL));
	kt_ring_exit(&ring);
	ASSERT_OK(kt_load_free(&load));
	EXPECT_OK(kt_free_wait(self->fd, &before, 10000));
}

TEST_HARNESS_MAIN
