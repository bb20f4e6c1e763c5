// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * layer_input.c - see layer.h: models, traces, batches.
 *
 * A batch's tokens are made so that the model's own router sends them where recorded
 * tokens went: noise, plus for each wanted expert a multiple of its row of the router,
 * which raises that expert's logit by about that much and hardly any other's.
 */
#include "layer.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#define MAX_ARGUMENTS 24

static void *must(void *p)
{
	if (!p)
		bench_die("out of memory");
	return p;
}

/* ---- models ---------------------------------------------------------------------- */

/* The program beside this one. */
static void beside(char *path, size_t size, const char *name)
{
	ssize_t n = readlink("/proc/self/exe", path, size - 1);
	char *slash;

	if (n < 0)
		bench_die("/proc/self/exe cannot be read: %s", strerror(errno));
	path[n] = 0;
	slash = strrchr(path, '/');
	if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= size)
		bench_die("the path of this program is too long");
	strcpy(slash + 1, name);
}

static int run(const char *const *argv)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (pid < 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void remove_folder(const char *path)
{
	const char *const argv[] = { "rm", "-rf", "--", path, NULL };

	if (run(argv))
		bench_die("%s cannot be removed", path);
}

static struct ndp_model *made_model(const char *const *arguments)
{
	const char *tmp = getenv("TMPDIR"), *argv[MAX_ARGUMENTS];
	char folder[PATH_MAX], model[PATH_MAX + 8], tool[PATH_MAX];
	struct ndp_error err;
	struct ndp_model *m;
	unsigned int n = 0;
	int r;

	snprintf(folder, sizeof(folder), "%s/ndp-bench-XXXXXX", tmp && *tmp ? tmp : "/var/tmp");
	if (!mkdtemp(folder))
		bench_die("%s cannot be made: %s", folder, strerror(errno));
	snprintf(model, sizeof(model), "%s/model", folder);
	beside(tool, sizeof(tool), "ndp-mkmodel");
	argv[n++] = tool;
	while (*arguments && n < MAX_ARGUMENTS - 2)
		argv[n++] = *arguments++;
	argv[n++] = model;
	argv[n] = NULL;
	r = run(argv);
	if (r) {
		remove_folder(folder);
		bench_die("%s ended with %d: no model to measure", tool, r);
	}
	r = ndp_model_open(&m, model, &err);
	remove_folder(folder); /* it stays mapped */
	if (r < 0)
		bench_die("%s", err.message);
	return m;
}

struct ndp_model *layer_model(const char *path, const char *const *arguments)
{
	struct ndp_error err;
	struct ndp_model *m;

	if (!path)
		return made_model(arguments);
	if (ndp_model_open(&m, path, &err) < 0)
		bench_die("%s", err.message);
	return m;
}

const struct ndp_expert_shape *layer_shape(const struct layer_experts *e, uint32_t expert)
{
	return expert == e->info.router.experts ? &e->info.shared : &e->info.routed;
}

static size_t expert_bytes(const struct layer_experts *e, uint32_t expert)
{
	const struct ndp_expert_shape *s = layer_shape(e, expert);

	return ndp_expert_blocks(s) * ndp_expert_block_bytes(s);
}

static uint32_t all_experts(const struct layer_experts *e)
{
	return e->info.router.experts + !!e->info.shared.neurons;
}

void layer_experts_make(struct layer_experts *e, const struct ndp_model *m)
{
	struct ndp_error err;
	uint32_t experts;
	void *work;

	memset(e, 0, sizeof(*e));
	ndp_model_info(m, &e->info);
	experts = e->info.router.experts;
	while (!ndp_model_is_moe(m, e->layer))
		e->layer++;
	work = must(malloc(ndp_model_pack_bytes(m) + 64));
	e->blocks = must(calloc(experts + 1, sizeof(*e->blocks)));
	for (uint32_t i = 0; i < all_experts(e); i++) {
		void *p = must(ndp_host_alloc(expert_bytes(e, i), -1));

		madvise(p, expert_bytes(e, i), MADV_HUGEPAGE);
		if (ndp_model_pack(m, e->layer, i < experts ? i : NDP_EXPERT_SHARED, 0,
				   ndp_expert_blocks(layer_shape(e, i)), p, work, &err) < 0)
			bench_die("%s", err.message);
		e->blocks[i] = p;
	}
	free(work);
	if (e->info.expert_bias)
		e->down_bias = must(malloc((size_t)experts * e->info.hidden * sizeof(float)));
	for (uint32_t i = 0; e->down_bias && i < experts; i++)
		if (ndp_model_down_bias(m, e->layer, i, e->down_bias + (size_t)i * e->info.hidden,
					&err) < 0)
			bench_die("%s", err.message);
	e->router = must(malloc((size_t)experts * e->info.hidden * sizeof(float)));
	if (e->info.router_bias)
		e->router_bias = must(malloc(experts * sizeof(float)));
	if (e->info.selection_bias)
		e->selection = must(malloc(experts * sizeof(float)));
	if (e->info.shared_gate)
		e->shared_gate = must(malloc(e->info.hidden * sizeof(float)));
	if (ndp_model_router(m, e->layer, e->router, e->router_bias, e->selection, e->shared_gate,
			     &err) < 0)
		bench_die("%s", err.message);
}

void layer_experts_free(struct layer_experts *e)
{
	for (uint32_t i = 0; i < all_experts(e); i++)
		ndp_host_free(e->blocks[i], expert_bytes(e, i));
	free(e->blocks);
	free(e->down_bias);
	free(e->router);
	free(e->router_bias);
	free(e->selection);
	free(e->shared_gate);
}

/* ---- traces ------------------------------------------------------------------------ */

struct line {
	unsigned int step, layer, expert, count;
};

/* @read: 1: a line, 0: the end. */
static int next_line(gzFile f, const char *path, struct line *l)
{
	char text[128];

	if (!gzgets(f, text, sizeof(text))) {
		if (!gzeof(f))
			bench_die("%s is damaged", path);
		return 0;
	}
	if (sscanf(text, "%u,%u,%u,%u", &l->step, &l->layer, &l->expert, &l->count) != 4 ||
	    l->step > 100000 || l->layer > 1023 || l->expert > 65534 || l->count != 1)
		bench_die("%s: \"%.40s\" is no line step,layer,expert,1 of one token a step", path,
			  text);
	return 1;
}

static gzFile open_trace(const char *path)
{
	char head[128];
	gzFile f = gzopen(path, "rb");

	if (!f)
		bench_die("%s cannot be opened: %s; --trace names one", path, strerror(errno));
	if (!gzgets(f, head, sizeof(head)) || strcmp(head, "step,layer,expert,count\n"))
		bench_die("%s does not begin with step,layer,expert,count", path);
	return f;
}

void layer_trace_read(struct layer_trace *t, const char *path)
{
	gzFile f = open_trace(path);
	uint32_t *seen;
	struct line l;
	uint64_t n = 0;

	memset(t, 0, sizeof(*t));
	while (next_line(f, path, &l)) {
		t->steps = l.step >= t->steps ? l.step + 1 : t->steps;
		t->layers = l.layer >= t->layers ? l.layer + 1 : t->layers;
		t->experts = l.expert >= t->experts ? l.expert + 1 : t->experts;
		n++;
	}
	gzclose(f);
	if (!n || n % ((uint64_t)t->steps * t->layers))
		bench_die("%s has %llu selections for %u steps of %u layers: not equally many "
			  "for each",
			  path, (unsigned long long)n, t->steps, t->layers);
	t->k = (uint32_t)(n / ((uint64_t)t->steps * t->layers));
	t->ids = must(calloc(n, sizeof(*t->ids)));
	seen = must(calloc((size_t)t->steps * t->layers, sizeof(*seen)));
	f = open_trace(path);
	while (next_line(f, path, &l)) {
		const size_t token = (size_t)l.layer * t->steps + l.step;

		if (seen[token] == t->k)
			bench_die("%s: step %u of layer %u has more than %u experts", path, l.step,
				  l.layer, t->k);
		t->ids[token * t->k + seen[token]++] = (uint16_t)l.expert;
	}
	gzclose(f);
	free(seen);
}

void layer_trace_free(struct layer_trace *t)
{
	free(t->ids);
}

/* ---- batches -------------------------------------------------------------------------- */

static void allocate(struct layer_input *in, const struct layer_experts *e, uint32_t tokens)
{
	in->tokens = tokens;
	in->k = e->info.router.top_k;
	in->x = must(malloc((size_t)tokens * e->info.hidden * sizeof(*in->x)));
	in->ids = must(malloc((size_t)tokens * in->k * sizeof(*in->ids)));
}

void layer_input_noise(struct layer_input *in, const struct layer_experts *e, uint32_t tokens,
		       uint64_t seed)
{
	allocate(in, e, tokens);
	bench_random_f32(in->x, (size_t)tokens * e->info.hidden, 1, seed);
	memset(in->ids, 0, (size_t)tokens * in->k * sizeof(*in->ids));
}

/* Raises the logit of an expert by @by. */
static void want(float *x, const float *row, uint32_t n, float by)
{
	double square = 0;

	for (uint32_t i = 0; i < n; i++)
		square += (double)row[i] * row[i];
	for (uint32_t i = 0; i < n; i++)
		x[i] += (float)(by / square * row[i]);
}

void layer_input_make(struct layer_input *in, const struct layer_experts *e,
		      const struct layer_trace *t, uint32_t layer, uint32_t first,
		      uint32_t tokens, uint64_t seed)
{
	const uint32_t k = e->info.router.top_k, n = e->info.hidden;
	uint64_t state = seed * 2 + 1;

	if (t->experts != e->info.router.experts || t->k < k)
		bench_die("the trace is of %u experts, %u for each token; the model has %u, %u",
			  t->experts, t->k, e->info.router.experts, k);
	layer_input_noise(in, e, tokens, seed);
	for (uint32_t i = 0; i < tokens; i++) {
		const uint32_t step = (first + i) % t->steps;
		const uint16_t *from = t->ids + ((size_t)layer * t->steps + step) * t->k;
		uint16_t ids[t->k];

		memcpy(ids, from, sizeof(ids));
		for (uint32_t j = 0; j < k; j++) {
			/* The trace does not say which were the best: any k of them. */
			const uint32_t o = j + bench_random(&state) % (t->k - j);
			const uint16_t id = ids[o];

			ids[o] = ids[j];
			ids[j] = id;
			in->ids[i * k + j] = id;
			want(in->x + (size_t)i * n, e->router + (size_t)id * n, n,
			     12 + 0.5f * (float)j);
		}
	}
}

void layer_input_free(struct layer_input *in)
{
	free(in->x);
	free(in->ids);
}

/* ---- what is measured ------------------------------------------------------------------- */

struct ndp_cpu *layer_cpu(uint32_t threads, bool deterministic)
{
	const struct ndp_cpu_options o = { .threads = threads, .deterministic = deterministic };
	struct ndp_error err;
	struct ndp_cpu *cpu;

	if (ndp_cpu_open(&cpu, &o, &err) < 0)
		bench_die("%s", err.message);
	return cpu;
}

struct ndp_moe *layer_load(const struct ndp_model *m, const struct ndp_moe_options *o)
{
	struct ndp_error err;
	struct ndp_moe *moe;

	if (ndp_moe_load(&moe, m, o, &err) < 0)
		bench_die("%s", err.message);
	return moe;
}

struct ndp_moe_context *layer_context(struct ndp_moe *moe, uint32_t tokens)
{
	struct ndp_moe_context *ctx;
	struct ndp_error err;

	if (ndp_moe_context_create(&ctx, moe, tokens, &err) < 0)
		bench_die("%s", err.message);
	return ctx;
}
