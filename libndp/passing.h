/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * passing.h - messages with descriptors, over Unix sockets.  For device/ and attach/; not
 * exported.
 */
#ifndef NDPI_PASSING_H
#define NDPI_PASSING_H

#include <stddef.h>

enum { NDPI_MAX_FDS = 3 };

/*
 * One packet of @bytes with @nr_fds (1..NDPI_MAX_FDS) descriptors, whole or not at all,
 * without waiting and without SIGPIPE.  0 or -errno.
 */
int ndpi_send_fds(int socket, const void *message, size_t bytes, const int *fds, size_t nr_fds);

#endif
