/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft_engine.c - the threads of an in-process DIMM, and commands on them.
 *
 * One thread computes, one copies: a copy never delays a command.  Work is
 * handed over in batches (one lock and at most one wake-up for a batch and
 * DIMM), and a thread without work sleeps.  A command takes its reference on the
 * extent map when it is submitted, so a migration neither waits for it nor
 * disturbs it.
 */
#include "soft.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- time ------------------------------------------------------------ */

uint64_t soft_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void soft_sleep_until_ns(uint64_t at)
{
	struct timespec t = { .tv_sec = (time_t)(at / 1000000000),
			      .tv_nsec = (long)(at % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED); /* one writer */
}

void soft_count(struct ndp_counters *c, const struct ndp_chip_op *op, uint64_t modelled_ns,
		uint64_t wall_ns, bool error)
{
	count(&c->commands, 1);
	count(&c->wall_ns, wall_ns);
	if (error) {
		count(&c->errors, 1);
		return;
	}
	count(&c->tokens, op->tokens);
	count(&c->bytes, ndp_chip_op_bytes(op));
	count(&c->busy_ns, modelled_ns);
}

int soft_status_errno(enum ndp_chip_status status)
{
	switch (status) {
	case NDP_CHIP_OK:
		return 0;
	case NDP_CHIP_ERR_LINK_DOWN:
		return -ENOLINK;
	default:
		return -EIO;
	}
}

/* ---- execution ------------------------------------------------------- */

/* One operation on one DIMM; adds its modelled time to @ns. */
static int execute(struct soft_dimm *d, const struct ndp_chip_op *op, uint64_t *ns)
{
	const struct soft_device *dev = d->dev;
	struct ndp_chip_mem mem = { .base = d->mem.base, .bytes = d->mem.bytes };
	struct soft_engine *e = &d->compute;
	uint64_t begin = soft_now_ns(), modelled = 0;
	enum ndp_chip_status status;

	status = ndp_chip_exec(e->chip, op, &mem, NULL);
	if (status == NDP_CHIP_OK)
		modelled = ndp_chip_op_ns(op, &dev->params);
	if (dev->timing) {
		e->busy_until_ns = (begin > e->busy_until_ns ? begin : e->busy_until_ns) + modelled;
		soft_sleep_until_ns(e->busy_until_ns);
	}
	soft_count(&e->counters, op, modelled, soft_now_ns() - begin, status != NDP_CHIP_OK);
	*ns += modelled;
	return soft_status_errno(status);
}

static uint64_t io_offset(const struct ndp_io *io, const struct soft_dimm *d, size_t off)
{
	return ((const struct soft_io *)io)->extent[d->node]->off + off;
}

/* What all operations of a command have in common. */
static struct ndp_chip_op operation(const struct ndp_cmd *c, const struct soft_dimm *d)
{
	struct ndp_chip_op op = {
		.x = io_offset(c->x, d, c->x_off),
		.y = io_offset(c->y, d, c->y_off),
		.tokens = c->tokens,
		.ldx_bytes = (uint32_t)c->ldx,
		.ldy_bytes = (uint32_t)c->ldy,
		.act = (uint8_t)c->act,
	};

	if (c->act == NDP_ACT_CLAMPED_SWIGLU) {
		op.alpha = c->alpha;
		op.limit = c->limit;
	}
	if (c->accumulate)
		op.flags |= NDP_CHIP_ACCUMULATE;
	if (c->x_rows) {
		op.flags |= NDP_CHIP_ROWS;
		op.x_rows = c->x_rows;
		op.rows = io_offset(c->x, d, c->rows_off);
	}
	return op;
}

static int act_mul(struct soft_dimm *d, const struct ndp_cmd *c, uint64_t *ns)
{
	struct ndp_chip_op op = operation(c, d);

	op.opcode = NDP_CHIP_ACT;
	op.rows = io_offset(c->x, d, c->rows_off);
	op.h_out = c->count;
	return execute(d, &op, ns);
}

static int ffn(struct soft_dimm *d, const struct ndp_cmd *c, const struct soft_piece *p,
	       uint32_t first, uint32_t nr, bool add, uint64_t *ns)
{
	struct ndp_chip_op op = operation(c, d);

	op.opcode = NDP_CHIP_FFN;
	op.w = p->extent->off + (uint64_t)(first - p->first) * c->weights->block_bytes;
	op.count = nr;
	op.h_in = c->weights->expert.h_in;
	op.h_out = c->weights->expert.h_out;
	if (add)
		op.flags |= NDP_CHIP_ACCUMULATE;
	return execute(d, &op, ns);
}

/* A piece of a matrix can have more rows than fit an operation. */
static int gemv(struct soft_dimm *d, const struct ndp_cmd *c, const struct soft_piece *p,
		uint32_t first, uint32_t nr, uint64_t *ns)
{
	const uint32_t most = NDP_CHIP_MAX_H / NDP_BLOCK_ROWS;
	const struct ndp_matrix_shape *mat = &c->weights->mat;
	int r = 0;

	for (; nr && !r; first += nr < most ? nr : most, nr -= nr < most ? nr : most) {
		struct ndp_chip_op op = operation(c, d);
		uint32_t rows_left = mat->rows - first * NDP_BLOCK_ROWS;

		op.opcode = NDP_CHIP_GEMV;
		op.w = p->extent->off + (uint64_t)(first - p->first) * c->weights->block_bytes;
		op.y += (uint64_t)(first - c->first) * NDP_BLOCK_ROWS * sizeof(float);
		op.count = nr < most ? nr : most;
		op.h_in = mat->cols;
		op.h_out = op.count * NDP_BLOCK_ROWS < rows_left ? op.count * NDP_BLOCK_ROWS
								 : rows_left;
		r = execute(d, &op, ns);
	}
	return r;
}

/* The part of [first, first + count) that lies in @p; its length, maybe 0. */
static uint32_t intersect(const struct soft_piece *p, const struct ndp_cmd *c, uint32_t *first)
{
	uint32_t end = p->first + p->nr, cmd_end = c->first + c->count;

	*first = p->first > c->first ? p->first : c->first;
	if (cmd_end < end)
		end = cmd_end;
	return end > *first ? end - *first : 0;
}

static int compute_on(struct soft_dimm *d, const struct soft_request *req, uint64_t *ns)
{
	const struct ndp_cmd *c = &req->base.cmd;
	bool add = false;
	int r = 0;

	if (c->op == NDP_OP_ACT_MUL)
		return act_mul(d, c, ns);
	for (uint32_t i = 0; i < req->map->nr_pieces && !r; i++) {
		const struct soft_piece *p = &req->map->pieces[i];
		uint32_t first, nr;

		if (p->extent->dimm != d)
			continue;
		nr = intersect(p, c, &first);
		if (!nr)
			continue;
		r = c->op == NDP_OP_FFN_EXPERT ? ffn(d, c, p, first, nr, add, ns) :
						 gemv(d, c, p, first, nr, ns);
		add = true;
	}
	return r;
}

/* ---- completion ------------------------------------------------------ */

void soft_request_done(struct soft_request *req)
{
	struct soft_queue *q = req->queue;

	if (!q) {
		sem_post(req->done);
		return;
	}
	pthread_mutex_lock(&q->lock);
	ndpi_list_add(&q->done, &req->base);
	q->nr_done++;
	q->out--;
	if (q->want && q->nr_done >= q->want)
		pthread_cond_signal(&q->enough);
	pthread_mutex_unlock(&q->lock);
}

static void keep_longest(uint64_t *longest, uint64_t ns)
{
	uint64_t old = __atomic_load_n(longest, __ATOMIC_RELAXED);

	while (old < ns && !__atomic_compare_exchange_n(longest, &old, ns, true, __ATOMIC_RELAXED,
							__ATOMIC_RELAXED))
		;
}

static void serve(struct soft_dimm *d, struct soft_request *req)
{
	uint64_t ns = 0;
	int ok = 0, r = compute_on(d, req, &ns);

	keep_longest(&req->modelled_ns, ns);
	if (r < 0)
		__atomic_compare_exchange_n(&req->res, &ok, r, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	if (__atomic_sub_fetch(&req->pending, 1, __ATOMIC_ACQ_REL))
		return;
	soft_map_put(req->map);
	req->base.res = req->res;
	req->base.dimm_mask = req->dimm_mask;
	req->base.modelled_ns = req->modelled_ns;
	soft_request_done(req);
}

/* ---- threads --------------------------------------------------------- */

/* Sleeps until there is work; false: stop. */
static bool wait_for_work(struct soft_engine *e)
{
	while (!e->head && !e->copies && !e->stop) {
		e->idle = true;
		pthread_cond_wait(&e->wake, &e->lock);
	}
	e->idle = false;
	return e->head || e->copies;
}

static void *compute_thread(void *arg)
{
	struct soft_dimm *d = arg;
	struct soft_engine *e = &d->compute;

	pthread_mutex_lock(&e->lock);
	while (wait_for_work(e)) {
		struct soft_request *req = e->head, *next;

		e->head = NULL;
		e->tail = &e->head;
		pthread_mutex_unlock(&e->lock);
		for (; req; req = next) {
			next = req->next_on[d->node];
			serve(d, req);
			__atomic_sub_fetch(&e->inflight, 1, __ATOMIC_RELAXED);
		}
		pthread_mutex_lock(&e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

static void *link_thread(void *arg)
{
	struct soft_dimm *d = arg;
	struct soft_engine *e = &d->link;

	pthread_mutex_lock(&e->lock);
	while (wait_for_work(e)) {
		struct soft_segment *s = e->copies;

		e->copies = s->next;
		if (!e->copies)
			e->copies_tail = &e->copies;
		pthread_mutex_unlock(&e->lock);
		soft_segment_execute(s);
		__atomic_sub_fetch(&e->inflight, 1, __ATOMIC_RELAXED);
		pthread_mutex_lock(&e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

static int start(struct soft_engine *e, void *(*thread)(void *), struct soft_dimm *d,
		 const char *what)
{
	char name[16];
	int r;

	e->tail = &e->head;
	e->copies_tail = &e->copies;
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->wake, NULL);
	r = pthread_create(&e->thread, NULL, thread, d);
	if (r) {
		pthread_mutex_destroy(&e->lock);
		pthread_cond_destroy(&e->wake);
		return -r;
	}
	e->running = true;
	snprintf(name, sizeof(name), "ndp%u-%s", d->node, what);
	pthread_setname_np(e->thread, name);
	return 0;
}

/* The application's signals are for its own threads. */
int soft_engines_start(struct soft_dimm *d)
{
	sigset_t all, old;
	int r;

	d->compute.chip = ndp_chip_engine_new(d->dev->isa);
	d->link.chip = ndp_chip_engine_new(d->dev->isa);
	if (!d->compute.chip || !d->link.chip)
		return -ENOMEM;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = start(&d->compute, compute_thread, d, "compute");
	if (!r)
		r = start(&d->link, link_thread, d, "link");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

static void stop(struct soft_engine *e)
{
	if (!e->running)
		return;
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->wake);
}

void soft_engines_stop(struct soft_dimm *d)
{
	stop(&d->compute);
	stop(&d->link);
	ndp_chip_engine_free(d->compute.chip);
	ndp_chip_engine_free(d->link.chip);
}

void soft_link_append(struct soft_dimm *d, struct soft_segment *s)
{
	struct soft_engine *e = &d->link;

	s->next = NULL;
	pthread_mutex_lock(&e->lock);
	__atomic_add_fetch(&e->inflight, 1, __ATOMIC_RELAXED);
	*e->copies_tail = s;
	e->copies_tail = &s->next;
	if (e->idle)
		pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
}

/* ---- submission ------------------------------------------------------ */

/* Work for each DIMM, collected before any lock is taken. */
struct bundle {
	struct soft_request *head[NDP_MAX_DIMMS];
	struct soft_request **tail[NDP_MAX_DIMMS];
	uint32_t nr[NDP_MAX_DIMMS];
	uint32_t mask;
};

static uint32_t dimms_needed(const struct soft_map *m, const struct ndp_cmd *c)
{
	uint32_t mask = 0, unused;

	for (uint32_t i = 0; i < m->nr_pieces; i++)
		if (intersect(&m->pieces[i], c, &unused))
			mask |= 1U << m->pieces[i].extent->dimm->node;
	return mask;
}

/* Fixes where @req runs; on failure its result is filled in. */
static int resolve(struct soft_request *req)
{
	const struct ndp_cmd *c = &req->base.cmd;
	struct soft_weights *w = (struct soft_weights *)c->weights;
	int r = 0;

	req->map = NULL;
	req->res = 0;
	req->modelled_ns = 0;
	req->dimm_mask = req->base.x_mask;
	if (w) {
		pthread_mutex_lock(&w->lock);
		req->map = soft_map_get(w->map);
		pthread_mutex_unlock(&w->lock);
		req->dimm_mask = dimms_needed(req->map, c);
	}
	if (req->dimm_mask & ~(c->x->mask & c->y->mask))
		r = -EXDEV;
	else if (req->dimm_mask & ~req->base.x_mask)
		r = -ESTALE;
	if (r < 0) {
		soft_map_put(req->map);
		req->base.res = r;
		req->base.dimm_mask = req->dimm_mask;
		req->base.modelled_ns = 0;
	}
	req->pending = __builtin_popcount(req->dimm_mask);
	return r;
}

static void bundle_add(struct bundle *b, struct soft_request *req)
{
	for (uint32_t m = req->dimm_mask; m; m &= m - 1) {
		uint32_t d = ndpi_lowest(m);

		if (!(b->mask & 1U << d)) {
			b->mask |= 1U << d;
			b->tail[d] = &b->head[d];
			b->nr[d] = 0;
		}
		req->next_on[d] = NULL;
		*b->tail[d] = req;
		b->nr[d]++;
		b->tail[d] = &req->next_on[d];
	}
}

static void bundle_hand_over(struct bundle *b, struct soft_device *dev)
{
	for (uint32_t m = b->mask; m; m &= m - 1) {
		uint32_t d = ndpi_lowest(m);
		struct soft_engine *e = &dev->dimms[d].compute;

		pthread_mutex_lock(&e->lock);
		__atomic_add_fetch(&e->inflight, b->nr[d], __ATOMIC_RELAXED);
		*e->tail = b->head[d];
		e->tail = b->tail[d];
		if (e->idle)
			pthread_cond_signal(&e->wake);
		pthread_mutex_unlock(&e->lock);
	}
}

void soft_run(struct ndp_device *dev, struct ndpi_request *base)
{
	struct soft_request *req = (struct soft_request *)base;
	struct bundle b;
	sem_t done;

	req->queue = NULL;
	if (resolve(req) < 0)
		return;
	sem_init(&done, 0, 0);
	req->done = &done;
	b.mask = 0;
	bundle_add(&b, req);
	bundle_hand_over(&b, (struct soft_device *)dev);
	while (sem_wait(&done) < 0)
		;
	sem_destroy(&done);
}

/* ---- queues ---------------------------------------------------------- */

struct ndp_queue *soft_queue_alloc(void)
{
	struct soft_queue *q = calloc(1, sizeof(*q));

	return q ? &q->base : NULL;
}

int soft_queue_create(struct ndp_queue *base, struct ndp_error *err)
{
	struct soft_queue *q = (struct soft_queue *)base;

	(void)err;
	ndpi_list_init(&q->batch);
	ndpi_list_init(&q->done);
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->enough, NULL);
	return 0;
}

static void wait_for(struct soft_queue *q, unsigned int n)
{
	q->want = n;
	while (q->nr_done < n)
		pthread_cond_wait(&q->enough, &q->lock);
	q->want = 0;
}

void soft_queue_destroy(struct ndp_queue *base)
{
	struct soft_queue *q = (struct soft_queue *)base;

	pthread_mutex_lock(&q->lock);
	wait_for(q, q->nr_done + q->out);
	pthread_mutex_unlock(&q->lock);
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->enough);
}

int soft_queue_push(struct ndp_queue *base, struct ndpi_request *req)
{
	struct soft_queue *q = (struct soft_queue *)base;

	((struct soft_request *)req)->queue = q;
	ndpi_list_add(&q->batch, req);
	return 0;
}

int soft_queue_submit(struct ndp_queue *base)
{
	struct soft_queue *q = (struct soft_queue *)base;
	struct ndpi_request *r;
	struct bundle b;

	pthread_mutex_lock(&q->lock);
	q->out += base->batch;
	pthread_mutex_unlock(&q->lock);
	ndpi_queue_submitted(base, base->batch);
	b.mask = 0;
	while ((r = ndpi_list_take(&q->batch))) {
		struct soft_request *req = (struct soft_request *)r;

		if (r->cmd.op == NDP_OP_MIGRATE_WEIGHTS)
			soft_migrate_async(req);
		else if (resolve(req) < 0)
			soft_request_done(req);
		else
			bundle_add(&b, req);
	}
	bundle_hand_over(&b, (struct soft_device *)base->dev);
	return 0;
}

int soft_queue_reap(struct ndp_queue *base, unsigned int min, struct ndpi_list *done)
{
	struct soft_queue *q = (struct soft_queue *)base;

	if (base->batch)
		soft_queue_submit(base);
	pthread_mutex_lock(&q->lock);
	wait_for(q, min);
	if (q->done.head) {
		*done->tail = q->done.head;
		done->tail = q->done.tail;
		ndpi_list_init(&q->done);
		q->nr_done = 0;
	}
	pthread_mutex_unlock(&q->lock);
	return 0;
}
