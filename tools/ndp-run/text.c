// SPDX-License-Identifier: GPL-2.0-or-later
/* text.c - see text.h. */
#include "text.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Length of the UTF-8 sequence that begins at @t, 0: none does (RFC 3629). */
static size_t sequence(const uint32_t *t, size_t n)
{
	uint32_t c = t[0];
	uint32_t low = 0x80;
	uint32_t high = 0xbf;
	size_t len;

	if (c > 0 && c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf)
		len = 2;
	else if (c >= 0xe0 && c <= 0xef)
		len = 3;
	else if (c >= 0xf0 && c <= 0xf4)
		len = 4;
	else
		return 0;
	if (n < len)
		return 0;
	/* No overlong forms, no surrogates, nothing above U+10FFFF. */
	if (c == 0xe0)
		low = 0xa0;
	else if (c == 0xed)
		high = 0x9f;
	else if (c == 0xf0)
		low = 0x90;
	else if (c == 0xf4)
		high = 0x8f;
	if (t[1] < low || t[1] > high)
		return 0;
	for (size_t i = 2; i < len; i++)
		if (t[i] < 0x80 || t[i] > 0xbf)
			return 0;
	return len;
}

char *text_utf8(const uint32_t *tokens, size_t n)
{
	char *text = malloc(3 * n + 1);
	char *p = text;

	if (!text)
		return NULL;
	for (size_t i = 0; i < n;) {
		size_t len = sequence(tokens + i, n - i);

		if (len == 0) {
			p = stpcpy(p, REPLACEMENT);
			i++;
		}
		while (len--)
			*p++ = tokens[i++];
	}
	*p = '\0';
	return text;
}

void text_print_quoted(FILE *f, const uint32_t *tokens, size_t n)
{
	fputc('"', f);
	for (size_t i = 0; i < n;) {
		size_t len = sequence(tokens + i, n - i);
		uint32_t c = tokens[i];

		if (c == '\n' || c == '\t' || c == '"' || c == '\\') {
			fprintf(f, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : (int)c);
			i++;
		} else if (len == 0 || c < 0x20 || c == 0x7f) {
			fprintf(f, "\\x%02x", c);
			i++;
		} else {
			while (len--)
				fputc(tokens[i++], f);
		}
	}
	fputc('"', f);
}

void text_put(FILE *f, uint32_t token, int terminal)
{
	int control = token < 0x20 || token == 0x7f;

	if (terminal && control && token != '\n' && token != '\t')
		fputs(REPLACEMENT, f);
	else
		fputc(token, f);
}
