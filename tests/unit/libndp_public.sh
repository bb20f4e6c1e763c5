#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What a program sees of libndp, as TAP. The library exports what its map lists, each header stands
# alone in C and in C++. Every exported function has a page in the manual that names it, pages are
# clean for man (and for mandoc, where it is installed), and what they show as EXAMPLES compiles; the
# one that is a program prints what its page says. Run from the top of the tree, after the library is
# built.
set -u

build=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
count=0

# check NAME COMMAND...: passes if the command ends with 0 and prints nothing
check() {
	local name=$1 status

	shift
	"$@" >"$tmp/log" 2>&1
	status=$?
	count=$((count + 1))
	if [ $status -eq 0 ] && [ ! -s "$tmp/log" ]; then
		echo "ok $count - $name"
	else
		head -n 40 "$tmp/log" | sed 's/^/# /'
		echo "not ok $count - $name"
	fi
}

# A tree as it is installed, for the .so lines of pages that share their text.
mkdir -p "$tmp/man/man1" "$tmp/man/man3"
cp docs/man/*.1 "$tmp/man/man1"
cp docs/man/*.3 "$tmp/man/man3"
cd "$tmp/man" || exit 1
top=$OLDPWD
pages() { grep -L '^\.so ' man3/*.3; }

mapped() {
	sed -n 's/^\t\(ndp_[a-z0-9_]*\);$/\1/p' "$top/libndp/libndp.map"
}

exports_are_the_maps() {
	diff <(nm -D --defined-only "$top/$build/libndp.so.0" | sed -n 's/.* T \(.*\)@@LIBNDP_0/\1/p' |
		sort) <(mapped | sort)
}

headers_stand_alone() {
	local header language

	for header in "$top"/libndp/include/ndp/*.h; do
		for language in c c++; do
			echo "#include <ndp/$(basename "$header")>" |
				"${CC:-gcc}" -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
					-I"$top/libndp/include" -x $language -
		done
	done
}

every_function_has_a_page() {
	local f page

	while read -r f; do
		page=man3/$f.3
		[ -e "$page" ] || { echo "no page: $f"; continue; }
		page=$(sed -n 's/^\.so //p' "$page")
		page=${page:-man3/$f.3}
		grep -qE "^\.Nm $f( ,)?$" "$page" || echo "$page does not name $f"
	done < <(mapped)
}

every_alias_is_exported() {
	local page name

	for page in man3/ndp_*.3; do
		name=$(basename "$page" .3)
		grep -q "^	$name;" "$top/libndp/libndp.map" || echo "$page: no such function"
	done
}

man_has_no_warnings() {
	local page

	for page in man3/*.3; do
		LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$page" >/dev/null
	done
}

# Style remarks on pages that are not installed here are no news.
mandoc_has_no_warnings() {
	local page

	for page in $(pages); do
		mandoc -T lint -W style "$page"
	done 2>&1 | grep -vE 'referenced manual not found|outdated mandoc.db'
	return 0
}

# The text of the first display after EXAMPLES, with the page's escapes undone.
example() {
	sed -n '/^\.Sh EXAMPLES/,/^\.Ed/p' "$1" | sed -n '/^\.Bd -literal/,/^\.Ed/p' |
		sed -e '/^\.[BE]d/d' -e 's/\\e/\\/g'
}

examples_compile() {
	local page name

	for page in $(pages); do
		name=$tmp/$(basename "$page" .3)
		example "$page" >"$name.c"
		[ -s "$name.c" ] || echo "$page has no example"
		"${CC:-gcc}" -std=gnu11 -Wall -Wextra -Werror -I"$top/libndp/include" -c \
			-o "$name.o" "$name.c"
	done
}

the_program_prints_what_it_says() {
	local said

	said=$(sed -n 's/^\.Ql \(y\[0\] = [0-9]*\).*/\1/p' man3/libndp.3)
	"${CC:-gcc}" -o "$tmp/example" "$tmp/libndp.o" -L"$top/$build" -l:libndp.so.0 \
		-Wl,-rpath,"$top/$build" || return
	[ "$("$tmp/example")" = "$said" ] || echo "the page says \"$said\": $("$tmp/example")"
}

check "the library exports what its map lists" exports_are_the_maps
check "every header stands alone, in C and in C++" headers_stand_alone
check "every exported function has a page that names it" every_function_has_a_page
check "every page is about an exported function" every_alias_is_exported
check "man renders every page without a warning" man_has_no_warnings
if command -v mandoc >/dev/null; then
	check "mandoc finds nothing to complain about" mandoc_has_no_warnings
fi
check "the examples compile without a warning" examples_compile
check "the example of libndp(3) prints what the page says" the_program_prints_what_it_says
echo "1..$count"
