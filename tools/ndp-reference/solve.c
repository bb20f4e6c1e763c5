// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * solve.c - the layer as a linear and as an integer program.
 *
 * Rows: one for each resource, whose load may not exceed the makespan T (column
 * 1), and one for each expert, whose parts add up to 1. Columns are microseconds
 * of modelled time, so that the numbers are of one size.
 *
 * The linear program has a column for what each domain takes of an expert from
 * each DIMM that holds it. What the CPU or PCIe takes lasts as long as the
 * slowest channel, which is a column of its own with a row for each channel. Two
 * cases need only one column a domain: an expert in one DIMM; and a layer whose
 * experts all lie evenly on all DIMMs, and those evenly on the channels: then
 * averaging any solution over the DIMMs gives one that is no longer.
 */
#include "solve.h"

#include <errno.h>
#include <glpk.h>
#include <math.h>
#include <string.h>

enum {
	MAX_ENTRIES = 8 + NDP_MAX_CHANNELS + NDP_MAX_DIMMS,
};

static const double unit_ns = 1000;
static const double close_enough = 0.001;	/* an optimum is proven to this relative gap */
static const double give_up = 0.005;

struct program {
	glp_prob *lp;
	const struct ndp_layer *layer;
	int first_channel;	/* rows: GPU, PCIe, CPU, channels, DIMMs */
	int first_dimm;
	int nr_resources;
};

/* A column's coefficients under way to GLPK, which counts from 1. */
struct column {
	int n;
	int row[MAX_ENTRIES + 1];
	double value[MAX_ENTRIES + 1];
};

static void put(struct column *c, int row, double value)
{
	if (value == 0)
		return;
	c->n++;
	c->row[c->n] = row;
	c->value[c->n] = value;
}

static int add_column(struct program *p, const struct column *c, double upper)
{
	const int j = glp_add_cols(p->lp, 1);

	if (isinf(upper))
		glp_set_col_bnds(p->lp, j, GLP_LO, 0, 0);
	else
		glp_set_col_bnds(p->lp, j, GLP_DB, 0, upper);
	glp_set_mat_col(p->lp, j, c->n, c->row, c->value);
	return j;
}

static int add_row(struct program *p, int type, double bound)
{
	const int i = glp_add_rows(p->lp, 1);

	glp_set_row_bnds(p->lp, i, type, bound, bound);
	return i;
}

static void program_begin(struct program *p, const struct ndp_layer *layer)
{
	const struct ndp_host *host = layer->host;
	struct column t = { 0 };

	p->layer = layer;
	p->lp = glp_create_prob();
	p->first_channel = 4;
	p->first_dimm = p->first_channel + host->nr_channels;
	p->nr_resources = 3 + host->nr_channels + host->nr_dimms;
	glp_set_obj_dir(p->lp, GLP_MIN);
	for (int i = 1; i <= p->nr_resources; i++) {
		add_row(p, GLP_UP, 0);
		put(&t, i, -1);
	}
	glp_set_obj_coef(p->lp, add_column(p, &t, HUGE_VAL), 1);
}

/* A fraction of an expert: @loads times @share. */
static void put_loads(const struct program *p, struct column *c, const struct ndp_loads *l,
		      double share)
{
	const double f = share / unit_ns;

	put(c, 1, l->gpu_ns * f);
	put(c, 2, l->pcie_ns * f);
	put(c, 3, l->cpu_ns * f);
	for (uint32_t k = 0; k < p->layer->host->nr_channels; k++)
		put(c, p->first_channel + k, l->channel_ns[k] * f);
	for (uint32_t d = 0; d < p->layer->host->nr_dimms; d++)
		put(c, p->first_dimm + d, l->dimm_ns[d] * f);
}

/*
 * One column a domain that scales with the expert: any share, or, when @whole is
 * not 0, how many of that many equal experts.  Returns how many columns there are.
 */
static int add_whole(struct program *p, uint32_t e, int sum_row, uint32_t whole)
{
	int n = 0;

	for (int domain = 0; domain < NDP_DOMAINS; domain++) {
		struct column c = { 0 };
		struct ndp_loads loads;
		int j;

		if (isinf(ndp_expert_cost(p->layer, e, domain, &loads)))
			continue;
		put_loads(p, &c, &loads, 1);
		put(&c, sum_row, 1);
		j = add_column(p, &c, whole > 1 ? whole : 1);
		if (whole)
			glp_set_col_kind(p->lp, j, whole > 1 ? GLP_IV : GLP_BV);
		n++;
	}
	return n;
}

/* ---- experts on several DIMMs, each DIMM's part by itself ------------------ */

struct part {
	uint32_t expert;
	const uint16_t *blocks;
	uint32_t total;
	int sum_row;		/* of DIMM d: sum_row + d */
};

/* What DIMM d's NDP takes of its own part. */
static void add_ndp(struct program *p, const struct part *part)
{
	const struct ndp_host *host = p->layer->host;
	struct ndp_loads loads;

	if (isinf(ndp_expert_cost(p->layer, part->expert, NDP_DOMAIN_NDP, &loads)))
		return;
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		const uint32_t channel = d % host->nr_channels;
		struct column c = { 0 };
		uint32_t commands = 0;

		if (!part->blocks[d])
			continue;
		for (uint32_t k = channel; k < host->nr_dimms; k += host->nr_channels)
			commands += part->blocks[k] > 0;
		put(&c, p->first_dimm + d, loads.dimm_ns[d] / unit_ns);
		put(&c, p->first_channel + channel, loads.channel_ns[channel] / commands / unit_ns);
		put(&c, part->sum_row + d, 1);
		add_column(p, &c, 1);
	}
}

/*
 * A domain that reads: a column for its time on @resource, a row saying that
 * this is at least its own time (@own_ns of a whole expert), and one for each
 * channel; a column for what it takes from each DIMM.  @other: what scales with
 * the part besides (GPU time, staging, overhead).
 */
static void add_reader(struct program *p, const struct part *part, int resource, double own_ns,
		       const struct ndp_loads *other)
{
	const struct ndp_layer *layer = p->layer;
	const struct ndp_host *host = layer->host;
	const double expert_read_ns = layer->shape->expert_bytes / host->channel_gbps;
	int channel_row[NDP_MAX_CHANNELS], own_row;
	struct column time = { 0 };

	own_row = add_row(p, GLP_UP, 0);
	put(&time, own_row, -1);
	for (uint32_t k = 0; k < host->nr_channels; k++) {
		channel_row[k] = add_row(p, GLP_UP, 0);
		put(&time, channel_row[k], -1);
	}
	put(&time, resource, 1);
	add_column(p, &time, HUGE_VAL);
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		const double share = (double)part->blocks[d] / part->total;
		const uint32_t channel = d % host->nr_channels;
		const double read_ns = share * expert_read_ns;
		struct column c = { 0 };

		if (!part->blocks[d])
			continue;
		put_loads(p, &c, other, share);
		if (layer->charges & NDP_CHARGE_CHANNELS)
			put(&c, p->first_channel + channel, read_ns / unit_ns);
		if (layer->charges & NDP_CHARGE_DIMM_READS)
			put(&c, p->first_dimm + d, read_ns / unit_ns);
		put(&c, own_row, share * own_ns / unit_ns);
		put(&c, channel_row[channel], read_ns / unit_ns);
		put(&c, part->sum_row + d, 1);
		add_column(p, &c, 1);
	}
}

static void add_parts(struct program *p, uint32_t e)
{
	const struct ndp_layer *layer = p->layer;
	const struct ndp_host *host = layer->host;
	const double bytes = layer->shape->expert_bytes;
	struct part part = {
		.expert = e,
		.blocks = layer->blocks + (size_t)e * host->nr_dimms,
		.total = ndp_shape_blocks(layer->shape),
		.sum_row = glp_get_num_rows(p->lp) + 1,
	};
	struct ndp_loads loads, other = { 0 };

	for (uint32_t d = 0; d < host->nr_dimms; d++)
		add_row(p, part.blocks[d] ? GLP_FX : GLP_FR, 1);
	add_ndp(p, &part);
	if (!isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_CPU, &loads))) {
		other.cpu_ns = host->cpu.overhead_ns;
		add_reader(p, &part, 3, ndp_rate_ns(&host->cpu, layer->shape, layer->tokens[e]),
			   &other);
	}
	if (isinf(ndp_expert_cost(layer, e, NDP_DOMAIN_GPU, &loads)))
		return;
	other = (struct ndp_loads) { .gpu_ns = loads.gpu_ns, .cpu_ns = loads.cpu_ns };
	if (!layer->on_gpu || !layer->on_gpu[e]) {
		add_reader(p, &part, 2, bytes / host->pcie_gbps, &other);
		return;
	}
	for (uint32_t d = 0; d < host->nr_dimms; d++) {
		struct column c = { 0 };

		put_loads(p, &c, &other, (double)part.blocks[d] / part.total);
		put(&c, part.sum_row + d, 1);
		if (part.blocks[d])
			add_column(p, &c, 1);
	}
}

static bool lies_evenly(const struct ndp_layer *layer)
{
	const struct ndp_host *host = layer->host;

	if (host->nr_dimms % host->nr_channels)
		return false;
	/* Where experts without tokens lie does not matter. */
	for (uint32_t e = 0; e < layer->shape->experts; e++)
		for (uint32_t d = 0; layer->tokens[e] && d < host->nr_dimms; d++)
			if (layer->blocks[(size_t)e * host->nr_dimms + d] * host->nr_dimms !=
			    ndp_shape_blocks(layer->shape))
				return false;
	return true;
}

static uint32_t homes(const struct ndp_layer *layer, uint32_t e)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < layer->host->nr_dimms; d++)
		n += layer->blocks[(size_t)e * layer->host->nr_dimms + d] > 0;
	return n;
}

static int solve(struct program *p, double *objective_ns)
{
	glp_smcp param;

	glp_init_smcp(&param);
	param.msg_lev = GLP_MSG_OFF;
	param.presolve = GLP_ON;
	if (glp_simplex(p->lp, &param) || glp_get_status(p->lp) != GLP_OPT)
		return -EIO;
	*objective_ns = glp_get_obj_val(p->lp) * unit_ns;
	return 0;
}

int reference_lp(const struct ndp_layer *layer, double *bound_ns)
{
	const bool even = lies_evenly(layer);
	struct program p;
	int r;

	program_begin(&p, layer);
	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		if (!layer->tokens[e])
			continue;
		if (even || homes(layer, e) == 1)
			add_whole(&p, e, add_row(&p, GLP_FX, 1), 0);
		else
			add_parts(&p, e);
	}
	r = solve(&p, bound_ns);
	glp_delete_prob(p.lp);
	return r;
}

/* ---- whole experts ----------------------------------------------------------- */

enum answer {
	NO,		/* proven */
	YES,
	UNKNOWN,	/* out of time */
};

static double reading_ns(const struct program *p, int column)
{
	struct column c = { 0 };

	c.n = glp_get_mat_col(p->lp, column, c.row, c.value);
	for (int k = 1; k <= c.n; k++)
		if (c.row[k] == 2 || c.row[k] == 3)
			return c.value[k];
	return 0;
}

/* By how much (not above 0) the fullest resource misses the makespan column's value. */
static double fullest_row(const struct program *p)
{
	double fullest = -HUGE_VAL;

	for (int i = 1; i <= p->nr_resources; i++)
		fullest = fmax(fullest, glp_mip_row_val(p->lp, i));
	return fullest;
}

/* No more than this: every expert where it costs least by itself, one after the other. */
static double greedy_makespan(const struct ndp_layer *layer)
{
	double sum = 0;

	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		double least = HUGE_VAL;

		for (int domain = 0; layer->tokens[e] && domain < NDP_DOMAINS; domain++) {
			struct ndp_loads loads;

			least = fmin(least, ndp_expert_cost(layer, e, domain, &loads));
		}
		if (layer->tokens[e])
			sum += least;
	}
	return sum;
}

static void stop_at_first(glp_tree *tree, void *unused)
{
	(void)unused;
	if (glp_ios_reason(tree) == GLP_IBINGO)
		glp_ios_terminate(tree);
}

/* Experts that are the same to a scheduler: the search would try them in every order. */
static bool are_twins(const struct ndp_layer *layer, uint32_t e, uint32_t f)
{
	const size_t dimms = layer->host->nr_dimms;

	return layer->tokens[e] == layer->tokens[f] &&
	       (!layer->on_gpu || layer->on_gpu[e] == layer->on_gpu[f]) &&
	       !memcmp(layer->blocks + e * dimms, layer->blocks + f * dimms,
		       dimms * sizeof(*layer->blocks));
}

static bool has_twin_before(const struct ndp_layer *layer, uint32_t e)
{
	for (uint32_t f = 0; f < e; f++)
		if (are_twins(layer, e, f))
			return true;
	return false;
}

/*
 * Can whole experts be placed so that no resource exceeds @limit_ns?  With the
 * makespan a number, the resource rows are knapsacks of binaries, which GLPK has
 * strong cuts for; with it a column they are not.
 */
static enum answer fits(const struct ndp_layer *layer, double limit_ns, int limit_ms,
			double *found_ns)
{
	enum answer answer = UNKNOWN;
	struct program p;
	glp_iocp param;
	int r;

	program_begin(&p, layer);
	glp_set_col_bnds(p.lp, 1, GLP_FX, limit_ns / unit_ns, 0);
	for (uint32_t e = 0; e < layer->shape->experts; e++) {
		uint32_t twins = 1;

		if (!layer->tokens[e] || has_twin_before(layer, e))
			continue;
		for (uint32_t f = e + 1; f < layer->shape->experts; f++)
			twins += are_twins(layer, e, f);
		add_whole(&p, e, add_row(&p, GLP_FX, twins), twins);
	}
	/* A solution that keeps the CPU free is as good as any, and directs the search. */
	glp_set_obj_coef(p.lp, 1, 0);
	for (int j = 2; j <= glp_get_num_cols(p.lp); j++)
		glp_set_obj_coef(p.lp, j, reading_ns(&p, j));
	glp_init_iocp(&param);
	param.msg_lev = GLP_MSG_OFF;
	param.tm_lim = limit_ms;
	param.presolve = GLP_ON;
	param.cov_cuts = GLP_ON;
	param.mir_cuts = GLP_ON;
	param.cb_func = stop_at_first;
	r = glp_intopt(p.lp, &param);
	if (glp_mip_status(p.lp) == GLP_OPT || glp_mip_status(p.lp) == GLP_FEAS) {
		answer = YES;
		*found_ns = fullest_row(&p) * unit_ns + limit_ns;
	}
	else if (r == GLP_ENOPFS || (r == 0 && glp_mip_status(p.lp) == GLP_NOFEAS))
		answer = NO;
	glp_delete_prob(p.lp);
	return answer;
}

/* Relaxing the whole-expert program: a domain's share is the same on every DIMM. */
static int whole_bound(const struct ndp_layer *layer, double *bound_ns)
{
	struct program p;
	int r;

	program_begin(&p, layer);
	for (uint32_t e = 0; e < layer->shape->experts; e++)
		if (layer->tokens[e])
			add_whole(&p, e, add_row(&p, GLP_FX, 1), 0);
	r = solve(&p, bound_ns);
	glp_delete_prob(p.lp);
	return r;
}

/*
 * Halves the gap between a bound and a plan: proofs that nothing fits below a
 * limit are quick, and so is finding something that does, except near the
 * optimum. Where GLPK takes too long, only what is below is looked at further.
 */
int reference_ilp(const struct ndp_layer *layer, double known_ns, int limit_ms,
		  struct reference_ilp *out)
{
	double top_ns;
	int r;

	out->proven = false;
	r = whole_bound(layer, &out->bound_ns);
	if (r < 0)
		return r;
	out->best_ns = isinf(known_ns) ? greedy_makespan(layer) : known_ns;
	out->bound_ns = fmax(out->bound_ns, reference_count(layer, out->best_ns));
	top_ns = out->best_ns;
	while (top_ns - out->bound_ns > close_enough * top_ns) {
		const double middle = (out->bound_ns + top_ns) / 2;
		double found_ns;

		switch (fits(layer, middle, limit_ms, &found_ns)) {
		case NO:
			out->bound_ns = middle;
			break;
		case YES:
			out->best_ns = top_ns = found_ns;
			break;
		case UNKNOWN:
			if (middle - out->bound_ns < give_up * top_ns)
				return 0;
			top_ns = middle;
			break;
		}
	}
	out->proven = out->best_ns - out->bound_ns <= close_enough * out->best_ns;
	return 0;
}
