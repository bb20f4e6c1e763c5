# SPDX-License-Identifier: GPL-2.0-or-later
#
# The predictor's half of bar S.5, run by `make bench-sched`.

BENCHES += bench_predict
bench_predict_LIBS := -lz
SCHED_BENCH_RUNS += $(BUILD)/bench/bench_predict
