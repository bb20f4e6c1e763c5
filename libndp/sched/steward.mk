# SPDX-License-Identifier: LGPL-2.1-or-later
#
# libndp/sched: predictor and placement engine together.
LIB_SRCS += libndp/sched/steward.c
