// SPDX-License-Identifier: LGPL-2.1-or-later
/* profile.c - see ndp/profile.h. */
#include "../error.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <ndp/profile.h>
#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct reader {
	const char *path;
	const json_t *sources;
	struct ndp_error *err;
};

/* A number of a file and where it goes. */
struct number {
	const char *name;
	double min;		/* exclusive when @above */
	double max;
	bool above;
	double *value;		/* one of the three */
	uint32_t *u32;
	uint64_t *u64;
};

/* "gpu.efficiency", or only the last part at the top of a file. */
#define FIELD "%s: field '%s%s%.60s'"
#define FIELD_OF(rd, group, name) (rd)->path, (group) ? (group) : "", (group) ? "." : "", name

static int refuse_others(const struct reader *rd, const char *group, const json_t *object,
			 const char *const *known, size_t n)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)object, name, v) {
		size_t i = 0;

		while (i < n && strcmp(name, known[i]))
			i++;
		if (i == n)
			return ndpi_fail(rd->err, -EINVAL, FIELD " is unknown; is it misspelt?",
					 FIELD_OF(rd, group, name));
	}
	return 0;
}

/* Every word of "A; B" is a key of the file's sources. */
static int check_source(const struct reader *rd, const char *group, const char *name,
			const char *source)
{
	char key[NDP_PROFILE_NAME];

	for (const char *at = source;;) {
		size_t n = strcspn(at, ";");

		if (n == 0 || n >= sizeof(key))
			return ndpi_fail(rd->err, -EINVAL, FIELD ": 'source' is no list \"A; B\"",
					 FIELD_OF(rd, group, name));
		memcpy(key, at, n);
		key[n] = 0;
		if (!json_object_get(rd->sources, key))
			return ndpi_fail(rd->err, -EINVAL,
					 FIELD ": its source '%s' is not in 'sources'",
					 FIELD_OF(rd, group, name), key);
		at += n;
		if (!*at)
			return 0;
		at += strspn(at, "; ");
	}
}

/* The "value" of a field that has all that belongs to one. */
static int read_value(const struct reader *rd, const char *group, const json_t *object,
		      const char *name, const json_t **value)
{
	static const char *const parts[] = { "value", "source", "kind", "formula", "note" };
	const json_t *field = json_object_get(object, name);
	const char *kind, *source;
	int r;

	if (!field)
		return ndpi_fail(rd->err, -EINVAL, FIELD " is missing", FIELD_OF(rd, group, name));
	if (!json_is_object(field))
		return ndpi_fail(rd->err, -EINVAL,
				 FIELD " is no object with 'value', 'source' and 'kind'",
				 FIELD_OF(rd, group, name));
	for (size_t i = 0; i < COUNT(parts); i++) {
		const json_t *part = json_object_get(field, parts[i]);

		if (!part && i < 3)
			return ndpi_fail(rd->err, -EINVAL, FIELD ": its '%s' is missing",
					 FIELD_OF(rd, group, name), parts[i]);
		if (part && i && !json_is_string(part))
			return ndpi_fail(rd->err, -EINVAL, FIELD ": its '%s' is no string",
					 FIELD_OF(rd, group, name), parts[i]);
	}
	kind = json_string_value(json_object_get(field, "kind"));
	if (strcmp(kind, "stated") && strcmp(kind, "derived") && strcmp(kind, "assumed") &&
	    strcmp(kind, "measured"))
		return ndpi_fail(rd->err, -EINVAL, FIELD ": its 'kind' is '%.60s', not stated, "
				 "derived, assumed or measured", FIELD_OF(rd, group, name), kind);
	source = json_string_value(json_object_get(field, "source"));
	r = check_source(rd, group, name, source);
	if (r < 0)
		return r;
	*value = json_object_get(field, "value");
	for (const char *key = json_object_iter_key(json_object_iter((json_t *)field)); key;) {
		size_t i = 0;

		while (i < COUNT(parts) && strcmp(key, parts[i]))
			i++;
		if (i == COUNT(parts))
			return ndpi_fail(rd->err, -EINVAL, FIELD ": its '%.60s' is unknown",
					 FIELD_OF(rd, group, name), key);
		key = json_object_iter_key(json_object_iter_next(
			(json_t *)field, json_object_key_to_iter(key)));
	}
	return 0;
}

static int read_number(const struct reader *rd, const char *group, const json_t *object,
		       const struct number *n)
{
	const json_t *v;
	double x;
	int r = read_value(rd, group, object, n->name, &v);

	if (r < 0)
		return r;
	x = json_number_value(v);
	if (!json_is_number(v) || (!n->value && !json_is_integer(v)) || !isfinite(x) ||
	    x < n->min || (n->above && x == n->min) || x > n->max)
		return ndpi_fail(rd->err, -EINVAL, FIELD " must be %s %s %.17g and at most %.17g",
				 FIELD_OF(rd, group, n->name), n->value ? "a number" : "an integer",
				 n->above ? "above" : "from", n->min, n->max);
	if (n->value)
		*n->value = x;
	else if (n->u32)
		*n->u32 = json_integer_value(v);
	else
		*n->u64 = json_integer_value(v);
	return 0;
}

/* The optional "table": pairs [tokens of an expert, GFLOP/s reached], tokens rising. */
static int read_table(const struct reader *rd, const char *group, const json_t *object,
		      struct ndp_rate *rate)
{
	const json_t *v;
	int r;

	if (!json_object_get(object, "table"))
		return 0;
	r = read_value(rd, group, object, "table", &v);
	if (r < 0)
		return r;
	rate->nr_points = json_array_size(v);
	if (!rate->nr_points || rate->nr_points > NDP_MAX_RATE_POINTS)
		return ndpi_fail(rd->err, -EINVAL, FIELD " is no array of 1 to %d pairs",
				 FIELD_OF(rd, group, "table"), NDP_MAX_RATE_POINTS);
	for (uint32_t i = 0; i < rate->nr_points; i++) {
		const json_t *pair = json_array_get(v, i);
		const json_t *tokens = json_array_get(pair, 0), *gflops = json_array_get(pair, 1);

		if (json_array_size(pair) != 2 || !json_is_integer(tokens) ||
		    !json_is_number(gflops) || json_integer_value(tokens) < 1 ||
		    json_integer_value(tokens) > 1 << 24 || !(json_number_value(gflops) > 0) ||
		    (i && json_integer_value(tokens) <= (json_int_t)rate->tokens[i - 1]))
			return ndpi_fail(rd->err, -EINVAL, FIELD ": entry %u is no pair [tokens, "
					 "GFLOP/s] with more tokens than the one before",
					 FIELD_OF(rd, group, "table"), i);
		rate->tokens[i] = json_integer_value(tokens);
		rate->point_gflops[i] = json_number_value(gflops);
	}
	return 0;
}

static int read_numbers(const struct reader *rd, const char *group, const json_t *object,
			const struct number *numbers, size_t n, struct ndp_rate *rate)
{
	const char *known[16];
	int r = rate ? read_table(rd, group, object, rate) : 0;

	if (r < 0)
		return r;

	for (size_t i = 0; i < n; i++) {
		r = read_number(rd, group, object, &numbers[i]);
		if (r < 0)
			return r;
		known[i] = numbers[i].name;
	}
	known[n] = "table";
	return group ? refuse_others(rd, group, object, known, n + !!rate) : 0;
}

/* A group of fields; *object is NULL when the file says null: the machine lacks it. */
static int read_group(const struct reader *rd, const json_t *root, const char *name,
		      bool may_lack, const json_t **object)
{
	*object = json_object_get(root, name);
	if (!*object)
		return ndpi_fail(rd->err, -EINVAL, "%s: field '%s' is missing%s", rd->path, name,
				 may_lack ? "; a machine without it says null" : "");
	if (may_lack && json_is_null(*object))
		*object = NULL;
	else if (!json_is_object(*object))
		return ndpi_fail(rd->err, -EINVAL, "%s: field '%s' is no object%s", rd->path, name,
				 may_lack ? " and not null" : "");
	return 0;
}

static int read_string(const struct reader *rd, const json_t *root, const char *name,
		       const char **s)
{
	*s = json_string_value(json_object_get(root, name));
	if (!*s || !**s)
		return ndpi_fail(rd->err, -EINVAL, "%s: field '%s' is missing or no string",
				 rd->path, name);
	return 0;
}

/* What both kinds of file begin with. */
static int read_head(struct reader *rd, const json_t *root, const char *format, char *name)
{
	const char *found, *key;
	json_t *source;
	int r;

	if (!json_is_object(root))
		return ndpi_fail(rd->err, -EINVAL, "%s: is no JSON object", rd->path);
	r = read_string(rd, root, "format", &found);
	if (r < 0)
		return r;
	if (strcmp(found, format))
		return ndpi_fail(rd->err, -EINVAL, "%s: field 'format' is '%.60s', wanted '%s'",
				 rd->path, found, format);
	r = read_string(rd, root, "name", &found);
	if (r < 0)
		return r;
	if (strlen(found) >= NDP_PROFILE_NAME)
		return ndpi_fail(rd->err, -EINVAL, "%s: field 'name' has more than %d bytes",
				 rd->path, NDP_PROFILE_NAME - 1);
	strcpy(name, found);
	r = read_string(rd, root, "description", &found);
	if (r < 0)
		return r;
	rd->sources = json_object_get(root, "sources");
	if (!json_is_object(rd->sources))
		return ndpi_fail(rd->err, -EINVAL, "%s: field 'sources' is missing or no object",
				 rd->path);
	json_object_foreach((json_t *)rd->sources, key, source)
		if (!json_is_string(source))
			return ndpi_fail(rd->err, -EINVAL, "%s: field 'sources.%.60s' is no string",
					 rd->path, key);
	return 0;
}

static int read_cpu(const struct reader *rd, const json_t *root, const char *name,
		    struct ndp_rate *rate)
{
	double peak, efficiency;
	const json_t *object;
	const struct number numbers[] = {
		{ "peak_gflops", 0, 1e9, true, .value = &peak },
		{ "efficiency", 0, 1, true, .value = &efficiency },
		{ "memory_gbps", 0, 1e6, .value = &rate->gbps },
		{ "overhead_ns", 0, 1e9, .value = &rate->overhead_ns },
	};
	int r = read_group(rd, root, name, true, &object);

	if (r < 0 || !object)
		return r;
	r = read_numbers(rd, name, object, numbers, COUNT(numbers), rate);
	rate->gflops = r < 0 ? 0 : peak * efficiency;
	return r;
}

static int read_gpu(const struct reader *rd, const json_t *root, struct ndp_host *host)
{
	double peak, efficiency, gbps, gbps_efficiency;
	const json_t *object;
	const struct number numbers[] = {
		{ "peak_gflops", 0, 1e9, true, .value = &peak },
		{ "efficiency", 0, 1, true, .value = &efficiency },
		{ "memory_gbps", 0, 1e6, true, .value = &gbps },
		{ "memory_efficiency", 0, 1, true, .value = &gbps_efficiency },
		{ "overhead_ns", 0, 1e9, .value = &host->gpu.overhead_ns },
		{ "expert_bytes", 0, 1e15, .u64 = &host->gpu_bytes },
		{ "pcie_gbps", 0, 1e6, .value = &host->pcie_gbps },
		{ "staging_gbps", 0, 1e6, .value = &host->staging_gbps },
	};
	int r = read_group(rd, root, "gpu", true, &object);

	if (r < 0 || !object)
		return r;
	r = read_numbers(rd, "gpu", object, numbers, COUNT(numbers), &host->gpu);
	if (r < 0)
		return r;
	host->gpu.gflops = peak * efficiency;
	host->gpu.gbps = gbps * gbps_efficiency;
	return 0;
}

static int read_memory(const struct reader *rd, const json_t *root, struct ndp_host *host)
{
	const json_t *object;
	const struct number numbers[] = {
		{ "channels", 1, NDP_MAX_CHANNELS, .u32 = &host->nr_channels },
		{ "channel_gbps", 0, 1e6, true, .value = &host->channel_gbps },
		{ "dimms", 1, NDP_MAX_DIMMS, .u32 = &host->nr_dimms },
		{ "dimm_bytes", 1, 1e15, .u64 = &host->dimm_bytes },
	};
	int r = read_group(rd, root, "memory", false, &object);

	return r < 0 ? r : read_numbers(rd, "memory", object, numbers, COUNT(numbers), NULL);
}

static int read_ndp(const struct reader *rd, const json_t *root, struct ndp_host *host)
{
	double peak, efficiency;
	const json_t *object;
	const struct number numbers[] = {
		{ "peak_gflops", 0, 1e9, true, .value = &peak },
		{ "efficiency", 0, 1, true, .value = &efficiency },
		{ "internal_gbps", 0, 1e6, true, .value = &host->dimm.gbps },
		{ "overhead_ns", 0, 1e9, .value = &host->dimm.overhead_ns },
		{ "link_gbps", 0, 1e6, .value = &host->link_gbps },
		{ "link_latency_ns", 0, 1e9, .value = &host->link_latency_ns },
	};
	int r = read_group(rd, root, "ndp", true, &object);

	if (r < 0 || !object)
		return r;
	r = read_numbers(rd, "ndp", object, numbers, COUNT(numbers), &host->dimm);
	host->dimm.gflops = r < 0 ? 0 : peak * efficiency;
	return r;
}

static int read_host(struct reader *rd, const json_t *root, struct ndp_host_profile *p)
{
	static const char *const known[] = {
		"format", "name", "description", "sources", "gpu", "cpu", "cpu_plain", "memory",
		"ndp",
	};
	int r = read_head(rd, root, "moendp-host-1", p->name);

	if (r == 0)
		r = refuse_others(rd, NULL, root, known, COUNT(known));
	if (r == 0)
		r = read_memory(rd, root, &p->host);
	if (r == 0)
		r = read_gpu(rd, root, &p->host);
	if (r == 0)
		r = read_cpu(rd, root, "cpu", &p->host.cpu);
	if (r == 0)
		r = read_cpu(rd, root, "cpu_plain", &p->host.cpu_plain);
	if (r == 0)
		r = read_ndp(rd, root, &p->host);
	if (r == 0 && !(p->host.gpu.gflops > 0) && !(p->host.cpu.gflops > 0) &&
	    !(p->host.dimm.gflops > 0))
		r = ndpi_fail(rd->err, -EINVAL,
			      "%s: 'gpu', 'cpu' and 'ndp' are all null, nothing can compute",
			      rd->path);
	return r;
}

static int read_model(struct reader *rd, const json_t *root, struct ndp_model_profile *p)
{
	static const char *const known[] = {
		"format", "name", "description", "sources", "layers", "dense_layers", "experts",
		"top_k", "shared_experts", "hidden", "intermediate", "expert_dtype",
		"expert_bytes",
	};
	uint32_t shared;
	const struct number numbers[] = {
		{ "layers", 1, 4096, .u32 = &p->layers },
		{ "dense_layers", 0, 4095, .u32 = &p->dense_layers },
		{ "experts", 1, NDP_MAX_EXPERTS, .u32 = &p->shape.experts },
		{ "top_k", 1, NDP_MAX_EXPERTS, .u32 = &p->shape.top_k },
		{ "shared_experts", 0, NDP_MAX_EXPERTS, .u32 = &shared },
		{ "hidden", 1, 1 << 20, .u32 = &p->shape.hidden },
		{ "intermediate", 1, 1 << 20, .u32 = &p->shape.intermediate },
		{ "expert_bytes", 1, 1e12, .u64 = &p->shape.expert_bytes },
	};
	const json_t *dtype;
	int r = read_head(rd, root, "moendp-model-1", p->name);

	if (r == 0)
		r = refuse_others(rd, NULL, root, known, COUNT(known));
	if (r == 0)
		r = read_numbers(rd, NULL, root, numbers, COUNT(numbers), NULL);
	if (r == 0)
		r = read_value(rd, NULL, root, "expert_dtype", &dtype);
	if (r < 0)
		return r;
	if (!json_is_string(dtype))
		return ndpi_fail(rd->err, -EINVAL, "%s: field 'expert_dtype' is no string",
				 rd->path);
	if (p->shape.top_k > p->shape.experts)
		return ndpi_fail(rd->err, -EINVAL,
				 "%s: field 'top_k' is %u, more than 'experts' %u", rd->path,
				 p->shape.top_k, p->shape.experts);
	if (p->dense_layers >= p->layers)
		return ndpi_fail(rd->err, -EINVAL,
				 "%s: field 'dense_layers' is %u, which leaves none of 'layers' %u",
				 rd->path, p->dense_layers, p->layers);
	return 0;
}

static int load(const char *path, json_t **root, struct ndp_error *err)
{
	json_error_t jerr;

	errno = 0;
	*root = json_load_file(path, JSON_REJECT_DUPLICATES, &jerr);
	if (*root)
		return 0;
	if (json_error_code(&jerr) != json_error_cannot_open_file)
		return ndpi_fail(err, -EINVAL, "%s:%d: %.200s", path, jerr.line, jerr.text);
	return ndpi_fail(err, errno ? -errno : -ENOENT, "%s: cannot be opened (%s)", path,
			 strerror(errno ? errno : ENOENT));
}

int ndp_host_profile_load(struct ndp_host_profile *p, const char *path, struct ndp_error *err)
{
	struct reader rd = { .path = path, .err = err };
	json_t *root;
	int r = load(path, &root, err);

	memset(p, 0, sizeof(*p));
	if (r < 0)
		return r;
	r = read_host(&rd, root, p);
	json_decref(root);
	return r;
}

int ndp_model_profile_load(struct ndp_model_profile *p, const char *path, struct ndp_error *err)
{
	struct reader rd = { .path = path, .err = err };
	json_t *root;
	int r = load(path, &root, err);

	memset(p, 0, sizeof(*p));
	if (r < 0)
		return r;
	r = read_model(&rd, root, p);
	json_decref(root);
	return r;
}

static int join(char **path, const char *a, const char *b, const char *kind,
		const char *name, struct ndp_error *err)
{
	if (asprintf(path, "%s%s/%s/%s.json", a, b, kind, name) >= 0)
		return 0;
	*path = NULL;
	return ndpi_fail(err, -ENOMEM, "out of memory");
}

int ndp_profile_find(const char *kind, const char *name, char **path, struct ndp_error *err)
{
	static const char *const beside[] = { "/../share", "/../share/moendp" };
	const size_t n = strlen(name);
	const char *share = getenv("NDP_SHARE");
	char program[PATH_MAX];
	ssize_t length;
	int r;

	*path = NULL;
	if (strchr(name, '/') || (n > 5 && !strcmp(name + n - 5, ".json"))) {
		*path = strdup(name);
		return *path ? 0 : ndpi_fail(err, -ENOMEM, "out of memory");
	}
	if (share)
		return join(path, share, "", kind, name, err);
	length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (length < 0)
		return ndpi_fail(err, -errno, "/proc/self/exe: %s; NDP_SHARE can name the folder "
				 "of the profiles", strerror(errno));
	program[length] = 0;
	*strrchr(program, '/') = 0;
	for (size_t i = 0; i < COUNT(beside); i++) {
		r = join(path, program, beside[i], kind, name, err);
		if (r < 0)
			return r;
		if (access(*path, F_OK) == 0)
			return 0;
		free(*path);
		*path = NULL;
	}
	return ndpi_fail(err, -ENOENT,
			 "no '%.60s.json' in share/%s beside %s; name a file, or set NDP_SHARE to "
			 "the folder that has %s/", name, kind, program, kind);
}
