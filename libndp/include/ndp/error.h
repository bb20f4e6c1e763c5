/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * error.h - a sentence that goes with an errno.
 */
#ifndef NDP_ERROR_H
#define NDP_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_error {
	int code;		/* negative errno, 0: nothing was put here */
	char message[500];	/* one line without a newline */
};

#ifdef __cplusplus
}
#endif

#endif
