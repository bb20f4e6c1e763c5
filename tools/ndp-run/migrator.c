// SPDX-License-Identifier: GPL-2.0-or-later
/* migrator.c - see migrator.h. */
#include "migrator.h"
#include "error.h"
#include "sampler.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct migrator {
	struct model *m;
	uint32_t period_ms;
	uint64_t random;
	uint32_t dimm_mask;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop; /* under lock */
	struct migrator_stats stats; /* the thread's until it has ended */
	struct ndp_error error;
	bool failed; /* atomic: @error is set */
};

/* false: time to stop. */
static bool wait_a_while(struct migrator *g)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += g->period_ms % 1000 * 1000000L;
	until.tv_sec += g->period_ms / 1000 + until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&g->lock);
	while (!g->stop && pthread_cond_timedwait(&g->wake, &g->lock, &until) != ETIMEDOUT)
		;
	stop = g->stop;
	pthread_mutex_unlock(&g->lock);
	return !stop;
}

static uint32_t random_dimm(struct migrator *g)
{
	uint32_t n = random_below(&g->random, __builtin_popcount(g->dimm_mask));
	uint32_t mask = g->dimm_mask;

	while (n--)
		mask &= mask - 1;
	return __builtin_ctz(mask);
}

static int random_placement(struct migrator *g, uint32_t nr_blocks, struct ndp_placement *p)
{
	uint32_t mask;

	if (random_bits(&g->random) & 1) {
		ndp_placement_local(p, nr_blocks, random_dimm(g));
		return 0;
	}
	mask = random_bits(&g->random) & g->dimm_mask;
	mask |= 1u << random_dimm(g);
	return ndp_placement_spread(p, nr_blocks, mask);
}

static int move_one(struct migrator *g)
{
	const struct model_config *c = &g->m->config;
	uint32_t l = random_below(&g->random, c->layers);
	uint32_t e = random_below(&g->random, c->experts);
	struct ndp_weights *w = ndp_moe_weights(g->m->moe, l, e);
	struct ndp_placement p;
	struct ndp_move move;
	struct ndp_error err;
	int r;

	r = random_placement(g, ndp_expert_blocks(&g->m->info.routed), &p);
	if (r < 0)
		return fail(&g->error, r, "no placement for layer %u expert %u: %s", l, e,
			    strerror(-r));
	do {
		r = ndp_weights_migrate(w, &p, &move, &err);
	} while (r == -EINTR);
	if (r == -ENOSPC) {
		g->stats.no_room++;
		return 0;
	}
	if (r < 0)
		return fail(&g->error, r, "layer %u expert %u: %s", l, e, err.message);
	g->stats.moves++;
	g->stats.bytes += move.bytes;
	g->stats.modelled_ns += move.modelled_ns;
	return 0;
}

static void *migrate(void *arg)
{
	struct migrator *g = arg;

	while (wait_a_while(g)) {
		if (move_one(g) < 0) {
			__atomic_store_n(&g->failed, true, __ATOMIC_RELEASE);
			break;
		}
	}
	return NULL;
}

static int start_thread(struct migrator *g)
{
	pthread_condattr_t attr;
	sigset_t end;
	sigset_t old;
	int r;

	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->wake, &attr);
	pthread_condattr_destroy(&attr);
	/* These are the main thread's: they are to interrupt its system calls. */
	sigemptyset(&end);
	sigaddset(&end, SIGINT);
	sigaddset(&end, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &end, &old);
	r = pthread_create(&g->thread, NULL, migrate, g);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r) {
		pthread_cond_destroy(&g->wake);
		pthread_mutex_destroy(&g->lock);
	}
	return -r;
}

int migrator_start(struct migrator **out, struct model *m, struct ndp_device *dev,
		   uint32_t period_ms, uint64_t seed, struct ndp_error *err)
{
	struct ndp_device_info info;
	struct migrator *g;
	int r;

	r = ndp_device_info(dev, &info);
	if (r < 0)
		return fail(err, r, "the device cannot be asked: %s", strerror(-r));
	if (__builtin_popcount(info.dimm_mask) < 2)
		return fail(err, -EINVAL, "--migrate needs two DIMMs or more, %s has %d", info.name,
			    __builtin_popcount(info.dimm_mask));
	g = calloc(1, sizeof(*g));
	if (!g)
		return fail(err, -ENOMEM, "out of memory");
	g->m = m;
	g->period_ms = period_ms;
	g->random = seed;
	g->dimm_mask = info.dimm_mask;
	r = start_thread(g);
	if (r < 0) {
		free(g);
		return fail(err, r, "no thread for --migrate: %s", strerror(-r));
	}
	*out = g;
	return 0;
}

bool migrator_failed(const struct migrator *g)
{
	return g && __atomic_load_n(&g->failed, __ATOMIC_ACQUIRE);
}

int migrator_stop(struct migrator *g, struct migrator_stats *stats, struct ndp_error *err)
{
	int r;

	if (!g)
		return 0;
	pthread_mutex_lock(&g->lock);
	g->stop = true;
	pthread_cond_signal(&g->wake);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	pthread_cond_destroy(&g->wake);
	pthread_mutex_destroy(&g->lock);
	*stats = g->stats;
	r = g->error.code;
	if (r < 0)
		*err = g->error;
	free(g);
	return r;
}
