// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mmap.c - what can be mapped, how, and what mappings see: sealing, forks, migration, and that
 * nobody can pin a DIMM's pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ring.h"

#define H	64
#define ROWS	128
#define BLOCKS	4

FIXTURE(mmap) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	struct kt_bo io;
	struct kt_bo w;		/* unsealed */
};

FIXTURE_SETUP(mmap)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, 0);
	p = kt_spread(self->mask, BLOCKS);
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &self->w));
	ASSERT_OK(kt_io(self->fd, self->mask, 2 * KT_PAGE, &self->io));
}

FIXTURE_TEARDOWN(mmap)
{
	close(self->fd);
}

/* Errno of an mmap() that ought to fail; 0 when it does not. */
static int try_mmap(int fd, size_t bytes, int prot, int flags, uint64_t offset)
{
	void *p = mmap(NULL, bytes, prot, flags, fd, offset);

	if (p == MAP_FAILED)
		return -errno;
	munmap(p, bytes);
	return 0;
}

#define RW	(PROT_READ | PROT_WRITE)

TEST_F(mmap, whole_and_part_of_an_object)
{
	const struct kt_bo *bos[] = { &self->io, &self->w };

	for (int i = 0; i < 2; i++) {
		const struct kt_bo *bo = bos[i];

		EXPECT_EQ(0, try_mmap(self->fd, bo->map_bytes, RW, MAP_SHARED, bo->map_offset));
		EXPECT_EQ(0, try_mmap(self->fd, bo->map_bytes, PROT_READ, MAP_SHARED,
				      bo->map_offset));
		EXPECT_EQ(0, try_mmap(self->fd, KT_PAGE, RW, MAP_SHARED,
				      bo->map_offset + bo->map_bytes - KT_PAGE));
		EXPECT_EQ(0, try_mmap(self->fd, bo->map_bytes - KT_PAGE, RW, MAP_SHARED,
				      bo->map_offset + KT_PAGE));
	}
}

TEST_F(mmap, a_part_shows_the_same_bytes_as_the_whole)
{
	uint8_t *part;

	ASSERT_OK(kt_map(&self->w, RW));
	for (uint64_t off = 0; off < self->w.bytes; off += KT_PAGE)
		self->w.map[off + 8] = off / KT_PAGE + 1;
	for (uint64_t off = 0; off < self->w.bytes; off += KT_PAGE) {
		part = mmap(NULL, KT_PAGE, RW, MAP_SHARED, self->fd, self->w.map_offset + off);
		ASSERT_NE(MAP_FAILED, (void *)part);
		EXPECT_EQ(off / KT_PAGE + 1, part[8]);
		part[9] = 0x99;
		EXPECT_EQ(0x99, self->w.map[off + 9]);
		ASSERT_EQ(0, munmap(part, KT_PAGE));
	}
}

TEST_F(mmap, beyond_the_end_is_EINVAL)
{
	const struct kt_bo *bos[] = { &self->io, &self->w };

	for (int i = 0; i < 2; i++) {
		const struct kt_bo *bo = bos[i];
		const size_t n = bo->map_bytes;

		EXPECT_EQ(-EINVAL, try_mmap(self->fd, n + KT_PAGE, RW, MAP_SHARED, bo->map_offset));
		EXPECT_EQ(-EINVAL, try_mmap(self->fd, n + 1, RW, MAP_SHARED, bo->map_offset));
		EXPECT_EQ(-EINVAL, try_mmap(self->fd, 2 * n, RW, MAP_SHARED, bo->map_offset));
		EXPECT_EQ(-EINVAL, try_mmap(self->fd, n, RW, MAP_SHARED,
					    bo->map_offset + KT_PAGE));
		EXPECT_EQ(-EINVAL, try_mmap(self->fd, 1UL << 40, RW, MAP_SHARED, bo->map_offset));
	}
}

TEST_F(mmap, an_offset_of_no_object_is_EINVAL)
{
	uint64_t top = self->io.map_offset > self->w.map_offset ?
		self->io.map_offset + self->io.map_bytes : self->w.map_offset + self->w.map_bytes;
	struct kt_bo gone;

	/* Far beyond every object, and at the end of what mmap() can name. */
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, RW, MAP_SHARED, top + (1ULL << 40)));
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, RW, MAP_SHARED, 0x7ffffffffffff000ULL));
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, KT_PAGE, &gone));
	ASSERT_EQ(0, kt_destroy_handle(self->fd, gone.handle));
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, RW, MAP_SHARED, gone.map_offset));
}

TEST_F(mmap, private_is_EINVAL)
{
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, RW, MAP_PRIVATE, self->io.map_offset));
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, PROT_READ, MAP_PRIVATE,
				    self->w.map_offset));
}

TEST_F(mmap, executable_is_EPERM)
{
	EXPECT_EQ(-EPERM, try_mmap(self->fd, KT_PAGE, RW | PROT_EXEC, MAP_SHARED,
				   self->io.map_offset));
	EXPECT_EQ(-EPERM, try_mmap(self->fd, KT_PAGE, PROT_READ | PROT_EXEC, MAP_SHARED,
				   self->w.map_offset));
	ASSERT_OK(kt_map(&self->io, RW));
	EXPECT_EQ(-1, mprotect(self->io.map, KT_PAGE, PROT_READ | PROT_EXEC));
	EXPECT_EQ(EACCES, errno);
}

TEST_F(mmap, grown_by_mremap_is_refused)
{
	ASSERT_OK(kt_map(&self->io, RW));
	EXPECT_EQ(MAP_FAILED, mremap(self->io.map, self->io.map_bytes,
				     self->io.map_bytes + KT_PAGE, MREMAP_MAYMOVE));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(MAP_FAILED, mremap(self->io.map, KT_PAGE, 2 * self->io.map_bytes,
				     MREMAP_MAYMOVE));
	EXPECT_EQ(EFAULT, errno);
}

/* A mapping stays where it was made; after the refusal it is as good as before. */
TEST_F(mmap, moved_by_mremap_is_EPERM)
{
	struct kt_bo *bos[] = { &self->io, &self->w };

	ASSERT_OK(kt_map(&self->io, RW));
	ASSERT_OK(kt_map(&self->w, RW));
	kt_io_fill(&self->io, self->mask, 0, 0x3c, 2 * KT_PAGE);
	for (int i = 0; i < 2; i++) {
		const size_t bytes = bos[i]->map_bytes;
		/* A place of its own: what lies where a mapping is moved to goes first. */
		uint8_t *to = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		ASSERT_NE(MAP_FAILED, (void *)to);
		EXPECT_EQ(MAP_FAILED, mremap(bos[i]->map, bytes, bytes,
					     MREMAP_MAYMOVE | MREMAP_FIXED, to));
		EXPECT_EQ(EPERM, errno);
	}
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, 0, 0x3c, 2 * KT_PAGE));
	/* The attempts have left no mapping that would be in the way. */
	ASSERT_OK(kt_unmap(&self->w));
	EXPECT_EQ(0, kt_seal(&self->w));
}

TEST_F(mmap, new_memory_is_zero)
{
	ASSERT_OK(kt_map(&self->io, RW));
	ASSERT_OK(kt_map(&self->w, PROT_READ));
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, 0, 0, 2 * KT_PAGE));
	for (uint64_t i = 0; i < self->w.bytes; i++)
		ASSERT_EQ(0, self->w.map[i]);
}

/* Replicas are apart: what is written to one is not in the others. */
TEST_F(mmap, replicas_are_separate_memory)
{
	ASSERT_OK(kt_map(&self->io, RW));
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		kt_io_fill(&self->io, self->mask & (1U << d), 0, d + 1, 2 * KT_PAGE);
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		EXPECT_TRUE(kt_io_is(&self->io, self->mask & (1U << d), 0, d + 1, 2 * KT_PAGE));
}

/* ---- sealing -------------------------------------------------------------------------------- */

TEST_F(mmap, seal_while_mapped_is_EBUSY)
{
	void *page;

	ASSERT_OK(kt_map(&self->w, RW));
	EXPECT_EQ(-EBUSY, kt_seal(&self->w));
	ASSERT_OK(kt_unmap(&self->w));
	/* A read-only mapping can be made writable: it counts as well. */
	page = mmap(NULL, KT_PAGE, PROT_READ, MAP_SHARED, self->fd, self->w.map_offset);
	ASSERT_NE(MAP_FAILED, page);
	EXPECT_EQ(-EBUSY, kt_seal(&self->w));
	ASSERT_EQ(0, munmap(page, KT_PAGE));
	EXPECT_EQ(0, kt_seal(&self->w));
	EXPECT_EQ(0, kt_seal(&self->w));
}

/* Half of a mapping goes: the other half is still a mapping. */
TEST_F(mmap, seal_counts_split_mappings)
{
	ASSERT_OK(kt_map(&self->w, RW));
	ASSERT_EQ(0, munmap(self->w.map + KT_PAGE, KT_PAGE));
	EXPECT_EQ(-EBUSY, kt_seal(&self->w));
	ASSERT_EQ(0, munmap(self->w.map, KT_PAGE));
	EXPECT_EQ(-EBUSY, kt_seal(&self->w));
	ASSERT_EQ(0, munmap(self->w.map + 2 * KT_PAGE, self->w.map_bytes - 2 * KT_PAGE));
	self->w.map = NULL;
	EXPECT_EQ(0, kt_seal(&self->w));
}

TEST_F(mmap, sealed_is_read_only_for_ever)
{
	ASSERT_OK(kt_map(&self->w, RW));
	memset(self->w.map, 0x21, self->w.bytes);
	ASSERT_OK(kt_unmap(&self->w));
	ASSERT_OK(kt_seal(&self->w));
	EXPECT_EQ(-EPERM, try_mmap(self->fd, KT_PAGE, RW, MAP_SHARED, self->w.map_offset));
	EXPECT_EQ(-EPERM, try_mmap(self->fd, KT_PAGE, PROT_WRITE, MAP_SHARED,
				   self->w.map_offset));
	EXPECT_EQ(-EINVAL, try_mmap(self->fd, KT_PAGE, PROT_READ, MAP_PRIVATE,
				    self->w.map_offset));
	ASSERT_OK(kt_map(&self->w, PROT_READ));
	for (uint64_t i = 0; i < self->w.bytes; i += 61)
		ASSERT_EQ(0x21, self->w.map[i]);
	EXPECT_EQ(-1, mprotect(self->w.map, self->w.bytes, RW));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(SIGSEGV, kt_touch_signal(self->w.map, KT_PAGE, true));
	EXPECT_EQ(0x21, self->w.map[0]);
}

/* ---- migration behind a mapping ------------------------------------------------------------- */

TEST_F(mmap, mapping_shows_the_same_bytes_wherever_they_lie)
{
	struct kt_place places[4];
	const int rounds = 60 / kt_slow() + 4;
	uint8_t *before;
	int other = kt_nth_dimm(self->mask, 1);

	if (other < 0)
		SKIP(return, "needs two DIMMs");
	places[0] = kt_local(self->dimm, BLOCKS);
	places[1] = kt_spread(self->mask, BLOCKS);
	places[2] = kt_local(other, BLOCKS);
	places[3] = kt_spread(1U << self->dimm | 1U << other, BLOCKS);
	ASSERT_OK(kt_map(&self->w, RW));
	for (uint64_t i = 0; i < self->w.bytes; i++)
		self->w.map[i] = i * 7 + (i >> 8) * 13 + (i >> 16);
	before = malloc(self->w.bytes);
	ASSERT_NE(NULL, before);
	memcpy(before, self->w.map, self->w.bytes);
	ASSERT_OK(kt_unmap(&self->w));
	ASSERT_OK(kt_seal(&self->w));
	/* One mapping, made before the first migration, through all of them. */
	ASSERT_OK(kt_map(&self->w, PROT_READ));
	for (int i = 0; i < rounds; i++) {
		struct moendp_bo_info info;

		ASSERT_OK(kt_migrate(&self->w, &places[i % 4]));
		ASSERT_OK(kt_info(&self->w, &info));
		EXPECT_EQ(kt_place_mask(&places[i % 4]), info.dimm_mask);
		ASSERT_EQ(0, memcmp(before, self->w.map, self->w.bytes)) {
			TH_LOG("after move %d to DIMMs %#x", i, info.dimm_mask);
		}
	}
	free(before);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void exit_with_signal(int sig)
{
	_exit(sig);
}

TEST_F(mmap, mapping_is_not_inherited_by_fork)
{
	int status;
	pid_t pid;

	ASSERT_OK(kt_map(&self->io, RW));
	self->io.map[0] = 1;
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		signal(SIGSEGV, exit_with_signal);
		signal(SIGBUS, exit_with_signal);
		_exit(self->io.map[0] == 1 ? 0 : 1);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(SIGSEGV, WEXITSTATUS(status));
}

TEST_F(mmap, child_maps_the_inherited_file_itself)
{
	int status;
	pid_t pid;

	ASSERT_OK(kt_map(&self->io, RW));
	self->io.map[7] = 0x42;
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		self->io.map = NULL;
		if (kt_map(&self->io, RW) || self->io.map[7] != 0x42)
			_exit(1);
		self->io.map[8] = 0x43;
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0x43, self->io.map[8]);
}

/* A child that dies with a mapping leaves no writable mapping behind. */
TEST_F(mmap, seal_after_the_child_that_mapped_died)
{
	int status, pipes[2];
	pid_t pid;
	char c;

	ASSERT_EQ(0, pipe(pipes));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		close(pipes[0]);
		if (kt_map(&self->w, RW))
			_exit(1);
		self->w.map[0] = 1;
		if (write(pipes[1], "", 1) != 1)
			_exit(2);
		for (;;)
			pause();
	}
	close(pipes[1]);
	ASSERT_EQ(1, read(pipes[0], &c, 1));
	EXPECT_EQ(-EBUSY, kt_seal(&self->w));
	kill(pid, SIGKILL);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(0, kt_seal(&self->w));
}

/* ---- nobody pins a DIMM's pages ------------------------------------------------------------- */

/* O_DIRECT needs a file that does it: a disk that the guest happens to have. */
TEST_F(mmap, O_DIRECT_into_a_mapping_is_EFAULT)
{
	const char *disks[] = { "/dev/nvme0n1", "/dev/vda", "/dev/sda", "/dev/ram0" };
	void *ordinary;
	int disk = -1;

	for (unsigned int i = 0; i < ARRAY_SIZE(disks) && disk < 0; i++)
		disk = open(disks[i], O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (disk < 0)
		SKIP(return, "needs a block device, such as /dev/nvme0n1, for O_DIRECT");
	ordinary = mmap(NULL, KT_PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, ordinary);
	ASSERT_EQ(KT_PAGE, pread(disk, ordinary, KT_PAGE, 0));
	ASSERT_OK(kt_map(&self->io, RW));
	self->io.map[0] = 1;
	EXPECT_EQ(-1, pread(disk, self->io.map, KT_PAGE, 0));
	EXPECT_EQ(EFAULT, errno);
	ASSERT_OK(kt_map(&self->w, RW));
	EXPECT_EQ(-1, pread(disk, self->w.map, KT_PAGE, 0));
	EXPECT_EQ(EFAULT, errno);
	close(disk);
}

TEST_F(mmap, pages_cannot_be_pinned_or_read_from_outside)
{
	struct iovec remote, local;
	struct kt_ring ring;
	uint8_t buf[64];
	int pipes[2];

	ASSERT_OK(kt_map(&self->io, RW));
	self->io.map[0] = 1;
	remote = (struct iovec){ self->io.map, sizeof(buf) };
	local = (struct iovec){ buf, sizeof(buf) };
	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != -1 || errno != ENOSYS) {
		EXPECT_EQ(-1, process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
		EXPECT_EQ(EFAULT, errno);
	}
	ASSERT_EQ(0, pipe(pipes));
	EXPECT_EQ(-1, vmsplice(pipes[1], &remote, 1, SPLICE_F_GIFT));
	EXPECT_EQ(EFAULT, errno);
	ASSERT_EQ(0, kt_ring_init(&ring, 4, KT_RING_FLAGS));
	remote.iov_len = KT_PAGE;
	EXPECT_EQ(-EFAULT, io_uring_register_buffers(&ring.ring, &remote, 1));
	kt_ring_exit(&ring);
}

/* The kernel itself may copy to and from a mapping, as read() and write() do. */
TEST_F(mmap, ordinary_read_and_write_work)
{
	uint8_t buf[256];
	int pipes[2];

	ASSERT_OK(kt_map(&self->io, RW));
	memset(self->io.map, 0x6d, sizeof(buf));
	ASSERT_EQ(0, pipe(pipes));
	EXPECT_EQ(sizeof(buf), write(pipes[1], self->io.map, sizeof(buf)));
	EXPECT_EQ(sizeof(buf), read(pipes[0], self->io.map + KT_PAGE, sizeof(buf)));
	memcpy(buf, self->io.map + KT_PAGE, sizeof(buf));
	EXPECT_EQ(0x6d, buf[0]);
	EXPECT_EQ(0x6d, buf[255]);
}

/* An argument that lies in a mapping of the very object, not faulted in: no deadlock. */
TEST_F(mmap, ioctl_argument_inside_a_mapping)
{
	struct moendp_query *q;
	struct moendp_bo_info *info;

	ASSERT_OK(kt_map(&self->io, RW));
	q = (void *)self->io.map;
	q->size = sizeof(*q);
	q->dimm = self->dimm;
	EXPECT_EQ(0, kt_ioctl(self->fd, MOENDP_IOC_QUERY, q));
	EXPECT_EQ(MOENDP_ABI_VERSION, q->abi);
	ASSERT_OK(kt_unmap(&self->io));
	ASSERT_OK(kt_map(&self->io, RW));
	info = (void *)(self->io.map + KT_PAGE);
	info->size = sizeof(*info);
	info->handle = self->io.handle;
	EXPECT_EQ(0, kt_ioctl(self->fd, MOENDP_IOC_BO_INFO, info));
	EXPECT_EQ(MOENDP_BO_IO, info->type);
}

TEST_F(mmap, mapping_outlives_the_descriptor)
{
	int other = kt_open();
	struct kt_free before;
	struct kt_bo bo;

	ASSERT_LE(0, other);
	ASSERT_OK(kt_free_read(self->fd, &before));
	ASSERT_OK(kt_io(other, 1U << self->dimm, 3 * KT_PAGE, &bo));
	ASSERT_OK(kt_map(&bo, RW));
	bo.map[0] = 0x11;
	ASSERT_EQ(0, close(other));
	for (int i = 0; i < 3; i++)
		bo.map[i * KT_PAGE] = 0x11 + i;
	EXPECT_EQ(0x13, bo.map[2 * KT_PAGE]);
	ASSERT_OK(kt_unmap(&bo));
	EXPECT_OK(kt_free_wait(self->fd, &before, 5000));
}

TEST_HARNESS_MAIN
