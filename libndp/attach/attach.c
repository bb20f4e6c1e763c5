// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * attach.c - what an application's threads do with ndpd: post loads into a ring,
 * read a page.  Neither makes a system call, takes a lock, or waits.
 *
 * The memory orders pair with those that ndp/daemon.h prescribes for the other side.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEFAULT_SLOTS = 1024, MIN_SLOTS = 16, MAX_SLOTS = 65536 };
enum { MAX_LAYERS = 1024, MAX_EXPERTS = 4096 };

/* ---- beginning ---------------------------------------------------------- */

static int check(const struct ndp_attach_options *o, struct ndp_error *err)
{
	const uint32_t slots = o->slots ? o->slots : DEFAULT_SLOTS;

	if (o->layers < 1 || o->layers > MAX_LAYERS)
		return ndpi_fail(err, -EINVAL, "layers %u: wanted 1 to %u", o->layers, MAX_LAYERS);
	if (o->experts < 1 || o->experts > MAX_EXPERTS)
		return ndpi_fail(err, -EINVAL, "experts %u: wanted 1 to %u", o->experts,
				 MAX_EXPERTS);
	if (o->top_k < 1 || o->top_k > o->experts)
		return ndpi_fail(err, -EINVAL, "top_k %u: wanted 1 to %u, the number of experts",
				 o->top_k, o->experts);
	if (!o->hidden || !o->intermediate || !o->expert_bytes)
		return ndpi_fail(err, -EINVAL,
				 "hidden, intermediate and expert_bytes are wanted, not 0");
	if (slots < MIN_SLOTS || slots > MAX_SLOTS || slots & (slots - 1))
		return ndpi_fail(err, -EINVAL, "slots %u: wanted a power of two from %u to %u",
				 slots, MIN_SLOTS, MAX_SLOTS);
	return 0;
}

static int make_address(struct ndp_attachment *a, const char *path, struct ndp_error *err)
{
	if (!path)
		path = secure_getenv("NDP_DAEMON_SOCKET");
	if (!path || !*path)
		path = NDP_DAEMON_SOCKET;
	a->address.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(a->address.sun_path))
		return ndpi_fail(err, -ENAMETOOLONG,
				 "the socket's path has %zu bytes, at most %zu are possible",
				 strlen(path), sizeof(a->address.sun_path) - 1);
	strcpy(a->address.sun_path, path);
	return 0;
}

static int make_hello(struct ndp_attachment *a, const struct ndp_attach_options *o,
		      struct ndp_error *err)
{
	struct ndp_msg_hello *h = &a->hello;
	struct ndp_device_info info;
	int r;

	*h = (struct ndp_msg_hello){
		.head = { NDP_MSG_HELLO, sizeof(*h) },
		.version = NDP_DAEMON_VERSION,
		.layers = o->layers,
		.experts = o->experts,
		.top_k = o->top_k,
		.hidden = o->hidden,
		.intermediate = o->intermediate,
		.expert_bytes = o->expert_bytes,
		.gpu_bytes = o->gpu_bytes,
	};
	for (size_t i = 0; o->name && o->name[i] && i < sizeof(h->name) - 1; i++)
		h->name[i] = o->name[i] > ' ' && o->name[i] < 0x7f ? o->name[i] : '_';
	if (!h->name[0])
		strcpy(h->name, "unnamed");
	if (!o->device)
		return 0;
	r = ndp_device_info(o->device, &info);
	if (r < 0)
		return ndpi_fail(err, r, "the device cannot be asked: %s", strerror(-r));
	h->dimm_mask = info.dimm_mask;
	if (info.name[0] == '/')
		memcpy(h->node, info.name, sizeof(h->node));
	a->placement_fd = ndp_placement_fd(o->device);
	if (a->placement_fd < 0)
		return ndpi_fail(err, a->placement_fd, "no placement descriptor of %s: %s",
				 info.name, strerror(-a->placement_fd));
	h->flags |= NDP_HELLO_PLACEMENT;
	return 0;
}

/* A memfd of fixed size, mapped. */
static int make_ring(struct ndp_attachment *a, uint32_t slots, struct ndp_error *err)
{
	const uint32_t slot_bytes = ndp_ring_slot_bytes(a->hello.experts);
	void *p;

	a->ring_bytes = sizeof(struct ndp_ring) + (size_t)slots * slot_bytes;
	a->ring_fd = memfd_create("ndp-loads", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (a->ring_fd < 0 || ftruncate(a->ring_fd, (off_t)a->ring_bytes) < 0 ||
	    fcntl(a->ring_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return ndpi_fail(err, -errno, "no shared memory for %zu bytes of loads: %s",
				 a->ring_bytes, strerror(errno));
	p = mmap(NULL, a->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		 a->ring_fd, 0);
	if (p == MAP_FAILED)
		return ndpi_fail(err, -errno, "%zu bytes of loads cannot be mapped: %s",
				 a->ring_bytes, strerror(errno));
	a->ring = p;
	a->ring->magic = NDP_RING_MAGIC;
	a->ring->version = NDP_DAEMON_VERSION;
	a->ring->layers = a->hello.layers;
	a->ring->experts = a->hello.experts;
	a->ring->slots = a->slots = slots;
	a->ring->slot_bytes = a->slot_bytes = slot_bytes;
	return 0;
}

static int make_page(struct ndp_attachment *a, struct ndp_error *err)
{
	void *p;

	a->page_bytes = sizeof(struct ndp_page) +
			(size_t)a->hello.layers * ndp_page_layer_bytes(a->hello.experts);
	p = mmap(NULL, a->page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return ndpi_fail(err, -errno, "%zu bytes cannot be mapped: %s", a->page_bytes,
				 strerror(errno));
	a->page = p;
	return 0;
}

static void attachment_free(struct ndp_attachment *a)
{
	if (a->socket >= 0)
		close(a->socket);
	if (a->wake >= 0)
		close(a->wake);
	if (a->placement_fd >= 0)
		close(a->placement_fd);
	if (a->ring_fd >= 0)
		close(a->ring_fd);
	if (a->page_fd >= 0)
		close(a->page_fd);
	if (a->ring)
		munmap(a->ring, a->ring_bytes);
	if (a->page)
		munmap((void *)a->page, a->page_bytes);
	pthread_mutex_destroy(&a->lock);
	free(a->followed);
	free(a);
}

int ndp_placement_attach(struct ndp_attachment **out, const struct ndp_attach_options *o,
			 struct ndp_error *err)
{
	struct ndp_attachment *a;
	int r;

	*out = NULL;
	r = check(o, err);
	if (r < 0)
		return r;
	a = calloc(1, sizeof(*a));
	if (!a)
		return ndpi_fail(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&a->lock, NULL);
	a->ring_fd = a->placement_fd = a->page_fd = a->socket = -1;
	a->later = o->later;
	a->followed = calloc(o->layers, sizeof(*a->followed));
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = a->wake < 0 ? ndpi_fail(err, -errno, "no eventfd: %s", strerror(errno)) : 0;
	if (r == 0 && !a->followed)
		r = ndpi_fail(err, -ENOMEM, "out of memory");
	if (r == 0)
		r = make_address(a, o->socket, err);
	if (r == 0)
		r = make_hello(a, o, err);
	if (r == 0)
		r = make_ring(a, o->slots ? o->slots : DEFAULT_SLOTS, err);
	if (r == 0)
		r = make_page(a, err);
	if (r == 0) {
		r = ndpi_attach_connect(a, err);
		if (r < 0 && a->later)
			r = 0;
	}
	if (r == 0) {
		r = -pthread_create(&a->thread, NULL, ndpi_attach_keep, a);
		if (r < 0)
			ndpi_fail(err, r, "no thread for the connection: %s", strerror(-r));
	}
	if (r < 0) {
		attachment_free(a);
		return r;
	}
	*out = a;
	return 0;
}

void ndp_placement_detach(struct ndp_attachment *a)
{
	const uint64_t one = 1;

	if (!a)
		return;
	(void)!write(a->wake, &one, sizeof(one));
	pthread_join(a->thread, NULL);
	attachment_free(a);
}

/* ---- posting and reading --------------------------------------------------- */

int ndp_placement_post(struct ndp_attachment *a, uint32_t layer, const uint32_t *tokens)
{
	struct ndp_ring *ring = a->ring;
	uint64_t at = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
	struct ndp_ring_slot *slot;

	if (layer >= a->hello.layers)
		return -EINVAL;
	do {
		/* Acquire: ndpd has read the slot before it moved on. */
		if (at - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) >= a->slots) {
			__atomic_add_fetch(&ring->dropped, 1, __ATOMIC_RELAXED);
			return -EAGAIN;
		}
	} while (!__atomic_compare_exchange_n(&ring->head, &at, at + 1, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	slot = ndpi_ring_slot(a, at);
	slot->layer = layer;
	memcpy(ndp_ring_slot_tokens(slot), tokens, a->hello.experts * sizeof(*tokens));
	__atomic_store_n(&slot->seq, at + 1, __ATOMIC_RELEASE);
	return 0;
}

uint64_t ndp_placement_generation(const struct ndp_attachment *a)
{
	/* A page that is new counts from the beginning; the epoch is even by then. */
	return (__atomic_load_n(&a->epoch, __ATOMIC_ACQUIRE) << 40) +
	       __atomic_load_n(&a->page->generation, __ATOMIC_ACQUIRE);
}

static const struct ndp_page_layer *page_layer(const struct ndp_attachment *a, uint32_t layer)
{
	return (const void *)((const char *)(a->page + 1) +
			      (size_t)layer * ndp_page_layer_bytes(a->hello.experts));
}

/*
 * Copies words that another process may be writing.  Acquire: what the caller looks at
 * afterwards is not older.
 */
static void copy_words(void *dst, const void *src, size_t bytes)
{
	uint32_t *d = dst;
	const uint32_t *s = src;

	for (size_t i = 0; i < bytes / sizeof(*d); i++)
		d[i] = __atomic_load_n(&s[i], __ATOMIC_ACQUIRE);
}

int ndp_placement_read(const struct ndp_attachment *a, uint32_t layer, uint64_t *hot,
		       uint32_t *dimm_masks)
{
	enum { TRIES = 1000 };
	const uint32_t words = ndp_page_hot_words(a->hello.experts);
	const struct ndp_page_layer *l;

	if (layer >= a->hello.layers)
		return -EINVAL;
	l = page_layer(a, layer);
	for (int i = 0; i < TRIES; i++) {
		const uint64_t epoch = __atomic_load_n(&a->epoch, __ATOMIC_ACQUIRE);
		const uint64_t seq = __atomic_load_n(&l->seq, __ATOMIC_ACQUIRE);

		if (seq == 0 && !(epoch & 1))
			return -ENODATA;
		copy_words(hot, ndp_page_layer_hot(l), words * sizeof(*hot));
		if (dimm_masks)
			copy_words(dimm_masks, ndp_page_layer_hot(l) + words,
				   a->hello.experts * sizeof(*dimm_masks));
		if (!(seq & 1) && !(epoch & 1) &&
		    __atomic_load_n(&l->seq, __ATOMIC_RELAXED) == seq &&
		    __atomic_load_n(&a->epoch, __ATOMIC_RELAXED) == epoch)
			return 0;
	}
	return -ENODATA; /* ndpd died while it wrote: a new page comes with the next one */
}

void ndp_placement_state(struct ndp_attachment *a, struct ndp_attach_state *state)
{
	pthread_mutex_lock(&a->lock);
	*state = a->state;
	pthread_mutex_unlock(&a->lock);
	state->posts = __atomic_load_n(&a->ring->head, __ATOMIC_RELAXED);
	state->dropped = __atomic_load_n(&a->ring->dropped, __ATOMIC_RELAXED);
}
