#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The part of deb-root.sh that is root: unpacks a system, installs packages in it without a network,
# has DKMS build the driver for every kernel, looks at what came of it (WORK/out/tap), and writes a
# disk. Runs in namespaces of its own: what it mounts goes with it.
#
#   deb-inside.sh BASE.tar WORK       (WORK/debs: the packages; WORK/out: the results)
set -euo pipefail

base=$1 work=$2
out=$work/out root=$work/root
PATH=$PATH:/usr/sbin:/sbin
count=0
exec 3>"$out/tap"

# check NAME COMMAND...: a line of TAP
check() {
	local name=$1

	shift
	count=$((count + 1))
	if "$@" >"$work/said" 2>&1; then
		echo "ok $count - $name" >&3
	else
		tail -n 30 "$work/said" | sed 's/^/# /' >&3
		echo "not ok $count - $name" >&3
	fi
	echo "== $name"
	cat "$work/said"
}
inside() {
	chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root PATH="$PATH" "$@"
}

mkdir "$root"
tar -C "$root" -xf "$base" --exclude='./dev/*'
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for node in null zero random urandom full tty; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mkdir "$root/debs"
cp "$work"/debs/* "$root/debs"

kernels() { ls "$root/lib/modules"; }
# version KERNEL: 6.1, 6.12
version() { echo "$1" | grep -oE '^[0-9]+\.[0-9]+'; }

install_packages() { inside sh -c 'dpkg -i /debs/*.deb'; }
build_module() {
	# The package's own script builds for the kernel that runs and the newest one.
	inside dkms autoinstall -k "$1" &&
	inside dkms status -k "$1" | grep -q "^moendp/.*installed" &&
	[ "$(inside modinfo -k "$1" -F vermagic moendp | cut -d ' ' -f 1)" = "$1" ]
}
group_and_user() {
	grep '^ndp:' "$root/etc/group" "$root/etc/passwd" &&
	[ "$(inside id -gn ndp)" = ndp ] && [ "$(inside id -Gn ndp)" = ndp ]
}
not_started() { ! find "$root/etc/systemd/system" -name 'ndpd.service' | grep .; }
unit_is_right() {
	inside systemd-analyze verify /lib/systemd/system/ndpd.service >"$work/verify" 2>&1
	cat "$work/verify"
	# The system has no manual.
	! grep -v "Command 'man " "$work/verify" | grep ndpd
}
# Exposure in tenths, as systemd counts it: 10.0 is a service without any protection.
unit_is_hardened() {
	inside systemd-analyze security --no-pager --offline=yes --threshold=20 \
		/lib/systemd/system/ndpd.service
}
program_of_libndp() {
	cat >"$root/tmp/p.c" <<-'C'
	#include <ndp/ndp.h>
	int main(void) { return ndp_discover(NULL, 0, NULL) != 0; }
	C
	# shellcheck disable=SC2016 # for the shell inside
	inside sh -e -c 'cd /tmp
		flags="-Wall -Werror $(pkg-config --cflags libndp)"
		gcc $flags -o shared p.c $(pkg-config --libs libndp)
		gcc $flags -o static p.c -l:libndp.a $(pkg-config --static --libs libndp | sed s/-lndp//)
		./shared
		./static
		ldd shared | grep libndp
		! ldd static | grep libndp'
}
programs_start() {
	# shellcheck disable=SC2016
	inside sh -e -c 'for p in $(dpkg -L ndp-tools | grep -E "^/usr/s?bin/"); do echo "$p"
		[ "$p" = /usr/bin/ndp-reference ] || "$p" --help >/dev/null; done
		ndpd --check-config'
}

check "the packages install without a network" install_packages
for kernel in $(kernels); do
	check "DKMS builds moendp for $(version "$kernel") ($kernel)" build_module "$kernel"
done
check "there are two kernels" test "$(kernels | wc -l)" -eq 2
check "there are a group and a user ndp" group_and_user
check "ndpd is neither enabled nor started by its package" not_started
check "systemd finds nothing wrong with ndpd.service" unit_is_right
check "systemd finds ndpd.service hardened (exposure below 2.0 of 10)" unit_is_hardened
check "a program is built with libndp-dev by pkg-config, shared and static" program_of_libndp
check "every program starts, and the configuration is right" programs_start
rm -rf "$root/debs" "$root"/tmp/*

# The test's own unit: the second disk has what to run.
cat >"$root/etc/systemd/system/ndp-test.service" <<'UNIT'
[Unit]
Description=The test's script
After=multi-user.target

[Service]
Type=oneshot
Environment=HOME=/root
ExecStartPre=mkdir -p /srv/t
ExecStartPre=tar -C /srv/t -xf /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_ndpfiles
ExecStart=/srv/t/run
StandardOutput=journal

[Install]
WantedBy=multi-user.target
UNIT
inside systemctl -q enable ndp-test.service
inside systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
	e2scrub_all.timer fstrim.timer \
	serial-getty@ttyS0.service getty@tty1.service systemd-networkd-wait-online.service
: >"$root/etc/machine-id"

for kernel in $(kernels); do
	cp "$root/boot/vmlinuz-$kernel" "$out/vmlinuz-$(version "$kernel")"
	cp "$root/boot/initrd.img-$kernel" "$out/initrd-$(version "$kernel")"
done
echo "1..$count" >&3
umount -R "$root/dev" "$root/proc"
mke2fs -q -t ext4 -L ndp -O ^has_journal -E lazy_itable_init=0 -d "$root" "$out/disk" 4G
rm -rf "$root"
# Who asked for it owns it.
chmod 644 "$out"/*
