#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The unit tests of libndp and ndpd once more, as TAP: under AddressSanitizer (leaks included) and
# UndefinedBehaviorSanitizer, and those with threads under ThreadSanitizer. Run from the top of the
# tree; the builds are kept in build/asan and build/tsan.
set -u

build=${BUILD:-build}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
count=0

result() {
	count=$((count + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $count - $1"
	else
		grep -v '^\[ *\(OK\|RUN\) *\]' "$log" | head -n 60 | sed 's/^/# /'
		echo "not ok $count - $1"
	fi
}

# suite NAME FLAGS TEST...
suite() {
	local name=$1 flags=$2 test

	shift 2
	make -j2 BUILD="$build/$name" CFLAGS="-O1 -fno-omit-frame-pointer $flags" \
		"${@/#/$build/$name/unit/}" >"$log" 2>&1
	result "$name: build" $?
	for test; do
		"$build/$name/unit/$test" >"$log" 2>&1
		result "$name: $test" $?
	done
}

export ASAN_OPTIONS=detect_leaks=1
# The suppression names a function: its stack must not have been forgotten.
export TSAN_OPTIONS="suppressions=$PWD/tests/unit/tsan.supp history_size=7"
threaded=(test_cpu test_device_commands test_device_arguments test_device_migration
	test_device_placement test_soft_device)
suite asan '-fsanitize=address,undefined -fno-sanitize-recover=undefined' "${threaded[@]}" \
	test_attach test_device_nomem test_pack test_placement test_discover \
	test_tensors test_tensors_dequant test_tensors_dequant_baseline test_gguf test_gguf_split \
	test_model test_model_config test_model_families test_load \
	test_router test_forward test_forward_faults test_forward_threads test_forward_nomem \
	test_gpu test_gpu_weights test_gpu_queue test_ndpctl test_ndpctl_io \
	test_engine test_predict test_sched test_sched_timeline test_steward \
	test_ndpd test_ndpd_hostile test_ndpd_lenders test_ndpd_share
suite tsan -fsanitize=thread "${threaded[@]}" test_load test_forward_threads test_gpu_queue \
	test_ndpd test_ndpd_hostile test_ndpd_lenders
echo "1..$count"
