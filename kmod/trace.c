// SPDX-License-Identifier: GPL-2.0-only
/*
 * trace.c - where the tracepoints of trace.h are defined.
 */
#include <linux/types.h>

#define CREATE_TRACE_POINTS
#include "trace.h"
