#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What an operator does with the packages on a Debian 12 with systemd and four NDP DIMMs, as TAP:
# the module that DKMS built, nodes for a group, ndpd as a hardened service that is reloaded, killed
# and stopped, and a model that runs for a member of the group and for nobody else.
# shellcheck disable=SC2317 # functions are called by t
count=0
failed=0

# t NAME COMMAND...: a line of TAP, with what was said when it failed
t() {
	name=$1
	shift
	count=$((count + 1))
	if "$@" >/run/t.log 2>&1 </dev/null; then
		echo "ok $count - $name"
	else
		tail -n 40 /run/t.log | sed 's/^/# /'
		echo "not ok $count - $name"
		failed=1
	fi
}
skip() {
	count=$((count + 1))
	echo "ok $count - $1 # SKIP $2"
}

# within SECONDS COMMAND...: it becomes true
within() {
	left=$1
	shift
	until "$@"; do
		left=$((left - 1))
		[ "$left" -gt 0 ] || return 1
		sleep 1
	done
}

pid() { systemctl show -p MainPID --value ndpd; }
active() { [ "$(systemctl is-active ndpd)" = active ]; }
logged() { journalctl -b -u ndpd -o cat --no-pager | grep -q "$1"; }

module_is_dkms() {
	modinfo -F filename moendp | tee /dev/stderr | grep -q '/updates/dkms/moendp.ko'
}
nodes() {
	udevadm settle &&
	for node in ndp0 ndp0d0 ndp0d1 ndp0d2 ndp0d3; do
		stat -c '%n %U:%G %a' "/dev/$node"
		[ "$(stat -c '%U:%G %a' "/dev/$node")" = "root:ndp 660" ] || return 1
	done
}
# The service's own protection, as the kernel sees it.
confined() {
	p=$(pid)
	[ "$(stat -c %U:%G "/proc/$p")" = ndp:ndp ] || return 1
	cat "/proc/$p/status"
	grep -qx 'CapEff:	0000000000000000' "/proc/$p/status" &&
	grep -qx 'NoNewPrivs:	1' "/proc/$p/status" &&
	grep -qx 'Seccomp:	2' "/proc/$p/status" &&
	[ "$(readlink "/proc/$p/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}
sees_dimms() {
	find "/proc/$(pid)/fd" -lname '/dev/ndp0' | grep .
}
socket_is_groups() { [ "$(stat -c '%U:%G %a' /run/ndpd/ndpd.sock)" = "ndp:ndp 660" ]; }

model() { ndp-run --model /srv/t/tiny-moe --check /srv/t/tiny-moe/reference-short.json "$@"; }
model_as() {
	user=$1
	shift
	runuser -u "$user" -- timeout 300 ndp-run --model /srv/t/tiny-moe \
		--check /srv/t/tiny-moe/reference-short.json "$@"
}
refused() {
	model_as bob --device /dev/ndp0 && return 1
	grep -q '/dev/ndp0' /run/t.log && grep -q 'group ndp' /run/t.log
}
with_daemon() {
	model_as alice --device /dev/ndp0 --placement local --daemon
	status=$?
	journalctl -b -u ndpd -o cat --no-pager | tail -n 5
	[ "$status" -eq 0 ] && logged 'client 1 '
}

reload() {
	before=$(pid)
	printf '[weights]\nmixtral = 2\n' >>/etc/ndp/ndpd.conf
	systemctl reload ndpd && within 20 logged 'the configuration was read again' && active &&
		[ "$(pid)" = "$before" ]
}
# Wrong configurations are said, and change nothing.
bad_reload() {
	before=$(pid)
	cp /etc/ndp/ndpd.conf /run/good.conf
	printf '[limits]\nmoves_at_once = 99\n' >>/etc/ndp/ndpd.conf
	line=$(wc -l </etc/ndp/ndpd.conf)
	systemctl reload ndpd && return 1
	cp /run/good.conf /etc/ndp/ndpd.conf
	active && [ "$(pid)" = "$before" ] && within 20 logged "ndpd.conf: line $line: moves_at_once: '99'"
}
killed() {
	before=$(pid)
	systemctl kill -s KILL ndpd
	came_back() { active && [ "$(pid)" != "$before" ] && [ "$(pid)" != 0 ]; }
	within 60 came_back && socket_is_groups
}
stopped() {
	systemctl stop ndpd &&
	[ "$(systemctl show -p Result --value ndpd)" = success ] &&
	[ "$(systemctl show -p ExecMainStatus --value ndpd)" = 0 ] &&
	[ ! -e /run/ndpd/ndpd.sock ] && within 20 logged 'signal 15: ending'
}
loads_the_module() {
	systemctl start ndpd && active && grep -q '^moendp ' /proc/modules && sees_dimms &&
	systemctl stop ndpd
}
metrics() {
	printf '[metrics]\nlisten = unix:/run/ndpd/metrics.sock\n' >>/etc/ndp/ndpd.conf
	systemctl restart ndpd && active && [ -S /run/ndpd/metrics.sock ]
	status=$?
	cp /run/good.conf /etc/ndp/ndpd.conf
	return "$status"
}
doctor() {
	ndpctl doctor && ndpctl doctor --json
}

uname -sr
useradd -m -G ndp alice
useradd -m bob
t "the module is the one of DKMS" module_is_dkms
t "modprobe moendp" modprobe moendp
t "nodes are root:ndp 0660" nodes
t "systemctl start ndpd" systemctl start ndpd
t "ndpd is active" active
t "ndpd runs as ndp, without capabilities, filtered, without a network" confined
t "ndpd has the DIMMs open" sees_dimms
t "its socket is for the group ndp" socket_is_groups
t "ndp-run as a member of ndp: the text equals the reference" \
	model_as alice --device /dev/ndp0 --placement striped
t "ndp-run as somebody else: refused, with what to do" refused
if ndp-run --help | grep -q -- --daemon; then
	t "ndp-run with ndpd: the text equals the reference" with_daemon
else
	skip "ndp-run with ndpd" "ndp-run has no --daemon"
fi
if command -v ndpctl >/dev/null; then
	t "ndpctl doctor finds no problem" doctor
else
	skip "ndpctl doctor" "there is no ndpctl"
fi
t "systemctl reload ndpd" reload
t "a wrong configuration: reload fails with the line, ndpd goes on" bad_reload
t "ndpd killed: systemd starts it again" killed
t "metrics at a Unix socket" metrics
t "systemctl stop ndpd: clean, nothing left" stopped
t "rmmod moendp" rmmod moendp
t "systemctl start ndpd loads the module" loads_the_module
t "ndp-run in a root shell, after all" model --device /dev/ndp0 --placement spread:2
journalctl -b -u ndpd -o short-monotonic --no-pager | sed 's/^/# /'
echo "1..$count"
exit $failed
