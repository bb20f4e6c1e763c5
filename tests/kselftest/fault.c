// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fault.c - DIMMs that misbehave, one way after the other: what the caller is told, that other
 * DIMMs go on, and that the DIMM works again.
 *
 * The faults are injected by the host (QEMU's x-inject-* properties of the device). The driver's
 * time-out is shortened, so that a DIMM that does not answer costs a second and not thirty.
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
#include "kt_host.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H		64
#define ROWS		64
#define BLOCKS		2
#define Y_OFF		KT_PAGE
#define RW		(PROT_READ | PROT_WRITE)
#define TIMEOUT_MS	1500
#define WAIT_MS		30000

FIXTURE(fault) {
	int fd;
	uint32_t mask;
	unsigned int dimm;	/* the one that is broken */
	int other;		/* one that is not, or -1 */
	int timeout_ms;		/* as found */
	const char *injected[16];	/* what to take back */
	unsigned int nr_injected;
	char address[32];
	const char *missing;	/* what the test needs and lacks */
	struct moendp_query before;
	struct kt_free free;
	struct kt_ffn e;
	struct kt_bo w;		/* on the broken DIMM */
	struct kt_bo io;
	uint16_t x[H];
	struct moendp_cmd cmd;
};

FIXTURE_SETUP(fault)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	self->other = kt_count(self->mask) > 1 ? kt_nth_dimm(self->mask, 0) : -1;
	ASSERT_OK(kt_pci_address(self->dimm, self->address, sizeof(self->address)));
	ASSERT_OK(kt_free_read(self->fd, &self->free));
	self->timeout_ms = kt_timeout_ms(TIMEOUT_MS * kt_slow());
	if (!kt_host_there())
		self->missing = "needs the host (/bin/host) to inject a fault";
	else if (self->timeout_ms < 0)
		self->missing = "needs moendp's parameter timeout_ms";
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 51));
	p = kt_local(self->dimm, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->w));
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 64 * KT_PAGE, &self->io));
	ASSERT_OK(kt_map(&self->io, RW));
	kt_x_random(self->x, H, 52);
	kt_io_write(&self->io, 1U << self->dimm, 0, self->x, sizeof(self->x));
	self->cmd = (struct moendp_cmd){
		.weights = self->w.handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = 1U << self->dimm, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF,
		.ldx = 2 * H, .ldy = 4 * H,
	};
	ASSERT_OK(kt_query(self->fd, self->dimm, &self->before));
}

typedef FIXTURE_DATA(fault) fault_t;

/* Sets a property of the broken DIMM; the end of the test takes it back. */
static int inject(fault_t *self, const char *fault, const char *value)
{
	char name[64];
	unsigned int i;

	for (i = 0; i < self->nr_injected; i++)
		if (!strcmp(self->injected[i], fault))
			break;
	if (i == ARRAY_SIZE(self->injected))
		return -ENOSPC;
	self->injected[i] = fault;
	self->nr_injected = i == self->nr_injected ? i + 1 : self->nr_injected;
	snprintf(name, sizeof(name), "x-inject-%s", fault);
	return kt_set(self->dimm, name, value);
}

/* What a property is when nothing is injected. */
static const char *harmless(const char *fault)
{
	static const char *const values[][2] = {
		{ "queues", "3" }, { "reset-stuck", "off" }, { "gone", "off" },
		{ "corrupt-fields", "1" }, { "error-status", "10" }, { "delay-ns", "10000000" },
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(values); i++)
		if (!strcmp(values[i][0], fault))
			return values[i][1];
	return "0";
}

FIXTURE_TEARDOWN(fault)
{
	while (self->nr_injected) {
		const char *fault = self->injected[self->nr_injected - 1];

		/* Only a reset ends a fatal error. */
		if (strcmp(fault, "fatal"))
			inject(self, fault, harmless(fault));
		self->nr_injected--;
	}
	kt_destroy(&self->io);
	kt_destroy(&self->w);
	/* A DIMM that failed for good comes back by a new start. */
	if (kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, TIMEOUT_MS * kt_slow())) {
		kt_unbind(self->address);
		kt_bind(self->address);
	}
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, 10000));
	EXPECT_OK(kt_free_wait(self->fd, &self->free, 10000 * kt_slow()));
	if (self->timeout_ms > 0)
		kt_timeout_ms(self->timeout_ms);
	kt_ffn_free(&self->e);
	close(self->fd);
}

#define NEED() do { \
	if (self->missing) \
		SKIP(return, "%s", self->missing); \
} while (0)

static int run(fault_t *self)
{
	kt_io_fill(&self->io, 1U << self->dimm, self->cmd.y_off, KT_NAN_BYTE, 4 * H);
	return kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL);
}

static int y_differs(const fault_t *self)
{
	double y[H], ref[H], bound[H];

	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, ref, bound);
	kt_io_sum(&self->io, 1U << self->dimm, self->cmd.y_off, H, y);
	return kt_differs(y, ref, bound, H);
}

/* The DIMM computes, from weights that were sealed before the fault. */
static void expect_works(struct __test_metadata *_metadata, fault_t *self)
{
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, WAIT_MS));
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(0, run(self));
		EXPECT_EQ(-1, y_differs(self));
	}
}

static void expect_resets(struct __test_metadata *_metadata, fault_t *self, unsigned int n)
{
	struct moendp_query q;

	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(n, q.resets - self->before.resets);
	EXPECT_EQ(n, q.generation - self->before.generation);
}

/* ---- one command that goes wrong ------------------------------------------------------------ */

TEST_F(fault, completion_that_never_comes_is_ETIMEDOUT)
{
	uint64_t start = kt_now_ms();

	NEED();
	ASSERT_OK(inject(self, "drop", "1"));
	EXPECT_EQ(-ETIMEDOUT, run(self));
	EXPECT_LE(TIMEOUT_MS * kt_slow(), kt_now_ms() - start);
	EXPECT_GE(10 * TIMEOUT_MS * kt_slow(), kt_now_ms() - start);
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 1);
}

TEST_F(fault, interrupt_that_is_lost_costs_time_only)
{
	NEED();
	ASSERT_OK(inject(self, "lost-irq", "1"));
	EXPECT_EQ(0, run(self));
	EXPECT_EQ(-1, y_differs(self));
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 0);
}

TEST_F(fault, late_completion_is_waited_for)
{
	uint64_t start;

	NEED();
	ASSERT_OK(inject(self, "delay-ns", "400000000"));
	ASSERT_OK(inject(self, "delay", "1"));
	start = kt_now_ms();
	EXPECT_EQ(0, run(self));
	EXPECT_LE(350, kt_now_ms() - start);
	EXPECT_EQ(-1, y_differs(self));
	expect_resets(_metadata, self, 0);
}

TEST_F(fault, completion_that_comes_twice_counts_once)
{
	NEED();
	ASSERT_OK(inject(self, "duplicate-every", "2"));
	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(0, run(self));
		ASSERT_EQ(-1, y_differs(self));
	}
	ASSERT_OK(inject(self, "duplicate-every", "0"));
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 0);
}

TEST_F(fault, completion_of_an_unknown_command)
{
	NEED();
	ASSERT_OK(inject(self, "corrupt-fields", "1"));
	ASSERT_OK(inject(self, "corrupt", "1"));
	EXPECT_EQ(-ETIMEDOUT, run(self));
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 1);
}

TEST_F(fault, completion_of_another_generation)
{
	NEED();
	ASSERT_OK(inject(self, "corrupt-fields", "2"));
	ASSERT_OK(inject(self, "corrupt", "1"));
	EXPECT_EQ(-ETIMEDOUT, run(self));
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 1);
}

TEST_F(fault, completion_with_nonsense_in_it)
{
	struct kt_ring ring;
	struct kt_cqe cqe;

	NEED();
	/* An unknown status is an error; a wrong head and a wrong time harm nobody. */
	ASSERT_OK(inject(self, "corrupt-fields", "4"));
	ASSERT_OK(inject(self, "corrupt", "1"));
	EXPECT_EQ(-EIO, run(self));
	ASSERT_OK(inject(self, "corrupt-fields", "8"));
	ASSERT_OK(inject(self, "corrupt", "1"));
	EXPECT_EQ(0, run(self));
	ASSERT_OK(inject(self, "corrupt-fields", "16"));
	ASSERT_OK(inject(self, "corrupt", "1"));
	ASSERT_OK(kt_ring_init(&ring, 8, KT_RING_FLAGS));
	EXPECT_EQ(0, kt_ring_one(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, &cqe));
	EXPECT_EQ(0xffffffff, cqe.modelled_ns);
	EXPECT_EQ(1U << self->dimm, cqe.dimm_mask);
	kt_ring_exit(&ring);
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 0);
}

TEST_F(fault, command_that_the_dimm_fails_is_EIO)
{
	const char *statuses[] = { "1", "3", "10", "99" };

	NEED();
	for (unsigned int i = 0; i < ARRAY_SIZE(statuses); i++) {
		ASSERT_OK(inject(self, "error-status", statuses[i]));
		ASSERT_OK(inject(self, "error", "1"));
		EXPECT_EQ(-EIO, run(self)) {
			TH_LOG("status %s", statuses[i]);
		}
		EXPECT_EQ(0, run(self));
		EXPECT_EQ(-1, y_differs(self));
	}
	expect_resets(_metadata, self, 0);
}

/* ---- an engine that hangs ------------------------------------------------------------------- */

/* The command that hangs timed out, all that were queued behind it are cancelled, none is lost. */
TEST_F(fault, hang_ends_every_command)
{
	unsigned int timed_out = 0, canceled = 0;
	struct kt_ring ring;
	struct kt_cqe cqe;

	NEED();
	ASSERT_OK(inject(self, "queues", "1"));
	ASSERT_OK(inject(self, "hang", "1"));
	ASSERT_OK(kt_ring_init(&ring, 64, KT_RING_FLAGS));
	for (int i = 0; i < 64; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &self->cmd, i));
	ASSERT_EQ(64, kt_ring_submit(&ring));
	for (int i = 0; i < 64; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()));
		if (cqe.res == -ETIMEDOUT)
			timed_out++;
		else if (cqe.res == -ECANCELED)
			canceled++;
		else
			EXPECT_EQ(-ECANCELED, cqe.res);
	}
	EXPECT_EQ(1, timed_out);
	EXPECT_EQ(63, canceled);
	kt_ring_exit(&ring);
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 1);
}

static void *submit_once(void *arg)
{
	fault_t *self = arg;

	return (void *)(long)run(self);
}

TEST_F(fault, other_dimms_go_on_while_one_hangs)
{
	struct kt_place p;
	struct moendp_cmd c = self->cmd;
	struct kt_bo w, io;
	pthread_t thread;
	uint64_t start;
	void *r;

	NEED();
	if (self->other < 0)
		SKIP(return, "needs two DIMMs");
	p = kt_local(self->other, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &w));
	ASSERT_OK(kt_io(self->fd, 1U << self->other, 2 * KT_PAGE, &io));
	ASSERT_OK(kt_map(&io, RW));
	kt_io_write(&io, 1U << self->other, 0, self->x, sizeof(self->x));
	c.weights = w.handle;
	c.x_bo = io.handle;
	c.y_bo = io.handle;
	c.x_mask = 1U << self->other;
	ASSERT_OK(inject(self, "hang", "1"));
	ASSERT_EQ(0, pthread_create(&thread, NULL, submit_once, self));
	start = kt_now_ms();
	for (int i = 0; i < 50; i++)
		ASSERT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	EXPECT_GT(TIMEOUT_MS * kt_slow(), kt_now_ms() - start) {
		TH_LOG("commands of a good DIMM waited for the broken one");
	}
	pthread_join(thread, &r);
	EXPECT_EQ(-ETIMEDOUT, (int)(long)r);
	ASSERT_OK(kt_destroy(&w));
	ASSERT_OK(kt_destroy(&io));
	expect_works(_metadata, self);
}

/* C13: whoever waits can be stopped, by a polite signal as well as by a rude one. */
static void killed_while_waiting(struct __test_metadata *_metadata, fault_t *self, int sig)
{
	uint64_t start;
	int status;
	pid_t pid;

	ASSERT_OK(inject(self, "queues", "1"));
	ASSERT_OK(inject(self, "hang", "1"));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		signal(sig, SIG_DFL);
		kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL);
		_exit(0);
	}
	kt_sleep_ms(200 * kt_slow());
	start = kt_now_ms();
	ASSERT_EQ(0, kill(pid, sig));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_GT(kt_slow() > 1 ? 5000 : 1000, kt_now_ms() - start);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(sig, WTERMSIG(status));
	/* The command itself goes on, holding what it needs, until the DIMM is reset. */
	for (unsigned int i = 0; i < 100 * kt_slow(); i++) {
		struct moendp_query q;

		ASSERT_OK(kt_query(self->fd, self->dimm, &q));
		if (q.resets != self->before.resets)
			break;
		kt_sleep_ms(100);
	}
	expect_works(_metadata, self);
}

TEST_F(fault, waiting_is_ended_by_SIGINT)
{
	NEED();
	killed_while_waiting(_metadata, self, SIGINT);
}

TEST_F(fault, waiting_is_ended_by_SIGKILL)
{
	NEED();
	killed_while_waiting(_metadata, self, SIGKILL);
}

TEST_F(fault, copy_that_hangs_leaves_the_old_placement)
{
	struct kt_place home = kt_local(self->dimm, BLOCKS), there, now;
	struct kt_bo w;

	NEED();
	if (self->other < 0)
		SKIP(return, "needs two DIMMs");
	there = kt_local(self->other, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &there, &w));
	ASSERT_OK(inject(self, "queues", "2"));
	ASSERT_OK(inject(self, "hang", "1"));
	EXPECT_EQ(-ETIMEDOUT, kt_migrate(&w, &home));
	ASSERT_OK(kt_where(&w, &now));
	EXPECT_EQ(self->other, now.r[0].dimm);
	expect_works(_metadata, self);
	EXPECT_EQ(0, kt_migrate(&w, &home));
	ASSERT_OK(kt_destroy(&w));
}

/* A reset while memory is being zeroed: the object is zero all the same. */
TEST_F(fault, zeroing_survives_a_reset)
{
	struct kt_bo io;

	NEED();
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 1 << 20, &io));
	ASSERT_OK(kt_map(&io, RW));
	kt_io_fill(&io, 1U << self->dimm, 0, 0xee, 1 << 20);
	ASSERT_OK(kt_destroy(&io));
	ASSERT_OK(inject(self, "queues", "2"));
	ASSERT_OK(inject(self, "hang", "1"));
	{
		int r = kt_io(self->fd, 1U << self->dimm, 1 << 20, &io);

		/* Given up for want of an answer, or tried again. */
		EXPECT_TRUE(r == 0 || r == -ETIMEDOUT) {
			TH_LOG("creation gave %d", r);
		}
		if (r)
			ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 1 << 20, &io));
	}
	ASSERT_OK(kt_map(&io, PROT_READ));
	EXPECT_TRUE(kt_io_is(&io, 1U << self->dimm, 0, 0, 1 << 20));
	ASSERT_OK(kt_destroy(&io));
	expect_works(_metadata, self);
}

/* ---- a DIMM that breaks --------------------------------------------------------------------- */

TEST_F(fault, fatal_error_is_reset)
{
	NEED();
	ASSERT_OK(inject(self, "fatal", "on"));
	for (int i = 0; i < 200; i++) {
		struct moendp_query q;

		ASSERT_OK(kt_query(self->fd, self->dimm, &q));
		if (q.resets != self->before.resets && q.dimm_state == MOENDP_DIMM_READY)
			break;
		kt_sleep_ms(20);
	}
	expect_works(_metadata, self);
	expect_resets(_metadata, self, 1);
}

/* What is lost stays lost: every way to it says ENODEV, and mappings raise SIGBUS. */
static void expect_lost(struct __test_metadata *_metadata, fault_t *self)
{
	struct moendp_bo_info info;
	struct kt_place p;
	struct kt_bo bo;

	/* First the DIMM is said to have failed, then what it held is gone through. */
	for (int i = 0; i < 200; i++) {
		ASSERT_OK(kt_info(&self->io, &info));
		if (info.state & MOENDP_BO_STATE_LOST)
			break;
		kt_sleep_ms(20);
	}
	ASSERT_OK(kt_info(&self->w, &info));
	EXPECT_EQ(MOENDP_BO_STATE_SEALED | MOENDP_BO_STATE_LOST, info.state);
	ASSERT_OK(kt_info(&self->io, &info));
	EXPECT_EQ(MOENDP_BO_STATE_LOST, info.state);
	EXPECT_EQ(-ENODEV, kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL));
	EXPECT_EQ(SIGBUS, kt_touch_signal(self->io.map, KT_PAGE, false));
	bo = self->w;
	EXPECT_EQ(-ENODEV, kt_map(&bo, PROT_READ));
	if (self->other >= 0) {
		p = kt_local(self->other, BLOCKS);
		EXPECT_EQ(-ENODEV, kt_migrate(&self->w, &p));
		EXPECT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
		EXPECT_OK(kt_destroy(&bo));
	}
}

TEST_F(fault, dimm_that_reads_as_all_ones_has_failed)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_query q;
	struct kt_bo bo;
	int r;

	NEED();
	ASSERT_OK(inject(self, "gone", "on"));
	r = kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL);
	EXPECT_TRUE(r == -ETIMEDOUT || r == -ENODEV) {
		TH_LOG("command gave %d", r);
	}
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_FAILED, WAIT_MS));
	expect_lost(_metadata, self);
	EXPECT_EQ(-ENODEV, kt_expert(self->fd, H, H, ROWS, &p, &bo));
	EXPECT_EQ(-ENODEV, kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
	ASSERT_OK(inject(self, "gone", "off"));
	/* It does not come back by itself, and not with its old content. */
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(MOENDP_DIMM_FAILED, q.dimm_state);
	ASSERT_EQ(0, kt_unbind(self->address));
	ASSERT_EQ(0, kt_bind(self->address));
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, WAIT_MS));
	expect_lost(_metadata, self);
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
	ASSERT_OK(kt_destroy(&bo));
}

/* C13: a reset that never ends is given up at its deadline, and the DIMM has failed. */
TEST_F(fault, reset_that_does_not_end)
{
	uint64_t start;
	int r;

	NEED();
	ASSERT_OK(inject(self, "reset-stuck", "on"));
	ASSERT_OK(inject(self, "queues", "1"));
	ASSERT_OK(inject(self, "hang", "1"));
	start = kt_now_ms();
	r = kt_submit(self->fd, MOENDP_CMD_FFN, &self->cmd, NULL, NULL);
	EXPECT_TRUE(r == -ETIMEDOUT || r == -ENODEV) {
		TH_LOG("command gave %d", r);
	}
	EXPECT_GE(10 * TIMEOUT_MS * kt_slow(), kt_now_ms() - start);
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_FAILED, WAIT_MS));
	expect_lost(_metadata, self);
	ASSERT_OK(inject(self, "reset-stuck", "off"));
}

/* ---- storm ---------------------------------------------------------------------------------- */

struct storm {
	fault_t *self;
	atomic_bool *stop;
	struct kt_bo io;
	unsigned int ok;
	unsigned int ended;
	int wrong;
};

/* Eight at a time through a ring, forever; what says that it succeeded must be right. */
static void *storm_of_commands(void *arg)
{
	struct storm *s = arg;
	fault_t *self = s->self;
	struct moendp_cmd c = self->cmd;
	double y[H], ref[H], bound[H];
	struct kt_ring ring;
	struct kt_cqe cqe;

	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, ref, bound);
	if (kt_ring_init(&ring, 8, KT_RING_FLAGS)) {
		s->wrong = -1;
		return NULL;
	}
	c.x_bo = s->io.handle;
	c.y_bo = s->io.handle;
	while (!*s->stop && !s->wrong) {
		kt_io_fill(&s->io, 1U << self->dimm, Y_OFF, KT_NAN_BYTE, 8 * KT_PAGE);
		for (int i = 0; i < 8; i++) {
			c.y_off = Y_OFF + i * KT_PAGE;
			if (kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &c, i))
				s->wrong = -2;
		}
		if (kt_ring_submit(&ring) != 8)
			s->wrong = -3;
		for (int i = 0; i < 8; i++) {
			int r = kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow());

			if (r) {
				s->wrong = r;
				break;
			}
			if (cqe.res == -ETIMEDOUT || cqe.res == -ECANCELED || cqe.res == -EIO) {
				s->ended++;
				continue;
			}
			if (cqe.res) {
				s->wrong = cqe.res;
				continue;
			}
			kt_io_sum(&s->io, 1U << self->dimm, Y_OFF + cqe.user_data * KT_PAGE, H, y);
			if (kt_differs(y, ref, bound, H) >= 0)
				s->wrong = 1;
			s->ok++;
		}
	}
	kt_ring_exit(&ring);
	return NULL;
}

TEST_F(fault, resets_during_a_storm)
{
	static const char *const faults[] = { "hang", "drop", "fatal", "error", "lost-irq",
					      "duplicate" };
	struct storm s[3];
	atomic_bool stop = false;
	pthread_t threads[3];
	struct moendp_query q;

	NEED();
	for (int i = 0; i < 3; i++) {
		s[i] = (struct storm){ .self = self, .stop = &stop };
		ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 16 * KT_PAGE, &s[i].io));
		ASSERT_OK(kt_map(&s[i].io, RW));
		kt_io_write(&s[i].io, 1U << self->dimm, 0, self->x, sizeof(self->x));
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, storm_of_commands, &s[i]));
	}
	for (unsigned int i = 0; i < 2 * ARRAY_SIZE(faults); i++) {
		const char *fault = faults[i % ARRAY_SIZE(faults)];

		ASSERT_OK(inject(self, fault, strcmp(fault, "fatal") ? "1" : "on"));
		kt_sleep_ms(300 * kt_slow());
	}
	kt_sleep_ms(1500 * kt_slow());
	stop = true;
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		EXPECT_EQ(0, s[i].wrong);
		EXPECT_LT(0, s[i].ok);
		ASSERT_OK(kt_destroy(&s[i].io));
	}
	EXPECT_LT(0, s[0].ended + s[1].ended + s[2].ended);
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_LE(3, q.resets - self->before.resets);
	TH_LOG("%u commands right, %u ended by %u resets", s[0].ok + s[1].ok + s[2].ok,
	       s[0].ended + s[1].ended + s[2].ended, q.resets - self->before.resets);
	expect_works(_metadata, self);
}

TEST_HARNESS_MAIN
