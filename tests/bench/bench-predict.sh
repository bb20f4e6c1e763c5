#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar D.5, run by `make bench-moe`: calibrates one CPU thread and one in-process DIMM while both
# compute, then predicts and measures layers of shapes, and so of tokens an expert, that were not
# calibrated.
set -euo pipefail

build=${NDP_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

shapes=("3072 1280" "1536 1024" "5120 768")
models=()
for shape in "${shapes[@]}"; do
	read -r hidden neurons <<<"$shape"
	"$build/ndp-mkmodel" --family mixtral --layers 1 --experts 24 --top-k 4 --hidden "$hidden" \
		--intermediate "$neurons" --seed 5 "$work/$hidden"
	models+=(--model "$work/$hidden")
done
# changed BEFORE AFTER: the two profiles are more than 8 % apart, on the mean over their tables as far
# as memory is what limits
changed() {
	python3 - "$@" <<'EOF'
import json, math, sys
a, b = (json.load(open(name)) for name in sys.argv[1:])
ratios = [math.log(q[1] / p[1]) for d in ('cpu', 'ndp')
          for p, q in zip(a[d]['table']['value'], b[d]['table']['value']) if p[0] <= 8]
mean = math.exp(sum(ratios) / len(ratios))
print(f"# calibrated again, this machine is {mean:.2f} times as fast as before")
sys.exit(not (mean < 0.92 or mean > 1.08))
EOF
}

calibrate() {
	"$build/ndp-calibrate" --domains cpu,ndp --threads 1 --device soft:dimms=1,size=1G \
		--shapes 2048x1408,4096x1536 --quiet "$@"
}

# A virtual machine's memory gets twice as fast from one minute to the next, and slower again. What
# was measured in between two states says nothing: then it is done again.
for try in 1 2 3 4; do
	calibrate --seconds 0.1 --output "$work/before.json"
	status=0
	"$build/ndp-bench" layer --predict "$work/before.json" "${models[@]}" --threads 1 \
		--batches 3,7,21,50,110,300 --device soft:dimms=1,size=2G --bars >"$work/report" ||
		status=$?
	calibrate --seconds 0.1 --output "$work/after.json"
	if ! changed "$work/before.json" "$work/after.json" || [ "$try" -eq 4 ]; then
		break
	fi
done
grep '"description"' "$work/before.json" | sed 's/^ */# /'
cat "$work/report"
exit "$status"
