/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * migrator.h - a thread that keeps moving experts while the model runs, as a
 * placement daemon would.  The model is not told: commands find out.
 */
#ifndef NDP_RUN_MIGRATOR_H
#define NDP_RUN_MIGRATOR_H

#include "model.h"

struct migrator_stats {
	uint64_t moves;
	uint64_t bytes;
	uint64_t modelled_ns; /* sum over moves */
	uint64_t no_room; /* moves given up because a DIMM was full */
};

struct migrator;

/*
 * Moves a random expert of @m, which lies on @dev, to a random placement, all of it
 * on one DIMM or spread over a random set of them, waits @period_ms, and so on.
 * Needs two DIMMs.
 */
int migrator_start(struct migrator **g, struct model *m, struct ndp_device *dev,
		   uint32_t period_ms, uint64_t seed, struct ndp_error *err);

/* Something has stopped it: migrator_stop() says what.  @g may be NULL. */
bool migrator_failed(const struct migrator *g);

/*
 * Ends the thread, after the move it is busy with, and says what it did.  Frees
 * @g (may be NULL).  Returns what stopped it early, if something did.
 */
int migrator_stop(struct migrator *g, struct migrator_stats *stats, struct ndp_error *err);

#endif
