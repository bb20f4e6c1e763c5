// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd_conf.c - share/ndpd/ndpd.conf against daemon/config.c: what the file that is
 * installed shows as a default, commented out, is the default.  Runs from the top of
 * the tree.
 */
#include "../../daemon/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SHIPPED "share/ndpd/ndpd.conf"

/* A copy of the file in which every `#key = value` is a line that counts. */
static void uncomment(char *path)
{
	const int fd = mkstemp(path);
	FILE *in = fopen(SHIPPED, "r"), *out = fdopen(fd, "w");
	char line[256];

	assert_non_null(in);
	assert_non_null(out);
	while (fgets(line, sizeof(line), in))
		fputs(line[0] == '#' && line[1] >= 'a' && line[1] <= 'z' ? line + 1 : line, out);
	fclose(in);
	assert_int_equal(fclose(out), 0);
}

static void load(struct config *c, const char *path)
{
	struct ndp_error err = { 0 };

	if (config_load(c, path, false, &err) < 0)
		fail_msg("%s", err.message);
}

static void test_shipped_is_default(void **state)
{
	struct config c, defaults;

	(void)state;
	load(&defaults, NULL);
	load(&c, SHIPPED);
	assert_int_equal(c.nr_weights, 0);
	assert_string_equal(c.metrics, "");
	assert_string_equal(c.socket, defaults.socket);
	assert_string_equal(c.profile, defaults.profile);
}

static void test_commented_is_default(void **state)
{
	char path[] = "/tmp/ndpd-conf.XXXXXX";
	struct config c, d;

	(void)state;
	uncomment(path);
	load(&c, path);
	unlink(path);
	load(&d, NULL);
	assert_string_equal(c.socket, d.socket);
	assert_int_equal(c.poll_ms, d.poll_ms);
	assert_int_equal(c.dry_run, d.dry_run);
	assert_string_equal(c.profile, d.profile);
	assert_int_equal(c.policy, d.policy);
	assert_true(c.horizon_steps == d.horizon_steps);
	assert_true(c.hysteresis == d.hysteresis);
	assert_true(c.stay_ms == d.stay_ms);
	assert_true(c.link_share == d.link_share);
	assert_true(c.pcie_share == d.pcie_share);
	assert_int_equal(c.first, d.first);
	assert_int_equal(c.first_every, d.first_every);
	assert_int_equal(c.every, d.every);
	assert_int_equal(c.clients, d.clients);
	assert_int_equal(c.clients_per_user, d.clients_per_user);
	assert_int_equal(c.client_bytes, d.client_bytes);
	assert_true(c.moves_per_second == d.moves_per_second);
	assert_int_equal(c.moves_at_once, d.moves_at_once);
	/* These are examples. */
	assert_int_equal(c.nr_weights, 1);
	assert_string_not_equal(c.metrics, d.metrics);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shipped_is_default),
		cmocka_unit_test(test_commented_is_default),
	};

	setenv("NDP_SHARE", "share", 1);
	return cmocka_run_group_tests_name("ndpd_conf", tests, NULL, NULL);
}
