/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * pack-internal.h - which instructions packing may use, for tests: a CPU that has the
 * best of them must show that the others do the same.
 */
#ifndef NDPI_PACK_INTERNAL_H
#define NDPI_PACK_INTERNAL_H

enum ndpi_pack_isa {
	NDPI_PACK_PLAIN,
	NDPI_PACK_AVX2,
	NDPI_PACK_AVX512,
};

/* From here on at most @isa.  Not while another thread packs. */
void ndpi_pack_limit(enum ndpi_pack_isa isa);

#endif
