// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * out.c - what goes to stdout: one JSON document, or one table.
 *
 * A document is built as a whole and then printed, so that stdout never has a part of
 * one.  JSON has no NaN and no infinity: such a number is null.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---------------------------------------------------------------- */

json_t *json_number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

json_t *json_u64(uint64_t v)
{
	return v > INT64_MAX ? json_null() : json_integer((json_int_t)v);
}

json_t *json_text(const char *s)
{
	json_t *v = json_string(s);
	char *plain;

	if (v)
		return v;
	plain = strdup(s);
	if (!plain)
		return json_null();
	for (char *c = plain; *c; c++)
		if (*c & 0x80)
			*c = '?';
	v = json_string(plain);
	free(plain);
	return v ? v : json_null();
}

int out_json(FILE *f, json_t *doc, struct ndp_error *err)
{
	char *text = doc ? json_dumps(doc, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
	int r = 0;

	json_decref(doc);
	if (!text)
		return fail(err, -ENOMEM, "no memory for a JSON document");
	errno = 0;
	if (fprintf(f, "%s\n", text) < 0 || fflush(f) != 0)
		r = fail(err, errno ? -errno : -EIO, "the output cannot be written: %s",
			 strerror(errno ? errno : EIO));
	free(text);
	return r;
}

void out_error_json(FILE *f, const struct ndp_error *error)
{
	const char *name = strerrorname_np(-error->code);
	struct ndp_error ignored;

	out_json(f, json_pack("{s:{s:s, s:o}}", "error", "code", name ? name : "EIO", "message",
			      json_text(error->message)), &ignored);
}

int out_flush(struct ndp_error *err)
{
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	return fail(err, errno ? -errno : -EIO, "standard output cannot be written: %s",
		    strerror(errno ? errno : EIO));
}

/* ---- tables ---------------------------------------------------------------- */

static void add_row(struct table *t, const char *text)
{
	char (*row)[CELL];

	if (t->rows == t->room) {
		t->room = t->room ? 2 * t->room : 16;
		t->cells = reallocarray(t->cells, t->room, t->columns * sizeof(*t->cells));
		if (!t->cells)
			abort(); /* a kilobyte was not there */
	}
	row = &t->cells[t->rows++ * t->columns];
	memset(row, 0, t->columns * sizeof(*row));
	for (uint32_t i = 0; i < t->columns; i++) {
		size_t n = strcspn(text, "\t");

		snprintf(row[i], CELL, "%.*s", (int)(n < CELL - 1 ? n : CELL - 1), text);
		text += n;
		if (*text)
			text++;
	}
}

void table_begin(struct table *t, const char *titles)
{
	*t = (struct table){ .columns = 1 };
	for (const char *c = titles; *c; c++)
		t->columns += *c == '\t';
	add_row(t, titles);
}

void table_row(struct table *t, const char *fmt, ...)
{
	char text[TABLE_COLUMNS * CELL];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *c = text; *c; c++)
		if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
			*c = '?';
	add_row(t, text);
}

void table_lines(struct table *t, void (*line)(void *arg, const char *text, bool title), void *arg)
{
	char text[TABLE_COLUMNS * (CELL + 2) + 1];
	int width[TABLE_COLUMNS] = { 0 };
	bool right[TABLE_COLUMNS];

	for (uint32_t i = 0; i < t->columns; i++)
		right[i] = t->cells[i][0] == '>';
	for (uint32_t i = 0; i < t->columns * t->rows; i++) {
		const uint32_t c = i % t->columns;
		const int n = (int)strlen(t->cells[i]) - (i < t->columns && right[c]);

		width[c] = n > width[c] ? n : width[c];
	}
	for (uint32_t i = 0; i < t->rows; i++) {
		int at = 0;

		for (uint32_t c = 0; c < t->columns; c++) {
			const char *cell = t->cells[i * t->columns + c] + (i == 0 && right[c]);

			at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%*s",
				       c ? "  " : "", right[c] ? width[c] : -width[c], cell);
		}
		while (at > 0 && text[at - 1] == ' ')
			text[--at] = '\0';
		line(arg, text, i == 0);
	}
	free(t->cells);
	*t = (struct table){ 0 };
}

static void print_line(void *arg, const char *text, bool title)
{
	(void)title;
	fprintf(arg, "%s\n", text);
}

void table_end(struct table *t, FILE *f)
{
	table_lines(t, print_line, f);
}

/* ---- numbers for people ------------------------------------------------------ */

static const char *scaled(char *to, size_t size, double v, double step, const char *const *units,
			  uint32_t nr_units)
{
	uint32_t u = 0;

	if (!isfinite(v)) {
		snprintf(to, size, "-");
		return to;
	}
	while (fabs(v) >= step && u + 1 < nr_units) {
		v /= step;
		u++;
	}
	snprintf(to, size, u && fabs(v) < 100 ? "%.1f%s" : "%.0f%s", v, units[u]);
	return to;
}

const char *text_bytes(char *to, size_t size, double bytes)
{
	static const char *const units[] = { " B", " KiB", " MiB", " GiB", " TiB", " PiB" };

	return scaled(to, size, bytes, 1024, units, 6);
}

const char *text_count(char *to, size_t size, double n)
{
	static const char *const units[] = { "", " k", " M", " G", " T" };

	return scaled(to, size, n, 1000, units, 5);
}

const char *text_ns(char *to, size_t size, double ns)
{
	static const char *const units[] = { " ns", " us", " ms", " s" };

	return scaled(to, size, ns, 1000, units, 4);
}

const char *text_share(char *to, size_t size, double share)
{
	if (isfinite(share))
		snprintf(to, size, "%.1f %%", 100 * share);
	else
		snprintf(to, size, "-");
	return to;
}

const char *text_numa(char *to, size_t size, int node)
{
	snprintf(to, size, node < 0 ? "-" : "%d", node);
	return to;
}

const char *text_mask(char *to, size_t size, uint32_t mask)
{
	size_t at = 0;

	snprintf(to, size, "none");
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t first = i;

		if (!(mask >> i & 1))
			continue;
		while (i < 31 && mask >> (i + 1) & 1)
			i++;
		if (at < size)
			at += (size_t)snprintf(to + at, size - at, first == i ? "%s%u" : "%s%u-%u",
					       at ? "," : "", first, i);
	}
	return to;
}
