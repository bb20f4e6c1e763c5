#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `make bench-moe`: runs what prints the bars D.1 to D.6, one after the other, and says at the end
# which hold. Run from the top of the tree.
#
#   bench-moe.sh RUN...     a command of ndp-bench (run with --bars), or an executable with a '/'
#
# Bars are kept in build/results/bench-moe.txt. Ends with 0 only when all hold; a run that prints no
# bar has failed. On a machine that others use at the same time NDP_BENCH_WITH="chrt -r 1" lets
# measurements go first; nobody else gets much done then.
set -uo pipefail

build=${NDP_BUILD:-build}
results=$build/results
bars=$results/bench-moe.txt

mkdir -p "$results"
: >"$bars"
for run in "$@"; do
	log=$results/bench-moe-$(basename "$run").log
	case $run in
	*/*) command=("$run") ;;
	*) command=("$build/ndp-bench" "$run" --bars) ;;
	esac
	# Bar D.2's rival; without it the bar names another one.
	if [ "$run" = cpu ] && ggml=$(tests/bench/ggml-rival.sh); then
		command+=(--ggml "$ggml")
	fi
	# shellcheck disable=SC2206 # words
	command=(${NDP_BENCH_WITH:-} "${command[@]}")
	echo "== ${command[*]}"
	"${command[@]}" 2>&1 | tee "$log"
	status=${PIPESTATUS[0]}
	grep '^bar ' "$log" >>"$bars" || status=1
	if [ "$status" -ne 0 ] && ! grep -q '^bar .* fail$' "$log"; then
		echo "bar $(basename "$run") ended value=$status goal=0 fail" >>"$bars"
	fi
done
echo "== all bars"
cat "$bars"
! grep -q ' fail$' "$bars"
