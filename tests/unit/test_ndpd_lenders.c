// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd_lenders.c - ndpd and descriptors that clients hand it: placement descriptors behind
 * which somebody lies or never answers, and descriptors that are none. An honest application
 * beside them is served all the time.
 */
#include "../../libndp/device/lend.h"
#include "ndpd_client.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(placement_descriptors_that_lie_are_refused),
		IN_WORLD(who_never_answers_keeps_nobody_waiting),
		IN_WORLD(hands_that_hang_are_bounded),
		IN_WORLD(wild_answers_are_taken_for_what_they_are),
		IN_WORLD(descriptors_that_are_no_placement_fds_are_refused),
		IN_WORLD(descriptors_that_close_slowly_keep_nobody_waiting),
		IN_WORLD(heaps_of_descriptors_are_closed),
	};

	return find_ndpd() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
