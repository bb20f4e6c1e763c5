// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * values.c - the numbers of a synthetic model.
 *
 * Matrices hold nearly normal numbers (a sum of four uniform ones, of one hash), with a
 * deviation of 1 / sqrt(inputs) for gate and up, so that inputs near 1 give sums near 1,
 * and more for down, as silu(g) * u is smaller than 1.  The hash is the finaliser of
 * SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
 */
#include "mkmodel.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static float deviation(enum mk_kind kind, uint32_t fan_in)
{
	switch (kind) {
	case MK_GATE:
	case MK_UP:
		return 1 / sqrtf((float)fan_in);
	case MK_DOWN:
		return 2 / sqrtf((float)fan_in);
	case MK_ROUTER:
		/* Logits that differ enough to choose by, not so much that one takes all. */
		return 1.5f / sqrtf((float)fan_in);
	case MK_SHARED_GATE:
		return 1 / sqrtf((float)fan_in);
	default:
		return 0.1f;
	}
}

void mk_row(uint64_t seed, enum mk_kind kind, uint32_t layer, uint32_t expert, uint32_t row,
	    uint32_t first, uint32_t n, uint32_t fan_in, float *dst, size_t step)
{
	const uint64_t where =
		(uint64_t)kind << 56 | (uint64_t)layer << 40 | (uint64_t)expert << 24;
	const uint64_t key = mix(mix(mix(seed) + where) + row);
	/* Of a sum of four numbers from 0 to 65535: mean 131070, deviation 65536 / sqrt(3). */
	const float scale = deviation(kind, fan_in) * 1.7320508f / 65536;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t h = mix(key + 0x9e3779b97f4a7c15u * (uint64_t)(first + i + 1));
		int32_t sum = (int32_t)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) +
					(h >> 48));

		dst[i * step] = kind == MK_ONES ? 1 : (float)(sum - 131070) * scale;
	}
}
