// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndp-bench: measures the domains that compute experts, a whole layer, and
 * loading, each beside its limit on this machine.  docs/man/ndp-bench.1 describes it.
 *
 * Standard output is text or one JSON document; what goes wrong is one line on
 * standard error.
 */
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool json;

static const struct {
	const char *name;
	bench_command run;
	const char *what;
} commands[] = {
	{ "cpu", bench_cpu, "expert FFNs on the CPU, against other libraries" },
	{ "gpu", bench_gpu, "expert FFNs on a GPU, resident and missing" },
	{ "ndp", bench_ndp, "commands on NDP DIMMs: overhead, FFN, modelled beside wall" },
	{ "layer", bench_layer, "whole layers over the domains; with --predict against a profile" },
	{ "load", bench_load, "packing a model" },
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void __attribute__((noreturn)) give_up(int status, const char *format, va_list ap)
{
	char text[1024];

	vsnprintf(text, sizeof(text), format, ap);
	fflush(stdout);
	fprintf(stderr, "ndp-bench: %s\n", text);
	if (json)
		report_error_json(text);
	exit(status);
}

void bench_die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	give_up(BENCH_FAILED, format, ap);
}

void bench_usage(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	give_up(BENCH_USAGE, format, ap);
}

void bench_help(const char *text)
{
	fputs(text, stdout);
	exit(fflush(stdout) ? BENCH_FAILED : BENCH_OK);
}

/* Decimal digits up to @end. */
static bool parse(const char *text, const char *end, uint64_t *value)
{
	*value = 0;
	if (text == end || end - text > 18)
		return false;
	for (; text < end; text++) {
		if (*text < '0' || *text > '9')
			return false;
		*value = *value * 10 + (uint64_t)(*text - '0');
	}
	return true;
}

uint64_t bench_number(const char *option, const char *text, uint64_t min, uint64_t max)
{
	uint64_t value;

	if (!parse(text, text + strlen(text), &value) || value < min || value > max)
		bench_usage("%s wants a number from %llu to %llu, not '%.40s'", option,
			    (unsigned long long)min, (unsigned long long)max, text);
	return value;
}

unsigned int bench_numbers(const char *option, const char *text, uint32_t *list,
			   unsigned int max, uint32_t low, uint32_t high)
{
	unsigned int n = 0;

	for (const char *at = text;; at++) {
		const char *end = at + strcspn(at, ",");
		uint64_t value;

		if (!parse(at, end, &value) || value < low || value > high)
			bench_usage("%s wants numbers from %u to %u, divided by commas, not "
				    "'%.80s'", option, low, high, text);
		if (n == max)
			bench_usage("%s takes at most %u numbers", option, max);
		list[n++] = (uint32_t)value;
		at = end;
		if (!*at)
			return n;
	}
}

static void help(FILE *f)
{
	fputs("Usage: ndp-bench COMMAND [--json] [OPTION]...\n\nMeasures, with wall time and its "
	      "limit beside; modelled times are named so.\n\n", f);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-7s %s\n", commands[i].name, commands[i].what);
	fputs("\n  COMMAND --help   options of a command\n"
	      "  --json           one JSON document instead of text\n\n"
	      "Status: 0 done, 1 a bar does not hold, 2 wrong usage, 3 something failed.\n", f);
}

/* Takes @word out of the arguments. */
static bool take(int *argc, char **argv, const char *word)
{
	bool found = false;
	int n = 0;

	for (int i = 0; i < *argc; i++) {
		if (i && !strcmp(argv[i], word))
			found = true;
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	*argc = n;
	return found;
}

/* "--name" or "--name=value" */
static bool has_option(int argc, char **argv, const char *name)
{
	size_t n = strlen(name);

	for (int i = 2; i < argc; i++)
		if (!strncmp(argv[i], name, n) && (!argv[i][n] || argv[i][n] == '='))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	json = take(&argc, argv, "--json");
	if (argc < 2) {
		help(stderr);
		return BENCH_USAGE;
	}
	if (!strcmp(argv[1], "--help")) {
		help(stdout);
		return BENCH_OK;
	}
	for (size_t i = 0; i < COMMANDS; i++) {
		struct bench_report *rep;
		int status, end;
		bench_command run = commands[i].run;

		if (strcmp(argv[1], commands[i].name))
			continue;
		if (!strcmp(argv[1], "layer") && has_option(argc, argv, "--predict"))
			run = bench_layer_predict;
		rep = report_start(argc, argv, json);
		status = run(argc - 1, argv + 1, rep);
		end = report_end(rep);
		return status > end ? status : end;
	}
	bench_usage("there is no command '%.40s'; ndp-bench --help lists them", argv[1]);
}
