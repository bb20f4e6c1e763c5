// SPDX-License-Identifier: GPL-2.0-or-later
/* The AVX-512 path of libndp's CPU domain, compiled over avx512_emul.h, under a name of its own. */
#define NDPI_CPU_AVX512_EMULATION "../../tests/unit/avx512_emul.h"
#define ndpi_cpu_avx512 ndpi_cpu_avx512_emulated

#include "../../libndp/moe/cpu-avx512.c"
