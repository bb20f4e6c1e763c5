// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_daemon.c - bars P.2, P.3 and P.5: what following ndpd costs an application and what ndpd
 * costs the machine; whether anything is left when both come and go and are killed; what a
 * migration is said to take.
 *
 *   bench_daemon [cost|churn|migration]      (all three without an argument)
 */
#include "bench.h"
#include "ndpd_run.h"

#include <ndp/daemon.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static bool failed;

static void bar(const char *label, const char *name, double value, const char *unit, const char *goal,
		bool pass)
{
	printf("bar %s %s value=%.4g%s goal=%s %s\n", label, name, value, unit, goal,
	       pass ? "pass" : "fail");
	failed |= !pass;
	fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

/* ---- P.2: cost ------------------------------------------------------------------------- */

enum { COST_LAYERS = 60, COST_EXPERTS = 160, BATCH = 32, BATCHES = 301 };

static struct ndp_attachment *attach_without_device(const struct ndpd_run *n)
{
	const struct ndp_attach_options o = {
		.socket = n->socket, .name = "deepseek-v2", .layers = COST_LAYERS,
		.experts = COST_EXPERTS, .top_k = 6, .hidden = 5120, .intermediate = 1536,
		.expert_bytes = 47185920, .gpu_bytes = 8ull * COST_LAYERS * 47185920,
	};
	struct ndp_attachment *a;
	struct ndp_error err;

	if (ndp_placement_attach(&a, &o, &err) < 0)
		die("%s", err.message);
	return a;
}

static void draw(uint32_t *tokens, uint64_t *state)
{
	memset(tokens, 0, COST_EXPERTS * sizeof(*tokens));
	for (int i = 0; i < 512; i++) {
		const uint64_t r = random64(state);

		tokens[r % 10 < 4 ? r / 16 % 8 : r / 16 % COST_EXPERTS]++;
	}
}

/* The same copies into as much memory as the ring's, and nothing else. */
static double copying_ns(const uint32_t *tokens)
{
	const size_t slot = ndp_ring_slot_bytes(COST_EXPERTS);
	char *memory = malloc(1024 * slot);
	double ns[BATCHES];

	memset(memory, 1, 1024 * slot);
	for (int b = 0; b < BATCHES; b++) {
		const uint64_t start = now_ns();

		for (int i = 0; i < BATCH; i++) {
			memcpy(memory + ((size_t)(b * BATCH + i) & 1023) * slot, tokens,
			       COST_EXPERTS * sizeof(*tokens));
			__asm__ volatile("" : : "r"(memory) : "memory");
		}
		ns[b] = (double)(now_ns() - start) / BATCH;
	}
	free(memory);
	return median(ns, BATCHES);
}

static void cost_of_posting(struct ndp_attachment *a)
{
	uint32_t tokens[COST_EXPERTS];
	double ns[BATCHES], copy;
	uint64_t state = 1;

	draw(tokens, &state);
	copy = copying_ns(tokens);
	for (int b = 0; b < BATCHES; b++) {
		uint64_t start;

		usleep(15000); /* ndpd makes room */
		start = now_ns();
		for (uint32_t i = 0; i < BATCH; i++)
			if (ndp_placement_post(a, i % COST_LAYERS, tokens) < 0)
				die("the ring is full");
		ns[b] = (double)(now_ns() - start) / BATCH;
	}
	printf("# a post: %.1f ns, of which copying %u counts takes %.1f ns (wall, medians of %d "
	       "batches of %d)\n", median(ns, BATCHES), COST_EXPERTS, copy, BATCHES, BATCH);
	bar("P.2", "post", median(ns, BATCHES) - copy, "ns", "<100ns", median(ns, BATCHES) - copy < 100);
}

static void cost_of_reading(struct ndp_attachment *a)
{
	enum { READS = 1000 };
	uint64_t hot[(COST_EXPERTS + 63) / 64];
	double ns[BATCHES];

	for (int b = 0; b < BATCHES; b++) {
		const uint64_t start = now_ns();

		for (uint32_t i = 0; i < READS; i++)
			if (ndp_placement_read(a, i % COST_LAYERS, hot, NULL) < 0)
				die("nothing is published");
		ns[b] = (double)(now_ns() - start) / READS;
	}
	bar("P.2", "read", median(ns, BATCHES), "ns", "<50ns", median(ns, BATCHES) < 50);
}

static void cost_of_ndpd(const struct ndpd_run *n, struct ndp_attachment *a)
{
	enum { SECONDS = 10, A_SECOND = 1000 };
	struct timespec next;
	struct ndp_attach_state before, after;
	uint64_t cpu, wall, state = 7;
	uint32_t tokens[COST_EXPERTS];

	ndp_placement_state(a, &before);
	clock_gettime(CLOCK_MONOTONIC, &next);
	cpu = ndpd_cpu_ns(n);
	wall = now_ns();
	for (uint32_t i = 0; i < SECONDS * A_SECOND; i++) {
		draw(tokens, &state);
		ndp_placement_post(a, i % COST_LAYERS, tokens);
		next.tv_nsec += 1000000000 / A_SECOND;
		next.tv_sec += next.tv_nsec / 1000000000;
		next.tv_nsec %= 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	cpu = ndpd_cpu_ns(n) - cpu;
	wall = now_ns() - wall;
	ndp_placement_state(a, &after);
	printf("# %llu layer-steps in %.1f s, %llu dropped\n",
	       (unsigned long long)(after.posts - before.posts), (double)wall * 1e-9,
	       (unsigned long long)(after.dropped - before.dropped));
	bar("P.2", "ndpd-cpu", 100.0 * (double)cpu / (double)wall, "%", "<2%",
	    (double)cpu < 0.02 * (double)wall);
}

static void cost(void)
{
	struct ndp_attachment *a;
	struct ndpd_run n;

	ndpd_prepare(&n, "");
	ndpd_start(&n);
	a = attach_without_device(&n);
	usleep(300000);
	cost_of_posting(a);
	cost_of_reading(a);
	cost_of_ndpd(&n, a);
	ndp_placement_detach(a);
	ndpd_stop(&n, SIGTERM);
	ndpd_clean(&n);
}

/* ---- P.3: coming, going, being killed ------------------------------------------------------ */

enum { CHURN_LAYERS = 2, CHURN_EXPERTS = 16, CYCLES = 1000, KILLS = 200, NDPD_KILLS = 50 };

static const char churn_config[] = "[placement]\nfirst_decide_every = 2\ndecide_every = 4\n"
				   "stay_ms = 10\n[limits]\nclients = 100\nclients_per_user = 100\n";

static int attach_model(const struct ndpd_run *n, const struct bench_model *m, bool later,
			struct ndp_attachment **a)
{
	const struct ndp_attach_options o = {
		.socket = n->socket, .name = "churn", .device = m->dev, .layers = CHURN_LAYERS,
		.experts = CHURN_EXPERTS, .top_k = 2, .hidden = 5120,
		.intermediate = m->shape.neurons, .expert_bytes = 5120 * 6ull * m->shape.neurons,
		.gpu_bytes = 4 * 5120 * 6ull * m->shape.neurons, .later = later,
	};

	return ndp_placement_attach(a, &o, NULL);
}

static void load_churn(struct bench_model *m)
{
	bench_model_load(m, "soft:dimms=4,size=8M", CHURN_LAYERS, CHURN_EXPERTS, 64, 128, 0);
}

static void post_random(struct ndp_attachment *a, uint64_t *state)
{
	const uint32_t hot = (uint32_t)(random64(state) % CHURN_EXPERTS);

	for (uint32_t l = 0; l < CHURN_LAYERS; l++) {
		uint32_t tokens[CHURN_EXPERTS] = { 0 };

		for (int i = 0; i < 1024; i++) {
			const uint64_t r = random64(state);

			tokens[r % 4 ? (hot + r / 8 % 3) % CHURN_EXPERTS : r / 8 % CHURN_EXPERTS]++;
		}
		ndp_placement_post(a, l, tokens);
	}
}

/* One that is killed at some moment: while it loads, attaches, posts, computes. */
static void victim(const struct ndpd_run *n, uint64_t seed)
{
	struct ndp_attachment *a;
	struct bench_model m;

	alarm(60);
	load_churn(&m);
	if (attach_model(n, &m, true, &a) < 0)
		_exit(1);
	for (;;) {
		post_random(a, &seed);
		bench_model_compute(&m, 0);
	}
}

/* The survivor: what it computes is looked at all the time. */
struct survivor {
	struct bench_model m;
	struct ndp_attachment *a;
	uint64_t right[CHURN_LAYERS];
	uint64_t state;
	uint64_t computed, wrong;
};

static void survive(struct survivor *s)
{
	post_random(s->a, &s->state);
	for (uint32_t l = 0; l < CHURN_LAYERS; l++) {
		s->computed += s->m.experts;
		s->wrong += bench_model_compute(&s->m, l) != s->right[l];
	}
}

static void kill_clients(struct ndpd_run *n, struct survivor *s)
{
	enum { AT_ONCE = 4 };

	for (int i = 0; i < KILLS; i += AT_ONCE) {
		pid_t pid[AT_ONCE];

		for (int k = 0; k < AT_ONCE; k++) {
			pid[k] = fork();
			if (pid[k] == 0)
				victim(n, (uint64_t)(i + k + 1));
		}
		for (int k = 0; k < AT_ONCE; k++) {
			usleep((useconds_t)(random64(&s->state) % 40000));
			survive(s);
			kill(pid[k], SIGKILL);
			waitpid(pid[k], NULL, 0);
		}
	}
}

static bool is_attached(struct ndp_attachment *a)
{
	struct ndp_attach_state s;

	ndp_placement_state(a, &s);
	return s.attached;
}

static void kill_ndpd(struct ndpd_run *n, struct survivor *s)
{
	for (int i = 0; i < NDPD_KILLS; i++) {
		usleep((useconds_t)(random64(&s->state) % 30000));
		survive(s);
		ndpd_stop(n, SIGKILL);
		survive(s);
		ndpd_start(n);
		for (int k = 0; k < 1000 && !is_attached(s->a); k++) {
			survive(s);
			usleep(5000);
		}
		if (!is_attached(s->a))
			die("not attached again after 5 s");
	}
}

static void churn(void)
{
	uint32_t fds[2], maps[2];
	struct survivor s = { .state = 3 };
	struct ndpd_run n;
	uint64_t free_before, free_after;

	ndpd_prepare(&n, churn_config);
	ndpd_start(&n);
	load_churn(&s.m);
	for (uint32_t l = 0; l < CHURN_LAYERS; l++)
		s.right[l] = bench_model_compute(&s.m, l);
	free_before = bench_model_free_bytes(&s.m);
	if (attach_model(&n, &s.m, false, &s.a) < 0)
		die("cannot attach");
	ndpd_holds(&n, &fds[0], &maps[0]);
	for (int i = 0; i < CYCLES; i++) {
		struct ndp_attachment *a;

		if (attach_model(&n, &s.m, false, &a) < 0)
			die("cycle %d: cannot attach", i);
		if (i % 10 == 0)
			post_random(a, &s.state);
		ndp_placement_detach(a);
		if (i % 20 == 0)
			survive(&s);
	}
	kill_clients(&n, &s);
	ndpd_holds(&n, &fds[1], &maps[1]);
	kill_ndpd(&n, &s);
	ndp_placement_detach(s.a);
	free_after = bench_model_free_bytes(&s.m);
	for (int i = 0; i < 100 && free_after != free_before; i++) {
		usleep(50000); /* moves that were under way end */
		free_after = bench_model_free_bytes(&s.m);
	}
	ndpd_stop(&n, SIGTERM);
	printf("# %d attachments, %d applications and %d ndpd killed; the survivor computed %llu "
	       "experts\n", CYCLES, KILLS, NDPD_KILLS, (unsigned long long)s.computed);
	bar("P.3", "wrong-outputs", (double)s.wrong, "", "0", s.wrong == 0);
	bar("P.3", "leaked-dimm-bytes", (double)free_before - (double)free_after, "", "0",
	    free_before == free_after);
	bar("P.3", "leaked-fds", (double)fds[1] - fds[0], "", "0", fds[0] == fds[1]);
	bar("P.3", "leaked-shared-memory", (double)maps[1] - maps[0], "", "0", maps[0] == maps[1]);
	bench_model_free(&s.m);
	ndpd_clean(&n);
}

/* ---- P.5: what a migration is said to take ---------------------------------------------------- */

/* Four experts of DeepSeek-V2-Lite, each to a DIMM of its own. */
static void migration(void)
{
	enum { N = 4 };
	struct ndp_msg_migrate order = { .head = { NDP_MSG_MIGRATE, sizeof(order) }, .nr_moves = N };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ndp_msg_migrated done;
	struct ndp_attach_options o;
	struct ndp_attachment *a;
	struct bench_model m;
	struct ndp_error err;
	struct ndpd_run n;
	uint32_t tokens[N] = { 100, 90, 80, 70 };
	double ideal;
	int fd;

	ndpd_prepare(&n, "[placement]\nfirst_decide_every = 1000\ndecide_every = 1000\n");
	ndpd_start(&n);
	bench_model_load(&m, "soft:dimms=8,size=64M", 1, N, 2048, 1408, 0);
	o = (struct ndp_attach_options){
		.socket = n.socket, .name = "deepseek-v2-lite", .device = m.dev, .layers = 1,
		.experts = N, .top_k = 2, .hidden = 2048, .intermediate = 1408,
		.expert_bytes = (uint64_t)ndp_expert_blocks(&m.shape) *
				ndp_expert_block_bytes(&m.shape),
	};
	if (ndp_placement_attach(&a, &o, &err) < 0)
		die("%s", err.message);
	for (int i = 0; i < 10; i++) {
		ndp_placement_post(a, 0, tokens);
		usleep(20000);
	}
	for (uint32_t e = 0; e < N; e++)
		order.moves[e] = (struct ndp_msg_move){ 0, e, 1u << (N + e) };
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(address.sun_path, n.socket);
	for (order.client = 1; order.client < 20; order.client++) {
		if (order.client == 1 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			die("%s: %s", n.socket, strerror(errno));
		if (send(fd, &order, sizeof(order), 0) != sizeof(order) ||
		    recv(fd, &done, sizeof(done), 0) != sizeof(done))
			die("ndpd takes no order");
		if (done.res != -ENOENT)
			break;
	}
	if (done.res < 0 || done.nr_moved != N)
		die("%u of %d experts were moved: %s", done.nr_moved, N, strerror(-done.res));
	ideal = (double)done.bytes / (N * 25.0);
	printf("# %llu bytes over %d ports: modelled %.1f us, bytes / (ports x 25 GB/s) %.1f us, wall "
	       "%.1f ms; %.0f %% behind the layer as it last ran (modelled, its timeline)\n",
	       (unsigned long long)done.bytes, N, (double)done.modelled_ns * 1e-3, ideal * 1e-3,
	       (double)done.wall_ns * 1e-6, 100 * done.hidden_share);
	bar("P.5", "migration-modelled", (double)done.modelled_ns / ideal, "", "0.95..1.05",
	    (double)done.modelled_ns > 0.95 * ideal && (double)done.modelled_ns < 1.05 * ideal);
	close(fd);
	ndp_placement_detach(a);
	bench_model_free(&m);
	ndpd_stop(&n, SIGTERM);
	ndpd_clean(&n);
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;

	if (argc > 2 || (only && strcmp(only, "cost") && strcmp(only, "churn") &&
			 strcmp(only, "migration")))
		die("usage: bench_daemon [cost|churn|migration]");
	if (!only || !strcmp(only, "cost"))
		cost();
	if (!only || !strcmp(only, "migration"))
		migration();
	if (!only || !strcmp(only, "churn"))
		churn();
	return failed;
}
