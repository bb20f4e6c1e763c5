// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * write.c - see calibrate.h: the profile as JSON, in the format that
 * ndp_host_profile_load() reads.  Every number says that it was measured, by which
 * command and when.
 */
#include "calibrate.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static json_t *must(json_t *v)
{
	if (!v)
		bench_die("out of memory");
	return v;
}

/* Four digits are more than a measurement is worth. */
static double rounded(double x)
{
	char text[32];

	snprintf(text, sizeof(text), "%.4g", x);
	return strtod(text, NULL);
}

static void add(json_t *group, const char *name, json_t *value, const char *source,
		const char *kind, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* @format "": no note. */
static void add(json_t *group, const char *name, json_t *value, const char *source,
		const char *kind, const char *format, ...)
{
	json_t *field = must(json_pack("{s:o, s:s, s:s}", "value", must(value), "source", source,
				       "kind", kind));
	char note[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(note, sizeof(note), format, ap);
	va_end(ap);
	if (*note)
		json_object_set_new(field, "note", must(json_string_nocheck(note)));
	if (json_object_set_new(group, name, field) < 0)
		bench_die("out of memory");
}

static json_t *real(double x)
{
	return json_real(rounded(x));
}

static double best(const struct curve *c, double at_least)
{
	for (unsigned int i = 0; i < c->n; i++)
		at_least = fmax(at_least, c->gflops[i]);
	return at_least;
}

static void add_table(json_t *group, const struct curve *c, const struct options *o,
		      const char *what)
{
	json_t *table = must(json_array());
	char shapes[128] = "";
	double spread = 1;

	for (unsigned int i = 0; i < c->n; i++) {
		json_array_append_new(table, must(json_pack("[i, o]", (int)c->tokens[i],
							    real(c->gflops[i]))));
		spread = fmax(spread, c->spread[i]);
	}
	for (unsigned int s = 0; s < o->nr_shapes; s++)
		snprintf(shapes + strlen(shapes), sizeof(shapes) - strlen(shapes), "%s%ux%u",
			 s ? ", " : "", o->hidden[s], o->neurons[s]);
	if (o->nr_shapes > 1)
		add(group, "table", table, "RUN", "measured", "tokens of an expert, GFLOP/s "
		    "of wall time; %s; experts of %s, geometric mean, at most a factor %.2f apart", what,
		    shapes, spread);
	else
		add(group, "table", table, "RUN", "measured", "tokens of an expert, GFLOP/s "
		    "of wall time; %s; experts of %s", what, shapes);
}

/* Peak and efficiency; the table says the rest. */
static void add_peak(json_t *group, const struct curve *c, double peak, const char *peak_is)
{
	double top = best(c, 0);

	if (peak < top)
		add(group, "peak_gflops", real(top), "RUN", "measured", "the most of the table");
	else
		add(group, "peak_gflops", real(peak), "RUN", "measured", "%s", peak_is);
	peak = rounded(fmax(peak, top));
	add(group, "efficiency", real(fmin(top / peak, 1)), "RUN", "measured",
	    "the most of the table over the peak");
}

static const char *company(const struct measured *m, const struct options *o)
{
	return m->has_cpu && m->has_ndp && !o->alone ?
	       "measured while CPU and DIMMs both computed" : "measured by itself";
}

/* The CPU adds results to the output of a layer, too. */
static const char *cpu_company(const struct measured *m, const struct options *o)
{
	return m->has_ndp && !o->alone ?
	       "measured while CPU and DIMMs both computed, adding up the results of both "
	       "included" :
	       "measured by itself, adding up the results included";
}

static json_t *cpu_group(const struct measured *m, const struct options *o)
{
	json_t *g = must(json_object());

	add_peak(g, &m->cpu, m->peak_gflops, "multiply-adds in registers");
	add(g, "memory_gbps", json_integer(0), "RUN", "derived",
	    "0: the memory is the limit, and the table has it");
	add(g, "overhead_ns", real(m->cpu.overhead_ns), "RUN", "measured",
	    "of an expert in a call with others; %u threads, %s", m->threads, m->isa);
	add_table(g, &m->cpu, o, cpu_company(m, o));
	return g;
}

static json_t *ndp_group(const struct measured *m, const struct options *o)
{
	json_t *g = must(json_object());

	add_peak(g, &m->ndp, 0, "");
	add(g, "internal_gbps", real(m->ndp.gbps), "RUN", "measured",
	    "weights read, the most of all points; wall time of %s, not modelled time", m->device);
	add(g, "overhead_ns", real(m->ndp.overhead_ns), "RUN", "measured",
	    "of a command in a batch of many");
	add(g, "link_gbps", m->link_gbps > 0 ? real(m->link_gbps) : json_integer(0), "RUN",
	    "measured", m->link_gbps > 0 ? "experts moved from DIMM to DIMM" :
	    "there is one DIMM");
	add(g, "link_latency_ns", m->link_gbps > 0 ? real(m->link_latency_ns) : json_integer(0),
	    "RUN", "measured", m->link_gbps > 0 ? "of moving 12 KiB" : "there is one DIMM");
	add_table(g, &m->ndp, o, company(m, o));
	return g;
}

static json_t *gpu_group(const struct measured *m, const struct options *o)
{
	json_t *g = must(json_object());

	add_peak(g, &m->gpu_curve, 0, "");
	add(g, "memory_gbps", real(m->gpu_curve.gbps), "RUN", "measured",
	    "weights read, the most of all points");
	add(g, "memory_efficiency", json_integer(1), "RUN", "derived", "it was measured");
	add(g, "overhead_ns", real(m->gpu_curve.overhead_ns), "RUN", "measured",
	    "of an expert in a launch with others");
	add(g, "expert_bytes", json_integer((json_int_t)m->gpu_bytes), "RUN", "assumed",
	    "three quarters of the memory");
	add(g, "pcie_gbps", real(m->upload_gbps), "RUN", "measured", "experts uploaded to %s%s",
	    m->gpu_name, m->gpu_is_cpu ? ", which is a CPU: no PCIe is crossed" : "");
	add(g, "staging_gbps", real(m->copy_gbps), "RUN", "measured", "memcpy()");
	add_table(g, &m->gpu_curve, o, "resident experts, launch and copies of x and y included");
	return g;
}

static json_t *memory_group(const struct measured *m)
{
	json_t *g = must(json_object());

	add(g, "channels", json_integer(1), "RUN", "assumed",
	    "all of the memory is seen as one channel");
	add(g, "channel_gbps", real(m->read_gbps), "RUN", "measured", "read by %u threads",
	    m->threads ? m->threads : bench_cpus());
	if (m->has_ndp) {
		add(g, "dimms", json_integer(m->nr_dimms), "RUN", "measured", "%s", m->device);
		add(g, "dimm_bytes", json_integer((json_int_t)m->dimm_bytes), "RUN", "measured",
		    "%s", m->device);
	} else {
		add(g, "dimms", json_integer(1), "RUN", "assumed", "none computes");
		add(g, "dimm_bytes", json_integer((json_int_t)m->memory_bytes), "RUN", "measured",
		    "the host's memory");
	}
	return g;
}

/* "ndp-calibrate --domains cpu,ndp on AMD EPYC, 2 CPUs, 2026-11-29" */
static void describe_run(char *text, size_t size, int argc, char **argv)
{
	char cpu[128] = "unknown processor", line[256], date[16];
	FILE *f = fopen("/proc/cpuinfo", "re");
	time_t now = time(NULL);
	struct tm tm;
	size_t n;

	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(cpu, sizeof(cpu), "%.120s", colon + 1 + strspn(colon + 1, " "));
		break;
	}
	if (f)
		fclose(f);
	strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &tm));
	snprintf(text, size, "ndp-calibrate");
	for (int i = 1; i < argc; i++) {
		n = strlen(text);
		snprintf(text + n, size - n, " %s", argv[i]);
	}
	n = strlen(text);
	snprintf(text + n, size - n, " on %s, %u CPUs, %s", cpu, bench_cpus(), date);
}

void write_profile(FILE *f, const struct measured *m, const struct options *o, int argc,
		   char **argv)
{
	char run[1024], what[256];
	json_t *root;

	describe_run(run, sizeof(run), argc, argv);
	snprintf(what, sizeof(what), "this host as it was measured, wall time throughout%s; %u of "
		 "%u points disturbed by other programs", m->has_ndp ?
		 "; the DIMMs by what their emulation or driver took" : "", m->disturbed,
		 m->points);
	root = must(json_pack("{s:s, s:s, s:s, s:{s:o}, s:o, s:o, s:n, s:o, s:o}",
			      "format", "moendp-host-1", "name", o->name, "description",
			      what,
			      "sources", "RUN", must(json_string_nocheck(run)),
			      "gpu", m->has_gpu ? gpu_group(m, o) : must(json_null()),
			      "cpu", m->has_cpu ? cpu_group(m, o) : must(json_null()), "cpu_plain",
			      "memory", memory_group(m),
			      "ndp", m->has_ndp ? ndp_group(m, o) : must(json_null())));
	if (json_dumpf(root, f, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0)
		bench_die("the profile cannot be written");
	fputc('\n', f);
	json_decref(root);
}
