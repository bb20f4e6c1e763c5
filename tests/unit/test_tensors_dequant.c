// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_tensors_dequant.c - what elements of a tensor are worth, against the definitions
 * written down once more in double precision: every F16, every scale and code of the
 * block formats, every span that blocks can be cut into, at every alignment.
 */
#include <ndp/tensors.h>

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEST_BLOCK = 32 };

/* ---- the definitions --------------------------------------------------- */

/* IEEE 754 binary16. */
static double half(uint16_t h)
{
	int exponent = h >> 10 & 31;
	int fraction = h & 1023;
	double v;

	if (exponent == 31)
		v = fraction ? NAN : INFINITY;
	else if (exponent == 0)
		v = ldexp(fraction, -24);
	else
		v = ldexp(1024 + fraction, exponent - 25);
	return copysign(v, h & 0x8000 ? -1.0 : 1.0);
}

/* OCP MX v1.0: sign, two bits of exponent with bias 1, one of mantissa. */
static double e2m1(int code)
{
	int exponent = code >> 1 & 3;
	int mantissa = code & 1;
	double v = exponent ? ldexp(2 + mantissa, exponent - 2) : mantissa * 0.5;

	return code & 8 ? -v : v;
}

static double e8m0(int e)
{
	return e == 255 ? NAN : ldexp(1.0, e - 127);
}

static uint16_t u16_at(const uint8_t *p)
{
	return p[0] | p[1] << 8;
}

/* Element @i of @data. */
static double value(enum ndp_dtype dtype, const uint8_t *data, size_t i)
{
	const uint8_t *block = data + i / TEST_BLOCK * ndp_dtype_bytes(dtype);
	size_t k = i % TEST_BLOCK;
	float f;

	switch (dtype) {
	case NDP_DTYPE_F16:
		return half(u16_at(data + 2 * i));
	case NDP_DTYPE_BF16:
		return ndp_bf16_to_f32(u16_at(data + 2 * i));
	case NDP_DTYPE_F32:
		memcpy(&f, data + 4 * i, sizeof(f));
		return f;
	case NDP_DTYPE_Q8_0:
		return half(u16_at(block)) * (int8_t)block[2 + k];
	case NDP_DTYPE_Q4_0:
		return half(u16_at(block)) * ((block[2 + k % 16] >> (k < 16 ? 0 : 4) & 15) - 8);
	case NDP_DTYPE_MXFP4:
		return e8m0(block[0]) * e2m1(block[1 + k % 16] >> (k < 16 ? 0 : 4) & 15);
	default:
		abort();
	}
}

static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

/* Elements [first, first + count) are right, and nothing beside them is written. */
static void check_span(const struct ndp_tensor *t, uint64_t first, uint64_t count)
{
	float *f = malloc((count + 2) * sizeof(*f));
	ndp_bf16 *b = malloc((count + 2) * sizeof(*b));

	assert_true(f && b);
	memset(f, 0xa5, (count + 2) * sizeof(*f));
	memset(b, 0xa5, (count + 2) * sizeof(*b));
	assert_int_equal(ndp_tensor_read_f32(t, first, count, f + 1), 0);
	assert_int_equal(ndp_tensor_read_bf16(t, first, count, b + 1), 0);
	for (uint64_t i = 0; i < count; i++) {
		double v = value(t->dtype, t->data, first + i);

		/* Exact: the value is an FP32 one, or too large for any. */
		if (!same((float)v, f[i + 1]) || (isfinite((float)v) && (float)v != v))
			fail_msg("%s element %llu: %a, read %a", ndp_dtype_name(t->dtype),
				 (unsigned long long)(first + i), v, f[i + 1]);
		if (!same(ndp_bf16_to_f32(b[i + 1]), ndp_bf16_to_f32(ndp_bf16_from_f32(v))))
			fail_msg("%s element %llu: %a, read as BF16 %a", ndp_dtype_name(t->dtype),
				 (unsigned long long)(first + i), v, ndp_bf16_to_f32(b[i + 1]));
	}
	assert_memory_equal(&f[0], "\xa5\xa5\xa5\xa5", 4);
	assert_memory_equal(&f[count + 1], "\xa5\xa5\xa5\xa5", 4);
	assert_int_equal(b[0], 0xa5a5);
	assert_int_equal(b[count + 1], 0xa5a5);
	free(f);
	free(b);
}

static struct ndp_tensor tensor(enum ndp_dtype dtype, const void *data, uint64_t elements)
{
	return (struct ndp_tensor){
		.name = "t", .file = "f", .dtype = dtype, .nr_dims = 1, .dims = { elements },
		.elements = elements, .data = data,
		.bytes = elements / ndp_dtype_block(dtype) * ndp_dtype_bytes(dtype),
	};
}

/* ---- tests ------------------------------------------------------------- */

static void reads_every_f16(void **state)
{
	uint16_t *all = calloc(65536, sizeof(*all));
	struct ndp_tensor t = tensor(NDP_DTYPE_F16, all, 65536);

	(void)state;
	assert_non_null(all);
	for (int i = 0; i < 65536; i++)
		all[i] = i;
	check_span(&t, 0, 65536);
	free(all);
}

/* The upper halves are every BF16; the lower ones what decides how they are rounded. */
static void rounds_f32_to_nearest_even(void **state)
{
	static const uint16_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
	enum { N = 65536 * 6 };
	uint32_t *all = calloc(N, sizeof(*all));
	struct ndp_tensor t = tensor(NDP_DTYPE_F32, all, N);

	(void)state;
	assert_non_null(all);
	for (uint32_t i = 0; i < N; i++)
		all[i] = i / 6 << 16 | low[i % 6];
	check_span(&t, 0, N);
	t = tensor(NDP_DTYPE_BF16, all, 2 * N);
	check_span(&t, 0, 2 * N);
	free(all);
}

/* A scale, NaN and infinity among them, with every code there is. */
static void reads_every_scale_and_code(void **state)
{
	uint8_t *data = malloc(65536ull * 34);
	struct ndp_tensor t;

	(void)state;
	assert_non_null(data);
	for (int s = 0; s < 256; s++) {
		uint8_t *block = data + 17 * s;

		block[0] = s;
		for (int i = 0; i < 16; i++)
			block[1 + i] = i | (15 - i) << 4;
	}
	t = tensor(NDP_DTYPE_MXFP4, data, 256 * TEST_BLOCK);
	check_span(&t, 0, t.elements);
	for (int s = 0; s < 65536; s++) {
		uint8_t *block = data + 18 * s;

		memcpy(block, &(uint16_t){ s }, 2);
		for (int i = 0; i < 16; i++)
			block[2 + i] = i | (15 - i) << 4;
	}
	t = tensor(NDP_DTYPE_Q4_0, data, 65536 * TEST_BLOCK);
	check_span(&t, 0, t.elements);
	for (int s = 0; s < 65536; s++) {
		uint8_t *block = data + 34 * s;

		memcpy(block, &(uint16_t){ s }, 2);
		for (int i = 0; i < TEST_BLOCK; i++)
			block[2 + i] = s / 8 + 8 * i;
	}
	t = tensor(NDP_DTYPE_Q8_0, data, 65536 * TEST_BLOCK);
	check_span(&t, 0, t.elements);
	free(data);
}

static void reads_any_span_at_any_alignment(void **state)
{
	static const enum ndp_dtype dtypes[] = { NDP_DTYPE_F32, NDP_DTYPE_F16, NDP_DTYPE_BF16,
						 NDP_DTYPE_Q8_0, NDP_DTYPE_Q4_0, NDP_DTYPE_MXFP4 };
	enum { ELEMENTS = 4 * TEST_BLOCK };

	(void)state;
	srand(1);
	for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
		size_t bytes = ELEMENTS / ndp_dtype_block(dtypes[d]) * ndp_dtype_bytes(dtypes[d]);

		for (size_t shift = 0; shift < 4; shift++) {
			/* The last byte of the data is the last of the allocation. */
			uint8_t *data = calloc(1, bytes + shift);
			struct ndp_tensor t = tensor(dtypes[d], data + shift, ELEMENTS);

			assert_non_null(data);
			for (size_t i = 0; i < bytes + shift; i++)
				data[i] = rand() >> 7;
			for (uint64_t first = 0; first <= ELEMENTS; first++)
				for (uint64_t n = 0; n <= ELEMENTS - first; n += shift + 1)
					check_span(&t, first, n);
			free(data);
		}
	}
}

static void refuses_what_is_not_there(void **state)
{
	struct ndp_tensor t = tensor(NDP_DTYPE_Q8_0, "", 64);
	float f = 42;
	ndp_bf16 b = 42;

	(void)state;
	assert_int_equal(ndp_tensor_read_f32(&t, 65, 0, &f), -ERANGE);
	assert_int_equal(ndp_tensor_read_f32(&t, 64, 1, &f), -ERANGE);
	assert_int_equal(ndp_tensor_read_f32(&t, 1, UINT64_MAX, &f), -ERANGE);
	assert_int_equal(ndp_tensor_read_bf16(&t, UINT64_MAX, 2, &b), -ERANGE);
	assert_int_equal(ndp_tensor_read_f32(&t, 64, 0, &f), 0);
	t.dtype = NDP_DTYPE_I32;
	assert_int_equal(ndp_tensor_read_f32(&t, 0, 1, &f), -ENOTSUP);
	assert_int_equal(ndp_tensor_read_bf16(&t, 0, 1, &b), -ENOTSUP);
	t.dtype = NDP_DTYPE_F64;
	assert_int_equal(ndp_tensor_read_f32(&t, 0, 1, &f), -ENOTSUP);
	assert_true(f == 42 && b == 42);
}

static void knows_no_dtype_beyond_its_list(void **state)
{
	(void)state;
	assert_string_equal(ndp_dtype_name((enum ndp_dtype)1000), "?");
	assert_int_equal(ndp_dtype_bytes((enum ndp_dtype)1000), 0);
	assert_int_equal(ndp_dtype_block((enum ndp_dtype)1000), 0);
	assert_false(ndp_dtype_readable((enum ndp_dtype)1000));
	for (int d = 0; d <= NDP_DTYPE_NVFP4; d++) {
		assert_string_not_equal(ndp_dtype_name(d), "?");
		assert_true(ndp_dtype_bytes(d) > 0 && ndp_dtype_block(d) > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_every_f16),
		cmocka_unit_test(rounds_f32_to_nearest_even),
		cmocka_unit_test(reads_every_scale_and_code),
		cmocka_unit_test(reads_any_span_at_any_alignment),
		cmocka_unit_test(refuses_what_is_not_there),
		cmocka_unit_test(knows_no_dtype_beyond_its_list),
	};

	return cmocka_run_group_tests_name("tensors_dequant", tests, NULL, NULL);
}
