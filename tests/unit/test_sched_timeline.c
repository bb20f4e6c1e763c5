// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * test_sched_timeline.c - plans played event by event: against the analytic
 * makespan, and what background copies do.
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

static struct random_layer layer;

/* Experts of DeepSeek-V2: spread over all DIMMs, or one DIMM each. */
static struct random_layer *make(uint32_t experts, bool spread, uint32_t charges)
{
	struct random_layer *r = &layer;

	memset(r, 0, sizeof(*r));
	r->state = 7;
	paper_host(&r->host);
	r->shape = (struct ndp_shape) { experts, 6, 5120, 1536, 47185920 };
	r->layer = (struct ndp_layer) {
		.host = &r->host, .shape = &r->shape, .charges = charges,
		.tokens = r->tokens, .blocks = r->blocks, .on_gpu = r->on_gpu,
	};
	for (uint32_t e = 0; e < experts; e++) {
		r->tokens[e] = e % 4 ? 1 + random_upto(r, 4) : 30 + random_upto(r, 20);
		for (uint32_t d = 0; d < 16; d++)
			r->blocks[e * 16 + d] = spread ? 3 : d == e % 16 ? 48 : 0;
	}
	return r;
}

static struct ndp_timeline play(struct random_layer *r, struct planner *p, enum ndp_policy policy,
				const struct ndp_copy *copies, uint32_t nr, struct ndp_span *spans,
				uint32_t max_spans)
{
	void *work = malloc(ndp_timeline_bytes(r->shape.experts, r->host.nr_dimms, nr));
	struct ndp_timeline t;

	assert_int_equal(ndp_schedule(&r->layer, policy, p->work, &p->plan), 0);
	assert_int_equal(ndp_timeline(&r->layer, &p->plan, copies, nr, work, spans, max_spans, &t), 0);
	free(work);
	return t;
}

static void it_agrees_with_the_analytic_makespan(void **state)
{
	static const struct {
		uint32_t charges;
		bool spread;
		double most;
	} cases[] = {
		{ NDP_CHARGES_PAPER, true, 1.05 }, { NDP_CHARGES_PAPER, false, 1.02 },
		{ NDP_CHARGES_ALL, true, 1.02 }, { NDP_CHARGES_ALL, false, 1.08 },
	};

	(void)state;
	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++)
		for (int policy = NDP_POLICY_TRIMOE; policy < NDP_POLICIES; policy++) {
			struct random_layer *r = make(160, cases[n].spread, cases[n].charges);
			struct ndp_timeline t;
			struct planner p;

			planner_init(&p, r);
			t = play(r, &p, policy, NULL, 0, NULL, 0);
			if (t.makespan_ns < p.plan.makespan_ns * (1 - 1e-6) ||
			    t.makespan_ns > p.plan.makespan_ns * cases[n].most)
				fail_msg("case %zu, %s: %.0f, the plan says %.0f", n,
					 ndp_policy_name(policy), t.makespan_ns, p.plan.makespan_ns);
			planner_free(&p);
		}
}

/* A plan cannot be played faster than its fullest resource, whatever the layer. */
static void it_never_beats_the_plan(void **state)
{
	struct random_layer *r = &layer;
	double ratio = 0;
	uint32_t n = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct ndp_timeline t;
		struct planner p;
		void *work;

		random_layer(r, seed, 0);
		if (seed % 2)
			random_shared(r);
		planner_init(&p, r);
		work = malloc(ndp_timeline_bytes(r->shape.experts, r->host.nr_dimms, 0));
		for (int policy = 0; policy < NDP_POLICIES; policy++) {
			if (ndp_schedule(&r->layer, policy, p.work, &p.plan) < 0)
				continue;
			assert_int_equal(ndp_timeline(&r->layer, &p.plan, NULL, 0, work, NULL, 0, &t), 0);
			if (t.makespan_ns < p.plan.makespan_ns * (1 - 1e-6))
				fail_msg("layer %llu, %s: %.3f, the plan says %.3f",
					 (unsigned long long)seed, ndp_policy_name(policy),
					 t.makespan_ns, p.plan.makespan_ns);
			if (p.plan.makespan_ns > 0) {
				ratio += t.makespan_ns / p.plan.makespan_ns;
				n++;
			}
		}
		free(work);
		planner_free(&p);
	}
	assert_true(ratio / n < 1.3);
}

static void servers_do_one_thing_at_a_time(void **state)
{
	struct random_layer *r = make(48, false, NDP_CHARGES_ALL);
	struct ndp_span *spans = calloc(4096, sizeof(*spans));
	double end[NDP_LANE_LINK + 1][NDP_MAX_DIMMS] = { { 0 } }, last = 0;
	struct ndp_timeline t;
	struct planner p;
	uint32_t commands = 0;

	(void)state;
	planner_init(&p, r);
	t = play(r, &p, NDP_POLICY_SPLIT, NULL, 0, spans, 4096);
	assert_true(t.nr_spans > 48);
	for (uint32_t k = 0; k < t.nr_spans; k++) {
		const struct ndp_span *s = &spans[k];

		assert_true(s->start_ns >= 0 && s->end_ns >= s->start_ns);
		last = fmax(last, s->end_ns);
		if (s->lane == NDP_LANE_READ)
			continue;
		assert_true(s->start_ns >= end[s->lane][s->index] - 1e-3);
		end[s->lane][s->index] = s->end_ns;
		commands += s->lane == NDP_LANE_DIMM;
	}
	assert_true(fabs(last - t.makespan_ns) < 1e-3);
	assert_true(commands > 0);
	free(spans);
	planner_free(&p);
}

static void copies_in_idle_time_are_hidden(void **state)
{
	const struct ndp_copy copies[] = {
		{ .bytes = 25000000, .expert = 1, .from = 0, .to = 5 },
		{ .bytes = 25000000, .expert = 1, .from = 0, .to = 6 },
		{ .bytes = 25000000, .expert = 2, .from = 3, .to = 4 },
	};
	struct random_layer *r = make(160, true, NDP_CHARGES_PAPER);
	struct ndp_timeline t;
	struct planner p;

	(void)state;
	planner_init(&p, r);
	t = play(r, &p, NDP_POLICY_TRIMOE, copies, 3, NULL, 0);
	/* 1 ms each, two of them one after the other on one port. */
	assert_true(fabs(t.copy_ns - 3 * (1e6 + 1000)) < 1);
	assert_true(fabs(t.hidden_ns - t.copy_ns) < 1);
	assert_true(t.end_ns == t.makespan_ns);
	/* A link takes a sixth of a DIMM's bandwidth while it lasts. */
	assert_true(t.delay_ns >= 0 && t.delay_ns < 0.2 * 2e6);
	planner_free(&p);
}

static void copies_that_last_longer_are_not(void **state)
{
	const struct ndp_copy copy = { .bytes = 2500000000, .expert = 1, .from = 0, .to = 5 };
	struct random_layer *r = make(16, true, NDP_CHARGES_PAPER);
	struct ndp_timeline t;
	struct planner p;

	(void)state;
	planner_init(&p, r);
	t = play(r, &p, NDP_POLICY_TRIMOE, &copy, 1, NULL, 0);
	assert_true(t.end_ns > 1e8);
	assert_true(fabs(t.hidden_ns - t.makespan_ns) < 1);
	assert_true(t.copy_ns > t.hidden_ns);
	planner_free(&p);
}

static void a_prefetch_waits_for_pcie(void **state)
{
	const struct ndp_copy copy = { .bytes = 64000000, .to_gpu = 1, .from = NDP_MAX_DIMMS };
	struct random_layer *r = make(160, false, NDP_CHARGES_PAPER);
	struct ndp_timeline t, alone;
	struct planner p;

	(void)state;
	planner_init(&p, r);
	alone = play(r, &p, NDP_POLICY_GPU, NULL, 0, NULL, 0);
	t = play(r, &p, NDP_POLICY_GPU, &copy, 1, NULL, 0);
	/* The layer keeps PCIe busy to its end. */
	assert_true(t.hidden_ns < 0.1 * t.copy_ns);
	assert_true(fabs(t.makespan_ns - alone.makespan_ns) < 1);
	assert_true(t.end_ns > t.makespan_ns + 0.9e6);
	planner_free(&p);
}

static void impossible_copies_are_refused(void **state)
{
	const struct ndp_copy bad[] = {
		{ .bytes = 1, .from = 16, .to = 1 }, { .bytes = 1, .from = 1, .to = 16 },
		{ .bytes = 1, .from = 1, .to = 1 }, { .bytes = 1, .to_gpu = 1, .from = 20 },
	};
	struct random_layer *r = make(4, true, NDP_CHARGES_PAPER);
	void *work = malloc(ndp_timeline_bytes(4, 16, 1));
	struct ndp_timeline t;
	struct planner p;

	(void)state;
	planner_init(&p, r);
	assert_int_equal(ndp_schedule(&r->layer, NDP_POLICY_TRIMOE, p.work, &p.plan), 0);
	for (size_t n = 0; n < sizeof(bad) / sizeof(bad[0]); n++)
		assert_int_equal(ndp_timeline(&r->layer, &p.plan, &bad[n], 1, work, NULL, 0, &t), -EINVAL);
	r->host.link_gbps = 0;
	assert_int_equal(ndp_timeline(&r->layer, &p.plan, &(struct ndp_copy) { .bytes = 1, .to = 1 }, 1,
				      work, NULL, 0, &t), -EINVAL);
	free(work);
	planner_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_agrees_with_the_analytic_makespan),
		cmocka_unit_test(it_never_beats_the_plan),
		cmocka_unit_test(servers_do_one_thing_at_a_time),
		cmocka_unit_test(copies_in_idle_time_are_hidden),
		cmocka_unit_test(copies_that_last_longer_are_not),
		cmocka_unit_test(a_prefetch_waits_for_pcie),
		cmocka_unit_test(impossible_copies_are_refused),
	};

	return cmocka_run_group_tests_name("sched_timeline", tests, NULL, NULL);
}
