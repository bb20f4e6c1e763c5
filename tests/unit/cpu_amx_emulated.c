// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The AMX path of libndp's CPU domain, compiled over amx_emul.h, under a name of its own. Few
 * tokens are for the AVX-512 path, emulated as well. cpu_amx_configured() is for tests of when
 * tiles are in use.
 */
#define NDPI_CPU_AMX_EMULATION "../../tests/unit/amx_emul.h"
#define ndpi_cpu_amx ndpi_cpu_amx_emulated
#define ndpi_cpu_avx512 ndpi_cpu_avx512_emulated

#include "../../libndp/moe/cpu-amx.c"

int cpu_amx_configured(void);

int cpu_amx_configured(void)
{
#ifdef __x86_64__
	return emul_amx.configured;
#else
	return 0;
#endif
}
