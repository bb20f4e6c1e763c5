#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Installs the Debian packages that the build and the tests need and that are missing, from the
# machine's own configured mirror. Does nothing, quickly, when all are there. Never adds a source
# and never removes a package. Works as root, or through sudo.
#
#   setup.sh [LIST...]     lists of this folder; default: packages.txt packages-qemu.txt
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
die() { echo "setup: $*" >&2; exit 1; }

[ $# -gt 0 ] || set -- packages.txt packages-qemu.txt
mapfile -t wanted < <(cd "$here" && sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@" | sort -u)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	die "this is not a Debian system (no apt-get). Install by hand what provides: ${wanted[*]}"
fi

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sed -n 's/ installed$//p' | sort -u)
mapfile -t missing < <(comm -23 <(printf '%s\n' "${wanted[@]}") <(printf '%s\n' "$installed"))
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null ||
		die "packages are missing, and this is neither root nor is there sudo. As root, run:
  apt-get install ${missing[*]}"
	root=(sudo)
fi

echo "setup: installing ${missing[*]}"
run() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive "$@"; }
install() {
	run apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists of a fresh machine may be absent or out of date: refresh them, then install.
if ! { run apt-get update && install; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	die "apt-get failed (its last lines are above). Check the network and the apt sources."
fi
