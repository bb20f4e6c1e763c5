# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bars S.1 to S.4, run by `make bench-sched`.
SCHED_LAYERS := tests/bench/sched_layers.c \
	$(addprefix tools/ndp-replay/,draw.c synthetic.c trace.c) \
	tools/ndp-run/error.c
BENCHES += bench_sched bench_sched_sweep bench_sched_time
bench_sched_SRCS := tests/bench/bench_sched.c tools/ndp-reference/protocol.c $(SCHED_LAYERS)
bench_sched_LIBS := -ljansson -lz
bench_sched_sweep_SRCS := tests/bench/bench_sched_sweep.c \
	$(addprefix tools/ndp-reference/,count.c solve.c) $(SCHED_LAYERS)
bench_sched_sweep_LIBS := -ljansson -lz -lglpk
bench_sched_time_SRCS := tests/bench/bench_sched_time.c $(SCHED_LAYERS)
bench_sched_time_LIBS := -ljansson -lz
SCHED_BENCH_RUNS += $(addprefix $(BUILD)/bench/,bench_sched bench_sched_sweep bench_sched_time)
