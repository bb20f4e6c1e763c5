// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ndp.c - `ndp-bench ndp`: what commands on NDP DIMMs take, on the kernel's device or
 * the in-process one: the overhead of a command, and FFNs by tokens.
 *
 * Wall time is what the emulation (and, in a guest, the driver) took here; modelled
 * time is what the described DIMM would take.  They stand side by side and have
 * nothing to do with each other.  x lies in the DIMMs already and y stays there:
 * what moves them is part of a layer (layer.c).
 */
#include "ndp_set.h"

#include <getopt.h>
#include <stdio.h>

#define MAX_TOKENS_LISTED 16

static const char usage[] =
	"Usage: ndp-bench ndp [OPTION]...\n\n"
	"Commands on NDP DIMMs: overhead of one, FFNs by tokens, in wall and in modelled time.\n\n"
	"  --device SPEC    /dev/ndp0, soft:... (default: soft:dimms=2,size=1G)\n"
	"  --shape HxI      of an expert (default: 2048x1408)\n"
	"  --tokens LIST    tokens of a command (default: 1,4,16,64,256)\n"
	"  --rounds N       kept of each measurement (default: 15)\n";

struct options {
	const char *device;
	uint32_t hidden, neurons;
	uint32_t tokens[MAX_TOKENS_LISTED];
	unsigned int nr_tokens;
	unsigned int rounds;
};

struct measured {
	double ns;		/* of a batch */
	unsigned int dirty;	/* rounds */
};

static struct measured measure(struct ndp_set *s, unsigned int rounds)
{
	struct bench_sampling sampling = { .want = rounds, .warmup = 2, .seconds = 5 };
	struct bench_contender c = { .name = "commands", .run = ndp_set_run, .arg = s };
	struct measured m;

	bench_sample(&sampling, &c, 1);
	m = (struct measured){ bench_median(c.ns, sampling.rounds), sampling.dirty };
	bench_samples_free(&c, 1);
	return m;
}

/* ---- overhead ------------------------------------------------------------------ */

static void overhead(struct bench_report *rep, struct ndp_device *dev, unsigned int rounds)
{
	static const struct bench_column columns[] = {
		{ "batch", "commands\nin a batch", 10, 0 },
		{ "wall_us", "us a command\nwall", 12, 2 },
		{ "modelled_us", "us a command\nmodelled", 12, 3 },
	};
	static const unsigned int batches[] = { 1, 8, NDP_SET_DEPTH };
	struct ndp_set s;

	ndp_set_make(&s, dev, 64, 32, 64, 1, NDP_SET_DEPTH);
	s.tokens = 1;
	bench_table(rep, "overhead",
		    "Commands with next to no work (64x32, one token, 12 KiB of weights)", columns,
		    3);
	for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
		double ns;

		s.commands = batches[i];
		ns = measure(&s, rounds * 4).ns / batches[i];
		bench_row(rep, (struct bench_cell[]){ BENCH_NUM(batches[i]), BENCH_NUM(ns / 1e3),
						      BENCH_NUM((double)s.modelled_ns / 1e3) });
	}
	ndp_set_free(&s);
}

/* ---- FFN ------------------------------------------------------------------------- */

struct limits {
	double gbps, gflops;
};

/* What that many threads could do at best: read the weights, multiply. */
static struct limits limits(unsigned int threads)
{
	double fp32 = bench_peak_fp32_gflops(threads), bf16 = bench_peak_bf16_gflops(threads);

	return (struct limits){ bench_read_gbps(threads), bf16 > fp32 ? bf16 : fp32 };
}

static void ffn_row(struct bench_report *rep, struct ndp_set *s, unsigned int dimms,
		    unsigned int rounds, const struct limits *l)
{
	const double bytes = (double)ndp_expert_blocks(&s->shape) *
			     (double)ndp_expert_block_bytes(&s->shape);
	const double flops = 6.0 * s->shape.h_in * s->shape.neurons * s->tokens;
	struct measured m;
	double ns, least, modelled;

	s->commands = dimms;
	m = measure(s, rounds);
	ns = m.ns;
	modelled = (double)s->modelled_ns;
	least = bytes / l->gbps > flops / l->gflops ? bytes / l->gbps : flops / l->gflops;
	bench_row(rep, (struct bench_cell[]){
		BENCH_NUM(s->tokens), BENCH_NUM(dimms), BENCH_NUM(ns / 1e3),
		BENCH_NUM(bytes * dimms / ns), BENCH_NUM(flops * dimms / ns),
		BENCH_NUM(100 * least * dimms / ns), BENCH_NUM(modelled / 1e3),
		BENCH_NUM(bytes / modelled), BENCH_NUM(flops / modelled), BENCH_NUM(m.dirty),
	});
}

static void ffn(struct bench_report *rep, struct ndp_device *dev, const struct options *o)
{
	static const struct bench_column columns[] = {
		{ "tokens", "tokens", 6, 0 },
		{ "dimms", "DIMMs\nat once", 7, 0 },
		{ "wall_us", "us\nwall", 10, 1 },
		{ "wall_gbps", "GB/s\nwall", 8, 2 },
		{ "wall_gflops", "GFLOP/s\nwall", 8, 1 },
		{ "wall_limit_percent", "% of limit\nwall", 10, 1 },
		{ "modelled_us", "us\nmodelled", 10, 2 },
		{ "modelled_gbps", "GB/s\nmodelled", 8, 1 },
		{ "modelled_gflops", "GFLOP/s\nmodelled", 8, 1 },
		{ "disturbed_rounds", "rounds\ndisturbed", 9, 0 },
	};
	struct ndp_device_info info;
	struct limits one, all;
	unsigned int dimms, n;
	uint32_t most = 1;
	char title[160];
	size_t bytes;
	struct ndp_set s;
	const struct ndp_expert_shape shape = { o->hidden, o->hidden, o->neurons };

	ndp_set_check(ndp_device_info(dev, &info), "the device");
	dimms = (unsigned int)__builtin_popcount(info.dimm_mask);
	for (unsigned int i = 0; i < o->nr_tokens; i++)
		most = o->tokens[i] > most ? o->tokens[i] : most;
	if (most > info.max_tokens)
		bench_usage("--tokens: this device takes at most %u tokens in a command",
			    info.max_tokens);
	bytes = (size_t)ndp_expert_blocks(&shape) * ndp_expert_block_bytes(&shape);
	/* On each DIMM more than any cache holds. */
	n = (unsigned int)(4 * bench_cache_bytes() / bytes + 1) * dimms;
	ndp_set_make(&s, dev, o->hidden, o->neurons, n, most, dimms);
	one = limits(1);
	all = limits(dimms < bench_cpus() ? dimms : bench_cpus());
	snprintf(title, sizeof(title), "FFNs of %ux%u, %u experts of %.1f MiB; limit: weights read "
		 "at %.1f GB/s, %.0f GFLOP/s (one thread), %.1f GB/s, %.0f GFLOP/s (all)",
		 o->hidden, o->neurons, n, (double)bytes / (1 << 20), one.gbps, one.gflops,
		 all.gbps, all.gflops);
	bench_table(rep, "ffn", title, columns, sizeof(columns) / sizeof(columns[0]));
	for (unsigned int i = 0; i < o->nr_tokens; i++) {
		s.tokens = o->tokens[i];
		s.only = ndp_set_dimm(info.dimm_mask, 0);
		ffn_row(rep, &s, 1, o->rounds, &one);
		s.only = NDP_MAX_DIMMS;
		if (dimms > 1)
			ffn_row(rep, &s, dimms, o->rounds, &all);
	}
	ndp_set_free(&s);
}

static void parse_shape(struct options *o, const char *text)
{
	unsigned int h, n;
	int used = 0;

	if (sscanf(text, "%5ux%6u%n", &h, &n, &used) != 2 || text[used] || !h || h > 65472 || !n ||
	    n > 65535 * NDP_BLOCK_ROWS)
		bench_usage("--shape wants HxI, like 2048x1408, not '%.40s'", text);
	o->hidden = h;
	o->neurons = n;
}

int bench_ndp(int argc, char **argv, struct bench_report *rep)
{
	static const struct option longopts[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "shape", required_argument, NULL, 's' },
		{ "tokens", required_argument, NULL, 't' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	struct options o = {
		.device = "soft:dimms=2,size=1G", .hidden = 2048, .neurons = 1408,
		.tokens = { 1, 4, 16, 64, 256 }, .nr_tokens = 5, .rounds = 15,
	};
	struct ndp_device_info info;
	struct ndp_device *dev;
	struct ndp_dimm_info d;
	struct ndp_error err;
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'd': o.device = optarg; break;
		case 's': parse_shape(&o, optarg); break;
		case 't':
			o.nr_tokens = bench_numbers("--tokens", optarg, o.tokens,
						    MAX_TOKENS_LISTED, 1, 65535);
			break;
		case 'r': o.rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000); break;
		case 'h': bench_help(usage);
		default: return BENCH_USAGE;
		}
	}
	if (optind < argc)
		bench_usage("'%.40s' belongs to no option", argv[optind]);
	if (ndp_open(&dev, o.device, &err) < 0)
		bench_die("%s", err.message);
	ndp_set_check(ndp_device_info(dev, &info), "the device");
	ndp_set_check(ndp_dimm_info(dev, ndp_set_dimm(info.dimm_mask, 0), &d), "a DIMM");
	bench_note(rep, "device %s, %d DIMMs; modelled: %.1f GB/s internal, %u GFLOP/s, %u ns a "
		   "command", info.name, __builtin_popcount(info.dimm_mask),
		   d.internal_mbps / 1e3, d.gflops, d.overhead_ns);
	overhead(rep, dev, o.rounds);
	ffn(rep, dev, &o);
	ndp_close(dev);
	return BENCH_OK;
}
