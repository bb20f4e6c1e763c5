// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * top.c - ndpctl top: one sample after another, and what happened between two.
 *
 * What ndpd knows comes from ndpd; without one, the nodes that can be opened are asked.
 * A counter that went back belongs to a DIMM or client that came anew: no rate then.
 */
#include "top.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const top_kind[KINDS] = { "prefetch", "relayout", "rebalance" };

/* ---- ndpd's document ------------------------------------------------------ */

static void copy(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
	for (char *c = to; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
}

static struct top_dimm *add_dimm(struct top_sample *s)
{
	struct top_dimm *more = reallocarray(s->dimms, s->nr_dimms + 1, sizeof(*more));

	if (!more)
		return NULL;
	s->dimms = more;
	more += s->nr_dimms++;
	*more = (struct top_dimm){ 0 };
	return more;
}

static void take_engine(struct top_engine *e, const json_t *o)
{
	e->commands = json_uint(o, "commands");
	e->errors = json_uint(o, "errors");
	e->tokens = json_uint(o, "tokens");
	e->bytes = json_uint(o, "bytes");
	e->busy_ns = json_uint(o, "busy_modelled_ns");
}

static int take_dimms(struct top_sample *s, const json_t *dimms, const char *device,
		      struct ndp_error *err)
{
	const json_t *o;
	size_t i;

	json_array_foreach(dimms, i, o) {
		struct top_dimm *d = add_dimm(s);

		if (!d)
			return fail(err, -ENOMEM, "out of memory");
		copy(d->device, sizeof(d->device), device);
		copy(d->state, sizeof(d->state), json_str(o, "state"));
		d->dimm = (uint32_t)json_uint(o, "dimm");
		d->memory_bytes = json_uint(o, "memory_bytes");
		d->free_bytes = json_uint(o, "free_bytes");
		d->resets = json_uint(o, "resets");
		d->has_queue = json_is_integer(json_object_get(o, "inflight"));
		d->queue = json_uint(o, "inflight");
		take_engine(&d->compute, json_object_get(o, "compute"));
		take_engine(&d->link, json_object_get(o, "link"));
	}
	return 0;
}

static void take_model(struct top_model *m, const json_t *o)
{
	const json_t *b = json_object_get(o, "model");

	copy(m->name, sizeof(m->name), json_str(o, "name"));
	copy(m->state, sizeof(m->state), json_str(o, "state"));
	m->client = (uint32_t)json_uint(o, "client");
	m->pid = json_uint(o, "pid");
	m->dropped = json_uint(o, "dropped");
	m->layers = json_uint(b, "layers");
	m->experts = json_uint(b, "experts");
	m->posts = json_uint(b, "posts");
	m->under_way = json_uint(b, "under_way");
	m->rollbacks = json_uint(b, "rollbacks");
	m->limited = json_uint(b, "rate_limited");
	m->gpu_bytes = json_uint(b, "gpu_bytes");
	m->gpu_budget = json_uint(b, "gpu_budget_bytes");
	m->covered = json_double(b, "coverage", NAN);
	m->possible = json_double(b, "coverage_possible", NAN);
	m->hidden = json_double(b, "hidden_share_modelled", NAN);
	m->gain_ns = json_double(b, "gain_modelled_ns_per_step", NAN);
	m->realised_ns = json_double(b, "realised_modelled_ns_per_step", NAN);
	for (int k = 0; k < KINDS; k++) {
		m->moves[k] = json_uint(json_object_get(b, "migrations"), top_kind[k]);
		m->move_bytes[k] = json_uint(json_object_get(b, "migrated_bytes"), top_kind[k]);
	}
}

int top_from_document(struct top_sample *s, const json_t *doc, struct ndp_error *err)
{
	const json_t *clients = json_object_get(doc, "clients"), *o;
	size_t i;
	int r = 0;

	s->ndpd = true;
	s->dry_run = json_is_true(json_object_get(doc, "dry_run"));
	s->uptime_s = json_double(doc, "uptime_s", NAN);
	copy(s->host, sizeof(s->host), json_str(doc, "host"));
	json_array_foreach(json_object_get(doc, "devices"), i, o)
		if (r == 0)
			r = take_dimms(s, json_object_get(o, "dimms"), json_str(o, "node"), err);
	s->models = calloc(json_array_size(clients) + 1, sizeof(*s->models));
	if (r == 0 && !s->models)
		r = fail(err, -ENOMEM, "out of memory");
	if (r < 0)
		return r;
	json_array_foreach(clients, i, o) {
		struct top_model *m = &s->models[s->nr_models];
		char device[96];

		/* Connections that say nothing, like this one, are no models. */
		if (!json_str(o, "name")[0])
			continue;
		take_model(m, o);
		s->nr_models++;
		snprintf(device, sizeof(device), "%s (client %u)", m->name, m->client);
		r = take_dimms(s, json_object_get(o, "dimms"), device, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- nodes that are opened here ----------------------------------------------- */

static void open_local(struct top_source *from)
{
	struct ndp_error err = { 0 };
	struct ndp_node *nodes;
	int n;

	from->looked = true;
	if (from->device) {
		if (ndp_open(&from->local[0], from->device, &err) == 0)
			from->nr_local = 1;
		copy(from->why, sizeof(from->why), err.message);
		return;
	}
	n = nodes_find(&nodes, &err);
	for (int i = 0; i < n && from->nr_local < MAX_LOCAL; i++)
		if (nodes[i].dimm < 0 &&
		    ndp_open(&from->local[from->nr_local], nodes[i].path, &err) == 0)
			from->nr_local++;
	free(nodes);
	copy(from->why, sizeof(from->why), err.message);
}

static void copy_engine(struct top_engine *e, const struct ndp_counters *c)
{
	*e = (struct top_engine){ c->commands, c->errors, c->tokens, c->bytes, c->busy_ns,
				  0, 0, 0, 0 };
}

static int take_local(struct top_sample *s, struct top_source *from, struct ndp_error *err)
{
	if (!from->looked)
		open_local(from);
	copy(s->device_why, sizeof(s->device_why), from->why);
	for (uint32_t i = 0; i < from->nr_local; i++) {
		struct ndp_device_info info;

		if (ndp_device_info(from->local[i], &info) < 0)
			continue; /* gone */
		for (uint32_t m = info.dimm_mask; m; m &= m - 1) {
			const uint32_t k = (uint32_t)__builtin_ctz(m);
			struct ndp_dimm_info dimm;
			struct top_dimm *d;

			if (ndp_dimm_info(from->local[i], k, &dimm) < 0)
				continue;
			d = add_dimm(s);
			if (!d)
				return fail(err, -ENOMEM, "out of memory");
			copy(d->device, sizeof(d->device), info.name);
			copy(d->state, sizeof(d->state), dimm_state_name(dimm.state));
			d->dimm = k;
			d->memory_bytes = dimm.mem_bytes;
			d->free_bytes = dimm.free_bytes;
			d->resets = dimm.resets;
			d->has_queue = true;
			d->queue = dimm.inflight;
			copy_engine(&d->compute, &dimm.compute);
			copy_engine(&d->link, &dimm.link);
		}
	}
	return 0;
}

void top_source_close(struct top_source *from)
{
	while (from->nr_local)
		ndp_close(from->local[--from->nr_local]);
}

/* ---- rates ----------------------------------------------------------------------- */

static double rate(uint64_t now, uint64_t before, double s)
{
	return now < before ? NAN : (double)(now - before) / s;
}

static void engine_rates(struct top_engine *e, const struct top_engine *b, double s)
{
	e->commands_s = b ? rate(e->commands, b->commands, s) : NAN;
	e->tokens_s = b ? rate(e->tokens, b->tokens, s) : NAN;
	e->bytes_s = b ? rate(e->bytes, b->bytes, s) : NAN;
	e->busy = b ? rate(e->busy_ns, b->busy_ns, s * 1e9) : NAN;
}

static const struct top_dimm *same_dimm(const struct top_sample *s, const struct top_dimm *d)
{
	for (uint32_t i = 0; s && i < s->nr_dimms; i++)
		if (s->dimms[i].dimm == d->dimm && !strcmp(s->dimms[i].device, d->device))
			return &s->dimms[i];
	return NULL;
}

static const struct top_model *same_model(const struct top_sample *s, const struct top_model *m)
{
	for (uint32_t i = 0; s && i < s->nr_models; i++)
		if (s->models[i].client == m->client && s->models[i].pid == m->pid)
			return &s->models[i];
	return NULL;
}

static void model_rates(struct top_model *m, const struct top_model *b, double s)
{
	m->posts_s = b ? rate(m->posts, b->posts, s) : NAN;
	m->bytes_s = b ? 0 : NAN;
	for (int k = 0; k < KINDS; k++) {
		m->moves_s[k] = b ? rate(m->moves[k], b->moves[k], s) : NAN;
		m->bytes_s += b ? rate(m->move_bytes[k], b->move_bytes[k], s) : NAN;
	}
}

void top_rates(struct top_sample *s, const struct top_sample *before)
{
	const bool two = before && s->at_ns > before->at_ns;
	const double t = two ? (double)(s->at_ns - before->at_ns) * 1e-9 : NAN;

	s->interval_s = t;
	for (uint32_t i = 0; i < s->nr_dimms; i++) {
		const struct top_dimm *b = two ? same_dimm(before, &s->dimms[i]) : NULL;

		engine_rates(&s->dimms[i].compute, b ? &b->compute : NULL, t);
		engine_rates(&s->dimms[i].link, b ? &b->link : NULL, t);
	}
	for (uint32_t i = 0; i < s->nr_models; i++)
		model_rates(&s->models[i], two ? same_model(before, &s->models[i]) : NULL, t);
}

/* ---- a sample ---------------------------------------------------------------------- */

int top_take(struct top_sample *s, struct top_source *from, const struct top_sample *before,
	     struct ndp_error *err)
{
	json_t *doc;
	int r;

	*s = (struct top_sample){ .uptime_s = NAN };
	r = ask_status(&doc, err);
	s->at_ns = now_ns();
	if (r == -EINTR)
		return r;
	if (r < 0)
		copy(s->ndpd_why, sizeof(s->ndpd_why), err->message);
	else
		r = top_from_document(s, doc, err);
	json_decref(doc);
	if (s->ndpd && r < 0)
		return r;
	r = 0;
	if (from->device || !s->ndpd)
		r = take_local(s, from, err);
	top_rates(s, before);
	return r;
}

void top_free(struct top_sample *s)
{
	free(s->dimms);
	free(s->models);
	*s = (struct top_sample){ 0 };
}

/* ---- the command ----------------------------------------------------------------------- */

static int pause_for(double seconds, struct ndp_error *err)
{
	const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
	int r;

	while ((r = interrupt_check(err)) == 0 && now_ns() < end) {
		const uint64_t left = end - now_ns();
		const struct timespec t = { .tv_nsec = left < 100000000 ? (long)left : 100000000 };

		nanosleep(&t, NULL);
	}
	return r;
}

static void print_line(void *arg, const char *text, enum line_kind kind)
{
	(void)kind;
	fprintf(arg, "%s\n", text);
}

static int once(const struct options *o, struct top_source *from, struct ndp_error *err)
{
	struct top_sample first = { 0 }, second = { 0 };
	int r = top_take(&first, from, NULL, err);

	if (r == 0)
		r = pause_for(o->delay_s, err);
	if (r == 0)
		r = top_take(&second, from, &first, err);
	if (r == 0) {
		interrupt_mute();
		if (o->json)
			r = out_json(stdout, top_json(&second), err);
		else
			top_lines(&second, o->delay_s, print_line, stdout);
	}
	top_free(&first);
	top_free(&second);
	return r;
}

int cmd_top(const struct options *o, struct ndp_error *err)
{
	struct top_source from = { .device = o->device };
	int r;

	if (o->json && !o->once)
		return fail(err, -EINVAL, "--json is one document: add --once"), STATUS_USAGE;
	if (!o->once && (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)))
		return fail(err, -ENOTTY, "a terminal is wanted for the live view: add --once"),
		       STATUS_USAGE;
	if (o->device) {
		open_local(&from);
		if (!from.nr_local)
			return fail(err, -ENODEV, "%s", from.why), STATUS_FAILED;
	}
	r = o->once ? once(o, &from, err) : top_live(&from, o->delay_s, err);
	top_source_close(&from);
	return r < 0 ? STATUS_FAILED : STATUS_OK;
}
