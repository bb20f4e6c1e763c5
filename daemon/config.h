/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * config.h - what ndpd can be told: one INI file, every key of which is known, checked
 * and described in ndpd.conf(5).
 */
#ifndef NDPD_CONFIG_H
#define NDPD_CONFIG_H

#include <ndp/error.h>
#include <ndp/place.h>
#include <ndp/profile.h>
#include <ndp/steward.h>
#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_TEXT = 256, CONFIG_MAX_WEIGHTS = 64 };

/* How much of what is shared a model gets, beside others' weights. */
struct config_weight {
	char name[64];	/* of the model, as its application calls it */
	double weight;
};

struct config {
	/* [daemon] */
	char socket[CONFIG_TEXT];
	uint32_t poll_ms;	/* between looks at the rings */
	bool dry_run;
	/* [host] */
	char profile[CONFIG_TEXT];
	struct ndp_host_profile host;	/* that @profile names */
	/* [placement] */
	enum ndp_policy policy;
	double horizon_steps;
	double hysteresis;
	double stay_ms;
	double link_share;	/* of each port's time, by all models together */
	double pcie_share;
	uint32_t first, first_every, every;
	/* [limits] */
	uint32_t clients;
	uint32_t clients_per_user;
	uint64_t client_bytes;	/* of ndpd's own memory */
	double moves_per_second;	/* of one model */
	uint32_t moves_at_once;	/* of one model */
	/* [weights] */
	uint32_t nr_weights;
	struct config_weight weights[CONFIG_MAX_WEIGHTS];
	/* [metrics] */
	char metrics[CONFIG_TEXT];	/* "", "unix:PATH", "tcp:ADDRESS:PORT" */
};

/*
 * Reads @path; NULL or a file that is not there when @may_be_missing: the defaults.  An
 * error names file, line and key, and leaves @c alone.
 */
int config_load(struct config *c, const char *path, bool may_be_missing, struct ndp_error *err);

double config_weight(const struct config *c, const char *name);

#endif
