// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * sysfs.c - what an administrator sees and does: attributes that agree with QUERY, fdinfo, and
 * resets by hand, alone and with commands under way.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_host.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H	64
#define ROWS	64
#define BLOCKS	2
#define Y_OFF	KT_PAGE
#define WAIT_MS	30000

FIXTURE(sysfs) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	struct kt_free free;
	struct kt_ffn e;
	struct kt_bo w;
	struct kt_bo io;
	uint16_t x[H];
	struct moendp_cmd cmd;
};

FIXTURE_SETUP(sysfs)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	ASSERT_OK(kt_free_read(self->fd, &self->free));
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 81));
	p = kt_local(self->dimm, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->w));
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 2 * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
	kt_x_random(self->x, H, 82);
	kt_io_write(&self->io, self->mask, 0, self->x, sizeof(self->x));
	self->cmd = (struct moendp_cmd){
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = 1U << self->dimm, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF,
		.ldx = 2 * H, .ldy = 4 * H,
	};
}

FIXTURE_TEARDOWN(sysfs)
{
	kt_destroy(&self->io);
	kt_destroy(&self->w);
	EXPECT_OK(kt_free_wait(self->fd, &self->free, 10000 * kt_slow()));
	kt_ffn_free(&self->e);
	close(self->fd);
}

typedef FIXTURE_DATA(sysfs) sysfs_t;

/* Path of an attribute of the domain, or of the DIMM under test. */
static const char *attribute(const sysfs_t *self, bool of_dimm, const char *name)
{
	static char path[160];
	const char *node = strrchr(kt_node(), '/') + 1;

	if (of_dimm)
		snprintf(path, sizeof(path), "/sys/class/ndp/%sd%u/%s", node, self->dimm, name);
	else
		snprintf(path, sizeof(path), "/sys/class/ndp/%s/%s", node, name);
	return path;
}

static int64_t number(const sysfs_t *self, bool of_dimm, const char *name)
{
	return kt_read_number(attribute(self, of_dimm, name));
}

static void text(const sysfs_t *self, bool of_dimm, const char *name, char *to, size_t bytes)
{
	int fd = open(attribute(self, of_dimm, name), O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, to, bytes - 1);

	to[n < 0 ? 0 : n] = '\0';
	to[strcspn(to, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}

static void expect_works(struct __test_metadata *_metadata, sysfs_t *self)
{
	double y[H], ref[H], bound[H];

	kt_io_fill(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, 4 * H);
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL));
	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, ref, bound);
	kt_io_sum(&self->io, 1U << self->dimm, Y_OFF, H, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, H));
}

TEST_F(sysfs, attributes_agree_with_query)
{
	struct moendp_query q;
	char value[64], uuid[64];

	expect_works(_metadata, self);
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	snprintf(uuid, sizeof(uuid), "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
		 "%02x%02x%02x%02x%02x%02x", q.domain[0], q.domain[1], q.domain[2], q.domain[3],
		 q.domain[4], q.domain[5], q.domain[6], q.domain[7], q.domain[8], q.domain[9],
		 q.domain[10], q.domain[11], q.domain[12], q.domain[13], q.domain[14],
		 q.domain[15]);
	text(self, false, "domain", value, sizeof(value));
	EXPECT_STREQ(uuid, value);
	EXPECT_EQ(self->mask, number(self, false, "dimms"));
	EXPECT_EQ(2, number(self, false, "objects"));
	text(self, true, "state", value, sizeof(value));
	EXPECT_STREQ("ready", value);
	EXPECT_EQ(self->dimm, number(self, true, "node"));
	EXPECT_EQ(q.generation, number(self, true, "generation"));
	EXPECT_EQ(q.resets, number(self, true, "resets"));
	EXPECT_EQ(q.link_peers, number(self, true, "peers"));
	EXPECT_EQ(q.mem_bytes, number(self, true, "mem_bytes"));
	EXPECT_EQ(q.free_bytes, number(self, true, "free_bytes"));
	EXPECT_EQ(q.largest_free_bytes, number(self, true, "largest_free_bytes"));
	EXPECT_EQ(self->w.bytes + 2 * KT_PAGE, number(self, true, "allocated_bytes"));
	EXPECT_EQ(2, number(self, true, "extents"));
	EXPECT_EQ(0, number(self, true, "inflight"));
	EXPECT_EQ(q.cache_lines_flushed, number(self, true, "cache_lines_flushed"));
	EXPECT_EQ(q.compute.commands, number(self, true, "compute/commands"));
	EXPECT_EQ(q.compute.errors, number(self, true, "compute/errors"));
	EXPECT_EQ(q.compute.tokens, number(self, true, "compute/tokens"));
	EXPECT_EQ(q.compute.bytes, number(self, true, "compute/bytes"));
	EXPECT_EQ(q.compute.busy_ns, number(self, true, "compute/busy_ns"));
	EXPECT_EQ(q.link.commands, number(self, true, "link/commands"));
	EXPECT_EQ(q.link.bytes, number(self, true, "link/bytes"));
}

TEST_F(sysfs, fdinfo_tells_what_a_file_holds)
{
	char path[64], line[128], value[64] = "";
	unsigned long long objects = 0, bytes = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->fd);
	f = fopen(path, "re");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		sscanf(line, "ndp-domain: %63s", value);
		sscanf(line, "ndp-objects: %llu", &objects);
		sscanf(line, "ndp-bytes: %llu", &bytes);
	}
	fclose(f);
	EXPECT_STREQ(strrchr(kt_node(), '/') + 1, value);
	EXPECT_EQ(2, objects);
	EXPECT_EQ(self->w.bytes + self->io.stride, bytes);
}

TEST_F(sysfs, nonsense_is_refused)
{
	int64_t quota = number(self, false, "quota_bytes");

	EXPECT_EQ(-EINVAL, kt_write_file(attribute(self, false, "quota_bytes"), "much"));
	EXPECT_EQ(-EINVAL, kt_write_file(attribute(self, false, "quota_bytes"), "-1"));
	EXPECT_EQ(-ERANGE, kt_write_file(attribute(self, false, "quota_bytes"),
					 "99999999999999999999"));
	EXPECT_EQ(quota, number(self, false, "quota_bytes"));
	EXPECT_EQ(-EINVAL, kt_write_file(attribute(self, true, "reset"), "0"));
	EXPECT_EQ(-EINVAL, kt_write_file(attribute(self, true, "reset"), "maybe"));
	EXPECT_EQ(-EINVAL, kt_write_file("/sys/module/moendp/parameters/timeout_ms", "0"));
	EXPECT_EQ(-EINVAL, kt_write_file("/sys/module/moendp/parameters/timeout_ms", "soon"));
}

TEST_F(sysfs, only_root_changes_anything)
{
	int status;
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		if (setresgid(1001, 1001, 1001) || setresuid(1001, 1001, 1001))
			_exit(1);
		if (kt_write_file(attribute(self, false, "quota_bytes"), "0") != -EACCES)
			_exit(2);
		if (kt_write_file(attribute(self, true, "reset"), "1") != -EACCES)
			_exit(3);
		_exit(number(self, true, "free_bytes") > 0 ? 0 : 4);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* Both ways to reset a DIMM by hand: memory and what was sealed survive. */
static void reset_by(struct __test_metadata *_metadata, sysfs_t *self, const char *name)
{
	unsigned int done = 0, canceled = 0, others = 0;
	struct moendp_query before, after;
	struct kt_load load;
	struct kt_ring ring;
	struct kt_cqe cqe;

	ASSERT_OK(kt_query(self->fd, self->dimm, &before));
	/* With nothing under way. */
	ASSERT_EQ(0, kt_write_file(attribute(self, true, name), "1"));
	ASSERT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, WAIT_MS));
	ASSERT_OK(kt_query(self->fd, self->dimm, &after));
	EXPECT_EQ(1, after.resets - before.resets);
	EXPECT_LE(1, after.generation - before.generation);
	expect_works(_metadata, self);
	/* With commands in the ring and more that wait for a place there. */
	ASSERT_OK(kt_load(self->fd, self->dimm, 128, &load));
	ASSERT_OK(kt_ring_init(&ring, 64, KT_RING_FLAGS));
	for (int i = 0; i < 64; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &load.cmd, i));
	ASSERT_EQ(64, kt_ring_submit(&ring));
	ASSERT_EQ(0, kt_write_file(attribute(self, true, name), "1"));
	for (int i = 0; i < 64; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		done += cqe.res == 0;
		canceled += cqe.res == -ECANCELED;
		others += cqe.res != 0 && cqe.res != -ECANCELED;
	}
	EXPECT_LT(0, canceled);
	EXPECT_EQ(0, others);
	TH_LOG("%u commands done, %u cancelled", done, canceled);
	kt_ring_exit(&ring);
	ASSERT_OK(kt_load_free(&load));
	expect_works(_metadata, self);
}

TEST_F(sysfs, reset_by_the_driver)
{
	reset_by(_metadata, self, "reset");
}

TEST_F(sysfs, reset_by_the_PCI_core)
{
	if (access(attribute(self, true, "pci/reset"), W_OK))
		SKIP(return, "the function has no reset in sysfs");
	reset_by(_metadata, self, "pci/reset");
}

/* The PCI core switches the memory window off meanwhile: who uses a mapping then has to wait. */
TEST_F(sysfs, reset_by_the_PCI_core_loses_no_store)
{
	volatile uint64_t *word = (volatile uint64_t *)((char *)self->io.map + Y_OFF);
	uint64_t n, wrong = 0;
	int status;
	pid_t pid;

	if (access(attribute(self, true, "pci/reset"), W_OK))
		SKIP(return, "the function has no reset in sysfs");
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		for (int i = 0; i < 10; i++) {
			if (kt_write_file(attribute(self, true, "pci/reset"), "1"))
				_exit(1);
			kt_sleep_ms(20);
		}
		_exit(0);
	}
	for (n = 1; waitpid(pid, &status, WNOHANG) == 0; n++) {
		*word = n;
		wrong += *word != n;
	}
	EXPECT_EQ(0, status);
	EXPECT_LT(1000, n);
	EXPECT_EQ(0, wrong) {
		TH_LOG("of %llu words stored and read back", (unsigned long long)n);
	}
	expect_works(_metadata, self);
}

TEST_HARNESS_MAIN
