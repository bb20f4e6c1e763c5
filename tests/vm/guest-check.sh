#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What `make check-vm` runs in each guest, as TAP: ndp-run without a driver, without permission and
# interrupted; the model on every placement, still and while its experts move; the driver's own tests and
# libndp's on the kernel's device (the programs in /payload/kselftest). The driver is loaded anew for
# each of them, so that none inherits a broken DIMM, and must unload after it.
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

# For a guest that hangs; an emulated and instrumented CPU on a busy host is slow.
limit=${NDP_TIMEOUT:-600}
export CMOCKA_MESSAGE_OUTPUT=TAP

# model NAME ARGUMENT...: the text equals the reference
model() {
	name=$1
	shift
	t "ndp-run, $name" timeout "$limit" ndp-run --model /payload/tiny-moe \
		--check /payload/tiny-moe/reference.json "$@"
}

# program PATH: one that prints TAP itself
program() {
	echo "# $1"
	(timeout "$limit" "$1" 2>&1; echo $? >/tmp/status) </dev/null | tee /tmp/log
	read -r ended </tmp/status
	# A program that fails says so itself; one that dies cannot.
	if [ "$ended" -ne 0 ]; then
		grep -q '^ *not ok' /tmp/log || result "$1 ran to its end" "$ended" /tmp/log
		status=1
	fi
}

program guest-cases.sh

t "insmod moendp.ko" insmod /payload/moendp.ko
model "local" --device /dev/ndp0 --placement local
model "striped" --device /dev/ndp0 --placement striped
model "spread:2" --device /dev/ndp0 --placement spread:2
model "striped, experts moving" --device /dev/ndp0 --placement striped --migrate 10
t "ndp-run, H=100, I=36, spread:2" timeout "$limit" ndp-run --model /payload/odd-moe \
	--check /payload/odd-moe/reference.json --device /dev/ndp0 --placement spread:2
# Here the chip itself runs on the emulated CPU: one prompt of the reference.
t "ndp-run, soft back end, striped" timeout "$limit" ndp-run --model /payload/tiny-moe \
	--check /payload/tiny-moe/reference-short.json --device soft:dimms=4,size=256M \
	--placement striped
t "rmmod moendp" rmmod moendp

for test in /payload/kselftest/*; do
	insmod /payload/moendp.ko || result "insmod before $test" 1 /dev/null
	program "$test"
	t "the driver unloads after $(basename "$test")" rmmod moendp
done
exit $status
