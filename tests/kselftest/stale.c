// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * stale.c - the first of the two tests that guard the idea of the whole: a command never computes
 * from an x that was not written for it.
 *
 * 10,000 times the application writes x where it believes the expert lies, the expert moves, and
 * then the application submits. Every replica that was not written holds NaN, and so does y. So a
 * command that ran on a DIMM without its x, or that was executed although it answered ESTALE,
 * shows. x is another one each time: a result of the previous command does not pass either.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H		64
#define ROWS		128
#define BLOCKS		4
#define ROUNDS		10000
#define NR_X		64
#define Y_OFF		KT_PAGE
#define X_BYTES		(2 * H)
#define Y_BYTES		(4 * H)

FIXTURE(stale) {
	int fd;
	int placement;
	uint32_t mask;
	struct kt_ffn e;
	struct kt_bo w;
	struct kt_bo io;
	struct kt_ring ring;
	struct moendp_cmd cmd;
	uint64_t id;
	uint16_t x[NR_X][H];
	double ref[NR_X][H];
	double bound[NR_X][H];
};

FIXTURE_SETUP(stale)
{
	struct moendp_bo_info info;
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	p = kt_local(kt_nth_dimm(self->mask, 0), BLOCKS);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 31));
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->w));
	ASSERT_OK(kt_info(&self->w, &info));
	self->id = info.id;
	ASSERT_OK(kt_io(self->fd, self->mask, 2 * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
	ASSERT_OK(kt_ring_init(&self->ring, 8, KT_RING_FLAGS));
	self->placement = kt_placement_fd(self->fd);
	ASSERT_LE(0, self->placement);
	for (int i = 0; i < NR_X; i++) {
		kt_x_random(self->x[i], H, 1000 + i);
		kt_ffn_ref(&self->e, 0, BLOCKS, self->x[i], self->ref[i], self->bound[i]);
	}
	self->cmd = (struct moendp_cmd){
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.count = BLOCKS, .tokens = 1, .y_off = Y_OFF, .ldx = X_BYTES, .ldy = Y_BYTES,
	};
}

FIXTURE_TEARDOWN(stale)
{
	kt_ring_exit(&self->ring);
	kt_ffn_free(&self->e);
	close(self->placement);
	close(self->fd);
}

typedef FIXTURE_DATA(stale) stale_t;

/* Where the expert goes next: anywhere, whole, over two DIMMs or over all. */
static struct kt_place next_place(uint32_t mask, uint64_t *state)
{
	uint64_t r = kt_random(state);
	unsigned int n = kt_count(mask);
	uint32_t a = 1U << kt_nth_dimm(mask, (r >> 8) % n);
	uint32_t b = 1U << kt_nth_dimm(mask, (r >> 16) % n);

	switch (r & 3) {
	case 0:
		return kt_spread(mask, BLOCKS);
	case 1:
		return kt_spread(a | b, BLOCKS);
	default:
		return kt_spread(a, BLOCKS);
	}
}

/* By each of the ways there are to move an object. */
static int move_it(stale_t *self, const struct kt_place *p, int way)
{
	struct moendp_placement_migrate pm = {
		.size = sizeof(pm), .id = self->id, .ranges = (uintptr_t)p->r, .nr_ranges = p->nr,
	};
	struct moendp_cmd_migrate m = { .handle = self->w.handle, .nr_ranges = p->nr };
	struct kt_cqe cqe;
	int r;

	switch (way) {
	case 0:
		return kt_migrate(&self->w, p);
	case 1:
		return kt_ioctl(self->placement, MOENDP_IOC_PLACEMENT_MIGRATE, &pm);
	default:
		memcpy(m.ranges, p->r, p->nr * sizeof(p->r[0]));
		r = kt_ring_migrate(&self->ring, self->fd, &m, 1);
		if (!r)
			r = kt_ring_submit(&self->ring);
		if (r < 0)
			return r;
		return kt_ring_wait(&self->ring, &cqe, 20000 * kt_slow()) ?: cqe.res;
	}
}

static int submit(stale_t *self, bool by_ring, uint32_t *mask)
{
	struct kt_cqe cqe;
	int r;

	if (!by_ring)
		return kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, mask, NULL);
	r = kt_ring_one(&self->ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe);
	*mask = cqe.dimm_mask;
	return r;
}

/* Everything is NaN: whatever a command reads or leaves that it should not have shows. */
static void poison(stale_t *self)
{
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, X_BYTES);
	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, Y_BYTES);
}

static void expect_result(struct __test_metadata *_metadata, stale_t *self, int i, uint32_t mask)
{
	const int v = i % NR_X;
	double y[H];
	int at;

	kt_io_sum(&self->io, mask, Y_OFF, H, y);
	at = kt_differs(y, self->ref[v], self->bound[v], H);
	ASSERT_EQ(-1, at) {
		TH_LOG("command %d, DIMMs %#x, output %d: %g, not %g", i, mask, at, y[at],
		       self->ref[v][at]);
	}
	ASSERT_TRUE(kt_io_is(&self->io, self->mask & ~mask, Y_OFF, KT_NAN_BYTE, Y_BYTES)) {
		TH_LOG("command %d wrote y outside of the DIMMs %#x", i, mask);
	}
}

TEST_F_TIMEOUT(stale, migration_between_writing_x_and_submitting, 1200)
{
	uint32_t believed = 1U << kt_nth_dimm(self->mask, 0);
	/* Under a debug kernel fewer: what that looks for is not in the numbers. */
	const int rounds = ROUNDS / kt_slow();
	int stale = 0, fresh = 0;
	struct kt_free before;
	uint64_t state = 5;

	if (kt_count(self->mask) < 2)
		SKIP(return, "needs two DIMMs");
	ASSERT_OK(kt_free_read(self->fd, &before));
	for (int i = 0; i < rounds; i++) {
		const uint16_t *x = self->x[i % NR_X];
		struct kt_place p = next_place(self->mask, &state);
		uint32_t now = kt_place_mask(&p), mask = 0;
		bool by_ring = i & 1;

		poison(self);
		kt_io_write(&self->io, believed, 0, x, X_BYTES);
		ASSERT_EQ(0, move_it(self, &p, i % 3)) {
			TH_LOG("command %d: moving to DIMMs %#x", i, now);
		}
		self->cmd.x_mask = believed;
		if (now & ~believed) {
			stale++;
			ASSERT_EQ(-ESTALE, submit(self, by_ring, &mask)) {
				TH_LOG("command %d: x on %#x, weights on %#x", i, believed, now);
			}
			ASSERT_EQ(now, mask);
			ASSERT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, Y_BYTES)) {
				TH_LOG("command %d: ESTALE, and executed", i);
			}
			kt_io_write(&self->io, now & ~believed, 0, x, X_BYTES);
			self->cmd.x_mask |= now;
		} else {
			fresh++;
		}
		ASSERT_EQ(0, submit(self, !by_ring, &mask)) {
			TH_LOG("command %d", i);
		}
		ASSERT_EQ(now, mask);
		expect_result(_metadata, self, i, mask);
		believed = now;
	}
	/* Both outcomes were really tried. */
	EXPECT_LT(rounds / 4, stale);
	EXPECT_LT(rounds / 10, fresh);
	TH_LOG("%d commands, %d times ESTALE", rounds, stale);
	/* The placement at the end differs; the sum over the DIMMs does not. */
	ASSERT_OK(kt_migrate(&self->w, &(struct kt_place){
		.nr = 1, .r = { { kt_nth_dimm(self->mask, 0), BLOCKS } } }));
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000 * kt_slow()));
}

struct mover {
	stale_t *self;
	atomic_bool stop;
	atomic_int wrong;
	atomic_uint moves;
};

static void *keep_moving(void *arg)
{
	struct mover *m = arg;
	uint64_t state = 77;

	while (!m->stop && !m->wrong) {
		struct kt_place p = next_place(m->self->mask, &state);
		int r = move_it(m->self, &p, m->moves & 1);

		if (r)
			m->wrong = r;
		m->moves++;
	}
	return NULL;
}

/* The same with the mover on its own: the moment of the move is anywhere. */
TEST_F_TIMEOUT(stale, migration_at_any_moment, 600)
{
	uint32_t believed = 1U << kt_nth_dimm(self->mask, 0);
	const int rounds = 600 / kt_slow() + 100;
	const unsigned int moves = rounds / 20;
	struct mover mover = { .self = self };
	unsigned int retries = 0;
	pthread_t thread;

	if (kt_count(self->mask) < 2)
		SKIP(return, "needs two DIMMs");
	ASSERT_EQ(0, pthread_create(&thread, NULL, keep_moving, &mover));
	/* A mover that gets little of a busy machine is waited for; the time-out bounds that. */
	for (int i = 0; i < rounds || (mover.moves <= moves && !mover.wrong); i++) {
		const uint16_t *x = self->x[i % NR_X];
		uint32_t mask;
		int r;

		poison(self);
		kt_io_write(&self->io, believed, 0, x, X_BYTES);
		self->cmd.x_mask = believed;
		while ((r = submit(self, i & 1, &mask)) == -ESTALE) {
			ASSERT_NE(0, mask & ~self->cmd.x_mask) {
				TH_LOG("command %d: ESTALE for DIMMs with x: %#x of %#x", i, mask,
				       self->cmd.x_mask);
			}
			ASSERT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE,
					     Y_BYTES));
			kt_io_write(&self->io, mask & ~self->cmd.x_mask, 0, x, X_BYTES);
			self->cmd.x_mask |= mask;
			retries++;
		}
		ASSERT_EQ(0, r);
		expect_result(_metadata, self, i, mask);
		believed = mask;
	}
	mover.stop = true;
	pthread_join(thread, NULL);
	EXPECT_EQ(0, mover.wrong);
	EXPECT_LT(moves, mover.moves);
	TH_LOG("%d commands or more, %u moves, %u times ESTALE", rounds, mover.moves, retries);
}

TEST_HARNESS_MAIN
