# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of the CPU domain.
test_cpu_SRCS := $(addprefix tests/unit/,test_cpu.c cpu_avx512_emulated.c cpu_amx_emulated.c)
CFLAGS_tests/unit/cpu_avx512_emulated.c += -Ilibndp/moe
CFLAGS_tests/unit/cpu_amx_emulated.c += -Ilibndp/moe
