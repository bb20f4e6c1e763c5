// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ndpd_app.c - a small application of ndpd for tests and measurements of others: experts
 * on an in-process device, loads posted at a rate, a command on the DIMMs now and then.
 *
 *   ndpd_app SOCKET [LAYER_STEPS_PER_SECOND [GPU_EXPERTS]]
 *
 * Prints "ready" when it is attached.  Ends with SIGTERM: with 0 when each result was the
 * same bits as the first of its layer, wherever its expert was at that time.
 */
#include <ndp/ndp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 4, EXPERTS = 32, HIDDEN = 64, NEURONS = 128, TOKENS = 1024, EVERY = 16 };

static volatile sig_atomic_t end;

static void on_signal(int sig)
{
	(void)sig;
	end = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "ndpd_app: %s\n", what);
	exit(1);
}

static struct ndp_weights *make_expert(struct ndp_device *dev, uint32_t layer, uint32_t expert)
{
	static ndp_bf16 matrix[HIDDEN * NEURONS];
	const struct ndp_expert_shape shape = { HIDDEN, HIDDEN, NEURONS };
	struct ndp_placement p;
	struct ndp_weights *w;
	struct ndp_error err;

	for (uint32_t i = 0; i < HIDDEN * NEURONS; i++)
		matrix[i] = ndp_bf16_from_f32((float)((i * 7 + layer * 13 + expert) % 61) / 256 -
					      0.1f);
	ndp_placement_local(&p, ndp_expert_blocks(&shape), expert % 4);
	if (ndp_expert_create(&w, dev, &shape, &p, 0, (uint64_t)layer << 32 | expert, &err) < 0)
		die(err.message);
	if (ndp_expert_load(w, matrix, matrix, HIDDEN, matrix, NEURONS) < 0 ||
	    ndp_weights_seal(w) < 0)
		die("an expert cannot be loaded");
	return w;
}

/* One token through @w; false: not the bits of @first. */
static bool compute(struct ndp_device *dev, struct ndp_weights *w, struct ndp_io *io,
		    float first[HIDDEN], bool *has_first)
{
	const struct ndp_cmd cmd = {
		.op = NDP_OP_FFN_EXPERT, .weights = w, .x = io, .y = io, .x_mask = 0xf, .tokens = 1,
		.y_off = 4096, .ldx = HIDDEN * 2, .ldy = HIDDEN * 4,
	};
	float y[HIDDEN];
	struct ndp_result r;

	if (ndp_run(dev, &cmd, &r) < 0 || r.res < 0)
		die("a command failed");
	ndp_io_reduce(io, r.dimm_mask, 4096, HIDDEN * 4, y, HIDDEN, 1, HIDDEN);
	if (!*has_first)
		memcpy(first, y, sizeof(y));
	*has_first = true;
	/* Sums of several DIMMs are grouped otherwise: bits are equal where one has all. */
	return __builtin_popcount(r.dimm_mask) > 1 || !memcmp(first, y, sizeof(y));
}

int main(int argc, char **argv)
{
	static struct ndp_weights *w[LAYERS][EXPERTS];
	static float first[LAYERS][HIDDEN];
	bool has_first[LAYERS] = { 0 };
	const double rate = argc > 2 ? atof(argv[2]) : 1000;
	struct timespec next;
	struct ndp_attachment *a;
	struct ndp_device *dev;
	struct ndp_error err;
	struct ndp_io *io;
	ndp_bf16 x[HIDDEN];
	bool equal = true;

	if (argc < 2 || rate < 1)
		die("usage: ndpd_app SOCKET [LAYER_STEPS_PER_SECOND [GPU_EXPERTS]]");
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	if (ndp_open(&dev, "soft:dimms=4,size=16M", &err) < 0 ||
	    ndp_io_create(&io, dev, 0, 8192, &err) < 0)
		die(err.message);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++)
			w[l][e] = make_expert(dev, l, e);
	for (uint32_t i = 0; i < HIDDEN; i++)
		x[i] = ndp_bf16_from_f32((float)i / HIDDEN);
	ndp_io_write(io, 0xf, 0, x, sizeof(x));
	const struct ndp_attach_options o = {
		.socket = argv[1], .name = "ndpd_app", .device = dev, .layers = LAYERS,
		.experts = EXPERTS, .top_k = 2, .hidden = HIDDEN, .intermediate = NEURONS,
		.expert_bytes = HIDDEN * NEURONS * 6, .later = true,
		.gpu_bytes = HIDDEN * NEURONS * 6 * (argc > 3 ? strtoull(argv[3], NULL, 0) : 6),
	};
	if (ndp_placement_attach(&a, &o, &err) < 0)
		die(err.message);
	puts("ready");
	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (uint32_t n = 0; !end; n++) {
		const uint32_t l = n % LAYERS, hot = n / LAYERS / 200 * 7;
		uint32_t tokens[EXPERTS] = { 0 };

		for (int t = 0; t < TOKENS; t++)
			tokens[rand() % 10 < 6 ? (hot + (uint32_t)rand() % 3) % EXPERTS :
						 (uint32_t)rand() % EXPERTS]++;
		ndp_placement_post(a, l, tokens);
		if (n / LAYERS % EVERY == 0)
			equal &= compute(dev, w[l][0], io, first[l], &has_first[l]);
		next.tv_nsec += (long)(1e9 / rate);
		while (next.tv_nsec >= 1000000000) {
			next.tv_nsec -= 1000000000;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	ndp_placement_detach(a);
	ndp_close(dev);
	return equal ? 0 : 1;
}
