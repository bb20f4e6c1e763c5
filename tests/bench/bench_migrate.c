// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_migrate - FFN commands while their weights keep moving (bar F.5).
 *
 *   bench_migrate [--device SPEC] [--commands N] [--interval-ms MS] [--depth D]
 *
 * One thread issues commands, each with another x; a second one moves the weights every MS
 * milliseconds, from one DIMM to the next, over two, over all. Before a command all replicas of its
 * x and y are poisoned with NaN, then x is written only where the weights were last seen. Every
 * result is compared
 *
 * - bit by bit with what weights that never move gave for the same x and the same partition;
 * - with the result on one DIMM, when it was computed on several: within BOUND.
 *
 * BOUND, for output j: h does not depend on the partition, only the order in which y's sum is formed
 * does. Any order of n FP32 additions and products errs by at most n u / (1 - n u) times the sum
 * of magnitudes, u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1
 * and 4.2); two results differ by at most twice that. n = neurons + blocks + DIMMs; the magnitudes
 * |down[j][i] h[i]| are computed here in FP64 and enlarged by 1 % for the rounding of h to BF16.
 *
 * At the end everything is closed, and the free bytes of each DIMM and the user's allocation must be
 * what they were before anything was opened.
 *
 * Prints `bar F.5`; value is the number of results, and of allocator counters, that were wrong.
 */
#include <getopt.h>
#include <math.h>
#include <ndp/ndp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "bench.h"

#define HIDDEN 64
#define NEURONS 512
#define NR_X 61			/* shares no factor with a depth: a slot never sees one x twice running */
#define MAX_DEPTH 32
#define X_BYTES (HIDDEN * sizeof(ndp_bf16))
#define Y_BYTES (HIDDEN * sizeof(float))

static const struct ndp_expert_shape shape = {
	.h_in = HIDDEN, .h_out = HIDDEN, .neurons = NEURONS,
};

static ndp_bf16 gate[NEURONS][HIDDEN], up[NEURONS][HIDDEN], down[HIDDEN][NEURONS];
static ndp_bf16 x[NR_X][HIDDEN];
/* By number of DIMMs: what weights at rest gave. The partition depends on the number only. */
static float reference[NDP_MAX_DIMMS + 1][NR_X][HIDDEN];
static double bound[NR_X][HIDDEN];

struct bench {
	struct ndp_device *dev;
	struct ndp_weights *weights;
	struct ndp_io *io_x, *io_y;
	struct ndp_queue *queue;
	uint32_t dimms[NDP_MAX_DIMMS], nr_dimms, all;
	unsigned int depth;
	uint32_t seen_mask;		/* where the weights were last seen */
	uint64_t interval_ns;
	atomic_bool stop;
	uint64_t migrations, late;	/* the migrating thread's, until it is joined */
	uint64_t commands, retries, wrong_bits, out_of_bound, by_dimms[NDP_MAX_DIMMS + 1];
	double worst;
};

static void check(int r, const char *what)
{
	if (r < 0)
		die("%s: %s", what, strerror(-r));
}

static void make_data(void)
{
	double g, u, magnitude, n = NEURONS + NEURONS / NDP_BLOCK_ROWS + NDP_MAX_DIMMS;
	double h[NEURONS];
	unsigned int i, j, k, v;

	random_bf16(&gate[0][0], NEURONS * HIDDEN, -3, 1);
	random_bf16(&up[0][0], NEURONS * HIDDEN, -3, 2);
	random_bf16(&down[0][0], NEURONS * HIDDEN, -3, 3);
	random_bf16(&x[0][0], NR_X * HIDDEN, -1, 4);
	for (v = 0; v < NR_X; v++) {
		for (i = 0; i < NEURONS; i++) {
			for (g = u = 0, k = 0; k < HIDDEN; k++) {
				g += ndp_bf16_to_f32(gate[i][k]) * (double)ndp_bf16_to_f32(x[v][k]);
				u += ndp_bf16_to_f32(up[i][k]) * (double)ndp_bf16_to_f32(x[v][k]);
			}
			h[i] = g / (1 + exp(-g)) * u;
		}
		for (j = 0; j < HIDDEN; j++) {
			for (magnitude = 0, i = 0; i < NEURONS; i++)
				magnitude += fabs(ndp_bf16_to_f32(down[j][i]) * h[i]);
			bound[v][j] = 2 * 1.01 * magnitude * n * 0x1p-24 / (1 - n * 0x1p-24);
		}
	}
}

static struct ndp_device *open_device(const char *spec)
{
	struct ndp_error err = { 0 };
	struct ndp_device *dev;

	if (ndp_open(&dev, spec, &err) < 0)
		die("%s", err.message);
	return dev;
}

static struct ndp_weights *create_weights(struct bench *b, uint32_t mask)
{
	struct ndp_placement place;
	struct ndp_weights *w;
	struct ndp_error err = { 0 };

	check(ndp_placement_spread(&place, ndp_expert_blocks(&shape), mask), "spreading");
	if (ndp_expert_create(&w, b->dev, &shape, &place, 0, 0, &err) < 0)
		die("%s", err.message);
	check(ndp_expert_load(w, &gate[0][0], &up[0][0], HIDDEN, &down[0][0], NEURONS),
	      "ndp_expert_load");
	check(ndp_weights_seal(w), "ndp_weights_seal");
	return w;
}

/* The first @n DIMMs from number @from on, round and round. */
static uint32_t dimm_set(const struct bench *b, unsigned int from, unsigned int n)
{
	uint32_t mask = 0;

	while (n--)
		mask |= 1u << b->dimms[(from + n) % b->nr_dimms];
	return mask;
}

static struct ndp_cmd command(struct bench *b, struct ndp_weights *w, unsigned int slot,
			      unsigned int v, uint32_t x_mask)
{
	return (struct ndp_cmd){
		.op = NDP_OP_FFN_EXPERT,
		.weights = w,
		.x = b->io_x,
		.y = b->io_y,
		.x_mask = x_mask,
		.tokens = 1,
		.x_off = slot * X_BYTES,
		.y_off = slot * Y_BYTES,
		.ldx = X_BYTES,
		.ldy = Y_BYTES,
		.tag = (uint64_t)v << 32 | slot,
	};
}

/* x of number @v where @mask says, NaN everywhere else, and in y. */
static void put_x(struct bench *b, unsigned int slot, unsigned int v, uint32_t mask)
{
	static const uint8_t nan_bytes[Y_BYTES] = { [0 ... Y_BYTES - 1] = 0xff };

	check(ndp_io_write(b->io_x, b->all, slot * X_BYTES, nan_bytes, X_BYTES), "poisoning x");
	check(ndp_io_write(b->io_y, b->all, slot * Y_BYTES, nan_bytes, Y_BYTES), "poisoning y");
	check(ndp_io_write(b->io_x, mask, slot * X_BYTES, x[v], X_BYTES), "writing x");
}

static void get_y(struct bench *b, unsigned int slot, uint32_t mask, float *y)
{
	check(ndp_io_reduce(b->io_y, mask, slot * Y_BYTES, Y_BYTES, y, HIDDEN, 1, HIDDEN),
	      "ndp_io_reduce");
}

/* What @n DIMMs give when nothing moves. */
static void make_reference(struct bench *b, unsigned int n)
{
	const uint32_t mask = dimm_set(b, 0, n);
	struct ndp_weights *w = create_weights(b, mask);
	struct ndp_result result;
	struct ndp_cmd cmd;
	unsigned int v;

	for (v = 0; v < NR_X; v++) {
		put_x(b, 0, v, mask);
		cmd = command(b, w, 0, v, mask);
		check(ndp_run(b->dev, &cmd, &result), "ndp_run");
		check(result.res, "a command of the reference");
		if (result.dimm_mask != mask)
			die("a command of the reference ran on DIMMs %#x, not %#x", result.dimm_mask,
			    mask);
		get_y(b, 0, mask, reference[n][v]);
	}
	ndp_weights_free(w);
}

/* Where the weights go in step @step: each DIMM in turn, two, all. */
static uint32_t next_place(const struct bench *b, uint64_t step)
{
	switch (step % 4) {
	case 2: return dimm_set(b, step / 4, 2);
	case 3: return b->all;
	default: return dimm_set(b, step + step / 4, 1);
	}
}

static void *keep_moving(void *arg)
{
	struct bench *b = arg;
	struct ndp_placement place;
	struct ndp_error err = { 0 };
	uint64_t due = now_ns(), now;

	while (!atomic_load(&b->stop)) {
		check(ndp_placement_spread(&place, ndp_expert_blocks(&shape),
					   next_place(b, b->migrations)), "spreading");
		if (ndp_weights_migrate(b->weights, &place, NULL, &err) < 0)
			die("migration %llu: %s", (unsigned long long)b->migrations, err.message);
		b->migrations++;
		due += b->interval_ns;
		now = now_ns();
		if (now >= due) {
			b->late++;
			due = now;
			continue;
		}
		nanosleep(&(struct timespec){ .tv_nsec = due - now }, NULL);
	}
	return NULL;
}

static void judge(struct bench *b, const struct ndp_result *result)
{
	const unsigned int v = result->tag >> 32, slot = (uint32_t)result->tag;
	const unsigned int n = __builtin_popcount(result->dimm_mask);
	double deviation;
	float y[HIDDEN];
	unsigned int j;

	check(result->res, "a command");
	b->retries += result->retries;
	b->by_dimms[n]++;
	b->seen_mask = result->dimm_mask;
	get_y(b, slot, result->dimm_mask, y);
	if (memcmp(y, reference[n][v], sizeof(y)))
		b->wrong_bits++;
	for (j = 0; j < HIDDEN; j++) {
		deviation = fabs((double)y[j] - reference[1][v][j]) / bound[v][j];
		if (!(deviation <= b->worst))
			b->worst = deviation;
		if (!(deviation <= 1)) {
			b->out_of_bound++;
			break;
		}
	}
}

static void issue_all(struct bench *b, uint64_t commands)
{
	struct ndp_result results[MAX_DEPTH];
	unsigned int free_slots[MAX_DEPTH], nr_free = b->depth, slot, v;
	struct ndp_cmd cmd;
	uint64_t issued = 0;
	int n, i;

	for (slot = 0; slot < b->depth; slot++)
		free_slots[slot] = slot;
	while (b->commands < commands) {
		while (nr_free && issued < commands) {
			slot = free_slots[--nr_free];
			v = issued++ % NR_X;
			put_x(b, slot, v, b->seen_mask);
			cmd = command(b, b->weights, slot, v, b->seen_mask);
			check(ndp_queue_push(b->queue, &cmd), "ndp_queue_push");
		}
		n = ndp_queue_wait(b->queue, results, b->depth, 1);
		check(n, "ndp_queue_wait");
		for (i = 0; i < n; i++) {
			judge(b, &results[i]);
			free_slots[nr_free++] = (uint32_t)results[i].tag;
		}
		b->commands += n;
	}
}

/* What the allocators say: the user's bytes, then the free bytes of each DIMM. */
struct accounts {
	uint64_t used, free[NDP_MAX_DIMMS];
};

static void read_accounts(struct bench *b, struct ndp_device *dev, struct accounts *a)
{
	struct ndp_device_info info;
	struct ndp_dimm_info dimm;
	unsigned int d;

	check(ndp_device_info(dev, &info), "ndp_device_info");
	a->used = info.used_bytes;
	for (d = 0; d < b->nr_dimms; d++) {
		check(ndp_dimm_info(dev, b->dimms[d], &dimm), "ndp_dimm_info");
		a->free[d] = dimm.free_bytes;
	}
}

/* How many of them differ; memory of the last command may take a moment to come back. */
static unsigned int compare_accounts(struct bench *b, struct ndp_device *dev,
				     const struct accounts *before)
{
	const uint64_t deadline = now_ns() + 2000000000ull;
	struct accounts after;
	unsigned int d, differ;

	do {
		read_accounts(b, dev, &after);
		differ = after.used != before->used;
		for (d = 0; d < b->nr_dimms; d++)
			differ += after.free[d] != before->free[d];
		if (!differ)
			return 0;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	} while (now_ns() < deadline);
	fprintf(stderr, "bench_migrate: allocated %llu bytes before, %llu after\n",
		(unsigned long long)before->used, (unsigned long long)after.used);
	for (d = 0; d < b->nr_dimms; d++)
		fprintf(stderr, "bench_migrate: DIMM %u: %llu bytes free before, %llu after\n",
			b->dimms[d], (unsigned long long)before->free[d],
			(unsigned long long)after.free[d]);
	return differ;
}

static void find_dimms(struct bench *b, struct ndp_device *dev)
{
	struct ndp_device_info info;
	unsigned int d;

	check(ndp_device_info(dev, &info), "ndp_device_info");
	b->all = info.dimm_mask;
	for (d = 0; d < NDP_MAX_DIMMS; d++)
		if (b->all & (1u << d))
			b->dimms[b->nr_dimms++] = d;
	if (b->nr_dimms < 2 || b->nr_dimms > NEURONS / NDP_BLOCK_ROWS)
		die("2 to %d DIMMs are needed, %s has %u", NEURONS / NDP_BLOCK_ROWS, info.name,
		    b->nr_dimms);
}

static void open_all(struct bench *b)
{
	struct ndp_error err = { 0 };

	if (ndp_io_create(&b->io_x, b->dev, 0, MAX_DEPTH * X_BYTES, &err) < 0 ||
	    ndp_io_create(&b->io_y, b->dev, 0, MAX_DEPTH * Y_BYTES, &err) < 0 ||
	    ndp_queue_create(&b->queue, b->dev, b->depth, &err) < 0)
		die("%s", err.message);
	make_reference(b, 1);
	make_reference(b, 2);
	make_reference(b, b->nr_dimms);
	b->seen_mask = dimm_set(b, 0, 1);
	b->weights = create_weights(b, b->seen_mask);
}

static void free_all(struct bench *b)
{
	ndp_queue_free(b->queue);
	ndp_weights_free(b->weights);
	ndp_io_free(b->io_x);
	ndp_io_free(b->io_y);
}

static uint64_t report(const struct bench *b, unsigned int accounts, uint64_t ns)
{
	uint64_t bad = b->wrong_bits + b->out_of_bound + accounts;
	unsigned int n;

	printf("# %llu commands, %llu migrations (%llu took longer than the interval), %llu retries after ESTALE, %.1f s of wall time\n",
	       (unsigned long long)b->commands, (unsigned long long)b->migrations,
	       (unsigned long long)b->late, (unsigned long long)b->retries, ns * 1e-9);
	for (n = 1; n <= b->nr_dimms; n++)
		if (b->by_dimms[n])
			printf("# computed on %u DIMM%s: %llu\n", n, n > 1 ? "s" : "",
			       (unsigned long long)b->by_dimms[n]);
	printf("# not bit-equal to the same partition at rest: %llu; outside the bound: %llu (worst deviation / bound %.3f); allocator counters changed: %u\n",
	       (unsigned long long)b->wrong_bits, (unsigned long long)b->out_of_bound, b->worst,
	       accounts);
	/* A run in which nothing moved has shown nothing. */
	if (b->migrations < 10 || !b->by_dimms[1] || !b->by_dimms[2] || !b->by_dimms[b->nr_dimms]) {
		printf("# not enough migrations for a verdict\n");
		bad++;
	}
	return bad;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "commands", required_argument, NULL, 'n' },
		{ "interval-ms", required_argument, NULL, 'i' },
		{ "depth", required_argument, NULL, 'q' },
		{ 0 }
	};
	static struct bench b = { .depth = 8, .interval_ns = 10000000 };
	const char *device = "soft:dimms=4,size=32M";
	struct ndp_device *observer = NULL;
	struct accounts before;
	uint64_t commands = 100000, start, ns, bad;
	unsigned int differ;
	pthread_t mover;
	int c, soft;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'd': device = optarg; break;
		case 'n': commands = parse_number("--commands", optarg, 1, 100000000); break;
		case 'i':
			b.interval_ns = parse_number("--interval-ms", optarg, 1, 999) * 1000000ull;
			break;
		case 'q': b.depth = parse_number("--depth", optarg, 1, MAX_DEPTH); break;
		default: return 2;
		}
	}
	make_data();

	/* An in-process device lives and dies with its handle, so the same one must watch itself. */
	soft = !strncmp(device, "soft:", 5);
	b.dev = open_device(device);
	observer = soft ? b.dev : open_device(device);
	find_dimms(&b, observer);
	read_accounts(&b, observer, &before);
	open_all(&b);

	start = now_ns();
	if (pthread_create(&mover, NULL, keep_moving, &b))
		die("pthread_create failed");
	issue_all(&b, commands);
	ns = now_ns() - start;
	atomic_store(&b.stop, true);
	pthread_join(mover, NULL);

	free_all(&b);
	if (!soft)
		ndp_close(b.dev);
	differ = compare_accounts(&b, observer, &before);
	ndp_close(observer);

	bad = report(&b, differ, ns);
	printf("bar F.5 migrate-%lluk%s value=%llu goal=0 %s\n", (unsigned long long)commands / 1000, soft ? "-soft" : "",
	       (unsigned long long)bad, bad ? "fail" : "pass");
	return bad != 0;
}
