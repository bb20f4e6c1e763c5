// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * list.c - ndpctl list: devices and their DIMMs, or the clients of ndpd.
 *
 * Needs no rights on devices: nodes come from sysfs.  When there is nothing, stdout has
 * [] and stderr the reason, and that is no failure.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---------------------------------------------------------------- */

static json_t *text_or_null(const char *s)
{
	return s[0] ? json_text(s) : json_null();
}

static json_t *attribute_u64(const char *path, const char *name)
{
	uint64_t v;

	return node_attribute_u64(&v, path, name) ? json_u64(v) : json_null();
}

static json_t *node_dimm(const struct ndp_node *n)
{
	char state[32];

	node_attribute(state, sizeof(state), n->path, "state");
	return json_pack("{s:i, s:o, s:o, s:o, s:o}", "dimm", n->dimm, "device",
			 json_text(n->path), "state", text_or_null(state), "memory_bytes",
			 attribute_u64(n->path, "mem_bytes"), "free_bytes",
			 attribute_u64(n->path, "free_bytes"));
}

/* A node for the whole domain is followed by those of its DIMMs. */
static json_t *nodes_json(const struct ndp_node *nodes, int n)
{
	json_t *all = json_array(), *dimms = NULL;

	for (int i = 0; i < n; i++) {
		if (!dimms || nodes[i].dimm < 0) {
			const bool whole = nodes[i].dimm < 0;
			char owner[128] = "";

			if (whole)
				file_owner(owner, sizeof(owner), nodes[i].path);
			dimms = json_array();
			json_array_append_new(all, json_pack(
				"{s:o, s:o, s:o, s:o}", "device",
				whole ? json_text(nodes[i].path) : json_null(), "domain",
				text_or_null(nodes[i].domain), "owner", text_or_null(owner),
				"dimms", dimms));
		}
		if (nodes[i].dimm >= 0)
			json_array_append_new(dimms, node_dimm(&nodes[i]));
	}
	return all;
}

static int device_json(json_t **all, const char *spec, struct ndp_error *err)
{
	struct ndp_device_info info;
	struct ndp_device *dev;
	char owner[128] = "";
	json_t *dimms;

	if (ndp_open(&dev, spec, err) < 0)
		return -1;
	ndp_device_info(dev, &info);
	if (info.name[0] == '/')
		file_owner(owner, sizeof(owner), info.name);
	dimms = json_array();
	for (uint32_t mask = info.dimm_mask; mask; mask &= mask - 1) {
		const uint32_t d = (uint32_t)__builtin_ctz(mask);
		struct ndp_dimm_info i;

		if (ndp_dimm_info(dev, d, &i) == 0)
			json_array_append_new(dimms, json_pack(
				"{s:i, s:n, s:s, s:o, s:o}", "dimm", (int)d, "device", "state",
				dimm_state_name(i.state), "memory_bytes", json_u64(i.mem_bytes),
				"free_bytes", json_u64(i.free_bytes)));
	}
	ndp_close(dev);
	*all = json_pack("[{s:o, s:o, s:o, s:o}]", "device", json_text(info.name), "domain",
			 text_or_null(info.domain), "owner", text_or_null(owner), "dimms", dimms);
	return 0;
}

static void print_devices(const json_t *all)
{
	const json_t *device, *dimm;
	struct table t;
	size_t i, k;

	table_begin(&t, "DEVICE\tDOMAIN\t>DIMM\tSTATE\t>MEMORY\t>FREE\tOWNER");
	json_array_foreach(all, i, device) {
		table_row(&t, "%s\t%s\t%zu\t\t\t\t%s", json_str(device, "device"),
			  json_str(device, "domain"), json_array_size(json_object_get(device,
			  "dimms")), json_str(device, "owner"));
		json_array_foreach(json_object_get(device, "dimms"), k, dimm) {
			char memory[16], left[16];

			table_row(&t, "  %s\t\t%llu\t%s\t%s\t%s\t", json_str(dimm, "device"),
				  (unsigned long long)json_uint(dimm, "dimm"),
				  json_str(dimm, "state"),
				  text_bytes(memory, sizeof(memory),
					     json_double(dimm, "memory_bytes", NAN)),
				  text_bytes(left, sizeof(left),
					     json_double(dimm, "free_bytes", NAN)));
		}
	}
	table_end(&t, stdout);
}

/* ---- clients ------------------------------------------------------------------- */

static void print_clients(const json_t *clients)
{
	const json_t *c, *model;
	struct table t;
	size_t i;

	table_begin(&t, ">CLIENT\tNAME\tSTATE\t>PID\t>UID\tNODE\t>LAYERS\t>EXPERTS\t>POSTS\t"
		    ">COVERAGE");
	json_array_foreach(clients, i, c) {
		char posts[16], covered[16];

		model = json_object_get(c, "model");
		table_row(&t, "%llu\t%s\t%s\t%llu\t%llu\t%s\t%llu\t%llu\t%s\t%s",
			  (unsigned long long)json_uint(c, "client"), json_str(c, "name"),
			  json_str(c, "state"), (unsigned long long)json_uint(c, "pid"),
			  (unsigned long long)json_uint(c, "uid"),
			  json_str(c, "node")[0] ? json_str(c, "node") : "(in process)",
			  (unsigned long long)json_uint(model, "layers"),
			  (unsigned long long)json_uint(model, "experts"),
			  text_count(posts, sizeof(posts), (double)json_uint(model, "posts")),
			  text_share(covered, sizeof(covered),
				     json_double(model, "coverage", NAN)));
	}
	table_end(&t, stdout);
}

static int list_clients(const struct options *o, struct ndp_error *err)
{
	json_t *doc, *clients;
	int r = ask_status(&doc, err);

	if (r < 0 && r != -ENOENT && r != -ECONNREFUSED)
		return STATUS_FAILED;
	if (r < 0)
		fprintf(stderr, "ndpctl: %s\n", err->message);
	clients = r < 0 ? json_array() : attached_clients(doc);
	if (r == 0 && json_array_size(clients) == 0)
		fputs("ndpctl: ndpd runs, but no application is attached to it\n", stderr);
	json_decref(doc);
	*err = (struct ndp_error){ 0 };
	interrupt_mute();
	if (!o->human)
		return out_json(stdout, clients, err) < 0 ? STATUS_FAILED : STATUS_OK;
	if (json_array_size(clients))
		print_clients(clients);
	json_decref(clients);
	return STATUS_OK;
}

int cmd_list(const struct options *o, struct ndp_error *err)
{
	struct ndp_node *nodes = NULL;
	json_t *all = NULL;
	int n = 1;

	if (o->clients && o->device)
		return fail(err, -EINVAL, "--clients and --device: one of them is wanted"),
		       STATUS_USAGE;
	if (o->clients)
		return list_clients(o, err);
	if (o->device) {
		if (device_json(&all, o->device, err) < 0)
			return STATUS_FAILED;
	} else {
		struct ndp_error why;

		n = nodes_find(&nodes, &why);
		if (n >= 0)
			all = nodes_json(nodes, n);
		free(nodes);
		if (n < 0) {
			*err = why;
			return STATUS_FAILED;
		}
		if (n == 0)
			fprintf(stderr, "ndpctl: %s\n", why.message);
	}
	interrupt_mute();
	if (!o->human)
		return out_json(stdout, all, err) < 0 ? STATUS_FAILED : STATUS_OK;
	if (n)
		print_devices(all);
	json_decref(all);
	return STATUS_OK;
}
