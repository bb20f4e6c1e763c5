#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar D.6, run by `make bench-moe`: packing against copying, and the memory of loading, on a
# synthetic layer of DeepSeek-V2-Lite's shape in BF16.
set -euo pipefail

build=${NDP_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$build/ndp-mkmodel" --shape deepseek-v2-lite --layers 1 --seed 6 "$work/model"
"$build/ndp-bench" load --model "$work/model" --bars
