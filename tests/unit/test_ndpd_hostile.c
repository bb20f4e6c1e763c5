// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd_hostile.c - ndpd and clients that lie, stall, flood and hand it strange descriptors:
 * each is refused or outlived, costs its own user only, and an honest application beside it is
 * served all the time.
 */
#include "../../libndp/device/lend.h"
#include "ndpd_world.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RING_SLOTS = 16, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* ---- what a client says ------------------------------------------------------------------------ */

struct hello {
	struct ndp_msg_hello m;
	size_t bytes;
	int fds[250];	/* the first is ours to close, unless it is somebody's */
	uint32_t nr_fds;
	int ring;
};

static size_t ring_bytes(void)
{
	return sizeof(struct ndp_ring) + RING_SLOTS * ndp_ring_slot_bytes(EXPERTS);
}

static int make_ring(size_t bytes, int seals)
{
	const struct ndp_ring ring = { .magic = NDP_RING_MAGIC, .version = NDP_DAEMON_VERSION,
				       .layers = LAYERS, .experts = EXPERTS, .slots = RING_SLOTS,
				       .slot_bytes = ndp_ring_slot_bytes(EXPERTS) };
	const size_t n = bytes < sizeof(ring) ? bytes : sizeof(ring);
	int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(pwrite(fd, &ring, n, 0), n);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static struct hello honest(const struct world *w)
{
	struct hello h = {
		.m = { .head = { NDP_MSG_HELLO, sizeof(h.m) }, .version = NDP_DAEMON_VERSION,
		       .name = "other", .layers = LAYERS, .experts = EXPERTS, .top_k = 2,
		       .hidden = H, .intermediate = NEURONS, .expert_bytes = 1000 },
		.bytes = sizeof(h.m),
		.nr_fds = 1,
	};

	(void)w;
	h.fds[0] = make_ring(ring_bytes(), ALL_SEALS);
	h.ring = h.fds[0];
	return h;
}

/* Says it, and closes the ring's descriptor. */
static int say_hello(const struct world *w, const struct hello *h)
{
	struct iovec iov = { (void *)&h->m, h->bytes };
	static char room[CMSG_SPACE(sizeof(h->fds))] __attribute__((aligned(8)));
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (h->nr_fds) {
		struct cmsghdr *c;

		msg.msg_control = room;
		msg.msg_controllen = CMSG_SPACE(h->nr_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(h->nr_fds * sizeof(int));
		memcpy(CMSG_DATA(c), h->fds, h->nr_fds * sizeof(int));
	}
	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	/* Who is refused at the door learns why from what it receives. */
	assert_true(sendmsg(fd, &msg, MSG_NOSIGNAL) > 0 || errno == EPIPE);
	close(h->ring);
	return fd;
}

static struct ndp_ring *map_ring(const struct hello *h)
{
	struct ndp_ring *r = mmap(NULL, ring_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, h->ring,
				  0);

	assert_true(r != MAP_FAILED);
	return r;
}

/* As ndp_placement_post(), of a layer that there may not be: most tokens go to four experts. */
static void post_raw(struct ndp_ring *r, uint32_t layer, uint32_t hot)
{
	const uint64_t at = r->head;
	struct ndp_ring_slot *slot = (void *)((char *)(r + 1) +
					      at % RING_SLOTS * ndp_ring_slot_bytes(EXPERTS));

	if (at - __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) >= RING_SLOTS)
		return;
	r->head = at + 1;
	slot->layer = layer;
	for (uint32_t e = 0; e < EXPERTS; e++)
		ndp_ring_slot_tokens(slot)[e] = e >= hot && e < hot + 4 ? 300 : 20;
	__atomic_store_n(&slot->seq, at + 1, __ATOMIC_RELEASE);
}

/* Of the client that was attached by attach(): the model's name says which. */
static double posts_read(const struct world *w)
{
	json_t *root = status(w), *c;
	double n = 0;
	size_t i;

	json_array_foreach(json_object_get(root, "clients"), i, c)
		if (!strcmp(json_string_value(json_object_get(c, "name")) ?
			    json_string_value(json_object_get(c, "name")) : "", "model"))
			n = json_number_value(json_object_get(json_object_get(c, "model"),
							      "posts"));
	json_decref(root);
	return n;
}

/* ---- lies --------------------------------------------------------------------------------------- */

struct lie {
	const char *name;
	int code;
	void (*tell)(struct ndp_msg_hello *h, struct ndp_ring *ring);
	size_t ring_bytes; /* 0: as many as are right */
	int seals; /* 0: the right ones */
	int fds; /* 0: as many as are right */
	size_t bytes; /* of the message; 0: all */
};

static void other_version(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->version = 7;
}

static void unknown_flags(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->flags = 0x80;
}

static void endless_name(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	memset(h->name, 'x', sizeof(h->name));
}

static void quotes_in_name(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	strcpy(h->name, "a\"} 1\nb");
}

static void no_layers(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->layers = 0;
}

static void too_many_experts(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->experts = 1u << 31;
}

static void memory_bomb(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	h->layers = ring->layers = 1024;
	h->experts = ring->experts = 4096;
	ring->slots = 16;
	ring->slot_bytes = ndp_ring_slot_bytes(4096);
}

static void absurd_bytes(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->expert_bytes = UINT64_MAX;
}

static void other_ring(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->magic = 1;
}

static void other_model_in_ring(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->experts++;
}

static void more_slots_than_bytes(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slots = 65536;
}

static void odd_slots(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slots = 17;
}

static void small_slots(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slot_bytes = 0;
}

static void placement_without_dimms(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->flags = NDP_HELLO_PLACEMENT;
}

static const struct lie lies[] = {
	{ .name = "other version", .code = -EPROTO, .tell = other_version },
	{ .name = "unknown flags", .code = -EINVAL, .tell = unknown_flags },
	{ .name = "endless name", .code = -EINVAL, .tell = endless_name },
	{ .name = "quotes in the name", .code = -EINVAL, .tell = quotes_in_name },
	{ .name = "no layers", .code = -EINVAL, .tell = no_layers },
	{ .name = "too many experts", .code = -EINVAL, .tell = too_many_experts },
	{ .name = "memory bomb", .code = -ENOSPC, .tell = memory_bomb,
	  .ring_bytes = sizeof(struct ndp_ring) + 16 * 16448 },
	{ .name = "absurd bytes", .code = -EINVAL, .tell = absurd_bytes },
	{ .name = "no ring", .code = -EPROTO, .tell = other_ring },
	{ .name = "another model's ring", .code = -EINVAL, .tell = other_model_in_ring },
	{ .name = "more slots than bytes", .code = -EINVAL, .tell = more_slots_than_bytes },
	{ .name = "odd slots", .code = -EINVAL, .tell = odd_slots },
	{ .name = "small slots", .code = -EINVAL, .tell = small_slots },
	{ .name = "placement without DIMMs", .code = -EINVAL, .tell = placement_without_dimms,
	  .fds = 2 },
	{ .name = "a ring that may shrink", .code = -EPERM, .seals = F_SEAL_GROW },
	{ .name = "a small ring", .code = -EINVAL, .ring_bytes = 64 },
	{ .name = "an endless ring", .code = -EINVAL, .ring_bytes = 1ull << 40 },
	{ .name = "no descriptor", .code = -EPROTO, .fds = -1 },
	{ .name = "three descriptors", .code = -EPROTO, .fds = 3 },
	{ .name = "half a message", .code = -EPROTO, .bytes = 100 },
	{ .name = "four bytes", .code = -EPROTO, .bytes = 4 },
};

static int hello_of(const struct world *w, const struct lie *lie)
{
	struct hello h = honest(w);
	struct ndp_ring ring;

	if (lie->ring_bytes || lie->seals) { /* another one */
		close(h.fds[0]);
		h.fds[0] = make_ring(lie->ring_bytes ? lie->ring_bytes : ring_bytes(),
				     lie->seals ? lie->seals : ALL_SEALS);
	}
	if (lie->ring_bytes != 64) {
		assert_int_equal(pread(h.fds[0], &ring, sizeof(ring), 0), sizeof(ring));
		if (lie->tell)
			lie->tell(&h.m, &ring);
		assert_int_equal(pwrite(h.fds[0], &ring, sizeof(ring), 0), sizeof(ring));
	}
	h.bytes = lie->bytes ? lie->bytes : sizeof(h.m);
	if (lie->fds < 0)
		h.nr_fds = 0;
	while (lie->fds > 0 && h.nr_fds < (uint32_t)lie->fds)
		h.fds[h.nr_fds++] = h.fds[0];
	return say_hello(w, &h);
}

static void lies_are_refused_and_harm_nobody(void **state)
{
	const uint32_t posted = LAYERS * sizeof(lies) / sizeof(lies[0]);
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	wait_for_clients(w, 1);
	fds = settled_fds(w->ndpd);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct ndp_msg_error e = { 0 };
		int fd = hello_of(w, &lies[i]);
		ssize_t n = recv(fd, &e, sizeof(e), 0);

		if (n != sizeof(e) || e.code != lies[i].code)
			fail_msg("%s: %zd bytes, type %u, code %d (%s)", lies[i].name, n, e.head.type,
				 e.code, e.message);
		assert_int_equal(recv(fd, &e, sizeof(e), 0), 0); /* and out */
		close(fd);
		post_steps(w, 1, 1);
	}
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), fds);
	for (int i = 0; i < 500 && model_number(w, "posts", NULL) < posted; i++)
		usleep(10000);
	assert_int_equal(model_number(w, "posts", NULL), posted);
}

static void weights_that_are_not_the_models_are_refused(void **state)
{
	struct world *w = *state;
	struct ndp_attach_options o;
	struct ndp_attachment *a;
	struct ndp_error err;

	start_ndpd(w);
	load_weights(w, LAYERS);
	o = attach_options(w);
	o.intermediate = NEURONS * 2;
	assert_int_equal(ndp_placement_attach(&a, &o, &err), -EINVAL);
	assert_non_null(strstr(err.message, "blocks"));
	o = attach_options(w);
	o.experts = EXPERTS + 1;
	assert_int_equal(ndp_placement_attach(&a, &o, &err), -ENOENT);
	assert_non_null(strstr(err.message, "missing"));
	wait_for_clients(w, 0);
}

/* A client writes whatever it likes into its ring, and what it should not into ndpd's cursor. */
static void a_wild_ring_harms_nobody(void **state)
{
	static const struct lie none = { .name = "wild" };
	struct world *w = *state;
	struct ndp_ring_slot *slot;
	struct ndp_ring *ring;
	int fd;

	start_ndpd(w);
	attach(w);
	fd = hello_of(w, &none);
	wait_for_clients(w, 2);
	close(fd);
	wait_for_clients(w, 1);
	/* The library's own ring, found among this process's mappings by its name. */
	ring = NULL;
	for (int i = 3; i < 256 && !ring; i++) {
		char link[64] = "", path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
		if (readlink(path, link, sizeof(link) - 1) > 0 && strstr(link, "ndp-loads"))
			ring = mmap(NULL, sizeof(*ring) + 1024 * ndp_ring_slot_bytes(EXPERTS),
				    PROT_READ | PROT_WRITE, MAP_SHARED, i, 0);
	}
	assert_non_null(ring);
	slot = (struct ndp_ring_slot *)(ring + 1);
	ring->slots = 3;
	ring->slot_bytes = 1u << 31;
	ring->experts = 1u << 30;
	ring->tail = 12345;
	ring->head = 1; /* a slot that is never finished */
	usleep(300000);
	slot->layer = 77;
	ndp_ring_slot_tokens(slot)[0] = UINT32_MAX;
	slot->seq = 1;
	usleep(1500000);
	ring->head = UINT64_MAX;
	usleep(200000);
	assert_int_equal(nr_clients(w), 1);
	munmap(ring, sizeof(*ring) + 1024 * ndp_ring_slot_bytes(EXPERTS));
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

static void whoever_says_nothing_is_thrown_out(void **state)
{
	struct world *w = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct ndp_msg_error e;

	start_ndpd(w);
	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	assert_int_equal(recv(fd, &e, sizeof(e), 0), sizeof(e));
	assert_int_equal(e.code, -ETIMEDOUT);
	close(fd);
}

/* ---- placement descriptors that lie ---------------------------------------------------------- */

enum lender_kind {
	SILENT, HANGS_UP, ENDLESS, BACKWARDS, STANDING, TOO_MANY, SHORT, POSITIVE, OTHER_BLOCKS,
	OTHER_SUM, MANY_RANGES, NO_SUCH_DIMM, TWICE, ALWAYS_MOVING,
	/* These are honest until the client runs. */
	WILD_DIMMS, WILD_MOVES, SILENT_MOVES,
};

struct lender {
	enum lender_kind kind;
	int fd;			/* of the lender */
	int held[4096];		/* answers that do not come */
	uint32_t nr_held;
	uint64_t asked;
	pthread_t thread;
};

static void answer_list(const struct lender *l, const struct lend_request *q, struct lend_reply *a)
{
	const uint64_t n = (uint64_t)LAYERS * EXPERTS, from = q->id ? q->id : 1;

	if (l->kind == ENDLESS || l->kind == STANDING || l->kind == BACKWARDS) {
		a->next = l->kind == ENDLESS ? q->id + 1 : l->kind == STANDING ? 7 : 1000 - l->asked;
		return;
	}
	for (uint64_t id = from; id <= n && a->nr < q->nr_ranges && a->nr < LEND_ENTRIES; id++)
		a->entries[a->nr++] = (struct ndp_placement_entry){
			.id = id, .nr_blocks = l->kind == OTHER_BLOCKS ? 3 : BLOCKS,
			.cookie = (id - 1) / EXPERTS << 32 |
				  (l->kind == TWICE ? 0 : (id - 1) % EXPERTS),
			.moving = l->kind == ALWAYS_MOVING,
		};
	a->next = from + a->nr <= n ? from + a->nr : 0;
	if (l->kind == TOO_MANY)
		a->nr = UINT32_MAX;
}

static void answer_dimm(const struct lender *l, struct lend_reply *a)
{
	a->dimm = (struct ndp_dimm_info){ .state = NDP_DIMM_READY, .mem_bytes = 1 << 30,
					  .free_bytes = 1 << 29 };
	if (l->kind != WILD_DIMMS)
		return;
	memset(&a->dimm, 0xff, sizeof(a->dimm));
	if (l->asked & 1) /* one that only its counters betray */
		a->dimm.state = NDP_DIMM_READY, a->dimm.mem_bytes = a->dimm.free_bytes = 1 << 30;
}

/* False: there is no answer. */
static bool answer_of(struct lender *l, const struct lend_request *q, struct lend_reply *a)
{
	__atomic_add_fetch(&l->asked, 1, __ATOMIC_RELAXED);
	switch (q->op) {
	case LEND_LIST:
		answer_list(l, q, a);
		break;
	case LEND_GET:
		a->nr = l->kind == MANY_RANGES ? 77 : 1;
		a->ranges[0] = (struct ndp_range){
			.dimm = l->kind == NO_SUCH_DIMM ? 31 : (uint32_t)q->id % 4,
			.nr_blocks = l->kind == OTHER_SUM ? UINT32_MAX : BLOCKS,
		};
		break;
	case LEND_DIMM:
		answer_dimm(l, a);
		break;
	default:
		if (l->kind == SILENT_MOVES)
			return false;
		memset(&a->move, 0xff, sizeof(a->move));
		a->res = l->asked % 3 ? 0 : -EIO;
	}
	if (l->kind == POSITIVE)
		a->res = 5;
	return l->kind != SILENT;
}

static void *lend(void *arg)
{
	struct lender *l = arg;

	for (;;) {
		struct lend_request q;
		struct lend_reply a = { 0 };
		struct iovec iov = { &q, sizeof(q) };
		char room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
		struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
				      .msg_controllen = sizeof(room) };
		int fd;

		if (recvmsg(l->fd, &msg, MSG_CMSG_CLOEXEC) != sizeof(q))
			return NULL;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
		if (!answer_of(l, &q, &a) && l->nr_held < 4096) {
			l->held[l->nr_held++] = fd;
			continue;
		}
		if (l->kind != HANGS_UP)
			(void)!send(fd, &a, l->kind == SHORT ? 8 : sizeof(a), MSG_NOSIGNAL);
		close(fd);
	}
}

/* The holder's end. */
static int start_lender(struct lender *l, enum lender_kind kind)
{
	int pair[2];

	*l = (struct lender){ .kind = kind };
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	l->fd = pair[0];
	assert_int_equal(pthread_create(&l->thread, NULL, lend, l), 0);
	return pair[1];
}

static void end_lender(struct lender *l)
{
	shutdown(l->fd, SHUT_RDWR);
	pthread_join(l->thread, NULL);
	close(l->fd);
	while (l->nr_held)
		close(l->held[--l->nr_held]);
}

/* A client that is honest but for @fd, its placement descriptor; its connection. */
static int client_with(const struct world *w, int fd, const char *node)
{
	struct hello h = honest(w);

	h.m.flags = NDP_HELLO_PLACEMENT;
	h.m.dimm_mask = 15;
	h.m.hidden = TOLD_HIDDEN;
	h.m.expert_bytes = TOLD_BYTES;
	strcpy(h.m.node, node);
	h.fds[h.nr_fds++] = fd;
	return say_hello(w, &h);
}

static int32_t code_of(int connection)
{
	struct ndp_msg_error e = { 0 };
	const ssize_t n = recv(connection, &e, sizeof(e), 0);

	if (n == sizeof(struct ndp_msg_welcome) && e.head.type == NDP_MSG_WELCOME)
		return 0;
	assert_int_equal(n, sizeof(e));
	assert_int_equal(e.head.type, NDP_MSG_ERROR);
	return e.code;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Posts of the attached, honest client are read; within @s seconds. */
static void expect_service(struct world *w, double s)
{
	const double until = seconds() + s;
	struct ndp_attach_state state;

	post_steps(w, 1, 1);
	ndp_placement_state(w->a, &state);
	assert_true(state.attached);
	while (posts_read(w) < state.posts) {
		if (seconds() > until)
			fail_msg("%.0f of %llu posts were read in %g s", posts_read(w),
				 (unsigned long long)state.posts, s);
		usleep(1000);
	}
}

static void placement_descriptors_that_lie_are_refused(void **state)
{
	static const struct {
		enum lender_kind kind;
		int32_t code;
	} lenders[] = {
		{ HANGS_UP, -ENODEV }, { BACKWARDS, -EPROTO }, { STANDING, -EPROTO },
		{ TOO_MANY, -EPROTO }, { SHORT, -EPROTO }, { POSITIVE, -EPROTO },
		{ OTHER_BLOCKS, -EINVAL }, { OTHER_SUM, -EINVAL }, { MANY_RANGES, -EPROTO },
		{ NO_SUCH_DIMM, -EINVAL }, { TWICE, -EEXIST },
	};
	static struct lender l;
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	attach(w);
	wait_for_clients(w, 1);
	fds = settled_fds(w->ndpd);
	for (size_t i = 0; i < sizeof(lenders) / sizeof(lenders[0]); i++) {
		const int lent = start_lender(&l, lenders[i].kind);
		const int fd = client_with(w, lent, "");
		int32_t code;

		close(lent);
		code = code_of(fd);
		if (code != lenders[i].code)
			fail_msg("lender %d: %d, not %d", lenders[i].kind, code, lenders[i].code);
		close(fd);
		end_lender(&l);
		expect_service(w, 2);
	}
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), fds);
}

/* Those that only take time: all at once, so that the test does not. */
static void who_never_answers_keeps_nobody_waiting(void **state)
{
	static const enum lender_kind kinds[] = { SILENT, ENDLESS, ALWAYS_MOVING };
	static struct lender l[3];
	struct world *w = *state;
	int fd[3], lent[3];
	double start;

	start_ndpd(w);
	attach(w);
	for (int i = 0; i < 3; i++) {
		lent[i] = start_lender(&l[i], kinds[i]);
		fd[i] = client_with(w, lent[i], "");
	}
	start = seconds();
	while (seconds() < start + 3)
		expect_service(w, 1);
	for (int i = 0; i < 3; i++) {
		const int32_t code = code_of(fd[i]);

		if (code != -ETIMEDOUT && !(kinds[i] == ENDLESS && code == -EPROTO))
			fail_msg("lender %d: %d", kinds[i], code);
		close(fd[i]);
		close(lent[i]);
	}
	/* One hand still waits for an answer. */
	start = seconds();
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
	assert_true(seconds() < start + 2);
	for (int i = 0; i < 3; i++)
		end_lender(&l[i]);
}

static double status_number(const struct world *w, const char *key)
{
	json_t *root = status(w);
	const double n = json_number_value(json_object_get(root, key));

	json_decref(root);
	return n;
}

/* Who is refused before it was listened to learns of the reset first, once. */
static ssize_t receive_error(int fd, struct ndp_msg_error *e)
{
	const ssize_t n = recv(fd, e, sizeof(*e), 0);

	return n < 0 && errno == ECONNRESET ? recv(fd, e, sizeof(*e), 0) : n;
}

/* Hands that hang are their user's: who leaves too many gets no more. */
static void hands_that_hang_are_bounded(void **state)
{
	enum { TIMES = 12 };
	static struct lender l[TIMES];
	struct ndp_msg_error e = { 0 };
	struct world *w = *state;
	int n = 0;

	write_config(w, "[limits]\nclients_per_user = 4\nmoves_at_once = 1\n");
	start_ndpd(w);
	while (n < TIMES && !e.code) {
		const int lent = start_lender(&l[n], SILENT);
		const int fd = client_with(w, lent, "");
		struct pollfd p = { .fd = fd, .events = POLLIN };

		/* Until it is asked, or refused. */
		while (!__atomic_load_n(&l[n].asked, __ATOMIC_RELAXED) && !e.code)
			if (poll(&p, 1, 10) > 0)
				assert_int_equal(receive_error(fd, &e), sizeof(e));
		close(fd);
		close(lent);
		usleep(50000);
		n++;
	}
	assert_int_equal(e.code, -EUSERS);
	assert_non_null(strstr(e.message, "threads hang"));
	assert_int_equal(n, 2 * 4 + 2); /* twice what is allowed, one more, and who is refused */
	while (n > 0)
		end_lender(&l[--n]);
	/* When these have ended it goes on. */
	for (int i = 0; i < 500 && !w->a; i++) {
		struct ndp_attach_options o = attach_options(w);

		ndp_placement_attach(&w->a, &o, NULL);
		usleep(10000);
	}
	assert_non_null(w->a);
	for (int i = 0; i < 500 && status_number(w, "threads") > 0; i++)
		usleep(10000);
	assert_int_equal(status_number(w, "threads"), 0);
}

/* What a lender says of DIMMs and moves is nobody's index, and ends. */
static void wild_answers_are_taken_for_what_they_are(void **state)
{
	static const enum lender_kind kinds[] = { WILD_DIMMS, WILD_MOVES, SILENT_MOVES };
	static struct lender l;
	struct world *w = *state;

	start_ndpd(w);
	attach(w);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct ndp_ring *ring;
		const int lent = start_lender(&l, kinds[k]);
		struct hello h = honest(w);
		double start = seconds();
		int fd;

		h.m.flags = NDP_HELLO_PLACEMENT;
		h.m.dimm_mask = 15;
		h.m.hidden = TOLD_HIDDEN;
		h.m.expert_bytes = TOLD_BYTES;
		h.fds[h.nr_fds++] = lent;
		ring = map_ring(&h);
		fd = say_hello(w, &h);
		close(lent);
		assert_int_equal(code_of(fd), 0);
		while (seconds() < start + 1.5) {
			for (uint32_t i = 0; i < 4; i++)
				post_raw(ring, (uint32_t)(seconds() * 100) % LAYERS, 3);
			expect_service(w, 1);
		}
		close(fd);
		munmap(ring, ring_bytes());
		end_lender(&l);
		wait_for_clients(w, 1);
	}
}

/* ---- descriptors that are none --------------------------------------------------------------- */

static int connection_to(const struct world *w)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	return fd;
}

static void descriptors_that_are_no_placement_fds_are_refused(void **state)
{
	enum { KINDS = 8 };
	struct world *w = *state;
	int pipes[2], fds[KINDS], before;

	start_ndpd(w);
	attach(w);
	wait_for_clients(w, 1);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	before = (int)settled_fds(w->ndpd);
	fds[0] = open("/dev/zero", O_RDWR | O_CLOEXEC);
	fds[1] = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	fds[2] = pipes[0];
	fds[3] = pipes[1];
	fds[4] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fds[5] = connection_to(w);
	fds[6] = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fds[7] = open(w->config, O_RDWR | O_CLOEXEC);
	for (int i = 0; i < KINDS; i++)
		for (int node = 0; node < 2; node++) {
			int c;

			assert_true(fds[i] >= 0);
			c = client_with(w, fds[i], node ? "/dev/ndp0" : "");
			assert_true(code_of(c) < 0);
			close(c);
		}
	for (int i = 0; i < KINDS; i++)
		close(fds[i]);
	expect_service(w, 1);
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), before);
}

/* One whose close() waits: TCP with data that nobody takes. */
static int lingering_socket(int *peer)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 20 };
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char data[1 << 20];

	assert_int_equal(bind(listener, (void *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (void *)&address, &bytes), 0);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	*peer = accept(listener, NULL, NULL);
	close(listener);
	while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

static void descriptors_that_close_slowly_keep_nobody_waiting(void **state)
{
	struct world *w = *state;
	const double start = seconds();

	start_ndpd(w);
	attach(w);
	for (int as = 0; as < 3; as++) {
		int peer, fd = lingering_socket(&peer), c;
		struct hello h = honest(w);

		/* Who closes last is who waits: that is to be ndpd. */
		kill(w->ndpd, SIGSTOP);
		if (as == 0) { /* one too many */
			h.fds[h.nr_fds++] = fd;
			c = say_hello(w, &h);
		} else if (as == 1) { /* the ring */
			h.fds[0] = fd;
			c = say_hello(w, &h);
		} else {
			c = client_with(w, fd, "");
		}
		close(fd);
		kill(w->ndpd, SIGCONT);
		assert_true(code_of(c) < 0);
		close(c);
		expect_service(w, 1);
		close(peer);
	}
	assert_true(seconds() < start + 10);
}

/* More descriptors than there is room for. */
static void heaps_of_descriptors_are_closed(void **state)
{
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	attach(w);
	wait_for_clients(w, 1);
	fds = settled_fds(w->ndpd);
	for (uint32_t n = 2; n <= 200; n = n < 8 ? n + 1 : n * 5) {
		struct hello h = honest(w);
		int c;

		while (h.nr_fds < n)
			h.fds[h.nr_fds++] = h.fds[0];
		c = say_hello(w, &h);
		assert_int_equal(code_of(c), -EPROTO);
		close(c);
	}
	expect_service(w, 1);
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), fds);
}

/* ---- masses ------------------------------------------------------------------------------------ */

static void silent_masses_take_their_own_places_only(void **state)
{
	enum { MANY = 60 };
	struct world *w = *state;
	int fd[MANY];
	uint32_t refused = 0;

	write_config(w, "[limits]\nclients_per_user = 12\n");
	start_ndpd(w);
	attach(w);
	for (int i = 0; i < MANY; i++)
		fd[i] = connection_to(w);
	usleep(300000);
	for (int i = 0; i < MANY; i++) {
		struct ndp_msg_error e;

		refused += recv(fd[i], &e, sizeof(e), MSG_DONTWAIT) == sizeof(e) &&
			   e.code == -EUSERS;
		close(fd[i]);
	}
	assert_int_equal(refused, MANY - 11);
	expect_service(w, 2);
}

static double cpu_seconds(pid_t pid)
{
	unsigned long user, system;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
				&user, &system), 2);
	fclose(f);
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* Without descriptors nobody comes in, the loop does not spin, and who is there is served. */
static void without_descriptors_it_waits(void **state)
{
	enum { MANY = 60 };
	const struct rlimit few = { 40, 40 };
	struct world *w = *state;
	struct rlimit old;
	uint64_t generation;
	double cpu;
	int fd[MANY];

	write_config(w, "[limits]\nclients = 200\nclients_per_user = 200\n"
		     "[placement]\nfirst_decide_every = 2\n");
	getrlimit(RLIMIT_NOFILE, &old);
	start_ndpd(w);
	attach(w);
	assert_int_equal(prlimit(w->ndpd, RLIMIT_NOFILE, &few, NULL), 0);
	for (int i = 0; i < MANY; i++)
		fd[i] = connection_to(w);
	usleep(200000);
	generation = ndp_placement_generation(w->a);
	cpu = cpu_seconds(w->ndpd);
	post_steps(w, 200, 3);
	usleep(500000);
	cpu = cpu_seconds(w->ndpd) - cpu;
	assert_true(log_says(w, "no client can be accepted now"));
	assert_true(ndp_placement_generation(w->a) != generation);
	assert_true(cpu < 0.5);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	expect_service(w, 5);
}

static void who_does_not_read_gets_nothing_more(void **state)
{
	struct world *w = *state;
	struct ndp_msg ask = { NDP_MSG_STATUS, sizeof(ask) };
	const double until = seconds() + 2;
	uint32_t fds, asked = 0;
	int fd;

	start_ndpd(w);
	attach(w);
	wait_for_clients(w, 1);
	fds = settled_fds(w->ndpd);
	fd = connection_to(w);
	while (seconds() < until) {
		while (send(fd, &ask, sizeof(ask), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			asked++;
		expect_service(w, 1);
	}
	assert_true(asked > 100);
	close(fd);
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), fds);
}

/* Nonsense without end, in the ring: the others' posts are read all the same. */
static void a_flood_of_posts_starves_nobody(void **state)
{
	struct world *w = *state;
	const double until = seconds() + 2;
	struct ndp_ring *ring;
	struct hello h;
	int fd;

	start_ndpd(w);
	attach(w);
	h = honest(w);
	ring = map_ring(&h);
	fd = say_hello(w, &h);
	assert_int_equal(code_of(fd), 0);
	while (seconds() < until) {
		for (int i = 0; i < 20000; i++)
			post_raw(ring, i % 3 ? 77 : (uint32_t)i % LAYERS, 3);
		expect_service(w, 1);
	}
	close(fd);
	munmap(ring, ring_bytes());
}

/* ---- metrics ------------------------------------------------------------------------------------- */

static int http_connection(const struct world *w)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/metrics", w->dir);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	return fd;
}

static void http(const struct world *w, const char *request, size_t bytes, char *text, size_t size)
{
	int fd = http_connection(w);
	size_t n = 0;
	ssize_t r;

	for (size_t at = 0; at < bytes; at += (size_t)r) {
		r = send(fd, request + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r <= 0)
			break; /* it has read enough */
	}
	while (n < size - 1 && (r = recv(fd, text + n, size - 1 - n, 0)) > 0)
		n += (size_t)r;
	text[n] = '\0';
	close(fd);
}

static void metrics_are_for_those_who_ask_properly(void **state)
{
	enum { STALLED = 28 };	/* as many as are served and wait at a time */
	static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
	static char text[1 << 18], huge[1 << 20];
	struct world *w = *state;
	struct hello h;
	char config[256];
	int stalled[STALLED], fd;
	double start;

	snprintf(config, sizeof(config), "[metrics]\nlisten = unix:%s/metrics\n", w->dir);
	write_config(w, config);
	start_ndpd(w);
	attach(w);
	h = honest(w);
	strcpy(h.m.name, "a\",x=\"b\\");
	fd = say_hello(w, &h);
	assert_int_equal(code_of(fd), 0);
	http(w, get, sizeof(get) - 1, text, sizeof(text));
	assert_non_null(strstr(text, "200 OK"));
	assert_non_null(strstr(text, "model=\"a\\\",x=\\\"b\\\\\""));
	close(fd);
	memset(huge, 'x', sizeof(huge));
	memcpy(huge, "GET /", 5);
	http(w, huge, sizeof(huge), text, sizeof(text));
	assert_null(strstr(text, "200 OK"));
	/* They begin, and never end. */
	for (int i = 0; i < STALLED; i++) {
		stalled[i] = http_connection(w);
		(void)!send(stalled[i], "GET /metr", 9, MSG_NOSIGNAL);
	}
	for (int i = 0; i < 10; i++)
		expect_service(w, 1);
	for (int i = 0; i < STALLED; i++)
		close(stalled[i]);
	start = seconds();
	http(w, get, sizeof(get) - 1, text, sizeof(text));
	assert_non_null(strstr(text, "ndpd_clients 1"));
	assert_true(seconds() < start + 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(lies_are_refused_and_harm_nobody),
		IN_WORLD(weights_that_are_not_the_models_are_refused),
		IN_WORLD(a_wild_ring_harms_nobody),
		IN_WORLD(whoever_says_nothing_is_thrown_out),
		IN_WORLD(placement_descriptors_that_lie_are_refused),
		IN_WORLD(who_never_answers_keeps_nobody_waiting),
		IN_WORLD(hands_that_hang_are_bounded),
		IN_WORLD(wild_answers_are_taken_for_what_they_are),
		IN_WORLD(descriptors_that_are_no_placement_fds_are_refused),
		IN_WORLD(descriptors_that_close_slowly_keep_nobody_waiting),
		IN_WORLD(heaps_of_descriptors_are_closed),
		IN_WORLD(silent_masses_take_their_own_places_only),
		IN_WORLD(without_descriptors_it_waits),
		IN_WORLD(who_does_not_read_gets_nothing_more),
		IN_WORLD(a_flood_of_posts_starves_nobody),
		IN_WORLD(metrics_are_for_those_who_ask_properly),
	};

	return find_ndpd() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
