# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp/moe: model files.
LIB_SRCS += $(addprefix libndp/moe/, \
	dequant.c gguf.c gguf-meta.c gguf-split.c safetensors.c tensors.c tensors-dir.c \
	tensors-dtype.c)
LIB_LIBS += -ljansson

# Long plain loops, several times as fast when they are vectorised.
CFLAGS_libndp/moe/dequant.c += -O3
