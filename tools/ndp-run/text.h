/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * text.h - bytes, tokens and what may be shown of them.
 *
 * A token is a byte for models with a vocabulary of 256, the only ones that this
 * program can turn into text.
 */
#ifndef NDP_RUN_TEXT_H
#define NDP_RUN_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TEXT_VOCAB 256

/*
 * UTF-8 out of any bytes: what is no UTF-8, and NUL, becomes U+FFFD.  To be
 * freed; NULL when memory is short.
 */
char *text_utf8(const uint32_t *tokens, size_t n);

/* The same in quotes with \n, \t, \" and \\ and other controls escaped, one line. */
void text_print_quoted(FILE *f, const uint32_t *tokens, size_t n);

/*
 * A token as it is; on a terminal controls other than newline and tab become
 * U+FFFD, so that no model can send escape sequences.
 */
void text_put(FILE *f, uint32_t token, int terminal);

#endif
