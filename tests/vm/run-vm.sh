#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Boots one test guest with NDP DIMMs, runs a script in it, and ends with 0 only if all was well:
# the script's own status, and nothing the kernel complained about (see host.py). What the script
# prints comes out on stdout; the kernel's console is kept in build/vm/NAME/console.log.
#
#   run-vm.sh --script FILE [options] [-- MORE QEMU OPTIONS]
#   run-vm.sh --shell [options]          a shell instead, with the driver, ndp-run and its model
#
#   --kernel 6.1|6.12|debug  which kernel (6.1)         --name NAME      names the run's folder (vm)
#   --dimms N                NDP DIMMs, 0 to 32 (4)     --dimm-size S    of each, as QEMU writes it (256M)
#   --dimm-opt P=V,...       properties of each DIMM    --domains N      spread over N domains (1)
#   --smp N (2)   --mem S (2G)   --timeout SECONDS (300)
#   --append WORDS           more kernel parameters     --module NAME    one of the kernel's modules
#   --file SRC[:DST]         into the initramfs         --env NAME=VALUE for the script
#   --icount                 deterministic: one vCPU, guest time counted in instructions
#   --nvme SIZE              an NVMe disk of zeroes     --dry-run        print QEMU's command line
#   --system DIR             boot the system of deb-root.sh; what it writes to its disk is lost
#
# --file, --env, --module and --append may be repeated. The driver is /payload/moendp.ko in the guest;
# the script loads it. Each DIMM (dimm0, dimm1, ...) sits behind its own port, so that
# it can be unplugged; the guest asks the host for that with /bin/host (guest-host.sh).
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
top=$(readlink -f "$here/../..")
build=${NDP_BUILD:-$top/build}
die() { echo "run-vm: $*" >&2; exit 2; }

kernel=6.1 name=vm script='' dimms=4 dimm_size=256M dimm_opt='' domains=1 smp=2 mem=2G timeout=300
icount='' nvme='' system='' dry='' shell='' append=() ramfs=()
while [ $# -gt 0 ]; do
	case $1 in
	--icount) icount=1; shift; continue ;;
	--dry-run) dry=1; shift; continue ;;
	--shell) shell=1; shift; continue ;;
	--) shift; break ;;
	--*) [ $# -ge 2 ] || die "$1 needs a value" ;;
	*) die "what is $1? (see the head of this script)" ;;
	esac
	case $1 in
	--kernel) kernel=$2 ;;
	--name) name=$2 ;;
	--script) script=$2 ;;
	--dimms) dimms=$2 ;;
	--dimm-size) dimm_size=$2 ;;
	--dimm-opt) dimm_opt=$2 ;;
	--domains) domains=$2 ;;
	--smp) smp=$2 ;;
	--mem) mem=$2 ;;
	--timeout) timeout=$2 ;;
	--append) append+=("$2") ;;
	--module) ramfs+=(-m "$2") ;;
	--file) ramfs+=(-f "$2") ;;
	--env) ramfs+=(-e "$2") ;;
	--nvme) nvme=$2 ;;
	--system) system=$2 ;;
	*) die "no such option: $1 (see the head of this script)" ;;
	esac
	shift 2
done
if [ -n "$shell" ]; then
	script=$here/guest-shell.sh
	[ ! -x "$build/ndp-run" ] || ramfs+=(-f "$build/ndp-run")
	[ ! -d "$top/tests/models/tiny-moe" ] || ramfs+=(-f "$top/tests/models/tiny-moe")
	ramfs+=(-e "NDP_TERM=${TERM:-vt100}")
fi
[ -n "$script" ] || die "--script FILE or --shell is needed"
if ! [[ $dimms =~ ^[0-9]+$ ]] || [ "$dimms" -gt 32 ]; then die "--dimms: 0 to 32, not $dimms"; fi

qemu=${NDP_QEMU:-$build/qemu/qemu-system-x86_64}
[ -x "$qemu" ] || die "no $qemu: run make qemu"
run=$build/vm/$name
rm -rf "$run"
mkdir -p "$run"
root=''
if [ -n "$system" ]; then
	vmlinuz=$system/vmlinuz-$kernel initramfs=$system/initrd-$kernel root="root=LABEL=ndp rw"
	"$here/deb-files.sh" -o "$run/files" -s "$script" "${ramfs[@]}"
else
	if [ "$kernel" = debug ]; then
		kernel_dir=$("$here/debug-kernel.sh")
	else
		kernel_dir=$("$here/guest-kernel.sh" "$kernel")
	fi
	module=$build/kmod-$kernel/moendp.ko
	[ ! -e "$module" ] || ramfs+=(-f "$module:payload/moendp.ko")
	vmlinuz=$kernel_dir/vmlinuz initramfs=$run/initramfs
	"$here/mkinitramfs.sh" -o "$initramfs" -s "$script" -k "$kernel_dir" "${ramfs[@]}"
fi

# An emulated CPU of a busy host may stand still for longer than the kernel's defaults allow; a real
# lockup lasts. For the same reason its timer may miss the kernel's test of it at boot, and its time
# stamp counter looks unstable, which it is not. Its local timer, programmed for one event at a time,
# was seen to be silent for ever on a quiet host; one that ticks does not forget.
patience="no_timer_check watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=180"
[ -n "$icount" ] || patience+=" tsc=reliable nohz=off highres=off"
machine=(-nodefaults -no-user-config -no-reboot -M q35 -cpu max -m "$mem"
	-L /usr/share/seabios -L /usr/share/qemu -kernel "$vmlinuz" -initrd "$initramfs"
	-append "console=ttyS0 loglevel=5 panic=-1 oops=panic $patience $root ${append[*]}")
if [ -n "$icount" ]; then
	machine+=(-smp 1 -accel "tcg,thread=single" -icount "shift=0,sleep=off")
else
	machine+=(-smp "$smp" -accel "tcg,thread=multi")
fi

# The DIMMs, as options for QEMU and as JSON for host.py, which may plug them again.
bytes=$(numfmt --from=iec "$dimm_size") || die "--dimm-size: a size like 256M, not $dimm_size"
reserve=$((bytes * 2))
json='' domain=0 node=0
for ((i = 0; i < dimms; i++)); do
	if [ $((i * domains / dimms)) -ne $domain ]; then
		domain=$((domain + 1)) node=0
	fi
	uuid=$(printf '6d6f656e-6470-4000-8000-%012d' $domain)
	machine+=(-device "pcie-root-port,id=port$i,bus=pcie.0,chassis=$((i + 1)),slot=$((i + 1)),addr=$((4 + i / 8)).$((i % 8)),multifunction=on,pref64-reserve=$reserve")
	memory="{\"qom-type\":\"memory-backend-ram\",\"id\":\"mem$i\",\"size\":$bytes}"
	device="{\"driver\":\"ndp-dimm\",\"id\":\"dimm$i\",\"bus\":\"port$i\",\"memdev\":\"mem$i\",\"node\":$node,\"domain\":\"$uuid\""
	IFS=, read -ra opts <<<"$dimm_opt"
	for opt in "${opts[@]}"; do
		key=${opt%%=*} value=${opt#*=}
		case $value in
		on) value=true ;;
		off) value=false ;;
		*[!0-9]*) value="\"$value\"" ;;
		esac
		device+=",\"$key\":$value"
	done
	device+='}' node=$((node + 1))
	machine+=(-object "$memory" -device "$device")
	json+="${json:+,}\"dimm$i\":{\"memory\":$memory,\"device\":$device}"
done
echo "{$json}" >"$run/dimms.json"
[ -z "$nvme" ] || machine+=(-drive "driver=null-co,read-zeroes=on,size=$nvme,if=none,id=nvme0"
	-device "nvme,serial=ndp0,drive=nvme0")
[ -z "$system" ] || machine+=(
	-drive "file=$system/disk,format=raw,if=none,id=system,snapshot=on"
	-device "nvme,serial=ndpsystem,drive=system"
	-drive "file=$run/files,format=raw,if=none,id=files,read-only=on"
	-device "nvme,serial=ndpfiles,drive=files")

if [ -n "$dry" ]; then
	printf '%q ' "$qemu" "${machine[@]}" "$@"
	echo
	exit
fi
exec python3 "$here/host.py" --dir "$run" --timeout "$timeout" --dimms "$run/dimms.json" ${shell:+--shell} -- \
	"$qemu" "${machine[@]}" "$@"
