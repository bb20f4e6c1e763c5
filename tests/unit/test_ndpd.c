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
		IN_WORLD(what_is_wrong_in_the_configuration_is_named),
		IN_WORLD(a_configuration_that_is_wrong_is_not_taken_over),
		IN_WORLD(a_user_has_so_many_clients_and_no_more),
		IN_WORLD(a_second_daemon_does_not_take_the_socket),
	};

	return find_ndpd() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
