#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Adds up TAP and KTAP files: names what failed, ends with `N passed, N failed[, N skipped]` and
# with a status that says the same. A file whose plans promise more results than it holds counts
# as one failure more (its program died), so does a file that is not there.
#
#   tally.sh FILE...
set -eu

[ $# -gt 0 ] || { echo "0 passed, 1 failed"; exit 1; }
for file; do
	[ -e "$file" ] || missing="${missing:-}$file "
done
if [ -n "${missing:-}" ]; then
	echo "missing results: $missing" >&2
	echo "0 passed, 1 failed"
	exit 1
fi

exec awk '
	function close_file() {
		if (planned > seen) {
			printf "%s: %d results were planned, %d came\n", file, planned, seen
			failed++
		}
		planned = seen = 0
	}
	FNR == 1 { close_file(); file = FILENAME; sub(/.*\//, "", file); sub(/\.tap$/, "", file) }
	{ sub(/\r$/, "") }
	/^[ \t]*1\.\.[0-9]+/ {
		plan = $1
		sub(/^1\.\./, "", plan)
		planned += plan
		if (plan == 0 && /# *SKIP/)
			skipped++
	}
	/^[ \t]*ok([ \t]|$)/ { seen++; if (toupper($0) ~ /# *SKIP/) skipped++; else passed++ }
	# cmocka says of a test that skips itself: not ok 5 # SKIP name
	/^[ \t]*not ok [0-9]+ # SKIP / { seen++; skipped++; next }
	/^[ \t]*not ok([ \t]|$)/ { seen++; failed++; printf "%s: %s\n", file, $0 }
	END {
		close_file()
		printf "%d passed, %d failed", passed, failed
		if (skipped)
			printf ", %d skipped", skipped
		print ""
		exit failed > 0 || passed == 0
	}' "$@"
