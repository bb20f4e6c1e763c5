# SPDX-License-Identifier: GPL-2.0-or-later
#
# The speed half of bar S.5, run by `make bench-sched`.
SCHED_BENCH_RUNS += tests/bench/bench-replay.sh
