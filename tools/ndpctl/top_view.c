// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * top_view.c - a sample as lines of text, as JSON, and live on a terminal: the lines are
 * the same with and without one.
 */
#include "top.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <math.h>
#include <ncurses.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- lines ------------------------------------------------------------------- */

struct out {
	top_line_fn line;
	void *arg;
};

static void say(const struct out *o, enum line_kind kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void say(const struct out *o, enum line_kind kind, const char *fmt, ...)
{
	char text[640];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	o->line(o->arg, text, kind);
}

/* A row that says so is shown as bad. */
static void table_line(void *arg, const char *text, bool title)
{
	const struct out *o = arg;
	const bool bad = strstr(text, "  failed") || strstr(text, "  absent");

	o->line(o->arg, text, title ? LINE_TITLE : bad ? LINE_BAD : LINE_PLAIN);
}

static void dimm_lines(const struct top_sample *s, const struct out *o)
{
	struct table t;

	table_begin(&t, "DEVICE\t>DIMM\tSTATE\t>USED\t>OF\t>BUSY*\t>QUEUE\t>COMMANDS/s\t>TOKENS/s\t"
		    ">BYTES/s\t>LINK BUSY*\t>LINK/s\t>ERRORS\t>RESETS");
	for (uint32_t i = 0; i < s->nr_dimms; i++) {
		const struct top_dimm *d = &s->dimms[i];
		char b[9][16], queue[24] = "-";

		if (d->has_queue)
			snprintf(queue, sizeof(queue), "%llu", (unsigned long long)d->queue);
		table_row(&t, "%s\t%u\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%llu",
			  d->device, d->dimm, d->state,
			  text_bytes(b[0], 16, (double)(d->memory_bytes - d->free_bytes)),
			  text_bytes(b[1], 16, (double)d->memory_bytes),
			  text_share(b[2], 16, d->compute.busy), queue,
			  text_count(b[3], 16, d->compute.commands_s),
			  text_count(b[4], 16, d->compute.tokens_s),
			  text_bytes(b[5], 16, d->compute.bytes_s),
			  text_share(b[6], 16, d->link.busy),
			  text_bytes(b[7], 16, d->link.bytes_s),
			  (unsigned long long)(d->compute.errors + d->link.errors),
			  (unsigned long long)d->resets);
	}
	table_lines(&t, table_line, (void *)o);
}

static void model_lines(const struct top_sample *s, const struct out *o)
{
	struct table t;

	table_begin(&t, ">CLIENT\tMODEL\tSTATE\t>PID\t>LAYERS\t>EXPERTS\t>POSTS/s\t>DROPPED\t"
		    ">HOT SET COVERS\t>COULD\t>GPU\t>OF");
	for (uint32_t i = 0; i < s->nr_models; i++) {
		const struct top_model *m = &s->models[i];
		char b[5][16];

		table_row(&t, "%u\t%s\t%s\t%llu\t%llu\t%llu\t%s\t%llu\t%s\t%s\t%s\t%s", m->client,
			  m->name, m->state, (unsigned long long)m->pid,
			  (unsigned long long)m->layers, (unsigned long long)m->experts,
			  text_count(b[0], 16, m->posts_s), (unsigned long long)m->dropped,
			  text_share(b[1], 16, m->covered), text_share(b[2], 16, m->possible),
			  text_bytes(b[3], 16, (double)m->gpu_bytes),
			  text_bytes(b[4], 16, (double)m->gpu_budget));
	}
	table_lines(&t, table_line, (void *)o);
}

static void migration_lines(const struct top_sample *s, const struct out *o)
{
	struct table t;

	table_begin(&t, ">CLIENT\t>PREFETCHES\t>/s\t>RELAYOUTS\t>/s\t>REBALANCES\t>/s\t>BYTES/s\t"
		    ">UNDER WAY\t>PUT OFF\t>FAILED\t>HIDDEN*\t>GAIN/STEP*\t>REALISED*");
	for (uint32_t i = 0; i < s->nr_models; i++) {
		const struct top_model *m = &s->models[i];
		char b[10][16];

		table_row(&t, "%u\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%s\t%llu\t%s\t%s\t%s",
			  m->client, text_count(b[0], 16, (double)m->moves[0]),
			  text_count(b[1], 16, m->moves_s[0]),
			  text_count(b[2], 16, (double)m->moves[1]),
			  text_count(b[3], 16, m->moves_s[1]),
			  text_count(b[4], 16, (double)m->moves[2]),
			  text_count(b[5], 16, m->moves_s[2]), text_bytes(b[6], 16, m->bytes_s),
			  (unsigned long long)m->under_way,
			  text_count(b[7], 16, (double)m->limited),
			  (unsigned long long)m->rollbacks, text_share(b[8], 16, m->hidden),
			  text_ns(b[9], 16, m->gain_ns), m->name[0] && isfinite(m->realised_ns) ?
			  text_ns((char[16]){ 0 }, 16, m->realised_ns) : "-");
	}
	table_lines(&t, table_line, (void *)o);
}

void top_lines(const struct top_sample *s, double delay_s, top_line_fn line, void *arg)
{
	const struct out o = { line, arg };
	const time_t now = time(NULL);
	char clock[16] = "";
	struct tm tm;

	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	if (s->ndpd)
		say(&o, LINE_PLAIN, "%s, every %.3g s; ndpd is up for %.0f s, host profile %s%s",
		    clock, delay_s, s->uptime_s, s->host,
		    s->dry_run ? ", dry run: nothing is moved" : "");
	else
		say(&o, LINE_BAD, "%s, every %.3g s; DIMMs only: %s", clock, delay_s, s->ndpd_why);
	say(&o, LINE_PLAIN, "* modelled: time that the described hardware would have taken");
	say(&o, LINE_PLAIN, "%s", "");
	if (s->nr_dimms)
		dimm_lines(s, &o);
	else
		say(&o, LINE_BAD, "%s", s->device_why[0] ? s->device_why :
		    "ndpd has opened no device, and no client has one in its process");
	if (!s->ndpd)
		return;
	say(&o, LINE_PLAIN, "%s", "");
	if (!s->nr_models) {
		say(&o, LINE_PLAIN, "no application is attached to ndpd");
		return;
	}
	model_lines(s, &o);
	say(&o, LINE_PLAIN, "%s", "");
	migration_lines(s, &o);
}

/* ---- JSON ------------------------------------------------------------------------ */

static json_t *engine_json(const struct top_engine *e)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "commands",
			 json_u64(e->commands), "errors", json_u64(e->errors), "tokens",
			 json_u64(e->tokens), "bytes", json_u64(e->bytes), "modelled_busy_ns",
			 json_u64(e->busy_ns), "commands_per_s", json_number(e->commands_s),
			 "tokens_per_s", json_number(e->tokens_s), "bytes_per_s",
			 json_number(e->bytes_s), "modelled_busy_share", json_number(e->busy));
}

static json_t *dimm_json(const struct top_dimm *d)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "device",
			 json_text(d->device), "dimm", json_u64(d->dimm), "state",
			 json_text(d->state), "memory_bytes", json_u64(d->memory_bytes),
			 "free_bytes", json_u64(d->free_bytes), "queue_depth",
			 d->has_queue ? json_u64(d->queue) : json_null(), "resets",
			 json_u64(d->resets), "compute", engine_json(&d->compute), "link",
			 engine_json(&d->link));
}

static json_t *model_json(const struct top_model *m)
{
	json_t *kinds = json_object();

	for (int k = 0; k < KINDS; k++)
		json_object_set_new(kinds, top_kind[k], json_pack(
			"{s:o, s:o, s:o}", "count", json_u64(m->moves[k]), "bytes",
			json_u64(m->move_bytes[k]), "per_s", json_number(m->moves_s[k])));
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:o, s:o, s:o, s:o}",
			 "client", json_u64(m->client), "name", json_text(m->name), "state",
			 json_text(m->state), "pid", json_u64(m->pid), "layers",
			 json_u64(m->layers), "experts", json_u64(m->experts), "posts",
			 json_u64(m->posts), "posts_per_s", json_number(m->posts_s), "dropped",
			 json_u64(m->dropped), "coverage", json_number(m->covered),
			 "coverage_possible", json_number(m->possible), "gpu_bytes",
			 json_u64(m->gpu_bytes), "gpu_budget_bytes", json_u64(m->gpu_budget),
			 "migrations", kinds, "migrated_bytes_per_s", json_number(m->bytes_s),
			 "under_way", json_u64(m->under_way), "rate_limited", json_u64(m->limited),
			 "rollbacks", json_u64(m->rollbacks), "hidden_share_modelled",
			 json_number(m->hidden), "realised_modelled_ns_per_step",
			 json_number(m->realised_ns));
}

json_t *top_json(const struct top_sample *s)
{
	json_t *dimms = json_array(), *models = json_array(), *ndpd = json_null();

	for (uint32_t i = 0; i < s->nr_dimms; i++)
		json_array_append_new(dimms, dimm_json(&s->dimms[i]));
	for (uint32_t i = 0; i < s->nr_models; i++)
		json_array_append_new(models, model_json(&s->models[i]));
	if (s->ndpd)
		ndpd = json_pack("{s:o, s:o, s:b}", "uptime_s", json_number(s->uptime_s), "host",
				 json_text(s->host), "dry_run", (int)s->dry_run);
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "interval_s",
			 json_number(s->interval_s), "ndpd", ndpd, "ndpd_error",
			 s->ndpd ? json_null() : json_text(s->ndpd_why), "device_error",
			 s->device_why[0] ? json_text(s->device_why) : json_null(), "dimms", dimms,
			 "models", models);
}

/* ---- the terminal -------------------------------------------------------------------- */

enum { PAIR_BAD = 1 };

struct screen {
	int scrolled;	/* lines */
	int at;
	bool colours;
};

static void draw_line(void *arg, const char *text, enum line_kind kind)
{
	struct screen *v = arg;
	const int row = v->at++ - v->scrolled;
	const attr_t a = kind == LINE_TITLE ? A_REVERSE : kind != LINE_BAD ? A_NORMAL :
			 v->colours ? (attr_t)COLOR_PAIR(PAIR_BAD) : A_BOLD;

	if (row < 0 || row >= LINES)
		return;
	attron(a);
	mvaddnstr(row, 0, text, COLS);
	attroff(a);
}

static void draw(struct screen *v, const struct top_sample *s, double delay_s)
{
	erase();
	v->at = 0;
	top_lines(s, delay_s, draw_line, v);
	refresh();
}

/* false: it is time to end. */
static bool handle_key(struct screen *v, int key)
{
	const int last = v->at - LINES;

	switch (key) {
	case 'q':
	case 'Q':
		return false;
	case KEY_DOWN:
	case 'j':
		v->scrolled += v->scrolled < last;
		break;
	case KEY_UP:
	case 'k':
		v->scrolled -= v->scrolled > 0;
		break;
	case KEY_HOME:
		v->scrolled = 0;
		break;
	default:
		break;
	}
	return true;
}

/* Shows @s until the next one is due: 1; 0: the end was asked for; -EINTR. */
static int show(struct screen *v, const struct top_sample *s, double delay_s,
		struct ndp_error *err)
{
	const uint64_t end = now_ns() + (uint64_t)(delay_s * 1e9);

	draw(v, s, delay_s);
	for (uint64_t now; (now = now_ns()) < end;) {
		const int left_ms = (int)((end - now) / 1000000) + 1;
		int key;

		/* ncurses goes on waiting after a signal. */
		timeout(left_ms < 200 ? left_ms : 200);
		key = getch();
		if (interrupt_check(err) < 0)
			return -EINTR;
		if (key == ERR)
			continue;
		if (!handle_key(v, key))
			return 0;
		draw(v, s, delay_s);
	}
	return 1;
}

int top_live(struct top_source *from, double delay_s, struct ndp_error *err)
{
	struct top_sample samples[2] = { 0 };
	struct screen v = { 0 };
	SCREEN *terminal;
	uint32_t n = 0;
	int r;

	terminal = newterm(NULL, stdout, stdin);
	if (!terminal)
		return fail(err, -ENOTTY, "this terminal (TERM=%s) cannot be used for the live "
			    "view: add --once", getenv("TERM") ? getenv("TERM") : "");
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	if (has_colors() && start_color() == OK && use_default_colors() == OK)
		v.colours = init_pair(PAIR_BAD, COLOR_RED, -1) == OK;
	do {
		struct top_sample *s = &samples[n & 1];

		top_free(s);
		r = top_take(s, from, n ? &samples[~n & 1] : NULL, err);
		if (r == 0)
			r = show(&v, s, delay_s, err);
		n++;
	} while (r > 0);
	endwin();
	delscreen(terminal);
	top_free(&samples[0]);
	top_free(&samples[1]);
	return r;
}
