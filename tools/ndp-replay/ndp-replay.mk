# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-replay: what schedulers would take on a described machine, for recorded loads.
TOOLS += ndp-replay
NDP_REPLAY_PARTS := draw json mover options plot reference replay report scores synthetic \
	trace where
ndp-replay_SRCS := tools/ndp-replay/main.c \
	$(NDP_REPLAY_PARTS:%=tools/ndp-replay/%.c) \
	tools/ndp-reference/protocol.c tools/ndp-run/error.c
ndp-replay_LIBS := -ljansson -lz

test_replay_SRCS := tests/unit/test_replay.c tools/ndp-run/error.c \
	$(addprefix tools/ndp-replay/,draw.c synthetic.c trace.c)
test_replay_LIBS := -ljansson -lz
