#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `make deb`: builds the Debian packages of the tree as it lies there, committed or not, in a copy,
# and puts them into build/deb. Needs no root. When nothing that packages are made of has changed
# since the last time, nothing is built. Prints the packages.
#
#   deb.sh            build, print what there is
#   deb.sh key        print the key of what packages are made of
set -euo pipefail

top=$(readlink -f "$(dirname "$(readlink -f "$0")")/../..")
out=${NDP_BUILD:-$top/build}/deb
parts=(Kbuild LICENSE LICENSES Makefile daemon debian docs kmod libndp qemu-device/chip share tools)
die() { echo "deb: $*" >&2; exit 1; }

# files TREE: what packages are made of; caches of Python and objects of modules are no sources
files() {
	cd "$1"
	find "${parts[@]}" -type f ! -path '*/__pycache__/*' ! -name '*.o' ! -name '.*.cmd' -print0 |
		sort -z
}
# key TREE: of names, modes and contents
key() {
	(
		cd "$1"
		files . | xargs -0 stat -c '%n %A'
		files . | xargs -0 sha256sum
	) | sha256sum | cut -c 1-16
}

[ "${1:-}" != key ] || { key "$top"; exit; }
[ $# -eq 0 ] || die "usage: deb.sh [key]"
for tool in dh dh_dkms dpkg-buildpackage rsync; do
	command -v $tool >/dev/null || die "no $tool: run make deb, which installs what is missing"
done
version=$(cd "$top" && dpkg-parsechangelog -S Version)
grep -qxF "VERSION   := ${version%-*}" "$top/Makefile" ||
	die "debian/changelog has version $version, another than the Makefile's VERSION"

mkdir -p "$out"
exec 8>"$out/lock"
flock 8
if [ "$(key "$top")" != "$(cat "$out/key" 2>/dev/null)" ]; then
	tree=$out/moendp-${version%-*}
	rm -rf "$out/key" "$tree" "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
	mkdir -p "$tree"
	files "$top" | rsync -a -0 --files-from=- "$top" "$tree/"
	copied=$(key "$tree")
	echo "deb: building $version (output: $out/build.log)" >&2
	(
		cd "$tree"
		unset MAKEFLAGS MAKELEVEL MFLAGS CFLAGS CPPFLAGS LDFLAGS BUILD NDP_BUILD
		DEB_BUILD_OPTIONS="parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}" nice \
			dpkg-buildpackage -b -uc -us
	) >"$out/build.log" 2>&1 || {
		tail -n 30 "$out/build.log" >&2
		die "the build failed; all of its output: $out/build.log"
	}
	rm -rf "$tree"
	echo "$copied" >"$out/key"
fi
printf '%s\n' "$out"/*.deb
