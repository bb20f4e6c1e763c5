// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_forward_nomem.c - running a layer allocates nothing once it has run at the
 * context's largest batch; and whatever cannot be allocated before leaves nothing behind.
 *
 * The linker puts this file's functions in front of the C library's (--wrap), so what
 * the libraries below allocate by themselves is not seen.  The GPU's driver is not ours
 * to judge and is left out, and so are the emulated chips.
 */
#include "forward_ref.h"

#include <sys/mman.h>

static bool counting;
static uint64_t allocations;
static int64_t fail_at = -1;	/* the allocation to fail */

/* The emulated chips keep scratch memory that grows with the commands they get. */
static bool is_chip(void)
{
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof(name));
	return !strncmp(name, "ndp", 3) && strstr(name, "-compute");
}

static bool refused(void)
{
	if (__atomic_load_n(&counting, __ATOMIC_RELAXED) && !is_chip())
		__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
	return __atomic_load_n(&fail_at, __ATOMIC_RELAXED) >= 0 &&
	       __atomic_fetch_sub(&fail_at, 1, __ATOMIC_RELAXED) == 0;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
int __real_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__real_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off);

static void *no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

void *__wrap_malloc(size_t n)
{
	return refused() ? no_memory() : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refused() ? no_memory() : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return refused() ? no_memory() : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	return refused() ? no_memory() : __real_reallocarray(p, n, size);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
	return refused() ? ENOMEM : __real_posix_memalign(p, align, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return refused() ? no_memory() : __real_aligned_alloc(align, n);
}

void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off)
{
	if (!refused())
		return __real_mmap(p, n, prot, flags, fd, off);
	errno = ENOMEM;
	return MAP_FAILED;
}

static const struct fm_spec spec = {
	.hidden = 96, .neurons = 700, .experts = 8, .top_k = 3, .shared_neurons = 64,
	.selection = true, .layers = 3,
	.router = { .scoring = NDP_SCORE_SIGMOID, .groups = 2, .keep_groups = 1,
		    .group_score = NDP_GROUP_TOP2_SUM, .renormalize = true },
};

static const struct ndp_host even = {
	.cpu = { .gflops = 40, .overhead_ns = 100 },
	.dimm = { .gflops = 15, .gbps = 15, .overhead_ns = 100 },
	.channel_gbps = 20, .nr_channels = 2, .nr_dimms = 4,
};

/* Largest batches first, then any, also larger ones than the context is for, on any mix. */
static void steady_state(void **state)
{
	enum { MOST = 60 };
	static const uint32_t mixes[] = { NDPI_CPU, NDPI_NDP, NDPI_CPU | NDPI_NDP };
	struct ndp_device *dev = ref_open("soft:dimms=4,size=32M");
	struct ndp_cpu *cpu = fm_cpu(2);

	UNUSED_STATE;
	for (size_t i = 0; i < 2 * sizeof(mixes) / sizeof(*mixes); i++) {
		const struct ndp_moe_options o = {
			.device = dev, .cpu = cpu, .host = &even, .domains = mixes[i / 2],
			.policy = i & 1 ? NDP_POLICY_SPLIT : NDP_POLICY_TRIMOE,
			.placement = "spread:3",
		};
		struct fm *m = fm_new(&spec, &o);
		struct ndp_moe_context *ctx = fm_context(m, MOST);
		float *x = fm_x(m, 2 * MOST, 96, i), *out = malloc(2 * MOST * 96 * sizeof(*out));
		struct ndp_moe_report r;
		struct ndp_error err;

		assert_int_equal(ndp_moe_forward(ctx, 1, 0, x, 96, 2 * MOST, out, 96, NULL, &err),
				 0);
		assert_int_equal(ndp_moe_forward(ctx, 1, 0, x, 96, 1, out, 96, NULL, &err), 0);
		allocations = 0;
		counting = true;
		for (uint32_t t = 1; t <= 2 * MOST; t += 7)
			for (uint32_t l = 1; l < 3; l++)
				if (ndp_moe_forward(ctx, l, t % 4, x, 96, t, out, 96, &r, &err))
					fail_msg("%s", err.message);
		counting = false;
		assert_int_equal(allocations, 0);
		fm_check(m, ctx, 2, x, 96, 120, out, 96);
		free(out);
		free(x);
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
	ndp_cpu_close(cpu);
	ndp_close(dev);
}

/* The n-th allocation of making a context, and of a run's beginning, fails for every n. */
static void without_memory(void **state)
{
	struct ndp_device *dev = ref_open("soft:dimms=2,size=8M");
	struct ndp_cpu *cpu = fm_cpu(2);
	const struct ndp_moe_options o = { .device = dev, .cpu = cpu,
					   .policy = NDP_POLICY_TRIMOE };
	struct fm *m = fm_make(&spec, &o);
	const uint64_t free_bytes = ref_free_bytes(dev);
	struct ndp_moe_context *ctx = NULL;
	struct ndp_error err;
	int r;

	UNUSED_STATE;
	for (int n = 0;; n++) {
		__atomic_store_n(&fail_at, n, __ATOMIC_RELAXED);
		r = ndpi_moe_run_init(&m->moe, &err);
		__atomic_store_n(&fail_at, -1, __ATOMIC_RELAXED);
		if (r == 0)
			break;
		assert_int_equal(r, -ENOMEM);
		assert_non_null(strstr(err.message, "memory"));
		assert_null(m->moe.run);
		assert_true(n < 1000);
	}
	for (int n = 0;; n++) {
		__atomic_store_n(&fail_at, n, __ATOMIC_RELAXED);
		r = ndp_moe_context_create(&ctx, &m->moe, 10, &err);
		__atomic_store_n(&fail_at, -1, __ATOMIC_RELAXED);
		if (r == 0)
			break;
		assert_int_equal(r, -ENOMEM);
		assert_non_null(strstr(err.message, "memory"));
		assert_null(ctx);
		assert_int_equal(ref_free_bytes(dev), free_bytes);
		assert_true(n < 1000);
	}
	fm_run(m, ctx, 1, 10, 1, NULL);
	ndp_moe_context_free(ctx);
	fm_free(m);
	ndp_cpu_close(cpu);
	ndp_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steady_state),
		cmocka_unit_test(without_memory),
	};

	return cmocka_run_group_tests_name("forward_nomem", tests, NULL, NULL);
}
