// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_gpu.c - experts on an OpenCL device compute what they should: shapes, numbers of
 * tokens, lists of rows, ranges of blocks, many experts at once, resident or not.
 */
#include "gpu_ref.h"

static struct ndp_gpu *gpu;

static int open_gpu(void **state)
{
	UNUSED_STATE;
	gpu = gpu_ref_open(64 << 20, UINT64_MAX, false);
	return 0;
}

static int open_lanes(void **state)
{
	UNUSED_STATE;
	gpu = gpu_ref_open(64 << 20, UINT64_MAX, true);
	return 0;
}

static int close_gpu(void **state)
{
	struct ndp_gpu_info info;

	UNUSED_STATE;
	if (!gpu)
		return 0;
	ndp_gpu_info(gpu, &info);
	assert_int_equal(info.used_bytes, 0);
	assert_false(info.lost);
	ndp_gpu_close(gpu);
	return 0;
}

#define NEED_GPU() do { if (!gpu) skip(); } while (0)

/* One job, resident or a miss, with poison wherever nothing is to be read or written. */
static void one(uint32_t h_in, uint32_t h_out, uint32_t neurons, uint32_t tokens, int act,
		bool resident)
{
	struct ref_expert e = ref_expert_new(h_in, h_out, neurons, h_in + tokens);
	void *blocks = gpu_ref_pack(&e);
	size_t ldx = h_in + 5, ldy = h_out + 3;
	ndp_bf16 *x = gpu_ref_x(tokens, h_in, ldx, tokens);
	float *y = gpu_ref_y(tokens * ldy);
	struct ndp_gpu_queue *q = gpu_ref_queue(gpu, tokens, tokens, h_in > h_out ? h_in : h_out);
	struct ndp_gpu_job job = {
		.shape = e.shape, .act = act, .alpha = 1.702f, .limit = 0.75f,
		.tokens = tokens, .y = y, .ldy = ldy,
	};

	if (resident) {
		job.weights = gpu_ref_upload(gpu, &e.shape, blocks);
		assert_int_equal(ndp_gpu_upload_wait(job.weights), 0);
		assert_int_equal(ndp_gpu_uploaded(job.weights), 1);
	} else {
		job.blocks = blocks;
	}
	gpu_ref_run(q, x, ldx, tokens, &job, 1);
	gpu_ref_check(&e, &job, x, ldx);
	ndp_gpu_weights_free(job.weights);
	ndp_gpu_queue_free(q);
	free(y);
	free(x);
	free(blocks);
	ref_expert_free(&e);
}

static void shapes(void **state)
{
	static const uint32_t s[][3] = {
		{ 100, 100, 36 }, { 1, 1, 1 }, { 64, 64, 32 }, { 65, 31, 33 }, { 128, 257, 96 },
		{ 577, 576, 200 }, { 1024, 96, 64 }, { 2048, 2048, 64 },
	};

	UNUSED_STATE;
	NEED_GPU();
	for (size_t i = 0; i < sizeof(s) / sizeof(*s); i++)
		for (int act = 0; act < 2; act++) {
			one(s[i][0], s[i][1], s[i][2], 3, act, true);
			one(s[i][0], s[i][1], s[i][2], 33, act, false);
		}
}

static void token_counts(void **state)
{
	UNUSED_STATE;
	NEED_GPU();
	for (uint32_t t = 1; t <= 70; t++)
		one(100, 72, 36, t, t & 1, t % 3 != 0);
}

/* The case C5: known results, to within the bound. */
static void odd_shape_by_hand(void **state)
{
	enum { H = 100, I = 36 };
	struct ref_expert e = ref_expert_new(H, H, I, 1);
	struct ndp_gpu_queue *q;
	ndp_bf16 x[H + 28];
	float y[H];
	void *blocks;
	struct ndp_gpu_job job = { .shape = e.shape, .tokens = 1, .y = y, .ldy = H };

	UNUSED_STATE;
	NEED_GPU();
	for (uint32_t i = 0; i < I; i++)
		for (uint32_t k = 0; k < H; k++) {
			e.gate[i * e.ld_in + k] = e.up[i * e.ld_in + k] = ndp_bf16_from_f32(1 / 128.f);
			e.down[k * e.ld_down + i] = ndp_bf16_from_f32(1);
		}
	for (uint32_t k = 0; k < H + 28; k++)
		x[k] = k < H ? ndp_bf16_from_f32(1) : 0x7fc0;
	blocks = gpu_ref_pack(&e);
	job.blocks = blocks;
	q = gpu_ref_queue(gpu, 1, 1, H);
	gpu_ref_run(q, x, H + 28, 1, &job, 1);
	gpu_ref_check(&e, &job, x, H + 28);
	for (uint32_t j = 0; j < H; j++)
		assert_true(fabs(y[j] - 15.07213) < 15.07213 / 256);
	ndp_gpu_queue_free(q);
	free(blocks);
	ref_expert_free(&e);
}

static void lists_of_rows(void **state)
{
	enum { ROWS = 50, TOKENS = 41, H = 130 };
	struct ref_expert e = ref_expert_new(H, 70, 100, 9);
	ndp_bf16 *x = gpu_ref_x(ROWS, H, H, 4);
	void *blocks = gpu_ref_pack(&e);
	float *y = gpu_ref_y(TOKENS * 70);
	uint32_t rows[TOKENS];
	struct ndp_gpu_queue *q;
	struct ndp_gpu_job job = {
		.shape = e.shape, .blocks = blocks, .rows = rows, .tokens = TOKENS, .y = y, .ldy = 70,
	};

	UNUSED_STATE;
	NEED_GPU();
	for (uint32_t t = 0; t < TOKENS; t++)
		rows[t] = t * 37 % ROWS / 2 * 2; /* unsorted, some twice */
	q = gpu_ref_queue(gpu, ROWS, TOKENS, H);
	gpu_ref_run(q, x, H, ROWS, &job, 1);
	gpu_ref_check(&e, &job, x, H);
	ndp_gpu_queue_free(q);
	free(y);
	free(blocks);
	free(x);
	ref_expert_free(&e);
}

static void ranges_of_blocks(void **state)
{
	enum { H = 96, I = 300, TOKENS = 6, BLOCKS = 10 };
	struct ref_expert e = ref_expert_new(H, H, I, 3);
	ndp_bf16 *x = gpu_ref_x(TOKENS, H, H, 8);
	void *blocks = gpu_ref_pack(&e);
	struct ndp_gpu_weights *w;
	struct ndp_gpu_queue *q;
	struct ndp_gpu_job jobs[BLOCKS + 1];
	uint32_t n = 0;

	UNUSED_STATE;
	NEED_GPU();
	w = gpu_ref_upload(gpu, &e.shape, blocks);
	assert_int_equal(ndp_gpu_upload_wait(w), 0);
	q = gpu_ref_queue(gpu, TOKENS, 100, H);
	/* Ranges of different lengths, in turn resident and not, in one call. */
	for (uint32_t first = 0; first < BLOCKS; first += 1 + n % 3) {
		uint32_t left = BLOCKS - first, len = 1 + (n + 1) % 3;

		jobs[n] = (struct ndp_gpu_job){
			.shape = e.shape, .first = first, .nr_blocks = len < left ? len : left,
			.weights = n & 1 ? NULL : w, .blocks = n & 1 ? blocks : NULL,
			.tokens = TOKENS, .y = gpu_ref_y(TOKENS * H), .ldy = H,
		};
		n++;
	}
	gpu_ref_run(q, x, H, TOKENS, jobs, n);
	for (uint32_t i = 0; i < n; i++) {
		gpu_ref_check(&e, &jobs[i], x, H);
		free(jobs[i].y);
	}
	ndp_gpu_queue_free(q);
	ndp_gpu_weights_free(w);
	free(blocks);
	free(x);
	ref_expert_free(&e);
}

/* Experts of different shapes and numbers of tokens, some with none, in one call. */
static void many_experts(void **state)
{
	enum { N = 48, ROWS = 80, MAX = 160 };
	struct ref_expert e[N];
	void *blocks[N];
	uint32_t *rows[N];
	struct ndp_gpu_job jobs[N];
	ndp_bf16 *x = gpu_ref_x(ROWS, MAX, MAX, 21);
	struct ndp_gpu_queue *q;
	uint64_t seed = 5;
	float *first[N];

	UNUSED_STATE;
	NEED_GPU();
	for (uint32_t i = 0; i < N; i++) {
		static const uint32_t tokens[] = { 1, 0, 7, 40, 2, 1, 16, 3 };
		uint32_t in = 90 + i % 3 * 35, out = 64 + i % 2 * 40;

		e[i] = ref_expert_new(in, out, 32 + 20 * (i % 4), i);
		blocks[i] = gpu_ref_pack(&e[i]);
		rows[i] = malloc(40 * sizeof(*rows[i]));
		for (uint32_t t = 0; t < 40; t++)
			rows[i][t] = ref_next(&seed) % ROWS;
		first[i] = gpu_ref_y(40 * MAX);
		jobs[i] = (struct ndp_gpu_job){
			.shape = e[i].shape, .act = i % 5 == 0, .alpha = 1.702f, .limit = 7,
			.tokens = tokens[i % 8], .rows = rows[i], .y = first[i], .ldy = out + 1,
		};
		if (i % 3)
			jobs[i].weights = gpu_ref_upload(gpu, &e[i].shape, blocks[i]);
		else
			jobs[i].blocks = blocks[i];
	}
	for (uint32_t i = 0; i < N; i++)
		assert_true(!jobs[i].weights || !ndp_gpu_upload_wait(jobs[i].weights));
	q = gpu_ref_queue(gpu, ROWS, N * 40, MAX);
	gpu_ref_run(q, x, MAX, ROWS, jobs, N);
	for (uint32_t i = 0; i < N; i++) {
		gpu_ref_check(&e[i], &jobs[i], x, MAX);
		assert_true(jobs[i].tokens || isnan(jobs[i].y[0]));
		jobs[i].y = gpu_ref_y(40 * MAX);
	}
	/* The same call gives the same bits, also in y that has been used before. */
	gpu_ref_run(q, x, MAX, ROWS, jobs, N);
	for (uint32_t i = 0; i < N; i++)
		assert_memory_equal(first[i], jobs[i].y, 40 * MAX * sizeof(float));
	for (uint32_t i = 0; i < N; i++) {
		ndp_gpu_weights_free(jobs[i].weights);
		free(jobs[i].y);
		free(first[i]);
		free(rows[i]);
		free(blocks[i]);
		ref_expert_free(&e[i]);
	}
	ndp_gpu_queue_free(q);
	free(x);
}

/* 72 MiB of misses through the two halves of 16 MiB: parts of experts are added up. */
static void misses_in_waves(void **state)
{
	enum { N = 3, H = 1024, I = 4096, TOKENS = 2 };
	struct ref_expert e[N];
	struct ndp_gpu_job jobs[N];
	void *blocks[N];
	ndp_bf16 *x = gpu_ref_x(TOKENS, H, H, 2);
	struct ndp_gpu_queue *q;
	uint64_t ns = 0;

	UNUSED_STATE;
	NEED_GPU();
	q = gpu_ref_queue(gpu, TOKENS, N * TOKENS, H);
	for (uint32_t i = 0; i < N; i++) {
		e[i] = ref_expert_new(H, H, I, i);
		blocks[i] = gpu_ref_pack(&e[i]);
		jobs[i] = (struct ndp_gpu_job){
			.shape = e[i].shape, .blocks = blocks[i], .tokens = TOKENS,
			.y = gpu_ref_y(TOKENS * H), .ldy = H,
		};
	}
	assert_int_equal(ndp_gpu_submit(q, x, H, TOKENS, jobs, N, NULL), 0);
	while (!ndp_gpu_poll(q))
		usleep(1000);
	assert_int_equal(ndp_gpu_poll(q), 1);
	assert_int_equal(ndp_gpu_wait(q, &ns), 0);
	assert_true(ns > 0);
	for (uint32_t i = 0; i < N; i++) {
		gpu_ref_check(&e[i], &jobs[i], x, H);
		free(jobs[i].y);
		free(blocks[i]);
		ref_expert_free(&e[i]);
	}
	ndp_gpu_queue_free(q);
	free(x);
}

/* The case C4 on this domain. */
static void no_tokens(void **state)
{
	struct ndp_gpu_job job = { .tokens = 0 };
	struct ndp_gpu_queue *q;
	uint64_t ns = 1;

	UNUSED_STATE;
	NEED_GPU();
	q = gpu_ref_queue(gpu, 1, 1, 64);
	assert_int_equal(ndp_gpu_submit(q, NULL, 0, 0, &job, 1, NULL), 0);
	assert_int_equal(ndp_gpu_poll(q), 1);
	assert_int_equal(ndp_gpu_wait(q, &ns), 0);
	assert_int_equal(ns, 0);
	assert_int_equal(ndp_gpu_submit(q, NULL, 0, 0, NULL, 0, NULL), 0);
	assert_int_equal(ndp_gpu_submit(q, NULL, 0, 0, NULL, 0, NULL), -EBUSY);
	assert_int_equal(ndp_gpu_wait(q, NULL), 0);
	assert_int_equal(ndp_gpu_wait(q, NULL), 0);
	ndp_gpu_queue_free(q);
}

/* NaN and infinity in one token stay in that token. */
static void special_values(void **state)
{
	enum { H = 64, TOKENS = 3 };
	struct ref_expert e = ref_expert_new(H, H, 64, 11);
	ndp_bf16 *x = gpu_ref_x(TOKENS, H, H, 3);
	void *blocks = gpu_ref_pack(&e);
	float *y = gpu_ref_y(TOKENS * H);
	struct ndp_gpu_queue *q;
	struct ndp_gpu_job job = {
		.shape = e.shape, .blocks = blocks, .tokens = TOKENS, .y = y, .ldy = H,
	};

	UNUSED_STATE;
	NEED_GPU();
	x[H + 5] = 0x7fc0;
	q = gpu_ref_queue(gpu, TOKENS, TOKENS, H);
	gpu_ref_run(q, x, H, TOKENS, &job, 1);
	for (uint32_t j = 0; j < H; j++)
		assert_true(isnan(y[H + j]));
	job.tokens = 1;
	gpu_ref_check(&e, &job, x, H);
	job.y = y + 2 * H;
	gpu_ref_check(&e, &job, x + 2 * H, H);
	ndp_gpu_queue_free(q);
	free(y);
	free(blocks);
	free(x);
	ref_expert_free(&e);
}

/* Each test with the kernels for this device, and, when that is a CPU, with those for GPUs. */
#define BOTH(test) \
	{ #test, test, open_gpu, close_gpu, NULL }, \
	{ #test " (lanes)", test, open_lanes, close_gpu, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(shapes),
		BOTH(token_counts),
		BOTH(odd_shape_by_hand),
		BOTH(lists_of_rows),
		BOTH(ranges_of_blocks),
		BOTH(many_experts),
		BOTH(misses_in_waves),
		BOTH(no_tokens),
		BOTH(special_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
