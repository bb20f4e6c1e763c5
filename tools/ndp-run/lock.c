// SPDX-License-Identifier: GPL-2.0-or-later
/* lock.c - see lock.h. */
#include "lock.h"
#include "error.h"
#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int open_node(const char *path, struct ndp_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? fail(err, -errno, "%s: cannot be opened for its lock: %s", path,
			     strerror(errno)) : fd;
}

int lock_try(const char *path, struct ndp_error *err)
{
	int fd = open_node(path, err);
	int r;

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	r = errno == EWOULDBLOCK ?
		fail(err, -EBUSY, "%s: another process holds its lock", path) :
		fail(err, -errno, "%s: cannot be locked: %s", path, strerror(errno));
	close(fd);
	return r;
}

int lock_take(const char *path, bool quiet, struct ndp_error *err)
{
	int fd = open_node(path, err);
	int r = 0;

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	if (errno == EWOULDBLOCK && !quiet)
		fprintf(stderr, "%s: waiting for the lock of %s, which another process holds\n",
			program_invocation_short_name, path);
	/*
	 * A signal between the check and the call is not lost: the timer that its
	 * handler started ends the process.
	 */
	while ((r = interrupt_check(err)) == 0 && flock(fd, LOCK_EX) < 0) {
		if (errno != EINTR) {
			r = fail(err, -errno, "%s: cannot be locked: %s", path, strerror(errno));
			break;
		}
	}
	if (r < 0) {
		close(fd);
		return r;
	}
	return fd;
}
