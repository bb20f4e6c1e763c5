/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_arguments.c - commands and queues: every argument that is refused,
 * with the same errno from ndp_run() and from a queue, on every device.
 */
#include "device_ref.h"

#include <errno.h>
#include <pthread.h>

enum { H = 64, LDX = 128, LDY = 256 };

/* ---- commands -------------------------------------------------------- */

struct commands {
	struct ndp_device *dev, *other;
	struct ref_expert e;
	struct ref_matrix m;
	struct ndp_weights *w, *mat, *open, *foreign;
	struct ndp_io *x, *y, *half, *foreign_io;
	struct ndp_cmd ffn, gemv, act;
};

static void make_commands(struct commands *c, struct ndp_device *dev)
{
	struct ndp_placement p;

	c->dev = dev;
	c->other = ref_open("soft:dimms=1,size=4M");
	c->e = ref_expert_new(H, H, 128, 1);
	c->m = ref_matrix_new(64, H, 1);
	ndp_placement_spread(&p, 4, 15);
	c->w = ref_place_expert(dev, &c->e, &p);
	assert_int_equal(ndp_expert_create(&c->open, dev, &c->e.shape, &p, 0, 0, NULL), 0);
	ndp_placement_local(&p, 4, 0);
	c->foreign = ref_place_expert(c->other, &c->e, &p);
	ndp_placement_local(&p, 2, 0);
	assert_int_equal(ndp_matrix_create(&c->mat, dev, &c->m.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_seal(c->mat), 0);
	c->x = ref_io(dev, 0, 8192);
	c->y = ref_io(dev, 0, 8192);
	c->half = ref_io(dev, 3, 8192);
	c->foreign_io = ref_io(c->other, 0, 8192);
	c->ffn = (struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT, .weights = c->w, .x = c->x, .y = c->y,
				   .x_mask = 15, .tokens = 2, .ldx = LDX, .ldy = LDY };
	c->gemv = c->ffn;
	c->gemv.op = NDP_OP_GEMV_MATRIX;
	c->gemv.weights = c->mat;
	c->act = (struct ndp_cmd){ .op = NDP_OP_ACT_MUL,
				   .x = c->x,
				   .y = c->y,
				   .x_mask = 15,
				   .tokens = 2,
				   .count = H,
				   .ldx = LDY,
				   .ldy = LDX,
				   .rows_off = 4096 };
}

static void free_commands(struct commands *c)
{
	ndp_weights_free(c->w);
	ndp_weights_free(c->open);
	ndp_weights_free(c->mat);
	ndp_weights_free(c->foreign);
	ndp_io_free(c->x);
	ndp_io_free(c->y);
	ndp_io_free(c->half);
	ndp_io_free(c->foreign_io);
	ndp_close(c->other);
	ref_expert_free(&c->e);
	free(c->m.m);
}

static void refuse(struct commands *c, const struct ndp_cmd *cmd, int want, int line)
{
	struct ndp_result res;
	struct ndp_queue *q;
	int r = ndp_run(c->dev, cmd, &res), pushed, queued = 0;

	assert_int_equal(ndp_queue_create(&q, c->dev, 1, NULL), 0);
	pushed = ndp_queue_push(q, cmd);
	if (!pushed) { /* found later: what the DIMMs have is known at submission */
		assert_int_equal(ndp_queue_wait(q, &res, 1, 1), 1);
		queued = res.res;
	}
	if (r != want || (pushed ? pushed : queued) != want)
		fail_msg("line %d: wanted %d, ndp_run() says %d, a queue %d and %d", line, want, r,
			 pushed, queued);
	ndp_queue_free(q);
}

#define REFUSE(base, want, ...)							\
	do {									\
		struct ndp_cmd cmd_ = c.base, *b = &cmd_;			\
		__VA_ARGS__;							\
		refuse(&c, &cmd_, want, __LINE__);				\
	} while (0)

static void wrong_commands_are_refused(void **state)
{
	struct commands c;

	make_commands(&c, *state);
	REFUSE(ffn, 0, (void)b);
	REFUSE(gemv, 0, (void)b);
	REFUSE(act, 0, (void)b);

	REFUSE(ffn, -EINVAL, b->op = (enum ndp_op)99);
	REFUSE(ffn, -EINVAL, b->weights = NULL);
	REFUSE(ffn, -EINVAL, b->x = NULL);
	REFUSE(ffn, -EINVAL, b->y = NULL);
	REFUSE(ffn, -EINVAL, b->weights = c.foreign);
	REFUSE(ffn, -EINVAL, b->x = c.foreign_io);
	REFUSE(ffn, -EINVAL, b->y = c.foreign_io);
	REFUSE(ffn, -EBADF, b->weights = c.mat);
	REFUSE(ffn, -EBADF, b->weights = c.open);
	REFUSE(gemv, -EBADF, b->weights = c.w);

	REFUSE(ffn, -EINVAL, b->x_mask = 0);
	REFUSE(ffn, -EINVAL, b->x_mask = 31);
	REFUSE(ffn, -EINVAL, b->x = c.half);
	REFUSE(ffn, -EXDEV, b->x = c.half; b->x_mask = 3);
	REFUSE(ffn, -EXDEV, b->y = c.half);
	REFUSE(act, -EXDEV, b->y = c.half);

	REFUSE(ffn, -EINVAL, b->first = 4);
	REFUSE(ffn, -EINVAL, b->first = 1); /* of no blocks */
	REFUSE(ffn, -EINVAL, b->first = 1; b->count = 4);
	REFUSE(ffn, -EINVAL, b->first = 3; b->count = UINT32_MAX);
	REFUSE(ffn, 0, b->first = 3; b->count = 1);
	REFUSE(ffn, -EINVAL, b->tokens = 1025);
	REFUSE(ffn, -EINVAL, b->tokens = UINT32_MAX);
	REFUSE(ffn, -EINVAL, b->tokens = 65); /* beyond x */
	REFUSE(ffn, -EINVAL, b->act = 2);
	REFUSE(ffn, -EINVAL, b->act = -1);
	REFUSE(ffn, -EINVAL, b->act = 1; b->limit = 0);
	REFUSE(ffn, -EINVAL, b->act = 1; b->limit = 7; b->alpha = NAN);
	REFUSE(ffn, 0, b->act = 1; b->limit = 7; b->alpha = 1.7f);
	REFUSE(gemv, -EINVAL, b->act = 1; b->limit = 7);

	REFUSE(ffn, -EINVAL, b->x_off = 32);
	REFUSE(ffn, -EINVAL, b->y_off = 4);
	REFUSE(ffn, -EINVAL, b->ldx = 96);
	REFUSE(ffn, -EINVAL, b->ldy = 264);
	REFUSE(ffn, -EINVAL, b->ldx = 64);
	REFUSE(ffn, -EINVAL, b->ldy = 192);
	REFUSE(ffn, -EINVAL, b->tokens = 1; b->ldx = 1 << 22);
	REFUSE(ffn, 0, b->tokens = 1; b->ldx = (1 << 22) - 64);
	REFUSE(ffn, -EINVAL, b->ldx = (size_t)1 << 63);
	REFUSE(ffn, -EINVAL, b->x_off = 8192 - 192);
	REFUSE(ffn, -EINVAL, b->y_off = 8192 - 256);
	REFUSE(ffn, 0, b->y_off = 8192 - 512);
	REFUSE(ffn, -EINVAL, b->x_off = (size_t)-64);

	REFUSE(ffn, -EINVAL, b->rows_off = 4096);
	REFUSE(ffn, 0, b->x_rows = 1; b->rows_off = 4100);
	REFUSE(ffn, -EINVAL, b->x_rows = 1; b->rows_off = 4098);
	REFUSE(ffn, -EINVAL, b->x_rows = 1; b->rows_off = 8188);
	REFUSE(ffn, -EINVAL, b->x_rows = 65);
	REFUSE(ffn, -EINVAL, b->x_rows = 65536);

	REFUSE(act, -EINVAL, b->weights = c.w);
	REFUSE(act, -EINVAL, b->count = 0);
	REFUSE(act, -EINVAL, b->count = 65473);
	REFUSE(act, -EINVAL, b->first = 1);
	REFUSE(act, -EINVAL, b->x_rows = 1);
	REFUSE(act, -EINVAL, b->accumulate = true);
	REFUSE(act, -EINVAL, b->rows_off = 4100);
	REFUSE(act, -EINVAL, b->rows_off = 8192 - 448);
	REFUSE(act, -EINVAL, b->ldx = 192);
	REFUSE(act, -EINVAL, b->ldy = 64);

	/* No tokens is no excuse. */
	REFUSE(ffn, -EINVAL, b->tokens = 0; b->x = NULL);
	REFUSE(ffn, -EBADF, b->tokens = 0; b->weights = c.open);
	free_commands(&c);
}

static void wrong_moves_are_refused(void **state)
{
	struct ndp_placement outside, wrong = { 0 }, here;
	struct commands c;

	make_commands(&c, *state);
	ndp_placement_spread(&here, 4, 15);
	ndp_placement_local(&outside, 4, 31);
	c.ffn = (struct ndp_cmd){ .op = NDP_OP_MIGRATE_WEIGHTS, .weights = c.w, .to = &here };
	REFUSE(ffn, 0, (void)b);
	REFUSE(ffn, -EINVAL, b->weights = NULL);
	REFUSE(ffn, -EINVAL, b->weights = c.foreign);
	REFUSE(ffn, -EINVAL, b->to = NULL);
	REFUSE(ffn, -EINVAL, b->to = &wrong);
	REFUSE(ffn, -EBADF, b->weights = c.open);
	REFUSE(ffn, -ENODEV, b->to = &outside);
	free_commands(&c);
}

/* An io_uring command has room for 7 ranges, so a queue takes no more anywhere. */
static void a_queue_takes_seven_ranges_or_an_even_spread(void **state)
{
	struct ndp_device *dev = ref_open("soft:dimms=9,size=4M");
	struct ref_expert e = ref_expert_new(H, H, 20 * 32, 1);
	struct ndp_placement even, eight = { .nr_ranges = 8 };
	struct ndp_cmd c = { .op = NDP_OP_MIGRATE_WEIGHTS, .to = &eight };
	struct ndp_result res;
	struct ndp_queue *q;

	UNUSED_STATE;
	for (uint32_t i = 0; i < 8; i++)
		eight.ranges[i] = (struct ndp_range){ .dimm = i, .nr_blocks = i ? 2 : 6 };
	ndp_placement_spread(&even, 20, 0x1ff);
	c.weights = ref_place_expert(dev, &e, &even);
	assert_int_equal(ndp_queue_create(&q, dev, 1, NULL), 0);
	assert_int_equal(ndp_queue_push(q, &c), -E2BIG);
	assert_int_equal(ndp_weights_migrate(c.weights, &eight, NULL, NULL), 0);
	c.to = &even;
	assert_int_equal(ndp_queue_push(q, &c), 0);
	assert_int_equal(ndp_queue_wait(q, &res, 1, 1), 1);
	assert_int_equal(res.res, 0);
	assert_int_equal(res.dimm_mask, 0x1ff);
	ndp_queue_free(q);
	ndp_weights_free(c.weights);
	ref_expert_free(&e);
	ndp_close(dev);
}

/* ---- queues ---------------------------------------------------------- */

static void a_queue_holds_depth_commands(void **state)
{
	struct ndp_result res[16];
	struct ndp_queue *q;
	struct ndp_error err;
	struct commands c;
	uint64_t seen = 0;

	make_commands(&c, *state);
	assert_int_equal(ndp_queue_create(&q, c.dev, 0, &err), -EINVAL);
	assert_non_null(strstr(err.message, "1 to 4096"));
	assert_int_equal(ndp_queue_create(&q, c.dev, 4097, &err), -EINVAL);
	assert_null(q);
	assert_int_equal(ndp_queue_create(&q, c.dev, 4096, &err), 0);
	ndp_queue_free(q);

	assert_int_equal(ndp_queue_create(&q, c.dev, 5, &err), 0);
	assert_int_equal(ndp_queue_submit(q), 0);
	assert_int_equal(ndp_queue_wait(q, res, 16, 16), 0); /* nothing is in flight */
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < 5; i++) {
			c.ffn.tag = (uint64_t)i;
			c.ffn.y_off = (size_t)i * 512;
			assert_int_equal(ndp_queue_push(q, &c.ffn), 0);
		}
		assert_int_equal(ndp_queue_push(q, &c.ffn), -EAGAIN);
		assert_int_equal(ndp_queue_inflight(q), 5);
		if (round % 2)
			assert_int_equal(ndp_queue_submit(q), 5);
		seen = 0;
		while (ndp_queue_inflight(q)) {
			int n = ndp_queue_wait(q, res, 2, 16);

			assert_in_range(n, 1, 2);
			for (int i = 0; i < n; i++) {
				assert_int_equal(res[i].res, 0);
				assert_int_equal(res[i].dimm_mask, 15);
				assert_false(seen & 1U << res[i].tag);
				seen |= 1U << res[i].tag;
			}
		}
		assert_int_equal(seen, 31);
	}
	/* Freed with work in flight: waits for it. */
	assert_int_equal(ndp_queue_push(q, &c.ffn), 0);
	assert_int_equal(ndp_queue_submit(q), 1);
	assert_int_equal(ndp_queue_push(q, &c.ffn), 0);
	ndp_queue_free(q);
	free_commands(&c);
}

struct stranger {
	struct ndp_queue *q;
	const struct ndp_cmd *cmd;
	int push, submit, wait;
};

static void *use_queue(void *arg)
{
	struct stranger *s = arg;
	struct ndp_result res;

	s->push = ndp_queue_push(s->q, s->cmd);
	s->submit = ndp_queue_submit(s->q);
	s->wait = ndp_queue_wait(s->q, &res, 1, 0);
	return NULL;
}

static void a_queue_is_its_threads_own(void **state)
{
	struct stranger s;
	struct commands c;
	pthread_t t;

	make_commands(&c, *state);
	assert_int_equal(ndp_queue_create(&s.q, c.dev, 5, NULL), 0);
	s.cmd = &c.ffn;
	assert_int_equal(pthread_create(&t, NULL, use_queue, &s), 0);
	pthread_join(t, NULL);
	assert_int_equal(s.push, -EPERM);
	assert_int_equal(s.submit, -EPERM);
	assert_int_equal(s.wait, -EPERM);
	ndp_queue_free(s.q);
	free_commands(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REF_TEST(wrong_commands_are_refused),
		REF_TEST(wrong_moves_are_refused),
		cmocka_unit_test(a_queue_takes_seven_ranges_or_an_even_spread),
		REF_TEST(a_queue_holds_depth_commands),
		REF_TEST(a_queue_is_its_threads_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
