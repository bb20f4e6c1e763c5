// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * predict_score.c - hot, warm and cold experts by rank of their loads, and how
 * well predicted classes met the real ones.
 *
 * Ties are broken at random on both sides: broken by index, experts with equal
 * counts would be "predicted" by their number.
 */
#include <ndp/predict.h>
#include <string.h>

uint32_t ndp_class_hot(uint32_t experts)
{
	const uint32_t hot = (experts + 10) / 20;

	return hot ? hot : !!experts;
}

uint32_t ndp_class_warm(uint32_t experts)
{
	const uint32_t warm = (experts + 2) / 4, hot = ndp_class_hot(experts);

	return warm > experts - hot ? experts - hot : warm;
}

size_t ndp_load_classes_bytes(uint32_t experts)
{
	return experts * sizeof(uint64_t);
}

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators". */
static uint64_t random64(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* Ascending as the floats are. */
static uint32_t ordered(float load)
{
	uint32_t bits;

	load += 0.0f;	/* -0 becomes 0 */
	memcpy(&bits, &load, sizeof(bits));
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static void sift(uint64_t *key, uint32_t at, uint32_t count)
{
	const uint64_t value = key[at];
	uint32_t child;

	for (; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && key[child + 1] < key[child])
			child++;
		if (key[child] >= value)
			break;
		key[at] = key[child];
	}
	key[at] = value;
}

/* Keys are {load, random, expert}; the largest are kept in a heap whose root is the least. */
void ndp_load_classes(const float *loads, uint32_t experts, uint64_t *seed, void *work,
		      uint8_t *classes)
{
	const uint32_t hot = ndp_class_hot(experts), kept = hot + ndp_class_warm(experts);
	uint64_t *heap = work;

	for (uint32_t e = 0; e < experts; e++) {
		const uint64_t key = (uint64_t)ordered(loads[e]) << 32 |
				     (random64(seed) >> 32 & 0xfffff000u) | e;

		classes[e] = NDP_CLASS_COLD;
		if (e < kept) {
			heap[e] = key;
			if (e + 1 == kept)
				for (uint32_t i = kept / 2; i-- > 0;)
					sift(heap, i, kept);
		} else if (key > heap[0]) {
			heap[0] = key;
			sift(heap, 0, kept);
		}
	}
	for (uint32_t left = kept; left > 0; left--) {
		classes[heap[0] & 0xfff] = left > hot ? NDP_CLASS_WARM : NDP_CLASS_HOT;
		heap[0] = heap[left - 1];
		sift(heap, 0, left - 1);
	}
}

void ndp_score_add(struct ndp_score *score, const uint8_t *predicted, const uint8_t *actual,
		   const uint32_t *tokens, uint32_t experts)
{
	uint64_t right = 0, hot = 0, found = 0, total = 0, covered = 0;

	for (uint32_t e = 0; e < experts; e++) {
		right += predicted[e] == actual[e];
		hot += actual[e] == NDP_CLASS_HOT;
		total += tokens[e];
		if (predicted[e] != NDP_CLASS_HOT)
			continue;
		found += actual[e] == NDP_CLASS_HOT;
		covered += tokens[e];
	}
	if (!total)
		return;
	score->accuracy += (double)right / experts;
	score->hot_recall += hot ? (double)found / (double)hot : 0;
	score->coverage += (double)covered / (double)total;
	score->steps++;
}

void ndp_score_chance(struct ndp_score *score, uint32_t experts)
{
	const double hot = (double)ndp_class_hot(experts) / experts;
	const double warm = (double)ndp_class_warm(experts) / experts;
	const double cold = 1 - hot - warm;

	score->accuracy = hot * hot + warm * warm + cold * cold;
	score->hot_recall = hot;
	score->coverage = hot;
	score->steps = 1;
}
