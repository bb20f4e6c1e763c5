# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndpd: placement of experts as a service.
TOOLS += ndpd
ndpd_SRCS := $(addprefix daemon/,main.c brain.c client.c config.c devices.c hands.c log.c \
	metrics.c order.c page.c record.c ring.c server.c share.c status.c) tools/ndp-run/error.c
ndpd_LIBS := -lsystemd -linih -ljansson -lmicrohttpd
HOST_CHECKS += tests/run/daemon.sh
test_ndpd_SRCS := tests/unit/test_ndpd.c tests/unit/ndpd_world.c
test_ndpd_LIBS := -ljansson
NDPD_CLIENT := tests/unit/ndpd_client.c tests/unit/ndpd_world.c
test_ndpd_hostile_SRCS := tests/unit/test_ndpd_hostile.c $(NDPD_CLIENT)
test_ndpd_hostile_LIBS := -ljansson
test_ndpd_lenders_SRCS := tests/unit/test_ndpd_lenders.c $(NDPD_CLIENT)
test_ndpd_lenders_LIBS := -ljansson
test_ndpd_share_SRCS := tests/unit/test_ndpd_share.c daemon/share.c
$(addprefix $(BUILD)/unit/,test_ndpd test_ndpd_hostile test_ndpd_lenders): $(BUILD)/ndpd
