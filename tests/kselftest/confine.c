// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * confine.c - /dev/ndpNdK: the same interface, confined to DIMM K. What one can be given without
 * the others must not reach the others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H	64
#define ROWS	128
#define BLOCKS	4
#define Y_OFF	KT_PAGE
#define RW	(PROT_READ | PROT_WRITE)

FIXTURE(confine) {
	int domain;		/* /dev/ndpN */
	int fd;			/* /dev/ndpNdK */
	uint32_t mask;
	unsigned int own;
	int other;
	struct kt_ffn e;
};

FIXTURE_SETUP(confine)
{
	char path[64];

	self->domain = kt_open();
	ASSERT_LE(0, self->domain);
	self->mask = kt_dimm_mask(self->domain);
	self->own = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	self->other = kt_count(self->mask) > 1 ? kt_nth_dimm(self->mask, 0) : -1;
	kt_dimm_node(self->own, path, sizeof(path));
	self->fd = kt_open_path(path);
	ASSERT_LE(0, self->fd);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 3));
}

FIXTURE_TEARDOWN(confine)
{
	kt_ffn_free(&self->e);
	close(self->fd);
	close(self->domain);
}

#define NEED_OTHER() do { \
	if (self->other < 0) \
		SKIP(return, "needs two DIMMs"); \
} while (0)

TEST_F(confine, knows_its_dimm_only)
{
	struct moendp_query q, all;

	ASSERT_OK(kt_query(self->fd, self->own, &q));
	ASSERT_OK(kt_query(self->domain, self->own, &all));
	EXPECT_EQ(1U << self->own, q.dimm_mask);
	EXPECT_EQ(0, memcmp(q.domain, all.domain, sizeof(q.domain)));
	EXPECT_EQ(all.mem_bytes, q.mem_bytes);
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++) {
		if (d != self->own)
			EXPECT_EQ(-ENXIO, kt_query(self->fd, d, &q));
	}
}

TEST_F(confine, creates_on_its_dimm_only)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = H, .h_out = H, .rows = ROWS,
	};
	struct moendp_bo_info info;
	struct kt_place p;
	struct kt_bo bo;

	NEED_OTHER();
	p = kt_local(self->other, BLOCKS);
	EXPECT_EQ(-ENXIO, kt_weights(self->fd, &shape, &p, &bo));
	p = kt_spread(self->mask, BLOCKS);
	EXPECT_EQ(-ENXIO, kt_weights(self->fd, &shape, &p, &bo));
	EXPECT_EQ(-ENXIO, kt_io(self->fd, 1U << self->other, KT_PAGE, &bo));
	EXPECT_EQ(-ENXIO, kt_io(self->fd, self->mask, KT_PAGE, &bo));
	p = kt_local(self->own, BLOCKS);
	shape.allowed_mask = self->mask;
	EXPECT_EQ(-ENXIO, kt_weights(self->fd, &shape, &p, &bo));
	/* Nothing said about where it may go means: nowhere else. */
	shape.allowed_mask = 0;
	ASSERT_OK(kt_weights(self->fd, &shape, &p, &bo));
	ASSERT_OK(kt_info(&bo, &info));
	EXPECT_EQ(1U << self->own, info.allowed_mask);
}

TEST_F(confine, computes_on_its_dimm)
{
	struct kt_place p = kt_local(self->own, BLOCKS);
	double y[H], ref[H], bound[H];
	struct moendp_cmd c;
	struct kt_bo w, io;
	uint16_t x[H];
	uint32_t mask;

	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &w));
	ASSERT_OK(kt_io(self->fd, 1U << self->own, 2 * KT_PAGE, &io));
	ASSERT_OK(kt_map(&io, RW));
	kt_x_random(x, H, 4);
	kt_io_write(&io, 1U << self->own, 0, x, sizeof(x));
	kt_io_fill(&io, 1U << self->own, Y_OFF, KT_NAN_BYTE, 4 * H);
	c = (struct moendp_cmd){
		.weights = w.handle, .x_bo = io.handle, .y_bo = io.handle,
		.x_mask = 1U << self->own, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF,
		.ldx = 2 * H, .ldy = 4 * H,
	};
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(1U << self->own, mask);
	kt_ffn_ref(&self->e, 0, BLOCKS, x, ref, bound);
	kt_io_sum(&io, mask, Y_OFF, H, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, H));
	if (self->other >= 0) {
		c.x_mask |= 1U << self->other;
		EXPECT_EQ(-ENXIO, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
		c = (struct moendp_cmd){
			.x_bo = io.handle, .y_bo = io.handle, .x_mask = 1U << self->other,
			.count = 16, .tokens = 1, .rows_off = 64, .y_off = Y_OFF, .ldx = 64,
			.ldy = 64,
		};
		EXPECT_EQ(-ENXIO, kt_submit(self->fd, MOENDP_CMD_ACT, &c, NULL, NULL));
	}
}

/* By none of the ways there are to move an object. */
TEST_F(confine, migrates_nowhere_else)
{
	struct moendp_placement_migrate pm = { .size = sizeof(pm), .nr_ranges = 1 };
	struct moendp_cmd_migrate m = { .nr_ranges = 1 };
	struct kt_place p = kt_local(self->own, BLOCKS), there;
	struct moendp_bo_info info;
	struct kt_ring ring;
	struct kt_cqe cqe;
	struct kt_bo w;
	int placement, r;

	NEED_OTHER();
	there = kt_local(self->other, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &w));
	ASSERT_OK(kt_info(&w, &info));
	EXPECT_EQ(-ENXIO, kt_migrate(&w, &there));
	placement = kt_placement_fd(self->fd);
	ASSERT_LE(0, placement);
	pm.id = info.id;
	pm.ranges = (uintptr_t)there.r;
	r = kt_ioctl(placement, MOENDP_IOC_PLACEMENT_MIGRATE, &pm);
	EXPECT_EQ(-ENXIO, r);
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	m.handle = w.handle;
	m.ranges[0] = there.r[0];
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 0));
	m = (struct moendp_cmd_migrate){ .handle = w.handle, .dimm_mask = self->mask };
	ASSERT_OK(kt_ring_migrate(&ring, self->fd, &m, 1));
	ASSERT_EQ(2, kt_ring_submit(&ring));
	for (int i = 0; i < 2; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
		EXPECT_EQ(-ENXIO, cqe.res);
	}
	kt_ring_exit(&ring);
	ASSERT_OK(kt_where(&w, &there));
	EXPECT_EQ(self->own, there.r[0].dimm);
	/* Within its DIMM it may. */
	EXPECT_OK(kt_migrate(&w, &p));
	close(placement);
}

TEST_F(confine, does_not_see_the_objects_of_other_files)
{
	struct kt_place p = kt_local(self->own, BLOCKS);
	struct moendp_bo_info info;
	struct kt_bo w, io, ghost;

	/* Of the domain's node, and of another file of the DIMM's own node. */
	ASSERT_OK(kt_sealed_ffn(self->domain, &self->e, &p, &w));
	ASSERT_OK(kt_io(self->domain, self->mask, KT_PAGE, &io));
	ghost = w;
	ghost.fd = self->fd;
	EXPECT_EQ(-ENOENT, kt_info(&ghost, &info));
	EXPECT_EQ(-ENOENT, kt_destroy_handle(self->fd, w.handle));
	EXPECT_EQ(-EINVAL, kt_map(&ghost, PROT_READ));
	ghost = io;
	ghost.fd = self->fd;
	EXPECT_EQ(-EINVAL, kt_map(&ghost, RW));
}

/* One DIMM, one pool: what a confined file takes is missing in the domain, and the user pays. */
TEST_F(confine, shares_memory_and_quota_with_the_domain)
{
	struct moendp_query before, after;
	struct kt_bo io;

	ASSERT_OK(kt_query(self->domain, self->own, &before));
	ASSERT_OK(kt_io(self->fd, 1U << self->own, 16 * KT_PAGE, &io));
	ASSERT_OK(kt_query(self->domain, self->own, &after));
	EXPECT_EQ(16 * KT_PAGE, before.free_bytes - after.free_bytes);
	EXPECT_EQ(16 * KT_PAGE, after.used_bytes - before.used_bytes);
	if (self->other >= 0) {
		ASSERT_OK(kt_query(self->domain, self->other, &after));
		EXPECT_EQ(16 * KT_PAGE, after.used_bytes - before.used_bytes);
	}
}

TEST_HARNESS_MAIN
