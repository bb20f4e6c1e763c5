/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * config.h - the shape of a model, from its config.json or the header of a GGUF file.
 */
#ifndef NDP_RUN_CONFIG_H
#define NDP_RUN_CONFIG_H

#include <ndp/error.h>
#include <stdbool.h>
#include <stdint.h>

#define CONFIG_MAX_EOS 8

struct model_config {
	uint32_t hidden;
	uint32_t layers;
	uint32_t heads;
	uint32_t kv_heads;
	uint32_t head_dim;
	uint32_t experts;
	uint32_t experts_per_token;
	uint32_t neurons; /* of an expert */
	uint32_t vocab;
	uint32_t max_positions;
	float rms_eps;
	float rope_theta;
	bool gguf; /* names and the order of rows are llama.cpp's */
	bool tied; /* the embedding is the output matrix as well */
	uint32_t nr_eos;
	uint32_t eos[CONFIG_MAX_EOS];
};

/*
 * Reads @path/config.json, or the header of the GGUF file @path.  A field that is
 * missing, has a value this program does not implement, or is unknown and set is
 * refused by name: a wrong model must not run quietly.
 */
int config_load(struct model_config *c, const char *path, struct ndp_error *err);
int config_load_gguf(struct model_config *c, const char *path, struct ndp_error *err);

/* How the numbers go together. */
int config_check_shape(const struct model_config *c, const char *path, struct ndp_error *err);

bool config_is_eos(const struct model_config *c, uint32_t token);

#endif
