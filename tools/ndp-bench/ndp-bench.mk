# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-bench: measures the domains, layers and loading; `make bench-moe` runs it for the bars D.1 to
# D.6. A subcommand is a file of its own, or several: cpu*.c, gpu*.c, layer*.c, load*.c, ndp*.c.
TOOLS += ndp-bench
NDP_BENCH_FRAME := $(addprefix tools/ndp-bench/,main.c report.c stats.c machine.c data.c)
ndp-bench_SRCS := $(NDP_BENCH_FRAME) \
	$(sort $(wildcard $(foreach c,cpu gpu layer load ndp,tools/ndp-bench/$(c)*.c)))
ndp-bench_LIBS += -ljansson

# Bars D.5 and D.6. A command that is there is run with --bars.
MOE_BENCH_RUNS += $(foreach c,cpu layer,$(if $(wildcard tools/ndp-bench/$(c).c),$(c))) \
	tests/bench/bench-predict.sh tests/bench/bench-load.sh

test_bench_SRCS := tests/unit/test_bench.c $(addprefix tools/ndp-bench/,stats.c machine.c data.c)
test_bench_LIBS := -Wl,--wrap=getrusage
