// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-pool.c - see cpu-pool.h.
 *
 * Workers that have nothing to do look for work for a moment, since in decoding the
 * next layer comes within microseconds, and then sleep.  The list of work is short (one
 * entry for each calling thread) and under a lock; tasks are taken without it.
 */
#include "cpu-pool.h"

#include "../error.h"

#include <errno.h>
#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 30000 };

struct worker {
	struct ndpi_pool *pool;
	pthread_t thread;
	struct ndpi_thread self;
	cpu_set_t cpus;		/* of its node */
	bool pin;
};

struct ndpi_pool {
	uint32_t threads, nodes, started;
	bool by_number;		/* node numbers are made up */
	int16_t list_of[1024];	/* by the system's node number, -1: no thread there */
	struct worker *workers;	/* [threads - 1] */
	pthread_mutex_t lock;
	pthread_cond_t wake;	/* work has come, or the end */
	pthread_cond_t gone;	/* a worker has left some work */
	struct ndpi_work *work;
	uint32_t sleeping;
	atomic_uint news;	/* changes whenever work comes, and at the end */
	bool stop;
};

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void ndpi_pool_wait(const atomic_uint *done, uint32_t want, struct ndpi_thread *thread)
{
	for (uint32_t i = 0;
	     atomic_load_explicit((atomic_uint *)done, memory_order_acquire) < want; i++) {
		if (thread->poll && i % 1024 == 1023)
			thread->poll(thread->poll_arg);
		/* Who is waited for may need this CPU. */
		if (i > 2000)
			sched_yield();
		else
			relax();
	}
}

static bool take(struct ndpi_work *w, uint32_t nodes, uint32_t node, uint32_t *list,
		 uint32_t *task)
{
	for (uint32_t i = 0; i < nodes; i++) {
		uint32_t n = (node + i) % nodes;

		/* Look first: a counter that everybody adds to in vain would wrap in the end. */
		if (atomic_load_explicit(&w->list[n].next, memory_order_relaxed) >=
		    w->list[n].tasks)
			continue;
		*task = atomic_fetch_add_explicit(&w->list[n].next, 1, memory_order_relaxed);
		*list = n;
		if (*task < w->list[n].tasks)
			return true;
	}
	return false;
}

static void work_on(struct ndpi_pool *p, struct ndpi_work *w, struct ndpi_thread *self)
{
	uint32_t list, task;

	while (take(w, p->nodes, self->node, &list, &task)) {
		w->run(w, list, task, self);
		atomic_fetch_sub_explicit(&w->left, 1, memory_order_release);
		if (self->poll)
			self->poll(self->poll_arg);
	}
}

static bool has_tasks(const struct ndpi_pool *p, struct ndpi_work *w)
{
	for (uint32_t n = 0; n < p->nodes; n++)
		if (atomic_load_explicit(&w->list[n].next, memory_order_relaxed) <
		    w->list[n].tasks)
			return true;
	return false;
}

/* Under the lock. */
static struct ndpi_work *find(const struct ndpi_pool *p)
{
	for (struct ndpi_work *w = p->work; w; w = w->later)
		if (has_tasks(p, w))
			return w;
	return NULL;
}

static void spin(const struct ndpi_pool *p, unsigned int seen)
{
	uint64_t until = now_ns() + SPIN_NS;

	do {
		for (int i = 0; i < 64; i++) {
			if (atomic_load_explicit(&p->news, memory_order_relaxed) != seen)
				return;
			relax();
		}
	} while (now_ns() < until);
}

static void *worker_main(void *arg)
{
	struct worker *me = arg;
	struct ndpi_pool *p = me->pool;
	struct ndpi_work *w;

	if (me->pin) /* slower where it may not, and as right */
		pthread_setaffinity_np(pthread_self(), sizeof(me->cpus), &me->cpus);
	pthread_mutex_lock(&p->lock);
	for (;;) {
		unsigned int seen = atomic_load(&p->news);

		w = find(p);
		if (w) {
			w->users++;
			pthread_mutex_unlock(&p->lock);
			work_on(p, w, &me->self);
			pthread_mutex_lock(&p->lock);
			if (!--w->users)
				pthread_cond_broadcast(&p->gone);
			continue;
		}
		if (p->stop)
			break;
		pthread_mutex_unlock(&p->lock);
		spin(p, seen);
		pthread_mutex_lock(&p->lock);
		if (atomic_load(&p->news) == seen && !p->stop) {
			p->sleeping++;
			pthread_cond_wait(&p->wake, &p->lock);
			p->sleeping--;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

void ndpi_pool_run(struct ndpi_pool *p, struct ndpi_work *w, void (*poll)(void *arg),
		   void *poll_arg)
{
	struct ndpi_thread self = { .poll = poll, .poll_arg = poll_arg };
	struct ndpi_work **at;
	uint32_t tasks = 0, sleeping;

	for (uint32_t n = 0; n < p->nodes; n++) {
		atomic_init(&w->list[n].next, 0);
		tasks += w->list[n].tasks;
	}
	atomic_init(&w->left, tasks);
	w->users = 0;
	w->later = NULL;
	if (!tasks)
		return;
	if (p->nodes > 1 && !p->by_number) {
		int node = numa_node_of_cpu(sched_getcpu());

		self.node = ndpi_pool_list(p, node);
	}
	if (p->threads == 1 || tasks == 1) {
		work_on(p, w, &self);
		return;
	}
	pthread_mutex_lock(&p->lock);
	for (at = &p->work; *at; at = &(*at)->later)
		;
	*at = w;
	atomic_fetch_add(&p->news, 1);
	sleeping = p->sleeping;
	pthread_mutex_unlock(&p->lock);
	if (sleeping) /* now that they can have the lock */
		pthread_cond_broadcast(&p->wake);

	work_on(p, w, &self);
	for (uint32_t i = 0; atomic_load_explicit(&w->left, memory_order_acquire); i++) {
		if (poll && i % 1024 == 1023)
			poll(poll_arg);
		if (i > 2000)
			sched_yield();
		else
			relax();
	}
	pthread_mutex_lock(&p->lock);
	for (at = &p->work; *at != w; at = &(*at)->later)
		;
	*at = w->later;
	while (w->users) /* it has seen that there is nothing left, and is about to say so */
		pthread_cond_wait(&p->gone, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

uint32_t ndpi_pool_threads(const struct ndpi_pool *p)
{
	return p->threads;
}

uint32_t ndpi_pool_nodes(const struct ndpi_pool *p)
{
	return p->nodes;
}

uint32_t ndpi_pool_list(const struct ndpi_pool *p, int node)
{
	int list;

	if (node < 0 || (size_t)node >= sizeof(p->list_of) / sizeof(p->list_of[0]))
		return 0;
	list = p->list_of[node];
	return list < 0 ? 0 : (uint32_t)list;
}

/* Which nodes there are, of the CPUs that the process may use; and those of each. */
static uint32_t topology(struct ndpi_pool *p, const cpu_set_t *allowed, cpu_set_t *cpus)
{
	uint32_t nodes = 0;

	for (int c = 0; c < CPU_SETSIZE; c++) {
		int node, list;

		if (!CPU_ISSET(c, allowed))
			continue;
		node = numa_available() < 0 ? 0 : numa_node_of_cpu(c);
		if (node < 0 || (size_t)node >= sizeof(p->list_of) / sizeof(p->list_of[0]))
			node = 0;
		if (p->list_of[node] < 0) /* nodes beyond the last list share it */
			p->list_of[node] = (int16_t)(nodes < NDPI_MAX_NODES ? nodes++ :
						     NDPI_MAX_NODES - 1);
		list = p->list_of[node];
		CPU_SET(c, &cpus[list]);
	}
	return nodes ? nodes : 1;
}

int ndpi_pool_open(struct ndpi_pool **pool, uint32_t threads, bool pin, uint32_t nodes,
		   struct ndp_error *err)
{
	cpu_set_t allowed, cpus[NDPI_MAX_NODES] = { 0 };
	struct ndpi_pool *p = calloc(1, sizeof(*p));
	uint32_t node = 0;
	int r;

	if (!p)
		return ndpi_fail(err, -ENOMEM, "out of memory for the CPU workers");
	CPU_ZERO(&allowed);
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		CPU_SET(0, &allowed);
	for (size_t i = 0; i < sizeof(p->list_of) / sizeof(p->list_of[0]); i++)
		p->list_of[i] = -1;
	if (nodes) {
		p->by_number = true;
		p->nodes = nodes < NDPI_MAX_NODES ? nodes : NDPI_MAX_NODES;
		for (uint32_t i = 0; i < p->nodes; i++)
			p->list_of[i] = (int16_t)i;
	} else {
		p->nodes = topology(p, &allowed, cpus);
	}
	p->threads = threads ? threads : (uint32_t)CPU_COUNT(&allowed);
	p->workers = calloc(p->threads, sizeof(*p->workers));
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	pthread_cond_init(&p->gone, NULL);
	if (!p->workers) {
		ndpi_pool_close(p);
		return ndpi_fail(err, -ENOMEM, "out of memory for %u CPU workers", threads);
	}
	/* Workers are dealt to nodes by their CPUs; the caller counts for the first. */
	for (uint32_t i = 0, dealt = 1; i < p->threads - 1; i++) {
		struct worker *w = &p->workers[i];
		uint32_t share = p->by_number ? 1 : (uint32_t)CPU_COUNT(&cpus[node]);

		/* With fewer threads than CPUs every node gets its part of them. */
		share = p->by_number ? (p->threads + p->nodes - 1) / p->nodes :
			(uint32_t)(((uint64_t)share * p->threads +
				    (uint32_t)CPU_COUNT(&allowed) - 1) /
				   (uint32_t)CPU_COUNT(&allowed));
		if (dealt >= share) {
			node = (node + 1) % p->nodes;
			dealt = 0;
		}
		dealt++;
		w->pool = p;
		w->self = (struct ndpi_thread){ .index = i + 1, .node = node };
		w->cpus = cpus[node];
		w->pin = pin && !p->by_number;
		r = pthread_create(&w->thread, NULL, worker_main, w);
		if (r) {
			ndpi_pool_close(p);
			return ndpi_fail(err, -r, "cannot start CPU worker %u of %u; fewer "
					 "threads may do", i + 1, threads);
		}
		p->started++;
	}
	*pool = p;
	return 0;
}

void ndpi_pool_close(struct ndpi_pool *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	atomic_fetch_add(&p->news, 1);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < p->started; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->gone);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p->workers);
	free(p);
}
