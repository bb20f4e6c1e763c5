# SPDX-License-Identifier: GPL-2.0-or-later
#
# The driver's own tests: programs that run in a guest with NDP DIMMs, print KTAP, and use the
# kernel's interface without libndp in between. One program a theme; kt*.c is what they share.
# The test harness is the kernel's own, from Debian's linux-source (see guest-kernel.sh).
#
# In the guest: NDP_TEST_NODE names the domain under test (/dev/ndp0), NDP_RACE_SECONDS says how
# long race runs (60), NDP_DEBUG_KERNEL or NDP_TEST_SLOW=N that the guest is slow. What needs the
# host (/bin/host of tests/vm), a disk, several DIMMs or CONFIG_FAULT_INJECTION skips without it.

KT_TESTS := abi create handles mmap submit compute uring quota sysfs confine placement migrate coherent fault unplug alloc \
	stale race
KT_SRCS  := $(addprefix tests/kselftest/,kt.c kt_ref.c kt_ring.c kt_host.c)

GUEST_TESTS += $(KT_TESTS)
$(foreach t,$(KT_TESTS),$(eval $(t)_SRCS := tests/kselftest/$(t).c $(KT_SRCS)))
$(foreach t,$(KT_TESTS),$(eval $(t)_LIBS := -luring))
# A system header: its macros compare what a test hands them, of whatever sign.
CFLAGS_tests/kselftest/ += -isystem $(CACHE)/kernel/source/tools/testing/selftests
