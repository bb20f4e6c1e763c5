/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndpctl.h - what the commands of ndpctl share.
 *
 *   main.c      which command, its options, its exit status
 *   options.c   the options of all commands
 *   out.c       one JSON document or one table on stdout, never both
 *   nodes.c     nodes, sysfs, opening a device
 *   ask.c       what ndpd says
 *   list.c info.c topology.c stat.c migrate.c reset.c doctor*.c: a command each
 *   top.c       samples and rates of DIMMs and models
 *   top_view.c  the same as lines of text, as JSON, and on the terminal
 *
 * A command returns an exit status.  With anything but STATUS_OK and
 * STATUS_PROBLEM it has filled in its error and has printed nothing.
 */
#ifndef NDPCTL_H
#define NDPCTL_H

#include <jansson.h>
#include <ndp/device.h>
#include <ndp/error.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum {
	STATUS_OK = 0,
	STATUS_PROBLEM = 1,	/* doctor has found one */
	STATUS_USAGE = 2,
	STATUS_FAILED = 3,
};

enum { MAX_NODES = 1024, MAX_EXPERTS = 32 };

/* Where things are; tests put a tree of their own there. */
struct roots {
	const char *sys;
	const char *proc;
	const char *dev;
	const char *config;	/* of ndpd */
	const char *socket;	/* of ndpd */
};
extern struct roots roots;

struct expert_name {
	uint32_t layer;
	uint32_t expert;
};

/* ---- options.c --------------------------------------------------------- */

struct options {
	const char *device;	/* NULL: not given */
	bool human;
	bool json;
	bool clients;
	bool once;
	bool wait;
	bool help;
	double delay_s;
	bool has_client;
	uint32_t client;
	uint32_t nr_experts;
	struct expert_name experts[MAX_EXPERTS];
	const char *to;
	const char *output;
	char **rest;		/* what follows the options; ends with NULL */
	int nr_rest;
};

struct command {
	const char *name;
	const char *what;	/* in a line */
	const char *usage;
	const char *letters;	/* of the options it knows, see options.c */
	bool json_default;	/* unless --human */
	int min_rest, max_rest;	/* words behind the options; -1: any number */
	int (*run)(const struct options *o, struct ndp_error *err);
};

int options_parse(struct options *o, const struct command *c, int argc, char **argv,
		  struct ndp_error *err);

/* ---- out.c --------------------------------------------------------------- */

json_t *json_number(double v);		/* null when it is none */
json_t *json_u64(uint64_t v);
json_t *json_text(const char *s);	/* what is no UTF-8 becomes '?' */
/* Prints @doc and a newline; takes it over. */
int out_json(FILE *f, json_t *doc, struct ndp_error *err);
void out_error_json(FILE *f, const struct ndp_error *error);
/* stdout is complete. */
int out_flush(struct ndp_error *err);

enum { TABLE_COLUMNS = 16, CELL = 80 };

/* Rows of cells; a column whose title starts with '>' is aligned to the right. */
struct table {
	uint32_t columns, rows, room;
	char (*cells)[CELL];
};
void table_begin(struct table *t, const char *titles);
/* Cells are divided by tabs. */
void table_row(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Calls @line for each line, the titles first. */
void table_lines(struct table *t, void (*line)(void *arg, const char *text, bool title), void *arg);
/* Prints and frees it. */
void table_end(struct table *t, FILE *f);

/* "12.3 GiB", "1.2 G", "4.5 ms": at least @size 16. */
const char *text_bytes(char *to, size_t size, double bytes);
const char *text_count(char *to, size_t size, double n);
const char *text_ns(char *to, size_t size, double ns);
const char *text_numa(char *to, size_t size, int node);
const char *text_share(char *to, size_t size, double share);
/* "0-3,5"; "none" */
const char *text_mask(char *to, size_t size, uint32_t mask);

/* ---- nodes.c --------------------------------------------------------------- */

const char *dimm_state_name(enum ndp_dimm_state s);
json_t *dimms_json(uint32_t mask);
json_t *counters_json(const struct ndp_counters *c);
/* All there are: >= 0; to be freed.  0: @why says why. */
int nodes_find(struct ndp_node **nodes, struct ndp_error *why);
/*
 * A sysfs attribute of a node by its path in /dev, without its newline; false: it is not
 * there.
 */
bool node_attribute(char *value, size_t size, const char *path, const char *name);
bool node_attribute_u64(uint64_t *value, const char *path, const char *name);
/* The first line of a file, without its newline. */
bool file_line(char *line, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Owner, group and mode as "root:ndp 0660"; false: it is not there. */
bool file_owner(char *text, size_t size, const char *path);
uint64_t now_ns(void);

/* ---- ask.c ------------------------------------------------------------------- */

/*
 * What ndpd knows, to be freed by json_decref().  -ENOENT, -ECONNREFUSED: there is none;
 * -EINTR: a signal.
 */
int ask_status(json_t **doc, struct ndp_error *err);

struct ndp_msg_migrate;
struct ndp_msg_migrated;
/* Waits as long as ndpd is there and no signal comes. */
int ask_migrate(const struct ndp_msg_migrate *m, struct ndp_msg_migrated *answer,
		struct ndp_error *err);

/* Clients in the document that have said what they are: a new array. */
json_t *attached_clients(const json_t *doc);

/* Members of what came; a default where they are missing or of another type. */
double json_double(const json_t *o, const char *key, double otherwise);
uint64_t json_uint(const json_t *o, const char *key);
const char *json_str(const json_t *o, const char *key);

/* ---- the commands ---------------------------------------------------------------- */

int cmd_list(const struct options *o, struct ndp_error *err);
int cmd_info(const struct options *o, struct ndp_error *err);
int cmd_topology(const struct options *o, struct ndp_error *err);
int cmd_stat(const struct options *o, struct ndp_error *err);
int cmd_top(const struct options *o, struct ndp_error *err);
int cmd_migrate(const struct options *o, struct ndp_error *err);
int cmd_reset(const struct options *o, struct ndp_error *err);
int cmd_doctor(const struct options *o, struct ndp_error *err);

#endif
