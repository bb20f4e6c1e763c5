// SPDX-License-Identifier: GPL-2.0-or-later
/* options.c - see options.h.  docs/man/ndp-run.1 describes them. */
#include "options.h"
#include "error.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <ndp/sched.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
	"Usage: ndp-run --model PATH (--prompt TEXT | --prompt-file FILE | --check REFERENCE)\n"
	"       ndp-run --list\n"
	"\n"
	"Runs a Mixture-of-Experts language model with its experts on NDP DIMMs, CPU and GPU.\n"
	"\n"
	"  --model PATH         folder with config.json and safetensors files, or a GGUF file\n"
	"                       (Mixtral)\n"
	"  --device DEV         /dev/ndp0, or soft:dimms=4,size=256M for an emulation in this\n"
	"                       process (default: the first device found)\n"
	"  --domains LIST       what computes experts: ndp, cpu, gpu, or several (default: ndp)\n"
	"  --policy NAME        who computes what: split, trimoe, ... (default: split)\n"
	"  --host PROFILE       what that costs: a profile of ndp-calibrate (default: a guess)\n"
	"  --threads N          of the cpu domain (default: one for each CPU)\n"
	"  --gpu SPEC           opencl, opencl:NAME or opencl:PLATFORM.DEVICE (default: opencl)\n"
	"  --gpu-experts BYTES  of GPU memory for experts, like 200M (default: as many as fit);\n"
	"                       0 leaves the GPU unused\n"
	"  --deterministic      the same bits each time; slower\n"
	"  --placement POLICY   local, striped, spread:K or dimm:D (default: local)\n"
	"  --daemon[=SOCKET]    let ndpd decide where experts lie, and what GPU memory holds\n"
	"  --migrate MS         keep moving random experts, one every MS milliseconds\n"
	"  --check REFERENCE    compare with reference.json: all tokens, best logits\n"
	"  --prompt TEXT        continue TEXT\n"
	"  --prompt-file FILE   continue what FILE holds\n"
	"  --tokens N           generate N tokens (default: 64)\n"
	"  --temperature T      sample, with logits divided by T (default: 0, the best token)\n"
	"  --top-k K            sample out of the K best tokens\n"
	"  --top-p P            sample out of the best tokens that have probability P together\n"
	"  --seed N             of the random numbers (default: 1)\n"
	"  --trace FILE         write the routing as CSV: step,layer,expert,count\n"
	"  --lock[=FILE]        hold the device's exclusive lock, or that of FILE; wait for it\n"
	"  --list               print the devices there are as JSON\n"
	"  --json               print one JSON document instead of text\n"
	"  --quiet              no report, no progress\n"
	"  --help               this text\n"
	"\n"
	"Status: 0 done, 1 the check failed, 2 wrong usage, 3 device or model failed,\n"
	"130 interrupted.\n";

enum {
	OPT_MODEL = 256, OPT_DEVICE, OPT_DOMAINS, OPT_POLICY, OPT_HOST, OPT_THREADS, OPT_GPU,
	OPT_GPU_EXPERTS, OPT_DETERMINISTIC, OPT_PLACEMENT, OPT_DAEMON, OPT_MIGRATE, OPT_CHECK, OPT_PROMPT,
	OPT_PROMPT_FILE, OPT_TOKENS, OPT_TEMPERATURE, OPT_TOP_K, OPT_TOP_P, OPT_SEED, OPT_TRACE,
	OPT_LOCK, OPT_LIST, OPT_JSON, OPT_QUIET, OPT_HELP,
};

static const struct option longopts[] = {
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "device", required_argument, NULL, OPT_DEVICE },
	{ "domains", required_argument, NULL, OPT_DOMAINS },
	{ "policy", required_argument, NULL, OPT_POLICY },
	{ "host", required_argument, NULL, OPT_HOST },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "gpu", required_argument, NULL, OPT_GPU },
	{ "gpu-experts", required_argument, NULL, OPT_GPU_EXPERTS },
	{ "deterministic", no_argument, NULL, OPT_DETERMINISTIC },
	{ "placement", required_argument, NULL, OPT_PLACEMENT },
	{ "daemon", optional_argument, NULL, OPT_DAEMON },
	{ "migrate", required_argument, NULL, OPT_MIGRATE },
	{ "check", required_argument, NULL, OPT_CHECK },
	{ "prompt", required_argument, NULL, OPT_PROMPT },
	{ "prompt-file", required_argument, NULL, OPT_PROMPT_FILE },
	{ "tokens", required_argument, NULL, OPT_TOKENS },
	{ "temperature", required_argument, NULL, OPT_TEMPERATURE },
	{ "top-k", required_argument, NULL, OPT_TOP_K },
	{ "top-p", required_argument, NULL, OPT_TOP_P },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "trace", required_argument, NULL, OPT_TRACE },
	{ "lock", optional_argument, NULL, OPT_LOCK },
	{ "list", no_argument, NULL, OPT_LIST },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "quiet", no_argument, NULL, OPT_QUIET },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

static int parse_u64(const char *name, const char *text, uint64_t min, uint64_t max,
		     uint64_t *value, struct ndp_error *err)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] < '0' || text[0] > '9' || *value < min ||
	    *value > max)
		return fail(err, -EINVAL, "--%s wants an integer from %llu to %llu, not '%.60s'",
			    name, (unsigned long long)min, (unsigned long long)max, text);
	return 0;
}

static int parse_u32(const char *name, const char *text, uint32_t min, uint32_t max,
		     uint32_t *value, struct ndp_error *err)
{
	uint64_t wide;
	int r = parse_u64(name, text, min, max, &wide, err);

	if (r == 0)
		*value = wide;
	return r;
}

static int parse_float(const char *name, const char *text, float max, float *value,
		       struct ndp_error *err)
{
	char *end;

	*value = strtof(text, &end);
	if (end == text || *end || !isfinite(*value) || !(*value >= 0) || *value > max)
		return fail(err, -EINVAL, "--%s wants a number from 0 to %g, not '%.60s'", name,
			    (double)max, text);
	return 0;
}

/* Digits and K, M or G. */
static int parse_bytes(const char *name, const char *text, uint64_t *value, struct ndp_error *err)
{
	static const char units[] = "KMG";
	unsigned int shift = 0;
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (!errno && end != text && *end && strchr(units, *end) && !end[1]) {
		shift = 10 * (unsigned int)(strchr(units, *end) - units + 1);
		end++;
	}
	if (errno || end == text || *end || text[0] < '0' || text[0] > '9' ||
	    *value > UINT64_MAX >> 1 >> shift)
		return fail(err, -EINVAL, "--%s wants bytes, like 200M or 0, not '%.60s'", name,
			    text);
	*value <<= shift;
	return 0;
}

static int parse_domains(const char *text, uint32_t *mask, struct ndp_error *err)
{
	static const struct {
		const char *name;
		enum ndp_domain domain;
	} names[] = {
		{ "gpu", NDP_DOMAIN_GPU }, { "cpu", NDP_DOMAIN_CPU }, { "ndp", NDP_DOMAIN_NDP },
	};
	const char *at = text;

	*mask = 0;
	for (;;) {
		size_t n = strcspn(at, ","), i = 0;

		while (i < 3 && (strlen(names[i].name) != n || strncmp(names[i].name, at, n)))
			i++;
		if (i == 3 || *mask >> names[i].domain & 1)
			return fail(err, -EINVAL, "--domains wants gpu, cpu or ndp, or several of "
				    "them divided by commas, each once, not '%.60s'", text);
		*mask |= 1u << names[i].domain;
		if (!at[n])
			return 0;
		at += n + 1;
	}
}

static int parse_policy(const char *text, int *policy, struct ndp_error *err)
{
	char names[200] = "";

	*policy = ndp_policy_parse(text);
	if (*policy >= 0)
		return 0;
	for (int p = 0; p < NDP_POLICIES; p++) {
		strncat(names, p ? ", " : "", sizeof(names) - strlen(names) - 1);
		strncat(names, ndp_policy_name(p), sizeof(names) - strlen(names) - 1);
	}
	return fail(err, -EINVAL, "--policy wants one of %s, not '%.60s'", names, text);
}

static int parse_one(struct options *o, int opt, struct ndp_error *err)
{
	switch (opt) {
	case OPT_MODEL:
		o->model = optarg;
		return 0;
	case OPT_DEVICE:
		o->device = optarg;
		return 0;
	case OPT_DOMAINS:
		return parse_domains(optarg, &o->domains, err);
	case OPT_POLICY:
		return parse_policy(optarg, &o->policy, err);
	case OPT_HOST:
		o->host = optarg;
		return 0;
	case OPT_THREADS:
		return parse_u32("threads", optarg, 1, 4096, &o->threads, err);
	case OPT_GPU:
		o->gpu = optarg;
		return 0;
	case OPT_GPU_EXPERTS:
		return parse_bytes("gpu-experts", optarg, &o->gpu_experts, err);
	case OPT_DETERMINISTIC:
		o->deterministic = true;
		return 0;
	case OPT_PLACEMENT:
		o->placement = optarg;
		return 0;
	case OPT_DAEMON:
		o->daemon = true;
		o->daemon_socket = optarg;
		return 0;
	case OPT_MIGRATE:
		return parse_u32("migrate", optarg, 1, 3600000, &o->migrate_ms, err);
	case OPT_CHECK:
		o->check = optarg;
		return 0;
	case OPT_PROMPT:
		o->prompt = optarg;
		return 0;
	case OPT_PROMPT_FILE:
		o->prompt_file = optarg;
		return 0;
	case OPT_TOKENS:
		return parse_u32("tokens", optarg, 1, 1 << 24, &o->tokens, err);
	case OPT_TEMPERATURE:
		return parse_float("temperature", optarg, 1000, &o->temperature, err);
	case OPT_TOP_K:
		return parse_u32("top-k", optarg, 1, 1 << 24, &o->top_k, err);
	case OPT_TOP_P:
		return parse_float("top-p", optarg, 1, &o->top_p, err);
	case OPT_SEED:
		return parse_u64("seed", optarg, 0, UINT64_MAX, &o->seed, err);
	case OPT_TRACE:
		o->trace = optarg;
		return 0;
	case OPT_LOCK:
		o->lock = true;
		o->lock_file = optarg;
		return 0;
	case OPT_LIST:
		o->list = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_QUIET:
		o->quiet = true;
		return 0;
	default:
		o->help = true;
		return 0;
	}
}

/* Options of a domain want that domain, those of DIMMs want DIMMs. */
static int check_domains(const struct options *o, const bool *given, struct ndp_error *err)
{
	static const struct {
		int option;
		enum ndp_domain domain;
		const char *name;
	} of[] = {
		{ OPT_THREADS, NDP_DOMAIN_CPU, "cpu" },
		{ OPT_GPU, NDP_DOMAIN_GPU, "gpu" },
		{ OPT_GPU_EXPERTS, NDP_DOMAIN_GPU, "gpu" },
	};
	static const int dimms[] = { OPT_PLACEMENT, OPT_MIGRATE };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (given[of[i].option - OPT_MODEL] && !(o->domains >> of[i].domain & 1))
			return fail(err, -EINVAL, "--%s has no use without %s in --domains",
				    longopts[of[i].option - OPT_MODEL].name, of[i].name);
	for (size_t i = 0; i < sizeof(dimms) / sizeof(dimms[0]); i++)
		if (given[dimms[i] - OPT_MODEL] && !o->device &&
		    !(o->domains >> NDP_DOMAIN_NDP & 1))
			return fail(err, -EINVAL,
				    "--%s wants DIMMs: name them by --device, or add ndp to "
				    "--domains", longopts[dimms[i] - OPT_MODEL].name);
	return 0;
}

/* What goes together and what does not. */
static int check_combination(const struct options *o, const bool *given, struct ndp_error *err)
{
	static const int sampling[] = { OPT_TEMPERATURE, OPT_TOP_K, OPT_TOP_P };
	int sources = !!o->prompt + !!o->prompt_file + !!o->check;

	if (!o->model)
		return fail(err, -EINVAL, "--model PATH is missing (see --help)");
	if (sources != 1)
		return fail(err, -EINVAL,
			    "exactly one of --prompt, --prompt-file and --check is wanted, "
			    "%d are there",
			    sources);
	if (o->prompt && !*o->prompt)
		return fail(err, -EINVAL,
			    "--prompt is empty: the model needs a token to begin with");
	for (size_t i = 0; i < sizeof(sampling) / sizeof(sampling[0]) && o->check; i++)
		if (given[sampling[i] - OPT_MODEL])
			return fail(err, -EINVAL, "--%s has no use with --check, which is greedy",
				    longopts[sampling[i] - OPT_MODEL].name);
	if (o->check && given[OPT_TOKENS - OPT_MODEL])
		return fail(err, -EINVAL,
			    "--tokens has no use with --check: the reference says how "
			    "many");
	if (o->temperature == 0 && (given[OPT_TOP_K - OPT_MODEL] || given[OPT_TOP_P - OPT_MODEL]))
		return fail(err, -EINVAL, "--top-k and --top-p want a --temperature above 0");
	if (o->daemon && o->migrate_ms)
		return fail(err, -EINVAL, "--migrate has no use with --daemon: ndpd moves experts");
	if (o->temperature == 0 && !o->migrate_ms && given[OPT_SEED - OPT_MODEL])
		return fail(err, -EINVAL,
			    "--seed wants a --temperature above 0 or --migrate: nothing "
			    "is random");
	return 0;
}

int options_parse(struct options *o, int argc, char **argv, struct ndp_error *err)
{
	bool given[OPT_HELP - OPT_MODEL + 1] = { false };
	int opt;
	int r;

	*o = (struct options){
		.placement = "local", .domains = 1 << NDP_DOMAIN_NDP, .policy = NDP_POLICY_SPLIT,
		.gpu_experts = OPTIONS_GPU_ALL, .gpu = "opencl", .tokens = 64, .top_p = 1,
		.seed = 1,
	};
	/* An error is to be JSON for those who asked for it, even if later. */
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--json"))
			o->json = true;
	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":", longopts, NULL)) != -1) {
		if (opt == ':')
			return fail(err, -EINVAL, "%.60s wants a value (see --help)",
				    argv[optind - 1]);
		if (opt == '?')
			return fail(err, -EINVAL,
				    "%.60s is no option, or takes no value (see --help)",
				    argv[optind - 1]);
		if (given[opt - OPT_MODEL])
			return fail(err, -EINVAL, "--%s is there twice",
				    longopts[opt - OPT_MODEL].name);
		given[opt - OPT_MODEL] = true;
		r = parse_one(o, opt, err);
		if (r < 0)
			return r;
	}
	if (optind < argc)
		return fail(err, -EINVAL, "'%.60s' belongs to no option (see --help)",
			    argv[optind]);
	if (o->help || o->list)
		return 0;
	r = check_domains(o, given, err);
	return r < 0 ? r : check_combination(o, given, err);
}
