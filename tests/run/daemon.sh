#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run placed by ndpd, as TAP: text equal to the reference while experts move, with and without a
# GPU, two applications at once, with ndpd killed in between and without one. Run from the top of the
# tree.
set -u

build=${BUILD:-build}
work=$(mktemp -d)
model=tests/models/tiny-moe
ndpd_pid=''
export NDP_SHARE=$PWD/share
count=0

end_ndpd() {
	[ -z "$ndpd_pid" ] || kill "${1:--TERM}" "$ndpd_pid" 2>/dev/null
	wait "$ndpd_pid" 2>/dev/null
	ndpd_pid=''
}
trap 'end_ndpd -KILL; rm -rf "$work"' EXIT

# Many decisions, soon: the model is small and the runs are short.
cat >"$work/ndpd.conf" <<'CONF'
[daemon]
poll_ms = 1
[placement]
first_decide_every = 2
decide_every = 4
stay_ms = 20
horizon_steps = 1000
CONF

start_ndpd() {
	"$build/ndpd" --config "$work/ndpd.conf" --socket "$work/socket" \
		--metrics "unix:$work/metrics" 2>>"$work/log" &
	ndpd_pid=$!
	for _ in $(seq 500); do
		[ -S "$work/socket" ] && [ -S "$work/metrics" ] && return
		sleep 0.02
	done
}

result() {
	count=$((count + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $count - $1"
	else
		tail -n 20 "$work"/out* "$work/log" 2>/dev/null | sed 's/^/# /'
		echo "not ok $count - $1"
	fi
}

# run N OPTION...: ndp-run against the reference, output in out.N
run() {
	local n=$1

	shift
	"$build/ndp-run" --model $model --device soft:dimms=4,size=64M --daemon="$work/socket" \
		--check $model/reference.json --json "$@" >"$work/out.$n" 2>"$work/err.$n"
}

# value N KEY: of the daemon object
value() {
	python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["daemon"][sys.argv[2]])' \
		"$work/out.$1" "$2"
}

run 1
status=$?
[ $status -eq 3 ] && grep -q 'no ndpd listens there' "$work/err.1"
result "without ndpd it says so" $?

start_ndpd
run 1 && [ "$(value 1 attached)" = True ] && [ "$(value 1 posts)" -ge 1500 ] &&
	[ "$(value 1 moves)" -gt 0 ]
result "experts move, and the text is equal to the reference" $?

run 1 --domains cpu,ndp & first=$!
run 2 --policy trimoe --placement striped & second=$!
wait $first && wait $second && [ "$(value 1 posts)" -ge 1500 ] && [ "$(value 2 posts)" -ge 1500 ]
result "two applications at once" $?

# PoCL may be missing where nothing was set up; the budget makes ndpd choose.
if "$build/ndp-run" --model $model --device soft: --domains gpu,ndp --prompt x --tokens 1 \
	>/dev/null 2>&1; then
	run 1 --domains gpu,ndp --gpu-experts 2M && [ "$(value 1 attached)" = True ]
	result "GPU memory follows" $?
else
	count=$((count + 1))
	echo "ok $count - GPU memory follows # SKIP no OpenCL device"
fi

if command -v curl >/dev/null && command -v promtool >/dev/null; then
	curl -sf --unix-socket "$work/metrics" http://localhost/metrics >"$work/metrics.txt" &&
		promtool check metrics <"$work/metrics.txt" >"$work/out.1" 2>&1 && [ ! -s "$work/out.1" ]
	result "metrics are what promtool wants" $?
else
	count=$((count + 1))
	echo "ok $count - metrics are what promtool wants # SKIP no curl or no promtool"
fi

run 1 & first=$!
sleep 0.1
end_ndpd -KILL
wait $first
result "ndpd killed in the middle: the application goes on" $?

"$build/ndp-run" --model $model --device soft: --prompt x --daemon --migrate 5 >"$work/out.1" 2>&1
[ $? -eq 2 ] && grep -q 'no use with --daemon' "$work/out.1"
result "two that move experts are refused" $?

start_ndpd
"$build/ndp-run" --model $model --domains cpu --daemon="$work/socket" \
	--check $model/reference.json --json >"$work/out.1" 2>"$work/err.1" &&
	[ "$(value 1 moves)" = 0 ]
result "without DIMMs there is nothing to move" $?
end_ndpd
[ ! -e "$work/socket" ] && [ ! -e "$work/metrics" ]
result "ndpd leaves nothing behind" $?
echo "1..$count"
