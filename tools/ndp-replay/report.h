/* SPDX-License-Identifier: GPL-2.0-or-later */
/* report.h - what a replay found: as text, as CSV, as JSON, as plots. */
#ifndef NDP_REPLAY_REPORT_H
#define NDP_REPLAY_REPORT_H

#include "replay.h"

#include <stdio.h>

/* Figures that several outputs have. Those that are not known are NAN. */
struct figures {
	double mean_ns;
	double speed_up;	/* over the best of the baselines gpu, gpu-cpu, gpu-ndp */
	double gpu, pcie, cpu, channels, dimms;	/* busy share of the makespans */
	double over_fluid;	/* makespans / lower bound - 1 */
	double waited;		/* share of the time that layers waited for copies */
	double over_lp;		/* the same against GLPK, on the sample of layers */
	double over_whole;
	double over_whole_bound;
};

struct figures report_figures(const struct replay *r, enum ndp_policy policy);

void report_text(const struct replay *r, FILE *f);
void report_csv(const struct replay *r, FILE *f);
/* -ENOMEM */
int report_json(const struct replay *r, FILE *f, struct ndp_error *err);
/* An error as the one JSON document. */
void report_json_error(const struct ndp_error *error, FILE *f);

/* SVG files in @dir, which is made if it is not there. */
int plot_write(const struct replay *r, const char *dir, struct ndp_error *err);

#endif
