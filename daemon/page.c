// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * page.c - the placement that a client reads.  The memory is ours; the client gets a
 * descriptor that it can map for reading only, and nobody can change its size.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A second descriptor of the same memory, open for reading. */
static int reopen(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

int page_create(struct page *p, uint32_t layers, uint32_t experts, struct ndp_error *err)
{
	const uint32_t layer_bytes = ndp_page_layer_bytes(experts);
	int fd = memfd_create("ndpd-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *m = MAP_FAILED;
	int r = 0;

	*p = (struct page){ .bytes = sizeof(struct ndp_page) + (size_t)layers * layer_bytes,
			    .fd = -1 };
	if (fd >= 0 && ftruncate(fd, (off_t)p->bytes) == 0)
		m = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* Our mapping stays writable; no further one will be. */
	if (m == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW |
				     F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0 ||
	    (p->fd = reopen(fd)) < 0)
		r = fail(err, -errno, "no shared memory for %zu bytes of placement: %s", p->bytes,
			 strerror(errno));
	if (fd >= 0)
		close(fd);
	if (r < 0) {
		if (m != MAP_FAILED)
			munmap(m, p->bytes);
		return r;
	}
	p->shared = m;
	p->shared->layers = layers;
	p->shared->experts = experts;
	p->shared->layer_bytes = layer_bytes;
	p->shared->version = NDP_DAEMON_VERSION;
	p->shared->magic = NDP_PAGE_MAGIC;
	return 0;
}

void page_close(struct page *p)
{
	if (!p->shared)
		return;
	munmap(p->shared, p->bytes);
	close(p->fd);
	p->shared = NULL;
}

void page_publish(struct page *p, uint32_t layer, const uint8_t *hot, const uint32_t *masks)
{
	const uint32_t experts = p->shared->experts, words = ndp_page_hot_words(experts);
	struct ndp_page_layer *l = (void *)((char *)(p->shared + 1) +
					    (size_t)layer * p->shared->layer_bytes);
	uint64_t *shared_hot = ndp_page_layer_hot(l);
	uint32_t *shared_masks = (uint32_t *)(shared_hot + words);
	const uint64_t seq = l->seq;

	/* Who sees any of the new words sees that the layer is being changed. */
	__atomic_store_n(&l->seq, seq + 1, __ATOMIC_RELAXED);
	for (uint32_t w = 0; w < words; w++) {
		uint64_t bits = 0;

		for (uint32_t e = 64 * w; e < experts && e < 64 * w + 64; e++)
			bits |= (uint64_t)!!hot[e] << e % 64;
		__atomic_store_n(&shared_hot[w], bits, __ATOMIC_RELEASE);
	}
	for (uint32_t e = 0; e < experts; e++)
		__atomic_store_n(&shared_masks[e], masks[e], __ATOMIC_RELEASE);
	__atomic_store_n(&l->seq, seq + 2, __ATOMIC_RELEASE);
	__atomic_add_fetch(&p->shared->generation, 1, __ATOMIC_RELEASE);
}

void page_heartbeat(struct page *p, uint64_t now_ns)
{
	__atomic_store_n(&p->shared->heartbeat_ns, now_ns, __ATOMIC_RELAXED);
}

/*
 * Read, not mapped: a mapping of a memfd with holes would make memory of ours for them,
 * and one of huge pages may have none left.
 */
int page_read_old(int fd, uint32_t layers, uint32_t experts, uint8_t *on_gpu)
{
	const size_t layer_bytes = ndp_page_layer_bytes(experts);
	uint64_t hot[(NDP_MAX_EXPERTS + 63) / 64];
	const size_t hot_bytes = ndp_page_hot_words(experts) * sizeof(hot[0]);
	const int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EINVAL;
	for (uint32_t l = 0; l < layers; l++) {
		const size_t at = sizeof(struct ndp_page) + l * layer_bytes +
				  sizeof(struct ndp_page_layer);

		if (pread(fd, hot, hot_bytes, (off_t)at) != (ssize_t)hot_bytes)
			return -EINVAL;
		for (uint32_t e = 0; e < experts; e++)
			on_gpu[(size_t)l * experts + e] = hot[e / 64] >> e % 64 & 1;
	}
	return 0;
}
