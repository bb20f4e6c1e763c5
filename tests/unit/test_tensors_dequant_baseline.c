// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_tensors_dequant_baseline.c - test_tensors_dequant.c for a processor without AVX2:
 * the source of the reader is part of this program, and asks for its features in vain.
 */
#define __builtin_cpu_supports(feature) 0
#include "../../libndp/moe/dequant.c"
#include "test_tensors_dequant.c"
