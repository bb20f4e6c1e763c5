#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run --check on the in-process device: every placement, at rest and with experts moving, on
# other numbers of DIMMs, and on a model whose shapes fit no tile; and on every mix of DIMMs, CPU and
# GPU (an OpenCL device; one that is the CPU will do), under every policy, and from a GGUF file: the
# text stays the same.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

# check MODEL ARGUMENTS...
check() {
	local model=$1

	shift
	ends 0 "$ndp_run" --model "$model" --check "$model/reference.json" "$@" &&
		says out "check: passed"
}

# With --json nothing says "check: passed".
check_json() {
	ends 0 "$ndp_run" --model "$tiny" --check "$tiny/reference.json" "$@" --json && strict_json
}
moves_happened() {
	check_json --device soft:dimms=4,size=64M --placement striped --migrate 1 &&
		python3 - "$work/out" <<'EOF'
import json, sys
run = json.load(open(sys.argv[1]))
moved = run['migration']
assert run['check']['passed'], run['check']
assert moved['moves'] > 0 and moved['bytes'] > 0 and moved['modelled_ns'] > 0, moved
assert sum(d['link']['bytes'] for d in run['dimms']) > 0, run['dimms']
EOF
}

# What the report says of the work adds up.
report_adds_up() {
	check_json --device soft:dimms=4,size=64M --placement spread:2 &&
		python3 - "$work/out" <<'EOF'
import json, sys
run = json.load(open(sys.argv[1]))
totals, experts = run['totals'], run['experts']
fed = totals['prompt_tokens'] + totals['decode_steps']
assert totals['prompt_tokens'] == sum(len(p['prompt_tokens']) for p in run['prompts'])
assert totals['decode_steps'] == sum(len(p['tokens']) - 1 for p in run['prompts'])
assert experts['token_expert_pairs'] == fed * 4 * run['model']['layers'], experts
assert experts['retries'] == 0, experts
# Each command runs on the two DIMMs that hold its expert.
assert totals['compute']['commands'] == 2 * experts['commands'], totals
ndp = run['domains']['ndp']
assert ndp['computes'] and ndp['commands'] == experts['commands'], run['domains']
assert ndp['token_expert_pairs'] == experts['token_expert_pairs'], run['domains']
assert not run['domains']['cpu']['computes'] and not run['domains']['cpu']['commands']
assert run['gpu'] is None
assert totals['compute']['tokens'] == 2 * experts['token_expert_pairs'], totals
assert totals['compute']['errors'] == 0, totals
for key, value in totals['compute'].items():
    assert value == sum(d['compute'][key] for d in run['dimms']), key
assert max(d['compute']['modelled_busy_ns'] for d in run['dimms']) \
    == totals['modelled_busiest_dimm_ns']
assert run['check']['worst_deviation'] < 0.03 and run['check']['smallest_margin'] > 0.05
EOF
}

four=soft:dimms=4,size=64M
for placement in local striped spread:2 spread:3 dimm:3; do
	t "tiny-moe, $placement" check "$tiny" --device "$four" --placement $placement
done
t "tiny-moe, striped, experts moving" check "$tiny" --device "$four" --placement striped --migrate 10
t "tiny-moe, local, experts moving fast" check "$tiny" --device "$four" --migrate 1 --seed 5
t "experts do move, over the links" moves_happened
t "tiny-moe, one DIMM" check "$tiny" --device soft:dimms=1,size=64M
t "tiny-moe, 7 DIMMs, local" check "$tiny" --device soft:dimms=7,size=16M
t "tiny-moe, 32 DIMMs, striped" check "$tiny" --device soft:dimms=32,size=4M --placement striped
t "tiny-moe, scalar path" check "$tiny" --device "$four",isa=scalar --placement striped
t "the report adds up" report_adds_up

# ---- domains

# What each domain computed adds up, whoever it was.
mix_adds_up() {
	check_json --device "$four" --domains "$1" --policy "$2" && python3 - "$work/out" "$1" <<'EOF'
import json, sys
run, wanted = json.load(open(sys.argv[1])), set(sys.argv[2].split(','))
totals, domains = run['totals'], run['domains']
fed = totals['prompt_tokens'] + totals['decode_steps']
layers = run['model']['layers']
assert {d for d in domains if domains[d]['computes']} == wanted, domains
assert all(not domains[d]['commands'] for d in domains if d not in wanted), domains
assert run['experts']['layer_passes'] == layers * (len(run['prompts']) + totals['decode_steps'])
# A piece of an expert counts its tokens, so the sum may be more than the pairs, never less.
assert run['experts']['token_expert_pairs'] >= fed * 4 * layers, run['experts']
assert totals['compute']['commands'] == domains['ndp']['commands'], totals
for d in wanted:
    n = domains[d]
    assert not n['commands'] or (n['wall_ns'] > 0 and n['modelled_ns'] > 0), n
EOF
}
# Of the machine that a profile describes.
says_the_host() {
	check "$tiny" --device "$four" --domains cpu,ndp --host trimoe-paper &&
		says out "modelled: experts" "plans for trimoe-paper"
}
gpu=
if "$ndp_run" --model "$tiny" --domains gpu --prompt x --tokens 1 >/dev/null 2>"$work/no-gpu"; then
	gpu=1
fi
for policy in gpu-cpu trimoe trimoe-norefine split; do
	t "cpu, $policy" check "$tiny" --domains cpu --policy $policy
done
t "cpu, one thread" check "$tiny" --domains cpu --threads 1
t "cpu, weights in DIMMs" check "$tiny" --domains cpu --device "$four" --placement striped
for policy in gpu-ndp trimoe trimoe-norefine trimoe-nocpu-amx split; do
	t "cpu and ndp, $policy" mix_adds_up cpu,ndp $policy
done
t "cpu and ndp, experts moving" check "$tiny" --domains cpu,ndp --device "$four" --migrate 1 \
	--placement striped
t "cpu and ndp, deterministic" check "$tiny" --domains cpu,ndp --device "$four" --deterministic
t "cpu and ndp, for a described host" says_the_host
if [ -n "$gpu" ]; then
	gpu_is_used() {
		check_json --domains gpu --gpu-experts 3M && python3 - "$work/out" <<'EOF'
import json, sys
run = json.load(open(sys.argv[1]))
assert run['gpu']['used'] and run['gpu']['budget_bytes'] == 3 << 20, run['gpu']
assert 0 < run['gpu']['expert_bytes'] <= 3 << 20, run['gpu']
assert run['domains']['gpu']['commands'] > 0 and run['device'] is None
EOF
	}
	for mix in gpu,cpu gpu,ndp gpu,cpu,ndp; do
		for policy in trimoe split; do
			t "$mix, $policy" mix_adds_up $mix $policy
		done
	done
	t "gpu" check "$tiny" --domains gpu
	t "gpu, 32 of 128 experts fit" gpu_is_used
	t "gpu, cpu and ndp, experts moving" check "$tiny" --domains gpu,cpu,ndp --device "$four" \
		--migrate 1 --placement spread:2
else
	echo "# no GPU: $(cat "$work/no-gpu")"
fi

# ---- GGUF

gguf=$work/tiny.gguf
gguf_check() {
	ends 0 "$ndp_run" --model "$gguf" --check "$tiny/reference.json" "$@" && says out "check: passed"
}
t "tiny-moe as a GGUF file is made" tests/models/gguf.py "$tiny" "$gguf"
t "tiny-moe, GGUF, ndp" gguf_check --device "$four" --placement striped
t "tiny-moe, GGUF, cpu and ndp" gguf_check --device "$four" --domains cpu,ndp

# ---- shapes

t "a model with H=100, I=36 is made" tests/models/synthetic.py "$work/odd"
for placement in local striped spread:2; do
	t "H=100, I=36, $placement" check "$work/odd" --device "$four" --placement $placement
done
t "H=100, I=36, cpu and ndp" check "$work/odd" --device "$four" --domains cpu,ndp --policy split
[ -z "$gpu" ] || t "H=100, I=36, gpu and cpu" check "$work/odd" --domains gpu,cpu
t "H=100, I=36, 7 DIMMs, experts moving" check "$work/odd" --device soft:dimms=7,size=16M --migrate 1

done_testing
