// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * tensors-dir.c - which files of a directory make up a model.
 *
 *   model.safetensors                   all of it
 *   model.safetensors.index.json        {"metadata": {...}, "weight_map": {tensor: file}},
 *                                       as Hugging Face's save_pretrained() writes it
 *   NAME-00001-of-00003.safetensors ... shards without an index: all of one NAME and
 *                                       count, no others
 *   NAME.gguf                           the only one, or one split model
 *
 * Must never choose between two models, nor follow a name out of the directory.
 */
#include "tensors-internal.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define MAX_INDEX_BYTES 100000000ULL

/* ---- names of shards ---------------------------------------------------- */

static bool five_digits(const char *s, uint32_t *value)
{
	*value = 0;
	for (int i = 0; i < 5; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		*value = 10 * *value + (s[i] - '0');
	}
	return true;
}

bool ndpi_shard_name(const char *name, const char *ext, size_t *prefix, uint32_t *no,
		     uint32_t *count)
{
	static const char pattern[] = "-00001-of-00003";
	size_t tail = strlen(pattern) + strlen(ext);
	size_t n = strlen(name);
	const char *at;

	if (n < tail || strcmp(name + n - strlen(ext), ext) != 0)
		return false;
	at = name + n - tail;
	if (at[0] != '-' || !five_digits(at + 1, no) || strncmp(at + 6, "-of-", 4) != 0 ||
	    !five_digits(at + 10, count))
		return false;
	*prefix = n - tail;
	return true;
}

/* ---- safetensors -------------------------------------------------------- */

/* Takes @dir/@name into the set; @because says in an error why it has to be there. */
static int add_shard(struct ndp_tensors *ts, const char *dir, const char *name,
		     const char *because, struct ndp_error *err)
{
	struct tensor_file *f;
	char *path;
	int r;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
	r = ndpi_tensors_add_file(ts, path, &f, err);
	if (r == -ENOENT)
		ndpi_fail(err, r, "%s: this shard is missing: %s", path, because);
	free(path);
	return r < 0 ? r : ndpi_safetensors_read(ts, f, err);
}

static int load_index(json_t **index, const char *path, struct ndp_error *err)
{
	struct ndp_tensors files = { 0 };
	struct tensor_file *f;
	json_error_t jerr;
	int r;

	r = ndpi_tensors_add_file(&files, path, &f, err);
	if (r < 0)
		goto out;
	if (f->bytes > MAX_INDEX_BYTES) {
		r = ndpi_fail(err, -EINVAL, "%s: %zu bytes are more than the limit of %llu",
			      path, f->bytes, MAX_INDEX_BYTES);
		goto out;
	}
	*index = json_loadb((const char *)f->base, f->bytes, JSON_REJECT_DUPLICATES, &jerr);
	if (!*index)
		r = ndpi_fail(err, -EINVAL, "%s: %.200s (line %d)", path, jerr.text, jerr.line);
out:
	ndpi_tensors_clear(&files);
	return r;
}

/* A plain file name: an index must not lead out of its directory. */
static bool file_name_ok(const char *name)
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

		if (!file_name_ok(name))
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

/* Of the tensors from @first on, keeps those that the index has in file @name. */
static void keep_indexed(struct ndp_tensors *ts, size_t first, const char *name,
			 const json_t *weight_map)
{
	size_t kept = first;

	for (size_t i = first; i < ts->nr_tensors; i++) {
		struct ndp_tensor *t = &ts->tensors[i];
		const char *where = json_string_value(json_object_get(weight_map, t->name));

		if (where && !strcmp(where, name))
			ts->tensors[kept++] = *t;
		else
			free((char *)t->name);
	}
	ts->nr_tensors = kept;
}

static int read_indexed(struct ndp_tensors *ts, const char *dir, json_t *index,
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
		size_t first = ts->nr_tensors;

		r = add_shard(ts, dir, name, "it is named by " INDEX_NAME, err);
		if (r < 0)
			goto out;
		keep_indexed(ts, first, name, weight_map);
	}
	r = ndpi_tensors_finish(ts, err);
	if (r < 0)
		goto out;
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

static int open_indexed(struct ndp_tensors *ts, const char *dir, struct ndp_error *err)
{
	json_t *index = NULL;
	char *path;
	int r;

	if (asprintf(&path, "%s/%s", dir, INDEX_NAME) < 0)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
	r = load_index(&index, path, err);
	if (r == 0)
		r = read_indexed(ts, dir, index, path, err);
	json_decref(index);
	free(path);
	return r;
}

/* ---- what a directory holds --------------------------------------------- */

enum kind { SINGLE, INDEX, SHARD, GGUF, NR_KINDS };

struct listing {
	char **names[NR_KINDS];	/* the latter two in the order of names */
	size_t n[NR_KINDS];
};

static bool ends_in(const char *name, const char *ext)
{
	size_t n = strlen(name);

	return n > strlen(ext) && !strcmp(name + n - strlen(ext), ext);
}

static enum kind kind_of(const char *name)
{
	uint32_t no, count;
	size_t prefix;

	if (*name == '.')
		return NR_KINDS;
	if (!strcmp(name, SINGLE_NAME))
		return SINGLE;
	if (!strcmp(name, INDEX_NAME))
		return INDEX;
	if (ndpi_shard_name(name, ".safetensors", &prefix, &no, &count))
		return SHARD;
	return ends_in(name, ".gguf") ? GGUF : NR_KINDS;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void listing_free(struct listing *l)
{
	for (int k = 0; k < NR_KINDS; k++) {
		for (size_t i = 0; i < l->n[k]; i++)
			free(l->names[k][i]);
		free(l->names[k]);
	}
}

static int listing_add(struct listing *l, enum kind k, const char *name)
{
	char **names = reallocarray(l->names[k], l->n[k] + 1, sizeof(*names));

	if (!names)
		return -ENOMEM;
	l->names[k] = names;
	names[l->n[k]] = strdup(name);
	if (!names[l->n[k]])
		return -ENOMEM;
	l->n[k]++;
	return 0;
}

static int listing_read(struct listing *l, const char *dir, struct ndp_error *err)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	int r = 0;

	if (!d)
		return ndpi_fail(err, -errno, "%s: cannot be read: %s", dir, strerror(errno));
	while (r == 0 && (errno = 0, entry = readdir(d))) {
		enum kind k = kind_of(entry->d_name);

		if (k != NR_KINDS)
			r = listing_add(l, k, entry->d_name);
	}
	if (r == 0)
		r = -errno;
	closedir(d);
	if (r < 0)
		return ndpi_fail(err, r, "%s: cannot be read: %s", dir, strerror(-r));
	for (int k = SHARD; k < NR_KINDS; k++)
		if (l->n[k])
			qsort(l->names[k], l->n[k], sizeof(char *), by_text);
	return 0;
}

static int two_models(const char *dir, const char *one, const char *other, struct ndp_error *err)
{
	return ndpi_fail(err, -EINVAL,
			 "%s: holds more than one model, such as %.100s and %.100s: wanted is a "
			 "directory with one of them, or the name of a file", dir, one, other);
}

/* Whether two shards are of one model, by their names. */
static bool same_model(const char *a, const char *b, const char *ext)
{
	uint32_t no, count_a, count_b;
	size_t prefix_a, prefix_b;

	return ndpi_shard_name(a, ext, &prefix_a, &no, &count_a) &&
	       ndpi_shard_name(b, ext, &prefix_b, &no, &count_b) && count_a == count_b &&
	       prefix_a == prefix_b && !strncmp(a, b, prefix_a);
}

static int open_shards(struct ndp_tensors *ts, const char *dir, const struct listing *l,
		       struct ndp_error *err)
{
	const char *any = l->names[SHARD][0];
	uint32_t no, count;
	char because[64];
	size_t prefix;
	char *name;
	int r = 0;

	for (size_t i = 1; i < l->n[SHARD]; i++)
		if (!same_model(any, l->names[SHARD][i], ".safetensors"))
			return two_models(dir, any, l->names[SHARD][i], err);
	ndpi_shard_name(any, ".safetensors", &prefix, &no, &count);
	/* Names in order, all of one count: the first and the last tell what is out of range. */
	ndpi_shard_name(l->names[SHARD][l->n[SHARD] - 1], ".safetensors", &prefix, &no, &count);
	if (no > count || !strncmp(any + prefix, "-00000", 6))
		return ndpi_fail(err, -EINVAL, "%s: %.100s is no shard of %u: they count from 1",
				 dir, no > count ? l->names[SHARD][l->n[SHARD] - 1] : any, count);
	snprintf(because, sizeof(because), "there are %zu of %u, and no " INDEX_NAME,
		 l->n[SHARD], count);
	for (no = 1; no <= count && r == 0; no++) {
		if (asprintf(&name, "%.*s-%05u-of-%05u.safetensors", (int)prefix, any, no,
			     count) < 0)
			return ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
		r = add_shard(ts, dir, name, because, err);
		free(name);
	}
	return r < 0 ? r : ndpi_tensors_finish(ts, err);
}

static int open_gguf(struct ndp_tensors *ts, const char *dir, const struct listing *l,
		     struct ndp_error *err)
{
	const char *any = l->names[GGUF][0];
	char *path;
	int r;

	for (size_t i = 1; i < l->n[GGUF]; i++)
		if (!same_model(any, l->names[GGUF][i], ".gguf"))
			return two_models(dir, any, l->names[GGUF][i], err);
	if (asprintf(&path, "%s/%s", dir, any) < 0)
		return ndpi_fail(err, -ENOMEM, "%s: out of memory", dir);
	r = ndpi_gguf_open(ts, path, err);
	free(path);
	return r;
}

static int open_single(struct ndp_tensors *ts, const char *dir, struct ndp_error *err)
{
	int r = add_shard(ts, dir, SINGLE_NAME, "it was there a moment ago", err);

	return r < 0 ? r : ndpi_tensors_finish(ts, err);
}

int ndpi_tensors_open_directory(struct ndp_tensors *ts, const char *dir, struct ndp_error *err)
{
	struct listing l = { 0 };
	enum kind k = 0;
	int r;

	r = listing_read(&l, dir, err);
	if (r < 0)
		goto out;
	/* What is further down in enum kind counts only when nothing above is there. */
	while (k < NR_KINDS && !l.n[k])
		k++;
	if (k < GGUF && l.n[GGUF]) {
		r = two_models(dir, l.names[k][0], l.names[GGUF][0], err);
		goto out;
	}
	ts->format = "safetensors";
	switch (k) {
	case SINGLE:
		r = open_single(ts, dir, err);
		break;
	case INDEX:
		r = open_indexed(ts, dir, err);
		break;
	case SHARD:
		r = open_shards(ts, dir, &l, err);
		break;
	case GGUF:
		r = open_gguf(ts, dir, &l, err);
		break;
	default:
		r = ndpi_fail(err, -ENOENT,
			      "%s: holds no model: wanted is " SINGLE_NAME ", " INDEX_NAME
			      ", shards NAME-00001-of-0000N.safetensors, or one model in GGUF",
			      dir);
	}
out:
	listing_free(&l);
	return r;
}
