// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * abi.c - the rules that hold for every ioctl: sizes, flags, reserved members, pointers, unknown
 * calls; and what the calls that describe things say. (BO_CREATE's members: create.c.)
 *
 * One table has a line for each call; each rule is one test that walks over the table.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"

#define H	64
#define ROWS	64
#define BLOCKS	2

FIXTURE(abi) {
	int fd;
	int placement;
	unsigned int dimm;
	uint32_t mask;
	struct kt_bo sealed;
	struct kt_bo unsealed;
	struct kt_bo matrix;
	struct kt_bo io;
	struct moendp_range range;
	struct moendp_range out_ranges[4];
	struct moendp_placement_entry entries[8];
	uint64_t id;
};

FIXTURE_SETUP(abi)
{
	struct moendp_bo_info info;
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	ASSERT_NE(0, self->mask);
	self->dimm = kt_nth_dimm(self->mask, 0);
	p = kt_local(self->dimm, BLOCKS);
	self->range = p.r[0];
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &self->sealed));
	ASSERT_OK(kt_seal(&self->sealed));
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &self->unsealed));
	ASSERT_OK(kt_matrix(self->fd, H, ROWS, &p, &self->matrix));
	ASSERT_OK(kt_seal(&self->matrix));
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 4 * KT_PAGE, &self->io));
	self->placement = kt_placement_fd(self->fd);
	ASSERT_LE(0, self->placement);
	ASSERT_OK(kt_info(&self->sealed, &info));
	self->id = info.id;
}

FIXTURE_TEARDOWN(abi)
{
	close(self->placement);
	close(self->fd);
}

typedef FIXTURE_DATA(abi) abi_t;

/* ---- the table ------------------------------------------------------------------------------ */

struct member {
	unsigned int offset;
	unsigned int bytes;
};

#define M(type, name)	{ offsetof(struct type, name), sizeof(((struct type *)0)->name) }

struct call {
	const char *name;
	unsigned long nr;
	unsigned int bytes;
	/* Makes a structure that is right; prepares what the call consumes. */
	void (*fill)(abi_t *self, void *arg);
	/* Takes back what a call that succeeded has made. */
	void (*undo)(abi_t *self, void *arg);
	bool on_placement;
	bool writes_back;
	struct member reserved[4];
};

static void fill_query(abi_t *self, void *arg)
{
	struct moendp_query *q = arg;

	q->dimm = self->dimm;
}

static void fill_create(abi_t *self, void *arg)
{
	struct moendp_bo_create *c = arg;

	c->type = MOENDP_BO_EXPERT;
	c->h_in = H;
	c->h_out = H;
	c->rows = ROWS;
	c->ranges = (uintptr_t)&self->range;
	c->nr_ranges = 1;
}

static void undo_create(abi_t *self, void *arg)
{
	struct moendp_bo_create *c = arg;

	kt_destroy_handle(self->fd, c->handle);
}

static void fill_destroy(abi_t *self, void *arg)
{
	struct moendp_bo_destroy *d = arg;
	struct kt_bo bo;

	if (!kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo))
		d->handle = bo.handle;
}

static void undo_destroy(abi_t *self, void *arg)
{
	struct moendp_bo_destroy *d = arg;

	kt_destroy_handle(self->fd, d->handle);
}

static void fill_info(abi_t *self, void *arg)
{
	struct moendp_bo_info *i = arg;

	i->handle = self->sealed.handle;
	i->ranges = (uintptr_t)self->out_ranges;
	i->nr_ranges = 4;
}

static void fill_seal(abi_t *self, void *arg)
{
	struct moendp_bo_seal *s = arg;

	s->handle = self->sealed.handle;
}

static void fill_migrate(abi_t *self, void *arg)
{
	struct moendp_migrate *m = arg;

	m->handle = self->sealed.handle;
	m->ranges = (uintptr_t)&self->range;
	m->nr_ranges = 1;
}

static void fill_submit(abi_t *self, void *arg)
{
	struct moendp_submit *s = arg;

	s->op = MOENDP_CMD_FFN;
	s->cmd.weights = self->sealed.handle;
	s->cmd.x_bo = self->io.handle;
	s->cmd.y_bo = self->io.handle;
	s->cmd.x_mask = 1U << self->dimm;
	s->cmd.count = BLOCKS;
	s->cmd.tokens = 1;
	s->cmd.y_off = KT_PAGE;
	s->cmd.ldx = 2 * H;
	s->cmd.ldy = 4 * H;
}

static void fill_nothing(abi_t *self, void *arg)
{
	(void)self;
	(void)arg;
}

static void undo_placement_fd(abi_t *self, void *arg)
{
	struct moendp_placement_fd *p = arg;

	(void)self;
	close(p->fd);
}

static void undo_revoke(abi_t *self, void *arg)
{
	(void)arg;
	close(self->placement);
	self->placement = kt_placement_fd(self->fd);
}

static void fill_list(abi_t *self, void *arg)
{
	struct moendp_placement_list *l = arg;

	l->entries = (uintptr_t)self->entries;
	l->nr_entries = ARRAY_SIZE(self->entries);
}

static void fill_placement_info(abi_t *self, void *arg)
{
	struct moendp_placement_info *i = arg;

	i->id = self->id;
	i->ranges = (uintptr_t)self->out_ranges;
	i->nr_ranges = 4;
}

static void fill_placement_migrate(abi_t *self, void *arg)
{
	struct moendp_placement_migrate *m = arg;

	m->id = self->id;
	m->ranges = (uintptr_t)&self->range;
	m->nr_ranges = 1;
}

#define CALL(call, type, ...) \
	{ .name = #call, .nr = MOENDP_IOC_##call, .bytes = sizeof(struct type), __VA_ARGS__ }

static const struct call calls[] = {
	CALL(QUERY, moendp_query, .fill = fill_query, .writes_back = true),
	CALL(BO_CREATE, moendp_bo_create, .fill = fill_create, .undo = undo_create,
	     .writes_back = true),
	CALL(BO_DESTROY, moendp_bo_destroy, .fill = fill_destroy, .undo = undo_destroy,
	     .reserved = { M(moendp_bo_destroy, rsvd) }),
	CALL(BO_INFO, moendp_bo_info, .fill = fill_info, .writes_back = true,
	     .reserved = { M(moendp_bo_info, rsvd) }),
	CALL(BO_SEAL, moendp_bo_seal, .fill = fill_seal,
	     .reserved = { M(moendp_bo_seal, rsvd) }),
	CALL(MIGRATE, moendp_migrate, .fill = fill_migrate, .writes_back = true),
	CALL(SUBMIT, moendp_submit, .fill = fill_submit, .writes_back = true),
	CALL(PLACEMENT_FD, moendp_placement_fd, .fill = fill_nothing, .undo = undo_placement_fd,
	     .writes_back = true, .reserved = { M(moendp_placement_fd, rsvd) }),
	CALL(PLACEMENT_REVOKE, moendp_placement_revoke, .fill = fill_nothing,
	     .undo = undo_revoke),
	CALL(PLACEMENT_LIST, moendp_placement_list, .fill = fill_list, .on_placement = true,
	     .writes_back = true),
	CALL(PLACEMENT_INFO, moendp_placement_info, .fill = fill_placement_info,
	     .on_placement = true, .writes_back = true,
	     .reserved = { M(moendp_placement_info, rsvd) }),
	CALL(PLACEMENT_MIGRATE, moendp_placement_migrate, .fill = fill_placement_migrate,
	     .on_placement = true, .writes_back = true,
	     .reserved = { M(moendp_placement_migrate, rsvd) }),
};

union arg {
	uint32_t size_flags[2];		/* size and flags lead every structure */
	uint8_t bytes[KT_PAGE];
};

static void prepare(abi_t *self, const struct call *c, union arg *arg)
{
	memset(arg, 0, sizeof(*arg));
	c->fill(self, arg);
	arg->size_flags[0] = c->bytes;
}

static int call_it(abi_t *self, const struct call *c, void *arg)
{
	return kt_ioctl(c->on_placement ? self->placement : self->fd, c->nr, arg);
}

static void undo(abi_t *self, const struct call *c, union arg *arg)
{
	if (c->undo)
		c->undo(self, arg);
}

/* Expects a result of a call, says which call it was, and leaves nothing behind. */
#define EXPECT_CALL(c, want, arg, fmt, ...) do { \
	int got_ = call_it(self, c, arg); \
	EXPECT_EQ(want, got_) { \
		TH_LOG("%s: " fmt, (c)->name, ##__VA_ARGS__); \
	} \
	if (got_ >= 0) \
		undo(self, c, arg); \
	else if ((c)->nr == MOENDP_IOC_BO_DESTROY) \
		undo(self, c, arg); \
} while (0)

#define for_each_call(c) \
	for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++)

TEST_F(abi, right_structure_is_accepted)
{
	union arg arg;

	for_each_call(c) {
		prepare(self, c, &arg);
		EXPECT_CALL(c, 0, &arg, "as it should be");
	}
}

TEST_F(abi, short_structure_is_EINVAL)
{
	union arg arg;

	for_each_call(c) {
		const unsigned int sizes[] = { 0, 1, 4, 7, c->bytes - 4, c->bytes - 1 };

		for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++) {
			prepare(self, c, &arg);
			arg.size_flags[0] = sizes[i];
			EXPECT_CALL(c, -EINVAL, &arg, "size %u of %u", sizes[i], c->bytes);
		}
	}
}

TEST_F(abi, long_structure_with_zero_tail_is_accepted)
{
	union arg arg;

	for_each_call(c) {
		const unsigned int more[] = { 1, 8, 256 };

		for (unsigned int i = 0; i < ARRAY_SIZE(more); i++) {
			prepare(self, c, &arg);
			arg.size_flags[0] = c->bytes + more[i];
			EXPECT_CALL(c, 0, &arg, "%u bytes longer", more[i]);
		}
	}
}

TEST_F(abi, long_structure_with_other_tail_is_E2BIG)
{
	union arg arg;

	for_each_call(c) {
		const unsigned int at[] = { 0, 7, 255 };

		for (unsigned int i = 0; i < ARRAY_SIZE(at); i++) {
			prepare(self, c, &arg);
			arg.size_flags[0] = c->bytes + 256;
			arg.bytes[c->bytes + at[i]] = 0x80;
			EXPECT_CALL(c, -E2BIG, &arg, "tail byte %u is not zero", at[i]);
		}
	}
}

TEST_F(abi, huge_size_is_refused)
{
	union arg arg;
	int r;

	for_each_call(c) {
		const unsigned int sizes[] = { 1U << 20, 0x7fffffff, 0xffffffff };

		for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++) {
			prepare(self, c, &arg);
			arg.size_flags[0] = sizes[i];
			r = call_it(self, c, &arg);
			/* Whether the tail is looked at first is the kernel's choice. */
			EXPECT_TRUE(r == -E2BIG || r == -EFAULT) {
				TH_LOG("%s: size %#x gave %d", c->name, sizes[i], r);
			}
			if (c->nr == MOENDP_IOC_BO_DESTROY)
				undo(self, c, &arg);
		}
	}
}

TEST_F(abi, undefined_flag_is_EINVAL)
{
	union arg arg;

	for_each_call(c) {
		for (unsigned int bit = 0; bit < 32; bit++) {
			prepare(self, c, &arg);
			arg.size_flags[1] = 1U << bit;
			EXPECT_CALL(c, -EINVAL, &arg, "flag bit %u", bit);
		}
	}
}

TEST_F(abi, reserved_member_is_EINVAL)
{
	unsigned int tried = 0;
	union arg arg;

	for_each_call(c) {
		for (const struct member *m = c->reserved; m->bytes; m++) {
			for (unsigned int bit = 0; bit < 8 * m->bytes; bit++) {
				prepare(self, c, &arg);
				arg.bytes[m->offset + bit / 8] |= 1 << bit % 8;
				EXPECT_CALL(c, -EINVAL, &arg, "bit %u of the member at %u", bit,
					    m->offset);
				tried++;
			}
		}
	}
	EXPECT_EQ(6 * 32, tried);
}

TEST_F(abi, bad_pointer_is_EFAULT)
{
	uint8_t *two = mmap(NULL, 2 * KT_PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	union arg arg;

	ASSERT_NE(MAP_FAILED, (void *)two);
	ASSERT_EQ(0, mprotect(two + KT_PAGE, KT_PAGE, PROT_NONE));
	for_each_call(c) {
		uint8_t *straddling = two + KT_PAGE - c->bytes + 4;

		EXPECT_EQ(-EFAULT, call_it(self, c, NULL)) {
			TH_LOG("%s: NULL", c->name);
		}
		EXPECT_EQ(-EFAULT, call_it(self, c, two + KT_PAGE)) {
			TH_LOG("%s: inaccessible", c->name);
		}
		EXPECT_EQ(-EFAULT, call_it(self, c, (void *)-4096L)) {
			TH_LOG("%s: the kernel's memory", c->name);
		}
		prepare(self, c, &arg);
		memcpy(straddling, &arg, c->bytes - 4);
		EXPECT_EQ(-EFAULT, call_it(self, c, straddling)) {
			TH_LOG("%s: the last four bytes inaccessible", c->name);
		}
		if (c->nr == MOENDP_IOC_BO_DESTROY)
			undo(self, c, &arg);
	}
}

/* The answer cannot be given: nothing may be left behind. */
TEST_F(abi, unwritable_answer_is_EFAULT_and_leaves_nothing)
{
	union arg *arg = mmap(NULL, KT_PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct kt_free before;
	int next_fd;

	ASSERT_NE(MAP_FAILED, (void *)arg);
	next_fd = dup(self->fd);
	close(next_fd);
	ASSERT_OK(kt_free_read(self->fd, &before));
	for_each_call(c) {
		if (!c->writes_back)
			continue;
		ASSERT_EQ(0, mprotect(arg, KT_PAGE, PROT_READ | PROT_WRITE));
		prepare(self, c, arg);
		ASSERT_EQ(0, mprotect(arg, KT_PAGE, PROT_READ));
		EXPECT_EQ(-EFAULT, call_it(self, c, arg)) {
			TH_LOG("%s: read-only structure", c->name);
		}
	}
	EXPECT_EQ(next_fd, dup(self->fd)) {
		TH_LOG("a file descriptor was left behind");
	}
	close(next_fd);
	EXPECT_OK(kt_free_wait(self->fd, &before, 2000));
}

TEST_F(abi, unknown_call_is_ENOTTY)
{
	const int sock = socket(AF_UNIX, SOCK_STREAM, 0);
	struct termios t;
	union arg arg;

	for (int node = 0; node < 2; node++) {
		int fd = node ? self->fd : self->placement;

		for (unsigned int nr = 0; nr < 256; nr++) {
			bool known = false;

			for_each_call(c)
				known |= c->nr == _IO(MOENDP_IOC_TYPE, nr) &&
					 c->on_placement == !node;
			if (known)
				continue;
			memset(&arg, 0, sizeof(arg));
			arg.size_flags[0] = 64;
			EXPECT_EQ(-ENOTTY, kt_ioctl(fd, _IO(MOENDP_IOC_TYPE, nr), &arg)) {
				TH_LOG("call %#x on a %s", nr, node ? "node" : "placement fd");
			}
		}
		EXPECT_EQ(-ENOTTY, kt_ioctl(fd, _IO(MOENDP_IOC_TYPE + 1, 0), &arg));
		EXPECT_EQ(-ENOTTY, kt_ioctl(fd, TCGETS, &t));
	}
	/* The right number with a direction or a size in it is another call. */
	for_each_call(c) {
		int fd = c->on_placement ? self->placement : self->fd;
		unsigned int nr = _IOC_NR(c->nr);

		prepare(self, c, &arg);
		EXPECT_EQ(-ENOTTY, kt_ioctl(fd, _IOWR(MOENDP_IOC_TYPE, nr, uint64_t), &arg));
		EXPECT_EQ(-ENOTTY, kt_ioctl(fd, _IOR(MOENDP_IOC_TYPE, nr, uint64_t), &arg));
		if (c->nr == MOENDP_IOC_BO_DESTROY)
			undo(self, c, &arg);
	}
	/* And ours on someone else's file. */
	for_each_call(c) {
		prepare(self, c, &arg);
		EXPECT_EQ(-ENOTTY, kt_ioctl(sock, c->nr, &arg));
		if (c->nr == MOENDP_IOC_BO_DESTROY)
			undo(self, c, &arg);
	}
	close(sock);
}

/* ---- values --------------------------------------------------------------------------------- */

TEST_F(abi, query_describes_the_file)
{
	struct moendp_query q;
	uint8_t none[16] = { 0 };

	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(sizeof(q), q.size);
	EXPECT_EQ(MOENDP_ABI_VERSION, q.abi);
	EXPECT_EQ(self->mask, q.dimm_mask);
	EXPECT_LT(0, q.max_tokens);
	EXPECT_NE(0, memcmp(none, q.domain, sizeof(none)));
	EXPECT_EQ(MOENDP_DIMM_READY, q.dimm_state);
	EXPECT_LT(0, q.mem_bytes);
	EXPECT_LT(0, q.free_bytes);
	EXPECT_LE(q.free_bytes, q.mem_bytes);
	EXPECT_LE(q.largest_free_bytes, q.free_bytes);
	EXPECT_LT(0, q.internal_mbps);
	EXPECT_LT(0, q.gflops);
	EXPECT_EQ(0, q.link_peers & (1U << self->dimm));
	EXPECT_EQ(0, q.features & ~(MOENDP_FEAT_COHERENT | MOENDP_FEAT_LINK));
	/* The fixture's objects: three weights and one IO object. */
	EXPECT_EQ(self->sealed.bytes + self->unsealed.bytes + self->matrix.bytes +
		  self->io.stride, q.used_bytes);
}

TEST_F(abi, query_of_other_dimms)
{
	struct moendp_query q;
	unsigned int absent = 0;

	EXPECT_EQ(-ENXIO, kt_query(self->fd, MOENDP_MAX_DIMMS, &q));
	EXPECT_EQ(-ENXIO, kt_query(self->fd, 0xffffffff, &q));
	for (unsigned int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++) {
		int r = kt_query(self->fd, dimm, &q);

		if (self->mask & (1U << dimm)) {
			EXPECT_EQ(0, r);
			continue;
		}
		absent++;
		/* A domain knows all that it may have; what is not there is said to be absent. */
		EXPECT_EQ(0, r);
		EXPECT_EQ(MOENDP_DIMM_ABSENT, q.dimm_state);
		EXPECT_EQ(self->mask, q.dimm_mask);
		EXPECT_EQ(0, q.mem_bytes);
		EXPECT_EQ(0, q.compute.commands);
	}
	EXPECT_LT(0, absent);
}

TEST_F(abi, info_array_that_is_too_short_is_EMSGSIZE)
{
	struct moendp_range out[4] = { { 0, 0 } };
	struct moendp_bo_info info = {
		.size = sizeof(info), .ranges = (uintptr_t)out, .nr_ranges = 0,
	};
	struct moendp_placement_info pinfo = {
		.size = sizeof(pinfo), .ranges = (uintptr_t)out, .nr_ranges = 0,
	};
	uint32_t others = self->mask & ~(1U << self->dimm);
	struct moendp_bo_info two;
	struct kt_place p;
	struct kt_bo bo;

	if (!others)
		SKIP(return, "needs two DIMMs");
	p = kt_spread(1U << self->dimm | (1U << kt_nth_dimm(others, 0)), BLOCKS);
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	ASSERT_OK(kt_info(&bo, &two));
	EXPECT_EQ(2, two.nr_ranges);
	info.handle = bo.handle;
	info.nr_ranges = 1;
	EXPECT_EQ(-EMSGSIZE, kt_ioctl(self->fd, MOENDP_IOC_BO_INFO, &info));
	EXPECT_EQ(2, info.nr_ranges);
	EXPECT_EQ(0, kt_ioctl(self->fd, MOENDP_IOC_BO_INFO, &info));
	EXPECT_EQ(p.r[0].dimm, out[0].dimm);
	EXPECT_EQ(p.r[1].dimm, out[1].dimm);
	EXPECT_EQ(1, out[1].nr_blocks);
	pinfo.id = two.id;
	pinfo.nr_ranges = 1;
	EXPECT_EQ(-EMSGSIZE, kt_ioctl(self->placement, MOENDP_IOC_PLACEMENT_INFO, &pinfo));
	EXPECT_EQ(2, pinfo.nr_ranges);
	EXPECT_EQ(0, kt_ioctl(self->placement, MOENDP_IOC_PLACEMENT_INFO, &pinfo));
	/* An array that cannot be written. */
	info.ranges = (uint64_t)-4096;
	info.nr_ranges = 4;
	EXPECT_EQ(-EFAULT, kt_ioctl(self->fd, MOENDP_IOC_BO_INFO, &info));
}

TEST_F(abi, migrate_checks_ranges)
{
	struct moendp_range r[MOENDP_MAX_RANGES + 1] = { self->range };
	struct moendp_migrate m = {
		.size = sizeof(m), .handle = self->sealed.handle, .ranges = (uintptr_t)r,
	};
	const struct { int want; unsigned int nr; unsigned int dimm; unsigned int blocks; } t[] = {
		{ -EINVAL, 0, self->dimm, BLOCKS },
		{ -EINVAL, MOENDP_MAX_RANGES + 1, self->dimm, BLOCKS },
		{ -EINVAL, 1, self->dimm, 0 },
		{ -EINVAL, 1, self->dimm, BLOCKS - 1 },
		{ -EINVAL, 1, self->dimm, BLOCKS + 1 },
		{ -EINVAL, 2, self->dimm, BLOCKS },
		{ -ENODEV, 1, kt_nth_dimm(~self->mask, 0), BLOCKS },
		{ -ENXIO, 1, MOENDP_MAX_DIMMS, BLOCKS },
		{ 0, 1, self->dimm, BLOCKS },
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(t); i++) {
		m.nr_ranges = t[i].nr;
		r[0].dimm = t[i].dimm;
		r[0].nr_blocks = t[i].blocks;
		EXPECT_EQ(t[i].want, kt_ioctl(self->fd, MOENDP_IOC_MIGRATE, &m)) {
			TH_LOG("case %u", i);
		}
	}
	m.nr_ranges = 1;
	m.ranges = 0;
	EXPECT_EQ(-EFAULT, kt_ioctl(self->fd, MOENDP_IOC_MIGRATE, &m));
}

/* Reads, writes and seeks are no way to a DIMM's memory. */
TEST_F(abi, node_has_no_read_or_write)
{
	char c = 0;

	EXPECT_EQ(-1, read(self->fd, &c, 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, write(self->fd, &c, 1));
	EXPECT_EQ(EINVAL, errno);
}

TEST_HARNESS_MAIN
