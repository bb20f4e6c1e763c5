# SPDX-License-Identifier: GPL-2.0-or-later
# The configuration that is installed, against what ndpd knows.
test_ndpd_conf_SRCS := tests/unit/test_ndpd_conf.c daemon/config.c tools/ndp-run/error.c
test_ndpd_conf_LIBS := -linih -ljansson
HOST_CHECKS += tests/unit/ndpd_conf.sh
