// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_chip_numerics.c - GEMV, ACT and FFN of every ISA path against FP64 within the written error
 * bound, and the promises about bits.
 *
 * Paths that this CPU lacks are skipped with a message; the AVX-512 path also runs over plain C
 * models of its intrinsics, everywhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "chip_ref.h"
#include "ndp_chip_impl.h"

extern const struct ndp_chip_kernels ndp_chip_avx512_emulated;

struct path {
	const char *name;
	struct ndp_chip_engine *engine;
	int flushes;
};

static struct path paths[4];
static unsigned n_paths;

static int make_paths(void **state)
{
	(void)state;
	for (int isa = NDP_CHIP_ISA_SCALAR; isa <= NDP_CHIP_ISA_AVX512_BF16; isa++) {
		if (!ndp_chip_isa_usable(isa)) {
			print_message("# skip path %s: this CPU lacks it\n",
				      ndp_chip_isa_name(isa));
			continue;
		}
		paths[n_paths++] = (struct path) {
			ndp_chip_isa_name(isa), ndp_chip_engine_new(isa),
			isa == NDP_CHIP_ISA_AVX512_BF16,
		};
	}
	if (ndp_chip_isa_usable(NDP_CHIP_ISA_AVX2)) /* whose activation it uses */
		paths[n_paths++] = (struct path) {
			"avx512-bf16, emulated",
			ndp_chip_engine_new_with(&ndp_chip_avx512_emulated), 1,
		};
	else
		print_message("# skip path avx512-bf16, emulated: needs AVX2\n");
	return 0;
}

static int free_paths(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++)
		ndp_chip_engine_free(paths[i].engine);
	return 0;
}

/* An expert, a batch of inputs, and a memory that holds both and the output. */
struct bench {
	struct ref_ffn f;
	struct ref_act act;
	unsigned tokens;
	uint16_t *x;		/* [tokens][h_in] */
	struct ndp_chip_mem mem;
	struct ndp_chip_op op;
	size_t y_bytes;
};

enum { PAGE = 4096 };

static const uint32_t poison = 0x7fc0dead; /* an FP32 NaN, and two BF16: a NaN and a number */

static void poison_memory(struct ndp_chip_mem *mem)
{
	for (size_t i = 0; i < mem->bytes / 4; i++)
		((uint32_t *)mem->base)[i] = poison;
}

struct exponents {
	int w_low, w_high, x_low, x_high;
};

static const struct exponents ordinary = { -8, -2, -3, 1 };

static uint16_t *random_array(size_t n, int low, int high, uint64_t *seed)
{
	uint16_t *a = malloc(n * sizeof(*a));

	for (size_t i = 0; i < n; i++)
		a[i] = ref_random_bf16(seed, low, high);
	return a;
}

/* Layout: a poisoned page, weights, x, rows, y, a poisoned page. Strides are larger than rows. */
static void bench_make(struct bench *b, unsigned h_in, unsigned h_out, unsigned neurons,
		       unsigned tokens, const struct exponents *e)
{
	uint64_t seed = h_in * 1000003u + h_out * 1009u + neurons * 31u + tokens;
	size_t ldx = ref_round(2 * h_in, 64) + 64, ldy = ref_round(4 * h_out, 64) + 64;
	size_t w_bytes;

	*b = (struct bench) {
		.f = { .h_in = h_in, .h_out = h_out, .neurons = neurons },
		.tokens = tokens,
		.y_bytes = tokens * ldy,
	};
	b->f.gate = random_array((size_t)neurons * h_in, e->w_low, e->w_high, &seed);
	b->f.up = random_array((size_t)neurons * h_in, e->w_low, e->w_high, &seed);
	b->f.down = random_array((size_t)neurons * h_out, ordinary.w_low, ordinary.w_high, &seed);
	b->x = random_array((size_t)tokens * h_in, e->x_low, e->x_high, &seed);
	w_bytes = ref_packed_bytes(&b->f);
	b->op = (struct ndp_chip_op) {
		.opcode = NDP_CHIP_FFN,
		.w = PAGE,
		.x = PAGE + w_bytes,
		.y = PAGE + w_bytes + tokens * ldx + PAGE,
		.count = (neurons + 31) / 32,
		.tokens = tokens,
		.h_in = h_in,
		.h_out = h_out,
		.ldx_bytes = ldx,
		.ldy_bytes = ldy,
	};
	b->mem.bytes = ref_round(b->op.y + b->y_bytes, PAGE) + PAGE;
	b->mem.base = aligned_alloc(PAGE, b->mem.bytes);
	poison_memory(&b->mem);
	ref_pack(&b->f, b->mem.base + b->op.w);
	for (unsigned t = 0; t < tokens; t++)
		memcpy(b->mem.base + b->op.x + t * ldx, b->x + (size_t)t * h_in, 2 * h_in);
}

static void bench_free(struct bench *b)
{
	free(b->f.gate);
	free(b->f.up);
	free(b->f.down);
	free(b->x);
	free(b->mem.base);
}

static const float *bench_y(const struct bench *b, unsigned token)
{
	return (const float *)(b->mem.base + b->op.y + (size_t)token * b->op.ldy_bytes);
}

static void run(struct path *p, struct bench *b)
{
	assert_int_equal(ndp_chip_exec(p->engine, &b->op, &b->mem, NULL), NDP_CHIP_OK);
}

/* Runs FFN and compares with FP64; returns the largest share of the bound that was used. */
static double check_ffn(struct path *p, struct bench *b)
{
	double *y = malloc(b->f.h_out * sizeof(*y)), *error = malloc(b->f.h_out * sizeof(*error));
	double worst = 0;

	run(p, b);
	for (unsigned t = 0; t < b->tokens; t++) {
		const float *got = bench_y(b, t);

		ref_ffn(&b->f, &b->act, b->x + (size_t)t * b->f.h_in, p->flushes, y, error);
		for (unsigned j = 0; j < b->f.h_out; j++) {
			double off = fabs(got[j] - y[j]);

			if (!(off <= error[j]))
				fail_msg("%s: h_in %u h_out %u neurons %u: y[%u][%u] = %g, not %g +- %g",
					 p->name, b->f.h_in, b->f.h_out, b->f.neurons, t, j, got[j],
					 y[j], error[j]);
			if (error[j] > 0 && off / error[j] > worst)
				worst = off / error[j];
		}
		for (unsigned j = b->f.h_out; j < b->op.ldy_bytes / 4; j++)
			assert_memory_equal(got + j, &poison, 4);
	}
	free(y);
	free(error);
	return worst;
}

static const struct {
	unsigned h_in, h_out, neurons, tokens;
} shapes[] = {
	{ 64, 64, 32, 1 },	{ 1, 1, 1, 1 },		{ 100, 100, 36, 1 },
	{ 100, 100, 36, 3 },	{ 63, 65, 33, 2 },	{ 65, 63, 95, 7 },
	{ 256, 128, 256, 4 },	{ 257, 100, 257, 5 },	{ 700, 64, 288, 6 },
	{ 96, 320, 520, 12 },	{ 101, 100, 36, 13 },	{ 64, 192, 96, 70 },
	{ 513, 66, 544, 8 },	{ 130, 70, 608, 25 },	{ 72, 40, 33, 97 },
	{ 66, 64, 64, 193 },
	/* longer than what is done between two looks at the abort flag */
	{ 4200, 64, 33, 1 },	{ 4200, 70, 32, 2 },	{ 64, 8260, 40, 1 },
	{ 64, 8260, 33, 3 },	{ 4200, 8260, 32, 7 },
};

static void ffn_is_within_the_bound(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		double worst = 0;

		for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
			struct bench b;
			double used;

			bench_make(&b, shapes[s].h_in, shapes[s].h_out, shapes[s].neurons,
				   shapes[s].tokens, &ordinary);
			used = check_ffn(&paths[i], &b);
			worst = used > worst ? used : worst;
			bench_free(&b);
		}
		print_message("# %s: at most %.2f of the error bound used\n", paths[i].name, worst);
	}
}

static void every_number_of_tokens_is_within_the_bound(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		for (unsigned tokens = 1; tokens <= 70; tokens++) {
			struct bench b;

			bench_make(&b, 70, 66, 40, tokens, &ordinary);
			check_ffn(&paths[i], &b);
			bench_free(&b);
		}
	}
}

static void extreme_values_are_within_the_bound(void **state)
{
	static const struct exponents extremes[] = {
		{ 15, 20, 5, 10 },		/* h about 2^60 */
		{ -133, -110, 100, 120 },	/* denormal weights */
		{ 100, 120, -133, -110 },	/* denormal inputs */
		{ -133, -120, -20, 0 },		/* denormal products */
		{ -30, 5, -30, 5 },
		{ -1, 3, 0, 4 },		/* gates far out on both sides of the sigmoid */
	};

	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		for (size_t e = 0; e < sizeof(extremes) / sizeof(*extremes); e++) {
			struct bench b;

			bench_make(&b, 100, 70, 300, 5, &extremes[e]);
			check_ffn(&paths[i], &b);
			b.op.act = NDP_CHIP_SWIGLU_CLAMP;
			b.act = (struct ref_act) { NDP_CHIP_SWIGLU_CLAMP, 1.702f, 7.0f };
			b.op.alpha = b.act.alpha;
			b.op.limit = b.act.limit;
			check_ffn(&paths[i], &b);
			bench_free(&b);
		}
	}
}

static void clamped_swiglu_is_within_the_bound(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		struct bench b;

		bench_make(&b, 300, 100, 100, 9, &(struct exponents){ -4, 0, -3, 1 });
		b.op.act = NDP_CHIP_SWIGLU_CLAMP;
		b.act = (struct ref_act) { NDP_CHIP_SWIGLU_CLAMP, 1.702f, 7.0f };
		b.op.alpha = b.act.alpha;
		b.op.limit = b.act.limit;
		check_ffn(&paths[i], &b);
		bench_free(&b);
	}
}

/* A width that is no multiple of a tile, padding full of NaN: case C5. */
static void padding_never_leaks(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		struct bench b;

		bench_make(&b, 100, 100, 36, 3, &ordinary);
		for (size_t k = 0; k < 36 * 100; k++) {
			b.f.gate[k] = b.f.up[k] = ref_bf16(1.0f / 128);
			b.f.down[k] = ref_bf16(1);
		}
		ref_pack(&b.f, b.mem.base + b.op.w);
		for (unsigned t = 0; t < 3; t++) {
			uint16_t *x = (uint16_t *)(b.mem.base + b.op.x + t * b.op.ldx_bytes);

			for (unsigned k = 0; k < b.op.ldx_bytes / 2; k++)
				x[k] = k < 100 ? ref_bf16(1) : 0x7fc0;
			for (unsigned k = 0; k < 100; k++)
				b.x[t * 100 + k] = ref_bf16(1);
		}
		check_ffn(&paths[i], &b);
		for (unsigned t = 0; t < 3; t++)
			for (unsigned j = 0; j < 100; j++) /* h is rounded to BF16 */
				assert_true(fabs(bench_y(&b, t)[j] - 15.07213) <= 15.07213 / 256);
		bench_free(&b);
	}
}

static void nan_and_infinity_propagate(void **state)
{
	static const uint16_t specials[] = { 0x7fc0, 0x7f80, 0xff80, 0x7f81 };

	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		for (int s = 0; s < 4; s++) {
			struct bench b;
			uint16_t *x;

			bench_make(&b, 100, 70, 40, 3, &ordinary);
			x = (uint16_t *)(b.mem.base + b.op.x + b.op.ldx_bytes);
			x[77] = specials[s];
			run(&paths[i], &b);
			for (unsigned j = 0; j < 70; j++) {
				assert_true(isfinite(bench_y(&b, 0)[j]));
				assert_false(isfinite(bench_y(&b, 1)[j]));
				assert_true(isfinite(bench_y(&b, 2)[j]));
			}
			/* and from a weight: neuron 33's up, into every token */
			memcpy(x, b.x + 100, 200);
			b.f.up[33 * 100 + 5] = specials[s];
			ref_pack(&b.f, b.mem.base + b.op.w);
			run(&paths[i], &b);
			for (unsigned t = 0; t < 3; t++)
				for (unsigned j = 0; j < 70; j++)
					assert_false(isfinite(bench_y(&b, t)[j]));
			/* a NaN limit must not hide a NaN gate either */
			b.op.act = NDP_CHIP_SWIGLU_CLAMP;
			b.op.alpha = 1;
			b.op.limit = 3;
			b.f.up[33 * 100 + 5] = ref_bf16(1);
			b.f.gate[2 * 100 + 5] = 0x7fc0;
			ref_pack(&b.f, b.mem.base + b.op.w);
			run(&paths[i], &b);
			for (unsigned t = 0; t < 3; t++)
				for (unsigned j = 0; j < 70; j++)
					assert_true(isnan(bench_y(&b, t)[j]));
			bench_free(&b);
		}
	}
}

/* Copies y out, poisons it, so that the next run must write it. */
static float *take_y(struct bench *b)
{
	float *y = malloc(b->y_bytes);

	memcpy(y, b->mem.base + b->op.y, b->y_bytes);
	for (size_t i = 0; i < b->y_bytes / 4; i++)
		((uint32_t *)(b->mem.base + b->op.y))[i] = poison;
	return y;
}

static void a_token_has_the_same_bits_in_any_batch(void **state)
{
	static const unsigned batches[] = { 2, 3, 5, 6, 7, 11, 12, 13, 50, 96, 97, 131 };

	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		for (size_t s = 0; s < sizeof(batches) / sizeof(*batches); s++) {
			struct bench b;
			struct ndp_chip_op whole;
			float *y;

			bench_make(&b, 330, 100, 300, batches[s], &ordinary);
			whole = b.op;
			run(&paths[i], &b);
			y = take_y(&b);
			b.op.tokens = 1;
			for (unsigned t = 0; t < batches[s]; t++) {
				b.op.x = whole.x + t * whole.ldx_bytes;
				b.op.y = whole.y + t * whole.ldy_bytes;
				run(&paths[i], &b);
				assert_memory_equal(b.mem.base + b.op.y,
						    (char *)y + t * whole.ldy_bytes, 400);
			}
			free(y);
			bench_free(&b);
		}
	}
}

static void the_place_of_the_blocks_does_not_change_bits(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		struct bench b;
		struct ndp_chip_mem moved;
		float *y;

		bench_make(&b, 200, 100, 340, 8, &ordinary);
		run(&paths[i], &b);
		y = take_y(&b);
		moved.bytes = b.mem.bytes + 64 * 7;
		moved.base = aligned_alloc(64, moved.bytes);
		poison_memory(&moved);
		memcpy(moved.base + 64 * 7, b.mem.base, b.mem.bytes);
		b.op.w += 64 * 7;
		b.op.x += 64 * 7;
		b.op.y += 64 * 7;
		free(b.mem.base);
		b.mem = moved;
		run(&paths[i], &b);
		assert_memory_equal(y, b.mem.base + b.op.y, b.y_bytes);
		free(y);
		bench_free(&b);
	}
}

static void rows_equal_a_gathered_batch(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		struct bench b, g;
		uint32_t *rows;

		bench_make(&b, 130, 70, 100, 40, &ordinary);
		bench_make(&g, 130, 70, 100, 40, &ordinary);
		b.op.flags = NDP_CHIP_ROWS;
		b.op.x_rows = 40;
		b.op.rows = b.op.x + 40 * b.op.ldx_bytes + 4;
		b.op.tokens = g.op.tokens = 19;
		rows = (uint32_t *)(b.mem.base + b.op.rows);
		for (unsigned t = 0; t < 19; t++) {
			rows[t] = (t * 23 + 39) % 40 / (1 + t % 2);
			memcpy(g.mem.base + g.op.x + t * g.op.ldx_bytes,
			       b.x + rows[t] * 130, 260);
		}
		run(&paths[i], &b);
		run(&paths[i], &g);
		assert_memory_equal(b.mem.base + b.op.y, g.mem.base + g.op.y, b.y_bytes);
		bench_free(&b);
		bench_free(&g);
	}
}

static void accumulate_adds_the_whole_result_once(void **state)
{
	static const unsigned tokens[] = { 1, 9 };

	(void)state;
	for (unsigned i = 0; i < 2 * n_paths; i++) {
		struct bench b;
		float *y;

		bench_make(&b, 100, 100, 300, tokens[i % 2], &ordinary);
		run(&paths[i / 2], &b);
		y = take_y(&b);
		for (unsigned t = 0; t < b.tokens; t++)
			for (unsigned j = 0; j < 100; j++)
				((float *)bench_y(&b, t))[j] = 0.37f * j - t;
		b.op.flags = NDP_CHIP_ACCUMULATE;
		run(&paths[i / 2], &b);
		for (unsigned t = 0; t < b.tokens; t++) {
			for (unsigned j = 0; j < 100; j++) {
				float old = 0.37f * j - t;
				float sum = old + y[t * b.op.ldy_bytes / 4 + j];

				assert_memory_equal(bench_y(&b, t) + j, &sum, 4);
			}
		}
		free(y);
		bench_free(&b);
	}
}

/* GEMV of gate and up, ACT, GEMV of down: on one path the very bits of FFN. */
static void ffn_equals_its_parts(void **state)
{
	enum { H_IN = 150, H_OUT = 90, NEURONS = 330, TOKENS = 10 };
	const size_t gate_bytes = ref_matrix_bytes(NEURONS, H_IN);
	const size_t down_bytes = ref_matrix_bytes(H_OUT, NEURONS);
	const size_t g_ld = ref_round(4 * NEURONS, 64), h_ld = ref_round(2 * NEURONS, 64) + 64;

	(void)state;
	for (unsigned i = 0; i < 2 * n_paths; i++) {
		struct ndp_chip_engine *e = paths[i / 2].engine;
		struct ndp_chip_op gate, up, act, down;
		struct ndp_chip_mem mem;
		struct bench b;
		uint64_t x;

		bench_make(&b, H_IN, H_OUT, NEURONS, TOKENS, &ordinary);
		if (i % 2) {
			b.op.act = NDP_CHIP_SWIGLU_CLAMP;
			b.op.alpha = 1.5f;
			b.op.limit = 0.5f;
		}
		run(&paths[i / 2], &b);

		x = 2 * gate_bytes + down_bytes;
		gate = (struct ndp_chip_op) {
			.opcode = NDP_CHIP_GEMV, .count = (NEURONS + 31) / 32, .tokens = TOKENS,
			.h_in = H_IN, .h_out = NEURONS, .x = x, .y = x + TOKENS * b.op.ldx_bytes,
			.ldx_bytes = b.op.ldx_bytes, .ldy_bytes = g_ld,
		};
		up = gate;
		up.w = gate_bytes;
		up.y = gate.y + TOKENS * g_ld;
		act = (struct ndp_chip_op) {
			.opcode = NDP_CHIP_ACT, .act = b.op.act, .alpha = b.op.alpha,
			.limit = b.op.limit, .tokens = TOKENS, .h_out = NEURONS, .x = gate.y,
			.rows = up.y, .y = up.y + TOKENS * g_ld, .ldx_bytes = g_ld,
			.ldy_bytes = h_ld,
		};
		down = (struct ndp_chip_op) {
			.opcode = NDP_CHIP_GEMV, .count = (H_OUT + 31) / 32, .tokens = TOKENS,
			.h_in = NEURONS, .h_out = H_OUT, .w = 2 * gate_bytes, .x = act.y,
			.y = act.y + TOKENS * h_ld, .ldx_bytes = h_ld,
			.ldy_bytes = b.op.ldy_bytes,
		};
		mem.bytes = down.y + TOKENS * down.ldy_bytes;
		mem.base = aligned_alloc(PAGE, ref_round(mem.bytes, PAGE));
		poison_memory(&mem);
		ref_pack_matrix(b.f.gate, NEURONS, H_IN, mem.base);
		ref_pack_matrix(b.f.up, NEURONS, H_IN, mem.base + up.w);
		ref_pack_matrix(b.f.down, H_OUT, NEURONS, mem.base + down.w);
		memcpy(mem.base + x, b.mem.base + b.op.x, TOKENS * b.op.ldx_bytes);
		assert_int_equal(ndp_chip_exec(e, &gate, &mem, NULL), NDP_CHIP_OK);
		assert_int_equal(ndp_chip_exec(e, &up, &mem, NULL), NDP_CHIP_OK);
		assert_int_equal(ndp_chip_exec(e, &act, &mem, NULL), NDP_CHIP_OK);
		assert_int_equal(ndp_chip_exec(e, &down, &mem, NULL), NDP_CHIP_OK);
		assert_memory_equal(mem.base + down.y, b.mem.base + b.op.y, b.y_bytes);
		free(mem.base);
		bench_free(&b);
	}
}

static void gemv_is_within_the_bound(void **state)
{
	static const struct {
		unsigned k, rows, tokens;
	} cases[] = { { 1, 1, 1 }, { 100, 33, 3 }, { 1000, 64, 1 }, { 257, 95, 100 } };

	(void)state;
	for (unsigned i = 0; i < 4 * n_paths; i++) {
		unsigned k = cases[i % 4].k, rows = cases[i % 4].rows, tokens = cases[i % 4].tokens;
		struct path *p = &paths[i / 4];
		uint64_t seed = i;
		uint16_t *a = random_array((size_t)rows * k, -3, 3, &seed);
		struct ndp_chip_op op = {
			.opcode = NDP_CHIP_GEMV, .count = (rows + 31) / 32, .tokens = tokens,
			.h_in = k, .h_out = rows, .x = ref_matrix_bytes(rows, k),
			.ldx_bytes = ref_round(2 * k, 64), .ldy_bytes = ref_round(4 * rows, 64),
		};
		struct ndp_chip_mem mem;
		uint16_t *x;

		op.y = op.x + tokens * op.ldx_bytes;
		mem.bytes = op.y + tokens * op.ldy_bytes;
		mem.base = aligned_alloc(64, mem.bytes);
		poison_memory(&mem);
		ref_pack_matrix(a, rows, k, mem.base);
		x = (uint16_t *)(mem.base + op.x);
		for (unsigned t = 0; t < tokens; t++)
			for (unsigned n = 0; n < k; n++)
				x[t * op.ldx_bytes / 2 + n] = ref_random_bf16(&seed, -3, 3);
		assert_int_equal(ndp_chip_exec(p->engine, &op, &mem, NULL), NDP_CHIP_OK);
		for (unsigned t = 0; t < tokens; t++) {
			const float *y = (float *)(mem.base + op.y + t * op.ldy_bytes);

			for (unsigned r = 0; r < rows; r++) {
				struct ref_sum s = { 0 };

				for (unsigned n = 0; n < k; n++)
					ref_add(&s, ref_value(a[r * k + n]),
						ref_value(x[t * op.ldx_bytes / 2 + n]), p->flushes);
				assert_true(fabs(y[r] - s.value) <= ref_error(&s));
			}
			for (unsigned r = rows; r < op.ldy_bytes / 4; r++)
				assert_memory_equal(y + r, &poison, 4);
		}
		free(a);
		free(mem.base);
	}
}

/* ACT over all of the curve, one column at a time against FP64. */
static void act_is_accurate_everywhere(void **state)
{
	enum { COLUMNS = 65000 };
	struct ndp_chip_mem mem = { .bytes = 4 * 65472 * 2 + 2 * 65472 };
	struct ndp_chip_op op = {
		.opcode = NDP_CHIP_ACT, .tokens = 1, .h_out = COLUMNS, .rows = 4 * 65472,
		.y = 8 * 65472, .ldx_bytes = 4 * 65472, .ldy_bytes = 2 * 65472,
	};

	(void)state;
	mem.base = aligned_alloc(64, mem.bytes);
	for (unsigned i = 0; i < 2 * n_paths; i++) {
		struct ref_act a = { i % 2, i % 2 ? 1.702f : 0, i % 2 ? 7.0f : 0 };
		float *g = (float *)mem.base, *u = (float *)(mem.base + op.rows);
		uint16_t *h = (uint16_t *)(mem.base + op.y);

		op.act = a.act;
		op.alpha = a.alpha;
		op.limit = a.limit;
		poison_memory(&mem);
		for (int j = 0; j < COLUMNS; j++) {
			g[j] = (j - COLUMNS / 2) * 0.004f;
			u[j] = 1 + j % 7;
		}
		assert_int_equal(ndp_chip_exec(paths[i / 2].engine, &op, &mem, NULL), NDP_CHIP_OK);
		for (int j = 0; j < COLUMNS; j++) {
			double off = fabs(ref_value(h[j]) - ref_h(&a, g[j], u[j]));

			assert_true(off <= ref_h_error(&a, g[j], 0, u[j], 0));
		}
		assert_memory_equal(h + COLUMNS, &poison, 2);
		/* the ends of the curve */
		g[0] = INFINITY;
		g[1] = NAN;
		g[2] = -1e30f;
		g[3] = -0.0f;
		g[4] = 3e38f;
		assert_int_equal(ndp_chip_exec(paths[i / 2].engine, &op, &mem, NULL), NDP_CHIP_OK);
		assert_true(isnan(ref_value(h[1])));
		assert_true(ref_value(h[2]) == 0 && ref_value(h[3]) == 0);
		assert_true(i % 2 ? isfinite(ref_value(h[0])) : isinf(ref_value(h[0])));
	}
	free(mem.base);
}

static void an_engine_serves_shapes_in_any_order(void **state)
{
	static const unsigned order[] = { 3, 15, 0, 11, 1, 8, 14, 2 };

	(void)state;
	for (unsigned i = 0; i < n_paths; i++) {
		for (size_t s = 0; s < sizeof(order) / sizeof(*order); s++) {
			struct bench b;

			bench_make(&b, shapes[order[s]].h_in, shapes[order[s]].h_out,
				   shapes[order[s]].neurons, shapes[order[s]].tokens, &ordinary);
			check_ffn(&paths[i], &b);
			bench_free(&b);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ffn_is_within_the_bound),
		cmocka_unit_test(every_number_of_tokens_is_within_the_bound),
		cmocka_unit_test(extreme_values_are_within_the_bound),
		cmocka_unit_test(clamped_swiglu_is_within_the_bound),
		cmocka_unit_test(padding_never_leaks),
		cmocka_unit_test(nan_and_infinity_propagate),
		cmocka_unit_test(a_token_has_the_same_bits_in_any_batch),
		cmocka_unit_test(the_place_of_the_blocks_does_not_change_bits),
		cmocka_unit_test(rows_equal_a_gathered_batch),
		cmocka_unit_test(accumulate_adds_the_whole_result_once),
		cmocka_unit_test(ffn_equals_its_parts),
		cmocka_unit_test(gemv_is_within_the_bound),
		cmocka_unit_test(act_is_accurate_everywhere),
		cmocka_unit_test(an_engine_serves_shapes_in_any_order),
	};

	return cmocka_run_group_tests_name("chip_numerics", tests, make_paths, free_paths);
}
