// SPDX-License-Identifier: GPL-2.0-or-later
/* The AVX-512 path, compiled over avx512_emul.h, under a name of its own. */
#define NDP_CHIP_AVX512_EMULATION "../../tests/unit/avx512_emul.h"
#define ndp_chip_avx512 ndp_chip_avx512_emulated

#include "../../qemu-device/chip/ndp_chip_avx512.c"
