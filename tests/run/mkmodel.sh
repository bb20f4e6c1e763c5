#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-mkmodel as a program: what it accepts and refuses, that equal options give equal bytes, that
# nothing half done stays behind. What is in the files is checked by test_model_families.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

mk=$build/ndp-mkmodel

# usage TEXT ARGUMENTS...: refused as wrong usage, and nothing is made
usage() {
	local text=$1

	shift
	ends 2 "$mk" "$@" "$work/no" && one_line_on_stderr && says err "$text" && nothing_made
}

nothing_made() {
	local left

	left=$(find "$work" -maxdepth 1 -name 'no*')
	[ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# makes NAME ARGUMENTS...: a model in $work/NAME, silently
makes() {
	local name=$1

	shift
	rm -rf "${work:?}/$name"
	ends 0 "$mk" "$@" "$work/$name" && [ ! -s "$work/out" ] && [ ! -s "$work/err" ]
}

files_are() {
	local dir=$1

	shift
	diff <(printf '%s\n' "$@" | sort) <(find "$work/$dir" -type f -printf '%f\n' | sort)
}

help_is_text() {
	ends 0 "$mk" --help && says out "--spelling" "deepseek_v3" && [ ! -s "$work/err" ]
}

no_value() {
	ends 2 "$mk" --family mixtral --seed && one_line_on_stderr && says err "--seed wants a value"
}

seeds() {
	makes a --family mixtral --seed 7 && makes b --family mixtral --seed 7 &&
		diff -r "$work/a" "$work/b" && makes c --family mixtral --seed 8 &&
		! cmp -s "$work/a/model.safetensors" "$work/c/model.safetensors"
}

shards() {
	makes a --family olmoe --shards 3 && files_are a config.json model.safetensors.index.json \
		model-0000{1,2,3}-of-00003.safetensors &&
		makes a --family olmoe --shards 3 --no-index &&
		files_are a config.json model-0000{1,2,3}-of-00003.safetensors &&
		makes a --family olmoe --index && files_are a config.json model.safetensors \
		model.safetensors.index.json && makes a --family olmoe --format gguf --shards 2 &&
		files_are a model-0000{1,2}-of-00002.gguf
}

# The files' own rules, by readers that are not ours.
headers_are_right() {
	makes a --family gpt_oss --dtype mxfp4 && python3 - "$work/a" <<-'EOF'
		import json, os, struct, sys
		path = os.path.join(sys.argv[1], "model.safetensors")
		with open(path, "rb") as f:
		    n = struct.unpack("<Q", f.read(8))[0]
		    header = json.loads(f.read(n))
		size = os.path.getsize(path) - 8 - n
		header.pop("__metadata__")
		at = 0
		for name, t in header.items():
		    begin, end = t["data_offsets"]
		    count = 1
		    for d in t["shape"]:
		        count *= d
		    assert begin == at and end - begin == count * {"BF16": 2, "U8": 1}[t["dtype"]], name
		    at = end
		assert at == size, (at, size)
		config = json.load(open(os.path.join(sys.argv[1], "config.json")))
		assert config["quantization_config"]["quant_method"] == "mxfp4"
	EOF
}

shape_of_a_real_model() {
	local share

	share=$(pwd)/share
	NDP_SHARE=$share makes a --shape deepseek-v2-lite --layers 1 --experts 6 --hidden 64 \
		--intermediate 32 && python3 - "$work/a/config.json" <<-'EOF'
		import json, sys
		c = json.load(open(sys.argv[1]))
		assert c["model_type"] == "deepseek_v2", c
		assert (c["n_routed_experts"], c["num_experts_per_tok"], c["n_shared_experts"]) == (6, 6, 2), c
		assert c["first_k_dense_replace"] == 0 and c["num_hidden_layers"] == 1, c
	EOF
}

folder_in_use() {
	mkdir -p "$work/full" && touch "$work/full/x" &&
		ends 3 "$mk" --family mixtral "$work/full" && one_line_on_stderr &&
		says err "$work/full" "empty" && [ -e "$work/full/x" ] &&
		[ -z "$(find "$work" -maxdepth 1 -name 'full.*')" ]
}

empty_folder() {
	mkdir -p "$work/empty" && ends 0 "$mk" --family mixtral "$work/empty/" &&
		[ -e "$work/empty/config.json" ]
}

full_disk() {
	ends 3 bash -c 'ulimit -f 100; trap "" XFSZ; exec "$@"' - "$mk" --family mixtral "$work/no" &&
		one_line_on_stderr && says err "cannot be written" && nothing_made
}

no_such_place() {
	ends 3 "$mk" --family mixtral "$work/none/model" && one_line_on_stderr && says err "$work/none"
}

t "--help" help_is_text
t "no family" usage "--family or --shape"
t "an unknown family" usage "mixtral, olmoe" --family llama
t "an unknown option" usage "--frobnicate" --family mixtral --frobnicate
t "an option without its value" no_value
t "two folders" usage "2 are there" --family mixtral x
t "no number" usage "--layers x: wanted a number" --family mixtral --layers x
t "an unknown shape" usage "no-such-model" --shape no-such-model
t "an unknown dtype" usage "bf16, f32" --family mixtral --dtype fp8
t "a dtype that the format lacks" usage "--format gguf" --family mixtral --dtype q8_0
t "rows that blocks do not divide" usage "blocks of 32" --family mixtral --format gguf \
	--dtype q8_0 --hidden 100
t "a spelling that the format lacks" usage "--spelling each" --family mixtral --spelling each
t "a spelling that the family lacks" usage "--spelling proj" --family gpt_oss --spelling proj
t "more chosen than there are" usage "--top-k 9" --family mixtral --top-k 9
t "groups that do not divide" usage "--groups 3" --family deepseek_v3 --groups 3
t "groups where there are none" usage "--groups: mixtral has none" --family mixtral --groups 2
t "shared experts where there are none" usage "no shared experts" --family mixtral --shared 1
t "no layer with experts" usage "none would have experts" --family deepseek_v2 --dense-layers 2
t "a flag that the family does not have" usage "always does the other" --family mixtral --no-norm
t "more shards than tensors" usage "999 shards" --family mixtral --shards 999
t "equal seeds give equal files" seeds
t "shards and the index" shards
t "headers follow the format" headers_are_right
t "the shape of a real model" shape_of_a_real_model
t "a folder that is not empty" folder_in_use
t "a folder that is empty" empty_folder
t "a full disk" full_disk
t "no such place" no_such_place
done_testing
