#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-bench and ndp-calibrate as programs: what they refuse, what they print where, and that what
# they write can be read by those it is for. That numbers are right is no matter of this script;
# everything is as small and short as it can be.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

bench=$build/ndp-bench
calibrate=$build/ndp-calibrate
soft=soft:dimms=2,size=512M
model=$work/model

# refuses STATUS TEXT COMMAND...: one line on stderr that says TEXT
refuses() {
	local status=$1 text=$2

	shift 2
	ends "$status" "$@" && one_line_on_stderr && says err "$text"
}

# ---- ndp-bench

bench_help() {
	ends 0 "$bench" --help && says out "ndp " "load" && [ ! -s "$work/err" ] &&
		ends 0 "$bench" ndp --help && says out "--shape" && ends 0 "$bench" load --help
}
ndp_as_json() {
	ends 0 "$bench" ndp --device "$soft" --shape 256x128 --tokens 1,3 --rounds 1 --json &&
		strict_json && [ ! -s "$work/err" ] && python3 - "$work/out" <<'EOF'
import json, sys
run = json.load(open(sys.argv[1]))
rows = run['tables']['ffn']['rows']
assert [(r['tokens'], r['dimms']) for r in rows] == [(1, 1), (1, 2), (3, 1), (3, 2)], rows
for r in rows:
    assert r['wall_us'] > 0 and r['modelled_us'] > 0, r
# Modelled time is a function of the command: it does not depend on how many DIMMs compute.
assert rows[0]['modelled_us'] == rows[1]['modelled_us'] < rows[2]['modelled_us']
assert run['bars'] == [] and run['machine']['cpus'] > 0
EOF
}
bench_fails_as_json() {
	ends 3 "$bench" ndp --device /dev/ndp-none --json && strict_json &&
		says out '"error"' "/dev/ndp-none" && says err "/dev/ndp-none"
}
load_prints_bars() {
	local name value='value=[0-9.e+-]+' verdict='(pass|fail)$'

	"$bench" load --model "$model" --threads 1 --rounds 1 --bars >"$work/out" 2>"$work/err"
	[ $? -le 1 ] && [ ! -s "$work/err" ] && cat "$work/out" || return 1
	for name in 'packing-against-copying-1-thread:>=0\.5' \
		'extra-memory-experts-a-thread-1-thread:<=2'; do
		grep -qE "^bar D\.6 ${name%:*} $value goal=${name#*:} $verdict" "$work/out" || return 1
	done
}
t "ndp-bench --help" bench_help
t "ndp-bench without a command" ends 2 "$bench"
t "ndp-bench: an unknown command" refuses 2 "no command 'tpu'" "$bench" tpu
t "ndp-bench: a stray word" refuses 2 "'stray'" "$bench" ndp stray
t "ndp-bench: a number that is none" refuses 2 "--rounds wants a number" "$bench" ndp --rounds 3x
t "ndp-bench: a list that is none" refuses 2 "--tokens wants numbers" "$bench" ndp --tokens 1,,2
t "ndp-bench: a shape that is none" refuses 2 "--shape wants HxI" "$bench" ndp --shape 256
t "ndp-bench: a device that is not there" refuses 3 "/dev/ndp-none" "$bench" ndp \
	--device /dev/ndp-none
t "ndp-bench: a failure as JSON" bench_fails_as_json
t "ndp-bench load without a model" refuses 2 "--model PATH is missing" "$bench" load
t "ndp-bench load of what is none" refuses 3 "$work/none" "$bench" load --model "$work/none"
t "ndp-bench ndp as JSON" ndp_as_json
t "a model is made" "$build/ndp-mkmodel" --family mixtral --layers 1 --experts 4 --hidden 256 \
	--intermediate 128 "$model"
t "ndp-bench load prints bars" load_prints_bars

# ---- ndp-calibrate

host=$work/host.json
short=(--shapes "256x128" --tokens "1,4" --seconds 0.01 --quiet)
calibrates() {
	ends 0 "$calibrate" --domains "$1" --threads 1 "${short[@]}" --output "$host" &&
		[ ! -s "$work/out" ] && [ ! -s "$work/err" ] && [ ! -e "$host.part" ] &&
		python3 - "$host" "$1" <<'EOF'
import json, sys
host, domains = json.load(open(sys.argv[1])), sys.argv[2].split(',')
assert host['format'] == 'moendp-host-1' and 'wall time' in host['description']
assert 'ndp-calibrate --domains' in host['sources']['RUN']
for d in 'cpu', 'gpu', 'ndp':
    assert (host[d] is not None) == (d in domains), d
    if d in domains:
        table = host[d]['table']
        assert table['kind'] == 'measured' and [p[0] for p in table['value']] == [1, 4], table
        assert all(p[1] > 0 for p in table['value']), table
        assert 0 < host[d]['efficiency']['value'] <= 1
EOF
}
# To the scheduler and to ndp-replay it is a host as any other.
profile_is_read() {
	ends 0 "$calibrate" --domains cpu,ndp --threads 1 "${short[@]}" --output "$host" \
		--device soft:dimms=2,size=64G &&
		ends 0 "$build/ndp-replay" --host "$host" --model deepseek-v2-lite --batch 8 \
			--synthetic top5=0.2,next25=0.5,steps=1,layers=2 --policy split &&
		says out "measured: no GPU, CPU, 2 DIMMs" &&
		ends 0 "$ndp_run" --model "$tiny" --domains cpu,ndp --host "$host" --prompt x --tokens 2 \
			--device soft:dimms=2,size=64M && says out "plans for measured"
}
on_stdout() {
	ends 0 "$calibrate" --domains cpu "${short[@]}" --threads 1 --name here && strict_json &&
		says out '"here"'
}
is_predicted() {
	ends 0 "$bench" layer --predict "$host" --model "$model" --batches 2,5 --rounds 1 \
		--device "$soft" --json && strict_json && python3 - "$work/out" <<'EOF'
import json, sys
rows = json.load(open(sys.argv[1]))['tables']['predict']['rows']
assert [r['tokens'] for r in rows] == [2, 5], rows
for r in rows:
    assert r['predicted_modelled_us'] > 0 and r['wall_us'] > 0, r
    # A part of an expert counts its tokens again.
    assert r['cpu_pairs'] + r['ndp_pairs'] >= 2 * r['tokens'], r
EOF
}
nothing_is_left() {
	refuses 3 "/dev/ndp-none" "$calibrate" --domains ndp --device /dev/ndp-none --quiet \
		--output "$work/new.json" && [ ! -e "$work/new.json" ] && [ ! -e "$work/new.json.part" ]
}
t "ndp-calibrate --help" ends 0 "$calibrate" --help
t "ndp-calibrate: an unknown domain" refuses 2 "'cpu,tpu'" "$calibrate" --domains cpu,tpu
t "ndp-calibrate: tokens that fall" refuses 2 "ascending" "$calibrate" --tokens 4,2
t "ndp-calibrate: 17 tokens" refuses 2 "at most 16" "$calibrate" \
	--tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
t "ndp-calibrate: shapes that are none" refuses 2 "HxI" "$calibrate" --shapes 2048
t "ndp-calibrate: no time at all" refuses 2 "--seconds" "$calibrate" --seconds 0
t "ndp-calibrate: a file that cannot be written" refuses 3 "$work/none/x" "$calibrate" \
	"${short[@]}" --threads 1 --output "$work/none/x"
t "a device that is not there leaves no file" nothing_is_left
t "the CPU" calibrates cpu
t "a profile on standard output" on_stdout
t "CPU and DIMMs at once" calibrates cpu,ndp
t "ndp-replay and ndp-run read the profile" profile_is_read
t "layers are predicted by the profile" is_predicted
if "$ndp_run" --model "$tiny" --domains gpu --prompt x --tokens 1 >/dev/null 2>&1; then
	t "CPU, DIMMs and GPU" calibrates cpu,ndp,gpu
fi

done_testing
