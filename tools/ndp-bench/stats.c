// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * stats.c - see bench.h: medians, bounds, and interleaved rounds.
 *
 * Nothing here knows what is measured.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define RESAMPLES 4000

uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		bench_die("out of memory");
	return p;
}

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double sorted_median(const double *x, unsigned int n)
{
	return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double bench_median(const double *x, unsigned int n)
{
	double *copy, m;

	if (n == 0)
		return NAN;
	copy = allocate(n, sizeof(*copy));
	memcpy(copy, x, n * sizeof(*copy));
	qsort(copy, n, sizeof(*copy), ascending);
	m = sorted_median(copy, n);
	free(copy);
	return m;
}

double bench_geomean(const double *x, unsigned int n)
{
	double sum = 0;

	for (unsigned int i = 0; i < n; i++)
		sum += log(x[i]);
	return n ? exp(sum / n) : NAN;
}

double bench_lower95(const double *x, unsigned int n)
{
	double *one, *medians, bound;
	uint64_t random = 20260301;

	if (n == 0)
		return NAN;
	one = allocate(n, sizeof(*one));
	medians = allocate(RESAMPLES, sizeof(*medians));
	for (unsigned int r = 0; r < RESAMPLES; r++) {
		for (unsigned int i = 0; i < n; i++)
			one[i] = x[(bench_random(&random) >> 32) * n >> 32];
		qsort(one, n, sizeof(*one), ascending);
		medians[r] = sorted_median(one, n);
	}
	qsort(medians, RESAMPLES, sizeof(*medians), ascending);
	bound = medians[RESAMPLES / 20];
	free(one);
	free(medians);
	return bound;
}

struct bench_ratio bench_ratio(const double *a, const double *b, unsigned int rounds)
{
	double *q = allocate(rounds, sizeof(*q));
	struct bench_ratio r;

	for (unsigned int i = 0; i < rounds; i++)
		q[i] = b ? a[i] / b[i] : a[i];
	r.median = bench_median(q, rounds);
	r.lower95 = bench_lower95(q, rounds);
	free(q);
	return r;
}

/* ---- rounds ------------------------------------------------------------------- */

/* Of all threads of this process; a thread that waits is not preempted. */
static long preemptions(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_nivcsw;
}

struct round {
	long preempted;
	double ns[];		/* of each contender */
};

/* Runs all of them once, beginning with contender @first. */
static void run_round(struct round *round, const struct bench_contender *c, unsigned int n,
		      unsigned int first)
{
	long before = preemptions();

	for (unsigned int k = 0; k < n; k++) {
		unsigned int i = (first + k) % n;
		uint64_t start = bench_now_ns();

		c[i].run(c[i].arg);
		round->ns[i] = (double)(bench_now_ns() - start);
	}
	round->preempted = preemptions() - before;
}

static int less_preempted(const void *a, const void *b)
{
	const struct round *const *x = a, *const *y = b;

	return ((*x)->preempted > (*y)->preempted) - ((*x)->preempted < (*y)->preempted);
}

void bench_sample(struct bench_sampling *s, struct bench_contender *c, unsigned int n)
{
	const size_t size = sizeof(struct round) + n * sizeof(double);
	const unsigned int most = s->want * 64 + 64;
	struct round **rounds = allocate(most, sizeof(struct round *));
	struct round *unused = allocate(1, size);
	unsigned int done = 0, undisturbed = 0;
	uint64_t start;

	for (unsigned int i = 0; i < s->warmup; i++)
		run_round(unused, c, n, i);
	free(unused);
	start = bench_now_ns();
	while (done < most && undisturbed < s->want &&
	       (done < s->want || (double)(bench_now_ns() - start) < s->seconds * 1e9)) {
		rounds[done] = allocate(1, size);
		run_round(rounds[done], c, n, done);
		undisturbed += rounds[done]->preempted == 0;
		done++;
	}
	s->disturbed = done - undisturbed;
	s->rounds = done < s->want ? done : s->want;
	s->dirty = undisturbed < s->rounds ? s->rounds - undisturbed : 0;
	qsort(rounds, done, sizeof(struct round *), less_preempted);
	for (unsigned int i = 0; i < n; i++) {
		c[i].ns = allocate(s->rounds, sizeof(*c[i].ns));
		for (unsigned int r = 0; r < s->rounds; r++)
			c[i].ns[r] = rounds[r]->ns[i];
	}
	for (unsigned int r = 0; r < done; r++)
		free(rounds[r]);
	free(rounds);
}

void bench_samples_free(struct bench_contender *c, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		free(c[i].ns);
		c[i].ns = NULL;
	}
}
