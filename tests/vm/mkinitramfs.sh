#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Makes the initramfs of a test guest: busybox, /init, a script to run, modules and files.
#
#   mkinitramfs.sh -o OUT -s SCRIPT [-k KERNEL_DIR -m MODULE]... [-f SRC[:DST]]...
#                  [-e NAME=VALUE]...
#
#   -m  a module of the kernel, loaded by /init with what it depends on
#   -f  a file or folder; DST (default /payload/<name of SRC>, executables /bin/<name>) is where it goes
#   -e  a variable in the script's environment
#
# Shared libraries of every ELF executable are found by ldd and put where the host has
# them. The archive is not compressed: an emulated CPU would take longer to unpack it than to read it.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
die() { echo "mkinitramfs: $*" >&2; exit 1; }
PATH=$PATH:/usr/sbin:/sbin

out='' script='' kernel='' modules=() files=() env=()
while getopts o:s:k:m:f:e: opt; do
	case $opt in
	o) out=$OPTARG ;;
	s) script=$OPTARG ;;
	k) kernel=$OPTARG ;;
	m) modules+=("$OPTARG") ;;
	f) files+=("$OPTARG") ;;
	e) env+=("$OPTARG") ;;
	*) die "see the head of $0 for the options" ;;
	esac
done
if [ -z "$out" ] || [ -z "$script" ]; then die "-o OUT and -s SCRIPT are needed"; fi
busybox=$(command -v busybox) || die "no busybox: run make setup"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root" # users other than root have to pass, too
mkdir -p "$root"/{bin,etc,dev,lib/modules,payload,root}

# add SRC DST: one file, and the libraries it needs
add() {
	local lib

	[ -r "$1" ] || die "$1 is not there"
	install -D -m "$([ -x "$1" ] && echo 755 || echo 644)" "$1" "$root/$2"
	[ -x "$1" ] || return 0
	[ "$(head -c 4 "$1" | tr -d '\0')" = $'\x7fELF' ] || return 0
	while read -r lib; do
		# One that is found beside the program ($ORIGIN) stays beside it.
		if [ "$(dirname "$lib")" = "$(dirname "$(readlink -f "$1")")" ]; then
			install -D -m 755 "$lib" "$root/$(dirname "$2")/$(basename "$lib")"
		else
			[ -e "$root/$lib" ] || install -D -m 755 "$lib" "$root/$lib"
		fi
	done < <(ldd "$1" 2>/dev/null | grep -o '/[^ ]*')
}

add "$busybox" bin/busybox
add "$here/init" init
add "$here/guest-host.sh" bin/host
add "$script" etc/script
chmod 755 "$root/init" "$root/bin/host" "$root/etc/script"
ln -s busybox "$root/bin/sh"

: >"$root/etc/modules"
# add_module FILE: unpacked, once, in the order of loading
add_module() {
	local name

	name=$(basename "$1")
	name=${name%.xz}
	[ ! -e "$root/lib/modules/$name" ] || return 0
	[ -r "$1" ] || die "$1 is not there"
	case $1 in
	*.xz) xz -dc "$1" >"$root/lib/modules/$name" ;;
	*) cp "$1" "$root/lib/modules/$name" ;;
	esac
	echo "/lib/modules/$name" >>"$root/etc/modules"
}
for module in "${modules[@]}"; do
	[ -n "$kernel" ] || die "-m $module needs -k KERNEL_DIR"
	while read -r word path _; do
		[ "$word" != insmod ] || add_module "$path"
	done < <(modprobe -d "$kernel" -S "$(cat "$kernel/release")" --show-depends "$module" ||
		die "$kernel has no module $module")
done

for file in "${files[@]}"; do
	src=${file%%:*}
	dst=${file#"$src"}
	dst=${dst#:}
	if [ -d "$src" ]; then
		dst=${dst:-payload/$(basename "$src")}
		mkdir -p "$root/$dst"
		cp -rL "$src/." "$root/$dst"
	elif [ -x "$src" ]; then
		add "$src" "${dst:-bin/$(basename "$src")}"
	else
		add "$src" "${dst:-payload/$(basename "$src")}"
	fi
done

for var in "${env[@]}"; do
	printf 'export %s=%q\n' "${var%%=*}" "${var#*=}"
done >"$root/etc/vm.env"

mkdir -p "$(dirname "$out")"
(cd "$root" && find . -print0 | cpio --quiet -0 -o -H newc -R 0:0) >"$out.part"
mv "$out.part" "$out"
