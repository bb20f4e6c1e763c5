#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Style and static checks of the whole tree, as TAP. The kernel parts are judged by the kernel's own
# tools (checkpatch --strict, kernel-doc, W=1, sparse with endian checks), the QEMU device by QEMU's.
# Run from the top of the tree; the module builds go to build/style-*.
set -u

cache_source=$(tests/vm/guest-kernel.sh source) || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
count=0

# check NAME COMMAND...: passes if the command ends with 0 and prints nothing
check() {
	local name=$1 status

	shift
	"$@" >"$log" 2>&1
	status=$?
	count=$((count + 1))
	if [ $status -eq 0 ] && [ ! -s "$log" ]; then
		echo "ok $count - $name"
	else
		head -n 60 "$log" | sed 's/^/# /'
		echo "not ok $count - $name"
	fi
}

# files PATTERN...: the project's own files of these names
files() {
	local args=()

	for pattern; do
		args+=(${args:+-o} -name "$pattern")
	done
	find . \( -path ./build -o -path ./.git \) -prune -o -type f \( "${args[@]}" \) -print | sort
}

# checkpatch knows by its path (include/uapi/) which header user space reads; here it must be told
# that such headers have no BIT(), and the one shared with QEMU no u32 either. Its tokenizer takes
# the header's name in __has_include(<...>) for arithmetic.
checkpatch() {
	local file ignore

	for file in kmod/*.c kmod/*.h kmod/uapi/*.h; do
		case $file in
		kmod/ndp_regs.h) ignore=BIT_MACRO,PREFER_KERNEL_TYPES ;;
		kmod/uapi/*) ignore=BIT_MACRO ;;
		*) ignore='' ;;
		esac
		"$cache_source/scripts/checkpatch.pl" --no-tree --no-summary --quiet --strict --terse \
			--show-types ${ignore:+--ignore "$ignore"} --file "$file" |
			while IFS=: read -r path line rest; do
				sed -n "${line}p" "$path" | grep -q '__has_include(<' ||
					echo "$path:$line:$rest"
			done
	done
}

# The chip is MIT and plain C on purpose: it asks the compiler, not QEMU, which machine this is.
qemu_checkpatch() {
	qemu-device/build.sh checkpatch 2>&1 |
		grep -vE 'Saw acceptable license|architecture specific defines should be avoided'
	return 0
}

kernel_doc() {
	"$cache_source/scripts/kernel-doc" -none -Werror kmod/uapi/*.h
}

# kernel_build KERNEL NAME=VALUE...: only warnings and errors are left of the output
kernel_build() {
	local kernel=$1 status

	shift
	make -s modules-style KERNEL="$kernel" "$@" >"$log.build" 2>&1
	status=$?
	if [ $status -ne 0 ]; then
		tail -n 40 "$log.build"
	else
		grep -E 'warning|error' "$log.build"
	fi
	rm -f "$log.build"
	return $status
}

shell_scripts() {
	files '*.sh' | xargs shellcheck &&
	grep -rlE '^#!/bin/(ba)?sh' --exclude='*.sh' --exclude-dir=build --exclude-dir=.git . |
		xargs -r shellcheck
}

spdx_lines() {
	files '*.c' '*.h' '*.sh' '*.py' '*.mk' '*.map' 'Makefile' 'Kbuild' 'Kconfig' 'init' |
		xargs grep -L 'SPDX-License-Identifier'
}

python_compiles() {
	files '*.py' | xargs -r python3 -c 'import ast, sys
for name in sys.argv[1:]:
    ast.parse(open(name).read(), name)'
}

check "kmod: checkpatch --strict" checkpatch
check "kmod: kernel-doc of the uapi" kernel_doc
check "kmod: sparse, W=1 on 6.1" kernel_build 6.1 SPARSE=1
check "kmod: W=1 on 6.12" kernel_build 6.12
check "qemu-device: QEMU's checkpatch" qemu_checkpatch
check "shell scripts: shellcheck" shell_scripts
check "python scripts compile" python_compiles
check "every file names its licence" spdx_lines
echo "1..$count"
