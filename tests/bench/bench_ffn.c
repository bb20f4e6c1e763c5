// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_ffn - throughput of FFN commands that cycle over a working set of distinct experts.
 *
 *   bench_ffn [--device SPEC] [--hidden H] [--neurons I] [--experts N] [--depth D] [--serve]
 *             [--seconds S] [--tokens L] [--io]
 *
 * The same program runs against /dev/ndpN in a guest and against soft: on the host, so that one is
 * the yardstick of the other (bar F.3). Expert e lies wholly on DIMM e mod the number of DIMMs; a
 * DIMM computes with one worker. What is timed is commands, from submission to completion; x is
 * there already. With --io (or "round L io") also what an application does besides for each result:
 * x is written to the DIMM before, y read and added up after. In a guest whose CPU is emulated that
 * part says more about the emulated CPU than about the driver.
 *
 * With --serve it measures when it is told to, so that a driver can interleave two of them: for each
 * line "round L" or "round L io" on stdin it runs one round of commands with L tokens and answers
 *
 *   go L                              now the clock runs
 *   round L COMMANDS NANOSECONDS      as soon as the last command has completed
 *   check L DIGEST
 *
 * NANOSECONDS by its own clock. Results are wiped before a round; DIGEST is made of what all experts
 * left there, and is the same wherever the numerics are the same, so that nobody compares work that
 * was not done. A line "end", or the end of the input, ends it. Between rounds nothing is in flight.
 */
#include <getopt.h>
#include <ndp/ndp.h>

#include "bench.h"

#define MAX_TOKENS 16
#define MAX_DEPTH 256

struct bench {
	struct ndp_device *dev;
	struct ndp_queue *queue;
	struct ndp_io *x, *y;
	struct ndp_weights **experts;
	uint32_t *dimms;
	unsigned int nr_experts, depth;
	struct ndp_expert_shape shape;
	size_t x_slot, y_slot;
	uint16_t *input;		/* what is written to x each time */
	float *output;			/* what y is added up into */
	bool with_io;
};

static void create_expert(struct bench *b, unsigned int e, uint32_t mask, uint16_t *packed)
{
	uint32_t blocks = ndp_expert_blocks(&b->shape), dimm = 0;
	size_t bytes = (size_t)blocks * ndp_expert_block_bytes(&b->shape);
	struct ndp_placement place;
	struct ndp_error err = { 0 };
	int r;

	for (r = e % __builtin_popcount(mask); ; dimm++)
		if (mask & (1u << dimm) && !r--)
			break;
	b->dimms[e] = dimm;
	ndp_placement_local(&place, blocks, dimm);
	r = ndp_expert_create(&b->experts[e], b->dev, &b->shape, &place, 0, e, &err);
	if (r < 0)
		die("expert %u of %u: %s", e, b->nr_experts, err.message);
	random_bf16(packed, bytes / 2, -6, e + 1);
	r = ndp_weights_write(b->experts[e], 0, blocks, packed);
	if (!r)
		r = ndp_weights_seal(b->experts[e]);
	if (r < 0)
		die("filling expert %u: %s", e, strerror(-r));
}

static void prepare(struct bench *b, const char *spec)
{
	size_t bytes = ndp_expert_blocks(&b->shape) * ndp_expert_block_bytes(&b->shape);
	struct ndp_device_info info;
	struct ndp_error err = { 0 };
	uint16_t *scratch;
	unsigned int e;
	int r;

	if (ndp_open(&b->dev, spec, &err) < 0)
		die("%s", err.message);
	r = ndp_device_info(b->dev, &info);
	if (r < 0)
		die("%s: %s", spec, strerror(-r));
	scratch = malloc(bytes);
	b->experts = calloc(b->nr_experts, sizeof(*b->experts));
	b->dimms = calloc(b->nr_experts, sizeof(*b->dimms));
	if (!scratch || !b->experts || !b->dimms)
		die("out of memory");
	for (e = 0; e < b->nr_experts; e++)
		create_expert(b, e, info.dimm_mask, scratch);
	free(scratch);

	b->x_slot = (size_t)MAX_TOKENS * b->shape.h_in * sizeof(uint16_t);
	b->y_slot = (size_t)MAX_TOKENS * b->shape.h_out * sizeof(float);
	b->input = malloc(b->x_slot);
	b->output = malloc(b->y_slot);
	if (!b->input || !b->output)
		die("out of memory");
	random_bf16(b->input, b->x_slot / 2, -1, 12345);
	if (ndp_io_create(&b->x, b->dev, 0, b->x_slot * b->nr_experts, &err) < 0 ||
	    ndp_io_create(&b->y, b->dev, 0, b->y_slot * b->nr_experts, &err) < 0 ||
	    ndp_queue_create(&b->queue, b->dev, b->depth, &err) < 0)
		die("%s", err.message);
	fprintf(stderr, "bench_ffn: %s: %u experts of %zu bytes on %d DIMMs, queue depth %u\n",
		info.name, b->nr_experts, bytes, __builtin_popcount(info.dimm_mask), b->depth);
}

/* x and y have a place for each expert: commands of one expert only ever write the same there. */
static void push(struct bench *b, unsigned int e, uint32_t tokens)
{
	struct ndp_cmd cmd = {
		.op = NDP_OP_FFN_EXPERT,
		.weights = b->experts[e],
		.x = b->x,
		.y = b->y,
		.x_mask = 1u << b->dimms[e],
		.tokens = tokens,
		.x_off = b->x_slot * e,
		.y_off = b->y_slot * e,
		.ldx = b->shape.h_in * sizeof(uint16_t),
		.ldy = b->shape.h_out * sizeof(float),
		.tag = e,
	};
	int r = 0;

	if (b->with_io)
		r = ndp_io_write(b->x, cmd.x_mask, cmd.x_off, b->input, tokens * cmd.ldx);
	if (r < 0)
		die("writing x: %s", strerror(-r));
	r = ndp_queue_push(b->queue, &cmd);
	if (r < 0)
		die("ndp_queue_push: %s", strerror(-r));
}

static void take(struct bench *b, const struct ndp_result *result, uint32_t tokens)
{
	const unsigned int e = result->tag;
	int r = result->res;

	if (!r && b->with_io)
		r = ndp_io_reduce(b->y, result->dimm_mask, b->y_slot * e,
				  b->shape.h_out * sizeof(float), b->output, b->shape.h_out, tokens,
				  b->shape.h_out);
	if (r < 0)
		die("a command of expert %u failed: %s", e, strerror(-r));
}

/* x in place, y wiped. */
static void start_round(struct bench *b, uint32_t tokens)
{
	const size_t x_bytes = (size_t)tokens * b->shape.h_in * sizeof(uint16_t);
	unsigned int e;
	int r;

	memset(b->output, 0, b->y_slot);
	for (e = 0; e < b->nr_experts; e++) {
		const uint32_t mask = 1u << b->dimms[e];

		r = ndp_io_write(b->y, mask, b->y_slot * e, b->output, b->y_slot);
		if (!r)
			r = ndp_io_write(b->x, mask, b->x_slot * e, b->input, x_bytes);
		if (r < 0)
			die("writing x and y: %s", strerror(-r));
	}
}

/* FNV-1a over the results of all experts. */
static uint64_t digest(struct bench *b, uint32_t tokens)
{
	const size_t words = (size_t)tokens * b->shape.h_out;
	uint32_t *y = malloc(words * sizeof(*y));
	uint64_t hash = 0xcbf29ce484222325ull;
	unsigned int e;
	size_t i;
	int r;

	if (!y)
		die("out of memory");
	for (e = 0; e < b->nr_experts; e++) {
		r = ndp_io_read(b->y, b->dimms[e], b->y_slot * e, y, words * sizeof(*y));
		if (r < 0)
			die("reading y: %s", strerror(-r));
		for (i = 0; i < words; i++)
			hash = (hash ^ y[i]) * 0x100000001b3ull;
	}
	free(y);
	return hash;
}

/* Whole passes over the working set until @min_ns are over; returns how many commands that were. */
static uint64_t run_round(struct bench *b, uint32_t tokens, uint64_t min_ns, uint64_t *elapsed_ns)
{
	struct ndp_result results[MAX_DEPTH];
	uint64_t issued = 0, completed = 0, start = now_ns();
	int n, i;

	for (;;) {
		while (issued - completed < b->depth &&
		       (issued % b->nr_experts || now_ns() - start < min_ns || !issued))
			push(b, issued++ % b->nr_experts, tokens);
		if (completed == issued)
			break;
		n = ndp_queue_wait(b->queue, results, b->depth, 1);
		if (n < 0)
			die("ndp_queue_wait: %s", strerror(-n));
		for (i = 0; i < n; i++)
			take(b, &results[i], tokens);
		completed += n;
	}
	*elapsed_ns = now_ns() - start;
	return completed;
}

static void serve(struct bench *b, uint64_t min_ns)
{
	uint64_t commands, ns;
	unsigned int tokens;
	char line[80], io[4];
	int n;

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "end", 3))
			break;
		n = sscanf(line, "round %u %3s", &tokens, io);
		if (n < 1 || (n == 2 && strcmp(io, "io")) || !tokens || tokens > MAX_TOKENS)
			die("\"round TOKENS [io]\" was expected, TOKENS from 1 to %d, not: %s",
			    MAX_TOKENS, line);
		b->with_io = n == 2;
		start_round(b, tokens);
		printf("go %u\n", tokens);
		fflush(stdout);
		commands = run_round(b, tokens, min_ns, &ns);
		printf("round %u %llu %llu\n", tokens, (unsigned long long)commands,
		       (unsigned long long)ns);
		fflush(stdout);
		printf("check %u %016llx\n", tokens, (unsigned long long)digest(b, tokens));
		fflush(stdout);
	}
}

static void measure(struct bench *b, uint32_t tokens, uint64_t min_ns)
{
	const double bytes = (double)ndp_expert_blocks(&b->shape) *
			     ndp_expert_block_bytes(&b->shape);
	uint64_t commands, ns;

	start_round(b, tokens);
	run_round(b, tokens, 0, &ns);
	commands = run_round(b, tokens, min_ns, &ns);
	printf("%u tokens: %llu commands in %.3f s of wall time, %.1f a second, %.2f GB/s of weights, results %016llx\n",
	       tokens, (unsigned long long)commands, ns * 1e-9, commands * 1e9 / ns,
	       commands * bytes / ns, (unsigned long long)digest(b, tokens));
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "hidden", required_argument, NULL, 'H' },
		{ "neurons", required_argument, NULL, 'I' },
		{ "experts", required_argument, NULL, 'n' },
		{ "depth", required_argument, NULL, 'q' },
		{ "tokens", required_argument, NULL, 't' },
		{ "seconds", required_argument, NULL, 's' },
		{ "serve", no_argument, NULL, 'S' },
		{ "io", no_argument, NULL, 'o' },
		{ 0 }
	};
	struct bench b = {
		.nr_experts = 32,
		.depth = 8,
		.shape = { .h_in = 2048, .h_out = 2048, .neurons = 1408 },
	};
	const char *device = "soft:dimms=2,size=512M";
	uint32_t tokens = 1;
	uint64_t min_ns = 1000000000;
	int serving = 0, c;
	unsigned int e;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'd': device = optarg; break;
		case 'H':
			b.shape.h_in = parse_number("--hidden", optarg, 64, 16384) & ~63u;
			b.shape.h_out = b.shape.h_in;
			break;
		case 'I': b.shape.neurons = parse_number("--neurons", optarg, 1, 65536); break;
		case 'n': b.nr_experts = parse_number("--experts", optarg, 1, 4096); break;
		case 'q': b.depth = parse_number("--depth", optarg, 1, MAX_DEPTH); break;
		case 't': tokens = parse_number("--tokens", optarg, 1, MAX_TOKENS); break;
		case 's': min_ns = parse_number("--seconds", optarg, 1, 600) * 1000000000ull; break;
		case 'S': serving = 1; break;
		case 'o': b.with_io = true; break;
		default: return 2;
		}
	}
	prepare(&b, device);
	if (serving)
		serve(&b, min_ns);
	else
		measure(&b, tokens, min_ns);
	ndp_queue_free(b.queue);
	ndp_io_free(b.x);
	ndp_io_free(b.y);
	for (e = 0; e < b.nr_experts; e++)
		ndp_weights_free(b.experts[e]);
	free(b.experts);
	free(b.dimms);
	free(b.input);
	free(b.output);
	ndp_close(b.dev);
	return 0;
}
