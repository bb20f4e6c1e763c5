// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * stat.c - ndpctl stat: what DIMMs did while a command ran.
 *
 * Stdout is the command's, so the report goes to stderr or to a file.  Counters are the
 * DIMMs': what other programs did meanwhile is in them.  The exit status is the
 * command's.  No signal handlers: signals are waited for, as in sh(1) the command gets
 * those of the terminal itself.
 */
#include "stat.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 700, TICK_MS = 50, MAX_DEVICES = 64 };

/* ---- counters ------------------------------------------------------------------ */

int stat_take(struct stat_shot *s, struct ndp_device *const *devices, uint32_t nr_devices,
	      struct ndp_error *err)
{
	*s = (struct stat_shot){ .at_ns = now_ns() };
	s->dimms = calloc((size_t)nr_devices * NDP_MAX_DIMMS + 1, sizeof(*s->dimms));
	if (!s->dimms)
		return fail(err, -ENOMEM, "no memory for counters");
	for (uint32_t i = 0; i < nr_devices; i++) {
		struct ndp_device_info info;

		if (ndp_device_info(devices[i], &info) < 0)
			continue; /* gone */
		for (uint32_t m = info.dimm_mask; m; m &= m - 1) {
			struct stat_dimm *d = &s->dimms[s->nr_dimms];
			struct ndp_dimm_info k;

			d->dimm = (uint32_t)__builtin_ctz(m);
			if (ndp_dimm_info(devices[i], d->dimm, &k) < 0)
				continue;
			snprintf(d->device, sizeof(d->device), "%s", info.name);
			d->generation = k.generation;
			d->resets = k.resets;
			d->compute = k.compute;
			d->link = k.link;
			s->nr_dimms++;
		}
	}
	return 0;
}

static struct ndp_counters minus(const struct ndp_counters *a, const struct ndp_counters *b)
{
	return (struct ndp_counters){
		a->commands - b->commands, a->errors - b->errors, a->tokens - b->tokens,
		a->bytes - b->bytes, a->busy_ns - b->busy_ns, a->wall_ns - b->wall_ns,
	};
}

void stat_subtract(struct stat_shot *after, const struct stat_shot *before)
{
	for (uint32_t i = 0; i < after->nr_dimms; i++) {
		struct stat_dimm *a = &after->dimms[i];

		for (uint32_t k = 0; k < before->nr_dimms; k++) {
			const struct stat_dimm *b = &before->dimms[k];

			if (a->dimm != b->dimm || strcmp(a->device, b->device) ||
			    a->compute.commands < b->compute.commands ||
			    a->link.commands < b->link.commands || a->resets < b->resets)
				continue;
			a->compute = minus(&a->compute, &b->compute);
			a->link = minus(&a->link, &b->link);
			a->resets -= b->resets;
			break;
		}
	}
}

/* ---- the report ------------------------------------------------------------------- */

static void add(struct ndp_counters *sum, const struct ndp_counters *c)
{
	sum->commands += c->commands;
	sum->errors += c->errors;
	sum->tokens += c->tokens;
	sum->bytes += c->bytes;
	sum->busy_ns += c->busy_ns;
	sum->wall_ns += c->wall_ns;
}

json_t *stat_json(const struct stat_shot *s, double wall_s, int status)
{
	json_t *dimms = json_array();
	struct ndp_counters compute = { 0 }, link = { 0 };

	for (uint32_t i = 0; i < s->nr_dimms; i++) {
		const struct stat_dimm *d = &s->dimms[i];

		add(&compute, &d->compute);
		add(&link, &d->link);
		json_array_append_new(dimms, json_pack(
			"{s:o, s:o, s:o, s:o, s:o}", "device", json_text(d->device), "dimm",
			json_u64(d->dimm), "resets", json_u64(d->resets), "compute",
			counters_json(&d->compute), "link", counters_json(&d->link)));
	}
	return json_pack("{s:o, s:i, s:o, s:o, s:o}", "wall_s", json_number(wall_s), "status",
			 status, "dimms", dimms, "compute", counters_json(&compute), "link",
			 counters_json(&link));
}

static void print_row(struct table *t, const char *device, const char *dimm,
		      const struct ndp_counters *c, const struct ndp_counters *l, uint32_t resets)
{
	char b[7][16];

	table_row(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%u", device, dimm,
		  text_count(b[0], 16, (double)c->commands),
		  text_count(b[1], 16, (double)c->tokens),
		  text_bytes(b[2], 16, (double)c->bytes), text_ns(b[3], 16, (double)c->busy_ns),
		  text_ns(b[4], 16, (double)c->wall_ns), text_bytes(b[5], 16, (double)l->bytes),
		  text_ns(b[6], 16, (double)l->busy_ns),
		  (unsigned long long)(c->errors + l->errors), resets);
}

void stat_print(FILE *f, const struct stat_shot *s, double wall_s)
{
	struct ndp_counters compute = { 0 }, link = { 0 };
	uint32_t resets = 0;
	struct table t;

	table_begin(&t, "DEVICE\t>DIMM\t>COMMANDS\t>TOKENS\t>BYTES\t>BUSY (MODELLED)\t"
		    ">BUSY (WALL)\t>LINK BYTES\t>LINK (MODELLED)\t>ERRORS\t>RESETS");
	for (uint32_t i = 0; i < s->nr_dimms; i++) {
		const struct stat_dimm *d = &s->dimms[i];
		char number[16];

		snprintf(number, sizeof(number), "%u", d->dimm);
		add(&compute, &d->compute);
		add(&link, &d->link);
		resets += d->resets;
		print_row(&t, d->device, number, &d->compute, &d->link, d->resets);
	}
	print_row(&t, "all", "", &compute, &link, resets);
	fprintf(f, "\n");
	table_end(&t, f);
	fprintf(f, "\n%.6f s wall\n", wall_s);
}

/* ---- the command ---------------------------------------------------------------- */

/* Blocks the signals that wait_for() waits for; the command gets the mask as it was. */
static pid_t start(char **argv, const sigset_t *before, struct ndp_error *err)
{
	int failed[2], code = 0;
	pid_t pid;

	if (pipe2(failed, O_CLOEXEC) < 0)
		return fail(err, -errno, "no pipe: %s", strerror(errno));
	pid = fork();
	if (pid == 0) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGALRM, SIG_DFL);
		sigprocmask(SIG_SETMASK, before, NULL);
		execvp(argv[0], argv);
		code = errno;
		(void)!write(failed[1], &code, sizeof(code));
		_exit(127);
	}
	close(failed[1]);
	if (pid < 0)
		fail(err, -errno, "no process for %s: %s", argv[0], strerror(errno));
	else if (read(failed[0], &code, sizeof(code)) == sizeof(code)) {
		waitpid(pid, NULL, 0);
		pid = fail(err, -code, "%s: cannot be run: %s", argv[0], strerror(code));
	}
	close(failed[0]);
	return pid < 0 ? -1 : pid;
}

struct ending {
	int status;		/* as a shell has it */
	int signal;		/* that came to us; 0: none */
	bool left;		/* the command runs on */
};

static struct ending wait_for(pid_t pid, const sigset_t *signals)
{
	const struct timespec tick = { .tv_nsec = TICK_MS * 1000000L };
	struct ending e = { 0 };
	uint64_t give_up_ns = 0;

	for (;;) {
		siginfo_t info;
		int status;
		int sig;

		if (waitpid(pid, &status, WNOHANG) == pid) {
			e.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) :
							 WEXITSTATUS(status);
			return e;
		}
		if (give_up_ns && now_ns() >= give_up_ns) {
			e.left = true;
			e.status = 128 + e.signal;
			return e;
		}
		sig = sigtimedwait(signals, &info, give_up_ns ? &tick : NULL);
		if (sig != SIGINT && sig != SIGTERM)
			continue;
		/* The terminal has sent it to the command, too. */
		if (info.si_code != SI_KERNEL)
			kill(pid, sig);
		if (!e.signal) {
			e.signal = sig;
			give_up_ns = now_ns() + GRACE_MS * 1000000ull;
		}
	}
}

/* ---- devices --------------------------------------------------------------------- */

static int open_devices(struct ndp_device **devices, uint32_t *nr, const char *spec,
			struct ndp_error *err)
{
	struct ndp_node *nodes;
	int n, r = 0;

	*nr = 0;
	if (spec) {
		if (!strncmp(spec, "soft:", 5))
			return fail(err, -EINVAL, "%s: an emulated device lives in one process; "
				    "another one's is to be seen in \"ndpctl top\" when it is "
				    "attached to ndpd", spec);
		r = ndp_open(&devices[0], spec, err);
		*nr = r == 0;
		return r;
	}
	n = nodes_find(&nodes, err);
	for (int i = 0; i < n && r == 0 && *nr < MAX_DEVICES; i++) {
		if (nodes[i].dimm >= 0)
			continue;
		r = ndp_open(&devices[*nr], nodes[i].path, err);
		*nr += r == 0;
	}
	free(nodes);
	if (n == 0)
		return -ENODEV;
	return n < 0 ? n : r;
}

static int report(const struct options *o, const struct stat_shot *difference, double wall_s,
		  const struct ending *e, pid_t pid, struct ndp_error *err)
{
	FILE *f = o->output ? fopen(o->output, "we") : stderr;
	int r = 0;

	if (!f)
		return fail(err, -errno, "%s: cannot be written: %s", o->output, strerror(errno));
	if (e->left)
		fprintf(stderr, "ndpctl: interrupted; the command runs on as process %d\n",
			(int)pid);
	if (o->json)
		r = out_json(f, stat_json(difference, wall_s, e->status), err);
	else
		stat_print(f, difference, wall_s);
	if (o->output && fclose(f) != 0 && r == 0)
		r = fail(err, -errno, "%s: cannot be written: %s", o->output, strerror(errno));
	return r;
}

int cmd_stat(const struct options *o, struct ndp_error *err)
{
	struct ndp_device *devices[MAX_DEVICES];
	struct stat_shot before = { 0 }, after = { 0 };
	struct ending e = { 0 };
	sigset_t signals, old;
	int status = STATUS_FAILED;
	uint32_t nr;
	pid_t pid = -1;

	/* Stdout is the command's: no document of ours there. */
	interrupt_mute();
	if (open_devices(devices, &nr, o->device, err) < 0 ||
	    stat_take(&before, devices, nr, err) < 0)
		goto out;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, &old);
	before.at_ns = now_ns();
	pid = start(o->rest, &old, err);
	if (pid < 0)
		goto out;
	e = wait_for(pid, &signals);
	if (stat_take(&after, devices, nr, err) < 0)
		goto out;
	stat_subtract(&after, &before);
	if (report(o, &after, (double)(after.at_ns - before.at_ns) * 1e-9, &e, pid, err) == 0)
		status = e.status;
out:
	for (uint32_t i = 0; i < nr; i++)
		ndp_close(devices[i]);
	free(before.dimms);
	free(after.dimms);
	return status;
}
