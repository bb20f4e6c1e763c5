/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * error.h - sentences for people, beside the errno for programs.  For device/ and
 * moe/; not exported.
 */
#ifndef NDPI_ERROR_H
#define NDPI_ERROR_H

#include <ndp/error.h>

/*
 * Puts a sentence into @err (may be NULL) and returns @code.  Control characters,
 * which files and arguments may have brought, become '?'.
 */
int ndpi_fail(struct ndp_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
