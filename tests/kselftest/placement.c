// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * placement.c - the right to place is not the right to read: what the holder of a placement file
 * descriptor can do, what it learns, and how its right ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H	64
#define ROWS	128
#define BLOCKS	4
#define RW	(PROT_READ | PROT_WRITE)

FIXTURE(placement) {
	int fd;			/* the owner */
	int holder;		/* the placement file descriptor */
	uint32_t mask;
	unsigned int dimm;
	int other;
	struct kt_bo w;
	uint64_t id;
};

FIXTURE_SETUP(placement)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = H, .h_out = H, .rows = ROWS,
		.cookie = 0x1122334455667788ULL,
	};
	struct moendp_bo_info info;
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, 0);
	self->other = kt_nth_dimm(self->mask, 1);
	p = kt_local(self->dimm, BLOCKS);
	ASSERT_OK(kt_weights(self->fd, &shape, &p, &self->w));
	ASSERT_OK(kt_seal(&self->w));
	ASSERT_OK(kt_info(&self->w, &info));
	self->id = info.id;
	self->holder = kt_placement_fd(self->fd);
	ASSERT_LE(0, self->holder);
}

FIXTURE_TEARDOWN(placement)
{
	close(self->holder);
	close(self->fd);
}

static int list(int holder, uint64_t *start, struct moendp_placement_entry *entries,
		unsigned int *nr, unsigned int *total)
{
	struct moendp_placement_list l = {
		.size = sizeof(l), .start = *start, .entries = (uintptr_t)entries,
		.nr_entries = *nr,
	};
	int r = kt_ioctl(holder, MOENDP_IOC_PLACEMENT_LIST, &l);

	*start = l.start;
	*nr = l.nr_entries;
	if (total)
		*total = l.total;
	return r;
}

/* A list from the beginning: also what tells poll() that its holder knows all. */
static int list_all(int holder, struct moendp_placement_entry *entries, unsigned int *nr)
{
	uint64_t start = 0;

	return list(holder, &start, entries, nr, NULL);
}

static int place(int holder, uint64_t id, const struct kt_place *p)
{
	struct moendp_placement_migrate m = {
		.size = sizeof(m), .id = id, .ranges = (uintptr_t)p->r, .nr_ranges = p->nr,
	};

	return kt_ioctl(holder, MOENDP_IOC_PLACEMENT_MIGRATE, &m);
}

static int events_of(int holder, int timeout_ms)
{
	struct pollfd p = { .fd = holder, .events = POLLIN | POLLOUT | POLLPRI };

	return poll(&p, 1, timeout_ms) < 0 ? -errno : p.revents;
}

#define NEED_OTHER() do { \
	if (self->other < 0) \
		SKIP(return, "needs two DIMMs"); \
} while (0)

/* ---- what it can do ------------------------------------------------------------------------- */

TEST_F(placement, is_close_on_exec)
{
	EXPECT_EQ(FD_CLOEXEC, fcntl(self->holder, F_GETFD) & FD_CLOEXEC);
}

TEST_F(placement, lists_sealed_weights_only)
{
	struct kt_place p = kt_spread(self->mask, 2 * BLOCKS), local = kt_local(self->dimm, BLOCKS);
	struct moendp_placement_entry e[8];
	struct moendp_bo_info info;
	struct kt_bo unsealed, io, matrix;
	unsigned int nr = 8, total = 0;
	uint64_t start = 0;

	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &local, &unsealed));
	ASSERT_OK(kt_io(self->fd, self->mask, KT_PAGE, &io));
	ASSERT_OK(kt_matrix(self->fd, H, 2 * ROWS, &p, &matrix));
	ASSERT_OK(kt_seal(&matrix));
	ASSERT_OK(kt_info(&matrix, &info));
	memset(e, 0, sizeof(e));
	ASSERT_OK(list(self->holder, &start, e, &nr, &total));
	ASSERT_EQ(2, nr);
	EXPECT_EQ(2, total);
	EXPECT_EQ(0, start);
	EXPECT_EQ(self->id, e[0].id);
	EXPECT_EQ(0x1122334455667788ULL, e[0].cookie);
	EXPECT_EQ(self->w.bytes, e[0].bytes);
	EXPECT_EQ(self->w.stride, e[0].block_bytes);
	EXPECT_EQ(BLOCKS, e[0].nr_blocks);
	EXPECT_EQ(1, e[0].nr_ranges);
	EXPECT_EQ(self->mask, e[0].allowed_mask & self->mask);
	EXPECT_EQ(1U << self->dimm, e[0].dimm_mask);
	EXPECT_EQ(MOENDP_BO_STATE_SEALED, e[0].state);
	EXPECT_EQ(MOENDP_BO_EXPERT, e[0].type);
	EXPECT_EQ(info.id, e[1].id);
	EXPECT_EQ(MOENDP_BO_MATRIX, e[1].type);
	EXPECT_EQ(2 * BLOCKS, e[1].nr_blocks);
	EXPECT_EQ(p.nr, e[1].nr_ranges);
	EXPECT_EQ(kt_place_mask(&p), e[1].dimm_mask);
}

TEST_F(placement, lists_in_pieces)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_placement_entry e[2];
	unsigned int nr, total, seen = 0;
	uint64_t start = 0, last = 0;
	struct kt_bo bo[6];

	for (int i = 0; i < 6; i++) {
		ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo[i]));
		ASSERT_OK(kt_seal(&bo[i]));
	}
	do {
		nr = 2;
		ASSERT_OK(list(self->holder, &start, e, &nr, &total));
		ASSERT_LE(1, nr);
		ASSERT_GE(2, nr);
		EXPECT_EQ(7, total);
		for (unsigned int i = 0; i < nr; i++) {
			EXPECT_LT(last, e[i].id);
			last = e[i].id;
		}
		seen += nr;
		ASSERT_GE(7, seen);
	} while (start);
	EXPECT_EQ(7, seen);
	/* An array of no entries still says how many there are. */
	nr = 0;
	start = 0;
	EXPECT_OK(list(self->holder, &start, NULL, &nr, &total));
	EXPECT_EQ(0, nr);
	EXPECT_EQ(7, total);
	/* An array that cannot be written. */
	nr = 2;
	start = 0;
	EXPECT_EQ(-EFAULT, list(self->holder, &start, (void *)-4096L, &nr, &total));
}

TEST_F(placement, ids_are_never_used_again)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	uint64_t last = self->id;
	struct moendp_bo_info info;
	struct kt_bo bo;

	for (int i = 0; i < 20; i++) {
		ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
		ASSERT_OK(kt_seal(&bo));
		ASSERT_OK(kt_info(&bo, &info));
		EXPECT_LT(last, info.id);
		last = info.id;
		ASSERT_OK(kt_destroy(&bo));
	}
}

TEST_F(placement, tells_ranges_and_moves)
{
	struct moendp_range r[8];
	struct moendp_placement_info i = {
		.size = sizeof(i), .id = self->id, .ranges = (uintptr_t)r, .nr_ranges = 8,
	};
	struct moendp_bo_info info;
	struct kt_place p;

	NEED_OTHER();
	p = kt_spread(1U << self->dimm | 1U << self->other, BLOCKS);
	EXPECT_EQ(0, place(self->holder, self->id, &p));
	ASSERT_EQ(0, kt_ioctl(self->holder, MOENDP_IOC_PLACEMENT_INFO, &i));
	ASSERT_EQ(2, i.nr_ranges);
	EXPECT_EQ(0, memcmp(r, p.r, 2 * sizeof(r[0])));
	ASSERT_OK(kt_info(&self->w, &info));
	EXPECT_EQ(1, info.moves);
	EXPECT_EQ(kt_place_mask(&p), info.dimm_mask);
}

TEST_F(placement, moves_by_io_uring)
{
	struct moendp_cmd_migrate m = { .id = self->id, .dimm_mask = self->mask };
	const struct { int want; struct moendp_cmd_migrate m; } bad[] = {
		{ -EINVAL, { .id = self->id, .dimm_mask = self->mask, .handle = self->w.handle } },
		{ -EINVAL, { .id = self->id, .dimm_mask = self->mask, .rsvd = 1 } },
		{ -EINVAL, { .id = self->id } },
		{ -ENOENT, { .id = self->id + 1000, .dimm_mask = self->mask } },
		{ -ENOENT, { .id = 0, .dimm_mask = self->mask } },
	};
	struct kt_place p = kt_spread(self->mask, BLOCKS);
	struct moendp_bo_info info;
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	for (unsigned int i = 0; i < ARRAY_SIZE(bad); i++) {
		ASSERT_OK(kt_ring_migrate(&ring, self->holder, &bad[i].m, i));
		ASSERT_EQ(1, kt_ring_submit(&ring));
		ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
		EXPECT_EQ(bad[i].want, cqe.res) {
			TH_LOG("case %u", i);
		}
	}
	ASSERT_OK(kt_ring_migrate(&ring, self->holder, &m, 8));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
	EXPECT_EQ(0, cqe.res);
	EXPECT_EQ(kt_place_mask(&p), cqe.dimm_mask);
	ASSERT_OK(kt_info(&self->w, &info));
	EXPECT_EQ(kt_place_mask(&p), info.dimm_mask);
	kt_ring_exit(&ring);
}

TEST_F(placement, names_sealed_objects_of_its_file_only)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_placement_info i = { .size = sizeof(i) };
	struct moendp_bo_info info;
	struct kt_bo unsealed, io, foreign;
	int stranger = kt_open();
	uint64_t ids[4];

	ASSERT_LE(0, stranger);
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &unsealed));
	ASSERT_OK(kt_io(self->fd, self->mask, KT_PAGE, &io));
	ASSERT_OK(kt_expert(stranger, H, H, ROWS, &p, &foreign));
	ASSERT_OK(kt_seal(&foreign));
	ASSERT_OK(kt_info(&unsealed, &info));
	ids[0] = info.id;
	ASSERT_OK(kt_info(&io, &info));
	ids[1] = info.id;
	ASSERT_OK(kt_info(&foreign, &info));
	ids[2] = info.id == self->id ? self->id + 1000 : info.id;
	ids[3] = 0;
	for (int n = 0; n < 4; n++) {
		i.id = ids[n];
		EXPECT_EQ(-ENOENT, kt_ioctl(self->holder, MOENDP_IOC_PLACEMENT_INFO, &i)) {
			TH_LOG("object %d", n);
		}
		EXPECT_EQ(-ENOENT, place(self->holder, ids[n], &p)) {
			TH_LOG("object %d", n);
		}
	}
	close(stranger);
}

TEST_F(placement, stays_within_the_allowed_mask)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = H, .h_out = H, .rows = ROWS,
		.allowed_mask = 1U << self->dimm,
	};
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_bo_info info;
	struct kt_bo bo;

	NEED_OTHER();
	ASSERT_OK(kt_weights(self->fd, &shape, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	ASSERT_OK(kt_info(&bo, &info));
	p = kt_local(self->other, BLOCKS);
	EXPECT_EQ(-EPERM, place(self->holder, info.id, &p));
	p = kt_spread(1U << self->dimm | 1U << self->other, BLOCKS);
	EXPECT_EQ(-EPERM, place(self->holder, info.id, &p));
	p = kt_local(self->dimm, BLOCKS);
	EXPECT_EQ(0, place(self->holder, info.id, &p));
}

/* ---- what it cannot do ---------------------------------------------------------------------- */

TEST_F(placement, cannot_read_write_or_map)
{
	char byte = 0;

	EXPECT_EQ(-1, read(self->holder, &byte, 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, write(self->holder, &byte, 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, KT_PAGE, PROT_READ, MAP_SHARED, self->holder,
				   self->w.map_offset));
	EXPECT_EQ(ENODEV, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, KT_PAGE, PROT_READ, MAP_SHARED, self->holder, 0));
	EXPECT_EQ(ENODEV, errno);
}

TEST_F(placement, cannot_compute_create_or_destroy)
{
	struct kt_bo io;
	struct moendp_cmd c = {
		.weights = self->w.handle, .x_mask = 1U << self->dimm, .count = BLOCKS,
		.tokens = 1, .y_off = KT_PAGE, .ldx = 2 * H, .ldy = 4 * H,
	};
	const uint32_t ops[] = { MOENDP_CMD_GEMV, MOENDP_CMD_ACT, MOENDP_CMD_FFN };
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_bo_info info;
	struct kt_bo bo, ghost = self->w;
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_io(self->fd, self->mask, 2 * KT_PAGE, &io));
	c.x_bo = io.handle;
	c.y_bo = io.handle;
	ghost.fd = self->holder;
	EXPECT_EQ(-ENOTTY, kt_submit(self->holder, MOENDP_CMD_FFN, &c, NULL, NULL));
	EXPECT_EQ(-ENOTTY, kt_expert(self->holder, H, H, ROWS, &p, &bo));
	EXPECT_EQ(-ENOTTY, kt_info(&ghost, &info));
	EXPECT_EQ(-ENOTTY, kt_destroy_handle(self->holder, self->w.handle));
	EXPECT_EQ(-ENOTTY, kt_migrate(&ghost, &p));
	EXPECT_EQ(-ENOTTY, kt_placement_fd(self->holder));
	EXPECT_EQ(-ENOTTY, kt_revoke(self->holder));
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	for (unsigned int i = 0; i < ARRAY_SIZE(ops); i++)
		EXPECT_EQ(-ENOTTY, kt_ring_one(&ring, self->holder, ops[i], &c, &cqe));
	EXPECT_EQ(-ENOTTY, kt_ring_one(&ring, self->holder, 77, &c, &cqe));
	kt_ring_exit(&ring);
	EXPECT_OK(kt_info(&self->w, &info));
}

/* Even a holder with the owner's descriptor numbers in mind has only what it was given. */
TEST_F(placement, works_in_another_process_without_the_file)
{
	struct kt_place p;
	int status;
	pid_t pid;

	NEED_OTHER();
	p = kt_local(self->other, BLOCKS);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		close(self->fd);
		if (setresgid(1001, 1001, 1001) || setresuid(1001, 1001, 1001))
			_exit(1);
		_exit(place(self->holder, self->id, &p) ? 2 : 0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	ASSERT_OK(kt_where(&self->w, &p));
	EXPECT_EQ(self->other, p.r[0].dimm);
}

/* ---- what it learns ------------------------------------------------------------------------- */

TEST_F(placement, poll_says_when_the_list_is_out_of_date)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_placement_entry e[8];
	unsigned int nr = 8;
	uint64_t start;
	struct kt_bo bo;

	ASSERT_OK(list_all(self->holder, e, &nr));
	EXPECT_EQ(0, events_of(self->holder, 0));
	/* An object that is not sealed is nobody's business. */
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
	EXPECT_EQ(0, events_of(self->holder, 0));
	ASSERT_OK(kt_seal(&bo));
	EXPECT_EQ(POLLIN, events_of(self->holder, 1000) & (POLLIN | POLLHUP));
	/* Polling again does not use it up, and a list from the middle neither. */
	start = self->id + 1;
	nr = 8;
	ASSERT_OK(list(self->holder, &start, e, &nr, NULL));
	EXPECT_EQ(POLLIN, events_of(self->holder, 0) & POLLIN);
	nr = 8;
	ASSERT_OK(list_all(self->holder, e, &nr));
	EXPECT_EQ(2, nr);
	EXPECT_EQ(0, events_of(self->holder, 0));
	/* The object's destruction. */
	ASSERT_OK(kt_destroy(&bo));
	EXPECT_EQ(POLLIN, events_of(self->holder, 1000) & POLLIN);
	nr = 8;
	ASSERT_OK(list_all(self->holder, e, &nr));
	EXPECT_EQ(1, nr);
	EXPECT_EQ(0, events_of(self->holder, 0));
	/* A migration by the owner. */
	if (self->other >= 0) {
		p = kt_local(self->other, BLOCKS);
		ASSERT_OK(kt_migrate(&self->w, &p));
		EXPECT_EQ(POLLIN, events_of(self->holder, 1000) & POLLIN);
	}
}

TEST_F(placement, each_holder_has_its_own_view)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	int second = kt_placement_fd(self->fd);
	struct moendp_placement_entry e[8];
	unsigned int nr = 8;
	struct kt_bo bo;

	ASSERT_LE(0, second);
	ASSERT_OK(list_all(self->holder, e, &nr));
	nr = 8;
	ASSERT_OK(list_all(second, e, &nr));
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	nr = 8;
	ASSERT_OK(list_all(self->holder, e, &nr));
	EXPECT_EQ(0, events_of(self->holder, 0));
	EXPECT_EQ(POLLIN, events_of(second, 0) & POLLIN);
	close(second);
}

/* ---- how it ends ---------------------------------------------------------------------------- */

static void expect_ended(struct __test_metadata *_metadata, int holder, uint64_t id,
			 unsigned int dimm)
{
	struct moendp_placement_info i = { .size = sizeof(i), .id = id };
	struct moendp_cmd_migrate m = { .id = id, .dimm_mask = 1U << dimm };
	struct kt_place p = kt_local(dimm, BLOCKS);
	struct moendp_placement_entry e[2];
	unsigned int nr = 2;
	struct kt_ring ring;
	struct kt_cqe cqe;

	EXPECT_EQ(POLLHUP, events_of(holder, 1000) & POLLHUP);
	EXPECT_EQ(-ENODEV, list_all(holder, e, &nr));
	EXPECT_EQ(-ENODEV, kt_ioctl(holder, MOENDP_IOC_PLACEMENT_INFO, &i));
	EXPECT_EQ(-ENODEV, place(holder, id, &p));
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	ASSERT_OK(kt_ring_migrate(&ring, holder, &m, 0));
	ASSERT_EQ(1, kt_ring_submit(&ring));
	ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000));
	EXPECT_EQ(-ENODEV, cqe.res);
	kt_ring_exit(&ring);
}

TEST_F(placement, ends_with_the_last_close_of_the_owner)
{
	int copy = dup(self->fd);

	ASSERT_LE(0, copy);
	close(self->fd);
	EXPECT_EQ(0, events_of(self->holder, 0) & POLLHUP);
	close(copy);
	expect_ended(_metadata, self->holder, self->id, self->dimm);
}

TEST_F(placement, ends_when_revoked)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	int second = kt_placement_fd(self->fd), third;

	ASSERT_LE(0, second);
	ASSERT_EQ(0, kt_revoke(self->fd));
	expect_ended(_metadata, self->holder, self->id, self->dimm);
	expect_ended(_metadata, second, self->id, self->dimm);
	/* A new one works, the old ones stay dead. */
	third = kt_placement_fd(self->fd);
	ASSERT_LE(0, third);
	EXPECT_EQ(0, place(third, self->id, &p));
	EXPECT_EQ(-ENODEV, place(self->holder, self->id, &p));
	close(second);
	close(third);
}

struct waiter {
	int holder;
	int revents;
	pthread_t thread;
};

static void *wait_for_hup(void *arg)
{
	struct waiter *w = arg;
	struct pollfd p = { .fd = w->holder, .events = 0 };

	if (poll(&p, 1, 20000) == 1)
		w->revents = p.revents;
	return NULL;
}

TEST_F(placement, who_polls_is_woken_by_the_end)
{
	struct waiter w = { .holder = self->holder };

	ASSERT_EQ(0, pthread_create(&w.thread, NULL, wait_for_hup, &w));
	kt_sleep_ms(100);
	ASSERT_EQ(0, kt_revoke(self->fd));
	pthread_join(w.thread, NULL);
	EXPECT_EQ(POLLHUP, w.revents & POLLHUP);
}

TEST_F(placement, holds_no_weights_alive)
{
	struct kt_free before;
	struct kt_place p = kt_local(self->dimm, 64);
	int owner, holder;
	struct kt_bo bo;

	ASSERT_OK(kt_free_read(self->fd, &before));
	owner = kt_open();
	ASSERT_LE(0, owner);
	ASSERT_OK(kt_expert(owner, H, H, 64 * 32, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	holder = kt_placement_fd(owner);
	ASSERT_LE(0, holder);
	/* The object goes though there is a holder ... */
	ASSERT_OK(kt_destroy(&bo));
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
	/* ... and so does the file. */
	ASSERT_OK(kt_expert(owner, H, H, 64 * 32, &p, &bo));
	ASSERT_OK(kt_seal(&bo));
	close(owner);
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
	EXPECT_EQ(POLLHUP, events_of(holder, 0) & POLLHUP);
	close(holder);
}

/* The owner's process dies with migrations of the holder under way. */
TEST_F(placement, owner_killed_while_the_holder_migrates)
{
	struct kt_place places[2];
	struct kt_free before;
	int sock[2], status, r = 0, holder, moves = 0;
	struct moendp_placement_entry e;
	unsigned int nr = 1;
	struct kt_bo bo;
	pid_t pid;

	NEED_OTHER();
	places[0] = kt_local(self->dimm, 64);
	places[1] = kt_local(self->other, 64);
	for (int round = 0; round < 5; round++) {
		union {
			char bytes[CMSG_SPACE(sizeof(int))];
			struct cmsghdr align;
		} control;
		char byte = 0;
		struct iovec iov = { &byte, 1 };
		struct msghdr msg = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			.msg_controllen = sizeof(control),
		};

		ASSERT_OK(kt_free_read(self->fd, &before));
		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			int owner = kt_open(), lent;
			struct cmsghdr *c;

			if (owner < 0 || kt_expert(owner, H, H, 64 * 32, &places[0], &bo) ||
			    kt_seal(&bo))
				_exit(1);
			lent = kt_placement_fd(owner);
			memset(&control, 0, sizeof(control));
			c = CMSG_FIRSTHDR(&msg);
			c->cmsg_level = SOL_SOCKET;
			c->cmsg_type = SCM_RIGHTS;
			c->cmsg_len = CMSG_LEN(sizeof(int));
			memcpy(CMSG_DATA(c), &lent, sizeof(lent));
			if (sendmsg(sock[1], &msg, 0) != 1)
				_exit(2);
			for (;;)
				pause();
		}
		ASSERT_EQ(1, recvmsg(sock[0], &msg, 0));
		memcpy(&holder, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(holder));
		ASSERT_OK(list_all(holder, &e, &nr));
		ASSERT_EQ(1, nr);
		for (int i = 0; i < 10000; i++) {
			r = place(holder, e.id, &places[!(i & 1)]);
			if (r)
				break;
			moves++;
			if (i == 3 + round)
				kill(pid, SIGKILL);
		}
		/* Lost objects answer as an ended file does; an unknown id while it ends. */
		EXPECT_TRUE(r == -ENODEV || r == -ENOENT) {
			TH_LOG("migration ended with %d", r);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(POLLHUP, events_of(holder, 5000) & POLLHUP);
		EXPECT_EQ(-ENODEV, place(holder, e.id, &places[0]));
		EXPECT_OK(kt_free_wait(self->fd, &before, 10000));
		close(holder);
		close(sock[0]);
		close(sock[1]);
	}
	EXPECT_LT(5, moves);
}

TEST_HARNESS_MAIN
