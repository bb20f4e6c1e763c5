# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp/moe: which matrices a model file has, packing them, loading all of them.
LIB_SRCS += libndp/moe/model.c libndp/moe/family_config.c libndp/moe/family_gguf.c \
	libndp/moe/family_tensors.c libndp/moe/pack_expert.c libndp/moe/load.c \
	libndp/moe/load_available.c libndp/moe/load_room.c

# Long plain loops.
CFLAGS_libndp/moe/pack_expert.c += -O3
