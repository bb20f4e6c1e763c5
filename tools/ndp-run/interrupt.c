// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * interrupt.c - see interrupt.h.
 *
 * Main program and library wait in system calls that may not return soon: a
 * lock, a DIMM that hangs (the driver gives it 30 s).  Checking a flag is not
 * enough then, so the handler also starts a timer whose signal ends the process.
 * Memory of a DIMM that is unplugged, and of a file that is truncated, raises
 * SIGBUS at the next access: there is no way back, but there is something to say.
 * Handlers call async-signal-safe functions only (signal-safety(7)).
 */
#include "interrupt.h"
#include "error.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS 800000000L

static volatile sig_atomic_t arrived;
static volatile sig_atomic_t want_json;
static const char *volatile lost_message = "mapped memory went away";
static volatile sig_atomic_t lost_status = 1;
static timer_t grace;

static void write_all(int fd, const char *text)
{
	size_t n = strlen(text);

	while (n > 0) {
		ssize_t w = write(fd, text, n);

		if (w <= 0)
			return;
		text += w;
		n -= w;
	}
}

static void on_signal(int sig)
{
	const struct itimerspec after = { .it_value = { .tv_nsec = GRACE_NS } };
	int saved = errno;

	if (!arrived) {
		arrived = sig;
		timer_settime(grace, 0, &after, NULL);
	}
	errno = saved;
}

static void write_json(const char *code, const char *message)
{
	if (!want_json)
		return;
	write_all(STDOUT_FILENO, "{\"error\": {\"code\": \"");
	write_all(STDOUT_FILENO, code);
	write_all(STDOUT_FILENO, "\", \"message\": \"");
	write_all(STDOUT_FILENO, message);
	write_all(STDOUT_FILENO, "\"}}\n");
}

static void on_grace_over(int sig)
{
	(void)sig;
	write_json("EINTR", "interrupted");
	write_all(STDERR_FILENO, program_invocation_short_name);
	write_all(STDERR_FILENO, ": interrupted; what was still under way is left to the "
				 "kernel\n");
	_exit(128 + arrived);
}

static void on_lost_memory(int sig)
{
	(void)sig;
	write_json("ENODEV", lost_message);
	write_all(STDERR_FILENO, program_invocation_short_name);
	write_all(STDERR_FILENO, ": ");
	write_all(STDERR_FILENO, lost_message);
	write_all(STDERR_FILENO, "\n");
	_exit(lost_status);
}

int interrupt_setup(bool json, struct ndp_error *err)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct sigaction sa = { .sa_handler = on_grace_over };

	want_json = json;
	if (timer_create(CLOCK_MONOTONIC, &event, &grace) < 0)
		return fail(err, -errno, "no timer: %s", strerror(errno));
	sigemptyset(&sa.sa_mask);
	sigaction(SIGALRM, &sa, NULL);
	sa.sa_handler = on_signal;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	return 0;
}

void interrupt_on_lost_memory(int status, const char *message)
{
	struct sigaction sa = { .sa_handler = on_lost_memory };

	lost_status = status;
	lost_message = message;
	sigemptyset(&sa.sa_mask);
	sigaction(SIGBUS, &sa, NULL);
}

void interrupt_mute(void)
{
	want_json = 0;
}

int interrupt_check(struct ndp_error *err)
{
	return arrived ? fail(err, -EINTR, "interrupted") : 0;
}

int interrupt_status(void)
{
	return 128 + arrived;
}
