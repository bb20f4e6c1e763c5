#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `make bench`: runs the demo, whose time is bar F.1, then every bench, one after the other, and
# says at the end which bars hold. Run from the top of the tree.
#
#   run-all.sh BENCH...
#
# A bench that prints no bar, or ends badly, has failed. The bars are kept in build/results/bench.txt
# and, as a list of objects, in bench.json. Ends with 0 only when all hold.
set -uo pipefail

results=${NDP_BUILD:-build}/results
bars=$results/bench.txt

mkdir -p "$results"
: >"$bars"
for bench in tests/vm/demo.sh "$@"; do
	out=$results/bench-$(basename "$bench").log
	echo "== $bench"
	"$bench" 2>&1 | tee "$out" | grep -E '^(#|bar) '
	status=${PIPESTATUS[0]}
	grep '^bar ' "$out" >>"$bars" || status=1
	if [ "$status" -ne 0 ] && ! grep -q '^bar .* fail$' "$out"; then
		tail -n 20 "$out"
		echo "bar $(basename "$bench") ended value=$status goal=0 fail" >>"$bars"
	fi
done

awk 'BEGIN { printf "[" }
	{
		sub("^value=", "", $4); sub("^goal=", "", $5)
		printf "%s\n  {\"bar\": \"%s\", \"name\": \"%s\", \"value\": \"%s\", \"goal\": \"%s\", \"verdict\": \"%s\"}",
			(NR > 1 ? "," : ""), $2, $3, $4, $5, $6
	}
	END { print "\n]" }' "$bars" >"$results/bench.json"
echo "== all bars"
cat "$bars"
! grep -q ' fail$' "$bars"
