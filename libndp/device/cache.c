/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cache.c - cache maintenance for DIMMs that do not see CPU caches.
 *
 * A DIMM never masters a bus, so it cannot snoop: what the CPU wrote must leave
 * the caches before a command reads it, and lines must be dropped before the
 * CPU reads what a command wrote.  The instruction is chosen at run time:
 * CLWB (keeps the line), CLFLUSHOPT, CLFLUSH (every x86-64 has it).  Intel SDM
 * vol. 2: all three act on lines of 64 bytes; the weakly ordered two need
 * SFENCE before the store that rings a doorbell, and MFENCE before loads.
 */
#include "internal.h"

#define LINE 64

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

enum method { UNKNOWN, CLFLUSH, CLFLUSHOPT, CLWB };

static enum method best(void)
{
	static enum method known; /* a constant of the machine, found once */
	enum method m = __atomic_load_n(&known, __ATOMIC_RELAXED);
	unsigned int a, b, c, d;

	if (m != UNKNOWN)
		return m;
	m = CLFLUSH;
	if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
		if (b & bit_CLFLUSHOPT)
			m = CLFLUSHOPT;
		if (b & bit_CLWB)
			m = CLWB;
	}
	__atomic_store_n(&known, m, __ATOMIC_RELAXED);
	return m;
}

#define FOR_EACH_LINE(p, bytes, instruction)						\
	for (uintptr_t a_ = (uintptr_t)(p) & ~(uintptr_t)(LINE - 1);			\
	     a_ < (uintptr_t)(p) + (bytes); a_ += LINE)					\
		instruction((void *)a_)

__attribute__((target("clwb")))
static void write_back_clwb(const void *p, size_t bytes)
{
	FOR_EACH_LINE(p, bytes, _mm_clwb);
}

__attribute__((target("clflushopt")))
static void flush_opt(const void *p, size_t bytes)
{
	FOR_EACH_LINE(p, bytes, _mm_clflushopt);
}

static void flush(const void *p, size_t bytes)
{
	FOR_EACH_LINE(p, bytes, _mm_clflush);
}

void ndpi_cache_write_back(const void *p, size_t bytes)
{
	switch (best()) {
	case CLWB:
		write_back_clwb(p, bytes);
		break;
	case CLFLUSHOPT:
		flush_opt(p, bytes);
		break;
	default:
		flush(p, bytes);
	}
	_mm_sfence();
}

void ndpi_cache_invalidate(const void *p, size_t bytes)
{
	_mm_mfence();
	if (best() == CLFLUSH)
		flush(p, bytes);
	else
		flush_opt(p, bytes); /* CLWB would leave the stale line valid */
	_mm_mfence();
}

#else
#error "cache.c: write back and invalidate a cache line on this architecture"
#endif
