/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * bench.h - what the subcommands of ndp-bench share: a report, sampling, statistics
 * and the machine's limits.
 *
 * A subcommand is one function in a file of its own (cpu.c, gpu.c, ndp.c, layer.c,
 * load.c).  It parses its options, measures, and puts rows and bars into the
 * report; it prints nothing itself.  Rules of the report:
 *
 * - A key of a time says which clock: wall_us, modelled_us.  The two are never in
 *   one number.
 * - What is measured stands beside its limit (limit_gbps, limit_gflops), measured
 *   in the same run.
 * - A bar is judged by medians of interleaved rounds, or by the lower bound of one.
 *
 * `make bench-moe` runs every subcommand of MOE_BENCH_RUNS with --bars, which
 * measures what its bars are about and prints them.  Without --bars a subcommand
 * measures what its options say, in seconds.
 */
#ifndef NDP_BENCH_BENCH_H
#define NDP_BENCH_BENCH_H

#include <ndp/error.h>
#include <ndp/pack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- subcommands ---------------------------------------------------------- */

struct bench_report;

enum {
	BENCH_OK = 0,
	BENCH_BAR_FAILED = 1,
	BENCH_USAGE = 2,
	BENCH_FAILED = 3,
};

/* argv[0] is the subcommand's name; --json and the like are gone.  Returns a status above. */
typedef int (*bench_command)(int argc, char **argv, struct bench_report *rep);

int bench_cpu(int argc, char **argv, struct bench_report *rep);
int bench_gpu(int argc, char **argv, struct bench_report *rep);
int bench_ndp(int argc, char **argv, struct bench_report *rep);
int bench_layer(int argc, char **argv, struct bench_report *rep);
int bench_load(int argc, char **argv, struct bench_report *rep);
/* `layer` with --predict. */
int bench_layer_predict(int argc, char **argv, struct bench_report *rep);

/* One line on stderr (with --json also the document {"error": ...}), status 3. */
void bench_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The same for a usage error, status 2. */
void bench_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* What --help of a subcommand prints; ends with status 0. */
void bench_help(const char *text) __attribute__((noreturn));

/* A number of an option, within [min, max], or bench_usage(). */
uint64_t bench_number(const char *option, const char *text, uint64_t min, uint64_t max);
/* "1,2,4" -> count of @list, at most @max. */
unsigned int bench_numbers(const char *option, const char *text, uint32_t *list,
			   unsigned int max, uint32_t low, uint32_t high);

/* ---- the report (report.c) ------------------------------------------------ */

struct bench_column {
	const char *key;	/* in JSON */
	const char *head;	/* in text; '\n' divides it into two lines */
	int width;		/* in text, at least that of the head */
	int digits;		/* behind the point; -1: the cell is text */
};

struct bench_cell {
	const char *text;
	double number;		/* NaN: "-", null in JSON */
};

#define BENCH_TEXT(s) ((struct bench_cell){ .text = (s) })
#define BENCH_NUM(x) ((struct bench_cell){ .number = (x) })

/* Begins a table.  @columns must stay; @title is a sentence that says what is measured. */
void bench_table(struct bench_report *rep, const char *key, const char *title,
		 const struct bench_column *columns, unsigned int n);
/* A row of the table begun last: as many cells as it has columns. */
void bench_row(struct bench_report *rep, const struct bench_cell *cells);

/* A line of text, kept in JSON's "notes". */
void bench_note(struct bench_report *rep, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

enum bench_goal { BENCH_AT_LEAST, BENCH_AT_MOST };
/* "bar D.1 name value=1.02 goal=>=1.00 pass".  @name: words joined by '-'. */
void bench_bar(struct bench_report *rep, const char *bar, const char *name, double value,
	       enum bench_goal goal, double limit);
/* It cannot be measured here: "skip", with the reason.  No pass, no failure. */
void bench_bar_skip(struct bench_report *rep, const char *bar, const char *name,
		    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- statistics (stats.c) -------------------------------------------------- */

uint64_t bench_now_ns(void);

double bench_median(const double *x, unsigned int n);
double bench_geomean(const double *x, unsigned int n);
/*
 * The value that the median of @x is above with 95 % confidence: the 5th percentile
 * of the medians of 4,000 resamples (bootstrap, percentile method).  Equal input
 * gives equal output.
 */
double bench_lower95(const double *x, unsigned int n);

/* Something to time, against others. */
struct bench_contender {
	const char *name;
	void (*run)(void *arg);
	void *arg;
	double *ns;	/* out: wall time of each round; bench_samples_free() */
};

struct bench_sampling {
	unsigned int want;	/* rounds to keep; 15 or more where a bar is judged */
	unsigned int warmup;	/* rounds before */
	double seconds;		/* after which disturbed rounds are taken as well */
	unsigned int rounds;	/* out: kept */
	unsigned int disturbed;	/* out: rounds in which a thread of the process was preempted */
	unsigned int dirty;	/* out: of these, kept, because there were too few others */
};

/*
 * Runs all contenders once in each round, beginning with another one each time, so
 * that what changes on the machine changes for all.  A round in which a
 * thread of this process was preempted (ru_nivcsw of getrusage(2), of all threads)
 * is thrown away, unless too few others come in time: then the least disturbed
 * are kept, and counted.
 */
void bench_sample(struct bench_sampling *s, struct bench_contender *c, unsigned int n);
void bench_samples_free(struct bench_contender *c, unsigned int n);

/* Of @rounds samples: median of them, or of a[i] / b[i], and its lower 95 % bound. */
struct bench_ratio {
	double median;
	double lower95;
};
struct bench_ratio bench_ratio(const double *a, const double *b, unsigned int rounds);

/* ---- the machine (machine.c) ------------------------------------------------ */

/* Threads that work together; the caller is one of them. */
struct bench_team;
struct bench_team *bench_team_start(unsigned int threads);
void bench_team_stop(struct bench_team *t);
/* @fn(arg, i) on thread i of all, returns when all are done. */
void bench_team_run(struct bench_team *t, void (*fn)(void *arg, unsigned int i), void *arg);

/*
 * Reads memory as fast as it goes: each run the next @bytes of a buffer that no
 * cache holds.  A contender, so that what reads weights can be compared round by
 * round.
 */
struct bench_reader;
struct bench_reader *bench_reader_start(unsigned int threads, size_t bytes);
void bench_reader_stop(struct bench_reader *r);
void bench_reader_run(void *reader);

/* Copies as fast as memcpy() goes, from and to memory that no cache holds. */
struct bench_copier;
struct bench_copier *bench_copier_start(unsigned int threads, size_t bytes);
void bench_copier_stop(struct bench_copier *c);
void bench_copier_run(void *copier);

/* The best of a few runs: GB/s read, GB/s copied (bytes copied, not moved twice). */
double bench_read_gbps(unsigned int threads);
double bench_copy_gbps(unsigned int threads);
/*
 * GFLOP/s of multiply-adds in registers: FP32 by AVX2 or AVX-512, or BF16 pairs by AMX or
 * AVX-512 where the CPU has them; 0: none of these.
 */
double bench_peak_fp32_gflops(unsigned int threads);
double bench_peak_bf16_gflops(unsigned int threads);

/* CPUs that this process may use. */
unsigned int bench_cpus(void);
/* Size of the largest cache. */
size_t bench_cache_bytes(void);

/* ---- data (data.c) -------------------------------------------------------------- */

uint64_t bench_random(uint64_t *state);
/* Uniform in [-scale, scale]. */
void bench_random_f32(float *dst, size_t n, float scale, uint64_t seed);
void bench_random_bf16(ndp_bf16 *dst, size_t n, float scale, uint64_t seed);

/*
 * Experts in packed form, in ordinary memory: their results are of the order of
 * one.  Padding is zero.
 */
struct bench_experts {
	struct ndp_expert_shape shape;
	unsigned int n;
	size_t bytes;		/* of one */
	void **blocks;		/* [n] */
};
void bench_experts_make(struct bench_experts *e, uint32_t hidden, uint32_t neurons,
			unsigned int n, uint64_t seed);
void bench_experts_free(struct bench_experts *e);

#endif
