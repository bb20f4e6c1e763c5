// SPDX-License-Identifier: GPL-2.0-or-later
/* reference.c - see reference.h. */
#include "reference.h"
#include "error.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPTS 100000
#define MAX_TOKENS (1 << 24)

struct reader {
	const char *path;
	uint32_t vocab;
	size_t index; /* of the prompt */
	struct ndp_error *err;
};

#define bad_prompt(rd, fmt, ...)                                                     \
	fail((rd)->err, -EINVAL, "%s: prompt %zu: " fmt, (rd)->path, (rd)->index, \
	     ##__VA_ARGS__)

static int read_id(const struct reader *rd, const json_t *v, const char *field, uint32_t *id)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 ||
	    json_integer_value(v) >= (json_int_t)rd->vocab)
		return bad_prompt(rd, "'%s' has something that is no token of a vocabulary of %u",
				  field, rd->vocab);
	*id = json_integer_value(v);
	return 0;
}

static int read_ids(const struct reader *rd, const json_t *prompt, const char *field,
		    uint32_t **ids, uint32_t *nr)
{
	const json_t *v = json_object_get(prompt, field);
	size_t n = json_array_size(v);
	int r;

	if (n < 1 || n > MAX_TOKENS)
		return bad_prompt(rd, "'%s' is missing or is no array of 1 to %d tokens", field,
				  MAX_TOKENS);
	*ids = calloc(n, sizeof(**ids));
	if (!*ids)
		return fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
	for (size_t i = 0; i < n; i++) {
		r = read_id(rd, json_array_get(v, i), field, &(*ids)[i]);
		if (r < 0)
			return r;
	}
	*nr = n;
	return 0;
}

static int read_logit(const struct reader *rd, struct reference_prompt *p, uint32_t step,
		      const json_t *v)
{
	const json_t *number = json_object_get(v, "logit");
	struct reference_logit *l = &p->logits[p->nr_logits];
	int r;

	r = read_id(rd, json_object_get(v, "id"), "top5", &l->id);
	if (r < 0)
		return r;
	l->logit = json_number_value(number);
	if (!json_is_number(number) || !isfinite(l->logit))
		return bad_prompt(rd, "'top5' of step %u has an entry without a finite 'logit'",
				  step);
	l->step = step;
	p->nr_logits++;
	return 0;
}

static int read_logits(const struct reader *rd, const json_t *prompt, struct reference_prompt *p)
{
	const json_t *steps = json_object_get(prompt, "top5");
	size_t n = json_array_size(steps);
	size_t count = 0;
	int r;

	if (n > p->nr_tokens)
		return bad_prompt(rd, "'top5' has %zu steps, 'tokens' only %u", n, p->nr_tokens);
	for (size_t s = 0; s < n; s++)
		count += json_array_size(json_array_get(steps, s));
	if (count == 0)
		return bad_prompt(rd, "'top5' is missing or empty: there would be no logits to "
				  "compare");
	p->logits = calloc(count, sizeof(*p->logits));
	if (!p->logits)
		return fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
	for (size_t s = 0; s < n; s++) {
		const json_t *step = json_array_get(steps, s);

		for (size_t i = 0; i < json_array_size(step); i++) {
			r = read_logit(rd, p, s, json_array_get(step, i));
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static int read_prompt(const struct reader *rd, const json_t *v, struct reference_prompt *p)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	int r;

	if (!name)
		return bad_prompt(rd, "'name' is missing or is no string");
	p->name = strdup(name);
	if (!p->name)
		return fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
	for (char *c = p->name; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	r = read_ids(rd, v, "prompt_bytes", &p->prompt, &p->nr_prompt);
	if (r < 0)
		return r;
	r = read_ids(rd, v, "tokens", &p->tokens, &p->nr_tokens);
	if (r < 0)
		return r;
	return read_logits(rd, v, p);
}

static int read_reference(struct reader *rd, const json_t *root, struct reference *ref)
{
	const json_t *prompts = json_object_get(root, "prompts");
	size_t n = json_array_size(prompts);
	int r;

	if (n < 1 || n > MAX_PROMPTS)
		return fail(rd->err, -EINVAL, "%s: 'prompts' is missing or is no array of 1 to %d "
			    "prompts", rd->path, MAX_PROMPTS);
	ref->prompts = calloc(n, sizeof(*ref->prompts));
	if (!ref->prompts)
		return fail(rd->err, -ENOMEM, "%s: out of memory", rd->path);
	for (rd->index = 0; rd->index < n; rd->index++) {
		ref->nr_prompts++;
		r = read_prompt(rd, json_array_get(prompts, rd->index),
				&ref->prompts[rd->index]);
		if (r < 0)
			return r;
	}
	return 0;
}

int reference_load(struct reference **out, const char *path, uint32_t vocab,
		   struct ndp_error *err)
{
	struct reader rd = { .path = path, .vocab = vocab, .err = err };
	struct reference *ref;
	json_error_t jerr;
	json_t *root;
	int r;

	errno = 0;
	root = json_load_file(path, JSON_REJECT_DUPLICATES, &jerr);
	if (!root && json_error_code(&jerr) == json_error_cannot_open_file)
		return fail(err, errno ? -errno : -ENOENT, "%s: cannot be opened: %s", path,
			    strerror(errno ? errno : ENOENT));
	if (!root)
		return fail(err, -EINVAL, "%s: %.200s (line %d)", path, jerr.text, jerr.line);
	ref = calloc(1, sizeof(*ref));
	r = ref ? read_reference(&rd, root, ref) : fail(err, -ENOMEM, "%s: out of memory", path);
	json_decref(root);
	if (r < 0) {
		reference_free(ref);
		return r;
	}
	*out = ref;
	return 0;
}

void reference_free(struct reference *ref)
{
	if (!ref)
		return;
	for (uint32_t i = 0; i < ref->nr_prompts; i++) {
		free(ref->prompts[i].name);
		free(ref->prompts[i].prompt);
		free(ref->prompts[i].tokens);
		free(ref->prompts[i].logits);
	}
	free(ref->prompts);
	free(ref);
}
