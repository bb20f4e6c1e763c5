// SPDX-License-Identifier: GPL-2.0-or-later
/* kt.c - nodes, objects and placements for the tests; see kt.h. */
#include "kt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *kt_node(void)
{
	const char *node = getenv("NDP_TEST_NODE");

	return node && *node ? node : "/dev/ndp0";
}

void kt_dimm_node(unsigned int dimm, char *path, size_t bytes)
{
	snprintf(path, bytes, "%sd%u", kt_node(), dimm);
}

int kt_open_path(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int kt_open(void)
{
	return kt_open_path(kt_node());
}

int kt_ioctl(int fd, unsigned long nr, void *arg)
{
	int r = ioctl(fd, nr, arg);

	return r < 0 ? -errno : r;
}

int kt_query(int fd, unsigned int dimm, struct moendp_query *q)
{
	memset(q, 0, sizeof(*q));
	q->size = sizeof(*q);
	q->dimm = dimm;
	return kt_ioctl(fd, MOENDP_IOC_QUERY, q);
}

uint32_t kt_dimm_mask(int fd)
{
	struct moendp_query q;
	unsigned int dimm;

	/* A node of one DIMM knows no other: ask until a DIMM is known. */
	for (dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++)
		if (!kt_query(fd, dimm, &q))
			return q.dimm_mask;
	return 0;
}

int kt_nth_dimm(uint32_t mask, unsigned int n)
{
	for (int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++)
		if (mask & (1U << dimm) && n-- == 0)
			return dimm;
	return -1;
}

unsigned int kt_count(uint32_t mask)
{
	return __builtin_popcount(mask);
}

struct kt_place kt_local(unsigned int dimm, unsigned int nr_blocks)
{
	struct kt_place p = { .nr = 1 };

	p.r[0].dimm = dimm;
	p.r[0].nr_blocks = nr_blocks;
	return p;
}

struct kt_place kt_spread(uint32_t mask, unsigned int nr_blocks)
{
	unsigned int n = kt_count(mask);
	struct kt_place p = { .nr = 0 };

	for (unsigned int i = 0; i < n; i++) {
		unsigned int part = nr_blocks / n + (i < nr_blocks % n);

		if (!part)
			break;
		p.r[p.nr].dimm = kt_nth_dimm(mask, i);
		p.r[p.nr].nr_blocks = part;
		p.nr++;
	}
	return p;
}

uint32_t kt_place_mask(const struct kt_place *p)
{
	uint32_t mask = 0;

	for (unsigned int i = 0; i < p->nr; i++)
		mask |= 1U << p->r[i].dimm;
	return mask;
}

unsigned int kt_blocks(unsigned int rows)
{
	return (rows + MOENDP_BLOCK_ROWS - 1) / MOENDP_BLOCK_ROWS;
}

int kt_weights(int fd, const struct moendp_bo_create *shape, const struct kt_place *p,
	       struct kt_bo *bo)
{
	struct moendp_bo_create c = *shape;
	int r;

	memset(bo, 0, sizeof(*bo));
	c.size = sizeof(c);
	c.ranges = (uintptr_t)p->r;
	c.nr_ranges = p->nr;
	r = kt_ioctl(fd, MOENDP_IOC_BO_CREATE, &c);
	if (r < 0)
		return r;
	bo->fd = fd;
	bo->handle = c.handle;
	bo->type = c.type;
	bo->dimm_mask = kt_place_mask(p);
	bo->h_in = c.h_in;
	bo->h_out = c.type == MOENDP_BO_EXPERT ? c.h_out : c.rows;
	bo->rows = c.rows;
	bo->bytes = c.bytes;
	bo->map_bytes = c.bytes;
	bo->stride = c.stride;
	bo->map_offset = c.map_offset;
	return 0;
}

int kt_expert(int fd, unsigned int h_in, unsigned int h_out, unsigned int rows,
	      const struct kt_place *p, struct kt_bo *bo)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_EXPERT, .h_in = h_in, .h_out = h_out, .rows = rows,
	};

	return kt_weights(fd, &shape, p, bo);
}

int kt_matrix(int fd, unsigned int h_in, unsigned int rows, const struct kt_place *p,
	      struct kt_bo *bo)
{
	struct moendp_bo_create shape = {
		.type = MOENDP_BO_MATRIX, .h_in = h_in, .rows = rows,
	};

	return kt_weights(fd, &shape, p, bo);
}

int kt_io(int fd, uint32_t dimm_mask, uint64_t bytes, struct kt_bo *bo)
{
	struct moendp_bo_create c = {
		.size = sizeof(c), .type = MOENDP_BO_IO, .dimm_mask = dimm_mask, .bytes = bytes,
	};
	int r;

	memset(bo, 0, sizeof(*bo));
	r = kt_ioctl(fd, MOENDP_IOC_BO_CREATE, &c);
	if (r < 0)
		return r;
	bo->fd = fd;
	bo->handle = c.handle;
	bo->type = c.type;
	bo->dimm_mask = dimm_mask;
	bo->bytes = bytes;
	bo->stride = c.stride;
	bo->map_offset = c.map_offset;
	bo->map_bytes = c.stride * kt_count(dimm_mask);
	return 0;
}

int kt_map(struct kt_bo *bo, int prot)
{
	void *p = mmap(NULL, bo->map_bytes, prot, MAP_SHARED, bo->fd, bo->map_offset);

	if (p == MAP_FAILED)
		return -errno;
	bo->map = p;
	return 0;
}

int kt_unmap(struct kt_bo *bo)
{
	uint8_t *map = bo->map;

	bo->map = NULL;
	return map && munmap(map, bo->map_bytes) ? -errno : 0;
}

int kt_seal(const struct kt_bo *bo)
{
	struct moendp_bo_seal s = { .size = sizeof(s), .handle = bo->handle };

	return kt_ioctl(bo->fd, MOENDP_IOC_BO_SEAL, &s);
}

int kt_info(const struct kt_bo *bo, struct moendp_bo_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->handle = bo->handle;
	return kt_ioctl(bo->fd, MOENDP_IOC_BO_INFO, info);
}

int kt_where(const struct kt_bo *bo, struct kt_place *p)
{
	struct moendp_bo_info info = {
		.size = sizeof(info), .handle = bo->handle,
		.ranges = (uintptr_t)p->r, .nr_ranges = MOENDP_MAX_RANGES,
	};
	int r = kt_ioctl(bo->fd, MOENDP_IOC_BO_INFO, &info);

	p->nr = r < 0 ? 0 : info.nr_ranges;
	return r;
}

int kt_destroy_handle(int fd, uint32_t handle)
{
	struct moendp_bo_destroy d = { .size = sizeof(d), .handle = handle };

	return kt_ioctl(fd, MOENDP_IOC_BO_DESTROY, &d);
}

int kt_destroy(struct kt_bo *bo)
{
	int r = kt_unmap(bo);

	if (!r)
		r = kt_destroy_handle(bo->fd, bo->handle);
	memset(bo, 0, sizeof(*bo));
	return r;
}

int kt_migrate_info(const struct kt_bo *bo, const struct kt_place *p, uint64_t *bytes,
		    uint64_t *modelled_ns)
{
	struct moendp_migrate m = {
		.size = sizeof(m), .handle = bo->handle,
		.ranges = (uintptr_t)p->r, .nr_ranges = p->nr,
	};
	int r = kt_ioctl(bo->fd, MOENDP_IOC_MIGRATE, &m);

	*bytes = m.bytes;
	*modelled_ns = m.modelled_ns;
	return r;
}

int kt_migrate(const struct kt_bo *bo, const struct kt_place *p)
{
	uint64_t bytes, ns;

	return kt_migrate_info(bo, p, &bytes, &ns);
}

int kt_placement_fd(int fd)
{
	struct moendp_placement_fd p = { .size = sizeof(p) };
	int r = kt_ioctl(fd, MOENDP_IOC_PLACEMENT_FD, &p);

	return r < 0 ? r : p.fd;
}

int kt_revoke(int fd)
{
	struct moendp_placement_revoke p = { .size = sizeof(p) };

	return kt_ioctl(fd, MOENDP_IOC_PLACEMENT_REVOKE, &p);
}

uint8_t *kt_replica(const struct kt_bo *io, unsigned int dimm)
{
	return io->map + io->stride * kt_count(io->dimm_mask & ((1U << dimm) - 1));
}

#define for_each_replica(io, mask, dimm) \
	for (unsigned int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++) \
		if ((mask) & (io)->dimm_mask & (1U << dimm))

void kt_io_write(const struct kt_bo *io, uint32_t mask, uint64_t off, const void *data,
		 size_t bytes)
{
	for_each_replica(io, mask, dimm)
		memcpy(kt_replica(io, dimm) + off, data, bytes);
}

void kt_io_fill(const struct kt_bo *io, uint32_t mask, uint64_t off, uint8_t value, size_t bytes)
{
	for_each_replica(io, mask, dimm)
		memset(kt_replica(io, dimm) + off, value, bytes);
}

bool kt_io_is(const struct kt_bo *io, uint32_t mask, uint64_t off, uint8_t value, size_t bytes)
{
	for_each_replica(io, mask, dimm) {
		const uint8_t *p = kt_replica(io, dimm) + off;

		if (bytes && (p[0] != value || memcmp(p, p + 1, bytes - 1)))
			return false;
	}
	return true;
}

void kt_io_sum(const struct kt_bo *io, uint32_t mask, uint64_t off, unsigned int n, double *sum)
{
	memset(sum, 0, n * sizeof(*sum));
	for_each_replica(io, mask, dimm) {
		const float *y = (const float *)(kt_replica(io, dimm) + off);

		for (unsigned int i = 0; i < n; i++)
			sum[i] += y[i];
	}
}

int kt_submit(int fd, uint32_t op, const struct moendp_cmd *cmd, uint32_t *dimm_mask,
	      uint64_t *modelled_ns)
{
	struct moendp_submit s = { .size = sizeof(s), .op = op, .cmd = *cmd };
	int r = kt_ioctl(fd, MOENDP_IOC_SUBMIT, &s);

	if (dimm_mask)
		*dimm_mask = s.dimm_mask;
	if (modelled_ns)
		*modelled_ns = s.modelled_ns;
	return r;
}

#define LOAD_H	1024

int kt_load(int fd, unsigned int dimm, unsigned int tokens, struct kt_load *load)
{
	struct kt_place p = kt_local(dimm, kt_blocks(LOAD_H));
	int r;

	memset(load, 0, sizeof(*load));
	r = kt_expert(fd, LOAD_H, LOAD_H, LOAD_H, &p, &load->weights);
	if (r < 0)
		return r;
	r = kt_seal(&load->weights);
	if (!r)
		r = kt_io(fd, 1U << dimm, (uint64_t)tokens * LOAD_H * (2 + 4), &load->io);
	if (r < 0) {
		kt_destroy(&load->weights);
		return r;
	}
	load->cmd = (struct moendp_cmd){
		.weights = load->weights.handle, .x_bo = load->io.handle,
		.y_bo = load->io.handle, .x_mask = 1U << dimm, .count = kt_blocks(LOAD_H),
		.tokens = tokens, .y_off = (uint64_t)tokens * LOAD_H * 2, .ldx = LOAD_H * 2,
		.ldy = LOAD_H * 4,
	};
	return 0;
}

int kt_load_free(struct kt_load *load)
{
	int r = kt_destroy(&load->io);

	return kt_destroy(&load->weights) ?: r;
}

int kt_free_read(int fd, struct kt_free *f)
{
	struct moendp_query q;
	int r;

	memset(f, 0, sizeof(*f));
	f->mask = kt_dimm_mask(fd);
	for (unsigned int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++) {
		if (!(f->mask & (1U << dimm)))
			continue;
		r = kt_query(fd, dimm, &q);
		if (r < 0)
			return r;
		f->free_bytes[dimm] = q.free_bytes;
		f->largest_bytes[dimm] = q.largest_free_bytes;
		f->used_bytes = q.used_bytes;
	}
	return f->mask ? 0 : -ENODEV;
}

int kt_free_wait(int fd, const struct kt_free *want, unsigned int timeout_ms)
{
	uint64_t end = kt_now_ms() + timeout_ms;
	struct kt_free f;
	int r;

	for (;;) {
		r = kt_free_read(fd, &f);
		if (r < 0)
			return r;
		if (!memcmp(&f, want, sizeof(f)))
			return 0;
		if (kt_now_ms() > end)
			break;
		kt_sleep_ms(10);
	}
	for (unsigned int dimm = 0; dimm < MOENDP_MAX_DIMMS; dimm++)
		if (f.free_bytes[dimm] != want->free_bytes[dimm] ||
		    f.largest_bytes[dimm] != want->largest_bytes[dimm])
			fprintf(stderr, "# DIMM %u: %llu bytes free (largest piece %llu), "
				"%llu (%llu) before\n", dimm,
				(unsigned long long)f.free_bytes[dimm],
				(unsigned long long)f.largest_bytes[dimm],
				(unsigned long long)want->free_bytes[dimm],
				(unsigned long long)want->largest_bytes[dimm]);
	if (f.used_bytes != want->used_bytes)
		fprintf(stderr, "# user: %llu bytes used, %llu before\n",
			(unsigned long long)f.used_bytes, (unsigned long long)want->used_bytes);
	return -ETIMEDOUT;
}

unsigned int kt_slow(void)
{
	const char *slow = getenv("NDP_TEST_SLOW");
	int n = slow ? atoi(slow) : getenv("NDP_DEBUG_KERNEL") ? 8 : 1;

	return n > 0 ? n : 1;
}

uint64_t kt_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ULL + t.tv_nsec / 1000000;
}

void kt_sleep_ms(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

static void touch_handler(int sig)
{
	_exit(sig);
}

int kt_touch_signal(const volatile uint8_t *p, size_t bytes, bool write)
{
	int status;
	pid_t pid;

	/* Mappings of the driver do not survive a fork: share the address space instead. */
	pid = vfork();
	if (pid == 0) {
		struct sigaction act = { .sa_handler = touch_handler };

		sigaction(SIGSEGV, &act, NULL);
		sigaction(SIGBUS, &act, NULL);
		for (size_t i = 0; i < bytes; i += KT_PAGE) {
			if (write)
				((volatile uint8_t *)p)[i] = 0x5a;
			else
				(void)p[i];
		}
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

int64_t kt_read_number(const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n < 0 ? -EIO : strtoll(text, NULL, 0);
}

int kt_write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;
	int r;

	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	r = n < 0 ? -errno : 0;
	close(fd);
	return r;
}

uint64_t kt_random(uint64_t *state)
{
	/* xorshift64*: good enough to mix tests, and the same everywhere. */
	uint64_t x = *state ? *state : 88172645463325252ULL;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 2685821657736338717ULL;
}
