// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * tensors.c - a set of named tensors out of one or several mapped files.
 *
 * Maps files, keeps what the readers of the formats put into the set, and answers
 * look-ups by name.  Must never return a set of which a part is missing, nor one in
 * which a name stands for two tensors.
 */
#include "tensors-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int ndpi_tensors_add(struct ndp_tensors *ts, const struct ndp_tensor *t, struct ndp_error *err)
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
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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

int ndpi_tensors_add_file(struct ndp_tensors *ts, const char *path, struct tensor_file **out,
			  struct ndp_error *err)
{
	struct tensor_file **files;
	int r;

	files = reallocarray(ts->files, ts->nr_files + 1, sizeof(*files));
	if (!files)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
	ts->files = files;
	r = file_map(out, path, err);
	if (r == 0)
		files[ts->nr_files++] = *out;
	return r;
}

static int by_position(const void *a, const void *b)
{
	const struct ndp_tensor *const *x = a;
	const struct ndp_tensor *const *y = b;
	uintptr_t px = (uintptr_t)(*x)->data;
	uintptr_t py = (uintptr_t)(*y)->data;

	if (px != py)
		return px < py ? -1 : 1;
	/* An empty tensor comes before the one that begins where it stands. */
	return ((*x)->bytes > (*y)->bytes) - ((*x)->bytes < (*y)->bytes);
}

int ndpi_tensors_by_position(const struct ndp_tensors *ts, size_t first,
			     const struct ndp_tensor ***out, struct ndp_error *err)
{
	size_t n = ts->nr_tensors - first;
	const struct ndp_tensor **sorted;

	sorted = calloc(n ? n : 1, sizeof(*sorted));
	if (!sorted)
		return ndpi_fail(err, -ENOMEM, "out of memory for the order of %zu tensors", n);
	for (size_t i = 0; i < n; i++)
		sorted[i] = &ts->tensors[first + i];
	qsort(sorted, n, sizeof(*sorted), by_position);
	*out = sorted;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct ndp_tensor *x = a;
	const struct ndp_tensor *y = b;

	return strcmp(x->name, y->name);
}

int ndpi_tensors_finish(struct ndp_tensors *ts, struct ndp_error *err)
{
	if (ts->nr_tensors)
		qsort(ts->tensors, ts->nr_tensors, sizeof(*ts->tensors), by_name);
	for (size_t i = 1; i < ts->nr_tensors; i++) {
		const struct ndp_tensor *t = &ts->tensors[i - 1];

		if (!strcmp(t->name, t[1].name))
			return ndpi_fail(err, -EINVAL, "%s: tensor '%.100s' is there twice%s%s",
					 t->file, t->name, t->file != t[1].file ? ", also in " : "",
					 t->file != t[1].file ? t[1].file : "");
	}
	return 0;
}

void ndpi_tensors_clear(struct ndp_tensors *ts)
{
	for (size_t i = 0; i < ts->nr_tensors; i++)
		free((char *)ts->tensors[i].name);
	for (size_t i = 0; i < ts->nr_meta; i++) {
		free((char *)ts->meta[i].pub.key);
		free(ts->meta[i].marks);
	}
	for (size_t i = 0; i < ts->nr_files; i++)
		file_free(ts->files[i]);
	free(ts->tensors);
	free(ts->meta);
	free(ts->files);
	*ts = (struct ndp_tensors){ 0 };
}

/* ---- public ------------------------------------------------------------ */

static int open_file(struct ndp_tensors *ts, const char *path, struct ndp_error *err)
{
	struct tensor_file *f;
	int r;

	r = ndpi_tensors_add_file(ts, path, &f, err);
	if (r < 0)
		return r;
	if (ndpi_gguf_is(f)) {
		ndpi_tensors_clear(ts);
		return ndpi_gguf_open(ts, path, err);
	}
	ts->format = "safetensors";
	r = ndpi_safetensors_read(ts, f, err);
	return r < 0 ? r : ndpi_tensors_finish(ts, err);
}

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
	r = S_ISDIR(st.st_mode) ? ndpi_tensors_open_directory(ts, path, err) :
				  open_file(ts, path, err);
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
	ndpi_tensors_clear(ts);
	free(ts);
}

const char *ndp_tensors_format(const struct ndp_tensors *ts)
{
	return ts->format;
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
