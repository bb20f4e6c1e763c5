# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-bench: measures the domains, layers and loading; `make bench-moe` runs it for the bars D.1 to
# D.6. A command that needs more than libndp (libraries, more bars) has a fragment of its own,
# COMMAND.mk, which appends to the lists; its sources are COMMAND*.c.
TOOLS += ndp-bench
NDP_BENCH_COMMANDS := cpu gpu layer load ndp
ndp-bench_SRCS := $(addprefix tools/ndp-bench/,main.c report.c stats.c machine.c data.c) \
	$(sort $(wildcard $(NDP_BENCH_COMMANDS:%=tools/ndp-bench/%*.c)))
ndp-bench_LIBS += -ljansson

# Bars D.1 to D.4, each command with --bars; D.5; D.6.
MOE_BENCH_RUNS += cpu layer tests/bench/bench-predict.sh tests/bench/bench-load.sh

test_bench_SRCS := tests/unit/test_bench.c $(addprefix tools/ndp-bench/,stats.c machine.c data.c)
test_bench_LIBS := -Wl,--wrap=getrusage
