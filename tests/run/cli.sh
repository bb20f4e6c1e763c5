#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run as a program: what it accepts and refuses, what it prints where, its status, its end by
# signals. Cases from public reports: no device or no permission (pmem/ndctl#246,
# intel/idxd-config#16, ROCm/amdsmi#114), Ctrl-C while waiting (tenstorrent/tt-umd#2336). The same
# on a real node is tests/run/guest-cases.sh.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

device=soft:dimms=2,size=64M
# A device that takes its modelled time and is slow: MB/s.
slow() { echo "soft:dimms=2,size=64M,timing=on,internal-mbps=$1"; }
tiny_run=("$ndp_run" --model "$tiny" --device "$device")

# ---- options

# usage TEXT ARGUMENTS...: refused as wrong usage, the line on stderr says TEXT
usage() {
	local text=$1

	shift
	ends 2 "$ndp_run" "$@" && one_line_on_stderr && says err "$text"
}

help_is_text() {
	ends 0 "$ndp_run" --help && says out "--placement" "--migrate" && [ ! -s "$work/err" ]
}

t "--help" help_is_text
t "nothing at all" usage "--model"
t "no prompt" usage "exactly one of --prompt, --prompt-file and --check" --model "$tiny"
t "two prompts" usage "2 are there" --model "$tiny" --prompt a --check b
t "an empty prompt" usage "--prompt is empty" --model "$tiny" --prompt ''
t "an unknown option" usage "--frobnicate" --frobnicate
t "an option without its value" usage "--model wants a value" --model
t "an option with a value that takes none" usage "--json=yes" --json=yes --prompt x --list
t "an option twice" usage "--model is there twice" --model a --model b --prompt x
t "a stray word" usage "'stray'" --model "$tiny" --prompt x stray
t "--tokens 0" usage "--tokens wants an integer from 1" --model "$tiny" --prompt x --tokens 0
t "--tokens 10x" usage "'10x'" --model "$tiny" --prompt x --tokens 10x
t "--tokens -1" usage "'-1'" --model "$tiny" --prompt x --tokens=-1
t "--migrate 0" usage "--migrate wants an integer from 1" --model "$tiny" --prompt x --migrate 0
t "--temperature nan" usage "--temperature" --model "$tiny" --prompt x --temperature nan
t "--top-p 1.5" usage "--top-p wants a number from 0 to 1" --model "$tiny" --prompt x --top-p 1.5
t "--top-k without a temperature" usage "--temperature" --model "$tiny" --prompt x --top-k 4
t "--seed with nothing random" usage "nothing is random" --model "$tiny" --prompt x --seed 4
t "--domains nothing" usage "--domains wants gpu, cpu or ndp" --model "$tiny" --prompt x --domains ''
t "--domains of three names, one unknown" usage "'cpu,tpu'" --model "$tiny" --prompt x \
	--domains cpu,tpu
t "--domains twice the same" usage "each once" --model "$tiny" --prompt x --domains cpu,cpu
t "--policy unknown" usage "trimoe, " --model "$tiny" --prompt x --policy best
t "--threads without cpu" usage "without cpu in --domains" --model "$tiny" --prompt x --threads 2
t "--gpu without gpu" usage "without gpu in --domains" --model "$tiny" --prompt x --gpu opencl
t "--gpu-experts without gpu" usage "without gpu" --model "$tiny" --prompt x --gpu-experts 1G
t "--gpu-experts of no bytes" usage "like 200M or 0" --model "$tiny" --prompt x --domains gpu \
	--gpu-experts 3X
t "--migrate without DIMMs" usage "--migrate wants DIMMs" --model "$tiny" --prompt x --migrate 5 \
	--domains cpu
t "--check is greedy" usage "--temperature has no use" --model "$tiny" --check r --temperature 1
t "--check knows how many tokens" usage "--tokens has no use" --model "$tiny" --check r --tokens 9

# ---- models, devices

# broken TEXT ARGUMENTS...: status 3, the line on stderr says TEXT
broken() {
	local text=$1

	shift
	ends 3 "$ndp_run" "$@" && one_line_on_stderr && says err "$text"
}

prompt_too_long() {
	head -c 500 /dev/zero | tr '\0' a >"$work/long"
	ends 2 "${tiny_run[@]}" --prompt-file "$work/long" --tokens 14 && one_line_on_stderr &&
		says err "513 positions" "512" "max_position_embeddings" &&
		ends 0 "${tiny_run[@]}" --prompt-file "$work/long" --tokens 13
}

t "a model that is not there" broken "config.json" --model "$work/none" --prompt x
t "a safetensors file in place of its folder" broken "no GGUF file" --prompt x \
	--model "$tiny/model.safetensors"
t "a reference that is not there" broken "$work/none" --model "$tiny" --check "$work/none"
t "a prompt file that is not there" usage "$work/none" --model "$tiny" --prompt-file "$work/none"
t "more positions than the model has" prompt_too_long
t "a placement that does not exist" broken "spread:9" --model "$tiny" --device "$device" \
	--prompt x --placement spread:9
t "experts that do not fit, with the arithmetic" broken "DIMM 0 would have to hold 12582912 bytes" \
	--model "$tiny" --device soft:dimms=1,size=4M --prompt x
t "--migrate on one DIMM" broken "two DIMMs" --model "$tiny" --device soft:dimms=1 --prompt x \
	--migrate 5
t "a device that is none" broken "/dev/null" --model "$tiny" --device /dev/null --prompt x
t "a device that is not there" broken "/dev/ndp-none" --model "$tiny" --device /dev/ndp-none \
	--prompt x
t "a trace file that cannot be written" broken "$work/none/trace" --model "$tiny" \
	--device "$device" --prompt x --trace "$work/none/trace"

t "a host profile that is not there" broken "no-such-host" --model "$tiny" --device "$device" \
	--prompt x --host no-such-host

# Budgets say their arithmetic, before anything is loaded: thecodacus/llama.cpp#7,
# ggml-org/llama.cpp#27872, kvcache-ai/ktransformers#1835. An expert is 96 KiB.
unused_gpu() {
	ends 0 "$ndp_run" --model "$tiny" --domains gpu,cpu --gpu-experts 0 --prompt "int main(" \
		--tokens 8 && says out "GPU unused" && sed -n 1p "$work/out" >"$work/without" &&
		ends 0 "$ndp_run" --model "$tiny" --domains cpu --prompt "int main(" --tokens 8 &&
		sed -n 1p "$work/out" | cmp - "$work/without"
}
t "--gpu-experts 0: the GPU is unused, which is printed" unused_gpu
t "--gpu-experts 0 and nothing else" broken "add cpu or ndp" --model "$tiny" --domains gpu \
	--gpu-experts 0 --prompt x
t "a GPU budget below one expert" broken "does not hold one expert" --model "$tiny" --prompt x \
	--domains gpu --gpu-experts 98303
t "a GPU that is not there" broken "opencl:no such device" --model "$tiny" --prompt x --domains gpu \
	--gpu "opencl:no such device"
if "$ndp_run" --model "$tiny" --domains gpu --prompt x --tokens 1 >/dev/null 2>&1; then
	gpu_too_small() {
		broken "9830400 experts of" --model "$tiny" --domains gpu --gpu-experts 900G \
			--prompt x && says err "needs 921600.0 MiB" ", at most "
	}
	t "a GPU budget beyond its memory" gpu_too_small
fi

# no_permission: the message has path, owner, mode and the group to join
no_permission() {
	local as=()

	install -m 755 "$ndp_run" "$build/libndp.so.0" "$work" &&
		cp -r "$tiny/config.json" "$work/m.json" && mkdir -p "$work/m" &&
		cp "$work/m.json" "$work/m/config.json" && : >"$work/node" &&
		chmod 755 "$work" "$work/m" && chmod 0 "$work/node" || return 1
	if [ "$(id -u)" -eq 0 ]; then
		chgrp daemon "$work/node" && chmod 660 "$work/node" || return 1
		as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
	fi
	ends 3 "${as[@]}" "$work/ndp-run" --model "$work/m" --device "$work/node" --prompt x &&
		one_line_on_stderr &&
		says err "$work/node" "$(stat -c %U "$work/node")" \
			"$(stat -c %G "$work/node")" "0$(stat -c %a "$work/node")"
}
t "no permission: path, owner, mode, group" no_permission

# ---- JSON

no_device_is_an_empty_list() {
	ends 0 "$ndp_run" --list "$@" && [ "$(cat "$work/out")" = "[]" ] &&
		[ "$(wc -l <"$work/err")" -eq 1 ] && says err "NDP"
}
list_is_json() {
	ends 0 "$ndp_run" --list && strict_json
}
if ls /dev/ndp* >/dev/null 2>&1; then
	t "--list is one JSON document" list_is_json
else
	t "no device: --list is [], the cause on stderr" no_device_is_an_empty_list
	t "no device: --list --json as well" no_device_is_an_empty_list --json
	t "no device: running says why" broken "NDP" --model "$tiny" --prompt x
fi

json_run() {
	ends 0 "${tiny_run[@]}" --prompt "int main(" --tokens 5 --json && strict_json &&
		[ ! -s "$work/err" ]
}
# json_error STATUS TEXT ARGUMENTS...: stdout is a document that says TEXT
json_error() {
	local status=$1 text=$2

	shift 2
	ends "$status" "$ndp_run" "$@" && strict_json && says out '"error"' "$text" && says err "$text"
}
# Bytes that are no UTF-8, as a prompt and in a path.
json_of_any_bytes() {
	local odd=$work/$'caf\xe9'

	mkdir -p "$odd" && cp "$tiny"/config.json "$tiny"/model.safetensors "$odd" &&
		ends 0 "$ndp_run" --model "$odd" --device "$device" --prompt $'\xe9\x01\xff' --json \
			--tokens 5 && strict_json &&
		ends 3 "$ndp_run" --model "$odd/none" --prompt x --json && strict_json
}
t "a run as JSON" json_run
t "wrong usage as JSON" json_error 2 "--tokens" --model "$tiny" --tokens x --prompt x --json
t "an option error before --json" json_error 2 "--frobnicate" --frobnicate --json
t "a failure as JSON" json_error 3 "config.json" --json --model "$work/none" --prompt x
t "any bytes give valid JSON" json_of_any_bytes

# ---- text

text_and_nothing_else() {
	ends 0 "${tiny_run[@]}" --prompt "multiple writers, all of them will get b" --quiet &&
		[ ! -s "$work/err" ] && printf '%s\n' 'e able to the same time to the' \
		' * the same time to the same time' | cmp - "$work/out"
}
from_a_file() {
	printf 'multiple writers, all of them will get b' >"$work/prompt"
	ends 0 "${tiny_run[@]}" --prompt-file "$work/prompt" --tokens 4 &&
		says out "multiple writers, all of them will get be ab" "modelled" "wall" &&
		[ ! -s "$work/err" ]
}
full_disk() {
	[ -e /dev/full ] || return 0
	"${tiny_run[@]}" --prompt x --tokens 3 >/dev/full 2>"$work/err"
	[ $? -eq 3 ] && says err "standard output"
}
a_seed_repeats() {
	local sampled=("${tiny_run[@]}" --prompt static --tokens 40 --temperature 1 --quiet)

	"${sampled[@]}" --seed 1 >"$work/1" && "${sampled[@]}" --seed 1 >"$work/1again" &&
		"${sampled[@]}" --seed 2 >"$work/2" && cmp "$work/1" "$work/1again" &&
		! cmp -s "$work/1" "$work/2"
}
# Every token of every step goes to 4 experts of each of 4 layers.
trace_adds_up() {
	ends 0 "${tiny_run[@]}" --prompt "int main(" --tokens 8 --trace "$work/trace" &&
		awk -F, 'NR == 1 && $0 != "step,layer,expert,count" { exit 1 }
			NR > 1 { n[$1 "," $2] += $4; rows++ }
			END {
				for (l = 0; l < 4; l++)
					for (s = 0; s < 8; s++)
						if (n[s "," l] != (s ? 4 : 36)) exit 1
				if (length(n) != 32) exit 1
			}' "$work/trace"
}
t "--quiet prints what was generated" text_and_nothing_else
t "--prompt-file" from_a_file
t "a full disk is noticed" full_disk
t "a seed repeats" a_seed_repeats
t "--trace adds up" trace_adds_up

# ---- signals and locks

# interrupted SIGNAL STATUS SECONDS COMMAND...: SIGNAL after SECONDS ends it within 1 s with STATUS
interrupted() {
	local sig=$1 wanted=$2 after=$3 pid start took got

	shift 3
	"$@" >"$work/out" 2>"$work/err" </dev/null &
	pid=$!
	sleep "$after"
	kill -0 "$pid" || { cat "$work/err"; echo "ended before the signal"; return 1; }
	start=$(date +%s%N)
	kill -s "$sig" "$pid"
	wait "$pid"
	got=$?
	took=$((($(date +%s%N) - start) / 1000000))
	cat "$work/err"
	echo "status $got after $took ms"
	# 0.2 s for a busy machine's shell.
	[ "$got" -eq "$wanted" ] && [ "$took" -lt 1200 ]
}
json_interrupted() {
	interrupted INT 130 1 "$ndp_run" --model "$tiny" --device "$(slow "$1")" --prompt "static int" \
		--tokens 400 --json && strict_json && says out interrupted
}
waits_for_the_lock() {
	local holder

	: >"$work/lock"
	(exec 9>"$work/lock" && flock 9 && exec sleep 20) &
	holder=$!
	sleep 0.3
	interrupted INT 130 1 "${tiny_run[@]}" --prompt x --lock="$work/lock" &&
		says err "waiting for the lock of $work/lock" && kill -0 "$holder" &&
		! flock -n "$work/lock" true
	local ok=$?

	kill "$holder"
	wait "$holder" 2>/dev/null
	return "$ok"
}
lock_is_held() {
	local pid ok

	: >"$work/lock"
	"$ndp_run" --model "$tiny" --device "$(slow 10)" --prompt "static int" --tokens 400 \
		--lock="$work/lock" >/dev/null 2>&1 &
	pid=$!
	sleep 1
	! flock -n "$work/lock" true
	ok=$?
	kill "$pid"
	wait "$pid" 2>/dev/null
	[ "$ok" -eq 0 ] && flock -n "$work/lock" true
}
long=(--model "$tiny" --prompt "static int" --tokens 400)
t "SIGINT while generating" interrupted INT 130 1 "$ndp_run" "${long[@]}" --device "$(slow 10)"
t "SIGINT while a command hangs on" interrupted INT 130 1 "$ndp_run" "${long[@]}" --device "$(slow 1)"
t "SIGINT while experts move" interrupted INT 130 1 "$ndp_run" "${long[@]}" --device "$(slow 10)" \
	--migrate 1
t "SIGTERM" interrupted TERM 143 1 "$ndp_run" "${long[@]}" --device "$(slow 10)"
t "SIGINT with --json" json_interrupted 10
t "SIGINT with --json while a command hangs on" json_interrupted 1
t "SIGINT while waiting for the lock" waits_for_the_lock
t "the lock is held while running" lock_is_held
t "--lock without a node" broken "--lock=FILE" --model "$tiny" --device "$device" --prompt x --lock
t "--lock of a file that is not there" broken "$work/none" --model "$tiny" --device "$device" \
	--prompt x --lock="$work/none"

done_testing
