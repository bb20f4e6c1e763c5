// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gpu_arena.c - which part of the GPU's weight memory belongs to whom.
 *
 * An expert is a list of blocks, so its memory may be in pieces: as in DIMMs,
 * extents of whole blocks.  What is free is used up to the last block, whatever was
 * freed in which order, and the arithmetic of the budget is exact.
 */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ndpi_gpu_arena_init(struct ndpi_gpu_arena *arena, uint64_t bytes)
{
	arena->room = 16;
	arena->holes = malloc(arena->room * sizeof(*arena->holes));
	if (!arena->holes)
		return -ENOMEM;
	arena->bytes = bytes;
	arena->holes[0] = (struct ndpi_gpu_hole){ 0, bytes };
	arena->nr_holes = bytes != 0;
	return 0;
}

uint64_t ndpi_gpu_arenas_room(const struct ndp_gpu *gpu, uint64_t bytes)
{
	uint64_t n = 0;

	for (uint32_t a = 0; a < gpu->nr_arenas; a++)
		for (uint32_t i = 0; i < gpu->arenas[a].nr_holes; i++)
			n += (gpu->arenas[a].holes[i].end - gpu->arenas[a].holes[i].begin) / bytes;
	return n;
}

/* Giving memory back must not need any: a hole lies between two extents. */
static int reserve_holes(struct ndpi_gpu_arena *arena, uint32_t extents)
{
	uint32_t room = arena->nr_extents + extents + 1;
	struct ndpi_gpu_hole *holes;

	if (room <= arena->room)
		return 0;
	room += room / 2;
	holes = realloc(arena->holes, room * sizeof(*holes));
	if (!holes)
		return -ENOMEM;
	arena->holes = holes;
	arena->room = room;
	return 0;
}

static void take_from_hole(struct ndpi_gpu_arena *arena, uint32_t i, uint64_t bytes)
{
	struct ndpi_gpu_hole *hole = &arena->holes[i];

	hole->begin += bytes;
	arena->nr_extents++;
	if (hole->begin < hole->end)
		return;
	arena->nr_holes--;
	memmove(hole, hole + 1, (arena->nr_holes - i) * sizeof(*hole));
}

static void give_hole(struct ndpi_gpu_arena *arena, uint64_t begin, uint64_t end)
{
	struct ndpi_gpu_hole *h = arena->holes;
	uint32_t i = 0;
	bool left, right;

	while (i < arena->nr_holes && h[i].begin < begin)
		i++;
	left = i && h[i - 1].end == begin;
	right = i < arena->nr_holes && h[i].begin == end;
	arena->nr_extents--;
	if (left && right) {
		h[i - 1].end = h[i].end;
		arena->nr_holes--;
		memmove(&h[i], &h[i + 1], (arena->nr_holes - i) * sizeof(*h));
	} else if (left) {
		h[i - 1].end = end;
	} else if (right) {
		h[i].begin = begin;
	} else {
		memmove(&h[i + 1], &h[i], (arena->nr_holes - i) * sizeof(*h));
		h[i] = (struct ndpi_gpu_hole){ begin, end };
		arena->nr_holes++;
	}
}

/* The first hole that has room for @blocks, or else for at least one. */
static bool find_hole(const struct ndp_gpu *gpu, uint64_t bytes, uint32_t blocks, uint32_t *arena,
		      uint32_t *hole, uint32_t *fit)
{
	*fit = 0;
	for (uint32_t a = 0; a < gpu->nr_arenas; a++)
		for (uint32_t i = 0; i < gpu->arenas[a].nr_holes; i++) {
			const struct ndpi_gpu_hole *h = &gpu->arenas[a].holes[i];
			uint64_t n = (h->end - h->begin) / bytes;

			if (n >= blocks) {
				*arena = a;
				*hole = i;
				*fit = blocks;
				return true;
			}
			if (n && !*fit) {
				*arena = a;
				*hole = i;
				*fit = (uint32_t)n;
			}
		}
	return *fit != 0;
}

int ndpi_gpu_arenas_take(struct ndp_gpu *gpu, uint64_t bytes, uint32_t blocks,
			 struct ndpi_gpu_extent **extents, uint32_t *nr)
{
	uint32_t holes = 0, done = 0, a, i, fit;

	if (ndpi_gpu_arenas_room(gpu, bytes) < blocks)
		return -ENOSPC;
	for (a = 0; a < gpu->nr_arenas; a++)
		holes += gpu->arenas[a].nr_holes;
	for (a = 0; a < gpu->nr_arenas; a++)
		if (reserve_holes(&gpu->arenas[a], gpu->arenas[a].nr_holes))
			return -ENOMEM;
	*extents = calloc(holes, sizeof(**extents));
	if (!*extents)
		return -ENOMEM;
	*nr = 0;
	while (done < blocks && find_hole(gpu, bytes, blocks - done, &a, &i, &fit)) {
		(*extents)[(*nr)++] = (struct ndpi_gpu_extent){
			.offset = gpu->arenas[a].holes[i].begin / 4, .arena = a,
			.first = done, .end = done + fit,
		};
		take_from_hole(&gpu->arenas[a], i, fit * bytes);
		done += fit;
	}
	return 0;
}

void ndpi_gpu_arenas_give(struct ndp_gpu *gpu, uint64_t bytes, struct ndpi_gpu_extent *extents,
			  uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t begin = extents[i].offset * 4;

		give_hole(&gpu->arenas[extents[i].arena], begin,
			  begin + (extents[i].end - extents[i].first) * bytes);
	}
	free(extents);
}
