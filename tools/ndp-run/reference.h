/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * reference.h - what another implementation made of the same prompts.
 *
 * A JSON object with "prompts", an array of objects: "name"; "prompt_bytes", the
 * ids of the prompt's tokens; "tokens", the ids that follow, chosen greedily;
 * "top5", for the first steps an array of {"id", "logit"} each, the best logits
 * out of which that step's token was chosen.  Other fields are left alone.
 */
#ifndef NDP_RUN_REFERENCE_H
#define NDP_RUN_REFERENCE_H

#include <ndp/error.h>
#include <stdint.h>

struct reference_logit {
	uint32_t step;
	uint32_t id;
	float logit;
};

struct reference_prompt {
	char *name;
	uint32_t *prompt;
	uint32_t nr_prompt;
	uint32_t *tokens;
	uint32_t nr_tokens;
	struct reference_logit *logits; /* by ascending step */
	uint32_t nr_logits;
};

struct reference {
	struct reference_prompt *prompts;
	uint32_t nr_prompts;
};

/* Ids are at least below @vocab. */
int reference_load(struct reference **ref, const char *path, uint32_t vocab,
		   struct ndp_error *err);
void reference_free(struct reference *ref);

#endif
