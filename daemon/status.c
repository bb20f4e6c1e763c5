// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * status.c - all that ndpd knows, as one JSON document: what ndpctl shows.  Fields that
 * are modelled time say so in their names; a number that is not known is null.
 */
#include "ndpd.h"

#include <jansson.h>
#include <math.h>

static json_t *number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *kinds(const uint64_t n[3])
{
	return json_pack("{s:I, s:I, s:I}", "prefetch", (json_int_t)n[NDP_PLACE_PREFETCH],
			 "relayout", (json_int_t)n[NDP_PLACE_RELAYOUT], "rebalance",
			 (json_int_t)n[NDP_PLACE_REBALANCE]);
}

static json_t *dimm_counters(const struct ndp_counters *c)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "commands", (json_int_t)c->commands, "errors",
			 (json_int_t)c->errors, "tokens", (json_int_t)c->tokens, "bytes",
			 (json_int_t)c->bytes, "busy_modelled_ns", (json_int_t)c->busy_ns);
}

static json_t *dimm(uint32_t number, const struct ndp_dimm_info *i)
{
	static const char *const state[] = {
		[NDP_DIMM_ABSENT] = "absent",
		[NDP_DIMM_READY] = "ready",
		[NDP_DIMM_RESETTING] = "resetting",
		[NDP_DIMM_FAILED] = "failed",
	};

	return json_pack("{s:i, s:s, s:I, s:I, s:i, s:i, s:o, s:o}", "dimm", (int)number, "state",
			 state[i->state], "memory_bytes", (json_int_t)i->mem_bytes, "free_bytes",
			 (json_int_t)i->free_bytes, "resets", (int)i->resets, "inflight",
			 (int)i->inflight, "compute",
			 dimm_counters(&i->compute), "link", dimm_counters(&i->link));
}

static json_t *model(const struct client *c)
{
	const struct brain *b = &c->brain;
	const struct model_counters *n = &b->count;
	struct ndp_place_usage usage;

	ndp_place_usage(ndp_steward_placer(b->steward), &usage);
	return json_pack(
		"{s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:o, s:o, "
		"s:o, s:o, s:o, s:o, s:I, s:I}",
		"layers", (int)b->layers, "experts", (int)b->shape.experts, "expert_bytes",
		(json_int_t)b->shape.expert_bytes, "posts", (json_int_t)n->posts, "decisions",
		(json_int_t)n->decisions, "migrations", kinds(n->moves), "migrated_bytes",
		kinds(n->move_bytes), "rollbacks", (json_int_t)n->rollbacks, "rate_limited",
		(json_int_t)n->limited, "under_way", (int)b->nr_pending, "coverage",
		number(n->covered), "coverage_possible", number(n->best), "predicted_hot_coverage",
		number(n->predicted), "actual_hot_coverage", number(n->hottest), "link_modelled_ns",
		number(n->link_modelled_ns), "link_wall_ns", number(n->link_wall_ns),
		"cost_modelled_ns", number(n->cost_modelled_ns), "gain_modelled_ns_per_step",
		number(n->gain_modelled_ns), "realised_modelled_ns_per_step",
		number(n->realised_modelled_ns), "hidden_share_modelled",
		n->copy_modelled_ns > 0 ? number(n->hidden_modelled_ns / n->copy_modelled_ns) :
					  json_null(),
		"gpu_bytes", (json_int_t)usage.gpu_bytes, "gpu_budget_bytes",
		(json_int_t)b->host.gpu_bytes);
}

static json_t *client(struct ndpd *d, struct client *c)
{
	static const char *const state[] = {
		[CLIENT_NEW] = "connected",
		[CLIENT_SURVEY] = "survey",
		[CLIENT_RUNNING] = "running",
	};
	json_t *o = json_pack("{s:i, s:s, s:i, s:i, s:s, s:f, s:f}", "client", (int)c->number,
			      "state", state[c->state], "pid", (int)c->pid, "uid", (int)c->uid,
			      "node", c->node, "weight", c->weight, "since_s",
			      (double)(ndpd_now_ns() - c->since_ns) * 1e-9);
	json_t *dimms;

	if (!o || c->state == CLIENT_NEW)
		return o;
	json_object_set_new(o, "name", json_string(c->name));
	json_object_set_new(o, "dropped", json_integer((json_int_t)ring_dropped(&c->ring)));
	json_object_set_new(o, "refused_posts", json_integer((json_int_t)c->ring.refused));
	json_object_set_new(o, "skipped_posts", json_integer((json_int_t)c->ring.skipped));
	if (c->state != CLIENT_RUNNING)
		return o;
	json_object_set_new(o, "share", json_real(c->brain.share));
	json_object_set_new(o, "model", model(c));
	if (c->node[0] || !c->hands)
		return o;
	/* An in-process device is nowhere else to be seen. */
	dimms = json_array();
	for (uint32_t mask = c->hello.dimm_mask; mask; mask &= mask - 1) {
		const uint32_t n = (uint32_t)__builtin_ctz(mask);
		struct ndp_dimm_info info;

		if (ndpd_dimm(d, c, n, &info) == 0)
			json_array_append_new(dimms, dimm(n, &info));
	}
	json_object_set_new(o, "dimms", dimms);
	return o;
}

static json_t *device(const struct node *n)
{
	json_t *dimms = json_array();

	for (uint32_t mask = n->dimm_mask; mask; mask &= mask - 1) {
		const uint32_t at = (uint32_t)__builtin_ctz(mask);
		struct ndp_dimm_info info;

		if (ndp_dimm_info(n->dev, at, &info) == 0)
			json_array_append_new(dimms, dimm(at, &info));
	}
	return json_pack("{s:s, s:o}", "node", n->path, "dimms", dimms);
}

char *status_json(struct ndpd *d)
{
	json_t *clients = json_array(), *devices = json_array(), *root;
	char *text;

	for (struct client *c = d->clients; c; c = c->next)
		json_array_append_new(clients, client(d, c));
	for (const struct node *n = d->nodes; n; n = n->next)
		json_array_append_new(devices, device(n));
	root = json_pack("{s:i, s:f, s:b, s:s, s:I, s:I, s:I, s:i, s:o, s:o}", "version",
			 NDP_DAEMON_VERSION, "uptime_s",
			 (double)(ndpd_now_ns() - d->started_ns) * 1e-9, "dry_run",
			 d->config.dry_run, "host", d->config.host.name, "connections",
			 (json_int_t)d->connections, "refused", (json_int_t)d->refused, "reloads",
			 (json_int_t)d->reloads, "threads", (int)hands_threads(), "devices",
			 devices, "clients", clients);
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}
