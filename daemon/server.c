// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * server.c - the socket that clients come to: messages are taken apart here, with
 * the descriptors that came along, none of which may be lost or left open.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { MAX_FDS = 3, BACKLOG = 64 };

/*
 * What is asked of the loop within 100 ms: of a connection, and of the socket. Who asks
 * more waits.
 */
enum { LIMIT_US = 100000, MESSAGES = 16, CONNECTIONS = 64 };

/* Out of descriptors, the socket is looked at again after so many ticks. */
enum { DEAF_TICKS = 10 };

union message {
	struct ndp_msg head;
	struct ndp_msg_hello hello;
	struct ndp_msg_migrate migrate;
};

struct received {
	union message m;
	size_t bytes;
	int nr_fds;
	int fds[MAX_FDS];
};

static void close_fds(struct received *in, uid_t uid)
{
	while (in->nr_fds)
		hands_close(in->fds[--in->nr_fds], uid);
}

/*
 * Keeps what there is room for; a control buffer has room for more than was meant, by
 * its alignment.  False: there were more.
 */
static bool take_fds(struct msghdr *msg, struct received *in, uid_t uid)
{
	bool all = true;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (in->nr_fds < MAX_FDS) {
				in->fds[in->nr_fds++] = fd;
				continue;
			}
			hands_close(fd, uid);
			all = false;
		}
	}
	return all;
}

/* 1, 0: the other side is gone, or -errno. */
static int receive(int socket, struct received *in, uid_t uid)
{
	struct iovec iov = { &in->m, sizeof(in->m) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	in->nr_fds = 0;
	in->bytes = 0;
	if (n < 0)
		return -errno;
	in->bytes = (size_t)n;
	if (!take_fds(&msg, in, uid) || msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return -EMSGSIZE;
	return n > 0;
}

int server_send(const struct client *c, const void *message, size_t bytes, int fd)
{
	struct iovec iov = { (void *)message, bytes };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);

	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	return sendmsg(c->socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes ? 0 : -errno;
}

/* ---- status ------------------------------------------------------------------------ */

static int document(const char *text, size_t bytes)
{
	int fd = memfd_create("ndpd-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, bytes) != (ssize_t)bytes ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		r = errno ? -errno : -ENOSPC;
	if (r < 0) {
		close(fd);
		return r;
	}
	return fd;
}

static void send_status(struct client *c)
{
	char *text = status_json(c->d);
	struct ndp_msg_status m = { .head = { NDP_MSG_STATUS, sizeof(m) } };
	int fd;

	m.json_bytes = text ? strlen(text) : 0;
	fd = text ? document(text, m.json_bytes) : -ENOMEM;
	free(text);
	if (fd < 0) {
		client_log(c, LOG_WARNING, "no status: %s", strerror(-fd));
		return;
	}
	server_send(c, &m, sizeof(m), fd); /* who asks and does not read gets none */
	close(fd);
}

/* ---- messages ------------------------------------------------------------------------ */

static void take_hello(struct client *c, struct received *in)
{
	const struct ndp_msg_hello *h = &in->m.hello;
	const bool placement = h->flags & NDP_HELLO_PLACEMENT, page = h->flags & NDP_HELLO_PAGE;
	const uid_t uid = c->uid;
	struct ndp_error err;
	int ring_fd, placement_fd = -1, page_fd = -1;

	if (in->nr_fds != 1 + placement + page) {
		fail(&err, -EPROTO, "%d descriptors came with a hello, %d are wanted", in->nr_fds,
		     1 + placement + page);
		close_fds(in, c->uid);
		client_refuse(c, &err);
		return;
	}
	ring_fd = in->fds[0];
	if (placement)
		placement_fd = in->fds[1];
	if (page)
		page_fd = in->fds[1 + placement];
	client_hello(c, h, ring_fd, placement_fd, page_fd);
	/* The client may be gone. */
	hands_close(ring_fd, uid);
	if (page_fd >= 0)
		hands_close(page_fd, uid);
}

/* Who may move a client's experts: root, and the user it runs as. */
static void take_migrate(struct client *c, const struct ndp_msg_migrate *m)
{
	struct client *whose = client_find(c->d, m->client);
	struct ndp_msg_migrated no = { .head = { NDP_MSG_MIGRATED, sizeof(no) } };

	if (!whose || whose->state != CLIENT_RUNNING || !whose->hands)
		no.res = -ENOENT;
	else if (c->uid != 0 && c->uid != whose->uid)
		no.res = -EPERM;
	else if (m->nr_moves < 1 || m->nr_moves > NDP_MSG_MAX_MOVES)
		no.res = -EINVAL;
	else if (c->d->config.dry_run)
		no.res = -EROFS;
	if (no.res == 0)
		order_start(whose, c, m, (double)ndpd_now_ns());
	else
		(void)!send(c->socket, &no, sizeof(no), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Who asks something may stay without being an application. */
static void said_something(struct client *c)
{
	if (c->state == CLIENT_NEW)
		c->deadline = sd_event_source_disable_unref(c->deadline);
}

static int on_client(sd_event_source *source, int fd, uint32_t revents, void *user)
{
	struct client *c = user;
	struct received in;
	struct ndp_error err;
	int r = receive(fd, &in, c->uid);

	(void)source;
	(void)revents;
	if (r == -EAGAIN || r == -EINTR)
		return 0;
	if (r == 0 || r == -ECONNRESET) {
		close_fds(&in, c->uid);
		client_free(c);
		return 0;
	}
	if (r > 0 && in.bytes >= sizeof(in.m.head) && in.m.head.bytes == in.bytes) {
		if (in.m.head.type == NDP_MSG_HELLO && in.bytes == sizeof(in.m.hello)) {
			take_hello(c, &in);
			return 0;
		}
		if (in.m.head.type == NDP_MSG_STATUS && in.bytes == sizeof(in.m.head) &&
		    in.nr_fds == 0) {
			said_something(c);
			send_status(c);
			return 0;
		}
		if (in.m.head.type == NDP_MSG_MIGRATE && in.bytes == sizeof(in.m.migrate) &&
		    in.nr_fds == 0) {
			said_something(c);
			take_migrate(c, &in.m.migrate);
			return 0;
		}
	}
	close_fds(&in, c->uid);
	fail(&err, -EPROTO, "%zu bytes that are no message of version %d", in.bytes,
	     NDP_DAEMON_VERSION);
	client_refuse(c, &err);
	return 0;
}

static int serve(struct ndpd *d, int socket)
{
	int r = client_new(d, socket);
	struct client *c = d->clients;

	if (r < 0)
		return r;
	r = sd_event_add_io(d->event, &c->io, socket, EPOLLIN, on_client, c);
	if (r >= 0)
		r = sd_event_source_set_ratelimit(c->io, LIMIT_US, MESSAGES);
	if (r < 0)
		client_free(c);
	return r < 0 ? r : 0;
}

static int on_listener(sd_event_source *source, int fd, uint32_t revents, void *user)
{
	struct ndpd *d = user;
	int socket = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int r;

	(void)revents;
	if (socket >= 0) {
		r = serve(d, socket);
		if (r < 0 && r != -EUSERS)
			ndpd_log(LOG_ERR, "a client cannot be served: %s", strerror(-r));
		return 0;
	}
	if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
		return 0;
	/* Those who wait are not lost, and the loop must not spin: see server_tick(). */
	ndpd_log(LOG_ERR, "no client can be accepted now: %s", strerror(errno));
	return sd_event_source_set_enabled(source, SD_EVENT_OFF);
}

void server_tick(struct ndpd *d)
{
	int enabled = SD_EVENT_ON;

	if (sd_event_source_get_enabled(d->listening_source, &enabled) == 0 &&
	    ++d->ticks_deaf % DEAF_TICKS == 0)
		sd_event_source_set_enabled(d->listening_source, SD_EVENT_ON);
}

/* ---- beginning and end --------------------------------------------------------------- */

/* A socket that nobody listens at is a dead ndpd's; one that answers is not ours to take. */
static int clear_path(const struct sockaddr_un *address, struct ndp_error *err)
{
	int fd, r;

	if (access(address->sun_path, F_OK) < 0)
		return 0;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(err, -errno, "no socket: %s", strerror(errno));
	r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
	r = r < 0 ? -errno : 0;
	close(fd);
	if (r == 0 || r == -EAGAIN) /* or so many wait that there is no room */
		return fail(err, -EADDRINUSE, "%s: another ndpd listens there", address->sun_path);
	if (r != -ECONNREFUSED)
		return fail(err, r, "%s: is there and is no socket of an ndpd: %s",
			    address->sun_path, strerror(-r));
	if (unlink(address->sun_path) < 0)
		return fail(err, -errno, "%s: an old socket cannot be removed: %s",
			    address->sun_path, strerror(errno));
	return 0;
}

static int listen_at(struct ndpd *d, const char *path, struct ndp_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	mode_t old;
	int r;

	if (strlen(path) >= sizeof(address.sun_path))
		return fail(err, -ENAMETOOLONG, "%s: a socket's path has at most %zu bytes", path,
			    sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	r = clear_path(&address, err);
	if (r < 0)
		return r;
	d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->listener < 0)
		return fail(err, -errno, "no socket: %s", strerror(errno));
	old = umask(0117); /* owner and group */
	r = bind(d->listener, (const struct sockaddr *)&address, sizeof(address));
	r = r < 0 ? -errno : 0;
	umask(old);
	if (r < 0)
		return fail(err, r, "%s: cannot be made: %s", path, strerror(-r));
	strcpy(d->listening, path);
	if (listen(d->listener, BACKLOG) < 0)
		return fail(err, -errno, "%s: cannot be listened at: %s", path, strerror(errno));
	return 0;
}

/* From the service manager: checked, as it may be configured wrong. */
static int inherit(struct ndpd *d, struct ndp_error *err)
{
	const int fd = SD_LISTEN_FDS_START;
	int flags;

	if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
		return fail(err, -EINVAL, "the socket of the service manager is none of "
			    "AF_UNIX, SOCK_SEQPACKET that listens (ListenSequentialPacket=)");
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return fail(err, -errno, "the socket of the service manager cannot be used: %s",
			    strerror(errno));
	d->listener = fd;
	return 0;
}

int server_start(struct ndpd *d, struct ndp_error *err)
{
	int r = sd_listen_fds(1);

	if (r > 1)
		return fail(err, -EINVAL, "%d sockets came from the service manager, one is wanted",
			    r);
	r = r == 1 ? inherit(d, err) : listen_at(d, d->config.socket, err);
	if (r < 0)
		return r;
	r = sd_event_add_io(d->event, &d->listening_source, d->listener, EPOLLIN, on_listener, d);
	if (r >= 0)
		r = sd_event_source_set_ratelimit(d->listening_source, LIMIT_US, CONNECTIONS);
	return r < 0 ? fail(err, r, "the socket cannot be watched: %s", strerror(-r)) : 0;
}

void server_end(struct ndpd *d)
{
	while (d->clients)
		client_free(d->clients);
	sd_event_source_disable_unref(d->listening_source);
	if (d->listener >= 0)
		close(d->listener);
	if (d->listening[0])
		unlink(d->listening);
}
