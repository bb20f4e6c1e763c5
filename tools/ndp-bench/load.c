// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * load.c - `ndp-bench load`: how fast a model's experts are packed, against copying the
 * same number of bytes, and how much memory loading takes beyond the weights.
 *
 * The model's file is in the page cache, so that the disk is not what is measured.
 * Packing and copying run in turn, with the same number of threads; both write memory
 * that no cache holds.
 */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <ndp/moe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
	"Usage: ndp-bench load --model PATH [OPTION]...\n\n"
	"Packing a model's experts against memcpy(), and the memory that loading takes.\n\n"
	"  --model PATH     folder or GGUF file; ndp-mkmodel makes one\n"
	"  --threads LIST   (default: 1 and the number of CPUs)\n"
	"  --rounds N       kept of each measurement (default: 15)\n"
	"  --bars           judge bar D.6\n";

struct options {
	const char *model;
	uint32_t threads[8];
	unsigned int nr_threads;
	unsigned int rounds;
	bool bars;
};

/* ---- packing ------------------------------------------------------------------ */

/* Packs the experts of a layer one after the other, each blocks [first, first + n) by a thread. */
struct packer {
	const struct ndp_model *model;
	struct ndp_model_info info;
	struct bench_team *team;
	unsigned int threads;
	uint32_t layer;
	uint32_t expert;	/* of the next run */
	size_t bytes;		/* of an expert */
	char **packed;		/* [experts] */
	void **work;		/* [threads] */
	_Atomic int failed;
	struct ndp_error err;	/* of the first that failed */
};

static void pack_part(void *arg, unsigned int i)
{
	struct packer *p = arg;
	uint32_t blocks = ndp_expert_blocks(&p->info.routed);
	uint32_t first = blocks * i / p->threads, end = blocks * (i + 1) / p->threads;
	struct ndp_error err;

	if (first == end)
		return;
	if (ndp_model_pack(p->model, p->layer, p->expert, first, end - first,
			   p->packed[p->expert] + first * ndp_expert_block_bytes(&p->info.routed),
			   p->work[i], &err) < 0 && !atomic_exchange(&p->failed, 1))
		p->err = err;
}

static void pack_run(void *arg)
{
	struct packer *p = arg;

	p->expert = (p->expert + 1) % p->info.router.experts;
	bench_team_run(p->team, pack_part, p);
	if (p->failed)
		bench_die("%s", p->err.message);
}

static void *memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		bench_die("no memory for %zu MiB", bytes >> 20);
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes);
	return p;
}

static void packer_start(struct packer *p, const struct ndp_model *model, unsigned int threads)
{
	*p = (struct packer){ .model = model, .threads = threads };
	ndp_model_info(model, &p->info);
	while (!ndp_model_is_moe(model, p->layer))
		p->layer++;
	p->bytes = (size_t)ndp_expert_blocks(&p->info.routed) *
		   ndp_expert_block_bytes(&p->info.routed);
	p->packed = calloc(p->info.router.experts, sizeof(*p->packed));
	p->work = calloc(threads, sizeof(*p->work));
	if (!p->packed || !p->work)
		bench_die("out of memory");
	for (uint32_t e = 0; e < p->info.router.experts; e++)
		p->packed[e] = memory(p->bytes);
	for (unsigned int i = 0; i < threads; i++)
		p->work[i] = ndp_model_pack_bytes(model) ? memory(ndp_model_pack_bytes(model)) :
							   NULL;
	p->team = bench_team_start(threads);
}

static void packer_stop(struct packer *p)
{
	bench_team_stop(p->team);
	for (uint32_t e = 0; e < p->info.router.experts; e++)
		munmap(p->packed[e], p->bytes);
	for (unsigned int i = 0; i < p->threads; i++)
		if (p->work[i])
			munmap(p->work[i], ndp_model_pack_bytes(p->model));
	free(p->packed);
	free(p->work);
}

static void packing(struct bench_report *rep, const struct ndp_model *model,
		    const struct options *o, unsigned int threads)
{
	struct bench_sampling s = { .want = o->rounds, .warmup = 2, .seconds = 10 };
	struct bench_copier *copier;
	struct packer p;
	struct bench_ratio r;
	char name[64];

	packer_start(&p, model, threads);
	/* All of the file into the page cache, all of the pages mapped. */
	for (uint32_t e = 0; e < p.info.router.experts; e++)
		pack_run(&p);
	copier = bench_copier_start(threads, p.bytes);
	struct bench_contender c[] = {
		{ .name = "pack", .run = pack_run, .arg = &p },
		{ .name = "copy", .run = bench_copier_run, .arg = copier },
	};

	bench_sample(&s, c, 2);
	r = bench_ratio(c[1].ns, c[0].ns, s.rounds);
	bench_row(rep, (struct bench_cell[]){
		BENCH_NUM(threads), BENCH_NUM((double)p.bytes / bench_median(c[0].ns, s.rounds)),
		BENCH_NUM((double)p.bytes / bench_median(c[1].ns, s.rounds)),
		BENCH_NUM(100 * r.median), BENCH_NUM(100 * r.lower95), BENCH_NUM(s.rounds),
		BENCH_NUM(s.dirty),
	});
	snprintf(name, sizeof(name), "packing-against-copying-%u-thread%s", threads,
		 threads == 1 ? "" : "s");
	if (o->bars)
		bench_bar(rep, "D.6", name, r.median, BENCH_AT_LEAST, 0.5);
	bench_samples_free(c, 2);
	bench_copier_stop(copier);
	packer_stop(&p);
}

/* ---- memory ---------------------------------------------------------------------- */

/* Memory of this process that is neither a file's nor shared: pages resident less these. */
static size_t anonymous_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long size, resident = 0, shared = 0;

	if (!f || fscanf(f, "%lu %lu %lu", &size, &resident, &shared) != 3)
		bench_die("/proc/self/statm cannot be read");
	fclose(f);
	return (resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Looks at it every 100 us. */
struct watcher {
	pthread_t thread;
	_Atomic int stop;
	size_t most;
	unsigned long looks;
};

static void *watch(void *arg)
{
	struct watcher *w = arg;
	const struct timespec pause = { .tv_nsec = 100000 };

	while (!atomic_load(&w->stop)) {
		size_t now = anonymous_bytes();

		w->most = now > w->most ? now : w->most;
		w->looks++;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/*
 * Loads the whole model, into DIMMs of this process: their memory is shared, so what
 * is anonymous is what loading takes besides.
 */
static void extra_memory(struct bench_report *rep, const struct ndp_model *model,
			 const struct options *o, unsigned int threads)
{
	struct ndp_moe_options options = {
		.load_threads = threads, .domains = 1 << NDP_DOMAIN_NDP,
	};
	struct ndp_moe_memory memory_used;
	struct ndp_model_info info;
	struct watcher w = { 0 };
	struct ndp_device *dev;
	struct ndp_error err;
	struct ndp_moe *moe;
	size_t before, one;
	uint64_t start, ns;
	char spec[64], name[64];
	double extra;

	ndp_model_info(model, &info);
	one = (size_t)ndp_expert_blocks(&info.routed) * ndp_expert_block_bytes(&info.routed);
	/* A quarter of the routed and shared experts on each of four DIMMs, and room to spare. */
	snprintf(spec, sizeof(spec), "soft:dimms=4,size=%zuM",
		 (one * (info.router.experts / 4 + 2) * info.moe_layers >> 20) * 5 / 4 + 64);
	if (ndp_open(&dev, spec, &err) < 0)
		bench_die("%s", err.message);
	options.device = dev;
	before = anonymous_bytes();
	w.most = before;
	if (pthread_create(&w.thread, NULL, watch, &w))
		bench_die("a thread could not be started");
	start = bench_now_ns();
	if (ndp_moe_load(&moe, model, &options, &err) < 0)
		bench_die("%s", err.message);
	ns = bench_now_ns() - start;
	atomic_store(&w.stop, 1);
	pthread_join(w.thread, NULL);
	ndp_moe_memory(moe, &memory_used);
	extra = (double)(w.most - before);
	bench_row(rep, (struct bench_cell[]){
		BENCH_NUM(threads), BENCH_NUM((double)memory_used.dimm_bytes / (1 << 20)),
		BENCH_NUM((double)ns / 1e6), BENCH_NUM((double)memory_used.dimm_bytes / (double)ns),
		BENCH_NUM((double)one / (1 << 20)), BENCH_NUM(extra / (1 << 20)),
		BENCH_NUM(extra / (double)one / threads), BENCH_NUM((double)w.looks),
	});
	snprintf(name, sizeof(name), "extra-memory-experts-a-thread-%u-thread%s", threads,
		 threads == 1 ? "" : "s");
	if (o->bars)
		bench_bar(rep, "D.6", name, extra / (double)one / threads, BENCH_AT_MOST, 2);
	ndp_moe_free(moe);
	ndp_close(dev);
}

static void run(struct bench_report *rep, const struct ndp_model *model, const struct options *o)
{
	static const struct bench_column rates[] = {
		{ "threads", "threads", 7, 0 },
		{ "wall_gbps", "packed\nGB/s wall", 10, 2 },
		{ "limit_gbps", "limit: copied\nGB/s wall", 13, 2 },
		{ "limit_percent", "% of limit\nmedian", 10, 1 },
		{ "limit_percent_lower95", "% of limit\nlower 95 %", 10, 1 },
		{ "rounds", "rounds", 6, 0 },
		{ "disturbed_rounds", "of these\ndisturbed", 9, 0 },
	};
	static const struct bench_column memory_columns[] = {
		{ "threads", "threads", 7, 0 },
		{ "weights_mib", "weights\nMiB", 9, 1 },
		{ "wall_ms", "loading\nms wall", 9, 1 },
		{ "wall_gbps", "GB/s\nwall", 6, 2 },
		{ "expert_mib", "an expert\nMiB", 9, 1 },
		{ "extra_mib", "beyond weights\nMiB at most", 14, 2 },
		{ "extra_experts_per_thread", "experts\na thread", 8, 3 },
		{ "looks", "looks", 6, 0 },
	};
	struct ndp_model_info info;

	ndp_model_info(model, &info);
	bench_note(rep, "%s: %s, %s, %u MoE layers, %u experts of %u x %u", o->model, info.family,
		   info.format, info.moe_layers, info.router.experts, info.hidden,
		   info.routed.neurons);
	bench_table(rep, "packing", "An expert packed by all threads, from the page cache; the "
		    "limit is memcpy() of as many bytes", rates, sizeof(rates) / sizeof(rates[0]));
	for (unsigned int i = 0; i < o->nr_threads; i++)
		packing(rep, model, o, o->threads[i]);
	bench_table(rep, "loading", "All experts loaded into DIMMs of this process", memory_columns,
		    sizeof(memory_columns) / sizeof(memory_columns[0]));
	for (unsigned int i = 0; i < o->nr_threads; i++)
		extra_memory(rep, model, o, o->threads[i]);
}

int bench_load(int argc, char **argv, struct bench_report *rep)
{
	static const struct option longopts[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "threads", required_argument, NULL, 't' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "bars", no_argument, NULL, 'b' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 }
	};
	struct options o = { .rounds = 15 };
	struct ndp_model *model;
	struct ndp_error err;
	int c;

	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		switch (c) {
		case 'm': o.model = optarg; break;
		case 't':
			o.nr_threads = bench_numbers("--threads", optarg, o.threads, 8, 1, 1024);
			break;
		case 'r': o.rounds = (unsigned int)bench_number("--rounds", optarg, 1, 1000); break;
		case 'b': o.bars = true; break;
		case 'h': bench_help(usage);
		default: return BENCH_USAGE;
		}
	}
	if (optind < argc)
		bench_usage("'%.40s' belongs to no option", argv[optind]);
	if (!o.model)
		bench_usage("--model PATH is missing; ndp-mkmodel makes one");
	if (!o.nr_threads) {
		o.threads[o.nr_threads++] = 1;
		if (bench_cpus() > 1)
			o.threads[o.nr_threads++] = bench_cpus();
	}
	if (ndp_model_open(&model, o.model, &err) < 0)
		bench_die("%s", err.message);
	run(rep, model, &o);
	ndp_model_close(model);
	return BENCH_OK;
}
