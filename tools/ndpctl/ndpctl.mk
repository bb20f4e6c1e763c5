# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndpctl: devices, DIMMs and ndpd, for people who run them.
TOOLS += ndpctl
NDPCTL_PARTS := ask doctor doctor_system info list migrate nodes options out reset stat top top_view \
	topology
ndpctl_SRCS := tools/ndpctl/main.c $(NDPCTL_PARTS:%=tools/ndpctl/%.c) daemon/config.c \
	$(addprefix tools/ndp-run/,error.c interrupt.c lock.c)
ndpctl_LIBS := -ljansson -linih -lncursesw
