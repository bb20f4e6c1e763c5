#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What `make check-vm` runs in each guest, as TAP: ndp-run without a driver, without permission and
# interrupted (guest-cases.sh); the model on every placement, still and while its experts move; and
# the driver's own tests (every program in /root/kselftest). The driver is loaded and unloaded
# around each: it must leave nothing behind.
count=0
status=0

# result NAME STATUS LOG: one line of TAP, with the log when it failed
result() {
	count=$((count + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $count - $1"
	else
		tail -n 60 "$3" | sed 's/^/# /'
		echo "not ok $count - $1 (status $2)"
		status=1
	fi
}

t() {
	name=$1
	shift
	"$@" >/tmp/log 2>&1 </dev/null
	result "$name" $? /tmp/log
}

# The time-outs are for a guest that hangs; an emulated and instrumented CPU is slow.
limit=${NDP_TIMEOUT:-240}

model() {
	name=$1
	shift
	t "ndp-run $name" timeout "$limit" ndp-run --model /root/tiny-moe \
		--check /root/tiny-moe/reference.json "$@"
}

# program COMMAND...: prints its own results; one that fails says so itself, one that dies cannot
program() {
	echo "# $1"
	(cd /root && timeout "$limit" "$@" 2>&1; echo $? >/tmp/status) </dev/null | tee /tmp/log
	read -r ended </tmp/status
	if [ "$ended" -ne 0 ]; then
		grep -q '^ *not ok' /tmp/log || result "$1 ran to its end" "$ended" /tmp/log
		status=1
	fi
}

program guest-cases.sh
t "insmod moendp.ko" insmod /root/moendp.ko
model "local" --device /dev/ndp0 --placement local
model "striped" --device /dev/ndp0 --placement striped
model "spread:2" --device /dev/ndp0 --placement spread:2
model "striped, experts moving" --device /dev/ndp0 --placement striped --migrate 10
model "soft back end, striped" --device soft:dimms=4,size=256M --placement striped
t "rmmod moendp" rmmod moendp

t "insmod moendp.ko again" insmod /root/moendp.ko
for test in /root/kselftest/*; do
	[ -x "$test" ] || continue
	program "$test"
done
t "rmmod moendp at the end" rmmod moendp
exit $status
