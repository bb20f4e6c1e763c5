# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndpctl, with an application of ndpd to look at.
BENCHES += ndpd_app
HOST_CHECKS += tests/run/ndpctl.sh
DAEMON_BENCH_RUNS += tests/bench/bench-ndpctl.sh
