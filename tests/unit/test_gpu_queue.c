// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_gpu_queue.c - calls of a GPU queue: what is refused and what is said, several threads
 * with queues of their own while experts come and go, and that nothing is allocated in
 * steady state (malloc and its kin are counted, see gpu.mk; OpenCL's own are not seen).
 */
#include "gpu_ref.h"

#include <stdatomic.h>

static atomic_ulong allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
	allocations++;
	return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	allocations++;
	return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	allocations++;
	return __real_realloc(p, n);
}

static struct ndp_gpu *gpu;

static int open_gpu(void **state)
{
	UNUSED_STATE;
	gpu = gpu_ref_open(32 << 20, UINT64_MAX, false);
	return 0;
}

static int close_gpu(void **state)
{
	UNUSED_STATE;
	ndp_gpu_close(gpu);
	return 0;
}

#define NEED_GPU() do { if (!gpu) skip(); } while (0)

/* ---- refusals ------------------------------------------------------------------------ */

static void creation_is_checked(void **state)
{
	struct ndp_gpu_queue *q;
	struct ndp_error err = { 0 };

	UNUSED_STATE;
	NEED_GPU();
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, 0, 1, 1, &err), -EINVAL);
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, 1, 0, 1, &err), -EINVAL);
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, 1, 1, 0, &err), -EINVAL);
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, 1, 1, 65473, &err), -EINVAL);
	assert_non_null(strstr(err.message, "65472"));
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, UINT32_MAX, UINT32_MAX, 65472, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "MiB"));
	assert_int_equal(ndp_gpu_queue_create(&q, gpu, 1, 0, 1, NULL), -EINVAL);
	ndp_gpu_queue_free(NULL);
	ndp_gpu_weights_free(NULL);
}

#define H 64

static void shapes_are_checked(void **state)
{
	static const struct ndp_expert_shape bad[] = {
		{ 0, H, 32 }, { H, 0, 32 }, { H, H, 0 }, { 65473, H, 32 }, { H, 65473, 32 },
		{ H, H, 1u << 25 },
	};
	struct ndp_gpu_weights *w;
	struct ndp_error err = { 0 };

	UNUSED_STATE;
	NEED_GPU();
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(ndp_gpu_upload(&w, gpu, &bad[i], &err, &err), -EINVAL);
		assert_int_equal(ndp_gpu_check_room(gpu, &bad[i], 1, &err), -EINVAL);
	}
	assert_int_equal(ndp_gpu_upload(&w, gpu, &(struct ndp_expert_shape){ H, H, 32 }, NULL, &err),
			 -EINVAL);
}

/* Each job is refused with a sentence that has @says, nothing is written, and @q goes on. */
static void refused(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
		    struct ndp_gpu_job job, const char *says)
{
	struct ndp_error err = { 0 };
	float y0 = job.y ? job.y[0] : 0;
	int r = ndp_gpu_submit(q, x, ldx, x_rows, &job, 1, &err);

	if (r != -EINVAL || !strstr(err.message, says))
		print_error("%d \"%s\", wanted \"%s\"\n", r, err.message, says);
	assert_int_equal(r, -EINVAL);
	assert_non_null(strstr(err.message, says));
	assert_true(!job.y || !memcmp(&y0, job.y, sizeof(y0)));
}

static void jobs_are_checked(void **state)
{
	enum { ROWS = 4 };
	struct ref_expert e = ref_expert_new(H, H, 100, 1);
	void *blocks = gpu_ref_pack(&e);
	ndp_bf16 *x = gpu_ref_x(ROWS, H, H, 1);
	float *y = gpu_ref_y(ROWS * H);
	uint32_t rows[ROWS] = { 0, 1, ROWS, 0 };
	struct ndp_gpu_job good = {
		.shape = e.shape, .blocks = blocks, .tokens = ROWS, .y = y, .ldy = H,
	}, job;
	struct ndp_gpu_weights *w;
	struct ndp_gpu_queue *q;

	UNUSED_STATE;
	NEED_GPU();
	q = gpu_ref_queue(gpu, ROWS, ROWS, H);
#define BAD(change, says) do { \
		job = good; \
		change; \
		refused(q, x, H, ROWS, job, says); \
	} while (0)
	BAD(job.shape.h_in = H + 1, "h_in 65");
	BAD(job.shape.h_out = H + 1, "h_out 65");
	BAD(job.shape.h_in = 0, "h_in 0");
	BAD(job.shape.neurons = 0, "0 neurons");
	BAD(job.first = 4; job.nr_blocks = 1, "blocks 4 to 5 of an expert that has 4");
	BAD(job.first = 1, "blocks 1 to 1");
	BAD(job.first = UINT32_MAX; job.nr_blocks = 2, "of an expert that has 4");
	BAD(job.act = 2, "number 2");
	BAD(job.act = NDP_ACT_CLAMPED_SWIGLU, "alpha 0");
	BAD(job.act = 1; job.alpha = 1; job.limit = NAN, "limit nan");
	BAD(job.blocks = NULL, "no weights");
	BAD(job.y = NULL, "of y");
	BAD(job.ldy = H - 1, "63 of y");
	BAD(job.rows = rows, "token 2 is row 4 of 4");
	BAD(job.tokens = ROWS + 1, "token 4 is row 4");
	refused(q, x, H - 1, ROWS, good, "63 elements of x");
	refused(q, NULL, H, ROWS, good, "0 rows of x");
	refused(q, x, H, ROWS + 1, good, "5 rows of x");
	rows[2] = 0;
	BAD(job.rows = (uint32_t[ROWS + 1]){ 0 }; job.tokens = ROWS + 1, "5 of y");
	w = gpu_ref_upload(gpu, &e.shape, blocks);
	assert_int_equal(ndp_gpu_upload_wait(w), 0);
	BAD(job.weights = w; job.shape.neurons = 128, "its shape is not that of its weights");
	/* After all that. */
	good.weights = w;
	gpu_ref_run(q, x, H, ROWS, &good, 1);
	gpu_ref_check(&e, &good, x, H);
	ndp_gpu_weights_free(w);
	ndp_gpu_queue_free(q);
	free(y);
	free(x);
	free(blocks);
	ref_expert_free(&e);
}

static void not_before_it_is_there(void **state)
{
	struct ndp_expert_shape shape = { 1024, 1024, 4096 }; /* 24 MiB */
	void *blocks = calloc(ndp_expert_blocks(&shape), ndp_expert_block_bytes(&shape));
	ndp_bf16 *x = gpu_ref_x(1, 1024, 1024, 1);
	float *y = gpu_ref_y(1024);
	struct ndp_gpu_job job = { .shape = shape, .tokens = 1, .y = y, .ldy = 1024 };
	struct ndp_error err = { 0 };
	struct ndp_gpu_queue *q;

	UNUSED_STATE;
	NEED_GPU();
	q = gpu_ref_queue(gpu, 1, 1, 1024);
	job.weights = gpu_ref_upload(gpu, &shape, blocks);
	assert_int_equal(ndp_gpu_uploaded(job.weights), 0);
	assert_int_equal(ndp_gpu_submit(q, x, 1024, 1, &job, 1, &err), -EAGAIN);
	assert_non_null(strstr(err.message, "on their way"));
	assert_int_equal(ndp_gpu_upload_wait(job.weights), 0);
	gpu_ref_run(q, x, 1024, 1, &job, 1);
	assert_true(y[0] == 0);
	ndp_gpu_weights_free(job.weights);
	ndp_gpu_queue_free(q);
	free(y);
	free(x);
	free(blocks);
}

/* ---- threads -------------------------------------------------------------------------- */

#define EXPERTS 4
#define TH 160
#define ROUNDS 25

struct many {
	struct ref_expert e[EXPERTS];
	void *blocks[EXPERTS];
	_Atomic(struct ndp_gpu_weights *) shared;	/* of expert 0, used by all */
	atomic_bool stop;
};

static void *calls(void *arg)
{
	enum { ROWS = 12 };
	struct many *m = arg;
	uint64_t seed = (uintptr_t)&seed | 1;
	struct ndp_gpu_queue *q = gpu_ref_queue(gpu, ROWS, EXPERTS * ROWS, TH);
	ndp_bf16 *x = gpu_ref_x(ROWS, TH, TH, seed);
	float *y = gpu_ref_y(EXPERTS * ROWS * TH);

	for (int i = 0; i < ROUNDS; i++) {
		struct ndp_gpu_job jobs[EXPERTS];

		for (uint32_t j = 0; j < EXPERTS; j++)
			jobs[j] = (struct ndp_gpu_job){
				.shape = m->e[j].shape, .tokens = ref_next(&seed) % (ROWS + 1),
				.weights = j ? NULL : m->shared, .blocks = m->blocks[j],
				.y = y + j * ROWS * TH, .ldy = TH,
			};
		gpu_ref_run(q, x, TH, ROWS, jobs, EXPERTS);
		for (uint32_t j = 0; j < EXPERTS; j++)
			gpu_ref_check(&m->e[j], &jobs[j], x, TH);
	}
	free(y);
	free(x);
	ndp_gpu_queue_free(q);
	return NULL;
}

/* Experts come and go all the time; each that has come computes. */
static void *uploads(void *arg)
{
	struct many *m = arg;
	struct ndp_gpu_queue *q = gpu_ref_queue(gpu, 1, 1, TH);
	ndp_bf16 *x = gpu_ref_x(1, TH, TH, 5);
	float y[TH];

	for (uint32_t i = 0; !m->stop; i++) {
		uint32_t j = i % EXPERTS;
		struct ndp_gpu_job job = { .shape = m->e[j].shape, .tokens = 1, .y = y, .ldy = TH };

		job.weights = gpu_ref_upload(gpu, &m->e[j].shape, m->blocks[j]);
		if (i % 3) {
			assert_int_equal(ndp_gpu_upload_wait(job.weights), 0);
			gpu_ref_run(q, x, TH, 1, &job, 1);
			gpu_ref_check(&m->e[j], &job, x, TH);
		}
		ndp_gpu_weights_free(job.weights);
	}
	free(x);
	ndp_gpu_queue_free(q);
	return NULL;
}

static void several_threads(void **state)
{
	struct many m = { .stop = false };
	struct ndp_gpu_info info;
	pthread_t t[4];

	UNUSED_STATE;
	NEED_GPU();
	for (uint32_t j = 0; j < EXPERTS; j++) {
		m.e[j] = ref_expert_new(TH, TH, 64 + 40 * j, j);
		m.blocks[j] = gpu_ref_pack(&m.e[j]);
	}
	m.shared = gpu_ref_upload(gpu, &m.e[0].shape, m.blocks[0]);
	assert_int_equal(ndp_gpu_upload_wait(m.shared), 0);
	assert_int_equal(pthread_create(&t[3], NULL, uploads, &m), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, calls, &m), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(t[i], NULL), 0);
	m.stop = true;
	assert_int_equal(pthread_join(t[3], NULL), 0);
	ndp_gpu_weights_free(m.shared);
	ndp_gpu_info(gpu, &info);
	assert_int_equal(info.used_bytes, 0);
	assert_true(info.uploads > 3 && info.upload_bytes > info.uploads * 1000);
	for (uint32_t j = 0; j < EXPERTS; j++) {
		free(m.blocks[j]);
		ref_expert_free(&m.e[j]);
	}
}

/* ---- steady state ------------------------------------------------------------------------- */

static void nothing_is_allocated(void **state)
{
	enum { ROWS = 40, N = 6 };
	struct ref_expert e = ref_expert_new(H, H, 200, 1);
	void *blocks = gpu_ref_pack(&e);
	ndp_bf16 *x = gpu_ref_x(ROWS, H, H, 1);
	float *y = gpu_ref_y(N * ROWS * H);
	struct ndp_gpu_job jobs[N];
	struct ndp_gpu_weights *w;
	struct ndp_gpu_queue *q;

	UNUSED_STATE;
	NEED_GPU();
	w = gpu_ref_upload(gpu, &e.shape, blocks);
	assert_int_equal(ndp_gpu_upload_wait(w), 0);
	q = gpu_ref_queue(gpu, ROWS, N * ROWS, H);
	for (uint32_t round = 0; round < 20; round++) {
		unsigned long before;

		for (uint32_t i = 0; i < N; i++)
			jobs[i] = (struct ndp_gpu_job){
				.shape = e.shape, .tokens = round ? (i * round) % ROWS : ROWS,
				.weights = i & 1 ? w : NULL, .blocks = blocks,
				.y = y + i * ROWS * H, .ldy = H,
			};
		before = allocations;
		gpu_ref_run(q, x, H, ROWS, jobs, N);
		assert_true(!round || allocations == before);
	}
	assert_true(allocations > 0);
	ndp_gpu_weights_free(w);
	ndp_gpu_queue_free(q);
	free(y);
	free(x);
	free(blocks);
	ref_expert_free(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(creation_is_checked),
		cmocka_unit_test(shapes_are_checked),
		cmocka_unit_test(jobs_are_checked),
		cmocka_unit_test(not_before_it_is_there),
		cmocka_unit_test(several_threads),
		cmocka_unit_test(nothing_is_allocated),
	};

	return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
