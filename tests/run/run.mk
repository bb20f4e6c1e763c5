# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run and ndp-replay as a whole, on the host.
HOST_CHECKS += tests/run/check.sh tests/run/mutation.sh tests/run/cli.sh tests/run/replay.sh tests/run/bench.sh
