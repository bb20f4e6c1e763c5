// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * alloc.c - every allocation of every call fails once: the call says so, and leaves nothing.
 *
 * Works as iommufd's fail-nth test does: /proc/thread-self/fail-nth makes the nth allocation that
 * this thread asks the kernel for fail; n grows until the call gets by with fewer. Needs a kernel
 * with CONFIG_FAULT_INJECTION (the debug kernel of tests/vm).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_host.h"
#include "kt_ring.h"

#define H		64
#define ROWS		128
#define BLOCKS		4
#define RW		(PROT_READ | PROT_WRITE)
#define MAX_NTH		400

FIXTURE(alloc) {
	int fd;
	int nth;		/* /proc/thread-self/fail-nth, or -1 */
	int placement;
	uint32_t mask;
	struct kt_place local;
	struct kt_place striped;
	struct kt_bo w;
	struct kt_bo io;
	struct kt_free before;
	unsigned int round;
};

/* Which allocations fail, and that the kernel does not print a stack for each. */
static void configure_injection(void)
{
	static const char *const settings[][2] = {
		{ "failslab/probability", "0" },
		{ "failslab/times", "-1" },
		{ "failslab/verbose", "0" },
		{ "failslab/ignore-gfp-wait", "N" },
		{ "fail_page_alloc/probability", "0" },
		{ "fail_page_alloc/times", "-1" },
		{ "fail_page_alloc/verbose", "0" },
		{ "fail_page_alloc/ignore-gfp-wait", "N" },
		{ "fail_page_alloc/ignore-gfp-highmem", "N" },
		{ "fail_page_alloc/min-order", "0" },
		{ "fail_usercopy/verbose", "0" },
		{ "fail_usercopy/times", "-1" },
	};
	char path[96];

	for (unsigned int i = 0; i < ARRAY_SIZE(settings); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s", settings[i][0]);
		kt_write_file(path, settings[i][1]);
	}
}

FIXTURE_SETUP(alloc)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	configure_injection();
	self->mask = kt_dimm_mask(self->fd);
	self->local = kt_local(kt_nth_dimm(self->mask, 0), BLOCKS);
	self->striped = kt_spread(self->mask, BLOCKS);
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &self->local, &self->w));
	ASSERT_OK(kt_seal(&self->w));
	ASSERT_OK(kt_io(self->fd, self->mask, 2 * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, RW));
	kt_io_fill(&self->io, self->mask, 0, 0, 2 * KT_PAGE);
	self->placement = kt_placement_fd(self->fd);
	ASSERT_LE(0, self->placement);
	ASSERT_OK(kt_free_read(self->fd, &self->before));
}

FIXTURE_TEARDOWN(alloc)
{
	if (self->nth >= 0)
		close(self->nth);
	close(self->placement);
	close(self->fd);
}

typedef FIXTURE_DATA(alloc) alloc_t;

#define NEED() do { \
	if (self->nth < 0) \
		SKIP(return, "needs a kernel with CONFIG_FAULT_INJECTION (fail-nth)"); \
} while (0)

static void arm(const alloc_t *self, unsigned int n)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%u", n);

	/* What is still armed may hit this very write; then it is not armed any more. */
	if (pwrite(self->nth, text, len, 0) != len && pwrite(self->nth, text, len, 0) != len)
		abort();
}

/* Did the failure that was armed happen in the call?  Disarms. */
static bool happened(const alloc_t *self)
{
	char text[16] = "";
	ssize_t n = pread(self->nth, text, sizeof(text) - 1, 0);

	arm(self, 0);
	/* A read that fails was hit itself: the call got by with fewer. */
	return n > 0 && atoi(text) == 0;
}

/* What a call may say when memory was not there: at open() the VFS has its own words. */
static bool is_want_of_memory(int r)
{
	return r == -ENOMEM || r == -EFAULT;
}

/*
 * Repeats a statement that sets r, each time failing a later allocation, until none fails. What
 * succeeds is taken back by the second statement; after each failure all memory must be there.
 */
#define SWEEP(call, undo) do { \
	unsigned int n_, failed_ = 0; \
	bool hit_; \
	int r; \
	\
	for (n_ = 1; n_ <= MAX_NTH; n_++) { \
		arm(self, n_); \
		call; \
		hit_ = happened(self); \
		if (r >= 0) { \
			undo; \
		} else { \
			failed_++; \
			EXPECT_TRUE(hit_ && is_want_of_memory(r)) { \
				TH_LOG("allocation %u: %s gave %d", n_, #call, r); \
			} \
		} \
		if (!hit_) \
			break; \
	} \
	EXPECT_GE(MAX_NTH, n_); \
	TH_LOG("%u failures of %u allocations", failed_, n_ - 1); \
	EXPECT_OK(kt_free_wait(self->fd, &self->before, 10000 * kt_slow())); \
} while (0)

TEST_F(alloc, open)
{
	NEED();
	SWEEP(r = kt_open(), close(r));
}

TEST_F(alloc, create_local)
{
	struct kt_bo bo;

	NEED();
	SWEEP(r = kt_expert(self->fd, H, H, ROWS, &self->local, &bo), kt_destroy(&bo));
}

TEST_F(alloc, create_striped)
{
	struct kt_bo bo;

	NEED();
	SWEEP(r = kt_expert(self->fd, H, H, ROWS, &self->striped, &bo), kt_destroy(&bo));
}

TEST_F(alloc, create_io)
{
	struct kt_bo bo;

	NEED();
	SWEEP(r = kt_io(self->fd, self->mask, KT_PAGE, &bo), kt_destroy(&bo));
}

TEST_F(alloc, seal)
{
	struct kt_bo bo;

	NEED();
	SWEEP(r = kt_expert(self->fd, H, H, ROWS, &self->local, &bo) ?: kt_seal(&bo);
	      if (r && bo.handle) kt_destroy(&bo), kt_destroy(&bo));
}

TEST_F(alloc, map)
{
	struct kt_bo bo = self->io;

	NEED();
	SWEEP(r = kt_map(&bo, RW), kt_unmap(&bo));
}

TEST_F(alloc, submit)
{
	struct moendp_cmd c = {
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = self->mask, .count = BLOCKS, .tokens = 1, .y_off = KT_PAGE,
		.ldx = 2 * H, .ldy = 4 * H,
	};

	NEED();
	SWEEP(r = kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL), (void)0);
	/* Several DIMMs: a request of several parts. */
	ASSERT_OK(kt_migrate(&self->w, &self->striped));
	ASSERT_OK(kt_free_read(self->fd, &self->before));
	SWEEP(r = kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL), (void)0);
}

TEST_F(alloc, migrate)
{
	struct kt_place p;

	NEED();
	/* There and, when that worked, back: each time something has to be done. */
	SWEEP(r = kt_migrate(&self->w, &self->striped), kt_migrate(&self->w, &self->local));
	ASSERT_OK(kt_where(&self->w, &p));
	EXPECT_EQ(kt_place_mask(&self->local), kt_place_mask(&p));
}

TEST_F(alloc, placement_calls)
{
	struct moendp_placement_entry e[4];
	struct moendp_placement_list l = {
		.size = sizeof(l), .entries = (uintptr_t)e, .nr_entries = 4,
	};

	NEED();
	SWEEP(r = kt_placement_fd(self->fd), close(r));
	SWEEP(l.start = 0; l.nr_entries = 4;
	      r = kt_ioctl(self->placement, MOENDP_IOC_PLACEMENT_LIST, &l), (void)0);
}

/* Through a ring: a submission that finds no memory is tried again, or completes with ENOMEM. */
TEST_F(alloc, uring)
{
	struct moendp_cmd c = {
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = self->mask, .count = BLOCKS, .tokens = 1, .y_off = KT_PAGE,
		.ldx = 2 * H, .ldy = 4 * H,
	};
	struct kt_ring ring;
	struct kt_cqe cqe;

	NEED();
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	for (unsigned int n = 1; n <= MAX_NTH; n++) {
		bool hit;
		int r;

		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &c, n));
		arm(self, n);
		r = kt_ring_submit(&ring);
		hit = happened(self);
		/* io_uring itself may have been refused: the entry is still in the queue. */
		if (r != 1) {
			EXPECT_TRUE(hit);
			ASSERT_EQ(1, kt_ring_submit(&ring));
		}
		ASSERT_OK(kt_ring_wait(&ring, &cqe, 20000 * kt_slow()));
		EXPECT_EQ(n, cqe.user_data);
		EXPECT_TRUE(cqe.res == 0 || (hit && is_want_of_memory(cqe.res))) {
			TH_LOG("allocation %u: res %d", n, cqe.res);
		}
		if (!hit)
			break;
	}
	kt_ring_exit(&ring);
	EXPECT_OK(kt_free_wait(self->fd, &self->before, 10000 * kt_slow()));
}

/*
 * A DIMM that cannot be probed for want of memory is refused; the next try has it. Each try is a
 * start of the DIMM: not every allocation is tried, but some at every stage.
 */
TEST_F_TIMEOUT(alloc, probe, 900)
{
	unsigned int refused = 0;
	bool hit = true;
	char address[32];
	unsigned int dimm = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	struct moendp_query q;

	NEED();
	if (kt_count(self->mask) < 2)
		SKIP(return, "needs two DIMMs");
	ASSERT_OK(kt_pci_address(dimm, address, sizeof(address)));
	ASSERT_OK(kt_destroy(&self->io));
	ASSERT_OK(kt_free_read(self->fd, &self->before));
	for (unsigned int n = 1; hit && n <= MAX_NTH; n += 1 + n / 6) {
		ASSERT_OK(kt_unbind(address));
		arm(self, n);
		kt_bind(address);
		hit = happened(self);
		if (kt_query(self->fd, dimm, &q) || q.dimm_state != MOENDP_DIMM_READY) {
			EXPECT_TRUE(hit);
			refused++;
			ASSERT_OK(kt_bind(address)) {
				TH_LOG("after a failure at allocation %u", n);
			}
		}
	}
	EXPECT_LT(3, refused);
	EXPECT_OK(kt_wait_state(self->fd, dimm, MOENDP_DIMM_READY, 20000));
	EXPECT_OK(kt_free_wait(self->fd, &self->before, 10000));
}

TEST_HARNESS_MAIN
