// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * trace.c - recorded loads and histograms from CSV files, plain or gzip; see
 * source.h.
 *
 * The file is checked as a whole before the first step: a replay never ends in
 * the middle because of a bad line.  Steps rise; within a step the lines may
 * have any order, and no layer and expert come twice.
 */
#include "source.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
	LINE_BYTES = 128,
	MAX_COUNT = 1 << 30,
	MAX_STEP = 1 << 30,
	DRAWN_STEPS = 200,
	DRAWN_BATCH = 512,
};

static const char header[] = "step,layer,expert,count";
static const char histogram_header[] = "layer,expert,count";

struct entry {
	uint16_t layer;
	uint16_t expert;
	uint32_t count;
	uint32_t line;
};

struct trace {
	struct source source;
	const char *path;
	struct source_limits limits;
	gzFile file;
	uint32_t line;
	bool histogram;
	struct entry *entries;
	size_t nr_entries, max_entries;
	size_t *steps;		/* [nr_steps + 1]: where they begin in entries */
	size_t nr_steps, max_steps;
	size_t at_step;
	uint16_t *index;	/* of a layer number */
	uint32_t steps_left;
	/* histogram */
	struct draw *draw;	/* [layers] */
	uint64_t state;
};

static int refuse(const struct trace *t, uint32_t line, struct ndp_error *err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int refuse(const struct trace *t, uint32_t line, struct ndp_error *err, const char *fmt, ...)
{
	char text[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return fail(err, -EINVAL, "%s:%u: %s", t->path, line, text);
}

/* 1: @text has a line without its end; 0: the file has ended. */
static int read_line(struct trace *t, char text[LINE_BYTES], struct ndp_error *err)
{
	const char *got = gzgets(t->file, text, LINE_BYTES);
	int code;
	const char *what;
	size_t n;

	t->line++;
	if (!got) {
		what = gzerror(t->file, &code);
		if (code == Z_ERRNO)
			return fail(err, -EIO, "%s: %s", t->path, strerror(errno));
		if (code == Z_BUF_ERROR)
			return refuse(t, t->line, err, "the gzip data ends too early; the file is cut off");
		if (code != Z_OK && code != Z_STREAM_END)
			return refuse(t, t->line, err, "the gzip data is damaged (%s)", what);
		return 0;
	}
	n = strlen(text);
	if (n && text[n - 1] == '\n') {
		text[--n] = 0;
	} else if (n == LINE_BYTES - 1) {
		return refuse(t, t->line, err, "a line of more than %d characters", LINE_BYTES - 2);
	} else if (!gzeof(t->file)) {
		return refuse(t, t->line, err, "a byte of zero; this is no CSV text");
	}
	if (n && text[n - 1] == '\r')
		text[--n] = 0;
	/* The end may have come in mid-line. */
	gzerror(t->file, &code);
	if (code == Z_BUF_ERROR)
		return refuse(t, t->line, err, "the gzip data ends too early; the file is cut off");
	return 1;
}

static int read_fields(const struct trace *t, const char *text, uint32_t *fields, uint32_t n,
		       struct ndp_error *err)
{
	const char *at = text;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t v = 0;

		if (*at < '0' || *at > '9')
			return refuse(t, t->line, err, "wanted %u numbers \"%s\", found \"%.60s\"", n,
				      t->histogram ? histogram_header : header, text);
		while (*at >= '0' && *at <= '9' && v <= UINT32_MAX)
			v = v * 10 + (*at++ - '0');
		if (v > UINT32_MAX || *at != (i + 1 < n ? ',' : 0))
			return refuse(t, t->line, err, "wanted %u numbers \"%s\", found \"%.60s\"", n,
				      t->histogram ? histogram_header : header, text);
		fields[i] = v;
		at++;
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	if (x->expert != y->expert)
		return x->expert < y->expert ? -1 : 1;
	return x->line < y->line ? -1 : 1;
}

/* Sorts the step that has just ended; a pair of layer and expert may come once. */
static int end_step(struct trace *t, struct ndp_error *err)
{
	const size_t first = t->steps[t->nr_steps];
	struct entry *e = t->entries + first;
	const size_t n = t->nr_entries - first;
	bool sorted = true;

	for (size_t i = 1; i < n && sorted; i++)
		sorted = compare(&e[i - 1], &e[i]) < 0;
	if (!sorted)
		qsort(e, n, sizeof(*e), compare);
	for (size_t i = 1; i < n; i++)
		if (e[i].layer == e[i - 1].layer && e[i].expert == e[i - 1].expert)
			return refuse(t, e[i].line, err, "layer %u, expert %u were in line %u already",
				      e[i].layer, e[i].expert, e[i - 1].line);
	t->nr_steps++;
	if (t->nr_steps == t->max_steps) {
		size_t *more = realloc(t->steps, 2 * t->max_steps * sizeof(*more));

		if (!more)
			return fail(err, -ENOMEM, "%s: out of memory", t->path);
		t->steps = more;
		t->max_steps *= 2;
	}
	t->steps[t->nr_steps] = t->nr_entries;
	return 0;
}

static int add(struct trace *t, uint32_t layer, uint32_t expert, uint32_t count,
	       struct ndp_error *err)
{
	if (layer >= t->limits.layers)
		return refuse(t, t->line, err, "layer %u, the model's are 0 to %u", layer,
			      t->limits.layers - 1);
	if (expert >= t->limits.experts)
		return refuse(t, t->line, err, "expert %u, the model's are 0 to %u", expert,
			      t->limits.experts - 1);
	if (count > MAX_COUNT)
		return refuse(t, t->line, err, "a count of %u, at most %d are possible", count, MAX_COUNT);
	if (t->nr_entries == t->max_entries) {
		const size_t n = t->max_entries ? 2 * t->max_entries : 4096;
		struct entry *more = realloc(t->entries, n * sizeof(*more));

		if (!more)
			return fail(err, -ENOMEM, "%s: out of memory", t->path);
		t->entries = more;
		t->max_entries = n;
	}
	t->entries[t->nr_entries++] = (struct entry){ layer, expert, count, t->line };
	return 0;
}

static int read_lines(struct trace *t, struct ndp_error *err)
{
	uint32_t fields[4], step = 0;
	char text[LINE_BYTES];
	int r;

	t->max_steps = 64;
	t->steps = calloc(t->max_steps, sizeof(*t->steps));
	if (!t->steps)
		return fail(err, -ENOMEM, "%s: out of memory", t->path);
	r = read_line(t, text, err);
	if (r < 0)
		return r;
	t->histogram = r && !strcmp(text, histogram_header);
	if (!r || (!t->histogram && strcmp(text, header)))
		return refuse(t, 1, err, "wanted the header \"%s\" or \"%s\", found \"%.60s\"", header,
			      histogram_header, r ? text : "");
	while ((r = read_line(t, text, err)) > 0) {
		r = read_fields(t, text, fields + t->histogram, 4 - t->histogram, err);
		if (r < 0)
			return r;
		if (t->histogram)
			fields[0] = 0;
		if (fields[0] > MAX_STEP)
			return refuse(t, t->line, err, "step %u, at most %d", fields[0], MAX_STEP);
		if (t->nr_entries && fields[0] < step)
			return refuse(t, t->line, err, "step %u comes after step %u; steps must rise",
				      fields[0], step);
		if (t->nr_entries && fields[0] > step) {
			r = end_step(t, err);
			if (r < 0)
				return r;
		}
		step = fields[0];
		r = add(t, fields[1], fields[2], fields[3], err);
		if (r < 0)
			return r;
	}
	if (r < 0)
		return r;
	if (!t->nr_entries)
		return refuse(t, t->line, err, "the file ends after its header");
	return end_step(t, err);
}

static int index_layers(struct trace *t, struct ndp_error *err)
{
	struct source *s = &t->source;
	bool *seen = calloc(t->limits.layers, sizeof(*seen));

	t->index = calloc(t->limits.layers, sizeof(*t->index));
	s->layer_numbers = calloc(t->limits.layers, sizeof(*s->layer_numbers));
	if (!seen || !t->index || !s->layer_numbers) {
		free(seen);
		return fail(err, -ENOMEM, "%s: out of memory", t->path);
	}
	for (size_t i = 0; i < t->nr_entries; i++)
		seen[t->entries[i].layer] = true;
	for (uint32_t l = 0; l < t->limits.layers; l++) {
		if (!seen[l])
			continue;
		t->index[l] = s->nr_layers;
		s->layer_numbers[s->nr_layers++] = l;
	}
	free(seen);
	return 0;
}

/* Tokens of a recorded step, by the layer that has the most. */
static uint64_t step_tokens(const struct trace *t, size_t step)
{
	uint64_t sum = 0, most = 0;

	for (size_t i = t->steps[step]; i < t->steps[step + 1]; i++) {
		if (i == t->steps[step] || t->entries[i].layer != t->entries[i - 1].layer)
			sum = 0;
		sum += t->entries[i].count;
		if (sum > most)
			most = sum;
	}
	return (most + t->limits.top_k - 1) / t->limits.top_k;
}

/* How many recorded steps from @step on make one of the wanted batch; 0: too few are left. */
static size_t take(const struct trace *t, size_t step)
{
	uint64_t tokens = 0;

	if (!t->limits.batch)
		return step < t->nr_steps;
	for (size_t n = 0; step + n < t->nr_steps; n++) {
		tokens += step_tokens(t, step + n);
		if (tokens >= t->limits.batch)
			return n + 1;
	}
	return 0;
}

static int recorded_next(struct source *s, uint32_t *counts, struct ndp_error *err)
{
	struct trace *t = (struct trace *)s;
	const size_t n = take(t, t->at_step);

	(void)err;
	if (!n || !t->steps_left)
		return 0;
	t->steps_left--;
	memset(counts, 0, sizeof(*counts) * s->nr_layers * s->experts);
	for (size_t i = t->steps[t->at_step]; i < t->steps[t->at_step + n]; i++) {
		const struct entry *e = &t->entries[i];

		counts[(size_t)t->index[e->layer] * s->experts + e->expert] += e->count;
	}
	t->at_step += n;
	return 1;
}

static int drawn_next(struct source *s, uint32_t *counts, struct ndp_error *err)
{
	struct trace *t = (struct trace *)s;
	const uint64_t batch = t->limits.batch ? t->limits.batch : DRAWN_BATCH;

	(void)err;
	if (!t->steps_left)
		return 0;
	t->steps_left--;
	memset(counts, 0, sizeof(*counts) * s->nr_layers * s->experts);
	for (uint32_t l = 0; l < s->nr_layers; l++)
		draw_many(&t->draw[l], &t->state, batch * t->limits.top_k,
			  counts + (size_t)l * s->experts);
	return 1;
}

static void trace_close(struct source *s)
{
	struct trace *t = (struct trace *)s;

	for (uint32_t l = 0; t->draw && l < s->nr_layers; l++)
		draw_free(&t->draw[l]);
	free(t->draw);
	free(t->index);
	free(t->steps);
	free(t->entries);
	free(s->layer_numbers);
	free(t);
}

static int prepare_recorded(struct trace *t, struct ndp_error *err)
{
	size_t at = 0, steps = 0;

	for (size_t n; (n = take(t, at)) != 0; at += n, steps++)
		if (t->limits.batch && n == 1 && step_tokens(t, at) > t->limits.batch)
			return refuse(t, t->entries[t->steps[at]].line, err,
				      "the step has %llu tokens, more than --batch %u",
				      (unsigned long long)step_tokens(t, at), t->limits.batch);
	if (!steps)
		return refuse(t, t->line - 1, err, "all steps together have fewer tokens than --batch %u",
			      t->limits.batch);
	t->source.next = recorded_next;
	t->source.recorded_steps = t->nr_steps;
	t->source.left_over = t->nr_steps - at;
	t->source.merged = at * 1000 / steps;
	t->steps_left = t->limits.steps ? t->limits.steps : UINT32_MAX;
	snprintf(t->source.text, sizeof(t->source.text), "trace of %zu steps", t->nr_steps);
	if (t->limits.batch)
		snprintf(t->source.text, sizeof(t->source.text),
			 "trace of %zu steps, on the mean %.2f merged into one of %u tokens or a "
			 "few more, %zu left over", t->nr_steps, at / (double)steps,
			 t->limits.batch, t->nr_steps - at);
	return 0;
}

static int prepare_histogram(struct trace *t, struct ndp_error *err)
{
	struct source *s = &t->source;
	double weights[s->experts];
	size_t i = 0;

	t->draw = calloc(s->nr_layers, sizeof(*t->draw));
	if (!t->draw)
		return fail(err, -ENOMEM, "%s: out of memory", t->path);
	for (uint32_t l = 0; l < s->nr_layers; l++) {
		double sum = 0;

		memset(weights, 0, sizeof(weights));
		for (; i < t->nr_entries && t->index[t->entries[i].layer] == l; i++) {
			weights[t->entries[i].expert] = t->entries[i].count;
			sum += t->entries[i].count;
		}
		if (!(sum > 0))
			return refuse(t, t->entries[i - 1].line, err, "layer %u has no count above 0",
				      s->layer_numbers[l]);
		if (draw_init(&t->draw[l], s->experts) < 0)
			return fail(err, -ENOMEM, "%s: out of memory", t->path);
		draw_set(&t->draw[l], weights);
	}
	s->next = drawn_next;
	t->steps_left = t->limits.steps ? t->limits.steps : DRAWN_STEPS;
	snprintf(s->text, sizeof(s->text), "%u steps of %u tokens drawn from a histogram",
		 t->steps_left, t->limits.batch ? t->limits.batch : DRAWN_BATCH);
	return 0;
}

int source_open_file(struct source **s, const char *path, const struct source_limits *limits,
		     uint64_t seed, struct ndp_error *err)
{
	struct trace *t = calloc(1, sizeof(*t));
	int r;

	*s = NULL;
	if (!t)
		return fail(err, -ENOMEM, "out of memory");
	t->path = path;
	t->limits = *limits;
	t->state = random_state(seed);
	t->source.experts = limits->experts;
	t->source.close = trace_close;
	errno = 0;
	t->file = gzopen(path, "rb");
	if (!t->file) {
		r = fail(err, errno ? -errno : -ENOMEM, "%s: cannot be opened (%s)", path,
			 strerror(errno ? errno : ENOMEM));
	} else {
		gzbuffer(t->file, 1 << 17);
		r = read_lines(t, err);
		gzclose(t->file);
		t->file = NULL;
	}
	if (r == 0)
		r = index_layers(t, err);
	if (r == 0)
		r = t->histogram ? prepare_histogram(t, err) : prepare_recorded(t, err);
	if (r < 0) {
		trace_close(&t->source);
		return r;
	}
	*s = &t->source;
	return 0;
}
