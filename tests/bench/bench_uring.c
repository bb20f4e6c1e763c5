// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bench_uring - what a command costs the host's CPU: FFN on an NDP DIMM against a 4 KiB read on
 * NVMe's character device, both as io_uring_cmd, through one and the same loop (bar F.4).
 *
 *   bench_uring ffn /dev/ndpN COUNT...
 *   bench_uring nvme /dev/ngXnY COUNT...
 *
 * For each COUNT it issues that many commands in batches of 32: fill 32 SQEs, submit, wait for and
 * reap 32 CQEs. It prints nothing about time: meant for an emulated CPU that counts instructions. It
 * executes mark 1 before and mark 2 after the commands of each COUNT (see insn_split.c), so that
 * (instructions of a long run - instructions of a short run) / (long - short) is the cost of one
 * command, without set-up and tear-down.
 *
 * The FFN is a tiny one (H = 64, 32 neurons: one block) on one DIMM: the work is the DIMM's, the
 * instructions are io_uring's, the driver's and this loop's. Each result is checked at the end.
 *
 * Interfaces: kmod/uapi/moendp.h, linux/nvme_ioctl.h.
 */
#include <fcntl.h>
#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <math.h>
#include <moendp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "bench.h"

#define BATCH 32
#define HIDDEN 64
#define NEURONS 32
#define READ_BYTES 4096

#define MARK(n) asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00\n\t.long 0x6e647000 + " #n ::: "memory")

struct target {
	int fd;
	uint32_t cmd_op;
	/* Writes the payload of the command in place @slot of a batch. */
	void (*fill)(struct target *t, void *payload, unsigned int slot);
	/* Dies unless the commands did their work. */
	void (*check)(struct target *t);

	uint32_t weights, x, y, dimm_mask;	/* ffn */
	float *results;
	uint8_t *buffers;			/* nvme */
	uint32_t nsid;
	unsigned int lba_bytes;
	uint64_t next_block;
};

/* ---- FFN ----------------------------------------------------------------------------------- */

static void ffn_fill(struct target *t, void *payload, unsigned int slot)
{
	struct moendp_cmd *cmd = payload;

	cmd->weights = t->weights;
	cmd->x_bo = t->x;
	cmd->y_bo = t->y;
	cmd->x_mask = t->dimm_mask;
	cmd->count = 1;
	cmd->tokens = 1;
	cmd->y_off = slot * HIDDEN * sizeof(float);
	cmd->ldx = HIDDEN * sizeof(uint16_t);
	cmd->ldy = HIDDEN * sizeof(float);
}

/* Gate, up and x are ones, down is 1/64: h = bf16(silu(64) * 64) = 4096, y = 32 * 4096 / 64. */
static void ffn_check(struct target *t)
{
	unsigned int i;

	for (i = 0; i < BATCH * HIDDEN; i++)
		if (t->results[i] != 2048.0f)
			die("y[%u] is %g, not 2048", i, t->results[i]);
	memset(t->results, 0xff, BATCH * HIDDEN * sizeof(float));
}

static void *map(int fd, const struct moendp_bo_create *bo, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, bo->map_offset);

	if (p == MAP_FAILED)
		die("mmap of an object: %s", strerror(errno));
	return p;
}

static void create(int fd, struct moendp_bo_create *bo)
{
	bo->size = sizeof(*bo);
	if (ioctl(fd, MOENDP_IOC_BO_CREATE, bo) < 0)
		die("MOENDP_IOC_BO_CREATE: %s", strerror(errno));
}

static void ffn_open(struct target *t, const char *path)
{
	struct moendp_query query = { .size = sizeof(query) };
	struct moendp_range range = { .nr_blocks = 1 };
	struct moendp_bo_create weights = {
		.type = MOENDP_BO_EXPERT, .h_in = HIDDEN, .h_out = HIDDEN, .rows = NEURONS,
		.ranges = (uintptr_t)&range, .nr_ranges = 1,
	};
	struct moendp_bo_create x = { .type = MOENDP_BO_IO, .bytes = 4096 };
	struct moendp_bo_create y = {
		.type = MOENDP_BO_IO, .bytes = BATCH * HIDDEN * sizeof(float),
	};
	struct moendp_bo_seal seal = { .size = sizeof(seal) };
	uint16_t *w;
	size_t i;

	t->fd = open(path, O_RDWR | O_CLOEXEC);
	if (t->fd < 0)
		die("%s: %s", path, strerror(errno));
	if (ioctl(t->fd, MOENDP_IOC_QUERY, &query) < 0 || !query.dimm_mask)
		die("%s: no DIMM there (%s)", path, strerror(errno));
	range.dimm = __builtin_ctz(query.dimm_mask);
	t->dimm_mask = 1u << range.dimm;
	x.dimm_mask = y.dimm_mask = t->dimm_mask;

	create(t->fd, &weights);
	w = map(t->fd, &weights, weights.bytes);
	for (i = 0; i < 2 * HIDDEN * NEURONS; i++)
		w[i] = 0x3f80;		/* gate, up: 1 */
	for (; i < 3 * HIDDEN * NEURONS; i++)
		w[i] = 0x3c80;		/* down: 1/64 */
	munmap(w, weights.bytes);
	seal.handle = weights.handle;
	if (ioctl(t->fd, MOENDP_IOC_BO_SEAL, &seal) < 0)
		die("MOENDP_IOC_BO_SEAL: %s", strerror(errno));

	create(t->fd, &x);
	w = map(t->fd, &x, x.bytes);
	for (i = 0; i < HIDDEN; i++)
		w[i] = 0x3f80;
	create(t->fd, &y);
	t->results = map(t->fd, &y, y.bytes);
	memset(t->results, 0xff, y.bytes);

	t->weights = weights.handle;
	t->x = x.handle;
	t->y = y.handle;
	t->cmd_op = MOENDP_CMD_FFN;
	t->fill = ffn_fill;
	t->check = ffn_check;
}

/* ---- NVMe ---------------------------------------------------------------------------------- */

static void nvme_fill(struct target *t, void *payload, unsigned int slot)
{
	struct nvme_uring_cmd *cmd = payload;

	cmd->opcode = 0x02;		/* read */
	cmd->nsid = t->nsid;
	cmd->addr = (uintptr_t)(t->buffers + slot * READ_BYTES);
	cmd->data_len = READ_BYTES;
	cmd->cdw10 = (uint32_t)t->next_block;
	cmd->cdw11 = t->next_block >> 32;
	cmd->cdw12 = READ_BYTES / t->lba_bytes - 1;
	t->next_block = (t->next_block + READ_BYTES / t->lba_bytes) & 0xffff;
}

/* The disk is one of zeroes. */
static void nvme_check(struct target *t)
{
	unsigned int i;

	for (i = 0; i < BATCH * READ_BYTES; i++)
		if (t->buffers[i])
			die("byte %u of what was read is %u, not 0", i, t->buffers[i]);
	memset(t->buffers, 0xff, BATCH * READ_BYTES);
}

static void nvme_open(struct target *t, const char *path)
{
	uint8_t identify[4096] __attribute__((aligned(4096)));
	struct nvme_admin_cmd admin = {
		.opcode = 0x06, .addr = (uintptr_t)identify, .data_len = sizeof(identify),
	};
	int nsid;

	t->fd = open(path, O_RDWR | O_CLOEXEC);
	if (t->fd < 0)
		die("%s: %s", path, strerror(errno));
	nsid = ioctl(t->fd, NVME_IOCTL_ID);
	if (nsid <= 0)
		die("%s: not an NVMe namespace: %s", path, strerror(errno));
	admin.nsid = t->nsid = nsid;
	if (ioctl(t->fd, NVME_IOCTL_ADMIN_CMD, &admin))
		die("%s: cannot identify the namespace: %s", path, strerror(errno));
	/* Identify Namespace: FLBAS at 26, LBA formats of 4 bytes from 128, LBADS in their third. */
	t->lba_bytes = 1u << identify[128 + 4 * (identify[26] & 15) + 2];
	t->buffers = aligned_alloc(4096, BATCH * READ_BYTES);
	if (!t->buffers)
		die("out of memory");
	memset(t->buffers, 0xff, BATCH * READ_BYTES);
	t->cmd_op = NVME_URING_CMD_IO;
	t->fill = nvme_fill;
	t->check = nvme_check;
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void run_batch(struct io_uring *ring, struct target *t, unsigned int size)
{
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;
	unsigned int head, i, n = 0;
	int r;

	for (i = 0; i < size; i++) {
		sqe = io_uring_get_sqe(ring);
		if (!sqe)
			die("the submission queue is full");
		memset(sqe, 0, 2 * sizeof(*sqe));
		sqe->opcode = IORING_OP_URING_CMD;
		sqe->fd = t->fd;
		sqe->cmd_op = t->cmd_op;
		t->fill(t, sqe->cmd, i);
	}
	r = io_uring_submit_and_wait(ring, size);
	if (r != (int)size)
		die("io_uring_submit_and_wait: %s", r < 0 ? strerror(-r) : "not all were taken");
	io_uring_for_each_cqe(ring, head, cqe) {
		if (cqe->res)
			die("a command ended with %d (%s)", cqe->res, strerror(abs(cqe->res)));
		n++;
	}
	if (n != size)
		die("%u completions for %u commands", n, size);
	io_uring_cq_advance(ring, n);
}

int main(int argc, char **argv)
{
	struct io_uring ring;
	struct target t = { 0 };
	unsigned long count, done;
	int arg, r;

	if (argc < 4)
		die("usage: bench_uring ffn|nvme DEVICE COUNT...");
	if (!strcmp(argv[1], "ffn"))
		ffn_open(&t, argv[2]);
	else if (!strcmp(argv[1], "nvme"))
		nvme_open(&t, argv[2]);
	else
		die("ffn or nvme, not %s", argv[1]);
	r = io_uring_queue_init(BATCH, &ring, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
	if (r < 0)
		die("io_uring_queue_init: %s", strerror(-r));
	run_batch(&ring, &t, BATCH);	/* page faults and first allocations */
	t.check(&t);
	for (arg = 3; arg < argc; arg++) {
		count = parse_number("COUNT", argv[arg], BATCH, 10000000);
		MARK(1);
		for (done = 0; done < count; done += BATCH)
			run_batch(&ring, &t, count - done < BATCH ? count - done : BATCH);
		MARK(2);
		t.check(&t);
		printf("%s: %lu commands\n", argv[1], count);
	}
	io_uring_queue_exit(&ring);
	return 0;
}
