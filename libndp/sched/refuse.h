/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* refuse.h - a sentence for people beside -EINVAL. */
#ifndef NDP_SCHED_REFUSE_H
#define NDP_SCHED_REFUSE_H

#include <ndp/error.h>

/* Puts the sentence into @err (may be NULL) and returns -EINVAL. */
int ndpi_refuse(struct ndp_error *err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
