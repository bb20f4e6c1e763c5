// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * config.c - see config.h.  The file is parsed by inih; what a key may be is one
 * line of the table below.
 */
#include "config.h"
#include "../tools/ndp-run/error.h"

#include <ndp/daemon.h>

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, BOOL, UINT, NUMBER, BYTES, POLICY };

struct key {
	const char *section;
	const char *name;
	enum kind kind;
	size_t offset;
	double min;
	double max;
};

#define KEY(section, name, kind, field, min, max) \
	{ section, name, kind, offsetof(struct config, field), min, max }

static const struct key keys[] = {
	KEY("daemon", "socket", TEXT, socket, 0, 0),
	KEY("daemon", "poll_ms", UINT, poll_ms, 1, 1000),
	KEY("daemon", "dry_run", BOOL, dry_run, 0, 0),
	KEY("host", "profile", TEXT, profile, 0, 0),
	KEY("placement", "policy", POLICY, policy, 0, 0),
	KEY("placement", "horizon_steps", NUMBER, horizon_steps, 1, 1e9),
	KEY("placement", "hysteresis", NUMBER, hysteresis, 0, 100),
	KEY("placement", "stay_ms", NUMBER, stay_ms, 0, 1e9),
	KEY("placement", "link_share", NUMBER, link_share, 0, 1),
	KEY("placement", "pcie_share", NUMBER, pcie_share, 0, 1),
	KEY("placement", "first_steps", UINT, first, 0, 1e6),
	KEY("placement", "first_decide_every", UINT, first_every, 1, 1e6),
	KEY("placement", "decide_every", UINT, every, 1, 1e6),
	KEY("limits", "clients", UINT, clients, 1, 1024),
	KEY("limits", "clients_per_user", UINT, clients_per_user, 1, 1024),
	KEY("limits", "client_memory", BYTES, client_bytes, 1 << 20, 1e12),
	KEY("limits", "moves_per_second", NUMBER, moves_per_second, 0.001, 1e6),
	KEY("limits", "moves_at_once", UINT, moves_at_once, 1, 16),
	KEY("metrics", "listen", TEXT, metrics, 0, 0),
};

#define NR_KEYS (sizeof(keys) / sizeof(keys[0]))

static void defaults(struct config *c)
{
	const struct ndp_host none = { .nr_dimms = 1 };
	struct ndp_steward_options o;

	ndp_steward_defaults(&o, &none);
	*c = (struct config){
		.socket = NDP_DAEMON_SOCKET,
		.poll_ms = 10,
		.profile = "trimoe-paper",
		.policy = o.place.policy,
		.horizon_steps = o.place.horizon_steps,
		.hysteresis = o.place.hysteresis,
		.stay_ms = o.place.stay_ns / 1e6,
		.link_share = o.place.link_share,
		.pcie_share = o.place.pcie_share,
		.first = o.first,
		.first_every = o.first_every,
		.every = o.every,
		.clients = 64,
		.clients_per_user = 16,
		.client_bytes = 256ull << 20,
		.moves_per_second = 100,
		.moves_at_once = 4,
	};
}

/* ---- values ---------------------------------------------------------------- */

static bool parse_number(const char *text, double *n)
{
	char *end;

	errno = 0;
	*n = strtod(text, &end);
	return end != text && !*end && !errno && *n == *n;
}

static bool parse_bytes(const char *text, double *n)
{
	static const char units[] = "KMGT";
	char *end;

	errno = 0;
	*n = (double)strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || errno)
		return false;
	if (*end) {
		const char *unit = strchr(units, *end);

		if (!unit || end[1])
			return false;
		*n *= (double)(1ull << 10 * (unit - units + 1));
	}
	return true;
}

static int out_of_range(const struct key *k, const char *text, struct ndp_error *err)
{
	return fail(err, -EINVAL, "%s: '%.80s' is no number from %g to %g%s", k->name, text, k->min,
		    k->max, k->kind == BYTES ? " (K, M, G, T may follow)" : "");
}

static int set(struct config *c, const struct key *k, const char *text, struct ndp_error *err)
{
	void *field = (char *)c + k->offset;
	double n;
	int policy;

	switch (k->kind) {
	case TEXT:
		if (strlen(text) >= CONFIG_TEXT)
			return fail(err, -EINVAL, "%s: longer than %d bytes", k->name,
				    CONFIG_TEXT - 1);
		strcpy(field, text);
		return 0;
	case BOOL:
		if (strcmp(text, "yes") && strcmp(text, "no"))
			return fail(err, -EINVAL, "%s: '%.80s' is neither yes nor no", k->name, text);
		*(bool *)field = !strcmp(text, "yes");
		return 0;
	case UINT:
		if (!parse_number(text, &n) || n < k->min || n > k->max || n != (uint32_t)n)
			return out_of_range(k, text, err);
		*(uint32_t *)field = (uint32_t)n;
		return 0;
	case NUMBER:
		if (!parse_number(text, &n) || n < k->min || n > k->max)
			return out_of_range(k, text, err);
		*(double *)field = n;
		return 0;
	case BYTES:
		if (!parse_bytes(text, &n) || n < k->min || n > k->max)
			return out_of_range(k, text, err);
		*(uint64_t *)field = (uint64_t)n;
		return 0;
	case POLICY:
		policy = ndp_policy_parse(text);
		if (policy < 0)
			return fail(err, -EINVAL, "%s: '%.80s' is no policy (trimoe, split, ...)",
				    k->name, text);
		*(enum ndp_policy *)field = (enum ndp_policy)policy;
		return 0;
	}
	return -EINVAL;
}

static int set_weight(struct config *c, const char *name, const char *text, struct ndp_error *err)
{
	struct config_weight *w = &c->weights[c->nr_weights];
	double n;

	if (strlen(name) >= sizeof(w->name))
		return fail(err, -EINVAL, "the name of a model has at most %zu bytes",
			    sizeof(w->name) - 1);
	if (!parse_number(text, &n) || n < 0.001 || n > 1000)
		return fail(err, -EINVAL, "%s: '%.80s' is no weight from 0.001 to 1000", name, text);
	if (c->nr_weights == CONFIG_MAX_WEIGHTS)
		return fail(err, -EINVAL, "more than %d weights", CONFIG_MAX_WEIGHTS);
	strcpy(w->name, name);
	w->weight = n;
	c->nr_weights++;
	return 0;
}

/* ---- the file ----------------------------------------------------------------- */

struct parser {
	struct config *c;
	struct ndp_error first;	/* what was wrong on the line that ini_parse() names */
	bool seen[NR_KEYS];
};

static int parse_key(struct parser *p, const char *section, const char *name, const char *text)
{
	if (!strcmp(section, "weights"))
		return set_weight(p->c, name, text, &p->first);
	for (size_t i = 0; i < NR_KEYS; i++) {
		if (strcmp(section, keys[i].section) || strcmp(name, keys[i].name))
			continue;
		if (p->seen[i])
			return fail(&p->first, -EINVAL, "%s is there twice", name);
		p->seen[i] = true;
		return set(p->c, &keys[i], text, &p->first);
	}
	for (size_t i = 0; i < NR_KEYS; i++)
		if (!strcmp(section, keys[i].section))
			return fail(&p->first, -EINVAL, "[%s] has no key '%.80s'", section, name);
	return fail(&p->first, -EINVAL, "there is no section [%.80s]", section);
}

/* inih's: not 0 is success. */
static int handle(void *user, const char *section, const char *name, const char *value)
{
	struct parser *p = user;

	return p->first.code < 0 || parse_key(p, section, name, value) == 0;
}

static int check_metrics(const char *listen, struct ndp_error *err)
{
	if (!*listen || !strncmp(listen, "unix:/", 6))
		return 0;
	if (!strncmp(listen, "tcp:", 4) && strrchr(listen + 4, ':'))
		return 0;
	return fail(err, -EINVAL, "[metrics] listen: '%.80s' is neither unix:/PATH nor "
		    "tcp:ADDRESS:PORT", listen);
}

static int load_host(struct config *c, struct ndp_error *err)
{
	char *path = NULL;
	int r = ndp_profile_find("hosts", c->profile, &path, err);

	if (r == 0)
		r = ndp_host_profile_load(&c->host, path, err);
	free(path);
	return r;
}

int config_load(struct config *out, const char *path, bool may_be_missing, struct ndp_error *err)
{
	struct config c;
	struct parser p = { .c = &c };
	FILE *f = NULL;
	int line = 0, r;

	defaults(&c);
	if (path) {
		f = fopen(path, "re");
		if (!f && !(errno == ENOENT && may_be_missing))
			return fail(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
	}
	if (f) {
		line = ini_parse_file(f, handle, &p);
		fclose(f);
	}
	if (line < 0)
		return fail(err, -EIO, "%s: cannot be read", path);
	if (p.first.code < 0)
		return fail(err, p.first.code, "%s: line %d: %s", path, line, p.first.message);
	if (line > 0)
		return fail(err, -EINVAL, "%s: line %d: neither [section] nor key = value", path,
			    line);
	r = check_metrics(c.metrics, err);
	if (r == 0)
		r = load_host(&c, err);
	if (r == 0)
		*out = c;
	return r;
}

double config_weight(const struct config *c, const char *name)
{
	for (uint32_t i = 0; i < c->nr_weights; i++)
		if (!strcmp(c->weights[i].name, name))
			return c->weights[i].weight;
	return 1;
}
