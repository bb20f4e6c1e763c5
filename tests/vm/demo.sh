#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `make demo`: from a clone to text generated on NDP DIMMs, with the time it took.
#
#   demo.sh MAKE      (the make program, so that the caller's is used)
#
# Ends with 0 when every token was equal to the reference. The bar it prints is about time only:
# 90 s when the slow products are in the cache, 20 minutes when nothing is.
set -euo pipefail

make=${1:-make}
cache=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}
start=$(date +%s%N)

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
step() { printf '%s== %s%s\n' "$bold" "$*" "$plain"; }

name=demo goal=90
if [ ! -e "$cache/kernel/6.1/complete" ] ||
   [ ! -e "$(qemu-device/build.sh dir)/build/qemu-system-x86_64" ]; then
	name=demo-cold goal=1200
	step "nothing in the cache yet: building QEMU takes minutes, once"
fi

step "packages"
"$make" --no-print-directory setup
step "library, ndp-run, driver, emulator"
"$make" --no-print-directory -j"$(nproc)" demo-parts
step "a guest with four NDP DIMMs (emulated CPU: some seconds to boot)"
status=0
"$make" --no-print-directory demo-run || status=$?

seconds=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.1f", ns / 1e9 }')
if [ $status -ne 0 ]; then
	step "the demo failed; see above"
	verdict=fail
elif awk -v s="$seconds" -v g=$goal 'BEGIN { exit !(s <= g) }'; then
	verdict=pass
else
	verdict=fail
fi
echo "bar F.1 $name value=${seconds}s goal=<=${goal}s $verdict"
exit $status
