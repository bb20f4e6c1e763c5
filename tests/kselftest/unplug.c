// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * unplug.c - a DIMM goes while programs use it: everyone who waits learns of it, what it held is
 * lost, everything else goes on; and it comes back, empty.
 *
 * "Unbound" takes the function from the driver through sysfs, which is the driver's part of it;
 * "unplugged" has the host pull the device, with all that hot-plug does around it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_host.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H		64
#define ROWS		128
#define BLOCKS		4
#define Y_OFF		KT_PAGE
#define IO_BYTES	(64 * KT_PAGE)
#define RW		(PROT_READ | PROT_WRITE)
#define WAIT_MS		30000

FIXTURE(unplug) {
	int fd;
	uint32_t mask;
	unsigned int dimm;	/* the one that goes */
	unsigned int stays;	/* one that does not */
	char address[32];
	struct kt_free free;
	struct kt_ffn e;
	struct kt_bo on_dimm;
	struct kt_bo on_stays;
	struct kt_bo striped;
	struct kt_bo io_dimm;
	struct kt_bo io_stays;
	struct kt_bo io_all;
	uint16_t x[H];
};

FIXTURE_SETUP(unplug)
{
	struct kt_place p;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	self->stays = kt_nth_dimm(self->mask, 0);
	ASSERT_OK(kt_pci_address(self->dimm, self->address, sizeof(self->address)));
	ASSERT_OK(kt_free_read(self->fd, &self->free));
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 61));
	p = kt_local(self->dimm, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->on_dimm));
	p = kt_local(self->stays, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->on_stays));
	p = kt_spread(self->mask, BLOCKS);
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &self->striped));
	kt_x_random(self->x, H, 62);
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, IO_BYTES, &self->io_dimm));
	ASSERT_OK(kt_io(self->fd, 1U << self->stays, IO_BYTES, &self->io_stays));
	ASSERT_OK(kt_io(self->fd, self->mask, IO_BYTES, &self->io_all));
	ASSERT_OK(kt_map(&self->io_dimm, RW));
	ASSERT_OK(kt_map(&self->io_stays, RW));
	ASSERT_OK(kt_map(&self->io_all, RW));
	kt_io_write(&self->io_dimm, self->mask, 0, self->x, sizeof(self->x));
	kt_io_write(&self->io_stays, self->mask, 0, self->x, sizeof(self->x));
	kt_io_write(&self->io_all, self->mask, 0, self->x, sizeof(self->x));
}

FIXTURE_TEARDOWN(unplug)
{
	struct moendp_query q;

	if (kt_query(self->fd, self->dimm, &q) || q.dimm_state != MOENDP_DIMM_READY) {
		kt_unbind(self->address);
		kt_bind(self->address);
	}
	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, WAIT_MS));
	kt_destroy(&self->on_dimm);
	kt_destroy(&self->on_stays);
	kt_destroy(&self->striped);
	kt_destroy(&self->io_dimm);
	kt_destroy(&self->io_stays);
	kt_destroy(&self->io_all);
	EXPECT_OK(kt_free_wait(self->fd, &self->free, 10000 * kt_slow()));
	kt_ffn_free(&self->e);
	close(self->fd);
}

typedef FIXTURE_DATA(unplug) unplug_t;

#define NEED_DIMMS(n) do { \
	if (kt_count(self->mask) < (n)) \
		SKIP(return, "needs %d DIMMs", n); \
} while (0)

static struct moendp_cmd ffn(const struct kt_bo *w, const struct kt_bo *io, uint32_t x_mask)
{
	struct moendp_cmd c = {
		.weights = w->handle, .x_bo = io->handle, .y_bo = io->handle, .x_mask = x_mask,
		.count = BLOCKS, .tokens = 1, .y_off = Y_OFF, .ldx = 2 * H, .ldy = 4 * H,
	};

	return c;
}

static int compute(const unplug_t *self, const struct kt_bo *w, const struct kt_bo *io)
{
	struct moendp_cmd c = ffn(w, io, io->dimm_mask);
	double y[H], ref[H], bound[H];
	uint32_t mask;
	int r = kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL);

	if (r)
		return r;
	kt_ffn_ref(&self->e, 0, BLOCKS, self->x, ref, bound);
	kt_io_sum(io, mask, Y_OFF, H, y);
	return kt_differs(y, ref, bound, H) < 0 ? 0 : -EILSEQ;
}

/* What lay on the DIMM is lost in every respect; what did not is as before. */
static void expect_lost(struct __test_metadata *_metadata, unplug_t *self)
{
	const struct kt_bo *lost[] = {
		&self->on_dimm, &self->striped, &self->io_dimm, &self->io_all,
	};
	struct kt_place p = kt_local(self->stays, BLOCKS);
	struct moendp_bo_info info;
	struct kt_bo again;

	for (unsigned int i = 0; i < ARRAY_SIZE(lost); i++) {
		ASSERT_OK(kt_info(lost[i], &info));
		EXPECT_EQ(MOENDP_BO_STATE_LOST, info.state & MOENDP_BO_STATE_LOST);
		again = *lost[i];
		EXPECT_EQ(-ENODEV, kt_map(&again, PROT_READ));
	}
	EXPECT_EQ(-ENODEV, compute(self, &self->on_dimm, &self->io_dimm));
	EXPECT_EQ(-ENODEV, compute(self, &self->striped, &self->io_all));
	EXPECT_EQ(-ENODEV, compute(self, &self->on_stays, &self->io_all));
	EXPECT_EQ(-ENODEV, kt_migrate(&self->on_dimm, &p));
	EXPECT_EQ(-ENODEV, kt_migrate(&self->striped, &p));
	EXPECT_EQ(SIGBUS, kt_touch_signal(self->io_dimm.map, KT_PAGE, false));
	EXPECT_EQ(SIGBUS, kt_touch_signal(self->io_dimm.map, KT_PAGE, true));
	EXPECT_EQ(SIGBUS, kt_touch_signal(self->io_all.map, KT_PAGE, false));

	ASSERT_OK(kt_info(&self->on_stays, &info));
	EXPECT_EQ(MOENDP_BO_STATE_SEALED, info.state);
	EXPECT_EQ(0, compute(self, &self->on_stays, &self->io_stays));
	EXPECT_EQ(0, kt_touch_signal(self->io_stays.map, IO_BYTES, true));
	kt_io_write(&self->io_stays, self->mask, 0, self->x, sizeof(self->x));
}

static void expect_absent(struct __test_metadata *_metadata, unplug_t *self)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_query q;
	struct kt_bo bo;

	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(MOENDP_DIMM_ABSENT, q.dimm_state);
	EXPECT_EQ(self->mask & ~(1U << self->dimm), q.dimm_mask);
	EXPECT_EQ(0, q.mem_bytes);
	EXPECT_EQ(-ENODEV, kt_expert(self->fd, H, H, ROWS, &p, &bo));
	EXPECT_EQ(-ENODEV, kt_io(self->fd, 1U << self->dimm, KT_PAGE, &bo));
	EXPECT_EQ(-ENODEV, kt_migrate(&self->on_stays, &p));
	/* On the others objects come and go as before. */
	p = kt_local(self->stays, BLOCKS);
	EXPECT_OK(kt_expert(self->fd, H, H, ROWS, &p, &bo));
	EXPECT_OK(kt_destroy(&bo));
}

/* A DIMM that was added again knows nothing of before, and works. */
static void expect_back_and_empty(struct __test_metadata *_metadata, unplug_t *self)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS);
	struct moendp_query q;
	struct kt_bo w, io;

	EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, WAIT_MS * kt_slow()));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(self->mask, q.dimm_mask);
	EXPECT_EQ(self->free.free_bytes[self->dimm], q.free_bytes);
	EXPECT_EQ(q.mem_bytes, q.free_bytes);
	expect_lost(_metadata, self);
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, IO_BYTES, &io));
	ASSERT_OK(kt_map(&io, RW));
	EXPECT_TRUE(kt_io_is(&io, self->mask, 0, 0, IO_BYTES));
	kt_io_write(&io, self->mask, 0, self->x, sizeof(self->x));
	ASSERT_OK(kt_sealed_ffn(self->fd, &self->e, &p, &w));
	EXPECT_EQ(0, compute(self, &w, &io));
	if (self->stays != self->dimm) {
		p = kt_local(self->stays, BLOCKS);
		EXPECT_EQ(0, kt_migrate(&w, &p));
		p = kt_local(self->dimm, BLOCKS);
		EXPECT_EQ(0, kt_migrate(&w, &p));
		EXPECT_EQ(0, compute(self, &w, &io));
	}
	ASSERT_OK(kt_destroy(&w));
	ASSERT_OK(kt_destroy(&io));
}

/* ---- C14: with waiters and mappings ---------------------------------------------------------- */

static __thread sigjmp_buf bus_jump;
static atomic_uint bus_errors;

static void on_bus_error(int sig)
{
	(void)sig;
	bus_errors++;
	siglongjmp(bus_jump, 1);
}

struct user {
	unplug_t *self;
	atomic_bool stop;
	atomic_bool waiting;
	unsigned int good;
	int r;
};

/* Reads a mapping of the DIMM until there is nothing more to read. */
static void *read_mapping(void *arg)
{
	struct user *u = arg;
	const volatile uint8_t *map = u->self->io_dimm.map;

	if (sigsetjmp(bus_jump, 1))
		return NULL;
	while (!u->stop)
		for (size_t i = 0; i < IO_BYTES; i += KT_PAGE) {
			(void)map[i];
			u->good++;
		}
	return NULL;
}

static void *wait_in_submit(void *arg)
{
	struct user *u = arg;
	struct moendp_cmd c = ffn(&u->self->on_dimm, &u->self->io_dimm, 1U << u->self->dimm);

	u->waiting = true;
	u->r = kt_submit(u->self->fd, MOENDP_CMD_FFN, &c, NULL, NULL);
	return NULL;
}

static void *compute_elsewhere(void *arg)
{
	struct user *u = arg;

	while (!u->stop && !u->r) {
		u->r = compute(u->self, &u->self->on_stays, &u->self->io_stays);
		u->good++;
	}
	return NULL;
}

#define NR_IN_RING	40

static void removed_under_load(struct __test_metadata *_metadata, unplug_t *self, bool by_host)
{
	struct user reader = { .self = self }, waiter = reader, elsewhere = reader;
	struct moendp_cmd c = ffn(&self->on_dimm, &self->io_dimm, 1U << self->dimm);
	struct sigaction act = { .sa_handler = on_bus_error }, old;
	unsigned int good_before;
	pthread_t threads[3];
	struct kt_ring ring;
	struct kt_cqe cqe;
	char path[64];
	int node;

	kt_dimm_node(self->dimm, path, sizeof(path));
	node = kt_open_path(path);
	ASSERT_LE(0, node);
	ASSERT_EQ(0, sigaction(SIGBUS, &act, &old));
	ASSERT_OK(kt_ring_init(&ring, 64, KT_RING_FLAGS));
	ASSERT_OK(kt_set(self->dimm, "x-inject-queues", "1"));
	ASSERT_OK(kt_set(self->dimm, "x-inject-hang", "1"));
	ASSERT_EQ(0, pthread_create(&threads[0], NULL, read_mapping, &reader));
	ASSERT_EQ(0, pthread_create(&threads[1], NULL, wait_in_submit, &waiter));
	ASSERT_EQ(0, pthread_create(&threads[2], NULL, compute_elsewhere, &elsewhere));
	for (int i = 0; i < NR_IN_RING; i++)
		ASSERT_OK(kt_ring_cmd(&ring, self->fd, MOENDP_CMD_FFN, &c, i));
	ASSERT_EQ(NR_IN_RING, kt_ring_submit(&ring));
	kt_sleep_ms(200);
	ASSERT_EQ(-ETIME, kt_ring_wait(&ring, &cqe, 0));

	ASSERT_OK(by_host ? kt_unplug(self->dimm) : kt_unbind(self->address));

	for (int i = 0; i < NR_IN_RING; i++) {
		ASSERT_OK(kt_ring_wait(&ring, &cqe, WAIT_MS));
		EXPECT_EQ(-ENODEV, cqe.res);
	}
	pthread_join(threads[1], NULL);
	EXPECT_EQ(-ENODEV, waiter.r);
	pthread_join(threads[0], NULL);
	EXPECT_LT(0, reader.good);
	EXPECT_EQ(1, bus_errors);
	good_before = elsewhere.good;
	kt_sleep_ms(100 * kt_slow());
	elsewhere.stop = true;
	pthread_join(threads[2], NULL);
	EXPECT_EQ(0, elsewhere.r);
	EXPECT_LT(good_before, elsewhere.good);
	sigaction(SIGBUS, &old, NULL);

	expect_absent(_metadata, self);
	expect_lost(_metadata, self);
	/* The DIMM's own node: gone for those who come, dead for those who are there. */
	{
		struct kt_place p = kt_local(self->dimm, BLOCKS);
		int late = kt_open_path(path);
		struct kt_bo bo;

		EXPECT_TRUE(late == -ENOENT || late == -ENODEV || late == -ENXIO) {
			TH_LOG("opening the node of a DIMM that is gone gave %d", late);
		}
		EXPECT_EQ(-ENODEV, kt_expert(node, H, H, ROWS, &p, &bo));
		close(node);
	}
	ASSERT_OK(by_host ? kt_plug(self->dimm) : kt_bind(self->address));
	expect_back_and_empty(_metadata, self);
	kt_ring_exit(&ring);
}

TEST_F(unplug, unplugged_with_waiters_and_mappings)
{
	NEED_DIMMS(2);
	if (!kt_host_there())
		SKIP(return, "needs the host (/bin/host) to unplug a DIMM");
	removed_under_load(_metadata, self, true);
}

TEST_F(unplug, unbound_with_waiters_and_mappings)
{
	NEED_DIMMS(2);
	if (!kt_host_there())
		SKIP(return, "needs the host (/bin/host) to make a command hang");
	removed_under_load(_metadata, self, false);
}

/* ---- other ways to be in the way ------------------------------------------------------------- */

TEST_F(unplug, holder_of_a_placement_fd_learns_of_the_loss)
{
	struct moendp_placement_entry e[8];
	struct moendp_placement_list l = {
		.size = sizeof(l), .entries = (uintptr_t)e, .nr_entries = 8,
	};
	int holder = kt_placement_fd(self->fd);
	struct pollfd p = { .fd = holder, .events = POLLIN };
	unsigned int lost = 0;

	NEED_DIMMS(2);
	ASSERT_LE(0, holder);
	ASSERT_EQ(0, kt_ioctl(holder, MOENDP_IOC_PLACEMENT_LIST, &l));
	ASSERT_EQ(3, l.nr_entries);
	ASSERT_EQ(0, poll(&p, 1, 0));
	ASSERT_OK(kt_unbind(self->address));
	EXPECT_EQ(1, poll(&p, 1, 5000));
	EXPECT_EQ(POLLIN, p.revents & (POLLIN | POLLHUP));
	l.start = 0;
	l.nr_entries = 8;
	ASSERT_EQ(0, kt_ioctl(holder, MOENDP_IOC_PLACEMENT_LIST, &l));
	ASSERT_EQ(3, l.nr_entries);
	for (int i = 0; i < 3; i++)
		lost += !!(e[i].state & MOENDP_BO_STATE_LOST);
	EXPECT_EQ(2, lost);
	ASSERT_OK(kt_bind(self->address));
	close(holder);
}

struct churn {
	unplug_t *self;
	atomic_bool stop;
	atomic_int wrong;
	atomic_uint good;
	atomic_uint lost;
};

/* Anything may be refused for want of the DIMM; nothing may go wrong in another way. */
static bool is_loss(int r)
{
	return r == -ENODEV || r == -ENXIO || r == -ENOENT || r == -ECANCELED || r == -ENOLINK ||
	       r == -EXDEV;
}

static void note(struct churn *c, int r)
{
	if (r >= 0)
		c->good++;
	else if (is_loss(r))
		c->lost++;
	else
		c->wrong = r;
}

/* One life of an object. SIGBUS may end it anywhere; @bo says what there is to clean up. */
static void one_life(struct churn *c, struct kt_bo *bo, uint64_t random)
{
	unplug_t *self = c->self;
	struct kt_place p = kt_local(random & 1 ? self->dimm : self->stays, BLOCKS);
	struct kt_place to = kt_local(random & 2 ? self->dimm : self->stays, BLOCKS);
	int r = kt_expert(self->fd, H, H, ROWS, &p, &bo[0]);

	note(c, r);
	if (r)
		return;
	r = kt_map(&bo[0], RW);
	note(c, r);
	if (r)
		return;
	kt_ffn_pack(&self->e, bo[0].map);
	note(c, kt_unmap(&bo[0]));
	r = kt_seal(&bo[0]);
	note(c, r);
	if (r)
		return;
	note(c, kt_migrate(&bo[0], &to));
	r = kt_io(self->fd, 1U << self->stays | 1U << self->dimm, 2 * KT_PAGE, &bo[1]);
	note(c, r);
	if (r)
		return;
	r = kt_map(&bo[1], RW);
	note(c, r);
	if (r)
		return;
	kt_io_write(&bo[1], bo[1].dimm_mask, 0, self->x, sizeof(self->x));
	note(c, compute(self, &bo[0], &bo[1]));
}

/* Creates, fills, computes, migrates and destroys on DIMMs that come and go. */
static void *live_and_die(void *arg)
{
	struct churn *c = arg;
	uint64_t state = (uintptr_t)&state;
	struct kt_bo *bo = calloc(2, sizeof(*bo));

	while (bo && !c->stop) {
		if (sigsetjmp(bus_jump, 1))
			c->lost++;
		else
			one_life(c, bo, kt_random(&state));
		for (int i = 0; i < 2; i++)
			if (bo[i].handle)
				note(c, kt_destroy(&bo[i]));
	}
	free(bo);
	return NULL;
}

static void *open_and_close(void *arg)
{
	struct churn *c = arg;
	char path[64];

	kt_dimm_node(c->self->dimm, path, sizeof(path));
	while (!c->stop) {
		int fd = kt_open_path(path);
		struct moendp_query q;
		struct kt_bo bo;

		note(c, fd);
		if (fd < 0)
			continue;
		note(c, kt_query(fd, c->self->dimm, &q));
		note(c, kt_io(fd, 1U << c->self->dimm, KT_PAGE, &bo));
		close(fd);
	}
	return NULL;
}

TEST_F(unplug, comes_and_goes_under_everything)
{
	const int rounds = 12 / kt_slow() + 3;
	struct sigaction act = { .sa_handler = on_bus_error };
	struct churn c[2];
	pthread_t threads[4];

	NEED_DIMMS(2);
	ASSERT_EQ(0, sigaction(SIGBUS, &act, NULL));
	for (int i = 0; i < 2; i++)
		c[i] = (struct churn){ .self = self };
	ASSERT_EQ(0, pthread_create(&threads[0], NULL, live_and_die, &c[0]));
	ASSERT_EQ(0, pthread_create(&threads[1], NULL, live_and_die, &c[0]));
	ASSERT_EQ(0, pthread_create(&threads[2], NULL, open_and_close, &c[1]));
	ASSERT_EQ(0, pthread_create(&threads[3], NULL, open_and_close, &c[1]));
	for (int i = 0; i < rounds; i++) {
		kt_sleep_ms(100 * kt_slow());
		ASSERT_OK(kt_unbind(self->address));
		kt_sleep_ms(30 * kt_slow());
		ASSERT_OK(kt_bind(self->address));
	}
	for (int i = 0; i < 2; i++)
		c[i].stop = true;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(0, c[i].wrong);
		EXPECT_LT(0, c[i].good);
	}
	TH_LOG("%u calls, %u found the DIMM gone; %u and %u of opening", c[0].good + c[0].lost,
	       c[0].lost, c[1].good + c[1].lost, c[1].lost);
}

TEST_F(unplug, module_stays_while_a_file_is_open)
{
	EXPECT_EQ(-1, syscall(SYS_delete_module, "moendp", O_NONBLOCK));
	EXPECT_EQ(EAGAIN, errno);
	EXPECT_EQ(0, compute(self, &self->on_stays, &self->io_stays));
}

/* ---- all of them ----------------------------------------------------------------------------- */

FIXTURE(domain) {
	int fd;
	uint32_t mask;
	char address[MOENDP_MAX_DIMMS][32];
};

FIXTURE_SETUP(domain)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		if (self->mask & (1U << d))
			ASSERT_OK(kt_pci_address(d, self->address[d], sizeof(self->address[d])));
}

static void unbind_all(FIXTURE_DATA(domain) *self)
{
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		if (self->mask & (1U << d))
			kt_unbind(self->address[d]);
}

static void bind_all(FIXTURE_DATA(domain) *self)
{
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		if (self->mask & (1U << d))
			kt_bind(self->address[d]);
	for (int i = 0; i < 200 && access(kt_node(), R_OK | W_OK); i++)
		kt_sleep_ms(20);
}

FIXTURE_TEARDOWN(domain)
{
	close(self->fd);
	/* Those that are bound stay as they are. */
	bind_all(self);
}

/* Who has the domain open finds its DIMMs again when they come; else it goes with the last. */
TEST_F(domain, without_dimms)
{
	struct kt_place p = kt_local(kt_nth_dimm(self->mask, 0), BLOCKS);
	struct kt_free before, after;
	struct moendp_query q;
	struct kt_bo io, w;

	ASSERT_OK(kt_free_read(self->fd, &before));
	ASSERT_OK(kt_io(self->fd, self->mask, KT_PAGE, &io));
	ASSERT_OK(kt_map(&io, RW));
	unbind_all(self);
	EXPECT_EQ(-ENODEV, kt_open());
	EXPECT_EQ(-ENODEV, kt_io(self->fd, self->mask, KT_PAGE, &w));
	EXPECT_EQ(-ENODEV, kt_expert(self->fd, H, H, ROWS, &p, &w));
	EXPECT_EQ(-ENODEV, kt_query(self->fd, p.r[0].dimm, &q));
	EXPECT_EQ(SIGBUS, kt_touch_signal(io.map, KT_PAGE, false));
	ASSERT_OK(kt_destroy(&io));
	/* They come back to the file that is open ... */
	bind_all(self);
	EXPECT_EQ(self->mask, kt_dimm_mask(self->fd));
	ASSERT_OK(kt_io(self->fd, self->mask, KT_PAGE, &io));
	ASSERT_OK(kt_destroy(&io));
	/* ... and without an open file there is no domain. */
	unbind_all(self);
	EXPECT_EQ(0, access(kt_node(), F_OK));
	close(self->fd);
	for (int i = 0; i < 200 && !access(kt_node(), F_OK); i++)
		kt_sleep_ms(20);
	EXPECT_EQ(-1, access(kt_node(), F_OK));
	bind_all(self);
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	EXPECT_EQ(self->mask, kt_dimm_mask(self->fd));
	ASSERT_OK(kt_free_read(self->fd, &after));
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
}

TEST_HARNESS_MAIN
