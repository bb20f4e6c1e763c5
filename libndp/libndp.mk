# SPDX-License-Identifier: GPL-2.0-or-later
# libndp: the device part and errors.  moe/ brings its own fragment.

LIB_SRCS += libndp/error.c libndp/passing.c $(addprefix libndp/device/, \
	bf16.c borrow.c cache.c command.c device.c discover.c error.c io.c kernel.c kernel_queue.c \
	numa.c pack.c placement.c queue.c weights.c \
	soft.c soft_alloc.c soft_engine.c soft_lend.c soft_move.c soft_objects.c)
LIB_LIBS += -luring -lpci -lnuma
LIB_MAP   = libndp/libndp.map

# Long plain loops, twice as fast when they are vectorised.
CFLAGS_libndp/device/bf16.c += -O3
CFLAGS_libndp/device/io.c   += -O3
CFLAGS_libndp/device/pack.c += -O3
