/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kt.h - what every test of the driver needs: nodes, objects, placements.
 *
 * Plain calls of the kernel interface, without libndp in between: the tests are about the driver.
 * Every function returns 0 (or a value) on success and -errno otherwise, so that a test can state
 * the errno that kmod/uapi/moendp.h promises: EXPECT_EQ(-ESTALE, kt_submit(...)).
 */
#ifndef KT_H
#define KT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "moendp.h"

#define KT_PAGE		4096UL

/* A passed or failed step that a test cannot do without. */
#define ASSERT_OK(expr)		ASSERT_EQ(0, expr)
#define EXPECT_OK(expr)		EXPECT_EQ(0, expr)

/* ---- nodes ---------------------------------------------------------------------------------- */

/* The domain under test: $NDP_TEST_NODE, or /dev/ndp0. */
const char *kt_node(void);
/* The node of one DIMM of it. */
void kt_dimm_node(unsigned int dimm, char *path, size_t bytes);
int kt_open(void);
int kt_open_path(const char *path);
/* ioctl() with -errno. */
int kt_ioctl(int fd, unsigned long nr, void *arg);

int kt_query(int fd, unsigned int dimm, struct moendp_query *q);
/* DIMMs that the file knows and that are present; 0 when the query fails. */
uint32_t kt_dimm_mask(int fd);
/* Number of the nth DIMM of a mask (n from 0), or -1. */
int kt_nth_dimm(uint32_t mask, unsigned int n);
unsigned int kt_count(uint32_t mask);

/* ---- objects -------------------------------------------------------------------------------- */

struct kt_bo {
	int fd;
	uint32_t handle;
	uint32_t type;
	uint32_t dimm_mask;	/* IO: of its replicas; weights: as created */
	uint32_t h_in;
	uint32_t h_out;
	uint32_t rows;
	uint64_t bytes;		/* weights: all; IO: a replica, as asked for */
	uint64_t stride;
	uint64_t map_offset;
	uint64_t map_bytes;	/* all that mmap() can show */
	uint8_t *map;		/* NULL when not mapped */
};

/* A placement under construction; at most MOENDP_MAX_RANGES pieces. */
struct kt_place {
	struct moendp_range r[MOENDP_MAX_RANGES];
	unsigned int nr;
};

struct kt_place kt_local(unsigned int dimm, unsigned int nr_blocks);
/* Evenly over the DIMMs of a mask in ascending order, larger parts first. */
struct kt_place kt_spread(uint32_t mask, unsigned int nr_blocks);
uint32_t kt_place_mask(const struct kt_place *p);
unsigned int kt_blocks(unsigned int rows);

int kt_expert(int fd, unsigned int h_in, unsigned int h_out, unsigned int rows,
	      const struct kt_place *p, struct kt_bo *bo);
int kt_matrix(int fd, unsigned int h_in, unsigned int rows, const struct kt_place *p,
	      struct kt_bo *bo);
int kt_io(int fd, uint32_t dimm_mask, uint64_t bytes, struct kt_bo *bo);
/* Weights of a given cookie and allowed mask; kt_expert() and kt_matrix() use zero for both. */
int kt_weights(int fd, const struct moendp_bo_create *shape, const struct kt_place *p,
	       struct kt_bo *bo);

int kt_map(struct kt_bo *bo, int prot);
int kt_unmap(struct kt_bo *bo);
int kt_seal(const struct kt_bo *bo);
int kt_info(const struct kt_bo *bo, struct moendp_bo_info *info);
int kt_where(const struct kt_bo *bo, struct kt_place *p);
int kt_destroy_handle(int fd, uint32_t handle);
/* Unmaps, destroys and clears. */
int kt_destroy(struct kt_bo *bo);
int kt_migrate(const struct kt_bo *bo, const struct kt_place *p);
int kt_migrate_info(const struct kt_bo *bo, const struct kt_place *p, uint64_t *bytes,
		    uint64_t *modelled_ns);
int kt_placement_fd(int fd);
int kt_revoke(int fd);

/* Where DIMM's replica begins in a mapped IO object. */
uint8_t *kt_replica(const struct kt_bo *io, unsigned int dimm);
void kt_io_write(const struct kt_bo *io, uint32_t mask, uint64_t off, const void *data,
		 size_t bytes);
void kt_io_fill(const struct kt_bo *io, uint32_t mask, uint64_t off, uint8_t value, size_t bytes);
/* Is every byte of that range this value, in every replica of the mask? */
bool kt_io_is(const struct kt_bo *io, uint32_t mask, uint64_t off, uint8_t value, size_t bytes);
/* y: sum over the replicas of the mask of the floats at an offset. */
void kt_io_sum(const struct kt_bo *io, uint32_t mask, uint64_t off, unsigned int n, double *sum);

/* ---- commands ------------------------------------------------------------------------------- */

int kt_submit(int fd, uint32_t op, const struct moendp_cmd *cmd, uint32_t *dimm_mask,
	      uint64_t *modelled_ns);

/*
 * A command that takes a DIMM a while: zero weights, zero x, many tokens. With 64 tokens some ten
 * milliseconds of an emulated DIMM's time, in proportion to the tokens.
 */
struct kt_load {
	struct kt_bo weights;
	struct kt_bo io;
	struct moendp_cmd cmd;
};

#define KT_LOAD_MAX_TOKENS	512

int kt_load(int fd, unsigned int dimm, unsigned int tokens, struct kt_load *load);
int kt_load_free(struct kt_load *load);

/* ---- memory accounting ---------------------------------------------------------------------- */

struct kt_free {
	uint32_t mask;
	uint64_t free_bytes[MOENDP_MAX_DIMMS];
	uint64_t largest_bytes[MOENDP_MAX_DIMMS];
	uint64_t used_bytes;
};

int kt_free_read(int fd, struct kt_free *f);
/*
 * Waits until the memory is as it was (what the last reference of an object gives back may take a
 * moment); -ETIMEDOUT, with a line on stderr about the DIMM that differs, when it never is.
 */
int kt_free_wait(int fd, const struct kt_free *want, unsigned int timeout_ms);

/* ---- small things --------------------------------------------------------------------------- */

/*
 * How many times slower than one with a release kernel this guest is: $NDP_TEST_SLOW, or 8 when
 * $NDP_DEBUG_KERNEL is set, or 1. Tests divide counts by it and multiply time limits.
 */
unsigned int kt_slow(void);
uint64_t kt_now_ms(void);
void kt_sleep_ms(unsigned int ms);
/* Reads every page; the number of the signal that this raises, or 0. In a forked child. */
int kt_touch_signal(const volatile uint8_t *p, size_t bytes, bool write);
/* The first decimal number in a file, or -errno. */
int64_t kt_read_number(const char *path);
int kt_write_file(const char *path, const char *text);
uint64_t kt_random(uint64_t *state);

#endif /* KT_H */
