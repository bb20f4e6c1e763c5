#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The test tools themselves, as TAP: a guest that goes wrong in any way must fail its run, and the
# tally must not lose a failure. Boots five small guests.
set -u

here=$(dirname "$(readlink -f "$0")")
tests=$here/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0

# ends STATUS TEXT NAME COMMAND...: ends with that status (0, or 1 for any other) and prints TEXT
ends() {
	local wanted=$1 text=$2 name=$3 status=0

	shift 3
	"$@" >"$work/log" 2>&1 </dev/null || status=1
	count=$((count + 1))
	if [ $status -eq "$wanted" ] && grep -qF -- "$text" "$work/log"; then
		echo "ok $count - $name"
	else
		sed 's/^/# /' "$work/log"
		echo "not ok $count - $name (status $status, wanted $wanted and \"$text\")"
	fi
}

# guest COMMANDS [TIMEOUT]: runs them in a guest
guest() {
	printf '#!/bin/sh\n%s\n' "$1" >"$work/script"
	"$here/run-vm.sh" --name runner --dimms 1 --dimm-size 64M --smp 1 --mem 512M \
		--timeout "${2:-400}" --script "$work/script"
}

tally() {
	printf '%b' "$1" >"$work/a.tap"
	"$tests/tally.sh" "$work/a.tap"
}

suite() {
	NDP_BUILD=$work "$tests/suite.sh" a "$@"
	"$tests/tally.sh" "$work/results/a.tap"
}

ends 0 "2 passed, 0 failed, 1 skipped" "tally: passes" tally '1..3\nok 1\nok 2 - b\nok 3 # SKIP why\n'
ends 1 "1 passed, 1 failed" "tally: a failure" tally 'ok 1\nnot ok 2 - b\n'
ends 1 "1 passed, 1 failed" "tally: a failure in a subtest" tally 'ok 1\n    not ok 1 - b\n'
ends 1 "3 results were planned, 1 came" "tally: a program that died" tally '1..3\nok 1\n'
ends 1 "0 passed" "tally: nothing at all" tally ''
ends 1 "0 passed, 1 failed" "tally: no file" "$tests/tally.sh" "$work/none.tap"
ends 1 "ended with status 3" "suite: a status that no line explains" suite sh -c 'echo ok 1; exit 3'
ends 1 "printed no result" "suite: no results" suite true

ends 0 "hello ndp-dimm" "guest: runs a script; the host answers" \
	guest "echo hello \$(host get dimm0 type)"
ends 1 "status 3" "guest: the script's status" guest 'exit 3'
ends 1 "trouble: " "guest: the kernel complains, the script does not" \
	guest 'echo "BUG: made by a test" >/dev/kmsg'
ends 1 "stopped before its script ended" "guest: panics" guest 'echo c >/proc/sysrq-trigger'
ends 1 "no end within" "guest: hangs" guest 'sleep 1000' 25
echo "1..$count"
