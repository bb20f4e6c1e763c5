// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gguf-split.c - a model in GGUF that is one file or split into several.
 *
 * llama.cpp's gguf-split writes shards NAME-00001-of-00003.gguf, whose names count from
 * 1, with the keys split.no, which counts from 0, split.count and split.tensors.count,
 * the number of tensors in all of them; the first shard has the model's metadata
 * (tools/gguf-split, llama_split_path() and llama_model_loader of
 * https://github.com/ggml-org/llama.cpp).
 *
 * Must never open a set of which a shard is missing or says something else.
 */
#include "gguf-internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int split_key(const struct ndp_tensors *ts, size_t first, struct gguf_cursor *c,
		     const char *key, uint64_t *v)
{
	const struct tensor_meta *m = ndpi_gguf_meta(ts, first, key);
	int r;

	snprintf(c->item, sizeof(c->item), "key '%s'", key);
	if (!m)
		return -ENOENT;
	r = m->pub.array ? -EINVAL : ndpi_gguf_integer(m, 0, v);
	return r < 0 ? gguf_bad(c, -EINVAL, "is no integer from 0 on") : 0;
}

int ndpi_gguf_split_meta(const struct ndp_tensors *ts, size_t first, struct gguf_cursor *c,
			 struct gguf_split *split)
{
	int r;

	*split = (struct gguf_split){ 0 };
	r = split_key(ts, first, c, "split.count", &split->count);
	if (r == -ENOENT || (r == 0 && split->count <= 1))
		return 0;
	if (r == 0)
		r = split_key(ts, first, c, "split.no", &split->no);
	if (r == 0 && split->no >= split->count)
		return gguf_bad(c, -EINVAL, "is %llu, but 'split.count' is %llu: shards count "
				"from 0", (unsigned long long)split->no,
				(unsigned long long)split->count);
	if (r == 0)
		r = split_key(ts, first, c, "split.tensors.count", &split->tensors);
	if (r == -ENOENT)
		r = gguf_bad(c, -EINVAL, "is missing, although 'split.count' is %llu",
			     (unsigned long long)split->count);
	return r;
}

/* The prefix of @path's shards, by its name and by what it says itself. */
static int shard_prefix(const char *path, const struct gguf_split *split, size_t *prefix,
			struct ndp_error *err)
{
	uint32_t no, count;

	if (!ndpi_shard_name(path, ".gguf", prefix, &no, &count))
		return ndpi_fail(err, -EINVAL,
				 "%s: is shard %llu of a model of %llu files, so its name should "
				 "end in -%05llu-of-%05llu.gguf: the others cannot be found", path,
				 (unsigned long long)split->no + 1,
				 (unsigned long long)split->count,
				 (unsigned long long)split->no + 1,
				 (unsigned long long)split->count);
	if (count != split->count)
		return ndpi_fail(err, -EINVAL,
				 "%s: key 'split.count' is %llu, but the file's name says %u",
				 path, (unsigned long long)split->count, count);
	if (no != split->no + 1)
		return ndpi_fail(err, -EINVAL,
				 "%s: key 'split.no' is %llu (which counts from 0), but the file's "
				 "name says shard %u (which counts from 1)", path,
				 (unsigned long long)split->no, no);
	return 0;
}

static void drop_meta(struct ndp_tensors *ts, size_t first)
{
	for (size_t i = first; i < ts->nr_meta; i++) {
		free((char *)ts->meta[i].pub.key);
		free(ts->meta[i].marks);
	}
	ts->nr_meta = first;
}

/* Shard @no, which has to agree with @asked, the one that the caller named. */
static int add_shard(struct ndp_tensors *ts, const char *path, uint64_t no,
		     const struct gguf_split *asked, const char *asked_path,
		     struct ndp_error *err)
{
	size_t meta = ts->nr_meta;
	struct gguf_split split;
	struct tensor_file *f;
	int r;

	r = ndpi_tensors_add_file(ts, path, &f, err);
	if (r == -ENOENT)
		return ndpi_fail(err, r, "%s: this shard is missing: %s says that there are %llu",
				 path, asked_path, (unsigned long long)asked->count);
	if (r == 0)
		r = ndpi_gguf_read(ts, f, &split, err);
	if (r < 0)
		return r;
	if (split.count != asked->count)
		return ndpi_fail(err, -EINVAL, "%s: key 'split.count' is %llu, but %llu in %s: the "
				 "shards disagree", path, (unsigned long long)split.count,
				 (unsigned long long)asked->count, asked_path);
	if (split.no != no)
		return ndpi_fail(err, -EINVAL, "%s: key 'split.no' is %llu, wanted is %llu by the "
				 "file's name", path, (unsigned long long)split.no,
				 (unsigned long long)no);
	if (split.tensors != asked->tensors)
		return ndpi_fail(err, -EINVAL, "%s: key 'split.tensors.count' is %llu, but %llu in "
				 "%s: the shards disagree", path,
				 (unsigned long long)split.tensors,
				 (unsigned long long)asked->tensors, asked_path);
	/* The first shard has the model's metadata. */
	if (no > 0)
		drop_meta(ts, meta);
	return 0;
}

static int add_shards(struct ndp_tensors *ts, const char *path, const struct gguf_split *asked,
		      struct ndp_error *err)
{
	size_t prefix;
	char *shard;
	int r;

	r = shard_prefix(path, asked, &prefix, err);
	for (uint64_t i = 0; i < asked->count && r == 0; i++) {
		if (asprintf(&shard, "%.*s-%05llu-of-%05llu.gguf", (int)prefix, path,
			     (unsigned long long)i + 1, (unsigned long long)asked->count) < 0)
			return ndpi_fail(err, -ENOMEM, "%s: out of memory", path);
		r = add_shard(ts, shard, i, asked, path, err);
		free(shard);
	}
	if (r == 0 && ts->nr_tensors != asked->tensors)
		r = ndpi_fail(err, -EINVAL, "%s: key 'split.tensors.count' is %llu, but the shards "
			      "have %zu tensors", path, (unsigned long long)asked->tensors,
			      ts->nr_tensors);
	return r;
}

int ndpi_gguf_open(struct ndp_tensors *ts, const char *path, struct ndp_error *err)
{
	struct gguf_split split;
	struct tensor_file *f;
	int r;

	r = ndpi_tensors_add_file(ts, path, &f, err);
	if (r == 0)
		r = ndpi_gguf_read(ts, f, &split, err);
	if (r == 0 && split.count > 1) {
		ndpi_tensors_clear(ts);
		r = add_shards(ts, path, &split, err);
	}
	ts->format = "gguf";
	return r < 0 ? r : ndpi_tensors_finish(ts, err);
}
