#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar F.5: bench_migrate.c on the in-process device, then in a guest, on the driver and the emulated
# DIMMs.
#
#   bench-migrate.sh [KERNEL [OPTION OF bench_migrate...]]      KERNEL: 6.1 (default) or 6.12
#
# The run counts only if the guest's kernel had nothing to complain about.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
top=$(readlink -f "$here/../..")
build=${NDP_BUILD:-$top/build}
kernel=${1:-6.1}
[ $# -eq 0 ] || shift
script=$build/bench/bench-migrate.sh

cat >"$script" <<GUEST
insmod /payload/moendp.ko || exit
bench_migrate --device /dev/ndp0 $* || exit
rmmod moendp
GUEST
"$build/bench/bench_migrate" "$@"
exec "$top/tests/vm/run-vm.sh" --name "bench-migrate-$kernel" --kernel "$kernel" --script "$script" \
	--dimms 4 --dimm-size 32M --timeout 1200 --file "$build/bench/bench_migrate"
