// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * An application's side of ndpd, against a daemon of the test's own that can be
 * made to come, to go, and to lie.
 */
#include <errno.h>
#include <fcntl.h>
#include <ndp/ndp.h>
#include <ndp/daemon.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 70, WORDS = 2 };

/* ---- a daemon ----------------------------------------------------------- */

enum lie { HONEST, REFUSES, SHRINKABLE, SMALL, OTHER_MODEL, NO_PAGE, SHORT, SILENT_END };

struct daemon {
	char dir[64];
	char path[108];
	int listener;
	int client;
	struct ndp_msg_hello hello;
	int nr_fds;
	struct ndp_ring *ring;
	size_t ring_bytes;
	struct ndp_page *page;
	size_t page_bytes;
	int page_fd;
};

static void daemon_listen(struct daemon *d)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(address.sun_path, d->path);
	d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(d->listener, (void *)&address, sizeof(address)), 0);
	assert_int_equal(listen(d->listener, 4), 0);
}

static int setup(void **state)
{
	struct daemon *d = calloc(1, sizeof(*d));

	d->client = d->listener = -1;
	strcpy(d->dir, "/tmp/ndp-attach-XXXXXX");
	if (!mkdtemp(d->dir))
		return -1;
	snprintf(d->path, sizeof(d->path), "%s/socket", d->dir);
	*state = d;
	return 0;
}

static void daemon_end(struct daemon *d)
{
	if (d->client >= 0)
		close(d->client);
	if (d->listener >= 0)
		close(d->listener);
	if (d->ring)
		munmap(d->ring, d->ring_bytes);
	if (d->page) {
		munmap(d->page, d->page_bytes);
		close(d->page_fd);
	}
	unlink(d->path);
	d->client = d->listener = -1;
	d->ring = NULL;
	d->page = NULL;
}

static int teardown(void **state)
{
	struct daemon *d = *state;

	daemon_end(d);
	rmdir(d->dir);
	free(d);
	return 0;
}

static void take_hello(struct daemon *d)
{
	struct iovec iov = { &d->hello, sizeof(d->hello) };
	char room[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8)));
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			      .msg_controllen = sizeof(room) };
	struct cmsghdr *c;
	int fds[2];

	d->client = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(d->client >= 0);
	assert_int_equal(recvmsg(d->client, &msg, MSG_CMSG_CLOEXEC), sizeof(d->hello));
	c = CMSG_FIRSTHDR(&msg);
	assert_non_null(c);
	d->nr_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	memcpy(fds, CMSG_DATA(c), d->nr_fds * sizeof(int));
	d->ring_bytes = (size_t)lseek(fds[0], 0, SEEK_END);
	assert_int_equal(fcntl(fds[0], F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	d->ring = mmap(NULL, d->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	assert_ptr_not_equal(d->ring, MAP_FAILED);
	for (int i = 0; i < d->nr_fds; i++)
		close(fds[i]);
}

static void make_page(struct daemon *d, enum lie lie)
{
	d->page_bytes = sizeof(struct ndp_page) + LAYERS * ndp_page_layer_bytes(EXPERTS);
	d->page_fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(d->page_fd, (off_t)(lie == SMALL ? 64 : d->page_bytes)), 0);
	if (lie == SMALL)
		d->page_bytes = 64;
	if (lie != SHRINKABLE)
		assert_int_equal(fcntl(d->page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	d->page = mmap(NULL, d->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->page_fd, 0);
	d->page->magic = NDP_PAGE_MAGIC;
	d->page->version = NDP_DAEMON_VERSION;
	d->page->layers = LAYERS;
	d->page->experts = lie == OTHER_MODEL ? EXPERTS + 1 : EXPERTS;
	d->page->layer_bytes = ndp_page_layer_bytes(EXPERTS);
}

static void send_page(struct daemon *d, enum lie lie)
{
	struct ndp_msg_welcome w = { .head = { NDP_MSG_WELCOME, sizeof(w) },
				     .version = NDP_DAEMON_VERSION };
	struct iovec iov = { &w, lie == SHORT ? sizeof(w) - 4 : sizeof(w) };
	char room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			      .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &d->page_fd, sizeof(int));
	if (lie == NO_PAGE)
		msg.msg_controllen = 0;
	assert_true(sendmsg(d->client, &msg, MSG_NOSIGNAL) > 0);
}

struct welcome {
	struct daemon *d;
	enum lie lie;
};

/* Welcomes one application; a thread of its own, for attaching waits for it. */
static void *daemon_welcome(void *arg)
{
	struct welcome *w = arg;
	struct daemon *d = w->d;

	take_hello(d);
	if (w->lie == REFUSES) {
		struct ndp_msg_error e = { .head = { NDP_MSG_ERROR, sizeof(e) }, .code = -EDQUOT,
					   .message = "too many models" };

		assert_int_equal(send(d->client, &e, sizeof(e), 0), sizeof(e));
	} else if (w->lie == SILENT_END) {
		close(d->client);
		d->client = -1;
	} else {
		make_page(d, w->lie);
		send_page(d, w->lie);
	}
	return NULL;
}

static struct ndp_attach_options options(const struct daemon *d)
{
	return (struct ndp_attach_options){
		.socket = d->path, .name = "a model", .layers = LAYERS, .experts = EXPERTS,
		.top_k = 2, .hidden = 64, .intermediate = 32, .expert_bytes = 12288, .slots = 16,
	};
}

static struct ndp_attachment *attach(struct daemon *d, struct ndp_device *dev)
{
	struct ndp_attach_options o = options(d);
	struct welcome w = { d, HONEST };
	struct ndp_attachment *a;
	struct ndp_error err;
	pthread_t thread;

	o.device = dev;
	daemon_listen(d);
	assert_int_equal(pthread_create(&thread, NULL, daemon_welcome, &w), 0);
	if (ndp_placement_attach(&a, &o, &err) < 0)
		fail_msg("%s", err.message);
	pthread_join(thread, NULL);
	return a;
}

static void publish(struct daemon *d, uint32_t layer, uint64_t hot0, uint32_t mask)
{
	struct ndp_page_layer *l = (void *)((char *)(d->page + 1) +
					    layer * ndp_page_layer_bytes(EXPERTS));
	uint32_t *masks = (uint32_t *)(ndp_page_layer_hot(l) + WORDS);

	__atomic_add_fetch(&l->seq, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&ndp_page_layer_hot(l)[0], hot0, __ATOMIC_RELAXED);
	__atomic_store_n(&ndp_page_layer_hot(l)[1], hot0 & 63, __ATOMIC_RELAXED);
	for (uint32_t e = 0; e < EXPERTS; e++)
		__atomic_store_n(&masks[e], mask, __ATOMIC_RELAXED);
	__atomic_add_fetch(&l->seq, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&d->page->generation, 1, __ATOMIC_SEQ_CST);
}

/* ---- attaching ------------------------------------------------------------ */

static void what_the_daemon_is_told(void **state)
{
	struct daemon *d = *state;
	struct ndp_attach_state s;
	struct ndp_device *dev;
	struct ndp_attachment *a;

	assert_int_equal(ndp_open(&dev, "soft:dimms=3,size=4M", NULL), 0);
	a = attach(d, dev);
	assert_int_equal(d->nr_fds, 2);
	assert_int_equal(d->hello.head.type, NDP_MSG_HELLO);
	assert_int_equal(d->hello.flags, NDP_HELLO_PLACEMENT);
	assert_string_equal(d->hello.name, "a_model");
	assert_int_equal(d->hello.dimm_mask, 7);
	assert_int_equal(d->hello.layers, LAYERS);
	assert_int_equal(d->hello.experts, EXPERTS);
	assert_int_equal(d->ring->magic, NDP_RING_MAGIC);
	assert_int_equal(d->ring->slots, 16);
	ndp_placement_state(a, &s);
	assert_true(s.attached);
	assert_int_equal(s.attaches, 1);
	ndp_placement_detach(a);
	ndp_close(dev);
}

static void without_a_daemon_it_says_what_to_do(void **state)
{
	struct daemon *d = *state;
	struct ndp_attach_options o = options(d);
	struct ndp_attachment *a;
	struct ndp_error err;

	assert_int_equal(ndp_placement_attach(&a, &o, &err), -ENOENT);
	assert_null(a);
	assert_non_null(strstr(err.message, "start it"));
	assert_non_null(strstr(err.message, d->path));
}

static void wrong_arguments_are_named(void **state)
{
	struct daemon *d = *state;
	static const struct {
		const char *says;
		struct ndp_attach_options o;
	} wrong[] = {
		{ "layers 0", { .experts = 1, .top_k = 1 } },
		{ "experts 9999", { .layers = 1, .experts = 9999, .top_k = 1 } },
		{ "top_k 3", { .layers = 1, .experts = 2, .top_k = 3 } },
		{ "hidden", { .layers = 1, .experts = 2, .top_k = 1 } },
		{ "slots 17", { .layers = 1, .experts = 2, .top_k = 1, .hidden = 1,
				.intermediate = 1, .expert_bytes = 1, .slots = 17 } },
	};
	struct ndp_attachment *a;
	struct ndp_error err;

	(void)d;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(ndp_placement_attach(&a, &wrong[i].o, &err), -EINVAL);
		if (!strstr(err.message, wrong[i].says))
			fail_msg("%s: %s", wrong[i].says, err.message);
	}
}

static void a_daemon_that_lies_is_refused(void **state)
{
	static const struct {
		enum lie lie;
		int r;
	} lies[] = {
		{ REFUSES, -EDQUOT }, { SHRINKABLE, -EPROTO }, { SMALL, -EPROTO },
		{ OTHER_MODEL, -EPROTO }, { NO_PAGE, -EPROTO }, { SHORT, -EPROTO },
		{ SILENT_END, -ECONNRESET },
	};
	struct daemon *d = *state;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct ndp_attach_options o = options(d);
		struct welcome w = { d, lies[i].lie };
		struct ndp_attachment *a;
		struct ndp_error err;
		pthread_t thread;

		daemon_listen(d);
		assert_int_equal(pthread_create(&thread, NULL, daemon_welcome, &w), 0);
		assert_int_equal(ndp_placement_attach(&a, &o, &err), lies[i].r);
		assert_int_equal(err.code, lies[i].r);
		if (lies[i].lie == REFUSES)
			assert_non_null(strstr(err.message, "too many models"));
		pthread_join(thread, NULL);
		daemon_end(d);
	}
}

/* ---- posting --------------------------------------------------------------- */

static void posts_arrive_in_order_until_the_ring_is_full(void **state)
{
	struct daemon *d = *state;
	struct ndp_attachment *a = attach(d, NULL);
	struct ndp_attach_state s;
	uint32_t tokens[EXPERTS];

	for (uint32_t i = 0; i < 20; i++) {
		for (uint32_t e = 0; e < EXPERTS; e++)
			tokens[e] = 100 * i + e;
		assert_int_equal(ndp_placement_post(a, i % LAYERS, tokens), i < 16 ? 0 : -EAGAIN);
	}
	assert_int_equal(ndp_placement_post(a, LAYERS, tokens), -EINVAL);
	assert_int_equal(d->ring->dropped, 4);
	for (uint32_t i = 0; i < 16; i++) {
		const struct ndp_ring_slot *slot =
			(void *)((char *)(d->ring + 1) + i * d->ring->slot_bytes);

		assert_int_equal(slot->seq, i + 1);
		assert_int_equal(slot->layer, i % LAYERS);
		for (uint32_t e = 0; e < EXPERTS; e++)
			assert_int_equal(ndp_ring_slot_tokens(slot)[e], 100 * i + e);
	}
	__atomic_store_n(&d->ring->tail, 3, __ATOMIC_RELEASE);
	for (int i = 0; i < 4; i++)
		assert_int_equal(ndp_placement_post(a, 0, tokens), i < 3 ? 0 : -EAGAIN);
	ndp_placement_state(a, &s);
	assert_int_equal(s.posts, 19);
	assert_int_equal(s.dropped, 5);
	ndp_placement_detach(a);
}

enum { POSTERS = 4, POSTS = 5000 };

static void *post_many(void *arg)
{
	struct ndp_attachment *a = arg;
	uint32_t tokens[EXPERTS];

	for (uint32_t i = 0; i < POSTS; i++) {
		for (uint32_t e = 0; e < EXPERTS; e++)
			tokens[e] = i;
		while (ndp_placement_post(a, i % LAYERS, tokens) == -EAGAIN)
			sched_yield();
	}
	return NULL;
}

/* Every post arrives once, whole. */
static void several_threads_post_at_once(void **state)
{
	struct daemon *d = *state;
	struct ndp_attachment *a = attach(d, NULL);
	pthread_t thread[POSTERS];
	uint32_t *seen = calloc(POSTS, sizeof(*seen));

	for (int i = 0; i < POSTERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, post_many, a), 0);
	for (uint64_t at = 0; at < POSTERS * POSTS; at++) {
		const struct ndp_ring_slot *slot =
			(void *)((char *)(d->ring + 1) + (at & 15) * d->ring->slot_bytes);

		while (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != at + 1)
			sched_yield();
		assert_in_range(ndp_ring_slot_tokens(slot)[0], 0, POSTS - 1);
		seen[ndp_ring_slot_tokens(slot)[0]]++;
		assert_int_equal(slot->layer, ndp_ring_slot_tokens(slot)[0] % LAYERS);
		for (uint32_t e = 1; e < EXPERTS; e++)
			assert_int_equal(ndp_ring_slot_tokens(slot)[e], ndp_ring_slot_tokens(slot)[0]);
		__atomic_store_n(&d->ring->tail, at + 1, __ATOMIC_RELEASE);
	}
	for (int i = 0; i < POSTERS; i++)
		pthread_join(thread[i], NULL);
	for (uint32_t i = 0; i < POSTS; i++)
		assert_int_equal(seen[i], POSTERS);
	free(seen);
	ndp_placement_detach(a);
}

/* ---- reading ------------------------------------------------------------------ */

static void what_is_published_is_read(void **state)
{
	struct daemon *d = *state;
	struct ndp_attachment *a = attach(d, NULL);
	uint64_t generation = ndp_placement_generation(a);
	uint32_t masks[EXPERTS];
	uint64_t hot[WORDS];

	assert_int_equal(ndp_placement_read(a, 1, hot, NULL), -ENODATA);
	assert_int_equal(ndp_placement_read(a, LAYERS, hot, NULL), -EINVAL);
	publish(d, 1, 0xf00d, 5);
	assert_true(ndp_placement_generation(a) != generation);
	assert_int_equal(ndp_placement_read(a, 1, hot, masks), 0);
	assert_int_equal(hot[0], 0xf00d);
	assert_int_equal(hot[1], 0xf00d & 63);
	assert_int_equal(masks[EXPERTS - 1], 5);
	assert_int_equal(ndp_placement_read(a, 0, hot, NULL), -ENODATA);
	ndp_placement_detach(a);
}

struct publisher {
	struct daemon *d;
	bool stop;
};

static void *publish_many(void *arg)
{
	struct publisher *p = arg;

	for (uint32_t i = 1; !__atomic_load_n(&p->stop, __ATOMIC_RELAXED); i++)
		publish(p->d, 2, i, i);
	return NULL;
}

static void a_layer_is_read_whole(void **state)
{
	struct daemon *d = *state;
	struct ndp_attachment *a = attach(d, NULL);
	struct publisher p = { d, false };
	uint32_t masks[EXPERTS], read = 0;
	uint64_t hot[WORDS];
	pthread_t thread;

	publish(d, 2, 1, 1);
	assert_int_equal(pthread_create(&thread, NULL, publish_many, &p), 0);
	for (int i = 0; i < 20000; i++) {
		if (ndp_placement_read(a, 2, hot, masks) < 0)
			continue;
		read++;
		assert_int_equal(hot[1], hot[0] & 63);
		for (uint32_t e = 0; e < EXPERTS; e++)
			assert_int_equal(masks[e], hot[0]);
	}
	__atomic_store_n(&p.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	assert_true(read > 0);
	ndp_placement_detach(a);
}

/* ---- the daemon goes and comes ---------------------------------------------------- */

static void wait_attached(struct ndp_attachment *a, bool attached)
{
	for (int i = 0; i < 1000; i++) {
		struct ndp_attach_state s;

		ndp_placement_state(a, &s);
		if (s.attached == attached)
			return;
		usleep(10000);
	}
	fail_msg("still %sattached after 10 s", attached ? "not " : "");
}

static void a_daemon_that_comes_back_is_attached_to_again(void **state)
{
	struct daemon *d = *state;
	struct ndp_attachment *a = attach(d, NULL);
	struct welcome w = { d, HONEST };
	uint32_t tokens[EXPERTS] = { 0 };
	struct ndp_attach_state s;
	uint64_t before, hot[WORDS];

	publish(d, 0, 7, 1);
	assert_int_equal(ndp_placement_post(a, 0, tokens), 0);
	daemon_end(d);
	wait_attached(a, false);
	/* The application goes on with what there was. */
	assert_int_equal(ndp_placement_read(a, 0, hot, NULL), 0);
	assert_int_equal(hot[0], 7);
	assert_int_equal(ndp_placement_post(a, 0, tokens), 0);
	before = ndp_placement_generation(a);

	daemon_listen(d);
	daemon_welcome(&w);
	wait_attached(a, true);
	assert_true(ndp_placement_generation(a) != before);
	assert_int_equal(d->ring->head, 2);
	assert_int_equal(ndp_placement_read(a, 0, hot, NULL), -ENODATA);
	publish(d, 0, 9, 1);
	assert_int_equal(ndp_placement_read(a, 0, hot, NULL), 0);
	assert_int_equal(hot[0], 9);
	ndp_placement_state(a, &s);
	assert_int_equal(s.attaches, 2);
	ndp_placement_detach(a);
}

static void later_waits_for_a_daemon_without_waiting(void **state)
{
	struct daemon *d = *state;
	struct ndp_attach_options o = options(d);
	struct welcome w = { d, HONEST };
	uint32_t tokens[EXPERTS] = { 0 };
	struct ndp_attachment *a;
	uint64_t hot[WORDS];

	o.later = true;
	assert_int_equal(ndp_placement_attach(&a, &o, NULL), 0);
	assert_int_equal(ndp_placement_post(a, 0, tokens), 0);
	assert_int_equal(ndp_placement_read(a, 0, hot, NULL), -ENODATA);
	daemon_listen(d);
	daemon_welcome(&w);
	wait_attached(a, true);
	ndp_placement_detach(a);
	ndp_placement_detach(NULL);
}

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DIR(what_the_daemon_is_told),
		WITH_DIR(without_a_daemon_it_says_what_to_do),
		WITH_DIR(wrong_arguments_are_named),
		WITH_DIR(a_daemon_that_lies_is_refused),
		WITH_DIR(posts_arrive_in_order_until_the_ring_is_full),
		WITH_DIR(several_threads_post_at_once),
		WITH_DIR(what_is_published_is_read),
		WITH_DIR(a_layer_is_read_whole),
		WITH_DIR(a_daemon_that_comes_back_is_attached_to_again),
		WITH_DIR(later_waits_for_a_daemon_without_waiting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
