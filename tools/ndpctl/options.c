// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * options.c - the options of all commands: one table, of which a command knows those
 * that its letters name.
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_DELAY_S 0.1
#define MAX_DELAY_S 3600

static const struct {
	char letter;		/* in struct command */
	char brief;		/* on the command line; 0: none */
	const char *name;
	int has_value;
} known[] = {
	{ 'D', 0, "device", required_argument },
	{ 'u', 'u', "human", no_argument },
	{ 'j', 'j', "json", no_argument },
	{ 'c', 'c', "clients", no_argument },
	{ 'o', '1', "once", no_argument },
	{ 'd', 'd', "delay", required_argument },
	{ 's', 0, "socket", required_argument },
	{ 'C', 0, "client", required_argument },
	{ 'e', 0, "expert", required_argument },
	{ 't', 0, "to", required_argument },
	{ 'w', 'w', "wait", no_argument },
	{ 'O', 0, "output", required_argument },
	{ 'f', 0, "config", required_argument },
	{ 'h', 'h', "help", no_argument },
};

enum { NR_KNOWN = sizeof(known) / sizeof(known[0]) };

static int parse_u32(uint32_t *v, const char *text, const char **end)
{
	unsigned long n;
	char *stop;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoul(text, &stop, 10);
	if (errno || n > UINT32_MAX)
		return -EINVAL;
	*v = (uint32_t)n;
	*end = stop;
	return 0;
}

/* "0:3" or "0:3,0:4" */
static int add_experts(struct options *o, const char *text, struct ndp_error *err)
{
	const char *at = text;

	for (;;) {
		struct expert_name e;

		if (parse_u32(&e.layer, at, &at) < 0 || *at != ':' ||
		    parse_u32(&e.expert, at + 1, &at) < 0 || (*at && *at != ','))
			return fail(err, -EINVAL, "--expert wants LAYER:EXPERT, like 0:3, not '%s'",
				    text);
		if (o->nr_experts == MAX_EXPERTS)
			return fail(err, -EINVAL, "at most %d experts move at once: order the rest "
				    "afterwards", MAX_EXPERTS);
		o->experts[o->nr_experts++] = e;
		if (!*at)
			return 0;
		at++;
	}
}

static int take(struct options *o, char letter, char *value, struct ndp_error *err)
{
	const char *end;
	char *stop;

	switch (letter) {
	case 'D':
		o->device = value;
		break;
	case 'u':
		o->human = true;
		break;
	case 'j':
		o->json = true;
		break;
	case 'c':
		o->clients = true;
		break;
	case 'o':
		o->once = true;
		break;
	case 'd':
		o->delay_s = strtod(value, &stop);
		if (stop == value || *stop || !isfinite(o->delay_s) || o->delay_s < MIN_DELAY_S ||
		    o->delay_s > MAX_DELAY_S)
			return fail(err, -EINVAL, "--delay wants seconds from %.1f to %d, not '%s'",
				    MIN_DELAY_S, MAX_DELAY_S, value);
		break;
	case 's':
		roots.socket = value;
		break;
	case 'C':
		if (parse_u32(&o->client, value, &end) < 0 || *end)
			return fail(err, -EINVAL, "--client wants a number out of \"ndpctl list "
				    "--clients\", not '%s'", value);
		o->has_client = true;
		break;
	case 'e':
		return add_experts(o, value, err);
	case 't':
		o->to = value;
		break;
	case 'w':
		o->wait = true;
		break;
	case 'O':
		o->output = value;
		break;
	case 'f':
		roots.config = value;
		break;
	default:
		o->help = true;
		break;
	}
	return 0;
}

/* What getopt_long() complained about, in our words. */
static int explain(const struct command *c, int what, char **argv, struct ndp_error *err)
{
	const char *word = argv[optind - 1];

	if (what == ':')
		return fail(err, -EINVAL, "%s wants a value; see ndpctl %s --help", word, c->name);
	if (optopt && optopt < 256 && strncmp(word, "--", 2))
		return fail(err, -EINVAL, "ndpctl %s has no option '-%c'; see ndpctl %s --help",
			    c->name, optopt, c->name);
	return fail(err, -EINVAL, "ndpctl %s has no option '%s', or it takes no value; see ndpctl "
		    "%s --help", c->name, word, c->name);
}

static int check(struct options *o, const struct command *c, struct ndp_error *err)
{
	if (o->human && o->json)
		return fail(err, -EINVAL, "--human and --json: one of them is wanted");
	if (c->json_default && !o->human)
		o->json = true;
	if (o->device && c->max_rest == 1 && o->nr_rest)
		return fail(err, -EINVAL, "the device is there twice: '%s' and '%s'", o->device,
			    o->rest[0]);
	if (o->nr_rest < c->min_rest && !(o->device && c->max_rest == 1))
		return fail(err, -EINVAL, "ndpctl %s wants more: %s", c->name, c->usage);
	if (c->max_rest >= 0 && o->nr_rest > c->max_rest)
		return fail(err, -EINVAL, "ndpctl %s does not know what to do with '%s'; see "
			    "ndpctl %s --help", c->name, o->rest[c->max_rest], c->name);
	if (c->max_rest == 1 && o->nr_rest)
		o->device = o->rest[0];
	return 0;
}

int options_parse(struct options *o, const struct command *c, int argc, char **argv,
		  struct ndp_error *err)
{
	struct option longs[NR_KNOWN + 1] = { 0 };
	char shorts[3 * NR_KNOWN + 3] = ":";
	int n = 0, r = 0, what;

	*o = (struct options){ .delay_s = 1 };
	/* What follows a command to be run is its own. */
	if (!strcmp(c->name, "stat"))
		strcpy(shorts, "+:");
	for (int i = 0; i < NR_KNOWN; i++) {
		if (known[i].letter != 'h' && !strchr(c->letters, known[i].letter))
			continue;
		longs[n++] = (struct option){ known[i].name, known[i].has_value, NULL,
					      256 + known[i].letter };
		if (known[i].brief) {
			strncat(shorts, &known[i].brief, 1);
			if (known[i].has_value)
				strcat(shorts, ":");
		}
	}
	opterr = 0;
	optind = 0; /* glibc: all anew, for tests that come here twice */
	while (r == 0 && (what = getopt_long(argc, argv, shorts, longs, NULL)) >= 0) {
		if (what == '?' || what == ':')
			return explain(c, what, argv, err);
		for (int i = 0; what < 256 && i < NR_KNOWN; i++)
			if (known[i].brief == what)
				what = 256 + known[i].letter;
		r = take(o, (char)(what - 256), optarg, err);
	}
	if (r < 0)
		return r;
	o->rest = argv + optind;
	o->nr_rest = argc - optind;
	if (o->help)
		return 0;
	/* "--expert 0:3 0:4" */
	if (strchr(c->letters, 'e')) {
		for (; r == 0 && o->nr_rest; o->rest++, o->nr_rest--)
			r = add_experts(o, o->rest[0], err);
		if (r < 0)
			return r;
	}
	return check(o, c, err);
}
