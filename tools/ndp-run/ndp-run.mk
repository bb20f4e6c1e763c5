# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run: runs a Mixture-of-Experts model with its experts on NDP DIMMs.
TOOLS += ndp-run
NDP_RUN_PARTS := attention check config engine error generate interrupt json lock migrator model moe options \
	reference report router sampler text trace vec
ndp-run_SRCS := tools/ndp-run/main.c $(NDP_RUN_PARTS:%=tools/ndp-run/%.c)
ndp-run_LIBS := -ljansson
