/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_nomem.c - every allocation, mapping, file and thread that the
 * in-process device wants is refused once, in turn: each time there is an error,
 * nothing else breaks, and nothing stays behind.
 *
 * The linker puts the refusing functions in front of the real ones (device.mk).
 */
#include "device_ref.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

enum { H = 64, LDX = 128, LDY = 256 };

/* ---- what refuses ---------------------------------------------------- */

static int countdown; /* the call that makes it 0 fails; 0: none does */

static bool refuse(void)
{
	int n = __atomic_load_n(&countdown, __ATOMIC_RELAXED);

	return n > 0 && __atomic_sub_fetch(&countdown, 1, __ATOMIC_RELAXED) == 0;
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
int __real_posix_memalign(void **p, size_t align, size_t size);
int __wrap_posix_memalign(void **p, size_t align, size_t size);
void *__real_mmap(void *at, size_t size, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t off);
int __real_memfd_create(const char *name, unsigned int flags);
int __wrap_memfd_create(const char *name, unsigned int flags);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg);

void *__wrap_calloc(size_t n, size_t size)
{
	return refuse() ? NULL : __real_calloc(n, size);
}

int __wrap_posix_memalign(void **p, size_t align, size_t size)
{
	return refuse() ? ENOMEM : __real_posix_memalign(p, align, size);
}

void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t off)
{
	if (!refuse())
		return __real_mmap(at, size, prot, flags, fd, off);
	errno = ENOMEM;
	return MAP_FAILED;
}

int __wrap_memfd_create(const char *name, unsigned int flags)
{
	if (!refuse())
		return __real_memfd_create(name, flags);
	errno = EMFILE;
	return -1;
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	return refuse() ? EAGAIN : __real_pthread_create(t, attr, f, arg);
}

/* ---- what wants memory ----------------------------------------------- */

struct life {
	struct ndp_device *dev;
	struct ndp_weights *w;
	struct ndp_io *x, *y;
	struct ndp_queue *q;
	struct ref_expert e;
	ndp_bf16 *row;
	double want[H], tolerance[H];
};

/* Errors that a refusal may become; anything else is a mistake. */
static int out_of(int r)
{
	if (r >= 0 || r == -ENOMEM || r == -EMFILE || r == -EAGAIN)
		return r;
	fail_msg("a refusal became error %d", r);
	return r;
}

static int compute(struct life *l, bool queued)
{
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT,
			     .weights = l->w,
			     .x = l->x,
			     .y = l->y,
			     .x_mask = 3,
			     .tokens = 1,
			     .ldx = LDX,
			     .ldy = LDY };
	struct ndp_result res;
	float got[H];

	if (!queued) {
		ndp_run(l->dev, &c, &res);
	} else {
		assert_int_equal(ndp_queue_push(l->q, &c), 0);
		assert_int_equal(ndp_queue_wait(l->q, &res, 1, 1), 1);
	}
	if (res.res == -EIO) /* the chip had no buffer */
		return -ENOMEM;
	assert_int_equal(res.res, 0);
	assert_int_equal(ndp_io_reduce(l->y, res.dimm_mask, 0, LDY, got, H, 1, H), 0);
	ref_assert_near(got, l->want, l->tolerance, H);
	return 0;
}

static int move(struct life *l, bool queued, uint32_t mask)
{
	struct ndp_weights_info info;
	struct ndp_placement p;
	struct ndp_cmd c = { .op = NDP_OP_MIGRATE_WEIGHTS, .weights = l->w, .to = &p };
	struct ndp_result res;
	uint32_t before;
	int r;

	assert_int_equal(ndp_weights_info(l->w, &info), 0);
	before = ndp_placement_mask(&info.placement);
	ndp_placement_spread(&p, 4, mask);
	if (!queued) {
		r = ndp_weights_migrate(l->w, &p, NULL, NULL);
	} else {
		assert_int_equal(ndp_queue_push(l->q, &c), 0);
		assert_int_equal(ndp_queue_wait(l->q, &res, 1, 1), 1);
		r = res.res;
	}
	assert_int_equal(ndp_weights_info(l->w, &info), 0);
	assert_int_equal(ndp_placement_mask(&info.placement), r ? before : mask);
	return out_of(r);
}

static int live(struct life *l)
{
	struct ndp_placement p;
	struct ndp_error err;
	int r = out_of(ndp_open(&l->dev, "soft:dimms=2,size=4M", &err));

	if (r < 0) {
		assert_int_equal(err.code, r);
		assert_true(err.message[0]);
		return r;
	}
	ndp_placement_spread(&p, 4, 3);
	if ((r = out_of(ndp_expert_create(&l->w, l->dev, &l->e.shape, &p, 0, 0, &err))) < 0)
		return r;
	assert_int_equal(
		ndp_expert_load(l->w, l->e.gate, l->e.up, l->e.ld_in, l->e.down, l->e.ld_down), 0);
	assert_int_equal(ndp_weights_seal(l->w), 0);
	if ((r = out_of(ndp_io_create(&l->x, l->dev, 0, LDX, &err))) < 0 ||
	    (r = out_of(ndp_io_create(&l->y, l->dev, 0, LDY, &err))) < 0 ||
	    (r = out_of(ndp_queue_create(&l->q, l->dev, 2, &err))) < 0)
		return r;
	assert_int_equal(ndp_io_write(l->x, 3, 0, l->row, 2 * H), 0);
	if ((r = compute(l, false)) < 0 || (r = move(l, false, 2)) < 0 ||
	    (r = compute(l, true)) < 0)
		return r;
	if (!ndp_weights_map(l->w)) {
		assert_int_equal(errno, ENOMEM);
		return -ENOMEM;
	}
	if ((r = move(l, true, 1)) < 0)
		return r;
	return compute(l, true);
}

static void end_of_life(struct life *l)
{
	struct ref_expert e = l->e;
	const void *view = l->w ? ndp_weights_map(l->w) : NULL;

	if (view) /* whatever failed: it shows the weights */
		for (uint32_t b = 0; b < 4; b++) {
			char block[192 * H];

			ndp_expert_pack_block(block, &e.shape, b, e.gate, e.up, e.ld_in, e.down,
					      e.ld_down);
			assert_memory_equal((const char *)view + b * sizeof(block), block,
					    sizeof(block));
		}
	if (l->q)
		assert_int_equal(ndp_queue_inflight(l->q), 0);
	ndp_queue_free(l->q);
	ndp_weights_free(l->w);
	ndp_io_free(l->x);
	ndp_io_free(l->y);
	if (l->dev)
		assert_int_equal(ref_free_bytes(l->dev), 2 * (4 << 20) / 16 * 15);
	ndp_close(l->dev);
}

static void each_refusal_is_an_error_and_nothing_else(void **state)
{
	struct life empty = { .e = ref_expert_new(H, H, 128, 1) }, l;
	struct ndp_cmd silu = { .act = NDP_ACT_SILU_MUL };
	size_t fds = 0, threads = 0;
	uint64_t seed = 2;
	int n = 0, left;

	UNUSED_STATE;
	empty.row = ref_random_rows(1, H, H, 1, &seed);
	ref_ffn(&empty.e, &silu, empty.row, 0, 4, empty.want, empty.tolerance);
	do {
		int r;

		l = empty;
		countdown = ++n;
		r = live(&l);
		left = __atomic_load_n(&countdown, __ATOMIC_RELAXED);
		countdown = 0;
		if (left)
			assert_int_equal(r, 0);
		end_of_life(&l);
		if (n == 1) {
			fds = ref_entries("/proc/self/fd");
			threads = ref_entries("/proc/self/task");
		}
		ref_assert_entries("/proc/self/fd", fds);
		ref_assert_entries("/proc/self/task", threads);
	} while (!left);
	print_message("# %d calls were refused, one after the other\n", n - 1);
	assert_true(n > 30);
	ref_expert_free(&empty.e);
	free(empty.row);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_refusal_is_an_error_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
