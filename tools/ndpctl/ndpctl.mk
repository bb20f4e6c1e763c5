# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndpctl: devices, DIMMs and ndpd, for people who run them.
TOOLS += ndpctl
NDPCTL_PARTS := $(patsubst %,tools/ndpctl/%.c,ask doctor doctor_system info list migrate nodes \
	options out reset stat top top_view topology) daemon/config.c \
	$(addprefix tools/ndp-run/,error.c interrupt.c lock.c)
ndpctl_SRCS := tools/ndpctl/main.c $(NDPCTL_PARTS)
ndpctl_LIBS := -ljansson -linih -lncursesw

# Unit tests of its parts; the second one with nodes of its own.
test_ndpctl_SRCS := tests/unit/test_ndpctl.c $(NDPCTL_PARTS)
test_ndpctl_LIBS := $(ndpctl_LIBS)
test_ndpctl_io_SRCS := tests/unit/test_ndpctl_io.c $(NDPCTL_PARTS)
test_ndpctl_io_LIBS := $(ndpctl_LIBS) -Wl,--wrap=ndp_discover
