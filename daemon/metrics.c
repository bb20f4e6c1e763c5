// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * metrics.c - what Prometheus reads, at a Unix socket or a TCP address.  HTTP is
 * libmicrohttpd's, driven by the event loop.  Names and units: Prometheus' own
 * conventions; what is modelled time has "modelled" in its name.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct metrics {
	struct MHD_Daemon *http;
	sd_event_source *io, *timer;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* Runs of HTTP within 100 ms: whoever keeps it busy does not keep the loop busy. */
enum { LIMIT_US = 100000, RUNS = 100, SOON_MS = 200 };

/* ---- what there is ---------------------------------------------------------------- */

/* A client's own text, as the value of a label. */
struct label {
	char text[2 * sizeof(((struct client *)0)->name)];
};

static struct label label(const char *text)
{
	struct label l;
	size_t n = 0;

	for (; *text && n + 3 < sizeof(l.text); text++) {
		if (*text == '"' || *text == '\\')
			l.text[n++] = '\\';
		l.text[n++] = *text;
	}
	l.text[n] = '\0';
	return l;
}

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Every DIMM that somebody can be asked about, with whose it is. */
struct dimm_row {
	char labels[160];
	struct ndp_dimm_info info;
};

static uint32_t collect_dimms(struct ndpd *d, struct dimm_row *rows, uint32_t max)
{
	uint32_t n = 0;

	for (const struct node *node = d->nodes; node; node = node->next)
		for (uint32_t mask = node->dimm_mask; mask && n < max; mask &= mask - 1) {
			const uint32_t dimm = (uint32_t)__builtin_ctz(mask);

			if (ndp_dimm_info(node->dev, dimm, &rows[n].info) < 0)
				continue;
			snprintf(rows[n].labels, sizeof(rows[n].labels),
				 "node=\"%s\",dimm=\"%u\"", node->path, dimm);
			n++;
		}
	for (const struct client *c = d->clients; c; c = c->next)
		for (uint32_t mask = c->node[0] ? 0 : c->hello.dimm_mask; mask && n < max;
		     mask &= mask - 1) {
			const uint32_t dimm = (uint32_t)__builtin_ctz(mask);

			if (ndpd_dimm(d, c, dimm, &rows[n].info) < 0)
				continue;
			snprintf(rows[n].labels, sizeof(rows[n].labels),
				 "node=\"client%u\",dimm=\"%u\"", c->number, dimm);
			n++;
		}
	return n;
}

static void put_dimms(FILE *f, const struct dimm_row *rows, uint32_t n)
{
	family(f, "ndp_dimm_memory_bytes", "gauge", "Memory of a DIMM for weights and activations.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_memory_bytes{%s} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.mem_bytes);
	family(f, "ndp_dimm_used_bytes", "gauge", "Memory of a DIMM that is taken.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_used_bytes{%s} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.mem_bytes - rows[i].info.free_bytes);
	family(f, "ndp_dimm_up", "gauge", "1 when a DIMM is ready.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_up{%s} %d\n", rows[i].labels,
			rows[i].info.state == NDP_DIMM_READY);
	family(f, "ndp_dimm_commands_total", "counter", "Commands that a DIMM has completed.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_commands_total{%s,engine=\"compute\"} %" PRIu64 "\n"
			"ndp_dimm_commands_total{%s,engine=\"link\"} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.compute.commands, rows[i].labels, rows[i].info.link.commands);
	family(f, "ndp_dimm_errors_total", "counter", "Commands that failed.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_errors_total{%s,engine=\"compute\"} %" PRIu64 "\n"
			"ndp_dimm_errors_total{%s,engine=\"link\"} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.compute.errors, rows[i].labels, rows[i].info.link.errors);
	family(f, "ndp_dimm_tokens_total", "counter", "Tokens in the commands.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_tokens_total{%s} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.compute.tokens);
	family(f, "ndp_dimm_link_bytes_total", "counter", "Bytes copied into a DIMM over DIMM-Link.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_link_bytes_total{%s} %" PRIu64 "\n", rows[i].labels,
			rows[i].info.link.bytes);
	family(f, "ndp_dimm_busy_modelled_seconds_total", "counter",
	       "Modelled time for which a DIMM's engine was busy; its rate is the busy share.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_busy_modelled_seconds_total{%s,engine=\"compute\"} %.9f\n"
			"ndp_dimm_busy_modelled_seconds_total{%s,engine=\"link\"} %.9f\n",
			rows[i].labels, (double)rows[i].info.compute.busy_ns * 1e-9,
			rows[i].labels, (double)rows[i].info.link.busy_ns * 1e-9);
	family(f, "ndp_dimm_queue_depth", "gauge", "Commands of a DIMM that are not complete yet.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_queue_depth{%s} %u\n", rows[i].labels, rows[i].info.inflight);
	family(f, "ndp_dimm_resets_total", "counter", "Resets of a DIMM since its driver was bound.");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "ndp_dimm_resets_total{%s} %u\n", rows[i].labels, rows[i].info.resets);
}

/* ---- models --------------------------------------------------------------------------- */

typedef double (*reading)(const struct client *c);

static double posts(const struct client *c)
{
	return (double)c->brain.count.posts;
}

static double dropped(const struct client *c)
{
	return (double)ring_dropped(&c->ring);
}

static double refused(const struct client *c)
{
	return (double)(c->ring.refused + c->ring.skipped);
}

static double covered(const struct client *c)
{
	return c->brain.count.covered;
}

static double coverable(const struct client *c)
{
	return c->brain.count.best;
}

static double predicted(const struct client *c)
{
	return c->brain.count.predicted;
}

static double hottest(const struct client *c)
{
	return c->brain.count.hottest;
}

static double by_chance(const struct client *c)
{
	return (double)ndp_class_hot(c->brain.shape.experts) / c->brain.shape.experts;
}

static double rollbacks(const struct client *c)
{
	return (double)c->brain.count.rollbacks;
}

static double limited(const struct client *c)
{
	return (double)c->brain.count.limited;
}

static double cost(const struct client *c)
{
	return c->brain.count.cost_modelled_ns * 1e-9;
}

static double gain(const struct client *c)
{
	return c->brain.count.realised_modelled_ns * 1e-9;
}

static double copied(const struct client *c)
{
	return c->brain.count.copy_modelled_ns * 1e-9;
}

static double hidden(const struct client *c)
{
	return c->brain.count.hidden_modelled_ns * 1e-9;
}

static double under_way(const struct client *c)
{
	return c->brain.nr_pending;
}

static const struct {
	const char *name;
	const char *type;
	const char *help;
	reading read;
} of_models[] = {
	{ "ndp_client_posts_total", "counter", "Loads of layers that a client has posted.", posts },
	{ "ndp_client_dropped_posts_total", "counter",
	  "Posts that found the ring full, as the client says.", dropped },
	{ "ndp_client_refused_posts_total", "counter", "Posts that made no sense.", refused },
	{ "ndp_model_hot_coverage_ratio", "gauge",
	  "Share of tokens that experts in GPU memory got, moving mean.", covered },
	{ "ndp_model_hot_coverage_possible_ratio", "gauge",
	  "The same for as many experts chosen with hindsight.", coverable },
	{ "ndp_model_predicted_hot_coverage_ratio", "gauge",
	  "Share of tokens that the experts got that were predicted to be hot, moving mean.",
	  predicted },
	{ "ndp_model_actual_hot_coverage_ratio", "gauge",
	  "The same for the experts that were hot.", hottest },
	{ "ndp_model_chance_hot_coverage_ratio", "gauge",
	  "The same for as many experts chosen at random, on the mean.", by_chance },
	{ "ndp_model_migrations_under_way", "gauge", "Actions that have not ended.", under_way },
	{ "ndp_model_migration_rollbacks_total", "counter",
	  "Actions that failed and left all as it was.", rollbacks },
	{ "ndp_model_migrations_limited_total", "counter", "Actions put off by the rate limit.",
	  limited },
	{ "ndp_model_migration_cost_modelled_seconds_total", "counter",
	  "Modelled time of copies, as expected when they were decided.", cost },
	{ "ndp_model_migration_gain_modelled_seconds", "gauge",
	  "Modelled time by which layers became shorter through migrations, a step.", gain },
	{ "ndp_model_copy_modelled_seconds_total", "counter", "Modelled time of copies, of a sample.",
	  copied },
	{ "ndp_model_copy_hidden_modelled_seconds_total", "counter",
	  "Of it, what was behind the layers.", hidden },
};

static void put_models(FILE *f, const struct ndpd *d)
{
	static const char *const kind[] = { "prefetch", "relayout", "rebalance" };

	for (size_t i = 0; i < sizeof(of_models) / sizeof(of_models[0]); i++) {
		family(f, of_models[i].name, of_models[i].type, of_models[i].help);
		for (const struct client *c = d->clients; c; c = c->next)
			if (c->state == CLIENT_RUNNING)
				fprintf(f, "%s{client=\"%u\",model=\"%s\"} %.17g\n",
					of_models[i].name, c->number, label(c->name).text,
					of_models[i].read(c));
	}
	family(f, "ndp_model_migrations_total", "counter", "Actions that ended well, by kind.");
	for (const struct client *c = d->clients; c; c = c->next)
		for (int k = 0; k < 3 && c->state == CLIENT_RUNNING; k++)
			fprintf(f, "ndp_model_migrations_total{client=\"%u\",model=\"%s\","
				"kind=\"%s\"} %" PRIu64 "\n", c->number, label(c->name).text, kind[k],
				c->brain.count.moves[k]);
	family(f, "ndp_model_migrated_bytes_total", "counter", "Bytes of these, by kind.");
	for (const struct client *c = d->clients; c; c = c->next)
		for (int k = 0; k < 3 && c->state == CLIENT_RUNNING; k++)
			fprintf(f, "ndp_model_migrated_bytes_total{client=\"%u\",model=\"%s\","
				"kind=\"%s\"} %" PRIu64 "\n", c->number, label(c->name).text, kind[k],
				c->brain.count.move_bytes[k]);
}

static void put_all(FILE *f, struct ndpd *d)
{
	enum { MAX_ROWS = 2048 };
	struct dimm_row *rows = calloc(MAX_ROWS, sizeof(*rows));

	family(f, "ndpd_clients", "gauge", "Connected clients.");
	fprintf(f, "ndpd_clients %u\n", d->nr_clients);
	family(f, "ndpd_connections_total", "counter", "Clients that have come.");
	fprintf(f, "ndpd_connections_total %" PRIu64 "\n", d->connections);
	family(f, "ndpd_refused_total", "counter", "Clients that were refused.");
	fprintf(f, "ndpd_refused_total %" PRIu64 "\n", d->refused);
	family(f, "ndpd_config_reloads_total", "counter", "Times the configuration was read again.");
	fprintf(f, "ndpd_config_reloads_total %" PRIu64 "\n", d->reloads);
	if (rows)
		put_dimms(f, rows, collect_dimms(d, rows, MAX_ROWS));
	free(rows);
	put_models(f, d);
}

/* ---- HTTP -------------------------------------------------------------------------------- */

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned int status, char *text,
			     size_t bytes, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(bytes, text, mode);
	enum MHD_Result result;

	if (!r)
		return MHD_NO;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE,
				"text/plain; version=0.0.4; charset=utf-8");
	result = MHD_queue_response(connection, status, r);
	MHD_destroy_response(r);
	return result;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_bytes, void **state)
{
	static char elsewhere[] = "ndpd: see /metrics\n";
	char *text = NULL;
	size_t bytes = 0;
	FILE *f;

	(void)version;
	(void)upload;
	(void)upload_bytes;
	(void)state;
	if (strcmp(method, "GET") || strcmp(url, "/metrics"))
		return reply(connection, MHD_HTTP_NOT_FOUND, elsewhere, sizeof(elsewhere) - 1,
			     MHD_RESPMEM_PERSISTENT);
	f = open_memstream(&text, &bytes);
	if (!f)
		return MHD_NO;
	put_all(f, user);
	if (fclose(f) != 0) {
		free(text);
		return MHD_NO;
	}
	return reply(connection, MHD_HTTP_OK, text, bytes, MHD_RESPMEM_MUST_FREE);
}

static void serve(struct metrics *m)
{
	MHD_UNSIGNED_LONG_LONG ms;

	MHD_run(m->http);
	if (MHD_get_timeout(m->http, &ms) == MHD_YES) {
		/* At its limit it listens again when it is run the next time. */
		if (ms > SOON_MS)
			ms = SOON_MS;
		sd_event_source_set_time_relative(m->timer, ms * 1000ull);
		sd_event_source_set_enabled(m->timer, SD_EVENT_ONESHOT);
	}
}

static int on_http(sd_event_source *source, int fd, uint32_t revents, void *user)
{
	(void)source;
	(void)fd;
	(void)revents;
	serve(user);
	return 0;
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *user)
{
	(void)source;
	(void)usec;
	serve(user);
	return 0;
}

/* ---- where --------------------------------------------------------------------------------- */

static int listen_unix(struct metrics *m, const char *path, struct ndp_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(address.sun_path))
		return fail(err, -ENAMETOOLONG, "metrics: %s: a socket's path has at most %zu bytes",
			    path, sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(err, -errno, "metrics: no socket: %s", strerror(errno));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno == ECONNREFUSED)
		unlink(path); /* a dead ndpd's */
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 16) < 0) {
		const int r = -errno;

		close(fd);
		return fail(err, r, "metrics: %s: cannot be listened at: %s", path, strerror(-r));
	}
	strcpy(m->path, path);
	return fd;
}

static int listen_tcp(const char *where, struct ndp_error *err)
{
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
					.ai_socktype = SOCK_STREAM };
	struct addrinfo *at = NULL;
	char address[CONFIG_TEXT];
	const int one = 1;
	char *port;
	int fd = -1, r;

	strcpy(address, where);
	port = strrchr(address, ':');
	*port++ = '\0';
	if (address[0] == '[' && port - address > 2 && port[-2] == ']') {
		port[-2] = '\0';
		memmove(address, address + 1, strlen(address));
	}
	r = getaddrinfo(address[0] ? address : NULL, port, &hints, &at);
	if (r)
		return fail(err, -EINVAL, "metrics: tcp:%s: %s; a numeric address and port are wanted",
			    where, gai_strerror(r));
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, 16) < 0) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		fd = fail(err, r, "metrics: tcp:%s: cannot be listened at: %s", where,
			  strerror(-r));
	}
	freeaddrinfo(at);
	return fd;
}

static int watch(struct ndpd *d, struct metrics *m)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_EPOLL_FD);
	int r;

	if (!info)
		return -EINVAL;
	r = sd_event_add_io(d->event, &m->io, info->epoll_fd, EPOLLIN, on_http, m);
	if (r >= 0)
		r = sd_event_source_set_ratelimit(m->io, LIMIT_US, RUNS);
	if (r >= 0)
		r = sd_event_add_time_relative(d->event, &m->timer, CLOCK_MONOTONIC, 0, 1000,
					       on_timeout, m);
	return r < 0 ? r : 0;
}

int metrics_start(struct ndpd *d, struct ndp_error *err)
{
	const char *listen = d->config.metrics;
	struct metrics *m;
	int fd, r;

	if (!*listen)
		return 0;
	m = calloc(1, sizeof(*m));
	if (!m)
		return fail(err, -ENOMEM, "out of memory");
	d->metrics = m;
	fd = !strncmp(listen, "unix:", 5) ? listen_unix(m, listen + 5, err) :
					    listen_tcp(listen + 4, err);
	if (fd < 0)
		return fd;
	m->http = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, d,
				   MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, 16u,
				   MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
	if (!m->http) {
		close(fd);
		return fail(err, -EIO, "metrics: HTTP cannot be served at %s", listen);
	}
	r = watch(d, m);
	return r < 0 ? fail(err, r, "metrics: cannot be watched: %s", strerror(-r)) : 0;
}

void metrics_end(struct ndpd *d)
{
	struct metrics *m = d->metrics;

	if (!m)
		return;
	sd_event_source_disable_unref(m->io);
	sd_event_source_disable_unref(m->timer);
	if (m->http)
		MHD_stop_daemon(m->http);
	if (m->path[0])
		unlink(m->path);
	free(m);
	d->metrics = NULL;
}
