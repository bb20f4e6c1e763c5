// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hands.c - threads that do with a client's placement fd what can take long: find
 * out where its weights are, and move them.  The client may be gone, slow or lying: a
 * hand may hang for as long as libndp waits, and nobody waits for a hand.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LISTED = 1 << 20 };

struct job {
	struct job *next;
	bool is_survey;
	struct survey_wish wish;
	uint32_t action;
	uint64_t id;
	struct ndp_placement to;
	struct outcome out;
};

struct list {
	struct job *head, **tail;
};

struct hands {
	pthread_mutex_t lock;
	pthread_cond_t wanted;
	struct list jobs, done;
	bool end;
	uint32_t refs;		/* threads, and the owner */
	int fd;
	int wake;
	uint32_t dimm_mask;
	uint32_t dimms_seen;
	struct ndp_dimm_info dimms[NDP_MAX_DIMMS];
};

static uint32_t threads; /* atomic */

uint32_t hands_threads(void)
{
	return __atomic_load_n(&threads, __ATOMIC_RELAXED);
}

static void list_init(struct list *l)
{
	l->head = NULL;
	l->tail = &l->head;
}

static void list_add(struct list *l, struct job *j)
{
	j->next = NULL;
	*l->tail = j;
	l->tail = &j->next;
}

static struct job *list_take(struct list *l)
{
	struct job *j = l->head;

	if (!j)
		return NULL;
	l->head = j->next;
	if (!l->head)
		l->tail = &l->head;
	return j;
}

static void job_free(struct job *j)
{
	free(j->out.survey.ids);
	free(j->out.survey.blocks);
	free(j);
}

/* Under the lock, which is gone afterwards. */
static void put_and_unlock(struct hands *h)
{
	const bool last = --h->refs == 0;

	pthread_mutex_unlock(&h->lock);
	if (!last)
		return;
	for (struct job *j; (j = list_take(&h->jobs));)
		job_free(j);
	for (struct job *j; (j = list_take(&h->done));)
		job_free(j);
	pthread_cond_destroy(&h->wanted);
	pthread_mutex_destroy(&h->lock);
	close(h->fd);
	free(h);
}

/* ---- finding out where everything is ------------------------------------------- */

/* The engine's numbers of DIMMs are positions in the mask. */
static uint32_t position(uint32_t mask, uint32_t dimm)
{
	return (uint32_t)__builtin_popcount(mask & ((1u << dimm) - 1));
}

static int survey_entry(struct hands *h, const struct survey_wish *w, struct survey *s,
			const struct ndp_placement_entry *e)
{
	const uint32_t layer = (uint32_t)(e->cookie >> 32), expert = (uint32_t)e->cookie;
	const uint32_t dimms = (uint32_t)__builtin_popcount(w->dimm_mask);
	const size_t at = (size_t)layer * w->experts + expert;
	struct ndp_placement p;
	int r;

	if (e->matrix || layer >= w->layers || expert >= w->experts)
		return 0; /* not one of the model's */
	if (s->ids[at])
		return fail(&s->err, -EEXIST, "two weights are expert %u of layer %u: cookies have "
			    "to be layer << 32 | expert, each once", expert, layer);
	if (e->lost)
		return fail(&s->err, -ENODEV, "a DIMM that held a part of expert %u of layer %u is "
			    "gone", expert, layer);
	if (e->nr_blocks != w->nr_blocks)
		return fail(&s->err, -EINVAL, "expert %u of layer %u has %u blocks, by the model's "
			    "shape it has %u", expert, layer, e->nr_blocks, w->nr_blocks);
	r = ndp_placement_get(h->fd, e->id, &p);
	if (r < 0)
		return fail(&s->err, r, "expert %u of layer %u cannot be asked for its place: %s",
			    expert, layer, strerror(-r));
	if (ndp_placement_check(&p, w->nr_blocks, w->dimm_mask, NULL) < 0)
		return fail(&s->err, -EINVAL, "expert %u of layer %u lies outside of the DIMMs 0x%x",
			    expert, layer, w->dimm_mask);
	s->ids[at] = e->id;
	for (uint32_t i = 0; i < p.nr_ranges; i++)
		s->blocks[at * dimms + position(w->dimm_mask, p.ranges[i].dimm)] +=
			(uint16_t)p.ranges[i].nr_blocks;
	return 0;
}

static int survey_all(struct hands *h, const struct survey_wish *w, struct survey *s)
{
	struct ndp_placement_entry entries[32];
	uint64_t start = 0, last = 0;
	uint32_t listed = 0;

	do {
		int n = ndp_placement_list(h->fd, &start, entries, 32);

		if (n < 0)
			return fail(&s->err, n, "the weights cannot be listed: %s", strerror(-n));
		listed += (uint32_t)n + 1;
		if ((start && start <= last) || listed > MAX_LISTED)
			return fail(&s->err, -EPROTO, "the list of weights has no end");
		last = start;
		for (int i = 0; i < n; i++) {
			int r = survey_entry(h, w, s, &entries[i]);

			if (r < 0)
				return r;
		}
	} while (start);
	return 0;
}

/* Layers without experts are dense ones; the engine wants them somewhere. */
static int survey_gaps(const struct survey_wish *w, struct survey *s)
{
	const uint32_t dimms = (uint32_t)__builtin_popcount(w->dimm_mask);

	for (uint32_t l = 0; l < w->layers; l++) {
		const size_t first = (size_t)l * w->experts;
		uint32_t there = 0;

		for (uint32_t e = 0; e < w->experts; e++)
			there += s->ids[first + e] != 0;
		if (there == w->experts)
			continue;
		for (uint32_t e = 0; e < w->experts; e++) {
			if (there && !s->ids[first + e])
				return fail(&s->err, -ENOENT, "expert %u of layer %u is missing: "
					    "attach when all experts are loaded and sealed", e, l);
			s->blocks[(first + e) * dimms + e % dimms] = (uint16_t)w->nr_blocks;
		}
	}
	return 0;
}

static void survey(struct hands *h, struct job *j)
{
	const struct survey_wish *w = &j->wish;
	const size_t n = (size_t)w->layers * w->experts;
	struct survey *s = &j->out.survey;

	s->ids = calloc(n, sizeof(*s->ids));
	s->blocks = calloc(n * (uint32_t)__builtin_popcount(w->dimm_mask), sizeof(*s->blocks));
	if (!s->ids || !s->blocks)
		s->res = fail(&s->err, -ENOMEM, "out of memory");
	if (s->res == 0)
		s->res = survey_all(h, w, s);
	if (s->res == 0)
		s->res = survey_gaps(w, s);
}

/* ---- threads -------------------------------------------------------------------- */

/* In-process devices have no node that could be asked for their memory. */
static void look_at_dimms(struct hands *h)
{
	for (uint32_t mask = h->dimm_mask; mask; mask &= mask - 1) {
		const uint32_t d = (uint32_t)__builtin_ctz(mask);
		struct ndp_dimm_info info;

		if (ndp_placement_dimm_info(h->fd, d, &info) < 0)
			return;
		pthread_mutex_lock(&h->lock);
		h->dimms[d] = info;
		h->dimms_seen |= 1u << d;
		pthread_mutex_unlock(&h->lock);
	}
}

static void work(struct hands *h, struct job *j)
{
	const uint64_t start = ndpd_now_ns();

	j->out.is_survey = j->is_survey;
	j->out.action = j->action;
	if (j->is_survey)
		survey(h, j);
	else
		j->out.res = ndp_placement_migrate(h->fd, j->id, &j->to, &j->out.move);
	j->out.wall_ns = ndpd_now_ns() - start;
	look_at_dimms(h);
}

static void *hand(void *arg)
{
	struct hands *h = arg;
	const uint64_t one = 1;
	struct job *j;

	pthread_mutex_lock(&h->lock);
	while (!h->end) {
		j = list_take(&h->jobs);
		if (!j) {
			pthread_cond_wait(&h->wanted, &h->lock);
			continue;
		}
		pthread_mutex_unlock(&h->lock);
		work(h, j);
		pthread_mutex_lock(&h->lock);
		list_add(&h->done, j);
		if (!h->end)
			(void)!write(h->wake, &one, sizeof(one));
	}
	__atomic_sub_fetch(&threads, 1, __ATOMIC_RELAXED);
	put_and_unlock(h);
	return NULL;
}

/* A thread that no signal of the daemon's goes to. */
static int start_thread(struct hands *h)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	r = -pthread_create(&thread, &attr, hand, h);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int hands_start(struct hands **out, int fd, uint32_t nr_threads, int wake, struct ndp_error *err)
{
	struct hands *h = calloc(1, sizeof(*h));
	int r = h ? 0 : -ENOMEM;

	if (!h) {
		close(fd);
		return fail(err, r, "out of memory");
	}
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->wanted, NULL);
	list_init(&h->jobs);
	list_init(&h->done);
	h->refs = 1;
	h->fd = fd;
	h->wake = wake;
	for (uint32_t i = 0; i < nr_threads && r == 0; i++) {
		pthread_mutex_lock(&h->lock);
		h->refs++;
		__atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
		r = start_thread(h);
		if (r < 0) {
			h->refs--;
			__atomic_sub_fetch(&threads, 1, __ATOMIC_RELAXED);
		}
		pthread_mutex_unlock(&h->lock);
	}
	if (r < 0) {
		hands_end(h);
		return fail(err, r, "no thread: %s", strerror(-r));
	}
	*out = h;
	return 0;
}

void hands_end(struct hands *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->end = true;
	pthread_cond_broadcast(&h->wanted);
	put_and_unlock(h);
}

static int give(struct hands *h, struct job *j)
{
	pthread_mutex_lock(&h->lock);
	list_add(&h->jobs, j);
	pthread_cond_signal(&h->wanted);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

int hands_survey(struct hands *h, const struct survey_wish *wish)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->is_survey = true;
	j->wish = *wish;
	h->dimm_mask = wish->dimm_mask;
	return give(h, j);
}

int hands_move(struct hands *h, uint32_t action, uint64_t id, const struct ndp_placement *to)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->action = action;
	j->id = id;
	j->to = *to;
	return give(h, j);
}

bool hands_take(struct hands *h, struct outcome *out)
{
	struct job *j;

	pthread_mutex_lock(&h->lock);
	j = list_take(&h->done);
	pthread_mutex_unlock(&h->lock);
	if (!j)
		return false;
	*out = j->out;
	free(j);
	return true;
}

bool hands_dimm(struct hands *h, uint32_t dimm, struct ndp_dimm_info *info)
{
	bool seen;

	pthread_mutex_lock(&h->lock);
	seen = h->dimms_seen >> dimm & 1;
	if (seen)
		*info = h->dimms[dimm];
	pthread_mutex_unlock(&h->lock);
	return seen;
}
