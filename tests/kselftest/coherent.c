// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * coherent.c - a DIMM that does not see CPU caches: the driver writes lines back and throws lines
 * out where it must. The emulation is coherent all the same, so that counters have to prove it.
 *
 * The host plugs such a DIMM in the place of one that does see caches, for the length of a test.
 */
#include <errno.h>
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_host.h"
#include "kt_ref.h"

#define H	64
#define ROWS	256
#define BLOCKS	8
#define Y_OFF	KT_PAGE
#define LINE	64
#define RW	(PROT_READ | PROT_WRITE)

static uint64_t lines(int fd, unsigned int dimm)
{
	struct moendp_query q;

	return kt_query(fd, dimm, &q) ? 0 : q.cache_lines_flushed;
}

/* What a library does for x before a command and for y after it. */
static void flush(const void *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += LINE)
		_mm_clflush((const uint8_t *)p + i);
	_mm_mfence();
}

/* A DIMM that sees caches costs no flush at all. */
TEST(coherent_dimms_are_never_flushed)
{
	struct moendp_query q;
	int fd = kt_open();
	uint32_t mask;

	ASSERT_LE(0, fd);
	mask = kt_dimm_mask(fd);
	ASSERT_OK(kt_query(fd, kt_nth_dimm(mask, 0), &q));
	if (!(q.features & MOENDP_FEAT_COHERENT))
		SKIP(return, "the DIMMs of this guest are not coherent");
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++)
		if (mask & (1U << d)) {
			struct kt_place p = kt_local(d, BLOCKS);
			struct kt_ffn e;
			struct kt_bo w;

			ASSERT_OK(kt_ffn_random(&e, H, H, ROWS, d));
			ASSERT_OK(kt_sealed_ffn(fd, &e, &p, &w));
			EXPECT_EQ(0, lines(fd, d));
			ASSERT_OK(kt_destroy(&w));
			kt_ffn_free(&e);
		}
	close(fd);
}

FIXTURE(incoherent) {
	int fd;
	uint32_t mask;
	unsigned int dimm;
	unsigned int other;
	const char *missing;
	bool replaced;
	struct kt_ffn e;
};

FIXTURE_SETUP(incoherent)
{
	struct moendp_query q;

	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->dimm = kt_nth_dimm(self->mask, kt_count(self->mask) - 1);
	self->other = kt_nth_dimm(self->mask, 0);
	ASSERT_OK(kt_ffn_random(&self->e, H, H, ROWS, 71));
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	if (!(q.features & MOENDP_FEAT_COHERENT))
		return;
	if (kt_count(self->mask) < 2) {
		self->missing = "needs two DIMMs, or one that is not coherent";
	} else if (!kt_host_there()) {
		self->missing = "needs the host (/bin/host), or DIMMs that are not coherent";
	} else {
		ASSERT_OK(kt_unplug(self->dimm));
		self->replaced = true;
		ASSERT_OK(kt_host(NULL, 0, "plug dimm%u coherent=off", self->dimm));
		ASSERT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, 60000));
	}
}

FIXTURE_TEARDOWN(incoherent)
{
	if (self->replaced) {
		kt_unplug(self->dimm);
		EXPECT_OK(kt_plug(self->dimm));
		EXPECT_OK(kt_wait_state(self->fd, self->dimm, MOENDP_DIMM_READY, 60000));
	}
	kt_ffn_free(&self->e);
	close(self->fd);
}

/* One test for all, because plugging takes many seconds. */
TEST_F(incoherent, every_place_is_flushed)
{
	struct kt_place p = kt_local(self->dimm, BLOCKS), away = kt_local(self->other, BLOCKS);
	uint64_t before, after;
	double y[H], ref[H], bound[H];
	struct moendp_query q;
	struct moendp_cmd c;
	struct kt_bo w, io;
	uint16_t x[H];
	uint8_t *at;

	if (self->missing)
		SKIP(return, "%s", self->missing);
	/* One such DIMM is enough: users have to flush. */
	ASSERT_OK(kt_query(self->fd, self->dimm, &q));
	EXPECT_EQ(0, q.features & MOENDP_FEAT_COHERENT);

	/* New memory: nothing old may be written back over the zeroes. */
	before = lines(self->fd, self->dimm);
	ASSERT_OK(kt_expert(self->fd, H, H, ROWS, &p, &w));
	after = lines(self->fd, self->dimm);
	EXPECT_LE(w.bytes / LINE, after - before);

	/* Sealing: what the CPU wrote reaches the DIMM. */
	ASSERT_OK(kt_map(&w, RW));
	kt_ffn_pack(&self->e, w.map);
	ASSERT_OK(kt_unmap(&w));
	before = lines(self->fd, self->dimm);
	ASSERT_OK(kt_seal(&w));
	after = lines(self->fd, self->dimm);
	EXPECT_EQ(w.bytes / LINE, after - before);
	/* Once. */
	ASSERT_OK(kt_seal(&w));
	EXPECT_EQ(after, lines(self->fd, self->dimm));

	/* A command: its entry in the ring before the doorbell, and completions before reading. */
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, 2 * KT_PAGE, &io));
	ASSERT_OK(kt_map(&io, RW));
	at = kt_replica(&io, self->dimm);
	kt_x_random(x, H, 72);
	memcpy(at, x, sizeof(x));
	memset(at + Y_OFF, KT_NAN_BYTE, 4 * H);
	flush(at, sizeof(x));
	flush(at + Y_OFF, 4 * H);
	c = (struct moendp_cmd){
		.weights = w.handle, .x_bo = io.handle, .y_bo = io.handle,
		.x_mask = 1U << self->dimm, .count = BLOCKS, .tokens = 1, .y_off = Y_OFF,
		.ldx = 2 * H, .ldy = 4 * H,
	};
	before = lines(self->fd, self->dimm);
	for (int i = 0; i < 100; i++)
		ASSERT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	after = lines(self->fd, self->dimm);
	/* One entry, one completion, and a look at the next that is not there yet. */
	EXPECT_LE(100 * 3, after - before);
	EXPECT_GE(100 * 20, after - before);
	flush(at + Y_OFF, 4 * H);
	kt_ffn_ref(&self->e, 0, BLOCKS, x, ref, bound);
	kt_io_sum(&io, 1U << self->dimm, Y_OFF, H, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, H));

	/* A migration to it: the destination. From it: the DIMM reads its own memory. */
	ASSERT_OK(kt_migrate(&w, &away));
	before = lines(self->fd, self->dimm);
	ASSERT_OK(kt_migrate(&w, &p));
	after = lines(self->fd, self->dimm);
	EXPECT_LE(w.bytes / LINE, after - before);
	ASSERT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	flush(at + Y_OFF, 4 * H);
	kt_io_sum(&io, 1U << self->dimm, Y_OFF, H, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, H));

	/* The other DIMM is coherent, and nothing is spent on it. */
	if (self->replaced)
		EXPECT_EQ(0, lines(self->fd, self->other));
	ASSERT_OK(kt_destroy(&w));
	ASSERT_OK(kt_destroy(&io));
}

TEST_HARNESS_MAIN
