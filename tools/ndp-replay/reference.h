/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * reference.h - what no schedule can beat, for a sample of the layers, by the
 * program ndp-reference (GLPK) beside this one.
 */
#ifndef NDP_REPLAY_REFERENCE_H
#define NDP_REPLAY_REFERENCE_H

#include <ndp/sched.h>
#include <stdbool.h>

struct reference {
	uint32_t wanted;	/* layers to solve */
	uint32_t limit_ms;	/* for each optimum of whole experts */
	uint64_t seen;
	uint64_t random;
	uint32_t nr;
	struct reference_problem *problems;	/* [wanted] */

	/* Sums over the problems. */
	double fluid_ns;		/* the linear program */
	double whole_ns;		/* the shortest plan of whole experts found */
	double whole_bound_ns;		/* none is shorter */
	uint32_t proven;		/* problems where both are the same */
	double policy_ns[NDP_POLICIES];
};

int reference_init(struct reference *ref, uint32_t wanted, uint64_t seed, struct ndp_error *err);
void reference_free(struct reference *ref);

/*
 * Offers a layer; which @wanted of those offered are kept is random, all alike
 * (reservoir sampling).  @makespan_ns by policy.
 */
int reference_offer(struct reference *ref, const struct ndp_layer *layer,
		    const double makespan_ns[NDP_POLICIES], struct ndp_error *err);

/* Solves what was kept. */
int reference_solve(struct reference *ref, struct ndp_error *err);

#endif
