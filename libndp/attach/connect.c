// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * connect.c - the connection to ndpd, and the thread that makes it anew when it is
 * lost.  What ndpd sends is checked as ndpd checks what it is sent.
 *
 * Must never touch what the application's threads use without @epoch being odd.
 */
#include "../passing.h"
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_MS = 5000, RETRY_FIRST_MS = 50, RETRY_MOST_MS = 2000 };

static int open_socket(struct ndp_attachment *a, int *fd, struct ndp_error *err)
{
	const char *path = a->address.sun_path;
	int r;

	*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return ndpi_fail(err, -errno, "no socket: %s", strerror(errno));
	if (connect(*fd, (const struct sockaddr *)&a->address, sizeof(a->address)) == 0)
		return 0;
	r = -errno;
	close(*fd);
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
		return ndpi_fail(err, r, "%s: no ndpd listens there (%s): start it, for example by "
				 "\"systemctl start ndpd\"", path, strerror(-r));
	case -EACCES:
		return ndpi_fail(err, r, "%s: no right to talk to ndpd: join the group that owns the "
				 "socket, usually ndp", path);
	default:
		return ndpi_fail(err, r, "%s: cannot be connected to: %s", path, strerror(-r));
	}
}

static int send_hello(struct ndp_attachment *a, int fd, struct ndp_error *err)
{
	int fds[NDPI_MAX_FDS], r;
	size_t nr_fds = 0;

	fds[nr_fds++] = a->ring_fd;
	if (a->hello.flags & NDP_HELLO_PLACEMENT)
		fds[nr_fds++] = a->placement_fd;
	if (a->hello.flags & NDP_HELLO_PAGE)
		fds[nr_fds++] = a->page_fd;
	r = ndpi_send_fds(fd, &a->hello, sizeof(a->hello), fds, nr_fds);
	/* Who refuses without having listened has said why: EPIPE is not the last word. */
	return r < 0 && r != -EPIPE ?
		ndpi_fail(err, r, "ndpd takes no message: %s", strerror(-r)) : 0;
}

union answer {
	struct ndp_msg head;
	struct ndp_msg_welcome welcome;
	struct ndp_msg_error error;
};

/* One message and at most one descriptor; waits for it. */
static int receive(struct ndp_attachment *a, int fd, union answer *m, int *page_fd,
		   struct ndp_error *err)
{
	struct pollfd polled[2] = { { .fd = fd, .events = POLLIN },
				    { .fd = a->wake, .events = POLLIN } };
	struct iovec iov = { m, sizeof(*m) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(sizeof(int)), /* for one and no more */
	};
	struct cmsghdr *c;
	ssize_t n;
	int r;

	*page_fd = -1;
	do {
		r = poll(polled, 2, ANSWER_MS);
	} while (r < 0 && errno == EINTR);
	if (r == 0)
		return ndpi_fail(err, -ETIMEDOUT, "ndpd does not answer within %d s",
				 ANSWER_MS / 1000);
	if (polled[1].revents)
		return ndpi_fail(err, -ECANCELED, "the application detaches");
	n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == ECONNRESET) /* comes before what was said, once */
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return ndpi_fail(err, n < 0 ? -errno : -ECONNRESET, "ndpd ended the connection");
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(page_fd, CMSG_DATA(c), sizeof(*page_fd));
	if ((size_t)n < sizeof(m->head) || (size_t)n != m->head.bytes)
		return ndpi_fail(err, -EPROTO, "ndpd sent %zd bytes that are no message", n);
	return 0;
}

/* Puts the page that came in the place of the old one. */
static int take_page(struct ndp_attachment *a, int page_fd, struct ndp_error *err)
{
	const int seals = fcntl(page_fd, F_GET_SEALS);
	struct ndp_page *page;
	struct stat st;
	bool right;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(page_fd, &st) < 0 ||
	    (size_t)st.st_size < a->page_bytes)
		return ndpi_fail(err, -EPROTO, "ndpd sent a page that may shrink, or is too small");
	page = mmap(NULL, a->page_bytes, PROT_READ, MAP_SHARED, page_fd, 0);
	if (page == MAP_FAILED)
		return ndpi_fail(err, -errno, "ndpd's page cannot be mapped: %s", strerror(errno));
	right = page->magic == NDP_PAGE_MAGIC && page->version == NDP_DAEMON_VERSION &&
		page->layers == a->hello.layers && page->experts == a->hello.experts &&
		page->layer_bytes == ndp_page_layer_bytes(a->hello.experts);
	munmap(page, a->page_bytes);
	if (!right)
		return ndpi_fail(err, -EPROTO, "ndpd's page is of another version or model");
	__atomic_add_fetch(&a->epoch, 1, __ATOMIC_SEQ_CST);
	page = mmap((void *)a->page, a->page_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, page_fd, 0);
	__atomic_add_fetch(&a->epoch, 1, __ATOMIC_SEQ_CST);
	if (page == MAP_FAILED)
		return ndpi_fail(err, -errno, "ndpd's page cannot be mapped: %s", strerror(errno));
	return 0;
}

static int introduce(struct ndp_attachment *a, int fd, struct ndp_msg_welcome *welcome,
		     struct ndp_error *err)
{
	union answer m;
	int page_fd = -1;
	int r = send_hello(a, fd, err);

	if (r == 0)
		r = receive(a, fd, &m, &page_fd, err);
	if (r < 0) {
		if (page_fd >= 0)
			close(page_fd);
		return r;
	}
	if (m.head.type == NDP_MSG_ERROR && m.head.bytes == sizeof(m.error)) {
		m.error.message[sizeof(m.error.message) - 1] = '\0';
		r = ndpi_fail(err, m.error.code < 0 ? m.error.code : -EPROTO, "ndpd: %s",
			      m.error.message);
	} else if (m.head.type == NDP_MSG_WELCOME && m.head.bytes == sizeof(m.welcome) &&
		   page_fd >= 0) {
		*welcome = m.welcome;
		r = take_page(a, page_fd, err);
	} else {
		r = ndpi_fail(err, -EPROTO, "ndpd sent message %u where a welcome was wanted",
			      m.head.type);
	}
	if (r == 0) {
		/* The next ndpd is shown what this one published. */
		if (a->page_fd >= 0)
			close(a->page_fd);
		a->page_fd = page_fd;
		a->hello.flags |= NDP_HELLO_PAGE;
	} else if (page_fd >= 0) {
		close(page_fd);
	}
	return r;
}

int ndpi_attach_connect(struct ndp_attachment *a, struct ndp_error *err)
{
	struct ndp_msg_welcome welcome = { 0 };
	struct ndp_error why = { 0 };
	int fd;
	int r = open_socket(a, &fd, &why);

	if (r == 0) {
		r = introduce(a, fd, &welcome, &why);
		if (r < 0)
			close(fd);
	}
	pthread_mutex_lock(&a->lock);
	if (r == 0) {
		a->socket = fd;
		a->state.attached = true;
		a->state.dry_run = welcome.dry_run;
		a->state.attaches++;
	}
	a->state.last_error = why;
	pthread_mutex_unlock(&a->lock);
	if (err && r < 0)
		*err = why;
	return r;
}

static void lost(struct ndp_attachment *a)
{
	close(a->socket);
	a->socket = -1;
	pthread_mutex_lock(&a->lock);
	a->state.attached = false;
	ndpi_fail(&a->state.last_error, -ECONNRESET, "ndpd ended the connection");
	pthread_mutex_unlock(&a->lock);
}

/* ndpd says nothing after its welcome: whatever comes is the end. */
void *ndpi_attach_keep(void *attachment)
{
	struct ndp_attachment *a = attachment;
	int retry_ms = RETRY_FIRST_MS;

	for (;;) {
		struct pollfd polled[2] = { { .fd = a->wake, .events = POLLIN },
					    { .fd = a->socket, .events = POLLIN } };

		if (poll(polled, a->socket >= 0 ? 2 : 1, a->socket >= 0 ? -1 : retry_ms) < 0 &&
		    errno != EINTR)
			return NULL;
		if (polled[0].revents)
			return NULL;
		if (a->socket >= 0) {
			if (polled[1].revents)
				lost(a);
			continue;
		}
		if (ndpi_attach_connect(a, NULL) == 0)
			retry_ms = RETRY_FIRST_MS;
		else if (retry_ms < RETRY_MOST_MS)
			retry_ms *= 2;
	}
}
