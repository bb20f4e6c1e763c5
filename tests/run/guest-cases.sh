#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run on real nodes, in a guest as root, as TAP: no driver, a driver without its function bound,
# a user who may not open the node, Ctrl-C while another process holds the device or a DIMM hangs, a
# DIMM that hangs, one that is unplugged. Needs busybox, flock, host and ndp-run in the path, the
# model in /root/tiny-moe, the driver as /root/moendp.ko, not loaded; leaves it unloaded and all
# DIMMs plugged. Cases from public reports: pmem/ndctl#246, intel/idxd-config#16, ROCm/amdsmi#114,
# tenstorrent/tt-umd#2336.
# shellcheck disable=SC2317 # t calls the functions
set -u

model=${NDP_MODEL:-/root/tiny-moe}
driver=${NDP_DRIVER:-/root/moendp.ko}
work=/tmp/guest-cases
# A program that may not open a node still must be able to read its model.
shared=/tmp/guest-cases-model
node=/dev/ndp0
# Hundredths of a second from SIGINT to the end: 0.3 s more than promised for an emulated CPU to fork
# and look at the clock, and much more for one whose kernel checks every access.
soon=130
[ -z "${NDP_DEBUG_KERNEL:-}" ] || soon=500
count=0
failed=0
rm -rf "$work" "$shared"
mkdir -p "$work" "$shared"
cp "$model/config.json" "$shared"
chmod 755 "$shared"
chmod 644 $shared/*

# t NAME COMMAND...
t() {
	name=$1
	shift
	count=$((count + 1))
	if "$@" >"$work/log" 2>&1 </dev/null; then
		echo "ok $count - $name"
	else
		tail -n 30 "$work/log" | sed 's/^/# /'
		echo "not ok $count - $name"
		failed=1
	fi
}

# ends STATUS COMMAND...: with exactly this status
ends() {
	wanted=$1
	shift
	"$@" >"$work/out" 2>"$work/err"
	got=$?
	cat "$work/out" "$work/err"
	[ "$got" -eq "$wanted" ] || { echo "status $got, wanted $wanted"; return 1; }
}

# says FILE TEXT...
says() {
	file=$1
	shift
	for text; do
		grep -qF -- "$text" "$work/$file" || { echo "no \"$text\" in $file"; return 1; }
	done
}

empty_list_because() {
	ends 0 ndp-run --list && [ "$(cat "$work/out")" = "[]" ] && [ "$(wc -l <"$work/err")" -eq 1 ] &&
		says err "$1"
}

cannot_run_because() {
	ends 3 ndp-run --model "$model" --prompt x && [ ! -s "$work/out" ] &&
		[ "$(wc -l <"$work/err")" -eq 1 ] && says err "$1"
}

unbind_all() {
	for f in /sys/bus/pci/drivers/moendp/0000:*; do
		[ -e "$f" ] || continue
		echo "${f##*/}" >/sys/bus/pci/drivers/moendp/unbind || return 1
	done
}

lists_the_node() {
	ends 0 ndp-run --list && says out "\"$node\"" '"whole_domain": true' && [ ! -s "$work/err" ]
}

# As the udev rule has it: 0660 root:ndp. The user below is in no group.
no_permission() {
	grep -q '^ndp:' /etc/group 2>/dev/null || echo "ndp:x:990:" >>/etc/group
	grep -q '^root:' /etc/passwd 2>/dev/null || echo "root:x:0:0:root:/root:/bin/sh" >>/etc/passwd
	grep -q '^guest:' /etc/passwd || echo "guest:x:1000:1000::/tmp:/bin/sh" >>/etc/passwd
	chown 0:990 "$node" && chmod 660 "$node" || return 1
	chmod 777 "$work"
	# su asks nobody's password as root; setuidgid where there is no su.
	cat >"$work/as-guest" <<-EOF
		#!/bin/sh
		exec ndp-run --model "$shared" --device "$node" --prompt x
	EOF
	chmod 755 "$work/as-guest"
	ends 3 su -s /bin/sh guest -c "$work/as-guest" &&
		[ ! -s "$work/out" ] && says err "$node" root 0660 ndp
}

runs_again_as_root() {
	ends 0 ndp-run --model "$model" --device "$node" --prompt x --tokens 2
}

# Process 1 holds the lock for as long as it runs; SIGINT to process 2 must not touch it.
interrupted_while_waiting() {
	(exec 9<"$node" && flock 9 && exec sleep 30) &
	holder=$!
	sleep 1
	ndp-run --model "$model" --device "$node" --prompt x --lock >"$work/out" 2>"$work/err" &
	waiter=$!
	sleep 2
	start=$(cut -d ' ' -f 1 /proc/uptime | tr -d .)
	kill -INT "$waiter"
	wait "$waiter"
	got=$?
	took=$(($(cut -d ' ' -f 1 /proc/uptime | tr -d .) - start))
	cat "$work/err"
	echo "status $got after ${took}0 ms"
	ok=1
	[ "$got" -eq 130 ] && [ "$took" -lt "$soon" ] && says err "waiting for the lock of $node" &&
		kill -0 "$holder" && ok=0
	stuck=$(grep -lE '^State:[[:space:]]*D' /proc/[0-9]*/status 2>/dev/null | xargs -r grep -l ndp-run)
	[ -z "$stuck" ] || { echo "in state D: $stuck"; ok=1; }
	kill "$holder"
	wait "$holder" 2>/dev/null
	return "$ok"
}

# start_running: ndp-run in the background, its model loaded and busy for long; $runner is its
# process. The prompt comes out when loading is done.
start_running() {
	ndp-run --model "$model" --device "$node" --placement striped --migrate 5 \
		--prompt "static int" --tokens 490 >"$work/out" 2>"$work/err" &
	runner=$!
	for _ in $(seq 60); do
		[ ! -s "$work/out" ] || break
		sleep 1
	done
	sleep 1
	kill -0 "$runner" || { cat "$work/err"; echo "ended too early"; return 1; }
}

# interrupt_running: SIGINT ends it in time, with 130
interrupt_running() {
	start=$(cut -d ' ' -f 1 /proc/uptime | tr -d .)
	kill -INT "$runner"
	wait "$runner"
	got=$?
	took=$(($(cut -d ' ' -f 1 /proc/uptime | tr -d .) - start))
	cat "$work/err"
	echo "status $got after ${took}0 ms"
	[ "$got" -eq 130 ] && [ "$took" -lt "$soon" ]
}

# fails_because TEXT: what start_running() started ends with status 3 and says TEXT
fails_because() {
	wait "$runner"
	got=$?
	cat "$work/err"
	echo "status $got"
	[ "$got" -eq 3 ] && says err "$1"
}

timeout_ms() {
	echo "$1" >/sys/module/moendp/parameters/timeout_ms
}

# In order, and the device works afterwards.
interrupted_while_running() {
	start_running && interrupt_running && runs_again_as_root
}

# The driver gives a DIMM 30 s; nobody waits for that long at a keyboard.
interrupted_while_a_dimm_hangs() {
	start_running && host set dimm1 x-inject-hang 1 && sleep 2 && kill -0 "$runner" &&
		interrupt_running
}

# What comes to a DIMM that hangs ends with its reset; so wait for that.
after_the_hang() {
	timeout_ms 3000
	for _ in $(seq 60); do
		[ "$(cat /sys/class/ndp/ndp0d1/inflight)" -ne 0 ] || break
		sleep 1
	done
	runs_again_as_root
	ok=$?
	timeout_ms 30000
	return "$ok"
}

a_dimm_hangs() {
	timeout_ms 3000 && start_running && host set dimm1 x-inject-hang 1 &&
		fails_because "hung and was reset" && runs_again_as_root
	ok=$?
	timeout_ms 30000
	return "$ok"
}

a_dimm_is_unplugged() {
	start_running && host unplug dimm2 && fails_because "gone" && runs_again_as_root &&
		says out "3 DIMMs"
}

a_dimm_is_plugged_again() {
	host plug dimm2 && sleep 2 && runs_again_as_root && says out "4 DIMMs"
}

one_dimm() {
	ends 0 ndp-run --model "$model" --device "${node}d1" --prompt x --tokens 2 &&
		says out "${node}d1, 1 DIMM;"
}

lock_is_released() {
	ends 0 ndp-run --model "$model" --device "$node" --prompt x --tokens 2 --lock --quiet
}

t "no driver: --list is [], says that the module is not loaded" empty_list_because "module"
t "no driver: running says so" cannot_run_because "module"
t "insmod" insmod "$driver"
t "--list names the node" lists_the_node
t "no permission: path, owner, mode, group" no_permission
t "root may still" runs_again_as_root
t "SIGINT while waiting for the lock" interrupted_while_waiting
t "SIGINT while commands run and experts move" interrupted_while_running
t "the lock is free again" lock_is_released
t "the node of one DIMM" one_dimm
t "SIGINT while a DIMM hangs" interrupted_while_a_dimm_hangs
t "that DIMM works again" after_the_hang
t "a DIMM hangs: the message says so" a_dimm_hangs
t "a DIMM is unplugged: the message says so, others go on" a_dimm_is_unplugged
t "a DIMM is plugged again" a_dimm_is_plugged_again
t "the functions are unbound" unbind_all
t "driver unbound: --list is [], says so" empty_list_because "bound"
t "driver unbound: running says so" cannot_run_because "bound"
t "rmmod" rmmod moendp
rm -rf "$work" "$shared"
echo "1..$count"
exit $failed
