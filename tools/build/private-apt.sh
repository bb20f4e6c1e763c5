#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Fetch packages of Debian suites that this system does not use itself.
#
# The build needs QEMU's source package from trixie, meson and a newer kernel
# from bookworm-backports. This script keeps an apt state of its own in the
# cache for them: it reads where the system gets Debian from, and never
# changes the system's apt files, lists or package database. Nothing fetched
# here is installed.
#
# The lists are fetched when they are missing, when a download fails (mirrors
# drop old versions) and by "update"; at no other time, so that two builds in a
# row see the same versions and a filled cache works without a network.
# Facts: apt.conf(5), apt-get(8), sources.list(5).

set -euo pipefail

usage() {
	cat >&2 <<'USAGE'
usage: private-apt.sh update
       private-apt.sh version PKG SUITE
           print the newest version of the binary package PKG in SUITE
       private-apt.sh deb PKG SUITE DESTDIR
           put the newest .deb of PKG in SUITE into DESTDIR, print its path
       private-apt.sh source PKG VERSION_GLOB SUITE DESTDIR
           unpack PKG's newest source package whose version matches into
           DESTDIR (which must not exist yet), print its version
       private-apt.sh sources SUITE...
           print lines of sources.list(5) for these suites
SUITE: bookworm, bookworm-updates, bookworm-security, bookworm-backports, trixie,
       trixie-backports
USAGE
	exit 2
}

die() {
	echo "private-apt: $*" >&2
	exit 1
}

CACHE=${NDP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/moendp}
mkdir -p "$CACHE/apt"
ROOT=$(cd "$CACHE/apt" && pwd)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

sites() {
	# shellcheck disable=SC2016 # apt expands these, not the shell
	apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages'
}

# The URI of the archive that the system's own lists come from: $1 is "main"
# or "security".
site_of() {
	local codename site

	while read -r codename site; do
		case $1:$codename in
		security:*-security) echo "$site"; return ;;
		main:*-security) ;;
		main:bookworm* | main:trixie*) echo "$site"; return ;;
		esac
	done <<< "$(sites)"
	return 1
}

# Write the private configuration; quick, so it is done every time.
configure() {
	local main security components="main"

	[ -r "$KEYRING" ] ||
		die "no $KEYRING: apt-get install debian-archive-keyring"
	main=$(site_of main) ||
		die "apt knows no Debian archive: sources.list has no bookworm" \
		    "or trixie entry; add one and run apt-get update"
	security=$(site_of security) || security=$main-security

	mkdir -p "$ROOT"/{state/lists/partial,cache/archives/partial} \
		 "$ROOT"/{etc/sources.d,etc/prefs.d,debs,src}
	: > "$ROOT/state/status"
	cat > "$ROOT/etc/sources.d/moendp.sources.new" <<-SOURCES
	Types: deb deb-src
	URIs: $main
	Suites: bookworm bookworm-updates bookworm-backports trixie trixie-backports
	Components: $components
	Signed-By: $KEYRING

	Types: deb deb-src
	URIs: $security
	Suites: bookworm-security
	Components: $components
	Signed-By: $KEYRING
	SOURCES
	mv "$ROOT/etc/sources.d/moendp.sources.new" \
	   "$ROOT/etc/sources.d/moendp.sources"
	cat > "$ROOT/etc/apt.conf" <<-CONF
	Dir::State "$ROOT/state";
	Dir::State::Lists "$ROOT/state/lists";
	Dir::State::status "$ROOT/state/status";
	Dir::Cache "$ROOT/cache";
	Dir::Etc::SourceList "/dev/null";
	Dir::Etc::SourceParts "$ROOT/etc/sources.d";
	Dir::Etc::Preferences "/dev/null";
	Dir::Etc::PreferencesParts "$ROOT/etc/prefs.d";
	Acquire::Languages "none";
	Acquire::Retries "3";
	APT::Sandbox::User "root";
	CONF
	export APT_CONFIG=$ROOT/etc/apt.conf
}

have_lists() {
	[ -e "$ROOT/state/updated" ]
}

update() {
	echo "private-apt: fetching the package lists" >&2
	if ! apt-get -q -o APT::Get::List-Cleanup=true \
	     -o APT::Update::Error-Mode=any update > "$ROOT/update.log" 2>&1
	then
		tail -n 15 "$ROOT/update.log" >&2
		return 1
	fi
	touch "$ROOT/state/updated"
}

need_lists() {
	have_lists || update ||
		die "the package lists could not be fetched (see above) and" \
		    "none are cached; is the Debian mirror reachable?"
}

# Newest version: $1 package, $2 suite, $3 Packages or Sources, $4 glob.
find_version() {
	local best="" name version place

	while IFS='|' read -r name version place; do
		name=${name// /}
		version=${version// /}
		[ "$name" = "$1" ] || continue
		case $place in
		*" $2/"*" $3") ;;
		*) continue ;;
		esac
		# shellcheck disable=SC2053 # $4 is a glob on purpose
		[[ $version == $4 ]] || continue
		if [ -z "$best" ] ||
		   dpkg --compare-versions "$version" gt "$best"; then
			best=$version
		fi
	done < <(apt-cache madison "$1" 2> /dev/null | sed 's/ *| */|/g; s/|\([^|]*\)$/| \1/')
	[ -n "$best" ] || return 1
	echo "$best"
}

# Run "fetch_once VERSION" for what find_version finds; if the mirror no
# longer has that version, refresh the lists and try once more.
fetch() {
	local version

	need_lists
	version=$(find_version "$@") && fetch_once "$1" "$version" && return 0
	update || die "$1 of $2 could not be fetched and the lists cannot be" \
		      "refreshed; is the Debian mirror reachable?"
	version=$(find_version "$@") ||
		die "no $3 entry of $1 in $2 has a version like '$4'"
	fetch_once "$1" "$version" ||
		die "$1 $version of $2 is listed but cannot be downloaded"
}

fetch_deb() {
	local dir=$ROOT/debs/$1=${2//:/%}

	if ! compgen -G "$dir/*.deb" > /dev/null; then
		rm -rf "$dir.part"
		mkdir -p "$dir.part"
		echo "private-apt: downloading $1 $2" >&2
		(cd "$dir.part" && apt-get -qq download "$1=$2") >&2 || return 1
		rm -rf "$dir"
		mv "$dir.part" "$dir"
	fi
	FETCHED=$(compgen -G "$dir/*.deb")
}

fetch_source() {
	local dir=$ROOT/src/$1=${2//:/%}

	if ! compgen -G "$dir/*.dsc" > /dev/null; then
		rm -rf "$dir.part"
		mkdir -p "$dir.part"
		echo "private-apt: downloading the source of $1 $2" >&2
		(cd "$dir.part" &&
		 apt-get -qq source --download-only "$1=$2") >&2 || return 1
		rm -rf "$dir"
		mv "$dir.part" "$dir"
	fi
	FETCHED=$(compgen -G "$dir/*.dsc")
	VERSION=$2
}

[ $# -ge 1 ] || usage
verb=$1
shift
for tool in apt-get dpkg-source flock; do
	command -v "$tool" > /dev/null ||
		die "$tool is missing: apt-get install apt dpkg-dev util-linux"
done
exec 9> "$ROOT/lock"
flock 9
configure

case $verb:$# in
update:0)
	update || die "the package lists could not be fetched (see above)"
	;;
version:2)
	need_lists
	find_version "$1" "$2" Packages '*' ||
		die "no package $1 in $2 (private-apt.sh update refreshes the lists)"
	;;
deb:3)
	fetch_once() { fetch_deb "$@"; }
	mkdir -p "$3"
	fetch "$1" "$2" Packages '*'
	ln -f "$FETCHED" "$3/" 2> /dev/null || cp -f "$FETCHED" "$3/"
	echo "$3/${FETCHED##*/}"
	;;
source:4)
	fetch_once() { fetch_source "$@"; }
	[ ! -e "$4" ] || die "$4 exists already; remove it first"
	fetch "$1" "$3" Sources "$2"
	mkdir -p "$(dirname "$4")"
	rm -rf "$4.part"
	dpkg-source --no-check -q -x "$FETCHED" "$4.part" >&2 ||
		die "cannot unpack $FETCHED"
	mv "$4.part" "$4"
	echo "$VERSION"
	;;
sources:[1-9])
	for suite; do
		kind=main
		[ "${suite%-security}" = "$suite" ] || kind=security
		echo "deb [signed-by=$KEYRING] $(site_of $kind) $suite main"
	done
	;;
*)
	usage
	;;
esac
