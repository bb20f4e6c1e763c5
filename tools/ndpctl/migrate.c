// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * migrate.c - ndpctl migrate: has ndpd move experts of one of its clients.
 *
 * Only the holder of a placement fd can move weights, and that is ndpd; it takes such
 * orders from root and from the user that the client runs as.  What is not known here
 * (which experts there are, whether there is room) ndpd judges.
 */
#include "migrate.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <math.h>
#include <ndp/daemon.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(MAX_EXPERTS == NDP_MSG_MAX_MOVES, "as many as a message holds");

/* ---- where to ----------------------------------------------------------------- */

static int parse_dimms(uint32_t *mask, const char *list)
{
	*mask = 0;
	for (;;) {
		char *end;
		unsigned long d;

		if (*list < '0' || *list > '9')
			return -EINVAL;
		d = strtoul(list, &end, 10);
		if (d >= NDP_MAX_DIMMS || (*end && *end != ','))
			return -EINVAL;
		*mask |= 1u << d;
		if (!*end)
			return 0;
		list = end + 1;
	}
}

static int parse_mask(uint32_t *mask, const char *text)
{
	unsigned long long m;
	char *end;

	/* A plain number could be meant as one of DIMMs (as in ndp-run). */
	if (strncmp(text, "0x", 2))
		return -EINVAL;
	errno = 0;
	m = strtoull(text + 2, &end, 16);
	if (errno || end == text + 2 || *end || m == 0 || m > UINT32_MAX)
		return -EINVAL;
	*mask = (uint32_t)m;
	return 0;
}

int migrate_parse_to(uint32_t *mask, const char *to, uint32_t there, struct ndp_error *err)
{
	char have[128], missing[128];
	int r;

	if (!strcmp(to, "all")) {
		if (!there)
			return fail(err, -ENODEV, "--to all: ndpd does not say which DIMMs this "
				    "client has: name them, like dimm:0,1");
		*mask = there;
		return 0;
	}
	if (!strncmp(to, "dimm:", 5))
		r = parse_dimms(mask, to + 5);
	else if (!strncmp(to, "spread:", 7))
		r = parse_mask(mask, to + 7);
	else
		r = -EINVAL;
	if (r < 0)
		return fail(err, -EINVAL, "--to wants dimm:D, dimm:D,D,..., spread:0xMASK or all, "
			    "not '%s'", to);
	if (there && *mask & ~there)
		return fail(err, -ENODEV, "--to %s: there is no DIMM %s; this client has %s", to,
			    text_mask(missing, sizeof(missing), *mask & ~there),
			    text_mask(have, sizeof(have), there));
	return 0;
}

/* ---- whose ----------------------------------------------------------------------- */

const json_t *migrate_find_client(const json_t *doc, uint32_t number)
{
	const json_t *c;
	size_t i;

	json_array_foreach(json_object_get(doc, "clients"), i, c)
		if (json_uint(c, "client") == number)
			return c;
	return NULL;
}

static uint32_t mask_of(const json_t *dimms)
{
	const json_t *d;
	uint32_t mask = 0;
	size_t i;

	json_array_foreach(dimms, i, d)
		if (json_uint(d, "dimm") < NDP_MAX_DIMMS)
			mask |= 1u << json_uint(d, "dimm");
	return mask;
}

uint32_t migrate_client_dimms(const json_t *doc, const json_t *client)
{
	const char *node = json_str(client, "node");
	const json_t *d;
	size_t i;

	if (!node[0])
		return mask_of(json_object_get(client, "dimms"));
	json_array_foreach(json_object_get(doc, "devices"), i, d)
		if (!strcmp(json_str(d, "node"), node))
			return mask_of(json_object_get(d, "dimms"));
	return 0;
}

/* What ndpd can say before anything moves; @mask is what --to means. */
static int look(const struct options *o, uint32_t *mask, struct ndp_error *err)
{
	const json_t *client, *model;
	json_t *doc;
	int r = ask_status(&doc, err);

	if (r < 0)
		return r;
	client = migrate_find_client(doc, o->client);
	model = json_object_get(client, "model");
	if (!client)
		r = fail(err, -ENOENT, "ndpd has no client %u: \"ndpctl list --clients\" shows "
			 "those there are", o->client);
	else if (!model)
		r = fail(err, -EAGAIN, "client %u is not running yet (it is in the state %s): try "
			 "again", o->client, json_str(client, "state"));
	for (uint32_t i = 0; r == 0 && i < o->nr_experts; i++)
		if (o->experts[i].layer >= json_uint(model, "layers") ||
		    o->experts[i].expert >= json_uint(model, "experts"))
			r = fail(err, -ENOENT, "client %u has no expert %u:%u: its model has %llu "
				 "layers of %llu experts, counted from 0", o->client,
				 o->experts[i].layer, o->experts[i].expert,
				 (unsigned long long)json_uint(model, "layers"),
				 (unsigned long long)json_uint(model, "experts"));
	if (r == 0)
		r = migrate_parse_to(mask, o->to, migrate_client_dimms(doc, client), err);
	json_decref(doc);
	return r;
}

/* ---- the order ------------------------------------------------------------------- */

static int explain(const struct options *o, const struct ndp_msg_migrated *m,
		   struct ndp_error *err)
{
	const char *why;

	switch (m->res) {
	case -ENOENT:
		why = "ndpd cannot move its experts: it has ended, or gave ndpd no placement fd";
		break;
	case -EPERM:
		/* Of the order, which then took no time; or of one move. */
		why = m->wall_ns == 0 ?
		      "only root and the user that the client runs as may move its experts" :
		      "the application does not allow it on that DIMM";
		break;
	case -EOPNOTSUPP:
	case -EROFS:
		why = "ndpd runs with --dry-run (or dry_run in its configuration): it moves "
		"nothing";
		break;
	case -EALREADY:
		why = "it lies there already";
		break;
	case -EBUSY:
		why = "it is being moved: try again";
		break;
	case -EAGAIN:
		why = "ndpd has as many moves under way as it can: try again";
		break;
	case -ENOSPC:
		why = "the DIMM has no contiguous room for it";
		break;
	case -ENOLINK:
		why = "DIMM-Link between the two DIMMs is down";
		break;
	default:
		why = m->res < 0 ? strerror(-m->res) : "ndpd does not say why";
	}
	return fail(err, m->res < 0 ? m->res : -EIO, "client %u: %u of %u experts were moved, the "
		    "others stay where they were; the first that was not: %s", o->client,
		    m->nr_moved, o->nr_experts, why);
}

static json_t *answer_json(const struct options *o, uint32_t mask,
			   const struct ndp_msg_migrated *m)
{
	json_t *experts = json_array();

	for (uint32_t i = 0; i < o->nr_experts; i++)
		json_array_append_new(experts, json_pack(
			"{s:o, s:o}", "layer", json_u64(o->experts[i].layer), "expert",
			json_u64(o->experts[i].expert)));
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "client",
			 json_u64(o->client), "experts", experts, "to", dimms_json(mask), "moved",
			 json_u64(m->nr_moved), "bytes", json_u64(m->bytes), "modelled_ns",
			 json_u64(m->modelled_ns), "wall_ns", json_u64(m->wall_ns),
			 "hidden_share_modelled", json_number(m->hidden_share));
}

static void print_answer(const struct options *o, uint32_t mask, const struct ndp_msg_migrated *m)
{
	char to[128], bytes[16], modelled[16], wall[16], hidden[16];
	struct table t;

	table_begin(&t, ">CLIENT\t>MOVED\tTO DIMMS\t>BYTES\t>LINK (MODELLED)\t>HIDDEN (MODELLED)\t"
		    ">TIME (WALL)");
	table_row(&t, "%u\t%u of %u\t%s\t%s\t%s\t%s\t%s", o->client, m->nr_moved, o->nr_experts,
		  text_mask(to, sizeof(to), mask), text_bytes(bytes, sizeof(bytes),
							      (double)m->bytes),
		  text_ns(modelled, sizeof(modelled), (double)m->modelled_ns),
		  text_share(hidden, sizeof(hidden), m->hidden_share),
		  text_ns(wall, sizeof(wall), (double)m->wall_ns));
	table_end(&t, stdout);
}

int cmd_migrate(const struct options *o, struct ndp_error *err)
{
	struct ndp_msg_migrate m = {
		.head = { NDP_MSG_MIGRATE, sizeof(m) },
		.client = o->client,
		.nr_moves = o->nr_experts,
	};
	struct ndp_msg_migrated answer;
	uint32_t mask;
	int r;

	if (!o->has_client || !o->nr_experts || !o->to)
		return fail(err, -EINVAL, "migrate wants --client N, --expert LAYER:EXPERT and "
			    "--to WHERE; see ndpctl migrate --help"), STATUS_USAGE;
	/* Where this cannot be understood no ndpd is needed to say so. */
	if (strcmp(o->to, "all") && migrate_parse_to(&mask, o->to, 0, err) < 0)
		return STATUS_USAGE;
	if (look(o, &mask, err) < 0)
		return STATUS_FAILED;
	for (uint32_t i = 0; i < o->nr_experts; i++)
		m.moves[i] = (struct ndp_msg_move){ o->experts[i].layer, o->experts[i].expert,
						    mask };
	r = ask_migrate(&m, &answer, err);
	if (r == -EINTR)
		return fail(err, r, "interrupted; ndpd goes on with moves that it has begun"),
		       STATUS_FAILED;
	if (r < 0)
		return STATUS_FAILED;
	if (answer.res < 0 || answer.nr_moved < o->nr_experts) {
		explain(o, &answer, err);
		return STATUS_FAILED;
	}
	interrupt_mute();
	if (o->json)
		return out_json(stdout, answer_json(o, mask, &answer), err) < 0 ? STATUS_FAILED :
										  STATUS_OK;
	print_answer(o, mask, &answer);
	return STATUS_OK;
}
