// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndpctl: NDP DIMMs, and the experts that ndpd places on them, for people who
 * run them.
 *
 * What went wrong is one line on standard error; where JSON is wanted it is also the
 * document.  SIGINT ends every command within a second (ndp-run/interrupt.h).
 */
#include "ndpctl.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct command commands[] = {
	{ "list", "devices and DIMMs there are, or the clients of ndpd",
	  "ndpctl list [--device DEVICE | --clients [--socket PATH]] [--human | --json]",
	  "Dcsuj", true, 0, 0,
	  cmd_list },
	{ "info", "all that is known of a device and its DIMMs",
	  "ndpctl info [DEVICE] [--human | --json]",
	  "Duj", true, 0, 1, cmd_info },
	{ "topology", "DIMM-Link and NUMA nodes of a device",
	  "ndpctl topology [DEVICE] [--human | --json]", "Duj", true, 0, 1, cmd_topology },
	{ "stat", "what DIMMs did while a command ran",
	  "ndpctl stat [--device DEVICE] [--json] [--output FILE] -- COMMAND [ARGUMENT]...", "DjO",
	  false, 1, -1, cmd_stat },
	{ "top", "DIMMs, links, models and migrations, live",
	  "ndpctl top [--delay SECONDS] [--device DEVICE] [--socket PATH] [--once [--json]]",
	  "Ddsoj", false, 0, 0, cmd_top },
	{ "migrate", "have ndpd move experts of a client",
	  "ndpctl migrate --client N --expert LAYER:EXPERT... --to dimm:D[,D]...|spread:0xMASK|all "
	  "[--json] [--socket PATH]", "Cetjs", false, 0, 0, cmd_migrate },
	{ "reset", "reset a DIMM, or all DIMMs of a domain", "ndpctl reset DEVICE [--wait] "
	  "[--json]",
	  "Dwj", false, 1, 1, cmd_reset },
	{ "doctor", "look for what is wrong, and say what to do",
	  "ndpctl doctor [--json] [--config FILE] [--socket PATH]", "jfs", false, 0, 0,
	  cmd_doctor },
};

enum { NR_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(void)
{
	puts("usage: ndpctl COMMAND [OPTION]...\n");
	for (int i = 0; i < NR_COMMANDS; i++)
		printf("  %-9s %s\n", commands[i].name, commands[i].what);
	puts("\nndpctl COMMAND --help says how a command is used, man ndpctl-COMMAND everything.\n"
	     "A DEVICE is a node, /dev/ndpN or /dev/ndpNdK, or soft:OPTIONS for DIMMs that are\n"
	     "emulated in this process.");
}

static int run(const struct command *c, int argc, char **argv, struct ndp_error *err, bool *json)
{
	struct options o;
	int status;

	*json = c->json_default;
	if (options_parse(&o, c, argc, argv, err) < 0)
		return STATUS_USAGE;
	if (o.help) {
		printf("usage: %s\n\n%c%s.\n", c->usage, c->what[0] - 'a' + 'A', c->what + 1);
		return out_flush(err) < 0 ? STATUS_FAILED : STATUS_OK;
	}
	*json = o.json;
	if (interrupt_setup(o.json, err) < 0)
		return STATUS_FAILED;
	status = c->run(&o, err);
	if (status < STATUS_USAGE && out_flush(err) < 0)
		status = STATUS_FAILED;
	return status;
}

static const struct command *find_command(const char *name)
{
	for (int i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

int main(int argc, char **argv)
{
	struct ndp_error err = { 0 };
	const struct command *c;
	const char *socket = secure_getenv("NDP_DAEMON_SOCKET");
	bool json;
	int status;

	if (socket && *socket)
		roots.socket = socket; /* as libndp does; --socket is stronger */
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
			 !strcmp(argv[1], "help"))) {
		print_help();
		return out_flush(&err) < 0 ? STATUS_FAILED : STATUS_OK;
	}
	c = argc > 1 ? find_command(argv[1]) : NULL;
	if (!c) {
		fprintf(stderr, argc > 1 ? "ndpctl: '%s' is no command; see ndpctl --help\n" :
					   "ndpctl: a command is wanted; see ndpctl --help\n",
			argc > 1 ? argv[1] : "");
		return STATUS_USAGE;
	}
	status = run(c, argc - 1, argv + 1, &err, &json);
	if (status < STATUS_USAGE || !err.message[0])
		return status;
	/* The stdout of stat is the command's. */
	if (json && status != STATUS_USAGE && c->run != cmd_stat) {
		interrupt_mute();
		out_error_json(stdout, &err);
	}
	fprintf(stderr, "ndpctl: %s\n", err.message);
	return err.code == -EINTR ? interrupt_status() : status;
}
