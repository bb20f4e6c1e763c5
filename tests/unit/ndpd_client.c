// SPDX-License-Identifier: GPL-2.0-or-later
/* ndpd_client.c - see ndpd_client.h. */
#include "ndpd_client.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

size_t ring_bytes(void)
{
	return sizeof(struct ndp_ring) + RING_SLOTS * ndp_ring_slot_bytes(EXPERTS);
}

int make_ring(size_t bytes, int seals)
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

struct hello honest(const struct world *w)
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

int say_hello(const struct world *w, const struct hello *h)
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

struct ndp_ring *map_ring(const struct hello *h)
{
	struct ndp_ring *r = mmap(NULL, ring_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, h->ring,
				  0);

	assert_true(r != MAP_FAILED);
	return r;
}

void post_raw(struct ndp_ring *r, uint32_t layer, uint32_t hot)
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

double posts_read(const struct world *w)
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

int32_t code_of(int connection)
{
	struct ndp_msg_error e = { 0 };
	const ssize_t n = recv(connection, &e, sizeof(e), 0);

	if (n == sizeof(struct ndp_msg_welcome) && e.head.type == NDP_MSG_WELCOME)
		return 0;
	assert_int_equal(n, sizeof(e));
	assert_int_equal(e.head.type, NDP_MSG_ERROR);
	return e.code;
}

double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void expect_service(struct world *w, double s)
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

int connection_to(const struct world *w)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	return fd;
}
