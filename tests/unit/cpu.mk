# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of the CPU domain.
test_cpu_SRCS := tests/unit/test_cpu.c tests/unit/cpu_avx512_emulated.c
CFLAGS_tests/unit/cpu_avx512_emulated.c += -Ilibndp/moe
