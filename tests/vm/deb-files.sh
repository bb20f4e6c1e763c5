#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Makes what run-vm.sh --system hands to a whole system: a tar archive, which is the guest's second
# disk, with the script, its environment and its files. The disk's own unit (deb-inside.sh) unpacks
# it to /srv/t and runs guest-deb-run.sh.
#
#   deb-files.sh -o OUT -s SCRIPT [-f SRC[:DST]]... [-e NAME=VALUE]...
#
#   -f  a file or folder; DST, default the name of SRC, is below /srv/t
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
die() { echo "deb-files: $*" >&2; exit 1; }

out='' script='' files=() env=()
while getopts o:s:f:e: opt; do
	case $opt in
	o) out=$OPTARG ;;
	s) script=$OPTARG ;;
	f) files+=("$OPTARG") ;;
	e) env+=("$OPTARG") ;;
	*) die "see the head of $0 for the options" ;;
	esac
done
if [ -z "$out" ] || [ -z "$script" ]; then die "-o OUT and -s SCRIPT are needed"; fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root" # users other than root have to pass, too
install -m 755 "$here/guest-deb-run.sh" "$root/run"
install -m 755 "$script" "$root/script"
for file in "${files[@]}"; do
	src=${file%%:*}
	dst=${file#"$src"}
	dst=$root/$(dirname "${dst#:}" | sed 's/^\.$//')/$(basename "${file##*[:/]}")
	[ -r "$src" ] || die "$src is not there"
	mkdir -p "$(dirname "$dst")"
	cp -rL "$src" "$dst"
done
chmod -R go+rX "$root"
for var in "${env[@]}"; do
	printf 'export %s=%q\n' "${var%%=*}" "${var#*=}"
done >"$root/vm.env"
tar -C "$root" --owner=0 --group=0 -cf "$out" .
