// SPDX-License-Identifier: GPL-2.0-or-later
/* reference.c - see reference.h. */
#include "reference.h"
#include "source.h"
#include "../ndp-reference/protocol.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MS = 500 };

struct reference_problem {
	struct ndp_layer layer;	/* its arrays are our own */
	uint32_t *tokens;
	uint16_t *blocks;
	uint8_t *on_gpu;
	double makespan_ns[NDP_POLICIES];
};

int reference_init(struct reference *ref, uint32_t wanted, uint64_t seed, struct ndp_error *err)
{
	*ref = (struct reference){
		.wanted = wanted, .limit_ms = LIMIT_MS, .random = random_state(seed),
	};
	if (!wanted)
		return 0;
	ref->problems = calloc(wanted, sizeof(*ref->problems));
	return ref->problems ? 0 : fail(err, -ENOMEM, "out of memory");
}

void reference_free(struct reference *ref)
{
	for (uint32_t i = 0; i < ref->nr; i++) {
		free(ref->problems[i].tokens);
		free(ref->problems[i].blocks);
		free(ref->problems[i].on_gpu);
	}
	free(ref->problems);
}

int reference_offer(struct reference *ref, const struct ndp_layer *layer,
		    const double makespan_ns[NDP_POLICIES], struct ndp_error *err)
{
	const size_t experts = layer->shape->experts;
	const size_t rows = experts * layer->host->nr_dimms;
	struct reference_problem *p;
	uint64_t at;

	if (!ref->wanted)
		return 0;
	at = ref->seen++;
	if (at >= ref->wanted) {
		at = random_u64(&ref->random) % ref->seen;
		if (at >= ref->wanted)
			return 0;
	}
	p = &ref->problems[at];
	if (at == ref->nr) {
		ref->nr++;
		p->tokens = malloc(experts * sizeof(*p->tokens));
		p->blocks = malloc(rows * sizeof(*p->blocks));
		p->on_gpu = malloc(experts);
	}
	if (!p->tokens || !p->blocks || !p->on_gpu)
		return fail(err, -ENOMEM, "out of memory");
	memcpy(p->tokens, layer->tokens, experts * sizeof(*p->tokens));
	memcpy(p->blocks, layer->blocks, rows * sizeof(*p->blocks));
	memcpy(p->on_gpu, layer->on_gpu, experts);
	memcpy(p->makespan_ns, makespan_ns, sizeof(p->makespan_ns));
	p->layer = *layer;
	p->layer.tokens = p->tokens;
	p->layer.blocks = p->blocks;
	p->layer.on_gpu = p->on_gpu;
	return 0;
}

/* A running ndp-reference. */
struct solver {
	FILE *to, *from;
	pid_t pid;
};

static int solver_start(struct solver *s, struct ndp_error *err)
{
	char program[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 16);
	int pair[2];

	if (n < 0)
		return fail(err, -errno, "/proc/self/exe: %s", strerror(errno));
	program[n] = 0;
	strcpy(strrchr(program, '/') + 1, "ndp-reference");
	if (access(program, X_OK) < 0)
		return fail(err, -errno, "%s: %s; --reference needs this program", program,
			    strerror(errno));
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return fail(err, -errno, "a pair of sockets: %s", strerror(errno));
	s->pid = fork();
	if (s->pid == 0) {
		dup2(pair[1], STDIN_FILENO);
		dup2(pair[1], STDOUT_FILENO);
		execl(program, "ndp-reference", NULL);
		_exit(127);
	}
	close(pair[1]);
	s->to = s->pid < 0 ? NULL : fdopen(dup(pair[0]), "w");
	s->from = s->pid < 0 ? NULL : fdopen(pair[0], "r");
	if (!s->to || !s->from)
		return fail(err, -errno, "%s: cannot be started (%s)", program, strerror(errno));
	return 0;
}

static void solver_end(struct solver *s)
{
	if (s->to) {
		fclose(s->to);
		/* Both ends are one socket: say that nothing more comes. */
		shutdown(fileno(s->from), SHUT_WR);
	}
	if (s->from)
		fclose(s->from);
	if (s->pid > 0)
		waitpid(s->pid, NULL, 0);
}

static int ask(struct reference *ref, struct solver *s, const struct reference_problem *p,
	       struct ndp_error *err)
{
	const enum ndp_policy known = NDP_POLICY_TRIMOE;
	struct reference_answer a;

	/* A plan of whole experts that is known need not be found again. */
	if (reference_write(s->to, &p->layer, p->makespan_ns[known] > 0 ? p->makespan_ns[known] :
			    HUGE_VAL, ref->limit_ms) < 0 || reference_read(s->from, &a) < 0)
		return fail(err, -EIO, "ndp-reference ended without an answer");
	ref->fluid_ns += a.fluid_ns;
	ref->whole_ns += a.whole_ns;
	ref->whole_bound_ns += a.whole_bound_ns;
	ref->proven += a.proven;
	for (int k = 0; k < NDP_POLICIES; k++)
		ref->policy_ns[k] += p->makespan_ns[k];
	return 0;
}

int reference_solve(struct reference *ref, struct ndp_error *err)
{
	struct solver s = { 0 };
	struct sigaction ignore = { .sa_handler = SIG_IGN }, before;
	int r;

	if (!ref->nr)
		return 0;
	/* A solver that ends early is an error, not a signal. */
	sigaction(SIGPIPE, &ignore, &before);
	r = solver_start(&s, err);
	for (uint32_t i = 0; i < ref->nr && r == 0; i++)
		r = ask(ref, &s, &ref->problems[i], err);
	solver_end(&s);
	sigaction(SIGPIPE, &before, NULL);
	return r;
}
