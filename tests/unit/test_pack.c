/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_pack.c - the layout of weights, element by element against the formula
 * of docs/hardware.md, and BF16.
 */
#include "../../libndp/device/pack-internal.h"
#include "device_ref.h"

static size_t up64(size_t n)
{
	return (n + 63) / 64 * 64;
}

static ndp_bf16 get(const void *base, size_t byte, size_t element)
{
	ndp_bf16 v;

	memcpy(&v, (const char *)base + byte + 2 * element, sizeof(v));
	return v;
}

static void blocks_follow_the_formula(void **state)
{
	static const struct ndp_expert_shape shapes[] = {
		{ 64, 64, 32 },	 { 100, 100, 36 }, { 1, 1, 1 },
		{ 65, 129, 63 }, { 127, 64, 64 },  { 192, 33, 95 },
	};

	UNUSED_STATE;
	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		const struct ndp_expert_shape *sh = &shapes[s];
		struct ref_expert e = ref_expert_new(sh->h_in, sh->h_out, sh->neurons, s + 1);
		size_t in = up64(sh->h_in), out = up64(sh->h_out),
		       bytes = ndp_expert_block_bytes(sh);
		unsigned char *block = malloc(bytes + 1);

		assert_int_equal(bytes, 128 * in + 64 * out);
		assert_int_equal(bytes % 4096, 0);
		assert_int_equal(ndp_expert_blocks(sh), (sh->neurons + 31) / 32);
		for (uint32_t b = 0; b < ndp_expert_blocks(sh); b++) {
			memset(block, 0xee, bytes + 1);
			ndp_expert_pack_block(block, sh, b, e.gate, e.up, e.ld_in, e.down,
					      e.ld_down);
			assert_int_equal(block[bytes], 0xee);
			for (uint32_t m = 0; m < 32; m++) {
				uint32_t n = 32 * b + m;

				for (uint32_t k = 0; k < in; k++) {
					size_t i = ((k >> 1) * 32 + m) * 2 + (k & 1);
					bool there = n < sh->neurons && k < sh->h_in;

					assert_int_equal(get(block, 0, i),
							 there ? e.gate[n * e.ld_in + k] : 0);
					assert_int_equal(get(block, 64 * in, i),
							 there ? e.up[n * e.ld_in + k] : 0);
				}
				for (uint32_t j = 0; j < out; j++) {
					size_t i = (j >> 5) * 1024 +
						   ((m >> 1) * 32 + (j & 31)) * 2 + (m & 1);
					bool there = n < sh->neurons && j < sh->h_out;

					assert_int_equal(get(block, 128 * in, i),
							 there ? e.down[j * e.ld_down + n] : 0);
				}
			}
		}
		free(block);
		ref_expert_free(&e);
	}
}

/* Element by element again, as both have other paths for whole tiles. */
static void check_blocks(const struct ref_expert *e, uint32_t first, uint32_t n, const char *packed)
{
	size_t bytes = ndp_expert_block_bytes(&e->shape), in = up64(e->shape.h_in);

	for (uint32_t b = first; b < first + n; b++, packed += bytes) {
		for (uint32_t m = 0; m < 32; m++) {
			uint32_t row = 32 * b + m;
			bool there = row < e->shape.neurons;

			for (uint32_t k = 0; k < in; k++) {
				size_t i = ((k >> 1) * 32 + m) * 2 + (k & 1);
				bool inside = there && k < e->shape.h_in;

				assert_int_equal(get(packed, 0, i),
						 inside ? e->gate[row * e->ld_in + k] : 0);
				assert_int_equal(get(packed, 64 * in, i),
						 inside ? e->up[row * e->ld_in + k] : 0);
			}
			for (uint32_t j = 0; j < up64(e->shape.h_out); j++) {
				size_t i =
					(j >> 5) * 1024 + ((m >> 1) * 32 + (j & 31)) * 2 + (m & 1);

				assert_int_equal(get(packed, 128 * in, i),
						 there && j < e->shape.h_out ?
						 e->down[j * e->ld_down + row] : 0);
			}
		}
	}
}

/* From a few bytes to what goes past the caches, at any alignment, in every instruction set. */
static void several_blocks_are_the_same_as_one_by_one(void **state)
{
	static const struct {
		struct ndp_expert_shape shape;
		uint32_t first, n;
		size_t offset;
	} cases[] = {
		{ { 64, 64, 640 }, 0, 20, 0 },	  { { 100, 70, 1000 }, 3, 29, 0 },
		{ { 512, 512, 544 }, 0, 17, 0 },  { { 512, 512, 544 }, 0, 17, 2 },
		{ { 1000, 520, 333 }, 2, 9, 32 }, { { 512, 512, 544 }, 5, 1, 0 },
		{ { 512, 512, 544 }, 17, 0, 0 },
	};

	UNUSED_STATE;
	for (size_t i = 0; i < 3 * sizeof(cases) / sizeof(cases[0]); i++) {
		const size_t c = i / 3;
		const struct ndp_expert_shape *s = &cases[c].shape;
		struct ref_expert e = ref_expert_new(s->h_in, s->h_out, s->neurons, c + 1);
		size_t bytes = cases[c].n * ndp_expert_block_bytes(s);
		char *raw = aligned_alloc(64, bytes + 192), *packed = raw + cases[c].offset;

		ndpi_pack_limit((enum ndpi_pack_isa)(i % 3));
		memset(raw, 0xee, bytes + 192);
		ndp_expert_pack_blocks(packed, s, cases[c].first, cases[c].n, e.gate, e.up, e.ld_in,
				       e.down, e.ld_down);
		check_blocks(&e, cases[c].first, cases[c].n, packed);
		for (size_t k = 0; k < cases[c].offset; k++)
			assert_int_equal((unsigned char)raw[k], 0xee);
		assert_int_equal((unsigned char)packed[bytes], 0xee);
		free(raw);
		ref_expert_free(&e);
	}
}

static void unpacking_gives_the_weights_back(void **state)
{
	struct ref_expert e = ref_expert_new(100, 70, 67, 4);
	size_t bytes = ndp_expert_block_bytes(&e.shape), n_in = 67 * e.ld_in,
	       n_down = 70 * e.ld_down;
	void *block = malloc(bytes);
	ndp_bf16 *gate = ref_nan_bf16(n_in), *up = ref_nan_bf16(n_in), *down = ref_nan_bf16(n_down);

	UNUSED_STATE;
	for (uint32_t b = 0; b < 3; b++) {
		ndp_expert_pack_block(block, &e.shape, b, e.gate, e.up, e.ld_in, e.down, e.ld_down);
		ndp_expert_unpack_block(block, &e.shape, b, gate, up, e.ld_in, down, e.ld_down);
	}
	assert_memory_equal(gate, e.gate, 2 * n_in); /* the NaN between rows included */
	assert_memory_equal(up, e.up, 2 * n_in);
	assert_memory_equal(down, e.down, 2 * n_down);
	free(block);
	free(gate);
	free(up);
	free(down);
	ref_expert_free(&e);
}

static void panels_follow_the_formula(void **state)
{
	static const struct ndp_matrix_shape shapes[] = {
		{ 64, 32 }, { 100, 70 }, { 1, 1 }, { 129, 33 }
	};

	UNUSED_STATE;
	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		const struct ndp_matrix_shape *sh = &shapes[s];
		struct ref_matrix m = ref_matrix_new(sh->rows, sh->cols, s);
		size_t cols = up64(sh->cols), bytes = ndp_matrix_panel_bytes(sh);
		void *panel = malloc(bytes);

		assert_int_equal(bytes, 64 * cols);
		assert_int_equal(ndp_matrix_panels(sh), (sh->rows + 31) / 32);
		for (uint32_t p = 0; p < ndp_matrix_panels(sh); p++) {
			memset(panel, 0xee, bytes);
			ndp_matrix_pack_panel(panel, sh, p, m.m, m.ld);
			for (uint32_t r = 0; r < 32; r++)
				for (uint32_t k = 0; k < cols; k++) {
					uint32_t row = 32 * p + r;
					bool there = row < sh->rows && k < sh->cols;

					assert_int_equal(get(panel, 0,
							     ((k >> 1) * 32 + r) * 2 + (k & 1)),
							 there ? m.m[row * m.ld + k] : 0);
				}
		}
		free(panel);
		free(m.m);
	}
}

static void the_largest_shapes_do_not_overflow(void **state)
{
	struct ndp_expert_shape s = { 65472, 65472, UINT32_MAX };
	struct ndp_matrix_shape m = { 65472, UINT32_MAX };

	UNUSED_STATE;
	assert_int_equal(ndp_expert_block_bytes(&s), 192UL * 65472);
	assert_int_equal(ndp_expert_blocks(&s), 1U << 27);
	assert_int_equal(ndp_matrix_panels(&m), 1U << 27);
}

static ndp_bf16 round_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return ndp_bf16_from_f32(f);
}

static void bf16_rounds_to_nearest_even(void **state)
{
	UNUSED_STATE;
	assert_int_equal(round_bits(0x3f800000), 0x3f80);
	assert_int_equal(round_bits(0x3f808000), 0x3f80); /* tie, down to even */
	assert_int_equal(round_bits(0x3f818000), 0x3f82); /* tie, up to even */
	assert_int_equal(round_bits(0x3f808001), 0x3f81);
	assert_int_equal(round_bits(0x3f817fff), 0x3f81);
	assert_int_equal(round_bits(0x7f7fffff), 0x7f80); /* the largest float becomes infinity */
	assert_int_equal(round_bits(0xff800000), 0xff80);
	assert_int_equal(round_bits(0x80000000), 0x8000);
	assert_int_equal(round_bits(0x00018000), 0x0002); /* subnormal */
	assert_true(isnan(ndp_bf16_to_f32(round_bits(0x7f800001)))); /* not infinity */
	assert_true(isnan(ndp_bf16_to_f32(round_bits(0xffffffff))));
}

static void every_bf16_survives_the_way_to_float_and_back(void **state)
{
	ndp_bf16 all[65536], back[65536];
	float f[65536];

	UNUSED_STATE;
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (ndp_bf16)i;
	ndp_bf16_to_f32_array(f, all, 65536);
	ndp_bf16_from_f32_array(back, f, 65536);
	for (uint32_t i = 0; i < 65536; i++) {
		if (isnan(f[i]))
			assert_int_equal(back[i], i | 0x40);
		else
			assert_int_equal(back[i], i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_follow_the_formula),
		cmocka_unit_test(several_blocks_are_the_same_as_one_by_one),
		cmocka_unit_test(unpacking_gives_the_weights_back),
		cmocka_unit_test(panels_follow_the_formula),
		cmocka_unit_test(the_largest_shapes_do_not_overflow),
		cmocka_unit_test(bf16_rounds_to_nearest_even),
		cmocka_unit_test(every_bf16_survives_the_way_to_float_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
