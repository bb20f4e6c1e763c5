/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * model_build.h - small model folders for tests: tensors put in one by one, written as
 * safetensors or GGUF.  Knows nothing of libndp's reading side nor of ndp-mkmodel, so that
 * a convention which both got wrong is noticed here.
 */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "gguf_build.h"

#include <ndp/pack.h>
#include <stdarg.h>
#include <sys/stat.h>

#define BUILD_MAX 200

struct build_tensor {
	char name[120];
	char dtype[8];		/* as safetensors spell it */
	uint32_t n_dims;
	uint64_t dims[4];	/* outermost first */
	void *data;
	size_t bytes;
};

struct model_build {
	struct build_tensor t[BUILD_MAX];
	size_t n;
};

static inline size_t mb_dtype_bytes(const char *dtype)
{
	return !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "U8") || dtype[1] == '8' ? 1 : 2;
}

/* Copies @data; the name is a format. */
static inline void mb_add(struct model_build *b, const char *dtype, uint32_t n_dims, uint64_t d0,
			  uint64_t d1, uint64_t d2, uint64_t d3, const void *data, const char *fmt,
			  ...) __attribute__((format(printf, 9, 10)));
static inline void mb_add(struct model_build *b, const char *dtype, uint32_t n_dims, uint64_t d0,
			  uint64_t d1, uint64_t d2, uint64_t d3, const void *data, const char *fmt,
			  ...)
{
	const uint64_t dims[4] = { d0, d1, d2, d3 };
	struct build_tensor *t = &b->t[b->n++];
	va_list ap;

	assert(b->n <= BUILD_MAX);
	va_start(ap, fmt);
	vsnprintf(t->name, sizeof(t->name), fmt, ap);
	va_end(ap);
	strcpy(t->dtype, dtype);
	t->n_dims = n_dims;
	t->bytes = mb_dtype_bytes(dtype);
	for (uint32_t i = 0; i < n_dims; i++) {
		t->dims[i] = dims[i];
		t->bytes *= dims[i];
	}
	t->data = calloc(1, t->bytes);
	assert(t->data);
	if (data)
		memcpy(t->data, data, t->bytes);
}

/* Takes tensor @name out again; it must be there. */
static inline void mb_drop(struct model_build *b, const char *name)
{
	for (size_t i = 0; i < b->n; i++) {
		if (strcmp(b->t[i].name, name))
			continue;
		free(b->t[i].data);
		b->t[i] = b->t[--b->n];
		return;
	}
	assert(!"no such tensor");
}

static inline void mb_free(struct model_build *b)
{
	for (size_t i = 0; i < b->n; i++)
		free(b->t[i].data);
	b->n = 0;
}

static inline FILE *mb_open(const char *dir, const char *name)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert(f);
	return f;
}

static inline void mb_text(const char *dir, const char *name, const char *text)
{
	FILE *f = mb_open(dir, name);

	fputs(text, f);
	fclose(f);
}

/* Tensors @first, @first + @step, ... in one file; @skew odd bytes before the data. */
static inline void mb_shard(const struct model_build *b, const char *dir, const char *name,
			    size_t first, size_t step, int skew)
{
	FILE *f = mb_open(dir, name);
	char *text = malloc(64 + BUILD_MAX * 300);
	size_t n = 0, at = 0;
	uint64_t length;

	n += sprintf(text + n, "{");
	for (size_t i = first; i < b->n; i += step) {
		const struct build_tensor *t = &b->t[i];

		n += sprintf(text + n, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
			     i > first ? "," : "", t->name, t->dtype);
		for (uint32_t d = 0; d < t->n_dims; d++)
			n += sprintf(text + n, "%s%llu", d ? "," : "",
				     (unsigned long long)t->dims[d]);
		n += sprintf(text + n, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
		at += t->bytes;
	}
	n += sprintf(text + n, "}");
	while (n % 8)
		text[n++] = ' ';
	while (skew--)
		text[n++] = ' ';
	length = n;
	fwrite(&length, 8, 1, f);
	fwrite(text, 1, n, f);
	for (size_t i = first; i < b->n; i += step)
		fwrite(b->t[i].data, 1, b->t[i].bytes, f);
	fclose(f);
	free(text);
}

/* model.safetensors, or @shards files without an index. */
static inline void mb_safetensors(const struct model_build *b, const char *dir, const char *config,
				  uint32_t shards)
{
	mkdir(dir, 0700);
	mb_text(dir, "config.json", config);
	for (uint32_t s = 0; s < shards; s++) {
		char name[64];

		snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", s + 1, shards);
		mb_shard(b, dir, shards == 1 ? "model.safetensors" : name, s, shards, 0);
	}
}

/* @keys writes the pairs, @nr_keys of them. */
static inline void mb_gguf(const struct model_build *b, const char *dir, uint64_t nr_keys,
			   void (*keys)(struct gguf_build *g))
{
	struct gguf_build g = { 0 };
	char path[300];
	uint64_t at = 0;

	mkdir(dir, 0700);
	gb_header(&g, 3, b->n, nr_keys);
	keys(&g);
	for (size_t i = 0; i < b->n; i++) {
		const struct build_tensor *t = &b->t[i];
		uint64_t dims[4];

		for (uint32_t d = 0; d < t->n_dims; d++)
			dims[d] = t->dims[t->n_dims - 1 - d];
		gb_tensor(&g, t->name, t->n_dims, dims, !strcmp(t->dtype, "F32") ? GGML_F32 :
			  !strcmp(t->dtype, "F16") ? GGML_F16 : GGML_BF16, at);
		at = (at + t->bytes + 31) / 32 * 32;
	}
	gb_pad(&g, 32);
	for (size_t i = 0; i < b->n; i++) {
		gb_bytes(&g, b->t[i].data, b->t[i].bytes);
		gb_pad(&g, 32);
	}
	snprintf(path, sizeof(path), "%s/model.gguf", dir);
	gb_write(&g, path);
	free(g.bytes);
}

#endif
