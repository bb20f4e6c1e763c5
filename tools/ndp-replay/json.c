// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * json.c - the JSON of report.h.
 *
 * Built as a whole and then printed, so that standard output never has a part of
 * a document.  JSON has no NaN and no infinity: such a number is null.
 */
#include "report.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *integer(uint64_t v)
{
	return json_integer((json_int_t)v);
}

/* Text of files and arguments need not be UTF-8; what is not becomes '?'. */
static json_t *string(const char *s)
{
	json_t *v = json_string(s);

	if (!v) {
		char *copy = strdup(s);

		for (char *c = copy; c && *c; c++)
			if (*c & 0x80)
				*c = '?';
		v = copy ? json_string(copy) : NULL;
		free(copy);
	}
	return v;
}

static json_t *host_object(const struct replay *r)
{
	const struct ndp_host *host = &r->host.host;

	return json_pack("{s:o, s:b, s:b, s:b, s:o, s:o}", "name", string(r->host.name),
			 "gpu", host->gpu.gflops > 0, "cpu", host->cpu.gflops > 0,
			 "ndp", host->dimm.gflops > 0, "channels", integer(host->nr_channels),
			 "dimms", integer(host->nr_dimms));
}

static json_t *model_object(const struct replay *r)
{
	const struct ndp_shape *shape = &r->model.shape;

	return json_pack("{s:o, s:o, s:o, s:o}", "name", string(r->model.name),
			 "experts", integer(shape->experts), "top_k", integer(shape->top_k),
			 "expert_bytes", integer(shape->expert_bytes));
}

static json_t *loads_object(const struct replay *r)
{
	const uint32_t experts = r->model.shape.experts;
	json_t *ranks = json_array();

	for (uint32_t k = 0; k < experts; k++)
		json_array_append_new(ranks, number(r->rank_share[k]));
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "source", string(r->source->text),
			 "steps", integer(r->steps), "layers", integer(r->source->nr_layers),
			 "layers_run", integer(r->nr_run), "selections", integer(r->selections),
			 "share_by_rank", ranks);
}

static json_t *layers_array(const struct replay *r, const struct policy_result *p)
{
	json_t *a = json_array();

	for (uint32_t l = 0; l < r->source->nr_layers; l++)
		if (r->layer_run[l])
			json_array_append_new(a, json_pack("{s:o, s:o}", "layer",
				integer(r->source->layer_numbers[l]), "modelled_mean_ns",
				number(p->layer_ns[l] / r->layer_run[l])));
	return a;
}

/* Null without an engine. */
static json_t *engine_object(const struct replay *r, enum ndp_policy policy)
{
	const struct moves *m;
	json_t *o;

	if (!r->mover[policy])
		return json_null();
	m = &r->mover[policy]->moves;
	o = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
		      "decisions", integer(m->decisions), "ended", integer(m->ended),
		      "layers_beside_copies", integer(m->layers),
		      "hidden_share", number(mover_hidden(m)),
		      "waited_share", number(replay_waited(r, policy)),
		      "modelled_copies_ns", number(m->copy_ns),
		      "modelled_busiest_port_ns", number(m->port_ns),
		      "modelled_delay_ns", number(m->delay_ns),
		      "modelled_late_mean_ns", number(r->policy[policy].late_ns),
		      "played", integer(m->played),
		      "modelled_played_delay_ns", number(m->played_ns),
		      "modelled_timeline_delay_ns", number(m->timeline_ns),
		      "modelled_timeline_left_ns", number(m->timeline_left_ns));
	for (unsigned int k = 0; o && k < NDP_PLACE_KINDS; k++)
		json_object_set_new(o, move_name(k), json_pack("{s:o, s:o}",
			"started", integer(m->started[k]), "bytes", integer(m->bytes[k])));
	return o;
}

static json_t *policy_object(const struct replay *r, enum ndp_policy policy)
{
	const struct policy_result *p = &r->policy[policy];
	const struct figures g = report_figures(r, policy);
	json_t *o;

	if (p->impossible)
		return json_pack("{s:s, s:b}", "policy", ndp_policy_name(policy), "possible", 0);
	o = json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o, s:o}, "
		      "s:{s:o, s:o, s:o}}",
		      "policy", ndp_policy_name(policy), "possible", 1,
		      "modelled_mean_ns", number(g.mean_ns), "modelled_p50_ns", number(p->p50_ns),
		      "modelled_p99_ns", number(p->p99_ns), "speed_up", number(g.speed_up),
		      "over_bound", number(g.over_fluid),
		      "busy", "gpu", number(g.gpu), "pcie", number(g.pcie), "cpu", number(g.cpu),
		      "channels", number(g.channels), "dimms", number(g.dimms),
		      "commands", "gpu", integer(p->commands[NDP_DOMAIN_GPU]),
		      "cpu", integer(p->commands[NDP_DOMAIN_CPU]),
		      "ndp", integer(p->commands[NDP_DOMAIN_NDP]));
	if (o)
		json_object_set_new(o, "modelled_bound_ns", number(p->fluid_ns / r->nr_sampled));
	if (o)
		json_object_set_new(o, "engine", engine_object(r, policy));
	if (o && r->reference.nr && !isnan(g.over_lp))
		json_object_set_new(o, "reference",
			json_pack("{s:o, s:o, s:o}", "over_fluid", number(g.over_lp),
				  "over_whole_best", number(g.over_whole),
				  "over_whole_bound", number(g.over_whole_bound)));
	if (o && r->options.layers)
		json_object_set_new(o, "layers", layers_array(r, p));
	return o;
}

static json_t *policies_array(const struct replay *r)
{
	json_t *a = json_array();

	for (int k = 0; k < NDP_POLICIES; k++)
		if (r->policy[k].wanted)
			json_array_append_new(a, policy_object(r, k));
	return a;
}

static json_t *reference_object(const struct replay *r)
{
	const struct reference *ref = &r->reference;

	if (!ref->nr)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "layers", integer(ref->nr),
			 "proven", integer(ref->proven), "limit_ms", integer(ref->limit_ms),
			 "modelled_fluid_ns", number(ref->fluid_ns / ref->nr),
			 "modelled_whole_best_ns", number(ref->whole_ns / ref->nr),
			 "modelled_whole_bound_ns", number(ref->whole_bound_ns / ref->nr));
}

static json_t *score_object(const char *name, const struct ndp_score *s)
{
	return json_pack("{s:s, s:o, s:o, s:o}", "predictor", name,
			 "accuracy", number(s->accuracy / s->steps),
			 "hot_recall", number(s->hot_recall / s->steps),
			 "coverage", number(s->coverage / s->steps));
}

static json_t *scores_array(const struct replay *r)
{
	const struct scores *s = &r->scores;
	json_t *a = json_array();
	struct ndp_score chance;

	for (int k = 0; k < RIVALS && s->score[RIVAL_OURS].steps; k++)
		json_array_append_new(a, score_object(rival_name(k), &s->score[k]));
	ndp_score_chance(&chance, s->experts);
	json_array_append_new(a, score_object("chance", &chance));
	return a;
}

int report_json(const struct replay *r, FILE *f, struct ndp_error *err)
{
	json_t *o = json_pack("{s:s, s:o, s:o, s:o, s:s, s:s, s:o, s:b, s:s, s:o, s:o, s:o, s:o, "
			      "s:o}",
			      "time", "modelled", "host", host_object(r), "model", model_object(r),
			      "loads", loads_object(r),
			      "charges", r->options.charges == NDP_CHARGES_ALL ? "all" : "paper",
			      "placement", placement_name(r->options.placement),
			      "gpu_slots", integer(r->gpu_slots), "gpu_unused", !r->gpu_slots,
			      "lead", ndp_policy_name(r->lead),
			      "policies", policies_array(r),
			      "modelled_bound_ns", number(r->policy[r->lead].fluid_ns /
							  r->nr_sampled),
			      "best_baseline", r->best_baseline < 0 ? json_null() :
					string(ndp_policy_name(r->best_baseline)),
			      "reference", reference_object(r), "prediction", scores_array(r));

	if (!o)
		return fail(err, -ENOMEM, "out of memory");
	json_dumpf(o, f, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
	fputc('\n', f);
	json_decref(o);
	return 0;
}

void report_json_error(const struct ndp_error *error, FILE *f)
{
	json_t *o = json_pack("{s:{s:s, s:o}}", "error", "code", strerrorname_np(-error->code),
			      "message", string(error->message));

	if (o)
		json_dumpf(o, f, JSON_INDENT(1));
	fputc('\n', f);
	json_decref(o);
}
