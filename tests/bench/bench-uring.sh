#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar F.4: guest instructions of one FFN command on an NDP DIMM, against those of one 4 KiB read on
# QEMU's NVMe character device, both through io_uring_cmd in the same loop (bench_uring.c).
#
#   bench-uring.sh [KERNEL]         6.1 (default) or 6.12
#
# One boot with time counted in instructions (-icount), so that the device computes inside of the
# doorbell write, completes when it has computed (timing=off), and runs repeat. Pairs of runs alternate
# between the two devices; the cost of a command is (instructions of 20,000 - instructions of 10,000)
# / 10,000, kernel and user counted by insn_split.so; of the repetitions the median. NVMe runs without
# an I/O scheduler, its shortest way. Nothing here depends on wall time.
#
# Everything that the one CPU executes is counted, so nothing else may run: the guest first waits for
# what its kernel still does after booting (virtual time: it costs none here), and a run whose first
# half does not cost what its second half costs, within 5 %, is refused.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
top=$(readlink -f "$here/../..")
build=${NDP_BUILD:-$top/build}
kernel=${1:-6.1}
name=bench-uring-$kernel
log=$build/bench/$name.marks
script=$build/bench/$name.sh
repeat=3 short=10000 long=20000
profile=${NDP_PROFILE:+,profile=$NDP_PROFILE}

mkdir -p "$build/bench"
rm -f "$log"
cat >"$script" <<GUEST
insmod /payload/moendp.ko || exit
sleep 20
echo none >/sys/block/nvme0n1/queue/scheduler || exit
for i in \$(seq $repeat); do
	bench_uring ffn /dev/ndp0 $short $long || exit
	bench_uring nvme /dev/ng0n1 $short $long || exit
done
GUEST
"$top/tests/vm/run-vm.sh" --name "$name" --kernel "$kernel" --script "$script" --icount --timeout 600 \
	--dimms 1 --dimm-size 64M --nvme 64M --module nvme --append nokaslr \
	--file "$build/bench/bench_uring" -- \
	-plugin "$build/bench/insn_split.so$profile" -d plugin -D "$log" >"$build/bench/$name.log" || {
	cat "$build/bench/$name.log" >&2
	exit 1
}

# Marks come in pairs: of the short run, of the long run; NDP and NVMe take turns.
awk -v repeat=$repeat -v short=$short -v long=$long -v kernel="$kernel" '
function median(a, n,	i, j, t) {
	for (i = 1; i <= n; i++)
		for (j = i + 1; j <= n; j++)
			if (a[j] < a[i]) { t = a[i]; a[i] = a[j]; a[j] = t }
	return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
BEGIN { n = 0 }
$1 == "mark" && $3 == "kernel" && $5 == "user" {
	if ($2 != n % 2 + 1)
		exit bad = 1
	at_kernel[n] = $4; at_user[n] = $6; n++
}
END {
	if (bad || n != 8 * repeat) {
		print "bench-uring: " n + 0 " marks instead of " 8 * repeat > "/dev/stderr"
		exit 1
	}
	for (i = 0; i < 2 * repeat; i++) {
		m = 4 * i
		k = (at_kernel[m + 3] - at_kernel[m + 2] - at_kernel[m + 1] + at_kernel[m]) / (long - short)
		u = (at_user[m + 3] - at_user[m + 2] - at_user[m + 1] + at_user[m]) / (long - short)
		r = int(i / 2) + 1
		first = (at_kernel[m + 1] + at_user[m + 1] - at_kernel[m] - at_user[m]) / short
		if (first > 1.05 * (k + u) || first < 0.95 * (k + u)) {
			printf "bench-uring: something else ran in the guest: %.0f and %.0f instructions a command in the same run\n",
				first, k + u > "/dev/stderr"
			exit 1
		}
		if (i % 2) { nvme_k[r] = k; nvme_u[r] = u; nvme[r] = k + u }
		else { ndp_k[r] = k; ndp_u[r] = u; ndp[r] = k + u }
	}
	ratio = median(ndp, repeat) / median(nvme, repeat)
	ratio_k = median(ndp_k, repeat) / median(nvme_k, repeat)
	printf "# guest instructions a command, kernel %s: FFN %.0f (kernel %.0f, user %.0f), NVMe read %.0f (kernel %.0f, user %.0f); kernel only %.2f\n",
		kernel, median(ndp, repeat), median(ndp_k, repeat), median(ndp_u, repeat),
		median(nvme, repeat), median(nvme_k, repeat), median(nvme_u, repeat), ratio_k
	printf "bar F.4 uring-instructions value=%.2f goal=<=1.00 %s\n", ratio, ratio <= 1 ? "pass" : "fail"
	exit ratio > 1
}' "$log"
