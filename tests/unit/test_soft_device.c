/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_soft_device.c - opening the in-process device, its memory, its weights and
 * buffers, and the arguments that are refused, each with its errno.
 */
#include "device_ref.h"

#include <errno.h>

enum { H = 64, LDX = 128, LDY = 256 };

static int setup(void **state)
{
	*state = ref_open("soft:dimms=3,size=16M");
	return 0;
}

static int teardown(void **state)
{
	ndp_close(*state);
	return 0;
}

/* ---- options --------------------------------------------------------- */

static void options_say_what_is_modelled(void **state)
{
	struct ndp_device *dev = ref_open(
		"soft:dimms=32,size=1048576,internal-mbps=7,gflops=8,overhead-ns=9,"
		"link-mbps=10,link-latency-ns=0,timing=off,isa=scalar");
	struct ndp_device_info info;
	struct ndp_dimm_info d;

	UNUSED_STATE;
	assert_int_equal(ndp_device_info(dev, &info), 0);
	assert_string_equal(info.name, "soft");
	assert_int_equal(strlen(info.domain), 36);
	assert_int_equal(info.dimm_mask, 0xffffffff);
	assert_int_equal(info.max_tokens, 1024);
	assert_true(info.coherent);
	assert_true(info.link);
	assert_int_equal(ndp_dimm_info(dev, 31, &d), 0);
	assert_int_equal(d.state, NDP_DIMM_READY);
	assert_int_equal(d.link_peers, 0x7fffffff);
	assert_int_equal(d.mem_bytes, (1 << 20) - (1 << 16)); /* 1/16 is for migrations */
	assert_int_equal(d.free_bytes, d.mem_bytes);
	assert_int_equal(d.largest_free_bytes, d.mem_bytes);
	assert_int_equal(d.internal_mbps, 7);
	assert_int_equal(d.gflops, 8);
	assert_int_equal(d.overhead_ns, 9);
	assert_int_equal(d.link_mbps, 10);
	assert_int_equal(d.link_latency_ns, 0);
	assert_int_equal(ndp_dimm_info(dev, 32, &d), -ENXIO);
	ndp_close(dev);

	dev = ref_open("soft:");
	assert_int_equal(ndp_device_info(dev, &info), 0);
	assert_int_equal(info.dimm_mask, 15);
	assert_int_equal(ndp_dimm_info(dev, 0, &d), 0);
	assert_int_equal(d.mem_bytes, 240 << 20);
	assert_int_equal(d.internal_mbps, 153600); /* docs/hardware.md */
	assert_int_equal(d.gflops, 256);
	assert_int_equal(d.link_mbps, 25000);
	assert_int_equal(ndp_dimm_info(dev, 4, &d), 0);
	assert_int_equal(d.state, NDP_DIMM_ABSENT);
	assert_int_equal(d.mem_bytes, 0);
	ndp_close(dev);
	ndp_close(ref_open("soft"));
	ndp_close(ref_open("soft:size=1G,dimms=1"));
	ndp_close(ref_open("soft:size=2m,dimms=1"));
}

static void wrong_options_are_explained(void **state)
{
	static const struct { const char *spec, *says; } wrong[] = {
		{ "soft:dimms=0", "dimms=0: wanted a number from 1 to 32" },
		{ "soft:dimms=33", "dimms=33: wanted a number from 1 to 32" },
		{ "soft:dimms=", "dimms=: wanted a number" },
		{ "soft:dimms=4x", "dimms=4x" },
		{ "soft:dimms=-1", "dimms=-1" },
		{ "soft:dimms", "\"dimms\": wanted KEY=VALUE" },
		{ "soft:dimms=4,", "\"\": wanted KEY=VALUE" },
		{ "soft:,dimms=4", "\"\": wanted KEY=VALUE" },
		{ "soft:size=1", "size=1: wanted bytes of a DIMM" },
		{ "soft:size=1000000", "multiple of 4K" },
		{ "soft:size=5T", "size=5T" },
		{ "soft:size=256MB", "size=256MB" },
		{ "soft:size=5000G", "to 4096G" },
		{ "soft:size=18446744073709551616", "size=18446744073709551616" },
		{ "soft:timing=yes", "timing=yes: wanted on or off" },
		{ "soft:isa=sse", "isa=sse: wanted scalar, avx2 or avx512" },
		{ "soft:gflops=0", "gflops=0: wanted a number from 1" },
		{ "soft:link-mbps=4294967296", "to 4294967295" },
		{ "soft:speed=9", "option \"speed\" is not known" },
	};
	struct ndp_device *dev;
	struct ndp_error err;

	UNUSED_STATE;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(ndp_open(&dev, wrong[i].spec, &err), -EINVAL);
		assert_int_equal(err.code, -EINVAL);
		assert_null(dev);
		if (!strstr(err.message, wrong[i].says))
			fail_msg("%s: %s", wrong[i].spec, err.message);
		assert_int_equal(ndp_open(&dev, wrong[i].spec, NULL), -EINVAL);
	}
}

static void an_isa_that_is_not_there_is_refused(void **state)
{
	bool has = __builtin_cpu_supports("avx512bf16");
	struct ndp_device *dev;
	struct ndp_error err;
	int r = ndp_open(&dev, "soft:isa=avx512", &err);

	UNUSED_STATE;
	assert_int_equal(r, has ? 0 : -EOPNOTSUPP);
	if (!has)
		assert_non_null(strstr(err.message, "its best is"));
	ndp_close(dev);
}

/* ---- memory ---------------------------------------------------------- */

static void a_full_dimm_says_what_it_has(void **state)
{
	struct ndp_expert_shape s = { 1024, 1024,
				      32 * 81 }; /* 81 blocks of 192 KiB: 15.2 of 15 MiB */
	struct ndp_device *dev = *state;
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_error err;
	struct ndp_io *io;

	ndp_placement_local(&p, 81, 1);
	assert_int_equal(ndp_expert_create(&w, dev, &s, &p, 0, 0, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "DIMM 1"));
	assert_non_null(strstr(err.message, "15728640"));
	assert_null(w);
	s.neurons = 32 * 80;
	ndp_placement_local(&p, 80, 1);
	assert_int_equal(ndp_expert_create(&w, dev, &s, &p, 0, 0, &err), 0);
	assert_int_equal(ndp_io_create(&io, dev, 7, 1, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "mask 0x7"));
	assert_null(io);
	assert_int_equal(ref_free_bytes(dev), 2 * 15 << 20); /* nothing of it stayed */
	ndp_weights_free(w);
	assert_int_equal(ref_free_bytes(dev), 3 * 15 << 20);
}

static void memory_comes_zeroed_and_goes_back(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_device_info info;
	uint64_t all = ref_free_bytes(dev);
	struct ndp_io *io[8];

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 8; i++) {
			io[i] = ref_io(dev, 5, 1 << 20 >> i);
			for (uint32_t d = 0; d < 3; d += 2)
				for (size_t b = 0; b < 1u << 20 >> i; b++)
					assert_int_equal(((uint8_t *)ndp_io_ptr(io[i], d))[b], 0);
			assert_null(ndp_io_ptr(io[i], 1));
			assert_null(ndp_io_ptr(io[i], 99));
			ref_poison(io[i], 5, 1 << 20 >> i);
		}
		assert_int_equal(ndp_device_info(dev, &info), 0);
		assert_int_equal(info.used_bytes, 2 * ((1 << 21) - (1 << 13)));
		for (int i = 0; i < 8; i++)
			ndp_io_free(io[(i * 3 + round) % 8]);
	}
	assert_int_equal(ref_free_bytes(dev), all);
	assert_int_equal(ndp_device_info(dev, &info), 0);
	assert_int_equal(info.used_bytes, 0);
}

/* The pieces of a DIMM, freed in any order, become one again. */
static void freed_pieces_join(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_io *io[60] = { NULL };
	struct ndp_dimm_info d;
	uint64_t seed = 9;

	for (int i = 0; i < 5000; i++) {
		size_t k = ref_next(&seed) % 60;

		ndp_io_free(io[k]);
		io[k] = NULL;
		ndp_io_create(&io[k], dev, 2, 1 + ref_next(&seed) % 400000, NULL);
		if (io[k])
			*(uint64_t *)ndp_io_ptr(io[k], 1) = seed;
	}
	for (int i = 0; i < 60; i++)
		ndp_io_free(io[i]);
	assert_int_equal(ndp_dimm_info(dev, 1, &d), 0);
	assert_int_equal(d.free_bytes, d.mem_bytes);
	assert_int_equal(d.largest_free_bytes, d.mem_bytes);
}

static size_t lines_of(const char *path)
{
	FILE *f = fopen(path, "r");
	size_t n = 0;
	int c;

	assert_non_null(f);
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static void use_everything_once(void)
{
	struct ndp_device *dev = ref_open("soft:dimms=4,size=16M");
	struct ref_expert e = ref_expert_new(H, H, 256, 1);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, LDY);
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_result res;
	struct ndp_queue *q;

	assert_int_equal(ndp_placement_spread(&p, 8, 15), 0);
	w = ref_place_expert(dev, &e, &p);
	assert_non_null(ndp_weights_map(w));
	ndp_placement_local(&p, 8, 2);
	assert_int_equal(ndp_weights_migrate(w, &p, NULL, NULL), 0);
	assert_int_equal(ndp_queue_create(&q, dev, 4, NULL), 0);
	assert_int_equal(ndp_queue_push(q, &(struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT,
							      .weights = w,
							      .x = x,
							      .y = y,
							      .x_mask = 15,
							      .tokens = 1,
							      .ldx = LDX,
							      .ldy = LDY }),
			 0);
	assert_int_equal(ndp_queue_wait(q, &res, 1, 1), 1);
	/* The device goes first: it lives until the last of its objects is gone. */
	ndp_close(dev);
	assert_int_equal(ndp_run(dev,
				 &(struct ndp_cmd){ .op = NDP_OP_FFN_EXPERT,
						    .weights = w,
						    .x = x,
						    .y = y,
						    .x_mask = 15,
						    .tokens = 1,
						    .ldx = LDX,
						    .ldy = LDY },
				 &res),
			 0);
	ndp_queue_free(q);
	ndp_weights_free(w);
	ndp_io_free(x);
	ndp_io_free(y);
	ref_expert_free(&e);
}

static size_t threads_at_start;

static void nothing_is_left_open_or_mapped(void **state)
{
	size_t fds, maps;

	UNUSED_STATE;
	use_everything_once();
	fds = ref_entries("/proc/self/fd");
	maps = lines_of("/proc/self/maps");
	for (int i = 0; i < 50; i++)
		use_everything_once();
	ref_assert_entries("/proc/self/fd", fds);
	/* thread stacks and malloc arenas come and go: 50 rounds leak 50 or none */
	assert_in_range(lines_of("/proc/self/maps"), 0, maps + 25);
	ref_assert_entries("/proc/self/task", threads_at_start);
}

static void freeing_nothing_is_allowed(void **state)
{
	UNUSED_STATE;
	ndp_close(NULL);
	ndp_weights_free(NULL);
	ndp_io_free(NULL);
	ndp_queue_free(NULL);
	ndp_host_free(NULL, 1);
}

/* ---- buffers --------------------------------------------------------- */

static void buffers_refuse_what_is_outside(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_io *io = ref_io(dev, 5, 1000);
	struct ndp_error err;
	struct ndp_io *none;
	char buf[1001] = { 0 };
	float f[4];

	assert_int_equal(ndp_io_write(io, 5, 0, buf, 1000), 0);
	assert_int_equal(ndp_io_write(io, 0, 0, buf, 1000), 0);
	assert_int_equal(ndp_io_write(io, 5, 0, buf, 1001), -EINVAL);
	assert_int_equal(ndp_io_write(io, 5, 1000, buf, 1), -EINVAL);
	assert_int_equal(ndp_io_write(io, 5, SIZE_MAX, buf, 2), -EINVAL);
	assert_int_equal(ndp_io_write(io, 7, 0, buf, 1), -ENXIO);
	assert_int_equal(ndp_io_read(io, 0, 1000, buf, 0), 0);
	assert_int_equal(ndp_io_read(io, 0, 999, buf, 2), -EINVAL);
	assert_int_equal(ndp_io_read(io, 1, 0, buf, 1), -ENXIO);
	assert_int_equal(ndp_io_read(io, 77, 0, buf, 1), -ENXIO);
	assert_int_equal(ndp_io_flush(io, 5, 1, 1000), -EINVAL);
	assert_int_equal(ndp_io_invalidate(io, 2, 0, 1), -ENXIO);
	assert_int_equal(ndp_io_reduce(io, 5, 0, 16, f, 4, 1, 4), 0);
	assert_int_equal(ndp_io_reduce(io, 5, 2, 16, f, 4, 1, 4), -EINVAL);
	assert_int_equal(ndp_io_reduce(io, 5, 0, 12, f, 4, 2, 4), -EINVAL);
	assert_int_equal(ndp_io_reduce(io, 5, 992, 16, f, 4, 1, 4), -EINVAL);
	assert_int_equal(ndp_io_reduce(io, 5, 0, SIZE_MAX - 3, f, 4, 3, 4), -EINVAL);
	assert_int_equal(ndp_io_reduce(io, 8, 0, 16, f, 4, 1, 4), -ENXIO);
	assert_int_equal(ndp_io_create(&none, dev, 8, 10, &err), -ENODEV);
	assert_non_null(strstr(err.message, "0x8"));
	assert_int_equal(ndp_io_create(&none, dev, 1, 0, &err), -EINVAL);
	assert_non_null(strstr(err.message, "0 bytes"));
	ndp_io_free(io);
}

static void reduce_adds_in_ascending_order_of_dimms(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_io *io = ref_io(dev, 0, 4096);
	float part[3][2] = { { 1e8f, 1 }, { 1, 2 }, { -1e8f, 3 } }, out[6];

	for (uint32_t d = 0; d < 3; d++)
		for (uint32_t t = 0; t < 2; t++)
			assert_int_equal(ndp_io_write(io, 1U << d, 64 + t * 128, part[d], 8), 0);
	for (int i = 0; i < 6; i++)
		out[i] = -7;
	assert_int_equal(ndp_io_reduce(io, 7, 64, 128, out, 3, 2, 2), 0);
	for (int t = 0; t < 2; t++) {
		assert_true(out[3 * t] == 0); /* 1e8 + 1 rounds to 1e8; another order gives 1 */
		assert_true(out[3 * t + 1] == 6);
		assert_true(out[3 * t + 2] == -7);
	}
	assert_int_equal(ndp_io_reduce(io, 0, 64, 128, out, 3, 1, 2), 0);
	assert_true(out[0] == 0 && out[1] == 0);
	ndp_io_free(io);
}

static void host_memory_is_zeroed_and_aligned(void **state)
{
	uint8_t *p = ndp_host_alloc(100001, -1), *q = ndp_host_alloc(64, 0);

	UNUSED_STATE;
	assert_non_null(p);
	assert_non_null(q);
	assert_int_equal((uintptr_t)p % 64, 0);
	assert_int_equal((uintptr_t)q % 64, 0);
	for (int i = 0; i < 100001; i++)
		assert_int_equal(p[i], 0);
	p[100000] = q[63] = 1;
	ndp_host_free(p, 100001);
	ndp_host_free(q, 64);
	errno = 0;
	assert_null(ndp_host_alloc(0, -1));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(ndp_host_alloc(64, -2));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(ndp_host_alloc(64, 1023)); /* no machine of ours has that one */
	assert_int_equal(errno, EINVAL);
}

/* ---- weights --------------------------------------------------------- */

static void wrong_shapes_are_explained(void **state)
{
	static const struct { struct ndp_expert_shape s; const char *says; } wrong[] = {
		{ { 0, H, 32 }, "h_in is 0: wanted 1 to 65472" },
		{ { 65473, H, 32 }, "h_in is 65473" },
		{ { H, 0, 32 }, "h_out is 0" },
		{ { H, 65473, 32 }, "h_out is 65473: wanted 1 to 65472" },
		{ { H, H, 0 }, "0 neurons" },
	};
	struct ndp_device *dev = *state;
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_error err;

	ndp_placement_local(&p, 1, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(ndp_expert_create(&w, dev, &wrong[i].s, &p, 0, 0, &err), -EINVAL);
		if (!strstr(err.message, wrong[i].says))
			fail_msg("%zu: %s", i, err.message);
		assert_null(w);
	}
	assert_int_equal(ndp_matrix_create(&w, dev, &(struct ndp_matrix_shape){ 0, 1 }, &p, 0, 0,
					   &err),
			 -EINVAL);
	assert_non_null(strstr(err.message, "cols is 0"));
	assert_int_equal(ndp_matrix_create(&w, dev, &(struct ndp_matrix_shape){ 1, 0 }, &p, 0, 0,
					   &err),
			 -EINVAL);
	assert_non_null(strstr(err.message, "0 rows"));
	assert_int_equal(ndp_expert_create(&w, dev, &(struct ndp_expert_shape){ H, H, 33 }, &p, 0,
					   0, &err),
			 -EINVAL);
	assert_non_null(strstr(err.message, "the object has 2"));
	assert_int_equal(ndp_expert_create(&w, dev, &(struct ndp_expert_shape){ H, H, 32 }, &p, 2,
					   0, &err),
			 -EPERM);
	assert_non_null(strstr(err.message, "allowed is the mask 0x2"));
	ndp_placement_local(&p, 1, 3);
	assert_int_equal(ndp_expert_create(&w, dev, &(struct ndp_expert_shape){ H, H, 32 }, &p, 0,
					   0, &err),
			 -ENODEV);
	assert_non_null(strstr(err.message, "0x8"));
	ndp_placement_local(&p, 1, 0);
	assert_int_equal(ndp_expert_create(&w, dev, &(struct ndp_expert_shape){ H, H, 32 }, &p, 9,
					   0, &err),
			 -ENODEV);
}

static void filling_is_checked(void **state)
{
	struct ref_expert e = ref_expert_new(H, H, 64, 1);
	struct ref_matrix m = ref_matrix_new(64, H, 1);
	struct ndp_weights *w, *mat;
	struct ndp_placement p;
	char block[192 * H];

	memset(block, 0, sizeof(block));
	ndp_placement_local(&p, 2, 0);
	assert_int_equal(ndp_expert_create(&w, *state, &e.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_matrix_create(&mat, *state, &m.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_write(w, 2, 1, block), -EINVAL);
	assert_int_equal(ndp_weights_write(w, 1, 2, block), -EINVAL);
	assert_int_equal(ndp_weights_write(w, UINT32_MAX, 2, block), -EINVAL);
	assert_int_equal(ndp_weights_write(w, 1, 1, block), 0);
	assert_int_equal(ndp_weights_write(w, 2, 0, block), 0);
	assert_int_equal(ndp_matrix_load(w, m.m, m.ld), -EBADF);
	assert_int_equal(ndp_expert_load(mat, e.gate, e.up, e.ld_in, e.down, e.ld_down), -EBADF);
	assert_int_equal(ndp_expert_load(w, e.gate, e.up, H - 1, e.down, e.ld_down), -EINVAL);
	assert_int_equal(ndp_expert_load(w, e.gate, e.up, e.ld_in, e.down, 63), -EINVAL);
	assert_int_equal(ndp_matrix_load(mat, m.m, H - 1), -EINVAL);
	assert_int_equal(ndp_weights_seal(w), 0);
	assert_int_equal(ndp_weights_seal(w), 0);
	assert_int_equal(ndp_expert_load(w, e.gate, e.up, e.ld_in, e.down, e.ld_down), -EBADF);
	ndp_weights_free(w);
	ndp_weights_free(mat);
	free(m.m);
	ref_expert_free(&e);
}

int main(void)
{
#define ON_DEVICE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_say_what_is_modelled),
		cmocka_unit_test(wrong_options_are_explained),
		cmocka_unit_test(an_isa_that_is_not_there_is_refused),
		ON_DEVICE(a_full_dimm_says_what_it_has),
		ON_DEVICE(memory_comes_zeroed_and_goes_back),
		ON_DEVICE(freed_pieces_join),
		cmocka_unit_test(nothing_is_left_open_or_mapped),
		cmocka_unit_test(freeing_nothing_is_allowed),
		ON_DEVICE(buffers_refuse_what_is_outside),
		ON_DEVICE(reduce_adds_in_ascending_order_of_dimms),
		cmocka_unit_test(host_memory_is_zeroed_and_aligned),
		ON_DEVICE(wrong_shapes_are_explained),
		ON_DEVICE(filling_is_checked),
	};

	/* A first device, so that a sanitizer's own thread counts from the start. */
	ndp_close(ref_open("soft:dimms=1,size=1M"));
	usleep(200000);
	threads_at_start = ref_entries("/proc/self/task");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
