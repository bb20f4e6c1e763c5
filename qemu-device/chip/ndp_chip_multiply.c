/* SPDX-License-Identifier: MIT */
/*
 * ndp_chip_multiply.c - GEMV, FFN and ACT: the order in which weights and
 * tokens meet, for every ISA path.
 *
 * Weights come from DRAM once for each batch of NDP_BATCH tokens.  A batch is
 * cut into tiles of tokens that fit a kernel's registers.  With one tile, FFN
 * goes block after block: what counts there is bandwidth.  With more, it works
 * on a group of blocks, so that a chunk of weights stays in the first-level
 * cache while all tiles pass over it, and y is loaded and stored once a group.
 *
 * x is read only where the operation names columns, into a private buffer
 * padded with zeroes, since a zero weight times a NaN in padding would be a
 * NaN.  Everything that is computed stays private until it is complete.
 */
#include <stdlib.h>
#include <string.h>

#include "ndp_chip_impl.h"

/* Tiles of down, an even number, between two looks at the abort flag. */
enum { DOWN_SLICE = 256 };

/* A tile of tokens within the batch: tokens first .. first + n - 1. */
struct tile {
    unsigned first;
    unsigned n;
};

struct batch {
    struct ndp_chip_engine *e;
    const struct ndp_chip_op *op;
    const struct ndp_chip_mem *mem;
    const int *abort;
    unsigned first; /* token of the operation */
    unsigned n;
    unsigned tiles;
    uint32_t k_padded;
    uint32_t y_padded;
};

/* Sizes differ by one at most: a tile of one after full ones would be slow. */
static struct tile tile_at(const struct batch *b, unsigned i)
{
    unsigned first = i * b->n / b->tiles;

    return (struct tile) { first, (i + 1) * b->n / b->tiles - first };
}

static unsigned min_u(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static bool reserve(struct ndp_chip_buf *buf, size_t bytes)
{
    void *p;

    if (buf->bytes >= bytes) {
        return true;
    }
    if (posix_memalign(&p, 64, bytes)) {
        return false;
    }
    free(buf->p);
    *buf = (struct ndp_chip_buf) { p, bytes };
    return true;
}

/* Packed inputs lie as [chunk][tile][k][token of the tile]. */
static uint8_t *x_at(const struct batch *b, unsigned k, struct tile t)
{
    unsigned len = min_u(b->k_padded - k, NDP_CHUNK);

    return (uint8_t *)b->e->x.p +
           ((size_t)k * b->n + (size_t)len * t.first) * b->e->k->elem_bytes;
}

/* Packed h lies as [tile][neuron of the group][token of the tile]. */
static uint8_t *h_at(const struct batch *b, unsigned neuron, struct tile t)
{
    return (uint8_t *)b->e->h.p +
           ((size_t)NDP_CHUNK * t.first + (size_t)neuron * t.n) *
           b->e->k->elem_bytes;
}

static float *y_at(const struct batch *b, unsigned token)
{
    return (float *)b->e->y.p + (size_t)token * b->y_padded;
}

static enum ndp_chip_status load_x(struct batch *b)
{
    const struct ndp_chip_op *op = b->op;
    const struct ndp_chip_kernels *kern = b->e->k;

    if (!reserve(&b->e->x, (size_t)b->k_padded * b->n * kern->elem_bytes)) {
        return NDP_CHIP_ERR_INTERNAL;
    }
    for (unsigned i = 0; i < b->tiles; i++) {
        struct tile t = tile_at(b, i);

        for (unsigned j = 0; j < t.n; j++) {
            unsigned token = b->first + t.first + j;
            uint64_t row = op->flags & NDP_CHIP_ROWS ? b->e->rows[token]
                                                     : token;
            const uint16_t *src = (const uint16_t *)
                (b->mem->base + op->x + row * op->ldx_bytes);

            if (ndp_chip_aborted(b->abort)) {
                return NDP_CHIP_ERR_ABORTED;
            }
            for (unsigned k = 0; k < b->k_padded; k += NDP_CHUNK) {
                unsigned left = op->h_in > k ? op->h_in - k : 0;

                kern->pack(x_at(b, k, t), t.n, j, src + k,
                           min_u(left, NDP_CHUNK),
                           min_u(b->k_padded - k, NDP_CHUNK));
            }
        }
    }
    return NDP_CHIP_OK;
}

/*
 * acc[0] and, for two panels, acc[1][token][32] = panels at @w times x.  A
 * slice is short enough for an abort: 16 chunks for one tile, one for several.
 */
static bool project(struct batch *b, const uint8_t *w, unsigned panels)
{
    unsigned step = b->tiles == 1 ? 16 * NDP_CHUNK : NDP_CHUNK;

    for (unsigned k = 0; k < b->k_padded; k += step) {
        for (unsigned i = 0; i < b->tiles; i++) {
            struct tile t = tile_at(b, i);

            if (ndp_chip_aborted(b->abort)) {
                return false;
            }
            b->e->k->panel(w + (size_t)k * 64, (size_t)b->k_padded * 64,
                           panels, min_u(b->k_padded - k, step) / 2,
                           x_at(b, k, t), t.n,
                           b->e->acc[0] + t.first * NDP_PANEL,
                           k ? NDP_STORE_ADD : NDP_STORE_SET,
                           (struct ndp_chip_share) { i, b->tiles });
        }
    }
    return true;
}

/* h of block @i of the group, from its gate and up at @w. */
static bool neurons(struct batch *b, const uint8_t *w, unsigned i)
{
    const struct ndp_chip_op *op = b->op;
    struct ndp_chip_engine *e = b->e;

    if (!project(b, w, 2)) {
        return false;
    }
    e->k->act(e->act, e->acc[0], e->acc[1], (size_t)b->n * NDP_PANEL, op->act,
              op->alpha, op->limit);
    for (unsigned j = 0; j < b->tiles; j++) {
        struct tile t = tile_at(b, j);

        for (unsigned k = 0; k < t.n; k++) {
            e->k->pack(h_at(b, i * NDP_PANEL, t), t.n, k,
                       e->act + (t.first + k) * NDP_PANEL, NDP_PANEL,
                       NDP_PANEL);
        }
    }
    return true;
}

/* y[0 .. floats) = or += the sum of a group */
static void add_group(struct batch *b, bool first)
{
    size_t floats = (size_t)b->n * b->y_padded;
    const float *group = b->e->group.p;
    float *y = b->e->y.p;

    if (first) {
        memcpy(y, group, floats * sizeof(*y));
        return;
    }
    for (size_t i = 0; i < floats; i++) {
        y[i] += group[i];
    }
}

/* One tile: block after block, each gate and up, then down. */
static bool stream_group(struct batch *b, const uint8_t *w, unsigned blocks,
                         size_t block_bytes, bool first)
{
    unsigned outs = b->y_padded / NDP_PANEL;
    struct tile t = tile_at(b, 0);

    for (unsigned i = 0; i < blocks; i++, w += block_bytes) {
        const uint8_t *down = w + (size_t)b->k_padded * 128;

        if (!neurons(b, w, 0)) {
            return false;
        }
        for (unsigned j = 0; j < outs; j += DOWN_SLICE) {
            if (ndp_chip_aborted(b->abort)) {
                return false;
            }
            b->e->k->down(down + (size_t)j * NDP_TILE_BYTES, 0, 1,
                          min_u(outs - j, DOWN_SLICE), h_at(b, 0, t), t.n,
                          (float *)b->e->group.p + j * NDP_PANEL, b->y_padded,
                          i ? NDP_STORE_CONTINUE : NDP_STORE_SET,
                          (struct ndp_chip_share) { 0, 1 });
        }
    }
    add_group(b, first);
    return true;
}

/* Several tiles: gate and up of all blocks of the group, then their down. */
static bool reuse_group(struct batch *b, const uint8_t *w, unsigned blocks,
                        size_t block_bytes, bool first)
{
    for (unsigned i = 0; i < blocks; i++) {
        if (!neurons(b, w + i * block_bytes, i)) {
            return false;
        }
    }
    w += (size_t)b->k_padded * 128;
    for (unsigned j = 0; j < b->y_padded / NDP_PANEL; j++) {
        for (unsigned i = 0; i < b->tiles; i++) {
            struct tile t = tile_at(b, i);

            if (ndp_chip_aborted(b->abort)) {
                return false;
            }
            b->e->k->down(w + (size_t)j * NDP_TILE_BYTES, block_bytes, blocks,
                          1, h_at(b, 0, t), t.n,
                          y_at(b, t.first) + j * NDP_PANEL, b->y_padded,
                          first ? NDP_STORE_SET : NDP_STORE_ADD,
                          (struct ndp_chip_share) { i, b->tiles });
        }
    }
    return true;
}

/* Columns @from .. @from + @n - 1 of a token's y, to DRAM. */
static void store_y(const struct batch *b, unsigned token, unsigned from,
                    const float *src, unsigned n)
{
    const struct ndp_chip_op *op = b->op;
    float *dst = (float *)(b->mem->base + op->y +
                           (uint64_t)(b->first + token) * op->ldy_bytes) + from;

    if (!(op->flags & NDP_CHIP_ACCUMULATE)) {
        memcpy(dst, src, n * sizeof(*dst));
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        dst[i] += src[i];
    }
}

static enum ndp_chip_status ffn_batch(struct batch *b)
{
    const struct ndp_chip_op *op = b->op;
    size_t block_bytes = ndp_chip_block_bytes(op->h_in, op->h_out);
    size_t elem_bytes = b->e->k->elem_bytes;
    const uint8_t *w = b->mem->base + op->w;
    size_t y_bytes = (size_t)b->n * b->y_padded * sizeof(float);

    if (!reserve(&b->e->y, y_bytes) ||
        (b->tiles == 1 && !reserve(&b->e->group, y_bytes)) ||
        !reserve(&b->e->h, (size_t)NDP_BATCH * NDP_CHUNK * elem_bytes)) {
        return NDP_CHIP_ERR_INTERNAL;
    }
    for (unsigned i = 0; i < op->count; i += NDP_GROUP) {
        unsigned blocks = min_u(op->count - i, NDP_GROUP);
        bool done = b->tiles == 1 ?
            stream_group(b, w + i * block_bytes, blocks, block_bytes, !i) :
            reuse_group(b, w + i * block_bytes, blocks, block_bytes, !i);

        if (!done) {
            return NDP_CHIP_ERR_ABORTED;
        }
    }
    for (unsigned t = 0; t < b->n; t++) {
        if (ndp_chip_aborted(b->abort)) {
            return NDP_CHIP_ERR_ABORTED;
        }
        store_y(b, t, 0, y_at(b, t), op->h_out);
    }
    return NDP_CHIP_OK;
}

static enum ndp_chip_status gemv_batch(struct batch *b)
{
    const struct ndp_chip_op *op = b->op;
    const uint8_t *w = b->mem->base + op->w;

    for (unsigned p = 0; p < op->count; p += 2) {
        unsigned panels = min_u(op->count - p, 2);

        if (!project(b, w + p * (size_t)b->k_padded * 64, panels)) {
            return NDP_CHIP_ERR_ABORTED;
        }
        for (unsigned i = 0; i < panels; i++) {
            unsigned row = (p + i) * NDP_PANEL;

            for (unsigned t = 0; t < b->n; t++) {
                store_y(b, t, row, b->e->acc[i] + t * NDP_PANEL,
                        min_u(op->h_out - row, NDP_PANEL));
            }
        }
    }
    return NDP_CHIP_OK;
}

/* The list may change while it is read: only the copy counts. */
static bool copy_rows(struct ndp_chip_engine *e, const struct ndp_chip_op *op,
                      const struct ndp_chip_mem *mem)
{
    memcpy(e->rows, mem->base + op->rows, op->tokens * sizeof(*e->rows));
    for (unsigned i = 0; i < op->tokens; i++) {
        if (e->rows[i] >= op->x_rows) {
            return false;
        }
    }
    return true;
}

enum ndp_chip_status ndp_chip_multiply(struct ndp_chip_engine *e,
                                       const struct ndp_chip_op *op,
                                       const struct ndp_chip_mem *mem,
                                       const int *abort)
{
    struct batch b = {
        .e = e, .op = op, .mem = mem, .abort = abort,
        .k_padded = ndp_chip_round64(op->h_in),
        .y_padded = ndp_chip_round64(op->h_out),
    };
    enum ndp_chip_status status = NDP_CHIP_OK;

    if (op->flags & NDP_CHIP_ROWS && !copy_rows(e, op, mem)) {
        return NDP_CHIP_ERR_ROW;
    }
    for (; b.first < op->tokens && status == NDP_CHIP_OK; b.first += b.n) {
        b.n = min_u(op->tokens - b.first, NDP_BATCH);
        b.tiles = (b.n + e->k->tile_tokens - 1) / e->k->tile_tokens;
        status = load_x(&b);
        if (status == NDP_CHIP_OK) {
            status = op->opcode == NDP_CHIP_FFN ? ffn_batch(&b)
                                                : gemv_batch(&b);
        }
    }
    return status;
}

enum ndp_chip_status ndp_chip_act(struct ndp_chip_engine *e,
                                  const struct ndp_chip_op *op,
                                  const struct ndp_chip_mem *mem,
                                  const int *abort)
{
    enum { COLUMNS = NDP_BATCH * NDP_PANEL };

    for (unsigned t = 0; t < op->tokens; t++) {
        const uint8_t *g = mem->base + op->x + (uint64_t)t * op->ldx_bytes;
        const uint8_t *u = mem->base + op->rows + (uint64_t)t * op->ldx_bytes;
        uint8_t *h = mem->base + op->y + (uint64_t)t * op->ldy_bytes;

        for (unsigned j = 0; j < op->h_out; j += COLUMNS) {
            unsigned n = min_u(op->h_out - j, COLUMNS);

            if (ndp_chip_aborted(abort)) {
                return NDP_CHIP_ERR_ABORTED;
            }
            memcpy(e->acc[0], g + (size_t)j * 4, n * 4);
            memcpy(e->acc[1], u + (size_t)j * 4, n * 4);
            /* Up to 15 columns of earlier contents are worked on as well. */
            e->k->act(e->act, e->acc[0], e->acc[1], (n + 15) & ~15u, op->act,
                      op->alpha, op->limit);
            memcpy(h + (size_t)j * 2, e->act, n * 2);
        }
    }
    return NDP_CHIP_OK;
}
