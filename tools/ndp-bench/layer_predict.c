// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer_predict.c - `ndp-bench layer --predict PROFILE`: what the scheduler says that
 * layers will take on the machine of a profile (ndp-calibrate), beside what they took.
 *
 * Predicted is the makespan of the plan that the layer was run by.  Measured is the
 * wall time of the whole call, so what the plan does not know (sorting, scheduling,
 * adding up) counts as its error.
 */
#include "bench.h"

#include <getopt.h>
#include <math.h>
#include <ndp/moe.h>
#include <ndp/profile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MODELS = 8, MAX_BATCHES = 16, MAX_CELLS = 256 };

static const char usage[] =
	"Usage: ndp-bench layer --predict PROFILE --model PATH [OPTION]...\n\n"
	"Predicted time of layers beside the measured one.\n\n"
	"  --predict PROFILE  of this machine, made by ndp-calibrate: a name or a file\n"
	"  --model PATH       its first MoE layer is run; up to 8 times\n"
	"  --device SPEC      DIMMs (default: soft:dimms=1,size=2G)\n"
	"  --threads N        of the CPU domain (default: 1)\n"
	"  --batches LIST     tokens (default: 5,20,80,200)\n"
	"  --policy NAME      (default: split)\n"
	"  --rounds N         kept of each measurement (default: 15)\n"
	"  --bars             judge bar D.5\n";

struct options {
	const char *profile;
	const char *models[MAX_MODELS];
	unsigned int nr_models;
	const char *device;
	uint32_t threads;
	uint32_t batches[MAX_BATCHES];
	unsigned int nr_batches;
	int policy;
	unsigned int rounds;
	bool bars;
};

/* One layer and a batch with a routing for it. */
struct layer {
	struct ndp_moe_context *ctx;
	uint32_t layer, tokens, k, hidden;
	float *x, *out, *weights;
	uint32_t *ids;
	struct ndp_moe_report report;	/* of the last run */
};

static void run(void *arg)
{
	struct layer *l = arg;
	struct ndp_error err;

	if (ndp_moe_forward_routed(l->ctx, l->layer, NDP_REGIME_AUTO, l->x, l->hidden, l->tokens,
				   l->k, l->ids, l->weights, l->out, l->hidden, &l->report,
				   &err) < 0)
		bench_die("%s", err.message);
}

/*
 * Experts drawn without returning them, expert e with weight 1 / (e + 4): the busiest
 * get several times what the others get, as in recorded traces.
 */
static void route(struct layer *l, uint32_t experts, uint64_t seed)
{
	double *p = malloc(experts * sizeof(*p));
	uint64_t random = seed * 2654435761u + 1;

	if (!p)
		bench_die("out of memory");
	for (uint32_t t = 0; t < l->tokens; t++) {
		double sum = 0;

		for (uint32_t e = 0; e < experts; e++)
			sum += p[e] = 1.0 / (e + 4);
		for (uint32_t j = 0; j < l->k; j++) {
			double at = (double)(bench_random(&random) >> 11) * 0x1p-53 * sum;
			uint32_t e = 0, last = 0;

			for (; e < experts && at >= 0; e++)
				if (p[e] > 0) {
					at -= p[e];
					last = e;
				}
			l->ids[t * l->k + j] = last;
			l->weights[t * l->k + j] = 1.f / l->k;
			sum -= p[last];
			p[last] = 0;
		}
	}
	free(p);
}

static void layer_make(struct layer *l, uint32_t tokens, uint32_t experts, uint64_t seed)
{
	const size_t n = (size_t)tokens * l->hidden, pairs = (size_t)tokens * l->k;

	l->tokens = tokens;
	l->x = malloc(n * sizeof(*l->x));
	l->out = malloc(n * sizeof(*l->out));
	l->ids = malloc(pairs * sizeof(*l->ids));
	l->weights = malloc(pairs * sizeof(*l->weights));
	if (!l->x || !l->out || !l->ids || !l->weights)
		bench_die("out of memory");
	bench_random_f32(l->x, n, 1, seed);
	route(l, experts, seed);
}

static void layer_free(struct layer *l)
{
	free(l->x);
	free(l->out);
	free(l->ids);
	free(l->weights);
}

struct machine {
	struct ndp_host_profile host;
	struct ndp_device *dev;
	struct ndp_cpu *cpu;
};

static void machine_open(struct machine *m, const struct options *o)
{
	const struct ndp_cpu_options threads = { .threads = o->threads };
	struct ndp_error err;
	char *path;

	memset(m, 0, sizeof(*m));
	if (ndp_profile_find("hosts", o->profile, &path, &err) < 0 ||
	    ndp_host_profile_load(&m->host, path, &err) < 0 ||
	    ndp_open(&m->dev, o->device, &err) < 0 || ndp_cpu_open(&m->cpu, &threads, &err) < 0)
		bench_die("%s", err.message);
	if (!(m->host.host.cpu.gflops > 0) || !(m->host.host.dimm.gflops > 0))
		bench_die("%s does not describe both CPU and NDP: ndp-calibrate --domains cpu,ndp "
			  "does", path);
	free(path);
}

static void cell(struct bench_report *rep, struct layer *l, const struct ndp_model_info *info,
		 const struct options *o, uint32_t tokens, double *error)
{
	struct bench_sampling s = { .want = o->rounds, .warmup = 2, .seconds = 3 };
	struct bench_contender c = { .name = "layer", .run = run, .arg = l };
	double wall;
	char shape[32];

	layer_make(l, tokens, info->router.experts, 77 + tokens);
	bench_sample(&s, &c, 1);
	wall = bench_median(c.ns, s.rounds);
	*error = fabs(l->report.modelled_ns / wall - 1);
	snprintf(shape, sizeof(shape), "%ux%u", info->hidden, info->routed.neurons);
	bench_row(rep, (struct bench_cell[]){
		BENCH_TEXT(shape), BENCH_NUM(info->router.experts), BENCH_NUM(l->k),
		BENCH_NUM(tokens), BENCH_NUM((double)l->report.domain[NDP_DOMAIN_CPU].tokens),
		BENCH_NUM((double)l->report.domain[NDP_DOMAIN_NDP].tokens),
		BENCH_NUM(l->report.modelled_ns / 1e3), BENCH_NUM(wall / 1e3),
		BENCH_NUM(l->report.modelled_ns / wall), BENCH_NUM((double)s.dirty),
	});
	bench_samples_free(&c, 1);
	layer_free(l);
}

static unsigned int predict_model(struct bench_report *rep, const struct machine *m,
				  const char *path, const struct options *o, double *errors)
{
	struct ndp_moe_options options = {
		.device = m->dev, .cpu = m->cpu, .host = &m->host.host, .policy = o->policy,
		/*
		 * What emulated DIMMs and the CPU take from one another is in the curves,
		 * which were measured while both computed.
		 */
		.charges = NDP_CHARGE_CHANNELS,
	};
	struct ndp_model_info info;
	struct layer l = { 0 };
	struct ndp_model *model;
	struct ndp_error err;
	struct ndp_moe *moe;
	uint32_t most = 0;

	for (unsigned int i = 0; i < o->nr_batches; i++)
		most = o->batches[i] > most ? o->batches[i] : most;
	if (ndp_model_open(&model, path, &err) < 0)
		bench_die("%s", err.message);
	ndp_model_info(model, &info);
	while (l.layer < info.layers && !ndp_model_is_moe(model, l.layer))
		l.layer++;
	if (ndp_moe_load(&moe, model, &options, &err) < 0 ||
	    ndp_moe_context_create(&l.ctx, moe, most, &err) < 0)
		bench_die("%s: %s", path, err.message);
	l.k = info.router.top_k;
	l.hidden = info.hidden;
	for (unsigned int i = 0; i < o->nr_batches; i++)
		cell(rep, &l, &info, o, o->batches[i], &errors[i]);
	ndp_moe_context_free(l.ctx);
	ndp_moe_free(moe);
	ndp_model_close(model);
	return o->nr_batches;
}

static void predict(struct bench_report *rep, const struct options *o)
{
	static const struct bench_column columns[] = {
		{ "shape", "shape", 10, -1 },
		{ "experts", "experts", 7, 0 },
		{ "top_k", "top-k", 5, 0 },
		{ "tokens", "tokens", 6, 0 },
		{ "cpu_pairs", "pairs\non the CPU", 10, 0 },
		{ "ndp_pairs", "pairs\nin DIMMs", 9, 0 },
		{ "predicted_modelled_us", "predicted us\nmodelled", 12, 1 },
		{ "wall_us", "measured us\nwall", 11, 1 },
		{ "predicted_over_measured", "predicted /\nmeasured", 11, 3 },
		{ "disturbed_rounds", "rounds\ndisturbed", 9, 0 },
	};
	double errors[MAX_CELLS], sorted;
	struct machine m;
	unsigned int n = 0;
	char title[256];

	machine_open(&m, o);
	snprintf(title, sizeof(title), "Layers on %u CPU threads and %s, policy %s, by the profile "
		 "'%s'", o->threads, o->device, ndp_policy_name(o->policy), m.host.name);
	bench_table(rep, "predict", title, columns, sizeof(columns) / sizeof(columns[0]));
	for (unsigned int i = 0; i < o->nr_models; i++)
		n += predict_model(rep, &m, o->models[i], o, errors + n);
	sorted = bench_median(errors, n);
	bench_note(rep, "median of |predicted / measured - 1| over %u layers: %.1f %%", n,
		   100 * sorted);
	if (o->bars)
		bench_bar(rep, "D.5", "median-prediction-error", sorted, BENCH_AT_MOST, 0.15);
	ndp_cpu_close(m.cpu);
	ndp_close(m.dev);
}

int bench_layer_predict(int argc, char **argv, struct bench_report *rep)
{
	static const struct option longopts[] = {
		{ "predict", required_argument, NULL, 'p' },
		{ "model", required_argument, NULL, 'm' },
		{ "device", required_argument, NULL, 'd' },
		{ "threads", required_argument, NULL, 't' },
		{ "batches", required_argument, NULL, 'B' },
		{ "policy", required_argument, NULL, 'P' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "bars", no_argument, NULL, 'b' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	struct options o = {
		.device = "soft:dimms=1,size=2G", .threads = 1, .batches = { 5, 20, 80, 200 },
		.nr_batches = 4, .policy = NDP_POLICY_SPLIT, .rounds = 15,
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'p': o.profile = optarg; break;
		case 'm':
			if (o.nr_models == MAX_MODELS)
				bench_usage("--model may be there at most %d times", MAX_MODELS);
			o.models[o.nr_models++] = optarg;
			break;
		case 'd': o.device = optarg; break;
		case 't': o.threads = (uint32_t)bench_number("--threads", optarg, 1, 1024); break;
		case 'B':
			o.nr_batches = bench_numbers("--batches", optarg, o.batches, MAX_BATCHES, 1,
						     65535);
			break;
		case 'P':
			o.policy = ndp_policy_parse(optarg);
			if (o.policy < 0)
				bench_usage("--policy: there is none of the name '%.40s'", optarg);
			break;
		case 'r': o.rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000); break;
		case 'b': o.bars = true; break;
		case 'h': bench_help(usage);
		default: return BENCH_USAGE;
		}
	}
	if (optind < argc)
		bench_usage("'%.40s' belongs to no option", argv[optind]);
	if (!o.nr_models)
		bench_usage("--model PATH is missing; ndp-mkmodel makes one");
	predict(rep, &o);
	return BENCH_OK;
}
