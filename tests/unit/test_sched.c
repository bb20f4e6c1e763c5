// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * test_sched.c - the scheduler: its rules by hand-made numbers, what it refuses,
 * and what must hold for every plan of every layer.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "sched_random.h"

enum {
	RANDOM_LAYERS = 1500,
};

/* Four experts of DeepSeek-V2 on the paper's machine. */
static struct random_layer made;

static int set_up(void **state)
{
	struct random_layer *r = &made;

	*state = r;
	memset(r, 0, sizeof(*r));
	paper_host(&r->host);
	r->shape = (struct ndp_shape) { 4, 6, 5120, 1536, 47185920 };
	r->layer = (struct ndp_layer) {
		.host = &r->host, .shape = &r->shape, .charges = NDP_CHARGES_PAPER,
		.tokens = r->tokens, .blocks = r->blocks, .on_gpu = r->on_gpu,
	};
	for (uint32_t e = 0; e < 4; e++) {
		r->tokens[e] = 10;
		r->blocks[e * 16 + e] = 48;
	}
	return 0;
}

static void near(double is, double should)
{
	if (fabs(is - should) > 1e-6 * fabs(should) + 1e-9)
		fail_msg("%.9g, expected %.9g", is, should);
}

/* ---- the rules ------------------------------------------------------------------------ */

static void a_localized_expert_is_read_over_one_channel(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	near(ndp_expert_cost(&r->layer, 1, NDP_DOMAIN_CPU, &l), 47185920 / 38.4);
	near(l.cpu_ns, 47185920 / 38.4);
	near(l.channel_ns[1], 47185920 / 38.4);
	near(l.channel_ns[0], 0);
	near(l.dimm_ns[1], 0);
}

static void a_spread_expert_is_read_over_all(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	for (uint32_t d = 0; d < 16; d++)
		r->blocks[d] = 3;
	near(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_CPU, &l), 47185920 / 307.2);
	for (uint32_t c = 0; c < 8; c++)
		near(l.channel_ns[c], 47185920 / 307.2);
}

static void a_cpu_with_many_tokens_computes_longer_than_it_reads(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	r->tokens[0] = 4000;
	near(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_CPU, &l), 4000 * 6.0 * 5120 * 1536 / 90100);
}

static void a_dimm_computes_or_reads_whichever_is_longer(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	near(ndp_expert_cost(&r->layer, 2, NDP_DOMAIN_NDP, &l), 500 + 10 * 6.0 * 5120 * 1536 / 256);
	r->tokens[2] = 1;
	near(ndp_expert_cost(&r->layer, 2, NDP_DOMAIN_NDP, &l), 500 + 47185920 / 153.6);
	near(l.dimm_ns[2], 500 + 47185920 / 153.6);
	near(l.dimm_ns[1], 0);
}

static void each_dimm_of_a_spread_expert_gets_a_command(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	for (uint32_t d = 0; d < 16; d++)
		r->blocks[d] = 3;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_NDP, &l);
	for (uint32_t d = 0; d < 16; d++)
		near(l.dimm_ns[d], 500 + 10 * 6.0 * 5120 * 1536 / 256 / 16);
}

static void a_resident_expert_costs_the_gpu_only(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	r->on_gpu[3] = 1;
	near(ndp_expert_cost(&r->layer, 3, NDP_DOMAIN_GPU, &l), 3000 + 47185920 / 1600.0);
	near(l.pcie_ns, 0);
	near(l.channel_ns[3], 0);
}

static void a_missing_expert_costs_pcie_and_its_channel(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	/* From one DIMM the channel is slower than PCIe, from all PCIe is. */
	near(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_GPU, &l), 47185920 / 38.4);
	for (uint32_t d = 0; d < 16; d++)
		r->blocks[d] = 3;
	near(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_GPU, &l), 47185920 / 64.0);
	near(l.cpu_ns, 0);
}

static void each_charge_is_an_option(void **state)
{
	struct random_layer *r = *state;
	const double read = 47185920 / 38.4, xy = 10 * 5120 * 6 / 38.4;
	struct ndp_loads l;

	r->layer.charges = 0;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_CPU, &l);
	near(l.channel_ns[0], 0);
	r->layer.charges = NDP_CHARGE_DIMM_READS;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_CPU, &l);
	near(l.dimm_ns[0], read);
	r->layer.charges = NDP_CHARGE_STAGING;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_GPU, &l);
	near(l.cpu_ns, 47185920 / 153.6);
	r->layer.charges = NDP_CHARGE_ACTIVATIONS;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_NDP, &l);
	near(l.channel_ns[0], xy);
	near(l.dimm_ns[0], 500 + 10 * 6.0 * 5120 * 1536 / 256);
	r->layer.charges |= NDP_CHARGE_DIMM_READS;
	ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_NDP, &l);
	near(l.dimm_ns[0], 500 + 10 * 6.0 * 5120 * 1536 / 256 + xy);
}

static void a_table_is_linear_between_its_points(void **state)
{
	struct random_layer *r = *state;
	struct ndp_rate rate = { .gflops = 1, .nr_points = 2, .tokens = { 10, 20 },
				 .point_gflops = { 100, 300 } };
	const double flops = 6.0 * 5120 * 1536;

	near(ndp_rate_ns(&rate, &r->shape, 5), 5 * flops / 100);
	near(ndp_rate_ns(&rate, &r->shape, 15), 15 * flops / 200);
	near(ndp_rate_ns(&rate, &r->shape, 99), 99 * flops / 300);
	rate.gflops = 0;
	assert_true(isinf(ndp_rate_ns(&rate, &r->shape, 5)));
}

static void what_a_machine_lacks_cannot_compute(void **state)
{
	struct random_layer *r = *state;
	struct ndp_loads l;

	r->host.pcie_gbps = 0;
	r->on_gpu[1] = 1;
	assert_true(isinf(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_GPU, &l)));
	assert_false(isinf(ndp_expert_cost(&r->layer, 1, NDP_DOMAIN_GPU, &l)));
	r->host.cpu.gflops = r->host.dimm.gflops = 0;
	assert_true(isinf(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_CPU, &l)));
	assert_true(isinf(ndp_expert_cost(&r->layer, 0, NDP_DOMAIN_NDP, &l)));
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void refused(struct random_layer *r, const char *field)
{
	struct ndp_error err = { 0 };

	assert_int_equal(ndp_layer_check(&r->layer, &err), -EINVAL);
	assert_int_equal(err.code, -EINVAL);
	if (!strstr(err.message, field))
		fail_msg("\"%s\" does not name %s", err.message, field);
	assert_int_equal(ndp_layer_check(&r->layer, NULL), -EINVAL);
}

static void a_bad_layer_is_refused_by_the_name_of_the_field(void **state)
{
	struct random_layer *r = *state;
	struct random_layer *good = malloc(sizeof(*good));

	memcpy(good, r, sizeof(*good));
	assert_int_equal(ndp_layer_check(&r->layer, NULL), 0);
#define refuse_with(field, assignment) do { \
		memcpy(r, good, sizeof(*r)); \
		assignment; \
		refused(r, field); \
	} while (0)
	refuse_with("nr_dimms", r->host.nr_dimms = 0);
	refuse_with("nr_dimms", r->host.nr_dimms = NDP_MAX_DIMMS + 1);
	refuse_with("nr_channels", r->host.nr_channels = 0);
	refuse_with("nr_channels", r->host.nr_channels = NDP_MAX_CHANNELS + 1);
	refuse_with("channel_gbps", r->host.channel_gbps = 0);
	refuse_with("channel_gbps", r->host.channel_gbps = NAN);
	refuse_with("pcie_gbps", r->host.pcie_gbps = -1);
	refuse_with("staging_gbps", r->host.staging_gbps = INFINITY);
	refuse_with("link_gbps", r->host.link_gbps = NAN);
	refuse_with("host.gpu", r->host.gpu.gflops = NAN);
	refuse_with("host.cpu", r->host.cpu.overhead_ns = -1);
	refuse_with("host.dimm.nr_points", r->host.dimm.nr_points = NDP_MAX_RATE_POINTS + 1);
	refuse_with("host.dimm.point_gflops[0]", r->host.dimm.nr_points = 1);
	refuse_with("host.dimm.tokens[1]", {
		r->host.dimm.nr_points = 2;
		r->host.dimm.point_gflops[0] = r->host.dimm.point_gflops[1] = 1;
	});
	refuse_with("shape.experts", r->shape.experts = 0);
	refuse_with("shape.experts", r->shape.experts = NDP_MAX_EXPERTS + 1);
	refuse_with("shape.hidden", r->shape.hidden = 0);
	refuse_with("shape.intermediate", r->shape.intermediate = 0);
	refuse_with("shape.intermediate", r->shape.intermediate = 65536 * 32);
	refuse_with("shape.expert_bytes", r->shape.expert_bytes = 0);
	refuse_with("expert 2", r->blocks[2 * 16 + 5] = 1);
	refuse_with("charges", r->layer.charges = 16);
	refuse_with("shared_domain", {
		r->layer.shared = r->blocks;
		r->layer.shared_domain = NDP_DOMAINS;
	});
	refuse_with("shared_domain", {
		r->layer.shared = r->blocks;
		r->layer.shared_domain = NDP_DOMAIN_CPU;
		r->host.cpu.gflops = 0;
	});
	refuse_with("shared", r->layer.shared = r->shared);
	refuse_with("layer", r->layer.tokens = NULL);
#undef refuse_with
	free(good);
}

static void a_placement_becomes_a_row(void **state)
{
	struct ndp_placement p = { 3, { { 2, 10 }, { 0, 5 }, { 2, 1 } } };
	uint16_t row[4];

	(void)state;
	assert_int_equal(ndp_layer_place(row, 4, &p), 0);
	assert_int_equal(row[0], 5);
	assert_int_equal(row[1], 0);
	assert_int_equal(row[2], 11);
	assert_int_equal(ndp_layer_place(row, 2, &p), -EINVAL);
}

static void names_are_policies(void **state)
{
	(void)state;
	for (int p = 0; p < NDP_POLICIES; p++)
		assert_int_equal(ndp_policy_parse(ndp_policy_name(p)), p);
	assert_int_equal(ndp_policy_parse("best"), -EINVAL);
	assert_int_equal(ndp_policy_parse(""), -EINVAL);
}

static void no_domain_is_an_error_and_nothing_else(void **state)
{
	struct random_layer *r = *state;
	struct planner p;

	planner_init(&p, r);
	r->host.pcie_gbps = 0;
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_GPU, p.work, &p.plan), -ENODEV);
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_GPU_NDP, p.work, &p.plan), 0);
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICIES, p.work, &p.plan), -EINVAL);
	p.plan.experts = 3;
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_GPU_NDP, p.work, &p.plan), -EINVAL);
	planner_free(&p);
}

static void a_layer_without_tokens_takes_no_time(void **state)
{
	struct random_layer *r = *state;
	struct planner p;

	planner_init(&p, r);
	memset(r->tokens, 0, sizeof(r->tokens));
	for (int policy = 0; policy < NDP_POLICIES; policy++) {
		assert_int_equal(ndp_schedule(&r->layer, policy, p.work, &p.plan), 0);
		assert_int_equal(ndp_plan_check(&r->layer, &p.plan, NULL), 0);
		near(p.plan.makespan_ns, 0);
	}
	near(ndp_fluid_bound(&r->layer, p.work), 0);
	planner_free(&p);
}

/* A check that accepts everything would make the properties below worthless. */
static void a_wrong_plan_is_noticed(void **state)
{
	struct random_layer *r = *state;
	struct ndp_error err;
	struct planner p;

	planner_init(&p, r);
#define wrong_with(text, change) do { \
		assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_TRIMOE, p.work, &p.plan), 0); \
		assert_int_equal(ndp_plan_check(&r->layer, &p.plan, &err), 0); \
		change; \
		assert_int_equal(ndp_plan_check(&r->layer, &p.plan, &err), -EINVAL); \
		if (!strstr(err.message, text)) \
			fail_msg("\"%s\" does not say %s", err.message, text); \
	} while (0)
	wrong_with("nowhere", p.plan.domain[1] = NDP_DOMAIN_NONE);
	wrong_with("have pieces", p.plan.domain[1] = NDP_DOMAIN_SPLIT);
	wrong_with("domain 9", p.plan.domain[1] = 9);
	wrong_with("says", p.plan.makespan_ns *= 1.01);
	wrong_with("says", p.plan.domain[0] = p.plan.domain[0] == NDP_DOMAIN_CPU ? NDP_DOMAIN_NDP :
		   NDP_DOMAIN_CPU);
#define pieces(...) do { \
		const struct ndp_piece all[] = { __VA_ARGS__ }; \
		p.plan.domain[1] = NDP_DOMAIN_SPLIT; \
		p.plan.nr_pieces = sizeof(all) / sizeof(all[0]); \
		memcpy(p.plan.pieces, all, sizeof(all)); \
	} while (0)
	wrong_with("of the 48 blocks", pieces({ 1, 0, 47, NDP_DOMAIN_CPU, 1, 0 }));
	wrong_with("share blocks", pieces({ 1, 0, 24, NDP_DOMAIN_CPU, 1, 0 },
					  { 1, 23, 24, NDP_DOMAIN_NDP, 1, 0 }));
	wrong_with("which has 0", pieces({ 1, 0, 48, NDP_DOMAIN_CPU, 2, 0 }));
	wrong_with("not split", pieces({ 2, 0, 48, NDP_DOMAIN_CPU, 2, 0 }));
	wrong_with("out of order", pieces({ 1, 0, 24, NDP_DOMAIN_NDP, 1, 0 },
					  { 1, 24, 24, NDP_DOMAIN_CPU, 1, 0 }));
	pieces({ 1, 0, 24, NDP_DOMAIN_CPU, 1, 0 }, { 1, 24, 24, NDP_DOMAIN_NDP, 1, 0 });
	ndp_plan_loads(&r->layer, &p.plan, &p.plan.loads);
	p.plan.makespan_ns = ndp_loads_max(&p.plan.loads, &r->host);
	assert_int_equal(ndp_plan_check(&r->layer, &p.plan, &err), 0);
#undef wrong_with
#undef pieces
	planner_free(&p);
}

/* ---- the shared expert ------------------------------------------------------------------- */

/* Twice the blocks of a routed one, on all DIMMs. */
static void share(struct random_layer *r, uint32_t tokens, enum ndp_domain domain)
{
	for (uint32_t d = 0; d < r->host.nr_dimms; d++)
		r->shared[d] = 6;
	r->layer.shared = r->shared;
	r->layer.shared_tokens = tokens;
	r->layer.shared_domain = domain;
}

static void the_shared_expert_takes_its_time(void **state)
{
	struct random_layer *r = *state;
	struct planner p;

	planner_init(&p, r);
	memset(r->tokens, 0, sizeof(r->tokens));
	r->layer.charges = NDP_CHARGES_ALL;
	share(r, 1, NDP_DOMAIN_CPU);
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_TRIMOE, p.work, &p.plan), 0);
	near(p.plan.loads.cpu_ns, 2 * 47185920 / 8 / 38.4);
	near(p.plan.loads.channel_ns[3], 2 * 47185920 / 8 / 38.4);
	near(p.plan.loads.dimm_ns[3], 2 * 47185920 / 16 / 38.4);
	r->layer.shared_domain = NDP_DOMAIN_GPU;
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_SPLIT, p.work, &p.plan), 0);
	near(p.plan.loads.gpu_ns, 3000 + 2 * 47185920 / 1600.);
	near(p.plan.loads.pcie_ns, 0);
	near(p.plan.loads.cpu_ns, 0);
	r->layer.shared_domain = NDP_DOMAIN_CPU;
	r->host.cpu_plain.gflops = 0;
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_TRIMOE_NOCPU_AMX, p.work, &p.plan),
			 -ENODEV);
	planner_free(&p);
}

/* Of what the CPU would take alone, nothing is left for it. */
static void the_routed_experts_go_around_the_shared_one(void **state)
{
	static const enum ndp_policy policies[] = { NDP_POLICY_TRIMOE, NDP_POLICY_SPLIT };
	struct random_layer *r = *state;
	struct planner p;

	planner_init(&p, r);
	r->layer.charges = NDP_CHARGES_ALL;
	r->host.pcie_gbps = 0;
	/* Two in one DIMM: one of them is for the CPU, if that has nothing else to do. */
	r->blocks[16 + 1] = 0;
	r->blocks[16] = 48;
	for (uint32_t k = 0; k < sizeof(policies) / sizeof(policies[0]); k++) {
		double around;

		r->layer.shared = NULL;
		assert_int_equal(ndp_schedule(&r->layer, policies[k], p.work, &p.plan), 0);
		assert_true(p.plan.loads.cpu_ns > 0);
		share(r, 4000, NDP_DOMAIN_CPU);
		assert_int_equal(ndp_schedule(&r->layer, policies[k], p.work, &p.plan), 0);
		assert_int_equal(ndp_plan_check(&r->layer, &p.plan, NULL), 0);
		for (uint32_t e = 0; e < 4; e++)
			assert_int_equal(p.plan.domain[e], NDP_DOMAIN_NDP);
		around = p.plan.makespan_ns;
		near(around, p.plan.loads.cpu_ns);
		assert_true(ndp_fluid_bound(&r->layer, p.work) > around * (1 - 1e-4));
	}
	planner_free(&p);
}

/* ---- what holds for every layer ---------------------------------------------------------- */

static void add_loads(struct ndp_loads *sum, const struct ndp_loads *l)
{
	sum->gpu_ns += l->gpu_ns;
	sum->pcie_ns += l->pcie_ns;
	sum->cpu_ns += l->cpu_ns;
	for (uint32_t c = 0; c < NDP_MAX_CHANNELS; c++)
		sum->channel_ns[c] += l->channel_ns[c];
	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
		sum->dimm_ns[d] += l->dimm_ns[d];
}

/* The shared expert, as if it were a routed one whose copy the GPU holds. */
static void add_shared(const struct ndp_layer *layer, struct ndp_loads *sum)
{
	const uint8_t on_gpu = 1;
	struct ndp_layer alone = *layer;
	struct ndp_loads l;

	if (!layer->shared)
		return;
	alone.tokens = &layer->shared_tokens;
	alone.blocks = layer->shared;
	alone.on_gpu = &on_gpu;
	assert_true(isfinite(ndp_expert_cost(&alone, 0, layer->shared_domain, &l)));
	add_loads(sum, &l);
}

static double in_one_domain(const struct ndp_layer *layer, enum ndp_domain domain)
{
	struct ndp_loads sum = { 0 }, l;

	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		if (!layer->tokens[e])
			continue;
		if (isinf(ndp_expert_cost(layer, e, domain, &l)))
			return HUGE_VAL;
		add_loads(&sum, &l);
	}
	add_shared(layer, &sum);
	return ndp_loads_max(&sum, layer->host);
}

static bool allowed(enum ndp_policy policy, enum ndp_domain domain)
{
	if (policy == NDP_POLICY_GPU)
		return domain == NDP_DOMAIN_GPU;
	if (policy == NDP_POLICY_GPU_CPU)
		return domain != NDP_DOMAIN_NDP;
	if (policy == NDP_POLICY_GPU_NDP)
		return domain != NDP_DOMAIN_CPU;
	return policy != NDP_POLICY_TRIMOE_NOCPU_AMX || domain != NDP_DOMAIN_CPU;
}

static void check_layer(struct random_layer *r, struct planner *p, uint64_t seed)
{
	const double bound = ndp_fluid_bound(&r->layer, p->work);
	struct ndp_error err;

	for (int policy = 0; policy < NDP_POLICIES; policy++) {
		const int done = ndp_schedule(&r->layer, policy, p->work, &p->plan);

		if (done == -ENODEV)
			continue;
		assert_int_equal(done, 0);
		if (ndp_plan_check(&r->layer, &p->plan, &err) < 0)
			fail_msg("layer %llu, %s: %s", (unsigned long long)seed,
				 ndp_policy_name(policy), err.message);
		if (policy != NDP_POLICY_TRIMOE_NOCPU_AMX && p->plan.makespan_ns < bound)
			fail_msg("layer %llu, %s: %.3f is below the bound %.3f",
				 (unsigned long long)seed, ndp_policy_name(policy),
				 p->plan.makespan_ns, bound);
		if (policy == NDP_POLICY_TRIMOE_NOREFINE ||
		    (policy == NDP_POLICY_TRIMOE_NOCPU_AMX && r->layer.shared))
			continue;
		for (int d = 0; d < NDP_DOMAINS; d++)
			if (allowed(policy, d) && p->plan.makespan_ns >
			    in_one_domain(&r->layer, d) * (1 + 1e-5))
				fail_msg("layer %llu, %s: %.0f, in domain %d alone %.0f",
					 (unsigned long long)seed, ndp_policy_name(policy),
					 p->plan.makespan_ns, d, in_one_domain(&r->layer, d));
	}
}

static void every_plan_is_one_and_beats_each_domain_alone(void **state)
{
	struct random_layer *r = *state;
	struct planner p;

	for (uint64_t seed = 0; seed < RANDOM_LAYERS; seed++) {
		random_layer(r, seed, 0);
		assert_int_equal(ndp_layer_check(&r->layer, NULL), 0);
		planner_init(&p, r);
		check_layer(r, &p, seed);
		random_shared(r);
		assert_int_equal(ndp_layer_check(&r->layer, NULL), 0);
		check_layer(r, &p, seed);
		planner_free(&p);
	}
}

static void large_layers_too(void **state)
{
	struct random_layer *r = *state;
	struct planner p;

	for (uint64_t seed = 0; seed < 12; seed++) {
		random_layer(r, seed, 300 + 50 * seed);
		planner_init(&p, r);
		check_layer(r, &p, seed);
		planner_free(&p);
	}
}

/* The same plan whatever was in the memory, and nothing is written beyond it. */
static void equal_input_gives_an_equal_plan(void **state)
{
	struct random_layer *r = *state;
	struct ndp_piece *pieces = NULL;
	uint8_t domain[64];
	struct planner p;

	for (uint64_t seed = 0; seed < 200; seed++) {
		random_layer(r, seed, 0);
		planner_init(&p, r);
		for (int policy = 0; policy < NDP_POLICIES; policy++) {
			const size_t bytes = ndp_schedule_bytes(r->shape.experts, r->host.nr_dimms);
			double makespan = 0;
			uint32_t nr = 0;

			for (int run = 0; run < 2; run++) {
				memset(p.work, run ? 0xff : 0, bytes);
				if (ndp_schedule(&r->layer, policy, p.work, &p.plan) < 0)
					break;
				if (!run) {
					makespan = p.plan.makespan_ns;
					nr = p.plan.nr_pieces;
					memcpy(domain, p.plan.domain, r->shape.experts);
					pieces = realloc(pieces, (nr + 1) * sizeof(*pieces));
					memcpy(pieces, p.plan.pieces, nr * sizeof(*pieces));
					continue;
				}
				assert_true(makespan == p.plan.makespan_ns);
				assert_int_equal(nr, p.plan.nr_pieces);
				assert_memory_equal(domain, p.plan.domain, r->shape.experts);
				if (nr)
					assert_memory_equal(pieces, p.plan.pieces,
							    nr * sizeof(*pieces));
			}
		}
		planner_free(&p);
	}
	free(pieces);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_localized_expert_is_read_over_one_channel, set_up),
		cmocka_unit_test_setup(a_spread_expert_is_read_over_all, set_up),
		cmocka_unit_test_setup(a_cpu_with_many_tokens_computes_longer_than_it_reads, set_up),
		cmocka_unit_test_setup(a_dimm_computes_or_reads_whichever_is_longer, set_up),
		cmocka_unit_test_setup(each_dimm_of_a_spread_expert_gets_a_command, set_up),
		cmocka_unit_test_setup(a_resident_expert_costs_the_gpu_only, set_up),
		cmocka_unit_test_setup(a_missing_expert_costs_pcie_and_its_channel, set_up),
		cmocka_unit_test_setup(each_charge_is_an_option, set_up),
		cmocka_unit_test_setup(a_table_is_linear_between_its_points, set_up),
		cmocka_unit_test_setup(what_a_machine_lacks_cannot_compute, set_up),
		cmocka_unit_test_setup(a_bad_layer_is_refused_by_the_name_of_the_field, set_up),
		cmocka_unit_test_setup(a_placement_becomes_a_row, set_up),
		cmocka_unit_test_setup(names_are_policies, set_up),
		cmocka_unit_test_setup(no_domain_is_an_error_and_nothing_else, set_up),
		cmocka_unit_test_setup(a_layer_without_tokens_takes_no_time, set_up),
		cmocka_unit_test_setup(a_wrong_plan_is_noticed, set_up),
		cmocka_unit_test_setup(the_shared_expert_takes_its_time, set_up),
		cmocka_unit_test_setup(the_routed_experts_go_around_the_shared_one, set_up),
		cmocka_unit_test_setup(every_plan_is_one_and_beats_each_domain_alone, set_up),
		cmocka_unit_test_setup(large_layers_too, set_up),
		cmocka_unit_test_setup(equal_input_gives_an_equal_plan, set_up),
	};

	return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
