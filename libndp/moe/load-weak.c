// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * load-weak.c - stands in for router.c and forward.c until they are there; then goes.
 */
#include "moe-internal.h"

__attribute__((weak)) int ndpi_moe_run_init(struct ndp_moe *moe, struct ndp_error *err)
{
	(void)moe;
	(void)err;
	return 0;
}

__attribute__((weak)) void ndpi_moe_run_free(struct ndp_moe *moe)
{
	(void)moe;
}

__attribute__((weak)) int ndp_router_check(const struct ndp_router *r, struct ndp_error *err)
{
	(void)r;
	(void)err;
	return 0;
}
