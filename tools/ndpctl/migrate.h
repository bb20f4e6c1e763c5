/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * migrate.h - where experts are to go, as people write it.
 */
#ifndef NDPCTL_MIGRATE_H
#define NDPCTL_MIGRATE_H

#include "ndpctl.h"

/*
 * "dimm:D", "dimm:D,D,...", "spread:0xMASK", or "all": every DIMM of @there.  A DIMM
 * that is not in @there is refused; @there 0: not known, then "all" is refused.
 */
int migrate_parse_to(uint32_t *mask, const char *to, uint32_t there, struct ndp_error *err);
/* DIMMs of the client @client in ndpd's document; 0: it does not say. */
uint32_t migrate_client_dimms(const json_t *doc, const json_t *client);
const json_t *migrate_find_client(const json_t *doc, uint32_t number);

#endif
