// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_forward.c - MoE layers over every mix of domains and under every policy give what
 * FP64 does; the families' features; batches of no, one and too many tokens; shapes
 * that fit no tile; what cannot be is refused.
 */
#include "forward_ref.h"
#include "gpu_ref.h"

static const struct fm_spec plain = {
	.hidden = 96, .neurons = 160, .experts = 8, .top_k = 2,
	.router = { .renormalize = true },
};

static struct ndp_cpu *cpu;
static struct ndp_gpu *gpu;
static struct ndp_device *dev;
static uint64_t free_bytes;

static int open_all(void **state)
{
	UNUSED_STATE;
	cpu = fm_cpu(2);
	gpu = gpu_ref_open(16 << 20, UINT64_MAX, false);
	dev = ref_open("soft:dimms=4,size=32M");
	free_bytes = ref_free_bytes(dev);
	return 0;
}

static int close_all(void **state)
{
	UNUSED_STATE;
	assert_int_equal(ref_free_bytes(dev), free_bytes);
	ndp_close(dev);
	if (gpu)
		ndp_gpu_close(gpu);
	ndp_cpu_close(cpu);
	return 0;
}

/* A machine on which no domain is so fast that it gets everything. */
static const struct ndp_host even = {
	.gpu = { .gflops = 40, .gbps = 40, .overhead_ns = 100 },
	.cpu = { .gflops = 40, .overhead_ns = 100 },
	.cpu_plain = { .gflops = 20, .overhead_ns = 100 },
	.dimm = { .gflops = 15, .gbps = 15, .overhead_ns = 100 },
	.pcie_gbps = 40, .channel_gbps = 20, .nr_channels = 2, .nr_dimms = 4,
};

static struct ndp_moe_options options_of(uint32_t domains, enum ndp_policy policy)
{
	return (struct ndp_moe_options){
		.device = dev, .cpu = cpu, .gpu = gpu, .domains = domains, .policy = policy,
		.placement = "spread:2", .host = &even,
	};
}

static bool sensible(uint32_t domains, enum ndp_policy policy)
{
	static const uint32_t of[NDP_POLICIES] = {
		[NDP_POLICY_GPU] = NDPI_GPU, [NDP_POLICY_GPU_CPU] = NDPI_GPU | NDPI_CPU,
		[NDP_POLICY_GPU_NDP] = NDPI_GPU | NDPI_NDP,
	};

	if (domains & NDPI_GPU && !gpu)
		return false;
	return !(domains & (domains - 1)) || !of[policy] || domains & of[policy];
}

/* ---- mixes ------------------------------------------------------------------------- */

static void every_mix_and_policy(void **state)
{
	static const uint32_t batches[] = { 1, 3, 17, 64 };
	uint32_t seen[NDP_DOMAINS] = { 0 };

	UNUSED_STATE;
	if (!gpu)
		print_message("# no OpenCL device: mixes without a GPU only\n");
	for (uint32_t domains = 1; domains < 8; domains++)
		for (int policy = 0; policy < NDP_POLICIES; policy++) {
			const struct ndp_moe_options o = options_of(domains, policy);
			struct ndp_moe_context *ctx;
			struct fm *m;

			if (!sensible(domains, policy))
				continue;
			m = fm_new(&plain, &o);
			ctx = fm_context(m, 64);
			for (size_t b = 0; b < sizeof(batches) / sizeof(*batches); b++) {
				struct ndp_moe_report r;

				fm_run(m, ctx, 0, batches[b], b + 1, &r);
				for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
					assert_true(!r.domain[d].experts || domains & 1u << d);
					seen[d] |= r.domain[d].experts ? domains : 0;
				}
				assert_true(r.modelled_ns > 0 && r.wall_ns > 0);
				assert_false(r.gpu_lost);
			}
			ndp_moe_context_free(ctx);
			fm_free(m);
		}
	/* Really mixed: in the mix of all three each has had a part. */
	for (uint32_t d = 0; d < NDP_DOMAINS; d++)
		assert_true(seen[d] >= 7 || !gpu);
}

/* Experts in pieces on all domains, wherever they lie. */
static void pieces(void **state)
{
	static const char *const places[] = { "local", "striped", "spread:3", "dimm:1" };
	static const struct fm_spec few = {
		.hidden = 64, .neurons = 999, .experts = 3, .top_k = 2, .shared_neurons = 50,
		.router = { .renormalize = true },
	};
	uint32_t split = 0;

	UNUSED_STATE;
	for (size_t p = 0; p < sizeof(places) / sizeof(*places); p++) {
		struct ndp_moe_options o = options_of(0, NDP_POLICY_SPLIT);
		struct ndp_moe_context *ctx;
		struct fm *m;

		o.placement = places[p];
		m = fm_new(&few, &o);
		ctx = fm_context(m, 40);
		for (uint32_t t = 1; t <= 40; t += 13) {
			struct ndp_moe_report r;
			uint32_t experts = 0;

			fm_run(m, ctx, 0, t, t + p, &r);
			for (uint32_t d = 0; d < NDP_DOMAINS; d++)
				experts += r.domain[d].experts;
			split += experts > 3 + 1;
		}
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
	assert_true(split > 0);
}

/* An expert whose blocks lie in many ranges, back and forth, and then moves. */
static void scattered_experts(void **state)
{
	struct ndp_moe_options o = options_of(NDPI_CPU | NDPI_NDP, NDP_POLICY_SPLIT);
	static const struct fm_spec one = { .hidden = 64, .neurons = 640, .experts = 2,
					   .top_k = 1 };
	struct ndp_placement p = { .nr_ranges = 20 };
	struct ndp_moe_context *ctx;
	struct ndp_moe_report r;
	struct ndp_error err;
	struct fm *m;

	UNUSED_STATE;
	for (uint32_t i = 0; i < 20; i++)
		p.ranges[i] = (struct ndp_range){ (const uint32_t[]){ 3, 0, 1 }[i % 3], 1 };
	m = fm_make(&one, &o);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(ndp_weights_migrate(m->moe.layers[0].experts[e].weights, &p, NULL,
						     &err), 0);
	assert_int_equal(ndpi_moe_run_init(&m->moe, &err), 0);
	ctx = fm_context(m, 9);
	fm_run(m, ctx, 0, 9, 1, &r);
	ndp_placement_local(&p, 20, 2);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(ndp_weights_migrate(m->moe.layers[0].experts[e].weights, &p, NULL,
						     &err), 0);
	fm_run(m, ctx, 0, 9, 2, &r);
	/* Who was not told has found out. */
	assert_true(r.retries > 0);
	fm_run(m, ctx, 0, 9, 2, &r);
	assert_int_equal(r.retries, 0);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

/* ---- families ------------------------------------------------------------------------ */

static const struct fm_spec families[] = {
	{ .hidden = 100, .neurons = 36, .experts = 8, .top_k = 2,
	 .router = { .renormalize = true } },
	/* DeepSeek-V2 */
	{ .hidden = 64, .neurons = 64, .experts = 12, .top_k = 3, .shared_neurons = 70,
	  .router = { .groups = 4, .keep_groups = 2, .group_score = NDP_GROUP_MAX, .scale = 16 } },
	/* DeepSeek-V3, GLM-4.5 */
	{ .hidden = 65, .neurons = 33, .experts = 16, .top_k = 4, .shared_neurons = 64,
	  .selection = true,
	  .router = { .scoring = NDP_SCORE_SIGMOID, .groups = 4, .keep_groups = 2,
		      .group_score = NDP_GROUP_TOP2_SUM, .renormalize = true, .scale = 2.5f } },
	/* Qwen2-MoE */
	{ .hidden = 64, .neurons = 96, .experts = 6, .top_k = 2, .shared_neurons = 128,
	  .shared_gate = true },
	/* gpt-oss */
	{ .hidden = 64, .neurons = 64, .experts = 8, .top_k = 4, .bias = true, .router_bias = true,
	  .act = NDP_ACT_CLAMPED_SWIGLU, .router = { .renormalize = true } },
	{ .hidden = 1, .neurons = 1, .experts = 1, .top_k = 1, .shared_neurons = 1 },
	{ .hidden = 33, .neurons = 40, .experts = 70, .top_k = 60, .selection = true },
};

static void every_family(void **state)
{
	static const uint32_t mixes[] = { NDPI_CPU, NDPI_NDP, NDPI_CPU | NDPI_NDP, 7 };

	UNUSED_STATE;
	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++)
		for (size_t i = 0; i < sizeof(mixes) / sizeof(*mixes); i++) {
			const struct ndp_moe_options o = options_of(mixes[i], NDP_POLICY_TRIMOE);
			struct fm *m = fm_new(&families[f], &o);
			struct ndp_moe_context *ctx = fm_context(m, 50);

			fm_run(m, ctx, 0, 1, 1, NULL);
			fm_run(m, ctx, 0, 7, 2, NULL);
			fm_run(m, ctx, 0, 50, 3, NULL);
			ndp_moe_context_free(ctx);
			fm_free(m);
		}
}

/* Shared experts where no CPU computes: on the GPU, resident; else in DIMMs. */
static void shared_experts_elsewhere(void **state)
{
	static const uint32_t mixes[] = { NDPI_GPU, NDPI_GPU | NDPI_NDP, NDPI_NDP };

	UNUSED_STATE;
	for (size_t i = gpu ? 0 : 2; i < sizeof(mixes) / sizeof(*mixes); i++) {
		const struct ndp_moe_options o = options_of(mixes[i], NDP_POLICY_TRIMOE);
		struct fm *m = fm_new(&families[3], &o);
		struct ndp_moe_context *ctx = fm_context(m, 70);

		assert_int_equal(!!m->moe.layers[0].shared->gpu, i < 2);
		fm_run(m, ctx, 0, 1, 1, NULL);
		fm_run(m, ctx, 0, 70, 2, NULL);
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
}

/* It keeps the CPU busy for longer than the DIMMs need for all the others. */
static void routed_experts_go_around_a_shared_one(void **state)
{
	struct fm_spec s = plain;

	UNUSED_STATE;
	for (s.shared_neurons = 0; s.shared_neurons <= 16384; s.shared_neurons += 16384) {
		const bool shared = s.shared_neurons;
		const struct ndp_moe_options o = options_of(NDPI_CPU | NDPI_NDP,
							    NDP_POLICY_TRIMOE);
		struct fm *m = fm_new(&s, &o);
		struct ndp_moe_context *ctx = fm_context(m, 8);
		struct ndp_moe_report r;

		fm_run(m, ctx, 0, 8, 3, &r);
		if (shared) {
			assert_int_equal(r.domain[NDP_DOMAIN_CPU].experts, 1);
			assert_true(r.modelled_ns >= 8 * 6.0 * s.hidden * s.shared_neurons /
						     even.cpu.gflops);
		} else {
			assert_true(r.domain[NDP_DOMAIN_CPU].experts > 1);
		}
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
}

/* The case C3 (open-lm-engine/lm-engine#108): a shared expert behind a gate of 0.5. */
static void shared_expert_with_gate(void **state)
{
	static const struct fm_spec s = { .hidden = 1, .neurons = 1, .experts = 1, .top_k = 1,
					  .shared_neurons = 1, .shared_gate = true };
	const struct ndp_moe_options o = { .cpu = cpu };
	const float x = 1;
	struct ndp_moe_context *ctx;
	struct fm *m = fm_make(&s, &o);
	struct ndp_error err;
	ndp_bf16 one = 0x3f80, two = 0x4000;
	float out;

	UNUSED_STATE;
	ndp_expert_pack_block((void *)m->moe.layers[0].experts[0].blocks, &m->moe.info.routed, 0,
			      &one, &one, 1, &one, 1);
	ndp_expert_pack_block((void *)m->moe.layers[0].shared->blocks, &m->moe.info.shared, 0,
			      &two, &two, 1, &two, 1);
	m->moe.layers[0].shared_gate[0] = 0;
	assert_int_equal(ndpi_moe_run_init(&m->moe, &err), 0);
	ctx = fm_context(m, 1);
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, &x, 1, 1, &out, 1, NULL, &err), 0);
	/* h is rounded to BF16: 2^-9 of each term at most. */
	assert_float_equal(out, 4.254247f, 0.731059f / 512 + 0.5f * 7.046377f / 512);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

/* ---- batches --------------------------------------------------------------------------- */

static void fill_nan(struct ndp_moe_context *ctx)
{
	memset(ctx->y, 0xff, ctx->y_rows * ctx->batch.ldy * sizeof(*ctx->y));
	memset(ctx->x, 0xff, ctx->turn * ctx->batch.ldx * sizeof(*ctx->x));
}

static uint64_t dimm_commands(void)
{
	uint64_t n = 0;

	for (uint32_t d = 0; d < 4; d++) {
		struct ndp_dimm_info info;

		assert_int_equal(ndp_dimm_info(dev, d, &info), 0);
		n += info.compute.commands;
	}
	return n;
}

/* The case C4 (sgl-project/sglang#38773): experts, then everybody, without tokens. */
static void without_tokens(void **state)
{
	static const struct fm_spec four = { .hidden = 100, .neurons = 36, .experts = 4, .top_k = 1,
					     .router = { .renormalize = true } };
	static const struct fm_spec alone = { .hidden = 100, .neurons = 36, .experts = 1,
					     .top_k = 1,
					      .router = { .renormalize = true } };
	static const uint32_t ids[3] = { 0, 0, 0 };
	static const float weights[3] = { 1, 1, 1 };

	UNUSED_STATE;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		const struct ndp_moe_options o = options_of(1u << d, NDP_POLICY_TRIMOE);
		struct ndp_moe_context *a, *b;
		float want[300], got[300], *x;
		struct ndp_moe_report r;
		struct ndp_error err;
		struct fm *m, *n;
		uint64_t before;
		uint32_t tokens;

		if (d == NDP_DOMAIN_GPU && !gpu)
			continue;
		m = fm_new(&four, &o);
		n = fm_new(&alone, &o); /* the same first expert: one seed */
		a = fm_context(m, 3);
		b = fm_context(n, 3);
		fill_nan(a);
		memset(got, 0xff, sizeof(got));
		x = fm_x(m, 3, 100, 1);
		assert_int_equal(ndp_moe_forward_routed(a, 0, 0, x, 100, 3, 1, ids, weights, got,
							100, &r, &err), 0);
		assert_int_equal(r.domain[d].tokens, 3);
		assert_int_equal(r.domain[d].commands, 1);
		assert_int_equal(ndp_moe_forward_routed(b, 0, 0, x, 100, 3, 1, ids, weights, want,
							100, NULL, &err), 0);
		assert_memory_equal(got, want, sizeof(got));
		for (int i = 0; i < 300; i++)
			assert_false(isnan(got[i]));

		before = dimm_commands();
		memset(got, 0xff, sizeof(got));
		assert_int_equal(ndp_moe_forward(a, 0, 0, x, 100, 0, got, 100, &r, &err), 0);
		assert_int_equal(ndp_moe_forward(a, 0, 0, NULL, 0, 0, NULL, 0, NULL, &err), 0);
		assert_int_equal(dimm_commands(), before);
		assert_int_equal(r.domain[d].commands, 0);
		for (int i = 0; i < 300; i++)
			assert_true(isnan(got[i]));
		ndp_moe_last_ids(a, &tokens);
		assert_int_equal(tokens, 0);
		free(x);
		ndp_moe_context_free(a);
		ndp_moe_context_free(b);
		fm_free(m);
		fm_free(n);
	}
}

/* The case C5 (tenstorrent/tt-metal#18195): H = 100 and I = 36 fit no tile. */
static void odd_shape_by_hand(void **state)
{
	static const struct fm_spec s = { .hidden = 100, .neurons = 36, .experts = 1, .top_k = 1,
					  .router = { .renormalize = true } };
	/* h is rounded to BF16, 36 times the same way. */
	const float tolerance = 15.07213f / 512 + 1e-4f;

	UNUSED_STATE;
	for (uint32_t d = 0; d < NDP_DOMAINS; d++) {
		const struct ndp_moe_options o = options_of(1u << d, NDP_POLICY_TRIMOE);
		struct ndp_moe_context *ctx;
		struct ndp_weights *w = NULL;
		struct ndp_placement p;
		struct ndpi_expert *e;
		ndp_bf16 in[3600], down[3600];
		float x[500], out[500];
		struct ndp_error err;
		struct fm *m;

		if (d == NDP_DOMAIN_GPU && !gpu)
			continue;
		for (int i = 0; i < 3600; i++) {
			in[i] = ndp_bf16_from_f32(1.0f / 128);
			down[i] = 0x3f80;
		}
		m = fm_make(&s, &o);
		e = &m->moe.layers[0].experts[0];
		ndp_placement_spread(&p, 2, 3);
		assert_int_equal(ndp_expert_create(&w, dev, &m->moe.info.routed, &p, 0, 0, &err),
				 0);
		assert_int_equal(ndp_expert_load(w, in, in, 100, down, 36), 0);
		assert_int_equal(ndp_weights_seal(w), 0);
		ndp_weights_free(e->weights);
		e->weights = w;
		e->blocks = ndp_weights_map(w);
		assert_int_equal(ndpi_moe_run_init(&m->moe, &err), 0);
		ctx = fm_context(m, 5);
		fill_nan(ctx);
		for (int i = 0; i < 500; i++)
			x[i] = 1;
		memset(out, 0xff, sizeof(out));
		assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 100, 5, out, 100, NULL, &err), 0);
		for (int i = 0; i < 500; i++)
			assert_float_equal(out[i], 15.07213f, tolerance);
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
}

/* More tokens than the context is for, than a command takes, than DIMMs have room for. */
static void large_batches(void **state)
{
	static const struct fm_spec s = { .hidden = 40, .neurons = 40, .experts = 3, .top_k = 2,
					  .shared_neurons = 40, .router = { .renormalize = true } };
	static const uint32_t mixes[] = { NDPI_NDP, NDPI_CPU, NDPI_CPU | NDPI_NDP };

	UNUSED_STATE;
	for (size_t i = 0; i < sizeof(mixes) / sizeof(*mixes); i++) {
		const struct ndp_moe_options o = options_of(mixes[i], NDP_POLICY_TRIMOE);
		struct fm *m = fm_new(&s, &o);
		struct ndp_moe_context *ctx = fm_context(m, 10);
		struct ndp_moe_report r;

		fm_run(m, ctx, 0, 101, 1, &r);
		assert_int_equal(r.regime, NDP_REGIME_MIDFILL);
		ndp_moe_context_free(ctx);
		ctx = fm_context(m, 2500);
		fm_run(m, ctx, 0, 2500, 2, &r);
		assert_int_equal(r.regime, NDP_REGIME_PREFILL);
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
}

/* Results of 1,200 pairs, 2 KiB each, do not fit these DIMMs at once: waves. */
static void little_room_for_results(void **state)
{
	static const struct fm_spec s = { .hidden = 512, .neurons = 32, .experts = 4, .top_k = 4 };
	struct ndp_device *small = ref_open("soft:dimms=2,size=2M");

	UNUSED_STATE;
	for (int fixed = 0; fixed < 2; fixed++) {
		const struct ndp_moe_options o = { .device = small, .deterministic = fixed };
		struct fm *m = fm_new(&s, &o);
		struct ndp_moe_context *ctx = fm_context(m, 300);

		fm_run(m, ctx, 0, 300, 1, NULL);
		fm_run(m, ctx, 0, 20, 2, NULL);
		ndp_moe_context_free(ctx);
		fm_free(m);
	}
	ndp_close(small);
}

/* Output in place of the input; any number of experts, one of them twice. */
static void in_place_and_routed(void **state)
{
	static const uint32_t ids[] = { 3, 3, 0, 1, 2, 3, 4, 5, 7 };
	static const float weights[] = { 1, -2, 0.5f, 0, 3, 1, 1, 1, 0.25f };
	const struct ndp_moe_options o = options_of(NDPI_CPU | NDPI_NDP, NDP_POLICY_SPLIT);
	struct fm *m = fm_new(&plain, &o);
	struct ndp_moe_context *ctx = fm_context(m, 4);
	struct ndp_error err;

	UNUSED_STATE;
	for (uint32_t k = 1; k <= 9; k += 2) {
		const uint32_t tokens = 9 / k;
		float *x = fm_x(m, tokens, 96, k), *y = malloc(tokens * 96 * sizeof(*y));
		double want[96], tolerance[96], w[9];

		memcpy(y, x, tokens * 96 * sizeof(*y));
		if (k > 8) {
			assert_int_equal(ndp_moe_forward_routed(ctx, 0, 0, y, 96, tokens, k, ids,
								weights, y, 96, NULL, &err),
					 -EINVAL);
			assert_non_null(strstr(err.message, "the model has 8"));
		} else {
			assert_int_equal(ndp_moe_forward_routed(ctx, 0, 0, y, 96, tokens, k, ids,
								weights, y, 96, NULL, &err), 0);
			for (uint32_t t = 0; t < tokens; t++) {
				for (uint32_t j = 0; j < k; j++)
					w[j] = weights[t * k + j];
				fm_reference(m, 0, x + t * 96, k, ids + t * k, w, false, want,
					     tolerance);
				ref_assert_near(y + t * 96, want, tolerance, 96);
			}
		}
		free(y);
		free(x);
	}
	ndp_moe_context_free(ctx);
	fm_free(m);
}

/* ---- hot experts ----------------------------------------------------------------------- */

static uint32_t resident(const struct fm *m)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < m->spec.experts; e++)
		n += !!m->moe.layers[m->moe.info.layers - 1].experts[e].gpu;
	return n;
}

static void hot_by_hand(void **state)
{
	static const uint32_t hot[] = { 5, 1, 7 }, others[] = { 1, 2 };
	struct ndp_moe_options o = options_of(NDPI_GPU | NDPI_CPU, NDP_POLICY_TRIMOE);
	struct ndp_moe_context *ctx;
	struct ndp_error err;
	struct fm *m;

	UNUSED_STATE;
	if (!gpu)
		skip();
	m = fm_new(&plain, &o);
	ctx = fm_context(m, 8);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 0, hot, 3, &err), 3);
	fm_run(m, ctx, 0, 8, 1, NULL);
	assert_int_equal(resident(m), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ndp_gpu_upload_wait(m->moe.layers[0].experts[hot[i]].gpu), 0);
	fm_run(m, ctx, 0, 8, 2, NULL);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 0, others, 2, &err), 2);
	assert_null(m->moe.layers[0].experts[5].gpu);
	assert_non_null(m->moe.layers[0].experts[2].gpu);
	fm_run(m, ctx, 0, 8, 3, NULL);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 0, NULL, 0, &err), 0);
	assert_int_equal(resident(m), 0);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 1, hot, 1, &err), -EINVAL);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 0, (const uint32_t[]){ 8 }, 1, &err), -EINVAL);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

/* Tokens like a few experts, then others: GPU memory follows, within its budget. */
static void hot_by_prediction(void **state)
{
	static const struct fm_spec s = { .hidden = 64, .neurons = 32, .experts = 16, .top_k = 2,
					  .layers = 3 };
	/* Blocks are 12 KiB: room for five experts, two or three in each layer. */
	struct ndp_gpu *small = gpu ? gpu_ref_open(5 * 12288, UINT64_MAX, false) : NULL;
	struct ndp_moe_options o = { .cpu = cpu, .gpu = small, .adapt = true, .host = &even,
				     .policy = NDP_POLICY_TRIMOE };
	struct ndp_moe_context *ctx;
	struct ndp_gpu_info info;
	struct ndp_error err;
	struct fm *m;
	float *x;

	UNUSED_STATE;
	if (!small)
		skip();
	m = fm_new(&s, &o);
	ctx = fm_context(m, 4);
	x = fm_x(m, 4, 64, 1);
	for (uint32_t phase = 0; phase < 2; phase++) {
		const uint32_t a = phase ? 11 : 3, b = phase ? 4 : 9;
		const uint32_t ids[] = { a, b, b, a, a, b, 1, a };
		const float weights[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
		float out[4 * 64];

		for (int step = 0; step < 40; step++)
			for (uint32_t l = 1; l < 3; l++)
				assert_int_equal(ndp_moe_forward_routed(ctx, l, 0, x, 64, 4, 2, ids,
									weights, out, 64, NULL,
									&err), 0);
		for (uint32_t l = 1; l < 3; l++) {
			assert_non_null(m->moe.layers[l].experts[a].gpu);
			assert_non_null(m->moe.layers[l].experts[b].gpu);
		}
		assert_in_range(resident(m), 2, 3);
		ndp_gpu_info(small, &info);
		assert_true(info.used_bytes <= info.budget_bytes);
	}
	fm_run(m, ctx, 1, 4, 9, NULL);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 1, NULL, 0, &err), -EBUSY);
	free(x);
	ndp_moe_context_free(ctx);
	fm_free(m);
	ndp_gpu_close(small);
}

/* ---- what cannot be --------------------------------------------------------------------- */

static void refuse(const struct ndp_moe_options *o, const char *words)
{
	struct fm *m = fm_make(&plain, o);
	struct ndp_error err;

	assert_true(ndpi_moe_run_init(&m->moe, &err) < 0);
	if (!strstr(err.message, words))
		fail_msg("\"%s\" without \"%s\"", err.message, words);
	assert_null(m->moe.run);
	fm_free(m);
}

static void bad_options(void **state)
{
	struct ndp_host other = even;

	UNUSED_STATE;
	refuse(&(struct ndp_moe_options){ .domains = 1 }, "wanted GPU, given were nothing");
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .domains = NDPI_NDP }, "wanted NDP");
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .domains = 9 }, "options.domains");
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .policy = 99 }, "options.policy");
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .charges = 99 }, "options.charges");
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .device = dev, .policy = NDP_POLICY_GPU },
	       "policy gpu uses GPU only");
	other.channel_gbps = 0;
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .device = dev, .host = &other,
					  .policy = NDP_POLICY_TRIMOE }, "channel_gbps");
	other = even;
	other.cpu.gflops = other.dimm.gflops = 0;
	refuse(&(struct ndp_moe_options){ .cpu = cpu, .device = dev, .host = &other,
					  .policy = NDP_POLICY_TRIMOE }, "another machine");
}

static void bad_calls(void **state)
{
	static const struct fm_spec s = { .hidden = 32, .neurons = 32, .experts = 2, .top_k = 1,
					  .layers = 2 };
	const struct ndp_moe_options o = { .cpu = cpu };
	struct fm *m = fm_new(&s, &o);
	struct ndp_moe_context *ctx = fm_context(m, 4), *none;
	float x[128] = { 0 }, out[128];
	const uint32_t ids[] = { 0, 2 };
	struct ndp_error err;

	UNUSED_STATE;
	assert_int_equal(ndp_moe_context_create(&none, &m->moe, 0, &err), -EINVAL);
	assert_null(none);
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 32, 4, out, 32, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.message, "layer 0"));
	assert_int_equal(ndp_moe_forward(ctx, 2, 0, x, 32, 4, out, 32, NULL, &err), -EINVAL);
	assert_int_equal(ndp_moe_forward(ctx, 1, 9, x, 32, 4, out, 32, NULL, &err), -EINVAL);
	assert_int_equal(ndp_moe_forward(ctx, 1, 0, x, 31, 4, out, 32, NULL, &err), -EINVAL);
	assert_int_equal(ndp_moe_forward(ctx, 1, 0, x, 32, 2, x, 64, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.message, "are the same"));
	assert_int_equal(ndp_moe_forward_routed(ctx, 1, 0, x, 32, 2, 1, ids, x, out, 32, NULL,
						&err),
			 -EINVAL);
	assert_non_null(strstr(err.message, "token 1: expert 2"));
	assert_int_equal(ndp_moe_forward_routed(ctx, 1, 0, x, 32, 2, 1, NULL, x, out, 32, NULL,
						&err), -EINVAL);
	assert_int_equal(ndp_moe_forward_routed(ctx, 1, 0, x, 32, 2, 0, ids, x, out, 32, NULL,
						&err),
			 -EINVAL);
	/* And it still works. */
	fm_run(m, ctx, 1, 4, 1, NULL);
	ndp_moe_context_free(ctx);
	ndp_moe_context_free(NULL);
	fm_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_mix_and_policy),
		cmocka_unit_test(pieces),
		cmocka_unit_test(scattered_experts),
		cmocka_unit_test(every_family),
		cmocka_unit_test(shared_experts_elsewhere),
		cmocka_unit_test(routed_experts_go_around_a_shared_one),
		cmocka_unit_test(shared_expert_with_gate),
		cmocka_unit_test(without_tokens),
		cmocka_unit_test(odd_shape_by_hand),
		cmocka_unit_test(large_batches),
		cmocka_unit_test(little_room_for_results),
		cmocka_unit_test(in_place_and_routed),
		cmocka_unit_test(hot_by_hand),
		cmocka_unit_test(hot_by_prediction),
		cmocka_unit_test(bad_options),
		cmocka_unit_test(bad_calls),
	};

	return cmocka_run_group_tests_name("forward", tests, open_all, close_all);
}
