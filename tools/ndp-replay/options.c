// SPDX-License-Identifier: GPL-2.0-or-later
/* options.c - see options.h.  docs/man/ndp-replay.1 describes them. */
#include "options.h"
#include "../ndp-run/error.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
	"Usage: ndp-replay (--trace FILE | --synthetic SPEC) --model MODEL [OPTION]...\n"
	"\n"
	"Replays expert loads and says what each way to schedule them would take on a\n"
	"described machine. Every time is modelled time, computed, not measured.\n"
	"\n"
	"  --trace FILE         CSV step,layer,expert,count or layer,expert,count; may be gzip\n"
	"  --synthetic SPEC     top5=0.40,next25=0.50,drift=0,seed=1,steps=200,layers=N\n"
	"  --model MODEL        a name in share/models, or a JSON file\n"
	"  --host HOST          a name in share/hosts, or a JSON file (default: trimoe-paper)\n"
	"  --batch B            tokens of a step: recorded steps are merged, others drawn\n"
	"                       (default: as recorded; 512 where steps are drawn)\n"
	"  --steps N            at most N steps\n"
	"  --seed N             of what is drawn at random (default: 1)\n"
	"  --policy LIST        all (default), or some of gpu,gpu-cpu,gpu-ndp,trimoe,\n"
	"                       trimoe-norefine,trimoe-nocpu-amx,split\n"
	"  --charges SET        all (default), or paper: no DIMM reads, activations, staging\n"
	"  --placement WHERE    engine (default), engine-local, spread, local, oracle-spread,\n"
	"                       oracle-local\n"
	"  --moves LIST         what the placement engine may do: all (default), none, or some of\n"
	"                       prefetch,relayout,rebalance\n"
	"  --gpu-slots N        experts that GPU memory may hold, of all layers together\n"
	"                       (default: what fits in the host's expert_bytes)\n"
	"  --reference[=N]      solve N layers (default: 20) with GLPK: fluid bound, optimum\n"
	"  --layers             results of each layer, too\n"
	"  --json, --csv        one JSON document, or CSV, instead of text\n"
	"  --plot DIR           write SVG plots to DIR (needs gnuplot)\n"
	"  --help               this text\n"
	"\n"
	"Status: 0 done, 2 wrong usage, 3 a file or the machine described will not do.\n";

enum {
	OPT_TRACE = 256, OPT_SYNTHETIC, OPT_MODEL, OPT_HOST, OPT_BATCH, OPT_STEPS, OPT_SEED,
	OPT_POLICY, OPT_CHARGES, OPT_PLACEMENT, OPT_MOVES, OPT_GPU_SLOTS,
	OPT_REFERENCE, OPT_LAYERS, OPT_JSON, OPT_CSV,
	OPT_PLOT, OPT_HELP, OPT_END,
};

static const struct option longopts[] = {
	{ "trace", required_argument, NULL, OPT_TRACE },
	{ "synthetic", required_argument, NULL, OPT_SYNTHETIC },
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "host", required_argument, NULL, OPT_HOST },
	{ "batch", required_argument, NULL, OPT_BATCH },
	{ "steps", required_argument, NULL, OPT_STEPS },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "policy", required_argument, NULL, OPT_POLICY },
	{ "charges", required_argument, NULL, OPT_CHARGES },
	{ "placement", required_argument, NULL, OPT_PLACEMENT },
	{ "moves", required_argument, NULL, OPT_MOVES },
	{ "gpu-slots", required_argument, NULL, OPT_GPU_SLOTS },
	{ "reference", optional_argument, NULL, OPT_REFERENCE },
	{ "layers", no_argument, NULL, OPT_LAYERS },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "csv", no_argument, NULL, OPT_CSV },
	{ "plot", required_argument, NULL, OPT_PLOT },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

static const char *const placements[] = {
	[PLACEMENT_ENGINE] = "engine",
	[PLACEMENT_ENGINE_LOCAL] = "engine-local",
	[PLACEMENT_SPREAD] = "spread",
	[PLACEMENT_LOCAL] = "local",
	[PLACEMENT_ORACLE_SPREAD] = "oracle-spread",
	[PLACEMENT_ORACLE_LOCAL] = "oracle-local",
};

const char *placement_name(enum placement p)
{
	return placements[p];
}

static int parse_u64(const char *name, const char *text, uint64_t min, uint64_t max,
		     uint64_t *value, struct ndp_error *err)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno || *end || text[0] < '0' || text[0] > '9' || *value < min || *value > max)
		return fail(err, -EINVAL, "--%s wants an integer from %llu to %llu, not '%.60s'",
			    name, (unsigned long long)min, (unsigned long long)max, text);
	return 0;
}

static int parse_u32(const char *name, const char *text, uint32_t max, uint32_t *value,
		     struct ndp_error *err)
{
	uint64_t wide;
	int r = parse_u64(name, text, 1, max, &wide, err);

	if (r == 0)
		*value = wide;
	return r;
}

static int parse_policies(const char *text, uint32_t *policies, struct ndp_error *err)
{
	char name[32];

	*policies = 0;
	if (!strcmp(text, "all")) {
		*policies = (1u << NDP_POLICIES) - 1;
		return 0;
	}
	for (;;) {
		const size_t n = strcspn(text, ",");
		int policy = -EINVAL;

		if (n < sizeof(name)) {
			memcpy(name, text, n);
			name[n] = 0;
			policy = ndp_policy_parse(name);
		}
		if (policy < 0)
			return fail(err, -EINVAL, "--policy knows all, gpu, gpu-cpu, gpu-ndp, trimoe, "
				    "trimoe-norefine, trimoe-nocpu-amx and split, not '%.60s'", text);
		*policies |= 1u << policy;
		if (!text[n])
			return 0;
		text += n + 1;
	}
}

static int parse_placement(const char *text, enum placement *placement, struct ndp_error *err)
{
	for (int p = 0; p < PLACEMENTS; p++)
		if (!strcmp(text, placements[p])) {
			*placement = p;
			return 0;
		}
	return fail(err, -EINVAL, "--placement knows engine, engine-local, spread, local, "
		    "oracle-spread and oracle-local, not '%.60s'", text);
}

const char *move_name(unsigned int kind)
{
	static const char *const names[NDP_PLACE_KINDS] = {
		[NDP_PLACE_PREFETCH] = "prefetch",
		[NDP_PLACE_RELAYOUT] = "relayout",
		[NDP_PLACE_REBALANCE] = "rebalance",
	};

	return names[kind];
}

static int parse_moves(const char *text, uint32_t *moves, struct ndp_error *err)
{
	const char *at = text;

	*moves = !strcmp(text, "all") ? (1u << NDP_PLACE_KINDS) - 1 : 0;
	if (*moves || !strcmp(text, "none"))
		return 0;
	for (;;) {
		const size_t n = strcspn(at, ",");
		unsigned int kind = 0;

		while (kind < NDP_PLACE_KINDS && (strlen(move_name(kind)) != n ||
						  memcmp(at, move_name(kind), n)))
			kind++;
		if (kind == NDP_PLACE_KINDS)
			return fail(err, -EINVAL, "--moves knows all, none, prefetch, relayout and "
				    "rebalance, not '%.60s'", at);
		*moves |= 1u << kind;
		if (!at[n])
			return 0;
		at += n + 1;
	}
}

static int parse_one(struct options *o, int opt, struct ndp_error *err)
{
	switch (opt) {
	case OPT_TRACE:
		o->trace = optarg;
		return 0;
	case OPT_SYNTHETIC:
		o->synthetic = optarg;
		return 0;
	case OPT_MODEL:
		o->model = optarg;
		return 0;
	case OPT_HOST:
		o->host = optarg;
		return 0;
	case OPT_BATCH:
		return parse_u32("batch", optarg, 1 << 20, &o->batch, err);
	case OPT_STEPS:
		return parse_u32("steps", optarg, 1000000, &o->steps, err);
	case OPT_SEED:
		return parse_u64("seed", optarg, 0, UINT64_MAX, &o->seed, err);
	case OPT_POLICY:
		return parse_policies(optarg, &o->policies, err);
	case OPT_CHARGES:
		o->charges = !strcmp(optarg, "paper") ? NDP_CHARGES_PAPER : NDP_CHARGES_ALL;
		if (strcmp(optarg, "paper") && strcmp(optarg, "all"))
			return fail(err, -EINVAL, "--charges knows all and paper, not '%.60s'",
				    optarg);
		return 0;
	case OPT_PLACEMENT:
		return parse_placement(optarg, &o->placement, err);
	case OPT_MOVES:
		return parse_moves(optarg, &o->moves, err);
	case OPT_GPU_SLOTS:
		o->has_gpu_slots = true;
		return parse_u64("gpu-slots", optarg, 0, UINT64_MAX, &o->gpu_slots, err);
	case OPT_REFERENCE:
		o->reference = 20;
		return optarg ? parse_u32("reference", optarg, 100000, &o->reference, err) : 0;
	case OPT_LAYERS:
		o->layers = true;
		return 0;
	case OPT_JSON:
	case OPT_CSV:
		if (o->format != FORMAT_TEXT)
			return fail(err, -EINVAL, "--json and --csv exclude each other");
		o->format = opt == OPT_JSON ? FORMAT_JSON : FORMAT_CSV;
		return 0;
	case OPT_PLOT:
		o->plot = optarg;
		return 0;
	default:
		o->help = true;
		return 0;
	}
}

static int check(const struct options *o, struct ndp_error *err)
{
	if (!o->trace == !o->synthetic)
		return fail(err, -EINVAL, "exactly one of --trace and --synthetic is wanted, %s",
			    o->trace ? "both are there" : "none is there; see --help");
	if (o->moves != (1u << NDP_PLACE_KINDS) - 1 && !placement_moves(o->placement))
		return fail(err, -EINVAL, "--moves is about the placement engine; with --placement "
			    "%s there is none", placement_name(o->placement));
	if (!o->model)
		return fail(err, -EINVAL, "--model is wanted, a name in share/models or a file");
	return 0;
}

int options_parse(struct options *o, int argc, char **argv, struct ndp_error *err)
{
	bool seen[OPT_END - OPT_TRACE] = { false };
	int opt, at, r;

	*o = (struct options){
		.host = "trimoe-paper",
		.seed = 1,
		.policies = (1u << NDP_POLICIES) - 1,
		.charges = NDP_CHARGES_ALL,
		.moves = (1u << NDP_PLACE_KINDS) - 1,
	};
	opterr = 0;
	for (;;) {
		at = optind;
		opt = getopt_long(argc, argv, ":", longopts, NULL);
		if (opt == -1)
			break;
		if (opt == ':')
			return fail(err, -EINVAL, "%s wants a value", argv[at]);
		if (opt == '?')
			return fail(err, -EINVAL, "'%.60s' is no option, or takes no value; see --help",
				    argv[at]);
		if (seen[opt - OPT_TRACE])
			return fail(err, -EINVAL, "--%s is there twice",
				    longopts[opt - OPT_TRACE].name);
		seen[opt - OPT_TRACE] = true;
		r = parse_one(o, opt, err);
		if (r < 0)
			return r;
	}
	if (optind < argc)
		return fail(err, -EINVAL, "'%.60s' belongs to no option", argv[optind]);
	return o->help ? 0 : check(o, err);
}
