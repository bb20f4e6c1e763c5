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

int lock_take(const char *path, bool quiet, struct ndp_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int r = 0;

	if (fd < 0)
		return fail(err, -errno, "%s: cannot be opened for --lock: %s", path,
			    strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	if (errno == EWOULDBLOCK && !quiet)
		fprintf(stderr,
			"ndp-run: waiting for the lock of %s, which another process holds\n", path);
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
