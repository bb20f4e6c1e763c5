# SPDX-License-Identifier: GPL-2.0-or-later
# libndp/attach: an application's side of ndpd.
LIB_SRCS += libndp/attach/attach.c libndp/attach/connect.c libndp/attach/follow.c
