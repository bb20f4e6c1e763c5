// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * handles.c - handles name objects of one open file, of one type, until they are destroyed.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"

#define H	64
#define ROWS	32
#define Y_OFF	KT_PAGE

FIXTURE(handles) {
	int fd;
	unsigned int dimm;
	struct kt_bo expert;
	struct kt_bo unsealed;
	struct kt_bo matrix;
	struct kt_bo io;
};

FIXTURE_SETUP(handles)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->dimm = kt_nth_dimm(kt_dimm_mask(self->fd), 0);
	p = kt_local(self->dimm, kt_blocks(ROWS));
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &self->expert));
	ASSERT_OK(kt_seal(&self->expert));
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &self->unsealed));
	ASSERT_OK(kt_matrix(self->fd, H, ROWS, &p, &self->matrix));
	ASSERT_OK(kt_seal(&self->matrix));
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 2 * KT_PAGE, &self->io));
}

FIXTURE_TEARDOWN(handles)
{
	close(self->fd);
}

static struct moendp_cmd ffn(uint32_t weights, uint32_t x, uint32_t y, unsigned int dimm)
{
	struct moendp_cmd c = {
		.weights = weights, .x_bo = x, .y_bo = y, .x_mask = 1U << dimm, .count = 1,
		.tokens = 1, .y_off = Y_OFF, .ldx = 2 * H, .ldy = 4 * H,
	};

	return c;
}

static int by_handle(int fd, unsigned long nr, uint32_t handle)
{
	struct moendp_bo_info i = { .size = sizeof(i), .handle = handle };
	struct moendp_bo_seal s = { .size = sizeof(s), .handle = handle };
	struct moendp_bo_destroy d = { .size = sizeof(d), .handle = handle };

	switch (nr) {
	case MOENDP_IOC_BO_INFO:
		return kt_ioctl(fd, nr, &i);
	case MOENDP_IOC_BO_SEAL:
		return kt_ioctl(fd, nr, &s);
	default:
		return kt_ioctl(fd, nr, &d);
	}
}

/* Every call that takes a handle must not know this one. */
static void expect_unknown(struct __test_metadata *_metadata, int fd, uint32_t bad,
			   const FIXTURE_DATA(handles) *self)
{
	struct kt_place p = kt_local(self->dimm, 1);
	struct kt_bo ghost = { .fd = fd, .handle = bad };
	struct moendp_cmd c;

	EXPECT_EQ(-ENOENT, by_handle(fd, MOENDP_IOC_BO_INFO, bad));
	EXPECT_EQ(-ENOENT, by_handle(fd, MOENDP_IOC_BO_SEAL, bad));
	EXPECT_EQ(-ENOENT, by_handle(fd, MOENDP_IOC_BO_DESTROY, bad));
	EXPECT_EQ(-ENOENT, kt_migrate(&ghost, &p));
	if (fd != self->fd)
		return;
	c = ffn(bad, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-ENOENT, kt_submit(fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->expert.handle, bad, self->io.handle, self->dimm);
	EXPECT_EQ(-ENOENT, kt_submit(fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->expert.handle, self->io.handle, bad, self->dimm);
	EXPECT_EQ(-ENOENT, kt_submit(fd, MOENDP_CMD_FFN, &c, NULL, NULL));
}

TEST_F(handles, zero_is_ENOENT)
{
	expect_unknown(_metadata, self->fd, 0, self);
}

TEST_F(handles, never_given_is_ENOENT)
{
	expect_unknown(_metadata, self->fd, 0x7ffffff0, self);
	expect_unknown(_metadata, self->fd, 0xffffffff, self);
}

TEST_F(handles, destroyed_is_ENOENT)
{
	uint32_t handle;
	struct kt_bo bo;

	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
	handle = bo.handle;
	ASSERT_OK(kt_destroy(&bo));
	expect_unknown(_metadata, self->fd, handle, self);
}

TEST_F(handles, of_another_open_file_is_ENOENT)
{
	struct kt_place p = kt_local(self->dimm, 1);
	int other = kt_open();
	struct kt_bo mine, ghost;
	struct moendp_cmd c;

	ASSERT_LE(0, other);
	/* The other file has no object at all. */
	expect_unknown(_metadata, other, self->expert.handle, self);
	expect_unknown(_metadata, other, self->io.handle, self);
	/* It has one of its own, and the IO objects are still not its. */
	ASSERT_OK(kt_expert(other, H, H, ROWS, &p, &mine));
	ASSERT_OK(kt_seal(&mine));
	c = ffn(mine.handle, 0x7ffffff0, 0x7ffffff0, self->dimm);
	EXPECT_EQ(-ENOENT, kt_submit(other, MOENDP_CMD_FFN, &c, NULL, NULL));
	/* Nor can it map what it did not create. */
	ghost = self->io;
	ghost.fd = other;
	EXPECT_EQ(-EINVAL, kt_map(&ghost, PROT_READ | PROT_WRITE));
	close(other);
	EXPECT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
}

TEST_F(handles, of_the_wrong_type_is_EBADF)
{
	struct kt_place p = kt_local(self->dimm, 1);
	struct moendp_cmd c;

	EXPECT_EQ(-EBADF, kt_seal(&self->io));
	EXPECT_EQ(-EBADF, kt_migrate(&self->io, &p));
	EXPECT_EQ(-EBADF, kt_migrate(&self->unsealed, &p));

	c = ffn(self->io.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->unsealed.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->matrix.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->expert.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_GEMV, &c, NULL, NULL));
	c = ffn(self->expert.handle, self->expert.handle, self->io.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->expert.handle, self->io.handle, self->matrix.handle, self->dimm);
	EXPECT_EQ(-EBADF, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	/* And with the right ones all is well. */
	c = ffn(self->expert.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = ffn(self->matrix.handle, self->io.handle, self->io.handle, self->dimm);
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_GEMV, &c, NULL, NULL));
}

TEST_F(handles, destroyed_twice_is_ENOENT_once)
{
	struct kt_bo bo;

	for (int i = 0; i < 50; i++) {
		ASSERT_OK(kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
		ASSERT_EQ(0, kt_destroy_handle(self->fd, bo.handle));
		ASSERT_EQ(-ENOENT, kt_destroy_handle(self->fd, bo.handle));
	}
}

/* The handle goes at once; what is mapped stays readable, writable and accounted for. */
TEST_F(handles, destroyed_while_mapped_lives_until_munmap)
{
	struct kt_free before;
	struct moendp_query q;
	uint8_t *map;

	ASSERT_OK(kt_destroy(&self->unsealed));
	ASSERT_OK(kt_free_read(self->fd, &before));
	struct kt_bo bo;

	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 4 * KT_PAGE, &bo));
	ASSERT_OK(kt_map(&bo, PROT_READ | PROT_WRITE));
	map = bo.map;
	map[0] = 1;
	ASSERT_EQ(0, kt_destroy_handle(self->fd, bo.handle));
	for (size_t i = 0; i < bo.map_bytes; i += KT_PAGE) {
		map[i] = i >> 12 | 0x40;
		EXPECT_EQ((i >> 12 | 0x40), map[i]);
	}
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_GT(before.free_bytes[self->dimm], q.free_bytes) {
		TH_LOG("memory that is still mapped was given back");
	}
	ASSERT_EQ(0, munmap(map, bo.map_bytes));
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
}

struct race {
	int fd;
	unsigned int dimm;
	uint32_t io;
	atomic_uint handle;
	atomic_bool stop;
	atomic_uint computed;
	atomic_uint missed;
	atomic_int wrong;
};

static void *submit_in_a_loop(void *arg)
{
	struct race *race = arg;

	while (!race->stop) {
		struct moendp_cmd c = ffn(race->handle, race->io, race->io, race->dimm);
		int r = kt_submit(race->fd, MOENDP_CMD_FFN, &c, NULL, NULL);

		if (!r)
			race->computed++;
		else if (r == -ENOENT)
			race->missed++;
		else if (r != -EBADF)	/* the handle was given again and is not sealed yet */
			race->wrong = r;
	}
	return NULL;
}

TEST_F(handles, destroy_racing_submit)
{
	struct race race = { .fd = self->fd, .dimm = self->dimm, .io = self->io.handle };
	struct kt_place p = kt_local(self->dimm, 1);
	const int rounds = 400 / kt_slow() + 10;
	struct kt_free before;
	pthread_t threads[2];

	ASSERT_OK(kt_free_read(self->fd, &before));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, submit_in_a_loop, &race));
	for (int i = 0; i < rounds; i++) {
		struct kt_bo bo;

		ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
		ASSERT_OK(kt_seal(&bo));
		race.handle = bo.handle;
		if (i & 1)
			sched_yield();
		ASSERT_OK(kt_destroy(&bo));
	}
	/* On a busy machine the others may hardly have run: let them meet a live object. */
	race.handle = self->expert.handle;
	for (int i = 0; i < 500 && !race.computed; i++)
		kt_sleep_ms(10);
	race.stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(0, race.wrong);
	EXPECT_LT(0, race.computed);
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000 * kt_slow()));
}

static void *destroy_them(void *arg)
{
	struct race *race = arg;
	long gone = 0;

	while (!race->stop) {
		uint32_t handle = race->handle;

		if (handle && !kt_destroy_handle(race->fd, handle))
			gone++;
	}
	return (void *)gone;
}

/* Of two that destroy the same handle, exactly one succeeds. */
TEST_F(handles, destroy_racing_destroy)
{
	struct race race = { .fd = self->fd };
	const int rounds = 400 / kt_slow() + 10;
	struct kt_free before;
	pthread_t threads[2];
	long destroyed = 0;
	struct kt_bo bo;
	void *n;

	ASSERT_OK(kt_free_read(self->fd, &before));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, destroy_them, &race));
	for (int i = 0; i < rounds; i++) {
		struct moendp_bo_info info;

		ASSERT_OK(kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
		race.handle = bo.handle;
		for (int spin = 0; !kt_info(&bo, &info); spin++)
			ASSERT_LT(spin, 1000000);
		race.handle = 0;
	}
	race.stop = true;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &n);
		destroyed += (long)n;
	}
	EXPECT_EQ(rounds, destroyed);
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
}

TEST_F(handles, close_gives_everything_back)
{
	struct kt_place p = kt_local(self->dimm, 4);
	struct kt_free before;
	struct kt_bo bo;
	int other;

	ASSERT_OK(kt_free_read(self->fd, &before));
	other = kt_open();
	ASSERT_LE(0, other);
	for (int i = 0; i < 10; i++) {
		ASSERT_OK(kt_expert(other, H, H, 128, &p, &bo));
		if (i & 1)
			ASSERT_OK(kt_seal(&bo));
		ASSERT_OK(kt_io(other, 1U << self->dimm, KT_PAGE, &bo));
	}
	ASSERT_EQ(0, close(other));
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
}

/* An open file is one context, wherever its descriptor goes. */
TEST_F(handles, dup_and_fork_share_the_context)
{
	struct moendp_bo_info info;
	struct kt_bo bo = self->io;
	int status;
	pid_t pid;

	bo.fd = dup(self->fd);
	ASSERT_LE(0, bo.fd);
	EXPECT_OK(kt_info(&bo, &info));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(kt_info(&self->io, &info) ? 1 :
		      kt_destroy_handle(self->fd, bo.handle) ? 2 : 0);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(-ENOENT, kt_info(&bo, &info));
}

static int send_fd(int sock, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { "", 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(sock, &msg, 0) == 1 ? 0 : -errno;
}

static int receive_fd(int sock)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&msg))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

/* A process that is passed the descriptor maps, computes and keeps the objects alive. */
TEST_F(handles, descriptor_passed_by_SCM_RIGHTS_works)
{
	struct kt_free before, now;
	struct moendp_cmd c;
	struct kt_bo bo;
	int sock[2], other, status;
	pid_t pid;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	ASSERT_OK(kt_free_read(self->fd, &before));
	/* Forked before the file exists: the child can have it by the message only. */
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		char byte;

		close(sock[0]);
		close(self->fd);
		other = receive_fd(sock[1]);
		if (other < 0 || recv(sock[1], &bo, sizeof(bo), 0) != sizeof(bo))
			_exit(1);
		bo.fd = other;
		if (kt_map(&bo, PROT_READ | PROT_WRITE) || bo.map[3] != 0x77)
			_exit(2);
		bo.map[5] = 0x78;
		if (send(sock[1], "", 1, 0) != 1 || recv(sock[1], &byte, 1, 0) != 1)
			_exit(3);
		_exit(bo.map[5] == 0x78 && !kt_unmap(&bo) && !kt_destroy(&bo) ? 0 : 4);
	}
	close(sock[1]);
	other = kt_open();
	ASSERT_LE(0, other);
	ASSERT_OK(kt_io(other, 1U << self->dimm, KT_PAGE, &bo));
	ASSERT_OK(kt_map(&bo, PROT_READ | PROT_WRITE));
	bo.map[3] = 0x77;
	ASSERT_OK(send_fd(sock[0], other));
	ASSERT_EQ(sizeof(bo), send(sock[0], &bo, sizeof(bo), 0));
	ASSERT_EQ(1, recv(sock[0], &c, 1, 0));
	EXPECT_EQ(0x78, bo.map[5]);
	/* Our descriptor goes; the child's keeps the object. */
	ASSERT_OK(kt_unmap(&bo));
	close(other);
	ASSERT_OK(kt_free_read(self->fd, &now));
	EXPECT_GT(before.free_bytes[self->dimm], now.free_bytes[self->dimm]);
	ASSERT_EQ(1, send(sock[0], "", 1, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
}

TEST_HARNESS_MAIN
