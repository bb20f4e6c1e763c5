/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * solve.h - what the best scheduler could reach for a layer, by GLPK.
 *
 * For tests and reports only: seconds, not microseconds.  Modelled time.
 */
#ifndef REFERENCE_SOLVE_H
#define REFERENCE_SOLVE_H

#include <ndp/sched.h>
#include <stdbool.h>

/*
 * The fluid bound: experts may be divided at will, a part pays its share of a
 * command's overhead and activations.  No plan is shorter.  -EIO: GLPK failed.
 */
int reference_lp(const struct ndp_layer *layer, double *bound_ns);

/* No plan of whole experts is as short as this, or shorter; @known_ns: that of some plan. */
double reference_count(const struct ndp_layer *layer, double known_ns);

/*
 * No plan at all is as short as this: what is split is split by whole blocks.  Where one
 * block is much of a layer that is above the fluid bound.
 */
double reference_count_blocks(const struct ndp_layer *layer, double known_ns);

struct reference_ilp {
	double best_ns;		/* the shortest plan of whole experts found */
	double bound_ns;	/* none is shorter */
	bool proven;		/* both are the same */
};

/*
 * Whole experts.  @known_ns: makespan of some plan of whole experts, which GLPK
 * need not find again; HUGE_VAL: none.  Stops after @limit_ms.
 */
int reference_ilp(const struct ndp_layer *layer, double known_ns, int limit_ms,
		  struct reference_ilp *out);

#endif
