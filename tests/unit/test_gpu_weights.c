// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_gpu_weights.c - experts in GPU memory: the budget and what it says, extents,
 * uploads, weights that are freed at any time, and a device that is lost at any call.
 */
#include "gpu_ref.h"

#define MIB (1ull << 20)

#define OPEN_GPU(gpu, budget) \
	struct ndp_gpu *gpu = gpu_ref_open(budget, UINT64_MAX, false); \
	if (!gpu) \
		skip()

static uint64_t used(struct ndp_gpu *gpu)
{
	struct ndp_gpu_info info;

	ndp_gpu_info(gpu, &info);
	return info.used_bytes;
}

/* ---- opening -------------------------------------------------------------------- */

static void specs(void **state)
{
	struct ndp_gpu *gpu = NULL;
	struct ndp_gpu_info info;
	struct ndp_error err = { 0 };
	char spec[40];

	UNUSED_STATE;
	assert_int_equal(ndp_gpu_open(&gpu, "cuda", 0, &err), -EINVAL);
	assert_non_null(strstr(err.message, "\"cuda\""));
	assert_int_equal(ndp_gpu_open(&gpu, "openclx", 0, &err), -EINVAL);
	assert_int_equal(ndp_gpu_open(&gpu, NULL, 0, &err), -EINVAL);
	assert_int_equal(ndp_gpu_open(&gpu, "opencl:no such thing", 0, &err), -ENODEV);
	assert_non_null(strstr(err.message, "no such thing"));
	assert_int_equal(ndp_gpu_open(&gpu, "opencl:77.0", 0, &err), -ENODEV);
	assert_int_equal(ndp_gpu_open(&gpu, "opencl:", 0, &err), -ENODEV);
	gpu = gpu_ref_open(0, UINT64_MAX, false);
	if (!gpu)
		skip();
	ndp_gpu_info(gpu, &info);
	ndp_gpu_close(gpu);
	snprintf(spec, sizeof(spec), "opencl:%.20s", info.name);
	for (char *c = spec + 7; *c; c++)
		*c = *c >= 'A' && *c <= 'Z' ? *c + 32 : *c;
	assert_int_equal(ndp_gpu_open(&gpu, spec, 0, &err), 0);
	ndp_gpu_close(gpu);
	assert_int_equal(ndp_gpu_open(&gpu, "opencl:0.0", 0, &err), 0);
	ndp_gpu_close(gpu);
	assert_int_equal(ndp_gpu_open(&gpu, "opencl", info.memory_bytes + 1, &err), -ENOSPC);
	assert_non_null(strstr(err.message, info.name));
	ndp_gpu_close(NULL);
}

/* The case C7: 18 MiB experts, 16 wanted, 200 MiB. */
static void budget_says_its_arithmetic(void **state)
{
	struct ndp_expert_shape shape = { .h_in = 2048, .h_out = 2048, .neurons = 1536 };
	struct ndp_gpu_weights *w[12];
	struct ndp_gpu_info info;
	struct ndp_error err = { 0 };
	void *blocks = calloc(18, MIB);

	UNUSED_STATE;
	OPEN_GPU(gpu, 200 * MIB);
	assert_int_equal(ndp_expert_block_bytes(&shape) * ndp_expert_blocks(&shape), 18 * MIB);
	assert_int_equal(ndp_gpu_check_room(gpu, &shape, 16, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "needs 288.0 MiB, has 200.0 MiB"));
	assert_non_null(strstr(err.message, "at most 11 fit"));
	assert_int_equal(ndp_gpu_check_room(gpu, &shape, 11, &err), 0);
	for (int i = 0; i < 11; i++)
		w[i] = gpu_ref_upload(gpu, &shape, blocks);
	assert_int_equal(used(gpu), 198 * MIB);
	for (int i = 0; i < 11; i++)
		assert_int_equal(ndp_gpu_upload_wait(w[i]), 0);
	ndp_gpu_info(gpu, &info);
	assert_int_equal(info.uploads, 11);
	assert_int_equal(info.upload_bytes, 198 * MIB);
	assert_int_equal(ndp_gpu_upload(&w[11], gpu, &shape, blocks, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "needs 18.0 MiB, has 2.0 MiB"));
	assert_non_null(strstr(err.message, "at most 0 fit"));
	ndp_gpu_weights_free(w[4]);
	w[4] = gpu_ref_upload(gpu, &shape, blocks);
	for (int i = 0; i < 11; i++)
		ndp_gpu_weights_free(w[i]);
	assert_int_equal(used(gpu), 0);
	ndp_gpu_close(gpu);
	free(blocks);
}

/* No resident experts is legal, and the GPU computes all the same. */
static void no_budget(void **state)
{
	struct ref_expert e = ref_expert_new(64, 64, 64, 1);
	void *blocks = gpu_ref_pack(&e);
	ndp_bf16 *x = gpu_ref_x(1, 64, 64, 1);
	struct ndp_gpu_weights *w;
	struct ndp_error err = { 0 };
	float y[64];
	struct ndp_gpu_job job = { .shape = e.shape, .blocks = blocks, .tokens = 1, .y = y, .ldy = 64 };
	struct ndp_gpu_queue *q;

	UNUSED_STATE;
	OPEN_GPU(gpu, 0);
	assert_int_equal(ndp_gpu_upload(&w, gpu, &e.shape, blocks, &err), -ENOSPC);
	assert_int_equal(ndp_gpu_check_room(gpu, &e.shape, 0, &err), 0);
	q = gpu_ref_queue(gpu, 1, 1, 64);
	gpu_ref_run(q, x, 64, 1, &job, 1);
	gpu_ref_check(&e, &job, x, 64);
	ndp_gpu_queue_free(q);
	ndp_gpu_close(gpu);
	free(x);
	free(blocks);
	ref_expert_free(&e);
}

/* ---- extents -------------------------------------------------------------------- */

/* Random owners of random sizes: never the same byte twice, and never room unused. */
static void arenas(void **state)
{
	enum { PAGES = 64, OWNERS = 40, UNIT = NDPI_GPU_PAGE };
	struct ndp_gpu gpu = { .nr_arenas = 3 };
	struct { struct ndpi_gpu_extent *e; uint32_t n; uint64_t block; } own[OWNERS] = { 0 };
	bool taken[3 * PAGES] = { false };
	uint64_t seed = 99;
	uint32_t in_pieces = 0;

	UNUSED_STATE;
	for (int a = 0; a < 3; a++)
		assert_int_equal(ndpi_gpu_arena_init(&gpu.arenas[a], PAGES * UNIT), 0);
	for (int step = 0; step < 20000; step++) {
		uint32_t o = ref_next(&seed) % OWNERS;
		uint32_t pages = 1 + ref_next(&seed) % 3, blocks = 1 + ref_next(&seed) % 12;
		uint32_t room = 0, run, got = 0;
		int r;

		if (own[o].e) {
			for (uint32_t i = 0; i < own[o].n; i++) {
				const struct ndpi_gpu_extent *e = &own[o].e[i];
				uint64_t at = e->arena * PAGES + e->offset * 4 / UNIT;

				for (uint64_t p = 0; p < (e->end - e->first) * own[o].block / UNIT; p++)
					taken[at + p] = false;
			}
			ndpi_gpu_arenas_give(&gpu, own[o].block, own[o].e, own[o].n);
			own[o].e = NULL;
			continue;
		}
		for (int a = 0; a < 3; a++)
			for (uint32_t p = run = 0; p < PAGES; p++) {
				run = taken[a * PAGES + p] ? 0 : run + 1;
				if (run == pages) {
					room++;
					run = 0;
				}
			}
		assert_int_equal(ndpi_gpu_arenas_room(&gpu, pages * UNIT), room);
		own[o].block = pages * UNIT;
		r = ndpi_gpu_arenas_take(&gpu, own[o].block, blocks, &own[o].e, &own[o].n);
		if (blocks > room) {
			assert_int_equal(r, -ENOSPC);
			own[o].e = NULL;
			continue;
		}
		assert_int_equal(r, 0);
		in_pieces += own[o].n > 1;
		for (uint32_t i = 0; i < own[o].n; i++) {
			const struct ndpi_gpu_extent *e = &own[o].e[i];
			uint64_t at = e->arena * PAGES + e->offset * 4 / UNIT;

			assert_int_equal(e->first, got);
			got = e->end;
			assert_true(e->offset * 4 + (e->end - e->first) * own[o].block <= PAGES * UNIT);
			for (uint64_t p = 0; p < (e->end - e->first) * pages; p++) {
				assert_false(taken[at + p]);
				taken[at + p] = true;
			}
		}
		assert_int_equal(got, blocks);
	}
	assert_true(in_pieces > 100);
	for (uint32_t o = 0; o < OWNERS; o++)
		if (own[o].e)
			ndpi_gpu_arenas_give(&gpu, own[o].block, own[o].e, own[o].n);
	for (int a = 0; a < 3; a++) {
		assert_int_equal(gpu.arenas[a].nr_holes, 1);
		assert_int_equal(gpu.arenas[a].holes[0].end - gpu.arenas[a].holes[0].begin,
				 PAGES * UNIT);
		free(gpu.arenas[a].holes);
	}
}

/* An expert in several pieces, in several allocations of the device, computes as any other. */
static void pieces_compute(void **state)
{
	enum { H = 64, N = 20, TOKENS = 5 };
	struct ndp_expert_shape small = { .h_in = H, .h_out = H, .neurons = 96 };
	struct ref_expert e = ref_expert_new(H, H, 32 * 29, 4);
	void *blocks = gpu_ref_pack(&e), *little = calloc(3, 192 * H);
	struct ndp_gpu_weights *w[N], *big;
	ndp_bf16 *x = gpu_ref_x(TOKENS, H, H, 1);
	struct ndp_gpu_job job[2] = {
		{ .shape = e.shape, .tokens = TOKENS, .y = gpu_ref_y(TOKENS * H), .ldy = H },
		{ .shape = e.shape, .tokens = TOKENS, .y = gpu_ref_y(TOKENS * H), .ldy = H,
		  .first = 4, .nr_blocks = 23 },
	};
	struct ndp_gpu_queue *q;
	/* Sixty blocks in all; no allocation above twenty. */
	struct ndp_gpu *gpu = gpu_ref_open(60 * 192 * H, 20 * 192 * H, true);

	UNUSED_STATE;
	if (!gpu)
		skip();
	assert_int_equal(gpu->nr_arenas, 3);
	for (int i = 0; i < N; i++)
		w[i] = i < 18 ? gpu_ref_upload(gpu, &small, little) : NULL;
	for (int i = 0; i < 18; i += 2) {
		assert_int_equal(ndp_gpu_upload_wait(w[i]), 0);
		ndp_gpu_weights_free(w[i]);
		w[i] = NULL;
	}
	big = gpu_ref_upload(gpu, &e.shape, blocks);
	assert_true(big->nr_extents > 5);
	assert_int_equal(ndp_gpu_upload_wait(big), 0);
	job[0].weights = job[1].weights = big;
	q = gpu_ref_queue(gpu, TOKENS, 2 * TOKENS, H);
	gpu_ref_run(q, x, H, TOKENS, job, 2);
	gpu_ref_check(&e, &job[0], x, H);
	gpu_ref_check(&e, &job[1], x, H);
	ndp_gpu_queue_free(q);
	ndp_gpu_weights_free(big);
	for (int i = 0; i < N; i++)
		ndp_gpu_weights_free(w[i]);
	ndp_gpu_close(gpu);
	free(job[0].y);
	free(job[1].y);
	free(x);
	free(blocks);
	free(little);
	ref_expert_free(&e);
}

/* ---- freeing ---------------------------------------------------------------------- */

/* The blocks are gone right after the weights: nobody may read them any more. */
static void free_on_the_way(void **state)
{
	struct ndp_expert_shape shape = { .h_in = 1024, .h_out = 1024, .neurons = 1024 };
	size_t bytes = ndp_expert_block_bytes(&shape) * ndp_expert_blocks(&shape);

	UNUSED_STATE;
	OPEN_GPU(gpu, 64 * MIB);
	for (int i = 0; i < 30; i++) {
		void *blocks[3];
		struct ndp_gpu_weights *w[3];

		for (int j = 0; j < 3; j++) {
			blocks[j] = calloc(1, bytes);
			w[j] = gpu_ref_upload(gpu, &shape, blocks[j]);
		}
		usleep(i * 100);
		for (int j = 0; j < 3; j++) {
			int k = (i + j) % 3; /* the first, a middle or the last one first */

			ndp_gpu_weights_free(w[k]);
			free(blocks[k]);
		}
		assert_int_equal(used(gpu), 0);
	}
	ndp_gpu_close(gpu);
}

static void free_in_use(void **state)
{
	enum { H = 512, TOKENS = 8 };
	struct ref_expert e = ref_expert_new(H, H, 1024, 4), other = ref_expert_new(H, H, 1024, 5);
	void *blocks = gpu_ref_pack(&e), *others = gpu_ref_pack(&other);
	ndp_bf16 *x = gpu_ref_x(TOKENS, H, H, 1);
	struct ndp_gpu_weights *w;
	struct ndp_gpu_job job = {
		.shape = e.shape, .tokens = TOKENS, .y = gpu_ref_y(TOKENS * H), .ldy = H,
	};
	struct ndp_error err = { 0 };
	struct ndp_gpu_queue *q;

	UNUSED_STATE;
	OPEN_GPU(gpu, 3 * MIB); /* one expert */
	q = gpu_ref_queue(gpu, TOKENS, TOKENS, H);
	for (int i = 0; i < 5; i++) {
		job.weights = gpu_ref_upload(gpu, &e.shape, blocks);
		while (ndp_gpu_submit(q, x, H, TOKENS, &job, 1, &err) == -EAGAIN)
			assert_int_equal(ndp_gpu_upload_wait(job.weights), 0);
		ndp_gpu_weights_free(job.weights);
		/* Its memory is not free yet: the next one must not overwrite it. */
		assert_true(used(gpu) > 0);
		assert_int_equal(ndp_gpu_upload(&w, gpu, &e.shape, others, &err), -ENOSPC);
		assert_int_equal(ndp_gpu_wait(q, NULL), 0);
		gpu_ref_check(&e, &job, x, H);
		assert_int_equal(used(gpu), 0);
		w = gpu_ref_upload(gpu, &e.shape, others);
		ndp_gpu_weights_free(w);
	}
	/* A queue may go while its call is under way. */
	job.weights = gpu_ref_upload(gpu, &e.shape, blocks);
	assert_int_equal(ndp_gpu_upload_wait(job.weights), 0);
	assert_int_equal(ndp_gpu_submit(q, x, H, TOKENS, &job, 1, NULL), 0);
	ndp_gpu_queue_free(q);
	ndp_gpu_weights_free(job.weights);
	assert_int_equal(used(gpu), 0);
	ndp_gpu_close(gpu);
	free(job.y);
	free(x);
	free(blocks);
	free(others);
	ref_expert_free(&e);
	ref_expert_free(&other);
}

/* ---- loss --------------------------------------------------------------------------- */

#define LOSS_H 192

struct loss {
	struct ref_expert e;
	void *blocks;
	ndp_bf16 *x;
};

/* All that can be done, on a GPU that is lost at some point: right results or -ENODEV. */
static bool use_until_lost(struct ndp_gpu *gpu, const struct loss *l)
{
	enum { T = 2 };
	float *y = gpu_ref_y(2 * T * LOSS_H);
	struct ndp_gpu_job job[2] = {
		{ .shape = l->e.shape, .tokens = T, .y = y, .ldy = LOSS_H },
		{ .shape = l->e.shape, .tokens = T, .y = y + T * LOSS_H, .ldy = LOSS_H,
		  .blocks = l->blocks },
	};
	struct ndp_gpu_weights *w = NULL, *v = NULL;
	struct ndp_gpu_queue *q = NULL;
	struct ndp_error err = { 0 };
	struct ndp_gpu_info info;
	int r = ndp_gpu_queue_create(&q, gpu, T, 2 * T, LOSS_H, &err);

	if (!r)
		r = ndp_gpu_upload(&w, gpu, &l->e.shape, l->blocks, &err);
	if (!r)
		r = ndp_gpu_upload_wait(w);
	for (int i = 0; i < 2 && !r; i++) {
		job[0].weights = w;
		r = ndp_gpu_submit(q, l->x, LOSS_H, T, job, 2, &err);
		if (!r)
			r = ndp_gpu_upload(&v, gpu, &l->e.shape, l->blocks, &err);
		if (!r)
			r = ndp_gpu_poll(q);
		r = r < 0 ? r : 0;
		if (ndp_gpu_wait(q, NULL))
			r = -ENODEV;
		if (!r) {
			gpu_ref_check(&l->e, &job[0], l->x, LOSS_H);
			gpu_ref_check(&l->e, &job[1], l->x, LOSS_H);
		}
		ndp_gpu_weights_free(v);
		v = NULL;
	}
	ndp_gpu_info(gpu, &info);
	if (r) {
		assert_int_equal(r, -ENODEV);
		assert_true(info.lost);
		assert_int_equal(ndp_gpu_check_room(gpu, &l->e.shape, 1, &err), -ENODEV);
		assert_non_null(strstr(err.message, info.name));
		assert_int_equal(ndp_gpu_upload(&v, gpu, &l->e.shape, l->blocks, &err), -ENODEV);
		assert_true(!w || ndp_gpu_uploaded(w) == -ENODEV);
		assert_true(!w || ndp_gpu_upload_wait(w) == -ENODEV);
		assert_true(!q || ndp_gpu_submit(q, l->x, LOSS_H, T, job + 1, 1, &err) == -ENODEV);
		ndp_gpu_queue_free(q);
		q = NULL;
		assert_int_equal(ndp_gpu_queue_create(&q, gpu, 1, 1, 1, &err), -ENODEV);
		q = NULL;
	}
	ndp_gpu_weights_free(w);
	ndp_gpu_queue_free(q);
	assert_int_equal(used(gpu), 0);
	free(y);
	return info.lost;
}

static void loss_at_any_call(void **state)
{
	struct loss l = { .e = ref_expert_new(LOSS_H, LOSS_H, 96, 3) };
	int calls = 0;
	bool lost = true;

	UNUSED_STATE;
	l.blocks = gpu_ref_pack(&l.e);
	l.x = gpu_ref_x(2, LOSS_H, LOSS_H, 6);
	for (; lost; calls++) {
		OPEN_GPU(gpu, 4 * MIB);
		ndpi_gpu_fail_after(gpu, calls);
		lost = use_until_lost(gpu, &l);
		ndp_gpu_close(gpu);
	}
	assert_true(calls > 40); /* it was lost at each of so many */
	free(l.x);
	free(l.blocks);
	ref_expert_free(&l.e);
}

/* A loss while misses are half way through and uploads are waiting. */
static void loss_under_way(void **state)
{
	enum { H = 1024, I = 8192 }; /* 48 MiB: four waves */
	struct ndp_expert_shape shape = { .h_in = H, .h_out = H, .neurons = I };
	void *blocks = calloc(ndp_expert_blocks(&shape), ndp_expert_block_bytes(&shape));
	float y[H];
	ndp_bf16 x[H] = { 0 };
	struct ndp_gpu_job job = { .shape = shape, .blocks = blocks, .tokens = 1, .y = y, .ldy = H };

	UNUSED_STATE;
	for (long calls = 0; calls < 60; calls += 7) {
		struct ndp_gpu_weights *w;
		struct ndp_gpu_queue *q;
		OPEN_GPU(gpu, 64 * MIB);

		q = gpu_ref_queue(gpu, 1, 1, H);
		assert_int_equal(ndp_gpu_submit(q, x, H, 1, &job, 1, NULL), 0);
		w = gpu_ref_upload(gpu, &shape, blocks);
		ndpi_gpu_fail_after(gpu, calls);
		assert_int_equal(ndp_gpu_upload_wait(w), -ENODEV);
		while (!ndp_gpu_poll(q))
			usleep(100);
		assert_int_equal(ndp_gpu_wait(q, NULL), -ENODEV);
		assert_int_equal(ndp_gpu_wait(q, NULL), 0);
		ndp_gpu_weights_free(w);
		ndp_gpu_queue_free(q);
		assert_int_equal(used(gpu), 0);
		ndp_gpu_close(gpu);
	}
	free(blocks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(specs),
		cmocka_unit_test(budget_says_its_arithmetic),
		cmocka_unit_test(no_budget),
		cmocka_unit_test(arenas),
		cmocka_unit_test(pieces_compute),
		cmocka_unit_test(free_on_the_way),
		cmocka_unit_test(free_in_use),
		cmocka_unit_test(loss_at_any_call),
		cmocka_unit_test(loss_under_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
