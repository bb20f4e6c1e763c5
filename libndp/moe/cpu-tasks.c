// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * cpu-tasks.c - what a task of an expert FFN does: packs a tile of tokens; computes h of
 * one neuron block for all tokens; computes y of some outputs for all tokens, over all
 * blocks.
 *
 * Weights are read once for each batch of tokens; all tiles of tokens pass over a chunk of
 * them while it is in the first-level cache, and fetch what comes next meanwhile.
 * Whatever a task writes is its own.
 */
#include "cpu-tasks.h"

#include <string.h>

enum {
	STREAM_TOKENS = 6,	/* for which bandwidth is all that counts */
	CPU_TOKENS = 3,	/* of these, for which the CPU fetches gate and up by itself */
	FIRST_BYTES = 2048,	/* but for these of a block */
	HALVES_TOKENS = 2,	/* of these, for which two halves of a block's tiles pass so */
	STREAMS = 2,	/* blocks whose tiles pass side by side */
	INPUTS_BYTES = 16 << 10,	/* in the first-level cache, beside weights */
	LINE = 64,
};

/*
 * Sizes differ by one at most: a tile of one after full ones would be slow.  Larger ones between
 * smaller ones are up to a tenth faster than all of them first (64 tokens, two threads, Zen 5).
 */
static uint32_t tile_first(const struct part *p, uint32_t tile)
{
	return tile * p->tokens / p->tiles; /* a batch is small */
}

static uint32_t tile_size(const struct part *p, uint32_t tile)
{
	return tile_first(p, tile + 1) - tile_first(p, tile);
}

/* Tile @tile of the chunk at input @k of @padded; see cpu-kernels.h. */
static size_t packed_offset(const struct part *p, uint32_t k, uint32_t padded, uint32_t tile)
{
	uint32_t chunk = min_u(padded - k, NDPI_CHUNK);

	return (size_t)k * p->tokens + (size_t)chunk * tile_first(p, tile);
}

static const ndp_bf16 *x_of(const struct part *p, uint32_t token)
{
	const struct ndp_cpu_job *job = p->job;
	size_t row = (size_t)p->first_token + token;

	return job->x + (job->rows ? job->rows[row] : row) * job->ldx;
}

/* Eight tokens at a time, the last eight of these even if some of them have been before. */
static void pack_chunk8(const struct part *p, void *x, uint32_t first, uint32_t tokens, uint32_t k,
			uint32_t n)
{
	const ndp_bf16 *rows[8];

	for (uint32_t t = 0; t < tokens; t += 8) {
		t = min_u(t, tokens - 8);
		for (uint32_t i = 0; i < 8; i++)
			rows[i] = x_of(p, first + t + i) + k;
		p->kernels->pack8(x, tokens, t, rows, n);
	}
}

static void pack(struct part *p, uint32_t tile)
{
	uint32_t first = tile_first(p, tile), tokens = tile_size(p, tile);
	uint32_t h_in = p->job->shape.h_in;

	for (uint32_t k = 0; k < p->h_in; k += NDPI_CHUNK) {
		uint32_t n = h_in > k ? min_u(h_in - k, NDPI_CHUNK) : 0;
		uint32_t padded = min_u(p->h_in - k, NDPI_CHUNK);
		void *x = p->x + packed_offset(p, k, p->h_in, tile) * p->kernels->elem_bytes;

		if (p->kernels->pack8 && tokens >= 8 && n == padded) {
			pack_chunk8(p, x, first, tokens, k, n);
			continue;
		}
		for (uint32_t t = 0; t < tokens; t++)
			p->kernels->pack(x, tokens, t, x_of(p, first + t) + k, n, padded);
	}
}

static void look_around(struct ndpi_thread *thread, uint32_t pieces)
{
	if (thread->poll && pieces % 32 == 31)
		thread->poll(thread->poll_arg);
}

/* How many pieces of 2 KiB ahead a single tile of tokens fetches weights: by tokens. */
static uint32_t pieces_ahead(uint32_t tokens)
{
	return tokens <= 6 ? 2 : 4;
}

/* What kernels leave to the CPU's own prefetching it takes up late at the beginning of a block. */
static void fetch_first(const uint8_t *one, const uint8_t *other)
{
	for (uint32_t i = 0; i < FIRST_BYTES; i += LINE) {
		__builtin_prefetch(one + i, 0, 3);
		__builtin_prefetch(other + i, 0, 3);
	}
}

/*
 * g and u of a block of few tokens; @next is the gate of the next one.
 */
static void project_both(const struct part *p, const uint8_t *gate, const uint8_t *up,
			 const uint8_t *next, float *g, float *u)
{
	for (uint32_t k = 0; k < p->h_in; k += NDPI_CHUNK) {
		uint32_t pieces = min_u(p->h_in - k, NDPI_CHUNK) / NDPI_ROWS;
		size_t at = (size_t)k / NDPI_ROWS * NDPI_TILE_BYTES;
		size_t ahead = min_u(pieces_ahead(p->tokens), pieces) * NDPI_TILE_BYTES;

		if (k + NDPI_CHUNK >= p->h_in && p->tokens <= CPU_TOKENS)
			fetch_first(next, next + (up - gate));
		p->kernels->both(gate + at, up + at, NDPI_TILE_BYTES, pieces,
				 p->x + (size_t)k * p->tokens * p->kernels->elem_bytes, p->tokens,
				 g, u, k ? NDPI_ADD : NDPI_SET, &(struct ndpi_ahead){
			.first = gate + at + ahead,
			.split = pieces - (uint32_t)(ahead / NDPI_TILE_BYTES),
			.second = k + NDPI_CHUNK < p->h_in ?
				gate + at + pieces * NDPI_TILE_BYTES : next,
			.stride = NDPI_TILE_BYTES, .step = NDPI_PAIR_BYTES,
		});
	}
}

/* One panel, or both, times all tiles of tokens; see project_many() and project_one(). */
static void project_chunk(const struct part *p, const uint8_t *w, uint32_t k, uint32_t tile,
			  float *out, const struct ndpi_ahead *ahead)
{
	p->kernels->multiply(w + (size_t)k / NDPI_ROWS * NDPI_TILE_BYTES, NDPI_TILE_BYTES,
			     min_u(p->h_in - k, NDPI_CHUNK) / NDPI_ROWS,
			     p->x + packed_offset(p, k, p->h_in, tile) * p->kernels->elem_bytes,
			     tile_size(p, tile), out + (size_t)tile_first(p, tile) * NDPI_ROWS,
			     NDPI_ROWS, k ? NDPI_ADD : NDPI_SET, ahead);
}

/* A single tile of tokens: a panel from its beginning to its end, @next after it. */
static void project_one(const struct part *p, const uint8_t *w, const uint8_t *next, float *out,
			struct ndpi_thread *thread)
{
	for (uint32_t k = 0; k < p->h_in; k += NDPI_CHUNK) {
		uint32_t pieces = min_u(p->h_in - k, NDPI_CHUNK) / NDPI_ROWS;
		const uint8_t *at = w + (size_t)k / NDPI_ROWS * NDPI_TILE_BYTES;
		uint32_t n = min_u(pieces_ahead(p->tokens), pieces);

		project_chunk(p, w, k, 0, out, &(struct ndpi_ahead){
			.first = at + n * NDPI_TILE_BYTES, .split = pieces - n,
			.second = k + NDPI_CHUNK < p->h_in ? at + pieces * NDPI_TILE_BYTES : next,
			.stride = NDPI_TILE_BYTES, .step = NDPI_PAIR_BYTES,
		});
		look_around(thread, k / NDPI_CHUNK);
	}
}

/*
 * Several tiles of tokens: all pass over a chunk of weights while it is in the first-level
 * cache, and each fetches its part of what comes next.  While a chunk of all tokens' inputs stays
 * there as well gate and up pass one after the other; else together, since then it is inputs
 * that are waited for.
 */
static void project_many(const struct part *p, const uint8_t *gate, const uint8_t *up,
			 const uint8_t *next, float *g, float *u, struct ndpi_thread *thread)
{
	bool together = p->tokens * NDPI_CHUNK * p->kernels->elem_bytes > INPUTS_BYTES;
	struct ndpi_ahead ahead = {
		.stride = NDPI_TILE_BYTES / p->tiles, .step = NDPI_PAIR_BYTES / p->tiles,
	};

	for (uint32_t k = 0; k < p->h_in; k += NDPI_CHUNK) {
		size_t at = (size_t)k / NDPI_ROWS * NDPI_TILE_BYTES;
		size_t bytes = (size_t)min_u(p->h_in - k, NDPI_CHUNK) / NDPI_ROWS *
			NDPI_TILE_BYTES;
		const uint8_t *after = k + NDPI_CHUNK < p->h_in ? gate + at + bytes : next;

		ahead.split = (uint32_t)(bytes / NDPI_TILE_BYTES);
		for (uint32_t i = 0; i < 2 * p->tiles; i++) {
			uint32_t tile = together ? i / 2 : i % p->tiles;
			bool is_up = together ? i % 2 : i >= p->tiles;

			if (together)
				ahead.first = is_up ? after + (up - gate) : after;
			else
				ahead.first = is_up ? after : up + at;
			ahead.first += bytes / p->tiles * tile;
			project_chunk(p, is_up ? up : gate, k, tile, is_up ? u : g, &ahead);
			look_around(thread, i);
		}
		look_around(thread, k / NDPI_CHUNK);
	}
}

static const uint8_t *down_of(const struct part *p)
{
	return p->blocks + (size_t)p->h_in * 2 * NDPI_ROWS * sizeof(ndp_bf16);
}

static void project(const struct call *c, struct part *p, uint32_t block,
		    struct ndpi_thread *thread)
{
	const struct ndp_cpu_job *job = p->job;
	const uint8_t *gate = p->blocks + block * p->block_bytes;
	const uint8_t *up = gate + (size_t)p->h_in / 2 * NDPI_PAIR_BYTES;
	float *g = (float *)(c->scratch + thread->index * c->scratch_bytes);
	float *u = g + (size_t)p->tokens * NDPI_ROWS;
	uint32_t neurons = p->nr_blocks * NDPI_ROWS, n = block * NDPI_ROWS;
	uint32_t in_chunk = n % NDPI_CHUNK;
	/* Other threads have those between. */
	const uint8_t *next = block + p->threads < p->nr_blocks ?
		gate + p->threads * p->block_bytes : down_of(p);

	if (p->tokens <= p->kernels->both_tokens) {
		project_both(p, gate, up, next, g, u);
	} else if (p->tiles > 1) {
		project_many(p, gate, up, next, g, u, thread);
	} else {
		project_one(p, gate, up, g, thread);
		project_one(p, up, next, u, thread);
	}
	for (uint32_t i = 0; i < p->tiles; i++) {
		uint32_t first = tile_first(p, i), size = tile_size(p, i);
		uint8_t *h = p->h + (packed_offset(p, n - in_chunk, neurons, i) +
				     (size_t)in_chunk * size) * p->kernels->elem_bytes;

		for (uint32_t t = 0; t < size; t++) {
			size_t at = ((size_t)first + t) * NDPI_ROWS;

			p->kernels->act(h, size, t, g + at, u + at, job->act, job->alpha,
					job->limit);
		}
	}
}

static float *y_of(const struct part *p, uint32_t tile, uint32_t token)
{
	return p->job->y + ((size_t)p->first_token + token) * p->job->ldy +
		(size_t)tile * NDPI_ROWS;
}

/* Outputs [tile * 32, (tile + @n) * 32) of all tokens, from [tile][token][32], to y. */
static void store(const struct part *p, uint32_t tile, uint32_t n, const float *from)
{
	uint32_t h_out = p->job->shape.h_out;

	for (uint32_t j = tile; j < tile + n && j * NDPI_ROWS < h_out; j++) {
		uint32_t columns = h_out - j * NDPI_ROWS;

		for (uint32_t t = 0; t < p->tokens; t++, from += NDPI_ROWS) {
			if (columns >= NDPI_ROWS)
				memcpy(y_of(p, j, t), from, NDPI_ROWS * sizeof(float));
			else
				memcpy(y_of(p, j, t), from, columns * sizeof(float));
		}
	}
}

/* Of a tile of tokens: rows of y lie far apart, and writing to them would wait for memory. */
static void fetch_y(const struct part *p, uint32_t tile, uint32_t n, uint32_t token,
		    uint32_t tokens)
{
	for (uint32_t t = token; t < token + tokens; t++)
		for (uint32_t i = 0; i < n * NDPI_ROWS * sizeof(float); i += LINE)
			__builtin_prefetch((const char *)y_of(p, tile, t) + i, 1, 2);
}

static const uint8_t *h_of(const struct part *p, uint32_t block, uint32_t tile)
{
	uint32_t in_chunk = block * NDPI_ROWS % NDPI_CHUNK;
	size_t at = packed_offset(p, block * NDPI_ROWS - in_chunk, p->nr_blocks * NDPI_ROWS, tile);

	return p->h + (at + (size_t)in_chunk * tile_size(p, tile)) * p->kernels->elem_bytes;
}

/*
 * @n tiles of outputs of few tokens: what counts is bandwidth, so weights pass in the order
 * in which they lie, and sums of a group of blocks wait in the cache.  Of one or two tokens
 * two halves of the tiles pass side by side; with more the registers of a chain fill and drain
 * too often for that.
 */
static void down_stream(const struct part *p, const uint8_t *w, uint32_t n, float *y, float *sum,
			struct ndpi_thread *thread)
{
	size_t floats = (size_t)p->tokens * n * NDPI_ROWS;
	bool side_by_side = p->tokens <= min_u(p->kernels->both_tokens, HALVES_TOKENS) && !(n % 2);
	uint32_t end = side_by_side ? n / 2 : n;

	for (uint32_t b = 0, m; b < p->nr_blocks; b += m) {
		const uint8_t *at = w + b * p->block_bytes, *h = h_of(p, b, 0), *next;
		uint32_t in_group = b % NDPI_GROUP;
		enum ndpi_store store = in_group ? NDPI_CONTINUE : NDPI_SET;

		m = min_u(p->nr_blocks - b, side_by_side ? 1 : STREAMS);
		next = b + m < p->nr_blocks ? at + m * p->block_bytes : w;
		for (uint32_t j = 0; j < end; j++) {
			uint32_t k = j + pieces_ahead(p->tokens);
			struct ndpi_ahead ahead = {
				.first = k < end ? at + (size_t)k * NDPI_TILE_BYTES :
					next + (size_t)(k - end) * NDPI_TILE_BYTES,
				.split = m, .stride = p->block_bytes, .step = NDPI_PAIR_BYTES,
			};
			const uint8_t *tile = at + (size_t)j * NDPI_TILE_BYTES;
			float *s = sum + (size_t)j * p->tokens * NDPI_ROWS;

			if (side_by_side && j + 1 == end)
				fetch_first(next, next + (size_t)end * NDPI_TILE_BYTES);
			if (side_by_side)
				p->kernels->both(tile, tile + (size_t)end * NDPI_TILE_BYTES,
						 p->block_bytes, m, h, p->tokens, s,
						 s + (size_t)end * p->tokens * NDPI_ROWS, store,
						 &ahead);
			else
				p->kernels->multiply(tile, p->block_bytes, m, h, p->tokens, s,
						     NDPI_ROWS, store, &ahead);
		}
		if (in_group + m == NDPI_GROUP || b + m == p->nr_blocks)
			for (size_t i = 0; i < floats; i++)
				y[i] = b < NDPI_GROUP ? sum[i] : y[i] + sum[i];
		look_around(thread, b);
	}
}

/*
 * @n tiles of outputs: of a group of blocks @step tiles at a time, which stay in the cache
 * while all tiles of tokens pass; sums stay in registers for the group.  Each tile of tokens
 * fetches its part of what comes next.  @out is the first tile of outputs.
 */
static void down_reuse(const struct part *p, const uint8_t *w, uint32_t out, uint32_t n,
		       uint32_t step, float *y, struct ndpi_thread *thread)
{
	for (uint32_t b = 0; b < p->nr_blocks; b += NDPI_GROUP) {
		uint32_t blocks = min_u(p->nr_blocks - b, NDPI_GROUP);
		const uint8_t *group = w + b * p->block_bytes;
		const uint8_t *after = b + blocks < p->nr_blocks ?
			group + blocks * p->block_bytes : w + n * NDPI_TILE_BYTES;
		struct ndpi_ahead ahead = {
			.split = blocks, .stride = p->block_bytes,
			.step = NDPI_PAIR_BYTES / p->tiles,
		};

		for (uint32_t j = 0; j < n; j += step) {
			for (uint32_t i = 0; i < p->tiles * step; i++) {
				uint32_t tile = i / step, k = j + i % step;
				const uint8_t *at = group + (size_t)k * NDPI_TILE_BYTES;
				const uint8_t *next = j + step < n ?
					at + step * NDPI_TILE_BYTES :
					after + (size_t)(k - j) * NDPI_TILE_BYTES;

				if (k >= n)
					continue;
				if (b + blocks == p->nr_blocks)
					fetch_y(p, out + k, 1, tile_first(p, tile),
						tile_size(p, tile));
				ahead.first = next + NDPI_TILE_BYTES / p->tiles * tile;
				p->kernels->multiply(at, p->block_bytes, blocks,
						     h_of(p, b, tile), tile_size(p, tile),
						     y + ((size_t)k * p->tokens +
							  tile_first(p, tile)) * NDPI_ROWS,
						     NDPI_ROWS, b ? NDPI_ADD : NDPI_SET, &ahead);
				look_around(thread, i);
			}
			look_around(thread, j);
		}
		look_around(thread, b / NDPI_GROUP);
	}
}

static void down(const struct call *c, struct part *p, uint32_t task, struct ndpi_thread *thread)
{
	uint32_t tile = task * p->outs, end = min_u(tile + p->outs, p->h_out / NDPI_ROWS);
	float *y = (float *)(c->scratch + thread->index * c->scratch_bytes);
	const uint8_t *w = down_of(p);

	for (uint32_t n; tile < end; tile += n) {
		const uint8_t *at = w + (size_t)tile * NDPI_TILE_BYTES;

		n = p->tiles > 1 ? min_u(2, end - tile) : end - tile;
		if (p->tiles == 1 && p->tokens <= STREAM_TOKENS)
			down_stream(p, at, n, y, y + (size_t)p->tokens * n * NDPI_ROWS, thread);
		else
			down_reuse(p, at, tile, n, p->tiles > 1 ? 2 : 1, y, thread);
		store(p, tile, n, y);
		if (thread->poll) /* few large tiles of tokens do not look above */
			thread->poll(thread->poll_arg);
	}
}

/* Kernels that keep a state in the CPU, which whoever is polled may want for something else. */
struct entered {
	struct ndpi_thread thread;
	const struct ndpi_thread *caller;
	const struct ndpi_cpu_kernels *kernels;
};

static void poll_outside(void *arg)
{
	const struct entered *e = arg;

	e->kernels->end();
	e->caller->poll(e->caller->poll_arg);
	e->kernels->begin();
}

static struct ndpi_thread *enter(const struct part *p, struct ndpi_thread *thread,
				 struct entered *e)
{
	if (!p->kernels->begin)
		return thread;
	p->kernels->begin();
	if (!thread->poll)
		return thread;
	*e = (struct entered){ *thread, thread, p->kernels };
	e->thread.poll = poll_outside;
	e->thread.poll_arg = e;
	return &e->thread;
}

static void leave(const struct part *p)
{
	if (p->kernels->end)
		p->kernels->end();
}

void ndpi_cpu_run_task(struct ndpi_work *work, uint32_t list, uint32_t task,
		       struct ndpi_thread *thread)
{
	struct call *c = (struct call *)work;
	const struct run *r = c->list[list].runs;
	uint32_t low = 0, high = c->list[list].n;
	struct entered entered;
	struct part *p;

	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (r[mid].first <= task)
			low = mid;
		else
			high = mid;
	}
	r += low;
	p = r->part;
	task -= r->first;
	switch (r->kind) {
	case PACK:
		pack(p, task);
		atomic_fetch_add_explicit(&p->packed, 1, memory_order_release);
		break;
	case PROJECT:
		ndpi_pool_wait(&p->packed, p->tiles, thread);
		thread = enter(p, thread, &entered);
		project(c, p, task, thread);
		leave(p);
		atomic_fetch_add_explicit(&p->projected, 1, memory_order_release);
		break;
	default:
		ndpi_pool_wait(&p->projected, p->nr_blocks, thread);
		thread = enter(p, thread, &entered);
		down(c, p, task, thread);
		leave(p);
	}
}
