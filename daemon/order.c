// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * order.c - moves that somebody has ordered, by ndpctl for example: they are started
 * with the engine's knowledge, all at once, and answered when the last one has ended.
 * Whoever ordered them may be gone by then, and so may the client that they are of.
 */
#include "ndpd.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>

/*
 * What an ordered move took of each port: the device's modelled time is that of the
 * largest copy, the others took their part of it.
 */
void order_account(struct brain *b, const struct pending *p, int res)
{
	struct order *order = p->order;
	const struct ndp_place_action *a = &p->action;
	struct ndp_copy copies[2 * NDP_MAX_DIMMS];
	const uint32_t n = ndp_place_copies(ndp_steward_placer(b->steward), a->id, copies);
	double largest = 1;

	if (res < 0) {
		if (!order->answer.res)
			order->answer.res = res;
		return;
	}
	order->answer.nr_moved++;
	order->answer.bytes += a->bytes;
	for (uint32_t i = 0; i < n; i++)
		largest = fmax(largest, (double)copies[i].bytes);
	for (uint32_t i = 0; i < n; i++) {
		const double ns = p->modelled_ns * (double)copies[i].bytes / largest;

		order->in_ns[copies[i].to] += ns;
		order->out_ns[copies[i].from] += ns;
	}
}

static void answer(struct client *to, const struct ndp_msg_migrated *m)
{
	/* Who does not read the answer does not get it. */
	(void)!send(to->socket, m, sizeof(*m), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void order_put(struct ndpd *d, struct order *order, double now_ns)
{
	struct client *to = client_find(d, order->orderer);
	struct ndp_msg_migrated *m = &order->answer;
	double longest = 0;

	if (--order->left)
		return;
	for (uint32_t i = 0; i < NDP_MAX_DIMMS; i++)
		longest = fmax(longest, fmax(order->in_ns[i], order->out_ns[i]));
	m->modelled_ns = (uint64_t)longest;
	m->wall_ns = (uint64_t)(now_ns - order->started_ns);
	m->hidden_share = order->copy_ns > 0 ? order->hidden_ns / order->copy_ns : 0;
	if (to)
		answer(to, m);
	free(order);
}

/* Blocks of an expert spread evenly over DIMMs of a mask; false: none of these are there. */
static bool spread(const struct brain *b, uint32_t mask, uint16_t row[NDP_MAX_DIMMS])
{
	struct ndp_placement p;

	memset(row, 0, NDP_MAX_DIMMS * sizeof(*row));
	if (mask & ~b->dimm_mask ||
	    ndp_placement_spread(&p, ndp_shape_blocks(&b->shape), mask) < 0)
		return false;
	for (uint32_t i = 0, n = 0; n < b->host.nr_dimms && i < p.nr_ranges; n++)
		if (b->dimm_of[n] == p.ranges[i].dimm)
			row[n] = (uint16_t)p.ranges[i++].nr_blocks;
	return true;
}

void order_start(struct client *c, struct client *from, const struct ndp_msg_migrate *m,
		 double now_ns)
{
	struct brain *b = &c->brain;
	struct order *order = calloc(1, sizeof(*order));
	uint16_t row[NDP_MAX_DIMMS];

	if (!order) {
		const struct ndp_msg_migrated no = {
			.head = { NDP_MSG_MIGRATED, sizeof(no) }, .res = -ENOMEM,
		};

		answer(from, &no);
		return;
	}
	order->answer.head = (struct ndp_msg){ NDP_MSG_MIGRATED, sizeof(order->answer) };
	order->left = 1; /* until all are started */
	order->started_ns = now_ns;
	order->orderer = from->number;
	for (uint32_t i = 0; i < m->nr_moves; i++) {
		const struct ndp_msg_move *v = &m->moves[i];
		struct ndp_place_action a;
		int r = -ENODEV;

		if (b->nr_pending == NDPD_MAX_PENDING)
			r = -EAGAIN;
		else if (spread(b, v->dimm_mask, row))
			r = ndp_place_order(ndp_steward_placer(b->steward), v->layer, v->expert,
					    row, now_ns, &a);
		if (r < 0) {
			if (!order->answer.res)
				order->answer.res = r;
			continue;
		}
		record_order(c->d, c, &a, row, now_ns);
		b->pending[b->nr_pending++] = (struct pending){
			.action = a, .started_ns = now_ns, .queued = true, .order = order,
		};
		order->left++;
	}
	client_log(c, LOG_INFO, "%u moves ordered by user %u", m->nr_moves,
		   (unsigned int)from->uid);
	brain_move(c, now_ns);
	order_put(c->d, order, now_ns);
}

void order_abandon(struct client *c)
{
	struct brain *b = &c->brain;

	for (uint32_t i = 0; i < b->nr_pending; i++) {
		struct order *order = b->pending[i].order;

		if (!order)
			continue;
		if (!order->answer.res)
			order->answer.res = -ENODEV;
		order_put(c->d, order, (double)ndpd_now_ns());
	}
}
