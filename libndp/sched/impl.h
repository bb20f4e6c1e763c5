/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * impl.h - what the files of libndp/sched share: the cost table of a layer.
 *
 * Resources in full order are GPU, PCIe, CPU, the channels, the DIMMs. A *row* is
 * one of them, or several that every expert loads alike, as the DIMMs are when
 * all experts lie evenly on all. The table holds the modelled nanoseconds for
 * which one way to compute one expert occupies each row, as vectors of floats; in
 * a *sparse* table, where every expert is in one DIMM, as five floats: GPU, PCIe,
 * CPU, the expert's channel, its DIMM. Searching works on the table; what a plan
 * reports is recomputed from the rules in double precision.
 */
#ifndef NDP_SCHED_IMPL_H
#define NDP_SCHED_IMPL_H

#include <ndp/sched.h>
#include <stdbool.h>
#include <string.h>

enum {
	ROW_GPU,
	ROW_PCIE,
	ROW_CPU,
	FULL_CHANNELS,		/* in full order */
	FULL_MAX = FULL_CHANNELS + NDP_MAX_CHANNELS + NDP_MAX_DIMMS,
	ROW_MAX = (FULL_MAX + 3) / 4 * 4,
	SPARSE_CHANNEL = 3,	/* in five floats */
	SPARSE_DIMM = 4,
	SPARSE_STRIDE = 8,
	/* Ways to compute an expert: in one domain, or divided as pattern.c says. */
	MADE_WAYS = 3,
	WAYS_MAX = NDP_DOMAINS + MADE_WAYS,
};

typedef float ndpi_vec __attribute__((vector_size(16), may_alias));

/* Room for any row. */
typedef float ndpi_wide[ROW_MAX] __attribute__((aligned(16)));

static inline ndpi_vec ndpi_max(ndpi_vec a, ndpi_vec b)
{
#ifdef __SSE__
	return __builtin_ia32_maxps(a, b);
#else
	typedef int mask __attribute__((vector_size(16)));
	const mask m = a > b;

	return (ndpi_vec)(((mask)a & m) | ((mask)b & ~m));
#endif
}

/* The sums of the elements of each; the fourth is none. */
static inline ndpi_vec ndpi_sums(ndpi_vec a, ndpi_vec b, ndpi_vec c)
{
	typedef int mask __attribute__((vector_size(16)));
	const mask even = { 0, 4, 2, 6 }, odd = { 1, 5, 3, 7 };
	const mask low = { 0, 1, 4, 5 }, high = { 2, 3, 6, 7 };
	const ndpi_vec ab = __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
	const ndpi_vec cc = __builtin_shuffle(c, c, even) + __builtin_shuffle(c, c, odd);

	return __builtin_shuffle(ab, cc, low) + __builtin_shuffle(ab, cc, high);
}

/* Four counts at a time: none of them, or all alike? */
static inline uint64_t ndpi_four(const uint16_t *counts)
{
	uint64_t value;

	memcpy(&value, counts, sizeof(value));
	return value;
}

static inline uint32_t ndpi_pad4(uint32_t n)
{
	return (n + 3) & ~3u;
}

/* What the rules need of a layer, divided once. */
struct ndpi_rules {
	const struct ndp_layer *layer;
	const struct ndp_rate *cpu;
	uint32_t nr_blocks;
	double block_read_ns;	/* one block over one channel */
	double block_pcie_ns;	/* one block over PCIe */
	double block_gpu_ns;	/* one block from the GPU's memory */
	double block_cpu_ns;	/* one block by cpu.gbps */
	double block_dimm_ns;	/* one block inside a DIMM */
	double block_staging_ns;
	double token_dimm_ns;	/* x and y of one token inside a DIMM; 0 when not charged */
	double token_host_ns;	/* and over its channel */
	/* Computing one token, where a roofline says; 0: the rate has a table. */
	double gpu_token_ns, cpu_token_ns, dimm_token_ns;
	double flops;
	uint32_t charges;
	bool can_hit, can_miss, can_cpu, can_ndp;
};

void ndpi_rules_init(struct ndpi_rules *rules, const struct ndp_layer *layer,
		     const struct ndp_rate *cpu);

/* The same for a plan, with the CPU that its policy counts. */
void ndpi_plan_rules(struct ndpi_rules *rules, const struct ndp_layer *layer,
		     const struct ndp_plan *plan);

/* Computing @tokens of a whole expert, memory aside. */
double ndpi_compute_ns(const struct ndp_rate *rate, double flops, uint32_t tokens);

double ndpi_gpu_ns(const struct ndpi_rules *rules, uint32_t tokens);
double ndpi_cpu_ns(const struct ndpi_rules *rules, uint32_t tokens);
double ndpi_dimm_ns(const struct ndpi_rules *rules, uint32_t tokens);

/*
 * Adds what @counts blocks (by DIMM) of expert @e in @domain occupy.  For the
 * GPU and the CPU this is one command, for NDP one in each DIMM with a count.
 */
void ndpi_add_part(const struct ndpi_rules *rules, uint32_t e, enum ndp_domain domain,
		   const uint16_t *counts, struct ndp_loads *loads);

/*
 * The same for whole experts in their domains, up to the first that does not lie evenly:
 * what those before it occupy of one DIMM they occupy of all.  @loads: nothing yet.
 * Returns how many.
 */
uint32_t ndpi_add_even(const struct ndpi_rules *rules, const uint8_t *domain, uint32_t experts,
		       struct ndp_loads *loads);

/* Adds what the shared expert occupies, if there is one. */
void ndpi_add_shared(const struct ndpi_rules *rules, struct ndp_loads *loads);

/* Does the machine have @domain? */
bool ndpi_has(const struct ndpi_rules *rules, enum ndp_domain domain);
/* Can expert @e be computed there at all? */
bool ndpi_can(const struct ndpi_rules *rules, uint32_t e, enum ndp_domain domain);

/* How many of one expert's blocks each domain takes from each DIMM. */
struct ndpi_cut {
	uint32_t i;		/* in the table */
	uint16_t blocks[NDP_DOMAINS][NDP_MAX_DIMMS];
};

struct ndpi_table {
	struct ndpi_rules rules;
	uint32_t experts;
	uint32_t nr;		/* experts with tokens */
	uint32_t rows;		/* of resources */
	uint32_t width;		/* rows padded to whole vectors */
	uint32_t full;		/* resources in full order */
	uint32_t full_width;
	uint32_t ways;		/* NDP_DOMAINS, or with room for some that are made */
	uint32_t stride;	/* floats that one way takes in @values */
	bool sparse;
	uint8_t row_of[ROW_MAX];	/* full order to row */
	uint8_t members[ROW_MAX];	/* resources in a row */
	ndpi_wide shared;	/* by row: what the shared expert occupies */
	uint32_t *expert;	/* [nr]: its number in the layer */
	uint8_t *can;		/* [nr]: bits 1 << way; the first are those of enum ndp_domain */
	uint8_t *channel_row;	/* [nr], of a sparse table */
	uint8_t *dimm_row;
	float *longest;		/* [nr][NDP_DOMAINS]: the largest entry; HUGE_VALF: impossible */
	float *values;		/* [nr][ways][stride]; impossible ones 0, but those to be made */
	struct ndpi_cut *made;	/* [nr][MADE_WAYS], of ways that are made */
};

static inline float *ndpi_values(const struct ndpi_table *t, uint32_t i, uint32_t way)
{
	return t->values + ((size_t)i * t->ways + way) * t->stride;
}

/* load += factor * what expert @i in @domain occupies; @load is in rows. */
static inline void ndpi_add(const struct ndpi_table *t, float *load, uint32_t i, uint32_t domain,
			    float factor)
{
	const float *v = ndpi_values(t, i, domain);

	if (t->sparse) {
		load[ROW_GPU] += factor * v[ROW_GPU];
		load[ROW_PCIE] += factor * v[ROW_PCIE];
		load[ROW_CPU] += factor * v[ROW_CPU];
		load[t->channel_row[i]] += factor * v[SPARSE_CHANNEL];
		load[t->dimm_row[i]] += factor * v[SPARSE_DIMM];
		return;
	}
	for (uint32_t k = 0; k < t->width; k += 4)
		*(ndpi_vec *)(load + k) += *(const ndpi_vec *)(v + k) * factor;
}

static inline float ndpi_entry(const struct ndpi_table *t, uint32_t i, uint32_t domain,
			       uint32_t row)
{
	const float *v = ndpi_values(t, i, domain);

	if (!t->sparse || row <= ROW_CPU)
		return v[row];
	return row == t->dimm_row[i] ? v[SPARSE_DIMM] :
		row == t->channel_row[i] ? v[SPARSE_CHANNEL] : 0;
}

/* Sum of @weight times the entries. */
static inline float ndpi_dot(const struct ndpi_table *t, const float *weight, uint32_t i,
			     uint32_t domain)
{
	const float *v = ndpi_values(t, i, domain);
	ndpi_vec sum;

	if (t->sparse)
		return weight[ROW_GPU] * v[ROW_GPU] + weight[ROW_PCIE] * v[ROW_PCIE] +
		       weight[ROW_CPU] * v[ROW_CPU] +
		       weight[t->channel_row[i]] * v[SPARSE_CHANNEL] +
		       weight[t->dimm_row[i]] * v[SPARSE_DIMM];
	sum = *(const ndpi_vec *)weight * *(const ndpi_vec *)v;
	for (uint32_t k = 4; k < t->width; k += 4)
		sum += *(const ndpi_vec *)(weight + k) * *(const ndpi_vec *)(v + k);
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The same of the shared expert. */
static inline float ndpi_dot_shared(const struct ndpi_table *t, const float *weight)
{
	float sum = 0;

	for (uint32_t r = 0; t->rules.layer->shared && r < t->rows; r++)
		sum += weight[r] * t->shared[r];
	return sum;
}

/* Cuts pieces off the caller's memory. */
struct ndpi_arena {
	uint8_t *at;
};

static inline void *ndpi_take(struct ndpi_arena *arena, size_t bytes)
{
	void *p = arena->at;

	arena->at += (bytes + 15) & ~(size_t)15;
	return p;
}

size_t ndpi_table_bytes(uint32_t experts, uint32_t nr_dimms);
/*
 * @domains: bits of those allowed.  @divide: experts that lie unevenly get room for
 * ways that are made, and each DIMM its row.  -ENODEV: an expert with tokens has no way.
 */
int ndpi_table_build(struct ndpi_table *t, struct ndpi_arena *arena, const struct ndp_layer *layer,
		     const struct ndp_rate *cpu, uint32_t domains, bool divide);

/* Loads in full order to rows, which get the mean of their members; prices the other way. */
void ndpi_to_rows(const struct ndpi_table *t, const float *full, float *row);
void ndpi_price_to_full(const struct ndpi_table *t, const float *row, float *full);

/* Whole experts: @choice [nr]. Greedy: every expert where it costs least by itself. */
void ndpi_greedy(const struct ndpi_table *t, uint8_t *choice);
/* Each to where the loads become most even: few steps from the best fluid solution. */
void ndpi_even_start(const struct ndpi_table *t, uint8_t *choice);
/* Rising; @other: as much room again. */
void ndpi_sort(uint64_t *keys, uint64_t *other, uint32_t n);
/* Moves out of an overloaded CPU or PCIe before the refinement looks closer. */
void ndpi_drain(const struct ndpi_table *t, uint8_t *choice, struct ndpi_arena arena);
void ndpi_refine(const struct ndpi_table *t, uint8_t *choice);

/*
 * Adds what a part of expert @i occupies to @load in full order: @counts blocks
 * by DIMM; nothing when there are none.
 */
void ndpi_add_part_row(const struct ndpi_table *t, uint32_t i, enum ndp_domain domain,
		       const uint16_t *counts, float sign, float *load);

/* Sum of the chosen ways and the shared expert, by row; returns the largest. */
float ndpi_sum(const struct ndpi_table *t, const uint8_t *choice, float *load);
static inline float ndpi_largest_of(ndpi_vec m)
{
	const float a = m[0] > m[1] ? m[0] : m[1], b = m[2] > m[3] ? m[2] : m[3];

	return a > b ? a : b;
}

static inline float ndpi_largest(const float *row, uint32_t width)
{
	ndpi_vec m = *(const ndpi_vec *)row;

	for (uint32_t k = 4; k < width; k += 4)
		m = ndpi_max(m, *(const ndpi_vec *)(row + k));
	return ndpi_largest_of(m);
}

/* ---- the fluid relaxation ------------------------------------------------ */

/* A solution: shares of the few experts that are divided, prices of the resources. */
struct ndpi_fluid {
	float makespan;
	float bound;		/* no fluid solution that reads evenly is shorter */
	uint32_t steps;
	uint32_t nr_divided;
	struct {
		uint32_t i;	/* in the table */
		float share[WAYS_MAX];
	} divided[ROW_MAX];
	ndpi_wide price;	/* in full order, at least 0, sum 1 */
};

size_t ndpi_fluid_bytes(uint32_t experts);
/*
 * @choice [nr]: in, where to start; out, one of the domains of each expert.
 * Stops when @gap, the relative distance from the bound, is reached.
 */
void ndpi_fluid_solve(const struct ndpi_table *t, uint8_t *choice, float gap,
		      struct ndpi_fluid *f, struct ndpi_arena arena);

/* ---- experts in pieces ------------------------------------------------------ */

/*
 * The blocks of expert @i, DIMM by DIMM, where they cost least at @price, which is in
 * full order.  False: no cheaper than @least, in ns.
 */
bool ndpi_make_way(const struct ndpi_table *t, uint32_t i, const float *price, float least,
		   struct ndpi_cut *cut, float *values);

/*
 * Experts divided by blocks: @choice [nr] for those that stay whole, @cuts for
 * those that do not; returns how many those are.  @bound_ns: a fluid bound.
 */
uint32_t ndpi_split(const struct ndpi_table *t, uint8_t *choice, struct ndpi_cut *cuts,
		    float *makespan_ns, float *bound_ns, struct ndpi_arena arena);
size_t ndpi_split_bytes(uint32_t experts);

#endif
