// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd.c - the placement daemon as a whole: the program is started, applications attach to it,
 * die, and it dies, too. The device is the in-process one; what the kernel's adds is tested in the
 * guest.
 */
#include "ndpd_world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what it is for ------------------------------------------------------------------------ */

/* Everything an expert computes, wherever it lies. */
static void compute(struct world *w, float out[EXPERTS][H])
{
	struct ndp_io *x, *y;
	ndp_bf16 in[H];

	for (int i = 0; i < H; i++)
		in[i] = ndp_bf16_from_f32((float)(i % 5 - 2) / 8);
	assert_int_equal(ndp_io_create(&x, w->dev, 0, 128, NULL), 0);
	assert_int_equal(ndp_io_create(&y, w->dev, 0, 256, NULL), 0);
	assert_int_equal(ndp_io_write(x, 15, 0, in, sizeof(in)), 0);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		const struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .weights = w->weights[0][e],
					   .x = x, .y = y, .x_mask = 15, .tokens = 1, .ldx = 128,
					   .ldy = 256 };
		struct ndp_result res;

		assert_int_equal(ndp_run(w->dev, &c, &res), 0);
		assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, 256, out[e], H, 1, H), 0);
	}
	ndp_io_free(x);
	ndp_io_free(y);
}

/* Sums of the same numbers in another order: equal, or off by the last bits. */
static void expect_close(float a[EXPERTS][H], float b[EXPERTS][H])
{
	for (uint32_t e = 0; e < EXPERTS; e++)
		for (int i = 0; i < H; i++)
			assert_true(__builtin_fabsf(a[e][i] - b[e][i]) <=
				    1e-5f * __builtin_fabsf(a[e][i]) + 1e-6f);
}

static void it_moves_what_is_worth_moving_and_results_stay(void **state)
{
	struct world *w = *state;
	static float before[EXPERTS][H], after[EXPERTS][H];
	double moved = 0;

	start_ndpd(w);
	load_weights(w, LAYERS);
	compute(w, before);
	attach(w);
	for (int i = 0; i < 40 && moved < 3; i++) {
		post_steps(w, 30, 3);
		compute(w, after);
		expect_close(before, after);
		moved = model_number(w, "migrations", "rebalance") +
			model_number(w, "migrations", "relayout") +
			model_number(w, "migrations", "prefetch");
	}
	assert_true(moved >= 3);
	assert_true(ndp_placement_generation(w->a) > LAYERS);
	assert_int_equal(model_number(w, "rollbacks", NULL), 0);
	ndp_placement_detach(w->a);
	w->a = NULL;
	wait_for_clients(w, 0);
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

/* Where experts really lie is what it publishes. */
static void the_page_says_where_experts_are(void **state)
{
	struct world *w = *state;
	uint32_t masks[EXPERTS];
	uint64_t hot;

	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	post_steps(w, 200, 5);
	for (int i = 0; i < 500 && model_number(w, "under_way", NULL) > 0; i++)
		usleep(10000);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_int_equal(ndp_placement_read(w->a, l, &hot, masks), 0);
		assert_in_range(__builtin_popcountll(hot), 0, LAYERS * SLOTS);
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			assert_int_equal(masks[e], ndp_placement_mask(&info.placement));
		}
	}
}

static void a_dry_run_moves_nothing_and_says_what_it_would(void **state)
{
	struct world *w = *state;
	uint64_t hot;

	start_ndpd_with(w, "--dry-run");
	load_weights(w, LAYERS);
	attach(w);
	post_steps(w, 150, 3);
	assert_int_equal(ndp_placement_read(w->a, 0, &hot, NULL), -ENODATA);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			assert_int_equal(info.moves, 0);
		}
	assert_true(model_number(w, "decisions", NULL) > 0);
	assert_true(log_says(w, "would start"));
}

static void a_model_without_a_device_gets_a_hot_set_only(void **state)
{
	struct world *w = *state;

	start_ndpd(w);
	attach(w);
	post_steps(w, 150, 3);
	assert_int_equal(model_number(w, "migrations", "rebalance"), 0);
	assert_int_equal(model_number(w, "migrations", "relayout"), 0);
	assert_true(model_number(w, "posts", NULL) > 0);
}

/* ---- it dies, they die ------------------------------------------------------------------------ */

static void wait_attached(struct world *w, bool attached)
{
	for (int i = 0; i < 1000; i++) {
		struct ndp_attach_state s;

		ndp_placement_state(w->a, &s);
		if (s.attached == attached)
			return;
		usleep(10000);
	}
	fail_msg("still %sattached", attached ? "not " : "");
}

static void a_daemon_that_is_killed_is_missed_by_nobody(void **state)
{
	struct world *w = *state;
	static float before[EXPERTS][H], after[EXPERTS][H];

	start_ndpd(w);
	load_weights(w, LAYERS);
	compute(w, before);
	attach(w);
	for (int i = 0; i < 5; i++) {
		uint64_t old = 0, fresh = 0;
		int had;

		post_steps(w, 40, 3 * (uint32_t)i);
		had = ndp_placement_read(w->a, 0, &old, NULL);
		end_ndpd(w, SIGKILL);
		wait_attached(w, false);
		post_steps(w, 5, 3);
		compute(w, after);
		expect_close(before, after);
		start_ndpd(w);
		wait_attached(w, true);
		/* What GPU memory held is known to the new one. */
		assert_int_equal(had, 0);
		assert_int_equal(ndp_placement_read(w->a, 0, &fresh, NULL), 0);
		assert_int_equal(fresh, old);
	}
	assert_int_equal(nr_clients(w), 1);
}

/* An application that ends in the middle of everything. */
static void application(struct world *w)
{
	struct ndp_attach_options o;

	w->random = (uint64_t)getpid();
	load_weights(w, LAYERS);
	o = attach_options(w);
	if (ndp_placement_attach(&w->a, &o, NULL) < 0)
		_exit(1);
	for (;;)
		post_steps(w, 10, below(w, EXPERTS));
}

static void applications_that_are_killed_leave_nothing(void **state)
{
	enum { AT_ONCE = 3, ROUNDS = 8 };
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	wait_for_clients(w, 0);
	fds = settled_fds(w->ndpd);
	for (int round = 0; round < ROUNDS; round++) {
		pid_t pid[AT_ONCE];

		for (int i = 0; i < AT_ONCE; i++) {
			pid[i] = fork();
			if (pid[i] == 0) {
				signal(SIGALRM, SIG_DFL);
				alarm(30);
				application(w);
			}
		}
		usleep(50000 + (useconds_t)below(w, 150000));
		for (int i = 0; i < AT_ONCE; i++) {
			kill(pid[i], SIGKILL);
			waitpid(pid[i], NULL, 0);
		}
	}
	wait_for_clients(w, 0);
	assert_int_equal(settled_fds(w->ndpd), fds);
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

/* ---- loads that change (C8) ------------------------------------------------------------------ */

/* Waits until ndpd has read what was posted. */
static void wait_read(const struct world *w)
{
	struct ndp_attach_state s;

	ndp_placement_state(w->a, &s);
	for (int i = 0; i < 2000 && model_number(w, "posts", NULL) < s.posts; i++)
		usleep(2000);
	assert_int_equal(model_number(w, "posts", NULL), s.posts);
}

/* Writes a host's profile, with less PCIe and CPU than the paper's, and a configuration for it. */
static void write_slow_host(const struct world *w)
{
	char text[512], path[128];
	json_t *host = json_load_file("share/hosts/trimoe-paper.json", 0, NULL);
	json_t *gpu = json_object_get(host, "gpu");

	assert_non_null(host);
	json_object_set_new(json_object_get(gpu, "pcie_gbps"), "value", json_integer(4));
	json_object_set_new(json_object_get(json_object_get(host, "cpu"), "peak_gflops"), "value",
			    json_integer(300));
	json_object_set_new(json_object_get(json_object_get(host, "cpu_plain"), "peak_gflops"),
			    "value", json_integer(300));
	snprintf(path, sizeof(path), "%s/slow.json", w->dir);
	assert_int_equal(json_dump_file(host, path, 0), 0);
	json_decref(host);
	/* On a busy machine all layers decide at once, and the first would use the limit up. */
	snprintf(text, sizeof(text), "[host]\nprofile = %s\n[placement]\nfirst_decide_every = 2\n"
		 "decide_every = 8\nstay_ms = 20\n[limits]\nmoves_per_second = 10000\n", path);
	write_config(w, text);
}

/* One step, with exactly these loads; at ndpd's pace. */
static void post_exactly(struct world *w, const uint32_t *tokens)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		while (ndp_placement_post(w->a, l, tokens) == -EAGAIN)
			usleep(1000);
	usleep(2000);
}

/* Of the hot set that is published, how many are the four experts from @hot on. */
static uint32_t hot_ones(const struct world *w, uint32_t layer, uint32_t hot)
{
	uint64_t set;
	uint32_t n = 0;

	if (ndp_placement_read(w->a, layer, &set, NULL) < 0)
		return 0;
	for (uint32_t i = 0; i < 4; i++)
		n += set >> (hot + i) % EXPERTS & 1;
	return n;
}

/*
 * However long it has been otherwise, what is hot now is in GPU memory after a few decisions. The
 * host is one on which that matters: its PCIe is slow, its CPU weak.
 */
static void after_a_shift_the_hot_set_follows(void **state)
{
	enum { DECISION = 8, DECISIONS = 64 }; /* 1 to 4 on a quiet machine */
	static const uint32_t history[] = { 20, 100, 300 };
	struct world *w = *state;
	uint32_t hot = 0;

	write_slow_host(w);
	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	for (size_t i = 0; i < sizeof(history) / sizeof(history[0]); i++) {
		uint32_t found = 0, decisions = 0;

		post_steps(w, history[i], hot);
		hot = (hot + 7) % EXPERTS;
		while (found < 3 * LAYERS && decisions < DECISIONS) {
			post_steps(w, DECISION, hot);
			wait_read(w);
			usleep(20000);
			decisions++;
			found = 0;
			for (uint32_t l = 0; l < LAYERS; l++)
				found += hot_ones(w, l, hot);
		}
		if (found < 3 * LAYERS)
			fail_msg("after %u steps: %u of %u hot experts are published", history[i],
				 found, 4 * LAYERS);
	}
}

static double all_moves(const struct world *w)
{
	return model_number(w, "decisions", NULL);
}

/*
 * Two experts in turn a little busier than each other; moving costs more than it gains.
 */
static void alternation_that_gains_nothing_moves_nothing(void **state)
{
	struct world *w = *state;
	double before;

	write_config(w, "[placement]\nfirst_decide_every = 1\ndecide_every = 1\nstay_ms = 0\n"
		     "horizon_steps = 100\n");
	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	/* What there is to do at the beginning is done; then nothing is, for 100 steps. */
	for (int quiet = 0, rounds = 0; quiet < 2; rounds++) {
		before = all_moves(w);
		for (uint32_t i = 0; i < 100; i++) {
			uint32_t tokens[EXPERTS];

			for (uint32_t e = 0; e < EXPERTS; e++)
				tokens[e] = (e + i) % 2 ? 51 : 49;
			post_exactly(w, tokens);
		}
		wait_read(w);
		if (all_moves(w) == before) {
			quiet++;
			continue;
		}
		if (quiet || rounds == 10)
			fail_msg("%.0f decisions in round %d", all_moves(w) - before, rounds);
	}
}

/* Whoever makes other experts hot as soon as some are in place: moves stay within the limit. */
static void an_adversary_gets_no_more_moves_than_the_limit(void **state)
{
	enum { PER_SECOND = 5 };
	struct world *w = *state;
	struct timespec start, now;
	double s, done;
	uint32_t hot = 0;

	write_config(w, "[placement]\nfirst_decide_every = 1\ndecide_every = 1\nstay_ms = 0\n"
		     "hysteresis = 0\nhorizon_steps = 100000\n[limits]\nmoves_per_second = 5\n");
	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < 150; i++) {
		post_steps(w, 5, hot);
		if (hot_ones(w, 0, hot) >= 2 || i % 8 == 7)
			hot = (hot + 5) % EXPERTS;
	}
	wait_read(w);
	clock_gettime(CLOCK_MONOTONIC, &now);
	s = (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) * 1e-9;
	done = model_number(w, "migrations", "prefetch") + model_number(w, "migrations", "relayout") +
	       model_number(w, "migrations", "rebalance");
	assert_true(done > 0);
	assert_true(done <= PER_SECOND * (s + 1) + 1);
	assert_true(model_number(w, "rate_limited", NULL) > 0);
}

/*
 * Rested experts are not moved back and forth: without a rate limit, stay_ms is what bounds how
 * often each may move.
 */
static void an_adversary_moves_an_expert_once_in_stay_ms(void **state)
{
	enum { STAY_MS = 400 };
	struct world *w = *state;
	struct timespec start, now;
	uint32_t hot = 0;
	uint64_t most = 0;
	double ms;

	write_config(w, "[placement]\nfirst_decide_every = 1\ndecide_every = 1\nstay_ms = 400\n"
		     "hysteresis = 0\nhorizon_steps = 100000\n[limits]\nmoves_per_second = 10000\n");
	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < 150; i++) {
		post_steps(w, 5, hot);
		hot = (hot + (i % 4 == 3) * 5) % EXPERTS;
	}
	wait_read(w);
	clock_gettime(CLOCK_MONOTONIC, &now);
	ms = (double)(now.tv_sec - start.tv_sec) * 1e3 + (double)(now.tv_nsec - start.tv_nsec) * 1e-6;
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			most = info.moves > most ? info.moves : most;
		}
	assert_true(most > 0);
	assert_true((double)most <= ms / STAY_MS + 1);
}

/* ---- reloads with moves under way ---------------------------------------------------------------- */

static double reloads(const struct world *w)
{
	json_t *root = status(w);
	const double n = json_number_value(json_object_get(root, "reloads"));

	json_decref(root);
	return n;
}

/* Attached, in a dry run or not as is wanted. */
static void wait_attached_anew(struct world *w, bool dry)
{
	struct ndp_attach_state s;

	for (int i = 0; i < 1000; i++) {
		ndp_placement_state(w->a, &s);
		if (s.attached && s.dry_run == dry)
			return;
		usleep(5000);
	}
	fail_msg("attached %d, dry run %d", s.attached, s.dry_run);
}

static void reload(struct world *w, const char *text)
{
	const double before = reloads(w);

	write_config(w, text);
	kill(w->ndpd, SIGHUP);
	for (int i = 0; i < 1000 && reloads(w) == before; i++)
		usleep(2000);
	assert_true(reloads(w) > before);
}

/* Until nothing is under way and no post is left that something could follow from. */
static void wait_settled(const struct world *w)
{
	double posts = -1;

	for (int i = 0; i < 500; i++) {
		const double now = model_number(w, "posts", NULL);

		if (now == posts && model_number(w, "under_way", NULL) == 0)
			return;
		posts = now;
		usleep(20000);
	}
	fail_msg("%.0f under way", model_number(w, "under_way", NULL));
}

static void expect_true_page(const struct world *w)
{
	uint32_t masks[EXPERTS];
	uint64_t hot;

	wait_settled(w);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_int_equal(ndp_placement_read(w->a, l, &hot, masks), 0);
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			assert_int_equal(masks[e], ndp_placement_mask(&info.placement));
		}
	}
}

static void reloads_with_moves_under_way_lose_none(void **state)
{
	static const char common[] = "[placement]\nfirst_decide_every = 1\ndecide_every = 2\n"
		"stay_ms = 20\nhysteresis = 0\nhorizon_steps = 10000\n";
	static const char *const other[] = {
		"[limits]\nmoves_at_once = 1\n", "[limits]\nmoves_at_once = 16\n",
		"[limits]\nmoves_per_second = 1\n", "[limits]\nmoves_per_second = 1000\n",
		"[weights]\nmodel = 0.5\n", "[daemon]\ndry_run = yes\n", "[daemon]\npoll_ms = 1\n",
		"[daemon]\ndry_run = yes\n[limits]\nmoves_at_once = 1\n", "",
	};
	struct world *w = *state;
	struct ndp_attach_state s;
	uint32_t moves = 0;

	write_config(w, common);
	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		char text[512];

		post_steps(w, 30, (uint32_t)i * 5);
		snprintf(text, sizeof(text), "%s%s", common, other[i]);
		reload(w, text);
		wait_attached_anew(w, strstr(other[i], "dry_run") != NULL);
		post_steps(w, 30, (uint32_t)i * 5 + 7);
		if (!strstr(other[i], "dry_run"))
			expect_true_page(w);
	}
	ndp_placement_state(w->a, &s);
	assert_int_equal(s.attaches, 1 + 4); /* dry, not dry, twice */
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			moves += info.moves > 0;
		}
	assert_true(moves > 0);
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

/* ---- configuration --------------------------------------------------------------------------------- */

static int check_config(const struct world *w, char *says, size_t size)
{
	char command[256 + sizeof(ndpd_path)];
	FILE *f;
	size_t n;
	int r;

	snprintf(command, sizeof(command), "NDP_SHARE=share %s --check-config --config '%s' 2>&1",
		 ndpd_path, w->config);
	f = popen(command, "r");
	assert_non_null(f);
	n = fread(says, 1, size - 1, f);
	says[n] = '\0';
	r = pclose(f);
	return WEXITSTATUS(r);
}

static void what_is_wrong_in_the_configuration_is_named(void **state)
{
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{ "[daemon]\npoll_ms = 0\n", "line 2: poll_ms: '0' is no number from 1 to 1000" },
		{ "[daemon]\n\npol_ms = 5\n", "line 3: [daemon] has no key 'pol_ms'" },
		{ "[demon]\npoll_ms = 5\n", "line 2: there is no section [demon]" },
		{ "[daemon]\ndry_run = maybe\n", "neither yes nor no" },
		{ "[daemon]\npoll_ms = 5\npoll_ms = 6\n", "line 3: poll_ms is there twice" },
		{ "[placement]\npolicy = fast\n", "no policy" },
		{ "[placement]\nlink_share = 1.5\n", "from 0 to 1" },
		{ "[placement]\nhysteresis = nan\n", "from 0 to 100" },
		{ "[limits]\nclient_memory = 3X\n", "K, M, G, T may follow" },
		{ "[weights]\nmodel = -1\n", "no weight" },
		{ "[metrics]\nlisten = http\n", "neither unix:/PATH nor" },
		{ "[host]\nprofile = nowhere\n", "nowhere" },
		{ "what\n", "line 1" },
	};
	struct world *w = *state;
	char says[1024];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		write_config(w, wrong[i].text);
		assert_int_equal(check_config(w, says, sizeof(says)), 1);
		if (!strstr(says, wrong[i].says))
			fail_msg("%s: %s", wrong[i].text, says);
	}
	write_config(w, "; all is well\n[weights]\nmodel = 2.5\n[limits]\nclient_memory = 64M\n");
	assert_int_equal(check_config(w, says, sizeof(says)), 0);
	assert_string_equal(says, "");
}

static void a_configuration_that_is_wrong_is_not_taken_over(void **state)
{
	struct world *w = *state;

	start_ndpd(w);
	write_config(w, "[daemon]\nnonsense = 1\n");
	kill(w->ndpd, SIGHUP);
	for (int i = 0; i < 500 && !log_says(w, "stays as it was"); i++)
		usleep(10000);
	assert_true(log_says(w, "line 2: [daemon] has no key 'nonsense'"));
	write_config(w, "[limits]\nclients_per_user = 3\n");
	kill(w->ndpd, SIGHUP);
	for (int i = 0; i < 500 && !log_says(w, "was read again"); i++)
		usleep(10000);
	assert_true(log_says(w, "was read again"));
	assert_int_equal(nr_clients(w), 0);
}

static void a_user_has_so_many_clients_and_no_more(void **state)
{
	struct world *w = *state;
	struct ndp_attachment *a[3] = { NULL };
	struct ndp_attach_options o;
	struct ndp_error err;

	write_config(w, "[limits]\nclients_per_user = 2\n");
	start_ndpd(w);
	wait_for_clients(w, 0);
	o = attach_options(w);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ndp_placement_attach(&a[i], &o, &err), 0);
	assert_int_equal(ndp_placement_attach(&a[2], &o, &err), -EUSERS);
	assert_non_null(strstr(err.message, "clients_per_user"));
	for (int i = 0; i < 2; i++)
		ndp_placement_detach(a[i]);
}

static void a_second_daemon_does_not_take_the_socket(void **state)
{
	struct world *w = *state;
	pid_t first;
	int status;

	start_ndpd(w);
	first = w->ndpd;
	start_ndpd(w); /* returns at once: the first one listens */
	for (int i = 0; i < 500 && waitpid(w->ndpd, &status, WNOHANG) == 0; i++)
		usleep(10000);
	assert_true(log_says(w, "another ndpd listens there"));
	w->ndpd = first;
	assert_int_equal(nr_clients(w), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(it_moves_what_is_worth_moving_and_results_stay),
		IN_WORLD(the_page_says_where_experts_are),
		IN_WORLD(a_dry_run_moves_nothing_and_says_what_it_would),
		IN_WORLD(a_model_without_a_device_gets_a_hot_set_only),
		IN_WORLD(a_daemon_that_is_killed_is_missed_by_nobody),
		IN_WORLD(applications_that_are_killed_leave_nothing),
		IN_WORLD(after_a_shift_the_hot_set_follows),
		IN_WORLD(alternation_that_gains_nothing_moves_nothing),
		IN_WORLD(an_adversary_gets_no_more_moves_than_the_limit),
		IN_WORLD(an_adversary_moves_an_expert_once_in_stay_ms),
		IN_WORLD(reloads_with_moves_under_way_lose_none),
		IN_WORLD(what_is_wrong_in_the_configuration_is_named),
		IN_WORLD(a_configuration_that_is_wrong_is_not_taken_over),
		IN_WORLD(a_user_has_so_many_clients_and_no_more),
		IN_WORLD(a_second_daemon_does_not_take_the_socket),
	};

	return find_ndpd() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
