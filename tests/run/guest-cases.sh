#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ndp-run and ndpctl on real nodes, in a guest as root, as TAP: no driver, a driver without its
# function bound, a user who may not open the node, Ctrl-C while another process holds the device or a
# DIMM hangs, a DIMM that hangs, one that does not come back from a reset, one that is unplugged.
# Needs busybox, flock, host, ndp-run and ndpctl in the path, the model in /payload/tiny-moe, the driver as /payload/moendp.ko, not loaded; leaves it unloaded and all
# DIMMs plugged. Cases from public reports: pmem/ndctl#246, intel/idxd-config#16, ROCm/amdsmi#114,
# tenstorrent/tt-umd#2336 and #2316.
# shellcheck disable=SC2317 # t calls the functions
set -u

model=${NDP_MODEL:-/payload/tiny-moe}
driver=${NDP_DRIVER:-/payload/moendp.ko}
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
		says err "$1" || return 1
	ends 0 ndpctl list && [ "$(cat "$work/out")" = "[]" ] && [ "$(wc -l <"$work/err")" -eq 1 ] &&
		says err "$1" && ends 3 ndpctl info && says out '"error"' "$1" &&
		ends 1 ndpctl doctor && says out "problem  "
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

# Process 1 holds the lock for as long as it runs; SIGINT to process 2, the command, must not touch it.
interrupted_while_waiting() {
	(exec 9<"$node" && flock 9 && exec sleep 30) &
	holder=$!
	sleep 1
	"$@" >"$work/out" 2>"$work/err" &
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
	stuck=$(grep -lE '^State:[[:space:]]*D' /proc/[0-9]*/status 2>/dev/null | xargs -r grep -lE 'ndp-run|ndpctl')
	[ -z "$stuck" ] || { echo "in state D: $stuck"; ok=1; }
	kill "$holder"
	wait "$holder" 2>/dev/null
	return "$ok"
}

# start_running: ndp-run in the background, its model loaded and busy for seconds; $runner is its
# process. The prompt comes out when loading is done.
start_running() {
	ndp-run --model "$model" --device "$node" --placement striped --migrate 5 \
		--prompt "static int" --tokens 490 >"$work/out" 2>"$work/err" &
	runner=$!
	for _ in $(seq 600); do
		[ ! -s "$work/out" ] || break
		sleep 0.1
	done
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

# a_dimm_hangs QUEUES: at its next command of these queues, 1 compute, 2 link
a_dimm_hangs() {
	timeout_ms 3000 && start_running && host set dimm1 x-inject-queues "$1" &&
		host set dimm1 x-inject-hang 1 && fails_because "hung and was reset" &&
		runs_again_as_root
	ok=$?
	timeout_ms 30000
	host set dimm1 x-inject-queues 3
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

# ---- ndpctl

ndpctl_looks() {
	ends 0 ndpctl list && says out "\"${node}d3\"" '"ready"' && [ ! -s "$work/err" ] &&
		ends 0 ndpctl list -u && says out "${node}d3" &&
		ends 0 ndpctl info "$node" && says out '"dimm_mask": 15' &&
		ends 0 ndpctl topology "${node}" -u && says out "DIMM-Link complete" &&
		ends 0 ndpctl top --once -d 0.5 && says out "DIMMs only" "$node" &&
		ends 0 ndpctl doctor && says out "every DIMM reaches every other" "4 of 4 DIMMs"
}

# Who is who was made by no_permission().
ndpctl_no_permission() {
	ends 3 su -s /bin/sh guest -c "ndpctl info $node" &&
		says out '"EACCES"' && says err "$node" root 0660 "join the group ndp" &&
		ends 3 su -s /bin/sh guest -c "ndpctl reset $node" && [ ! -s "$work/out" ] &&
		says err "$node" root 0660 "become root" &&
		ends 0 su -s /bin/sh guest -c "ndpctl list" && says out "$node" &&
		ends 1 su -s /bin/sh guest -c "ndpctl doctor" &&
		says out "problem  node      cannot open $node"
}

ndpctl_stat() {
	ends 0 ndpctl stat --json --output "$work/stat" -- \
		ndp-run --model "$model" --device "$node" --prompt x --tokens 2 --quiet &&
		grep -q '"tokens": [1-9]' "$work/stat" && grep -q '"modelled_busy_ns": [1-9]' "$work/stat" &&
		! grep -q modelled "$work/out" &&
		ends 7 ndpctl stat -- sh -c 'exit 7' && says err "LINK BYTES" && [ ! -s "$work/out" ]
}

ndpctl_reset() {
	before=$(cat /sys/class/ndp/ndp0d1/resets)
	ends 0 ndpctl reset "${node}d1" && says out "${node}d1" ready && [ ! -s "$work/err" ] &&
		[ "$(cat /sys/class/ndp/ndp0d1/resets)" -eq $((before + 1)) ] &&
		ends 0 ndpctl reset "$node" --json && says out "${node}d0" "${node}d3" &&
		runs_again_as_root
}

ndpctl_in_use() {
	(exec 9<"${node}d1" && flock 9 && exec sleep 30) &
	holder=$!
	sleep 1
	before=$(cat /sys/class/ndp/ndp0d1/resets)
	ends 3 ndpctl reset "${node}d1" && [ ! -s "$work/out" ] && says err "in use" "--wait" &&
		[ "$(cat /sys/class/ndp/ndp0d1/resets)" -eq "$before" ]
	ok=$?
	kill "$holder"
	wait "$holder" 2>/dev/null
	return "$ok"
}

# It ends at the driver's deadline, and says nothing that sounds like success.
reset_fails() {
	timeout_ms 3000 && host set dimm1 x-inject-reset-stuck on || return 1
	start=$(cut -d ' ' -f 1 /proc/uptime | tr -d .)
	ends 3 ndpctl reset "${node}d1" || return 1
	took=$(($(cut -d ' ' -f 1 /proc/uptime | tr -d .) - start))
	echo "after ${took}0 ms"
	[ ! -s "$work/out" ] && [ "$took" -lt $((800 + soon)) ] &&
		says err "its state is failed" && ! grep -qiE 'success|succeed|ready|done' "$work/err" &&
		[ "$(cat /sys/class/ndp/ndp0d1/state)" = failed ] &&
		ends 0 ndpctl list && says out '"failed"' &&
		ends 1 ndpctl doctor && says out "DIMM 1 of $node is failed"
}

reset_interrupted() {
	timeout_ms 10000
	ndpctl reset "${node}d1" >"$work/out" 2>"$work/err" &
	runner=$!
	sleep 2
	interrupt_running && [ ! -s "$work/out" ] && says err "the driver goes on"
	ok=$?
	# The locks are free again when the driver has given up.
	flock "$node" true && [ "$(cat /sys/class/ndp/ndp0d1/state)" = failed ] || ok=1
	timeout_ms 30000
	return "$ok"
}

reset_again() {
	host set dimm1 x-inject-reset-stuck off && ends 0 ndpctl reset "${node}d1" &&
		says out ready && runs_again_as_root && says out "4 DIMMs"
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
t "ndpctl list, info, topology, top" ndpctl_looks
t "ndpctl: no permission: path, owner, mode, group" ndpctl_no_permission
t "ndpctl stat counts what a command did, with its status" ndpctl_stat
t "ndpctl reset" ndpctl_reset
t "ndpctl reset: a device in use" ndpctl_in_use
t "ndpctl reset --wait: SIGINT while waiting for the lock" interrupted_while_waiting \
	ndpctl reset --wait "${node}d1"
t "ndpctl reset: a DIMM that does not come back" reset_fails
t "ndpctl reset: SIGINT while it does not come back" reset_interrupted
t "ndpctl reset: it comes back" reset_again
t "SIGINT while waiting for the lock" interrupted_while_waiting \
	ndp-run --model "$model" --device "$node" --prompt x --lock
t "SIGINT while commands run and experts move" interrupted_while_running
t "the lock is free again" lock_is_released
t "the node of one DIMM" one_dimm
t "SIGINT while a DIMM hangs" interrupted_while_a_dimm_hangs
t "that DIMM works again" after_the_hang
t "a DIMM hangs: the message says so" a_dimm_hangs 1
t "a DIMM hangs in a migration: the message says so" a_dimm_hangs 2
t "a DIMM is unplugged: the message says so, others go on" a_dimm_is_unplugged
t "a DIMM is plugged again" a_dimm_is_plugged_again
t "the functions are unbound" unbind_all
t "driver unbound: --list is [], says so" empty_list_because "bound"
t "driver unbound: running says so" cannot_run_because "bound"
t "rmmod" rmmod moendp
rm -rf "$work" "$shared"
echo "1..$count"
exit $failed
