/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * sched.h - which domain (GPU, CPU, NDP DIMMs) computes which expert of a
 * layer, and what that takes on a described machine.
 *
 * Every time here is *modelled time*: what the described machine would take by
 * the rules below, never what passed on a clock.  Pure functions: no I/O, no
 * clock, no allocation, no global state; equal input gives an equal plan.  The
 * caller gives the memory, sized by the *_bytes() functions, aligned for any
 * type; different threads use different memory.
 *
 * The rules (TriMoE, arXiv 2603.01058, and the shared resources it leaves out)
 *
 * An expert of L tokens, or a part of f = k / blocks of its neuron blocks, that
 * is computed
 *
 *   on the GPU, resident   occupies the GPU for      f_gpu(L) f
 *   on the GPU, missing    also PCIe for             max(W f / pcie, T_read)
 *   on the CPU             occupies the CPU for      max(f_cpu(L) f, T_read)
 *   in DIMM d (its blocks  occupies DIMM d for       max(compute(L) f, W f / internal)
 *     there)
 *
 * plus the domain's overhead for each command: one for an expert's blocks on
 * the GPU, one for those on the CPU, one for those in each DIMM.  T_read is the
 * time that the slowest of the memory channels takes to deliver the part's
 * bytes: a localized expert comes from one channel, a spread one from several.
 * Experts follow one another on the GPU, PCIe, the CPU and each DIMM; domains
 * run side by side.  The makespan is the load of the most loaded resource.
 *
 * What else occupies resources can be switched on by enum ndp_charge.
 */
#ifndef NDP_SCHED_H
#define NDP_SCHED_H

#include <ndp/error.h>
#include <ndp/placement.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the machine, the layer ------------------------------------------ */

enum {
	NDP_MAX_CHANNELS = 32,
	NDP_MAX_RATE_POINTS = 16,
	NDP_MAX_EXPERTS = 4096,
};

/*
 * How fast a domain is.  By roofline: the longer of computing at @gflops and
 * reading the weights at @gbps.  With @nr_points measured points @gflops gives
 * way to a table: tokens of an expert (ascending) to GFLOP/s reached, linear
 * between the points and level beyond them.
 */
struct ndp_rate {
	double gflops;		/* peak times efficiency; 0: the machine lacks this domain */
	double gbps;		/* the memory it computes from; 0: no limit of its own */
	double overhead_ns;	/* of each command */
	uint32_t nr_points;
	uint32_t tokens[NDP_MAX_RATE_POINTS];
	double point_gflops[NDP_MAX_RATE_POINTS];
};

/* The DIMMs are the host's memory, whether they compute (dimm.gflops > 0) or not. */
struct ndp_host {
	struct ndp_rate gpu;	/* gbps: its own memory */
	struct ndp_rate cpu;	/* gbps: 0, channels limit it */
	struct ndp_rate cpu_plain;	/* the CPU without its matrix unit (ablation); may be absent */
	struct ndp_rate dimm;	/* one DIMM; gbps: internal */
	double pcie_gbps;	/* host to GPU; 0: no way, misses are impossible */
	double channel_gbps;	/* one memory channel, and the most one DIMM gives the host */
	double staging_gbps;	/* at which the CPU copies weights into memory that the GPU can
				   read; 0: the GPU reads DIMMs directly */
	double link_gbps;	/* DIMM-Link, one port, each way; 0: none */
	double link_latency_ns;
	uint64_t gpu_bytes;	/* GPU memory for experts */
	uint64_t dimm_bytes;	/* of one DIMM */
	uint32_t nr_channels;	/* 1..NDP_MAX_CHANNELS; DIMM d sits in channel d % nr_channels */
	uint32_t nr_dimms;	/* 1..NDP_MAX_DIMMS */
};

/* The routed experts of one layer. */
struct ndp_shape {
	uint32_t experts;	/* 1..NDP_MAX_EXPERTS */
	uint32_t top_k;
	uint32_t hidden;	/* width of an expert's input and output */
	uint32_t intermediate;	/* neurons */
	uint64_t expert_bytes;	/* weights of one expert as stored */
};

/* Neuron blocks of an expert: at most 65535. */
uint32_t ndp_shape_blocks(const struct ndp_shape *shape);
/* FLOPs of one token in one expert. */
double ndp_shape_flops(const struct ndp_shape *shape);

enum ndp_charge {
	/* Host reads share the channels: CPU reads and GPU misses by channel. */
	NDP_CHARGE_CHANNELS = 1 << 0,
	/* A DIMM that gives the host b bytes is busy for b / channel_gbps. */
	NDP_CHARGE_DIMM_READS = 1 << 1,
	/*
	 * A command in a DIMM moves L x hidden x (2 + 4) bytes of x and y: inside
	 * the DIMM, over its channel, and (with NDP_CHARGE_DIMM_READS) through its
	 * host side.
	 */
	NDP_CHARGE_ACTIVATIONS = 1 << 2,
	/* A GPU miss occupies the CPU for bytes / staging_gbps. */
	NDP_CHARGE_STAGING = 1 << 3,

	/* Configuration A: the paper's physics.  Configuration B: everything. */
	NDP_CHARGES_PAPER = NDP_CHARGE_CHANNELS,
	NDP_CHARGES_ALL = 15,
};

/* One layer in one step: the problem.  Nothing is copied. */
struct ndp_layer {
	const struct ndp_host *host;
	const struct ndp_shape *shape;
	uint32_t charges;
	const uint32_t *tokens;	/* [experts]: tokens routed to each */
	/*
	 * [experts][nr_dimms]: how many of the expert's blocks each DIMM holds; a row
	 * sums to ndp_shape_blocks().  Blocks are numbered DIMM by DIMM in a row.
	 */
	const uint16_t *blocks;
	const uint8_t *on_gpu;	/* [experts]: 1: GPU memory holds a copy.  NULL: none */
	/*
	 * A shared expert is not scheduled: it takes its time in @shared_domain (on the
	 * GPU from a copy there) and the routed ones go around it.  Its blocks are as
	 * large as theirs; there may be more of them.
	 */
	const uint16_t *shared;	/* [nr_dimms]: its blocks.  NULL: none */
	uint32_t shared_tokens;
	uint8_t shared_domain;	/* enum ndp_domain, one that the machine has */
};

/*
 * 0, or -EINVAL with a sentence naming the field.  The functions below expect a
 * layer that passes (they stay in bounds when only tokens and on_gpu change).
 */
int ndp_layer_check(const struct ndp_layer *layer, struct ndp_error *err);

/* Writes a row of @blocks from a placement.  -EINVAL: its DIMMs are not the host's. */
int ndp_layer_place(uint16_t *row, uint32_t nr_dimms, const struct ndp_placement *p);

/* ---- costs ------------------------------------------------------------- */

enum ndp_domain {
	NDP_DOMAIN_GPU,
	NDP_DOMAIN_CPU,
	NDP_DOMAIN_NDP,
	NDP_DOMAINS,
	NDP_DOMAIN_NONE = NDP_DOMAINS,	/* no tokens, nothing to do */
	NDP_DOMAIN_SPLIT,		/* in pieces over domains */
};

/* Modelled time for which each resource is occupied. */
struct ndp_loads {
	double gpu_ns;
	double pcie_ns;
	double cpu_ns;
	double channel_ns[NDP_MAX_CHANNELS];
	double dimm_ns[NDP_MAX_DIMMS];
};

/* The most loaded resource's time. */
double ndp_loads_max(const struct ndp_loads *loads, const struct ndp_host *host);

/*
 * What computing expert @e whole in @domain occupies.  Returns the longest of
 * it (what a greedy scheduler compares), or HUGE_VAL when the domain cannot:
 * the machine lacks it, or a miss has no PCIe to come over.
 */
double ndp_expert_cost(const struct ndp_layer *layer, uint32_t e, enum ndp_domain domain,
		       struct ndp_loads *loads);

/* f(L) of a whole expert without its command: the roofline or the table. */
double ndp_rate_ns(const struct ndp_rate *rate, const struct ndp_shape *shape, uint32_t tokens);

/* ---- policies ---------------------------------------------------------- */

enum ndp_policy {
	NDP_POLICY_GPU,			/* everything on the GPU, misses over PCIe */
	NDP_POLICY_GPU_CPU,		/* greedy, refined; domains GPU and CPU */
	NDP_POLICY_GPU_NDP,		/* greedy, refined; domains GPU and NDP */
	NDP_POLICY_TRIMOE,		/* greedy, refined; all three */
	NDP_POLICY_TRIMOE_NOREFINE,	/* greedy only */
	NDP_POLICY_TRIMOE_NOCPU_AMX,	/* trimoe with cpu_plain as the CPU */
	NDP_POLICY_SPLIT,		/* experts divided by blocks, towards the fluid bound */
	NDP_POLICIES,
};

/* ---- plans ------------------------------------------------------------- */

/* @nr_blocks of expert @expert's blocks on @dimm, from its @first there, go to @domain. */
struct ndp_piece {
	uint32_t expert;
	uint16_t first;
	uint16_t nr_blocks;
	uint8_t domain;
	uint8_t dimm;
	uint16_t reserved;	/* 0 */
};

struct ndp_plan {
	enum ndp_policy policy;	/* that made it; decides which CPU rate counts */
	uint32_t experts;
	uint32_t nr_pieces;
	uint32_t max_pieces;
	uint8_t *domain;	/* [experts]: enum ndp_domain */
	/*
	 * For experts that are split only: by expert, then domain, then DIMM; together
	 * the pieces of an expert are all of its blocks, each once.
	 */
	struct ndp_piece *pieces;
	double makespan_ns;
	struct ndp_loads loads;
};

size_t ndp_plan_bytes(uint32_t experts, uint32_t nr_dimms);
/* @mem: ndp_plan_bytes() of memory that the plan then uses. */
void ndp_plan_init(struct ndp_plan *plan, void *mem, uint32_t experts, uint32_t nr_dimms);

/*
 * 0 when every expert with tokens is computed exactly once and loads and
 * makespan are what the rules give, else -EINVAL and a sentence.
 */
int ndp_plan_check(const struct ndp_layer *layer, const struct ndp_plan *plan,
		   struct ndp_error *err);

/* Loads of a plan by the rules, from nothing but its domains and pieces. */
void ndp_plan_loads(const struct ndp_layer *layer, const struct ndp_plan *plan,
		    struct ndp_loads *loads);

/* Commands that a plan gives to each domain, the shared expert's aside. */
void ndp_plan_commands(const struct ndp_layer *layer, const struct ndp_plan *plan,
		       uint32_t commands[NDP_DOMAINS]);

/* ---- scheduling ---------------------------------------------------------- */

/* "gpu", "gpu-cpu", "gpu-ndp", "trimoe", "trimoe-norefine", "trimoe-nocpu-amx", "split" */
const char *ndp_policy_name(enum ndp_policy policy);
/* The policy of that name, or -EINVAL. */
int ndp_policy_parse(const char *name);

size_t ndp_schedule_bytes(uint32_t experts, uint32_t nr_dimms);
/*
 * Fills @plan.  @work: ndp_schedule_bytes() of memory, contents irrelevant.
 * -ENODEV: the policy's domains cannot compute some expert that has tokens.
 */
int ndp_schedule(const struct ndp_layer *layer, enum ndp_policy policy, void *work,
		 struct ndp_plan *plan);

/*
 * A time that no plan can beat, whole or split: never above the fluid (linear
 * programming) bound, and near it.  @work as for ndp_schedule().
 */
double ndp_fluid_bound(const struct ndp_layer *layer, void *work);

/* ---- timeline ------------------------------------------------------------ */

enum ndp_lane {
	NDP_LANE_GPU,
	NDP_LANE_PCIE,
	NDP_LANE_CPU,
	NDP_LANE_DIMM,		/* index: the DIMM; commands */
	NDP_LANE_READ,		/* index: the DIMM; host reads and activations served by it */
	NDP_LANE_LINK,		/* index: the receiving DIMM */
};

/* A copy in the background: to GPU memory (to_gpu), or from DIMM to DIMM over DIMM-Link. */
struct ndp_copy {
	uint64_t bytes;
	uint32_t expert;
	uint8_t to_gpu;
	uint8_t from;		/* DIMM; for to_gpu NDP_MAX_DIMMS means spread over all */
	uint8_t to;		/* DIMM, unless to_gpu */
};

/* One bar of a Gantt chart. */
struct ndp_span {
	double start_ns;
	double end_ns;
	uint32_t expert;	/* the number of experts: the shared one */
	uint8_t lane;		/* enum ndp_lane */
	uint8_t index;
	uint8_t background;	/* 1: a struct ndp_copy */
};

struct ndp_timeline {
	double makespan_ns;	/* the layer's own end */
	double end_ns;		/* the last background copy's end, at least makespan_ns */
	struct ndp_loads busy;	/* of the layer, without the background */
	double copy_ns;		/* time copies were under way, summed over copies */
	double hidden_ns;	/* of it, before the layer's end */
	double delay_ns;	/* by which background copies put off the layer's end */
	uint32_t nr_spans;	/* written; those beyond @max_spans are left out */
};

size_t ndp_timeline_bytes(uint32_t experts, uint32_t nr_dimms, uint32_t nr_copies);
/*
 * Plays a plan event by event: tasks one after the other on the GPU, PCIe, CPU
 * and each DIMM; host reads share channels and take DIMMs away from their
 * commands; x is written before a command and y read after it; a missing expert
 * is staged, transferred, computed; background copies get what is left, and a
 * DIMM computes slower by what a copy takes of its memory.  What is charged is
 * what @layer charges.  The layer's makespan is at least the plan's, and longer
 * by what parts wait for one another.  @work: ndp_timeline_bytes() of memory.
 * @spans may be NULL with @max_spans 0.  -EINVAL: a copy names a DIMM that the
 * host lacks, or a link or PCIe that it lacks.
 */
int ndp_timeline(const struct ndp_layer *layer, const struct ndp_plan *plan,
		 const struct ndp_copy *copies, uint32_t nr_copies, void *work,
		 struct ndp_span *spans, uint32_t max_spans, struct ndp_timeline *out);

#ifdef __cplusplus
}
#endif

#endif
