#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndpctl as a program, with an ndpd and an application of its own: what it accepts and refuses, what
# it prints where, its status, its end by signals. Cases from public reports: no device, clean JSON
# (pmem/ndctl#246, intel/idxd-config#16, ROCm/amdsmi#114), Ctrl-C (tenstorrent/tt-umd#2336). The same
# on real nodes is tests/run/guest-cases.sh.
# shellcheck disable=SC2317,SC2154 # t calls the functions; tap.sh has build and work
set -u
# shellcheck source=tests/run/tap.sh
. tests/run/tap.sh

ndpctl=$build/ndpctl
socket=$work/socket
export NDP_SHARE=$PWD/share
unset NDP_DAEMON_SOCKET
ndpd_pid=''
app_pid=''

end_all() {
	[ -z "$app_pid" ] || kill -KILL "$app_pid" 2>/dev/null
	[ -z "$ndpd_pid" ] || kill -KILL "$ndpd_pid" 2>/dev/null
	wait
	rm -rf "$work"
}
trap end_all EXIT

# start_ndpd ARGUMENT...
start_ndpd() {
	"$build/ndpd" --socket "$socket" "$@" 2>>"$work/ndpd.log" &
	ndpd_pid=$!
	for _ in $(seq 250); do
		[ -S "$socket" ] && return
		sleep 0.02
	done
	cat "$work/ndpd.log"
	return 1
}

end_ndpd() {
	kill -TERM "$ndpd_pid"
	wait "$ndpd_pid"
	got=$?
	ndpd_pid=''
	return "$got"
}

# An application whose model is running for ndpd; $client is its number.
start_app() {
	"$build/bench/ndpd_app" "$socket" 500 >"$work/app.out" 2>&1 &
	app_pid=$!
	for _ in $(seq 250); do
		"$ndpctl" list --clients --socket "$socket" >"$work/out" 2>/dev/null
		client=$(python3 -c 'import json, sys
for c in json.load(sys.stdin):
    if c["state"] == "running" and c["name"] == "ndpd_app":
        print(c["client"])' <"$work/out")
		[ -n "$client" ] && return
		sleep 0.02
	done
	cat "$work/app.out" "$work/ndpd.log"
	return 1
}

# Its status says whether each of its results had the same bits.
end_app() {
	kill -TERM "$app_pid"
	wait "$app_pid"
	got=$?
	app_pid=''
	return "$got"
}

# json EXPRESSION: of the document d on stdout, which is strict JSON, it is true
json() {
	strict_json && python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
ok = eval("(" + sys.argv[2] + ")")
if not ok:
    print("not so:", sys.argv[2])
sys.exit(not ok)' "$work/out" "$1"
}

# ---- what is accepted

# usage TEXT ARGUMENT...
usage() {
	local text=$1

	shift
	ends 2 "$ndpctl" "$@" && one_line_on_stderr && says err "$text"
}

helps() {
	ends 0 "$ndpctl" --help && says out doctor migrate topology && [ ! -s "$work/err" ] || return 1
	for c in list info topology stat top migrate reset doctor; do
		ends 0 "$ndpctl" "$c" --help && says out "ndpctl $c" && [ ! -s "$work/err" ] || return 1
	done
}

t "--help, of every command" helps
t "nothing at all" usage "a command is wanted"
t "an unknown command" usage "'frobnicate' is no command" frobnicate
t "an unknown option" usage "no option '--frob'" list --frob
t "an option of another command" usage "no option '--wait'" list --wait
t "a stray word" usage "'stray'" list stray
t "both formats" usage "one of them" list --human --json
t "reset without a device" usage "ndpctl reset DEVICE" reset
t "stat without a command" usage "COMMAND" stat
t "migrate without a client" usage "--client N" migrate --expert 0:0 --to all
t "migrate to nowhere" usage "spread:0xMASK" migrate --client 1 --expert 0:0 --to spread:2
t "top --json without --once" usage "--once" top --json
t "top without a terminal" usage "--once" top
t "list of clients and of a device" usage "one of them" list --clients --device soft:

# ---- devices

soft_list() {
	ends 0 "$ndpctl" list --device soft:dimms=3,size=16M && [ ! -s "$work/err" ] &&
		json 'len(d) == 1 and [x["dimm"] for x in d[0]["dimms"]] == [0, 1, 2]' &&
		ends 0 "$ndpctl" list -u --device soft:dimms=3,size=16M && says out "15.0 MiB"
}
soft_info() {
	ends 0 "$ndpctl" info soft:dimms=2 && [ ! -s "$work/err" ] &&
		json 'd["dimm_mask"] == 3 and d["quota_bytes"] is None and
			d["dimms"][1]["state"] == "ready" and
			d["dimms"][1]["compute"]["modelled_busy_ns"] == 0' &&
		ends 0 "$ndpctl" info --device soft:dimms=2 --human && says out "BUSY (MODELLED)"
}
soft_topology() {
	ends 0 "$ndpctl" topology soft:dimms=3,link-mbps=5000 &&
		json 'd["complete"] and d["dimms"][0]["peers"] == [1, 2] and
			d["dimms"][0]["port"]["mbps"] == 5000' &&
		ends 0 "$ndpctl" topology -u soft:dimms=3,link-mbps=5000 && says out "5.0 GB/s" &&
		ends 0 "$ndpctl" topology soft:dimms=1 && json 'd["dimms"][0]["peers"] == []' &&
		ends 0 "$ndpctl" topology -u soft:dimms=32
}

# An error is a document, too, where JSON is wanted, and never half a table.
broken_json() {
	ends 3 "$ndpctl" "$@" && [ "$(wc -l <"$work/err")" -eq 1 ] &&
		json 'd["error"]["code"].startswith("E") and d["error"]["message"]'
}
broken_text() {
	ends 3 "$ndpctl" "$@" && one_line_on_stderr
}

t "list of an emulated device" soft_list
t "info of an emulated device" soft_info
t "topology of emulated devices" soft_topology
t "info: a device that is none" broken_json info /dev/null
t "info -u: a device that is none" broken_text info -u /dev/null
t "topology: a device that is not there" broken_json topology /dev/ndp-none
t "topology: a specification that is wrong" broken_json topology soft:dimms=99
t "list: a device that is not there" broken_json list --device /dev/ndp-none
t "reset: a device that is not there" broken_text reset /dev/ndp77
t "reset: an emulated device" broken_text reset soft:
t "stat: an emulated device" broken_text stat --device soft:dimms=1 -- true
t "stat: a device that is not there" broken_text stat --json --device /dev/ndp-none -- true

if [ ! -e /sys/class/ndp ]; then
	nothing() {
		ends 0 "$ndpctl" list && [ "$(cat "$work/out")" = "[]" ] &&
			[ "$(wc -l <"$work/err")" -eq 1 ] && says err "NDP DIMM" &&
			ends 0 "$ndpctl" list -u && one_line_on_stderr
	}
	t "no device: list is [], the reason on stderr" nothing
	t "no device: info" broken_json info
	t "no device: stat does not run the command" broken_text stat -- touch "$work/ran"
	t "it did not run" test ! -e "$work/ran"
fi

# ---- without ndpd

no_clients() {
	ends 0 "$ndpctl" list --clients --socket "$work/none" && [ "$(cat "$work/out")" = "[]" ] &&
		says err "no ndpd listens there"
}
top_alone() {
	ends 0 "$ndpctl" top --once -d 0.2 --device soft:dimms=2 --socket "$work/none" &&
		says out "DIMMs only" "no ndpd listens there" && [ ! -s "$work/err" ] &&
		ends 0 "$ndpctl" top --once --json -d 0.2 --device soft:dimms=2 --socket "$work/none" &&
		json 'd["ndpd"] is None and "no ndpd" in d["ndpd_error"] and len(d["dimms"]) == 2 and
			d["dimms"][0]["compute"]["commands_per_s"] == 0'
}

t "no ndpd: the list of clients is []" no_clients
t "no ndpd: top shows DIMMs and says so" top_alone
t "no ndpd: migrate" broken_json migrate --client 1 --expert 0:0 --to all --json \
	--socket "$work/none"
t "a socket's path that is too long" broken_json list --clients --socket \
	"$(head -c 200 /dev/zero | tr '\0' x)"

if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
	no_right() {
		chmod 711 "$work"
		ends 3 setpriv --reuid=65534 --regid=65534 --clear-groups "$ndpctl" list --clients \
			--socket "$socket" && says err "$socket" root 0660 "join" &&
			json '"permission denied" in d["error"]["message"]'
	}
fi

# ---- with ndpd and an application

t "ndpd starts" start_ndpd
t "an application attaches" start_app
[ -z "$(declare -F no_right)" ] || t "no right to talk to ndpd: path, owner, mode, what to do" no_right

clients() {
	ends 0 env NDP_DAEMON_SOCKET="$socket" "$ndpctl" list -c -u && says out "ndpd_app" || return
	ends 0 "$ndpctl" list --clients --socket "$socket" && [ ! -s "$work/err" ] &&
		json 'len(d) == 1 and d[0]["name"] == "ndpd_app" and d[0]["model"]["experts"] == 32' &&
		ends 0 "$ndpctl" list -c -u --socket "$socket" && says out "ndpd_app" "running"
}
top_all() {
	ends 0 "$ndpctl" top --once --json -d 0.5 --socket "$socket" && [ ! -s "$work/err" ] &&
		json '0.4 < d["interval_s"] < 5 and d["ndpd_error"] is None and len(d["dimms"]) == 4 and
			d["models"][0]["name"] == "ndpd_app" and
			100 < d["models"][0]["posts_per_s"] < 1000 and
			d["dimms"][0]["queue_depth"] is not None' &&
		ends 0 "$ndpctl" top --once -d 0.1 --socket "$socket" &&
		says out "HOT SET COVERS" "REBALANCES" "LINK BUSY*" "modelled"
}
# masks LAYER EXPERT: where it lies is read back from what ndpd says it moved
moves() {
	ends 0 "$ndpctl" migrate --client "$client" --expert 1:5,1:6 2:7 --to dimm:3 --json \
		--socket "$socket" &&
		json 'd["moved"] == 3 and d["to"] == [3] and d["bytes"] > 0 and d["modelled_ns"] > 0 and
			d["wall_ns"] > 0 and 0 <= d["hidden_share_modelled"] <= 1' &&
		ends 0 "$ndpctl" migrate --client "$client" --expert 1:5 --to spread:0x5 \
			--socket "$socket" && says out "1 of 1" "0,2" "LINK (MODELLED)" &&
		ends 0 "$ndpctl" migrate --client "$client" --expert 1:5 --to all --json \
			--socket "$socket" && json 'd["to"] == [0, 1, 2, 3]'
}
# not_moved TEXT ARGUMENT...
not_moved() {
	local text=$1

	shift
	broken_text migrate --socket "$socket" "$@" && says err "$text"
}

t "list --clients" clients
t "top --once" top_all
t "migrate" moves
t "migrate: a client that is not there" not_moved "no client 999" --client 999 --expert 0:0 --to all
t "migrate: an expert that is not there" not_moved "4 layers of 32 experts" --client "$client" \
	--expert 0:32 --to all
t "migrate: a DIMM that is not there" not_moved "no DIMM 4; this client has 0-3" \
	--client "$client" --expert 0:0 --to dimm:4
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
	not_mine() {
		chmod 711 "$work"
		chmod 666 "$socket"
		ends 3 setpriv --reuid=65534 --regid=65534 --clear-groups "$ndpctl" migrate \
			--client "$client" --expert 0:0 --to all --socket "$socket" &&
			one_line_on_stderr && says err "only root and the user"
		got=$?
		chmod 660 "$socket"
		return "$got"
	}
	t "migrate: another user's client" not_mine
fi

# live SECONDS SIGNAL: top on a terminal of its own, ended by the signal; prints status and seconds
live() {
	python3 - "$ndpctl" "$socket" "$1" "$2" <<'EOF'
import os, pty, select, signal, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], [sys.argv[1], "top", "-d", "0.2", "--socket", sys.argv[2]])
out, end = b"", time.time() + float(sys.argv[3])

def drain(until):
    global out
    while time.time() < until:
        if select.select([fd], [], [], 0.05)[0]:
            try:
                out += os.read(fd, 65536)
            except OSError:
                return

drain(end)
begin = time.time()
if sys.argv[4] == "q":
    os.write(fd, b"q")
elif sys.argv[4] == "^C":
    os.write(fd, b"\x03")
else:
    os.kill(pid, signal.SIGTERM)
drain(begin + 3)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print("status", status, "shown", b"ndpd_app" in out and b"REBALANCES" in out,
      "left", b"\x1b[?1049l" in out)
EOF
}
live_ends() {
	local out

	out=$(live 1 "$1")
	echo "$out"
	[ "$out" = "status $2 shown True left True" ]
}

t "top, live: q ends it" live_ends q 0
t "top, live: ^C ends it with 130, the terminal as it was" live_ends ^C 130
t "top, live: SIGTERM ends it with 143" live_ends TERM 143

# interrupted SIGNAL STATUS COMMAND...: ends within a second
interrupted() {
	local sig=$1 wanted=$2 got=0 start

	shift 2
	# bash starts background commands with SIGINT ignored
	python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$@" >"$work/out" 2>"$work/err" &
	local pid=$!

	sleep 0.7
	start=$(date +%s%N)
	kill -"$sig" "$pid"
	wait "$pid" || got=$?
	start=$((($(date +%s%N) - start) / 1000000))
	cat "$work/out" "$work/err"
	echo "status $got after $start ms"
	[ "$got" -eq "$wanted" ] && [ "$start" -lt 1000 ]
}
interrupted_json() {
	interrupted INT 130 "$ndpctl" top --once --json -d 30 --socket "$socket" &&
		json 'd["error"]["code"] == "EINTR"'
}
# An ndpd that hangs keeps nobody.
interrupted_by_a_hang() {
	kill -STOP "$ndpd_pid"
	interrupted INT 130 "$ndpctl" list --clients --socket "$socket"
	got=$?
	kill -CONT "$ndpd_pid"
	return "$got"
}

t "SIGINT during top --once: 130, one document" interrupted_json
t "SIGTERM during top --once: 143" interrupted TERM 143 "$ndpctl" top --once -d 30 \
	--socket "$socket"
t "SIGINT while ndpd hangs" interrupted_by_a_hang

# ---- doctor

doctor_json() {
	"$ndpctl" doctor --json --socket "$socket" >"$work/out" 2>"$work/err"
	got=$?
	cat "$work/err"
	[ ! -s "$work/err" ] && json '{"pci", "kernel", "io_uring", "ndpd", "config", "opencl"} <=
		{c["check"] for c in d["checks"]} and
		all(c["verdict"] in ("ok", "note", "problem") for c in d["checks"]) and
		(d["problems"] > 0) == ('"$got"' == 1)'
}
doctor_text() {
	"$ndpctl" doctor --socket "$socket" >"$work/out" 2>"$work/err"
	[ $? -le 1 ] && ! grep -vE '^(ok|note|problem) ' "$work/out" && says out "$socket, up for"
}
bad_config() {
	printf '[daemon]\npoll_ms = 5\nfrobnicate = 1\n' >"$work/bad.conf"
	ends 1 "$ndpctl" doctor --socket "$socket" --config "$work/bad.conf" &&
		grep '^problem  config' "$work/out" | grep -q "$work/bad.conf: line 3.*frobnicate"
}

t "doctor --json" doctor_json
t "doctor: a line is a verdict" doctor_text
t "doctor: a configuration with an unknown key" bad_config
t "the application's results were equal throughout" end_app
t "ndpd ends" end_ndpd

dry_run() {
	start_ndpd --dry-run && start_app &&
		not_moved "moves nothing" --client "$client" --expert 0:0 --to all &&
		{ "$ndpctl" doctor --socket "$socket" >"$work/out"; says out "runs dry"; }
}
t "an ndpd that runs dry moves nothing" dry_run
t "that application's results, too" end_app
t "it ends" end_ndpd

# ---- completion

if [ -r share/completions/ndpctl ]; then
	# completes WORD...: the last one
	completes() {
		bash -c '. share/completions/ndpctl
			COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
			_ndpctl; printf "%s\n" "${COMPREPLY[@]}"' bash "$@" | tr '\n' ' '
	}
	completion() {
		[ "$(completes ndpctl to)" = "topology top " ] &&
			[ "$(completes ndpctl reset --w)" = "--wait " ] &&
			[ "$(completes ndpctl migrate --ex)" = "--expert " ]
	}
	# Every option that a command has is completed.
	completion_is_whole() {
		local c o

		for c in list info topology stat top migrate reset doctor; do
			for o in $("$ndpctl" "$c" --help | sed -n 1p | grep -oE -- '--[a-z]+'); do
				[[ " $(completes ndpctl "$c" --)" == *" $o "* ]] ||
					{ echo "$c $o"; return 1; }
			done
		done
	}
	t "bash completion" completion
	t "bash completion knows every option" completion_is_whole
fi
done_testing
