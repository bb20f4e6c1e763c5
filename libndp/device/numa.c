/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * numa.c - host memory near a DIMM.
 *
 * mbind() of libnuma, not its numa_*() calls: those print when they fail.
 */
#include <errno.h>
#include <ndp/device.h>
#include <numaif.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_NODES 1024
#define HUGE_PAGE ((size_t)2 << 20)
#define WORD_BITS (8 * sizeof(unsigned long))

static int prefer_node(void *p, size_t bytes, int node)
{
	unsigned long nodes[MAX_NODES / WORD_BITS] = { 0 };

	nodes[(size_t)node / WORD_BITS] = 1UL << ((size_t)node % WORD_BITS);
	/* The kernel looks at one bit less than it is told (mm/mempolicy.c, get_nodes()). */
	if (!mbind(p, bytes, MPOL_PREFERRED, nodes, MAX_NODES + 1, 0))
		return 0;
	/* A kernel without NUMA has node 0 only. */
	return errno == ENOSYS && !node ? 0 : -errno;
}

/*
 * From 2 MiB on at a multiple of that, and huge pages are asked for: experts are read up to
 * a fifth faster from them, and the kernel gives them to whole ones only.
 */
static void *map_huge(size_t bytes)
{
	size_t before, most = bytes + HUGE_PAGE, page = (size_t)sysconf(_SC_PAGESIZE);
	char *p;

	if (bytes < HUGE_PAGE || most < bytes)
		return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return p;
	before = -(uintptr_t)p % HUGE_PAGE;
	if (before)
		munmap(p, before);
	p += before;
	bytes = (bytes + page - 1) / page * page;
	if (most - before > bytes)
		munmap(p + bytes, most - before - bytes);
	madvise(p, bytes, MADV_HUGEPAGE); /* small ones do as well */
	return p;
}

void *ndp_host_alloc(size_t bytes, int node)
{
	void *p;
	int r;

	if (!bytes || node < -1 || node >= MAX_NODES) {
		errno = EINVAL;
		return NULL;
	}
	p = map_huge(bytes);
	if (p == MAP_FAILED)
		return NULL;
	r = node < 0 ? 0 : prefer_node(p, bytes, node);
	if (r < 0) {
		munmap(p, bytes);
		errno = -r;
		return NULL;
	}
	return p;
}

void ndp_host_free(void *p, size_t bytes)
{
	if (p)
		munmap(p, bytes);
}
