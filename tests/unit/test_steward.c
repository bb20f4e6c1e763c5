// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_steward.c - predictor and placement engine together: hot experts end up in GPU memory, what
 * is scored is what happened, the same loads meet the same decisions.
 */
#include <errno.h>
#include <ndp/steward.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EXPERTS = 64, LAYERS = 2, DIMMS = 4, SLOTS = 4 };

struct world {
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_steward_options options;
	uint16_t blocks[LAYERS * EXPERTS * DIMMS];
	uint32_t tokens[EXPERTS];
	uint64_t random;
	void *mem;
	struct ndp_steward *s;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->host = (struct ndp_host){
		.gpu = { .gflops = 820e3, .gbps = 2000, .overhead_ns = 3000 },
		.cpu = { .gflops = 1e3 }, /* busy experts are too much for it */
		.dimm = { .gflops = 256, .gbps = 153.6, .overhead_ns = 500 },
		.pcie_gbps = 64,
		.channel_gbps = 38.4,
		.link_gbps = 25,
		.link_latency_ns = 1000,
		.gpu_bytes = 80ull << 30,
		.dimm_bytes = 64ull << 30,
		.nr_channels = 2,
		.nr_dimms = DIMMS,
	};
	w->shape = (struct ndp_shape){ .experts = EXPERTS, .top_k = 6, .hidden = 2048,
				       .intermediate = 1408, .expert_bytes = 17301504 };
	ndp_steward_defaults(&w->options, &w->host);
	w->options.place.gpu_bytes = 2 * LAYERS * SLOTS * w->shape.expert_bytes;
	for (uint32_t l = 0; l < LAYERS; l++)
		ndp_place_deal(w->blocks + l * EXPERTS * DIMMS, &w->shape, DIMMS, NULL, 0);
	w->random = 1;
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	free(w->mem);
	free(w);
	return 0;
}

static void start(struct world *w)
{
	struct ndp_error err;

	w->mem = realloc(w->mem, ndp_steward_bytes(LAYERS, EXPERTS, DIMMS));
	if (ndp_steward_init(w->mem, &w->host, &w->shape, LAYERS, &w->options, w->blocks, NULL,
			     &w->s, &err) < 0)
		fail_msg("%s", err.message);
}

static uint32_t below(struct world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w->random >> 33) % n;
}

/* 512 tokens, most of them to four experts that start at @hot. */
static void load(struct world *w, uint32_t hot)
{
	memset(w->tokens, 0, sizeof(w->tokens));
	for (int i = 0; i < 512 * 6; i++)
		w->tokens[below(w, 10) < 6 ? (hot + below(w, 4)) % EXPERTS : below(w, EXPERTS)]++;
}

/* Steps of all layers; what starts ends a step later.  Returns a sum of what was decided. */
static uint64_t run(struct world *w, uint32_t steps, uint32_t hot, double *now_ns)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < steps; i++) {
		for (uint32_t l = 0; l < LAYERS; l++) {
			struct ndp_place_action a[16];
			uint32_t n;

			load(w, hot);
			n = ndp_steward_step(w->s, l, w->tokens, *now_ns, a, 16);
			for (uint32_t k = 0; k < n; k++) {
				sum = sum * 31 + a[k].expert * 7 + a[k].kind + 1;
				*now_ns = a[k].end_ns > *now_ns ? a[k].end_ns : *now_ns;
				assert_int_equal(ndp_place_done(ndp_steward_placer(w->s), a[k].id,
								*now_ns, 0), 0);
			}
			*now_ns += 5e6;
		}
	}
	return sum;
}

static void hot_experts_end_up_in_gpu_memory(void **state)
{
	struct world *w = *state;
	const uint8_t *on_gpu;
	double now_ns = 0, covered, best;

	w->options.place.link_share = 0; /* nothing else can be done */
	start(w);
	run(w, 400, 10, &now_ns);
	on_gpu = ndp_place_on_gpu(ndp_steward_placer(w->s), 1);
	for (uint32_t e = 10; e < 14; e++)
		assert_true(on_gpu[e]);
	ndp_steward_coverage(w->s, 1, &covered, &best);
	assert_true(covered > 0.55 && covered <= best && best <= 1);
}

/*
 * Whichever layer decides first takes what there is, but where it matters it does not keep it: GPU
 * memory holds just the hot experts of all layers, PCIe is slow and the CPU weak.
 */
static void equal_layers_share_gpu_memory(void **state)
{
	struct world *w = *state;
	double now_ns = 0;

	w->host.pcie_gbps = 4;
	w->host.cpu.gflops = 300;
	w->options.place.gpu_bytes = LAYERS * SLOTS * w->shape.expert_bytes;
	w->options.place.link_share = 0;
	start(w);
	run(w, 800, 10, &now_ns);
	for (uint32_t l = 0; l < LAYERS; l++) {
		const uint8_t *on_gpu = ndp_place_on_gpu(ndp_steward_placer(w->s), l);
		uint32_t hot = 0, all = 0;

		for (uint32_t e = 0; e < EXPERTS; e++) {
			all += on_gpu[e];
			hot += on_gpu[e] && e >= 10 && e < 14;
		}
		assert_true(hot >= SLOTS - 1);
		assert_int_equal(all, SLOTS);
	}
}

static void equal_loads_meet_equal_decisions(void **state)
{
	struct world *w = *state;
	uint64_t first, again;
	double now_ns = 0;

	start(w);
	first = run(w, 200, 3, &now_ns);
	assert_true(first != 0);
	w->random = 1;
	now_ns = 0;
	start(w);
	again = run(w, 200, 3, &now_ns);
	assert_true(first == again);
}

static void turns_go_by_steps(void **state)
{
	struct world *w = *state;
	struct ndp_place_action a[16];
	uint32_t decided = 0;

	w->options.first = 8;
	w->options.first_every = 8;
	w->options.every = 16;
	start(w);
	for (uint32_t step = 1; step <= 64; step++) {
		uint32_t n;

		load(w, 5);
		n = ndp_steward_step(w->s, 0, w->tokens, step * 1e7, a, 16);
		if (n)
			assert_int_equal(step % 16, 0);
		decided += n;
		for (uint32_t k = 0; k < n; k++)
			ndp_place_done(ndp_steward_placer(w->s), a[k].id, step * 1e7, 0);
	}
	assert_true(decided > 0);
}

static void steps_without_tokens_teach_nothing(void **state)
{
	struct world *w = *state;
	struct ndp_place_action a[16];
	double covered, best;

	start(w);
	memset(w->tokens, 0, sizeof(w->tokens));
	for (int i = 0; i < 10; i++)
		assert_int_equal(ndp_steward_step(w->s, 0, w->tokens, i, a, 16), 0);
	assert_int_equal(ndp_steward_step(w->s, LAYERS, w->tokens, 0, a, 16), 0);
	ndp_steward_coverage(w->s, 0, &covered, &best);
	assert_true(covered == 0 && best == 0);
}

/* Tokens of the @n experts that got most, by counting. */
static uint64_t top(const uint32_t *tokens, uint32_t n)
{
	uint32_t count[64] = { 0 };
	uint64_t sum = 0;

	for (uint32_t e = 0; e < EXPERTS; e++)
		count[tokens[e]]++;
	for (uint32_t v = 63; n; v--)
		for (; n && count[v]; count[v]--, n--)
			sum += v;
	return sum;
}

static void assert_share(double share, uint64_t part, uint64_t of)
{
	assert_true(share >= (double)part / (double)of - 1e-6);
	assert_true(share <= (double)part / (double)of + 1e-6);
}

/* Whatever the loads are: the best is what sorting says it is. */
static void coverage_is_what_sorting_says(void **state)
{
	struct world *w = *state;
	double now_ns = 0;
	uint32_t scored = 0;

	w->options.place.link_share = 0;
	start(w);
	run(w, 200, 20, &now_ns); /* a multiple of eight */
	for (uint32_t step = 0; step < 800; step++) {
		const uint8_t *on_gpu = ndp_place_on_gpu(ndp_steward_placer(w->s), 1);
		double covered, best, predicted, hottest;
		struct ndp_place_action a[16];
		uint64_t total = 0, in_gpu = 0;
		uint32_t n = 0;

		for (uint32_t e = 0; e < EXPERTS; e++) {
			w->tokens[e] = 1 + below(w, 1 + step % 60);
			total += w->tokens[e];
			in_gpu += on_gpu[e] ? w->tokens[e] : 0;
			n += on_gpu[e];
		}
		assert_true(n > 0);
		assert_int_equal(ndp_steward_step(w->s, 1, w->tokens, now_ns, a, 0), 0);
		ndp_steward_coverage(w->s, 1, &covered, &best);
		ndp_steward_prediction(w->s, 1, &predicted, &hottest);
		assert_share(covered, in_gpu, total);
		if (step % 8)
			continue;
		scored++;
		assert_share(best, top(w->tokens, n), total);
		assert_share(hottest, top(w->tokens, ndp_class_hot(EXPERTS)), total);
		assert_true(predicted > 0 && predicted <= hottest + 1e-6);
	}
	assert_int_equal(scored, 100);
}

/* Experts that always get most are those that are predicted to. */
static void what_is_always_hot_is_predicted(void **state)
{
	struct world *w = *state;
	double predicted, hottest;

	start(w);
	for (uint32_t step = 0; step < 33; step++) {
		struct ndp_place_action a[16];

		for (uint32_t e = 0; e < EXPERTS; e++)
			w->tokens[e] = e == 7 || e == 30 || e == 63 ? 60 : 3 + (e + step) % 5;
		ndp_steward_step(w->s, 0, w->tokens, 0, a, 0);
	}
	ndp_steward_prediction(w->s, 0, &predicted, &hottest);
	assert_true(predicted >= hottest - 1e-6 && hottest > 0.3);
}

static void wrong_options_are_named(void **state)
{
	struct world *w = *state;
	struct ndp_steward *s;
	struct ndp_error err;

	w->mem = malloc(ndp_steward_bytes(LAYERS, EXPERTS, DIMMS));
	w->options.every = 0;
	assert_int_equal(ndp_steward_init(w->mem, &w->host, &w->shape, LAYERS, &w->options,
					  w->blocks, NULL, &s, &err), -EINVAL);
	assert_non_null(strstr(err.message, "every"));
	assert_int_equal(ndp_steward_bytes(0, EXPERTS, DIMMS), 0);
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(hot_experts_end_up_in_gpu_memory),
		IN_WORLD(equal_layers_share_gpu_memory),
		IN_WORLD(equal_loads_meet_equal_decisions),
		IN_WORLD(turns_go_by_steps),
		IN_WORLD(steps_without_tokens_teach_nothing),
		IN_WORLD(coverage_is_what_sorting_says),
		IN_WORLD(what_is_always_hot_is_predicted),
		IN_WORLD(wrong_options_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
