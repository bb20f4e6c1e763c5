// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ask.c - the conversation with ndpd (ndp/daemon.h): a message goes, one comes back.
 *
 * What comes is checked like anything from another process.  No wait here outlasts a
 * signal.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <ndp/daemon.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_MS = 5000, MAX_STATUS_BYTES = 256 << 20 };

static int explain_connect(int code, struct ndp_error *err)
{
	char owner[128];

	switch (code) {
	case -ENOENT:
		return fail(err, code, "%s: no ndpd listens there: start it, for example by "
			    "\"systemctl start ndpd\"", roots.socket);
	case -ECONNREFUSED:
		return fail(err, code, "%s: the ndpd that made this socket is gone: start it "
			    "again, for example by \"systemctl restart ndpd\"", roots.socket);
	case -EACCES:
		if (!file_owner(owner, sizeof(owner), roots.socket))
			return fail(err, code, "%s: permission denied: a folder on the way may "
				    "not be searched; join the group ndp, or become root",
				    roots.socket);
		return fail(err, code, "%s: permission denied; it belongs to %s: join that group "
			    "(usermod -aG GROUP USER as root, then log in again)", roots.socket,
			    owner);
	default:
		return fail(err, code, "%s: cannot be connected to: %s", roots.socket,
			    strerror(-code));
	}
}

static int connect_ndpd(struct ndp_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, r;

	if (strlen(roots.socket) >= sizeof(address.sun_path))
		return fail(err, -ENAMETOOLONG, "%s: a socket's path has at most %zu bytes",
			    roots.socket, sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, roots.socket);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(err, -errno, "no socket: %s", strerror(errno));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	r = -errno;
	close(fd);
	return explain_connect(r, err);
}

union answer {
	struct ndp_msg head;
	struct ndp_msg_error error;
	struct ndp_msg_status status;
	struct ndp_msg_migrated migrated;
};

/* @wait_ms: -1: for as long as it takes. */
static int wait_answer(int fd, int wait_ms, struct ndp_error *err)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	const uint64_t end_ns = now_ns() + (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000;
	int r;

	for (;;) {
		r = interrupt_check(err);
		if (r < 0)
			return r;
		/* A signal just before poll() costs one turn, not the whole wait. */
		r = poll(&p, 1, 100);
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return fail(err, -errno, "ndpd's answer cannot be waited for: %s",
				    strerror(errno));
		if (wait_ms >= 0 && now_ns() >= end_ns)
			return fail(err, -ETIMEDOUT, "%s: ndpd does not answer within %d s",
				    roots.socket, ANSWER_MS / 1000);
	}
}

/* The answer and at most one descriptor, -1: none. */
static int receive(int fd, union answer *m, int *passed, struct ndp_error *err)
{
	struct iovec iov = { m, sizeof(*m) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c;

	*passed = -1;
	if (n < 0 && errno == ECONNRESET) /* comes before what was said, once */
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return fail(err, -ECONNRESET, "%s: ndpd ended the connection", roots.socket);
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(passed, CMSG_DATA(c), sizeof(*passed));
	if ((size_t)n < sizeof(m->head) || (size_t)n != m->head.bytes)
		return fail(err, -EPROTO, "%s: %zd bytes came that are no message of ndpd's "
			    "version %d", roots.socket, n, NDP_DAEMON_VERSION);
	if (m->head.type != NDP_MSG_ERROR || m->head.bytes != sizeof(m->error))
		return 0;
	m->error.message[sizeof(m->error.message) - 1] = '\0';
	return fail(err, m->error.code < 0 ? m->error.code : -EPROTO, "ndpd: %s",
		    m->error.message);
}

static int converse(const void *request, size_t bytes, int wait_ms, union answer *m, int *passed,
		    struct ndp_error *err)
{
	int fd = connect_ndpd(err);
	int r = 0;

	*passed = -1;
	if (fd < 0)
		return fd;
	/* Who refuses without having listened has said why: EPIPE is not the last word. */
	if (send(fd, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes && errno != EPIPE)
		r = fail(err, -errno, "%s: ndpd takes no message: %s", roots.socket,
			 strerror(errno));
	if (r == 0)
		r = wait_answer(fd, wait_ms, err);
	if (r == 0)
		r = receive(fd, m, passed, err);
	close(fd);
	if (r < 0 && *passed >= 0) {
		close(*passed);
		*passed = -1;
	}
	return r;
}

static int read_document(json_t **doc, int fd, uint64_t bytes, struct ndp_error *err)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	json_error_t why;
	struct stat st;
	char *text;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_WRITE) ||
	    fstat(fd, &st) < 0 || (uint64_t)st.st_size != bytes || bytes < 2 ||
	    bytes > MAX_STATUS_BYTES)
		return fail(err, -EPROTO, "%s: ndpd sent a status that is not sealed, or not as "
			    "long as it says", roots.socket);
	text = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (text == MAP_FAILED)
		return fail(err, -errno, "ndpd's status cannot be mapped: %s", strerror(errno));
	*doc = json_loadb(text, bytes, 0, &why);
	munmap(text, bytes);
	if (!*doc || !json_is_object(*doc)) {
		json_decref(*doc);
		*doc = NULL;
		return fail(err, -EPROTO, "%s: ndpd's status is no JSON object", roots.socket);
	}
	return 0;
}

int ask_status(json_t **doc, struct ndp_error *err)
{
	const struct ndp_msg request = { NDP_MSG_STATUS, sizeof(request) };
	union answer m;
	int fd;
	int r = converse(&request, sizeof(request), ANSWER_MS, &m, &fd, err);

	*doc = NULL;
	if (r < 0)
		return r;
	if (m.head.type != NDP_MSG_STATUS || m.head.bytes != sizeof(m.status) || fd < 0)
		r = fail(err, -EPROTO, "%s: message %u came where a status was wanted",
			 roots.socket, m.head.type);
	else
		r = read_document(doc, fd, m.status.json_bytes, err);
	if (fd >= 0)
		close(fd);
	return r;
}

int ask_migrate(const struct ndp_msg_migrate *request, struct ndp_msg_migrated *answer,
		struct ndp_error *err)
{
	union answer m;
	int fd;
	int r = converse(request, sizeof(*request), -1, &m, &fd, err);

	if (fd >= 0)
		close(fd);
	if (r < 0)
		return r;
	if (m.head.type != NDP_MSG_MIGRATED || m.head.bytes != sizeof(m.migrated))
		return fail(err, -EPROTO, "%s: message %u came where the end of migrations was "
			    "wanted", roots.socket, m.head.type);
	*answer = m.migrated;
	return 0;
}

/* Connections that only ask, like this one, have no name. */
json_t *attached_clients(const json_t *doc)
{
	json_t *all = json_array(), *c;
	size_t i;

	json_array_foreach(json_object_get(doc, "clients"), i, c)
		if (json_str(c, "name")[0])
			json_array_append(all, c);
	return all;
}

double json_double(const json_t *o, const char *key, double otherwise)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) ? json_number_value(v) : otherwise;
}

uint64_t json_uint(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) :
								 0;
}

const char *json_str(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}
