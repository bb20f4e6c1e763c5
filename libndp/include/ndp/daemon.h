/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * daemon.h - what ndpd and the programs that talk to it say to each other: the
 * messages on its socket and the two pieces of shared memory.
 *
 * Programs use ndp/attach.h, which speaks this for them.  This is for ndpd itself,
 * for ndpctl, and for whoever writes another client.
 *
 * The socket is AF_UNIX, SOCK_SEQPACKET: a message is a packet that starts with
 * struct ndp_msg.  Numbers are in the host's byte order.  A message of an
 * unknown type or another size than its type has ends the connection.
 *
 *   client                              ndpd
 *   HELLO + ring [+ placement fd]
 *         [+ page of an earlier ndpd] ->
 *                                   <-  WELCOME + page        or ERROR, and the end
 *   (posts in the ring)                 (placements in the page, migrations by the fd)
 *   closes                          ->  forgets it
 *
 *   STATUS                          ->
 *                                   <-  STATUS + sealed memfd with a JSON document
 *   MIGRATE                         ->
 *                                   <-  MIGRATED, when all has moved or has failed
 *
 * Nothing that a client writes, in messages or in memory, is trusted: it is copied
 * once, checked, and can only ever harm the placement of that client's own weights.
 */
#ifndef NDP_DAEMON_H
#define NDP_DAEMON_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NDP_DAEMON_SOCKET "/run/ndpd/ndpd.sock"
#define NDP_DAEMON_VERSION 1

enum ndp_msg_type {
	NDP_MSG_HELLO = 1,
	NDP_MSG_WELCOME = 2,
	NDP_MSG_ERROR = 3,
	NDP_MSG_STATUS = 4,
	NDP_MSG_MIGRATE = 5,
	NDP_MSG_MIGRATED = 6,
};

struct ndp_msg {
	uint32_t type;
	uint32_t bytes;		/* of the whole message */
};

/*
 * Descriptors: the ring; with NDP_HELLO_PLACEMENT a placement fd; with NDP_HELLO_PAGE the
 * page that an earlier ndpd had sent, which says what GPU memory holds.
 */
struct ndp_msg_hello {
	struct ndp_msg head;
	uint32_t version;
	uint32_t flags;		/* NDP_HELLO_* */
	char name[64];		/* of the model, for people; printable ASCII, NUL at its end */
	char node[64];		/* /dev/ndpN of the weights, "" for the soft back end */
	uint32_t layers;	/* 1..1024 */
	uint32_t experts;	/* 1..4096 */
	uint32_t top_k;
	uint32_t hidden;
	uint32_t intermediate;
	uint32_t dimm_mask;	/* DIMMs of the device */
	uint64_t expert_bytes;	/* as stored */
	uint64_t gpu_bytes;	/* GPU memory for hot experts, 0: none */
};

enum {
	NDP_HELLO_PLACEMENT = 1 << 0,
	NDP_HELLO_PAGE = 1 << 1,
};

/* Descriptor: the page, read-only. */
struct ndp_msg_welcome {
	struct ndp_msg head;
	uint32_t version;
	uint32_t client;	/* number of this client, in logs and metrics */
	uint32_t dry_run;	/* 1: ndpd decides and moves nothing */
	uint32_t reserved;
};

struct ndp_msg_error {
	struct ndp_msg head;
	int32_t code;		/* -errno */
	char message[252];
};

/* As a request the head alone; as an answer with the descriptor of the document. */
struct ndp_msg_status {
	struct ndp_msg head;
	uint64_t json_bytes;
};

/*
 * Moves of a client's experts that somebody orders: root, or the user that the client
 * runs as.  All start at once; one that cannot be made fails alone.
 */
#define NDP_MSG_MAX_MOVES 32

struct ndp_msg_move {
	uint32_t layer;
	uint32_t expert;
	uint32_t dimm_mask;	/* spread evenly over these */
};

struct ndp_msg_migrate {
	struct ndp_msg head;
	uint32_t client;
	uint32_t nr_moves;	/* 1..NDP_MSG_MAX_MOVES */
	struct ndp_msg_move moves[NDP_MSG_MAX_MOVES];
};

struct ndp_msg_migrated {
	struct ndp_msg head;
	int32_t res;		/* 0, or the first failure's -errno */
	uint32_t nr_moved;
	uint64_t bytes;
	uint64_t modelled_ns;	/* of the DIMM-Link port that was busy longest */
	uint64_t wall_ns;	/* from the order to the end */
	double hidden_share;	/* modelled; of the copies, behind the layer as it last ran */
};

/* ---- the ring: expert loads, from the application -------------------- */

/*
 * A memfd that the client makes and seals (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL; a
 * memfd that is not sealed so is refused).  First struct ndp_ring, then @slots slots of
 * @slot_bytes.
 *
 * Posting: take position p = @head with a compare-and-swap to p + 1, unless p - @tail
 * has reached @slots: then add one to @dropped and go on.  Fill slot p % slots,
 * then store p + 1 to its seq with release.  ndpd reads the slots in order, never
 * further than the first whose seq is not its position + 1, and stores where it is
 * in @tail (its own copy is the one it believes).  A slot that stays half written
 * (its thread died) is skipped after a second.
 */
#define NDP_RING_MAGIC 0x6e647072u	/* "ndpr" */

struct ndp_ring {
	uint32_t magic;
	uint32_t version;
	uint32_t layers;
	uint32_t experts;
	uint32_t slots;		/* a power of two, 16..65536 */
	uint32_t slot_bytes;	/* ndp_ring_slot_bytes(experts) */
	uint32_t reserved[10];
	uint64_t head;
	uint64_t pad1[7];
	uint64_t tail;
	uint64_t pad2[7];
	uint64_t dropped;
	uint64_t pad3[7];
};

struct ndp_ring_slot {
	uint64_t seq;
	uint32_t layer;
	uint32_t reserved;
};

/* [experts], behind a slot's head. */
static inline uint32_t *ndp_ring_slot_tokens(const struct ndp_ring_slot *slot)
{
	return (uint32_t *)(slot + 1);
}

static inline uint32_t ndp_ring_slot_bytes(uint32_t experts)
{
	return (16 + 4 * experts + 63) / 64 * 64;
}

/* ---- the page: placement and hot set, from ndpd ----------------------- */

/*
 * A memfd that ndpd makes, sealed against any size change and against writing through
 * new mappings; the client gets it open for reading.  First struct ndp_page, then for
 * every layer a struct ndp_page_layer of @layer_bytes.
 */
#define NDP_PAGE_MAGIC 0x6e647067u	/* "ndpg" */

struct ndp_page {
	uint32_t magic;
	uint32_t version;
	uint32_t layers;
	uint32_t experts;
	uint32_t layer_bytes;	/* ndp_page_layer_bytes(experts) */
	uint32_t reserved[3];
	uint64_t generation;	/* counts changes of any layer */
	uint64_t heartbeat_ns;	/* CLOCK_MONOTONIC, when ndpd last looked at the ring */
	uint64_t reserved2[2];
};

/*
 * @seq is odd while the layer is being changed: read it, read the rest, read it
 * again; if it was odd or has changed, once more.  @hot: bit e % 64 of word e / 64: GPU
 * memory is to hold expert e.  After the words of @hot: uint32_t dimm_mask[experts],
 * the DIMMs that hold blocks of each.
 */
struct ndp_page_layer {
	uint64_t seq;
};

/* [(experts + 63) / 64], behind a layer's head. */
static inline uint64_t *ndp_page_layer_hot(const struct ndp_page_layer *layer)
{
	return (uint64_t *)(layer + 1);
}

static inline uint32_t ndp_page_hot_words(uint32_t experts)
{
	return (experts + 63) / 64;
}

static inline uint32_t ndp_page_layer_bytes(uint32_t experts)
{
	return (8 + 8 * ndp_page_hot_words(experts) + 4 * experts + 63) / 64 * 64;
}

#ifdef __cplusplus
}
#endif

#endif
