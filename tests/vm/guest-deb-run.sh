#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What a whole system runs for run-vm.sh --system (see deb-files.sh), as tests/vm/init does in
# an initramfs: the script, its output to ttyS1, then `@@end STATUS`, and off. When the script
# failed, the end of the journal goes to the console, which the runner keeps.
cd /srv/t || exit 1
# shellcheck disable=SC1091 # made by deb-files.sh
. ./vm.env
stty -F /dev/ttyS1 raw -echo
{ ./script </dev/null 2>&1; echo $? >/run/ndp-test.status; } | cat >/dev/ttyS1
read -r status </run/ndp-test.status
[ "$status" -eq 0 ] || journalctl -b --no-pager -n 150 >/dev/ttyS0
echo "@@end $status" >/dev/ttyS1
sync
poweroff -f
