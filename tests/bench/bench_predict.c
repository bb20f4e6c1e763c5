/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * bench_predict - the predictor against its rivals on routing traces (bar S.5, its half).
 *
 *   bench_predict [--synthetic[=SEED]] [TRACE...]		(default: those of tests/traces)
 *
 * Profiles are learned on the first half of a trace, everything is scored on the second: classes by
 * rank (5/25/70 %) one step ahead, ties at random on both sides, the same draws for every rival. A
 * difference counts when it is larger than twice its error, by bootstrap of the steps in blocks of
 * 16, or of an eighth of the steps if there are fewer (neighbouring steps are alike). --synthetic
 * adds traces whose laws are known, for each of which one of the rivals is hard to beat.
 *
 * The cost of an update is wall time, the best of many runs; scores have no clock in them.
 */
#include "bench.h"

#include <math.h>
#include <ndp/predict.h>
#include <zlib.h>

enum {
	EMA_03,
	EMA_01,
	LAST,
	CUMULATIVE,
	STATIC,
	OURS,
	RIVALS,
	METRICS = 3,
	RESAMPLES = 1000,
};

static const char *const names[RIVALS] = {
	"EMA(0.3)", "EMA(0.1)", "last value", "cumulative mean", "static profile", "ours",
};
static const char *const metrics[METRICS] = { "accuracy", "hot recall", "coverage" };

struct trace {
	const char *name;
	uint32_t steps, layers, experts;
	uint32_t *tokens;	/* [steps][layers][experts] */
};

struct verdict {
	double worst;		/* in errors, over all rivals, metrics and traces */
	double over_ema;	/* least lead over EMA(0.3) on gpt-oss, by accuracy and coverage */
	unsigned comparisons;
	unsigned losses;
};

static uint32_t *row(const struct trace *t, uint32_t step, uint32_t layer)
{
	return t->tokens + ((size_t)step * t->layers + layer) * t->experts;
}

/* ---- traces ------------------------------------------------------------- */

static void trace_load(struct trace *t, const char *path)
{
	struct entry {
		uint32_t step, layer, expert, count;
	} *entries = NULL;
	size_t count = 0, room = 0, line = 1;
	int layer_index[NDP_PREDICT_MAX_LAYERS];
	char text[128];
	gzFile in = gzopen(path, "rb");

	if (!in || !gzgets(in, text, sizeof(text)))
		die("cannot read the trace %s", path);
	memset(layer_index, -1, sizeof(layer_index));
	memset(t, 0, sizeof(*t));
	t->name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	while (gzgets(in, text, sizeof(text))) {
		struct entry e;

		line++;
		if (sscanf(text, "%u,%u,%u,%u", &e.step, &e.layer, &e.expert, &e.count) != 4 ||
		    e.layer >= NDP_PREDICT_MAX_LAYERS || e.expert >= NDP_PREDICT_MAX_EXPERTS ||
		    e.step > 1000000)
			die("%s:%zu is not step,layer,expert,count", path, line);
		if (count == room) {
			room = room ? 2 * room : 65536;
			entries = realloc(entries, room * sizeof(*entries));
			if (!entries)
				die("no memory for %s", path);
		}
		entries[count++] = e;
		layer_index[e.layer] = 0;
		t->steps = e.step >= t->steps ? e.step + 1 : t->steps;
		t->experts = e.expert >= t->experts ? e.expert + 1 : t->experts;
	}
	if (!gzeof(in) || gzclose(in) != Z_OK || !count)
		die("%s ends early", path);
	for (uint32_t l = 0; l < NDP_PREDICT_MAX_LAYERS; l++)
		if (!layer_index[l])
			layer_index[l] = (int)t->layers++;
	t->tokens = calloc((size_t)t->steps * t->layers * t->experts, sizeof(*t->tokens));
	if (!t->tokens)
		die("no memory for %s", path);
	for (size_t i = 0; i < count; i++)
		row(t, entries[i].step, (uint32_t)layer_index[entries[i].layer])
			[entries[i].expert] = entries[i].count;
	free(entries);
}

static double uniform(uint64_t *seed)
{
	return ((double)(random64(seed) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t *seed)
{
	const double radius = sqrt(-2 * log(uniform(seed)));

	return radius * cos(2 * M_PI * uniform(seed));
}

/* How the logarithms of the experts' weights (normal, deviation 1.2) move from step to step. */
enum law {
	LAW_STILL,
	LAW_WALK,	/* by a normal deviate times @pace, drawn back to the middle */
	LAW_SWITCH,	/* all new every @pace steps */
	LAW_SWAP,	/* two experts change places, once in 1/@pace steps */
	LAW_NOISE,	/* still, but noisier than counting is */
	/*
	 * TriMoE's skew: 5 % of the experts get 40 %, the next 25 % 50 %, alike within each;
	 * @pace of the experts trade their weight with another in each step.
	 */
	LAW_CLASSES,
	LAW_CLASSES_SHIFT,	/* the same, but all are dealt anew every @pace steps */
};

struct synthetic {
	const char *name;
	enum law law;
	double pace;
	uint32_t experts, selections, steps, layers;
};

static const struct synthetic synthetics[] = {
	{ "still-160", LAW_STILL, 0, 160, 3072, 400, 6 },
	{ "still-32", LAW_STILL, 0, 32, 64, 1000, 12 },
	{ "still-64-one-token", LAW_STILL, 0, 64, 8, 300, 16 },
	{ "walk-fast", LAW_WALK, 0.4, 64, 512, 600, 8 },
	{ "walk", LAW_WALK, 0.1, 64, 512, 600, 8 },
	{ "walk-slow", LAW_WALK, 0.03, 64, 512, 600, 8 },
	{ "switch-50", LAW_SWITCH, 50, 64, 512, 600, 8 },
	{ "switch-250", LAW_SWITCH, 250, 64, 256, 900, 8 },
	{ "swap", LAW_SWAP, 0.1, 160, 1024, 600, 8 },
	{ "noise", LAW_NOISE, 0.5, 64, 256, 600, 8 },
	{ "noise-high", LAW_NOISE, 1.5, 64, 256, 600, 8 },
	{ "noise-large-batch", LAW_NOISE, 0.5, 128, 8192, 400, 6 },
	{ "walk-large-batch", LAW_WALK, 0.1, 128, 8192, 400, 6 },
	{ "walk-small-batch", LAW_WALK, 0.1, 64, 24, 600, 8 },
	{ "swap-small-batch", LAW_SWAP, 0.1, 64, 48, 600, 8 },
	{ "switch-100-large-batch", LAW_SWITCH, 100, 64, 4096, 600, 8 },
	{ "classes-still", LAW_CLASSES, 0, 160, 3072, 300, 8 },
	{ "classes-drift-0.001", LAW_CLASSES, 0.001, 160, 3072, 400, 8 },
	{ "classes-drift-0.01", LAW_CLASSES, 0.01, 160, 3072, 400, 8 },
	{ "classes-drift-0.05", LAW_CLASSES, 0.05, 160, 3072, 400, 8 },
	{ "classes-drift-0.2", LAW_CLASSES, 0.2, 160, 3072, 400, 8 },
	{ "classes-small-batch", LAW_CLASSES, 0.01, 160, 96, 400, 8 },
	{ "classes-batch-64", LAW_CLASSES, 0.01, 160, 384, 400, 8 },
	{ "classes-batch-4096", LAW_CLASSES, 0.01, 160, 24576, 300, 4 },
	{ "classes-32", LAW_CLASSES, 0.01, 32, 1024, 500, 12 },
	{ "classes-shift-40", LAW_CLASSES_SHIFT, 40, 160, 3072, 400, 8 },
	{ "classes-shift-150", LAW_CLASSES_SHIFT, 150, 160, 768, 600, 8 },
};

static void swap(double *a, double *b)
{
	const double kept = *a;

	*a = *b;
	*b = kept;
}

static void deal_classes(double *logs, uint32_t experts, uint64_t *seed)
{
	const uint32_t hot = ndp_class_hot(experts), warm = ndp_class_warm(experts);

	for (uint32_t e = 0; e < experts; e++)
		logs[e] = e < hot ? log(0.4 / hot) : e < hot + warm ? log(0.5 / warm) :
			  log(0.1 / (experts - hot - warm));
	for (uint32_t e = experts - 1; e > 0; e--)
		swap(logs + e, logs + random64(seed) % (e + 1));
}

static void trace_make(struct trace *t, const struct synthetic *s, uint64_t seed)
{
	const double spread = 1.2;
	double *logs = calloc((size_t)s->layers * s->experts, sizeof(*logs));
	double *sums = calloc(s->experts, sizeof(*sums));

	*t = (struct trace){ s->name, s->steps, s->layers, s->experts, NULL };
	t->tokens = calloc((size_t)t->steps * t->layers * t->experts, sizeof(*t->tokens));
	if (!logs || !sums || !t->tokens)
		die("no memory for the synthetic trace %s", s->name);
	for (uint32_t i = 0; i < s->layers * s->experts; i++)
		logs[i] = spread * normal(&seed);
	for (uint32_t step = 0; step < s->steps; step++) {
		for (uint32_t l = 0; l < s->layers; l++) {
			double *w = logs + (size_t)l * s->experts, total = 0;
			uint32_t *tokens = row(t, step, l);

			if (s->law == LAW_SWAP && uniform(&seed) < s->pace)
				swap(w + random64(&seed) % s->experts,
				     w + random64(&seed) % s->experts);
			if (s->law == LAW_CLASSES)
				for (uint32_t e = 0; e < s->experts; e++)
					if (uniform(&seed) < s->pace)
						swap(w + e, w + random64(&seed) % s->experts);
			if ((s->law == LAW_CLASSES && !step) ||
			    (s->law == LAW_CLASSES_SHIFT && !(step % (uint32_t)s->pace)))
				deal_classes(w, s->experts, &seed);
			for (uint32_t e = 0; e < s->experts; e++) {
				if (s->law == LAW_WALK)
					w[e] = w[e] * sqrt(1 - pow(s->pace / spread, 2)) +
					       s->pace * normal(&seed);
				if (s->law == LAW_SWITCH && !(step % (uint32_t)s->pace))
					w[e] = spread * normal(&seed);
				total += exp(w[e] + (s->law == LAW_NOISE ?
						     s->pace * normal(&seed) : 0));
				sums[e] = total;
			}
			for (uint32_t i = 0; i < s->selections; i++) {
				const double at = uniform(&seed) * total;
				uint32_t low = 0, high = s->experts - 1;

				while (low < high) {
					const uint32_t middle = (low + high) / 2;

					if (sums[middle] > at)
						high = middle;
					else
						low = middle + 1;
				}
				tokens[low]++;
			}
		}
	}
	free(logs);
	free(sums);
}

/* ---- scoring --------------------------------------------------------------- */

static double metric(const struct ndp_score *s, int m)
{
	return m == 0 ? s->accuracy : m == 1 ? s->hot_recall : s->coverage;
}

/* Error of the mean of @values, by bootstrap in blocks. */
static double bootstrap_error(const double *values, uint32_t count, uint64_t *seed)
{
	const uint32_t block = count >= 128 ? 16 : count >= 8 ? count / 8 : 1;
	const uint32_t blocks = count / block;
	double sum = 0, squares = 0;

	for (uint32_t i = 0; i < RESAMPLES; i++) {
		double mean = 0;

		for (uint32_t b = 0; b < blocks; b++) {
			const uint32_t at = (uint32_t)(random64(seed) % (count - block + 1));

			for (uint32_t k = 0; k < block; k++)
				mean += values[at + k];
		}
		mean /= (double)blocks * block;
		sum += mean;
		squares += mean * mean;
	}
	sum /= RESAMPLES;
	return sqrt(fmax(squares / RESAMPLES - sum * sum, 0));
}

/* @score: [RIVALS][steps of the second half], means over layers. */
static void score_trace(const struct trace *t, struct ndp_score *score)
{
	const uint32_t half = t->steps / 2, experts = t->experts;
	const size_t cells = (size_t)t->layers * experts;
	float *loads[RIVALS];
	uint64_t *sums = calloc(cells, sizeof(*sums));
	uint8_t *predicted = malloc(experts), *actual = malloc(experts);
	void *work = malloc(ndp_load_classes_bytes(experts));
	void *mem = malloc(ndp_predict_bytes(t->layers, experts));
	struct ndp_predictor *ours;

	if (!sums || !predicted || !actual || !work || !mem)
		die("no memory for scoring");
	ours = ndp_predict_init(mem, t->layers, experts);
	for (int r = 0; r < RIVALS; r++) {
		loads[r] = calloc(cells, sizeof(float));
		if (!loads[r])
			die("no memory for scoring");
	}
	for (uint32_t step = 0; step < t->steps; step++) {
		for (uint32_t l = 0; l < t->layers; l++) {
			const uint32_t *tokens = row(t, step, l);
			float *at[RIVALS];

			for (int r = 0; r < RIVALS; r++)
				at[r] = loads[r] + (size_t)l * experts;
			if (step >= half) {
				const uint64_t draws = 1 + 2 * ((uint64_t)step * t->layers + l);
				uint64_t seed = draws * 0x9e3779b97f4a7c15ull | 1;
				float now[NDP_PREDICT_MAX_EXPERTS];

				for (uint32_t e = 0; e < experts; e++)
					now[e] = (float)tokens[e];
				ndp_load_classes(now, experts, &seed, work, actual);
				for (int r = 0; r < RIVALS; r++) {
					uint64_t same = seed;

					ndp_load_classes(r == OURS ? ndp_predict_shares(ours, l)
								   : at[r],
							 experts, &same, work, predicted);
					ndp_score_add(&score[(size_t)r * (t->steps - half) + step -
							     half],
						      predicted, actual, tokens, experts);
				}
			}
			ndp_predict_update(ours, l, tokens);
			ndp_ema_update(at[EMA_03], experts, step ? 0.3f : 1, tokens);
			ndp_ema_update(at[EMA_01], experts, step ? 0.1f : 1, tokens);
			ndp_ema_update(at[LAST], experts, 1, tokens);
			for (uint32_t e = 0; e < experts; e++) {
				sums[(size_t)l * experts + e] += tokens[e];
				at[CUMULATIVE][e] = (float)sums[(size_t)l * experts + e] /
						    (float)(step + 1);
				if (step < half)
					at[STATIC][e] = at[CUMULATIVE][e];
			}
		}
	}
	for (int r = 0; r < RIVALS; r++)
		free(loads[r]);
	free(sums);
	free(predicted);
	free(actual);
	free(work);
	free(mem);
}

static void judge(const struct trace *t, struct verdict *v)
{
	const uint32_t scored = t->steps - t->steps / 2;
	struct ndp_score *score = calloc((size_t)RIVALS * scored, sizeof(*score)), chance;
	double *difference = calloc(scored, sizeof(*difference));
	uint64_t seed = 1;

	if (!score || !difference)
		die("no memory for scores");
	score_trace(t, score);
	ndp_score_chance(&chance, t->experts);
	printf("# %s: %u steps, %u layers, %u experts; in %%, behind it our lead and its error\n",
	       t->name, t->steps, t->layers, t->experts);
	printf("#   %-16s %6.2f                  %6.2f                  %6.2f\n", "chance",
	       100 * chance.accuracy, 100 * chance.hot_recall, 100 * chance.coverage);
	for (int r = 0; r < RIVALS; r++) {
		printf("#   %-16s", names[r]);
		for (int m = 0; m < METRICS; m++) {
			double mean = 0, lead = 0, error, errors;
			uint32_t count = 0;

			for (uint32_t i = 0; i < scored; i++) {
				const struct ndp_score *theirs = &score[(size_t)r * scored + i];
				const struct ndp_score *mine = &score[(size_t)OURS * scored + i];

				if (!theirs->steps)
					continue;
				difference[count] = (metric(mine, m) - metric(theirs, m)) /
						    (double)theirs->steps;
				lead += difference[count++];
				mean += metric(theirs, m) / (double)theirs->steps;
			}
			if (!count)
				die("%s has no tokens in its second half", t->name);
			lead /= count;
			printf(" %6.2f", 100 * mean / count);
			if (r == OURS)
				printf("                 ");
			if (r == OURS)
				continue;
			error = bootstrap_error(difference, count, &seed);
			errors = lead == 0 ? 0 : lead / fmax(error, 1e-12);
			printf(" (%+6.3f +-%5.3f)", 100 * lead, 100 * error);
			v->comparisons++;
			v->losses += errors < -2;
			v->worst = fmin(v->worst, errors);
			if (errors < -2)
				printf("[behind by %s]", metrics[m]);
			if (r == EMA_03 && m != 1 && strstr(t->name, "gptoss"))
				v->over_ema = fmin(v->over_ema, errors);
		}
		putchar('\n');
	}
	free(score);
	free(difference);
}

/* Wall nanoseconds of an update of one of several layers, as a model's step makes them. */
static int rising(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The median; the first round, in which nothing can be learned, does not count. */
static double update_ns(uint32_t experts)
{
	enum { LAYERS = 16, ROUNDS = 2001 };
	static double ns[ROUNDS];
	void *mem = malloc(ndp_predict_bytes(LAYERS, experts));
	uint32_t *tokens = malloc(64 * experts * sizeof(*tokens));
	struct ndp_predictor *p;
	uint64_t seed = 7;

	if (!mem || !tokens)
		die("no memory for timing");
	p = ndp_predict_init(mem, LAYERS, experts);
	for (uint32_t i = 0; i < 64 * experts; i++)
		tokens[i] = (uint32_t)(random64(&seed) % (1 + i % experts));
	for (int round = 0; round < ROUNDS; round++) {
		const uint64_t start = now_ns();

		for (uint32_t l = 0; l < LAYERS; l++)
			ndp_predict_update(p, l, tokens + (size_t)((round + l) % 64) * experts);
		ns[round] = (double)(now_ns() - start) / LAYERS;
	}
	qsort(ns + 1, ROUNDS - 1, sizeof(*ns), rising);
	free(mem);
	free(tokens);
	return ns[ROUNDS / 2];
}

static int bar(const char *name, double value, const char *goal, int pass)
{
	printf("bar S.5 %s value=%.2f goal=%s %s\n", name, value, goal, pass ? "pass" : "fail");
	return !pass;
}

int main(int argc, char **argv)
{
	static const char *const defaults[] = {
		"tests/traces/trace_gptoss20b_mixed_b16_first600.csv.gz",
		"tests/traces/trace_gptoss20b_mixed_b64_first300.csv.gz",
		"tests/traces/trace_gptoss20b_mixed_b256.csv.gz",
		"tests/traces/trace_gptoss20b_topical_b256.csv.gz",
		"tests/traces/trace_olmoe_1b7b_b1.csv.gz",
	};
	struct verdict real = { HUGE_VAL, HUGE_VAL, 0, 0 }, made = real;
	const int synthetic = argc > 1 && !strncmp(argv[1], "--synthetic", 11);
	const uint64_t seed = synthetic && argv[1][11] == '=' ?
			      strtoull(argv[1] + 12, NULL, 10) | 1 : 20260301;
	const int first = 1 + synthetic;
	struct trace t;
	double ns;
	int failed = 0;

	for (int i = first; i < argc; i++) {
		trace_load(&t, argv[i]);
		judge(&t, &real);
		free(t.tokens);
	}
	for (size_t i = 0; argc == first && i < sizeof(defaults) / sizeof(defaults[0]); i++) {
		trace_load(&t, defaults[i]);
		judge(&t, &real);
		free(t.tokens);
	}
	for (size_t i = 0; synthetic && i < sizeof(synthetics) / sizeof(synthetics[0]); i++) {
		trace_make(&t, &synthetics[i], seed);
		judge(&t, &made);
		free(t.tokens);
	}
	printf("# beyond 2 bootstrap errors counts; below are the smallest leads, in errors\n");
	if (synthetic)
		printf("# synthetic traces: %u comparisons, %u losses, the worst by %.2f errors\n",
		       made.comparisons, made.losses, made.worst);
	failed |= bar("predictor-never-worse", real.worst, ">=-2", real.worst >= -2);
	if (isfinite(real.over_ema))
		failed |= bar("predictor-over-ema0.3", real.over_ema, ">2", real.over_ema > 2);
	for (uint32_t experts = 32; experts <= 1024; experts *= 2)
		if (experts != 256)
			printf("# %u experts: %.0f ns an update (wall)\n", experts,
			       update_ns(experts));
	ns = update_ns(256);
	failed |= bar("predictor-update-256-ns-wall", ns, "<1000", ns < 1000);
	return failed;
}
