#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What an operator is told of ndpd's configuration, as TAP: the file that is installed and
# ndpd.conf(5) have every key of the table in daemon/config.c, in its section, and no other. Run
# from the top of the tree.
set -u

page=docs/man/ndpd.conf.5 conf=share/ndpd/ndpd.conf
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
count=0

# check NAME COMMAND...: passes if the command ends with 0
check() {
	local name=$1

	shift
	count=$((count + 1))
	if "$@" >"$tmp" 2>&1; then
		echo "ok $count - $name"
	else
		sed 's/^/# /' "$tmp"
		echo "not ok $count - $name"
	fi
}

# "section key" of each; weights have names for keys, which nobody can list
known() { sed -n 's/^	KEY("\([a-z]*\)", "\([a-z_]*\)".*/\1 \2/p' daemon/config.c | sort; }
shipped() {
	awk '/^\[/ { s = substr($0, 2, length($0) - 2) }
		s != "weights" && match($0, /^#?[a-z_]+ = /) { sub(/^#/, ""); print s, $1 }' $conf | sort
}
described() {
	awk '/^\.S[sh] / { s = $2 == "Section" ? $3 : "" } s && /^\.It Cm / { print s, $3 }' $page | sort
}

there_is_a_table() { [ "$(known | wc -l)" -ge 19 ] || { known; return 1; }; }
same() { diff <(known) <("$1"); }
sections() {
	diff <({ known | sed 's/ .*//'; echo weights; } | sort -u) \
		<(sed -n 's/^\.Ss Section //p' $page | sort)
}
lint() { ! mandoc -T lint -W style docs/man/ndpd.8 $page | grep -v 'referenced manual not found'; }

check "config.c has a table of keys" there_is_a_table
check "$conf has every key and no other" same shipped
check "ndpd.conf(5) describes every key and no other" same described
check "ndpd.conf(5) has every section" sections
check "mandoc finds nothing to complain about" lint
echo "1..$count"
