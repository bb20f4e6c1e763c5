#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prints the folder of the debug guest's kernel, and builds it first if it is missing: Debian's
# linux-source-6.1 with tinyconfig and debug.config (KASAN, lockdep, UBSAN, kmemleak, fault
# injection), some 25 minutes of CPU time. The folder holds the same as those of guest-kernel.sh
# and is kept in the cache under a key of the configuration. Fails if one wanted option is missing
# from the final configuration.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
top=$here/../..
cache=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}/kernel
config=$here/debug.config

die() { echo "debug-kernel: $*" >&2; exit 1; }

key=debug-$(grep -v '^#' "$config" | sha256sum | cut -c 1-12)
if [ -e "$cache/$key/complete" ]; then
	echo "$cache/$key"
	exit 0
fi
mkdir -p "$cache"
exec 8>"$cache/lock-debug"
flock 8
if [ -e "$cache/$key/complete" ]; then
	echo "$cache/$key"
	exit 0
fi

# One folder at a time, always the same: what an interrupted run built is used again.
source=$cache/build-$key
log=$cache/build-$key.log
tree=$cache/$key.part

unpack() {
	local deb debs

	debs=$(mktemp -d "$cache/tmp.XXXXXX")
	deb=$("$top/tools/build/private-apt.sh" deb linux-source-6.1 bookworm "$debs") ||
		die "no package linux-source-6.1 (see above)"
	rm -rf "$source.part"
	mkdir "$source.part"
	dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/src/linux-source-6.1.tar.xz |
		tar -xJ -C "$source.part" --strip-components=1
	rm -rf "$debs"
	mv "$source.part" "$source"
}

# every option of debug.config must have survived
check_config() {
	local line bad=0

	while read -r line; do
		if ! grep -Fxq -- "$line" "$source/.config"; then
			echo "debug-kernel: $line is not in the final configuration" >&2
			bad=1
		fi
	done < <(grep '^CONFIG_' "$config")
	[ $bad -eq 0 ] || die "the kernel would not be what the tests expect; mend $config"
}

# What building a module needs, as in scripts/package/builddeb: make files, headers, host tools.
keep_build_tree() {
	local build=$tree/build

	rm -rf "$tree"
	mkdir -p "$build"
	cp "$source/arch/x86/boot/bzImage" "$tree/vmlinuz"
	make -s -C "$source" kernelrelease >"$tree/release"
	mkdir -p "$tree/lib/modules/$(cat "$tree/release")"
	(
		cd "$source"
		{
			find . arch/x86 -maxdepth 1 \( -name 'Makefile*' -o -name 'Kconfig*' \)
			find include arch/x86/include scripts -type f
			find arch/x86 -name '*.lds' -o -name 'Makefile*' -o -name 'Kbuild*'
			find . -maxdepth 1 -name .config -o -maxdepth 1 -name Module.symvers
			[ ! -e tools/objtool/objtool ] || echo tools/objtool/objtool
		} | sort -u | rsync -a --files-from=- . "$build/"
	)
}

[ -d "$source" ] || unpack
{
	make -s -C "$source" tinyconfig
	(cd "$source" && scripts/kconfig/merge_config.sh -m .config "$config")
	make -s -C "$source" olddefconfig
} >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "no configuration; all of the output: $log"; }
check_config

echo "debug-kernel: building, some 25 minutes of CPU time (output: $log)" >&2
nice -n 19 make -s -C "$source" -j"$(nproc)" KBUILD_BUILD_TIMESTAMP=@0 bzImage modules >>"$log" 2>&1 ||
	{ grep -nE 'error|Error' "$log" | tail -n 20 >&2; die "the build failed; its output: $log"; }
keep_build_tree
touch "$tree/complete"
mv "$tree" "$cache/$key"
rm -rf "$source" "$log"
echo "$cache/$key"
