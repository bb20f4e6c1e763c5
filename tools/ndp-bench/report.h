/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * report.h - the report as main.c sees it: text while it is made, or one JSON
 * document at the end.
 */
#ifndef NDP_BENCH_REPORT_H
#define NDP_BENCH_REPORT_H

#include "bench.h"

struct bench_report *report_start(int argc, char **argv, bool json);
/* Prints what is left to print; BENCH_OK, BENCH_BAR_FAILED or BENCH_FAILED. */
int report_end(struct bench_report *rep);
/* {"error": ...} */
void report_error_json(const char *message);

#endif
