#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Runs one test program of any kind that prints TAP or KTAP and keeps what it printed:
#
#   suite.sh NAME COMMAND...      -> build/results/NAME.tap
#
# Ends with 0 whatever the tests say, so that the other suites run as well; tally.sh judges. What a
# program cannot report itself becomes a failure here: a status that no `not ok` line explains, and
# no result at all. On a terminal a line of progress is shown, elsewhere the whole output.
set -u

results=${NDP_BUILD:-build}/results
name=$1
shift
mkdir -p "$results"
tap=$results/$name.tap
start=$SECONDS

if [ -t 1 ] && [ -z "${V:-}" ]; then
	"$@" 2>&1 | tee "$tap" | awk -v name="$name" '
		/^[ \t]*ok / { n++ }
		/^[ \t]*not ok [0-9]+ # SKIP / { n++; next }
		/^[ \t]*not ok / { n++; bad++; printf "\r\033[K  FAIL     %s: %s\n", name, $0 }
		{ printf "\r\033[K  TEST     %s: %d done%s", name, n, bad ? ", " bad " failed" : ""; fflush() }
		END { printf "\r\033[K" }'
else
	"$@" 2>&1 | tee "$tap"
fi
status=${PIPESTATUS[0]}

if [ "$status" -ne 0 ] && ! grep -q '^[[:space:]]*not ok' "$tap"; then
	echo "not ok - $name ended with status $status" | tee -a "$tap"
elif ! grep -qE '^[[:space:]]*(not )?ok' "$tap"; then
	echo "not ok - $name printed no result" | tee -a "$tap"
fi
printf '  %-8s%s (%d s)\n' TEST "$name" $((SECONDS - start))
exit 0
