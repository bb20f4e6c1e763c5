// SPDX-License-Identifier: GPL-2.0-only
/*
 * coherence.c - what a DIMM that cannot see CPU caches needs.
 *
 * Such a DIMM (CAP.COHERENT clear) reads what is in its DRAM and writes there:
 * the host writes lines back before it reads, and throws lines out before and
 * after it writes.  One primitive does both, write back and invalidate.  Lines
 * are counted, so that a test can see that it is done.
 */
#include <linux/cache.h>
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#include <asm/cpufeature.h>
#endif

#include "ndp.h"

#ifdef CONFIG_X86
static bool ndp_flush_works(void)
{
	return boot_cpu_has(X86_FEATURE_CLFLUSH);
}

static void ndp_flush(void *addr, size_t bytes)
{
	clflush_cache_range(addr, bytes);	/* with fences around it */
}

static size_t ndp_line_bytes(void)
{
	return boot_cpu_data.x86_clflush_size;
}
#else
static bool ndp_flush_works(void)
{
	return false;
}

static void ndp_flush(void *addr, size_t bytes)
{
}

static size_t ndp_line_bytes(void)
{
	return SMP_CACHE_BYTES;
}
#endif

int ndp_coherence_check(struct ndp_dimm *dimm)
{
	if (dimm->coherent || ndp_flush_works())
		return 0;
	dev_err(&dimm->pdev->dev, "the DIMM does not see CPU caches, and this CPU has no way to flush them that the driver knows: use a coherent DIMM\n");
	return -EOPNOTSUPP;
}

/* Any context; the window must exist.  Nothing to do for a coherent DIMM. */
void ndp_flush_lines(struct ndp_dimm *dimm, void *addr, size_t bytes)
{
	if (dimm->coherent)
		return;
	ndp_flush(addr, bytes);
	atomic64_add(DIV_ROUND_UP(bytes, ndp_line_bytes()),
		     &dimm->lines_flushed);
}

/* All memory of a map that is on DIMMs that need it. */
void ndp_flush_map(struct ndp_map *map)
{
	u32 i;

	for (i = 0; i < map->nr; i++) {
		struct ndp_extent *ext = map->span[i].ext;
		u64 off, bytes;

		if (ext->dimm->coherent || !ndp_hw_enter(ext->dimm))
			continue;
		for (off = 0; off < ext->bytes; off += bytes) {
			bytes = min_t(u64, ext->bytes - off, SZ_1M);
			ndp_flush_lines(ext->dimm, ext->dimm->dram + ext->off +
					off, bytes);
			cond_resched();
		}
		ndp_hw_exit(ext->dimm);
	}
}
