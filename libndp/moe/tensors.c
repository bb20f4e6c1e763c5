// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * tensors.c - a set of named tensors out of one or several mapped files.
 *
 * Decides which files make up a model (one file, model.safetensors, or the
 * shards of model.safetensors.index.json), maps them, lets the reader of the
 * format fill the set, and answers look-ups by name.  Must never return a set of
 * which a part is missing.
 *
 * The index file: Hugging Face's save_pretrained() writes {"metadata": {...},
 * "weight_map": {tensor: file}}.
 */
#include "tensors-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define MAX_INDEX_BYTES 100000000ULL

int tensors_add(struct ndp_tensors *ts, const struct ndp_tensor *t, struct ndp_error *err)
{
	char *name;

	if (ts->nr_tensors == ts->max_tensors) {
		size_t max = ts->max_tensors ? 2 * ts->max_tensors : 64;
		struct ndp_tensor *p = reallocarray(ts->tensors, max, sizeof(*p));

		if (!p)
			return ndpi_fail(err, -ENOMEM, "%s: out of memory", t->file);
		ts->tensors = p;
		ts->max_tensors = max;
	}
	name = strdup(t->name);
	if (!name)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", t->file);
	ts->tensors[ts->nr_tensors] = *t;
	ts->tensors[ts->nr_tensors++].name = name;
	return 0;
}

static void file_free(struct tensor_file *f)
{
	if (!f)
		return;
	if (f->base)
		munmap((void *)f->base, f->bytes);
	free(f->path);
	free(f);
}

/* Maps a regular file that is not empty. */
static int file_map(struct tensor_file **out, const char *path, struct ndp_error *err)
{
	struct tensor_file *f = calloc(1, sizeof(*f));
	struct stat st;
	void *base;
	int fd = -1;
	int r;

	if (!f || !(f->path = strdup(path))) {
		r = ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		r = ndpi_fail(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
		goto fail;
	}
	if (!S_ISREG(st.st_mode)) {
		r = ndpi_fail(err, -EINVAL, "%s: is no regular file", path);
		goto fail;
	}
	if (st.st_size <= 0 || (uintmax_t)st.st_size > SIZE_MAX) {
		r = ndpi_fail(err, -EINVAL, "%s: has %lld bytes", path,
				  (long long)st.st_size);
		goto fail;
	}
	base = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (base == MAP_FAILED) {
		r = ndpi_fail(err, -errno, "%s: cannot be mapped: %s", path, strerror(errno));
		goto fail;
	}
	f->base = base;
	f->bytes = st.st_size;
	close(fd);
	*out = f;
	return 0;

fail:
	if (fd >= 0)
		close(fd);
	file_free(f);
	return r;
}

/* Takes @path into the set: maps it and reads its header. */
static int add_file(struct ndp_tensors *ts, const char *path, struct ndp_error *err)
{
	struct tensor_file **files;
	struct tensor_file *f;
	int r;

	r = file_map(&f, path, err);
	if (r < 0)
		return r;
	files = reallocarray(ts->files, ts->nr_files + 1, sizeof(*files));
	if (!files) {
		file_free(f);
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
	}
	ts->files = files;
	files[ts->nr_files++] = f;
	return safetensors_read(ts, f, err);
}

static int by_name(const void *a, const void *b)
{
	const struct ndp_tensor *x = a;
	const struct ndp_tensor *y = b;

	return strcmp(x->name, y->name);
}

/* Look-ups work from here on. */
static void sort_tensors(struct ndp_tensors *ts)
{
	if (ts->nr_tensors)
		qsort(ts->tensors, ts->nr_tensors, sizeof(*ts->tensors), by_name);
}

static int open_single(struct ndp_tensors *ts, const char *path, struct ndp_error *err)
{
	int r = add_file(ts, path, err);

	if (r == 0)
		sort_tensors(ts);
	return r;
}

/* ---- a directory with an index ---------------------------------------- */

static int load_index(json_t **index, const char *path, struct ndp_error *err)
{
	struct tensor_file *f;
	json_error_t jerr;
	int r;

	r = file_map(&f, path, err);
	if (r < 0)
		return r;
	if (f->bytes > MAX_INDEX_BYTES) {
		r = ndpi_fail(err, -EINVAL, "%s: %zu bytes are more than the limit of %llu",
				  path, f->bytes, MAX_INDEX_BYTES);
		goto out;
	}
	*index = json_loadb((const char *)f->base, f->bytes, JSON_REJECT_DUPLICATES, &jerr);
	if (!*index)
		r = ndpi_fail(err, -EINVAL, "%s: %.200s (line %d)", path, jerr.text, jerr.line);
out:
	file_free(f);
	return r;
}

/* A plain file name: an index must not lead out of its directory. */
static bool shard_name_ok(const char *name)
{
	return name && *name && *name != '.' && !strchr(name, '/') && strlen(name) <= 255;
}

static int collect_shards(json_t *weight_map, const char *index_path, json_t *shards,
			  struct ndp_error *err)
{
	const char *tensor;
	json_t *v;

	json_object_foreach(weight_map, tensor, v) {
		const char *name = json_string_value(v);

		if (!shard_name_ok(name))
			return ndpi_fail(err, -EINVAL,
					     "%s: 'weight_map': tensor '%.100s' names no file of "
					     "this directory", index_path, tensor);
		if (json_object_set(shards, name, json_null()) < 0)
			return ndpi_fail(err, -ENOMEM, "%s: out of memory", index_path);
	}
	if (json_object_size(shards) == 0)
		return ndpi_fail(err, -EINVAL, "%s: 'weight_map' is empty", index_path);
	return 0;
}

/* Reads shard @name of @dir and keeps the tensors that the index has there. */
static int add_shard(struct ndp_tensors *ts, const char *dir, const char *name,
		     const json_t *weight_map, struct ndp_error *err)
{
	size_t first = ts->nr_tensors;
	size_t kept = first;
	char *path;
	int r;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
	r = add_file(ts, path, err);
	if (r == -ENOENT)
		ndpi_fail(err, r, "%s: this shard is named by %s and is missing", path,
			      INDEX_NAME);
	free(path);
	if (r < 0)
		return r;
	for (size_t i = first; i < ts->nr_tensors; i++) {
		struct ndp_tensor *t = &ts->tensors[i];
		const char *where = json_string_value(json_object_get(weight_map, t->name));

		if (where && !strcmp(where, name))
			ts->tensors[kept++] = *t;
		else
			free((char *)t->name);
	}
	ts->nr_tensors = kept;
	return 0;
}

static int open_shards(struct ndp_tensors *ts, const char *dir, json_t *index,
		       const char *index_path, struct ndp_error *err)
{
	json_t *weight_map = json_object_get(index, "weight_map");
	json_t *shards;
	const char *name;
	json_t *v;
	int r;

	if (!json_is_object(weight_map))
		return ndpi_fail(err, -EINVAL, "%s: 'weight_map' is missing or is no object",
				     index_path);
	shards = json_object();
	if (!shards)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", index_path);
	r = collect_shards(weight_map, index_path, shards, err);
	if (r < 0)
		goto out;
	json_object_foreach(shards, name, v) {
		r = add_shard(ts, dir, name, weight_map, err);
		if (r < 0)
			goto out;
	}
	sort_tensors(ts);
	json_object_foreach(weight_map, name, v) {
		if (!ndp_tensors_find(ts, name)) {
			r = ndpi_fail(err, -EINVAL,
					  "%s: 'weight_map' has tensor '%.100s' in %s, which does "
					  "not hold it", index_path, name, json_string_value(v));
			goto out;
		}
	}
out:
	json_decref(shards);
	return r;
}

static int open_directory(struct ndp_tensors *ts, const char *dir, struct ndp_error *err)
{
	char *single = NULL;
	char *index_path = NULL;
	json_t *index = NULL;
	int r;

	if (asprintf(&single, "%s/%s", dir, SINGLE_NAME) < 0) {
		single = NULL;
		r = ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
		goto out;
	}
	if (asprintf(&index_path, "%s/%s", dir, INDEX_NAME) < 0) {
		index_path = NULL;
		r = ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
		goto out;
	}
	if (access(single, F_OK) == 0) {
		r = open_single(ts, single, err);
		goto out;
	}
	if (access(index_path, F_OK) < 0) {
		r = ndpi_fail(err, -ENOENT, "%s: holds neither %s nor %s", dir, SINGLE_NAME,
				  INDEX_NAME);
		goto out;
	}
	r = load_index(&index, index_path, err);
	if (r == 0)
		r = open_shards(ts, dir, index, index_path, err);
out:
	json_decref(index);
	free(index_path);
	free(single);
	return r;
}

/* ---- public ------------------------------------------------------------ */

int ndp_tensors_open(struct ndp_tensors **out, const char *path, struct ndp_error *err)
{
	struct ndp_tensors *ts;
	struct stat st;
	int r;

	if (stat(path, &st) < 0)
		return ndpi_fail(err, -errno, "%s: %s", path, strerror(errno));
	ts = calloc(1, sizeof(*ts));
	if (!ts)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
	r = S_ISDIR(st.st_mode) ? open_directory(ts, path, err) : open_single(ts, path, err);
	if (r < 0) {
		ndp_tensors_close(ts);
		return r;
	}
	*out = ts;
	return 0;
}

void ndp_tensors_close(struct ndp_tensors *ts)
{
	if (!ts)
		return;
	for (size_t i = 0; i < ts->nr_tensors; i++)
		free((char *)ts->tensors[i].name);
	free(ts->tensors);
	for (size_t i = 0; i < ts->nr_files; i++)
		file_free(ts->files[i]);
	free(ts->files);
	free(ts);
}

size_t ndp_tensors_count(const struct ndp_tensors *ts)
{
	return ts->nr_tensors;
}

const struct ndp_tensor *ndp_tensors_get(const struct ndp_tensors *ts, size_t index)
{
	return index < ts->nr_tensors ? &ts->tensors[index] : NULL;
}

const struct ndp_tensor *ndp_tensors_find(const struct ndp_tensors *ts, const char *name)
{
	const struct ndp_tensor key = { .name = name };

	if (!ts->nr_tensors)
		return NULL;
	return bsearch(&key, ts->tensors, ts->nr_tensors, sizeof(*ts->tensors), by_name);
}

static void shape_text(char *text, size_t size, uint32_t nr_dims, const uint64_t *dims)
{
	size_t n = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < nr_dims && n < size; i++)
		n += snprintf(text + n, size - n, "%s%llu", i ? ", " : "",
			      (unsigned long long)dims[i]);
}

int ndp_tensors_require(const struct ndp_tensors *ts, const char *name, uint32_t nr_dims,
			const uint64_t *dims, const struct ndp_tensor **out,
			struct ndp_error *err)
{
	const struct ndp_tensor *t = ndp_tensors_find(ts, name);
	char wanted[100];
	char found[100];

	if (!t)
		return ndpi_fail(err, -ENOENT, "%s%s: tensor '%.100s' is missing",
				     ts->nr_files ? ts->files[0]->path : "",
				     ts->nr_files > 1 ? " and the other shards" : "", name);
	if (t->nr_dims != nr_dims || memcmp(t->dims, dims, nr_dims * sizeof(*dims)) != 0) {
		shape_text(wanted, sizeof(wanted), nr_dims, dims);
		shape_text(found, sizeof(found), t->nr_dims, t->dims);
		return ndpi_fail(err, -EINVAL,
				     "%s: tensor '%.100s' has shape [%s], wanted is [%s]", t->file,
				     name, found, wanted);
	}
	*out = t;
	return 0;
}

static int check_span(const struct ndp_tensor *t, uint64_t first, uint64_t count)
{
	return first > t->elements || count > t->elements - first ? -ERANGE : 0;
}

/* IEEE 754 binary16 to binary32, exact. */
static float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h >> 15) << 31;
	uint32_t exponent = h >> 10 & 31;
	uint32_t fraction = h & 1023;
	uint32_t bits;
	float f;

	if (exponent == 0) {
		f = (float)fraction * 0x1p-24f;
		return sign ? -f : f;
	}
	exponent = exponent == 31 ? 255 : exponent + 112;
	bits = sign | exponent << 23 | fraction << 13;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

int ndp_tensor_read_f32(const struct ndp_tensor *t, uint64_t first, uint64_t count, float *dst)
{
	const uint8_t *src = t->data;
	int r = check_span(t, first, count);

	if (r < 0)
		return r;
	if (t->dtype == NDP_DTYPE_F32) {
		memcpy(dst, src + 4 * first, 4 * count);
		return 0;
	}
	if (t->dtype != NDP_DTYPE_BF16 && t->dtype != NDP_DTYPE_F16)
		return -ENOTSUP;
	src += 2 * first;
	for (uint64_t i = 0; i < count; i++) {
		uint16_t v;

		memcpy(&v, src + 2 * i, sizeof(v));
		dst[i] = t->dtype == NDP_DTYPE_BF16 ? ndp_bf16_to_f32(v) : f16_to_f32(v);
	}
	return 0;
}

int ndp_tensor_read_bf16(const struct ndp_tensor *t, uint64_t first, uint64_t count,
			 ndp_bf16 *dst)
{
	int r = check_span(t, first, count);

	if (r < 0)
		return r;
	if (t->dtype != NDP_DTYPE_BF16)
		return -ENOTSUP;
	memcpy(dst, (const uint8_t *)t->data + 2 * first, 2 * count);
	return 0;
}
