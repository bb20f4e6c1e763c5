// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * reset.c - ndpctl reset: a DIMM, or all DIMMs of a domain one by one.
 *
 * Whoever uses a device and says so holds flock(2) on its node: the domain's, or a
 * DIMM's.  Both are taken, so neither is disturbed.  The driver's reset ends at its
 * own deadline (timeout_ms), but until then nothing ends a write to sysfs: so a child
 * writes, which may stay behind for that long when we are interrupted; it keeps the
 * locks.  Success is what the state says after the write has succeeded, nothing else.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"
#include "../ndp-run/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the driver may take on top of timeout_ms: engines stop, mappings go. */
enum { MARGIN_MS = 5000, DEFAULT_TIMEOUT_MS = 30000 };

struct target {
	char path[64];
	char state[32];		/* afterwards */
	uint64_t generation;
	uint64_t wall_ns;
};

struct reset {
	uint32_t nr_targets;
	struct target targets[NDP_MAX_DIMMS];
	int nr_locks;
	int locks[NDP_MAX_DIMMS + 1];
};

static uint64_t deadline_ms(void)
{
	char line[32], *end;
	unsigned long long ms;

	if (!file_line(line, sizeof(line), "%s/module/moendp/parameters/timeout_ms", roots.sys))
		return DEFAULT_TIMEOUT_MS + MARGIN_MS;
	ms = strtoull(line, &end, 10);
	return (end == line || ms > INT_MAX / 2 ? DEFAULT_TIMEOUT_MS : ms) + MARGIN_MS;
}

/* ---- which DIMMs ------------------------------------------------------------- */

/* "/dev/ndp0d1" is of "/dev/ndp0" */
static void domain_of(char *domain, size_t size, const char *path)
{
	const char *base = strrchr(path, '/'), *d = strchr(base ? base + 4 : path, 'd');

	snprintf(domain, size, "%.*s", d ? (int)(d - path) : (int)strlen(path), path);
}

static int find_targets(struct reset *r, const char *device, struct ndp_error *err)
{
	struct ndp_error why;
	struct ndp_node *nodes;
	char domain[64];
	int n;

	if (!strncmp(device, "soft:", 5))
		return fail(err, -EINVAL, "%s: an emulated device lives in one process: end that, "
			    "and start it again", device);
	n = nodes_find(&nodes, &why);
	for (int i = 0; i < n; i++) {
		domain_of(domain, sizeof(domain), nodes[i].path);
		if (nodes[i].dimm < 0 || r->nr_targets == NDP_MAX_DIMMS ||
		    (strcmp(device, nodes[i].path) && strcmp(device, domain)))
			continue;
		snprintf(r->targets[r->nr_targets++].path, sizeof(r->targets[0].path), "%s",
			 nodes[i].path);
	}
	free(nodes);
	if (r->nr_targets)
		return 0;
	if (n <= 0)
		return fail(err, why.code ? why.code : -ENODEV, "%s cannot be reset: %s", device,
			    why.message);
	return fail(err, -ENODEV, "%s cannot be reset: there is no such device; \"ndpctl list\" "
		    "shows those there are", device);
}

/* ---- locks ------------------------------------------------------------------- */

static int lock(struct reset *r, const char *path, bool wait, bool quiet, struct ndp_error *err)
{
	char owner[128];
	int fd = wait ? lock_take(path, quiet, err) : lock_try(path, err);

	if (fd >= 0) {
		r->locks[r->nr_locks++] = fd;
		return 0;
	}
	if (fd == -EBUSY)
		return fail(err, fd, "%s is in use: another process holds its lock; --wait waits "
			    "for it", path);
	if (fd == -EACCES && file_owner(owner, sizeof(owner), path))
		return fail(err, fd, "cannot open %s: permission denied; it belongs to %s: become "
			    "root (a reset needs that, the group is not enough)", path, owner);
	return fd;
}

static int lock_all(struct reset *r, bool wait, struct ndp_error *err)
{
	char domain[64];
	int e;

	domain_of(domain, sizeof(domain), r->targets[0].path);
	e = lock(r, domain, wait, false, err);
	for (uint32_t i = 0; i < r->nr_targets && e == 0; i++)
		e = lock(r, r->targets[i].path, wait, false, err);
	return e;
}

/* ---- one DIMM ------------------------------------------------------------------ */

static void attribute_path(char *path, size_t size, const struct target *t)
{
	snprintf(path, size, "%s/class/ndp/%s/reset", roots.sys, strrchr(t->path, '/') + 1);
}

/* Ends with the driver's answer in the pipe. */
static void child(const char *path, int answer)
{
	int null = open("/dev/null", O_RDWR);
	int code = 0, fd;

	/* Nobody is to wait for us: not who reads our output, not who sends ^C. */
	setsid();
	for (int i = 0; i < 3 && null >= 0; i++)
		dup2(null, i);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "1", 1) != 1)
		code = -errno;
	(void)!write(answer, &code, sizeof(code));
	_exit(0);
}

/* 0: the driver says so; -ETIMEDOUT: it has said nothing; -EINTR; or what it says. */
static int ask_driver(const char *path, uint64_t limit_ms, struct ndp_error *err)
{
	const uint64_t end_ns = now_ns() + limit_ms * 1000000;
	int fds[2], code = -EIO, r;
	struct pollfd p;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(err, -errno, "no pipe: %s", strerror(errno));
	pid = fork();
	if (pid == 0)
		child(path, fds[1]);
	close(fds[1]);
	p = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	if (pid < 0)
		r = fail(err, -errno, "no process: %s", strerror(errno));
	else
		r = 0;
	while (r == 0) {
		r = interrupt_check(err);
		if (r < 0)
			break;
		if (poll(&p, 1, 100) > 0) {
			if (read(fds[0], &code, sizeof(code)) != sizeof(code))
				code = -EIO;
			waitpid(pid, NULL, 0);
			break;
		}
		if (now_ns() >= end_ns)
			r = fail(err, -ETIMEDOUT, "no answer");
	}
	close(fds[0]);
	return r < 0 ? r : code;
}

static int reset_one(struct target *t, struct ndp_error *err)
{
	const uint64_t begin = now_ns(), limit = deadline_ms();
	char path[PATH_MAX], owner[128];
	int r;

	attribute_path(path, sizeof(path), t);
	r = ask_driver(path, limit, err);
	t->wall_ns = now_ns() - begin;
	if (!node_attribute(t->state, sizeof(t->state), t->path, "state"))
		snprintf(t->state, sizeof(t->state), "absent");
	node_attribute_u64(&t->generation, t->path, "generation");
	if (r == 0 && !strcmp(t->state, "ready"))
		return 0;
	if (r == -EINTR)
		return fail(err, r, "interrupted while %s was being reset: the driver goes on with "
			    "that; \"ndpctl list\" shows its state", t->path);
	if (r == -EACCES || r == -EPERM) {
		if (!file_owner(owner, sizeof(owner), path))
			snprintf(owner, sizeof(owner), "root");
		return fail(err, r, "%s was not reset: permission denied; %s belongs to %s: become "
			    "root", t->path, path, owner);
	}
	if (r == -ETIMEDOUT && strcmp(t->state, "failed"))
		return fail(err, r, "the reset of %s has not ended within %llu ms, its state is "
			    "%s: see dmesg", t->path, (unsigned long long)limit, t->state);
	return fail(err, r < 0 ? r : -EIO, "the reset of %s failed after %llu ms (%s), its state "
		    "is %s: what it held is lost; see dmesg, try once more, or replace it", t->path,
		    (unsigned long long)t->wall_ns / 1000000,
		    r < 0 ? strerror(-r) : "it failed again at once", t->state);
}

/* ---- the command ------------------------------------------------------------------ */

static json_t *document(const struct reset *r)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < r->nr_targets; i++) {
		const struct target *t = &r->targets[i];

		json_array_append_new(all, json_pack("{s:o, s:o, s:o, s:o}", "device",
						     json_text(t->path), "state",
						     json_text(t->state), "generation",
						     json_u64(t->generation), "wall_ns",
						     json_u64(t->wall_ns)));
	}
	return all;
}

static void print(const struct reset *r)
{
	struct table table;

	table_begin(&table, "DEVICE\tSTATE\t>GENERATION\t>TIME (WALL)");
	for (uint32_t i = 0; i < r->nr_targets; i++) {
		const struct target *t = &r->targets[i];
		char wall[16];

		table_row(&table, "%s\t%s\t%llu\t%s", t->path, t->state,
			  (unsigned long long)t->generation,
			  text_ns(wall, sizeof(wall), (double)t->wall_ns));
	}
	table_end(&table, stdout);
}

int cmd_reset(const struct options *o, struct ndp_error *err)
{
	struct reset r = { 0 };
	int e = find_targets(&r, o->device, err);

	if (e == 0)
		e = lock_all(&r, o->wait, err);
	/* The first that fails is the last: what is wrong may be the others', too. */
	for (uint32_t i = 0; i < r.nr_targets && e == 0; i++)
		e = reset_one(&r.targets[i], err);
	while (r.nr_locks)
		close(r.locks[--r.nr_locks]);
	if (e < 0)
		return STATUS_FAILED;
	interrupt_mute();
	if (o->json)
		return out_json(stdout, document(&r), err) < 0 ? STATUS_FAILED : STATUS_OK;
	print(&r);
	return STATUS_OK;
}
