# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of libndp's devices that need more than their own source.

test_device_coherence_LIBS := -Wl,--wrap=ndpi_cache_write_back,--wrap=ndpi_cache_invalidate
