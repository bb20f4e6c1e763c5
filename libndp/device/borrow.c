/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * borrow.c - the holder's side of placement fds: of the kernel's, by ioctl, and of
 * in-process devices', by packets (lend.h).
 *
 * Whoever lends may be hostile: nothing it sends is used as an index or a count
 * unchecked, and no call waits longer than LEND_TIMEOUT_S for an answer.
 */
#include "../passing.h"
#include "internal.h"
#include "kernel.h"
#include "lend.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define LEND_TIMEOUT_S 30
#define MAX_NEWS 64 /* an honest lender sends one before each list */

static bool is_socket(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Sends @req with the descriptor that the answer is to come on. */
static int send_request(int fd, const struct lend_request *req, int reply_fd)
{
	const int r = ndpi_send_fds(fd, req, sizeof(*req), &reply_fd, 1);

	switch (r) {
	case -EPIPE:
	case -ECONNRESET:
	case -ENOTCONN:
		return -ENODEV;
	case -EMSGSIZE:
	case -EDESTADDRREQ:
	case -EOPNOTSUPP:
		return -ENOTTY; /* some other socket */
	default:
		return r; /* -EAGAIN: the lender does not read */
	}
}

static int receive_reply(int fd, struct lend_reply *reply)
{
	const struct timeval limit = { .tv_sec = LEND_TIMEOUT_S };
	ssize_t n;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	do {
		n = recv(fd, reply, sizeof(*reply), MSG_TRUNC);
	} while (n < 0 && errno == EINTR);
	if (n == 0 || (n < 0 && errno == ECONNRESET))
		return -ENODEV;
	if (n < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	if (n != sizeof(*reply) || reply->res < -4095 || reply->res > 0)
		return -EPROTO;
	return reply->res;
}

static int ask(int fd, const struct lend_request *req, struct lend_reply *reply)
{
	int pair[2];
	int r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	r = send_request(fd, req, pair[1]);
	close(pair[1]);
	if (r == 0)
		r = receive_reply(pair[0], reply);
	close(pair[0]);
	return r;
}

static int borrowed_list(int fd, uint64_t *start, struct ndp_placement_entry *entries, size_t max)
{
	const struct lend_request req = {
		.op = LEND_LIST,
		.nr_ranges = max < LEND_ENTRIES ? (uint32_t)max : LEND_ENTRIES,
		.id = *start,
	};
	struct lend_reply reply;
	char news;
	int r;

	/* What is listed from the beginning is no news any more. */
	for (int i = 0; *start == 0 && i < MAX_NEWS; i++)
		if (recv(fd, &news, sizeof(news), MSG_DONTWAIT) != 1)
			break;
	r = ask(fd, &req, &reply);
	if (r < 0)
		return r;
	if (reply.nr > req.nr_ranges)
		return -EPROTO;
	if (reply.nr)
		memcpy(entries, reply.entries, reply.nr * sizeof(*entries));
	*start = reply.next;
	return (int)reply.nr;
}

int ndp_placement_list(int fd, uint64_t *start, struct ndp_placement_entry *entries, size_t max)
{
	return is_socket(fd) ? borrowed_list(fd, start, entries, max) :
			       ndpi_kernel_placement_list(fd, start, entries, max);
}

int ndp_placement_get(int fd, uint64_t id, struct ndp_placement *placement)
{
	const struct lend_request req = { .op = LEND_GET, .id = id };
	struct lend_reply reply;
	int r;

	if (!is_socket(fd))
		return ndpi_kernel_placement_get(fd, id, placement);
	r = ask(fd, &req, &reply);
	if (r < 0)
		return r;
	if (reply.nr == 0 || reply.nr > NDP_MAX_RANGES)
		return -EPROTO;
	placement->nr_ranges = reply.nr;
	memcpy(placement->ranges, reply.ranges, sizeof(placement->ranges));
	return 0;
}

int ndp_placement_migrate(int fd, uint64_t id, const struct ndp_placement *to,
			  struct ndp_move *move)
{
	struct lend_request req = { .op = LEND_MIGRATE, .id = id, .nr_ranges = to->nr_ranges };
	struct lend_reply reply;
	int r;

	if (!is_socket(fd))
		return ndpi_kernel_placement_migrate(fd, id, to, move);
	if (to->nr_ranges == 0 || to->nr_ranges > NDP_MAX_RANGES)
		return -EINVAL;
	memcpy(req.ranges, to->ranges, to->nr_ranges * sizeof(req.ranges[0]));
	r = ask(fd, &req, &reply);
	if (r == 0 && move)
		*move = reply.move;
	return r;
}

int ndp_placement_dimm_info(int fd, uint32_t dimm, struct ndp_dimm_info *info)
{
	const struct lend_request req = { .op = LEND_DIMM, .id = dimm };
	struct lend_reply reply;
	int r;

	if (!is_socket(fd))
		return -EOPNOTSUPP;
	r = ask(fd, &req, &reply);
	if (r == 0)
		*info = reply.dimm;
	return r;
}
