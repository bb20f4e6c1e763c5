// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * report.c - see bench.h: tables, notes and bars, as text while they come or as one
 * JSON document at the end.
 */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench_report {
	bool json;
	bool failed;		/* a bar */
	bool begun;		/* something was printed */
	char *pending;		/* bars that are printed after the table */
	size_t pending_size;
	FILE *pending_file;
	char cpu[128];
	json_t *root;
	json_t *tables;
	json_t *bars;
	json_t *notes;
	json_t *rows;		/* of the current table */
	const struct bench_column *columns;
	unsigned int nr_columns;
};

static json_t *must(json_t *v)
{
	if (!v)
		bench_die("out of memory");
	return v;
}

/* The processor as it calls itself. */
static void cpu_name(char *name, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	snprintf(name, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " "));
		break;
	}
	if (f)
		fclose(f);
}

struct bench_report *report_start(int argc, char **argv, bool json)
{
	struct bench_report *rep = calloc(1, sizeof(*rep));
	json_t *arguments = must(json_array());
	char date[32];
	time_t now = time(NULL);
	struct tm tm;

	if (!rep)
		bench_die("out of memory");
	for (int i = 0; i < argc; i++)
		json_array_append_new(arguments, json_string_nocheck(argv[i]));
	cpu_name(rep->cpu, sizeof(rep->cpu));
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	rep->json = json;
	rep->tables = must(json_object());
	rep->bars = must(json_array());
	rep->notes = must(json_array());
	rep->root = must(json_pack("{s:s, s:o, s:s, s:{s:s, s:i, s:I}, s:o, s:o, s:o}", "program",
				   "ndp-bench", "arguments", arguments, "date", date, "machine",
				   "cpu", rep->cpu, "cpus", (int)bench_cpus(), "cache_bytes",
				   (json_int_t)bench_cache_bytes(), "tables", rep->tables, "bars",
				   rep->bars, "notes", rep->notes));
	return rep;
}

/* Where lines wait that must not stand between the rows of a table. */
static FILE *pending(struct bench_report *rep)
{
	if (!rep->pending_file) {
		rep->pending_file = open_memstream(&rep->pending, &rep->pending_size);
		if (!rep->pending_file)
			bench_die("out of memory");
	}
	return rep->pending_file;
}

/*
 * Whether text is printed now, which is not a row; what waited comes before it, and
 * before the first line of all the machine.
 */
static bool prints(struct bench_report *rep)
{
	if (!rep->json && !rep->begun)
		printf("# %s, %u CPUs\n", rep->cpu, bench_cpus());
	rep->begun = true;
	if (rep->pending_file) {
		fclose(rep->pending_file);
		if (!rep->json)
			fputs(rep->pending, stdout);
		free(rep->pending);
		rep->pending_file = NULL;
		fflush(stdout);
	}
	return !rep->json;
}

/* ---- tables ---------------------------------------------------------------- */

/* One of two lines of a column's head: the upper one is empty when there is one line. */
static void print_head(const struct bench_column *c, bool upper)
{
	const char *newline = strchr(c->head, '\n');
	const char *part = newline && !upper ? newline + 1 : c->head;
	int n = newline && upper ? (int)(newline - c->head) : (int)strlen(part);

	if (!newline && upper)
		n = 0;
	if (c->digits < 0)
		printf("  %.*s%*s", n, part, c->width - n > 0 ? c->width - n : 0, "");
	else
		printf("  %*.*s", c->width, n, part);
}

void bench_table(struct bench_report *rep, const char *key, const char *title,
		 const struct bench_column *columns, unsigned int n)
{
	json_t *table;

	rep->columns = columns;
	rep->nr_columns = n;
	rep->rows = must(json_array());
	table = must(json_pack("{s:s, s:o}", "title", title, "rows", rep->rows));
	if (json_object_set_new(rep->tables, key, table) < 0)
		bench_die("out of memory");
	if (!prints(rep))
		return;
	printf("\n%s\n", title);
	for (int line = 0; line < 2; line++) {
		for (unsigned int i = 0; i < n; i++)
			print_head(&columns[i], line == 0);
		putchar('\n');
	}
	fflush(stdout);
}

static json_t *cell_json(const struct bench_column *c, const struct bench_cell *cell)
{
	if (c->digits < 0)
		return cell->text ? json_string_nocheck(cell->text) : json_null();
	if (!isfinite(cell->number))
		return json_null();
	if (c->digits == 0 && fabs(cell->number) < 1e15)
		return json_integer((json_int_t)llround(cell->number));
	return json_real(cell->number);
}

void bench_row(struct bench_report *rep, const struct bench_cell *cells)
{
	json_t *row = must(json_object());

	for (unsigned int i = 0; i < rep->nr_columns; i++) {
		const struct bench_column *c = &rep->columns[i];

		json_object_set_new(row, c->key, must(cell_json(c, &cells[i])));
		if (rep->json)
			continue;
		if (c->digits < 0)
			printf("  %-*s", c->width, cells[i].text ? cells[i].text : "-");
		else if (!isfinite(cells[i].number))
			printf("  %*s", c->width, "-");
		else
			printf("  %*.*f", c->width, c->digits, cells[i].number);
	}
	json_array_append_new(rep->rows, row);
	if (!rep->json) {
		putchar('\n');
		fflush(stdout);
	}
}

/* ---- notes and bars ---------------------------------------------------------- */

void bench_note(struct bench_report *rep, const char *format, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	json_array_append_new(rep->notes, must(json_string_nocheck(text)));
	if (prints(rep)) {
		printf("# %s\n", text);
		fflush(stdout);
	}
}

void bench_bar(struct bench_report *rep, const char *bar, const char *name, double value,
	       enum bench_goal goal, double limit)
{
	/* A NaN passes nothing. */
	bool pass = goal == BENCH_AT_LEAST ? value >= limit : value <= limit;
	const char *sign = goal == BENCH_AT_LEAST ? ">=" : "<=";
	json_t *v = isfinite(value) ? json_real(value) : json_null();

	rep->failed |= !pass;
	json_array_append_new(rep->bars, must(json_pack("{s:s, s:s, s:o, s:s, s:f, s:s}", "bar",
		bar, "name", name, "value", v, "goal", sign, "limit", limit, "verdict",
		pass ? "pass" : "fail")));
	fprintf(pending(rep), "bar %s %s value=%.4g goal=%s%.4g %s\n", bar, name, value, sign,
		limit, pass ? "pass" : "fail");
}

void bench_bar_skip(struct bench_report *rep, const char *bar, const char *name,
		    const char *format, ...)
{
	char why[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, sizeof(why), format, ap);
	va_end(ap);
	json_array_append_new(rep->bars, must(json_pack("{s:s, s:s, s:n, s:s, s:s}", "bar", bar,
		"name", name, "value", "verdict", "skip", "reason", why)));
	fprintf(pending(rep), "bar %s %s value=none goal=none skip # %s\n", bar, name, why);
}

/* ---- the end ------------------------------------------------------------------ */

int report_end(struct bench_report *rep)
{
	int status = rep->failed ? BENCH_BAR_FAILED : BENCH_OK;

	prints(rep);
	if (rep->json) {
		if (json_dumpf(rep->root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0)
			status = BENCH_FAILED;
		putchar('\n');
	}
	errno = 0;
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "ndp-bench: standard output cannot be written: %s\n",
			strerror(errno ? errno : EIO));
		status = BENCH_FAILED;
	}
	json_decref(rep->root);
	free(rep);
	return status;
}

void report_error_json(const char *message)
{
	json_t *root = json_pack("{s:{s:s}}", "error", "message", message);

	if (root)
		json_dumpf(root, stdout, JSON_INDENT(1));
	putchar('\n');
	fflush(stdout);
	json_decref(root);
}
