/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndpd_world.h - for tests of the placement daemon: the program itself, started in a folder of its
 * own, an in-process device with small experts, an application that posts loads.
 */
#ifndef NDPD_WORLD_H
#define NDPD_WORLD_H

#include <jansson.h>
#include <ndp/daemon.h>
#include <ndp/ndp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 16, H = 64, NEURONS = 128, BLOCKS = 4, SLOTS = 4 };

/* What ndpd is told: experts as large as DeepSeek-V2's, so that moving them matters. */
#define TOLD_HIDDEN 5120u
#define TOLD_BYTES (192ull * TOLD_HIDDEN * BLOCKS)

struct world {
	char dir[64];
	char socket[96];
	char config[96];
	char log[96];
	pid_t ndpd;
	struct ndp_device *dev;
	struct ndp_weights *weights[LAYERS][EXPERTS];
	struct ndp_attachment *a;
	uint64_t random;
};

extern char ndpd_path[4096];

void wait_for_socket(const struct world *w);
void start_ndpd_with(struct world *w, const char *option);
void start_ndpd(struct world *w);
void write_config(const struct world *w, const char *text);
int end_ndpd(struct world *w, int signal);
bool log_says(const struct world *w, const char *what);
json_t *status(const struct world *w);
double model_number(const struct world *w, const char *key, const char *sub);
uint32_t nr_clients(const struct world *w);
void wait_for_clients(const struct world *w, uint32_t n);
uint32_t nr_fds(pid_t pid);
uint32_t settled_fds(pid_t pid);
void load_weights(struct world *w, uint32_t layers);
void free_weights(struct world *w);
struct ndp_attach_options attach_options(const struct world *w);
void attach(struct world *w);
uint32_t below(struct world *w, uint32_t n);
void post_steps(struct world *w, uint32_t steps, uint32_t hot);
int setup(void **state);
int teardown(void **state);
/* Finds ndpd one folder above the test. */
int find_ndpd(void);

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
