// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * race.c - the second of the two tests that guard the idea of the whole: page faults, migrations,
 * commands, creations and destructions at the same time; every result is checked, and at the end
 * all memory is there and zero.
 *
 * $NDP_RACE_SECONDS says how long: a minute by default, half of that in a guest that is slow.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kt.h"
#include "kt_harness.h"
#include "kt_ref.h"
#include "kt_ring.h"

#define H		64
#define NR_EXPERTS	6
#define NR_X		16
#define MAX_BLOCKS	8
#define Y_OFF		KT_PAGE
#define X_BYTES		(2 * H)
#define Y_BYTES		(4 * H)
#define WAIT_MS		30000

/* An expert that lives through the whole race, with what must come out of it and what it holds. */
struct subject {
	struct kt_ffn e;
	struct kt_bo w;
	uint64_t id;
	unsigned int blocks;
	uint8_t *packed;
	double ref[NR_X][H];
	double bound[NR_X][H];
};

struct race {
	int fd;
	int placement;
	uint32_t mask;
	struct subject subject[NR_EXPERTS];
	uint16_t x[NR_X][H];
	atomic_bool stop;
	atomic_uint commands;
	atomic_uint retries;
	atomic_uint moves;
	atomic_uint busy;
	atomic_uint looks;
	atomic_uint lives;
	/* The first thing that went wrong. */
	atomic_int wrong;
	char what[200];
};

static void went_wrong(struct race *race, const char *what, int r, long detail)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&race->wrong, &none, r ? r : 1))
		snprintf(race->what, sizeof(race->what), "%s: %d (%#lx)", what, r, detail);
	race->stop = true;
}

static struct kt_place random_place(uint32_t mask, unsigned int blocks, uint64_t *state)
{
	uint64_t r = kt_random(state);
	uint32_t on = 0;

	for (unsigned int i = 0; i <= (r & 3); i++)
		on |= 1U << kt_nth_dimm(mask, (r >> (8 + 8 * i)) % kt_count(mask));
	return kt_spread(on, blocks);
}

/* Moves subjects, by its own way of three, wherever the random numbers say. */
struct worker {
	struct race *race;
	int nr;
};

static void *mover(void *arg)
{
	const struct worker *w = arg;
	struct race *race = w->race;
	uint64_t state = 1000 + w->nr;
	struct kt_ring ring;

	if (kt_ring_init(&ring, 8, KT_RING_FLAGS)) {
		went_wrong(race, "ring of the mover", 0, 0);
		return NULL;
	}
	while (!race->stop) {
		struct subject *s = &race->subject[kt_random(&state) % NR_EXPERTS];
		struct kt_place p = random_place(race->mask, s->blocks, &state);
		struct moendp_placement_migrate pm = {
			.size = sizeof(pm), .id = s->id, .ranges = (uintptr_t)p.r,
			.nr_ranges = p.nr,
		};
		struct moendp_cmd_migrate m = { .nr_ranges = p.nr };
		struct kt_cqe cqe;
		int r;

		memcpy(m.ranges, p.r, p.nr * sizeof(p.r[0]));
		switch (w->nr % 3) {
		case 0:
			r = kt_migrate(&s->w, &p);
			break;
		case 1:
			r = kt_ioctl(race->placement, MOENDP_IOC_PLACEMENT_MIGRATE, &pm);
			break;
		default:
			m.id = s->id;
			r = kt_ring_migrate(&ring, race->placement, &m, 0);
			if (!r)
				r = kt_ring_submit(&ring) == 1 ? 0 : -EIO;
			if (!r)
				r = kt_ring_wait(&ring, &cqe, WAIT_MS * kt_slow()) ?: cqe.res;
			break;
		}
		if (r == 0)
			race->moves++;
		else if (r == -EBUSY)
			race->busy++;
		else
			went_wrong(race, "migration", r, kt_place_mask(&p));
	}
	kt_ring_exit(&ring);
	return NULL;
}

/* Computes with subjects; each result is compared with the reference. */
static void *computer(void *arg)
{
	const struct worker *w = arg;
	struct race *race = w->race;
	uint64_t state = 2000 + w->nr;
	uint32_t believed = race->mask;
	struct kt_ring ring;
	struct kt_bo io;
	int r;

	r = kt_io(race->fd, race->mask, 2 * KT_PAGE, &io);
	if (!r)
		r = kt_map(&io, PROT_READ | PROT_WRITE);
	if (!r)
		r = kt_ring_init(&ring, 8, KT_RING_FLAGS);
	if (r) {
		went_wrong(race, "IO object", r, 0);
		return NULL;
	}
	while (!race->stop) {
		uint64_t random = kt_random(&state);
		struct subject *s = &race->subject[random % NR_EXPERTS];
		unsigned int v = (random >> 8) % NR_X;
		struct moendp_cmd c = {
			.weights = s->w.handle, .x_bo = io.handle, .y_bo = io.handle,
			.x_mask = believed, .count = s->blocks, .tokens = 1, .y_off = Y_OFF,
			.ldx = X_BYTES, .ldy = Y_BYTES,
		};
		double y[H];
		uint32_t mask;

		kt_io_fill(&io, race->mask, 0, KT_NAN_BYTE, X_BYTES);
		kt_io_fill(&io, race->mask, Y_OFF, KT_NAN_BYTE, Y_BYTES);
		kt_io_write(&io, believed, 0, race->x[v], X_BYTES);
		for (;;) {
			struct kt_cqe cqe = { 0 };

			if (w->nr & 1) {
				r = kt_ring_one(&ring, race->fd, MOENDP_CMD_FFN, &c, &cqe);
				mask = cqe.dimm_mask;
			} else {
				r = kt_submit(race->fd, MOENDP_CMD_FFN, &c, &mask, NULL);
			}
			if (r != -ESTALE)
				break;
			race->retries++;
			if (!(mask & ~c.x_mask)) {
				went_wrong(race, "ESTALE where x was", r, mask);
				break;
			}
			kt_io_write(&io, mask & ~c.x_mask, 0, race->x[v], X_BYTES);
			c.x_mask |= mask;
		}
		if (r) {
			went_wrong(race, "command", r, mask);
			break;
		}
		kt_io_sum(&io, mask, Y_OFF, H, y);
		r = kt_differs(y, s->ref[v], s->bound[v], H);
		if (r >= 0)
			went_wrong(race, "wrong result at output", r, mask);
		if (!kt_io_is(&io, race->mask & ~mask, Y_OFF, KT_NAN_BYTE, Y_BYTES))
			went_wrong(race, "y outside of the mask", 0, mask);
		believed = random & (1 << 20) ? race->mask : mask;
		race->commands++;
	}
	kt_ring_exit(&ring);
	r = kt_destroy(&io);
	if (r)
		went_wrong(race, "destroying the IO object", r, 0);
	return NULL;
}

/* Faults pages of the weights in and looks at them, wherever they are just now. */
static void *looker(void *arg)
{
	const struct worker *w = arg;
	struct race *race = w->race;
	uint64_t state = 3000 + w->nr;

	while (!race->stop) {
		uint64_t random = kt_random(&state);
		struct subject *s = &race->subject[random % NR_EXPERTS];
		struct kt_bo mine = s->w;
		int r = kt_map(&mine, PROT_READ);

		if (r) {
			went_wrong(race, "mapping of weights", r, 0);
			break;
		}
		for (int i = 0; i < 3; i++)
			if (memcmp(mine.map, s->packed, mine.bytes))
				went_wrong(race, "weights changed", 0, s - race->subject);
		if (kt_unmap(&mine))
			went_wrong(race, "munmap", 0, 0);
		race->looks++;
	}
	return NULL;
}

/* Objects that come and go: zeroed, filled, sealed, moved, computed with, destroyed. */
static void *creator(void *arg)
{
	const struct worker *w = arg;
	struct race *race = w->race;
	uint64_t state = 4000 + w->nr;

	while (!race->stop) {
		struct subject *s = &race->subject[kt_random(&state) % NR_EXPERTS];
		struct kt_place p = random_place(race->mask, s->blocks, &state);
		struct kt_place to = random_place(race->mask, s->blocks, &state);
		struct kt_bo bo;
		int r = kt_expert(race->fd, H, H, 32 * s->blocks, &p, &bo);

		if (r) {
			went_wrong(race, "creation", r, 0);
			break;
		}
		r = kt_map(&bo, PROT_READ | PROT_WRITE);
		if (!r)
			for (uint64_t i = 0; i < bo.bytes; i += 8)
				if (*(uint64_t *)(bo.map + i))
					went_wrong(race, "new memory is not zero", 0, i);
		if (!r) {
			memcpy(bo.map, s->packed, bo.bytes);
			r = kt_unmap(&bo);
		}
		if (!r)
			r = kt_seal(&bo);
		if (!r)
			r = kt_migrate(&bo, &to);
		if (!r)
			r = kt_map(&bo, PROT_READ);
		if (r)
			went_wrong(race, "filling, sealing, moving", r, 0);
		else if (memcmp(bo.map, s->packed, bo.bytes))
			went_wrong(race, "weights of a new object changed", 0, 0);
		r = kt_destroy(&bo);
		if (r)
			went_wrong(race, "destruction", r, 0);
		race->lives++;
	}
	return NULL;
}

static int make_subjects(struct race *race)
{
	uint64_t state = 9;
	int r;

	for (int v = 0; v < NR_X; v++)
		kt_x_random(race->x[v], H, 500 + v);
	for (int i = 0; i < NR_EXPERTS; i++) {
		struct subject *s = &race->subject[i];
		struct moendp_bo_info info;
		struct kt_place p;

		s->blocks = 1 + i % MAX_BLOCKS;
		p = random_place(race->mask, s->blocks, &state);
		r = kt_ffn_random(&s->e, H, H, 32 * s->blocks, 600 + i);
		if (!r)
			r = kt_sealed_ffn(race->fd, &s->e, &p, &s->w);
		if (!r)
			r = kt_info(&s->w, &info);
		if (r)
			return r;
		s->id = info.id;
		s->packed = malloc(s->w.bytes);
		if (!s->packed)
			return -ENOMEM;
		kt_ffn_pack(&s->e, s->packed);
		for (int v = 0; v < NR_X; v++)
			kt_ffn_ref(&s->e, 0, s->blocks, race->x[v], s->ref[v], s->bound[v]);
	}
	return 0;
}

/* Takes all memory of a DIMM and sees that all of it is zero; then gives it back. */
static int all_of_it_is_zero(int fd, unsigned int dimm)
{
	struct kt_bo bo[64];
	unsigned int nr = 0;
	struct moendp_query q;
	int r = kt_query(fd, dimm, &q);

	while (!r && q.largest_free_bytes && nr < ARRAY_SIZE(bo)) {
		r = kt_io(fd, 1U << dimm, q.largest_free_bytes, &bo[nr]);
		if (r)
			break;
		nr++;
		r = kt_map(&bo[nr - 1], PROT_READ);
		if (r)
			break;
		for (uint64_t i = 0; i < bo[nr - 1].bytes; i += KT_PAGE) {
			const uint8_t *page = bo[nr - 1].map + i;

			if (page[0] || memcmp(page, page + 1, KT_PAGE - 1)) {
				fprintf(stderr, "# DIMM %u: %#llx of piece %u is not zero\n",
					dimm, (unsigned long long)i, nr - 1);
				r = -EILSEQ;
				break;
			}
		}
		if (!r)
			r = kt_query(fd, dimm, &q);
	}
	if (!r && q.free_bytes)
		r = -ENOSPC;
	while (nr)
		r = kt_destroy(&bo[--nr]) ?: r;
	return r;
}

#define NR_WORKERS	9

FIXTURE(race) {
	int fd;
};

FIXTURE_SETUP(race)
{
	self->fd = kt_open();
	ASSERT_LE(0, self->fd);
}

FIXTURE_TEARDOWN(race)
{
	close(self->fd);
}

TEST_F_TIMEOUT(race, faults_migrations_and_commands, 1200)
{
	static void *(*const work[NR_WORKERS])(void *) = {
		mover, mover, mover, computer, computer, computer, looker, looker, creator,
	};
	const char *seconds = getenv("NDP_RACE_SECONDS");
	const unsigned int duration_ms =
		1000 * (seconds ? atoi(seconds) : kt_slow() > 1 ? 30 : 60);
	static struct race race;
	struct worker workers[NR_WORKERS];
	pthread_t threads[NR_WORKERS];
	struct kt_free before;
	const int fd = self->fd;
	uint64_t end;

	ASSERT_LT(0, duration_ms);
	ASSERT_OK(kt_free_read(fd, &before));
	race.fd = kt_open();
	ASSERT_LE(0, race.fd);
	race.mask = kt_dimm_mask(race.fd);
	race.placement = kt_placement_fd(race.fd);
	ASSERT_LE(0, race.placement);
	ASSERT_OK(make_subjects(&race));
	for (int i = 0; i < NR_WORKERS; i++) {
		workers[i] = (struct worker){ &race, i };
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, work[i], &workers[i]));
	}
	end = kt_now_ms() + duration_ms;
	while (!race.stop && kt_now_ms() < end)
		kt_sleep_ms(50);
	race.stop = true;
	for (int i = 0; i < NR_WORKERS; i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(0, race.wrong) {
		TH_LOG("%s", race.what);
	}
	TH_LOG("%u commands, %u times ESTALE, %u moves (%u busy), %u looks, %u objects",
	       race.commands, race.retries, race.moves, race.busy, race.looks, race.lives);
	EXPECT_LT(10, race.commands);
	EXPECT_LT(10, race.moves);
	EXPECT_LT(3, race.looks);
	EXPECT_LT(3, race.lives);
	/* Everything goes with the file, and nothing is missing or left in it. */
	ASSERT_EQ(0, close(race.fd));
	ASSERT_OK(kt_free_wait(fd, &before, 20000 * kt_slow()));
	for (unsigned int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++)
		if (before.mask & (1U << dimm))
			EXPECT_OK(all_of_it_is_zero(fd, dimm));
	EXPECT_OK(kt_free_wait(fd, &before, 5000 * kt_slow()));
}

TEST_HARNESS_MAIN
