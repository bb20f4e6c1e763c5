// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ndp-replay - what schedulers of experts over GPU, CPU and NDP DIMMs would take
 * on a described machine, for recorded or made-up loads.
 *
 * Reads files and prints; needs no device, changes nothing, reads no clock.
 */
#include "options.h"
#include "replay.h"
#include "report.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <string.h>

enum { STATUS_USAGE = 2, STATUS_FAILED = 3 };

static int complain(const struct options *o, const struct ndp_error *err, int status)
{
	if (o->format == FORMAT_JSON)
		report_json_error(err, stdout);
	fprintf(stderr, "ndp-replay: %s\n", err->message);
	return status;
}

static int print(const struct replay *r, struct ndp_error *err)
{
	int ret = 0;

	if (r->options.format == FORMAT_JSON)
		ret = report_json(r, stdout, err);
	else if (r->options.format == FORMAT_CSV)
		report_csv(r, stdout);
	else
		report_text(r, stdout);
	if (ret == 0 && (fflush(stdout) || ferror(stdout)))
		ret = fail(err, -EIO, "the report cannot be written (%s)", strerror(errno));
	return ret;
}

int main(int argc, char **argv)
{
	struct ndp_error err = { 0 };
	struct options o;
	struct replay r;
	int ret;

	if (options_parse(&o, argc, argv, &err) < 0)
		return complain(&o, &err, STATUS_USAGE);
	if (o.help) {
		fputs(options_usage, stdout);
		return 0;
	}
	ret = replay_open(&r, &o, &err);
	if (ret == 0)
		ret = replay_run(&r, &err);
	if (ret == 0 && o.plot)
		ret = plot_write(&r, o.plot, &err);
	if (ret == 0)
		ret = print(&r, &err);
	replay_close(&r);
	return ret < 0 ? complain(&o, &err, STATUS_FAILED) : 0;
}
