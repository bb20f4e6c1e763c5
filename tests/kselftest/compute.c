// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * compute.c - GEMV, ACT and FFN through the driver, against the FP64 reference; which DIMMs
 * compute, and what they leave alone. (What the driver refuses: submit.c.)
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"

#define MAX_H		512
#define TOKENS		5
#define X_OFF		0
#define LIST_OFF	(16 * KT_PAGE)
#define Y_OFF		(32 * KT_PAGE)
#define IO_BYTES	(64 * KT_PAGE)

FIXTURE(compute) {
	int fd;
	uint32_t mask;
	unsigned int nr;
	unsigned int dimm;
	struct moendp_query q;
	struct kt_bo io;
};

FIXTURE_SETUP(compute)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
	self->mask = kt_dimm_mask(self->fd);
	self->nr = kt_count(self->mask);
	self->dimm = kt_nth_dimm(self->mask, 0);
	ASSERT_OK(kt_query(self->fd, self->dimm, &self->q));
	ASSERT_OK(kt_io(self->fd, self->mask, IO_BYTES, &self->io));
	ASSERT_OK(kt_map(&self->io, PROT_READ | PROT_WRITE));
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
}

FIXTURE_TEARDOWN(compute)
{
	close(self->fd);
}

typedef FIXTURE_DATA(compute) compute_t;

static unsigned int stride_of(unsigned int bytes)
{
	return (bytes + 63) / 64 * 64;
}

static struct moendp_cmd command(const compute_t *self, const struct kt_bo *w, uint32_t x_mask,
				 unsigned int first, unsigned int count, unsigned int tokens)
{
	struct moendp_cmd c = {
		.weights = w->handle, .x_bo = self->io.handle, .y_bo = self->io.handle,
		.x_mask = x_mask, .first = first, .count = count, .tokens = tokens,
		.x_off = X_OFF, .y_off = Y_OFF, .ldx = stride_of(2 * w->h_in),
		.ldy = stride_of(4 * w->h_out),
	};

	return c;
}

/* x of each token into the replicas of a mask; what is between the rows stays NaN. */
static void write_x(const compute_t *self, uint32_t mask, const uint16_t *x, unsigned int h,
		    unsigned int tokens, unsigned int ldx)
{
	for (unsigned int t = 0; t < tokens; t++)
		kt_io_write(&self->io, mask, X_OFF + t * ldx, x + t * h, 2 * h);
}

static void expect_ffn(struct __test_metadata *_metadata, const compute_t *self,
		       const struct kt_ffn *e, const struct moendp_cmd *c, uint32_t mask,
		       const uint16_t *x)
{
	double y[MAX_H], ref[MAX_H], bound[MAX_H];

	for (unsigned int t = 0; t < c->tokens; t++) {
		int at;

		kt_ffn_ref(e, c->first, c->count, x + t * e->h_in, ref, bound);
		kt_io_sum(&self->io, mask, c->y_off + t * c->ldy, e->h_out, y);
		at = kt_differs(y, ref, bound, e->h_out);
		EXPECT_EQ(-1, at) {
			TH_LOG("token %u, output %d: %g, not %g +- %g", t, at, y[at], ref[at],
			       bound[at]);
		}
	}
	/* Between the rows of y nothing is written. */
	for (unsigned int t = 0; t < c->tokens; t++)
		EXPECT_TRUE(kt_io_is(&self->io, mask, c->y_off + t * c->ldy + 4 * e->h_out,
				     KT_NAN_BYTE, c->ldy - 4 * e->h_out));
}

/* FFN of whole experts: shapes that divide nicely and that do not, everywhere they can lie. */
static void ffn_everywhere(struct __test_metadata *_metadata, const compute_t *self,
			   unsigned int h_in, unsigned int h_out, unsigned int rows)
{
	uint16_t x[TOKENS * MAX_H];
	struct kt_ffn e;
	struct kt_bo w;

	ASSERT_OK(kt_ffn_random(&e, h_in, h_out, rows, h_in + rows));
	kt_x_random(x, TOKENS * h_in, 7);
	for (unsigned int n = 1; n <= self->nr; n++) {
		uint32_t on = 0;
		struct kt_place p;
		struct moendp_cmd c;
		uint32_t mask = 0;
		uint64_t ns = 0;

		for (unsigned int i = 0; i < n; i++)
			on |= 1U << kt_nth_dimm(self->mask, self->nr - 1 - i);
		p = kt_spread(on, kt_blocks(rows));
		ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
		kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
		c = command(self, &w, on, 0, kt_blocks(rows), TOKENS);
		write_x(self, on, x, h_in, TOKENS, c.ldx);
		ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, &ns));
		EXPECT_EQ(kt_place_mask(&p), mask);
		EXPECT_LT(0, ns);
		expect_ffn(_metadata, self, &e, &c, mask, x);
		/* DIMMs without blocks have nothing to write. */
		EXPECT_TRUE(kt_io_is(&self->io, self->mask & ~mask, Y_OFF, KT_NAN_BYTE,
				     IO_BYTES - Y_OFF));
		ASSERT_OK(kt_destroy(&w));
	}
	kt_ffn_free(&e);
}

TEST_F(compute, ffn_of_an_even_shape)
{
	ffn_everywhere(_metadata, self, 64, 64, 256);
}

TEST_F(compute, ffn_of_an_odd_shape)
{
	ffn_everywhere(_metadata, self, 100, 100, 36);
	ffn_everywhere(_metadata, self, 33, 129, 65);
	ffn_everywhere(_metadata, self, 1, 1, 1);
}

TEST_F(compute, ffn_of_more_inputs_than_outputs)
{
	ffn_everywhere(_metadata, self, 320, 64, 96);
	ffn_everywhere(_metadata, self, 65, 320, 96);
}

/* C5: a shape that is a multiple of nothing, with NaN in all the padding of x and y. */
TEST_F(compute, H_100_I_36_gives_15_07213)
{
	const double want = 36 * kt_from_bf16(kt_bf16(kt_act(MOENDP_ACT_SILU, 0, 0, 100.0 / 128,
							     100.0 / 128)));
	uint16_t x[100];
	struct kt_ffn e;
	struct kt_bo w;
	struct moendp_cmd c;
	struct kt_place p = kt_local(self->dimm, 2);
	double y[100];
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 100, 100, 36, 1));
	for (unsigned int i = 0; i < 36 * 100; i++) {
		e.gate[i] = kt_bf16(1.0 / 128);
		e.up[i] = e.gate[i];
		e.down[i] = kt_bf16(1.0);
	}
	for (unsigned int i = 0; i < 100; i++)
		x[i] = kt_bf16(1.0);
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	c = command(self, &w, 1U << self->dimm, 0, 2, 1);
	write_x(self, 1U << self->dimm, x, 100, 1, c.ldx);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(1U << self->dimm, mask);
	kt_io_sum(&self->io, mask, Y_OFF, 100, y);
	for (unsigned int j = 0; j < 100; j++) {
		/* Exact but for rounding h to BF16: 2^-9 of 15.07213 at most. */
		EXPECT_TRUE(fabs(y[j] - 15.07213) < 15.07213 / 512);
		EXPECT_TRUE(fabs(y[j] - want) < 1e-4);
	}
	EXPECT_TRUE(kt_io_is(&self->io, mask, Y_OFF + 400, KT_NAN_BYTE, IO_BYTES - Y_OFF - 400));
	kt_ffn_free(&e);
}

/* C4: a batch without tokens is a success that computes and writes nothing. */
TEST_F(compute, zero_tokens_compute_nothing)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct moendp_query before, after;
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 64, 1));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	ASSERT_OK(kt_query(self->fd, self->dimm, &before));
	c = command(self, &w, 1U << self->dimm, 0, 2, 0);
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	ASSERT_OK(kt_query(self->fd, self->dimm, &after));
	EXPECT_EQ(before.compute.commands, after.compute.commands);
	EXPECT_TRUE(kt_io_is(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES));
	kt_ffn_free(&e);
}

/* C4: three tokens on one expert of four equal the expert alone, bit for bit, with NaN before. */
TEST_F(compute, tokens_do_not_influence_one_another)
{
	struct kt_place p = kt_local(self->dimm, 2);
	uint16_t x[3 * 64];
	float alone[3][64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 64, 1));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 3 * 64, 5);
	for (unsigned int t = 0; t < 3; t++) {
		kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
		c = command(self, &w, 1U << self->dimm, 0, 2, 1);
		write_x(self, self->mask, x + 64 * t, 64, 1, c.ldx);
		ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
		memcpy(alone[t], kt_replica(&self->io, self->dimm) + Y_OFF, sizeof(alone[t]));
	}
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
	c = command(self, &w, 1U << self->dimm, 0, 2, 3);
	write_x(self, self->mask, x, 64, 3, c.ldx);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	EXPECT_EQ(0, memcmp(alone, kt_replica(&self->io, self->dimm) + Y_OFF, sizeof(alone)));
	kt_ffn_free(&e);
}

/* Any run of blocks, wherever the borders of the DIMMs lie in it. */
TEST_F(compute, ffn_of_a_part_of_the_blocks)
{
	const unsigned int blocks = 11;
	uint16_t x[TOKENS * 64];
	struct kt_place p = kt_spread(self->mask, blocks);
	struct kt_ffn e;
	struct kt_bo w;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, blocks * 32 - 5, 3));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, TOKENS * 64, 9);
	for (unsigned int first = 0; first < blocks; first++) {
		for (unsigned int count = 1; first + count <= blocks; count += 3) {
			struct moendp_cmd c = command(self, &w, self->mask, first, count, 2);
			uint32_t mask, want = 0;
			unsigned int at = 0;

			for (unsigned int i = 0; i < p.nr; at += p.r[i++].nr_blocks)
				if (at < first + count && first < at + p.r[i].nr_blocks)
					want |= 1U << p.r[i].dimm;
			kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
			write_x(self, want, x, 64, 2, c.ldx);
			ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
			EXPECT_EQ(want, mask);
			expect_ffn(_metadata, self, &e, &c, mask, x);
		}
	}
	kt_ffn_free(&e);
}

/* One DIMM holds two runs of blocks that do not touch: one partial sum all the same. */
TEST_F(compute, ffn_with_several_ranges_on_a_dimm)
{
	struct kt_place p = { .nr = 0 };
	uint16_t x[2 * 64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	for (unsigned int i = 0; i < 8; i++) {
		p.r[p.nr].dimm = kt_nth_dimm(self->mask, i % (self->nr < 2 ? 1 : 2));
		p.r[p.nr++].nr_blocks = 1 + i % 3;
	}
	/* 1 + 2 + 3 + 1 + 2 + 3 + 1 + 2 blocks */
	ASSERT_OK(kt_ffn_random(&e, 64, 64, 15 * 32, 4));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 2 * 64, 9);
	for (unsigned int first = 0; first < 3; first++) {
		c = command(self, &w, self->mask, first, 15 - 2 * first, 2);
		kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
		write_x(self, self->mask, x, 64, 2, c.ldx);
		ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
		EXPECT_EQ(kt_place_mask(&p), mask);
		expect_ffn(_metadata, self, &e, &c, mask, x);
	}
	kt_ffn_free(&e);
}

TEST_F(compute, ffn_accumulates)
{
	struct kt_place p = kt_spread(self->mask, 4);
	double y[64], ref[64], bound[64];
	float *start;
	uint16_t x[64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 128, 5));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 64, 11);
	c = command(self, &w, self->mask, 0, 4, 1);
	c.flags = MOENDP_CMD_ACCUMULATE;
	write_x(self, self->mask, x, 64, 1, c.ldx);
	for (unsigned int d = 0; d < self->nr; d++) {
		start = (float *)(kt_replica(&self->io, kt_nth_dimm(self->mask, d)) + Y_OFF);
		for (unsigned int j = 0; j < 64; j++)
			start[j] = 100.0f * d + j;
	}
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	kt_ffn_ref(&e, 0, 4, x, ref, bound);
	kt_io_sum(&self->io, mask, Y_OFF, 64, y);
	for (unsigned int j = 0; j < 64; j++) {
		ref[j] *= 2;
		bound[j] = 2 * bound[j] + 1e-3;
		for (unsigned int d = 0; d < self->nr; d++)
			if (mask & (1U << kt_nth_dimm(self->mask, d)))
				ref[j] += 100.0 * d + j;
	}
	EXPECT_EQ(-1, kt_differs(y, ref, bound, 64));
	kt_ffn_free(&e);
}

/* An expert works on some rows of the batch, in any order, with repeats. */
TEST_F(compute, ffn_of_listed_rows)
{
	const uint32_t list[] = { 6, 0, 6, 3 };
	struct kt_place p = kt_spread(self->mask, 4);
	uint16_t x[8 * 64], picked[4 * 64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 128, 6));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 8 * 64, 13);
	for (unsigned int i = 0; i < 4; i++)
		memcpy(picked + 64 * i, x + 64 * list[i], 128);
	c = command(self, &w, self->mask, 0, 4, 4);
	c.flags = MOENDP_CMD_ROWS;
	c.x_rows = 8;
	c.rows_off = LIST_OFF + 4;
	write_x(self, self->mask, x, 64, 8, c.ldx);
	kt_io_write(&self->io, self->mask, c.rows_off, list, sizeof(list));
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	expect_ffn(_metadata, self, &e, &c, mask, picked);

	/* A row beyond x_rows: the DIMM refuses. */
	kt_io_write(&self->io, self->mask, c.rows_off + 8, &(uint32_t){ 8 }, 4);
	EXPECT_EQ(-EIO, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	kt_io_write(&self->io, self->mask, c.rows_off + 8, &(uint32_t){ 0xffffffff }, 4);
	EXPECT_EQ(-EIO, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	/* And goes on. */
	kt_io_write(&self->io, self->mask, c.rows_off, list, sizeof(list));
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	kt_ffn_free(&e);
}

TEST_F(compute, ffn_of_clamped_swiglu)
{
	struct kt_place p = kt_spread(self->mask, 4);
	const float alpha = 1.702f, limit = 0.25f;
	uint16_t x[TOKENS * 64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 128, 8));
	e.act = MOENDP_ACT_SWIGLU_CLAMP;
	e.alpha = alpha;
	e.limit = limit;
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, TOKENS * 64, 15);
	c = command(self, &w, self->mask, 0, 4, TOKENS);
	c.act = MOENDP_ACT_SWIGLU_CLAMP;
	memcpy(&c.alpha, &alpha, 4);
	memcpy(&c.limit, &limit, 4);
	write_x(self, self->mask, x, 64, TOKENS, c.ldx);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	expect_ffn(_metadata, self, &e, &c, mask, x);
	kt_ffn_free(&e);
}

static void gemv(struct __test_metadata *_metadata, const compute_t *self, unsigned int h_in,
		 unsigned int rows, unsigned int first, unsigned int count)
{
	struct kt_place p = kt_spread(self->mask, kt_blocks(rows));
	unsigned int end = (first + count) * 32 < rows ? (first + count) * 32 : rows;
	unsigned int n = end - first * 32;
	double y[MAX_H], ref[MAX_H], bound[MAX_H];
	uint16_t x[TOKENS * MAX_H];
	struct kt_gemv m;
	struct kt_bo w;
	struct moendp_cmd c;
	uint32_t mask;

	ASSERT_OK(kt_gemv_random(&m, h_in, rows, h_in + rows));
	ASSERT_OK(kt_sealed_gemv(self->fd, &m, &p, &w));
	kt_x_random(x, TOKENS * h_in, 17);
	c = command(self, &w, self->mask, first, count, TOKENS);
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
	write_x(self, self->mask, x, h_in, TOKENS, c.ldx);
	/* Rows of other DIMMs are left alone: zero y first, then the sum is the result. */
	for (unsigned int t = 0; t < TOKENS; t++)
		kt_io_fill(&self->io, self->mask, Y_OFF + t * c.ldy, 0, 4 * n);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_GEMV, &c, &mask, NULL));
	for (unsigned int t = 0; t < TOKENS; t++) {
		int at;

		kt_gemv_ref(&m, first, count, x + t * h_in, ref, bound);
		kt_io_sum(&self->io, mask, Y_OFF + t * c.ldy, n, y);
		at = kt_differs(y, ref, bound, n);
		EXPECT_EQ(-1, at) {
			TH_LOG("token %u, row %d: %g, not %g", t, at, y[at], ref[at]);
		}
		EXPECT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF + t * c.ldy + 4 * n, KT_NAN_BYTE,
				     c.ldy - 4 * n));
	}
	/* Each DIMM has written its rows and no others. */
	for (unsigned int i = 0, row = 0; i < p.nr; row += 32 * p.r[i++].nr_blocks) {
		unsigned int own = row, own_end = row + 32 * p.r[i].nr_blocks;

		for (unsigned int r = first * 32; r < end; r++) {
			bool is_own = r >= own && r < own_end;
			float v = ((float *)(kt_replica(&self->io, p.r[i].dimm) + Y_OFF))
					[r - first * 32];

			if (!is_own)
				EXPECT_TRUE(v == 0);
		}
	}
	EXPECT_OK(kt_destroy(&w));
	kt_gemv_free(&m);
}

TEST_F(compute, gemv_of_all_rows)
{
	gemv(_metadata, self, 64, 256, 0, 8);
	gemv(_metadata, self, 100, 36, 0, 2);
	gemv(_metadata, self, 33, 97, 0, 4);
	gemv(_metadata, self, 1, 1, 0, 1);
}

TEST_F(compute, gemv_of_some_panels)
{
	gemv(_metadata, self, 64, 250, 0, 1);
	gemv(_metadata, self, 64, 250, 3, 2);
	gemv(_metadata, self, 64, 250, 5, 3);
	gemv(_metadata, self, 64, 250, 7, 1);
}

/* Two ranges of rows on one DIMM, none of them at the start. */
TEST_F(compute, gemv_with_several_ranges_on_a_dimm)
{
	struct kt_place p = { .nr = 3 };
	double y[192], ref[192], bound[192];
	struct moendp_cmd c;
	struct kt_gemv m;
	struct kt_bo w;
	uint16_t x[64];
	uint32_t mask;

	for (unsigned int i = 0; i < 3; i++)
		p.r[i] = (struct moendp_range){
			kt_nth_dimm(self->mask, i % 2 && self->nr > 1), i + 1 };
	ASSERT_OK(kt_gemv_random(&m, 64, 192, 3));
	ASSERT_OK(kt_sealed_gemv(self->fd, &m, &p, &w));
	kt_x_random(x, 64, 19);
	c = command(self, &w, self->mask, 0, 6, 1);
	write_x(self, self->mask, x, 64, 1, c.ldx);
	kt_io_fill(&self->io, self->mask, Y_OFF, 0, 4 * 192);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_GEMV, &c, &mask, NULL));
	kt_gemv_ref(&m, 0, 6, x, ref, bound);
	kt_io_sum(&self->io, mask, Y_OFF, 192, y);
	EXPECT_EQ(-1, kt_differs(y, ref, bound, 192));
	kt_gemv_free(&m);
}

/* ACT: y = bf16(act(gate, up)) on every DIMM of the mask and on no other. */
static void act(struct __test_metadata *_metadata, const compute_t *self, unsigned int code,
		unsigned int columns, uint32_t on)
{
	const unsigned int ld_in = stride_of(4 * columns), ld_out = stride_of(2 * columns);
	const float alpha = 1.702f, limit = 2.0f;
	uint64_t state = columns;
	float gate[2][100], up[2][100];
	struct moendp_cmd c = {
		.x_bo = self->io.handle, .y_bo = self->io.handle, .x_mask = on, .count = columns,
		.tokens = 2, .act = code, .x_off = 0, .rows_off = LIST_OFF, .y_off = Y_OFF,
		.ldx = ld_in, .ldy = ld_out,
	};
	uint32_t mask;

	if (code == MOENDP_ACT_SWIGLU_CLAMP) {
		memcpy(&c.alpha, &alpha, 4);
		memcpy(&c.limit, &limit, 4);
	}
	kt_io_fill(&self->io, self->mask, 0, KT_NAN_BYTE, IO_BYTES);
	for (unsigned int t = 0; t < 2; t++) {
		for (unsigned int i = 0; i < columns; i++) {
			gate[t][i] = (int)(kt_random(&state) >> 50) / 2048.0f - 4.0f;
			up[t][i] = (int)(kt_random(&state) >> 50) / 2048.0f - 4.0f;
		}
		kt_io_write(&self->io, self->mask, t * ld_in, gate[t], 4 * columns);
		kt_io_write(&self->io, self->mask, LIST_OFF + t * ld_in, up[t], 4 * columns);
	}
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_ACT, &c, &mask, NULL));
	EXPECT_EQ(on, mask);
	for (unsigned int d = 0; d < MOENDP_MAX_DIMMS; d++) {
		if (!(on & (1U << d)))
			continue;
		for (unsigned int t = 0; t < 2; t++) {
			const uint8_t *row = kt_replica(&self->io, d) + Y_OFF + t * ld_out;

			for (unsigned int i = 0; i < columns; i++) {
				double want = kt_act(code, alpha, limit, gate[t][i], up[t][i]);
				double got = kt_from_bf16(((uint16_t *)row)[i]);

				/* Rounding to BF16 is half of 2^-7 at worst. */
				EXPECT_TRUE(fabs(got - want) <= fabs(want) / 250 + 1e-6) {
					TH_LOG("act %u column %u: %g, not %g", code, i, got, want);
				}
			}
			for (unsigned int i = 2 * columns; i < ld_out; i++)
				EXPECT_EQ(KT_NAN_BYTE, row[i]);
		}
	}
	EXPECT_TRUE(kt_io_is(&self->io, self->mask & ~on, Y_OFF, KT_NAN_BYTE, 2 * ld_out));
}

TEST_F(compute, act)
{
	act(_metadata, self, MOENDP_ACT_SILU, 64, 1U << self->dimm);
	act(_metadata, self, MOENDP_ACT_SILU, 37, self->mask);
	act(_metadata, self, MOENDP_ACT_SWIGLU_CLAMP, 64, self->mask);
	act(_metadata, self, MOENDP_ACT_SWIGLU_CLAMP, 1, 1U << self->dimm);
}

/* ---- which DIMMs ---------------------------------------------------------------------------- */

/* A mask that lacks a DIMM: ESTALE, the DIMMs that are needed, and nothing is executed anywhere. */
TEST_F(compute, missing_x_is_ESTALE_with_the_mask)
{
	struct kt_place p = kt_spread(self->mask, 2 * self->nr);
	struct moendp_query before, after;
	uint16_t x[64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 64 * self->nr, 3));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 64, 21);
	c = command(self, &w, 0, 0, 2 * self->nr, 1);
	write_x(self, self->mask, x, 64, 1, c.ldx);
	for (unsigned int i = 0; i < self->nr; i++) {
		unsigned int d = kt_nth_dimm(self->mask, i);

		ASSERT_OK(kt_query(self->fd, kt_nth_dimm(self->mask, (i + 1) % self->nr), &before));
		c.x_mask = self->mask & ~(1U << d);
		mask = 0;
		EXPECT_EQ(-ESTALE, kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
		EXPECT_EQ(self->mask, mask);
		ASSERT_OK(kt_query(self->fd, kt_nth_dimm(self->mask, (i + 1) % self->nr), &after));
		EXPECT_EQ(before.compute.commands, after.compute.commands);
		EXPECT_TRUE(kt_io_is(&self->io, self->mask, Y_OFF, KT_NAN_BYTE, IO_BYTES - Y_OFF));
	}
	c.x_mask = 0;
	EXPECT_EQ(-ESTALE, kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(self->mask, mask);
	/* Only the DIMMs of the blocks that are asked for are needed. */
	c.count = 1;
	EXPECT_EQ(-ESTALE, kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(1U << self->dimm, mask);
	c.x_mask = mask;
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(1U << self->dimm, mask);
	expect_ffn(_metadata, self, &e, &c, mask, x);
	kt_ffn_free(&e);
}

/* More DIMMs in the mask than needed is no error: the result says who computed. */
TEST_F(compute, x_on_more_dimms_than_needed)
{
	struct kt_place p = kt_local(kt_nth_dimm(self->mask, self->nr - 1), 2);
	uint16_t x[64];
	struct moendp_cmd c;
	struct kt_ffn e;
	struct kt_bo w;
	uint32_t mask;

	ASSERT_OK(kt_ffn_random(&e, 64, 64, 64, 3));
	ASSERT_OK(kt_sealed_ffn(self->fd, &e, &p, &w));
	kt_x_random(x, 64, 23);
	c = command(self, &w, self->mask, 0, 2, 1);
	write_x(self, self->mask, x, 64, 1, c.ldx);
	ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, &mask, NULL));
	EXPECT_EQ(kt_place_mask(&p), mask);
	expect_ffn(_metadata, self, &e, &c, mask, x);
	kt_ffn_free(&e);
}

TEST_F(compute, io_without_a_replica_is_EXDEV)
{
	struct kt_bo there, w;
	struct moendp_cmd c;
	struct kt_place p;
	unsigned int other;

	if (self->nr < 2)
		SKIP(return, "needs two DIMMs");
	other = kt_nth_dimm(self->mask, 1);
	p = kt_local(other, 2);
	ASSERT_OK(kt_io(self->fd, 1U << self->dimm, IO_BYTES, &there));
	ASSERT_OK(kt_expert(self->fd, 64, 64, 64, &p, &w));
	ASSERT_OK(kt_seal(&w));
	c = command(self, &w, 1U << other, 0, 2, 1);
	kt_io_fill(&self->io, self->mask, 0, 0, KT_PAGE);
	EXPECT_EQ(0, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c.y_bo = there.handle;
	EXPECT_EQ(-EXDEV, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	c = command(self, &w, 1U << self->dimm, 0, 2, 1);
	c.x_bo = there.handle;
	EXPECT_EQ(-EXDEV, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	/* ACT has no weights: it runs where its mask says, so both must be there. */
	c = (struct moendp_cmd){
		.x_bo = there.handle, .y_bo = self->io.handle, .x_mask = self->mask, .count = 16,
		.tokens = 1, .rows_off = LIST_OFF, .y_off = Y_OFF, .ldx = 64, .ldy = 64,
	};
	EXPECT_EQ(-EXDEV, kt_submit(self->fd, MOENDP_CMD_ACT, &c, NULL, NULL));
}

/* ---- time and counters ---------------------------------------------------------------------- */

/* Modelled time is a function of the command and the properties: it repeats exactly. */
TEST_F(compute, modelled_time_repeats_and_follows_the_model)
{
	struct kt_place p = kt_local(self->dimm, 8);
	uint64_t bytes = 8 * kt_block_bytes(512, 512), ns[3], all_ns;
	struct moendp_cmd c;
	struct kt_bo w;

	ASSERT_OK(kt_expert(self->fd, 512, 512, 256, &p, &w));
	ASSERT_OK(kt_seal(&w));
	kt_io_fill(&self->io, self->mask, 0, 0, IO_BYTES);
	c = command(self, &w, 1U << self->dimm, 0, 8, 1);
	for (int i = 0; i < 3; i++)
		ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, &ns[i]));
	EXPECT_EQ(ns[0], ns[1]);
	EXPECT_EQ(ns[0], ns[2]);
	/* One token: the bytes decide. Weights, x and y. */
	all_ns = (bytes + 512 * 2 + 512 * 4) * 1000 / self->q.internal_mbps + self->q.overhead_ns;
	EXPECT_LE(all_ns - 1, ns[0]);
	EXPECT_LE(ns[0], all_ns + 2);
}

TEST_F(compute, counters_count)
{
	struct kt_place p = kt_local(self->dimm, 2);
	struct moendp_query before, after;
	struct moendp_cmd c;
	struct kt_bo w;
	uint64_t ns;

	ASSERT_OK(kt_expert(self->fd, 64, 64, 64, &p, &w));
	ASSERT_OK(kt_seal(&w));
	kt_io_fill(&self->io, self->mask, 0, 0, IO_BYTES);
	c = command(self, &w, 1U << self->dimm, 0, 2, 3);
	ASSERT_OK(kt_query(self->fd, self->dimm, &before));
	for (int i = 0; i < 10; i++)
		ASSERT_OK(kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, &ns));
	ASSERT_OK(kt_query(self->fd, self->dimm, &after));
	EXPECT_EQ(10, after.compute.commands - before.compute.commands);
	EXPECT_EQ(30, after.compute.tokens - before.compute.tokens);
	EXPECT_EQ(0, after.compute.errors - before.compute.errors);
	EXPECT_EQ(10 * ns, after.compute.busy_ns - before.compute.busy_ns);
	EXPECT_LE(10 * w.bytes, after.compute.bytes - before.compute.bytes);
	EXPECT_LT(0, after.compute.wall_ns - before.compute.wall_ns);
	/* A command that the DIMM refuses is counted as an error. */
	c.flags = MOENDP_CMD_ROWS;
	c.x_rows = 1;
	c.rows_off = LIST_OFF;
	kt_io_fill(&self->io, self->mask, LIST_OFF, 0xff, 64);
	EXPECT_EQ(-EIO, kt_submit(self->fd, MOENDP_CMD_FFN, &c, NULL, NULL));
	ASSERT_OK(kt_query(self->fd, self->dimm, &after));
	EXPECT_EQ(1, after.compute.errors - before.compute.errors);
}

TEST_HARNESS_MAIN
