// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * gpu_plan.c - cuts a call into launches: which blocks of which jobs are computed
 * together, and the tables that the kernels find them by.
 *
 * Resident weights are one wave.  The others come through the two halves of a
 * bounded memory, so their jobs are cut by blocks, and the parts of y are added up
 * in the order of the blocks.  In a wave there is one launch for each variant of the
 * kernels that is needed, whatever the shapes.  Pure: it allocates, and nothing else.
 */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Half of the memory for misses, unless a single block needs more. */
#define HALF_BYTES (16u << 20)

/* ---- arrays that grow ------------------------------------------------------------- */

static void *add(struct ndpi_gpu_array *a, size_t n)
{
	if (a->n + n > a->room) {
		size_t room = (a->n + n) * 2;
		void *data = realloc(a->data, room * a->size);

		if (!data)
			return NULL;
		a->data = data;
		a->room = room;
	}
	a->n += n;
	return (char *)a->data + (a->n - n) * a->size;
}

void ndpi_gpu_plan_init(struct ndpi_gpu_plan *plan)
{
	memset(plan, 0, sizeof(*plan));
	plan->pieces.size = sizeof(struct ndpi_gpu_piece);
	plan->waves.size = sizeof(struct ndpi_gpu_wave);
	plan->parts.size = sizeof(struct ndpi_gpu_part);
	plan->jobs.size = sizeof(struct ndpi_gpu_job);
	plan->extents.size = sizeof(struct ndpi_gpu_extent);
	plan->rows.size = sizeof(uint32_t);
	plan->starts.size = sizeof(uint64_t);
	plan->row_starts.size = sizeof(uint32_t);
}

void ndpi_gpu_plan_free(struct ndpi_gpu_plan *plan)
{
	free(plan->pieces.data);
	free(plan->waves.data);
	free(plan->parts.data);
	free(plan->jobs.data);
	free(plan->extents.data);
	free(plan->rows.data);
	free(plan->starts.data);
	free(plan->row_starts.data);
}

uint32_t ndpi_gpu_job_blocks(const struct ndp_gpu_job *job)
{
	return job->nr_blocks || job->first ? job->nr_blocks : ndp_expert_blocks(&job->shape);
}

/* ---- waves ------------------------------------------------------------------------- */

static int add_piece(struct ndpi_gpu_plan *plan, struct ndpi_gpu_piece piece)
{
	struct ndpi_gpu_piece *p = add(&plan->pieces, 1);

	if (!p)
		return -ENOMEM;
	*p = piece;
	((struct ndpi_gpu_wave *)plan->waves.data)[plan->waves.n - 1].nr_pieces++;
	return 0;
}

static int add_wave(struct ndpi_gpu_plan *plan)
{
	struct ndpi_gpu_wave *wave = add(&plan->waves, 1);

	if (!wave)
		return -ENOMEM;
	*wave = (struct ndpi_gpu_wave){ .piece = plan->pieces.n };
	return 0;
}

/* Blocks of a miss: into what is left of this half, then the next. */
static int cut_miss(struct ndpi_gpu_plan *plan, uint32_t i, const struct ndp_gpu_job *job,
		    uint64_t *used)
{
	uint64_t block = ndp_expert_block_bytes(&job->shape);
	uint32_t first = job->first, left = ndpi_gpu_job_blocks(job);
	int r = 0;

	while (left && !r) {
		uint64_t n = (plan->half_bytes - *used) / block;

		if (!n) {
			*used = 0;
			r = add_wave(plan);
			continue;
		}
		if (n > left)
			n = left;
		r = add_piece(plan, (struct ndpi_gpu_piece){
			.job = i, .first = first, .blocks = n,
			.offset = ((plan->waves.n - 1) & 1) * plan->half_bytes + *used,
		});
		*used += n * block;
		first += n;
		left -= n;
	}
	return r;
}

static int cut(struct ndpi_gpu_plan *plan, const struct ndp_gpu_job *jobs, uint32_t n)
{
	uint64_t used;
	int r = add_wave(plan);

	plan->half_bytes = 0;
	for (uint32_t i = 0; i < n && !r; i++) {
		uint64_t block = ndp_expert_block_bytes(&jobs[i].shape);

		if (!jobs[i].tokens)
			continue;
		if (jobs[i].weights) {
			r = add_piece(plan, (struct ndpi_gpu_piece){
				.job = i, .first = jobs[i].first,
				.blocks = ndpi_gpu_job_blocks(&jobs[i]),
			});
			continue;
		}
		if (plan->half_bytes < HALF_BYTES)
			plan->half_bytes = HALF_BYTES;
		if (plan->half_bytes < block)
			plan->half_bytes = block;
	}
	used = plan->half_bytes; /* the first miss begins a wave */
	for (uint32_t i = 0; i < n && !r; i++)
		if (jobs[i].tokens && !jobs[i].weights)
			r = cut_miss(plan, i, &jobs[i], &used);
	return r;
}

/* ---- tables -------------------------------------------------------------------------- */

static uint32_t variant_of(const struct ndpi_gpu_limits *limits, uint32_t tokens)
{
	uint32_t v = 0;

	while (v + 1 < NDPI_GPU_VARIANTS && tokens > limits->up_to[v])
		v++;
	return v;
}

/* Where the blocks of a piece are, counted from its first one. */
static int add_extents(struct ndpi_gpu_plan *plan, const struct ndp_gpu_job *job,
		       const struct ndpi_gpu_piece *piece)
{
	uint64_t words = ndp_expert_block_bytes(&job->shape) / 4;
	const struct ndp_gpu_weights *w = job->weights;
	struct ndpi_gpu_extent *e;

	if (!w) {
		e = add(&plan->extents, 1);
		if (!e)
			return -ENOMEM;
		*e = (struct ndpi_gpu_extent){
			.offset = piece->offset / 4, .arena = NDPI_GPU_MISS, .end = piece->blocks,
		};
		return 0;
	}
	for (uint32_t i = 0; i < w->nr_extents; i++) {
		uint32_t from = w->extents[i].first, to = w->extents[i].end;
		uint32_t end = piece->first + piece->blocks;
		uint32_t begin = from > piece->first ? from : piece->first;

		if (to <= piece->first || from >= end)
			continue;
		e = add(&plan->extents, 1);
		if (!e)
			return -ENOMEM;
		*e = (struct ndpi_gpu_extent){
			.offset = w->extents[i].offset + (begin - from) * words,
			.arena = w->extents[i].arena, .first = begin - piece->first,
			.end = (to < end ? to : end) - piece->first,
		};
	}
	return 0;
}

/* The entry of a piece; @part and @h grow by it. */
static int add_job(struct ndpi_gpu_plan *plan, const struct ndpi_gpu_limits *limits,
		   const struct ndp_gpu_job *job, const struct ndpi_gpu_piece *piece,
		   uint64_t y, uint32_t rows, struct ndpi_gpu_part *part, uint64_t *h)
{
	uint32_t tiles = (job->tokens - 1) / limits->tile[part->variant] + 1;
	struct ndpi_gpu_job *entry = add(&plan->jobs, 1);

	if (!entry)
		return -ENOMEM;
	part->nr_jobs++;
	part->tiles_h += tiles * piece->blocks;
	part->tiles_y += tiles * ((job->shape.h_out - 1) / NDP_BLOCK_ROWS + 1);
	*entry = (struct ndpi_gpu_job){
		.h_off = *h, .y_off = y,
		.block_words = ndp_expert_block_bytes(&job->shape) / 4,
		.rows_off = rows, .tokens = job->tokens,
		.h_in = job->shape.h_in, .h_out = job->shape.h_out,
		.blocks = piece->blocks, .extent = plan->extents.n,
		.tiles_h_end = part->tiles_h, .tiles_y_end = part->tiles_y,
		.act = job->act, .accumulate = piece->first != job->first,
		.alpha = job->alpha, .limit = job->limit,
	};
	*h += (uint64_t)job->tokens * piece->blocks * NDP_BLOCK_ROWS;
	return add_extents(plan, job, piece);
}

/* The launches of a wave. @y and @rows: by job, where they begin. */
static int add_parts(struct ndpi_gpu_plan *plan, const struct ndpi_gpu_limits *limits,
		     const struct ndp_gpu_job *jobs, const uint64_t *y, const uint32_t *rows,
		     struct ndpi_gpu_wave *wave)
{
	const struct ndpi_gpu_piece *pieces = plan->pieces.data;
	int r = 0;

	wave->launch = plan->parts.n;
	for (uint32_t v = 0; v < NDPI_GPU_VARIANTS; v++) {
		struct ndpi_gpu_part part = { .first_job = plan->jobs.n, .variant = v };
		struct ndpi_gpu_part *to;
		uint64_t h = 0;

		for (uint32_t i = wave->piece; i < wave->piece + wave->nr_pieces && !r; i++) {
			uint32_t j = pieces[i].job;

			if (variant_of(limits, jobs[j].tokens) == v)
				r = add_job(plan, limits, &jobs[j], &pieces[i], y[j], rows[j], &part,
					    &h);
		}
		if (r)
			return r;
		if (!part.nr_jobs)
			continue;
		to = add(&plan->parts, 1);
		if (!to)
			return -ENOMEM;
		*to = part;
		wave->nr_launches++;
		if (plan->h_elements < h)
			plan->h_elements = h;
	}
	return 0;
}

int ndpi_gpu_plan_make(struct ndpi_gpu_plan *plan, const struct ndpi_gpu_limits *limits,
		       const struct ndp_gpu_job *jobs, uint32_t n)
{
	uint64_t *y;
	uint32_t *row0;
	int r;

	plan->pieces.n = plan->waves.n = plan->parts.n = 0;
	plan->jobs.n = plan->extents.n = plan->rows.n = plan->starts.n = plan->row_starts.n = 0;
	plan->h_elements = plan->y_elements = 0;
	plan->cols = 0;
	y = add(&plan->starts, n);
	row0 = add(&plan->row_starts, n);
	if (n && (!y || !row0))
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t *rows = add(&plan->rows, jobs[i].tokens);

		if (jobs[i].tokens && !rows)
			return -ENOMEM;
		y[i] = plan->y_elements;
		row0[i] = plan->rows.n - jobs[i].tokens;
		for (uint32_t t = 0; t < jobs[i].tokens; t++)
			rows[t] = jobs[i].rows ? jobs[i].rows[t] : t;
		plan->y_elements += (uint64_t)jobs[i].tokens * jobs[i].shape.h_out;
		if (jobs[i].tokens && plan->cols < jobs[i].shape.h_in)
			plan->cols = jobs[i].shape.h_in;
	}
	r = cut(plan, jobs, n);
	/* Room for all variants, so that what comes next with other numbers of tokens fits. */
	if (!r && !add(&plan->parts, plan->waves.n * NDPI_GPU_VARIANTS))
		r = -ENOMEM;
	plan->parts.n = 0;
	for (size_t w = 0; w < plan->waves.n && !r; w++)
		r = add_parts(plan, limits, jobs, y, row0,
			      (struct ndpi_gpu_wave *)plan->waves.data + w);
	return r;
}
