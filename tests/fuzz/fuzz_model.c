// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fuzz_model.c - fuzz target for whole models: ndp_model_open() and what comes after it.
 *
 * An input is a GGUF file; or "MODL", the length of a config.json in 4 bytes, that text,
 * and a model.safetensors.  It is written into files, because that is what is opened;
 * mmap() gives a copy in an allocation of the file's size (fuzz.mk has --wrap), so
 * that AddressSanitizer sees a read beyond its end.  With FUZZ_SAY in the environment it
 * says why a model was refused.
 */
#include "fuzz.h"

#include <ndp/model.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define must(condition)                                                              \
	do {                                                                         \
		if (!(condition)) {                                                  \
			fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, \
				#condition);                                         \
			abort();                                                     \
		}                                                                    \
	} while (0)

enum { HEAD = 8, MAX_MAPPINGS = 16 };

/* ---- files in memory ---------------------------------------------------- */

void *__real_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t length);

static void *mappings[MAX_MAPPINGS];

void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	void *p;

	if (fd < 0)
		return __real_mmap(addr, length, prot, flags, fd, offset);
	for (int i = 0; i < MAX_MAPPINGS; i++) {
		if (mappings[i])
			continue;
		must(posix_memalign(&p, 4096, length) == 0);
		must(pread(fd, p, length, offset) == (ssize_t)length);
		mappings[i] = p;
		return p;
	}
	abort();
}

int __wrap_munmap(void *addr, size_t length)
{
	for (int i = 0; i < MAX_MAPPINGS; i++) {
		if (mappings[i] != addr)
			continue;
		free(addr);
		mappings[i] = NULL;
		return 0;
	}
	return __real_munmap(addr, length);
}

static char dir[64];
static int config_fd, safetensors_fd, gguf_fd;

static void remove_files(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	if (system(command))
		fprintf(stderr, "%s stays\n", dir);
}

static int create(const char *folder, const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s%s/%s", dir, folder, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	must(fd >= 0);
	return fd;
}

static void setup(void)
{
	if (dir[0])
		return;
	snprintf(dir, sizeof(dir), "%s/fuzz_model.XXXXXX",
		 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	must(mkdtemp(dir));
	atexit(remove_files);
	config_fd = create("", "config.json");
	safetensors_fd = create("", "model.safetensors");
	gguf_fd = create("", "gguf");
}

static void fill(int fd, const uint8_t *data, size_t size)
{
	must(ftruncate(fd, size) == 0);
	must(pwrite(fd, data, size, 0) == (ssize_t)size);
}

/* ---- using a model ------------------------------------------------------ */

static void *room(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	must(p);
	return p;
}

static void pack(const struct ndp_model *m, const struct ndp_expert_shape *s, uint32_t layer,
		 uint32_t expert)
{
	uint32_t blocks = ndp_expert_blocks(s);
	struct ndp_error err;
	void *dst = room(blocks * ndp_expert_block_bytes(s));
	void *work = room(ndp_model_pack_bytes(m));

	must(ndp_model_pack(m, layer, expert, 0, blocks, dst, work, &err) == 0);
	must(ndp_model_pack(m, layer, expert, blocks - 1, 1, dst, work, &err) == 0);
	must(ndp_model_pack(m, layer, expert, blocks, 1, dst, work, &err) < 0);
	free(work);
	free(dst);
}

static void walk_layer(const struct ndp_model *m, const struct ndp_model_info *info, uint32_t l)
{
	size_t experts = info->router.experts;
	float *weight = room(experts * info->hidden * sizeof(float));
	float *bias = room(experts * sizeof(float));
	float *selection = room(experts * sizeof(float));
	float *wide = room(info->hidden * sizeof(float));
	struct ndp_error err;

	must(ndp_model_router(m, l, weight, bias, selection, wide, &err) == 0);
	must(ndp_model_down_bias(m, l, experts - 1, wide, &err) == 0);
	must(ndp_model_down_bias(m, l, experts, wide, &err) < 0);
	pack(m, &info->routed, l, 0);
	pack(m, &info->routed, l, experts - 1);
	if (info->shared.neurons)
		pack(m, &info->shared, l, NDP_EXPERT_SHARED);
	free(weight);
	free(bias);
	free(selection);
	free(wide);
}

static void use(const char *path)
{
	struct ndp_error err = { 0 };
	struct ndp_model_info info;
	struct ndp_model *m = NULL;
	uint32_t moe_layers = 0;
	int r = ndp_model_open(&m, path, &err);

	if (r < 0) {
		must(!m && err.code == r && err.message[0]);
		if (getenv("FUZZ_SAY"))
			fprintf(stderr, "refused: %s\n", err.message);
		return;
	}
	ndp_model_info(m, &info);
	must(info.router.top_k >= 1 && info.router.top_k <= info.router.experts);
	must(!ndp_model_is_moe(m, info.layers));
	for (uint32_t l = 0; l < info.layers; l++) {
		if (!ndp_model_is_moe(m, l))
			continue;
		moe_layers++;
		walk_layer(m, &info, l);
	}
	must(moe_layers == info.moe_layers);
	fuzz_walk(ndp_model_tensors(m));
	ndp_model_close(m);
}

/* ---- libFuzzer ----------------------------------------------------------- */

/* The length of config.json, at most what there is. */
static uint32_t config_bytes(const uint8_t *data, size_t size)
{
	uint32_t n;

	memcpy(&n, data + 4, sizeof(n));
	return n < size - HEAD ? n : size - HEAD;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	uint32_t state = seed * 31 + 7;
	size_t rest, room_left;
	uint8_t *tail;
	uint32_t n;

	if (size >= 4 && !memcmp(data, "GGUF", 4))
		return fuzz_mutate_gguf(data, size, max_size, seed);
	if (size < HEAD)
		return LLVMFuzzerMutate(data, size, max_size);
	n = config_bytes(data, size);
	rest = size - HEAD - n;
	if (fuzz_next(&state) % 2)
		return HEAD + n + fuzz_mutate_safetensors(data + HEAD + n, rest,
							  max_size - HEAD - n, seed);
	tail = malloc(rest ? rest : 1);
	must(tail);
	memcpy(tail, data + HEAD + n, rest);
	room_left = max_size - HEAD - rest;
	if (fuzz_next(&state) % 2)
		n = fuzz_mutate_number(data + HEAD, n, room_left, rest, &state);
	else
		n = LLVMFuzzerMutate(data + HEAD, n, room_left);
	memcpy(data, "MODL", 4);
	memcpy(data + 4, &n, sizeof(n));
	memcpy(data + HEAD + n, tail, rest);
	free(tail);
	return HEAD + n + rest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[80];
	uint32_t n;

	setup();
	if (size >= 4 && !memcmp(data, "GGUF", 4)) {
		snprintf(path, sizeof(path), "%s/gguf", dir);
		fill(gguf_fd, data, size);
		use(path);
	} else if (size >= HEAD && !memcmp(data, "MODL", 4)) {
		n = config_bytes(data, size);
		fill(config_fd, data + HEAD, n);
		fill(safetensors_fd, data + HEAD + n, size - HEAD - n);
		use(dir);
	}
	return 0;
}
