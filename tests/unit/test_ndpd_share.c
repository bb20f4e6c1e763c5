// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd_share.c - how ndpd divides links and memory among clients of a node: by weight, among
 * those that move something. share.c alone, with clients made up here.
 */
#include "../../daemon/ndpd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { CLIENTS = 5 };

static double given[CLIENTS + 1];	/* by number */

double config_weight(const struct config *c, const char *name)
{
	(void)c;
	return name[0] == 'b' ? 3 : 1;
}

void brain_share(struct client *c, double share)
{
	given[c->number] = share;
}

/* Clients that share.c only looks at. */
static void make(struct ndpd *d, struct client c[CLIENTS])
{
	static const struct {
		const char *name, *node;
		enum client_state state;
		bool moves;
	} all[CLIENTS] = {
		{ "a", "/dev/ndp0", CLIENT_RUNNING, true },
		{ "b", "/dev/ndp0", CLIENT_RUNNING, true },
		{ "c", "/dev/ndp1", CLIENT_RUNNING, true },
		{ "d", "", CLIENT_RUNNING, true },
		{ "e", "/dev/ndp0", CLIENT_RUNNING, false },
	};

	memset(d, 0, sizeof(*d));
	memset(c, 0, CLIENTS * sizeof(*c));
	memset(given, 0, sizeof(given));
	for (uint32_t i = 0; i < CLIENTS; i++) {
		c[i].d = d;
		c[i].number = i + 1;
		c[i].state = all[i].state;
		c[i].hands = all[i].moves ? (struct hands *)1 : NULL;
		strcpy(c[i].name, all[i].name);
		strcpy(c[i].node, all[i].node);
		c[i].next = d->clients;
		d->clients = &c[i];
	}
	shares_update(d);
}

static void clients_of_a_node_share_by_weight(void **state)
{
	static struct client c[CLIENTS];
	static struct ndpd d;

	(void)state;
	make(&d, c);
	assert_true(given[1] == 0.25);
	assert_true(given[2] == 0.75);
	assert_true(given[3] == 1); /* alone on its node */
	assert_true(given[4] == 1); /* its own device */
}

/* Whoever is only being looked at takes nothing from others, and is told what it will get. */
static void who_does_not_run_yet_takes_nothing(void **state)
{
	static struct client c[CLIENTS];
	static struct ndpd d;

	(void)state;
	make(&d, c);
	c[1].state = CLIENT_SURVEY;
	given[2] = -1;
	shares_update(&d);
	assert_true(given[1] == 1);
	assert_true(given[2] == -1);
	assert_true(share_of(&d, &c[1]) == 0.75);
	c[1].state = CLIENT_RUNNING;
	shares_update(&d);
	assert_true(given[1] == 0.25 && given[2] == 0.75);
}

static void in_process_devices_are_nobody_elses(void **state)
{
	static struct client c[CLIENTS];
	static struct ndpd d;

	(void)state;
	make(&d, c);
	for (uint32_t i = 0; i < CLIENTS; i++)
		c[i].node[0] = '\0';
	shares_update(&d);
	for (uint32_t i = 1; i <= CLIENTS; i++)
		assert_true(given[i] == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_of_a_node_share_by_weight),
		cmocka_unit_test(who_does_not_run_yet_takes_nothing),
		cmocka_unit_test(in_process_devices_are_nobody_elses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
