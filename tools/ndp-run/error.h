/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * error.h - one sentence for an error: what was wanted, what was found, what to do.
 */
#ifndef NDP_RUN_ERROR_H
#define NDP_RUN_ERROR_H

#include <ndp/error.h>

/*
 * Puts @code (a negative errno) and a sentence into @err and returns @code.
 * Control characters, which files and arguments may have brought, become '?'.
 */
int fail(struct ndp_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
