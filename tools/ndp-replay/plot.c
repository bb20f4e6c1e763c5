// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * plot.c - SVG plots by gnuplot; see report.h.
 *
 *   makespan.svg     modelled time of a layer by policy: mean, p50, p99
 *   utilisation.svg  busy shares of the resources by policy
 *   load.svg         share of the selections by rank of the expert
 *   timeline.svg     what runs when in the last layer replayed, under one policy
 *
 * The scripts go to gnuplot with their data in them and are not kept.
 */
#include "report.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *const colours[NDP_DOMAINS + 1] = { "#4e79a7", "#f28e2b", "#59a14f", "#b0b0b0" };

static void begin(FILE *f, const char *dir, const char *name, const char *title)
{
	/* In single quotes gnuplot takes everything as it is, but for a quote. */
	fprintf(f, "set terminal svg size 900,520 font 'sans,12' background 'white'\n"
		"set output '");
	for (const char *c = dir; *c; c++)
		fputs(*c == '\'' ? "''" : (char[]){ *c, 0 }, f);
	fprintf(f, "/%s'\nset title '%s' noenhanced\nset tics nomirror\nset key outside right\n"
		"set border 3\n", name, title);
}

static void end(FILE *f)
{
	fputs("unset output\nreset\n", f);
}

static bool possible(const struct replay *r, int k)
{
	return r->policy[k].wanted && !r->policy[k].impossible;
}

static void plot_makespan(const struct replay *r, FILE *f, const char *dir)
{
	const double bound_ms = r->policy[r->lead].fluid_ns / r->nr_sampled / 1e6;
	char title[200];

	snprintf(title, sizeof(title), "Modelled time of a layer: %s on %s", r->model.name,
		 r->host.name);
	fputs("$data << EOD\n", f);
	for (int k = 0; k < NDP_POLICIES; k++)
		if (possible(r, k))
			fprintf(f, "%s %.9g %.9g %.9g\n", ndp_policy_name(k),
				replay_mean_ns(r, &r->policy[k]) / 1e6, r->policy[k].p50_ns / 1e6,
				r->policy[k].p99_ns / 1e6);
	fputs("EOD\n", f);
	begin(f, dir, "makespan.svg", title);
	fprintf(f, "set style data histograms\nset style fill solid 0.9 noborder\n"
		"set boxwidth 0.9\nset yrange [0:*]\nset ylabel 'modelled ms (dashed: no plan is shorter)'\n"
		"set xtics font ',9'\nset grid y\n"
		"set arrow from graph 0, first %.9g to graph 1, first %.9g nohead "
		"lc rgb '#d62728' dt 2 front\n"
		"plot $data using 2:xtic(1) title 'mean' lc rgb '%s', "
		"'' using 3 title 'p50' lc rgb '%s', '' using 4 title 'p99' lc rgb '%s'\n",
		bound_ms, bound_ms, colours[0],
		colours[2], colours[1]);
	end(f);
}

static void plot_utilisation(const struct replay *r, FILE *f, const char *dir)
{
	fputs("$data << EOD\n", f);
	for (int k = 0; k < NDP_POLICIES; k++) {
		const struct figures g = report_figures(r, k);

		if (possible(r, k))
			fprintf(f, "%s %.6g %.6g %.6g %.6g %.6g\n", ndp_policy_name(k), 100 * g.gpu,
				100 * g.pcie, 100 * g.cpu, 100 * g.channels, 100 * g.dimms);
	}
	fputs("EOD\n", f);
	begin(f, dir, "utilisation.svg", "Busy share of the modelled time (DIMMs and channels: mean)");
	fprintf(f, "set style data histograms\nset style fill solid 0.9 noborder\n"
		"set yrange [0:100]\nset ylabel 'per cent'\nset xtics font ',9'\nset grid y\n"
		"plot $data using 2:xtic(1) title 'GPU' lc rgb '%s', '' using 3 title 'PCIe' lc rgb "
		"'#76b7b2', '' using 4 title 'CPU' lc rgb '%s', '' using 5 title 'channels' lc rgb "
		"'#edc948', '' using 6 title 'DIMMs' lc rgb '%s'\n", colours[0], colours[1],
		colours[2]);
	end(f);
}

static void plot_load(const struct replay *r, FILE *f, const char *dir)
{
	const uint32_t experts = r->model.shape.experts;
	double sum = 0;

	fputs("$data << EOD\n", f);
	for (uint32_t k = 0; k < experts; k++) {
		sum += r->rank_share[k];
		fprintf(f, "%u %.9g %.9g\n", k + 1, 100 * r->rank_share[k], 100 * sum);
	}
	fputs("EOD\n", f);
	begin(f, dir, "load.svg", "Load of experts by rank within a layer and step");
	fprintf(f, "set xlabel 'rank of the expert'\nset ylabel 'share of the selections, per cent'\n"
		"set y2label 'sum, per cent'\nset y2tics\nset y2range [0:100]\nset border 11\n"
		"set xrange [0:%u]\nset yrange [0:*]\nset style fill solid 0.9 noborder\n"
		"set boxwidth 0.9\nplot $data using 1:2 with boxes lc rgb '%s' title 'share', "
		"'' using 1:3 axes x1y2 with lines lw 2 lc rgb '%s' title 'sum'\n",
		experts + 1, colours[0], colours[1]);
	end(f);
}

/* The row of a lane in the Gantt chart, from the bottom; -1: it is not shown. */
static double lane_row(const struct ndp_span *s, uint32_t dimms)
{
	switch (s->lane) {
	case NDP_LANE_GPU:
		return 3 * dimms + 4;
	case NDP_LANE_PCIE:
		return 3 * dimms + 2.5;
	case NDP_LANE_CPU:
		return 3 * dimms + 1;
	case NDP_LANE_DIMM:
		return 3 * (dimms - 1 - s->index) + 2;
	case NDP_LANE_READ:
		return 3 * (dimms - 1 - s->index) + 1;
	case NDP_LANE_LINK:
		return 3 * (dimms - 1 - s->index);
	default:
		return -1;
	}
}

static void write_spans(FILE *f, const struct ndp_span *spans, uint32_t n, uint32_t dimms)
{
	static const char *const lane_colours[] = {
		[NDP_LANE_GPU] = "0x4e79a7", [NDP_LANE_PCIE] = "0x76b7b2",
		[NDP_LANE_CPU] = "0xf28e2b", [NDP_LANE_DIMM] = "0x59a14f",
		[NDP_LANE_READ] = "0xedc948", [NDP_LANE_LINK] = "0xb07aa1",
	};

	fputs("$data << EOD\n", f);
	for (uint32_t i = 0; i < n; i++) {
		const struct ndp_span *s = &spans[i];
		const double row = lane_row(s, dimms);

		if (row >= 0)
			fprintf(f, "%.6f %.6f %.3f %.3f %s\n", s->start_ns / 1e6, s->end_ns / 1e6,
				row - 0.45, row + 0.45,
				s->background ? "0xb07aa1" : lane_colours[s->lane]);
	}
	fputs("EOD\n", f);
}

static void write_gantt(const struct replay *r, FILE *f, const char *dir,
			enum ndp_policy policy, const struct ndp_timeline *t,
			const struct ndp_span *spans)
{
	const uint32_t dimms = r->host.host.nr_dimms;
	char title[200];

	snprintf(title, sizeof(title),
		 "Layer %u under %s, modelled (each DIMM: its commands above, reads by the host and "
		 "activations below)", r->source->layer_numbers[r->shown_layer],
		 ndp_policy_name(policy));
	write_spans(f, spans, t->nr_spans, dimms);
	begin(f, dir, "timeline.svg", title);
	fprintf(f, "unset key\nset xlabel 'modelled ms'\nset xrange [0:%.9g]\nset yrange [-1:%u]\n"
		"set ytics font ',9' ('GPU' %u, 'PCIe' %.1f, 'CPU' %u", t->makespan_ns * 1.02 / 1e6,
		3 * dimms + 5, 3 * dimms + 4, 3 * dimms + 2.5, 3 * dimms + 1);
	for (uint32_t d = 0; d < dimms; d++)
		fprintf(f, ", 'DIMM %u' %.1f", d, 3 * (dimms - 1 - d) + 1.5);
	fputs(")\nset style fill solid 0.85 border rgb '#444444'\n"
	      "plot $data using 1:3:1:2:3:4:5 with boxxyerrorbars lc rgb variable lw 0.3\n", f);
	end(f);
}

static int plot_timeline(const struct replay *r, FILE *f, const char *dir, struct ndp_error *err)
{
	const uint32_t experts = r->model.shape.experts, dimms = r->host.host.nr_dimms;
	const uint32_t max_spans = 8 * experts + 4 * dimms * experts;
	const struct ndp_layer layer = replay_shown(r);
	int policy = NDP_POLICY_TRIMOE, ret = -ENOMEM;
	void *work = malloc(ndp_schedule_bytes(experts, dimms));
	void *memory = malloc(ndp_plan_bytes(experts, dimms));
	void *events = malloc(ndp_timeline_bytes(experts, dimms, 0));
	struct ndp_span *spans = calloc(max_spans, sizeof(*spans));
	struct ndp_timeline t;
	struct ndp_plan plan;

	/* Ours, else what was asked for first. */
	for (int k = 0; !possible(r, policy) && k < NDP_POLICIES; k++)
		if (possible(r, k))
			policy = k;
	if (work && memory && events && spans && possible(r, policy)) {
		ndp_plan_init(&plan, memory, experts, dimms);
		ret = ndp_schedule(&layer, policy, work, &plan);
		if (ret == 0)
			ret = ndp_timeline(&layer, &plan, NULL, 0, events, spans, max_spans, &t);
		if (ret == 0)
			write_gantt(r, f, dir, policy, &t, spans);
	}
	free(work);
	free(memory);
	free(events);
	free(spans);
	return ret < 0 ? fail(err, ret, "the timeline cannot be drawn (%s)", strerror(-ret)) : 0;
}

int plot_write(const struct replay *r, const char *dir, struct ndp_error *err)
{
	struct stat st;
	FILE *f;
	int ret, status;

	if (mkdir(dir, 0777) < 0 && errno != EEXIST)
		return fail(err, -errno, "%s: cannot be made (%s)", dir, strerror(errno));
	if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
		return fail(err, -ENOTDIR, "%s: is no folder, --plot wants one", dir);
	if (strpbrk(dir, "\n\r"))
		return fail(err, -EINVAL, "--plot: the folder's name has a line break");
	f = popen("gnuplot", "we");
	if (!f)
		return fail(err, -errno, "gnuplot cannot be started (%s)", strerror(errno));
	plot_makespan(r, f, dir);
	plot_utilisation(r, f, dir);
	plot_load(r, f, dir);
	ret = plot_timeline(r, f, dir, err);
	status = pclose(f);
	if (ret == 0 && status)
		ret = fail(err, -EIO, "gnuplot failed with status %d; is it installed, and is %s "
			   "writable?", WIFEXITED(status) ? WEXITSTATUS(status) : -1, dir);
	return ret;
}
