// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_chip.c - the chip's front: what is refused and with which status, FILL and copies, token
 * rows, aborts.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "chip_ops.h"
#include "ndp_chip.h"
#include "ndp_regs.h"

enum { MEM_BYTES = 1 << 20 };

static struct ndp_chip_op (*const valid_ops[])(void) = {
	fill, copy, link_copy, gemv, act, ffn,
};

enum { VALID_OPS = sizeof(valid_ops) / sizeof(*valid_ops) };

#define CHECK_GIVES(status, op_of, ...) do {					\
	struct ndp_chip_op op = op_of();					\
	__VA_ARGS__;								\
	assert_int_equal(ndp_chip_check(&op, MEM_BYTES), status);		\
} while (0)

static void numbers_equal_the_wire(void **state)
{
	(void)state;
	assert_int_equal(NDP_CHIP_FILL, NDP_OP_FILL);
	assert_int_equal(NDP_CHIP_COPY, NDP_OP_COPY);
	assert_int_equal(NDP_CHIP_LINK_COPY, NDP_OP_LINK_COPY);
	assert_int_equal(NDP_CHIP_GEMV, NDP_OP_GEMV);
	assert_int_equal(NDP_CHIP_ACT, NDP_OP_ACT);
	assert_int_equal(NDP_CHIP_FFN, NDP_OP_FFN);
	assert_int_equal(NDP_CHIP_ACCUMULATE, NDP_F_ACCUMULATE);
	assert_int_equal(NDP_CHIP_ROWS, NDP_F_ROWS);
	assert_int_equal(NDP_CHIP_SILU, NDP_ACT_SILU);
	assert_int_equal(NDP_CHIP_SWIGLU_CLAMP, NDP_ACT_SWIGLU_CLAMP);
	assert_int_equal(NDP_CHIP_OK, NDP_ST_OK);
	assert_int_equal(NDP_CHIP_ERR_OPCODE, NDP_ST_OPCODE);
	assert_int_equal(NDP_CHIP_ERR_FIELD, NDP_ST_FIELD);
	assert_int_equal(NDP_CHIP_ERR_RANGE, NDP_ST_RANGE);
	assert_int_equal(NDP_CHIP_ERR_ALIGN, NDP_ST_ALIGN);
	assert_int_equal(NDP_CHIP_ERR_SHAPE, NDP_ST_SHAPE);
	assert_int_equal(NDP_CHIP_ERR_ROW, NDP_ST_ROW);
	assert_int_equal(NDP_CHIP_ERR_PEER, NDP_ST_PEER);
	assert_int_equal(NDP_CHIP_ERR_LINK_DOWN, NDP_ST_LINK_DOWN);
	assert_int_equal(NDP_CHIP_ERR_ABORTED, NDP_ST_ABORTED);
	assert_int_equal(NDP_CHIP_ERR_INTERNAL, NDP_ST_INTERNAL);
	assert_int_equal(NDP_CHIP_MAX_TOKENS, NDP_MAX_TOKENS);
	assert_int_equal(NDP_CHIP_MAX_COPY, NDP_MAX_COPY_BYTES);
	assert_int_equal(sizeof(struct ndp_hw_cmd), 64);
	assert_int_equal(sizeof(struct ndp_hw_cpl), 32);
}

static void valid_operations_are_accepted(void **state)
{
	(void)state;
	for (int i = 0; i < VALID_OPS; i++)
		CHECK_GIVES(NDP_CHIP_OK, valid_ops[i]);
	CHECK_GIVES(NDP_CHIP_OK, ffn, op.flags = NDP_CHIP_ACCUMULATE);
	CHECK_GIVES(NDP_CHIP_OK, ffn, op.flags = NDP_CHIP_ROWS, op.rows = 4, op.x_rows = 1);
	CHECK_GIVES(NDP_CHIP_OK, ffn, op.act = 1, op.alpha = 1.7f, op.limit = 7);
	CHECK_GIVES(NDP_CHIP_OK, act, op.act = 1, op.alpha = 1.7f, op.limit = 7);
}

static void unknown_opcodes_are_refused(void **state)
{
	(void)state;
	for (int opcode = 0; opcode < 256; opcode++)
		if (opcode < NDP_CHIP_FILL || opcode > NDP_CHIP_FFN)
			CHECK_GIVES(NDP_CHIP_ERR_OPCODE, ffn, op.opcode = opcode);
}

/* Every field that an operation does not name, set alone. */
static void unnamed_fields_must_be_zero(void **state)
{
	(void)state;
	for (int i = 0; i < VALID_OPS; i++) {
		struct ndp_chip_op (*o)(void) = valid_ops[i];
		uint8_t opcode = o().opcode;
		int transfer = opcode <= NDP_CHIP_LINK_COPY, is_act = opcode == NDP_CHIP_ACT;
		int has_act = is_act || opcode == NDP_CHIP_FFN;

		for (int bit = transfer || is_act ? 0 : 2; bit < 8; bit++)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.flags = 1 << bit);
		if (opcode != NDP_CHIP_LINK_COPY)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.node = 1);
		if (opcode != NDP_CHIP_FILL)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.pattern = 1);
		if (opcode == NDP_CHIP_FILL || is_act)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.w = 64);
		if (!is_act)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.rows = 64);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.x_rows = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.alpha = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.limit = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.act = has_act ? 2 : 1);
		if (is_act)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.h_in = 1);
		if (is_act || transfer)
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.count = 1);
		if (!transfer) {
			CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.len = 64);
			continue;
		}
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.x = 64);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.tokens = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.h_in = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.h_out = 1);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.ldx_bytes = 64);
		CHECK_GIVES(NDP_CHIP_ERR_FIELD, o, op.ldy_bytes = 64);
	}
}

static void shapes_are_checked(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, valid_ops[i], op.len = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, valid_ops[i], op.len = NDP_CHIP_MAX_COPY + 8);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, valid_ops[i], op.len = UINT64_MAX);
	}
	for (int i = 3; i < VALID_OPS; i++) {
		struct ndp_chip_op (*o)(void) = valid_ops[i];

		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.tokens = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.tokens = NDP_CHIP_MAX_TOKENS + 1);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.tokens = UINT32_MAX);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.h_out = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.h_out = NDP_CHIP_MAX_H + 1,
			op.ldx_bytes = op.ldy_bytes = 1 << 20);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.ldx_bytes -= 64);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.ldy_bytes = 64);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.ldx_bytes = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.ldy_bytes = 0);
		if (o().opcode == NDP_CHIP_ACT)
			continue;
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.count = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.h_in = 0);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.h_in = NDP_CHIP_MAX_H + 1,
			op.ldx_bytes = 1 << 20);
		CHECK_GIVES(NDP_CHIP_ERR_SHAPE, o, op.flags = NDP_CHIP_ROWS, op.rows = 4);
	}
	/* GEMV: 32 (count - 1) < h_out <= 32 count */
	CHECK_GIVES(NDP_CHIP_ERR_SHAPE, gemv, op.h_out = 32);
	CHECK_GIVES(NDP_CHIP_OK, gemv, op.h_out = 33);
	CHECK_GIVES(NDP_CHIP_OK, gemv, op.h_out = 64);
	CHECK_GIVES(NDP_CHIP_ERR_SHAPE, gemv, op.h_out = 65, op.ldy_bytes = 320);
}

static void alignment_is_checked(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		CHECK_GIVES(NDP_CHIP_ERR_ALIGN, valid_ops[i], op.y += 4);
		CHECK_GIVES(NDP_CHIP_ERR_ALIGN, valid_ops[i], op.len += 4);
	}
	CHECK_GIVES(NDP_CHIP_ERR_ALIGN, copy, op.w += 1);
	CHECK_GIVES(NDP_CHIP_ERR_ALIGN, link_copy, op.w += 4);
	for (int i = 3; i < VALID_OPS; i++) {
		struct ndp_chip_op (*o)(void) = valid_ops[i];

		for (int bit = 1; bit < 64; bit <<= 1) {
			CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.x += bit);
			CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.y += bit);
			CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.ldx_bytes += bit);
			CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.ldy_bytes += bit);
			if (o().opcode == NDP_CHIP_ACT)
				CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.rows += bit);
			else
				CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.w += bit);
		}
		if (o().opcode == NDP_CHIP_ACT)
			continue;
		CHECK_GIVES(NDP_CHIP_ERR_ALIGN, o, op.flags = NDP_CHIP_ROWS, op.x_rows = 3, op.rows = 6);
	}
}

/* The last place where an operation fits, one step further, and places near 2^64. */
static void range_ends(struct ndp_chip_op op, size_t field, uint64_t bytes, uint64_t step)
{
	const uint64_t last = (MEM_BYTES - bytes) / step * step;
	const uint64_t bad[] = {
		last + step, MEM_BYTES, MEM_BYTES + step, (uint64_t)1 << 32, (uint64_t)1 << 63,
		-bytes / step * step, -bytes / step * step + step, -step,
	};

	memcpy((char *)&op + field, &last, sizeof(last));
	assert_int_equal(ndp_chip_check(&op, MEM_BYTES), NDP_CHIP_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		memcpy((char *)&op + field, &bad[i], sizeof(bad[i]));
		assert_int_equal(ndp_chip_check(&op, MEM_BYTES), NDP_CHIP_ERR_RANGE);
	}
}

static struct ndp_chip_op ffn_with_rows(void)
{
	struct ndp_chip_op op = ffn();

	op.flags = NDP_CHIP_ROWS;
	op.rows = 61440;
	op.x_rows = 9;
	return op;
}

/* Of the last row only what is used must lie in memory. */
static struct ndp_chip_op wide(struct ndp_chip_op op)
{
	op.ldx_bytes = 512;
	op.ldy_bytes = 1024;
	return op;
}

static void ranges_are_checked_to_the_byte(void **state)
{
	(void)state;
	range_ends(fill(), offsetof(struct ndp_chip_op, y), 4096, 8);
	range_ends(copy(), offsetof(struct ndp_chip_op, y), 4096, 8);
	range_ends(copy(), offsetof(struct ndp_chip_op, w), 4096, 8);
	range_ends(link_copy(), offsetof(struct ndp_chip_op, y), 4096, 8);
	range_ends(wide(act()), offsetof(struct ndp_chip_op, x), 2 * 512 + 200, 64);
	range_ends(wide(act()), offsetof(struct ndp_chip_op, rows), 2 * 512 + 200, 64);
	range_ends(wide(act()), offsetof(struct ndp_chip_op, y), 2 * 1024 + 100, 64);
	range_ends(wide(gemv()), offsetof(struct ndp_chip_op, w), 2 * 64 * 128, 64);
	range_ends(wide(gemv()), offsetof(struct ndp_chip_op, x), 2 * 512 + 200, 64);
	range_ends(wide(gemv()), offsetof(struct ndp_chip_op, y), 2 * 1024 + 200, 64);
	range_ends(wide(ffn()), offsetof(struct ndp_chip_op, w), 2 * 192 * 128, 64);
	range_ends(wide(ffn()), offsetof(struct ndp_chip_op, x), 2 * 512 + 200, 64);
	range_ends(wide(ffn()), offsetof(struct ndp_chip_op, y), 2 * 1024 + 400, 64);
	range_ends(wide(ffn_with_rows()), offsetof(struct ndp_chip_op, x), 8 * 512 + 200, 64);
	range_ends(wide(ffn_with_rows()), offsetof(struct ndp_chip_op, rows), 3 * 4, 4);
	/* counts and strides whose products are large */
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, ffn, op.count = UINT32_MAX);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, ffn, op.ldx_bytes = -64u);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, ffn, op.ldy_bytes = -64u);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, ffn_with_rows, op.x_rows = UINT32_MAX, op.ldx_bytes = -64u);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, act, op.ldx_bytes = -64u);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, act, op.ldy_bytes = -64u);
}

static void copies_must_not_overlap(void **state)
{
	(void)state;
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, copy, op.y = op.w);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, copy, op.y = op.w + 8);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, copy, op.y = op.w + 4088);
	CHECK_GIVES(NDP_CHIP_OK, copy, op.y = op.w + 4096);
	CHECK_GIVES(NDP_CHIP_ERR_RANGE, copy, op.w = op.y + 4088);
	CHECK_GIVES(NDP_CHIP_OK, copy, op.w = op.y + 4096);
	CHECK_GIVES(NDP_CHIP_OK, link_copy, op.y = op.w);
}

/* ---- execution ----------------------------------------------------------------------------- */

struct fixture {
	struct ndp_chip_engine *e;
	struct ndp_chip_mem mem, peer;
};

static int set_up(void **state)
{
	struct fixture *f = malloc(sizeof(*f));

	f->e = ndp_chip_engine_new(ndp_chip_isa_best());
	f->mem = (struct ndp_chip_mem) { aligned_alloc(4096, MEM_BYTES), MEM_BYTES };
	f->peer = (struct ndp_chip_mem) { aligned_alloc(4096, MEM_BYTES), MEM_BYTES };
	for (int i = 0; i < MEM_BYTES; i++) {
		f->mem.base[i] = i * 7 + (i >> 8);
		f->peer.base[i] = i * 13 + (i >> 7);
	}
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	ndp_chip_engine_free(f->e);
	free(f->mem.base);
	free(f->peer.base);
	free(f);
	return 0;
}

static void the_best_path_is_usable_and_named(void **state)
{
	(void)state;
	assert_true(ndp_chip_isa_usable(NDP_CHIP_ISA_SCALAR));
	assert_true(ndp_chip_isa_usable(ndp_chip_isa_best()));
	for (int isa = 0; isa <= NDP_CHIP_ISA_AVX512_BF16 + 1; isa++) {
		struct ndp_chip_engine *e = ndp_chip_engine_new(isa);

		assert_int_equal(e != NULL, ndp_chip_isa_usable(isa));
		assert_non_null(ndp_chip_isa_name(isa));
		ndp_chip_engine_free(e);
	}
	assert_false(ndp_chip_isa_usable(NDP_CHIP_ISA_AVX512_BF16 + 1));
	ndp_chip_engine_free(NULL);
}

/* Allocations left before one fails; -1: none fails. The linker wraps posix_memalign(). */
static int allocations_left = -1;

int __real_posix_memalign(void **p, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes);

int __wrap_posix_memalign(void **p, size_t alignment, size_t bytes)
{
	if (!allocations_left)
		return ENOMEM;
	if (allocations_left > 0)
		allocations_left--;
	return __real_posix_memalign(p, alignment, bytes);
}

static void a_lack_of_memory_is_reported_and_overcome(void **state)
{
	static const unsigned tokens[] = { 1, 100 };
	struct fixture *f = *state;

	allocations_left = 0;
	assert_null(ndp_chip_engine_new(ndp_chip_isa_best()));
	for (int i = 0; i < 2; i++) {
		struct ndp_chip_op op = ffn();
		enum ndp_chip_status status = NDP_CHIP_ERR_INTERNAL;
		int refused = 0;

		op.tokens = tokens[i];
		for (int left = 0; status != NDP_CHIP_OK; left++) {
			struct ndp_chip_engine *e;

			allocations_left = -1;
			e = ndp_chip_engine_new(ndp_chip_isa_best());
			allocations_left = left;
			status = ndp_chip_exec(e, &op, &f->mem, NULL);
			allocations_left = -1;
			if (status != NDP_CHIP_OK) {
				assert_int_equal(status, NDP_CHIP_ERR_INTERNAL);
				assert_int_equal(ndp_chip_exec(e, &op, &f->mem, NULL), NDP_CHIP_OK);
				refused++;
			}
			ndp_chip_engine_free(e);
		}
		assert_true(refused >= 2);
	}
}

static void what_the_check_refuses_is_not_executed(void **state)
{
	struct fixture *f = *state;
	struct ndp_chip_op op = fill();
	uint8_t *before = malloc(MEM_BYTES);

	memcpy(before, f->mem.base, MEM_BYTES);
	op.y = MEM_BYTES - 8;
	assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_ERR_RANGE);
	op = ffn();
	op.tokens = 0;
	assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_ERR_SHAPE);
	/* LINK_COPY needs a peer, and nothing else has one */
	op = link_copy();
	assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_ERR_OPCODE);
	op = copy();
	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->peer, NULL), NDP_CHIP_ERR_OPCODE);
	assert_memory_equal(before, f->mem.base, MEM_BYTES);
	free(before);
}

/* Writes bytes of @expected to [y, y + len) of a copy of memory, and compares all of it. */
static void assert_written(struct fixture *f, const uint8_t *before, uint64_t y,
			   const uint8_t *expected, uint64_t len)
{
	assert_memory_equal(f->mem.base, before, y);
	assert_memory_equal(f->mem.base + y, expected, len);
	assert_memory_equal(f->mem.base + y + len, before + y + len, MEM_BYTES - y - len);
}

static void fill_and_copies_write_what_they_say_and_nothing_else(void **state)
{
	static const uint64_t lengths[] = { 8, 16, 4096, 65536, 65544, 200000 };
	struct fixture *f = *state;
	uint8_t *before = malloc(MEM_BYTES), *expected = malloc(MEM_BYTES);

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		struct ndp_chip_op op = {
			.opcode = NDP_CHIP_FILL, .y = 4104, .len = lengths[i], .pattern = 0x89abcdef,
		};

		memcpy(before, f->mem.base, MEM_BYTES);
		for (uint64_t k = 0; k < op.len; k++)
			expected[k] = op.pattern >> (k % 4 * 8);
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_OK);
		assert_written(f, before, op.y, expected, op.len);

		op = (struct ndp_chip_op) {
			.opcode = NDP_CHIP_COPY, .w = 300008, .y = 600024, .len = lengths[i],
		};
		memcpy(before, f->mem.base, MEM_BYTES);
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_OK);
		assert_written(f, before, op.y, before + op.w, op.len);

		op.opcode = NDP_CHIP_LINK_COPY;
		op.node = 5;
		op.w = 8;
		memcpy(before, f->mem.base, MEM_BYTES);
		assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->peer, NULL), NDP_CHIP_OK);
		assert_written(f, before, op.y, f->peer.base + op.w, op.len);
	}
	free(before);
	free(expected);
}

static void a_pull_is_checked_on_both_sides(void **state)
{
	struct fixture *f = *state;
	struct ndp_chip_mem small = { f->peer.base, 8192 };
	struct ndp_chip_op op = link_copy();

	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &small, NULL), NDP_CHIP_OK);
	op.w += 8;
	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &small, NULL), NDP_CHIP_ERR_RANGE);
	op.w = -4096;
	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &small, NULL), NDP_CHIP_ERR_RANGE);
	op = link_copy();
	op.y = MEM_BYTES - 4088;
	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->peer, NULL), NDP_CHIP_ERR_RANGE);
	/* a memory that is its own peer */
	op = link_copy();
	op.y = op.w + 8;
	assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->mem, NULL), NDP_CHIP_ERR_RANGE);
}

static void rows_outside_x_are_refused(void **state)
{
	static const uint32_t bad[] = { 9, 10, 0x80000000, UINT32_MAX };
	struct fixture *f = *state;
	struct ndp_chip_op op = ffn_with_rows();
	uint32_t *rows = (uint32_t *)(f->mem.base + op.rows);
	uint8_t *before = malloc(MEM_BYTES);

	for (unsigned i = 0; i < op.tokens; i++) {
		rows[0] = rows[1] = rows[2] = 8;
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_OK);
		for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) {
			rows[i] = bad[k];
			memcpy(before, f->mem.base, MEM_BYTES);
			assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_ERR_ROW);
			assert_memory_equal(before, f->mem.base, MEM_BYTES);
		}
	}
	free(before);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

struct flipper {
	uint32_t *rows;
	unsigned n;
	int stop;
};

static void *flip_rows(void *arg)
{
	struct flipper *f = arg;

	for (uint32_t i = 0; !__atomic_load_n(&f->stop, __ATOMIC_RELAXED); i++)
		__atomic_store_n(&f->rows[i % f->n], i / f->n % 8 ? i % 2 : 0x7ffffff0,
				 __ATOMIC_RELAXED);
	return NULL;
}

/*
 * Somebody writes to the list all the time: rows 0, 1 and far away. Each operation is refused, or
 * each of its tokens has the very result of row 0 or of row 1.
 */
static void a_list_that_changes_meanwhile_cannot_matter(void **state)
{
	enum { TOKENS = 64 };
	struct fixture *f = *state;
	struct ndp_chip_op op = ffn_with_rows();
	struct flipper flipper = { (uint32_t *)(f->mem.base + op.rows), TOKENS, 0 };
	const uint8_t *y = f->mem.base + op.y;
	float expected[2][100];
	unsigned done = 0, refused = 0;
	int64_t deadline_ns;
	pthread_t thread;

	for (uint64_t i = op.x; i < op.x + 1024; i += 2)
		memcpy(f->mem.base + i, &(uint16_t) { 0x3f80 + i % 64 }, 2);
	for (uint64_t i = op.w; i < op.w + 2 * 192 * 128; i += 2)
		memcpy(f->mem.base + i, &(uint16_t) { 0x3c00 + i % 128 }, 2);
	op.tokens = 1;
	for (uint32_t row = 0; row < 2; row++) {
		memcpy(f->mem.base + op.rows, &row, 4);
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, NULL), NDP_CHIP_OK);
		memcpy(expected[row], y, 400);
	}
	memset(f->mem.base + op.rows, 0, 4 * TOKENS);
	op.tokens = TOKENS;
	pthread_create(&thread, NULL, flip_rows, &flipper);
	deadline_ns = now_ns() + 30000000000;
	for (int i = 0; i < 2000 || ((!done || !refused) && now_ns() < deadline_ns); i++) {
		enum ndp_chip_status status = ndp_chip_exec(f->e, &op, &f->mem, NULL);

		if (status == NDP_CHIP_ERR_ROW) {
			refused++;
			continue;
		}
		assert_int_equal(status, NDP_CHIP_OK);
		done++;
		for (unsigned t = 0; t < TOKENS; t++)
			assert_true(!memcmp(y + t * op.ldy_bytes, expected[0], 400) ||
				    !memcmp(y + t * op.ldy_bytes, expected[1], 400));
	}
	__atomic_store_n(&flipper.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(done);
	assert_true(refused);
}

/* ---- abort --------------------------------------------------------------------------------- */

static void an_abort_that_is_set_ends_everything(void **state)
{
	struct fixture *f = *state;
	const int set = 1, clear = 0;

	for (int i = 0; i < VALID_OPS; i++) {
		struct ndp_chip_op op = valid_ops[i]();

		if (op.opcode == NDP_CHIP_LINK_COPY) {
			assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->peer, &set),
					 NDP_CHIP_ERR_ABORTED);
			assert_int_equal(ndp_chip_link_copy(&op, &f->mem, &f->peer, &clear),
					 NDP_CHIP_OK);
			continue;
		}
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, &set), NDP_CHIP_ERR_ABORTED);
		assert_int_equal(ndp_chip_exec(f->e, &op, &f->mem, &clear), NDP_CHIP_OK);
	}
}

struct aborter {
	int flag;
	int64_t set_ns;
};

static void *abort_soon(void *arg)
{
	struct aborter *a = arg;

	nanosleep(&(struct timespec) { .tv_nsec = 5000000 }, NULL);
	a->set_ns = now_ns();
	__atomic_store_n(&a->flag, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Operations of seconds, aborted after 5 ms; the limit has room for a busy machine. */
static void long_operations_notice_an_abort(void **state)
{
	enum { H = 4096, TOKENS = 1024, BLOCKS = 40 };
	static const unsigned tokens[] = { 1, TOKENS };
	const uint64_t w_bytes = BLOCKS * ndp_chip_block_bytes(H, H);
	struct ndp_chip_mem mem = { .bytes = w_bytes + TOKENS * H * 6 };
	int64_t best_ns = INT64_MAX;

	(void)state;
	mem.base = aligned_alloc(64, mem.bytes);
	memset(mem.base, 0, mem.bytes);
	for (int i = 0; i < 10; i++) {
		/* the scalar path is the slowest between two polls */
		struct ndp_chip_engine *e = ndp_chip_engine_new(NDP_CHIP_ISA_SCALAR);
		struct aborter a = { 0 };
		struct ndp_chip_op op = {
			.opcode = NDP_CHIP_FFN, .count = BLOCKS, .tokens = tokens[i % 2],
			.h_in = H, .h_out = H, .x = w_bytes, .y = w_bytes + TOKENS * H * 2,
			.ldx_bytes = 2 * H, .ldy_bytes = 4 * H,
		};
		enum ndp_chip_status status = NDP_CHIP_OK;
		pthread_t thread;
		int64_t took_ns;

		pthread_create(&thread, NULL, abort_soon, &a);
		while (status == NDP_CHIP_OK)
			status = ndp_chip_exec(e, &op, &mem, &a.flag);
		took_ns = now_ns();
		pthread_join(thread, NULL);
		took_ns -= a.set_ns;
		assert_int_equal(status, NDP_CHIP_ERR_ABORTED);
		best_ns = took_ns < best_ns ? took_ns : best_ns;
		ndp_chip_engine_free(e);
	}
	assert_true(best_ns < 20000000);
	free(mem.base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_equal_the_wire),
		cmocka_unit_test(valid_operations_are_accepted),
		cmocka_unit_test(unknown_opcodes_are_refused),
		cmocka_unit_test(unnamed_fields_must_be_zero),
		cmocka_unit_test(shapes_are_checked),
		cmocka_unit_test(alignment_is_checked),
		cmocka_unit_test(ranges_are_checked_to_the_byte),
		cmocka_unit_test(copies_must_not_overlap),
		cmocka_unit_test(the_best_path_is_usable_and_named),
		cmocka_unit_test_setup_teardown(a_lack_of_memory_is_reported_and_overcome, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(what_the_check_refuses_is_not_executed, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(
			fill_and_copies_write_what_they_say_and_nothing_else, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_pull_is_checked_on_both_sides, set_up, tear_down),
		cmocka_unit_test_setup_teardown(rows_outside_x_are_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_list_that_changes_meanwhile_cannot_matter, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(an_abort_that_is_set_ends_everything, set_up,
						tear_down),
		cmocka_unit_test(long_operations_notice_an_abort),
	};

	return cmocka_run_group_tests_name("chip", tests, NULL, NULL);
}
