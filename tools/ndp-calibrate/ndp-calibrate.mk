# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-calibrate: measures this host into a host profile, with the means of ndp-bench.
TOOLS += ndp-calibrate
ndp-calibrate_SRCS := $(addprefix tools/ndp-calibrate/,main.c curves.c on_gpu.c write.c) \
	$(addprefix tools/ndp-bench/,stats.c machine.c data.c ndp_set.c)
ndp-calibrate_LIBS := -ljansson

# The loop that adds results up, as in libndp.
CFLAGS_tools/ndp-calibrate/curves.c += -O3
