// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu.c - ndp-bench cpu: the expert FFN of libndp's CPU domain beside other libraries',
 * and beside what the machine reads and multiplies at most (bars D.1 and D.2).
 *
 * Every runner has its own copy of the same experts in its own best format, more of
 * them than caches hold, and takes the next one each time: weights come from DRAM, as
 * they do in a model.  Results are compared before anything is timed.  Times are wall
 * times of whole calls, in rounds that every runner has part in (bench_sample()).
 */
#include "cpu.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LIST = 16, MAX_RUNNERS = 5, SHORT_TOKENS = 8, SHORT_ROUNDS = 45 };

static const struct cpu_runner *const all_runners[MAX_RUNNERS] = {
	&cpu_ndp, &cpu_xsmm, &cpu_dnnl, &cpu_ggml, &cpu_dot,
};

/* A runner of one shape, as a contender. */
struct seat {
	const struct cpu_runner *runner;
	void *r;
	const struct cpu_setup *setup;
	unsigned int expert;	/* the next one */
	const ndp_bf16 *x;
	uint32_t tokens;
	float *y;
};

struct options {
	uint32_t shapes[MAX_LIST][2];
	unsigned int nr_shapes;
	uint32_t tokens[MAX_LIST];
	unsigned int nr_tokens;
	uint32_t threads[MAX_LIST];
	unsigned int nr_threads;
	unsigned int rounds;
	const char *isa;
	const char *against;	/* names, divided by commas */
	bool bars;
};

static const struct bench_column columns[] = {
	{ "hidden", "H", 5, 0 },
	{ "neurons", "I", 5, 0 },
	{ "threads", "threads", 7, 0 },
	{ "tokens", "tokens", 6, 0 },
	{ "wall_us", "libndp\nwall us", 9, 0 },
	{ "gflops", "GFLOP/s", 8, 0 },
	{ "gbps", "GB/s", 6, 1 },
	{ "limit_gflops", "limit\nGFLOP/s", 8, 0 },
	{ "limit_gbps", "limit\nGB/s", 6, 1 },
	{ "libxsmm_wall_us", "libxsmm\nwall us", 9, 0 },
	{ "onednn_wall_us", "oneDNN\nwall us", 9, 0 },
	{ "ggml_wall_us", "ggml\nwall us", 9, 0 },
	{ "dot_wall_us", "dot prod.\nwall us", 9, 0 },
	{ "ratio", "best /\nlibndp", 8, 3 },
	{ "lower95", "lower\n95 %", 6, 3 },
	{ "rounds", "rounds", 6, 0 },
	{ "dirty", "dirty", 5, 0 },
};

enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };

static void run_seat(void *arg)
{
	struct seat *s = arg;

	s->runner->run(s->r, s->expert, s->x, s->tokens, s->y);
	s->expert = (s->expert + 1) % s->setup->experts;
}

/*
 * Threads that have done their part look for more for a fraction of a millisecond, on a CPU
 * that the next runner wants: until they sleep nobody is timed.
 */
static void settle(void *arg)
{
	const struct timespec while_spinning = { .tv_nsec = 1000000 };

	(void)arg;
	nanosleep(&while_spinning, NULL);
}

/*
 * libgomp's threads look for work for some milliseconds unless its variable says
 * otherwise when the program starts: start it again with 20,000 looks, as others have.
 */
static void limit_spinning(void)
{
	char line[8192], *args[128];
	FILE *f = fopen("/proc/self/cmdline", "re");
	size_t bytes = f ? fread(line, 1, sizeof(line) - 1, f) : 0;
	unsigned int n = 0;

	if (f)
		fclose(f);
	line[bytes] = 0;
	for (size_t at = 0; at < bytes && n < 127; at += strlen(line + at) + 1)
		args[n++] = line + at;
	args[n] = NULL;
	if (!n || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "20000", 1))
		return;
	execv("/proc/self/exe", args); /* else it is only less fair */
}

static bool wanted(const struct options *o, const struct cpu_runner *r)
{
	return r == &cpu_ndp || strstr(o->against, r->name);
}

/* The same experts for everybody. */
static void load_all(struct seat *seats, unsigned int n, const struct cpu_setup *s)
{
	size_t weights = (size_t)s->hidden * s->neurons;
	ndp_bf16 *m[3];

	for (int i = 0; i < 3; i++)
		m[i] = cpu_alloc(weights * sizeof(*m[i]));
	for (unsigned int e = 0; e < s->experts; e++) {
		for (int i = 0; i < 3; i++)
			bench_random_bf16(m[i], weights,
					  sqrtf(3.f / (float)(i == 2 ? s->neurons : s->hidden)),
					  3 * e + (unsigned int)i + 1);
		for (unsigned int i = 0; i < n; i++)
			seats[i].runner->load(seats[i].r, e, m[0], m[1], m[2]);
	}
	for (int i = 0; i < 3; i++)
		cpu_free(m[i], weights * sizeof(*m[i]));
}

/*
 * That they compute the same: y differs by roundings of h and by the order of sums.  An
 * output is the sum of I terms of a like size, a few of which may have an h rounded the
 * other way (2^-8 of the term): far below 2^-6 of the outputs' root mean square.
 */
static void compare(struct seat *seats, unsigned int n, uint32_t tokens)
{
	size_t outputs = (size_t)tokens * seats[0].setup->hidden;
	double square = 0;

	for (unsigned int i = 0; i < n; i++) {
		seats[i].tokens = tokens;
		if (seats[i].runner->prepare)
			seats[i].runner->prepare(seats[i].r, tokens);
		seats[i].expert = 0;
		memset(seats[i].y, 0xff, outputs * sizeof(float));
		run_seat(&seats[i]);
	}
	for (size_t j = 0; j < outputs; j++)
		square += (double)seats[0].y[j] * (double)seats[0].y[j];
	for (unsigned int i = 1; i < n; i++)
		for (size_t j = 0; j < outputs; j++)
			if (!(fabsf(seats[i].y[j] - seats[0].y[j]) <=
			      0x1p-6 * sqrt(square / (double)outputs)))
				bench_die("%s and %s differ: y[%zu] is %g and %g",
					  seats[i].runner->name, seats[0].runner->name, j,
					  (double)seats[i].y[j], (double)seats[0].y[j]);
}

/* What the bars want to know of all cells. */
struct verdict {
	double worst;		/* lower bound */
	double ratios[MAX_LIST * MAX_LIST];
	unsigned int n;
	double four[MAX_LIST];	/* tokens, one thread: medians */
	unsigned int nr_four;
	double one_token;	/* of the bandwidth, the least */
	char worst_cell[64];
};

static void cell(const struct options *o, struct bench_report *rep, struct seat *seats,
		 unsigned int n, struct bench_reader *reader, const double *limit,
		 struct verdict *v)
{
	const struct cpu_setup *s = seats[0].setup;
	uint32_t tokens = seats[0].tokens;
	double weights = 3.0 * s->hidden * s->neurons, flops = 2 * weights * tokens;
	struct bench_contender c[2 * (MAX_RUNNERS + 1)];
	const double *ns[MAX_RUNNERS + 1];
	struct bench_sampling sampling = { .want = o->rounds, .warmup = 2, .seconds = 4 };
	double us[MAX_RUNNERS + 1];
	struct bench_cell cells[COLUMNS];
	struct bench_ratio ratio = { NAN, NAN }, band;

	/* What takes a millisecond swings most, and costs least. */
	if (o->bars && tokens <= SHORT_TOKENS && sampling.want < SHORT_ROUNDS)
		sampling.want = SHORT_ROUNDS;
	for (unsigned int i = 0; i <= n; i++) {
		c[2 * i] = i < n ?
			(struct bench_contender){ seats[i].runner->name, run_seat, &seats[i], NULL } :
			(struct bench_contender){ "reader", bench_reader_run, reader, NULL };
		c[2 * i + 1] = (struct bench_contender){ "settle", settle, NULL, NULL };
	}
	bench_sample(&sampling, c, 2 * (n + 1));
	for (unsigned int i = 0; i <= n; i++)
		ns[i] = c[2 * i].ns;
	for (unsigned int i = 0; i <= n; i++)
		us[i] = bench_median(ns[i], sampling.rounds) / 1000;
	if (n > 1) {
		/* The best is the one that is best in the median, not the luckiest of each round. */
		unsigned int b = 1;

		for (unsigned int i = 2; i < n; i++)
			b = us[i] < us[b] ? i : b;
		ratio = bench_ratio(ns[b], ns[0], sampling.rounds);
	}
	band = bench_ratio(ns[n], ns[0], sampling.rounds);
	cells[0] = BENCH_NUM(s->hidden);
	cells[1] = BENCH_NUM(s->neurons);
	cells[2] = BENCH_NUM(s->threads);
	cells[3] = BENCH_NUM(tokens);
	cells[4] = BENCH_NUM(us[0]);
	cells[5] = BENCH_NUM(flops / us[0] / 1000);
	cells[6] = BENCH_NUM(2 * weights / us[0] / 1000);
	cells[7] = BENCH_NUM(*limit);
	cells[8] = BENCH_NUM(2 * weights / us[n] / 1000);
	for (unsigned int i = 0; i + 1 < MAX_RUNNERS; i++)
		cells[9 + i] = BENCH_NUM(NAN);
	for (unsigned int i = 1; i < n; i++)
		for (unsigned int j = 1; j < MAX_RUNNERS; j++)
			if (seats[i].runner == all_runners[j])
				cells[8 + j] = BENCH_NUM(us[i]);
	cells[13] = BENCH_NUM(ratio.median);
	cells[14] = BENCH_NUM(ratio.lower95);
	cells[15] = BENCH_NUM(sampling.rounds);
	cells[16] = BENCH_NUM(sampling.dirty);
	bench_row(rep, cells);
	if (n > 1 && ratio.lower95 < v->worst) {
		v->worst = ratio.lower95;
		snprintf(v->worst_cell, sizeof(v->worst_cell), "%ux%u, %u tokens, %u threads",
			 s->hidden, s->neurons, tokens, s->threads);
	}
	if (n > 1 && v->n < sizeof(v->ratios) / sizeof(v->ratios[0]))
		v->ratios[v->n++] = ratio.median;
	if (n > 1 && tokens == 4 && s->threads == 1 &&
	    v->nr_four < sizeof(v->four) / sizeof(v->four[0]))
		v->four[v->nr_four++] = ratio.median;
	if (tokens == 1 && band.median < v->one_token)
		v->one_token = band.median;
	bench_samples_free(c, 2 * (n + 1));
}

static void shape(const struct options *o, struct bench_report *rep, const uint32_t *hi,
		  unsigned int threads, const double *limit, struct verdict *v)
{
	size_t bytes = 6ul * hi[0] * hi[1];
	struct cpu_setup s = {
		.hidden = hi[0], .neurons = hi[1], .threads = threads, .isa = o->isa,
		.experts = (unsigned int)(2 * bench_cache_bytes() / bytes) + 2,
	};
	struct seat seats[MAX_RUNNERS];
	unsigned int n = 0;
	static bool described[MAX_RUNNERS];
	struct bench_reader *reader;
	ndp_bf16 *x;

	for (unsigned int i = 0; i < o->nr_tokens; i++)
		s.max_tokens = o->tokens[i] > s.max_tokens ? o->tokens[i] : s.max_tokens;
	s.team = bench_team_start(threads);
	reader = bench_reader_start(threads, bytes);
	x = cpu_alloc((size_t)s.max_tokens * s.hidden * sizeof(*x));
	bench_random_bf16(x, (size_t)s.max_tokens * s.hidden, 1, 7);
	for (unsigned int i = 0; i < MAX_RUNNERS; i++) {
		const char *why = "it does not say why";
		struct seat *seat = &seats[n];

		if (!all_runners[i] || !wanted(o, all_runners[i]))
			continue;
		*seat = (struct seat){ .runner = all_runners[i], .setup = &s, .x = x };
		seat->r = seat->runner->open(&s, &why);
		if (!seat->r) {
			if (!i)
				bench_die("%s", why);
			bench_note(rep, "%s does not take part: %s", seat->runner->name, why);
			continue;
		}
		if (seat->runner->describe && !described[i]) {
			bench_note(rep, "%s: %s", seat->runner->name, seat->runner->describe(seat->r));
			described[i] = true;
		}
		seat->y = cpu_alloc((size_t)s.max_tokens * s.hidden * sizeof(float));
		n++;
	}
	load_all(seats, n, &s);
	for (unsigned int i = 0; i < o->nr_tokens; i++) {
		compare(seats, n, o->tokens[i]);
		cell(o, rep, seats, n, reader, limit, v);
	}
	for (unsigned int i = 0; i < n; i++) {
		seats[i].runner->close(seats[i].r);
		cpu_free(seats[i].y, (size_t)s.max_tokens * s.hidden * sizeof(float));
	}
	cpu_free(x, (size_t)s.max_tokens * s.hidden * sizeof(*x));
	bench_reader_stop(reader);
	bench_team_stop(s.team);
}

static const char help[] =
	"usage: ndp-bench cpu [OPTION]...\n"
	"\n"
	"Times the FFN of one expert after the other, weights from DRAM.\n"
	"  --shape H,I        hidden size and neurons, multiples of 64\n"
	"  --tokens N,...     tokens of an expert\n"
	"  --threads N,...\n"
	"  --rounds N         that are kept of each cell (15)\n"
	"  --isa NAME         scalar, avx2, avx512-bf16 or amx-bf16, for all who can choose\n"
	"  --against NAME,... libxsmm, oneDNN, ggml, dot (libxsmm,oneDNN)\n"
	"  --ggml PATH        what tests/bench/ggml-rival.sh prints\n"
	"  --bars             the shapes, tokens and threads of bars D.1 and D.2\n";

static void measure(const struct options *o, struct bench_report *rep, struct verdict *v)
{
	for (unsigned int j = 0; j < o->nr_threads; j++) {
		double limit = bench_peak_bf16_gflops(o->threads[j]);

		if (!limit || (o->isa && !strstr(o->isa, "bf16")))
			limit = bench_peak_fp32_gflops(o->threads[j]);
		for (unsigned int i = 0; i < o->nr_shapes; i++)
			shape(o, rep, o->shapes[i], o->threads[j], &limit, v);
	}
}

static void libraries_bars(struct bench_report *rep, const struct verdict *v)
{
	if (v->n) {
		bench_bar(rep, "D.1", "cpu-vs-libraries-geomean", bench_geomean(v->ratios, v->n),
			  BENCH_AT_LEAST, 1);
		bench_note(rep, "the least lower bound: %s", v->worst_cell);
		bench_bar(rep, "D.1", "cpu-vs-libraries-worst-lower95", v->worst, BENCH_AT_LEAST,
			  0.93);
		if (v->nr_four)
			bench_bar(rep, "D.1", "cpu-4-tokens-1-thread",
				  bench_geomean(v->four, v->nr_four), BENCH_AT_LEAST, 1.1);
	} else {
		bench_bar_skip(rep, "D.1", "cpu-vs-libraries",
			       "neither library multiplies BF16 on this CPU");
	}
	if (isfinite(v->one_token))
		bench_bar(rep, "D.1", "cpu-1-token-of-bandwidth", v->one_token, BENCH_AT_LEAST,
			  0.9);
}

/*
 * Bar D.2, on one thread: shape and token counts are few, and each has a goal of its own.
 * Against ggml, or if that cannot run a dot product for each row and token, and named so.
 */
static void dot_bars(struct options o, struct bench_report *rep)
{
	static const struct {
		uint32_t tokens;
		double goal;
	} bars[] = { { 4, 1.6 }, { 32, 3 }, { 128, 3.5 } };
	const char *rival = cpu_ggml_path ? "ggml" : "own-dot-product";

	if (!cpu_ggml_path)
		bench_note(rep, "bar D.2 is about ggml, which --ggml does not name: dot products "
			   "of our own stand in");
	o.against = cpu_ggml_path ? "ggml" : "dot";
	o.nr_shapes = o.nr_threads = o.nr_tokens = 1;
	o.threads[0] = 1;
	for (unsigned int i = 0; i < sizeof(bars) / sizeof(bars[0]); i++) {
		struct verdict v = { .worst = INFINITY, .one_token = INFINITY };
		char name[64];

		snprintf(name, sizeof(name), "cpu-vs-%s-%u-tokens", rival, bars[i].tokens);
		o.tokens[0] = bars[i].tokens;
		measure(&o, rep, &v);
		if (v.n)
			bench_bar(rep, "D.2", name, v.ratios[0], BENCH_AT_LEAST, bars[i].goal);
		else
			bench_bar_skip(rep, "D.2", name, "%s cannot run here", rival);
	}
}

/*
 * Bars compare to a few per cent.  Where it may, the program takes the CPUs before others for
 * the seconds that each cell takes: a thread that waits for a CPU is not preempted, so
 * bench_sample() does not see it.
 */
static void before_others(struct bench_report *rep)
{
	const struct sched_param lowest = { .sched_priority = 1 };

	if (sched_setscheduler(0, SCHED_RR, &lowest))
		bench_note(rep, "without real-time priority (%s): other programs take part in "
			   "what is measured", strerror(errno));
	else
		bench_note(rep, "measured with real-time priority");
}

int bench_cpu(int argc, char **argv, struct bench_report *rep)
{
	static const struct option longs[] = {
		{ "bars", no_argument, NULL, 'b' }, { "tokens", required_argument, NULL, 't' },
		{ "threads", required_argument, NULL, 'j' }, { "shape", required_argument, NULL, 's' },
		{ "rounds", required_argument, NULL, 'r' }, { "isa", required_argument, NULL, 'i' },
		{ "against", required_argument, NULL, 'a' }, { "help", no_argument, NULL, 'h' },
		{ "ggml", required_argument, NULL, 'g' }, { 0 },
	};
	struct options o = {
		.shapes = { { 5120, 1536 }, { 4096, 1536 }, { 2048, 1408 } }, .nr_shapes = 3,
		.tokens = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 }, .nr_tokens = 10,
		.threads = { 1, 2 }, .nr_threads = 2, .rounds = 15, .against = "libxsmm,oneDNN",
	};
	struct verdict v = { .worst = INFINITY, .one_token = INFINITY };
	int c;

	limit_spinning();
	while ((c = getopt_long(argc, argv, "+h", longs, NULL)) >= 0) {
		switch (c) {
		case 'b':
			o.bars = true;
			break;
		case 't':
			o.nr_tokens = bench_numbers("--tokens", optarg, o.tokens, MAX_LIST, 1,
						    4096);
			break;
		case 'j':
			o.nr_threads = bench_numbers("--threads", optarg, o.threads, MAX_LIST, 1,
						     1024);
			break;
		case 's':
			if (bench_numbers("--shape", optarg, o.shapes[0], 2, 64, 65472) != 2 ||
			    o.shapes[0][0] % 64 || o.shapes[0][1] % 64)
				bench_usage("--shape wants two multiples of 64, not '%.40s'",
					    optarg);
			o.nr_shapes = 1;
			break;
		case 'r':
			o.rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000);
			break;
		case 'i':
			if (strcmp(optarg, "scalar") && strcmp(optarg, "avx2") &&
			    strcmp(optarg, "avx512-bf16") && strcmp(optarg, "amx-bf16"))
				bench_usage("--isa wants scalar, avx2, avx512-bf16 or amx-bf16, "
					    "not '%.40s'", optarg);
			o.isa = optarg;
			break;
		case 'a':
			o.against = optarg;
			break;
		case 'g':
			cpu_ggml_path = optarg;
			break;
		case 'h':
			bench_help(help);
		default:
			bench_usage("ndp-bench cpu --help lists the options");
		}
	}
	if (optind < argc)
		bench_usage("ndp-bench cpu takes options only, not '%.40s'", argv[optind]);
	bench_table(rep, "cpu", "Expert FFN on the CPU, wall time; ratio of the best of the others "
		    "to libndp", columns, COLUMNS);
	if (o.bars)
		before_others(rep);
	measure(&o, rep, &v);
	if (o.bars) {
		libraries_bars(rep, &v);
		dot_bars(o, rep);
	}
	return BENCH_OK;
}
