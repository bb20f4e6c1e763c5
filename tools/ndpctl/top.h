/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * top.h - samples of DIMMs and models, and what is shown of them.
 *
 * Rates are NAN until there are two samples.
 */
#ifndef NDPCTL_TOP_H
#define NDPCTL_TOP_H

#include "ndpctl.h"

enum { KINDS = 3, MAX_LOCAL = 64 };
extern const char *const top_kind[KINDS];	/* members in ndpd's document */

struct top_engine {
	uint64_t commands, errors, tokens, bytes, busy_ns;
	double commands_s, tokens_s, bytes_s;
	double busy;		/* share, modelled */
};

struct top_dimm {
	char device[96];
	uint32_t dimm;
	char state[16];
	uint64_t memory_bytes, free_bytes, resets;
	bool has_queue;
	uint64_t queue;		/* commands that are not complete */
	struct top_engine compute, link;
};

struct top_model {
	uint32_t client;
	char name[64];
	char state[16];
	uint64_t pid, layers, experts;
	uint64_t posts, dropped, under_way, rollbacks, limited;
	uint64_t gpu_bytes, gpu_budget;
	uint64_t moves[KINDS], move_bytes[KINDS];
	double covered, possible, hidden;	/* shares; hidden modelled */
	double gain_ns, realised_ns;		/* a step, modelled */
	double posts_s, moves_s[KINDS], bytes_s;
};

struct top_sample {
	uint64_t at_ns;
	double interval_s;	/* since the one before, NAN: none */
	bool ndpd, dry_run;
	double uptime_s;
	char host[64];
	char ndpd_why[500];	/* why there is none */
	char device_why[500];	/* why DIMMs are missing; "" */
	uint32_t nr_dimms, nr_models;
	struct top_dimm *dimms;
	struct top_model *models;
};

struct top_source {
	const char *device;	/* --device */
	bool looked;
	uint32_t nr_local;
	struct ndp_device *local[MAX_LOCAL];
	char why[500];
};

/* @before: NULL: none.  Fails only by a signal and for want of memory. */
int top_take(struct top_sample *s, struct top_source *from, const struct top_sample *before,
	     struct ndp_error *err);
void top_free(struct top_sample *s);
void top_source_close(struct top_source *from);
/* Of ndpd's document; for tests, too. */
int top_from_document(struct top_sample *s, const json_t *doc, struct ndp_error *err);
void top_rates(struct top_sample *s, const struct top_sample *before);

/* ---- top_view.c ------------------------------------------------------- */

enum line_kind { LINE_PLAIN, LINE_TITLE, LINE_BAD };

typedef void (*top_line_fn)(void *arg, const char *text, enum line_kind kind);

void top_lines(const struct top_sample *s, double delay_s, top_line_fn line, void *arg);
json_t *top_json(const struct top_sample *s);
/* Until 'q' or a signal. */
int top_live(struct top_source *from, double delay_s, struct ndp_error *err);

#endif
