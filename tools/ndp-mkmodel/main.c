// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * main.c - ndp-mkmodel: writes a synthetic Mixture-of-Experts model, for tests and
 * measurements.  docs/man/ndp-mkmodel.1 describes it.
 *
 * Files are written into a folder beside the one that is wanted, which gets its name when
 * all is done: there is no half written model.
 */
#include "mkmodel.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <ndp/profile.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
	"Usage: ndp-mkmodel (--family FAMILY | --shape SHAPE) [OPTION]... DIR\n"
	"\n"
	"Writes a synthetic Mixture-of-Experts model without attention into the new folder DIR.\n"
	"Equal options and seeds give equal files; every spelling holds the same numbers.\n"
	"\n"
	"  --family FAMILY      mixtral, olmoe, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3,\n"
	"                       glm4_moe, gpt_oss\n"
	"  --shape SHAPE        sizes of a model in share/models, or of a JSON file\n"
	"  --layers N           default: 2, or the shape's\n"
	"  --dense-layers N     the first N layers have no experts (default: 0)\n"
	"  --experts N          default: 8\n"
	"  --top-k N            default: 2\n"
	"  --shared N           shared experts (default: 1 where the family has them)\n"
	"  --groups N           groups of experts (deepseek_v2, deepseek_v3, glm4_moe; default: "
	"1)\n"
	"  --keep-groups N      of which experts are chosen (default: half of them)\n"
	"  --norm, --no-norm    renormalise the weights, or do not (default: the family's)\n"
	"  --scale X            of the weights (deepseek_v2, deepseek_v3, glm4_moe; default: 1)\n"
	"  --hidden N           default: 128\n"
	"  --intermediate N     neurons of an expert (default: 96)\n"
	"  --format FORMAT      safetensors (default), or gguf\n"
	"  --shards N           files (default: 1)\n"
	"  --index, --no-index  model.safetensors.index.json (default: with several shards)\n"
	"  --dtype TYPE         of the experts: bf16 (default), f32, f16, q8_0, q4_0, mxfp4\n"
	"  --spelling NAME      default, w123, proj, fused, stacked, each\n"
	"  --seed N             default: 1\n"
	"  --help               this text\n"
	"\n"
	"Status: 0 done, 2 wrong usage, 3 the files could not be written.\n";

enum {
	OPT_FAMILY = 256, OPT_SHAPE, OPT_LAYERS, OPT_DENSE, OPT_EXPERTS, OPT_TOP_K, OPT_SHARED,
	OPT_GROUPS, OPT_KEEP, OPT_NORM, OPT_NO_NORM, OPT_SCALE, OPT_HIDDEN, OPT_NEURONS,
	OPT_FORMAT, OPT_SHARDS, OPT_INDEX, OPT_NO_INDEX, OPT_DTYPE, OPT_SPELLING, OPT_SEED,
	OPT_HELP,
};

static const struct option longopts[] = {
	{ "family", required_argument, NULL, OPT_FAMILY },
	{ "shape", required_argument, NULL, OPT_SHAPE },
	{ "layers", required_argument, NULL, OPT_LAYERS },
	{ "dense-layers", required_argument, NULL, OPT_DENSE },
	{ "experts", required_argument, NULL, OPT_EXPERTS },
	{ "top-k", required_argument, NULL, OPT_TOP_K },
	{ "shared", required_argument, NULL, OPT_SHARED },
	{ "groups", required_argument, NULL, OPT_GROUPS },
	{ "keep-groups", required_argument, NULL, OPT_KEEP },
	{ "norm", no_argument, NULL, OPT_NORM },
	{ "no-norm", no_argument, NULL, OPT_NO_NORM },
	{ "scale", required_argument, NULL, OPT_SCALE },
	{ "hidden", required_argument, NULL, OPT_HIDDEN },
	{ "intermediate", required_argument, NULL, OPT_NEURONS },
	{ "format", required_argument, NULL, OPT_FORMAT },
	{ "shards", required_argument, NULL, OPT_SHARDS },
	{ "index", no_argument, NULL, OPT_INDEX },
	{ "no-index", no_argument, NULL, OPT_NO_INDEX },
	{ "dtype", required_argument, NULL, OPT_DTYPE },
	{ "spelling", required_argument, NULL, OPT_SPELLING },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

const char *const mk_spelling_names[MK_SPELLINGS] = { "default", "w123", "proj", "fused",
						      "stacked", "each" };

#define UNSET UINT32_MAX

/* What was said; UNSET: nothing. */
struct options {
	const char *family;
	const char *shape;
	const char *dir;
	uint32_t layers, dense, experts, top_k, shared, groups, keep, hidden, neurons, shards;
	int norm, index;	/* -1: nothing */
	float scale;		/* 0: nothing */
	bool gguf;
	int dtype, spelling;
	uint64_t seed;
};

static int parse_u64(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *v,
		     struct ndp_error *err)
{
	char *end;

	errno = 0;
	*v = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || *v < min || *v > max)
		return mk_fail(err, -EINVAL, "--%s %s: wanted a number from %llu to %llu", name,
			       text, (unsigned long long)min, (unsigned long long)max);
	return 0;
}

static int parse_word(const char *name, const char *text, const char *const *words, int n, int *v,
		      struct ndp_error *err)
{
	char list[200] = "";

	for (int i = 0; i < n; i++) {
		if (!strcmp(text, words[i])) {
			*v = i;
			return 0;
		}
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
			 words[i]);
	}
	return mk_fail(err, -EINVAL, "--%s %s: wanted one of %s", name, text, list);
}

static int parse_number(struct options *o, int opt, const char *name, const char *arg,
			struct ndp_error *err)
{
	const struct {
		int opt;
		uint32_t min, max;
		uint32_t *value;
	} numbers[] = {
		{ OPT_LAYERS, 1, 4096, &o->layers }, { OPT_DENSE, 0, 4095, &o->dense },
		{ OPT_EXPERTS, 1, 4096, &o->experts }, { OPT_TOP_K, 1, 4096, &o->top_k },
		{ OPT_SHARED, 0, 64, &o->shared }, { OPT_GROUPS, 1, 4096, &o->groups },
		{ OPT_KEEP, 1, 4096, &o->keep }, { OPT_HIDDEN, 1, 65471, &o->hidden },
		{ OPT_NEURONS, 1, 65472, &o->neurons }, { OPT_SHARDS, 1, 999, &o->shards },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		uint64_t v;
		int r;

		if (numbers[i].opt != opt)
			continue;
		r = parse_u64(name, arg, numbers[i].min, numbers[i].max, &v, err);
		*numbers[i].value = (uint32_t)v;
		return r;
	}
	return mk_fail(err, -EINVAL, "--%s is not known", name);
}

static int parse_option(struct options *o, int opt, const char *name, const char *arg,
			struct ndp_error *err)
{
	static const char *const formats[] = { "safetensors", "gguf" };
	char *end;
	int v;
	int r;

	switch (opt) {
	case OPT_FAMILY:
		o->family = arg;
		return 0;
	case OPT_SHAPE:
		o->shape = arg;
		return 0;
	case OPT_NORM:
	case OPT_NO_NORM:
		o->norm = opt == OPT_NORM;
		return 0;
	case OPT_INDEX:
	case OPT_NO_INDEX:
		o->index = opt == OPT_INDEX;
		return 0;
	case OPT_SCALE:
		o->scale = strtof(arg, &end);
		if (*end || end == arg || !(o->scale > 0) || !isfinite(o->scale))
			return mk_fail(err, -EINVAL, "--scale %s: wanted a number above 0", arg);
		return 0;
	case OPT_FORMAT:
		r = parse_word(name, arg, formats, 2, &v, err);
		o->gguf = r == 0 && v;
		return r;
	case OPT_DTYPE:
		return parse_word(name, arg, mk_dtype_names, MK_DTYPES, &o->dtype, err);
	case OPT_SPELLING:
		return parse_word(name, arg, mk_spelling_names, MK_SPELLINGS, &o->spelling, err);
	case OPT_SEED:
		return parse_u64(name, arg, 0, UINT64_MAX, &o->seed, err);
	default:
		return parse_number(o, opt, name, arg, err);
	}
}

static int parse(struct options *o, int argc, char **argv, struct ndp_error *err)
{
	int opt, which = 0;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":", longopts, &which)) != -1) {
		int r;

		if (opt == ':')
			return mk_fail(err, -EINVAL, "%s wants a value", argv[optind - 1]);
		if (opt == '?')
			return mk_fail(err, -EINVAL, "%s is no option: try --help",
				       argv[optind - 1]);
		if (opt == OPT_HELP) {
			fputs(usage, stdout);
			exit(0);
		}
		r = parse_option(o, opt, longopts[which].name, optarg, err);
		if (r < 0)
			return r;
	}
	if (optind + 1 != argc)
		return mk_fail(err, -EINVAL,
			       "wanted one folder to be made, %d are there: try --help",
			       argc - optind);
	o->dir = argv[optind];
	return 0;
}

/* ---- from options to a model --------------------------------------------------- */

/* The family that a shape of share/models belongs to, by its name. */
static const char *family_of_shape(const char *name)
{
	static const char *const of[][2] = {
		{ "deepseek-v2", "deepseek_v2" }, { "deepseek-v3", "deepseek_v3" },
		{ "glm-4.5", "glm4_moe" }, { "gpt-oss", "gpt_oss" }, { "mixtral", "mixtral" },
		{ "olmoe", "olmoe" }, { "qwen3", "qwen3_moe" }, { "qwen2", "qwen2_moe" },
	};

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (!strncmp(name, of[i][0], strlen(of[i][0])))
			return of[i][1];
	return NULL;
}

/* "shared_experts" is no business of the scheduler's, so its reader has no field for it. */
static uint32_t shape_shared(const char *path)
{
	json_t *o = json_load_file(path, 0, NULL);
	const json_t *v = json_object_get(json_object_get(o, "shared_experts"), "value");
	uint32_t n = json_is_integer(v) ? (uint32_t)json_integer_value(v) : 0;

	json_decref(o);
	return n;
}

static void take(uint32_t *option, uint32_t shape)
{
	if (*option == UNSET)
		*option = shape;
}

/* What was not said comes from the shape. */
static int apply_shape(struct options *o, struct ndp_error *err)
{
	struct ndp_model_profile p;
	char *path;
	int r;

	r = ndp_profile_find("models", o->shape, &path, err);
	if (r < 0)
		return r;
	r = ndp_model_profile_load(&p, path, err);
	if (r == 0) {
		take(&o->shared, shape_shared(path));
		take(&o->dense, o->layers == UNSET || o->layers > p.dense_layers ?
			       p.dense_layers : 0);
		take(&o->layers, p.layers);
		take(&o->experts, p.shape.experts);
		take(&o->top_k, p.shape.top_k);
		take(&o->hidden, p.shape.hidden);
		take(&o->neurons, p.shape.intermediate);
		if (!o->family)
			o->family = family_of_shape(p.name);
		if (!o->family)
			r = mk_fail(err, -EINVAL,
				    "the family of shape %s is not known: say --family", p.name);
	}
	free(path);
	return r;
}

static bool has_groups(enum mk_family f)
{
	return f == MK_DEEPSEEK2 || f == MK_DEEPSEEK3 || f == MK_GLM4;
}

static bool has_shared(enum mk_family f)
{
	return has_groups(f) || f == MK_QWEN2;
}

/* What the family's real models do. */
static bool normalises(enum mk_family f)
{
	return f == MK_MIXTRAL || f == MK_QWEN3 || f == MK_DEEPSEEK3 || f == MK_GLM4 ||
	       f == MK_GPT_OSS;
}

static bool norm_can_be_said(const struct mk_model *m)
{
	if (m->family == MK_MIXTRAL || m->family == MK_GPT_OSS)
		return false;
	return !m->gguf || has_groups(m->family);
}

static int check_family(const struct options *o, const struct mk_model *m, struct ndp_error *err)
{
	const char *name = mk_family_names[m->family];

	if (o->norm >= 0 && m->renormalize != normalises(m->family) && !norm_can_be_said(m))
		return mk_fail(err, -EINVAL, "--%s: %s in this format always does the other",
			       o->norm ? "norm" : "no-norm", name);
	if (m->scale != 1 && !has_groups(m->family))
		return mk_fail(err, -EINVAL, "--scale: %s has none", name);
	if (m->groups > 1 && !has_groups(m->family))
		return mk_fail(err, -EINVAL, "--groups: %s has none", name);
	if (m->shared && !has_shared(m->family))
		return mk_fail(err, -EINVAL, "--shared %u: %s has no shared experts", m->shared,
			       name);
	if (!m->shared && m->family == MK_QWEN2)
		return mk_fail(err, -EINVAL, "--shared 0: qwen2_moe always has a shared expert");
	if (m->dense && !has_groups(m->family) && !(m->family == MK_QWEN2 && !m->gguf) &&
	    !(m->family == MK_QWEN3 && !m->gguf))
		return mk_fail(err, -EINVAL, "--dense-layers %u: %s in this format has none",
			       m->dense, name);
	return 0;
}

static int check_sizes(const struct mk_model *m, struct ndp_error *err)
{
	if (m->dense >= m->layers)
		return mk_fail(err, -EINVAL,
			       "--dense-layers %u of --layers %u: none would have experts",
			       m->dense, m->layers);
	if (m->experts % m->groups || m->keep_groups > m->groups)
		return mk_fail(err, -EINVAL,
			       "--groups %u must divide the %u experts, and --keep-groups "
			       "%u be among them",
			       m->groups, m->experts, m->keep_groups);
	if (m->top_k > m->experts / m->groups * m->keep_groups)
		return mk_fail(err, -EINVAL, "--top-k %u of %u experts: wanted at most %u",
			       m->top_k, m->experts, m->experts / m->groups * m->keep_groups);
	return 0;
}

static int check_files(const struct options *o, const struct mk_model *m, struct ndp_error *err)
{
	static const char allowed[2][MK_SPELLINGS] = {
		{[MK_DEFAULT] = 1, [MK_W123] = 1, [MK_PROJ] = 1, [MK_FUSED] = 1, [MK_STACKED] = 1},
		{[MK_DEFAULT] = 1, [MK_FUSED] = 1, [MK_STACKED] = 1, [MK_EACH] = 1},
	};

	if (!m->gguf && (m->dtype == MK_Q8_0 || m->dtype == MK_Q4_0 ||
			 (m->dtype == MK_MXFP4 && m->family != MK_GPT_OSS)))
		return mk_fail(err, -EINVAL, "--dtype %s: safetensors of %s do not have it; say "
			       "--format gguf", mk_dtype_names[m->dtype],
			       mk_family_names[m->family]);
	if (!allowed[m->gguf][o->spelling] ||
	    (m->family == MK_GPT_OSS && o->spelling != MK_DEFAULT &&
	     o->spelling != (m->gguf ? MK_STACKED : MK_FUSED)))
		return mk_fail(err, -EINVAL, "--spelling %s: %s in %s does not have it",
			       mk_spelling_names[o->spelling], mk_family_names[m->family],
			       m->gguf ? "GGUF" : "safetensors");
	if (o->index == 1 && m->gguf)
		return mk_fail(err, -EINVAL, "--index: GGUF has none");
	return 0;
}

static enum mk_spelling own_spelling(const struct mk_model *m)
{
	if (m->gguf)
		return MK_STACKED;
	return m->family == MK_MIXTRAL ? MK_W123 : m->family == MK_GPT_OSS ? MK_FUSED : MK_PROJ;
}

static int make_model(struct mk_model *m, struct options *o, struct ndp_error *err)
{
	int family, r;

	if (o->shape) {
		r = apply_shape(o, err);
		if (r < 0)
			return r;
	}
	if (!o->family)
		return mk_fail(err, -EINVAL, "wanted --family or --shape: try --help");
	r = parse_word("family", o->family, mk_family_names, MK_FAMILIES, &family, err);
	if (r < 0)
		return r;
	take(&o->groups, 1);
	*m = (struct mk_model){
		.family = (enum mk_family)family, .gguf = o->gguf, .groups = o->groups,
		.layers = o->layers == UNSET ? 2 : o->layers,
		.dense = o->dense == UNSET ? 0 : o->dense,
		.experts = o->experts == UNSET ? 8 : o->experts,
		.top_k = o->top_k == UNSET ? 2 : o->top_k,
		.hidden = o->hidden == UNSET ? 128 : o->hidden,
		.neurons = o->neurons == UNSET ? 96 : o->neurons,
		.shared = o->shared == UNSET ? has_shared(family) : o->shared,
		.keep_groups = o->keep == UNSET ? (o->groups + 1) / 2 : o->keep,
		.renormalize = o->norm < 0 ? normalises(family) : o->norm,
		.scale = o->scale > 0 ? o->scale : 1,
		.sigmoid = family == MK_DEEPSEEK3 || family == MK_GLM4,
		.shards = o->shards == UNSET ? 1 : o->shards,
		.dtype = (enum mk_dtype)o->dtype, .seed = o->seed,
	};
	m->index = o->index < 0 ? m->shards > 1 && !m->gguf : o->index;
	m->spelling = o->spelling ? (enum mk_spelling)o->spelling : own_spelling(m);
	r = check_family(o, m, err);
	if (r == 0)
		r = check_sizes(m, err);
	return r < 0 ? r : check_files(o, m, err);
}

/* ---- writing ---------------------------------------------------------------------- */

/* A folder of our own: files only. */
static void remove_folder(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
}

static int write_model(const struct options *o, const struct mk_model *m, struct ndp_error *err)
{
	struct mk_plan plan = { 0 };
	char *work = NULL;
	size_t n = strlen(o->dir);
	mode_t mask = umask(0);
	int r;

	umask(mask);
	while (n > 1 && o->dir[n - 1] == '/')
		n--;
	r = mk_plan(&plan, m, err);
	if (r == 0 && asprintf(&work, "%.*s.XXXXXX", (int)n, o->dir) < 0) {
		work = NULL;
		r = mk_fail(err, -ENOMEM, "out of memory");
	}
	if (r < 0)
		goto out;
	/* rename() replaces an empty folder and no other. */
	if (!mkdtemp(work)) {
		r = mk_fail(err, -errno, "%s cannot be made: %s", work, strerror(errno));
		goto out;
	}
	r = m->gguf ? mk_write_gguf(work, m, &plan, err)
		    : mk_write_safetensors(work, m, &plan, err);
	if (r == 0 && (chmod(work, 0777 & ~mask) || rename(work, o->dir)))
		r = mk_fail(err, -errno, "%s cannot become the new model: %s; wanted a folder that "
			    "does not exist, or an empty one", o->dir, strerror(errno));
	if (r < 0)
		remove_folder(work);
out:
	free(work);
	free(plan.tensors);
	return r;
}

int main(int argc, char **argv)
{
	struct options o = {
		.layers = UNSET, .dense = UNSET, .experts = UNSET, .top_k = UNSET, .shared = UNSET,
		.groups = UNSET, .keep = UNSET, .hidden = UNSET, .neurons = UNSET, .shards = UNSET,
		.norm = -1, .index = -1, .seed = 1,
	};
	struct ndp_error err;
	struct mk_model m;

	if (parse(&o, argc, argv, &err) < 0 || make_model(&m, &o, &err) < 0) {
		fprintf(stderr, "ndp-mkmodel: %s\n", err.message);
		return 2;
	}
	if (write_model(&o, &m, &err) < 0) {
		fprintf(stderr, "ndp-mkmodel: %s\n", err.message);
		return err.code == -EINVAL ? 2 : 3;
	}
	return 0;
}
