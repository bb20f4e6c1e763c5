/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * recording.h - what ndpd --record wrote (daemon/record.c has the format), one client
 * of it, event by event.
 */
#ifndef NDP_BENCH_RECORDING_H
#define NDP_BENCH_RECORDING_H

#include <ndp/ndp.h>
#include <stdio.h>

struct recording {
	FILE *f;
	const char *path;
	uint64_t line_number;
	char *line;
	size_t line_bytes;
	uint32_t client;
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_steward_options options;
	uint32_t layers;
	uint16_t *blocks;	/* [layers][experts][dimms] at the beginning */
	uint8_t *on_gpu;	/* [layers][experts] at the beginning */
	uint32_t *tokens;	/* [experts] of a post */
	uint16_t *row;		/* [dimms] of an order */
};

enum event_kind { EVENT_POST, EVENT_START, EVENT_DONE, EVENT_SHARE, EVENT_ORDER };

struct event {
	enum event_kind kind;
	double now_ns;		/* post, done, order */
	uint32_t layer;		/* post, start, order */
	uint32_t id;		/* start, done, order */
	uint32_t action_kind, expert, victim_layer;	/* start; order: expert */
	int32_t victim;
	int res;		/* done */
	double link_share;	/* share */
	double pcie_share;
	uint64_t dimm_bytes;
};

/* Reads up to the first event of the client whose model is called @name.  Ends the program on errors. */
void recording_open(struct recording *r, const char *path, const char *name);
void recording_close(struct recording *r);
/* 1; 0: the client's end, or the file's. */
int recording_next(struct recording *r, struct event *e);

#endif
