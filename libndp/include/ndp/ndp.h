/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ndp.h - everything of libndp, the library for NDP DIMMs.
 *
 * Conventions: functions that can fail return 0 (or a count) or -errno.  Those
 * that take a struct ndp_error * put a sentence there that says what was
 * wanted, what was found and what to do; NULL is allowed.  No function prints,
 * exits, or keeps global state.
 */
#ifndef NDP_NDP_H
#define NDP_NDP_H

#include <ndp/attach.h>
#include <ndp/cpu.h>
#include <ndp/device.h>
#include <ndp/error.h>
#include <ndp/gpu.h>
#include <ndp/moe.h>
#include <ndp/model.h>
#include <ndp/pack.h>
#include <ndp/place.h>
#include <ndp/placement.h>
#include <ndp/predict.h>
#include <ndp/profile.h>
#include <ndp/router.h>
#include <ndp/sched.h>
#include <ndp/steward.h>
#include <ndp/tensors.h>

#endif
