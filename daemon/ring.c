// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ring.c - the loads that a client posts.  The memory is the client's and it may
 * write anything there at any time: everything is read once into memory of our own,
 * then checked; what was checked at the beginning is not read again.  ndp/daemon.h
 * has the protocol.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <linux/magic.h>

enum { MIN_SLOTS = 16, MAX_SLOTS = 65536 };

#define STUCK_NS 1000000000ull
/* More tokens of a layer in one step than any machine routes. */
#define MAX_TOKENS (1u << 24)

static uint32_t read32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static int check(struct ring *r, uint32_t layers, uint32_t experts, size_t bytes,
		 struct ndp_error *err)
{
	const struct ndp_ring *s = r->shared;

	if (read32(&s->magic) != NDP_RING_MAGIC || read32(&s->version) != NDP_DAEMON_VERSION)
		return fail(err, -EPROTO, "the ring is none of version %d", NDP_DAEMON_VERSION);
	r->layers = read32(&s->layers);
	r->experts = read32(&s->experts);
	r->slots = read32(&s->slots);
	r->slot_bytes = read32(&s->slot_bytes);
	if (r->layers != layers || r->experts != experts)
		return fail(err, -EINVAL, "the ring is for %u layers of %u experts, the model has "
			    "%u of %u", r->layers, r->experts, layers, experts);
	if (r->slots < MIN_SLOTS || r->slots > MAX_SLOTS || r->slots & (r->slots - 1))
		return fail(err, -EINVAL, "the ring has %u slots; a power of two from %d to %d is "
			    "wanted", r->slots, MIN_SLOTS, MAX_SLOTS);
	if (r->slot_bytes != ndp_ring_slot_bytes(experts) ||
	    sizeof(*s) + (size_t)r->slots * r->slot_bytes != bytes)
		return fail(err, -EINVAL, "the ring has %zu bytes, %u slots of %u bytes; %u slots "
			    "of %u are wanted", bytes, r->slots, r->slot_bytes, r->slots,
			    ndp_ring_slot_bytes(experts));
	return 0;
}

int ring_open(struct ring *r, int fd, uint32_t layers, uint32_t experts, struct ndp_error *err)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	const int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;
	void *p;
	int ret;

	*r = (struct ring){ 0 };
	if (seals < 0 || (seals & wanted) != wanted)
		return fail(err, -EPERM, "the ring is no memfd that is sealed against shrinking, "
			    "growing and further sealing");
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return fail(err, -EPERM, "the ring is sealed against writing");
	/* Of huge pages one may be missing when it is touched, and that is a SIGBUS. */
	if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
		return fail(err, -EPERM, "the ring is a memfd of huge pages; an ordinary one is "
			    "wanted");
	if (fstat(fd, &st) < 0)
		return fail(err, -errno, "the ring cannot be asked for its size: %s",
			    strerror(errno));
	if (st.st_size < (off_t)sizeof(struct ndp_ring) ||
	    st.st_size > (off_t)(sizeof(struct ndp_ring) +
				 (uint64_t)MAX_SLOTS * ndp_ring_slot_bytes(experts)))
		return fail(err, -EINVAL, "the ring has %lld bytes", (long long)st.st_size);
	p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return fail(err, -errno, "the ring cannot be mapped: %s", strerror(errno));
	r->shared = p;
	r->bytes = (size_t)st.st_size;
	ret = check(r, layers, experts, r->bytes, err);
	if (ret < 0) {
		ring_close(r);
		return ret;
	}
	/* What was posted while nobody read is old by now. */
	r->at = __atomic_load_n(&r->shared->head, __ATOMIC_ACQUIRE);
	__atomic_store_n(&r->shared->tail, r->at, __ATOMIC_RELEASE);
	return 0;
}

void ring_close(struct ring *r)
{
	if (r->shared)
		munmap(r->shared, r->bytes);
	r->shared = NULL;
}

static struct ndp_ring_slot *slot_at(const struct ring *r)
{
	return (struct ndp_ring_slot *)((char *)(r->shared + 1) +
					(size_t)(r->at & (r->slots - 1)) * r->slot_bytes);
}

static void move_on(struct ring *r)
{
	r->at++;
	r->stuck_since_ns = 0;
	__atomic_store_n(&r->shared->tail, r->at, __ATOMIC_RELEASE);
}

/* Is the next slot half written, and has been for long? */
static bool is_stuck(struct ring *r, uint64_t now_ns)
{
	const uint64_t head = __atomic_load_n(&r->shared->head, __ATOMIC_RELAXED);

	if (head == r->at || head - r->at > r->slots) {
		r->stuck_since_ns = 0; /* nothing there, or nonsense */
		return false;
	}
	if (!r->stuck_since_ns)
		r->stuck_since_ns = now_ns;
	return now_ns - r->stuck_since_ns > STUCK_NS;
}

int ring_next(struct ring *r, uint64_t now_ns, uint32_t *layer, uint32_t *tokens)
{
	const struct ndp_ring_slot *slot = slot_at(r);
	const uint32_t *posted = ndp_ring_slot_tokens(slot);
	uint64_t total = 0;

	if (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != r->at + 1) {
		if (!is_stuck(r, now_ns))
			return 0;
		r->skipped++;
		move_on(r);
		return -EINVAL;
	}
	*layer = read32(&slot->layer);
	for (uint32_t e = 0; e < r->experts; e++) {
		tokens[e] = read32(&posted[e]);
		total += tokens[e];
	}
	move_on(r);
	if (*layer < r->layers && total <= MAX_TOKENS)
		return 1;
	r->refused++;
	return -EINVAL;
}

uint64_t ring_dropped(const struct ring *r)
{
	return r->shared ? __atomic_load_n(&r->shared->dropped, __ATOMIC_RELAXED) : 0;
}
