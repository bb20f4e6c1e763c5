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
"$build/ndp-calibrate" --domains cpu,ndp --threads 1 --device soft:dimms=1,size=1G \
	--shapes 2048x1408,4096x1536 --quiet --output "$work/host.json"
grep '"description"' "$work/host.json" | sed 's/^ */# /'
"$build/ndp-bench" layer --predict "$work/host.json" "${models[@]}" --batches 3,7,21,50,110,300 \
	--threads 1 --device soft:dimms=1,size=2G --bars
