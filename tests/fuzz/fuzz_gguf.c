// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fuzz_gguf.c - fuzz target for the reader of GGUF: an input is a file.
 */
#include "fuzz.h"

#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	return fuzz_mutate_gguf(data, size, max_size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= 4 && !memcmp(data, "GGUF", 4))
		fuzz_read(data, size);
	return 0;
}
