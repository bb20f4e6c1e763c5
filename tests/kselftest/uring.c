// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * uring.c - commands through io_uring: what kinds of ring work, that a submitted command is a copy,
 * and that rings, files and processes end with work in flight.
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
#include "kt_ref.h"
#include "kt_ring.h"

#define H	64
#define ROWS	128
#define BLOCKS	4
#define Y_OFF	KT_PAGE
#define IO_PAGES	260
#define WAIT_MS	20000

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER	(1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN	(1U << 13)
#endif

FIXTURE(uring) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	struct kt_ffn e;
	struct kt_bo w;
	struct kt_bo io;
	uint16_t x[H];
	double ref[H];
	double bound[H];
	struct moendp_cmd cmd;
};

FIXTURE_SETUP(uring)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, 0);
	p = kt_spread(self->mask, BLOCKS);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 2));
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->w));
	ASSERT_OK(kt_io(self->fd, self->mask, IO_PAGES * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_PAGES * KT_PAGE);
	kt_x_random(self->x, H, 3);
	kt_io_write(&self->io, self->mask, 0, self->x, sizeof(self->x));
	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, self->ref, self->bound);
	self->cmd = (struct moendp_cmd){
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = self->mask, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF, .ldx = 2 * H,
		.ldy = 4 * H,
	};
}

FIXTURE_TEARDOWN(uring)
{
	kt_ffn_free(&self->e);
	close(self->fd);
}

typedef FIXTURE_DATA(uring) uring_t;

static int y_differs(const uring_t *self, uint64_t y_off)
{
	double y[H];

	kt_io_sum(&self->io, self->w.dimm_mask, y_off, H, y);
	return kt_differs(y, self->ref, self->bound, H);
}

static void expect_one_good(struct __test_metadata *_metadata, const uring_t *self,
			    struct kt_ring *ring)
{
	struct kt_cqe cqe;

	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 4 * H);
	ASSERT_EQ(0, kt_ring_one(ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	EXPECT_EQ(self->w.dimm_mask, cqe.dimm_mask);
	EXPECT_LT(0, cqe.modelled_ns);
	EXPECT_EQ(0, cqe.extra2);
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
}

TEST_F(uring, completes_as_the_ioctl_does)
{
	struct kt_ring ring;
	struct kt_cqe cqe;
	float y[H];
	uint64_t ns;
	uint32_t mask;
	const uint8_t *at;

	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, &mask, &ns));
	at = kt_replica(&self->io, self->dimm) + Y_OFF;
	memcpy(y, at, sizeof(y));
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 4 * H);
	ASSERT_EQ(0, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	EXPECT_EQ(mask, cqe.dimm_mask);
	EXPECT_EQ(ns, cqe.modelled_ns);
	EXPECT_EQ(0, memcmp(y, at, sizeof(y)));
	expect_one_good(_metadata, self, &ring);
	kt_ring_exit(&ring);
}

TEST_F(uring, zero_tokens_complete)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	self->cmd.tokens = 0;
	EXPECT_EQ(0, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, KT_PAGE));
	kt_ring_exit(&ring);
}

TEST_F(uring, errors_come_with_the_completion)
{
	const struct moendp_cmd good = self->cmd;
	struct kt_ring ring;
	struct kt_cqe cqe;

#define EXPECT_RES(want, op, ...) do { \
		struct moendp_cmd c = good; \
		\
		__VA_ARGS__; \
		EXPECT_EQ(want, kt_ring_one(&ring, self->fd, op, &c, &cqe)) { \
			TH_LOG("%s", #__VA_ARGS__); \
		} \
		EXPECT_EQ(0, cqe.extra2); \
	} while (0)

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	EXPECT_RES(0, MOENDP_CMD_FFN, (void)c);
	EXPECT_RES(-EINVAL, MOENDP_CMD_FFN, c.flags = 4);
	EXPECT_RES(-EINVAL, MOENDP_CMD_FFN, c.count = BLOCKS + 1);
	EXPECT_RES(-EINVAL, MOENDP_CMD_FFN, c.ldx = 1);
	EXPECT_RES(-ENOENT, MOENDP_CMD_FFN, c.weights = 0);
	EXPECT_RES(-ENOENT, MOENDP_CMD_FFN, c.x_bo = 0x7ffffff0);
	EXPECT_RES(-EBADF, MOENDP_CMD_FFN, c.weights = self->io.handle);
	EXPECT_RES(-EBADF, MOENDP_CMD_GEMV, (void)c);
	EXPECT_RES(-EINVAL, MOENDP_CMD_ACT, (void)c);
	EXPECT_RES(-ESTALE, MOENDP_CMD_FFN, c.x_mask = 0);
	EXPECT_EQ(self->w.dimm_mask, cqe.dimm_mask);
	/* No such operation. */
	EXPECT_RES(-ENOTTY, 0, (void)c);
	EXPECT_RES(-ENOTTY, 5, (void)c);
	EXPECT_RES(-ENOTTY, 0xffffffff, (void)c);
	EXPECT_RES(0, MOENDP_CMD_FFN, (void)c);
	kt_ring_exit(&ring);
}

/* ---- kinds of ring -------------------------------------------------------------------------- */

TEST_F(uring, ring_of_64_byte_entries_is_EOPNOTSUPP)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, IORING_SETUP_CQE32));
	EXPECT_EQ(-EOPNOTSUPP, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	kt_ring_exit(&ring);
	ASSERT_OK(kt_ring_init(&ring, 8, 0));
	EXPECT_EQ(-EOPNOTSUPP, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	kt_ring_exit(&ring);
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, KT_PAGE));
}

TEST_F(uring, ring_of_16_byte_completions_is_EOPNOTSUPP)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, IORING_SETUP_SQE128));
	EXPECT_EQ(-EOPNOTSUPP, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, KT_PAGE));
	kt_ring_exit(&ring);
}

TEST_F(uring, polled_ring_is_EOPNOTSUPP)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS | IORING_SETUP_IOPOLL));
	EXPECT_EQ(-EOPNOTSUPP, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	kt_ring_exit(&ring);
}

/* Submission by a kernel thread that has nothing of this process but its memory. */
TEST_F(uring, SQPOLL_ring_works)
{
	struct kt_ring ring;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS | IORING_SETUP_SQPOLL));
	for (int i = 0; i < 10; i++)
		expect_one_good(_metadata, self, &ring);
	kt_ring_exit(&ring);
}

TEST_F(uring, DEFER_TASKRUN_ring_works)
{
	struct kt_ring ring;
	int r = kt_ring_init(&ring, 8, KT_RING_FLAGS | IORING_SETUP_SINGLE_ISSUER |
				       IORING_SETUP_DEFER_TASKRUN);

	if (r == -EINVAL)
		SKIP(return, "this kernel has no IORING_SETUP_DEFER_TASKRUN");
	ASSERT_OK(r);
	for (int i = 0; i < 10; i++)
		expect_one_good(_metadata, self, &ring);
	kt_ring_exit(&ring);
}

/* IOSQE_ASYNC: from a worker thread of io_uring, which may block. */
TEST_F(uring, asynchronous_submission_works)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	for (int i = 0; i < 8; i++) {
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, i));
		ring.last->flags |= IOSQE_ASYNC;
	}
	ASSERT_EQ(8, kt_ring_submit(&ring));
	for (int i = 0; i < 8; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
		EXPECT_EQ(0, cqe.res);
	}
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
	kt_ring_exit(&ring);
}

TEST_F(uring, registered_file_works)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_EQ(0, io_uring_register_files(&ring.ring, &self->fd, 1));
	ASSERT_OK(kt_ring_cmd(&ring, 0, MOENDP_CMD_FFN, &self->cmd, 9));
	ring.last->flags |= IOSQE_FIXED_FILE;
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
	EXPECT_EQ(0, cqe.res);
	EXPECT_EQ(9, cqe.user_data);
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
	kt_ring_exit(&ring);
}

/* ---- many ----------------------------------------------------------------------------------- */

/* Far more than the driver keeps in flight: each ends once, with its own result. */
TEST_F(uring, more_commands_than_go_in_flight)
{
	bool seen[256] = { false };
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 256, KT_RING_FLAGS));
	for (int round = 0; round < 3; round++) {
		kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 256 * KT_PAGE);
		memset(seen, 0, sizeof(seen));
		for (int i = 0; i < 256; i++) {
			self->cmd.y_off = Y_OFF + i * KT_PAGE;
			ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, i));
		}
		ASSERT_EQ(256, kt_ring_submit(&ring));
		for (int i = 0; i < 256; i++) {
			ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
			EXPECT_EQ(0, cqe.res);
			ASSERT_GT(256, cqe.user_data);
			EXPECT_FALSE(seen[cqe.user_data]);
			seen[cqe.user_data] = true;
		}
		for (int i = 0; i < 256; i++) {
			ASSERT_EQ(-1, y_differs(self, Y_OFF + i * KT_PAGE)) {
				TH_LOG("round %d command %d", round, i);
			}
		}
	}
	EXPECT_EQ(-ETIME, kt_ring_wait(&ring, &cqe, 50));
	kt_ring_exit(&ring);
}

/*
 * More than a file may have under way at all: the submission that would have to wait is not told
 * EAGAIN, io_uring tries it again where it may wait.
 */
TEST_F(uring, more_commands_than_a_file_may_have)
{
	const unsigned int nr = 4096 + 300;
	unsigned int good = 0;
	struct kt_load load;
	struct kt_ring ring;
	struct kt_cqe cqe;

	/* Keeps the DIMM busy while the others are submitted. */
	ASSERT_OK(kt_load(self->fd, self->dimm, KT_LOAD_MAX_TOKENS, &load));
	ASSERT_OK(kt_ring_init(&ring, 8192, KT_RING_FLAGS));
	for (unsigned int i = 0; i < nr; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN,
				      i < 4 ? &load.cmd : &self->cmd, i));
	ASSERT_EQ(nr, kt_ring_submit(&ring));
	for (unsigned int i = 0; i < nr; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		good += !cqe.res;
	}
	EXPECT_EQ(nr, good);
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
	kt_ring_exit(&ring);
	ASSERT_OK(kt_load_free(&load));
}

/* What waits in one file does not hold up another: DIMMs are served in turn. */
TEST_F(uring, other_files_get_their_turn)
{
	struct kt_load load, mine;
	struct kt_ring ring;
	struct kt_cqe cqe;
	int other = kt_open(), done = 0;

	ASSERT_LE(0, other);
	ASSERT_OK(kt_load(other, self->dimm, 64, &load));
	ASSERT_OK(kt_load(self->fd, self->dimm, 1, &mine));
	ASSERT_OK(kt_ring_init(&ring, 256, KT_RING_FLAGS));
	for (int i = 0; i < 256; i++)
		ASSERT_OK(kt_ring_cmd(&ring, other, MOENDP_CMD_FFN, &load.cmd, i));
	ASSERT_EQ(256, kt_ring_submit(&ring));
	/* One command of ours waits for those that are with the DIMM, not for all. */
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &mine.cmd, NULL, NULL));
	while (!kt_ring_wait(&ring, &cqe, 0))
		done++;
	EXPECT_GT(128, done);
	for (; done < 256; done++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		EXPECT_EQ(0, cqe.res);
	}
	kt_ring_exit(&ring);
	close(other);
}

struct submitter {
	uring_t *self;
	int nr;
	int wrong;
};

static void *submit_many(void *arg)
{
	struct submitter *s = arg;
	struct moendp_cmd c = s->self->cmd;
	struct kt_ring ring;
	struct kt_cqe cqe;

	if (kt_ring_init(&ring, 16, KT_RING_FLAGS)) {
		s->wrong = -1;
		return NULL;
	}
	c.y_off = Y_OFF + s->nr * KT_PAGE;
	for (int i = 0; i < 100 && !s->wrong; i++) {
		kt_io_fill(&s->self->io, s->self->mask, c.y_off, KT_NAN_BYTE, 4 * H);
		if (i & 1)
			s->wrong = kt_submit(s->self->fd, MOENDP_CMD_FFN, &c, NULL, NULL);
		else
			s->wrong = kt_ring_one(&ring, s->self->fd, MOENDP_CMD_FFN, &c, &cqe);
		if (!s->wrong && y_differs(s->self, c.y_off) >= 0)
			s->wrong = 1;
	}
	kt_ring_exit(&ring);
	return NULL;
}

TEST_F(uring, several_rings_and_ioctls_on_one_file)
{
	struct submitter s[4];
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		s[i] = (struct submitter){ self, i, 0 };
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, submit_many, &s[i]));
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		EXPECT_EQ(0, s[i].wrong);
	}
}

/* ---- the submitted command is a copy -------------------------------------------------------- */

TEST_F(uring, entry_changed_after_submit_changes_nothing)
{
	struct kt_ring ring;
	struct kt_cqe cqe;
	struct kt_load load;

	/* The DIMMs are busy, and most of the commands wait in the file. */
	ASSERT_OK(kt_load(self->fd, self->dimm, 64, &load));
	ASSERT_OK(kt_ring_init(&ring, 128, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &load.cmd, 0));
	for (int i = 1; i < 128; i++) {
		self->cmd.y_off = Y_OFF + i * KT_PAGE;
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, i));
	}
	ASSERT_EQ(128, kt_ring_submit(&ring));
	memset(ring.ring.sq.sqes, 0xff, 128 * 128);
	for (int i = 0; i < 128; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
		EXPECT_EQ(0, cqe.res);
	}
	for (int i = 1; i < 128; i++) {
		ASSERT_EQ(-1, y_differs(self, Y_OFF + i * KT_PAGE)) {
			TH_LOG("command %d", i);
		}
	}
	kt_ring_exit(&ring);
}

struct scribbler {
	struct io_uring_sqe *sqes;
	const struct moendp_cmd *good;
	atomic_bool stop;
};

/* Flips members of the payloads between what is right and what must never be executed. */
static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	uint64_t state = 99;

	while (!s->stop) {
		uint64_t r = kt_random(&state);
		volatile struct moendp_cmd *c = (void *)s->sqes[(r & 15) << 1].cmd;

		switch (r >> 8 & 7) {
		case 0:
			c->y_off = (r >> 16 & ~63ULL);
			c->y_off = s->good->y_off;
			break;
		case 1:
			c->tokens = r >> 32;
			c->tokens = s->good->tokens;
			break;
		case 2:
			c->count = r >> 32;
			c->count = s->good->count;
			break;
		case 3:
			c->first = r >> 32;
			c->first = s->good->first;
			break;
		case 4:
			c->weights = r >> 40;
			c->weights = s->good->weights;
			break;
		case 5:
			c->x_off = -64ULL;
			c->x_off = s->good->x_off;
			break;
		case 6:
			c->ldy = r >> 32 & ~63U;
			c->ldy = s->good->ldy;
			break;
		default:
			c->x_bo = r >> 40;
			c->x_bo = s->good->x_bo;
			break;
		}
	}
	return NULL;
}

/*
 * Entries change while the kernel reads them (SQPOLL reads them at any time). What is executed
 * must have been checked: no byte outside of the IO object is written and no DIMM refuses what the
 * driver let through.
 */
TEST_F(uring, entry_changed_during_submit_is_checked_as_copied)
{
	const struct moendp_cmd good = self->cmd;
	struct scribbler s = { .good = &good };
	struct moendp_query before, after;
	struct kt_bo guard[2];
	struct kt_ring ring;
	struct kt_cqe cqe;
	pthread_t thread;
	int executed = 0;

	for (int i = 0; i < 2; i++) {
		ASSERT_OK(kt_io(self->fd, self->mask, 64 * KT_PAGE, &guard[i]));
		ASSERT_OK(kt_map(&guard[i], PROT_READ | PROT_WRITE));
		kt_io_fill(&guard[i], self->mask, 0, 0x5c, 64 * KT_PAGE);
	}
	ASSERT_OK(kt_query(self->fd, self->dimm, &before));
	ASSERT_OK(kt_ring_init(&ring, 16, KT_RING_FLAGS | IORING_SETUP_SQPOLL));
	s.sqes = ring.ring.sq.sqes;
	ASSERT_EQ(0, pthread_create(&thread, NULL, scribble, &s));
	for (int round = 0; round < 200 / (int)kt_slow() + 20; round++) {
		for (int i = 0; i < 16; i++)
			ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &good, i));
		ASSERT_LE(0, kt_ring_submit(&ring));
		for (int i = 0; i < 16; i++) {
			ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
			executed += !cqe.res;
			EXPECT_TRUE(cqe.res == 0 || cqe.res == -EINVAL || cqe.res == -ENOENT ||
				    cqe.res == -EBADF) {
				TH_LOG("res %d", cqe.res);
			}
		}
	}
	s.stop = true;
	pthread_join(thread, NULL);
	kt_ring_exit(&ring);
	EXPECT_LT(0, executed);
	ASSERT_OK(kt_query(self->fd, self->dimm, &after));
	EXPECT_EQ(before.compute.errors, after.compute.errors);
	EXPECT_TRUE(kt_io_is(&guard[0], self->mask, 0, 0x5c, 64 * KT_PAGE));
	EXPECT_TRUE(kt_io_is(&guard[1], self->mask, 0, 0x5c, 64 * KT_PAGE));
	/* The weights are what they were. */
	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 4 * H);
	kt_io_write(&self->io, self->mask, 0, self->x, sizeof(self->x));
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &good, NULL, NULL));
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
}

/* ---- migration through a ring --------------------------------------------------------------- */

TEST_F(uring, migrates)
{
	unsigned int last = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	struct moendp_cmd_migrate m = {
		.handle = self->w.handle, .nr_ranges = 1, .ranges = { { last, BLOCKS } },
	};
	struct kt_ring ring;
	struct kt_place p;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 5));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
	EXPECT_EQ(0, cqe.res);
	EXPECT_EQ(5, cqe.user_data);
	EXPECT_EQ(1U << last, cqe.dimm_mask);
	EXPECT_EQ(0, cqe.extra2);
	ASSERT_OK(kt_where(&self->w, &p));
	EXPECT_EQ(1, p.nr);
	EXPECT_EQ(last, p.r[0].dimm);

	/* Without ranges: evenly over a mask, larger parts first. */
	m = (struct moendp_cmd_migrate){ .handle = self->w.handle, .dimm_mask = self->mask };
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 6));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
	EXPECT_EQ(0, cqe.res);
	p = kt_spread(self->mask, BLOCKS);
	EXPECT_EQ(kt_place_mask(&p), cqe.dimm_mask);
	self->w.dimm_mask = cqe.dimm_mask;
	expect_one_good(_metadata, self, &ring);
	kt_ring_exit(&ring);
}

TEST_F(uring, uneven_spread_gives_larger_parts_first)
{
	struct kt_place p = kt_local(self->dimm, 5), want = kt_spread(self->mask, 5), got;
	struct moendp_cmd_migrate m = { .dimm_mask = self->mask };
	struct kt_ring ring;
	struct kt_cqe cqe;
	struct kt_bo w;

	ASSERT_OK(kt_expert(self->fd, H, H, 160, &p, &w));
	ASSERT_OK(kt_seal(&w));
	m.handle = w.handle;
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 6));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
	EXPECT_EQ(0, cqe.res);
	ASSERT_OK(kt_where(&w, &got));
	ASSERT_EQ(want.nr, got.nr);
	for (unsigned int i = 0; i < want.nr; i++) {
		EXPECT_EQ(want.r[i].dimm, got.r[i].dimm);
		EXPECT_EQ(want.r[i].nr_blocks, got.r[i].nr_blocks);
	}
	kt_ring_exit(&ring);
}

TEST_F(uring, migrate_checks_its_members)
{
	const struct moendp_cmd_migrate good = {
		.handle = self->w.handle, .nr_ranges = 1, .ranges = { { self->dimm, BLOCKS } },
	};
	struct kt_place where, before;
	struct kt_ring ring;
	struct kt_cqe cqe;

#define EXPECT_MIGRATE(want, ...) do { \
		struct moendp_cmd_migrate m = good; \
		\
		__VA_ARGS__; \
		ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 1)); \
		ASSERT_EQ(1, kt_ring_submit(&ring)); \
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS)); \
		EXPECT_EQ(want, cqe.res) { \
			TH_LOG("%s", #__VA_ARGS__); \
		} \
	} while (0)

	ASSERT_OK(kt_where(&self->w, &before));
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	EXPECT_MIGRATE(-EINVAL, m.nr_ranges = 0);
	EXPECT_MIGRATE(-EINVAL, m.nr_ranges = MOENDP_MAX_INLINE_RANGES + 1);
	EXPECT_MIGRATE(-EINVAL, m.dimm_mask = self->mask);
	EXPECT_MIGRATE(-EINVAL, m.rsvd = 1);
	EXPECT_MIGRATE(-EINVAL, m.id = 1);
	EXPECT_MIGRATE(-EINVAL, m.ranges[1].dimm = 1);
	EXPECT_MIGRATE(-EINVAL, m.ranges[6].nr_blocks = 1);
	EXPECT_MIGRATE(-EINVAL, m.ranges[0].nr_blocks = BLOCKS + 1);
	EXPECT_MIGRATE(-EINVAL, m.ranges[0].nr_blocks = 0);
	EXPECT_MIGRATE(-ENODEV, m.ranges[0].dimm = kt_nth_dimm(~self->mask, 0));
	EXPECT_MIGRATE(-ENXIO, m.ranges[0].dimm = MOENDP_MAX_DIMMS);
	EXPECT_MIGRATE(-ENOENT, m.handle = 0);
	EXPECT_MIGRATE(-ENOENT, m.handle = 0x7ffffff0);
	EXPECT_MIGRATE(-EBADF, m.handle = self->io.handle);
	EXPECT_MIGRATE(-ENODEV, m.nr_ranges = 0; m.ranges[0].dimm = 0; m.ranges[0].nr_blocks = 0;
		       m.dimm_mask = 1U << kt_nth_dimm(~self->mask, 0));
	ASSERT_OK(kt_where(&self->w, &where));
	EXPECT_EQ(0, memcmp(before.r, where.r, before.nr * sizeof(before.r[0])));
	kt_ring_exit(&ring);
}

/* ---- ends with work in flight --------------------------------------------------------------- */

TEST_F(uring, ring_exit_with_work)
{
	struct kt_free before;
	struct kt_load load;
	struct kt_ring ring;
	uint64_t start;

	ASSERT_OK(kt_free_read(self->fd, &before));
	for (int round = 0; round < 4; round++) {
		ASSERT_OK(kt_load(self->fd, self->dimm, 16, &load));
		ASSERT_OK(kt_ring_init(&ring, 64, KT_RING_FLAGS |
				       (round == 3 ? IORING_SETUP_SQPOLL : 0)));
		for (int i = 0; i < 64; i++)
			ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &load.cmd, i));
		ASSERT_LE(0, kt_ring_submit(&ring));
		/* Sometimes the objects go before the commands that use them. */
		if (round & 1)
			ASSERT_OK(kt_load_free(&load));
		start = kt_now_ms();
		kt_ring_exit(&ring);
		EXPECT_GT(20000 * kt_slow(), kt_now_ms() - start);
		if (!(round & 1))
			ASSERT_OK(kt_load_free(&load));
	}
	EXPECT_OK(kt_free_wait(self->fd, &before, 20000 * kt_slow()));
}

TEST_F(uring, file_closed_with_work)
{
	struct kt_free before;
	struct kt_load load;
	struct kt_ring ring;
	struct kt_cqe cqe;
	int other = kt_open();

	ASSERT_LE(0, other);
	ASSERT_OK(kt_free_read(self->fd, &before));
	ASSERT_OK(kt_load(other, self->dimm, 16, &load));
	ASSERT_OK(kt_ring_init(&ring, 128, KT_RING_FLAGS));
	for (int i = 0; i < 128; i++)
		ASSERT_OK(kt_ring_cmd(&ring, other, MOENDP_CMD_FFN, &load.cmd, i));
	ASSERT_EQ(128, kt_ring_submit(&ring));
	ASSERT_EQ(0, close(other));
	for (int i = 0; i < 128; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		EXPECT_TRUE(cqe.res == 0 || cqe.res == -ECANCELED) {
			TH_LOG("res %d", cqe.res);
		}
	}
	kt_ring_exit(&ring);
	EXPECT_OK(kt_free_wait(self->fd, &before, 20000 * kt_slow()));
}

/* Objects that are destroyed while commands use them: the commands still end well. */
TEST_F(uring, objects_destroyed_with_work)
{
	struct kt_free before;
	struct kt_load load;
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_free_read(self->fd, &before));
	ASSERT_OK(kt_load(self->fd, self->dimm, 16, &load));
	ASSERT_OK(kt_ring_init(&ring, 128, KT_RING_FLAGS));
	for (int i = 0; i < 128; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &load.cmd, i));
	ASSERT_EQ(128, kt_ring_submit(&ring));
	ASSERT_OK(kt_load_free(&load));
	for (int i = 0; i < 128; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		EXPECT_EQ(0, cqe.res);
	}
	kt_ring_exit(&ring);
	EXPECT_OK(kt_free_wait(self->fd, &before, 20000 * kt_slow()));
}

/* A process is killed with 256 commands in flight: it ends in bounded time, and nothing is left. */
TEST_F(uring, SIGKILL_with_256_commands)
{
	struct kt_free before;
	uint64_t start;
	int status, pipes[2];
	pid_t pid;
	char c;

	ASSERT_EQ(0, pipe(pipes));
	ASSERT_OK(kt_free_read(self->fd, &before));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		struct kt_load load;
		struct kt_ring ring;
		int fd = kt_open();

		if (fd < 0 || kt_load(fd, self->dimm, 32, &load) ||
		    kt_ring_init(&ring, 256, KT_RING_FLAGS))
			_exit(1);
		for (int i = 0; i < 256; i++)
			if (kt_ring_cmd(&ring, fd, MOENDP_CMD_FFN, &load.cmd, i))
				_exit(2);
		if (kt_ring_submit(&ring) != 256 || write(pipes[1], "", 1) != 1)
			_exit(3);
		for (;;)
			pause();
	}
	close(pipes[1]);
	ASSERT_EQ(1, read(pipes[0], &c, 1));
	start = kt_now_ms();
	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_GT(30000 * kt_slow(), kt_now_ms() - start);
	EXPECT_OK(kt_free_wait(self->fd, &before, 30000 * kt_slow()));
	/* And the DIMM works on. */
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL));
	EXPECT_EQ(-1, y_differs(self, Y_OFF));
}

TEST_HARNESS_MAIN
