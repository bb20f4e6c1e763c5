#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prints the folder of one of the kernels that guests run, and makes it first if it is missing:
#
#   guest-kernel.sh 6.1       Debian 12's kernel
#   guest-kernel.sh 6.12      the kernel of bookworm-backports
#   guest-kernel.sh source    what the tests take from the kernel's source (checkpatch, kselftest)
#
# The folder of a kernel holds `vmlinuz`, `release` (its version), `build` (the tree that modules
# are built against) and `lib/modules` (the few modules that a guest may want). Nothing is
# installed on this system: packages are downloaded and unpacked into the cache, under a key of
# their version. A kernel that is there is never replaced by itself; remove its folder for that.
set -euo pipefail

top=$(dirname "$(readlink -f "$0")")/../..
cache=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}/kernel
apt=$top/tools/build/private-apt.sh

die() { echo "guest-kernel: $*" >&2; exit 1; }

case ${1:-} in
6.1)	suite=bookworm ;;
6.12)	suite=bookworm-backports ;;
source)	suite=bookworm ;;
*)	die "usage: guest-kernel.sh 6.1|6.12|source" ;;
esac
name=$1
guest_modules=nvme
PATH=$PATH:/usr/sbin:/sbin

mkdir -p "$cache"
if [ -e "$cache/$name/complete" ]; then
	readlink -f "$cache/$name"
	exit 0
fi
exec 8>"$cache/lock"
flock 8
if [ -e "$cache/$name/complete" ]; then
	readlink -f "$cache/$name"
	exit 0
fi

work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir "$tree"

# fetch PACKAGE: its newest .deb, path on stdout
fetch() { "$apt" deb "$1" "$suite" "$work/debs" || die "no package $1 from $suite (see above)"; }
# depends DEB PATTERN: the first package it depends on that matches
depends() {
	dpkg-deb -f "$1" Depends | tr ',' '\n' | sed -e 's/^ *//' -e 's/ .*//' | grep -m 1 -xE -- "$2" ||
		die "$(basename "$1") depends on nothing like $2"
}
# finish VERSION: move the tree under its key and make it the current one
finish() {
	local key=$name-${1//[:~]/_}

	rm -f "$tree"/lib/modules/*/{build,source}
	touch "$tree/complete"
	rm -rf "${cache:?}/$key"
	mv "$tree" "$cache/$key"
	ln -sfn "$key" "$cache/$name"
	readlink -f "$cache/$name"
}

unpack_source() {
	local deb

	deb=$(fetch linux-source-6.1)
	dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/src/linux-source-6.1.tar.xz |
		tar -xJ -C "$tree" --strip-components=1 --wildcards \
			'*/scripts/checkpatch.pl' '*/scripts/spelling.txt' \
			'*/scripts/const_structs.checkpatch' '*/scripts/kernel-doc' \
			'*/tools/testing/selftests/kselftest.h' \
			'*/tools/testing/selftests/kselftest_harness.h'
	finish "$(dpkg-deb -f "$deb" Version)"
}

# keep_modules ROOT RELEASE: of an unpacked image, the modules that guests load and what they need
keep_modules() {
	local module path dir=$tree/lib/modules/$2

	mkdir -p "$dir"
	cp "$1/lib/modules/$2"/modules.{builtin,builtin.modinfo,order} "$dir"
	depmod -b "$1" "$2"
	for module in $guest_modules; do
		modprobe -d "$1" -S "$2" --show-depends "$module" | while read -r _ path _; do
			install -D -m 644 -t "$dir/$(dirname "${path#"$1/lib/modules/$2/"}")" "$path"
		done
	done
	depmod -b "$tree" "$2"
}

unpack_kernel() {
	local meta image headers common kbuild release flavour deb

	meta=$(fetch linux-image-amd64)
	image=$(fetch "$(depends "$meta" 'linux-image-[0-9].*')")
	meta=$(fetch linux-headers-amd64)
	headers=$(fetch "$(depends "$meta" 'linux-headers-[0-9].*')")
	common=$(fetch "$(depends "$headers" 'linux-headers-.*-common')")
	kbuild=$(fetch "$(depends "$headers" 'linux-kbuild-.*')")

	dpkg-deb -x "$image" "$work/image"
	release=$(basename "$work"/image/lib/modules/*)
	mv "$work/image/boot/vmlinuz-$release" "$tree/vmlinuz" || die "no kernel in $image"
	echo "$release" >"$tree/release"
	keep_modules "$work/image" "$release"

	# The headers point at their own parts by an absolute path: make that relative to the file.
	for deb in "$headers" "$common" "$kbuild"; do
		dpkg-deb -x "$deb" "$tree"
	done
	flavour=$tree/usr/src/linux-headers-$release
	[ -d "$flavour" ] || die "$headers holds no usr/src/linux-headers-$release"
	# shellcheck disable=SC2016 # make expands it
	sed -i 's|^include /usr/src/|include $(dir $(realpath $(lastword $(MAKEFILE_LIST))))../|' \
		"$flavour/Makefile"
	! grep -q '/usr/src/' "$flavour/Makefile" ||
		die "$flavour/Makefile names /usr/src in a way this script does not know"
	ln -s "usr/src/linux-headers-$release" "$tree/build"
	finish "$(dpkg-deb -f "$image" Version)"
}

echo "guest-kernel: preparing $name" >&2
if [ "$name" = source ]; then unpack_source; else unpack_kernel; fi
