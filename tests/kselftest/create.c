// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * create.c - objects that are refused, member by member, and what those that are not look like.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"

#define H	64
#define ROWS	64
#define BLOCKS	2

FIXTURE(create) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	struct moendp_range range;
};

FIXTURE_SETUP(create)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	ASSERT_NE(0, self->mask);
	self->dimm = kt_nth_dimm(self->mask, 0);
	self->range = kt_local(self->dimm, BLOCKS).r[0];
}

FIXTURE_TEARDOWN(create)
{
	close(self->fd);
}

typedef FIXTURE_DATA(create) create_t;

static void to_expert(struct moendp_bo_create *c)
{
	c->type = MOENDP_BO_EXPERT;
	c->h_in = H;
	c->h_out = H;
	c->rows = ROWS;
	c->nr_ranges = 1;
}

/* Expects BO_CREATE of the fixture's expert, changed by the statements, to fail. */
#define EXPECT_CREATE(want, ...) do { \
	struct moendp_bo_create c = { .size = sizeof(c) }; \
	struct moendp_range r[MOENDP_MAX_RANGES + 1] = { self->range }; \
	int got_; \
	\
	to_expert(&c); \
	c.ranges = (uintptr_t)r; \
	__VA_ARGS__; \
	got_ = kt_ioctl(self->fd, MOENDP_IOC_BO_CREATE, &c); \
	EXPECT_EQ(want, got_) { \
		TH_LOG("%s", #__VA_ARGS__); \
	} \
	if (!got_) \
		kt_destroy_handle(self->fd, c.handle); \
} while (0)

static void to_io(create_t *self, struct moendp_bo_create *c)
{
	memset(c, 0, sizeof(*c));
	c->size = sizeof(*c);
	c->type = MOENDP_BO_IO;
	c->dimm_mask = 1U << self->dimm;
	c->bytes = KT_PAGE;
}

static void to_matrix(struct moendp_bo_create *c)
{
	c->type = MOENDP_BO_MATRIX;
	c->h_out = 0;
}

TEST_F(create, checks_the_type)
{
	EXPECT_CREATE(-EINVAL, c.type = 0);
	EXPECT_CREATE(-EINVAL, c.type = 4);
	EXPECT_CREATE(-EINVAL, c.type = 0xffffffff);
	EXPECT_CREATE(0, to_matrix(&c));
	EXPECT_CREATE(0, to_io(self, &c));
}

TEST_F(create, checks_shapes)
{
	EXPECT_CREATE(-EINVAL, c.h_in = 0);
	EXPECT_CREATE(-EINVAL, c.h_out = 0);
	EXPECT_CREATE(-EINVAL, c.rows = 0);
	EXPECT_CREATE(-EINVAL, c.h_in = 65536);
	EXPECT_CREATE(-EINVAL, c.h_out = 65536);
	EXPECT_CREATE(-EINVAL, c.h_in = 0xffffffff);
	EXPECT_CREATE(-EINVAL, c.h_out = 0xffffffff);
	EXPECT_CREATE(-EINVAL, c.h_in = 0x80000000);
	EXPECT_CREATE(-EINVAL, c.rows = 0xffffffff);
	EXPECT_CREATE(-EINVAL, c.rows = 0xffffffff; r[0].nr_blocks = 0x08000000);
	EXPECT_CREATE(-EINVAL, to_matrix(&c); c.rows = 0);
	EXPECT_CREATE(-EINVAL, to_matrix(&c); c.h_in = 0);
	/* Neither has to be a multiple of anything. */
	EXPECT_CREATE(0, c.h_in = 1; c.h_out = 1; c.rows = 33);
	EXPECT_CREATE(0, c.h_in = 100; c.h_out = 65);
	EXPECT_CREATE(0, to_matrix(&c); c.h_in = 1; c.rows = 33);
}

TEST_F(create, checks_unused_members)
{
	EXPECT_CREATE(-EINVAL, c.dimm_mask = 1U << self->dimm);
	EXPECT_CREATE(-EINVAL, c.bytes = KT_PAGE);
	EXPECT_CREATE(-EINVAL, to_matrix(&c); c.h_out = 1);
	EXPECT_CREATE(-EINVAL, to_matrix(&c); c.dimm_mask = 1U << self->dimm);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.h_in = 1);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.h_out = 1);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.rows = 1);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.allowed_mask = 1U << self->dimm);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.ranges = (uintptr_t)r);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.nr_ranges = 1);
}

TEST_F(create, checks_ranges)
{
	unsigned int absent = kt_nth_dimm(~self->mask, 0);

	EXPECT_CREATE(-EINVAL, c.nr_ranges = 0);
	EXPECT_CREATE(-EINVAL, c.nr_ranges = MOENDP_MAX_RANGES + 1);
	EXPECT_CREATE(-EINVAL, c.nr_ranges = 0xffffffff);
	EXPECT_CREATE(-EFAULT, c.ranges = 0);
	EXPECT_CREATE(-EFAULT, c.ranges = (uint64_t)-4096);
	EXPECT_CREATE(-EINVAL, r[0].nr_blocks = 0);
	EXPECT_CREATE(-EINVAL, r[0].nr_blocks = BLOCKS - 1);
	EXPECT_CREATE(-EINVAL, r[0].nr_blocks = BLOCKS + 1);
	EXPECT_CREATE(-EINVAL, r[0].nr_blocks = 0xffffffff);
	EXPECT_CREATE(-EINVAL, c.nr_ranges = 2);	/* the second is empty */
	EXPECT_CREATE(-EINVAL, c.nr_ranges = 2; r[1] = r[0]);
	/* Sums to 2 in 32 bits. */
	EXPECT_CREATE(-EINVAL, c.nr_ranges = 2; r[1] = r[0]; r[0].nr_blocks = 0xffffffff;
		      r[1].nr_blocks = 3);
	EXPECT_CREATE(0, c.nr_ranges = 2; r[0].nr_blocks = 1; r[1] = r[0]);
	EXPECT_CREATE(-ENODEV, r[0].dimm = absent);
	EXPECT_CREATE(-ENXIO, r[0].dimm = MOENDP_MAX_DIMMS);
	EXPECT_CREATE(-ENXIO, r[0].dimm = 0xffffffff);
}

TEST_F(create, checks_masks)
{
	uint32_t others = self->mask & ~(1U << self->dimm);
	unsigned int absent = kt_nth_dimm(~self->mask, 0);

	EXPECT_CREATE(0, c.allowed_mask = 1U << self->dimm);
	EXPECT_CREATE(0, c.allowed_mask = self->mask);
	if (others)
		EXPECT_CREATE(-EPERM, c.allowed_mask = others);
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.dimm_mask = 0);
	EXPECT_CREATE(-ENODEV, to_io(self, &c); c.dimm_mask |= 1U << absent);
	EXPECT_CREATE(0, to_io(self, &c); c.dimm_mask = self->mask);
}

TEST_F(create, checks_io_sizes)
{
	struct moendp_query q;
	struct kt_bo bo;

	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_CREATE(-EINVAL, to_io(self, &c); c.bytes = 0);
	EXPECT_CREATE(-ENOSPC, to_io(self, &c); c.bytes = q.mem_bytes + KT_PAGE);
	/* More than fits into 64 bits once rounded or multiplied: no room, or never right. */
	for (uint64_t bytes = 1ULL << 63; bytes; bytes = bytes >> 63 ? -1ULL : 0) {
		int r = kt_io(self->fd, self->mask, bytes, &bo);

		EXPECT_TRUE(r == -EINVAL || r == -ENOSPC) {
			TH_LOG("%#llx bytes gave %d", (unsigned long long)bytes, r);
		}
		if (bytes == -1ULL)
			break;
	}
	/* A replica need not be whole pages; the mapping is. */
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 1, &bo));
	EXPECT_LE(1, bo.stride);
	EXPECT_EQ(0, bo.stride % KT_PAGE);
	EXPECT_OK(kt_destroy(&bo));
}

TEST_F(create, answers_with_the_layout)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct kt_bo bo, other;

	/* 128 * roundup(100, 64) + 64 * roundup(130, 64), by hand. */
	ASSERT_OK(kt_expert(self->fd, 100, 130, 36, &p, &bo));
	EXPECT_EQ(28672, bo.stride);
	EXPECT_EQ(2 * 28672, bo.bytes);
	EXPECT_OK(kt_destroy(&bo));
	ASSERT_OK(kt_matrix(self->fd, 100, 36, &p, &bo));
	EXPECT_EQ(8192, bo.stride);
	EXPECT_EQ(2 * 8192, bo.bytes);
	EXPECT_NE(0, bo.handle);
	EXPECT_EQ(0, bo.map_offset % KT_PAGE);
	/* Objects do not overlap in what mmap() names. */
	ASSERT_OK(kt_matrix(self->fd, 100, 36, &p, &other));
	EXPECT_TRUE(other.map_offset >= bo.map_offset + bo.bytes ||
		    other.map_offset + other.bytes <= bo.map_offset);
	EXPECT_OK(kt_destroy(&other));
	EXPECT_OK(kt_destroy(&bo));
}

TEST_F(create, info_tells_what_was_created)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = 100, .h_out = 65, .rows = 36,
		.cookie = 0xfedcba9876543210ULL, .allowed_mask = self->mask,
	};
	struct kt_place p = { .nr = 2, .r = { { self->dimm, 1 }, { self->dimm, 1 } } };
	struct moendp_bo_info info = { .size = sizeof(info) };
	struct kt_place where;
	struct kt_bo bo, io;

	ASSERT_OK(kt_weights(self->fd, &shape, &p, &bo));
	ASSERT_OK(kt_info(&bo, &info));
	EXPECT_EQ(MOENDP_BO_EXPERT, info.type);
	EXPECT_EQ(shape.cookie, info.cookie);
	EXPECT_EQ(100, info.h_in);
	EXPECT_EQ(65, info.h_out);
	EXPECT_EQ(36, info.rows);
	EXPECT_EQ(0, info.state);
	EXPECT_EQ(bo.bytes, info.bytes);
	EXPECT_EQ(bo.stride, info.stride);
	EXPECT_EQ(bo.map_offset, info.map_offset);
	EXPECT_EQ(0, info.moves);
	EXPECT_EQ(self->mask, info.allowed_mask);
	EXPECT_EQ(1U << self->dimm, info.dimm_mask);
	EXPECT_LE(1, info.nr_ranges);
	EXPECT_OK(kt_seal(&bo));
	ASSERT_OK(kt_info(&bo, &info));
	EXPECT_EQ(MOENDP_BO_STATE_SEALED, info.state);
	/* The ranges, whether or not the neighbours were joined, hold both blocks in order. */
	ASSERT_OK(kt_where(&bo, &where));
	EXPECT_EQ(2, where.r[0].nr_blocks + (where.nr == 2 ? where.r[1].nr_blocks : 0));
	EXPECT_EQ(self->dimm, where.r[0].dimm);

	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 4 * KT_PAGE, &io));
	EXPECT_OK(kt_info(&io, &info));
	EXPECT_EQ(MOENDP_BO_IO, info.type);
	EXPECT_EQ(1U << self->dimm, info.dimm_mask);
	EXPECT_EQ(0, info.h_in | info.h_out | info.rows);
}

TEST_HARNESS_MAIN
