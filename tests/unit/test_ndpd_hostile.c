// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd_hostile.c - ndpd and clients that lie, stall and flood: each is refused or outlived,
 * costs its own user only, and an honest application beside it is served all the time.
 */
#include "ndpd_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
		IN_WORLD(silent_masses_take_their_own_places_only),
		IN_WORLD(without_descriptors_it_waits),
		IN_WORLD(who_does_not_read_gets_nothing_more),
		IN_WORLD(a_flood_of_posts_starves_nobody),
		IN_WORLD(metrics_are_for_those_who_ask_properly),
	};

	return find_ndpd() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
