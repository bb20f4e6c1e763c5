// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * record.c - what came and what was decided, one line each, so that the decisions can
 * be made again from it (ndp-replay --recording):
 *
 *   ndpd-recording 1
 *   client N NAME KEY=VALUE...                    the model, and the engine's options
 *   share N LINK_SHARE DIMM_BYTES PCIE_SHARE      from here on
 *   blocks N LAYER EXPERT DIMM:BLOCKS...         where an expert was at the beginning
 *   post N NOW_NS LAYER TOKENS...
 *   start N ID KIND LAYER EXPERT VICTIM_LAYER VICTIM BYTES
 *   order N ID NOW_NS LAYER EXPERT BLOCKS...      a move that somebody has ordered
 *   done N ID NOW_NS RESULT
 *   gone N
 *
 * N is the client's number, times are CLOCK_MONOTONIC.
 */
#include "ndpd.h"
#include "../tools/ndp-run/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

struct record {
	FILE *f;
	char *path;
};

int record_open(struct ndpd *d, const char *path, struct ndp_error *err)
{
	struct record *r = calloc(1, sizeof(*r));

	if (!r || !(r->path = strdup(path))) {
		free(r);
		return fail(err, -ENOMEM, "out of memory");
	}
	r->f = fopen(path, "we");
	if (!r->f) {
		int ret = fail(err, -errno, "%s: cannot be written: %s", path, strerror(errno));

		free(r->path);
		free(r);
		return ret;
	}
	fprintf(r->f, "ndpd-recording 1\n");
	d->record = r;
	return 0;
}

void record_close(struct ndpd *d)
{
	struct record *r = d->record;

	if (!r)
		return;
	if (ferror(r->f) | (fclose(r->f) != 0))
		ndpd_log(LOG_ERR, "%s: the recording is not complete", r->path);
	free(r->path);
	free(r);
	d->record = NULL;
}

static void record_blocks(FILE *f, const struct client *c)
{
	const struct brain *b = &c->brain;
	struct ndp_placer *placer = ndp_steward_placer(b->steward);

	for (uint32_t l = 0; l < b->layers; l++) {
		const uint16_t *row = ndp_place_blocks(placer, l);
		const uint8_t *on_gpu = ndp_place_on_gpu(placer, l);

		for (uint32_t e = 0; e < b->shape.experts; e++, row += b->host.nr_dimms) {
			fprintf(f, "blocks %u %u %u", c->number, l, e);
			for (uint32_t dimm = 0; dimm < b->host.nr_dimms; dimm++)
				if (row[dimm])
					fprintf(f, " %u:%u", dimm, row[dimm]);
			fprintf(f, "%s\n", on_gpu[e] ? " gpu" : "");
		}
	}
}

void record_client(struct ndpd *d, const struct client *c)
{
	const struct ndp_msg_hello *h = &c->hello;
	const struct brain *b = &c->brain;
	const struct ndp_place_options *o = &b->options.place;

	if (!d->record)
		return;
	fprintf(d->record->f, "client %u %s profile=%s layers=%u experts=%u top_k=%u hidden=%u "
		"intermediate=%u expert_bytes=%" PRIu64 " dimms=%u gpu_bytes=%" PRIu64
		" dimm_bytes=%" PRIu64 " link_share=%.17g pcie_share=%.17g policy=%s "
		"horizon_steps=%.17g hysteresis=%.17g stay_ns=%.17g first=%u first_every=%u every=%u\n",
		c->number, c->name, d->config.host.name, h->layers, h->experts, h->top_k, h->hidden,
		h->intermediate, h->expert_bytes, b->host.nr_dimms, o->gpu_bytes, o->dimm_bytes,
		o->link_share, o->pcie_share, ndp_policy_name(o->policy), o->horizon_steps,
		o->hysteresis, o->stay_ns, b->options.first, b->options.first_every,
		b->options.every);
	record_blocks(d->record->f, c);
}

void record_share(struct ndpd *d, const struct client *c, double link_share, double pcie_share,
		  uint64_t dimm_bytes)
{
	if (d->record)
		fprintf(d->record->f, "share %u %.17g %" PRIu64 " %.17g\n", c->number, link_share,
			dimm_bytes, pcie_share);
}

void record_post(struct ndpd *d, const struct client *c, uint32_t layer, double now_ns)
{
	if (!d->record)
		return;
	fprintf(d->record->f, "post %u %.0f %u", c->number, now_ns, layer);
	for (uint32_t e = 0; e < c->brain.shape.experts; e++)
		fprintf(d->record->f, " %u", c->brain.tokens[e]);
	fputc('\n', d->record->f);
}

void record_action(struct ndpd *d, const struct client *c, const struct ndp_place_action *a)
{
	if (d->record)
		fprintf(d->record->f, "start %u %u %u %u %u %u %d %" PRIu64 "\n", c->number, a->id,
			a->kind, a->layer, a->expert, a->victim_layer, a->victim, a->bytes);
}

void record_order(struct ndpd *d, const struct client *c, const struct ndp_place_action *a,
		  const uint16_t *row, double now_ns)
{
	if (!d->record)
		return;
	fprintf(d->record->f, "order %u %u %.0f %u %u", c->number, a->id, now_ns, a->layer,
		a->expert);
	for (uint32_t dimm = 0; dimm < c->brain.host.nr_dimms; dimm++)
		fprintf(d->record->f, " %u", row[dimm]);
	fputc('\n', d->record->f);
}

void record_done(struct ndpd *d, const struct client *c, uint32_t action, double now_ns, int res)
{
	if (d->record)
		fprintf(d->record->f, "done %u %u %.0f %d\n", c->number, action, now_ns, res);
}

void record_gone(struct ndpd *d, const struct client *c)
{
	if (d->record)
		fprintf(d->record->f, "gone %u\n", c->number);
}
