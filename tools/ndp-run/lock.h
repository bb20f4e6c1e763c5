/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * lock.h - the exclusive lock of a device node.
 *
 * Tools that must not meet on a device (a reset, a measurement) take flock(2) on
 * its node.  It binds only those who ask for it.
 */
#ifndef NDP_RUN_LOCK_H
#define NDP_RUN_LOCK_H

#include <ndp/error.h>
#include <stdbool.h>

/*
 * Locks @path, which must exist; waits for another holder, saying so on stderr
 * unless @quiet.  Returns a file descriptor that holds the lock until it is
 * closed, or -errno: -EINTR when a signal arrived.
 */
int lock_take(const char *path, bool quiet, struct ndp_error *err);

/* The same without waiting: -EBUSY when another process holds it. */
int lock_try(const char *path, struct ndp_error *err);

#endif
