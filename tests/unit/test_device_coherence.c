/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_device_coherence.c - DIMMs that do not see CPU caches: everything that
 * the CPU wrote is written back before a command can read it, and everything
 * that a DIMM may have written is invalidated before the CPU reads it.
 *
 * The linker puts recorders in front of the two functions (see device.mk), on an
 * in-process device that is declared not coherent.
 */
#include "device_ref.h"

#include <errno.h>
#include <sys/mman.h>

#include "../../libndp/device/internal.h"

enum { H = 64, LDX = 128, LDY = 256 };

/* ---- recorders ------------------------------------------------------- */

struct range {
	bool invalidate;
	const char *p;
	size_t bytes;
};

static struct range log_[4096];
static size_t nr_log;

void __real_ndpi_cache_write_back(const void *p, size_t bytes);
void __real_ndpi_cache_invalidate(const void *p, size_t bytes);
void __wrap_ndpi_cache_write_back(const void *p, size_t bytes);
void __wrap_ndpi_cache_invalidate(const void *p, size_t bytes);

static void record(bool invalidate, const void *p, size_t bytes)
{
	assert_true(nr_log < sizeof(log_) / sizeof(log_[0]));
	log_[nr_log++] = (struct range){ invalidate, p, bytes };
}

void __wrap_ndpi_cache_write_back(const void *p, size_t bytes)
{
	record(false, p, bytes);
	__real_ndpi_cache_write_back(p, bytes);
}

void __wrap_ndpi_cache_invalidate(const void *p, size_t bytes)
{
	record(true, p, bytes);
	__real_ndpi_cache_invalidate(p, bytes);
}

/* Was every byte of [p, p + bytes) recorded? */
static bool covered(bool invalidate, const void *p, size_t bytes)
{
	for (const char *b = p; b < (const char *)p + bytes; b++) {
		bool found = false;

		for (size_t i = 0; i < nr_log && !found; i++)
			found = log_[i].invalidate == invalidate && b >= log_[i].p &&
				b < log_[i].p + log_[i].bytes;
		if (!found)
			return false;
	}
	return true;
}

static char *at(struct ndp_io *io, uint32_t dimm, size_t off)
{
	return (char *)ndp_io_ptr(io, dimm) + off;
}

static int setup(void **state)
{
	struct ndp_device *dev = ref_open("soft:dimms=3,size=4M");

	dev->coherent = false;
	*state = dev;
	nr_log = 0;
	return 0;
}

static int teardown(void **state)
{
	ndp_close(*state);
	return 0;
}

/* ---- tests ----------------------------------------------------------- */

static void what_is_written_is_written_back(void **state)
{
	struct ndp_io *io = ref_io(*state, 0, 4096);
	char data[300] = { 1 };

	assert_int_equal(ndp_io_write(io, 5, 100, data, 300), 0);
	assert_int_equal(nr_log, 2);
	assert_true(covered(false, at(io, 0, 100), 300));
	assert_true(covered(false, at(io, 2, 100), 300));
	nr_log = 0;
	assert_int_equal(ndp_io_flush(io, 6, 64, 128), 0);
	assert_int_equal(nr_log, 2);
	assert_true(covered(false, at(io, 1, 64), 128));
	assert_true(covered(false, at(io, 2, 64), 128));
	ndp_io_free(io);
}

static void what_is_read_is_invalidated(void **state)
{
	struct ndp_io *io = ref_io(*state, 0, 4096);
	char data[300];
	float f[6];

	assert_int_equal(ndp_io_read(io, 1, 100, data, 300), 0);
	assert_int_equal(nr_log, 1);
	assert_true(covered(true, at(io, 1, 100), 300));
	nr_log = 0;
	assert_int_equal(ndp_io_invalidate(io, 5, 64, 128), 0);
	assert_true(covered(true, at(io, 0, 64), 128));
	assert_true(covered(true, at(io, 2, 64), 128));
	nr_log = 0;
	assert_int_equal(ndp_io_reduce(io, 5, 64, 256, f, 3, 2, 3), 0);
	for (uint32_t d = 0; d < 3; d += 2) {
		assert_true(covered(true, at(io, d, 64), 12));
		assert_true(covered(true, at(io, d, 64 + 256), 12));
	}
	assert_false(covered(true, at(io, 1, 64), 1));
	ndp_io_free(io);
}

static void a_coherent_device_needs_none_of_it(void **state)
{
	struct ndp_device *dev = *state;
	struct ndp_io *io;
	char data[300] = { 1 };

	dev->coherent = true;
	io = ref_io(dev, 0, 4096);
	assert_int_equal(ndp_io_write(io, 7, 0, data, 300), 0);
	assert_int_equal(ndp_io_read(io, 1, 0, data, 300), 0);
	assert_int_equal(ndp_io_flush(io, 7, 0, 300), 0);
	assert_int_equal(ndp_io_invalidate(io, 7, 0, 300), 0);
	assert_int_equal(nr_log, 0);
	ndp_io_free(io);
}

static void a_retry_reads_fresh_and_writes_back(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_expert e = ref_expert_new(H, H, 32, 1);
	struct ndp_io *x = ref_io(dev, 0, 16 * LDX + 64), *y = ref_io(dev, 0, 2 * LDY);
	struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .x = x, .y = y, .x_mask = 2, .tokens = 2,
			     .x_rows = 16, .rows_off = 16 * LDX, .ldx = LDX, .ldy = LDY };
	uint32_t list[2] = { 3, 11 };
	ndp_bf16 ones[H];
	struct ndp_placement p;
	struct ndp_result res;

	for (int i = 0; i < H; i++)
		ones[i] = 0x3f80;
	ndp_placement_local(&p, 1, 2);
	c.weights = ref_place_expert(dev, &e, &p);
	assert_int_equal(ndp_io_write(x, 2, 16 * LDX, list, sizeof(list)), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ndp_io_write(x, 2, list[i] * LDX, ones, 2 * H), 0);
	nr_log = 0;
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.retries, 1);
	assert_true(covered(true, at(x, 1, 16 * LDX), 8));
	assert_true(covered(false, at(x, 2, 16 * LDX), 8));
	for (int i = 0; i < 2; i++) {
		assert_true(covered(true, at(x, 1, list[i] * LDX), 2 * H));
		assert_true(covered(false, at(x, 2, list[i] * LDX), 2 * H));
	}
	/* What is there is not written again. */
	nr_log = 0;
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.retries, 1);
	for (int i = 0; i < 2; i++) {
		assert_true(covered(true, at(x, 2, list[i] * LDX), 2 * H));
		assert_false(covered(false, at(x, 2, list[i] * LDX), 2 * H));
	}
	ndp_weights_free(c.weights);
	ndp_io_free(x);
	ndp_io_free(y);
	ref_expert_free(&e);
}

static void the_zeroes_of_a_gemv_are_written_back(void **state)
{
	struct ndp_device *dev = *state;
	struct ref_matrix m = ref_matrix_new(64, H, 1);
	struct ndp_io *x = ref_io(dev, 0, LDX), *y = ref_io(dev, 0, 2 * LDY);
	struct ndp_cmd c = { .op = NDP_OP_GEMV_MATRIX, .x = x, .y = y, .x_mask = 5, .tokens = 1,
			     .ldx = LDX, .ldy = LDY };
	struct ndp_placement p;
	struct ndp_result res;

	ndp_placement_local(&p, 2, 1);
	assert_int_equal(ndp_matrix_create(&c.weights, dev, &m.shape, &p, 0, 0, NULL), 0);
	assert_int_equal(ndp_weights_seal(c.weights), 0);
	assert_int_equal(ndp_run(dev, &c, &res), 0);
	assert_int_equal(res.dimm_mask, 2);
	for (uint32_t d = 0; d < 3; d++)
		assert_true(covered(false, at(y, d, 0), 256));
	ndp_weights_free(c.weights);
	ndp_io_free(x);
	ndp_io_free(y);
	free(m.m);
}

/* The instructions touch the lines of the range, none before and none after. */
static void lines_outside_of_the_range_are_left_alone(void **state)
{
	char *p = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	UNUSED_STATE;
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(mprotect(p + 4096, 4096, PROT_READ | PROT_WRITE), 0);
	memset(p + 4096, 7, 4096);
	__real_ndpi_cache_write_back(p + 4096, 4096);
	__real_ndpi_cache_invalidate(p + 4096, 4096);
	__real_ndpi_cache_write_back(p + 8191, 1);
	__real_ndpi_cache_invalidate(p + 8191, 1);
	__real_ndpi_cache_write_back(p + 8192, 0);
	__real_ndpi_cache_invalidate(p + 8192, 0);
	for (int i = 0; i < 4096; i++)
		assert_int_equal(p[4096 + i], 7);
	munmap(p, 3 * 4096);
}

int main(void)
{
#define ON_DEVICE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		ON_DEVICE(what_is_written_is_written_back),
		ON_DEVICE(what_is_read_is_invalidated),
		ON_DEVICE(a_coherent_device_needs_none_of_it),
		ON_DEVICE(a_retry_reads_fresh_and_writes_back),
		ON_DEVICE(the_zeroes_of_a_gemv_are_written_back),
		cmocka_unit_test(lines_outside_of_the_range_are_left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
