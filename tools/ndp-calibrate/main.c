// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndp-calibrate: measures this host, its CPU threads, DIMMs and GPU, into a
 * host profile for ndp-run, ndp-replay and ndp-bench.  docs/man/ndp-calibrate.1.
 */
#include "calibrate.h"

#include <errno.h>
#include <getopt.h>
#include <ndp/profile.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"Usage: ndp-calibrate [OPTION]...\n\n"
	"Measures this host into a host profile (JSON) that the scheduler and ndp-replay read.\n"
	"All times are wall times; also those of emulated DIMMs, whose modelled times are\n"
	"another matter.\n\n"
	"  --domains LIST   what to measure: cpu, ndp, gpu, or several (default: cpu)\n"
	"  --device SPEC    the DIMMs (default: soft:dimms=1,size=1G)\n"
	"  --gpu SPEC       opencl, opencl:NAME, opencl:PLATFORM.DEVICE (default: opencl)\n"
	"  --threads N      of the CPU domain (default: one for each CPU)\n"
	"  --alone          CPU and DIMMs one after the other, not while both compute\n"
	"  --shapes LIST    experts, HxI (default: 2048x1408,4096x1536)\n"
	"  --tokens LIST    of an expert, at most 16, ascending\n"
	"                   (default: 1,2,3,4,6,8,12,16,24,32,48,64,96,128,256,512)\n"
	"  --seconds S      for each point, in tenths (default: 0.3)\n"
	"  --name NAME      of the profile (default: measured)\n"
	"  --output FILE    instead of standard output\n"
	"  --quiet          no progress\n"
	"  --help           this text\n\n"
	"Status: 0 done, 2 wrong usage, 3 something failed.\n";

static void __attribute__((noreturn)) give_up(int status, const char *format, va_list ap)
{
	fflush(stdout);
	fputs("ndp-calibrate: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
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

void say(const struct options *o, const char *format, ...)
{
	va_list ap;

	if (o->quiet)
		return;
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---- options ------------------------------------------------------------------- */

static void parse_domains(struct options *o, const char *text)
{
	o->cpu = o->ndp = o->gpu = false;
	for (const char *at = text;; at++) {
		const char *end = at + strcspn(at, ",");
		size_t n = (size_t)(end - at);
		bool *domain = n == 3 && !strncmp(at, "cpu", 3) ? &o->cpu :
			       n == 3 && !strncmp(at, "ndp", 3) ? &o->ndp :
			       n == 3 && !strncmp(at, "gpu", 3) ? &o->gpu : NULL;

		if (!domain || *domain)
			bench_usage("--domains wants cpu, ndp or gpu, or several of them divided "
				    "by commas, each once, not '%.40s'", text);
		*domain = true;
		at = end;
		if (!*at)
			return;
	}
}

static void parse_shapes(struct options *o, const char *text)
{
	const char *at = text;

	o->nr_shapes = 0;
	for (;;) {
		unsigned int h, n;
		int used = 0;

		if (sscanf(at, "%5ux%6u%n", &h, &n, &used) != 2 || (at[used] && at[used] != ',') ||
		    h < 64 || h > 65472 || n < 32 || n > 65535)
			bench_usage("--shapes wants HxI, like 2048x1408, divided by commas, H from "
				    "64 to 65472, I from 32 to 65535, not '%.60s'", text);
		if (o->nr_shapes == MAX_SHAPES)
			bench_usage("--shapes takes at most %d shapes", MAX_SHAPES);
		o->hidden[o->nr_shapes] = h;
		o->neurons[o->nr_shapes++] = n;
		at += used;
		if (!*at++)
			return;
	}
}

static void parse_tokens(struct options *o, const char *text)
{
	const char *at = text;

	o->nr_tokens = 0;
	for (;;) {
		char *end;
		unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;

		if (!n || n > 65535 || (*end && *end != ',') ||
		    o->nr_tokens == NDP_MAX_RATE_POINTS ||
		    (o->nr_tokens && n <= o->tokens[o->nr_tokens - 1]))
			bench_usage("--tokens wants at most %d numbers from 1 to 65535, ascending, "
				    "divided by commas, not '%.80s'", NDP_MAX_RATE_POINTS, text);
		o->tokens[o->nr_tokens++] = (uint32_t)n;
		at = end;
		if (!*at++)
			return;
	}
}

static uint32_t parse_threads(const char *text)
{
	char *end;
	unsigned long n = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;

	if (!n || *end || n > 4096)
		bench_usage("--threads wants a number from 1 to 4096, not '%.40s'", text);
	return (uint32_t)n;
}

static double parse_seconds(const char *text)
{
	char *end;
	double s = strtod(text, &end);

	if (end == text || *end || !(s >= 0.01 && s <= 600))
		bench_usage("--seconds wants a number from 0.01 to 600, not '%.40s'", text);
	return s;
}

static void parse(struct options *o, int argc, char **argv)
{
	static const struct option longopts[] = {
		{ "domains", required_argument, NULL, 'D' },
		{ "device", required_argument, NULL, 'd' },
		{ "gpu", required_argument, NULL, 'g' },
		{ "threads", required_argument, NULL, 't' },
		{ "alone", no_argument, NULL, 'a' },
		{ "shapes", required_argument, NULL, 's' },
		{ "tokens", required_argument, NULL, 'T' },
		{ "seconds", required_argument, NULL, 'S' },
		{ "name", required_argument, NULL, 'n' },
		{ "output", required_argument, NULL, 'o' },
		{ "quiet", no_argument, NULL, 'q' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	int c;

	*o = (struct options){
		.cpu = true, .device = "soft:dimms=1,size=1G", .gpu_spec = "opencl",
		.seconds = 0.3, .name = "measured",
	};
	parse_shapes(o, "2048x1408,4096x1536");
	parse_tokens(o, "1,2,3,4,6,8,12,16,24,32,48,64,96,128,256,512");
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'D': parse_domains(o, optarg); break;
		case 'd': o->device = optarg; break;
		case 'g': o->gpu_spec = optarg; break;
		case 't': o->threads = parse_threads(optarg); break;
		case 'a': o->alone = true; break;
		case 's': parse_shapes(o, optarg); break;
		case 'T': parse_tokens(o, optarg); break;
		case 'S': o->seconds = parse_seconds(optarg); break;
		case 'n': o->name = optarg; break;
		case 'o': o->output = optarg; break;
		case 'q': o->quiet = true; break;
		case 'h':
			fputs(usage, stdout);
			exit(fflush(stdout) ? BENCH_FAILED : BENCH_OK);
		default:
			exit(BENCH_USAGE);
		}
	}
	if (optind < argc)
		bench_usage("'%.60s' belongs to no option (see --help)", argv[optind]);
	if (!*o->name || strlen(o->name) >= NDP_PROFILE_NAME)
		bench_usage("--name wants 1 to %d bytes", NDP_PROFILE_NAME - 1);
	for (const char *p = o->name; *p; p++)
		if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
			bench_usage("--name wants plain characters");
}

/* ---- the run --------------------------------------------------------------------- */

static void limits(struct measured *m, const struct options *o)
{
	const unsigned int threads = o->threads ? o->threads : bench_cpus();
	double fp32 = bench_peak_fp32_gflops(threads), bf16 = bench_peak_bf16_gflops(threads);

	m->read_gbps = bench_read_gbps(threads);
	m->copy_gbps = bench_copy_gbps(threads);
	m->peak_gflops = bf16 > fp32 ? bf16 : fp32;
	m->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	say(o, "%u threads: %.1f GB/s read, %.1f GB/s copied, %.0f GFLOP/s in registers", threads,
	    m->read_gbps, m->copy_gbps, m->peak_gflops);
}

static FILE *open_part(const struct options *o, char **part)
{
	FILE *f;

	if (asprintf(part, "%s.part", o->output) < 0)
		bench_die("out of memory");
	f = fopen(*part, "we");
	if (!f)
		bench_die("%s cannot be written: %s", *part, strerror(errno));
	return f;
}

/* Before minutes of measuring. */
static void try_file(const struct options *o)
{
	char *part;

	fclose(open_part(o, &part));
	unlink(part);
	free(part);
}

/* The file is there whole, and can be read, or not at all. */
static void write_file(const struct measured *m, const struct options *o, int argc, char **argv)
{
	struct ndp_host_profile profile;
	struct ndp_error err;
	char *part;
	FILE *f = open_part(o, &part);

	write_profile(f, m, o, argc, argv);
	errno = 0;
	if (fflush(f) || fsync(fileno(f)) || fclose(f))
		bench_die("%s cannot be written: %s", part, strerror(errno ? errno : EIO));
	if (ndp_host_profile_load(&profile, part, &err) < 0)
		bench_die("what was written cannot be read: %s", err.message);
	if (rename(part, o->output) < 0)
		bench_die("%s cannot be written: %s", o->output, strerror(errno));
	free(part);
}

int main(int argc, char **argv)
{
	struct measured m = { 0 };
	struct options o;

	parse(&o, argc, argv);
	if (o.output)
		try_file(&o);
	limits(&m, &o);
	if (o.cpu || o.ndp)
		measure_curves(&m, &o);
	measure_gpu(&m, &o);
	if (o.output) {
		write_file(&m, &o, argc, argv);
		return BENCH_OK;
	}
	write_profile(stdout, &m, &o, argc, argv);
	errno = 0;
	if (fflush(stdout) || ferror(stdout))
		bench_die("standard output cannot be written: %s", strerror(errno ? errno : EIO));
	return BENCH_OK;
}
