#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `run-vm.sh --shell`: a shell in the guest with the driver loaded; `exit` or Ctrl-D ends the guest.
[ ! -e /payload/moendp.ko ] || insmod /payload/moendp.ko
exec >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 sane
echo "This guest has the driver loaded; ndp-run is in the path, its model in /payload/tiny-moe."
echo "/bin/host asks the host to unplug DIMMs and more. Ctrl-D ends the guest."
# The first terminal that a session leader opens controls its session: job control and Ctrl-C work.
TERM=${NDP_TERM:-vt100} PS1='guest:\w# ' setsid sh -c 'exec sh -i </dev/ttyS1 >/dev/ttyS1 2>&1'
exit 0
