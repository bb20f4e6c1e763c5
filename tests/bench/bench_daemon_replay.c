// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_daemon_replay.c - bar P.1: what ndpd decides live is what the same steward decides from a
 * recording, and what it publishes is as good as a replay in which nothing takes longer than modelled.
 *
 * Two applications replay real traces of gpt-oss-20b against one ndpd, each with experts on a device
 * of its own; every 200 steps both change to other traffic. At every step an application looks how
 * much of it the published hot set covers, and what the layer takes where its experts really lie
 * (modelled). The recording is then fed to fresh stewards, event by event: they must decide the
 * same, and their placements must be as good as what the applications had. It is also fed with the
 * ends of moves that the engine expected, for comparison.
 */
#include "../../tools/ndp-replay/source.h"
#include "bench.h"
#include "ndpd_run.h"
#include "recording.h"

#include <math.h>
#include <ndp/daemon.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	APPLICATIONS = 2, LAYERS = 8, EXPERTS = 32, SHIFT_STEPS = 200, SHIFTS = 4,
	NEURONS = 2880, TOLD_HIDDEN = 2880, STEP_US = 4000,
};

#define TOLD_BYTES (90ull * 192 * TOLD_HIDDEN)
#define GPU_EXPERTS (LAYERS * 8)

static const char *const traces[] = {
	"tests/traces/trace_gptoss20b_mixed_b256.csv.gz",
	"tests/traces/trace_gptoss20b_topical_b256.csv.gz",
	"tests/traces/trace_gptoss20b_mixed_b64_first300.csv.gz",
};

static bool failed;

static void bar(const char *name, double value, const char *unit, const char *goal, bool pass)
{
	printf("bar P.1 %s value=%.4g%s goal=%s %s\n", name, value, unit, goal,
	       pass ? "pass" : "fail");
	failed |= !pass;
}

/* ---- the applications ------------------------------------------------------------------- */

/* What an application saw: shared with its parent. */
struct seen {
	double covered;		/* sum over posts of the published set's share of the tokens */
	double layer_ns;	/* modelled, sum over posts */
	uint64_t posts;
	uint64_t dropped;
};

static struct source *open_trace(const char *path)
{
	const struct source_limits limits = { .experts = EXPERTS, .layers = 1024, .top_k = 4 };
	struct source *s;
	struct ndp_error err;

	if (source_open_file(&s, path, &limits, 1, &err) < 0)
		die("%s", err.message);
	return s;
}

/* The next step of a trace that begins again when it ends. */
static void next_step(struct source **s, const char *path, uint32_t *counts)
{
	struct ndp_error err;
	int r = source_next(*s, counts, &err);

	if (r == 0) {
		source_close(*s);
		*s = open_trace(path);
		r = source_next(*s, counts, &err);
	}
	if (r < 0)
		die("%s", err.message);
}

static double covered(struct ndp_attachment *a, uint32_t layer, const uint32_t *tokens)
{
	uint64_t hot = 0, in_gpu = 0, all = 0;

	if (ndp_placement_read(a, layer, &hot, NULL) < 0)
		return 0;
	for (uint32_t e = 0; e < EXPERTS; e++) {
		all += tokens[e];
		in_gpu += hot >> e & 1 ? tokens[e] : 0;
	}
	return all ? (double)in_gpu / (double)all : 0;
}

/* The layer as the application has it: weights where they are, copies where they are to be. */
struct view {
	struct ndp_host host;
	struct ndp_shape shape;
	uint16_t blocks[EXPERTS * NDP_MAX_DIMMS];
	uint8_t on_gpu[EXPERTS];
	void *work, *plan_memory;
	struct ndp_plan plan;
};

static void view_init(struct view *v, uint32_t dimms)
{
	struct ndp_host_profile profile;
	struct ndp_error err;
	char *path = NULL;

	if (ndp_profile_find("hosts", "trimoe-paper", &path, &err) < 0 ||
	    ndp_host_profile_load(&profile, path, &err) < 0)
		die("%s", err.message);
	free(path);
	*v = (struct view){
		.host = profile.host,
		.shape = { .experts = EXPERTS, .top_k = 4, .hidden = TOLD_HIDDEN,
			   .intermediate = NEURONS, .expert_bytes = TOLD_BYTES },
		.work = malloc(ndp_schedule_bytes(EXPERTS, dimms)),
		.plan_memory = malloc(ndp_plan_bytes(EXPERTS, dimms)),
	};
	v->host.nr_dimms = dimms;
	if (v->host.nr_channels > dimms)
		v->host.nr_channels = dimms;
	v->host.gpu_bytes = GPU_EXPERTS * TOLD_BYTES;
	ndp_plan_init(&v->plan, v->plan_memory, EXPERTS, dimms);
}

static double layer_ns(struct view *v, const struct bench_model *m, struct ndp_attachment *a,
		       uint32_t layer, const uint32_t *tokens)
{
	const struct ndp_layer l = {
		.host = &v->host, .shape = &v->shape, .charges = NDP_CHARGES_ALL,
		.tokens = tokens, .blocks = v->blocks, .on_gpu = v->on_gpu,
	};
	uint64_t hot = 0;

	ndp_placement_read(a, layer, &hot, NULL);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		struct ndp_weights_info info;

		v->on_gpu[e] = hot >> e & 1;
		if (ndp_weights_info(m->weights[layer * EXPERTS + e], &info) < 0 ||
		    ndp_layer_place(v->blocks + e * m->dimms, m->dimms, &info.placement) < 0)
			die("an expert cannot be found");
	}
	if (ndp_schedule(&l, NDP_POLICY_TRIMOE, v->work, &v->plan) < 0)
		die("a layer cannot be scheduled");
	return v->plan.makespan_ns;
}

static void application(const struct ndpd_run *n, int number, struct seen *seen)
{
	struct view view;
	struct ndp_attach_options o;
	struct ndp_attachment *a;
	struct ndp_attach_state state;
	struct ndp_error err;
	struct bench_model m;
	uint32_t *counts;
	char name[16];

	bench_model_load(&m, "soft:dimms=4,size=256M", LAYERS, EXPERTS, 64, NEURONS, 0);
	snprintf(name, sizeof(name), "application%d", number);
	o = (struct ndp_attach_options){
		.socket = n->socket, .name = name, .device = m.dev, .layers = LAYERS,
		.experts = EXPERTS, .top_k = 4, .hidden = TOLD_HIDDEN, .intermediate = NEURONS,
		.expert_bytes = TOLD_BYTES, .gpu_bytes = GPU_EXPERTS * TOLD_BYTES,
	};
	if (ndp_placement_attach(&a, &o, &err) < 0)
		die("%s", err.message);
	view_init(&view, m.dimms);
	usleep(200000);
	for (int shift = 0; shift < SHIFTS; shift++) {
		const char *path = traces[(number + shift) % 3];
		struct source *s = open_trace(path);

		counts = calloc((size_t)s->nr_layers * EXPERTS, sizeof(*counts));
		for (int step = 0; step < SHIFT_STEPS; step++) {
			next_step(&s, path, counts);
			for (uint32_t l = 0; l < LAYERS; l++) {
				const uint32_t *tokens = counts + (size_t)l * EXPERTS;

				seen->covered += covered(a, l, tokens);
				seen->layer_ns += layer_ns(&view, &m, a, l, tokens);
				seen->posts++;
				ndp_placement_post(a, l, tokens);
			}
			usleep(STEP_US);
		}
		free(counts);
		source_close(s);
	}
	usleep(200000);
	ndp_placement_state(a, &state);
	seen->dropped = state.dropped;
	ndp_placement_detach(a);
	bench_model_free(&m);
	_exit(0);
}

/* ---- the recording, again ------------------------------------------------------------------ */

struct again {
	struct ndp_steward *s;
	void *memory, *work, *plan_memory;
	struct ndp_plan plan;
	double layer_ns;	/* modelled, sum over posts */
	double covered;
	uint64_t posts;
	uint64_t actions, others;	/* decided; not as recorded */
};

static void again_start(struct again *g, const struct recording *r)
{
	struct ndp_error err;

	*g = (struct again){
		.memory = malloc(ndp_steward_bytes(r->layers, r->shape.experts, r->host.nr_dimms)),
		.work = malloc(ndp_schedule_bytes(r->shape.experts, r->host.nr_dimms)),
		.plan_memory = malloc(ndp_plan_bytes(r->shape.experts, r->host.nr_dimms)),
	};
	ndp_plan_init(&g->plan, g->plan_memory, r->shape.experts, r->host.nr_dimms);
	if (ndp_steward_init(g->memory, &r->host, &r->shape, r->layers, &r->options, r->blocks,
			     r->on_gpu, &g->s, &err) < 0)
		die("%s", err.message);
}

static void again_end(struct again *g)
{
	free(g->memory);
	free(g->work);
	free(g->plan_memory);
}

/* The layer runs where everything is now; then it is learnt from. */
static uint32_t again_post(struct again *g, const struct recording *r, const struct event *e,
			   struct ndp_place_action *actions)
{
	struct ndp_placer *placer = ndp_steward_placer(g->s);
	const struct ndp_layer layer = {
		.host = &r->host, .shape = &r->shape, .charges = NDP_CHARGES_ALL,
		.tokens = r->tokens, .blocks = ndp_place_blocks(placer, e->layer),
		.on_gpu = ndp_place_on_gpu(placer, e->layer),
	};
	double share, best;
	uint32_t n;

	if (ndp_schedule(&layer, r->options.place.policy, g->work, &g->plan) < 0)
		die("a layer cannot be scheduled");
	g->layer_ns += g->plan.makespan_ns;
	g->posts++;
	n = ndp_steward_step(g->s, e->layer, r->tokens, e->now_ns, actions, 16);
	ndp_steward_coverage(g->s, e->layer, &share, &best);
	g->covered += share;
	g->actions += n;
	return n;
}

/* Ends of actions as they were: every decision must be the recorded one. */
static void same_decisions(const char *path, const char *name, struct again *g)
{
	struct ndp_place_action decided[16], ordered;
	struct recording r;
	struct event e;
	uint32_t n = 0, at = 0;

	recording_open(&r, path, name);
	again_start(g, &r);
	while (recording_next(&r, &e)) {
		struct ndp_placer *placer = ndp_steward_placer(g->s);

		switch (e.kind) {
		case EVENT_POST:
			g->others += n - at; /* decided here, not there */
			n = again_post(g, &r, &e, decided);
			at = 0;
			break;
		case EVENT_START:
			if (at == n || decided[at].id != e.id || decided[at].kind != e.action_kind ||
			    decided[at].layer != e.layer || decided[at].expert != e.expert ||
			    decided[at].victim != e.victim)
				g->others++;
			at += at < n;
			break;
		case EVENT_DONE:
			if (ndp_place_done(placer, e.id, e.now_ns, e.res) < 0)
				g->others++;
			break;
		case EVENT_ORDER:
			if (ndp_place_order(placer, e.layer, e.expert, r.row, e.now_ns,
					    &ordered) < 0 || ordered.id != e.id)
				g->others++;
			break;
		case EVENT_SHARE:
			ndp_place_share(placer, e.link_share, e.pcie_share,
					e.dimm_bytes);
			break;
		}
	}
	again_end(g);
	recording_close(&r);
}

/* Actions end when the engine said they would. */
static void replay(const char *path, const char *name, struct again *g)
{
	struct ndp_place_action pending[NDP_PLACE_MAX_ACTIONS];
	struct recording r;
	struct event e;
	uint32_t n = 0;

	recording_open(&r, path, name);
	again_start(g, &r);
	while (recording_next(&r, &e)) {
		struct ndp_placer *placer = ndp_steward_placer(g->s);

		if (e.kind == EVENT_SHARE)
			ndp_place_share(placer, e.link_share, e.pcie_share,
					e.dimm_bytes);
		if (e.kind != EVENT_POST)
			continue;
		for (uint32_t i = n; i-- > 0;) {
			if (pending[i].end_ns > e.now_ns)
				continue;
			ndp_place_done(placer, pending[i].id, e.now_ns, 0);
			pending[i] = pending[--n];
		}
		n += again_post(g, &r, &e, pending + n);
	}
	again_end(g);
	recording_close(&r);
}

int main(void)
{
	struct seen *seen = mmap(NULL, APPLICATIONS * sizeof(*seen), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t others = 0, actions = 0, dropped = 0;
	double least_cover = 1, worst_time = 0;
	struct ndpd_run n;
	pid_t pid[APPLICATIONS];

	ndpd_prepare(&n, "[daemon]\npoll_ms = 5\n[placement]\nstay_ms = 200\n");
	n.record = true;
	ndpd_start(&n);
	for (int i = 0; i < APPLICATIONS; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			application(&n, i, &seen[i]);
	}
	for (int i = 0; i < APPLICATIONS; i++) {
		int status;

		waitpid(pid[i], &status, 0);
		if (status)
			die("an application failed");
	}
	ndpd_stop(&n, SIGTERM);
	for (int i = 0; i < APPLICATIONS; i++) {
		const double posts = (double)seen[i].posts;
		double live_cover, live_ns, cover, ns;
		struct again same, ideal;
		char name[16];

		snprintf(name, sizeof(name), "application%d", i);
		same_decisions(n.recording, name, &same);
		replay(n.recording, name, &ideal);
		live_cover = seen[i].covered / posts;
		live_ns = seen[i].layer_ns / posts;
		cover = same.covered / (double)same.posts;
		ns = same.layer_ns / (double)same.posts;
		printf("# %s: %llu of %.0f posts received, %llu dropped; %llu actions, %llu others; "
		       "the published hot set covered %.1f %% of the tokens, the replay's %.1f %%; a "
		       "layer took %.3f ms, the replay's %.3f ms, with moves as fast as modelled "
		       "%.3f ms (modelled, means)\n", name, (unsigned long long)same.posts, posts,
		       (unsigned long long)seen[i].dropped, (unsigned long long)same.actions,
		       (unsigned long long)same.others, 100 * live_cover, 100 * cover,
		       live_ns * 1e-6, ns * 1e-6, ideal.layer_ns / (double)ideal.posts * 1e-6);
		others += same.others;
		actions += same.actions;
		dropped += seen[i].dropped;
		least_cover = fmin(least_cover, live_cover - cover);
		worst_time = fmax(worst_time, fabs(live_ns / ns - 1));
	}
	if (!actions)
		die("nothing was decided: there is nothing to compare");
	printf("# %llu posts were dropped\n", (unsigned long long)dropped);
	bar("other-decisions", (double)others, "", "0", others == 0);
	bar("coverage-below-replay", -100 * least_cover, "points", "<=2points",
	    -100 * least_cover <= 2);
	bar("layer-time-off-replay", 100 * worst_time, "%", "<=3%", worst_time <= 0.03);
	ndpd_clean(&n);
	return failed;
}
