# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp/moe: model files.
LIB_SRCS += libndp/moe/tensors.c libndp/moe/safetensors.c
LIB_LIBS += -ljansson
