# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp: machines and models as JSON files.
LIB_SRCS += libndp/moe/profile.c
