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

/*
 * What clients do may be logged so often and no more: the journal drops what one
 * service says too fast, and with it what matters.
 */
static bool may_log(uint32_t *left_out)
{
	enum { WINDOW_NS = 1000000000, LINES = 200 };
	static uint64_t since_ns;
	static uint32_t lines, silent;
	const uint64_t now_ns = ndpd_now_ns();

	*left_out = 0;
	if (!since_ns || now_ns - since_ns > WINDOW_NS) {
		*left_out = silent;
		since_ns = now_ns;
		lines = silent = 0;
	}
	if (lines == LINES) {
		silent++;
		return false;
	}
	lines++;
	return true;
}

void client_log(const struct client *c, int priority, const char *fmt, ...)
{
	char about[128];
	uint32_t left_out;
	va_list ap;

	if ((priority >= LOG_DEBUG && !getenv("NDPD_DEBUG")) || !may_log(&left_out))
		return;
	if (left_out)
		ndpd_log(LOG_WARNING, "%u lines about clients were left out", left_out);
	snprintf(about, sizeof(about), "client %u (%s, pid %d): ", c->number,
		 c->name[0] ? c->name : "?", (int)c->pid);
	va_start(ap, fmt);
	put(priority, about, fmt, ap);
	va_end(ap);
}
