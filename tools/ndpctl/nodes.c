// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * nodes.c - device nodes, and what sysfs says of them to everybody (kmod/sysfs.c).
 *
 * Nothing here changes anything.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <ndp/daemon.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct roots roots = {
	.sys = "/sys",
	.proc = "/proc",
	.dev = "/dev",
	.config = "/etc/ndp/ndpd.conf",
	.socket = NDP_DAEMON_SOCKET,
};

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

const char *dimm_state_name(enum ndp_dimm_state s)
{
	static const char *const name[] = {
		[NDP_DIMM_ABSENT] = "absent",
		[NDP_DIMM_READY] = "ready",
		[NDP_DIMM_RESETTING] = "resetting",
		[NDP_DIMM_FAILED] = "failed",
	};

	return (unsigned int)s < sizeof(name) / sizeof(name[0]) ? name[s] : "unknown";
}

json_t *dimms_json(uint32_t mask)
{
	json_t *a = json_array();

	for (; mask; mask &= mask - 1)
		json_array_append_new(a, json_integer(__builtin_ctz(mask)));
	return a;
}

json_t *counters_json(const struct ndp_counters *c)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "commands", json_u64(c->commands),
			 "errors", json_u64(c->errors), "tokens", json_u64(c->tokens), "bytes",
			 json_u64(c->bytes), "modelled_busy_ns", json_u64(c->busy_ns),
			 "wall_busy_ns", json_u64(c->wall_ns));
}

int nodes_find(struct ndp_node **nodes, struct ndp_error *why)
{
	int n;

	*why = (struct ndp_error){ 0 };
	*nodes = calloc(MAX_NODES, sizeof(**nodes));
	if (!*nodes)
		return fail(why, -ENOMEM, "no memory to list devices");
	n = ndp_discover(*nodes, MAX_NODES, why);
	if (n < 0 && !why->code)
		fail(why, n, "devices cannot be listed: %s", strerror(-n));
	return n;
}

bool file_line(char *line, size_t size, const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	FILE *f;
	bool there;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	line[0] = '\0';
	f = fopen(path, "re");
	if (!f)
		return false;
	there = fgets(line, (int)size, f);
	fclose(f);
	if (!there)
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return there;
}

bool node_attribute(char *value, size_t size, const char *path, const char *name)
{
	const char *base = strrchr(path, '/');

	return file_line(value, size, "%s/class/ndp/%s/%s", roots.sys, base ? base + 1 : path,
			 name);
}

bool node_attribute_u64(uint64_t *value, const char *path, const char *name)
{
	char text[64], *end;

	if (!node_attribute(text, sizeof(text), path, name) || !isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	*value = strtoull(text, &end, 0);
	return !*end && !errno;
}

bool file_owner(char *text, size_t size, const char *path)
{
	const struct passwd *pw;
	const struct group *gr;
	char uid[16], gid[16];
	struct stat st;

	if (stat(path, &st) < 0)
		return false;
	pw = getpwuid(st.st_uid);
	gr = getgrgid(st.st_gid);
	snprintf(uid, sizeof(uid), "%u", st.st_uid);
	snprintf(gid, sizeof(gid), "%u", st.st_gid);
	snprintf(text, size, "%s:%s %04o", pw ? pw->pw_name : uid, gr ? gr->gr_name : gid,
		 st.st_mode & 07777);
	return true;
}
