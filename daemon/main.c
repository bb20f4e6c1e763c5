// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndpd: placement of experts as a service.  Options, signals, the event
 * loop, and what the service manager is told.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <syslog.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_CONFIG "/etc/ndp/ndpd.conf"

enum { STATUS_USAGE = 2, STATUS_FAILED = 1 };
enum { POSTS_AT_ONCE = 512, REFRESH_TICKS = 100, IDLE_MS = 100 };

static const char usage[] =
	"usage: ndpd [--config FILE] [--socket PATH] [--metrics LISTEN] [--record FILE] [--dry-run]\n"
	"       ndpd --check-config [--config FILE]\n"
	"\n"
	"Decides where the experts of running models lie, and moves them.\n"
	"\n"
	"  --config FILE     instead of " DEFAULT_CONFIG "\n"
	"  --socket PATH     instead of the configuration's\n"
	"  --metrics LISTEN  unix:PATH or tcp:ADDRESS:PORT, instead of the configuration's\n"
	"  --record FILE     keep what came and what was decided\n"
	"  --dry-run         say what would be moved, and move nothing\n"
	"  --check-config    read the configuration, say what is wrong, and end\n";

struct arguments {
	const char *config;
	const char *socket;
	const char *metrics;
	const char *record;
	bool dry_run;
	bool check;
	bool help;
};

uint64_t ndpd_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int parse(int argc, char **argv, struct arguments *a)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "socket", required_argument, NULL, 's' },
		{ "metrics", required_argument, NULL, 'm' },
		{ "record", required_argument, NULL, 'r' },
		{ "dry-run", no_argument, NULL, 'n' },
		{ "check-config", no_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (o) {
		case 'c':
			a->config = optarg;
			break;
		case 's':
			a->socket = optarg;
			break;
		case 'm':
			a->metrics = optarg;
			break;
		case 'r':
			a->record = optarg;
			break;
		case 'n':
			a->dry_run = true;
			break;
		case 'k':
			a->check = true;
			break;
		case 'h':
			a->help = true;
			break;
		default:
			return -EINVAL;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "ndpd: '%s' is no option; see ndpd --help\n", argv[optind]);
		return -EINVAL;
	}
	return 0;
}

/* What the command line says is stronger than what the file says. */
static int configure(struct config *c, const struct arguments *a, struct ndp_error *err)
{
	int r = config_load(c, a->config ? a->config : DEFAULT_CONFIG, !a->config, err);

	if (r < 0)
		return r;
	if (a->socket) {
		if (strlen(a->socket) >= sizeof(c->socket))
			return fail(err, -ENAMETOOLONG, "--socket: longer than %zu bytes",
				    sizeof(c->socket) - 1);
		strcpy(c->socket, a->socket);
	}
	if (a->metrics) {
		if (strlen(a->metrics) >= sizeof(c->metrics))
			return fail(err, -ENAMETOOLONG, "--metrics: longer than %zu bytes",
				    sizeof(c->metrics) - 1);
		strcpy(c->metrics, a->metrics);
	}
	c->dry_run |= a->dry_run;
	return 0;
}

/* ---- events ------------------------------------------------------------------------- */

static void look_at_clients(struct ndpd *d)
{
	struct client *next;

	for (struct client *c = d->clients; c; c = next) {
		next = c->next;
		client_posts(c, ndpd_now_ns(), POSTS_AT_ONCE);
	}
}

/* Without anybody to look at there is no hurry. */
static uint64_t pause_us(const struct ndpd *d)
{
	for (const struct client *c = d->clients; c; c = c->next)
		if (c->state == CLIENT_RUNNING)
			return d->config.poll_ms * 1000ull;
	return IDLE_MS * 1000ull;
}

/* What status and metrics tell of DIMMs. */
static void refresh(struct ndpd *d)
{
	devices_refresh(d);
	for (const struct client *c = d->clients; c; c = c->next)
		if (c->hands && !c->node[0])
			hands_look(c->hands);
}

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
	struct ndpd *d = user;

	(void)usec;
	look_at_clients(d);
	server_tick(d);
	if (++d->ticks % REFRESH_TICKS == 0)
		refresh(d);
	sd_event_source_set_time_relative(source, pause_us(d));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static int on_wake(sd_event_source *source, int fd, uint32_t revents, void *user)
{
	struct ndpd *d = user;
	struct client *next;
	uint64_t n;

	(void)source;
	(void)revents;
	(void)!read(fd, &n, sizeof(n));
	for (struct client *c = d->clients; c; c = next) {
		next = c->next;
		client_outcomes(c, ndpd_now_ns());
	}
	return 0;
}

static int on_end(sd_event_source *source, const struct signalfd_siginfo *info, void *user)
{
	struct ndpd *d = user;

	(void)source;
	ndpd_log(LOG_INFO, "signal %u: ending", info->ssi_signo);
	sd_notify(0, "STOPPING=1");
	return sd_event_exit(d->event, 0);
}

static int on_reload(sd_event_source *source, const struct signalfd_siginfo *info, void *user)
{
	struct ndpd *d = user;
	struct ndp_error err;
	struct config fresh;
	bool was_dry;

	(void)source;
	(void)info;
	sd_notify(0, "RELOADING=1");
	if (configure(&fresh, d->arguments, &err) < 0) {
		ndpd_log(LOG_ERR, "the configuration stays as it was: %s", err.message);
	} else {
		if (strcmp(fresh.socket, d->config.socket) ||
		    strcmp(fresh.metrics, d->config.metrics))
			ndpd_log(LOG_WARNING,
				 "another socket or metrics address counts from the next start on");
		/* These are used as long as it runs. */
		memcpy(fresh.socket, d->config.socket, sizeof(fresh.socket));
		memcpy(fresh.metrics, d->config.metrics, sizeof(fresh.metrics));
		was_dry = d->config.dry_run;
		d->config = fresh;
		d->reloads++;
		/* In a dry run the engine believes in moves that nobody has made. */
		if (was_dry != d->config.dry_run)
			clients_restart(d, was_dry ? "from now on moves are made" :
						     "from now on nothing is moved");
		shares_update(d);
		ndpd_log(LOG_INFO, "the configuration was read again");
	}
	sd_notify(0, "READY=1");
	return 0;
}

static int add_signal(struct ndpd *d, int signal, sd_event_signal_handler_t handler)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, signal);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	return sd_event_add_signal(d->event, NULL, signal, handler, d);
}

/* ---- beginning and end ---------------------------------------------------------------- */

static int make_loop(struct ndpd *d, struct ndp_error *err)
{
	int r = sd_event_new(&d->event);

	if (r >= 0)
		r = add_signal(d, SIGTERM, on_end);
	if (r >= 0)
		r = add_signal(d, SIGINT, on_end);
	if (r >= 0)
		r = add_signal(d, SIGHUP, on_reload);
	if (r >= 0) {
		d->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		r = d->wake < 0 ? -errno : sd_event_add_io(d->event, NULL, d->wake, EPOLLIN,
							   on_wake, d);
	}
	if (r >= 0)
		r = sd_event_add_time_relative(d->event, &d->tick, CLOCK_MONOTONIC, 0, 1000, on_tick,
					       d);
	if (r >= 0)
		r = sd_event_set_watchdog(d->event, true);
	return r < 0 ? fail(err, r, "no event loop: %s", strerror(-r)) : 0;
}

/* Each client takes some descriptors, and select() is not used here. */
static void raise_limits(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

static int run(struct ndpd *d, const struct arguments *a, struct ndp_error *err)
{
	int r = make_loop(d, err);

	if (r == 0 && a->record)
		r = record_open(d, a->record, err);
	if (r < 0)
		return r;
	devices_refresh(d);
	r = server_start(d, err);
	if (r == 0)
		r = metrics_start(d, err);
	if (r < 0)
		return r;
	ndpd_log(LOG_INFO, "listening at %s, host profile %s%s", d->config.socket,
		 d->config.host.name, d->config.dry_run ? ", dry run: nothing will be moved" : "");
	sd_notify(0, "READY=1");
	r = sd_event_loop(d->event);
	return r < 0 ? fail(err, r, "the event loop failed: %s", strerror(-r)) : 0;
}

static void end(struct ndpd *d)
{
	metrics_end(d);
	server_end(d);
	record_close(d);
	devices_end(d);
	sd_event_source_disable_unref(d->tick);
	sd_event_unref(d->event);
	/* Hands of clients that hang still hold the eventfd: it goes with the process. */
}

int main(int argc, char **argv)
{
	static struct ndpd d = { .listener = -1, .wake = -1 };
	struct arguments a = { 0 };
	struct ndp_error err = { 0 };
	int r = parse(argc, argv, &a);

	if (r < 0)
		return STATUS_USAGE;
	if (a.help) {
		fputs(usage, stdout);
		return 0;
	}
	d.arguments = &a;
	d.started_ns = ndpd_now_ns();
	signal(SIGPIPE, SIG_IGN);
	r = configure(&d.config, &a, &err);
	if (r == 0 && !a.check) {
		raise_limits();
		r = run(&d, &a, &err);
		end(&d);
	}
	if (r < 0) {
		ndpd_log(LOG_ERR, "%s", err.message);
		return STATUS_FAILED;
	}
	return 0;
}
