// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_load.c - loading: every expert where it belongs and as it was packed, progress,
 * cancelling at any point, no room (asked for first, with the arithmetic: case C7), no
 * memory at any call, few threads and many. On every failure the device is as it was.
 */
#include "../../libndp/moe/load-internal.h"
#include "../../tools/ndp-mkmodel/mkmodel.h"

#include <ndp/moe.h>

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

const char *const mk_spelling_names[MK_SPELLINGS] = { "default", "w123", "proj", "fused",
						      "stacked", "each" };

static char top[] = "/tmp/test_load.XXXXXX";
static struct ndp_cpu *cpu;	/* a model must have something to run on */
static struct ndp_model *models[3];	/* deepseek_v3 BF16, gpt_oss, qwen2_moe GGUF Q8_0 */

/* ---- what may fail ---------------------------------------------------------------- */

static uint64_t available;	/* what the machine says that it has; 0: the truth */
static int fail_after = -1;	/* allocations that still succeed; -1: all of them */
static bool no_threads;

uint64_t __real_ndpi_host_available(void);
uint64_t __wrap_ndpi_host_available(void);
uint64_t __wrap_ndpi_host_available(void)
{
	return available ? available : __real_ndpi_host_available();
}

static bool fails(void)
{
	int left = __atomic_load_n(&fail_after, __ATOMIC_RELAXED);

	if (left < 0)
		return false;
	if (left == 0)
		return true;
	__atomic_fetch_sub(&fail_after, 1, __ATOMIC_RELAXED);
	return false;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__real_calloc(size_t n, size_t m);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_calloc(size_t n, size_t m)
{
	return fails() ? NULL : __real_calloc(n, m);
}

int __real_posix_memalign(void **p, size_t a, size_t n);
int __wrap_posix_memalign(void **p, size_t a, size_t n);
int __wrap_posix_memalign(void **p, size_t a, size_t n)
{
	return fails() ? ENOMEM : __real_posix_memalign(p, a, n);
}

void *__real_mmap(void *a, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *a, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *a, size_t n, int prot, int flags, int fd, off_t off)
{
	if (fails()) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap(a, n, prot, flags, fd, off);
}

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	return no_threads ? EAGAIN : __real_pthread_create(t, a, f, arg);
}

/* ---- models -------------------------------------------------------------------------- */

static void make(int i, struct mk_model m)
{
	struct mk_plan plan = { 0 };
	struct ndp_error err;
	char dir[100];
	int r;

	snprintf(dir, sizeof(dir), "%s/%d", top, i);
	assert_int_equal(mkdir(dir, 0700), 0);
	r = mk_plan(&plan, &m, &err);
	if (r == 0)
		r = m.gguf ? mk_write_gguf(dir, &m, &plan, &err) :
			     mk_write_safetensors(dir, &m, &plan, &err);
	if (r == 0)
		r = ndp_model_open(&models[i], dir, &err);
	if (r < 0)
		fail_msg("%s", err.message);
	free(plan.tensors);
}

static int setup(void **state)
{
	const struct ndp_cpu_options one = { .threads = 1 };

	(void)state;
	if (!mkdtemp(top) || ndp_cpu_open(&cpu, &one, NULL) < 0)
		return -1;
	make(0, (struct mk_model){ .family = MK_DEEPSEEK3, .layers = 3, .dense = 1, .experts = 6,
				   .top_k = 2, .hidden = 96, .neurons = 80, .shared = 2,
				   .groups = 2, .keep_groups = 1, .scale = 2.5f, .sigmoid = true,
				   .shards = 2, .index = true, .spelling = MK_PROJ, .seed = 3 });
	make(1, (struct mk_model){ .family = MK_GPT_OSS, .layers = 2, .experts = 4, .top_k = 2,
				   .hidden = 96, .neurons = 64, .groups = 1, .keep_groups = 1,
				   .scale = 1, .shards = 1, .spelling = MK_FUSED, .seed = 4 });
	make(2, (struct mk_model){ .family = MK_QWEN2, .layers = 2, .experts = 5, .top_k = 2,
				   .hidden = 64, .neurons = 320, .shared = 1, .groups = 1,
				   .keep_groups = 1, .scale = 1, .gguf = true, .shards = 1,
				   .dtype = MK_Q8_0, .spelling = MK_STACKED, .seed = 5 });
	return 0;
}

static int teardown(void **state)
{
	char command[100];

	(void)state;
	for (int i = 0; i < 3; i++)
		ndp_model_close(models[i]);
	ndp_cpu_close(cpu);
	snprintf(command, sizeof(command), "rm -rf '%s'", top);
	return system(command);
}

static struct ndp_device *open_soft(const char *spec)
{
	struct ndp_device *dev;
	struct ndp_error err;

	if (ndp_open(&dev, spec, &err) < 0)
		fail_msg("%s", err.message);
	return dev;
}

static uint64_t used_bytes(struct ndp_device *dev)
{
	struct ndp_device_info info;

	assert_int_equal(ndp_device_info(dev, &info), 0);
	return info.used_bytes;
}

/* ---- what was loaded is what the file holds --------------------------------------------- */

static void check_expert(const struct ndp_moe *moe, const struct ndp_model *model, uint32_t l,
			 uint32_t e)
{
	const struct ndp_expert_shape *s = load_shape(&moe->info, e);
	const struct ndpi_expert *x = e == NDP_EXPERT_SHARED ? moe->layers[l].shared :
							       &moe->layers[l].experts[e];
	size_t bytes = load_bytes(&moe->info, e);
	void *want = malloc(bytes), *work = malloc(ndp_model_pack_bytes(model) + 1);
	struct ndp_error err;

	assert_int_equal(ndp_model_pack(model, l, e, 0, ndp_expert_blocks(s), want, work, &err), 0);
	assert_int_equal(x->bytes, bytes);
	assert_non_null(x->blocks);
	assert_int_equal((uintptr_t)x->blocks % 64, 0);
	assert_memory_equal(x->blocks, want, bytes);
	assert_ptr_equal(ndp_moe_weights(moe, l, e), x->weights);
	assert_int_equal(x->weights != NULL, moe->options.device != NULL);
	assert_int_equal(x->down_bias != NULL, moe->info.expert_bias && e != NDP_EXPERT_SHARED);
	if (x->down_bias) {
		float bias[96];

		assert_int_equal(ndp_model_down_bias(model, l, e, bias, &err), 0);
		assert_memory_equal(x->down_bias, bias, sizeof(bias));
	}
	free(want);
	free(work);
}

static void check_moe(const struct ndp_moe *moe, const struct ndp_model *model)
{
	struct ndp_moe_memory memory;
	uint64_t total = 0;

	for (uint32_t l = 0; l < moe->info.layers; l++) {
		assert_int_equal(ndp_moe_is_moe(moe, l), ndp_model_is_moe(model, l));
		if (!ndp_moe_is_moe(moe, l)) {
			assert_null(ndp_moe_weights(moe, l, 0));
			continue;
		}
		for (uint32_t e = 0; e < moe->info.router.experts; e++) {
			check_expert(moe, model, l, e);
			total += load_bytes(&moe->info, e);
		}
		assert_int_equal(moe->layers[l].shared != NULL, moe->info.shared.neurons != 0);
		if (moe->layers[l].shared) {
			check_expert(moe, model, l, NDP_EXPERT_SHARED);
			total += load_bytes(&moe->info, NDP_EXPERT_SHARED);
		}
		assert_null(ndp_moe_weights(moe, l, moe->info.router.experts));
	}
	assert_false(ndp_moe_is_moe(moe, moe->info.layers));
	ndp_moe_memory(moe, &memory);
	assert_int_equal(memory.dimm_bytes, moe->options.device ? total : 0);
	assert_int_equal(memory.host_bytes, moe->options.device ? 0 : total);
	assert_int_equal(memory.gpu_bytes, 0);
}

struct progress {
	uint32_t calls;
	uint32_t total;
	uint32_t cancel_at;
};

static int progress(void *arg, uint32_t done, uint32_t total)
{
	struct progress *p = arg;

	assert_int_equal(done, ++p->calls);	/* one at a time, none left out */
	p->total = total;
	return done == p->cancel_at ? -ECANCELED : 0;
}

static void everything_is_where_it_belongs(void **state)
{
	static const char *const placements[] = { NULL, "striped", "spread:2", "dimm:1" };

	(void)state;
	for (int i = 0; i < 3; i++) {
		for (uint32_t threads = 0; threads < 4; threads++) {
			struct ndp_device *dev =
				threads ? open_soft("soft:dimms=3,size=16M") : NULL;
			struct progress p = { 0 };
			struct ndp_moe_options o = {
				.device = dev, .cpu = cpu, .policy = NDP_POLICY_SPLIT,
				.placement = placements[threads], .load_threads = threads,
				.progress = progress, .progress_arg = &p,
			};
			struct ndp_moe *moe;
			struct ndp_error err;

			if (ndp_moe_load(&moe, models[i], &o, &err) < 0)
				fail_msg("%s", err.message);
			check_moe(moe, models[i]);
			assert_int_equal(p.calls, p.total);
			ndp_moe_free(moe);
			if (dev)
				assert_int_equal(used_bytes(dev), 0);
			ndp_close(dev);
		}
	}
}

/* "local" is one after the other over the DIMMs, shared experts too. */
static void placements_follow_the_policy(void **state)
{
	struct ndp_device *dev = open_soft("soft:dimms=4,size=16M");
	struct ndp_moe_options o = { .device = dev, .cpu = cpu,
				     .policy = NDP_POLICY_SPLIT, .load_threads = 2 };
	struct ndp_moe *moe;
	struct ndp_error err;
	uint32_t index = 0;

	(void)state;
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), 0);
	for (uint32_t l = 1; l < 3; l++) {
		for (uint32_t e = 0; e < 7; e++, index++) {
			struct ndp_weights_info info;
			uint32_t id = e < 6 ? e : NDP_EXPERT_SHARED;

			assert_int_equal(ndp_weights_info(ndp_moe_weights(moe, l, id), &info), 0);
			assert_true(info.sealed);
			assert_int_equal(info.placement.nr_ranges, 1);
			assert_int_equal(info.placement.ranges[0].dimm, index % 4);
			assert_int_equal(info.cookie, (uint64_t)l << 32 | id);
		}
	}
	ndp_moe_free(moe);
	ndp_close(dev);
}

static void the_model_may_be_closed(void **state)
{
	struct ndp_model *model;
	struct ndp_moe_options o = { .cpu = cpu, .policy = NDP_POLICY_SPLIT, .load_threads = 1 };
	struct ndp_moe *moe;
	struct ndp_error err;
	char dir[100];

	(void)state;
	snprintf(dir, sizeof(dir), "%s/1", top);
	assert_int_equal(ndp_model_open(&model, dir, &err), 0);
	assert_int_equal(ndp_moe_load(&moe, model, &o, &err), 0);
	ndp_model_close(model);
	check_moe(moe, models[1]);
	ndp_moe_free(moe);
}

/* ---- refused before anything is loaded ----------------------------------------------------- */

static int no_progress(void *arg, uint32_t done, uint32_t total)
{
	(void)arg;
	(void)done;
	(void)total;
	fail_msg("something was loaded");
	return 0;
}

static void says_what_does_not_fit(void **state)
{
	struct ndp_device *dev = open_soft("soft:dimms=2,size=1M");
	struct ndp_moe_options o = { .device = dev, .cpu = cpu, .policy = NDP_POLICY_SPLIT,
				     .progress = no_progress, .placement = "dimm:1" };
	struct ndp_moe *moe = NULL;
	struct ndp_error err;

	(void)state;
	/* 14 experts, shared ones of 5 blocks: 2 * (6 * 3 + 5) blocks of 24576 bytes. */
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "DIMM 1"));
	assert_non_null(strstr(err.message, "1130496"));
	assert_non_null(strstr(err.message, "dimm:1"));
	assert_int_equal(used_bytes(dev), 0);
	o.placement = "elsewhere";
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), -EINVAL);
	assert_non_null(strstr(err.message, "elsewhere"));
	o.placement = "a name that is longer than any that a placement can have, and wrong besides";
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), -EINVAL);
	assert_non_null(strstr(err.message, "a name that is longer"));
	ndp_close(dev);

	o = (struct ndp_moe_options){ .cpu = cpu, .policy = NDP_POLICY_SPLIT,
				      .progress = no_progress };
	available = 1130495;
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "need 1130496 bytes"));
	assert_non_null(strstr(err.message, "1130495 are available"));
	assert_null(moe);
	available = 1130496;
	o.progress = NULL;
	assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), 0);
	ndp_moe_free(moe);
	available = 0;
}

/* The kernel has some number for it. */
static void available_memory_is_known(void **state)
{
	uint64_t n = __real_ndpi_host_available();

	(void)state;
	assert_true(n > 1000000 && n < UINT64_MAX);
}

/* ---- in the middle --------------------------------------------------------------------------- */

static void can_be_cancelled_after_any_expert(void **state)
{
	struct ndp_device *dev = open_soft("soft:dimms=2,size=16M");

	(void)state;
	for (uint32_t at = 1; at <= 14; at++) {
		struct progress p = { .cancel_at = at };
		struct ndp_moe_options o = {
			.device = at % 2 ? dev : NULL, .cpu = cpu,
			.policy = NDP_POLICY_SPLIT, .load_threads = 1 + at % 3,
			.progress = progress, .progress_arg = &p,
		};
		struct ndp_moe *moe = NULL;
		struct ndp_error err;

		assert_int_equal(ndp_moe_load(&moe, models[0], &o, &err), -ECANCELED);
		assert_null(moe);
		assert_int_equal(p.calls, at);	/* and not called again */
		assert_non_null(strstr(err.message, "cancelled"));
		assert_int_equal(used_bytes(dev), 0);
	}
	ndp_close(dev);
}

static void without_threads_the_caller_does_it(void **state)
{
	struct ndp_moe_options o = { .cpu = cpu, .policy = NDP_POLICY_SPLIT, .load_threads = 8 };
	struct ndp_moe *moe;
	struct ndp_error err;

	(void)state;
	no_threads = true;
	assert_int_equal(ndp_moe_load(&moe, models[2], &o, &err), 0);
	no_threads = false;
	check_moe(moe, models[2]);
	ndp_moe_free(moe);
}

/* Every allocation in turn: nothing left behind (ASan looks), a sentence each time. */
static void no_memory_at_any_point(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct ndp_device *dev = i ? open_soft("soft:dimms=2,size=16M") : NULL;
		struct ndp_moe_options o = { .device = dev, .cpu = cpu,
				     .policy = NDP_POLICY_SPLIT, .load_threads = 1 };
		struct ndp_moe *moe = NULL;
		struct ndp_error err;
		int r = -ENOMEM, n;

		for (n = 0; r == -ENOMEM && n < 5000; n++) {
			err = (struct ndp_error){ 0 };
			fail_after = n;
			r = ndp_moe_load(&moe, models[1], &o, &err);
			fail_after = -1;
			assert_true(r == 0 || r == -ENOMEM || r == -EIO);
			if (r < 0) {
				assert_null(moe);
				assert_true(err.message[0]);
			}
			if (dev && r < 0)
				assert_int_equal(used_bytes(dev), 0);
		}
		assert_int_equal(r, 0);
		assert_true(n > 10);
		check_moe(moe, models[1]);
		ndp_moe_free(moe);
		ndp_close(dev);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_is_where_it_belongs),
		cmocka_unit_test(placements_follow_the_policy),
		cmocka_unit_test(the_model_may_be_closed),
		cmocka_unit_test(says_what_does_not_fit),
		cmocka_unit_test(available_memory_is_known),
		cmocka_unit_test(can_be_cancelled_after_any_expert),
		cmocka_unit_test(without_threads_the_caller_does_it),
		cmocka_unit_test(no_memory_at_any_point),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
