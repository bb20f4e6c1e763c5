// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * log.c - one line for one event: to the journal when it listens, else to stderr.
 * Strings that came from a client are printable by the time they get here.
 */
#include "ndpd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* stderr is the journal's: it understands priorities in front of a line. */
static bool to_journal(void)
{
	return getenv("JOURNAL_STREAM") != NULL;
}

static void put(int priority, const char *about, const char *fmt, va_list ap)
{
	char line[1024];

	if (priority >= LOG_DEBUG && !getenv("NDPD_DEBUG"))
		return;
	vsnprintf(line, sizeof(line), fmt, ap);
	if (to_journal())
		fprintf(stderr, "<%d>%s%s\n", priority, about, line);
	else
		fprintf(stderr, "ndpd: %s%s\n", about, line);
}

void ndpd_log(int priority, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put(priority, "", fmt, ap);
	va_end(ap);
}

void client_log(const struct client *c, int priority, const char *fmt, ...)
{
	char about[128];
	va_list ap;

	snprintf(about, sizeof(about), "client %u (%s, pid %d): ", c->number,
		 c->name[0] ? c->name : "?", (int)c->pid);
	va_start(ap, fmt);
	put(priority, about, fmt, ap);
	va_end(ap);
}
