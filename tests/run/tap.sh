# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash disable=SC2034 # used by those who source it
#
# tap.sh - sourced by the scripts of this folder, which test the tools on the host and run from the
# top of the tree: prints TAP, keeps a work folder.

build=${NDP_BUILD:-build}
ndp_run=$build/ndp-run
tiny=tests/models/tiny-moe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
failed=0

# t NAME COMMAND...: passes when the command ends with 0; otherwise shows what it printed
t() {
	local name=$1

	shift
	count=$((count + 1))
	if "$@" >"$work/log" 2>&1; then
		echo "ok $count - $name"
	else
		tail -n 40 "$work/log" | sed 's/^/# /'
		echo "not ok $count - $name"
		failed=1
	fi
}

# ends STATUS COMMAND...: it ends with exactly this status; stdout and stderr are kept in
# $work/out and $work/err, and shown
ends() {
	local wanted=$1 got=0

	shift
	"$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
	cat "$work/out" "$work/err"
	[ "$got" -eq "$wanted" ] || { echo "status $got, wanted $wanted"; return 1; }
}

# says FILE TEXT...: each text is in out or err of the command before
says() {
	local file=$1 text

	shift
	for text; do
		grep -qF -- "$text" "$work/$file" || { echo "no \"$text\" in $file"; return 1; }
	done
}

# A tool's complaint: a line on stderr, nothing on stdout.
one_line_on_stderr() {
	[ "$(wc -l <"$work/err")" -eq 1 ] || { echo "stderr is not one line"; return 1; }
	[ ! -s "$work/out" ] || { echo "stdout is not empty"; return 1; }
}

# One JSON document that has no NaN and no Infinity.
strict_json() {
	python3 -c 'import json, sys
def refuse(word):
    sys.exit("not JSON: " + word)
json.load(sys.stdin, parse_constant=refuse)' <"$work/out"
}

done_testing() {
	echo "1..$count"
	exit $failed
}
