// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu_ggml.c - the FFN by ggml's MUL_MAT_ID, in a program of its own, since the
 * distribution's ggml wants another C library (tests/bench/ggml-rival.sh makes that program,
 * tests/bench/ggml_rival.c says how one talks to it).
 *
 * A run is a command through a pipe and an answer; what that costs is in ggml's times, and
 * is reported.
 */
#include "cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOAD = 1, PREPARE, RUN, NOTHING, TRIES = 101 };

const char *cpu_ggml_path;

struct ggml {
	struct cpu_setup s;
	pid_t pid;
	int to, from;
	size_t weights, bytes;
	ndp_bf16 *shared;	/* gate, up, down; x */
	float *y;		/* behind x */
	bool prepared;		/* what @tokens asks for */
	uint32_t tokens;
};

static void tell(struct ggml *g, uint32_t what, uint32_t number)
{
	const uint32_t command[2] = { what, number };
	uint32_t answer = 1;

	if (write(g->to, command, sizeof(command)) != sizeof(command) ||
	    read(g->from, &answer, sizeof(answer)) != sizeof(answer) || answer)
		bench_die("the program %s ended before it had answered; what it says stands above",
			  cpu_ggml_path);
}

static double answer_us(struct ggml *g)
{
	double us[TRIES];

	for (int i = 0; i < TRIES; i++) {
		uint64_t start = bench_now_ns();

		tell(g, NOTHING, 0);
		us[i] = (double)(bench_now_ns() - start) / 1000;
	}
	return bench_median(us, TRIES);
}

static const char *describe(void *r)
{
	static char text[160];
	char command[4200], version[40] = "?";
	FILE *f;

	snprintf(command, sizeof(command), "'%s' version", cpu_ggml_path);
	f = popen(command, "re");
	if (f) {
		if (!fgets(version, sizeof(version), f))
			version[0] = 0;
		pclose(f);
	}
	snprintf(text, sizeof(text), "MUL_MAT_ID of libggml0 %.*s; it is another process, and asking "
		 "it takes %.0f us of its times", (int)strcspn(version, "\n"), version,
		 answer_us(r));
	return text;
}

/* Descriptors are closed by execv(), but for these three. */
static void start(struct ggml *g, int memory)
{
	char number[5][12];
	char *argv[] = { (char *)cpu_ggml_path, number[0], number[1], number[2], number[3],
			 number[4], NULL };
	int in[2], out[2];

	snprintf(number[0], sizeof(number[0]), "%u", g->s.hidden);
	snprintf(number[1], sizeof(number[1]), "%u", g->s.neurons);
	snprintf(number[2], sizeof(number[2]), "%u", g->s.experts);
	snprintf(number[3], sizeof(number[3]), "%u", g->s.max_tokens);
	snprintf(number[4], sizeof(number[4]), "%u", g->s.threads);
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || (g->pid = fork()) < 0)
		bench_die("cannot start %s: %s", cpu_ggml_path, strerror(errno));
	if (!g->pid) {
		/* Out of the way of each other first. */
		int i = fcntl(in[0], F_DUPFD_CLOEXEC, 10), o = fcntl(out[1], F_DUPFD_CLOEXEC, 10);
		int m = fcntl(memory, F_DUPFD_CLOEXEC, 10);

		if (dup2(i, 0) == 0 && dup2(o, 1) == 1 && dup2(m, 3) == 3)
			execv(argv[0], argv);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	g->to = in[1];
	g->from = out[0];
}

static void *open_ggml(const struct cpu_setup *s, const char **why)
{
	struct ggml *g = calloc(1, sizeof(*g));
	int memory;

	if (!g)
		bench_die("out of memory");
	if (!cpu_ggml_path) {
		*why = "--ggml does not say where it is (tests/bench/ggml-rival.sh makes it)";
		free(g);
		return NULL;
	}
	if (access(cpu_ggml_path, X_OK)) {
		*why = "there is no program where --ggml says";
		free(g);
		return NULL;
	}
	g->s = *s;
	g->weights = (size_t)s->hidden * s->neurons;
	g->bytes = 3 * g->weights * sizeof(ndp_bf16) +
		(size_t)s->max_tokens * s->hidden * (sizeof(ndp_bf16) + sizeof(float));
	memory = memfd_create("ggml", MFD_CLOEXEC);
	if (memory < 0 || ftruncate(memory, (off_t)g->bytes))
		bench_die("no memory to share with ggml: %s", strerror(errno));
	g->shared = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (g->shared == MAP_FAILED)
		bench_die("no memory to share with ggml: %s", strerror(errno));
	g->y = (float *)(g->shared + 3 * g->weights + (size_t)s->max_tokens * s->hidden);
	signal(SIGPIPE, SIG_IGN);
	start(g, memory);
	close(memory);
	return g;
}

static void load(void *r, unsigned int e, const ndp_bf16 *gate, const ndp_bf16 *up,
		 const ndp_bf16 *down)
{
	struct ggml *g = r;
	const ndp_bf16 *const from[3] = { gate, up, down };

	for (int i = 0; i < 3; i++)
		memcpy(g->shared + i * g->weights, from[i], g->weights * sizeof(ndp_bf16));
	tell(g, LOAD, e);
}

static void prepare(void *r, uint32_t tokens)
{
	struct ggml *g = r;

	g->tokens = tokens;
	g->prepared = false;
}

/*
 * The first run after prepare() hands over x, and y back, which is compared; those that
 * are timed do not: within one program nobody would copy them.
 */
static void run(void *r, unsigned int expert, const ndp_bf16 *x, uint32_t tokens, float *y)
{
	struct ggml *g = r;
	size_t n = (size_t)tokens * g->s.hidden;

	if (g->prepared) {
		tell(g, RUN, expert);
		return;
	}
	memcpy(g->shared + 3 * g->weights, x, n * sizeof(*x));
	tell(g, PREPARE, tokens);
	tell(g, RUN, expert);
	memcpy(y, g->y, n * sizeof(*y));
	g->prepared = true;
}

static void close_ggml(void *r)
{
	struct ggml *g = r;

	close(g->to);
	close(g->from);
	waitpid(g->pid, NULL, 0);
	munmap(g->shared, g->bytes);
	free(g);
}

const struct cpu_runner cpu_ggml = {
	.name = "ggml",
	.describe = describe,
	.open = open_ggml,
	.load = load,
	.prepare = prepare,
	.run = run,
	.close = close_ggml,
};
