#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Build QEMU with the NDP DIMM in it.
#
# QEMU's source package of Debian trixie is unpacked, hooked and built once in
# the cache, under a key of everything that the slow part depends on. The
# device's files are copied into that tree when they changed, so that an edit
# costs one compile and one link. What a clone needs ends in its build/qemu/:
#
#   qemu-system-x86_64   the emulator
#   ndp-test             the device's qtest
#   libinsn.so           QEMU's plugin that counts guest instructions
#
# Nothing is installed, and no file of the clone outside build/ is written.
# Facts: QEMU's docs/devel/build-system.rst, docs/devel/kconfig.rst.

set -euo pipefail

# Any 10.0.x will do: the device uses no interface that changed within it.
SOURCE_VERSION='1:10.0.*'
SOURCE_SUITE=trixie
# QEMU 10.0 wants a newer meson than bookworm has.
MESON_SUITE=bookworm-backports
CONFIGURE=(
	--python=/usr/bin/python3
	--target-list=x86_64-softmmu
	--without-default-features --without-default-devices
	--with-devices-x86_64=ndp
	--enable-system --enable-tcg --enable-kvm --enable-plugins
	--enable-virtfs --enable-attr
	--disable-docs --disable-user --disable-tools --disable-debug-info
	--disable-werror --disable-download --disable-install-blobs
)
TARGETS=(qemu-system-x86_64 tests/qtest/ndp-test tests/tcg/plugins/libinsn.so)
FIRMWARE=(/usr/share/seabios /usr/share/qemu)

TOP=$(cd "$(dirname "$0")/.." && pwd)
DEVICE=$TOP/qemu-device
OUT=$TOP/build/qemu
CACHE=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}

usage() {
	cat >&2 <<'USAGE'
usage: build.sh [build]      build what changed, put it into build/qemu
       build.sh test [ARG]   build, then run the device's qtest (prints TAP)
       build.sh checkpatch   check the device's style with QEMU's checkpatch
       build.sh dir          print the folder of the build in the cache
USAGE
	exit 2
}

say() {
	echo "qemu: $*" >&2
}

die() {
	say "$*"
	exit 1
}

need_tools() {
	local missing=() tool

	for tool in gcc ninja pkg-config python3 flex bison patch dpkg-source \
		    dpkg-deb flock; do
		command -v "$tool" > /dev/null || missing+=("$tool")
	done
	[ ${#missing[@]} -eq 0 ] ||
		die "missing: ${missing[*]}; run 'make setup', or install the" \
		    "packages of tools/build/packages-qemu.txt"
}

# What the slow part of the build depends on.
key() {
	{
		echo "$SOURCE_VERSION $SOURCE_SUITE ${CONFIGURE[*]}"
		gcc -dumpfullversion
		cat "$DEVICE/hooks.patch" "$DEVICE/ndp.mak"
	} | sha256sum | cut -c1-16
}

# Copy $1 to $2 unless they are the same, so that ninja sees real changes only.
update_file() {
	cmp -s "$1" "$2" && return
	mkdir -p "${2%/*}"
	cp "$1" "$2.new"
	mv "$2.new" "$2"
}

# Bring the device's folder in the cached tree to the state of the clone's.
copy_device() {
	local dst=$TREE/src/hw/ndp file name
	local -A wanted=()

	for file in "$DEVICE"/*.[ch] "$DEVICE"/{meson.build,Kconfig,trace-events} \
		    "$DEVICE"/chip/*.[ch] "$DEVICE"/qtest/*.[ch] \
		    "$TOP/kmod/ndp_regs.h"; do
		[ -e "$file" ] || continue
		case $file in
		"$DEVICE"/*) name=${file#"$DEVICE"/} ;;
		*) name=${file##*/} ;;
		esac
		wanted[$name]=1
		update_file "$file" "$dst/$name"
	done
	while IFS= read -r name; do
		[ -n "${wanted[$name]:-}" ] || rm -f "$dst/$name"
	done < <(cd "$dst" && find . -type f -printf '%P\n')
	update_file "$DEVICE/qtest/ndp-test.c" "$TREE/src/tests/qtest/ndp-test.c"
}

meson_path() {
	local dir=$CACHE/qemu/meson deb

	if [ ! -e "$dir/usr/bin/meson" ]; then
		deb=$("$TOP/tools/build/private-apt.sh" deb meson \
			"$MESON_SUITE" "$CACHE/qemu")
		rm -rf "$dir.part"
		dpkg-deb -x "$deb" "$dir.part"
		rm -rf "$dir"
		mv "$dir.part" "$dir"
	fi
	echo "$dir/usr/lib/python3/dist-packages"
}

fetch_source() {
	[ ! -e "$TREE/src" ] || return 0
	say "unpacking QEMU's source package of $SOURCE_SUITE"
	rm -rf "$TREE/src.part" "$TREE/build"
	"$TOP/tools/build/private-apt.sh" source qemu "$SOURCE_VERSION" \
		"$SOURCE_SUITE" "$TREE/src.part" > "$TREE/version"
	patch -s -d "$TREE/src.part" -p1 < "$DEVICE/hooks.patch"
	cp "$DEVICE/ndp.mak" \
	   "$TREE/src.part/configs/devices/x86_64-softmmu/ndp.mak"
	mkdir -p "$TREE/src.part/hw/ndp"
	echo '#include "trace/trace-hw_ndp.h"' > "$TREE/src.part/hw/ndp/trace.h"
	mv "$TREE/src.part" "$TREE/src"
}

configure() {
	[ ! -e "$TREE/build/configured" ] || return 0
	say "configuring QEMU $(cat "$TREE/version")"
	rm -rf "$TREE/build"
	mkdir -p "$TREE/build"
	(cd "$TREE/build" && ../src/configure "${CONFIGURE[@]}") \
		< /dev/null > "$TREE/configure.log" 2>&1 || {
		tail -n 30 "$TREE/configure.log" >&2
		die "configure failed; all of it is in $TREE/configure.log"
	}
	touch "$TREE/build/configured"
}

# On a terminal ninja shows its own progress; elsewhere print every 50th step
# and whatever is not a step.
progress() {
	awk '/^\[[0-9]+\/[0-9]+\]/ {
		split(substr($1, 2), n, "[/\\]]")
		if (n[1] % 50 == 0 || n[1] == n[2]) {
			print "qemu: " $1; fflush()
		}
		next
	}
	!/^ninja: no work to do|^ninja: Entering/ { print; fflush() }'
}

compile() {
	local ninja=(ninja -C "$TREE/build" "-j${JOBS:-$(nproc)}"
		     "${TARGETS[@]}")

	if [ -t 1 ]; then
		"${ninja[@]}" || die "the build failed (see above)"
	else
		"${ninja[@]}" < /dev/null 2>&1 | progress ||
			die "the build failed (see above)"
	fi
}

deliver() {
	local target

	for target in "${TARGETS[@]}"; do
		update_file "$TREE/build/$target" "$OUT/${target##*/}"
	done
}

build() {
	need_tools
	mkdir -p "$TREE"
	exec 8> "$TREE/lock"
	flock -n 8 || {
		say "waiting for another build"
		flock 8
	}
	PYTHONPATH=$(meson_path)
	export PYTHONPATH
	fetch_source
	copy_device
	configure
	compile
	deliver
	exec 8>&-
}

run_qtest() {
	local dir

	for dir in "${FIRMWARE[@]}"; do
		[ -d "$dir" ] ||
			die "no $dir: install the packages seabios and" \
			    "qemu-system-data ('make setup')"
	done
	cd "$OUT"
	QTEST_QEMU_BINARY="$OUT/qemu-system-x86_64" \
		exec ./ndp-test --tap -k "$@"
}

# The qtest is checked under the name tests/: that is how checkpatch knows that
# GLib's assertions are in their place there.
checkpatch() {
	local script=$TREE/src/scripts/checkpatch.pl dir file bad=0

	[ -e "$script" ] ||
		die "no QEMU tree in the cache: run build.sh first"
	dir=$(mktemp -d)
	ln -s "$DEVICE" "$dir/ndp"
	ln -s "$DEVICE/qtest" "$dir/tests"
	for file in "$dir"/ndp/*.[ch] "$dir"/tests/*.[ch]; do
		(cd "$dir" && "$script" --no-tree --terse --no-summary \
			--file "${file#"$dir"/}") || bad=1
	done
	rm -r "$dir"
	return $bad
}

TREE=$CACHE/qemu/$(key)
case ${1:-build} in
build) build ;;
test) shift; build >&2; run_qtest "$@" ;;
checkpatch) checkpatch ;;
dir) echo "$TREE" ;;
*) usage ;;
esac
