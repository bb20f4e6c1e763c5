# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp/moe: expert FFNs on the host's CPUs.  The files of the vector paths name their
# instruction sets themselves.
LIB_SRCS += $(addprefix libndp/moe/,cpu.c cpu-tasks.c cpu-pool.c cpu-scalar.c cpu-avx2.c \
	cpu-avx512.c cpu-amx.c)
CFLAGS_libndp/moe/cpu-scalar.c += -O3
