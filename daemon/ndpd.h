/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ndpd.h - the daemon: what its parts share.
 *
 *   main.c      options, signals, the event loop, sd_notify
 *   config.c    ndpd.conf
 *   server.c    the socket: who comes, what they say
 *   client.c    one application: from its HELLO to its end
 *   ring.c      the loads it posts                 (its memory: hostile)
 *   page.c      the placement it reads             (our memory: read-only to it)
 *   brain.c     loads in, decisions out: predictor and placement engine of libndp
 *   order.c     moves that somebody has ordered
 *   hands.c     threads that list and move weights by the client's placement fd
 *   devices.c   the nodes in /dev, for their counters
 *   share.c     how links and memory are divided among clients
 *   record.c    what came and what was decided, into a file
 *   status.c    all there is to know, as one JSON document
 *   metrics.c   the same for Prometheus
 *   log.c       one line for one event
 *
 * The event loop's thread owns everything but the inside of hands.  It never waits
 * for a client: what a client can delay (its placement fd) is a hand's work.
 */
#ifndef NDPD_H
#define NDPD_H

#include "config.h"

#include <ndp/daemon.h>
#include <ndp/device.h>
#include <ndp/steward.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

enum {
	NDPD_MAX_PENDING = NDP_PLACE_MAX_ACTIONS,
	NDPD_HELLO_MS = 5000,	/* within which a connection says what it is */
	NDPD_SURVEY_MS = 10000,	/* within which its weights say where they are */
};

/* After which a client's posts wait for the next turn. */
#define NDPD_TURN_NS 5000000ull

struct ndpd;
struct client;
struct arguments;

/* ---- log.c ---------------------------------------------------------------- */

/* @priority: LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG. */
void ndpd_log(int priority, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, about a client. */
void client_log(const struct client *c, int priority, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- ring.c ---------------------------------------------------------------- */

struct ring {
	struct ndp_ring *shared;
	size_t bytes;
	uint32_t slots, slot_bytes, layers, experts;	/* as they were when checked */
	uint64_t at;		/* what is read next */
	uint64_t stuck_since_ns;	/* a slot that stays half written */
	uint64_t skipped;	/* slots given up */
	uint64_t refused;	/* posts that name no layer, or absurd loads */
};

/* Maps and checks what a client sent; does not take over @fd. */
int ring_open(struct ring *r, int fd, uint32_t layers, uint32_t experts, struct ndp_error *err);
void ring_close(struct ring *r);
/*
 * Copies the next post out: 1; 0: there is none; -EINVAL: there was one that makes no
 * sense, which is counted and skipped.
 */
int ring_next(struct ring *r, uint64_t now_ns, uint32_t *layer, uint32_t *tokens);
/* Posts the client could not put in, as it says itself. */
uint64_t ring_dropped(const struct ring *r);

/* ---- page.c ----------------------------------------------------------------- */

struct page {
	struct ndp_page *shared;
	size_t bytes;
	int fd;			/* for the client: reading only */
};

/* The hot sets of an older page that a client still has, for [layers][experts]. */
int page_read_old(int fd, uint32_t layers, uint32_t experts, uint8_t *on_gpu);
int page_create(struct page *p, uint32_t layers, uint32_t experts, struct ndp_error *err);
void page_close(struct page *p);
/* @hot [experts]: not 0: GPU memory is to hold it; @masks [experts]. */
void page_publish(struct page *p, uint32_t layer, const uint8_t *hot, const uint32_t *masks);
void page_heartbeat(struct page *p, uint64_t now_ns);

/* ---- hands.c ----------------------------------------------------------------- */

struct hands;

/* What a hand has found out: where every expert is. */
struct survey {
	int res;
	struct ndp_error err;
	uint64_t *ids;		/* [layers][experts] */
	uint16_t *blocks;	/* [layers][experts][dimms] */
};

/* Something has ended; taken by hands_take(). */
struct outcome {
	bool is_survey;
	struct survey survey;	/* its arrays are the taker's */
	uint32_t action;	/* of the engine */
	int res;
	struct ndp_move move;
	uint64_t wall_ns;
};

/*
 * Threads for the placement fd @fd of user @uid, which they take over.  @wake is written
 * to whenever there is an outcome.
 */
int hands_start(struct hands **h, int fd, uid_t uid, uint32_t nr_threads, int wake,
		struct ndp_error *err);
/* Ends in an outcome. */
struct survey_wish {
	uint32_t layers, experts;
	uint32_t nr_blocks;	/* of each expert */
	uint32_t dimm_mask;
	bool in_process;	/* the device: its descriptor is a socket */
};
int hands_survey(struct hands *h, const struct survey_wish *wish);
int hands_move(struct hands *h, uint32_t action, uint64_t id, const struct ndp_placement *to);
/* Has DIMMs of an in-process device looked at, soon. */
void hands_look(struct hands *h);
bool hands_take(struct hands *h, struct outcome *out);
/*
 * Memory and counters of a DIMM of an in-process device, as last seen by a hand; false:
 * never, or the kernel's.
 */
bool hands_dimm(struct hands *h, uint32_t dimm, struct ndp_dimm_info *info);
/* No more work; memory is freed when the last thread has ended, whenever that is. */
void hands_end(struct hands *h);
/*
 * Closes a descriptor that came from a client of @uid: closing some kinds waits for
 * others (a socket that lingers, a file in user space), so a thread does it.
 */
void hands_close(int fd, uid_t uid);
/* Threads of all clients, also of those that are gone; of one user's. */
uint32_t hands_threads(void);
uint32_t hands_of(uid_t uid);

/* ---- brain.c ------------------------------------------------------------------- */

/* What has been decided and is under way. */
struct pending {
	struct ndp_place_action action;
	bool moving;		/* a hand is at it */
	bool queued;		/* waits for its turn */
	double started_ns;
	double modelled_ns;	/* that it took, as the device says */
	struct order *order;	/* that it is part of; NULL: decided here */
};

/* Moves that somebody has ordered, and who waits for their end. */
struct order {
	uint32_t left;		/* moves under way */
	struct ndp_msg_migrated answer;
	double started_ns;
	double copy_ns, hidden_ns;	/* modelled */
	double in_ns[NDP_MAX_DIMMS];	/* modelled, of receiving ports */
	double out_ns[NDP_MAX_DIMMS];
	uint32_t orderer;	/* number of the client that waits */
};

struct model_counters {
	uint64_t posts;
	uint64_t decisions;	/* actions started, by kind below */
	uint64_t moves[3];	/* that ended well, by enum ndp_place_kind */
	uint64_t move_bytes[3];
	uint64_t rollbacks;	/* that failed: all is as it was before */
	uint64_t limited;	/* put off by the rate limit */
	uint64_t ended;
	double link_modelled_ns;	/* of migrations, as the devices say */
	double link_wall_ns;
	double cost_modelled_ns;	/* of all decisions, as the engine expected */
	double gain_modelled_ns;	/* a step, as the engine expected */
	double realised_modelled_ns;	/* a step, as layers became shorter */
	/* Of copies that were played: behind layers, in all. */
	double hidden_modelled_ns, copy_modelled_ns;
	double predicted, hottest;	/* the same of the predicted hot class */
	double covered, best;	/* moving means of the hot set's coverage, and what was possible */
};

struct brain {
	struct ndp_host host;	/* with the client's DIMMs */
	struct ndp_shape shape;
	uint32_t layers;
	uint32_t dimm_mask;
	uint64_t dimm_bytes;	/* memory of its smallest DIMM; 0: unknown */
	double share;		/* of what is shared on its node */
	uint8_t dimm_of[NDP_MAX_DIMMS];	/* node ids by the engine's numbers */
	void *memory;
	struct ndp_steward *steward;
	struct ndp_steward_options options;	/* as it was started with */
	uint64_t *ids;		/* [layers][experts]; NULL: nothing can be moved */
	uint8_t *hot;		/* [layers][experts], as published */
	uint32_t *masks;	/* [experts] of the layer being published */
	uint32_t *tokens;	/* [experts] of the post being looked at */
	uint32_t *last;		/* [layers][experts] of each layer's last post */
	uint32_t nr_pending;
	struct pending pending[NDPD_MAX_PENDING];
	double tokens_left;	/* of the rate limit */
	double limited_at_ns;
	struct model_counters count;
};

/*
 * @survey: where everything is, NULL for a client whose weights cannot be moved; its
 * ids are taken over.  @on_gpu may be NULL.  @dimm_bytes: of one DIMM; 0: unknown.
 */
int brain_start(struct brain *b, const struct config *config, const struct ndp_msg_hello *hello,
		struct survey *survey, const uint8_t *on_gpu, double share, uint64_t dimm_bytes,
		struct ndp_error *err);
void brain_end(struct brain *b);
/* What a client may cost is checked before anything is spent on it. */
int brain_check_cost(const struct config *config, const struct ndp_msg_hello *hello,
		     struct ndp_error *err);
/* A share of links and memory, when clients come or go. */
void brain_share(struct client *c, double share);
/* A post: learns, decides, publishes, hands out work. */
void brain_post(struct client *c, uint32_t layer, double now_ns);
/* Ends what only the application does (prefetches), when it must have been done. */
void brain_tick(struct client *c, double now_ns);
void brain_outcome(struct client *c, const struct outcome *out, double now_ns);
/* Gives queued moves to hands, as far as these are free. */
void brain_move(struct client *c, double now_ns);
void brain_publish(struct client *c, uint32_t layer);

/* ---- order.c ------------------------------------------------------------------- */

/* Starts what @from orders; answered when it has ended. */
void order_start(struct client *c, struct client *from, const struct ndp_msg_migrate *m,
		 double now_ns);
/* A move of an order has ended. */
void order_account(struct brain *b, const struct pending *p, int res);
/* One move less is under way; after the last one it is answered, and gone. */
void order_put(struct ndpd *d, struct order *order, double now_ns);
/* The client ends with moves under way: who ordered them is told. */
void order_abandon(struct client *c);

/* ---- client.c ------------------------------------------------------------------- */

enum client_state {
	CLIENT_NEW,		/* connected, has said nothing */
	CLIENT_SURVEY,		/* its weights are being looked at */
	CLIENT_RUNNING,
};

struct client {
	struct ndpd *d;
	struct client *next, **prev;
	uint32_t number;
	enum client_state state;
	int socket;
	sd_event_source *io;
	sd_event_source *deadline;	/* until which it has to get on */
	pid_t pid;
	uid_t uid;
	gid_t gid;
	char name[64];
	char node[64];		/* "" for an in-process device */
	double weight;
	uint64_t since_ns;
	struct ndp_msg_hello hello;
	struct ring ring;
	struct page page;
	struct hands *hands;	/* NULL: nothing can be moved */
	uint8_t *on_gpu;	/* [layers][experts] what an earlier ndpd had published; or NULL */
	struct brain brain;
};

/* Takes over @socket. */
int client_new(struct ndpd *d, int socket);
/* Everything it has, whatever state it is in. */
void client_free(struct client *c);
/* All that run begin anew: the library attaches them again at once. */
void clients_restart(struct ndpd *d, const char *why);
/* NULL: it is gone. */
struct client *client_find(struct ndpd *d, uint32_t number);
/* Does not take over @ring_fd and @old_page_fd, but @placement_fd; -1: none. */
void client_hello(struct client *c, const struct ndp_msg_hello *hello, int ring_fd,
		  int placement_fd, int old_page_fd);
/* Refuses and ends it: @c is gone afterwards. */
void client_refuse(struct client *c, const struct ndp_error *err);
/* Reads what it has posted, at most @budget posts and for a turn's time; returns how many. */
uint32_t client_posts(struct client *c, uint64_t now_ns, uint32_t budget);
/* Looks after outcomes of its hands. */
void client_outcomes(struct client *c, uint64_t now_ns);

/* ---- server.c --------------------------------------------------------------------- */

int server_start(struct ndpd *d, struct ndp_error *err);
void server_end(struct ndpd *d);
/* A message with a descriptor, at once or not at all; does not take over @fd. */
int server_send(const struct client *c, const void *message, size_t bytes, int fd);
/* Listens again, if it could not for want of descriptors. */
void server_tick(struct ndpd *d);

/* ---- share.c ---------------------------------------------------------------------- */

/* Clients have come or gone, or the configuration is another one. */
void shares_update(struct ndpd *d);
/* This client's part of what is shared with others on its node: 0..1. */
double share_of(const struct ndpd *d, const struct client *c);

/* ---- record.c --------------------------------------------------------------------- */

int record_open(struct ndpd *d, const char *path, struct ndp_error *err);
void record_close(struct ndpd *d);
void record_client(struct ndpd *d, const struct client *c);
void record_share(struct ndpd *d, const struct client *c, double link_share, double pcie_share,
		  uint64_t dimm_bytes);
void record_post(struct ndpd *d, const struct client *c, uint32_t layer, double now_ns);
void record_action(struct ndpd *d, const struct client *c, const struct ndp_place_action *a);
/* A move that was ordered: @row [dimms]. */
void record_order(struct ndpd *d, const struct client *c, const struct ndp_place_action *a,
		  const uint16_t *row, double now_ns);
void record_done(struct ndpd *d, const struct client *c, uint32_t action, double now_ns, int res);
void record_gone(struct ndpd *d, const struct client *c);

/* ---- status.c, metrics.c ------------------------------------------------------------ */

/* The document, to be freed; NULL: no memory. */
char *status_json(struct ndpd *d);

/* ---- devices.c ---------------------------------------------------------------------- */

/* A device whose node could be opened, for its counters. */
struct node {
	struct node *next;
	char path[64];
	struct ndp_device *dev;
	uint32_t dimm_mask;
};

/* Looks for nodes that there were not before, and drops those that are gone. */
void devices_refresh(struct ndpd *d);
void devices_end(struct ndpd *d);
/* Memory and counters of a DIMM that @c has weights on.  -ENODEV: nobody knows. */
int ndpd_dimm(struct ndpd *d, const struct client *c, uint32_t dimm, struct ndp_dimm_info *info);

int metrics_start(struct ndpd *d, struct ndp_error *err);
void metrics_end(struct ndpd *d);

/* ---- main.c -------------------------------------------------------------------------- */

struct ndpd {
	struct config config;
	const struct arguments *arguments;
	sd_event *event;
	sd_event_source *tick;	/* looks at the rings */
	int listener;
	sd_event_source *listening_source;
	uint32_t ticks_deaf;	/* it was off for, as no more can be accepted */
	char listening[CONFIG_TEXT];	/* path to remove at the end */
	int wake;		/* eventfd: hands have outcomes */
	struct client *clients;
	uint32_t nr_clients;
	uint32_t next_number;
	uint64_t started_ns;
	uint64_t ticks;
	uint64_t reloads;
	uint64_t connections, refused;
	struct record *record;
	struct metrics *metrics;
	struct node *nodes;	/* devices.c's */
};

uint64_t ndpd_now_ns(void);

#endif
