#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# /bin/host of a test guest: asks the host to do something to this guest and prints the answer.
#
#   host unplug dimm1                   pull the DIMM the polite way (attention button)
#   host plug dimm1 [PROP=VALUE ...]    put it back, empty, with its first properties and these
#   host set dimm1 x-inject-drop 3      set a property of the device
#   host get dimm1 PROP                 print one (strings bare, all else as JSON)
#   host qmp COMMAND [JSON]             any QMP command, its result as JSON
#
# Ends with 0 when the host did it; otherwise the reason is on stderr. Requests of several
# processes wait for one another.
until mkdir /run/host.lock 2>/dev/null; do
	sleep 0.05
done
trap 'rmdir /run/host.lock' EXIT
trap 'exit 1' INT TERM
stty raw -echo </dev/ttyS2
exec 3<>/dev/ttyS2
echo "@@host: $*" >&3
IFS= read -r answer <&3
case $answer in
"ok"*)
	answer=${answer#ok}
	[ -z "$answer" ] || echo "${answer# }"
	;;
*)
	echo "host $*: ${answer#error }" >&2
	exit 1
	;;
esac
