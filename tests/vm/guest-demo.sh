#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What `make demo` runs in the guest: loads the driver, and generates text with every expert of the
# model on the NDP DIMMs, first at rest, then while experts keep moving from DIMM to DIMM. --check
# compares every token with the reference.
#
# Then ndpd places the experts of two programs that run at once: one continues prose and then C, the
# other C and then prose, so that the load of the experts shifts half-way. guest-demo-report.sh says
# from ndpd's metrics what came of it.
set -e

run() {
	echo "+ $*"
	"$@"
}
model() {
	ndp-run --model /payload/tiny-moe --device /dev/ndp0 "$@"
}

uname -sr
run insmod /payload/moendp.ko
ls /dev/ndp*
run ndp-run --model /payload/tiny-moe --device /dev/ndp0 --placement striped \
	--check /payload/tiny-moe/reference.json
run ndp-run --model /payload/tiny-moe --device /dev/ndp0 --placement striped --migrate 10 \
	--check /payload/tiny-moe/reference.json

echo
echo "== two programs, one daemon"
metrics=127.0.0.1:9317
export NDP_SHARE=/payload/share NDP_DAEMON_SOCKET=/run/ndpd.sock
ifconfig lo up
ndpd --socket $NDP_DAEMON_SOCKET --metrics tcp:$metrics 2>/tmp/ndpd.log &
ndpd=$!
i=0
until [ -S $NDP_DAEMON_SOCKET ]; do
	i=$((i + 1))
	[ $i -lt 100 ] || { cat /tmp/ndpd.log; exit 1; }
	sleep 0.1
done

mkdir /tmp/m
for text in reference reference-c-first; do
	model --placement local --daemon --check /payload/tiny-moe/$text.json >/tmp/$text.log 2>&1 &
	pids="$pids $!"
done
i=1000
alive() {
	for pid in $pids; do
		! kill -0 "$pid" 2>/dev/null || return 0
	done
	return 1
}
while alive; do
	wget -q -O /tmp/m/$i http://$metrics/metrics || rm -f /tmp/m/$i
	i=$((i + 1))
	sleep 0.1
done
for pid in $pids; do
	wait "$pid" || { cat /tmp/reference*.log /tmp/ndpd.log; exit 1; }
done
wget -q -O /tmp/m/$i http://$metrics/metrics
guest-demo-report.sh /tmp/m/*
for text in reference reference-c-first; do
	echo "  $text.json: $(grep '^ndpd: ' /tmp/$text.log)"
	echo "  $text.json: $(grep '^check: ' /tmp/$text.log)"
done
kill $ndpd
wait $ndpd
run rmmod moendp
