/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_commands.c - what commands compute on DIMMs, against FP64, for
 * every placement, and with x and y full of NaN where nothing may be read or
 * written.
 */
#include "device_ref.h"

#include <errno.h>
#include <time.h>

struct layout {
	size_t ldx, ldy, x_bytes, y_bytes, rows_off;
};

static struct layout layout(const struct ndp_expert_shape *s, uint32_t tokens, uint32_t x_rows)
{
	struct layout l = { .ldx = ref_stride(2 * s->h_in) + 64,
			    .ldy = ref_stride(4 * s->h_out) + 128 };

	l.rows_off = l.ldx * (x_rows > tokens ? x_rows : tokens);
	l.x_bytes = l.rows_off + 4 * tokens + 4;
	l.y_bytes = l.ldy * tokens;
	return l;
}

/* Runs @tokens tokens on the expert and checks y, with rows and without. */
static void check_ffn(struct ndp_device *dev, const struct ref_expert *e, struct ndp_weights *w,
		      uint32_t tokens, uint32_t x_rows, uint32_t first, uint32_t count, int act)
{
	struct layout l = layout(&e->shape, tokens, x_rows);
	uint32_t all = ref_mask(dev), nr = x_rows ? x_rows : tokens;
	uint32_t h_in = e->shape.h_in, h_out = e->shape.h_out;
	struct ndp_io *x = ref_io(dev, 0, l.x_bytes), *y = ref_io(dev, 0, l.y_bytes);
	uint64_t seed = 4711 + tokens;
	ndp_bf16 *rows = ref_random_rows(nr, h_in, l.ldx / 2, 1, &seed);
	uint32_t list[64];
	double *want = calloc(h_out, sizeof(*want)), *tol = calloc(h_out, sizeof(*tol));
	float *got = calloc((size_t)tokens * h_out, sizeof(*got));
	struct ndp_cmd c = {
		.op = NDP_OP_FFN_EXPERT, .weights = w, .x = x, .y = y, .x_mask = all,
		.first = first, .count = count, .tokens = tokens, .x_rows = x_rows,
		.ldx = l.ldx, .ldy = l.ldy, .act = act, .alpha = 1.702f, .limit = 0.75f,
		.rows_off = x_rows ? l.rows_off : 0, .tag = 99,
	};
	struct ndp_result res;
	struct ndp_weights_info info;

	ref_poison(x, all, l.x_bytes);
	ref_poison(y, all, l.y_bytes);
	for (uint32_t t = 0; t < nr; t++) /* only the columns: the rest stays NaN */
		assert_int_equal(ndp_io_write(x, all, t * l.ldx, &rows[t * l.ldx / 2], 2 * h_in),
				 0);
	for (uint32_t t = 0; t < tokens; t++)
		list[t] = x_rows ? (t * 7 + 3) % x_rows : t;
	assert_int_equal(ndp_io_write(x, all, l.rows_off, list, 4 * tokens), 0);

	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.res, 0);
	assert_int_equal(res.tag, 99);
	assert_true(res.modelled_ns > 0);
	assert_int_equal(ndp_weights_info(w, &info), 0);
	if (!first && (!count || count == info.nr_blocks))
		assert_int_equal(res.dimm_mask, ndp_placement_mask(&info.placement));
	assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, l.ldy, got, h_out, tokens, h_out), 0);
	for (uint32_t t = 0; t < tokens; t++) {
		ref_ffn(e, &c, &rows[list[t] * l.ldx / 2], first, count ? count : info.nr_blocks,
			want, tol);
		ref_assert_near(&got[(size_t)t * h_out], want, tol, h_out);
	}
	for (uint32_t d = 0; d < 4; d++) { /* nothing outside of y */
		const uint32_t *p = ndp_io_ptr(y, d);

		for (uint32_t t = 0; t < tokens; t++)
			for (uint32_t j = res.dimm_mask & 1U << d ? h_out : 0; j < l.ldy / 4; j++)
				assert_int_equal(p[t * l.ldy / 4 + j], 0xffffffff);
	}
	free(rows);
	free(want);
	free(tol);
	free(got);
	ndp_io_free(x);
	ndp_io_free(y);
}

static void ffn_is_right_in_every_placement(void **state)
{
	static const char *const policies[] = { "local", "striped", "spread:2", "spread:3",
						"dimm:3" };
	static const struct { uint32_t h_in, h_out, neurons; } shapes[] = {
		{ 64, 64, 32 }, { 128, 192, 352 }, { 100, 100, 36 }, { 1, 1, 1 }, { 65, 130, 97 },
	};
	struct ndp_device *dev = *state;
	struct ndp_placement p;

	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		struct ref_expert e = ref_expert_new(shapes[s].h_in, shapes[s].h_out,
						     shapes[s].neurons, s + 1);
		uint32_t blocks = ndp_expert_blocks(&e.shape);

		for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
			struct ndp_weights *w;

			assert_int_equal(ndp_placement_policy(&p, policies[i], (uint32_t)s, blocks,
							      15, NULL),
					 0);
			w = ref_place_expert(dev, &e, &p);
			check_ffn(dev, &e, w, 1, 0, 0, 0, 0);
			check_ffn(dev, &e, w, 5, 0, 0, 0, 0);
			check_ffn(dev, &e, w, 3, 11, 0, 0, 0);
			check_ffn(dev, &e, w, 2, 0, 0, 0, NDP_ACT_CLAMPED_SWIGLU);
			if (blocks > 3)
				check_ffn(dev, &e, w, 2, 0, 1, blocks - 2, 0);
			ndp_weights_free(w);
		}
		ref_expert_free(&e);
	}
}

static void several_ranges_on_one_dimm_add_up(void **state)
{
	struct ndp_placement p = { .nr_ranges = 5, .ranges = {
		{ 1, 3 }, { 0, 2 }, { 1, 1 }, { 3, 4 }, { 0, 1 } } };
	struct ref_expert e = ref_expert_new(128, 64, 11 * 32, 5);
	struct ndp_weights *w = ref_place_expert(*state, &e, &p);

	check_ffn(*state, &e, w, 4, 0, 0, 0, 0);
	check_ffn(*state, &e, w, 4, 0, 2, 5, 0);
	ndp_weights_free(w);
	ref_expert_free(&e);
}

/* Case C5: layers whose width is no multiple of a tile. */
static void padding_never_reaches_the_result(void **state)
{
	enum { H = 100, I = 36 };
	struct ndp_device *dev = *state;
	ndp_bf16 *in = ref_nan_bf16(I * 128), *down = ref_nan_bf16(H * 64), x[H];
	struct ndp_expert_shape s = { H, H, I };
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_io *xo = ref_io(dev, 0, 256), *yo = ref_io(dev, 0, 448);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = xo, .y = yo, .x_mask = 15, .tokens = 1,
			     .ldx = 256, .ldy = 448 };
	/* g = u = 100/128, h = silu(g) * u in BF16, y = 36 h */
	double g = 100.0 / 128;
	float h = ndp_bf16_to_f32(ndp_bf16_from_f32((float)(ref_silu(g) * g)));
	struct ndp_result res;
	float y[H];

	for (int i = 0; i < I; i++)
		for (int k = 0; k < H; k++)
			in[i * 128 + k] = ndp_bf16_from_f32(1.0f / 128);
	for (int j = 0; j < H; j++) {
		x[j] = ndp_bf16_from_f32(1);
		for (int i = 0; i < I; i++)
			down[j * 64 + i] = ndp_bf16_from_f32(1);
	}
	for (uint32_t d = 1; d <= 2; d++) {
		assert_int_equal(ndp_placement_spread(&p, 2, d == 1 ? 1 : 6), 0);
		assert_int_equal(ndp_expert_create(&w, dev, &s, &p, 0, 0, NULL), 0);
		assert_int_equal(ndp_expert_load(w, in, in, 128, down, 64), 0);
		assert_int_equal(ndp_weights_seal(w), 0);
		ref_poison(xo, 15, 256);
		ref_poison(yo, 15, 448);
		assert_int_equal(ndp_io_write(xo, 15, 0, x, sizeof(x)), 0);
		c.weights = w;
		assert_int_equal(ndp_run(dev, &c, &res), 0);
		assert_int_equal(ndp_io_reduce(yo, res.dimm_mask, 0, 448, y, H, 1, H), 0);
		for (int j = 0; j < H; j++) {
			assert_true(fabs(y[j] - 36.0 * h) < 1e-4);
			/* C5 states FP32: BF16 may be off by 2^-9 of it */
			assert_true(fabs(y[j] - 15.07213) < 15.07213 / 512);
		}
		ndp_weights_free(w);
	}
	free(in);
	free(down);
	ndp_io_free(xo);
	ndp_io_free(yo);
}

static void accumulate_adds(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(64, 64, 128, 9);
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_io *x = ref_io(dev, 0, 128), *y = ref_io(dev, 0, 256);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 15, .tokens = 1,
			     .ldx = 128, .ldy = 256 };
	uint64_t seed = 3;
	ndp_bf16 *row = ref_random_rows(1, 64, 64, 1, &seed);
	struct ndp_result res;
	float once[64], twice[64];

	assert_int_equal(ndp_placement_spread(&p, 4, 15), 0);
	w = ref_place_expert(dev, &e, &p);
	c.weights = w;
	assert_int_equal(ndp_io_write(x, 15, 0, row, 128), 0);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, 256, once, 64, 1, 64), 0);
	c.accumulate = true;
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, 256, twice, 64, 1, 64), 0);
	for (int j = 0; j < 64; j++)
		assert_true(fabsf(twice[j] - 2 * once[j]) <= 1e-5f * (1 + fabsf(once[j])));
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	free(row);
	ref_expert_free(&e);
}

static void gemv_is_right_in_every_placement(void **state)
{
	static const char *const policies[] = { "local", "striped", "spread:3" };
	struct ndp_device *dev = *state;
	struct ref_matrix m = ref_matrix_new(203, 130, 3); /* 7 panels, the last one of 11 rows */
	enum { TOKENS = 3 };
	size_t ldx = ref_stride(2 * 130), ldy = ref_stride(4 * 203);
	struct ndp_io *x = ref_io(dev, 0, TOKENS * ldx), *y = ref_io(dev, 0, TOKENS * ldy);
	uint64_t seed = 8;
	ndp_bf16 *rows = ref_random_rows(TOKENS, 130, ldx / 2, 1, &seed);
	static const struct { uint32_t first, count; } parts[] = { { 0, 0 }, { 2, 3 }, { 6, 1 } };
	float got[TOKENS * 203];

	assert_int_equal(ndp_io_write(x, 15, 0, rows, TOKENS * ldx), 0);
	for (size_t i = 0; i < 3; i++) {
		struct ndp_placement p;
		struct ndp_weights *w;

		assert_int_equal(ndp_placement_policy(&p, policies[i], 1, 7, 15, NULL), 0);
		assert_int_equal(ndp_matrix_create(&w, dev, &m.shape, &p, 0, 0, NULL), 0);
		assert_int_equal(ndp_matrix_load(w, m.m, m.ld), 0);
		assert_int_equal(ndp_weights_seal(w), 0);
		for (size_t k = 0; k < 3; k++) {
			uint32_t first = parts[k].first,
				 count = parts[k].count ? parts[k].count : 7;
			uint32_t cols = first + count == 7 ? 203 - first * 32 : count * 32;
			struct ndp_cmd c = {
				.op = NDP_OP_GEMV_MATRIX,
				.weights = w,
				.x = x,
				.y = y,
				.x_mask = 15,
				.first = first,
				.count = parts[k].count,
				.tokens = TOKENS,
				.ldx = ldx,
				.ldy = ldy,
			};
			struct ndp_result res;

			ref_poison(y, 15, TOKENS * ldy);
			assert_int_equal(ndp_run(dev, &c, &res), 0);
			assert_int_equal(
				ndp_io_reduce(y, res.dimm_mask, 0, ldy, got, 203, TOKENS, cols), 0);
			for (uint32_t t = 0; t < TOKENS; t++)
				for (uint32_t j = 0; j < cols; j++)
					assert_true(fabs(got[t * 203 + j] -
							 ref_dot(&m.m[(first * 32 + j) * m.ld],
								 &rows[t * ldx / 2], 130)) < 1e-3);
		}
		ndp_weights_free(w);
	}
	free(rows);
	free(m.m);
	ndp_io_free(x);
	ndp_io_free(y);
}

static void act_mul_runs_on_every_dimm_of_the_mask(void **state)
{
	struct ndp_device *dev = *state;
	enum { COLS = 77, TOKENS = 4, LDX = 320, LDY = 192 };
	struct ndp_io *x = ref_io(dev, 0, 2 * TOKENS * LDX), *y = ref_io(dev, 0, TOKENS * LDY);
	struct ndp_cmd c = { .op = NDP_OP_ACT_MUL, .x = x, .y = y, .x_mask = 10, .count = COLS,
			     .tokens = TOKENS, .ldx = LDX, .ldy = LDY, .rows_off = TOKENS * LDX };
	float in[2 * TOKENS * LDX / 4];
	uint64_t seed = 77;
	struct ndp_result res;

	for (size_t i = 0; i < sizeof(in) / 4; i++)
		in[i] = 3 * ref_uniform(&seed);
	ref_poison(x, 15, 2 * TOKENS * LDX);
	assert_int_equal(ndp_io_write(x, 10, 0, in, sizeof(in)), 0);
	for (int act = 0; act < 2; act++) {
		c.act = act;
		c.alpha = act ? 1.702f : 0;
		c.limit = act ? 1.5f : 0;
		ref_poison(y, 15, TOKENS * LDY);
		assert_int_equal(ndp_run(dev, &c, &res), 0);
		assert_int_equal(res.dimm_mask, 10);
		for (uint32_t d = 0; d < 4; d++) {
			const ndp_bf16 *p = ndp_io_ptr(y, d);

			for (int t = 0; t < TOKENS; t++)
				for (int j = 0; j < LDY / 2; j++) {
					ndp_bf16 got = p[t * LDY / 2 + j];
					double g, u, want;

					if (!(10 & 1 << d) || j >= COLS) {
						assert_int_equal(got, 0xffff);
						continue;
					}
					g = in[t * LDX / 4 + j];
					u = in[(TOKENS + t) * LDX / 4 + j];
					want = ref_act(act, c.alpha, c.limit, g, u);
					assert_true(fabs(ndp_bf16_to_f32(got) - want) <=
						    fabs(want) / 256 + 1e-6);
				}
		}
	}
	ndp_io_free(x);
	ndp_io_free(y);
}

static uint64_t commands_of_all(struct ndp_device *dev)
{
	struct ndp_dimm_info info;
	uint64_t sum = 0;

	for (uint32_t d = 0; d < 4; d++) {
		assert_int_equal(ndp_dimm_info(dev, d, &info), 0);
		sum += info.compute.commands;
	}
	return sum;
}

/* Case C4: succeeds, writes nothing, submits nothing. */
static void no_tokens_is_no_work(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(64, 64, 64, 2);
	struct ref_matrix m = ref_matrix_new(64, 64, 2);
	struct ndp_io *x = ref_io(dev, 0, 128), *y = ref_io(dev, 0, 4096);
	struct ndp_placement p;
	struct ndp_weights *w, *mat;
	struct ndp_queue *q;
	struct ndp_result res[3];
	uint64_t before = commands_of_all(dev);
	struct ndp_cmd c[3];

	assert_int_equal(ndp_placement_spread(&p, 2, 15), 0);
	w = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_matrix_create(&mat, dev, &m.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_matrix_load(mat, m.m, m.ld), 0);
	assert_int_equal(ndp_weights_seal(mat), 0);
	c[0] = (struct ndp_cmd){
		.op = NDP_OP_FFN_EXPERT, .weights = w, .x = x, .y = y, .x_mask = 15
	};
	c[1] = (struct ndp_cmd){
		.op = NDP_OP_GEMV_MATRIX, .weights = mat, .x = x, .y = y, .x_mask = 15
	};
	c[2] = (struct ndp_cmd){ .op = NDP_OP_ACT_MUL, .x = x, .y = y, .x_mask = 15, .count = 64 };
	ref_poison(x, 15, 128);
	ref_poison(y, 15, 4096);
	assert_int_equal(ndp_queue_create(&q, dev, 3, NULL), 0);
	for (int i = 0; i < 3; i++) {
		memset(res, 0xff, sizeof(res));
		assert_int_equal(ndp_run(dev, &c[i], res), 0);
		assert_int_equal(res[0].res, 0);
		assert_int_equal(res[0].dimm_mask, 0);
		assert_int_equal(res[0].modelled_ns, 0);
		c[i].tag = 10 + i;
		assert_int_equal(ndp_queue_push(q, &c[i]), 0);
	}
	assert_int_equal(ndp_queue_submit(q), 0);
	assert_int_equal(ndp_queue_inflight(q), 3);
	assert_int_equal(ndp_queue_wait(q, res, 3, 3), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(res[i].res, 0);
		assert_int_equal(res[i].tag, 10 + i);
	}
	assert_int_equal(ndp_queue_inflight(q), 0);
	assert_int_equal(commands_of_all(dev), before);
	for (uint32_t d = 0; d < 4; d++) {
		const uint8_t *b = ndp_io_ptr(y, d);

		for (int i = 0; i < 4096; i++)
			assert_int_equal(b[i], 0xff);
	}
	ndp_queue_free(q);
	ndp_weights_free(w);
	ndp_weights_free(mat);
	free(m.m);
	ref_expert_free(&e);
	ndp_io_free(x);
	ndp_io_free(y);
}

static void a_bad_row_is_refused_by_the_dimm(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(64, 64, 32, 2);
	struct ndp_io *x = ref_io(dev, 0, 4096), *y = ref_io(dev, 0, 256);
	uint32_t list[1] = { 5 };
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;
	struct ndp_dimm_info info;

	ndp_placement_local(&p, 1, 2);
	w = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_io_write(x, 15, 1024, list, 4), 0);
	assert_int_equal(ndp_run(dev,
				 &(struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT,
						    .weights = w,
						    .x = x,
						    .y = y,
						    .x_mask = 4,
						    .tokens = 1,
						    .x_rows = 5,
						    .rows_off = 1024,
						    .ldx = 128,
						    .ldy = 256 },
				 &res),
			 -EIO);
	assert_int_equal(res.res, -EIO);
	assert_int_equal(res.dimm_mask, 0);
	assert_int_equal(ndp_dimm_info(dev, 2, &info), 0);
	assert_true(info.compute.errors >= 1);
	ndp_weights_free(w);
	ref_expert_free(&e);
	ndp_io_free(x);
	ndp_io_free(y);
}

/* Modelled time is a function of the command: here, the written one. */
static void modelled_time_and_counters_follow_the_model(void **state)
{
	struct ndp_device *dev =
		ref_open("soft:dimms=2,size=16M,internal-mbps=1000,gflops=4000000,overhead-ns=500");
	struct ref_expert e = ref_expert_new(64, 64, 96, 2);
	uint64_t block = ndp_expert_block_bytes(&e.shape);
	struct ndp_io *x = ref_io(dev, 0, 128), *y = ref_io(dev, 0, 256);
	struct ndp_dimm_info d0, d1;
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;

	UNUSED_STATE;
	assert_int_equal(ndp_placement_spread(&p, 3, 3), 0); /* 2 blocks on DIMM 0, 1 on DIMM 1 */
	w = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_run(dev,
				 &(struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT,
						    .weights = w,
						    .x = x,
						    .y = y,
						    .x_mask = 3,
						    .tokens = 1,
						    .ldx = 128,
						    .ldy = 256 },
				 &res),
			 0);
	assert_int_equal(res.modelled_ns, 500 + 2 * block + 128 + 256);
	assert_int_equal(ndp_dimm_info(dev, 0, &d0), 0);
	assert_int_equal(ndp_dimm_info(dev, 1, &d1), 0);
	assert_int_equal(d0.compute.busy_ns, 500 + 2 * block + 128 + 256);
	assert_int_equal(d1.compute.busy_ns, 500 + block + 128 + 256);
	assert_int_equal(d1.compute.bytes, block + 128 + 256);
	assert_int_equal(d0.compute.tokens, 1);
	assert_int_equal(d0.compute.commands, 1);
	assert_int_equal(d0.compute.errors, 0);
	assert_true(d0.compute.wall_ns > 0);
	ndp_weights_free(w);
	ref_expert_free(&e);
	ndp_io_free(x);
	ndp_io_free(y);
	ndp_close(dev);
}

/* 20 commands of 2 ms each on one DIMM take 40 ms, on two DIMMs at once 20 ms. */
static void timing_on_completes_no_earlier_than_the_model(void **state)
{
	struct ndp_device *dev = ref_open("soft:dimms=2,size=16M,timing=on,overhead-ns=2000000");
	struct ref_expert e = ref_expert_new(64, 64, 32, 2);
	struct ndp_io *x = ref_io(dev, 0, 128), *y = ref_io(dev, 0, 64 * 256);
	struct ndp_weights *w[2];
	struct ndp_placement p;
	struct ndp_queue *q;
	struct ndp_result res[20];
	struct timespec a, b;
	double ms;

	UNUSED_STATE;
	assert_int_equal(ndp_queue_create(&q, dev, 20, NULL), 0);
	for (uint32_t d = 0; d < 2; d++) {
		ndp_placement_local(&p, 1, d);
		w[d] = ref_place_expert(dev, &e, &p);
	}
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (size_t i = 0; i < 20; i++)
		assert_int_equal(ndp_queue_push(q, &(struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT,
								      .weights = w[0],
								      .x = x,
								      .y = y,
								      .x_mask = 3,
								      .tokens = 1,
								      .ldx = 128,
								      .ldy = 256,
								      .y_off = 256 * i }),
				 0);
	assert_int_equal(ndp_queue_wait(q, res, 20, 20), 20);
	clock_gettime(CLOCK_MONOTONIC, &b);
	ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
	assert_true(ms >= 40);
	for (size_t i = 0; i < 20; i++)
		assert_int_equal(ndp_queue_push(q, &(struct ndp_cmd){
			.op = NDP_OP_FFN_EXPERT, .weights = w[i % 2], .x = x, .y = y, .x_mask = 3,
			.tokens = 1, .ldx = 128, .ldy = 256, .y_off = 256 * i }), 0);
	clock_gettime(CLOCK_MONOTONIC, &a);
	assert_int_equal(ndp_queue_wait(q, res, 20, 20), 20);
	clock_gettime(CLOCK_MONOTONIC, &b);
	ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
	assert_true(ms >= 20);
	ndp_queue_free(q);
	ndp_weights_free(w[0]);
	ndp_weights_free(w[1]);
	ref_expert_free(&e);
	ndp_io_free(x);
	ndp_io_free(y);
	ndp_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REF_TEST(ffn_is_right_in_every_placement),
		REF_TEST(several_ranges_on_one_dimm_add_up),
		REF_TEST(padding_never_reaches_the_result),
		REF_TEST(accumulate_adds),
		REF_TEST(gemv_is_right_in_every_placement),
		REF_TEST(act_mul_runs_on_every_dimm_of_the_mask),
		REF_TEST(no_tokens_is_no_work),
		REF_TEST(a_bad_row_is_refused_by_the_dimm),
		cmocka_unit_test(modelled_time_and_counters_follow_the_model),
		cmocka_unit_test(timing_on_completes_no_earlier_than_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
