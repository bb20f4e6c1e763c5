// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * timeline.c - a plan played event by event, in modelled time.
 *
 * Servers work on one task at a time: GPU, PCIe, CPU, and for each DIMM its
 * commands and its activations. What a task reads is a flow over channels and
 * DIMMs; flows that want more than a channel has are slowed down alike. Between
 * two events all speeds are constant, so that time jumps to the next end of a
 * task. A DIMM computes with what the host's flows and link copies leave of it.
 *
 * Nothing here decides anything but the order of tasks: the CPU and PCIe prefer
 * a task whose channels the other is not using, a DIMM its longest command.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
	SERVER_GPU,
	SERVER_PCIE,
	SERVER_CPU,
	SERVER_DIMMS,					/* commands of DIMM d */
	SERVER_IO = SERVER_DIMMS + NDP_MAX_DIMMS,	/* its x and y */
	SERVERS = SERVER_IO + NDP_MAX_DIMMS,
	STAGED_AHEAD = 8,		/* missing experts staged before PCIe takes them */
};

enum kind {
	TASK_PART,		/* an expert's part on the GPU, over PCIe, or on the CPU */
	TASK_STAGE,
	TASK_COMMAND,
	TASK_X,
	TASK_Y,
};

struct task {
	double length_ns;	/* at full speed */
	double start_ns;
	uint32_t expert;
	uint32_t follower;	/* task that waits for this one; NO_TASK */
	uint32_t next;		/* in its server's queue */
	uint32_t first_piece, end_piece;	/* both 0: the whole expert */
	uint8_t kind;
	uint8_t server;
	uint8_t waits;		/* for how many others */
};

static const uint32_t NO_TASK = UINT32_MAX;

/* What a task takes of channels and DIMMs at full speed. */
struct flow {
	bool any;
	float channel[NDP_MAX_CHANNELS];
	float dimm[NDP_MAX_DIMMS];
};

struct server {
	uint32_t queue;		/* waiting tasks, any order */
	uint32_t tail;
	uint32_t current;
	double left_ns;
	double speed;
	struct flow flow;
};

struct copy_state {
	double left_ns;
	double length_ns;
	double start_ns;
	double speed;
	bool started, done;
};

struct play {
	const struct ndp_layer *layer;
	const struct ndp_plan *plan;
	struct ndpi_rules rules;
	double now_ns;
	uint32_t nr_tasks, open_tasks;
	uint32_t staged;		/* staged or being staged, not yet transferred */
	struct task *tasks;
	struct server server[SERVERS];
	uint8_t used[SERVERS];		/* those that the host has, ascending */
	uint32_t nr_used;
	const struct ndp_copy *copies;
	struct copy_state *copy;
	uint32_t nr_copies;
	double reads[NDP_MAX_DIMMS];	/* share of a DIMM that the host takes now */
	double channel_used[NDP_MAX_CHANNELS];
	struct ndp_span *spans;
	uint32_t max_spans, nr_spans;
};

static size_t most_tasks(uint32_t experts, uint32_t nr_dimms)
{
	/* At most four a part outside of DIMMs, three a command; and the shared expert. */
	return ((size_t)experts + 1) * (4 + 3 * (size_t)nr_dimms);
}

size_t ndp_timeline_bytes(uint32_t experts, uint32_t nr_dimms, uint32_t nr_copies)
{
	return sizeof(struct play) + most_tasks(experts, nr_dimms) * sizeof(struct task) +
	       nr_copies * sizeof(struct copy_state) + 64;
}

/* ---- tasks ---------------------------------------------------------------------- */

/* The number of experts means the shared one. */
static bool is_shared(const struct play *p, uint32_t e)
{
	return e == p->plan->experts;
}

static uint32_t tokens_of(const struct play *p, uint32_t e)
{
	return is_shared(p, e) ? p->layer->shared_tokens : p->layer->tokens[e];
}

static const uint16_t *blocks_of(const struct play *p, uint32_t e)
{
	return is_shared(p, e) ? p->layer->shared :
		p->layer->blocks + (size_t)e * p->layer->host->nr_dimms;
}

static uint32_t add_task(struct play *p, uint32_t server, enum kind kind, uint32_t expert,
			 double length_ns, uint32_t waits)
{
	p->tasks[p->nr_tasks] = (struct task) {
		.length_ns = length_ns,
		.expert = expert,
		.follower = NO_TASK,
		.next = NO_TASK,
		.kind = kind,
		.server = server,
		.waits = waits,
	};
	p->open_tasks++;
	return p->nr_tasks++;
}

static void enqueue(struct play *p, uint32_t k)
{
	struct server *s = &p->server[p->tasks[k].server];

	p->tasks[k].next = NO_TASK;
	if (s->queue == NO_TASK)
		s->queue = k;
	else
		p->tasks[s->tail].next = k;
	s->tail = k;
}

static void unlink_task(struct play *p, struct server *s, uint32_t k, uint32_t before)
{
	if (before == NO_TASK)
		s->queue = p->tasks[k].next;
	else
		p->tasks[before].next = p->tasks[k].next;
	if (s->tail == k)
		s->tail = before;
}

static void add_commands(struct play *p, uint32_t e, const uint16_t *counts,
			 const struct ndp_loads *loads)
{
	const double io_ns = tokens_of(p, e) * p->rules.token_host_ns;
	const double inside = p->rules.charges & NDP_CHARGE_DIMM_READS ? io_ns : 0;

	for (uint32_t d = 0; d < p->layer->host->nr_dimms; d++) {
		uint32_t command, x, y;

		if (!counts[d])
			continue;
		command = add_task(p, SERVER_DIMMS + d, TASK_COMMAND, e, loads->dimm_ns[d] - inside,
				   io_ns > 0);
		if (!(io_ns > 0)) {
			enqueue(p, command);
			continue;
		}
		/* 2 bytes of x for 4 of y */
		x = add_task(p, SERVER_IO + d, TASK_X, e, io_ns / 3, 0);
		y = add_task(p, SERVER_IO + d, TASK_Y, e, io_ns * 2 / 3, 1);
		p->tasks[x].follower = command;
		p->tasks[command].follower = y;
		enqueue(p, x);
	}
}

/* An expert's blocks in one domain become tasks; @first, @end: its pieces, or 0. */
static void add_part(struct play *p, uint32_t e, enum ndp_domain domain, const uint16_t *counts,
		     uint32_t first, uint32_t end)
{
	struct ndp_loads loads = { 0 };
	uint32_t part, stage, transfer;

	if (is_shared(p, e))
		ndpi_add_shared(&p->rules, &loads);
	else
		ndpi_add_part(&p->rules, e, domain, counts, &loads);
	switch (domain) {
	case NDP_DOMAIN_NDP:
		add_commands(p, e, counts, &loads);
		return;
	case NDP_DOMAIN_CPU:
		part = add_task(p, SERVER_CPU, TASK_PART, e, loads.cpu_ns, 0);
		break;
	default:
		part = add_task(p, SERVER_GPU, TASK_PART, e, loads.gpu_ns, loads.pcie_ns > 0);
		break;
	}
	if (domain == NDP_DOMAIN_CPU || !(loads.pcie_ns > 0)) {
		p->tasks[part].first_piece = first;
		p->tasks[part].end_piece = end;
		enqueue(p, part);
		return;
	}
	transfer = add_task(p, SERVER_PCIE, TASK_PART, e, loads.pcie_ns, loads.cpu_ns > 0);
	p->tasks[transfer].first_piece = first;
	p->tasks[transfer].end_piece = end;
	p->tasks[transfer].follower = part;
	if (!(loads.cpu_ns > 0)) {
		enqueue(p, transfer);
		return;
	}
	stage = add_task(p, SERVER_CPU, TASK_STAGE, e, loads.cpu_ns, 0);
	p->tasks[stage].follower = transfer;
	enqueue(p, stage);
}

static void counts_of(const struct play *p, uint32_t first, uint32_t end, uint16_t *counts)
{
	memset(counts, 0, p->layer->host->nr_dimms * sizeof(*counts));
	for (uint32_t k = first; k < end; k++)
		counts[p->plan->pieces[k].dimm] += p->plan->pieces[k].nr_blocks;
}

static void add_tasks(struct play *p)
{
	const struct ndp_piece *piece = p->plan->pieces;
	uint16_t counts[NDP_MAX_DIMMS];
	uint32_t first = 0;

	if (p->layer->shared && p->layer->shared_tokens)
		add_part(p, p->plan->experts, p->layer->shared_domain, p->layer->shared, 0, 0);
	for (uint32_t e = 0; e < p->plan->experts; e++)
		if (p->plan->domain[e] < NDP_DOMAINS)
			add_part(p, e, p->plan->domain[e], blocks_of(p, e), 0, 0);
	while (first < p->plan->nr_pieces) {
		uint32_t end = first;

		while (end < p->plan->nr_pieces && piece[end].expert == piece[first].expert &&
		       piece[end].domain == piece[first].domain)
			end++;
		counts_of(p, first, end, counts);
		add_part(p, piece[first].expert, piece[first].domain, counts, first, end);
		first = end;
	}
}

/* ---- flows ------------------------------------------------------------------------ */

/* The channels' and DIMMs' time that a reading task needs, as a share of its own. */
static void flow_of(const struct play *p, const struct task *t, struct flow *f)
{
	const struct ndp_host *host = p->layer->host;
	const uint32_t dimms = host->nr_dimms;
	const uint16_t *counts = blocks_of(p, t->expert);
	uint16_t some[NDP_MAX_DIMMS];

	memset(f, 0, sizeof(*f));
	if (t->kind == TASK_X || t->kind == TASK_Y) {
		const uint32_t d = t->server - SERVER_IO;

		f->any = true;
		f->channel[d % host->nr_channels] = 1;
		f->dimm[d] = 1;
		return;
	}
	if (t->kind != TASK_PART || t->server == SERVER_GPU || !(t->length_ns > 0))
		return;
	if (t->end_piece) {
		counts_of(p, t->first_piece, t->end_piece, some);
		counts = some;
	}
	f->any = true;
	for (uint32_t d = 0; d < dimms; d++) {
		const float share = counts[d] * p->rules.block_read_ns / t->length_ns;

		f->dimm[d] = share;
		f->channel[d % host->nr_channels] += share;
	}
}

static bool charged(const struct play *p, uint32_t server, uint32_t charge)
{
	/* Activations go over the channel whether reads are charged to it or not. */
	return (p->rules.charges & charge) ||
	       (server >= SERVER_IO && charge == NDP_CHARGE_CHANNELS);
}

/* Slows a resource's flows down until it gives no more than it has; returns what it gives. */
static double slow_down(struct play *p, const uint8_t *servers, const float *takes, uint32_t n)
{
	double used = 0;

	for (uint32_t i = 0; i < n; i++)
		used += p->server[servers[i]].speed * takes[i];
	if (used <= 1)
		return used;
	for (uint32_t i = 0; i < n; i++)
		p->server[servers[i]].speed /= used;
	return 1;
}

/* One channel: the host's two readers, and the activations of the DIMMs on it. */
static void share_channel(struct play *p, uint32_t c)
{
	const struct ndp_host *host = p->layer->host;
	uint8_t servers[2 + NDP_MAX_DIMMS];
	float takes[2 + NDP_MAX_DIMMS];
	uint32_t n = 0;

	for (uint32_t k = SERVER_PCIE; k <= SERVER_CPU; k++)
		if (p->server[k].flow.any && p->server[k].flow.channel[c] > 0 &&
		    charged(p, k, NDP_CHARGE_CHANNELS)) {
			servers[n] = k;
			takes[n++] = p->server[k].flow.channel[c];
		}
	for (uint32_t d = c; d < host->nr_dimms; d += host->nr_channels)
		if (p->server[SERVER_IO + d].flow.any &&
		    charged(p, SERVER_IO + d, NDP_CHARGE_CHANNELS)) {
			servers[n] = SERVER_IO + d;
			takes[n++] = 1;
		}
	p->channel_used[c] = slow_down(p, servers, takes, n);
}

/* The host side of one DIMM: those two readers, and its own activations. */
static void share_dimm(struct play *p, uint32_t d)
{
	uint8_t servers[3];
	float takes[3];
	uint32_t n = 0;

	for (uint32_t k = SERVER_PCIE; k <= SERVER_CPU; k++)
		if (p->server[k].flow.any && p->server[k].flow.dimm[d] > 0) {
			servers[n] = k;
			takes[n++] = p->server[k].flow.dimm[d];
		}
	if (p->server[SERVER_IO + d].flow.any) {
		servers[n] = SERVER_IO + d;
		takes[n++] = 1;
	}
	p->reads[d] = slow_down(p, servers, takes, n);
}

static void share_memory(struct play *p)
{
	const struct ndp_host *host = p->layer->host;

	for (uint32_t c = 0; c < host->nr_channels; c++)
		share_channel(p, c);
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		p->reads[d] = 0;
		if (p->rules.charges & NDP_CHARGE_DIMM_READS)
			share_dimm(p, d);
	}
}

/* Copies take what is left, one at a time for each port and for PCIe. */
static void share_copies(struct play *p)
{
	const struct ndp_host *host = p->layer->host;
	const double inside = host->dimm.gbps > 0 ? host->link_gbps / host->dimm.gbps : 0;
	bool pcie = p->server[SERVER_PCIE].current != NO_TASK;
	uint32_t sends = 0, receives = 0;

	for (uint32_t k = 0; k < p->nr_copies; k++) {
		const struct ndp_copy *c = &p->copies[k];
		struct copy_state *s = &p->copy[k];

		s->speed = 0;
		if (s->done)
			continue;
		if (c->to_gpu) {
			double idle = 1;

			if (pcie)
				continue;
			pcie = true;
			for (uint32_t n = 0; n < host->nr_channels; n++)
				if (c->from == NDP_MAX_DIMMS || c->from % host->nr_channels == n)
					idle = fmin(idle, 1 - p->channel_used[n]);
			s->speed = idle;
		} else if (!(sends & 1u << c->from) && !(receives & 1u << c->to)) {
			sends |= 1u << c->from;
			receives |= 1u << c->to;
			s->speed = 1;
			p->reads[c->from] = fmin(1, p->reads[c->from] + inside);
			p->reads[c->to] = fmin(1, p->reads[c->to] + inside);
		}
		if (s->speed > 0 && !s->started) {
			s->started = true;
			s->start_ns = p->now_ns;
		}
	}
}

static void find_speeds(struct play *p)
{
	for (uint32_t i = 0; i < p->nr_used; i++)
		p->server[p->used[i]].speed = p->server[p->used[i]].current != NO_TASK;
	share_memory(p);
	share_copies(p);
	for (uint32_t d = 0; d < p->layer->host->nr_dimms; d++)
		p->server[SERVER_DIMMS + d].speed *= 1 - p->reads[d];
}

/* ---- playing ------------------------------------------------------------------------ */

static double overlap(const struct flow *a, const struct flow *b, uint32_t nr_channels)
{
	double sum = 0;

	for (uint32_t c = 0; c < nr_channels; c++)
		sum += fmin(a->channel[c], b->channel[c]);
	return sum;
}

/* How much a server wants a task: the highest is taken. */
static double appeal(const struct play *p, uint32_t server, const struct task *t)
{
	const struct server *other = &p->server[server == SERVER_CPU ? SERVER_PCIE : SERVER_CPU];
	struct flow flow;

	if (server >= SERVER_IO)
		return t->kind == TASK_Y;
	if (server >= SERVER_DIMMS)
		return t->length_ns;
	if (server == SERVER_GPU)
		return 0;
	if (t->kind == TASK_STAGE)
		return p->staged < STAGED_AHEAD ? 1 : -HUGE_VAL;
	if (!other->flow.any)
		return 0;
	flow_of(p, t, &flow);
	return -overlap(&flow, &other->flow, p->layer->host->nr_channels);
}

static void take_next(struct play *p, uint32_t k)
{
	struct server *s = &p->server[k];
	uint32_t best = NO_TASK, best_before = NO_TASK, before = NO_TASK;
	double most = -HUGE_VAL;

	for (uint32_t t = s->queue; t != NO_TASK; before = t, t = p->tasks[t].next) {
		const double a = appeal(p, k, &p->tasks[t]);

		if (a > most) {
			most = a;
			best = t;
			best_before = before;
		}
	}
	if (best == NO_TASK)
		return;
	unlink_task(p, s, best, best_before);
	s->current = best;
	s->left_ns = p->tasks[best].length_ns;
	p->tasks[best].start_ns = p->now_ns;
	if (p->tasks[best].kind == TASK_STAGE)
		p->staged++;
	flow_of(p, &p->tasks[best], &s->flow);
}

static void add_span(struct play *p, double start_ns, uint32_t expert, enum ndp_lane lane,
		     uint32_t index, bool background)
{
	if (p->nr_spans == p->max_spans)
		return;
	p->spans[p->nr_spans++] = (struct ndp_span) {
		.start_ns = start_ns,
		.end_ns = p->now_ns,
		.expert = expert,
		.lane = lane,
		.index = index,
		.background = background,
	};
}

static void record(struct play *p, uint32_t k, const struct task *t)
{
	const struct flow *f = &p->server[k].flow;

	if (k >= SERVER_IO)
		add_span(p, t->start_ns, t->expert, NDP_LANE_READ, k - SERVER_IO, false);
	else if (k >= SERVER_DIMMS)
		add_span(p, t->start_ns, t->expert, NDP_LANE_DIMM, k - SERVER_DIMMS, false);
	else
		add_span(p, t->start_ns, t->expert, k == SERVER_GPU ? NDP_LANE_GPU :
			 k == SERVER_PCIE ? NDP_LANE_PCIE : NDP_LANE_CPU, 0, false);
	for (uint32_t d = 0; k < SERVER_DIMMS && f->any && d < p->layer->host->nr_dimms; d++)
		if (f->dimm[d] > 0)
			add_span(p, t->start_ns, t->expert, NDP_LANE_READ, d, false);
}

static void finish(struct play *p, uint32_t k)
{
	struct server *s = &p->server[k];
	const struct task *t = &p->tasks[s->current];

	record(p, k, t);
	if (k == SERVER_PCIE && p->staged)
		p->staged--;
	s->current = NO_TASK;
	if (s->flow.any)
		memset(&s->flow, 0, sizeof(s->flow));
	p->open_tasks--;
	if (t->follower != NO_TASK && --p->tasks[t->follower].waits == 0)
		enqueue(p, t->follower);
}

static void finish_copy(struct play *p, uint32_t k)
{
	const struct ndp_copy *c = &p->copies[k];

	p->copy[k].done = true;
	p->copy[k].length_ns = p->now_ns - p->copy[k].start_ns;
	add_span(p, p->copy[k].start_ns, c->expert, c->to_gpu ? NDP_LANE_PCIE : NDP_LANE_LINK,
		 c->to_gpu ? 0 : c->to, true);
}

/* @step, or less: until what is left has gone at @speed, which mostly is 0 or 1. */
static inline double sooner(double step, double left_ns, double speed)
{
	if (!(speed > 0))
		return step;
	if (speed != 1)
		left_ns /= speed;
	return left_ns < step ? left_ns : step;
}

/* To the next end of anything; false when nothing moves any more. */
static bool advance(struct play *p)
{
	double step = HUGE_VAL;

	for (uint32_t i = 0; i < p->nr_used; i++)
		if (p->server[p->used[i]].current == NO_TASK &&
		    p->server[p->used[i]].queue != NO_TASK)
			take_next(p, p->used[i]);
	find_speeds(p);
	for (uint32_t i = 0; i < p->nr_used; i++) {
		const struct server *s = &p->server[p->used[i]];

		step = sooner(step, s->left_ns, s->speed);
	}
	for (uint32_t k = 0; k < p->nr_copies; k++)
		step = sooner(step, p->copy[k].left_ns, p->copy[k].speed);
	if (isinf(step))
		return false;
	p->now_ns += step;
	for (uint32_t i = 0; i < p->nr_used; i++) {
		struct server *s = &p->server[p->used[i]];

		if (s->current == NO_TASK)
			continue;
		s->left_ns -= step * s->speed;
		if (s->left_ns <= 1e-6)
			finish(p, p->used[i]);
	}
	for (uint32_t k = 0; k < p->nr_copies; k++) {
		if (!(p->copy[k].speed > 0))
			continue;
		p->copy[k].left_ns -= step * p->copy[k].speed;
		if (p->copy[k].left_ns <= 1e-6)
			finish_copy(p, k);
	}
	return true;
}

static double copy_length_ns(const struct ndp_host *host, const struct ndp_copy *c)
{
	double gbps = host->pcie_gbps;

	if (!c->to_gpu)
		return host->link_latency_ns + c->bytes / host->link_gbps;
	if (c->from != NDP_MAX_DIMMS)
		gbps = fmin(gbps, host->channel_gbps);
	return c->bytes / gbps;
}

static int check_copies(const struct ndp_host *host, const struct ndp_copy *copies, uint32_t nr)
{
	for (uint32_t k = 0; k < nr; k++) {
		const struct ndp_copy *c = &copies[k];

		if (c->to_gpu ? !(host->pcie_gbps > 0) ||
		    (c->from >= host->nr_dimms && c->from != NDP_MAX_DIMMS) :
		    !(host->link_gbps > 0) || c->from >= host->nr_dimms ||
		    c->to >= host->nr_dimms || c->from == c->to)
			return -EINVAL;
	}
	return 0;
}

/* Returns the layer's end. */
static double play(struct play *p, const struct ndp_copy *copies, uint32_t nr_copies)
{
	double makespan_ns = 0;

	p->now_ns = 0;
	p->nr_tasks = p->open_tasks = p->staged = p->nr_spans = 0;
	p->copies = copies;
	p->nr_copies = nr_copies;
	for (uint32_t k = 0; k < SERVERS; k++)
		p->server[k] = (struct server) {
			.queue = NO_TASK, .tail = NO_TASK, .current = NO_TASK,
		};
	p->nr_used = 0;
	for (uint32_t k = 0; k < SERVERS; k++)
		if (k < SERVER_DIMMS || (k - SERVER_DIMMS) % NDP_MAX_DIMMS <
					p->layer->host->nr_dimms)
			p->used[p->nr_used++] = k;
	for (uint32_t k = 0; k < nr_copies; k++)
		p->copy[k] = (struct copy_state) {
			.left_ns = copy_length_ns(p->layer->host, &copies[k]),
		};
	add_tasks(p);
	do {
		if (p->open_tasks)
			makespan_ns = -1;
		else if (makespan_ns < 0)
			makespan_ns = p->now_ns;
	} while (advance(p));
	return makespan_ns < 0 ? p->now_ns : makespan_ns;
}

int ndp_timeline(const struct ndp_layer *layer, const struct ndp_plan *plan,
		 const struct ndp_copy *copies, uint32_t nr_copies, void *work,
		 struct ndp_span *spans, uint32_t max_spans, struct ndp_timeline *out)
{
	struct ndpi_arena arena = { work };
	struct play *p = ndpi_take(&arena, sizeof(*p));
	double alone_ns;
	int r;

	r = check_copies(layer->host, copies, nr_copies);
	if (r < 0)
		return r;
	p->layer = layer;
	p->plan = plan;
	p->tasks = ndpi_take(&arena, most_tasks(plan->experts, layer->host->nr_dimms) *
				     sizeof(struct task));
	p->copy = ndpi_take(&arena, nr_copies * sizeof(*p->copy));
	ndpi_plan_rules(&p->rules, layer, plan);
	memset(out, 0, sizeof(*out));
	p->spans = spans;
	p->max_spans = nr_copies ? 0 : max_spans;
	alone_ns = play(p, NULL, 0);
	out->makespan_ns = out->end_ns = alone_ns;
	if (nr_copies) {
		p->max_spans = max_spans;
		out->makespan_ns = play(p, copies, nr_copies);
		out->end_ns = p->now_ns;
	}
	for (uint32_t k = 0; k < nr_copies; k++) {
		const struct copy_state *c = &p->copy[k];

		out->copy_ns += c->length_ns;
		out->hidden_ns += fmin(c->length_ns, fmax(0, out->makespan_ns - c->start_ns));
	}
	out->delay_ns = fmax(0, out->makespan_ns - alone_ns);
	out->nr_spans = p->nr_spans;
	ndp_plan_loads(layer, plan, &out->busy);
	return 0;
}
