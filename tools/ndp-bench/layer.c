// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer.c - `ndp-bench layer`: whole MoE layers.  Their time against that of their
 * expert FFNs, and their results over every mix of domains.  (Their time against what
 * the scheduler's model predicts: layer_predict.c.)
 */
#include "layer.h"

#include <getopt.h>

#define MAX_LISTED 16

static const char usage[] =
	"Usage: ndp-bench layer [OPTION]...\n\n"
	"A layer on the CPU against its expert FFNs run one by one.\n\n"
	"  --model PATH       folder or GGUF file (default: one of DeepSeek-V2-Lite's shape, made\n"
	"                     by ndp-mkmodel in TMPDIR or /var/tmp, 1.2 GB, and removed)\n"
	"  --trace FILE       recorded tokens that say where these go\n"
	"                     (default: tests/traces/trace_olmoe_1b7b_b1.csv.gz)\n"
	"  --batch LIST       tokens (default: 1,16,64,256)\n"
	"  --threads LIST     (default: 1 and as many as there are CPUs)\n"
	"  --rounds N         kept of each measurement (default: 15)\n"
	"  --mixes            instead: every mix of GPU, CPU and DIMMs in this process, checked;\n"
	"                     of a small model if none is named\n"
	"  --predict PROFILE  instead: the time that a host profile predicts against the measured\n"
	"                     one (options: --predict --help)\n"
	"  --bars             both of the first two, with their bars\n";

static const char *const lite[] = {
	"--shape", "deepseek-v2-lite", "--family", "deepseek_v2", "--layers", "1", NULL
};
static const char *const small[] = {
	"--family", "deepseek_v2", "--layers", "1", "--experts", "12", "--top-k", "3", "--hidden",
	"320", "--intermediate", "336", NULL
};

struct options {
	const char *model, *trace;
	uint32_t batches[MAX_LISTED], threads[MAX_LISTED];
	unsigned int nr_batches, nr_threads, rounds;
	bool mixes, bars;
};

static void defaults(struct options *o)
{
	static const uint32_t batches[] = { 1, 16, 64, 256 };

	if (!o->trace)
		o->trace = "tests/traces/trace_olmoe_1b7b_b1.csv.gz";
	if (!o->nr_batches)
		for (; o->nr_batches < 4; o->nr_batches++)
			o->batches[o->nr_batches] = batches[o->nr_batches];
	if (o->nr_threads)
		return;
	o->threads[o->nr_threads++] = 1;
	if (bench_cpus() > 1)
		o->threads[o->nr_threads++] = bench_cpus();
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longopts[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "trace", required_argument, NULL, 't' },
		{ "batch", required_argument, NULL, 'n' },
		{ "threads", required_argument, NULL, 'j' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "mixes", no_argument, NULL, 'x' },
		{ "bars", no_argument, NULL, 'b' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'm': o->model = optarg; break;
		case 't': o->trace = optarg; break;
		case 'n':
			o->nr_batches = bench_numbers("--batch", optarg, o->batches, MAX_LISTED, 1,
						      4096);
			break;
		case 'j':
			o->nr_threads = bench_numbers("--threads", optarg, o->threads, MAX_LISTED,
						      1, 1024);
			break;
		case 'r':
			o->rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000);
			break;
		case 'x': o->mixes = true; break;
		case 'b': o->bars = true; break;
		case 'h': bench_help(usage);
		default: return BENCH_USAGE;
		}
	}
	if (optind < argc)
		bench_usage("'%.40s' belongs to no option", argv[optind]);
	return BENCH_OK;
}

static void time_layer(struct bench_report *rep, const struct options *o)
{
	struct layer_trace trace;
	struct ndp_model *model;

	layer_trace_read(&trace, o->trace);
	model = layer_model(o->model, lite);
	layer_time(rep, model, &trace, o->batches, o->nr_batches, o->threads, o->nr_threads,
		   o->rounds, o->bars);
	ndp_model_close(model);
	layer_trace_free(&trace);
}

static void mix_domains(struct bench_report *rep, const struct options *o)
{
	struct ndp_model *model = layer_model(o->mixes ? o->model : NULL, small);

	layer_mix(rep, model, o->bars);
	ndp_model_close(model);
}

int bench_layer(int argc, char **argv, struct bench_report *rep)
{
	struct options o = { .rounds = 15 };

	if (parse(argc, argv, &o) != BENCH_OK)
		return BENCH_USAGE;
	defaults(&o);
	if (!o.mixes)
		time_layer(rep, &o);
	if (o.mixes || o.bars)
		mix_domains(rep, &o);
	return BENCH_OK;
}
