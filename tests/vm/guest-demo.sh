#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What `make demo` runs in the guest: loads the driver, and generates text with every expert of the
# model on the NDP DIMMs, first at rest, then while experts keep moving from DIMM to DIMM. --check
# compares every token with the reference.
set -e

run() {
	echo "+ $*"
	"$@"
}

uname -sr
run insmod /root/moendp.ko
ls /dev/ndp*
run ndp-run --model /root/tiny-moe --device /dev/ndp0 --placement striped \
	--check /root/tiny-moe/reference.json
run ndp-run --model /root/tiny-moe --device /dev/ndp0 --placement striped --migrate 10 \
	--check /root/tiny-moe/reference.json
run rmmod moendp
