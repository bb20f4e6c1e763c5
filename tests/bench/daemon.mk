# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bars P.1 to P.3 and P.5, run by `make bench-daemon`.
BENCHES += bench_daemon bench_daemon_replay
bench_daemon_SRCS := tests/bench/bench_daemon.c tests/bench/ndpd_run.c
bench_daemon_replay_SRCS := tests/bench/bench_daemon_replay.c tests/bench/ndpd_run.c \
	tests/bench/recording.c $(addprefix tools/ndp-replay/,draw.c synthetic.c trace.c) \
	tools/ndp-run/error.c
bench_daemon_replay_LIBS := -lz
$(BUILD)/bench/bench_daemon $(BUILD)/bench/bench_daemon_replay: | $(BUILD)/ndpd
DAEMON_BENCH_RUNS += $(BUILD)/bench/bench_daemon_replay $(BUILD)/bench/bench_daemon
