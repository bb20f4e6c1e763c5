// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * submit.c - commands that are refused: each member of each command, with the values that are
 * never right beside those that just are.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"

#define LIST_OFF	(16 * KT_PAGE)
#define Y_OFF		(32 * KT_PAGE)
#define IO_BYTES	(64 * KT_PAGE)

FIXTURE(submit) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	struct moendp_query q;
	struct kt_bo io;
};

FIXTURE_SETUP(submit)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, 0);
	ASSERT_OK(kt_query(self->fd, self->dimm, &self->q));
	ASSERT_OK(kt_io(self->fd, self->mask, IO_BYTES, &self->io));
	ASSERT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
}

FIXTURE_TEARDOWN(submit)
{
	close(self->fd);
}

/* One token on all of 64 x 64 weights. */
static struct moendp_cmd command(const FIXTURE_DATA(submit) *self, const struct kt_bo *w)
{
	struct moendp_cmd c = {
		.weights = w->handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = 1U << self->dimm, .count = 2, .tokens = 1, .y_off = Y_OFF, .ldx = 128,
		.ldy = 256,
	};

	return c;
}

#define EXPECT_CMD(want, op, base, ...) do { \
	struct moendp_cmd c = base; \
	int got_; \
	\
	__VA_ARGS__; \
	got_ = kt_submit(self->fd, op, &c, NULL, NULL); \
	EXPECT_EQ(want, got_) { \
		TH_LOG("%s", #__VA_ARGS__); \
	} \
} while (0)

TEST_F(submit, checks_the_operation)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct moendp_cmd base;
	struct kt_bo w;

	ASSERT_OK(kt_expert(self->fd, 64, 64, 64, &p, &w));
	ASSERT_OK(kt_seal(&w));
	base = command(self, &w);
	EXPECT_CMD(-EINVAL, 0, base, (void)c);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_MIGRATE, base, (void)c);
	EXPECT_CMD(-EINVAL, 5, base, (void)c);
	EXPECT_CMD(-EINVAL, 0xffffffff, base, (void)c);
}

TEST_F(submit, checks_members_of_FFN)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct moendp_cmd base;
	struct kt_bo w;

	ASSERT_OK(kt_expert(self->fd, 64, 64, 64, &p, &w));
	ASSERT_OK(kt_seal(&w));
	kt_io_fill(&self->io, self->mask, 0, 0, IO_BYTES);
	base = command(self, &w);
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, (void)c);
	for (unsigned int bit = 2; bit < 32; bit++)
		EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = 1U << bit);
	/* Blocks. */
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.count = 0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.count = 3);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.first = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.first = 2; c.count = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.first = 0xffffffff);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.first = 1; c.count = 0xffffffff);
	/* Tokens and rows. */
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = self->q.max_tokens + 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 0xffffffff);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_rows = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.rows_off = LIST_OFF);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 65536);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 1;
		   c.rows_off = LIST_OFF + 2);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 1;
		   c.rows_off = IO_BYTES);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 1;
		   c.rows_off = -4ULL);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 65535;
		   c.rows_off = LIST_OFF);
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 1;
		   c.rows_off = LIST_OFF);
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, c.flags = MOENDP_CMD_ROWS; c.x_rows = 1;
		   c.rows_off = IO_BYTES - 4);
	/* Activation. */
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.act = 2);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.act = 0xffffffff);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.alpha = 0x3f800000);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.limit = 0x3f800000);
	/* Places. */
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_off = 32);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.y_off = 32);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.ldx = 96);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.ldy = 288);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 2; c.ldx = 64);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 2; c.ldy = 192);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_off = IO_BYTES);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_off = IO_BYTES - 64);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_off = -64ULL);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.x_off = 1ULL << 63);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.y_off = IO_BYTES);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.y_off = IO_BYTES - 192);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.y_off = -256ULL);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 2; c.x_off = IO_BYTES - 128);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 2; c.ldx = 0xffffffc0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = 2; c.ldy = 0xffffffc0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_FFN, base, c.tokens = self->q.max_tokens;
		   c.ldx = 1U << 22);
	/* The last bytes of the object are usable. */
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, c.x_off = IO_BYTES - 128);
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, c.y_off = IO_BYTES - 256);
	/* A DIMM that is not there may be named: nothing is wanted from it. */
	EXPECT_CMD(0, MOENDP_CMD_FFN, base, c.x_mask |= 1U << kt_nth_dimm(~self->mask, 0));
}

TEST_F(submit, checks_members_of_GEMV)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct moendp_cmd base;
	struct kt_bo w;

	ASSERT_OK(kt_matrix(self->fd, 64, 64, &p, &w));
	ASSERT_OK(kt_seal(&w));
	kt_io_fill(&self->io, self->mask, 0, 0, IO_BYTES);
	base = command(self, &w);
	EXPECT_CMD(0, MOENDP_CMD_GEMV, base, (void)c);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.act = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.alpha = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.limit = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.count = 0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.first = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_GEMV, base, c.y_off = IO_BYTES - 192);
	EXPECT_CMD(0, MOENDP_CMD_GEMV, base, c.y_off = IO_BYTES - 256);
	/* One panel has half of the rows: half of the room is enough. */
	EXPECT_CMD(0, MOENDP_CMD_GEMV, base, c.count = 1; c.y_off = IO_BYTES - 128);
}

TEST_F(submit, checks_members_of_ACT)
{
	struct moendp_cmd base = {
		.x_bo = self->io.handle, .y_bo = self->io.handle, .x_mask = 1U << self->dimm,
		.count = 16, .tokens = 1, .rows_off = LIST_OFF, .y_off = Y_OFF, .ldx = 64,
		.ldy = 64,
	};

	EXPECT_CMD(0, MOENDP_CMD_ACT, base, (void)c);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.weights = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.first = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.count = 0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.x_rows = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.flags = MOENDP_CMD_ACCUMULATE);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.flags = MOENDP_CMD_ROWS);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.act = 2);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.alpha = 1);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.x_mask = 0);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.rows_off = LIST_OFF + 4);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.rows_off = IO_BYTES);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.x_off = IO_BYTES);
	EXPECT_CMD(-EINVAL, MOENDP_CMD_ACT, base, c.y_off = IO_BYTES);
	EXPECT_CMD(-EXDEV, MOENDP_CMD_ACT, base,
		   c.x_mask |= 1U << kt_nth_dimm(~self->mask, 0));
}

TEST_HARNESS_MAIN
