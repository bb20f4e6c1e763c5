// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * error.c - see error.h.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int ndpi_fail(struct ndp_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	for (char *c = err->message; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return code;
}
