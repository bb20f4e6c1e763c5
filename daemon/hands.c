// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hands.c - threads that do with a client's descriptors what can take long: find out
 * where its weights are, move them, close what they were given.  The client may be
 * gone, slow or lying: a hand may hang for as long as libndp waits, and nobody waits
 * for a hand.  Of one user there are only so many, those that hang included.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LISTED = 1 << 20, STILL_MOVING_MS = 10 };

/* Of a placement fd that does not answer honestly. */
#define MAX_DIMM_BYTES (1ull << 50)
#define MAX_MODELLED_NS 1000000000000000ull
/* That a hand spends on looking at DIMMs after a job. */
#define LOOK_NS 1000000000ull

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
	uid_t uid;
	uint32_t dimm_mask;
	bool looking;		/* a hand asks for the DIMMs: one is enough */
	bool look;		/* one should */
	uint32_t dimms_seen;
	struct ndp_dimm_info dimms[NDP_MAX_DIMMS];
};

/* ---- how many there are --------------------------------------------------------- */

struct user {
	struct user *next;
	uid_t uid;
	uint32_t threads;
};

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static struct user *users;

static struct user **user_at(uid_t uid)
{
	struct user **at = &users;

	while (*at && (*at)->uid != uid)
		at = &(*at)->next;
	return at;
}

uint32_t hands_threads(void)
{
	uint32_t n = 0;

	pthread_mutex_lock(&users_lock);
	for (const struct user *u = users; u; u = u->next)
		n += u->threads;
	pthread_mutex_unlock(&users_lock);
	return n;
}

uint32_t hands_of(uid_t uid)
{
	const struct user *u;
	uint32_t n;

	pthread_mutex_lock(&users_lock);
	u = *user_at(uid);
	n = u ? u->threads : 0;
	pthread_mutex_unlock(&users_lock);
	return n;
}

static int count_in(uid_t uid)
{
	struct user **at;
	int r = 0;

	pthread_mutex_lock(&users_lock);
	at = user_at(uid);
	if (!*at && (*at = calloc(1, sizeof(**at))))
		(*at)->uid = uid;
	if (*at)
		(*at)->threads++;
	else
		r = -ENOMEM;
	pthread_mutex_unlock(&users_lock);
	return r;
}

static void count_out(uid_t uid)
{
	struct user **at, *u;

	pthread_mutex_lock(&users_lock);
	at = user_at(uid);
	u = *at;
	if (--u->threads == 0) {
		*at = u->next;
		free(u);
	}
	pthread_mutex_unlock(&users_lock);
}

/* A thread that no signal of the daemon's goes to; it counts itself out. */
static int start_thread(void *(*run)(void *), void *arg, uid_t uid)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int r = count_in(uid);

	if (r < 0)
		return r;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	r = -pthread_create(&thread, &attr, run, arg);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r < 0)
		count_out(uid);
	return r;
}

/* ---- closing ---------------------------------------------------------------------- */

struct closing {
	int fd;
	uid_t uid;
};

static void *close_it(void *arg)
{
	const struct closing c = *(struct closing *)arg;

	free(arg);
	close(c.fd);
	count_out(c.uid);
	return NULL;
}

void hands_close(int fd, uid_t uid)
{
	struct closing *c = NULL;

	/* A memfd has nothing to wait for. */
	if (fcntl(fd, F_GET_SEALS) < 0 && (c = malloc(sizeof(*c)))) {
		*c = (struct closing){ fd, uid };
		if (start_thread(close_it, c, uid) == 0)
			return;
	}
	free(c);
	close(fd);
}

/* ---- jobs ------------------------------------------------------------------------- */

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
	hands_close(h->fd, h->uid);
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

static bool ended(struct hands *h)
{
	bool end;

	pthread_mutex_lock(&h->lock);
	end = h->end;
	pthread_mutex_unlock(&h->lock);
	return end;
}

/* @moving: whether one is being moved, so that it will not stay where it is. */
static int survey_all(struct hands *h, const struct survey_wish *w, struct survey *s,
		      uint64_t until_ns, bool *moving)
{
	struct ndp_placement_entry entries[32];
	uint64_t start = 0, last = 0;
	uint32_t listed = 0;

	*moving = false;
	do {
		int n = ended(h) || ndpd_now_ns() > until_ns ? -ETIMEDOUT :
			ndp_placement_list(h->fd, &start, entries, 32);

		if (n < 0)
			return fail(&s->err, n, "the weights cannot be listed: %s", strerror(-n));
		listed += (uint32_t)n + 1;
		if ((start && start <= last) || listed > MAX_LISTED)
			return fail(&s->err, -EPROTO, "the list of weights has no end");
		last = start;
		for (int i = 0; i < n; i++) {
			int r;

			if (ended(h) || ndpd_now_ns() > until_ns)
				return fail(&s->err, -ETIMEDOUT, "where the weights are was not "
					    "said within %d s", NDPD_SURVEY_MS / 1000);
			r = survey_entry(h, w, s, &entries[i]);
			if (r < 0)
				return r;
			*moving |= entries[i].moving;
		}
	} while (start);
	return 0;
}

/* What an earlier ndpd has ordered, or somebody else, has to end first. */
static int survey_settled(struct hands *h, const struct survey_wish *w, struct survey *s)
{
	const uint64_t until_ns = ndpd_now_ns() + NDPD_SURVEY_MS * 1000000ull;
	const struct timespec pause = { .tv_nsec = STILL_MOVING_MS * 1000000 };
	const size_t n = (size_t)w->layers * w->experts;

	for (;;) {
		bool moving;
		int r = survey_all(h, w, s, until_ns, &moving);

		if (r < 0 || !moving)
			return r;
		nanosleep(&pause, NULL);
		memset(s->ids, 0, n * sizeof(*s->ids));
		memset(s->blocks, 0, n * (uint32_t)__builtin_popcount(w->dimm_mask) *
				     sizeof(*s->blocks));
	}
}

/*
 * Whether the descriptor is what it is said to be.  Nothing else is asked anything: an
 * ioctl means something else elsewhere.
 */
static int check_descriptor(struct hands *h, const struct survey_wish *w, struct ndp_error *err)
{
	static const char kernels[] = "anon_inode:[moendp-placement]";
	char path[64], target[sizeof(kernels)] = "";
	struct stat st;
	ssize_t n;

	if (w->in_process)
		return fstat(h->fd, &st) == 0 && S_ISSOCK(st.st_mode) ? 0 :
			fail(err, -ENOTTY, "the placement descriptor of an in-process device is "
			     "a socket, this is none");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", h->fd);
	n = readlink(path, target, sizeof(target));
	if (n != sizeof(kernels) - 1 || memcmp(target, kernels, sizeof(kernels) - 1))
		return fail(err, -ENOTTY, "the placement descriptor is none of a node's");
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
		s->res = check_descriptor(h, w, &s->err);
	if (s->res == 0)
		s->res = survey_settled(h, w, s);
	if (s->res == 0)
		s->res = survey_gaps(w, s);
}

/* ---- threads -------------------------------------------------------------------- */

/* Who lends answers what it likes. */
static bool is_sound(struct ndp_dimm_info *i)
{
	uint64_t *const counters[] = {
		&i->compute.commands, &i->compute.errors, &i->compute.tokens, &i->compute.bytes,
		&i->compute.busy_ns, &i->link.commands, &i->link.errors, &i->link.tokens,
		&i->link.bytes, &i->link.busy_ns,
	};

	if (i->state > NDP_DIMM_FAILED || i->mem_bytes > MAX_DIMM_BYTES ||
	    i->free_bytes > i->mem_bytes)
		return false;
	for (size_t k = 0; k < sizeof(counters) / sizeof(counters[0]); k++)
		if (*counters[k] > INT64_MAX)
			*counters[k] = INT64_MAX;
	return true;
}

/* In-process devices have no node that could be asked for their memory. */
static void look_at_dimms(struct hands *h)
{
	const uint64_t until_ns = ndpd_now_ns() + LOOK_NS;

	for (uint32_t mask = h->dimm_mask; mask; mask &= mask - 1) {
		const uint32_t d = (uint32_t)__builtin_ctz(mask);
		struct ndp_dimm_info info = { 0 };

		if (ended(h) || ndpd_now_ns() > until_ns ||
		    ndp_placement_dimm_info(h->fd, d, &info) < 0 || !is_sound(&info))
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
	if (j->is_survey) {
		survey(h, j);
		look_at_dimms(h);
	} else {
		j->out.res = ndp_placement_migrate(h->fd, j->id, &j->to, &j->out.move);
		if (j->out.move.modelled_ns > MAX_MODELLED_NS)
			j->out.move.modelled_ns = MAX_MODELLED_NS;
	}
	j->out.wall_ns = ndpd_now_ns() - start;
}

static void *hand(void *arg)
{
	struct hands *h = arg;
	const uid_t uid = h->uid;
	const uint64_t one = 1;
	struct job *j;

	pthread_mutex_lock(&h->lock);
	while (!h->end) {
		j = list_take(&h->jobs);
		if (j) {
			pthread_mutex_unlock(&h->lock);
			work(h, j);
			pthread_mutex_lock(&h->lock);
			list_add(&h->done, j);
			if (!h->end)
				(void)!write(h->wake, &one, sizeof(one));
		} else if (h->look) {
			h->look = false;
			h->looking = true;
			pthread_mutex_unlock(&h->lock);
			look_at_dimms(h);
			pthread_mutex_lock(&h->lock);
			h->looking = false;
		} else {
			pthread_cond_wait(&h->wanted, &h->lock);
		}
	}
	put_and_unlock(h);
	count_out(uid);
	return NULL;
}

int hands_start(struct hands **out, int fd, uid_t uid, uint32_t nr_threads, int wake,
		struct ndp_error *err)
{
	struct hands *h = calloc(1, sizeof(*h));
	int r = 0;

	if (!h) {
		hands_close(fd, uid);
		return fail(err, -ENOMEM, "out of memory");
	}
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->wanted, NULL);
	list_init(&h->jobs);
	list_init(&h->done);
	h->refs = 1;
	h->fd = fd;
	h->wake = wake;
	h->uid = uid;
	for (uint32_t i = 0; i < nr_threads && r == 0; i++) {
		pthread_mutex_lock(&h->lock);
		h->refs++;
		r = start_thread(hand, h, uid);
		if (r < 0)
			h->refs--;
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

void hands_look(struct hands *h)
{
	pthread_mutex_lock(&h->lock);
	h->look = !h->looking;
	pthread_cond_signal(&h->wanted);
	pthread_mutex_unlock(&h->lock);
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
