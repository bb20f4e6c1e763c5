// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ndp-reference - what the best scheduler could reach, by GLPK, for layers read
 * from standard input (protocol.h says how). Every time is modelled.
 *
 * A program of its own, so that nothing else needs GLPK. A malformed question
 * ends it, with the line and what is wrong on standard error.
 */
#include "protocol.h"
#include "solve.h"

#include <errno.h>
#include <glpk.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct question {
	struct ndp_host host;
	struct ndp_shape shape;
	struct ndp_layer layer;
	uint32_t *tokens;
	uint16_t *blocks;
	uint8_t *on_gpu;
};

/* The next word of the line; NULL: there is none. */
static char *word(char **line)
{
	char *w;

	do
		w = strsep(line, " \t\n");
	while (w && !*w);
	return w;
}

static bool number(char **line, double *value)
{
	char *w = word(line), *end;

	if (!w)
		return false;
	errno = 0;
	*value = strtod(w, &end);
	return !errno && end != w && !*end && !isnan(*value);
}

static bool count(char **line, uint32_t most, uint32_t *value)
{
	double v;

	if (!number(line, &v) || v < 0 || v > most || v != floor(v))
		return false;
	*value = v;
	return true;
}

static const char *read_rate(struct question *q, char **line)
{
	const char *name = word(line);
	struct ndp_rate *rate = !name ? NULL : !strcmp(name, "gpu") ? &q->host.gpu :
		!strcmp(name, "cpu") ? &q->host.cpu : !strcmp(name, "dimm") ? &q->host.dimm : NULL;

	if (!rate)
		return "rate: expected gpu, cpu or dimm";
	if (!number(line, &rate->gflops) || !number(line, &rate->gbps) ||
	    !number(line, &rate->overhead_ns) ||
	    !count(line, NDP_MAX_RATE_POINTS, &rate->nr_points))
		return "rate: expected GFLOPS GBPS OVERHEAD_NS POINTS";
	for (uint32_t i = 0; i < rate->nr_points; i++)
		if (!count(line, UINT32_MAX, &rate->tokens[i]) ||
		    !number(line, &rate->point_gflops[i]))
			return "rate: expected TOKENS GFLOPS for each point";
	return NULL;
}

static void clear_experts(struct question *q)
{
	memset(q->tokens, 0, NDP_MAX_EXPERTS * sizeof(*q->tokens));
	memset(q->on_gpu, 0, NDP_MAX_EXPERTS);
	memset(q->blocks, 0, (size_t)NDP_MAX_EXPERTS * NDP_MAX_DIMMS * sizeof(*q->blocks));
}

static const char *read_host(struct question *q, char **line)
{
	if (!number(line, &q->host.pcie_gbps) || !number(line, &q->host.channel_gbps) ||
	    !number(line, &q->host.staging_gbps) ||
	    !count(line, NDP_MAX_CHANNELS, &q->host.nr_channels) ||
	    !count(line, NDP_MAX_DIMMS, &q->host.nr_dimms))
		return "host: expected PCIE_GBPS CHANNEL_GBPS STAGING_GBPS CHANNELS DIMMS";
	clear_experts(q);
	return NULL;
}

static const char *read_shape(struct question *q, char **line)
{
	double bytes;

	if (!count(line, NDP_MAX_EXPERTS, &q->shape.experts) ||
	    !count(line, UINT32_MAX, &q->shape.top_k) ||
	    !count(line, UINT32_MAX, &q->shape.hidden) ||
	    !count(line, UINT32_MAX, &q->shape.intermediate) ||
	    !number(line, &bytes) || bytes < 1 || bytes > 0x1p53)
		return "shape: expected EXPERTS TOP_K HIDDEN INTERMEDIATE EXPERT_BYTES";
	q->shape.expert_bytes = bytes;
	clear_experts(q);
	return NULL;
}

static const char *read_expert(struct question *q, char **line)
{
	uint32_t e, on_gpu, blocks;

	if (!count(line, NDP_MAX_EXPERTS - 1, &e) || e >= q->shape.experts ||
	    !count(line, UINT32_MAX, &q->tokens[e]) || !count(line, 1, &on_gpu))
		return "expert: expected NUMBER (below the shape's experts) TOKENS ON_GPU";
	q->on_gpu[e] = on_gpu;
	for (uint32_t d = 0; d < q->host.nr_dimms; d++) {
		if (!count(line, UINT16_MAX, &blocks))
			return "expert: expected the blocks on each DIMM";
		q->blocks[(size_t)e * q->host.nr_dimms + d] = blocks;
	}
	return NULL;
}

/* Experts without tokens come without blocks: they lie on DIMM 0, where nobody looks. */
static void fill_absent(struct question *q)
{
	for (uint32_t e = 0; e < q->shape.experts; e++)
		if (!q->tokens[e]) {
			uint16_t *row = q->blocks + (size_t)e * q->host.nr_dimms;

			memset(row, 0, q->host.nr_dimms * sizeof(*row));
			row[0] = ndp_shape_blocks(&q->shape);
		}
}

static const char *solve(struct question *q, char **line)
{
	static struct ndp_error error;
	struct reference_ilp ilp;
	uint32_t limit_ms;
	double known_ns, fluid_ns;

	if (!number(line, &known_ns) || !count(line, INT32_MAX, &limit_ms))
		return "solve: expected KNOWN_NS LIMIT_MS";
	if (q->host.nr_dimms)
		fill_absent(q);
	if (ndp_layer_check(&q->layer, &error) < 0)
		return error.message;
	if (reference_lp(&q->layer, &fluid_ns) < 0)
		return "solve: GLPK found no fluid bound";
	printf("fluid %.6f", fluid_ns);
	if (limit_ms) {
		if (reference_ilp(&q->layer, known_ns, limit_ms, &ilp) < 0)
			return "solve: GLPK found no bound for whole experts";
		printf(" whole %.6f %.6f %d", ilp.best_ns, ilp.bound_ns, ilp.proven);
	}
	putchar('\n');
	clear_experts(q);
	return fflush(stdout) ? "cannot write the answer" : NULL;
}

static const char *read_line(struct question *q, char *line)
{
	char *w = word(&line);
	const char *wrong = NULL;

	if (!w)
		return NULL;
	if (!strcmp(w, "rate"))
		wrong = read_rate(q, &line);
	else if (!strcmp(w, "host"))
		wrong = read_host(q, &line);
	else if (!strcmp(w, "shape"))
		wrong = read_shape(q, &line);
	else if (!strcmp(w, "charges"))
		wrong = count(&line, UINT32_MAX, &q->layer.charges) ? NULL :
			"charges: expected BITS";
	else if (!strcmp(w, "expert"))
		wrong = read_expert(q, &line);
	else if (!strcmp(w, "solve"))
		wrong = solve(q, &line);
	else
		return "expected rate, host, shape, charges, expert or solve";
	return wrong ? wrong : word(&line) ? "more on the line than expected" : NULL;
}

int main(void)
{
	struct question q = { 0 };
	const char *wrong = NULL;
	unsigned long number = 0;
	char *line = NULL;
	size_t room = 0;

	q.tokens = calloc(NDP_MAX_EXPERTS, sizeof(*q.tokens));
	q.on_gpu = calloc(NDP_MAX_EXPERTS, 1);
	q.blocks = calloc((size_t)NDP_MAX_EXPERTS * NDP_MAX_DIMMS, sizeof(*q.blocks));
	if (!q.tokens || !q.on_gpu || !q.blocks)
		wrong = "not enough memory";
	q.layer = (struct ndp_layer) {
		.host = &q.host,
		.shape = &q.shape,
		.tokens = q.tokens,
		.blocks = q.blocks,
		.on_gpu = q.on_gpu,
	};
	/* GLPK's own chatter would stand among the answers. */
	glp_term_out(GLP_OFF);
	while (!wrong && getline(&line, &room, stdin) > 0) {
		number++;
		wrong = read_line(&q, line);
	}
	if (wrong)
		fprintf(stderr, "ndp-reference: line %lu: %s\n", number, wrong);
	free(line);
	free(q.tokens);
	free(q.on_gpu);
	free(q.blocks);
	return wrong ? 1 : 0;
}
