// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * json.c - the JSON of report.h.
 *
 * A document is built as a whole and then printed, so that standard output never
 * has a part of one.  JSON has no NaN and no infinity: such a number is null.
 */
#include "error.h"
#include "report.h"
#include "text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *integer(uint64_t v)
{
	return json_integer((json_int_t)v);
}

/* Paths need not be UTF-8, JSON does. */
static json_t *string(const char *s)
{
	size_t n = strlen(s);
	uint32_t *bytes = calloc(n + 1, sizeof(*bytes));
	char *text = NULL;
	json_t *v;

	for (size_t i = 0; bytes && i < n; i++)
		bytes[i] = (unsigned char)s[i];
	if (bytes)
		text = text_utf8(bytes, n);
	v = text ? json_string(text) : NULL;
	free(text);
	free(bytes);
	return v;
}

static json_t *ids_array(const uint32_t *ids, uint32_t n)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(a, integer(ids[i]));
	return a;
}

/* null for models that have no text here. */
static json_t *text_value(const struct run *run, const uint32_t *ids, uint32_t n)
{
	char *text;
	json_t *v;

	if (run->model->config.vocab != TEXT_VOCAB)
		return json_null();
	text = text_utf8(ids, n);
	v = text ? json_string(text) : NULL;
	free(text);
	return v;
}

static json_t *verdict_object(const struct verdict *v)
{
	json_t *o;

	if (!v->ref)
		return json_null();
	o = json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:o}",
		      "passed", verdict_passed(v),
		      "equal_tokens", integer(v->equal_tokens),
		      "wanted_tokens", integer(v->ref->nr_tokens),
		      "compared_logits", integer(v->compared_logits),
		      "wrong_logits", integer(v->wrong_logits),
		      "worst_deviation", number(v->worst_deviation),
		      "smallest_margin", number(v->smallest_margin));
	if (o && v->diverged)
		json_object_set_new(o, "diverged",
				    json_pack("{s:o, s:o, s:o}",
					      "step", integer(v->equal_tokens),
					      "wanted", integer(v->ref->tokens[v->equal_tokens]),
					      "got", integer(v->got)));
	return o;
}

static json_t *prompts_array(const struct run *run)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < run->nr_prompts; i++) {
		const struct run_prompt *p = &run->prompts[i];

		json_array_append_new(a, json_pack(
			"{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			"name", string(p->name),
			"prompt_tokens", ids_array(p->tokens, p->nr_tokens),
			"prompt_text", text_value(run, p->tokens, p->nr_tokens),
			"tokens", ids_array(p->gen.tokens, p->gen.nr_tokens),
			"text", text_value(run, p->gen.tokens, p->gen.nr_tokens),
			"prompt_wall_ns", integer(p->gen.prompt_wall_ns),
			"decode_wall_ns", integer(p->gen.decode_wall_ns),
			"check", verdict_object(&p->verdict)));
	}
	return a;
}

static json_t *counters_object(const struct ndp_counters *c)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}",
			 "commands", integer(c->commands),
			 "errors", integer(c->errors),
			 "tokens", integer(c->tokens),
			 "bytes", integer(c->bytes),
			 "modelled_busy_ns", integer(c->busy_ns),
			 "wall_busy_ns", integer(c->wall_ns));
}

static json_t *dimms_array(const struct run *run)
{
	json_t *a = json_array();

	for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++) {
		struct ndp_counters c = report_difference(&run->after.compute[d],
							  &run->before.compute[d]);
		struct ndp_counters l = report_difference(&run->after.link[d],
							  &run->before.link[d]);

		if (run->domains.device.dimm_mask >> d & 1)
			json_array_append_new(a, json_pack("{s:o, s:o, s:o}",
							   "dimm", integer(d),
							   "compute", counters_object(&c),
							   "link", counters_object(&l)));
	}
	return a;
}

static json_t *model_object(const struct run *run)
{
	const struct model_config *c = &run->model->config;

	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			 "path", string(run->options->model),
			 "layers", integer(c->layers),
			 "hidden", integer(c->hidden),
			 "experts", integer(c->experts),
			 "experts_per_token", integer(c->experts_per_token),
			 "neurons", integer(c->neurons),
			 "vocabulary", integer(c->vocab),
			 "expert_bytes", integer(run->memory.dimm_bytes + run->memory.host_bytes));
}

static json_t *check_object(const struct run *run)
{
	float worst = 0;
	float margin = INFINITY;

	if (!run->options->check)
		return json_null();
	for (uint32_t i = 0; i < run->nr_prompts; i++) {
		worst = fmaxf(worst, run->prompts[i].verdict.worst_deviation);
		margin = fminf(margin, run->prompts[i].verdict.smallest_margin);
	}
	return json_pack("{s:o, s:b, s:o, s:o, s:o}",
			 "reference", string(run->options->check),
			 "passed", report_passed(run),
			 "tolerance", number((double)CHECK_TOLERANCE),
			 "worst_deviation", number(worst),
			 "smallest_margin", number(margin));
}

static json_t *migration_object(const struct run *run)
{
	if (!run->options->migrate_ms)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o, s:o}",
			 "period_ms", integer(run->options->migrate_ms),
			 "moves", integer(run->migration.moves),
			 "bytes", integer(run->migration.bytes),
			 "modelled_ns", integer(run->migration.modelled_ns),
			 "no_room", integer(run->migration.no_room));
}

static json_t *daemon_object(const struct run *run)
{
	if (!run->options->daemon)
		return json_null();
	return json_pack("{s:b, s:o, s:o, s:o}",
			 "attached", run->daemon.attached,
			 "posts", integer(run->daemon.posts),
			 "dropped", integer(run->daemon.dropped),
			 "moves", integer(run->moves));
}

/* Names of domains in the order in which they are printed. */
static json_t *domains_object(const struct run *run)
{
	json_t *all = json_object();

	for (int i = 0; i < NDP_DOMAINS; i++) {
		const struct ndp_domain_report *d = &run->experts.domain[i];

		json_object_set_new(all, domain_names[i], json_pack(
			"{s:b, s:o, s:o, s:o, s:o, s:o, s:o}",
			"computes", (int)(run->domains.mask >> i & 1),
			"experts", integer(d->experts),
			"commands", integer(d->commands),
			"token_expert_pairs", integer(d->tokens),
			"weight_bytes", integer(d->bytes),
			"wall_ns", integer(d->wall_ns),
			"modelled_ns", number(d->modelled_ns)));
	}
	return all;
}

static json_t *experts_object(const struct run *run)
{
	const struct expert_stats *s = &run->experts;
	uint64_t pairs = 0, commands = 0;

	for (int i = 0; i < NDP_DOMAINS; i++) {
		pairs += s->domain[i].tokens;
		commands += s->domain[i].commands;
	}
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:b}",
			 "policy", string(ndp_policy_name(run->options->policy)),
			 "host", run->domains.has_host ? string(run->domains.host.name) :
			 json_null(),
			 "layer_passes", integer(s->passes),
			 "commands", integer(commands),
			 "token_expert_pairs", integer(pairs),
			 "retries", integer(s->retries),
			 "wall_ns", integer(s->wall_ns),
			 "route_wall_ns", integer(s->route_wall_ns),
			 "schedule_wall_ns", integer(s->schedule_wall_ns),
			 "reduce_wall_ns", integer(s->reduce_wall_ns),
			 "modelled_ns", number(s->modelled_ns),
			 "modelled_busiest_dimm_ns", integer(s->dimm_modelled_ns),
			 "x_bytes", integer(s->x_bytes),
			 "y_bytes", integer(s->y_bytes),
			 "gpu_lost", (int)s->gpu_lost);
}

static json_t *device_object(const struct run *run)
{
	if (!run->domains.dev)
		return json_null();
	return json_pack("{s:o, s:o, s:o}",
			 "name", string(run->domains.device.name),
			 "domain", string(run->domains.device.domain),
			 "dimm_mask", integer(run->domains.device.dimm_mask));
}

static json_t *gpu_object(const struct run *run)
{
	struct ndp_gpu_info info;

	if (run->domains.gpu_unused)
		return json_pack("{s:b}", "used", 0);
	if (!run->domains.gpu)
		return json_null();
	ndp_gpu_info(run->domains.gpu, &info);
	return json_pack("{s:b, s:o, s:b, s:o, s:o, s:o}",
			 "used", 1,
			 "name", string(info.name),
			 "is_cpu", (int)info.is_cpu,
			 "budget_bytes", integer(info.budget_bytes),
			 "expert_bytes", integer(run->memory.gpu_bytes),
			 "experts", integer(run->memory.gpu_experts));
}

static json_t *totals_object(const struct run *run)
{
	struct report_totals t = report_totals(run);

	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			 "compute", counters_object(&t.compute),
			 "link", counters_object(&t.link),
			 "modelled_busiest_dimm_ns", integer(t.busiest_ns),
			 "prompt_tokens", integer(t.prompt_tokens),
			 "prompt_wall_ns", integer(t.prompt_wall_ns),
			 "decode_steps", integer(t.decode_steps),
			 "decode_wall_ns", integer(t.decode_wall_ns),
			 "load_wall_ns", integer(run->load_wall_ns));
}

/* Prints and gives up @v. */
static int print(FILE *f, json_t *v, struct ndp_error *err)
{
	char *text = v ? json_dumps(v, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
	int r = 0;

	json_decref(v);
	if (!text)
		return fail(err, -ENOMEM, "the JSON document could not be made: out of memory");
	errno = 0;
	if (fprintf(f, "%s\n", text) < 0 || fflush(f) != 0)
		r = fail(err, errno ? -errno : -EIO, "standard output cannot be written: %s",
			 strerror(errno ? errno : EIO));
	free(text);
	return r;
}

int report_json(FILE *f, const struct run *run, struct ndp_error *err)
{
	return print(f, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
				  "model", model_object(run),
				  "device", device_object(run),
				  "gpu", gpu_object(run),
				  "placement", run->domains.dev ?
				  string(run->options->placement) : json_null(),
				  "prompts", prompts_array(run),
				  "check", check_object(run),
				  "domains", domains_object(run),
				  "dimms", dimms_array(run),
				  "totals", totals_object(run),
				  "experts", experts_object(run),
				  "migration", migration_object(run),
				  "daemon", daemon_object(run)),
		     err);
}

void report_error_json(FILE *f, const struct ndp_error *error)
{
	const char *name = strerrorname_np(-error->code);
	struct ndp_error ignored;

	print(f, json_pack("{s:{s:s, s:o}}", "error", "code", name ? name : "EIO",
			   "message", string(error->message)), &ignored);
}

int report_nodes_json(FILE *f, const struct ndp_node *nodes, size_t n, struct ndp_error *err)
{
	json_t *a = json_array();

	for (size_t i = 0; i < n; i++) {
		json_t *dimms = json_array();

		for (uint32_t d = 0; d < NDP_MAX_DIMMS; d++)
			if (nodes[i].dimm_mask >> d & 1)
				json_array_append_new(dimms, integer(d));
		json_array_append_new(a, json_pack("{s:s, s:s, s:b, s:o}",
						   "path", nodes[i].path,
						   "domain", nodes[i].domain,
						   "whole_domain", nodes[i].dimm < 0,
						   "dimms", dimms));
	}
	return print(f, a, err);
}
