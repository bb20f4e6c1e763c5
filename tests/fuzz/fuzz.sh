#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Runs the fuzz targets (libFuzzer, with AddressSanitizer and UndefinedBehaviorSanitizer), as TAP:
#
#   fuzz.sh            a fixed number of inputs each, from a fixed seed
#   fuzz.sh SECONDS    each for as long, on what earlier such runs kept in build/fuzz/corpus
#
# First each target has to find a mistake that is planted (walk.c). What a target finds is kept in
# build/fuzz/findings. Run from the top of the tree.
set -u

build=${BUILD:-build}
out=$build/fuzz
seconds=${1:-}
# In memory where that can be: the target for models writes files.
tmp=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$tmp"' EXIT
count=0

targets=(gguf safetensors model)
declare -A inputs=([gguf]=200000 [safetensors]=200000 [model]=50000)
dict=-dict=tests/fuzz/safetensors.dict
declare -A options=([safetensors]=$dict [model]=$dict)

export TMPDIR=$tmp
export ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1

# result NAME STATUS [COMMENT]
result() {
	count=$((count + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $count - $1${3:+ # $3}"
	else
		grep -v '^#[0-9]*[[:space:]]' "$tmp/log" | tail -n 60 | sed 's/^/# /'
		echo "not ok $count - $1"
	fi
}

# fuzz TARGET FINDINGS CORPUS OPTION...
# libFuzzer's time-out for one input is wall time, and 20 s were once not enough on a busy machine
# for an input that takes microseconds; so the processor time of a counted run is limited, too.
fuzz() {
	local target=$1 findings=$2 corpus=$3

	shift 3
	mkdir -p "$findings"
	"$out/fuzz_$target" -max_len=5000 -timeout=300 -rss_limit_mb=1024 -print_final_stats=1 \
		-artifact_prefix="$findings/$target-" ${options[$target]:+"${options[$target]}"} \
		"$@" "$corpus" >"$tmp/log" 2>&1
}

finds_what_is_planted() {
	FUZZ_PLANT=1 fuzz "$1" "$tmp/planted" "$tmp/$1" -seed=1 -runs=10000
	grep -q 'AddressSanitizer: heap-buffer-overflow' "$tmp/log"
}

# What was executed, and how much of the code's edges that reached.
statistics() {
	executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$tmp/log")
	edges=$(sed -n 's/^#[0-9]*[[:space:]]*DONE *cov: \([0-9]*\).*/\1/p' "$tmp/log")
}

counted_run() {
	local name=$1

	(
		ulimit -t 120
		fuzz "$name" "$out/findings" "$tmp/$name" -seed=1 -runs="${inputs[$name]}"
	)
	status=$?
	statistics
	[ $status -eq 0 ] && [ "${executed:-0}" -ge "${inputs[$name]}" ]
	result "$name: ${inputs[$name]} inputs, no finding" $? "$executed executed, $edges edges"
}

timed_run() {
	local name=$1

	mkdir -p "$out/corpus/$name"
	cp -n "$tmp/$name"/* "$out/corpus/$name"
	fuzz "$name" "$out/findings" "$out/corpus/$name" -max_total_time="$seconds"
	status=$?
	statistics
	result "$name: $seconds s, no finding" $status "$executed executed, $edges edges"
}

# A seed that is refused at once is a bad place to start from.
every_model_opens() {
	FUZZ_SAY=1 "$out/fuzz_model" "$tmp/model"/* >"$tmp/log" 2>&1 &&
		! grep -q '^refused' "$tmp/log"
}

make -j2 BUILD="$build" fuzz-programs >"$tmp/log" 2>&1
result "build" $?
for target in "${targets[@]}"; do
	tests/fuzz/seeds.py "$target" "$tmp/$target" >"$tmp/log" 2>&1
	result "$target: seeds" $?
	if [ "$target" = model ]; then
		every_model_opens
		result "model: every seed is one" $?
	fi
	finds_what_is_planted "$target"
	result "$target: finds a read beyond the file's end that is planted" $?
	if [ -n "$seconds" ]; then
		timed_run "$target"
	else
		counted_run "$target"
	fi
done
echo "1..$count"
