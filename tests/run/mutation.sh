#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run --check can fail: a model with one used neuron block zeroed or two experts swapped differs
# from the reference. And models that are damaged as files are refused, by name.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

mutant=$work/mutant
device=soft:dimms=4,size=64M

# differs PLACEMENT MUTATION...: the check fails and says where and what
differs() {
	local placement=$1

	shift
	tests/run/mutate.py "$tiny" "$mutant" "$@" &&
		ends 1 "$ndp_run" --model "$mutant" --device "$device" --placement "$placement" \
			--check "$tiny/reference.json" &&
		says out "check: FAILED" "DIFFERENT" &&
		grep -qE 'step [0-9]+: token [0-9]+ is wanted|logits are more than' "$work/out"
}

# refused TEXT MUTATION...: status 3, one line that says TEXT
refused() {
	local text=$1

	shift
	tests/run/mutate.py "$tiny" "$mutant" "$@" &&
		ends 3 "$ndp_run" --model "$mutant" --device "$device" --prompt x &&
		one_line_on_stderr && says err "model.safetensors" "$text"
}

no_mutation_passes() {
	tests/run/mutate.py "$tiny" "$mutant" swap 0 1 1 &&
		ends 0 "$ndp_run" --model "$mutant" --device "$device" --check "$tiny/reference.json"
}

json_says_it_failed() {
	tests/run/mutate.py "$tiny" "$mutant" swap 0 0 10 &&
		ends 1 "$ndp_run" --model "$mutant" --device "$device" --json \
			--check "$tiny/reference.json" &&
		strict_json && python3 - "$work/out" <<'EOF'
import json, sys
run = json.load(open(sys.argv[1]))
assert run['check']['passed'] is False
assert any(not p['check']['passed'] for p in run['prompts'])
EOF
}

t "a copy without a change passes" no_mutation_passes

# The two most used experts of every layer, every block of the first, one of the second.
tests/run/mutate.py "$tiny" used >"$work/used"
for layer in 0 1 2 3; do
	mapfile -t experts < <(awk -v l=$layer '$1 == l { print $2 }' "$work/used" | head -n 2)
	for block in 0 1 2 3; do
		t "block $block of layer $layer expert ${experts[0]} zeroed" \
			differs striped zero-block $layer "${experts[0]}" $block
	done
	t "block 2 of layer $layer expert ${experts[1]} zeroed" \
		differs local zero-block $layer "${experts[1]}" 2
	t "layer $layer experts ${experts[0]} and ${experts[1]} swapped" \
		differs spread:2 swap $layer "${experts[0]}" "${experts[1]}"
done
t "the JSON report says that the check failed" json_says_it_failed

w1=model.layers.2.block_sparse_moe.experts.17.w1.weight
t "a file that ends early" refused "truncated" truncate 100
t "a tensor of another type" refused "'lm_head.weight' has dtype F16" set-dtype lm_head.weight F16
t "a tensor of an unknown type" refused "unknown dtype 'Q4'" set-dtype lm_head.weight Q4
t "an expert without its gate" refused "lacks '$w1'" rename $w1 $w1.old
t "a tensor that nobody wants" refused "'model.layers.0.shared_expert.w1.weight'" \
	add model.layers.0.shared_expert.w1.weight

# gguf_refused TEXT CHANGE: a GGUF file with this change
gguf_refused() {
	tests/models/gguf.py "$tiny" "$work/tiny.gguf" "$2" &&
		ends 3 "$ndp_run" --model "$work/tiny.gguf" --device "$device" --prompt x &&
		one_line_on_stderr && says err "tiny.gguf" "$1"
}
t "GGUF: no queries" gguf_refused "'blk.2.attn_q.weight' is missing" -blk.2.attn_q.weight
t "GGUF: a layer without its router" gguf_refused "ffn_gate_inp" -blk.1.ffn_gate_inp.weight
t "GGUF: rotation that is scaled" gguf_refused "'llama.rope.scaling.factor' is unknown" \
	+llama.rope.scaling.factor
t "GGUF: another architecture" gguf_refused "'general.architecture' is 'gptneox'" =gptneox

done_testing
