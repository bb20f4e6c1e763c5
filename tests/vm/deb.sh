#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The Debian packages, as TAP: what lintian says, what happens when they are installed
# (deb-inside.sh), and a Debian 12 with systemd that boots from that disk and does what an operator
# does (guest-deb.sh), once for each kernel.
#
#   deb.sh [KERNEL...]      default: 6.1 6.12; run from the top of the tree by `make check-deb`
set -u

[ $# -gt 0 ] || set -- 6.1 6.12
build=${NDP_BUILD:-build}
packages=(moendp-dkms libndp0 libndp-dev ndp-tools)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
count=0

result() {
	count=$((count + 1))
	[ "$1" -eq 0 ] || { tail -n 40 "$3" | sed 's/^/# /'; printf 'not '; }
	echo "ok $count - $2"
}
# check NAME COMMAND...: passes if the command ends with 0
check() {
	local name=$1

	shift
	"$@" >"$tmp/log" 2>&1
	result $? "$name" "$tmp/log"
}
# retell PREFIX FILE: the results of another program, counted anew
retell() {
	local line

	while IFS= read -r line; do
		line=${line%$'\r'}
		case $line in
		"ok "*) count=$((count + 1)); echo "ok $count - $1: ${line#ok * - }" ;;
		"not ok "*) count=$((count + 1)); echo "not ok $count - $1: ${line#not ok * - }" ;;
		1..*) ;;
		*) echo "# ${line#\# }" ;;
		esac
	done <"$2"
}

build_packages() { tools/build/deb.sh | tee "$tmp/debs"; return "${PIPESTATUS[0]}"; }
all_are_there() {
	local p

	for p in "${packages[@]}"; do
		debs+=("$(grep "/${p}_" "$tmp/debs")") || { echo "no package $p"; return 1; }
	done
}
# Whoever builds packages here may be root.
lintian_finds_no_errors() { lintian --allow-root --fail-on error "$build"/deb/*.changes; }

# What the libraries and programs link with; what only tests and modules need is not in packages.
build_depends_are_all() {
	local package bad=0

	while read -r package; do
		sed -n '/^Build-Depends:/,/^$/p' debian/control | grep -qE "^ $package(,|\$)" ||
			{ echo "debian/control: $package is no Build-Depends"; bad=1; }
	done < <(grep -E '^[a-z0-9.-]+-dev$' tools/build/packages.txt |
		grep -vE '^(dpkg|lib(cmocka|elf|ssl|clang-rt-.*))-dev$')
	return $bad
}

boot() {
	tests/vm/run-vm.sh --name "deb-$1" --kernel "$1" --system "$system" --dimms 4 --timeout 900 \
		--script tests/vm/guest-deb.sh \
		--file tests/models/tiny-moe/config.json:tiny-moe/config.json \
		--file tests/models/tiny-moe/model.safetensors:tiny-moe/model.safetensors \
		--file "$build/reference-short.json:tiny-moe/reference-short.json" \
		--append systemd.default_timeout_start_sec=600 \
		--append systemd.default_device_timeout_sec=600
}

debs=()
check "the packages are built" build_packages
check "all packages are there" all_are_there
check "lintian finds no errors" lintian_finds_no_errors
check "debian/control has what the programs link with" build_depends_are_all

system=$(tests/vm/deb-root.sh "${debs[@]}" 2>"$tmp/log")
result $? "a Debian 12 with the packages" "$tmp/log"
[ -z "$system" ] || retell "installed" "$system/tap"
for kernel; do
	[ -n "$system" ] || continue
	boot "$kernel" >"$tmp/guest" 2>&1
	status=$?
	retell "$kernel" "$tmp/guest"
	# What the guest itself could not say: that it ended, and that its kernel is well.
	result $status "$kernel: the guest runs to its end" "$tmp/guest"
done
echo "1..$count"
