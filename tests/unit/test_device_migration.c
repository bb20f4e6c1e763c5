/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_migration.c - the two ideas that migration rests on: weights never
 * change, so moving them is a swap; and a command never computes with an x that
 * was not written for it, however the weights have moved meanwhile.
 */
#include "device_ref.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "../../libndp/device/soft.h"

enum { H = 64, LDX = 128, LDY = 256 };

/* One whose memory can be filled. */
static int small_setup(void **state)
{
	*state = ref_open("soft:dimms=4,size=32M");
	return 0;
}

static void move_to(struct ndp_weights *w, uint32_t mask)
{
	struct ndp_weights_info info;
	struct ndp_placement p;
	struct ndp_error err;
	int r;

	assert_int_equal(ndp_weights_info(w, &info), 0);
	assert_int_equal(ndp_placement_spread(&p, info.nr_blocks, mask), 0);
	r = ndp_weights_migrate(w, &p, NULL, &err);
	if (r < 0)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
}

static uint32_t place_of(struct ndp_weights *w)
{
	struct ndp_weights_info info;

	assert_int_equal(ndp_weights_info(w, &info), 0);
	return ndp_placement_mask(&info.placement);
}

/* What the expert computes when nothing moves. */
static void compute_alone(struct ndp_device *dev, struct ndp_weights *w, const ndp_bf16 *x,
			  float *y)
{
	struct ndp_io *xo = ref_io(dev, 0, LDX), *yo = ref_io(dev, 0, LDY);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
			     .weights = w,
			     .x = xo,
			     .y = yo,
			     .x_mask = ref_mask(dev),
			     .tokens = 1,
			     .ldx = LDX,
			     .ldy = LDY };
	struct ndp_result res;

	assert_int_equal(ndp_io_write(xo, c.x_mask, 0, x, 2 * H), 0);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.retries, 0);
	assert_int_equal(ndp_io_reduce(yo, res.dimm_mask, 0, LDY, y, H, 1, H), 0);
	ndp_io_free(xo);
	ndp_io_free(yo);
}

/* ---- the retry ------------------------------------------------------- */

/*
 * x is written where the weights are, then they move, then the command goes
 * out. The replica at the new place holds NaN, or the x of the command before.
 */
static void a_move_between_x_and_submit_each_time(void **state)
{
	enum { KINDS = 16 };
	const unsigned int times = ref_scaled(10000);
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 32, 1);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, LDY);
	uint64_t seed = 1, retries = 0;
	ndp_bf16 *kinds = ref_random_rows(KINDS, H, H, 1, &seed);
	float want[KINDS][H], got[H];
	struct ndp_placement p;
	struct ndp_weights *w;

	ndp_placement_local(&p, 1, 0);
	w = ref_place_expert(dev, &e, &p);
	for (int k = 0; k < KINDS; k++)
		compute_alone(dev, w, &kinds[k * H], want[k]);
	for (unsigned int i = 0; i < times; i++) {
		int k = (int)(ref_next(&seed) % KINDS);
		uint32_t at = place_of(w), next;
		struct ndp_result res;
		struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
				     .weights = w,
				     .x = x,
				     .y = y,
				     .x_mask = at,
				     .tokens = 1,
				     .ldx = LDX,
				     .ldy = LDY };

		do {
			next = 1U << ref_next(&seed) % 4;
		} while (next == at);
		if (i % 2)
			ref_poison(x, 15 & ~at, LDX);
		ref_poison(y, 15, LDY);
		assert_int_equal(ndp_io_write(x, at, 0, &kinds[k * H], 2 * H), 0);
		move_to(w, next);
		assert_int_equal(ndp_run(dev, &c, &res), 0);
		assert_int_equal(res.dimm_mask, next);
		retries += res.retries;
		assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, LDY, got, H, 1, H), 0);
		assert_memory_equal(got, want[k], sizeof(got));
	}
	assert_int_equal(retries, times);
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	free(kinds);
	ref_expert_free(&e);
}

static void a_retry_copies_the_rows_it_reads_and_nothing_else(void **state)
{
	enum { ROWS = 9, TOKENS = 3 };
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 64, 3);
	struct ndp_io *x = ref_io(dev, 0, ROWS * 256 + 64), *y = ref_io(dev, 0, TOKENS * LDY);
	uint32_t list[TOKENS] = { 7, 2, 7 };
	uint64_t seed = 5;
	ndp_bf16 *rows = ref_random_rows(ROWS, H, 128, 1, &seed);
	double want[H], tol[H];
	float got[TOKENS * H];
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 1, .tokens = TOKENS,
			     .x_rows = ROWS, .rows_off = ROWS * 256, .ldx = 256, .ldy = LDY };

	ndp_placement_local(&p, 2, 0);
	c.weights = w = ref_place_expert(dev, &e, &p);
	ref_poison(x, 15, ROWS * 256 + 64);
	assert_int_equal(ndp_io_write(x, 1, 0, rows, ROWS * 256), 0);
	assert_int_equal(ndp_io_write(x, 1, ROWS * 256, list, sizeof(list)), 0);
	move_to(w, 12);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.retries, 1);
	assert_int_equal(res.dimm_mask, 12);
	assert_int_equal(ndp_io_reduce(y, 12, 0, LDY, got, H, TOKENS, H), 0);
	for (int t = 0; t < TOKENS; t++) {
		ref_ffn(&e, &c, &rows[list[t] * 128], 0, 2, want, tol);
		ref_assert_near(&got[t * H], want, tol, H);
	}
	for (uint32_t d = 1; d < 4; d++) {
		const uint16_t *r = ndp_io_ptr(x, d);

		for (int i = 0; i < ROWS; i++)
			for (int k = 0; k < 128; k++)
				if (d == 1 || (i != 7 && i != 2) || k >= H)
					assert_int_equal(r[i * 128 + k], 0xffff);
	}
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	free(rows);
	ref_expert_free(&e);
}

static void a_retried_gemv_finds_zeroes_in_new_replicas(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_matrix m = ref_matrix_new(96, H, 4);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, 384);
	uint64_t seed = 6;
	ndp_bf16 *row = ref_random_rows(1, H, H, 1, &seed);
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;
	float got[96];

	ndp_placement_local(&p, 3, 3);
	assert_int_equal(ndp_matrix_create(&w, dev, &m.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_matrix_load(w, m.m, m.ld), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	ref_poison(x, 15, LDX);
	ref_poison(y, 15, 384);
	assert_int_equal(ndp_io_write(x, 8, 0, row, LDX), 0);
	move_to(w, 7);
	assert_int_equal(ndp_run(dev,
				 &(struct ndp_cmd){ .op = NDP_OP_GEMV_MATRIX,
						    .weights = w,
						    .x = x,
						    .y = y,
						    .x_mask = 8,
						    .tokens = 1,
						    .ldx = LDX,
						    .ldy = 384 },
				 &res),
			 0);
	assert_int_equal(res.dimm_mask, 7);
	assert_int_equal(ndp_io_reduce(y, 7, 0, 384, got, 96, 1, 96), 0);
	for (int j = 0; j < 96; j++)
		assert_true(fabs(got[j] - ref_dot(&m.m[j * m.ld], row, H)) < 1e-4);
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	free(row);
	free(m.m);
}

static void a_move_to_where_x_has_no_replica_is_exdev(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 32, 1);
	struct ndp_io *x = ref_io(dev, 3, LDY), *y = ref_io(dev, 15, LDY);
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 1, .tokens = 1,
			     .ldx = LDX, .ldy = LDY };

	ndp_placement_local(&p, 1, 0);
	c.weights = w = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	move_to(w, 4);
	assert_int_equal(ndp_run(dev, &c, &res), -EXDEV);
	assert_int_equal(res.res, -EXDEV);
	assert_int_equal(res.dimm_mask, 0);
	move_to(w, 2);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.retries, 1);
	c.x = y; /* the other way round: y is missing there */
	c.y = x;
	c.x_mask = 15;
	move_to(w, 8);
	assert_int_equal(ndp_run(dev, &c, &res), -EXDEV);
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	ref_expert_free(&e);
}

/* ---- moving ---------------------------------------------------------- */

static void a_move_says_what_it_copied(void **state)
{
	struct ndp_device *dev = ref_open(
		"soft:dimms=4,size=32M,link-mbps=1000,link-latency-ns=700,internal-mbps=2000,overhead-ns=300");
	struct ref_expert e = ref_expert_new(H, H, 8 * 32, 1);
	uint64_t block = ndp_expert_block_bytes(&e.shape);
	struct ndp_weights_info info;
	struct ndp_dimm_info dimm;
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_move move;

	UNUSED_STATE;
	assert_int_equal(ndp_placement_spread(&p, 8, 3), 0);
	w = ref_place_expert(dev, &e, &p);

	/* Blocks 0..3 stay as a whole, 4..7 go from DIMM 1 to DIMM 2. */
	p = (struct ndp_placement){ 2, { { 0, 4 }, { 2, 4 } } };
	assert_int_equal(ndp_weights_migrate(w, &p, &move, NULL), 0);
	assert_int_equal(move.bytes, 4 * block);
	assert_int_equal(move.modelled_ns, 4 * block + 700);
	assert_int_equal(ndp_dimm_info(dev, 2, &dimm), 0);
	assert_int_equal(dimm.link.bytes, 4 * block);
	assert_int_equal(dimm.link.busy_ns, 4 * block + 700);
	assert_int_equal(dimm.link.commands, 1);

	/* The same again: nothing to do. */
	assert_int_equal(ndp_weights_migrate(w, &p, &move, NULL), 0);
	assert_int_equal(move.bytes, 0);
	assert_int_equal(move.modelled_ns, 0);
	assert_int_equal(ndp_weights_info(w, &info), 0);
	assert_int_equal(info.moves, 1);

	/* All on DIMM 0: a copy inside of it and one over the link. */
	ndp_placement_local(&p, 8, 0);
	assert_int_equal(ndp_weights_migrate(w, &p, &move, NULL), 0);
	assert_int_equal(move.bytes, 8 * block);
	assert_int_equal(move.modelled_ns, 4 * block + 700 + (2 * 4 * block) / 2 + 300);
	assert_int_equal(ndp_weights_info(w, &info), 0);
	assert_int_equal(info.moves, 2);
	assert_int_equal(info.placement.nr_ranges, 1);
	assert_int_equal(info.cookie, 7);
	ndp_weights_free(w);
	ref_expert_free(&e);
	ndp_close(dev);
}

static void a_move_that_cannot_be_leaves_everything_as_it_was(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 64, 1),
			  big = ref_expert_new(4096, 4096, 32 * 22, 2);
	struct ndp_error err;
	struct ndp_placement p;
	struct ndp_weights *w, *open, *a, *b;
	uint64_t free_bytes;
	float before[H], after[H];
	uint64_t seed = 3;
	ndp_bf16 *x = ref_random_rows(1, H, H, 1, &seed);

	ndp_placement_local(&p, 2, 0);
	assert_int_equal(ndp_expert_create(&open, dev, &e.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_migrate(open, &p, NULL, &err), -EBADF);
	assert_non_null(strstr(err.message, "ndp_weights_seal"));
	ndp_weights_free(open);

	assert_int_equal(ndp_expert_create(&w, dev, &e.shape, &p, 3, 0, NULL), 0);
	assert_int_equal(ndp_expert_load(w, e.gate, e.up, e.ld_in, e.down, e.ld_down), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	compute_alone(dev, w, x, before);
	free_bytes = ref_free_bytes(dev);

	ndp_placement_local(&p, 2, 2);
	assert_int_equal(ndp_weights_migrate(w, &p, NULL, &err), -EPERM);
	assert_non_null(strstr(err.message, "allowed"));
	ndp_placement_local(&p, 2, 4);
	assert_int_equal(ndp_weights_migrate(w, &p, NULL, &err), -ENODEV);
	ndp_placement_local(&p, 3, 1);
	assert_int_equal(ndp_weights_migrate(w, &p, NULL, &err), -EINVAL);
	p = (struct ndp_placement){ 0 };
	assert_int_equal(ndp_weights_migrate(w, &p, NULL, &err), -EINVAL);

	/* 16.5 of 32 MiB: there is never room for two on a DIMM. */
	ndp_placement_local(&p, 22, 0);
	assert_int_equal(ndp_expert_create(&a, dev, &big.shape, &p, 0, 0, &err), 0);
	assert_int_equal(ndp_weights_seal(a), 0);
	ndp_placement_local(&p, 22, 1);
	assert_int_equal(ndp_expert_create(&b, dev, &big.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_seal(b), 0);
	assert_int_equal(ndp_weights_migrate(a, &p, NULL, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "old placement remains"));
	p = (struct ndp_placement){ 2, { { 2, 1 }, { 1, 21 } } }; /* half of it fits */
	assert_int_equal(ndp_weights_migrate(a, &p, NULL, &err), -ENOSPC);
	assert_int_equal(place_of(a), 1);
	ndp_weights_free(a);
	ndp_weights_free(b);

	assert_int_equal(ref_free_bytes(dev), free_bytes);
	assert_int_equal(place_of(w), 1);
	compute_alone(dev, w, x, after);
	assert_memory_equal(before, after, sizeof(before));
	ndp_weights_free(w);
	free(x);
	ref_expert_free(&e);
	ref_expert_free(&big);
}

static void two_moves_of_one_object_are_ebusy(void **state)
{
	/* 48 KiB at 1 MB/s: the first one takes 50 ms */
	struct ndp_device *dev = ref_open("soft:dimms=2,size=16M,timing=on,link-mbps=1");
	struct ref_expert e = ref_expert_new(H, H, 128, 1);
	struct ndp_placement here, there;
	struct ndp_weights *w;
	struct ndp_queue *q;
	struct ndp_result res[2];
	struct ndp_cmd c = { .op = NDP_OP_MIGRATE_WEIGHTS, .to = &there };
	struct ndp_error err;

	UNUSED_STATE;
	ndp_placement_local(&here, 4, 0);
	ndp_placement_local(&there, 4, 1);
	c.weights = w = ref_place_expert(dev, &e, &here);
	assert_int_equal(ndp_queue_create(&q, dev, 4, NULL), 0);
	c.tag = 1;
	assert_int_equal(ndp_queue_push(q, &c), 0);
	assert_int_equal(ndp_queue_submit(q), 1);
	assert_int_equal(ndp_weights_migrate(w, &there, NULL, &err), -EBUSY);
	assert_non_null(strstr(err.message, "try again"));
	c.tag = 2;
	assert_int_equal(ndp_queue_push(q, &c), 0);
	assert_int_equal(ndp_queue_wait(q, res, 2, 1), 1);
	assert_int_equal(res[0].tag, 2);
	assert_int_equal(res[0].res, -EBUSY);
	assert_int_equal(ndp_queue_wait(q, res, 2, 1), 1);
	assert_int_equal(res[0].tag, 1);
	assert_int_equal(res[0].res, 0);
	assert_int_equal(res[0].dimm_mask, 2);
	assert_int_equal(place_of(w), 2);
	ndp_queue_free(q);
	ndp_weights_free(w);
	ref_expert_free(&e);
	ndp_close(dev);
}

/* Commands in flight keep the old extents; those that come later use the new. */
static void commands_in_flight_finish_where_they_began(void **state)
{
	struct ndp_device *dev = ref_open("soft:dimms=2,size=16M,timing=on,overhead-ns=20000000");
	struct ref_expert e = ref_expert_new(H, H, 32, 1);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, 3 * LDY);
	uint64_t seed = 3, free_before;
	ndp_bf16 *row = ref_random_rows(1, H, H, 1, &seed);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 3, .tokens = 1,
			     .ldx = LDX, .ldy = LDY };
	struct ndp_placement p;
	struct ndp_result res[3];
	struct ndp_queue *q;
	float want[H], got[H];

	UNUSED_STATE;
	ndp_placement_local(&p, 1, 0);
	c.weights = ref_place_expert(dev, &e, &p);
	compute_alone(dev, c.weights, row, want);
	free_before = ref_free_bytes(dev);
	assert_int_equal(ndp_io_write(x, 3, 0, row, 2 * H), 0);
	assert_int_equal(ndp_queue_create(&q, dev, 3, NULL), 0);
	for (c.tag = 0; c.tag < 3; c.tag++) {
		c.y_off = c.tag * LDY;
		assert_int_equal(ndp_queue_push(q, &c), 0);
	}
	assert_int_equal(ndp_queue_submit(q), 3);
	move_to(c.weights, 2); /* does not wait for the 60 ms */
	assert_true(ref_free_bytes(dev) < free_before);
	assert_int_equal(ndp_queue_inflight(q), 3);
	assert_int_equal(ndp_queue_wait(q, res, 3, 3), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(res[i].res, 0);
		assert_int_equal(res[i].dimm_mask, 1);
		assert_int_equal(ndp_io_read(y, 0, res[i].tag * LDY, got, sizeof(got)), 0);
		assert_memory_equal(got, want, sizeof(got));
	}
	assert_int_equal(ref_free_bytes(dev), free_before);
	ndp_queue_free(q);
	ndp_weights_free(c.weights);
	ndp_io_free(x);
	ndp_io_free(y);
	free(row);
	ref_expert_free(&e);
	ndp_close(dev);
}

static void at_most_two_moves_copy_into_a_dimm(void **state)
{
	enum { N = 6 };
	struct ndp_device *dev = ref_open("soft:dimms=4,size=16M,timing=on,link-mbps=10");
	struct soft_device *soft = (struct soft_device *)dev;
	struct ref_expert e = ref_expert_new(H, H, 64, 1);
	struct ndp_weights *w[N];
	struct ndp_placement p, to;
	struct ndp_result res[N];
	struct ndp_queue *q;
	unsigned int most = 0, done = 0;

	UNUSED_STATE;
	assert_int_equal(ndp_queue_create(&q, dev, N, NULL), 0);
	ndp_placement_local(&to, 2, 3);
	for (uint32_t i = 0; i < N; i++) {
		ndp_placement_local(&p, 2, i % 3);
		w[i] = ref_place_expert(dev, &e, &p);
		assert_int_equal(ndp_queue_push(q, &(struct ndp_cmd){ .op = NDP_OP_MIGRATE_WEIGHTS,
								      .weights = w[i],
								      .to = &to }),
				 0);
	}
	assert_int_equal(ndp_queue_submit(q), N);
	while (done < N) {
		int n = ndp_queue_wait(q, &res[done], N - done, 0);

		assert_true(n >= 0);
		done += (unsigned int)n;
		pthread_mutex_lock(&soft->move_lock);
		if (soft->dimms[3].copies > most)
			most = soft->dimms[3].copies;
		pthread_mutex_unlock(&soft->move_lock);
		usleep(200);
	}
	assert_int_equal(most, 2);
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(res[i].res, 0);
		assert_int_equal(place_of(w[i]), 8);
		ndp_weights_free(w[i]);
	}
	ndp_queue_free(q);
	ref_expert_free(&e);
	ndp_close(dev);
}

/* ---- the contiguous view --------------------------------------------- */

static void the_view_is_contiguous_and_survives_moves(void **state)
{
	static const uint32_t masks[] = { 15, 2, 9, 7, 8 };
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, 2 * H, 9 * 32, 1);
	size_t block = ndp_expert_block_bytes(&e.shape);
	char *packed = malloc(9 * block);
	struct ndp_placement p;
	struct ndp_weights *w;
	const void *view;

	for (uint32_t b = 0; b < 9; b++)
		ndp_expert_pack_block(packed + b * block, &e.shape, b, e.gate, e.up, e.ld_in,
				      e.down, e.ld_down);
	assert_int_equal(ndp_placement_spread(&p, 9, 5), 0);
	assert_int_equal(ndp_expert_create(&w, dev, &e.shape, &p, 0, 0, NULL), 0);
	errno = 0;
	assert_null(ndp_weights_map(w));
	assert_int_equal(errno, EBADF);
	assert_int_equal(ndp_weights_write(w, 0, 4, packed), 0);
	assert_int_equal(ndp_weights_write(w, 4, 5, packed + 4 * block), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	assert_int_equal(ndp_weights_write(w, 0, 1, packed), -EBADF);
	view = ndp_weights_map(w);
	assert_non_null(view);
	assert_memory_equal(view, packed, 9 * block);
	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		move_to(w, masks[i]);
		assert_ptr_equal(ndp_weights_map(w), view);
		assert_memory_equal(view, packed, 9 * block);
	}
	ndp_weights_free(w);
	free(packed);
	ref_expert_free(&e);
}

/* ---- all at once ----------------------------------------------------- */

struct storm {
	struct ndp_device *dev;
	struct ndp_weights *w[6];
	const char *packed[6];
	size_t bytes;
	bool stop;
	int errors;
	uint64_t moves;
};

static void storm_failed(struct storm *s, const char *what, int r)
{
	print_error("%s: %d\n", what, r);
	__atomic_add_fetch(&s->errors, 1, __ATOMIC_RELAXED);
}

static void *storm_mover(void *arg)
{
	struct storm *s = arg;
	uint64_t seed = 77 + (uintptr_t)&seed;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		struct ndp_placement p;
		int r;

		ndp_placement_spread(&p, 8, 1 + ref_next(&seed) % 15);
		r = ndp_weights_migrate(s->w[ref_next(&seed) % 6], &p, NULL, NULL);
		if (!r)
			__atomic_add_fetch(&s->moves, 1, __ATOMIC_RELAXED);
		else if (r != -EBUSY)
			storm_failed(s, "migrate", r);
	}
	return NULL;
}

static void *storm_reader(void *arg)
{
	struct storm *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
		for (int i = 0; i < 6; i++)
			if (memcmp(ndp_weights_map(s->w[i]), s->packed[i], s->bytes))
				storm_failed(s, "the view differs", i);
	return NULL;
}

/* A queue of commands whose x changes each time, every result checked. */
static void *storm_computer(void *arg)
{
	enum { DEPTH = 8, KINDS = 4 };
	const int commands = (int)ref_scaled(3000);
	struct storm *s = arg;
	struct ndp_io *x = NULL, *y = NULL;
	struct ndp_queue *q = NULL;
	struct ndp_result res[DEPTH];
	uint64_t seed = 55 + (uintptr_t)&seed;
	ndp_bf16 *kinds = ref_random_rows(KINDS, H, H, 1, &seed);
	float want[6][KINDS][H], got[H];
	int busy[DEPTH], r;

	r = ndp_io_create(&x, s->dev, 0, DEPTH * LDX, NULL);
	r = r ? r : ndp_io_create(&y, s->dev, 0, DEPTH * LDY, NULL);
	r = r ? r : ndp_queue_create(&q, s->dev, DEPTH, NULL);
	if (r) {
		storm_failed(s, "objects", r);
		return NULL;
	}
	for (int i = 0; i < DEPTH; i++)
		busy[i] = -1;
	for (int i = 0; i < 6; i++)
		for (int k = 0; k < KINDS; k++) {
			struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
					     .weights = s->w[i],
					     .x = x,
					     .y = y,
					     .x_mask = 15,
					     .tokens = 1,
					     .ldx = LDX,
					     .ldy = LDY };

			ndp_io_write(x, 15, 0, &kinds[k * H], 2 * H);
			r = ndp_run(s->dev, &c, res);
			if (r)
				storm_failed(s, "run", r);
			ndp_io_reduce(y, res[0].dimm_mask, 0, LDY, want[i][k], H, 1, H);
		}
	for (int sent = 0, done = 0; done < commands && !s->errors;) {
		int n;

		for (int slot = 0; slot < DEPTH && sent < commands; slot++) {
			int i = (int)(ref_next(&seed) % 6), k = (int)(ref_next(&seed) % KINDS);
			struct ndp_weights_info info;
			struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
					     .weights = s->w[i],
					     .x = x,
					     .y = y,
					     .tokens = 1,
					     .ldx = LDX,
					     .ldy = LDY,
					     .tag = (uint64_t)slot };

			if (busy[slot] >= 0)
				continue;
			ndp_weights_info(s->w[i], &info);
			c.x_mask = ndp_placement_mask(&info.placement);
			c.x_off = (size_t)slot * LDX;
			c.y_off = (size_t)slot * LDY;
			for (uint32_t d = 0; d < 4; d++)
				memset((char *)ndp_io_ptr(x, d) + c.x_off, 0xff, 2 * H);
			ndp_io_write(x, c.x_mask, c.x_off, &kinds[k * H], 2 * H);
			r = ndp_queue_push(q, &c);
			if (r)
				storm_failed(s, "push", r);
			busy[slot] = i * KINDS + k;
			sent++;
		}
		n = ndp_queue_wait(q, res, DEPTH, 1);
		if (n < 0)
			storm_failed(s, "wait", n);
		for (int j = 0; j < n; j++) {
			int slot = (int)res[j].tag, i = busy[slot] / KINDS, k = busy[slot] % KINDS;

			if (res[j].res)
				storm_failed(s, "command", res[j].res);
			ndp_io_reduce(y, res[j].dimm_mask, res[j].tag * LDY, LDY, got, H, 1, H);
			for (int t = 0; t < H; t++)
				if (!(fabsf(got[t] - want[i][k][t]) <= 1e-4f))
					storm_failed(s, "result", t);
			busy[slot] = -1;
			done++;
		}
	}
	ndp_queue_free(q);
	ndp_io_free(x);
	ndp_io_free(y);
	free(kinds);
	return NULL;
}

static void moves_commands_and_readers_race(void **state)
{
	struct storm s = { .dev = *state };
	uint64_t before = ref_free_bytes(s.dev);
	struct ref_expert e[6];
	pthread_t movers[2], reader, computers[2];
	struct ndp_device_info info;

	for (uint32_t i = 0; i < 6; i++) {
		struct ndp_placement p;
		char *packed;

		e[i] = ref_expert_new(H, H, 8 * 32, i + 40);
		s.bytes = 8 * ndp_expert_block_bytes(&e[i].shape);
		ndp_placement_spread(&p, 8, 15);
		s.w[i] = ref_place_expert(s.dev, &e[i], &p);
		s.packed[i] = packed = malloc(s.bytes);
		for (uint32_t b = 0; b < 8; b++)
			ndp_expert_pack_block(packed + b * s.bytes / 8, &e[i].shape, b, e[i].gate,
					      e[i].up, e[i].ld_in, e[i].down, e[i].ld_down);
		assert_non_null(ndp_weights_map(s.w[i]));
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_create(&movers[i], NULL, storm_mover, &s), 0);
		assert_int_equal(pthread_create(&computers[i], NULL, storm_computer, &s), 0);
	}
	assert_int_equal(pthread_create(&reader, NULL, storm_reader, &s), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(computers[i], NULL);
	__atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(movers[i], NULL);
	pthread_join(reader, NULL);
	assert_int_equal(s.errors, 0);
	assert_true(s.moves > 0);
	for (int i = 0; i < 6; i++) {
		ndp_weights_free(s.w[i]);
		free((void *)s.packed[i]);
		ref_expert_free(&e[i]);
	}
	assert_int_equal(ref_free_bytes(s.dev), before);
	assert_int_equal(ndp_device_info(s.dev, &info), 0);
	assert_int_equal(info.used_bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REF_TEST(a_move_between_x_and_submit_each_time),
		REF_TEST(a_retry_copies_the_rows_it_reads_and_nothing_else),
		REF_TEST(a_retried_gemv_finds_zeroes_in_new_replicas),
		REF_TEST(a_move_to_where_x_has_no_replica_is_exdev),
		cmocka_unit_test(a_move_says_what_it_copied),
		cmocka_unit_test_setup_teardown(a_move_that_cannot_be_leaves_everything_as_it_was,
						small_setup, ref_teardown),
		cmocka_unit_test(two_moves_of_one_object_are_ebusy),
		cmocka_unit_test(commands_in_flight_finish_where_they_began),
		cmocka_unit_test(at_most_two_moves_copy_into_a_dimm),
		REF_TEST(the_view_is_contiguous_and_survives_moves),
		REF_TEST(moves_commands_and_readers_race),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
