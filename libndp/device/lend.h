/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * lend.h - the placement fd of an in-process device: a socket, and what is said on
 * it.
 *
 * The kernel's placement fd answers ioctls. Here the lender is a process, so a call
 * is a packet with a request and one end of a socket pair, on which the answer comes:
 * several threads can ask at once, and nobody gets another one's answer.  The lender
 * sends an empty packet when there is something new to list.
 *
 * Both sides take the other for hostile: every packet has a fixed size, every
 * field is checked, and no side waits for ever.
 */
#ifndef NDP_LEND_H
#define NDP_LEND_H

#include <ndp/device.h>

enum lend_op {
	LEND_LIST,	/* @id: start */
	LEND_GET,
	LEND_MIGRATE,
	LEND_DIMM,	/* @id: the DIMM */
};

#define LEND_ENTRIES 32

struct lend_request {
	uint32_t op;
	uint32_t nr_ranges;
	uint64_t id;
	struct ndp_range ranges[NDP_MAX_RANGES];
};

struct lend_reply {
	int32_t res;
	uint32_t nr;		/* entries or ranges */
	uint64_t next;		/* LIST: where to go on */
	struct ndp_move move;
	union {
		struct ndp_placement_entry entries[LEND_ENTRIES];
		struct ndp_range ranges[NDP_MAX_RANGES];
		struct ndp_dimm_info dimm;
	};
};

#endif
