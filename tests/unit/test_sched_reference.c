// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * test_sched_reference.c - the scheduler against linear and integer programs
 * that GLPK solves: on random small layers, placed anyhow.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <glpk.h>
#include <math.h>
#include <stdio.h>

#include "../../tools/ndp-reference/solve.h"
#include "sched_random.h"

enum {
	LAYERS = 150,
	SMALL_LAYERS = 60,
};

static struct random_layer layer;

static void no_plan_is_below_the_fluid_bound(void **state)
{
	struct random_layer *r = &layer;
	struct planner p;

	(void)state;
	for (uint64_t seed = 0; seed < LAYERS; seed++) {
		double fluid, bound;

		random_layer(r, seed, 0);
		planner_init(&p, r);
		bound = ndp_fluid_bound(&r->layer, p.work);
		if (ndp_schedule(&r->layer, NDP_POLICY_SPLIT, p.work, &p.plan) == 0) {
			assert_int_equal(reference_lp(&r->layer, &fluid), 0);
			if (bound > fluid * (1 + 1e-5))
				fail_msg("layer %llu: the library's bound %.3f is above GLPK's %.3f",
					 (unsigned long long)seed, bound, fluid);
			bound = reference_count_blocks(&r->layer, 2 * p.plan.makespan_ns);
			if (p.plan.makespan_ns < bound)
				fail_msg("layer %llu: split %.3f is below %.3f, counted by blocks",
					 (unsigned long long)seed, p.plan.makespan_ns, bound);
			if (p.plan.makespan_ns < fluid * (1 - 1e-6))
				fail_msg("layer %llu: split %.3f is below the fluid bound %.3f",
					 (unsigned long long)seed, p.plan.makespan_ns, fluid);
		}
		planner_free(&p);
	}
}

/* Where every expert is in one DIMM the library solves the very same program. */
static void the_librarys_bound_is_the_fluid_bound(void **state)
{
	struct random_layer *r = &layer;
	struct planner p;
	uint32_t compared = 0;

	(void)state;
	for (uint64_t seed = 0; seed < LAYERS; seed++) {
		double fluid, bound;

		random_layer(r, seed, 0);
		for (uint32_t e = 0; e < r->shape.experts; e++)
			random_row(r, r->blocks + (size_t)e * r->host.nr_dimms, 0);
		planner_init(&p, r);
		bound = ndp_fluid_bound(&r->layer, p.work);
		if (bound > 0) {
			assert_int_equal(reference_lp(&r->layer, &fluid), 0);
			if (fabs(bound - fluid) > 1e-3 * fluid)
				fail_msg("layer %llu: the library's bound is %.3f, GLPK's %.3f",
					 (unsigned long long)seed, bound, fluid);
			compared++;
		}
		planner_free(&p);
	}
	assert_true(compared > LAYERS / 2);
}

/* All assignments of a few experts, one after the other. */
static double by_trying_all(const struct ndp_layer *l, struct ndp_plan *plan, uint32_t e)
{
	double best = HUGE_VAL;

	if (e == l->shape->experts) {
		struct ndp_loads loads;

		ndp_plan_loads(l, plan, &loads);
		return ndp_loads_max(&loads, l->host);
	}
	if (!l->tokens[e]) {
		plan->domain[e] = NDP_DOMAIN_NONE;
		return by_trying_all(l, plan, e + 1);
	}
	for (int domain = 0; domain < NDP_DOMAINS; domain++) {
		struct ndp_loads loads;

		if (isinf(ndp_expert_cost(l, e, domain, &loads)))
			continue;
		plan->domain[e] = domain;
		best = fmin(best, by_trying_all(l, plan, e + 1));
	}
	return best;
}

static void whole_experts_are_near_the_optimum(void **state)
{
	struct random_layer *r = &layer;
	double worst = 1, sum = 0;
	struct planner p;
	uint32_t n = 0;

	(void)state;
	for (uint64_t seed = 0; seed < SMALL_LAYERS; seed++) {
		struct reference_ilp ilp;
		double best, trimoe;

		random_layer(r, seed, 7);
		planner_init(&p, r);
		if (ndp_schedule(&r->layer, NDP_POLICY_TRIMOE, p.work, &p.plan) == 0) {
			trimoe = p.plan.makespan_ns;
			p.plan.policy = NDP_POLICY_TRIMOE;
			p.plan.nr_pieces = 0;
			best = by_trying_all(&r->layer, &p.plan, 0);
			assert_int_equal(reference_ilp(&r->layer, trimoe, 5000, &ilp), 0);
			if (best > 0 && (ilp.bound_ns > best * 1.0001 || ilp.best_ns < best * 0.9999 ||
					 !ilp.proven))
				fail_msg("layer %llu: the optimum is %.3f, the integer program says "
					 "%.3f to %.3f", (unsigned long long)seed, best, ilp.bound_ns,
					 ilp.best_ns);
			if (best > 0) {
				worst = fmax(worst, trimoe / best);
				sum += trimoe / best;
				n++;
			}
		}
		planner_free(&p);
	}
	assert_true(n > SMALL_LAYERS / 2);
	if (sum / n > 1.05)
		fail_msg("trimoe is %.3f times the optimum on the mean, %.3f at worst", sum / n, worst);
}

/* The bound by counting, where it counts most: every expert in one DIMM. */
static void counting_bounds_every_plan_of_whole_experts(void **state)
{
	struct random_layer *r = &layer;
	double nearest = 0;
	struct planner p;

	(void)state;
	for (uint64_t seed = 0; seed < SMALL_LAYERS; seed++) {
		double best, bound;

		random_layer(r, seed, 7);
		for (uint32_t e = 0; e < r->shape.experts; e++)
			random_row(r, r->blocks + (size_t)e * r->host.nr_dimms, 0);
		planner_init(&p, r);
		p.plan.policy = NDP_POLICY_TRIMOE;
		best = by_trying_all(&r->layer, &p.plan, 0);
		if (best > 0 && !isinf(best)) {
			bound = reference_count(&r->layer, 2 * best);
			if (bound > best * (1 + 1e-9))
				fail_msg("layer %llu: %.3f by counting, a plan takes %.3f",
					 (unsigned long long)seed, bound, best);
			nearest = fmax(nearest, bound / best);
		}
		planner_free(&p);
	}
	/* And it says something. */
	assert_true(nearest > 0.99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_plan_is_below_the_fluid_bound),
		cmocka_unit_test(the_librarys_bound_is_the_fluid_bound),
		cmocka_unit_test(whole_experts_are_near_the_optimum),
		cmocka_unit_test(counting_bounds_every_plan_of_whole_experts),
	};

	/* GLPK would talk among the results. */
	glp_term_out(GLP_OFF);
	return cmocka_run_group_tests_name("sched_reference", tests, NULL, NULL);
}
