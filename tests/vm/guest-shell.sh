#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `run-vm.sh --shell`: a shell in the guest with the driver loaded; `exit` or Ctrl-D ends the guest.
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty sane
[ ! -e /root/moendp.ko ] || insmod /root/moendp.ko
echo "moendp guest: ndp-run and the model are in /root and /bin; host --help asks the host. Ctrl-D ends it."
TERM=${NDP_TERM:-vt100} PS1='guest:\w# ' setsid cttyhack sh
exit 0
