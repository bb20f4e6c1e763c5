/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * attach.h - letting ndpd, the placement daemon, decide where the experts of a
 * model lie.
 *
 * The application posts how many tokens each expert got, layer by layer, and reads
 * which experts GPU memory should hold; both are plain memory accesses.  ndpd moves
 * experts between DIMMs by itself, through a placement fd that lets it move
 * weights but neither read, write nor use them.
 *
 * A thread of the library keeps the connection: when ndpd ends, the application goes
 * on with the placement there is, and is attached again when ndpd is back.
 *
 * Threads: everything but attach and detach may be called by several threads at once.
 */
#ifndef NDP_ATTACH_H
#define NDP_ATTACH_H

#include <ndp/device.h>
#include <ndp/error.h>
#include <ndp/moe.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndp_attachment;

struct ndp_attach_options {
	const char *socket;	/* NULL: $NDP_DAEMON_SOCKET, or NDP_DAEMON_SOCKET */
	const char *name;	/* of the model, for people */
	struct ndp_device *device;	/* that holds the weights; NULL: nothing is migrated */
	uint32_t layers;	/* experts' cookies are layer << 32 | expert */
	uint32_t experts;
	uint32_t top_k;
	uint32_t hidden;
	uint32_t intermediate;
	uint64_t expert_bytes;
	uint64_t gpu_bytes;	/* for hot experts; 0: none */
	uint32_t slots;		/* of the ring, 16..65536, a power of two; 0: 1024 */
	bool later;		/* no daemon is no error: wait for one */
};

/*
 * -ENOENT, -ECONNREFUSED: no daemon (without @later); -EACCES: no right to talk to
 * it; what ndpd refused, with its sentence.
 */
int ndp_placement_attach(struct ndp_attachment **a, const struct ndp_attach_options *options,
			 struct ndp_error *err);
/* What ndpd moves at this moment is moved; it then forgets this application. */
void ndp_placement_detach(struct ndp_attachment *a);

/*
 * A step of @layer is over: @tokens [experts] went to each expert.  0; -EAGAIN: the
 * ring is full (counted; nobody needs to care).  No system call, no lock.
 */
int ndp_placement_post(struct ndp_attachment *a, uint32_t layer, const uint32_t *tokens);

/*
 * Differs from what an earlier call returned when ndpd has published something
 * since, or has come back.  Two loads.
 */
uint64_t ndp_placement_generation(const struct ndp_attachment *a);

/*
 * Copies the set of experts that GPU memory should hold into @hot [(experts + 63) / 64]
 * (bit e % 64 of word e / 64), and, unless NULL, the DIMMs that hold blocks of each
 * into @dimm_masks [experts] as ndpd knows them.  -ENODATA: ndpd has published nothing of
 * this layer yet.  No system call, no lock.
 */
int ndp_placement_read(const struct ndp_attachment *a, uint32_t layer, uint64_t *hot,
		       uint32_t *dimm_masks);

/*
 * All of it for a model of the dispatcher's: posts where the tokens of the last
 * ndp_moe_forward() on @ctx went, and when something new is published has GPU memory
 * follow it (ndp_moe_set_hot(); the model is loaded without adapt).  To be called after each
 * forward of @layer, from the thread of @ctx.
 */
int ndp_placement_follow(struct ndp_attachment *a, struct ndp_moe *moe,
			 const struct ndp_moe_context *ctx, uint32_t layer, struct ndp_error *err);

struct ndp_attach_state {
	bool attached;
	bool dry_run;
	uint64_t posts;
	uint64_t dropped;
	uint64_t attaches;	/* 1 and one for each time ndpd came back */
	struct ndp_error last_error;	/* why it is not attached */
};
void ndp_placement_state(struct ndp_attachment *a, struct ndp_attach_state *state);

#ifdef __cplusplus
}
#endif

#endif
