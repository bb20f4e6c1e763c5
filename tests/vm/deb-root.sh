#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prints a folder with Debian 12 on a disk, and makes it first if it is missing: systemd, udev,
# DKMS, the kernels 6.1 (Debian 12's) and 6.12 (of bookworm-backports) with their headers, and the
# packages that are given, installed without a network by deb-inside.sh.
#
#   deb-root.sh DEB...
#
# The folder holds `disk` (ext4), `vmlinuz-K` and `initrd-K` for each kernel K, `tap` (what was seen
# while the packages were installed) and `log`. run-vm.sh --system boots it. The system without
# the packages is kept in the cache under a key of what it is made from, the disk under one of the
# packages as well. Works as root, or with user namespaces (package uidmap).
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
top=$here/../..
cache=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}/deb
die() { echo "deb-root: $*" >&2; exit 1; }

[ $# -ge 1 ] || die "usage: deb-root.sh DEB..."
PATH=$PATH:/usr/sbin:/sbin
for tool in mmdebstrap mke2fs unshare; do
	command -v $tool >/dev/null || die "no $tool: make check-deb installs what is missing"
done

# What the packages depend on (the first of alternatives), but for each other.
ours=$(for deb; do dpkg-deb -f "$deb" Package; done)
depends=$(for deb; do dpkg-deb -f "$deb" Depends; echo; done | tr ',' '\n' |
	sed -e 's/|.*//' -e 's/(.*//' -e 's/[[:space:]]//g' -e '/^$/d' | sort -u |
	grep -vxF "$ours")
include="$depends systemd-sysv udev kmod initramfs-tools pkg-config
linux-image-amd64 linux-headers-amd64"
# A system with a text console has no use for these.
excluded=(/usr/share/{doc,info,locale,man}/'*'
	/lib/modules/'*'/kernel/{drivers/{gpu,media,net,staging,infiniband,iio},sound,net}/'*')

# as_root COMMAND...: as root, if need be of a namespace in which it looks like that
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else unshare --map-root-user --map-auto "$@"; fi
}

# Names of hosts do not stay in it.
make_base() {
	local mode=unshare options=(--dpkgopt=force-unsafe-io) path

	[ "$(id -u)" -ne 0 ] || mode=root
	for path in "${excluded[@]}"; do
		options+=("--dpkgopt=path-exclude=$path")
	done
	mkdir -p "$work/conf/etc/initramfs-tools/conf.d" \
		"$work/conf/usr/share/initramfs-tools/modules.d"
	printf 'MODULES=list\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\n' \
		>"$work/conf/etc/initramfs-tools/conf.d/ndp"
	printf 'nvme\next4\n' >"$work/conf/usr/share/initramfs-tools/modules.d/ndp"
	"$top/tools/build/private-apt.sh" sources bookworm bookworm-updates bookworm-security \
		bookworm-backports >"$work/sources"
	# shellcheck disable=SC2016 # mmdebstrap's shell expands $1
	nice mmdebstrap --mode=$mode --variant=apt --include="$(echo "$include" | xargs | tr ' ' ,)" \
		"${options[@]}" --essential-hook="copy-in $work/conf/etc $work/conf/usr /" \
		--customize-hook='chroot "$1" apt-get install -q -y --no-install-recommends \
			-t bookworm-backports linux-image-amd64 linux-headers-amd64' \
		--customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/apt/sources.list"' \
		--customize-hook='echo ndp >"$1/etc/hostname"' \
		bookworm "$work/base.tar" "$work/sources" >"$work/log" 2>&1 || {
		tail -n 30 "$work/log" >&2
		cp "$work/log" "$cache/base.log"
		die "mmdebstrap failed; its output: $cache/base.log"
	}
	rm -rf "$cache"/base-*.tar
	mv "$work/base.tar" "$cache/base-$base_key.tar"
}

base_key=$({ echo "$include" "${excluded[*]}"; declare -f make_base; } | sha256sum | cut -c 1-12)
key=$(sha256sum "$here/deb-inside.sh" "$@" | sed 's/ .*//' | cat - <(echo "$base_key") |
	sha256sum | cut -c 1-12)
mkdir -p "$cache"
exec 8>"$cache/lock"
flock 8
if [ -e "$cache/disk-$key/complete" ]; then
	echo "$cache/disk-$key"
	exit 0
fi

work=$(mktemp -d "$cache/tmp.XXXXXX")
cleanup() { as_root rm -rf "$work"; }
trap cleanup EXIT
if [ ! -e "$cache/base-$base_key.tar" ]; then
	echo "deb-root: making a Debian 12 with two kernels (400 MB to fetch), once" >&2
	make_base
fi
echo "deb-root: installing the packages" >&2
mkdir "$work/debs" "$work/out"
cp "$@" "$work/debs"
if ! as_root unshare --mount --pid --fork --net --ipc --uts "$here/deb-inside.sh" \
		"$cache/base-$base_key.tar" "$work" >"$work/out/log" 2>&1; then
	tail -n 30 "$work/out/log" >&2
	cp "$work/out/log" "$cache/disk.log"
	die "the disk cannot be made; all output: $cache/disk.log"
fi
touch "$work/out/complete"
rm -rf "$cache"/disk-*
mv "$work/out" "$cache/disk-$key"
echo "$cache/disk-$key"
