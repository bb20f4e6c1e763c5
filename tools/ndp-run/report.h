/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * report.h - what a run did: for people, or as one JSON document.
 *
 * Every time says whether it is modelled (what the described hardware would
 * take) or wall (what passed here).
 */
#ifndef NDP_RUN_REPORT_H
#define NDP_RUN_REPORT_H

#include "check.h"
#include "domains.h"
#include "generate.h"
#include "migrator.h"
#include "options.h"

#include <stdio.h>

struct run_prompt {
	const char *name;
	const uint32_t *tokens;
	uint32_t nr_tokens;
	uint32_t max_new;
	struct generation gen;
	struct verdict verdict; /* verdict.ref NULL: no check */
};

/* Counters of all DIMMs at one moment. */
struct dimm_snapshot {
	struct ndp_counters compute[NDP_MAX_DIMMS];
	struct ndp_counters link[NDP_MAX_DIMMS];
};

struct run {
	const struct options *options;
	struct model *model;
	struct domains domains;
	struct run_prompt *prompts;
	uint32_t nr_prompts;
	struct dimm_snapshot before; /* after loading */
	struct dimm_snapshot after;
	struct expert_stats experts;
	struct ndp_moe_memory memory; /* at the end */
	struct migrator_stats migration;
	struct ndp_attach_state daemon; /* at the end */
	uint64_t moves; /* of all experts, at the end */
	uint64_t load_wall_ns;
};

/* Sums over all DIMMs and prompts. */
struct report_totals {
	struct ndp_counters compute;
	struct ndp_counters link;
	uint64_t busiest_ns; /* modelled, of the DIMM that was busy longest */
	uint64_t prompt_tokens;
	uint64_t prompt_wall_ns;
	uint64_t decode_steps;
	uint64_t decode_wall_ns;
};

struct report_totals report_totals(const struct run *run);
struct ndp_counters report_difference(const struct ndp_counters *after,
				      const struct ndp_counters *before);

/* All zero without DIMMs. */
int report_snapshot(struct dimm_snapshot *s, const struct domains *d, struct ndp_error *err);

/* "cpu, ndp": those that compute. */
const char *report_domains(const struct domains *d, char *text, size_t size);

bool report_passed(const struct run *run);

/* A prompt's text, and its verdict if it was checked. */
void report_prompt_text(FILE *f, const struct run *run, const struct run_prompt *p);
/* The tables of what each domain and each DIMM did, times, migration. */
void report_text(FILE *f, const struct run *run);
int report_json(FILE *f, const struct run *run, struct ndp_error *err);

/* {"error": ...}, for standard output when there is nothing else to say. */
void report_error_json(FILE *f, const struct ndp_error *error);

/* Nodes as a JSON array. */
int report_nodes_json(FILE *f, const struct ndp_node *nodes, size_t n, struct ndp_error *err);

#endif
