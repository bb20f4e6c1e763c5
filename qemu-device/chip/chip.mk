# SPDX-License-Identifier: GPL-2.0-or-later
#
# The chip, for libndp's in-process device. The files of the vector paths name their instruction
# sets themselves (#pragma GCC target), so every build system compiles them alike.

CHIP_SRCS += $(addprefix qemu-device/chip/,ndp_chip.c ndp_chip_time.c ndp_chip_copy.c \
	ndp_chip_multiply.c ndp_chip_scalar.c ndp_chip_avx2.c ndp_chip_avx512.c)

test_chip_LIBS := -Wl,--wrap=posix_memalign
test_chip_numerics_SRCS := tests/unit/test_chip_numerics.c tests/unit/chip_avx512_emulated.c
