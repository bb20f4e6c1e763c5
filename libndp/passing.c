// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * passing.c - see passing.h.
 */
#include "passing.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int ndpi_send_fds(int socket, const void *message, size_t bytes, const int *fds, size_t nr_fds)
{
	struct iovec iov = { (void *)message, bytes };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(NDPI_MAX_FDS * sizeof(int))];
	} control = { 0 };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int)),
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	ssize_t n;

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(nr_fds * sizeof(int));
	memcpy(CMSG_DATA(c), fds, nr_fds * sizeof(int));
	n = sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return -errno;
	return (size_t)n == bytes ? 0 : -EMSGSIZE;
}
