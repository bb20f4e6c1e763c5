#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-replay as a program: traces and profiles it refuses and what it says then, its outputs, and
# that equal input gives equal output.
# shellcheck disable=SC2317 # t calls the functions
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

replay=$build/ndp-replay
export NDP_SHARE=share
traces=tests/traces
synthetic=(--synthetic "steps=3,layers=2" --model deepseek-v2)

# ---- options

usage() {
	local text=$1

	shift
	ends 2 "$replay" "$@" && one_line_on_stderr && says err "$text"
}

help_is_text() {
	ends 0 "$replay" --help && says out "--trace" "--policy" "modelled" && [ ! -s "$work/err" ]
}

t "--help" help_is_text
t "nothing at all" usage "exactly one of --trace and --synthetic"
t "a trace and made-up loads" usage "both are there" --trace x --synthetic seed=1 --model deepseek-v2
t "no model" usage "--model is wanted" --synthetic seed=1
t "an unknown option" usage "--frobnicate" --frobnicate
t "an option twice" usage "--batch is there twice" "${synthetic[@]}" --batch 1 --batch 2
t "an unknown policy" usage "not 'fastest'" "${synthetic[@]}" --policy fastest
t "an unknown placement" usage "not 'best'" "${synthetic[@]}" --placement best
t "unknown charges" usage "not 'none'" "${synthetic[@]}" --charges none
t "--batch 0" usage "--batch wants an integer from 1" "${synthetic[@]}" --batch 0
t "--steps 5x" usage "'5x'" "${synthetic[@]}" --steps 5x
t "--json and --csv" usage "exclude each other" "${synthetic[@]}" --csv --json
t "a stray word" usage "'stray'" "${synthetic[@]}" stray

# ---- files

broken() {
	local text=$1

	shift
	ends 3 "$replay" "$@" && one_line_on_stderr && says err "$text"
}

t "made-up loads: an unknown word" broken "'skew=1'" --model deepseek-v2 --synthetic skew=1
t "made-up loads: shares above 1" broken "at most 1" --model deepseek-v2 \
	--synthetic top5=0.8,next25=0.5
t "made-up loads: more than one selection of an expert a token" broken "at most one" \
	--model olmoe-1b-7b --synthetic top5=1,next25=0
t "made-up loads: not a number" broken "drift= wants a number" --model deepseek-v2 \
	--synthetic drift=x
t "a trace that is not there" broken "$work/none" --trace "$work/none" --model gpt-oss-20b
t "a model that is not there" broken "no-such-model.json" --synthetic seed=1 --model no-such-model
t "a host that is not there" broken "no-such-host.json" "${synthetic[@]}" --host no-such-host

# bad_trace NAME LINE TEXT < contents: refused, with file, line and text
bad_trace() {
	local line=$2 text=$3

	printf '%b' "$4" >"$work/bad.csv"
	t "bad trace: $1" refused "$work/bad.csv" "$line" "$text"
	gzip -c "$work/bad.csv" >"$work/bad.csv.gz"
	t "bad trace, gzip: $1" refused "$work/bad.csv.gz" "$line" "$text"
}

refused() {
	ends 3 "$replay" --trace "$1" --model gpt-oss-20b && one_line_on_stderr &&
		says err "$1:$2: " "$3"
}

head='step,layer,expert,count\n'
bad_trace "empty" 1 "wanted the header" ''
bad_trace "no header" 1 "wanted the header" '0,0,0,5\n'
bad_trace "another header" 1 "wanted the header" 'step,layer,expert\n0,0,0\n'
bad_trace "only the header" 2 "ends after its header" "$head"
bad_trace "a column too few" 3 "wanted 4 numbers" "${head}0,0,0,5\n0,0,1\n"
bad_trace "a column too many" 2 "wanted 4 numbers" "${head}0,0,0,5,9\n"
bad_trace "an empty line" 3 "wanted 4 numbers" "${head}0,0,0,5\n\n0,0,1,5\n"
bad_trace "a negative count" 2 "found \"0,0,0,-5\"" "${head}0,0,0,-5\n"
bad_trace "a fraction" 2 "found \"0,0,0,5.5\"" "${head}0,0,0,5.5\n"
bad_trace "a word" 2 "found \"0,0,0,many\"" "${head}0,0,0,many\n"
bad_trace "a space" 2 "found \"0, 0,0,1\"" "${head}0, 0,0,1\n"
bad_trace "a number above 32 bits" 2 "wanted 4 numbers" "${head}0,0,0,4294967296\n"
bad_trace "a huge number" 2 "wanted 4 numbers" "${head}0,0,0,99999999999999999999999999\n"
bad_trace "a count above all use" 2 "a count of 4000000000" "${head}0,0,0,4000000000\n"
bad_trace "an expert out of range" 3 "expert 32, the model's are 0 to 31" \
	"${head}0,0,31,5\n0,0,32,5\n"
bad_trace "a layer out of range" 2 "layer 24, the model's are 0 to 23" "${head}0,24,0,5\n"
bad_trace "steps that fall" 3 "step 0 comes after step 1" "${head}1,0,0,5\n0,0,0,5\n"
bad_trace "an expert twice" 4 "line 2 already" "${head}0,0,1,5\n0,0,0,1\n0,0,1,5\n"
bad_trace "a long line" 2 "a line of more than" \
	"${head}$(printf '0%.0s' {1..300}),0,0,5\n"
bad_trace "bytes that are no text" 2 "found \"??\"" "${head}\001\002\n"
bad_trace "a byte of zero" 2 "a byte of zero" "${head}0,0,0,5\0000\n0,0,1,5\n"
bad_trace "a histogram's column missing" 2 "wanted 3 numbers" 'layer,expert,count\n0,0\n'
bad_trace "a histogram without counts" 2 "no count above 0" 'layer,expert,count\n0,0,0\n'

# At any place where it is cut the file is refused, with a line number.
cut_gzip() {
	local whole=$traces/trace_olmoe_1b7b_b1.csv.gz size at

	size=$(stat -c %s "$whole")
	for at in 1 5 12 100 $((size / 2)) $((size - 9)) $((size - 8)) $((size - 4)) $((size - 1)); do
		head -c "$at" "$whole" >"$work/cut.csv.gz"
		echo "cut at $at"
		ends 3 "$replay" --trace "$work/cut.csv.gz" --model olmoe-1b-7b || return 1
		one_line_on_stderr || return 1
		grep -q "cut.csv.gz:[0-9]*: " "$work/err" || return 1
	done
	says err "cut off"
}

damaged_gzip() {
	python3 - "$traces/trace_olmoe_1b7b_b1.csv.gz" "$work/damaged.csv.gz" <<-'EOF'
	import sys
	data = bytearray(open(sys.argv[1], "rb").read())
	data[len(data) // 2] ^= 0x55
	open(sys.argv[2], "wb").write(data)
	EOF
	ends 3 "$replay" --trace "$work/damaged.csv.gz" --model olmoe-1b-7b && one_line_on_stderr &&
		grep -q "damaged.csv.gz:[0-9]*: " "$work/err"
}

t "a gzip file that is cut off" cut_gzip
t "a gzip file with a byte changed" damaged_gzip
t "a step above --batch" broken "more than --batch 8" --batch 8 --model gpt-oss-20b \
	--trace "$traces/trace_gptoss20b_mixed_b16_first600.csv.gz"

# ---- what is accepted

plain_and_gzip_are_equal() {
	printf '%b' "${head}0,0,0,5\n0,0,3,2\n4,0,1,7\n" >"$work/good.csv"
	gzip -c "$work/good.csv" >"$work/good.csv.gz"
	"$replay" --trace "$work/good.csv" --model gpt-oss-20b >"$work/a" &&
		"$replay" --trace "$work/good.csv.gz" --model gpt-oss-20b >"$work/b" &&
		cmp "$work/a" "$work/b"
}

lines_of_a_step_may_have_any_order() {
	printf '%b' "${head}0,1,3,2\n0,0,1,4\n0,0,0,5\n" >"$work/a.csv"
	printf '%b' "${head}0,0,0,5\r\n0,0,1,4\r\n0,1,3,2" >"$work/b.csv"
	"$replay" --trace "$work/a.csv" --model gpt-oss-20b >"$work/a" &&
		"$replay" --trace "$work/b.csv" --model gpt-oss-20b >"$work/b" &&
		cmp "$work/a" "$work/b"
}

merging_keeps_selections() {
	ends 0 "$replay" --trace "$traces/trace_gptoss20b_mixed_b256.csv.gz" --model gpt-oss-20b \
		--batch 512 --policy gpu-cpu --json && strict_json && python3 - "$work/out" <<-'EOF'
	import json, sys
	loads = json.load(open(sys.argv[1]))["loads"]
	assert loads["steps"] == 117 and loads["layers_run"] == 117 * 24, loads
	assert loads["selections"] >= 117 * 24 * 512 * 4, loads
	assert abs(sum(loads["share_by_rank"]) - 1) < 1e-9
	EOF
}

a_histogram_is_drawn_from() {
	printf 'layer,expert,count\n0,0,3\n0,1,1\n' >"$work/hist.csv"
	ends 0 "$replay" --trace "$work/hist.csv" --model gpt-oss-20b --batch 1000 --steps 50 \
		--policy gpu-cpu --json && python3 - "$work/out" <<-'EOF'
	import json, sys
	share = json.load(open(sys.argv[1]))["loads"]["share_by_rank"]
	assert abs(share[0] - 0.75) < 0.01 and share[2] == 0, share[:3]
	EOF
}

every_profile_loads() {
	local file

	for file in share/models/*.json; do
		ends 0 "$replay" --synthetic top5=0.2,next25=0.4,steps=1,layers=1 --model "$file" \
			--policy gpu-cpu,trimoe --batch 8 || return 1
	done
	for file in share/hosts/*.json; do
		ends 0 "$replay" "${synthetic[@]}" --host "$file" || return 1
	done
}

t "plain and gzip are equal" plain_and_gzip_are_equal
t "the lines of a step may have any order" lines_of_a_step_may_have_any_order
t "recorded steps are merged to --batch" merging_keeps_selections
t "steps are drawn from a histogram" a_histogram_is_drawn_from
t "every host and every model of share/ loads" every_profile_loads

# ---- profiles: every field of every group is wanted, and no other

profile_fields() {
	python3 - "$replay" "$work" <<'EOF'
import copy, json, subprocess, sys

replay, work = sys.argv[1:]
CASES = (("hosts", "trimoe-paper", "--host", ["--model", "olmoe-1b-7b"]),
         ("models", "kimi-k3", "--model", []))
tried = 0

def paths(doc, at=()):
    for key, value in doc.items():
        yield at + (key,)
        if isinstance(value, dict):
            yield from paths(value, at + (key,))

def change(doc, path, act):
    doc = copy.deepcopy(doc)
    at = doc
    for key in path[:-1]:
        at = at[key]
    act(at, path[-1])
    return doc

def expect(doc, option, others, words, what):
    global tried
    tried += 1
    name = work + "/profile.json"
    with open(name, "w") as f:
        json.dump(doc, f)
    run = subprocess.run([replay, "--synthetic", "top5=0.2,next25=0.4,steps=1,layers=1", option, name,
                          *others, "--policy", "trimoe"], capture_output=True, text=True)
    if run.returncode != 3 or run.stdout or any(w not in run.stderr for w in words + [name]):
        sys.exit(f"{what}: status {run.returncode}, {run.stderr!r}, wanted {words}")

for kind, name, option, others in CASES:
    doc = json.load(open(f"share/{kind}/{name}.json"))
    for path in paths(doc):
        if path[0] == "sources" and len(path) > 1:
            continue
        leaf = path[-1]
        optional = leaf in ("note", "formula")
        label = ".".join(path)
        if not optional:
            words = [leaf if leaf in ("value", "source", "kind") else label]
            expect(change(doc, path, lambda o, k: o.pop(k)), option, others, words,
                   f"{kind} without {label}")
        for wrong in ([], True, "x" if leaf == "value" else 7):
            if leaf == "value" and path[0] == "expert_dtype" and wrong == "x":
                continue
            expect(change(doc, path, lambda o, k: o.__setitem__(k, wrong)), option, others,
                   [path[0]], f"{kind}: {label} = {wrong!r}")
        expect(change(doc, path[:-1] + ("frobnicate",), lambda o, k: o.__setitem__(k, 1)),
               option, others, ["frobnicate", "unknown"], f"{kind}: unknown beside {label}")
    for path in paths(doc):
        if path[-1] == "value" and path[0] != "expert_dtype":
            for wrong in (-1, 1e300):
                expect(change(doc, path, lambda o, k: o.__setitem__(k, wrong)), option, others,
                       [".".join(path[:-1]), "must be"], f"{kind}: {path} = {wrong}")
print(tried, "profiles refused")
EOF
}

twice() {
	sed 's/"experts":/"experts": {"value": 1, "source": "S-AIC", "kind": "stated"}, &/' \
		share/models/kimi-k3.json >"$work/twice.json"
	broken "$work/twice.json:" --synthetic seed=1 --model "$work/twice.json"
}

table() {
	python3 - "$work" <<-'EOF'
	import json, sys
	host = json.load(open("share/hosts/trimoe-paper.json"))
	host["cpu"]["table"] = {"value": [[1, 30], [128, 339.5]], "source": "ASSUMED", "kind": "assumed"}
	json.dump(host, open(sys.argv[1] + "/table.json", "w"))
	host["cpu"]["table"]["value"] = [[128, 30], [1, 339.5]]
	json.dump(host, open(sys.argv[1] + "/falling.json", "w"))
	EOF
	ends 0 "$replay" "${synthetic[@]}" --host "$work/table.json" &&
		ends 3 "$replay" "${synthetic[@]}" --host "$work/falling.json" &&
		says err "$work/falling.json" "cpu.table"
}

too_small() {
	sed '/dimm_bytes/s/128000000000/1000000000/' share/hosts/trimoe-paper.json >"$work/small.json"
	broken "9440 experts of 47185920 bytes need 27839692800 bytes of a DIMM's 1000000000" \
		--synthetic steps=1 --model deepseek-v2 --host "$work/small.json"
}

t "profiles: each field missing, unknown, of another type" profile_fields
t "profiles: a field twice" twice
t "profiles: a table in place of the roofline" table
t "experts that do not fit, with the arithmetic" too_small

# ---- output

json_is_strict() {
	ends 0 "$replay" "${synthetic[@]}" --json --layers "$@" && strict_json
}

json_of_errors() {
	ends 3 "$replay" --trace "$work/none" --model gpt-oss-20b --json && strict_json &&
		says out '"ENOENT"' && ends 2 "$replay" --json --frobnicate && strict_json
}

csv_is_a_table() {
	ends 0 "$replay" "${synthetic[@]}" --csv --layers && python3 - "$work/out" <<-'EOF'
	import csv, sys
	rows = list(csv.reader(open(sys.argv[1])))
	assert len({len(row) for row in rows}) == 1 and len(rows) == 1 + 7 * 3, rows
	EOF
}

every_time_is_modelled() {
	ends 0 "$replay" "${synthetic[@]}" && says out "Every time here is modelled" &&
		ends 0 "$replay" "${synthetic[@]}" --json && says out '"time": "modelled"' &&
		! grep '_ns"' "$work/out" | grep -v '"modelled_'
}

repeats() {
	"$replay" "${synthetic[@]}" --json --layers "$@" >"$work/a" &&
		"$replay" "${synthetic[@]}" --json --layers "$@" >"$work/b" &&
		cmp "$work/a" "$work/b"
}

seeds_differ() {
	"$replay" --synthetic seed=1,steps=2 --model deepseek-v2 >"$work/a"
	"$replay" --synthetic seed=2,steps=2 --model deepseek-v2 >"$work/b"
	! cmp -s "$work/a" "$work/b"
}

skew_is_as_asked() {
	ends 0 "$replay" --synthetic top5=0.4,next25=0.5,steps=20,layers=4 --model deepseek-v2 \
		--policy gpu-cpu --json && python3 - "$work/out" <<-'EOF'
	import json, sys
	share = json.load(open(sys.argv[1]))["loads"]["share_by_rank"]
	assert abs(sum(share[:8]) - 0.4) < 0.02 and abs(sum(share[8:48]) - 0.5) < 0.02, share
	EOF
}

engine_moves_experts() {
	ends 0 "$replay" --trace "$traces/trace_gptoss20b_mixed_b256.csv.gz" --model gpt-oss-20b \
		--steps 40 --policy trimoe,gpu-ndp --json && strict_json && python3 - "$work/out" <<-'EOF'
	import json, sys
	for p in json.load(open(sys.argv[1]))["policies"]:
	    e = p["engine"]
	    assert e["decisions"] > 0 and e["ended"] > 0, e
	    assert 0 < e["prefetch"]["started"] == e["prefetch"]["bytes"] / 13219200, e
	    assert 0 < e["played"] <= e["layers_beside_copies"] and 0 <= e["hidden_share"] <= 1, e
	    assert e["modelled_busiest_port_ns"] <= e["modelled_copies_ns"] * (1 + 1e-9), e
	EOF
}

# From one DIMM each: with each kind of action, or two, layers end up shorter than with
# none; every kind starts; most is hidden; and without drift the engine all but comes to rest.
every_kind_of_move_pays() {
	python3 - "$replay" <<-'EOF'
	import json, subprocess, sys
	def run(moves, steps):
	    out = subprocess.run([sys.argv[1], "--synthetic", f"steps={steps},layers=4", "--model",
	                          "deepseek-v2", "--policy", "trimoe", "--placement", "engine-local",
	                          "--moves", moves, "--gpu-slots", "32", "--json"],
	                         check=True, capture_output=True).stdout
	    return json.loads(out)["policies"][0]["engine"]
	late = {}
	for moves in "none", "prefetch", "relayout", "rebalance", "prefetch,rebalance", "all":
	    e = run(moves, 160)
	    late[moves] = e["modelled_late_mean_ns"]
	    for kind in "prefetch", "relayout", "rebalance":
	        assert (e[kind]["started"] > 0) == (moves == "all" or kind in moves), (moves, e)
	    assert moves == "none" or e["hidden_share"] > 0.75, (moves, e)
	print({k: round(v / 1e3) for k, v in late.items()})
	assert late["prefetch"] < 0.95 * late["none"], late
	assert late["relayout"] < 0.6 * late["none"], late
	assert late["rebalance"] < 0.99 * late["none"], late
	assert late["prefetch,rebalance"] < 0.98 * late["prefetch"], late
	assert late["all"] < 0.5 * late["none"] and late["all"] < 0.98 * late["relayout"], late
	moved = [sum(e[k]["started"] for k in ("prefetch", "relayout", "rebalance"))
	         for e in (run("all", 300), run("all", 500))]
	assert moved[1] - moved[0] <= 0.1 * moved[0], moved
	EOF
}

moves_need_an_engine() {
	usage "--moves is about the placement engine" "${synthetic[@]}" --placement spread \
		--moves none && usage "not 'jump'" "${synthetic[@]}" --moves prefetch,jump
}

# C7: what does not fit is refused with the arithmetic, and no slots are legal.
gpu_slots() {
	broken "at most 678 fit" "${synthetic[@]}" --gpu-slots 679 &&
		ends 0 "$replay" "${synthetic[@]}" --gpu-slots 678 && says out "GPU memory 678 experts" &&
		ends 0 "$replay" "${synthetic[@]}" --gpu-slots 678 --json &&
		says out '"gpu_slots": 678' '"gpu_unused": false'
}

without_gpu_slots_the_gpu_is_unused() {
	local file=$work/no-gpu-memory.json

	sed '/expert_bytes/s/32000000000/0/' share/hosts/trimoe-paper.json >"$file"
	ends 0 "$replay" "${synthetic[@]}" --host "$file" --json && cp "$work/out" "$work/bytes" &&
		ends 0 "$replay" "${synthetic[@]}" --gpu-slots 0 && says out "GPU unused" &&
		ends 0 "$replay" "${synthetic[@]}" --gpu-slots 0 --json && strict_json &&
		says out '"gpu_unused": true' && cmp "$work/out" "$work/bytes" &&
		python3 - "$work/out" <<-'EOF'
	import json, sys
	doc = json.load(open(sys.argv[1]))
	possible = {p["policy"]: p["possible"] for p in doc["policies"]}
	assert not possible["gpu"] and possible["trimoe"] and possible["gpu-cpu"], possible
	for p in doc["policies"]:
	    assert not p["possible"] or (p["busy"]["gpu"] == 0 and p["commands"]["gpu"] == 0 and
	                                 p["engine"]["prefetch"]["started"] == 0), p
	EOF
}

impossible_is_said() {
	ends 0 "$replay" "${synthetic[@]}" --host epyc-9755 &&
		[ "$(grep -c "impossible on this host" "$work/out")" -eq 3 ] &&
		ends 0 "$replay" "${synthetic[@]}" --host epyc-9755 --json && strict_json
}

never_below_the_bounds() {
	ends 0 "$replay" "${synthetic[@]}" --placement oracle-local --reference=3 --json &&
		strict_json && python3 - "$work/out" <<-'EOF'
	import json, sys
	doc = json.load(open(sys.argv[1]))
	assert doc["reference"]["layers"] == 3
	for p in doc["policies"]:
	    assert p["over_bound"] >= -1e-6 and p["reference"]["over_fluid"] >= -1e-6, p
	    assert p["policy"] == "split" or p["reference"]["over_whole_bound"] >= -1e-6, p
	EOF
}

plots_are_svg() {
	local f

	ends 0 "$replay" "${synthetic[@]}" --placement oracle-local --plot "$work/pl'ots" ||
		return 1
	for f in makespan utilisation load timeline; do
		python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' \
			"$work/pl'ots/$f.svg" || return 1
	done
	grep -q "DIMM 15" "$work/pl'ots/timeline.svg"
}

plot_needs_a_folder() {
	: >"$work/file"
	broken "$work/file" "${synthetic[@]}" --plot "$work/file"
}

t "JSON is strict" json_is_strict
t "JSON is strict where policies are impossible" impossible_is_said
t "JSON is strict with no baseline" json_is_strict --policy split
t "the placement engine moves experts, and what of it is hidden is said" engine_moves_experts
t "every kind of move starts, pays, and comes to rest" every_kind_of_move_pays
t "--moves needs an engine and known kinds" moves_need_an_engine
t "C7: GPU slots that do not fit are refused" gpu_slots
t "C7: without GPU slots the GPU is unused, and that is said" without_gpu_slots_the_gpu_is_unused
t "JSON of errors" json_of_errors
t "CSV is a table" csv_is_a_table
t "every time is called modelled" every_time_is_modelled
for placement in engine engine-local spread local oracle-spread oracle-local; do
	t "equal input, equal output: $placement" repeats --placement $placement
done
t "other seeds, other loads" seeds_differ
t "made-up loads have the skew asked for" skew_is_as_asked
t "no plan is below the bounds of GLPK" never_below_the_bounds
t "plots are SVG" plots_are_svg
t "a plot folder that is a file" plot_needs_a_folder

done_testing
