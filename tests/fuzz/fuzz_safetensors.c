// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fuzz_safetensors.c - fuzz target for the reader of safetensors: an input is a file.
 * libFuzzer is given the words of the format as a dictionary (safetensors.dict).
 */
#include "fuzz.h"

#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	return fuzz_mutate_safetensors(data, size, max_size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 4 || memcmp(data, "GGUF", 4) != 0)
		fuzz_read(data, size);
	return 0;
}
