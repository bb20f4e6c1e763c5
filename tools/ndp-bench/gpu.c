// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * gpu.c - `ndp-bench gpu`: experts on an OpenCL device: what a call takes, how fast
 * weights get there, and FFNs by tokens, of experts that are resident and of those that
 * are brought for the call.
 *
 * All times are wall time: of the call (submit to wait), and by the device's clock, from x's
 * copy to y's.  The limits beside them are the host's, measured here, when the device is
 * the host's CPUs.  OpenCL does not tell a GPU's: --limit-gbps and --limit-gflops take them
 * from a data sheet.
 */
#include "bench.h"

#include <getopt.h>
#include <math.h>
#include <ndp/ndp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LISTED 16
#define MAX_JOBS 64

static const char usage[] =
	"Usage: ndp-bench gpu [OPTION]...\n\n"
	"Experts on a GPU: overhead of a call, upload rate, FFNs by tokens.\n\n"
	"  --gpu SPEC          opencl, opencl:NAME, opencl:P.D (default: opencl)\n"
	"  --shape HxI         of an expert (default: 2048x1408)\n"
	"  --tokens LIST       tokens of an expert (default: 1,4,16,64)\n"
	"  --experts LIST      experts of a call (default: 1,6)\n"
	"  --rounds N          kept of each measurement (default: 7)\n"
	"  --limit-gbps N      what the GPU's memory can do\n"
	"  --limit-gflops N    what the GPU can do in FP32\n";

struct options {
	const char *gpu;
	uint32_t hidden, neurons;
	uint32_t tokens[MAX_LISTED], experts[MAX_LISTED];
	unsigned int nr_tokens, nr_experts, rounds;
	double limit_gbps, limit_gflops;	/* NaN: not known */
};

/* Calls on some of the experts, each time the next ones, so that no cache holds their weights. */
struct calls {
	struct ndp_gpu_queue *q;
	const struct bench_experts *experts;
	struct ndp_gpu_weights **weights;	/* NULL: misses */
	ndp_bf16 *x;
	float *y;
	uint32_t tokens, jobs;
	uint32_t next;
	double *device_ns;	/* of each call, disturbed or not */
	unsigned int count, room;
};

static void check(int r, const struct ndp_error *err, const char *what)
{
	if (r < 0)
		bench_die("%s: %s", what, err && err->code ? err->message : strerror(-r));
}

static void call(void *arg)
{
	struct calls *c = arg;
	uint32_t h = c->experts->shape.h_in;
	struct ndp_gpu_job jobs[MAX_JOBS];
	struct ndp_error err = { 0 };
	uint64_t ns;

	for (uint32_t i = 0; i < c->jobs; i++) {
		uint32_t e = c->next++ % c->experts->n;

		jobs[i] = (struct ndp_gpu_job){
			.weights = c->weights ? c->weights[e] : NULL,
			.blocks = c->experts->blocks[e], .shape = c->experts->shape,
			.tokens = c->tokens, .y = c->y + (size_t)i * c->tokens * h, .ldy = h,
		};
	}
	check(ndp_gpu_submit(c->q, c->x, h, c->tokens, jobs, c->jobs, &err), &err, "a call");
	check(ndp_gpu_wait(c->q, &ns), NULL, "a call");
	if (c->count == c->room) {
		c->room = 2 * c->room + 64;
		c->device_ns = realloc(c->device_ns, c->room * sizeof(*c->device_ns));
		if (!c->device_ns)
			bench_die("no memory");
	}
	c->device_ns[c->count++] = (double)ns;
}

struct measured {
	double wall_ns, device_ns;
	unsigned int dirty;
};

static struct measured measure(struct calls *c, unsigned int rounds)
{
	struct bench_sampling sampling = { .want = rounds, .warmup = 2, .seconds = 5 };
	struct bench_contender contender = { .name = "calls", .run = call, .arg = c };
	struct measured m;

	c->count = 0;
	bench_sample(&sampling, &contender, 1);
	m = (struct measured){ bench_median(contender.ns, sampling.rounds),
			       bench_median(c->device_ns, c->count), sampling.dirty };
	bench_samples_free(&contender, 1);
	return m;
}

static void calls_make(struct calls *c, struct ndp_gpu *gpu, const struct bench_experts *experts,
		       uint32_t tokens, uint32_t jobs)
{
	size_t h = experts->shape.h_in;
	struct ndp_error err;

	*c = (struct calls){ .experts = experts, .tokens = tokens, .jobs = jobs };
	c->x = malloc(tokens * h * sizeof(*c->x));
	c->y = malloc(jobs * tokens * h * sizeof(*c->y));
	if (!c->x || !c->y)
		bench_die("no memory for x and y");
	bench_random_bf16(c->x, tokens * h, 1, 7);
	check(ndp_gpu_queue_create(&c->q, gpu, tokens, jobs * tokens, (uint32_t)h, &err), &err,
	      "a queue");
}

static void calls_free(struct calls *c)
{
	ndp_gpu_queue_free(c->q);
	free(c->device_ns);
	free(c->x);
	free(c->y);
}

/* ---- uploads -------------------------------------------------------------------- */

struct uploads {
	struct ndp_gpu *gpu;
	const struct bench_experts *experts;
	uint32_t next;
};

/* One expert to the GPU, and out again. */
static void upload(void *arg)
{
	struct uploads *u = arg;
	struct ndp_gpu_weights *w;
	struct ndp_error err;
	const void *blocks = u->experts->blocks[u->next++ % u->experts->n];

	check(ndp_gpu_upload(&w, u->gpu, &u->experts->shape, blocks, &err), &err, "an upload");
	check(ndp_gpu_upload_wait(w), NULL, "an upload");
	ndp_gpu_weights_free(w);
}

static void upload_rate(struct bench_report *rep, struct ndp_gpu *gpu,
			const struct bench_experts *experts, unsigned int rounds)
{
	static const struct bench_column columns[] = {
		{ "bytes", "bytes of\nan expert", 12, 0 },
		{ "wall_us", "us\nwall", 10, 1 },
		{ "wall_gbps", "GB/s\nwall", 8, 2 },
		{ "limit_gbps", "GB/s\nlimit", 8, 2 },
		{ "wall_limit_percent", "% of limit\nwall", 10, 1 },
		{ "disturbed_rounds", "rounds\ndisturbed", 9, 0 },
	};
	struct uploads u = { .gpu = gpu, .experts = experts };
	struct bench_sampling sampling = { .want = rounds, .warmup = 2, .seconds = 5 };
	struct bench_contender c = { .name = "upload", .run = upload, .arg = &u };
	double limit = bench_copy_gbps(1), gbps, ns;

	bench_sample(&sampling, &c, 1);
	ns = bench_median(c.ns, sampling.rounds);
	gbps = (double)experts->bytes / ns;
	bench_table(rep, "upload", "An expert to the GPU, through pinned staging memory that one "
		    "thread fills; limit: memcpy() of one thread", columns, 6);
	bench_row(rep, (struct bench_cell[]){
		BENCH_NUM((double)experts->bytes), BENCH_NUM(ns / 1e3), BENCH_NUM(gbps),
		BENCH_NUM(limit), BENCH_NUM(100 * gbps / limit), BENCH_NUM(sampling.dirty) });
	bench_samples_free(&c, 1);
}

/* ---- overhead -------------------------------------------------------------------- */

static void overhead(struct bench_report *rep, struct ndp_gpu *gpu, unsigned int rounds)
{
	static const struct bench_column columns[] = {
		{ "experts", "experts\nin a call", 9, 0 },
		{ "wall_us", "us a call\nwall", 10, 1 },
		{ "device_wall_us", "us a call\nwall, device", 12, 1 },
		{ "expert_wall_us", "us an expert\nwall", 12, 2 },
	};
	static const unsigned int jobs[] = { 1, 8, MAX_JOBS };
	struct bench_experts experts;
	struct ndp_gpu_weights *w;
	struct ndp_error err;
	struct calls c;

	bench_experts_make(&experts, 64, 32, 1, 3);
	check(ndp_gpu_upload(&w, gpu, &experts.shape, experts.blocks[0], &err), &err, "an upload");
	check(ndp_gpu_upload_wait(w), NULL, "an upload");
	calls_make(&c, gpu, &experts, 1, MAX_JOBS);
	c.weights = &w;
	bench_table(rep, "overhead", "Calls with next to no work (64x32, one token, resident): four "
		    "copies, two launches, one copy back", columns, 4);
	for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++) {
		struct measured m;

		c.jobs = jobs[i];
		m = measure(&c, rounds * 4);
		bench_row(rep, (struct bench_cell[]){
			BENCH_NUM(jobs[i]), BENCH_NUM(m.wall_ns / 1e3),
			BENCH_NUM(m.device_ns / 1e3), BENCH_NUM(m.wall_ns / 1e3 / jobs[i]) });
	}
	calls_free(&c);
	ndp_gpu_weights_free(w);
	bench_experts_free(&experts);
}

/* ---- FFN -------------------------------------------------------------------------- */

static void ffn_row(struct bench_report *rep, struct calls *c, const struct options *o)
{
	const double bytes = (double)c->experts->bytes * c->jobs;
	const double flops = 6.0 * o->hidden * o->neurons * c->tokens * c->jobs;
	const double by_memory = bytes / o->limit_gbps, by_compute = flops / o->limit_gflops;
	const struct measured m = measure(c, o->rounds);

	bench_row(rep, (struct bench_cell[]){
		BENCH_TEXT(c->weights ? "resident" : "miss"), BENCH_NUM(c->jobs),
		BENCH_NUM(c->tokens), BENCH_NUM(m.wall_ns / 1e3), BENCH_NUM(m.device_ns / 1e3),
		BENCH_NUM(bytes / m.wall_ns), BENCH_NUM(flops / m.wall_ns),
		/* NaN, so "-", when one is not known */
		BENCH_NUM(100 * (by_memory > by_compute ? by_memory : by_compute + by_memory * 0) /
			  m.wall_ns),
		BENCH_NUM(m.dirty),
	});
}

static void ffn(struct bench_report *rep, struct ndp_gpu *gpu, const struct options *o,
		const struct bench_experts *experts)
{
	static const struct bench_column columns[] = {
		{ "weights", "weights", 9, -1 },
		{ "experts", "experts", 8, 0 },
		{ "tokens", "tokens\nof each", 8, 0 },
		{ "wall_us", "us\nwall", 11, 1 },
		{ "device_wall_us", "us\nwall, device", 12, 1 },
		{ "wall_gbps", "GB/s\nwall", 8, 2 },
		{ "wall_gflops", "GFLOP/s\nwall", 8, 1 },
		{ "wall_limit_percent", "% of limit\nwall", 10, 1 },
		{ "disturbed_rounds", "rounds\ndisturbed", 9, 0 },
	};
	struct ndp_gpu_weights **weights = calloc(experts->n, sizeof(*weights));
	struct ndp_error err;
	char title[200], limit[80] = "not known";

	if (!weights)
		bench_die("no memory");
	for (unsigned int i = 0; i < experts->n; i++)
		check(ndp_gpu_upload(&weights[i], gpu, &experts->shape, experts->blocks[i], &err),
		      &err, "an upload");
	for (unsigned int i = 0; i < experts->n; i++)
		check(ndp_gpu_upload_wait(weights[i]), NULL, "an upload");
	if (!isnan(o->limit_gbps) && !isnan(o->limit_gflops))
		snprintf(limit, sizeof(limit), "weights read at %.1f GB/s, %.0f GFLOP/s",
			 o->limit_gbps, o->limit_gflops);
	snprintf(title, sizeof(title), "FFNs of %ux%u, %u experts of %.1f MiB; limit: %s", o->hidden,
		 o->neurons, experts->n, (double)experts->bytes / (1 << 20), limit);
	bench_table(rep, "ffn", title, columns, sizeof(columns) / sizeof(*columns));
	for (unsigned int e = 0; e < o->nr_experts; e++)
		for (unsigned int t = 0; t < o->nr_tokens; t++)
			for (int miss = 0; miss < 2; miss++) {
				struct calls c;

				calls_make(&c, gpu, experts, o->tokens[t], o->experts[e]);
				c.weights = miss ? NULL : weights;
				ffn_row(rep, &c, o);
				calls_free(&c);
			}
	for (unsigned int i = 0; i < experts->n; i++)
		ndp_gpu_weights_free(weights[i]);
	free(weights);
}

/* ---- the command -------------------------------------------------------------------- */

static double positive(const char *option, const char *text)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v > 0) || isinf(v))
		bench_usage("%s wants a number above 0, not '%.40s'", option, text);
	return v;
}

static void parse_shape(struct options *o, const char *text)
{
	unsigned int h, n;
	int used = 0;

	if (sscanf(text, "%5ux%6u%n", &h, &n, &used) != 2 || text[used] || !h || h > 65472 || !n)
		bench_usage("--shape wants HxI, like 2048x1408, not '%.40s'", text);
	o->hidden = h;
	o->neurons = n;
}

static void parse(struct options *o, int argc, char **argv)
{
	static const struct option longopts[] = {
		{ "gpu", required_argument, NULL, 'g' },
		{ "shape", required_argument, NULL, 's' },
		{ "tokens", required_argument, NULL, 't' },
		{ "experts", required_argument, NULL, 'e' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "limit-gbps", required_argument, NULL, 'b' },
		{ "limit-gflops", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'g': o->gpu = optarg; break;
		case 's': parse_shape(o, optarg); break;
		case 't':
			o->nr_tokens = bench_numbers("--tokens", optarg, o->tokens, MAX_LISTED, 1,
						     65535);
			break;
		case 'e':
			o->nr_experts = bench_numbers("--experts", optarg, o->experts, MAX_LISTED,
						      1, MAX_JOBS);
			break;
		case 'r': o->rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000); break;
		case 'b': o->limit_gbps = positive("--limit-gbps", optarg); break;
		case 'f': o->limit_gflops = positive("--limit-gflops", optarg); break;
		case 'h': bench_help(usage);
		default: exit(BENCH_USAGE);
		}
	}
	if (optind < argc)
		bench_usage("'%.40s' belongs to no option", argv[optind]);
}

/* The host's, when the device is the host. */
static void find_limits(struct options *o, const struct ndp_gpu_info *info)
{
	if (!info->is_cpu)
		return;
	if (isnan(o->limit_gbps))
		o->limit_gbps = bench_read_gbps(bench_cpus());
	if (isnan(o->limit_gflops))
		o->limit_gflops = bench_peak_fp32_gflops(bench_cpus());
}

int bench_gpu(int argc, char **argv, struct bench_report *rep)
{
	struct options o = {
		.gpu = "opencl", .hidden = 2048, .neurons = 1408, .tokens = { 1, 4, 16, 64 },
		.nr_tokens = 4, .experts = { 1, 6 }, .nr_experts = 2, .rounds = 7,
		.limit_gbps = NAN, .limit_gflops = NAN,
	};
	struct ndp_expert_shape shape;
	struct bench_experts experts;
	struct ndp_gpu_info info;
	struct ndp_gpu *gpu;
	struct ndp_error err;
	uint64_t bytes;
	unsigned int n;

	parse(&o, argc, argv);
	shape = (struct ndp_expert_shape){ o.hidden, o.hidden, o.neurons };
	bytes = ndp_expert_block_bytes(&shape) * (uint64_t)ndp_expert_blocks(&shape);
	/* More than any cache of the host holds, and one more for uploads. */
	n = (unsigned int)(4 * bench_cache_bytes() / bytes + 2);
	check(ndp_gpu_open(&gpu, o.gpu, bytes * (n + 1), &err), &err, "GPU");
	ndp_gpu_info(gpu, &info);
	bench_note(rep, "GPU %s, %.1f GiB%s", info.name, (double)info.memory_bytes / (1 << 30),
		   info.is_cpu ? "; this is no GPU: it is the host's CPUs, through OpenCL" : "");
	find_limits(&o, &info);
	bench_experts_make(&experts, o.hidden, o.neurons, n, 1);
	overhead(rep, gpu, o.rounds);
	upload_rate(rep, gpu, &experts, o.rounds);
	ffn(rep, gpu, &o, &experts);
	bench_experts_free(&experts);
	ndp_gpu_close(gpu);
	return BENCH_OK;
}
