# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of libndp's devices that need more than their own source, and those that run in the
# guest as well, on the kernel's device.

test_device_coherence_LIBS := -Wl,--wrap=ndpi_cache_write_back,--wrap=ndpi_cache_invalidate
test_device_nomem_LIBS := -Wl,--wrap=calloc,--wrap=posix_memalign,--wrap=mmap \
	-Wl,--wrap=memfd_create,--wrap=pthread_create

LIB_GUEST_TESTS := commands arguments migration placement
GUEST_TESTS += $(LIB_GUEST_TESTS:%=lib_%) lib_kernel
$(foreach t,$(LIB_GUEST_TESTS),$(eval lib_$(t)_SRCS := tests/unit/test_device_$(t).c))
lib_kernel_SRCS := tests/unit/guest_kernel.c
$(foreach t,$(LIB_GUEST_TESTS) kernel,$(eval lib_$(t)_SRCS += tests/unit/guest_device.c))
$(foreach t,$(LIB_GUEST_TESTS) kernel,$(eval lib_$(t)_LIBS := -lcmocka))

HOST_CHECKS += tests/unit/libndp_public.sh tests/unit/sanitize.sh
