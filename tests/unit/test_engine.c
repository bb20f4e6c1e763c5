// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_engine.c - the placement engine moves what is worth moving and then rests; it never promises
 * memory that is not there nor more of a link than its share; what fails leaves all as it was.
 * With the cases C6, C7 and C8, from public reports.
 */
#include <errno.h>
#include <math.h>
#include <ndp/place.h>
#include <ndp/predict.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1024.0 * 1024)

enum {
	MAX_EXPERTS = 64,
	MAX_LAYERS = 3,
	ACTIONS = 16,
};

/* A host, a model and an engine for them; tests change what they need before start(). */
struct world {
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_place_options options;
	uint32_t layers;
	uint16_t blocks[MAX_LAYERS * MAX_EXPERTS * NDP_MAX_DIMMS];
	uint8_t on_gpu[MAX_LAYERS * MAX_EXPERTS];
	float tokens[MAX_EXPERTS];
	struct ndp_placer *placer;
	void *mem;
};

/* The machine and the experts of the TriMoE paper, with fewer of both. */
static struct world *new_world(uint32_t experts, uint32_t dimms)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->host = (struct ndp_host){
		.gpu = { .gflops = 820e3, .gbps = 2000, .overhead_ns = 5000 },
		.cpu = { .gflops = 90.1e3, .overhead_ns = 2000 },
		.dimm = { .gflops = 256, .gbps = 153.6, .overhead_ns = 2000 },
		.pcie_gbps = 64,
		.channel_gbps = 38.4,
		.link_gbps = 25,
		.link_latency_ns = 1000,
		.gpu_bytes = 80ull << 30,
		.dimm_bytes = 64ull << 30,
		.nr_channels = dimms < 8 ? dimms : 8,
		.nr_dimms = dimms,
	};
	w->shape = (struct ndp_shape){
		.experts = experts, .top_k = 6, .hidden = 5120, .intermediate = 1536,
		.expert_bytes = 3ull * 2 * 5120 * 1536,
	};
	w->layers = 1;
	for (uint32_t l = 0; l < MAX_LAYERS; l++)
		ndp_place_deal(w->blocks + (size_t)l * experts * dimms, &w->shape, dimms, NULL, l);
	ndp_place_defaults(&w->options, &w->host);
	return w;
}

static int start(struct world *w, struct ndp_error *err)
{
	w->mem = malloc(ndp_place_bytes(w->layers, w->shape.experts, w->host.nr_dimms));
	assert_non_null(w->mem);
	return ndp_place_init(w->mem, &w->host, &w->shape, w->layers, &w->options, w->blocks,
			      w->on_gpu, &w->placer, err);
}

static void end(struct world *w)
{
	free(w->mem);
	free(w);
}

/* Decides and lets everything arrive at once.  Returns the number of actions. */
static uint32_t decide(struct world *w, double now_ns)
{
	struct ndp_place_action actions[ACTIONS];
	const uint32_t count = ndp_place_decide(w->placer, 0, w->tokens, now_ns, actions, ACTIONS);

	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(ndp_place_done(w->placer, actions[i].id, actions[i].end_ns, 0), 0);
	return count;
}

/* What the scheduler makes of the valid placement. */
static double makespan(struct world *w)
{
	const uint32_t experts = w->shape.experts, dimms = w->host.nr_dimms;
	uint32_t tokens[MAX_EXPERTS];
	const struct ndp_layer layer = {
		.host = &w->host, .shape = &w->shape, .charges = w->options.charges,
		.tokens = tokens, .blocks = ndp_place_blocks(w->placer, 0),
		.on_gpu = ndp_place_on_gpu(w->placer, 0),
	};
	void *work = malloc(ndp_schedule_bytes(experts, dimms));
	void *mem = malloc(ndp_plan_bytes(experts, dimms));
	struct ndp_plan plan;

	assert_non_null(work);
	assert_non_null(mem);
	for (uint32_t e = 0; e < experts; e++)
		tokens[e] = (uint32_t)(w->tokens[e] + 0.5f);
	assert_int_equal(ndp_layer_check(&layer, NULL), 0);
	ndp_plan_init(&plan, mem, experts, dimms);
	assert_int_equal(ndp_schedule(&layer, w->options.policy, work, &plan), 0);
	free(work);
	free(mem);
	return plan.makespan_ns;
}

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* ---- the cases ------------------------------------------------------------- */

/* C6: vllm-project/vllm#52435, NVIDIA/TensorRT-LLM#13888. */
static void experts_that_dimms_do_not_divide_are_dealt(void **state)
{
	static const uint32_t numbers[][2] = { { 60, 7 }, { 1, 7 }, { 7, 7 }, { 64, 5 } };

	(void)state;
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
		const uint32_t experts = numbers[n][0], dimms = numbers[n][1];
		struct world *w = new_world(experts, dimms);
		uint32_t held[NDP_MAX_DIMMS] = { 0 }, fuller = 0;

		for (uint32_t e = 0; e < experts; e++) {
			uint32_t holders = 0;

			for (uint32_t d = 0; d < dimms; d++) {
				const uint16_t blocks = w->blocks[e * dimms + d];

				if (!blocks)
					continue;
				assert_int_equal(blocks, ndp_shape_blocks(&w->shape));
				held[d]++;
				holders++;
			}
			assert_int_equal(holders, 1);
		}
		for (uint32_t d = 0; d < dimms; d++) {
			assert_in_range(held[d], experts / dimms, experts / dimms + 1);
			fuller += held[d] > experts / dimms;
		}
		assert_int_equal(fuller, experts % dimms);
		assert_int_equal(start(w, NULL), 0);
		end(w);
	}
}

/* C7: thecodacus/llama.cpp#7, ggml-org/llama.cpp#27872 and others. */
static void budgets_say_their_arithmetic(void **state)
{
	const uint64_t expert = (uint64_t)(18 * MIB), room = (uint64_t)(200 * MIB);
	struct ndp_error err = { 0 };
	struct world *w;

	(void)state;
	assert_int_equal(ndp_place_budget(16, expert, room, &err), -ENOSPC);
	assert_int_equal(err.code, -ENOSPC);
	assert_non_null(strstr(err.message, "288 MiB"));
	assert_non_null(strstr(err.message, "200 MiB"));
	assert_non_null(strstr(err.message, "at most 11 fit"));
	assert_int_equal(ndp_place_budget(16, expert, room, NULL), -ENOSPC);
	assert_int_equal(ndp_place_budget(11, expert, room, &err), 0);
	assert_int_equal(ndp_place_budget(0, expert, room, &err), 0);
	assert_int_equal(ndp_place_budget(0, expert, 0, &err), 0);
	assert_int_equal(ndp_place_budget(UINT64_MAX, expert, room, &err), -ENOSPC);
	assert_int_equal(ndp_place_budget(1, 0, room, &err), -EINVAL);

	/* The engine refuses as well, before anything is loaded. */
	w = new_world(32, 4);
	w->shape.expert_bytes = expert;
	w->options.gpu_bytes = room;
	memset(w->on_gpu, 1, 16);
	assert_int_equal(start(w, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "at most 11 fit"));
	end(w);

	w = new_world(32, 4);
	w->options.dimm_bytes = 7 * w->shape.expert_bytes;
	assert_int_equal(start(w, &err), -ENOSPC);
	assert_non_null(strstr(err.message, "DIMM 0"));
	end(w);
}

/* C7, second part: no GPU memory is legal, and means that the GPU is left alone. */
static void without_gpu_memory_nothing_is_prefetched(void **state)
{
	struct world *w = new_world(32, 4);
	struct ndp_place_usage usage;

	(void)state;
	w->options.gpu_bytes = 0;
	assert_int_equal(start(w, NULL), 0);
	for (uint32_t e = 0; e < 32; e++)
		w->tokens[e] = e == 5 ? 900 : 3;
	for (int i = 0; i < 50; i++)
		decide(w, i * 1e9);
	ndp_place_usage(w->placer, &usage);
	assert_int_equal(usage.started[NDP_PLACE_PREFETCH], 0);
	assert_int_equal(usage.gpu_bytes, 0);
	end(w);
}

/* C8: JustVugg/colibri#780, deepseek-ai/EPLB#13. Room for one of two experts on the GPU. */
static void a_shift_is_followed_and_a_tie_is_not(void **state)
{
	struct world *w = new_world(2, 1);
	uint32_t tokens[2] = { 100, 0 };
	double now_ns = 0;

	(void)state;
	/* A CPU whose time goes by tokens, not by reading weights, and misses that are slower. */
	w->host.cpu.gflops = 1000;
	w->host.pcie_gbps = 8;
	w->options.gpu_bytes = w->shape.expert_bytes;
	w->options.horizon_steps = 10;
	w->options.stay_ns = 0;
	assert_int_equal(start(w, NULL), 0);
	for (int i = 0; i < 50; i++) {
		ndp_ema_update(w->tokens, 2, 0.5f, tokens);
		decide(w, now_ns += 1e8);
	}
	assert_true(ndp_place_on_gpu(w->placer, 0)[0]);
	tokens[0] = 0;
	tokens[1] = 100;
	ndp_ema_update(w->tokens, 2, 0.5f, tokens);
	assert_float_equal(w->tokens[0], 50, 0.01);
	assert_float_equal(w->tokens[1], 50, 0.01);
	assert_int_equal(decide(w, now_ns += 1e8), 0);
	ndp_ema_update(w->tokens, 2, 0.5f, tokens);
	assert_float_equal(w->tokens[1], 75, 0.01);
	assert_int_equal(decide(w, now_ns += 1e8), 1);
	assert_false(ndp_place_on_gpu(w->placer, 0)[0]);
	assert_true(ndp_place_on_gpu(w->placer, 0)[1]);

	/* 51 to 49, in turn, smoothed and not: what a swap gains does not pay for it. */
	for (float alpha = 0.5f; alpha <= 1; alpha += 0.5f) {
		w->tokens[0] = w->tokens[1] = 50;
		for (int i = 0; i < 100; i++) {
			tokens[i % 2] = 51;
			tokens[1 - i % 2] = 49;
			ndp_ema_update(w->tokens, 2, alpha, tokens);
			assert_int_equal(decide(w, now_ns += 1e8), 0);
		}
	}

	/* Were moves free, the same loads would swap the two each time. */
	end(w);
	w = new_world(2, 1);
	w->host.cpu.gflops = 1000;
	w->host.pcie_gbps = 8;
	w->options.gpu_bytes = w->shape.expert_bytes;
	w->options.stay_ns = 0;
	w->options.hysteresis = 0;
	w->options.horizon_steps = 1e6;
	assert_int_equal(start(w, NULL), 0);
	for (int i = 0; i < 100; i++) {
		w->tokens[i % 2] = 51;
		w->tokens[1 - i % 2] = 49;
		assert_int_equal(decide(w, now_ns += 1e8), 1);
	}
	end(w);
}

/* ---- what it does -------------------------------------------------------------- */

static void skewed(struct world *w, uint64_t seed)
{
	for (uint32_t e = 0; e < w->shape.experts; e++)
		w->tokens[e] = (float)(600 / (1 + next(&seed) % w->shape.experts));
}

/* From the worst placement, everything on one DIMM, to one that is far better; then it rests. */
static void placements_improve_and_settle(void **state)
{
	static const enum ndp_policy policies[] = {
		NDP_POLICY_TRIMOE, NDP_POLICY_GPU_NDP, NDP_POLICY_SPLIT,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
		struct world *w = new_world(64, 8);
		uint32_t late = 0;
		double before, now_ns = 0;

		memset(w->blocks, 0, sizeof(w->blocks));
		for (uint32_t e = 0; e < 64; e++)
			w->blocks[e * 8] = (uint16_t)ndp_shape_blocks(&w->shape);
		w->options.policy = policies[i];
		w->options.gpu_bytes = 3 * w->shape.expert_bytes;
		w->options.stay_ns = 1e8;
		assert_int_equal(start(w, NULL), 0);
		skewed(w, 4);
		before = makespan(w);
		for (int step = 0; step < 600; step++) {
			const uint32_t count = decide(w, now_ns += 1e7);

			if (step >= 400)
				late += count;
		}
		assert_true(makespan(w) < before / 2);
		assert_int_equal(late, 0);
		end(w);
	}
}

static void what_a_host_lacks_is_not_used(void **state)
{
	(void)state;
	for (int lacks = 0; lacks < 6; lacks++) {
		struct world *w = new_world(32, 4);
		struct ndp_place_usage usage;
		uint64_t moves;

		memset(w->blocks, 0, sizeof(w->blocks));
		for (uint32_t e = 0; e < 32; e++)
			w->blocks[e * 4] = (uint16_t)ndp_shape_blocks(&w->shape);
		switch (lacks) {
		case 0:
			w->host.link_gbps = 0;
			break;
		case 1:
			w->options.link_share = 0;
			break;
		case 2:
			w->host.pcie_gbps = 0;
			break;
		case 3:
			w->options.pcie_share = 0;
			break;
		case 4:
			w->host.gpu.gflops = 0;
			break;
		case 5:
			w->options.allowed_mask = 1;
			break;
		}
		assert_int_equal(start(w, NULL), 0);
		skewed(w, 5);
		for (int i = 0; i < 50; i++)
			decide(w, i * 1e9);
		ndp_place_usage(w->placer, &usage);
		moves = usage.started[NDP_PLACE_RELAYOUT] + usage.started[NDP_PLACE_REBALANCE];
		assert_int_equal(moves == 0, lacks < 2 || lacks == 5);
		assert_int_equal(usage.started[NDP_PLACE_PREFETCH] == 0, lacks >= 2 && lacks <= 4);
		end(w);
	}
}

static void an_expert_that_moved_stays(void **state)
{
	struct world *w = new_world(2, 1);

	(void)state;
	w->options.gpu_bytes = w->shape.expert_bytes;
	w->options.stay_ns = 1e9;
	assert_int_equal(start(w, NULL), 0);
	w->tokens[0] = 500;
	assert_int_equal(decide(w, 0), 1);
	w->tokens[0] = 0;
	w->tokens[1] = 500;
	assert_int_equal(decide(w, 0.9e9), 0);
	/* The layer may be left alone for a decision or two after one that found nothing. */
	assert_int_equal(decide(w, 1.1e9) + decide(w, 1.2e9) + decide(w, 1.3e9), 1);
	end(w);
}

/* Moves between DIMMs, after which an expert stays longer each time, keep no hot one from the GPU. */
static void an_expert_that_moved_often_may_get_hot(void **state)
{
	struct world *w = new_world(8, 2);
	uint16_t row[2];
	struct ndp_place_action action;
	double now_ns = 0;

	(void)state;
	w->host.cpu.gflops = 1000;
	w->options.gpu_bytes = w->shape.expert_bytes;
	w->options.stay_ns = 1e9;
	assert_int_equal(start(w, NULL), 0);
	for (int i = 0; i < 8; i++) {
		row[1 - i % 2] = 0;
		row[i % 2] = 48;
		assert_int_equal(ndp_place_order(w->placer, 0, 5, row, now_ns, &action), 0);
		now_ns = action.end_ns + 1e8;
		assert_int_equal(ndp_place_done(w->placer, action.id, now_ns, 0), 0);
	}
	for (uint32_t e = 0; e < 8; e++)
		w->tokens[e] = e == 5 ? 500 : 1;
	decide(w, now_ns + 0.5e9);
	assert_false(ndp_place_on_gpu(w->placer, 0)[5]);
	for (int i = 0; i < 4; i++)
		decide(w, now_ns + 1.1e9 + i * 1e8);
	assert_true(ndp_place_on_gpu(w->placer, 0)[5]);
	end(w);
}

static void what_fails_leaves_all_as_it_was(void **state)
{
	struct world *w = new_world(16, 4);
	struct ndp_place_action actions[ACTIONS];
	struct ndp_place_usage before, after;
	uint32_t count;

	(void)state;
	memset(w->blocks, 0, sizeof(w->blocks));
	for (uint32_t e = 0; e < 16; e++)
		w->blocks[e * 4] = (uint16_t)ndp_shape_blocks(&w->shape);
	assert_int_equal(start(w, NULL), 0);
	skewed(w, 6);
	ndp_place_usage(w->placer, &before);
	count = ndp_place_decide(w->placer, 0, w->tokens, 0, actions, ACTIONS);
	assert_true(count >= 2);
	assert_memory_equal(ndp_place_blocks(w->placer, 0), w->blocks, 16 * 4 * sizeof(uint16_t));
	assert_memory_equal(ndp_place_on_gpu(w->placer, 0), w->on_gpu, 16);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(ndp_place_done(w->placer, actions[i].id, 1e6, -EIO), 0);
	assert_int_equal(ndp_place_done(w->placer, actions[0].id, 1e6, 0), -ENOENT);
	assert_int_equal(ndp_place_done(w->placer, UINT32_MAX, 1e6, 0), -ENOENT);
	ndp_place_usage(w->placer, &after);
	assert_int_equal(after.gpu_bytes, before.gpu_bytes);
	assert_memory_equal(after.dimm_bytes, before.dimm_bytes, sizeof(after.dimm_bytes));
	assert_int_equal(after.nr_actions, 0);
	assert_int_equal(after.failed, count);
	assert_memory_equal(ndp_place_blocks(w->placer, 0), w->blocks, 16 * 4 * sizeof(uint16_t));
	assert_memory_equal(ndp_place_target(w->placer, 0, 0), w->blocks,
			    16 * 4 * sizeof(uint16_t));
	assert_memory_equal(ndp_place_on_gpu(w->placer, 0), w->on_gpu, 16);
	end(w);
}

static void bad_options_are_refused(void **state)
{
	struct ndp_error err;

	(void)state;
	for (int bad = 0; bad < 12; bad++) {
		struct world *w = new_world(8, 2);

		switch (bad) {
		case 0:
			w->options.link_share = 1.5;
			break;
		case 1:
			w->options.pcie_share = NAN;
			break;
		case 2:
			w->options.horizon_steps = INFINITY;
			break;
		case 3:
			w->options.hysteresis = -1;
			break;
		case 4:
			w->options.policy = NDP_POLICIES;
			break;
		case 5:
			w->options.allowed_mask = 4;
			break;
		case 6:
			w->options.gpu_bytes = w->host.gpu_bytes + 1;
			break;
		case 7:
			w->options.dimm_bytes = w->host.dimm_bytes + 1;
			break;
		case 8:
			w->blocks[0]++;
			break;
		case 9:
			w->options.kinds = 1u << NDP_PLACE_KINDS;
			break;
		case 10:
			w->options.queue_ns = -1;
			break;
		case 11:
			w->options.least_cost = 1.1;
			break;
		}
		memset(&err, 0, sizeof(err));
		assert_int_equal(start(w, &err), -EINVAL);
		assert_true(err.message[0]);
		end(w);
	}
	assert_int_equal(ndp_place_bytes(0, 8, 2), 0);
	assert_int_equal(ndp_place_bytes(1, 8, NDP_MAX_DIMMS + 1), 0);
	assert_int_equal(ndp_place_bytes(NDP_PLACE_MAX_LAYERS + 1, 8, 2), 0);
}

/* ---- what it never does ----------------------------------------------------------- */

struct running {
	struct ndp_place_action action;
	bool used;
};

/* Memory that is taken or promised, counted from the placements alone. */
static void memory_is_what_usage_says(struct world *w, const struct running *running)
{
	const uint32_t dimms = w->host.nr_dimms, experts = w->shape.experts;
	const uint32_t nr_blocks = ndp_shape_blocks(&w->shape);
	const uint64_t block_bytes = (w->shape.expert_bytes + nr_blocks - 1) / nr_blocks;
	uint64_t gpu = 0, dimm[NDP_MAX_DIMMS] = { 0 };
	struct ndp_place_usage usage;

	for (uint32_t l = 0; l < w->layers; l++)
		for (uint32_t e = 0; e < experts; e++) {
			uint32_t sum = 0;

			gpu += ndp_place_on_gpu(w->placer, l)[e];
			for (uint32_t d = 0; d < dimms; d++) {
				const uint16_t n = ndp_place_blocks(w->placer, l)[e * dimms + d];

				sum += n;
				dimm[d] += n * block_bytes;
			}
			assert_int_equal(sum, nr_blocks);
		}
	for (uint32_t i = 0; i < NDP_PLACE_MAX_ACTIONS; i++) {
		if (!running[i].used)
			continue;
		if (running[i].action.kind == NDP_PLACE_PREFETCH)
			gpu++;
		else
			for (uint32_t d = 0; d < dimms; d++)
				dimm[d] += block_bytes *
					   ndp_place_target(w->placer, running[i].action.layer,
							    running[i].action.expert)[d];
	}
	ndp_place_usage(w->placer, &usage);
	assert_int_equal(usage.gpu_bytes, gpu * w->shape.expert_bytes);
	assert_true(usage.gpu_bytes <= w->options.gpu_bytes);
	for (uint32_t d = 0; d < dimms; d++) {
		assert_int_equal(usage.dimm_bytes[d], dimm[d]);
		assert_true(usage.dimm_bytes[d] <= w->options.dimm_bytes);
	}
}

/* Loads that jump about, actions that end in any order, early, late or badly, tight memory. */
static void limits_hold_whatever_happens(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 12; seed++) {
		const uint32_t dimms = 1 + (uint32_t)(seed * 5 % 8);
		struct world *w = new_world(24, dimms);
		struct running running[NDP_PLACE_MAX_ACTIONS] = { { .used = false } };
		double out_ns[NDP_MAX_DIMMS] = { 0 }, in_ns[NDP_MAX_DIMMS] = { 0 }, pcie_ns = 0;
		double now_ns = 0;
		uint64_t random = seed, total = 0;

		w->layers = 3;
		w->options.stay_ns = (double)(next(&random) % 3) * 1e7;
		w->options.hysteresis = 0.1;
		w->options.horizon_steps = 1000;
		w->options.link_share = 0.1 + 0.2 * (double)(next(&random) % 4);
		w->options.pcie_share = 0.3;
		w->options.queue_ns = (double)(next(&random) % 3) * 1e7;
		w->options.gpu_bytes = next(&random) % 8 * w->shape.expert_bytes;
		w->options.dimm_bytes = (3 * 24 / dimms + 2 + next(&random) % 3) *
					w->shape.expert_bytes;
		assert_int_equal(start(w, NULL), 0);
		for (int step = 0; step < 150; step++) {
			const uint32_t layer = (uint32_t)step % 3;
			struct ndp_place_action actions[ACTIONS];
			uint32_t count;

			now_ns += (double)(next(&random) % 1000) * 1e4;
			skewed(w, random / 40);
			count = ndp_place_decide(w->placer, layer, w->tokens, now_ns, actions,
						 1 + (uint32_t)(next(&random) % ACTIONS));
			total += count;
			for (uint32_t i = 0; i < count; i++) {
				struct ndp_copy copies[2 * NDP_MAX_DIMMS];
				const uint32_t id = actions[i].id;
				const uint32_t n = ndp_place_copies(w->placer, id, copies);
				uint64_t bytes = 0;

				assert_false(running[id].used);
				assert_true(n >= 1 && n <= 2 * dimms);
				running[id] = (struct running){ actions[i], true };
				for (uint32_t c = 0; c < n; c++) {
					bytes += copies[c].bytes;
					if (copies[c].to_gpu) {
						pcie_ns += (double)copies[c].bytes /
							   w->host.pcie_gbps;
						continue;
					}
					assert_true(copies[c].from < dimms && copies[c].to < dimms);
					assert_int_not_equal(copies[c].from, copies[c].to);
					out_ns[copies[c].from] += (double)copies[c].bytes /
								  w->host.link_gbps;
					in_ns[copies[c].to] += (double)copies[c].bytes /
							       w->host.link_gbps;
				}
				assert_int_equal(bytes, actions[i].bytes);
				assert_true(actions[i].gain_ns * w->options.horizon_steps >
					    actions[i].cost_ns);
			}
			memory_is_what_usage_says(w, running);
			for (uint32_t i = 0; i < NDP_PLACE_MAX_ACTIONS; i++)
				if (running[i].used && next(&random) % 3 == 0) {
					running[i].used = false;
					assert_int_equal(ndp_place_done(w->placer, i, now_ns,
							 next(&random) % 4 ? 0 : -EIO), 0);
				}
			memory_is_what_usage_says(w, running);
		}
		/* Each may have one copy that has just begun, and what is to begin by then. */
		now_ns += w->options.queue_ns;
		for (uint32_t d = 0; d < dimms; d++) {
			const double one = (double)w->shape.expert_bytes / w->host.link_gbps;

			assert_true(out_ns[d] <= w->options.link_share * now_ns + one);
			assert_true(in_ns[d] <= w->options.link_share * now_ns + one);
		}
		assert_true(pcie_ns <= w->options.pcie_share * now_ns +
				       (double)w->shape.expert_bytes / w->host.pcie_gbps);
		assert_true(total > 0 || dimms == 1);
		end(w);
	}
}

/* Copies that use the same port, or PCIe, come one after the other, each for its share. */
static void ports_serve_one_copy_at_a_time(void **state)
{
	struct world *w = new_world(64, 8);
	double out_ns[NDP_MAX_DIMMS] = { 0 }, in_ns[NDP_MAX_DIMMS] = { 0 }, pcie_ns = 0;
	struct ndp_place_action actions[48];
	uint32_t count, waiting = 0;

	(void)state;
	memset(w->blocks, 0, sizeof(w->blocks));
	for (uint32_t e = 0; e < 64; e++)
		w->blocks[e * 8 + e % 2] = (uint16_t)ndp_shape_blocks(&w->shape);
	w->options.gpu_bytes = 8 * w->shape.expert_bytes;
	assert_int_equal(start(w, NULL), 0);
	skewed(w, 4);
	count = ndp_place_decide(w->placer, 0, w->tokens, 5e9, actions, 48);
	assert_true(count >= 8);
	for (uint32_t i = 0; i < count; i++) {
		const double begin = actions[i].start_ns, long_ns = actions[i].end_ns - begin;
		struct ndp_copy copies[2 * NDP_MAX_DIMMS];
		const uint32_t n = ndp_place_copies(w->placer, actions[i].id, copies);
		double sent[NDP_MAX_DIMMS] = { 0 }, received[NDP_MAX_DIMMS] = { 0 };

		assert_true(begin >= 5e9 && begin <= 5e9 + w->options.queue_ns);
		waiting += begin > 5e9;
		if (actions[i].kind == NDP_PLACE_PREFETCH) {
			assert_true(begin >= pcie_ns - 1);
			pcie_ns = begin + long_ns / w->options.pcie_share;
			continue;
		}
		for (uint32_t c = 0; c < n; c++) {
			sent[copies[c].from] += (double)copies[c].bytes / w->host.link_gbps;
			received[copies[c].to] += (double)copies[c].bytes / w->host.link_gbps;
		}
		for (uint32_t d = 0; d < 8; d++) {
			assert_true(sent[d] == 0 || begin >= out_ns[d] - 1);
			assert_true(received[d] == 0 || begin >= in_ns[d] - 1);
			if (sent[d] > 0)
				out_ns[d] = begin + sent[d] / w->options.link_share;
			if (received[d] > 0)
				in_ns[d] = begin + received[d] / w->options.link_share;
		}
	}
	assert_true(waiting > 0);
	end(w);
}

/* GPU memory goes to the layer that gains most by it. */
static void victims_may_be_of_any_layer(void **state)
{
	struct world *w = new_world(16, 4);
	struct ndp_place_action actions[ACTIONS];
	uint32_t count, found = 0;

	(void)state;
	/* A CPU whose time goes by tokens, and misses that are slow. */
	w->host.cpu.gflops = 1000;
	w->host.pcie_gbps = 8;
	w->layers = 2;
	w->options.gpu_bytes = w->shape.expert_bytes;
	w->options.stay_ns = 0;
	w->options.kinds = 1u << NDP_PLACE_PREFETCH;
	assert_int_equal(start(w, NULL), 0);
	for (uint32_t e = 0; e < 16; e++)
		w->tokens[e] = e == 3 ? 40 : 1;
	assert_int_equal(decide(w, 1e9), 1);
	assert_true(ndp_place_on_gpu(w->placer, 0)[3]);
	w->tokens[3] = 1;
	w->tokens[7] = 900;
	count = ndp_place_decide(w->placer, 1, w->tokens, 2e9, actions, ACTIONS);
	for (uint32_t i = 0; i < count; i++)
		if (actions[i].expert == 7) {
			assert_int_equal(actions[i].kind, NDP_PLACE_PREFETCH);
			assert_int_equal(actions[i].layer, 1);
			assert_int_equal(actions[i].victim, 3);
			assert_int_equal(actions[i].victim_layer, 0);
			found++;
		}
	assert_int_equal(found, 1);
	assert_false(ndp_place_on_gpu(w->placer, 0)[3]);
	/* The other way round nothing is gained. */
	assert_int_equal(ndp_place_done(w->placer, actions[0].id, 3e9, 0), 0);
	w->tokens[3] = 40;
	w->tokens[7] = 1;
	for (int i = 0; i < 20; i++)
		assert_int_equal(decide(w, 4e9 + i * 1e9), 0);
	end(w);
}

/* Of the kinds of actions only those start that are asked for, and each does. */
static void only_kinds_that_are_wanted_start(void **state)
{
	(void)state;
	for (uint32_t kinds = 0; kinds < 1u << NDP_PLACE_KINDS; kinds++) {
		struct world *w = new_world(64, 8);
		struct ndp_place_usage usage;

		memset(w->blocks, 0, sizeof(w->blocks));
		for (uint32_t e = 0; e < 64; e++)
			w->blocks[e * 8 + e % 2] = (uint16_t)ndp_shape_blocks(&w->shape);
		w->options.gpu_bytes = 4 * w->shape.expert_bytes;
		w->options.kinds = kinds;
		assert_int_equal(start(w, NULL), 0);
		skewed(w, 4);
		for (int i = 0; i < 40; i++)
			decide(w, i * 1e9);
		ndp_place_usage(w->placer, &usage);
		for (uint32_t k = 0; k < NDP_PLACE_KINDS; k++) {
			if (!(kinds >> k & 1))
				assert_int_equal(usage.started[k], 0);
			else if (kinds == 1u << k)
				assert_true(usage.started[k] > 0);
		}
		end(w);
	}
}

static void equal_calls_give_equal_actions(void **state)
{
	struct world *a = new_world(64, 8), *b = new_world(64, 8);

	(void)state;
	a->options.gpu_bytes = b->options.gpu_bytes = 4 * a->shape.expert_bytes;
	assert_int_equal(start(a, NULL), 0);
	assert_int_equal(start(b, NULL), 0);
	for (int step = 0; step < 60; step++) {
		struct ndp_place_action mine[ACTIONS], theirs[ACTIONS];
		uint32_t count;

		skewed(a, (uint64_t)step / 9);
		memset(mine, 0, sizeof(mine));
		memset(theirs, 0, sizeof(theirs));
		count = ndp_place_decide(a->placer, 0, a->tokens, step * 1e8, mine, ACTIONS);
		assert_int_equal(ndp_place_decide(b->placer, 0, a->tokens, step * 1e8, theirs,
						  ACTIONS), count);
		assert_memory_equal(mine, theirs, sizeof(mine));
		for (uint32_t i = 0; i < count; i++) {
			ndp_place_done(a->placer, mine[i].id, mine[i].end_ns, 0);
			ndp_place_done(b->placer, mine[i].id, mine[i].end_ns, 0);
		}
	}
	end(a);
	end(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_that_dimms_do_not_divide_are_dealt),
		cmocka_unit_test(budgets_say_their_arithmetic),
		cmocka_unit_test(without_gpu_memory_nothing_is_prefetched),
		cmocka_unit_test(a_shift_is_followed_and_a_tie_is_not),
		cmocka_unit_test(placements_improve_and_settle),
		cmocka_unit_test(what_a_host_lacks_is_not_used),
		cmocka_unit_test(an_expert_that_moved_stays),
		cmocka_unit_test(an_expert_that_moved_often_may_get_hot),
		cmocka_unit_test(what_fails_leaves_all_as_it_was),
		cmocka_unit_test(bad_options_are_refused),
		cmocka_unit_test(limits_hold_whatever_happens),
		cmocka_unit_test(ports_serve_one_copy_at_a_time),
		cmocka_unit_test(victims_may_be_of_any_layer),
		cmocka_unit_test(only_kinds_that_are_wanted_start),
		cmocka_unit_test(equal_calls_give_equal_actions),
	};

	return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
