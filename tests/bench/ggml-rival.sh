#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prints the path of a program that computes experts by the distribution's ggml, and makes it first
# if it is missing: `ndp-bench cpu --ggml PATH` measures libndp against it (bar D.2).
#
# ggml is in trixie-backports. It is downloaded with the C and C++ libraries that it wants, unpacked
# (not installed) into the cache under a key of all versions and of ggml_rival.c, and ggml_rival
# runs with that C library. Ends with 1 and a sentence if that cannot be done.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
apt=$here/../../tools/build/private-apt.sh
cache=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}/ggml
cc=${CC:-gcc}
packages=(libggml0:trixie-backports libggml-dev:trixie-backports libc6:trixie libgcc-s1:trixie
	libstdc++6:trixie libgomp1:trixie)

die() { echo "ggml-rival: $*" >&2; exit 1; }

[ "$(dpkg --print-architecture)" = amd64 ] || die "only tried on amd64"
mkdir -p "$cache"
cache=$(readlink -f "$cache")
exec 8>"$cache/lock"
flock 8
key=$(cat "$here/ggml_rival.c" "$0" | sha256sum | cut -c 1-12)
if [ -e "$cache/$key/complete" ]; then
	echo "$cache/$key/ggml-rival"
	exit 0
fi
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT
for package in "${packages[@]}"; do
	deb=$("$apt" deb "${package%:*}" "${package#*:}" "$work/debs") ||
		die "${package%:*} of ${package#*:} cannot be had"
	dpkg -x "$deb" "$work/sysroot"
done
lib=usr/lib/x86_64-linux-gnu
backends=("$work/sysroot/$lib"/ggml/backends*)
[ -d "${backends[0]}" ] || die "libggml0 brings no back ends in $lib/ggml"
# What the libraries want of a newer C library is not there while linking.
"$cc" -std=gnu11 -O2 -Wall -Wextra -Werror -o "$work/ggml_rival" "$here/ggml_rival.c" \
	-isystem "$work/sysroot/usr/include" -L "$work/sysroot/$lib" -lggml -lggml-base \
	-Wl,--allow-shlib-undefined
cat >"$work/ggml-rival" <<RUN
#!/bin/sh
# ggml-rival HIDDEN NEURONS EXPERTS MAX_TOKENS THREADS; "version" prints ggml's
here=\$(dirname "\$(readlink -f "\$0")")
[ "\$1" != version ] || { cat "\$here/version"; exit; }
exec "\$here/sysroot/$lib/ld-linux-x86-64.so.2" --library-path "\$here/sysroot/$lib" \\
	"\$here/ggml_rival" "\$@" "\$here/sysroot/$lib/ggml/${backends[0]##*/}"
RUN
chmod +x "$work/ggml-rival"
dpkg-deb -f "$work"/debs/libggml0_*.deb Version >"$work/version"
rm -rf "$work/debs" "$work/sysroot/usr/include" "$work/sysroot/usr/share"
touch "$work/complete"
rm -rf "$cache"/????????????
mv "$work" "$cache/$key"
trap - EXIT
chmod 755 "$cache/$key"
echo "$cache/$key/ggml-rival"
