// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * client.c - one application, from its HELLO to its end.  What it says is checked
 * here; whatever it does afterwards, its end takes away all that it had, and nothing
 * of anybody else's.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

/* ---- beginning and end --------------------------------------------------------- */

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
	struct client *c = user;
	struct ndp_error err;

	(void)source;
	(void)usec;
	if (c->state == CLIENT_NEW)
		fail(&err, -ETIMEDOUT, "nothing was said within %d s", NDPD_HELLO_MS / 1000);
	else
		fail(&err, -ETIMEDOUT, "where the weights are was not said within %d s",
		     NDPD_SURVEY_MS / 1000);
	client_refuse(c, &err);
	return 0;
}

static int set_deadline(struct client *c, uint64_t ms)
{
	c->deadline = sd_event_source_disable_unref(c->deadline);
	return sd_event_add_time_relative(c->d->event, &c->deadline, CLOCK_MONOTONIC, ms * 1000, 0,
					  on_deadline, c);
}

static uint32_t of_user(const struct ndpd *d, uid_t uid)
{
	uint32_t n = 0;

	for (const struct client *c = d->clients; c; c = c->next)
		n += c->uid == uid;
	return n;
}

/*
 * As many threads as all clients that a user may have, and once more: those of clients
 * that have just ended.
 */
static uint32_t max_hands(const struct ndpd *d)
{
	return 2 * d->config.clients_per_user * d->config.moves_at_once;
}

int client_new(struct ndpd *d, int socket)
{
	struct client *c = calloc(1, sizeof(*c));
	struct ucred peer;
	socklen_t bytes = sizeof(peer);
	struct ndp_error err;
	int r;

	d->connections++;
	if (!c || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) {
		r = c ? -errno : -ENOMEM;
		free(c);
		close(socket);
		return r;
	}
	c->d = d;
	c->socket = socket;
	c->number = ++d->next_number;
	c->pid = peer.pid;
	c->uid = peer.uid;
	c->gid = peer.gid;
	c->page.fd = -1;
	c->since_ns = ndpd_now_ns();
	r = set_deadline(c, NDPD_HELLO_MS);
	if (r < 0) {
		close(socket);
		free(c);
		return r;
	}
	c->next = d->clients;
	c->prev = &d->clients;
	if (c->next)
		c->next->prev = &c->next;
	d->clients = c;
	d->nr_clients++;
	if (d->nr_clients > d->config.clients) {
		fail(&err, -EUSERS, "%u clients are connected, more are not allowed (clients)",
		     d->config.clients);
		client_refuse(c, &err);
		return -EUSERS;
	}
	if (of_user(d, c->uid) > d->config.clients_per_user) {
		fail(&err, -EUSERS, "user %u has %u clients, more are not allowed "
		     "(clients_per_user)", (unsigned int)c->uid, d->config.clients_per_user);
		client_refuse(c, &err);
		return -EUSERS;
	}
	if (hands_of(c->uid) > max_hands(d)) {
		fail(&err, -EUSERS, "%u threads hang on what earlier clients of user %u left",
		     hands_of(c->uid), (unsigned int)c->uid);
		client_refuse(c, &err);
		return -EUSERS;
	}
	return 0;
}

struct client *client_find(struct ndpd *d, uint32_t number)
{
	for (struct client *c = d->clients; c; c = c->next)
		if (c->number == number)
			return c;
	return NULL;
}

void client_free(struct client *c)
{
	struct ndpd *d = c->d;
	const bool shared = c->state == CLIENT_RUNNING && c->hands;

	*c->prev = c->next;
	if (c->next)
		c->next->prev = c->prev;
	d->nr_clients--;
	if (c->state == CLIENT_RUNNING) {
		record_gone(d, c);
		client_log(c, LOG_INFO, "gone after %llu posts",
			   (unsigned long long)c->brain.count.posts);
		order_abandon(c);
		brain_end(&c->brain);
	}
	hands_end(c->hands);
	sd_event_source_disable_unref(c->io);
	sd_event_source_disable_unref(c->deadline);
	ring_close(&c->ring);
	page_close(&c->page);
	close(c->socket);
	free(c->on_gpu);
	free(c);
	if (shared)
		shares_update(d);
}

void clients_restart(struct ndpd *d, const char *why)
{
	struct client *next;

	for (struct client *c = d->clients; c; c = next) {
		next = c->next;
		if (c->state == CLIENT_NEW)
			continue;
		client_log(c, LOG_INFO, "begins anew: %s", why);
		client_free(c);
	}
}

void client_refuse(struct client *c, const struct ndp_error *err)
{
	struct ndp_msg_error m = {
		.head = { NDP_MSG_ERROR, sizeof(m) },
		.code = err->code,
	};

	snprintf(m.message, sizeof(m.message), "%.*s", (int)sizeof(m.message) - 1, err->message);
	(void)!send(c->socket, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
	client_log(c, LOG_WARNING, "refused: %s", err->message);
	c->d->refused++;
	client_free(c);
}

/* ---- what it says --------------------------------------------------------------------- */

static int check_text(const char *text, size_t size, const char *what, struct ndp_error *err)
{
	if (!memchr(text, '\0', size))
		return fail(err, -EINVAL, "%s has no end", what);
	for (; *text; text++)
		if (*text <= ' ' || *text > '~')
			return fail(err, -EINVAL, "%s has bytes that are no printable ASCII", what);
	return 0;
}

static int check_hello(const struct ndp_msg_hello *h, struct ndp_error *err)
{
	int r;

	if (h->version != NDP_DAEMON_VERSION)
		return fail(err, -EPROTO, "version %u of the protocol; this ndpd speaks %d",
			    h->version, NDP_DAEMON_VERSION);
	if (h->flags & ~(uint32_t)(NDP_HELLO_PLACEMENT | NDP_HELLO_PAGE))
		return fail(err, -EINVAL, "unknown flags 0x%x", h->flags);
	r = check_text(h->name, sizeof(h->name), "the model's name", err);
	if (r == 0)
		r = check_text(h->node, sizeof(h->node), "the node", err);
	if (r < 0)
		return r;
	if (h->layers < 1 || h->layers > NDP_PLACE_MAX_LAYERS)
		return fail(err, -EINVAL, "%u layers; 1 to %d are wanted", h->layers,
			    NDP_PLACE_MAX_LAYERS);
	if (h->experts < 1 || h->experts > NDP_MAX_EXPERTS)
		return fail(err, -EINVAL, "%u experts; 1 to %d are wanted", h->experts,
			    NDP_MAX_EXPERTS);
	if (h->top_k < 1 || h->top_k > h->experts)
		return fail(err, -EINVAL, "top_k %u of %u experts", h->top_k, h->experts);
	if (h->hidden < 1 || h->hidden > 65472 || h->intermediate < 1 ||
	    h->intermediate > 32u * UINT16_MAX)
		return fail(err, -EINVAL, "experts of %u x %u are beyond what can be placed",
			    h->hidden, h->intermediate);
	if (h->expert_bytes < 1 || h->expert_bytes > 1ull << 40)
		return fail(err, -EINVAL, "experts of %llu bytes",
			    (unsigned long long)h->expert_bytes);
	if (h->gpu_bytes > 1ull << 50)
		return fail(err, -EINVAL, "%llu bytes of GPU memory",
			    (unsigned long long)h->gpu_bytes);
	if (h->flags & NDP_HELLO_PLACEMENT && !h->dimm_mask)
		return fail(err, -EINVAL, "a placement descriptor without DIMMs");
	return 0;
}

static uint32_t nr_blocks(const struct ndp_msg_hello *h)
{
	return (h->intermediate + 31) / 32;
}

/* The smallest of its DIMMs; 0: unknown. */
static uint64_t smallest_dimm(struct client *c)
{
	uint64_t bytes = 0;

	for (uint32_t mask = c->hello.dimm_mask; mask; mask &= mask - 1) {
		struct ndp_dimm_info info;

		if (ndpd_dimm(c->d, c, (uint32_t)__builtin_ctz(mask), &info) < 0)
			return 0;
		if (!bytes || info.mem_bytes < bytes)
			bytes = info.mem_bytes;
	}
	return bytes;
}

static int send_welcome(struct client *c)
{
	const struct ndp_msg_welcome m = {
		.head = { NDP_MSG_WELCOME, sizeof(m) },
		.version = NDP_DAEMON_VERSION,
		.client = c->number,
		.dry_run = c->d->config.dry_run,
	};

	return server_send(c, &m, sizeof(m), c->page.fd);
}

/* Everything is known: it runs from here on.  On failure it is gone. */
static void begin(struct client *c, struct survey *survey)
{
	struct ndp_error err;
	int r;

	r = page_create(&c->page, c->hello.layers, c->hello.experts, &err);
	if (r == 0)
		r = brain_start(&c->brain, &c->d->config, &c->hello, survey, c->on_gpu,
				share_of(c->d, c), smallest_dimm(c), &err);
	free(c->on_gpu);
	c->on_gpu = NULL;
	if (r < 0) {
		client_refuse(c, &err);
		return;
	}
	c->state = CLIENT_RUNNING;
	/* It posts at once; without clients ndpd looks seldom. */
	sd_event_source_set_time_relative(c->d->tick, c->d->config.poll_ms * 1000ull);
	c->deadline = sd_event_source_disable_unref(c->deadline);
	if (!c->d->config.dry_run)
		for (uint32_t l = 0; l < c->hello.layers; l++)
			brain_publish(c, l);
	record_client(c->d, c);
	if (send_welcome(c) < 0) {
		client_free(c);
		return;
	}
	client_log(c, LOG_INFO, "%u layers of %u experts, %llu bytes each, %s%s, user %u",
		   c->hello.layers, c->hello.experts, (unsigned long long)c->hello.expert_bytes,
		   c->hands ? "on DIMMs of " : "placement fixed",
		   !c->hands ? "" : c->node[0] ? c->node : "its own process",
		   (unsigned int)c->uid);
	if (c->hands)
		shares_update(c->d);
}

static void read_old_page(struct client *c, int fd)
{
	const struct ndp_msg_hello *h = &c->hello;

	c->on_gpu = calloc((size_t)h->layers * h->experts, 1);
	if (c->on_gpu && page_read_old(fd, h->layers, h->experts, c->on_gpu) < 0) {
		free(c->on_gpu);
		c->on_gpu = NULL;
	}
}

void client_hello(struct client *c, const struct ndp_msg_hello *hello, int ring_fd,
		  int placement_fd, int old_page_fd)
{
	struct ndp_error err;
	int r = check_hello(hello, &err);

	if (r == 0 && c->state != CLIENT_NEW)
		r = fail(&err, -EALREADY, "it has introduced itself already");
	if (r == 0)
		r = brain_check_cost(&c->d->config, hello, &err);
	if (r == 0) {
		c->hello = *hello;
		memcpy(c->name, hello->name, sizeof(c->name));
		memcpy(c->node, hello->node, sizeof(c->node));
		c->weight = config_weight(&c->d->config, c->name);
		r = ring_open(&c->ring, ring_fd, hello->layers, hello->experts, &err);
	}
	if (r == 0 && old_page_fd >= 0)
		read_old_page(c, old_page_fd);
	if (r < 0) {
		if (placement_fd >= 0)
			hands_close(placement_fd, c->uid);
		client_refuse(c, &err);
		return;
	}
	c->state = CLIENT_SURVEY;
	if (placement_fd < 0) {
		begin(c, NULL);
		return;
	}
	r = set_deadline(c, NDPD_SURVEY_MS);
	if (r < 0) {
		hands_close(placement_fd, c->uid);
		fail(&err, r, "no timer: %s", strerror(-r));
		client_refuse(c, &err);
		return;
	}
	r = hands_start(&c->hands, placement_fd, c->uid, c->d->config.moves_at_once, c->d->wake,
			&err);
	if (r == 0) {
		const struct survey_wish wish = {
			.layers = hello->layers,
			.experts = hello->experts,
			.nr_blocks = nr_blocks(hello),
			.dimm_mask = hello->dimm_mask,
			.in_process = !hello->node[0],
		};

		r = hands_survey(c->hands, &wish);
		if (r < 0)
			fail(&err, r, "out of memory");
	}
	if (r < 0)
		client_refuse(c, &err);
}

/* ---- what it does ---------------------------------------------------------------------- */

/* However long its decisions take, others get their turn. */
uint32_t client_posts(struct client *c, uint64_t now_ns, uint32_t budget)
{
	uint32_t n = 0, layer;

	if (c->state != CLIENT_RUNNING)
		return 0;
	while (n < budget) {
		const int r = ring_next(&c->ring, now_ns, &layer, c->brain.tokens);

		if (r == 0)
			break;
		if (r > 0)
			brain_post(c, layer, (double)now_ns);
		n++;
		if (ndpd_now_ns() - now_ns > NDPD_TURN_NS)
			break;
	}
	brain_tick(c, (double)now_ns);
	page_heartbeat(&c->page, now_ns);
	return n;
}

void client_outcomes(struct client *c, uint64_t now_ns)
{
	struct outcome out;

	while (c->hands && hands_take(c->hands, &out)) {
		if (!out.is_survey) {
			brain_outcome(c, &out, (double)now_ns);
			continue;
		}
		if (out.survey.res < 0)
			client_refuse(c, &out.survey.err);
		else
			begin(c, &out.survey);
		free(out.survey.ids);
		free(out.survey.blocks);
		return; /* it may be gone */
	}
}
