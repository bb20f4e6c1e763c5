// SPDX-License-Identifier: GPL-2.0-or-later
/* recording.c - see recording.h. */
#include "recording.h"
#include "bench.h"

static bool read_line(struct recording *r)
{
	ssize_t n = getline(&r->line, &r->line_bytes, r->f);

	r->line_number++;
	return n > 0;
}

static void __attribute__((noreturn)) wrong(const struct recording *r)
{
	die("%s: line %llu cannot be understood: %.80s", r->path,
	    (unsigned long long)r->line_number, r->line);
}

static double value_of(const struct recording *r, const char *key)
{
	char name[40];
	const char *at;

	snprintf(name, sizeof(name), " %s=", key);
	at = strstr(r->line, name);
	if (!at)
		wrong(r);
	return atof(at + strlen(name));
}

static uint64_t bytes_of(const struct recording *r, const char *key)
{
	char name[40];
	const char *at;

	snprintf(name, sizeof(name), " %s=", key);
	at = strstr(r->line, name);
	if (!at)
		wrong(r);
	return strtoull(at + strlen(name), NULL, 10);
}

static void text_of(const struct recording *r, const char *key, char *text, size_t size)
{
	char name[40];
	const char *at;
	size_t n;

	snprintf(name, sizeof(name), " %s=", key);
	at = strstr(r->line, name);
	if (!at)
		wrong(r);
	at += strlen(name);
	n = strcspn(at, " \n");
	if (n >= size)
		wrong(r);
	memcpy(text, at, n);
	text[n] = '\0';
}

static void read_client(struct recording *r)
{
	struct ndp_place_options *o = &r->options.place;
	struct ndp_host_profile profile;
	struct ndp_error err;
	char text[64], *path = NULL;

	text_of(r, "profile", text, sizeof(text));
	if (ndp_profile_find("hosts", text, &path, &err) < 0 ||
	    ndp_host_profile_load(&profile, path, &err) < 0)
		die("%s", err.message);
	free(path);
	r->host = profile.host;
	r->layers = (uint32_t)value_of(r, "layers");
	r->shape = (struct ndp_shape){
		.experts = (uint32_t)value_of(r, "experts"),
		.top_k = (uint32_t)value_of(r, "top_k"),
		.hidden = (uint32_t)value_of(r, "hidden"),
		.intermediate = (uint32_t)value_of(r, "intermediate"),
		.expert_bytes = bytes_of(r, "expert_bytes"),
	};
	r->host.nr_dimms = (uint32_t)value_of(r, "dimms");
	if (r->host.nr_channels > r->host.nr_dimms)
		r->host.nr_channels = r->host.nr_dimms;
	ndp_steward_defaults(&r->options, &r->host);
	r->options.first = (uint32_t)value_of(r, "first");
	r->options.first_every = (uint32_t)value_of(r, "first_every");
	r->options.every = (uint32_t)value_of(r, "every");
	o->gpu_bytes = r->host.gpu_bytes = bytes_of(r, "gpu_bytes");
	o->dimm_bytes = bytes_of(r, "dimm_bytes");
	o->link_share = value_of(r, "link_share");
	o->pcie_share = value_of(r, "pcie_share");
	o->horizon_steps = value_of(r, "horizon_steps");
	o->hysteresis = value_of(r, "hysteresis");
	o->stay_ns = value_of(r, "stay_ns");
	text_of(r, "policy", text, sizeof(text));
	o->policy = (enum ndp_policy)ndp_policy_parse(text);
}

static void read_blocks(struct recording *r)
{
	uint32_t layer, expert, dimm, blocks;
	size_t at;
	int n;
	char *p;

	if (sscanf(r->line, "blocks %*u %u %u%n", &layer, &expert, &n) != 2 ||
	    layer >= r->layers || expert >= r->shape.experts)
		wrong(r);
	at = (size_t)layer * r->shape.experts + expert;
	for (p = r->line + n; sscanf(p, " %u:%u%n", &dimm, &blocks, &n) == 2; p += n) {
		if (dimm >= r->host.nr_dimms)
			wrong(r);
		r->blocks[at * r->host.nr_dimms + dimm] = (uint16_t)blocks;
	}
	r->on_gpu[at] = strstr(p, "gpu") != NULL;
}

void recording_open(struct recording *r, const char *path, const char *name)
{
	char found[64] = "";
	size_t cells;

	*r = (struct recording){ .path = path, .f = fopen(path, "r") };
	if (!r->f)
		die("%s: %s", path, strerror(errno));
	if (!read_line(r) || strcmp(r->line, "ndpd-recording 1\n"))
		wrong(r);
	do {
		if (!read_line(r))
			die("%s: no model '%s'", path, name);
	} while (sscanf(r->line, "client %u %63s", &r->client, found) != 2 || strcmp(found, name));
	read_client(r);
	cells = (size_t)r->layers * r->shape.experts;
	r->blocks = calloc(cells * r->host.nr_dimms, sizeof(*r->blocks));
	r->on_gpu = calloc(cells, 1);
	r->tokens = calloc(r->shape.experts, sizeof(*r->tokens));
	r->row = calloc(r->host.nr_dimms, sizeof(*r->row));
	for (size_t i = 0; i < cells; i++) {
		uint32_t client;

		if (!read_line(r) || sscanf(r->line, "blocks %u", &client) != 1 ||
		    client != r->client)
			wrong(r);
		read_blocks(r);
	}
}

void recording_close(struct recording *r)
{
	fclose(r->f);
	free(r->line);
	free(r->blocks);
	free(r->on_gpu);
	free(r->tokens);
	free(r->row);
}

static void read_post(struct recording *r, struct event *e)
{
	char *p, *end;
	int n;

	e->kind = EVENT_POST;
	if (sscanf(r->line, "post %*u %lf %u%n", &e->now_ns, &e->layer, &n) != 2)
		wrong(r);
	p = r->line + n;
	for (uint32_t i = 0; i < r->shape.experts; i++, p = end) {
		r->tokens[i] = (uint32_t)strtoul(p, &end, 10);
		if (end == p)
			wrong(r);
	}
}

static void read_order(struct recording *r, struct event *e)
{
	char *p, *end;
	int n;

	e->kind = EVENT_ORDER;
	if (sscanf(r->line, "order %*u %u %lf %u %u%n", &e->id, &e->now_ns, &e->layer, &e->expert,
		   &n) != 4)
		wrong(r);
	p = r->line + n;
	for (uint32_t d = 0; d < r->host.nr_dimms; d++, p = end)
		r->row[d] = (uint16_t)strtoul(p, &end, 10);
}

int recording_next(struct recording *r, struct event *e)
{
	while (read_line(r)) {
		uint32_t client;
		char what[16];

		if (sscanf(r->line, "%15s %u", what, &client) != 2)
			wrong(r);
		if (client != r->client)
			continue;
		if (!strcmp(what, "gone"))
			return 0;
		if (!strcmp(what, "post")) {
			read_post(r, e);
		} else if (!strcmp(what, "order")) {
			read_order(r, e);
		} else if (!strcmp(what, "start")) {
			e->kind = EVENT_START;
			if (sscanf(r->line, "start %*u %u %u %u %u %u %d", &e->id, &e->action_kind,
				   &e->layer, &e->expert, &e->victim_layer, &e->victim) != 6)
				wrong(r);
		} else if (!strcmp(what, "done")) {
			e->kind = EVENT_DONE;
			if (sscanf(r->line, "done %*u %u %lf %d", &e->id, &e->now_ns, &e->res) != 3)
				wrong(r);
		} else if (!strcmp(what, "share")) {
			unsigned long long bytes;

			e->kind = EVENT_SHARE;
			if (sscanf(r->line, "share %*u %lf %llu %lf", &e->link_share, &bytes,
				   &e->pcie_share) != 3)
				wrong(r);
			e->dimm_bytes = bytes;
		} else {
			wrong(r);
		}
		return 1;
	}
	return 0;
}
