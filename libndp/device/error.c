/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * error.c - sentences for people, beside the errno for programs.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

void ndpi_error_clear(struct ndp_error *err)
{
	if (!err)
		return;
	err->code = 0;
	err->message[0] = '\0';
}

const char *ndpi_dimm_error(int r)
{
	switch (r) {
	case -ETIMEDOUT:
		return "a DIMM hung and was reset";
	case -ECANCELED:
		return "a DIMM was reset meanwhile";
	case -ENODEV:
		return "a DIMM is gone";
	case -EIO:
		return "a DIMM failed";
	case -ENOLINK:
		return "the DIMM-Link between two DIMMs is down";
	default:
		return strerror(-r);
	}
}
